//! `mcpproxy completions`: completion scripts for shells.

use clap::CommandFactory;

use crate::cli::args::{Cli, CompletionsArgs};
use crate::cli::error::CommandError;
use crate::cli::output;

/// Prints the script.
pub(super) fn run(flags: &CompletionsArgs) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut Cli::command(), "mcpproxy", &mut script);
    output::write(&script)
}
