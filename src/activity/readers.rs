//! The thread that reads the log for whoever follows or exports it: one, of low priority, a small
//! portion at a time, so that a hundred readers take no more of the processor than one, and none
//! of what calls need.
//!
//! What is read, and for whom, the jobs say. Questions that a person waits for are not asked here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};

use tokio::sync::oneshot;

use super::handle::{Activity, QueryError};
use super::live::Render;
use crate::os::priority;

/// Jobs that wait for the thread. Each reader has one at most; there is room beside for those whose
/// readers have gone meanwhile, which cost nothing.
const JOBS: usize = 512;

type Job = Box<dyn FnOnce(&Activity) + Send>;

/// The way to the thread.
pub(super) struct Readers {
    jobs: SyncSender<Job>,
    /// The other end, until the thread takes it.
    queue: Mutex<Option<Receiver<Job>>>,
    thread: OnceLock<Thread>,
    /// How records are rendered for live readers, once there is one.
    pub(super) render: OnceLock<Render>,
}

impl Default for Readers {
    fn default() -> Self {
        let (jobs, queue) = mpsc::sync_channel(JOBS);
        let (queue, thread) = (Mutex::new(Some(queue)), OnceLock::new());
        Self { jobs, queue, thread, render: OnceLock::new() }
    }
}

impl Readers {
    /// The thread that will [serve](Activity::serve_readers) is this.
    pub(super) fn served_by(&self, thread: Thread) {
        let _ = self.thread.set(thread);
        // It may have looked before it was known.
        self.wake();
    }

    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

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
        let job = Box::new(move |activity: &Self| {
            if !answer.is_closed() {
                let _ = answer.send(work(activity));
            }
        });
        let readers = &self.shared.readers;
        readers.jobs.try_send(job).map_err(|_| QueryError::Busy)?;
        readers.wake();
        answered.await.map_err(|_| QueryError::Busy)
    }

    /// The thread's life: a portion for live readers and one job in turns, until the log is closed.
    pub(super) fn serve_readers(&self) {
        priority::lower();
        let shared = &self.shared;
        let queue = shared.readers.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(queue) = queue else { return };
        while !shared.is_closed.load(Ordering::Acquire) {
            let feeds = shared.readers.render.get().is_some_and(|render| {
                // A record that cannot be rendered must not end the thread; the next may do.
                catch_unwind(AssertUnwindSafe(|| self.feed(*render))).unwrap_or(false)
            });
            let job = queue.try_recv();
            match job {
                // Whoever waits for a job that failed learns it by its answer's end.
                Ok(job) => drop(catch_unwind(AssertUnwindSafe(|| job(self)))),
                Err(_) if feeds => {}
                Err(_) => thread::park(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
