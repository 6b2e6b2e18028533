//! What the writer does once something could not be written: keeps the batch, has the log mended where
//! it is damaged, opens the store again and writes what is stuck; counts what is lost, and tells it
//! when it can.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::{Found, Run};
use crate::activity::append::{Appender, Prepared, keys};
use crate::activity::chain_tip::ChainTip;
use crate::activity::codec;
use crate::activity::mend::{self, Mended};
use crate::activity::pack::unpack;
use crate::activity::recover::{self, Lock, OpenLog};
use crate::activity::redact::Redactor;
use crate::activity::salvage::Salvaged;
use crate::activity::shared::WriterCommand;
use crate::activity::store::{Batch, Space, Store, StoreError};
use crate::activity::view::View;

/// How long after a failed write the store is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often a failed log is asked whether it is to be closed.
const CLOSE_POLL: Duration = Duration::from_millis(50);

/// A batch that could not be written.
pub(super) struct Stuck {
    pub(super) prepared: Prepared,
    /// The room of its entries.
    room: usize,
    since: Instant,
    stage: Stage,
    /// The log may be damaged: it was not the system that refused.
    suspect: bool,
    /// It was looked at since: nothing is damaged, or nothing can be mended.
    is_looked_at: bool,
}

/// Where it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Writing: it can be tried again.
    Write,
    /// Syncing: it cannot.
    Sync,
}

impl Run {
    /// Writes what was submitted before the end.
    pub(super) fn finish(&mut self) -> Result<(), StoreError> {
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
            if self.round() == Found::Nothing && self.stuck.is_none() && !self.tell_lost() {
                return Ok(());
            }
        }
    }

    /// Counts what is stuck, and what is in the queue, as lost.
    fn count_lost(&mut self) {
        let stuck = self.stuck.take().map_or(0, |stuck| stuck.prepared.records);
        self.shared.lost.fetch_add(stuck, Ordering::Relaxed);
        self.lose_queued();
    }

    /// Takes out of the queue what will not be written any more. Who waits for an answer gets none.
    fn lose_queued(&mut self) {
        while let Ok(message) = self.messages.try_recv() {
            match message {
                WriterCommand::Entry { ticket, counted, .. } => {
                    ticket.into_iter().for_each(|ticket| self.in_flight.lose(ticket));
                    self.shared.lost.fetch_add(1, Ordering::Relaxed);
                    self.shared.room.add_permits(usize::from(counted));
                }
                WriterCommand::Close => self.closing = true,
                WriterCommand::Barrier(_) | WriterCommand::Flush(_) | WriterCommand::Cut(..) => {}
                WriterCommand::Begun { .. } | WriterCommand::Lost | WriterCommand::Damaged(_) => {}
                WriterCommand::Behind(_) => self.sent_behind = false,
            }
        }
    }

    /// Puts on record what could not be recorded; false if there is nothing to tell.
    pub(super) fn tell_lost(&mut self) -> bool {
        let Some(lost) = self.shared.ledger.untold(self.shared.lost.load(Ordering::Relaxed)) else {
            return false;
        };
        tracing::warn!("the activity log is not whole: {lost}");
        let now = (self.shared.clock)();
        self.appender.push(&lost.draft(now).into(), now);
        // In one batch, so that it is told once.
        let total = lost.total.to_be_bytes().to_vec();
        self.appender.also(|batch| batch.put(Space::State, keys::LOST, total));
        self.shared.ledger.told(lost.total);
        self.shared.count_lost();
        true
    }

    pub(super) fn fail(
        &mut self,
        prepared: Prepared,
        room: usize,
        error: &StoreError,
        stage: Stage,
    ) {
        tracing::error!(%error, ?stage, "the activity log cannot be written");
        let suspect = stage == Stage::Write && is_suspect(error);
        let since = Instant::now();
        self.stuck = Some(Stuck { prepared, room, since, stage, suspect, is_looked_at: false });
        let (lost, now) = (self.shared.lost.load(Ordering::Relaxed), (self.shared.clock)());
        self.shared.ledger.begin(&error.to_string(), lost, now);
        self.shared.failure.store(Arc::new(Some(error.to_string())));
        self.shared.is_over.store(stage == Stage::Sync, Ordering::Release);
        self.shared.is_failed.store(true, Ordering::Release);
        self.shared.count_lost();
        // Calls that were sent are answered; what they left is kept as long as we run.
        self.waiting.clear();
        self.shared.has_failed.notify_waiters();
        self.shared.batch_done.notify_waiters();
    }

    /// Waits a while, then tries to write again what could not be written. Entries stay in the
    /// queue meanwhile, bounded by the room; where nothing is written again they are lost.
    pub(super) fn wait_to_retry(&mut self) {
        let Some((since, stage)) = self.stuck.as_ref().map(|stuck| (stuck.since, stuck.stage))
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
            if let Some(stuck) = &mut self.stuck {
                stuck.since = Instant::now();
                stuck.suspect = !stuck.is_looked_at && (stuck.suspect || is_suspect(&error));
            }
        }
    }

    /// Opens the store again and writes what is stuck, if it is not there already.
    fn reopen(&mut self) -> Result<(), StoreError> {
        if self.stuck.as_ref().is_some_and(|stuck| stuck.suspect) && self.mend()? {
            return Ok(());
        }
        if self.lock.is_none() {
            self.lock = Some(Lock::take(&self.dir)?);
        }
        let begun = self.disk_begins();
        let result = self.write_stuck();
        self.disk_ended(begun);
        let Some((mark, records, room)) = result? else { return Ok(()) };
        self.shared.durable_seq.store(mark.seq, Ordering::Relaxed);
        self.stuck = None;
        self.batch_from = None;
        self.tell_durable();
        self.wrote(records, room);
        self.is_back();
        Ok(())
    }

    fn is_back(&self) {
        self.shared.failure.store(Arc::new(None));
        self.shared.is_failed.store(false, Ordering::Release);
        tracing::info!("the activity log can be written again");
        // Behind what is in the queue, which came before.
        self.shared.send(WriterCommand::Lost);
    }

    /// A table was found damaged: nothing is written before the log is mended.
    pub(super) fn suspect(&mut self, file: PathBuf) {
        if self.stuck.is_none() {
            let mark = self.appender.mark();
            let prepared = Prepared { batch: Batch::default(), mark, records: 0, bytes: 0 };
            let why = "it is not what was written".into();
            self.fail(prepared, 0, &StoreError::Damaged { file, why }, Stage::Write);
        }
    }

    /// Has the log mended, and goes on with what could be kept; false if nothing is damaged.
    fn mend(&mut self) -> Result<bool, StoreError> {
        self.shared.store.store(Arc::new(None));
        self.lock = None;
        let mended = mend::mend(&self.dir, (self.shared.clock)());
        if let (Err(StoreError::Damaged { .. }), Some(stuck)) = (&mended, &mut self.stuck) {
            // That is for who operates it to decide.
            (stuck.suspect, stuck.is_looked_at) = (false, true);
        }
        let mended = mended.map_err(still_read)?;
        let OpenLog { lock, store, head } = recover::open(&self.dir).map_err(still_read)?;
        (self.lock, self.head) = (Some(lock), head);
        match &mended {
            Mended::Sound => {
                if let Some(stuck) = &mut self.stuck {
                    (stuck.suspect, stuck.is_looked_at) = (false, true);
                }
                return Ok(false);
            }
            Mended::Derived(table) => tracing::warn!(
                table = %table.display(),
                "the activity log was damaged in what is derived from records: it is made anew"
            ),
            Mended::Salvaged(Salvaged { aside, kept, lost, why }) => tracing::error!(
                aside = %aside.display(), kept, lost,
                "{why}: the activity log goes on with the records that could be read"
            ),
        }
        let view = View::new(store.snapshot())?;
        let mut appender = Appender::resume(&view, Redactor::new(&self.shared.config.redact_keys))?;
        let Some(Stuck { prepared, room, .. }) = &self.stuck else { return Ok(false) };
        let (Prepared { batch, mark, records, .. }, room) = (prepared.clone(), *room);
        let first = view.first();
        let end = appender.mark();
        let is_there = view.hash(mark.seq)? == Some(mark.hash);
        drop(view);
        self.shared.ledger.reopen(&self.dir)?;
        self.first = first;
        self.unsynced = Some(end);
        self.shared.store.store(Arc::new(Some(store)));
        if is_there {
            self.appender = appender;
            self.wrote(records, room);
        } else {
            // Its records get the numbers behind what could be kept.
            restage(batch, &mut appender);
            self.appender = appender;
            self.room += room;
        }
        self.stuck = None;
        self.is_back();
        Ok(true)
    }

    fn write_stuck(&mut self) -> Result<Option<(ChainTip, u64, usize)>, StoreError> {
        let Some(stuck) = &self.stuck else { return Ok(None) };
        self.shared.store.store(Arc::new(None));
        let store = Store::open(&self.dir).map_err(still_read)?;
        // Whatever comes of it, it can be read.
        self.shared.store.store(Arc::new(Some(store.clone())));
        let next = View::new(store.snapshot())?.next();
        if next == stuck.prepared.first() {
            store.commit(stuck.prepared.batch.clone())?;
        } else if next != stuck.prepared.mark.seq + 1 {
            let why = format!("record {next} is lost");
            return Err(StoreError::Io(std::io::Error::other(why)));
        }
        store.sync()?;
        self.head.write(stuck.prepared.mark)?;
        Ok(Some((stuck.prepared.mark, stuck.prepared.records, stuck.room)))
    }
}

/// What it means that the store is in use, of which only we may be the reason: the folder is locked.
fn still_read(error: StoreError) -> StoreError {
    match error {
        StoreError::Locked => {
            let why = "it is still being read, and is opened again when that is over";
            StoreError::Io(std::io::Error::new(std::io::ErrorKind::ResourceBusy, why))
        }
        other => other,
    }
}

/// Whether a failure may be that of a damaged log: what the system refuses has a number.
fn is_suspect(error: &StoreError) -> bool {
    match error {
        StoreError::Damaged { .. } => true,
        StoreError::Io(error) => {
            error.raw_os_error().is_none() && error.kind() != std::io::ErrorKind::ResourceBusy
        }
        StoreError::Locked => false,
    }
}

/// Appends the records of a batch that was not written, with numbers of their own.
fn restage(batch: Batch, appender: &mut Appender) {
    for (heads, bodies) in batch.blocks() {
        let (Ok(heads), Ok(bodies)) = (unpack(heads), unpack(bodies)) else { continue };
        let (Ok(block), Ok(ranges)) = (codec::head_block(&heads), codec::body_block(&bodies))
        else {
            continue;
        };
        for ((head, _), body) in block.records.into_iter().zip(ranges) {
            if let (Some(head), Some(body)) = (heads.get(head), bodies.get(body)) {
                // As we encoded it ourselves it is whole.
                let _ = appender.push_raw(head, body);
            }
        }
    }
    appender.also(|also| also.take_from(batch, Space::State));
}
