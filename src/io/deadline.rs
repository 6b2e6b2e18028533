//! What time something has, and a deadline that costs nothing while it moves away.
//!
//! A connection waits for something nearly all the time, each time until another moment. Setting a
//! timer of the runtime for each wait costs more than the wait is worth, so one timer is kept, and
//! set anew only when it fires early or a deadline comes nearer.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

/// The time that all steps of one thing have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// All of it, as it is told.
    pub whole: Duration,
    /// When it is used up.
    pub until: Instant,
}

impl Allowance {
    /// Counted from `began`.
    #[must_use]
    pub fn since(began: Instant, whole: Duration) -> Self {
        Self { whole, until: began + whole }
    }

    /// Counted from now.
    #[must_use]
    pub fn now(whole: Duration) -> Self {
        Self::since(Instant::now(), whole)
    }
}

/// The timer of one connection.
#[derive(Debug, Default)]
pub struct Deadline {
    /// Made at the first wait.
    sleep: Option<Pin<Box<Sleep>>>,
    /// Who is woken when it fires: the same task, asking again, need not be entered again.
    waker: Option<Waker>,
}

impl Deadline {
    /// Ready once `deadline` has passed.
    pub fn poll_until(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let deadline = tokio::time::Instant::from_std(deadline);
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        let is_entered = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        } else if is_entered && !sleep.is_elapsed() {
            return Poll::Pending;
        }
        if !is_entered {
            self.waker = Some(cx.waker().clone());
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= deadline || tokio::time::Instant::now() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_deadline_may_move_either_way() {
        let mut timer = Deadline::default();
        let now = Instant::now();
        let far = now + Duration::from_secs(3600);
        for _ in 0..2 {
            let far = poll_fn(|cx| Poll::Ready(timer.poll_until(cx, far))).await;
            assert!(far.is_pending());
            // Comes nearer than the timer was set to: returns, and not in an hour.
            poll_fn(|cx| timer.poll_until(cx, now)).await;
        }
    }

    #[tokio::test]
    async fn another_task_is_woken_as_well() {
        let mut timer = Deadline::default();
        let soon = Instant::now() + Duration::from_millis(20);
        let noop = &mut Context::from_waker(Waker::noop());
        for _ in 0..2 {
            let _ = timer.poll_until(noop, soon);
        }
        poll_fn(|cx| timer.poll_until(cx, soon)).await;
        assert!(timer.poll_until(noop, soon).is_ready(), "it stays so");
    }
}
