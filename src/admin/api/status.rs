//! `/api/v1/status`: metrics and faults of the proxy. `/healthz` and `/readyz`: probes, which need no key and reveal
//! less without it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::request::ApiRequest;
use super::response;
use super::response::{ApiError, Success, encode};
use super::servers::{CallCounts, ServerView, quarantined};
use crate::api::State;
use mcpproxy_activity::{Health, Standing};
use mcpproxy_downstream::body::Body;
use mcpproxy_fleet::fleet_logs::IndexReport;
use mcpproxy_fleet::fleet_node::{FleetReadiness, READINESS_LIMIT};
use mcpproxy_fleet::{FleetNode, IndexRole};
use mcpproxy_gateway::proxy::{Worker, memory_budget};
use mcpproxy_gateway::telemetry::build_info;
use mcpproxy_gateway::telemetry::call_metrics::{Decision, RefusalKind, Totals};
use mcpproxy_policy::Principal;
use mcpproxy_policy::tool::OutputSchema;
use mcpproxy_upstream::supervisor::{ServerState, Status};

/// Returns version, uptime, counters and faults.
#[utoipa::path(
    get,
    path = "/api/v1/status",
    tag = "state",
    operation_id = "getStatus",
    responses((status = 200, description = "The status of the proxy", body = Success<Overview>))
)]
pub(super) async fn status(
    ApiRequest { state, worker, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let (proxy, settings) = (&worker.proxy, worker.settings());
    let states = proxy.upstreams.states();
    let connected = states.iter().filter(|state| state.status == Status::Connected).count();
    let activity = proxy.activity.health();
    let connections = state.connections.get().into_iter().flatten();
    let index = state.fleet_index.get().filter(|index| index.role() != IndexRole::None);
    let index = index.map(|index| index.report());
    Ok(encode(&Overview {
        version: build_info::VERSION,
        commit: build_info::COMMIT,
        uptime_seconds: state.started.elapsed().as_secs(),
        faults: faults(state, worker, &states, &activity, index.as_ref()),
        servers: Connected { total: states.len(), connected },
        tools: proxy.catalog.load().tools().len(),
        calls: proxy.calls.read().into(),
        load: Load {
            sessions: state.sessions.count(),
            connections: connections.map(|open| open.load(Ordering::Relaxed)).sum(),
            approvals: proxy.approvals.count(),
            held: (&settings.held).into(),
            behind: (&settings.judging_budget).into(),
        },
        schemas: schemas(worker),
        activity,
        log: Log { lines_lost: state.lines.lost() },
        index,
    }))
}

/// Lists the current faults with their causes.
fn faults(
    state: &State,
    worker: &Worker,
    states: &[ServerState],
    activity: &Health,
    index: Option<&IndexReport>,
) -> Vec<Fault> {
    let (proxy, config) = (&worker.proxy, state.config.standing());
    let servers = states.iter().filter(|state| match state.status {
        Status::Failed | Status::NeedsLogin | Status::Throttled => true,
        Status::Connected | Status::Connecting => !state.reason.is_empty(),
        Status::Disabled => false,
    });
    let servers = servers.map(|state| Fault {
        part: Part::Server,
        server: Some(state.name.to_string()),
        cause: state.reason.to_string(),
    });
    let snapshot = proxy.catalog.load();
    let held = states.iter().filter_map(|state| {
        let cause = match quarantined(&snapshot, &state.name) {
            0 => return None,
            1 => "1 tool is in quarantine".to_owned(),
            held => format!("{held} tools are in quarantine"),
        };
        Some(Fault { part: Part::Server, server: Some(state.name.to_string()), cause })
    });
    let lost =
        |what: &str, count: u64| (count > 0).then(|| format!("{count} {what} since the start"));
    let causes = [
        (Part::Activity, activity.failed.clone()),
        (Part::Activity, activity.damaged.clone()),
        (Part::Activity, activity.repaired.as_ref().map(ToString::to_string)),
        (Part::Activity, lost("entries could not be recorded", activity.lost)),
        (Part::Certificate, state.certificate.get().and_then(|it| it.fault(SystemTime::now()))),
        (Part::Log, lost("lines could not be written", state.lines.lost())),
        (Part::Config, config.fault()),
        (Part::Tokens, proxy.identity.token_fault().map(|fault| fault.cause.clone())),
    ];
    let lists = [
        (Part::Rules, config.rule_faults()),
        (Part::Search, proxy.meaning.faults()),
        (
            Part::Fleet,
            proxy.nodes.fleet_node().map_or_else(Vec::new, |node| node.faults(&proxy.activity)),
        ),
        (Part::Index, index.into_iter().flat_map(IndexReport::faults).collect()),
    ];
    let causes = causes.into_iter().map(|(part, cause)| (part, Vec::from_iter(cause)));
    let of_parts = causes.chain(lists).flat_map(|(part, causes)| {
        causes.into_iter().map(move |cause| Fault { part, server: None, cause })
    });
    servers.chain(held).chain(of_parts).collect()
}

fn schemas(worker: &Worker) -> Schemas {
    let snapshot = worker.proxy.catalog.load();
    let (mut unusable, mut judged_by_tape_alone) = (Vec::new(), Vec::new());
    let mut compiling = Vec::new();
    for tool in snapshot.tools() {
        match tool.schema.now() {
            OutputSchema::Unusable(reason) => {
                unusable.push(Unusable { tool: tool.name.to_string(), reason: reason.to_string() });
            }
            OutputSchema::Compiled(schema) if schema.judged_by_tape_alone() => {
                judged_by_tape_alone.push(tool.name.to_string());
            }
            OutputSchema::Compiling(_) => compiling.push(tool.name.to_string()),
            OutputSchema::Absent | OutputSchema::Compiled(_) => {}
        }
    }
    let disagreements = worker.proxy.validation_pool.disagreements();
    Schemas { unusable, compiling, judged_by_tape_alone, disagreements }
}

#[derive(Serialize, ToSchema)]
struct Overview {
    #[schema(value_type = String)]
    version: &'static str,
    /// The commit from which the proxy was built, or `unknown`.
    #[schema(value_type = String)]
    commit: &'static str,
    uptime_seconds: u64,
    /// The current faults.
    faults: Vec<Fault>,
    servers: Connected,
    /// Number of tools in the catalog.
    tools: usize,
    calls: Calls,
    load: Load,
    schemas: Schemas,
    activity: Health,
    log: Log,
    /// Index of the other nodes' logs, if this node keeps one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    index: Option<IndexReport>,
}

/// A current fault of the proxy or of one server.
#[derive(Serialize, ToSchema)]
struct Fault {
    part: Part,
    /// The faulty server, if the fault is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    server: Option<String>,
    /// The cause in one line.
    cause: String,
}

/// Part of the proxy that has the fault.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Part {
    /// An upstream server.
    Server,
    /// The activity log.
    Activity,
    /// The listener's certificate.
    Certificate,
    /// The log on stderr.
    Log,
    /// The config file.
    Config,
    /// The rules in force.
    Rules,
    /// The agent token file.
    Tokens,
    /// The endpoint of `search.embeddings`.
    Search,
    /// The index of the fleet.
    Index,
    /// The fleet: its store, and the nodes as seen by this node.
    Fleet,
}

/// The log on stderr.
#[derive(Serialize, ToSchema)]
struct Log {
    /// Number of lines lost since the start because stderr is closed or not read in time.
    lines_lost: u64,
}

#[derive(Serialize, ToSchema)]
struct Connected {
    total: usize,
    connected: usize,
}

/// Resources in use.
#[derive(Serialize, ToSchema)]
struct Load {
    /// MCP sessions of clients.
    sessions: usize,
    /// Connections of clients.
    connections: usize,
    /// Calls waiting for approval.
    approvals: usize,
    /// Bytes of results held for validation in strict mode.
    held: MemoryUse,
    /// Bytes of results forwarded in warn mode and not validated yet.
    behind: MemoryUse,
}

/// Memory in use, and its limit.
#[derive(Serialize, ToSchema)]
#[schema(as = Room)]
struct MemoryUse {
    bytes: u64,
    /// Maximum number of bytes.
    limit: u64,
}

impl From<&memory_budget::MemoryBudget> for MemoryUse {
    fn from(budget: &memory_budget::MemoryBudget) -> Self {
        Self { bytes: budget.used(), limit: budget.limit() }
    }
}

/// Outcomes since the start, of all tool calls, including built-in tools, and of other requests to servers.
#[derive(Serialize, ToSchema)]
struct Calls {
    #[serde(flatten)]
    counted: CallCounts,
    /// Calls in flight.
    in_flight: u64,
    refusals: Refusals,
    decisions: Decisions,
}

/// Calls without a response from an upstream, by reason.
#[derive(Serialize, ToSchema)]
struct Refusals {
    /// The request is malformed.
    unreadable: u64,
    /// Headers and arguments disagree.
    headers: u64,
    /// The intent is missing, malformed or does not match the call tool.
    intent: u64,
    /// Annotations or capability forbid the call.
    gate: u64,
    /// The arguments violate the schema of the tool.
    arguments: u64,
    /// A concurrency or rate limit was exceeded.
    limited: u64,
    /// The principal had too many requests rejected, or exceeded its share of the log; these calls are recorded in
    /// aggregate.
    throttled: u64,
    /// The server or tool is unknown.
    unknown: u64,
    /// The upstream failed.
    upstream: u64,
    /// Requests other than tool calls that failed.
    failed: u64,
    /// The activity log cannot store a record.
    unavailable: u64,
}

/// Recorded decisions, by policy.
#[derive(Serialize, ToSchema)]
struct Decisions {
    output_validation: Decided,
    input_validation: Decided,
    intent: Decided,
    capability: Decided,
    scope: Decided,
    catalog: Decided,
    rules: Decided,
    limit: Decided,
    approval: Decided,
}

#[derive(Serialize, ToSchema)]
struct Decided {
    blocked: u64,
    warning: u64,
}

impl From<Totals> for Calls {
    fn from(totals: Totals) -> Self {
        let refused = |kind| totals.refused(kind);
        let decided = |blocked, warned| Decided {
            blocked: totals.decided(blocked),
            warning: totals.decided(warned),
        };
        let blocked = |blocked| Decided { blocked: totals.decided(blocked), warning: 0 };
        Self {
            counted: (&totals.all).into(),
            in_flight: totals.in_flight(),
            refusals: Refusals {
                unreadable: refused(RefusalKind::Unreadable),
                headers: refused(RefusalKind::Headers),
                intent: refused(RefusalKind::Intent),
                gate: refused(RefusalKind::Gate),
                arguments: refused(RefusalKind::Arguments),
                limited: refused(RefusalKind::Limited),
                throttled: refused(RefusalKind::Throttled),
                unknown: refused(RefusalKind::Unknown),
                upstream: refused(RefusalKind::Upstream),
                failed: refused(RefusalKind::Failed),
                unavailable: refused(RefusalKind::Unavailable),
            },
            decisions: Decisions {
                output_validation: decided(Decision::OutputBlocked, Decision::OutputWarned),
                input_validation: decided(Decision::InputBlocked, Decision::InputWarned),
                intent: decided(Decision::IntentBlocked, Decision::IntentWarned),
                capability: decided(Decision::CapabilityBlocked, Decision::CapabilityWarned),
                scope: blocked(Decision::ScopeBlocked),
                catalog: decided(Decision::CatalogBlocked, Decision::CatalogWarned),
                rules: decided(Decision::RulesBlocked, Decision::RulesWarned),
                limit: blocked(Decision::LimitBlocked),
                approval: blocked(Decision::ApprovalBlocked),
            },
        }
    }
}

/// Output schemas that need attention (FR-A9).
#[derive(Serialize, ToSchema)]
struct Schemas {
    /// Unusable schemas, with the reasons.
    unusable: Vec<Unusable>,
    /// Tools whose schemas are being compiled. Validated calls to them wait for this.
    compiling: Vec<String>,
    /// Tools whose results only one engine validates.
    judged_by_tape_alone: Vec<String>,
    /// Number of disagreements between the two engines.
    disagreements: u64,
}

#[derive(Serialize, ToSchema)]
struct Unusable {
    tool: String,
    reason: String,
}

/// Reports that the proxy is alive, and the state of its log.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "health",
    operation_id = "getHealth",
    responses((status = 200, description = "Alive", body = Alive))
)]
pub(super) async fn alive(
    ApiRequest { worker, id, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let health = worker.proxy.activity.health();
    let body = encode(&Alive {
        status: if health.state == Standing::Ok { Vitality::Ok } else { Vitality::Degraded },
        activity: LogHealth { failed: health.failed.is_some(), lost: health.lost },
    });
    Ok(response::json(StatusCode::OK, Body::from(body), id))
}

/// Reports whether this node is ready. It checks whether each enabled server was discovered or has failed once, whether
/// one is usable, whether calls are rejected because the log cannot be written or the agent token file cannot be read,
/// and, in a fleet with a key, whether this node knows which other nodes are alive. Without the key only names and
/// states are shown.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "health",
    operation_id = "getReadiness",
    responses(
        (status = 200, description = "Every server was discovered or has failed", body = Readiness),
        (
            status = 503,
            description = "The discovery of a server or of the fleet's nodes is pending; or calls are rejected because the log cannot be written or the agent token file cannot be read",
            body = Readiness,
        ),
    )
)]
pub(super) async fn ready(
    ApiRequest { state, worker, principal, id, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let admitted = *principal == Principal::Admin;
    let upstreams = &worker.proxy.upstreams;
    let health = worker.proxy.activity.health();
    let node = worker.proxy.nodes.fleet_node();
    let sight = node.and_then(|node| Some((node, node.readiness()?)));
    let awaits_fleet = matches!(sight, Some((_, FleetReadiness::Awaited)));
    let fault = worker.proxy.identity.token_fault();
    let refuses_agents = fault.as_ref().is_some_and(|fault| fault.refuses_all);
    let tokens = FileStanding {
        state: if fault.is_some() { FileState::Rejected } else { FileState::Ok },
        reason: fault.filter(|_| admitted).map(|fault| fault.cause.clone()),
    };
    let settled =
        upstreams.settled() && health.state != Standing::Failed && !awaits_fleet && !refuses_agents;
    let status = if settled { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let servers = upstreams.states().into_iter().map(|state| match admitted {
        true => Readied::Whole(Box::new(state.into())),
        false => Readied::State(NameAndState { name: state.name, state: state.status }),
    });
    let reason = health.failed.or_else(|| health.repaired.map(|it| it.to_string()));
    let activity = LogState { state: health.state, reason: reason.filter(|_| admitted) };
    let (ready, servers) = (settled && upstreams.usable(), servers.collect());
    let fault = state.config.standing().fault();
    let standing = if fault.is_some() { FileState::Rejected } else { FileState::Ok };
    let config = FileStanding { state: standing, reason: fault.filter(|_| admitted) };
    let fleet = sight.map(|(node, sight)| fleet_standing(node, sight, admitted));
    let body = Readiness { ready, activity, config, tokens, fleet, servers };
    Ok(response::json(status, Body::from(encode(&body)), id))
}

/// Status of the discovery of other nodes.
fn fleet_standing(node: &FleetNode, sight: FleetReadiness, admitted: bool) -> FleetStanding {
    let state = match sight {
        FleetReadiness::Seen => return FleetStanding { state: SightState::Seen, reason: None },
        FleetReadiness::Awaited => SightState::Awaited,
        FleetReadiness::Unseen => SightState::Unseen,
    };
    let why = || {
        let why = node.living().undecided_reason().unwrap_or_default();
        match sight {
            FleetReadiness::Awaited => {
                format!("{why}: waiting for up to {} s", READINESS_LIMIT.as_secs())
            }
            FleetReadiness::Unseen | FleetReadiness::Seen => why,
        }
    };
    FleetStanding { state, reason: admitted.then(why) }
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
    /// Whether the log cannot be written.
    failed: bool,
    /// Number of entries that could not be recorded since the log was created.
    lost: u64,
}

#[derive(Serialize, ToSchema)]
struct Readiness {
    /// True once no discovery is pending and, if any server is enabled, at least one is connected; false while calls are
    /// rejected because the log cannot be written, while `fleet` is `awaited`, or while all agent tokens are rejected because
    /// their file cannot be read.
    ready: bool,
    activity: LogState,
    config: FileStanding,
    /// The agent token file. The proxy is not ready while the file is rejected and was never read before.
    tokens: FileStanding,
    /// Status of the fleet's discovery, in a fleet with a `cluster.key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    fleet: Option<FleetStanding>,
    servers: Vec<Readied>,
}

/// State of the activity log.
#[derive(Serialize, ToSchema)]
struct LogState {
    state: Standing,
    /// Reason for a fault; only with the API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    reason: Option<String>,
}

/// State of the config file or of the agent token file.
#[derive(Serialize, ToSchema)]
struct FileStanding {
    state: FileState,
    /// Reason why the file is not in force; only with the API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum FileState {
    /// In force, except for settings that need a restart.
    Ok,
    /// Invalid; the previous contents stay in force.
    Rejected,
}

/// Status of the discovery of other nodes.
#[derive(Serialize, ToSchema)]
struct FleetStanding {
    state: SightState,
    /// Reason why discovery is incomplete; only with the API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SightState {
    /// The state of each node was determined since the start.
    Seen,
    /// Pending; this node is not ready until discovery ends.
    Awaited,
    /// Timed out; this node serves alone.
    Unseen,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Readied {
    /// Shown with the API key.
    Whole(Box<ServerView>),
    /// Shown without the API key.
    State(NameAndState),
}

#[derive(Serialize, ToSchema)]
// This type distinguishes the two forms in the OpenAPI description.
#[serde(deny_unknown_fields)]
struct NameAndState {
    #[schema(value_type = String)]
    name: Arc<str>,
    state: Status,
}
