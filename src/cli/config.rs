//! `mcpproxy config …`, and the config as every other command reads it.

use std::fmt::Write as _;

use serde_json::json;

use super::args::{Config as Command, Global};
use super::failure::{Exit, Failure};
use super::output::{self, Output, clean, list, text};
use crate::config::file::{Loaded, locate};
use crate::config::servers::Server;
use crate::config::{Config, ConfigError, Flags};

/// Reads the config as `serve` would: file, environment, flags.
pub(super) fn load(global: &Global, listen: Option<&str>) -> Result<Loaded, Failure> {
    let flags = Flags {
        listen: listen.map(str::to_owned),
        data_dir: global.data_dir.clone(),
        log_level: global.log_level.clone(),
    };
    Config::load(global.config.as_deref(), &variable, &flags).map_err(|error| failed(&error))
}

/// Checks the config, or names its file.
pub(super) fn run(command: &Command, global: &Global, output: &Output) -> Result<(), Failure> {
    match command {
        Command::Path => {
            let path = locate(global.config.as_deref(), &variable).map_err(|e| failed(&e))?;
            let path = path.display().to_string();
            output.print(&json!({"path": path}).to_string(), |_| path.clone())
        }
        Command::Check => {
            let loaded = load(global, None)?;
            output.print(&report(&loaded).to_string(), draw)
        }
    }
}

/// A config that cannot be used: exit 5, and how to look closer.
pub(super) fn failed(error: &ConfigError) -> Failure {
    Failure::new(Exit::Config, error)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn report(loaded: &Loaded) -> serde_json::Value {
    let config = &loaded.config;
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    let server =
        |server: &Server| json!({"name": &*server.name, "enabled": server.upstream.enabled});
    let servers: Vec<_> = config.servers.iter().map(server).collect();
    json!({
        "path": loaded.path.display().to_string(),
        "exists": loaded.path.exists(),
        "listen": config.listen.to_string(),
        "data_dir": config.data_dir.display().to_string(),
        "servers": servers,
        "warnings": warnings,
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
pub(super) fn warn(loaded: &Loaded) {
    for warning in &loaded.warnings {
        eprintln!("warning: {}", output::clean(&warning.to_string()));
    }
}
