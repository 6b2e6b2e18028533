//! `mcpproxy upstream …`: the servers, how they are and what they say; their entries in the config; logins.

mod change;
mod logs;

use std::time::{Duration, Instant};

use anstyle::Style;
use serde_json::{Value, json};

use crate::cli::args::{Global, UpstreamCommand};
use crate::cli::backend::{self, Backend, Needs, target};
use crate::cli::colours::of_state;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::Output;
use crate::cli::server_state;
use crate::cli::suggest::{Vocabulary, suggesting};
use crate::cli::table::{Cell, Column, Fit, cell};
use crate::cli::terminal_safe::line;
use crate::upstream::supervisor::Status;

use self::change::ServerChange;
use self::logs::LogsShown;
use super::login;

/// Longest wait for a server that is restarted.
const RESTART_LIMIT: Duration = Duration::from_secs(45);

/// The columns of the list, and where their values stand.
const UPSTREAM_COLUMNS: [((&str, Fit), &str); 8] = [
    (("NAME", Fit::Name), "/name"),
    (("STATE", Fit::Whole), "/state"),
    (("PROTOCOL", Fit::Rank(6)), "/protocol"),
    (("TOOLS", Fit::Rank(2)), "/tools"),
    (("QUARANTINED", Fit::Rank(3)), "/quarantined"),
    (("CALLS", Fit::Rank(5)), "/calls/total"),
    (("ERRORS", Fit::Rank(4)), "/calls/error"),
    (("REASON", Fit::Free), "/reason"),
];

/// Runs one of the commands.
pub(super) fn run(
    command: UpstreamCommand,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        UpstreamCommand::List => backend::with(global, Needs::Catalog, async |backend| {
            list_servers(backend, output).await
        }),
        UpstreamCommand::Add(flags) => change::add(&flags, global, output),
        UpstreamCommand::Remove { name } => {
            change::change(&name, ServerChange::Remove, global, output)
        }
        UpstreamCommand::Enable { name } => {
            change::change(&name, ServerChange::Enable, global, output)
        }
        UpstreamCommand::Disable { name } => {
            change::change(&name, ServerChange::Disable, global, output)
        }
        UpstreamCommand::Restart { name } => {
            backend::with(global, Needs::Running, async |backend| {
                restart(&name, backend, output).await
            })
        }
        UpstreamCommand::Logs { name, follow, lines, time } => {
            logs::run(&name, LogsShown { follow, most: lines, time }, global, output)
        }
        UpstreamCommand::Login { name, open, timeout } => {
            login::log_in(global, output, &name, open, timeout)
        }
        UpstreamCommand::Logout { name } => login::log_out(global, output, &name),
    }
}

/// Prints the state of every upstream server.
async fn list_servers(backend: &Backend, output: &Output) -> Result<(), CommandError> {
    let servers = backend.get(&target(&["servers"], &[])).await?;
    output.print(servers.json()?, |servers| table(servers, output))
}

fn table(servers: &Value, output: &Output) -> String {
    let cell_of = |server: &Value, at: &str| {
        let told = text(server, at);
        let style = if at == "/state" { of_state(&told) } else { Style::new() };
        Cell::styled(cell(&told), style)
    };
    let rows = list(servers, "/servers")
        .iter()
        .map(|server| UPSTREAM_COLUMNS.map(|(_, at)| cell_of(server, at)).to_vec());
    let rows: Vec<_> = rows.collect();
    match rows.is_empty() {
        true => {
            "No upstream servers. `mcpproxy upstream add` adds one, `mcpproxy import` those of \
                 other programs."
                .to_owned()
        }
        false => output.table(&Column::all(UPSTREAM_COLUMNS.map(|(column, _)| column)), rows),
    }
}

/// Has a server connected anew, and waits for what comes of it.
async fn restart(name: &str, backend: &Backend, output: &Output) -> Result<(), CommandError> {
    let asked = backend.post(&target(&["servers", name, "restart"], &[]), String::new()).await;
    suggesting(asked, backend, Vocabulary::Servers, name).await?;
    let until = Instant::now() + RESTART_LIMIT;
    let tried = server_state::settled(backend, name, until).await?;
    let answer = json!({"server": name, "restarted": true, "check": tried.json()});
    output
        .print(&answer.to_string(), |_| format!("Restarted '{}': {}.", line(name), tried.told()))?;
    match tried.status {
        Status::Connected => Ok(()),
        Status::Disabled | Status::Connecting | Status::Failed => {
            Err(CommandError::failed(format!(
                "'{}' does not work: `mcpproxy upstream logs {0}` has what it says",
                line(name)
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::tests::{fits, names};

    #[test]
    fn a_long_name_or_reason_leaves_the_state_where_it_is() {
        for name in names() {
            let server = |name: &str, state: &str, reason: &str| {
                json!({"name": name, "state": state, "protocol": "stdio", "tools": 12,
                    "quarantined": 0, "calls": {"total": 7, "error": 1}, "reason": reason})
            };
            let why = format!("command '/{}/server' was not found", "a-folder/".repeat(20));
            let servers = json!({"servers": [
                server(&name, "connected", ""), server("gone", "failed", &why),
            ]});
            let keeps = ["STATE", "connected", "failed", "gone", "command '/a-"];
            fits(|output| table(&servers, output), &keeps);
        }
    }
}
