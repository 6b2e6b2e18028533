//! One connection of a client over HTTP: what it remembers between requests, and a request with what it is answered
//! from.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use http::request::Parts;

use crate::downstream::in_flight::InFlight;
use crate::downstream::modern_client::KnownClient;
use crate::downstream::request_head::RequestHead;
use crate::downstream::session::Session;
use crate::downstream::session_table::Sessions;
use crate::downstream::source::Source;
use crate::identity::CertifiedClient;
use crate::io::address::Reached;
use crate::mcp::trace_context::PropagatedContext;
use crate::policy::Principal;
use crate::proxy::Worker;
use crate::proxy::caller::Endpoint;
use crate::proxy::caller::{Channel, Peer};

/// How a request came to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CameBy {
    /// From its client.
    #[default]
    Client,
    /// From another node of the fleet: it is answered here, whatever there is.
    Peer {
        /// Whether its session is opened here if it is not open.
        reopens: bool,
    },
}

/// What one connection remembers between its requests.
#[derive(Debug, Default)]
pub struct ClientConnection {
    /// True once a request has come whole.
    pub used: Cell<bool>,
    /// Where it came in, where that is needed.
    pub came_to: RefCell<Option<Reached>>,
    /// What its client certificate proves.
    pub certificate: Option<CertifiedClient>,
    /// The address that it counts for.
    pub source: Source,
    /// On whose behalf the present request is made, as its head proves; set before the request is answered.
    pub principal: RefCell<Principal>,
    /// How its requests come.
    pub(super) came_by: CameBy,
    /// The session used last, so that calls do not go to the shared table.
    pub(super) session: RefCell<Option<Arc<Session>>>,
    /// The modern client of the last request, so that the same description is not read again.
    pub(super) client: RefCell<Option<KnownClient>>,
    /// Its calls.
    pub(super) in_flight: Arc<InFlight>,
    /// The last head that came with a whole body, as it was read.
    pub(super) reading: Cell<Option<RequestHead>>,
    /// True if the present head was found to belong to that session.
    pub(super) belongs: Cell<bool>,
}

impl From<Source> for ClientConnection {
    /// A new connection from that address.
    fn from(source: Source) -> Self {
        Self { source, ..Self::default() }
    }
}

impl ClientConnection {
    /// The same of a client with that certificate.
    #[must_use]
    pub fn certified(source: Source, certificate: Option<CertifiedClient>) -> Self {
        Self { source, certificate, ..Self::default() }
    }
}

/// One request of whichever method, with what it is answered from.
pub(super) struct Post<'a> {
    pub(super) worker: &'a Rc<Worker>,
    pub(super) sessions: &'a Sessions,
    pub(super) connection: &'a ClientConnection,
    pub(super) now_ms: u64,
    pub(super) head: &'a Parts,
    pub(super) endpoint: Endpoint,
    pub(super) channel: Channel,
    /// As the head proves.
    pub(super) principal: Principal,
    is_traced: bool,
}

impl<'a> Post<'a> {
    pub(super) fn new(
        worker: &'a Rc<Worker>,
        sessions: &'a Sessions,
        connection: &'a ClientConnection,
        now_ms: u64,
        head: &'a Parts,
        RequestHead { endpoint, media, is_traced, .. }: RequestHead,
    ) -> Self {
        let channel = if media.event_stream { Channel::Stream } else { Channel::Answer };
        let principal = connection.principal.borrow().clone();
        Self { worker, sessions, connection, now_ms, head, endpoint, channel, principal, is_traced }
    }

    /// The peer of a request in a session.
    pub(super) fn peer(&self, session: &Session, channel: Channel) -> Peer {
        let client = Arc::clone(&session.client);
        // That of the request, which is the session's: what a token is for may have changed since.
        let principal = self.principal.clone();
        let (endpoint, trace) = (self.endpoint, self.trace());
        Peer { client, principal, endpoint, channel, headers: None, trace }
    }

    /// What the head says of a trace, where anybody wants traces.
    pub(super) fn trace(&self) -> Option<Box<PropagatedContext>> {
        if !self.is_traced {
            return None;
        }
        self.worker.settings().traces?;
        PropagatedContext::of_headers(&self.head.headers).map(Box::new)
    }
}
