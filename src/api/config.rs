//! `/api/v1/config…`: how the config in force stands, and the wishes to have its file read again or changed, which go
//! through the door (`config_door`).

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::config_door::{
    ChangeRefused, ConfigComparison, FileSettings, ReloadRefused, Reloaded, SettingsChange,
    ShownProblem,
};
use super::query_parameters::Query;
use super::response::{self, ApiError, Success, encode};
use super::state::State;
use crate::downstream::body::Body;
use crate::policy::Principal;
use crate::proxy::{Worker, incoming};
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
        Err(refused) => Ok(unusable(&refused, id)),
    }
}

/// Tells what the config's file says, without secrets, to be changed by `changeConfig`.
#[utoipa::path(
    get,
    path = "/api/v1/config/settings",
    tag = "state",
    operation_id = "getConfigSettings",
    responses(
        (status = 200, description = "What it says", body = Success<FileSettings>),
        (status = 422, description = "It cannot be read", body = Unusable),
        (status = 503, description = "There is no file to read, too many ask, or it takes too long"),
    )
)]
pub(super) async fn settings(
    state: &State,
    query: Query,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    query.finish()?;
    Ok(match state.config.settings().await? {
        Ok(settings) => response::success(encode(&settings), id),
        Err(refused) => unusable(&refused, id),
    })
}

/// Tells what other settings would change. Nothing is.
#[utoipa::path(
    post,
    path = "/api/v1/config/preview",
    tag = "state",
    operation_id = "previewConfig",
    request_body(content = SettingsChange, description = "What is to be another. No key may stand twice in any object."),
    responses(
        (status = 200, description = "What it would change", body = Success<ConfigComparison>),
        (status = 400, description = "The body or the query cannot be understood"),
        (status = 408, description = "The body did not come in time"),
        (status = 409, description = "The file is another than the one that was looked at"),
        (status = 413, description = "The body is too large"),
        (status = 422, description = "It cannot be used, or is not changed here", body = Unusable),
        (status = 503, description = "There is no file to read, too many ask, or it takes too long"),
    )
)]
pub(super) async fn preview(
    state: &State,
    worker: &Worker,
    body: &Bytes,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    let compared = state.config.preview(asked(worker, body)?).await?;
    changed(compared.map(|compared| encode(&compared)), id)
}

/// Writes other settings into the config's file, which keeps the rest as it is written, and puts them in force.
#[utoipa::path(
    post,
    path = "/api/v1/config/change",
    tag = "state",
    operation_id = "changeConfig",
    request_body(content = SettingsChange, description = "What is to be another. No key may stand twice in any object."),
    responses(
        (status = 200, description = "It is written, and in force", body = Success<Reloaded>),
        (status = 400, description = "The body or the query cannot be understood"),
        (status = 408, description = "The body did not come in time"),
        (status = 409, description = "The file is another than the one that was looked at"),
        (status = 413, description = "The body is too large"),
        (status = 422, description = "It cannot be used, or is not changed here", body = Unusable),
        (status = 503, description = "There is no file to read, too many ask, or it takes too long"),
    )
)]
pub(super) async fn change(
    state: &State,
    worker: &Worker,
    principal: &Principal,
    body: &Bytes,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    let written = state.config.change(asked(worker, body)?, principal).await?;
    changed(written.map(|reloaded| encode(&reloaded)), id)
}

fn asked(worker: &Worker, body: &Bytes) -> Result<SettingsChange, ApiError> {
    let bad = |text: String| ApiError::new(StatusCode::BAD_REQUEST, text);
    incoming::check(worker, body).map_err(bad)?;
    // An array would be taken for the members in their order. A message of serde's may hold a value of the body.
    let read = serde_json::from_slice(body).map(Value::Object).and_then(serde_json::from_value);
    read.map_err(|_| bad("Invalid request body: write {\"digest\": \"…\", \"patch\": {…}}".into()))
}

fn changed(outcome: Result<Bytes, ChangeRefused>, id: &str) -> Result<Response<Body>, ApiError> {
    match outcome {
        Ok(data) => Ok(response::success(data, id)),
        Err(ChangeRefused::Stale) => Err(ApiError::new(
            StatusCode::CONFLICT,
            "The file has changed since it was read: read it again, and change that",
        )),
        Err(ChangeRefused::Unusable(refused)) => Ok(unusable(&refused, id)),
    }
}

pub(super) fn unusable(refused: &ReloadRefused, id: &str) -> Response<Body> {
    let body = Unusable {
        success: false,
        error: refused.cause(),
        request_id: id,
        problems: &refused.problems,
    };
    response::json(StatusCode::UNPROCESSABLE_ENTITY, Body::from(encode(&body)), id)
}

fn shown(time: SystemTime) -> String {
    format!("{:.3}", Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH))
}
