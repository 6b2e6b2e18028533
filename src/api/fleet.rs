//! `/api/v1/fleet`: the fleet as this node sees it.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use utoipa::ToSchema;

use super::query_parameters::Query;
use super::response::{ApiError, Success, encode};
use crate::fleet::FleetNode;
use crate::fleet::heartbeat::LedgerStanding;
use crate::fleet::living_nodes::{NodeState, NodeView};
use crate::fleet::peer_wire::PeerRoute;
use crate::fleet::peers::Hop;
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
pub(super) async fn fleet(worker: &Worker, mut query: Query) -> Result<Bytes, ApiError> {
    let reach = query.flag("reach")?;
    query.finish()?;
    let proxy = &worker.proxy;
    let Some(node) = &proxy.fleet else { return Ok(encode(&FleetOverview::default())) };
    let mut seen = overview(node, node.ledger(&proxy.activity), node.faults(&proxy.activity));
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
