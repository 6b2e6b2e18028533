//! Live readers, and the low-priority thread that reads the log for them and for exports. New records are read back and
//! rendered once, regardless of the number of readers.
//!
//! ```text
//! writer ── wrote up to n ─▶ reader thread ── a portion ─▶ feed ─▶ every reader
//!                            (low priority)                 (shared bytes)
//! ```
//!
//! The feed (`live_feed`) keeps a bounded number of the last rendered portions for all readers. Nothing waits for a
//! reader: a reader that falls further behind gets [`LiveEvent::Behind`] and reads the log itself.
//!
//! There is one reader thread, and it works in small portions, so that a hundred readers use no more CPU time than
//! one and do not slow down calls. Interactive queries do not run on it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use tokio::sync::oneshot;

use super::handle::Activity;
use super::live_feed::{LiveEvent, Portion, Render};
use super::query::Filter;
use super::scan::PortionLimit;
use super::shared::{QueryError, Shared};
use mcpproxy_runtime::os::priority;

/// Maximum work per step of the reader thread: about a millisecond, so that other jobs do not wait long.
pub const PORTION: PortionLimit = PortionLimit { records: 128, bytes: 1 << 20 };

impl Activity {
    /// Renders the next portion for live readers, on the reader thread. Returns true if there is more to
    /// render.
    pub(super) fn feed(&self, render: Render) -> bool {
        let more = self.shared.live.extend(|seq| self.portion(seq, render));
        more.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the activity log for live readers");
            false
        })
    }

    fn portion(&self, seq: u64, render: Render) -> Result<(Portion, u64), QueryError> {
        let (records, last) = self.stored()?.since(seq, &Filter::default(), PORTION)?;
        Ok((Portion::of(&records, render), last))
    }

    /// Starts following the log after record `after`. All live readers share one rendering.
    pub fn live(&self, after: u64, render: Render) -> Live {
        let shared = Arc::clone(&self.shared);
        // The rendering supplied by the first reader is used for all readers, since there is only one kind of reader.
        let _ = shared.readers.render.set(render);
        shared.live.join();
        shared.readers.wake();
        Live { shared, seq: after }
    }
}

pub struct Live {
    shared: Arc<Shared>,
    /// The last record that was delivered or skipped.
    seq: u64,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("seq", &self.seq).finish_non_exhaustive()
    }
}

impl Live {
    /// Returns the next event. Cancel-safe.
    pub async fn next(&mut self) -> LiveEvent {
        loop {
            let mut changed = pin!(self.shared.live.changed());
            // The reader registers for the wake-up before it checks the feed, so that no wake-up in between is lost.
            changed.as_mut().enable();
            if let Some(event) = self.poll() {
                if let LiveEvent::Records(_, last) = &event {
                    self.seq = last.seq();
                }
                return event;
            }
            changed.await;
        }
    }

    fn poll(&self) -> Option<LiveEvent> {
        if self.shared.is_closed.load(Ordering::Acquire) {
            return Some(LiveEvent::Closed);
        }
        self.shared.live.after(self.seq)
    }

    /// The last record that was delivered or skipped.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Notes that the reader itself has read the log up to record `seq`.
    pub fn skip_to(&mut self, seq: u64) {
        self.seq = self.seq.max(seq);
    }

    /// Number of live readers.
    pub fn readers(&self) -> usize {
        self.shared.live.readers()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // When the last reader leaves, the reader thread drops the recent portions.
        if self.shared.live.leave() {
            self.shared.readers.wake();
        }
    }
}

impl Activity {
    /// Runs `work`, a small portion of a longer read, on the reader thread. It is skipped if the caller stopped
    /// waiting. [`QueryError::Busy`] if the queue is full or the log is closed.
    pub async fn run_on_reader<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, QueryError> {
        let (sender, receiver) = oneshot::channel();
        let activity = self.clone();
        let job = Box::new(move || {
            if !sender.is_closed() {
                let _ = sender.send(work(&activity));
            }
        });
        if !self.shared.readers.add(job) {
            return Err(QueryError::Busy);
        }
        receiver.await.map_err(|_| QueryError::Busy)
    }

    /// Main loop of the reader thread: alternates between a portion for live readers and one job, until the
    /// log is closed.
    pub(super) fn serve_readers(&self) {
        priority::lower();
        let shared = &self.shared;
        let Some(queue) = shared.readers.take() else { return };
        while !shared.is_closed.load(Ordering::Acquire) {
            let feeds = shared.readers.render.get().is_some_and(|render| {
                // A record that cannot be rendered must not end the thread.
                catch_unwind(AssertUnwindSafe(|| self.feed(*render))).unwrap_or(false)
            });
            match queue.try_recv() {
                // If a job panics, its channel is closed, and its caller gets an error.
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
    use crate::Config;

    #[tokio::test]
    async fn panicking_job_fails_only_itself_and_closing_the_log_fails_all_jobs() {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        let failed = activity.run_on_reader(|_| panic!("a job")).await;
        assert!(matches!(failed, Err(QueryError::Busy)));
        let next =
            activity.run_on_reader(|activity| activity.stored().map(|view| view.next())).await;
        assert_eq!(next.unwrap().unwrap(), 1);
        let closing = tokio::task::spawn_blocking(|| writer.close());
        closing.await.unwrap().unwrap();
        assert!(matches!(activity.run_on_reader(|_| ()).await, Err(QueryError::Busy)));
    }

    #[tokio::test]
    async fn abandoned_job_is_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let busy = activity.run_on_reader(move |_| wait.recv());
        let mut busy = std::pin::pin!(busy);
        assert!(futures_util::poll!(&mut busy).is_pending());
        let (did, done) = mpsc::channel::<()>();
        let given_up = Box::pin(activity.run_on_reader(move |_| drop(did)));
        let mut given_up = Some(given_up);
        let polled = given_up.as_mut().map(|it| futures_util::FutureExt::now_or_never(it.as_mut()));
        assert!(polled.is_some_and(|it| it.is_none()));
        given_up = None;
        assert!(given_up.is_none());
        go.send(()).unwrap();
        busy.await.unwrap().unwrap();
        activity.run_on_reader(|_| ()).await.unwrap();
        assert!(done.try_recv().is_err(), "the job was dropped, not run");
        tokio::task::spawn_blocking(|| writer.close()).await.unwrap().unwrap();
    }
}
