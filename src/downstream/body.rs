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
    /// No bytes, or none left.
    #[default]
    Empty,
    /// Bytes at hand; their length is announced.
    Whole(Splice),
    /// A call's answer, streamed.
    Call(Box<Streamed>),
    /// Any other stream, such as an export or the live events.
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

/// A reply in progress, inside its JSON-RPC envelope.
#[derive(Debug)]
pub struct Streamed {
    running: Watched,
    /// Bytes that go out before the next piece is polled for.
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

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::output::AnswerMember;
    use crate::proxy::reply::{Reply, Running};

    fn data(text: &'static str) -> Piece {
        Piece::Data(Splice::from(Bytes::from(text)))
    }

    fn streamed<F>(call: impl FnOnce(Reply) -> F) -> Body
    where
        F: Future<Output = Result<(), Aborted>> + 'static,
    {
        let (head, tail) = (Bytes::from_static(b"{"), Bytes::from_static(b"}"));
        Body::Call(Box::new(Streamed::new(Running::new(call).into(), head, tail)))
    }

    fn poll(body: &mut Body) -> Poll<Option<Result<String, Aborted>>> {
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        Pin::new(body).poll_frame(cx).map(|frame| {
            frame.map(|frame| {
                let splice = frame?.into_data().unwrap();
                let bytes: Vec<u8> = splice.parts().flatten().copied().collect();
                Ok(String::from_utf8(bytes).unwrap())
            })
        })
    }

    #[tokio::test]
    async fn bytes_at_hand_are_one_frame_of_a_length_that_is_known() {
        let mut body = Body::from(Bytes::from_static(b"abc"));
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(3), false));
        assert_eq!(poll(&mut body), Poll::Ready(Some(Ok("abc".into()))));
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
        assert_eq!(poll(&mut body), Poll::Ready(None));
        let mut nothing = Body::from(Bytes::new());
        assert!(nothing.is_end_stream() && nothing.frame().await.is_none());
    }

    #[test]
    fn a_reply_is_written_between_its_head_and_its_tail() {
        let mut body = streamed(|reply| async move {
            reply.send(data("1")).await;
            reply.send(data("2")).await;
            Ok(())
        });
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (None, false));
        let frames: Vec<_> = (0..4).map(|_| poll(&mut body)).collect();
        let frame = |text: &str| Poll::Ready(Some(Ok(text.to_owned())));
        assert_eq!(frames, [frame("{1"), frame("2"), frame("}"), Poll::Ready(None)]);
    }

    #[test]
    fn the_head_goes_on_before_the_first_byte_is_there() {
        let mut body = streamed(|_| std::future::pending());
        assert_eq!(poll(&mut body), Poll::Ready(Some(Ok("{".into()))));
        assert!(poll(&mut body).is_pending());
    }

    #[test]
    fn what_breaks_off_is_an_error_and_never_an_end() {
        let mut broken = streamed(|reply| async move {
            reply.send(data("1")).await;
            Err(Aborted("gone".into()))
        });
        assert!(poll(&mut broken).is_ready());
        assert_eq!(poll(&mut broken), Poll::Ready(Some(Err(Aborted("gone".into())))));
        let mut second = streamed(|reply| async move {
            reply.send(Piece::Begin(AnswerMember::Result)).await;
            Ok(())
        });
        assert!(
            matches!(poll(&mut second), Poll::Ready(Some(Err(_)))),
            "an answer within an answer"
        );
        let mut call = Watched::from(Running::new(|_| std::future::pending()));
        call.cancel();
        let head = Bytes::from_static(b"{");
        let mut cancelled = Body::Call(Box::new(Streamed::new(call, head.clone(), head)));
        assert!(matches!(poll(&mut cancelled), Poll::Ready(Some(Err(_)))));
    }
}
