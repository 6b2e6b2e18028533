//! So many lines of one kind in a minute, so that nobody who can cause them fills the log. Pure.

/// Over so many milliseconds lines are counted.
const OVER_MS: u64 = 60_000;
/// Most lines in that time.
const MAX_LINES: u32 = 20;

/// What is left of a minute's lines.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LineBudget {
    /// When the next minute begins.
    until: u64,
    left: u32,
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineLeave {
    /// It is written.
    Write,
    /// It is written, and that it is the last of its kind for now.
    Last,
    /// It is left out.
    LeaveOut,
}

impl LineBudget {
    /// One line, at `now` on any clock that does not go back, in milliseconds.
    pub(super) fn take(&mut self, now: u64) -> LineLeave {
        if now >= self.until {
            *self = Self { until: now + OVER_MS, left: MAX_LINES };
        }
        let leave = match self.left {
            0 => LineLeave::LeaveOut,
            1 => LineLeave::Last,
            _ => LineLeave::Write,
        };
        self.left = self.left.saturating_sub(1);
        leave
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_lines_in_a_minute_the_first_are_written_and_that_more_are_left_out() {
        let mut budget = LineBudget::default();
        for minute in [0, OVER_MS, 10 * OVER_MS] {
            let leaves: Vec<_> = (0..100).map(|at| budget.take(minute + at)).collect();
            let (written, rest) = leaves.split_at(MAX_LINES as usize - 1);
            assert!(written.iter().all(|it| *it == LineLeave::Write), "{leaves:?}");
            assert_eq!(rest[0], LineLeave::Last);
            assert!(rest[1..].iter().all(|it| *it == LineLeave::LeaveOut), "{leaves:?}");
        }
    }
}
