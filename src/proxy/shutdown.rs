//! How calls end when the proxy does, and does not wait for them any longer.
//!
//! Owns the word that they are cut off, and who hears it. A call that is cut off tells its client
//! and its record that the proxy has ended it: nobody has gone away. When that is, the assembly
//! decides. Nothing is touched while no call waits: the word is a flag, looked at whenever a call is
//! polled, and each task of calls is entered once among those that are woken.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use tokio::sync::Notify;

/// Why such a call has no answer.
pub const CUT_OFF: &str = "mcpproxy is shutting down and has cut the call off; whether it was carried \
                           out is not known";

/// What one worker's calls know of the end.
#[derive(Clone, Debug, Default)]
pub struct Ending(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    cut: Cell<bool>,
    told: Notify,
}

impl Ending {
    /// Cuts off the calls under way, and those to come.
    pub fn cut_off(&self) {
        self.0.cut.set(true);
        self.0.told.notify_waiters();
    }

    /// Whether they are.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.0.cut.get()
    }

    /// Runs a task whose calls are to hear of it: it is polled again when they are cut off.
    pub async fn attend<F: Future>(self, task: F) -> F::Output {
        let (mut told, mut task) = (pin!(self.0.told.notified()), pin!(task));
        let mut entered = false;
        poll_fn(|cx| {
            if !std::mem::replace(&mut entered, true) {
                let _ = told.as_mut().poll(cx);
            }
            task.as_mut().poll(cx)
        })
        .await
    }

    /// Waits for a step of a call; `None` if that is cut off. The step stays where it is: one that came by value would
    /// stand in the call's memory twice.
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
    async fn whoever_waits_is_woken_and_cut_off() {
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
        // `join` asks whom it was told of alone: without the word the first would wait for ever.
        let both = futures_util::future::join(waiting, cutting);
        let limit = std::time::Duration::from_secs(20);
        let (cut, ()) = tokio::time::timeout(limit, both).await.unwrap();
        assert_eq!(cut, None);
        assert!(ending.is_cut() && ending.unless_cut(pin!(async {})).await.is_none());
    }
}
