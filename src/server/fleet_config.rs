//! The config of a fleet, at a node: another one that the fleet runs is fetched, checked and put in force, or refused with a reason
//! that the others see; and one that somebody applies here is checked first, then stored, then told.
//!
//! ```text
//! fact (which one) ─▶ object ─▶ checked with this node's own keys ─▶ kept in data_dir/fleet ─▶ reload ─▶ run (a fact)
//!                                   └─ anything wrong: all stays ────────────────────────────────────▶ run: refused
//! ```

mod stored_configs;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::runtime::LocalRuntime;
use tokio::sync::mpsc;

use self::stored_configs::{
    AnewSealing, NotTaken, TRY_AGAIN, fetch, fetch_patiently, problem, reasons, whole,
};
use super::reload::ConfigSource;
use super::shared_facts::SharedFacts;
use super::start_error::StartError;
use crate::api::config_door::{ConfigDoor, ReloadRefused, ShownProblem};
use crate::api::fleet_config_door::{FleetConfigAsker, FleetConfigRefused, FleetConfigWish};
use crate::config::file::{Loaded, load_shared};
use crate::config::fleet_config::SharedConfig;
use crate::config::problem::Problem;
use crate::config::rule_files;
use crate::fleet::bucket::BucketError;
use crate::fleet::facts::{
    ConfigFact, ConfigRun, ConfigRunState, ConfigVersion, FactKind, FactRefused, FactSet, NodeName,
};

/// What is wrong with the config, among what is wrong with what is shared.
const PART: &str = "config";

/// The task that has the fleet's config at a node.
pub(super) struct FleetConfigTask {
    pub(super) shared: SharedFacts,
    pub(super) door: ConfigDoor,
    pub(super) source: Option<ConfigSource>,
    pub(super) data_dir: PathBuf,
    pub(super) wishes: mpsc::Receiver<FleetConfigWish>,
}

impl FleetConfigTask {
    /// Takes over what the fleet runs, and hears wishes, until it is aborted.
    pub(super) async fn run(mut self) {
        let mut changes = self.shared.facts.changes();
        // The version that was looked at last, and is not again.
        let (mut done, mut anew) = (None, AnewSealing::default());
        loop {
            changes.mark_unchanged();
            let fact = ConfigFact::of(&self.shared.facts.facts());
            let mut again = match &fact {
                Some(fact) => anew.step(&self.shared, fact).await,
                None => Duration::MAX,
            };
            if let Some(fact) = fact.filter(|fact| done.as_ref() != Some(&fact.now)) {
                match self.take_over(&fact.now).await {
                    Ok(()) => done = Some(fact.now),
                    Err(error) => {
                        let version = fact.now.version;
                        tracing::warn!(%error, version, "the fleet's config cannot be had: the one in force stays");
                        let fault = format!(
                            "version {version} of the fleet's config cannot be had, and this node runs another: {error}"
                        );
                        self.shared.facts.tell_fault(PART, Some(fault));
                        again = again.min(TRY_AGAIN);
                    }
                }
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                Some(wish) = self.wishes.recv() => self.hear(wish).await,
                () = tokio::time::sleep(again.min(Duration::from_secs(3600))) => {}
            }
        }
    }

    /// Takes a version over, or refuses it; the fleet is told which.
    async fn take_over(&self, version: &ConfigVersion) -> Result<(), BucketError> {
        let run = match self.taken_over(version).await {
            Ok(needs_restart) => {
                self.shared.facts.tell_fault(PART, None);
                ConfigRun::of(version, None, &needs_restart)
            }
            Err(NotTaken::Refused(refused)) => {
                let reason = reasons(&refused);
                tracing::error!(
                    version = version.version,
                    reason,
                    "the fleet's config is refused: the one in force stays"
                );
                let fault = format!(
                    "version {} of the fleet's config is refused here, and this node runs another: {reason}",
                    version.version
                );
                self.shared.facts.tell_fault(PART, Some(fault));
                ConfigRun::of(version, Some(&reason), &[])
            }
            Err(NotTaken::Store(error) | NotTaken::Unopened(error)) => return Err(error),
        };
        let facts = self.shared.facts.clone();
        blocking(move || {
            let node = facts.node().clone();
            let said = facts
                .change(|set, _| set.say(&node, FactKind::ConfigRun, node.as_str(), &run.value()));
            if let Err(error) = said {
                tracing::warn!(%error, "it cannot be remembered which config this node runs");
            }
        })
        .await;
        Ok(())
    }

    /// The keys that count from the next start on.
    async fn taken_over(&self, version: &ConfigVersion) -> Result<Vec<String>, NotTaken> {
        let source = self.source()?;
        let data_dir = self.data_dir.clone();
        let before = blocking(move || SharedConfig::kept(&data_dir).ok().flatten()).await.flatten();
        if before.as_ref().is_some_and(|before| before.hash() == version.hash) {
            return Ok(self.door.standing().needs_restart.clone());
        }
        let next = Arc::new(fetch(&self.shared, version).await?);
        let (config, folder) = (Arc::clone(&next), self.data_dir.clone());
        let kept = blocking(move || {
            check(&source, &config, &folder)?;
            config.keep(&folder).map_err(|error| whole(&error.to_string()))
        });
        kept.await.unwrap_or_else(|| Err(whole("checking it failed")))?;
        let reloaded = self.door.take_over().await;
        let refused = match reloaded {
            Ok(Ok(reloaded)) => {
                tracing::info!(version = version.version, "this node runs the fleet's config");
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
            tracing::error!(%error, "the config before cannot be kept again");
        }
        Err(NotTaken::Refused(refused))
    }

    fn source(&self) -> Result<ConfigSource, ReloadRefused> {
        let none = || whole("this proxy was not started with a config file");
        self.source.clone().ok_or_else(none)
    }

    async fn hear(&self, wish: FleetConfigWish) {
        let (outcome, asker) = match wish {
            FleetConfigWish::Apply(text, asker) => (self.apply(&text, &asker).await, asker),
            FleetConfigWish::RollBack(asker) => (self.roll_back(&asker).await, asker),
        };
        // Whoever asked may have gone.
        let _ = asker.answer.send(outcome);
    }

    async fn apply(
        &self,
        text: &[u8],
        asker: &FleetConfigAsker,
    ) -> Result<ConfigVersion, FleetConfigRefused> {
        let config = SharedConfig::read(text).map_err(|why| unusable(whole(&why)))?;
        let hash = config.hash();
        self.check(config.clone()).await.map_err(unusable)?;
        let SharedFacts { facts, bucket } = &self.shared;
        let (node, by) = (facts.node().clone(), asker.principal.clone());
        let known = ConfigFact::of(&facts.facts());
        let next = ConfigFact::applied(known, hash.clone(), &node, &by, now());
        let put = facts.put_sealed(bucket, &next.now.key(), &config.write()).await;
        put.map_err(|error| FleetConfigRefused::Failed(error.to_string()))?;
        self.tell(move |known| Some(ConfigFact::applied(known, hash, &node, &by, now()))).await
    }

    async fn roll_back(
        &self,
        asker: &FleetConfigAsker,
    ) -> Result<ConfigVersion, FleetConfigRefused> {
        let by = asker.principal.clone();
        let known = ConfigFact::of(&self.shared.facts.facts());
        let back = known.and_then(|known| known.rolled_back(&by, now()));
        let back = back.ok_or(FleetConfigRefused::NothingBefore)?;
        // It was good once, perhaps for an earlier version of the program.
        let config = fetch(&self.shared, &back.now).await.map_err(|why| match why {
            NotTaken::Refused(refused) => unusable(refused),
            NotTaken::Store(error) | NotTaken::Unopened(error) => {
                FleetConfigRefused::Failed(error.to_string())
            }
        })?;
        self.check(config).await.map_err(unusable)?;
        self.tell(move |known| known?.rolled_back(&by, now())).await
    }

    async fn check(&self, config: SharedConfig) -> Result<(), ReloadRefused> {
        let (source, folder) = (self.source()?, self.data_dir.clone());
        let checked = blocking(move || check(&source, &config, &folder).map(|_| ()));
        checked.await.unwrap_or_else(|| Err(whole("checking it failed")))
    }

    /// Tells the fleet which config it is, of what it is now.
    async fn tell(
        &self,
        next: impl FnOnce(Option<ConfigFact>) -> Option<ConfigFact> + Send + 'static,
    ) -> Result<ConfigVersion, FleetConfigRefused> {
        let facts = self.shared.facts.clone();
        let told = blocking(move || {
            let node = facts.node().clone();
            facts.change(|set, _| {
                let next = next(ConfigFact::of(set)).ok_or(FleetConfigRefused::NothingBefore)?;
                let said = set.say(&node, FactKind::Config, "", &next.value());
                let failed = |why: FactRefused| FleetConfigRefused::Failed(why.to_string());
                said.map(|_| next.now).map_err(failed)
            })
        });
        let failed = |why: String| Err(FleetConfigRefused::Failed(why));
        match told.await {
            Some(Ok(told)) => told,
            Some(Err(error)) => failed(error.to_string()),
            None => failed("telling it failed".into()),
        }
    }
}

/// Takes over what the fleet runs before a node has started, so that it never runs without: what it runs then, if that is
/// another than `config`. One that has run the fleet's before, or its own beside it, goes on with that. Blocks, and reads the
/// store by `runtime`.
///
/// # Errors
///
/// [`StartError::FleetConfigAway`], [`StartError::FleetConfigRefused`]: a new node would serve by rules of its own.
pub(super) fn at_start(
    shared: &SharedFacts,
    source: &ConfigSource,
    config: &crate::config::Config,
    runtime: &LocalRuntime,
) -> Result<Option<crate::config::Config>, StartError> {
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
        let loaded = check(source, &shared, &config.data_dir)?;
        let failed = |error: std::io::Error| NotTaken::Refused(whole(&error.to_string()));
        shared.keep(&config.data_dir).map_err(failed)?;
        Ok(loaded.config)
    });
    match taken {
        Ok(mut next) => {
            if next.api_key.is_none() {
                next.api_key.clone_from(&config.api_key);
            }
            tracing::info!(version = version.version, "this node starts with the fleet's config");
            Ok(Some(next))
        }
        // Which is told again, and to the others, once it runs.
        Err(NotTaken::Refused(refused)) if runs_on => {
            tracing::error!(reason = refused.cause(), "the fleet's config is refused at the start");
            Ok(None)
        }
        Err(NotTaken::Store(error) | NotTaken::Unopened(error)) if runs_on => {
            tracing::warn!(%error, "the fleet's config cannot be had at the start");
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

/// Whether a node has refused the fleet's config while it ran its own, as it was then.
fn runs_its_own(known: &FactSet, node: &NodeName) -> bool {
    let run = ConfigRun::all(known).into_iter().find(|(of, _)| *of == node.as_str());
    run.is_some_and(|(_, run)| run.state == ConfigRunState::Refused)
}

/// What this node's own file and a shared config come to, rules included. Blocks.
fn check(
    source: &ConfigSource,
    shared: &SharedConfig,
    data_dir: &Path,
) -> Result<Loaded, ReloadRefused> {
    let env = |name: &str| std::env::var(name).ok();
    let refused = |problems: Vec<ShownProblem>| ReloadRefused { problems };
    let loaded = load_shared(&source.path, shared, &env, &source.flags)
        .map_err(|problems| refused(problems.iter().map(shown).collect()))?;
    shared.put_rules(data_dir).map_err(|error| whole(&error.to_string()))?;
    let rules = rule_files::load(&loaded.config.rules, &rule_files::servers(&loaded.config));
    match rules {
        Ok(_) => Ok(loaded),
        Err(problems) => Err(refused(problems.iter().map(|it| problem(it.to_string())).collect())),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn unusable(refused: ReloadRefused) -> FleetConfigRefused {
    FleetConfigRefused::Unusable(refused)
}

/// A problem of a shared config: the place in it is nobody's.
fn shown(found: &Problem) -> ShownProblem {
    let severity = match found.severity {
        crate::config::problem::Severity::Error => "error",
        crate::config::problem::Severity::Warning => "warning",
    };
    ShownProblem { severity, key: found.key.clone(), ..problem(found.text.clone()) }
}

/// Runs what blocks beside the runtime; `None` if it panicked.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
