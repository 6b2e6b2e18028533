//! State shared by calls, queries, the writer and the log's other threads: counters, the writer's command
//! queue, health, and the read barrier.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::mpsc::{self, Receiver, SendError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};

use super::clock::Opened;
use super::config::{Config, OnFailure, Retention};
use super::in_flight::CallsInFlight;
use super::live_feed::{LiveFeed, ReadJobs};
use super::losses::Ledger;
use super::record::Entry;
use super::retention::Cut;
use super::shares::LogShares;
use super::store::{DamageReport, Store, StoreError};

/// Threshold above which the writer's waits for the disk are logged.
pub(super) const SLOW_DISK: Duration = Duration::from_secs(1);

pub(super) enum WriterCommand {
    /// Request for a reply when the marks of all calls begun so far are durable.
    Mark(oneshot::Sender<()>),
    Entry {
        /// Boxed, because the largest command determines the size of the queue's blocks.
        entry: Box<Entry>,
        /// Ticket of the mark to remove with the entry.
        ticket: Option<u64>,
        /// Notified when the entry is durable.
        done: Option<oneshot::Sender<()>>,
        /// Whether the entry's permit has to be returned.
        counted: bool,
    },
    /// Sent by the writer itself. Commands behind this one in the queue were sent after this moment, in microseconds
    /// since `base`.
    Behind(u64),
    /// Request for a reply when everything queued before this command is readable.
    Barrier(mpsc::SyncSender<()>),
    /// Request for a reply when everything queued before this command is durable.
    Flush(mpsc::SyncSender<()>),
    /// Request to remove the records before a cut, with a reply when the removal is visible.
    Cut(Cut, mpsc::SyncSender<()>),
    /// Request to record unreported losses, if there are any.
    Lost,
    /// Request to repair the log, because this table is damaged.
    Damaged(PathBuf),
    /// Request to write everything queued before this command and to end the thread.
    Close,
}

/// Clock in milliseconds.
pub(super) type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// State shared by calls, queries and the writer.
pub(super) struct Shared {
    pub(super) config: Config,
    /// Retention limits, which can change while the log is open.
    pub(super) retention: ArcSwap<Retention>,
    /// Capacity for calls; the writer returns permits once per batch. Padded, because every call writes here.
    pub(super) permits: CachePadded<Semaphore>,
    pub(super) capacity: usize,
    pub(super) queue: Sender<WriterCommand>,
    /// Calls in flight, with or without a mark.
    pub(super) in_flight: CallsInFlight,
    /// The writer's thread.
    pub(super) thread: OnceLock<Thread>,
    /// Set while the writer sleeps until it is woken. Everything submitted is then durable.
    pub(super) asleep: AtomicBool,
    pub(super) store: ArcSwap<Option<Store>>,
    pub(super) failure: ArcSwap<Option<String>>,
    pub(super) is_failed: AtomicBool,
    /// Set while the writer waits for the disk for so long that no call waits for it any more.
    pub(super) is_stalled: AtomicBool,
    pub(super) is_closed: AtomicBool,
    /// Set once the log has failed and will not write again before the next start.
    pub(super) is_over: AtomicBool,
    /// Set while recording is suspended ([`Activity::suspend`](super::Activity::suspend)).
    pub(super) is_suspended: AtomicBool,
    pub(super) suspended: ArcSwap<Option<String>>,
    /// Last record that retention may remove; without a fleet, retention may remove every record.
    pub(super) confirmed: AtomicU64,
    /// Replies waiting for confirmation, in the order of their records.
    pub(super) unconfirmed: Mutex<VecDeque<(u64, oneshot::Sender<()>)>>,
    /// Number of entries that could not be recorded, since the log was created.
    pub(super) lost: AtomicU64,
    /// Persistent counter of the lost entries.
    pub(super) ledger: Ledger,
    /// Thread that saves the counter.
    pub(super) counter: OnceLock<Thread>,
    /// Last damage repaired since the start.
    pub(super) repaired: ArcSwap<Option<RepairedDamage>>,
    pub(super) written: AtomicU64,
    pub(super) durable_seq: AtomicU64,
    /// Everything submitted before this moment, in microseconds since `base`, is durable. Set only by the
    /// writer while it is awake.
    pub(super) durable_until: AtomicU64,
    /// Notified when more entries are durable, or waiting has become pointless.
    pub(super) batch_done: Notify,
    /// Start of the writer's current disk operation, in microseconds since `base`; 0 for none.
    pub(super) disk_since: AtomicU64,
    /// Longest disk operation, in microseconds.
    pub(super) disk_longest: AtomicU64,
    /// Size on disk at the writer's last measurement. Cached, because a request to the store waits for the store's
    /// running syncs.
    pub(super) disk_bytes: AtomicU64,
    /// Notified when waiting for a permit has become pointless.
    pub(super) has_failed: Notify,
    pub(super) base: Instant,
    /// Filtered wall clock, in milliseconds since 1970.
    pub(super) clock: Clock,
    /// Monotonic clock in milliseconds.
    pub(super) steady: Clock,
    /// State of the log when it was opened.
    pub(super) opened: OnceLock<Opened>,
    /// Use of the log's budget by principal.
    pub(super) shares: LogShares,
    /// The node's name in its fleet, if it has one.
    pub(super) node_name: OnceLock<Arc<str>>,
    pub(super) pruning: Mutex<()>,
    /// Damage found by a reader, shown in the health until it is repaired.
    pub(super) damage: Arc<DamageReport>,
    /// Set when retention found damage, so that the tables are checked.
    pub(super) is_suspect: AtomicBool,
    /// Thread that checks the tables.
    pub(super) scrubber: OnceLock<Thread>,
    pub(super) pruner: OnceLock<Thread>,
    pub(super) read_barrier: ReadBarrier,
    pub(super) live: LiveFeed,
    pub(super) readers: ReadJobs,
}

impl Shared {
    /// Creates the shared state of a log that is not open yet, and the receiving end of the writer's queue.
    pub(super) fn new(
        config: Config,
        (clock, steady): (Clock, Clock),
    ) -> (Arc<Self>, Receiver<WriterCommand>) {
        let (queue, messages) = mpsc::channel();
        let capacity = call_capacity(&config);
        let shared = Arc::new(Shared {
            permits: CachePadded::new(Semaphore::new(capacity)),
            capacity,
            retention: ArcSwap::from_pointee(config.retention()),
            config,
            queue,
            in_flight: CallsInFlight::default(),
            thread: OnceLock::new(),
            // Nothing is submitted before the writer begins.
            asleep: AtomicBool::new(true),
            store: ArcSwap::from_pointee(None),
            failure: ArcSwap::from_pointee(None),
            is_failed: AtomicBool::new(false),
            is_stalled: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_suspended: AtomicBool::new(false),
            suspended: ArcSwap::from_pointee(None),
            confirmed: AtomicU64::new(u64::MAX),
            unconfirmed: Mutex::default(),
            lost: AtomicU64::new(0),
            ledger: Ledger::default(),
            counter: OnceLock::new(),
            repaired: ArcSwap::from_pointee(None),
            written: AtomicU64::new(0),
            durable_seq: AtomicU64::new(0),
            durable_until: AtomicU64::new(0),
            batch_done: Notify::new(),
            disk_since: AtomicU64::new(0),
            disk_longest: AtomicU64::new(0),
            disk_bytes: AtomicU64::new(0),
            has_failed: Notify::new(),
            base: Instant::now(),
            clock,
            steady,
            shares: LogShares::default(),
            opened: OnceLock::new(),
            node_name: OnceLock::new(),
            pruning: Mutex::new(()),
            damage: Arc::default(),
            is_suspect: AtomicBool::new(false),
            scrubber: OnceLock::new(),
            pruner: OnceLock::new(),
            read_barrier: ReadBarrier::default(),
            live: LiveFeed::default(),
            readers: ReadJobs::default(),
        });
        (shared, messages)
    }

    /// Running time of the log in milliseconds (`clock`).
    pub(super) fn ran_ms(&self) -> u64 {
        self.opened.get().map_or(0, |opened| opened.ran_ms((self.steady)()))
    }

    pub(super) fn try_reserve(&self) -> bool {
        self.permits.try_acquire().map(SemaphorePermit::forget).is_ok()
    }

    /// Number of calls in flight or waiting to be written.
    pub(super) fn waiting(&self) -> usize {
        self.capacity - self.permits.available_permits().min(self.capacity)
    }

    /// Enqueues a command for the writer. If there is no writer, the command's entry is lost.
    pub(super) fn enqueue(&self, message: WriterCommand) {
        if let Err(SendError(WriterCommand::Entry { .. })) = self.queue.send(message) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            tracing::error!("record lost: the activity log is closed");
        }
    }

    /// Requests a check of the tables.
    pub(super) fn request_scrub(&self) {
        if let Some(thread) = self.scrubber.get()
            && !self.is_suspect.swap(true, Ordering::AcqRel)
        {
            thread.unpark();
        }
    }

    /// Notes a repair of damage in `file` and the number of records lost, for the health report.
    pub(super) fn note_repair(&self, file: &Path, records_lost: u64) {
        let file = file.display().to_string();
        self.repaired.store(Arc::new(Some(RepairedDamage { file, records_lost })));
    }

    /// Requests a save of the loss counter.
    pub(super) fn request_loss_save(&self) {
        if let Some(thread) = self.counter.get() {
            thread.unpark();
        }
    }

    /// Saves the loss counter. `waiting` further entries are in memory.
    pub(super) fn save_lost(&self, waiting: u64) {
        let now_ms = self.cannot_write().then(|| (self.clock)());
        self.ledger.save(self.lost.load(Ordering::Relaxed), waiting, now_ms);
    }

    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Wakes the writer only if it would not wake soon by itself, so that callers pay for a wake-up only after a pause.
    pub(super) fn wake_if_asleep(&self) {
        // Either this thread finds the flag set, or the writer finds the command, because it checks the queue again
        // after setting the flag.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.end_sleep() {
            self.wake();
        }
    }

    /// Ends the writer's sleep. Returns true for the first caller. Replies then wait for the writer, even before it is
    /// scheduled.
    pub(super) fn end_sleep(&self) -> bool {
        let before = self.durable_until.load(Ordering::SeqCst);
        let is_first = self.asleep.swap(false, Ordering::SeqCst);
        if is_first {
            let now = self.micros(Instant::now());
            // If the writer already runs and has set the value, this has no effect.
            let _ = self.durable_until.compare_exchange(
                before,
                now,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
        is_first
    }

    /// Whether nothing can be written at the moment, so that `on_failure` decides whether calls proceed.
    pub(super) fn cannot_write(&self) -> bool {
        self.is_failed.load(Ordering::Acquire)
            || self.is_stalled.load(Ordering::Acquire)
            || self.is_suspended.load(Ordering::Acquire)
    }

    /// Whether submitted entries are lost instead of written: nothing is written before the next start, or
    /// recording is suspended and calls proceed.
    pub(super) fn loses(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
            || (self.config.on_failure == OnFailure::Continue
                && self.is_suspended.load(Ordering::Acquire))
    }

    /// Reason why nothing can be written; `None` if the log can be written.
    pub(super) fn failure(&self) -> Option<String> {
        let failed = self.failure.load().as_ref().clone();
        let stalled = || {
            let waits = self.disk_waits(Instant::now())?;
            let stalled = self.is_stalled.load(Ordering::Acquire);
            stalled.then(|| format!("the disk has not answered for {} s", waits.as_secs()))
        };
        let suspended = || self.suspended.load().as_ref().clone();
        let closed = || self.is_closed.load(Ordering::Acquire).then(|| "it is closed".to_owned());
        failed.or_else(stalled).or_else(suspended).or_else(closed)
    }

    pub(super) fn failure_text(&self) -> String {
        self.failure().unwrap_or_default()
    }

    /// Duration, at `now`, of the writer's current wait for the disk.
    pub(super) fn disk_waits(&self, now: Instant) -> Option<Duration> {
        match self.disk_since.load(Ordering::Acquire) {
            0 => None,
            since => Some(Duration::from_micros(self.micros(now).saturating_sub(since))),
        }
    }

    /// Microseconds since the log was opened, never 0.
    pub(super) fn micros(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.base).as_micros() as u64 + 1
    }
}

/// Number of calls that fit into the queue even if each has the maximum size.
fn call_capacity(config: &Config) -> usize {
    let entry = config.entry_bytes();
    config.queue_records.min(config.queue_bytes / entry).clamp(1, Semaphore::MAX_PERMITS)
}

/// Reason why a call must not be sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotAdmitted {
    /// The log cannot be written, and `on_failure` is `refuse`.
    #[error("the activity log cannot be written: {0}")]
    Failed(String),
    /// No permit became free within the time limit.
    #[error("the activity log cannot keep up")]
    Full,
    /// The log is closed because the proxy is shutting down.
    #[error("the activity log is closed")]
    Closed,
}

/// Reason why a query failed.
#[derive(Debug, Error)]
pub enum QueryError {
    /// The log cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Records in flight did not become readable within the time limit.
    #[error("the activity log is busy")]
    Busy,
}

/// State of the log, which determines whether calls proceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Records are written.
    Ok,
    /// Records cannot be written; calls proceed unrecorded (`on_failure: continue`).
    Degraded,
    /// Records cannot be written; calls are refused.
    Failed,
}

/// Damage to the log's files that was found and repaired while it was open.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct RepairedDamage {
    /// Damaged file, or folder in which the damaged log is kept.
    pub file: String,
    /// Number of records lost.
    pub records_lost: u64,
}

impl std::fmt::Display for RepairedDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { file, records_lost } = self;
        write!(f, "damage was repaired, {records_lost} records are lost ({file}); check the disk")
    }
}

/// Health of the log, as shown by the status, health endpoints and metrics.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Health {
    /// State of the log, which determines whether calls proceed.
    pub state: Standing,
    /// Reason why records cannot be written, if that is the case.
    #[schema(required)]
    pub failed: Option<String>,
    /// Damage found by a reader, if any.
    #[schema(required)]
    pub damaged: Option<String>,
    /// Number of entries that could not be recorded, since the log was created.
    pub lost: u64,
    /// Number of calls in flight or waiting to be written.
    pub queued: usize,
    /// Sequence number of the last durable record.
    pub durable_seq: u64,
    /// Upper bound of the time, in milliseconds, for which the oldest non-durable record has been waiting. Replies wait
    /// if it is 35 or more.
    pub lag_ms: u64,
    /// Longest time that the disk has taken for one batch since the start, in milliseconds.
    pub longest_sync_ms: u64,
    /// Number of records written since the start.
    pub written: u64,
    /// Size of the log on disk in bytes.
    pub disk_bytes: u64,
    /// Last damage to the log's files repaired since the start; the disk may be failing.
    #[schema(required)]
    pub repaired: Option<RepairedDamage>,
}

/// Interval at which a query checks whether earlier calls have left the barrier.
const QUERY_POLL: Duration = Duration::from_micros(100);

/// Read barrier (ACT-5): counts calls whose reply has ended but whose entry has not arrived. A query switches
/// between two counters and waits for the old one to reach zero, so that it waits for every earlier call and
/// for no later one.
#[derive(Default)]
pub(super) struct ReadBarrier {
    current: AtomicU8,
    pending: [AtomicUsize; 2],
    turning: Mutex<()>,
}

impl ReadBarrier {
    fn counter(&self, epoch: u8) -> &AtomicUsize {
        let [even, odd] = &self.pending;
        if epoch & 1 == 0 { even } else { odd }
    }

    /// Enters a call. Returns its epoch, which was the current one at some moment during this function call.
    pub(super) fn enter(&self) -> u8 {
        loop {
            let epoch = self.current.load(Ordering::SeqCst);
            self.counter(epoch).fetch_add(1, Ordering::SeqCst);
            if self.current.load(Ordering::SeqCst) == epoch {
                return epoch;
            }
            self.leave(epoch);
        }
    }

    pub(super) fn leave(&self, epoch: u8) {
        self.counter(epoch).fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until every call that entered before has left. Returns false at the deadline.
    pub(super) fn wait(&self, deadline: Instant) -> bool {
        let _turn = self.turning.lock();
        let old = self.current.fetch_add(1, Ordering::SeqCst);
        while self.counter(old).load(Ordering::SeqCst) > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(QUERY_POLL);
        }
        true
    }
}
