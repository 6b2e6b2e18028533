//! Who asks: the peer that a message came from, and the caller behind a request that goes on record.

use std::sync::Arc;

use bytes::Bytes;

use super::client::{ActiveCall, Client};
use super::params::ParamHeaders;
use crate::activity::record::Source;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::revisions::Era;
use crate::mcp::trace_context::PropagatedContext;
use crate::policy::Principal;

/// Which set of tools a request is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Endpoint {
    /// `/mcp`: our own tools.
    #[default]
    Search,
    /// `/mcp/all`: every upstream tool under a name of its own.
    All,
}

/// What a reply can carry beside its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The answer only: the client takes nothing else.
    Answer,
    /// Notifications, and requests of upstreams in the legacy era.
    Stream,
}

/// Where a message came from.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The client.
    pub client: Arc<Client>,
    /// On whose behalf it speaks.
    pub principal: Principal,
    /// Which set of tools it speaks to.
    pub endpoint: Endpoint,
    /// Whether something can be sent to it before the answer.
    pub channel: Channel,
    /// What the message's headers say of a tool's parameters; `None` where no headers do.
    pub headers: Option<ParamHeaders>,
    /// What the message's headers say of a trace; `None` also where nobody wants traces.
    pub trace: Option<Box<PropagatedContext>>,
}

impl Peer {
    /// What upstreams may ask the client before they answer its request.
    #[must_use]
    pub fn client_capabilities(&self) -> ClientCapabilities {
        match (self.client.era, self.channel) {
            (Era::Legacy, Channel::Stream) => self.client.client_capabilities,
            (Era::Legacy, Channel::Answer) | (Era::Modern, _) => ClientCapabilities::default(),
        }
    }

    /// Who calls, for a request of this raw id; the request counts as in flight as long as the caller is kept.
    #[must_use]
    pub fn caller(&self, id: &Bytes) -> Caller {
        let inside = id.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        Caller {
            source: Source::Mcp,
            principal: self.principal.clone(),
            request_id: inside.map_or_else(|| id.clone(), |inside| id.slice_ref(inside)),
            name: Box::default(),
            client: Some((ActiveCall::of(Arc::clone(&self.client)), self.channel)),
            trace: self.trace.clone(),
        }
    }
}

/// Who makes a request that goes on record.
#[derive(Debug)]
pub struct Caller {
    /// The door they came in by.
    pub source: Source,
    /// On whose behalf.
    pub principal: Principal,
    /// The request's id.
    pub request_id: Bytes,
    /// The name of one who is no `client`, or empty.
    pub name: Box<str>,
    /// Who can be told and asked something before the answer, if anyone can.
    pub client: Option<(ActiveCall, Channel)>,
    /// What the request's headers say of a trace; `None` also where nobody wants traces.
    pub trace: Option<Box<PropagatedContext>>,
}

impl Caller {
    /// The MCP session, or empty.
    pub(super) fn session_id(&self) -> &str {
        self.client.as_ref().map_or("", |(client, _)| &client.session_id)
    }

    /// The client's own name, or empty.
    pub(super) fn client_name(&self) -> &str {
        self.client.as_ref().map_or(&self.name, |(client, _)| &client.name)
    }

    /// How the client speaks; what comes from none is read like the older revisions.
    pub(super) fn era(&self) -> Era {
        self.client.as_ref().map_or(Era::Legacy, |(client, _)| client.era)
    }
}
