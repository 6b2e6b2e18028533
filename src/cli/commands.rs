//! The commands, a file for each: what it asks for, and what it prints.

mod activity;
mod approvals;
mod call;
mod completions;
mod config;
mod connect;
mod demo;
mod doctor;
mod fleet;
mod fleet_config;
mod import;
mod init;
mod login;
mod man;
mod page;
mod policy;
mod serve;
mod status;
mod stdio;
mod token;
mod tools;
mod upstream;

use super::args::{Cli, Command};
use super::backend::{self, Needs};
use super::error::CommandError;
use super::output::Output;

/// Runs the command that was typed.
pub(super) fn run(cli: Cli, output: &Output) -> Result<(), CommandError> {
    let global = &cli.global;
    match cli.command {
        Command::Serve(flags) => serve::run(global, &flags),
        Command::Init => init::run(global, output),
        Command::Import(flags) => import::run(&flags, global, output),
        Command::Connect(flags) => connect::run(&flags, global, output),
        Command::Status(flags) => status::run(flags.alive, global, output),
        Command::Doctor { fix } => doctor::run(fix, global, output),
        Command::Stdio => stdio::run(global),
        Command::Demo => demo::run(global),
        Command::DemoUpstream => demo::serve_upstream().map_err(CommandError::failed),
        Command::Config(command) => config::run(&command, global, output),
        Command::Completions(flags) => completions::run(&flags),
        Command::Page => page::run(global, output),
        Command::Man { folder } => man::run(&folder),
        Command::Call(command) => backend::with(global, Needs::Calls, async |backend| {
            call::run(&command, backend, output).await
        }),
        Command::Tools(command) => backend::with(global, Needs::Catalog, async |backend| {
            tools::run(&command, backend, output).await
        }),
        Command::Upstream(command) => upstream::run(command, global, output),
        Command::Token(command) => token::run(command, global, output),
        Command::Policy(command) => policy::run(&command, global, output),
        Command::Activity(command) => activity::run(&command, global, output),
        Command::Approvals(command) => backend::with(global, Needs::Running, async |backend| {
            approvals::run(&command, backend, output).await
        }),
        Command::Fleet(command) => backend::with(global, Needs::Running, async |backend| {
            fleet::run(&command, backend, output).await
        }),
    }
}
