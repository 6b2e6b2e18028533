//! `mcpproxy fleet …` as it is typed.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum FleetCommand {
    /// The nodes of the fleet as the running one sees them: who lives, versions, how far their ledgers are, clocks
    #[command(after_help = "\
Examples:
  mcpproxy fleet status
  mcpproxy fleet status --json

Exits with 1 if anything is wrong, as it is told below the table.")]
    Status,
}
