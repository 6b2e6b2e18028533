//! Rules that change on disk: looked for, checked before the tools of the moment, and put in force as a whole.
//!
//! Rules that are wrong leave those in force where they are. So do tools that come or change: what no longer fits them is
//! logged, and the rules go on refusing what they cannot tell. When to look is `reload`'s.

use std::sync::Arc;

use super::rule_files;
use crate::activity::record::{Draft, Raw, Source, Status, Text, Type};
use crate::catalog::Snapshot;
use crate::config::RuleFiles;
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

impl RuleWatch {
    /// These files are in force as they are now.
    pub(super) fn new(files: &RuleFiles) -> Self {
        Self { seen: look(files), ..Self::default() }
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
        if now == next && seen == self.seen {
            return Ok(RulesRead::Same);
        }
        let rules = rule_files::load(next, known)?;
        self.seen = seen;
        self.told.clear();
        Ok(RulesRead::Others(rules.map(Arc::new)))
    }

    /// Puts files that are others in force, and checks those in force before tools that are. Blocks.
    pub(super) fn look_again(&mut self, proxy: &Proxy, files: &RuleFiles, servers: &KnownTools) {
        if files.files.is_empty() {
            return;
        }
        let (now, snapshot) = (look(files), proxy.catalog.load());
        let other_tools = !self.checked.as_ref().is_some_and(|it| Arc::ptr_eq(it, &snapshot));
        if now == self.seen && !other_tools {
            return;
        }
        let known = snapshot.known_tools(servers);
        if now != self.seen {
            match rule_files::load(files, &known) {
                Ok(rules) => {
                    let count = rules.as_ref().map_or(0, RuleSet::len);
                    replace(proxy, rules.map(Arc::new));
                    tracing::info!(rules = count, "the rules have changed, and are in force");
                    note(proxy, Status::Success, "", count);
                    self.told.clear();
                }
                Err(problems) => {
                    for problem in problems.iter().take(MAX_LOGGED) {
                        tracing::error!("{problem}; the rules stay as they were");
                    }
                    let first = problems.first().map(ToString::to_string).unwrap_or_default();
                    note(proxy, Status::Error, &first, problems.len());
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
