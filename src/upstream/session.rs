//! The lifecycle's side of streamable HTTP: one POST for each message, and the GET stream.
//!
//! Owns what the session learns on the way (its id, the negotiated version), which calls then
//! carry. It is an rmcp transport like the pipes of a child. rmcp's own HTTP transport is not
//! used: it keeps the session to itself, so that calls beside it could not share it, makes a new
//! one unseen, and goes on asking for a stream of a session that is gone.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rmcp::RoleClient as Role;
use rmcp::model::{ClientNotification, JsonRpcMessage, ServerResult};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::ask::Era;
use super::error::Cause;
use super::http::{self, Event, Exchange, Limits, STALL_LIMIT, Session};
use super::lifecycle::{MAX_PAGE_BYTES, Unsent, decode, encode};
use super::request::Params;
use super::stdio::LIFECYCLE_MESSAGES;

/// Most bytes of one message for the lifecycle.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// The GET stream may be silent for ever; this is how often the wait is begun anew.
const STREAM_SILENCE: Duration = Duration::from_secs(3600);
/// How long to wait before asking for the GET stream again, unless the server says how long.
const STREAM_RETRY: Duration = Duration::from_secs(1);
/// Longest such wait a server may ask for.
const MAX_STREAM_RETRY: Duration = Duration::from_secs(60);
/// Time for the farewell to a server.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);

/// The lifecycle's transport over HTTP.
pub(super) struct HttpTransport {
    shared: Arc<Shared>,
    inbox: mpsc::Receiver<RxJsonRpcMessage<Role>>,
}

/// What the transport, its tasks and the supervisor share.
pub(super) struct Shared {
    session: Mutex<Session>,
    limit: Duration,
    out: mpsc::Sender<RxJsonRpcMessage<Role>>,
    /// Readers of event streams; ended with the transport.
    tasks: Mutex<JoinSet<()>>,
    /// Tells the supervisor that the server cannot be reached any more.
    lost: mpsc::Sender<Arc<str>>,
    /// The server has asked for a login, or refused the token of one.
    unauthorized: AtomicBool,
}

impl HttpTransport {
    /// A transport for a session that has not begun; `lost` learns when it is over.
    pub(super) fn new(
        session: Session,
        limit: Duration,
        lost: mpsc::Sender<Arc<str>>,
    ) -> (Self, Arc<Shared>) {
        let (out, inbox) = mpsc::channel(LIFECYCLE_MESSAGES);
        let shared = Arc::new(Shared {
            session: Mutex::new(session),
            limit,
            out,
            tasks: Mutex::default(),
            lost,
            unauthorized: AtomicBool::new(false),
        });
        (Self { shared: shared.clone(), inbox }, shared)
    }
}

impl Shared {
    /// The session as it is now.
    pub(super) fn session(&self) -> Session {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The session from now on, with another token.
    pub(super) fn log_in(&self, bearer: ::http::HeaderValue) -> Session {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.log_in(bearer);
        session.clone()
    }

    /// Whether the server has asked for a login, or refused the token of one.
    pub(super) fn wants_login(&self) -> bool {
        self.unauthorized.load(Ordering::Relaxed)
    }

    fn limits(&self) -> Limits {
        Limits { answer: self.limit, stall: STALL_LIMIT }
    }

    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    async fn post(self: Arc<Self>, item: TxJsonRpcMessage<Role>) -> Result<(), Unsent> {
        let session = self.session();
        let wants_answer = matches!(item, JsonRpcMessage::Request(_));
        let starts_stream = matches!(
            &item,
            JsonRpcMessage::Notification(it)
                if matches!(it.notification, ClientNotification::InitializedNotification(_))
        );
        let request = session.post([Bytes::from(encode(&item)?), Bytes::new(), Bytes::new()]);
        let (connection, head) = http::send(&session, &request, self.limit)
            .await
            .map_err(|refused| Unsent(refused.cause))?;
        if head.status == 401 {
            self.unauthorized.store(true, Ordering::Relaxed);
        }
        if let Some(id) = &head.session_id {
            self.session.lock().unwrap_or_else(PoisonError::into_inner).begin(id);
        }
        match http::accept(&session, connection, &head, self.limits()).await {
            Ok(exchange) if wants_answer => self.deliver_all(exchange).await?,
            Ok(_) => {}
            Err(refused) => match refused.cause {
                Cause::AcceptedOnly { .. } if !wants_answer => {}
                cause => return Err(Unsent(cause)),
            },
        }
        if starts_stream {
            self.spawn(listen(self.clone()));
        }
        Ok(())
    }

    /// Reads an answer to its end, handing its messages on.
    async fn deliver_all(&self, mut exchange: Exchange) -> Result<(), Unsent> {
        while let Some(message) =
            next_message(&mut exchange, MAX_MESSAGE_BYTES).await.map_err(Unsent)?
        {
            let is_answer = self.deliver(&message);
            if is_answer {
                break;
            }
        }
        Ok(())
    }

    /// Hands a message to rmcp; true if it was a response.
    fn deliver(&self, message: &[u8]) -> bool {
        let Some(message) = decode(message) else { return false };
        if let JsonRpcMessage::Response(response) = &message
            && let ServerResult::InitializeResult(result) = &response.result
        {
            self.session
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .negotiated(result.protocol_version.as_str());
        }
        let is_answer = matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
        if self.out.try_send(message).is_err() {
            tracing::warn!("a server sends notifications faster than they can be handled");
        }
        is_answer
    }
}

/// The GET stream, opened again whenever it ends. A server without one is left alone; one that
/// cannot be reached any more is reported.
async fn listen(shared: Arc<Shared>) {
    let mut last_id = Vec::new();
    loop {
        let session = shared.session();
        let request = session.get(&last_id);
        let limits = Limits { answer: STREAM_SILENCE, stall: STALL_LIMIT };
        let mut stream = match http::fresh(&session, &request, limits).await {
            Ok(stream) if stream.is_event_stream() => stream,
            Ok(_) => return,
            Err(refused) => {
                match refused.cause {
                    cause @ Cause::Connect { .. } => {
                        let _ = shared.lost.try_send(cause.to_string().into());
                    }
                    cause => tracing::debug!(%cause, "a server offers no stream of its own"),
                }
                return;
            }
        };
        loop {
            match next_message(&mut stream, MAX_MESSAGE_BYTES).await {
                Ok(Some(message)) => {
                    shared.deliver(&message);
                }
                Err(Cause::NoAnswer { .. }) => {}
                Ok(None) => break,
                Err(cause) => {
                    tracing::debug!(%cause, "a server's own stream ended");
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

/// The next whole message, at most `limit` bytes of it.
async fn next_message(exchange: &mut Exchange, limit: usize) -> Result<Option<Vec<u8>>, Cause> {
    let mut message = Vec::new();
    while let Some(event) = exchange.next().await? {
        match event {
            Event::End => return Ok(Some(message)),
            Event::Data(data) if message.len() + data.len() > limit => {
                return Err(Cause::Unreadable {
                    reason: format!("a message is longer than {limit} bytes").into(),
                });
            }
            Event::Data(data) => message.extend_from_slice(&data),
        }
    }
    Ok(None)
}

/// Sends a request beside the lifecycle and returns the response's bytes.
pub(super) async fn fetch(
    session: &Session,
    id: u64,
    params: Params<'_>,
    era: Era,
    limit: Duration,
) -> Result<Vec<u8>, Cause> {
    #[derive(Deserialize)]
    struct Envelope {
        id: Option<serde_json::Number>,
        method: Option<serde::de::IgnoredAny>,
    }
    let limits = Limits { answer: limit, stall: STALL_LIMIT };
    let request = session.post(params.body(id, era));
    let mut exchange =
        http::fresh(session, &request, limits).await.map_err(|refused| refused.cause)?;
    while let Some(message) = next_message(&mut exchange, MAX_PAGE_BYTES).await? {
        let envelope = serde_json::from_slice::<Envelope>(&message)
            .map_err(|error| Cause::Unreadable { reason: error.to_string().into() })?;
        if envelope.method.is_none() && envelope.id.is_none_or(|found| found.as_u64() == Some(id)) {
            return Ok(message);
        }
    }
    Err(Cause::NoAnswerAtAll { reason: "its stream held no response".into() })
}

/// Sends a notification beside the lifecycle; whether it arrives is not waited for long.
pub(super) async fn notify(session: &Session, json: Vec<u8>) {
    let request = session.post([Bytes::from(json), Bytes::new(), Bytes::new()]);
    let _ =
        tokio::time::timeout(FAREWELL_LIMIT, http::send(session, &request, FAREWELL_LIMIT)).await;
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
        let tasks =
            std::mem::take(&mut *self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        drop(tasks);
        let session = self.shared.session();
        if session.has_id() {
            let request = session.delete();
            let farewell = http::send(&session, &request, FAREWELL_LIMIT);
            let _ = tokio::time::timeout(FAREWELL_LIMIT, farewell).await;
        }
        Ok(())
    }
}
