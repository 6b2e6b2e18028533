//! Whether a config that is not in force yet can be put in force, its rules included. Decides nothing about what is written.

use std::path::Path;
use std::sync::Arc;

use super::record;
use crate::api::config_door::ReloadRefused;
use crate::catalog::Snapshot;
use crate::config::problem::Problem;
use crate::config::{Config, Flags, file, rule_files};

/// Checks the rules of a config that is not put in force yet.
pub(super) struct RuleCheck {
    /// Whether the files of the config in force are those in force.
    in_force: bool,
    snapshot: Arc<Snapshot>,
}

impl RuleCheck {
    pub(super) fn new(in_force: bool, snapshot: Arc<Snapshot>) -> Self {
        Self { in_force, snapshot }
    }

    /// What is wrong with the rules of `next`. Those in force stay, whatever became of the tools that they name. Blocks.
    pub(super) fn check(&self, now: &Config, next: &Config) -> Result<(), ReloadRefused> {
        if self.in_force && next.rules == now.rules {
            return Ok(());
        }
        let known = self.snapshot.known_tools(&rule_files::servers(next));
        let loaded = rule_files::load(&next.rules, &known);
        loaded.map(drop).map_err(|problems| record::wrong_rules(&problems))
    }
}

/// What the file would mean with this text, if that can be put in force, rules included. Blocks.
pub(super) fn usable(
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
    rules.check(now, &config)?;
    Ok((config, loaded.warnings))
}
