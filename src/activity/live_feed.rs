//! Bounded feed of the last rendered records for live readers, and the job queue of the reader thread.
//!
//! The writer publishes how far it has written, the reader thread (`live`) adds rendered portions, and
//! readers take the portions after their position. Readers take no lock: the recent portions are replaced as a
//! whole.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::record::{Id, Record};

/// Maximum number of bytes of rendered records kept for live readers, in addition to the newest portion.
const RECENT_BYTES: usize = 4 << 20;
/// Maximum number of records by which the rendering may lag. Beyond this number, rendering skips to the log's end, and
/// readers read the skipped records themselves.
const MAX_LAG: u64 = 16 * 1024;

/// Renders one record for readers.
pub type Render = fn(&Record, &mut Vec<u8>);

/// Consecutive records in rendered form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Portion {
    bytes: Bytes,
    /// Id of each record, and the offset of its end.
    ends: Arc<[(Id, usize)]>,
}

impl Portion {
    /// Renders consecutive records.
    pub fn of(records: &[Record], render: Render) -> Self {
        let mut bytes = Vec::new();
        let ends = records.iter().map(|record| {
            render(record, &mut bytes);
            (record.id, bytes.len())
        });
        let ends = ends.collect();
        Self { bytes: bytes.into(), ends }
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Id of the last record; `None` if empty.
    pub fn last(&self) -> Option<Id> {
        self.ends.last().map(|(id, _)| *id)
    }

    /// Returns the bytes of the records after `seq`, and the last record.
    fn after(&self, seq: u64) -> Option<(Bytes, Id)> {
        let last = self.last().filter(|last| last.seq() > seq)?;
        let passed = self.ends.partition_point(|(id, _)| id.seq() <= seq);
        let start = passed.checked_sub(1).and_then(|at| self.ends.get(at)).map_or(0, |end| end.1);
        Some((self.bytes.slice(start..), last))
    }
}

/// Event for a live reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveEvent {
    /// The next records, rendered, and the id of the last one.
    Records(Bytes, Id),
    /// The next records are only in the log, because the reader is too far behind.
    Behind,
    /// The log is closed.
    Closed,
}

/// The portions that were rendered last.
#[derive(Debug)]
struct Recent {
    portions: Vec<Portion>,
    /// The record before the first portion.
    before: u64,
    /// The last record covered by the portions.
    last: u64,
}

impl Recent {
    fn at(seq: u64) -> Self {
        Self { portions: Vec::new(), before: seq, last: seq }
    }

    /// Returns a copy with one more portion, which covers records up to `last`.
    fn with(&self, portion: Portion, last: u64) -> Self {
        let mut bytes: usize = self.portions.iter().map(|it| it.bytes.len()).sum();
        let mut before = self.before;
        let dropped = self.portions.iter().take_while(|oldest| {
            let is_dropped = bytes > RECENT_BYTES;
            if is_dropped {
                bytes -= oldest.bytes.len();
                before = oldest.last().map_or(before, Id::seq);
            }
            is_dropped
        });
        let dropped = dropped.count();
        let kept = self.portions.iter().skip(dropped).cloned();
        let portions = kept.chain((!portion.bytes.is_empty()).then_some(portion)).collect();
        Self { portions, before, last }
    }
}

/// State shared by the writer, the reader thread and live readers.
#[derive(Debug, Default)]
pub(super) struct LiveFeed {
    readers: AtomicUsize,
    /// The last readable record.
    stored: AtomicU64,
    /// Written only by the reader thread.
    recent: ArcSwapOption<Recent>,
    /// Notified of new portions and of the end.
    changed: Notify,
}

impl LiveFeed {
    /// Publishes that the writer has written up to `seq`. Returns true if there are readers.
    pub(super) fn wrote(&self, seq: u64) -> bool {
        self.stored.store(seq, Ordering::SeqCst);
        self.readers() > 0
    }

    pub(super) fn wake_readers(&self) {
        self.changed.notify_waiters();
    }

    /// Future that completes at the next wake-up.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    pub(super) fn readers(&self) -> usize {
        self.readers.load(Ordering::SeqCst)
    }

    /// Adds a reader.
    pub(super) fn join(&self) {
        self.readers.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes a reader. Returns true if it was the last.
    pub(super) fn leave(&self) -> bool {
        self.readers.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// Appends the next portion. `read` renders it from the records after a given one, and also returns the last record
    /// covered. Returns true if more records are stored. Without readers, or after a failure, nothing is kept; after a
    /// failure, readers wait for the writer's next batch.
    pub(super) fn extend<E>(
        &self,
        read: impl FnOnce(u64) -> Result<(Portion, u64), E>,
    ) -> Result<bool, E> {
        let recent = self.recent.load_full();
        if self.readers() == 0 {
            if recent.is_some() {
                self.recent.store(None);
            }
            return Ok(false);
        }
        let stored = self.stored.load(Ordering::SeqCst);
        let recent = recent.filter(|recent| stored.saturating_sub(recent.last) <= MAX_LAG);
        let next = match recent {
            None => Recent::at(stored),
            Some(recent) if recent.last >= stored => return Ok(false),
            Some(recent) => {
                let (portion, last) = read(recent.last).inspect_err(|_| self.recent.store(None))?;
                // A lost record has a number but cannot be read, so the position advances by at least one.
                recent.with(portion, last.max(recent.last + 1))
            }
        };
        let more = next.last < stored;
        self.recent.store(Some(Arc::new(next)));
        self.wake_readers();
        Ok(more)
    }

    /// Returns the event for a reader that has everything up to record `seq`; `None` if it has to wait.
    pub(super) fn after(&self, seq: u64) -> Option<LiveEvent> {
        let recent = self.recent.load();
        let recent = recent.as_ref()?;
        if seq < recent.before {
            return Some(LiveEvent::Behind);
        }
        let found = recent.portions.iter().find_map(|portion| portion.after(seq));
        found.map(|(bytes, last)| LiveEvent::Records(bytes, last))
    }
}

/// Capacity of the job queue. Each reader has at most one job; the remaining capacity is for jobs of disconnected
/// readers, which are skipped.
const JOBS: usize = 512;

/// A small portion of a longer read.
pub(super) type ReadJob = Box<dyn FnOnce() + Send>;

/// Job queue of the reader thread.
pub(super) struct ReadJobs {
    jobs: SyncSender<ReadJob>,
    /// The receiving end, until the thread takes it.
    queue: Mutex<Option<Receiver<ReadJob>>>,
    thread: OnceLock<Thread>,
    /// Rendering for live readers, set by the first one.
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
    /// Sets the thread that runs the jobs.
    pub(super) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
        // The thread may have parked before it was registered.
        self.wake();
    }

    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Adds a job. Returns false if the queue is full or the thread has ended.
    pub(super) fn add(&self, job: ReadJob) -> bool {
        let added = self.jobs.try_send(job).is_ok();
        if added {
            self.wake();
        }
        added
    }

    /// Takes the receiving end; `None` after the first call.
    pub(super) fn take(&self) -> Option<Receiver<ReadJob>> {
        self.queue.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::NodeId;

    fn portion(seqs: std::ops::RangeInclusive<u64>, bytes: usize) -> Portion {
        let mut end = 0;
        let ends = seqs.map(|seq| {
            end += bytes;
            (Id::new(1, seq, NodeId([0; 16])), end)
        });
        let ends: Arc<[_]> = ends.collect();
        Portion { bytes: vec![b'x'; ends.len() * bytes].into(), ends }
    }

    #[test]
    fn reader_gets_the_rest_of_a_portion() {
        let portion = portion(5..=7, 10);
        for (seq, bytes) in [(0, 30), (4, 30), (5, 20), (6, 10)] {
            let (rest, last) = portion.after(seq).unwrap();
            assert_eq!((rest.len(), last.seq()), (bytes, 7), "{seq}");
        }
        assert_eq!(portion.after(7), None);
        assert_eq!(Portion::default().after(0), None);
    }

    #[test]
    fn recent_portions_are_bounded_and_report_their_start() {
        let mut recent = Recent::at(4);
        for n in 0..10 {
            let first = 5 + 3 * n;
            recent = recent.with(portion(first..=first + 2, RECENT_BYTES / 6), first + 2);
            let bytes: usize = recent.portions.iter().map(|it| it.bytes.len()).sum();
            assert!(bytes <= RECENT_BYTES + RECENT_BYTES / 2, "{bytes}");
        }
        assert_eq!(recent.last, 34);
        let first = recent.portions.first().unwrap().ends.first().unwrap().0.seq();
        assert_eq!((recent.before + 1, recent.portions.len()), (first, 3));
    }
}
