//! The threads of an open log: the writer, the two of `upkeep`, one that watches whether the disk
//! answers, one that writes down what is lost, and one that reads for live readers and exports
//! (`readers`). Started with the log and ended with it, within a bound.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::copy::Copy;
use super::handle::Activity;
use super::recover::Lock;
use super::shared::WriterCommand;
use super::store::StoreError;
use super::writer::SLOW_DISK;

/// How often it is looked whether the disk answers the writer.
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
    pub(super) activity: Activity,
    pub(super) thread: Option<JoinHandle<Result<(), StoreError>>>,
    /// All but the one that writes.
    pub(super) helpers: Vec<JoinHandle<()>>,
    /// What a log that is only read is read from.
    pub(super) reading: Option<(Copy, Option<Lock>)>,
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
    pub(super) fn help(&mut self, name: &str, work: fn(&Activity)) -> Result<Thread, StoreError> {
        let activity = self.activity.clone();
        let handle = thread::Builder::new().name(name.into()).spawn(move || work(&activity))?;
        let thread = handle.thread().clone();
        self.helpers.push(handle);
        Ok(thread)
    }

    /// Starts the thread that reads for readers.
    pub(super) fn help_readers(&mut self) -> Result<(), StoreError> {
        let thread = self.help("activity-readers", Activity::serve_readers)?;
        self.activity.shared.readers.served_by(thread);
        Ok(())
    }

    fn end(&mut self) -> Result<(), StoreError> {
        let shared = &self.activity.shared;
        shared.is_closed.store(true, Ordering::Release);
        shared.live.ring();
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

/// Tells when the writer has been waiting for the disk for long, which it cannot tell itself.
pub(super) fn watch_the_disk(activity: &Activity) {
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
pub(super) fn count_what_is_lost(activity: &Activity) {
    let shared = &activity.shared;
    while !shared.is_closed.load(Ordering::Acquire) {
        let waiting = if shared.refuses() { shared.waiting() } else { 0 };
        shared.save_lost(waiting as u64);
        if shared.refuses() { thread::park_timeout(COUNT_EVERY) } else { thread::park() }
    }
}
