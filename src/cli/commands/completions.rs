//! `mcpproxy completions`: completion scripts for shells.

use crate::cli::args::CompletionsArgs;
use crate::cli::completion;
use crate::cli::error::CommandError;
use crate::cli::output;

/// Prints the script.
pub(super) fn run(flags: &CompletionsArgs) -> Result<(), CommandError> {
    let mut script = Vec::new();
    completion::script(&flags.shell.to_string(), &mut script).map_err(CommandError::failed)?;
    output::write(&script)
}
