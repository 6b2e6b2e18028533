//! What there is and how it is: tools, servers, status, and the two health answers.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::answer::{self, Failure};
use super::query::{BadQuery, Query};
use crate::downstream::body::Body;
use crate::proxy::Worker;
use crate::proxy::retrieve::Shown;
use crate::tool::{OutputSchema, Tool, ToolName};
use crate::upstream::supervisor::{ServerState, Status};

/// Tools in a page that asks for no number.
const DEFAULT_LIMIT: u64 = 50;
/// Most tools in a page.
const MAX_LIMIT: u64 = 100;

/// `GET /api/v1/tools`: all by name, or the ones that fit `q`, best first.
pub(super) fn tools(worker: &Worker, mut query: Query) -> Result<Bytes, Failure> {
    let limit = query.number("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (words, server) = (query.text("q")?, query.text("server")?);
    let cursor = query.text("cursor")?;
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
        Some(value) => after(&meant, &value).ok_or_else(|| {
            let expected = "a next_cursor of an earlier answer".to_owned();
            BadQuery::Invalid { name: "cursor", value, expected }
        })?,
    };
    let page = meant.get(start..).unwrap_or_default();
    let (page, rest) = page.split_at(limit.min(page.len()));
    let next = page.last().filter(|_| !rest.is_empty());
    Ok(json(&Tools {
        tools: page.iter().map(|(tool, score)| Shown::of(tool, *score)).collect(),
        query: words.as_deref(),
        total: meant.len(),
        limit,
        next_cursor: next.map(|(tool, _)| tool.name.to_string()),
    }))
}

/// `GET /api/v1/tools/{server:tool}`
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
    Ok(json(&OneTool {
        tool: Whole { shown: Shown::of(tool, None), output_schema: tool.output_schema.as_deref() },
    }))
}

/// `GET /api/v1/servers`
pub(super) fn servers(worker: &Worker, query: Query) -> Result<Bytes, Failure> {
    query.finish()?;
    Ok(json(&Servers { servers: known(worker) }))
}

/// `GET /api/v1/status`
pub(super) fn status(worker: &Worker, query: Query, uptime: Duration) -> Result<Bytes, Failure> {
    query.finish()?;
    let states = worker.proxy.upstreams.states();
    let connected = states.iter().filter(|state| state.status == Status::Connected).count();
    Ok(json(&serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": uptime.as_secs(),
        "servers": {"total": states.len(), "connected": connected},
        "tools": worker.proxy.catalog.load().tools().len(),
        "schemas": schemas(worker),
        "activity": worker.proxy.activity.health(),
    })))
}

/// What is remarkable about output schemas: which cannot be used and why (FR-A9), which one engine
/// judges alone, and how often the two disagreed.
fn schemas(worker: &Worker) -> serde_json::Value {
    let snapshot = worker.proxy.catalog.load();
    let (mut unusable, mut tape_alone) = (Vec::new(), Vec::new());
    for tool in snapshot.tools() {
        match &tool.schema {
            OutputSchema::Unusable(reason) => {
                unusable.push(serde_json::json!({"tool": tool.name.to_string(), "reason": reason}));
            }
            OutputSchema::Compiled(schema) if schema.judged_by_tape_alone() => {
                tape_alone.push(tool.name.to_string());
            }
            OutputSchema::Absent | OutputSchema::Compiled(_) => {}
        }
    }
    serde_json::json!({
        "unusable": unusable,
        "judged_by_tape_alone": tape_alone,
        "disagreements": worker.proxy.judges.disagreements(),
    })
}

/// `GET /healthz`: alive, and whether the log is (ACT-2).
pub(super) fn alive(worker: &Rc<Worker>, request_id: &str) -> Response<Body> {
    let health = worker.proxy.activity.health();
    let body = json(&serde_json::json!({
        "status": if health.failed.is_none() { "ok" } else { "degraded" },
        "activity": {"failed": health.failed.is_some(), "lost": health.lost},
    }));
    answer::json(StatusCode::OK, Body::from(body), request_id)
}

/// `GET /readyz`: 200 once every enabled server was discovered or has failed once.
pub(super) fn ready(worker: &Rc<Worker>, request_id: &str) -> Response<Body> {
    let (ready, servers) = (worker.proxy.upstreams.settled(), known(worker));
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json(&serde_json::json!({"ready": ready, "servers": servers}));
    answer::json(status, Body::from(body), request_id)
}

#[derive(Serialize)]
struct Tools<'a> {
    tools: Vec<Shown<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<&'a str>,
    total: usize,
    limit: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct OneTool<'a> {
    tool: Whole<'a>,
}

/// A tool with all its server said of it.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    shown: Shown<'a>,
    #[serde(rename = "outputSchema", skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Servers {
    servers: Vec<Server>,
}

/// One upstream server as it is shown.
#[derive(Serialize)]
struct Server {
    name: Arc<str>,
    state: &'static str,
    protocol: &'static str,
    tools: usize,
    /// What is wrong; empty if nothing is.
    reason: Arc<str>,
    since: String,
    /// The protocol revision agreed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol_version: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_info: Option<Arc<str>>,
}

impl From<ServerState> for Server {
    fn from(state: ServerState) -> Self {
        let since = Timestamp::try_from(state.since).unwrap_or(Timestamp::UNIX_EPOCH);
        Self {
            name: state.name,
            state: state.status.as_str(),
            protocol: state.transport.as_str(),
            tools: state.tools,
            reason: state.reason,
            since: format!("{since:.3}"),
            protocol_version: state.protocol_version,
            server_info: state.server_info,
        }
    }
}

fn known(worker: &Worker) -> Vec<Server> {
    worker.proxy.upstreams.states().into_iter().map(Server::from).collect()
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

fn json<T: Serialize>(value: &T) -> Bytes {
    // Strings, numbers, and JSON that was checked at discovery: nothing can fail to be JSON.
    serde_json::to_vec(value).unwrap_or_default().into()
}
