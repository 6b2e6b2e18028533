//! How long things took: counted in buckets whose width grows with the duration, an eighth of a power
//! of two each, so that a quantile is off by 6 % at most.

use std::time::Duration;

use super::counter::Counter;

/// Bits of a duration that are kept beside its highest one.
const KEPT_BITS: u32 = 3;
const EIGHTHS: u64 = 1 << KEPT_BITS;
/// Of durations of so many bits, in microseconds: 71 minutes. Longer ones count as that.
const MAX_BITS: u32 = 32;
/// Buckets: one for each microsecond at first, then eight for each power of two.
const BUCKETS: usize = (EIGHTHS + EIGHTHS * (MAX_BITS - KEPT_BITS) as u64) as usize;

/// Durations, written by one thread.
#[derive(Debug)]
pub(super) struct Histogram {
    buckets: [Counter; BUCKETS],
    /// Microseconds.
    sum: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { Counter::new() }; BUCKETS], sum: Counter::new() }
    }
}

impl Histogram {
    pub(super) fn add(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get(bucket(us)) {
            bucket.add(1);
        }
        self.sum.add(us);
    }
}

/// Durations of several threads together, as they were at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durations {
    buckets: Box<[u64; BUCKETS]>,
    /// Microseconds.
    sum: u64,
}

impl Default for Durations {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), sum: 0 }
    }
}

impl Durations {
    pub(super) fn add(&mut self, histogram: &Histogram) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += bucket.get();
        }
        self.sum += histogram.sum.get();
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// All of them together, in microseconds.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// What so many of a hundred do not exceed, in microseconds; none if there are none.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let rank = (self.count() * percent).div_ceil(100);
        let mut seen = 0;
        let reached = |count: &u64| {
            seen += count;
            seen >= rank
        };
        let bucket = self.buckets.iter().position(reached).filter(|_| rank > 0)?;
        Some(middle(bucket))
    }

    /// Every bucket that is not empty: the most microseconds in it, and how many there are.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(bucket, count)| (least(bucket + 1) - 1, *count))
    }
}

/// Where so many microseconds are counted.
fn bucket(us: u64) -> usize {
    let us = us.min((1 << MAX_BITS) - 1);
    let shift = us.checked_ilog2().unwrap_or(0).saturating_sub(KEPT_BITS);
    (u64::from(shift) * EIGHTHS + (us >> shift)) as usize
}

/// The least that is counted there.
fn least(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / EIGHTHS).saturating_sub(1);
    (bucket - shift * EIGHTHS) << shift
}

fn middle(bucket: usize) -> u64 {
    let (from, to) = (least(bucket), least(bucket + 1));
    from + (to - from) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_has_its_bucket_and_every_bucket_its_durations() {
        for at in 0..BUCKETS {
            assert_eq!((bucket(least(at)), bucket(least(at + 1) - 1)), (at, at));
            assert!((least(at)..least(at + 1)).contains(&middle(at)), "{at}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        for us in (0..40).flat_map(|bits| [1u64 << bits, (1 << bits) + 1, (3 << bits) / 2]) {
            let told = middle(bucket(us)) as f64;
            let exact = us.min(1 << MAX_BITS) as f64;
            assert!((told - exact).abs() <= exact / 16.0 + 1.0, "{us}: {told}");
        }
    }

    #[test]
    fn percentiles_are_those_of_what_was_added() {
        let (one, other, mut both) =
            (Histogram::default(), Histogram::default(), Durations::default());
        assert_eq!((both.count(), both.percentile(50)), (0, None));
        for us in 1..=1000 {
            let histogram = if us % 2 == 0 { &one } else { &other };
            histogram.add(Duration::from_micros(us));
        }
        both.add(&one);
        both.add(&other);
        assert_eq!((both.count(), both.sum()), (1000, 500_500));
        for (percent, exact) in [(1, 10), (50, 500), (99, 990), (100, 1000)] {
            let told = both.percentile(percent).unwrap();
            assert!(told.abs_diff(exact) <= exact / 16 + 1, "p{percent}: {told}");
        }
        assert_eq!(both.buckets().map(|(_, count)| count).sum::<u64>(), 1000);
    }
}
