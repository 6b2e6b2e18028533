//! How the log is, as shown by the status, the health answers and metrics.

/// What calls have of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It is written.
    Ok,
    /// It cannot be written, and calls go on (`on_failure: continue`).
    Degraded,
    /// It cannot be written, and calls are refused.
    Failed,
}

/// How the log is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Health {
    /// What calls have of it.
    pub state: Standing,
    /// Why it cannot be written, if it cannot.
    #[schema(required)]
    pub failed: Option<String>,
    /// Entries that could not be recorded, since the log was begun.
    pub lost: u64,
    /// Calls under way or waiting to be written.
    pub queued: usize,
    /// The last record that is durable.
    pub durable_seq: u64,
    /// For how many milliseconds, at most, the oldest record that is not durable yet has been on its
    /// way. From 35 on replies wait.
    pub lag_ms: u64,
    /// The longest that the disk took for one batch since the start, in milliseconds.
    pub longest_sync_ms: u64,
    /// Records written since the start.
    pub written: u64,
    /// The bytes the log takes on disk.
    pub disk_bytes: u64,
}
