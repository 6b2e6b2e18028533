//! The lifecycle's side of streamable HTTP: one POST for each message, and the GET stream.
//!
//! Owns what the session learns on the way (its id, the negotiated version), which calls then
//! carry. It is an rmcp transport like the pipes of a child. rmcp's own HTTP transport is not
//! used: it keeps the session to itself, so that calls beside it could not share it, makes a new
//! one unseen, and goes on asking for a stream of a session that is gone.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rmcp::RoleClient as Role;
use rmcp::model::{ClientNotification, ClientRequest, JsonRpcMessage, RequestId, ServerResult};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::error::Cause;
use super::http::{self, HttpExchange, Limits, Session};
use super::inbound::{self, Destination};
use super::lifecycle::{Unsent, decode, encode};
use super::notification_router::Told;
use super::notification_router::{NotificationRouter, ServerEvents};
use super::peer::Peer;
use super::probe;
use super::sse_only;
use super::stdio::LIFECYCLE_MESSAGES;
use crate::mcp::headers;
use crate::mcp::revisions::MODERN;

/// Most bytes of one message for the lifecycle.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// The GET stream may be silent for ever; this is how often the wait is begun anew.
pub(super) const STREAM_SILENCE: Duration = Duration::from_secs(3600);
/// How long to wait before asking for the GET stream again, unless the server says how long.
const STREAM_RETRY: Duration = Duration::from_secs(1);
/// Longest such wait a server may ask for.
const MAX_STREAM_RETRY: Duration = Duration::from_secs(60);
/// Time for the farewell to a server.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);
/// Streams being read and answers to a server's requests being sent at a time; what a server asks
/// beyond that is not answered.
const TASKS: usize = 32;

/// The lifecycle's transport over HTTP.
pub(super) struct HttpTransport {
    shared: Arc<Shared>,
    inbox: mpsc::Receiver<RxJsonRpcMessage<Role>>,
}

/// What the transport, its tasks and the supervisor share.
pub(super) struct Shared {
    peer: Arc<Peer>,
    session: Mutex<Session>,
    limit: Duration,
    out: mpsc::Sender<RxJsonRpcMessage<Role>>,
    /// Readers of event streams, and answers on their way; ended with the transport.
    tasks: Mutex<JoinSet<()>>,
    /// Tells the supervisor that the server cannot be reached any more.
    lost: mpsc::Sender<Arc<str>>,
    router: Arc<NotificationRouter>,
    server_events: Arc<ServerEvents>,
    /// The server has asked for a login, or refused the token of one.
    unauthorized: AtomicBool,
}

impl HttpTransport {
    /// A transport for a session that has not begun; `lost` learns when it is over.
    pub(super) fn new(
        session: Session,
        limit: Duration,
        lost: mpsc::Sender<Arc<str>>,
        (router, server_events): (Arc<NotificationRouter>, Arc<ServerEvents>),
    ) -> (Self, Arc<Shared>) {
        let (out, inbox) = mpsc::channel(LIFECYCLE_MESSAGES);
        let shared = Arc::new(Shared {
            peer: Arc::clone(&session.endpoint.peer),
            session: Mutex::new(session),
            limit,
            out,
            tasks: Mutex::default(),
            lost,
            router,
            server_events,
            unauthorized: AtomicBool::new(false),
        });
        (Self { shared: shared.clone(), inbox }, shared)
    }
}

impl Shared {
    /// The session as it is now.
    pub(super) fn session(&self) -> Session {
        self.session.lock().clone()
    }

    /// The server is modern: every message names the revision.
    pub(super) fn set_modern(&self) {
        self.session.lock().negotiated(MODERN);
    }

    /// Tells the supervisor that the server cannot be reached any more.
    pub(super) fn report(&self, cause: &Cause) {
        let _ = self.lost.try_send(cause.to_string().into());
    }

    /// The session from now on, with another token.
    pub(super) fn log_in(&self, bearer: ::http::HeaderValue) -> Session {
        let mut session = self.session.lock();
        session.log_in(bearer);
        session.clone()
    }

    /// Whether the server has asked for a login, or refused the token of one.
    pub(super) fn wants_login(&self) -> bool {
        self.unauthorized.load(Ordering::Relaxed)
    }

    fn limits(&self) -> Limits {
        Limits::now(self.limit)
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        if tasks.len() < TASKS {
            tasks.spawn(task);
        } else {
            self.warn("a server asks faster than it can be answered");
        }
    }

    /// Sends a message of the lifecycle; whatever refuses the probe answers it.
    async fn post(self: Arc<Self>, item: TxJsonRpcMessage<Role>) -> Result<(), Unsent> {
        let Some(id) = probe_id(&item) else { return self.send(item, None).await };
        let Err(Unsent(cause)) = self.send(item, Some(&id)).await else { return Ok(()) };
        match cause {
            Cause::Connect { .. }
            | Cause::Alert { .. }
            | Cause::NeedsLogin { .. }
            | Cause::Status { status: 401 | 403, .. } => Err(Unsent(cause)),
            other => {
                let _ = self.out.try_send(probe::refused(other.to_string(), id));
                Ok(())
            }
        }
    }

    async fn send(
        self: &Arc<Self>,
        item: TxJsonRpcMessage<Role>,
        probe: Option<&RequestId>,
    ) -> Result<(), Unsent> {
        let mut session = self.session();
        let wants_answer = matches!(item, JsonRpcMessage::Request(_));
        let initializes = matches!(
            &item,
            JsonRpcMessage::Request(it) if matches!(it.request, ClientRequest::InitializeRequest(_))
        );
        let starts_stream = matches!(
            &item,
            JsonRpcMessage::Notification(it)
                if matches!(it.notification, ClientNotification::InitializedNotification(_))
        );
        let lines = match probe {
            Some(_) => {
                session.negotiated(MODERN);
                format!("{}: server/discover\r\n", headers::METHOD)
            }
            None => String::new(),
        };
        let request = session.post(lines.as_bytes(), (encode(&item)?, Default::default()));
        let (connection, head) = http::send(&session, &request, self.limits())
            .await
            .map_err(|refused| Unsent(refused.cause))?;
        if head.status == 401 {
            self.unauthorized.store(true, Ordering::Relaxed);
        }
        if let (Some(id), None) = (&head.session_id, probe) {
            self.session.lock().begin(id);
        }
        match http::accept(&session, connection, &head, self.limits()).await {
            Ok(exchange) if wants_answer => self.deliver_all(exchange).await?,
            Ok(_) => {}
            Err(refused) => match refused.cause {
                Cause::AcceptedOnly { .. } if !wants_answer => {}
                Cause::Status { status: 400 | 404 | 405, .. }
                    if initializes && sse_only::is(&session, self.limit).await =>
                {
                    return Err(Unsent(Cause::SseOnly));
                }
                cause => return Err(Unsent(cause)),
            },
        }
        if starts_stream {
            self.spawn(listen(self.clone()));
        }
        Ok(())
    }

    /// Reads an answer to its end, handing its messages on.
    async fn deliver_all(self: &Arc<Self>, mut exchange: HttpExchange) -> Result<(), Unsent> {
        while let Some(message) =
            http::next_message(&mut exchange, MAX_MESSAGE_BYTES).await.map_err(Unsent)?
        {
            if self.deliver(message) {
                break;
            }
        }
        Ok(())
    }

    /// Hands a message to whom it is for; true if it was a response.
    pub(super) fn deliver(&self, message: Vec<u8>) -> bool {
        let message = Bytes::from(message);
        match self.router.way(&message) {
            Destination::Lifecycle => return self.hand_to_lifecycle(&message),
            Destination::Log(call) => match (self.server_events.logged(&message), call) {
                (Told::Already, _) => {}
                (Told::ByItsCall, Some(id)) => {
                    self.router.tell(id, message);
                }
                (Told::ByItsCall, None) | (Told::Nobody, _) => {
                    self.note("a log message that is told to nobody");
                }
            },
            Destination::Call(id, request) => {
                if let (false, Some(id)) = (self.router.tell(id, message), request) {
                    self.reply(inbound::busy(&id));
                }
            }
            Destination::Changed(list) => self.server_events.changed(list),
            Destination::Updated(uri) => self.server_events.updated(&uri),
            Destination::Reply(reply) => self.reply(reply),
            Destination::Nobody(what) => self.note(what),
        }
        false
    }

    fn reply(&self, json: Bytes) {
        let session = self.session();
        self.spawn(async move { http::notify(&session, json).await });
    }

    fn hand_to_lifecycle(&self, message: &[u8]) -> bool {
        let Some(message) = decode(&self.peer, message) else { return false };
        if let JsonRpcMessage::Response(response) = &message
            && let ServerResult::InitializeResult(result) = &response.result
        {
            self.session.lock().negotiated(result.protocol_version.as_str());
        }
        let is_answer = matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
        if self.out.try_send(message).is_err() {
            self.warn("a server answers what it was not asked");
        }
        is_answer
    }

    fn warn(&self, what: &str) {
        if self.peer.may_log() {
            tracing::warn!(server = %self.peer.name, "{what}");
        }
    }

    fn note(&self, what: &str) {
        if self.peer.may_log() {
            tracing::debug!(server = %self.peer.name, "a server sent {what}");
        }
    }
}

/// The id of a message that asks for the era.
fn probe_id(item: &TxJsonRpcMessage<Role>) -> Option<RequestId> {
    match item {
        JsonRpcMessage::Request(request)
            if matches!(request.request, ClientRequest::DiscoverRequest(_)) =>
        {
            Some(request.id.clone())
        }
        _ => None,
    }
}

/// The GET stream, opened again whenever it ends. A server without one is left alone; one that
/// cannot be reached any more is reported.
async fn listen(shared: Arc<Shared>) {
    let mut last_id = Vec::new();
    loop {
        let session = shared.session();
        let request = session.get(&last_id);
        let limits = Limits::now(STREAM_SILENCE);
        let mut stream = match http::fresh(&session, &request, limits).await {
            Ok(stream) if stream.is_event_stream() => stream,
            Ok(_) => return,
            Err(refused) => {
                let cause = refused.cause;
                match cause.is_of_connections_to_come() {
                    true => shared.report(&cause),
                    false => shared.note(&format!("no stream of its own: {cause}")),
                }
                return;
            }
        };
        loop {
            match http::next_message(&mut stream, MAX_MESSAGE_BYTES).await {
                Ok(Some(message)) => {
                    shared.deliver(message);
                }
                Err(Cause::NoAnswer { .. }) => {}
                Ok(None) => break,
                Err(cause) => {
                    shared.note(&format!("no more on its own stream: {cause}"));
                    break;
                }
            }
        }
        let retry = stream.retry().map_or(STREAM_RETRY, Duration::from_millis);
        if let Some(id) = stream.last_id() {
            last_id = id;
        }
        tokio::time::sleep(retry.clamp(STREAM_RETRY, MAX_STREAM_RETRY)).await;
    }
}

impl Transport<Role> for HttpTransport {
    type Error = Unsent;

    fn name() -> Cow<'static, str> {
        "streamable HTTP".into()
    }

    fn send(
        &mut self,
        item: TxJsonRpcMessage<Role>,
    ) -> impl Future<Output = Result<(), Unsent>> + Send + 'static {
        self.shared.clone().post(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<Role>> {
        self.inbox.recv().await
    }

    async fn close(&mut self) -> Result<(), Unsent> {
        let tasks = std::mem::take(&mut *self.shared.tasks.lock());
        drop(tasks);
        let session = self.shared.session();
        if session.has_id() {
            let request = session.delete();
            let limits = Limits::now(FAREWELL_LIMIT);
            let farewell = http::send(&session, &request, limits);
            let _ = tokio::time::timeout(FAREWELL_LIMIT, farewell).await;
        }
        Ok(())
    }
}
