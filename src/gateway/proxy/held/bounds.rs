//! Bounds of held calls, and each call's share in them (PRO-42).

use std::sync::Arc;

use mcpproxy_activity::Slot;
use mcpproxy_policy::Principal;
use mcpproxy_policy::approvals::ApprovalId;
use mcpproxy_runtime::keyed_counts::{CountedUse, KeyedCounts, UsedUp};
use thiserror::Error;

/// Maximum held calls.
const MAX_HELD: usize = 256;
/// Maximum held calls of one principal.
const MAX_HELD_PER_PRINCIPAL: usize = 32;
/// Each waiting call has a slot in the activity log; together they use at most this part of it.
const LOG_SHARE: usize = 12;
/// Maximum rounds of one call.
pub(in crate::proxy) const MAX_HELD_ROUNDS: u32 = 16;
/// Maximum size of a question, in bytes.
pub(in crate::proxy) const MAX_HELD_QUESTION_BYTES: usize = 256 * 1024;

/// Why a call is not held. Sent to the server that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(in crate::proxy) enum NotHeld {
    #[error("{0} calls of its client wait for input already")]
    TooManyOfPrincipal(usize),
    #[error("{0} calls wait for input of their clients already")]
    TooMany(usize),
    #[error("its client was asked {MAX_HELD_ROUNDS} times during this call already")]
    TooManyRounds,
    #[error("its question is longer than {MAX_HELD_QUESTION_BYTES} bytes")]
    TooLong,
    #[error("the proxy cannot hold its call now")]
    Unavailable,
}

/// Counts of the held calls, waiting or in flight.
#[derive(Debug)]
pub(in crate::proxy) struct HeldBounds {
    all: usize,
    of_one: usize,
    /// By the id of their principal.
    held: Arc<KeyedCounts<Box<str>>>,
}

/// Share of a held call in the bounds, until it is dropped.
pub(in crate::proxy) type HeldPlace = CountedUse<Box<str>>;

/// Reservations for holding a call.
#[derive(Debug)]
pub(in crate::proxy) struct PreparedHold {
    pub(in crate::proxy) id: ApprovalId,
    /// The request state for the client.
    pub(in crate::proxy) state: String,
    /// The call's share of the bounds, unless it was held before.
    pub(in crate::proxy) place: Option<HeldPlace>,
    /// Slot for the record of a call whose client does not return.
    pub(in crate::proxy) slot: Slot,
}

impl HeldBounds {
    /// Bounds for an activity log with this many slots: waiting calls use at most a twelfth of them.
    pub(in crate::proxy) fn of_log(places: usize) -> Self {
        let all = (places / LOG_SHARE).clamp(1, MAX_HELD);
        let of_one = all.div_ceil(2).min(MAX_HELD_PER_PRINCIPAL);
        Self { all, of_one, held: Arc::default() }
    }

    /// Counts a call of `principal`.
    pub(in crate::proxy) fn enter(&self, principal: &Principal) -> Result<HeldPlace, NotHeld> {
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
    fn pro_42_held_calls_are_bounded_per_principal_and_in_all() {
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
