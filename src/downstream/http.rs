//! `/mcp` and `/mcp/all`: MCP streamable HTTP, in both eras.
//!
//! Owns what is HTTP about it: media types, bodies, which era a request belongs to, and how a reply
//! becomes an answer. What is particular to an era is in `legacy` and `modern`;
//! what a message leads to is decided in `proxy::dispatch`. Host, Origin and the API key were
//! checked before a request gets here.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::downstream::body::{Body, Streamed};
use crate::downstream::events;
use crate::downstream::in_flight::{InFlight, Taken, Watched};
use crate::downstream::legacy::{self, SESSION_ID};
use crate::downstream::modern;
use crate::downstream::session::{Session, Sessions};
use crate::downstream::source::Source;
use crate::mcp::headers;
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::revisions::{Era, MODERN};
use crate::output::AnswerMember;
use crate::policy::Principal;
use crate::proxy::Worker;
use crate::proxy::caller::{Channel, Endpoint};
use crate::proxy::render;
use crate::proxy::reply::Piece;
use crate::wire::splice::Splice;

/// Where MCP is spoken: our four tools, and every upstream tool under a name of its own.
pub const PATHS: [&str; 2] = ["/mcp", ALL_PATH];
/// The path of direct mode.
const ALL_PATH: &str = "/mcp/all";

/// Largest request body: 16 MiB.
pub const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// A client has this long to send a request's body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(15);

/// Carries the protocol revision.
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static(headers::PROTOCOL_VERSION);
/// The type of an answer that names none. Nearly all are of this type, and a map of headers for
/// each of them costs more than to write it.
pub const UNNAMED_TYPE: &str = "application/json";

/// What one connection remembers between its requests.
#[derive(Debug, Default)]
pub struct ClientConnection {
    /// True once a request has come whole.
    pub used: Cell<bool>,
    /// The address of ours that it came to, where that is asked for.
    pub came_to: Cell<Option<SocketAddr>>,
    /// Where it comes from.
    pub source: Source,
    /// On whose behalf the present request is made, as its head proves; set before the request is answered.
    pub principal: RefCell<Principal>,
    /// The session last used, so that the shared table is not asked for each call.
    pub(super) session: RefCell<Option<Arc<Session>>>,
    /// The modern client that spoke last, so that one who says the same again costs less.
    pub(super) client: RefCell<Option<modern::Known>>,
    /// Its calls.
    pub(super) in_flight: Arc<InFlight>,
    /// What the last head said that came with a whole body.
    reading: Cell<Option<Reading>>,
    /// True if the present head was found to belong to that session.
    pub(super) belongs: Cell<bool>,
}

impl From<Source> for ClientConnection {
    /// A connection from there; nothing is known of it yet.
    fn from(source: Source) -> Self {
        Self { source, ..Self::default() }
    }
}

/// One request, and what it is answered from.
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
}

/// What a head says of a request, whoever its session is.
#[derive(Clone, Copy, Debug)]
struct Reading {
    endpoint: Endpoint,
    media: Media,
    is_json: bool,
    era: Option<Era>,
}

impl Reading {
    fn of(head: &Parts) -> Self {
        let endpoint = match head.uri.path() {
            ALL_PATH => Endpoint::All,
            _ => Endpoint::Search,
        };
        let headers = &head.headers;
        Self { endpoint, media: media(headers), is_json: is_json(headers), era: era(headers) }
    }

    /// Why a POST is refused before its body is looked at.
    fn refusal(&self) -> Option<Response<Body>> {
        if !self.is_json {
            let text = "Content-Type must be application/json";
            return Some(plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
        let text = "Accept must include application/json";
        (!self.media.json).then(|| plain(StatusCode::NOT_ACCEPTABLE, text))
    }
}

/// Answers one request to one of [`PATHS`]. `now_ms` is the time of any monotonic origin.
pub async fn handle<B>(
    worker: &Rc<Worker>,
    sessions: &Sessions,
    connection: &ClientConnection,
    now_ms: u64,
    head: &Parts,
    body: B,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let reading = Reading::of(head);
    connection.belongs.set(false);
    let post = Post::new(worker, sessions, connection, now_ms, head, reading);
    match head.method {
        Method::POST => {}
        Method::GET => return legacy::get(&post),
        Method::DELETE => return legacy::delete(&post),
        _ => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "use POST, GET or DELETE");
            let allow = HeaderValue::from_static("POST, GET, DELETE");
            response.headers_mut().insert(ALLOW, allow);
            return response;
        }
    }
    if let Some(refused) = reading.refusal() {
        return refused;
    }
    match collect(body).await {
        Ok(body) => post.answer(reading.era, body).await,
        Err(refused) => no_body(&refused),
    }
}

/// The same for a POST that has come whole. `repeated` is true if the request before it on this
/// connection had the very same head, which then is not read again.
pub async fn handle_whole(
    worker: &Rc<Worker>,
    sessions: &Sessions,
    connection: &ClientConnection,
    now_ms: u64,
    head: &Parts,
    repeated: bool,
    body: Bytes,
) -> Response<Body> {
    let known = connection.reading.get().filter(|_| repeated);
    let reading = known.unwrap_or_else(|| Reading::of(head));
    connection.reading.set(Some(reading));
    connection.belongs.set(connection.belongs.get() && repeated);
    match reading.refusal() {
        Some(refused) => refused,
        None => {
            let post = Post::new(worker, sessions, connection, now_ms, head, reading);
            post.answer(reading.era, body).await
        }
    }
}

impl<'a> Post<'a> {
    fn new(
        worker: &'a Rc<Worker>,
        sessions: &'a Sessions,
        connection: &'a ClientConnection,
        now_ms: u64,
        head: &'a Parts,
        Reading { endpoint, media, .. }: Reading,
    ) -> Self {
        let channel = if media.event_stream { Channel::Stream } else { Channel::Answer };
        let principal = connection.principal.borrow().clone();
        Self { worker, sessions, connection, now_ms, head, endpoint, channel, principal }
    }

    async fn answer(&self, era: Option<Era>, body: Bytes) -> Response<Body> {
        match era {
            Some(Era::Legacy) => legacy::post(self, body).await,
            Some(Era::Modern) => modern::post(self, body).await,
            None => modern::post_of_either_era(self, body).await,
        }
    }
}

/// The era that the headers tell of; `None`: the body does.
fn era(headers: &HeaderMap) -> Option<Era> {
    let mut versions = headers.get_all(&PROTOCOL_VERSION).iter();
    if versions.any(|version| version == MODERN) {
        return Some(Era::Modern);
    }
    headers.contains_key(&SESSION_ID).then_some(Era::Legacy)
}

/// Turns a reply into an answer: whole if it is there at once, else streamed; as events if there is
/// something to say before it.
pub(super) async fn reply(
    worker: &Rc<Worker>,
    id: &Bytes,
    era: Era,
    session: Option<&Arc<Session>>,
    mut call: Watched,
) -> Response<Body> {
    let failed = |text: &str| {
        let error = jsonrpc::error(Some(id), Code::Internal, text);
        json(StatusCode::OK, Body::from(error))
    };
    match call.next().await {
        Taken::Piece(first @ (Piece::Notification(_) | Piece::Request(_))) => {
            events::Reply::respond(worker, id, era, session, first, call)
        }
        Taken::Piece(Piece::Whole(member, mut splice)) => {
            let status = status_of(era, member, &splice);
            splice.push_front(render::head(id, member));
            splice.push(jsonrpc::TAIL);
            // What is left (judging in warn) is done once the answer is on its way.
            if let Some(rest) = call.rest() {
                worker.defer(rest);
            }
            json(status, Body::from(splice))
        }
        Taken::Piece(Piece::Begin(member)) => {
            let streamed = Streamed::new(call, render::head(id, member), jsonrpc::TAIL);
            json(StatusCode::OK, Body::Call(Box::new(streamed)))
        }
        Taken::Piece(Piece::Refused(refusal)) => {
            json(refusal.kind.mcp_status(), Body::from(refusal.mcp_response(era, id)))
        }
        Taken::Piece(Piece::Data(_)) => failed("Internal error: no head"),
        Taken::Over | Taken::Broken(_) => failed("Internal error: no reply"),
        // It waits for no answer, but a request over HTTP gets one.
        Taken::Cancelled => failed("the client cancelled the request"),
    }
}

/// The status of an upstream's answer. What its client must declare first is refused as if it were
/// our own to say (MCP 2026-07-28 §Error Codes); its other errors are between it and us.
fn status_of(era: Era, member: AnswerMember, value: &Splice) -> StatusCode {
    const MISSING_CAPABILITY: i64 = Code::MissingCapability as i64;
    #[derive(serde::Deserialize)]
    struct Error {
        code: i64,
    }
    if (era, member) != (Era::Modern, AnswerMember::Error) {
        return StatusCode::OK;
    }
    // An error that came whole is small, and rare.
    let value: Vec<u8> = value.parts().flatten().copied().collect();
    match serde_json::from_slice(&value) {
        Ok(Error { code: MISSING_CAPABILITY }) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// What a client takes for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Media {
    pub(super) json: bool,
    pub(super) event_stream: bool,
}

/// Reads `Accept`; without one everything is taken but an event stream.
pub(super) fn media(headers: &HeaderMap) -> Media {
    let mut values = headers.get_all(ACCEPT).iter().peekable();
    let mut media = Media { json: values.peek().is_none(), event_stream: false };
    for kind in values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')) {
        let (kind, parameters) = kind.split_once(';').unwrap_or((kind, ""));
        let refused =
            |parameter: &str| matches!(parameter.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
        if parameters.split(';').any(refused) {
            continue;
        }
        let is = |known: &str| kind.trim().eq_ignore_ascii_case(known);
        media.json |= is("application/json") || is("application/*") || is("*/*");
        media.event_stream |= is("text/event-stream") || is("text/*");
    }
    media
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.map(|value| value.split(';').next().unwrap_or_default().trim());
    essence.is_some_and(|value| value.eq_ignore_ascii_case("application/json"))
}

/// Why a request has no body.
#[derive(Debug, thiserror::Error)]
pub enum NoBody {
    /// It did not come within [`BODY_TIMEOUT`].
    #[error("request body did not come within {BODY_TIMEOUT:?}")]
    Late,
    /// It is larger than [`MAX_BODY_BYTES`].
    #[error("request body is larger than {MAX_BODY_BYTES} bytes")]
    TooLarge,
    /// It broke off.
    #[error("request body is unreadable: {0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl NoBody {
    /// The answer's status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Broken(_) => StatusCode::BAD_REQUEST,
        }
    }
}

/// The answer to a request whose body did not come.
#[must_use]
pub fn no_body(refused: &NoBody) -> Response<Body> {
    plain(refused.status(), &format!("the {refused}"))
}

/// Reads a request's body whole, up to [`MAX_BODY_BYTES`] and within [`BODY_TIMEOUT`].
///
/// # Errors
///
/// [`NoBody`].
pub async fn collect<B>(body: B) -> Result<Bytes, NoBody>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let collected = Limited::new(body, MAX_BODY_BYTES).collect();
    match tokio::time::timeout(BODY_TIMEOUT, collected).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(NoBody::TooLarge),
        Ok(Err(error)) => Err(NoBody::Broken(error)),
        Err(_) => Err(NoBody::Late),
    }
}

/// An answer of [`UNNAMED_TYPE`].
pub(super) fn json(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// Names the type of an answer that names none, for a server that writes what it is given.
pub fn name_type(response: &mut Response<Body>) {
    if !response.body().is_end_stream() && !response.headers().contains_key(CONTENT_TYPE) {
        let value = HeaderValue::from_static(UNNAMED_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
}

pub(super) fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

pub(super) fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_modern_client_must_declare_first_is_a_bad_request() {
        let status = |era, member, value: &'static str| {
            let mut parts = Splice::new();
            for part in value.as_bytes().chunks(5) {
                parts.push(Bytes::from_static(part));
            }
            status_of(era, member, &parts).as_u16()
        };
        let missing = r#"{"message":"m","code":-32021,"data":{"requiredCapabilities":{}}}"#;
        assert_eq!(status(Era::Modern, AnswerMember::Error, missing), 400);
        assert_eq!(status(Era::Legacy, AnswerMember::Error, missing), 200);
        assert_eq!(status(Era::Modern, AnswerMember::Result, missing), 200);
        assert_eq!(status(Era::Modern, AnswerMember::Error, r#"{"code":-32602}"#), 200);
        assert_eq!(status(Era::Modern, AnswerMember::Error, "7"), 200);
    }

    #[test]
    fn what_a_client_takes_is_read_without_guessing() {
        for (accept, json, event_stream) in [
            (None, true, false),
            (Some("application/json, text/event-stream"), true, true),
            (Some("Application/JSON;q=0.9,TEXT/event-stream;q=0.1"), true, true),
            (Some("*/*"), true, false),
            (Some("text/event-stream"), false, true),
            (Some("application/json;q=0, text/*"), false, true),
            (Some("application/jsonl"), false, false),
            (Some("text/html"), false, false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, HeaderValue::from_static(accept));
            }
            assert_eq!(media(&headers), Media { json, event_stream }, "{accept:?}");
        }
    }

    #[test]
    fn an_era_is_told_by_headers_where_they_tell() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            era(&headers)
        };
        let (version, session) = ("mcp-protocol-version", ("mcp-session-id", "x"));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(version, "2025-11-25")]), None);
        assert_eq!(of(&[(version, "2026-07-28")]), Some(Era::Modern));
        assert_eq!(of(&[session, (version, "2026-07-28")]), Some(Era::Modern), "it is ignored");
        assert_eq!(of(&[session, (version, "2025-11-25")]), Some(Era::Legacy));
        assert_eq!(of(&[session]), Some(Era::Legacy));
    }
}
