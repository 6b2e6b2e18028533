//! `/api/v1/tools…`: lists, searches and shows tools of the catalog, and reviews changed definitions (`…/diff`,
//! `…/approve`). Calls are in `call`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::call;
use super::query_parameters::{BadQuery, Query, decode_segment};
use super::request::{ApiRequest, read_body};
use super::response::{ApiError, Success, encode, rfc_3339};
use mcpproxy_activity::record::{Draft, MAX_METADATA_BYTES, Raw, Status, Text, Type};
use mcpproxy_catalog::Snapshot;
use mcpproxy_catalog::change::DefinitionDiff;
use mcpproxy_catalog::definition::DefinitionDigest;
use mcpproxy_catalog::pin_decisions::{ApprovalRefused, ApprovalTarget, ApprovedTools};
use mcpproxy_catalog::scan::ScanFinding;
use mcpproxy_gateway::proxy::Proxy;
use mcpproxy_gateway::proxy::builtin::retrieve::{MAX_RULED, Shown};
use mcpproxy_gateway::telemetry::call_metrics::{Outcome, ToolOutcomes};
use mcpproxy_policy::intent::Operation;
use mcpproxy_policy::tool::{Tool, ToolName, Trust};
use mcpproxy_policy::{self as policy, Principal};

/// Selection of tools, and the page.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ToolParameters {
    /// Words to search for in names, descriptions and parameters, best match first. If omitted, all tools are listed by
    /// name.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    q: Option<String>,
    /// Name of the server in the config.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    server: Option<String>,
    /// `true`: only tools whose definition awaits approval; `false`: only other tools.
    #[param(nullable = false)]
    quarantined: Option<bool>,
    /// `true`: only tools that neither annotations nor capabilities mark read-only or destructive; `false`: only other
    /// tools.
    #[param(nullable = false)]
    unannotated: Option<bool>,
    /// Order: by name, by operation (`read`, `write`, `destructive`), or by the number of calls or failed calls since the
    /// start of the proxy; descending with `-`. If omitted, the best match or the first name comes first.
    #[param(value_type = Option<String>, nullable = false, pattern = "^-?(name|operation|calls|errors)$")]
    sort: Option<Sort>,
    /// Maximum number of tools in the page.
    #[param(value_type = u64, required = false, minimum = 1, maximum = 100, default = 50)]
    limit: usize,
    /// `next_cursor` of the previous page, with the same other parameters. Rejected if the tool named by the cursor is
    /// not found, unless the tools are listed by name.
    #[param(nullable = false, min_length = 1, max_length = 1024, pattern = "^[^:]+:[^\\n]+$")]
    cursor: Option<String>,
}

impl ToolParameters {
    fn read(query: &mut Query) -> Result<Self, BadQuery> {
        Ok(Self {
            q: query.text("q")?,
            server: query.text("server")?,
            quarantined: query.choice("quarantined")?,
            unannotated: query.choice("unannotated")?,
            sort: query.word("sort", &SORTS)?,
            limit: query.limit()?,
            cursor: query.text("cursor")?,
        })
    }
}

/// Order of a list of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sort {
    key: SortKey,
    is_descending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortKey {
    Name,
    Operation,
    Calls,
    Errors,
}

/// All values of `sort`.
const SORTS: [Sort; 8] = {
    const fn of(key: SortKey, is_descending: bool) -> Sort {
        Sort { key, is_descending }
    }
    use SortKey::{Calls, Errors, Name, Operation};
    [
        of(Name, false),
        of(Name, true),
        of(Operation, false),
        of(Operation, true),
        of(Calls, false),
        of(Calls, true),
        of(Errors, false),
        of(Errors, true),
    ]
};

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_descending { "-" } else { "" };
        let key = match self.key {
            SortKey::Name => "name",
            SortKey::Operation => "operation",
            SortKey::Calls => "calls",
            SortKey::Errors => "errors",
        };
        write!(f, "{sign}{key}")
    }
}

/// A tool that was selected, with the score of a search.
type Selected = (Arc<Tool>, Option<f32>);

impl Sort {
    /// Sorts the tools, which are in the order of their names or scores. Equal ones keep it, or are reversed as well.
    fn apply(self, tools: &mut [Selected], counts: &ToolCounts) {
        match self.key {
            SortKey::Name => tools.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name)),
            SortKey::Operation => {
                tools.sort_by_key(|(it, _)| Operation::recommended(it.capability))
            }
            SortKey::Calls => tools.sort_by_cached_key(|(it, _)| counts.of(it).count()),
            SortKey::Errors => {
                tools.sort_by_cached_key(|(it, _)| counts.of(it).of(Outcome::Error));
            }
        }
        if self.is_descending {
            tools.reverse();
        }
    }
}

/// Calls of each tool since the start of the proxy, by any principal. Known only to the admin, because others see no more
/// than their own records.
#[derive(Default)]
struct ToolCounts {
    is_known: bool,
    servers: HashMap<Arc<str>, HashMap<Arc<str>, ToolOutcomes>>,
}

impl ToolCounts {
    fn read(proxy: &Proxy, principal: &Principal) -> Self {
        if *principal != Principal::Admin {
            return Self::default();
        }
        let mut by_id = proxy.calls.outcomes_by_tool();
        let servers = proxy.upstreams.iter().filter_map(|upstream| {
            Some((Arc::clone(upstream.name()), by_id.remove(&upstream.id())?))
        });
        Self { is_known: true, servers: servers.collect() }
    }

    fn of(&self, tool: &Tool) -> ToolOutcomes {
        let of_server = self.servers.get(&tool.name.server);
        of_server.and_then(|tools| tools.get(&tool.name.tool)).copied().unwrap_or_default()
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
    ApiRequest { worker, principal, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    let mut query = query?;
    let ToolParameters { q: words, server, quarantined, unannotated, sort, limit, cursor } =
        ToolParameters::read(&mut query)?;
    query.finish()?;
    let meaning = match &words {
        Some(words) => worker.proxy.meaning.meaning(words).await,
        None => None,
    };
    let snapshot = worker.proxy.catalog.load();
    let settings = worker.settings();
    let visible = policy::visible(principal, &settings.policy);
    // Principals with restricted visibility must not learn which servers exist.
    let absent = server.as_deref().filter(|server| !snapshot.server_known(server));
    if let Some(server) = absent.filter(|_| visible.is_all()) {
        return Err(no_server(server));
    }
    let is_selected = |tool: &Arc<Tool>| {
        server.as_deref().is_none_or(|name| *tool.name.server == *name)
            && quarantined.is_none_or(|held| (tool.trust == Trust::Withheld) == held)
            && unannotated.is_none_or(|without| tool.is_unannotated() == without)
    };
    let mut selected: Vec<Selected> = match &words {
        Some(words) => {
            let mut may_see = visible.first_tools(MAX_RULED);
            let shown = |tool: &Arc<Tool>| is_selected(tool) && may_see(tool);
            let found = snapshot.search_for(words, usize::MAX, meaning.as_ref(), shown);
            found.tools.into_iter().map(|(tool, score)| (tool, Some(score))).collect()
        }
        None => {
            let tools =
                snapshot.tools().iter().filter(|tool| is_selected(tool) && visible.tool(tool));
            tools.map(|tool| (Arc::clone(tool), None)).collect()
        }
    };
    let counts = ToolCounts::read(&worker.proxy, principal);
    if let Some(sort) = sort {
        sort.apply(&mut selected, &counts);
    }
    let by_name = match sort {
        None => words.is_none(),
        Some(sort) => sort == Sort { key: SortKey::Name, is_descending: false },
    };
    let start = match cursor {
        None => 0,
        Some(value) => after(&selected, by_name, &value).ok_or_else(|| BadQuery::cursor(value))?,
    };
    let page = selected.get(start..).unwrap_or_default();
    let (page, rest) = page.split_at(limit.min(page.len()));
    let next = page.last().filter(|_| !rest.is_empty());
    Ok(encode(&Tools {
        tools: page
            .iter()
            .map(|(tool, score)| Known::of(&snapshot, &counts, tool, *score))
            .collect(),
        query: words.as_deref(),
        total: selected.len(),
        limit,
        next_cursor: next.map(|(tool, _)| tool.name.to_string()),
    }))
}

/// Shows a tool with its schemas.
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
pub(super) async fn tool(
    ApiRequest { worker, principal, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let name = decode_segment(segment)?;
    let snapshot = worker.proxy.catalog.load();
    let found = ToolName::parse(&name);
    let settings = worker.settings();
    let visible = policy::visible(principal, &settings.policy);
    let absent = found.as_ref().filter(|name| !snapshot.server_known(&name.server));
    if let Some(name) = absent.filter(|_| visible.is_all()) {
        return Err(no_server(&name.server));
    }
    let missing = || ApiError::new(StatusCode::NOT_FOUND, format!("Tool '{name}' not found"));
    let tool = found.as_ref().and_then(|name| snapshot.tool(name));
    let tool = tool.filter(|tool| visible.tool(tool));
    let tool = tool.ok_or_else(missing)?;
    Ok(encode(&OneTool {
        tool: Whole {
            known: Known::of(&snapshot, &ToolCounts::read(&worker.proxy, principal), tool, None),
            output_schema: tool.output_schema.as_deref(),
        },
    }))
}

#[derive(Serialize, ToSchema)]
struct Tools<'a> {
    tools: Vec<Known<'a>>,
    /// The search words, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    query: Option<&'a str>,
    /// Number of all matching tools.
    total: usize,
    /// The effective limit.
    limit: usize,
    /// `cursor` of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct OneTool<'a> {
    tool: Whole<'a>,
}

/// A tool with its quarantine state and scan findings.
#[derive(Serialize, ToSchema)]
#[schema(as = KnownTool)]
struct Known<'a> {
    #[serde(flatten)]
    shown: Shown<'a>,
    /// Whether its definition awaits approval; until then agents can neither see nor call it.
    quarantined: bool,
    /// Whether neither annotations nor capabilities mark it read-only or destructive.
    unannotated: bool,
    /// Scan findings in its definition.
    findings: Vec<ScanFinding>,
    /// Absent for principals other than the admin.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    calls: Option<ToolCallCounts>,
}

/// Calls of a tool since the start of the proxy.
#[derive(Serialize, ToSchema)]
struct ToolCallCounts {
    total: u64,
    /// Calls that failed in the server or in the proxy.
    error: u64,
    /// Calls that were not sent.
    rejected: u64,
    /// Calls whose result was withheld.
    blocked: u64,
}

impl From<ToolOutcomes> for ToolCallCounts {
    fn from(outcomes: ToolOutcomes) -> Self {
        let [error, rejected, blocked] =
            [Outcome::Error, Outcome::Rejected, Outcome::Blocked].map(|it| outcomes.of(it));
        Self { total: outcomes.count(), error, rejected, blocked }
    }
}

impl<'a> Known<'a> {
    fn of(snapshot: &Snapshot, counts: &ToolCounts, tool: &'a Tool, score: Option<f32>) -> Self {
        let reviewed = snapshot.reviewed(&tool.name);
        let findings = reviewed.map(|reviewed| reviewed.findings().cloned().collect());
        Self {
            shown: Shown::of(tool, score),
            quarantined: tool.trust == Trust::Withheld,
            unannotated: tool.is_unannotated(),
            findings: findings.unwrap_or_default(),
            calls: counts.is_known.then(|| counts.of(tool).into()),
        }
    }
}

/// A tool with its output schema.
#[derive(Serialize, ToSchema)]
#[schema(as = WholeTool)]
struct Whole<'a> {
    #[serde(flatten)]
    known: Known<'a>,
    /// Output schema verbatim as listed by the server, if any.
    #[serde(rename = "outputSchema", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    output_schema: Option<&'a RawValue>,
}

/// Index of the tool that follows the one named by `cursor`.
fn after(tools: &[Selected], by_name: bool, cursor: &str) -> Option<usize> {
    let name = ToolName::parse(cursor)?;
    match tools.iter().position(|(tool, _)| tool.name == name) {
        Some(at) => Some(at + 1),
        // A list by name resumes at the position of the removed tool; in another order that position is unknown.
        None => by_name.then(|| tools.partition_point(|(tool, _)| tool.name <= name)),
    }
}

fn no_server(name: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("Server '{name}' not found"))
}

/// Maximum number of tools of a server whose differences are shown. The digest covers all of the server's quarantined
/// tools.
const MAX_SHOWN_TOOLS: usize = 20;

/// Shows how definitions differ from the accepted ones, for a tool or for all quarantined tools of a server.
#[utoipa::path(
    get,
    path = "/api/v1/tools/{name}/diff",
    tag = "tools",
    operation_id = "getDiff",
    params((
        "name" = String,
        Path,
        description = "The tool as `server:tool`, or a server",
        pattern = "^[^\\n]+$",
    )),
    responses(
        (status = 200, description = "The differences", body = Success<Differences>),
        (status = 404, description = "There is no such tool, and no such server"),
    )
)]
pub(super) async fn diff(
    ApiRequest { worker, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let name = decode_segment(segment)?;
    let snapshot = worker.proxy.catalog.load();
    let target = target(&snapshot, &name)?;
    let tools = target.tools(&snapshot);
    Ok(encode(&Differences {
        name: target.name(),
        digest: target.digest(&tools).to_string(),
        left_out: tools.len().saturating_sub(MAX_SHOWN_TOOLS),
        tools: tools.iter().take(MAX_SHOWN_TOOLS).map(DefinitionDiff::of).collect(),
    }))
}

/// Approves reviewed definitions. The tools become visible and callable as currently defined.
#[utoipa::path(
    post,
    path = "/api/v1/tools/{name}/approve",
    tag = "tools",
    operation_id = "approveTool",
    params((
        "name" = String,
        Path,
        description = "The tool as `server:tool`, or a server",
        pattern = "^[^\\n]+$",
    )),
    request_body = Seen,
    responses(
        (status = 200, description = "The approved tools", body = Success<ApprovedNow>),
        (status = 404, description = "There is no such tool, and no such server"),
        (status = 409, description = "Nothing awaits approval, or the definition changed since it was reviewed"),
    )
)]
pub(super) async fn approve(
    ApiRequest { worker, principal, parts, segment, id, query, body, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    let body = read_body(query, body).await?;
    let name = decode_segment(segment)?;
    let seen = Seen::read(&body)?;
    let catalog = &worker.proxy.catalog;
    let target = target(&catalog.load(), &name)?;
    let approved = catalog.approve(target.clone(), seen).await;
    let note = |draft: Draft| worker.proxy.activity.note(draft);
    let draft = |status| {
        let mut draft = Draft::new(Type::Approval, call::source(&parts.headers), status);
        draft.set(Text::Principal, principal.id());
        draft.set(Text::RequestId, id);
        draft
    };
    match approved {
        Ok(ApprovedTools { tools, disk }) => {
            for (tool, digest) in &tools {
                let mut draft = draft(Status::Success);
                draft.set(Text::Server, &tool.server);
                draft.set(Text::Tool, &tool.tool);
                let metadata = json!({"approval": "definition", "digest": digest.to_string()});
                draft.keep(Raw::Metadata, metadata.to_string().as_bytes(), MAX_METADATA_BYTES);
                note(draft);
            }
            let tools = tools.iter().map(|(tool, _)| tool.to_string()).collect();
            Ok(encode(&ApprovedNow {
                approved: tools,
                not_saved: disk,
                time: rfc_3339(SystemTime::now(), 3),
            }))
        }
        Err(refused) => {
            let mut draft = draft(Status::Rejected);
            let (server, tool) = match &target {
                ApprovalTarget::OneTool(name) => (&name.server, &*name.tool),
                ApprovalTarget::WholeServer(server) => (server, ""),
            };
            draft.set(Text::Server, server);
            draft.set(Text::Tool, tool);
            draft.set(Text::Error, &refused.to_string());
            note(draft);
            let status = match refused {
                ApprovalRefused::NothingWaits(_) | ApprovalRefused::Changed(_) => {
                    StatusCode::CONFLICT
                }
                ApprovalRefused::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            Err(ApiError::new(status, refused))
        }
    }
}

fn target(snapshot: &Snapshot, name: &str) -> Result<ApprovalTarget, ApiError> {
    let missing =
        || ApiError::new(StatusCode::NOT_FOUND, format!("Tool or server '{name}' not found"));
    ApprovalTarget::named(snapshot, name).ok_or_else(missing)
}

/// Definitions awaiting approval.
#[derive(Serialize, ToSchema)]
struct Differences {
    /// The tool or server.
    name: String,
    /// Digest of all selected definitions; an approval must state it.
    digest: String,
    /// The tool, or the quarantined tools of the server.
    tools: Vec<DefinitionDiff>,
    /// Number of quarantined tools that are not shown; the digest covers them.
    left_out: usize,
}

/// Request to approve definitions.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Seen {
    /// `digest` of the reviewed diff.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    digest: String,
}

impl Seen {
    fn read(body: &[u8]) -> Result<DefinitionDigest, ApiError> {
        let Self { digest } = serde_json::from_slice(body).map_err(|error| {
            ApiError::bad_request(format!("the body must be {{\"digest\": …}}: {error}"))
        })?;
        let problem = "digest must be the 32 hexadecimal digits that the diff shows";
        DefinitionDigest::parse(&digest).ok_or_else(|| ApiError::bad_request(problem))
    }
}

/// Tools whose definitions were approved, and whether the approval is durable.
#[derive(Serialize, ToSchema)]
struct ApprovedNow {
    /// The tools, as `server:tool`.
    approved: Vec<String>,
    /// Reason why the approval will not survive a restart; absent if it will.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    not_saved: Option<String>,
    /// Time at which they were approved.
    #[schema(format = DateTime)]
    time: String,
}
