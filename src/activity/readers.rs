//! The thread that reads the log for whoever follows or exports it: one, of low priority, a small
//! portion at a time, so that a hundred readers take no more of the processor than one, and none
//! of what calls need.
//!
//! What is read, and for whom, the jobs say; they come through the queue in `read_jobs`. Questions that a person waits for are not asked here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::thread;

use tokio::sync::oneshot;

use super::error::QueryError;
use super::handle::Activity;
use crate::os::priority;

impl Activity {
    /// Does `work`, a small portion of a longer reading, when its turn comes; and not at all if
    /// nobody waits for it any more.
    ///
    /// # Errors
    ///
    /// [`QueryError::Busy`] if too many wait, or the log is closed.
    pub async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, QueryError> {
        let (answer, answered) = oneshot::channel();
        let activity = self.clone();
        let job = Box::new(move || {
            if !answer.is_closed() {
                let _ = answer.send(work(&activity));
            }
        });
        if !self.shared.readers.add(job) {
            return Err(QueryError::Busy);
        }
        answered.await.map_err(|_| QueryError::Busy)
    }

    /// The thread's life: a portion for live readers and one job in turns, until the log is closed.
    pub(super) fn serve_readers(&self) {
        priority::lower();
        let shared = &self.shared;
        let Some(queue) = shared.readers.take() else { return };
        while !shared.is_closed.load(Ordering::Acquire) {
            let feeds = shared.readers.render.get().is_some_and(|render| {
                // A record that cannot be rendered must not end the thread; the next may do.
                catch_unwind(AssertUnwindSafe(|| self.feed(*render))).unwrap_or(false)
            });
            match queue.try_recv() {
                // Whoever waits for a job that failed learns it by its answer's end.
                Ok(job) => drop(catch_unwind(AssertUnwindSafe(job))),
                Err(_) if feeds => {}
                Err(_) => thread::park(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::activity::Config;

    #[tokio::test]
    async fn a_job_that_fails_ends_alone_and_the_end_of_the_log_ends_all() {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        let failed = activity.aside(|_| panic!("a job")).await;
        assert!(matches!(failed, Err(QueryError::Busy)));
        let next = activity.aside(|activity| activity.stored().map(|view| view.next())).await;
        assert_eq!(next.unwrap().unwrap(), 1);
        let closing = tokio::task::spawn_blocking(|| writer.close());
        closing.await.unwrap().unwrap();
        assert!(matches!(activity.aside(|_| ()).await, Err(QueryError::Busy)));
    }

    #[tokio::test]
    async fn what_nobody_waits_for_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let busy = activity.aside(move |_| wait.recv());
        let mut busy = std::pin::pin!(busy);
        assert!(futures_util::poll!(&mut busy).is_pending());
        let (did, done) = mpsc::channel::<()>();
        let given_up = Box::pin(activity.aside(move |_| drop(did)));
        let mut given_up = Some(given_up);
        let polled = given_up.as_mut().map(|it| futures_util::FutureExt::now_or_never(it.as_mut()));
        assert!(polled.is_some_and(|it| it.is_none()));
        given_up = None;
        assert!(given_up.is_none());
        go.send(()).unwrap();
        busy.await.unwrap().unwrap();
        activity.aside(|_| ()).await.unwrap();
        assert!(done.try_recv().is_err(), "it was dropped, not done");
        tokio::task::spawn_blocking(|| writer.close()).await.unwrap().unwrap();
    }
}
