//! The `activity` section of the configuration.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::record::{MAX_ERROR_BYTES, MAX_METADATA_BYTES};

/// Time at which a record must be durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Durable at most 50 ms after the reply.
    #[default]
    Grouped,
    /// Durable before the reply's last chunk.
    BeforeReply,
    /// Like `before_reply`; in addition, a call that may change something is marked durably before it is sent.
    BeforeSend,
    /// Durable before the reply's last chunk, both on disk and in the fleet's object store.
    Fleet,
}

/// Treatment of calls while the log cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    #[default]
    Refuse,
    /// Calls proceed, and lost records are counted.
    Continue,
}

/// The `activity` section of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Maximum age of records in days; 0 for no limit.
    pub retention_days: u32,
    /// Maximum number of records; 0 for no limit.
    pub max_records: u64,
    /// Approximate maximum size of the log in megabytes; 0 for no limit.
    pub max_size_mb: u64,
    /// Minimum age of records removed for `max_records` or `max_size_mb`; zero for none. At most
    /// [`MAX_MIN_RETENTION`].
    #[serde(deserialize_with = "min_retention")]
    pub min_retention: Duration,
    /// Maximum stored size of the arguments in bytes, at most [`MAX_KEPT_BYTES`].
    #[serde(deserialize_with = "kept_bytes")]
    pub max_payload_bytes: usize,
    /// Maximum stored size of the response in bytes, at most [`MAX_KEPT_BYTES`].
    #[serde(deserialize_with = "kept_bytes")]
    pub max_response_bytes: usize,
    /// Whether call records carry a receipt: hashes of the response as received and as forwarded.
    pub receipts: bool,
    pub durability: Durability,
    /// Whether read-only calls are marked when they begin, like all other calls.
    pub mark_reads: bool,
    pub on_failure: OnFailure,
    /// Keys whose values are always redacted, in addition to the built-in ones.
    pub redact_keys: Vec<String>,
    /// Maximum number of calls in flight or waiting to be written.
    pub queue_records: usize,
    /// Maximum memory of the calls in flight or waiting to be written, in bytes.
    pub queue_bytes: usize,
    /// Schedule of the scrubs; not configurable.
    #[serde(skip)]
    pub scrubs: ScrubTimes,
}

/// Schedule of the scrubs, which compare the files of the log with their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubTimes {
    /// Delay from the start to the first scrub of the tables.
    pub tables_after: Duration,
    /// Interval between scrubs of the tables.
    pub tables_every: Duration,
    /// Delay from the start to the first scrub of the journals.
    pub journals_after: Duration,
    /// Interval between scrubs of the journals.
    pub journals_every: Duration,
}

impl Default for ScrubTimes {
    fn default() -> Self {
        Self {
            tables_after: Duration::from_secs(10 * 60),
            tables_every: Duration::from_secs(24 * 3600),
            journals_after: Duration::from_secs(60),
            journals_every: Duration::from_secs(5 * 60),
        }
    }
}

/// Upper limit of `max_payload_bytes` and `max_response_bytes`. It exists because records are read, sealed, fetched and
/// proven as a whole.
pub const MAX_KEPT_BYTES: usize = 4 << 20;
/// Upper limit of `min_retention`: 30 days.
pub(crate) const MAX_MIN_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

fn kept_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let bytes = usize::deserialize(deserializer)?;
    if bytes <= MAX_KEPT_BYTES {
        Ok(bytes)
    } else {
        Err(D::Error::custom(format_args!("must be 0 to {MAX_KEPT_BYTES}, is {bytes}")))
    }
}

/// Parses `"24h"`, `"90m"` or `"0s"`, at most [`MAX_MIN_RETENTION`].
fn min_retention<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let span = text.parse::<jiff::SignedDuration>().ok();
    let span = span.and_then(|span| Duration::try_from(span).ok());
    span.filter(|span| *span <= MAX_MIN_RETENTION).ok_or_else(|| {
        D::Error::custom(format_args!(
            "'{text}' is not a duration of at most 720h: write it like \"24h\" or \"90m\""
        ))
    })
}

/// Limits on the retention of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Maximum age in days; 0 for no limit.
    pub days: u32,
    /// Maximum number; 0 for no limit.
    pub max_records: u64,
    /// Approximate maximum size in megabytes; 0 for no limit.
    pub max_size_mb: u64,
    /// Minimum age of records removed for their number or size.
    pub min_age: Duration,
}

/// Maximum size of an entry, without arguments and response. Covers the error text, the intent and the metadata. The
/// 6144 bytes are 4 KiB for names, spare capacity and the entry itself, and 2 KiB for decisions; the 2560 bytes are for
/// the second entry of a marked call.
const ENTRY_BYTES: usize = MAX_ERROR_BYTES + 2 * MAX_METADATA_BYTES + 6144 + 2560;

impl Config {
    pub fn retention(&self) -> Retention {
        let Self { retention_days: days, max_records, max_size_mb, min_retention: min_age, .. } =
            *self;
        Retention { days, max_records, max_size_mb, min_age }
    }

    /// Maximum memory of one call's entry in bytes.
    pub fn entry_bytes(&self) -> usize {
        ENTRY_BYTES.saturating_add(self.max_payload_bytes).saturating_add(self.max_response_bytes)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            retention_days: 90,
            max_records: 1_000_000,
            max_size_mb: 1024,
            min_retention: Duration::from_secs(24 * 3600),
            max_payload_bytes: 4096,
            max_response_bytes: 1024,
            receipts: false,
            durability: Durability::Grouped,
            mark_reads: false,
            on_failure: OnFailure::Refuse,
            redact_keys: Vec::new(),
            queue_records: 8192,
            queue_bytes: 256 << 20,
            scrubs: ScrubTimes::default(),
        }
    }
}
