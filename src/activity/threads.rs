//! Opening and closing: the threads of an open log are started and ended here, within a bound. They
//! are the writer, the two of `upkeep`, one that watches whether the disk answers, one that writes
//! down what is lost, and one that reads for live readers and exports (`readers`).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::clock::{self, unix_millis};
use super::config::Config;
use super::copy::Copy;
use super::handle::Activity;
use super::lost::LossTally;
use super::recover::{self, Lock, Reading};
use super::shared::{SLOW_DISK, Shared, WriterCommand};
use super::store::StoreError;
use super::writer;
use crate::os::private;

/// How often it is checked whether the disk answers the writer.
const WATCH_EVERY: Duration = Duration::from_millis(250);
/// A disk that has not answered for so long counts as failed: calls wait for it no longer.
const STALLED: Duration = Duration::from_secs(5);
/// How often it is written down what is lost while the log cannot be written: a process that is
/// killed then leaves a count that is so old at most.
const COUNT_EVERY: Duration = Duration::from_millis(100);
/// How long closing may take: what was submitted is written, and the store closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(20);
const CLOSE_POLL: Duration = Duration::from_millis(5);

/// The thread that writes. Dropping it, or [`Writer::close`], writes what was submitted, durably,
/// and ends it.
#[derive(Debug)]
pub struct Writer {
    activity: Activity,
    thread: Option<JoinHandle<Result<(), StoreError>>>,
    /// All but the one that writes.
    helpers: Vec<JoinHandle<()>>,
    /// What a log that is only read is read from.
    reading: Option<(Copy, Option<Lock>)>,
}

impl Activity {
    /// Opens the log in `dir`, or makes one there, and starts its thread.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it is in use, damaged, or cannot be read.
    pub fn open(dir: &Path, config: Config) -> Result<(Self, Writer), StoreError> {
        Self::open_with_clocks(dir, config, unix_millis, clock::steady_millis)
    }

    /// Like [`Self::open`], with two clocks that give milliseconds: `wall` since 1970, which may be
    /// set, and `steady`, which cannot. A jump of the first is believed once it has lasted an hour.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`].
    pub fn open_with_clocks(
        dir: &Path,
        config: Config,
        wall: impl Fn() -> u64 + Send + Sync + 'static,
        steady: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<(Self, Writer), StoreError> {
        Self::open_with_clock(dir, config, clock::believing(wall, steady))
    }

    /// Like [`Self::open`], with a clock that gives milliseconds since 1970 and is believed.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`].
    pub fn open_with_clock(
        dir: &Path,
        config: Config,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<(Self, Writer), StoreError> {
        // The store's own files too are for their owner alone.
        private::apart(|| Self::start(dir, config, Box::new(clock)))
    }

    fn start(
        dir: &Path,
        config: Config,
        clock: Box<dyn Fn() -> u64 + Send + Sync>,
    ) -> Result<(Self, Writer), StoreError> {
        let (shared, messages) = Shared::new(config, clock);
        let thread = writer::start(dir, Arc::clone(&shared), messages)?;
        // Until it is known the thread cannot be woken, but it looks at its queue before it
        // sleeps for the first time.
        let _ = shared.thread.set(thread.thread().clone());
        let activity = Self { shared };
        let mut writer = Writer {
            activity: activity.clone(),
            thread: Some(thread),
            helpers: Vec::new(),
            reading: None,
        };
        let pruner = writer.help("activity-prune", Self::prune_now_and_then)?;
        let _ = activity.shared.pruner.set(pruner);
        writer.help("activity-watch", watch_the_disk)?;
        writer.help_readers()?;
        let scrubber = writer.help("activity-scrub", Self::scrub_now_and_then)?;
        let _ = activity.shared.scrubber.set(scrubber);
        let counter = writer.help("activity-lost", count_what_is_lost)?;
        let _ = activity.shared.counter.set(counter);
        Ok((activity, writer))
    }

    /// Opens the log in `dir` to be read, by a copy in `scratch`: nothing in `dir` changes, nothing
    /// can be recorded, and the writer that comes with it only keeps the copy. Where there is no
    /// log, an empty one is read.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it is in use, damaged, or cannot be read.
    pub fn read(dir: &Path, scratch: &Path, config: Config) -> Result<(Self, Writer), StoreError> {
        let Reading { store, copy, lock } = recover::read(dir, scratch)?;
        // Nobody takes what is sent.
        let (shared, _) = Shared::new(config, Box::new(unix_millis));
        shared.store.store(Arc::new(Some(store)));
        let tally = LossTally::read(copy.path())?.0;
        shared.lost.store(tally.total + tally.waiting, Ordering::Relaxed);
        let activity = Self { shared };
        let reading = Some((copy, lock));
        let helpers = Vec::new();
        let mut writer = Writer { activity: activity.clone(), thread: None, helpers, reading };
        writer.help_readers()?;
        Ok((activity, writer))
    }
}

impl Writer {
    /// Writes what was submitted, durably, and ends the thread.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if something could not be written.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.end()
    }

    /// Whether the log is only read ([`Activity::read`]): there is no thread that writes then.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.reading.is_some()
    }

    /// Starts a thread that does `work` until the log is closed.
    fn help(&mut self, name: &str, work: fn(&Activity)) -> Result<Thread, StoreError> {
        let activity = self.activity.clone();
        let handle = thread::Builder::new().name(name.into()).spawn(move || work(&activity))?;
        let thread = handle.thread().clone();
        self.helpers.push(handle);
        Ok(thread)
    }

    /// Starts the thread that reads for readers.
    fn help_readers(&mut self) -> Result<(), StoreError> {
        let thread = self.help("activity-readers", Activity::serve_readers)?;
        self.activity.shared.readers.served_by(thread);
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
        // Nothing ends a thread that waits for a disk; the process can end without it.
        let deadline = Instant::now() + CLOSE_LIMIT;
        let late = || {
            let why = format!("it was not closed within {CLOSE_LIMIT:?}");
            StoreError::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, why))
        };
        self.helpers.iter().for_each(|helper| helper.thread().unpark());
        ended(deadline, || self.helpers.iter().all(JoinHandle::is_finished)).ok_or_else(late)?;
        let _ = shared.queue.send(WriterCommand::Close);
        shared.wake();
        ended(deadline, || thread.is_finished()).ok_or_else(late)?;
        self.helpers.drain(..).for_each(|helper| drop(helper.join()));
        let result = thread.join().unwrap_or_else(|_| {
            Err(StoreError::Io(std::io::Error::other("the activity thread panicked")))
        });
        shared.store.store(Arc::new(None));
        result
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "the activity log could not be closed");
        }
    }
}

/// Waits until something has ended; `None` if that takes too long.
fn ended(deadline: Instant, has_ended: impl Fn() -> bool) -> Option<()> {
    while !has_ended() {
        if Instant::now() > deadline {
            return None;
        }
        thread::sleep(CLOSE_POLL);
    }
    Some(())
}

/// Logs when the writer has been waiting for the disk for long, which it cannot do itself, and gives
/// the disk up as failed when it does not answer.
fn watch_the_disk(activity: &Activity) {
    let shared = &activity.shared;
    let mut told = false;
    while !shared.is_closed.load(Ordering::Acquire) {
        thread::park_timeout(WATCH_EVERY);
        let Some(waits) = shared.disk_waits(Instant::now()) else {
            told = false;
            // The writer may have ended just before this thread gave it up.
            shared.is_stalled.store(false, Ordering::Release);
            continue;
        };
        if waits > SLOW_DISK && !told {
            told = true;
            tracing::warn!(?waits, "the activity log waits for the disk");
        }
        if waits > STALLED && !shared.is_stalled.swap(true, Ordering::AcqRel) {
            tracing::error!(?waits, "the disk does not answer: the activity log is at a stop");
            let lost = shared.lost.load(Ordering::Relaxed);
            shared.ledger.begin("the disk does not answer", lost, (shared.clock)());
            shared.count_lost();
            shared.has_failed.notify_waiters();
            shared.batch_done.notify_waiters();
        }
    }
}

/// Writes down what is lost while the log cannot be written. On a thread of its own: the disk may be
/// the one that does not answer.
fn count_what_is_lost(activity: &Activity) {
    let shared = &activity.shared;
    while !shared.is_closed.load(Ordering::Acquire) {
        let waiting = if shared.refuses() { shared.waiting() } else { 0 };
        shared.save_lost(waiting as u64);
        if shared.refuses() { thread::park_timeout(COUNT_EVERY) } else { thread::park() }
    }
}
