//! From a request to its handler: the API key, the path, the method, the handler of the route.

use std::rc::Rc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::WWW_AUTHENTICATE;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as HttpBody;

use super::query_parameters::Query;
use super::response::{self, ApiError};
use super::routes::{self, Route};
use super::state::{ConnectionInfo, State};
use super::{
    activity, approvals, call, config, definitions, events, export, fleet, fleet_config, health,
    metrics, openapi, page_session, policy, policy_replay, proof, request_id, resource_metadata,
    server_login, servers, status, tokens, tools,
};
use crate::downstream::api_key::Unproven;
use crate::downstream::body::Body;
use crate::downstream::http::{NoBody, collect};
use crate::identity::{PageSession, Proven};
use crate::policy::Principal;
use crate::proxy::Worker;

/// Answers one request to anything but `/mcp`, made by whom its head has `proven`.
pub async fn handle<B>(
    state: &State,
    worker: &Rc<Worker>,
    connection: ConnectionInfo,
    request: Request<B>,
    proven: Result<Proven, Unproven>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let principal = proven.map(|proven| proven.principal);
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
    respond(state, worker, ConnectionInfo::default(), request, Ok(Principal::Admin)).await
}

async fn respond<B>(
    state: &State,
    worker: &Rc<Worker>,
    connection: ConnectionInfo,
    request: Request<B>,
    principal: Result<Principal, Unproven>,
) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let id = request_id::of(request.headers());
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let found = routes::find(path);
    // Whoever carries a key or a token is whom that proves, whatever the browser adds.
    let session = match &principal {
        Ok(Principal::Anonymous | Principal::Certificate(_)) => found
            .filter(|(route, _)| route.is_open_to_page())
            .and_then(|_| page_session::session(state, worker, &parts)),
        Ok(Principal::Admin | Principal::Token(_) | Principal::Subject(_)) | Err(_) => None,
    };
    let principal = match principal {
        Ok(_) if session.is_some() => Ok(Principal::Admin),
        Ok(Principal::Anonymous) if routes::needs_key(path) => Err(Unproven::Missing),
        Err(_) if !routes::needs_key(path) => Ok(Principal::Anonymous),
        principal => principal,
    };
    let principal = match principal {
        Ok(principal) => principal,
        Err(unproven) => return unauthorized(worker, &parts.headers, path, &unproven),
    };
    let answered = match found {
        None => Err(ApiError::no_such_path()),
        Some((route, _)) if !route.allows(&parts.method) => {
            return response::wrong_method(route.allowed(), &id);
        }
        Some((route, _)) if !route.is_open_to(&principal) => {
            let text = format!("'{}' may not use {path}: it takes the API key", principal.id());
            return response::error(StatusCode::FORBIDDEN, &text, &id);
        }
        Some(meant) => {
            let asker = Asker { connection, principal, session };
            perform(state, worker, asker, &parts, body, meant, &id).await
        }
    };
    answered.unwrap_or_else(|failure| failure.response(&id))
}

/// Who asks, and how.
struct Asker {
    connection: ConnectionInfo,
    principal: Principal,
    /// That of the page, if the request is made with one.
    session: Option<PageSession>,
}

/// Runs the handler of a route.
async fn perform<B>(
    state: &State,
    worker: &Rc<Worker>,
    Asker { connection, principal, session }: Asker,
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
        Route::Readiness => {
            return Ok(health::ready(state, worker, principal == Principal::Admin, id));
        }
        Route::Proof => {
            proof::answer(&worker.settings().http_auth.api_key, connection.reached.as_ref(), query?)
        }
        Route::Events => {
            let reader = (connection.source, session);
            return events::events(state, worker, reader, query?, &parts.headers, id).await;
        }
        Route::ActivityExport => {
            return export::export(state, worker, connection.source, query?, id).await;
        }
        Route::Call => {
            query?.finish()?;
            let body = whole(worker, &principal, body).await?;
            return Ok(call::call(worker, principal, &parts.headers, id, body).await);
        }
        Route::ResourceMetadata => {
            return resource_metadata::answer(worker, &parts.headers, parts.uri.path(), query?, id);
        }
        Route::Tokens if parts.method == Method::POST => {
            query?.finish()?;
            tokens::create(worker, &principal, &whole(worker, &principal, body).await?).await
        }
        Route::Tokens => tokens::list(worker, query?).await,
        Route::TokenRotation => tokens::rotate(worker, &principal, query?, segment).await,
        Route::Token => tokens::revoke(worker, &principal, query?, segment).await,
        Route::ToolApprove => {
            query?.finish()?;
            let body = whole(worker, &principal, body).await?;
            definitions::approve(worker, (&principal, &parts.headers, id), segment, &body).await
        }
        Route::PageCodes => return page_session::code(state, worker, query?, id),
        Route::PageSession if parts.method == Method::DELETE => {
            return page_session::close(state, worker, query?, &connection, parts, id);
        }
        Route::PageSession => {
            query?.finish()?;
            let (asker, body) = ((&principal, &connection), whole(worker, &principal, body).await?);
            return page_session::open(state, worker, asker, parts, &body, id);
        }
        Route::Metrics => return metrics::metrics(state, worker, query?, &parts.headers, id),
        Route::PolicyExplain => {
            query?.finish()?;
            policy::explain(worker, &whole(worker, &principal, body).await?)
        }
        Route::PolicyReplay => {
            query?.finish()?;
            policy_replay::replay(
                state,
                worker,
                connection.source,
                &whole(worker, &principal, body).await?,
            )
            .await
        }
        Route::Policy => policy::in_force(worker, query?),
        Route::Config => config::standing(state, query?),
        Route::ConfigDifference => config::difference(state, query?).await,
        Route::ConfigReload => return config::reload(state, &principal, query?, id).await,
        Route::ConfigSettings => return config::settings(state, query?, id).await,
        Route::ConfigPreview => {
            query?.finish()?;
            return config::preview(state, worker, &whole(worker, &principal, body).await?, id)
                .await;
        }
        Route::ConfigChange => {
            query?.finish()?;
            return config::change(
                state,
                worker,
                &principal,
                &whole(worker, &principal, body).await?,
                id,
            )
            .await;
        }
        Route::FleetConfig if parts.method == Method::POST => {
            query?.finish()?;
            return fleet_config::apply(
                state,
                &principal,
                whole(worker, &principal, body).await?,
                id,
            )
            .await;
        }
        Route::FleetConfig => fleet_config::standing(state, query?),
        Route::FleetConfigRollback => {
            return fleet_config::roll_back(state, &principal, query?, id).await;
        }
        Route::OpenApi => return openapi::document(query?, id),
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
        Route::ServerLogin => server_login::begin(worker, &principal, query?, segment).await,
        Route::Tools => tools::tools(worker, &principal, query?).await,
        Route::Tool => tools::tool(worker, &principal, query?, segment),
        Route::ToolDiff => definitions::diff(worker, query?, segment),
        Route::Status => status::status(state, worker, query?),
        Route::Fleet => fleet::fleet(state, worker, query?).await,
        Route::Approvals => approvals::list(worker, &principal, query?).await,
        Route::Approval if parts.method == Method::POST => {
            let (query, body) = (query?, whole(worker, &principal, body).await?);
            approvals::answer(worker, &principal, (&parts.headers, query), segment, &body).await
        }
        Route::Approval => approvals::one(worker, &principal, query?, segment).await,
    };
    Ok(response::success(data?, id))
}

/// A refusal from in front of every face, as JSON.
#[must_use]
pub fn refuse(status: StatusCode, message: &str) -> Response<Body> {
    response::error(status, message, &request_id::fresh())
}

/// 401: nothing was proven, for the reason that `unproven` gives. It says where to log in, where one can.
#[must_use]
pub fn unauthorized(
    worker: &Worker,
    headers: &HeaderMap,
    path: &str,
    unproven: &Unproven,
) -> Response<Body> {
    let mut response = refuse(StatusCode::UNAUTHORIZED, &unproven.to_string());
    if let Some(challenge) = resource_metadata::challenge(worker, headers, path, unproven) {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

/// A body that has come whole.
async fn whole<B>(worker: &Worker, principal: &Principal, body: B) -> Result<Bytes, ApiError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let refused = |refused: NoBody| {
        let mut error = ApiError::new(refused.status(), format!("The {refused}"));
        error.retry_after = refused.retry_after();
        error
    };
    collect(body, worker.proxy.bodies.room(principal)).await.map_err(refused)
}
