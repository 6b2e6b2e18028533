//! `/healthz` and `/readyz`, for probes: they need no key, and say less without one.

use std::rc::Rc;
use std::sync::Arc;

use http::{Response, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::response::{self, encode};
use super::servers::ServerView;
use super::state::State;
use crate::activity::Standing;
use crate::downstream::body::Body;
use crate::fleet::FleetNode;
use crate::fleet::fleet_sight::{FleetSight, SIGHT_LIMIT};
use crate::proxy::Worker;
use crate::upstream::supervisor::Status;

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
    response::json(StatusCode::OK, Body::from(body), request_id)
}

/// Tells whether every enabled server was discovered, or has failed once, whether one can be used,
/// and whether calls are refused because the log cannot be written; in a fleet with a key, whether this
/// node has seen which others live. Without the key, names and states alone.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "health",
    operation_id = "getReadiness",
    responses(
        (status = 200, description = "Every server was heard or has failed", body = Readiness),
        (
            status = 503,
            description = "A server is still awaited, or the sight of the fleet's nodes; or calls are refused: the log cannot be written",
            body = Readiness,
        ),
    )
)]
pub(super) fn ready(
    state: &State,
    worker: &Rc<Worker>,
    admitted: bool,
    request_id: &str,
) -> Response<Body> {
    let upstreams = &worker.proxy.upstreams;
    let health = worker.proxy.activity.health();
    let node = worker.proxy.fleet.as_deref();
    let sight = node.and_then(|node| Some((node, node.sight()?)));
    let awaits_fleet = matches!(sight, Some((_, FleetSight::Awaited)));
    let settled = upstreams.settled() && health.state != Standing::Failed && !awaits_fleet;
    let status = if settled { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let servers = upstreams.states().into_iter().map(|state| match admitted {
        true => Readied::Whole(Box::new(state.into())),
        false => Readied::State(NameAndState { name: state.name, state: state.status }),
    });
    let activity = LogState { state: health.state, reason: health.failed.filter(|_| admitted) };
    let (ready, servers) = (settled && upstreams.usable(), servers.collect());
    let fault = state.config.standing().fault();
    let standing = if fault.is_some() { FileState::Rejected } else { FileState::Ok };
    let config = FileStanding { state: standing, reason: fault.filter(|_| admitted) };
    let fleet = sight.map(|(node, sight)| fleet_standing(node, sight, admitted));
    let body = Readiness { ready, activity, config, fleet, servers };
    response::json(status, Body::from(encode(&body)), request_id)
}

/// Which other nodes live, as far as this one has seen, and what it waits for.
fn fleet_standing(node: &FleetNode, sight: FleetSight, admitted: bool) -> FleetStanding {
    let state = match sight {
        FleetSight::Seen => return FleetStanding { state: SightState::Seen, reason: None },
        FleetSight::Awaited => SightState::Awaited,
        FleetSight::Unseen => SightState::Unseen,
    };
    let why = || {
        let why = node.living().why_undecided().unwrap_or_default();
        match sight {
            FleetSight::Awaited => format!("{why}: waited for at most {} s", SIGHT_LIMIT.as_secs()),
            FleetSight::Unseen | FleetSight::Seen => why,
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
    /// True when it cannot be written.
    failed: bool,
    /// Entries that could not be recorded, since the log was begun.
    lost: u64,
}

#[derive(Serialize, ToSchema)]
struct Readiness {
    /// True once none is awaited and, unless none is enabled, at least one is connected, as long as
    /// calls are not refused because the log cannot be written; not while `fleet` is awaited.
    ready: bool,
    activity: LogState,
    config: FileStanding,
    /// In a fleet, where nodes have a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    fleet: Option<FleetStanding>,
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

/// The config's file.
#[derive(Serialize, ToSchema)]
struct FileStanding {
    state: FileState,
    /// Why it is not in force; with the key only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum FileState {
    /// What it says is in force, as far as it needs no restart.
    Ok,
    /// It cannot be used, and what was in force stays.
    Rejected,
}

/// Which other nodes of the fleet live.
#[derive(Serialize, ToSchema)]
struct FleetStanding {
    state: SightState,
    /// Why they are not seen; with the key only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SightState {
    /// Each was seen to live or not, once since the start.
    Seen,
    /// Not yet: this node is not ready for so long.
    Awaited,
    /// Not for longer than that is waited for: this node serves alone.
    Unseen,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Readied {
    /// With the key.
    Whole(Box<ServerView>),
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
