//! `/api/v1/servers…`: upstream servers with their state and call counts, their stderr logs, and commands that restart,
//! enable or disable a server, or log in to it.
//!
//! A login starts here, and a person finishes it by opening the returned address in a browser. The steps of a login are
//! in `upstream::login_session`; the principal that started the login is recorded.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::config_handle::SwitchRefused;
use super::query_parameters::{BadQuery, decode_segment};
use super::request::ApiRequest;
use super::response::{ApiError, Success, encode, rfc_3339};
use crate::api::State;
use mcpproxy_catalog::{ListNotes, Snapshot};
use mcpproxy_gateway::telemetry::call_metrics::{Durations, Outcome, Sums};
use mcpproxy_policy::Principal;
use mcpproxy_policy::tool::Trust;
use mcpproxy_upstream::login_session::{LoginStanding, NoLogin};
use mcpproxy_upstream::stderr_log::{KeptLines, MAX_LINES};
use mcpproxy_upstream::supervisor::{ServerState, Status, Transport};
use mcpproxy_upstream::{NotRestarted, SecondState, SecondStatus, stderr_log};

/// Number of log lines returned by default.
const LOGGED_LINES: usize = 200;

/// Lists the upstream servers with their state.
#[utoipa::path(
    get,
    path = "/api/v1/servers",
    tag = "state",
    operation_id = "listServers",
    responses((status = 200, description = "All servers of the config", body = Success<Servers>))
)]
pub(super) async fn servers(
    ApiRequest { worker, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let counted = worker.proxy.calls.read();
    let snapshot = worker.proxy.catalog.load();
    let mut of_tools = snapshot.list_notes();
    let servers = worker.proxy.upstreams.iter().map(|upstream| {
        let mut nonconforming = of_tools.remove(upstream.name()).unwrap_or_default();
        nonconforming.merge(&upstream.list_notes());
        nonconforming.merge(&worker.proxy.list_cache.notes(upstream.name()));
        CountedServer {
            server: upstream.state().into(),
            quarantined: quarantined(&snapshot, upstream.name()),
            nonconforming,
            login: ServerLogin::of(upstream.login()),
            second_connection: upstream.second().map(SecondConnection::from),
            calls: (&counted.of_server(upstream.id())).into(),
        }
    });
    Ok(encode(&Servers { servers: servers.collect() }))
}

#[derive(Serialize, ToSchema)]
struct Servers {
    servers: Vec<CountedServer>,
}

/// A server with the outcomes of its calls.
#[derive(Serialize, ToSchema)]
struct CountedServer {
    #[serde(flatten)]
    server: ServerView,
    /// Number of the server's tools whose definition awaits approval.
    quarantined: usize,
    /// Items in the server's lists that do not conform to MCP and were repaired or left out. Absent if there are none.
    #[serde(skip_serializing_if = "ListNotes::is_empty")]
    #[schema(nullable = false)]
    nonconforming: ListNotes,
    /// A login in progress, or the last one if it failed; otherwise absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    login: Option<ServerLogin>,
    /// Connection in the legacy protocol family in addition to a modern one. It serves clients to which the server can
    /// send requests only over that family. Absent while it is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    second_connection: Option<SecondConnection>,
    calls: CallCounts,
}

/// Second connection to a server.
#[derive(Serialize, ToSchema)]
struct SecondConnection {
    state: SecondStatus,
    /// The negotiated protocol revision while connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    protocol_version: Option<Arc<str>>,
    /// The fault, or empty.
    #[schema(value_type = String)]
    reason: Arc<str>,
}

impl From<SecondState> for SecondConnection {
    fn from(state: SecondState) -> Self {
        let SecondState { status, protocol_version, reason } = state;
        Self { state: status, protocol_version, reason }
    }
}

/// Stderr output of a server.
#[derive(Serialize, ToSchema)]
#[schema(as = ServerLog)]
pub(super) struct ServerLogLines {
    /// The server's name.
    server: String,
    lines: Vec<LoggedLine>,
    /// `cursor` for the lines that follow.
    next_cursor: String,
}

/// A line of stderr output.
#[derive(Serialize, ToSchema)]
struct LoggedLine {
    /// Time at which the line was written.
    #[schema(format = DateTime)]
    time: String,
    /// The text without secrets, or a note about lost lines.
    line: String,
}

/// Returns stderr output of a server: the first lines after `cursor`, or the last lines if `cursor` is omitted.
#[utoipa::path(
    get,
    path = "/api/v1/servers/{name}/logs",
    tag = "state",
    operation_id = "getServerLog",
    params(
        ("name" = String, Path, description = "The server's name"),
        ("limit" = Option<u64>, Query, description = "Maximum number of lines: 1 to 1000, default 200",
            minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of an earlier response",
            pattern = "^[0-9]{1,19}-[0-9]{1,19}$"),
    ),
    responses(
        (status = 200, description = "Lines, oldest first", body = Success<ServerLogLines>),
        (status = 404, description = "There is no such server"),
        (status = 500, description = "The log cannot be read"),
    )
)]
pub(super) async fn logs(
    ApiRequest { worker, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    let mut query = query?;
    let limit = query.number("limit", 1..=MAX_LINES as u64)?;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(LOGGED_LINES);
    let cursor = query.text("cursor")?;
    query.finish()?;
    let after = cursor.map(|text| text.parse().map_err(|_| BadQuery::cursor(text))).transpose()?;
    let upstreams = &worker.proxy.upstreams;
    let server = decode_segment(segment)?;
    upstreams.get(&server).ok_or_else(|| ApiError::no_server(&server))?;
    let (folder, name) = (upstreams.stderr_folder().to_owned(), server.clone());
    let read = move || stderr_log::read(&folder, &name, after, limit);
    let failed = |error: &dyn std::fmt::Display| {
        let text = format!("the stderr log of '{server}' cannot be read: {error}");
        ApiError::internal(text)
    };
    let read = tokio::task::spawn_blocking(read).await.map_err(|error| failed(&error))?;
    let kept = read.map_err(|error| failed(&error))?;
    Ok(encode(&shown_log(server.clone(), kept)))
}

pub(super) fn shown_log(server: String, kept: KeptLines) -> ServerLogLines {
    let lines = kept.lines.into_iter().map(|it| LoggedLine { time: it.time, line: it.line });
    ServerLogLines { server, lines: lines.collect(), next_cursor: kept.next.to_string() }
}

/// A restarted server.
#[derive(Serialize, ToSchema)]
struct Restarted {
    /// The server's name.
    server: String,
    /// Always true.
    restarted: bool,
}

/// Closes the connection to a server and reconnects. If the server is a command, its process is ended. Does not wait
/// for the new connection.
#[utoipa::path(
    post,
    path = "/api/v1/servers/{name}/restart",
    tag = "state",
    operation_id = "restartServer",
    params(("name" = String, Path, description = "The server's name")),
    responses(
        (status = 200, description = "The server is being reconnected", body = Success<Restarted>),
        (status = 404, description = "There is no such server"),
        (status = 409, description = "The server is disabled, or its entry names no command or URL"),
    )
)]
pub(super) async fn restart(
    ApiRequest { worker, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let server = decode_segment(segment)?;
    let upstream = worker.proxy.upstreams.get(&server);
    let upstream = upstream.ok_or_else(|| ApiError::no_server(&server))?;
    let refused = |why: NotRestarted| {
        ApiError::new(StatusCode::CONFLICT, format!("'{server}' was not restarted: {why}"))
    };
    upstream.restart().await.map_err(refused)?;
    Ok(encode(&Restarted { server: server.clone(), restarted: true }))
}

/// Server that was enabled or disabled.
#[derive(Serialize, ToSchema)]
struct Switched {
    /// The server's name.
    server: String,
    /// Whether it is enabled now.
    enabled: bool,
    /// Whether the config file was changed.
    changed: bool,
}

/// Enables a server in the config file, and reloads it.
#[utoipa::path(
    post,
    path = "/api/v1/servers/{name}/enable",
    tag = "state",
    operation_id = "enableServer",
    params(("name" = String, Path, description = "The server's name")),
    responses(
        (status = 200, description = "The server is enabled", body = Success<Switched>),
        (status = 404, description = "The config has no such server"),
        (status = 409, description = "The file cannot be changed, or is invalid"),
        (status = 503, description = "There is no config file, too many requests are queued, or it takes too long"),
    )
)]
pub(super) async fn enable(
    ApiRequest { state, principal, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    switch(state, principal, segment, true).await
}

/// Disables a server in the config file, and reloads it. Calls in flight finish, and its tools are removed.
#[utoipa::path(
    post,
    path = "/api/v1/servers/{name}/disable",
    tag = "state",
    operation_id = "disableServer",
    params(("name" = String, Path, description = "The server's name")),
    responses(
        (status = 200, description = "The server is disabled", body = Success<Switched>),
        (status = 404, description = "The config has no such server"),
        (status = 409, description = "The file cannot be changed, or is invalid"),
        (status = 503, description = "There is no config file, too many requests are queued, or it takes too long"),
    )
)]
pub(super) async fn disable(
    ApiRequest { state, principal, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    switch(state, principal, segment, false).await
}

async fn switch(
    state: &State,
    principal: &Principal,
    segment: &str,
    enable: bool,
) -> Result<Bytes, ApiError> {
    let server = decode_segment(segment)?;
    let switched = state.config.switch(&server, enable, principal).await?;
    let switched = switched.map_err(|refused| match refused {
        SwitchRefused::Unknown => ApiError::no_server(&server),
        SwitchRefused::Refused(why) => {
            ApiError::new(StatusCode::CONFLICT, format!("'{server}' was not changed: {why}"))
        }
    })?;
    Ok(encode(&Switched { server, enabled: enable, changed: switched.changed }))
}

/// Number of tools of a server that wait for an operator.
pub(super) fn quarantined(snapshot: &Snapshot, server: &str) -> usize {
    let tools = snapshot.tools_of(server).iter();
    tools.filter(|tool| tool.trust == Trust::Withheld).count()
}

/// Calls that ended since the start.
#[derive(Serialize, ToSchema)]
pub(super) struct CallCounts {
    total: u64,
    success: u64,
    /// Calls that failed, at the upstream or in transit.
    error: u64,
    /// Calls whose results were blocked.
    blocked: u64,
    /// Calls that were rejected before they were sent.
    rejected: u64,
    /// Total duration.
    duration_us: Percentiles,
    /// Part of the duration added by the proxy.
    overhead_us: Percentiles,
    /// Part of the duration spent at upstreams, for calls that were sent.
    upstream_us: Percentiles,
}

/// Percentiles in microseconds, with an error of at most 6 %; null if there were no calls.
#[derive(Serialize, ToSchema)]
struct Percentiles {
    #[schema(required)]
    p50: Option<u64>,
    #[schema(required)]
    p99: Option<u64>,
}

impl From<&Durations> for Percentiles {
    fn from(durations: &Durations) -> Self {
        Self { p50: durations.percentile(50), p99: durations.percentile(99) }
    }
}

impl From<&Sums> for CallCounts {
    fn from(sums: &Sums) -> Self {
        Self {
            total: sums.count(),
            success: sums.of(Outcome::Success),
            error: sums.of(Outcome::Error),
            blocked: sums.of(Outcome::Blocked),
            rejected: sums.of(Outcome::Rejected),
            duration_us: (&sums.total).into(),
            overhead_us: (&sums.added).into(),
            upstream_us: (&sums.upstream).into(),
        }
    }
}

/// State of an upstream server.
#[derive(Serialize, ToSchema)]
#[schema(as = Server)]
pub(super) struct ServerView {
    #[schema(value_type = String)]
    name: Arc<str>,
    state: Status,
    protocol: Transport,
    /// Number of its tools.
    tools: usize,
    /// The fault, or empty.
    #[schema(value_type = String)]
    reason: Arc<str>,
    /// Time at which the server's state last changed.
    #[schema(format = DateTime)]
    since: String,
    /// The negotiated protocol revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    protocol_version: Option<Arc<str>>,
    /// The server's self-reported name and version.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    server_info: Option<Arc<str>>,
}

impl From<ServerState> for ServerView {
    fn from(state: ServerState) -> Self {
        Self {
            name: state.name,
            state: state.status,
            protocol: state.transport,
            tools: state.tools,
            reason: state.reason,
            since: rfc_3339(state.since, 3),
            protocol_version: state.protocol_version,
            server_info: state.server_info,
        }
    }
}

/// A started login.
#[derive(Serialize, ToSchema)]
struct BegunLogin {
    /// The server's name.
    server: String,
    /// Address to open in a browser on the proxy's machine; it redirects to a loopback address.
    open: String,
    /// Time at which the login expires.
    #[schema(format = DateTime)]
    until: String,
}

/// Status of a login in progress, or of the last one if it failed.
#[derive(Serialize, ToSchema)]
pub(super) struct ServerLogin {
    #[schema(value_type = String, pattern = "^(beginning|waiting|failed)$")]
    state: &'static str,
    /// Address to open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    open: Option<String>,
    /// Time at which the login expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    until: Option<String>,
    /// Reason for the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

impl ServerLogin {
    /// Builds the status; `None` if no login is in progress and none has failed.
    pub(super) fn of(standing: LoginStanding) -> Option<Self> {
        let none = |state| Self { state, open: None, until: None, reason: None };
        match standing {
            LoginStanding::Idle => None,
            LoginStanding::Beginning => Some(none("beginning")),
            LoginStanding::Waiting(login) => Some(Self {
                open: Some(login.address.to_string()),
                until: Some(rfc_3339(login.until, 0)),
                ..none("waiting")
            }),
            LoginStanding::Failed(failed) => {
                Some(Self { reason: Some(failed.why.to_string()), ..none("failed") })
            }
        }
    }
}

/// Starts a login to a server that requires one, and returns the address to open, even if a login is already in
/// progress. The tokens are stored and used after a person has logged in there, within 10 minutes.
#[utoipa::path(
    post,
    path = "/api/v1/servers/{name}/login",
    tag = "state",
    operation_id = "logInWithServer",
    params(("name" = String, Path, description = "The server's name")),
    responses(
        (status = 200, description = "The login awaits a person", body = Success<BegunLogin>),
        (status = 404, description = "There is no such server"),
        (status = 409, description = "The server is disabled, or requires no login"),
        (status = 502, description = "The server or its authorization server does not support the login"),
        (status = 504, description = "They take too long; the login continues"),
    )
)]
pub(super) async fn log_in(
    ApiRequest { worker, principal, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let server = decode_segment(segment)?;
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
        ApiError::new(status, format!("the login with '{server}' failed: {why}"))
    })?;
    Ok(encode(&BegunLogin {
        server,
        open: login.address.to_string(),
        until: rfc_3339(login.until, 0),
    }))
}
