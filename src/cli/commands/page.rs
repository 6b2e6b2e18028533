//! `mcpproxy page`: an address that opens the page of the running proxy, once.

use serde_json::json;

use crate::cli::args::Global;
use crate::cli::backend::{self, Backend, Needs, target};
use crate::cli::error::CommandError;
use crate::cli::json_pointer::text;
use crate::cli::output::{self, Output};
use crate::page;

/// Asks for a code, and prints it as an address.
pub(super) fn run(global: &Global, output: &Output) -> Result<(), CommandError> {
    backend::with(global, Needs::Running, async |backend| {
        let base = match backend {
            Backend::Remote(client) => client.base(),
            // None is opened for a command that needs one that runs.
            Backend::Local(_) => None,
        };
        let base = base.ok_or_else(|| {
            let why = "mcpproxy listens on a Unix socket, where no browser can go: use a host and port in `listen`";
            CommandError::failed(why)
        })?;
        let made = backend.post(&target(&["page", "codes"], &[]), String::new()).await?;
        let made = output::parse(made.json()?)?;
        let address = page::address(&base, &text(&made, "/code"));
        let shown = json!({"address": address, "expires": text(&made, "/expires")});
        output.print(&shown.to_string(), |_| {
            format!("Open this in your browser, once, within ten minutes:\n\n  {address}\n")
        })
    })
}
