//! The body of an HTTP answer: bytes at hand, or a reply still under way.
//!
//! A reply under way is polled by the connection that writes it, so a slow client slows the
//! upstream and a client that goes away drops the call.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::downstream::in_flight::{Taken, Watched};
use crate::proxy::reply::{Aborted, Piece};
use crate::wire::splice::Splice;

/// An HTTP answer's body.
#[derive(Default)]
pub enum Body {
    /// Nothing, or nothing more.
    #[default]
    Empty,
    /// Bytes at hand; their length is announced.
    Whole(Splice),
    /// A call's answer, streamed.
    Call(Box<Streamed>),
    /// Anything else that comes in time, such as an export or the live events.
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, Aborted>>>>),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Empty => "Empty",
            Self::Whole(_) => "Whole",
            Self::Call(_) => "Call",
            Self::Stream(_) => "Stream",
        })
    }
}

impl From<Splice> for Body {
    fn from(splice: Splice) -> Self {
        Self::Whole(splice)
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(Splice::from(bytes))
    }
}

/// A reply under way inside its envelope.
#[derive(Debug)]
pub struct Streamed {
    running: Watched,
    /// What goes out before the next piece is asked for.
    ready: Splice,
    tail: Option<Bytes>,
}

impl Streamed {
    /// A reply whose answer has begun: `head` stands before its value, `tail` after it.
    #[must_use]
    pub fn new(running: Watched, head: Bytes, tail: Bytes) -> Self {
        Self { running, ready: Splice::from(head), tail: Some(tail) }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Splice, Aborted>>> {
        match self.running.poll(cx) {
            Poll::Ready(Taken::Piece(Piece::Data(data))) => {
                self.ready.extend(data);
                Poll::Ready(Some(Ok(std::mem::take(&mut self.ready))))
            }
            Poll::Ready(Taken::Piece(piece)) => {
                Poll::Ready(Some(Err(Aborted(format!("{piece:?} in the middle of a reply")))))
            }
            Poll::Ready(Taken::Broken(aborted)) => Poll::Ready(Some(Err(aborted))),
            Poll::Ready(Taken::Cancelled) => {
                Poll::Ready(Some(Err(Aborted("the client cancelled the call".into()))))
            }
            Poll::Ready(Taken::Over) => Poll::Ready(self.tail.take().map(|tail| {
                self.ready.push(tail);
                Ok(std::mem::take(&mut self.ready))
            })),
            // The envelope's head goes on before the first byte of the value is there.
            Poll::Pending if !self.ready.is_empty() => {
                Poll::Ready(Some(Ok(std::mem::take(&mut self.ready))))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl HttpBody for Body {
    type Data = Splice;
    type Error = Aborted;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Splice>, Aborted>>> {
        let this = self.get_mut();
        match this {
            Self::Empty => Poll::Ready(None),
            Self::Whole(splice) => {
                let splice = std::mem::take(splice);
                *this = Self::Empty;
                Poll::Ready((!splice.is_empty()).then(|| Ok(Frame::data(splice))))
            }
            Self::Call(streamed) => streamed.poll(cx).map(|next| next.map(|r| r.map(Frame::data))),
            Self::Stream(stream) => stream
                .as_mut()
                .poll_next(cx)
                .map(|next| next.map(|bytes| bytes.map(|bytes| Frame::data(Splice::from(bytes))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(splice) => splice.is_empty(),
            Self::Call(_) | Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole(splice) => SizeHint::with_exact(splice.len() as u64),
            Self::Call(_) | Self::Stream(_) => SizeHint::default(),
        }
    }
}
