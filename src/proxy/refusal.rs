//! The reply to a refused call: the kinds of refusals, and what each face makes of them
//! ([contracts](crate::reference::contracts#errors)).

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use thiserror::Error;

use super::render::helping_result;
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::revisions::Era;

/// Why a call has no answer of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct Refusal {
    /// Which kind, so that a face can choose its status.
    pub kind: RefusalKind,
    /// One line that names server, tool and limit.
    pub text: String,
    /// What an agent can do about it, in the words that agents know; may be empty. Other faces have other words.
    pub advice: Cow<'static, str>,
    /// How an agent can mend its call, spelled out in a block of its own, or behind the text where there are no blocks;
    /// may be empty.
    pub help: String,
    /// When it may be worth trying again, where that is known.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// One of which it is not known when it may be worth trying again.
    #[must_use]
    pub fn new(kind: RefusalKind, text: String) -> Self {
        Self { kind, text, advice: Cow::Borrowed(""), help: String::new(), retry_after: None }
    }
}

/// Advice where a tool is not known.
pub(super) const FIND_TOOLS: &str = "Use retrieve_tools to find tools.";

/// The kinds of [`Refusal`], by who is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The parameters cannot be read.
    Unreadable,
    /// Those of a tool of ours are not as its schema has them, and the agent can mend them.
    Parameters,
    /// The headers do not repeat the parameters as the tool's schema has it.
    Headers,
    /// The intent is missing, malformed or differs from the variant.
    Intent,
    /// The annotations or the operator's capability stand against it.
    Gate,
    /// The arguments do not fit the schema of the tool.
    Arguments,
    /// Too many at a time, or too often.
    Limited,
    /// No such server or tool.
    Unknown,
    /// The upstream failed.
    Upstream,
    /// A request that calls no tool cannot be answered: of these, client and server errors are not told apart.
    Failed,
    /// The activity log cannot take the call's record (ACT-2), or the proxy is ending and does not
    /// wait for the call.
    Unavailable,
}

impl Refusal {
    /// The same refusal with advice for agents.
    #[must_use]
    pub fn advising(self, advice: impl Into<Cow<'static, str>>) -> Self {
        Self { advice: advice.into(), ..self }
    }

    /// The text with the advice.
    fn for_agents(&self) -> Cow<'_, str> {
        match &*self.advice {
            "" => Cow::Borrowed(&self.text),
            advice => Cow::Owned(format!("{}. {advice}", self.text)),
        }
    }

    /// The response over MCP to the request of this raw id: unreadable parameters and headers that disagree with them
    /// are a JSON-RPC error, everything else a tool result, from which the agent can correct itself.
    #[must_use]
    pub fn mcp_response(&self, era: Era, id: &[u8]) -> Bytes {
        let text = self.for_agents();
        let error = |code| match self.help.as_str() {
            "" => jsonrpc::error(Some(id), code, &text),
            help => jsonrpc::error(Some(id), code, &format!("{text}. {help}")),
        };
        match self.kind {
            RefusalKind::Unreadable => error(Code::InvalidParams),
            RefusalKind::Headers => error(Code::HeaderMismatch),
            RefusalKind::Failed => error(Code::Internal),
            RefusalKind::Parameters
            | RefusalKind::Intent
            | RefusalKind::Gate
            | RefusalKind::Arguments
            | RefusalKind::Limited
            | RefusalKind::Unknown
            | RefusalKind::Upstream
            | RefusalKind::Unavailable => {
                jsonrpc::response(id, &helping_result(era, &text, &self.help))
            }
        }
    }
}

impl RefusalKind {
    /// The status under which [`Refusal::mcp_response`] goes over HTTP.
    #[must_use]
    pub fn mcp_status(self) -> StatusCode {
        match self {
            Self::Headers => StatusCode::BAD_REQUEST,
            Self::Unreadable
            | Self::Parameters
            | Self::Intent
            | Self::Gate
            | Self::Arguments
            | Self::Limited
            | Self::Unknown
            | Self::Upstream
            | Self::Failed
            | Self::Unavailable => StatusCode::OK,
        }
    }

    /// The status over REST, where the text is the error's.
    #[must_use]
    pub fn rest_status(self) -> StatusCode {
        match self {
            Self::Unreadable
            | Self::Parameters
            | Self::Headers
            | Self::Intent
            | Self::Arguments => StatusCode::BAD_REQUEST,
            Self::Gate => StatusCode::FORBIDDEN,
            Self::Limited => StatusCode::TOO_MANY_REQUESTS,
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::Upstream | Self::Failed => StatusCode::BAD_GATEWAY,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}
