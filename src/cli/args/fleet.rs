//! `mcpproxy fleet …` as it is typed.

use std::path::PathBuf;

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
    /// Have all nodes run the config of a file
    #[command(after_help = "\
Examples:
  mcpproxy fleet apply fleet.json

What is each node's own stays so: listen, tls, data_dir, api_key, cluster and logging. The files of rules that it names \
go with it. It is checked here and on the node that is asked before it is stored; each node checks it with its own \
keys, and runs what it did before if it cannot use it.")]
    Apply {
        /// The config
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Have all nodes run the config before this one again
    #[command(after_help = "\
Examples:
  mcpproxy fleet rollback

Once more goes back one further.")]
    Rollback,
}
