//! How soon a list is looked at again whose server says that it has changed. Pure.
//!
//! A server may say so thousands of times a second, or after every list. What it says while a look
//! is due counts as one; each time that it says so again soon after one, the next is twice as far
//! off, up to a bound, and once it was calm for long enough the first is soon again.

use std::time::{Duration, Instant};

/// Changes that come within this time count as one.
pub const SOON: Duration = Duration::from_millis(250);
/// A list that changes all the time is looked at this often.
pub const SELDOM: Duration = Duration::from_secs(30);
/// It is calm again when nothing came for so many times the last wait: 2 s at first.
const CALM: u32 = 8;
/// Its server is told of in the log when the wait is this long: no list changes that often in
/// earnest.
const RESTLESS: Duration = Duration::from_secs(4);

/// When one list is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    wait: Duration,
    /// When the last look was due.
    due: Option<Instant>,
    told: bool,
}

/// What is to be done about a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// How long to wait first.
    pub after: Duration,
    /// It was calm before.
    pub calm: bool,
    /// Whoever reads the log is to be told that it is not: once, until it was calm again.
    pub tell: bool,
}

impl Pace {
    /// The list has changed, and no look is due.
    pub fn changed(&mut self, now: Instant) -> Look {
        let calm =
            self.due.is_none_or(|due| now.saturating_duration_since(due) >= self.wait * CALM);
        self.wait = if calm { SOON } else { (self.wait * 2).min(SELDOM) };
        self.due = Some(now + self.wait);
        let restless = self.wait >= RESTLESS;
        let tell = restless && !self.told;
        self.told = restless;
        Look { after: self.wait, calm, tell }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_changes_all_the_time_is_looked_at_ever_more_seldom_and_told_once() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let mut looks = Vec::new();
        for _ in 0..12 {
            let look = pace.changed(now);
            now += look.after;
            looks.push((look.after.as_millis(), look.tell));
        }
        let waits: Vec<_> = looks.iter().map(|(wait, _)| *wait).collect();
        assert_eq!(waits[..8], [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000]);
        assert!(waits[8..].iter().all(|wait| *wait == 30_000));
        assert_eq!(looks.iter().filter(|(_, tell)| *tell).count(), 1);
        assert!(!pace.changed(now + SELDOM).calm, "a minute is not calm after that");
        now += SELDOM * 2 + SELDOM * CALM;
        assert_eq!(pace.changed(now), Look { after: SOON, calm: true, tell: false });
    }

    #[test]
    fn a_list_that_changes_now_and_then_is_looked_at_soon() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(pace.changed(now), Look { after: SOON, calm: true, tell: false });
            now += SOON + SOON * CALM;
        }
    }
}
