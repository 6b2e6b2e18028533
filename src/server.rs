//! Assembly: opens the parts, runs the threads, listens, and ends it all in order.
//!
//! Data plane: worker threads, each with a single-threaded runtime of its own. A connection is
//! handed to the least busy worker and stays there, so a call crosses no thread on its way
//! through. Control plane: one small multi-threaded runtime for upstream supervision, children
//! and timers. What a request leads to is decided on the floors below.

mod accept;
mod audit_events;
mod audit_log;
mod connection_limit;
mod control;
mod fast_path;
mod folder;
mod offline_log;
mod signals;
mod tracked_socket;
mod worker_thread;

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::activity::record::{Draft, Source, Status, Type};
use crate::activity::{Activity, StoreError, Writer};
use crate::api;
use crate::catalog::{self, snapshot::Catalog};
use crate::config::Config;
use crate::downstream::body::Body;
use crate::downstream::host_check::{BadEntry, HostCheck};
use crate::downstream::http::{self as mcp, ClientConnection};
use crate::downstream::session::Sessions;
use crate::io::clock;
use crate::io::write_timeout::WriteTimeout;
use crate::os::descriptors;
use crate::page;
use crate::proxy::dropped_members::DroppedMembers;
use crate::proxy::validation_pool::ValidationPool;
use crate::proxy::{Proxy, Worker, log_routing, passthrough};
use crate::telemetry::{Calls, Lines};

use self::accept::{accept, max_connections};
use self::connection_limit::{ConnectionSlot, ConnectionSlots};
use self::fast_path::{End, FastPath};
pub use self::signals::{Hurry, Signals, ended_by_signal, outlive_terminal};
use self::tracked_socket::{TrackedBody, TrackedSocket};
pub use self::worker_thread::local_runtime;
use self::worker_thread::{Ends, WorkerThread};

/// A client has this long to send a request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// A client that takes nothing of its reply for so long is given up.
const CLIENT_STALL_LIMIT: Duration = Duration::from_secs(60);
/// Header lines of one request.
const MAX_HEADERS: usize = 100;
/// Bytes of a request's head, and of what is read ahead of its body.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Calls in flight have this long to finish when the server ends.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls that are cut off then have this long to tell their clients.
pub const CUT_GRACE: Duration = Duration::from_millis(500);
/// A worker has this long to end after its connections have.
const WORKER_GRACE: Duration = Duration::from_secs(1);
/// Children have this long to end when their input closes, before they are killed.
const CHILDREN_TIMEOUT: Duration = Duration::from_secs(5);

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

    fn assemble(
        config: Config,
        host_check: HostCheck,
        (activity, writer): (Activity, Writer),
        catalog: catalog::Settings,
        lines: Lines,
    ) -> Result<Self, StartError> {
        let servers = config.servers.iter().filter(|server| server.upstream.enabled).count();
        let max_connections = max_connections(cores(), servers);
        let control = control::runtime()?;
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
        if !writer.only_reads() {
            let stop = Draft::new(Type::SystemStop, Source::Internal, Status::Success);
            shared.proxy.activity.note(stop);
        }
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

/// Worker threads: one for each core.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// What every request may need, shared by all workers.
#[derive(Debug)]
pub struct Shared {
    /// The pipeline.
    pub proxy: Arc<Proxy>,
    /// Sessions of `/mcp`.
    pub sessions: Arc<Sessions>,
    /// Who may speak to us from a browser.
    pub host_check: HostCheck,
    /// What the REST interface needs.
    pub api: api::State,
    /// `require_mcp_auth`
    pub require_mcp_auth: bool,
    /// The origin of session times.
    pub started: Instant,
}

impl Shared {
    fn now_ms(&self) -> u64 {
        let since = clock::lately().saturating_duration_since(self.started);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Answers one HTTP request: the one door for every face that speaks HTTP.
pub async fn route<B>(
    shared: &Shared,
    worker: &Rc<Worker>,
    connection: &ClientConnection,
    request: Request<B>,
) -> Response<Body>
where
    B: http_body::Body<Data = bytes::Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if let Err(refused) = shared.host_check.check(request.headers(), request.uri().authority()) {
        return api::refuse(refused.status(), &refused.to_string());
    }
    if let Some(page) = page::answer(&request) {
        return page;
    }
    if !mcp::PATHS.contains(&request.uri().path()) {
        let info =
            api::ConnectionInfo { local: connection.came_to.get(), source: connection.source };
        return api::handle(&shared.api, worker, info, request).await;
    }
    if shared.require_mcp_auth && !shared.api.admits(request.headers(), request.uri()) {
        return api::unauthorized();
    }
    let (head, body) = request.into_parts();
    mcp::handle(worker, &shared.sessions, connection, shared.now_ms(), &head, body).await
}

async fn connection(
    shared: Arc<Shared>,
    worker: Rc<Worker>,
    socket: TcpStream,
    place: &ConnectionSlot,
    mut drain: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    let remembered = Rc::new(ClientConnection::from(place.source));
    let came_to = socket.local_addr().ok();
    let socket = TrackedSocket::new(socket, Arc::clone(&place.presence));
    let exchanges = socket.exchanges();
    let mut socket = WriteTimeout::new(socket, CLIENT_STALL_LIMIT);
    match fast_path(&shared, &worker, &remembered, &mut socket, drain.clone()).await? {
        End::Closed => return Ok(()),
        End::Other(ahead) => socket.unread(ahead),
    }
    remembered.came_to.set(came_to);
    let seen = Rc::clone(&remembered);
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, worker) = (Arc::clone(&shared), Rc::clone(&worker));
        let remembered = Rc::clone(&remembered);
        remembered.used.set(true);
        let exchange = exchanges.begin();
        async move {
            let mut answer = route(&shared, &worker, &remembered, request).await;
            mcp::name_type(&mut answer);
            Ok::<_, Infallible>(answer.map(|body| TrackedBody::new(body, exchange)))
        }
    });
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(socket), service)
    );
    tokio::select! {
        ended = served.as_mut() => return Ok(ended?),
        _ = drain.wait_for(|draining| *draining) => served.as_mut().graceful_shutdown(),
    }
    if !seen.used.get() {
        // No request has come whole: there is nothing to finish.
        return Ok(());
    }
    Ok(served.await?)
}

/// The hot path: messages are answered without hyper until something else comes.
async fn fast_path(
    shared: &Shared,
    worker: &Rc<Worker>,
    connection: &ClientConnection,
    socket: &mut WriteTimeout<TrackedSocket<TcpStream>>,
    drain: watch::Receiver<bool>,
) -> io::Result<End> {
    let admit = |head: &Parts| {
        let admitted = !shared.require_mcp_auth || shared.api.admits(&head.headers, &head.uri);
        admitted && shared.host_check.check(&head.headers, None).is_ok()
    };
    let answer = async |head: &Parts, repeated: bool, body: Bytes| {
        connection.used.set(true);
        let _open = worker.busy_poll.open();
        let (sessions, now_ms) = (&shared.sessions, shared.now_ms());
        mcp::handle_whole(worker, sessions, connection, now_ms, head, repeated, body).await
    };
    FastPath::new(socket, drain).serve(admit, answer).await
}
