//! Changes of the config file by REST: previews, edited settings, and enabling or disabling a server.
//!
//! `config::patch` decides which settings are shown and can be changed. A proposed file is validated completely, including rules, before it
//! is written, and then applied like any other change of the file.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{ConfigSource, Reload, WatchState, record};
use mcpproxy_admin::api::config_handle::{
    ChangeCommand, ChangeRefused, ConfigComparison, ConfigEdit, FileSettings, ReloadRefused,
    ReloadTrigger, SettingsChange, ShownProblem, SwitchCommand, SwitchOutcome, SwitchRefused,
};
use mcpproxy_catalog::Snapshot;
use mcpproxy_config::edit::{EditRefused, EditedJson};
use mcpproxy_config::edit_servers::{
    NotAdded, NotSwitched, Servers, switch_server, with_new_servers,
};
use mcpproxy_config::patch::PatchRefused;
use mcpproxy_config::problem::{Problem, Severity};
use mcpproxy_config::{Config, Flags, file, patch, rule_files};

/// Error for changes of a node's settings that would have no effect.
const FLEET: &str =
    "this node runs the config of its fleet: change that with `mcpproxy fleet apply`";

/// A proposed config file.
struct Proposed {
    text: String,
    config: Config,
    warnings: Vec<Problem>,
}

impl Reload {
    /// Checker for the rules of another config.
    pub(super) fn rule_check(&self, watch_state: &WatchState) -> RuleCheck {
        let in_force =
            tokio::task::block_in_place(|| watch_state.rules.are_in_force(&self.in_force.rules));
        RuleCheck::new(in_force, self.proxy.catalog.load())
    }

    /// Enables or disables a server in the file, and reloads it. Returns `None` if this panicked.
    pub(super) async fn switch(
        &mut self,
        watch_state: WatchState,
        command: SwitchCommand,
    ) -> Option<WatchState> {
        let SwitchCommand { server, enable, principal, answer } = command;
        let refused = |why: &str| SwitchRefused::Refused(why.to_owned());
        let Some(source) = self.source.clone() else {
            let _ = answer.send(Err(refused("this proxy was not started with a config file")));
            return Some(watch_state);
        };
        if self.in_force.fleet_config.is_some() {
            let _ = answer.send(Err(refused(FLEET)));
            return Some(watch_state);
        }
        let (now, rules) = (self.in_force.clone(), self.rule_check(&watch_state));
        let written = tokio::task::spawn_blocking(move || {
            switch_server(&source.path, &server, enable, |text| {
                let usable = usable(text, (&source.path, &source.flags), &now, &rules);
                usable.map(drop).map_err(|refused| refused.cause())
            })
        });
        let written = match written.await {
            Ok(Ok(changed)) => Ok(changed),
            Ok(Err(NotSwitched::Unknown)) => Err(SwitchRefused::Unknown),
            Ok(Err(NotSwitched::Refused(why))) => Err(SwitchRefused::Refused(why)),
            Err(_) => Err(refused("changing the file failed unexpectedly")),
        };
        let (back, outcome) = match written {
            Ok(changed) => {
                let (back, outcome) =
                    self.reload(watch_state, ReloadTrigger::Api, &principal).await;
                let outcome = outcome.map_err(|why| SwitchRefused::Refused(why.cause()));
                (back, outcome.map(|_| SwitchOutcome { changed }))
            }
            Err(why) => (Some(watch_state), Err(why)),
        };
        // The client may have disconnected.
        let _ = answer.send(outcome);
        back
    }

    /// Returns the settings in the file, without secrets.
    pub(super) async fn settings(&self) -> Result<FileSettings, ReloadRefused> {
        let source = self.source.clone().ok_or_else(no_file)?;
        blocking(move || {
            let text = file::text(&source.path).map_err(|problem| of_file(&problem))?;
            let settings = patch::settings(&text).map_err(|why| of_patch(&why, &source.path))?;
            Ok(FileSettings { digest: patch::digest(&text), settings, patchable: patch::PATCHABLE })
        })
        .await?
    }

    /// Reports the effect of changed settings.
    pub(super) async fn preview(
        &self,
        watch_state: &WatchState,
        change: SettingsChange,
    ) -> Result<ConfigComparison, ChangeRefused> {
        let source = self.source.clone().ok_or_else(no_file).map_err(ChangeRefused::Unusable)?;
        let (now, rules) = (self.in_force.clone(), self.rule_check(watch_state));
        let compared = blocking(move || {
            let text = file::text(&source.path);
            let text = text.map_err(|problem| ChangeRefused::Unusable(of_file(&problem)))?;
            let edit = ConfigEdit::Settings(change);
            let next = propose(&text, &edit, &source, &now, &rules)?;
            Ok(record::compared(&now, &next.config, &next.warnings))
        });
        compared.await.map_err(ChangeRefused::Unusable)?
    }

    /// Edits the file, and reloads it. Returns `None` if this panicked.
    pub(super) async fn change(
        &mut self,
        watch_state: WatchState,
        command: ChangeCommand,
    ) -> Option<WatchState> {
        let ChangeCommand { edit, principal, answer } = command;
        let (back, outcome) = match self.write(&watch_state, edit).await {
            Ok(()) => {
                let (back, outcome) =
                    self.reload(watch_state, ReloadTrigger::Api, &principal).await;
                (back, outcome.map_err(ChangeRefused::Unusable))
            }
            Err(refused) => (Some(watch_state), Err(refused)),
        };
        // The client may have disconnected.
        let _ = answer.send(outcome);
        back
    }

    async fn write(&self, watch_state: &WatchState, edit: ConfigEdit) -> Result<(), ChangeRefused> {
        if self.in_force.fleet_config.is_some() {
            return Err(ChangeRefused::Unusable(record::whole(FLEET)));
        }
        let source = self.source.clone().ok_or_else(no_file).map_err(ChangeRefused::Unusable)?;
        let (now, rules) = (self.in_force.clone(), self.rule_check(watch_state));
        let written = blocking(move || {
            let mut refused = None;
            let edited = file::edit(&source.path, |text| {
                match propose(text, &edit, &source, &now, &rules) {
                    Ok(next) => Ok((Some(next.text), ())),
                    Err(why) => {
                        refused = Some(why);
                        Err("refused")
                    }
                }
            });
            match (edited, refused) {
                (Ok(()), _) => Ok(()),
                (Err(_), Some(why)) => Err(why),
                (Err(problem), None) => Err(ChangeRefused::Unusable(of_file(&problem))),
            }
        });
        written.await.map_err(ChangeRefused::Unusable)?
    }
}

/// Applies an edit to the text of the file and validates the result. Blocks.
fn propose(
    text: &str,
    edit: &ConfigEdit,
    source: &ConfigSource,
    now: &Config,
    rules: &RuleCheck,
) -> Result<Proposed, ChangeRefused> {
    let text = match edit {
        ConfigEdit::Settings(change) if patch::digest(text) != change.digest => {
            return Err(ChangeRefused::Stale);
        }
        ConfigEdit::Settings(change) => {
            patch::patched(text, &change.patch).map_err(|why| of_patch(&why, &source.path))
        }
        ConfigEdit::Servers(new) => with_new_servers(text, &new.servers)
            .map_err(|why| of_servers(why, &source.path))
            .and_then(|text| usable_servers(&new.servers).map(|()| text)),
        ConfigEdit::RemoveServer(name) => {
            match EditedJson::new(text).and_then(|file| Servers(&file).without(name)) {
                Ok(Some(next)) => Ok(next.text().to_owned()),
                Ok(None) => return Err(ChangeRefused::UnknownServer(name.clone())),
                Err(why) => Err(of_patch(&PatchRefused::Edit(why), &source.path)),
            }
        }
    }
    .map_err(ChangeRefused::Unusable)?;
    let (config, warnings) = usable(&text, (&source.path, &source.flags), now, rules)
        .map_err(ChangeRefused::Unusable)?;
    Ok(Proposed { text, config, warnings })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReloadRefused> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| record::whole("reading or changing the config failed unexpectedly"))
}

fn no_file() -> ReloadRefused {
    record::whole("this proxy was not started with a config file")
}

fn of_file(problem: &Problem) -> ReloadRefused {
    ReloadRefused { problems: vec![record::shown(problem)] }
}

fn of_patch(why: &PatchRefused, file: &Path) -> ReloadRefused {
    let key = match why {
        PatchRefused::NotPatchable(path)
        | PatchRefused::NoServer(path)
        | PatchRefused::Edit(EditRefused::NoObject(path) | EditRefused::Unsure(path)) => {
            path.to_string()
        }
        PatchRefused::Edit(EditRefused::Unreadable(problem)) => {
            let shown =
                ShownProblem { file: Some(file.display().to_string()), ..record::shown(problem) };
            return ReloadRefused { problems: vec![shown] };
        }
        PatchRefused::TooMany | PatchRefused::TooDeep => String::new(),
    };
    let mut refused = record::whole(why.to_string());
    refused.problems.iter_mut().for_each(|problem| problem.key.clone_from(&key));
    refused
}

/// Refuses new servers that cannot run. The config may contain such servers, which do not stop the others.
fn usable_servers(new: &Map<String, Value>) -> Result<(), ReloadRefused> {
    let env = |name: &str| std::env::var(name).ok();
    let problems = new.iter().flat_map(|(name, entry)| {
        let problems = file::problems_of_new_server(name, entry, &env).into_iter();
        problems.filter(|it| it.severity == Severity::Error).map(|problem| record::shown(&problem))
    });
    let problems: Vec<_> =
        problems.map(|problem| ShownProblem { line: None, column: None, ..problem }).collect();
    if problems.is_empty() { Ok(()) } else { Err(ReloadRefused { problems }) }
}

fn of_servers(why: NotAdded, file: &Path) -> ReloadRefused {
    let mut refused = record::whole(why.to_string());
    let key = why.at().to_string();
    if let NotAdded::Edit(why) = why {
        return of_patch(&PatchRefused::Edit(why), file);
    }
    refused.problems.iter_mut().for_each(|problem| problem.key.clone_from(&key));
    refused
}

/// Checker for the rules of a config that is not in force.
pub(super) struct RuleCheck {
    /// Whether the rules files are unchanged since they were put in force.
    in_force: bool,
    snapshot: Arc<Snapshot>,
}

impl RuleCheck {
    pub(super) fn new(in_force: bool, snapshot: Arc<Snapshot>) -> Self {
        Self { in_force, snapshot }
    }

    /// Validates the rules of `next`, and returns their warnings. Rules in force are not checked again, even if tools that they
    /// name have changed. Blocks.
    pub(super) fn check(&self, now: &Config, next: &Config) -> Result<Vec<Problem>, ReloadRefused> {
        if self.in_force && next.rules == now.rules {
            return Ok(Vec::new());
        }
        let known = self.snapshot.known_tools(&rule_files::servers(next));
        let loaded = rule_files::load(&next.rules, &known);
        let loaded = loaded.map_err(|problems| record::wrong_rules(&problems))?;
        Ok(loaded.warnings.iter().map(rule_files::problem).collect())
    }
}

/// Validates a text of the config file, including rules. Blocks.
fn usable(
    text: &str,
    (path, flags): (&Path, &Flags),
    now: &Config,
    rules: &RuleCheck,
) -> Result<(Config, Vec<Problem>), ReloadRefused> {
    let env = |name: &str| std::env::var(name).ok();
    let loaded = file::load_proposed(path, text, &env, flags);
    let loaded = loaded.map_err(|problems| ReloadRefused {
        problems: problems.iter().map(record::shown).collect(),
    })?;
    let mut config = loaded.config;
    if config.api_key.is_none() {
        config.api_key.clone_from(&now.api_key);
    }
    let mut warnings = loaded.warnings;
    warnings.extend(rules.check(now, &config)?);
    Ok((config, warnings))
}
