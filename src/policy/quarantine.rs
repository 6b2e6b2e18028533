//! Tools whose definition, or a change of it, waits for an operator.
//!
//! What puts a tool there (pins, the scan) and what lets it out is the catalog's.

use super::denial::Denial;
use crate::tool::{Tool, Trust};

/// Whether the tool's definition is trusted.
///
/// # Errors
/// [`Denial::Quarantined`] where it waits for approval.
pub(super) fn check(tool: &Tool) -> Result<(), Denial> {
    match tool.trust {
        Trust::Given => Ok(()),
        Trust::Withheld => Err(Denial::Quarantined(tool.name.clone())),
    }
}
