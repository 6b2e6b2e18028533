//! Bounds of held calls, and the share of each call (PRO-42).

use std::sync::Arc;

use mcpproxy_activity::Slot;
use mcpproxy_policy::Principal;
use mcpproxy_policy::approvals::ApprovalId;
use mcpproxy_runtime::keyed_counts::{CountedUse, KeyedCounts, UsedUp};
use thiserror::Error;

/// Maximum number of held calls.
const MAX_HELD: usize = 256;
/// Maximum number of held calls of one principal.
const MAX_HELD_PER_PRINCIPAL: usize = 32;
/// Divisor: waiting calls, each with a slot in the activity log, use at most 1/`LOG_SHARE` of its slots.
const LOG_SHARE: usize = 12;
/// Maximum number of rounds of one call.
pub(crate) const MAX_HELD_ROUNDS: u32 = 16;
/// Maximum size of a question, in bytes.
pub(crate) const MAX_HELD_QUESTION_BYTES: usize = 256 * 1024;

/// Reason why a call is not held; sent to the server that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotHeld {
    #[error("{0} calls of its client already wait for input")]
    TooManyOfPrincipal(usize),
    #[error("{0} calls already wait for input of their clients")]
    TooMany(usize),
    #[error("its client was already asked {MAX_HELD_ROUNDS} times during this call")]
    TooManyRounds,
    #[error("its question is longer than {MAX_HELD_QUESTION_BYTES} bytes")]
    TooLong,
    #[error("the proxy cannot hold its call now")]
    Unavailable,
}

/// Counts of held calls, waiting or in flight.
#[derive(Debug)]
pub(crate) struct HeldBounds {
    all: usize,
    of_one: usize,
    /// Held calls by principal id.
    held: Arc<KeyedCounts<Box<str>>>,
}

/// Share of a held call in the bounds; released on drop.
pub(crate) type HeldPlace = CountedUse<Box<str>>;

/// Reservations for holding a call.
#[derive(Debug)]
pub(crate) struct PreparedHold {
    pub(crate) id: ApprovalId,
    /// The request state for the client.
    pub(crate) state: String,
    /// The call's share of the bounds; `None` if the call was held before.
    pub(crate) place: Option<HeldPlace>,
    /// Slot for the record of a call whose client does not return.
    pub(crate) slot: Slot,
}

impl HeldBounds {
    /// Bounds for an activity log with this many slots: waiting calls use at most a twelfth of them.
    pub(crate) fn of_log(places: usize) -> Self {
        let all = (places / LOG_SHARE).clamp(1, MAX_HELD);
        let of_one = all.div_ceil(2).min(MAX_HELD_PER_PRINCIPAL);
        Self { all, of_one, held: Arc::default() }
    }

    /// Counts a call of `principal`.
    pub(crate) fn enter(&self, principal: &Principal) -> Result<HeldPlace, NotHeld> {
        let place = self.held.take(principal.id().into(), self.of_one, self.all);
        place.map_err(|used_up| match used_up {
            UsedUp::All => NotHeld::TooMany(self.all),
            UsedUp::Key(_) => NotHeld::TooManyOfPrincipal(self.of_one),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_42_held_calls_are_bounded_per_principal_and_in_total() {
        let bounds = Arc::new(HeldBounds::of_log(1 << 20));
        let admin = Principal::Admin;
        let mut places: Vec<HeldPlace> =
            (0..MAX_HELD_PER_PRINCIPAL).map(|_| bounds.enter(&admin).unwrap()).collect();
        assert_eq!(
            bounds.enter(&admin).unwrap_err(),
            NotHeld::TooManyOfPrincipal(MAX_HELD_PER_PRINCIPAL)
        );
        assert!(bounds.enter(&Principal::Anonymous).is_ok(), "of another");
        places.pop();
        places.push(bounds.enter(&admin).unwrap());
        for of in 0..MAX_HELD / MAX_HELD_PER_PRINCIPAL - 1 {
            let other = Principal::certificate(&of.to_string());
            places.extend((0..MAX_HELD_PER_PRINCIPAL).map(|_| bounds.enter(&other).unwrap()));
        }
        let one_more = Principal::certificate("one more");
        assert_eq!(bounds.enter(&one_more).unwrap_err(), NotHeld::TooMany(MAX_HELD));
        places.clear();
        assert_eq!(bounds.held.keys(), 0);
        for (places, all, of_one) in [(1, 1, 1), (60, 5, 3), (600, 50, 25)] {
            let bounds = HeldBounds::of_log(places);
            assert_eq!((bounds.all, bounds.of_one), (all, of_one), "{places}");
        }
    }
}
