//! HTTP/2 connection of a client (RFC 9113), negotiated over TLS: its limits and its shutdown. Requests are dispatched by `route`.
//!
//! Requests of a connection run concurrently, so each has its own `ClientConnection`: a credential proven by one request does not apply to
//! another.
//!
//! ```text
//! streams ── one task each, in the connection's own set ── dropped with the connection
//! every few seconds: idle for too long ▶ GOAWAY ▶ closed;  a response not read for too long ▶ its stream reset
//! ```
//!
//! Attacks beyond the limits named here: frames that require an answer (PING, SETTINGS) are not read while the previous answer is unsent,
//! so [`CLIENT_STALL_LIMIT`] disconnects a client that does not read. h2 rejects heads spread over too many CONTINUATION frames, and many
//! nearly empty DATA frames.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http::header::{HOST, HeaderValue};
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::app_state::AppState;
use super::route::route;
use super::tracked_socket::{
    AcceptedClient, CLIENT_STALL_LIMIT, Exchange, Exchanges, TrackedSocket,
};
use super::unread_body::{self, BodyTiming};
use mcpproxy_downstream::body::Body;
use mcpproxy_downstream::http as mcp;
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_gateway::proxy::reply::Aborted;
use mcpproxy_gateway::proxy::shutdown::Ending;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::clock;
use mcpproxy_runtime::io::deadline::WriteTimeout;

/// Maximum number of concurrent requests of a connection.
const MAX_STREAMS: u32 = 64;
/// Flow-control window of a request in bytes.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Flow-control window of a connection in bytes.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Maximum size of a request's head in bytes.
const MAX_HEAD_BYTES: u32 = 64 * 1024;
/// Maximum buffered size of a response in bytes; one chunk may exceed it.
const MAX_SEND_BYTES: usize = 256 * 1024;
/// Maximum size of a chunk in bytes. A client that reads at least one chunk per [`CLIENT_STALL_LIMIT`] is not disconnected.
const MAX_CHUNK_BYTES: usize = 64 * 1024;
/// Maximum number of requests reset by the client before they were accepted; more close the connection.
const MAX_PENDING_RESETS: usize = 32;
/// Maximum number of requests reset for protocol errors of the client; more close the connection.
const MAX_ERROR_RESETS: usize = 256;
/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    /// Interval of pings to a silent client, and the timeout of their answer.
    ping: (Duration, Duration),
    /// Maximum time without a request.
    idle: Duration,
    /// Interval of checks for idleness and unread responses.
    check_interval: Duration,
    /// Time between GOAWAY and the end of an idle connection.
    goaway: Duration,
}

const TIMEOUTS: Timeouts = Timeouts {
    ping: (Duration::from_secs(30), Duration::from_secs(20)),
    idle: Duration::from_secs(75),
    check_interval: Duration::from_secs(5),
    goaway: Duration::from_secs(5),
};

/// Serves a connection until it closes or the server shuts down.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    shared: Arc<AppState>,
    worker: Rc<Worker>,
    client: AcceptedClient,
    socket: TrackedSocket<S>,
    drain: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    let exchanges = socket.exchanges();
    exchanges.multiplex();
    let socket = WriteTimeout::new(socket, CLIENT_STALL_LIMIT);
    // Only this variable owns the set of tasks. The executor refers to it weakly, because every task of a stream holds
    // the executor.
    let tasks = Rc::<RefCell<JoinSet<()>>>::default();
    let (waiting, requests) = (Waiting::default(), exchanges.clone());
    let streams = Streams {
        tasks: Rc::downgrade(&tasks),
        ending: worker.ending.clone(),
        waiting: waiting.clone(),
    };
    let registered = waiting.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        set_host(&mut request);
        let (shared, worker) = (Arc::clone(&shared), Rc::clone(&worker));
        let remembered = Rc::new(client.connection());
        remembered.used.set(true);
        let (exchange, handed) = (requests.begin(), registered.register());
        async move {
            let (head, body) = request.into_parts();
            let (lent, unread) = unread_body::lend(body, BodyTiming::AtOnce);
            let request = Request::from_parts(head, lent);
            let mut answer = route(&shared, &worker, &remembered, request).await;
            unread.discard().await;
            mcp::name_type(&mut answer);
            Ok::<_, Infallible>(answer.map(|body| StreamBody::new(body, handed, exchange)))
        }
    });
    drive((socket, TIMEOUTS), service, streams, &exchanges, drain).await
}

/// Drives a connection and enforces its timeouts.
async fn drive<S, V>(
    (socket, timeouts): (S, Timeouts),
    service: V,
    streams: Streams,
    exchanges: &Exchanges,
    mut drain: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    V: Service<Request<Incoming>, Response = Response<StreamBody>, Error = Infallible> + 'static,
    V::Future: 'static,
{
    let waiting = streams.waiting.clone();
    let mut served = pin!(
        http2::Builder::new(streams)
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEAD_BYTES)
            .max_send_buf_size(MAX_SEND_BYTES)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_ERROR_RESETS)
            .keep_alive_interval(timeouts.ping.0)
            .keep_alive_timeout(timeouts.ping.1)
            .serve_connection(TokioIo::new(socket), service)
    );
    let mut looks = tokio::time::interval(timeouts.check_interval);
    let (mut idle_since, mut draining, mut leaving) = (clock::now(), false, None::<Instant>);
    loop {
        tokio::select! {
            ended = served.as_mut() => return Ok(ended?),
            _ = drain.wait_for(|draining| *draining), if !draining => {
                if waiting.is_unused() {
                    // No request has arrived, so there is nothing to finish.
                    return Ok(());
                }
                draining = true;
                served.as_mut().graceful_shutdown();
            }
            _ = looks.tick() => {
                let now = clock::now();
                waiting.reset_stalled(now, CLIENT_STALL_LIMIT);
                if !exchanges.none_open() {
                    idle_since = now;
                } else if leaving.is_some_and(|since| {
                    // A request may arrive before the client has received GOAWAY.
                    now.duration_since(since.max(idle_since)) >= timeouts.goaway
                }) {
                    return Ok(());
                } else if leaving.is_none() && now.duration_since(idle_since) >= timeouts.idle {
                    leaving = Some(now);
                    served.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Sets `Host` to the authority, which takes precedence over a `Host` header (RFC 9113 §8.3.1).
fn set_host<B>(request: &mut Request<B>) {
    let authority = request.uri().authority().map(|it| HeaderValue::from_str(it.as_str()));
    if let Some(Ok(host)) = authority {
        request.headers_mut().insert(HOST, host);
    }
}

/// Executor that runs the requests of a connection as tasks that end with it.
#[derive(Clone)]
struct Streams {
    /// At most [`MAX_STREAMS`] running tasks, and the tasks that have ended since the last one started. Weak, because every task holds this
    /// value.
    tasks: Weak<RefCell<JoinSet<()>>>,
    ending: Ending,
    waiting: Waiting,
}

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let Some(tasks) = self.tasks.upgrade() else { return };
        let mut tasks = tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        // A request's task starts in the same poll in which the request was registered.
        let handed = self.waiting.newest.take();
        tasks.spawn_local(self.ending.clone().attend(async move {
            let Some(handed) = handed else { return stream.await };
            tokio::select! {
                () = stream => {}
                // Dropping the future resets only its stream.
                () = handed.stalled.notified() => {}
            }
        }));
    }
}

/// The started responses of a connection, and the time since which each waits for the client.
#[derive(Clone, Default)]
struct Waiting {
    all: Rc<RefCell<Vec<Rc<PendingResponse>>>>,
    /// The most recently registered response, until its task starts.
    newest: Rc<Cell<Option<Rc<PendingResponse>>>>,
}

/// A response being sent.
#[derive(Default)]
struct PendingResponse {
    /// Time at which the last chunk was handed to h2, until the next one is requested; `None` while the client waits for the server.
    since: Cell<Option<Instant>>,
    /// Notified when the client has not read for too long.
    stalled: Notify,
}

impl Waiting {
    fn register(&self) -> Rc<PendingResponse> {
        let mut all = self.all.borrow_mut();
        all.retain(|handed| Rc::strong_count(handed) > 1);
        let handed = Rc::<PendingResponse>::default();
        all.push(Rc::clone(&handed));
        self.newest.set(Some(Rc::clone(&handed)));
        handed
    }

    /// Whether no request has arrived yet.
    fn is_unused(&self) -> bool {
        self.all.borrow().is_empty()
    }

    /// Resets the streams of responses that have waited for `limit`.
    fn reset_stalled(&self, now: Instant, limit: Duration) {
        let all = self.all.borrow();
        for handed in all.iter().filter(|handed| Rc::strong_count(handed) > 1) {
            if handed.since.get().is_some_and(|since| now.duration_since(since) >= limit) {
                tracing::debug!("client does not read a response: resetting its stream");
                handed.stalled.notify_one();
            }
        }
    }
}

/// A response body in chunks of at most [`MAX_CHUNK_BYTES`].
struct StreamBody {
    body: Body,
    /// Data of the body that has not been handed to h2 yet.
    rest: Splice,
    handed: Rc<PendingResponse>,
    _exchange: Exchange,
}

impl StreamBody {
    fn new(body: Body, handed: Rc<PendingResponse>, exchange: Exchange) -> Self {
        Self { body, rest: Splice::new(), handed, _exchange: exchange }
    }
}

impl HttpBody for StreamBody {
    type Data = Splice;
    type Error = Aborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Splice>, Aborted>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            let frame = Pin::new(&mut this.body).poll_frame(cx);
            this.handed.since.set(frame.is_ready().then(clock::now));
            match ready!(frame).transpose()?.map(Frame::into_data) {
                None => return Poll::Ready(None),
                Some(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
                Some(Ok(data)) => this.rest = data,
            }
        } else {
            this.handed.since.set(Some(clock::now()));
        }
        Poll::Ready(Some(Ok(Frame::data(this.rest.split_to(MAX_CHUNK_BYTES)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let exact = self.body.size_hint().exact();
        exact.map_or_else(SizeHint::default, |bytes| {
            SizeHint::with_exact(bytes + self.rest.len() as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;

    #[test]
    fn long_response_is_chunked_and_ends_with_the_last_chunk() {
        let bytes = 2 * MAX_CHUNK_BYTES + 1;
        let (waiting, exchanges) = (Waiting::default(), Exchanges::default());
        let whole = Body::from(bytes::Bytes::from(vec![b'x'; bytes]));
        let mut body = StreamBody::new(whole, waiting.register(), exchanges.begin());
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        let mut left = bytes;
        while left > 0 {
            assert_eq!(
                (body.size_hint().exact(), body.is_end_stream()),
                (Some(left as u64), false)
            );
            let Poll::Ready(Some(Ok(piece))) = Pin::new(&mut body).poll_frame(cx) else { panic!() };
            let piece = piece.into_data().unwrap().len();
            assert_eq!(piece, left.min(MAX_CHUNK_BYTES));
            assert!(body.handed.since.get().is_some() && !exchanges.none_open());
            left -= piece;
        }
        assert!(body.is_end_stream());
    }

    #[tokio::test]
    async fn stream_tasks_end_with_the_connection() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let tasks = Rc::<RefCell<JoinSet<()>>>::default();
                let streams = streams(&tasks);
                let (held, (alive, mut ends)) =
                    (streams.clone(), tokio::sync::mpsc::channel::<()>(1));
                let stream = async move {
                    let _held = (held, alive);
                    std::future::pending().await
                };
                hyper::rt::Executor::execute(&streams, stream);
                tokio::task::yield_now().await;
                drop((streams, tasks));
                assert_eq!(ends.recv().await, None, "it was dropped");
            })
            .await;
    }

    #[tokio::test]
    async fn stalled_stream_is_reset_and_the_connection_keeps_serving() {
        const BYTES: usize = 1 << 20;
        const LIMIT: Duration = Duration::from_secs(60);
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let (ours, theirs) = tokio::io::duplex(BYTES);
                let tasks = Rc::<RefCell<JoinSet<()>>>::default();
                let (streams, exchanges) = (streams(&tasks), Exchanges::default());
                let (waiting, registered) = (streams.waiting.clone(), streams.waiting.clone());
                let service = service_fn(move |_: Request<Incoming>| {
                    let (handed, exchange) = (registered.register(), exchanges.begin());
                    let whole = Body::from(bytes::Bytes::from(vec![b'x'; BYTES]));
                    let body = StreamBody::new(whole, handed, exchange);
                    async move { Ok::<_, Infallible>(http::Response::new(body)) }
                });
                let serving = http2::Builder::new(streams);
                tokio::task::spawn_local(serving.serve_connection(TokioIo::new(ours), service));
                let executor = hyper_util::rt::TokioExecutor::new();
                let mut client = hyper::client::conn::http2::Builder::new(executor);
                client.initial_stream_window_size(u32::try_from(MAX_CHUNK_BYTES).unwrap());
                let (mut client, connection) =
                    client.handshake(TokioIo::new(theirs)).await.unwrap();
                tokio::task::spawn_local(connection);
                let mut ask = async || {
                    let request = Request::get("http://localhost/").body(String::new()).unwrap();
                    client.send_request(request).await.unwrap().into_body()
                };
                let stalled = ask().await;
                let waits = || waiting.all.borrow().iter().any(|it| it.since.get().is_some());
                while !waits() {
                    tokio::task::yield_now().await;
                }
                waiting.reset_stalled(clock::now() + LIMIT, LIMIT);
                assert!(stalled.collect().await.is_err(), "the body is incomplete");
                let whole = ask().await.collect().await.unwrap().to_bytes();
                assert_eq!(whole.len(), BYTES, "the connection keeps serving");
            })
            .await;
    }

    /// Serves a client, without answering its requests, until its connection closes.
    async fn served(timeouts: Timeouts, client: impl AsyncFnOnce(DuplexStream)) {
        let serving = async {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let tasks = Rc::<RefCell<JoinSet<()>>>::default();
            let (streams, exchanges) = (streams(&tasks), Exchanges::default());
            let (waiting, begun) = (streams.waiting.clone(), exchanges.clone());
            let service = service_fn(move |_: Request<Incoming>| {
                let asked = (waiting.register(), begun.begin());
                async move {
                    let _asked = asked;
                    std::future::pending::<Result<Response<StreamBody>, Infallible>>().await
                }
            });
            let (_drain, draining) = watch::channel(false);
            let driven = drive((ours, timeouts), service, streams, &exchanges, draining);
            let _ = tokio::join!(driven, client(theirs));
        };
        let local = tokio::task::LocalSet::new();
        let closed = tokio::time::timeout(LONG, local.run_until(serving)).await;
        assert!(closed.is_ok(), "the connection did not close");
    }

    /// Opens a connection, with a request if `asks`, and answers the PINGs selected by `answers` until it closes.
    async fn speak(mut stream: DuplexStream, asks: bool, answers: impl Fn(&[u8]) -> bool) {
        const PING: u8 = 6;
        // Fields: GET, https, / and an authority (RFC 7541, appendix A), with the flags END_STREAM and END_HEADERS.
        const ASKED: &[u8] = b"\0\0\x06\x01\x05\0\0\0\x01\x82\x87\x84\x41\x01h";
        let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(&[&begin[..], if asks { ASKED } else { b"" }].concat()).await.unwrap();
        let mut head = [0; 9];
        while stream.read_exact(&mut head).await.is_ok() {
            let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
            stream.read_exact(&mut payload).await.unwrap();
            if head[3] == PING && head[4] == 0 && answers(&payload) {
                head[4] = 1;
                // The other side may have disconnected.
                let _ = stream.write_all(&[&head[..], &payload].concat()).await;
            }
        }
    }

    const SHORT: Duration = Duration::from_millis(20);
    /// A test fails after `LONG`; `EVER` is never reached.
    const LONG: Duration = Duration::from_secs(60);
    const EVER: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn idle_connection_is_closed_even_if_the_client_ignores_goaway() {
        /// Payload of the PING that h2 sends before the final GOAWAY.
        const SHUTDOWN_PING: [u8; 8] = [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];
        let timeouts =
            Timeouts { ping: (EVER, EVER), idle: SHORT, check_interval: SHORT, goaway: EVER };
        served(timeouts, async |stream| speak(stream, false, |_| true).await).await;
        let deaf = |ping: &[u8]| ping != SHUTDOWN_PING;
        let timeouts = Timeouts { goaway: SHORT, ..timeouts };
        served(timeouts, async |stream| speak(stream, false, deaf).await).await;
    }

    #[tokio::test]
    async fn connection_with_a_request_lasts_until_pings_are_unanswered() {
        const ANSWERED: u32 = 50;
        let timeouts = Timeouts {
            ping: (SHORT, 100 * SHORT),
            idle: 25 * SHORT,
            check_interval: SHORT,
            goaway: SHORT,
        };
        let pings = Cell::new(0);
        let answers = |_: &[u8]| {
            pings.set(pings.get() + 1);
            pings.get() <= ANSWERED
        };
        served(timeouts, async |stream| speak(stream, true, answers).await).await;
        assert_eq!(pings.get(), ANSWERED + 1, "it was not idle");
    }

    #[test]
    fn authority_takes_precedence_over_host() {
        let mut request = Request::get("https://evil.example/").header(HOST, "localhost");
        request = request.header(HOST, "127.0.0.1");
        let mut request = request.body(()).unwrap();
        set_host(&mut request);
        let hosts: Vec<_> = request.headers().get_all(HOST).iter().collect();
        assert_eq!(hosts, ["evil.example"]);
    }

    fn streams(tasks: &Rc<RefCell<JoinSet<()>>>) -> Streams {
        let waiting = Waiting::default();
        Streams { tasks: Rc::downgrade(tasks), ending: Ending::default(), waiting }
    }

    #[tokio::test]
    async fn only_stalled_responses_are_reset() {
        const LIMIT: Duration = Duration::from_secs(5);
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let tasks = Rc::<RefCell<JoinSet<()>>>::default();
                let streams = streams(&tasks);
                let now = Instant::now();
                let mut begun = Vec::new();
                for since in [None, Some(now), Some(now + Duration::from_secs(1))] {
                    let handed = streams.waiting.register();
                    handed.since.set(since);
                    let (alive, ends) = tokio::sync::mpsc::channel::<()>(1);
                    hyper::rt::Executor::execute(&streams, async move {
                        let _held = (handed, alive);
                        std::future::pending().await
                    });
                    begun.push(ends);
                }
                streams.waiting.reset_stalled(now + LIMIT, LIMIT);
                assert_eq!(begun[1].recv().await, None, "it stalled for the limit");
                tokio::task::yield_now().await;
                for others in [0, 2] {
                    assert!(begun[others].try_recv().is_err_and(|it| it == TryRecvError::Empty));
                }
                streams.waiting.register();
                assert_eq!(streams.waiting.all.borrow().len(), 3, "ended responses are removed");
            })
            .await;
    }
}
