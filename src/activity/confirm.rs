//! Records that others need: they are kept until it is confirmed that those have them, and replies may wait for that
//! (`durability: fleet`).
//!
//! Who the others are is not known here. Where there are none, nothing is kept, and nobody waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::handle::Activity;
use super::shared::{Shared, WriterCommand};

impl Activity {
    /// From now on records up to `seq` may be forgotten, and none after it: others have them. Who waited for one of them goes
    /// on.
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

    /// Says why more records cannot be kept for others, or that they can again: calls go by `on_failure` meanwhile. Who waits
    /// for a record to be confirmed waits no longer.
    pub fn withhold(&self, why: Option<String>) {
        let shared = &self.shared;
        let Some(why) = why else {
            if shared.is_withheld.swap(false, Ordering::AcqRel) {
                shared.withheld.store(Arc::new(None));
                tracing::info!("activity can be recorded again");
                shared.send(WriterCommand::Lost);
                shared.wake();
            }
            return;
        };
        let is_new = !shared.is_withheld.load(Ordering::Acquire);
        if is_new {
            tracing::error!("the activity log takes no more: {why}");
            shared.ledger.begin(&why, shared.lost.load(Ordering::Relaxed), (shared.clock)());
        }
        shared.withheld.store(Arc::new(Some(why)));
        shared.is_withheld.store(true, Ordering::Release);
        if is_new {
            shared.count_lost();
            shared.has_failed.notify_waiters();
            shared.batch_done.notify_waiters();
        }
        shared.unconfirmed.lock().clear();
    }

    /// The last record that is durable.
    #[must_use]
    pub fn durable_seq(&self) -> u64 {
        self.shared.durable_seq.load(Ordering::Acquire)
    }

    /// Waits until a record after `seq` is durable.
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
    /// These wait until what is durable now is confirmed, too.
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
