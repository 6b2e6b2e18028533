//! The initialize-based revisions over HTTP (MCP 2024-11-05 to 2025-11-25 §Transports): which session a request belongs
//! to, and the answers to POST, GET and DELETE.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{ALLOW, HeaderValue};
use http::{HeaderMap, Response, StatusCode};

use crate::downstream::body::Body;
use crate::downstream::client_connection::{CameBy, ClientConnection, Post};
use crate::downstream::forward::{self, Whereabouts};
use crate::downstream::header_names::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID};
use crate::downstream::replay::{EventId, StreamKind};
use crate::downstream::reply::reply;
use crate::downstream::request_head::media;
use crate::downstream::response::{invalid_request, json, plain, status};
use crate::downstream::session::{Opening, Session, fresh_id};
use crate::downstream::session_eviction::TooManySessions;
use crate::downstream::session_key::SessionKey;
use crate::downstream::session_table::Sessions;
use crate::downstream::{batch, get_stream, placing, resume};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::revisions::{Era, LEGACY, MODERN, NEWEST_LEGACY};
use crate::proxy::caller::{Channel, Peer};
use crate::proxy::client::Client;
use crate::proxy::dispatch;
use crate::proxy::incoming;
use crate::proxy::incoming::{Incoming, Received};
use crate::proxy::reaction::{Initialize, Reaction};

/// Why a request has no session: the status, and the text.
type NoSession = (StatusCode, &'static str);

/// Answers a POST whose body may be anything.
pub(super) async fn post(post: &Post<'_>, body: Bytes) -> Response<Body> {
    let batch = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if batch
        && let Ok(session) = find(post)
        && session.client.revision().has_batches()
    {
        return batch::many(post, &session, &body).await;
    }
    match incoming::read(post.worker, &body) {
        Ok(incoming) => one(post, incoming, body).await,
        Err(error) => json(StatusCode::BAD_REQUEST, Body::from(error)),
    }
}

/// Answers one message, whose text is `body`.
pub(super) async fn one(post: &Post<'_>, incoming: Incoming, body: Bytes) -> Response<Body> {
    let received = match incoming {
        Incoming::Request(received) if &*received.request.method == "initialize" => {
            return initialize(post, received);
        }
        Incoming::Request(received) => received,
        Incoming::Response(response) => {
            return match find(post) {
                Ok(session) => {
                    if let Some(answer) =
                        placing::of_response(post, &response).answer(post, &body).await
                    {
                        return answer;
                    }
                    match incoming::respond(post.worker, &session.client, response).await {
                        Ok(()) => status(StatusCode::ACCEPTED),
                        Err(error) => json(StatusCode::BAD_REQUEST, Body::from(error)),
                    }
                }
                Err((code, text)) => invalid_request(code, None, text),
            };
        }
    };
    let session = match find(post) {
        Ok(session) => session,
        Err((code, text)) => return invalid_request(code, received.request.id.as_deref(), text),
    };
    if received.request.id.is_some() {
        post.sessions.note_use(&session);
    }
    let is_level = &*received.request.method == "logging/setLevel";
    let place = placing::of_request(post, &session, &received).await;
    if let Some(answer) = place.answer(post, &body).await {
        return answer;
    }
    let peer = post.peer(&session, post.channel);
    match dispatch::dispatch(post.worker, &peer, received) {
        Reaction::Noted => status(StatusCode::ACCEPTED),
        Reaction::Cancel(id) => {
            if !session.cancel(&id) {
                // It may run on any of them.
                forward::tell_all(post, &body, false).await;
            }
            status(StatusCode::ACCEPTED)
        }
        Reaction::Answer(answer) if is_level => {
            forward::tell_all(post, &body, true).await;
            json(StatusCode::OK, Body::from(answer))
        }
        Reaction::Answer(answer) | Reaction::Error(_, answer) => {
            json(StatusCode::OK, Body::from(answer))
        }
        Reaction::Call { id, running } => {
            // The call keeps what it needs of it, as long as it does.
            drop(body);
            let call = post.connection.in_flight.watch(session.owner(), &id, running);
            reply(post.worker, &id, Era::Legacy, Some(&session), call).await
        }
        // Not of this era: `initialize` was handled above, `subscriptions/listen` is modern.
        Reaction::Initialize(_) | Reaction::Listen { .. } => status(StatusCode::NOT_FOUND),
    }
}

/// A client that has not sent `initialize`.
pub(super) fn anonymous_client(session_id: &str) -> Client {
    Client::new(session_id.into(), "", NEWEST_LEGACY, Era::Legacy, ClientCapabilities::default())
}

fn initialize(post: &Post<'_>, received: Received) -> Response<Body> {
    let client = Arc::new(anonymous_client(""));
    let channel = Channel::Answer;
    let principal = post.principal.clone();
    let endpoint = post.endpoint;
    let peer = Peer { client, principal, endpoint, channel, headers: None, trace: None };
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
    let Some(id) = post.sessions.new_id(&opening, random, unix_ms) else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "no id for a session");
    };
    match post.sessions.open_as(id, opening, None, post.now_ms) {
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
    let session = match remembered(sessions, connection, id, now_ms) {
        Some(session) => session,
        None => opened_elsewhere(post, id)?.ok_or(UNKNOWN)?,
    };
    // The same answer as for an unknown id, so that it does not reveal which sessions exist.
    if session.endpoint != endpoint || !session.belongs_to(head, &post.principal) {
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

/// A session that this node does not have and whose id says what it is, if it is the requester's; only in a fleet.
fn opened_elsewhere(post: &Post<'_>, id: &str) -> Result<Option<Arc<Session>>, NoSession> {
    let Post { sessions, connection, principal, .. } = post;
    if connection.came_by == (CameBy::Peer { reopens: false }) {
        return Ok(None);
    }
    let Some(ticket) = sessions.ticket(id, unix_ms) else { return Ok(None) };
    // Before it takes a place: nobody fills the table with what is another's.
    if !ticket.is_for(principal, post.endpoint) || !ticket.key.binds(principal, post.head) {
        return Ok(None);
    }
    let home = Some(ticket.node);
    let opening = ticket.opening(principal.clone(), connection.source);
    let session =
        sessions.open_as(id.into(), opening, home, post.now_ms).map_err(|TooManySessions| {
            (StatusCode::SERVICE_UNAVAILABLE, "Too many sessions are in use: wait")
        })?;
    session.join(&connection.in_flight);
    *connection.session.borrow_mut() = Some(Arc::clone(&session));
    Ok(Some(session))
}

/// Now, in milliseconds since 1970.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// GET: the stream of messages that belong to no request, or a broken stream that is resumed.
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
            None => return plain(StatusCode::BAD_REQUEST, "Last-Event-ID is no id of ours"),
        },
    };
    // A new one: where the session's other affairs are.
    let lives = match seen.map_or(0, |seen| seen.node()) {
        0 => placing::at_home(post, &session),
        node => forward::whereabouts(post, |tag| tag.number() == node),
    };
    match (lives, seen) {
        (Whereabouts::Here, _) => {}
        (Whereabouts::On(node), _) => match forward::ask(post, &node, b"").await {
            Ok(answer) => return answer,
            // It is not found dead yet: a stream of messages that belong to no request begins anew here all the same.
            Err(error)
                if forward::was_not_asked(&error)
                    && seen.is_none_or(|seen| seen.kind == StreamKind::Standing) => {}
            Err(error) => return forward::refused(&error),
        },
        (Whereabouts::NotKnown, Some(EventId { kind: StreamKind::Reply, .. })) => {
            return forward::not_known();
        }
        // The rest of an answer is lost; a stream of messages that belong to no request begins anew here.
        (_, Some(EventId { kind: StreamKind::Reply, .. })) => return forward::gone(),
        (
            Whereabouts::NotKnown | Whereabouts::Unreachable | Whereabouts::Gone,
            Some(EventId { kind: StreamKind::Standing, .. }) | None,
        ) => {}
    }
    post.sessions.note_use(&session);
    match seen {
        Some(seen @ EventId { kind: StreamKind::Reply, .. }) => resume::resumed(&session, seen)
            .unwrap_or_else(|| {
                let text = "Last-Event-ID: that stream is not kept any more";
                plain(StatusCode::BAD_REQUEST, text)
            }),
        Some(EventId { kind: StreamKind::Standing, .. }) | None => {
            get_stream::standing(post.worker, post.sessions, &session, &post.principal, seen)
        }
    }
}

/// DELETE: ends the session.
pub(super) async fn delete(post: &Post<'_>) -> Response<Body> {
    if !has_session(&post.head.headers) {
        return not_allowed();
    }
    if post.connection.came_by != CameBy::Client {
        return ended_elsewhere(post);
    }
    match find(post) {
        Ok(session) if post.sessions.end_for_good(&session, unix_ms) => {
            forward::tell_all(post, b"", false).await;
            status(StatusCode::NO_CONTENT)
        }
        Ok(_) => plain(StatusCode::NOT_FOUND, "Session not found"),
        Err((code, text)) => plain(code, text),
    }
}

/// Another node tells that a session's client has ended it: here it is not opened to be ended.
fn ended_elsewhere(post: &Post<'_>) -> Response<Body> {
    if let Ok(Some(id)) = session_id(&post.head.headers)
        && let Some(ticket) = post.sessions.ticket(id, unix_ms)
        && ticket.is_for(&post.principal, post.endpoint)
        && ticket.key.binds(&post.principal, post.head)
    {
        post.sessions.end_told(id, &ticket, unix_ms);
    }
    status(StatusCode::NO_CONTENT)
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

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;
    use crate::policy::Principal;

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
    fn a_session_is_named_once() {
        assert_eq!(session_id(&headers(&[])), Ok(None));
        assert_eq!(session_id(&headers(&[(SESSION_ID, "x")])), Ok(Some("x")));
        let twice = headers(&[(SESSION_ID, "x"), (SESSION_ID, "x")]);
        assert_eq!(session_id(&twice).unwrap_err().0, StatusCode::BAD_REQUEST);
        let mut foreign = headers(&[]);
        foreign.insert(SESSION_ID, HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(session_id(&foreign), Ok(Some("")), "no id of ours");
    }

    #[test]
    fn get_and_delete_are_for_sessions_which_the_modern_era_has_not() {
        let session = (SESSION_ID, "x");
        assert!(has_session(&headers(std::slice::from_ref(&session))));
        assert!(has_session(&headers(&[session.clone(), (PROTOCOL_VERSION, NEWEST_LEGACY)])));
        assert!(!has_session(&headers(&[session, (PROTOCOL_VERSION, MODERN)])));
        assert!(!has_session(&headers(&[])));
    }

    #[test]
    fn a_connection_remembers_the_session_it_used_last() {
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
        assert!(find(one.id()).is_none(), "it has ended, whoever remembers it");
    }
}
