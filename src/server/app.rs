//! A proxy from start to end: its parts are opened, it listens, and all of it ends in order.
//!
//! Which parts there are, and what each is made of, stands here and nowhere else.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::accept::{accept, max_connections};
use super::connection_limit::ConnectionSlots;
use super::runtime::{self, cores};
use super::shared::Shared;
use super::shutdown::{CHILDREN_TIMEOUT, DRAIN_TIMEOUT, Hurry, WORKER_GRACE};
use super::signals::Signals;
use super::worker_thread::{Ends, WorkerThread};
use super::{control, folder};
use crate::activity::record::{Draft, Source, Status, Type};
use crate::activity::{Activity, StoreError, Writer};
use crate::api;
use crate::catalog::{self, snapshot::Catalog};
use crate::config::Config;
use crate::downstream::host_check::{BadEntry, HostCheck};
use crate::downstream::session::Sessions;
use crate::os::descriptors;
use crate::proxy::dropped_members::DroppedMembers;
use crate::proxy::validation_pool::ValidationPool;
use crate::proxy::{Proxy, log_routing, passthrough};
use crate::telemetry::{Calls, Lines};

/// Why a proxy cannot start. Nothing is left half-started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The data folder cannot be used.
    #[error("the data folder {} cannot be used: {error}", folder.display())]
    Folder {
        /// `data_dir`
        folder: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The activity log is in use, damaged or unreadable.
    #[error(transparent)]
    Activity(#[from] StoreError),
    /// `allowed_hosts` or `allowed_origins`.
    #[error(transparent)]
    HostCheck(#[from] BadEntry),
    /// The system gives no thread, no event queue or no randomness.
    #[error("the system refused what every server needs: {0}")]
    System(#[from] io::Error),
}

/// A proxy whose parts are open, with or without a listener.
#[derive(Debug)]
pub struct App {
    shared: Arc<Shared>,
    control: Runtime,
    writer: Writer,
    drain: watch::Sender<bool>,
    hurry: Hurry,
    /// Connections that clients may have open at once.
    max_connections: usize,
    /// Hands on what upstreams tell.
    following: tokio::task::JoinHandle<()>,
}

/// A proxy that listens.
#[derive(Debug)]
pub struct Server {
    app: App,
    address: SocketAddr,
    worker_threads: Arc<Vec<WorkerThread>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl App {
    /// Opens the parts of a proxy and sets its upstreams going; waits for none of them. `lines` are
    /// where the log is written, to tell how it is.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn start(config: Config, lines: Lines) -> Result<Self, StartError> {
        let host_check = HostCheck::new(&config.allowed_hosts, &config.allowed_origins)?;
        let folder = &config.data_dir;
        folder::open(folder)
            .map_err(|error| StartError::Folder { folder: folder.clone(), error })?;
        // Before the log, which opens as many files as it may.
        descriptors::raise();
        let log = Activity::open(&config.activity_folder(), config.activity.clone())?;
        log.0.note(Draft::new(Type::SystemStart, Source::Internal, Status::Success));
        let catalog = config.catalog();
        Self::assemble(config, host_check, log, catalog, lines)
    }

    pub(super) fn assemble(
        config: Config,
        host_check: HostCheck,
        (activity, writer): (Activity, Writer),
        catalog: catalog::Settings,
        lines: Lines,
    ) -> Result<Self, StartError> {
        let servers = config.servers.iter().filter(|server| server.upstream.enabled).count();
        let max_connections = max_connections(cores(), servers);
        let control = runtime::control()?;
        let catalog = Arc::new(Catalog::new(catalog));
        control::restore(&catalog, &activity, &control);
        let upstreams = control::supervise(&config, &catalog, &activity, &control);
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(io::Error::from)?;
        let dropped_members = Arc::new(DroppedMembers::default());
        let proxy = Proxy {
            catalog,
            log_routing: log_routing::LogRouting::of(&upstreams, &dropped_members),
            dropped_members,
            upstreams,
            intent: config.intent,
            tools_limit: config.tools_limit,
            offered_era: config.offered_era,
            max_payload_bytes: config.activity.max_payload_bytes,
            max_response_bytes: config.activity.max_response_bytes,
            activity,
            list_cache: passthrough::list_cache::ListCache::default(),
            held: config.held(),
            judging_budget: config.judging_budget(),
            validation_pool: ValidationPool::new(control.handle().clone(), cores()),
            calls: Calls::new(config.servers.len()),
            hash_key: u64::from_ne_bytes(seed),
        };
        let proxy = Arc::new(proxy);
        let following = control.spawn(passthrough::notifications::follow(Arc::clone(&proxy)));
        let started = Instant::now();
        let (drain, ending) = watch::channel(false);
        let sessions = Arc::new(Sessions::default());
        let shared = Shared {
            proxy,
            host_check,
            api: api::State {
                api_key: config.key().into(),
                started,
                ending,
                lines,
                readers: api::ReaderSlots::default(),
                sessions: Arc::clone(&sessions),
                connections: OnceLock::new(),
            },
            sessions,
            require_mcp_auth: config.require_mcp_auth,
            started,
        };
        let (shared, hurry) = (Arc::new(shared), Hurry::default());
        Ok(Self { shared, control, writer, drain, hurry, max_connections, following })
    }

    /// What requests are answered from.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// From now on a signal means that the ending is not waited for any longer.
    #[must_use]
    pub fn hurries(&self) -> Hurry {
        let proxy = Arc::clone(&self.shared.proxy);
        self.hurry.watch(move || proxy.upstreams.kill());
        self.hurry.clone()
    }

    /// Starts to serve HTTP on a listener.
    ///
    /// # Errors
    ///
    /// [`StartError::System`]; the parts are closed again.
    pub fn serve(self, listener: StdListener) -> Result<Server, StartError> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let worker_threads = (0..cores())
            .map(|number| {
                let ends = Ends { drain: self.drain.subscribe(), hurry: self.hurry.clone() };
                WorkerThread::start(Arc::clone(&self.shared), number, ends)
            })
            .collect::<io::Result<Vec<_>>>()?;
        let open = worker_threads
            .iter()
            .map(|worker_thread| Arc::clone(&worker_thread.connections))
            .collect();
        // It listens once.
        let _ = self.shared.api.connections.set(open);
        let worker_threads = Arc::new(worker_threads);
        let listener = {
            let _control = self.control.enter();
            TcpListener::from_std(listener)?
        };
        let places = ConnectionSlots::new(self.max_connections);
        let accepting = self.control.spawn(accept(listener, Arc::clone(&worker_threads), places));
        Ok(Server { app: self, address, worker_threads, accepting })
    }

    /// Ends the upstreams with their children, writes what is left of the log, and closes.
    ///
    /// # Errors
    ///
    /// When records could not be written.
    pub fn close(self) -> Result<(), StoreError> {
        let Self { shared, control, writer, drain: _, hurry, max_connections: _, following } = self;
        following.abort();
        let patience = if hurry.exit_code().is_some() { Duration::ZERO } else { CHILDREN_TIMEOUT };
        let deadline = Instant::now() + patience;
        control.block_on(shared.proxy.upstreams.shutdown(deadline));
        let stop = Draft::new(Type::SystemStop, Source::Internal, Status::Success);
        shared.proxy.activity.note(stop);
        control.shutdown_timeout(Duration::from_secs(1));
        writer.close()
    }
}

impl Server {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What requests are answered from.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.app.shared
    }

    /// From now on signals are heard, and end nothing by themselves.
    ///
    /// # Errors
    ///
    /// When the system does not let them be awaited.
    pub fn signals(&self) -> Result<Signals, StartError> {
        let _control = self.app.control.enter();
        Ok(Signals::listen()?)
    }

    /// Serves until SIGINT, SIGTERM or the end of its terminal, then [closes](Self::close). The
    /// exit code, if that was hurried.
    ///
    /// # Errors
    ///
    /// When records could not be written.
    pub fn run(self, signals: Signals) -> Result<Option<u8>, StartError> {
        self.app.control.block_on(signals.told_to_end());
        let hurry = self.app.hurries();
        self.close()?;
        Ok(hurry.exit_code())
    }

    /// Lets calls in flight finish, at most [`DRAIN_TIMEOUT`], and ends everything.
    ///
    /// # Errors
    ///
    /// When records could not be written.
    pub fn close(self) -> Result<(), StoreError> {
        let Self { app, address: _, worker_threads, accepting } = self;
        accepting.abort();
        app.drain.send_replace(true);
        app.shared.sessions.drain();
        let deadline = Instant::now() + DRAIN_TIMEOUT + WORKER_GRACE;
        app.control.block_on(async {
            // The task holds the threads, and with them the ends of the sockets' queues.
            let _ = accepting.await;
        });
        for worker_thread in Arc::into_inner(worker_threads).into_iter().flatten() {
            worker_thread.finish(deadline);
        }
        app.close()
    }
}
