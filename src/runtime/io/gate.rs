//! A concurrency limit with a bounded queue, served in order of arrival.
//!
//! Owns the counting and the order. The caller handles timeouts and the error for a full queue.
//!
//! ```text
//! enter ─┬─▶ Inside(GatePlace)                 a place is free, and no one waits for it
//!        ├─▶ Queued(QueuedSlot) ── acquire() ──▶ GatePlace
//!        └─▶ Full
//! ```
//!
//! A [`GatePlace`] and a [`QueuedSlot`] are released when they are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A gate, shared by all users of a limit.
#[derive(Debug)]
pub struct Gate {
    places: Arc<Semaphore>,
    /// Current maximum number of places.
    limit: AtomicUsize,
    /// Number of places to remove when they are released, after the limit was lowered.
    excess: AtomicUsize,
    /// Held while the limit is changed.
    changing: Mutex<()>,
    queue: usize,
    waiting: AtomicUsize,
}

/// The outcome of [`Gate::enter`].
#[derive(Debug)]
pub enum Arrival {
    Inside(GatePlace),
    Queued(QueuedSlot),
    /// All places are taken and the queue is full.
    Full,
}

/// A place inside, held until it is dropped.
#[derive(Debug)]
pub struct GatePlace {
    /// `Some` until the place is dropped.
    permit: Option<OwnedSemaphorePermit>,
    gate: Arc<Gate>,
}

impl Drop for GatePlace {
    fn drop(&mut self) {
        let pay = |excess: usize| excess.checked_sub(1);
        let is_excess = self.gate.excess.load(Ordering::Relaxed) > 0
            && self.gate.excess.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_ok();
        if is_excess && let Some(permit) = self.permit.take() {
            permit.forget();
        }
    }
}

/// A place in the queue, held until it is dropped.
#[derive(Debug)]
pub struct QueuedSlot(Arc<Gate>);

impl Gate {
    /// Creates a gate with `limit` places and a queue of length `queue`. A limit too large to count means unlimited.
    pub fn new(limit: usize, queue: usize) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(limit)),
            limit: AtomicUsize::new(limit),
            excess: AtomicUsize::new(0),
            changing: Mutex::new(()),
            queue,
            waiting: AtomicUsize::new(0),
        }
    }

    /// Maximum number of places.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the number of places. If the limit is lowered, excess places are kept until they are released, and no new ones are given out
    /// before. Costs one atomic read if the limit is unchanged.
    pub fn limit_to(&self, limit: usize) {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        if self.limit() == limit {
            return;
        }
        let _changing = self.changing.lock();
        let before = self.limit.swap(limit, Ordering::Relaxed);
        if limit < before {
            let fewer = before - limit;
            let forgotten = self.places.forget_permits(fewer);
            self.excess.fetch_add(fewer - forgotten, Ordering::Relaxed);
            return;
        }
        // Places that were to be removed are kept first, before new ones are added.
        let more = limit - before;
        let pay = |excess: usize| Some(excess - excess.min(more));
        let excess = self.excess.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
        self.places.add_permits(more - excess.map_or(0, |excess| excess.min(more)));
    }

    /// Maximum length of the queue.
    pub fn queue(&self) -> usize {
        self.queue
    }

    /// Number of waiting calls.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Number of taken places.
    pub fn inside(&self) -> usize {
        let excess = self.excess.load(Ordering::Relaxed);
        (self.limit() + excess).saturating_sub(self.places.available_permits())
    }

    /// Takes a place, or a slot in the queue. A released place goes to the call that has waited longest: a later call cannot overtake it.
    pub fn enter(self: &Arc<Self>) -> Arrival {
        if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
            return Arrival::Inside(GatePlace { permit: Some(permit), gate: Arc::clone(self) });
        }
        let next = |waiting: usize| (waiting < self.queue).then_some(waiting + 1);
        match self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(_) => Arrival::Queued(QueuedSlot(Arc::clone(self))),
            Err(_) => Arrival::Full,
        }
    }
}

impl QueuedSlot {
    /// Waits for a place. The order is that of the first polls, so the caller must poll it immediately. Dropping the future leaves the
    /// queue.
    pub async fn acquire(&self) -> GatePlace {
        loop {
            // The semaphore is never closed; if it were, there would be no limit.
            if let Ok(permit) = Arc::clone(&self.0.places).acquire_owned().await {
                return GatePlace { permit: Some(permit), gate: Arc::clone(&self.0) };
            }
        }
    }
}

impl Drop for QueuedSlot {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn inside(gate: &Arc<Gate>) -> GatePlace {
        match gate.enter() {
            Arrival::Inside(place) => place,
            other @ (Arrival::Queued(_) | Arrival::Full) => panic!("{other:?}"),
        }
    }

    fn queued(gate: &Arc<Gate>) -> QueuedSlot {
        match gate.enter() {
            Arrival::Queued(slot) => slot,
            other @ (Arrival::Inside(_) | Arrival::Full) => panic!("{other:?}"),
        }
    }

    fn polled<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn full_gate_grants_permits_in_order_of_arrival() {
        let gate = Arc::new(Gate::new(1, 2));
        let place = inside(&gate);
        let (first, second) = (queued(&gate), queued(&gate));
        assert!(matches!(gate.enter(), Arrival::Full));
        let (mut first, mut second) = (pin!(first.acquire()), pin!(second.acquire()));
        assert!(polled(first.as_mut()).is_none() && polled(second.as_mut()).is_none());
        drop(place);
        assert!(polled(second.as_mut()).is_none(), "the first in the queue comes first");
        let place = polled(first.as_mut()).unwrap();
        assert!(polled(second.as_mut()).is_none());
        drop(place);
        assert!(polled(second.as_mut()).is_some());
    }

    #[test]
    fn newcomer_does_not_overtake_the_queue_if_a_permit_is_free() {
        let gate = Arc::new(Gate::new(1, 2));
        let place = inside(&gate);
        let first = queued(&gate);
        let mut first = pin!(first.acquire());
        assert!(polled(first.as_mut()).is_none());
        drop(place);
        let second = queued(&gate);
        assert!(polled(first.as_mut()).is_some());
        drop(second);
    }

    #[test]
    fn lowered_limit_keeps_granted_permits_and_grants_none_early() {
        let gate = Arc::new(Gate::new(4, 2));
        let mut inside_now: Vec<_> = (0..3).map(|_| inside(&gate)).collect();
        gate.limit_to(1);
        assert_eq!((gate.limit(), gate.inside()), (1, 3));
        let slot = queued(&gate);
        let mut acquire = pin!(slot.acquire());
        for left in [2, 1] {
            inside_now.pop();
            assert!(polled(acquire.as_mut()).is_none(), "{left} are inside");
            assert_eq!(gate.inside(), left);
        }
        inside_now.pop();
        let place = polled(acquire.as_mut()).unwrap();
        // Raises the limit while some places are still to be removed.
        gate.limit_to(4);
        inside_now.extend((0..3).map(|_| inside(&gate)));
        gate.limit_to(2);
        gate.limit_to(3);
        assert_eq!((gate.limit(), gate.inside()), (3, 4));
        inside_now.pop();
        assert!(matches!(gate.enter(), Arrival::Queued(_)));
        inside_now.pop();
        inside_now.push(inside(&gate));
        drop((inside_now, place));
        assert_eq!(gate.inside(), 0);
        let all: Vec<_> = (0..3).map(|_| inside(&gate)).collect();
        assert!(matches!(gate.enter(), Arrival::Queued(_)));
        drop(all);
    }

    #[test]
    fn dropped_slot_leaves_the_queue() {
        let gate = Arc::new(Gate::new(1, 1));
        for _ in 0..100 {
            let place = inside(&gate);
            {
                let slot = queued(&gate);
                let mut acquire = pin!(slot.acquire());
                assert!(polled(acquire.as_mut()).is_none());
                assert!(matches!(gate.enter(), Arrival::Full));
            }
            // A place that was assigned but never taken.
            let slot = queued(&gate);
            {
                let mut acquire = pin!(slot.acquire());
                assert!(polled(acquire.as_mut()).is_none());
                drop(place);
            }
            drop(slot);
            assert_eq!((gate.inside(), gate.waiting()), (0, 0));
        }
    }
}
