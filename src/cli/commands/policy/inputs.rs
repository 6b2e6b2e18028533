//! What the commands about rules begin with: the files that are meant, and the tools that are known.

use std::path::PathBuf;
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::cli::error::CommandError;
use crate::config::{Config, RuleFiles, rule_files};
use crate::os::bounded_file::{NamedPipes, PIPE_WAIT};
use crate::policy::rules::{KnownTools, RuleProblem, RuleSet};

/// The tools that the proxy has seen last, from disk.
pub(super) fn seen_tools(config: &Config) -> (Arc<Catalog>, KnownTools) {
    let catalog = Arc::new(Catalog::new(config.catalog()));
    // What a file could not give is the proxy's to tell.
    let _ = catalog.restore();
    let known = catalog.load().known_tools(&rule_files::servers(config));
    (catalog, known)
}

/// The rules of these files, or of the config if there are none.
pub(super) fn chosen(files: &[PathBuf], config: &Config) -> RuleFiles {
    match files.is_empty() {
        true => config.rules.clone(),
        false => {
            RuleFiles { files: files.to_vec(), options: config.rules.options, presets: Vec::new() }
        }
    }
}

/// Reads and checks them.
pub(super) fn loaded(rules: &RuleFiles, known: &KnownTools) -> Result<RuleSet, CommandError> {
    let texts = rule_files::texts(rules, NamedPipes::Awaited(PIPE_WAIT));
    let set = texts.and_then(|texts| RuleSet::load(&texts, rules.options, Some(known)));
    set.map_err(|problems| refused(&problems))
}

/// Why rules are not taken: the first problem, and where the others are told.
fn refused(problems: &[RuleProblem]) -> CommandError {
    let first = problems.first().map(ToString::to_string).unwrap_or_default();
    CommandError::failed(match problems.len().saturating_sub(1) {
        0 => first,
        more => format!("{first} (and {more} more: mcpproxy policy check tells all)"),
    })
}
