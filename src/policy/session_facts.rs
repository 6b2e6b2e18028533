//! What rules can know of the session that a request belongs to, and the cell in which it is kept.
//!
//! A cell is one word that all requests of a session change by themselves, without a lock. What it says only rises, as
//! long as the session lasts; of clients without sessions, as long as they are not silent for [`WINDOW_SECONDS`]. Whose
//! cell is whose, the caller says.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::intent::Sensitivity;
use crate::tool::{Exposure, World};

/// What has gone on in a session before a request, as far as rules may look at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionFacts {
    /// The highest sensitivity that was stated, marked or told. It never falls.
    pub max_sensitivity: Option<Sensitivity>,
    /// Whether anything has come from a tool that reaches beyond its server (`openWorldHint`).
    pub open_world_seen: bool,
    /// Requests to servers that were permitted.
    pub calls: u64,
}

/// After a silence of so many seconds a client without a session is taken for a new one.
pub const WINDOW_SECONDS: u32 = 3600;

/// Most calls that are counted.
const MAX_CALLS: u64 = (1 << CALL_BITS) - 1;
const CALL_BITS: u32 = 28;
const OPEN_BIT: u32 = CALL_BITS;
const RANK_BIT: u32 = OPEN_BIT + 1;
const RANK_MASK: u64 = 0b111;
const TIME_BIT: u32 = 32;

/// The facts of a session under way: `last use in seconds | rank of the sensitivity | open world | calls`.
#[derive(Debug, Default)]
pub struct FactsCell(AtomicU64);

impl SessionFacts {
    fn unpack(word: u64) -> Self {
        let rank = (word >> RANK_BIT) & RANK_MASK;
        Self {
            max_sensitivity: Sensitivity::of_rank(rank as u8),
            open_world_seen: (word >> OPEN_BIT) & 1 == 1,
            calls: word & MAX_CALLS,
        }
    }

    fn pack(self) -> u64 {
        let rank = self.max_sensitivity.map_or(0, Sensitivity::rank);
        u64::from(rank) << RANK_BIT
            | u64::from(self.open_world_seen) << OPEN_BIT
            | self.calls.min(MAX_CALLS)
    }

    /// With what comes from a tool of that exposure.
    #[must_use]
    pub fn after(self, exposure: Exposure) -> Self {
        Self {
            max_sensitivity: Sensitivity::higher(self.max_sensitivity, exposure.sensitivity),
            open_world_seen: self.open_world_seen || exposure.world == World::Open,
            ..self
        }
    }
}

impl FactsCell {
    /// What is known.
    #[must_use]
    pub fn get(&self) -> SessionFacts {
        SessionFacts::unpack(self.0.load(Ordering::Acquire))
    }

    /// A request comes at `second`, of a client without a session: what is known if it was not silent for too long,
    /// else nothing any more.
    pub fn used(&self, second: u32) -> SessionFacts {
        let touched = |word: u64| {
            let last = (word >> TIME_BIT) as u32;
            let facts = match second.saturating_sub(last) > WINDOW_SECONDS {
                true => SessionFacts::default(),
                false => SessionFacts::unpack(word),
            };
            let next = facts.pack() | u64::from(second.max(last)) << TIME_BIT;
            (next != word).then_some(next)
        };
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, touched);
        self.get()
    }

    /// Whether it has been silent for too long at `second`.
    #[must_use]
    pub fn is_over(&self, second: u32) -> bool {
        let last = (self.0.load(Ordering::Acquire) >> TIME_BIT) as u32;
        second.saturating_sub(last) > WINDOW_SECONDS
    }

    /// A request was permitted, for which that sensitivity was stated.
    pub fn permitted(&self, stated: Option<Sensitivity>) {
        self.raise(|facts| SessionFacts {
            max_sensitivity: Sensitivity::higher(facts.max_sensitivity, stated),
            calls: facts.calls + 1,
            ..facts
        });
    }

    /// The answer of a tool of that exposure begins.
    pub fn answered(&self, exposure: Exposure) {
        self.raise(|facts| facts.after(exposure));
    }

    fn raise(&self, change: impl Fn(SessionFacts) -> SessionFacts) {
        let raised = |word: u64| {
            let next = change(SessionFacts::unpack(word)).pack() | (word >> TIME_BIT) << TIME_BIT;
            (next != word).then_some(next)
        };
        // An error says that nothing was to be changed.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, raised);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Exposure = Exposure { sensitivity: None, world: World::Open };

    fn of(sensitivity: Sensitivity) -> Exposure {
        Exposure { sensitivity: Some(sensitivity), world: World::Closed }
    }

    #[test]
    fn what_a_session_has_seen_only_rises() {
        let cell = FactsCell::default();
        cell.permitted(Some(Sensitivity::Internal));
        cell.answered(of(Sensitivity::Private));
        cell.answered(of(Sensitivity::Public));
        cell.permitted(Some(Sensitivity::Public));
        let facts = SessionFacts {
            max_sensitivity: Some(Sensitivity::Private),
            open_world_seen: false,
            calls: 2,
        };
        assert_eq!(cell.get(), facts);
        cell.answered(OPEN);
        cell.permitted(None);
        assert_eq!(cell.get(), SessionFacts { open_world_seen: true, calls: 3, ..facts });
    }

    #[test]
    fn the_count_has_an_end_and_nothing_else_is_changed_by_it() {
        let cell = FactsCell(AtomicU64::new(MAX_CALLS - 1));
        for _ in 0..3 {
            cell.permitted(None);
        }
        assert_eq!(cell.get(), SessionFacts { calls: MAX_CALLS, ..SessionFacts::default() });
    }

    #[test]
    fn without_a_session_facts_last_until_a_long_silence() {
        let cell = FactsCell::default();
        cell.used(10);
        cell.answered(of(Sensitivity::Private));
        cell.answered(OPEN);
        let facts = cell.used(10 + WINDOW_SECONDS);
        assert_eq!(facts.max_sensitivity, Some(Sensitivity::Private));
        // Another thread's clock may be a little behind.
        assert!(cell.used(5).open_world_seen && !cell.is_over(5));
        let late = 11 + 2 * WINDOW_SECONDS;
        assert!(cell.is_over(late));
        assert_eq!(cell.used(late), SessionFacts::default());
        assert!(!cell.is_over(late));
    }
}
