//! `mcpproxy upstream …` as it is typed.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum UpstreamCommand {
    /// Each server's state, number of tools, and what is wrong with it
    #[command(after_help = "\
Examples:
  mcpproxy upstream list
  mcpproxy upstream list --json")]
    List,
    /// Log in with a server that asks for it (OAuth), in your browser
    #[command(after_help = "\
Examples:
  mcpproxy upstream login github
  mcpproxy upstream login github --open --timeout 2m

The URL to open is printed; your browser comes back to this command on 127.0.0.1, so it has to run
on the same machine. The tokens are kept in the data folder, for your eyes only, and renewed by the
proxy; a running proxy takes them up by itself.")]
    Login {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
        /// Open the browser, too
        #[arg(long)]
        open: bool,
        /// Give up after this long
        #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::cli::value_parsers::timeout)]
        timeout: std::time::Duration,
    },
    /// Forget the tokens of a login
    #[command(after_help = "\
Examples:
  mcpproxy upstream logout github

A running proxy notices. The tokens stay valid at who gave them until they end there.")]
    Logout {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
    },
}
