//! The calls that a server has, and how one that is taken out of force waits for them.
//!
//! ```text
//! in force ── retire() ──▶ retiring ── the last call ends, or its time is up ──▶ closed
//!   enter: a place          enter: a place                                        enter: none
//! ```
//!
//! A call costs two atomic steps on a word that only calls of its server touch; nobody is woken before a server is
//! retired.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Set for good when no call may come any more.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// Set when somebody waits for the last call.
const RETIRING: usize = 1 << (usize::BITS - 2);
/// What is left is the number of calls.
const COUNT: usize = RETIRING - 1;

/// The calls of one server.
#[derive(Debug, Default)]
pub(super) struct Users {
    state: AtomicUsize,
    left: Notify,
}

impl Users {
    /// A call comes; false where none may any more.
    pub(super) fn enter(&self) -> bool {
        let entered = self.state.fetch_add(1, Ordering::AcqRel) & CLOSED == 0;
        if !entered {
            self.state.fetch_sub(1, Ordering::AcqRel);
        }
        entered
    }

    /// A call that came has ended.
    pub(super) fn leave(&self) {
        if self.state.fetch_sub(1, Ordering::AcqRel) & RETIRING != 0 {
            self.left.notify_one();
        }
    }

    /// Waits until there is no call, and lets none come after that. For one task alone.
    pub(super) async fn gone(&self) {
        self.state.fetch_or(RETIRING, Ordering::AcqRel);
        loop {
            let left = self.left.notified();
            if self.state.load(Ordering::Acquire) & COUNT == 0 && self.close() {
                return;
            }
            left.await;
        }
    }

    fn close(&self) -> bool {
        let none = RETIRING;
        let closed = RETIRING | CLOSED;
        self.state.compare_exchange(none, closed, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// No further call may come, whatever is under way.
    pub(super) fn shut(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn who_is_inside_is_waited_for_and_nobody_comes_after_the_last() {
        let users = Users::default();
        assert!(users.enter() && users.enter());
        let mut gone = Box::pin(users.gone());
        assert_eq!((&mut gone).now_or_never(), None);
        users.leave();
        assert_eq!((&mut gone).now_or_never(), None);
        assert!(users.enter(), "one that was on its way still comes");
        users.leave();
        users.leave();
        assert_eq!((&mut gone).now_or_never(), Some(()));
        assert!(!users.enter() && !users.enter());
        assert_eq!(
            users.state.load(Ordering::Relaxed),
            RETIRING | CLOSED,
            "who is refused is not counted"
        );
    }

    #[test]
    fn whose_time_is_up_lets_nobody_in_and_counts_on() {
        let users = Users::default();
        assert!(users.enter());
        assert_eq!(users.gone().now_or_never(), None);
        users.shut();
        assert!(!users.enter());
        users.leave();
        assert_eq!(users.state.load(Ordering::Relaxed) & COUNT, 0);
    }
}
