//! The way into the log and out of it: room is reserved before a call is sent, the entry is
//! submitted after (ACT-2), and a query sees what was answered before it (ACT-5).
//!
//! A call's side takes no lock that two calls share: a counter for room, a queue, two counters
//! for queries. Writing is the thread's work (`writer`), reading that of `view`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use thiserror::Error;
use tokio::sync::oneshot;

use super::clock;
use super::config::{Config, Durability, OnFailure};
use super::durable::Durable;
use super::lost::LossTally;
use super::query::{Filter, Listing, Page};
use super::record::{Entry, Id, Record};
use super::recover::{self, Reading};
use super::shared::{Shared, WriterCommand};
use super::stats::{Period, Summary};
use super::store::StoreError;
use super::threads::{Writer, count_what_is_lost, watch_the_disk};
use super::verify::{Report, verify};
use super::view::View;
use super::writer;
use crate::os::private;

/// How long a call waits for room.
const RESERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a query waits for records that are on their way.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a flush looks whether the log has failed meanwhile.
const FLUSH_POLL: Duration = Duration::from_millis(100);

/// Why a call may not go out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotAdmitted {
    /// The log cannot be written, and `on_failure` is `refuse`.
    #[error("the activity log cannot be written: {0}")]
    Failed(String),
    /// There was no room within the time limit.
    #[error("the activity log cannot keep up")]
    Full,
    /// The log is closed: the proxy is going down.
    #[error("the activity log is closed")]
    Closed,
}

/// Why a question has no answer.
#[derive(Debug, Error)]
pub enum QueryError {
    /// The log cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The records on their way did not arrive within the time limit.
    #[error("the activity log is busy")]
    Busy,
}

/// What calls have of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It is written.
    Ok,
    /// It cannot be written, and calls go on (`on_failure: continue`).
    Degraded,
    /// It cannot be written, and calls are refused.
    Failed,
}

/// How the log is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Health {
    /// What calls have of it.
    pub state: Standing,
    /// Why it cannot be written, if it cannot.
    #[schema(required)]
    pub failed: Option<String>,
    /// Entries that could not be recorded, since the log was begun.
    pub lost: u64,
    /// Calls under way or waiting to be written.
    pub queued: usize,
    /// The last record that is durable.
    pub durable_seq: u64,
    /// For how many milliseconds, at most, the oldest record that is not durable yet has been on its
    /// way. From 35 on replies wait.
    pub lag_ms: u64,
    /// The longest that the disk took for one batch since the start, in milliseconds.
    pub longest_sync_ms: u64,
    /// Records written since the start.
    pub written: u64,
    /// The bytes the log takes on disk.
    pub disk_bytes: u64,
}

/// The log, for calls and queries. Clones share it.
#[derive(Clone)]
pub struct Activity {
    pub(super) shared: Arc<Shared>,
}

impl std::fmt::Debug for Activity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Activity").field("health", &self.health()).finish()
    }
}

/// Room for one call's entry. Dropped without an entry, it gives the room back.
pub struct Slot {
    pub(super) shared: Arc<Shared>,
    /// False for a slot beyond the room, given out while the log is failed.
    pub(super) counted: bool,
    /// That of a call whose reply has left.
    pub(super) epoch: Option<u8>,
    /// That of a call that has begun.
    pub(super) ticket: Option<u64>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("counted", &self.counted).finish_non_exhaustive()
    }
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

    /// Like [`Self::open`], with two clocks that tell milliseconds: `wall` since 1970, which may be
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

    /// Like [`Self::open`], with a clock that tells milliseconds since 1970 and is believed.
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

    /// The settings it was opened with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Waits for room for one call, before it is sent (ACT-2).
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`]: the call must not be sent.
    pub async fn reserve(&self) -> Result<Slot, NotAdmitted> {
        let shared = &self.shared;
        if shared.is_closed.load(Ordering::Acquire) {
            return Err(NotAdmitted::Closed);
        }
        let slot =
            |counted| Slot { shared: Arc::clone(shared), counted, epoch: None, ticket: None };
        if !shared.refuses() && shared.take_room() {
            return Ok(slot(true));
        }
        let has_failed = shared.has_failed.notified();
        if !shared.refuses() {
            // It need not gather any longer.
            shared.wake();
            tokio::select! {
                permit = shared.room.acquire() => match permit {
                    Ok(permit) => {
                        permit.forget();
                        return Ok(slot(true));
                    }
                    Err(_) => return Err(NotAdmitted::Closed),
                },
                () = has_failed => {}
                () = tokio::time::sleep(RESERVE_TIMEOUT) => return Err(NotAdmitted::Full),
            }
        }
        match shared.config.on_failure {
            OnFailure::Refuse => Err(NotAdmitted::Failed(shared.failure_text())),
            OnFailure::Continue => Ok(slot(shared.take_room())),
        }
    }

    /// Records something that is not a call, beyond the room if there is none: such entries are
    /// few, and clients cannot make them.
    pub fn note(&self, entry: impl Into<Box<Entry>>) {
        let mut entry = entry.into();
        if entry.draft.started == 0 {
            entry.draft.started = unix_micros();
        }
        let counted = self.shared.take_room();
        self.shared.send(WriterCommand::Entry { entry, ticket: None, done: None, counted });
        self.shared.wake_if_asleep();
    }

    /// A page of records, newest first. Blocks: for a thread that may wait.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, QueryError> {
        self.read_by(|view| view.list(filter, page))
    }

    /// The record with this id, if it is kept. Blocks.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn get(&self, id: Id) -> Result<Option<Record>, QueryError> {
        self.read_by(|view| view.get(id))
    }

    /// How many records a filter means. Blocks.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn count(&self, filter: &Filter) -> Result<u64, QueryError> {
        self.read_by(|view| view.count(filter))
    }

    /// What a period that ends at `now` (microseconds since 1970) came to. Blocks.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn summary(&self, period: Period, now: u64) -> Result<Summary, QueryError> {
        self.read_by(|view| view.summary(period, now))
    }

    /// Reads the log as it is now; damage that is met is looked into.
    fn read_by<T>(
        &self,
        read: impl FnOnce(&View) -> Result<T, StoreError>,
    ) -> Result<T, QueryError> {
        let result = self.view().and_then(|view| Ok(read(&view)?));
        if let Err(QueryError::Store(StoreError::Damaged { .. })) = &result {
            self.shared.suspect();
        }
        result
    }

    /// The log as it is now, with every record whose reply ended before (ACT-5). Blocks.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn view(&self) -> Result<View, QueryError> {
        let deadline = Instant::now() + QUERY_TIMEOUT;
        if !self.shared.read_barrier.wait(deadline) {
            return Err(QueryError::Busy);
        }
        if !self.shared.refuses() {
            let (answer, answered) = mpsc::sync_channel(1);
            if self.shared.queue.send(WriterCommand::Barrier(answer)).is_ok() {
                self.shared.wake();
                match answered.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => {}
                    Err(RecvTimeoutError::Timeout) => return Err(QueryError::Busy),
                }
            }
        }
        self.stored()
    }

    /// The log as it is stored now; records on their way may be missing. Blocks.
    ///
    /// A view keeps the store as it was: whoever waits for someone else, such as an export for its
    /// client, lets it go meanwhile. A store that failed is opened again only when none is left.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn stored(&self) -> Result<View, QueryError> {
        let store = self.shared.store.load_full();
        let store = store.as_ref().as_ref().ok_or(QueryError::Busy)?;
        Ok(View::new(store.snapshot())?)
    }

    /// Waits until everything submitted so far is durable. Blocks.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted::Failed`] if it cannot be made so.
    pub fn flush(&self) -> Result<(), NotAdmitted> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.shared.queue.send(WriterCommand::Flush(answer)).map_err(|_| NotAdmitted::Closed)?;
        self.shared.wake();
        loop {
            let answer = answered.recv_timeout(FLUSH_POLL);
            if self.shared.refuses() {
                return Err(NotAdmitted::Failed(self.shared.failure_text()));
            }
            match answer {
                Ok(()) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(NotAdmitted::Closed),
            }
        }
    }

    /// Verifies the chain as it is now; `progress` is told how many of how many records are done.
    /// Blocks.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn verify(&self, progress: impl FnMut(u64, u64)) -> Result<Report, QueryError> {
        let mut report = self.read_by(|view| verify(view, None, progress))?;
        if !report.is_sound() {
            self.shared.suspect();
        }
        report
            .unrecorded
            .extend(self.shared.ledger.untold(self.shared.lost.load(Ordering::Relaxed)));
        Ok(report)
    }

    /// What calls have of the log now.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let shared = &self.shared;
        if shared.is_closed.load(Ordering::Acquire) {
            return Standing::Failed;
        }
        match (shared.refuses(), shared.config.on_failure) {
            (false, OnFailure::Refuse | OnFailure::Continue) => Standing::Ok,
            (true, OnFailure::Refuse) => Standing::Failed,
            (true, OnFailure::Continue) => Standing::Degraded,
        }
    }

    /// How the log is.
    #[must_use]
    pub fn health(&self) -> Health {
        let shared = &self.shared;
        Health {
            state: self.standing(),
            failed: shared.failure(),
            lost: shared.lost.load(Ordering::Relaxed),
            queued: shared.waiting(),
            durable_seq: shared.durable_seq.load(Ordering::Relaxed),
            lag_ms: shared.lag(Instant::now()).as_millis() as u64,
            longest_sync_ms: shared.disk_longest.load(Ordering::Relaxed) / 1000,
            written: shared.written.load(Ordering::Relaxed),
            disk_bytes: shared.disk_bytes.load(Ordering::Relaxed),
        }
    }
}

impl Slot {
    /// Marks the end of the reply, for a call whose entry comes later (a verdict reached beside
    /// the forwarding): queries from now on wait for it (ACT-5).
    pub fn replied(&mut self) {
        if self.epoch.is_none() {
            self.epoch = Some(self.shared.read_barrier.enter());
        }
    }

    /// Hands the entry over: never waits, never fails. Unless durability is `grouped` it returns what
    /// the last chunk has to wait for.
    pub fn submit(mut self, entry: impl Into<Box<Entry>>) -> Option<Durable> {
        self.hand_over(entry.into())
    }

    pub(super) fn hand_over(&mut self, entry: Box<Entry>) -> Option<Durable> {
        let (sender, durable) = match self.shared.config.durability {
            Durability::Grouped => (None, None),
            Durability::BeforeReply | Durability::BeforeSend => {
                let (sender, done) = oneshot::channel();
                (Some(sender), Some(Durable { shared: Arc::clone(&self.shared), done }))
            }
        };
        // The writer gives the room back once it has written the entry.
        let counted = std::mem::take(&mut self.counted);
        let shared = &self.shared;
        if shared.refuses() && (!counted || shared.is_over.load(Ordering::Acquire)) {
            shared.lost.fetch_add(1, Ordering::Relaxed);
            shared.room.add_permits(usize::from(counted));
            return durable;
        }
        let ticket = self.ticket.take();
        self.send(WriterCommand::Entry { entry, ticket, done: sender, counted });
        durable
    }

    /// Sends a message, and wakes the writer, which does not gather while someone waits.
    pub(super) fn send(&self, message: WriterCommand) {
        let waits = match &message {
            WriterCommand::Begun { done, .. } | WriterCommand::Entry { done, .. } => done.is_some(),
            WriterCommand::Behind(_)
            | WriterCommand::Barrier(_)
            | WriterCommand::Flush(_)
            | WriterCommand::Cut(..)
            | WriterCommand::Lost
            | WriterCommand::Damaged(_)
            | WriterCommand::Close => true,
        };
        self.shared.send(message);
        if waits {
            self.shared.wake();
        } else {
            self.shared.wake_if_asleep();
        }
    }

    pub(super) fn leave_epoch(&mut self) {
        if let Some(epoch) = self.epoch.take() {
            self.shared.read_barrier.leave(epoch);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.leave_epoch();
        if self.counted {
            self.shared.room.add_permits(1);
        }
    }
}

fn unix_millis() -> u64 {
    unix_micros() / 1000
}

fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
