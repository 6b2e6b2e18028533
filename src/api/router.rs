//! From a request to its handler: the API key, the path, the method, the handler of the route.

use std::rc::Rc;
use std::time::SystemTime;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body as HttpBody;

use super::query_parameters::Query;
use super::response::{self, ApiError};
use super::routes::{self, Route};
use super::state::{ConnectionInfo, State};
use super::{
    activity, call, definitions, events, export, health, metrics, openapi, proof, request_id,
    servers, status, tools,
};
use crate::downstream::api_key;
use crate::downstream::body::Body;
use crate::downstream::http::collect;
use crate::policy::Principal;
use crate::proxy::Worker;

/// Answers one request to anything but `/mcp`.
pub async fn handle<B>(
    state: &State,
    worker: &Rc<Worker>,
    connection: ConnectionInfo,
    request: Request<B>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let auth = &worker.settings().http_auth;
    let principal = api_key::principal(auth, request.headers(), request.uri());
    respond(state, worker, connection, request, principal).await
}

/// Answers one request of our own process, on behalf of the admin: the command line, which
/// has read the key, asks this way where no server runs.
pub async fn handle_own<B>(
    state: &State,
    worker: &Rc<Worker>,
    request: Request<B>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    respond(state, worker, ConnectionInfo::default(), request, Principal::Admin).await
}

async fn respond<B>(
    state: &State,
    worker: &Rc<Worker>,
    connection: ConnectionInfo,
    request: Request<B>,
    principal: Principal,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let id = request_id::of(request.headers());
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    if principal == Principal::Anonymous && routes::needs_key(path) {
        return response::error(StatusCode::UNAUTHORIZED, UNAUTHORIZED, &id);
    }
    let answered = match routes::find(path) {
        None => Err(ApiError::no_such_path()),
        Some((route, _)) if !route.allows(&parts.method) => {
            return response::wrong_method(route.allowed(), &id);
        }
        Some(meant) => {
            perform(state, worker, (connection, principal), &parts, body, meant, &id).await
        }
    };
    answered.unwrap_or_else(|failure| failure.response(&id))
}

/// Runs the handler of a route.
async fn perform<B>(
    state: &State,
    worker: &Rc<Worker>,
    (connection, principal): (ConnectionInfo, Principal),
    parts: &Parts,
    body: B,
    (route, segment): (Route, &str),
    id: &str,
) -> Result<Response<Body>, ApiError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let query = Query::parse(parts.uri.query());
    let data = match route {
        // Probes add query parameters of their own: these two ignore them.
        Route::Health => return Ok(health::alive(worker, id)),
        Route::Readiness => return Ok(health::ready(worker, principal == Principal::Admin, id)),
        Route::Proof => {
            proof::answer(&worker.settings().http_auth.api_key, connection.local, query?)
        }
        Route::Events => {
            return events::events(state, worker, connection.source, query?, &parts.headers, id)
                .await;
        }
        Route::ActivityExport => {
            return export::export(state, worker, connection.source, query?, id).await;
        }
        Route::Call => {
            query?.finish()?;
            let body = collect(body)
                .await
                .map_err(|refused| ApiError::new(refused.status(), format!("The {refused}")))?;
            return Ok(call::call(worker, principal, &parts.headers, id, body).await);
        }
        Route::ToolApprove => {
            query?.finish()?;
            let body = collect(body)
                .await
                .map_err(|refused| ApiError::new(refused.status(), format!("The {refused}")))?;
            definitions::approve(worker, (&principal, &parts.headers, id), segment, &body).await
        }
        Route::Metrics => return metrics::metrics(state, worker, query?, id),
        Route::OpenApi => return openapi::document(query?, id),
        Route::ActivityList => activity::list(worker, query?).await,
        Route::ActivityRecord => activity::record(worker, query?, segment).await,
        Route::ActivitySummary => activity::summary(worker, query?, SystemTime::now()).await,
        Route::ActivityVerify => activity::verify(worker, query?).await,
        Route::Servers => servers::servers(worker, query?),
        Route::Tools => tools::tools(worker, query?),
        Route::Tool => tools::tool(worker, query?, segment),
        Route::ToolDiff => definitions::diff(worker, query?, segment),
        Route::Status => status::status(state, worker, query?),
    };
    Ok(response::success(data?, id))
}

/// A refusal from in front of every face, as JSON.
#[must_use]
pub fn refuse(status: StatusCode, message: &str) -> Response<Body> {
    response::error(status, message, &request_id::fresh())
}

/// 401: the key is missing, or another.
#[must_use]
pub fn unauthorized() -> Response<Body> {
    refuse(StatusCode::UNAUTHORIZED, UNAUTHORIZED)
}

const UNAUTHORIZED: &str = "Invalid or missing API key";
