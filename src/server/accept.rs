//! Takes connections in: bounds them, and hands each to the least busy worker.
//!
//! Where the system gives no descriptor it waits longer each time, and never spins; what clients
//! may have open is bounded so that this should not come about (`os::descriptors`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::connection_limit::ConnectionSlots;
use super::listener::OpenListener;
use super::worker_thread::{Arrived, WorkerThread};
use crate::os::descriptors;

/// Connections open at once over all workers, however many descriptors there are.
const MAX_CONNECTIONS: usize = 8192;
/// The first wait after the system gave no connection; each further one is twice as long.
const LEAST_WAIT: Duration = Duration::from_millis(50);
/// The longest.
const MOST_WAIT: Duration = Duration::from_secs(1);
/// Connections that were turned away are told of so often at most.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Connections that clients may have open at once, with so many workers and servers.
pub(super) fn max_connections(workers: usize, servers: usize) -> usize {
    descriptors::connections(descriptors::limit(), workers, servers).min(MAX_CONNECTIONS)
}

/// Takes connections in, until dropped.
pub(super) async fn accept(
    listener: OpenListener,
    worker_threads: Arc<Vec<WorkerThread>>,
    slots: Arc<ConnectionSlots>,
) {
    if slots.limit < MAX_CONNECTIONS {
        let limit = descriptors::limit();
        tracing::warn!(
            "{limit} file descriptors (ulimit -n) are enough for {} connections at once",
            slots.limit
        );
    }
    let mut refusals = Refusals::default();
    let mut wait = Wait::default();
    loop {
        let (socket, source) = match listener.accept().await {
            Ok(accepted) => {
                wait = Wait::default();
                accepted
            }
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                if wait.is_first() {
                    tracing::warn!(%error, "cannot accept connections for now");
                }
                slots.make_room();
                tokio::time::sleep(wait.next()).await;
                continue;
            }
        };
        let Some(slot) = slots.take(source).await else {
            if let Some(count) = refusals.add(Instant::now()) {
                tracing::warn!(
                    "all places for connections are in use, over all or from {source}: {count} more \
                     were closed"
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

/// The worker with the fewest connections, of those that still serve.
fn least_busy(worker_threads: &[WorkerThread]) -> Option<&WorkerThread> {
    let alive = worker_threads.iter().filter(|worker_thread| !worker_thread.sockets.is_closed());
    alive.min_by_key(|worker_thread| worker_thread.connections.load(Ordering::Relaxed))
}

/// True for what is wrong with the connection that came, not with us.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// How long to wait before the system is asked again.
#[derive(Debug, Default)]
struct Wait(Option<Duration>);

impl Wait {
    fn is_first(&self) -> bool {
        self.0.is_none()
    }

    fn next(&mut self) -> Duration {
        let wait = self.0.map_or(LEAST_WAIT, |last| (last * 2).min(MOST_WAIT));
        self.0 = Some(wait);
        wait
    }
}

/// Counts who was turned away, so that a flood of connections is no flood of log lines.
#[derive(Debug, Default)]
struct Refusals {
    count: u64,
    told: Option<Instant>,
}

impl Refusals {
    /// One more; how many there were since it was last told, if it is to be told now.
    fn add(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        let due = self.told.is_none_or(|told| now.saturating_duration_since(told) >= TELL_EVERY);
        due.then(|| {
            self.told = Some(now);
            std::mem::take(&mut self.count)
        })
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
    fn the_worker_with_the_fewest_connections_is_chosen_of_those_that_serve() {
        let (workers, mut queues) = workers([3, 1, 0]);
        let chosen =
            || least_busy(&workers).map(|worker| worker.connections.load(Ordering::Relaxed));
        assert_eq!(chosen(), Some(0));
        queues.pop();
        assert_eq!(chosen(), Some(1), "the idlest has ended");
        workers[1].connections.store(4, Ordering::Relaxed);
        assert_eq!(chosen(), Some(3));
        queues.clear();
        assert_eq!(chosen(), None);
    }

    #[test]
    fn connections_are_handed_out_up_to_the_limit_and_a_slot_is_used_again() {
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
            assert_eq!(second.read(&mut [0]).await.unwrap(), 0, "it is turned away");
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
    fn what_is_wrong_with_one_connection_is_not_wrong_with_the_listener() {
        for (kind, of_one) in [
            (io::ErrorKind::ConnectionAborted, true),
            (io::ErrorKind::ConnectionReset, true),
            (io::ErrorKind::Other, false),
            (io::ErrorKind::OutOfMemory, false),
        ] {
            assert_eq!(is_of_one_connection(&kind.into()), of_one, "{kind}");
        }
        assert!(!is_of_one_connection(&io::Error::from_raw_os_error(nix::libc::EMFILE)));
    }

    #[test]
    fn without_descriptors_it_waits_longer_each_time() {
        let mut wait = Wait::default();
        assert!(wait.is_first());
        let waits: Vec<u128> = (0..7).map(|_| wait.next().as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1000, 1000]);
        assert!(!wait.is_first());
    }

    #[test]
    fn a_flood_of_connections_is_told_of_once_in_a_while() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.add(start), Some(1));
        for _ in 0..1000 {
            assert_eq!(refusals.add(start), None);
        }
        assert_eq!(refusals.add(start + TELL_EVERY), Some(1001));
    }
}
