//! `mcpproxy upstream show`: one server, with its state, its calls and its entry in the config.

use crate::args::Global;
use crate::commands::activity::duration;
use crate::commands::upstream::list::{backend_of, not_running, refused};
use crate::completion::unknown_server;
use crate::error::CommandError;
use crate::format::{TimeStyle, Times, list, text};
use crate::output::{self, Output, Paragraph};
use crate::terminal_safe::{argument, line};
use mcpproxy_config::{file, patch};
use mcpproxy_server as server;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Width of the label column.
const LABEL: usize = 13;

/// Prints one server.
pub(super) fn run(name: &str, global: &Global, output: &Output) -> Result<(), CommandError> {
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let (servers, standing) = match backend_of(global, &runtime)? {
        Ok(backend) => {
            let of = |path| runtime.block_on(backend.get(path));
            let servers = output::parse(of("/api/v1/servers")?.json()?)?;
            let config = output::parse(of("/api/v1/config")?.json()?)?;
            (servers, config.get("standing").cloned().unwrap_or_default())
        }
        Err(loaded) => {
            let text = file::text(&loaded.path).map_err(CommandError::failed)?;
            let standing = patch::settings(&text).map_err(CommandError::failed)?;
            (not_running(&loaded.config), standing)
        }
    };
    let all = list(&servers, "/servers");
    let Some(found) = all.iter().find(|it| text(it, "/name") == name) else {
        let names: Vec<_> = all.iter().filter_map(|it| it.get("name")?.as_str()).collect();
        return Err(CommandError::failed(unknown_server(name, names.into_iter())));
    };
    let shown = json!({"server": found, "entry": entry(&standing, name)});
    let times = Times::new(Some(TimeStyle::Utc), false);
    output.print(&shown.to_string(), |it| draw(it, &times, output.view.width))
}

/// Entry of a server in the config, without secrets.
fn entry<'c>(standing: &'c Value, name: &str) -> Option<&'c Value> {
    match standing.get("mcpServers")? {
        Value::Array(servers) => servers.iter().find(|it| text(it, "/name") == name),
        servers => servers.get(name),
    }
}

fn draw(shown: &Value, times: &Times, width: Option<usize>) -> String {
    let server = shown.get("server").unwrap_or(shown);
    let mut drawn = String::new();
    let values = Paragraph::new(width).indented(LABEL).keeping_paths();
    let mut row = |label: &str, text: &str| {
        if !text.is_empty() {
            let _ = writeln!(drawn, "{}", values.labeled(label, &line(text)));
        }
    };
    let member = |at: &str| text(server, at).into_owned();
    row("name", &member("/name"));
    row("state", &member("/state"));
    row("reason", &member("/reason"));
    row("since", &times.exact_text(&member("/since")));
    row("transport", &member("/protocol"));
    row("revision", &member("/protocol_version"));
    row("reported as", &member("/server_info"));
    row("tools", &member("/tools"));
    row("quarantined", member("/quarantined").trim_start_matches('0'));
    row("calls", &member("/calls/total"));
    row("errors", &member("/calls/error"));
    row("refused", &refused(server));
    let milliseconds = |at: &str| {
        let us = server.pointer(&format!("/calls/duration_us/{at}")).and_then(Value::as_f64);
        us.map(|us| format!("{at} {}", duration(us / 1000.0)))
    };
    let durations: Vec<_> = ["p50", "p99"].into_iter().filter_map(milliseconds).collect();
    row("duration", &durations.join(", "));
    let Some(Value::Object(entry)) = shown.get("entry") else { return drawn };
    row("command", &command_line(entry));
    for (key, value) in entry.iter().filter(|(key, _)| !["command", "args"].contains(&key.as_str()))
    {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        row(key, &value);
    }
    drawn
}

/// The command of an entry with its arguments, as a shell reads it.
fn command_line(entry: &Map<String, Value>) -> String {
    let command = entry.get("command").and_then(Value::as_str).into_iter();
    let args = entry.get("args").and_then(Value::as_array).into_iter().flatten();
    let words = command.chain(args.filter_map(Value::as_str));
    words.map(|word| argument(word).into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_calls_and_entry_are_shown_without_empty_lines() {
        let shown = json!({
            "server": {"name": "files", "state": "connected", "reason": "", "protocol": "stdio", "tools": 14,
                "quarantined": 0, "calls": {"total": 3, "error": 1, "rejected": 1, "blocked": 0,
                    "duration_us": {"p50": 4500, "p99": null}}},
            "entry": {"command": "npx", "args": ["-y", "a b"], "env": {"KEY": "(not shown)"}, "cwd": "/x"}});
        let drawn = draw(&shown, &Times::new(Some(TimeStyle::Utc), false), Some(80));
        let expected = [
            "name         files",
            "state        connected",
            "transport    stdio",
            "tools        14",
            "calls        3",
            "errors       1",
            "refused      1",
            "duration     p50 4.5ms",
            "command      npx -y 'a b'",
            "env          {\"KEY\":\"(not shown)\"}",
            "cwd          /x",
        ];
        assert_eq!(drawn.lines().collect::<Vec<_>>(), expected);
        let listed = json!({"mcpServers": [{"name": "a"}, {"name": "b", "url": "http://h"}]});
        assert_eq!(entry(&listed, "b"), listed.pointer("/mcpServers/1"));
    }
}
