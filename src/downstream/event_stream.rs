//! An answer that is an event stream, whatever its events are.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};

use crate::downstream::body::Body;
use crate::mcp::headers::BUFFERING;
use crate::policy::Principal;
use crate::proxy::reply::Aborted;
use crate::wire::sse::Encoder;

/// How often a stream without events shows that it is alive.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A comment: it carries nothing.
pub(super) const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// How long a stream of `principal` says nothing before it is looked at again: at most [`KEEP_ALIVE`], and not past the
/// end of the token that it was opened with. A token that is revoked is noticed then at the latest.
pub(super) fn pause(principal: &Principal, now: SystemTime) -> Duration {
    match principal {
        Principal::Subject(subject) => {
            KEEP_ALIVE.min(subject.until().duration_since(now).unwrap_or_default())
        }
        Principal::Anonymous
        | Principal::Admin
        | Principal::Token(_)
        | Principal::Certificate(_) => KEEP_ALIVE,
    }
}

/// An answer that is an event stream. `next` is asked until it says that there is no more.
pub(super) fn response<S, F>(state: S, next: F) -> Response<Body>
where
    S: 'static,
    F: AsyncFn(&mut S) -> Result<Option<Bytes>, Aborted> + 'static,
{
    let next = Rc::new(next);
    let chunks = stream::try_unfold(state, move |mut state| {
        let next = Rc::clone(&next);
        async move { Ok(next(&mut state).await?.map(|chunk| (chunk, state))) }
    });
    let mut response = Response::new(Body::Stream(Box::pin(chunks)));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(BUFFERING, HeaderValue::from_static("no"));
    response
}

/// One message as an event without an id.
pub(super) fn event(message: &Bytes) -> Bytes {
    let mut encoder = Encoder::new();
    let mut framed = Vec::with_capacity(message.len() + 16);
    encoder.data(message.clone(), |part| framed.extend_from_slice(&part));
    framed.extend_from_slice(&encoder.end());
    framed.into()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn a_message_is_one_event_whatever_lines_it_has() {
        let framed = event(&Bytes::from_static(b"{\"a\":\n1}"));
        assert_eq!(framed, "data: {\"a\":\ndata: 1}\n\n");
    }

    #[tokio::test]
    async fn a_stream_is_asked_until_it_says_that_there_is_no_more() {
        let left = vec![Bytes::from_static(b"b"), Bytes::from_static(b"a")];
        let answer = response(left, async |left| Ok(left.pop()));
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        assert_eq!(header("content-type"), Some("text/event-stream"));
        assert_eq!(header("cache-control"), Some("no-store"));
        assert_eq!(header("x-accel-buffering"), Some("no"), "no proxy before us holds it back");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "ab");
    }

    #[tokio::test]
    async fn a_stream_that_breaks_off_does_not_end() {
        let answer = response((), async |()| Err(Aborted("gone".into())));
        assert_eq!(answer.into_body().collect().await.unwrap_err(), Aborted("gone".into()));
    }
}
