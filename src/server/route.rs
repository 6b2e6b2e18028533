//! The one door for every face that speaks HTTP: `Host` and `Origin` are checked, then the face is found.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::SystemTime;

use http::{Request, Response};

use super::app_state::AppState;
use super::peer_door;
use crate::api;
use crate::downstream::api_key::{self, Unproven};
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
    // A node calls this one by whatever name it is reached by, and shows that it is one.
    let request = match peer_door::answer(shared, request).await {
        ControlFlow::Break(answer) => return answer,
        ControlFlow::Continue(request) => request,
    };
    let settings = worker.settings();
    let auth = &settings.http_auth;
    if let Err(refused) = auth.host_check.check(request.headers(), request.uri().authority()) {
        return api::refuse(refused.status(), &refused.to_string());
    }
    if let Some(page) = page::answer(&request) {
        return page;
    }
    let is_mcp = mcp::PATHS.contains(&request.uri().path());
    let prove = if is_mcp { api_key::prove_for_mcp } else { api_key::prove };
    let ask = || {
        let (headers, target) = (request.headers(), request.uri());
        let certificate = connection.certificate.as_ref();
        prove(auth, &worker.credentials(), headers, target, certificate, SystemTime::now)
    };
    let mut proven = ask();
    if proven.as_ref().is_err_and(Unproven::wants_keys) {
        // Its issuer may have new keys.
        worker.proxy.identity.renew_keys().await;
        proven = ask();
    }
    if !is_mcp {
        let info = api::ConnectionInfo {
            reached: connection.came_to.borrow().clone(),
            source: connection.source,
        };
        return api::handle(&shared.api, worker, info, request, proven).await;
    }
    match proven {
        Ok(proven) => connection.principal.replace(proven.principal),
        Err(unproven) => {
            return api::unauthorized(worker, request.headers(), request.uri().path(), &unproven);
        }
    };
    let (head, body) = request.into_parts();
    mcp::handle(worker, &shared.sessions, connection, shared.now_ms(), &head, body).await
}
