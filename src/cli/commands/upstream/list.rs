//! `mcpproxy upstream list`: the state of every server, of the running proxy or as configured.

use crate::args::Global;
use crate::backend::{Backend, target};
use crate::commands::policy::seen_tools;
use crate::error::CommandError;
use crate::format::{counted, list, list_notes, nonconforming, second_connection, text};
use crate::output::{Output, Paragraph, of_state};
use crate::table::{Cell, Column, Fit, cell, wrapped_cell};
use crate::terminal_safe::argument;
use crate::{backend, hints, running_proxy, start_proxy};
use anstyle::Style;
use mcpproxy_catalog::persist;
use mcpproxy_config::Config;
use mcpproxy_config::file::Loaded;
use mcpproxy_config::servers::ServerEntry;
use mcpproxy_server as server;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use tokio::runtime::LocalRuntime;

/// Indentation of notes below the list.
const NOTE_INDENT: usize = 2;

/// Pointer of the calls that were rejected or blocked, which the response has apart.
const REFUSED: &str = "";

/// Columns of the list with the JSON pointers of their values.
const UPSTREAM_COLUMNS: [((&str, Fit), &str); 9] = [
    (("NAME", Fit::Key(0)), "/name"),
    (("STATE", Fit::Whole), "/state"),
    (("TRANSPORT", Fit::Rank(7)), "/protocol"),
    (("TOOLS", Fit::Rank(2)), "/tools"),
    (("QUARANTINED", Fit::Rank(3)), "/quarantined"),
    (("CALLS", Fit::Rank(5)), "/calls/total"),
    (("ERRORS", Fit::Rank(4)), "/calls/error"),
    (("REFUSED", Fit::Rank(6)), REFUSED),
    (("REASON", Fit::Below), "/reason"),
];

/// The running proxy, or the config if none runs.
pub(super) fn backend_of(
    global: &Global,
    runtime: &LocalRuntime,
) -> Result<Result<Backend, Box<Loaded>>, CommandError> {
    Ok(match start_proxy::load_with_log(global) {
        Err(failure) => Ok(runtime.block_on(backend::despite(failure, global))?),
        Ok((loaded, _log)) => match runtime.block_on(running_proxy::find(&loaded.config)) {
            Some(client) => Ok(Backend::Remote(client)),
            None => Err(Box::new(loaded)),
        },
    })
}

/// Prints the state of every upstream server; if no proxy is running, prints the configured servers.
pub(super) fn run(global: &Global, output: &Output) -> Result<(), CommandError> {
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let backend = match backend_of(global, &runtime)? {
        Ok(backend) => backend,
        Err(loaded) => {
            let servers = not_running(&loaded.config).to_string();
            return output.print(&servers, |servers| table(servers, output));
        }
    };
    let servers = runtime.block_on(backend.get(&target(&["servers"], &[])))?;
    output.print(servers.json()?, |servers| table(servers, output))
}

/// Reason of a server's state while no proxy runs.
const NONE_RUNS: &str = "no mcpproxy is running";

/// The configured servers, with the numbers of tools on disk and in quarantine.
pub(super) fn not_running(config: &Config) -> Value {
    let folder = config.catalog().folder.unwrap_or_default();
    let (catalog, _) = seen_tools(config);
    let seen = catalog.load();
    let servers = config.servers.iter().map(|server| {
        let enabled = server.upstream.enabled;
        json!({
            "name": &*server.name, "state": if enabled { "not running" } else { "disabled" },
            "protocol": if server.upstream.url.is_some() { "streamable-http" } else { "stdio" },
            "tools": stored_tools(&folder, server), "quarantined": seen.quarantined(&server.name).len(), "reason": if enabled { NONE_RUNS } else { "" },
        })
    });
    json!({"servers": servers.collect::<Vec<_>>()})
}

/// Number of offered tools of a server in the catalog on disk; 0 if it is disabled.
pub(in crate::commands) fn stored_tools(folder: &Path, server: &ServerEntry) -> usize {
    let stored = persist::read(folder, &server.name).ok().flatten();
    let tools = stored.map(|stored| stored.tools).unwrap_or_default();
    let is_enabled = server.upstream.enabled;
    tools.iter().filter(|tool| is_enabled && server.tools.offers(&tool.name)).count()
}

/// Number of calls that were rejected or blocked; empty if no proxy runs.
pub(super) fn refused(server: &Value) -> String {
    let counts = ["/calls/rejected", "/calls/blocked"].map(|at| server.pointer(at)?.as_u64());
    match counts {
        [None, None] => String::new(),
        [rejected, blocked] => {
            (rejected.unwrap_or_default() + blocked.unwrap_or_default()).to_string()
        }
    }
}

/// States how many tools of a server are in quarantine, and what to do; `None` if there are none.
fn in_quarantine(server: &Value) -> Option<String> {
    let held = server.pointer("/quarantined").and_then(Value::as_u64).filter(|held| *held > 0)?;
    let name = text(server, "/name");
    let held = counted(held, "tool");
    Some(format!("{held} in quarantine (mcpproxy tools diff {})", argument(&name)))
}

fn table(servers: &Value, output: &Output) -> String {
    let all = list(servers, "/servers");
    let for_people = output.view.width.is_some();
    let none_runs = for_people && all.iter().any(|server| text(server, "/reason") == NONE_RUNS);
    // People need no column of zeros, no empty one, and no reason that all rows share.
    let is_shown = |at: &str| {
        let is_needless = |server: &Value| match (at, &*text(server, at)) {
            (REFUSED, _) => server.pointer("/calls").is_none(),
            // Among the reasons.
            ("/quarantined", _) => true,
            ("/reason", _) if in_quarantine(server).is_some() => false,
            (_, "") => true,
            ("/reason", reason) => {
                (none_runs && reason == NONE_RUNS) || text(server, "/state") == "disabled"
            }
            _ => false,
        };
        !(for_people && all.iter().all(is_needless))
    };
    let columns: Vec<_> = UPSTREAM_COLUMNS.into_iter().filter(|(_, at)| is_shown(at)).collect();
    let cell_of = |server: &Value, at: &str| {
        let value = match at {
            REFUSED => refused(server).into(),
            at => text(server, at),
        };
        let state = text(server, "/state");
        let held = in_quarantine(server).filter(|_| for_people);
        let value = match (at, &*value) {
            ("/reason", "" | NONE_RUNS) if held.is_some() => held.unwrap_or_default().into(),
            ("/reason", reason) if held.is_some() => {
                format!("{reason}; {}", held.unwrap_or_default()).into()
            }
            (_, NONE_RUNS) if none_runs => "".into(),
            ("/reason", _) if for_people && state == "disabled" => "".into(),
            // Its tools are not known.
            ("/tools", "0") if state != "connected" => "-".into(),
            _ => value,
        };
        let style = if at == "/state" { of_state(&value) } else { Style::new() };
        let cell = if at == "/reason" { wrapped_cell } else { cell };
        Cell::styled(cell(&value), style)
    };
    let rows = all.iter().map(|server| columns.iter().map(|(_, at)| cell_of(server, at)).collect());
    let rows: Vec<Vec<_>> = rows.collect();
    match rows.is_empty() {
        true => {
            output.none(
                "No upstream servers. Add one with `mcpproxy upstream add`, or import those of other programs with \
                 `mcpproxy import`.",
            )
        }
        false => {
            let columns = Column::with_numbers(
                columns.iter().map(|((name, fit), _)| Column::new(*name, *fit)).collect(),
                &["TOOLS", "QUARANTINED", "CALLS", "ERRORS", "REFUSED"],
            );
            let columns = Column::with_repeated(columns, "NAME");
            let mut shown = output.table(&columns, rows);
            if none_runs {
                let note = format!("({NONE_RUNS}: `mcpproxy serve` starts one)");
                let _ = writeln!(shown, "{}", hints::commands(&note));
            }
            let notes = Paragraph::new(output.view.width).indented(NOTE_INDENT);
            for server in list(servers, "/servers") {
                let name = cell(&text(server, "/name"));
                if let Some(Ok(second) | Err(second)) = second_connection(server) {
                    // Infallible: writing to a String.
                    let _ = write!(shown, "\n{name}: {second}");
                }
                let Some(counts) = nonconforming(server) else { continue };
                let _ = write!(shown, "\n{name}: {counts}");
                for note in list_notes(server) {
                    let _ = write!(shown, "\n{}", notes.block(&note));
                }
            }
            shown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::{fits, names};

    #[test]
    fn server_list_keeps_state_column_beside_long_names() {
        for name in names() {
            let server = |name: &str, state: &str, reason: &str| {
                json!({"name": name, "state": state, "protocol": "stdio", "tools": 12,
                    "quarantined": 0, "calls": {"total": 7, "error": 1}, "reason": reason})
            };
            let why = format!("command '/{}/server' was not found", "a-folder/".repeat(20));
            let mut held = server("held", "connected", "");
            held["quarantined"] = json!(3);
            let servers = json!({"servers": [
                held, server(&name, "connected", ""), server("gone", "failed", &why),
                server("ended", "failed", "no key (the process ended with exit status: 1)"),
            ]});
            let keeps = [
                "STATE",
                "connected",
                "failed",
                "gone",
                "'/a-folder",
                "was",
                "no key",
                "3 tools in quarantine",
            ];
            fits(|output| table(&servers, output), &keeps);
        }
    }

    #[test]
    fn def_6_server_list_shows_items_that_do_not_conform() {
        let note = |action: &str, reason: &str| json!({"list": "tools/list", "item": "odd", "action": action, "reason": reason});
        let servers = json!({"servers": [
            {"name": "good", "state": "connected", "tools": 1},
            {"name": "bad", "state": "connected", "tools": 2, "nonconforming": {"repaired": 1, "omitted": 1, "notes": [
                note("repaired", "title is null"), note("omitted", "inputSchema is an array, expected an object")]}},
        ]});
        let keeps = [
            "bad: 1 list item repaired, 1 left out",
            "  tools/list 'odd' repaired: title is null",
            "  tools/list 'odd' omitted: inputSchema is an",
        ];
        fits(|output| table(&servers, output), &keeps);
    }
}
