//! The config while the proxy runs: read again when its file is another, on SIGHUP and when somebody asks, and put in
//! force without a restart.
//!
//! ```text
//! files ──┐
//! signal ─┼─▶ one task ─▶ read, checked whole ─┬─ difference ─▶ apply ─▶ record, log, standing, answer
//! REST ───┘                                    └─ anything wrong ─▶ all stays ─▶ the same
//! ```
//!
//! Owns the config in force: one task, so that two changes come one after the other. What each part makes of it is the
//! part's; in which order they are told is `apply`'s, when a file is looked at `files`', and what is told of it
//! `record`'s. The same task looks at the files of rules and of agent tokens.
//!
//! Environment and flags are those of the start, and beat the file as they did then. A file without an API key keeps the
//! one in force: none is made while the proxy runs.

mod apply;
mod files;
mod proposal;
mod record;
mod refusal;
mod rule_check;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};

use self::files::{LookTime, WatchedFolders};
use self::refusal::{RefusalTold, Refusals};
use super::identity_watch;
use super::otlp_export::OtlpTargets;
use super::rule_watch::{RuleWatch, RulesRead, RulesSeen};
use crate::api::config_door::{
    ConfigComparison, ConfigDoor, ConfigStanding, ConfigWish, ReloadDoor, ReloadOutcome,
    ReloadRefused, Reloaded, ServerSwitch, SwitchOutcome, SwitchRefused, SwitchWish,
};
use crate::approvals::Webhook;
use crate::config::difference::ConfigDifference;
use crate::config::file::load_again;
use crate::config::problem::Problem;
use crate::config::switch::{NotSwitched, switch_server};
use crate::config::{Config, Flags, rule_files};
use crate::identity::{FileStamp, file_stamp};
use crate::policy::rules::RuleProblem;
use crate::proxy::Proxy;
use crate::telemetry::LogFilter;

/// How long a file may be away before that is told: whoever replaces it may be about to.
const MAY_BE_AWAY: Duration = Duration::from_secs(2);
/// Most problems of one config that are logged one by one.
const MAX_LOGGED: usize = 20;

/// Where the config was read, to be read there again.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    /// The file, there or not.
    pub path: PathBuf,
    /// What the command line says.
    pub flags: Flags,
}

/// What the task has.
pub(super) struct Reload {
    pub(super) proxy: Arc<Proxy>,
    pub(super) door: ConfigDoor,
    pub(super) wishes: mpsc::Receiver<ConfigWish>,
    /// None where nothing is read again.
    pub(super) source: Option<ConfigSource>,
    pub(super) in_force: Config,
    /// Where the task that tells the webhook finds it.
    pub(super) webhook: watch::Sender<Option<Webhook>>,
    /// Where the tasks that export find their collector.
    pub(super) otlp: OtlpTargets,
    pub(super) log: LogFilter,
}

/// What was seen of the files, for a thread that may block.
struct Looks {
    folders: WatchedFolders,
    rules: RuleWatch,
    /// The config's file that was read last.
    config: Option<FileStamp>,
    /// The files that were known to hold values of it, as they were before it was read.
    named: BTreeMap<PathBuf, Option<FileStamp>>,
    /// Since when it is away, until that is told.
    away: Option<Instant>,
    refusals: Refusals,
    /// Servers whose TLS is another by its files, until their connections are made anew.
    renewed: Vec<Arc<str>>,
}

/// A config that may be put in force.
struct ReadConfig {
    config: Config,
    rules: RulesRead,
    warnings: Vec<Problem>,
}

impl Reload {
    /// Looks and listens until it is aborted.
    pub(super) async fn run(mut self) {
        let told = LookTime::default();
        let path = self.source.as_ref().map(|source| source.path.clone());
        let mut looks = Looks {
            folders: WatchedFolders::new(&told),
            rules: RuleWatch::new(&self.in_force.rules),
            config: path.as_deref().and_then(file_stamp),
            named: BTreeMap::new(),
            away: None,
            refusals: Refusals::default(),
            renewed: Vec::new(),
        };
        loop {
            let wish = tokio::select! {
                Some(wish) = self.wishes.recv() => Some(wish),
                () = told.time_to_look() => None,
            };
            let back = match wish {
                Some(ConfigWish::Compare(answer)) => {
                    // Whoever asked may have gone.
                    let _ = answer.send(self.compare(&looks).await);
                    Some(looks)
                }
                Some(ConfigWish::Switch(wish)) => self.switch(looks, wish).await,
                Some(ConfigWish::Settings(answer)) => {
                    let _ = answer.send(self.settings().await);
                    Some(looks)
                }
                Some(ConfigWish::Preview(change, answer)) => {
                    let _ = answer.send(self.preview(&looks, change).await);
                    Some(looks)
                }
                Some(ConfigWish::Change(wish)) => self.change(looks, wish).await,
                Some(ConfigWish::Reload(wish)) => {
                    let (back, outcome) = self.reload(looks, wish.door, &wish.principal).await;
                    if let Some(answer) = wish.answer {
                        // Whoever asked may have gone.
                        let _ = answer.send(outcome);
                    }
                    back
                }
                None => self.look(looks).await,
            };
            let Some(back) = back else {
                tracing::error!("the config is not read again any more: reading it failed");
                return;
            };
            looks = back;
        }
    }

    /// What reading the file again would change.
    async fn compare(&self, looks: &Looks) -> ConfigComparison {
        let failed = |refused: ReloadRefused| ConfigComparison {
            problems: refused.problems,
            ..ConfigComparison::default()
        };
        let Some(source) = self.source.clone() else {
            return failed(record::whole("this proxy was not started with a config file"));
        };
        let (now, check) = (self.in_force.clone(), self.rule_check(looks));
        let compared = tokio::task::spawn_blocking(move || {
            let read = read_config(&source, &now);
            match read.and_then(|read| check.check(&now, &read.0).map(|()| read)) {
                Ok((config, warnings)) => record::compared(&now, &config, &warnings),
                Err(refused) => failed(refused),
            }
        });
        compared.await.unwrap_or_else(|_| failed(record::whole("reading the config failed")))
    }

    /// Switches a server in the file, and puts that in force. No looks come back where reading it panicked.
    async fn switch(&mut self, looks: Looks, wish: SwitchWish) -> Option<Looks> {
        let SwitchWish { server, to, principal, answer } = wish;
        let refused = |why: &str| SwitchRefused::Refused(why.to_owned());
        let Some(source) = self.source.clone() else {
            let _ = answer.send(Err(refused("this proxy was not started with a config file")));
            return Some(looks);
        };
        if self.in_force.fleet_config.is_some() {
            let _ = answer.send(Err(refused(FLEET)));
            return Some(looks);
        }
        let (now, rules) = (self.in_force.clone(), self.rule_check(&looks));
        let written = tokio::task::spawn_blocking(move || {
            switch_server(&source.path, &server, to == ServerSwitch::On, |text| {
                let usable = rule_check::usable(text, (&source.path, &source.flags), &now, &rules);
                usable.map(drop).map_err(|refused| refused.cause())
            })
        });
        let written = match written.await {
            Ok(Ok(changed)) => Ok(changed),
            Ok(Err(NotSwitched::Unknown)) => Err(SwitchRefused::Unknown),
            Ok(Err(NotSwitched::Refused(why))) => Err(SwitchRefused::Refused(why)),
            Err(_) => Err(refused("changing the file failed")),
        };
        let (back, outcome) = match written {
            Ok(changed) => {
                let (back, outcome) = self.reload(looks, ReloadDoor::Api, &principal).await;
                let outcome = outcome.map_err(|why| SwitchRefused::Refused(why.cause()));
                (back, outcome.map(|_| SwitchOutcome { changed }))
            }
            Err(why) => (Some(looks), Err(why)),
        };
        // Whoever asked may have gone.
        let _ = answer.send(outcome);
        back
    }

    /// Looks at all files once. No looks come back where that panicked.
    async fn look(&mut self, mut looks: Looks) -> Option<Looks> {
        let proxy = Arc::clone(&self.proxy);
        let config = self.source.as_ref().map(|source| source.path.clone());
        let rules = self.in_force.rules.clone();
        let servers = rule_files::servers(&self.in_force);
        let tokens = self.in_force.data_dir.join(TOKENS);
        let named = self.in_force.named_files.clone();
        let tls: Vec<PathBuf> = self.in_force.tls_files_of_servers().map(PathBuf::from).collect();
        let looked = tokio::task::spawn_blocking(move || {
            let files =
                config.iter().chain(&rules.files).chain(&named).chain(&tls).chain([&tokens]);
            looks.folders.follow(files.map(|file| &**file));
            identity_watch::look(&proxy.identity);
            looks.look_at_tls(&proxy);
            let other_values = looks.are_others(&named);
            let is_another =
                config.is_some_and(|config| looks.is_another(file_stamp(&config)) || other_values);
            let seen = (!is_another).then(|| looks.rules.look_again(&proxy, &rules, &servers));
            (looks, seen)
        });
        let Ok((mut looks, seen)) = looked.await else { return None };
        let again = match seen {
            None => return self.reload(looks, ReloadDoor::File, "").await.0,
            Some(RulesSeen::Known) => looks.refusals.is_due(),
            // They may be what it was refused for.
            Some(RulesSeen::Taken) => looks.refusals.is_any(),
            Some(RulesSeen::Wrong(problems)) => {
                self.rules_are_wrong(&mut looks, &problems);
                false
            }
        };
        match again || !looks.renewed.is_empty() {
            true => self.read_again(looks, ReloadDoor::File, "", RefusalTold::IfNew).await.0,
            false => Some(looks),
        }
    }

    /// Reads the config and puts it in force, or says why not. No looks come back where reading it panicked.
    async fn reload(
        &mut self,
        looks: Looks,
        door: ReloadDoor,
        principal: &str,
    ) -> (Option<Looks>, ReloadOutcome) {
        self.read_again(looks, door, principal, RefusalTold::Always).await
    }

    async fn read_again(
        &mut self,
        mut looks: Looks,
        door: ReloadDoor,
        principal: &str,
        told: RefusalTold,
    ) -> (Option<Looks>, ReloadOutcome) {
        let proxy = Arc::clone(&self.proxy);
        let looked = tokio::task::spawn_blocking(move || {
            looks.look_at_tls(&proxy);
            looks
        });
        let Ok(mut looks) = looked.await else {
            return (None, Err(record::whole("looking at the files of TLS failed")));
        };
        // It counts whatever the config says.
        let renewed = std::mem::take(&mut looks.renewed);
        self.reconnect(&renewed).await;
        let Some(source) = self.source.clone() else {
            let refused = record::whole("this proxy was not started with a config file");
            return (Some(looks), Err(refused));
        };
        let (now, snapshot) = (self.in_force.clone(), self.proxy.catalog.load());
        let named = now.named_files.clone();
        let start = Instant::now();
        let read = tokio::task::spawn_blocking(move || {
            // Before it is read: what is written meanwhile is another state.
            looks.config = file_stamp(&source.path);
            looks.named = stamps(&named);
            looks.away = None;
            let read = read(&source, &now, &mut looks.rules, |next| {
                snapshot.known_tools(&rule_files::servers(next))
            });
            (looks, read)
        });
        let Ok((mut looks, read)) = read.await else {
            return (None, Err(record::whole("the config cannot be read: reading it failed")));
        };
        let took = start.elapsed();
        let outcome = match read {
            Ok(read) => self.put(read, &renewed, door, principal).await,
            Err(refused) => Err(refused),
        };
        match &outcome {
            Ok(_) => looks.refusals = Refusals::default(),
            Err(refused) => {
                self.stands_rejected(refused.clone());
                if looks.refusals.add(refused, took) || told == RefusalTold::Always {
                    self.rejected(refused, door, principal);
                }
            }
        }
        (Some(looks), outcome)
    }

    async fn put(
        &mut self,
        read: ReadConfig,
        renewed: &[Arc<str>],
        door: ReloadDoor,
        principal: &str,
    ) -> ReloadOutcome {
        let ReadConfig { config, rules, warnings } = read;
        let mut difference = ConfigDifference::between(&self.in_force, &config);
        difference.reconnected(renewed);
        if let (RulesRead::Others(_), false) =
            (&rules, difference.applied.iter().any(|key| key == "policy"))
        {
            difference.applied.push("policy.files".to_owned());
        }
        let before = self.door.standing();
        let reloaded = Reloaded {
            unchanged: difference.applied.is_empty()
                && difference.needs_restart == before.needs_restart,
            applied: difference.applied.clone(),
            needs_restart: difference.needs_restart.clone(),
            warnings: warnings.iter().map(record::shown).collect(),
        };
        let written = self.in_force.written.changes(&config.written);
        let next = config.in_force_after(&self.in_force);
        if !difference.applied.is_empty() {
            let refused = |bad: crate::policy::host_check::BadEntry| record::whole(bad.to_string());
            self.apply(&difference, &next, rules).await.map_err(refused)?;
        }
        self.in_force = next;
        let since = if reloaded.unchanged { before.since } else { SystemTime::now() };
        self.door.stands(ConfigStanding {
            path: before.path.clone(),
            since,
            needs_restart: reloaded.needs_restart.clone(),
            rejected: None,
            shown: Arc::new(self.in_force.written.shown()),
        });
        if reloaded.unchanged {
            if before.rejected.is_some() {
                tracing::info!("the config's file is again what is in force");
            }
            return Ok(reloaded);
        }
        for warning in &reloaded.warnings {
            tracing::warn!("{}", warning.line_of_it());
        }
        tracing::info!(
            door = door.as_str(),
            applied = reloaded.applied.join(" "),
            needs_restart = reloaded.needs_restart.join(" "),
            "the config has changed, and is in force"
        );
        self.proxy.activity.note(record::applied(door, principal, &written, &reloaded));
        Ok(reloaded)
    }

    /// Files of rules that are in force are others now, and cannot be used: that is on record already.
    fn rules_are_wrong(&self, looks: &mut Looks, problems: &[RuleProblem]) {
        if self.source.is_none() {
            return;
        }
        let refused = record::wrong_rules(problems);
        looks.refusals.add(&refused, Duration::ZERO);
        let before = self.door.standing();
        // What is wrong with the config itself is read, and mended, first.
        if before.rejected.as_ref().is_none_or(|(_, known)| record::is_of_rules(known)) {
            self.stands_rejected(refused);
        }
    }

    /// What is in force stays, and that is logged and on record.
    fn rejected(&self, refused: &ReloadRefused, door: ReloadDoor, principal: &str) {
        for problem in refused.problems.iter().take(MAX_LOGGED) {
            let line = problem.line_of_it();
            match problem.severity {
                "error" => tracing::error!("{line}; the config in force stays"),
                _ => tracing::warn!("{line}"),
            }
        }
        self.proxy.activity.note(record::rejected(door, principal, refused));
    }

    /// The config in force is not that of its files, for this reason: that is told wherever somebody may look.
    fn stands_rejected(&self, refused: ReloadRefused) {
        let before = self.door.standing();
        let since = match &before.rejected {
            Some((since, known)) if *known == refused => *since,
            Some(_) | None => SystemTime::now(),
        };
        let rejected = Some((since, refused));
        self.door.stands(ConfigStanding { rejected, ..ConfigStanding::clone(&before) });
    }
}

/// Why settings of a node are not changed where they would say nothing.
const FLEET: &str =
    "this node runs the config of its fleet: change that with `mcpproxy fleet apply`";
/// The file of agent tokens in the data folder.
const TOKENS: &str = "tokens.json";

impl Looks {
    /// Takes up what the files of each server's TLS say now.
    fn look_at_tls(&mut self, proxy: &Proxy) {
        self.renewed.extend(proxy.upstreams.look_at_tls(Instant::now(), SystemTime::now()));
    }

    /// Whether the config's file, which is now so, is to be read. One that is away is left some time to come back.
    fn is_another(&mut self, now: Option<FileStamp>) -> bool {
        if now == self.config {
            self.away = None;
            return false;
        }
        now.is_some() || self.away.get_or_insert_with(Instant::now).elapsed() >= MAY_BE_AWAY
    }
}

impl Looks {
    /// Whether one of the files that hold values is not as it was before they were read; so is one that was not known
    /// then. One that is away is about to come back: what it held counts until then.
    fn are_others(&self, named: &[PathBuf]) -> bool {
        let is_other = |(file, stamp): (&PathBuf, &Option<FileStamp>)| {
            self.named.get(file).is_none_or(|before| stamp.is_some() && before != stamp)
        };
        stamps(named).iter().any(is_other)
    }
}

fn stamps(files: &[PathBuf]) -> BTreeMap<PathBuf, Option<FileStamp>> {
    files.iter().map(|file| (file.clone(), file_stamp(file))).collect()
}

/// Reads the file and checks all of it. Blocks.
fn read(
    source: &ConfigSource,
    now: &Config,
    rules: &mut RuleWatch,
    known: impl Fn(&Config) -> crate::policy::rules::KnownTools,
) -> Result<ReadConfig, ReloadRefused> {
    let (config, warnings) = read_config(source, now)?;
    let rules = rules
        .read(&now.rules, &config.rules, &known(&config))
        .map_err(|problems| record::wrong_rules(&problems))?;
    Ok(ReadConfig { config, rules, warnings })
}

/// The same without the rules.
fn read_config(
    source: &ConfigSource,
    now: &Config,
) -> Result<(Config, Vec<Problem>), ReloadRefused> {
    let env = |name: &str| std::env::var(name).ok();
    let loaded = load_again(&source.path, &env, &source.flags).map_err(|problems| {
        ReloadRefused { problems: problems.iter().map(record::shown).collect() }
    })?;
    let mut config = loaded.config;
    if config.api_key.is_none() {
        config.api_key.clone_from(&now.api_key);
    }
    Ok((config, loaded.warnings))
}
