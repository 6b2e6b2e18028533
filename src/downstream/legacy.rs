//! Legacy revisions over HTTP (MCP 2024-11-05 to 2025-11-25 §Transports): session lookup, POST, GET, DELETE and
//! batches. A batch (MCP 2025-03-26) is answered by one array. In a fleet each message of a batch is served on the node
//! that would serve it if it were sent alone. If a message belongs to a lost session, no message of the batch is
//! processed.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::{StreamExt, future};
use http::header::ALLOW;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::message::SMALL_MESSAGE_BYTES;
use mcpproxy_protocol::mcp::revisions::{LEGACY, MODERN, NEWEST_LEGACY, ProtocolFamily};

use super::body::{Body, invalid_request, json, plain, status};
use super::in_flight::{Taken, Watched};
use super::placement::{ForwardedResponse, MessagePlace};
use super::replay::{EventId, StreamKind};
use super::reply::reply;
use super::request::{
    ClientConnection, KnownHead, LAST_EVENT_ID, Origin, PROTOCOL_VERSION, Post, SESSION_ID, media,
};
use super::session::{Opening, Session, SessionKey, fresh_id};
use super::session_table::Sessions;
use super::{listen, placement, server_endpoint};
use mcpproxy_gateway::proxy::client::{Channel, Client, Peer};
use mcpproxy_gateway::proxy::dispatch::{Incoming, Received};
use mcpproxy_gateway::proxy::reply::{Aborted, Initialize, Piece, Reaction};
use mcpproxy_gateway::proxy::{Worker, dispatch, render};

/// Refusal of a request without a session: status and text.
type NoSession = (StatusCode, &'static str);

/// Serves a POST with any body.
pub(super) async fn post(post: &Post<'_>, body: Bytes) -> Response<Body> {
    let batch = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if batch
        && let Ok(session) = find(post)
        && session.client.revision().has_batches()
    {
        return Box::pin(many(post, &session, &body)).await;
    }
    match dispatch::read(post.worker, &body) {
        Ok(incoming) => one(post, incoming, body).await,
        Err(error) => json(StatusCode::BAD_REQUEST, Body::from(error)),
    }
}

/// Serves one message, whose text is `body`.
pub(super) async fn one(post: &Post<'_>, incoming: Incoming, body: Bytes) -> Response<Body> {
    let incoming = match incoming {
        Incoming::Request(received) if &*received.request.method == "initialize" => {
            // This future is rare and large, so it is boxed to keep it out of every request's future.
            return Box::pin(initialize(post, received)).await;
        }
        incoming => incoming,
    };
    let session = match find(post) {
        Ok(session) => session,
        Err((code, text)) => return invalid_request(code, incoming.request_id(), text),
    };
    if incoming.request_id().is_some() {
        post.sessions.note_use(&session);
    }
    if let Some(answer) = placement::answer_elsewhere(post, &session, &incoming, &body).await {
        return answer;
    }
    let received = match incoming {
        Incoming::Request(received) => received,
        Incoming::Response(response) => {
            let responding = dispatch::respond(post.worker, &session.client, response);
            return match Box::pin(responding).await {
                Ok(()) => status(StatusCode::ACCEPTED),
                Err(error) => json(StatusCode::BAD_REQUEST, Body::from(error)),
            };
        }
    };
    let is_level = &*received.request.method == SET_LEVEL;
    let peer = post.peer(&session, post.channel);
    match dispatch::dispatch(post.worker, &peer, received) {
        Reaction::Noted => status(StatusCode::ACCEPTED),
        Reaction::Cancel(id) => {
            if !session.cancel(&id) {
                // The call may be running on another node.
                placement::broadcast(post, &body, false).await;
            }
            status(StatusCode::ACCEPTED)
        }
        Reaction::Answer(answer) if is_level => {
            placement::broadcast(post, &body, true).await;
            json(StatusCode::OK, Body::from(answer))
        }
        Reaction::Answer(answer) | Reaction::Error(_, answer) => {
            json(StatusCode::OK, Body::from(answer))
        }
        Reaction::Call { id, running } => {
            // The call keeps the slices of the body that it needs.
            drop(body);
            let call = post.connection.in_flight.watch(session.owner(), &id, running);
            reply(post.worker, &id, ProtocolFamily::Legacy, Some(&session), post.channel, call)
                .await
        }
        // Unreachable: `initialize` is served above, and `subscriptions/listen` is modern.
        Reaction::Initialize(_) | Reaction::Listen { .. } => status(StatusCode::NOT_FOUND),
    }
}

/// Client before `initialize`.
pub(super) fn anonymous_client(session_id: &str) -> Client {
    Client::new(
        session_id.into(),
        "",
        NEWEST_LEGACY,
        ProtocolFamily::Legacy,
        ClientCapabilities::default(),
    )
}

async fn initialize(post: &Post<'_>, received: Received) -> Response<Body> {
    server_endpoint::prepare(post.worker, &post.endpoint).await;
    let client = Arc::new(anonymous_client(""));
    let channel = Channel::Answer;
    let principal = post.principal.clone();
    let endpoint = post.endpoint.clone();
    let peer = Peer { client, principal, endpoint, channel, headers: None, trace: None };
    let id = received.request.id.clone();
    match dispatch::dispatch(post.worker, &peer, received) {
        Reaction::Initialize(accepted) => open(post, id.as_deref(), accepted),
        Reaction::Answer(answer) | Reaction::Error(_, answer) => {
            json(StatusCode::OK, Body::from(answer))
        }
        Reaction::Noted | Reaction::Cancel(_) => status(StatusCode::ACCEPTED),
        Reaction::Call { .. } | Reaction::Listen { .. } => status(StatusCode::NOT_FOUND),
    }
}

fn open(post: &Post<'_>, id: Option<&[u8]>, accepted: Initialize) -> Response<Body> {
    let mut random = [0; 16];
    if getrandom::fill(&mut random).is_err() {
        return plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "no random bytes available for a session id",
        );
    }
    let Initialize { version, client_name, client_capabilities, answer } = accepted;
    let opening = Opening {
        client: Client::new(
            fresh_id(random),
            &client_name,
            version,
            ProtocolFamily::Legacy,
            client_capabilities,
        ),
        endpoint: post.endpoint.clone(),
        principal: post.principal.clone(),
        key: SessionKey::of(post.head),
        source: post.connection.source,
    };
    let Some(session_id) = post.sessions.new_id(&opening, random, unix_ms) else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "no id for a session");
    };
    match post.sessions.open_as(session_id, opening, None, post.now_ms) {
        Ok(session) => {
            let mut response = json(StatusCode::OK, Body::from(answer));
            if let Ok(id) = HeaderValue::from_str(session.id()) {
                response.headers_mut().insert(SESSION_ID, id);
            }
            response
        }
        Err(refused) => invalid_request(StatusCode::SERVICE_UNAVAILABLE, id, &refused.to_string()),
    }
}

fn find(post: &Post<'_>) -> Result<Arc<Session>, NoSession> {
    const UNKNOWN: NoSession = (StatusCode::NOT_FOUND, "Session not found: send initialize again");
    let Post { sessions, connection, now_ms, head, ref endpoint, .. } = *post;
    let is_matched = |known: &KnownHead| known.matches_session;
    if connection.known_head.borrow().as_ref().is_some_and(is_matched)
        && let Some(session) = &*connection.session.borrow()
        && session.touch(now_ms)
    {
        return Ok(Arc::clone(session));
    }
    let id = session_id(&head.headers)?.ok_or((
        StatusCode::BAD_REQUEST,
        "Mcp-Session-Id is missing: send initialize first and use the id in its response",
    ))?;
    let session = match remembered(sessions, connection, id, now_ms) {
        Some(session) => session,
        None => opened_elsewhere(post, id)?.ok_or(UNKNOWN)?,
    };
    // The response is the same as for an unknown id, so that it does not reveal which sessions exist.
    if session.endpoint != *endpoint || !session.belongs_to(head, &post.principal) {
        return Err(UNKNOWN);
    }
    let mut versions = head.headers.get_all(&PROTOCOL_VERSION).iter();
    match (versions.next().map(HeaderValue::as_bytes), versions.next()) {
        (None, _) => {}
        (Some(version), None) if LEGACY.iter().any(|known| known.as_bytes() == version) => {}
        (Some(_), _) => return Err((StatusCode::BAD_REQUEST, "Unsupported MCP-Protocol-Version")),
    }
    if let Some(known) = &mut *connection.known_head.borrow_mut() {
        known.matches_session = true;
    }
    Ok(session)
}

fn session_id(headers: &HeaderMap) -> Result<Option<&str>, NoSession> {
    let mut ids = headers.get_all(&SESSION_ID).iter();
    match (ids.next(), ids.next()) {
        (None, _) => Ok(None),
        // Session ids are visible ASCII; anything else is unknown.
        (Some(id), None) => Ok(Some(id.to_str().unwrap_or_default())),
        (Some(_), Some(_)) => {
            Err((StatusCode::BAD_REQUEST, "Mcp-Session-Id is given more than once"))
        }
    }
}

/// Looks up a session: compares the id with the connection's last session, then searches the table.
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

/// Reopens a session from the ticket in its id, if the session belongs to the requester. Only in a fleet.
fn opened_elsewhere(post: &Post<'_>, id: &str) -> Result<Option<Arc<Session>>, NoSession> {
    let Post { sessions, connection, principal, .. } = post;
    if connection.origin == (Origin::Node { reopens: false }) {
        return Ok(None);
    }
    let Some(ticket) = sessions.ticket(id, unix_ms) else { return Ok(None) };
    // The owner is checked before the session takes a slot, so that nobody can fill the table with sessions of others.
    if !ticket.is_for(principal, &post.endpoint) || !ticket.key.binds(principal, post.head) {
        return Ok(None);
    }
    let home = Some(ticket.node);
    let opening = ticket.opening(principal.clone(), connection.source, post.endpoint.clone());
    let session = sessions.open_as(id.into(), opening, home, post.now_ms).map_err(|_| {
        let text = "too many sessions are in use, or too much state is kept: retry later";
        (StatusCode::SERVICE_UNAVAILABLE, text)
    })?;
    session.join(&connection.in_flight);
    *connection.session.borrow_mut() = Some(Arc::clone(&session));
    Ok(Some(session))
}

/// Milliseconds since 1970.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Handles GET: opens the standing event stream, or resumes one after `Last-Event-ID`.
pub(super) async fn get(post: &Post<'_>) -> Response<Body> {
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
            None => {
                return plain(
                    StatusCode::BAD_REQUEST,
                    "Last-Event-ID was not issued by this server",
                );
            }
        },
    };
    if let Some(answer) = placement::stream_elsewhere(post, &session, seen).await {
        return answer;
    }
    post.sessions.note_use(&session);
    match seen {
        Some(seen @ EventId { kind: StreamKind::Reply, .. }) => {
            listen::resumed(&session, seen, post.worker.settings().streams.keepalive)
                .unwrap_or_else(|| {
                    let text = "Last-Event-ID: that stream is no longer available";
                    plain(StatusCode::BAD_REQUEST, text)
                })
        }
        Some(EventId { kind: StreamKind::Standing, .. }) | None => {
            listen::standing(post.worker, post.sessions, &session, &post.principal, seen)
        }
    }
}

/// Handles DELETE: ends the session.
pub(super) async fn delete(post: &Post<'_>) -> Response<Body> {
    if !has_session(&post.head.headers) {
        return not_allowed();
    }
    if post.connection.origin != Origin::Client {
        return ended_elsewhere(post);
    }
    match find(post) {
        Ok(session) if post.sessions.end_for_good(&session, unix_ms) => {
            placement::broadcast(post, b"", false).await;
            status(StatusCode::NO_CONTENT)
        }
        Ok(_) => plain(StatusCode::NOT_FOUND, "Session not found"),
        Err((code, text)) => plain(code, text),
    }
}

/// Ends a session on behalf of another node, without reopening it.
fn ended_elsewhere(post: &Post<'_>) -> Response<Body> {
    if let Ok(Some(id)) = session_id(&post.head.headers)
        && let Some(ticket) = post.sessions.ticket(id, unix_ms)
        && ticket.is_for(&post.principal, &post.endpoint)
        && ticket.key.binds(&post.principal, post.head)
    {
        post.sessions.end_by_ticket(id, &ticket, unix_ms);
    }
    status(StatusCode::NO_CONTENT)
}

/// Whether the request names a session, which only legacy clients do.
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

/// Maximum number of messages of one batch.
const MAX_BATCH: usize = 64;
/// Method that is broadcast to all nodes.
const SET_LEVEL: &str = "logging/setLevel";

/// Response to one message of a batch.
enum Item {
    Ready(Bytes),
    Call(Bytes, Watched),
    Forwarded(ForwardedResponse),
}

struct BatchMessage {
    text: Bytes,
    /// The parsed message, or the error response.
    read: Result<Incoming, Bytes>,
    place: MessagePlace,
}

/// Serves a batch (MCP 2025-03-26) as an array of responses, produced one after another, so that memory is bounded by
/// the size of one result.
pub(super) async fn many(post: &Post<'_>, session: &Arc<Session>, body: &Bytes) -> Response<Body> {
    let invalid = |text: &str| invalid_request(StatusCode::BAD_REQUEST, None, text);
    if let Err(problem) = dispatch::check(post.worker, body) {
        return invalid(&problem);
    }
    let Some(messages) = jsonrpc::batch(body) else { return invalid("Invalid Request: no batch") };
    if messages.is_empty() || messages.len() > MAX_BATCH {
        return invalid(&format!("Invalid Request: a batch must have 1 to {MAX_BATCH} messages"));
    }
    post.sessions.note_use(session);
    let messages = match placed(post, session, messages).await {
        Ok(messages) => messages,
        Err(answer) => return answer,
    };
    let peer = post.peer(session, Channel::Answer);
    let (mut items, mut notifications) = (VecDeque::new(), Vec::new());
    for BatchMessage { text, mut read, place } in messages {
        // The id is copied: the last call may outlive the others, and a slice would pin the arguments of the whole
        // batch.
        if body.len() > SMALL_MESSAGE_BYTES
            && let Ok(Incoming::Request(received)) = &mut read
        {
            received.request.copy_id();
        }
        let is_lost_with_node = matches!(place, MessagePlace::On(_));
        let not_there = if is_lost_with_node { placement::GONE } else { placement::NOT_ANSWERED };
        let received = match (read, place) {
            (Err(error), _) => {
                items.push_back(Item::Ready(error));
                continue;
            }
            (Ok(incoming), MessagePlace::On(node) | MessagePlace::OnOrHere(node)) => {
                match id_of(incoming) {
                    Some(id) => {
                        let answer = placement::answer_to(post, node, id, not_there, &text);
                        items.push_back(Item::Forwarded(answer));
                    }
                    None => notifications.push((node, text)),
                }
                continue;
            }
            (
                Ok(Incoming::Response(response)),
                MessagePlace::Here | MessagePlace::NotKnown | MessagePlace::Gone,
            ) => {
                let answered = dispatch::respond(post.worker, &session.client, response).await;
                items.extend(answered.err().map(Item::Ready));
                continue;
            }
            (
                Ok(Incoming::Request(received)),
                MessagePlace::Here | MessagePlace::NotKnown | MessagePlace::Gone,
            ) => received,
        };
        let is_level = &*received.request.method == SET_LEVEL;
        match dispatch::dispatch(post.worker, &peer, received) {
            Reaction::Noted => {}
            Reaction::Cancel(id) => {
                if !session.cancel(&id) {
                    placement::broadcast(post, &text, false).await;
                }
            }
            Reaction::Answer(answer) if is_level => {
                placement::broadcast(post, &text, true).await;
                items.push_back(Item::Ready(answer));
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
    // Notifications have no order within a batch, so they are forwarded concurrently.
    future::join_all(notifications.iter().map(|(node, text)| placement::notify(post, node, text)))
        .await;
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

/// Parses the messages and places each on a node. Fails with a response for the whole batch if the node of any
/// message is dead or unknown.
async fn placed(
    post: &Post<'_>,
    session: &Session,
    messages: Vec<Bytes>,
) -> Result<Vec<BatchMessage>, Response<Body>> {
    let mut placed = Vec::with_capacity(messages.len());
    for text in messages {
        let read = dispatch::read(post.worker, &text);
        let place = match &read {
            Err(_) => MessagePlace::Here,
            Ok(incoming) => placement::place_of(post, session, incoming).await,
        };
        match place {
            MessagePlace::Gone => return Err(placement::gone()),
            MessagePlace::NotKnown => return Err(placement::not_known()),
            MessagePlace::Here | MessagePlace::On(_) | MessagePlace::OnOrHere(_) => {}
        }
        placed.push(BatchMessage { text, read, place });
    }
    Ok(placed)
}

/// Raw id of a request.
fn id_of(incoming: Incoming) -> Option<Bytes> {
    match incoming {
        Incoming::Request(received) => received.request.id,
        Incoming::Response(_) => None,
    }
}

struct Batch {
    worker: Rc<Worker>,
    items: VecDeque<Item>,
    out: VecDeque<Bytes>,
    /// Whether the array has begun.
    opened: bool,
    /// Whether the first response has begun.
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
                Some(Item::Forwarded(parts)) => match parts.next().await {
                    Some(part) if self.begun => self.out.push_back(part?),
                    Some(part) => {
                        self.out.extend([Bytes::from_static(separator.as_bytes()), part?]);
                        self.begun = true;
                    }
                    None => {
                        // Only responses have a body.
                        self.opened |= self.begun;
                        self.begun = false;
                        self.items.pop_front();
                    }
                },
                Some(Item::Call(id, call)) => {
                    let first = |head: Bytes| [Bytes::from_static(separator.as_bytes()), head];
                    let over = match call.next().await {
                        Taken::Piece(Piece::Notification(_) | Piece::Request(_) | Piece::Alive) => {
                            false
                        }
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
                            let answer = refusal.mcp_response(ProtocolFamily::Legacy, id);
                            self.out.extend(first(answer));
                            true
                        }
                        Taken::Over => {
                            self.out.push_back(jsonrpc::TAIL);
                            true
                        }
                        Taken::Broken(aborted) => return Err(aborted),
                        Taken::Canceled if self.begun => {
                            return Err(Aborted("the client cancelled the call".into()));
                        }
                        Taken::Canceled => {
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

#[cfg(test)]
mod tests {
    use http::header::HeaderName;
    use mcpproxy_policy::Principal;

    use super::*;

    fn headers(lines: &[(HeaderName, &'static str)]) -> HeaderMap {
        let lines =
            lines.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        let mut headers = HeaderMap::new();
        lines.for_each(|(name, value)| {
            headers.append(name, value);
        });
        headers
    }

    #[test]
    fn repeated_session_id_header_is_refused() {
        assert_eq!(session_id(&headers(&[])), Ok(None));
        assert_eq!(session_id(&headers(&[(SESSION_ID, "x")])), Ok(Some("x")));
        let repeated = headers(&[(SESSION_ID, "x"), (SESSION_ID, "x")]);
        assert_eq!(session_id(&repeated).unwrap_err().0, StatusCode::BAD_REQUEST);
        let mut foreign = headers(&[]);
        foreign.insert(SESSION_ID, HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(session_id(&foreign), Ok(Some("")), "not a session id");
    }

    #[test]
    fn get_and_delete_require_a_legacy_session() {
        let session = (SESSION_ID, "x");
        assert!(has_session(&headers(std::slice::from_ref(&session))));
        assert!(has_session(&headers(&[session.clone(), (PROTOCOL_VERSION, NEWEST_LEGACY)])));
        assert!(!has_session(&headers(&[session, (PROTOCOL_VERSION, MODERN)])));
        assert!(!has_session(&headers(&[])));
    }

    #[test]
    fn connection_caches_its_last_session() {
        let (sessions, connection) = (Sessions::default(), ClientConnection::default());
        let open = |n: u8| {
            let client = anonymous_client(&fresh_id([n; 16]));
            let (endpoint, source) = (Default::default(), Default::default());
            sessions
                .open(
                    Opening {
                        client,
                        endpoint,
                        principal: Principal::Anonymous,
                        key: SessionKey::default(),
                        source,
                    },
                    0,
                )
                .unwrap()
        };
        let (one, two) = (open(1), open(2));
        let find = |id: &str| remembered(&sessions, &connection, id, 1);
        assert!(find("x").is_none());
        assert!(find(one.id()).is_some_and(|found| Arc::ptr_eq(&found, &one)));
        assert!(find(two.id()).is_some_and(|found| Arc::ptr_eq(&found, &two)));
        assert!(find(one.id()).is_some_and(|found| Arc::ptr_eq(&found, &one)));
        sessions.end(one.id());
        assert!(find(one.id()).is_none(), "ended despite being cached");
    }
}
