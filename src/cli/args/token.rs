//! `mcpproxy token …` as it is typed.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum TokenCommand {
    /// Make a token for an agent; it is shown this once
    #[command(after_help = "\
Examples:
  mcpproxy token create ci --server github --operation read --expires 30d
  mcpproxy token create notes --tool 'notes:get_*' --tool 'notes:search'
  mcpproxy -o json token create ci

What is not bounded is allowed. The agent sends it as `Authorization: Bearer TOKEN` or `X-API-Key`. With --tool \
and no --server it is for tools alone: no resources, no prompts.")]
    Create(TokenCreate),
    /// The tokens there are, and what they are for
    #[command(after_help = "\
Examples:
  mcpproxy token list
  mcpproxy token list --json")]
    List,
    /// End a token: it is out of force at once
    #[command(after_help = "\
Examples:
  mcpproxy token revoke ci")]
    Revoke {
        /// The token's name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Give a token a new secret, which is shown this once; the old one is out of force at once
    #[command(after_help = "\
Examples:
  mcpproxy token rotate ci
  mcpproxy -o json token rotate ci")]
    Rotate {
        /// The token's name
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[derive(Debug, Args)]
pub(in crate::cli) struct TokenCreate {
    /// What to call it; in records it stands as token:NAME
    #[arg(value_name = "NAME")]
    pub(in crate::cli) name: String,
    /// A server it may be used for; more with more flags
    #[arg(long = "server", value_name = "SERVER")]
    pub(in crate::cli) servers: Vec<String>,
    /// A tool it may be used for: SERVER:TOOL, or TOOL of any server, with * for any characters
    #[arg(long = "tool", value_name = "PATTERN")]
    pub(in crate::cli) tools: Vec<String>,
    /// What it may be used for: read, write or destructive
    #[arg(long = "operation", value_name = "OPERATION", value_parser = ["read", "write", "destructive"], hide_possible_values = true)]
    pub(in crate::cli) operations: Vec<String>,
    /// How long it is good for, like 30d or 12h; for good, if not given
    #[arg(long, value_name = "DURATION", value_parser = crate::cli::value_parsers::days)]
    pub(in crate::cli) expires: Option<std::time::Duration>,
}
