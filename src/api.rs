//! The REST interface under `/api/v1`, and the two health answers.
//!
//! Owns routes, parameters and envelopes. What a call leads to is `proxy`'s, what is on record is
//! `activity`'s; nothing is decided here. `Host` and `Origin` were checked before a request gets
//! here, and the API key is checked here.

mod activity;
mod answer;
mod auth;
mod call;
mod catalog;
mod events;
mod export;
mod openapi;
pub mod proof;
mod query;
mod readers;
mod route;
mod status;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body::Body as HttpBody;
use tokio::sync::watch;
use ulid::Ulid;

use crate::downstream::body::Body;
use crate::downstream::http::collect;
use crate::downstream::session::Sessions;
use crate::downstream::source::Source;
use crate::policy::Principal;
use crate::proxy::Worker;
use crate::telemetry::Lines;

pub use call::SOURCE;
pub use readers::ReaderSlots;

use answer::Failure;
use query::Query;
use route::Route;

/// What the REST interface needs beside the proxy.
#[derive(Debug)]
pub struct State {
    /// The key that lets a request in; an empty one lets none in.
    pub api_key: Box<str>,
    /// When the server started.
    pub started: Instant,
    /// Becomes true when the server ends: streams without an end of their own end then.
    pub ending: watch::Receiver<bool>,
    /// Where the log is written.
    pub lines: Lines,
    /// Who follows the activity log, or exports it.
    pub readers: ReaderSlots,
    /// Sessions of clients.
    pub sessions: Arc<Sessions>,
    /// How many connections of clients each worker has, once there are workers.
    pub connections: OnceLock<Box<[Arc<AtomicUsize>]>>,
}

/// By which way a request came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// The address of ours that it came to, where it came to one.
    pub came_to: Option<SocketAddr>,
    /// Where it comes from.
    pub source: Source,
}

impl State {
    /// Who makes a request, as far as it proves.
    #[must_use]
    pub fn principal(&self, headers: &HeaderMap, target: &Uri) -> Principal {
        auth::principal(headers, target.query(), &self.api_key)
    }
}

/// Answers one request to anything but `/mcp`.
pub async fn handle<B>(
    state: &State,
    worker: &Rc<Worker>,
    way: Way,
    request: Request<B>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let principal = state.principal(request.headers(), request.uri());
    respond(state, worker, way, request, principal).await
}

/// Answers one request of our own process: of the command line, which has read the key.
pub async fn handle_own<B>(
    state: &State,
    worker: &Rc<Worker>,
    request: Request<B>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    respond(state, worker, Way::default(), request, Principal::Admin).await
}

async fn respond<B>(
    state: &State,
    worker: &Rc<Worker>,
    way: Way,
    request: Request<B>,
    principal: Principal,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let id = answer::request_id(request.headers(), fresh_id);
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    if principal == Principal::Anonymous && route::needs_key(path) {
        return answer::error(StatusCode::UNAUTHORIZED, UNAUTHORIZED, &id);
    }
    let answered = match route::find(path) {
        None => Err(not_found()),
        Some((route, _)) if !route.allows(&parts.method) => {
            return answer::wrong_method(route.allowed(), &id);
        }
        Some(meant) => perform(state, worker, (way, principal), &parts, body, meant, &id).await,
    };
    answered.unwrap_or_else(|failure| failure.response(&id))
}

/// Does what a route is for.
async fn perform<B>(
    state: &State,
    worker: &Rc<Worker>,
    (way, principal): (Way, Principal),
    parts: &Parts,
    body: B,
    (route, segment): (Route, &str),
    id: &str,
) -> Result<Response<Body>, Failure>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let query = Query::parse(parts.uri.query());
    let data = match route {
        // What asks whether we are alive may ask as it likes.
        Route::Health => return Ok(catalog::alive(worker, id)),
        Route::Readiness => return Ok(catalog::ready(worker, principal == Principal::Admin, id)),
        Route::Proof => proof::answer(&state.api_key, way.came_to, query?),
        Route::Events => {
            return events::events(state, worker, way.source, query?, &parts.headers, id).await;
        }
        Route::ActivityExport => {
            return export::export(state, worker, way.source, query?, id).await;
        }
        Route::Call => {
            query?.finish()?;
            let body = collect(body)
                .await
                .map_err(|refused| Failure::new(refused.status(), format!("The {refused}")))?;
            return Ok(call::call(worker, principal, &parts.headers, id, body).await);
        }
        Route::OpenApi => return openapi::document(query?, id),
        Route::ActivityList => activity::list(worker, query?).await,
        Route::ActivityRecord => activity::record(worker, query?, segment).await,
        Route::ActivitySummary => activity::summary(worker, query?, SystemTime::now()).await,
        Route::ActivityVerify => activity::verify(worker, query?).await,
        Route::Servers => catalog::servers(worker, query?),
        Route::Tools => catalog::tools(worker, query?),
        Route::Tool => catalog::tool(worker, query?, segment),
        Route::Status => status::status(state, worker, query?),
    };
    Ok(answer::success(data?, id))
}

/// A refusal from in front of every face, as JSON.
#[must_use]
pub fn refuse(status: StatusCode, message: &str) -> Response<Body> {
    answer::error(status, message, &fresh_id())
}

/// 401: the key is missing, or another.
#[must_use]
pub fn unauthorized() -> Response<Body> {
    refuse(StatusCode::UNAUTHORIZED, UNAUTHORIZED)
}

const UNAUTHORIZED: &str = "Invalid or missing API key";

fn not_found() -> Failure {
    let message =
        "Not found: MCP is at /mcp, REST under /api/v1, described by /api/v1/openapi.json";
    Failure::new(StatusCode::NOT_FOUND, message)
}

/// An id for a request that brought none.
fn fresh_id() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut random = [0; 16];
    // Without randomness the id is still the time's: it names a request, and guards nothing.
    let _ = getrandom::fill(&mut random);
    let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Ulid::from_parts(ms, u128::from_ne_bytes(random)).to_string()
}

/// A path segment as it was meant.
fn segment(text: &str) -> Result<String, Failure> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| not_found())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_ids_differ_and_are_plain() {
        let (one, other) = (fresh_id(), fresh_id());
        assert_ne!(one, other);
        assert!(one.len() == 26 && one.bytes().all(|b| b.is_ascii_alphanumeric()), "{one}");
    }
}
