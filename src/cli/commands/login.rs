//! `mcpproxy upstream login` and `logout`: a person, a browser, and the tokens of one server.
//!
//! `upstream::oauth` performs the login; here is what the user sees. A running proxy needs no
//! message: it notices that the file of tokens changed.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::cli::args::{Format, Global};
use crate::cli::error::CommandError;
use crate::cli::exit_code::Exit;
use crate::cli::json_pointer::{list, text};
use crate::cli::load_config;
use crate::cli::logging;
use crate::cli::output::Output;
use crate::cli::suggest::unknown_server;
use crate::cli::terminal_safe::line;
use crate::config::Config;
use crate::config::servers::ServerEntry;
use crate::server;
use crate::upstream::oauth::{self, LoginError, TokenStore};

/// Logs in with a server: prints the URL to open and waits for the browser to come back.
pub(super) fn log_in(
    global: &Global,
    output: &Output,
    name: &str,
    open: bool,
    limit: Duration,
) -> Result<(), CommandError> {
    let loaded = load_config::load(global, None)?;
    let _log = logging::start_quiet(global);
    let config = &loaded.config;
    let server = find(config, name)?;
    let show = |url: &str| {
        let said = match output.format {
            Format::Json => json!({"open": url}).to_string(),
            Format::Table | Format::Yaml => {
                format!("Open this in your browser to log in with {name}:\n\n  {}\n", line(url))
            }
        };
        // stdout is for the outcome.
        logging::say(said);
        if open {
            open_browser(url);
        }
    };
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let login = oauth::login(name, &server.upstream, &config.data_dir, limit, show);
    let logged_in = runtime.block_on(login).map_err(|error| failed(name, &error))?;
    let outcome = json!({
        "server": name, "issuer": logged_in.issuer, "scopes": logged_in.scopes,
        "renewable": logged_in.renewable,
    });
    output.print(&outcome.to_string(), |outcome| {
        let scopes: Vec<&str> =
            list(outcome, "/scopes").iter().filter_map(serde_json::Value::as_str).collect();
        let scopes =
            if scopes.is_empty() { String::new() } else { format!(" for {}", scopes.join(" ")) };
        line(&format!("logged in with {name} at {}{scopes}", text(outcome, "/issuer"))).into()
    })
}

/// Forgets a server's tokens.
pub(super) fn log_out(global: &Global, output: &Output, name: &str) -> Result<(), CommandError> {
    let loaded = load_config::load(global, None)?;
    find(&loaded.config, name)?;
    let was =
        TokenStore::new(&loaded.config.data_dir, name).forget().map_err(CommandError::failed)?;
    output.print(&json!({"server": name, "was_logged_in": was}).to_string(), |_| {
        line(&match was {
            true => format!("logged out from {name}"),
            false => format!("there was no login with {name}"),
        })
        .into()
    })
}

fn find<'a>(config: &'a Config, name: &str) -> Result<&'a ServerEntry, CommandError> {
    let found = config.servers.iter().find(|server| &*server.name == name);
    let names = || config.servers.iter().map(|server| &*server.name);
    found.ok_or_else(|| CommandError::failed(unknown_server(name, names())))
}

fn failed(name: &str, error: &LoginError) -> CommandError {
    let exit = match error {
        LoginError::Config(_) => Exit::Config,
        LoginError::Unreachable(_) => Exit::Unreachable,
        LoginError::NotAsked(_)
        | LoginError::Unusable(_)
        | LoginError::Denied(_)
        | LoginError::Late(_)
        | LoginError::Store(_) => Exit::Failed,
    };
    CommandError::new(exit, format!("{name}: {error}"))
}

/// Asks the system to show a page. The URL was printed as well, so nothing depends on it.
fn open_browser(url: &str) {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(opener);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(error) = command.spawn() {
        logging::say(format_args!("warning: no browser could be opened ({opener}: {error})"));
    }
}
