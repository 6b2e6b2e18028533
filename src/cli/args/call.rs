//! `mcpproxy call`, as it is typed.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum CallCommand {
    /// Call a tool that only reads
    #[command(
        name = "tool-read",
        after_help = "\
Examples:
  mcpproxy call tool-read files:list_directory --args '{\"path\":\"/tmp\"}'
  mcpproxy call tool-read --tool-name=files:read_file --json_args '{\"path\":\"/etc/hosts\"}'
  echo '{\"path\":\"/tmp\"}' | mcpproxy call tool-read files:list_directory --args -
  mcpproxy -o json call tool-read time:get_current_time --args @args.json

Refused if the tool is marked destructive; `mcpproxy tools show NAME` says which command to use."
    )]
    Read(CallArgs),
    /// Call a tool that creates or updates something
    #[command(
        name = "tool-write",
        after_help = "\
Examples:
  mcpproxy call tool-write github:create_issue --args @issue.json --reason 'reported by QA'
  mcpproxy call tool-write memory:add --args '{\"text\":\"hi\"}' --sensitivity internal

Refused if the tool is marked destructive; use tool-destructive then."
    )]
    Write(CallArgs),
    /// Call a tool that deletes or permanently changes something
    #[command(
        name = "tool-destructive",
        after_help = "\
Examples:
  mcpproxy call tool-destructive files:delete --args '{\"path\":\"/tmp/x\"}' --reason 'clean up'

Passes whatever the tool's annotations say."
    )]
    Destructive(CallArgs),
}

#[derive(Debug, Args)]
pub(in crate::cli) struct CallArgs {
    /// The tool, as server:tool
    #[arg(value_name = "SERVER:TOOL", required_unless_present = "tool_name")]
    pub(in crate::cli) tool: Option<String>,
    /// The tool, as server:tool (the same as the positional)
    #[arg(
        long = "tool-name",
        alias = "tool_name",
        value_name = "SERVER:TOOL",
        conflicts_with = "tool"
    )]
    pub(in crate::cli) tool_name: Option<String>,
    /// The tool's arguments: a JSON object, '-' for stdin, or @FILE
    #[arg(
        short,
        long,
        visible_alias = "json_args",
        value_name = "JSON",
        default_value = "{}",
        allow_hyphen_values = true
    )]
    pub(in crate::cli) args: String,
    /// Why the call is made; kept in the activity record (at most 1000 characters)
    #[arg(long, value_name = "TEXT")]
    pub(in crate::cli) reason: Option<String>,
    /// public, internal, private or unknown; kept in the activity record
    #[arg(long, value_name = "WORD")]
    pub(in crate::cli) sensitivity: Option<String>,
    /// Give up after this long, like 30s or 2m [default: the server's call_timeout]
    #[arg(long, value_name = "DURATION", value_parser = crate::cli::value_parsers::timeout)]
    pub(in crate::cli) timeout: Option<std::time::Duration>,
}
