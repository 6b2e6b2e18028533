//! Clocks of the log: the wall clock with jumps filtered out, and age by running time.
//!
//! A wall clock that jumps ahead for a minute would make every record look old. A forward jump therefore
//! counts only once it has lasted [`LASTING_MS`] by the monotonic clock; until then time continues from where it
//! was. A clock that is set back is accepted immediately, because this does not make any record older.
//!
//! A jump that lasts is accepted after an hour, and every record's `stored_ms` then looks old. `activity.min_retention`
//! therefore counts running time: the time for which a process had this log open, which clock steps do not change. An
//! [`AgeMarks`] entry holds the number of the next record at a given running time. The marks are written to the state
//! keyspace together with a batch, at most once a minute. Time without a running process does not count, nor does time
//! after the last mark, so records may be kept too long but never too short.
//!
//! ```text
//! age marks   running time · (number · running time)*, 8 bytes each, big-endian
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;

use super::bytes::{DecodeError, Reader};

/// Minimum duration of a forward jump, in milliseconds, before it is accepted.
pub(super) const LASTING_MS: u64 = 3600 * 1000;
/// Minimum step ahead between two readings that counts as a jump.
const JUMP_MS: u64 = 5 * 60 * 1000;

/// Wall clock that accepts forward jumps only after [`LASTING_MS`].
#[derive(Debug)]
struct JumpFilter {
    /// Last accepted time, and the reading of the monotonic clock at that time.
    time: u64,
    steady: u64,
    /// Jump that is not accepted yet.
    jump: Option<Jump>,
}

/// Size of a jump, and the reading of the monotonic clock when it happened.
#[derive(Clone, Copy, Debug)]
struct Jump {
    by: u64,
    since: u64,
}

impl JumpFilter {
    fn new(wall: u64, steady: u64) -> Self {
        Self { time: wall, steady, jump: None }
    }

    /// Combines the two clocks, both in milliseconds, into the accepted time.
    fn at(&mut self, wall: u64, steady: u64) -> u64 {
        let expected = self.time + steady.saturating_sub(self.steady);
        self.steady = steady;
        let by = wall.saturating_sub(expected);
        if by <= JUMP_MS {
            if self.jump.take().is_some() {
                tracing::info!("the wall clock agrees with the monotonic clock again");
            }
            self.time = wall;
            return wall;
        }
        let same = self.jump.filter(|jump| jump.by.abs_diff(by) <= JUMP_MS);
        let jump = *self.jump.insert(same.unwrap_or_else(|| {
            let seconds = by / 1000;
            tracing::warn!(
                seconds,
                "the wall clock jumped ahead; the jump is ignored until it has lasted an hour"
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

/// Filters jumps out of `wall` (milliseconds since 1970), measured by the monotonic clock `steady` (milliseconds).
pub(super) fn without_jumps(
    wall: impl Fn() -> u64 + Send + Sync + 'static,
    steady: impl Fn() -> u64 + Send + Sync + 'static,
) -> impl Fn() -> u64 + Send + Sync + 'static {
    let filter = Mutex::new(JumpFilter::new(wall(), steady()));
    move || filter.lock().at(wall(), steady())
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

/// Milliseconds of the boot-time clock, which cannot be set and which continues while the machine sleeps.
pub(super) fn steady_millis() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Into::into);
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// State of the log when it was opened. Until the process has run for [`LASTING_MS`], the wall clock is checked
/// against it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) at: u64,
    /// Storage time of the last record; 0 for an empty log.
    pub(super) end: u64,
    /// Number of the next record.
    pub(super) next: u64,
    /// Reading of the monotonic clock when the log was opened.
    pub(super) steady: u64,
    /// Running time of earlier processes in milliseconds ([`AgeMarks`]).
    pub(super) ran_ms: u64,
}

impl Opened {
    /// Reference time for the age of records at `now`. The time between the last record and the opening
    /// counts only after the process has run for [`LASTING_MS`].
    pub(super) fn age_from(self, now: u64) -> u64 {
        let open = now.saturating_sub(self.at);
        if open >= LASTING_MS { now } else { now.min(self.end + open) }
    }

    /// Running time of the log, in milliseconds, when the monotonic clock reads `steady`.
    pub(super) fn ran_ms(self, steady: u64) -> u64 {
        self.ran_ms.saturating_add(steady.saturating_sub(self.steady))
    }
}

/// Minimum interval between writes of the marks.
const WRITE_EVERY_MS: u64 = 60 * 1000;
/// Number of marks within `min_retention`. It determines the resolution of ages.
const MARKS: u64 = 64;
/// Maximum number of marks; at the limit a new one is added only after old ones are dropped.
const MAX_MARKS: usize = 256;

/// Number of the next record at a given running time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AgeMark {
    next: u64,
    ran_ms: u64,
}

/// Age marks of a log, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgeMarks {
    /// Running time at the last write.
    pub(crate) ran_ms: u64,
    marks: Vec<AgeMark>,
}

impl AgeMarks {
    /// Adds a mark: the next record's number was `next` when the log had run for `ran_ms`. Returns true if the
    /// marks must be written.
    pub(crate) fn note(&mut self, next: u64, ran_ms: u64, min_age: Duration) -> bool {
        let last = self.marks.last().map(|mark| mark.ran_ms);
        if last.is_some() && ran_ms < self.ran_ms.saturating_add(WRITE_EVERY_MS) {
            return false;
        }
        self.ran_ms = ran_ms;
        let min_age = millis(min_age);
        // Of the marks that are old enough, only the newest is needed.
        let old = self.marks.iter().filter(|mark| ran_ms.saturating_sub(mark.ran_ms) >= min_age);
        self.marks.drain(..old.count().saturating_sub(1));
        let pause = min_age / MARKS;
        if self.marks.len() < MAX_MARKS
            && last.is_none_or(|last| ran_ms.saturating_sub(last) >= pause)
        {
            self.marks.push(AgeMark { next, ran_ms });
        }
        true
    }

    /// Number below which all records are at least `min_age` old at the running time `ran_ms`; `None` if
    /// the marks do not reach that far back.
    pub(crate) fn older_than(&self, min_age: Duration, ran_ms: u64) -> Option<u64> {
        let min_age = millis(min_age);
        let old = |mark: &&AgeMark| ran_ms.saturating_sub(mark.ran_ms) >= min_age;
        self.marks.iter().rev().find(old).map(|mark| mark.next)
    }

    /// Drops marks above `next`, the number of the log's next record, because the log has lost the records they refer to.
    pub(crate) fn truncated_to(mut self, next: u64) -> Self {
        self.marks.retain(|mark| mark.next <= next);
        self
    }

    /// Number of the first record whose age is known from the marks.
    pub(crate) fn first(&self) -> Option<u64> {
        self.marks.first().map(|mark| mark.next)
    }

    pub fn encode(&self) -> Vec<u8> {
        let marks = self.marks.iter().flat_map(|mark| [mark.next, mark.ran_ms]);
        std::iter::once(self.ran_ms).chain(marks).flat_map(u64::to_be_bytes).collect()
    }

    /// Decodes the output of [`Self::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let ran_ms = u64::from_be_bytes(reader.array()?);
        let mut marks: Vec<AgeMark> = Vec::new();
        while !reader.0.is_empty() {
            let [next, at] = [reader.array()?, reader.array()?].map(u64::from_be_bytes);
            let grows = marks.last().is_none_or(|last| last.next <= next && last.ran_ms <= at);
            if !grows || at > ran_ms || marks.len() >= MAX_MARKS {
                return Err(DecodeError::Value);
            }
            marks.push(AgeMark { next, ran_ms: at });
        }
        Ok(Self { ran_ms, marks })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60 * 1000;
    const DAY: u64 = 24 * 60 * MINUTE;
    const START: u64 = 20_000 * DAY;

    #[test]
    fn clock_ahead_for_a_minute_is_ignored() {
        let mut filter = JumpFilter::new(START, 0);
        assert_eq!(filter.at(START + MINUTE, MINUTE), START + MINUTE);
        for second in 61..120 {
            let steady = second * 1000;
            assert_eq!(filter.at(START + 100 * DAY + steady, steady), START + steady);
        }
        assert_eq!(filter.at(START + 2 * MINUTE, 2 * MINUTE), START + 2 * MINUTE);
    }

    #[test]
    fn each_jump_is_accepted_after_it_has_lasted_an_hour() {
        let mut filter = JumpFilter::new(START, 0);
        let ahead = |days: u64, minute: u64| START + days * DAY + minute * MINUTE;
        for minute in 1..60 {
            assert_eq!(filter.at(ahead(1, minute), minute * MINUTE), ahead(0, minute));
        }
        // A jump of a different size restarts the hour.
        for minute in 60..120 {
            assert_eq!(filter.at(ahead(9, minute), minute * MINUTE), ahead(0, minute));
        }
        assert_eq!(filter.at(ahead(9, 120), 120 * MINUTE), ahead(9, 120));
        assert_eq!(filter.at(ahead(9, 121), 121 * MINUTE), ahead(9, 121));
    }

    #[test]
    fn clock_set_back_or_advanced_by_sleep_is_accepted_at_once() {
        let mut filter = JumpFilter::new(START, 0);
        assert_eq!(filter.at(START - DAY, MINUTE), START - DAY);
        // The monotonic clock advances during sleep as well.
        assert_eq!(filter.at(START, DAY + MINUTE), START);
        assert!(steady_millis() > 0 && steady_millis() >= steady_millis().saturating_sub(1));
    }

    #[test]
    fn time_since_the_previous_process_counts_after_an_hour() {
        let opened = Opened { at: START + 100 * DAY, end: START, next: 1, steady: 0, ran_ms: 0 };
        assert_eq!(opened.age_from(START + 100 * DAY + MINUTE), START + MINUTE);
        let later = START + 100 * DAY + LASTING_MS;
        assert_eq!(opened.age_from(later), later);
        let ahead = Opened { at: START, end: START + DAY, ..opened };
        assert_eq!(ahead.age_from(START + 1), START + 1);
    }

    #[test]
    fn running_time_continues_from_earlier_processes() {
        let opened = Opened { at: START, end: START, next: 1, steady: 500, ran_ms: 9000 };
        assert_eq!((opened.ran_ms(500), opened.ran_ms(1500)), (9000, 10_000));
        assert_eq!(opened.ran_ms(0), 9000, "a monotonic clock that ran backwards adds nothing");
    }
}

#[cfg(test)]
mod age_marks {
    use proptest::prelude::*;

    use super::*;

    const HOUR_MS: u64 = 3600 * 1000;
    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// Marks of a log that wrote 1000 records an hour, in one batch a minute.
    fn after_hours(hours: u64) -> AgeMarks {
        let mut marks = AgeMarks::default();
        for minute in 0..=hours * 60 {
            marks.note(1 + minute * 1000 / 60, minute * 60_000, DAY);
        }
        marks
    }

    #[test]
    fn records_are_old_once_the_log_has_run_for_the_minimum_age() {
        let marks = after_hours(23);
        assert_eq!(marks.older_than(DAY, 23 * HOUR_MS), None);
        assert_eq!(marks.older_than(DAY, 24 * HOUR_MS), Some(1));
        let marks = after_hours(100);
        let old = marks.older_than(DAY, 100 * HOUR_MS).unwrap();
        // The age is at least a day, accurate to 1/64 of a day.
        assert!((76_001 - 400..=76_001).contains(&old), "{old}");
    }

    #[test]
    fn unneeded_marks_are_dropped_and_the_rest_is_bounded() {
        let marks = after_hours(1000);
        assert!(marks.marks.len() as u64 <= MARKS + 2, "{}", marks.marks.len());
        let mut marks = AgeMarks::default();
        for minute in 0..10_000 {
            // With a shorter minimum age, the marks are closer together.
            let min_age = if minute < 300 { DAY / 64 } else { DAY * 30 };
            marks.note(1 + minute, minute * 60_000, min_age);
        }
        assert!(marks.marks.len() <= MAX_MARKS);
    }

    #[test]
    fn running_time_is_written_once_a_minute() {
        let mut marks = AgeMarks::default();
        assert!(marks.note(1, 500, DAY), "the first mark");
        assert!(!marks.note(2, 60_499, DAY));
        assert!(marks.note(3, 60_500, DAY));
        assert_eq!((marks.ran_ms, marks.first()), (60_500, Some(1)));
    }

    #[test]
    fn without_a_minimum_age_every_record_is_old_enough() {
        let mut marks = AgeMarks::default();
        marks.note(1, 0, Duration::ZERO);
        marks.note(900, 60_000, Duration::ZERO);
        assert_eq!(marks.older_than(Duration::ZERO, 60_000), Some(900));
    }

    #[test]
    fn marks_of_lost_records_are_dropped() {
        let marks = after_hours(100).truncated_to(90_000);
        assert!(marks.marks.iter().all(|mark| mark.next <= 90_000));
        assert_eq!((marks.ran_ms, after_hours(100).truncated_to(0).first()), (100 * HOUR_MS, None));
    }

    #[test]
    fn marks_round_trip_and_malformed_ones_are_rejected() {
        let marks = after_hours(100);
        let bytes = marks.encode();
        assert_eq!(AgeMarks::decode(&bytes).as_ref(), Ok(&marks));
        assert_eq!(AgeMarks::decode(&bytes[..bytes.len() - 1]), Err(DecodeError::Short));
        assert_eq!(AgeMarks::decode(&[]), Err(DecodeError::Short));
        let backwards = [3u64, 5, 2, 4, 3].map(u64::to_be_bytes).concat();
        assert_eq!(AgeMarks::decode(&backwards), Err(DecodeError::Value));
    }

    proptest! {
        #[test]
        fn arbitrary_age_mark_bytes_are_read_or_rejected(bytes: Vec<u8>) {
            if let Ok(marks) = AgeMarks::decode(&bytes) {
                prop_assert_eq!(marks.encode(), bytes);
            }
        }
    }
}
