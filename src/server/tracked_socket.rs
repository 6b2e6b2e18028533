//! A client's socket that updates the [`IdleState`] of its connection, so that idle connections can be evicted.
//!
//! The first byte of a request marks the connection as busy. The connection is idle again when the fast path waits for the next request or,
//! with hyper, when the last byte of the last open [`Exchange`] is flushed.

use std::cell::Cell;
use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection_limit::IdleState;
use mcpproxy_downstream::body::Body;
use mcpproxy_downstream::http::ClientConnection;
use mcpproxy_downstream::source::Source;
use mcpproxy_gateway::proxy::reply::Aborted;
use mcpproxy_policy::identity::CertifiedClient;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::address::Reached;
use mcpproxy_runtime::io::clock;

/// Time after which a client that does not read its response is disconnected.
pub(super) const CLIENT_STALL_LIMIT: Duration = Duration::from_secs(60);

/// Properties of a client at the time its connection is accepted.
#[derive(Debug)]
pub(super) struct AcceptedClient {
    pub(super) source: Source,
    /// The address that the client connected to.
    pub(super) reached: Option<Reached>,
    /// The client that the certificate identifies.
    pub(super) certificate: Option<CertifiedClient>,
}

impl AcceptedClient {
    pub(super) fn connection(&self) -> ClientConnection {
        let connection = ClientConnection::certified(self.source, self.certificate.clone());
        connection.came_to.replace(self.reached.clone());
        connection
    }
}

/// A stream that marks its connection as busy on the first byte of a request.
#[derive(Debug)]
pub(super) struct TrackedSocket<S> {
    stream: S,
    idle: Arc<IdleState>,
    exchanges: Exchanges,
}

impl<S> TrackedSocket<S> {
    pub(super) fn new(stream: S, idle: Arc<IdleState>) -> Self {
        Self { stream, idle, exchanges: Exchanges::default() }
    }

    /// Marks the connection as idle. At this point, no request may be partly received and no response partly sent.
    pub(super) fn set_idle(&self, now: Instant) {
        self.idle.set_idle(now);
    }

    /// The counter of open responses.
    pub(super) fn exchanges(&self) -> Exchanges {
        self.exchanges.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before && !self.idle.set_busy() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.exchanges.have_ended() {
            self.idle.set_idle(clock::now());
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Counter of the open responses of a connection served by hyper.
#[derive(Clone, Debug, Default)]
pub(super) struct Exchanges(Rc<Count>);

#[derive(Debug, Default)]
struct Count {
    open: Cell<usize>,
    /// Whether a response has ended since the last check.
    ended: Cell<bool>,
    /// Whether the connection uses HTTP/2: several responses may be open, and some bytes belong to no request.
    multiplexed: Cell<bool>,
}

impl Exchanges {
    /// Counts a response as open until the returned guard is dropped.
    pub(super) fn begin(&self) -> Exchange {
        self.0.open.set(self.0.open.get() + 1);
        Exchange(self.clone())
    }

    /// Marks the connection as HTTP/2. It is then idle whenever no response is open, not only after one has ended,
    /// because frames that belong to no request also arrive.
    pub(super) fn multiplex(&self) {
        self.0.multiplexed.set(true);
    }

    pub(super) fn none_open(&self) -> bool {
        self.0.open.get() == 0
    }

    /// Whether the last open response has ended since the last call.
    fn have_ended(&self) -> bool {
        self.none_open() && (self.0.ended.replace(false) || self.0.multiplexed.get())
    }
}

/// Guard of an open response.
#[derive(Debug)]
pub(super) struct Exchange(Exchanges);

impl Drop for Exchange {
    fn drop(&mut self) {
        let count = &self.0.0;
        count.open.set(count.open.get().saturating_sub(1));
        count.ended.set(true);
    }
}

/// A response body that ends its exchange when dropped.
#[derive(Debug)]
pub(super) struct TrackedBody {
    body: Body,
    _exchange: Exchange,
}

impl TrackedBody {
    pub(super) fn new(body: Body, exchange: Exchange) -> Self {
        Self { body, _exchange: exchange }
    }
}

impl HttpBody for TrackedBody {
    type Data = Splice;
    type Error = Aborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Splice>, Aborted>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test)
    }

    fn pair() -> (TrackedSocket<DuplexStream>, Arc<IdleState>, DuplexStream) {
        let (ours, theirs) = duplex(64);
        let now = Instant::now();
        let idle = Arc::new(IdleState::new(now, now));
        (TrackedSocket::new(ours, Arc::clone(&idle)), idle, theirs)
    }

    #[test]
    fn connection_is_busy_from_first_request_byte_to_last_response_byte() {
        run(async {
            let (mut socket, idle, mut client) = pair();
            client.write_all(b"r").await.unwrap();
            socket.read_u8().await.unwrap();
            assert_eq!(idle.idle_since(), None);
            let body = TrackedBody::new(Body::Empty, socket.exchanges().begin());
            socket.write_all(b"answer").await.unwrap();
            socket.flush().await.unwrap();
            assert_eq!(idle.idle_since(), None, "its body is not consumed");
            drop(body);
            assert_eq!(idle.idle_since(), None, "its end is not flushed");
            socket.flush().await.unwrap();
            assert!(idle.idle_since().is_some());
        });
    }

    #[test]
    fn connection_is_busy_until_the_last_of_several_responses_ends() {
        run(async {
            let (mut socket, idle, _client) = pair();
            assert!(idle.set_busy());
            let exchanges = socket.exchanges();
            let (first, second) = (exchanges.begin(), exchanges.begin());
            drop(first);
            socket.flush().await.unwrap();
            assert_eq!(idle.idle_since(), None);
            drop(second);
            socket.flush().await.unwrap();
            assert!(idle.idle_since().is_some());
            assert!(idle.set_busy());
            socket.flush().await.unwrap();
            assert_eq!(idle.idle_since(), None, "no response has ended since");
        });
    }

    #[test]
    fn frames_outside_requests_do_not_keep_a_connection_busy() {
        run(async {
            let (mut socket, idle, mut client) = pair();
            socket.exchanges().multiplex();
            client.write_all(b"settings").await.unwrap();
            socket.read_u8().await.unwrap();
            assert_eq!(idle.idle_since(), None);
            let exchange = socket.exchanges().begin();
            socket.flush().await.unwrap();
            assert_eq!(idle.idle_since(), None, "a request is in progress");
            drop(exchange);
            for _ in 0..2 {
                socket.flush().await.unwrap();
                assert!(idle.idle_since().is_some());
                client.write_all(b"p").await.unwrap();
                assert!(socket.read(&mut [0; 16]).await.unwrap() > 0);
            }
        });
    }

    #[test]
    fn retired_connection_reads_only_its_end() {
        run(async {
            let (mut socket, idle, mut client) = pair();
            assert!(idle.retire(idle.idle_since().unwrap()));
            client.write_all(b"l").await.unwrap();
            let error = socket.read_u8().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
            drop(client);
            assert_eq!(socket.read(&mut [0]).await.unwrap(), 0);
        });
    }
}
