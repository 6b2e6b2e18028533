//! `/api/v1/fleet/config…`: the config that the fleet shares, which nodes run it, and the wishes for another one, which go through
//! the door to the task that has it. How a config is read and checked is that task's.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::config::unusable;
use super::fleet_config_door::{FleetConfigDoor, FleetConfigRefused, FleetConfigWish};
use super::query_parameters::Query;
use super::response::{self, ApiError, Success, encode};
use super::state::State;
use crate::downstream::body::Body;
use crate::fleet::facts::{ConfigFact, ConfigRun, ConfigRunState, ConfigVersion};
use crate::policy::Principal;

/// A config of the fleet.
#[derive(Serialize, ToSchema)]
#[schema(as = FleetConfigVersion)]
struct ShownVersion {
    /// Counts what was applied.
    version: u64,
    /// The hash of it.
    hash: String,
    /// The node that it was applied on.
    node: String,
    /// Who applied it.
    by: String,
    /// When.
    #[schema(format = DateTime)]
    at: String,
}

impl From<ConfigVersion> for ShownVersion {
    fn from(it: ConfigVersion) -> Self {
        let at = i64::try_from(it.at).ok().and_then(|at| Timestamp::from_second(at).ok());
        let at = format!("{:.0}", at.unwrap_or(Timestamp::UNIX_EPOCH));
        Self { version: it.version, hash: it.hash, node: it.node, by: it.by, at }
    }
}

/// What a node makes of the fleet's config.
#[derive(Serialize, ToSchema)]
#[schema(as = FleetConfigNode)]
struct ShownRun {
    /// The node.
    node: String,
    /// The version that it has looked at last.
    version: u64,
    /// `running`, or `refused`: then it runs what it did before.
    #[schema(pattern = "^(running|refused)$")]
    state: &'static str,
    /// Why it refuses it; empty if it does not.
    reason: String,
    /// The keys that count from its next start on.
    needs_restart: Vec<String>,
}

impl ShownRun {
    fn of((node, run): (String, ConfigRun)) -> Self {
        let state = match run.state {
            ConfigRunState::Running => "running",
            ConfigRunState::Refused => "refused",
        };
        let ConfigRun { version, reason, needs_restart, .. } = run;
        Self { node, version, state, reason, needs_restart }
    }
}

/// What the fleet shares, as this node knows it.
#[derive(Serialize, ToSchema)]
struct FleetConfigState {
    /// The config; null: each node runs its own.
    #[schema(required)]
    config: Option<ShownVersion>,
    /// Those before it, the last one first.
    earlier: Vec<ShownVersion>,
    /// What the nodes make of it.
    nodes: Vec<ShownRun>,
    /// True if the store has all that this node tells the others.
    published: bool,
    /// Why facts cannot be read or put now; null if they can.
    #[schema(required)]
    failing: Option<String>,
    /// Objects in the store that are passed over, and why.
    faults: BTreeMap<String, String>,
}

/// A config for the fleet.
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "only described: config::fleet_config reads it")]
struct FleetConfigRequest {
    /// The version of this form: 1.
    #[schema(minimum = 1, maximum = 1)]
    format: u32,
    /// What a config file says, but for what is each node's own.
    #[schema(value_type = Object)]
    config: Map<String, Value>,
    /// The files that `policy.files` names, in their order.
    #[schema(max_items = 64)]
    files: Vec<FleetConfigFile>,
}

/// A file of rules.
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "only described")]
struct FleetConfigFile {
    /// Its name, for people.
    name: String,
    /// What it says.
    text: String,
}

fn door(state: &State) -> Result<&FleetConfigDoor, ApiError> {
    let none = "This node shares nothing: it has no cluster.store, or no cluster.key";
    state.fleet_config.get().ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, none))
}

/// Tells which config the fleet runs, and what each node makes of it.
#[utoipa::path(
    get,
    path = "/api/v1/fleet/config",
    tag = "state",
    operation_id = "getFleetConfig",
    responses(
        (status = 200, description = "As this node knows it", body = Success<FleetConfigState>),
        (status = 404, description = "This node shares nothing"),
    )
)]
pub(super) fn standing(state: &State, query: Query) -> Result<Bytes, ApiError> {
    query.finish()?;
    let facts = door(state)?.facts();
    let (known, standing) = (facts.facts(), facts.standing());
    let (config, earlier) = match ConfigFact::of(&known) {
        Some(ConfigFact { now, earlier }) => (Some(now.into()), earlier),
        None => (None, Vec::new()),
    };
    Ok(encode(&FleetConfigState {
        config,
        earlier: earlier.into_iter().map(Into::into).collect(),
        nodes: ConfigRun::all(&known).into_iter().map(ShownRun::of).collect(),
        published: standing.published,
        failing: standing.failing,
        faults: standing.faults,
    }))
}

/// Has the fleet run another config: it is checked on this node, stored, and taken over by each.
#[utoipa::path(
    post,
    path = "/api/v1/fleet/config",
    tag = "state",
    operation_id = "applyFleetConfig",
    request_body(content = FleetConfigRequest, description = "The config, with its files of rules"),
    responses(
        (status = 200, description = "It is stored, and the others will see it", body = Success<ShownVersion>),
        (status = 400, description = "The query cannot be understood"),
        (status = 404, description = "This node shares nothing"),
        (status = 408, description = "The body did not come in time"),
        (status = 413, description = "The body is too large"),
        (status = 422, description = "It cannot be used: nothing is stored"),
        (status = 502, description = "It cannot be stored"),
        (status = 503, description = "Too many ask, or it takes too long"),
    )
)]
pub(super) async fn apply(
    state: &State,
    principal: &Principal,
    body: Bytes,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    let wish = |asker| FleetConfigWish::Apply(body, asker);
    answered(door(state)?.wish(principal, wish).await?, id)
}

/// Has the fleet run the config before this one again, as a new version.
#[utoipa::path(
    post,
    path = "/api/v1/fleet/config/rollback",
    tag = "state",
    operation_id = "rollBackFleetConfig",
    responses(
        (status = 200, description = "The others will see it", body = Success<ShownVersion>),
        (status = 404, description = "This node shares nothing"),
        (status = 409, description = "There is none before it"),
        (status = 422, description = "It cannot be used any more: nothing changes"),
        (status = 502, description = "It cannot be had from the store"),
        (status = 503, description = "Too many ask, or it takes too long"),
    )
)]
pub(super) async fn roll_back(
    state: &State,
    principal: &Principal,
    query: Query,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    query.finish()?;
    answered(door(state)?.wish(principal, FleetConfigWish::RollBack).await?, id)
}

fn answered(
    outcome: Result<ConfigVersion, FleetConfigRefused>,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    match outcome {
        Ok(version) => Ok(response::success(encode(&ShownVersion::from(version)), id)),
        Err(FleetConfigRefused::Unusable(refused)) => Ok(unusable(&refused, id)),
        Err(FleetConfigRefused::NothingBefore) => {
            Err(ApiError::new(StatusCode::CONFLICT, "The fleet has no config before this one"))
        }
        Err(FleetConfigRefused::Failed(why)) => Err(ApiError::new(StatusCode::BAD_GATEWAY, why)),
    }
}
