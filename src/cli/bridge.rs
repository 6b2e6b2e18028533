//! Bridge of `mcpproxy stdio` to a running proxy: lines on one side, HTTP on the other.
//!
//! Each line of the client becomes a POST to `/mcp`, or to the path of one server. Replies, JSON or events, are written
//! as lines, byte for byte except for raw line breaks between tokens. The server's own stream is opened if the protocol
//! has one. The server makes all decisions, so that a call is treated the same over either transport (FR-A2).
//!
//! ```text
//! stdin ─ message ─┬─ request ─▶ a task: POST ─▶ JSON | events ─┐
//!                  ├─ initialize, notification: POST, in order  ├─▶ line ─▶ stdout
//!                  └─ end: drain ─▶ DELETE      GET stream ─────┘
//! ```
//!
//! A lost session is renewed with the client's own `initialize`. The client, which could not do so itself, does not
//! notice. Messages are written only when complete, and buffered until then. Short messages are buffered concurrently;
//! at most [`LONG_MESSAGES`] messages over [`SHORT_BYTES`] are buffered, while further ones wait unread on their
//! connections. Memory use is therefore bounded independently of the number of calls. Unparsable lines are forwarded,
//! because the server reports their errors.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use mcpproxy_downstream::authentication;
use mcpproxy_gateway::proxy::shutdown::CUT_OFF;
use mcpproxy_protocol::mcp::headers::{LAST_EVENT_ID, METHOD, NAME, PROTOCOL_VERSION, SESSION_ID};
use mcpproxy_protocol::mcp::jsonrpc::{Code, Envelope};
use mcpproxy_protocol::mcp::{headers, jsonrpc};
use mcpproxy_protocol::wire::lines::one_line;
use mcpproxy_protocol::wire::{lines, sse};
use mcpproxy_runtime::io::line_reader::LineReader;
use mcpproxy_server::DRAIN_TIMEOUT;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use crate::http_client::{ANOTHER_KEY, HttpClient, HttpReply, RequestError};

/// Maximum number of concurrent requests of the client; further lines wait in the pipe.
const MAX_REQUESTS: usize = 256;
/// Maximum number of concurrent responses of the client; further lines wait in the pipe.
const MAX_RESPONSES: usize = 64;
/// Maximum number of messages queued for the client.
const OUT_QUEUE: usize = 64;
/// Timeout for delivering a notification. Later messages must not overtake a notification.
const ONE_WAY_LIMIT: Duration = Duration::from_secs(10);
/// Forwards one client's messages until its input ends, then lets requests in flight finish, for at most
/// [`DRAIN_TIMEOUT`].
pub(super) async fn run<R, W>(
    server: HttpClient,
    path: &str,
    input: R,
    output: W,
) -> std::io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + 'static,
{
    let (out, queue) = mpsc::channel(OUT_QUEUE);
    let writer = tokio::task::spawn_local(write(output, queue));
    let bridge = Rc::new(Bridge {
        server: Rc::new(ServerSession::new(server, path)),
        out,
        in_flight: RefCell::default(),
        responses: RefCell::default(),
        stream: RefCell::default(),
    });
    let mut requests = JoinSet::new();
    let mut lines = LineReader::new(input);
    let read = loop {
        match lines.next().await {
            Ok(Some(Ok(line))) => bridge.forward(ClientMessage::read(line), &mut requests).await,
            Ok(Some(Err(too_long))) => {
                let text = format!("Invalid Request: {too_long}");
                bridge.write_message(jsonrpc::error(None, Code::InvalidRequest, &text)).await;
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    bridge.drain(requests).await;
    drop(bridge);
    writer.await.map_err(std::io::Error::other)?.and(read)
}

/// One client and its server.
struct Bridge {
    server: Rc<ServerSession>,
    out: mpsc::Sender<ServerMessage>,
    /// Requests in flight, by raw id.
    in_flight: RefCell<HashMap<Bytes, InFlight>>,
    /// Responses of the client in flight. Later messages do not wait for them, because a server may be slow to read.
    responses: RefCell<JoinSet<()>>,
    /// Reader of the server's own stream.
    stream: RefCell<Option<AbortHandle>>,
}

/// State of an unanswered request.
struct InFlight {
    task: AbortHandle,
    modern: bool,
    is_listen: bool,
}

impl Bridge {
    /// Forwards one message. Requests run concurrently; everything else is done before the next line is read.
    async fn forward(self: &Rc<Self>, message: ClientMessage, requests: &mut JoinSet<()>) {
        match &message.kind {
            ClientMessageKind::Request(_)
            | ClientMessageKind::Listen(_)
            | ClientMessageKind::Other(_) => {
                while requests.len() >= MAX_REQUESTS {
                    requests.join_next().await;
                }
                while requests.try_join_next().is_some() {}
                let modern = message.modern.is_some();
                let is_listen = matches!(message.kind, ClientMessageKind::Listen(_));
                let ids = message.ids().to_vec();
                let bridge = Rc::clone(self);
                let task =
                    requests.spawn_local(async move { bridge.forward_request(message).await });
                for id in ids {
                    let in_flight = InFlight { task: task.clone(), modern, is_listen };
                    self.in_flight.borrow_mut().insert(id, in_flight);
                }
            }
            ClientMessageKind::Initialize(_) => {
                self.stop_stream();
                self.server.forget();
                self.forward_request(message).await;
            }
            ClientMessageKind::Cancelled(id) if self.cancel_modern(id) => {}
            ClientMessageKind::Response if self.can_forward_response() => {
                let bridge = Rc::clone(self);
                let task = async move { bridge.send_one_way(message).await };
                self.responses.borrow_mut().spawn_local(task);
            }
            ClientMessageKind::Cancelled(_)
            | ClientMessageKind::OneWay
            | ClientMessageKind::Initialized
            | ClientMessageKind::Response => {
                Rc::clone(self).send_one_way(message).await;
            }
        }
    }

    fn can_forward_response(&self) -> bool {
        let mut responses = self.responses.borrow_mut();
        while responses.try_join_next().is_some() {}
        responses.len() < MAX_RESPONSES
    }

    /// Sends a message without a reply, with the timeout [`ONE_WAY_LIMIT`].
    async fn send_one_way(self: Rc<Self>, message: ClientMessage) {
        let sent = tokio::time::timeout(ONE_WAY_LIMIT, self.post_one_way(&message)).await;
        match sent.unwrap_or(Err(DeliveryError::Late)) {
            Ok(()) if message.kind == ClientMessageKind::Initialized => self.open_stream(),
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "a notification or response was not delivered"),
        }
    }

    /// Cancels a modern request by closing its stream (MCP 2026-07-28 §Cancellation). Returns false for requests that
    /// are canceled by a message.
    fn cancel_modern(&self, id: &Bytes) -> bool {
        let mut in_flight = self.in_flight.borrow_mut();
        let modern = in_flight.get(id).is_some_and(|request| request.modern);
        if modern && let Some(request) = in_flight.remove(id) {
            request.task.abort();
        }
        modern
    }

    /// Posts a message that expects no reply. Forwards the server's error if it is a protocol message.
    async fn post_one_way(self: &Rc<Self>, message: &ClientMessage) -> Result<(), DeliveryError> {
        let reply = self.server.post(message).await?;
        let status = reply.status();
        let refusal = refusal(reply).await?;
        if is_message(&refusal) {
            self.write_message(refusal).await;
        } else if !status.is_success() {
            tracing::warn!("server refused a message: {}", refused(status, &refusal));
        }
        Ok(())
    }

    /// Sends a request and forwards the reply. The client receives a response in any case.
    async fn forward_request(self: &Rc<Self>, message: ClientMessage) {
        let (answered, failed) = match self.server.post(&message).await {
            Ok(reply) => self.relay_reply(&message, reply).await,
            Err(error) => (false, Some(format!("{}: {error}", self.connection_lost()))),
        };
        if let Some(failed) = failed
            && !answered
        {
            tracing::warn!("{failed}");
            for id in message.ids() {
                self.write_message(jsonrpc::error(Some(id), Code::Internal, &failed)).await;
            }
        }
        for id in message.ids() {
            self.in_flight.borrow_mut().remove(id);
        }
    }

    /// Forwards the messages of a reply. Returns whether the client has its response, and the failure, if any.
    async fn relay_reply(
        &self,
        request: &ClientMessage,
        mut reply: HttpReply,
    ) -> (bool, Option<String>) {
        let status = reply.status();
        if !status.is_success() {
            return match refusal(reply).await {
                Ok(body) if is_message(&body) => {
                    self.write_message(body).await;
                    (true, None)
                }
                Ok(body) => (false, Some(refused(status, &body))),
                Err(error) => {
                    (false, Some(format!("{}: {}", self.connection_lost(), error.cause())))
                }
            };
        }
        let opens = matches!(request.kind, ClientMessageKind::Initialize(_));
        let id = reply.headers().get(SESSION_ID).cloned();
        let mut messages = self.server.messages(&reply);
        let events = messages.is_events();
        let mut answered = false;
        loop {
            let message = match messages.next(&mut reply).await {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => {
                    return (answered, Some(format!("{}: {error}", self.connection_lost())));
                }
            };
            // A JSON body is the response itself; events may carry other messages before it.
            answered = answered || !events || is_response(&message.joined());
            if opens && answered {
                let version = settled_version(&message.joined());
                self.server.begin(request.body.clone(), id.clone(), version);
            }
            // An error means that the client is gone.
            let _ = self.out.send(message).await;
        }
        reply.finish();
        let no_response = || format!("mcpproxy at {}: no response", self.server.authority());
        (answered, (!answered && !request.ids().is_empty()).then(no_response))
    }

    /// Opens the server's own stream and closes the previous one.
    fn open_stream(&self) {
        self.stop_stream();
        let follow = follow(Rc::clone(&self.server), self.out.clone());
        *self.stream.borrow_mut() = Some(tokio::task::spawn_local(follow).abort_handle());
    }

    fn stop_stream(&self) {
        if let Some(task) = self.stream.borrow_mut().take() {
            task.abort();
        }
    }

    /// Queues a complete message for the client.
    async fn write_message(&self, message: Bytes) {
        let _ = self.out.send(ServerMessage::from(message)).await;
    }

    fn connection_lost(&self) -> String {
        format!("mcpproxy at {}: connection lost before the response", self.server.authority())
    }

    /// Lets the requests in flight finish, then ends the session.
    async fn drain(self: &Rc<Self>, mut requests: JoinSet<()>) {
        self.stop_stream();
        for request in self.in_flight.borrow().values().filter(|request| request.is_listen) {
            request.task.abort();
        }
        let mut responses = self.responses.take();
        let finished = async {
            while requests.join_next().await.is_some() {}
            while responses.join_next().await.is_some() {}
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, finished).await.is_err() {
            tracing::warn!(requests = requests.len(), "drain timeout: aborting requests in flight");
            requests.shutdown().await;
            let aborted =
                |(id, request): (&Bytes, &InFlight)| (!request.is_listen).then(|| id.clone());
            let aborted: Vec<Bytes> = self.in_flight.borrow().iter().filter_map(aborted).collect();
            for id in aborted {
                self.write_message(jsonrpc::error(Some(&id), Code::Internal, CUT_OFF)).await;
            }
        }
        self.server.end().await;
    }
}

async fn write<W: AsyncWrite + Unpin>(
    mut output: W,
    mut queue: mpsc::Receiver<ServerMessage>,
) -> std::io::Result<()> {
    while let Some(message) = queue.recv().await {
        for part in message.parts() {
            output.write_all(part).await?;
        }
        output.write_all(b"\n").await?;
        output.flush().await?;
    }
    Ok(())
}

/// Time within which a restarting server must listen again before a request fails.
const RESTART_WAIT: Duration = Duration::from_secs(3);
/// Retry interval during this time.
const RESTART_STEP: Duration = Duration::from_millis(100);
/// Maximum size of an error body in bytes.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// Timeout of the DELETE that ends the session.
const END_LIMIT: Duration = Duration::from_secs(2);
/// The API key belongs to this program, not to the client. Messages are therefore sent on behalf of no principal, as
/// with a proxy in this process.
const ON_BEHALF_OF: HeaderName = HeaderName::from_static(authentication::ON_BEHALF_OF);
const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Failure to deliver a message.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    #[error("{}", .0.cause())]
    Request(#[from] RequestError),
    #[error("the session is lost, and a new one was refused: {0}")]
    SessionLost(String),
    #[error("timeout")]
    Late,
}

/// The server and the client's session with it.
struct ServerSession {
    client: HttpClient,
    /// Path of the server's endpoint.
    path: Box<str>,
    agreement: Agreement,
    long_messages: LongMessages,
    /// Serializes renewals: one request renews the session while the others wait.
    renewal: Semaphore,
}

impl ServerSession {
    /// Creates the state without connecting.
    fn new(client: HttpClient, path: &str) -> Self {
        let (agreement, long_messages) = (Agreement::default(), LongMessages::default());
        let path = path.into();
        Self { client, path, agreement, long_messages, renewal: Semaphore::new(1) }
    }

    /// `host:port` of the server.
    fn authority(&self) -> &str {
        self.client.authority()
    }

    /// Headers of a message in the session; empty if no session exists.
    fn headers(&self) -> HeaderMap {
        self.agreement.headers()
    }

    /// Starts the session with the reply to `initialize`; `version` is `None` if the server refused.
    fn begin(&self, initialize: Bytes, id: Option<HeaderValue>, version: Option<HeaderValue>) {
        if let Some(version) = version {
            self.agreement.begin(initialize, id, version);
        }
    }

    /// Drops the session, before another `initialize`.
    fn forget(&self) {
        self.agreement.forget();
    }

    /// Decoder for a reply.
    fn messages(&self, reply: &HttpReply) -> ReplyMessages {
        ReplyMessages::of(&self.long_messages, reply)
    }

    /// Decoder for a reply known to be an event stream.
    fn events(&self) -> ReplyMessages {
        ReplyMessages::new(&self.long_messages, true)
    }

    /// Posts a message of the client in the session. If the server does not know the session, renews it once.
    async fn post(&self, message: &ClientMessage) -> Result<HttpReply, DeliveryError> {
        let mut again = false;
        loop {
            let mut headers = self.headers();
            if let Some(modern) = &message.modern {
                headers.clone_from(modern);
            }
            if matches!(message.kind, ClientMessageKind::Initialize(_)) {
                headers.clear();
            }
            let used = headers.get(SESSION_ID).cloned();
            let reply = self.send(Method::POST, headers, message.body.clone()).await?;
            match used {
                // A server that does not know the session has not processed the message.
                Some(stale) if reply.status() == StatusCode::NOT_FOUND && !again => {
                    refusal(reply).await?;
                    self.renew(&stale).await?;
                    again = true;
                }
                Some(_) | None => return Ok(reply),
            }
        }
    }

    /// Sends one request. Retries for some time if the server is restarting.
    async fn send(
        &self,
        method: Method,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<HttpReply, RequestError> {
        let accept = match method {
            Method::GET => "text/event-stream",
            _ => "application/json, text/event-stream",
        };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.insert(ON_BEHALF_OF, HeaderValue::from_static(authentication::NOBODY));
        if method == Method::POST {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let give_up = tokio::time::Instant::now() + RESTART_WAIT;
        loop {
            let sent =
                self.client.send(method.clone(), &self.path, headers.clone(), body.clone()).await;
            match sent {
                Err(error) if error.is_not_sent() && tokio::time::Instant::now() < give_up => {
                    tokio::time::sleep(RESTART_STEP).await;
                }
                sent => return sent,
            }
        }
    }

    /// Renews the session known as `stale`, unless another request has done so.
    async fn renew(&self, stale: &HeaderValue) -> Result<(), DeliveryError> {
        let _only = self.renewal.acquire().await;
        let Some((initialize, agreed)) = self.agreement.of(stale) else { return Ok(()) };
        let failed = |why: &str| DeliveryError::SessionLost(why.to_owned());
        let mut reply = self.send(Method::POST, HeaderMap::new(), initialize.clone()).await?;
        let status = reply.status();
        if !status.is_success() {
            return Err(failed(&refused(status, &refusal(reply).await?)));
        }
        let id = reply.headers().get(SESSION_ID).cloned();
        let mut messages = self.messages(&reply);
        let response = messages.next(&mut reply).await.map_err(|error| failed(&error))?;
        let version = response.and_then(|it| settled_version(&it.joined()));
        let Some(version) = version.filter(|version| *version == agreed) else {
            return Err(failed("the server uses another protocol revision now"));
        };
        self.agreement.begin(initialize, id, version);
        let ready = Bytes::from_static(INITIALIZED);
        refusal(self.send(Method::POST, self.headers(), ready).await?).await?;
        tracing::info!("server restarted: session renewed");
        Ok(())
    }

    /// Ends the session on the server.
    async fn end(&self) {
        let mut headers = self.headers();
        if headers.contains_key(SESSION_ID) {
            headers.insert(ON_BEHALF_OF, HeaderValue::from_static(authentication::NOBODY));
            let end = self.client.send(Method::DELETE, &self.path, headers, Bytes::new());
            let _ = tokio::time::timeout(END_LIMIT, end).await;
        }
    }
}

/// Reads a short body; empty if it exceeds [`MAX_REFUSAL_BYTES`].
async fn refusal(reply: HttpReply) -> Result<Bytes, RequestError> {
    Ok(reply.body(MAX_REFUSAL_BYTES).await?.unwrap_or_default())
}

/// One-line message of an error response.
fn refused(status: StatusCode, body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct ErrorBody {
        error: String,
    }
    let message = serde_json::from_slice::<ErrorBody>(body).map(|envelope| envelope.error);
    let message = message.unwrap_or_else(|_| String::from_utf8_lossy(body).trim().to_owned());
    let message = match status {
        StatusCode::UNAUTHORIZED => format!("it {ANOTHER_KEY}"),
        _ => message,
    };
    format!("mcpproxy answered HTTP {}: {message}", status.as_u16())
}

/// Delay before the stream is reopened, unless the server sets one.
const STREAM_RETRY: Duration = Duration::from_secs(1);
/// Maximum delay that a server may set.
const MAX_STREAM_RETRY: Duration = Duration::from_secs(30);

/// Opens the server's stream, reopens it after the last event whenever it ends, and forwards its messages to `out`.
/// Ends if the server does not offer a stream, the session has no id, or the receiver is gone.
async fn follow(server: Rc<ServerSession>, out: mpsc::Sender<ServerMessage>) {
    let mut last_id: Option<HeaderValue> = None;
    loop {
        let mut headers = server.headers();
        let Some(used) = headers.get(SESSION_ID).cloned() else { return };
        if let Some(id) = &last_id {
            headers.insert(LAST_EVENT_ID, id.clone());
        }
        let mut retry = None;
        match server.send(Method::GET, headers, Bytes::new()).await {
            Ok(mut reply) if reply.status() == StatusCode::OK => {
                let mut messages = server.events();
                while let Ok(Some(message)) = messages.next(&mut reply).await {
                    if out.send(message).await.is_err() {
                        return;
                    }
                }
                let id = messages.last_id();
                if !id.is_empty() {
                    last_id = HeaderValue::from_bytes(id).ok();
                }
                retry = messages.retry();
            }
            Ok(reply) if reply.status() == StatusCode::NOT_FOUND => {
                last_id = None;
                if let Err(error) = server.renew(&used).await {
                    tracing::debug!(%error, "cannot renew the session for the server's own stream");
                }
            }
            // The server does not offer a stream.
            Ok(_) => return,
            Err(error) => tracing::debug!(%error, "cannot open the server's own stream"),
        }
        tokio::time::sleep(retry.unwrap_or(STREAM_RETRY).min(MAX_STREAM_RETRY)).await;
    }
}

/// Messages up to this size are always buffered.
const SHORT_BYTES: usize = 1024 * 1024;
/// Maximum number of longer messages buffered concurrently, each of at most [`lines::MAX_LINE_BYTES`].
const LONG_MESSAGES: usize = 2;

/// Permits for messages over [`SHORT_BYTES`].
#[derive(Clone)]
struct LongMessages(Arc<Semaphore>);

impl Default for LongMessages {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LONG_MESSAGES)))
    }
}

/// A complete message for the client, with its permit if it is long.
#[derive(Default)]
struct ServerMessage {
    parts: Vec<Bytes>,
    length: usize,
    _permit: Option<Rc<OwnedSemaphorePermit>>,
}

impl From<Bytes> for ServerMessage {
    fn from(message: Bytes) -> Self {
        Self { length: message.len(), parts: vec![one_line(message)], _permit: None }
    }
}

impl ServerMessage {
    fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// The message in one piece.
    fn joined(&self) -> Bytes {
        match self.parts.as_slice() {
            [whole] => whole.clone(),
            parts => parts.concat().into(),
        }
    }
}

/// Decoder for the messages of one reply, in order.
struct ReplyMessages {
    long: LongMessages,
    /// Decoder of the event stream; `None` if the body is a single message.
    events: Option<sse::Decoder>,
    message: ServerMessage,
    /// Whether the current event has a type other than `message`.
    skip: bool,
}

impl ReplyMessages {
    /// Creates a decoder for an event stream, or for a single message.
    fn new(long: &LongMessages, events: bool) -> Self {
        let events = events.then(sse::Decoder::new);
        Self { long: long.clone(), events, message: ServerMessage::default(), skip: false }
    }

    /// Creates the decoder for the reply's content type.
    fn of(long: &LongMessages, reply: &HttpReply) -> Self {
        let kind = reply.headers().get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
        Self::new(long, kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")))
    }

    /// Whether the body is an event stream.
    fn is_events(&self) -> bool {
        self.events.is_some()
    }

    /// Returns the next complete message; `None` at the end. A truncated message is an error.
    async fn next(&mut self, reply: &mut HttpReply) -> Result<Option<ServerMessage>, String> {
        loop {
            if let Some(message) = self.decoded().await? {
                return Ok(Some(message));
            }
            match reply.next().await {
                Some(Ok(data)) => match &mut self.events {
                    Some(decoder) => decoder.push(data),
                    None => self.keep(data).await?,
                },
                Some(Err(error)) => return Err(error.cause()),
                None if self.events.is_none() && self.message.length > 0 => {
                    return Ok(Some(std::mem::take(&mut self.message)));
                }
                None if self.message.length > 0 => {
                    return Err("the reply ended within a message".to_owned());
                }
                None => return Ok(None),
            }
        }
    }

    /// The next message in the events received so far.
    async fn decoded(&mut self) -> Result<Option<ServerMessage>, String> {
        loop {
            let Some(decoder) = &mut self.events else { return Ok(None) };
            match decoder.next_item().map_err(|error| error.to_string())? {
                None => return Ok(None),
                Some(sse::Item::Data(data)) => {
                    self.skip |= !matches!(decoder.event(), b"" | b"message");
                    if !self.skip {
                        self.keep(data).await?;
                    }
                }
                Some(sse::Item::End) => {
                    let message = std::mem::take(&mut self.message);
                    if !std::mem::take(&mut self.skip) && message.length > 0 {
                        return Ok(Some(message));
                    }
                }
            }
        }
    }

    async fn keep(&mut self, data: Bytes) -> Result<(), String> {
        self.message.length += data.len();
        if self.message.length as u64 > lines::MAX_LINE_BYTES {
            return Err(format!("the message exceeds {} bytes", lines::MAX_LINE_BYTES));
        }
        if self.message.length > SHORT_BYTES && self.message._permit.is_none() {
            let permit = Arc::clone(&self.long.0).acquire_owned().await;
            self.message._permit = permit.ok().map(Rc::new);
        }
        self.message.parts.push(one_line(data));
        Ok(())
    }

    /// Id of the last event.
    fn last_id(&self) -> &[u8] {
        self.events.as_ref().map_or(&[], sse::Decoder::last_id)
    }

    /// Reconnection delay requested by the server.
    fn retry(&self) -> Option<Duration> {
        self.events.as_ref().and_then(sse::Decoder::retry).map(Duration::from_millis)
    }
}

/// One line of the client.
#[derive(Clone, Debug)]
struct ClientMessage {
    /// The line without its terminator.
    body: Bytes,
    kind: ClientMessageKind,
    /// Headers of the modern protocol, if the message uses it (MCP 2026-07-28).
    modern: Option<HeaderMap>,
}

/// Kind of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClientMessageKind {
    /// `initialize`: opens the session.
    Initialize(Bytes),
    /// A request, with its raw id.
    Request(Bytes),
    /// A long-lived stream, with its raw id.
    Listen(Bytes),
    /// `notifications/initialized`: the session's own stream can be opened.
    Initialized,
    /// `notifications/cancelled`, with the raw id of the canceled request.
    Cancelled(Bytes),
    /// A notification, which expects no response.
    OneWay,
    /// The client's response to a request of the server.
    Response,
    /// A batch or an unparsable line, with the raw ids of its requests.
    Other(Vec<Bytes>),
}

/// Members that are repeated in headers or identify a request.
#[derive(Deserialize, Default)]
struct Params<'a> {
    #[serde(borrow, rename = "_meta")]
    meta: Option<Meta<'a>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    uri: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "taskId")]
    task: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "requestId")]
    request: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Cow<'a, str>>,
}

impl ClientMessage {
    /// Parses a line.
    fn read(body: Bytes) -> Self {
        let other =
            |ids| Self { body: body.clone(), kind: ClientMessageKind::Other(ids), modern: None };
        let slice = |raw: &RawValue| body.slice_ref(raw.get().as_bytes());
        let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(&body) else {
            let batch = serde_json::from_slice::<Vec<Envelope<'_>>>(&body).unwrap_or_default();
            let requests = batch.iter().filter(|it| it.method.is_some());
            return other(requests.filter_map(|it| it.id.map(slice)).collect());
        };
        let Some(method) = envelope.method.as_deref() else {
            return Self { kind: ClientMessageKind::Response, modern: None, body: body.clone() };
        };
        let params = envelope.params.map_or("{}", RawValue::get);
        let params = serde_json::from_str::<Params<'_>>(params).unwrap_or_default();
        let kind = match (envelope.id.map(slice), method) {
            (Some(id), "initialize") => ClientMessageKind::Initialize(id),
            (Some(id), "subscriptions/listen") => ClientMessageKind::Listen(id),
            (Some(id), _) => ClientMessageKind::Request(id),
            (None, "notifications/initialized") => ClientMessageKind::Initialized,
            (None, "notifications/cancelled") => params
                .request
                .map_or(ClientMessageKind::OneWay, |id| ClientMessageKind::Cancelled(slice(id))),
            (None, _) => ClientMessageKind::OneWay,
        };
        let modern = modern(method, &params);
        Self { body: body.clone(), kind, modern }
    }

    /// Raw ids of the requests that expect a response.
    fn ids(&self) -> &[Bytes] {
        match &self.kind {
            ClientMessageKind::Initialize(id)
            | ClientMessageKind::Request(id)
            | ClientMessageKind::Listen(id) => std::slice::from_ref(id),
            ClientMessageKind::Other(ids) => ids,
            ClientMessageKind::Initialized
            | ClientMessageKind::Cancelled(_)
            | ClientMessageKind::OneWay
            | ClientMessageKind::Response => &[],
        }
    }
}

/// Headers that repeat parts of a modern message.
fn modern(method: &str, params: &Params<'_>) -> Option<HeaderMap> {
    let version = params.meta.as_ref()?.version.as_deref()?;
    let name = match headers::name_member(method) {
        Some("name") => params.name.as_deref(),
        Some("uri") => params.uri.as_deref(),
        Some("taskId") => params.task.as_deref(),
        Some(_) | None => None,
    };
    let mut repeated = HeaderMap::new();
    let lines = [(PROTOCOL_VERSION, Some(version)), (METHOD, Some(method)), (NAME, name)];
    for (header, value) in lines {
        let value = value.and_then(|value| HeaderValue::from_str(&headers::encode(value)).ok());
        if let Some(value) = value {
            repeated.insert(HeaderName::from_static(header), value);
        }
    }
    Some(repeated)
}

/// Whether a server's message is a response rather than a request or notification.
fn is_response(message: &[u8]) -> bool {
    serde_json::from_slice::<Envelope<'_>>(message).is_ok_and(|it| it.method.is_none())
}

/// Whether an error body is a protocol message.
fn is_message(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Any<'a> {
        #[serde(borrow)]
        jsonrpc: Option<Cow<'a, str>>,
    }
    serde_json::from_slice::<Any<'_>>(body).is_ok_and(|it| it.jsonrpc.as_deref() == Some("2.0"))
}

/// Protocol revision in a response to `initialize`; `None` if the response is an error.
fn settled_version(answer: &[u8]) -> Option<HeaderValue> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        result: Option<Accepted<'a>>,
    }
    #[derive(Deserialize)]
    struct Accepted<'a> {
        #[serde(borrow, rename = "protocolVersion")]
        version: Cow<'a, str>,
    }
    let answer = serde_json::from_slice::<Answer<'_>>(answer).ok()?;
    HeaderValue::from_str(&answer.result?.version).ok()
}

/// Agreed headers of the current session, if any.
#[derive(Default)]
struct Agreement(RefCell<Option<Agreed>>);

struct Agreed {
    initialize: Bytes,
    id: Option<HeaderValue>,
    version: HeaderValue,
}

impl Agreement {
    /// Starts a session with the response to `initialize`.
    fn begin(&self, initialize: Bytes, id: Option<HeaderValue>, version: HeaderValue) {
        *self.0.borrow_mut() = Some(Agreed { initialize, id, version });
    }

    /// Ends the session.
    fn forget(&self) {
        *self.0.borrow_mut() = None;
    }

    /// Headers of a message in the session.
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(agreed) = &*self.0.borrow() {
            headers.insert(PROTOCOL_VERSION, agreed.version.clone());
            if let Some(id) = &agreed.id {
                headers.insert(SESSION_ID, id.clone());
            }
        }
        headers
    }

    /// `initialize` request and revision of the session with this id; `None` if a different session is current.
    fn of(&self, id: &HeaderValue) -> Option<(Bytes, HeaderValue)> {
        let agreed = self.0.borrow();
        let agreed = agreed.as_ref().filter(|agreed| agreed.id.as_ref() == Some(id))?;
        Some((agreed.initialize.clone(), agreed.version.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> ClientMessage {
        ClientMessage::read(Bytes::copy_from_slice(line.as_bytes()))
    }

    fn id(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn lines_are_classified_by_expected_response() {
        for (line, kind) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#,
                ClientMessageKind::Initialize(id("1")),
            ),
            (
                r#"{"id":"a\u0062","method":"tools/list"}"#,
                ClientMessageKind::Request(id(r#""a\u0062""#)),
            ),
            (r#"{"id":7,"method":"subscriptions/listen"}"#, ClientMessageKind::Listen(id("7"))),
            (r#"{"method":"notifications/initialized"}"#, ClientMessageKind::Initialized),
            (
                r#"{"method":"notifications/cancelled","params":{"requestId":12}}"#,
                ClientMessageKind::Cancelled(id("12")),
            ),
            (r#"{"method":"notifications/cancelled"}"#, ClientMessageKind::OneWay),
            (r#"{"id":3,"result":{}}"#, ClientMessageKind::Response),
            ("nonsense", ClientMessageKind::Other(vec![])),
            (
                r#"[{"id":1,"method":"ping"},{"method":"n"},{"id":2,"result":{}}]"#,
                ClientMessageKind::Other(vec![id("1")]),
            ),
        ] {
            let message = read(line);
            assert_eq!(message.kind, kind, "{line}");
            assert!(message.modern.is_none(), "{line}");
        }
    }

    #[test]
    fn members_of_modern_messages_are_repeated_in_headers() {
        let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        let call =
            read(&format!(r#"{{"id":1,"method":"tools/call","params":{{"name":"grün",{meta}}}}}"#));
        let headers = call.modern.unwrap();
        assert_eq!(headers["mcp-protocol-version"], "2026-07-28");
        assert_eq!(headers["mcp-method"], "tools/call");
        assert_eq!(headers["mcp-name"], "=?base64?Z3LDvG4=?=");
        let list =
            read(&format!(r#"{{"id":1,"method":"tools/list","params":{{"name":"x",{meta}}}}}"#));
        assert!(!list.modern.unwrap().contains_key("mcp-name"));
    }

    #[test]
    fn server_messages_are_classified() {
        assert!(is_response(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
        assert!(!is_response(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#));
        assert!(is_message(br#"{"jsonrpc":"2.0","id":null,"error":{}}"#));
        assert!(!is_message(br#"{"success":false,"error":"Invalid or missing API key"}"#));
        let answer = br#"{"result":{"protocolVersion":"2025-06-18","capabilities":{}}}"#;
        assert_eq!(settled_version(answer).unwrap(), "2025-06-18");
        assert!(settled_version(br#"{"error":{}}"#).is_none());
    }

    #[test]
    fn session_is_found_by_its_id_until_it_is_replaced() {
        let agreement = Agreement::default();
        let value = HeaderValue::from_static;
        assert!(agreement.headers().is_empty());
        agreement.begin(Bytes::from_static(b"{}"), Some(value("a")), value("2025-06-18"));
        assert_eq!(agreement.headers()[SESSION_ID], "a");
        assert_eq!(agreement.headers()[PROTOCOL_VERSION], "2025-06-18");
        let (initialize, version) = agreement.of(&value("a")).unwrap();
        assert_eq!((&initialize[..], version), (&b"{}"[..], value("2025-06-18")));
        agreement.begin(Bytes::from_static(b"{}"), Some(value("b")), value("2025-06-18"));
        assert!(agreement.of(&value("a")).is_none());
        agreement.forget();
        assert!(agreement.of(&value("b")).is_none() && agreement.headers().is_empty());
    }
}
