//! `/api/v1/fleet`: the fleet as this node sees it.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use utoipa::ToSchema;

use super::query_parameters::Query;
use super::response::{ApiError, Success, encode};
use super::state::State;
use crate::fleet::chain_names::ChainGap;
use crate::fleet::facts::FactStanding;
use crate::fleet::fleet_index::IndexReport;
use crate::fleet::heartbeat::LedgerStanding;
use crate::fleet::living_nodes::{NodeState, NodeView};
use crate::fleet::peer_wire::PeerRoute;
use crate::fleet::peers::Hop;
use crate::fleet::{FleetNode, IndexRole};
use crate::proxy::Worker;

/// Nodes that are asked at the same time.
const ASKED_TOGETHER: usize = 16;
/// Most bytes of the answer of one.
const MAX_PONG_BYTES: usize = 1024;
const LIVING: &str = NodeState::Living.as_str();

/// Shows the fleet that this node belongs to, as it sees it; without one `node` is null and `nodes` is empty.
#[utoipa::path(
    get,
    path = "/api/v1/fleet",
    tag = "state",
    operation_id = "getFleet",
    params(("reach" = Option<bool>, Query, description = "Whether each other node that lives is asked if it answers")),
    responses((status = 200, description = "The fleet", body = Success<FleetOverview>))
)]
pub(super) async fn fleet(
    state: &State,
    worker: &Worker,
    mut query: Query,
) -> Result<Bytes, ApiError> {
    let reach = query.flag("reach")?;
    query.finish()?;
    let proxy = &worker.proxy;
    let Some(node) = &proxy.fleet else { return Ok(encode(&FleetOverview::default())) };
    let index = state.fleet_index.get().filter(|index| index.role() != IndexRole::None);
    let index = index.map(|index| index.report());
    let mut faults = node.faults(&proxy.activity);
    faults.extend(index.iter().flat_map(IndexReport::faults));
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

/// Whether a node answers, and as the node that it is taken for.
async fn reached(node: &FleetNode, other: &str) -> Result<(), String> {
    let peers = node.peers().ok_or("this node has no cluster.key, or no place in its fleet yet")?;
    let answer = peers.request(other, PeerRoute::Ping, Bytes::new(), Hop::First).await;
    let body = answer.map_err(|error| error.to_string())?.into_body();
    body.whole(MAX_PONG_BYTES).await.map_err(|error| error.to_string())?;
    Ok(())
}

/// The chains in the store as far as this node knows them, by their nodes: of those that it follows what it has read, of the
/// others what their segments are named.
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

/// The fleet as one node sees it.
#[derive(Default, Serialize, ToSchema)]
struct FleetOverview {
    /// The id of the fleet; null before this node has its place in it.
    #[schema(required)]
    fleet: Option<String>,
    /// The name of this node; null where there is no fleet.
    #[schema(required)]
    node: Option<String>,
    /// Nodes that live, this one among them.
    living: usize,
    /// Why nobody can be seen now, so that all of this is what was known before; null if they can.
    #[schema(required)]
    away: Option<String>,
    /// How the ledger of this node stands now; null where there is no fleet.
    #[schema(required)]
    ledger: Option<LedgerStanding>,
    /// What is wrong, each in one line.
    faults: Vec<String>,
    /// All nodes that have a place in the store, by their names.
    nodes: Vec<FleetNodeSeen>,
    /// Their chains in the store, as far as this node knows them, by their names.
    chains: Vec<ChainSeen>,
    /// How what is shared beside the log stands; null without `cluster.key`.
    #[schema(required)]
    facts: Option<FactsSeen>,
}

/// A chain as this node sees it.
#[derive(Serialize, ToSchema)]
pub(super) struct ChainSeen {
    pub(super) node: String,
    /// `segments` where this node follows it and reads them, `names` where it lists their names alone, those of the last days.
    #[schema(value_type = String, pattern = "^(segments|names)$")]
    seen_by: &'static str,
    /// The first record that was looked at; 0 for none.
    first: u64,
    /// The last.
    last: u64,
    /// Segments that were looked at.
    segments: u64,
    /// What is missing.
    pub(super) gaps: Vec<ChainGap>,
    /// How many records that are.
    pub(super) missing_records: u64,
    /// What else is wrong: segments that are not to be believed, or that stand in each other's place.
    pub(super) faults: u64,
    /// There is more than is shown or was looked at.
    more: bool,
}

/// How what is shared beside the log stands.
#[derive(Serialize, ToSchema)]
struct FactsSeen {
    /// How long ago it was read whole, in milliseconds; null before the first time.
    #[schema(required)]
    age_ms: Option<u64>,
    /// Whether that is too long ago.
    stale: bool,
    /// Why it cannot be read or put now; null if it can.
    #[schema(required)]
    failing: Option<String>,
    /// Whether the store says what this node says.
    published: bool,
    /// Objects that are passed over, and why, by their keys.
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

/// A node as another sees it.
#[derive(Serialize, ToSchema)]
struct FleetNodeSeen {
    node: String,
    /// Whether it is the node that is asked.
    is_self: bool,
    /// `living`, `silent` (nothing new is heard of it), `stopped` (it said so) or `unknown`.
    #[schema(value_type = String, pattern = "^(living|silent|stopped|unknown)$")]
    state: &'static str,
    /// For how long nothing new has been heard of it, in milliseconds.
    silent_ms: u64,
    /// How far the asked node's clock is ahead of its clock, in milliseconds, as far as that is known.
    #[schema(required)]
    clock_ahead_ms: Option<i64>,
    /// Whether that is too far.
    clock_is_off: bool,
    /// Whether two processes use its name.
    used_twice: bool,
    /// What is wrong with what lies in the store under its name.
    #[schema(required)]
    fault: Option<String>,
    /// Whether it answered; null where it was not asked.
    #[schema(required)]
    reached: Option<bool>,
    /// Why it did not; null where it did, or was not asked.
    #[schema(required)]
    unreached: Option<String>,
    /// What it said last of itself; null where it has said nothing.
    #[schema(required)]
    said: Option<NodeSaid>,
}

/// What a node says of itself. Times are those of its own clock, in milliseconds since 1970.
#[derive(Serialize, ToSchema)]
struct NodeSaid {
    version: String,
    commit: String,
    started_at: u64,
    at: u64,
    /// How other nodes reach it.
    #[schema(required)]
    advertise: Option<String>,
    /// What it keeps of the fleet's records: `false`, `true` or a shard like `1/3`.
    index: String,
    /// Which config it runs: nodes with the same config say the same.
    config: String,
    /// Sessions of its clients.
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
