//! Calls in a minute: so many at once at first, then evenly.
//!
//! The time is the monotonic clock's, so that no step of the clock on the wall opens or closes anything.

use std::num::NonZeroU32;
use std::ops::Add;
use std::time::{Duration, Instant};

use governor::clock::{Clock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

use crate::io::clock;

/// What may come in a minute, and how much of it did.
#[derive(Debug)]
pub(super) struct Rate<C: Clock = CallClock> {
    limiter: RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<C::Instant>>,
    clock: C,
    limit: NonZeroU32,
}

/// The time that a call began, or a little later: this thread's last reading.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallClock;

/// A time of [`CallClock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At(Instant);

impl Add<Nanos> for At {
    type Output = Self;

    fn add(self, more: Nanos) -> Self {
        Self(self.0.checked_add(more.into()).unwrap_or(self.0))
    }
}

impl Reference for At {
    fn duration_since(&self, earlier: Self) -> Nanos {
        self.0.saturating_duration_since(earlier.0).into()
    }

    fn saturating_sub(&self, duration: Nanos) -> Self {
        Self(self.0.checked_sub(duration.into()).unwrap_or(self.0))
    }
}

impl Clock for CallClock {
    type Instant = At;

    fn now(&self) -> At {
        At(clock::lately())
    }
}

impl Rate {
    /// So many in a minute.
    pub(super) fn new(limit: NonZeroU32) -> Self {
        Self::by(limit, CallClock)
    }
}

impl<C: Clock + Clone> Rate<C> {
    fn by(limit: NonZeroU32, clock: C) -> Self {
        let limiter = RateLimiter::direct_with_clock(Quota::per_minute(limit), clock.clone());
        Self { limiter, clock, limit }
    }

    /// How many may come in a minute.
    pub(super) fn limit(&self) -> NonZeroU32 {
        self.limit
    }

    /// How many may come here, where so many nodes share it: at least one.
    pub(super) fn limit_of(&self, nodes: NonZeroU32) -> NonZeroU32 {
        NonZeroU32::new(self.limit.get() / nodes).unwrap_or(NonZeroU32::MIN)
    }

    /// Counts one more, as one for each node that shares it: so that what is left goes on counting when there are more or
    /// fewer of them.
    ///
    /// # Errors
    /// When the next may come; nothing is counted.
    pub(super) fn take(&self, nodes: NonZeroU32) -> Result<(), Duration> {
        // More than there are in a minute are never let in: then it is one in a minute.
        let taken = self.limiter.check_n(nodes.min(self.limit));
        let early = taken.unwrap_or(Ok(()));
        early.map_err(|early| early.wait_time_from(self.clock.now()))
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    const ONE: NonZeroU32 = NonZeroU32::MIN;

    #[test]
    fn nodes_that_share_it_let_in_no_more_than_one_alone_and_each_at_least_one() {
        for (limit, nodes) in [(60, 3), (60, 7), (10, 4), (2, 2), (1, 1)] {
            let (clock, of) = (FakeRelativeClock::default(), NonZeroU32::new(nodes).unwrap());
            let rates: Vec<_> = (0..nodes)
                .map(|_| Rate::by(NonZeroU32::new(limit).unwrap(), clock.clone()))
                .collect();
            let come = |rates: &[Rate<FakeRelativeClock>]| {
                rates.iter().map(|rate| (0..limit).filter(|_| rate.take(of).is_ok()).count()).sum()
            };
            let first: usize = come(&rates);
            let share = limit / nodes;
            assert_eq!((first as u32, rates[0].limit_of(of).get()), (share * nodes, share));
            let mut later = 0;
            for _ in 0..600 {
                clock.advance(Duration::from_millis(100));
                later += come(&rates);
            }
            // What is left of a share counts for the next call: of each node one more.
            let most = limit + nodes;
            assert!(later as u32 <= most, "{later} of {limit} in the minute after, {nodes} nodes");
        }
        // More nodes than calls: one in a minute at each.
        let clock = FakeRelativeClock::default();
        let rate = Rate::by(NonZeroU32::new(2).unwrap(), clock.clone());
        let many = NonZeroU32::new(9).unwrap();
        assert!(rate.take(many).is_ok() && rate.take(many).is_err());
        clock.advance(Duration::from_secs(60));
        assert!(rate.take(many).is_ok());
        assert_eq!(rate.limit_of(many).get(), 1);
    }

    #[test]
    fn what_is_left_goes_on_counting_when_there_are_others() {
        let clock = FakeRelativeClock::default();
        let rate = Rate::by(NonZeroU32::new(60).unwrap(), clock);
        assert!((0..30).all(|_| rate.take(ONE).is_ok()));
        let three = NonZeroU32::new(3).unwrap();
        assert_eq!((0..60).filter(|_| rate.take(three).is_ok()).count(), 10, "a third of the rest");
        assert!(rate.take(ONE).is_err(), "it does not begin anew");
    }

    #[test]
    fn so_many_at_once_then_evenly_and_the_wait_is_told() {
        let clock = FakeRelativeClock::default();
        let rate = Rate::by(NonZeroU32::new(60).unwrap(), clock.clone());
        assert!((0..60).all(|_| rate.take(ONE).is_ok()));
        let wait = rate.take(ONE).unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(1), "{wait:?}");
        assert_eq!(rate.take(ONE), Err(wait), "a refused one is not counted");
        clock.advance(wait);
        assert_eq!(rate.take(ONE), Ok(()));
        assert!(rate.take(ONE).is_err());
        clock.advance(Duration::from_secs(3600));
        assert_eq!(
            (0..100).filter(|_| rate.take(ONE).is_ok()).count(),
            60,
            "no more than at first"
        );
    }

    #[test]
    fn the_clock_never_runs_back() {
        let now = CallClock.now();
        assert_eq!(now.duration_since(now + Nanos::new(5)), Nanos::new(0));
        assert_eq!((now + Nanos::new(5)).duration_since(now), Nanos::new(5));
    }
}
