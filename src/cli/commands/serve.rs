//! `mcpproxy serve`: a proxy that runs until a signal ends it.
//!
//! Also the errors of a proxy that cannot start: each has its exit code and names the next step.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::SystemTime;

use super::config;
use crate::activity::StoreError;
use crate::activity::salvage::{self, Salvaged};
use crate::cli::args::{Global, Serve};
use crate::cli::error::{CommandError, Exit};
use crate::cli::logging;
use crate::cli::running_proxy::Announced;
use crate::config::file::{API_KEY_BYTES, Loaded};
use crate::config::{LogFormat, Logging};
use crate::server::{App, StartError};

/// Serves HTTP until SIGINT, SIGTERM or the end of its terminal.
pub(in crate::cli) fn http(global: &Global, flags: &Serve) -> Result<(), CommandError> {
    let mut loaded = config::load(global, flags.listen.as_deref())?;
    let log = start_log(loaded.config.logging);
    note_warnings(&loaded);
    let listener = bind(loaded.config.listen)?;
    if loaded.ensure_api_key(random()?).map_err(|error| config::failed(&error))? {
        tracing::info!("an API key was made and stored in {}", loaded.path.display());
    }
    if flags.salvage {
        salvage(&loaded.config.activity_folder())?;
    }
    let data_dir = loaded.config.data_dir.clone();
    let app = App::start(loaded.config, log.lines()).map_err(|error| not_started(&error))?;
    let server = app.serve(listener).map_err(|error| not_started(&error))?;
    let _announced = Announced::at(&data_dir, server.address());
    // Whoever has read the line may tell us to end.
    let signals = server.signals().map_err(|error| not_started(&error))?;
    // The one line of stdout: whoever started it knows now that it listens, and where.
    crate::cli::output::write(format!("MCP at http://{}/mcp", server.address()).as_bytes())?;
    match server.run(signals).map_err(|error| not_started(&error))? {
        None => Ok(()),
        Some(code) => Err(CommandError::hurried(code)),
    }
}

/// Moves a damaged log aside and begins another with what can be read (ACT-9).
fn salvage(folder: &Path) -> Result<(), CommandError> {
    let exists = folder.try_exists().map_err(CommandError::failed)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let salvaged = match exists {
        true => salvage::salvage(folder, now_ms).map_err(|error| store(&error))?,
        false => None,
    };
    match salvaged {
        Some(Salvaged { aside, kept, lost, why }) => tracing::warn!(
            "{why}; it is kept in {}, and the log goes on with the {kept} records that could be read; \
             {lost} between them are lost",
            aside.display()
        ),
        None => tracing::info!("there is nothing to salvage: the activity log can be used"),
    }
    Ok(())
}

/// Takes the address before anything else is started.
fn bind(address: SocketAddr) -> Result<TcpListener, CommandError> {
    TcpListener::bind(address).map_err(|error| {
        let next = match error.kind() {
            ErrorKind::AddrInUse => {
                "is mcpproxy running already? choose another with --listen or MCPPROXY_LISTEN"
            }
            _ => "choose another with --listen or MCPPROXY_LISTEN",
        };
        CommandError::new(Exit::Unreachable, format!("cannot listen on {address}: {error}; {next}"))
    })
}

/// Why a proxy could not start, with its exit code.
pub(in crate::cli) fn not_started(error: &StartError) -> CommandError {
    match error {
        StartError::Activity(error) => store(error),
        StartError::HostCheck(_) => CommandError::new(Exit::Config, error),
        StartError::Folder { .. } | StartError::System(_) => CommandError::failed(error),
    }
}

/// Why the log could not be opened or closed, with its exit code.
pub(in crate::cli) fn store(error: &StoreError) -> CommandError {
    let next = match error {
        StoreError::Locked => {
            ": is mcpproxy running on another address? name it with MCPPROXY_LISTEN, or use \
             another --data-dir"
        }
        StoreError::Damaged { .. } => {
            ": it is kept as it is; `mcpproxy serve --salvage` moves it aside and goes on with \
             what can be read"
        }
        StoreError::Io(_) => "",
    };
    let exit = match error {
        StoreError::Locked | StoreError::Damaged { .. } => Exit::Store,
        StoreError::Io(_) => Exit::Failed,
    };
    CommandError::new(exit, format!("{error}{next}"))
}

/// Starts the log as the config says.
pub(in crate::cli) fn start_log(logging: Logging) -> logging::Log {
    let shape = match logging.format {
        LogFormat::Text => logging::Shape::Text,
        LogFormat::Json => logging::Shape::Json,
    };
    logging::start(logging.level.as_str(), shape)
}

/// Says what the config was warned about.
pub(in crate::cli) fn note_warnings(loaded: &Loaded) {
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
}

/// Random bytes for an API key.
pub(in crate::cli) fn random() -> Result<[u8; API_KEY_BYTES], CommandError> {
    let mut random = [0; API_KEY_BYTES];
    getrandom::fill(&mut random)
        .map_err(|error| CommandError::failed(format!("no randomness for an API key: {error}")))?;
    Ok(random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_exit_3_and_says_what_to_do() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let failure = bind(taken.local_addr().unwrap()).unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.message.contains("--listen"), "{failure:?}");
    }

    #[test]
    fn act_9_a_store_that_cannot_be_used_is_exit_4() {
        let locked = not_started(&StartError::Activity(StoreError::Locked));
        let damaged = StoreError::Damaged { file: "a/b.jnl".into(), why: "bad block".into() };
        let damaged = not_started(&StartError::Activity(damaged));
        assert_eq!((locked.exit, damaged.exit), (Exit::Store, Exit::Store));
        assert!(damaged.message.contains("a/b.jnl"), "{damaged:?}");
    }
}
