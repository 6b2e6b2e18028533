//! The `activity` part of the configuration.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::record::{MAX_ERROR_BYTES, MAX_METADATA_BYTES};

/// When a record is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// At most 50 ms after the reply.
    #[default]
    Grouped,
    /// Before the reply's last chunk.
    BeforeReply,
    /// The same; and before a call that may change something is sent, that it is under way.
    BeforeSend,
    /// Before the reply's last chunk it is durable, and in the fleet's store.
    Fleet,
}

/// What happens to calls while the log cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// They are refused.
    #[default]
    Refuse,
    /// They go on, and what cannot be recorded is counted.
    Continue,
}

/// The `activity` part of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Records are kept for so many days; 0 for ever.
    pub retention_days: u32,
    /// At most so many records are kept; 0 for any number.
    pub max_records: u64,
    /// The log takes at most about so many megabytes; 0 for any.
    pub max_size_mb: u64,
    /// Bytes of arguments that are kept, at most [`MAX_KEPT_BYTES`].
    #[serde(deserialize_with = "kept_bytes")]
    pub max_payload_bytes: usize,
    /// Bytes of a response that are kept, at most as many.
    #[serde(deserialize_with = "kept_bytes")]
    pub max_response_bytes: usize,
    /// Whether records of calls have a receipt: hashes of the answer as it came and as it went on.
    pub receipts: bool,
    /// When a record is durable.
    pub durability: Durability,
    /// Whether calls that only read leave a mark, too, when they begin.
    pub mark_reads: bool,
    /// What happens to calls while the log cannot be written.
    pub on_failure: OnFailure,
    /// Keys whose values are never kept, besides the built-in ones.
    pub redact_keys: Vec<String>,
    /// Calls that may be under way or waiting to be written.
    pub queue_records: usize,
    /// Bytes that those may take in memory.
    pub queue_bytes: usize,
}

/// The most that `max_payload_bytes` and `max_response_bytes` can be: a record is read, sealed, asked for and proven as a whole.
pub const MAX_KEPT_BYTES: usize = 4 << 20;

fn kept_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let bytes = usize::deserialize(deserializer)?;
    if bytes <= MAX_KEPT_BYTES {
        Ok(bytes)
    } else {
        Err(D::Error::custom(format_args!("must be 0 to {MAX_KEPT_BYTES}, is {bytes}")))
    }
}

/// How long records are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// For so many days; 0 for ever.
    pub days: u32,
    /// At most so many; 0 for any number.
    pub max_records: u64,
    /// About so many megabytes; 0 for any.
    pub max_size_mb: u64,
}

/// What an entry takes at most beyond arguments and response, intent and metadata included: a draft
/// grows by no more than it is given, so besides the error there are 4 KiB for names, spare room
/// and the entry itself, 2.5 KiB for the second entry of a call that has begun, without what it is
/// given, and the rest for decisions.
const ENTRY_BYTES: usize = MAX_ERROR_BYTES + 2 * MAX_METADATA_BYTES + 6144 + 2560;

impl Config {
    /// How long records are kept.
    #[must_use]
    pub fn retention(&self) -> Retention {
        let Self { retention_days: days, max_records, max_size_mb, .. } = *self;
        Retention { days, max_records, max_size_mb }
    }

    /// Most bytes of memory that one call's entry takes.
    #[must_use]
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
            max_payload_bytes: 4096,
            max_response_bytes: 1024,
            receipts: false,
            durability: Durability::Grouped,
            mark_reads: false,
            on_failure: OnFailure::Refuse,
            redact_keys: Vec::new(),
            queue_records: 8192,
            queue_bytes: 256 << 20,
        }
    }
}
