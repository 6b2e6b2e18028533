//! What is kept for each of many keys (tools, principals), of which there may be any number: a bounded table.
//!
//! Each config has a number. What was made under an earlier one is kept where it is still what the config says, so that
//! what was counted goes on counting, and else made anew at the first question.
//!
//! A key that is in use stays; one that was idle for [`IDLE`] may go, and loses nothing by it. Where the table is full
//! of keys in use, those that come new share one entry.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Most keys of a table.
pub(super) const MAX_KEYS: usize = 16_384;
/// A key that was not asked for so long may go: every rate is what it was at first by then.
pub(super) const IDLE: Duration = Duration::from_secs(120);
/// Keys below which nothing is looked through.
const FEW: usize = 64;
/// A full table is looked through this often at most.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// What is kept for a key.
pub(super) trait Kept {
    /// Whether a request occupies something of it, so that it must not be made anew.
    fn is_held(&self) -> bool;

    /// Whether both limit the same, whatever they have counted.
    fn says_the_same(&self, other: &Self) -> bool;
}

/// The table.
#[derive(Debug)]
pub(super) struct Keyed<T>(Mutex<Table<T>>);

#[derive(Debug)]
struct Table<T> {
    entries: HashMap<u64, Slot<T>>,
    /// How many there are when it is looked through next.
    full: usize,
    swept: Option<Instant>,
    /// What those share that find no room, and the number of the config that it was last compared with.
    common: Option<(u64, Arc<T>)>,
}

#[derive(Debug)]
struct Slot<T> {
    value: Arc<T>,
    asked: Instant,
    /// The number of the config that it was last compared with.
    config: u64,
}

impl<T> Default for Keyed<T> {
    fn default() -> Self {
        let table = Table { entries: HashMap::new(), full: FEW, swept: None, common: None };
        Self(Mutex::new(table))
    }
}

impl<T: Kept> Keyed<T> {
    /// What is kept for `key` under the config of that number, made if need be.
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
                if !value.says_the_same(&slot.value) {
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
                if !value.says_the_same(common) {
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

impl<T: Kept> Table<T> {
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| now.saturating_duration_since(swept) < SWEEP_PAUSE)
            && self.entries.len() >= MAX_KEYS
        {
            return;
        }
        self.swept = Some(now);
        self.entries.retain(|_, slot| {
            Arc::strong_count(&slot.value) > 1
                || slot.value.is_held()
                || now.saturating_duration_since(slot.asked) < IDLE
        });
        self.full = (2 * self.entries.len()).clamp(FEW, MAX_KEYS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::clock;

    impl Kept for u64 {
        fn is_held(&self) -> bool {
            *self == 8
        }

        fn says_the_same(&self, other: &Self) -> bool {
            self == other
        }
    }

    #[test]
    fn idle_keys_go_and_those_in_use_stay() {
        let (table, start) = (Keyed::<u64>::default(), clock::now());
        let kept = table.get((7, 0), start, || 7);
        table.get((8, 0), start, || 8);
        for key in 100..100 + MAX_KEYS as u64 {
            table.get((key, 0), start, || key);
        }
        assert_eq!(table.len(), MAX_KEYS);
        let shared = table.get((1, 0), start, || 1);
        assert!(
            Arc::ptr_eq(&shared, &table.get((2, 0), start, || 2)),
            "those without room share one"
        );
        assert_eq!(table.len(), MAX_KEYS, "it does not grow");
        let same = table.get((1, 1), start, || *shared);
        assert!(Arc::ptr_eq(&shared, &same), "it says the same");
        assert_eq!(*table.get((1, 2), start, || 3), 3, "another config counts for them too");
        let later = start + IDLE + SWEEP_PAUSE;
        assert_eq!(*table.get((3, 0), later, || 3), 3, "there is room again");
        assert_eq!(table.len(), 3);
        assert!(Arc::ptr_eq(&kept, &table.get((7, 0), later, || 9)));
    }

    #[test]
    fn what_another_config_says_the_same_of_is_kept_and_the_rest_made_anew() {
        let (table, now) = (Keyed::<u64>::default(), clock::now());
        let (same, other) = (table.get((1, 0), now, || 5), table.get((2, 0), now, || 5));
        assert!(Arc::ptr_eq(&same, &table.get((1, 1), now, || 5)));
        let next = table.get((2, 1), now, || 6);
        assert!(!Arc::ptr_eq(&other, &next) && *next == 6);
        // A request that began under the config before is held to what is in force.
        assert!(Arc::ptr_eq(&next, &table.get((2, 0), now, || 5)));
    }
}
