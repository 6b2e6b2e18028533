//! Dispatch of a request to its handler, after the checks of credential, path and method.

use std::rc::Rc;

use bytes::Bytes;
use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body as HttpBody;

use super::query_parameters::Query;
use super::request::ApiRequest;
use super::response::{self, ApiError, fresh_request_id};
use super::{endpoints, page_session, resource_metadata};
use crate::api::{ConnectionInfo, State};
use mcpproxy_downstream::authentication::{self, ProofRule, StreamCredential, Unauthenticated};
use mcpproxy_downstream::body::Body;
use mcpproxy_downstream::http::{BodyError, collect};
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_policy::Principal;
use mcpproxy_policy::identity::Proven;

/// Answers a request to any path except `/mcp`. `proven` is the credential in the request's head.
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
    respond(state, worker, Some(connection), request, principal).await
}

/// Answers a request of this process as the admin. The command line, which has read the key, uses it when no server runs.
pub async fn handle_own<B>(
    state: &State,
    worker: &Rc<Worker>,
    request: Request<B>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    respond(state, worker, None, request, Ok(Principal::Admin)).await
}

/// Answers a request that arrived on `connection`; `None` for a request of this process.
async fn respond<B>(
    state: &State,
    worker: &Rc<Worker>,
    connection: Option<ConnectionInfo>,
    request: Request<B>,
    principal: Result<Principal, Unauthenticated>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let is_remote = connection.is_some();
    let connection = connection.unwrap_or_default();
    let id = &response::request_id(request.headers());
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
    let principal = match principal {
        Ok(_) if session.is_some() => Principal::Admin,
        Ok(Principal::Anonymous) if endpoints::needs_key(path) => {
            return unauthorized(worker, &parts.headers, path, &Unauthenticated::Missing);
        }
        Ok(principal) => principal,
        Err(_) if !endpoints::needs_key(path) => Principal::Anonymous,
        Err(unproven) => return unauthorized(worker, &parts.headers, path, &unproven),
    };
    let Some((route, segment)) = found else { return ApiError::no_such_path().response(id) };
    let Some(handler) = route.handler(&parts.method) else {
        return response::wrong_method(route.allowed(), id);
    };
    if !route.is_open_to(&principal) {
        let text = format!("'{}' may not use {path}: the API key is required", principal.id());
        return response::error(StatusCode::FORBIDDEN, &text, id);
    }
    let request = ApiRequest {
        state,
        worker,
        connection: &connection,
        principal: &principal,
        parts: &parts,
        segment,
        id,
        query: Query::parse(parts.uri.query()),
        body: Box::pin(whole(worker, &principal, body)),
    };
    let response = handler(request).await.unwrap_or_else(|error| error.response(id));
    // A stream to a client ends with the client's credential.
    if !is_remote || !matches!(response.body(), Body::Stream(_)) {
        return response;
    }
    let (headers, certificate) = (&parts.headers, connection.certificate.as_ref());
    let credential =
        StreamCredential::new(ProofRule::Rest, headers, &parts.uri, certificate, principal);
    let credential = match session {
        Some(session) => credential.of_page(session),
        None => credential,
    };
    authentication::bind(worker, response, credential)
}

/// Builds a JSON error with a new request id, for requests rejected before dispatch.
pub fn refuse(status: StatusCode, message: &str) -> Response<Body> {
    response::error(status, message, &fresh_request_id())
}

/// Builds a 401 response with the reason and a challenge.
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
async fn whole<B>(worker: &Worker, principal: &Principal, body: B) -> Result<Bytes, ApiError>
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
