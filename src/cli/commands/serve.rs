//! `mcpproxy serve` and `mcpproxy stdio`: run the proxy as a server, or for one client on stdin and stdout.
//!
//! `stdio` forwards to a running proxy; if none runs, it runs the proxy in this process. SIGINT and SIGTERM act as the
//! end of input: calls in flight finish, and a second signal aborts them. The closing of the terminal is ignored,
//! because the terminal belongs to the client. A proxy in this process reloads its config like `serve`, when the file
//! changes and at SIGHUP.

use crate::args::{Global, ServeArgs};
use crate::backend::Backend;
use crate::error::{CommandError, Exit};
use crate::http_client::mcp_path;
use crate::running_proxy::AddressFile;
use crate::terminal_safe::line;
use crate::{bridge, completion, output, running_proxy, start_proxy};
use mcpproxy_activity::salvage::Salvaged;
use mcpproxy_activity::{StoreError, restore, salvage};
use mcpproxy_config::Config;
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_gateway::proxy::client::Endpoint;
use mcpproxy_gateway::telemetry::LogHandles;
use mcpproxy_runtime::io::address::Address;
use mcpproxy_server as server;
use mcpproxy_server::{
    App, CUT_GRACE, ConfigSource, DRAIN_TIMEOUT, ForcedShutdown, Listener, ListenerTls, Server,
    StartError,
};
use std::io;
use std::io::{ErrorKind, IsTerminal};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;
use tokio::io::{AsyncRead, ReadBuf};

/// Serves HTTP until SIGINT, SIGTERM or the closing of its terminal.
pub(super) fn run(global: &Global, flags: &ServeArgs) -> Result<(), CommandError> {
    let mut loaded = start_proxy::load(global, flags.listen.as_deref())?;
    let log = start_proxy::start_log(loaded.config.logging, global);
    start_proxy::note_warnings(&loaded);
    let tls = loaded.config.tls.clone().map(ListenerTls::load).transpose();
    let tls = tls.map_err(|problem| start_proxy::not_started(&problem.into()))?;
    let listener = bind(&loaded.config)?;
    if loaded
        .ensure_api_key(start_proxy::random_key()?)
        .map_err(|error| start_proxy::problem(&error))?
    {
        tracing::info!(file = %loaded.path.display(), "generated an API key");
    }
    if flags.salvage {
        salvage(&loaded.config)?;
    }
    let data_dir = loaded.config.data_dir.clone();
    let flags = start_proxy::flags(global, flags.listen.as_deref());
    let source = ConfigSource { path: loaded.path, flags };
    let app = App::start(loaded.config, log.handles(), Some(source))
        .map_err(|error| start_proxy::not_started(&error))?;
    let server = app.serve(listener, tls).map_err(|error| start_proxy::not_started(&error))?;
    let _address_file = AddressFile::at(&data_dir, server.address());
    // The handlers are installed before the line below is printed, because its reader may send a signal immediately.
    let signals = server.signals().map_err(|error| start_proxy::not_started(&error))?;
    // The only line on stdout gives the parent process the address.
    output::write(format!("MCP at {}", mcp_url(&server)).as_bytes())?;
    // The code is printed only at a terminal, because output to a file or pipe may be kept.
    if std::io::stdout().is_terminal()
        && let Some(address) = server.page_address(start_proxy::random_key()?)
    {
        output::write(
            format!("Web page (one-time link, valid for ten minutes): {address}").as_bytes(),
        )?;
    }
    match server.run(signals).map_err(|error| start_proxy::not_started(&error))? {
        None => Ok(()),
        Some(code) => Err(CommandError::aborted(code)),
    }
}

/// URL for clients. For a socket, it has the form that the config key `url` takes.
fn mcp_url(server: &Server) -> String {
    match (server.address(), server.tls()) {
        (Address::Tcp(address), None) => format!("http://{address}/mcp"),
        (Address::Tcp(address), Some(_)) => format!("https://{address}/mcp"),
        (address @ Address::Unix(_), _) => format!("{address}:/mcp"),
    }
}

/// Moves a damaged log aside and starts a new one with its readable part (ACT-9). A fleet node fetches its sealed
/// records back when it starts.
fn salvage(config: &Config) -> Result<(), CommandError> {
    let folder = &*config.activity_folder();
    let exists = folder.try_exists().map_err(CommandError::failed)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let salvaged = match exists {
        true => {
            salvage::salvage(folder, now_ms).map_err(|error| start_proxy::not_salvaged(&error))?
        }
        false => None,
    };
    match salvaged {
        Some(Salvaged { aside, kept, lost, why }) => tracing::warn!(
            "{why}; moved it to {}; the log continues with the {kept} readable records, \
             {lost} are lost",
            aside.display()
        ),
        None => tracing::info!("nothing to salvage: the activity log is usable"),
    }
    // A node without a data directory does not have a key either.
    if config.ledger().is_some() && config.data_dir.is_dir() {
        restore::request_restore(folder).map_err(|error| start_proxy::store(&error))?;
    }
    Ok(())
}

/// Binds the listen address before anything else is started.
fn bind(config: &Config) -> Result<Listener, CommandError> {
    let address = &config.listen;
    Listener::bind(address).map_err(|error| {
        let is_in_use = error.kind() == ErrorKind::AddrInUse;
        let next = match is_in_use && is_running(config) {
            true => {
                "mcpproxy is already running there: see `mcpproxy status`; another one needs its own --listen and --data-dir"
            },
            false => "choose another with --listen or MCPPROXY_LISTEN",
        };
        CommandError::new(Exit::Unreachable, format!("cannot listen on {address}: {error}; {next}"))
    })
}

/// Checks whether a proxy answers at the configured address.
fn is_running(config: &Config) -> bool {
    let runtime = server::local_runtime();
    runtime.is_ok_and(|runtime| runtime.block_on(running_proxy::configured(config).is_mcpproxy()))
}

/// Serves one client over stdin and stdout until the input ends, with all servers or only the named one.
pub(super) fn run_stdio(global: &Global, only: Option<&str>) -> Result<(), CommandError> {
    let loaded = start_proxy::load(global, None)?;
    let log = start_proxy::start_log(loaded.config.logging, global);
    start_proxy::note_warnings(&loaded);
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let found = runtime.block_on(async {
        let client = running_proxy::configured(&loaded.config);
        match client.is_mcpproxy().await {
            true => Some(client),
            false => running_proxy::elsewhere(&loaded.config).await,
        }
    });
    let mut second_signal = None;
    let served = if let Some(client) = found {
        if let Some(name) = only {
            let known = Backend::Remote(client.clone());
            let known = runtime.block_on(completion::names(&known, "servers"));
            if known.is_some_and(|known| known.iter().all(|it| it != name)) {
                return Err(not_served(name));
            }
        }
        let path = mcp_path(only);
        tracing::info!(server = client.authority(), path, "forwarding to the running proxy");
        let input = Input::new(|| {
            tracing::info!("SIGHUP ignored: the config is read by the running proxy");
        });
        runtime.block_on(async {
            let mut ended = std::pin::pin!(server::ended_by_signal());
            let mut bridging =
                std::pin::pin!(bridge::run(client, &path, input, tokio::io::stdout()));
            tokio::select! {
                bridged = &mut bridging => return bridged,
                ended = &mut ended => ended?,
            }
            // Apart from the bridge, nothing needs an orderly shutdown.
            let forced = ForcedShutdown::default();
            forced.watch(|| {});
            tokio::select! {
                bridged = &mut bridging => bridged,
                () = forced.requested() => {
                    second_signal = forced.exit_code();
                    Ok(())
                }
            }
        })
    } else {
        let source = ConfigSource { path: loaded.path, flags: start_proxy::flags(global, None) };
        serve_in_process(&runtime, loaded.config, log.handles(), source, only)?
    };
    // A pending read of stdin would block the shutdown.
    runtime.shutdown_background();
    if let Some(code) = second_signal {
        return Err(CommandError::aborted(code));
    }
    served.map_err(|error| {
        CommandError::failed(format!("cannot read or write the client's pipe: {error}"))
    })
}

/// Error for `--server` with a name that no enabled server has.
fn not_served(name: &str) -> CommandError {
    CommandError::failed(format!(
        "server '{}' is not in the config, or is disabled; see `mcpproxy upstream list`",
        line(name)
    ))
}

/// Runs the proxy in this process.
fn serve_in_process(
    runtime: &tokio::runtime::LocalRuntime,
    config: Config,
    log: LogHandles,
    source: ConfigSource,
    only: Option<&str>,
) -> Result<io::Result<()>, CommandError> {
    let app = App::start(config, log, Some(source)).map_err(|error| match error {
        StartError::Activity(StoreError::Locked) => {
            let next = "start `mcpproxy serve`, which serves all clients";
            CommandError::new(Exit::Store, format!("{}; {next}", StoreError::Locked))
        }
        error => start_proxy::not_started(&error),
    })?;
    let endpoint = match only {
        None => Endpoint::Search,
        Some(name) => {
            let known = app.shared().proxy.upstreams.get(name);
            if known.is_none_or(|upstream| upstream.is_disabled()) {
                app.close().map_err(|error| start_proxy::store(&error))?;
                return Err(not_served(name));
            }
            Endpoint::Server(name.into())
        }
    };
    let worker = Rc::new(Worker::new(app.shared().proxy.clone()));
    let (ending, mut second_signal) = (worker.ending.clone(), None);
    let served = runtime.block_on(async {
        let shared = Arc::clone(app.shared());
        let input = Input::new(move || {
            tracing::info!("SIGHUP: reloading the config");
            shared.api.config.reload_on_signal();
        });
        let mut ended = std::pin::pin!(server::ended_by_signal());
        let mut serving = std::pin::pin!(mcpproxy_downstream::stdio::serve(
            worker,
            endpoint,
            input,
            tokio::io::stdout()
        ));
        tokio::select! {
            served = &mut serving => return served,
            ended = &mut ended => ended?,
        }
        // The signal has also ended the input; calls in flight may finish.
        let requested = second_signal.insert(app.force_on_signal());
        tokio::select! {
            served = tokio::time::timeout(DRAIN_TIMEOUT, &mut serving) => {
                if let Ok(served) = served {
                    return served;
                }
            }
            () = requested.requested() => {}
        }
        ending.cut_off();
        tokio::time::timeout(CUT_GRACE, serving).await.unwrap_or(Ok(()))
    });
    app.close().map_err(|error| start_proxy::store(&error))?;
    match second_signal.as_ref().and_then(ForcedShutdown::exit_code) {
        None => Ok(served),
        Some(code) => Err(CommandError::aborted(code)),
    }
}

type Ending = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// Stdin, which also ends at SIGINT or SIGTERM.
struct Input {
    stdin: tokio::io::Stdin,
    ended: Option<Ending>,
}

impl Input {
    /// Starts reading; `reload` is called at SIGHUP.
    fn new(reload: impl Fn() + 'static) -> Self {
        let ended: Ending = Box::pin(async {
            tokio::select! {
                ended = server::ended_by_signal() => ended,
                failed = server::outlive_terminal(reload) => failed,
            }
        });
        Self { stdin: tokio::io::stdin(), ended: Some(ended) }
    }
}

impl AsyncRead for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(ended) = &mut this.ended else { return Poll::Ready(Ok(())) };
        if let Poll::Ready(signal) = ended.as_mut().poll(cx) {
            this.ended = None;
            return Poll::Ready(signal);
        }
        Pin::new(&mut this.stdin).poll_read(cx, buf)
    }
}
