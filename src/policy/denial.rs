//! Why a request does not go out, and what is remarkable about one that does. The texts are a contract.

use crate::intent::{IntentError, Operation};
use crate::tool::{StatedBy, ToolName};

/// Why a request is refused. Its text is what the agent reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The intent is missing, unreadable, or does not match the variant.
    #[error(transparent)]
    Intent(#[from] IntentError),
    /// The tool is marked as doing more than the variant allows (FR-015..018, CAP-5).
    #[error(transparent)]
    Gate(#[from] Mismatch),
    /// The tool waits for a person (CAP-8).
    #[error("Tool '{0}' requires approval, which this version cannot ask for")]
    Approval(ToolName),
}

impl Denial {
    /// What was wrong; each face answers it in its own way.
    #[must_use]
    pub fn kind(&self) -> DenialKind {
        match self {
            Self::Intent(_) => DenialKind::Intent,
            Self::Gate(_) => DenialKind::Gate,
            Self::Approval(_) => DenialKind::Approval,
        }
    }
}

/// The kinds of [`Denial`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialKind {
    /// The caller's words: REST 400.
    Intent,
    /// The tool's marking: REST 403.
    Gate,
    /// A person is missing: REST 403.
    Approval,
}

/// What is remarkable about a request that goes out all the same. Its text is for log and record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// The server's annotation forbids it, and `strict_server_validation` is off (FR-042).
    #[error("{0}; allowed, because strict_server_validation is false")]
    Mismatch(Mismatch),
    /// The write variant on a tool that only reads.
    #[error("Tool '{tool}' is marked read-only by {by}, call_tool_read would do")]
    WriteOnReadOnly {
        /// The tool called.
        tool: ToolName,
        /// Who says that it only reads.
        by: StatedBy,
    },
    /// `approval: suggest` (CAP-8).
    #[error("Tool '{0}' suggests approval, and nobody was asked")]
    ApprovalSuggested(ToolName),
}

/// A tool does more than the variant it was called by allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Tool '{tool}' is marked {} by {by}, use {}", needed.as_str(), needed.variant())]
pub struct Mismatch {
    /// The tool called.
    pub tool: ToolName,
    /// The least variant that may call it.
    pub needed: Operation,
    /// Who marked it.
    pub by: StatedBy,
}
