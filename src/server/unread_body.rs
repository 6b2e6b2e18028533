//! Discards the unread rest of a request body before its response is sent.
//!
//! A client whose request is rejected because of its head may still be sending the body. An HTTP/2 server that responds immediately then
//! resets the stream, as RFC 9113 §8.1 permits, but a client may take the reset for a failure and lose the response (curl 7.88 reports
//! "stream error" instead of 401). An HTTP/1.1 server closes the connection and answers further data with a TCP reset, which may overtake
//! the response (RFC 9112 §9.6).

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

use mcpproxy_fleet::peer_wire::MAX_REQUEST_BYTES;

/// Maximum number of bytes read and discarded. Accepted bodies are never larger.
const MAX_UNREAD_BYTES: usize = MAX_REQUEST_BYTES;
/// Maximum delay of the response.
pub(super) const UNREAD_TIMEOUT: Duration = Duration::from_secs(1);

/// Time at which a client sends the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyTiming {
    AtOnce,
    /// After `100 Continue`, which is sent when the server reads the body (RFC 9110 §10.1.1).
    WhenAsked,
}

impl BodyTiming {
    /// Derives the timing from the head of an HTTP/1.1 request.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        if headers.contains_key(EXPECT) { Self::WhenAsked } else { Self::AtOnce }
    }
}

/// A request body that returns its unread rest when dropped, unless the client still waits for `100 Continue`.
pub(super) struct LentBody<B> {
    body: Option<B>,
    timing: BodyTiming,
    unread: Rc<Cell<Option<B>>>,
}

/// The unread rest of a body.
pub(super) struct UnreadBody<B>(Rc<Cell<Option<B>>>);

/// Lends a body to a request handler.
pub(super) fn lend<B>(body: B, timing: BodyTiming) -> (LentBody<B>, UnreadBody<B>) {
    let unread = Rc::<Cell<Option<B>>>::default();
    (LentBody { body: Some(body), timing, unread: Rc::clone(&unread) }, UnreadBody(unread))
}

impl<B: HttpBody<Data = Bytes> + Unpin> UnreadBody<B> {
    /// Reads and discards the rest, up to [`MAX_UNREAD_BYTES`] and for [`UNREAD_TIMEOUT`].
    pub(super) async fn discard(self) {
        let Some(mut body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        discard(Pin::new(&mut body), UNREAD_TIMEOUT).await;
    }
}

/// Reads and discards a body, up to [`MAX_UNREAD_BYTES`] and for `limit`.
pub(super) async fn discard<B: HttpBody<Data = Bytes>>(mut body: Pin<&mut B>, limit: Duration) {
    let rest = async {
        let mut left = MAX_UNREAD_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // A slower client gets its response nevertheless, and its upload is then reset.
    let _ = tokio::time::timeout(limit, rest).await;
}

impl<B> Drop for LentBody<B> {
    fn drop(&mut self) {
        match self.timing {
            BodyTiming::AtOnce => self.unread.set(self.body.take()),
            BodyTiming::WhenAsked => {}
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
        self.timing = BodyTiming::AtOnce;
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

    /// A body of `left` frames that then ends or stalls.
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

    /// Number of frames read in total if the handler reads `taken` of them.
    async fn read_of((frames, ends): (usize, bool), timing: BodyTiming, taken: usize) -> usize {
        let read = Rc::<Cell<usize>>::default();
        let frames = Frames { left: frames, ends, read: Rc::clone(&read) };
        let (mut lent, unread) = lend(frames, timing);
        for _ in 0..taken {
            assert!(lent.frame().await.is_some());
        }
        drop(lent);
        unread.discard().await;
        read.get()
    }

    #[tokio::test]
    async fn unread_body_is_discarded_up_to_its_limits() {
        let of = |frames, ends| read_of((frames, ends), BodyTiming::AtOnce, 1);
        assert_eq!(of(3, true).await, 3);
        assert_eq!(of(3, false).await, 3, "a stalled body is abandoned");
        let limit = MAX_UNREAD_BYTES / FRAME_BYTES;
        assert_eq!(
            of(1000, true).await,
            1 + limit + 1,
            "one more frame shows that it is too large"
        );
    }

    #[tokio::test]
    async fn no_100_continue_for_rejected_requests() {
        let mut headers = HeaderMap::new();
        assert_eq!(read_of((3, true), BodyTiming::of(&headers), 0).await, 3, "it is being sent");
        headers.insert(EXPECT, HeaderValue::from_static("100-continue"));
        let of = |taken| read_of((3, true), BodyTiming::of(&headers), taken);
        assert_eq!((of(0).await, of(1).await), (0, 3));
    }
}
