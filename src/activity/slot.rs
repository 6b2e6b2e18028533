//! One call's place in the log: marked when the call goes out, given its entry when the call ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::oneshot;

use super::config::{Config, Durability, OnFailure};
use super::durable::Durable;
use super::error::NotAdmitted;
use super::in_flight::CallPlace;
use super::record::{Entry, Operation};
use super::shared::{Shared, WriterCommand};

/// Room for one call's entry. Dropped without an entry, it gives the room back.
pub struct Slot {
    pub(super) shared: Arc<Shared>,
    /// False for a slot beyond the room, given out while the log is failed.
    pub(super) counted: bool,
    /// That of a call whose reply has left.
    pub(super) epoch: Option<u8>,
    /// That of a call that has begun and leaves a mark.
    pub(super) in_flight: Option<CallPlace>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("counted", &self.counted).finish_non_exhaustive()
    }
}

impl Slot {
    /// Whether the log is so far behind at `now` that a reply has to wait for its record (ACT-3).
    #[must_use]
    pub fn is_behind(&self, now: Instant) -> bool {
        self.shared.overruns(now)
    }

    /// Marks a call that is about to go out, so that it is known of even if this process ends before
    /// the call does (ACT-1). What `entry` holds is handed over, and what comes of the call is to be
    /// added to what is then left of it. A call that only reads leaves no mark but by `mark_reads`.
    /// With `before_send` it waits until the mark is durable.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`]: the call must not be sent.
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

    /// Marks a call whose reply may have left and whose entry takes longer, like [`Self::begin`], if it
    /// has left.
    pub fn record_is_late(&mut self, entry: &mut Box<Entry>) {
        if self.epoch.is_some() && self.enter(entry) {
            self.shared.wake_if_asleep();
        }
    }

    /// Puts what is known of the call among those in flight, once, and only where its room is counted;
    /// true if it did. What is left of `entry` is for what comes of the call.
    fn enter(&mut self, entry: &mut Box<Entry>) -> bool {
        if !self.counted || self.in_flight.is_some() {
            return false;
        }
        let rest = Entry { late: entry.late.take(), ..entry.draft.rest().into() };
        let known = std::mem::replace(entry, Box::new(rest));
        self.in_flight = Some(self.shared.in_flight.begin(known));
        true
    }

    /// Takes the call out of those in flight: its whole entry, and the ticket of its mark, if it has
    /// left one.
    fn leave(&mut self, rest: Box<Entry>) -> (Box<Entry>, Option<u64>) {
        let place = self.in_flight.take();
        match place.and_then(|place| self.shared.in_flight.end(place)) {
            Some((mut entry, ticket)) => {
                let Entry { draft, decisions, late } = *rest;
                entry.draft.end(&draft);
                entry.decisions.extend(decisions);
                entry.late = late;
                (entry, ticket)
            }
            None => (rest, None),
        }
    }

    /// Hands the entry over, and waits as long as the last chunk of the reply has to (ACT-3), if it
    /// has not left. To be called right before it leaves; costs a reading of the clock where all is well.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`] if the record may be lost.
    pub async fn submit_before_reply(mut self, entry: Box<Entry>) -> Result<(), NotAdmitted> {
        let has_left = self.epoch.is_some();
        let durable = self.hand_over(entry);
        self.leave_epoch();
        match durable {
            Some(durable) => durable.wait().await?,
            None if has_left => {}
            None => self.shared.clear_to_reply().await,
        }
        Ok(())
    }

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
            Durability::BeforeReply | Durability::BeforeSend | Durability::Fleet => {
                let (sender, done) = oneshot::channel();
                (Some(sender), Some(Durable { shared: Arc::clone(&self.shared), done }))
            }
        };
        let (entry, ticket) = self.leave(entry);
        // The writer gives the room back once it has written the entry.
        let counted = std::mem::take(&mut self.counted);
        let shared = &self.shared;
        if shared.refuses() && (!counted || shared.loses()) {
            // A mark that is in the store stays: what came of the call is not on record.
            shared.lost.fetch_add(1, Ordering::Relaxed);
            shared.room.add_permits(usize::from(counted));
            return durable;
        }
        self.send(WriterCommand::Entry { entry, ticket, done: sender, counted });
        durable
    }

    /// Sends a message, and wakes the writer, which does not gather while someone waits.
    pub(super) fn send(&self, message: WriterCommand) {
        let waits = match &message {
            WriterCommand::Entry { done, .. } => done.is_some(),
            WriterCommand::Mark(_)
            | WriterCommand::Behind(_)
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
        // Without an entry the call was not made; a mark that is in the store stays.
        if let Some(place) = self.in_flight.take() {
            self.shared.in_flight.end(place);
        }
        if self.counted {
            self.shared.room.add_permits(1);
        }
    }
}
