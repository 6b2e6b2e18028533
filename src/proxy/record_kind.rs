//! What a record is of, and what follows from that for its type and for how a refusal is told. Pure.

use super::passthrough::forward::Forward;
use super::refusal::RefusalKind;
use crate::activity::record::Type;
use crate::policy::{ResourceRequest, TOOLS_CALL};

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// A call of a tool, or what was meant as one: by which call tool, empty where that is not known.
    ToolCall(&'static str),
    /// A call of a tool of ours.
    OwnTool,
    /// A request about what servers offer beside tools.
    Forward(Forward),
}

impl RecordKind {
    pub(super) fn record_type(self) -> Type {
        match self {
            Self::ToolCall(_) => Type::ToolCall,
            Self::Forward(Forward::Resource(ResourceRequest::Read)) => Type::ResourceRead,
            Self::Forward(Forward::Prompt) => Type::PromptGet,
            Self::Forward(Forward::Completion) => Type::Completion,
            Self::OwnTool
            | Self::Forward(Forward::Resource(
                ResourceRequest::Subscribe | ResourceRequest::Unsubscribe,
            )) => Type::InternalToolCall,
        }
    }

    /// The method of the request.
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::ToolCall(_) | Self::OwnTool => TOOLS_CALL,
            Self::Forward(forward) => forward.method(),
        }
    }

    /// `tool_variant` in the record.
    pub(super) fn variant(self) -> &'static str {
        match self {
            Self::ToolCall(variant) => variant,
            Self::OwnTool | Self::Forward(_) => "",
        }
    }

    /// The kind of a refusal as the client gets it: only a tool's result can hold the reason of a failure.
    pub(super) fn refusal(self, kind: RefusalKind) -> RefusalKind {
        match (self, kind) {
            (Self::ToolCall(_) | Self::OwnTool, kind)
            | (Self::Forward(_), kind @ (RefusalKind::Unreadable | RefusalKind::Headers)) => kind,
            (
                Self::Forward(_),
                RefusalKind::Parameters
                | RefusalKind::Intent
                | RefusalKind::Gate
                | RefusalKind::Arguments
                | RefusalKind::Limited
                | RefusalKind::Unknown
                | RefusalKind::Upstream
                | RefusalKind::Failed
                | RefusalKind::Unavailable,
            ) => RefusalKind::Failed,
        }
    }
}
