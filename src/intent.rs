//! Intent: what the agent says it is about to do, and whether the call may go out.
//!
//! `authorize` is the gate: only a [`Permit`] opens the upstream door. Pure; the catalog hands the
//! tool in, the activity log takes the denial away.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::tool::Tool;

/// `intent.operation_type` (FR-007), and with it the variant of the call tool (FR-001..003).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// `call_tool_read`
    Read,
    /// `call_tool_write`
    Write,
    /// `call_tool_destructive`
    Destructive,
}

/// Leave to send one call. Made by `authorize` alone; the upstream asks for one.
#[derive(Clone, Debug)]
pub struct Permit {
    tool: Arc<Tool>,
}

impl Permit {
    /// The tool this permit is for.
    #[must_use]
    pub fn tool(&self) -> &Arc<Tool> {
        &self.tool
    }
}
