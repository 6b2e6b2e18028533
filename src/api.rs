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
mod query;

use std::rc::Rc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body::Body as HttpBody;
use tokio::sync::watch;
use ulid::Ulid;

use crate::downstream::body::Body;
use crate::downstream::http::collect;
use crate::proxy::Worker;

use answer::Failure;
use query::Query;

/// What the REST interface needs beside the proxy.
#[derive(Debug)]
pub struct State {
    /// The key that lets a request in; an empty one lets none in.
    pub api_key: Box<str>,
    /// When the server started.
    pub started: Instant,
    /// Becomes true when the server ends: streams without an end of their own end then.
    pub ending: watch::Receiver<bool>,
}

impl State {
    /// True if the request carries the API key.
    #[must_use]
    pub fn admits(&self, headers: &HeaderMap, target: &Uri) -> bool {
        auth::knows_key(headers, target.query(), &self.api_key)
    }
}

/// Answers one request to anything but `/mcp`.
pub async fn handle<B>(state: &State, worker: &Rc<Worker>, request: Request<B>) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let admitted = state.admits(request.headers(), request.uri());
    respond(state, worker, request, admitted).await
}

/// Answers one request of our own process, which needs no key.
pub async fn handle_own<B>(
    state: &State,
    worker: &Rc<Worker>,
    request: Request<B>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    respond(state, worker, request, true).await
}

async fn respond<B>(
    state: &State,
    worker: &Rc<Worker>,
    request: Request<B>,
    admitted: bool,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let id = answer::request_id(request.headers(), fresh_id);
    let (parts, body) = request.into_parts();
    let path: Vec<&str> = parts.uri.path().split('/').skip(1).collect();
    let data = match (path.as_slice(), admitted) {
        (["healthz"], _) if reads(&parts) => return catalog::alive(worker, &id),
        (["readyz"], _) if reads(&parts) => return catalog::ready(worker, &id),
        (["healthz" | "readyz"], _) => return answer::wrong_method("GET", &id),
        (["api", ..] | ["events"], false) => {
            return answer::error(StatusCode::UNAUTHORIZED, UNAUTHORIZED, &id);
        }
        (["api", "v1", "tools", "call"], true) => {
            if parts.method != Method::POST {
                return answer::wrong_method("POST", &id);
            }
            return match collect(body).await {
                Ok(body) => call::call(worker, &parts.headers, &id, body).await,
                Err(refused) => answer::error(refused.status(), &format!("The {refused}"), &id),
            };
        }
        (["events"], true) | (["api", "v1", "activity", "export"], true) if !reads(&parts) => {
            return answer::wrong_method("GET", &id);
        }
        (["events"], true) => match events::events(state, worker, &parts, &id).await {
            Ok(response) => return response,
            Err(failure) => Err(failure),
        },
        (["api", "v1", "activity", "export"], true) => {
            match export::export(worker, parts.uri.query(), &id).await {
                Ok(response) => return response,
                Err(failure) => Err(failure),
            }
        }
        (["api", "v1", path @ ..], true) => match resource(path) {
            Some(_) if !reads(&parts) => return answer::wrong_method("GET", &id),
            Some(resource) => read(state, worker, resource, parts.uri.query()).await,
            None => Err(not_found()),
        },
        _ => Err(not_found()),
    };
    match data {
        Ok(data) => answer::success(data, &id),
        Err(failure) => failure.response(&id),
    }
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

/// What can be read.
enum Resource<'a> {
    ActivityList,
    ActivitySummary,
    ActivityVerify,
    ActivityRecord(&'a str),
    Servers,
    Tools,
    Tool(&'a str),
    Status,
}

fn resource<'a>(path: &[&'a str]) -> Option<Resource<'a>> {
    Some(match path {
        ["activity"] => Resource::ActivityList,
        ["activity", "summary"] => Resource::ActivitySummary,
        ["activity", "verify"] => Resource::ActivityVerify,
        ["activity", id] => Resource::ActivityRecord(id),
        ["servers"] => Resource::Servers,
        ["tools"] => Resource::Tools,
        ["tools", name] => Resource::Tool(name),
        ["status"] => Resource::Status,
        _ => return None,
    })
}

async fn read(
    state: &State,
    worker: &Worker,
    resource: Resource<'_>,
    query: Option<&str>,
) -> Result<Bytes, Failure> {
    let query = Query::parse(query)?;
    match resource {
        Resource::ActivityList => activity::list(worker, query).await,
        Resource::ActivitySummary => activity::summary(worker, query, SystemTime::now()).await,
        Resource::ActivityVerify => activity::verify(worker, query).await,
        Resource::ActivityRecord(id) => activity::record(worker, query, id).await,
        Resource::Servers => catalog::servers(worker, query),
        Resource::Tools => catalog::tools(worker, query),
        Resource::Tool(name) => catalog::tool(worker, query, name),
        Resource::Status => catalog::status(worker, query, state.started.elapsed()),
    }
}

fn reads(parts: &Parts) -> bool {
    matches!(parts.method, Method::GET | Method::HEAD)
}

fn not_found() -> Failure {
    let message =
        "Not found: MCP is at /mcp, REST under /api/v1 (activity, servers, tools, status)";
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

    #[test]
    fn paths_lead_where_the_contract_says() {
        assert!(matches!(resource(&["activity"]), Some(Resource::ActivityList)));
        assert!(matches!(resource(&["activity", "summary"]), Some(Resource::ActivitySummary)));
        assert!(matches!(resource(&["activity", "verify"]), Some(Resource::ActivityVerify)));
        assert!(matches!(resource(&["activity", "01X"]), Some(Resource::ActivityRecord("01X"))));
        assert!(matches!(resource(&["tools", "a:b"]), Some(Resource::Tool("a:b"))));
        for unknown in [&["activity", "a", "b"][..], &["tool"], &[""], &[]] {
            assert!(resource(unknown).is_none(), "{unknown:?}");
        }
    }
}
