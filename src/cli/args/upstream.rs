//! `mcpproxy upstream …` as it is typed.

use clap::{Args, Subcommand};

use crate::cli::times::TimeStyle;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum UpstreamCommand {
    /// Each server's state, number of tools, and what is wrong with it
    #[command(after_help = "\
Examples:
  mcpproxy upstream list
  mcpproxy upstream list --json")]
    List,
    /// Add a server to the config, and try it
    #[command(after_help = "\
Examples:
  mcpproxy upstream add files -- npx -y @modelcontextprotocol/server-filesystem /tmp
  mcpproxy upstream add github --url https://api.githubcopilot.com/mcp --header 'Authorization: Bearer ${env:GITHUB_TOKEN}'
  mcpproxy upstream add notes --env 'NOTES_KEY=${file:/run/secrets/notes}' --disabled -- notes-server --stdio

Everything behind -- is the command and its arguments; no shell reads it. What the file has beside the \
server stays as it is, comments too. Secrets are better named than written: ${env:NAME}, \
${file:/path}, ${credential:NAME}, ${keyring:service/user}. A running mcpproxy is told of the change.")]
    Add(UpstreamAdd),
    /// Take a server out of the config
    #[command(after_help = "\
Examples:
  mcpproxy upstream remove files

A running mcpproxy is told of the change. What is on record about it stays.")]
    Remove {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Switch a server on
    #[command(after_help = "\
Examples:
  mcpproxy upstream enable files")]
    Enable {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Switch a server off: it stays in the config and is not started
    #[command(after_help = "\
Examples:
  mcpproxy upstream disable files")]
    Disable {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Have the running mcpproxy connect a server anew, with a new process if it is a command
    #[command(after_help = "\
Examples:
  mcpproxy upstream restart files

Calls that are under way to it fail.")]
    Restart {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// What a server has said on stderr, without secrets
    #[command(after_help = "\
Examples:
  mcpproxy upstream logs files
  mcpproxy upstream logs files -f
  mcpproxy upstream logs files -n 20 --json
  mcpproxy upstream logs files --time local

The last 1 to 2 MiB of each server are kept in the data folder; a server over HTTP has none.")]
    Logs {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
        /// Go on with what it says from now on, until Ctrl-C
        #[arg(short, long)]
        follow: bool,
        /// Lines to begin with, at most 1000
        #[arg(
            short = 'n',
            long,
            value_name = "NUMBER",
            default_value_t = 100,
            value_parser = clap::value_parser!(u64).range(1..=1000)
        )]
        lines: u64,
        /// Times: relative, local or utc [default: utc]
        #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
        time: Option<TimeStyle>,
    },
    /// Log in with a server that asks for it (OAuth), in your browser
    #[command(after_help = "\
Examples:
  mcpproxy upstream login github
  mcpproxy upstream login github --open --timeout 2m

The URL to open is printed; your browser comes back to this command on 127.0.0.1, so it has to run \
on the same machine. The tokens are kept in the data folder, for your eyes only, and renewed by the \
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

#[derive(Debug, Args)]
pub(in crate::cli) struct UpstreamAdd {
    /// The server's name: letters, digits, '-', '_', '.'
    #[arg(value_name = "NAME")]
    pub(in crate::cli) name: String,
    /// Its MCP endpoint
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    pub(in crate::cli) url: Option<String>,
    /// A variable of its environment; may be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable, conflicts_with = "url")]
    pub(in crate::cli) env: Vec<(String, String)>,
    /// A header of requests to it; may be given more than once
    #[arg(long, value_name = "NAME: VALUE", value_parser = header, conflicts_with = "command")]
    pub(in crate::cli) header: Vec<(String, String)>,
    /// Add it switched off
    #[arg(long)]
    pub(in crate::cli) disabled: bool,
    /// Do not look whether it can be used
    #[arg(long)]
    pub(in crate::cli) no_check: bool,
    /// The command and its arguments, behind --
    #[arg(last = true, value_name = "COMMAND")]
    pub(in crate::cli) command: Vec<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let found = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = found.ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn header(text: &str) -> Result<(String, String), String> {
    let found = text.split_once(':').filter(|(name, _)| !name.trim().is_empty());
    let (name, value) = found.ok_or("write 'NAME: VALUE'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
