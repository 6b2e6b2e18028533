//! Cut-off of calls in flight at shutdown.
//!
//! A call that is cut off reports to its client and in its record that the proxy ended it, not that the client
//! disconnected. The server triggers the cut-off. The mechanism is cheap while no call waits: a flag is checked when
//! a call is polled, and each task of calls registers once to be woken.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use tokio::sync::Notify;

/// Error of a call that was cut off.
pub const CUT_OFF: &str = "mcpproxy is shutting down and has cut the call off; whether it was carried \
                           out is not known";

/// Cut-off signal of one worker.
#[derive(Clone, Debug, Default)]
pub struct Ending(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    cut: Cell<bool>,
    signal: Notify,
}

impl Ending {
    /// Cuts off all calls, present and future.
    pub fn cut_off(&self) {
        self.0.cut.set(true);
        self.0.signal.notify_waiters();
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.0.cut.get()
    }

    /// Runs a task of calls, which is polled again at the cut-off.
    pub async fn attend<F: Future>(self, task: F) -> F::Output {
        let (mut notified, mut task) = (pin!(self.0.signal.notified()), pin!(task));
        let mut entered = false;
        poll_fn(|cx| {
            if !std::mem::replace(&mut entered, true) {
                let _ = notified.as_mut().poll(cx);
            }
            task.as_mut().poll(cx)
        })
        .await
    }

    /// Waits for a step of a call; `None` at the cut-off. The caller pins the step: passed by value it would occupy
    /// the call's memory twice.
    pub(super) async fn unless_cut<F: Future>(&self, mut step: Pin<&mut F>) -> Option<F::Output> {
        poll_fn(|cx| match self.is_cut() {
            true => Poll::Ready(None),
            false => step.as_mut().poll(cx).map(Some),
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_call_is_woken_and_aborted_at_shutdown() {
        let ending = Ending::default();
        assert_eq!(ending.unless_cut(pin!(async { 7 })).await, Some(7));
        let waiting = ending.clone().attend(async {
            let never = std::future::pending::<()>();
            ending.unless_cut(pin!(never)).await
        });
        let cutting = async {
            tokio::task::yield_now().await;
            ending.cut_off();
        };
        // `join` polls only woken futures: without the signal the first would wait forever.
        let both = futures_util::future::join(waiting, cutting);
        let limit = std::time::Duration::from_secs(20);
        let (cut, ()) = tokio::time::timeout(limit, both).await.unwrap();
        assert_eq!(cut, None);
        assert!(ending.is_cut() && ending.unless_cut(pin!(async {})).await.is_none());
    }
}
