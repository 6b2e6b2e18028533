//! `/api/v1/config…` and `/api/v1/fleet/config…`: status of the config in force, and commands to reload or change it.
//!
//! The tasks behind `config_handle` read, check and apply configs; these handlers send them commands.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::config_handle::{
    ChangeRefused, ConfigComparison, ConfigEdit, FileSettings, FleetConfigCommand,
    FleetConfigHandle, FleetConfigRefused, NewServers, ReloadRefused, Reloaded, SettingsChange,
    ShownProblem,
};
use super::query_parameters::decode_segment;
use super::request::{ApiRequest, read_body};
use super::response;
use super::response::{ApiError, Success, encode, rfc_3339};
use crate::api::State;
use mcpproxy_downstream::body::Body;
use mcpproxy_downstream::source::Source;
use mcpproxy_fleet::facts::{ConfigFact, ConfigRun, ConfigRunState, ConfigVersion};
use mcpproxy_gateway::proxy::{Worker, dispatch};

/// Headers that reverse proxies add to forwarded requests.
const FORWARDED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

/// Status of the config in force relative to its file.
#[derive(Serialize, ToSchema)]
struct ConfigState {
    /// The file; empty if there is none.
    path: String,
    /// Time at which it took effect.
    #[schema(format = DateTime)]
    since: String,
    /// Keys that differ in the file and take effect at the next start.
    needs_restart: Vec<String>,
    /// Reason why the current file is not in force; null if it is in force.
    #[schema(required)]
    rejected: Option<Rejected>,
    /// The config in force, without potential secrets; secrets in command lines and URLs of servers are masked.
    #[schema(value_type = Object)]
    standing: Arc<Value>,
}

/// Rejection of the current file, because it is invalid.
#[derive(Serialize, ToSchema)]
#[schema(as = RejectedConfig)]
struct Rejected {
    /// Time at which the problem was found.
    #[schema(format = DateTime)]
    since: String,
    problems: Vec<ShownProblem>,
}

/// A rejected config.
#[derive(Serialize, ToSchema)]
#[schema(as = ConfigError)]
struct Unusable<'a> {
    /// Always false.
    success: bool,
    /// The first problem, and the number of further ones.
    error: String,
    /// Same as the `X-Request-Id` header.
    #[schema(value_type = String)]
    request_id: &'a str,
    /// All problems.
    problems: &'a [ShownProblem],
}

/// Returns the status of the config in force relative to its file.
#[utoipa::path(
    get,
    path = "/api/v1/config",
    tag = "state",
    operation_id = "getConfig",
    responses((status = 200, description = "The status", body = Success<ConfigState>))
)]
pub(super) async fn config(
    ApiRequest { state, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let standing = state.config.standing();
    let rejected = standing.rejected.as_ref().map(|(since, refused)| Rejected {
        since: rfc_3339(*since, 3),
        problems: refused.problems.clone(),
    });
    Ok(encode(&ConfigState {
        path: standing.path.to_string(),
        since: rfc_3339(standing.since, 3),
        needs_restart: standing.needs_restart.clone(),
        rejected,
        standing: Arc::clone(&standing.shown),
    }))
}

/// Returns the changes that a reload of the config file would make, without applying them.
#[utoipa::path(
    get,
    path = "/api/v1/config/difference",
    tag = "state",
    operation_id = "compareConfig",
    responses(
        (status = 200, description = "The differences", body = Success<ConfigComparison>),
        (status = 503, description = "There is no config file, too many requests are queued, or it takes too long"),
    )
)]
pub(super) async fn difference(
    ApiRequest { state, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    Ok(encode(&state.config.compare().await?))
}

/// Returns the JSON Schema (2020-12) of the config file: every key with its values and default.
#[utoipa::path(
    get,
    path = "/api/v1/config/schema.json",
    tag = "state",
    operation_id = "getConfigSchema",
    responses((status = 200, description = "The schema", body = Object))
)]
pub(super) async fn schema(
    ApiRequest { id, query, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    query?.finish()?;
    let schema = Bytes::from_static(mcpproxy_config::CONFIG_SCHEMA.as_bytes());
    Ok(response::json(StatusCode::OK, Body::from(schema), id))
}

/// Reloads the config file and applies its changes.
#[utoipa::path(
    post,
    path = "/api/v1/config/reload",
    tag = "state",
    operation_id = "reloadConfig",
    responses(
        (status = 200, description = "The config is in force", body = Success<Reloaded>),
        (status = 422, description = "The config is invalid: the previous one stays in force", body = Unusable),
        (status = 503, description = "There is no config file, too many requests are queued, or it takes too long"),
    )
)]
pub(super) async fn reload(
    ApiRequest { state, principal, id, query, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    query?.finish()?;
    match state.config.reload(principal).await? {
        Ok(reloaded) => Ok(response::success(encode(&reloaded), id)),
        Err(refused) => Ok(unusable(&refused, id)),
    }
}

/// Returns the settings in the config file, without secrets, as a base for `changeConfig`.
#[utoipa::path(
    get,
    path = "/api/v1/config/settings",
    tag = "state",
    operation_id = "getConfigSettings",
    responses(
        (status = 200, description = "The settings", body = Success<FileSettings>),
        (status = 422, description = "The file cannot be read", body = Unusable),
        (status = 503, description = "There is no config file, too many requests are queued, or it takes too long"),
    )
)]
pub(super) async fn settings(
    ApiRequest { state, id, query, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    query?.finish()?;
    Ok(match state.config.settings().await? {
        Ok(settings) => response::success(encode(&settings), id),
        Err(refused) => unusable(&refused, id),
    })
}

/// Returns the changes that new settings would make, without applying them.
#[utoipa::path(
    post,
    path = "/api/v1/config/preview",
    tag = "state",
    operation_id = "previewConfig",
    request_body(content = SettingsChange, description = "The change. Duplicate keys are rejected."),
    responses(
        (status = 200, description = "The differences", body = Success<ConfigComparison>),
        (status = 400, description = "The body or the query is invalid"),
        (status = 408, description = "The body was not received in time"),
        (status = 409, description = "The file changed since it was read"),
        (status = 413, description = "The body is too large"),
        (
            status = 422,
            description = "The change is invalid, or this node's config cannot be changed: the body states why",
            body = Unusable
        ),
        (status = 503, description = "There is no config file, too many requests are queued, or it takes too long"),
    )
)]
pub(super) async fn preview(
    ApiRequest { state, worker, id, query, body, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let body = read_body(query, body).await?;
    let compared = state.config.preview(parse_change(worker, &body)?).await?;
    changed(compared.map(|compared| encode(&compared)), id)
}

/// Writes settings into the config file without changing the rest of it, and applies them.
#[utoipa::path(
    post,
    path = "/api/v1/config/change",
    tag = "state",
    operation_id = "changeConfig",
    request_body(content = SettingsChange, description = "The change. Duplicate keys are rejected."),
    responses(
        (status = 200, description = "The settings are written and in force", body = Success<Reloaded>),
        (status = 400, description = "The body or the query is invalid"),
        (status = 408, description = "The body was not received in time"),
        (status = 409, description = "The file changed since it was read"),
        (status = 413, description = "The body is too large"),
        (
            status = 422,
            description = "The change is invalid, or this node's config cannot be changed: the body states why",
            body = Unusable
        ),
        (status = 503, description = "There is no config file, too many requests are queued, or it takes too long"),
    )
)]
pub(super) async fn change(
    ApiRequest { state, worker, principal, id, query, body, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let body = read_body(query, body).await?;
    let edit = ConfigEdit::Settings(parse_change(worker, &body)?);
    let written = state.config.change(edit, principal).await?;
    changed(written.map(|reloaded| encode(&reloaded)), id)
}

/// Adds servers to the config file without changing the rest of it, and starts them. All are added or none.
///
/// An entry may name a program, so the endpoint requires more than the right to call tools: the API key itself, and a
/// request from the proxy's own machine that no reverse proxy forwarded.
#[utoipa::path(
    post,
    path = "/api/v1/config/servers",
    tag = "state",
    operation_id = "addServers",
    request_body(content = NewServers, description = "The servers. Duplicate keys are rejected."),
    responses(
        (status = 200, description = "The servers are in the file and in force", body = Success<Reloaded>),
        (status = 400, description = "The body or the query is invalid"),
        (
            status = 403,
            description = "Requires the API key, from the proxy's own machine; or Host or Origin is not allowed"
        ),
        (status = 408, description = "The body was not received in time"),
        (status = 413, description = "The body is too large"),
        (
            status = 422,
            description = "A name is taken, an entry is invalid, or this node's config cannot be changed: the body \
                           states why",
            body = Unusable
        ),
        (status = 503, description = "There is no config file, too many requests are queued, or it takes too long"),
    )
)]
pub(super) async fn add_servers(
    ApiRequest { state, worker, connection, principal, parts, id, query, body, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let body = read_body(query, body).await?;
    require_this_machine(connection.source, &parts.headers, "added", "add")?;
    let form = "write {\"servers\": {\"NAME\": {\"command\": \"…\", \"args\": […]}}}";
    let edit = ConfigEdit::Servers(parse(worker, &body, form)?);
    let written = state.config.change(edit, principal).await?;
    changed(written.map(|reloaded| encode(&reloaded)), id)
}

/// Removes a server from the config file without changing the rest of it, and stops it. Calls in flight finish.
///
/// The same conditions as for adding servers apply.
#[utoipa::path(
    delete,
    path = "/api/v1/config/servers/{name}",
    tag = "state",
    operation_id = "removeServer",
    params(("name" = String, Path, description = "The server's name")),
    responses(
        (status = 200, description = "The server is no longer in the file and in force", body = Success<Reloaded>),
        (
            status = 403,
            description = "Requires the API key, from the proxy's own machine; or Host or Origin is not allowed"
        ),
        (status = 404, description = "The file has no such server"),
        (
            status = 422,
            description = "The config is invalid without the server, or this node's config cannot be changed: the \
                           body states why",
            body = Unusable
        ),
        (status = 503, description = "There is no config file, too many requests are queued, or it takes too long"),
    )
)]
pub(super) async fn remove_server(
    ApiRequest { state, connection, principal, parts, id, query, segment, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    query?.finish()?;
    require_this_machine(connection.source, &parts.headers, "removed", "remove")?;
    let edit = ConfigEdit::RemoveServer(decode_segment(segment)?.into());
    let written = state.config.change(edit, principal).await?;
    changed(written.map(|reloaded| encode(&reloaded)), id)
}

/// Whether a request was sent on this machine, and by no reverse proxy for another one.
fn is_from_this_machine(source: Source, headers: &HeaderMap) -> bool {
    source == Source::Loopback && !FORWARDED.iter().any(|name| headers.contains_key(*name))
}

/// Refuses a request from elsewhere, and names the command instead of it.
fn require_this_machine(
    source: Source,
    headers: &HeaderMap,
    done: &str,
    command: &str,
) -> Result<(), ApiError> {
    if is_from_this_machine(source, headers) {
        return Ok(());
    }
    let text = format!(
        "Servers can be {done} only from the proxy's own machine: run `mcpproxy upstream {command}` there"
    );
    Err(ApiError::new(StatusCode::FORBIDDEN, text))
}

fn parse_change(worker: &Worker, body: &Bytes) -> Result<SettingsChange, ApiError> {
    parse(worker, body, "write {\"digest\": \"…\", \"patch\": {…}}")
}

/// Parses a body, whose form the error message states.
fn parse<T: DeserializeOwned>(worker: &Worker, body: &Bytes, form: &str) -> Result<T, ApiError> {
    dispatch::check(worker, body).map_err(ApiError::bad_request)?;
    // Serde would accept an array instead of an object. Its error messages may quote values of the body, so they are
    // not shown.
    let read = serde_json::from_slice(body).map(Value::Object).and_then(serde_json::from_value);
    read.map_err(|_| ApiError::bad_body(form))
}

fn changed(outcome: Result<Bytes, ChangeRefused>, id: &str) -> Result<Response<Body>, ApiError> {
    match outcome {
        Ok(data) => Ok(response::success(data, id)),
        Err(ChangeRefused::Stale) => Err(ApiError::new(
            StatusCode::CONFLICT,
            "The file has changed since it was read: read it again and repeat the change",
        )),
        Err(ChangeRefused::UnknownServer(name)) => Err(ApiError::no_server(&name)),
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

/// A version of the fleet's config.
#[derive(Serialize, ToSchema)]
#[schema(as = FleetConfigVersion)]
struct ShownVersion {
    /// Incremented by each change.
    version: u64,
    /// Hash of the config.
    hash: String,
    /// The node that received the change.
    node: String,
    /// The principal that applied the change.
    by: String,
    /// Time of the change.
    #[schema(format = DateTime)]
    at: String,
}

impl From<ConfigVersion> for ShownVersion {
    fn from(it: ConfigVersion) -> Self {
        let at = i64::try_from(it.at).ok().and_then(|at| Timestamp::from_second(at).ok());
        let at = format!("{:.0}", at.unwrap_or(Timestamp::UNIX_EPOCH));
        Self { version: it.version, hash: it.hash, node: it.node, by: it.by, at }
    }
}

/// Status of the fleet's config on a node.
#[derive(Serialize, ToSchema)]
#[schema(as = FleetConfigNode)]
struct ShownRun {
    node: String,
    /// The version that the node processed last.
    version: u64,
    /// `running`, or `refused`: the node then keeps its previous config.
    #[schema(pattern = "^(running|refused)$")]
    state: &'static str,
    /// Reason for the refusal, or empty.
    reason: String,
    /// Keys that take effect at the node's next start.
    needs_restart: Vec<String>,
}

impl ShownRun {
    fn of((node, run): (String, ConfigRun)) -> Self {
        let state = match run.state {
            ConfigRunState::Running => "running",
            ConfigRunState::Refused => "refused",
        };
        let ConfigRun { version, reason, needs_restart, .. } = run;
        Self { node, version, state, reason, needs_restart }
    }
}

/// The fleet's config, as known to this node.
#[derive(Serialize, ToSchema)]
struct FleetConfigState {
    /// The current version; null if each node runs its own config.
    #[schema(required)]
    config: Option<ShownVersion>,
    /// Earlier versions, newest first.
    earlier: Vec<ShownVersion>,
    /// Status per node.
    nodes: Vec<ShownRun>,
    /// Whether the store holds everything that this node shares.
    published: bool,
    /// Reason why shared state cannot be read or written now; null if it can.
    #[schema(required)]
    failing: Option<String>,
    /// Ignored objects in the store, with the reasons.
    faults: BTreeMap<String, String>,
}

/// A config to apply to the fleet.
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "describes the body in OpenAPI; config::fleet_config parses it")]
struct FleetConfigRequest {
    /// Version of this format: 1.
    #[schema(minimum = 1, maximum = 1)]
    format: u32,
    /// The settings of a config file, without node-specific settings.
    #[schema(value_type = Object)]
    config: Map<String, Value>,
    /// The files named by `policy.files`, in the same order.
    #[schema(max_items = 64)]
    files: Vec<FleetConfigFile>,
}

/// A rules file.
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "describes the body in OpenAPI")]
struct FleetConfigFile {
    /// Name for display.
    name: String,
    /// Contents.
    text: String,
}

fn fleet_handle(state: &State) -> Result<&FleetConfigHandle, ApiError> {
    let none = "This node shares no config: it has no cluster.store or no cluster.key";
    state.fleet_config.get().ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, none))
}

/// Returns the config that the fleet runs, and its status on each node.
#[utoipa::path(
    get,
    path = "/api/v1/fleet/config",
    tag = "state",
    operation_id = "getFleetConfig",
    responses(
        (status = 200, description = "The status known to this node", body = Success<FleetConfigState>),
        (status = 404, description = "This node shares no config"),
    )
)]
pub(super) async fn fleet_config(
    ApiRequest { state, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let facts = &fleet_handle(state)?.facts;
    let (known, standing) = (facts.facts(), facts.standing());
    let (config, earlier) = match ConfigFact::of(&known) {
        Some(ConfigFact { now, earlier }) => (Some(now.into()), earlier),
        None => (None, Vec::new()),
    };
    Ok(encode(&FleetConfigState {
        config,
        earlier: earlier.into_iter().map(Into::into).collect(),
        nodes: ConfigRun::all(&known).into_iter().map(ShownRun::of).collect(),
        published: standing.published,
        failing: standing.failing,
        faults: standing.faults,
    }))
}

/// Applies a config to the fleet. It is checked on this node, stored, and then applied by each node.
#[utoipa::path(
    post,
    path = "/api/v1/fleet/config",
    tag = "state",
    operation_id = "applyFleetConfig",
    request_body(content = FleetConfigRequest, description = "The config, with its rules files"),
    responses(
        (status = 200, description = "The config is stored, and the other nodes will apply it", body = Success<ShownVersion>),
        (status = 400, description = "The query is invalid"),
        (status = 404, description = "This node shares no config"),
        (status = 408, description = "The body was not received in time"),
        (status = 413, description = "The body is too large"),
        (status = 422, description = "The config is invalid: nothing is stored"),
        (status = 502, description = "The config cannot be stored"),
        (status = 503, description = "Too many requests are queued, or it takes too long"),
    )
)]
pub(super) async fn apply_fleet_config(
    ApiRequest { state, principal, id, query, body, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let body = read_body(query, body).await?;
    let command = |caller| FleetConfigCommand::Apply(body, caller);
    answered(fleet_handle(state)?.send(principal, command).await?, id)
}

/// Applies the previous config of the fleet again, as a new version.
#[utoipa::path(
    post,
    path = "/api/v1/fleet/config/rollback",
    tag = "state",
    operation_id = "rollBackFleetConfig",
    responses(
        (status = 200, description = "The other nodes will apply it", body = Success<ShownVersion>),
        (status = 404, description = "This node shares no config"),
        (status = 409, description = "There is no previous config"),
        (status = 422, description = "The previous config is no longer valid: nothing changes"),
        (status = 502, description = "The previous config cannot be read from the store"),
        (status = 503, description = "Too many requests are queued, or it takes too long"),
    )
)]
pub(super) async fn roll_back_fleet_config(
    ApiRequest { state, principal, id, query, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    query?.finish()?;
    answered(fleet_handle(state)?.send(principal, FleetConfigCommand::RollBack).await?, id)
}

fn answered(
    outcome: Result<ConfigVersion, FleetConfigRefused>,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    match outcome {
        Ok(version) => Ok(response::success(encode(&ShownVersion::from(version)), id)),
        Err(FleetConfigRefused::Unusable(refused)) => Ok(unusable(&refused, id)),
        Err(FleetConfigRefused::NothingBefore) => {
            Err(ApiError::new(StatusCode::CONFLICT, "The fleet has no config before this one"))
        }
        Err(FleetConfigRefused::Failed(why)) => Err(ApiError::new(StatusCode::BAD_GATEWAY, why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_of_another_machine_is_recognized() {
        let none = HeaderMap::new();
        assert!(is_from_this_machine(Source::Loopback, &none));
        assert!(!is_from_this_machine(Source::Remote([192, 0, 2, 1].into()), &none));
        let forwarded = [("x-forwarded-for".parse().unwrap(), "192.0.2.1".parse().unwrap())];
        assert!(!is_from_this_machine(Source::Loopback, &forwarded.into_iter().collect()));
    }
}
