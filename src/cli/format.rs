//! Formatting of values for people: timestamps, counts, and members of JSON responses selected by pointer (RFC 6901).
//!
//! Pure except for [`Times::new`], which reads the clock and the time zone.

use crate::hints;
use crate::table::cell;
use clap::ValueEnum;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Display;
use std::ops::Range;

/// Time format chosen with `--time`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TimeStyle {
    /// Age or time remaining.
    Relative,
    /// Local time zone.
    Local,
    /// UTC, where no hour repeats.
    Utc,
}

/// Format of timestamps.
#[derive(Clone, Debug)]
pub(super) enum Times {
    /// Relative to this moment.
    Relative(Timestamp),
    /// In a time zone, with its display name.
    Zone(TimeZone, String),
    /// The time of day in a time zone, for a person who sees records arrive.
    Clock(TimeZone),
}

impl Times {
    /// Uses the requested style; the default is relative at a terminal and UTC otherwise.
    pub(super) fn new(requested: Option<TimeStyle>, is_terminal: bool) -> Self {
        let default = if is_terminal { TimeStyle::Relative } else { TimeStyle::Utc };
        let now = Timestamp::now();
        match requested.unwrap_or(default) {
            TimeStyle::Relative => Self::Relative(now),
            TimeStyle::Utc => Self::Zone(TimeZone::UTC, "UTC".to_owned()),
            TimeStyle::Local => {
                let zone = TimeZone::system();
                let offset = || zone.to_offset(now).to_string();
                let name = zone.iana_name().map_or_else(offset, str::to_owned);
                Self::Zone(zone, name)
            }
        }
    }

    /// Omits the date.
    pub(super) fn clock(self) -> Self {
        match self {
            Self::Zone(zone, _) => Self::Clock(zone),
            Self::Relative(_) | Self::Clock(_) => self,
        }
    }

    /// Column header, which includes the zone of a date.
    pub(super) fn header(&self, relative: &'static str, absolute: &str) -> String {
        match self {
            Self::Relative(_) => relative.to_owned(),
            Self::Zone(_, name) => format!("{absolute} ({name})"),
            Self::Clock(_) => absolute.to_owned(),
        }
    }

    /// Formats a time for people, from month to second, or as an age. The year is omitted, because it follows from the
    /// retention period.
    pub(super) fn show(&self, time: Timestamp) -> String {
        match self {
            Self::Relative(now) => relative(now.as_second(), time.as_second()),
            Self::Zone(zone, _) => {
                time.to_zoned(zone.clone()).strftime("%m-%d %H:%M:%S").to_string()
            }
            Self::Clock(zone) => time.to_zoned(zone.clone()).strftime("%H:%M:%S").to_string(),
        }
    }

    /// Formats a time from year to millisecond with the UTC offset, or as an age.
    pub(super) fn exact(&self, time: Timestamp) -> String {
        match self {
            Self::Relative(now) if time > *now => self.show(time),
            Self::Relative(_) => format!("{} ago", self.show(time)),
            Self::Zone(zone, _) | Self::Clock(zone) if *zone == TimeZone::UTC => {
                format!("{time:.3}")
            }
            Self::Zone(zone, _) | Self::Clock(zone) => {
                time.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()
            }
        }
    }

    /// [`Times::exact`] for a JSON timestamp; other text is returned unchanged.
    pub(super) fn exact_text(&self, timestamp: &str) -> String {
        timestamp.parse().map_or_else(|_| cell(timestamp), |time| self.exact(time))
    }

    /// [`Times::show`] for a JSON timestamp; other text is returned unchanged.
    pub(super) fn show_text(&self, timestamp: &str) -> String {
        timestamp.parse().map_or_else(|_| cell(timestamp), |time| self.show(time))
    }
}

/// Formats `5m` for five minutes ago, `in 5m` for the future.
fn relative(now: i64, then: i64) -> String {
    let seconds = now.abs_diff(then);
    let (number, unit) = match seconds {
        0..60 => (seconds, "s"),
        60..3_600 => (seconds / 60, "m"),
        3_600..172_800 => (seconds / 3_600, "h"),
        172_800.. => (seconds / 86_400, "d"),
    };
    let before = if then > now { "in " } else { "" };
    format!("{before}{number}{unit}")
}

/// Formats a number with its noun: `1 tool`, `2 tools`. The noun must have a regular plural.
pub(super) fn counted(number: impl Display, thing: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// The text at a JSON pointer: strings unquoted, other values as JSON, "" if absent.
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> Cow<'a, str> {
    match value.pointer(pointer) {
        None | Some(Value::Null) => Cow::Borrowed(""),
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(other) => Cow::Owned(other.to_string()),
    }
}

/// The array at a JSON pointer, or an empty slice.
pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Counts of a server's list items that do not conform to MCP; `None` if all items conform.
pub(super) fn nonconforming(server: &Value) -> Option<String> {
    let number = |at: &str| server.pointer(at).and_then(Value::as_u64).unwrap_or_default();
    let (repaired, omitted) = (number("/nonconforming/repaired"), number("/nonconforming/omitted"));
    match (repaired, omitted) {
        (0, 0) => None,
        (repaired, 0) => Some(format!("{} repaired", counted(repaired, "list item"))),
        (0, omitted) => Some(format!("{} left out", counted(omitted, "list item"))),
        (repaired, omitted) => {
            Some(format!("{} repaired, {omitted} left out", counted(repaired, "list item")))
        }
    }
}

/// State of a server's second connection, if it is open. The error states why it could not be opened or was lost.
pub(super) fn second_connection(server: &Value) -> Option<Result<String, String>> {
    let [state, version, reason] = ["/state", "/protocol_version", "/reason"]
        .map(|at| cell(&text(server, &format!("/second_connection{at}"))));
    match &*state {
        "connected" => Some(Ok(format!("second connection open ({version})"))),
        "failed" => Some(Err(format!("second connection failed: {reason}"))),
        _ => None,
    }
}

/// Notes on nonconforming items, one line each.
pub(super) fn list_notes(server: &Value) -> impl Iterator<Item = String> {
    list(server, "/nonconforming/notes").iter().map(|note| {
        let [list, item, action, reason] =
            ["/list", "/item", "/action", "/reason"].map(|at| cell(&text(note, at)));
        format!("{list} '{item}' {action}: {reason}")
    })
}

/// Counts of nonconforming items with the first `max` notes, on one line; `None` if all items conform.
pub(super) fn nonconforming_items(server: &Value, max: usize) -> Option<String> {
    let counts = nonconforming(server)?;
    let notes: Vec<_> = list_notes(server).collect();
    let shown = notes.iter().take(max).map(String::as_str).collect::<Vec<_>>().join("; ");
    Some(match notes.len().saturating_sub(max) {
        0 => format!("{counts}: {shown}"),
        more => {
            let command = hints::commands("mcpproxy upstream list");
            format!("{counts}: {shown}; {more} more: {command}")
        }
    })
}

/// Adjacent identical blocks of lines, such as the tracebacks of a server that is restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RepeatedLines {
    /// Lines of the last occurrence.
    pub(super) lines: Range<usize>,
    /// Number of occurrences.
    pub(super) count: usize,
}

/// Folds adjacent identical blocks of lines. The blocks end at the last line, because the first occurrence may be
/// incomplete. Among several ways to fold, the one that covers the most lines is used.
pub(super) fn fold_repeats<T: Eq>(lines: &[T]) -> Vec<RepeatedLines> {
    let mut blocks = Vec::new();
    let mut rest = lines;
    while !rest.is_empty() {
        let end = rest.len();
        let count_of = |size: usize| {
            let last = rest.get(end - size..);
            let copies = rest.rchunks_exact(size).take_while(|it| Some(*it) == last);
            copies.count()
        };
        let sizes = (1..=end / 2).map(|size| (size, count_of(size)));
        let best = sizes.filter(|(_, count)| *count > 1);
        // The smallest of the blocks that cover the same lines.
        let best = best.max_by_key(|(size, count)| (size * count, usize::MAX - size));
        let (size, count) = best.unwrap_or((1, 1));
        blocks.push(RepeatedLines { lines: end - size..end, count });
        rest = rest.get(..end - size * count).unwrap_or_default();
    }
    blocks.reverse();
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_identical_blocks_are_folded_into_the_last_one() {
        let folded = |lines: &str| {
            let lines: Vec<_> = lines.chars().collect();
            let blocks = fold_repeats(&lines).into_iter();
            let shown = blocks.map(|it| {
                let block: String = lines[it.lines].iter().collect();
                if it.count == 1 { block } else { format!("({block} {})", it.count) }
            });
            shown.collect::<String>()
        };
        for (lines, expected) in [
            ("", ""),
            ("abc", "abc"),
            ("abb", "a(b 2)"),
            ("abcabcabc", "(abc 3)"),
            // The first occurrence is cut off, and a line repeats within the block.
            ("cabbcabbc", "c(abbc 2)"),
            ("xabababy", "x(ab 3)y"),
            ("aaaa", "(a 4)"),
        ] {
            assert_eq!(folded(lines), expected, "{lines}");
        }
    }

    #[test]
    fn ages_are_short_and_future_times_start_with_in() {
        for (seconds, shown) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3_599, "59m"),
            (3_600, "1h"),
            (47 * 3_600, "47h"),
            (48 * 3_600, "2d"),
            (40 * 86_400, "40d"),
            (-240, "in 4m"),
        ] {
            assert_eq!(relative(1_000_000_000, 1_000_000_000 - seconds), shown);
        }
        assert_eq!(relative(i64::MIN, i64::MAX), "in 213503982334601d");
    }

    #[test]
    fn header_names_the_time_zone() {
        let time: Timestamp = "2026-01-02T23:30:00Z".parse().unwrap();
        let utc = Times::new(None, false);
        assert_eq!(utc.header("AGE", "TIME"), "TIME (UTC)");
        assert_eq!(utc.show(time), "01-02 23:30:00");
        assert_eq!(utc.show_text("soon"), "soon");
        let east = TimeZone::fixed(jiff::tz::offset(5));
        let there = Times::Zone(east, "+05".to_owned());
        assert_eq!(
            (there.header("AGE", "TIME"), there.show(time)),
            ("TIME (+05)".into(), "01-03 04:30:00".into())
        );
        let time: Timestamp = "2026-01-02T23:30:00.1239Z".parse().unwrap();
        assert_eq!(utc.exact(time), "2026-01-02T23:30:00.123Z");
        assert_eq!(there.exact(time), "2026-01-03T04:30:00.123+05:00");
        let relative = Times::Relative("2026-01-02T23:35:01Z".parse().unwrap());
        assert_eq!(relative.exact(time), "5m ago");
        assert_eq!(relative.exact_text("2026-01-03T23:35:01Z"), "in 24h");
        assert_eq!(relative.exact_text("soon"), "soon");
        let clock = Times::Zone(TimeZone::fixed(jiff::tz::offset(5)), "+05".to_owned()).clock();
        assert_eq!(clock.header("AGE", "TIME"), "TIME");
        assert_eq!(clock.show(time), "04:30:00");
        assert_eq!(clock.exact(time), "2026-01-03T04:30:00.123+05:00");
        let ages = Times::new(None, true);
        assert_eq!(ages.header("AGE", "TIME"), "AGE");
        assert!(matches!(Times::new(Some(TimeStyle::Local), true), Times::Zone(..)));
    }

    #[test]
    fn noun_after_a_count_of_one_is_singular() {
        let shown = ["0", "1", "2", "11"].map(|number| counted(number, "tool"));
        assert_eq!(shown, ["0 tools", "1 tool", "2 tools", "11 tools"]);
        assert_eq!(counted(1_usize, "record"), "1 record");
    }
}
