//! `POST /api/v1/servers/{name}/login`: a login with a server that asks for one is begun; its address is to be opened in a
//! browser. What it takes is `upstream::log_in`'s; who asked for it is on record.

use std::time::SystemTime;

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::query_parameters::Query;
use super::response::{ApiError, Success, encode};
use super::routes;
use crate::policy::Principal;
use crate::proxy::Worker;
use crate::upstream::log_in::{LoginStanding, NoLogin};

/// A login that has begun.
#[derive(Serialize, ToSchema)]
struct BegunLogin {
    /// The server's name.
    server: String,
    /// The address to open, in a browser on the proxy's machine: it leads back to its loopback.
    open: String,
    /// When it is given up.
    #[schema(format = DateTime)]
    until: String,
}

/// How the login with a server stands, while one is under way or after one has failed.
#[derive(Serialize, ToSchema)]
pub(super) struct ServerLogin {
    #[schema(value_type = String, pattern = "^(beginning|waiting|failed)$")]
    state: &'static str,
    /// The address to open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    open: Option<String>,
    /// When it is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    until: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

impl ServerLogin {
    /// What is shown of it; nothing where there is nothing to tell.
    pub(super) fn of(standing: LoginStanding) -> Option<Self> {
        let none = |state| Self { state, open: None, until: None, reason: None };
        match standing {
            LoginStanding::Idle => None,
            LoginStanding::Beginning => Some(none("beginning")),
            LoginStanding::Waiting(login) => Some(Self {
                open: Some(login.address.to_string()),
                until: Some(shown(login.until)),
                ..none("waiting")
            }),
            LoginStanding::Failed(failed) => {
                Some(Self { reason: Some(failed.why.to_string()), ..none("failed") })
            }
        }
    }
}

/// Begins a login with a server that asks for one, and answers the address to open. One that is under way is answered
/// again. The tokens are kept and used as soon as somebody has logged in there, within 10 minutes.
#[utoipa::path(
    post,
    path = "/api/v1/servers/{name}/login",
    tag = "state",
    operation_id = "logInWithServer",
    params(("name" = String, Path, description = "The server's name")),
    responses(
        (status = 200, description = "It waits for somebody to log in", body = Success<BegunLogin>),
        (status = 404, description = "There is no such server"),
        (status = 409, description = "It is disabled, or wants no login"),
        (status = 502, description = "The server, or whoever logs in for it, does not do what it takes"),
        (status = 504, description = "They take too long; the login goes on"),
    )
)]
pub(super) async fn begin(
    worker: &Worker,
    principal: &Principal,
    query: Query,
    segment: &str,
) -> Result<Bytes, ApiError> {
    query.finish()?;
    let server = routes::decoded(segment)?;
    let upstream =
        worker.proxy.upstreams.get(&server).ok_or_else(|| ApiError::no_server(&server))?;
    let begun = worker.proxy.upstreams.log_in(&upstream, principal.id()).await;
    let login = begun.map_err(|why| {
        let status = match &why {
            NoLogin::Disabled => StatusCode::CONFLICT,
            NoLogin::Failed(failed) if failed.is_lasting => StatusCode::CONFLICT,
            NoLogin::Failed(_) => StatusCode::BAD_GATEWAY,
            NoLogin::Late => StatusCode::GATEWAY_TIMEOUT,
        };
        ApiError::new(status, format!("'{server}' is not logged in with: {why}"))
    })?;
    Ok(encode(&BegunLogin { server, open: login.address.to_string(), until: shown(login.until) }))
}

fn shown(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{time:.0}")
}
