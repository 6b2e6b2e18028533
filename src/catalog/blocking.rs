//! Work that blocks, on threads of its own, and who waits for it in the end.
//!
//! Whoever asked for a piece of work may go away, but a thread cannot be ended from outside: every piece
//! is held here until it has ended.

use tokio_util::task::TaskTracker;

/// The pieces of work that have not ended.
#[derive(Debug, Default)]
pub(super) struct BlockingWork(TaskTracker);

/// The work has no outcome: it panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panicked;

impl BlockingWork {
    /// Begins to do `work` on a thread for that.
    pub(super) fn start(&self, work: impl FnOnce() + Send + 'static) {
        // Whether it panicked, whoever waits for its outcome hears.
        drop(self.0.spawn_blocking(work));
    }

    /// What comes of `work`. If this is dropped, the work is still done.
    ///
    /// # Errors
    /// [`Panicked`].
    pub(super) async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, Panicked> {
        self.0.spawn_blocking(work).await.map_err(|_| Panicked)
    }

    /// Waits until all that was begun has ended.
    pub(super) async fn ended(&self) {
        self.0.close();
        self.0.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_is_waited_for_at_the_end() {
        let works = BlockingWork::default();
        let (go, wait) = mpsc::channel::<()>();
        let mut asked = Box::pin(works.run(move || wait.recv()));
        assert!(futures_util::poll!(&mut asked).is_pending());
        drop(asked);
        let mut ended = Box::pin(works.ended());
        assert_eq!(futures_util::poll!(&mut ended), Poll::Pending);
        go.send(()).unwrap();
        ended.await;
        assert_eq!(works.run(|| 7).await, Ok(7));
        assert_eq!(works.run(|| -> u8 { panic!("for the test") }).await, Err(Panicked));
    }
}
