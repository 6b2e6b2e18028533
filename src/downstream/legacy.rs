//! The initialize-based revisions over HTTP (MCP 2024-11-05 to 2025-11-25 §Transports): sessions,
//! batches, the GET stream, and the answers to what upstreams asked.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};

use crate::downstream::body::Body;
use crate::downstream::events;
use crate::downstream::http::{
    ClientConnection, PROTOCOL_VERSION, Post, json, media, plain, reply, status,
};
use crate::downstream::in_flight::{Taken, Watched};
use crate::downstream::listen;
use crate::downstream::replay::{EventId, StreamKind};
use crate::downstream::session::{Opening, Session, Sessions, fresh_id};
use crate::downstream::session_key::SessionKey;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::headers;
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::revisions::{Era, LEGACY, MODERN, NEWEST_LEGACY};
use crate::policy::Principal;
use crate::proxy::Worker;
use crate::proxy::caller::{Channel, Peer};
use crate::proxy::client::Client;
use crate::proxy::incoming::{self, Incoming, Received};
use crate::proxy::reaction::{Initialize, Reaction};
use crate::proxy::reply::{Aborted, Piece};
use crate::proxy::{dispatch, render};

/// Carries the session's id.
pub(super) const SESSION_ID: HeaderName = HeaderName::from_static(headers::SESSION_ID);
/// Carries the id of the last event that the client saw.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static(headers::LAST_EVENT_ID);
/// Messages of one batch.
const MAX_BATCH: usize = 64;

/// Why a request has no session: the status, and what to say.
type NoSession = (StatusCode, &'static str);

/// Answers a POST whose body may be anything.
pub(super) async fn post(post: &Post<'_>, body: Bytes) -> Response<Body> {
    let batch = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if batch
        && let Ok(session) = find(post)
        && session.client.revision().has_batches()
    {
        return many(post, &session, &body).await;
    }
    match incoming::read(post.worker, &body) {
        Ok(incoming) => one(post, incoming).await,
        Err(error) => json(StatusCode::BAD_REQUEST, Body::from(error)),
    }
}

/// Answers one message.
pub(super) async fn one(post: &Post<'_>, incoming: Incoming) -> Response<Body> {
    let received = match incoming {
        Incoming::Request(received) if &*received.request.method == "initialize" => {
            return initialize(post, received);
        }
        Incoming::Request(received) => received,
        Incoming::Response(response) => {
            return match find(post) {
                Ok(session) => {
                    match incoming::respond(post.worker, &session.client, response).await {
                        Ok(()) => status(StatusCode::ACCEPTED),
                        Err(error) => json(StatusCode::BAD_REQUEST, Body::from(error)),
                    }
                }
                Err((code, text)) => refuse(code, None, text),
            };
        }
    };
    let session = match find(post) {
        Ok(session) => session,
        Err((code, text)) => return refuse(code, received.request.id.as_deref(), text),
    };
    if received.request.id.is_some() {
        post.sessions.note_use(&session);
    }
    let peer = peer(post, &session, post.channel);
    match dispatch::dispatch(post.worker, &peer, received) {
        Reaction::Noted => status(StatusCode::ACCEPTED),
        Reaction::Cancel(id) => {
            session.cancel(&id);
            status(StatusCode::ACCEPTED)
        }
        Reaction::Answer(answer) | Reaction::Error(_, answer) => {
            json(StatusCode::OK, Body::from(answer))
        }
        Reaction::Call { id, running } => {
            let call = post.connection.in_flight.watch(session.owner(), &id, running);
            reply(post.worker, &id, Era::Legacy, Some(&session), call).await
        }
        // Neither is of this era, nor comes out of it.
        Reaction::Initialize(_) | Reaction::Listen { .. } => status(StatusCode::NOT_FOUND),
    }
}

fn peer(post: &Post<'_>, session: &Session, channel: Channel) -> Peer {
    let client = Arc::clone(&session.client);
    // Whoever opened it, for as long as the request still proves as much.
    let principal = match *session.principal() == post.principal {
        true => post.principal.clone(),
        false => Principal::Anonymous,
    };
    Peer { client, principal, endpoint: post.endpoint, channel, headers: None }
}

fn refuse(code: StatusCode, id: Option<&[u8]>, text: &str) -> Response<Body> {
    json(code, Body::from(jsonrpc::error(id, Code::InvalidRequest, text)))
}

/// A client that has not introduced itself.
pub(super) fn anonymous_client(session_id: &str) -> Client {
    Client::new(session_id.into(), "", NEWEST_LEGACY, Era::Legacy, ClientCapabilities::default())
}

fn initialize(post: &Post<'_>, received: Received) -> Response<Body> {
    let client = Arc::new(anonymous_client(""));
    let (principal, channel) = (post.principal.clone(), Channel::Answer);
    let peer = Peer { client, principal, endpoint: post.endpoint, channel, headers: None };
    match dispatch::dispatch(post.worker, &peer, received) {
        Reaction::Initialize(accepted) => open(post, accepted),
        Reaction::Answer(answer) | Reaction::Error(_, answer) => {
            json(StatusCode::OK, Body::from(answer))
        }
        Reaction::Noted | Reaction::Cancel(_) => status(StatusCode::ACCEPTED),
        Reaction::Call { .. } | Reaction::Listen { .. } => status(StatusCode::NOT_FOUND),
    }
}

fn open(post: &Post<'_>, accepted: Initialize) -> Response<Body> {
    let mut random = [0; 16];
    if getrandom::fill(&mut random).is_err() {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "no randomness for a session id");
    }
    let Initialize { version, client_name, client_capabilities, answer } = accepted;
    let opening = Opening {
        client: Client::new(
            fresh_id(random),
            &client_name,
            version,
            Era::Legacy,
            client_capabilities,
        ),
        endpoint: post.endpoint,
        principal: post.principal.clone(),
        key: SessionKey::of(post.head),
        source: post.connection.source,
    };
    match post.sessions.open(opening, post.now_ms) {
        Ok(session) => {
            let mut response = json(StatusCode::OK, Body::from(answer));
            if let Ok(id) = HeaderValue::from_str(session.id()) {
                response.headers_mut().insert(SESSION_ID, id);
            }
            response
        }
        Err(full) => plain(StatusCode::SERVICE_UNAVAILABLE, &full.to_string()),
    }
}

/// The session that a request belongs to.
fn find(post: &Post<'_>) -> Result<Arc<Session>, NoSession> {
    const UNKNOWN: NoSession = (StatusCode::NOT_FOUND, "Session not found: send initialize again");
    let Post { sessions, connection, now_ms, head, endpoint, .. } = *post;
    if connection.belongs.get()
        && let Some(session) = &*connection.session.borrow()
        && session.touch(now_ms)
    {
        return Ok(Arc::clone(session));
    }
    let id = session_id(&head.headers)?.ok_or((
        StatusCode::BAD_REQUEST,
        "Mcp-Session-Id is missing: send initialize first and repeat the id it answers with",
    ))?;
    let session = remembered(sessions, connection, id, now_ms).ok_or(UNKNOWN)?;
    // Answered as if there were no such session: its existence is not revealed.
    if session.endpoint != endpoint || !session.belongs_to(head) {
        return Err(UNKNOWN);
    }
    let mut versions = head.headers.get_all(&PROTOCOL_VERSION).iter();
    match (versions.next().map(HeaderValue::as_bytes), versions.next()) {
        (None, _) => {}
        (Some(version), None) if LEGACY.iter().any(|known| known.as_bytes() == version) => {}
        (Some(_), _) => return Err((StatusCode::BAD_REQUEST, "Unsupported MCP-Protocol-Version")),
    }
    connection.belongs.set(true);
    Ok(session)
}

fn session_id(headers: &HeaderMap) -> Result<Option<&str>, NoSession> {
    let mut ids = headers.get_all(&SESSION_ID).iter();
    match (ids.next(), ids.next()) {
        (None, _) => Ok(None),
        // Our session ids are visible ASCII; any other id is unknown.
        (Some(id), None) => Ok(Some(id.to_str().unwrap_or_default())),
        (Some(_), Some(_)) => {
            Err((StatusCode::BAD_REQUEST, "Mcp-Session-Id is given more than once"))
        }
    }
}

/// The session of that id: the one this connection used last, or from the table.
fn remembered(
    sessions: &Sessions,
    connection: &ClientConnection,
    id: &str,
    now_ms: u64,
) -> Option<Arc<Session>> {
    let mut last = connection.session.borrow_mut();
    if let Some(session) = last.as_ref()
        && **session.id() == *id
        && session.touch(now_ms)
    {
        return Some(Arc::clone(session));
    }
    let session = sessions.find(id, now_ms)?;
    session.join(&connection.in_flight);
    *last = Some(Arc::clone(&session));
    Some(session)
}

/// GET: a stream of what is unrelated to any request, or one that broke.
pub(super) fn get(post: &Post<'_>) -> Response<Body> {
    if !media(&post.head.headers).event_stream {
        return plain(StatusCode::NOT_ACCEPTABLE, "Accept must include text/event-stream");
    }
    if !has_session(&post.head.headers) {
        return not_allowed();
    }
    let session = match find(post) {
        Ok(session) => session,
        Err((code, text)) => return plain(code, text),
    };
    let seen = match post.head.headers.get(&LAST_EVENT_ID) {
        None => None,
        Some(seen) => match seen.to_str().ok().and_then(EventId::parse) {
            Some(seen) => Some(seen),
            None => return plain(StatusCode::BAD_REQUEST, "Last-Event-ID is no id of ours"),
        },
    };
    post.sessions.note_use(&session);
    match seen {
        Some(seen @ EventId { kind: StreamKind::Reply, .. }) => events::resumed(&session, seen)
            .unwrap_or_else(|| {
                let text = "Last-Event-ID: that stream is not kept any more";
                plain(StatusCode::BAD_REQUEST, text)
            }),
        Some(EventId { kind: StreamKind::Standing, .. }) | None => {
            listen::standing(post.worker, post.sessions, &session, seen)
        }
    }
}

/// DELETE: ends the session.
pub(super) fn delete(post: &Post<'_>) -> Response<Body> {
    if !has_session(&post.head.headers) {
        return not_allowed();
    }
    match find(post) {
        Ok(session) if post.sessions.end(session.id()) => status(StatusCode::NO_CONTENT),
        Ok(_) => plain(StatusCode::NOT_FOUND, "Session not found"),
        Err((code, text)) => plain(code, text),
    }
}

/// True for a request inside a session, which the modern era does not have.
fn has_session(headers: &HeaderMap) -> bool {
    let modern = headers.get(&PROTOCOL_VERSION).is_some_and(|version| version == MODERN);
    headers.contains_key(&SESSION_ID) && !modern
}

fn not_allowed() -> Response<Body> {
    let mut response = plain(
        StatusCode::METHOD_NOT_ALLOWED,
        "use POST; GET and DELETE are for sessions (Mcp-Session-Id)",
    );
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    response
}

/// What one message of a batch is answered with.
enum Item {
    Ready(Bytes),
    Call(Bytes, Watched),
}

/// Answers a batch (MCP 2025-03-26): an array of responses, each begun when the one before has
/// ended, so that a batch of large answers needs no more memory than one.
async fn many(post: &Post<'_>, session: &Arc<Session>, body: &Bytes) -> Response<Body> {
    let invalid = |text: &str| refuse(StatusCode::BAD_REQUEST, None, text);
    if let Err(problem) = incoming::check(post.worker, body) {
        return invalid(&problem);
    }
    let Some(messages) = jsonrpc::batch(body) else { return invalid("Invalid Request: no batch") };
    if messages.is_empty() || messages.len() > MAX_BATCH {
        return invalid(&format!("Invalid Request: a batch holds 1 to {MAX_BATCH} messages"));
    }
    post.sessions.note_use(session);
    let peer = peer(post, session, Channel::Answer);
    let mut items = VecDeque::new();
    for message in messages {
        let received = match incoming::read(post.worker, &message) {
            Err(error) => {
                items.push_back(Item::Ready(error));
                continue;
            }
            Ok(Incoming::Response(response)) => {
                let answered = incoming::respond(post.worker, &session.client, response).await;
                items.extend(answered.err().map(Item::Ready));
                continue;
            }
            Ok(Incoming::Request(received)) => received,
        };
        match dispatch::dispatch(post.worker, &peer, received) {
            Reaction::Noted => {}
            Reaction::Cancel(id) => {
                session.cancel(&id);
            }
            Reaction::Answer(answer) | Reaction::Error(_, answer) => {
                items.push_back(Item::Ready(answer));
            }
            Reaction::Call { id, running } => {
                let call = post.connection.in_flight.watch(session.owner(), &id, running);
                items.push_back(Item::Call(id, call));
            }
            Reaction::Initialize(_) => {
                let text = "Invalid Request: initialize must not be part of a batch";
                items.push_back(Item::Ready(jsonrpc::error(None, Code::InvalidRequest, text)));
            }
            Reaction::Listen { .. } => {}
        }
    }
    if items.is_empty() {
        return status(StatusCode::ACCEPTED);
    }
    let worker = Rc::clone(post.worker);
    let batch = Batch { worker, items, out: VecDeque::new(), opened: false, begun: false };
    let chunks = futures_util::stream::try_unfold(batch, |mut batch| async move {
        Ok(batch.next().await?.map(|chunk| (chunk, batch)))
    });
    json(StatusCode::OK, Body::Stream(Box::pin(chunks)))
}

struct Batch {
    worker: Rc<Worker>,
    items: VecDeque<Item>,
    out: VecDeque<Bytes>,
    /// The array has begun.
    opened: bool,
    /// The answer of the first item has begun.
    begun: bool,
}

impl Batch {
    async fn next(&mut self) -> Result<Option<Bytes>, Aborted> {
        loop {
            if let Some(chunk) = self.out.pop_front() {
                return Ok(Some(chunk));
            }
            let separator = if self.opened { "," } else { "[" };
            match self.items.front_mut() {
                None if self.opened => {
                    self.opened = false;
                    return Ok(Some(Bytes::from_static(b"]")));
                }
                None => return Ok(None),
                Some(Item::Ready(answer)) => {
                    self.out.extend([Bytes::from_static(separator.as_bytes()), answer.clone()]);
                    self.opened = true;
                    self.items.pop_front();
                }
                Some(Item::Call(id, call)) => {
                    let first = |head: Bytes| [Bytes::from_static(separator.as_bytes()), head];
                    let over = match call.next().await {
                        Taken::Piece(Piece::Notification(_) | Piece::Request(_)) => false,
                        Taken::Piece(Piece::Begin(member)) => {
                            self.out.extend(first(render::head(id, member)));
                            self.begun = true;
                            false
                        }
                        Taken::Piece(Piece::Data(data)) => {
                            self.out.extend(data);
                            false
                        }
                        Taken::Piece(Piece::Whole(member, value)) => {
                            self.out.extend(first(render::head(id, member)));
                            self.out.extend(value);
                            self.out.push_back(jsonrpc::TAIL);
                            true
                        }
                        Taken::Piece(Piece::Refused(refusal)) => {
                            let answer = refusal.mcp_response(Era::Legacy, id);
                            self.out.extend(first(answer));
                            true
                        }
                        Taken::Over => {
                            self.out.push_back(jsonrpc::TAIL);
                            true
                        }
                        Taken::Broken(aborted) => return Err(aborted),
                        Taken::Cancelled if self.begun => {
                            return Err(Aborted("the client cancelled the call".into()));
                        }
                        Taken::Cancelled => {
                            let text = "the client cancelled the request";
                            self.out.extend(first(jsonrpc::error(Some(id), Code::Internal, text)));
                            true
                        }
                    };
                    if over {
                        (self.opened, self.begun) = (true, false);
                        if let Some(Item::Call(_, call)) = self.items.pop_front()
                            && let Some(rest) = call.rest()
                        {
                            self.worker.defer(rest);
                        }
                    }
                }
            }
        }
    }
}
