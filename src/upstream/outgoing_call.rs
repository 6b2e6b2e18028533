//! A request as it is sent to a server: what the client asked for, and what this hop needs to know about it. Pure.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::inbound::CallClient;
use crate::request::{CallExtras, Fields, Params, RepeatableCall};
use mcpproxy_policy::{Access, Permit, ResourceRequest};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::known_extensions::Extensions;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;

/// A permitted request of a client.
#[derive(Debug)]
pub struct PermittedCall<'p> {
    pub permit: &'p Permit,
    /// A JSON object. For a tool call: the agent's arguments, forwarded byte for byte (a line-framed transport
    /// replaces raw line breaks between tokens). For other requests: the params without `_meta`.
    pub body: Bytes,
    pub extras: CallExtras,
    /// Start of `call_timeout`.
    pub began: Instant,
    pub attempt: CallAttempt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallAttempt {
    First,
    /// A retry on a fresh connection, after the call failed before any byte of its response arrived (CAP-7). Over stdio, the connection
    /// must be newer than this generation, on which the first attempt failed.
    Retry(Option<u64>),
}

/// A request without a connection and an id.
pub(super) struct OutgoingCall<'a> {
    pub(super) params: Params,
    /// The tool's name, or the method of another request; for errors.
    pub(super) label: Arc<str>,
    /// The client with its permitted access; `None` for requests on the proxy's own behalf.
    pub(super) client: Option<(CallClient, &'a Access)>,
    /// Same as [`CallExtras::held_capabilities`].
    held_capabilities: ClientCapabilities,
    pub(super) attempt: CallAttempt,
    /// Same as [`CallExtras::repeatable`].
    pub(super) is_repeatable: bool,
}

impl<'a> OutgoingCall<'a> {
    pub(super) fn permitted(
        PermittedCall { permit, body, extras, began: _, attempt }: PermittedCall<'a>,
    ) -> Self {
        let CallExtras {
            meta,
            members,
            client_capabilities,
            held_capabilities,
            session,
            trace,
            log_level,
            extensions,
            tasks,
            // If the server supports tasks, the caller has already added this member to the call.
            task: _,
            repeatable: is_repeatable,
        } = extras;
        let capabilities = client_capabilities.requests();
        let client = CallClient { session, capabilities, extensions };
        let access = permit.access();
        let method = access
            .known_method()
            .map_or_else(|| Cow::Owned(access.method().to_owned()), Cow::Borrowed);
        let (label, name, fields) = match access {
            Access::Tool(call) => {
                let name = &call.tool().name.tool;
                let parameter_headers = call.tool().parameter_headers.clone();
                let fields = Fields::Call { arguments: body, members, parameter_headers };
                (name.clone(), Some(name.clone()), fields)
            }
            Access::Resource { uri, request, .. } => {
                // `Mcp-Name` applies only to methods of the protocol.
                let name = match request {
                    ResourceRequest::Read
                    | ResourceRequest::Subscribe
                    | ResourceRequest::Unsubscribe => Some(Arc::from(&**uri)),
                    ResourceRequest::ReadDirectory | ResourceRequest::GetSkill => None,
                };
                (access.method().into(), name, Fields::Object(body))
            }
            Access::Prompt { name, .. } => {
                (access.method().into(), Some(Arc::from(&**name)), Fields::Object(body))
            }
            Access::Completion { .. } | Access::Method { .. } => {
                (access.method().into(), None, Fields::Object(body))
            }
            Access::Task(task) => {
                (access.method().into(), Some(Arc::clone(task.id())), Fields::Object(body))
            }
        };
        let client_capabilities = match access.may_require_input() {
            true => client_capabilities,
            false => client_capabilities.without_requests(),
        };
        let params =
            Params { method, name, meta, trace, log_level, client_capabilities, tasks, fields };
        let client = Some((client, access));
        Self { params, label, client, held_capabilities, attempt, is_repeatable }
    }

    /// Request for a page of a list on the proxy's own behalf. `params` is a JSON object.
    pub(super) fn list(method: &'static str, params: Bytes) -> Self {
        // A server may list some elements only for clients with an extension.
        let client_capabilities =
            ClientCapabilities { extensions: Extensions::ALL, ..ClientCapabilities::default() };
        let params = Params { meta: None, client_capabilities, ..Params::of(method, params) };
        Self {
            params,
            label: method.into(),
            client: None,
            held_capabilities: ClientCapabilities::default(),
            attempt: CallAttempt::First,
            is_repeatable: false,
        }
    }

    /// Client of a call over a connection of this family.
    pub(super) fn client(&self, family: ProtocolFamily) -> Option<CallClient> {
        let (client, _) = self.client?;
        let is_held = family == ProtocolFamily::Legacy
            && client.capabilities == ClientCapabilities::default();
        Some(match is_held {
            true => CallClient { capabilities: self.held_capabilities, ..client },
            false => client,
        })
    }

    /// The call to repeat, if it was sent over a modern connection.
    pub(super) fn repeatable(self, family: ProtocolFamily) -> Option<Box<RepeatableCall>> {
        let (client, _) = self.client?;
        let is_repeatable = self.is_repeatable && family == ProtocolFamily::Modern;
        is_repeatable.then(|| repeatable(self.params, client))
    }
}

/// Repeatable call with these params on behalf of `client`.
pub(super) fn repeatable(params: Params, client: CallClient) -> Box<RepeatableCall> {
    let Params { meta, trace, log_level, client_capabilities, tasks, fields, .. } = params;
    let body = match fields {
        Fields::Call { arguments, .. } => arguments,
        Fields::Object(params) => params,
    };
    let extras = CallExtras {
        meta,
        members: Bytes::new(),
        client_capabilities,
        // These capabilities exist only for calls of modern clients, which are not repeated.
        held_capabilities: ClientCapabilities::default(),
        session: client.session,
        trace,
        log_level,
        extensions: client.extensions,
        tasks,
        task: None,
        repeatable: true,
    };
    Box::new(RepeatableCall { body, extras })
}
