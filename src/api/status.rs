//! `/api/v1/status`: the proxy's numbers and its faults. Each number is read where it is kept; none is
//! kept here.

use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use super::query_parameters::Query;
use super::response::{ApiError, Success, encode};
use super::state::State;
use crate::activity::Health;
use crate::fleet::IndexRole;
use crate::fleet::fleet_index::IndexReport;
use crate::proxy::{Worker, memory_budget};
use crate::telemetry::build_info;
use crate::telemetry::call_metrics::{Decision, Outcome, Refusal, Sums, Totals};
use crate::telemetry::histogram::Durations;
use crate::tool::OutputSchema;
use crate::upstream::supervisor::{ServerState, Status};

/// Shows version, uptime, counters, and what is wrong.
#[utoipa::path(
    get,
    path = "/api/v1/status",
    tag = "state",
    operation_id = "getStatus",
    responses((status = 200, description = "How the proxy is", body = Success<Overview>))
)]
pub(super) fn status(state: &State, worker: &Worker, query: Query) -> Result<Bytes, ApiError> {
    query.finish()?;
    let (proxy, settings) = (&worker.proxy, worker.settings());
    let states = proxy.upstreams.states();
    let connected = states.iter().filter(|state| state.status == Status::Connected).count();
    let activity = proxy.activity.health();
    let log = Log { lines_lost: state.lines.lost() };
    let certificate = state.certificate.get().and_then(|it| it.fault(SystemTime::now()));
    let connections = state.connections.get().into_iter().flatten();
    let index = state.fleet_index.get().filter(|index| index.role() != IndexRole::None);
    let index = index.map(|index| index.report());
    Ok(encode(&Overview {
        version: build_info::VERSION,
        commit: build_info::COMMIT,
        uptime_seconds: state.started.elapsed().as_secs(),
        faults: faults(
            &states,
            (&activity, &log),
            certificate,
            state.config.standing().fault(),
            proxy.meaning.faults(),
            (
                proxy.fleet.as_ref().map(|node| node.faults(&proxy.activity)).unwrap_or_default(),
                index.as_ref(),
            ),
        ),
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
        log,
        index,
    }))
}

/// What is wrong now, each with its cause.
fn faults(
    states: &[ServerState],
    (activity, log): (&Health, &Log),
    certificate: Option<String>,
    config: Option<String>,
    search: Vec<String>,
    (fleet, index): (Vec<String>, Option<&IndexReport>),
) -> Vec<Fault> {
    let servers = states.iter().filter(|state| match state.status {
        Status::Failed => true,
        Status::Connected | Status::Connecting => !state.reason.is_empty(),
        Status::Disabled => false,
    });
    let servers = servers.map(|state| Fault {
        part: Part::Server,
        server: Some(state.name.to_string()),
        cause: state.reason.to_string(),
    });
    let fault = |part, cause| Fault { part, server: None, cause };
    let lost =
        |what: &str, count: u64| (count > 0).then(|| format!("{count} {what} since the start"));
    let of_log = [
        (Part::Activity, activity.failed.clone()),
        (Part::Activity, lost("entries could not be recorded", activity.lost)),
        (Part::Certificate, certificate),
        (Part::Log, lost("lines could not be written", log.lines_lost)),
        (Part::Config, config),
    ];
    let of_log = of_log.into_iter().filter_map(|(part, cause)| Some(fault(part, cause?)));
    let of_search = search.into_iter().map(|cause| fault(Part::Search, cause));
    let of_index = index.into_iter().flat_map(IndexReport::faults);
    let of_index = of_index.map(|cause| fault(Part::Index, cause));
    let of_fleet = fleet.into_iter().map(|cause| fault(Part::Fleet, cause));
    servers.chain(of_log).chain(of_search).chain(of_fleet).chain(of_index).collect()
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
    /// The commit that it was built of; `unknown` where the build did not know it.
    #[schema(value_type = String)]
    commit: &'static str,
    uptime_seconds: u64,
    /// What is wrong now; empty if nothing is.
    faults: Vec<Fault>,
    servers: Connected,
    /// Tools in the catalog.
    tools: usize,
    calls: Calls,
    load: Load,
    schemas: Schemas,
    activity: Health,
    log: Log,
    /// What this node has of the other nodes of its fleet, where it keeps an index of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    index: Option<IndexReport>,
}

/// Something that is wrong.
#[derive(Serialize, ToSchema)]
struct Fault {
    part: Part,
    /// Which server, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    server: Option<String>,
    /// Why, in one line.
    cause: String,
}

/// Where something is wrong.
#[derive(Serialize, ToSchema)]
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
    /// The config's file.
    Config,
    /// The endpoint of `search.embeddings`.
    Search,
    /// The index of the fleet.
    Index,
    /// The fleet: its store, and nodes as this one sees them.
    Fleet,
}

/// The log on stderr.
#[derive(Serialize, ToSchema)]
struct Log {
    /// Lines that could not be written since the start: stderr is closed, or is not read in time.
    lines_lost: u64,
}

#[derive(Serialize, ToSchema)]
struct Connected {
    total: usize,
    connected: usize,
}

/// What is in use now.
#[derive(Serialize, ToSchema)]
struct Load {
    /// MCP sessions of clients.
    sessions: usize,
    /// Connections of clients.
    connections: usize,
    /// Calls that wait for a person.
    approvals: usize,
    /// Bytes of answers that strict holds.
    held: Room,
    /// Bytes of answers that warn has forwarded and not judged yet.
    behind: Room,
}

/// Bytes in use.
#[derive(Serialize, ToSchema)]
struct Room {
    bytes: u64,
    /// Most that may be.
    limit: u64,
}

impl From<&memory_budget::MemoryBudget> for Room {
    fn from(budget: &memory_budget::MemoryBudget) -> Self {
        Self { bytes: budget.used(), limit: budget.limit() }
    }
}

/// What became of all calls since the start: of tools, our own among them, and of other requests
/// that go to servers.
#[derive(Serialize, ToSchema)]
struct Calls {
    #[serde(flatten)]
    counted: CallCounts,
    /// Those under way.
    in_flight: u64,
    refusals: Refusals,
    decisions: Decisions,
}

/// Calls that ended since the start.
#[derive(Serialize, ToSchema)]
pub(super) struct CallCounts {
    total: u64,
    success: u64,
    /// Those that failed, upstream or on the way.
    error: u64,
    /// Those whose answers were not let in.
    blocked: u64,
    /// Those that were not let out.
    rejected: u64,
    /// How long they took.
    duration_us: Percentiles,
    /// Of that what the proxy added.
    overhead_us: Percentiles,
    /// Of that what upstreams took, of those that were sent.
    upstream_us: Percentiles,
}

/// Microseconds, off by 6 % at most; none where there was no call.
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

/// Calls without an answer of an upstream, by kind.
#[derive(Serialize, ToSchema)]
struct Refusals {
    /// They cannot be read.
    unreadable: u64,
    /// Their headers say something else than their arguments.
    headers: u64,
    /// Their intent is missing, malformed or another than the variant.
    intent: u64,
    /// Annotations or capability stand against them.
    gate: u64,
    /// Their arguments do not fit the schema of their tool.
    arguments: u64,
    /// There are too many at a time, or they come too often.
    limited: u64,
    /// There is no such server or tool.
    unknown: u64,
    /// The upstream failed.
    upstream: u64,
    /// Requests other than calls of tools that cannot be answered.
    failed: u64,
    /// The activity log takes no record.
    unavailable: u64,
}

/// Decisions on record, by policy.
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
                unreadable: refused(Refusal::Unreadable),
                headers: refused(Refusal::Headers),
                intent: refused(Refusal::Intent),
                gate: refused(Refusal::Gate),
                arguments: refused(Refusal::Arguments),
                limited: refused(Refusal::Limited),
                unknown: refused(Refusal::Unknown),
                upstream: refused(Refusal::Upstream),
                failed: refused(Refusal::Failed),
                unavailable: refused(Refusal::Unavailable),
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

/// What is remarkable about output schemas (FR-A9).
#[derive(Serialize, ToSchema)]
struct Schemas {
    /// Those that cannot be used, and why.
    unusable: Vec<Unusable>,
    /// Tools whose schemas are being compiled: calls to them that are judged wait for it.
    compiling: Vec<String>,
    /// Tools whose answers one engine judges alone.
    judged_by_tape_alone: Vec<String>,
    /// How often the two engines disagreed.
    disagreements: u64,
}

#[derive(Serialize, ToSchema)]
struct Unusable {
    tool: String,
    reason: String,
}
