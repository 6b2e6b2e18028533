//! Accepts connections within their limits, and serves them on worker threads, each with its own runtime.
//!
//! Each connection is handed to the least busy worker and stays there. If the system provides no descriptor, accepting backs off
//! exponentially; the connection limit should prevent this (`os::descriptors`). At shutdown a worker lets calls finish, and aborts
//! those that do not finish in time.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::app_state::AppState;
use super::connection;
use super::connection::Handshakes;
use super::connection_limit::{ConnectionSlot, ConnectionSlots};
use super::listener::{ClientSocket, ListenerTls, OpenListener};
use super::shutdown::{CUT_GRACE, DRAIN_TIMEOUT, ForcedShutdown};
use super::startup::local_runtime;
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_runtime::io::address::Address;
use mcpproxy_runtime::io::line_budget;
use mcpproxy_runtime::os::descriptors;

/// Maximum number of open connections of all workers, regardless of the descriptor limit.
const MAX_CONNECTIONS: usize = 8192;
/// First backoff after a failed accept, doubled each time.
const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// Minimum interval between warnings about rejected connections.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of client connections for this number of workers and servers.
pub(super) fn max_connections(workers: usize, servers: usize) -> usize {
    descriptors::connections(descriptors::limit(), workers, servers).min(MAX_CONNECTIONS)
}

/// Accepts connections until dropped.
pub(super) async fn accept(
    listener: OpenListener,
    worker_threads: Arc<Vec<WorkerThread>>,
    slots: Arc<ConnectionSlots>,
) {
    if slots.limit < MAX_CONNECTIONS {
        let limit = descriptors::limit();
        tracing::warn!(
            "{limit} file descriptors (ulimit -n) allow only {} concurrent connections",
            slots.limit
        );
    }
    let mut rejections = Rejections::default();
    let mut backoff = Backoff::default();
    loop {
        let (socket, source) = match listener.accept().await {
            Ok(accepted) => {
                backoff = Backoff::default();
                accepted
            }
            Err(error) if concerns_one_connection(&error) => continue,
            Err(error) => {
                if backoff.is_first() {
                    tracing::warn!(%error, "cannot accept connections");
                }
                slots.evict_one();
                tokio::time::sleep(backoff.next()).await;
                continue;
            }
        };
        let Some(slot) = slots.take(source).await else {
            if let Some(count) = rejections.add(Instant::now()) {
                tracing::warn!(
                    "connection limit reached, in total or for {source}: closed {count} new connections"
                );
            }
            continue;
        };
        let Some(worker_thread) = least_busy(&worker_threads) else { return };
        if let Ok(socket) = socket.hand_over() {
            worker_thread.connections.fetch_add(1, Ordering::Relaxed);
            if worker_thread.sockets.send(Arrived { socket, slot }).await.is_err() {
                worker_thread.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// The running worker with the fewest connections.
fn least_busy(worker_threads: &[WorkerThread]) -> Option<&WorkerThread> {
    let alive = worker_threads.iter().filter(|worker_thread| !worker_thread.sockets.is_closed());
    alive.min_by_key(|worker_thread| worker_thread.connections.load(Ordering::Relaxed))
}

/// Whether an error concerns only the accepted connection, not the listener.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// Exponential backoff of accepting.
#[derive(Debug, Default)]
struct Backoff(Option<Duration>);

impl Backoff {
    fn is_first(&self) -> bool {
        self.0.is_none()
    }

    fn next(&mut self) -> Duration {
        let backoff = self.0.map_or(MIN_BACKOFF, |last| (last * 2).min(MAX_BACKOFF));
        self.0 = Some(backoff);
        backoff
    }
}

/// Counter of rejected connections, for rate-limited warnings.
#[derive(Debug, Default)]
struct Rejections {
    count: u64,
    warned: Option<Instant>,
}

impl Rejections {
    /// Counts one rejection. Returns the number since the last warning if a warning is due.
    fn add(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        let due = self
            .warned
            .is_none_or(|warned| now.saturating_duration_since(warned) >= WARNING_INTERVAL);
        due.then(|| {
            self.warned = Some(now);
            std::mem::take(&mut self.count)
        })
    }
}

/// Capacity of a worker's socket queue.
const SOCKET_QUEUE: usize = 256;
/// Interval at which a worker closes idle connections to upstreams.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

/// A worker thread with the queue of its sockets and the number of its connections.
#[derive(Debug)]
pub(super) struct WorkerThread {
    pub(super) sockets: mpsc::Sender<Arrived>,
    pub(super) connections: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

/// A connection being handed to a worker.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) socket: ClientSocket,
    pub(super) slot: ConnectionSlot,
}

impl WorkerThread {
    pub(super) fn start(
        shared: Arc<AppState>,
        number: usize,
        endpoint: WorkerEndpoint,
        signals: ShutdownSignals,
    ) -> io::Result<Self> {
        let (sockets, queue) = mpsc::channel(SOCKET_QUEUE);
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let thread =
            std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                let runtime = match local_runtime() {
                    Ok(runtime) => runtime,
                    Err(error) => {
                        tracing::error!(%error, "cannot start a worker");
                        return;
                    }
                };
                runtime.block_on(work(shared, queue, endpoint, counted, signals));
            })?;
        Ok(Self { sockets, connections, thread })
    }

    /// A worker with a number of connections, whose queue the test reads.
    #[cfg(test)]
    pub(super) fn without_a_thread(connections: usize) -> (Self, mpsc::Receiver<Arrived>) {
        let (sockets, queue) = mpsc::channel(SOCKET_QUEUE);
        let connections = Arc::new(AtomicUsize::new(connections));
        (Self { sockets, connections, thread: std::thread::spawn(|| {}) }, queue)
    }

    /// Waits for the worker to end until the deadline. The worker enforces [`DRAIN_TIMEOUT`] itself.
    pub(super) fn finish(self, deadline: Instant) {
        drop(self.sockets);
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        if !self.thread.is_finished() {
            tracing::error!("a worker thread did not end");
        } else if self.thread.join().is_err() {
            tracing::error!("a worker thread panicked");
        }
    }
}

/// Listener of a worker's connections.
#[derive(Clone, Debug)]
pub(super) struct WorkerEndpoint {
    pub(super) address: Address,
    pub(super) tls: Option<Arc<ListenerTls>>,
}

/// A socket registered with the worker's runtime.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn of(socket: ClientSocket) -> io::Result<Self> {
        match socket {
            ClientSocket::Tcp(socket) => TcpStream::from_std(socket).map(Self::Tcp),
            ClientSocket::Unix(socket) => UnixStream::from_std(socket).map(Self::Unix),
        }
    }
}

/// Signals for the two stages of a worker's shutdown: calls may finish, then they are aborted.
pub(super) struct ShutdownSignals {
    pub(super) drain: watch::Receiver<bool>,
    pub(super) forced: ForcedShutdown,
}

/// Serves connections until the drain signal, then lets them finish.
async fn work(
    shared: Arc<AppState>,
    mut queue: mpsc::Receiver<Arrived>,
    endpoint: WorkerEndpoint,
    counted: Arc<AtomicUsize>,
    ShutdownSignals { drain, forced }: ShutdownSignals,
) {
    let worker = Rc::new(Worker::new(Arc::clone(&shared.proxy)));
    let mut connections = JoinSet::new();
    let handshakes = Rc::new(Handshakes::default());
    let lingering = Rc::clone(&worker);
    let lingering = tokio::task::spawn_local(async move { lingering.busy_poll.linger().await });
    let mut draining = drain.clone();
    let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        let arrived = tokio::select! {
            _ = sweeps.tick() => {
                worker.pool.sweep();
                line_budget::report_left_out();
                continue;
            }
            arrived = queue.recv() => arrived,
            _ = connections.join_next(), if !connections.is_empty() => continue,
            _ = draining.wait_for(|draining| *draining) => None,
        };
        let Some(Arrived { socket, slot }) = arrived else { break };
        let socket = match Socket::of(socket) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::debug!(%error, "connection lost before it was served");
                counted.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
        };
        let (shared, worker, counted) =
            (Arc::clone(&shared), Rc::clone(&worker), Arc::clone(&counted));
        let drain = drain.clone();
        let (tls, handshakes) = (endpoint.tls.clone(), Rc::clone(&handshakes));
        let unix = matches!(socket, Socket::Unix(_)).then(|| endpoint.address.clone());
        let (slots, number) = slot.key();
        let ending = worker.ending.clone();
        let task = connections.spawn_local(ending.attend(async move {
            let _open = OpenConnection(counted);
            let served = match (socket, &tls) {
                (Socket::Tcp(socket), None) => {
                    let address = socket.local_addr().ok().map(Address::Tcp);
                    connection::serve(shared, worker, (socket, address), &slot, drain).await
                }
                // Boxed to keep the task of a connection without TLS small.
                (Socket::Tcp(socket), Some(tls)) => {
                    let by = (&**tls, &*handshakes);
                    Box::pin(connection::serve_tls(shared, worker, by, socket, &slot, drain)).await
                }
                (Socket::Unix(socket), _) => {
                    let served = connection::serve(shared, worker, (socket, unix), &slot, drain);
                    Box::pin(served).await
                }
            };
            if let Err(error) = served {
                tracing::debug!(%error, "connection failed");
            }
        }));
        ConnectionSlot::served_by(&slots, number, task);
    }
    let finished = {
        let mut rest = pin!(async {
            while connections.join_next().await.is_some() {}
            worker.settled().await;
        });
        let in_time = tokio::select! {
            finished = tokio::time::timeout(DRAIN_TIMEOUT, rest.as_mut()) => finished.is_ok(),
            () = forced.requested() => false,
        };
        if !in_time {
            tracing::warn!("aborting calls that did not finish in time");
            worker.ending.cut_off();
        }
        in_time || tokio::time::timeout(CUT_GRACE, rest).await.is_ok()
    };
    if !finished {
        // Calls that are dropped here still write their records; calls of an abandoned thread would not.
        connections.shutdown().await;
    }
    lingering.abort();
    // The task was aborted above.
    let _ = lingering.await;
}

/// Decrements the number of connections when dropped.
struct OpenConnection(Arc<AtomicUsize>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc::Receiver;

    use super::*;

    fn workers<const N: usize>(
        connections: [usize; N],
    ) -> (Vec<WorkerThread>, Vec<Receiver<Arrived>>) {
        connections.into_iter().map(WorkerThread::without_a_thread).unzip()
    }

    #[test]
    fn least_busy_running_worker_is_chosen() {
        let (workers, mut queues) = workers([3, 1, 0]);
        let chosen =
            || least_busy(&workers).map(|worker| worker.connections.load(Ordering::Relaxed));
        assert_eq!(chosen(), Some(0));
        queues.pop();
        assert_eq!(chosen(), Some(1), "the idlest worker has stopped");
        workers[1].connections.store(4, Ordering::Relaxed);
        assert_eq!(chosen(), Some(3));
        queues.clear();
        assert_eq!(chosen(), None);
    }

    #[test]
    fn connections_are_distributed_up_to_the_limit_and_slots_are_reused() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (workers, mut queues) = workers([5, 0]);
            let workers = Arc::new(workers);
            let accepting = tokio::spawn(accept(
                OpenListener::Tcp(listener),
                Arc::clone(&workers),
                ConnectionSlots::new(1),
            ));
            let _first = TcpStream::connect(address).await.unwrap();
            let arrived = queues[1].recv().await.unwrap();
            assert!(arrived.slot.idle.set_busy());
            assert_eq!(workers[1].connections.load(Ordering::Relaxed), 1);
            let mut second = TcpStream::connect(address).await.unwrap();
            assert_eq!(second.read(&mut [0]).await.unwrap(), 0, "it is rejected");
            drop(arrived);
            let _third = TcpStream::connect(address).await.unwrap();
            queues[1].recv().await.unwrap();
            assert!(queues[0].try_recv().is_err(), "the busy worker has none");
            queues.clear();
            let _fourth = TcpStream::connect(address).await.unwrap();
            accepting.await.unwrap();
        });
    }

    #[test]
    fn errors_of_one_connection_are_distinguished_from_errors_of_the_listener() {
        for (kind, of_one) in [
            (io::ErrorKind::ConnectionAborted, true),
            (io::ErrorKind::ConnectionReset, true),
            (io::ErrorKind::Other, false),
            (io::ErrorKind::OutOfMemory, false),
        ] {
            assert_eq!(concerns_one_connection(&kind.into()), of_one, "{kind}");
        }
        assert!(!concerns_one_connection(&io::Error::from_raw_os_error(nix::libc::EMFILE)));
    }

    #[test]
    fn backoff_doubles_up_to_its_maximum() {
        let mut backoff = Backoff::default();
        assert!(backoff.is_first());
        let waits: Vec<u128> = (0..7).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1000, 1000]);
        assert!(!backoff.is_first());
    }

    #[test]
    fn warnings_about_rejections_are_rate_limited() {
        let (mut rejections, start) = (Rejections::default(), Instant::now());
        assert_eq!(rejections.add(start), Some(1));
        for _ in 0..1000 {
            assert_eq!(rejections.add(start), None);
        }
        assert_eq!(rejections.add(start + WARNING_INTERVAL), Some(1001));
    }
}
