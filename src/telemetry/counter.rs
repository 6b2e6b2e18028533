//! A counter that one thread increments and others read.

use std::sync::atomic::{AtomicU64, Ordering};

/// Written by one thread at a time, so that it takes no locked instruction and no line of cache that
/// others write.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// By the one thread.
    pub(super) fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
