//! The command line as it is typed: every command, flag, help text and example.
//!
//! Owns the words and nothing else. What a flag means is decided by the command's own file; a test
//! below holds every command to an example.

mod activity;
mod approvals;
mod call;
mod fleet;
mod policy;
mod setup;
mod token;
mod upstream;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ColorChoice, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::telemetry::build_info::LONG_VERSION;

pub(super) use activity::{
    ActivityCommand, ActivityExport, ActivityFilters, ActivityList, ActivityProve, ActivityVerify,
};
pub(super) use approvals::ApprovalsCommand;
pub(super) use call::{CallArgs, CallCommand};
pub(super) use fleet::FleetCommand;
pub(super) use policy::{PolicyCommand, PolicyExplain};
pub(super) use setup::{ConnectArgs, ImportArgs, StatusArgs};
pub(super) use token::{TokenCommand, TokenCreate};
pub(super) use upstream::{UpstreamAdd, UpstreamCommand};

/// mcpproxy stands between AI agents and MCP servers: it decides which calls may go out, checks
/// what comes back, hands on the servers' own bytes, and records every decision.
#[derive(Debug, Parser)]
#[command(
    name = "mcpproxy",
    version = LONG_VERSION,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
Start here:
  mcpproxy demo                 five calls with five fates; needs no config, no network
  mcpproxy init                 make a config; import, upstream add and connect fill it
  mcpproxy serve                run the proxy before your own servers
  mcpproxy tools search notes   find a tool in plain words
  mcpproxy call tool-read files:list_directory --args '{\"path\":\"/tmp\"}'
  mcpproxy activity list        what went through, and what was decided

Exit codes: 0 ok, 1 the operation failed, 2 bad usage, 3 server not reachable or port taken, \
4 activity store locked or damaged, 5 config error, 130 and 143 told twice to end."
)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Flags every command takes. A flag beats the environment, which beats the config file.
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
    /// Where catalog, activity and logins are kept [default: ~/.mcpproxy]
    #[arg(
        short,
        long,
        global = true,
        value_name = "DIR",
        env = "MCPPROXY_DATA_DIR",
        hide_env_values = true
    )]
    pub(super) data_dir: Option<PathBuf>,
    /// How results are printed: table, json (errors too) or yaml
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
    /// Colours: auto (at a terminal, unless NO_COLOR is set), always or never
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
    /// error, warn, info, debug or trace; logs go to stderr
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        value_parser = ["error", "warn", "info", "debug", "trace"],
        hide_possible_values = true
    )]
    pub(super) log_level: Option<String>,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people.
    Table,
    /// For programs; what a tool answered is printed byte for byte.
    Json,
    /// The same as json, written as YAML.
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

Agents connect to http://127.0.0.1:8080/mcp. An empty or missing config is a working config. \
Ctrl-C lets calls in flight finish (20 seconds), flushes the activity log and stops every child \
process; a second one does not wait (exit 130). SIGTERM and the end of the terminal do as Ctrl-C; \
SIGHUP otherwise has the config read again, as a change of its file does.")]
    Serve(ServeArgs),
    /// Make a config to begin with, and say what comes next
    #[command(after_help = "\
Examples:
  mcpproxy init
  mcpproxy -c ./mcp_config.json init

The file is 0600 and holds a key of its own. One that is there keeps what it says. Beside it lies the schema by which \
editors complete and check it.")]
    Init,
    /// Take over the servers of Claude, Cursor, VS Code, Windsurf, Codex and Zed
    #[command(after_help = "\
Examples:
  mcpproxy import
  mcpproxy import cursor vscode --dry-run
  mcpproxy import claude-desktop --yes

What would be added is shown first, without the values of variables and headers, which are carried \
over, and with what of it does not work here. Looked at are the files for all projects, those of single \
projects in Claude Code's, and those of the folder that this is run in. The other programs' files stay \
as they are. Nothing is started until you agree; then a proxy that runs starts what was added at once.")]
    Import(ImportArgs),
    /// Write our entry into a client's config, or take it out again
    #[command(after_help = "\
Examples:
  mcpproxy connect claude-code
  mcpproxy connect cursor --dry-run
  mcpproxy connect vscode --undo

What would be written is shown first; the rest of the file stays as it is, and the file as it was is \
kept beside it until --undo. With require_mcp_auth the entry holds the key.")]
    Connect(ConnectArgs),
    /// Speak MCP over stdin and stdout, for clients that start a command
    #[command(after_help = "\
Examples:
  mcpproxy stdio
  {\"mcpServers\": {\"mcpproxy\": {\"command\": \"mcpproxy\", \"args\": [\"stdio\"]}}}

The second line is the entry for a client's config. A server that runs with the same config is used, \
else the proxy runs in this process. stdout carries MCP only; logs go to stderr. SIGINT, SIGTERM and \
the end of input let calls in flight finish; a second signal does not wait.")]
    Stdio,
    /// How the running mcpproxy is: servers, calls of the last hour, what waits, what is wrong
    #[command(after_help = "\
Examples:
  mcpproxy status
  mcpproxy status --json
  mcpproxy status --alive

Exit code 3 if none runs. With a config file that cannot be used, what the running one says is shown all the same, and its \
exit code is 1. --alive asks for nothing but whether one answers, and needs no config that can be used: 0 or 3.")]
    Status(StatusArgs),
    /// Print an address that opens the page of the running mcpproxy
    #[command(after_help = "\
Examples:
  mcpproxy page
  mcpproxy page -o json

The address opens the page once, within ten minutes, and needs no key: hand it to nobody. Exit code 3 \
if none runs.")]
    Page,
    /// Look for what is wrong, and tell the command that mends it
    #[command(after_help = "\
Examples:
  mcpproxy doctor
  mcpproxy doctor --fix
  mcpproxy doctor -o json

Looked at: the config, the files of TLS, rights, the clock, the disk, the port, the log, and each server \
from its start to its list of tools. Exit code 1 if something is wrong. With no mcpproxy running the servers are \
started for it, and ended again.")]
    Doctor {
        /// Take from others the rights that they have on config and data; nothing else is changed
        #[arg(long)]
        fix: bool,
    },
    /// Call a tool through the proxy, as an agent would
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy call tool-read files:list_directory --args '{\"path\":\"/tmp\"}'
  mcpproxy call tool-write github:create_issue --args @issue.json --reason 'reported by QA'
  mcpproxy call tool-destructive files:delete --args '{\"path\":\"/tmp/x\"}' --sensitivity private

The command states the intent: tool-read is refused on a tool its server marks destructive."
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
    /// What went through the proxy and what was decided
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy activity list --status blocked,rejected
  mcpproxy activity show 01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2
  mcpproxy activity summary --period 7d
  mcpproxy activity watch"
    )]
    Activity(ActivityCommand),
    /// Calls that wait for a person: look at them, approve or deny them
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
    /// The fleet that the node which runs here belongs to
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy fleet status
  mcpproxy fleet apply fleet.json"
    )]
    Fleet(FleetCommand),
    /// The operator's rules: check, test, explain, and replay over the log
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy policy check
  mcpproxy policy explain --as token:ci --tool github:delete_repo
  mcpproxy policy replay new.cedar --since 30d"
    )]
    Policy(PolicyCommand),
    /// The MCP servers behind the proxy
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy upstream list
  mcpproxy upstream add files -- npx -y @modelcontextprotocol/server-filesystem /tmp
  mcpproxy upstream logs files -f
  mcpproxy upstream login github"
    )]
    Upstream(UpstreamCommand),
    /// Tokens for agents: what each may be used for, and until when
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy token create ci --server github --operation read --expires 30d
  mcpproxy token list
  mcpproxy token revoke ci"
    )]
    Token(TokenCommand),
    /// Check the config, or say where it is
    #[command(
        subcommand,
        after_help = "\
Examples:
  mcpproxy config check
  mcpproxy config schema
  mcpproxy config path"
    )]
    Config(ConfigCommand),
    /// Five calls with five different fates: no config, no network, nothing left behind
    #[command(after_help = "\
Examples:
  mcpproxy demo

It starts a proxy with a throw-away store and one MCP server (a child process of this same \
program), makes a read, a write, a refused, a schema-violating and an oversized call, and shows \
what happened to each and the activity they left.")]
    Demo,
    /// Print a completion script for your shell
    #[command(after_help = "\
Examples:
  mcpproxy completions bash > ~/.local/share/bash-completion/completions/mcpproxy
  mcpproxy completions zsh > ~/.zfunc/_mcpproxy
  mcpproxy completions fish > ~/.config/fish/completions/mcpproxy.fish")]
    Completions(CompletionsArgs),
    /// Write the manual pages into a folder, a page for each command
    #[command(hide = true, after_help = "Examples:\n  mcpproxy man ./man1")]
    Man {
        /// The folder; it is made if it is not there
        folder: PathBuf,
    },
    /// The demo's MCP server, spoken over stdio
    #[command(hide = true, after_help = "Examples:\n  mcpproxy demo-upstream")]
    DemoUpstream,
}

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Address to listen on [default: 127.0.0.1:8080]
    #[arg(short, long, value_name = "HOST:PORT")]
    pub(super) listen: Option<String>,
    /// Move a damaged activity log aside (nothing is deleted) and go on with what can be read
    #[arg(long)]
    pub(super) salvage: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum ToolsCommand {
    /// Find tools in plain words, best first
    #[command(after_help = "\
Examples:
  mcpproxy tools search 'delete a repository'
  mcpproxy tools search notes --limit 3")]
    Search {
        /// What the tool should do
        #[arg(required = true, value_name = "QUERY")]
        query: Vec<String>,
        /// At most this many tools, up to 100
        #[arg(short = 'n', long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=100))]
        limit: u32,
    },
    /// All tools of all servers
    #[command(after_help = "\
Examples:
  mcpproxy tools list
  mcpproxy tools list --server github -o yaml")]
    List {
        /// Only this server's
        #[arg(long, value_name = "NAME")]
        server: Option<String>,
    },
    /// What is another about a tool's definition, or about all that wait of a server
    #[command(after_help = "\
Examples:
  mcpproxy tools diff github:create_issue
  mcpproxy tools diff github --json

What a server wrote is shown with hidden characters made visible. The digest at the end is what \
`tools approve` takes: it stands for exactly what was shown.")]
    Diff {
        /// The tool as server:tool, or a server
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Trust a definition that is in quarantine: a tool's, or all that wait of a server
    #[command(after_help = "\
Examples:
  mcpproxy tools approve github:create_issue
  mcpproxy tools approve github --digest 5f0c3d2e9b7a48161f5a0e2d7c9b3a64

Without --digest the difference is shown and you are asked, which takes a terminal. If the server \
changes the definition meanwhile, nothing is approved.")]
    Approve {
        /// The tool as server:tool, or a server
        #[arg(value_name = "NAME")]
        name: String,
        /// What you have seen: the digest that `tools diff` shows
        #[arg(long, value_name = "DIGEST")]
        digest: Option<String>,
    },
    /// One tool: description, schemas, annotations, and which call command to use
    #[command(after_help = "\
Examples:
  mcpproxy tools show github:create_issue")]
    Show {
        /// The tool, as server:tool
        #[arg(value_name = "SERVER:TOOL")]
        name: String,
    },
}

/// Reads `--output FILE` behind `activity export` as `--file FILE`: everywhere else `--output` is
/// the form of what is printed.
pub(super) fn with_export_file(typed: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut before = [OsString::new(), OsString::new()];
    let mut exports = false;
    let rewrite = |word: OsString| {
        exports |= before == ["activity", "export"];
        before.rotate_left(1);
        let [_, last] = &mut before;
        last.clone_from(&word);
        match word.to_str().and_then(|word| word.strip_prefix("--output")) {
            Some("") if exports => "--file".into(),
            Some(file) if exports && file.starts_with('=') => format!("--file{file}").into(),
            Some(_) | None => word,
        }
    };
    typed.into_iter().map(rewrite).collect()
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Read the config, look for what it names, and tell every error and warning with its place
    #[command(after_help = "\
Examples:
  mcpproxy config check
  mcpproxy -c ./mcp_config.json config check

Also looked for: the servers' commands and folders, the variables they need, and whether data_dir \
can be written to. No server is started. Exit code 5 if anything is wrong; warnings alone are exit \
code 0. With json, \"problems\" holds each with file, line, column and key.")]
    Check,
    /// Have the running proxy read its config again, and tell what it changes
    #[command(after_help = "\
Examples:
  mcpproxy config reload
  mcpproxy config reload --json

A running proxy notices a changed file by itself; this waits for it, and tells what is in force now and \
what needs a restart. A config that cannot be used is exit code 5, and the one before stays in force.")]
    Reload,
    /// Print the JSON Schema of the config: every key, its values and its default, for editors
    #[command(after_help = "\
Examples:
  mcpproxy config schema > ~/.mcpproxy/mcp_config.schema.json

An editor completes and checks the config by it once the file begins with {\"$schema\": \"./mcp_config.schema.json\", …}. \
A running proxy has it at /api/v1/config/schema.json.")]
    Schema,
    /// Print the path of the config file in use
    #[command(after_help = "\
Examples:
  mcpproxy config path
  $EDITOR \"$(mcpproxy config path)\"")]
    Path,
}

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(value_enum, hide_possible_values = true)]
    pub(super) shell: Shell,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn every(command: &clap::Command, path: &str, visit: &mut impl FnMut(&clap::Command, &str)) {
        visit(command, path);
        for sub in command.get_subcommands() {
            every(sub, &format!("{path} {}", sub.get_name()), visit);
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example_that_names_it_and_a_description() {
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
    fn what_is_told_after_the_help_is_wrapped_for_the_terminal_and_not_here() {
        let is_prose =
            |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
        every(&Cli::command(), "mcpproxy", &mut |command, path| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<_> = help.lines().collect();
            let broken = lines.windows(2).find(|two| two.iter().all(|line| is_prose(line)));
            assert_eq!(broken, None, "{path}");
        });
        let doctor =
            Cli::command().term_width(80).try_get_matches_from(["mcpproxy", "doctor", "-h"]);
        let help = doctor.unwrap_err().to_string();
        let (_, prose) = help.split_once("Looked at:").unwrap();
        let lines: Vec<_> = prose.trim_end().lines().collect();
        let (_, full) = lines.split_last().unwrap();
        assert!(full.iter().all(|line| line.len() > 50), "a line of few words: {prose}");
    }

    #[test]
    fn examples_parse() {
        every(&Cli::command(), "mcpproxy", &mut |command, path| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
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

    /// Splits at blanks outside single quotes: all the examples need.
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
    fn act_7_behind_export_output_is_the_file() {
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
    fn fr_026_both_spellings_of_a_call_mean_the_same() {
        let parse = |line: &[&str]| match Cli::try_parse_from(line).unwrap().command {
            Command::Call(CallCommand::Read(args)) => (args.tool.or(args.tool_name), args.args),
            other => panic!("{other:?}"),
        };
        let short = ["mcpproxy", "call", "tool-read", "a:b", "--args", "{\"x\":1}"];
        let long = ["mcpproxy", "call", "tool-read", "--tool-name=a:b", "--json_args", "{\"x\":1}"];
        assert_eq!(parse(&short), parse(&long));
        assert_eq!(parse(&short).0.as_deref(), Some("a:b"));
    }
}
