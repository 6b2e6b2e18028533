//! The time that records are stored at and their age is taken from: the system's clock, as far as it
//! can be believed.
//!
//! A clock that jumps ahead for a minute would make every record old. So a jump ahead counts only
//! once it has lasted for [`LASTING_MS`] by a clock that cannot be set; until then time goes on from
//! where it was. A clock that is set back is believed at once: it makes nothing older.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;

/// How long a jump ahead has to last.
pub(super) const LASTING_MS: u64 = 3600 * 1000;
/// Further ahead than this, between two readings, is a jump.
const JUMP_MS: u64 = 5 * 60 * 1000;

/// A clock that takes its time with jumps.
#[derive(Debug)]
struct Belief {
    /// What was believed last, and the steady clock then.
    time: u64,
    steady: u64,
    /// A jump that is not believed yet.
    jump: Option<Jump>,
}

/// By how much the clock went ahead, and the steady clock when it did.
#[derive(Clone, Copy, Debug)]
struct Jump {
    by: u64,
    since: u64,
}

impl Belief {
    fn new(wall: u64, steady: u64) -> Self {
        Self { time: wall, steady, jump: None }
    }

    /// The time, by what the two clocks say; both in milliseconds.
    fn at(&mut self, wall: u64, steady: u64) -> u64 {
        let expected = self.time + steady.saturating_sub(self.steady);
        self.steady = steady;
        let by = wall.saturating_sub(expected);
        if by <= JUMP_MS {
            if self.jump.take().is_some() {
                tracing::info!("the clock is back where it was");
            }
            self.time = wall;
            return wall;
        }
        let same = self.jump.filter(|jump| jump.by.abs_diff(by) <= JUMP_MS);
        let jump = *self.jump.insert(same.unwrap_or_else(|| {
            let seconds = by / 1000;
            tracing::warn!(
                seconds,
                "the clock went ahead; it is believed once that has lasted an hour"
            );
            Jump { by, since: steady }
        }));
        self.time = if steady.saturating_sub(jump.since) < LASTING_MS {
            expected
        } else {
            self.jump = None;
            wall
        };
        self.time
    }
}

/// `wall` as far as it can be believed by `steady`; both in milliseconds, the first since 1970.
pub(super) fn believing(
    wall: impl Fn() -> u64 + Send + Sync + 'static,
    steady: impl Fn() -> u64 + Send + Sync + 'static,
) -> impl Fn() -> u64 + Send + Sync + 'static {
    let belief = Mutex::new(Belief::new(wall(), steady()));
    move || belief.lock().at(wall(), steady())
}

/// Microseconds since 1970, by the system's clock.
pub(super) fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970, by the system's clock.
pub(super) fn unix_millis() -> u64 {
    unix_micros() / 1000
}

/// Milliseconds since some moment, by a clock that nobody sets; it goes on while the machine sleeps.
pub(super) fn steady_millis() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(std::time::Duration::ZERO, Into::into);
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// When a log was opened, and what it then ended with: before a process has run for a while, only
/// the log says whether the clock is right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    /// The clock then.
    pub(super) at: u64,
    /// When the last record had been stored; 0 for none.
    pub(super) end: u64,
}

impl Opened {
    /// The time that a record's age may be taken from `now`: what lies between the log's end and
    /// its opening counts once the process has run for [`LASTING_MS`].
    pub(super) fn age_from(self, now: u64) -> u64 {
        let open = now.saturating_sub(self.at);
        if open >= LASTING_MS { now } else { now.min(self.end + open) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60 * 1000;
    const DAY: u64 = 24 * 60 * MINUTE;
    const START: u64 = 20_000 * DAY;

    #[test]
    fn a_clock_ahead_for_a_minute_is_not_believed() {
        let mut belief = Belief::new(START, 0);
        assert_eq!(belief.at(START + MINUTE, MINUTE), START + MINUTE);
        for second in 61..120 {
            let steady = second * 1000;
            assert_eq!(belief.at(START + 100 * DAY + steady, steady), START + steady);
        }
        assert_eq!(belief.at(START + 2 * MINUTE, 2 * MINUTE), START + 2 * MINUTE);
    }

    #[test]
    fn a_jump_is_believed_once_it_has_lasted_an_hour_and_each_has_its_own() {
        let mut belief = Belief::new(START, 0);
        let ahead = |days: u64, minute: u64| START + days * DAY + minute * MINUTE;
        for minute in 1..60 {
            assert_eq!(belief.at(ahead(1, minute), minute * MINUTE), ahead(0, minute));
        }
        // Another jump begins anew.
        for minute in 60..120 {
            assert_eq!(belief.at(ahead(9, minute), minute * MINUTE), ahead(0, minute));
        }
        assert_eq!(belief.at(ahead(9, 120), 120 * MINUTE), ahead(9, 120));
        assert_eq!(belief.at(ahead(9, 121), 121 * MINUTE), ahead(9, 121));
    }

    #[test]
    fn a_clock_that_is_set_back_or_slept_is_believed_at_once() {
        let mut belief = Belief::new(START, 0);
        assert_eq!(belief.at(START - DAY, MINUTE), START - DAY);
        // A steady clock that counts sleep goes with it.
        assert_eq!(belief.at(START, DAY + MINUTE), START);
        assert!(steady_millis() > 0 && steady_millis() >= steady_millis().saturating_sub(1));
    }

    #[test]
    fn what_lies_before_the_opening_counts_after_an_hour() {
        let opened = Opened { at: START + 100 * DAY, end: START };
        assert_eq!(opened.age_from(START + 100 * DAY + MINUTE), START + MINUTE);
        let later = START + 100 * DAY + LASTING_MS;
        assert_eq!(opened.age_from(later), later);
        assert_eq!(Opened { at: START, end: START + DAY }.age_from(START + 1), START + 1);
    }
}
