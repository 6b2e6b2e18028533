//! Requests over streamable HTTP: one POST each, on a connection from the worker's pool.
//!
//! Session id and version come from the lifecycle; messages are not parsed here.
//!
//! ```text
//! idle ─ take ▶ sending ─ head ▶ streaming ─ end of body ▶ idle
//!                  │                 ├─ finish: rest unread ▶ draining ─ next take ▶ idle
//!                  │                 └─ dropped: the call is canceled ▶ closed
//!                  └─ stale before a byte was sent ▶ another connection
//! ```
//!
//! An event stream that ends before its response is resumed by a GET with the id of its last event (MCP 2025-11-25
//! §Resumability and Redelivery); the request itself is never repeated. Resumption is bounded by the time limit of the
//! awaited message and by [`MAX_RESUMES`]. `downstream::replay` is the counterpart for clients.

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::HeaderValue;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use self::decoder::{BrokenCoding, ContentDecoder, UnknownCoding};
pub(super) use self::pool::Session;
use self::pool::SessionKind;
pub use self::pool::{MAX_IDLE, MAX_IDLE_AGE, Pool};
use crate::connection::{Connection, HttpRequest, SendError};
use crate::endpoint::Endpoint;
use crate::error::{Cause, Sent};
use crate::inbound::AnswerPart;
use crate::notifications::ServerEvents;
use crate::request::{self, Params};
use crate::server_log::ServerLog;
use mcpproxy_json::members::string;
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::mcp::lifecycle::{self, ServerResponse};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::wire::lines::MarkSkipper;
use mcpproxy_protocol::wire::sse;
use mcpproxy_runtime::io::clock;
use mcpproxy_runtime::io::deadline::Allowance;
use mcpproxy_runtime::io::http1::{self, ResponseHead};
use mcpproxy_runtime::io::line_budget::peer_line;

pub(crate) mod decoder;
mod pool;
mod redirect;

/// Maximum silence within a message.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Time limits of one exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Deadline of the first byte of the first message; includes the time to connect.
    pub(super) first: Instant,
    /// Time limit for the first byte of each further message.
    pub(super) answer: Duration,
    /// Time limit between the bytes of a message.
    stall: Duration,
}

impl Limits {
    /// Limits with the rest of `time` for the first message, and all of it for each further message.
    pub(crate) fn of(time: Allowance) -> Self {
        Self { first: time.until, answer: time.whole, stall: STALL_LIMIT }
    }

    /// Limits with this time for each message, starting now.
    pub(crate) fn now(answer: Duration) -> Self {
        Self::of(Allowance::now(answer))
    }
}

/// One request and its response on one connection.
pub(crate) struct HttpExchange {
    connection: Box<Connection>,
    framing: Framing,
    limits: Limits,
    /// Deadline of the current wait; `None` until the wait starts.
    deadline: Option<Instant>,
    inside: bool,
    ended: bool,
    /// Decoder of a compressed body.
    content: Option<Box<ContentDecoder>>,
    /// Skips a byte order mark before a JSON body.
    mark: MarkSkipper,
    /// First part of the response, if read ahead.
    first: Option<Result<Option<AnswerPart>, Cause>>,
}

pub(super) enum Framing {
    Json,
    Events {
        decoder: Box<sse::Decoder>,
        skip: bool,
    },
    /// JSON-RPC error from the body of an HTTP error.
    Fixed {
        body: Option<Bytes>,
        status: u16,
    },
}

impl HttpExchange {
    /// Exchange for a response whose head was read.
    pub(super) fn new(connection: Box<Connection>, framing: Framing, limits: Limits) -> Self {
        let deadline = Some(limits.first);
        Self {
            connection,
            framing,
            limits,
            deadline,
            inside: false,
            ended: false,
            content: None,
            mark: MarkSkipper::default(),
            first: None,
        }
    }

    /// Replaces the body of an HTTP error with a complete message.
    pub(super) fn with_body(self, body: Bytes, status: u16) -> Self {
        Self { framing: Framing::Fixed { body: Some(body), status }, ..self }
    }

    /// Refusal for an HTTP error whose JSON-RPC error has a foreign id; `None` otherwise. The error's message is
    /// reported with the status.
    pub(crate) fn foreign_error(&self, id: u64) -> Option<HttpRefused> {
        let Framing::Fixed { body: Some(body), status } = &self.framing else { return None };
        let error = RpcError::read(body).filter(|error| error.request_id() != Some(id))?;
        let message = self.connection.server_log.quote(&*error.message);
        Some(HttpRefused::new(Cause::Status { status: *status, message }, Sent::Maybe))
    }

    /// Next piece of the response; `None` at its end. If a resumable event stream's connection breaks between two
    /// events, the stream counts as ended.
    pub(crate) async fn next(&mut self) -> Result<Option<AnswerPart>, Cause> {
        if let Some(first) = self.first.take() {
            return first;
        }
        let event = poll_fn(|cx| self.poll_next(cx)).await;
        if !matches!(event, Ok(None)) {
            self.deadline = None;
        }
        event
    }

    /// Reads the first part ahead to detect an error for an unknown session; some servers send it with status 200, as a
    /// body or as the first event. In this case, returns the server's message. Waits at most [`DENIAL_WAIT`] for the
    /// first event.
    pub(crate) async fn denied_session(&mut self) -> Option<Arc<str>> {
        if matches!(self.framing, Framing::Fixed { .. }) {
            return None;
        }
        // A session is denied immediately, whereas a tool may be silent for any time.
        let is_event_stream = self.is_event_stream();
        let first = poll_fn(|cx| self.poll_next(cx));
        let first = match is_event_stream {
            true => tokio::time::timeout(DENIAL_WAIT, first).await.ok()?,
            false => first.await,
        };
        self.deadline = None;
        let first = self.first.insert(first);
        let Ok(Some(AnswerPart::Data(data))) = first else { return None };
        if data.len() > MAX_SESSION_ERROR_BYTES {
            return None;
        }
        memchr::memmem::find(data, SESSION_ERROR_CODE.as_bytes())?;
        let error = RpcError::read(data).filter(RpcError::denies_session)?;
        Some(self.connection.server_log.quote(&*error.message))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<AnswerPart>, Cause>> {
        loop {
            if let Some(event) = self.decoded()? {
                return Poll::Ready(Ok(Some(event)));
            }
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            match self.poll_content(cx) {
                Poll::Pending => {
                    ready!(self.poll_deadline(cx));
                    return Poll::Ready(Err(self.overdue()));
                }
                Poll::Ready(Some(Err(Cause::CutOff { .. }))) if self.ended_between_events() => {
                    self.ended = true;
                    return Poll::Ready(Ok(None));
                }
                Poll::Ready(Some(Err(cause))) => return Poll::Ready(Err(cause)),
                Poll::Ready(None) => {
                    self.ended = true;
                    return Poll::Ready(self.end_of_body());
                }
                Poll::Ready(Some(Ok(data))) => match &mut self.framing {
                    Framing::Json => {
                        let data = self.mark.skip(data);
                        if data.is_empty() {
                            continue;
                        }
                        self.inside = true;
                        return Poll::Ready(Ok(Some(AnswerPart::Data(data))));
                    }
                    Framing::Events { decoder, .. } => decoder.push(data),
                    Framing::Fixed { .. } => {}
                },
            }
        }
    }

    /// Next bytes of the body without their content coding.
    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cause>>> {
        let Some(content) = &mut self.content else { return self.connection.poll_body(cx) };
        let unreadable = |broken: BrokenCoding| {
            Poll::Ready(Some(Err(Cause::Unreadable { reason: broken.to_string().into() })))
        };
        loop {
            match content.next_piece() {
                Ok(Some(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(None) => {}
                Err(broken) => return unreadable(broken),
            }
            match ready!(self.connection.poll_body(cx)) {
                Some(Ok(data)) => content.push(data),
                None => return content.finish().map_or_else(unreadable, |()| Poll::Ready(None)),
                Some(Err(cause)) => return Poll::Ready(Some(Err(cause))),
            }
        }
    }

    /// Next piece buffered by the framing.
    fn decoded(&mut self) -> Result<Option<AnswerPart>, Cause> {
        match &mut self.framing {
            Framing::Json => Ok(None),
            Framing::Fixed { body, .. } => {
                let body = body.take();
                self.inside |= body.is_some();
                self.ended |= body.is_some();
                match body {
                    Some(body) => Ok(Some(AnswerPart::Data(body))),
                    None if std::mem::take(&mut self.inside) => Ok(Some(AnswerPart::End)),
                    None => Ok(None),
                }
            }
            Framing::Events { decoder, skip } => {
                while let Some(item) = decoder
                    .next_item()
                    .map_err(|error| Cause::Unreadable { reason: error.to_string().into() })?
                {
                    match item {
                        sse::Item::Data(data) => {
                            // Messages have the default event type; other events are ignored.
                            *skip |= !matches!(decoder.event(), b"" | b"message");
                            if !*skip {
                                self.inside = true;
                                return Ok(Some(AnswerPart::Data(data)));
                            }
                        }
                        sse::Item::End => {
                            // An event with empty data only carries an id from which to resume.
                            let message = std::mem::take(&mut self.inside);
                            if !std::mem::take(skip) && message {
                                return Ok(Some(AnswerPart::End));
                            }
                        }
                    }
                }
                Ok(None)
            }
        }
    }

    fn end_of_body(&mut self) -> Result<Option<AnswerPart>, Cause> {
        let inside = std::mem::take(&mut self.inside);
        match &self.framing {
            Framing::Json if inside => Ok(Some(AnswerPart::End)),
            Framing::Json => Err(Cause::NoAnswerAtAll { reason: "the body is empty".into() }),
            Framing::Events { .. } if inside => Err(Cause::CutOff { reason: "".into() }),
            Framing::Events { .. } | Framing::Fixed { .. } => Ok(None),
        }
    }

    fn limit(&self) -> Duration {
        if self.inside { self.limits.stall } else { self.limits.answer }
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit();
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + limit);
        self.connection.poll_deadline(cx, deadline)
    }

    fn overdue(&self) -> Cause {
        let limit = self.limit();
        if self.inside { Cause::Stalled { limit } } else { Cause::NoAnswer { limit } }
    }

    /// Sets the deadline of the next message; each further message gets the whole time.
    pub(crate) fn wait_until(&mut self, time: Allowance) {
        self.limits.answer = time.whole;
        self.deadline = Some(time.until);
    }

    pub(crate) fn is_event_stream(&self) -> bool {
        matches!(self.framing, Framing::Events { .. })
    }

    /// Reconnection time of the last event, in milliseconds.
    pub(crate) fn retry(&self) -> Option<u64> {
        match &self.framing {
            Framing::Events { decoder, .. } => decoder.retry(),
            Framing::Json | Framing::Fixed { .. } => None,
        }
    }

    pub(crate) fn last_id(&self) -> Option<Vec<u8>> {
        match &self.framing {
            Framing::Events { decoder, .. } => Some(decoder.last_id().to_vec()),
            Framing::Json | Framing::Fixed { .. } => None,
        }
    }

    /// Whether the whole body has been read.
    pub(crate) fn is_complete(&self) -> bool {
        self.ended && !matches!(self.framing, Framing::Fixed { .. })
    }

    /// Returns the connection to the pool after the last relevant message.
    pub(crate) fn release(self, pool: &Pool, key: u64) {
        let Self { connection, ended, framing, content, .. } = self;
        match (ended, framing) {
            // The pool reads the rest of a stream without decoding it.
            (false, _) if content.is_some() => {}
            (true, Framing::Json | Framing::Events { .. }) => {
                if connection.is_clean() {
                    pool.put(key, connection, None);
                }
            }
            (false, Framing::Events { decoder, .. }) => pool.put(key, connection, Some(decoder)),
            (false, Framing::Json) | (_, Framing::Fixed { .. }) => {}
        }
    }

    /// Deadline of the next message.
    pub(super) fn wait(&self) -> Allowance {
        let whole = self.limits.answer;
        Allowance { until: self.deadline.unwrap_or_else(|| Instant::now() + whole), whole }
    }

    /// Whether a stream with event ids broke between two messages.
    fn ended_between_events(&self) -> bool {
        match &self.framing {
            Framing::Events { decoder, .. } => !self.inside && !decoder.last_id().is_empty(),
            Framing::Json | Framing::Fixed { .. } => false,
        }
    }
}

/// Sends the request on a pooled connection, or on a new one if there is none.
pub(crate) async fn exchange(
    session: &Session,
    pool: &Pool,
    request: &HttpRequest,
    limits: Limits,
) -> Result<HttpExchange, HttpRefused> {
    let now = clock::now();
    while let Some(mut connection) = pool.take(session, now) {
        match connection.send_request(request, limits.first, limits.answer).await {
            Ok(head) if redirect::keeps_method(head.status) => {
                let answered = (connection, head);
                let following = follow(session, request, limits, answered);
                let Redirected { mut connection, head, .. } = Box::pin(following).await?;
                // This connection may lead to a different path or port than the pool's other connections.
                connection.close_after_response();
                return accept(session, connection, &head, limits).await;
            }
            Ok(head) => return accept(session, connection, &head, limits).await,
            Err(SendError::Stale) => {}
            Err(SendError::Failed(cause)) => return Err(HttpRefused::new(cause, Sent::Maybe)),
        }
    }
    // Boxed, because this rarely used future is large and would be part of every waiting call.
    Box::pin(fresh(session, request, limits)).await
}

/// Sends the request on a new connection.
pub(crate) async fn fresh(
    session: &Session,
    request: &HttpRequest,
    limits: Limits,
) -> Result<HttpExchange, HttpRefused> {
    let (connection, head) = send(session, request, limits).await?;
    accept(session, connection, &head, limits).await
}

/// Sends the request on a new connection, follows its redirects and returns the head of the response.
pub(crate) async fn send(
    session: &Session,
    request: &HttpRequest,
    limits: Limits,
) -> Result<(Box<Connection>, ResponseHead), HttpRefused> {
    let Redirected { mut connection, head, moved } =
        send_and_follow(session, request, limits).await?;
    if moved.is_some() {
        connection.close_after_response();
    }
    Ok((connection, head))
}

/// Same as [`send`], but also returns the endpoint to which the request was redirected.
pub(crate) async fn send_and_follow(
    session: &Session,
    request: &HttpRequest,
    limits: Limits,
) -> Result<Redirected, HttpRefused> {
    let (connection, head) = send_once(&session.endpoint, request, limits).await?;
    if redirect::keeps_method(head.status) {
        let following = follow(session, request, limits, (connection, head));
        return Box::pin(following).await;
    }
    Ok(Redirected { connection, head, moved: None })
}

/// Response to a request, after its redirects.
pub(crate) struct Redirected {
    pub(crate) connection: Box<Connection>,
    pub(crate) head: ResponseHead,
    /// Endpoint that answered, if it differs from the session's.
    pub(crate) moved: Option<Arc<Endpoint>>,
}

/// Maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 3;

/// Follows the redirects of a response to `request`.
async fn follow(
    session: &Session,
    request: &HttpRequest,
    limits: Limits,
    (mut connection, mut head): (Box<Connection>, ResponseHead),
) -> Result<Redirected, HttpRefused> {
    let mut endpoint = Arc::clone(&session.endpoint);
    let mut count = 0;
    while redirect::keeps_method(head.status)
        && let Some(location) = head.location.take()
    {
        // A redirected request was not executed.
        let refused = |cause| HttpRefused::new(cause, Sent::No);
        count += 1;
        if count > MAX_REDIRECTS {
            let why = "it is one of more than 3 redirects in a row; set url to its target";
            return Err(refused(redirect::refusal(&endpoint, head.status, &location, why)));
        }
        let next = redirect::next_endpoint(&endpoint, head.status, &location).await;
        endpoint = Arc::new(next.map_err(refused)?);
        (connection, head) = send_once(&endpoint, &request.moved_to(&endpoint), limits).await?;
    }
    let moved = (count > 0).then_some(endpoint);
    Ok(Redirected { connection, head, moved })
}

/// Sends the request on a new connection to this endpoint.
async fn send_once(
    endpoint: &Endpoint,
    request: &HttpRequest,
    limits: Limits,
) -> Result<(Box<Connection>, ResponseHead), HttpRefused> {
    let opening = Connection::open(endpoint);
    // An expired deadline counts as a missing answer, not as a failure to connect.
    let opened = tokio::time::timeout_at(limits.first.into(), opening).await;
    let late = |_| Err(Cause::NoAnswer { limit: limits.answer });
    let mut connection = opened.unwrap_or_else(late).map_err(HttpRefused::unsent)?;
    match connection.send_request(request, limits.first, limits.answer).await {
        Ok(head) => Ok((connection, head)),
        Err(SendError::Stale) => {
            let no_answer = || Cause::NoAnswerAtAll { reason: "".into() };
            let cause = connection.refused_with_alert().unwrap_or_else(no_answer);
            Err(HttpRefused::new(cause, Sent::No))
        }
        Err(SendError::Failed(cause)) => Err(HttpRefused::new(cause, Sent::Maybe)),
    }
}

/// Checks the head of a response and selects the framing.
pub(crate) async fn accept(
    session: &Session,
    connection: Box<Connection>,
    head: &ResponseHead,
    limits: Limits,
) -> Result<HttpExchange, HttpRefused> {
    let content_type = head.content_type.as_deref().unwrap_or_default();
    let json = is_media_type(content_type, b"application/json");
    let refused = |cause| Err(HttpRefused::new(cause, Sent::Maybe));
    let content = match head.content_encoding.as_deref().map(ContentDecoder::of) {
        None => None,
        Some(Ok(content)) => content.map(Box::new),
        Some(Err(UnknownCoding)) => {
            let found = head.content_encoding.as_deref().unwrap_or_default();
            return refused(Cause::Compressed { found: session.server_log().quote(found) });
        }
    };
    let exchange =
        |framing| HttpExchange { content, ..HttpExchange::new(connection, framing, limits) };
    if matches!(head.status, 202 | 204) {
        return refused(Cause::AcceptedOnly { status: head.status });
    }
    if let (300..=399, Some(location)) = (head.status, &head.location) {
        // Other redirects were refused earlier.
        let why = "only 307 and 308 keep the request; set url to its target";
        let cause = redirect::refusal(&session.endpoint, head.status, location, why);
        return refused(cause);
    }
    if !matches!(head.status, 200..=299) {
        return Box::pin(refusal(exchange(Framing::Json), head, json, session)).await;
    }
    if json {
        return Ok(exchange(Framing::Json));
    }
    if is_event_stream(head) {
        return Ok(exchange(Framing::Events { decoder: Box::default(), skip: false }));
    }
    let found = match content_type {
        [] => "no content type".into(),
        found => session.server_log().quote(found),
    };
    let body = Box::pin(beginning(&mut exchange(Framing::Json))).await;
    let snippet = body.quoted(session.server_log());
    refused(Cause::ContentType { found, snippet })
}

pub(crate) fn is_event_stream(head: &ResponseHead) -> bool {
    is_media_type(head.content_type.as_deref().unwrap_or_default(), b"text/event-stream")
}

/// Compares the media type before its parameters, ignoring case.
fn is_media_type(value: &[u8], name: &[u8]) -> bool {
    value.split_at_checked(name.len()).is_some_and(|(start, rest)| {
        start.eq_ignore_ascii_case(name)
            && rest.first().is_none_or(|byte| matches!(byte, b';' | b' ' | b'\t'))
    })
}

/// Maximum wait for a server to accept a notification.
const NOTIFY_LIMIT: Duration = Duration::from_secs(2);

/// Reads the next complete message of at most `limit` bytes.
pub(crate) async fn next_message(
    exchange: &mut HttpExchange,
    limit: usize,
) -> Result<Option<Vec<u8>>, Cause> {
    let mut message = Vec::new();
    while let Some(event) = exchange.next().await? {
        match event {
            AnswerPart::End => return Ok(Some(message)),
            AnswerPart::Data(data) if message.len() + data.len() > limit => {
                return Err(Cause::TooLong { limit });
            }
            AnswerPart::Data(data) => message.extend_from_slice(&data),
            AnswerPart::Interrupted => {}
        }
    }
    Ok(None)
}

/// Sends a request on the proxy's own behalf and returns the response, at most `room` bytes. `events` receives the
/// other messages of its stream.
pub(crate) async fn fetch(
    session: &Session,
    events: &ServerEvents,
    params: Params,
    family: ProtocolFamily,
    limit: Duration,
    room: usize,
) -> Result<Vec<u8>, HttpRefused> {
    let (id, limits) = (request::fresh_id(), Limits::now(limit));
    let request = session.post(&params.lines(family), params.body(id, family));
    let failed = |cause| HttpRefused::new(cause, Sent::Maybe);
    let mut exchange = fresh(session, &request, limits).await?;
    if let Some(refused) = exchange.foreign_error(id) {
        return Err(refused);
    }
    while let Some(message) = next_message(&mut exchange, room).await.map_err(failed)? {
        match ServerResponse::parse(&message) {
            Some(response) if response.answers(id) => return Ok(message),
            Some(_) => {}
            None => {
                if let Err(error) = serde_json::from_slice::<IgnoredAny>(&message) {
                    let reason = session.server_log().quote(error.to_string());
                    return Err(failed(Cause::Unreadable { reason }));
                }
                events.observe(&message);
            }
        }
    }
    Err(failed(Cause::NoAnswerAtAll { reason: "its stream held no response".into() }))
}

/// Sends a notification on a best-effort basis.
pub(crate) async fn notify(session: &Session, json: Bytes) {
    let request = session.post(b"", (json.into(), Default::default()));
    let _ = tokio::time::timeout(NOTIFY_LIMIT, send(session, &request, Limits::now(NOTIFY_LIMIT)))
        .await;
}

/// Maximum number of bytes read from the body of an HTTP error.
pub const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// Reason why there is no exchange.
#[derive(Debug)]
pub(crate) struct HttpRefused {
    pub(crate) cause: Cause,
    pub(crate) sent: Sent,
    /// The server does not know the session, so it executed nothing.
    pub(crate) session_unknown: bool,
}

impl HttpRefused {
    pub(super) fn new(cause: Cause, sent: Sent) -> Self {
        Self { cause, sent, session_unknown: false }
    }

    /// Refusal for an unknown session, with the server's own `reason`.
    pub(crate) fn session_unknown(reason: Arc<str>) -> Self {
        let cause = Cause::SessionLost { reason };
        Self { session_unknown: true, ..Self::new(cause, Sent::Maybe) }
    }

    pub(crate) fn unsent(cause: Cause) -> Self {
        Self::new(cause, Sent::No)
    }
}

/// Handles an HTTP error status. A JSON-RPC error in its body is a valid response.
pub(super) async fn refusal(
    mut exchange: HttpExchange,
    head: &ResponseHead,
    json: bool,
    of: &Session,
) -> Result<HttpExchange, HttpRefused> {
    let status = head.status;
    let body = beginning(&mut exchange).await;
    let (challenged, server_log) = (of.challenged(head), of.server_log());
    // Common servers report an unknown session as 400 with a text.
    let mentions = |word: &str| memchr::memmem::find(&body.bytes, word.as_bytes()).is_some();
    let unknown = match (status, of.kind()) {
        (404 | 410, SessionKind::Session) => true,
        // Modern servers have no sessions, so a legacy server must have replaced this one.
        (400, SessionKind::Session | SessionKind::Modern) => {
            mentions(SESSION) || mentions(NOT_INITIALIZED)
        }
        (400, SessionKind::Neither) => mentions(NOT_INITIALIZED),
        // The server rejected the token; a new session uses another token.
        (401, _) => of.is_logged_in(),
        (_, SessionKind::Session | SessionKind::Modern | SessionKind::Neither) => false,
    };
    // The error page may echo the request.
    let masked = server_log.secrets.mask(&body.bytes, body.cut);
    let error = RpcError::read(&masked);
    let throttled = throttled(head);
    let is_answer = error.as_ref().is_some_and(RpcError::names_a_request);
    if json && !unknown && is_answer && throttled.is_none() {
        return Ok(exchange.with_body(Bytes::from(masked.into_owned()), status));
    }
    let mut message = error.map_or_else(|| "".into(), |error| server_log.quote(&*error.message));
    if message.is_empty() {
        let body = body.quoted(server_log);
        peer_line!(info, server_log, server = %server_log.name, status, %body, "HTTP error of the server");
        message = exchange.connection.proxy_note(status);
    }
    let cause = challenged.unwrap_or(match throttled {
        Some(after) => Cause::Throttled { status, after, message },
        None => Cause::Status { status, message },
    });
    Err(HttpRefused { cause, sent: Sent::Maybe, session_unknown: unknown })
}

/// Whether the server rate-limits requests: 429, or 503 with a retry time. Returns this time, if stated. A JSON-RPC
/// error in the body is only quoted, because the delay is part of the refusal.
fn throttled(head: &ResponseHead) -> Option<Option<Duration>> {
    let after = head.retry_after.as_deref();
    let after = after.and_then(|value| http1::retry_after(value, SystemTime::now()));
    (head.status == 429 || (head.status == 503 && after.is_some())).then_some(after)
}

/// Reason why a long-lived stream could not be opened.
pub(crate) enum StreamRefusal {
    /// The server does not offer the stream.
    Unsupported(Cause),
    Unreachable(Cause),
    /// A later attempt may succeed, after this time if the server stated one.
    Temporary(Cause, Option<Duration>),
}

/// Opens a long-lived event stream: the GET of a legacy session, or a modern subscription.
pub(crate) async fn open_stream(
    session: &Session,
    request: &HttpRequest,
    limits: Limits,
) -> Result<HttpExchange, StreamRefusal> {
    let by_cause = |refused: HttpRefused| match refused.cause {
        cause if cause.affects_later_connections() => StreamRefusal::Unreachable(cause),
        Cause::Throttled { status, after, message } => {
            StreamRefusal::Temporary(Cause::Throttled { status, after, message }, after)
        }
        cause @ (Cause::NeedsLogin { .. }
        | Cause::AcceptedOnly { .. }
        | Cause::ContentType { .. }) => StreamRefusal::Unsupported(cause),
        // With 409, the server has not yet detected that the old stream is closed.
        cause @ Cause::Status { status, .. } => match status {
            408 | 409 | 425 | 500 | 502..=599 => StreamRefusal::Temporary(cause, None),
            // The token may have been renewed in the meantime.
            401 if session.is_logged_in() => StreamRefusal::Temporary(cause, None),
            _ => StreamRefusal::Unsupported(cause),
        },
        cause => StreamRefusal::Temporary(cause, None),
    };
    let (connection, head) = send(session, request, limits).await.map_err(by_cause)?;
    let status = head.status;
    let mut stream = accept(session, connection, &head, limits).await.map_err(by_cause)?;
    if stream.is_event_stream() {
        return Ok(stream);
    }
    // A JSON-RPC error in the body of an HTTP error is a response too.
    let error = match next_message(&mut stream, MAX_REFUSAL_BYTES).await {
        Ok(message) => message.and_then(|it| ServerResponse::parse(&it)?.outcome.err()),
        Err(_) => None,
    };
    let is_lasting = error.as_ref().is_none_or(|error| lifecycle::is_lasting(error.code));
    let message = error.map(|error| session.server_log().quote(error.message)).unwrap_or_default();
    let cause = Cause::Status { status, message };
    Err(match matches!(status, 500 | 502..=599) || !is_lasting {
        true => StreamRefusal::Temporary(cause, None),
        false => StreamRefusal::Unsupported(cause),
    })
}

/// Reads as much of the body as an error may quote, but not the rest.
pub(super) async fn beginning(exchange: &mut HttpExchange) -> Beginning {
    let mut bytes = Vec::new();
    loop {
        match exchange.next().await {
            Ok(Some(AnswerPart::Data(data))) => {
                let room = MAX_REFUSAL_BYTES.saturating_sub(bytes.len());
                bytes.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
                if data.len() > room {
                    return Beginning { bytes, cut: true };
                }
            }
            Ok(Some(AnswerPart::End | AnswerPart::Interrupted) | None) => {
                return Beginning { bytes, cut: false };
            }
            Err(_) => return Beginning { bytes, cut: true },
        }
    }
}

/// Beginning of a body.
pub(super) struct Beginning {
    bytes: Vec<u8>,
    cut: bool,
}

impl Beginning {
    pub(super) fn quoted(&self, server_log: &ServerLog) -> Arc<str> {
        server_log.secrets.quote_cut(&self.bytes, self.cut)
    }
}

/// Error code that servers use to refuse an unknown session.
const SESSION_ERROR_CODE: &str = "-32001";
/// Maximum wait for the first event of a stream, in which a server may deny its session.
const DENIAL_WAIT: Duration = Duration::from_secs(1);
/// Maximum size of a first part that is searched for this code. Results are usually larger, and are not searched.
const MAX_SESSION_ERROR_BYTES: usize = 512;
/// Part of the texts with which common servers reject an unknown session ("Session not found", "No valid session ID").
const SESSION: &str = "ession";
/// Part of the text with which a restarted server without sessions rejects a request ("Server not initialized").
const NOT_INITIALIZED: &str = "ot initialized";

/// JSON-RPC error in a response.
struct RpcError<'a> {
    /// The raw id, if it is not null.
    id: Option<&'a RawValue>,
    is_2_0: bool,
    code: Option<&'a RawValue>,
    message: Cow<'a, str>,
}

impl<'a> RpcError<'a> {
    /// The error, if the body is a message with an `error` object.
    fn read(body: &'a [u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Response<'a> {
            #[serde(borrow)]
            id: Option<&'a RawValue>,
            #[serde(borrow)]
            jsonrpc: Option<Cow<'a, str>>,
            #[serde(borrow)]
            error: Error<'a>,
        }
        #[derive(Deserialize)]
        struct Error<'a> {
            #[serde(borrow)]
            code: Option<&'a RawValue>,
            #[serde(borrow)]
            message: Option<&'a RawValue>,
        }
        let Response { id, jsonrpc, error: Error { code, message } } =
            serde_json::from_slice(body).ok()?;
        let message = message.and_then(|raw| string(raw.get())).unwrap_or_default();
        Some(Self { id, is_2_0: jsonrpc.as_deref() == Some("2.0"), code, message })
    }

    /// Whether the error may be the response to the request; the reader compares the ids. If not, the message is
    /// reported with the status.
    fn names_a_request(&self) -> bool {
        self.is_2_0 && self.request_id().is_some()
    }

    fn request_id(&self) -> Option<u64> {
        self.id.and_then(|id| jsonrpc::numeric_id(id.get().as_bytes()))
    }

    /// Whether the error denies the session. The code alone is not sufficient, because it is also used for a timeout.
    fn denies_session(&self) -> bool {
        self.code.is_some_and(|code| code.get() == SESSION_ERROR_CODE)
            && (self.message.contains(SESSION) || self.message.contains(NOT_INITIALIZED))
    }
}

/// Maximum number of resumptions of one response stream.
const MAX_RESUMES: u32 = 10_000;
/// Maximum number of consecutive failed attempts.
const MAX_FAILURES: u32 = 5;
/// Delay before a stream is resumed, unless the server sets one.
const RETRY: Duration = Duration::from_secs(1);
/// Minimum delay, regardless of the server's setting.
const MIN_RETRY: Duration = Duration::from_millis(50);

/// Position in an event stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    /// Id of the last event; never empty, and valid as a header value.
    id: Vec<u8>,
    retry: Option<Duration>,
    /// Number of resumptions.
    times: u32,
}

type Resumed = Result<(HttpExchange, Box<Cursor>), Cause>;

/// Stream that is being resumed.
pub(crate) struct Resuming {
    attempts: Pin<Box<dyn Future<Output = Resumed>>>,
    /// Deadline of the next message.
    time: Allowance,
}

impl Cursor {
    /// Position of an ended stream; `before` is the position at which the stream was resumed. `None` without event ids.
    pub(crate) fn of(stream: &HttpExchange, before: Option<Box<Self>>) -> Option<Box<Self>> {
        let last_id = stream.last_id()?;
        let mut cursor = match before {
            Some(cursor) => cursor,
            None if last_id.is_empty() => return None,
            None => Box::default(),
        };
        if !last_id.is_empty() {
            cursor.id = last_id;
        }
        cursor.retry = stream.retry().map(Duration::from_millis).or(cursor.retry);
        HeaderValue::from_bytes(&cursor.id).is_ok().then_some(cursor)
    }
}

impl Resuming {
    /// Starts to resume `ended`. `session` is called before each attempt; `None` means that the connection was replaced.
    pub(crate) fn begin(
        ended: &HttpExchange,
        cursor: Box<Cursor>,
        session: impl Fn() -> Option<Arc<Session>> + 'static,
    ) -> Self {
        let time = ended.wait();
        Self { attempts: Box::pin(attempts(cursor, time.whole, session)), time }
    }

    /// Waits for the resumed stream and its position. Cancel-safe.
    pub(crate) async fn resumed(&mut self) -> Resumed {
        match tokio::time::timeout_at(self.time.until.into(), &mut self.attempts).await {
            Ok(Ok((mut stream, cursor))) => {
                stream.wait_until(self.time);
                Ok((stream, cursor))
            }
            Ok(Err(cause)) => Err(cause),
            Err(_) => Err(Cause::NoAnswer { limit: self.time.whole }),
        }
    }

    /// Sets the deadline of the next message.
    pub(crate) fn wait_until(&mut self, time: Allowance) {
        self.time = time;
    }
}

async fn attempts(
    mut cursor: Box<Cursor>,
    answer: Duration,
    session: impl Fn() -> Option<Arc<Session>>,
) -> Resumed {
    let failed = |why: &str| Cause::NoAnswerAtAll {
        reason: format!("its stream could not be resumed: {why}").into(),
    };
    let mut failures = 0;
    while cursor.times < MAX_RESUMES {
        cursor.times += 1;
        tokio::time::sleep(cursor.retry.unwrap_or(RETRY).max(MIN_RETRY)).await;
        let session = session().ok_or_else(|| failed("the session is over"))?;
        let cause = match fresh(&session, &session.get(&cursor.id), Limits::now(answer)).await {
            Ok(stream) if stream.is_event_stream() => return Ok((stream, cursor)),
            Ok(_) => return Err(failed("the server did not answer with an event stream")),
            Err(refused) => refused.cause,
        };
        failures += 1;
        if failures == MAX_FAILURES || !is_transient(&cause) {
            return Err(failed(&cause.to_string()));
        }
    }
    Err(failed(&format!("it ended {MAX_RESUMES} times")))
}

/// Whether a retry may succeed. With 409, the server may not have detected yet that the old connection is closed.
fn is_transient(cause: &Cause) -> bool {
    match cause {
        Cause::Status { status, .. } => matches!(status, 409 | 500..=599),
        Cause::Throttled { .. }
        | Cause::Connect { .. }
        | Cause::NoAnswerAtAll { .. }
        | Cause::CutOff { .. } => true,
        _ => false,
    }
}
