//! `/api/v1/tools…`: tools of the catalog, searched, listed and shown. Calls are in `call`.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::query_parameters::{BadQuery, Query};
use super::response::{ApiError, Success, encode};
use super::routes;
use crate::catalog::Snapshot;
use crate::catalog::scan::ScanFinding;
use crate::policy::{self, Principal};
use crate::proxy::Worker;
use crate::proxy::retrieve::{MAX_RULED, Shown};
use crate::tool::{Tool, ToolName, Trust};

/// Which tools are meant, and which page of them.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ToolParameters {
    /// Words to search for, in names, descriptions and parameters; best first. Without it all tools
    /// are listed, by name.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    q: Option<String>,
    /// The server's name in the config.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    server: Option<String>,
    /// `true`: those whose definition waits for approval; `false`: the others. Without it both.
    #[param(nullable = false)]
    quarantined: Option<bool>,
    /// Most tools in the page.
    #[param(value_type = u64, required = false, minimum = 1, maximum = 100, default = 50)]
    limit: usize,
    /// Where the page before this one ended: its `next_cursor`, with the same `q`, `server` and
    /// `quarantined`. With another `q`, one that does not find the tool it names is refused.
    #[param(nullable = false, min_length = 1, max_length = 1024, pattern = "^[^:]+:[^\\n]+$")]
    cursor: Option<String>,
}

impl ToolParameters {
    fn read(query: &mut Query) -> Result<Self, BadQuery> {
        Ok(Self {
            q: query.text("q")?,
            server: query.text("server")?,
            quarantined: query.choice("quarantined")?,
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
    params(ToolParameters),
    responses(
        (status = 200, description = "A page of tools", body = Success<Tools>),
        (status = 404, description = "There is no such server"),
    )
)]
pub(super) async fn tools(
    worker: &Worker,
    principal: &Principal,
    mut query: Query,
) -> Result<Bytes, ApiError> {
    let ToolParameters { q: words, server, quarantined, limit, cursor } =
        ToolParameters::read(&mut query)?;
    query.finish()?;
    let meaning = match &words {
        Some(words) => worker.proxy.meaning.meaning(words).await,
        None => None,
    };
    let snapshot = worker.proxy.catalog.load();
    if let Some(server) = server.as_deref().filter(|server| !snapshot.server_known(server)) {
        return Err(no_server(server));
    }
    let settings = worker.settings();
    let visible = policy::visible(principal, &settings.policy);
    let is_meant = |tool: &Arc<Tool>| {
        server.as_deref().is_none_or(|name| *tool.name.server == *name)
            && quarantined.is_none_or(|held| (tool.trust == Trust::Withheld) == held)
    };
    let meant: Vec<(Arc<Tool>, Option<f32>)> = match &words {
        Some(words) => {
            let mut may_see = visible.first_tools(MAX_RULED);
            let shown = |tool: &Arc<Tool>| is_meant(tool) && may_see(tool);
            let found = snapshot.search_for(words, usize::MAX, meaning.as_ref(), shown);
            found.tools.into_iter().map(|(tool, score)| (tool, Some(score))).collect()
        }
        None => {
            let meant = snapshot.tools().iter().filter(|tool| is_meant(tool) && visible.tool(tool));
            meant.map(|tool| (Arc::clone(tool), None)).collect()
        }
    };
    let start = match cursor {
        None => 0,
        Some(value) => after(&meant, &value).ok_or_else(|| BadQuery::cursor(value))?,
    };
    let page = meant.get(start..).unwrap_or_default();
    let (page, rest) = page.split_at(limit.min(page.len()));
    let next = page.last().filter(|_| !rest.is_empty());
    Ok(encode(&Tools {
        tools: page.iter().map(|(tool, score)| Known::of(&snapshot, tool, *score)).collect(),
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
pub(super) fn tool(
    worker: &Worker,
    principal: &Principal,
    query: Query,
    name: &str,
) -> Result<Bytes, ApiError> {
    query.finish()?;
    let name = routes::decoded(name)?;
    let snapshot = worker.proxy.catalog.load();
    let found = ToolName::parse(&name);
    if let Some(name) = found.as_ref().filter(|name| !snapshot.server_known(&name.server)) {
        return Err(no_server(&name.server));
    }
    let missing = || ApiError::new(StatusCode::NOT_FOUND, format!("Tool '{name}' not found"));
    let tool = found.as_ref().and_then(|name| snapshot.tool(name));
    let settings = worker.settings();
    let tool = tool.filter(|tool| policy::visible(principal, &settings.policy).tool(tool));
    let tool = tool.ok_or_else(missing)?;
    Ok(encode(&OneTool {
        tool: Whole {
            known: Known::of(&snapshot, tool, None),
            output_schema: tool.output_schema.as_deref(),
        },
    }))
}

#[derive(Serialize, ToSchema)]
struct Tools<'a> {
    tools: Vec<Known<'a>>,
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

/// A tool as operators see it: in quarantine or not, and with what the scan says of it.
#[derive(Serialize, ToSchema)]
#[schema(as = KnownTool)]
struct Known<'a> {
    #[serde(flatten)]
    shown: Shown<'a>,
    /// Whether its definition waits for approval: until then no agent sees it, and none can call it.
    quarantined: bool,
    /// What the scan found in its definition.
    findings: Vec<ScanFinding>,
}

impl<'a> Known<'a> {
    fn of(snapshot: &Snapshot, tool: &'a Tool, score: Option<f32>) -> Self {
        let reviewed = snapshot.reviewed(&tool.name);
        let findings = reviewed.map(|reviewed| reviewed.findings().cloned().collect());
        Self {
            shown: Shown::of(tool, score),
            quarantined: tool.trust == Trust::Withheld,
            findings: findings.unwrap_or_default(),
        }
    }
}

/// A tool with all its server said of it.
#[derive(Serialize, ToSchema)]
#[schema(as = WholeTool)]
struct Whole<'a> {
    #[serde(flatten)]
    known: Known<'a>,
    /// The server's own bytes, if it gave any.
    #[serde(rename = "outputSchema", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    output_schema: Option<&'a RawValue>,
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

fn no_server(name: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("Server '{name}' not found"))
}
