//! Config reload on a changed file, on SIGHUP and on request; changes are applied without a restart.
//!
//! ```text
//! files ──┐
//! signal ─┼─▶ one task ─▶ read and validated ─┬─ difference ─▶ apply ─▶ record, log, status, result
//! REST ───┘                                   └─ any error ─▶ nothing changes ─▶ record, log, status, result
//! ```
//!
//! One task owns the config in force, so changes are applied one after another. The task also watches the files of rules and agent tokens.
//! Environment and flags are those of the start and take precedence over the file. If a file has no API key, the key in force is kept.
//!
//! The settings of the call path are one value that is swapped first, so a new server or tool is subject to the new rules from its first
//! call. Then the catalog is reconfigured, and finally the servers are replaced. Calls in flight keep their settings and server.
//!
//! A rejected config is retried until it or another one is in force, because the reason may disappear without a change of the config file:
//! it may be in a rules file, or in a file that holds a value. Each reason is logged and recorded once.

mod file_watch;
mod proposal;
mod record;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};

use self::file_watch::{RuleWatch, RulesRead, RulesSeen, WatchedFolders};
use super::otlp_export::OtlpTargets;
use super::{audit_records, identity_watch};
use mcpproxy_admin::api::config_handle::{
    ConfigCommand, ConfigComparison, ConfigHandle, ConfigStanding, ReloadCommand, ReloadOutcome,
    ReloadRefused, ReloadTrigger, Reloaded,
};
use mcpproxy_catalog::Notice;
use mcpproxy_config::difference::{ConfigDifference, ServerEffect};
use mcpproxy_config::file::load_again;
use mcpproxy_config::problem::Problem;
use mcpproxy_config::{Config, Flags, rule_files};
use mcpproxy_gateway::proxy::Proxy;
use mcpproxy_gateway::proxy::settings::Settings;
use mcpproxy_gateway::telemetry::LogFilter;
use mcpproxy_policy as policy;
use mcpproxy_policy::approvals::Webhook;
use mcpproxy_policy::host_check::BadEntry;
use mcpproxy_policy::identity::{FileStamp, file_stamp};
use mcpproxy_policy::intent::Requirement;
use mcpproxy_policy::rules::RuleProblem;
use mcpproxy_upstream::supervisor::ServerPlan;

/// Grace period before a missing file is reported, since it may be missing only while it is being replaced.
const MISSING_GRACE: Duration = Duration::from_secs(2);
/// Maximum number of logged problems of a config.
const MAX_LOGGED: usize = 20;

#[derive(Clone, Debug)]
pub struct ConfigSource {
    /// Path of the file, which need not exist.
    pub path: PathBuf,
    /// Command-line flags.
    pub flags: Flags,
}

/// State of the config task.
pub(super) struct Reload {
    pub(super) proxy: Arc<Proxy>,
    pub(super) handle: ConfigHandle,
    pub(super) commands: mpsc::Receiver<ConfigCommand>,
    /// `None` if the config is never reloaded.
    pub(super) source: Option<ConfigSource>,
    pub(super) in_force: Config,
    /// Settings of the webhook task.
    pub(super) webhook: watch::Sender<Option<Webhook>>,
    /// Targets of the export tasks.
    pub(super) otlp: OtlpTargets,
    pub(super) log: LogFilter,
}

/// Last seen state of all watched files. Owned by the blocking threads that check them.
struct WatchState {
    folders: WatchedFolders,
    rules: RuleWatch,
    /// Stamp of the config file that was last read.
    config: Option<FileStamp>,
    /// Stamps of files that hold values of the config, taken before the last read.
    named: BTreeMap<PathBuf, Option<FileStamp>>,
    /// Time since which the config file has been missing.
    missing_since: Option<Instant>,
    refusals: Refusals,
    /// Servers whose TLS files changed and that have not been reconnected yet.
    renewed: Vec<Arc<str>>,
}

/// A valid config.
struct ReadConfig {
    config: Config,
    rules: RulesRead,
    warnings: Vec<Problem>,
}

impl Reload {
    /// Processes commands and file changes until aborted.
    pub(super) async fn run(mut self) {
        let (changed, folders) = WatchedFolders::new();
        let path = self.source.as_ref().map(|source| source.path.clone());
        let mut watch_state = WatchState {
            folders,
            rules: RuleWatch::new(&self.in_force.rules),
            config: path.as_deref().and_then(file_stamp),
            named: BTreeMap::new(),
            missing_since: None,
            refusals: Refusals::default(),
            renewed: Vec::new(),
        };
        loop {
            let command = tokio::select! {
                Some(command) = self.commands.recv() => Some(command),
                () = changed.wait() => None,
            };
            let back = match command {
                Some(ConfigCommand::Compare(answer)) => {
                    // The client may have disconnected.
                    let _ = answer.send(self.compare(&watch_state).await);
                    Some(watch_state)
                }
                Some(ConfigCommand::Switch(command)) => self.switch(watch_state, command).await,
                Some(ConfigCommand::Settings(answer)) => {
                    let _ = answer.send(self.settings().await);
                    Some(watch_state)
                }
                Some(ConfigCommand::Preview(change, answer)) => {
                    let _ = answer.send(self.preview(&watch_state, change).await);
                    Some(watch_state)
                }
                Some(ConfigCommand::Change(command)) => self.change(watch_state, command).await,
                Some(ConfigCommand::Reload(command)) => {
                    let ReloadCommand { trigger, principal, answer } = command;
                    let (back, outcome) = self.reload(watch_state, trigger, &principal).await;
                    if let Some(answer) = answer {
                        // The client may have disconnected.
                        let _ = answer.send(outcome);
                    }
                    back
                }
                None => self.check_files(watch_state).await,
            };
            let Some(back) = back else {
                tracing::error!("config reload is disabled: the reload task panicked");
                return;
            };
            self.set_rule_warnings(back.rules.warnings());
            watch_state = back;
        }
    }

    /// Reports what a reload would change.
    async fn compare(&self, watch_state: &WatchState) -> ConfigComparison {
        let failed = |refused: ReloadRefused| ConfigComparison {
            problems: refused.problems,
            ..ConfigComparison::default()
        };
        let Some(source) = self.source.clone() else {
            return failed(record::whole("this proxy was not started with a config file"));
        };
        let (now, check) = (self.in_force.clone(), self.rule_check(watch_state));
        let compared = tokio::task::spawn_blocking(move || {
            let read = read_config(&source, &now);
            match read.and_then(|read| Ok((check.check(&now, &read.0)?, read))) {
                Ok((of_rules, (config, mut warnings))) => {
                    warnings.extend(of_rules);
                    record::compared(&now, &config, &warnings)
                }
                Err(refused) => failed(refused),
            }
        });
        compared
            .await
            .unwrap_or_else(|_| failed(record::whole("reading the config failed unexpectedly")))
    }

    /// Checks all files once. Returns `None` if the check panicked.
    async fn check_files(&mut self, mut watch_state: WatchState) -> Option<WatchState> {
        let proxy = Arc::clone(&self.proxy);
        let config = self.source.as_ref().map(|source| source.path.clone());
        let rules = self.in_force.rules.clone();
        let servers = rule_files::servers(&self.in_force);
        let tokens = self.in_force.data_dir.join(TOKENS);
        let named = self.in_force.named_files.clone();
        let tls: Vec<PathBuf> = self.in_force.tls_files_of_servers().map(PathBuf::from).collect();
        let checked = tokio::task::spawn_blocking(move || {
            let files =
                config.iter().chain(&rules.files).chain(&named).chain(&tls).chain([&tokens]);
            watch_state.folders.follow(files.map(|file| &**file));
            identity_watch::reload_tokens(&proxy.identity);
            watch_state.check_tls(&proxy);
            let values_changed = watch_state.values_changed(&named);
            let config_changed = config.is_some_and(|config| {
                watch_state.config_changed(file_stamp(&config)) || values_changed
            });
            let seen =
                (!config_changed).then(|| watch_state.rules.look_again(&proxy, &rules, &servers));
            (watch_state, seen)
        });
        let Ok((mut watch_state, seen)) = checked.await else { return None };
        let again = match seen {
            None => return self.reload(watch_state, ReloadTrigger::File, "").await.0,
            Some(RulesSeen::Unchanged) => watch_state.refusals.is_due(),
            // The rules may have been the reason for the rejection.
            Some(RulesSeen::Replaced) => watch_state.refusals.is_any(),
            Some(RulesSeen::Invalid(problems)) => {
                self.reject_rules(&mut watch_state, &problems);
                false
            }
        };
        match again || !watch_state.renewed.is_empty() {
            true => {
                self.read_again(watch_state, ReloadTrigger::File, "", RefusalReport::IfNew).await.0
            }
            false => Some(watch_state),
        }
    }

    /// Reads the config and applies it, or reports why it cannot be applied. Returns no state if this panicked.
    async fn reload(
        &mut self,
        watch_state: WatchState,
        trigger: ReloadTrigger,
        principal: &str,
    ) -> (Option<WatchState>, ReloadOutcome) {
        self.read_again(watch_state, trigger, principal, RefusalReport::Always).await
    }

    async fn read_again(
        &mut self,
        mut watch_state: WatchState,
        trigger: ReloadTrigger,
        principal: &str,
        report: RefusalReport,
    ) -> (Option<WatchState>, ReloadOutcome) {
        let proxy = Arc::clone(&self.proxy);
        let checked = tokio::task::spawn_blocking(move || {
            watch_state.check_tls(&proxy);
            watch_state
        });
        let Ok(mut watch_state) = checked.await else {
            return (None, Err(record::whole("checking the TLS files failed unexpectedly")));
        };
        // Done independently of the config.
        let renewed = std::mem::take(&mut watch_state.renewed);
        self.reconnect(&renewed).await;
        let Some(source) = self.source.clone() else {
            let refused = record::whole("this proxy was not started with a config file");
            return (Some(watch_state), Err(refused));
        };
        let (now, snapshot) = (self.in_force.clone(), self.proxy.catalog.load());
        let named = now.named_files.clone();
        let start = Instant::now();
        let read = tokio::task::spawn_blocking(move || {
            // Taken before the read, so that a concurrent write is detected.
            watch_state.config = file_stamp(&source.path);
            watch_state.named = stamps(&named);
            watch_state.missing_since = None;
            let read = read(&source, &now, &mut watch_state.rules, |next| {
                snapshot.known_tools(&rule_files::servers(next))
            });
            (watch_state, read)
        });
        let Ok((mut watch_state, read)) = read.await else {
            return (None, Err(record::whole("reading the config failed unexpectedly")));
        };
        let took = start.elapsed();
        let outcome = match read {
            Ok(read) => self.put(read, &renewed, trigger, principal).await,
            Err(refused) => Err(refused),
        };
        match &outcome {
            Ok(_) => watch_state.refusals = Refusals::default(),
            Err(refused) => {
                self.set_rejected(refused.clone());
                if watch_state.refusals.add(refused, took) || report == RefusalReport::Always {
                    self.rejected(refused, trigger, principal);
                }
            }
        }
        (Some(watch_state), outcome)
    }

    async fn put(
        &mut self,
        read: ReadConfig,
        renewed: &[Arc<str>],
        trigger: ReloadTrigger,
        principal: &str,
    ) -> ReloadOutcome {
        let ReadConfig { config, rules, warnings } = read;
        let mut difference = ConfigDifference::between(&self.in_force, &config);
        difference.reconnected(renewed);
        if let (RulesRead::Changed(_), false) =
            (&rules, difference.applied.iter().any(|key| key == "policy"))
        {
            difference.applied.push("policy.files".to_owned());
        }
        let before = self.handle.standing();
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
            let refused =
                |bad: mcpproxy_policy::host_check::BadEntry| record::whole(bad.to_string());
            self.apply(&difference, &next, rules).await.map_err(refused)?;
        }
        self.in_force = next;
        let since = if reloaded.unchanged { before.since } else { SystemTime::now() };
        self.handle.set_standing(ConfigStanding {
            path: before.path.clone(),
            since,
            needs_restart: reloaded.needs_restart.clone(),
            rejected: None,
            shown: Arc::new(self.in_force.written.shown()),
            rule_warnings: before.rule_warnings.clone(),
        });
        if reloaded.unchanged {
            if before.rejected.is_some() {
                tracing::info!("the config file matches the config in force again");
            }
            return Ok(reloaded);
        }
        for warning in &reloaded.warnings {
            tracing::warn!("{}", warning.line());
        }
        tracing::info!(
            trigger = trigger.as_str(),
            applied = reloaded.applied.join(" "),
            needs_restart = reloaded.needs_restart.join(" "),
            "config reloaded"
        );
        self.proxy.activity.note(record::applied(trigger, principal, &written, &reloaded));
        Ok(reloaded)
    }

    /// Marks the config as rejected because changed rules files are invalid, which has already been recorded.
    fn reject_rules(&self, watch_state: &mut WatchState, problems: &[RuleProblem]) {
        if self.source.is_none() {
            return;
        }
        let refused = record::wrong_rules(problems);
        watch_state.refusals.add(&refused, Duration::ZERO);
        let before = self.handle.standing();
        // An error in the config itself takes precedence.
        if before.rejected.as_ref().is_none_or(|(_, known)| record::is_of_rules(known)) {
            self.set_rejected(refused);
        }
    }

    /// Logs and records a rejected config.
    fn rejected(&self, refused: &ReloadRefused, trigger: ReloadTrigger, principal: &str) {
        for problem in refused.problems.iter().take(MAX_LOGGED) {
            let line = problem.line();
            match problem.severity {
                "error" => tracing::error!("{line}; the previous config stays in force"),
                _ => tracing::warn!("{line}"),
            }
        }
        self.proxy.activity.note(record::rejected(trigger, principal, refused));
    }

    /// Stores the warnings of the rules in force in the status.
    fn set_rule_warnings(&self, warnings: &[RuleProblem]) {
        let before = self.handle.standing();
        let rule_warnings: Vec<_> = warnings.iter().map(record::shown_rule).collect();
        if before.rule_warnings != rule_warnings {
            let before = ConfigStanding::clone(&before);
            self.handle.set_standing(ConfigStanding { rule_warnings, ..before });
        }
    }

    /// Stores the reason why the config files are not in force in the status.
    fn set_rejected(&self, refused: ReloadRefused) {
        let before = self.handle.standing();
        let since = match &before.rejected {
            Some((since, known)) if *known == refused => *since,
            Some(_) | None => SystemTime::now(),
        };
        let rejected = Some((since, refused));
        self.handle.set_standing(ConfigStanding { rejected, ..ConfigStanding::clone(&before) });
    }
}

/// Name of the agent token file in the data folder.
const TOKENS: &str = "tokens.json";

impl WatchState {
    /// Checks the TLS files of all servers.
    fn check_tls(&mut self, proxy: &Proxy) {
        self.renewed.extend(proxy.upstreams.reload_tls(Instant::now(), SystemTime::now()));
    }

    /// Whether the config file, which now has this stamp, must be read. A missing file is given some time to reappear.
    fn config_changed(&mut self, now: Option<FileStamp>) -> bool {
        if now == self.config {
            self.missing_since = None;
            return false;
        }
        now.is_some()
            || self.missing_since.get_or_insert_with(Instant::now).elapsed() >= MISSING_GRACE
    }
}

impl WatchState {
    /// Whether a file that holds values changed or is new. A missing file keeps its previous value.
    fn values_changed(&self, named: &[PathBuf]) -> bool {
        let has_changed = |(file, stamp): (&PathBuf, &Option<FileStamp>)| {
            self.named.get(file).is_none_or(|before| stamp.is_some() && before != stamp)
        };
        stamps(named).iter().any(has_changed)
    }
}

fn stamps(files: &[PathBuf]) -> BTreeMap<PathBuf, Option<FileStamp>> {
    files.iter().map(|file| (file.clone(), file_stamp(file))).collect()
}

/// Reads and validates the config, including its rules. Blocks.
fn read(
    source: &ConfigSource,
    now: &Config,
    rules: &mut RuleWatch,
    known: impl Fn(&Config) -> mcpproxy_policy::rules::KnownTools,
) -> Result<ReadConfig, ReloadRefused> {
    let (config, mut warnings) = read_config(source, now)?;
    let (rules, of_rules) = rules
        .read(&now.rules, &config.rules, &known(&config))
        .map_err(|problems| record::wrong_rules(&problems))?;
    warnings.extend(of_rules.iter().map(rule_files::problem));
    Ok(ReadConfig { config, rules, warnings })
}

/// Reads and validates the config without its rules.
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

/// Settings that the list of built-in tools depends on.
fn own_tools(settings: &Settings) -> (Requirement, usize, bool) {
    (settings.policy.intent.operation_type, settings.tools_limit, settings.kept_results.is_some())
}

impl Reload {
    /// Applies `next`.
    async fn apply(
        &self,
        difference: &ConfigDifference,
        next: &Config,
        rules: RulesRead,
    ) -> Result<(), BadEntry> {
        let (proxy, now) = (&self.proxy, &self.in_force);
        // Tokens of a new issuer are accepted immediately.
        let source = next.jwt.as_ref().map(|jwt| &jwt.keys);
        let keys = match source.filter(|_| now.jwt.as_ref().map(|jwt| &jwt.keys) != source) {
            Some(source) => identity_watch::first_keys(source).await,
            None => None,
        };
        // Reads files that hold values of the config.
        tokio::task::block_in_place(|| self.swap_settings(next, rules))?;
        if next.jwt != now.jwt {
            proxy.identity.set_jwt(next.jwt.as_ref(), keys.as_ref());
        }
        if next.catalog() != now.catalog() {
            self.reconfigure(next).await;
        }
        let same = |(_, effect): &(Arc<str>, ServerEffect)| *effect == ServerEffect::Unchanged;
        if !difference.removed.is_empty() || !difference.servers.iter().all(same) {
            self.replace_servers(difference, next).await;
        }
        self.webhook.send_if_modified(|webhook| {
            let is_another = *webhook != next.approval.webhook;
            webhook.clone_from(&next.approval.webhook);
            is_another
        });
        self.otlp.change(&next.telemetry);
        proxy.meaning.change(next.search.embeddings.as_ref());
        if next.activity.retention() != now.activity.retention() {
            proxy.activity.set_retention(next.activity.retention());
        }
        if next.logging.level != now.logging.level {
            self.log.set(next.logging.level.as_str());
        }
        Ok(())
    }

    /// Swaps the settings of the call path.
    fn swap_settings(&self, next: &Config, rules: RulesRead) -> Result<(), BadEntry> {
        let proxy = &self.proxy;
        let before = proxy.settings.reader().current();
        let settings = next.settings_after(&before)?;
        let rules = match rules {
            RulesRead::Same => before.policy.rules.clone(),
            RulesRead::Changed(rules) => rules,
        };
        proxy.upstreams.keep_secret(next.secrets());
        proxy.upstreams.withhold(next.withheld_variables());
        let policy = policy::Settings { rules, ..settings.policy };
        let settings = Settings { policy, ..settings };
        let own_tools_changed = own_tools(&before) != own_tools(&settings);
        proxy.settings.replace(settings);
        // Ends streams that were opened with another API key.
        proxy.identity.announce_change();
        if own_tools_changed {
            proxy.catalog.notify(Notice::OwnTools);
        }
        Ok(())
    }

    /// Applies changed catalog settings.
    async fn reconfigure(&self, next: &Config) {
        let (catalog, settings) = (Arc::clone(&self.proxy.catalog), next.catalog());
        let done = tokio::task::spawn_blocking(move || catalog.reconfigure(settings)).await;
        let Ok(done) = done else {
            tracing::error!("applying the new catalog settings failed unexpectedly");
            return;
        };
        for (server, change) in done.known {
            let entries = audit_records::catalog_changes(&server, &change);
            audit_records::put(&self.proxy.activity, entries);
        }
        for server in done.ask_again {
            if let Some(upstream) = self.proxy.upstreams.get(&server) {
                upstream.refresh_tools();
            }
        }
    }

    /// Reconnects servers with their current TLS files; calls in flight finish on their connections.
    async fn reconnect(&self, servers: &[Arc<str>]) {
        if servers.is_empty() {
            return;
        }
        let effect = |name: &Arc<str>| match servers.contains(name) {
            true => ServerEffect::Replaced,
            false => ServerEffect::Unchanged,
        };
        let all = self.in_force.servers.iter();
        let servers = all.map(|server| (Arc::clone(&server.name), effect(&server.name))).collect();
        let difference = ConfigDifference { servers, ..ConfigDifference::default() };
        self.replace_servers(&difference, &self.in_force).await;
    }

    async fn replace_servers(&self, difference: &ConfigDifference, next: &Config) {
        let effects: BTreeMap<&str, ServerEffect> =
            difference.servers.iter().map(|(name, effect)| (&**name, *effect)).collect();
        let plan = next.servers.iter().map(|server| {
            let plan = match effects.get(&*server.name) {
                Some(ServerEffect::Unchanged | ServerEffect::Retuned) => {
                    ServerPlan::Stays(server.upstream.call_timeout)
                }
                Some(ServerEffect::Replaced | ServerEffect::Added) | None => {
                    let mut upstream = server.upstream.clone();
                    upstream.data_dir = Some(next.data_dir.clone());
                    ServerPlan::Starts(Box::new(upstream))
                }
            };
            (Arc::clone(&server.name), plan)
        });
        let replaced = self.proxy.upstreams.replace(plan.collect()).await;
        for upstream in &replaced.started {
            self.proxy.log_routing.listen(upstream);
        }
        for upstream in replaced.started.iter().chain(&replaced.retired) {
            self.proxy.list_cache.forget(upstream.name());
        }
        // Kept for a server that was restarted under the same name, because its messages may still concern earlier calls.
        for upstream in &replaced.retired {
            if self.proxy.upstreams.get(upstream.name()).is_none() {
                self.proxy.log_routing.forget(upstream.name());
                self.proxy.known_tasks.forget(upstream.name());
            }
        }
    }
}

/// Retry interval of a rejected config, or [`RETRY_SHARE`] times the duration of the read if that is longer.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Inverse of the maximum fraction of time that retries take.
const RETRY_SHARE: u32 = 10;
/// Maximum number of remembered reasons: a flaky source may alternate between two.
const MAX_REASONS: usize = 8;

/// Selects the rejections that are logged and recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalReport {
    Always,
    /// Only rejections with a new reason.
    IfNew,
}

/// Rejections since a config was last applied.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Time of the next retry; `None` without a rejection.
    retry_at: Option<Instant>,
    /// The newest distinct reasons, at most [`MAX_REASONS`].
    reasons: Vec<ReloadRefused>,
}

impl Refusals {
    /// Whether a config was rejected and none has been applied since.
    pub(super) fn is_any(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Whether a retry is due.
    pub(super) fn is_due(&self) -> bool {
        self.retry_at.is_some_and(|at| at <= Instant::now())
    }

    /// Adds a rejection after a read of this duration; returns true if the reason is new.
    pub(super) fn add(&mut self, refused: &ReloadRefused, took: Duration) -> bool {
        let after = RETRY_INTERVAL.max(took.saturating_mul(RETRY_SHARE));
        self.retry_at = Some(Instant::now() + after);
        if self.reasons.contains(refused) {
            return false;
        }
        if self.reasons.len() >= MAX_REASONS {
            self.reasons.remove(0);
        }
        self.reasons.push(refused.clone());
        true
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn each_reason_is_new_once_and_the_newest_are_remembered() {
        let mut refusals = Refusals::default();
        assert!(!refusals.is_any() && !refusals.is_due());
        let reason = |at: usize| record::whole(format!("reason {at}"));
        // Two alternating reasons, for example from a keyring that does not answer.
        for (at, is_new) in [(0, true), (1, true), (0, false), (1, false), (0, false)] {
            assert_eq!(refusals.add(&reason(at), Duration::ZERO), is_new, "{at}");
        }
        assert!(refusals.is_any());
        for at in 2..100 {
            assert!(refusals.add(&reason(at), Duration::ZERO), "{at}");
        }
        assert_eq!(refusals.reasons.len(), MAX_REASONS);
        assert!(!refusals.add(&reason(99), Duration::ZERO));
    }

    #[test]
    fn slow_reads_are_retried_less_often() {
        let mut refusals = Refusals::default();
        let soon = Instant::now() + RETRY_INTERVAL;
        refusals.add(&record::whole("slow"), Duration::from_secs(60));
        assert!(refusals.retry_at.unwrap() >= soon + Duration::from_secs(598));
        refusals.add(&record::whole("slow"), Duration::ZERO);
        assert!(refusals.retry_at.unwrap() < soon + Duration::from_secs(598));
    }
}
