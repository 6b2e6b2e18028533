//! Which calls a query has to wait for: those whose reply ended before it, and no other (ACT-5).

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How often a query checks whether the calls it waits for have left.
const QUERY_POLL: Duration = Duration::from_micros(100);

/// Counts the calls whose reply has ended but whose entry is yet to come. Two counters in turn:
/// a query turns them over and waits for the old one to run out, so that it waits for every call
/// that was there before it and for none that came later.
#[derive(Default)]
pub(super) struct ReadBarrier {
    current: AtomicU8,
    pending: [AtomicUsize; 2],
    turning: Mutex<()>,
}

impl ReadBarrier {
    fn counter(&self, epoch: u8) -> &AtomicUsize {
        let [even, odd] = &self.pending;
        if epoch & 1 == 0 { even } else { odd }
    }

    /// Counts a call in; its epoch was the current one at some moment of this call.
    pub(super) fn enter(&self) -> u8 {
        loop {
            let epoch = self.current.load(Ordering::SeqCst);
            self.counter(epoch).fetch_add(1, Ordering::SeqCst);
            if self.current.load(Ordering::SeqCst) == epoch {
                return epoch;
            }
            self.leave(epoch);
        }
    }

    /// Counts a call out.
    pub(super) fn leave(&self, epoch: u8) {
        self.counter(epoch).fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until every call that entered before has left. False if it took too long.
    pub(super) fn wait(&self, deadline: Instant) -> bool {
        let _turn = self.turning.lock();
        let old = self.current.fetch_add(1, Ordering::SeqCst);
        while self.counter(old).load(Ordering::SeqCst) > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(QUERY_POLL);
        }
        true
    }
}
