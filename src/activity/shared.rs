//! What calls, queries, the writer and the pruner share, and what the writer is sent.
//!
//! Counters and a queue; what they mean is decided in `slot`, `durable` and `writer`.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::mpsc::{self, Receiver, SendError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};

use super::clock::Opened;
use super::config::{Config, OnFailure, Retention};
use super::in_flight::CallsInFlight;
use super::live_feed::LiveFeed;
use super::lost::Ledger;
use super::read_barrier::ReadBarrier;
use super::read_jobs::ReadJobs;
use super::record::Entry;
use super::retention::Cut;
use super::store::Store;

/// A wait of the writer for the disk that is longer than this is logged.
pub(super) const SLOW_DISK: Duration = Duration::from_secs(1);

/// What the writer is sent.
pub(super) enum WriterCommand {
    /// Answer when the marks of all calls that have begun are durable.
    Mark(oneshot::Sender<()>),
    /// Write this.
    Entry {
        /// What to write; boxed, since the queue's blocks are made of the largest message.
        entry: Box<Entry>,
        /// The mark that goes when the entry is written.
        ticket: Option<u64>,
        /// Who waits for it to be durable.
        done: Option<oneshot::Sender<()>>,
        /// Whether its room is to be given back.
        counted: bool,
    },
    /// From the writer itself: what lies behind it came later than this moment, in microseconds
    /// since `base`.
    Behind(u64),
    /// Answer when all before it can be read.
    Barrier(mpsc::SyncSender<()>),
    /// Answer when all before it is durable.
    Flush(mpsc::SyncSender<()>),
    /// Removes the records before a cut; answer when that can be seen.
    Cut(Cut, mpsc::SyncSender<()>),
    /// Put on record what could not be recorded, if anything.
    Lost,
    /// A table was found damaged: mend the log.
    Damaged(PathBuf),
    /// Write what came before, and end.
    Close,
}

/// What calls, queries and the writer share.
pub(super) struct Shared {
    pub(super) config: Config,
    /// How long records are kept, which may change while the log is open.
    pub(super) retention: ArcSwap<Retention>,
    /// Room for calls. The writer gives it back once for each batch. Every call writes here: what
    /// they only read lies elsewhere.
    pub(super) room: CachePadded<Semaphore>,
    pub(super) capacity: usize,
    pub(super) queue: Sender<WriterCommand>,
    /// The calls under way that leave a mark.
    pub(super) in_flight: CallsInFlight,
    /// The writer's thread, to be woken.
    pub(super) thread: OnceLock<Thread>,
    /// True while the writer sleeps until it is woken: all that was submitted is durable.
    pub(super) asleep: AtomicBool,
    pub(super) store: ArcSwap<Option<Store>>,
    pub(super) failure: ArcSwap<Option<String>>,
    pub(super) is_failed: AtomicBool,
    /// The disk has not answered the writer for so long that nobody waits for it any more.
    pub(super) is_stalled: AtomicBool,
    pub(super) is_closed: AtomicBool,
    /// The log is failed, and nothing is written before the next start.
    pub(super) is_over: AtomicBool,
    /// What others need kept has become too much (`confirm`).
    pub(super) is_withheld: AtomicBool,
    /// Why.
    pub(super) withheld: ArcSwap<Option<String>>,
    /// The records up to this one may be forgotten; all of them, where nobody else needs them.
    pub(super) confirmed: AtomicU64,
    /// Who waits for a record to be confirmed, in the order of the records.
    pub(super) unconfirmed: Mutex<VecDeque<(u64, oneshot::Sender<()>)>>,
    /// Entries that could not be recorded, since the log was begun.
    pub(super) lost: AtomicU64,
    /// What is written down of them.
    pub(super) ledger: Ledger,
    /// The thread that writes it down, to be woken.
    pub(super) counter: OnceLock<Thread>,
    pub(super) written: AtomicU64,
    pub(super) durable_seq: AtomicU64,
    /// What was submitted before this moment is durable, in microseconds since `base`. While the
    /// writer is awake it is the writer's alone to set.
    pub(super) durable_until: AtomicU64,
    /// Tells replies that wait that more is durable, or that there is nothing to wait for.
    pub(super) batch_done: Notify,
    /// When the writer began what it does on the disk just now, in microseconds since `base`; 0 for
    /// nothing.
    pub(super) disk_since: AtomicU64,
    /// The longest that it waited for the disk, in microseconds.
    pub(super) disk_longest: AtomicU64,
    /// The bytes that the log takes on disk, as the writer last saw it: to ask the store waits for
    /// its syncs.
    pub(super) disk_bytes: AtomicU64,
    /// Tells calls that wait for room that there will be none.
    pub(super) has_failed: Notify,
    pub(super) base: Instant,
    /// Tells milliseconds since 1970.
    pub(super) clock: Box<dyn Fn() -> u64 + Send + Sync>,
    /// What the log ended with when it was opened.
    pub(super) opened: OnceLock<Opened>,
    /// The name of this node in its fleet, where there is one.
    pub(super) node_name: OnceLock<Arc<str>>,
    pub(super) pruning: Mutex<()>,
    /// Something that was read is damaged: the tables are to be looked at.
    pub(super) is_suspect: AtomicBool,
    /// The thread that does, to be woken.
    pub(super) scrubber: OnceLock<Thread>,
    pub(super) pruner: OnceLock<Thread>,
    pub(super) read_barrier: ReadBarrier,
    pub(super) live: LiveFeed,
    pub(super) readers: ReadJobs,
}

impl Shared {
    /// The shared part of a log that is yet to be opened, and the writer's end of the queue.
    pub(super) fn new(
        config: Config,
        clock: Box<dyn Fn() -> u64 + Send + Sync>,
    ) -> (Arc<Self>, Receiver<WriterCommand>) {
        let (queue, messages) = mpsc::channel();
        let capacity = room(&config);
        let shared = Arc::new(Shared {
            room: CachePadded::new(Semaphore::new(capacity)),
            capacity,
            retention: ArcSwap::from_pointee(config.retention()),
            config,
            queue,
            in_flight: CallsInFlight::default(),
            thread: OnceLock::new(),
            // Until the writer begins, nothing is submitted.
            asleep: AtomicBool::new(true),
            store: ArcSwap::from_pointee(None),
            failure: ArcSwap::from_pointee(None),
            is_failed: AtomicBool::new(false),
            is_stalled: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_withheld: AtomicBool::new(false),
            withheld: ArcSwap::from_pointee(None),
            confirmed: AtomicU64::new(u64::MAX),
            unconfirmed: Mutex::default(),
            lost: AtomicU64::new(0),
            ledger: Ledger::default(),
            counter: OnceLock::new(),
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
            opened: OnceLock::new(),
            node_name: OnceLock::new(),
            pruning: Mutex::new(()),
            is_suspect: AtomicBool::new(false),
            scrubber: OnceLock::new(),
            pruner: OnceLock::new(),
            read_barrier: ReadBarrier::default(),
            live: LiveFeed::default(),
            readers: ReadJobs::default(),
        });
        (shared, messages)
    }

    pub(super) fn take_room(&self) -> bool {
        self.room.try_acquire().map(SemaphorePermit::forget).is_ok()
    }

    /// Calls under way, or waiting to be written.
    pub(super) fn waiting(&self) -> usize {
        self.capacity - self.room.available_permits().min(self.capacity)
    }

    /// Puts a message into the queue. Without a writer its entry is lost.
    pub(super) fn send(&self, message: WriterCommand) {
        if let Err(SendError(WriterCommand::Entry { .. })) = self.queue.send(message) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            tracing::error!("a record is lost: the activity log is closed");
        }
    }

    /// Has the tables looked at.
    pub(super) fn suspect(&self) {
        if let Some(thread) = self.scrubber.get()
            && !self.is_suspect.swap(true, Ordering::AcqRel)
        {
            thread.unpark();
        }
    }

    /// Has it written down how many entries are lost.
    pub(super) fn count_lost(&self) {
        if let Some(thread) = self.counter.get() {
            thread.unpark();
        }
    }

    /// Writes down how many entries are lost, and that so many more wait.
    pub(super) fn save_lost(&self, waiting: u64) {
        let now_ms = self.refuses().then(|| (self.clock)());
        self.ledger.save(self.lost.load(Ordering::Relaxed), waiting, now_ms);
    }

    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Wakes the writer only where it would not wake by itself soon: the call's side pays for a
    /// wake-up only after a pause.
    pub(super) fn wake_if_asleep(&self) {
        // Either this sees the flag, or the writer, which looks again after raising it, sees what
        // was sent.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.rouse() {
            self.wake();
        }
    }

    /// Ends the sleep; true for the first to do so. From now on replies wait for the writer, also before
    /// it gets a core.
    pub(super) fn rouse(&self) -> bool {
        let slept = self.durable_until.load(Ordering::SeqCst);
        let is_first = self.asleep.swap(false, Ordering::SeqCst);
        if is_first {
            let now = self.micros(Instant::now());
            // Unless the writer is at work already, and knows better.
            let _ =
                self.durable_until.compare_exchange(slept, now, Ordering::SeqCst, Ordering::SeqCst);
        }
        is_first
    }

    /// True while nothing can be written: calls go by `on_failure` then.
    pub(super) fn refuses(&self) -> bool {
        self.is_failed.load(Ordering::Acquire)
            || self.is_stalled.load(Ordering::Acquire)
            || self.is_withheld.load(Ordering::Acquire)
    }

    /// True while what is handed over is lost rather than written: nothing is written before the next start, or more would be
    /// more than others can be kept for, and calls go on.
    pub(super) fn loses(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
            || (self.config.on_failure == OnFailure::Continue
                && self.is_withheld.load(Ordering::Acquire))
    }

    /// Why nothing can be written, if nothing can.
    pub(super) fn failure(&self) -> Option<String> {
        let failed = self.failure.load().as_ref().clone();
        let stalled = || {
            let waits = self.disk_waits(Instant::now())?;
            let stalled = self.is_stalled.load(Ordering::Acquire);
            stalled.then(|| format!("the disk has not answered for {} s", waits.as_secs()))
        };
        let withheld = || self.withheld.load().as_ref().clone();
        let closed = || self.is_closed.load(Ordering::Acquire).then(|| "it is closed".to_owned());
        failed.or_else(stalled).or_else(withheld).or_else(closed)
    }

    pub(super) fn failure_text(&self) -> String {
        self.failure().unwrap_or_default()
    }

    /// How long the writer has been waiting for the disk at `now`.
    pub(super) fn disk_waits(&self, now: Instant) -> Option<Duration> {
        match self.disk_since.load(Ordering::Acquire) {
            0 => None,
            since => Some(Duration::from_micros(self.micros(now).saturating_sub(since))),
        }
    }

    /// Microseconds from when the log was opened to `now`, never 0.
    pub(super) fn micros(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.base).as_micros() as u64 + 1
    }
}

/// Calls that fit the queue, whatever they bring.
fn room(config: &Config) -> usize {
    let entry = config.entry_bytes();
    config.queue_records.min(config.queue_bytes / entry).clamp(1, Semaphore::MAX_PERMITS)
}
