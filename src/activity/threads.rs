//! Opening and closing of a log, and its threads: the writer, retention, scrubbing, a watchdog for the disk,
//! the loss counter, and the reader thread (`live`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::clock::{self, unix_millis};
use super::config::Config;
use super::handle::{Activity, QUERY_TIMEOUT};
use super::losses::LossTally;
use super::recover::{self, Lock, Reading};
use super::retention::{self, RetentionDue, RetentionTime};
use super::shared::{Clock, QueryError, SLOW_DISK, Shared, WriterCommand};
use super::store::{Store, StoreError};
use super::view::View;
use super::{salvage, writer};
use crate::folder::Copy;
use crate::store::journal_files;
use mcpproxy_runtime::os::private;

/// Interval of the disk watchdog.
const WATCH_EVERY: Duration = Duration::from_millis(250);
/// Time without a response after which the disk is considered failed and calls no longer wait for it.
const STALLED: Duration = Duration::from_secs(5);
/// Interval at which the loss counter is saved during an outage, and thus the maximum age of the count that a killed
/// process leaves.
const SAVE_LOSSES_EVERY: Duration = Duration::from_millis(100);
/// Maximum time for closing: writing submitted entries and closing the store.
const CLOSE_LIMIT: Duration = Duration::from_secs(20);
const CLOSE_POLL: Duration = Duration::from_millis(5);

/// Owner of the log's threads. Dropping it, or calling [`Writer::close`], durably writes submitted entries and ends the
/// threads.
#[derive(Debug)]
pub struct Writer {
    activity: Activity,
    thread: Option<JoinHandle<Result<(), StoreError>>>,
    /// The threads other than the writer.
    helpers: Vec<JoinHandle<()>>,
    /// Copy and lock of a log opened for reading only.
    reading: Option<(Copy, Option<Lock>)>,
}

impl Activity {
    /// Opens or creates the log in `dir` and starts its threads.
    pub fn open(dir: &Path, config: Config) -> Result<(Self, Writer), StoreError> {
        Self::open_with_clocks(dir, config, unix_millis, clock::steady_millis)
    }

    /// Opens the log with two clocks in milliseconds: `wall` since 1970, and the monotonic `steady`. Forward jumps of
    /// `wall` are accepted after an hour.
    pub fn open_with_clocks(
        dir: &Path,
        config: Config,
        wall: impl Fn() -> u64 + Send + Sync + 'static,
        steady: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<(Self, Writer), StoreError> {
        let steady = Arc::new(steady);
        let measure = Arc::clone(&steady);
        let wall = clock::without_jumps(wall, move || measure());
        Self::start_apart(dir, config, (Box::new(wall), Box::new(move || steady())))
    }

    /// Opens the log with a clock in milliseconds since 1970, whose jumps are accepted immediately.
    pub fn open_with_clock(
        dir: &Path,
        config: Config,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<(Self, Writer), StoreError> {
        Self::start_apart(dir, config, (Box::new(clock), Box::new(clock::steady_millis)))
    }

    /// Creates all files, including the store's own, with access only for their owner.
    fn start_apart(
        dir: &Path,
        config: Config,
        clocks: (Clock, Clock),
    ) -> Result<(Self, Writer), StoreError> {
        private::apart(|| Self::start(dir, config, clocks))
    }

    fn start(
        dir: &Path,
        config: Config,
        clocks: (Clock, Clock),
    ) -> Result<(Self, Writer), StoreError> {
        let (shared, messages) = Shared::new(config, clocks);
        let thread = writer::start(dir, Arc::clone(&shared), messages)?;
        // Until this is set, the thread cannot be woken. No command is missed, because the thread checks its queue
        // before it first sleeps.
        let _ = shared.thread.set(thread.thread().clone());
        let activity = Self { shared };
        let mut writer = Writer {
            activity: activity.clone(),
            thread: Some(thread),
            helpers: Vec::new(),
            reading: None,
        };
        let pruner = writer.spawn("activity-prune", Self::run_retention)?;
        let _ = activity.shared.pruner.set(pruner);
        writer.spawn("activity-watch", watch_disk)?;
        writer.spawn_reader()?;
        let scrubber = writer.spawn("activity-scrub", Self::run_scrubbing)?;
        let _ = activity.shared.scrubber.set(scrubber);
        let counter = writer.spawn("activity-lost", save_losses)?;
        let _ = activity.shared.counter.set(counter);
        Ok((activity, writer))
    }

    /// Path of the copy that [`Activity::read`] makes in `scratch`; errors of later reads name it.
    pub fn copy_below(scratch: &Path) -> PathBuf {
        Copy::path_below(scratch)
    }

    /// Opens a copy of the log in `dir`, made in `scratch`, for reading: `dir` is not changed and nothing can
    /// be recorded; the returned writer only owns the copy. A missing log is read as an empty one.
    pub fn read(dir: &Path, scratch: &Path, config: Config) -> Result<(Self, Writer), StoreError> {
        let Reading { store, copy, lock } = recover::read(dir, scratch)?;
        // There is no writer, so commands are dropped.
        let clocks = (Box::new(unix_millis) as Clock, Box::new(clock::steady_millis) as Clock);
        let (shared, _) = Shared::new(config, clocks);
        shared.store.store(Arc::new(Some(store)));
        let tally = LossTally::read(copy.path())?.0;
        shared.lost.store(tally.total + tally.waiting, Ordering::Relaxed);
        let activity = Self { shared };
        let reading = Some((copy, lock));
        let helpers = Vec::new();
        let mut writer = Writer { activity: activity.clone(), thread: None, helpers, reading };
        writer.spawn_reader()?;
        Ok((activity, writer))
    }
}

impl Writer {
    /// Durably writes submitted entries and ends the threads.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.end()
    }

    /// Whether the log was opened for reading only ([`Activity::read`]).
    pub fn is_read_only(&self) -> bool {
        self.reading.is_some()
    }

    /// Starts a thread that runs `work` until the log is closed.
    fn spawn(&mut self, name: &str, work: fn(&Activity)) -> Result<Thread, StoreError> {
        let activity = self.activity.clone();
        let handle = thread::Builder::new().name(name.into()).spawn(move || work(&activity))?;
        let thread = handle.thread().clone();
        self.helpers.push(handle);
        Ok(thread)
    }

    fn spawn_reader(&mut self) -> Result<(), StoreError> {
        let thread = self.spawn("activity-readers", Activity::serve_readers)?;
        self.activity.shared.readers.set_thread(thread);
        Ok(())
    }

    fn end(&mut self) -> Result<(), StoreError> {
        let shared = &self.activity.shared;
        shared.is_closed.store(true, Ordering::Release);
        shared.live.wake_readers();
        let Some(thread) = self.thread.take() else {
            self.helpers.iter().for_each(|helper| helper.thread().unpark());
            self.helpers.drain(..).for_each(|helper| drop(helper.join()));
            shared.store.store(Arc::new(None));
            self.reading = None;
            return Ok(());
        };
        // A thread that waits for a disk cannot be ended, but the process can end without it.
        let deadline = Instant::now() + CLOSE_LIMIT;
        let late = || {
            let why = format!("it was not closed within {CLOSE_LIMIT:?}");
            StoreError::Io(io::Error::new(io::ErrorKind::TimedOut, why))
        };
        self.helpers.iter().for_each(|helper| helper.thread().unpark());
        ended(deadline, || self.helpers.iter().all(JoinHandle::is_finished)).ok_or_else(late)?;
        let _ = shared.queue.send(WriterCommand::Close);
        shared.wake();
        ended(deadline, || thread.is_finished()).ok_or_else(late)?;
        self.helpers.drain(..).for_each(|helper| drop(helper.join()));
        let result = thread.join().unwrap_or_else(|_| {
            Err(StoreError::Io(io::Error::other("the activity thread panicked")))
        });
        shared.store.store(Arc::new(None));
        result
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "cannot close the activity log");
        }
    }
}

/// Waits until a condition holds; `None` at the deadline.
fn ended(deadline: Instant, has_ended: impl Fn() -> bool) -> Option<()> {
    while !has_ended() {
        if Instant::now() > deadline {
            return None;
        }
        thread::sleep(CLOSE_POLL);
    }
    Some(())
}

/// Watchdog for the disk: logs long waits of the writer for the disk, because the writer cannot log them itself, and
/// gives up a disk that does not respond.
fn watch_disk(activity: &Activity) {
    let shared = &activity.shared;
    let mut is_logged = false;
    while !shared.is_closed.load(Ordering::Acquire) {
        thread::park_timeout(WATCH_EVERY);
        let Some(waits) = shared.disk_waits(Instant::now()) else {
            is_logged = false;
            // The writer's operation may have ended just before the disk was given up.
            shared.is_stalled.store(false, Ordering::Release);
            continue;
        };
        if waits > SLOW_DISK && !is_logged {
            is_logged = true;
            tracing::warn!(?waits, "the activity log is waiting for the disk");
        }
        if waits > STALLED && !shared.is_stalled.swap(true, Ordering::AcqRel) {
            tracing::error!(?waits, "the disk does not respond; the activity log has stopped");
            let lost = shared.lost.load(Ordering::Relaxed);
            shared.ledger.begin("the disk does not respond", lost, (shared.clock)());
            shared.request_loss_save();
            shared.has_failed.notify_waiters();
            shared.batch_done.notify_waiters();
        }
    }
}

/// Saves the loss counter during an outage. It runs on its own thread, because the disk may be the cause of the outage.
fn save_losses(activity: &Activity) {
    let shared = &activity.shared;
    while !shared.is_closed.load(Ordering::Acquire) {
        let waiting = if shared.cannot_write() { shared.waiting() } else { 0 };
        shared.save_lost(waiting as u64);
        if shared.cannot_write() { thread::park_timeout(SAVE_LOSSES_EVERY) } else { thread::park() }
    }
}

/// Interval of retention.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

impl Activity {
    pub(super) fn run_retention(&self) {
        while !self.shared.is_closed.load(Ordering::Acquire) {
            thread::park_timeout(PRUNE_EVERY);
            let failed = self.shared.cannot_write();
            let closed = self.shared.is_closed.load(Ordering::Acquire);
            if !failed
                && !closed
                && let Err(error) = self.prune()
            {
                tracing::warn!(%error, "cannot remove old activity records");
            }
        }
    }

    /// Applies the retention limits (ACT-6) and returns the number of removed records. Runs automatically every
    /// minute; never delays calls. Blocks.
    pub fn prune(&self) -> Result<u64, QueryError> {
        let result = self.prune_now();
        if let Err(QueryError::Store(StoreError::Damaged { .. })) = &result {
            self.shared.request_scrub();
        }
        result
    }

    fn prune_now(&self) -> Result<u64, QueryError> {
        let _turn = self.shared.pruning.lock();
        let Some(store) = self.shared.store.load().as_ref().clone() else { return Ok(0) };
        store.note_tables();
        let view = View::new(store.snapshot()?)?;
        let now = (self.shared.clock)();
        let now = self.shared.opened.get().map_or(now, |opened| opened.age_from(now));
        let confirmed = self.shared.confirmed.load(Ordering::Acquire);
        let opened = self.shared.opened.get().map_or(0, |opened| opened.next);
        let time = RetentionTime { now_ms: now, ran_ms: self.shared.ran_ms(), opened };
        let kept = self.shared.retention.load_full();
        let RetentionDue { cut, overrun } = retention::due(&view, &store, &kept, confirmed, time)?;
        drop(view);
        if self.shared.shares.set_over_budget(overrun) {
            match overrun {
                true => tracing::warn!(
                    max_records = kept.max_records,
                    max_size_mb = kept.max_size_mb,
                    "the activity log exceeds its budget with records that activity.min_retention keeps: principals \
                     beyond their share of it are slowed; raise the budget or lower activity.min_retention"
                ),
                false => tracing::info!("the activity log is within its budget again"),
            }
        }
        if let Some(cut) = &cut {
            let (removed, first, limit) = (cut.removed, cut.first, cut.reason.as_str());
            tracing::info!(removed, first, limit, "removing old activity records");
            let (sender, reply) = mpsc::sync_channel(1);
            self.shared.enqueue(WriterCommand::Cut(cut.clone(), sender));
            self.shared.wake();
            reply.recv_timeout(QUERY_TIMEOUT).map_err(|_| QueryError::Busy)?;
        }
        let mut cleared = cut.is_some();
        while !self.shared.is_closed.load(Ordering::Acquire) && retention::clear_segment(&store)? {
            cleared = true;
        }
        if cleared && !self.shared.is_closed.load(Ordering::Acquire) {
            retention::free_space(&store)?;
        }
        Ok(cut.map_or(0, |cut| cut.removed))
    }

    /// Checks every table. If one is damaged, requests a repair and returns that table. Runs automatically once a day,
    /// at low speed. Blocks.
    pub fn scrub(&self) -> Result<Option<PathBuf>, QueryError> {
        self.scrub_slowly(Duration::ZERO)
    }

    fn scrub_slowly(&self, pause: Duration) -> Result<Option<PathBuf>, QueryError> {
        // The store is not held during the check, because it may have to be reopened.
        let tables = self.shared.store.load().as_ref().as_ref().map(Store::tables);
        let tables = tables.transpose()?.unwrap_or_default();
        let keep_going = || !self.shared.is_closed.load(Ordering::Acquire);
        let damaged = salvage::scrub(tables, pause, keep_going)?;
        if let Some(table) = &damaged {
            tracing::error!(table = %table.display(), "a table of the activity log is damaged");
            self.shared.enqueue(WriterCommand::Damaged(table.clone()));
            self.shared.wake();
        } else {
            // No damage is left, so the damage reported by a reader no longer exists.
            self.shared.damage.clear();
        }
        Ok(damaged)
    }

    /// Checks data that is only in journals. If a journal is damaged, requests that the data be saved to tables, and
    /// returns the journal. Runs automatically every five minutes, at low speed. Blocks.
    pub fn scrub_journals(&self) -> Result<Option<PathBuf>, QueryError> {
        self.scrub_journals_slowly(Duration::ZERO)
    }

    fn scrub_journals_slowly(&self, pause: Duration) -> Result<Option<PathBuf>, QueryError> {
        let store = || self.shared.store.load_full();
        let db = match store().as_ref() {
            Some(store) if store.has_unflushed()? => store.path().to_path_buf(),
            // Once all data is in tables, the journals are no longer read.
            Some(_) | None => return Ok(None),
        };
        // The store is not held during the check, because it may have to be reopened.
        let flush = || match store().as_ref() {
            Some(store) => store.flush_journal(),
            None => Err(StoreError::Io(io::ErrorKind::ResourceBusy.into())),
        };
        let keep_going = || {
            if !pause.is_zero() {
                thread::park_timeout(pause);
            }
            !self.shared.is_closed.load(Ordering::Acquire)
        };
        let damaged = match journal_files::scrub(&db, &flush, &keep_going) {
            // The store is being reopened.
            Err(StoreError::Io(error)) if error.kind() == io::ErrorKind::ResourceBusy => None,
            scrubbed => scrubbed?,
        };
        if let Some(journal) = &damaged {
            tracing::error!(
                journal = %journal.display(),
                "a journal of the activity log is damaged; saving its records from memory"
            );
            self.shared.enqueue(WriterCommand::Damaged(journal.clone()));
            self.shared.wake();
        }
        Ok(damaged)
    }

    pub(super) fn run_scrubbing(&self) {
        let shared = &self.shared;
        let times = shared.config.scrubs;
        let (mut next, mut earliest) = (Instant::now() + times.tables_after, Instant::now());
        let mut journals = Instant::now() + times.journals_after;
        while !shared.is_closed.load(Ordering::Acquire) {
            let now = Instant::now();
            if now >= journals {
                if let Err(error) = self.scrub_journals_slowly(salvage::SCRUB_PAUSE) {
                    tracing::warn!(%error, "cannot read the journals of the activity log");
                }
                journals = Instant::now() + times.journals_every;
                continue;
            }
            let is_suspect = shared.is_suspect.load(Ordering::Acquire);
            let due = if is_suspect { next.min(earliest) } else { next };
            if now < due {
                thread::park_timeout(due.min(journals).saturating_duration_since(now));
                continue;
            }
            shared.is_suspect.store(false, Ordering::Release);
            let pause = if is_suspect { Duration::ZERO } else { salvage::SCRUB_PAUSE };
            if let Err(error) = self.scrub_slowly(pause) {
                tracing::warn!(%error, "cannot read the tables of the activity log");
            }
            (next, earliest) =
                (Instant::now() + times.tables_every, Instant::now() + salvage::SCRUB_AGAIN);
        }
    }
}
