//! The thread that writes: gathers what was submitted, makes one batch of it, commits, syncs,
//! moves the head (ACT-3, ACT-4).
//!
//! ```text
//!   Asleep ── an entry ──▶ Gathering (28 ms) ──▶ commit ──▶ sync ──▶ head ──▶ Gathering …
//!     ▲                        │ nothing for a second  │ a write fails
//!     └────────────────────────┘                       ▼
//!   Failed: the batch is kept, the store is opened again, and the batch is written if it is not
//!   there. After a failed sync it stays failed: nobody knows what the disk then holds.
//! ```
//!
//! It does not know calls, only entries; who may send them is `handle`'s affair.

mod batch;
mod failing;
mod state;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use self::batch::Found;
use self::state::{Stage, WriterState};
use super::append::Appender;
use super::clock;
use super::lost;
use super::recover::{self, OpenLog};
use super::redact::Redactor;
use super::shared::{Shared, WriterCommand};
use super::store::StoreError;
use super::unfinished;
use super::view::View;

/// How long after the first of them entries are durable where all is well: so long they are
/// gathered, less what a commit takes and by how much this thread gets a core too late. A sync costs
/// the processor as much as many records.
const GATHER: Duration = Duration::from_millis(28);
/// How long they are gathered on a slow disk, or where there is hardly a core for this thread.
const GATHER_LEAST: Duration = Duration::from_millis(5);
/// What a commit took, or a wake-up was late by, is forgotten by this part with each round.
const FORGET: u32 = 4;
/// Where a commit took longer of late, or this thread waited longer for a core, what is gathered is
/// written in between, too.
const HINDERED: Duration = Duration::from_millis(9);
/// But not before the first of it is so old, in microseconds: each write is a block of records.
const WRITE_EARLY: u64 = 8000;
/// What was submitted is encoded so often meanwhile: in small portions, that no core is taken from
/// calls for long, and while it is still in the caches.
const STEP: Duration = Duration::from_millis(4);
/// How long the thread gathers in vain before it sleeps until it is woken.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Opens the log in `dir` and starts its thread.
pub(super) fn start(
    dir: &Path,
    shared: Arc<Shared>,
    messages: Receiver<WriterCommand>,
) -> Result<JoinHandle<Result<(), StoreError>>, StoreError> {
    let OpenLog { lock, store, mut head } = recover::open(dir)?;
    let view = View::new(store.snapshot())?;
    let mut appender = Appender::resume(&view, Redactor::new(&shared.config.redact_keys))?;
    let left = unfinished::settle(&store, &mut appender)?;
    let tip = appender.tip();
    if left.calls > 0 {
        head.write(tip)?;
        tracing::warn!(
            calls = left.calls,
            "calls were under way when the process before this one ended: they are on record as unknown"
        );
    }
    let began = shared.micros(Instant::now());
    shared.durable_until.store(began, Ordering::SeqCst);
    shared.asleep.store(false, Ordering::SeqCst);
    let _ = shared.opened.set(clock::Opened { at: (shared.clock)(), end: view.end()?.stored_ms });
    shared.lost.store(shared.ledger.open(dir, lost::reported(&view)?)?, Ordering::Relaxed);
    shared.send(WriterCommand::Lost);
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
        head,
        first: view.first(),
        next_ticket: left.next_ticket,
        room: 0,
        waiting: Vec::new(),
        unsynced: None,
        stuck: None,
        queue_from: began,
        sent_behind: false,
        batch_from: None,
        hindered: Duration::ZERO,
        sized: Instant::now(),
        closing: false,
    };
    Ok(thread::Builder::new().name("activity".into()).spawn(move || run.run())?)
}

/// However the thread ends, nobody waits for it any longer.
struct Gone(Arc<Shared>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.room.close();
        self.0.batch_done.notify_waiters();
        self.0.live.wake_readers();
    }
}

impl WriterState {
    fn run(mut self) -> Result<(), StoreError> {
        let _gone = Gone(Arc::clone(&self.shared));
        let mut idle_since = Instant::now();
        while !self.closing {
            if self.stuck.is_some() {
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
        self.shared.store.store(Arc::new(None));
        result.and_then(|()| recover::close(&self.dir))
    }

    /// Takes entries in for a moment, unless someone waits for them or there is no more room.
    fn gather(&mut self) {
        let time = GATHER.saturating_sub(self.hindered).max(GATHER_LEAST).as_micros() as u64;
        let began = self.now();
        let mut late = Duration::ZERO;
        loop {
            // What came while the last batch was committed has waited for that already.
            let until = self.batch_from.unwrap_or(began) + time;
            let step = Duration::from_micros(until.saturating_sub(self.now())).min(STEP);
            if step.is_zero() {
                break;
            }
            let parked = Instant::now();
            thread::park_timeout(step);
            let slept = parked.elapsed();
            late = late.max(slept.saturating_sub(step));
            let is_woken = slept < step;
            if is_woken || self.take_in() == Found::Full || self.closing || self.stuck.is_some() {
                break;
            }
            // The sync may be late. What is written survives this process, if not the machine.
            let age = self.now().saturating_sub(self.batch_from.unwrap_or(u64::MAX));
            if self.hindered > HINDERED && age > WRITE_EARLY {
                self.write();
            }
        }
        self.hindered = self.hindered.max(late);
    }

    /// Sleeps until an entry comes.
    fn sleep(&mut self) {
        self.shared.asleep.store(true, Ordering::SeqCst);
        // Either the sender sees the flag, or this last look sees what was sent.
        fence(Ordering::SeqCst);
        let is_idle = self.take_in() == Found::Nothing && !self.shared.in_flight.has_unmarked();
        if is_idle && !self.closing {
            thread::park();
            self.shared.rouse();
            self.queue_from = self.shared.durable_until.load(Ordering::SeqCst);
        } else {
            self.shared.asleep.store(false, Ordering::SeqCst);
            self.publish_durable();
        }
    }

    /// Writes what is in the queue, one batch at most.
    fn round(&mut self) -> Found {
        let found = self.take_in();
        let start = Instant::now();
        let any = self.appender.pending() > 0 || self.shared.in_flight.has_unmarked();
        self.write();
        self.sync();
        let took = if any { start.elapsed() } else { Duration::ZERO };
        self.hindered = took.max(self.hindered - self.hindered / FORGET);
        if found == Found::Nothing && any { Found::Some } else { found }
    }

    /// Writes what was submitted before the end.
    fn finish(&mut self) -> Result<(), StoreError> {
        loop {
            if let Some(stuck) = &self.stuck {
                let result = match stuck.stage {
                    Stage::Write => self.reopen(),
                    Stage::Sync => {
                        Err(StoreError::Io(std::io::Error::other(self.shared.failure_text())))
                    }
                };
                if let Err(error) = result {
                    self.count_lost();
                    return Err(error);
                }
            }
            if self.round() == Found::Nothing && self.stuck.is_none() && !self.report_lost() {
                return Ok(());
            }
        }
    }
}
