//! The command line: parses what was typed, runs it, and turns the outcome into an exit code.
//!
//! `args` has the commands and flags, `commands` a file for each command, `backend` asks a proxy for
//! what a command shows, `output` prints it. Nothing here decides about a call.

mod args;
mod backend;
mod bridge;
mod clients;
mod colours;
mod commands;
mod completion;
mod confirm;
mod counted;
mod error;
mod exit_code;
mod http_client;
mod identity;
mod json_pointer;
mod load_config;
mod logging;
mod output;
mod pagination;
mod paragraph;
mod read_ahead;
mod reload;
mod running_proxy;
mod server_state;
mod spinner;
mod start_proxy;
mod suggest;
mod table;
mod temporary_folder;
mod terminal_safe;
mod times;
mod tls_client;
mod try_servers;
mod value_parsers;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use args::{Cli, Format};
use error::CommandError;
use exit_code::Exit;
use output::Output;

use crate::upstream::reaper;

/// Runs the command that the process was started with.
#[must_use]
pub fn run() -> ExitCode {
    let typed: Vec<OsString> = std::env::args_os().collect();
    if let Some(ended) = reaper::run(&typed) {
        return ended;
    }
    match completion::answered(&typed) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        // Nothing but completions is on stdout then.
        Err(_) => return ExitCode::FAILURE,
    }
    let typed = args::with_export_file(typed);
    let cli = match Cli::try_parse_from(&typed) {
        Ok(cli) => cli,
        Err(error) => return misused(&without_hidden(error), &typed),
    };
    let output = Output::new(&cli.global);
    match commands::run(cli, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report(&failure, output.format == Format::Json);
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// Answers a command line that cannot be parsed, or asks for help.
fn misused(error: &clap::Error, typed: &[OsString]) -> ExitCode {
    if error.use_stderr() && wants_json(typed, std::env::var("MCPPROXY_OUTPUT").ok()) {
        report(&CommandError::usage(what_is_wrong(&error.to_string())), true);
    } else if error.kind() == ErrorKind::MissingSubcommand && typed.len() < 2 {
        // Variables in the environment make clap believe that something was typed.
        let _ = write!(std::io::stderr(), "{}", Cli::command().render_help());
    } else {
        // A closed pipe is the reader's choice.
        let _ = error.print();
    }
    match error.use_stderr() {
        true => ExitCode::from(Exit::Usage as u8),
        false => ExitCode::SUCCESS,
    }
}

/// The same error without tips that name commands which no help shows.
fn without_hidden(mut error: clap::Error) -> clap::Error {
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
    if !tips.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(tips));
    }
    error
}

/// clap's message without its label, usage and advice.
fn what_is_wrong(message: &str) -> &str {
    let end = message.find("\nUsage:").or_else(|| message.find("\nFor more information"));
    message.get(..end.unwrap_or(message.len())).unwrap_or(message).trim_start_matches("error: ")
}

/// Whether JSON was asked for, by a line that cannot be parsed as a whole.
fn wants_json(typed: &[OsString], environment: Option<String>) -> bool {
    let words: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let pair = |pair: &[&str]| matches!(pair, ["-o" | "--output", "json"]);
    words.iter().any(|word| matches!(*word, "--json" | "-ojson" | "-o=json" | "--output=json"))
        || words.windows(2).any(pair)
        || environment.as_deref() == Some("json")
}

fn report(failure: &CommandError, json: bool) {
    // A closed stderr cannot be reported anywhere.
    let _ = writeln!(std::io::stderr(), "{}", failure.line(json));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_line_is_told_in_one() {
        let error = Cli::try_parse_from(["mcpproxy", "call", "tool-read"]).unwrap_err();
        let failure = CommandError::usage(what_is_wrong(&error.to_string()));
        let told = "the following required arguments were not provided: <SERVER:TOOL>";
        assert_eq!(failure.message, told);
    }

    #[test]
    fn no_tip_names_a_command_that_is_hidden() {
        for (typed, told) in [("upstrem", "'upstream'"), ("mann", ""), ("demo-upstrem", "")] {
            let error = without_hidden(Cli::try_parse_from(["mcpproxy", typed]).unwrap_err());
            let text = error.to_string();
            let (_, tips) = text.split_once('\n').unwrap();
            assert!(!tips.contains("demo-upstream") && !tips.contains("'man'"), "{text}");
            assert!(tips.contains(told), "{text}");
        }
    }

    #[test]
    fn json_is_recognised_on_a_broken_line() {
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
