//! Config section `limits`, and `limits` of a server.
//!
//! Owns keys, bounds and defaults.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::tool::Rules;

pub const DEFAULT_QUEUE: usize = 256;
/// Maximum of `queue`, which is bounded because each waiting call also occupies a slot in the activity log.
pub const MAX_QUEUE: usize = 4096;
/// Maximum of `concurrent`.
pub(super) const MAX_CONCURRENT: usize = 1_000_000;
/// Maximum of `rate_per_minute`.
pub(super) const MAX_RATE: u32 = 60_000_000;
/// Maximum of `failures`.
pub(super) const MAX_FAILURES: u32 = 1_000;
/// Default of `refusals_per_second`.
pub const DEFAULT_REFUSALS: u32 = 50;
pub const DEFAULT_REFUSALS_BURST: u32 = 500;
pub(super) const MAX_REFUSALS: u32 = 1_000_000;
/// Default of `held_timeout`, which is long because a person may have to answer.
const DEFAULT_HELD: Duration = Duration::from_secs(600);
/// Maximum of `open` and `held_timeout`.
pub(super) const MAX_OPEN: Duration = Duration::from_secs(3600);

/// Config section `limits`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Maximum number of concurrent calls in total.
    #[serde(deserialize_with = "concurrent")]
    pub concurrent: Option<NonZeroUsize>,
    /// Maximum number of calls that may wait for a slot.
    #[serde(deserialize_with = "queue")]
    pub queue: Option<usize>,
    /// Maximum number of calls per minute in total.
    #[serde(deserialize_with = "rate")]
    pub rate_per_minute: Option<NonZeroU32>,
    /// Denials per principal and second that are recorded one by one; 0 for unlimited.
    #[serde(deserialize_with = "refusals")]
    pub refusals_per_second: u32,
    /// Burst of denials per principal.
    #[serde(deserialize_with = "refusals_burst")]
    pub refusals_burst: NonZeroU32,
    /// Maximum time that a call waits for its client to return with the input that its server asked for (PRO-42).
    #[serde(deserialize_with = "open")]
    pub held_timeout: Duration,
    /// Default breaker of servers.
    pub breaker: Option<BreakerConfig>,
    /// Limits per tool by `server:tool` or pattern; rates apply per tool and principal.
    pub tools: Rules<Limit>,
    /// Limits per principal by name (`token:ci`) or pattern (`jwt:*`).
    pub principals: Rules<Limit>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            concurrent: None,
            queue: None,
            rate_per_minute: None,
            refusals_per_second: DEFAULT_REFUSALS,
            refusals_burst: NonZeroU32::new(DEFAULT_REFUSALS_BURST).unwrap_or(NonZeroU32::MIN),
            held_timeout: DEFAULT_HELD,
            breaker: None,
            tools: Rules::default(),
            principals: Rules::default(),
        }
    }
}

/// Limit of one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Limit {
    /// Maximum number of concurrent calls.
    #[serde(deserialize_with = "concurrent")]
    pub concurrent: Option<NonZeroUsize>,
    /// Maximum number of calls that may wait for a slot.
    #[serde(deserialize_with = "queue")]
    pub queue: Option<usize>,
    /// Maximum number of calls per minute.
    #[serde(deserialize_with = "rate")]
    pub rate_per_minute: Option<NonZeroU32>,
}

/// The section `limits` of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServerConfig {
    /// Maximum number of concurrent calls; alias `max_concurrent`.
    #[serde(deserialize_with = "concurrent")]
    pub concurrent: Option<NonZeroUsize>,
    /// Maximum number of calls that may wait for a slot.
    #[serde(deserialize_with = "queue")]
    pub queue: Option<usize>,
    /// Maximum number of calls per minute.
    #[serde(deserialize_with = "rate")]
    pub rate_per_minute: Option<NonZeroU32>,
    /// Circuit breaker.
    pub breaker: Option<BreakerConfig>,
}

/// Circuit breaker of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BreakerConfig {
    /// Number of consecutive failures that open the breaker.
    #[serde(deserialize_with = "failures")]
    pub failures: u32,
    /// Open period of the breaker before a probe.
    #[serde(deserialize_with = "open")]
    pub open: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 5, open: Duration::from_secs(30) }
    }
}

impl Limit {
    /// Returns these values; missing ones are taken from the less specific `other`.
    pub(crate) fn over(self, other: Self) -> Self {
        Self {
            concurrent: self.concurrent.or(other.concurrent),
            queue: self.queue.or(other.queue),
            rate_per_minute: self.rate_per_minute.or(other.rate_per_minute),
        }
    }

    /// Limit for `name`, field by field, the most specific rule first.
    pub(crate) fn of(rules: &Rules<Self>, name: &str) -> Self {
        rules.matching(name).fold(Self::default(), |below, stated| stated.over(below))
    }
}

impl Config {
    /// The global limit.
    pub(crate) fn all(&self) -> Limit {
        let Self { concurrent, queue, rate_per_minute, .. } = *self;
        Limit { concurrent, queue, rate_per_minute }
    }
}

impl Config {
    /// Rate and burst of denials; `None` if unlimited.
    pub(crate) fn refusals(&self) -> Option<(NonZeroU32, NonZeroU32)> {
        Some((NonZeroU32::new(self.refusals_per_second)?, self.refusals_burst))
    }
}

impl ServerConfig {
    /// The server's limit.
    pub(crate) fn limit(&self) -> Limit {
        let Self { concurrent, queue, rate_per_minute, .. } = *self;
        Limit { concurrent, queue, rate_per_minute }
    }
}

fn bounded<T: PartialOrd + std::fmt::Display, E: serde::de::Error>(
    value: T,
    min: T,
    max: T,
) -> Result<T, E> {
    if value < min || value > max {
        return Err(E::custom(format_args!("must be {min} to {max}, is {value}")));
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

fn refusals<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    bounded(u32::deserialize(from)?, 0, MAX_REFUSALS)
}

fn refusals_burst<'de, D: Deserializer<'de>>(from: D) -> Result<NonZeroU32, D::Error> {
    bounded(u32::deserialize(from)?, 1, MAX_REFUSALS)
        .map(|burst| NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN))
}

fn failures<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    bounded(u32::deserialize(from)?, 1, MAX_FAILURES)
}

/// Parses `"30s"` or `"2m"`: more than zero, at most `MAX_OPEN`.
fn open<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    use serde::de::Error;
    let text = String::deserialize(from)?;
    let span = text.parse::<jiff::SignedDuration>().ok();
    let span = span.and_then(|span| Duration::try_from(span).ok());
    span.filter(|span| !span.is_zero() && *span <= MAX_OPEN).ok_or_else(|| {
        D::Error::custom(format!(
            "'{text}' is not a duration of at most 1h: write it like \"30s\" or \"2m\""
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Config, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn config_is_parsed_and_the_most_specific_limit_wins() {
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
    fn denial_rate_of_zero_is_unlimited() {
        let rate =
            |json| read(json).unwrap().refusals().map(|(rate, burst)| (rate.get(), burst.get()));
        assert_eq!(rate("{}"), Some((50, 500)));
        assert_eq!(rate(r#"{"refusals_per_second": 3, "refusals_burst": 7}"#), Some((3, 7)));
        assert_eq!(rate(r#"{"refusals_per_second": 0}"#), None);
    }

    #[test]
    fn out_of_range_value_is_rejected_with_its_range() {
        for (json, cause) in [
            (r#"{"concurrent": 0}"#, "must be 1 to 1000000, is 0"),
            (r#"{"queue": 4097}"#, "must be 0 to 4096, is 4097"),
            (r#"{"rate_per_minute": 0}"#, "must be 1 to 60000000, is 0"),
            (r#"{"refusals_per_second": 1000001}"#, "must be 0 to 1000000, is 1000001"),
            (r#"{"refusals_burst": 0}"#, "must be 1 to 1000000, is 0"),
            (r#"{"breaker": {"failures": 0}}"#, "must be 1 to 1000, is 0"),
            (r#"{"breaker": {"open": "0s"}}"#, "'0s' is not a duration of at most 1h"),
            (r#"{"breaker": {"open": "2h"}}"#, "'2h' is not a duration of at most 1h"),
            (r#"{"breaker": {"open": 30}}"#, "expected a string"),
            (r#"{"held_timeout": "0s"}"#, "'0s' is not a duration of at most 1h"),
            (r#"{"held_timeout": "61m"}"#, "'61m' is not a duration of at most 1h"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(cause), "{json}: {error}");
        }
    }
}
