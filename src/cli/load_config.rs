//! The config as every command reads it, and the errors of a config that cannot be used.

use super::args::Global;
use super::error::CommandError;
use super::exit_code::Exit;
use super::logging::{self, Log};
use super::terminal_safe::joined;
use crate::config::file::Loaded;
use crate::config::problem::{Problem, Severity};
use crate::config::{Config, Flags};
use crate::upstream::reaper;

/// What a command that prints results begins with: the config, its warnings on stderr, and the log.
pub(super) fn load_with_log(global: &Global) -> Result<(Loaded, Log), CommandError> {
    let loaded = load(global, None)?;
    let log = logging::start_quiet(global);
    for warning in &loaded.warnings {
        logging::say(format_args!("warning: {}", joined(&warning.to_string())));
    }
    Ok((loaded, log))
}

/// Reads the config as `serve` would: file, environment, flags.
pub(super) fn load(global: &Global, listen: Option<&str>) -> Result<Loaded, CommandError> {
    Config::load(global.config.as_deref(), &variable, &flags(global, listen)).map_err(unusable)
}

/// The flags that change what the config says.
pub(super) fn flags(global: &Global, listen: Option<&str>) -> Flags {
    Flags {
        listen: listen.map(str::to_owned),
        data_dir: global.data_dir.clone(),
        log_level: global.log_level.clone(),
        reaper: reaper::this_program(),
    }
}

/// A config that cannot be used: exit code 5, and every error in it.
pub(super) fn unusable(problems: Vec<Problem>) -> CommandError {
    let errors = problems.iter().filter(|it| it.severity == Severity::Error);
    let errors: Vec<String> = errors.map(ToString::to_string).collect();
    CommandError { problems, ..CommandError::new(Exit::Config, errors.join("\n")) }
}

/// Refuses to change a file that says nothing, since a fleet's config is in its place.
pub(super) fn refuse_for_fleet(loaded: &Loaded) -> Result<(), CommandError> {
    match loaded.config.fleet_config {
        None => Ok(()),
        Some(_) => Err(CommandError::failed(
            "this node runs the config of its fleet: change that with `mcpproxy fleet apply`",
        )),
    }
}

/// One error in the config: exit code 5.
pub(super) fn problem(error: &Problem) -> CommandError {
    CommandError::new(Exit::Config, error)
}

/// A variable of the environment.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
