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

    /// Counts one more.
    ///
    /// # Errors
    /// When the next may come; nothing is counted.
    pub(super) fn take(&self) -> Result<(), Duration> {
        self.limiter.check().map_err(|early| early.wait_time_from(self.clock.now()))
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    #[test]
    fn so_many_at_once_then_evenly_and_the_wait_is_told() {
        let clock = FakeRelativeClock::default();
        let rate = Rate::by(NonZeroU32::new(60).unwrap(), clock.clone());
        assert!((0..60).all(|_| rate.take().is_ok()));
        let wait = rate.take().unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(1), "{wait:?}");
        assert_eq!(rate.take(), Err(wait), "a refused one is not counted");
        clock.advance(wait);
        assert_eq!(rate.take(), Ok(()));
        assert!(rate.take().is_err());
        clock.advance(Duration::from_secs(3600));
        assert_eq!((0..100).filter(|_| rate.take().is_ok()).count(), 60, "no more than at first");
    }

    #[test]
    fn the_clock_never_runs_back() {
        let now = CallClock.now();
        assert_eq!(now.duration_since(now + Nanos::new(5)), Nanos::new(0));
        assert_eq!((now + Nanos::new(5)).duration_since(now), Nanos::new(5));
    }
}
