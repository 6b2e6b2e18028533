//! HTTP bodies: responses that are complete, streamed or event streams, and the limits on request bodies.
//!
//! The connection polls the reply that it writes, so that a slow client applies backpressure to the upstream and a
//! disconnect drops the call. `proxy::memory_budget` limits the memory of all request bodies.

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use mcpproxy_protocol::mcp::headers::BUFFERING;
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_protocol::wire::sse::Encoder;

use super::in_flight::{Taken, Watched};
use mcpproxy_gateway::proxy::memory_budget::{BodiesFull, BodyCharge};
use mcpproxy_gateway::proxy::reply::{Aborted, Piece};

/// Chunks of a streamed body, polled on the worker that writes them.
pub(crate) type ChunkStream = Pin<Box<dyn Stream<Item = Result<Bytes, Aborted>>>>;

/// Body of an HTTP response.
#[derive(Default)]
pub enum Body {
    #[default]
    Empty,
    /// A complete body, with a known length.
    Whole(Splice),
    Call(Box<Streamed>),
    /// Any other stream, such as an export or live events.
    Stream(ChunkStream),
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
    /// Bytes to be sent before the next piece is polled for.
    ready: Splice,
    tail: Option<Bytes>,
}

impl Streamed {
    /// A reply whose result has begun, with the envelope around its value.
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
            Poll::Ready(Taken::Canceled) => {
                Poll::Ready(Some(Err(Aborted("the client cancelled the call".into()))))
            }
            Poll::Ready(Taken::Over) => Poll::Ready(self.tail.take().map(|tail| {
                self.ready.push(tail);
                Ok(std::mem::take(&mut self.ready))
            })),
            // The envelope's head is sent before the first byte of the value is available.
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

/// Media type of a response whose `Content-Type` header is omitted. Nearly all responses are of this type, and writing
/// the header line costs less than a header map per response.
pub const UNNAMED_TYPE: &str = "application/json";

pub(super) fn json(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// Adds the omitted `Content-Type`, for a server that writes only the headers it is given.
pub fn name_type(response: &mut Response<Body>) {
    if !response.body().is_end_stream() && !response.headers().contains_key(CONTENT_TYPE) {
        let value = HeaderValue::from_static(UNNAMED_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
}

pub(super) fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

pub(super) fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    response
}

/// JSON-RPC error for an invalid message. `id` is raw.
pub(super) fn invalid_request(code: StatusCode, id: Option<&[u8]>, text: &str) -> Response<Body> {
    json(code, Body::from(jsonrpc::error(id, Code::InvalidRequest, text)))
}

pub(super) fn too_many_streams() -> Response<Body> {
    plain(StatusCode::TOO_MANY_REQUESTS, "too many event streams are open")
}

/// An SSE comment.
pub(super) const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// An event stream of the chunks that `next` yields, until it returns `None`.
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

/// A message as an SSE event without an id.
pub(super) fn event(message: &Bytes) -> Bytes {
    let mut encoder = Encoder::new();
    let mut framed = Vec::with_capacity(message.len() + 16);
    encoder.data(message.clone(), |part| framed.extend_from_slice(&part));
    framed.extend_from_slice(&encoder.end());
    framed.into()
}

/// Maximum request body: 16 MiB.
pub const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// Time limit for receiving a request body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(15);

/// `Retry-After` of the response to a request whose body exceeds the memory budget.
const BODIES_FULL_RETRY_AFTER: Duration = Duration::from_secs(2);

/// Reason why a request body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body was not received within [`BODY_TIMEOUT`].
    #[error("request body was not received within {BODY_TIMEOUT:?}")]
    Late,
    /// The body is larger than [`MAX_BODY_BYTES`].
    #[error("request body is larger than {MAX_BODY_BYTES} bytes")]
    TooLarge,
    /// The budget over all bodies is used up.
    #[error("request body {0}")]
    BodiesFull(#[from] BodiesFull),
    /// The connection failed.
    #[error("request body is unreadable: {0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl BodyError {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodiesFull(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Broken(_) => StatusCode::BAD_REQUEST,
        }
    }

    /// Delay before a useful retry, if any.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::BodiesFull(_) => Some(BODIES_FULL_RETRY_AFTER),
            _ => None,
        }
    }
}

/// Response to a request whose body was not read.
pub fn body_error(refused: &BodyError) -> Response<Body> {
    let mut response = plain(refused.status(), &format!("the {refused}"));
    if let Some(after) = refused.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, after.as_secs().into());
    }
    response
}

/// Reads a request body, up to [`MAX_BODY_BYTES`] and within [`BODY_TIMEOUT`].
pub async fn collect<B>(body: B, charge: BodyCharge<'_>) -> Result<Bytes, BodyError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    collect_within(body, MAX_BODY_BYTES, charge).await
}

/// Reads a request body, up to `max` bytes and within [`BODY_TIMEOUT`].
pub async fn collect_within<B>(
    body: B,
    max: usize,
    charge: BodyCharge<'_>,
) -> Result<Bytes, BodyError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let gathered = gather(Limited::new(body, max), charge);
    tokio::time::timeout(BODY_TIMEOUT, gathered).await.unwrap_or(Err(BodyError::Late))
}

async fn gather<B>(body: Limited<B>, mut charge: BodyCharge<'_>) -> Result<Bytes, BodyError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = pin!(body);
    // Most bodies arrive in one piece, which is not copied. Small pieces are copied, since each would pin its read
    // buffer.
    let (mut first, mut whole) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => BodyError::TooLarge,
            false => BodyError::Broken(error),
        })?;
        let Ok(data) = frame.into_data() else { continue };
        charge.reach(first.len() + whole.len() + data.len()).await?;
        match (first.is_empty(), whole.is_empty()) {
            (true, true) => first = data,
            (false, _) => whole = [&*std::mem::take(&mut first), &*data].concat(),
            (true, false) => whole.extend_from_slice(&data),
        }
    }
    let body = if whole.is_empty() { first } else { Bytes::from(whole) };
    Ok(charge.keep(body))
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full, StreamBody};
    use mcpproxy_policy::Principal;
    use mcpproxy_schema::output::AnswerMember;

    use super::*;
    use mcpproxy_gateway::proxy::memory_budget::{MAX_BODIES_BYTES, RequestBodies};
    use mcpproxy_gateway::proxy::reply::{Reply, Running};

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
                let bytes: Vec<u8> = splice.slices().flatten().copied().collect();
                Ok(String::from_utf8(bytes).unwrap())
            })
        })
    }

    #[tokio::test]
    async fn complete_body_is_one_frame_of_known_length() {
        let mut body = Body::from(Bytes::from_static(b"abc"));
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(3), false));
        assert_eq!(poll(&mut body), Poll::Ready(Some(Ok("abc".into()))));
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
        assert_eq!(poll(&mut body), Poll::Ready(None));
        let mut nothing = Body::from(Bytes::new());
        assert!(nothing.is_end_stream() && nothing.frame().await.is_none());
    }

    #[test]
    fn reply_is_framed_by_head_and_tail() {
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
    fn response_head_is_sent_before_the_first_byte_of_the_value() {
        let mut body = streamed(|_| std::future::pending());
        assert_eq!(poll(&mut body), Poll::Ready(Some(Ok("{".into()))));
        assert!(poll(&mut body).is_pending());
    }

    #[test]
    fn aborted_reply_ends_with_an_error_instead_of_a_normal_end() {
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
        let mut canceled = Body::Call(Box::new(Streamed::new(call, head.clone(), head)));
        assert!(matches!(poll(&mut canceled), Poll::Ready(Some(Err(_)))));
    }

    #[test]
    fn content_type_is_added_only_to_responses_with_a_body_and_without_a_type() {
        let named = |mut response: Response<Body>| {
            name_type(&mut response);
            let value = response.headers().get(CONTENT_TYPE)?;
            Some(value.to_str().unwrap().to_owned())
        };
        let body = || Body::from(Bytes::from_static(b"{}"));
        assert_eq!(named(json(StatusCode::OK, body())).as_deref(), Some(UNNAMED_TYPE));
        assert_eq!(named(plain(StatusCode::OK, "text")).as_deref(), Some("text/plain"));
        assert_eq!(named(status(StatusCode::ACCEPTED)), None);
    }

    #[test]
    fn message_with_several_lines_is_sent_as_one_event() {
        let framed = event(&Bytes::from_static(b"{\"a\":\n1}"));
        assert_eq!(framed, "event: message\ndata: {\"a\":\ndata: 1}\n\n");
    }

    #[tokio::test]
    async fn event_stream_is_polled_to_its_end() {
        let left = vec![Bytes::from_static(b"b"), Bytes::from_static(b"a")];
        let answer = response(left, async |left| Ok(left.pop()));
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        assert_eq!(header("content-type"), Some("text/event-stream"));
        assert_eq!(header("cache-control"), Some("no-store"));
        assert_eq!(
            header("x-accel-buffering"),
            Some("no"),
            "buffering is off for proxies in front"
        );
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "ab");
    }

    #[tokio::test]
    async fn aborted_event_stream_ends_with_an_error_instead_of_a_normal_end() {
        let answer = response((), async |()| Err(Aborted("gone".into())));
        assert_eq!(answer.into_body().collect().await.unwrap_err(), Aborted("gone".into()));
    }

    async fn alone<B>(body: B) -> Result<Bytes, BodyError>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let all = RequestBodies::default();
        collect(body, all.charge(&Principal::Admin)).await
    }

    #[tokio::test]
    async fn request_body_is_accepted_up_to_the_limit() {
        let body = |size| Full::new(Bytes::from(vec![b' '; size]));
        assert_eq!(alone(body(MAX_BODY_BYTES)).await.unwrap().len(), MAX_BODY_BYTES);
        let refused = alone(body(MAX_BODY_BYTES + 1)).await.unwrap_err();
        assert!(matches!(refused, BodyError::TooLarge));
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(body_error(&refused).status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test]
    async fn aborted_request_body_is_a_client_error() {
        let frames = [
            Ok(http_body::Frame::data(Bytes::from_static(b"{"))),
            Err(std::io::Error::other("reset")),
        ];
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let refused = alone(body).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        assert_eq!(refused.to_string(), "request body is unreadable: reset");
    }

    #[tokio::test]
    async fn request_body_in_pieces_is_joined() {
        for pieces in [&[][..], &["a"], &["a", "b"], &["", "a", "", "bc", "d"]] {
            let frames = pieces.iter().map(|piece| {
                let data = Bytes::copy_from_slice(piece.as_bytes());
                Ok::<_, std::io::Error>(http_body::Frame::data(data))
            });
            let body = StreamBody::new(futures_util::stream::iter(frames));
            assert_eq!(alone(body).await.unwrap(), pieces.concat());
        }
    }

    #[tokio::test]
    async fn request_body_over_the_budget_gets_a_retry_after_header() {
        let all = RequestBodies::default();
        let body = || Full::new(Bytes::from(vec![b' '; MAX_BODY_BYTES]));
        let mut held = Vec::new();
        let refused = loop {
            match collect(body(), all.charge(&Principal::Anonymous)).await {
                Ok(body) => held.push(body),
                Err(refused) => break refused,
            }
        };
        assert!((held.len() * MAX_BODY_BYTES) as u64 <= MAX_BODIES_BYTES, "{}", held.len());
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(
            refused.to_string().starts_with("request body exceeds the memory budget: "),
            "{refused}"
        );
        assert!(body_error(&refused).headers().contains_key(RETRY_AFTER));
        assert!(!body_error(&BodyError::Late).headers().contains_key(RETRY_AFTER));
        held.clear();
        collect(body(), all.charge(&Principal::Anonymous)).await.unwrap();
    }
}
