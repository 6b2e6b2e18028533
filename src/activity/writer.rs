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
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use self::failing::{Stage, Stuck};
use super::append::{Appender, Prepared, keys};
use super::clock;
use super::head::{HeadFile, Mark};
use super::lost;
use super::query::Filter;
use super::recover::{self, Lock, Opened};
use super::redact::Redactor;
use super::shared::{Message, Shared};
use super::store::{Batch, Space, Store, StoreError};
use super::view::View;

/// How long entries are gathered before they are written, less what the two commits that an entry
/// may have to wait for take: a sync costs the processor as much as many records.
const GATHER: Duration = Duration::from_millis(28);
/// How long they are gathered on a slow disk.
const GATHER_LEAST: Duration = Duration::from_millis(5);
/// What was submitted is encoded so often meanwhile: in small portions, that no core is taken from
/// calls for long, and while it is still in the caches.
const STEP: Duration = Duration::from_millis(4);
/// A round that takes longer than this from its first entry holds further replies up: with the
/// time a reply takes to end, records are durable at most 50 ms after it.
pub(super) const OVERRUN: Duration = Duration::from_millis(40);
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
/// Records read back at a time for live readers.
const LIVE_READ: usize = 256;

/// Opens the log in `dir` and starts its thread.
pub(super) fn start(
    dir: &Path,
    shared: Arc<Shared>,
    messages: Receiver<Message>,
) -> Result<JoinHandle<Result<(), StoreError>>, StoreError> {
    let Opened { lock, store, head } = recover::open(dir)?;
    let view = View::new(store.snapshot())?;
    let appender = Appender::resume(&view, Redactor::new(&shared.config.redact_keys))?;
    let mark = appender.mark();
    let _ = shared.opened.set(clock::Opened { at: (shared.clock)(), end: view.end()?.stored_ms });
    shared.lost.store(shared.ledger.open(dir, lost::told(&view)?)?, Ordering::Relaxed);
    shared.send(Message::Lost);
    shared.durable_seq.store(mark.seq, Ordering::Relaxed);
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
        room: 0,
        waiting: Vec::new(),
        unsynced: None,
        stuck: None,
        live_seq: mark.seq,
        commit_took: Duration::ZERO,
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
    messages: Receiver<Message>,
    appender: Appender,
    head: HeadFile,
    /// The first record that is kept.
    first: u64,
    /// The room of the entries in the batch under way.
    room: usize,
    /// Who waits for the batch under way to be durable.
    waiting: Vec<oneshot::Sender<()>>,
    /// What is written but not durable.
    unsynced: Option<Mark>,
    /// What could not be written.
    stuck: Option<Stuck>,
    /// The last record that live readers were told of.
    live_seq: u64,
    /// How long the last commit took.
    commit_took: Duration,
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
        self.0.batch_since.store(0, Ordering::Release);
        self.0.room.close();
        self.0.batch_done.notify_waiters();
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
                Found::Full => self.begin(),
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

    /// Marks the beginning of a round.
    fn begin(&self) {
        self.shared.batch_since.store(self.shared.micros(Instant::now()), Ordering::Release);
    }

    /// Takes entries in for a moment, unless someone waits for them or there is no more room.
    fn gather(&mut self) {
        self.begin();
        let time = GATHER.saturating_sub(2 * self.commit_took).max(GATHER_LEAST);
        let until = Instant::now() + time;
        loop {
            let now = Instant::now();
            let step = until.saturating_duration_since(now).min(STEP);
            if step.is_zero() {
                return;
            }
            thread::park_timeout(step);
            let is_woken = now.elapsed() < step;
            if is_woken || self.take_in() == Found::Full || self.closing || self.stuck.is_some() {
                return;
            }
        }
    }

    /// Sleeps until an entry comes.
    fn sleep(&mut self) {
        self.shared.asleep.store(true, Ordering::SeqCst);
        // Either the sender sees the flag, or this last look sees what was sent.
        fence(Ordering::SeqCst);
        if self.round() == Found::Nothing && !self.closing {
            thread::park();
        }
        self.shared.asleep.store(false, Ordering::SeqCst);
        self.begin();
    }

    /// Writes what is in the queue, one batch at most.
    fn round(&mut self) -> Found {
        let found = self.take_in();
        let start = Instant::now();
        let any = self.appender.pending() > 0;
        self.write();
        self.sync();
        if any {
            self.commit_took = start.elapsed();
        }
        if found == Found::Nothing && any { Found::Some } else { found }
    }

    /// Makes the batch longer by what is in the queue, up to a whole one.
    fn take_in(&mut self) -> Found {
        let mut found = Found::Nothing;
        while self.stuck.is_none() {
            match self.messages.try_recv() {
                Ok(Message::Entry { entry, done, counted }) => {
                    self.appender.push(&entry, (self.shared.clock)());
                    self.waiting.extend(done);
                    self.room += usize::from(counted);
                }
                Ok(Message::Barrier(answer)) => {
                    self.write();
                    let _ = answer.send(());
                }
                Ok(Message::Flush(answer)) => {
                    self.write();
                    self.sync();
                    let _ = answer.send(());
                }
                Ok(Message::Cut(cut, answer)) => {
                    let now = (self.shared.clock)();
                    self.appender.push(&cut.draft(now).into(), now);
                    self.appender.also(|batch| batch.put(Space::State, keys::FIRST, cut.value()));
                    self.write();
                    self.first = cut.first;
                    let _ = answer.send(());
                }
                Ok(Message::Lost) => {
                    self.tell_lost();
                }
                Ok(Message::Damaged(table)) => {
                    self.write();
                    self.sync();
                    self.suspect(table);
                }
                Ok(Message::Close) => self.closing = true,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
            found = Found::Some;
            let (records, bytes) = (self.appender.pending(), self.appender.pending_bytes());
            if records >= BATCH_RECORDS || bytes >= BATCH_BYTES {
                return Found::Full;
            }
        }
        found
    }

    /// Writes the batch that was made.
    fn write(&mut self) {
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
        let (kept, most) = (self.appender.mark().seq - self.first, self.shared.config.max_records);
        if most > 0 && kept > most + (most / SLACK).max(SLACK) {
            // It looks every minute anyway: waking it too often costs nothing but its look.
            self.shared.pruner.get().map(thread::Thread::unpark).unwrap_or_default();
        }
        self.tell_live();
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
        self.shared.batch_since.store(0, Ordering::Release);
        self.shared.batch_done.notify_waiters();
    }

    /// Does something on the disk; how long that takes can be seen from outside.
    fn on_disk<T>(
        &mut self,
        work: impl FnOnce(&Store, &mut HeadFile) -> Result<T, StoreError>,
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
            self.shared.send(Message::Lost);
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

    fn tell_live(&mut self) {
        let mark = self.appender.mark();
        if self.shared.live.receiver_count() > 0
            && let Some(store) = self.shared.store.load().as_ref()
            && let Err(error) = self.read_back(store)
        {
            tracing::error!(%error, "activity cannot be read back");
        }
        self.live_seq = mark.seq;
    }

    fn read_back(&self, store: &Store) -> Result<(), StoreError> {
        let view = View::new(store.snapshot())?;
        let mut seen = self.live_seq;
        while seen + 1 < view.next() {
            let (records, last) = view.since(seen, &Filter::default(), LIVE_READ)?;
            seen = last;
            for record in records {
                let _ = self.shared.live.send(Arc::new(record));
            }
        }
        Ok(())
    }
}
