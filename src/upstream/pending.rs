//! Pending calls of one connection by request id.
//!
//! Ids have exactly ten digits and fit in 31 bits: they never collide with those of the lifecycle on the same
//! connection, and servers that store ids as 32-bit integers or doubles return them unchanged. Sans-I/O: the caller
//! supplies ids, lock and waiters.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use thiserror::Error;

/// Lowest id of a call. The lifecycle counts up from 0 and never reaches this id.
pub(crate) const FIRST_ID: u64 = 1 << 30;
/// Highest id of a call.
pub(crate) const LAST_ID: u64 = (1 << 31) - 1;
/// Maximum number of pending calls per connection.
pub(crate) const MAX_WAITING: usize = 4096;

/// Number of answered ids, and of abandoned ids, remembered per connection.
pub(crate) const REMEMBERED: usize = 1024;

/// Error for a connection with too many pending calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{MAX_WAITING} calls are waiting for this server")]
pub(crate) struct Full;

/// Whether an id is in the range of the proxy's calls.
pub(crate) fn is_ours(id: u64) -> bool {
    (FIRST_ID..=LAST_ID).contains(&id)
}

/// Kind of a response for which no call is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmatched {
    Duplicate,
    /// Response to a call that was abandoned earlier.
    Late,
    Unknown,
}

/// Table of pending calls.
#[derive(Debug)]
pub(crate) struct Pending<W> {
    waiting: HashMap<u64, W, BuildHasherDefault<IdHasher>>,
    entered: u64,
    answered: Remembered,
    abandoned: Remembered,
}

impl<W> Default for Pending<W> {
    fn default() -> Self {
        let (answered, abandoned) = Default::default();
        Self { waiting: HashMap::default(), entered: 0, answered, abandoned }
    }
}

impl<W> Pending<W> {
    /// Inserts a waiter under a fresh id produced by `fresh`.
    pub(crate) fn enter(&mut self, waiter: W, mut fresh: impl FnMut() -> u64) -> Result<u64, Full> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(Full);
        }
        // Terminates, because far fewer ids are taken than exist.
        let mut id = fresh();
        while self.waiting.contains_key(&id) {
            id = fresh();
        }
        self.waiting.insert(id, waiter);
        self.entered += 1;
        Ok(id)
    }

    /// Number of calls inserted so far.
    pub(crate) fn entered(&self) -> u64 {
        self.entered
    }

    pub(crate) fn get(&self, id: u64) -> Option<&W> {
        self.waiting.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut W> {
        self.waiting.get_mut(&id)
    }

    /// All waiters, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &W)> {
        self.waiting.iter().map(|(id, waiter)| (*id, waiter))
    }

    /// Removes a waiter whose response has arrived.
    pub(crate) fn answered(&mut self, id: u64) -> Option<W> {
        let waiter = self.waiting.remove(&id)?;
        self.answered.add(id);
        Some(waiter)
    }

    /// Removes a waiter that was abandoned.
    pub(crate) fn abandon(&mut self, id: u64) -> Option<W> {
        let waiter = self.waiting.remove(&id)?;
        self.abandoned.add(id);
        Some(waiter)
    }

    /// Classifies a response without a waiter. A late response counts as the response, so the next one is a duplicate.
    pub(crate) fn classify(&mut self, id: u64) -> Unmatched {
        if self.answered.has(id) {
            Unmatched::Duplicate
        } else if self.abandoned.has(id) {
            self.answered.add(id);
            Unmatched::Late
        } else {
            Unmatched::Unknown
        }
    }

    /// Removes all waiters, when the connection is lost.
    pub(crate) fn clear(&mut self) -> Vec<W> {
        self.waiting.drain().map(|(_, waiter)| waiter).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// The last [`REMEMBERED`] ids of a kind.
#[derive(Debug, Default)]
struct Remembered(VecDeque<u64>);

impl Remembered {
    fn add(&mut self, id: u64) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(id);
    }

    fn has(&self, id: u64) -> bool {
        self.0.contains(&id)
    }
}

/// Identity hash: ids are random and chosen by the proxy, so collisions cannot be provoked.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // Spreads the id over the high bits, which the table uses as tags.
        self.0 = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sequential ids for tests.
    fn counting(from: u64) -> impl FnMut() -> u64 {
        let mut next = from;
        move || {
            next += 1;
            next - 1
        }
    }

    #[test]
    fn response_finds_its_call_once() {
        let mut pending = Pending::default();
        let mut fresh = counting(FIRST_ID);
        let a = pending.enter('a', &mut fresh).unwrap();
        let b = pending.enter('b', &mut fresh).unwrap();
        assert_ne!(a, b);
        assert!(is_ours(a) && is_ours(b));
        assert_eq!(pending.get(a), Some(&'a'));
        assert_eq!(pending.answered(a), Some('a'));
        assert_eq!(pending.get(a), None);
        assert_eq!(pending.abandon(a), None);
        assert_eq!(pending.abandon(b), Some('b'));
        assert!(pending.is_empty());
    }

    #[test]
    fn unmatched_response_is_duplicate_late_or_unknown() {
        let mut pending = Pending::default();
        let mut fresh = counting(FIRST_ID);
        let [a, b] = [(); 2].map(|()| pending.enter((), &mut fresh).unwrap());
        pending.answered(a);
        pending.abandon(b);
        assert_eq!(pending.classify(a), Unmatched::Duplicate);
        assert_eq!(pending.classify(b), Unmatched::Late);
        assert_eq!(pending.classify(b), Unmatched::Duplicate, "answered by the late response");
        assert_eq!(pending.classify(LAST_ID), Unmatched::Unknown);
        for _ in 0..REMEMBERED {
            let id = pending.enter((), &mut fresh).unwrap();
            pending.answered(id);
        }
        assert_eq!(pending.classify(a), Unmatched::Unknown);
        assert_eq!(pending.answered.0.len(), REMEMBERED);
    }

    #[test]
    fn unknown_id_has_no_waiter() {
        let mut pending = Pending::default();
        pending.enter((), || FIRST_ID).unwrap();
        for id in [0, 1, FIRST_ID - 1, FIRST_ID + 1, LAST_ID, LAST_ID + 1, u64::MAX] {
            assert_eq!(pending.get(id), None, "{id}");
        }
        assert!(!is_ours(FIRST_ID - 1) && !is_ours(LAST_ID + 1));
    }

    #[test]
    fn id_in_use_is_not_assigned_again() {
        let mut pending = Pending::default();
        assert_eq!(pending.enter(1, counting(FIRST_ID)), Ok(FIRST_ID));
        assert_eq!(pending.enter(2, counting(FIRST_ID)), Ok(FIRST_ID + 1));
    }

    #[test]
    fn table_is_bounded_and_reusable_after_removal() {
        let mut pending = Pending::default();
        let mut fresh = counting(FIRST_ID);
        let ids: Vec<u64> =
            (0..MAX_WAITING).map(|n| pending.enter(n, &mut fresh).unwrap()).collect();
        assert_eq!(pending.enter(0, &mut fresh), Err(Full));
        assert_eq!(pending.abandon(ids[7]), Some(7));
        assert!(pending.enter(7, &mut fresh).is_ok());
        assert_eq!(pending.clear().len(), MAX_WAITING);
        assert_eq!(pending.len(), 0);
    }
}
