//! `mcpproxy config …`: whether the config can be used, where it is, and that a running proxy reads it again.

use std::fmt::Write as _;

use serde_json::json;

use crate::cli::args::{ConfigCommand, Format, Global};
use crate::cli::backend::{self, Needs, target};
use crate::cli::error::{CommandError, problem_json};
use crate::cli::json_pointer::{list, text};
use crate::cli::load_config;
use crate::cli::output::{self, Output};
use crate::cli::terminal_safe::{joined, line};
use crate::config::Config;
use crate::config::file::{Loaded, locate};
use crate::config::servers::ServerEntry;
use crate::reference::CONFIG_SCHEMA;

/// Checks the config, names its file, or has it read again.
pub(super) fn run(
    command: &ConfigCommand,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        ConfigCommand::Path => {
            let path = locate(global.config.as_deref(), &load_config::variable)
                .map_err(|error| load_config::problem(&error))?;
            let path = path.display().to_string();
            output.print(&json!({"path": path}).to_string(), |_| path.clone())
        }
        ConfigCommand::Check => {
            let flags = load_config::flags(global, None);
            let loaded = Config::check(global.config.as_deref(), &load_config::variable, &flags);
            let loaded = loaded.map_err(load_config::unusable)?;
            output.print(&report(&loaded).to_string(), draw)
        }
        ConfigCommand::Reload => reload(global, output),
        ConfigCommand::Schema => match output.format {
            Format::Table | Format::Json => output::write(CONFIG_SCHEMA.as_bytes()),
            Format::Yaml => output.print(CONFIG_SCHEMA, |_| String::new()),
        },
    }
}

/// Has the running proxy read its config again.
pub(super) fn reload(global: &Global, output: &Output) -> Result<(), CommandError> {
    backend::with(global, Needs::Running, async |backend| {
        let done = backend.post(&target(&["config", "reload"], &[]), String::new()).await?;
        output.print(done.json()?, draw_reloaded)
    })
}

fn draw_reloaded(reloaded: &serde_json::Value) -> String {
    let mut shown = String::new();
    for (word, at) in [("applied", "/applied"), ("restart", "/needs_restart")] {
        for key in list(reloaded, at) {
            let _ = writeln!(shown, "{word}   {}", line(key.as_str().unwrap_or_default()));
        }
    }
    for warning in list(reloaded, "/warnings") {
        let _ = writeln!(shown, "warning   {}", joined(&text(warning, "/problem")));
    }
    let unchanged = reloaded.pointer("/unchanged") == Some(&json!(true));
    let _ = writeln!(shown, "{}", if unchanged { "nothing has changed" } else { "in force" });
    shown
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
        "problems": loaded.warnings.iter().map(problem_json).collect::<Vec<_>>(),
    })
}

fn draw(report: &serde_json::Value) -> String {
    let mut shown = String::new();
    let found = match report.get("exists").and_then(serde_json::Value::as_bool) {
        Some(true) => "",
        Some(false) | None => " (not there: defaults)",
    };
    let servers = list(report, "/servers");
    let on = servers.iter().filter(|server| server.pointer("/enabled") == Some(&json!(true)));
    let _ = writeln!(shown, "config    {}{found}", line(&text(report, "/path")));
    let _ = writeln!(shown, "listen    {}", text(report, "/listen"));
    let _ = writeln!(shown, "data      {}", line(&text(report, "/data_dir")));
    let _ = writeln!(shown, "servers   {} ({} enabled)", servers.len(), on.count());
    let warnings = list(report, "/warnings");
    for warning in warnings {
        let _ = writeln!(shown, "warning   {}", joined(warning.as_str().unwrap_or_default()));
    }
    let _ = writeln!(shown, "{}", if warnings.is_empty() { "ok" } else { "ok, with warnings" });
    shown
}
