//! Calls over streamable HTTP: one POST each, on a connection of the worker's own pool.
//!
//! Owns the pool, the request, and the framing of the answer (JSON or event stream). The session's
//! id and version come from the lifecycle; what a message says is deliberately not read here.
//!
//! ```text
//! idle ─ take ▶ sending ─ head ▶ streaming ─ end of body ▶ idle
//!                  │                 ├─ finish: rest unread ▶ draining ─ next take ▶ idle
//!                  │                 └─ dropped: the call is cancelled ▶ closed
//!                  └─ stale before a byte was sent ▶ another connection
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::connection::{Connection, HttpRequest, Quiet, SendError};
use super::error::{Cause, Sent};
use super::peer::Peer;
use crate::io::clock;
use crate::io::deadline::Allowance;
use crate::io::http1::ResponseHead;
use crate::wire::sse;

mod resume;
mod session;

pub(super) use resume::{Cursor, Resuming};
pub(super) use session::{Session, SessionKind};

/// Most idle connections kept for one upstream by one worker.
pub const MAX_IDLE: usize = 64;
/// Longest time a connection is kept idle. Below the 5 s after which common servers close one
/// themselves, so that a call seldom meets a connection that is being closed.
pub const MAX_IDLE_AGE: Duration = Duration::from_secs(4);
/// Most bytes of a refusal's body that are read.
pub const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// Longest silence in the middle of a message, once its first byte has come.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);
/// Most bytes of an event stream's rest that are read so that its connection can be used again.
const MAX_DRAIN_BYTES: usize = 64 * 1024;

/// One worker's connections to all HTTP upstreams. Not `Send`: it lives and dies with its thread.
#[derive(Default)]
pub struct Pool {
    idle: RefCell<BTreeMap<u64, Vec<Idle>>>,
}

struct Idle {
    connection: Box<Connection>,
    /// Of an event stream whose answer was taken: what may still come is nothing that counts.
    rest: Option<Box<sse::Decoder>>,
    since: Instant,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} idle)", self.idle())
    }
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Closes connections idle for longer than [`MAX_IDLE_AGE`]. For the worker to call now and
    /// then; a call to the same upstream does the same for that upstream.
    pub fn sweep(&self) {
        let now = clock::now();
        self.idle.borrow_mut().retain(|_, list| {
            list.retain(|idle| now.duration_since(idle.since) < MAX_IDLE_AGE);
            !list.is_empty()
        });
    }

    /// How many connections are idle.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.idle.borrow().values().map(Vec::len).sum()
    }

    /// The connection used last that is still good. One whose stream has not come to its end yet
    /// stays.
    fn take(&self, session: &Session, now: Instant) -> Option<Box<Connection>> {
        let mut idle = self.idle.borrow_mut();
        let list = idle.get_mut(&session.key)?;
        let mut at = list.len();
        while at > 0 {
            at -= 1;
            let last = list.get_mut(at)?;
            if now.duration_since(last.since) >= MAX_IDLE_AGE {
                // Those before it are older.
                list.drain(..=at);
                return None;
            }
            match last.look() {
                Look::Good => return Some(list.remove(at).connection),
                Look::Bad => drop(list.remove(at)),
                Look::Spoke => {
                    drop(list.remove(at));
                    let peer = session.peer();
                    if peer.may_log() {
                        tracing::warn!(server = %peer.name, "a server spoke unasked on a connection, which is closed");
                    }
                }
                Look::Later => {}
            }
        }
        None
    }

    fn put(&self, key: u64, mut connection: Box<Connection>, rest: Option<Box<sse::Decoder>>) {
        connection.rest();
        let mut idle = self.idle.borrow_mut();
        let list = idle.entry(key).or_default();
        if list.len() >= MAX_IDLE {
            list.remove(0);
        }
        list.push(Idle { connection, rest, since: clock::lately() });
    }
}

/// What an idle connection is good for.
enum Look {
    Good,
    Later,
    Bad,
    /// Something came that nobody asked for: an answer ahead of its request, or a second one.
    Spoke,
}

impl Idle {
    fn look(&mut self) -> Look {
        let mut cx = Context::from_waker(Waker::noop());
        let mut read = 0;
        if self.rest.as_mut().is_some_and(|rest| !is_silent(rest)) {
            return Look::Spoke;
        }
        // The end of an event stream whose last message was taken may not have been read yet.
        while !self.connection.has_ended() {
            match self.connection.poll_body(&mut cx) {
                Poll::Pending => return Look::Later,
                Poll::Ready(None) => break,
                Poll::Ready(Some(Ok(data))) if read + data.len() <= MAX_DRAIN_BYTES => {
                    read += data.len();
                    let Some(rest) = &mut self.rest else { return Look::Spoke };
                    rest.push(data);
                    if !is_silent(rest) {
                        return Look::Spoke;
                    }
                }
                Poll::Ready(Some(Ok(_) | Err(_))) => return Look::Bad,
            }
        }
        match self.connection.quiet() {
            Quiet::Silent => Look::Good,
            Quiet::Closed => Look::Bad,
            Quiet::Spoke => Look::Spoke,
        }
    }
}

/// Whether what came of an event stream so far holds no further message.
fn is_silent(rest: &mut sse::Decoder) -> bool {
    loop {
        match rest.next_item() {
            Ok(None) => return true,
            // An event without data, which carries an id.
            Ok(Some(sse::Item::End)) => {}
            Ok(Some(sse::Item::Data(_))) | Err(_) => return false,
        }
    }
}

/// Time limits of one exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Until the first byte of its first message, from connecting on.
    first: Instant,
    /// Until the first byte of each further one.
    answer: Duration,
    /// Between the bytes of a message.
    stall: Duration,
}

impl Limits {
    /// For the first message what is left of that time, for each further one all of it.
    pub(super) fn of(time: Allowance) -> Self {
        Self { first: time.until, answer: time.whole, stall: STALL_LIMIT }
    }

    /// That time for each message, from now on.
    pub(super) fn now(answer: Duration) -> Self {
        Self::of(Allowance::now(answer))
    }
}

/// Why there is no exchange.
#[derive(Debug)]
pub(super) struct HttpRefused {
    pub(super) cause: Cause,
    pub(super) sent: Sent,
    /// The server does not know the session: it certainly executed nothing.
    pub(super) session_unknown: bool,
}

impl HttpRefused {
    fn new(cause: Cause, sent: Sent) -> Self {
        Self { cause, sent, session_unknown: false }
    }

    pub(super) fn unsent(cause: Cause) -> Self {
        Self::new(cause, Sent::No)
    }
}

/// The bytes of an answer, or its framing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The next bytes of the current message.
    Data(Bytes),
    /// The message is complete.
    End,
}

/// One request and its answer on one connection.
pub(super) struct HttpExchange {
    connection: Box<Connection>,
    framing: Framing,
    limits: Limits,
    /// When the present wait ends; that of a wait after the first is set when it begins.
    deadline: Option<Instant>,
    inside: bool,
    ended: bool,
}

enum Framing {
    Json,
    Events {
        decoder: Box<sse::Decoder>,
        skip: bool,
    },
    /// A refusal's body that turned out to be a JSON-RPC error.
    Fixed(Option<Bytes>),
}

/// Sends the request on a pooled connection, or on a new one if there is no good one.
pub(super) async fn exchange(
    session: &Session,
    pool: &Pool,
    request: &HttpRequest,
    limits: Limits,
) -> Result<HttpExchange, HttpRefused> {
    let now = clock::now();
    while let Some(mut connection) = pool.take(session, now) {
        match connection.send(request, limits.first, limits.answer).await {
            Ok(head) => return accept(session, connection, &head, limits).await,
            Err(SendError::Stale) => {}
            Err(SendError::Failed(cause)) => return Err(HttpRefused::new(cause, Sent::Maybe)),
        }
    }
    // Rare, and large: what a call keeps while it waits is to be small.
    Box::pin(fresh(session, request, limits)).await
}

/// Sends the request on a connection of its own.
pub(super) async fn fresh(
    session: &Session,
    request: &HttpRequest,
    limits: Limits,
) -> Result<HttpExchange, HttpRefused> {
    let (connection, head) = send(session, request, limits).await?;
    accept(session, connection, &head, limits).await
}

/// Sends the request on a connection of its own and leaves the answer's head to the caller.
pub(super) async fn send(
    session: &Session,
    request: &HttpRequest,
    limits: Limits,
) -> Result<(Box<Connection>, ResponseHead), HttpRefused> {
    let opening = Connection::open(&session.endpoint);
    // That there was no time left says nothing of the server.
    let opened = tokio::time::timeout_at(limits.first.into(), opening).await;
    let late = |_| Err(Cause::NoAnswer { limit: limits.answer });
    let mut connection = opened.unwrap_or_else(late).map_err(HttpRefused::unsent)?;
    match connection.send(request, limits.first, limits.answer).await {
        Ok(head) => Ok((connection, head)),
        Err(SendError::Stale) => {
            Err(HttpRefused::new(Cause::NoAnswerAtAll { reason: "".into() }, Sent::No))
        }
        Err(SendError::Failed(cause)) => Err(HttpRefused::new(cause, Sent::Maybe)),
    }
}

/// Reads the head: is this an answer, and how is it framed?
pub(super) async fn accept(
    session: &Session,
    connection: Box<Connection>,
    head: &ResponseHead,
    limits: Limits,
) -> Result<HttpExchange, HttpRefused> {
    let content_type = head.content_type.as_deref().unwrap_or_default();
    let json = is_media_type(content_type, b"application/json");
    let exchange = |framing| HttpExchange {
        connection,
        framing,
        limits,
        deadline: Some(limits.first),
        inside: false,
        ended: false,
    };
    let refused = |cause| Err(HttpRefused::new(cause, Sent::Maybe));
    let encoding = head.content_encoding.as_deref();
    if let Some(found) = encoding.filter(|name| !name.eq_ignore_ascii_case(b"identity")) {
        return refused(Cause::Compressed { found: session.peer().quote(found) });
    }
    if matches!(head.status, 202 | 204) {
        return refused(Cause::AcceptedOnly { status: head.status });
    }
    if !matches!(head.status, 200..=299) {
        return Box::pin(exchange(Framing::Json).refusal(head, json, session)).await;
    }
    if json {
        return Ok(exchange(Framing::Json));
    }
    if is_event_stream(head) {
        return Ok(exchange(Framing::Events { decoder: Box::default(), skip: false }));
    }
    let found = match content_type {
        [] => "no content type".into(),
        found => session.peer().quote(found),
    };
    let body = Box::pin(exchange(Framing::Json).head_of_body()).await;
    let snippet = body.quoted(session.peer());
    refused(Cause::ContentType { found, snippet })
}

/// Whether an answer is framed as events.
pub(super) fn is_event_stream(head: &ResponseHead) -> bool {
    is_media_type(head.content_type.as_deref().unwrap_or_default(), b"text/event-stream")
}

/// The media type before its parameters, in any case.
fn is_media_type(value: &[u8], name: &[u8]) -> bool {
    value.split_at_checked(name.len()).is_some_and(|(start, rest)| {
        start.eq_ignore_ascii_case(name)
            && rest.first().is_none_or(|byte| matches!(byte, b';' | b' ' | b'\t'))
    })
}

impl HttpExchange {
    /// The next bytes of the answer; `None` at its end. An event stream whose connection breaks
    /// between two events has ended there, if it can be taken up again.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, Cause> {
        let event = poll_fn(|cx| self.poll_next(cx)).await;
        if !matches!(event, Ok(None)) {
            self.deadline = None;
        }
        event
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Event>, Cause>> {
        loop {
            if let Some(event) = self.decoded()? {
                return Poll::Ready(Ok(Some(event)));
            }
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            match self.connection.poll_body(cx) {
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
                        self.inside = true;
                        return Poll::Ready(Ok(Some(Event::Data(data))));
                    }
                    Framing::Events { decoder, .. } => decoder.push(data),
                    Framing::Fixed(_) => {}
                },
            }
        }
    }

    /// What the framing holds ready.
    fn decoded(&mut self) -> Result<Option<Event>, Cause> {
        match &mut self.framing {
            Framing::Json => Ok(None),
            Framing::Fixed(body) => {
                let body = body.take();
                self.inside |= body.is_some();
                self.ended |= body.is_some();
                match body {
                    Some(body) => Ok(Some(Event::Data(body))),
                    None if std::mem::take(&mut self.inside) => Ok(Some(Event::End)),
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
                            // Messages have the default type; what else a server sends beside
                            // them is for others.
                            *skip |= !matches!(decoder.event(), b"" | b"message");
                            if !*skip {
                                self.inside = true;
                                return Ok(Some(Event::Data(data)));
                            }
                        }
                        sse::Item::End => {
                            // An event with empty data only carries an id to resume from.
                            let message = std::mem::take(&mut self.inside);
                            if !std::mem::take(skip) && message {
                                return Ok(Some(Event::End));
                            }
                        }
                    }
                }
                Ok(None)
            }
        }
    }

    fn end_of_body(&mut self) -> Result<Option<Event>, Cause> {
        let inside = std::mem::take(&mut self.inside);
        match &self.framing {
            Framing::Json if inside => Ok(Some(Event::End)),
            Framing::Json => Err(Cause::NoAnswerAtAll { reason: "the body is empty".into() }),
            Framing::Events { .. } if inside => Err(Cause::CutOff { reason: "".into() }),
            Framing::Events { .. } | Framing::Fixed(_) => Ok(None),
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

    /// Its next message has to begin in what is left of that time, each further one in all of it.
    pub(super) fn wait_until(&mut self, time: Allowance) {
        self.limits.answer = time.whole;
        self.deadline = Some(time.until);
    }

    /// True for an answer that is framed as events.
    pub(super) fn is_event_stream(&self) -> bool {
        matches!(self.framing, Framing::Events { .. })
    }

    /// The reconnection time that the stream's last event gave, in milliseconds.
    pub(super) fn retry(&self) -> Option<u64> {
        match &self.framing {
            Framing::Events { decoder, .. } => decoder.retry(),
            Framing::Json | Framing::Fixed(_) => None,
        }
    }

    /// The id of the stream's last event.
    pub(super) fn last_id(&self) -> Option<Vec<u8>> {
        match &self.framing {
            Framing::Events { decoder, .. } => Some(decoder.last_id().to_vec()),
            Framing::Json | Framing::Fixed(_) => None,
        }
    }

    /// True once the whole body was read.
    pub(super) fn is_complete(&self) -> bool {
        self.ended && !matches!(self.framing, Framing::Fixed(_))
    }

    /// Gives the connection back: the last message that matters was read.
    pub(super) fn release(self, pool: &Pool, key: u64) {
        let Self { connection, ended, framing, .. } = self;
        match (ended, framing) {
            (true, Framing::Json | Framing::Events { .. }) => {
                if connection.is_clean() {
                    pool.put(key, connection, None);
                }
            }
            (false, Framing::Events { decoder, .. }) => pool.put(key, connection, Some(decoder)),
            (false, Framing::Json) | (_, Framing::Fixed(_)) => {}
        }
    }

    /// A status that is no success: a JSON-RPC error in it is an answer all the same.
    async fn refusal(
        mut self,
        head: &ResponseHead,
        json: bool,
        of: &Session,
    ) -> Result<Self, HttpRefused> {
        let status = head.status;
        let body = self.head_of_body().await;
        let (challenged, peer) = (of.challenged(head), of.peer());
        // Common servers say it with 400 and words.
        let in_words = || memchr::memmem::find(&body.bytes, b"ession").is_some();
        let unknown = match (status, of.standing()) {
            (404, SessionKind::Session) => true,
            // A modern server would not speak of sessions: this one has become a legacy one.
            (400, SessionKind::Session | SessionKind::Modern) => in_words(),
            // The token is no good any more: a new session has another.
            (401, _) => of.is_logged_in(),
            (_, SessionKind::Session | SessionKind::Modern | SessionKind::Neither) => false,
        };
        if json && !unknown && is_rpc_error(&body.bytes) {
            // It is an error page all the same, and may echo the request.
            let masked = peer.secrets.mask(&body.bytes, body.cut);
            if is_rpc_error(&masked) {
                self.framing = Framing::Fixed(Some(Bytes::from(masked.into_owned())));
                return Ok(self);
            }
        }
        let cause =
            challenged.unwrap_or_else(|| Cause::Status { status, snippet: body.quoted(peer) });
        Err(HttpRefused { cause, sent: Sent::Maybe, session_unknown: unknown })
    }

    /// As much of the body as an error may quote or hold; what comes after it is left.
    async fn head_of_body(&mut self) -> Beginning {
        let mut bytes = Vec::new();
        loop {
            match self.next().await {
                Ok(Some(Event::Data(data))) => {
                    let room = MAX_REFUSAL_BYTES.saturating_sub(bytes.len());
                    bytes.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
                    if data.len() > room {
                        return Beginning { bytes, cut: true };
                    }
                }
                Ok(Some(Event::End) | None) => return Beginning { bytes, cut: false },
                Err(_) => return Beginning { bytes, cut: true },
            }
        }
    }
}

/// The beginning of a body.
struct Beginning {
    bytes: Vec<u8>,
    /// There was more.
    cut: bool,
}

impl Beginning {
    fn quoted(&self, peer: &Peer) -> Arc<str> {
        peer.secrets.quote_cut(&self.bytes, self.cut)
    }
}

/// Whether a refusal's body is a JSON-RPC error response.
fn is_rpc_error(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Response<'a> {
        #[serde(borrow)]
        error: Option<&'a RawValue>,
        jsonrpc: Option<&'a str>,
    }
    serde_json::from_slice::<Response<'_>>(body).is_ok_and(|response| {
        response.jsonrpc == Some("2.0")
            && response.error.is_some_and(|error| error.get().starts_with('{'))
    })
}
