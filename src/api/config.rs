//! `/api/v1/config…`: how the config in force stands, and the wish to have its file read again, which goes through the
//! door (`config_door`).

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::config_door::{ConfigComparison, Reloaded, ShownProblem};
use super::query_parameters::Query;
use super::response::{self, ApiError, Success, encode};
use super::state::State;
use crate::downstream::body::Body;
use crate::policy::Principal;
use crate::reference::CONFIG_SCHEMA;

/// How the config in force stands to its file.
#[derive(Serialize, ToSchema)]
struct ConfigState {
    /// The file; empty where there is none.
    path: String,
    /// Since when it is in force.
    #[schema(format = DateTime)]
    since: String,
    /// The keys that are another in the file and count from the next start on.
    needs_restart: Vec<String>,
    /// Why what the file holds now is not in force; null if it is.
    #[schema(required)]
    rejected: Option<Rejected>,
    /// What is in force, without what may be a secret or says how a server is reached.
    #[schema(value_type = Object)]
    standing: Arc<Value>,
}

/// What the file holds cannot be used.
#[derive(Serialize, ToSchema)]
#[schema(as = RejectedConfig)]
struct Rejected {
    /// Since when that is known.
    #[schema(format = DateTime)]
    since: String,
    problems: Vec<ShownProblem>,
}

/// Why a config is not in force.
#[derive(Serialize, ToSchema)]
#[schema(as = ConfigError)]
struct Unusable<'a> {
    /// Always false.
    success: bool,
    /// The first problem, and how many more there are.
    error: String,
    /// The same as in `X-Request-Id`.
    #[schema(value_type = String)]
    request_id: &'a str,
    /// All of them.
    problems: &'a [ShownProblem],
}

/// Tells how the config in force stands to its file.
#[utoipa::path(
    get,
    path = "/api/v1/config",
    tag = "state",
    operation_id = "getConfig",
    responses((status = 200, description = "How it stands", body = Success<ConfigState>))
)]
pub(super) fn standing(state: &State, query: Query) -> Result<Bytes, ApiError> {
    query.finish()?;
    let standing = state.config.standing();
    let rejected = standing.rejected.as_ref().map(|(since, refused)| Rejected {
        since: shown(*since),
        problems: refused.problems.clone(),
    });
    Ok(encode(&ConfigState {
        path: standing.path.to_string(),
        since: shown(standing.since),
        needs_restart: standing.needs_restart.clone(),
        rejected,
        standing: Arc::clone(&standing.shown),
    }))
}

/// Tells what reading the config's file again would change. Nothing is.
#[utoipa::path(
    get,
    path = "/api/v1/config/difference",
    tag = "state",
    operation_id = "compareConfig",
    responses(
        (status = 200, description = "What the file says otherwise", body = Success<ConfigComparison>),
        (status = 503, description = "There is no file to read, too many ask, or it takes too long"),
    )
)]
pub(super) async fn difference(state: &State, query: Query) -> Result<Bytes, ApiError> {
    query.finish()?;
    Ok(encode(&state.config.compare().await?))
}

/// The JSON Schema (2020-12) of the config file: every key, its values and its default.
#[utoipa::path(
    get,
    path = "/api/v1/config/schema.json",
    tag = "state",
    operation_id = "getConfigSchema",
    responses((status = 200, description = "The schema", body = Object))
)]
pub(super) fn schema(query: Query, id: &str) -> Result<Response<Body>, ApiError> {
    query.finish()?;
    let schema = Bytes::from_static(CONFIG_SCHEMA.as_bytes());
    Ok(response::json(StatusCode::OK, Body::from(schema), id))
}

/// Reads the config's file again, and applies what it changes.
#[utoipa::path(
    post,
    path = "/api/v1/config/reload",
    tag = "state",
    operation_id = "reloadConfig",
    responses(
        (status = 200, description = "It is in force", body = Success<Reloaded>),
        (status = 422, description = "It cannot be used: the one before stays in force", body = Unusable),
        (status = 503, description = "There is no file to read, too many ask, or it takes too long"),
    )
)]
pub(super) async fn reload(
    state: &State,
    principal: &Principal,
    query: Query,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    query.finish()?;
    match state.config.ask(principal).await? {
        Ok(reloaded) => Ok(response::success(encode(&reloaded), id)),
        Err(refused) => {
            let body = Unusable {
                success: false,
                error: refused.cause(),
                request_id: id,
                problems: &refused.problems,
            };
            let body = Body::from(encode(&body));
            Ok(response::json(StatusCode::UNPROCESSABLE_ENTITY, body, id))
        }
    }
}

fn shown(time: SystemTime) -> String {
    format!("{:.3}", Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH))
}
