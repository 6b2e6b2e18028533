//! Request ids and who waits for each: the table of one connection.
//!
//! Ids are numbers in a range of our own, so that they never meet those of the lifecycle on the
//! same connection, and every JSON library in use keeps them: fourteen digits, which decimal and
//! binary floating point hold as they are. Pure: where ids come from, who owns the lock, and what a
//! waiter is, the caller decides.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use thiserror::Error;

/// The lowest id of a call. The lifecycle counts from 0 and never gets here.
pub const FIRST_ID: u64 = 10_000_000_000_000;
/// The highest id of a call.
pub const LAST_ID: u64 = 99_999_999_999_999;
/// Most calls waiting on one connection.
pub const MAX_WAITING: usize = 4096;

/// Ids remembered of those answered, and of those given up, on one connection.
pub const REMEMBERED: usize = 1024;

/// No room for another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{MAX_WAITING} calls are waiting for this server")]
pub struct Full;

/// Whether an id, as it stands in an answer, is one that a call of ours may carry.
#[must_use]
pub fn is_ours(id: u64) -> bool {
    (FIRST_ID..=LAST_ID).contains(&id)
}

/// What an answer under an id is for which nobody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unasked {
    /// Its request was answered before.
    Again,
    /// Its request was given up before the answer came.
    Late,
    /// Nothing is remembered of such a request.
    Unknown,
}

/// Who waits for which id.
#[derive(Debug)]
pub struct Pending<W> {
    waiting: HashMap<u64, W, BuildHasherDefault<IdHasher>>,
    answered: Remembered,
    given_up: Remembered,
}

impl<W> Default for Pending<W> {
    fn default() -> Self {
        let (answered, given_up) = Default::default();
        Self { waiting: HashMap::default(), answered, given_up }
    }
}

impl<W> Pending<W> {
    /// Enters a waiter under a fresh id, of those that `fresh` gives.
    ///
    /// # Errors
    /// [`Full`] with [`MAX_WAITING`] waiting.
    pub fn enter(&mut self, waiter: W, mut fresh: impl FnMut() -> u64) -> Result<u64, Full> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(Full);
        }
        // Ends: far fewer ids are taken than the range holds.
        let mut id = fresh();
        while self.waiting.contains_key(&id) {
            id = fresh();
        }
        self.waiting.insert(id, waiter);
        Ok(id)
    }

    /// Who waits for this id.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&W> {
        self.waiting.get(&id)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut W> {
        self.waiting.get_mut(&id)
    }

    /// All who wait, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &W)> {
        self.waiting.iter().map(|(id, waiter)| (*id, waiter))
    }

    /// Removes a waiter whose answer has come.
    pub fn answered(&mut self, id: u64) -> Option<W> {
        let waiter = self.waiting.remove(&id)?;
        self.answered.add(id);
        Some(waiter)
    }

    /// Removes a waiter that gave up.
    pub fn leave(&mut self, id: u64) -> Option<W> {
        let waiter = self.waiting.remove(&id)?;
        self.given_up.add(id);
        Some(waiter)
    }

    /// An answer came for which nobody waits. One that comes late is an answer: the next is
    /// another one.
    pub fn unasked(&mut self, id: u64) -> Unasked {
        if self.answered.has(id) {
            Unasked::Again
        } else if self.given_up.has(id) {
            self.answered.add(id);
            Unasked::Late
        } else {
            Unasked::Unknown
        }
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

/// The last [`REMEMBERED`] of some ids.
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

/// Ids are random and our own: nobody can choose them to collide, so they hash as they are.
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

    /// Counts: what is tested here is not where ids come from.
    fn counting(from: u64) -> impl FnMut() -> u64 {
        let mut next = from;
        move || {
            next += 1;
            next - 1
        }
    }

    #[test]
    fn an_answer_finds_its_call_once() {
        let mut pending = Pending::default();
        let mut fresh = counting(FIRST_ID);
        let a = pending.enter('a', &mut fresh).unwrap();
        let b = pending.enter('b', &mut fresh).unwrap();
        assert_ne!(a, b);
        assert!(is_ours(a) && is_ours(b));
        assert_eq!(pending.get(a), Some(&'a'));
        assert_eq!(pending.answered(a), Some('a'));
        assert_eq!(pending.get(a), None);
        assert_eq!(pending.leave(a), None);
        assert_eq!(pending.leave(b), Some('b'));
        assert!(pending.is_empty());
    }

    #[test]
    fn an_answer_for_nobody_is_a_second_one_or_late_or_unknown() {
        let mut pending = Pending::default();
        let mut fresh = counting(FIRST_ID);
        let [a, b] = [(); 2].map(|()| pending.enter((), &mut fresh).unwrap());
        pending.answered(a);
        pending.leave(b);
        assert_eq!(pending.unasked(a), Unasked::Again);
        assert_eq!(pending.unasked(b), Unasked::Late);
        assert_eq!(pending.unasked(b), Unasked::Again, "it has been answered now");
        assert_eq!(pending.unasked(LAST_ID), Unasked::Unknown);
        for _ in 0..REMEMBERED {
            let id = pending.enter((), &mut fresh).unwrap();
            pending.answered(id);
        }
        assert_eq!(pending.unasked(a), Unasked::Unknown);
        assert_eq!(pending.answered.0.len(), REMEMBERED);
    }

    #[test]
    fn an_id_nobody_asked_for_has_no_waiter() {
        let mut pending = Pending::default();
        pending.enter((), || FIRST_ID).unwrap();
        for id in [0, 1, FIRST_ID - 1, FIRST_ID + 1, LAST_ID, LAST_ID + 1, u64::MAX] {
            assert_eq!(pending.get(id), None, "{id}");
        }
        assert!(!is_ours(FIRST_ID - 1) && !is_ours(LAST_ID + 1));
    }

    #[test]
    fn an_id_in_use_is_not_given_again() {
        let mut pending = Pending::default();
        assert_eq!(pending.enter(1, counting(FIRST_ID)), Ok(FIRST_ID));
        assert_eq!(pending.enter(2, counting(FIRST_ID)), Ok(FIRST_ID + 1));
    }

    #[test]
    fn the_table_is_bounded_and_room_comes_back() {
        let mut pending = Pending::default();
        let mut fresh = counting(FIRST_ID);
        let ids: Vec<u64> =
            (0..MAX_WAITING).map(|n| pending.enter(n, &mut fresh).unwrap()).collect();
        assert_eq!(pending.enter(0, &mut fresh), Err(Full));
        assert_eq!(pending.leave(ids[7]), Some(7));
        assert!(pending.enter(7, &mut fresh).is_ok());
        assert_eq!(pending.clear().len(), MAX_WAITING);
        assert_eq!(pending.len(), 0);
    }
}
