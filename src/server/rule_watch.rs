//! Rules that change on disk: looked for, checked before the tools of the moment, and put in force as a whole.
//!
//! Rules that are wrong leave those in force where they are, and no reload passes for good until they are mended. Tools that
//! come or change leave them, too: what no longer fits them is logged, and the rules go on refusing what they cannot tell.
//! When to look, and where else it is told what is wrong, is `reload`'s.

use std::sync::Arc;

use crate::activity::record::{Draft, Raw, Source, Status, Text, Type};
use crate::catalog::Snapshot;
use crate::config::{RuleFiles, rule_files};
use crate::identity::{FileStamp, file_stamp};
use crate::policy;
use crate::policy::rules::{Basis, KnownTools, RuleProblem, RuleSet};
use crate::proxy::Proxy;
use crate::proxy::settings::Settings;

/// Most problems of one look that are logged one by one.
const MAX_LOGGED: usize = 20;

/// What tells one state of the files from another.
type Seen = Vec<Option<FileStamp>>;

/// What was seen of the files.
#[derive(Debug, Default)]
pub(super) struct RuleWatch {
    /// The files as they were before the rules in force were read.
    in_force: Seen,
    /// The files as they were told of last.
    seen: Seen,
    /// The tools that the rules in force were checked before.
    checked: Option<Arc<Snapshot>>,
    /// What was told last of the rules in force.
    told: Vec<RuleProblem>,
}

/// Rules that were read for another config.
#[derive(Debug)]
pub(super) enum RulesRead {
    /// They are those in force.
    Same,
    /// Others, or none.
    Others(Option<Arc<RuleSet>>),
}

/// What looking again has found.
#[derive(Debug)]
pub(super) enum RulesSeen {
    /// Nothing that was not known.
    Known,
    /// Others, which are in force now.
    Taken,
    /// Others that are wrong, which is logged and on record.
    Wrong(Vec<RuleProblem>),
}

impl RuleWatch {
    /// These files are in force as they are now.
    pub(super) fn new(files: &RuleFiles) -> Self {
        let seen = look(files);
        Self { in_force: seen.clone(), seen, ..Self::default() }
    }

    /// Whether these files, which the config in force names, are as they were when they were put in force. Blocks.
    pub(super) fn are_in_force(&self, files: &RuleFiles) -> bool {
        look(files) == self.in_force
    }

    /// Reads the rules of another config, `now` being what is in force. Blocks.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub(super) fn read(
        &mut self,
        now: &RuleFiles,
        next: &RuleFiles,
        known: &KnownTools,
    ) -> Result<RulesRead, Vec<RuleProblem>> {
        let seen = look(next);
        if now == next {
            if seen == self.in_force {
                return Ok(RulesRead::Same);
            }
            // Whoever has them read tells what is wrong.
            self.seen.clone_from(&seen);
        }
        let rules = rule_files::load(next, known)?;
        self.in_force.clone_from(&seen);
        self.seen = seen;
        self.told.clear();
        Ok(RulesRead::Others(rules.map(Arc::new)))
    }

    /// Puts files that are others in force, and checks those in force before tools that are. Blocks.
    pub(super) fn look_again(
        &mut self,
        proxy: &Proxy,
        files: &RuleFiles,
        servers: &KnownTools,
    ) -> RulesSeen {
        if files.files.is_empty() {
            return RulesSeen::Known;
        }
        let (now, snapshot) = (look(files), proxy.catalog.load());
        let other_tools = !self.checked.as_ref().is_some_and(|it| Arc::ptr_eq(it, &snapshot));
        if now == self.seen && !other_tools {
            return RulesSeen::Known;
        }
        let known = snapshot.known_tools(servers);
        let mut found = RulesSeen::Known;
        if now != self.seen {
            match rule_files::load(files, &known) {
                Ok(rules) => {
                    let count = rules.as_ref().map_or(0, RuleSet::len);
                    replace(proxy, rules.map(Arc::new));
                    tracing::info!(rules = count, "the rules have changed, and are in force");
                    note(proxy, Status::Success, "", count);
                    self.told.clear();
                    self.in_force.clone_from(&now);
                    found = RulesSeen::Taken;
                }
                Err(problems) => {
                    for problem in problems.iter().take(MAX_LOGGED) {
                        tracing::error!("{problem}; the rules stay as they were");
                    }
                    let first = problems.first().map(ToString::to_string).unwrap_or_default();
                    note(proxy, Status::Error, &first, problems.len());
                    found = RulesSeen::Wrong(problems);
                }
            }
            self.seen = now;
        } else if let Some(rules) = &proxy.settings.reader().current().policy.rules {
            let problems = rules.problems(Some(&known));
            if problems != self.told {
                let news = problems.iter().filter(|it| it.basis == Basis::Catalog);
                for problem in news.take(MAX_LOGGED) {
                    tracing::warn!("{problem}; the rule stays in force as it is");
                }
                self.told = problems;
            }
        }
        self.checked = Some(snapshot);
        found
    }
}

fn replace(proxy: &Proxy, rules: Option<Arc<RuleSet>>) {
    proxy.settings.update(|now| {
        let policy = policy::Settings { rules: rules.clone(), ..now.policy.clone() };
        Settings { policy, ..now.clone() }
    });
}

/// Puts a change of the rules on record.
fn note(proxy: &Proxy, status: Status, error: &str, count: usize) {
    let mut draft = Draft::new(Type::ConfigChange, Source::Internal, status);
    draft.set(Text::Error, error);
    let word = if status == Status::Success { "rules" } else { "problems" };
    let metadata = format!("{{\"section\":\"policy\",\"{word}\":{count}}}");
    draft.keep(Raw::Metadata, metadata.as_bytes(), usize::MAX);
    proxy.activity.note(draft);
}

fn look(files: &RuleFiles) -> Seen {
    files.files.iter().map(|file| file_stamp(file)).collect()
}
