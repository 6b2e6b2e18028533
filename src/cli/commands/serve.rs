//! `mcpproxy serve`: a proxy that runs until a signal ends it.

use std::io::{ErrorKind, IsTerminal};
use std::path::Path;
use std::time::SystemTime;

use crate::activity::salvage::{self, Salvaged};
use crate::cli::args::{Global, ServeArgs};
use crate::cli::error::CommandError;
use crate::cli::exit_code::Exit;
use crate::cli::running_proxy::Announced;
use crate::cli::{load_config, output, start_proxy};
use crate::io::address::Address;
use crate::server::{App, ConfigSource, Listener, ListenerTls, Server};

/// Serves HTTP until SIGINT, SIGTERM or the end of its terminal.
pub(super) fn run(global: &Global, flags: &ServeArgs) -> Result<(), CommandError> {
    let mut loaded = load_config::load(global, flags.listen.as_deref())?;
    let log = start_proxy::start_log(loaded.config.logging);
    start_proxy::note_warnings(&loaded);
    let tls = loaded.config.tls.clone().map(ListenerTls::load).transpose();
    let tls = tls.map_err(|problem| start_proxy::not_started(&problem.into()))?;
    let listener = bind(&loaded.config.listen)?;
    if loaded
        .ensure_api_key(start_proxy::random_key()?)
        .map_err(|error| load_config::problem(&error))?
    {
        tracing::info!("an API key was made and stored in {}", loaded.path.display());
    }
    if flags.salvage {
        salvage(&loaded.config.activity_folder())?;
    }
    let data_dir = loaded.config.data_dir.clone();
    let flags = load_config::flags(global, flags.listen.as_deref());
    let source = ConfigSource { path: loaded.path, flags };
    let app = App::start(loaded.config, log.handles(), Some(source))
        .map_err(|error| start_proxy::not_started(&error))?;
    let server = app.serve(listener, tls).map_err(|error| start_proxy::not_started(&error))?;
    let _announced = Announced::at(&data_dir, server.address());
    // Listened for before the line below: who has read it may send one.
    let signals = server.signals().map_err(|error| start_proxy::not_started(&error))?;
    // The one line of stdout tells who started the process that it listens, and where.
    output::write(format!("MCP at {}", place(&server)).as_bytes())?;
    // Whoever has a terminal is a person; what is written to a file or a pipe is kept, and the code is not to be.
    if std::io::stdout().is_terminal()
        && let Some(address) = server.page_address(start_proxy::random_key()?)
    {
        output::write(format!("The page, once, within ten minutes: {address}").as_bytes())?;
    }
    match server.run(signals).map_err(|error| start_proxy::not_started(&error))? {
        None => Ok(()),
        Some(code) => Err(CommandError::hurried(code)),
    }
}

/// Where a client finds it; of a socket the form that `url` takes.
fn place(server: &Server) -> String {
    match (server.address(), server.tls()) {
        (Address::Tcp(address), None) => format!("http://{address}/mcp"),
        (Address::Tcp(address), Some(_)) => format!("https://{address}/mcp"),
        (address @ Address::Unix(_), _) => format!("{address}:/mcp"),
    }
}

/// Moves a damaged log aside and begins another with what can be read (ACT-9).
fn salvage(folder: &Path) -> Result<(), CommandError> {
    let exists = folder.try_exists().map_err(CommandError::failed)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let salvaged = match exists {
        true => salvage::salvage(folder, now_ms).map_err(|error| start_proxy::store(&error))?,
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
fn bind(address: &Address) -> Result<Listener, CommandError> {
    Listener::bind(address).map_err(|error| {
        let next = match error.kind() {
            ErrorKind::AddrInUse => {
                "is mcpproxy running already? choose another with --listen or MCPPROXY_LISTEN"
            }
            _ => "choose another with --listen or MCPPROXY_LISTEN",
        };
        CommandError::new(Exit::Unreachable, format!("cannot listen on {address}: {error}; {next}"))
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_taken_port_is_exit_3_and_says_what_to_do() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let failure = bind(&taken.local_addr().unwrap().into()).unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.message.contains("--listen"), "{failure:?}");
    }
}
