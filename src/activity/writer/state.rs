//! The writer's state, and what its parts share: publishing how far the log is, and doing work on the
//! disk in such a way that others see how long it takes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::activity::append::{Appender, Prepared};
use crate::activity::chain_tip::{ChainTip, ChainTipFile};
use crate::activity::recover::Lock;
use crate::activity::shared::{SLOW_DISK, Shared, WriterCommand};
use crate::activity::store::{Store, StoreError};

/// How often the size of the log is asked for.
const SIZE_EVERY: Duration = Duration::from_secs(1);
/// Records beyond `max_records`, and parts of it, before the pruner is woken.
const SLACK: u64 = 64;

/// What the writer's thread has, and nobody else.
pub(super) struct WriterState {
    pub(super) shared: Arc<Shared>,
    pub(super) dir: PathBuf,
    /// `None` only while the log is mended.
    pub(super) lock: Option<Lock>,
    pub(super) messages: Receiver<WriterCommand>,
    pub(super) appender: Appender,
    pub(super) head: ChainTipFile,
    /// The first record that is kept.
    pub(super) first: u64,
    /// What the next mark lies under.
    pub(super) next_ticket: u64,
    /// The room of the entries in the batch under way.
    pub(super) room: usize,
    /// Who waits for the batch under way to be durable.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// What is written but not durable.
    pub(super) unsynced: Option<ChainTip>,
    /// What could not be written.
    pub(super) stuck: Option<Stuck>,
    /// What is in the queue came later than this, in microseconds since `base`: when it was last
    /// seen empty, mostly.
    pub(super) queue_from: u64,
    /// Whether a [`WriterCommand::Behind`] is in the queue.
    pub(super) sent_behind: bool,
    /// The same moment of what was taken out of it and is not durable; `None` for nothing.
    pub(super) batch_from: Option<u64>,
    /// The longest that a commit took of late, or that this thread was kept waiting for a core.
    pub(super) hindered: Duration,
    /// When the size of the log was last asked for.
    pub(super) sized: Instant,
    pub(super) closing: bool,
}

/// A batch that could not be written.
pub(super) struct Stuck {
    pub(super) prepared: Prepared,
    /// The room of its entries.
    pub(super) room: usize,
    pub(super) since: Instant,
    pub(super) stage: Stage,
    /// The log may be damaged: it was not the system that refused.
    pub(super) suspect: bool,
    /// It was looked at since: nothing is damaged, or nothing can be mended.
    pub(super) is_looked_at: bool,
}

/// Where it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Writing: it can be tried again.
    Write,
    /// Syncing: it cannot.
    Sync,
}

impl WriterState {
    pub(super) fn now(&self) -> u64 {
        self.shared.micros(Instant::now())
    }

    /// Publishes to replies how far the log is.
    pub(super) fn publish_durable(&self) {
        let until = self.batch_from.unwrap_or(self.queue_from);
        self.shared.durable_until.store(until, Ordering::Release);
    }

    pub(super) fn wrote(&mut self, records: u64, room: usize) {
        self.shared.written.fetch_add(records, Ordering::Relaxed);
        self.shared.room.add_permits(room);
        // A batch may hold marks alone, before there is any record.
        let kept = (self.appender.tip().seq + 1).saturating_sub(self.first);
        let most = self.shared.retention.load().max_records;
        if most > 0 && kept > most + (most / SLACK).max(SLACK) {
            // It runs every minute anyway: waking it too often costs nothing but its check.
            self.shared.pruner.get().map(thread::Thread::unpark).unwrap_or_default();
        }
        if self.shared.live.wrote(self.appender.tip().seq) {
            self.shared.readers.wake();
        }
    }

    /// Does something on the disk; how long that takes can be seen from outside.
    pub(super) fn on_disk<T>(
        &mut self,
        work: impl FnOnce(&Store, &mut ChainTipFile) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let begun = self.disk_begins();
        let result = match self.shared.store.load().as_ref() {
            Some(store) => work(store, &mut self.head),
            None => Err(StoreError::Io(std::io::Error::other("the store is closed"))),
        };
        self.disk_ended(begun);
        result
    }

    pub(super) fn disk_begins(&self) -> Instant {
        let now = Instant::now();
        self.shared.disk_since.store(self.shared.micros(now), Ordering::Release);
        now
    }

    pub(super) fn disk_ended(&self, begun: Instant) {
        let took = begun.elapsed();
        self.shared.disk_since.store(0, Ordering::Release);
        self.shared.disk_longest.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
        let was_stalled = self.shared.is_stalled.swap(false, Ordering::AcqRel);
        if was_stalled || took > SLOW_DISK {
            tracing::warn!(?took, "the activity log waited for the disk");
        }
        if was_stalled {
            self.shared.send(WriterCommand::Lost);
        }
    }

    pub(super) fn publish_size(&mut self) {
        if self.sized.elapsed() >= SIZE_EVERY
            && let Some(store) = self.shared.store.load().as_ref()
        {
            self.shared.disk_bytes.store(store.disk_bytes(), Ordering::Relaxed);
            self.sized = Instant::now();
        }
    }
}
