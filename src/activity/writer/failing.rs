//! What the writer does once something could not be written: keeps the batch, opens the store again
//! and writes what is stuck; counts what is lost, and tells it when it can.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::{Found, Run};
use crate::activity::append::{Prepared, keys};
use crate::activity::head::Mark;
use crate::activity::shared::Message;
use crate::activity::store::{Space, Store, StoreError};
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
                Message::Entry { counted, .. } => {
                    self.shared.lost.fetch_add(1, Ordering::Relaxed);
                    self.shared.room.add_permits(usize::from(counted));
                }
                Message::Close => self.closing = true,
                Message::Barrier(_) | Message::Flush(_) | Message::Cut(..) | Message::Lost => {}
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
        self.stuck = Some(Stuck { prepared, room, since: Instant::now(), stage });
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
            }
        }
    }

    /// Opens the store again and writes what is stuck, if it is not there already.
    fn reopen(&mut self) -> Result<(), StoreError> {
        let begun = self.disk_begins();
        let result = self.write_stuck();
        self.disk_ended(begun);
        let Some((mark, records, room)) = result? else { return Ok(()) };
        self.shared.durable_seq.store(mark.seq, Ordering::Relaxed);
        self.stuck = None;
        self.shared.failure.store(Arc::new(None));
        self.shared.is_failed.store(false, Ordering::Release);
        tracing::info!("the activity log can be written again");
        self.wrote(records, room);
        // Behind what is in the queue, which came before.
        self.shared.send(Message::Lost);
        Ok(())
    }

    fn write_stuck(&mut self) -> Result<Option<(Mark, u64, usize)>, StoreError> {
        let Some(stuck) = &self.stuck else { return Ok(None) };
        self.shared.store.store(Arc::new(None));
        let store = Store::open(&self.dir).map_err(|error| match error {
            // By ourselves: the folder is locked.
            StoreError::Locked => {
                let why = "it is still being read, and is opened again when that is over";
                StoreError::Io(std::io::Error::other(why))
            }
            other => other,
        })?;
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
