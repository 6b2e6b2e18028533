//! A worker: a thread with a runtime of its own, and the connections that it serves.
//!
//! It serves the connections it is given, lets calls finish when the server ends, and cuts off those
//! that do not. `accept` chooses the worker of a connection.

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
use super::connection_limit::ConnectionSlot;
use super::listener::ClientSocket;
use super::listener_tls::ListenerTls;
use super::runtime::local_runtime;
use super::shutdown::{CUT_GRACE, DRAIN_TIMEOUT, Hurry};
use super::tls_connection::{self, Handshakes};
use crate::io::address::Address;
use crate::proxy::Worker;

/// Sockets on their way to one worker.
const SOCKET_QUEUE: usize = 256;
/// How often a worker closes connections to upstreams that were idle for too long.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

/// A worker thread: the queue of its sockets, and the number of its connections.
#[derive(Debug)]
pub(super) struct WorkerThread {
    pub(super) sockets: mpsc::Sender<Arrived>,
    pub(super) connections: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

/// A connection on its way to a worker.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) socket: ClientSocket,
    pub(super) slot: ConnectionSlot,
}

impl WorkerThread {
    pub(super) fn start(
        shared: Arc<AppState>,
        number: usize,
        entrance: WorkerEntrance,
        ends: Ends,
    ) -> io::Result<Self> {
        let (sockets, queue) = mpsc::channel(SOCKET_QUEUE);
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let thread =
            std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                let runtime = match local_runtime() {
                    Ok(runtime) => runtime,
                    Err(error) => {
                        tracing::error!(%error, "a worker could not start");
                        return;
                    }
                };
                runtime.block_on(work(shared, queue, entrance, counted, ends));
            })?;
        Ok(Self { sockets, connections, thread })
    }

    /// One with so many connections whose queue is the test's own.
    #[cfg(test)]
    pub(super) fn without_a_thread(connections: usize) -> (Self, mpsc::Receiver<Arrived>) {
        let (sockets, queue) = mpsc::channel(SOCKET_QUEUE);
        let connections = Arc::new(AtomicUsize::new(connections));
        (Self { sockets, connections, thread: std::thread::spawn(|| {}) }, queue)
    }

    /// Waits for the worker to end, until the deadline. It keeps to [`DRAIN_TIMEOUT`] by itself.
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

/// Where a worker's connections come in.
#[derive(Clone, Debug)]
pub(super) struct WorkerEntrance {
    /// What is listened on.
    pub(super) address: Address,
    /// How connections to it are made; `None`: without TLS.
    pub(super) tls: Option<Arc<ListenerTls>>,
}

/// A socket of the worker's own runtime.
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

/// The two stages of a worker's end: calls may finish; they are not waited for.
pub(super) struct Ends {
    pub(super) drain: watch::Receiver<bool>,
    pub(super) hurry: Hurry,
}

/// One worker's life: serve connections until told to drain, then let them finish.
async fn work(
    shared: Arc<AppState>,
    mut queue: mpsc::Receiver<Arrived>,
    entrance: WorkerEntrance,
    counted: Arc<AtomicUsize>,
    Ends { drain, hurry }: Ends,
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
                tracing::debug!(%error, "a connection was lost before it was served");
                counted.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
        };
        let (shared, worker, counted) =
            (Arc::clone(&shared), Rc::clone(&worker), Arc::clone(&counted));
        let drain = drain.clone();
        let (tls, handshakes) = (entrance.tls.clone(), Rc::clone(&handshakes));
        let unix = matches!(socket, Socket::Unix(_)).then(|| entrance.address.clone());
        let (slots, number) = slot.name();
        let ending = worker.ending.clone();
        let task = connections.spawn_local(ending.attend(async move {
            let _open = Open(counted);
            let served = match (socket, &tls) {
                (Socket::Tcp(socket), None) => {
                    let address = socket.local_addr().ok().map(Address::Tcp);
                    connection::serve(shared, worker, (socket, address), &slot, drain).await
                }
                // Boxed, so that a connection without TLS takes no more memory for it.
                (Socket::Tcp(socket), Some(tls)) => {
                    let by = (&**tls, &*handshakes);
                    Box::pin(tls_connection::serve(shared, worker, by, socket, &slot, drain)).await
                }
                (Socket::Unix(socket), _) => {
                    let served = connection::serve(shared, worker, (socket, unix), &slot, drain);
                    Box::pin(served).await
                }
            };
            if let Err(error) = served {
                tracing::debug!(%error, "a connection ended badly");
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
            () = hurry.told() => false,
        };
        if !in_time {
            tracing::warn!("calls are cut off: they have not finished");
            worker.ending.cut_off();
        }
        in_time || tokio::time::timeout(CUT_GRACE, rest).await.is_ok()
    };
    if !finished {
        // Dropped calls leave their records; those of a thread left behind would not.
        connections.shutdown().await;
    }
    lingering.abort();
    // It was told to end, and never fails.
    let _ = lingering.await;
}

/// Counts a connection down when it ends, however it ends.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
