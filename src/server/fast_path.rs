//! Fast path of a client connection: handles plain POSTs of JSON-RPC messages, one after another, without hyper.
//!
//! A connection starts here. At the first request that is not a plain POST of a message, it is handed to hyper for the rest of its life,
//! together with the bytes read so far. This saves work that a general server does but a call does not need: the state of a task
//! between socket and service, a timer per request, and rebuilt headers per response.
//!
//! ```text
//! idle ─ first byte ▶ head ─ plain ▶ body ─ whole ▶ answering ─ written ▶ idle
//!                       └─ anything else ▶ hyper      └─ client gone: the call is dropped ▶ closed
//! ```

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE};
use http::request::Parts;
use http::{Response, StatusCode};
use http_body::Body as _;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::watch;

use super::tracked_socket::TrackedSocket;
use super::unread_body::UNREAD_TIMEOUT;
use mcpproxy_downstream::body::Body;
use mcpproxy_downstream::http::{
    BODY_TIMEOUT, BodyError, MAX_BODY_BYTES, PATHS, UNNAMED_TYPE, body_error,
};
use mcpproxy_gateway::proxy::memory_budget::{BodiesFull, BodyCharge, SMALL_BODY_BYTES};
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::buffer_pool::BufferPool;
use mcpproxy_runtime::io::clock;
use mcpproxy_runtime::io::deadline::{Deadline, WriteTimeout};
use mcpproxy_runtime::io::http1::{PostHead, Start};

/// Timeout for receiving a request's head.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of an idle connection between requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Maximum size of a head in bytes. Longer heads are handed to hyper, which rejects them.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Number of bytes per read, and of read-ahead while a request is being answered.
const READ_BYTES: usize = 16 * 1024;
/// A buffer with less free capacity is grown or replaced before a read.
const MIN_FREE_BYTES: usize = READ_BYTES / 4;
/// Maximum number of response bytes gathered into one write.
const MAX_GATHERED_BYTES: usize = 256 * 1024;
/// Maximum number of slices per write.
const MAX_SLICES: usize = 64;

thread_local! {
    /// Read buffers, shared by the connections of a worker.
    static REQUESTS: BufferPool = BufferPool::default();
}

#[derive(Debug)]
pub(super) enum End {
    Closed,
    /// The next request must be handled by hyper; holds the bytes of it that were read.
    Other(Bytes),
}

/// Result of waiting for bytes.
enum Read {
    Some,
    Ended,
    Late,
}

/// Result of receiving a request's body.
enum Received {
    Whole(Bytes),
    Cut,
    Late,
    BodiesFull(BodiesFull),
}

/// A connection on the fast path.
pub(super) struct FastPath<'a, S> {
    socket: &'a mut WriteTimeout<TrackedSocket<S>>,
    /// Bytes read but not consumed.
    input: BytesMut,
    /// Response heads; the memory is reused once they are sent.
    output: BytesMut,
    deadline: Deadline,
    draining: Draining,
    date: Date,
}

/// Shutdown signal of the server. All connections share the channel, so the task registers its waker once instead of per request.
struct Draining {
    signal: watch::Receiver<bool>,
    registered: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Draining {
    /// Whether the shutdown has begun. The channel changes only once.
    fn has_begun(&self) -> bool {
        self.signal.has_changed().unwrap_or(true)
    }

    /// Ready once the shutdown has begun; registers the waker until then. Must be polled by one task only.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.registered.is_none() {
            let mut signal = self.signal.clone();
            let waits = async move {
                let _ = signal.changed().await;
            };
            let _ = self.registered.insert(Box::pin(waits)).as_mut().poll(cx);
        }
        // Checked after the registration, so that the signal is not missed.
        if self.has_begun() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> FastPath<'a, S> {
    pub(super) fn new(
        socket: &'a mut WriteTimeout<TrackedSocket<S>>,
        drain: watch::Receiver<bool>,
    ) -> Self {
        Self {
            socket,
            input: BytesMut::new(),
            output: BytesMut::new(),
            deadline: Deadline::default(),
            draining: Draining { signal: drain, registered: None },
            date: Date::default(),
        }
    }

    /// Serves until the connection closes or a request does not fit the fast path. `admit` checks a head that differs from the previous one
    /// or whose admission no longer `holds`; heads that it rejects are left to hyper's service. `charge` reserves memory for bodies that
    /// are not small. `answer` computes the response; its second argument is true if the head equals the previous one and its admission is
    /// valid. Its future is dropped when the client disconnects.
    pub(super) async fn serve<'r, A>(
        mut self,
        admit: impl Fn(&Parts) -> Option<A>,
        holds: impl Fn(&A) -> bool,
        charge: impl Fn() -> BodyCharge<'r>,
        answer: impl AsyncFn(&Parts, bool, Bytes) -> Response<Body>,
    ) -> io::Result<End> {
        let mut last: Option<(Box<PostHead>, A)> = None;
        loop {
            let Some((post, repeated)) = self.head(&mut last, &admit, &holds).await? else {
                let other = !self.input.is_empty();
                return Ok(if other { End::Other(self.input.freeze()) } else { End::Closed });
            };
            self.input.advance(post.head.len());
            let (reply, last) = match self.body(post.length, &charge).await? {
                Received::Whole(body) => {
                    // The future is pinned here because it is large and would otherwise be copied.
                    let work = pin!(answer(&post.parts, repeated, body));
                    (self.unless_gone(work).await?, false)
                }
                Received::Late => (Some(body_error(&BodyError::Late)), true),
                Received::BodiesFull(none) => (Some(body_error(&none.into())), true),
                Received::Cut => (None, true),
            };
            let Some(reply) = reply else { return Ok(End::Closed) };
            let ending = last || self.draining.has_begun();
            self.reply(reply, ending).await?;
            if ending {
                return Ok(End::Closed);
            }
        }
    }

    /// Waits for the next head, which becomes `last`; returns true if it equals the previous one. Returns `None` if the connection has
    /// closed, or if the head does not fit the fast path and stays in `input`.
    async fn head<'b, A>(
        &mut self,
        last: &'b mut Option<(Box<PostHead>, A)>,
        admit: impl Fn(&Parts) -> Option<A>,
        holds: impl Fn(&A) -> bool,
    ) -> io::Result<Option<(&'b PostHead, bool)>> {
        let mut deadline = None;
        loop {
            let idle = self.input.is_empty();
            if !idle {
                let is_last = |(post, admitted): &(Box<PostHead>, A)| {
                    self.input.starts_with(&post.head) && holds(admitted)
                };
                if last.as_ref().is_some_and(is_last) {
                    return Ok(last.as_ref().map(|(post, _)| (&**post, true)));
                }
                match Start::read(&self.input, &PATHS, MAX_HEAD_BYTES) {
                    Start::Post(post) if post.length <= MAX_BODY_BYTES => {
                        let Some(admitted) = admit(&post.parts) else { return Ok(None) };
                        let (post, _) = last.insert((post, admitted));
                        return Ok(Some((post, false)));
                    }
                    Start::Post(_) | Start::Other => return Ok(None),
                    Start::More => {}
                }
            }
            if idle {
                self.socket.get_ref().set_idle(clock::lately());
            }
            let limit = if idle { IDLE_TIMEOUT } else { HEADER_TIMEOUT };
            let now = || if idle { clock::lately() } else { clock::now() };
            let until = *deadline.get_or_insert_with(|| now() + limit);
            match self.read_until(until, idle, usize::MAX).await? {
                // The timeout of the head starts with its first bytes.
                Read::Some if idle => deadline = None,
                Read::Some => {}
                Read::Ended | Read::Late => {
                    self.input.clear();
                    return Ok(None);
                }
            }
        }
    }

    async fn body<'r>(
        &mut self,
        length: usize,
        charge: impl Fn() -> BodyCharge<'r>,
    ) -> io::Result<Received> {
        let mut deadline = None;
        let mut charge = (length > SMALL_BODY_BYTES).then(charge);
        while self.input.len() < length {
            let deadline = *deadline.get_or_insert_with(|| clock::now() + BODY_TIMEOUT);
            // Data that follows a large body is not read into the body's buffer.
            let max = if length > READ_BYTES { length - self.input.len() } else { usize::MAX };
            match self.read_until(deadline, false, max).await? {
                Read::Some => {}
                Read::Ended => return Ok(Received::Cut),
                Read::Late => return Ok(Received::Late),
            }
            if let Some(charge) = charge.as_mut().filter(|charge| !charge.has(self.input.len()))
                // Boxed because it is rarely used and large, which keeps idle connections small.
                && let Err(none) = Box::pin(charge.reach(self.input.len())).await
            {
                self.discard(length).await?;
                return Ok(Received::BodiesFull(none));
            }
        }
        let body = self.input.split_to(length).freeze();
        let body = match charge {
            None => body,
            Some(charge) => charge.keep(body),
        };
        if length > READ_BYTES {
            // Otherwise a later read into the same buffer would keep the whole body alive.
            self.input = BytesMut::from(&*self.input);
        }
        Ok(Received::Whole(body))
    }

    /// Discards the rest of a body of `length` bytes for up to [`UNREAD_TIMEOUT`], because unread data can cause the response to be
    /// discarded.
    async fn discard(&mut self, length: usize) -> io::Result<()> {
        let deadline = clock::now() + UNREAD_TIMEOUT;
        let mut left = length;
        loop {
            left = left.saturating_sub(self.input.len());
            self.input = BytesMut::new();
            if left == 0 || !matches!(self.read_until(deadline, false, left).await?, Read::Some) {
                return Ok(());
            }
        }
    }

    /// Reads once, at most `max` bytes. An idle connection ends when the server shuts down.
    async fn read_until(&mut self, deadline: Instant, idle: bool, max: usize) -> io::Result<Read> {
        let Self { socket, input, deadline: timer, draining, .. } = self;
        poll_fn(|cx| {
            if let Poll::Ready(read) = poll_read(socket, input, max, cx) {
                return Poll::Ready(read.map(|count| match count {
                    0 => Read::Ended,
                    _ => Read::Some,
                }));
            }
            if idle && draining.poll(cx).is_ready() {
                return Poll::Ready(Ok(Read::Ended));
            }
            ready!(timer.poll_until(cx, deadline));
            Poll::Ready(Ok(Read::Late))
        })
        .await
    }

    /// Waits for `work` while reading ahead; `None` if the client disconnects first.
    async fn unless_gone<T>(
        &mut self,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> io::Result<Option<T>> {
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(Some(done)));
            }
            self.poll_gone(cx).map_ok(|()| None)
        })
        .await
    }

    /// Ready when the client has disconnected. Data that arrives while waiting is buffered up to a limit.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.input.len() < READ_BYTES {
            if ready!(poll_read(self.socket, &mut self.input, usize::MAX, cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    /// Writes a response; returns an error if its body fails or the client has disconnected.
    async fn reply(&mut self, reply: Response<Body>, last: bool) -> io::Result<()> {
        let (head, body) = reply.into_parts();
        let mut body = pin!(body);
        let length = body.size_hint().exact();
        self.output.reserve(512);
        self.write_head(&head, length, last);
        let mut out = Splice::new();
        let mut head = self.output.split().freeze();
        let mut ended = body.is_end_stream();
        loop {
            // Available data is sent in one write.
            while !ended && out.len() < MAX_GATHERED_BYTES {
                let next = if out.is_empty() && head.is_empty() {
                    poll_fn(|cx| match body.as_mut().poll_frame(cx) {
                        Poll::Ready(next) => Poll::Ready(Some(next)),
                        Poll::Pending => self.poll_gone(cx).map(|_| None),
                    })
                    .await
                } else {
                    let mut once = pin!(poll_fn(|cx| body.as_mut().poll_frame(cx)));
                    match poll_fn(|cx| Poll::Ready(once.as_mut().poll(cx))).await {
                        Poll::Ready(next) => Some(next),
                        Poll::Pending => break,
                    }
                };
                match next {
                    None => return Err(io::ErrorKind::ConnectionAborted.into()),
                    Some(None) => {
                        ended = true;
                        if length.is_none() {
                            out.push(Bytes::from_static(b"0\r\n\r\n"));
                        }
                    }
                    Some(Some(Err(aborted))) => {
                        // Data received so far is sent; the missing last chunk shows that the response is incomplete.
                        out.push_front(std::mem::take(&mut head));
                        self.write(&mut out).await?;
                        return Err(io::Error::other(aborted));
                    }
                    Some(Some(Ok(frame))) => {
                        let Ok(data) = frame.into_data() else { continue };
                        if length.is_some() {
                            out.append(data);
                        } else if !data.is_empty() {
                            self.put([&format!("{:x}\r\n", data.len())]);
                            out.push(self.output.split().freeze());
                            out.append(data);
                            out.push(Bytes::from_static(b"\r\n"));
                        }
                    }
                }
            }
            out.push_front(std::mem::take(&mut head));
            self.write(&mut out).await?;
            if ended {
                return Ok(());
            }
        }
    }

    fn write_head(&mut self, head: &http::response::Parts, length: Option<u64>, last: bool) {
        let reason = head.status.canonical_reason().unwrap_or_default();
        self.put(["HTTP/1.1 ", head.status.as_str(), " ", reason, "\r\n"]);
        for (name, value) in &head.headers {
            if name != DATE && name != CONTENT_LENGTH {
                self.put([name.as_str(), ": "]);
                self.output.extend_from_slice(value.as_bytes());
                self.put(["\r\n"]);
            }
        }
        if length != Some(0) && !head.headers.contains_key(CONTENT_TYPE) {
            self.put(["content-type: ", UNNAMED_TYPE, "\r\n"]);
        }
        match length {
            // A 204 response has no Content-Length (RFC 9110 §8.6).
            Some(_) if head.status == StatusCode::NO_CONTENT => {}
            Some(length) => {
                self.put(["content-length: ", itoa::Buffer::new().format(length), "\r\n"]);
            }
            None => self.put(["transfer-encoding: chunked\r\n"]),
        }
        if last {
            self.put(["connection: close\r\n"]);
        }
        self.put(["date: "]);
        self.output.extend_from_slice(self.date.now().as_bytes());
        self.put(["\r\n\r\n"]);
    }

    fn put<const N: usize>(&mut self, parts: [&str; N]) {
        for part in parts {
            self.output.extend_from_slice(part.as_bytes());
        }
    }

    async fn write(&mut self, out: &mut Splice) -> io::Result<()> {
        while !out.is_empty() {
            let written = poll_fn(|cx| {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let count = out.chunks_vectored(&mut slices);
                let slices = slices.get(..count).unwrap_or_default();
                Pin::new(&mut *self.socket).poll_write_vectored(cx, slices)
            })
            .await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            out.advance(written);
        }
        Ok(())
    }
}

fn poll_read<S: AsyncRead + Unpin>(
    socket: &mut WriteTimeout<TrackedSocket<S>>,
    input: &mut BytesMut,
    max: usize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    REQUESTS.with(|pool| pool.lend(input));
    // The buffer grows as data arrives, regardless of the announced length.
    if input.capacity() - input.len() < MIN_FREE_BYTES {
        input.reserve(READ_BYTES.max(input.len()));
    }
    let read = pin!(socket.read_buf(&mut (&mut *input).limit(max))).poll(cx);
    if read.is_pending() {
        REQUESTS.with(|pool| pool.take_back(input));
    }
    read
}

/// Current time as a `Date` header (RFC 9110 §5.6.7), formatted once per second.
#[derive(Default)]
struct Date {
    until: Option<Instant>,
    text: String,
}

impl Date {
    fn now(&mut self) -> &str {
        let now = clock::lately();
        if self.until.is_none_or(|until| now >= until) {
            let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            let rest = Duration::from_secs(1) - Duration::from_nanos(wall.subsec_nanos().into());
            self.until = Some(now + rest);
            let time = Timestamp::try_from(SystemTime::UNIX_EPOCH + wall).unwrap_or_default();
            self.text = time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;
    use std::rc::Rc;
    use std::sync::Arc;

    use futures_util::stream;

    use super::*;
    use crate::connection_limit::IdleState;
    use mcpproxy_gateway::proxy::memory_budget::RequestBodies;
    use mcpproxy_gateway::proxy::reply::Aborted;
    use mcpproxy_policy::Principal;

    /// Behavior of the client after it has sent everything.
    #[derive(Clone, Copy, PartialEq)]
    enum Then {
        Leaves,
        Stays,
    }

    /// A client that sends its parts one by one, with a wait before each, and stores received data.
    struct Client {
        parts: Rc<RefCell<VecDeque<Vec<u8>>>>,
        received: Rc<RefCell<Vec<u8>>>,
        waits: bool,
        waited: bool,
        then: Then,
    }

    impl AsyncRead for Client {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut tokio::io::ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if self.waits && !std::mem::replace(&mut self.waited, true) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.waited = false;
            let mut parts = self.parts.borrow_mut();
            let Some(mut part) = parts.pop_front() else {
                return if self.then == Then::Leaves { Poll::Ready(Ok(())) } else { Poll::Pending };
            };
            let rest = part.split_off(part.len().min(buffer.remaining()));
            buffer.put_slice(&part);
            if !rest.is_empty() {
                parts.push_front(rest);
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Client {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.received.borrow_mut().extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A run of the fast path with its admissions and results.
    struct Run {
        parts: Rc<RefCell<VecDeque<Vec<u8>>>>,
        received: Rc<RefCell<Vec<u8>>>,
        then: Then,
        waits: bool,
        /// Number of the current admission; with 0, all heads are rejected.
        admission: Cell<u32>,
        /// Number of calls of `admit`.
        looked: Cell<u32>,
        drain: watch::Sender<bool>,
        draining: watch::Receiver<bool>,
        bodies: RequestBodies,
    }

    impl Run {
        fn new(parts: &[&[u8]], then: Then) -> Self {
            let (drain, draining) = watch::channel(false);
            Self {
                parts: Rc::new(RefCell::new(parts.iter().map(|part| part.to_vec()).collect())),
                received: Rc::default(),
                then,
                waits: true,
                admission: Cell::new(1),
                looked: Cell::new(0),
                drain,
                draining,
                bodies: RequestBodies::default(),
            }
        }

        fn serve(
            &self,
            answer: impl AsyncFn(&Parts, bool, Bytes) -> Response<Body>,
        ) -> io::Result<End> {
            let client = Client {
                parts: Rc::clone(&self.parts),
                received: Rc::clone(&self.received),
                waits: self.waits,
                waited: false,
                then: self.then,
            };
            let now = Instant::now();
            let socket = TrackedSocket::new(client, Arc::new(IdleState::new(now, now)));
            let mut socket = WriteTimeout::new(socket, Duration::from_secs(3600));
            let path = FastPath::new(&mut socket, self.draining.clone());
            let admit = |_: &Parts| {
                self.looked.set(self.looked.get() + 1);
                Some(self.admission.get()).filter(|admission| *admission > 0)
            };
            let holds = |admission: &u32| *admission == self.admission.get();
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let charge = || self.bodies.charge(&Principal::Anonymous);
            runtime.block_on(path.serve(admit, holds, charge, answer))
        }

        /// Data read for hyper, and data that the client has not sent yet.
        fn rest(&self, end: End) -> String {
            let End::Other(read) = end else { panic!("the connection is closed") };
            let unsent: Vec<u8> = self.parts.borrow().iter().flatten().copied().collect();
            String::from_utf8([&read[..], &unsent].concat()).unwrap()
        }

        /// Received data without the `Date` lines.
        fn received(&self) -> String {
            let text = String::from_utf8(self.received.borrow().clone()).unwrap();
            let lines = text.split_inclusive("\r\n").filter(|line| !line.starts_with("date: "));
            lines.collect()
        }
    }

    fn post(path: &str, body: &str) -> String {
        format!("POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    /// A response that repeats the request.
    async fn echo(head: &Parts, _: bool, body: Bytes) -> Response<Body> {
        let text = format!("{} {}", head.uri.path(), String::from_utf8_lossy(&body));
        Response::new(Body::from(Bytes::from(text)))
    }

    fn reply(body: &str, last: bool) -> String {
        let close = if last { "connection: close\r\n" } else { "" };
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {UNNAMED_TYPE}\r\ncontent-length: {}\r\n{close}\r\n{body}",
            body.len()
        )
    }

    #[test]
    fn requests_are_parsed_identically_for_every_split() {
        let foreign = "GET /ui/ HTTP/1.1\r\nhost: h\r\n\r\n";
        let sent = [&*post("/mcp", "{\"one\"}"), &*post("/mcp/all", "two\r\n\r\nPOST /"), foreign]
            .concat();
        let expected =
            [reply("/mcp {\"one\"}", false), reply("/mcp/all two\r\n\r\nPOST /", false)].concat();
        for at in 0..=sent.len() {
            for waits in [false, true] {
                let (first, second) = sent.as_bytes().split_at(at);
                let parts: Vec<&[u8]> =
                    [first, second].into_iter().filter(|part| !part.is_empty()).collect();
                let run = Run { waits, ..Run::new(&parts, Then::Stays) };
                let end = run.serve(echo).unwrap();
                assert_eq!(
                    (run.rest(end).as_str(), run.received()),
                    (foreign, expected.clone()),
                    "at {at}"
                );
            }
        }
        let bytes: Vec<&[u8]> = sent.as_bytes().chunks(1).collect();
        let run = Run::new(&bytes, Then::Stays);
        let end = run.serve(echo).unwrap();
        assert_eq!((run.rest(end).as_str(), run.received()), (foreign, expected), "byte by byte");
    }

    #[test]
    fn repeated_head_is_not_checked_again_while_its_admission_holds() {
        let request = post("/mcp", "x");
        let run = Run::new(&[request.as_bytes(); 4], Then::Leaves);
        let seen = RefCell::new(Vec::new());
        let answer = async |head: &Parts, repeated: bool, body: Bytes| {
            seen.borrow_mut().push(repeated);
            if seen.borrow().len() == 2 {
                run.admission.set(2);
            }
            echo(head, repeated, body).await
        };
        assert!(matches!(run.serve(answer), Ok(End::Closed)));
        assert_eq!(*seen.borrow(), [false, true, false, true]);
        assert_eq!(run.looked.get(), 2);
    }

    #[test]
    fn head_that_is_no_longer_admitted_goes_to_hyper() {
        let request = post("/mcp", "x");
        let run = Run::new(&[request.as_bytes(); 2], Then::Stays);
        let answer = async |head: &Parts, repeated: bool, body: Bytes| {
            run.admission.set(0);
            echo(head, repeated, body).await
        };
        let end = run.serve(answer).unwrap();
        assert_eq!((run.rest(end), run.received()), (request, reply("/mcp x", false)));
    }

    #[test]
    fn other_requests_go_to_hyper_unchanged() {
        let long = format!("POST /mcp HTTP/1.1\r\nx: {}", "y".repeat(MAX_HEAD_BYTES + READ_BYTES));
        for request in [
            "DELETE /mcp HTTP/1.1\r\nhost: h\r\n\r\n",
            "POST /elsewhere HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
            "POST /mcp HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            &format!("POST /mcp HTTP/1.1\r\ncontent-length: {}\r\n\r\n", MAX_BODY_BYTES + 1),
            &long,
            "\r\n",
        ] {
            let run = Run::new(&[request.as_bytes()], Then::Stays);
            let end = run.serve(async |_, _, _| panic!("{request}")).unwrap();
            assert_eq!((run.rest(end).as_str(), run.received()), (request, String::new()));
        }
    }

    #[test]
    fn incomplete_request_is_not_answered() {
        let request = post("/mcp", "whole");
        for end in 0..request.len() {
            let run = Run::new(&[&request.as_bytes()[..end]], Then::Leaves);
            let ended = run.serve(async |_, _, _| panic!("{end} bytes are not a complete request"));
            assert!(matches!(ended, Ok(End::Closed)), "{end}: {ended:?}");
            assert_eq!(run.received(), "");
        }
    }

    #[test]
    fn call_is_dropped_when_its_client_disconnects() {
        struct Dropped<'a>(&'a Cell<bool>);
        impl Drop for Dropped<'_> {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let dropped = Cell::new(false);
        let run = Run::new(&[post("/mcp", "x").as_bytes()], Then::Leaves);
        let ended = run.serve(async |_, _, _| {
            let _call = Dropped(&dropped);
            std::future::pending().await
        });
        assert!(matches!(ended, Ok(End::Closed)) && dropped.get());
        assert_eq!(run.received(), "");
    }

    #[test]
    fn read_ahead_is_bounded() {
        let request = post("/mcp", "x");
        let ahead = vec![b'P'; 1024];
        let mut parts = vec![request.as_bytes()];
        parts.extend(std::iter::repeat_n(&ahead[..], 200));
        let run = Run { waits: false, ..Run::new(&parts, Then::Stays) };
        let unsent = Cell::new(0);
        let answer = async |head: &Parts, repeated: bool, body: Bytes| {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            unsent.set(run.parts.borrow().iter().map(Vec::len).sum());
            echo(head, repeated, body).await
        };
        let end = run.serve(answer).unwrap();
        let read = 200 * 1024 - unsent.get();
        assert!((READ_BYTES..2 * READ_BYTES).contains(&read), "{read}");
        assert_eq!(run.rest(end).len(), 200 * 1024, "no data is lost");
    }

    #[test]
    fn response_of_unknown_length_is_chunked_and_a_failed_one_has_no_last_chunk() {
        let whole = |pieces: Vec<Result<Bytes, Aborted>>| {
            let run = Run::new(&[post("/mcp", "x").as_bytes()], Then::Leaves);
            let pieces = RefCell::new(Some(pieces));
            let ended = run.serve(async |_, _, _| {
                let pieces = pieces.take().unwrap_or_default();
                Response::new(Body::Stream(Box::pin(stream::iter(pieces))))
            });
            let received = run.received();
            let (_, body) = received.split_once("transfer-encoding: chunked\r\n\r\n").unwrap();
            (ended.is_ok(), body.to_owned())
        };
        let [a, b] = ["hello", "0123456789abcdef"].map(|text| Ok(Bytes::from(text)));
        let sent = "5\r\nhello\r\n10\r\n0123456789abcdef\r\n";
        assert_eq!(
            whole(vec![a.clone(), Ok(Bytes::new()), b.clone()]),
            (true, format!("{sent}0\r\n\r\n"))
        );
        assert_eq!(whole(vec![a, b, Err(Aborted("lost".into()))]), (false, sent.to_owned()));
    }

    #[test]
    fn shutdown_closes_idle_connections_and_answers_requests_that_have_started() {
        let idle = Run::new(&[], Then::Stays);
        idle.drain.send_replace(true);
        assert!(matches!(idle.serve(async |_, _, _| panic!()), Ok(End::Closed)));
        let run = Run::new(&[post("/mcp", "x").as_bytes()], Then::Stays);
        let answer = async |head: &Parts, repeated: bool, body: Bytes| {
            run.drain.send_replace(true);
            echo(head, repeated, body).await
        };
        assert!(matches!(run.serve(answer), Ok(End::Closed)));
        assert_eq!(run.received(), reply("/mcp x", true));
    }

    /// A response with the length of the body.
    async fn measure(_: &Parts, _: bool, body: Bytes) -> Response<Body> {
        Response::new(Body::from(Bytes::from(body.len().to_string())))
    }

    #[test]
    fn large_body_is_rejected_if_the_memory_budget_is_full_and_a_small_one_is_not() {
        let (small, large) = ("x".repeat(SMALL_BODY_BYTES), "x".repeat(SMALL_BODY_BYTES + 1));
        let sent = [post("/mcp", &small), post("/mcp", &large)].concat();
        let parts: Vec<&[u8]> = sent.as_bytes().chunks(READ_BYTES).collect();
        let run = Run::new(&parts, Then::Leaves);
        assert!(matches!(run.serve(measure), Ok(End::Closed)));
        let (first, second) = (SMALL_BODY_BYTES.to_string(), (SMALL_BODY_BYTES + 1).to_string());
        assert_eq!(run.received(), [reply(&first, false), reply(&second, false)].concat());
        let run = Run::new(&parts, Then::Stays);
        let held = run.bodies.fill();
        assert!(matches!(run.serve(measure), Ok(End::Closed)));
        let received = run.received();
        let refused = received.strip_prefix(&reply(&first, false)).unwrap();
        assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
        assert!(
            refused.contains("connection: close") && refused.contains("exceeds the memory budget"),
            "{refused}"
        );
        assert!(run.parts.borrow().is_empty(), "all of it was read");
        drop(held);
    }
}
