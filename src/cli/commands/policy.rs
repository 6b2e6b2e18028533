//! `mcpproxy policy …`: the operator's rules checked, tested, explained, and replayed over the log.

mod cases;
mod check;
mod explain;
mod inputs;
mod replay;

use crate::cli::args::{Global, PolicyCommand};
use crate::cli::backend::{self, Needs};
use crate::cli::error::CommandError;
use crate::cli::output::Output;

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
