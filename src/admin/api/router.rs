//! Dispatch of a request to its handler, after the checks of credential, path and method.

use std::rc::Rc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::WWW_AUTHENTICATE;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as HttpBody;

use super::endpoints::{self, Route};
use super::query_parameters::{BadQuery, Query};
use super::response::{self, ApiError, fresh_request_id};
use super::{
    activity, approvals, call, config, events, export, fleet, metrics, page_session, policy, proof,
    resource_metadata, servers, status, tokens, tools,
};
use crate::api::{ConnectionInfo, State};
use mcpproxy_gateway::downstream::authentication::{
    self, ProofRule, StreamCredential, Unauthenticated,
};
use mcpproxy_gateway::downstream::body::Body;
use mcpproxy_gateway::downstream::http::{BodyError, collect};
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_policy::Principal;
use mcpproxy_policy::identity::Proven;

/// Answers a request to any path but `/mcp`. `proven` is the credential of its head.
pub async fn handle<B>(
    state: &State,
    worker: &Rc<Worker>,
    connection: ConnectionInfo,
    request: Request<B>,
    proven: Result<Proven, Unauthenticated>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let principal = proven.map(|proven| proven.principal);
    let is_stream =
        endpoints::find(request.uri().path()).is_some_and(|(route, _)| route.is_stream());
    let credential = principal.as_ref().ok().filter(|_| is_stream).map(|principal| {
        let certificate = connection.certificate.as_ref();
        let (headers, target) = (request.headers(), request.uri());
        StreamCredential::new(ProofRule::Rest, headers, target, certificate, principal.clone())
    });
    respond(state, worker, connection, request, principal, credential).await
}

/// Answers a request of this process as the admin. Used by the command line, which has read the key, when no server
/// runs.
pub async fn handle_own<B>(
    state: &State,
    worker: &Rc<Worker>,
    request: Request<B>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    respond(state, worker, ConnectionInfo::default(), request, Ok(Principal::Admin), None).await
}

async fn respond<B>(
    state: &State,
    worker: &Rc<Worker>,
    connection: ConnectionInfo,
    request: Request<B>,
    principal: Result<Principal, Unauthenticated>,
    credential: Option<StreamCredential>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let id = response::request_id(request.headers());
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let found = endpoints::find(path);
    // A key or token takes precedence over the page session.
    let session = match &principal {
        Ok(Principal::Anonymous | Principal::Certificate(_)) => found
            .filter(|(route, _)| route.is_open_to_page())
            .and_then(|_| page_session::session(state, worker, &parts)),
        Ok(Principal::Admin | Principal::Token(_) | Principal::Subject(_)) | Err(_) => None,
    };
    let is_page = session.is_some();
    let credential = match session {
        Some(session) => credential.map(|credential| credential.of_page(session)),
        None => credential,
    };
    let principal = match principal {
        Ok(_) if is_page => Ok(Principal::Admin),
        Ok(Principal::Anonymous) if endpoints::needs_key(path) => Err(Unauthenticated::Missing),
        Err(_) if !endpoints::needs_key(path) => Ok(Principal::Anonymous),
        principal => principal,
    };
    let principal = match principal {
        Ok(principal) => principal,
        Err(unproven) => return unauthorized(worker, &parts.headers, path, &unproven),
    };
    let result = match found {
        None => Err(ApiError::no_such_path()),
        Some((route, _)) if !route.allows(&parts.method) => {
            return response::wrong_method(route.allowed(), &id);
        }
        Some((route, _)) if !route.is_open_to(&principal) => {
            let text = format!("'{}' may not use {path}: the API key is required", principal.id());
            return response::error(StatusCode::FORBIDDEN, &text, &id);
        }
        Some(route) => {
            let caller = ApiCaller { connection, principal };
            perform(state, worker, caller, &parts, body, route, &id).await
        }
    };
    let response = result.unwrap_or_else(|error| error.response(&id));
    match credential {
        Some(credential) => authentication::bind(worker, response, credential),
        None => response,
    }
}

/// Connection and principal of a request.
struct ApiCaller {
    connection: ConnectionInfo,
    principal: Principal,
}

/// Runs the handler of a route.
async fn perform<B>(
    state: &State,
    worker: &Rc<Worker>,
    ApiCaller { connection, principal }: ApiCaller,
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
    // Reads the body of an endpoint without query parameters.
    let whole = async |query: Result<Query, BadQuery>, body| {
        query?.finish()?;
        read_body(worker, &principal, body).await
    };
    let data = match route {
        // Probes add query parameters of their own, which these two ignore.
        Route::Health => return Ok(status::alive(worker, id)),
        Route::Readiness => {
            return Ok(status::ready(state, worker, principal == Principal::Admin, id));
        }
        Route::Proof => {
            proof::answer(&worker.settings().http_auth.api_key, connection.reached.as_ref(), query?)
        }
        Route::Events => {
            let source = connection.source;
            return events::events(state, worker, source, query?, &parts.headers, id).await;
        }
        Route::ActivityExport => {
            return export::export(state, worker, connection.source, query?, id).await;
        }
        Route::Call => {
            let body = whole(query, body).await?;
            return Ok(call::call(worker, principal, &parts.headers, id, body).await);
        }
        Route::ResourceMetadata | Route::ResourceMetadataMcp | Route::ResourceMetadataAll => {
            return resource_metadata::answer(worker, &parts.headers, parts.uri.path(), query?, id);
        }
        Route::Tokens if parts.method == Method::POST => {
            tokens::create(worker, &principal, &whole(query, body).await?).await
        }
        Route::Tokens => tokens::list(worker, query?).await,
        Route::TokenRotation => tokens::rotate(worker, &principal, query?, segment).await,
        Route::Token => tokens::revoke(worker, &principal, query?, segment).await,
        Route::ToolApprove => {
            let body = whole(query, body).await?;
            tools::approve(worker, (&principal, &parts.headers, id), segment, &body).await
        }
        Route::PageCodes => return page_session::code(state, worker, query?, id),
        Route::PageSession if parts.method == Method::DELETE => {
            return page_session::close(state, worker, query?, &connection, parts, id);
        }
        Route::PageSession => {
            let body = whole(query, body).await?;
            return page_session::open(state, worker, (&principal, &connection), parts, &body, id);
        }
        Route::Metrics => return metrics::metrics(state, worker, query?, &parts.headers, id),
        Route::PolicyExplain => policy::explain(worker, &whole(query, body).await?).await,
        Route::PolicyReplay => {
            let body = whole(query, body).await?;
            policy::replay(state, worker, connection.source, &body).await
        }
        Route::Policy => policy::in_force(worker, query?),
        Route::Config => config::config(state, query?),
        Route::ConfigDifference => config::difference(state, query?).await,
        Route::ConfigReload => return config::reload(state, &principal, query?, id).await,
        Route::ConfigSettings => return config::settings(state, query?, id).await,
        Route::ConfigPreview => {
            return config::preview(state, worker, &whole(query, body).await?, id).await;
        }
        Route::ConfigChange => {
            let body = whole(query, body).await?;
            return config::change(state, worker, &principal, &body, id).await;
        }
        Route::FleetConfig if parts.method == Method::POST => {
            let body = whole(query, body).await?;
            return config::apply_fleet_config(state, &principal, body, id).await;
        }
        Route::FleetConfig => config::fleet_config(state, query?),
        Route::FleetConfigRollback => {
            return config::roll_back_fleet_config(state, &principal, query?, id).await;
        }
        Route::OpenApi => return endpoints::document(query?, id),
        Route::ConfigSchema => return config::schema(query?, id),
        Route::ActivityList => {
            activity::list(state, worker, (&principal, connection.source), query?).await
        }
        Route::ActivityRecord => activity::record(state, worker, &principal, query?, segment).await,
        Route::ActivitySummary => activity::summary(state, worker, query?, SystemTime::now()).await,
        Route::ActivityVerify => activity::verify(worker, query?).await,
        Route::Servers => servers::servers(worker, query?),
        Route::ServerLogs => servers::logs(worker, query?, segment).await,
        Route::ServerRestart => servers::restart(worker, query?, segment).await,
        Route::ServerEnable => servers::enable(state, &principal, query?, segment).await,
        Route::ServerDisable => servers::disable(state, &principal, query?, segment).await,
        Route::ServerLogin => servers::log_in(worker, &principal, query?, segment).await,
        Route::Tools => tools::tools(worker, &principal, query?).await,
        Route::Tool => tools::tool(worker, &principal, query?, segment),
        Route::ToolDiff => tools::diff(worker, query?, segment),
        Route::Status => status::status(state, worker, query?),
        Route::Fleet => fleet::fleet(state, worker, query?).await,
        Route::Approvals => approvals::list(worker, &principal, query?).await,
        Route::Approval if parts.method == Method::POST => {
            let (query, body) = (query?, read_body(worker, &principal, body).await?);
            approvals::answer(worker, &principal, (&parts.headers, query), segment, &body).await
        }
        Route::Approval => approvals::one(worker, &principal, query?, segment).await,
    };
    Ok(response::success(data?, id))
}

/// A JSON error with a fresh request id, for requests rejected before dispatch.
pub fn refuse(status: StatusCode, message: &str) -> Response<Body> {
    response::error(status, message, &fresh_request_id())
}

/// 401 with the reason, and a challenge that names the authorization server if there is one.
pub fn unauthorized(
    worker: &Worker,
    headers: &HeaderMap,
    path: &str,
    unproven: &Unauthenticated,
) -> Response<Body> {
    let mut response = refuse(StatusCode::UNAUTHORIZED, &unproven.to_string());
    if let Some(challenge) = resource_metadata::challenge(worker, headers, path, unproven) {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

/// Reads a request body to its end, within its limits of size, time and memory.
async fn read_body<B>(worker: &Worker, principal: &Principal, body: B) -> Result<Bytes, ApiError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let refused = |refused: BodyError| {
        let mut error = ApiError::new(refused.status(), format!("The {refused}"));
        error.retry_after = refused.retry_after();
        error
    };
    collect(body, worker.proxy.bodies.charge(principal)).await.map_err(refused)
}
