//! `/mcp`, `/mcp/all` and `/mcp/server/NAME`: MCP over streamable HTTP, legacy and modern, and requests forwarded by another node.
//!
//! Requests are dispatched by protocol family: the modern one (MCP 2026-07-28) is served here, the legacy one in
//! `legacy`. Host, Origin and credentials are checked beforehand; `proxy::dispatch` routes messages.
//!
//! A forwarded request is served as if received from the client, for the principal that the other node
//! authenticated. A token or JWT is verified again.

use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::stream;
use http::header::ALLOW;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body::Body as HttpBody;
use http_body_util::Full;
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::headers::{Form, HeaderMismatch};
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::revisions::{MODERN, ProtocolFamily};
use mcpproxy_protocol::mcp::{headers, jsonrpc};

use super::body::{Body, json, plain, status};
use super::placement::ForwardedPrincipal;
use super::reply::reply;
use super::request::{ClientRefused, Origin, PROTOCOL_VERSION, Post, RequestHead, RequestParams};
use super::session_table::Sessions;
use super::source::Source;
use super::{authentication, legacy, listen, placement, request, server_endpoint};
use crate::proxy::client::{Channel, Client, Endpoint, Peer};
use crate::proxy::dispatch::{Incoming, Received};
use crate::proxy::params::ParamHeaders;
use crate::proxy::refusal::{Refusal, RefusalKind};
use crate::proxy::reply::Reaction;
use crate::proxy::{Worker, call, dispatch};

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
    connection.belongs.set(false);
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
    let known = connection.reading.take().filter(|_| repeated);
    let reading = known.unwrap_or_else(|| RequestHead::of(head));
    connection.reading.replace(Some(reading.clone()));
    connection.belongs.set(connection.belongs.get() && repeated);
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
        true => one(post, incoming, body).await,
        false => legacy::one(post, incoming, body).await,
    }
}

pub(super) async fn one(post: &Post<'_>, incoming: Incoming, body: Bytes) -> Response<Body> {
    match incoming {
        Incoming::Request(received) => request(post, received, body).await,
        Incoming::Response(_) => {
            let text = "Invalid Request: in this revision clients send no responses";
            refuse(jsonrpc::error(None, Code::InvalidRequest, text))
        }
    }
}

fn refuse(error: Bytes) -> Response<Body> {
    json(StatusCode::BAD_REQUEST, Body::from(error))
}

/// Serves one request, whose text is `body`.
async fn request(post: &Post<'_>, received: Received, body: Bytes) -> Response<Body> {
    let Some(id) = received.request.id.clone() else {
        // Notifications have no meaning over HTTP (MCP 2026-07-28 §Sending Messages).
        return status(StatusCode::ACCEPTED);
    };
    let client = match admit(post, &received) {
        Ok(client) => client,
        Err(refused) => {
            if let (ClientRefused::Headers(mismatch), "tools/call") =
                (&refused, &*received.request.method)
            {
                // This future is rare and large, so it is boxed to keep it out of every request's future.
                Box::pin(record_mismatch(post, &id, mismatch)).await;
            }
            return refuse(refused.answer(post.worker, Some(&id)));
        }
    };
    if let Some(answer) = placement::answer_modern_elsewhere(post, &received, &body).await {
        return answer;
    }
    // The call keeps the slices of the body that it needs.
    drop(body);
    let headers = post.head.headers.iter();
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
    // Built-in tools have no parameters repeated in headers.
    let headers = (post.endpoint != Endpoint::Search).then(|| ParamHeaders::pick(headers));
    let (principal, channel) = (post.principal.clone(), post.channel);
    let (endpoint, trace) = (post.endpoint.clone(), post.trace());
    let peer = Peer { client, principal, endpoint, channel, headers, trace };
    match dispatch::dispatch(post.worker, &peer, received) {
        Reaction::Answer(answer) => json(StatusCode::OK, Body::from(answer)),
        Reaction::Error(Code::MethodNotFound, answer) => {
            json(StatusCode::NOT_FOUND, Body::from(answer))
        }
        Reaction::Error(Code::MissingCapability, answer) => {
            json(StatusCode::BAD_REQUEST, Body::from(answer))
        }
        Reaction::Error(_, answer) => json(StatusCode::OK, Body::from(answer)),
        // The call ends when the connection is closed.
        Reaction::Call { id, running } => {
            reply(post.worker, &id, ProtocolFamily::Modern, None, post.channel, running.into())
                .await
        }
        Reaction::Listen { .. } if post.channel == Channel::Answer => {
            plain(StatusCode::NOT_ACCEPTABLE, "Accept must include text/event-stream")
        }
        Reaction::Listen { id, filter } => {
            Box::pin(listen::subscribe(post.worker, post.sessions, &peer, id, filter)).await
        }
        Reaction::Noted | Reaction::Cancel(_) | Reaction::Initialize(_) => {
            status(StatusCode::ACCEPTED)
        }
    }
}

/// Records a tool call whose headers disagree with its body.
async fn record_mismatch(post: &Post<'_>, id: &Bytes, mismatch: &HeaderMismatch) {
    let peer = Peer {
        client: unknown_client(),
        principal: post.principal.clone(),
        endpoint: post.endpoint.clone(),
        channel: post.channel,
        headers: None,
        trace: post.trace(),
    };
    let refusal = Refusal::rejected(RefusalKind::Headers, format!("Header mismatch: {mismatch}"));
    // The refusal is sent even if it cannot be recorded.
    let _ = call::rejected(post.worker, peer.caller(id), String::new(), refusal).next().await;
}

/// Placeholder client of a request that is refused before its body is parsed.
fn unknown_client() -> Arc<Client> {
    let capabilities = ClientCapabilities::default();
    Arc::new(Client::new(Arc::from(""), "", MODERN, ProtocolFamily::Modern, capabilities))
}

/// The client of a request, if body and headers are valid and consistent.
fn admit(post: &Post<'_>, received: &Received) -> Result<Arc<Client>, ClientRefused> {
    if received.is_ambiguous() {
        // The request is refused because its body is ambiguous, so that headers cannot be compared with it.
        return Ok(unknown_client());
    }
    let params = RequestParams::read(&received.request)?;
    let version = params.version()?;
    let headers = &post.head.headers;
    let lines = headers.get_all(&PROTOCOL_VERSION).iter().map(|value| value.as_bytes());
    headers::agree(headers::PROTOCOL_VERSION, Form::Plain, lines, Some(&version)).map_err(
        |mismatch| match (mismatch, headers.get(&PROTOCOL_VERSION)) {
            (HeaderMismatch::Different(_), Some(stated)) => {
                HeaderMismatch::of_versions(stated.as_bytes(), &version)
            }
            (other, _) => other,
        },
    )?;
    let client = params.known(&mut post.connection.client.borrow_mut())?;
    params.agree(headers, &received.request.method)?;
    Ok(client)
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
