//! `mcpproxy policy …`: the operator's rules checked, tested, explained, and replayed over the log.

mod cases;
mod check;
mod explain;
mod replay;
mod replayed;

use std::path::PathBuf;
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::cli::args::{Global, PolicyCommand};
use crate::cli::backend::{self, Needs};
use crate::cli::error::CommandError;
use crate::cli::output::Output;
use crate::config::{Config, RuleFiles};
use crate::policy::rules::{KnownTools, RuleProblem, RuleSet};
use crate::server::rule_files;

/// Runs one of the commands.
pub(super) fn run(
    command: &PolicyCommand,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        PolicyCommand::Check { files } => check::run(files, global, output),
        PolicyCommand::Test { file, rules } => cases::run(file, rules, global, output),
        PolicyCommand::Explain(flags) => backend::with(global, Needs::Catalog, async |backend| {
            explain::run(flags, backend, output).await
        }),
        PolicyCommand::Replay { files, since } => replay::run(files, since, global, output),
    }
}

/// The tools that the proxy has seen last, from disk.
fn seen_tools(config: &Config) -> (Arc<Catalog>, KnownTools) {
    let catalog = Arc::new(Catalog::new(config.catalog()));
    // What a file could not give is the proxy's to tell.
    let _ = catalog.restore();
    let known = rule_files::tools(&catalog.load(), &rule_files::servers(config));
    (catalog, known)
}

/// The rules of these files, or of the config if there are none.
fn chosen(files: &[PathBuf], config: &Config) -> RuleFiles {
    match files.is_empty() {
        true => config.rules.clone(),
        false => {
            RuleFiles { files: files.to_vec(), options: config.rules.options, presets: Vec::new() }
        }
    }
}

/// Reads and checks them.
fn loaded(rules: &RuleFiles, known: &KnownTools) -> Result<RuleSet, CommandError> {
    let texts = rule_files::texts(rules);
    let set = texts.and_then(|texts| RuleSet::load(&texts, rules.options, Some(known)));
    set.map_err(|problems| refused(&problems))
}

/// Why rules are not taken, a line each.
fn refused(problems: &[RuleProblem]) -> CommandError {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    CommandError::failed(lines.join("\n"))
}
