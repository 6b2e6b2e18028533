//! A gate that lets in so many at a time, with a bounded queue before it, in order of arrival.
//!
//! Owns the counting and the order. Who comes, how long they wait and what they are told when the queue is full is
//! the caller's.
//!
//! ```text
//! enter ─┬─▶ Inside(GatePlace)                 a place is free, and nobody waits for it
//!        ├─▶ Queued(Turn) ── come() ──▶ GatePlace
//!        └─▶ Full
//! ```
//!
//! A [`GatePlace`] and a [`Turn`] are given back when they are dropped, however that comes about.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A gate. Shared by all who come to it.
#[derive(Debug)]
pub struct Gate {
    places: Arc<Semaphore>,
    limit: usize,
    queue: usize,
    waiting: AtomicUsize,
}

/// What becomes of one who comes.
#[derive(Debug)]
pub enum Arrival {
    /// They are inside.
    Inside(GatePlace),
    /// They wait for their turn.
    Queued(Turn),
    /// As many are inside and in the queue as may be.
    Full,
}

/// A place inside, until it is dropped.
#[derive(Debug)]
pub struct GatePlace {
    _permit: OwnedSemaphorePermit,
}

/// A place in the queue, until it is dropped.
#[derive(Debug)]
pub struct Turn(Arc<Gate>);

impl Gate {
    /// Lets in `limit` at a time, before which `queue` may wait. A limit past what can be counted is none.
    #[must_use]
    pub fn new(limit: usize, queue: usize) -> Self {
        let places = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Self { places, limit, queue, waiting: AtomicUsize::new(0) }
    }

    /// How many may be inside.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How many may wait.
    #[must_use]
    pub fn queue(&self) -> usize {
        self.queue
    }

    /// How many wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many are inside now.
    #[must_use]
    pub fn inside(&self) -> usize {
        self.limit.saturating_sub(self.places.available_permits())
    }

    /// Goes in, or takes a place in the queue. A place that becomes free is given to whoever waits longest, so that
    /// nobody who comes later goes in before them.
    #[must_use]
    pub fn enter(self: &Arc<Self>) -> Arrival {
        if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
            return Arrival::Inside(GatePlace { _permit: permit });
        }
        let room = |waiting: usize| (waiting < self.queue).then_some(waiting + 1);
        match self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room) {
            Ok(_) => Arrival::Queued(Turn(Arc::clone(self))),
            Err(_) => Arrival::Full,
        }
    }
}

impl Turn {
    /// Waits until it is their turn. The order is that in which this is first polled, which whoever comes does at
    /// once; dropped, it leaves the queue.
    pub async fn come(&self) -> GatePlace {
        loop {
            // It is never closed; were it, there would be no limit to keep.
            if let Ok(permit) = Arc::clone(&self.0.places).acquire_owned().await {
                return GatePlace { _permit: permit };
            }
        }
    }
}

impl Drop for Turn {
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

    fn queued(gate: &Arc<Gate>) -> Turn {
        match gate.enter() {
            Arrival::Queued(turn) => turn,
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
    fn places_are_given_in_order_of_arrival() {
        let gate = Arc::new(Gate::new(1, 2));
        let place = inside(&gate);
        let (first, second) = (queued(&gate), queued(&gate));
        assert!(matches!(gate.enter(), Arrival::Full));
        let (mut first, mut second) = (pin!(first.come()), pin!(second.come()));
        assert!(polled(first.as_mut()).is_none() && polled(second.as_mut()).is_none());
        drop(place);
        assert!(polled(second.as_mut()).is_none(), "the other came before");
        let place = polled(first.as_mut()).unwrap();
        assert!(polled(second.as_mut()).is_none());
        drop(place);
        assert!(polled(second.as_mut()).is_some());
    }

    #[test]
    fn nobody_goes_in_before_those_who_wait() {
        let gate = Arc::new(Gate::new(1, 2));
        let place = inside(&gate);
        let first = queued(&gate);
        let mut first = pin!(first.come());
        assert!(polled(first.as_mut()).is_none());
        drop(place);
        let second = queued(&gate);
        assert!(polled(first.as_mut()).is_some());
        drop(second);
    }

    #[test]
    fn who_goes_away_leaves_nothing_behind() {
        let gate = Arc::new(Gate::new(1, 1));
        for _ in 0..100 {
            let place = inside(&gate);
            {
                let turn = queued(&gate);
                let mut come = pin!(turn.come());
                assert!(polled(come.as_mut()).is_none());
                assert!(matches!(gate.enter(), Arrival::Full));
            }
            // Given a place already, and gone before they took it.
            let turn = queued(&gate);
            {
                let mut come = pin!(turn.come());
                assert!(polled(come.as_mut()).is_none());
                drop(place);
            }
            drop(turn);
            assert_eq!((gate.inside(), gate.waiting()), (0, 0));
        }
    }
}
