//! `mcpproxy upstream …`: the state of each server, and logins.

use crate::cli::args::{Global, UpstreamCommand};
use crate::cli::backend::{self, Backend, Needs, target};
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::Output;
use crate::cli::table::cell;

use super::login;

/// The columns of the list, and where their values stand.
const UPSTREAM_COLUMNS: [(&str, &str); 8] = [
    ("NAME", "/name"),
    ("STATE", "/state"),
    ("PROTOCOL", "/protocol"),
    ("TOOLS", "/tools"),
    ("QUARANTINED", "/quarantined"),
    ("CALLS", "/calls/total"),
    ("ERRORS", "/calls/error"),
    ("REASON", "/reason"),
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
        UpstreamCommand::Login { name, open, timeout } => {
            login::log_in(global, output, &name, open, timeout)
        }
        UpstreamCommand::Logout { name } => login::log_out(global, output, &name),
    }
}

/// Prints the state of every upstream server.
async fn list_servers(backend: &Backend, output: &Output) -> Result<(), CommandError> {
    let servers = backend.get(&target(&["servers"], &[])).await?;
    output.print(servers.json()?, |servers| {
        let rows = list(servers, "/servers")
            .iter()
            .map(|server| UPSTREAM_COLUMNS.map(|(_, column)| cell(&text(server, column))).to_vec());
        let rows: Vec<_> = rows.collect();
        match rows.is_empty() {
            true => "No upstream servers. Add them under mcpServers in the file that \
                     `mcpproxy config path` names."
                .to_owned(),
            false => output.table(&UPSTREAM_COLUMNS.map(|(name, _)| name), rows, &[0]),
        }
    })
}
