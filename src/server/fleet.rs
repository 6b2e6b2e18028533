//! Lifecycle of a fleet node: joining before the program starts, the order in which background tasks start and end, and the division of
//! limits among living nodes.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use self::config::FleetConfigTask;
use self::seen::SeenSharing;
use self::shared_facts::{SharedFacts, step_tokens};
use super::app_state::AppState;
use super::reload::ConfigSource;
use super::startup;
use super::startup::StartError;
use mcpproxy_activity::restore::Restored;
use mcpproxy_activity::{Activity, restore};
use mcpproxy_admin::api::config_handle::FleetConfigHandle;
use mcpproxy_config::Config;
use mcpproxy_fleet::bucket::Bucket;
use mcpproxy_fleet::chain::rejoin::{self, RejoinPlan};
use mcpproxy_fleet::facts::{FactExchange, FleetFacts};
use mcpproxy_fleet::failure_detector::{MAX_NODES, Membership};
use mcpproxy_fleet::ledger::EnteredFleet;
use mcpproxy_fleet::{
    FleetFollower, FleetIndex, FleetLedger, FleetNode, FollowSettings, IndexRole, JoinError,
    NodeVitals, ProgramBuild, chain, ledger,
};
use mcpproxy_gateway::proxy::Proxy;
use mcpproxy_gateway::telemetry::build_info;
use mcpproxy_policy::approvals::ApprovalQueue;
use mcpproxy_policy::identity::{Identity, TokenFile};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_runtime::os::private;

pub(super) mod approvals;
mod config;
pub(super) mod pins;
mod seen;
mod shared_facts;
mod tokens;

/// A node that has joined its fleet, before the program runs.
pub(super) struct FleetEntry {
    entered: EnteredFleet,
    /// Shared state; `None` without `cluster.key`.
    shared: Option<SharedFacts>,
}

impl FleetEntry {
    /// Joins the fleet named by the config, if any, and reads its shared state. Blocks.
    pub(super) fn take(config: &Config, activity: &Activity) -> Result<Option<Self>, StartError> {
        let Some(settings) = config.ledger() else { return Ok(None) };
        let build = ProgramBuild { version: build_info::VERSION, commit: build_info::COMMIT };
        let runtime = startup::local_runtime()?;
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

    /// Restores a salvaged log from the node's sealed segments, before it is opened. Blocks.
    pub(super) fn rejoin(config: &Config) -> Result<(), StartError> {
        let log = config.activity_folder();
        let Some(settings) = config.ledger() else { return Ok(()) };
        if restore::request(&log)?.is_none() {
            return Ok(());
        }
        let bucket = Bucket::open(&settings.store);
        let bucket = bucket.map_err(|error| JoinError::Refused(error.to_string()))?;
        let plan = RejoinPlan {
            bucket: &bucket,
            folder: &settings.folder,
            node: &settings.node,
            log: &log,
            max_records: config.activity.retention().max_records,
        };
        let restored = rejoin::rejoin(plan, &startup::local_runtime()?)?;
        if let Some(Restored { aside, fetched, renumbered, lost }) = restored {
            peer_line!(
                warn,
                LinePeer::Part("fleet start"),
                fetched,
                renumbered,
                lost,
                aside = %aside.display(),
                "the log was restored from the fleet's store; the node continues after its last sealed record"
            );
        }
        Ok(())
    }

    /// The fleet's config, which replaces the node's own; `None` if the fleet has none.
    pub(super) fn config(
        &self,
        own: &Config,
        source: Option<&ConfigSource>,
    ) -> Result<Option<Config>, StartError> {
        let (Some(shared), Some(source)) = (&self.shared, source) else { return Ok(None) };
        let next = config::at_start(shared, source, own, &startup::local_runtime()?)?;
        Ok(next.map(|next| next.in_force_after(own)))
    }

    /// The handle of the node for the rest of the program.
    pub(super) fn node(&self) -> Arc<FleetNode> {
        Arc::clone(self.entered.node())
    }

    /// Starts the tasks that follow other nodes, seal the log, write heartbeats and share state.
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
        let chains = runtime.spawn(chain::watch::watch(watched, bucket, is_followed));
        let (proxy, node) = (Arc::clone(&app.proxy), Arc::clone(entered.node()));
        let folder = config.data_dir.join("fleet");
        let shares = runtime.spawn(share_limits(proxy, node, folder));
        let activity = app.proxy.activity.clone();
        let ledger = FleetLedger::start(entered, activity, vitals, runtime);
        let sharing = shared.map(|shared| {
            let (handle, commands) = FleetConfigHandle::new(shared.facts.clone());
            let _ = app.api.fleet_config.set(handle);
            let (config_handle, data_dir) = (app.api.config.clone(), config.data_dir.clone());
            let task = FleetConfigTask { shared, config_handle, source, data_dir, commands };
            FleetSharing::start(task, &app.proxy, runtime)
        });
        FleetTasks { ledger, follower, sharing, shares, chains }
    }
}

/// Enables fleet queries, and follows the other nodes if this one keeps an index.
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

/// Background tasks of a fleet node.
#[derive(Debug)]
pub(super) struct FleetTasks {
    /// Seals the log and uploads segments.
    ledger: FleetLedger,
    /// Follows the other nodes' segments, if this node keeps an index.
    follower: Option<FleetFollower>,
    /// Exchanges shared state if the nodes have a key.
    sharing: Option<FleetSharing>,
    shares: JoinHandle<()>,
    /// Watches the names of the other nodes' segments.
    chains: JoinHandle<()>,
}

impl FleetTasks {
    /// Ends the tasks after all calls. If `patient`, shares and seals the remaining state within a time limit.
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
        // Records that cannot be flushed now are sealed after the next start.
        let _ = activity.flush();
        ledger.end(patient).await;
    }
}

/// Interval of checks whether another process changed the agent token file.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Replication tasks of shared state: agent tokens, the config, pins, standing approvals, and facts of principals.
#[derive(Debug)]
pub(super) struct FleetSharing {
    facts: FleetFacts,
    identity: Arc<Identity>,
    exchange: FactExchange,
    tokens: JoinHandle<()>,
    config: JoinHandle<()>,
    pins: JoinHandle<()>,
    standing_approvals: JoinHandle<()>,
    seen: JoinHandle<()>,
    approvals: Arc<ApprovalQueue>,
}

impl FleetSharing {
    fn start(config: FleetConfigTask, proxy: &Proxy, runtime: &Handle) -> Self {
        let SharedFacts { facts, bucket } = config.shared.clone();
        let identity = Arc::clone(&proxy.identity);
        let config = runtime.spawn(config.run());
        let (catalog, activity) = (Arc::clone(&proxy.catalog), proxy.activity.clone());
        let pins = runtime.spawn(pins::keep(catalog, activity, facts.clone()));
        let tokens = runtime.spawn(keep_tokens(Arc::clone(&identity), facts.clone()));
        let approvals = Arc::clone(&proxy.approvals);
        let standing_approvals =
            runtime.spawn(approvals::keep(Arc::clone(&approvals), facts.clone()));
        let seen = runtime.spawn(SeenSharing::begin(proxy, &facts).keep());
        let node = proxy.nodes.fleet_node().cloned();
        let living = move || node.as_ref().map_or_else(Arc::default, |node| node.living());
        let exchange = FactExchange::start(facts.clone(), bucket, living, runtime);
        Self {
            facts,
            identity,
            exchange,
            tokens,
            config,
            pins,
            standing_approvals,
            seen,
            approvals,
        }
    }

    /// Ends the tasks. If `patient`, first shares pending changes with the fleet, within a time limit.
    pub(super) async fn end(self, patient: bool) {
        let Self {
            facts,
            identity,
            exchange,
            tokens,
            config,
            pins,
            standing_approvals,
            seen,
            approvals,
        } = self;
        for task in [tokens, config, pins, standing_approvals, seen] {
            task.abort();
            let _ = task.await;
        }
        // The node may never start again, so the latest revocations are shared now.
        let last = tokio::task::spawn_blocking(move || {
            step_tokens(&identity, &facts);
            if let Err(error) = approvals::step(&approvals, &facts) {
                peer_line!(error, LinePeer::Part("fleet start"), %error, "standing approvals cannot be stored for the fleet");
            }
        });
        let _ = last.await;
        exchange.end(patient).await;
    }
}

/// Synchronizes agent tokens with the fleet until aborted.
async fn keep_tokens(identity: Arc<Identity>, facts: FleetFacts) {
    let mut changes = facts.changes();
    let mut seen = None;
    loop {
        let (now, is_other) = (identity.token_stamp(), changes.has_changed().unwrap_or(false));
        if Some(now) != seen || is_other {
            changes.mark_unchanged();
            let (identity, facts) = (Arc::clone(&identity), facts.clone());
            let stepped = tokio::task::spawn_blocking(move || step_tokens(&identity, &facts));
            if stepped.await.is_err() {
                peer_line!(
                    error,
                    LinePeer::Part("fleet start"),
                    "synchronization of agent tokens with the fleet has stopped: it panicked"
                );
                return;
            }
            // A step that writes the file causes one more step, which does nothing.
            seen = Some(now);
        }
        tokio::select! {
            () = identity.tokens_changed() => {}
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                changes.mark_changed();
            }
            () = tokio::time::sleep(TOKEN_CHECK_INTERVAL) => {}
        }
    }
}

/// Interval of updates of the number of nodes.
const SHARE_EVERY: Duration = Duration::from_millis(250);
/// File in `data_dir/fleet` with the last number of nodes in decimal digits.
const FILE: &str = "sharing";
const NEW_FILE: &str = "sharing.new";
/// Maximum size of the file in bytes.
const MAX_FILE_BYTES: u64 = 16;

/// Divides the limits among the living nodes until aborted. `folder` is `data_dir/fleet`. Until the node has read the heartbeats, it uses
/// the last known number of nodes, so that it does not take the whole limit while the store is unreachable.
pub(super) async fn share_limits(proxy: Arc<Proxy>, node: Arc<FleetNode>, folder: PathBuf) {
    let folder = Arc::new(folder);
    let read = Arc::clone(&folder);
    let remembered = tokio::task::spawn_blocking(move || remembered(&read)).await;
    let mut sharing = SharingNodes { last: remembered.unwrap_or_default(), has_seen: false };
    loop {
        let (count, is_new) = sharing.count(&node.living());
        // Applied even if unchanged, because the config may have changed.
        proxy.settings.share_limits(count);
        if is_new {
            let folder = Arc::clone(&folder);
            let kept = tokio::task::spawn_blocking(move || remember(&folder, count)).await;
            if let Ok(Err(error)) = kept {
                peer_line!(warn, LinePeer::Part("fleet start"), %error, "cannot store the number of nodes that share the limits");
            }
        }
        tokio::time::sleep(SHARE_EVERY).await;
    }
}

/// Number of nodes that share the limits.
#[derive(Debug)]
struct SharingNodes {
    /// Last known number, possibly from an earlier run; 0 if unknown.
    last: usize,
    /// Whether heartbeats were read in this run.
    has_seen: bool,
}

impl SharingNodes {
    /// Returns the current divisor of the limits, and whether it has to be stored.
    fn count(&mut self, living: &Membership) -> (usize, bool) {
        let seen = living.sharing();
        self.has_seen |= living.away.is_none() && !living.all().is_empty();
        if !self.has_seen {
            return (seen.max(self.last), false);
        }
        let is_new = self.last != seen;
        self.last = seen;
        (seen, is_new)
    }
}

fn remembered(folder: &Path) -> usize {
    let mut text = String::new();
    let read = fs::File::open(folder.join(FILE))
        .and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
    let count = read.ok().and_then(|_| text.trim().parse().ok());
    count.filter(|count| *count <= MAX_NODES).unwrap_or_default()
}

/// Stores the number without syncing it to disk.
fn remember(folder: &Path, count: usize) -> io::Result<()> {
    private::folder(folder)?;
    let aside = folder.join(NEW_FILE);
    private::create(&aside)?.write_all(count.to_string().as_bytes())?;
    fs::rename(aside, folder.join(FILE))
}

#[cfg(test)]
mod tests {
    use mcpproxy_fleet::config::NodeName;
    use mcpproxy_fleet::failure_detector::FailureDetector;
    use mcpproxy_fleet::heartbeat::BootId;

    use super::*;

    #[test]
    fn node_that_has_not_read_heartbeats_keeps_its_last_share() {
        let folder = tempfile::tempdir().unwrap();
        let own = FailureDetector::new(NodeName::parse("a").unwrap(), BootId([1; 16]));
        let away = own.snapshot(Some("the store is away".to_owned()));
        let mut first = SharingNodes { last: remembered(folder.path()), has_seen: false };
        assert_eq!(first.count(&Membership::default()), (1, false));
        remember(folder.path(), 3).unwrap();
        let mut again = SharingNodes { last: remembered(folder.path()), has_seen: false };
        for living in [&Membership::default(), &away] {
            assert_eq!(again.count(living), (3, false));
        }
        // The heartbeats were read: this node is alone.
        assert_eq!(again.count(&own.snapshot(None)), (1, true));
        assert_eq!(again.count(&away), (1, false));
        for odd in ["", "x", "-1", "99999999", "99999999999999999999"] {
            fs::write(folder.path().join(FILE), odd).unwrap();
            assert_eq!(remembered(folder.path()), 0, "{odd}");
        }
    }
}
