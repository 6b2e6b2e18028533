//! A client's socket that keeps the [`IdleState`] of its connection, so that an idle one can make room.
//!
//! The first bytes of a request make it busy. It is idle again when the fast path waits for the next
//! request, or, with hyper, when the last byte of the last open [`Exchange`] is flushed.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::idle_connections::IdleState;
use crate::downstream::body::Body;
use crate::io::clock;
use crate::proxy::reply::Aborted;
use crate::wire::splice::Splice;

/// A stream whose connection counts as busy from the first byte of a request on.
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

    /// Nothing of a request has come, and nothing of an answer is left.
    pub(super) fn set_idle(&self, now: Instant) {
        self.idle.set_idle(now);
    }

    /// What counts the answers under way.
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
        if self.exchanges.are_over() {
            self.idle.set_idle(clock::now());
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The answers of a connection that hyper serves.
#[derive(Clone, Debug, Default)]
pub(super) struct Exchanges(Rc<Count>);

#[derive(Debug, Default)]
struct Count {
    open: Cell<usize>,
    /// One has ended since it was last asked.
    ended: Cell<bool>,
    /// Several answers may be under way, and bytes come that are of no request.
    multiplexed: Cell<bool>,
}

impl Exchanges {
    /// A request is being answered until what is returned is dropped.
    pub(super) fn begin(&self) -> Exchange {
        self.0.open.set(self.0.open.get() + 1);
        Exchange(self.clone())
    }

    /// The connection is HTTP/2: it is idle whenever no answer is under way, and not only after one, since frames
    /// come that are of no request.
    pub(super) fn multiplex(&self) {
        self.0.multiplexed.set(true);
    }

    /// No answer is under way.
    pub(super) fn are_none(&self) -> bool {
        self.0.open.get() == 0
    }

    /// True once after the last answer's body has been taken whole.
    fn are_over(&self) -> bool {
        self.are_none() && (self.0.ended.replace(false) || self.0.multiplexed.get())
    }
}

/// One answer under way.
#[derive(Debug)]
pub(super) struct Exchange(Exchanges);

impl Drop for Exchange {
    fn drop(&mut self) {
        let count = &self.0.0;
        count.open.set(count.open.get().saturating_sub(1));
        count.ended.set(true);
    }
}

/// An answer's body; its exchange is over when it is dropped.
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
    fn a_connection_is_busy_from_the_first_byte_until_the_answer_has_left() {
        run(async {
            let (mut socket, idle, mut client) = pair();
            client.write_all(b"r").await.unwrap();
            socket.read_u8().await.unwrap();
            assert_eq!(idle.idle_since(), None);
            let body = TrackedBody::new(Body::Empty, socket.exchanges().begin());
            socket.write_all(b"answer").await.unwrap();
            socket.flush().await.unwrap();
            assert_eq!(idle.idle_since(), None, "its body is not taken whole");
            drop(body);
            assert_eq!(idle.idle_since(), None, "its end has not left");
            socket.flush().await.unwrap();
            assert!(idle.idle_since().is_some());
        });
    }

    #[test]
    fn of_several_answers_the_last_one_counts() {
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
            assert_eq!(idle.idle_since(), None, "no answer has ended since");
        });
    }

    #[test]
    fn frames_that_are_of_no_request_keep_no_connection_busy() {
        run(async {
            let (mut socket, idle, mut client) = pair();
            socket.exchanges().multiplex();
            client.write_all(b"settings").await.unwrap();
            socket.read_u8().await.unwrap();
            assert_eq!(idle.idle_since(), None);
            let exchange = socket.exchanges().begin();
            socket.flush().await.unwrap();
            assert_eq!(idle.idle_since(), None, "a request is under way");
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
    fn nothing_is_read_on_a_retired_connection_but_its_end() {
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
