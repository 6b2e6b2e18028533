//! `/api/v1/fleet`: status of the fleet as seen by this node.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use utoipa::ToSchema;

use super::request::ApiRequest;
use super::response::{ApiError, Success, encode};
use mcpproxy_fleet::facts::FactStanding;
use mcpproxy_fleet::failure_detector::{NodeState, NodeView};
use mcpproxy_fleet::fleet_logs::IndexReport;
use mcpproxy_fleet::heartbeat::LedgerStanding;
use mcpproxy_fleet::peer_wire::PeerRoute;
use mcpproxy_fleet::peers::Hop;
use mcpproxy_fleet::segment::ChainGap;
use mcpproxy_fleet::{FleetNode, IndexRole};

/// Maximum number of nodes pinged concurrently.
const ASKED_TOGETHER: usize = 16;
/// Maximum size of a ping response in bytes.
const MAX_PONG_BYTES: usize = 1024;
const LIVING: &str = NodeState::Alive.as_str();

/// Returns the fleet as seen by this node. Outside a fleet `node` is null and `nodes` is empty.
#[utoipa::path(
    get,
    path = "/api/v1/fleet",
    tag = "state",
    operation_id = "getFleet",
    params(("reach" = Option<bool>, Query, description = "Whether to ping each other living node")),
    responses((status = 200, description = "The fleet", body = Success<FleetOverview>))
)]
pub(super) async fn fleet(
    ApiRequest { state, worker, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    let mut query = query?;
    let reach = query.flag("reach")?;
    query.finish()?;
    let proxy = &worker.proxy;
    let Some(node) = proxy.nodes.fleet_node() else { return Ok(encode(&FleetOverview::default())) };
    let index = state.fleet_index.get().filter(|index| index.role() != IndexRole::None);
    let index = index.map(|index| index.report());
    let mut faults = node.faults(&proxy.activity);
    faults.extend(index.iter().flat_map(IndexReport::faults));
    faults.extend(proxy.identity.token_fault().map(|fault| fault.cause.clone()));
    let mut seen = overview(node, node.ledger(&proxy.activity), faults);
    seen.chains = chains(node, index.as_ref());
    if reach {
        let asked = seen.nodes.iter_mut().filter(|it| !it.is_self && it.state == LIVING);
        stream::iter(asked)
            .for_each_concurrent(ASKED_TOGETHER, |seen| async move {
                let reached = reached(node, &seen.node).await;
                seen.reached = Some(reached.is_ok());
                seen.unreached = reached.err();
            })
            .await;
        let unreached = seen.nodes.iter().filter_map(|it| it.unreached.clone());
        seen.faults.extend(unreached.collect::<Vec<_>>());
    }
    Ok(encode(&seen))
}

/// Pings a node and verifies its identity.
async fn reached(node: &FleetNode, other: &str) -> Result<(), String> {
    let peers =
        node.peers().ok_or("this node has no cluster.key, or has not joined its fleet yet")?;
    let answer = peers.request(other, PeerRoute::Ping, Bytes::new(), Hop::First).await;
    let body = answer.map_err(|error| error.to_string())?.into_body();
    body.whole(MAX_PONG_BYTES).await.map_err(|error| error.to_string())?;
    Ok(())
}

/// Returns the chains in the store by node. A followed node's chain comes from its segments, another node's from the
/// names of its segments.
pub(super) fn chains(node: &FleetNode, index: Option<&IndexReport>) -> Vec<ChainSeen> {
    let followed = index.into_iter().flat_map(|report| &report.nodes).map(|it| {
        let status = &it.status;
        let gaps = status.gaps.iter().map(|it| ChainGap { first: it.first, last: it.last });
        let gaps: Vec<_> = gaps.collect();
        let missing = gaps.iter().map(|gap| gap.last.saturating_sub(gap.first) + 1).sum();
        ChainSeen {
            node: it.node.clone(),
            seen_by: "segments",
            first: status.first,
            last: status.last,
            segments: status.segments,
            gaps,
            missing_records: missing,
            faults: status.faults.len() as u64,
            more: status.more,
        }
    });
    let named = node.chains();
    let named = named.iter().map(|(node, chain)| ChainSeen {
        node: node.clone(),
        seen_by: "names",
        first: chain.first,
        last: chain.last,
        segments: chain.segments,
        gaps: chain.gaps.clone(),
        missing_records: chain.missing_records,
        faults: chain.overlaps,
        more: chain.more,
    });
    let mut seen: BTreeMap<_, _> = named.map(|it| (it.node.clone(), it)).collect();
    seen.extend(followed.map(|it| (it.node.clone(), it)));
    seen.into_values().collect()
}

fn overview(node: &FleetNode, ledger: LedgerStanding, faults: Vec<String>) -> FleetOverview {
    let living = node.living();
    FleetOverview {
        fleet: node.fleet().map(|fleet| fleet.to_string()),
        node: Some(node.name.as_str().to_owned()),
        living: living.count(),
        away: living.away.clone(),
        ledger: Some(ledger),
        faults,
        nodes: living.all().iter().map(FleetNodeSeen::of).collect(),
        chains: Vec::new(),
        facts: node.shared().map(|facts| FactsSeen::of(&facts.standing())),
    }
}

/// The fleet as seen by one node.
#[derive(Default, Serialize, ToSchema)]
struct FleetOverview {
    /// Id of the fleet; null until this node has joined it.
    #[schema(required)]
    fleet: Option<String>,
    /// Name of this node; null outside a fleet.
    #[schema(required)]
    node: Option<String>,
    /// Number of living nodes, including this one.
    living: usize,
    /// Reason why the store cannot be reached, so that this is the last known state; null if it can be reached.
    #[schema(required)]
    away: Option<String>,
    /// Status of this node's ledger; null outside a fleet.
    #[schema(required)]
    ledger: Option<LedgerStanding>,
    /// Faults, one line each.
    faults: Vec<String>,
    /// All nodes that have joined, by name.
    nodes: Vec<FleetNodeSeen>,
    /// Chains of the nodes in the store as known to this node, by name.
    chains: Vec<ChainSeen>,
    /// Status of the shared state, except for the log; null without `cluster.key`.
    #[schema(required)]
    facts: Option<FactsSeen>,
}

/// A chain as seen by this node.
#[derive(Serialize, ToSchema)]
pub(super) struct ChainSeen {
    pub(super) node: String,
    /// `segments` if this node follows the chain and reads its segments; `names` if it only lists the names of recent segments.
    #[schema(value_type = String, pattern = "^(segments|names)$")]
    seen_by: &'static str,
    /// Number of the first examined record; 0 for none.
    first: u64,
    /// Number of the last examined record.
    last: u64,
    /// Number of examined segments.
    segments: u64,
    /// Missing ranges.
    pub(super) gaps: Vec<ChainGap>,
    /// Number of missing records.
    pub(super) missing_records: u64,
    /// Number of other faults: invalid or overlapping segments.
    pub(super) faults: u64,
    /// Whether more exists than was examined or is shown.
    more: bool,
}

/// Status of the shared state, except for the log.
#[derive(Serialize, ToSchema)]
struct FactsSeen {
    /// Milliseconds since the state was last read completely; null before the first time.
    #[schema(required)]
    age_ms: Option<u64>,
    /// Whether this age exceeds the limit.
    stale: bool,
    /// Reason why the state cannot be read or written now; null if it can.
    #[schema(required)]
    failing: Option<String>,
    /// Whether the store holds everything that this node shares.
    published: bool,
    /// Ignored objects by key, with the reasons.
    faults: BTreeMap<String, String>,
}

impl FactsSeen {
    fn of(standing: &FactStanding) -> Self {
        Self {
            age_ms: standing.age().map(|age| age.as_millis() as u64),
            stale: standing.stale().is_some(),
            failing: standing.failing.clone(),
            published: standing.published,
            faults: standing.faults.clone(),
        }
    }
}

/// A node as seen by another.
#[derive(Serialize, ToSchema)]
struct FleetNodeSeen {
    node: String,
    /// Whether it is the responding node.
    is_self: bool,
    /// `living`, `silent` (no new heartbeat), `stopped` (shut down) or `unknown`.
    #[schema(value_type = String, pattern = "^(living|silent|stopped|unknown)$")]
    state: &'static str,
    /// Milliseconds since its last new heartbeat.
    silent_ms: u64,
    /// Milliseconds by which the responding node's clock is ahead of the listed node's clock, if known.
    #[schema(required)]
    clock_ahead_ms: Option<i64>,
    /// Whether the clock difference exceeds the limit.
    clock_is_off: bool,
    /// Whether two processes use this name.
    used_twice: bool,
    /// Fault in the objects stored under its name.
    #[schema(required)]
    fault: Option<String>,
    /// Whether the node answered the ping; null if it was not pinged.
    #[schema(required)]
    reached: Option<bool>,
    /// Reason for a missing answer; null if the node answered or was not pinged.
    #[schema(required)]
    unreached: Option<String>,
    /// The node's last heartbeat; null if there is none.
    #[schema(required)]
    said: Option<NodeSaid>,
}

/// Heartbeat of a node. Times are from the node's own clock, in milliseconds since 1970.
#[derive(Serialize, ToSchema)]
struct NodeSaid {
    version: String,
    commit: String,
    started_at: u64,
    at: u64,
    /// Address for other nodes.
    #[schema(required)]
    advertise: Option<String>,
    /// Part of the fleet's records that the node indexes: `false`, `true` or a shard like `1/3`.
    index: String,
    /// Digest of its config.
    config: String,
    /// Number of client sessions.
    sessions: u64,
    ledger: LedgerStanding,
}

impl FleetNodeSeen {
    fn of(view: &NodeView) -> Self {
        let said = view.heartbeat.as_ref().map(|it| NodeSaid {
            version: it.version.clone(),
            commit: it.commit.clone(),
            started_at: it.started_at,
            at: it.at,
            advertise: it.advertise.clone(),
            index: it.index.clone(),
            config: it.config.clone(),
            sessions: it.sessions,
            ledger: it.ledger.clone(),
        });
        Self {
            node: view.name.as_str().to_owned(),
            is_self: view.is_self,
            state: view.state.as_str(),
            silent_ms: view.silent_ms,
            clock_ahead_ms: view.skew_ms,
            clock_is_off: view.is_skewed(),
            used_twice: view.twice,
            fault: view.fault.clone(),
            reached: None,
            unreached: None,
            said,
        }
    }
}
