//! Lifecycle over streamable HTTP: handshake requests, the GET stream, and the end of the session.
//!
//! Owns the session's id and negotiated version, which calls carry afterward.
//!
//! Also detects servers that support only the HTTP+SSE transport of 2024-11-05, which is not implemented, so that they
//! fail with an explanation rather than a bare 405.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::error::Cause;
use crate::http::{self, Limits, Session};
use crate::inbound::{self, Destination};
use crate::notifications::{LogDelivery, NotificationRouter, ServerEvents};
use crate::server_log::ServerLog;
use mcpproxy_protocol::mcp::headers;
use mcpproxy_protocol::mcp::lifecycle::{INITIALIZED, OpeningRequest, ServerResponse};
use mcpproxy_protocol::mcp::revisions::MODERN;
use mcpproxy_protocol::wire::sse::{Decoder, Item};
use mcpproxy_runtime::io::line_budget::peer_line;

/// Maximum size of a lifecycle message, in bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// Time limit for the DELETE of the session.
const DELETE_LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of concurrent stream readers and replies; further server requests are not answered.
const MAX_TASKS: usize = 32;

/// Session of one connection, and the tasks that read its streams.
pub(super) struct HttpLifecycle {
    server_log: Arc<ServerLog>,
    session: Mutex<Session>,
    limit: Duration,
    /// Stream readers and replies; aborted when the session is closed.
    tasks: Mutex<JoinSet<()>>,
    /// Reports to the server's task that the server is unreachable.
    lost: mpsc::Sender<Arc<str>>,
    router: Arc<NotificationRouter>,
    server_events: Arc<ServerEvents>,
    /// Whether the server requires a login, or rejected its token.
    unauthorized: AtomicBool,
}

impl HttpLifecycle {
    /// New session; its loss is reported to `lost`.
    pub(super) fn new(
        session: Session,
        limit: Duration,
        lost: mpsc::Sender<Arc<str>>,
        (router, server_events): (Arc<NotificationRouter>, Arc<ServerEvents>),
    ) -> Arc<Self> {
        Arc::new(Self {
            server_log: Arc::clone(&session.endpoint.server_log),
            session: Mutex::new(session),
            limit,
            tasks: Mutex::default(),
            lost,
            router,
            server_events,
            unauthorized: AtomicBool::new(false),
        })
    }

    pub(super) fn session(&self) -> Session {
        self.session.lock().clone()
    }

    /// Sets the revision named in every message to a modern server.
    pub(super) fn set_modern(&self) {
        self.session.lock().negotiated(MODERN);
    }

    /// Reports to the server's task that the server is unreachable.
    pub(super) fn report(&self, cause: &Cause) {
        let _ = self.lost.try_send(cause.to_string().into());
    }

    /// Replaces the token and returns the session.
    pub(super) fn log_in(&self, bearer: ::http::HeaderValue) -> Session {
        let mut session = self.session.lock();
        session.log_in(bearer);
        session.clone()
    }

    /// Whether the server requires a login, or rejected its token.
    pub(super) fn wants_login(&self) -> bool {
        self.unauthorized.load(Ordering::Relaxed)
    }

    fn limits(&self) -> Limits {
        Limits::now(self.limit)
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        if tasks.len() < MAX_TASKS {
            tasks.spawn(task);
        } else {
            self.warn("dropped server messages: too many in progress");
        }
    }

    /// Sends a handshake request and returns its response. The session begins with the result of `initialize`.
    pub(super) async fn ask(&self, opening: OpeningRequest, id: u64) -> Result<Bytes, Cause> {
        let mut session = self.session();
        let mut before = session.clone();
        let lines = match opening {
            OpeningRequest::Discover => {
                session.negotiated(MODERN);
                format!("{}: {}\r\n", headers::METHOD, opening.method())
            }
            OpeningRequest::Initialize(_) => String::new(),
        };
        let request = session.post(lines.as_bytes(), (opening.message(id), Default::default()));
        let http::Redirected { connection, head, moved } =
            http::send_and_follow(&session, &request, self.limits())
                .await
                .map_err(|refused| refused.cause)?;
        if let Some(endpoint) = moved {
            // Later requests of the session go directly to the new endpoint.
            peer_line!(info, self.server_log, server = %self.server_log.name, path = %endpoint.path.path(), "redirected by the server");
            self.session.lock().move_to(Arc::clone(&endpoint));
            session.move_to(Arc::clone(&endpoint));
            before.move_to(endpoint);
        }
        if head.status == 401 {
            self.unauthorized.store(true, Ordering::Relaxed);
        }
        let initializes = opening != OpeningRequest::Discover;
        if let (Some(id), true) = (&head.session_id, initializes) {
            self.session.lock().begin(id);
        }
        let accepted = http::accept(&session, connection, &head, self.limits()).await;
        let answer = async {
            let mut exchange = match accepted {
                Ok(exchange) => exchange,
                Err(refused) => match refused.cause {
                    Cause::Status { status: 400 | 404 | 405, .. }
                        if initializes && is_sse_only(&before, self.limit).await =>
                    {
                        return Err(Cause::SseOnly);
                    }
                    cause => return Err(cause),
                },
            };
            while let Some(message) = http::next_message(&mut exchange, MAX_MESSAGE_BYTES).await? {
                if let Some(response) = self.deliver(message) {
                    return Ok(response);
                }
            }
            Err(Cause::NoAnswerAtAll { reason: "its stream held no response".into() })
        };
        let answer = answer.await;
        let has_result = answer.as_ref().is_ok_and(|message| {
            ServerResponse::parse(message).is_some_and(|response| response.outcome.is_ok())
        });
        if initializes && !has_result {
            *self.session.lock() = before;
        }
        answer
    }

    /// Completes the handshake in this revision.
    pub(super) async fn initialized(&self, revision: &str) -> Result<(), Cause> {
        self.session.lock().negotiated(revision);
        let session = self.session();
        let request = session.post(b"", (INITIALIZED.to_vec(), Default::default()));
        match http::fresh(&session, &request, self.limits()).await.map_err(|it| it.cause) {
            Ok(_) | Err(Cause::AcceptedOnly { .. }) => {}
            Err(cause) => return Err(cause),
        }
        Ok(())
    }

    /// Delivers a message to its recipient; returns it if it is a response.
    pub(super) fn deliver(&self, message: Vec<u8>) -> Option<Bytes> {
        let message = Bytes::from(message);
        match self.router.route(&message) {
            Destination::Lifecycle => return Some(message),
            Destination::Log(call) | Destination::Completed(call) => {
                match (self.server_events.logged(&message), call) {
                    (LogDelivery::Delivered, _) => {}
                    (LogDelivery::ViaCall, Some(id)) => {
                        self.router.deliver(id, message);
                    }
                    (LogDelivery::ViaCall, None) | (LogDelivery::Nobody, _) => {
                        self.log_debug("a log message without a recipient");
                    }
                }
            }
            Destination::Call(id, request) => {
                if let (false, Some(id)) = (self.router.deliver(id, message), request) {
                    self.reply(inbound::busy(&id));
                }
            }
            Destination::Calls(ids) => {
                for id in &ids {
                    self.router.deliver(*id, message.clone());
                }
            }
            Destination::Changed(list) => self.server_events.changed(list),
            Destination::Updated(uri) => self.server_events.updated(&uri),
            Destination::Task(task) => self.server_events.task_changed(&task),
            // The acknowledgment was already read as the first message of its stream.
            Destination::Acknowledged(_) => {}
            Destination::Reply(reply) => self.reply(reply),
            Destination::Nobody(what) => self.log_debug(what),
        }
        None
    }

    fn reply(&self, json: Bytes) {
        let session = self.session();
        self.spawn(async move { http::notify(&session, json).await });
    }

    /// Ends the stream readers and the session.
    pub(super) async fn close(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        drop(tasks);
        let session = self.session();
        if session.has_id() {
            let request = session.delete();
            let limits = Limits::now(DELETE_LIMIT);
            let deletion = http::send(&session, &request, limits);
            let _ = tokio::time::timeout(DELETE_LIMIT, deletion).await;
        }
    }

    fn warn(&self, what: &str) {
        peer_line!(warn, self.server_log, server = %self.server_log.name, "{what}");
    }

    pub(super) fn log_debug(&self, what: &str) {
        peer_line!(debug, self.server_log, server = %self.server_log.name, "a server sent {what}");
    }
}

/// Maximum number of bytes read to find the first event.
const MAX_BYTES: usize = 16 * 1024;
/// Maximum wait for the first event.
const LIMIT: Duration = Duration::from_secs(5);

/// Whether a GET opens a stream whose first event is `endpoint` (MCP 2026-07-28 §HTTP+SSE Transport).
pub(super) async fn is_sse_only(session: &Session, limit: Duration) -> bool {
    tokio::time::timeout(LIMIT.min(limit), offers_sse_only(session)).await.unwrap_or(false)
}

async fn offers_sse_only(session: &Session) -> bool {
    let Ok((mut connection, head)) =
        http::send(session, &session.get(b""), Limits::now(LIMIT)).await
    else {
        return false;
    };
    if head.status != 200 || !http::is_event_stream(&head) {
        return false;
    }
    let mut decoder = Decoder::new();
    let mut read = 0;
    while let Some(Ok(data)) = poll_fn(|cx| connection.poll_body(cx)).await {
        read += data.len();
        if read > MAX_BYTES {
            return false;
        }
        decoder.push(data);
        loop {
            match decoder.next_item() {
                Ok(Some(Item::Data(_))) => {}
                Ok(Some(Item::End)) => return decoder.event() == b"endpoint",
                Ok(None) => break,
                Err(_) => return false,
            }
        }
    }
    false
}
