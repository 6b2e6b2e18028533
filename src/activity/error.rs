//! Why the log does not take a call, or does not answer a question.

use thiserror::Error;

use super::store::StoreError;

/// Why a call may not go out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotAdmitted {
    /// The log cannot be written, and `on_failure` is `refuse`.
    #[error("the activity log cannot be written: {0}")]
    Failed(String),
    /// There was no room within the time limit.
    #[error("the activity log cannot keep up")]
    Full,
    /// The log is closed: the proxy is going down.
    #[error("the activity log is closed")]
    Closed,
}

/// Why a question has no answer.
#[derive(Debug, Error)]
pub enum QueryError {
    /// The log cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The records on their way did not arrive within the time limit.
    #[error("the activity log is busy")]
    Busy,
}
