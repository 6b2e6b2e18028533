//! Token bucket (GCRA) for calls per minute, with a burst of the same size, and for denials per second, with a separate
//! burst; and the bounded table of buckets by key.
//!
//! Uses the monotonic clock, so steps of the wall clock have no effect.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use mcpproxy_runtime::io::clock;

/// Token bucket per minute or second: the generic cell rate algorithm.
///
/// Invariant: `full_at` is the time at which the bucket is full again. It is never more than `burst` intervals ahead.
#[derive(Debug)]
pub(super) struct Rate {
    /// Time from which `full_at` is counted.
    start: Instant,
    /// Time at which the bucket is full again, in nanoseconds since `start`.
    full_at: AtomicU64,
    /// Nanoseconds in which one token is added.
    interval: u64,
    limit: NonZeroU32,
    burst: NonZeroU32,
}

impl Rate {
    /// Bucket for calls per minute.
    pub(super) fn new(limit: NonZeroU32) -> Self {
        Self::starting(clock::lately(), Duration::from_secs(60), limit, limit)
    }

    /// Bucket for events per second with a burst.
    pub(super) fn per_second(limit: NonZeroU32, burst: NonZeroU32) -> Self {
        Self::starting(clock::lately(), Duration::from_secs(1), limit, burst)
    }

    /// Bucket that adds `limit` tokens per `period`, at most a minute. The bucket is full at `start`.
    fn starting(start: Instant, period: Duration, limit: NonZeroU32, burst: NonZeroU32) -> Self {
        let interval = (nanoseconds(period) / u64::from(limit.get())).max(1);
        Self { start, full_at: AtomicU64::new(0), interval, limit, burst }
    }

    pub(super) fn burst(&self) -> NonZeroU32 {
        self.burst
    }

    pub(super) fn limit(&self) -> NonZeroU32 {
        self.limit
    }

    /// This node's share of the limit among `nodes`, at least one.
    pub(super) fn limit_of(&self, nodes: NonZeroU32) -> NonZeroU32 {
        NonZeroU32::new(self.limit.get() / nodes).unwrap_or(NonZeroU32::MIN)
    }

    /// Takes one token per node that shares the limit, so that the remaining tokens stay correct when nodes come and
    /// go. The error is the time until the next token.
    pub(super) fn take(&self, nodes: NonZeroU32) -> Result<(), Duration> {
        self.take_at(nodes, clock::lately())
    }

    fn take_at(&self, nodes: NonZeroU32, now: Instant) -> Result<(), Duration> {
        let now = nanoseconds(now.saturating_duration_since(self.start));
        // A request larger than the burst would never pass, so it is capped.
        let taken = u64::from(nodes.min(self.burst).get()) * self.interval;
        let capacity = u64::from(self.burst.get()) * self.interval;
        let next = |full_at: u64| full_at.max(now).saturating_add(taken);
        let passes = |full_at: u64| Some(next(full_at)).filter(|next| *next <= now + capacity);
        match self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, passes) {
            Ok(_) => Ok(()),
            Err(full_at) => Err(Duration::from_nanos(next(full_at) - now - capacity)),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Maximum number of keys of a table.
pub(super) const MAX_KEYS: usize = 16_384;
/// Idle time after which an entry may be evicted: every rate has recovered by then.
pub(super) const IDLE: Duration = Duration::from_secs(120);
/// Minimum size at which the table is swept.
const FEW: usize = 64;
/// Minimum time between sweeps of a full table.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// Entry of a table by key.
pub(super) trait CountedEntry {
    /// Whether a request holds a slot of the entry, which must not be replaced in that case.
    fn is_in_use(&self) -> bool;

    /// Whether both have the same limit, regardless of their counts.
    fn has_same_limit(&self, other: &Self) -> bool;
}

#[derive(Debug)]
pub(super) struct KeyedTable<T>(Mutex<Table<T>>);

#[derive(Debug)]
struct Table<T> {
    entries: HashMap<u64, Slot<T>>,
    /// Size at which the next sweep runs.
    full: usize,
    swept: Option<Instant>,
    /// Entry shared by keys beyond the bound, and the number of the config that it was last compared with.
    common: Option<(u64, Arc<T>)>,
}

#[derive(Debug)]
struct Slot<T> {
    value: Arc<T>,
    asked: Instant,
    /// Number of the config that the entry was last compared with.
    config: u64,
}

impl<T> Default for KeyedTable<T> {
    fn default() -> Self {
        let table = Table { entries: HashMap::new(), full: FEW, swept: None, common: None };
        Self(Mutex::new(table))
    }
}

impl<T: CountedEntry> KeyedTable<T> {
    /// Entry of `key` under a config, created if missing. An entry of an earlier config is kept if its limit is
    /// unchanged.
    pub(super) fn get(
        &self,
        (key, config): (u64, u64),
        now: Instant,
        make: impl FnOnce() -> T,
    ) -> Arc<T> {
        let mut table = self.0.lock();
        if let Some(slot) = table.entries.get_mut(&key) {
            slot.asked = now;
            if slot.config < config {
                slot.config = config;
                let value = make();
                if !value.has_same_limit(&slot.value) {
                    slot.value = Arc::new(value);
                }
            }
            return Arc::clone(&slot.value);
        }
        if table.entries.len() >= table.full {
            table.sweep(now);
        }
        if table.entries.len() >= MAX_KEYS {
            let Some((compared, common)) = &mut table.common else {
                let common = Arc::new(make());
                table.common = Some((config, Arc::clone(&common)));
                return common;
            };
            if *compared < config {
                *compared = config;
                let value = make();
                if !value.has_same_limit(common) {
                    *common = Arc::new(value);
                }
            }
            return Arc::clone(common);
        }
        let value = Arc::new(make());
        table.entries.insert(key, Slot { value: Arc::clone(&value), asked: now, config });
        value
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().entries.len()
    }
}

impl<T: CountedEntry> Table<T> {
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| now.saturating_duration_since(swept) < SWEEP_PAUSE)
            && self.entries.len() >= MAX_KEYS
        {
            return;
        }
        self.swept = Some(now);
        self.entries.retain(|_, slot| {
            Arc::strong_count(&slot.value) > 1
                || slot.value.is_in_use()
                || now.saturating_duration_since(slot.asked) < IDLE
        });
        self.full = (2 * self.entries.len()).clamp(FEW, MAX_KEYS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NonZeroU32 = NonZeroU32::MIN;

    fn count(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    fn per_minute(start: Instant, limit: u32) -> Rate {
        Rate::starting(start, Duration::from_secs(60), count(limit), count(limit))
    }

    #[test]
    fn shared_rate_is_split_with_at_least_one_per_node() {
        for (limit, nodes) in [(60, 3), (60, 7), (10, 4), (2, 2), (1, 1)] {
            let (mut now, of) = (clock::now(), count(nodes));
            let rates: Vec<_> = (0..nodes).map(|_| per_minute(now, limit)).collect();
            let come = |now: Instant| -> usize {
                let taken =
                    |rate: &Rate| (0..limit).filter(|_| rate.take_at(of, now).is_ok()).count();
                rates.iter().map(taken).sum()
            };
            let first = come(now);
            let share = limit / nodes;
            assert_eq!((first as u32, rates[0].limit_of(of).get()), (share * nodes, share));
            let mut later = 0;
            for _ in 0..600 {
                now += Duration::from_millis(100);
                later += come(now);
            }
            // The unused part of a share can complete one further call per node.
            let max = limit + nodes;
            assert!(later as u32 <= max, "{later} of {limit} in the minute after, {nodes} nodes");
        }
        // If there are more nodes than calls, each node allows one per minute.
        let now = clock::now();
        let (rate, many) = (per_minute(now, 2), count(9));
        assert!(rate.take_at(many, now).is_ok() && rate.take_at(many, now).is_err());
        assert!(rate.take_at(many, now + Duration::from_secs(60)).is_ok());
        assert_eq!(rate.limit_of(many).get(), 1);
    }

    #[test]
    fn remaining_tokens_survive_a_change_of_nodes() {
        let now = clock::now();
        let rate = per_minute(now, 60);
        let taken = |of: u32| (0..60).filter(|_| rate.take_at(count(of), now).is_ok()).count();
        assert!((0..30).all(|_| rate.take_at(ONE, now).is_ok()));
        assert_eq!(taken(3), 10, "a third of the rest");
        assert_eq!(taken(1), 0, "the bucket is not reset");
    }

    #[test]
    fn rate_allows_a_burst_then_even_spacing() {
        let now = clock::now();
        let rate = per_minute(now, 60);
        assert!((0..60).all(|_| rate.take_at(ONE, now).is_ok()));
        let wait = rate.take_at(ONE, now).unwrap_err();
        assert_eq!(wait, Duration::from_secs(1));
        assert_eq!(rate.take_at(ONE, now), Err(wait), "denials are not counted");
        let next = now + wait;
        assert!(rate.take_at(ONE, next - Duration::from_nanos(1)).is_err());
        assert_eq!(rate.take_at(ONE, next), Ok(()));
        assert_eq!(rate.take_at(ONE, next), Err(wait));
        let later = next + Duration::from_secs(3600);
        let taken = (0..100).filter(|_| rate.take_at(ONE, later).is_ok()).count();
        assert_eq!(taken, 60, "no more than the initial burst");
    }

    #[test]
    fn burst_passes_at_once_and_later_calls_pass_at_the_rate_per_second() {
        let mut now = clock::now();
        let rate = Rate::starting(now, Duration::from_secs(1), count(50), count(500));
        let taken = |of, now| (0..10_000).filter(|_| rate.take_at(count(of), now).is_ok()).count();
        assert_eq!(taken(1, now), 500);
        for _ in 0..10 {
            now += Duration::from_secs(1);
            assert_eq!(taken(1, now), 50);
        }
        now += Duration::from_secs(60);
        assert_eq!(taken(1, now), 500);
        // Each node that shares the bucket gets a part.
        assert_eq!(taken(5, now + Duration::from_secs(60)), 100);
    }

    // Requirement LIM-5.
    #[test]
    fn backward_clock_steps_do_not_release_calls() {
        let now = clock::now();
        let rate = per_minute(now, 1);
        assert_eq!(rate.take_at(ONE, now), Ok(()));
        let before = now.checked_sub(Duration::from_secs(5)).unwrap();
        assert_eq!(rate.take_at(ONE, before), Err(Duration::from_secs(60)));
        assert_eq!(rate.take_at(ONE, now + Duration::from_secs(60)), Ok(()));
    }
}

#[cfg(test)]
mod keyed_tests {
    use super::*;
    use mcpproxy_runtime::io::clock;

    impl CountedEntry for u64 {
        fn is_in_use(&self) -> bool {
            *self == 8
        }

        fn has_same_limit(&self, other: &Self) -> bool {
            self == other
        }
    }

    // Requirement LIM-5.
    #[test]
    fn idle_keys_are_evicted_and_used_keys_stay() {
        let (table, start) = (KeyedTable::<u64>::default(), clock::now());
        let kept = table.get((7, 0), start, || 7);
        table.get((8, 0), start, || 8);
        for key in 100..100 + MAX_KEYS as u64 {
            table.get((key, 0), start, || key);
        }
        assert_eq!(table.len(), MAX_KEYS);
        let shared = table.get((1, 0), start, || 1);
        assert!(
            Arc::ptr_eq(&shared, &table.get((2, 0), start, || 2)),
            "keys beyond the bound share an entry"
        );
        assert_eq!(table.len(), MAX_KEYS, "it does not grow");
        let same = table.get((1, 1), start, || *shared);
        assert!(Arc::ptr_eq(&shared, &same), "the limit is unchanged");
        assert_eq!(*table.get((1, 2), start, || 3), 3, "a new config applies to the shared entry");
        let later = start + IDLE + SWEEP_PAUSE;
        assert_eq!(*table.get((3, 0), later, || 3), 3, "evicted keys make room");
        assert_eq!(table.len(), 3);
        assert!(Arc::ptr_eq(&kept, &table.get((7, 0), later, || 9)));
    }

    #[test]
    fn unchanged_limits_keep_their_counts() {
        let (table, now) = (KeyedTable::<u64>::default(), clock::now());
        let (same, other) = (table.get((1, 0), now, || 5), table.get((2, 0), now, || 5));
        assert!(Arc::ptr_eq(&same, &table.get((1, 1), now, || 5)));
        let next = table.get((2, 1), now, || 6);
        assert!(!Arc::ptr_eq(&other, &next) && *next == 6);
        // A request that began under the previous config uses the current limits.
        assert!(Arc::ptr_eq(&next, &table.get((2, 0), now, || 5)));
    }
}
