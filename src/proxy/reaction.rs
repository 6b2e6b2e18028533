//! What a message of a client leads to, for its face to carry out.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::render::shown;
use super::reply::Running;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::jsonrpc::{self, Code};

/// What a message leads to.
#[derive(Debug)]
pub enum Reaction {
    /// Taken note of; there is no answer to it.
    Noted,
    /// A whole response with a result.
    Answer(Bytes),
    /// A whole response with an error of this code.
    Error(Code, Bytes),
    /// The client gives up its request of this raw id.
    Cancel(Bytes),
    /// The client subscribes to notifications of changes (MCP 2026-07-28 §Subscriptions).
    Listen {
        /// The raw id to answer under.
        id: Bytes,
        /// Of which.
        filter: NotificationFilter,
    },
    /// A client introduces itself: the response, once a session is open for it.
    Initialize(Initialize),
    /// A tool is being called.
    Call {
        /// The raw id to answer under.
        id: Bytes,
        /// The reply on its way.
        running: Running,
    },
}

/// An accepted `initialize`.
#[derive(Debug)]
pub struct Initialize {
    /// The negotiated revision.
    pub version: &'static str,
    /// `clientInfo.name`
    pub client_name: String,
    /// `capabilities`
    pub client_capabilities: ClientCapabilities,
    /// The whole response.
    pub answer: Bytes,
}

/// The notifications that a client subscribes to (MCP 2026-07-28 §Notification Filter).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the protocol's own words")]
pub struct NotificationFilter {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tools_list_changed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prompts_list_changed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resources_list_changed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_subscriptions: Vec<String>,
}

impl Reaction {
    /// Answers a method that there is not.
    #[must_use]
    pub fn unknown_method(id: &[u8], method: &str) -> Self {
        Self::error(id, Code::MethodNotFound, &format!("Method not found: {}", shown(method)))
    }

    /// Answers with an error.
    #[must_use]
    pub fn error(id: &[u8], code: Code, text: &str) -> Self {
        Self::Error(code, jsonrpc::error(Some(id), code, text))
    }
}
