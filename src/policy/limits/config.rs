//! The limits as the operator writes them: section `limits`, and `limits` of a server.
//!
//! Owns the keys, their bounds and what an absent one means. What is done with them is `limits`'.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::tool::Rules;

/// Calls that wait where `queue` says nothing.
pub const DEFAULT_QUEUE: usize = 256;
/// Most that `queue` may say: each call that waits has a place in the log as well.
pub const MAX_QUEUE: usize = 4096;
/// Most that `concurrent` may say.
pub(super) const MAX_CONCURRENT: usize = 1_000_000;
/// Most that `rate_per_minute` may say.
pub(super) const MAX_RATE: u32 = 60_000_000;
/// Most failures in a row that a breaker waits for.
pub(super) const MAX_FAILURES: u32 = 1_000;
/// Longest time that a breaker keeps a server aside.
pub(super) const MAX_OPEN: Duration = Duration::from_secs(3600);

/// The section `limits`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Calls at a time, over all.
    #[serde(deserialize_with = "concurrent")]
    pub concurrent: Option<NonZeroUsize>,
    /// Calls that may wait for one of those places.
    #[serde(deserialize_with = "queue")]
    pub queue: Option<usize>,
    /// Calls in a minute, over all.
    #[serde(deserialize_with = "rate")]
    pub rate_per_minute: Option<NonZeroU32>,
    /// The breaker of each server that has none of its own.
    pub breaker: Option<BreakerConfig>,
    /// By `server:tool` or pattern: each tool for itself; the rate of each principal for itself.
    pub tools: Rules<Limit>,
    /// By principal (`token:ci`) or pattern (`jwt:*`): each principal for itself.
    pub principals: Rules<Limit>,
}

/// What may be limited of whatever is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Limit {
    /// Calls at a time.
    #[serde(deserialize_with = "concurrent")]
    pub concurrent: Option<NonZeroUsize>,
    /// Calls that may wait for one of those places.
    #[serde(deserialize_with = "queue")]
    pub queue: Option<usize>,
    /// Calls in a minute.
    #[serde(deserialize_with = "rate")]
    pub rate_per_minute: Option<NonZeroU32>,
}

/// `limits` of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServerConfig {
    /// Calls at a time; `max_concurrent` means the same.
    #[serde(deserialize_with = "concurrent")]
    pub concurrent: Option<NonZeroUsize>,
    /// Calls that may wait for one of those places.
    #[serde(deserialize_with = "queue")]
    pub queue: Option<usize>,
    /// Calls in a minute.
    #[serde(deserialize_with = "rate")]
    pub rate_per_minute: Option<NonZeroU32>,
    /// When it is set aside.
    pub breaker: Option<BreakerConfig>,
}

/// When a server is set aside because it fails all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BreakerConfig {
    /// So many failures in a row.
    #[serde(deserialize_with = "failures")]
    pub failures: u32,
    /// For so long, then one call tries it.
    #[serde(deserialize_with = "open")]
    pub open: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 5, open: Duration::from_secs(30) }
    }
}

impl Limit {
    /// What stands here, and below it what `other` says, which is less specific.
    #[must_use]
    pub fn over(self, other: Self) -> Self {
        Self {
            concurrent: self.concurrent.or(other.concurrent),
            queue: self.queue.or(other.queue),
            rate_per_minute: self.rate_per_minute.or(other.rate_per_minute),
        }
    }

    /// What the rules say of `name`, field by field, the most specific first.
    #[must_use]
    pub fn of(rules: &Rules<Self>, name: &str) -> Self {
        rules.matching(name).fold(Self::default(), |below, stated| stated.over(below))
    }
}

impl Config {
    /// What is limited over all.
    #[must_use]
    pub fn all(&self) -> Limit {
        let Self { concurrent, queue, rate_per_minute, .. } = *self;
        Limit { concurrent, queue, rate_per_minute }
    }
}

impl ServerConfig {
    /// What is limited of the server.
    #[must_use]
    pub fn limit(&self) -> Limit {
        let Self { concurrent, queue, rate_per_minute, .. } = *self;
        Limit { concurrent, queue, rate_per_minute }
    }
}

fn bounded<T: PartialOrd + std::fmt::Display, E: serde::de::Error>(
    value: T,
    least: T,
    most: T,
) -> Result<T, E> {
    if value < least || value > most {
        return Err(E::custom(format_args!("must be {least} to {most}, is {value}")));
    }
    Ok(value)
}

fn concurrent<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NonZeroUsize>, D::Error> {
    bounded(usize::deserialize(from)?, 1, MAX_CONCURRENT).map(NonZeroUsize::new)
}

fn queue<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    bounded(usize::deserialize(from)?, 0, MAX_QUEUE).map(Some)
}

fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NonZeroU32>, D::Error> {
    bounded(u32::deserialize(from)?, 1, MAX_RATE).map(NonZeroU32::new)
}

fn failures<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    bounded(u32::deserialize(from)?, 1, MAX_FAILURES)
}

/// `"30s"`, `"2m"`: more than zero, at most `MAX_OPEN`.
fn open<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    use serde::de::Error;
    let text = String::deserialize(from)?;
    let span = text.parse::<jiff::SignedDuration>().ok();
    let span = span.and_then(|span| Duration::try_from(span).ok());
    span.filter(|span| !span.is_zero() && *span <= MAX_OPEN).ok_or_else(|| {
        D::Error::custom(format!("'{text}' is no time up to 1h: write it like \"30s\" or \"2m\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Config, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_operator_writes_is_read_and_the_most_specific_counts() {
        let config = read(
            r#"{"concurrent": 100, "breaker": {}, "tools": {
                "*": {"rate_per_minute": 600, "queue": 3}, "github:*": {"concurrent": 4},
                "github:delete_repo": {"rate_per_minute": 2}}}"#,
        )
        .unwrap();
        assert_eq!(config.all().concurrent, NonZeroUsize::new(100));
        let breaker = BreakerConfig { failures: 5, open: Duration::from_secs(30) };
        assert_eq!(config.breaker, Some(breaker));
        let of = |name| Limit::of(&config.tools, name);
        let limit = of("github:delete_repo");
        assert_eq!(
            (limit.concurrent, limit.queue, limit.rate_per_minute),
            (NonZeroUsize::new(4), Some(3), NonZeroU32::new(2))
        );
        assert_eq!(of("web:get").rate_per_minute, NonZeroU32::new(600));
        assert_eq!(of("web:get").concurrent, None);
    }

    #[test]
    fn a_bad_value_is_refused_with_its_bounds() {
        for (json, told) in [
            (r#"{"concurrent": 0}"#, "must be 1 to 1000000, is 0"),
            (r#"{"queue": 4097}"#, "must be 0 to 4096, is 4097"),
            (r#"{"rate_per_minute": 0}"#, "must be 1 to 60000000, is 0"),
            (r#"{"breaker": {"failures": 0}}"#, "must be 1 to 1000, is 0"),
            (r#"{"breaker": {"open": "0s"}}"#, "'0s' is no time up to 1h"),
            (r#"{"breaker": {"open": "2h"}}"#, "'2h' is no time up to 1h"),
            (r#"{"breaker": {"open": 30}}"#, "expected a string"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(told), "{json}: {error}");
        }
    }
}
