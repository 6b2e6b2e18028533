//! A config that is refused: when it is tried again, and whether that is told again.
//!
//! What it was refused for may be mended without a change of its own: a file of rules, or one that holds a value. So it is
//! tried again every now and then until it is in force, or another is; a reason is logged and on record once.

use std::time::{Duration, Instant};

use crate::api::config_door::ReloadRefused;

/// How soon a config is tried again. Where reading it takes long, [`TRY_SHARE`] times as long.
const TRY_AGAIN: Duration = Duration::from_secs(2);
/// Trying again takes at most one part in so many of the time.
const TRY_SHARE: u32 = 10;
/// Most reasons that are known to have been told: what cannot be read may have two, in turns.
const MAX_REASONS: usize = 8;

/// Which refusals are logged and put on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalTold {
    /// Each.
    Always,
    /// Those for a reason that was not told yet.
    IfNew,
}

/// What was refused since a config was put in force.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// `None` where nothing was.
    try_again: Option<Instant>,
    /// Without repetition; at most [`MAX_REASONS`], the newest.
    reasons: Vec<ReloadRefused>,
}

impl Refusals {
    /// Whether one was refused, and none put in force since.
    pub(super) fn is_any(&self) -> bool {
        self.try_again.is_some()
    }

    /// Whether it is time to try it again.
    pub(super) fn is_due(&self) -> bool {
        self.try_again.is_some_and(|at| at <= Instant::now())
    }

    /// One was refused, which took so long; whether for a reason that was not told yet.
    pub(super) fn add(&mut self, refused: &ReloadRefused, took: Duration) -> bool {
        let after = TRY_AGAIN.max(took.saturating_mul(TRY_SHARE));
        self.try_again = Some(Instant::now() + after);
        if self.reasons.contains(refused) {
            return false;
        }
        if self.reasons.len() >= MAX_REASONS {
            self.reasons.remove(0);
        }
        self.reasons.push(refused.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::record;
    use super::*;

    #[test]
    fn a_reason_is_news_once_and_the_newest_are_known() {
        let mut refusals = Refusals::default();
        assert!(!refusals.is_any() && !refusals.is_due());
        let reason = |at: usize| record::whole(format!("reason {at}"));
        // Two in turns, as of a keyring that does not answer.
        for (at, is_new) in [(0, true), (1, true), (0, false), (1, false), (0, false)] {
            assert_eq!(refusals.add(&reason(at), Duration::ZERO), is_new, "{at}");
        }
        assert!(refusals.is_any());
        for at in 2..100 {
            assert!(refusals.add(&reason(at), Duration::ZERO), "{at}");
        }
        assert_eq!(refusals.reasons.len(), MAX_REASONS);
        assert!(!refusals.add(&reason(99), Duration::ZERO));
    }

    #[test]
    fn what_takes_long_is_tried_again_late() {
        let mut refusals = Refusals::default();
        let soon = Instant::now() + TRY_AGAIN;
        refusals.add(&record::whole("slow"), Duration::from_secs(60));
        assert!(refusals.try_again.unwrap() >= soon + Duration::from_secs(598));
        refusals.add(&record::whole("slow"), Duration::ZERO);
        assert!(refusals.try_again.unwrap() < soon + Duration::from_secs(598));
    }
}
