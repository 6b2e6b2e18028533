//! `/api/v1/servers`: the upstream servers, their state, and what became of the calls to them; what one
//! said on stderr, and its restart.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::config_door::{ServerSwitch, SwitchRefused};
use super::query_parameters::{BadQuery, Query};
use super::response::{ApiError, Success, encode};
use super::routes;
use super::server_login::ServerLogin;
use super::state::State;
use super::status::CallCounts;
use crate::catalog::Snapshot;
use crate::policy::Principal;
use crate::proxy::Worker;
use crate::tool::Trust;
use crate::upstream::NotRestarted;
use crate::upstream::stderr_log::{self, KeptLines, MAX_LINES};
use crate::upstream::supervisor::{ServerState, Status, Transport};

/// Lines of a server's log where no number is asked for.
const LOGGED_LINES: usize = 200;

/// Lists the upstream servers and their state.
#[utoipa::path(
    get,
    path = "/api/v1/servers",
    tag = "state",
    operation_id = "listServers",
    responses((status = 200, description = "All servers of the config", body = Success<Servers>))
)]
pub(super) fn servers(worker: &Worker, query: Query) -> Result<Bytes, ApiError> {
    query.finish()?;
    let counted = worker.proxy.calls.read();
    let snapshot = worker.proxy.catalog.load();
    let servers = worker.proxy.upstreams.iter().map(|upstream| CountedServer {
        server: upstream.state().into(),
        quarantined: quarantined(&snapshot, upstream.name()),
        login: ServerLogin::of(upstream.login()),
        calls: (&counted.of_server(upstream.id())).into(),
    });
    Ok(encode(&Servers { servers: servers.collect() }))
}

#[derive(Serialize, ToSchema)]
struct Servers {
    servers: Vec<CountedServer>,
}

/// A server, and what became of the calls to it.
#[derive(Serialize, ToSchema)]
struct CountedServer {
    #[serde(flatten)]
    server: ServerView,
    /// Tools of it whose definition waits for approval.
    quarantined: usize,
    /// A login that somebody asked for here; left out where none is under way and none has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    login: Option<ServerLogin>,
    calls: CallCounts,
}

/// What a server said on stderr.
#[derive(Serialize, ToSchema)]
pub(super) struct ServerLog {
    /// The server's name.
    server: String,
    lines: Vec<LoggedLine>,
    /// The `cursor` of what comes after.
    next_cursor: String,
}

/// One line that a server said on stderr.
#[derive(Serialize, ToSchema)]
struct LoggedLine {
    /// When it was said.
    #[schema(format = DateTime)]
    time: String,
    /// What was said, without secrets; or how many lines were lost.
    line: String,
}

/// Shows what a server said on stderr: of what came after `cursor` the first lines, else the last ones.
#[utoipa::path(
    get,
    path = "/api/v1/servers/{name}/logs",
    tag = "state",
    operation_id = "getServerLog",
    params(
        ("name" = String, Path, description = "The server's name"),
        ("limit" = Option<u64>, Query, description = "Most lines: 1 to 1000, 200 if it is left out",
            minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of an earlier answer",
            pattern = "^[0-9]{1,19}-[0-9]{1,19}$"),
    ),
    responses(
        (status = 200, description = "Lines, the oldest first", body = Success<ServerLog>),
        (status = 404, description = "There is no such server"),
        (status = 500, description = "The log cannot be read"),
    )
)]
pub(super) async fn logs(
    worker: &Worker,
    mut query: Query,
    segment: &str,
) -> Result<Bytes, ApiError> {
    let most = query.number("limit", 1..=MAX_LINES as u64)?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(LOGGED_LINES);
    let cursor = query.text("cursor")?;
    query.finish()?;
    let after = cursor.map(|text| text.parse().map_err(|_| BadQuery::cursor(text))).transpose()?;
    let upstreams = &worker.proxy.upstreams;
    let server = routes::decoded(segment)?;
    upstreams.get(&server).ok_or_else(|| ApiError::no_server(&server))?;
    let (folder, name) = (upstreams.stderr_folder().to_owned(), server.clone());
    let read = move || stderr_log::read(&folder, &name, after, most);
    let failed = |error: &dyn std::fmt::Display| {
        let text = format!("what '{server}' said on stderr cannot be read: {error}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    };
    let read = tokio::task::spawn_blocking(read).await.map_err(|error| failed(&error))?;
    let kept = read.map_err(|error| failed(&error))?;
    Ok(encode(&shown_log(server.clone(), kept)))
}

/// What was kept of a server's stderr, as it is shown.
#[must_use]
pub(super) fn shown_log(server: String, kept: KeptLines) -> ServerLog {
    let lines = kept.lines.into_iter().map(|it| LoggedLine { time: it.time, line: it.line });
    ServerLog { server, lines: lines.collect(), next_cursor: kept.next.to_string() }
}

/// A server that is connected anew.
#[derive(Serialize, ToSchema)]
struct Restarted {
    /// The server's name.
    server: String,
    /// Always true.
    restarted: bool,
}

/// Ends the connection to a server, with the process of one that is a command, and has it connected
/// again. The new connection is not waited for.
#[utoipa::path(
    post,
    path = "/api/v1/servers/{name}/restart",
    tag = "state",
    operation_id = "restartServer",
    params(("name" = String, Path, description = "The server's name")),
    responses(
        (status = 200, description = "It is connected anew", body = Success<Restarted>),
        (status = 404, description = "There is no such server"),
        (status = 409, description = "It is disabled, or its entry names no server"),
    )
)]
pub(super) async fn restart(
    worker: &Worker,
    query: Query,
    segment: &str,
) -> Result<Bytes, ApiError> {
    query.finish()?;
    let server = routes::decoded(segment)?;
    let upstream = worker.proxy.upstreams.get(&server);
    let upstream = upstream.ok_or_else(|| ApiError::no_server(&server))?;
    let refused = |why: NotRestarted| {
        ApiError::new(StatusCode::CONFLICT, format!("'{server}' is not restarted: {why}"))
    };
    upstream.restart().await.map_err(refused)?;
    Ok(encode(&Restarted { server: server.clone(), restarted: true }))
}

/// A server that is switched.
#[derive(Serialize, ToSchema)]
struct Switched {
    /// The server's name.
    server: String,
    /// Whether it is used now.
    enabled: bool,
    /// Whether the config's file said something else before.
    changed: bool,
}

/// Writes into the config's file that a server is used, and puts that in force.
#[utoipa::path(
    post,
    path = "/api/v1/servers/{name}/enable",
    tag = "state",
    operation_id = "enableServer",
    params(("name" = String, Path, description = "The server's name")),
    responses(
        (status = 200, description = "It is", body = Success<Switched>),
        (status = 404, description = "The config has no such server"),
        (status = 409, description = "The file cannot be changed, or cannot be used as it is"),
        (status = 503, description = "There is no file, too many ask, or it takes too long"),
    )
)]
pub(super) async fn enable(
    state: &State,
    principal: &Principal,
    query: Query,
    segment: &str,
) -> Result<Bytes, ApiError> {
    query.finish()?;
    switch(state, principal, segment, ServerSwitch::On).await
}

/// Writes into the config's file that a server is not used, and puts that in force: calls on their way are finished, and
/// its tools go.
#[utoipa::path(
    post,
    path = "/api/v1/servers/{name}/disable",
    tag = "state",
    operation_id = "disableServer",
    params(("name" = String, Path, description = "The server's name")),
    responses(
        (status = 200, description = "It is not", body = Success<Switched>),
        (status = 404, description = "The config has no such server"),
        (status = 409, description = "The file cannot be changed, or cannot be used as it is"),
        (status = 503, description = "There is no file, too many ask, or it takes too long"),
    )
)]
pub(super) async fn disable(
    state: &State,
    principal: &Principal,
    query: Query,
    segment: &str,
) -> Result<Bytes, ApiError> {
    query.finish()?;
    switch(state, principal, segment, ServerSwitch::Off).await
}

async fn switch(
    state: &State,
    principal: &Principal,
    segment: &str,
    to: ServerSwitch,
) -> Result<Bytes, ApiError> {
    let server = routes::decoded(segment)?;
    let switched = state.config.switch(&server, to, principal).await?;
    let switched = switched.map_err(|refused| match refused {
        SwitchRefused::Unknown => ApiError::no_server(&server),
        SwitchRefused::Refused(why) => {
            ApiError::new(StatusCode::CONFLICT, format!("'{server}' is not switched: {why}"))
        }
    })?;
    let enabled = to == ServerSwitch::On;
    Ok(encode(&Switched { server, enabled, changed: switched.changed }))
}

fn quarantined(snapshot: &Snapshot, server: &str) -> usize {
    let tools = snapshot.tools_of(server).iter();
    tools.filter(|tool| tool.trust == Trust::Withheld).count()
}

/// One upstream server as it is shown.
#[derive(Serialize, ToSchema)]
#[schema(as = Server)]
pub(super) struct ServerView {
    #[schema(value_type = String)]
    name: Arc<str>,
    state: Status,
    protocol: Transport,
    /// Tools it offers.
    tools: usize,
    /// What is wrong; empty if nothing is.
    #[schema(value_type = String)]
    reason: Arc<str>,
    /// When its state last changed.
    #[schema(format = DateTime)]
    since: String,
    /// The protocol revision agreed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    protocol_version: Option<Arc<str>>,
    /// What it calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    server_info: Option<Arc<str>>,
}

impl From<ServerState> for ServerView {
    fn from(state: ServerState) -> Self {
        let since = Timestamp::try_from(state.since).unwrap_or(Timestamp::UNIX_EPOCH);
        Self {
            name: state.name,
            state: state.status,
            protocol: state.transport,
            tools: state.tools,
            reason: state.reason,
            since: format!("{since:.3}"),
            protocol_version: state.protocol_version,
            server_info: state.server_info,
        }
    }
}
