//! Threads beside the workers that write and read kept results, bounded in number: a disk may be slow.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Files that are written or read at once.
const SEATS: usize = 4;

/// Where work on kept results is done. What waits for a seat is bounded by the memory that it has taken.
#[derive(Debug)]
pub struct ResultPool {
    runtime: Handle,
    seats: Arc<Semaphore>,
}

impl ResultPool {
    /// A pool on `runtime`'s blocking threads.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self { runtime, seats: Arc::new(Semaphore::new(SEATS)) }
    }

    /// Does `work` on another thread, to its end even if its caller has gone; `None` when it failed.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        // The semaphore is never closed, so a seat always comes.
        let seat = Arc::clone(&self.seats).acquire_owned().await.ok();
        let done = self.runtime.spawn_blocking(move || {
            let _seat = seat;
            work()
        });
        done.await.ok()
    }
}
