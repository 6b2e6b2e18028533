//! What rules can know of the session that a request belongs to.

use crate::intent::Sensitivity;

/// What has gone on in a session before a request, as far as rules may look at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionFacts {
    /// The highest sensitivity that was stated, marked or told. It never falls.
    pub max_sensitivity: Option<Sensitivity>,
    /// Whether anything has come from a tool that reaches beyond its server (`openWorldHint`).
    pub open_world_seen: bool,
    /// Requests to servers that were permitted.
    pub calls: u64,
}
