//! The way to the thread that reads the log for readers: a bounded queue of jobs. The
//! thread itself is `readers`.

use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::Thread;

use parking_lot::Mutex;

use super::live_feed::Render;

/// Jobs that wait for the thread. Each reader has one at most; there is room beside for those whose
/// readers have gone meanwhile, which cost nothing.
const JOBS: usize = 512;

/// A small portion of a longer reading.
pub(super) type ReadJob = Box<dyn FnOnce() + Send>;

/// What readers and their thread share.
pub(super) struct ReadJobs {
    jobs: SyncSender<ReadJob>,
    /// The other end, until the thread takes it.
    queue: Mutex<Option<Receiver<ReadJob>>>,
    thread: OnceLock<Thread>,
    /// How records are rendered for live readers, once there is one.
    pub(super) render: OnceLock<Render>,
}

impl Default for ReadJobs {
    fn default() -> Self {
        let (jobs, queue) = mpsc::sync_channel(JOBS);
        let (queue, thread) = (Mutex::new(Some(queue)), OnceLock::new());
        Self { jobs, queue, thread, render: OnceLock::new() }
    }
}

impl ReadJobs {
    /// Sets the thread that does the jobs.
    pub(super) fn served_by(&self, thread: Thread) {
        let _ = self.thread.set(thread);
        // It may have looked before it was known.
        self.wake();
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Adds a job; false if too many wait, or nobody does them any more.
    pub(super) fn add(&self, job: ReadJob) -> bool {
        let added = self.jobs.try_send(job).is_ok();
        if added {
            self.wake();
        }
        added
    }

    /// The jobs, for the thread that does them: once.
    pub(super) fn take(&self) -> Option<Receiver<ReadJob>> {
        self.queue.lock().take()
    }
}
