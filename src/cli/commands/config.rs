//! `mcpproxy config …`, and the config as every other command reads it.

use std::fmt::Write as _;

use serde_json::json;

use crate::cli::args::{Config as Command, Global};
use crate::cli::error::{CommandError, Exit};
use crate::cli::output::{self, Output, clean, list, text};
use crate::config::file::{Loaded, locate};
use crate::config::problem::{Problem, Severity};
use crate::config::servers::ServerEntry;
use crate::config::{Config, Flags};
use crate::upstream::reaper;

/// Reads the config as `serve` would: file, environment, flags.
pub(in crate::cli) fn load(global: &Global, listen: Option<&str>) -> Result<Loaded, CommandError> {
    Config::load(global.config.as_deref(), &variable, &flags(global, listen)).map_err(unusable)
}

fn flags(global: &Global, listen: Option<&str>) -> Flags {
    Flags {
        listen: listen.map(str::to_owned),
        data_dir: global.data_dir.clone(),
        log_level: global.log_level.clone(),
        reaper: reaper::this_program(),
    }
}

/// Checks the config, or names its file.
pub(in crate::cli) fn run(
    command: &Command,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        Command::Path => {
            let path = locate(global.config.as_deref(), &variable).map_err(|e| failed(&e))?;
            let path = path.display().to_string();
            output.print(&json!({"path": path}).to_string(), |_| path.clone())
        }
        Command::Check => {
            let flags = flags(global, None);
            let loaded = Config::check(global.config.as_deref(), &variable, &flags);
            let loaded = loaded.map_err(unusable)?;
            output.print(&report(&loaded).to_string(), draw)
        }
    }
}

/// A config that cannot be used: exit 5, and everything that is wrong with it.
pub(in crate::cli) fn unusable(problems: Vec<Problem>) -> CommandError {
    let errors = problems.iter().filter(|it| it.severity == Severity::Error);
    let errors: Vec<String> = errors.map(ToString::to_string).collect();
    CommandError { problems, ..CommandError::new(Exit::Config, errors.join("\n")) }
}

/// One thing about a config that is wrong: exit 5.
pub(in crate::cli) fn failed(error: &Problem) -> CommandError {
    CommandError::new(Exit::Config, error)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn report(loaded: &Loaded) -> serde_json::Value {
    let config = &loaded.config;
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    let server =
        |server: &ServerEntry| json!({"name": &*server.name, "enabled": server.upstream.enabled});
    let servers: Vec<_> = config.servers.iter().map(server).collect();
    json!({
        "path": loaded.path.display().to_string(),
        "exists": loaded.path.exists(),
        "listen": config.listen.to_string(),
        "data_dir": config.data_dir.display().to_string(),
        "servers": servers,
        "warnings": warnings,
        "problems": loaded.warnings.iter().map(json).collect::<Vec<_>>(),
    })
}

/// A problem, for programs.
pub(in crate::cli) fn json(problem: &Problem) -> serde_json::Value {
    let severity = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let mut shown = serde_json::Map::new();
    shown.insert("severity".to_owned(), severity.into());
    shown.insert("key".to_owned(), problem.key.as_str().into());
    shown.insert("problem".to_owned(), problem.text.as_str().into());
    if let Some(file) = &problem.file {
        shown.insert("file".to_owned(), file.display().to_string().into());
    }
    if let Some(place) = problem.place {
        shown.insert("line".to_owned(), place.line.into());
        shown.insert("column".to_owned(), place.column.into());
    }
    shown.into()
}

fn draw(report: &serde_json::Value) -> String {
    let mut shown = String::new();
    let found = match report.get("exists").and_then(serde_json::Value::as_bool) {
        Some(true) => "",
        Some(false) | None => " (not there: defaults)",
    };
    let servers = list(report, "/servers");
    let on = servers.iter().filter(|server| server.pointer("/enabled") == Some(&json!(true)));
    let _ = writeln!(shown, "config    {}{found}", clean(&text(report, "/path")));
    let _ = writeln!(shown, "listen    {}", text(report, "/listen"));
    let _ = writeln!(shown, "data      {}", clean(&text(report, "/data_dir")));
    let _ = writeln!(shown, "servers   {} ({} enabled)", servers.len(), on.count());
    let warnings = list(report, "/warnings");
    for warning in warnings {
        let _ = writeln!(shown, "warning   {}", clean(warning.as_str().unwrap_or_default()));
    }
    let _ = writeln!(shown, "{}", if warnings.is_empty() { "ok" } else { "ok, with warnings" });
    shown
}

/// Says the warnings on stderr, where they do not mix with results.
pub(in crate::cli) fn warn(loaded: &Loaded) {
    for warning in &loaded.warnings {
        crate::cli::logging::say(format_args!("warning: {}", output::clean(&warning.to_string())));
    }
}
