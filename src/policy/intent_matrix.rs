//! The validation matrix: which variant of the call tool may call a tool of which marking (FR-015..020, CAP-5).
//!
//! That the stated intent agrees with the variant was checked before ([`Intent`](crate::intent::Intent)).

use super::access::ToolAccess;
use super::denial::{Mismatch, Warning};
use crate::intent::{Operation, Settings};
use crate::tool::{SideEffect, StatedBy, Tool};

/// Whether the tool's effective side effect allows the operation it is called by.
///
/// # Errors
/// [`Mismatch`] where it does more, unless only its server says so and the settings make that a warning.
pub(super) fn check(call: &ToolAccess, settings: &Settings) -> Result<Option<Warning>, Mismatch> {
    let tool = call.tool();
    let by = tool.side_effect_by;
    match mark(tool, call.operation()) {
        Mark::Fits => Ok(None),
        Mark::Less => Ok(Some(Warning::WriteOnReadOnly { tool: tool.name.clone(), by })),
        Mark::More(needed) => {
            let mismatch = Mismatch { tool: tool.name.clone(), needed, by };
            match (by, settings.strict_server_validation) {
                (StatedBy::Server, false) => Ok(Some(Warning::Mismatch(mismatch))),
                (StatedBy::Server, true) | (StatedBy::Operator, _) => Err(mismatch),
            }
        }
    }
}

/// How a tool's effective side effect compares with the variant it is called by.
enum Mark {
    Fits,
    /// It only reads, and is called to write.
    Less,
    /// It does more; this is the least variant that may call it.
    More(Operation),
}

fn mark(tool: &Tool, variant: Operation) -> Mark {
    match (variant, tool.capability.side_effect, tool.side_effect_by) {
        // FR-019: whatever the marking says.
        (Operation::Destructive, _, _) => Mark::Fits,
        (Operation::Read | Operation::Write, SideEffect::Destructive, _) => {
            Mark::More(Operation::Destructive)
        }
        (Operation::Write, SideEffect::None | SideEffect::Read, _) => Mark::Less,
        (Operation::Write, SideEffect::Write, _) => Mark::Fits,
        (Operation::Read, SideEffect::None | SideEffect::Read, _) => Mark::Fits,
        // FR-020: a derived write means that no hint says read-only or destructive: the agent is
        // trusted.
        (Operation::Read, SideEffect::Write, StatedBy::Server) => Mark::Fits,
        (Operation::Read, SideEffect::Write, StatedBy::Operator) => Mark::More(Operation::Write),
    }
}
