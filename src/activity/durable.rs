//! What must be durable before a call goes on: the mark before it is sent, its record before the reply
//! leaves (ACT-1, ACT-3).
//!
//! With `grouped` a reply leaves at once as long as the log keeps up. It keeps up while everything
//! that was submitted more than [`OVERRUN`] ago is durable, which takes one atomic to know, written by
//! the writer alone. A reply that finds it behind waits until its own record is durable. What cannot
//! be promised: that the writer's thread gets a core in the 50 ms after a reply that has left.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::config::{Config, Durability, OnFailure};
use super::handle::{NotAdmitted, Slot};
use super::record::{Entry, Operation};
use super::shared::{Shared, WriterCommand};
use super::writer::OVERRUN;

/// How long a reply, or a call that is to be sent, waits for a log that is behind.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// Tells when what was handed over is durable (`before_reply`, `before_send`).
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
    /// Waits until it is, or the log failed: then the call is answered all the same (ACT-2).
    ///
    /// # Errors
    ///
    /// [`NotAdmitted::Failed`] if it may be lost, [`NotAdmitted::Full`] if that takes too long.
    pub async fn wait(self) -> Result<(), NotAdmitted> {
        self.shared.durable(self.done).await
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
        let durable = match durability {
            Durability::Grouped | Durability::BeforeReply => {
                self.mark(entry, None);
                return Ok(());
            }
            Durability::BeforeSend => {
                let (sender, done) = oneshot::channel();
                self.mark(entry, Some(sender));
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
        if self.epoch.is_some() {
            self.mark(entry, None);
        }
    }

    /// Hands over what is known of a call that has not ended, once. There is a place for it in the
    /// queue only for a call that has one.
    fn mark(&mut self, entry: &mut Box<Entry>, done: Option<oneshot::Sender<()>>) {
        if !self.counted || self.ticket.is_some() {
            return;
        }
        let ticket = self.shared.tickets.fetch_add(1, Ordering::Relaxed);
        self.ticket = Some(ticket);
        let rest = entry.draft.rest().into();
        let entry = std::mem::replace(entry, rest);
        self.send(WriterCommand::Begun { ticket, entry, done });
    }

    /// Hands the entry over, and waits as long as the last chunk of the reply has to (ACT-3), if it
    /// has not left. To be called right before it leaves; costs a look at the clock where all is well.
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
}

impl Shared {
    /// How long the oldest record that is not durable may have been waiting at `now`: at least as
    /// long as it has.
    pub(super) fn lag(&self, now: Instant) -> Duration {
        if self.asleep.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let until = self.durable_until.load(Ordering::Acquire);
        Duration::from_micros(self.micros(now).saturating_sub(until))
    }

    /// Whether at `now` the log is further behind than a reply may be ahead of it.
    pub(super) fn overruns(&self, now: Instant) -> bool {
        let until = self.durable_until.load(Ordering::Acquire);
        let late = self.micros(now) > until + OVERRUN.as_micros() as u64;
        late && !self.asleep.load(Ordering::Acquire) && self.can_be_waited_for()
    }

    /// False where the records on their way will not be durable soon: then nobody waits for them.
    fn can_be_waited_for(&self) -> bool {
        !self.refuses() && !self.is_closed.load(Ordering::Acquire)
    }

    /// Waits, where the log is behind, until what was submitted before this call is durable (ACT-3).
    /// It is asked after the entry was handed over and before the reply leaves, so that there is no
    /// moment in which the log falls behind unseen.
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
                if is_durable || self.asleep.load(Ordering::Acquire) || !self.can_be_waited_for() {
                    return;
                }
                done.await;
            }
        };
        // It need not gather any longer.
        self.wake();
        // After the limit the call is answered: it was sent (ACT-2).
        let _ = tokio::time::timeout(WAIT_LIMIT, wait).await;
    }

    /// Waits until a record is durable, or is not going to be soon: the call that was sent is
    /// answered then (ACT-2).
    pub(super) async fn durable(&self, done: oneshot::Receiver<()>) -> Result<(), NotAdmitted> {
        let has_failed = self.has_failed.notified();
        if self.refuses() {
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
