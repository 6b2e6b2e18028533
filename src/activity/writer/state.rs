//! State of the writer thread and the assembly of batches: encoding queued entries, committing, syncing and
//! updating the chain tip. Disk operations are timed for the watchdog.
//!
//! After a failure the writer keeps the batch that could not be written, has a damaged log repaired, reopens the store
//! and writes the batch. It counts lost entries and reports them when possible.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use mcpproxy_runtime::os::space;
use tokio::sync::oneshot;

use crate::bytes::unpack;
use crate::chain::{Appender, Prepared};
use crate::chain_tip::{ChainTip, ChainTipFile};
use crate::clock::AgeMarks;
use crate::config::Durability;
use crate::record::{Entry, Text};
use crate::recover::{Lock, OpenLog};
use crate::redact::Redactor;
use crate::refusals::{ClosedGroup, RefusalGroups};
use crate::salvage::{Repaired, Salvaged};
use crate::shared::{SLOW_DISK, Shared, WriterCommand};
use crate::shares::WrittenShare;
use crate::store::{Batch, Space, Store, StoreError};
use crate::view::View;
use crate::{codec, keys, recover, salvage, shares};

/// Interval at which the size of the log is measured.
const SIZE_EVERY: Duration = Duration::from_secs(1);
/// Excess over `max_records` at which retention is woken: more than this number, and more than 1/`SLACK` of the limit.
const SLACK: u64 = 64;

/// State owned by the writer thread.
pub(super) struct WriterState {
    pub(super) shared: Arc<Shared>,
    pub(super) dir: PathBuf,
    /// `None` only during a repair.
    pub(super) lock: Option<Lock>,
    pub(super) messages: Receiver<WriterCommand>,
    pub(super) appender: Appender,
    pub(super) tip_file: ChainTipFile,
    /// First retained record.
    pub(super) first: u64,
    /// Ticket of the next mark.
    pub(super) next_ticket: u64,
    /// Counted refusals without a record.
    pub(super) refusals: RefusalGroups,
    /// Budget use by principal in the pending batch.
    pub(super) written: HashMap<Box<str>, WrittenShare>,
    pub(super) ages: AgeMarks,
    /// Number of permits held by the pending batch.
    pub(super) permits: usize,
    /// Replies waiting for the pending batch to be durable.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// Tip of written records that are not durable yet.
    pub(super) unsynced: Option<ChainTip>,
    /// Batch that could not be written.
    pub(super) unwritten: Option<UnwrittenBatch>,
    /// Lower bound of the submission time of queued entries, in microseconds since `base`; usually the last
    /// time the queue was empty.
    pub(super) queue_from: u64,
    /// Whether the queue contains a [`WriterCommand::Behind`].
    pub(super) sent_behind: bool,
    /// Lower bound of the submission time of entries that were dequeued but are not durable; `None` if there
    /// are none.
    pub(super) batch_from: Option<u64>,
    /// Longest recent commit or scheduling delay.
    pub(super) hindered: Duration,
    /// Time of the last size measurement.
    pub(super) sized: Instant,
    pub(super) closing: bool,
}

/// A batch that could not be written.
pub(super) struct UnwrittenBatch {
    pub(super) prepared: Prepared,
    /// Number of permits held by its entries.
    pub(super) permits: usize,
    pub(super) since: Instant,
    pub(super) stage: Stage,
    /// Whether the log may be damaged, because the error did not come from the system.
    pub(super) suspect: bool,
    /// Whether the log has been checked since the failure, and is either undamaged or not repairable.
    pub(super) is_checked: bool,
    /// Whether everything in memory was flushed to tables, so that the journals are not needed.
    pub(super) is_flushed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The write failed; it can be retried.
    Write,
    Sync,
}

impl WriterState {
    pub(super) fn now(&self) -> u64 {
        self.shared.micros(Instant::now())
    }

    /// Publishes the durable position to replies.
    pub(super) fn publish_durable(&self) {
        let until = self.batch_from.unwrap_or(self.queue_from);
        self.shared.durable_until.store(until, Ordering::Release);
    }

    pub(super) fn wrote(&mut self, records: u64, permits: usize) {
        self.shared.written.fetch_add(records, Ordering::Relaxed);
        self.shared.permits.add_permits(permits);
        // A batch may hold only marks, before any record exists.
        let kept = (self.appender.tip().seq + 1).saturating_sub(self.first);
        let max = self.shared.retention.load().max_records;
        let is_known = self.shared.shares.is_over_budget();
        if max > 0 && kept > max + (max / SLACK).max(SLACK) && !is_known {
            // Retention runs every minute anyway; waking it too often costs only its check.
            self.shared.pruner.get().map(thread::Thread::unpark).unwrap_or_default();
        }
        if self.shared.live.wrote(self.appender.tip().seq) {
            self.shared.readers.wake();
        }
    }

    /// Runs a timed disk operation.
    pub(super) fn on_disk<T>(
        &mut self,
        work: impl FnOnce(&Store, &mut ChainTipFile) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let begun = self.disk_begins();
        let result = match self.shared.store.load().as_ref() {
            Some(store) => work(store, &mut self.tip_file),
            None => Err(StoreError::Io(std::io::Error::other("the store is closed"))),
        };
        self.disk_ended(begun);
        result
    }

    pub(super) fn disk_begins(&self) -> Instant {
        let now = Instant::now();
        self.shared.disk_since.store(self.shared.micros(now), Ordering::Release);
        now
    }

    pub(super) fn disk_ended(&self, begun: Instant) {
        let took = begun.elapsed();
        self.shared.disk_since.store(0, Ordering::Release);
        self.shared.disk_longest.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
        let was_stalled = self.shared.is_stalled.swap(false, Ordering::AcqRel);
        if was_stalled || took > SLOW_DISK {
            tracing::warn!(?took, "the activity log waited for the disk");
        }
        if was_stalled {
            self.shared.enqueue(WriterCommand::Lost);
        }
    }

    pub(super) fn publish_size(&mut self) {
        if self.sized.elapsed() >= SIZE_EVERY
            && let Some(store) = self.shared.store.load().as_ref()
        {
            self.shared.disk_bytes.store(store.disk_bytes(), Ordering::Relaxed);
            self.sized = Instant::now();
            self.publish_disk_space();
        }
    }

    /// Publishes whether the log's disk is almost full.
    fn publish_disk_space(&self) {
        // If the free space is unknown, a full disk is noticed at the next write.
        let Ok(disk) = space::disk(&self.dir) else { return };
        if self.shared.shares.set_disk_low(shares::is_low(disk.free, disk.total)) {
            let free_mb = disk.free >> 20;
            match shares::is_low(disk.free, disk.total) {
                true => tracing::warn!(
                    free_mb,
                    "the disk of the activity log is nearly full: principals beyond their share are refused"
                ),
                false => {
                    tracing::info!(free_mb, "the disk of the activity log has free space again")
                }
            }
        }
    }
}

/// Maximum number of records per batch.
const BATCH_RECORDS: u64 = 8192;
/// Maximum size of a batch in bytes.
const BATCH_BYTES: usize = 8 << 20;

/// Result of moving queued entries into one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Some,
    /// The batch is full, and more entries are queued.
    Full,
}

impl WriterState {
    /// Adds queued entries to the batch until it is full.
    pub(super) fn take_in(&mut self) -> Found {
        let mut found = Found::Nothing;
        let mut checked = Some(self.now());
        while self.unwritten.is_none() {
            let Ok(message) = self.messages.try_recv() else {
                match checked {
                    Some(moment) => {
                        self.queue_from = moment;
                        break;
                    }
                    // Entries sent after the last command are known to be newer than this moment.
                    None => {
                        checked = Some(self.now());
                        continue;
                    }
                }
            };
            checked = None;
            self.batch_from.get_or_insert(self.queue_from);
            match message {
                // The call is already in flight and is marked together with the batch.
                WriterCommand::Mark(done) => self.waiting.push(done),
                WriterCommand::Entry { entry, ticket, done, counted } => {
                    if let Some(ticket) = ticket {
                        let key = keys::call_mark(ticket);
                        self.appender.add_writes(|batch| batch.remove(Space::State, key));
                    }
                    if let Some(entry) = self.refusals.count(entry, (self.shared.steady)()) {
                        self.record(&entry);
                    }
                    self.waiting.extend(done);
                    self.permits += usize::from(counted);
                }
                WriterCommand::Barrier(answer) => {
                    self.record_counts();
                    self.write();
                    let _ = answer.send(());
                }
                WriterCommand::Flush(answer) => {
                    self.record_counts();
                    self.write();
                    self.sync();
                    let _ = answer.send(());
                }
                WriterCommand::Cut(cut, answer) => {
                    let now = (self.shared.clock)();
                    self.appender.push(&cut.draft(now).into(), now);
                    self.appender
                        .add_writes(|batch| batch.put(Space::State, keys::FIRST, cut.value()));
                    self.write();
                    self.first = cut.first;
                    let _ = answer.send(());
                }
                WriterCommand::Lost => {
                    self.report_lost();
                }
                WriterCommand::Damaged(file) => {
                    self.write();
                    self.sync();
                    self.begin_repair(file);
                }
                WriterCommand::Close => self.closing = true,
                WriterCommand::Behind(moment) => {
                    (self.queue_from, self.sent_behind) = (moment, false);
                }
            }
            found = Found::Some;
            if self.appender.pending() >= BATCH_RECORDS || self.is_full() {
                found = Found::Full;
                // The queue may not become empty for a while.
                if !std::mem::replace(&mut self.sent_behind, true) {
                    self.shared.enqueue(WriterCommand::Behind(self.now()));
                }
                break;
            }
        }
        if self.unwritten.is_none() {
            let closed = self.refusals.close_due((self.shared.steady)());
            self.record_closed(closed);
        }
        self.publish_durable();
        found
    }

    /// Adds the records of an entry to the batch.
    fn record(&mut self, entry: &Entry) {
        let before = (self.appender.pending(), self.appender.pending_bytes());
        self.appender.push(entry, (self.shared.clock)());
        let principal = entry.draft.text(Text::Principal);
        if principal.is_empty() {
            return;
        }
        let records = self.appender.pending() - before.0;
        let bytes = self.appender.pending_bytes().saturating_sub(before.1) as u64;
        match self.written.get_mut(principal) {
            Some(written) => {
                written.records += records;
                written.bytes += bytes;
            }
            None => {
                self.written.insert(principal.into(), WrittenShare { records, bytes });
            }
        }
    }

    /// Adds records of all counted refusals. Returns false if there are none.
    pub(super) fn record_counts(&mut self) -> bool {
        let closed = self.refusals.close_all();
        let any = !closed.is_empty();
        self.record_closed(closed);
        any
    }

    fn record_closed(&mut self, closed: Vec<ClosedGroup>) {
        for ClosedGroup { entry, ticket } in closed {
            if let Some(ticket) = ticket {
                let key = keys::call_mark(ticket);
                self.appender.add_writes(|batch| batch.remove(Space::State, key));
            }
            self.record(&entry);
        }
    }

    fn is_full(&self) -> bool {
        self.appender.pending_bytes() >= BATCH_BYTES
    }

    /// Writes the pending batch together with the marks of calls in flight, in several batches if there are
    /// many.
    pub(super) fn write(&mut self) {
        while self.unwritten.is_none() {
            let more = self.add_marks();
            self.add_counts();
            self.add_age_mark();
            self.commit();
            if !more {
                break;
            }
        }
    }

    /// Adds marks of unmarked calls to the batch. Returns false once all calls are marked.
    fn add_marks(&mut self) -> bool {
        let unmarked = self.shared.in_flight.unmarked();
        if unmarked.is_empty() {
            return false;
        }
        let now = (self.shared.clock)();
        for place in &unmarked {
            if self.is_full() {
                return true;
            }
            if let Some(entry) = self.shared.in_flight.mark(place, self.next_ticket) {
                self.appender.mark_call(self.next_ticket, &entry, now);
                self.next_ticket += 1;
            }
        }
        false
    }

    /// Adds marks of counted refusals without a record.
    fn add_counts(&mut self) {
        if self.refusals.unmarked() == 0 {
            return;
        }
        let now = (self.shared.clock)();
        let appender = &mut self.appender;
        self.refusals.mark(&mut self.next_ticket, |ticket, entry| {
            appender.mark_refusals(ticket, entry, now)
        });
    }

    /// Adds an age mark if one is due.
    fn add_age_mark(&mut self) {
        let records = self.appender.pending();
        if records == 0 {
            return;
        }
        let (first, min_age) =
            (self.appender.tip().seq + 1 - records, self.shared.retention.load().min_age);
        if self.ages.note(first, self.shared.ran_ms(), min_age) {
            let ages = self.ages.encode();
            self.appender.add_writes(|batch| batch.put(Space::State, keys::AGES, ages));
        }
    }

    fn commit(&mut self) {
        let Some(prepared) = self.appender.take() else { return };
        let permits = std::mem::take(&mut self.permits);
        let result = self.on_disk(|store, _| store.commit(prepared.batch.clone()));
        match result {
            Ok(()) => {
                let (kept, now) = (self.shared.retention.load(), (self.shared.steady)());
                self.shared.shares.count(&mut self.written, &kept, now);
                self.unsynced = Some(prepared.tip);
                self.wrote(prepared.records, permits);
            }
            Err(error) => self.fail(prepared, permits, &error, Stage::Write),
        }
    }

    /// Syncs written batches and updates the chain tip.
    pub(super) fn sync(&mut self) {
        if self.unwritten.is_some() {
            return;
        }
        if let Some(tip) = self.unsynced.take() {
            let result = self.on_disk(|store, tip_file| {
                store.sync()?;
                tip_file.write(tip)
            });
            if let Err(error) = result {
                let prepared = Prepared::empty(tip);
                self.fail(prepared, 0, &error, Stage::Sync);
                return;
            }
            self.shared.durable_seq.store(tip.seq, Ordering::Relaxed);
            self.publish_size();
        }
        match self.shared.config.durability {
            Durability::Fleet => self.shared.await_confirmation(self.waiting.drain(..)),
            Durability::Grouped | Durability::BeforeReply | Durability::BeforeSend => {
                for waiting in self.waiting.drain(..) {
                    let _ = waiting.send(());
                }
            }
        }
        self.batch_from = None;
        self.publish_durable();
        self.shared.batch_done.notify_waiters();
    }
}

/// Delay before the store is tried again after a failed write.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Interval at which a failed log checks whether it is being closed.
const CLOSE_POLL: Duration = Duration::from_millis(50);

impl WriterState {
    /// Counts the unwritten batch and everything queued as lost.
    pub(super) fn lose_stuck(&mut self) {
        let unwritten = self.unwritten.take().map_or(0, |unwritten| unwritten.prepared.records);
        let counted = self.refusals.unmarked();
        self.shared.lost.fetch_add(unwritten + counted, Ordering::Relaxed);
        self.lose_queued();
    }

    /// Drops queued commands that will not be executed. Their senders get no reply.
    pub(super) fn lose_queued(&mut self) {
        while let Ok(message) = self.messages.try_recv() {
            match message {
                // A stored mark is kept, because the outcome is not recorded.
                WriterCommand::Entry { counted, .. } => {
                    self.shared.lost.fetch_add(1, Ordering::Relaxed);
                    self.shared.permits.add_permits(usize::from(counted));
                }
                WriterCommand::Close => self.closing = true,
                WriterCommand::Barrier(_) | WriterCommand::Flush(_) | WriterCommand::Cut(..) => {}
                WriterCommand::Mark(_) | WriterCommand::Lost | WriterCommand::Damaged(_) => {}
                WriterCommand::Behind(_) => self.sent_behind = false,
            }
        }
    }

    /// Records unreported losses. Returns false if there are none.
    pub(super) fn report_lost(&mut self) -> bool {
        let Some(lost) = self.shared.ledger.unreported(self.shared.lost.load(Ordering::Relaxed))
        else {
            return false;
        };
        tracing::warn!("activity records are missing: {lost}");
        let now = (self.shared.clock)();
        self.appender.push(&lost.draft(now).into(), now);
        // The count is in the same batch, so that the loss is reported once.
        let total = lost.total.to_be_bytes().to_vec();
        self.appender.add_writes(|batch| batch.put(Space::State, keys::LOST, total));
        self.shared.ledger.reported(lost.total);
        self.shared.request_loss_save();
        true
    }

    pub(super) fn fail(
        &mut self,
        prepared: Prepared,
        permits: usize,
        error: &StoreError,
        stage: Stage,
    ) {
        tracing::error!(%error, ?stage, "cannot write the activity log");
        let suspect = stage == Stage::Write && is_suspect(error);
        let since = Instant::now();
        self.unwritten = Some(UnwrittenBatch {
            prepared,
            permits,
            since,
            stage,
            suspect,
            is_checked: false,
            is_flushed: false,
        });
        let (lost, now) = (self.shared.lost.load(Ordering::Relaxed), (self.shared.clock)());
        self.shared.ledger.begin(&error.to_string(), lost, now);
        let durable = self.shared.durable_seq.load(Ordering::Relaxed);
        self.shared.failure.store(Arc::new(Some(failure(error, stage, durable))));
        self.shared.is_over.store(stage == Stage::Sync, Ordering::Release);
        self.shared.is_failed.store(true, Ordering::Release);
        self.shared.request_loss_save();
        // Calls that were already sent are answered. Their entries are kept while the process runs.
        self.waiting.clear();
        self.shared.has_failed.notify_waiters();
        self.shared.batch_done.notify_waiters();
    }

    /// Waits before the failed write is retried. During the wait, entries stay in the queue, which is bounded by the
    /// permits. If the log will not write again, the entries are lost.
    pub(super) fn wait_to_retry(&mut self) {
        let Some((since, stage)) =
            self.unwritten.as_ref().map(|unwritten| (unwritten.since, unwritten.stage))
        else {
            return;
        };
        let rest = RETRY_AFTER.saturating_sub(since.elapsed());
        if stage == Stage::Sync {
            self.lose_queued();
        }
        if self.shared.is_closed.load(Ordering::Acquire) {
            self.closing = true;
        } else if !rest.is_zero() || stage == Stage::Sync {
            thread::park_timeout(rest.clamp(Duration::from_millis(1), CLOSE_POLL));
        } else if let Err(error) = self.reopen() {
            self.shared.failure.store(Arc::new(Some(error.to_string())));
            if let Some(unwritten) = &mut self.unwritten {
                unwritten.since = Instant::now();
                unwritten.suspect =
                    !unwritten.is_checked && (unwritten.suspect || is_suspect(&error));
            }
        }
    }

    /// Reopens the store and writes the unwritten batch, unless it is already stored.
    pub(super) fn reopen(&mut self) -> Result<(), StoreError> {
        if self.unwritten.as_ref().is_some_and(|unwritten| unwritten.suspect) && self.repair()? {
            return Ok(());
        }
        if self.lock.is_none() {
            self.lock = Some(Lock::take(&self.dir)?);
        }
        let begun = self.disk_begins();
        let result = self.write_stuck();
        self.disk_ended(begun);
        let Some((tip, records, permits)) = result? else { return Ok(()) };
        self.shared.durable_seq.store(tip.seq, Ordering::Relaxed);
        self.unwritten = None;
        self.batch_from = None;
        self.publish_durable();
        self.wrote(records, permits);
        self.resume();
        Ok(())
    }

    pub(super) fn resume(&self) {
        self.shared.failure.store(Arc::new(None));
        self.shared.is_failed.store(false, Ordering::Release);
        tracing::info!("activity log writes resumed");
        // The command is queued after the entries that were submitted before.
        self.shared.enqueue(WriterCommand::Lost);
    }

    /// Stops writing until the log is repaired, because a table or journal is damaged. Flushes everything in
    /// memory to tables first.
    pub(super) fn begin_repair(&mut self, file: PathBuf) {
        if self.unwritten.is_none() {
            let tip = self.appender.tip();
            let prepared = Prepared::empty(tip);
            let why = "it differs from what was written".into();
            let flushed = self.on_disk(|store, _| store.flush_all());
            self.fail(prepared, 0, &StoreError::Damaged { file, why }, Stage::Write);
            if let Some(unwritten) = &mut self.unwritten {
                unwritten.is_flushed = flushed.is_ok_and(|it| it);
                // The repair starts immediately, because calls are refused until it is done.
                unwritten.since =
                    unwritten.since.checked_sub(RETRY_AFTER).unwrap_or(unwritten.since);
            }
        }
    }

    /// Repairs the log and continues with the kept records. Returns false if nothing is damaged.
    pub(super) fn repair(&mut self) -> Result<bool, StoreError> {
        let Some(unwritten) = &mut self.unwritten else { return Ok(false) };
        let tip = match unwritten.prepared.records {
            0 => unwritten.prepared.tip,
            _ => unwritten.prepared.follows,
        };
        if let Some(store) = self.shared.store.swap(Arc::new(None)).as_ref()
            && !unwritten.is_flushed
        {
            // The flush fails if fjall's thread has given up.
            unwritten.is_flushed = store.flush_all().unwrap_or(false);
        }
        let is_flushed = unwritten.is_flushed;
        self.lock = None;
        let repaired = salvage::repair(&self.dir, tip, is_flushed, (self.shared.clock)());
        if let (Err(StoreError::Damaged { .. }), Some(unwritten)) = (&repaired, &mut self.unwritten)
        {
            // The log cannot be repaired automatically, so the operator has to decide.
            (unwritten.suspect, unwritten.is_checked) = (false, true);
        }
        let repaired = repaired.map_err(still_read)?;
        let OpenLog { lock, store, tip_file } = recover::open(&self.dir).map_err(still_read)?;
        (self.lock, self.tip_file) = (Some(lock), tip_file);
        match &repaired {
            Repaired::Sound => {
                if let Some(unwritten) = &mut self.unwritten {
                    (unwritten.suspect, unwritten.is_checked) = (false, true);
                }
                return Ok(false);
            }
            Repaired::Journal(file) => {
                tracing::warn!(
                    file = %file.display(),
                    "a journal of the activity log was damaged while its records were in memory; \
                     they are in tables now and nothing is lost"
                );
                self.shared.note_repair(file, 0);
            }
            Repaired::Derived(table) => tracing::warn!(
                table = %table.display(),
                "derived data of the activity log was damaged and has been rebuilt"
            ),
            Repaired::Salvaged(Salvaged { aside, kept, lost, why }) => {
                tracing::error!(
                    aside = %aside.display(), kept, lost,
                    "{why}; the activity log continues with the records that could be read"
                );
                self.shared.note_repair(aside, *lost);
            }
        }
        self.shared.damage.clear();
        let view = View::new(store.snapshot()?)?;
        let mut appender = Appender::resume(&view, Redactor::new(&self.shared.config.redact_keys))?;
        let Some(UnwrittenBatch { prepared, permits, .. }) = &self.unwritten else {
            return Ok(false);
        };
        let (Prepared { batch, tip, records, .. }, permits) = (prepared.clone(), *permits);
        let first = view.first();
        let end = appender.tip();
        let is_stored = view.hash(tip.seq)? == Some(tip.hash);
        drop(view);
        self.shared.ledger.reopen(&self.dir)?;
        self.first = first;
        self.ages = std::mem::take(&mut self.ages).truncated_to(end.seq + 1);
        self.unsynced = Some(end);
        self.shared.store.store(Arc::new(Some(store)));
        if is_stored {
            self.appender = appender;
            self.wrote(records, permits);
        } else {
            // The batch's records are renumbered, so that they follow the kept records.
            append_again(batch, &mut appender);
            self.appender = appender;
            self.permits += permits;
        }
        self.unwritten = None;
        self.resume();
        Ok(true)
    }

    pub(super) fn write_stuck(&mut self) -> Result<Option<(ChainTip, u64, usize)>, StoreError> {
        let Some(unwritten) = &self.unwritten else { return Ok(None) };
        self.shared.store.store(Arc::new(None));
        recover::check_journals(&self.dir)?;
        let store = Store::open(&self.dir).map_err(still_read)?;
        // The store is readable even if the write fails.
        self.shared.store.store(Arc::new(Some(store.clone())));
        let next = View::new(store.snapshot()?)?.next();
        if next == unwritten.prepared.first() {
            store.commit(unwritten.prepared.batch.clone())?;
        } else if next != unwritten.prepared.tip.seq + 1 {
            let why = format!("record {next} is lost");
            return Err(StoreError::Io(std::io::Error::other(why)));
        }
        store.sync()?;
        self.tip_file.write(unwritten.prepared.tip)?;
        Ok(Some((unwritten.prepared.tip, unwritten.prepared.records, unwritten.permits)))
    }
}

/// Describes the failure. After a failed sync the kernel may have dropped dirty pages, and a second sync
/// would succeed.
fn failure(error: &StoreError, stage: Stage, durable: u64) -> String {
    match stage {
        Stage::Write => error.to_string(),
        Stage::Sync => format!(
            "{error}: the disk did not confirm what was written, and records after number {durable} \
             may be lost; check the disk (the kernel's log, smartctl) before mcpproxy is started \
             again, and the log with `mcpproxy activity verify`"
        ),
    }
}

/// Turns [`StoreError::Locked`] into a retryable error: the folder is locked, so only a reader in this process can
/// hold the store.
fn still_read(error: StoreError) -> StoreError {
    match error {
        StoreError::Locked => {
            let why = "the log is still being read and will be reopened afterwards";
            StoreError::Io(std::io::Error::new(std::io::ErrorKind::ResourceBusy, why))
        }
        other => other,
    }
}

/// Whether a failure may be caused by a damaged log. A busy or locked log is not damaged, nor is a log with a system
/// error, which has an error code.
fn is_suspect(error: &StoreError) -> bool {
    match error {
        StoreError::Damaged { .. } => true,
        StoreError::Io(error) | StoreError::File { error, .. } => {
            error.raw_os_error().is_none() && error.kind() != std::io::ErrorKind::ResourceBusy
        }
        StoreError::Locked => false,
    }
}

/// Appends the records of an unwritten batch under new numbers.
fn append_again(batch: Batch, appender: &mut Appender) {
    for (heads, bodies) in batch.blocks() {
        let (Ok(heads), Ok(bodies)) = (unpack(heads), unpack(bodies)) else { continue };
        let (Ok(block), Ok(ranges)) = (codec::head_block(&heads), codec::body_block(&bodies))
        else {
            continue;
        };
        for ((head, _), body) in block.records.into_iter().zip(ranges) {
            if let (Some(head), Some(body)) = (heads.get(head), bodies.get(body)) {
                // The record was encoded by this process, so it is well-formed.
                let _ = appender.push_raw(head, body);
            }
        }
    }
    appender.add_writes(|pending| pending.take_from(batch, Space::State));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_sync_names_the_possibly_lost_records_and_the_checks() {
        let error = StoreError::Io(std::io::Error::from_raw_os_error(5));
        let synced = failure(&error, Stage::Sync, 41);
        assert!(synced.contains("records after number 41 may be lost"), "{synced}");
        assert!(synced.contains("check the disk"), "{synced}");
        assert!(
            !failure(&error, Stage::Write, 41).contains("may be lost"),
            "a failed write is retried"
        );
    }
}
