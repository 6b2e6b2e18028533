//! Command line: parses the arguments, runs the command and maps the outcome to an exit code.
//!
//! `args` declares commands and flags, `commands` has a file per command group, `backend` queries the proxy, `output`
//! prints the result. Call decisions are made in the other crates.

use crate::args::{Cli, Format};
use crate::output::Output;
use clap::{CommandFactory as _, FromArgMatches as _};
use mcpproxy_upstream::reaper;
use std::ffi::OsString;
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
mod usage_error;

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
    let command = args::command().color(args::color_of(&typed));
    let parsed = command.try_get_matches_from(&typed);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return usage_error::report(error, &typed),
    };
    let named = (cli.global.config.as_deref(), cli.global.data_dir.as_deref());
    hints::remember(named, commands_with_config);
    let output = Output::new(&cli.global);
    match commands::run(cli, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print(output.format == Format::Json);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_without_config_exist() {
        let all = Cli::command();
        for name in WITHOUT_CONFIG {
            assert!(all.find_subcommand(name).is_some(), "{name}");
        }
        assert!(commands_with_config().contains(&"serve".to_owned()));
    }
}
