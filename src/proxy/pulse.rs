//! Keeps a worker's thread awake for a moment after anything happens to one of its calls.
//!
//! A thread that sleeps is woken by whoever writes to its socket, which costs both sides more than
//! a call needs of the processor: where calls come one by one, most of their time is waking up. So
//! the thread looks again for a moment before it sleeps, and lets every other thread go first. Who
//! runs this, and for how long a worker lives, is the server's affair.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How long the thread stays awake: longer than a server on the same machine, or an agent who has
/// its next question ready, takes to answer. Nothing that comes later is worth the waiting.
const LINGER: Duration = Duration::from_micros(50);

/// What happens on one worker. Not shared between threads.
#[derive(Debug, Default)]
pub struct Pulse {
    /// Grows with everything that happens.
    beats: Cell<u64>,
    /// False while the thread may sleep.
    awake: Cell<bool>,
    roused: Notify,
}

impl Pulse {
    /// Something happened to a call: a request has come, or its answer.
    pub fn beat(&self) {
        self.beats.set(self.beats.get().wrapping_add(1));
        if !self.awake.replace(true) {
            self.roused.notify_one();
        }
    }

    /// Keeps the thread awake for 50 µs after each beat. Never ends: for a task of its own.
    pub async fn linger(&self) {
        loop {
            self.roused.notified().await;
            let mut since = Instant::now();
            while since.elapsed() < LINGER {
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
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;

    #[test]
    fn it_is_awake_after_a_beat_and_sleeps_again() {
        let pulse = Pulse::default();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut lingering = std::pin::pin!(pulse.linger());
        assert!(lingering.as_mut().poll(&mut cx).is_pending());
        assert!(!pulse.awake.get(), "nothing has happened");
        for _ in 0..2 {
            pulse.beat();
            assert!(pulse.awake.get());
            let began = Instant::now();
            while pulse.awake.get() {
                assert!(lingering.as_mut().poll(&mut cx).is_pending());
                assert!(began.elapsed() < Duration::from_secs(10), "it never sleeps");
            }
            assert!(began.elapsed() >= LINGER);
        }
    }
}
