//! Other settings that somebody proposes for the config's file: what they would change, and how they are written.
//!
//! Which settings are shown and changed is `config::patch`'s. What is written was checked whole before, rules included;
//! it is put in force as any other change of the file.

use std::path::Path;

use super::rule_check::{RuleCheck, usable};
use super::{ConfigSource, Looks, Reload, record};
use crate::api::config_door::{
    ChangeRefused, ChangeWish, ConfigComparison, FileSettings, ReloadDoor, ReloadRefused,
    SettingsChange, ShownProblem,
};
use crate::config::edit::EditRefused;
use crate::config::patch::{self, PatchRefused};
use crate::config::problem::Problem;
use crate::config::{Config, file};

/// The file that is proposed: its text, and what it means.
struct Proposed {
    text: String,
    config: Config,
    warnings: Vec<Problem>,
}

impl Reload {
    /// What rules of another config are checked by.
    pub(super) fn rule_check(&self, looks: &Looks) -> RuleCheck {
        let in_force =
            tokio::task::block_in_place(|| looks.rules.are_in_force(&self.in_force.rules));
        RuleCheck::new(in_force, self.proxy.catalog.load())
    }

    /// What the file says, as it may be shown.
    pub(super) async fn settings(&self) -> Result<FileSettings, ReloadRefused> {
        let source = self.source.clone().ok_or_else(no_file)?;
        blocking(move || {
            let text = file::text(&source.path).map_err(|problem| of_file(&problem))?;
            let settings = patch::settings(&text).map_err(|why| of_patch(&why, &source.path))?;
            Ok(FileSettings { digest: patch::digest(&text), settings })
        })
        .await?
    }

    /// What other settings would change of what is in force.
    pub(super) async fn preview(
        &self,
        looks: &Looks,
        change: SettingsChange,
    ) -> Result<ConfigComparison, ChangeRefused> {
        let source = self.source.clone().ok_or_else(no_file).map_err(ChangeRefused::Unusable)?;
        let (now, rules) = (self.in_force.clone(), self.rule_check(looks));
        let compared = blocking(move || {
            let text = file::text(&source.path);
            let text = text.map_err(|problem| ChangeRefused::Unusable(of_file(&problem)))?;
            let next = propose(&text, &change, &source, &now, &rules)?;
            Ok(record::compared(&now, &next.config, &next.warnings))
        });
        compared.await.map_err(ChangeRefused::Unusable)?
    }

    /// Writes other settings, and puts them in force. No looks come back where reading them panicked.
    pub(super) async fn change(&mut self, looks: Looks, wish: ChangeWish) -> Option<Looks> {
        let ChangeWish { change, principal, answer } = wish;
        let (back, outcome) = match self.write(&looks, change).await {
            Ok(()) => {
                let (back, outcome) = self.reload(looks, ReloadDoor::Api, &principal).await;
                (back, outcome.map_err(ChangeRefused::Unusable))
            }
            Err(refused) => (Some(looks), Err(refused)),
        };
        // Whoever asked may have gone.
        let _ = answer.send(outcome);
        back
    }

    async fn write(&self, looks: &Looks, change: SettingsChange) -> Result<(), ChangeRefused> {
        if self.in_force.fleet_config.is_some() {
            return Err(ChangeRefused::Unusable(record::whole(super::FLEET)));
        }
        let source = self.source.clone().ok_or_else(no_file).map_err(ChangeRefused::Unusable)?;
        let (now, rules) = (self.in_force.clone(), self.rule_check(looks));
        let written = blocking(move || {
            let mut refused = None;
            let edited = file::edit(&source.path, |text| {
                match propose(text, &change, &source, &now, &rules) {
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

/// The file with what is proposed, if it can be used. Blocks.
fn propose(
    text: &str,
    change: &SettingsChange,
    source: &ConfigSource,
    now: &Config,
    rules: &RuleCheck,
) -> Result<Proposed, ChangeRefused> {
    if patch::digest(text) != change.digest {
        return Err(ChangeRefused::Stale);
    }
    let text = patch::patched(text, &change.patch)
        .map_err(|why| ChangeRefused::Unusable(of_patch(&why, &source.path)))?;
    let (config, warnings) = usable(&text, (&source.path, &source.flags), now, rules)
        .map_err(ChangeRefused::Unusable)?;
    Ok(Proposed { text, config, warnings })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReloadRefused> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| record::whole("reading or changing the config failed"))
}

fn no_file() -> ReloadRefused {
    record::whole("this proxy was not started with a config file")
}

fn of_file(problem: &Problem) -> ReloadRefused {
    ReloadRefused { problems: vec![record::shown(problem)] }
}

fn of_patch(why: &PatchRefused, file: &Path) -> ReloadRefused {
    let key = match why {
        PatchRefused::NotShown(path)
        | PatchRefused::LetsIn(path)
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
