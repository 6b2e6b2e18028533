//! The `activity` part of the configuration.

use serde::Deserialize;

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
    /// Bytes of arguments that are kept.
    pub max_payload_bytes: usize,
    /// Bytes of a response that are kept.
    pub max_response_bytes: usize,
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

impl Default for Config {
    fn default() -> Self {
        Self {
            retention_days: 90,
            max_records: 1_000_000,
            max_size_mb: 1024,
            max_payload_bytes: 4096,
            max_response_bytes: 1024,
            durability: Durability::Grouped,
            mark_reads: false,
            on_failure: OnFailure::Refuse,
            redact_keys: Vec::new(),
            queue_records: 8192,
            queue_bytes: 256 << 20,
        }
    }
}
