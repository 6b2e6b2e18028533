//! A client's socket that tells whether its connection is in use, so that an idle one can make room.
//!
//! Bytes that come begin a request. That it is over, whoever answers says: the hot path when it
//! waits for the next, hyper by way of [`Exchanges`], once the last byte of an answer is written.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection_limit::Presence;
use crate::downstream::body::Body;
use crate::io::clock;
use crate::proxy::reply::Aborted;
use crate::wire::splice::Splice;

/// A stream whose connection counts as busy from the first byte of a request on.
#[derive(Debug)]
pub(super) struct TrackedSocket<S> {
    stream: S,
    presence: Arc<Presence>,
    exchanges: Exchanges,
}

impl<S> TrackedSocket<S> {
    pub(super) fn new(stream: S, presence: Arc<Presence>) -> Self {
        Self { stream, presence, exchanges: Exchanges::default() }
    }

    /// Nothing of a request has come, and nothing of an answer is left.
    pub(super) fn idle(&self, now: Instant) {
        self.presence.idle(now);
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
        if buffer.filled().len() > before && !self.presence.busy() {
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
            self.presence.idle(clock::now());
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
}

impl Exchanges {
    /// A request is being answered until what is returned is dropped.
    pub(super) fn begin(&self) -> Exchange {
        self.0.open.set(self.0.open.get() + 1);
        Exchange(self.clone())
    }

    /// True once after the last answer's body has been taken whole.
    fn are_over(&self) -> bool {
        self.0.open.get() == 0 && self.0.ended.replace(false)
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
