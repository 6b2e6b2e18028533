//! Assembly: opens the parts, runs the threads, listens, and ends it all in order.
//!
//! Data plane: worker threads, each with a single-threaded runtime of its own. A connection is
//! handed to the least busy worker and stays there, so a call crosses no thread on its way
//! through. Control plane: one small multi-threaded runtime for upstream supervision, children
//! and timers. What a request leads to is decided on the floors below.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::downstream::body::Body;
use crate::downstream::http::Connection;

/// Connections open at once over all workers; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 8192;
/// Sockets on their way to one worker.
const SOCKET_QUEUE: usize = 256;
/// A client has this long to send a request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Header lines of one request.
const MAX_HEADERS: usize = 100;
/// Bytes of a request's head, and of what is read ahead of its body.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Calls in flight have this long to finish when the server ends.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// What every request may need, shared by all workers.
#[derive(Debug)]
pub struct Shared {
    /// The pipeline.
    pub proxy: Arc<Proxy>,
    /// Sessions of `/mcp`.
    pub sessions: Sessions,
    /// Who may speak to us from a browser.
    pub guard: Guard,
    /// What the REST interface needs.
    pub api: api::State,
    /// `require_mcp_auth`
    pub require_mcp_auth: bool,
    /// The origin of session times.
    pub started: Instant,
}

impl Shared {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Answers one HTTP request: the one door for every face that speaks HTTP.
pub async fn route<B>(
    shared: &Shared,
    worker: &Rc<Worker>,
    connection: &Connection,
    request: Request<B>,
) -> Response<Body>
where
    B: http_body::Body<Data = bytes::Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if let Err(refused) = shared.guard.check(request.headers(), request.uri().authority()) {
        return api::refuse(refused.status(), &refused.to_string());
    }
    if request.uri().path() != "/mcp" {
        return api::handle(&shared.api, worker, request).await;
    }
    if shared.require_mcp_auth && !shared.api.admits(&request) {
        return api::unauthorized();
    }
    mcp::handle(worker, &shared.sessions, connection, shared.now_ms(), request).await
}

/// A worker thread: where its sockets go in, and how busy it is.
#[derive(Debug)]
struct Lane {
    sockets: mpsc::Sender<StdStream>,
    connections: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl Lane {
    fn start(shared: Arc<Shared>, number: usize, drain: watch::Receiver<bool>) -> io::Result<Self> {
        let (sockets, queue) = mpsc::channel(SOCKET_QUEUE);
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let thread = std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
            let runtime = match local_runtime() {
                Ok(runtime) => runtime,
                Err(error) => {
                    tracing::error!(%error, "a worker could not start");
                    return;
                }
            };
            runtime.block_on(work(shared, queue, counted, drain));
        })?;
        Ok(Self { sockets, connections, thread })
    }
}

/// A runtime for one thread, whose tasks need not be `Send`.
///
/// # Errors
///
/// When the system gives no event queue.
pub fn local_runtime() -> io::Result<tokio::runtime::LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

/// One worker's life: serve connections until told to drain, then let them finish.
async fn work(
    shared: Arc<Shared>,
    mut queue: mpsc::Receiver<StdStream>,
    counted: Arc<AtomicUsize>,
    drain: watch::Receiver<bool>,
) {
    let worker = Rc::new(Worker::new(Arc::clone(&shared.proxy)));
    let mut connections = JoinSet::new();
    let mut draining = drain.clone();
    loop {
        let socket = tokio::select! {
            socket = queue.recv() => socket,
            _ = connections.join_next(), if !connections.is_empty() => continue,
            _ = draining.wait_for(|draining| *draining) => None,
        };
        let Some(socket) = socket else { break };
        let socket = match TcpStream::from_std(socket) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::debug!(%error, "a connection was lost before it was served");
                counted.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
        };
        let (shared, worker, counted) =
            (Arc::clone(&shared), Rc::clone(&worker), Arc::clone(&counted));
        let drain = drain.clone();
        connections.spawn_local(async move {
            if let Err(error) = connection(shared, worker, socket, drain).await {
                tracing::debug!(%error, "a connection ended badly");
            }
            counted.fetch_sub(1, Ordering::Relaxed);
        });
    }
    while connections.join_next().await.is_some() {}
}

async fn connection(
    shared: Arc<Shared>,
    worker: Rc<Worker>,
    socket: TcpStream,
    mut drain: watch::Receiver<bool>,
) -> hyper::Result<()> {
    let remembered = Rc::new(Connection::default());
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, worker) = (Arc::clone(&shared), Rc::clone(&worker));
        let remembered = Rc::clone(&remembered);
        async move { Ok::<_, Infallible>(route(&shared, &worker, &remembered, request).await) }
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
        ended = served.as_mut() => return ended,
        _ = drain.wait_for(|draining| *draining) => served.as_mut().graceful_shutdown(),
    }
    served.await
}

/// Takes connections in and hands each to the least busy worker, until dropped.
async fn accept(listener: TcpListener, lanes: Arc<[Lane]>) {
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                // Out of file descriptors, most likely: wait for some to be closed.
                tracing::warn!(%error, "cannot accept connections for now");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let busy = |lane: &&Lane| lane.connections.load(Ordering::Relaxed);
        let open: usize = lanes.iter().map(|lane| busy(&lane)).sum();
        let Some(lane) = lanes.iter().min_by_key(busy) else { return };
        if open >= MAX_CONNECTIONS {
            tracing::warn!("{MAX_CONNECTIONS} connections are open: one more was closed");
            continue;
        }
        let handed = socket.set_nodelay(true).and_then(|()| socket.into_std());
        if let Ok(socket) = handed {
            lane.connections.fetch_add(1, Ordering::Relaxed);
            if lane.sockets.send(socket).await.is_err() {
                return;
            }
        }
    }
}
