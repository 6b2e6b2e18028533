//! Threads beside the workers that validate documents: what takes longer than about a millisecond is validated
//! here, so that it delays no other call.
//!
//! They are bounded in number, and large documents take no seat of small ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::schema::compile::Schema;
use crate::schema::judge::{JudgeScratch, Judgement};

/// Documents above this are judged off the worker's thread in any case: reading them takes too
/// long for others to wait.
const LARGE_DOCUMENT_BYTES: usize = 64 * 1024;

/// Threads beside the workers that judge, bounded in number.
#[derive(Debug)]
pub struct ValidationPool {
    runtime: tokio::runtime::Handle,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    scratches: Arc<Mutex<Vec<JudgeScratch>>>,
    disagreements: AtomicU64,
}

impl ValidationPool {
    /// At most `seats` small documents are judged at once, and as many large ones, on `runtime`'s
    /// blocking threads.
    #[must_use]
    pub fn new(runtime: tokio::runtime::Handle, seats: usize) -> Self {
        Self {
            runtime,
            small: Arc::new(Semaphore::new(seats)),
            large: Arc::new(Semaphore::new(seats)),
            scratches: Arc::default(),
            disagreements: 0.into(),
        }
    }

    /// How often the two engines disagreed since the start.
    #[must_use]
    pub fn disagreements(&self) -> u64 {
        self.disagreements.load(Ordering::Relaxed)
    }

    pub(super) fn count_disagreement(&self) {
        self.disagreements.fetch_add(1, Ordering::Relaxed);
    }

    /// Judges `document` on another thread; `None` when the judge itself failed.
    pub(super) async fn judge(
        &self,
        schema: Arc<Schema>,
        document: Vec<Bytes>,
    ) -> Option<Judgement> {
        let seats = if is_large(&document) { &self.large } else { &self.small };
        // The semaphores are never closed, so a seat always comes.
        let seat = Arc::clone(seats).acquire_owned().await.ok();
        let scratches = Arc::clone(&self.scratches);
        let judged = self.runtime.spawn_blocking(move || {
            // Held until the work is done, even if its caller has gone.
            let _seat = seat;
            let taken = scratches.lock().pop();
            let mut scratch = taken.unwrap_or_default();
            let judgement = schema.judge(&document, &mut scratch);
            scratches.lock().push(scratch);
            judgement
        });
        judged.await.ok()
    }
}

/// Whether reading `document` takes too long for the calls of one thread to wait.
pub(super) fn is_large(document: &[Bytes]) -> bool {
    document.iter().map(Bytes::len).sum::<usize>() > LARGE_DOCUMENT_BYTES
}
