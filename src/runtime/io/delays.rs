//! Delays between the attempts of a failing operation: exponential, with jitter.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Endless sequence of delays. The base starts at the minimum and doubles up to the maximum; each delay is the base
/// plus a random fraction of the base.
#[derive(Clone, Debug)]
pub struct RetryDelays {
    base: Duration,
    max: Duration,
}

impl RetryDelays {
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { base: min, max }
    }

    pub fn next_delay(&mut self) -> Duration {
        // Hash table keys are random, and nothing secret depends on this value.
        let random = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
        let delay = self.base.mul_f64(1.0 + random);
        self.base = (self.base * 2).min(self.max);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_and_vary() {
        let of = |ms| Duration::from_millis(ms);
        let series = || {
            let mut delays = RetryDelays::new(of(100), of(350));
            [(); 5].map(|()| delays.next_delay())
        };
        let first = series();
        for (delay, base) in first.into_iter().zip([100, 200, 350, 350, 350]) {
            assert!((of(base)..=of(2 * base)).contains(&delay), "{delay:?} of {base} ms");
        }
        assert_ne!(first, series());
    }
}
