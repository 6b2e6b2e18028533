//! What a request's answer has left unread of its body, read before the answer goes out.
//!
//! Whoever is refused for a head alone may still be sending. A server of HTTP/2 that answers at once resets the stream then,
//! which RFC 9113 §8.1 allows; but a client that has not sent its last byte yet may take the reset for a failure and lose the
//! answer (curl 7.88 does: a request without a key was told "stream error" in place of 401). A server of HTTP/1.1 closes the
//! connection, and what comes then is answered with a reset, which may overtake the answer (RFC 9112 §9.6).

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::EXPECT;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;

use crate::fleet::peer_wire::MAX_REQUEST_BYTES;

/// Most bytes that are read on behalf of an answer that did not want them; none of them is kept. No body may have more.
const MAX_UNREAD_BYTES: usize = MAX_REQUEST_BYTES;
/// How long such an answer waits for them.
pub(super) const UNREAD_TIMEOUT: Duration = Duration::from_secs(1);

/// When a client sends a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyComes {
    /// With its head.
    AtOnce,
    /// Once it is told to go on, which it is when the body is read (RFC 9110 §10.1.1).
    WhenAsked,
}

impl BodyComes {
    /// What the head of an HTTP/1.1 request says.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        if headers.contains_key(EXPECT) { Self::WhenAsked } else { Self::AtOnce }
    }
}

/// A request's body that comes back if it is dropped before its end, unless nobody has asked for any of it.
pub(super) struct LentBody<B> {
    body: Option<B>,
    comes: BodyComes,
    unread: Rc<Cell<Option<B>>>,
}

/// What was not read of a body.
pub(super) struct UnreadBody<B>(Rc<Cell<Option<B>>>);

/// Lends a body to whoever answers.
pub(super) fn lend<B>(body: B, comes: BodyComes) -> (LentBody<B>, UnreadBody<B>) {
    let unread = Rc::<Cell<Option<B>>>::default();
    (LentBody { body: Some(body), comes, unread: Rc::clone(&unread) }, UnreadBody(unread))
}

impl<B: HttpBody<Data = Bytes> + Unpin> UnreadBody<B> {
    /// Reads what is left and forgets it, up to [`MAX_UNREAD_BYTES`] and for [`UNREAD_TIMEOUT`].
    pub(super) async fn discard(self) {
        let Some(mut body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        discard(Pin::new(&mut body), UNREAD_TIMEOUT).await;
    }
}

/// Reads a body to its end and forgets it, up to [`MAX_UNREAD_BYTES`] and for `limit`.
pub(super) async fn discard<B: HttpBody<Data = Bytes>>(mut body: Pin<&mut B>, limit: Duration) {
    let rest = async {
        let mut room = MAX_UNREAD_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            match room.checked_sub(bytes) {
                Some(left) => room = left,
                None => return,
            }
        }
    };
    // Who takes longer is answered all the same, and the rest is reset after that.
    let _ = tokio::time::timeout(limit, rest).await;
}

impl<B> Drop for LentBody<B> {
    fn drop(&mut self) {
        match self.comes {
            BodyComes::AtOnce => self.unread.set(self.body.take()),
            BodyComes::WhenAsked => {}
        }
    }
}

impl<B: HttpBody + Unpin> HttpBody for LentBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.comes = BodyComes::AtOnce;
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::HeaderValue;

    use super::*;

    const FRAME_BYTES: usize = 64 * 1024;

    /// So many frames, and after them an end or nothing more.
    struct Frames {
        left: usize,
        ends: bool,
        read: Rc<Cell<usize>>,
    }

    impl HttpBody for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                return if self.ends { Poll::Ready(None) } else { Poll::Pending };
            }
            self.left -= 1;
            self.read.set(self.read.get() + 1);
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; FRAME_BYTES])))))
        }
    }

    /// How many frames are read of a body whose reader has taken some.
    async fn read_of((frames, ends): (usize, bool), comes: BodyComes, taken: usize) -> usize {
        let read = Rc::<Cell<usize>>::default();
        let frames = Frames { left: frames, ends, read: Rc::clone(&read) };
        let (mut lent, unread) = lend(frames, comes);
        for _ in 0..taken {
            assert!(lent.frame().await.is_some());
        }
        drop(lent);
        unread.discard().await;
        read.get()
    }

    #[tokio::test]
    async fn what_was_left_is_read_to_its_end_and_not_beyond_the_bounds() {
        let of = |frames, ends| read_of((frames, ends), BodyComes::AtOnce, 1);
        assert_eq!(of(3, true).await, 3);
        assert_eq!(of(3, false).await, 3, "it is given up when it stalls");
        let most = MAX_UNREAD_BYTES / FRAME_BYTES;
        assert_eq!(of(1000, true).await, 1 + most + 1, "one more shows that it is too much");
    }

    #[tokio::test]
    async fn who_waits_to_be_told_to_go_on_is_not_told_so_for_what_nobody_wants() {
        let mut headers = HeaderMap::new();
        assert_eq!(read_of((3, true), BodyComes::of(&headers), 0).await, 3, "it is on its way");
        headers.insert(EXPECT, HeaderValue::from_static("100-continue"));
        let of = |taken| read_of((3, true), BodyComes::of(&headers), taken);
        assert_eq!((of(0).await, of(1).await), (0, 3));
    }
}
