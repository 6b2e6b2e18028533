//! Whether a client's connection is idle, and since when: one word for each connection.
//!
//! A connection is idle while no request of its client is being read or answered.
//!
//! ```text
//! idle since t ── bytes come ──▶ busy ── the answer has left ──▶ idle since t'
//!      └── another connection needs its place ──▶ retired: no request begins on it any more
//! ```
//!
//! A request changes its own connection's word twice, which no other connection writes. Which idle
//! connection is retired is decided by `connection_limit`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const BUSY: u64 = 0;
const RETIRED: u64 = 1;
/// Added to the millisecond since when it is idle, so that no moment is one of the others.
const IDLE: u64 = 2;

/// The state of one connection.
#[derive(Debug)]
pub(super) struct IdleState {
    word: AtomicU64,
    /// The moment that milliseconds are counted from.
    origin: Instant,
}

/// Since when a connection is idle; compared with those of the same origin alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct IdleSince(u64);

impl IdleState {
    /// Idle since `now`.
    pub(super) fn new(origin: Instant, now: Instant) -> Self {
        let state = Self { word: AtomicU64::new(BUSY), origin };
        state.set_idle(now);
        state
    }

    /// Bytes of a request have come; false if the connection is retired, so that nothing is begun.
    pub(super) fn set_busy(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word == BUSY || word == RETIRED {
                return word == BUSY;
            }
            let set = self.word.compare_exchange(word, BUSY, Ordering::Relaxed, Ordering::Relaxed);
            match set {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// It waits for the next request from now on, if it was busy.
    pub(super) fn set_idle(&self, now: Instant) {
        if self.word.load(Ordering::Relaxed) == BUSY {
            let ms = now.saturating_duration_since(self.origin).as_millis();
            let ms = u64::try_from(ms).unwrap_or(u64::MAX);
            self.word.store(ms.saturating_add(IDLE), Ordering::Relaxed);
        }
    }

    /// Since when it is idle; `None` if it is not.
    pub(super) fn idle_since(&self) -> Option<IdleSince> {
        let word = self.word.load(Ordering::Relaxed);
        (word >= IDLE).then_some(IdleSince(word))
    }

    /// Retires it if it has been idle since then, without a request in between; false if it has not.
    pub(super) fn retire(&self, since: IdleSince) -> bool {
        let set =
            self.word.compare_exchange(since.0, RETIRED, Ordering::Relaxed, Ordering::Relaxed);
        set.is_ok()
    }

    pub(super) fn is_retired(&self) -> bool {
        self.word.load(Ordering::Relaxed) == RETIRED
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn after(state: &IdleState, ms: u64) -> Instant {
        state.origin + Duration::from_millis(ms)
    }

    fn idle() -> IdleState {
        let origin = Instant::now();
        IdleState::new(origin, origin)
    }

    #[test]
    fn a_connection_is_idle_between_requests_and_the_longest_idle_comes_first() {
        let state = idle();
        let first = state.idle_since().unwrap();
        assert!(state.set_busy() && state.set_busy(), "more bytes of the same request");
        assert_eq!(state.idle_since(), None);
        state.set_idle(after(&state, 5));
        let second = state.idle_since().unwrap();
        assert!(first < second);
        state.set_idle(after(&state, 9));
        assert_eq!(state.idle_since(), Some(second), "it was idle already");
    }

    #[test]
    fn a_request_that_came_in_between_keeps_its_connection() {
        let state = idle();
        let before = state.idle_since().unwrap();
        assert!(state.set_busy());
        assert!(!state.retire(before), "it is busy");
        state.set_idle(after(&state, 1));
        assert!(!state.retire(before), "it was used since");
        assert!(!state.is_retired() && state.retire(state.idle_since().unwrap()));
    }

    #[test]
    fn nothing_begins_on_a_retired_connection() {
        let state = idle();
        assert!(state.retire(state.idle_since().unwrap()));
        assert!(!state.set_busy());
        state.set_idle(after(&state, 1));
        assert!(state.is_retired() && state.idle_since().is_none());
    }

    #[test]
    fn of_a_request_and_a_retirement_at_once_one_wins() {
        for _ in 0..500 {
            let (state, gate) = (idle(), std::sync::Barrier::new(2));
            let since = state.idle_since().unwrap();
            let (begun, retired) = std::thread::scope(|scope| {
                let begin = scope.spawn(|| {
                    gate.wait();
                    state.set_busy()
                });
                gate.wait();
                let retired = state.retire(since);
                (begin.join().unwrap(), retired)
            });
            assert_ne!(begun, retired);
        }
    }
}
