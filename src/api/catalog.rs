//! What there is and how it is: tools, servers, and the two health answers.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::answer::{self, Failure, Success, encode};
use super::query::{BadQuery, Query};
use super::status::Counted;
use crate::activity::Standing;
use crate::downstream::body::Body;
use crate::proxy::Worker;
use crate::proxy::retrieve::Shown;
use crate::tool::{Tool, ToolName};
use crate::upstream::supervisor::{ServerState, Status, Transport};

/// Which tools are meant, and which page of them.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Wanted {
    /// Words to search for, in names, descriptions and parameters; best first. Without it all tools
    /// are listed, by name.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    q: Option<String>,
    /// The server's name in the config.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    server: Option<String>,
    /// Most tools in the page.
    #[param(value_type = u64, required = false, minimum = 1, maximum = 100, default = 50)]
    limit: usize,
    /// Where the page before this one ended: its `next_cursor`, with the same `q` and `server`. With
    /// another `q`, one that does not find the tool it names is refused.
    #[param(nullable = false, min_length = 1, max_length = 1024, pattern = "^[^:]+:[^\\n]+$")]
    cursor: Option<String>,
}

impl Wanted {
    fn read(query: &mut Query) -> Result<Self, BadQuery> {
        Ok(Self {
            q: query.text("q")?,
            server: query.text("server")?,
            limit: query.limit()?,
            cursor: query.text("cursor")?,
        })
    }
}

/// Lists tools, or searches them.
#[utoipa::path(
    get,
    path = "/api/v1/tools",
    tag = "tools",
    operation_id = "listTools",
    params(Wanted),
    responses(
        (status = 200, description = "A page of tools", body = Success<Tools>),
        (status = 404, description = "There is no such server"),
    )
)]
pub(super) fn tools(worker: &Worker, mut query: Query) -> Result<Bytes, Failure> {
    let Wanted { q: words, server, limit, cursor } = Wanted::read(&mut query)?;
    query.finish()?;
    let snapshot = worker.proxy.catalog.load();
    if let Some(server) = server.as_deref().filter(|server| !snapshot.server_known(server)) {
        return Err(no_server(server));
    }
    let of_server = |tool: &Tool| server.as_deref().is_none_or(|name| *tool.name.server == *name);
    let all: Vec<(Arc<Tool>, Option<f32>)> = match &words {
        Some(words) => {
            let found = snapshot.search(words, snapshot.tools().len()).into_iter();
            found.map(|(tool, score)| (tool, Some(score))).collect()
        }
        None => snapshot.tools().iter().map(|tool| (Arc::clone(tool), None)).collect(),
    };
    let meant: Vec<_> = all.into_iter().filter(|(tool, _)| of_server(tool)).collect();
    let start = match cursor {
        None => 0,
        Some(value) => after(&meant, &value).ok_or_else(|| BadQuery::cursor(value))?,
    };
    let page = meant.get(start..).unwrap_or_default();
    let (page, rest) = page.split_at(limit.min(page.len()));
    let next = page.last().filter(|_| !rest.is_empty());
    Ok(encode(&Tools {
        tools: page.iter().map(|(tool, score)| Shown::of(tool, *score)).collect(),
        query: words.as_deref(),
        total: meant.len(),
        limit,
        next_cursor: next.map(|(tool, _)| tool.name.to_string()),
    }))
}

/// Shows one tool, with its schemas.
#[utoipa::path(
    get,
    path = "/api/v1/tools/{name}",
    tag = "tools",
    operation_id = "getTool",
    params((
        "name" = String,
        Path,
        description = "The tool as `server:tool`",
        pattern = "^[^:]+:[^\\n]+$",
    )),
    responses(
        (status = 200, description = "The tool", body = Success<OneTool>),
        (status = 404, description = "There is no such server, or no such tool"),
    )
)]
pub(super) fn tool(worker: &Worker, query: Query, name: &str) -> Result<Bytes, Failure> {
    query.finish()?;
    let name = super::segment(name)?;
    let snapshot = worker.proxy.catalog.load();
    let found = ToolName::parse(&name);
    if let Some(name) = found.as_ref().filter(|name| !snapshot.server_known(&name.server)) {
        return Err(no_server(&name.server));
    }
    let missing = || Failure::new(StatusCode::NOT_FOUND, format!("Tool '{name}' not found"));
    let tool = found.as_ref().and_then(|name| snapshot.tool(name)).ok_or_else(missing)?;
    Ok(encode(&OneTool {
        tool: Whole { shown: Shown::of(tool, None), output_schema: tool.output_schema.as_deref() },
    }))
}

/// Lists the upstream servers and their state.
#[utoipa::path(
    get,
    path = "/api/v1/servers",
    tag = "state",
    operation_id = "listServers",
    responses((status = 200, description = "All servers of the config", body = Success<Servers>))
)]
pub(super) fn servers(worker: &Worker, query: Query) -> Result<Bytes, Failure> {
    query.finish()?;
    let counted = worker.proxy.calls.read().servers;
    let states = worker.proxy.upstreams.states().into_iter();
    let servers = states
        .zip(&counted)
        .map(|(state, sums)| CountedServer { server: state.into(), calls: sums.into() });
    Ok(encode(&Servers { servers: servers.collect() }))
}

/// Tells that the proxy is alive, and whether its log is.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "health",
    operation_id = "getHealth",
    responses((status = 200, description = "Alive", body = Alive))
)]
pub(super) fn alive(worker: &Rc<Worker>, request_id: &str) -> Response<Body> {
    let health = worker.proxy.activity.health();
    let body = encode(&Alive {
        status: if health.state == Standing::Ok { Vitality::Ok } else { Vitality::Degraded },
        activity: LogHealth { failed: health.failed.is_some(), lost: health.lost },
    });
    answer::json(StatusCode::OK, Body::from(body), request_id)
}

/// Tells whether every enabled server was discovered, or has failed once, whether one can be used,
/// and whether calls are refused because the log cannot be written. Without the key, names and states
/// alone.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "health",
    operation_id = "getReadiness",
    responses(
        (status = 200, description = "Every server was heard or has failed", body = Readiness),
        (
            status = 503,
            description = "A server is still awaited, or calls are refused: the log cannot be written",
            body = Readiness,
        ),
    )
)]
pub(super) fn ready(worker: &Rc<Worker>, admitted: bool, request_id: &str) -> Response<Body> {
    let upstreams = &worker.proxy.upstreams;
    let health = worker.proxy.activity.health();
    let settled = upstreams.settled() && health.state != Standing::Failed;
    let status = if settled { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let servers = upstreams.states().into_iter().map(|state| match admitted {
        true => Readied::Whole(Box::new(state.into())),
        false => Readied::State(NameAndState { name: state.name, state: state.status }),
    });
    let activity = LogState { state: health.state, reason: health.failed.filter(|_| admitted) };
    let (ready, servers) = (settled && upstreams.usable(), servers.collect());
    let body = Readiness { ready, activity, servers };
    answer::json(status, Body::from(encode(&body)), request_id)
}

#[derive(Serialize, ToSchema)]
struct Alive {
    status: Vitality,
    activity: LogHealth,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Vitality {
    Ok,
    /// The log cannot be written (ACT-2).
    Degraded,
}

#[derive(Serialize, ToSchema)]
struct LogHealth {
    /// True when it cannot be written.
    failed: bool,
    /// Entries that could not be recorded, since the log was begun.
    lost: u64,
}

#[derive(Serialize, ToSchema)]
struct Readiness {
    /// True once none is awaited and, unless none is enabled, at least one is connected, as long as
    /// calls are not refused because the log cannot be written.
    ready: bool,
    activity: LogState,
    servers: Vec<Readied>,
}

/// The activity log.
#[derive(Serialize, ToSchema)]
struct LogState {
    state: Standing,
    /// Why it cannot be written; with the key only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    reason: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Readied {
    /// With the key.
    Whole(Box<Server>),
    /// Without.
    State(NameAndState),
}

#[derive(Serialize, ToSchema)]
// Says in the description that nothing else is told, so that the two forms can be told apart.
#[serde(deny_unknown_fields)]
struct NameAndState {
    #[schema(value_type = String)]
    name: Arc<str>,
    state: Status,
}

#[derive(Serialize, ToSchema)]
struct Tools<'a> {
    tools: Vec<Shown<'a>>,
    /// The words searched for, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    query: Option<&'a str>,
    /// All tools that are meant.
    total: usize,
    /// The limit in force.
    limit: usize,
    /// The `cursor` of the next page; left out where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct OneTool<'a> {
    tool: Whole<'a>,
}

/// A tool with all its server said of it.
#[derive(Serialize, ToSchema)]
#[schema(as = WholeTool)]
struct Whole<'a> {
    #[serde(flatten)]
    shown: Shown<'a>,
    /// The server's own bytes, if it gave any.
    #[serde(rename = "outputSchema", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    output_schema: Option<&'a RawValue>,
}

#[derive(Serialize, ToSchema)]
struct Servers {
    servers: Vec<CountedServer>,
}

/// A server, and what became of the calls to it.
#[derive(Serialize, ToSchema)]
struct CountedServer {
    #[serde(flatten)]
    server: Server,
    calls: Counted,
}

/// One upstream server as it is shown.
#[derive(Serialize, ToSchema)]
struct Server {
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

impl From<ServerState> for Server {
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

/// Where a page goes on after the tool named by `cursor`.
fn after(tools: &[(Arc<Tool>, Option<f32>)], cursor: &str) -> Option<usize> {
    let name = ToolName::parse(cursor)?;
    match tools.iter().position(|(tool, _)| tool.name == name) {
        Some(at) => Some(at + 1),
        // A list by name goes on where the tool was; in a ranking its place is not known.
        None if tools.iter().all(|(_, score)| score.is_none()) => {
            Some(tools.partition_point(|(tool, _)| tool.name <= name))
        }
        None => None,
    }
}

fn no_server(name: &str) -> Failure {
    Failure::new(StatusCode::NOT_FOUND, format!("Server '{name}' not found"))
}
