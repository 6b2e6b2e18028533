//! The fleet's config on a node: a new version is fetched, validated and applied, or rejected with a reason that the other nodes see. A
//! config submitted on this node is validated, stored and then announced.
//!
//! ```text
//! fact (version) ─▶ object ─▶ validated with this node's own keys ─▶ stored in data_dir/fleet ─▶ reload ─▶ run (a fact)
//!                                   └─ any error: nothing changes ───────────────────────────────────▶ run: refused
//! ```

mod stored_configs;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::runtime::LocalRuntime;
use tokio::sync::mpsc;

use self::stored_configs::{
    NotTaken, RETRY_INTERVAL, Resealing, fetch, fetch_patiently, problem, reasons, whole,
};
use super::shared_facts::SharedFacts;
use crate::reload::ConfigSource;
use crate::startup::StartError;
use mcpproxy_admin::api::config_handle::{ConfigHandle, ReloadRefused, ShownProblem};
use mcpproxy_admin::api::config_handle::{
    FleetConfigCaller, FleetConfigCommand, FleetConfigRefused,
};
use mcpproxy_config::file::{Loaded, load_shared};
use mcpproxy_config::fleet_config::SharedConfig;
use mcpproxy_config::problem::Problem;
use mcpproxy_config::rule_files;
use mcpproxy_fleet::bucket::BucketError;
use mcpproxy_fleet::facts::{
    ConfigFact, ConfigRun, ConfigRunState, ConfigVersion, FactKind, FactRefused, FactSet, NodeName,
};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

/// Name of this part in reported faults.
const PART: &str = "config";
/// Peer that is charged for log lines about a config in the store.
const FLEET_STORE: LinePeer<'_> = LinePeer::Part("fleet config");

/// The task that owns the fleet's config on a node.
pub(super) struct FleetConfigTask {
    pub(super) shared: SharedFacts,
    pub(super) config_handle: ConfigHandle,
    pub(super) source: Option<ConfigSource>,
    pub(super) data_dir: PathBuf,
    pub(super) commands: mpsc::Receiver<FleetConfigCommand>,
}

impl FleetConfigTask {
    /// Applies versions of the fleet's config and processes commands, until aborted.
    pub(super) async fn run(mut self) {
        let mut changes = self.shared.facts.changes();
        // The version that was last processed.
        let (mut done, mut resealing) = (None, Resealing::default());
        loop {
            changes.mark_unchanged();
            let fact = ConfigFact::of(&self.shared.facts.facts());
            let mut again = match &fact {
                Some(fact) => resealing.step(&self.shared, fact).await,
                None => Duration::MAX,
            };
            if let Some(fact) = fact.filter(|fact| done.as_ref() != Some(&fact.now)) {
                match self.process(&fact.now).await {
                    Ok(()) => done = Some(fact.now),
                    Err(error) => {
                        let version = fact.now.version;
                        peer_line!(warn, FLEET_STORE, %error, version, "cannot read the fleet's config; the one in force stays");
                        let fault = format!(
                            "version {version} of the fleet's config cannot be read, and this node runs another: {error}"
                        );
                        self.shared.facts.report_fault(PART, Some(fault));
                        again = again.min(RETRY_INTERVAL);
                    }
                }
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                Some(command) = self.commands.recv() => self.perform(command).await,
                () = tokio::time::sleep(again.min(Duration::from_secs(3600))) => {}
            }
        }
    }

    /// Applies or rejects a version, and publishes the result.
    async fn process(&self, version: &ConfigVersion) -> Result<(), BucketError> {
        let run = match self.apply_version(version).await {
            Ok(needs_restart) => {
                self.shared.facts.report_fault(PART, None);
                ConfigRun::of(version, None, &needs_restart)
            }
            Err(NotTaken::Refused(refused)) => {
                let reason = reasons(&refused);
                peer_line!(
                    error,
                    FLEET_STORE,
                    version = version.version,
                    reason,
                    "rejected the fleet's config; the one in force stays"
                );
                let fault = format!(
                    "version {} of the fleet's config is refused here, and this node runs another: {reason}",
                    version.version
                );
                self.shared.facts.report_fault(PART, Some(fault));
                ConfigRun::of(version, Some(&reason), &[])
            }
            Err(NotTaken::Store(error) | NotTaken::Unopened(error)) => return Err(error),
        };
        let facts = self.shared.facts.clone();
        blocking(move || {
            let node = facts.node().clone();
            let stored = facts.change(|set, _| {
                set.set_value(&node, FactKind::ConfigRun, node.as_str(), &run.value())
            });
            if let Err(error) = stored {
                peer_line!(warn, FLEET_STORE, %error, "cannot store which config this node runs");
            }
        })
        .await;
        Ok(())
    }

    /// Applies a version. Returns the keys that take effect at the next start.
    async fn apply_version(&self, version: &ConfigVersion) -> Result<Vec<String>, NotTaken> {
        let source = self.source()?;
        let data_dir = self.data_dir.clone();
        let before = blocking(move || SharedConfig::kept(&data_dir).ok().flatten()).await.flatten();
        if before.as_ref().is_some_and(|before| before.hash() == version.hash) {
            return Ok(self.config_handle.standing().needs_restart.clone());
        }
        let next = Arc::new(fetch(&self.shared, version).await?);
        let (config, folder) = (Arc::clone(&next), self.data_dir.clone());
        let kept = blocking(move || {
            check(&source, &config)?;
            config.keep(&folder).map_err(|error| whole(&error.to_string()))
        });
        kept.await.unwrap_or_else(|| Err(whole("validation failed unexpectedly")))?;
        let reloaded = self.config_handle.apply_fleet_config().await;
        let refused = match reloaded {
            Ok(Ok(reloaded)) => {
                peer_line!(
                    info,
                    FLEET_STORE,
                    version = version.version,
                    "applied the fleet's config"
                );
                return Ok(reloaded.needs_restart);
            }
            Ok(Err(refused)) => refused,
            Err(error) => whole(&error),
        };
        let folder = self.data_dir.clone();
        let back = blocking(move || match before {
            Some(before) => before.keep(&folder),
            None => SharedConfig::forget(&folder),
        });
        if let Some(Err(error)) = back.await {
            peer_line!(error, FLEET_STORE, %error, "cannot restore the previous config");
        }
        Err(NotTaken::Refused(refused))
    }

    fn source(&self) -> Result<ConfigSource, ReloadRefused> {
        let none = || whole("this proxy was not started with a config file");
        self.source.clone().ok_or_else(none)
    }

    async fn perform(&self, command: FleetConfigCommand) {
        let (outcome, caller) = match command {
            FleetConfigCommand::Apply(text, caller) => (self.apply(&text, &caller).await, caller),
            FleetConfigCommand::RollBack(caller) => (self.roll_back(&caller).await, caller),
        };
        // The client may have disconnected.
        let _ = caller.answer.send(outcome);
    }

    async fn apply(
        &self,
        text: &[u8],
        caller: &FleetConfigCaller,
    ) -> Result<ConfigVersion, FleetConfigRefused> {
        let config = SharedConfig::read(text).map_err(|why| unusable(whole(&why)))?;
        let hash = config.hash();
        self.check(config.clone()).await.map_err(unusable)?;
        let SharedFacts { facts, bucket } = &self.shared;
        let (node, by) = (facts.node().clone(), caller.principal.clone());
        let known = ConfigFact::of(&facts.facts());
        let next = ConfigFact::applied(known, hash.clone(), &node, &by, now());
        let put = facts.put_sealed(bucket, &next.now.key(), &config.write()).await;
        put.map_err(|error| FleetConfigRefused::Failed(error.to_string()))?;
        self.announce(move |known| Some(ConfigFact::applied(known, hash, &node, &by, now()))).await
    }

    async fn roll_back(
        &self,
        caller: &FleetConfigCaller,
    ) -> Result<ConfigVersion, FleetConfigRefused> {
        let by = caller.principal.clone();
        let known = ConfigFact::of(&self.shared.facts.facts());
        let back = known.and_then(|known| known.rolled_back(&by, now()));
        let back = back.ok_or(FleetConfigRefused::NothingBefore)?;
        // The earlier config was valid once, but possibly for an earlier version of the program.
        let config = fetch(&self.shared, &back.now).await.map_err(|why| match why {
            NotTaken::Refused(refused) => unusable(refused),
            NotTaken::Store(error) | NotTaken::Unopened(error) => {
                FleetConfigRefused::Failed(error.to_string())
            }
        })?;
        self.check(config).await.map_err(unusable)?;
        self.announce(move |known| known?.rolled_back(&by, now())).await
    }

    async fn check(&self, config: SharedConfig) -> Result<(), ReloadRefused> {
        let source = self.source()?;
        let checked = blocking(move || check(&source, &config).map(|_| ()));
        checked.await.unwrap_or_else(|| Err(whole("validation failed unexpectedly")))
    }

    /// Publishes the next version, derived from the current one.
    async fn announce(
        &self,
        next: impl FnOnce(Option<ConfigFact>) -> Option<ConfigFact> + Send + 'static,
    ) -> Result<ConfigVersion, FleetConfigRefused> {
        let facts = self.shared.facts.clone();
        let announced = blocking(move || {
            let node = facts.node().clone();
            facts.change(|set, _| {
                let next = next(ConfigFact::of(set)).ok_or(FleetConfigRefused::NothingBefore)?;
                let result = set.set_value(&node, FactKind::Config, "", &next.value());
                let failed = |why: FactRefused| FleetConfigRefused::Failed(why.to_string());
                result.map(|_| next.now).map_err(failed)
            })
        });
        let failed = |why: String| Err(FleetConfigRefused::Failed(why));
        match announced.await {
            Some(Ok(announced)) => announced,
            Some(Err(error)) => failed(error.to_string()),
            None => failed("publishing failed unexpectedly".into()),
        }
    }
}

/// Returns the fleet's config at the startup of a node, if it differs from `config`. If the fleet's config is unavailable, a node that has
/// run it before, or deliberately runs its own, starts with its current config; a new node fails, because it must not serve with its own
/// rules. Blocks.
pub(super) fn at_start(
    shared: &SharedFacts,
    source: &ConfigSource,
    config: &mcpproxy_config::Config,
    runtime: &LocalRuntime,
) -> Result<Option<mcpproxy_config::Config>, StartError> {
    let known = shared.facts.facts();
    let Some(ConfigFact { now: version, .. }) = ConfigFact::of(&known) else { return Ok(None) };
    if config.fleet_config.as_deref() == Some(&*version.hash) {
        return Ok(None);
    }
    let runs_on = config.fleet_config.is_some() || runs_its_own(&known, shared.facts.node());
    let fetched = match runs_on {
        true => runtime.block_on(fetch(shared, &version)),
        false => runtime.block_on(fetch_patiently(shared, &version)),
    };
    let taken = fetched.and_then(|shared| {
        let loaded = check(source, &shared)?;
        let failed = |error: std::io::Error| NotTaken::Refused(whole(&error.to_string()));
        shared.keep(&config.data_dir).map_err(failed)?;
        Ok(loaded.config)
    });
    match taken {
        Ok(mut next) => {
            if next.api_key.is_none() {
                next.api_key.clone_from(&config.api_key);
            }
            peer_line!(
                info,
                FLEET_STORE,
                version = version.version,
                "starting with the fleet's config"
            );
            Ok(Some(next))
        }
        // Once the node runs, the rejection is reported again, also to the other nodes.
        Err(NotTaken::Refused(refused)) if runs_on => {
            peer_line!(
                error,
                FLEET_STORE,
                reason = refused.cause(),
                "rejected the fleet's config at start"
            );
            Ok(None)
        }
        Err(NotTaken::Store(error) | NotTaken::Unopened(error)) if runs_on => {
            peer_line!(warn, FLEET_STORE, %error, "cannot read the fleet's config at start");
            Ok(None)
        }
        Err(NotTaken::Refused(refused)) => {
            let (version, reason) = (version.version, reasons(&refused));
            Err(StartError::FleetConfigRefused { version, reason })
        }
        Err(NotTaken::Store(error) | NotTaken::Unopened(error)) => {
            Err(StartError::FleetConfigAway { version: version.version, error })
        }
    }
}

/// Whether a node last rejected the fleet's config and runs its own.
fn runs_its_own(known: &FactSet, node: &NodeName) -> bool {
    let run = ConfigRun::all(known).into_iter().find(|(of, _)| *of == node.as_str());
    run.is_some_and(|(_, run)| run.state == ConfigRunState::Refused)
}

/// Validates a shared config combined with this node's own file, including rules. Blocks.
fn check(source: &ConfigSource, shared: &SharedConfig) -> Result<Loaded, ReloadRefused> {
    let env = |name: &str| std::env::var(name).ok();
    let refused = |problems: Vec<ShownProblem>| ReloadRefused { problems };
    let loaded = load_shared(&source.path, shared, &env, &source.flags)
        .map_err(|problems| refused(problems.iter().map(shown).collect()))?;
    let rules = rule_files::load(&loaded.config.rules, &rule_files::servers(&loaded.config));
    match rules {
        Ok(_) => Ok(loaded),
        Err(problems) => {
            let errors = problems.iter().filter(|it| it.is_error());
            Err(refused(errors.map(|it| problem(it.to_string())).collect()))
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn unusable(refused: ReloadRefused) -> FleetConfigRefused {
    FleetConfigRefused::Unusable(refused)
}

/// A problem of a shared config. The location is omitted, because it has no meaning on this machine.
fn shown(found: &Problem) -> ShownProblem {
    let severity = match found.severity {
        mcpproxy_config::problem::Severity::Error => "error",
        mcpproxy_config::problem::Severity::Warning => "warning",
    };
    ShownProblem { severity, key: found.key.clone(), ..problem(found.text.clone()) }
}

/// Runs blocking work; `None` if it panicked.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
