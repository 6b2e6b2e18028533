//! Ids for our requests: numbers that a server cannot guess from those it has seen.
//!
//! An answer is known by its id alone, so whoever could tell the next one could answer it before it
//! was asked, in the place of whom it is for. They are the output of a keyed hash (BLAKE3, extended)
//! under a key of the thread's own: nobody shares its state, and only the first one of a thread
//! costs a system call. Who waits for which is [`super::pending`].

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use super::pending::{FIRST_ID, LAST_ID};

thread_local! {
    static IDS: RefCell<Ids> = RefCell::new(Ids::new(&key()));
}

/// A fresh id, from [`FIRST_ID`] to [`LAST_ID`].
#[must_use]
pub(super) fn fresh() -> u64 {
    IDS.with_borrow_mut(Ids::next)
}

/// A stream of ids under one key.
struct Ids {
    stream: blake3::OutputReader,
}

impl Ids {
    fn new(key: &[u8; 32]) -> Self {
        Self { stream: blake3::Hasher::new_keyed(key).finalize_xof() }
    }

    fn next(&mut self) -> u64 {
        const RANGE: u64 = LAST_ID - FIRST_ID + 1;
        let mut bytes = [0; 8];
        self.stream.fill(&mut bytes);
        // What 2⁶⁴ leaves over makes no id likelier by more than one in 200 000.
        FIRST_ID + u64::from_le_bytes(bytes) % RANGE
    }
}

fn key() -> [u8; 32] {
    let mut key = [0; 32];
    if getrandom::fill(&mut key).is_err() {
        // The standard library's tables are keyed with randomness of the system's as well, and it
        // ends the process where there is none.
        for part in key.chunks_mut(8) {
            let random = RandomState::new().hash_one(part.len()).to_ne_bytes();
            part.copy_from_slice(random.get(..part.len()).unwrap_or_default());
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_in_range_differ_and_tell_nothing_of_the_next() {
        let ids: Vec<u64> = (0..10_000).map(|_| fresh()).collect();
        assert!(ids.iter().all(|id| (FIRST_ID..=LAST_ID).contains(id)));
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        let steps: HashSet<i64> =
            ids.windows(2).map(|pair| pair[1].cast_signed() - pair[0].cast_signed()).collect();
        assert_eq!(steps.len(), ids.len() - 1, "no step comes twice");
        let upper = ids.iter().filter(|id| **id > FIRST_ID.midpoint(LAST_ID)).count();
        assert!((4500..5500).contains(&upper), "{upper}");
    }

    #[test]
    fn each_thread_has_a_key_of_its_own() {
        let other = std::thread::spawn(|| [fresh(), fresh()]).join().unwrap();
        assert_ne!(other, [fresh(), fresh()]);
        assert_ne!(key(), key());
        assert_eq!(Ids::new(&[7; 32]).next(), Ids::new(&[7; 32]).next());
    }
}
