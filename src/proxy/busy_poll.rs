//! Keeps a worker's thread awake for a moment after anything happens to one of its calls.
//!
//! A thread that sleeps is woken by the peer that writes to its socket, which costs both sides more than
//! a call needs of the processor: where calls come one by one, most of their time is waking up. So
//! the thread polls again for a moment before it sleeps, and lets every other thread run first.
//! Where many calls are open the next event is never far, and sleeping in between gives the others
//! their turn. Who runs this, and for how long a worker lives, is the server's affair.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How long the thread stays awake: longer than a server on the same machine, or an agent who has
/// its next question ready, takes to answer. Nothing that comes later is worth the waiting.
const LINGER: Duration = Duration::from_micros(50);
/// With more calls open than this it does not stay awake.
const FEW_CALLS: usize = 2;

/// What happens on one worker. Not shared between threads.
#[derive(Debug, Default)]
pub struct BusyPoll {
    /// Calls under way.
    open: Cell<usize>,
    /// Grows with every beginning and every end of a call.
    beats: Cell<u64>,
    /// False while the thread may sleep.
    awake: Cell<bool>,
    roused: Notify,
}

/// A call under way, until it is dropped.
#[derive(Debug)]
pub struct OpenCall<'a>(&'a BusyPoll);

impl BusyPoll {
    /// A call has begun. It has ended when what this gives is dropped.
    #[must_use]
    pub fn open(&self) -> OpenCall<'_> {
        self.open.set(self.open.get() + 1);
        self.beat();
        OpenCall(self)
    }

    /// Keeps the thread awake for 50 µs after each beginning and each end, while few calls are
    /// open. Never ends: for a task of its own.
    pub async fn linger(&self) {
        loop {
            self.roused.notified().await;
            let mut since = Instant::now();
            while self.has_few() && since.elapsed() < LINGER {
                let before = self.beats.get();
                thread::yield_now();
                // The runtime takes in what is at hand, and does it.
                tokio::task::yield_now().await;
                if self.beats.get() != before {
                    since = Instant::now();
                }
            }
            self.awake.set(false);
        }
    }

    fn beat(&self) {
        self.beats.set(self.beats.get().wrapping_add(1));
        if self.has_few() && !self.awake.replace(true) {
            self.roused.notify_one();
        }
    }

    fn has_few(&self) -> bool {
        self.open.get() <= FEW_CALLS
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.beat();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;

    /// Polls until the thread may sleep; how long that took.
    fn settle(busy_poll: &BusyPoll, mut lingering: Pin<&mut impl Future<Output = ()>>) -> Duration {
        let began = Instant::now();
        loop {
            assert!(lingering.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            if !busy_poll.awake.get() {
                return began.elapsed();
            }
            assert!(began.elapsed() < Duration::from_secs(10), "it never sleeps");
        }
    }

    #[test]
    fn it_is_awake_after_every_beat_and_sleeps_again() {
        let busy_poll = BusyPoll::default();
        let mut lingering = std::pin::pin!(busy_poll.linger());
        settle(&busy_poll, lingering.as_mut());
        for _ in 0..2 {
            let open = busy_poll.open();
            assert!(busy_poll.awake.get(), "a call began");
            assert!(settle(&busy_poll, lingering.as_mut()) >= LINGER);
            drop(open);
            assert!(busy_poll.awake.get(), "it ended");
            assert!(settle(&busy_poll, lingering.as_mut()) >= LINGER);
        }
    }

    #[test]
    fn it_may_sleep_while_many_calls_are_open() {
        let busy_poll = BusyPoll::default();
        let mut lingering = std::pin::pin!(busy_poll.linger());
        let mut open: Vec<_> = (0..=FEW_CALLS).map(|_| busy_poll.open()).collect();
        settle(&busy_poll, lingering.as_mut());
        open.push(busy_poll.open());
        assert!(!busy_poll.awake.get());
        open.truncate(FEW_CALLS);
        assert!(busy_poll.awake.get(), "few are left");
    }
}
