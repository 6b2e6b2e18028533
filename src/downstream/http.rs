//! `/mcp` and `/mcp/all`: MCP streamable HTTP, in both eras.
//!
//! The door of a request: what every request must be, and which era answers it (`legacy`, `modern`). What a message
//! leads to is decided in `proxy::dispatch`. Host, Origin and the API key were checked before a request gets here.

use std::rc::Rc;

use bytes::Bytes;
use http::header::{ALLOW, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body::Body as HttpBody;

use crate::downstream::body::Body;
use crate::downstream::client_connection::{CameBy, Post};
use crate::downstream::request_head::RequestHead;
use crate::downstream::response::{json, plain};
use crate::downstream::session_table::Sessions;
use crate::downstream::{era, legacy, modern};
use crate::mcp::revisions::Era;
use crate::proxy::Worker;
use crate::proxy::incoming;
use crate::proxy::incoming::Incoming;

pub use crate::downstream::client_connection::ClientConnection;
pub use crate::downstream::request_body::{
    BODY_TIMEOUT, MAX_BODY_BYTES, NoBody, collect, collect_within, no_body,
};
pub use crate::downstream::request_head::PATHS;
pub use crate::downstream::response::{UNNAMED_TYPE, name_type};

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
    let reading = RequestHead::of(head);
    connection.belongs.set(false);
    let post = Post::new(worker, sessions, connection, now_ms, head, reading);
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
    let room = match connection.came_by {
        CameBy::Client => worker.proxy.bodies.room(&post.principal),
        // It stands within what the other node has sent, which has its room. Taken twice, so many of them could be under way
        // that none finds the second.
        CameBy::Peer { .. } => worker.proxy.bodies.room_within(),
    };
    match collect(body, room).await {
        Ok(body) => answer(&post, reading.era, body).await,
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
    let reading = known.unwrap_or_else(|| RequestHead::of(head));
    connection.reading.set(Some(reading));
    connection.belongs.set(connection.belongs.get() && repeated);
    match reading.refusal() {
        Some(refused) => refused,
        None => {
            let post = Post::new(worker, sessions, connection, now_ms, head, reading);
            answer(&post, reading.era, body).await
        }
    }
}

/// Answers a POST by the way of its era, which its headers tell or its body does.
async fn answer(post: &Post<'_>, era: Option<Era>, body: Bytes) -> Response<Body> {
    if era == Some(Era::Legacy) {
        return legacy::post(post, body).await;
    }
    let incoming = match incoming::read(post.worker, &body) {
        Ok(incoming) => incoming,
        Err(error) => return json(StatusCode::BAD_REQUEST, Body::from(error)),
    };
    let is_modern = match &incoming {
        // It opens a session, whatever revision its header names.
        Incoming::Request(received) if era.is_some() => !era::is_initialize(&received.request),
        Incoming::Request(received) => era::is_modern(&post.head.headers, &received.request),
        Incoming::Response(_) => era.is_some(),
    };
    match is_modern {
        true => modern::one(post, incoming, body).await,
        false => legacy::one(post, incoming, body).await,
    }
}
