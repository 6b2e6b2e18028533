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

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A gate. Shared by all who come to it.
#[derive(Debug)]
pub struct Gate {
    places: Arc<Semaphore>,
    /// How many may be inside now.
    limit: AtomicUsize,
    /// How many of those inside are more than may be: their places go with them.
    owed: AtomicUsize,
    /// Held while the limit is changed.
    changing: Mutex<()>,
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
    /// There until it is dropped.
    permit: Option<OwnedSemaphorePermit>,
    gate: Arc<Gate>,
}

impl Drop for GatePlace {
    fn drop(&mut self) {
        let pay = |owed: usize| owed.checked_sub(1);
        let owes = self.gate.owed.load(Ordering::Relaxed) > 0
            && self.gate.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_ok();
        if owes && let Some(permit) = self.permit.take() {
            permit.forget();
        }
    }
}

/// A place in the queue, until it is dropped.
#[derive(Debug)]
pub struct Turn(Arc<Gate>);

impl Gate {
    /// Lets in `limit` at a time, before which `queue` may wait. A limit past what can be counted is none.
    #[must_use]
    pub fn new(limit: usize, queue: usize) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(limit)),
            limit: AtomicUsize::new(limit),
            owed: AtomicUsize::new(0),
            changing: Mutex::new(()),
            queue,
            waiting: AtomicUsize::new(0),
        }
    }

    /// How many may be inside.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// From now on so many may be inside. Who is inside stays: nobody comes in until there are fewer. Costs one reading where
    /// that is so already.
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
            self.owed.fetch_add(fewer - forgotten, Ordering::Relaxed);
            return;
        }
        // Those who are too many inside have theirs already.
        let more = limit - before;
        let pay = |owed: usize| Some(owed - owed.min(more));
        let owed = self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
        self.places.add_permits(more - owed.map_or(0, |owed| owed.min(more)));
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
        let owed = self.owed.load(Ordering::Relaxed);
        (self.limit() + owed).saturating_sub(self.places.available_permits())
    }

    /// Goes in, or takes a place in the queue. A place that becomes free is given to whoever waits longest, so that
    /// nobody who comes later goes in before them.
    #[must_use]
    pub fn enter(self: &Arc<Self>) -> Arrival {
        if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
            return Arrival::Inside(GatePlace { permit: Some(permit), gate: Arc::clone(self) });
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
                return GatePlace { permit: Some(permit), gate: Arc::clone(&self.0) };
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
    fn with_another_limit_nobody_is_sent_out_and_nobody_comes_in_too_early() {
        let gate = Arc::new(Gate::new(4, 2));
        let mut inside_now: Vec<_> = (0..3).map(|_| inside(&gate)).collect();
        gate.limit_to(1);
        assert_eq!((gate.limit(), gate.inside()), (1, 3));
        let turn = queued(&gate);
        let mut come = pin!(turn.come());
        for left in [2, 1] {
            inside_now.pop();
            assert!(polled(come.as_mut()).is_none(), "{left} are inside");
            assert_eq!(gate.inside(), left);
        }
        inside_now.pop();
        let place = polled(come.as_mut()).unwrap();
        // More again, some of it while others are still to go.
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
