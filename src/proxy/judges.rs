//! Where large documents are judged: threads beside the workers, bounded in number.
//!
//! Judging megabytes takes milliseconds; done here it delays no other call of the worker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::schema::compile::Schema;
use crate::schema::judge::{Judgement, Scratch};

/// Threads beside the workers that judge large documents, bounded in number.
#[derive(Debug)]
pub struct Judges {
    runtime: tokio::runtime::Handle,
    seats: Arc<Semaphore>,
    scratches: Arc<Mutex<Vec<Scratch>>>,
    disagreements: AtomicU64,
}

impl Judges {
    /// At most `seats` documents are judged at once, on `runtime`'s blocking threads.
    #[must_use]
    pub fn new(runtime: tokio::runtime::Handle, seats: usize) -> Self {
        Self {
            runtime,
            seats: Arc::new(Semaphore::new(seats)),
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
        // The semaphore is never closed, so a seat always comes.
        let seat = Arc::clone(&self.seats).acquire_owned().await.ok();
        let scratches = Arc::clone(&self.scratches);
        let judged = self.runtime.spawn_blocking(move || {
            // Held until the work is done, even if its caller has gone.
            let _seat = seat;
            let taken = scratches.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut scratch = taken.unwrap_or_default();
            let judgement = schema.judge(&document, &mut scratch);
            scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
            judgement
        });
        judged.await.ok()
    }
}
