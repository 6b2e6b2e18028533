//! The way into the log and out of it: room is reserved before a call is sent, the entry is
//! submitted after (ACT-2), and a query sees what was answered before it (ACT-5).
//!
//! A call's side waits for no other call: it takes room from a counter, adds to a queue, and enters the
//! calls in flight under a lock of its own thread. Writing is the thread's work (`writer`), reading that
//! of `view`; what a call does with its place is in `slot`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::clock::unix_micros;
use super::config::{Config, OnFailure, Retention};
use super::error::{NotAdmitted, QueryError};
use super::health::{Health, Standing};
use super::query::{Filter, Listing, Page};
use super::record::{Entry, Id, Record};
use super::shared::{Shared, WriterCommand};
use super::slot::Slot;
use super::stats::{Period, Summary};
use super::store::StoreError;
use super::verify::{Report, verify};
use super::view::View;

/// How long a call waits for room.
const RESERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a query waits for records that are on their way.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a flush checks whether the log has failed meanwhile.
const FLUSH_POLL: Duration = Duration::from_millis(100);

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

impl Activity {
    /// The settings it was opened with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The node has this name in its fleet: records say so from now on. Only the first name counts.
    pub fn set_node_name(&self, name: &str) {
        let _ = self.shared.node_name.set(name.into());
    }

    /// The name of the node in its fleet, where there is one.
    #[must_use]
    pub fn node_name(&self) -> Option<&str> {
        self.shared.node_name.get().map(|name| &**name)
    }

    /// From now on records are kept so long.
    pub fn keep_for(&self, retention: Retention) {
        self.shared.retention.store(Arc::new(retention));
        self.shared.pruner.get().map(Thread::unpark).unwrap_or_default();
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
            |counted| Slot { shared: Arc::clone(shared), counted, epoch: None, in_flight: None };
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
    /// A view keeps the store as it was: who waits for something else, such as an export for its
    /// client, drops it meanwhile. A store that failed is opened again only when none is left.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn stored(&self) -> Result<View, QueryError> {
        let store = self.shared.store.load_full();
        let store = store.as_ref().as_ref().ok_or(QueryError::Busy)?;
        Ok(View::new(store.snapshot())?.named(self.shared.node_name.get().cloned()))
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

    /// Verifies the chain as it is now; `progress` gets how many of how many records are done.
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
            .extend(self.shared.ledger.unreported(self.shared.lost.load(Ordering::Relaxed)));
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
