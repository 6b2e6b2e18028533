//! A tool of an upstream: its name, what its server claims (annotations), what may be relied on
//! (capability), and how its answers are judged.
//!
//! Pure values. Who discovers tools and who calls them is not known here.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::output::Policy;
use crate::schema::compile::Schema;

/// `server:tool`, the name under which an agent calls a tool (FR-005).
///
/// The server's name holds no colon, so the first one separates.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ToolName {
    /// The server's name in the config.
    pub server: Arc<str>,
    /// The tool's name as its server gave it.
    pub tool: Arc<str>,
}

impl ToolName {
    /// Splits at the first colon; `None` without one or with an empty half.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (server, tool) = name.split_once(':')?;
        if server.is_empty() || tool.is_empty() {
            return None;
        }
        Some(Self { server: server.into(), tool: tool.into() })
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.tool)
    }
}

/// What a server claims about a tool. Hints that are absent stay absent: the MCP defaults are
/// deliberately not filled in (FR-020).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Annotations {
    /// `readOnlyHint`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_hint: Option<bool>,
    /// `destructiveHint`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive_hint: Option<bool>,
    /// `idempotentHint`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent_hint: Option<bool>,
    /// `openWorldHint`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_world_hint: Option<bool>,
}

/// What a call to the tool may change (CAP-1), from least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SideEffect {
    /// Nothing outside the call.
    None,
    /// Reads state.
    Read,
    /// Creates or updates state.
    Write,
    /// Deletes or permanently modifies state.
    Destructive,
}

/// Who must agree before a call goes out (CAP-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// Nobody.
    Auto,
    /// Nobody, but the record carries a warning.
    Suggest,
    /// A person. Refused by this version, which cannot ask.
    Required,
}

/// What the engine may rely on (CAP-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Capability {
    /// What a call may change.
    pub side_effect: SideEffect,
    /// False: calls must run one after another (CAP-6, later).
    pub parallel_safe: bool,
    /// Who must agree.
    pub approval: Approval,
    /// True: a call may be retried once if no byte of its answer arrived (CAP-7, later).
    pub idempotent: bool,
}

/// What the operator states about a tool; absent fields are derived (CAP-3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct CapabilityOverride {
    /// See [`Capability::side_effect`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub side_effect: Option<SideEffect>,
    /// See [`Capability::parallel_safe`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_safe: Option<bool>,
    /// See [`Capability::approval`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// See [`Capability::idempotent`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
}

/// Who said what a tool's side effect is: the gate's texts name them (CAP-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatedBy {
    /// Derived from the server's annotations, or from their absence.
    Server,
    /// The operator's config.
    Operator,
}

/// The declared output schema of a tool and what became of it.
#[derive(Clone, Debug)]
pub enum OutputSchema {
    /// None declared: nothing is judged (FR-A7).
    Absent,
    /// Compiled and ready.
    Compiled(Arc<Schema>),
    /// Declared, but it cannot be used; the reason is one line (FR-A9).
    Unusable(Arc<str>),
}

/// A tool in the catalog. Immutable; a new discovery makes a new one.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its full name.
    pub name: ToolName,
    /// `description`, empty if the server gave none.
    pub description: Box<str>,
    /// `inputSchema`, the server's own bytes.
    pub input_schema: Box<RawValue>,
    /// `outputSchema`, the server's own bytes, if declared (FR-A1).
    pub output_schema: Option<Box<RawValue>>,
    /// `annotations`, the server's own bytes, if declared (FR-022).
    pub annotations_raw: Option<Box<RawValue>>,
    /// The hints read from `annotations_raw`.
    pub annotations: Annotations,
    /// The effective capability (CAP-2, CAP-3).
    pub capability: Capability,
    /// Who stated the effective side effect.
    pub side_effect_by: StatedBy,
    /// The schema its answers are judged by.
    pub schema: OutputSchema,
    /// How its answers are judged: mode and limits (FR-A4).
    pub policy: Policy,
}
