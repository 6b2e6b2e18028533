//! `/mcp`: MCP streamable HTTP for initialize-based revisions (MCP 2025-11-25 §Transports).
//!
//! Owns what is HTTP about it: media types, session headers, statuses, and how a reply becomes a
//! body. What a message leads to is decided in `proxy::dispatch`. Host, Origin and the API key
//! were checked before a request gets here.

use std::cell::RefCell;
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
use crate::downstream::session::{Session, Sessions};
use crate::proxy::Worker;
use crate::proxy::client::{Client, Endpoint};
use crate::proxy::dispatch::{self, Channel, Initialize, Peer, Reaction, VERSIONS};
use crate::proxy::reply::{Piece, Running};
use crate::upstream::{Era, Takes};
use crate::wire::jsonrpc::{self, Code};

/// Largest request body: 16 MiB.
pub const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// A client has this long to send a request's body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(15);

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What one connection remembers between its requests.
#[derive(Debug, Default)]
pub struct Connection {
    /// True once a request has come whole.
    pub used: std::cell::Cell<bool>,
    /// The session last used, so that the shared table is not asked for each call.
    session: RefCell<Option<Arc<Session>>>,
}

/// Answers one request to `/mcp`. `now_ms` is the time of any monotonic origin.
pub async fn handle<B>(
    worker: &Rc<Worker>,
    sessions: &Sessions,
    connection: &Connection,
    now_ms: u64,
    head: &Parts,
    body: B,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match head.method {
        Method::POST => {}
        Method::DELETE => return end_session(sessions, &head.headers),
        _ => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "use POST or DELETE");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST, DELETE"));
            return response;
        }
    }
    if let Some(refused) = check_media_types(&head.headers) {
        return refused;
    }
    let body = match collect(body).await {
        Ok(body) => body,
        Err(refused) => return no_body(&refused),
    };
    let received = match dispatch::read(worker, &body) {
        Ok(Some(request)) => request,
        Ok(None) => return status(StatusCode::ACCEPTED),
        Err(error) => return json(StatusCode::BAD_REQUEST, Body::from(error)),
    };
    let session = if &*received.request.method == "initialize" {
        None
    } else {
        match find_session(sessions, connection, &head.headers, now_ms) {
            Ok(session) => Some(session),
            Err((code, text)) => {
                let error =
                    jsonrpc::error(received.request.id.as_deref(), Code::InvalidRequest, text);
                return json(code, Body::from(error));
            }
        }
    };
    let client = session.map_or_else(|| anonymous(""), |session| Arc::clone(&session.client));
    let peer = Peer { client, endpoint: Endpoint::Search, channel: Channel::Answer };
    match dispatch::dispatch(worker, &peer, received) {
        Reaction::Noted | Reaction::Cancel(_) => status(StatusCode::ACCEPTED),
        Reaction::Answer(answer) | Reaction::Error(_, answer) => {
            json(StatusCode::OK, Body::from(answer))
        }
        Reaction::Initialize(accepted) => open_session(sessions, accepted, now_ms),
        Reaction::Call { id, running } => reply(worker, &id, running).await,
        Reaction::Listen { .. } => status(StatusCode::NOT_FOUND),
    }
}

/// A client that has not introduced itself.
pub(super) fn anonymous(session_id: &str) -> Arc<Client> {
    let [newest, ..] = VERSIONS;
    Arc::new(Client::new(session_id.into(), "", newest, Era::Legacy, Takes::default()))
}

/// Turns a reply into an answer: whole if it is there at once, else streamed.
async fn reply(worker: &Rc<Worker>, id: &[u8], mut running: Running) -> Response<Body> {
    loop {
        let piece = match running.next().await {
            Some(Ok(piece)) => piece,
            Some(Err(_)) | None => {
                let error = jsonrpc::error(Some(id), Code::Internal, "Internal error: no reply");
                return json(StatusCode::OK, Body::from(error));
            }
        };
        match piece {
            // Only a stream could carry it, and this client was promised `application/json`.
            Piece::Notification(_) | Piece::Request(_) => {}
            Piece::Whole(member, mut splice) => {
                splice.push_front(dispatch::head(id, member));
                splice.push(jsonrpc::TAIL);
                // What is left (judging in warn) is done once the answer is on its way.
                worker.defer(running);
                return json(StatusCode::OK, Body::from(splice));
            }
            Piece::Begin(member) => {
                let streamed = Streamed::new(running, dispatch::head(id, member), jsonrpc::TAIL);
                return json(StatusCode::OK, Body::Call(Box::new(streamed)));
            }
            Piece::Data(_) => {
                let error = jsonrpc::error(Some(id), Code::Internal, "Internal error: no head");
                return json(StatusCode::OK, Body::from(error));
            }
            Piece::Refused(refusal) => {
                return json(StatusCode::OK, Body::from(dispatch::refused(id, &refusal)));
            }
        }
    }
}

fn check_media_types(headers: &HeaderMap) -> Option<Response<Body>> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.map(|value| value.split(';').next().unwrap_or_default().trim());
    if !essence.is_some_and(|value| value.eq_ignore_ascii_case("application/json")) {
        let text = "Content-Type must be application/json";
        return Some(plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let mut accepts = headers.get_all(ACCEPT).iter().peekable();
    let acceptable = accepts.peek().is_none()
        || accepts.filter_map(|value| value.to_str().ok()).any(|value| {
            let value = value.to_ascii_lowercase();
            ["application/json", "application/*", "*/*"].iter().any(|kind| value.contains(kind))
        });
    (!acceptable).then(|| plain(StatusCode::NOT_ACCEPTABLE, "Accept must include application/json"))
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

fn find_session(
    sessions: &Sessions,
    connection: &Connection,
    headers: &HeaderMap,
    now_ms: u64,
) -> Result<Arc<Session>, (StatusCode, &'static str)> {
    let mut ids = headers.get_all(SESSION_ID).iter();
    let (id, None) = (ids.next().and_then(|value| value.to_str().ok()), ids.next()) else {
        return Err((StatusCode::BAD_REQUEST, "Mcp-Session-Id is given more than once"));
    };
    let Some(id) = id else {
        return Err((
            StatusCode::BAD_REQUEST,
            "Mcp-Session-Id is missing: send initialize first and repeat the id it answers with",
        ));
    };
    let mut last = connection.session.borrow_mut();
    let session = match last.as_ref() {
        Some(session) if **session.id() == *id && session.touch(now_ms) => Arc::clone(session),
        Some(_) | None => {
            let session = sessions
                .find(id, now_ms)
                .ok_or((StatusCode::NOT_FOUND, "Session not found: send initialize again"))?;
            *last = Some(Arc::clone(&session));
            session
        }
    };
    match headers.get(PROTOCOL_VERSION).map(HeaderValue::as_bytes) {
        Some(version) if !VERSIONS.iter().any(|known| known.as_bytes() == version) => {
            Err((StatusCode::BAD_REQUEST, "Unsupported MCP-Protocol-Version"))
        }
        Some(_) | None => Ok(session),
    }
}

fn open_session(sessions: &Sessions, accepted: Initialize, now_ms: u64) -> Response<Body> {
    let mut random = [0; 16];
    if getrandom::fill(&mut random).is_err() {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "no randomness for a session id");
    }
    match sessions.open(random, accepted.version, &accepted.client_name, accepted.takes, now_ms) {
        Ok(session) => {
            let mut response = json(StatusCode::OK, Body::from(accepted.answer));
            if let Ok(id) = HeaderValue::from_str(session.id()) {
                response.headers_mut().insert(SESSION_ID, id);
            }
            response
        }
        Err(full) => plain(StatusCode::SERVICE_UNAVAILABLE, &full.to_string()),
    }
}

fn end_session(sessions: &Sessions, headers: &HeaderMap) -> Response<Body> {
    let id = headers.get(SESSION_ID).and_then(|value| value.to_str().ok());
    match id.map(|id| sessions.end(id)) {
        Some(true) => status(StatusCode::NO_CONTENT),
        Some(false) => plain(StatusCode::NOT_FOUND, "Session not found"),
        None => plain(StatusCode::BAD_REQUEST, "Mcp-Session-Id is missing"),
    }
}

fn json(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    response
}
