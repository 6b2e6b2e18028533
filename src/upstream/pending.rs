//! Request ids and who waits for each: the table of one connection.
//!
//! Ids count up inside a range of our own, so that they never meet those of the lifecycle on the
//! same connection, and every JSON library in use keeps them (below 2³¹). Pure: the caller owns
//! the lock and decides what a waiter is.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use thiserror::Error;

/// The lowest id of a call. The lifecycle counts from 0 and never gets here.
pub const FIRST_ID: u64 = 1 << 30;
/// The highest id of a call; the next is [`FIRST_ID`] again.
pub const LAST_ID: u64 = (1 << 31) - 1;
/// Most calls waiting on one connection.
pub const MAX_WAITING: usize = 4096;

/// No room for another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{MAX_WAITING} calls are waiting for this server")]
pub struct Full;

/// Whether an id, as it stands in an answer, is one that a call of ours may carry.
#[must_use]
pub fn is_ours(id: u64) -> bool {
    (FIRST_ID..=LAST_ID).contains(&id)
}

/// The id after this one.
#[must_use]
pub fn after(id: u64) -> u64 {
    if (FIRST_ID..LAST_ID).contains(&id) { id + 1 } else { FIRST_ID }
}

/// Who waits for which id.
#[derive(Debug)]
pub struct Pending<W> {
    next: u64,
    waiting: HashMap<u64, W, BuildHasherDefault<IdHasher>>,
}

impl<W> Default for Pending<W> {
    fn default() -> Self {
        Self { next: FIRST_ID, waiting: HashMap::default() }
    }
}

impl<W> Pending<W> {
    /// Enters a waiter under a fresh id.
    ///
    /// # Errors
    /// [`Full`] with [`MAX_WAITING`] waiting.
    pub fn enter(&mut self, waiter: W) -> Result<u64, Full> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(Full);
        }
        // Ends: fewer ids are taken than the range holds.
        while self.waiting.contains_key(&self.next) {
            self.next = after(self.next);
        }
        let id = self.next;
        self.next = after(id);
        self.waiting.insert(id, waiter);
        Ok(id)
    }

    /// Who waits for this id.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&W> {
        self.waiting.get(&id)
    }

    /// All who wait, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &W)> {
        self.waiting.iter().map(|(id, waiter)| (*id, waiter))
    }

    /// Removes a waiter: its answer is complete, or it gave up.
    pub fn leave(&mut self, id: u64) -> Option<W> {
        self.waiting.remove(&id)
    }

    /// Removes all: the connection is gone.
    pub fn clear(&mut self) -> Vec<W> {
        self.waiting.drain().map(|(_, waiter)| waiter).collect()
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// True when none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Ids are our own counter: nobody can choose them to collide, so they hash as they are.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

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
        // Spreads the counter over the high bits too, which the table uses as tags.
        self.0 = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_finds_its_call_once() {
        let mut pending = Pending::default();
        let a = pending.enter('a').unwrap();
        let b = pending.enter('b').unwrap();
        assert_ne!(a, b);
        assert!(is_ours(a) && is_ours(b));
        assert_eq!(pending.get(a), Some(&'a'));
        assert_eq!(pending.leave(a), Some('a'));
        assert_eq!(pending.get(a), None);
        assert_eq!(pending.leave(a), None);
        assert_eq!(pending.leave(b), Some('b'));
        assert!(pending.is_empty());
    }

    #[test]
    fn an_id_nobody_asked_for_has_no_waiter() {
        let mut pending = Pending::default();
        pending.enter(()).unwrap();
        for id in [0, 1, FIRST_ID - 1, FIRST_ID + 1, LAST_ID, LAST_ID + 1, u64::MAX] {
            assert_eq!(pending.get(id), None, "{id}");
        }
    }

    #[test]
    fn ids_stay_in_range_and_skip_those_in_use() {
        let mut pending = Pending { next: LAST_ID, waiting: HashMap::default() };
        assert_eq!(pending.enter(1), Ok(LAST_ID));
        assert_eq!(pending.enter(2), Ok(FIRST_ID));
        pending.next = LAST_ID;
        assert_eq!(pending.enter(3), Ok(FIRST_ID + 1));
        assert!(!is_ours(FIRST_ID - 1) && !is_ours(LAST_ID + 1));
        assert_eq!(after(0), FIRST_ID);
    }

    #[test]
    fn the_table_is_bounded_and_room_comes_back() {
        let mut pending = Pending::default();
        let ids: Vec<u64> = (0..MAX_WAITING).map(|n| pending.enter(n).unwrap()).collect();
        assert_eq!(pending.enter(0), Err(Full));
        assert_eq!(pending.leave(ids[7]), Some(7));
        assert!(pending.enter(7).is_ok());
        assert_eq!(pending.clear().len(), MAX_WAITING);
        assert_eq!(pending.len(), 0);
    }
}
