//! How points in time are shown: how long ago, by the clock of this place, or in UTC.
//!
//! Pure but for [`Times::new`], which asks for the clock and the zone.

use clap::ValueEnum;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::table::cell;

/// How times are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TimeStyle {
    /// How long ago.
    Relative,
    /// By the clock of this place.
    Local,
    /// In UTC, where no hour comes twice.
    Utc,
}

/// How times are shown.
#[derive(Clone, Debug)]
pub(super) enum Times {
    /// Before or after this moment.
    Relative(Timestamp),
    /// In a zone of this name.
    Zone(TimeZone, String),
}

impl Times {
    /// As it is asked for; else relative where people look at it, and in UTC where they do not.
    pub(super) fn new(asked: Option<TimeStyle>, is_terminal: bool) -> Self {
        let usual = if is_terminal { TimeStyle::Relative } else { TimeStyle::Utc };
        let now = Timestamp::now();
        match asked.unwrap_or(usual) {
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

    /// The name of a column: it says the zone.
    pub(super) fn header(&self, relative: &'static str, absolute: &str) -> String {
        match self {
            Self::Relative(_) => relative.to_owned(),
            Self::Zone(_, name) => format!("{absolute} ({name})"),
        }
    }

    /// Month to second: retention makes the year known.
    pub(super) fn show(&self, time: Timestamp) -> String {
        match self {
            Self::Relative(now) => relative(now.as_second(), time.as_second()),
            Self::Zone(zone, _) => {
                time.to_zoned(zone.clone()).strftime("%m-%d %H:%M:%S").to_string()
            }
        }
    }

    /// Year to millisecond, with what the zone's clock is ahead of UTC; or how long ago.
    pub(super) fn exact(&self, time: Timestamp) -> String {
        match self {
            Self::Relative(now) if time > *now => self.show(time),
            Self::Relative(_) => format!("{} ago", self.show(time)),
            Self::Zone(zone, _) if *zone == TimeZone::UTC => format!("{time:.3}"),
            Self::Zone(zone, _) => {
                time.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()
            }
        }
    }

    /// The same of a timestamp in JSON; what is none is shown as it is.
    pub(super) fn exact_text(&self, timestamp: &str) -> String {
        timestamp.parse().map_or_else(|_| cell(timestamp), |time| self.exact(time))
    }

    /// [`Times::show`] of a timestamp in JSON; what is none is shown as it is.
    pub(super) fn show_text(&self, timestamp: &str) -> String {
        timestamp.parse().map_or_else(|_| cell(timestamp), |time| self.show(time))
    }
}

/// `5m` for what was five minutes ago, `in 5m` for what will be.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short_and_what_is_to_come_says_so() {
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
    fn the_header_names_the_zone() {
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
        let ages = Times::new(None, true);
        assert_eq!(ages.header("AGE", "TIME"), "AGE");
        assert!(matches!(Times::new(Some(TimeStyle::Local), true), Times::Zone(..)));
    }
}
