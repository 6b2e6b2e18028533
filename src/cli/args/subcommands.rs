//! Subcommands and their arguments: servers, clients, calls, fleet, access and activity.

use crate::args::filter_words::{intent_types, kinds, statuses, tool_filter};
use crate::clients::McpClient;
use crate::format::TimeStyle;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use mcpproxy_policy::approvals::{ForHowLong, MAX_STANDING};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum UpstreamCommand {
    /// List each server's state, number of tools, and error
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  mcpproxy upstream list
  mcpproxy upstream list --json

CALLS and ERRORS count since the proxy started."
    )]
    List,
    /// Show one server: its state, its calls and its entry in the config without secrets
    #[command(after_help = "\
Examples:
  mcpproxy upstream show files
  mcpproxy upstream show files --json")]
    Show {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Add a server to the config and test it
    #[command(after_help = "\
Examples:
  mcpproxy upstream add files -- \\
    npx -y @modelcontextprotocol/server-filesystem /tmp
  mcpproxy upstream add search https://mcp.example.com/mcp
  mcpproxy upstream add github --url https://api.githubcopilot.com/mcp \\
    --header 'Authorization: Bearer ${env:GITHUB_TOKEN}'
  mcpproxy upstream add notes --env 'NOTES_KEY=${file:/run/secrets/notes}' \\
    --disabled -- notes-server --stdio

The words after the name, or after --, are the command and its arguments; no shell interprets them. Write options \
of mcpproxy before them. The rest of the config file is preserved, including comments. Write secrets as \
references: ${env:NAME}, ${file:/path}, ${credential:NAME}, ${keyring:service/user}. A running proxy is notified of the change. \
A command that is not installed is refused; a server that does not answer is added, and the exit code is 1.")]
    Add(UpstreamAdd),
    /// Remove a server from the config
    #[command(
        visible_alias = "rm",
        after_help = "\
Examples:
  mcpproxy upstream remove files
  mcpproxy upstream remove files --yes

At a terminal it asks for confirmation; a script is not asked. A running proxy is notified of the change. \
Recorded activity of the server is kept."
    )]
    Remove {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Enable a server
    #[command(after_help = "\
Examples:
  mcpproxy upstream enable files")]
    Enable {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Disable a server: it stays in the config and is not started
    #[command(after_help = "\
Examples:
  mcpproxy upstream disable files")]
    Disable {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Reconnect a server; a command gets a new process
    #[command(after_help = "\
Examples:
  mcpproxy upstream restart files

Calls in flight to it fail.")]
    Restart {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Show the stderr output of a server, or its state changes if it has a URL; secrets are redacted
    #[command(after_help = "\
Examples:
  mcpproxy upstream logs files
  mcpproxy upstream logs files -f
  mcpproxy upstream logs files -n 20 --json
  mcpproxy upstream logs files --time local

The last 1 to 2 MiB per server are kept in the data directory. A server over HTTP has no stderr: its log contains \
the changes of its state, with the reasons.")]
    Logs {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
        /// Keep printing new lines until Ctrl-C
        #[arg(short, long)]
        follow: bool,
        /// Number of lines, at most 1000
        #[arg(
            short = 'n',
            long,
            value_name = "NUMBER",
            default_value_t = 100,
            value_parser = |text: &str| count::<1000>(text).map(u64::from)
        )]
        lines: u64,
        /// Time format: relative, local or utc [default: utc]
        #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
        time: Option<TimeStyle>,
    },
    /// Log in to a server that requires OAuth, in your browser
    #[command(after_help = "\
Examples:
  mcpproxy upstream login github
  mcpproxy upstream login github --open --timeout 2m

The URL to open is printed; your browser is redirected to this command on 127.0.0.1, so it must run \
on the same machine. The tokens are stored in the data directory, readable only by you, and renewed by the \
proxy; a running proxy picks them up by itself. With oauth.grant client_credentials no browser is needed: \
a token is requested at once.")]
    Login {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
        /// Also open the browser
        #[arg(long)]
        open: bool,
        /// Give up after this duration
        #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::args::timeout)]
        timeout: std::time::Duration,
    },
    /// Delete the stored tokens of a login and revoke them
    #[command(after_help = "\
Examples:
  mcpproxy upstream logout github

A running proxy notices the change by itself. The tokens are revoked if the authorization server supports that \
(RFC 7009); otherwise the command reports that they stay valid there until they expire.")]
    Logout {
        /// The server's name in the config
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct UpstreamAdd {
    /// The server's name: letters, digits, '-', '_', '.', and spaces within
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// URL of the server's MCP endpoint (same as --url)
    #[arg(value_name = "URL", value_parser = endpoint, conflicts_with_all = ["url", "command", "env"])]
    pub(crate) endpoint: Option<String>,
    /// URL of the server's MCP endpoint
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    pub(crate) url: Option<String>,
    /// Environment variable of the command; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable, conflicts_with = "url")]
    pub(crate) env: Vec<(String, String)>,
    /// HTTP header of requests to the server; repeatable
    #[arg(long, value_name = "NAME: VALUE", value_parser = header, conflicts_with = "command")]
    pub(crate) header: Vec<(String, String)>,
    /// Add the server disabled
    #[arg(long)]
    pub(crate) disabled: bool,
    /// Replace the server with this name, if there is one
    #[arg(long)]
    pub(crate) replace: bool,
    /// Do not test whether the server is usable
    #[arg(long)]
    pub(crate) no_check: bool,
    /// The command and its arguments, after all options; -- may precede it
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Whether a server's second word is a URL rather than a command.
pub(super) fn is_endpoint(text: &str) -> bool {
    ["http://", "https://", "unix:", "${"].iter().any(|kind| text.starts_with(kind))
}

fn endpoint(text: &str) -> Result<String, String> {
    match is_endpoint(text) {
        true => Ok(text.to_owned()),
        false => Err("a URL begins with http:// or https://; write a command after --".to_owned()),
    }
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

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Clients to import from: claude-desktop, claude-code, cursor, vscode, windsurf, codex, zed [default: all]
    #[arg(value_enum, value_name = "CLIENT", hide_possible_values = true)]
    pub(crate) clients: Vec<McpClient>,
    /// Import only this server; repeatable
    #[arg(long = "server", value_name = "NAME")]
    pub(crate) servers: Vec<String>,
    /// Show what would be added without adding it
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    /// Client: claude-desktop, claude-code, cursor, vscode, windsurf, codex or zed
    #[arg(value_enum, value_name = "CLIENT", hide_possible_values = true)]
    pub(crate) client: McpClient,
    /// Also move the client's own servers into mcpproxy
    #[arg(long = "move", conflicts_with = "undo")]
    pub(crate) moves: bool,
    /// Remove the entry of mcpproxy, and restore the client's file if it is otherwise unchanged
    #[arg(long, conflicts_with_all = ["servers", "tools", "operations", "expires"])]
    pub(crate) undo: bool,
    #[command(flatten)]
    pub(crate) scope: TokenScope,
    /// Show what would be written without writing it
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StdioArgs {
    /// Serve one server under its own names, as at /mcp/server/NAME
    #[arg(long, value_name = "NAME")]
    pub(crate) server: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// For health checks: only report whether the proxy answers
    #[arg(long)]
    pub(crate) alive: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CallCommand {
    /// Call a tool that only reads
    #[command(
        name = "tool-read",
        after_help = "\
Examples:
  mcpproxy call tool-read files:list_directory --args '{\"path\":\"/tmp\"}'
  mcpproxy call tool-read files:list_directory path=/tmp
  mcpproxy call tool-read github:list_issues repo=acme/app labels:='[\"bug\"]'
  mcpproxy call tool-read --tool-name=files:read_file \\
    --json_args '{\"path\":\"/etc/hosts\"}'
  echo '{\"path\":\"/\"}' | mcpproxy call tool-read files:list_directory --args -
  mcpproxy -o json call tool-read time:get_current_time --args @args.json

Refused if the tool is marked destructive; `mcpproxy tools show NAME` names the command to use."
    )]
    Read(CallArgs),
    /// Call a tool that creates or updates something
    #[command(
        name = "tool-write",
        after_help = "\
Examples:
  mcpproxy call tool-write github:create_issue --args @issue.json \\
    --reason 'reported by QA'
  mcpproxy call tool-write memory:add text=hi --sensitivity internal

Refused if the tool is marked destructive; use tool-destructive then."
    )]
    Write(CallArgs),
    /// Call a tool that deletes or permanently changes something
    #[command(
        name = "tool-destructive",
        after_help = "\
Examples:
  mcpproxy call tool-destructive files:delete --args '{\"path\":\"/tmp/x\"}' \\
    --reason 'clean up'

Allowed whatever the tool's annotations say."
    )]
    Destructive(CallArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// The tool, as server:tool
    #[arg(value_name = "SERVER:TOOL", required_unless_present = "tool_name")]
    pub(crate) tool: Option<String>,
    /// The tool, as server:tool (same as the positional argument)
    #[arg(
        long = "tool-name",
        alias = "tool_name",
        value_name = "SERVER:TOOL",
        conflicts_with = "tool"
    )]
    pub(crate) tool_name: Option<String>,
    /// Arguments: KEY=TEXT, a text, number or boolean as in the tool's schema, or KEY:=JSON
    #[arg(value_name = "KEY=VALUE", conflicts_with = "args")]
    pub(crate) pairs: Vec<String>,
    /// The tool's arguments: a JSON object, '-' for stdin, or @FILE
    #[arg(
        short,
        long,
        visible_alias = "json_args",
        value_name = "JSON",
        default_value = "{}",
        allow_hyphen_values = true
    )]
    pub(crate) args: String,
    /// Reason for the call, stored in the activity record (at most 1000 characters)
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Data sensitivity: public, internal, private or unknown; stored in the activity record
    #[arg(long, value_name = "WORD", value_parser = ["public", "internal", "private", "unknown"], hide_possible_values = true)]
    pub(crate) sensitivity: Option<String>,
    /// Give up after this duration, like 30s or 2m [default: the server's call_timeout]
    #[arg(long, value_name = "DURATION", value_parser = crate::args::timeout)]
    pub(crate) timeout: Option<std::time::Duration>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// Show the nodes: state, version, ledger position, clock
    #[command(after_help = "\
Examples:
  mcpproxy fleet status
  mcpproxy fleet status --json

Exit code 1 if anything is wrong; the problems are listed below the table.")]
    Status,
    /// Apply a config file to all nodes
    #[command(after_help = "\
Examples:
  mcpproxy fleet apply fleet.json

Per-node keys keep their values: listen, tls, data_dir, api_key, cluster and logging. The rule files that the \
config names are shared with it. The config is validated here and on the contacted node before it is stored. Each \
node then validates it with its own keys, and keeps its previous config if the new one is invalid.")]
    Apply {
        /// The config file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Return all nodes to the previous config
    #[command(after_help = "\
Examples:
  mcpproxy fleet rollback

Repeat the command to go back one version further.")]
    Rollback,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token for an agent; it is shown only once
    #[command(after_help = "\
Examples:
  mcpproxy token create ci --server github --operation read --expires 30d
  mcpproxy token create notes --tool 'notes:get_*' --tool 'notes:search'
  mcpproxy -o json token create ci

A token without limits may call everything. The agent sends it as `Authorization: Bearer TOKEN` or `X-API-Key`. With --tool \
and without --server it is limited to tools: no resources, no prompts.")]
    Create(TokenCreate),
    /// List tokens and their limits
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  mcpproxy token list
  mcpproxy token list --json"
    )]
    List,
    /// Revoke a token immediately
    #[command(after_help = "\
Examples:
  mcpproxy token revoke ci

At a terminal it asks for confirmation; a script is not asked.")]
    Revoke {
        /// The token's name
        #[arg(value_name = "NAME")]
        name: String,
        /// Revoke it without asking
        #[arg(short, long)]
        yes: bool,
    },
    /// Replace a token's secret; the old one is revoked at once
    #[command(after_help = "\
Examples:
  mcpproxy token rotate ci
  mcpproxy -o json token rotate ci

At a terminal it asks for confirmation; a script is not asked.")]
    Rotate {
        /// The token's name
        #[arg(value_name = "NAME")]
        name: String,
        /// Replace it without asking
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TokenCreate {
    /// Name of the token; activity records show it as token:NAME
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) scope: TokenScope,
}

/// Restrictions of an agent token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct TokenScope {
    /// Limit the token to this server; repeatable
    #[arg(long = "server", value_name = "SERVER")]
    pub(crate) servers: Vec<String>,
    /// Limit the token to this tool: SERVER:TOOL, or TOOL of any server, with * for any characters; repeatable
    #[arg(long = "tool", value_name = "PATTERN")]
    pub(crate) tools: Vec<String>,
    /// Limit the token to this operation: read, write or destructive; repeatable
    #[arg(long = "operation", value_name = "OPERATION", value_parser = ["read", "write", "destructive"], hide_possible_values = true)]
    pub(crate) operations: Vec<String>,
    /// Lifetime, like 30d or 12h [default: no expiry]
    #[arg(long, value_name = "DURATION", value_parser = crate::args::days)]
    pub(crate) expires: Option<std::time::Duration>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// List pending calls and standing approvals
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  mcpproxy approvals list
  mcpproxy approvals list --json

At a terminal ids are shortened to a unique prefix."
    )]
    List {
        /// Time format: relative, local or utc [default: relative at a terminal, else utc]
        #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
        time: Option<TimeStyle>,
    },
    /// Show one pending call with all its arguments, or its decision
    #[command(after_help = "\
Examples:
  mcpproxy approvals show 5r8x0q2mzk7w1ahd")]
    Show {
        /// The approval's id, from `approvals list`, or a prefix of it
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Approve a pending call
    #[command(after_help = "\
Examples:
  mcpproxy approvals approve 5r8x0q2mzk7w1ahd
  mcpproxy approvals approve 5r8x0q2mzk7w1ahd --for 1h
  mcpproxy approvals approve 5r8x0q2mzk7w1ahd --for session

Without --for only this call is approved. With --for, every call of the same tool by the same principal is \
approved for that time, whatever its arguments. The approval ends early if the server changes the tool's \
definition, or if you run `approvals deny` with the same id.")]
    Approve {
        /// The approval's id, from `approvals list`, or a prefix of it
        #[arg(value_name = "ID")]
        id: String,
        /// Lifetime of a standing approval: a duration like 1h, at most 24h, or 'session'
        #[arg(long = "for", value_name = "TIME", value_parser = how_long)]
        how_long: Option<String>,
    },
    /// Deny a pending call, or revoke a standing approval
    #[command(after_help = "\
Examples:
  mcpproxy approvals deny 5r8x0q2mzk7w1ahd")]
    Deny {
        /// The approval's id, from `approvals list`, or a prefix of it
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Validate rules against the known servers and tools
    #[command(after_help = "\
Examples:
  mcpproxy policy check
  mcpproxy policy check new.cedar other.cedar

Without FILE the rules of the config are checked. Every problem is reported as FILE:LINE:COLUMN. Exit \
code 1 if there are problems. The known tools are those that the proxy discovered last.")]
    Check {
        /// Rule files, instead of policy.files
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Evaluate test cases and compare the decisions with the expected ones
    #[command(after_help = "\
Examples:
  mcpproxy policy test cases.yaml
  mcpproxy policy test cases.json --rules new.cedar

The file is a YAML or JSON list of cases like this one:
  - {principal: 'token:ci', groups: [dev], action: destructive,
     tool: 'github:delete_repo', args: {repo: x},
     expect: deny, rule: no-delete}

`resource` or `prompt` may replace `tool`; `groups`, `args`, `rule`, `client`, `reason`, \
`sensitivity` and `session` are optional. `mcpproxy guide policy` explains them. Exit code 1 if a case fails.")]
    Test {
        /// File of test cases
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Rule file, instead of those of the config; repeatable
        #[arg(long, value_name = "FILE")]
        rules: Vec<PathBuf>,
    },
    /// Explain which rules decide a call and what they evaluate
    #[command(after_help = "\
Examples:
  mcpproxy policy explain --as token:ci --tool github:delete_repo \\
    --args '{\"repo\":\"x\"}'
  mcpproxy policy explain --as jwt:ann --group dev --tool files:read \\
    --action read -o json

A token that does not exist is an error, after the explanation.")]
    Explain(PolicyExplain),
    /// Show what new rules would have decided about the logged calls
    #[command(after_help = "\
Examples:
  mcpproxy policy replay new.cedar --since 30d
  mcpproxy policy replay new.cedar more.cedar --since 2026-01-01T00:00:00Z

The rules in these files replace those in force: to see the effect of an additional rule, name the present files, too.

The action of a call is the greater of its operation and the one that the tool is marked for now (column CALL WITH \
of `mcpproxy tools list`). So a rule for Action::\"read\" does not apply to a call_tool_read of a tool that is not \
marked read-only.

Calls with truncated or redacted arguments, and calls for which the log lacks an attribute that a rule \
reads, are counted as undecidable; nothing is guessed. The log is read from the running proxy, \
or from a copy of its files if none runs.")]
    Replay {
        /// Rule files
        #[arg(value_name = "NEW", required = true)]
        files: Vec<PathBuf>,
        /// Start of the period: a date (midnight UTC), RFC 3339, or an age like 12h or 30d
        #[arg(long, value_name = "TIME", default_value = "30d")]
        since: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PolicyExplain {
    /// Principal: anonymous, admin, token:NAME, jwt:SUBJECT, cert:NAME
    #[arg(long = "as", value_name = "PRINCIPAL")]
    pub(crate) principal: String,
    /// Group of the principal; repeatable
    #[arg(long = "group", value_name = "NAME")]
    pub(crate) groups: Vec<String>,
    /// The tool, as server:tool
    #[arg(long, value_name = "SERVER:TOOL")]
    pub(crate) tool: String,
    /// Operation: read, write or destructive [default: the one the tool is marked for]
    #[arg(long, value_name = "WORD", value_parser = ["read", "write", "destructive"], hide_possible_values = true)]
    pub(crate) action: Option<String>,
    /// The tool's arguments: a JSON object, '-' for stdin, or @FILE
    #[arg(long, value_name = "JSON", default_value = "{}", allow_hyphen_values = true)]
    pub(crate) args: String,
}

/// Parses a number from 1 to `MAX`.
pub(super) fn count<const MAX: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX).contains(number));
    number.ok_or_else(|| format!("expected a number from 1 to {MAX}"))
}

/// Default number of records in `activity list`.
const LIST_LIMIT: u32 = 50;

#[derive(Debug, Subcommand)]
pub(crate) enum ActivityCommand {
    /// List the latest records, newest first
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  mcpproxy activity list
  mcpproxy activity list --status refused --since 2h
  mcpproxy activity list --tool github:create_issue
  mcpproxy activity list --intent-type destructive --server github -n 200
  mcpproxy activity list --type policy_decision -o json
  mcpproxy activity list --text 'no such file' --since 7d

Records are sorted by the time shown, which is when they were stored. --since and --until filter by when a \
call began. A record must match all filters. --type, --status and --intent-type take several values, separated by \
commas; the other filters take one. A decision about a call, and its approval, are shown in that call's row. So \
--status selects calls, and with `warning` the calls with a warning; --type policy_decision selects the decisions. \
With -o json each record is listed and counts for -n. At a terminal, or with COLUMNS set, ids are record numbers, and columns that \
do not fit are omitted, DURATION first, and below 100 columns the type follows the tool, except in rows of tool calls; a principal that is cut is also below its row. A pipe gets full ids and all columns."
    )]
    List(ActivityList),
    /// Show one record in full: intent, verdict, arguments, result
    #[command(after_help = "\
Examples:
  mcpproxy activity show last
  mcpproxy activity show 4711 --time local
  mcpproxy activity show 01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2 -o yaml

`last` is the first row of `activity list`. A number is the \"seq\" of a record in this log.")]
    Show {
        /// The record's number or id, from `activity list`, or `last`
        #[arg(value_name = "ID")]
        id: String,
        /// Time format: relative, local or utc [default: utc]
        #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
        time: Option<TimeStyle>,
    },
    /// Show counts by outcome and intent, top servers and tools, latencies
    #[command(after_help = "\
Examples:
  mcpproxy activity summary
  mcpproxy activity summary --period 30d -o json")]
    Summary {
        /// Period to summarize: 1h, 24h, 7d or 30d
        #[arg(long, default_value = "24h", value_parser = ["1h", "24h", "7d", "30d"], hide_possible_values = true)]
        period: String,
    },
    /// Export all records that match the filters, oldest first
    #[command(after_help = "\
Examples:
  mcpproxy activity export --file activity.ndjson
  mcpproxy activity export --file refused.csv --status refused --since 7d
  mcpproxy activity export --file - --type tool_call
  mcpproxy activity export --file activity.parquet

--output FILE after `export` is the same as --file FILE; -o and --json set the format of the summary. \
json is one object per line. In csv, a text that a spreadsheet would interpret as a formula gets a ' \
prefix. The file appears under its name once it is complete. An existing file is replaced only with --force.")]
    Export(ActivityExport),
    /// Print records as they are stored, until Ctrl-C
    #[command(after_help = "\
Examples:
  mcpproxy activity watch
  mcpproxy activity watch --status refused --principal token:ci
  mcpproxy activity watch --json

With json, each record is one line; with yaml, each record is one document.")]
    Watch {
        #[command(flatten)]
        filters: RecordFilters,
        /// Show words instead of icons
        #[arg(long)]
        no_icons: bool,
        /// Time format: relative, local or utc [default: local at a terminal, else utc]
        #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
        time: Option<TimeStyle>,
        /// In a fleet, show only the records of this node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
    /// Verify the hash chain; name the first altered or missing record
    #[command(after_help = "\
Examples:
  mcpproxy activity verify
  mcpproxy activity verify --json
  mcpproxy activity verify --store s3://bucket/fleet --keys keys.txt
  mcpproxy activity verify proof.json --keys keys.txt

Exit code 1 if the log was altered. If no proxy runs, a copy of the files is checked. \
Someone who can rewrite the whole store and its head can forge both: keep a copy of the \
head elsewhere if that matters. With --store only the chains in a fleet's object store are checked, \
and each altered, removed, replaced or misplaced segment is named. A file given as argument \
is a proof written by `activity prove`; it is verified offline.")]
    Verify(ActivityVerify),
    /// Write an offline-verifiable proof of one record of a fleet
    #[command(after_help = "\
Examples:
  mcpproxy activity prove 01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2 > proof.json
  mcpproxy activity prove 01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2 \\
    --store s3://bucket/fleet --file proof.json
  mcpproxy activity verify proof.json --keys keys.txt

A proof needs a fleet, whose nodes sign their records in an object store (`mcpproxy guide fleet`); the log of one proxy \
alone is checked by `activity verify`. The store is the one in the config (cluster.store), unless --store names another.")]
    Prove(ActivityProve),
}

/// Arguments of `activity verify`.
#[derive(Debug, Args)]
pub(crate) struct ActivityVerify {
    /// A proof from `activity prove`, instead of the log
    #[arg(value_name = "PROOF", conflicts_with = "store")]
    pub(crate) proof: Option<PathBuf>,
    /// A fleet's object store instead of the log: s3://…, gs://…, az://… or file:///…
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Trusted keys, one per line as in a node's claim.json [default: those in the store or proof]
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,
    /// Accept missing segments at the start of a chain, for stores whose lifecycle rules remove old ones
    #[arg(long, requires = "store")]
    pub(crate) expired: bool,
}

/// Arguments of `activity prove`.
#[derive(Debug, Args)]
pub(crate) struct ActivityProve {
    /// The record's full id
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// The fleet's object store [default: cluster.store of the config]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Output file, '-' for stdout
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(crate) file: PathBuf,
}

/// Arguments of `activity export`.
#[derive(Debug, Args)]
pub(crate) struct ActivityExport {
    /// Output file, '-' for stdout (the same as --output FILE)
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Format: json (one object per line), csv or parquet [default: that of the file's extension; json without one]
    #[arg(long, value_parser = ["json", "csv", "parquet"], hide_possible_values = true)]
    pub(crate) format: Option<String>,
    /// Export only records that contain this in their JSON: names, reason, arguments or result, in any case
    #[arg(long, value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Export only calls that took at least this long, like 500ms or 2s
    #[arg(long, value_name = "DURATION", value_parser = crate::args::timeout)]
    pub(crate) slower_than: Option<std::time::Duration>,
    /// Replace an existing output file
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) filters: ActivityFilters,
}

impl ActivityExport {
    /// Returns the named format, or the format of the file's extension; `json` for stdout and files without an extension.
    pub(crate) fn format(&self) -> Result<&str, String> {
        if let Some(format) = &self.format {
            return Ok(format);
        }
        let Some(extension) = self.file.extension() else { return Ok("json") };
        let extension = extension.to_string_lossy();
        match &*extension.to_ascii_lowercase() {
            "json" | "ndjson" | "jsonl" => Ok("json"),
            "csv" => Ok("csv"),
            "parquet" => Ok("parquet"),
            _ => Err(format!(
                "{}: no format has the extension '.{extension}': use .json, .ndjson, .jsonl (one object per line), \
                 .csv or .parquet, or name the format with --format",
                self.file.display()
            )),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ActivityList {
    #[command(flatten)]
    pub(crate) filters: ActivityFilters,
    /// Show only records that contain this in their JSON: names, reason, arguments or result, in any case
    #[arg(long, value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Show only calls that took at least this long, like 500ms or 2s
    #[arg(long, value_name = "DURATION", value_parser = crate::args::timeout)]
    pub(crate) slower_than: Option<std::time::Duration>,
    /// Maximum number of records, up to 10000
    #[arg(short = 'n', long, default_value_t = LIST_LIMIT, value_parser = count::<10_000>)]
    pub(crate) limit: u32,
    /// Show words instead of icons
    #[arg(long)]
    pub(crate) no_icons: bool,
    /// Time format: relative, local or utc [default: relative at a terminal, else utc]
    #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
    pub(crate) time: Option<TimeStyle>,
}

/// Filters of records.
#[derive(Debug, Default, Args)]
pub(crate) struct RecordFilters {
    /// Record type: tool_call, policy_decision, approval, internal_tool_call, resource_read, prompt_get, completion,
    /// server_question, server_change, catalog_change, config_change, retention, gap, system_start or system_stop
    #[arg(long = "type", value_name = "TYPE", value_parser = kinds)]
    pub(crate) kind: Option<String>,
    /// Name of the upstream server
    #[arg(long, value_name = "NAME")]
    pub(crate) server: Option<String>,
    /// Name of the tool, alone or as server:tool
    #[arg(long, value_name = "NAME", value_parser = tool_filter)]
    pub(crate) tool: Option<String>,
    /// Status: success, error, rejected, blocked, warning or unknown; refused means rejected or blocked
    #[arg(long, value_name = "STATUS", value_parser = statuses)]
    pub(crate) status: Option<String>,
    /// Declared intent: read, write or destructive
    #[arg(long, value_name = "TYPE", value_parser = intent_types)]
    pub(crate) intent_type: Option<String>,
    /// Id of the MCP session
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) session: Option<String>,
    /// Id of the HTTP or MCP request
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) request_id: Option<String>,
    /// Principal of the call: anonymous, admin, token:NAME, …
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) principal: Option<String>,
}

impl RecordFilters {
    /// Returns the server and tool to filter by: `--tool SERVER:TOOL` names both. A URI, or a tool name for another
    /// server, is not split.
    pub(crate) fn server_and_tool(&self) -> (Option<&str>, Option<&str>) {
        let (server, tool) = (self.server.as_deref(), self.tool.as_deref());
        match (server, tool.and_then(|tool| tool.split_once(':'))) {
            (None, Some((prefix, name))) if !name.starts_with("//") => (Some(prefix), Some(name)),
            (Some(server), Some((prefix, name))) if prefix == server => (Some(server), Some(name)),
            _ => (server, tool),
        }
    }
}

/// Filters that select records.
#[derive(Debug, Args)]
pub(crate) struct ActivityFilters {
    #[command(flatten)]
    pub(crate) records: RecordFilters,
    /// In a fleet, select only the records of this node
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Start of the period: a date (midnight UTC), RFC 3339, or an age like 2h or 7d
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// End of the period: a date (midnight UTC), RFC 3339, or an age like 30m
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
}

/// Checks the value of `--for`, which the proxy reads.
fn how_long(text: &str) -> Result<String, String> {
    match ForHowLong::parse(text) {
        Some(ForHowLong::Time(time)) if time > MAX_STANDING => {
            Err(format!("at most {} hours", MAX_STANDING.as_secs() / 3600))
        }
        Some(ForHowLong::Session | ForHowLong::Time(_)) => Ok(text.to_owned()),
        None => Err("expected 'session' or a duration like 1h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_within_their_range() {
        assert_eq!(count::<100>("1"), Ok(1));
        assert_eq!(count::<100>("100"), Ok(100));
        for bad in ["abc", "", "0", "101", "-1", "99999999999"] {
            assert_eq!(
                count::<100>(bad),
                Err("expected a number from 1 to 100".to_owned()),
                "{bad}"
            );
        }
    }
    use clap::Parser as _;

    #[test]
    fn tool_with_its_server_filters_by_both() {
        for (server, tool, expected) in [
            (None, Some("files:read"), (Some("files"), Some("read"))),
            (Some("files"), Some("files:read"), (Some("files"), Some("read"))),
            (Some("web"), Some("files:read"), (Some("web"), Some("files:read"))),
            (None, Some("read"), (None, Some("read"))),
            (None, Some("file:///tmp/a"), (None, Some("file:///tmp/a"))),
            (None, Some("files:file:///tmp/a"), (Some("files"), Some("file:///tmp/a"))),
            (Some("files"), None, (Some("files"), None)),
            (None, None, (None, None)),
        ] {
            let own = |name: Option<&str>| name.map(str::to_owned);
            let filters =
                RecordFilters { server: own(server), tool: own(tool), ..RecordFilters::default() };
            assert_eq!(filters.server_and_tool(), expected, "{server:?} {tool:?}");
        }
    }

    #[test]
    fn act_7_export_takes_the_format_of_the_extension_or_of_the_flag() {
        for (file, format, expected) in [
            ("a.csv", None, Ok("csv")),
            ("a.CSV", None, Ok("csv")),
            ("a.parquet", None, Ok("parquet")),
            ("a.json", None, Ok("json")),
            ("a.ndjson", None, Ok("json")),
            ("a.jsonl", None, Ok("json")),
            ("-", None, Ok("json")),
            ("activity", None, Ok("json")),
            ("a.csv", Some("json"), Ok("json")),
            ("a.xyz", Some("csv"), Ok("csv")),
            ("week.xyz", None, Err("week.xyz: no format has the extension '.xyz'")),
            ("a.csv.gz", None, Err("'.gz': use .json, .ndjson, .jsonl")),
        ] {
            let mut line = vec!["mcpproxy", "activity", "export", "--file", file];
            line.extend(format.into_iter().flat_map(|format| ["--format", format]));
            let parsed = crate::args::Cli::try_parse_from(line).unwrap().command;
            let crate::args::Command::Activity(ActivityCommand::Export(export)) = parsed else {
                panic!("{file}")
            };
            match (export.format(), expected) {
                (Ok(format), Ok(expected)) => assert_eq!(format, expected, "{file}"),
                (Err(error), Err(words)) => {
                    assert!(error.contains(words) && error.contains("--format"), "{error}");
                }
                (format, _) => panic!("{file}: {format:?}"),
            }
        }
    }
}
