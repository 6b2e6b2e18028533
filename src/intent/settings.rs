//! The config section `intent_declaration`: what must be stated, and what a server's annotations count for.

use serde::{Deserialize, Serialize};

/// The config section `intent_declaration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Settings {
    /// False: what a server's annotations forbid is warned about and goes out (FR-042). What the
    /// operator states in `capabilities` holds all the same: it is not the server's claim.
    pub strict_server_validation: bool,
    /// Whether the operation type must be stated.
    pub operation_type: Requirement,
}

impl Default for Settings {
    fn default() -> Self {
        Self { strict_server_validation: true, operation_type: Requirement::Required }
    }
}

/// Whether an intent must state its operation type; one that is stated must match either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Requirement {
    /// It must: two keys, both turned.
    #[default]
    Required,
    /// An absent one is taken from the variant.
    Inferred,
}
