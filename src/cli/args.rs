//! Command line grammar: every command, flag, help text and example, and the parsers of flag values.
//!
//! Purely declarative: the effect of a flag is decided in the command's own file. A test below requires an example for
//! every command. Parsers are pure, and the clock is an argument; only [`Arguments::read`]
//! reads stdin or a file.

mod arguments;
mod filter_words;
mod subcommands;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, ColorChoice, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use jiff::{SignedDuration, Timestamp};
use mcpproxy_gateway::telemetry::build_info::LONG_VERSION;
use mcpproxy_runtime::io::address::Address;

use crate::guide::PAGES;

pub(super) use crate::args::arguments::Arguments;
pub(super) use crate::args::filter_words::status_words;
pub(super) use crate::args::subcommands::{
    ActivityCommand, ActivityExport, ActivityFilters, ActivityList, ActivityProve, ActivityVerify,
    ApprovalsCommand, CallArgs, CallCommand, ConnectArgs, FleetCommand, ImportArgs, PolicyCommand,
    PolicyExplain, RecordFilters, StatusArgs, StdioArgs, TokenCommand, TokenCreate, TokenScope,
    UpstreamAdd, UpstreamCommand,
};

/// mcpproxy is a proxy between AI agents and MCP servers: it admits or refuses each call, validates the results,
/// forwards the servers' own bytes, and records every decision.
#[derive(Debug, Parser)]
#[command(
    name = "mcpproxy",
    version = LONG_VERSION,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
Start here:
  mcpproxy demo                 five sample calls; needs no config, no network
  mcpproxy init                 create a config; import and connect fill it
  mcpproxy serve                run the proxy in front of your own servers
  mcpproxy tools search notes   find a tool by description
  mcpproxy call tool-read files:list_directory --args '{\"path\":\"/tmp\"}'
  mcpproxy activity list        recorded calls and decisions
  mcpproxy guide                the pages of the guide: policy, operation, …

Exit codes: 0 ok, 1 the operation failed, 2 bad usage, 3 mcpproxy unreachable or port in use, \
4 activity store locked or damaged, 5 config error, 6 export without the records of some fleet nodes, \
130/143 terminated by a second SIGINT/SIGTERM."
)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Definition that the command line is parsed with. The help of a subcommand has the global options for its output alone;
/// the help of mcpproxy has all.
pub(super) fn command() -> clap::Command {
    let mut command = Cli::command();
    // Global options are copied into the subcommands here.
    command.build();
    command.mut_subcommands(with_output_options_alone)
}

/// Commands without a result that has a format.
const WITHOUT_RESULT: [&str; 4] = ["demo", "serve", "stdio", "completions"];

fn with_output_options_alone(command: clap::Command) -> clap::Command {
    let has_result = !WITHOUT_RESULT.contains(&command.get_name());
    let command = command.mut_args(|arg| match arg.is_global_set() {
        true => {
            let is_of_output = has_result && ["output", "json"].contains(&arg.get_id().as_str());
            arg.hide(!is_of_output).help_heading("Global options ('mcpproxy --help' has all)")
        }
        false => arg,
    });
    command.mut_subcommands(with_output_options_alone)
}

/// Flags accepted by every command. A flag overrides the environment, which overrides the config file.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(super) struct Global {
    /// Config file [default: ~/.mcpproxy/mcp_config.json]
    #[arg(
        short,
        long,
        global = true,
        value_name = "FILE",
        env = "MCPPROXY_CONFIG",
        hide_env_values = true
    )]
    pub(super) config: Option<PathBuf>,
    /// Directory for catalog, activity and logins [default: ~/.mcpproxy]
    #[arg(
        short,
        long,
        global = true,
        value_name = "DIR",
        env = "MCPPROXY_DATA_DIR",
        hide_env_values = true
    )]
    pub(super) data_dir: Option<PathBuf>,
    /// Output format: table, json (errors too) or yaml
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value = "table",
        env = "MCPPROXY_OUTPUT",
        hide_env_values = true,
        hide_possible_values = true
    )]
    pub(super) output: Format,
    /// Short for --output json
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// When to use color: auto (at a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        value_enum,
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub(super) color: ColorChoice,
    /// Log level: error, warn, info, debug or trace; logs go to stderr
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        value_parser = ["error", "warn", "info", "debug", "trace"],
        hide_possible_values = true
    )]
    pub(super) log_level: Option<String>,
}

/// Output format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Tables for people.
    Table,
    /// JSON for programs; a tool's result is printed byte for byte.
    Json,
    /// Same data as `Json`, serialized as YAML.
    Yaml,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the proxy: MCP at /mcp, REST at /api/v1
    #[command(after_help = "\
Examples:
  mcpproxy serve
  mcpproxy serve --listen 127.0.0.1:9000
  mcpproxy -c ./mcp_config.json serve --log-level debug
  mcpproxy serve --salvage

Agents connect to http://127.0.0.1:8080/mcp. Without a config the defaults apply; a file that -c names must exist. \
Ctrl-C lets calls in flight finish for at most 20 seconds, flushes the activity log and stops every child \
process. A second Ctrl-C aborts the calls and exits at once (exit code 130). SIGTERM, and SIGHUP when the terminal \
closes, act like Ctrl-C; any other SIGHUP reloads the config, as a change of its file does.")]
    Serve(ServeArgs),
    /// Create a config file and print the next steps
    #[command(after_help = "\
Examples:
  mcpproxy init
  mcpproxy -c ./mcp_config.json init

The file has mode 0600 and contains a generated API key. An existing file keeps its content. The JSON Schema \
that editors use to complete and check it is written beside it.")]
    Init,
    /// Import servers from Claude, Cursor, VS Code and other clients
    #[command(after_help = "\
Examples:
  mcpproxy import
  mcpproxy import cursor vscode --dry-run
  mcpproxy import claude-desktop --yes
  mcpproxy import --server github --server files

The servers to add are shown first, with warnings about settings that do not work here. The values of variables \
and headers are copied but not shown. The user-wide files, the per-project entries of Claude Code and the files \
of the current directory are searched; they are not changed. You confirm all servers, or choose some by their \
numbers; nothing is started before that. A running proxy then starts the new servers at once.")]
    Import(ImportArgs),
    /// Add mcpproxy to a client's config and move its servers here, or undo that
    #[command(after_help = "\
Examples:
  mcpproxy connect claude-code
  mcpproxy connect cursor --dry-run
  mcpproxy connect cursor --move --yes
  mcpproxy connect cursor --server files --operation read
  mcpproxy connect vscode --undo

The change is shown first. The rest of the file stays as it is, and a backup of the original is kept \
beside it until --undo. Servers that the client would still reach without mcpproxy are offered for a move: they \
are added to the config of mcpproxy, as by import, and then removed from the client. With require_mcp_auth the \
entry contains an agent token of its own, which --undo revokes. --server, --tool, --operation and --expires limit \
that token, also of a client that is connected already; its earlier token is then revoked.")]
    Connect(ConnectArgs),
    /// Serve MCP over stdin and stdout, for clients that start a command
    #[command(after_help = "\
Examples:
  mcpproxy stdio
  mcpproxy stdio --server github
  {\"mcpServers\": {\"mcpproxy\": {\"command\": \"mcpproxy\", \"args\": [\"stdio\"]}}}

The last line is the entry for a client's config. If a proxy runs with the same config, requests are \
forwarded to it; otherwise the proxy runs in this process. stdout carries MCP only; logs go to stderr. SIGINT, \
SIGTERM and end of input let calls in flight finish; a second signal ends at once.")]
    Stdio(StdioArgs),
    /// Show servers, recent calls, pending approvals and problems
    #[command(after_help = "\
Examples:
  mcpproxy status
  mcpproxy status --json
  mcpproxy status --alive

Exit code 3 if no proxy runs. With an invalid config file the running proxy's status is still shown, and \
the exit code is 1. --alive only checks whether a proxy answers: the exit code is 0 or 3, even if the config is invalid.")]
    Status(StatusArgs),
    /// Print a one-time address that opens the running proxy's web page
    #[command(after_help = "\
Examples:
  mcpproxy page
  mcpproxy page --open
  mcpproxy page -o json

The address works once, within ten minutes, and needs no key: keep it private. Exit code 3 \
if no proxy runs.")]
    Page {
        /// Also open the browser
        #[arg(long)]
        open: bool,
    },
    /// Run health checks and print the command that fixes each problem
    #[command(after_help = "\
Examples:
  mcpproxy doctor
  mcpproxy doctor --fix
  mcpproxy doctor -o json

Checked: the config, TLS files, file permissions, the clock, the disk, the port, the log, and each server \
from its start to its list of tools. Exit code 1 if a check fails. If no proxy runs, the servers are \
started for the check and stopped again.")]
    Doctor {
        /// Remove other users' permissions on config and data files; nothing else is changed
        #[arg(long)]
        fix: bool,
    },
    /// Call a tool through the proxy, as an agent would
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy call tool-read files:list_directory --args '{\"path\":\"/tmp\"}'
  mcpproxy call tool-write github:create_issue --args @issue.json \\
    --reason 'reported by QA'
  mcpproxy call tool-destructive files:delete --args '{\"path\":\"/tmp/x\"}' \\
    --sensitivity private

The command declares the intent: for a tool marked destructive only tool-destructive is allowed."
    )]
    Call(CallCommand),
    /// Search, list and inspect the tools of all upstream servers
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy tools search 'create an issue'
  mcpproxy tools list
  mcpproxy tools show github:create_issue"
    )]
    Tools(ToolsCommand),
    /// List, export, watch and verify the recorded calls and decisions
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy activity list --status refused
  mcpproxy activity show 01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2
  mcpproxy activity summary --period 7d
  mcpproxy activity watch"
    )]
    Activity(ActivityCommand),
    /// List pending calls, approve or deny them
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy approvals list
  mcpproxy approvals show 5r8x0q2mzk7w1ahd
  mcpproxy approvals approve 5r8x0q2mzk7w1ahd --for 1h
  mcpproxy approvals deny 5r8x0q2mzk7w1ahd"
    )]
    Approvals(ApprovalsCommand),
    /// Show the fleet's nodes and manage its shared config
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy fleet status
  mcpproxy fleet apply fleet.json"
    )]
    Fleet(FleetCommand),
    /// Check, test, explain and replay policy rules
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy policy check
  mcpproxy policy explain --as token:ci --tool github:delete_repo
  mcpproxy policy replay new.cedar --since 30d"
    )]
    Policy(PolicyCommand),
    /// Manage the MCP servers behind the proxy
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy upstream list
  mcpproxy upstream add files -- \\
    npx -y @modelcontextprotocol/server-filesystem /tmp
  mcpproxy upstream logs files -f
  mcpproxy upstream login github"
    )]
    Upstream(UpstreamCommand),
    /// Create, list, rotate and revoke agent tokens
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy token create ci --server github --operation read --expires 30d
  mcpproxy token list
  mcpproxy token revoke ci"
    )]
    Token(TokenCommand),
    /// Check, change or reload the config file, print its path or its JSON Schema
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy config set tools_limit 20
  mcpproxy config get mcpServers -o json
  mcpproxy config check"
    )]
    Config(ConfigSubcommand),
    /// Run five sample calls, each with a different outcome
    #[command(after_help = "\
Examples:
  mcpproxy demo

It starts a proxy with a temporary data directory and one MCP server (a child process of this same \
program), makes a read, a write, a refused, a schema-violating and an oversized call, and shows \
the outcome of each and the resulting activity log.")]
    Demo,
    /// Print a page of the guide, or list the pages
    #[command(after_help = "\
Examples:
  mcpproxy guide
  mcpproxy guide policy
  mcpproxy guide readme 'when something is wrong'
  mcpproxy guide fleet-setup > fleet-setup.md

At a terminal a page is drawn as text, and links name the command that prints the linked page. A pipe, a file and -o json get its Markdown.")]
    Guide {
        /// The page; without one the pages are listed
        #[arg(value_name = "PAGE", value_parser = PossibleValuesParser::new(PAGES.iter().map(|page| page.name)), hide_possible_values = true)]
        page: Option<String>,
        /// Only the sections whose heading contains this text
        #[arg(value_name = "SECTION")]
        section: Option<String>,
    },
    /// Print a completion script for your shell
    #[command(after_help = "\
Examples:
  mcpproxy completions bash \\
    > ~/.local/share/bash-completion/completions/mcpproxy
  mcpproxy completions zsh > ~/.zfunc/_mcpproxy
  mcpproxy completions fish > ~/.config/fish/completions/mcpproxy.fish")]
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory, one page per command
    #[command(after_help = "\
Examples:
  mcpproxy man ~/.local/share/man/man1
  mcpproxy man ./man1 --json

The first directory is one that man searches on most systems; installed packages have the pages already.")]
    Man {
        /// The directory; created if missing
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Run the demo's MCP server over stdio
    #[command(hide = true, after_help = "Examples:\n  mcpproxy demo-upstream")]
    DemoUpstream,
}

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Address to listen on [default: 127.0.0.1:8080]
    #[arg(short, long, value_name = "HOST:PORT", value_parser = listen_address)]
    pub(super) listen: Option<String>,
    /// Move a damaged activity log aside (nothing is deleted) and continue with the readable part
    #[arg(long)]
    pub(super) salvage: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum ToolsCommand {
    /// Find tools by description, best match first
    #[command(after_help = "\
Examples:
  mcpproxy tools search 'delete a repository'
  mcpproxy tools search notes --limit 3")]
    Search {
        /// Description of the task
        #[arg(required = true, value_name = "QUERY")]
        query: Vec<String>,
        /// Maximum number of tools, up to 100
        #[arg(short = 'n', long, default_value_t = 15, value_parser = subcommands::count::<100>)]
        limit: u32,
    },
    /// List all tools of all servers
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  mcpproxy tools list
  mcpproxy tools list --server github -o yaml"
    )]
    List {
        /// List only the tools of this server
        #[arg(long, value_name = "NAME")]
        server: Option<String>,
    },
    /// Classify the unannotated tools of a server as read, write or destructive, in the config
    #[command(after_help = "\
Examples:
  mcpproxy tools annotate sqlite
  mcpproxy tools annotate sqlite --read read_query,list_tables \\
    --destructive write_query

A tool is unannotated if neither the server nor the config marks it read-only or destructive. Without options the \
command shows each tool and asks what it does, which requires a terminal. The answers are written to the server's \
`capabilities` in the config file; a running proxy applies them at once. To correct an answer, name the tool again \
with --read, --write or --destructive.")]
    Annotate {
        /// The server's name in the config
        #[arg(value_name = "SERVER")]
        server: String,
        /// Tools that only read, separated by commas; repeatable
        #[arg(long, value_name = "TOOL", value_delimiter = ',')]
        read: Vec<String>,
        /// Tools that create or update, separated by commas; repeatable
        #[arg(long, value_name = "TOOL", value_delimiter = ',')]
        write: Vec<String>,
        /// Tools that delete or permanently change, separated by commas; repeatable
        #[arg(long, value_name = "TOOL", value_delimiter = ',')]
        destructive: Vec<String>,
    },
    /// Show pending changes to the definition of a tool, or of all tools of a server
    #[command(after_help = "\
Examples:
  mcpproxy tools diff github:create_issue
  mcpproxy tools diff github --json

Server-written text is shown with hidden characters made visible. The digest at the end is the argument of \
`tools approve`: it identifies exactly what was shown.")]
    Diff {
        /// The tool as server:tool, or a server
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Approve the quarantined definition of a tool, or of all tools of a server
    #[command(after_help = "\
Examples:
  mcpproxy tools approve github:create_issue
  mcpproxy tools approve github --digest 5f0c3d2e9b7a48161f5a0e2d7c9b3a64

Without --digest the difference is shown and you are asked to confirm, which requires a terminal. If the server \
changes the definition meanwhile, nothing is approved.")]
    Approve {
        /// The tool as server:tool, or a server
        #[arg(value_name = "NAME")]
        name: String,
        /// Digest of the reviewed definition, as `tools diff` prints it
        #[arg(long, value_name = "DIGEST")]
        digest: Option<String>,
    },
    /// Show one tool: description, schemas, annotations, call command
    #[command(after_help = "\
Examples:
  mcpproxy tools show github:create_issue")]
    Show {
        /// The tool, as server:tool
        #[arg(value_name = "SERVER:TOOL")]
        name: String,
    },
}

/// Returns the color choice of a command line that is not parsed yet, for its help and its usage errors.
pub(super) fn color_of(typed: &[OsString]) -> ColorChoice {
    let words = typed.iter().map(|word| word.to_str().unwrap_or_default());
    let words: Vec<&str> = words.take_while(|word| *word != "--").collect();
    let joined = words.iter().find_map(|word| word.strip_prefix("--color="));
    let next = words.iter().skip_while(|word| **word != "--color").nth(1).copied();
    match joined.or(next) {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        Some(_) | None => ColorChoice::Auto,
    }
}

/// Rewrites `--output FILE` after `activity export` to `--file FILE`, because everywhere else `--output` is the output
/// format. A format stays one here, too.
pub(super) fn with_export_file(typed: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut typed: Vec<OsString> = typed.into_iter().collect();
    let words: Vec<_> = typed.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let Some(export) = words.windows(2).position(|pair| pair == ["activity", "export"]) else {
        return typed;
    };
    let is_format = |word: &&str| ["table", "json", "yaml"].contains(word);
    let file_of = |at: usize, word: &str| match word.strip_prefix("--output")? {
        "" if !words.get(at + 1).is_some_and(is_format) => Some("--file".to_owned()),
        file => {
            let file = file.strip_prefix('=').filter(|file| !is_format(file))?;
            Some(format!("--file={file}"))
        }
    };
    let later = words.iter().enumerate().skip(export + 2);
    let rewritten: Vec<_> = later.filter_map(|(at, word)| Some((at, file_of(at, word)?))).collect();
    for (at, word) in rewritten {
        if let Some(place) = typed.get_mut(at) {
            *place = word.into();
        }
    }
    typed
}

/// Inserts `--` before the command of `upstream add NAME COMMAND`, so that the command's options are not parsed as
/// those of mcpproxy. Options of mcpproxy are written before it; words after a URL stay as they are.
pub(super) fn with_command_of_server(mut typed: Vec<OsString>) -> Vec<OsString> {
    let words: Vec<_> = typed.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let path = ["upstream", "add"];
    let (mut at, mut seen) = (1, 0);
    while let Some(word) = words.get(at) {
        at += match *word {
            "--" | "-h" | "--help" => break,
            option if option.starts_with('-') => 1 + usize::from(takes_value(option)),
            // Counts the words `upstream` and `add`, and then the server's name.
            word if path.get(seen).is_none_or(|next| *next == word) && seen <= path.len() => {
                seen += 1;
                1
            }
            _ if seen <= path.len() => break,
            url if url.contains("://") || subcommands::is_endpoint(url) => break,
            _ => {
                typed.insert(at, "--".into());
                break;
            }
        }
    }
    typed
}

/// Whether the next word is the value of this option of `upstream add`.
fn takes_value(word: &str) -> bool {
    let program = Cli::command();
    let upstream = program.find_subcommand("upstream");
    let add = upstream.and_then(|upstream| upstream.find_subcommand("add"));
    let ours = add.into_iter().flat_map(clap::Command::get_arguments);
    let mut options =
        program.get_arguments().chain(ours).filter(|it| it.get_action().takes_values());
    options.any(|option| {
        let long = option.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
        let short = option.get_short().is_some_and(|short| word == format!("-{short}"));
        long || short
    })
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigSubcommand {
    /// Check the config and everything it refers to
    #[command(after_help = "\
Examples:
  mcpproxy config check
  mcpproxy -c ./mcp_config.json config check

Also checked: the servers' commands and directories, the variables they need, and whether data_dir \
is writable. No server is started. Exit code 5 if there is an error; exit code 0 if there \
are only warnings. With json, \"problems\" lists each error and warning with file, line, column and key.")]
    Check,
    /// Make the running proxy reload its config and report what changed
    #[command(after_help = "\
Examples:
  mcpproxy config reload
  mcpproxy config reload --json

A running proxy notices a changed file by itself; this command waits for the reload and reports the changes \
in force and those that need a restart. If the config is invalid, the previous one stays in force (exit code 5).")]
    Reload,
    /// Print the JSON Schema of the config
    #[command(after_help = "\
Examples:
  mcpproxy config schema > ~/.mcpproxy/mcp_config.schema.json

Editors complete and check a config that begins with {\"$schema\": \"./mcp_config.schema.json\", …}. \
A running proxy serves the schema at /api/v1/config/schema.json.")]
    Schema,
    /// Print the value of a key in the config file
    #[command(after_help = "\
Examples:
  mcpproxy config get tools_limit
  mcpproxy config get mcpServers.files.args
  mcpproxy config get mcpServers -o json

If the file does not set the key, its default is printed; exit code 1 if it has none.")]
    Get {
        /// Key, with dots between its parts
        key: String,
    },
    /// Set a key in the config file; a running proxy reloads it
    #[command(after_help = "\
Examples:
  mcpproxy config set tools_limit 20
  mcpproxy config set mcpServers.files.call_timeout 30s
  mcpproxy config set allowed_hosts '[\"proxy.example.com\"]'
  mcpproxy config set api_key '${env:MCPPROXY_KEY}'

The value is JSON, or a text without quotes. A list is set as a whole. Comments and layout of the \
file are preserved. An unknown key, or a value that makes the config invalid, changes nothing. The guide's \
page configuration and `mcpproxy config schema` list the keys.")]
    Set {
        /// Key, with dots between its parts
        key: String,
        /// Value: JSON, or a text
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Remove a key from the config file, so that its default applies
    #[command(after_help = "\
Examples:
  mcpproxy config unset tools_limit
  mcpproxy config unset mcpServers.files.call_timeout

At a terminal it asks before it removes a key that has keys of its own, like a server; a script is not asked.")]
    Unset {
        /// Key, with dots between its parts
        key: String,
        /// Remove it without asking
        #[arg(short, long)]
        yes: bool,
    },
    /// Print the path of the config file in use
    #[command(after_help = "\
Examples:
  mcpproxy config path
  $EDITOR \"$(mcpproxy config path)\"")]
    Path,
}

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// Shell: bash, elvish, fish, powershell or zsh
    #[arg(value_enum, hide_possible_values = true)]
    pub(super) shell: Shell,
}

/// Parses a positive duration, like `30s`, `2m` or `1h30m`.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    match text.parse::<SignedDuration>().map(Duration::try_from) {
        Ok(Ok(duration)) if !duration.is_zero() => Ok(duration),
        _ => Err("expected a duration above zero, like 30s, 2m or 1h30m".to_owned()),
    }
}

/// Parses a positive duration that may have days, like `30d`, `12h` or `90m`.
pub(super) fn days(text: &str) -> Result<Duration, String> {
    const DAY: u64 = 24 * 60 * 60;
    let whole = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    match whole.map(|days| days.checked_mul(DAY)) {
        Some(Some(seconds)) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        Some(_) => Err("expected a duration above zero, like 30d, 12h or 90m".to_owned()),
        None => timeout(text)
            .map_err(|_| "expected a duration above zero, like 30d, 12h or 90m".to_owned()),
    }
}

/// Length of a date like `2026-11-16`.
const DATE_CHARS: usize = 10;

/// Checks the value of `--listen`.
fn listen_address(text: &str) -> Result<String, String> {
    match Address::parse(text) {
        Some(_) => Ok(text.to_owned()),
        None => {
            Err("expected an IP address and a port like 127.0.0.1:8080, or unix:/PATH".to_owned())
        }
    }
}

/// Parses a timestamp: RFC 3339, a date alone (midnight UTC), or an age before `now`. Returns RFC 3339.
pub(super) fn moment(flag: &str, text: &str, now: Timestamp) -> Result<String, String> {
    let wrong = || {
        let date = now.strftime("%Y-%m-%d");
        format!(
            "{flag} '{text}': expected a date like {date}, RFC 3339 like {now:.0}, or an age like 2h or 7d"
        )
    };
    let midnight = (text.len() == DATE_CHARS).then(|| format!("{text}T00:00:00Z"));
    let time = match midnight.as_deref().unwrap_or(text).parse::<Timestamp>() {
        Ok(time) => time,
        Err(_) => {
            let age = days(text).map_err(|_| wrong())?;
            let time = now.checked_sub(age).map_err(|_| wrong())?;
            // A time computed from an age is given in whole seconds.
            return Ok(format!("{time:.0}"));
        }
    };
    Ok(time.to_string())
}

#[cfg(test)]
mod tests {

    use super::*;

    fn every(command: &clap::Command, path: &str, visit: &mut impl FnMut(&clap::Command, &str)) {
        visit(command, path);
        for sub in command.get_subcommands() {
            every(sub, &format!("{path} {}", sub.get_name()), visit);
        }
    }

    #[test]
    fn command_definition_passes_claps_debug_assertions() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_description_and_an_example() {
        let mut seen = 0;
        every(&Cli::command(), "mcpproxy", &mut |command, path| {
            seen += 1;
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let verb = path.rsplit(' ').next().unwrap();
            let example = |line: &str| line.contains("mcpproxy") && line.contains(verb);
            assert!(help.lines().any(example), "{path} has no example");
            assert!(command.get_about().is_some(), "{path} has no description");
        });
        assert!(seen > 15, "{seen} commands");
    }

    #[test]
    fn help_epilogue_has_no_hard_line_breaks() {
        let is_prose =
            |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
        every(&Cli::command(), "mcpproxy", &mut |command, path| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<_> = help.lines().collect();
            let broken = lines.windows(2).find(|two| two.iter().all(|line| is_prose(line)));
            assert_eq!(broken, None, "{path}");
        });
        let doctor =
            super::command().term_width(80).try_get_matches_from(["mcpproxy", "doctor", "-h"]);
        let help = doctor.unwrap_err().to_string();
        let (_, global) = help.split_once("Global options").unwrap();
        assert!(global.contains("--output") && !global.contains("--log-level"), "{help}");
        let (_, prose) = help.split_once("Checked:").unwrap();
        let lines: Vec<_> = prose.trim_end().lines().collect();
        let (_, full) = lines.split_last().unwrap();
        assert!(full.iter().all(|line| line.len() > 50), "a line of few words: {prose}");
    }

    #[test]
    fn examples_are_not_wrapped_at_80_columns() {
        let mut program = Cli::command();
        program.build();
        let mut seen = 0;
        every(&program, "mcpproxy", &mut |command, path| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let rendered = command.clone().term_width(80).render_long_help().to_string();
            for example in help.lines().filter(|line| line.starts_with("  ")) {
                seen += 1;
                assert!(example.chars().count() <= 78, "{path}: {example}");
                assert!(
                    rendered.lines().any(|line| line == example),
                    "{path}: {example}: {rendered}"
                );
            }
        });
        assert!(seen > 100, "{seen} lines");
    }

    #[test]
    fn examples_parse() {
        every(&Cli::command(), "mcpproxy", &mut |command, path| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let help = help.replace(" \\\n   ", "");
            for line in help.lines().filter_map(|line| line.strip_prefix("  mcpproxy ")) {
                let typed = line.split(" > ").next().unwrap();
                let typed = typed.split("   ").next().unwrap();
                let words = std::iter::once("mcpproxy".to_owned()).chain(shell_words(typed));
                let words = with_export_file(words.map(OsString::from));
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{path}: {line}: {error}");
                }
            }
        });
    }

    /// Splits at spaces outside single quotes, which suffices for the examples.
    fn shell_words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
        for letter in line.chars() {
            match letter {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(std::mem::take(&mut word)),
                other => word.push(other),
            }
        }
        words.push(word);
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn act_7_output_flag_after_export_names_the_file() {
        let parse = |line: &str| {
            let cli = Cli::try_parse_from(with_export_file(line.split(' ').map(OsString::from)));
            let cli = cli.unwrap_or_else(|error| panic!("{line}: {error}"));
            let Command::Activity(ActivityCommand::Export(export)) = cli.command else {
                panic!("{line}")
            };
            (cli.global.output, export.file)
        };
        let file = PathBuf::from("a.csv");
        for line in [
            "mcpproxy activity export --output a.csv",
            "mcpproxy activity export --format csv --output=a.csv",
            "mcpproxy activity export --file a.csv",
        ] {
            assert_eq!(parse(line), (Format::Table, file.clone()), "{line}");
        }
        let both = "mcpproxy --output json activity export --output a.csv";
        assert_eq!(parse(both), (Format::Json, file.clone()));
        assert_eq!(parse("mcpproxy activity export --output a.csv -o json"), (Format::Json, file));
        let list = "mcpproxy activity list --output json".split(' ').map(OsString::from);
        assert_eq!(with_export_file(list.clone()), list.collect::<Vec<_>>());
    }

    #[test]
    fn fr_026_both_spellings_of_call_arguments_are_equivalent() {
        let parse = |line: &[&str]| match Cli::try_parse_from(line).unwrap().command {
            Command::Call(CallCommand::Read(args)) => (args.tool.or(args.tool_name), args.args),
            other => panic!("{other:?}"),
        };
        let short = ["mcpproxy", "call", "tool-read", "a:b", "--args", "{\"x\":1}"];
        let long = ["mcpproxy", "call", "tool-read", "--tool-name=a:b", "--json_args", "{\"x\":1}"];
        assert_eq!(parse(&short), parse(&long));
        assert_eq!(parse(&short).0.as_deref(), Some("a:b"));
    }

    #[test]
    fn color_setting_of_help_is_found_on_unparsed_command_lines() {
        for (line, expected) in [
            ("mcpproxy --help", ColorChoice::Auto),
            ("mcpproxy --color never --help", ColorChoice::Never),
            ("mcpproxy tools list --help --color=never", ColorChoice::Never),
            ("mcpproxy --color always nonsense", ColorChoice::Always),
            ("mcpproxy --color", ColorChoice::Auto),
            ("mcpproxy upstream add t -- npx --color never", ColorChoice::Auto),
        ] {
            let typed: Vec<_> = line.split(' ').map(OsString::from).collect();
            assert_eq!(color_of(&typed), expected, "{line}");
        }
    }

    #[test]
    fn timeouts_are_positive_durations() {
        assert_eq!(timeout("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(timeout("1h30m"), Ok(Duration::from_secs(5400)));
        for bad in ["", "0s", "-1s", "30", "soon"] {
            assert!(timeout(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn timestamps_are_absolute_or_relative() {
        let now: Timestamp = "2026-01-02T12:00:00Z".parse().unwrap();
        let at = |text| moment("--since", text, now);
        assert_eq!(at("2h").unwrap(), "2026-01-02T10:00:00Z");
        assert_eq!(at("7d").unwrap(), "2025-12-26T12:00:00Z");
        let exact: Timestamp = "2026-01-02T12:00:00.123456789Z".parse().unwrap();
        assert_eq!(moment("--since", "2h", exact).unwrap(), "2026-01-02T10:00:00Z");
        assert_eq!(at("2026-01-01T00:00:00+02:00").unwrap(), "2025-12-31T22:00:00Z");
        assert_eq!(at("2026-11-16").unwrap(), "2026-11-16T00:00:00Z", "a date is midnight UTC");
        for bad in ["yesterday", "-2h", "2026-13-01T00:00:00Z", "2026-13-01", "2026-11-1", ""] {
            let error = at(bad).unwrap_err();
            assert!(error.starts_with(&format!("--since '{bad}'")), "{error}");
        }
    }

    #[test]
    fn cli_1_usual_aliases_and_a_positional_url_are_accepted() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.command);
        for line in [
            "mcpproxy upstream ls",
            "mcpproxy tools ls",
            "mcpproxy activity ls",
            "mcpproxy approvals ls",
            "mcpproxy token ls",
            "mcpproxy upstream rm files",
            "mcpproxy page --open",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
        let added = parse("mcpproxy upstream add web https://h/mcp").unwrap();
        let Command::Upstream(UpstreamCommand::Add(added)) = added else { panic!("{added:?}") };
        assert_eq!(added.endpoint.as_deref(), Some("https://h/mcp"));
        for bad in [
            "mcpproxy upstream add web https://h --url https://h",
            "mcpproxy upstream add web https://h -- npx",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cli_1_server_command_needs_no_separator() {
        let parse = |line: &str| {
            let typed = line.split(' ').map(OsString::from).collect();
            Cli::try_parse_from(with_command_of_server(typed)).map(|cli| cli.command)
        };
        for (line, env) in [
            ("mcpproxy upstream add t npx -y pkg", 0),
            ("mcpproxy upstream add t -- npx -y pkg", 0),
            ("mcpproxy -c f --output json upstream add --disabled t --env A=1 npx -y pkg", 1),
            ("mcpproxy upstream add --env=A=1 --env B=2 t -o yaml npx -y pkg", 2),
            ("mcpproxy upstream -o json add t npx -y pkg", 0),
        ] {
            let Ok(Command::Upstream(UpstreamCommand::Add(added))) = parse(line) else {
                panic!("{line}");
            };
            assert_eq!((&*added.name, added.env.len()), ("t", env), "{line}");
            assert_eq!(added.command, ["npx", "-y", "pkg"], "{line}");
        }
        for line in [
            "mcpproxy upstream add t https://h/mcp --disabled",
            "mcpproxy upstream add t --url https://h/mcp",
            "mcpproxy upstream add t",
            "mcpproxy upstream list",
            "mcpproxy call tool-read a:b -- upstream add t npx",
        ] {
            let typed: Vec<_> = line.split(' ').map(OsString::from).collect();
            assert_eq!(with_command_of_server(typed.clone()), typed);
            assert!(parse(line).is_ok(), "{line}");
        }
    }
}
