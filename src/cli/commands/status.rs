//! `mcpproxy status`: how the proxy that runs is, on one screen.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::args::Global;
use crate::cli::backend::{Backend, target};
use crate::cli::colours::{Colours, of_state};
use crate::cli::counted::counted;
use crate::cli::error::CommandError;
use crate::cli::exit_code::Exit;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{self, Output};
use crate::cli::terminal_safe::{clean, line};
use crate::cli::{load_config, logging, running_proxy};
use crate::config::file::Loaded;
use crate::os::space;
use crate::server;

/// Characters of a reason; `upstream list` has the rest.
const REASON_CHARS: usize = 100;

/// Runs the command; exit code 3 if no proxy runs.
pub(super) fn run(global: &Global, output: &Output) -> Result<(), CommandError> {
    let loaded = load_config::load(global, None).inspect_err(|_| tell_of_running(global))?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let Some(client) = runtime.block_on(running_proxy::find(&loaded.config)) else {
        output.print(&nobody(&loaded).to_string(), |it| draw(it, output.view.colours))?;
        let words =
            format!("no mcpproxy runs on {}: `mcpproxy serve` starts one", loaded.config.listen);
        return Err(CommandError::new(Exit::Unreachable, words));
    };
    let place = (client.authority().to_owned(), client.mcp_url());
    let backend = Backend::Remote(client);
    let asked = runtime.block_on(async {
        let mut answers = Vec::new();
        for (segments, query) in [
            (&["status"][..], &[][..]),
            (&["servers"], &[]),
            (&["activity", "summary"], &[("period", Some("1h"))]),
            (&["config"], &[]),
        ] {
            answers.push(output::parse(backend.get(&target(segments, query)).await?.json()?)?);
        }
        Ok::<_, CommandError>(answers)
    })?;
    let [status, servers, hour, config] = asked.as_slice() else {
        return Err(CommandError::failed("the answer is not complete"));
    };
    let mut answer = running(&loaded, &place, status, servers, hour);
    if let (Some(answer), Some(keys)) = (answer.as_object_mut(), config.pointer("/needs_restart")) {
        answer.insert("needs_restart".to_owned(), keys.clone());
    }
    let answer = answer.to_string();
    output.print(&answer, |it| draw(it, output.view.colours))
}

/// Where the config cannot be used: that a proxy which runs does not mind.
fn tell_of_running(global: &Global) {
    let named = || load_config::variable("MCPPROXY_DATA_DIR").map(PathBuf::from);
    let home = || load_config::variable("HOME").map(|home| Path::new(&home).join(".mcpproxy"));
    let Some(data) = global.data_dir.clone().or_else(named).or_else(home) else { return };
    let runs = server::local_runtime()
        .is_ok_and(|runtime| runtime.block_on(running_proxy::announced(&data)));
    if runs {
        logging::say(format_args!(
            "the mcpproxy that runs with {} goes on by the config that it has read before",
            line(&data.display().to_string())
        ));
    }
}

/// What is known without a proxy.
fn nobody(loaded: &Loaded) -> Value {
    let config = &loaded.config;
    let servers = config.servers.iter().map(|server| {
        let state = if server.upstream.enabled { "not running" } else { "disabled" };
        json!({"name": &*server.name, "state": state, "tools": 0, "reason": ""})
    });
    json!({
        "running": false, "version": env!("CARGO_PKG_VERSION"), "address": config.listen.to_string(),
        "config": loaded.path.display().to_string(), "servers": servers.collect::<Vec<_>>(),
        "activity_bytes": space::used(&config.activity_folder()), "warnings": warnings(loaded),
    })
}

fn running(
    loaded: &Loaded,
    (address, url): &(String, String),
    status: &Value,
    servers: &Value,
    hour: &Value,
) -> Value {
    let number = |value: &Value, at: &str| value.pointer(at).and_then(Value::as_u64).unwrap_or(0);
    let (calls, errors) = (number(hour, "/total_count"), number(hour, "/error_count"));
    let rate = if calls == 0 { 0.0 } else { errors as f64 / calls as f64 };
    let of_servers = |fault: &&Value| text(fault, "/part") != "server";
    let faults = list(status, "/faults").iter().filter(of_servers);
    let mut warnings = warnings(loaded);
    warnings.extend(faults.map(|fault| {
        let about = [text(fault, "/part"), text(fault, "/server")].join(" ");
        format!("{}: {}", about.trim_end(), text(fault, "/cause"))
    }));
    let servers = list(servers, "/servers").iter().map(|server| {
        json!({
            "name": text(server, "/name"), "state": text(server, "/state"),
            "tools": number(server, "/tools"), "reason": text(server, "/reason"),
        })
    });
    json!({
        "running": true, "version": text(status, "/version"), "address": address, "url": url,
        "uptime_seconds": number(status, "/uptime_seconds"),
        "config": loaded.path.display().to_string(), "servers": servers.collect::<Vec<_>>(),
        "last_hour": {
            "calls": calls, "errors": errors, "error_rate": rate,
            "blocked": number(hour, "/blocked_count"), "rejected": number(hour, "/rejected_count"),
        },
        "approvals_waiting": number(status, "/load/approvals"),
        "sessions": number(status, "/load/sessions"),
        "activity_bytes": space::used(&loaded.config.activity_folder()), "warnings": warnings,
    })
}

fn warnings(loaded: &Loaded) -> Vec<String> {
    loaded.warnings.iter().map(ToString::to_string).collect()
}

fn draw(status: &Value, colours: Colours) -> String {
    let mut shown = String::new();
    let mut row = |label: &str, words: &str| {
        let _ = writeln!(shown, "{label:<10} {words}");
    };
    let number = |at: &str| status.pointer(at).and_then(Value::as_u64).unwrap_or_default();
    let runs = status.pointer("/running") == Some(&Value::Bool(true));
    let (version, address) = (text(status, "/version"), text(status, "/address"));
    match runs {
        true => {
            let up = duration(number("/uptime_seconds"));
            row("mcpproxy", &format!("{version}, up {up}, MCP at {}", text(status, "/url")));
        }
        false => row("mcpproxy", &format!("{version}, not running (it would listen on {address})")),
    }
    row("config", &line(&text(status, "/config")));
    let servers = list(status, "/servers");
    let works = servers.iter().filter(|server| text(server, "/state") == "connected").count();
    row("servers", &format!("{} ({works} connected)", servers.len()));
    for server in servers {
        let tools = text(server, "/tools");
        let state = text(server, "/state");
        let reason: String = text(server, "/reason").chars().take(REASON_CHARS).collect();
        let about = match (&*state, reason.is_empty()) {
            ("connected", true) => counted(&tools, "tool"),
            ("connected", false) => format!("{}; {}", counted(&tools, "tool"), line(&reason)),
            (_, _) => line(&reason).into_owned(),
        };
        let state = colours.paint(&format!("{state:<12}"), of_state(&state));
        let words = format!("{state} {:<24} {about}", line(&text(server, "/name")));
        row("", words.trim_end());
    }
    if runs {
        let rate = status.pointer("/last_hour/error_rate").and_then(Value::as_f64);
        let rate = rate.unwrap_or_default() * 100.0;
        let [calls, blocked, rejected] =
            ["calls", "blocked", "rejected"].map(|it| number(&format!("/last_hour/{it}")));
        row(
            "last hour",
            &format!(
                "{}, {rate:.1} % errors, {blocked} blocked, {rejected} rejected",
                counted(calls, "call")
            ),
        );
        row("approvals", &format!("{} waiting", number("/approvals_waiting")));
        row("sessions", &number("/sessions").to_string());
    }
    row("log", &bytes(number("/activity_bytes")));
    let keys: Vec<_> = list(status, "/needs_restart").iter().filter_map(Value::as_str).collect();
    if !keys.is_empty() {
        row("restart", &format!("needed for {}", line(&keys.join(", "))));
    }
    let warnings = list(status, "/warnings");
    for warning in warnings {
        row("warning", &clean(warning.as_str().unwrap_or_default()).replace('\n', " "));
    }
    if warnings.is_empty() {
        row("warnings", "none");
    }
    shown
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        (_, _, _) => format!("{days} d {hours} h"),
    }
}

/// Bytes in the unit that people read.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / *size as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_short() {
        for (seconds, expected) in
            [(7, "7 s"), (61, "1 min"), (3_700, "1 h 1 min"), (200_000, "2 d 7 h")]
        {
            assert_eq!(duration(seconds), expected);
        }
        for (size, expected) in [(7, "7 bytes"), (1536, "1.5 KiB"), (1 << 21, "2.0 MiB")] {
            assert_eq!(bytes(size), expected);
        }
    }
}
