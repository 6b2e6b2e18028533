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

use super::error::NotAdmitted;
use super::shared::Shared;

/// Where the oldest entry that is not durable may be older than this, replies wait until their own
/// is. Above what the writer's gathering makes of it, and below the 50 ms that are promised (ACT-3) by
/// what a thread that wants a core is commonly kept waiting for one.
const OVERRUN: Duration = Duration::from_millis(35);

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
