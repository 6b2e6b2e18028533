//! `/mcp`, `/mcp/all` and `/mcp/server/NAME`: MCP over streamable HTTP, legacy and modern, and requests forwarded by another node.
//!
//! Requests are passed on by protocol family, to `modern` or `legacy`. Host, Origin and credentials are checked
//! beforehand; `proxy::dispatch` routes messages.
//!
//! A forwarded request is served as if received from the client, for the principal that the other node
//! authenticated. A token or JWT is verified again.

use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::stream;
use http::header::ALLOW;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body::Body as HttpBody;
use http_body_util::Full;
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;

use super::body::{Body, json, plain, status};
use super::placement::ForwardedPrincipal;
use super::request::{KnownHead, Origin, Post, RequestHead};
use super::session_table::Sessions;
use super::source::Source;
use super::{authentication, legacy, modern, placement, request, server_endpoint};
use mcpproxy_gateway::proxy::client::Endpoint;
use mcpproxy_gateway::proxy::dispatch::Incoming;
use mcpproxy_gateway::proxy::{Worker, dispatch};

pub use super::body::{
    BODY_TIMEOUT, BodyError, MAX_BODY_BYTES, UNNAMED_TYPE, body_error, collect, collect_within,
    name_type,
};
pub use super::request::{ClientConnection, PATHS, is_mcp};

/// Serves a request to an MCP path ([`is_mcp`]). `now_ms` is monotonic, of any origin.
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
    let mut reading = RequestHead::of(head);
    connection.known_head.take();
    if let Some(name) = server_endpoint::name(head.uri.path()) {
        let principal = connection.principal.borrow().clone();
        match server_endpoint::find(worker, name.as_deref(), &principal).await {
            Some(server) => reading.endpoint = Endpoint::Server(server),
            None => return plain(StatusCode::NOT_FOUND, server_endpoint::NOT_FOUND),
        }
    }
    let post = Post::new(worker, sessions, connection, now_ms, head, &reading);
    match head.method {
        Method::POST => {}
        Method::GET => return legacy::get(&post).await,
        Method::DELETE => return legacy::delete(&post).await,
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
    let charge = match connection.origin {
        Origin::Client => worker.proxy.bodies.charge(&post.principal),
        // The body is part of the other node's envelope, which is already charged. A second charge could deadlock
        // with those of other requests.
        Origin::Node { .. } => worker.proxy.bodies.uncharged(),
    };
    match collect(body, charge).await {
        Ok(body) => answer(&post, reading.family, body).await,
        Err(refused) => body_error(&refused),
    }
}

/// Serves a POST that was received completely. If `repeated` is true, its head equals the previous one on this
/// connection and is not parsed again.
pub async fn handle_whole(
    worker: &Rc<Worker>,
    sessions: &Sessions,
    connection: &ClientConnection,
    now_ms: u64,
    head: &Parts,
    repeated: bool,
    body: Bytes,
) -> Response<Body> {
    let known = connection.known_head.take().filter(|_| repeated);
    let known = known.unwrap_or_else(|| KnownHead::of(head));
    let reading = known.head.clone();
    connection.known_head.replace(Some(known));
    match reading.refusal() {
        Some(refused) => refused,
        None => {
            let post = Post::new(worker, sessions, connection, now_ms, head, &reading);
            answer(&post, reading.family, body).await
        }
    }
}

/// Dispatches a POST by its protocol family, from the headers or the body.
async fn answer(post: &Post<'_>, family: Option<ProtocolFamily>, body: Bytes) -> Response<Body> {
    if family == Some(ProtocolFamily::Legacy) {
        return legacy::post(post, body).await;
    }
    let incoming = match dispatch::read(post.worker, &body) {
        Ok(incoming) => incoming,
        Err(error) => return json(StatusCode::BAD_REQUEST, Body::from(error)),
    };
    let is_modern = match &incoming {
        // `initialize` opens a session, regardless of the revision in the header.
        Incoming::Request(received) if family.is_some() => {
            !request::is_initialize(&received.request)
        }
        Incoming::Request(received) => request::is_modern(&post.head.headers, &received.request),
        Incoming::Response(_) => family.is_some(),
    };
    match is_modern {
        true => modern::one(post, incoming, body).await,
        false => legacy::one(post, incoming, body).await,
    }
}

/// Serves a request forwarded by another node of the fleet.
pub async fn answer_forwarded(
    worker: &Rc<Worker>,
    sessions: &Sessions,
    now_ms: u64,
    sent: Bytes,
) -> Response<Body> {
    let Some((head, metadata, body)) = placement::decode(&sent) else {
        return status(StatusCode::BAD_REQUEST);
    };
    // The budget stays charged while a slice of the body is alive.
    drop(sent);
    if !is_mcp(head.uri.path()) {
        return status(StatusCode::BAD_REQUEST);
    }
    let principal = match metadata.principal {
        ForwardedPrincipal::Anonymous => Some(Principal::Anonymous),
        ForwardedPrincipal::Admin => Some(Principal::Admin),
        ForwardedPrincipal::Certificate(name) => Some(Principal::certificate(&name)),
        ForwardedPrincipal::Headers => {
            let (auth, now) = (&worker.settings().http_auth, SystemTime::now);
            let (credentials, headers, uri) = (&worker.credentials(), &head.headers, &head.uri);
            let proven =
                authentication::authenticate_mcp(auth, credentials, headers, uri, None, now);
            proven.ok().map(|proven| proven.principal)
        }
    };
    // Both nodes must have authenticated the same principal; otherwise no session matches.
    let Some(principal) = principal.filter(|it| it.mark() == metadata.mark) else {
        return placement::gone();
    };
    let connection = ClientConnection {
        source: metadata.from.map_or(Source::Loopback, Source::of),
        origin: Origin::Node { reopens: metadata.reopens },
        principal: principal.into(),
        ..ClientConnection::default()
    };
    let answer = handle(worker, sessions, &connection, now_ms, &head, Full::new(body)).await;
    let (head, body) = answer.into_parts();
    Response::from_parts(head, kept(body, connection))
}

/// Decodes a forwarded request into head and body.
pub fn forwarded_parts(sent: &Bytes) -> Option<(Parts, Bytes)> {
    placement::decode(sent).map(|(head, _, body)| (head, body))
}

/// Keeps the connection, through which calls are canceled, alive until the body ends.
fn kept(body: Body, connection: ClientConnection) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let ready = VecDeque::new();
    let parts =
        stream::unfold((body, connection, ready), |(mut body, connection, mut ready)| async {
            loop {
                if let Some(part) = ready.pop_front() {
                    return Some((Ok(part), (body, connection, ready)));
                }
                match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await? {
                    Ok(frame) => ready.extend(frame.into_data().unwrap_or_default()),
                    Err(aborted) => return Some((Err(aborted), (Body::Empty, connection, ready))),
                }
            }
        });
    Body::Stream(Box::pin(parts))
}
