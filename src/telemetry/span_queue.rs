//! Ended calls on their way to whoever exports them: one bounded queue, which no call waits for.
//!
//! Who exports takes them by time, not one by one, so that a call wakes nobody unless the queue is empty or half full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use super::call_span::CallSpan;

/// Calls that wait to be exported; further ones are dropped, and counted.
pub const QUEUE_CALLS: usize = 4096;
/// Calls that are exported at once.
pub const BATCH_CALLS: usize = 512;
/// How long the first call of a batch waits for others.
const GATHER: Duration = Duration::from_millis(500);

/// Where calls leave their spans. Clones share it.
#[derive(Clone, Debug)]
pub struct SpanQueue {
    sender: mpsc::Sender<Box<CallSpan>>,
    shared: Arc<SpanCounts>,
}

/// What became of spans, and whether it is time to take some.
#[derive(Debug, Default)]
pub struct SpanCounts {
    exported: AtomicU64,
    dropped: [AtomicU64; DropReason::ALL.len()],
    waiting: AtomicU64,
    half_full: Notify,
}

/// Why spans were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The queue was full.
    QueueFull,
    /// The collector did not take them in time.
    NotTaken,
    /// The collector will never take them.
    Refused,
}

impl DropReason {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::QueueFull, Self::NotTaken, Self::Refused];

    /// Its name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::NotTaken => "not_taken",
            Self::Refused => "refused",
        }
    }
}

/// What whoever exports takes them from.
#[derive(Debug)]
pub struct SpanReceiver {
    receiver: mpsc::Receiver<Box<CallSpan>>,
    shared: Arc<SpanCounts>,
}

/// An empty queue.
#[must_use]
pub fn span_queue() -> (SpanQueue, SpanReceiver) {
    let (sender, receiver) = mpsc::channel(QUEUE_CALLS);
    let shared = Arc::new(SpanCounts::default());
    (SpanQueue { sender, shared: Arc::clone(&shared) }, SpanReceiver { receiver, shared })
}

impl SpanQueue {
    /// Leaves a call there, or drops it where there is no room.
    pub fn put(&self, call: Box<CallSpan>) {
        match self.sender.try_send(call) {
            Ok(()) if self.sender.capacity() <= QUEUE_CALLS / 2 => {
                self.shared.half_full.notify_one();
            }
            Ok(()) => {}
            Err(TrySendError::Full(call) | TrySendError::Closed(call)) => {
                self.shared.drop_spans(DropReason::QueueFull, call.spans());
            }
        }
    }

    /// What became of those that were put there.
    #[must_use]
    pub fn counts(&self) -> &SpanCounts {
        &self.shared
    }

    /// Calls that wait.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let queued = self.sender.max_capacity() - self.sender.capacity();
        queued as u64 + self.shared.waiting.load(Ordering::Relaxed)
    }
}

impl SpanCounts {
    /// Spans that a collector has taken.
    #[must_use]
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Spans that were dropped for that.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Counts spans that were taken.
    pub fn export_spans(&self, spans: u64) {
        self.exported.fetch_add(spans, Ordering::Relaxed);
    }

    /// Counts spans that were dropped.
    pub fn drop_spans(&self, reason: DropReason, spans: u64) {
        if let Some(count) = self.dropped.get(reason as usize) {
            count.fetch_add(spans, Ordering::Relaxed);
        }
    }
}

impl SpanReceiver {
    /// Waits for the first call, then for others as long as they may gather, and moves them to `batch`, of
    /// [`BATCH_CALLS`] at most. Nothing is lost where it is dropped. Pending for ever once nobody can put any.
    pub async fn gather(&mut self, batch: &mut Vec<CallSpan>) {
        if batch.is_empty() {
            match self.receiver.recv().await {
                Some(first) => batch.push(*first),
                None => std::future::pending().await,
            }
            self.note(batch);
        }
        if self.receiver.len() < QUEUE_CALLS / 2 {
            let _ = tokio::time::timeout(GATHER, self.shared.half_full.notified()).await;
        }
        self.take(batch);
    }

    /// Moves what is there to `batch`, of [`BATCH_CALLS`] at most.
    pub fn take(&mut self, batch: &mut Vec<CallSpan>) {
        while batch.len() < BATCH_CALLS
            && let Ok(call) = self.receiver.try_recv()
        {
            batch.push(*call);
        }
        self.note(batch);
    }

    /// The batch is no longer waiting.
    pub fn done(&self, batch: &mut Vec<CallSpan>) {
        batch.clear();
        self.note(batch);
    }

    fn note(&self, batch: &[CallSpan]) {
        self.shared.waiting.store(batch.len() as u64, Ordering::Relaxed);
    }

    /// What became of those that were put there.
    #[must_use]
    pub fn counts(&self) -> &SpanCounts {
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::super::call_span::tests_span as span;
    use super::*;

    #[tokio::test]
    async fn what_does_not_fit_is_dropped_and_counted_and_nobody_waits() {
        let (queue, mut receiver) = span_queue();
        for _ in 0..QUEUE_CALLS + 10 {
            queue.put(Box::new(span(true)));
        }
        assert_eq!(queue.counts().dropped(DropReason::QueueFull), 20, "two spans a call");
        assert_eq!(queue.waiting(), QUEUE_CALLS as u64);
        let (mut batch, mut taken) = (Vec::new(), 0);
        while taken < QUEUE_CALLS {
            receiver.gather(&mut batch).await;
            assert!(batch.len() <= BATCH_CALLS);
            taken += batch.len();
            receiver.done(&mut batch);
        }
        assert_eq!((taken, queue.waiting()), (QUEUE_CALLS, 0));
        drop(receiver);
        queue.put(Box::new(span(false)));
        assert_eq!(queue.counts().dropped(DropReason::QueueFull), 21, "nobody exports any more");
    }

    #[tokio::test]
    async fn calls_of_a_moment_go_together_and_a_dropped_wait_loses_none() {
        let (queue, mut receiver) = span_queue();
        let mut batch = Vec::new();
        queue.put(Box::new(span(false)));
        let hurried = tokio::time::timeout(Duration::ZERO, receiver.gather(&mut batch)).await;
        assert!(hurried.is_err(), "it waits for others");
        queue.put(Box::new(span(false)));
        assert_eq!(queue.waiting(), 2);
        receiver.gather(&mut batch).await;
        assert_eq!(batch.len(), 2);
    }
}
