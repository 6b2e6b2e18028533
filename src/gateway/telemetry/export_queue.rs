//! Bounded queue of spans or log lines to be exported. Producers never block.
//!
//! The exporter drains the queue at intervals; a producer wakes it only if the queue is empty or half full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

/// Maximum time that the first item of a batch waits for further items.
const GATHER: Duration = Duration::from_millis(500);

/// Identity of this process for a telemetry backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exporter {
    /// `service.name`
    pub service: Box<str>,
    /// `service.instance.id`, unique for each process.
    pub instance: Box<str>,
}

/// Signal exported over OTLP.
pub trait Exported: Send + 'static {
    /// Queue capacity; items beyond it are dropped and counted.
    const QUEUE: usize;
    /// Maximum number of items per request.
    const BATCH: usize;
    /// Path below the collector's endpoint.
    const PATH: &'static str;
    /// Name in log lines.
    const WHAT: &'static str;

    /// Number of units (spans or log lines) that an item counts as.
    fn count(&self) -> u64;

    /// Encodes a batch as the body of an export request.
    fn encode(exporter: &Exporter, batch: &[Self]) -> Vec<u8>
    where
        Self: Sized;
}

/// Sending end. Clones share the queue.
#[derive(Debug)]
pub struct ExportQueue<T> {
    sender: mpsc::Sender<Box<T>>,
    shared: Arc<ExportCounts>,
}

impl<T> Clone for ExportQueue<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), shared: Arc::clone(&self.shared) }
    }
}

/// Counters of a queue, and the signal that it is half full.
#[derive(Debug, Default)]
pub struct ExportCounts {
    exported: AtomicU64,
    dropped: [AtomicU64; DropReason::ALL.len()],
    waiting: AtomicU64,
    half_full: Notify,
}

/// Reason why an item was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    QueueFull,
    /// The collector did not accept the item in time.
    NotTaken,
    /// The collector rejected the item permanently.
    Refused,
}

impl DropReason {
    pub const ALL: [Self; 3] = [Self::QueueFull, Self::NotTaken, Self::Refused];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::NotTaken => "not_taken",
            Self::Refused => "refused",
        }
    }
}

/// Receiving end.
#[derive(Debug)]
pub struct ExportReceiver<T> {
    receiver: mpsc::Receiver<Box<T>>,
    shared: Arc<ExportCounts>,
}

pub fn export_queue<T: Exported>() -> (ExportQueue<T>, ExportReceiver<T>) {
    let (sender, receiver) = mpsc::channel(T::QUEUE);
    let shared = Arc::new(ExportCounts::default());
    (ExportQueue { sender, shared: Arc::clone(&shared) }, ExportReceiver { receiver, shared })
}

impl<T: Exported> ExportQueue<T> {
    /// Enqueues an item, or drops it if the queue is full.
    pub fn put(&self, exported: Box<T>) {
        match self.sender.try_send(exported) {
            Ok(()) if self.sender.capacity() <= T::QUEUE / 2 => {
                self.shared.half_full.notify_one();
            }
            Ok(()) => {}
            Err(TrySendError::Full(exported) | TrySendError::Closed(exported)) => {
                self.shared.count_dropped(DropReason::QueueFull, exported.count());
            }
        }
    }

    pub fn counts(&self) -> &ExportCounts {
        &self.shared
    }

    pub fn waiting(&self) -> u64 {
        let queued = self.sender.max_capacity() - self.sender.capacity();
        queued as u64 + self.shared.waiting.load(Ordering::Relaxed)
    }
}

impl ExportCounts {
    /// Number of units accepted by a collector.
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    pub fn count_exported(&self, count: u64) {
        self.exported.fetch_add(count, Ordering::Relaxed);
    }

    pub fn count_dropped(&self, reason: DropReason, count: u64) {
        if let Some(dropped) = self.dropped.get(reason as usize) {
            dropped.fetch_add(count, Ordering::Relaxed);
        }
    }
}

impl<T: Exported> ExportReceiver<T> {
    /// Waits for the first item, then up to [`GATHER`] for more, and moves at most [`Exported::BATCH`] items to
    /// `batch`. Cancel-safe. Waits forever once all senders are dropped.
    pub async fn gather(&mut self, batch: &mut Vec<T>) {
        if batch.is_empty() {
            match self.receiver.recv().await {
                Some(first) => batch.push(*first),
                None => std::future::pending().await,
            }
            self.note(batch);
        }
        if self.receiver.len() < T::QUEUE / 2 {
            let _ = tokio::time::timeout(GATHER, self.shared.half_full.notified()).await;
        }
        self.take(batch);
    }

    /// Moves queued items to `batch`, up to [`Exported::BATCH`].
    pub fn take(&mut self, batch: &mut Vec<T>) {
        while batch.len() < T::BATCH
            && let Ok(exported) = self.receiver.try_recv()
        {
            batch.push(*exported);
        }
        self.note(batch);
    }

    /// Marks the batch as done and clears it.
    pub fn done(&self, batch: &mut Vec<T>) {
        batch.clear();
        self.note(batch);
    }

    fn note(&self, batch: &[T]) {
        self.shared.waiting.store(batch.len() as u64, Ordering::Relaxed);
    }

    pub fn counts(&self) -> &ExportCounts {
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::super::call_span::{CallSpan, tests_span as span};
    use super::*;

    #[tokio::test]
    async fn overflow_is_dropped_and_counted_without_blocking() {
        let (queue, mut receiver) = export_queue();
        for _ in 0..CallSpan::QUEUE + 10 {
            queue.put(Box::new(span(true)));
        }
        assert_eq!(queue.counts().dropped(DropReason::QueueFull), 20, "two spans per call");
        assert_eq!(queue.waiting(), CallSpan::QUEUE as u64);
        let (mut batch, mut taken) = (Vec::new(), 0);
        while taken < CallSpan::QUEUE {
            receiver.gather(&mut batch).await;
            assert!(batch.len() <= CallSpan::BATCH);
            taken += batch.len();
            receiver.done(&mut batch);
        }
        assert_eq!((taken, queue.waiting()), (CallSpan::QUEUE, 0));
        drop(receiver);
        queue.put(Box::new(span(false)));
        assert_eq!(queue.counts().dropped(DropReason::QueueFull), 21, "the exporter is gone");
    }

    #[tokio::test]
    async fn batch_is_gathered_and_gather_is_cancel_safe() {
        let (queue, mut receiver) = export_queue();
        let mut batch = Vec::new();
        queue.put(Box::new(span(false)));
        let hurried = tokio::time::timeout(Duration::ZERO, receiver.gather(&mut batch)).await;
        assert!(hurried.is_err(), "it waits for more items");
        queue.put(Box::new(span(false)));
        assert_eq!(queue.waiting(), 2);
        receiver.gather(&mut batch).await;
        assert_eq!(batch.len(), 2);
    }
}
