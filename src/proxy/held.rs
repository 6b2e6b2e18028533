//! How many bytes are held over all calls: by strict (`max_held_total_bytes`), and by warn for
//! judging that is behind its replies.
//!
//! Past the limit a call that strict holds waits for others to let go, bounded, and is then refused;
//! warn judges before the reply ends instead. The count is one atomic; only a call that must wait
//! touches anything heavier.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Notify;

/// How long a call waits for room. Less than a stdio upstream waits for a call to take its answer,
/// so that the other calls of that server do not wait for this one.
pub const MAX_WAIT: Duration = Duration::from_secs(4);

/// Bytes of answers that warn has forwarded and not judged yet, over all calls. Where judging falls
/// further behind, replies wait for it: more would only be more memory, and colder.
pub const MAX_BEHIND_BYTES: u64 = 32 << 20;

/// The room shared by all calls.
#[derive(Clone, Debug)]
pub struct Budget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit: u64,
    used: AtomicU64,
    freed: Notify,
}

/// No room came free within [`MAX_WAIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("max_held_total_bytes {0} is in use by other calls, and none ended within {MAX_WAIT:?}")]
pub struct Full(pub u64);

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let shared = Shared { limit, used: AtomicU64::new(0), freed: Notify::new() };
        Self { shared: Arc::new(shared) }
    }

    /// A share of the budget, empty at first.
    #[must_use]
    pub fn share(&self) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }

    /// Bytes that are held now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.shared.used.load(Ordering::Relaxed)
    }

    /// Most bytes that may be.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.shared.limit
    }

    fn try_take(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.shared.limit);
        self.shared.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }
}

/// What one call holds; given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    bytes: u64,
}

impl Share {
    /// Takes room for `bytes` more, waiting at most [`MAX_WAIT`].
    ///
    /// # Errors
    ///
    /// [`Full`] when none came free.
    pub async fn grow(&mut self, bytes: u64) -> Result<(), Full> {
        if !self.budget.try_take(bytes) {
            let full = Full(self.budget.shared.limit);
            tokio::time::timeout(MAX_WAIT, self.wait_for(bytes)).await.map_err(|_| full)?;
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Takes room for `bytes` more if there is some at once.
    pub fn try_grow(&mut self, bytes: u64) -> bool {
        let taken = self.budget.try_take(bytes);
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    async fn wait_for(&self, bytes: u64) {
        loop {
            let mut freed = std::pin::pin!(self.budget.shared.freed.notified());
            // Registered before the second look, so that no release falls between.
            freed.as_mut().enable();
            if self.budget.try_take(bytes) {
                return;
            }
            freed.await;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.shared.used.fetch_sub(self.bytes, Ordering::AcqRel);
            self.budget.shared.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn a_call_waits_until_another_lets_go() {
        runtime().block_on(async {
            let budget = Budget::new(100);
            let mut first = budget.share();
            first.grow(60).await.unwrap();
            let mut second = budget.share();
            let mut waiting = std::pin::pin!(second.grow(60));
            assert!(futures_util::poll!(&mut waiting).is_pending());
            drop(first);
            waiting.await.unwrap();
            assert_eq!(budget.shared.used.load(Ordering::Relaxed), 60);
        });
    }

    #[test]
    fn what_can_never_fit_is_refused_by_the_limit_and_gives_nothing_back() {
        let budget = Budget::new(100);
        assert!(!budget.try_take(101));
        assert!(!budget.try_take(u64::MAX));
        assert!(budget.try_take(100));
        drop(budget.share());
        assert_eq!(budget.shared.used.load(Ordering::Relaxed), 100);
    }
}
