//! Command dispatch, and the small commands `man`, `completions` and `page`. Every other command has its own file.

use crate::args::{Cli, Command, CompletionsArgs, Global, ToolsCommand};
use crate::backend::{Backend, Needs, target};
use crate::error::CommandError;
use crate::format::text;
use crate::output::Output;
use crate::terminal_safe::{line, quoted};
use crate::{backend, completion, output};
use clap::{ArgAction, CommandFactory};
use mcpproxy_admin::page;
use serde_json::json;
use std::path::Path;
use std::{fs, io};

mod activity;
mod annotate;
mod approvals;
mod call;
mod config;
mod connect;
mod demo;
mod doctor;
mod fleet;
mod guide;
mod import;
mod policy;
mod serve;
mod status;
mod token;
mod tool_names;
mod tools;
mod upstream;

/// Runs a parsed command.
pub(super) fn run(cli: Cli, output: &Output) -> Result<(), CommandError> {
    let global = &cli.global;
    match cli.command {
        Command::Serve(flags) => serve::run(global, &flags),
        Command::Init => config::init(global, output),
        Command::Import(flags) => import::run(&flags, global, output),
        Command::Connect(flags) => connect::run(&flags, global, output),
        Command::Status(flags) => status::run(flags.alive, global, output),
        Command::Doctor { fix } => doctor::run(fix, global, output),
        Command::Stdio(args) => serve::run_stdio(global, args.server.as_deref()),
        Command::Demo => demo::run(global),
        Command::DemoUpstream => demo::serve_upstream().map_err(CommandError::failed),
        Command::Config(command) => config::run(&command, global, output),
        Command::Completions(flags) => print_completions(&flags),
        Command::Page { open } => open_page(open, global, output),
        Command::Man { folder } => write_man_pages(&folder, output),
        Command::Guide { page, section } => guide::run(page.as_deref(), section.as_deref(), output),
        Command::Call(command) => {
            let needs = Needs::Call(call::server(&command));
            backend::with(global, needs, async |backend| call::run(&command, backend, output).await)
        }
        Command::Tools(ToolsCommand::Annotate { server, read, write, destructive }) => {
            annotate::run(&server, &annotate::answers(read, write, destructive), global, output)
        }
        Command::Tools(command) => {
            let needs = match command {
                ToolsCommand::Approve { .. } => Needs::Review,
                ToolsCommand::Annotate { .. }
                | ToolsCommand::Diff { .. }
                | ToolsCommand::List { .. }
                | ToolsCommand::Search { .. }
                | ToolsCommand::Show { .. } => Needs::Catalog,
            };
            backend::with(global, needs, async |backend| {
                tools::run(&command, backend, output).await
            })
        }
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

/// Writes the manual pages into a directory, creating it if necessary.
pub(super) fn write_man_pages(folder: &Path, output: &Output) -> Result<(), CommandError> {
    let shown = folder.display().to_string();
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let written = fs::create_dir_all(folder).and_then(|()| write_page(&command, folder));
    let pages = written.map_err(|error| {
        CommandError::failed(format!("cannot write the manual pages into {shown}: {error}"))
    })?;
    let result = json!({"folder": shown, "pages": pages});
    output.print(&result.to_string(), |_| {
        let first = folder.join("mcpproxy.1").display().to_string();
        let first = quoted(&first).unwrap_or_default();
        format!(
            "Wrote {pages} manual pages into {}. Read the first with: man {first}",
            line(&shown)
        )
    })
}

/// Writes the pages of a command and of its subcommands; returns their number.
fn write_page(command: &clap::Command, folder: &Path) -> io::Result<usize> {
    let mut pages = 1;
    for subcommand in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        pages += write_page(subcommand, folder)?;
    }
    let command = command.clone().override_usage(synopsis(command));
    clap_mangen::Man::new(command).generate_to(folder)?;
    Ok(pages)
}

/// Synopsis of a command: its own options, the global options, and its arguments, with the names of values used in its
/// help.
fn synopsis(command: &clap::Command) -> String {
    let (mut options, arguments): (Vec<_>, Vec<_>) = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .partition(|arg| !arg.is_positional());
    // --help and --version come last.
    options.sort_by_key(|it| (is_of_clap(it), it.is_global_set()));
    let mut words = vec![command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()];
    words.extend(options.into_iter().map(option));
    words.extend(arguments.into_iter().map(|argument| match argument.is_last_set() {
        true => format!("[-- {argument}]"),
        false => argument.to_string(),
    }));
    words.extend(command.has_subcommands().then(|| "<COMMAND>".to_owned()));
    words.join(" ")
}

/// Whether clap provides an option.
fn is_of_clap(option: &clap::Arg) -> bool {
    matches!(option.get_id().as_str(), "help" | "version")
}

/// An option with the name of its value, in brackets unless it is required.
fn option(option: &clap::Arg) -> String {
    let short = option.get_short().map(|short| format!("-{short}|")).unwrap_or_default();
    let repeated = if matches!(option.get_action(), ArgAction::Append) { "..." } else { "" };
    match option.is_required_set() {
        true => format!("{short}{option}{repeated}"),
        false => format!("[{short}{option}]{repeated}"),
    }
}

/// Prints a shell's completion script.
pub(super) fn print_completions(flags: &CompletionsArgs) -> Result<(), CommandError> {
    let mut script = Vec::new();
    completion::script(&flags.shell.to_string(), &mut script).map_err(CommandError::failed)?;
    output::write(&script)
}

/// Requests a one-time code and prints it as a URL; if `open` is set, also opens the browser.
pub(super) fn open_page(open: bool, global: &Global, output: &Output) -> Result<(), CommandError> {
    backend::with(global, Needs::Running, async |backend| {
        let base = match backend {
            Backend::Remote(client) => client.base(),
            // `Needs::Running` never opens a proxy in this process.
            Backend::Local(_) => None,
        };
        let base = base.ok_or_else(|| {
            let why = "mcpproxy listens on a Unix socket, which browsers cannot open: set a host and port in `listen`";
            CommandError::failed(why)
        })?;
        let code = backend.post(&target(&["page", "codes"], &[]), String::new()).await?;
        let code = output::parse(code.json()?)?;
        let address = page::address(&base, &text(&code, "/code"));
        let shown = json!({"address": address, "expires": text(&code, "/expires")});
        if open {
            upstream::open_browser(&address);
        }
        let note = "Open this address in your browser within ten minutes; it works once:";
        output.print_value(&shown.to_string(), (&address, note), |address, note| {
            format!("{note}\n\n  {address}\n")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synopsis_names_the_value_of_each_option() {
        fn check(command: &clap::Command, checked: &mut usize) {
            let shown = synopsis(command);
            for option in command.get_opts().filter(|it| !it.is_hide_set()) {
                let long = option.get_long().unwrap_or_default();
                let expected =
                    format!("--{long} <{}>", option.get_value_names().unwrap().join(" "));
                assert!(shown.contains(&expected), "{expected}: {shown}");
                *checked += 1;
            }
            command.get_subcommands().for_each(|it| check(it, checked));
        }
        let mut command = Cli::command();
        command.build();
        let mut checked = 0;
        check(&command, &mut checked);
        assert!(checked > 50, "{checked} options");
        let of = |path: &[&str]| {
            let found = path.iter().fold(&command, |it, name| it.find_subcommand(name).unwrap());
            synopsis(found)
        };
        let list = of(&["tools", "list"]);
        assert!(
            list.starts_with("mcpproxy tools list [--server <NAME>] [-c|--config <FILE>] "),
            "{list}"
        );
        assert!(list.contains("[--json]"), "{list}");
        let add = of(&["upstream", "add"]);
        assert!(add.contains("[--env <NAME=VALUE>]..."), "{add}");
        assert!(add.ends_with("<NAME> [URL] [-- [COMMAND]...]"), "{add}");
        assert!(of(&["policy", "explain"]).contains(" --tool <SERVER:TOOL> "), "it is required");
        assert!(of(&["tools"]).ends_with(" <COMMAND>"));
    }
}
