//! Facts about earlier requests that rules read, and the atomic cell that keeps them for a session or principal.
//!
//! A cell is one atomic word, updated without a lock. Facts never decrease during a session; the facts of a principal
//! are kept until [`WINDOW_SECONDS`] pass without a request. The caller assigns the cells to sessions and principals.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::intent::Sensitivity;
use crate::tool::{Exposure, World};

/// Facts of a session before a request, as rules read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionFacts {
    /// Highest sensitivity stated or marked so far. Never decreases.
    pub max_sensitivity: Option<Sensitivity>,
    /// Whether content came from an open-world tool (`openWorldHint`).
    pub open_world_seen: bool,
    /// Number of permitted requests to servers.
    pub calls: u64,
}

/// Seconds without a request after which the facts of a principal are reset.
pub const WINDOW_SECONDS: u32 = 3600;

/// Maximum number of calls that are counted.
const MAX_CALLS: u64 = (1 << CALL_BITS) - 1;
const CALL_BITS: u32 = 28;
const OPEN_BIT: u32 = CALL_BITS;
const RANK_BIT: u32 = OPEN_BIT + 1;
const RANK_MASK: u64 = 0b111;
const TIME_BIT: u32 = 32;

/// Packed facts: `last use in seconds | sensitivity rank | open world | calls`.
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

    /// Maximum of a session's facts and its principal's. `calls` is taken from the session.
    pub fn joined(self, principal: Self) -> Self {
        Self {
            max_sensitivity: Sensitivity::higher(self.max_sensitivity, principal.max_sensitivity),
            open_world_seen: self.open_world_seen || principal.open_world_seen,
            calls: self.calls,
        }
    }

    /// Whether any sensitivity or open-world content is known.
    pub fn has_seen_anything(self) -> bool {
        self.max_sensitivity.is_some() || self.open_world_seen
    }

    /// Facts after content with this exposure.
    pub fn after(self, exposure: Exposure) -> Self {
        Self {
            max_sensitivity: Sensitivity::higher(self.max_sensitivity, exposure.sensitivity),
            open_world_seen: self.open_world_seen || exposure.world == World::Open,
            ..self
        }
    }
}

impl FactsCell {
    pub fn get(&self) -> SessionFacts {
        SessionFacts::unpack(self.0.load(Ordering::Acquire))
    }

    /// Records a request at `second` and returns the facts, which are reset if the principal was idle for too long.
    pub fn used(&self, second: u32) -> SessionFacts {
        self.used_since(second, second, |facts| facts);
        self.get()
    }

    /// Second of the last request, and the facts.
    pub fn last_used(&self) -> (u32, SessionFacts) {
        let word = self.0.load(Ordering::Acquire);
        ((word >> TIME_BIT) as u32, SessionFacts::unpack(word))
    }

    /// Joins facts reported by another node for a request at `last`; the current time is `second`.
    pub fn merge_remote(&self, facts: SessionFacts, last: u32, second: u32) {
        self.used_since(second, last, |own| own.joined(facts));
    }

    fn used_since(
        &self,
        second: u32,
        last_use: u32,
        change: impl Fn(SessionFacts) -> SessionFacts,
    ) {
        let touched = |word: u64| {
            let last = (word >> TIME_BIT) as u32;
            let facts = match second.saturating_sub(last) > WINDOW_SECONDS {
                true => SessionFacts::default(),
                false => SessionFacts::unpack(word),
            };
            let next = change(facts).pack() | u64::from(last_use.max(last)) << TIME_BIT;
            (next != word).then_some(next)
        };
        // The update fails only if it would change nothing.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, touched);
    }

    /// Whether the idle window has passed at `second`.
    pub fn is_over(&self, second: u32) -> bool {
        let last = (self.0.load(Ordering::Acquire) >> TIME_BIT) as u32;
        second.saturating_sub(last) > WINDOW_SECONDS
    }

    /// Records a permitted request with this stated sensitivity.
    pub fn permitted(&self, stated: Option<Sensitivity>) {
        self.raise(|facts| SessionFacts {
            max_sensitivity: Sensitivity::higher(facts.max_sensitivity, stated),
            calls: facts.calls + 1,
            ..facts
        });
    }

    /// Raises the sensitivity to the one stated for a permitted request that is counted elsewhere. Returns whether it
    /// changed.
    pub fn stated(&self, sensitivity: Option<Sensitivity>) -> bool {
        self.raise(|facts| SessionFacts {
            max_sensitivity: Sensitivity::higher(facts.max_sensitivity, sensitivity),
            ..facts
        })
    }

    /// Raises the facts by a response with this exposure. Returns whether they changed.
    pub fn answered(&self, exposure: Exposure) -> bool {
        self.raise(|facts| facts.after(exposure))
    }

    fn raise(&self, change: impl Fn(SessionFacts) -> SessionFacts) -> bool {
        let raised = |word: u64| {
            let next = change(SessionFacts::unpack(word)).pack() | (word >> TIME_BIT) << TIME_BIT;
            (next != word).then_some(next)
        };
        // The update fails only if it would change nothing.
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, raised).is_ok()
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
    fn session_facts_only_rise() {
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
    fn joined_facts_take_the_maximum_except_calls() {
        let private = SessionFacts {
            max_sensitivity: Some(Sensitivity::Private),
            open_world_seen: false,
            calls: 7,
        };
        let open = SessionFacts { max_sensitivity: None, open_world_seen: true, calls: 1 };
        let both = SessionFacts { open_world_seen: true, ..private };
        assert_eq!((private.joined(open), open.joined(private).calls), (both, 1));
        assert!(both.has_seen_anything() && open.has_seen_anything());
        assert!(!SessionFacts { calls: 3, ..SessionFacts::default() }.has_seen_anything());
    }

    #[test]
    fn remote_facts_are_merged_with_their_lifetime() {
        let cell = FactsCell::default();
        let open = SessionFacts { open_world_seen: true, ..SessionFacts::default() };
        cell.used(WINDOW_SECONDS * 2);
        cell.answered(of(Sensitivity::Private));
        let now = WINDOW_SECONDS * 3;
        cell.merge_remote(open, now - 10, now);
        let (last, facts) = cell.last_used();
        assert_eq!((last, facts.open_world_seen), (now - 10, true));
        assert_eq!(facts.max_sensitivity, Some(Sensitivity::Private));
        let late = now + WINDOW_SECONDS;
        cell.merge_remote(open, late - 1, late);
        let facts = cell.last_used().1;
        assert_eq!(facts.max_sensitivity, None, "local facts had expired");
        assert!(facts.open_world_seen);
        cell.merge_remote(SessionFacts::default(), late - 100, late);
        assert_eq!(cell.last_used().0, late - 1, "an older use changes nothing");
    }

    #[test]
    fn call_count_saturates_without_side_effects() {
        let cell = FactsCell(AtomicU64::new(MAX_CALLS - 1));
        for _ in 0..3 {
            cell.permitted(None);
        }
        assert_eq!(cell.get(), SessionFacts { calls: MAX_CALLS, ..SessionFacts::default() });
    }

    #[test]
    fn principal_facts_expire_after_the_idle_window() {
        let cell = FactsCell::default();
        cell.used(10);
        cell.answered(of(Sensitivity::Private));
        cell.answered(OPEN);
        let facts = cell.used(10 + WINDOW_SECONDS);
        assert_eq!(facts.max_sensitivity, Some(Sensitivity::Private));
        // Another thread's clock may be slightly behind.
        assert!(cell.used(5).open_world_seen && !cell.is_over(5));
        let late = 11 + 2 * WINDOW_SECONDS;
        assert!(cell.is_over(late));
        assert_eq!(cell.used(late), SessionFacts::default());
        assert!(!cell.is_over(late));
    }
}
