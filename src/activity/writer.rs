//! Writer thread with group commit: gathers submitted entries into a batch, commits it with one sync, and updates
//! the chain tip (ACT-3, ACT-4).
//!
//! ```text
//!   Asleep ── an entry ──▶ Gathering (28 ms) ──▶ commit ──▶ sync ──▶ chain tip ──▶ Gathering …
//!     ▲                        │ idle for a second     │ a write fails
//!     └────────────────────────┘                       ▼
//!   Failed: the batch is kept, the store is reopened, and the batch is written if it is missing.
//!   After a failed sync the log stays failed, because the contents of the disk are unknown.
//! ```

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use self::state::{Found, Stage, WriterState};
use super::chain::Appender;
use super::recover::{self, OpenLog};
use super::redact::Redactor;
use super::refusals::RefusalGroups;
use super::shared::{Shared, WriterCommand};
use super::store::StoreError;
use super::view::View;
use super::{clock, losses};

mod state;

/// Target time from an entry's submission to its durability: entries are gathered for that long, minus the duration of
/// a commit and the scheduling delay of this thread. Entries are gathered because one sync takes as much processor time
/// as many records.
const GATHER: Duration = Duration::from_millis(28);
/// Minimum gathering time, for a slow disk or a busy machine.
const MIN_GATHER: Duration = Duration::from_millis(5);
/// Divisor by which the measured delay decays per round.
const DELAY_DECAY: u32 = 4;
/// Delay of recent commits or wake-ups above which gathered entries are also written before the sync.
const SLOW_DELAY: Duration = Duration::from_millis(9);
/// Minimum age of the first gathered entry before an early write, in microseconds, because each write adds a block of
/// records.
const WRITE_EARLY: u64 = 8000;
/// Interval at which submitted entries are encoded during gathering. Small portions do not take a core from calls for
/// long, and the entries are still cached.
const STEP: Duration = Duration::from_millis(4);
/// Idle time before the thread sleeps until it is woken.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Opens the log in `dir` and starts its writer thread.
pub(super) fn start(
    dir: &Path,
    shared: Arc<Shared>,
    messages: Receiver<WriterCommand>,
) -> Result<JoinHandle<Result<(), StoreError>>, StoreError> {
    let OpenLog { lock, store, mut tip_file } = recover::open(dir)?;
    let view = View::new(store.snapshot()?)?;
    let mut appender = Appender::resume(&view, Redactor::new(&shared.config.redact_keys))?;
    let left = recover::settle(&store, &mut appender)?;
    let tip = appender.tip();
    if left.calls + left.refusals > 0 {
        tip_file.write(tip)?;
    }
    if left.calls > 0 {
        tracing::warn!(
            calls = left.calls,
            "calls were in flight when the previous process ended; they are recorded with an unknown outcome"
        );
    }
    let began = shared.micros(Instant::now());
    shared.durable_until.store(began, Ordering::SeqCst);
    shared.asleep.store(false, Ordering::SeqCst);
    let ages = view.age_marks()?.truncated_to(tip.seq + 1);
    let _ = shared.opened.set(clock::Opened {
        at: (shared.clock)(),
        end: view.end()?.stored_ms,
        next: tip.seq + 1,
        steady: (shared.steady)(),
        ran_ms: ages.ran_ms,
    });
    shared.lost.store(shared.ledger.open(dir, losses::reported(&view)?)?, Ordering::Relaxed);
    shared.enqueue(WriterCommand::Lost);
    shared.durable_seq.store(tip.seq, Ordering::Relaxed);
    shared.live.wrote(tip.seq);
    shared.disk_bytes.store(store.disk_bytes(), Ordering::Relaxed);
    shared.store.store(Arc::new(Some(store)));
    let run = WriterState {
        shared,
        dir: dir.to_path_buf(),
        lock: Some(lock),
        messages,
        appender,
        tip_file,
        first: view.first(),
        next_ticket: left.next_ticket,
        refusals: RefusalGroups::default(),
        written: HashMap::new(),
        ages,
        permits: 0,
        waiting: Vec::new(),
        unsynced: None,
        unwritten: None,
        queue_from: began,
        sent_behind: false,
        batch_from: None,
        hindered: Duration::ZERO,
        sized: Instant::now(),
        closing: false,
    };
    Ok(thread::Builder::new().name("activity".into()).spawn(move || run.run())?)
}

/// Guard that releases all waiters when the thread ends, even on a panic.
struct ReleaseWaiters(Arc<Shared>);

impl Drop for ReleaseWaiters {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.permits.close();
        self.0.batch_done.notify_waiters();
        self.0.live.wake_readers();
    }
}

impl WriterState {
    fn run(mut self) -> Result<(), StoreError> {
        let _release = ReleaseWaiters(Arc::clone(&self.shared));
        let mut idle_since = Instant::now();
        while !self.closing {
            if self.unwritten.is_some() {
                self.wait_to_retry();
                continue;
            }
            match self.round() {
                Found::Full => {}
                Found::Some => {
                    idle_since = Instant::now();
                    self.gather();
                }
                Found::Nothing if idle_since.elapsed() < IDLE_AFTER => self.gather(),
                Found::Nothing => {
                    self.sleep();
                    idle_since = Instant::now();
                }
            }
        }
        let result = self.finish();
        self.shared.save_lost(0);
        // If everything is in tables, damage to a journal loses nothing and the next start has no journal to read.
        let flushed = result.is_ok().then(|| self.on_disk(|store, _| store.flush_all()));
        if let Some(store) = self.shared.store.load().as_ref() {
            store.note_tables();
        }
        self.shared.store.store(Arc::new(None));
        let is_flushed = match flushed {
            Some(Ok(is_flushed)) => is_flushed,
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot flush the activity log; its newest records stay in the journal");
                false
            }
            None => false,
        };
        result.and_then(|()| recover::close(&self.dir, is_flushed))
    }

    /// Gathers entries until the gathering time is over, a sender waits for them, or the batch is full.
    fn gather(&mut self) {
        let time = GATHER.saturating_sub(self.hindered).max(MIN_GATHER).as_micros() as u64;
        let began = self.now();
        let mut late = Duration::ZERO;
        loop {
            // Entries that arrived during the last commit have already waited that long.
            let until = self.batch_from.unwrap_or(began) + time;
            let step = Duration::from_micros(until.saturating_sub(self.now())).min(STEP);
            if step.is_zero() {
                break;
            }
            let parked = Instant::now();
            thread::park_timeout(step);
            let slept = parked.elapsed();
            late = late.max(slept.saturating_sub(step));
            let was_woken = slept < step;
            if was_woken
                || self.take_in() == Found::Full
                || self.closing
                || self.unwritten.is_some()
            {
                break;
            }
            // The sync may be late. Written records survive a crash of this process, but not of the machine.
            let age = self.now().saturating_sub(self.batch_from.unwrap_or(u64::MAX));
            if self.hindered > SLOW_DELAY && age > WRITE_EARLY {
                self.write();
            }
        }
        self.hindered = self.hindered.max(late);
    }

    /// Sleeps until an entry arrives.
    fn sleep(&mut self) {
        self.shared.asleep.store(true, Ordering::SeqCst);
        // Either the sender finds the flag set, or this final check finds the sent entry.
        fence(Ordering::SeqCst);
        let is_idle = self.take_in() == Found::Nothing
            && !self.shared.in_flight.has_unmarked()
            && self.appender.pending() == 0
            && !self.refusals.is_open();
        if is_idle && !self.closing {
            thread::park();
            self.shared.end_sleep();
            self.queue_from = self.shared.durable_until.load(Ordering::SeqCst);
        } else {
            self.shared.asleep.store(false, Ordering::SeqCst);
            self.publish_durable();
        }
    }

    /// Writes at most one batch of the queued entries.
    fn round(&mut self) -> Found {
        let found = self.take_in();
        let start = Instant::now();
        let any = self.appender.pending() > 0
            || self.shared.in_flight.has_unmarked()
            || self.refusals.unmarked() > 0;
        self.write();
        self.sync();
        let took = if any { start.elapsed() } else { Duration::ZERO };
        self.hindered = took.max(self.hindered - self.hindered / DELAY_DECAY);
        if found == Found::Nothing && any { Found::Some } else { found }
    }

    /// Writes everything submitted before shutdown.
    fn finish(&mut self) -> Result<(), StoreError> {
        loop {
            if let Some(unwritten) = &self.unwritten {
                let result = match unwritten.stage {
                    Stage::Write => self.reopen(),
                    Stage::Sync => {
                        Err(StoreError::Io(io::Error::other(self.shared.failure_text())))
                    }
                };
                if let Err(error) = result {
                    self.lose_stuck();
                    return Err(error);
                }
            }
            if self.round() == Found::Nothing
                && self.unwritten.is_none()
                && !self.report_lost()
                && !self.record_counts()
            {
                return Ok(());
            }
        }
    }
}
