//! Sessions of a fleet that their clients have ended, and whose ids therefore open nothing any more, as far as this node knows.
//! Bounded: of too many the first are forgotten. Has no clock.

use std::collections::{HashSet, VecDeque};

use crate::downstream::session_ticket::TICKET_LIFE_MS;
use crate::fleet::sealed_id::IdSalt;

/// Most that are remembered, some 6 MB.
pub(super) const MAX_ENDED: usize = 100_000;

/// Which they are, by the random part of their ids.
#[derive(Debug, Default)]
pub(super) struct EndedSessions {
    known: HashSet<IdSalt>,
    /// In the order in which they became known; until when each matters.
    order: VecDeque<(u64, IdSalt)>,
}

impl EndedSessions {
    /// One has ended; true if that is new.
    pub(super) fn note(&mut self, salt: IdSalt, now_ms: u64) -> bool {
        if !self.known.insert(salt) {
            return false;
        }
        // Made before now, it opens nothing after that by itself.
        self.order.push_back((now_ms.saturating_add(TICKET_LIFE_MS), salt));
        while self.order.len() > MAX_ENDED
            || self.order.front().is_some_and(|(until_ms, _)| *until_ms < now_ms)
        {
            let Some((_, oldest)) = self.order.pop_front() else { break };
            self.known.remove(&oldest);
        }
        true
    }

    /// Whether one has ended.
    pub(super) fn has(&self, salt: &IdSalt) -> bool {
        self.known.contains(salt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn salt(n: u64) -> IdSalt {
        u128::from(n).to_be_bytes()
    }

    #[test]
    fn they_are_remembered_as_long_as_their_ids_last() {
        let mut ended = EndedSessions::default();
        assert!(ended.note(salt(1), 0) && !ended.note(salt(1), 5), "once");
        assert!(ended.note(salt(2), TICKET_LIFE_MS));
        assert!(ended.has(&salt(1)) && ended.has(&salt(2)));
        assert!(ended.note(salt(3), TICKET_LIFE_MS + 1));
        assert!(!ended.has(&salt(1)) && ended.has(&salt(2)) && ended.has(&salt(3)));
        assert_eq!((ended.known.len(), ended.order.len()), (2, 2));
    }

    #[test]
    fn of_too_many_the_first_are_forgotten() {
        let mut ended = EndedSessions::default();
        for n in 0..=MAX_ENDED as u64 {
            ended.note(salt(n), n);
        }
        assert!(!ended.has(&salt(0)) && ended.has(&salt(1)));
        assert_eq!((ended.known.len(), ended.order.len()), (MAX_ENDED, MAX_ENDED));
    }
}
