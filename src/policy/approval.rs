//! A tool's `approval`: whether a person has to agree first (CAP-8).
//!
//! Nobody is asked yet: a tool that requires it is refused, one that suggests it is called with a warning.

use super::denial::{Denial, Warning};
use crate::tool::{Approval, Tool};

/// Whether the tool may be called without asking.
///
/// # Errors
/// [`Denial::Approval`] where it requires approval.
pub(super) fn check(tool: &Tool) -> Result<Option<Warning>, Denial> {
    match tool.capability.approval {
        Approval::Auto => Ok(None),
        Approval::Suggest => Ok(Some(Warning::ApprovalSuggested(tool.name.clone()))),
        Approval::Required => Err(Denial::Approval(tool.name.clone())),
    }
}
