//! A node's part in its fleet, from the place it takes before the program is there to its end: what is sealed, followed and
//! shared, in the order in which these begin and end.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::app_state::AppState;
use super::fleet_config::{self, FleetConfigTask};
use super::fleet_sharing::FleetSharing;
use super::reload::ConfigSource;
use super::shared_facts::SharedFacts;
use super::start_error::StartError;
use super::{limit_shares, runtime};
use crate::activity::Activity;
use crate::api::fleet_config_door::FleetConfigDoor;
use crate::config::Config;
use crate::fleet::bucket::Bucket;
use crate::fleet::ledger::EnteredFleet;
use crate::fleet::{
    FleetFollower, FleetIndex, FleetLedger, FleetNode, FollowSettings, IndexRole, NodeVitals,
    ProgramBuild, chain_watch, ledger,
};
use crate::identity::TokenFile;
use crate::telemetry::build_info;

/// A node that has its place, before the program runs.
pub(super) struct FleetEntry {
    entered: EnteredFleet,
    /// What it shares; `None` without `cluster.key`.
    shared: Option<SharedFacts>,
}

impl FleetEntry {
    /// Takes the place that the config names, if it names one, and learns what the fleet shares. Blocks.
    ///
    /// # Errors
    ///
    /// [`StartError::Fleet`], [`StartError::Facts`], [`StartError::Unheard`], [`StartError::System`]
    pub(super) fn take(config: &Config, activity: &Activity) -> Result<Option<Self>, StartError> {
        let Some(settings) = config.ledger() else { return Ok(None) };
        let build = ProgramBuild { version: build_info::VERSION, commit: build_info::COMMIT };
        let runtime = runtime::local_runtime()?;
        let entered = runtime.block_on(ledger::enter(settings, build, activity))?;
        let shared = entered.facts()?.map(|settings| {
            let tokens = TokenFile::new(&config.data_dir);
            SharedFacts::open(settings, entered.bucket().clone(), tokens, &runtime)
        });
        let shared = shared.transpose()?;
        if let Some(shared) = &shared {
            entered.node().shares(shared.facts.clone());
        }
        Ok(Some(Self { shared, entered }))
    }

    /// The config that the fleet runs, in the place of the node's own; `None` where it runs none.
    ///
    /// # Errors
    ///
    /// [`StartError::FleetConfigAway`], [`StartError::FleetConfigRefused`], [`StartError::System`]
    pub(super) fn config(
        &self,
        own: &Config,
        source: Option<&ConfigSource>,
    ) -> Result<Option<Config>, StartError> {
        let (Some(shared), Some(source)) = (&self.shared, source) else { return Ok(None) };
        let next = fleet_config::at_start(shared, source, own, &runtime::local_runtime()?)?;
        Ok(next.map(|next| next.in_force_after(own)))
    }

    /// The node, as the rest of the program sees it.
    pub(super) fn node(&self) -> Arc<FleetNode> {
        Arc::clone(self.entered.node())
    }

    /// Begins to follow, to seal, to say that the node lives, and to share.
    pub(super) fn start(
        self,
        config: &Config,
        app: &AppState,
        source: Option<ConfigSource>,
        runtime: &Handle,
    ) -> FleetTasks {
        let Self { entered, shared } = self;
        let follower = follow(config, app, entered.bucket(), runtime);
        let (standing, sessions) = (app.api.config.clone(), Arc::clone(&app.sessions));
        let vitals = Arc::new(move || NodeVitals {
            config: standing.standing().digest(),
            sessions: sessions.count() as u64,
        });
        let followed = app.api.fleet_index.get().cloned();
        let is_followed = move |name: &str| followed.as_ref().is_some_and(|it| it.follows(name));
        let (watched, bucket) = (Arc::clone(entered.node()), entered.bucket().clone());
        let chains = runtime.spawn(chain_watch::watch(watched, bucket, is_followed));
        let (proxy, node) = (Arc::clone(&app.proxy), Arc::clone(entered.node()));
        let folder = config.data_dir.join("fleet");
        let shares = runtime.spawn(limit_shares::share_limits(proxy, node, folder));
        let activity = app.proxy.activity.clone();
        let ledger = FleetLedger::start(entered, activity, vitals, runtime);
        let sharing = shared.map(|shared| {
            let (door, wishes) = FleetConfigDoor::new(shared.facts.clone());
            // It is started once.
            let _ = app.api.fleet_config.set(door);
            let (door, data_dir) = (app.api.config.clone(), config.data_dir.clone());
            let task = FleetConfigTask { shared, door, source, data_dir, wishes };
            FleetSharing::start(task, &app.proxy, runtime)
        });
        FleetTasks { ledger, follower, sharing, shares, chains }
    }
}

/// Answers for the fleet from now on; and follows it, if this node keeps an index.
fn follow(
    config: &Config,
    app: &AppState,
    bucket: &Bucket,
    runtime: &Handle,
) -> Option<FleetFollower> {
    let (_, own) = config.cluster.membership()?;
    let role = config.cluster.index;
    app.proxy.activity.set_node_name(own.as_str());
    let index = Arc::new(FleetIndex::new(role));
    let _ = app.api.fleet_index.set(Arc::clone(&index));
    let settings = FollowSettings {
        role,
        own: own.clone(),
        folder: config.fleet_index_folder(),
        flush: config.cluster.flush,
        retention: config.activity.retention(),
    };
    let follows = role != IndexRole::None;
    follows.then(|| FleetFollower::start(settings, bucket.clone(), index, runtime))
}

/// What a node does for its fleet while it runs.
#[derive(Debug)]
pub(super) struct FleetTasks {
    /// Seals the log for the fleet's store.
    ledger: FleetLedger,
    /// Follows the other nodes' segments, where this node keeps an index of them.
    follower: Option<FleetFollower>,
    /// Exchanges what is shared, where the nodes have a key.
    sharing: Option<FleetSharing>,
    /// Divides the limits.
    shares: JoinHandle<()>,
    /// Looks at the names of the others' segments.
    chains: JoinHandle<()>,
}

impl FleetTasks {
    /// Ends them, after all calls; what can still be told and sealed is, within a bound if it is `patient`.
    pub(super) async fn end(self, activity: &Activity, patient: bool) {
        let Self { ledger, follower, sharing, shares, chains } = self;
        for task in [shares, chains] {
            task.abort();
            let _ = task.await;
        }
        if let Some(sharing) = sharing {
            sharing.end(patient).await;
        }
        if let Some(follower) = follower {
            follower.end().await;
        }
        // What cannot be made durable now is sealed after the next start.
        let _ = activity.flush();
        ledger.end(patient).await;
    }
}
