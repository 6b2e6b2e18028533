//! The one door for every face that speaks HTTP: `Host` and `Origin` are checked, then the face is found.

use std::rc::Rc;

use http::{Request, Response};

use super::app_state::AppState;
use crate::api;
use crate::downstream::api_key;
use crate::downstream::body::Body;
use crate::downstream::http::{self as mcp, ClientConnection};
use crate::page;
use crate::proxy::Worker;

/// Answers one HTTP request.
pub(super) async fn route<B>(
    shared: &AppState,
    worker: &Rc<Worker>,
    connection: &ClientConnection,
    request: Request<B>,
) -> Response<Body>
where
    B: http_body::Body<Data = bytes::Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let settings = worker.settings();
    let auth = &settings.http_auth;
    if let Err(refused) = auth.host_check.check(request.headers(), request.uri().authority()) {
        return api::refuse(refused.status(), &refused.to_string());
    }
    if let Some(page) = page::answer(&request) {
        return page;
    }
    if !mcp::PATHS.contains(&request.uri().path()) {
        let info =
            api::ConnectionInfo { local: connection.came_to.get(), source: connection.source };
        return api::handle(&shared.api, worker, info, request).await;
    }
    let Some(principal) = api_key::mcp_principal(auth, request.headers(), request.uri()) else {
        return api::unauthorized();
    };
    connection.principal.replace(principal);
    let (head, body) = request.into_parts();
    mcp::handle(worker, &shared.sessions, connection, shared.now_ms(), &head, body).await
}
