//! Handle to the log for calls and queries. Capacity is reserved before a call is sent and its entry
//! submitted afterwards (ACT-2); a query sees every call that was answered before it (ACT-5).
//!
//! Calls do not wait for each other: a call takes a permit from a counter, sends to a queue, and registers as in flight
//! under its thread's own lock. The writer thread writes (`writer`), [`View`] reads, and [`Slot`] is a call's
//! reservation: the call is marked when it is sent, and its entry is submitted when it ends.
//!
//! Under `durability: grouped`, a reply is sent immediately as long as the log keeps up: everything submitted more than
//! [`OVERRUN`] ago is then durable, as shown by an atomic that only the writer sets. If the log is behind, the reply
//! waits until its own record is durable (ACT-1, ACT-3). Nothing guarantees that the writer thread is scheduled within
//! 50 ms after a reply was sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::clock::unix_micros;
use super::config::{Config, Durability, OnFailure, Retention};
use super::in_flight::CallPlace;
use super::query::{Filter, Listing, Page};
use super::record::{Entry, Id, Operation, Record};
use super::shared::{Health, NotAdmitted, QueryError, Shared, Standing, WriterCommand};
use super::stats::{Period, Summary};
use super::store::StoreError;
use super::verify::{Report, verify};
use super::view::View;

/// Maximum time that a call waits for a permit.
const RESERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time that a query waits for records in flight.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which a flush checks whether the log has failed.
const FLUSH_POLL: Duration = Duration::from_millis(100);

/// Handle to the log. Clones share it.
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
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Sets the node's name in its fleet, which later records carry. Only the first call has an effect.
    pub fn set_node_name(&self, name: &str) {
        let _ = self.shared.node_name.set(name.into());
    }

    /// The node's name in its fleet, if it has one.
    pub fn node_name(&self) -> Option<&str> {
        self.shared.node_name.get().map(|name| &**name)
    }

    /// Changes the retention limits.
    pub fn set_retention(&self, retention: Retention) {
        self.shared.retention.store(Arc::new(retention));
        self.shared.pruner.get().map(Thread::unpark).unwrap_or_default();
    }

    /// Checks that the principal may write to the log now. Fails only while the log is over its budget, or its
    /// disk nearly full, and the principal has used more than its share (ACT-6); the error is the time after
    /// which to retry. Otherwise the check costs one relaxed load.
    pub fn within_share(&self, principal: &str) -> Result<(), Duration> {
        match self.shared.shares.is_under_pressure() {
            false => Ok(()),
            true => self.shared.shares.admit(principal, (self.shared.steady)()),
        }
    }

    /// Reserves capacity for one call before it is sent, waiting if necessary (ACT-2). On an error the call
    /// must not be sent.
    pub async fn reserve(&self) -> Result<Slot, NotAdmitted> {
        let shared = &self.shared;
        if shared.is_closed.load(Ordering::Acquire) {
            return Err(NotAdmitted::Closed);
        }
        let slot =
            |counted| Slot { shared: Arc::clone(shared), counted, epoch: None, in_flight: None };
        if !shared.cannot_write() && shared.try_reserve() {
            return Ok(slot(true));
        }
        let has_failed = shared.has_failed.notified();
        if !shared.cannot_write() {
            // Capacity is short, so the gathered batch is written now.
            shared.wake();
            tokio::select! {
                permit = shared.permits.acquire() => match permit {
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
            OnFailure::Continue => Ok(slot(shared.try_reserve())),
        }
    }

    /// Records an event that is not a call, even if this exceeds the capacity. Such events are rare, or bounded at
    /// their source.
    pub fn note(&self, entry: impl Into<Box<Entry>>) {
        let mut entry = entry.into();
        if entry.draft.started == 0 {
            entry.draft.started = unix_micros();
        }
        let counted = self.shared.try_reserve();
        self.shared.enqueue(WriterCommand::Entry { entry, ticket: None, done: None, counted });
        self.shared.wake_if_asleep();
    }

    /// Returns a page of records, newest first. Blocks.
    pub fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, QueryError> {
        self.with_view(|view| view.list(filter, page))
    }

    /// Returns the record with this id, if it is retained. Blocks.
    pub fn get(&self, id: Id) -> Result<Option<Record>, QueryError> {
        self.with_view(|view| view.get(id))
    }

    /// Counts the records that match a filter. Blocks.
    pub fn count(&self, filter: &Filter) -> Result<u64, QueryError> {
        self.with_view(|view| view.count(filter))
    }

    /// Summarizes the period that ends at `now` (microseconds since 1970). Blocks.
    pub fn summary(&self, period: Period, now: u64) -> Result<Summary, QueryError> {
        self.with_view(|view| view.summary(period, now))
    }

    /// Runs a query on a current view.
    fn with_view<T>(
        &self,
        read: impl FnOnce(&View) -> Result<T, StoreError>,
    ) -> Result<T, QueryError> {
        Ok(read(&self.view()?)?)
    }

    /// Returns a view that includes every call whose reply ended before this request (ACT-5). Blocks.
    pub fn view(&self) -> Result<View, QueryError> {
        let deadline = Instant::now() + QUERY_TIMEOUT;
        if !self.shared.read_barrier.wait(deadline) {
            return Err(QueryError::Busy);
        }
        if !self.shared.cannot_write() {
            let (sender, reply) = mpsc::sync_channel(1);
            if self.shared.queue.send(WriterCommand::Barrier(sender)).is_ok() {
                self.shared.wake();
                match reply.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => {}
                    Err(RecvTimeoutError::Timeout) => return Err(QueryError::Busy),
                }
            }
        }
        self.stored()
    }

    /// Returns a view of the stored records; records in flight may be missing. Damage found by the view is reported in
    /// the health. Blocks.
    ///
    /// A view keeps the store open, and a failed store is reopened only after all views are dropped. Drop the view
    /// before waiting for anything else, as an export does before it waits for its client.
    pub fn stored(&self) -> Result<View, QueryError> {
        let store = self.shared.store.load_full();
        let store = store.as_ref().as_ref().ok_or(QueryError::Busy)?;
        let snapshot = store.snapshot()?.reporting(&self.shared.damage);
        Ok(View::new(snapshot)?.named(self.shared.node_name.get().cloned()))
    }

    /// Waits until everything submitted so far is durable. Blocks.
    pub fn flush(&self) -> Result<(), NotAdmitted> {
        let (sender, reply) = mpsc::sync_channel(1);
        self.shared.queue.send(WriterCommand::Flush(sender)).map_err(|_| NotAdmitted::Closed)?;
        self.shared.wake();
        loop {
            let received = reply.recv_timeout(FLUSH_POLL);
            if self.shared.cannot_write() {
                return Err(NotAdmitted::Failed(self.shared.failure_text()));
            }
            match received {
                Ok(()) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(NotAdmitted::Closed),
            }
        }
    }

    /// Verifies the current chain; `progress` receives the number of verified records and the total. Blocks.
    pub fn verify(&self, progress: impl FnMut(u64, u64)) -> Result<Report, QueryError> {
        let mut report = self.with_view(|view| verify(view, None, progress))?;
        report
            .unrecorded
            .extend(self.shared.ledger.unreported(self.shared.lost.load(Ordering::Relaxed)));
        Ok(report)
    }

    /// State of the log, which determines whether calls proceed.
    pub(crate) fn state(&self) -> Standing {
        let shared = &self.shared;
        if shared.is_closed.load(Ordering::Acquire) {
            return Standing::Failed;
        }
        match (shared.cannot_write(), shared.config.on_failure) {
            (false, OnFailure::Refuse | OnFailure::Continue) => Standing::Ok,
            (true, OnFailure::Refuse) => Standing::Failed,
            (true, OnFailure::Continue) => Standing::Degraded,
        }
    }

    pub fn health(&self) -> Health {
        let shared = &self.shared;
        Health {
            state: self.state(),
            failed: shared.failure(),
            damaged: shared.damage.text(),
            lost: shared.lost.load(Ordering::Relaxed),
            queued: shared.waiting(),
            durable_seq: shared.durable_seq.load(Ordering::Relaxed),
            lag_ms: shared.lag(Instant::now()).as_millis() as u64,
            longest_sync_ms: shared.disk_longest.load(Ordering::Relaxed) / 1000,
            written: shared.written.load(Ordering::Relaxed),
            disk_bytes: shared.disk_bytes.load(Ordering::Relaxed),
            repaired: shared.repaired.load().as_ref().clone(),
        }
    }
    /// Confirms that the records up to `seq`, and no later ones, are stored elsewhere (`durability: fleet`) and may be
    /// removed here. Wakes the replies waiting for them. If this is never called, no record is held back.
    pub fn confirm(&self, seq: u64) {
        let shared = &self.shared;
        shared.confirmed.store(seq, Ordering::Release);
        let mut waiting = shared.unconfirmed.lock();
        while waiting.front().is_some_and(|(last, _)| *last <= seq) {
            if let Some((_, waiting)) = waiting.pop_front() {
                let _ = waiting.send(());
            }
        }
    }

    /// Suspends recording with a reason, because unconfirmed records cannot be kept, or resumes it (`None`). During the
    /// suspension `on_failure` decides whether calls proceed, and no call waits for confirmation.
    pub fn suspend(&self, why: Option<String>) {
        let shared = &self.shared;
        let Some(why) = why else {
            if shared.is_suspended.swap(false, Ordering::AcqRel) {
                shared.suspended.store(Arc::new(None));
                tracing::info!("activity recording resumed");
                shared.enqueue(WriterCommand::Lost);
                shared.wake();
            }
            return;
        };
        let is_new = !shared.is_suspended.load(Ordering::Acquire);
        if is_new {
            tracing::error!("activity recording suspended: {why}");
            shared.ledger.begin(&why, shared.lost.load(Ordering::Relaxed), (shared.clock)());
        }
        shared.suspended.store(Arc::new(Some(why)));
        shared.is_suspended.store(true, Ordering::Release);
        if is_new {
            shared.request_loss_save();
            shared.has_failed.notify_waiters();
            shared.batch_done.notify_waiters();
        }
        shared.unconfirmed.lock().clear();
    }

    pub fn durable_seq(&self) -> u64 {
        self.shared.durable_seq.load(Ordering::Acquire)
    }

    pub async fn durable_beyond(&self, seq: u64) {
        loop {
            let done = self.shared.batch_done.notified();
            if self.durable_seq() > seq {
                return;
            }
            done.await;
        }
    }
}

impl Shared {
    /// Holds back replies until everything that is durable now is also confirmed.
    pub(super) fn await_confirmation(&self, waiting: impl Iterator<Item = oneshot::Sender<()>>) {
        let last = self.durable_seq.load(Ordering::Acquire);
        let mut unconfirmed = self.unconfirmed.lock();
        for waiting in waiting {
            if last <= self.confirmed.load(Ordering::Acquire) {
                let _ = waiting.send(());
            } else {
                unconfirmed.push_back((last, waiting));
            }
        }
    }
}

/// Reservation for one call's entry. If it is dropped without an entry, it returns its permit.
pub struct Slot {
    pub(super) shared: Arc<Shared>,
    /// False for a slot without a permit, issued while the log has failed.
    pub(super) counted: bool,
    /// Read-barrier epoch; set when the reply is sent.
    pub(super) epoch: Option<u8>,
    /// Position among the calls in flight; set when the call is registered.
    pub(super) in_flight: Option<CallPlace>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("counted", &self.counted).finish_non_exhaustive()
    }
}

impl Slot {
    /// Whether the log is so far behind at `now` that a reply has to wait for its record (ACT-3).
    pub fn is_behind(&self, now: Instant) -> bool {
        self.shared.overruns(now)
    }

    /// Registers a call that is about to be sent, so that it is recorded even if the process ends first
    /// (ACT-1). Takes the content of `entry`; the outcome is added to the remaining draft. Read-only calls are
    /// registered only with `mark_reads`. With `before_send` this waits until the mark is durable. On an
    /// error the call must not be sent.
    pub async fn begin(&mut self, entry: &mut Box<Entry>) -> Result<(), NotAdmitted> {
        let Config { durability, on_failure, mark_reads, .. } = self.shared.config;
        let marks = match entry.draft.operation {
            Some(Operation::Write | Operation::Destructive) => true,
            Some(Operation::Read) | None => mark_reads,
        };
        if !marks {
            return Ok(());
        }
        if !self.enter(entry) {
            return Ok(());
        }
        let durable = match durability {
            Durability::Grouped | Durability::BeforeReply | Durability::Fleet => {
                self.shared.wake_if_asleep();
                return Ok(());
            }
            Durability::BeforeSend => {
                let (sender, done) = oneshot::channel();
                self.send(WriterCommand::Mark(sender));
                Durable { shared: Arc::clone(&self.shared), done }
            }
        };
        match (durable.wait().await, on_failure) {
            (Err(refused), OnFailure::Refuse) => Err(refused),
            (Ok(()), _) | (Err(_), OnFailure::Continue) => Ok(()),
        }
    }

    /// Registers a call like [`Self::begin`]. Used if the reply may be sent before the call's entry is complete.
    pub fn record_is_late(&mut self, entry: &mut Box<Entry>) {
        if self.epoch.is_some() && self.enter(entry) {
            self.shared.wake_if_asleep();
        }
    }

    /// Moves the known part of the entry to the calls in flight. Does so only once, and only for a slot with a permit.
    /// Returns true if it was moved; `entry` then holds the rest, to which the outcome is added.
    fn enter(&mut self, entry: &mut Box<Entry>) -> bool {
        if !self.counted || self.in_flight.is_some() {
            return false;
        }
        let rest = Entry { late: entry.late.take(), ..entry.draft.rest().into() };
        let known = std::mem::replace(entry, Box::new(rest));
        self.in_flight = Some(self.shared.in_flight.begin(known));
        true
    }

    /// Removes the call from the calls in flight. Returns its complete entry, and the ticket of its start mark,
    /// if it has one.
    fn leave(&mut self, rest: Box<Entry>) -> (Box<Entry>, Option<u64>) {
        let place = self.in_flight.take();
        match place.and_then(|place| self.shared.in_flight.end(place)) {
            Some((mut entry, ticket)) => {
                let Entry { draft, decisions, late, recording } = *rest;
                entry.recording = recording;
                entry.draft.end(&draft);
                entry.decisions.extend(decisions);
                entry.late = late;
                (entry, ticket)
            }
            None => (rest, None),
        }
    }

    /// Submits the entry, and waits until the last chunk of the reply may be sent (ACT-3), unless the reply was sent
    /// already. Call this right before sending that chunk; it costs one clock reading if the log keeps up. On an error
    /// the record may be lost.
    pub async fn submit_before_reply(mut self, entry: Box<Entry>) -> Result<(), NotAdmitted> {
        let has_left = self.epoch.is_some();
        let durable = self.enqueue(entry);
        self.leave_epoch();
        match durable {
            Some(durable) => durable.wait().await?,
            None if has_left => {}
            None => self.shared.clear_to_reply().await,
        }
        Ok(())
    }

    /// Marks the end of the reply of a call whose entry follows later, because the verdict is reached while the reply
    /// is forwarded. Later queries wait for the entry (ACT-5).
    pub fn replied(&mut self) {
        if self.epoch.is_none() {
            self.epoch = Some(self.shared.read_barrier.enter());
        }
    }

    /// Submits the entry. Never blocks and never fails. Unless durability is `grouped`, the reply's last chunk has to
    /// wait for the returned [`Durable`].
    pub fn submit(mut self, entry: impl Into<Box<Entry>>) -> Option<Durable> {
        self.enqueue(entry.into())
    }

    pub(super) fn enqueue(&mut self, entry: Box<Entry>) -> Option<Durable> {
        let (sender, durable) = match self.shared.config.durability {
            Durability::Grouped => (None, None),
            Durability::BeforeReply | Durability::BeforeSend | Durability::Fleet => {
                let (sender, done) = oneshot::channel();
                (Some(sender), Some(Durable { shared: Arc::clone(&self.shared), done }))
            }
        };
        let (entry, ticket) = self.leave(entry);
        // The writer returns the permit once it has written the entry.
        let counted = std::mem::take(&mut self.counted);
        let shared = &self.shared;
        if shared.cannot_write() && (!counted || shared.loses()) {
            // A stored mark is kept, because the outcome is not recorded.
            shared.lost.fetch_add(1, Ordering::Relaxed);
            shared.permits.add_permits(usize::from(counted));
            return durable;
        }
        self.send(WriterCommand::Entry { entry, ticket, done: sender, counted });
        durable
    }

    /// Sends a command, and wakes the writer immediately if someone waits for the command.
    pub(super) fn send(&self, message: WriterCommand) {
        let waits = match &message {
            WriterCommand::Entry { done, .. } => done.is_some(),
            _ => true,
        };
        self.shared.enqueue(message);
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
        // A slot without an entry belongs to a call that was not made. If its mark is already stored, the mark is kept.
        if let Some(place) = self.in_flight.take() {
            self.shared.in_flight.end(place);
        }
        if self.counted {
            self.shared.permits.add_permits(1);
        }
    }
}

/// Maximum age of the oldest entry that is not durable before replies wait. It exceeds the writer's gathering time, and
/// is shorter than the guaranteed 50 ms (ACT-3) by a typical scheduling delay.
const OVERRUN: Duration = Duration::from_millis(35);

/// Maximum time that a reply, or a call to be sent, waits for a log that is behind.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// Future durability of a submitted record (`before_reply`, `before_send`, `fleet`).
pub struct Durable {
    pub(super) shared: Arc<Shared>,
    pub(super) done: oneshot::Receiver<()>,
}

impl std::fmt::Debug for Durable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Durable").finish_non_exhaustive()
    }
}

impl Durable {
    /// Waits until the record is durable or the log has failed; the call is answered in either case (ACT-2).
    /// [`NotAdmitted::Failed`] if the record may be lost, [`NotAdmitted::Full`] at the time limit.
    pub async fn wait(self) -> Result<(), NotAdmitted> {
        self.shared.durable(self.done).await
    }
}

impl Shared {
    /// Upper bound of the time for which the oldest non-durable record has been waiting at `now`.
    pub(super) fn lag(&self, now: Instant) -> Duration {
        if self.asleep.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let until = self.durable_until.load(Ordering::Acquire);
        Duration::from_micros(self.micros(now).saturating_sub(until))
    }

    /// Whether the log is more than [`OVERRUN`] behind at `now`.
    pub(super) fn overruns(&self, now: Instant) -> bool {
        let until = self.durable_until.load(Ordering::Acquire);
        let late = self.micros(now) > until + OVERRUN.as_micros() as u64;
        late && !self.asleep.load(Ordering::Acquire) && self.can_become_durable()
    }

    /// Whether records in flight can become durable soon. If not, no call waits for them.
    fn can_become_durable(&self) -> bool {
        !self.cannot_write() && !self.is_closed.load(Ordering::Acquire)
    }

    /// If the log is behind, waits until everything submitted before is durable (ACT-3). Called after the
    /// entry is submitted and before the reply leaves, so that the log cannot fall behind unnoticed.
    pub(super) async fn clear_to_reply(&self) {
        let now = Instant::now();
        if !self.overruns(now) {
            return;
        }
        let submitted = self.micros(now);
        let wait = async {
            loop {
                let done = self.batch_done.notified();
                let is_durable = self.durable_until.load(Ordering::Acquire) > submitted;
                if is_durable || self.asleep.load(Ordering::Acquire) || !self.can_become_durable() {
                    return;
                }
                done.await;
            }
        };
        // The gathered batch is written now.
        self.wake();
        // When the limit is reached, the call is answered anyway, because it was sent (ACT-2).
        let _ = tokio::time::timeout(WAIT_LIMIT, wait).await;
    }

    /// Waits until a record is durable, or until it is known that it will not be durable soon. The call is answered in
    /// either case (ACT-2).
    pub(super) async fn durable(&self, done: oneshot::Receiver<()>) -> Result<(), NotAdmitted> {
        let has_failed = self.has_failed.notified();
        if self.cannot_write() {
            return Err(NotAdmitted::Failed(self.failure_text()));
        }
        tokio::select! {
            biased;
            done = tokio::time::timeout(WAIT_LIMIT, done) => match done {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) => Err(NotAdmitted::Failed("the records may be lost".into())),
                Err(_) => Err(NotAdmitted::Full),
            },
            () = has_failed => Err(NotAdmitted::Failed(self.failure_text())),
        }
    }
}
