//! Use counters by key, with guards that decrement them on drop.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// Number of uses by key (a principal, an address) and in total. A key without uses takes no
/// memory.
#[derive(Debug)]
pub struct KeyedCounts<K>(Mutex<Counts<K>>);

#[derive(Debug)]
struct Counts<K> {
    all: usize,
    by_key: HashMap<K, usize>,
}

/// One use, which counts until dropped.
#[derive(Debug)]
pub struct CountedUse<K: Eq + Hash> {
    counts: Arc<KeyedCounts<K>>,
    key: K,
}

/// Exhausted limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedUp {
    /// The limit of all keys together.
    All,
    /// The limit of this key, with its number of uses.
    Key(usize),
}

impl<K> Default for KeyedCounts<K> {
    fn default() -> Self {
        Self(Mutex::new(Counts { all: 0, by_key: HashMap::new() }))
    }
}

impl<K: Clone + Eq + Hash> KeyedCounts<K> {
    /// Counts one more use of `key`, within `max_of_key` and `max` in total.
    pub fn take(
        self: &Arc<Self>,
        key: K,
        max_of_key: usize,
        max: usize,
    ) -> Result<CountedUse<K>, UsedUp> {
        let mut counts = self.0.lock();
        if counts.all >= max {
            return Err(UsedUp::All);
        }
        let used = counts.by_key.get(&key).copied().unwrap_or_default();
        if used >= max_of_key {
            return Err(UsedUp::Key(used));
        }
        counts.all += 1;
        counts.by_key.insert(key.clone(), used + 1);
        Ok(CountedUse { counts: Arc::clone(self), key })
    }

    /// Number of keys in use.
    pub fn keys(&self) -> usize {
        self.0.lock().by_key.len()
    }
}

impl<K: Eq + Hash> Drop for CountedUse<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        counts.all = counts.all.saturating_sub(1);
        match counts.by_key.get_mut(&self.key) {
            Some(used) if *used > 1 => *used -= 1,
            Some(_) | None => drop(counts.by_key.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_bounded_by_key_and_in_total_and_end_with_their_guards() {
        let counts = Arc::<KeyedCounts<&str>>::default();
        let take = |key| counts.take(key, 2, 3);
        let (first, second) = (take("a").unwrap(), take("a").unwrap());
        assert_eq!(take("a").unwrap_err(), UsedUp::Key(2));
        let other = take("b").unwrap();
        assert_eq!(take("c").unwrap_err(), UsedUp::All);
        drop(first);
        let again = take("a").unwrap();
        assert_eq!(take("a").unwrap_err(), UsedUp::All, "the limit in all is checked first");
        drop((second, other, again));
        assert_eq!((counts.keys(), counts.0.lock().all), (0, 0));
    }
}
