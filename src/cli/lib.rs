//! Command line: parses the arguments, runs the command and maps the outcome to an exit code.
//!
//! `args` declares commands and flags, `commands` has a file per command group, `backend` queries the proxy, `output`
//! prints the result. Call decisions are made in the other crates.

use crate::args::{Cli, Format};
use crate::error::{CommandError, Exit};
use crate::output::Output;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use mcpproxy_runtime::nearest::nearest_few;
use mcpproxy_upstream::reaper;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

mod args;
mod backend;
mod bridge;
mod clients;
mod commands;
mod completion;
mod error;
mod format;
mod guide;
mod hints;
mod http_client;
mod logging;
mod markdown;
mod output;
mod running_proxy;
mod server_state;
mod start_proxy;
mod style;
mod table;
mod terminal_safe;

/// Runs the command given by the process's arguments.
pub fn run() -> ExitCode {
    let typed: Vec<OsString> = std::env::args_os().collect();
    if let Some(ended) = reaper::run(&typed) {
        return ended;
    }
    match completion::answer_shell(&typed) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        // stdout carries completions only at this point.
        Err(_) => return ExitCode::FAILURE,
    }
    let typed = args::with_command_of_server(args::with_export_file(typed));
    let command = Cli::command().color(args::color_of(&typed));
    let parsed = command.try_get_matches_from(&typed);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            return report_usage_error(&with_tip(without_hidden_tips(error), &typed), &typed);
        }
    };
    let named = (cli.global.config.as_deref(), cli.global.data_dir.as_deref());
    hints::remember(named, commands_with_config);
    let output = Output::new(&cli.global);
    match commands::run(cli, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report(&failure, output.format == Format::Json);
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// Commands that read no config.
const WITHOUT_CONFIG: [&str; 4] = ["completions", "demo", "guide", "man"];

/// Names of the commands that read the config.
fn commands_with_config() -> Vec<String> {
    let all = Cli::command();
    let names = all.get_subcommands().map(|it| it.get_name().to_owned());
    names.filter(|name| !WITHOUT_CONFIG.contains(&name.as_str())).collect()
}

/// Handles a parse error or a request for help.
fn report_usage_error(error: &clap::Error, typed: &[OsString]) -> ExitCode {
    if error.use_stderr() && wants_json(typed, std::env::var("MCPPROXY_OUTPUT").ok()) {
        report(&CommandError::usage(usage_message(&error.to_string())), true);
    } else if error.kind() == ErrorKind::MissingSubcommand && typed.len() < 2 {
        // Clap counts environment variables as arguments and therefore does not print the help itself.
        let _ = write!(std::io::stderr(), "{}", Cli::command().render_help());
    } else {
        // A closed pipe is not an error.
        let _ = error.print();
    }
    match error.use_stderr() {
        true => ExitCode::from(Exit::Usage as u8),
        false => ExitCode::SUCCESS,
    }
}

/// Removes suggestions of hidden commands, all but the most similar command, and advice to pass an unknown flag as a value, from an
/// error.
fn without_hidden_tips(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains(" as a value, use "));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    let tips = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(tips)) => tips,
        Some(other) => {
            error.insert(ContextKind::SuggestedSubcommand, other);
            return error;
        }
        None => return error,
    };
    let all = Cli::command();
    let is_hidden =
        |name: &String| all.get_subcommands().any(|it| it.is_hide_set() && it.get_name() == name);
    let tips: Vec<String> = tips.into_iter().filter(|name| !is_hidden(name)).collect();
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) => typed.clone(),
        Some(_) | None => String::new(),
    };
    let meant = nearest_few(&typed, tips.iter().map(String::as_str), 1).first().copied();
    if let Some(meant) = meant.or(tips.first().map(String::as_str)) {
        let meant = vec![meant.to_owned()];
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(meant));
    }
    error
}

/// Adds a tip to an error, if there is one. It replaces clap's similar subcommands.
fn with_tip(mut error: clap::Error, typed: &[OsString]) -> clap::Error {
    if let Some(tip) = tip(&error, typed) {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Tip that names the option or command that a rejected command line probably meant.
fn tip(error: &clap::Error, typed: &[OsString]) -> Option<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(_) | None => None,
    };
    let follows = |pair: [&str; 2]| typed.windows(2).any(|words| words == pair);
    match error.kind() {
        // -o is the format of results, although `--output` of this command is its file.
        ErrorKind::InvalidValue if follows(["activity", "export"]) => {
            context(ContextKind::InvalidArg).filter(|arg| arg.starts_with("--output"))?;
            let word = context(ContextKind::InvalidValue)?;
            if ["csv", "parquet"].contains(&word) {
                return Some(format!("the format of the file is `--format {word}`"));
            }
            let file = terminal_safe::quoted(word)?;
            Some(format!("for a file, use `--file {file}`"))
        }
        ErrorKind::InvalidValue if context(ContextKind::InvalidArg)?.contains("<CLIENT>") => {
            Some("`mcpproxy guide clients` shows how to connect others".to_owned())
        }
        ErrorKind::UnknownArgument if typed.iter().any(|word| word == "serve") => {
            let is_port = context(ContextKind::InvalidArg)?.starts_with("--port");
            is_port.then(|| "did you mean `--listen 127.0.0.1:PORT`?".to_owned())
        }
        // `list` and `export` have --since.
        ErrorKind::UnknownArgument if follows(["activity", "summary"]) => {
            let is_time = context(ContextKind::InvalidArg)?.starts_with("--since");
            is_time.then(|| "did you mean `--period 7d`? It is 1h, 24h, 7d or 30d".to_owned())
        }
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand)?;
            if !word.contains(':') || !follows(["call", word]) {
                let meant = meant_command(parent_command(typed, word), word)?;
                return Some(format!("did you mean `mcpproxy {meant}`?"));
            }
            let tool = terminal_safe::quoted(word)?;
            Some(format!(
                "did you mean `mcpproxy call tool-read {tool}`? tool-write and tool-destructive \
                 are for tools that change something"
            ))
        }
        _ => None,
    }
}

/// Commands that are often typed in another place or with another word: the typed parent (empty for none), the typed
/// words, and the command, in which `*` is the typed word.
const MEANT_COMMANDS: &[(&str, &[&str], &str)] = &[
    (
        "",
        &["add", "remove", "enable", "disable", "restart", "logs", "login", "logout"],
        "upstream *",
    ),
    ("", &["list", "ls", "server", "servers"], "upstream list"),
    ("", &["start", "run"], "serve"),
    ("", &["log", "audit"], "activity list"),
    ("", &["tail"], "activity watch"),
    ("", &["search", "diff", "annotate"], "tools *"),
    ("", &["approve", "deny"], "approvals *"),
    ("", &["undo", "disconnect"], "connect --undo CLIENT"),
    ("", &["version"], "--version"),
    ("", &["watch", "export", "verify"], "activity *"),
    ("", &["explain", "replay"], "policy *"),
    ("", &["check", "reload"], "config *"),
    ("activity", &["get", "describe"], "activity show"),
    ("tools", &["get", "describe", "info"], "tools show"),
    ("approvals", &["get", "describe"], "approvals show"),
    ("upstream", &["get", "describe", "info", "status"], "upstream show"),
    ("token", &["show", "get"], "token list"),
    ("policy", &["list", "show"], "policy check"),
    ("activity", &["search"], "activity list --text"),
    ("activity", &["tail", "follow"], "activity watch"),
    ("call", &["read", "write", "destructive"], "call tool-*"),
    ("call", &["delete", "tool_destructive"], "call tool-destructive"),
    ("call", &["tool_read"], "call tool-read"),
    ("call", &["tool_write"], "call tool-write"),
    ("config", &["show", "get"], "config check"),
    ("token", &["add", "new"], "token create"),
    ("token", &["remove", "delete", "rm"], "token revoke"),
    ("approvals", &["remove", "revoke", "rm", "reject"], "approvals deny"),
    ("config", &["validate", "test"], "config check"),
    ("upstream", &["start"], "upstream enable"),
];

/// The command probably meant by a word that is not a subcommand of `parent`.
fn meant_command(parent: &str, word: &str) -> Option<String> {
    let mut commands = MEANT_COMMANDS.iter();
    let found = commands.find(|(known, words, _)| *known == parent && words.contains(&word));
    found.map(|(.., command)| command.replace('*', word))
}

/// The command before a rejected subcommand, or empty.
fn parent_command<'t>(typed: &'t [OsString], word: &str) -> &'t str {
    let all = Cli::command();
    let before = typed.iter().map_while(|it| it.to_str().filter(|it| *it != word));
    before.skip(1).find(|it| all.find_subcommand(it).is_some()).unwrap_or_default()
}

/// Returns clap's message without label, usage and advice.
fn usage_message(message: &str) -> &str {
    let end = message.find("\nUsage:").or_else(|| message.find("\nFor more information"));
    message.get(..end.unwrap_or(message.len())).unwrap_or(message).trim_start_matches("error: ")
}

/// Whether a command line that fails to parse requests JSON output.
fn wants_json(typed: &[OsString], environment: Option<String>) -> bool {
    let words: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let pair = |pair: &[&str]| matches!(pair, ["-o" | "--output", "json"]);
    words.iter().any(|word| matches!(*word, "--json" | "-ojson" | "-o=json" | "--output=json"))
        || words.windows(2).any(pair)
        || environment.as_deref() == Some("json")
}

fn report(failure: &CommandError, json: bool) {
    let (mut stderr, line) = (std::io::stderr(), failure.line(json));
    let for_terminal = json && stderr.is_terminal();
    let line = if for_terminal { terminal_safe::json(&line) } else { line.into() };
    // A closed stderr cannot be reported anywhere.
    let _ = writeln!(stderr, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn usage_error_is_one_line() {
        let error = Cli::try_parse_from(["mcpproxy", "call", "tool-read"]).unwrap_err();
        let failure = CommandError::usage(usage_message(&error.to_string()));
        let expected = "the following required arguments were not provided: <SERVER:TOOL>";
        assert_eq!(failure.message, expected);
    }

    #[test]
    fn commands_without_config_exist() {
        let all = Cli::command();
        for name in WITHOUT_CONFIG {
            assert!(all.find_subcommand(name).is_some(), "{name}");
        }
        assert!(commands_with_config().contains(&"serve".to_owned()));
    }

    #[test]
    fn tips_never_name_hidden_commands() {
        for (typed, expected) in
            [("upstrem", "'upstream'"), ("mann", "'man'"), ("demo-upstrem", "")]
        {
            let error = without_hidden_tips(Cli::try_parse_from(["mcpproxy", typed]).unwrap_err());
            let text = error.to_string();
            let (_, tips) = text.split_once('\n').unwrap();
            assert!(!tips.contains("demo-upstream"), "{text}");
            assert!(tips.contains(expected), "{text}");
        }
    }

    #[test]
    fn near_misses_get_a_tip_with_the_intended_command() {
        for (line, expected) in [
            ("activity export -o week.csv", "use `--file week.csv`"),
            ("--json activity export --since 7d -oweek.csv", "use `--file week.csv`"),
            ("call files:list_directory", "did you mean `mcpproxy call tool-read files:list_dir"),
            ("call read files:list_directory", "did you mean `mcpproxy call tool-read`?"),
            ("logs", "did you mean `mcpproxy upstream logs`?"),
            ("start", "did you mean `mcpproxy serve`?"),
            ("upstream start x", "did you mean `mcpproxy upstream enable`?"),
            ("activity summary --since 7d", "did you mean `--period 7d`?"),
            ("ls", "did you mean `mcpproxy upstream list`?"),
            ("-c f.json logs files", "did you mean `mcpproxy upstream logs`?"),
            ("add x", "did you mean `mcpproxy upstream add`?"),
            ("token add x", "did you mean `mcpproxy token create`?"),
            ("config show", "did you mean `mcpproxy config check`?"),
            ("connect gemini", "`mcpproxy guide clients` shows"),
            ("tools logs", ""),
            ("activity list -o week.csv", ""),
            ("call files", ""),
            ("policy files:list_directory", ""),
        ] {
            let typed: Vec<OsString> =
                std::iter::once("mcpproxy").chain(line.split(' ')).map(OsString::from).collect();
            let error = with_tip(Cli::try_parse_from(&typed).unwrap_err(), &typed);
            let message = usage_message(&error.to_string()).to_owned();
            assert!(message.contains(expected), "{line}: {message}");
            let is_tip = ["--file", "did you mean", "guide clients"].map(|it| message.contains(it));
            let is_tip = is_tip.contains(&true);
            assert_eq!(is_tip, !expected.is_empty(), "{line}: {message}");
        }
    }

    #[test]
    fn commands_of_tips_exist() {
        let all = Cli::command();
        for (parent, words, _) in MEANT_COMMANDS {
            for word in *words {
                let meant = meant_command(parent, word).unwrap();
                let mut names = meant.split(' ').take_while(|name| !name.starts_with('-'));
                let found = names.try_fold(&all, |command, name| command.find_subcommand(name));
                assert!(found.is_some(), "{meant}");
                let typed = ["mcpproxy", parent, word].into_iter().filter(|it| !it.is_empty());
                let error = Cli::try_parse_from(typed).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidSubcommand, "{parent} {word}");
            }
        }
    }

    #[test]
    fn json_flag_is_recognized_on_unparsable_command_lines() {
        let wants = |line: &str, environment: Option<&str>| {
            let typed: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            wants_json(&typed, environment.map(str::to_owned))
        };
        assert!(wants("mcpproxy -o json cal", None));
        assert!(wants("mcpproxy --output=json cal", None));
        assert!(wants("mcpproxy cal --json", None));
        assert!(wants("mcpproxy cal", Some("json")));
        assert!(!wants("mcpproxy cal -o yaml json", None));
        assert!(!wants("mcpproxy cal", Some("yaml")));
    }
}
