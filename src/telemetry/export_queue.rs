//! What is on its way to whoever exports it, spans or lines of the log: one bounded queue each, which nobody waits for.
//!
//! Who exports takes it by time, not one by one, so that who puts something there wakes nobody unless the queue is empty or
//! half full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

/// How long the first of a batch waits for others.
const GATHER: Duration = Duration::from_millis(500);

/// Who exports: what a backend tells processes apart by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exporter {
    /// `service.name`
    pub service: Box<str>,
    /// `service.instance.id`: another for each process.
    pub instance: Box<str>,
}

/// What is exported over OTLP.
pub trait Exported: Send + 'static {
    /// How many may wait; further ones are dropped, and counted.
    const QUEUE: usize;
    /// How many are exported at once.
    const BATCH: usize;
    /// Its path below a collector's endpoint.
    const PATH: &'static str;
    /// What the log calls it.
    const WHAT: &'static str;

    /// How many of what is counted it is.
    fn count(&self) -> u64;

    /// The body of a request that brings these.
    fn encode(exporter: &Exporter, batch: &[Self]) -> Vec<u8>
    where
        Self: Sized;
}

/// Where something is left to be exported. Clones share it.
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

/// What became of it, and whether it is time to take some.
#[derive(Debug, Default)]
pub struct ExportCounts {
    exported: AtomicU64,
    dropped: [AtomicU64; DropReason::ALL.len()],
    waiting: AtomicU64,
    half_full: Notify,
}

/// Why something was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The queue was full.
    QueueFull,
    /// The collector did not take it in time.
    NotTaken,
    /// The collector will never take it.
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

/// What whoever exports takes it from.
#[derive(Debug)]
pub struct ExportReceiver<T> {
    receiver: mpsc::Receiver<Box<T>>,
    shared: Arc<ExportCounts>,
}

/// An empty queue.
#[must_use]
pub fn export_queue<T: Exported>() -> (ExportQueue<T>, ExportReceiver<T>) {
    let (sender, receiver) = mpsc::channel(T::QUEUE);
    let shared = Arc::new(ExportCounts::default());
    (ExportQueue { sender, shared: Arc::clone(&shared) }, ExportReceiver { receiver, shared })
}

impl<T: Exported> ExportQueue<T> {
    /// Leaves something there, or drops it where there is no room.
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

    /// What became of what was put there.
    #[must_use]
    pub fn counts(&self) -> &ExportCounts {
        &self.shared
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let queued = self.sender.max_capacity() - self.sender.capacity();
        queued as u64 + self.shared.waiting.load(Ordering::Relaxed)
    }
}

impl ExportCounts {
    /// What a collector has taken.
    #[must_use]
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// What was dropped for that reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Counts what was taken.
    pub fn count_exported(&self, count: u64) {
        self.exported.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts what was dropped.
    pub fn count_dropped(&self, reason: DropReason, count: u64) {
        if let Some(dropped) = self.dropped.get(reason as usize) {
            dropped.fetch_add(count, Ordering::Relaxed);
        }
    }
}

impl<T: Exported> ExportReceiver<T> {
    /// Waits for the first, then for others as long as they may gather, and moves them to `batch`, of
    /// [`Exported::BATCH`] at most. Nothing is lost where it is dropped. Pending for ever once nobody can put any.
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

    /// Moves what is there to `batch`, of [`Exported::BATCH`] at most.
    pub fn take(&mut self, batch: &mut Vec<T>) {
        while batch.len() < T::BATCH
            && let Ok(exported) = self.receiver.try_recv()
        {
            batch.push(*exported);
        }
        self.note(batch);
    }

    /// The batch is no longer waiting.
    pub fn done(&self, batch: &mut Vec<T>) {
        batch.clear();
        self.note(batch);
    }

    fn note(&self, batch: &[T]) {
        self.shared.waiting.store(batch.len() as u64, Ordering::Relaxed);
    }

    /// What became of what was put there.
    #[must_use]
    pub fn counts(&self) -> &ExportCounts {
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::super::call_span::{CallSpan, tests_span as span};
    use super::*;

    #[tokio::test]
    async fn what_does_not_fit_is_dropped_and_counted_and_nobody_waits() {
        let (queue, mut receiver) = export_queue();
        for _ in 0..CallSpan::QUEUE + 10 {
            queue.put(Box::new(span(true)));
        }
        assert_eq!(queue.counts().dropped(DropReason::QueueFull), 20, "two spans a call");
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
        assert_eq!(queue.counts().dropped(DropReason::QueueFull), 21, "nobody exports any more");
    }

    #[tokio::test]
    async fn what_comes_in_a_moment_goes_together_and_a_dropped_wait_loses_none() {
        let (queue, mut receiver) = export_queue();
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
