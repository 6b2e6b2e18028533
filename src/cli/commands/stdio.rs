//! `mcpproxy stdio`: one client on stdin and stdout, before the server that runs or, with none
//! running, before a proxy in this process.
//!
//! SIGINT and SIGTERM are the end of input: calls under way finish, as those of `serve` do, and are
//! cut off by the next one. The terminal is the client's, and so is what follows from its end. A proxy in this process
//! reads its config again as `serve` does: when the file changes, and at SIGHUP.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use crate::activity::StoreError;
use crate::cli::args::Global;
use crate::cli::error::CommandError;
use crate::cli::exit_code::Exit;
use crate::cli::{bridge, load_config, running_proxy, start_proxy};
use crate::config::Config;
use crate::downstream;
use crate::proxy::Worker;
use crate::server::{self, App, CUT_GRACE, ConfigSource, DRAIN_TIMEOUT, Hurry, StartError};
use crate::telemetry::LogHandles;

/// Serves one client over stdin and stdout until it closes its end.
pub(super) fn run(global: &Global) -> Result<(), CommandError> {
    let loaded = load_config::load(global, None)?;
    let log = start_proxy::start_log(loaded.config.logging);
    start_proxy::note_warnings(&loaded);
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let found = runtime.block_on(async {
        let client = running_proxy::configured(&loaded.config);
        match client.is_mcpproxy().await {
            true => Some(client),
            false => running_proxy::elsewhere(&loaded.config).await,
        }
    });
    let mut hurried = None;
    let served = if let Some(client) = found {
        tracing::info!("using the server at {}", client.authority());
        let input = Input::new(|| {
            tracing::info!("SIGHUP: the config is read by the server that runs, to be told itself");
        });
        runtime.block_on(async {
            let mut ended = std::pin::pin!(server::ended_by_signal());
            let mut carrying = std::pin::pin!(bridge::run(client, input, tokio::io::stdout()));
            tokio::select! {
                carried = &mut carrying => return carried,
                ended = &mut ended => ended?,
            }
            // There is nothing here to end in order.
            let hurry = Hurry::default();
            hurry.watch(|| {});
            tokio::select! {
                carried = &mut carrying => carried,
                () = hurry.told() => {
                    hurried = hurry.exit_code();
                    Ok(())
                }
            }
        })
    } else {
        let source = ConfigSource { path: loaded.path, flags: load_config::flags(global, None) };
        alone(&runtime, loaded.config, log.handles(), source)?
    };
    // A read of stdin that a signal left behind would be waited for otherwise.
    runtime.shutdown_background();
    if let Some(code) = hurried {
        return Err(CommandError::hurried(code));
    }
    served.map_err(|error| CommandError::failed(format!("the client's pipe failed: {error}")))
}

/// Runs the proxy in this process.
fn alone(
    runtime: &tokio::runtime::LocalRuntime,
    config: Config,
    log: LogHandles,
    source: ConfigSource,
) -> Result<io::Result<()>, CommandError> {
    let app = App::start(config, log, Some(source)).map_err(|error| match error {
        StartError::Activity(StoreError::Locked) => {
            let next = "start `mcpproxy serve`, which all clients then share";
            CommandError::new(Exit::Store, format!("{}; {next}", StoreError::Locked))
        }
        error => start_proxy::not_started(&error),
    })?;
    let worker = Rc::new(Worker::new(app.shared().proxy.clone()));
    let (ending, mut hurried) = (worker.ending.clone(), None);
    let served = runtime.block_on(async {
        let shared = Arc::clone(app.shared());
        let input = Input::new(move || {
            tracing::info!("SIGHUP: the config is read again");
            shared.api.config.signalled();
        });
        let mut ended = std::pin::pin!(server::ended_by_signal());
        let mut serving =
            std::pin::pin!(downstream::stdio::serve(worker, input, tokio::io::stdout()));
        tokio::select! {
            served = &mut serving => return served,
            ended = &mut ended => ended?,
        }
        // The signal ended the input as well: what is left is to let calls finish.
        let told = hurried.insert(app.hurries());
        tokio::select! {
            served = tokio::time::timeout(DRAIN_TIMEOUT, &mut serving) => {
                if let Ok(served) = served {
                    return served;
                }
            }
            () = told.told() => {}
        }
        ending.cut_off();
        tokio::time::timeout(CUT_GRACE, serving).await.unwrap_or(Ok(()))
    });
    app.close().map_err(|error| start_proxy::store(&error))?;
    match hurried.as_ref().and_then(Hurry::exit_code) {
        None => Ok(served),
        Some(code) => Err(CommandError::hurried(code)),
    }
}

type Ending = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// stdin, which ends with SIGINT or SIGTERM as well.
struct Input {
    stdin: tokio::io::Stdin,
    ended: Option<Ending>,
}

impl Input {
    /// `reload` is called at SIGHUP.
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
