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

mod failing;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use self::failing::{Stage, Stuck};
use super::append::{Appender, Prepared, keys};
use super::begun::{self, Unfinished};
use super::chain_tip::{ChainTip, ChainTipFile};
use super::clock;
use super::lost;
use super::recover::{self, Lock, OpenLog};
use super::redact::Redactor;
use super::shared::{Shared, WriterCommand};
use super::store::{Batch, Space, Store, StoreError};
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
/// Where the oldest entry that is not durable may be older than this, replies wait until their own
/// is. Above what [`GATHER`] makes of it, and below the 50 ms that are promised (ACT-3) by what a
/// thread that wants a core is commonly kept waiting for one.
pub(super) const OVERRUN: Duration = Duration::from_millis(35);
/// How long the thread gathers in vain before it sleeps until it is woken.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// A batch is closed at so many records.
const BATCH_RECORDS: u64 = 8192;
/// A batch is closed at so many bytes.
const BATCH_BYTES: usize = 8 << 20;
/// How often the size of the log is asked for.
const SIZE_EVERY: Duration = Duration::from_secs(1);
/// What the writer waits for the disk longer than this is told in the log.
pub(super) const SLOW_DISK: Duration = Duration::from_secs(1);
/// Records beyond `max_records`, and parts of it, before the pruner is woken.
const SLACK: u64 = 64;

/// Opens the log in `dir` and starts its thread.
pub(super) fn start(
    dir: &Path,
    shared: Arc<Shared>,
    messages: Receiver<WriterCommand>,
) -> Result<JoinHandle<Result<(), StoreError>>, StoreError> {
    let OpenLog { lock, store, mut head } = recover::open(dir)?;
    let view = View::new(store.snapshot())?;
    let mut appender = Appender::resume(&view, Redactor::new(&shared.config.redact_keys))?;
    let left = begun::settle(&store, &mut appender)?;
    let mark = appender.mark();
    if left.calls > 0 {
        head.write(mark)?;
        tracing::warn!(
            calls = left.calls,
            "calls were under way when the process before this one ended: they are on record as unknown"
        );
    }
    shared.tickets.store(left.next_ticket, Ordering::Relaxed);
    let began = shared.micros(Instant::now());
    shared.durable_until.store(began, Ordering::SeqCst);
    shared.asleep.store(false, Ordering::SeqCst);
    let _ = shared.opened.set(clock::Opened { at: (shared.clock)(), end: view.end()?.stored_ms });
    shared.lost.store(shared.ledger.open(dir, lost::told(&view)?)?, Ordering::Relaxed);
    shared.send(WriterCommand::Lost);
    shared.durable_seq.store(mark.seq, Ordering::Relaxed);
    shared.live.wrote(mark.seq);
    shared.disk_bytes.store(store.disk_bytes(), Ordering::Relaxed);
    shared.store.store(Arc::new(Some(store)));
    let run = Run {
        shared,
        dir: dir.to_path_buf(),
        lock: Some(lock),
        messages,
        appender,
        head,
        first: view.first(),
        in_flight: Unfinished::default(),
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

/// The thread's state.
struct Run {
    shared: Arc<Shared>,
    dir: PathBuf,
    /// `None` only while the log is mended.
    lock: Option<Lock>,
    messages: Receiver<WriterCommand>,
    appender: Appender,
    head: ChainTipFile,
    /// The first record that is kept.
    first: u64,
    /// The calls that have begun and not ended.
    in_flight: Unfinished,
    /// The room of the entries in the batch under way.
    room: usize,
    /// Who waits for the batch under way to be durable.
    waiting: Vec<oneshot::Sender<()>>,
    /// What is written but not durable.
    unsynced: Option<ChainTip>,
    /// What could not be written.
    stuck: Option<Stuck>,
    /// What is in the queue came later than this, in microseconds since `base`: when it was last
    /// seen empty, mostly.
    queue_from: u64,
    /// Whether a [`WriterCommand::Behind`] is in the queue.
    sent_behind: bool,
    /// The same moment of what was taken out of it and is not durable; `None` for nothing.
    batch_from: Option<u64>,
    /// The longest that a commit took of late, or that this thread was kept waiting for a core.
    hindered: Duration,
    /// When the size of the log was last asked for.
    sized: Instant,
    closing: bool,
}

/// What a round found in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Some,
    /// A whole batch: there is more.
    Full,
}

/// However the thread ends, nobody waits for it any longer.
struct Gone(Arc<Shared>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.room.close();
        self.0.batch_done.notify_waiters();
        self.0.live.ring();
    }
}

impl Run {
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

    fn now(&self) -> u64 {
        self.shared.micros(Instant::now())
    }

    /// Tells replies how far the log is.
    fn tell_durable(&self) {
        let until = self.batch_from.unwrap_or(self.queue_from);
        self.shared.durable_until.store(until, Ordering::Release);
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
        if self.take_in() == Found::Nothing && !self.closing {
            thread::park();
            self.shared.rouse();
            self.queue_from = self.shared.durable_until.load(Ordering::SeqCst);
        } else {
            self.shared.asleep.store(false, Ordering::SeqCst);
            self.tell_durable();
        }
    }

    /// Writes what is in the queue, one batch at most.
    fn round(&mut self) -> Found {
        let found = self.take_in();
        let start = Instant::now();
        let any = self.appender.pending() > 0 || self.in_flight.unmarked_bytes() > 0;
        self.write();
        self.sync();
        let took = if any { start.elapsed() } else { Duration::ZERO };
        self.hindered = took.max(self.hindered - self.hindered / FORGET);
        if found == Found::Nothing && any { Found::Some } else { found }
    }

    /// Makes the batch longer by what is in the queue, up to a whole one.
    fn take_in(&mut self) -> Found {
        let mut found = Found::Nothing;
        let mut looked = Some(self.now());
        while self.stuck.is_none() {
            let Ok(message) = self.messages.try_recv() else {
                match looked {
                    Some(moment) => {
                        self.queue_from = moment;
                        break;
                    }
                    // What comes after the last message is to be known to come after this.
                    None => {
                        looked = Some(self.now());
                        continue;
                    }
                }
            };
            looked = None;
            self.batch_from.get_or_insert(self.queue_from);
            match message {
                WriterCommand::Begun { ticket, entry, done } => {
                    self.in_flight.begin(ticket, entry);
                    self.waiting.extend(done);
                }
                WriterCommand::Entry { entry, ticket, done, counted } => {
                    let entry = match ticket {
                        Some(ticket) => self.in_flight.end(ticket, entry, &mut self.appender),
                        None => entry,
                    };
                    self.appender.push(&entry, (self.shared.clock)());
                    self.waiting.extend(done);
                    self.room += usize::from(counted);
                }
                WriterCommand::Barrier(answer) => {
                    self.write();
                    let _ = answer.send(());
                }
                WriterCommand::Flush(answer) => {
                    self.write();
                    self.sync();
                    let _ = answer.send(());
                }
                WriterCommand::Cut(cut, answer) => {
                    let now = (self.shared.clock)();
                    self.appender.push(&cut.draft(now).into(), now);
                    self.appender.also(|batch| batch.put(Space::State, keys::FIRST, cut.value()));
                    self.write();
                    self.first = cut.first;
                    let _ = answer.send(());
                }
                WriterCommand::Lost => {
                    self.tell_lost();
                }
                WriterCommand::Damaged(table) => {
                    self.write();
                    self.sync();
                    self.suspect(table);
                }
                WriterCommand::Close => self.closing = true,
                WriterCommand::Behind(moment) => {
                    (self.queue_from, self.sent_behind) = (moment, false);
                }
            }
            found = Found::Some;
            let bytes = self.appender.pending_bytes() + self.in_flight.unmarked_bytes();
            if self.appender.pending() >= BATCH_RECORDS || bytes >= BATCH_BYTES {
                found = Found::Full;
                // The queue may not be seen empty for long.
                if !std::mem::replace(&mut self.sent_behind, true) {
                    self.shared.send(WriterCommand::Behind(self.now()));
                }
                break;
            }
        }
        self.tell_durable();
        found
    }

    /// Writes the batch that was made.
    fn write(&mut self) {
        if self.in_flight.unmarked_bytes() > 0 {
            self.in_flight.mark(&mut self.appender, (self.shared.clock)());
        }
        let Some(prepared) = self.appender.take() else { return };
        let room = std::mem::take(&mut self.room);
        let result = self.on_disk(|store, _| store.commit(prepared.batch.clone()));
        match result {
            Ok(()) => {
                self.unsynced = Some(prepared.mark);
                self.wrote(prepared.records, room);
            }
            Err(error) => self.fail(prepared, room, &error, Stage::Write),
        }
    }

    fn wrote(&mut self, records: u64, room: usize) {
        self.shared.written.fetch_add(records, Ordering::Relaxed);
        self.shared.room.add_permits(room);
        // A batch may hold marks alone, before there is any record.
        let kept = (self.appender.mark().seq + 1).saturating_sub(self.first);
        let most = self.shared.config.max_records;
        if most > 0 && kept > most + (most / SLACK).max(SLACK) {
            // It looks every minute anyway: waking it too often costs nothing but its look.
            self.shared.pruner.get().map(thread::Thread::unpark).unwrap_or_default();
        }
        if self.shared.live.wrote(self.appender.mark().seq) {
            self.shared.readers.wake();
        }
    }

    /// Makes durable what was written, and moves the head.
    fn sync(&mut self) {
        if self.stuck.is_some() {
            return;
        }
        if let Some(mark) = self.unsynced.take() {
            let result = self.on_disk(|store, head| {
                store.sync()?;
                head.write(mark)
            });
            if let Err(error) = result {
                let prepared = Prepared { batch: Batch::default(), mark, records: 0, bytes: 0 };
                self.fail(prepared, 0, &error, Stage::Sync);
                return;
            }
            self.shared.durable_seq.store(mark.seq, Ordering::Relaxed);
            self.tell_size();
        }
        for waiting in self.waiting.drain(..) {
            let _ = waiting.send(());
        }
        self.batch_from = None;
        self.tell_durable();
        self.shared.batch_done.notify_waiters();
    }

    /// Does something on the disk; how long that takes can be seen from outside.
    fn on_disk<T>(
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

    fn disk_begins(&self) -> Instant {
        let now = Instant::now();
        self.shared.disk_since.store(self.shared.micros(now), Ordering::Release);
        now
    }

    fn disk_ended(&self, begun: Instant) {
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

    fn tell_size(&mut self) {
        if self.sized.elapsed() >= SIZE_EVERY
            && let Some(store) = self.shared.store.load().as_ref()
        {
            self.shared.disk_bytes.store(store.disk_bytes(), Ordering::Relaxed);
            self.sized = Instant::now();
        }
    }
}
