//! A client's connection that speaks HTTP/2 (RFC 9113), which TLS has agreed on: its bounds and its end.
//!
//! What a request leads to is `route`'s, as of HTTP/1.1. Requests of one connection run beside each other, so that each
//! has a [`ClientConnection`] of its own: nothing that one of them has proven counts for another.
//!
//! ```text
//! streams ── a task each, of the connection's own set ── dropped with the connection
//! every few seconds: idle for too long ▶ told to go away ▶ closed;  a reply not taken for too long ▶ its stream reset
//! ```
//!
//! What holds which attack, beside the bounds that are named here: frames that ask for an answer (PING, SETTINGS) are not
//! read while the answer to the one before waits, so that [`CLIENT_STALL_LIMIT`] ends who takes nothing at all. Heads in more
//! CONTINUATION frames than [`MAX_HEAD_BYTES`] needs, and many DATA frames with little in them, are h2's to refuse.

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
use super::connection::{CLIENT_STALL_LIMIT, Met};
use super::route::route;
use super::tracked_socket::{Exchange, Exchanges, TrackedSocket};
use super::unread_body::{self, BodyComes};
use crate::downstream::body::Body;
use crate::downstream::http::{self as mcp, ClientConnection};
use crate::io::clock;
use crate::io::write_timeout::WriteTimeout;
use crate::proxy::Worker;
use crate::proxy::reply::Aborted;
use crate::proxy::shutdown::Ending;
use crate::wire::splice::Splice;

/// Requests of one connection at a time; more wait at the client.
const MAX_STREAMS: u32 = 64;
/// Bytes of one request that may be on their way.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same of all requests of a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Most bytes of a request's head.
const MAX_HEAD_BYTES: u32 = 64 * 1024;
/// Bytes of one reply that wait for the client to take them; one piece may lie above that.
const MAX_SEND_BYTES: usize = 256 * 1024;
/// Most bytes of a piece. A client that takes one in [`CLIENT_STALL_LIMIT`] is not given up, however long its reply is.
const MAX_PIECE_BYTES: usize = 64 * 1024;
/// Requests that the client has given up before they were looked at; with more the connection is closed.
const MAX_PENDING_RESETS: usize = 32;
/// Requests that were given up for the client's mistakes; with more the connection is closed.
const MAX_ERROR_RESETS: usize = 256;
/// How long a connection may be what it is.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// How often a silent client is asked whether it is there, and how long it has to answer.
    ping: (Duration, Duration),
    /// How long a connection may be without a request.
    idle: Duration,
    /// How often that, and what waits for the client, is looked at.
    look_every: Duration,
    /// Time for the farewell of an idle connection.
    farewell: Duration,
}

const PATIENCE: Patience = Patience {
    ping: (Duration::from_secs(30), Duration::from_secs(20)),
    idle: Duration::from_secs(75),
    look_every: Duration::from_secs(5),
    farewell: Duration::from_secs(5),
};

/// Serves a connection until it ends, or the server does.
///
/// # Errors
///
/// What broke it; its client has gone, or is given up.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    shared: Arc<AppState>,
    worker: Rc<Worker>,
    met: Met,
    socket: TrackedSocket<S>,
    drain: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    let exchanges = socket.exchanges();
    exchanges.multiplex();
    let socket = WriteTimeout::new(socket, CLIENT_STALL_LIMIT);
    // The only owner: each stream's task holds the executor.
    let tasks = Rc::<RefCell<JoinSet<()>>>::default();
    let (waiting, requests) = (Waiting::default(), exchanges.clone());
    let streams = Streams {
        tasks: Rc::downgrade(&tasks),
        ending: worker.ending.clone(),
        waiting: waiting.clone(),
    };
    let registered = waiting.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        name_host(&mut request);
        let (shared, worker) = (Arc::clone(&shared), Rc::clone(&worker));
        let remembered = met.remember();
        remembered.used.set(true);
        let (exchange, handed) = (requests.begin(), registered.register());
        async move {
            let (head, body) = request.into_parts();
            let (lent, unread) = unread_body::lend(body, BodyComes::AtOnce);
            let request = Request::from_parts(head, lent);
            let mut answer = route(&shared, &worker, &remembered, request).await;
            unread.discard().await;
            mcp::name_type(&mut answer);
            Ok::<_, Infallible>(answer.map(|body| StreamBody::new(body, handed, exchange)))
        }
    });
    attend((socket, PATIENCE), service, streams, &exchanges, drain).await
}

/// Keeps a connection to its bounds.
async fn attend<S, V>(
    (socket, patience): (S, Patience),
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
            .keep_alive_interval(patience.ping.0)
            .keep_alive_timeout(patience.ping.1)
            .serve_connection(TokioIo::new(socket), service)
    );
    let mut looks = tokio::time::interval(patience.look_every);
    let (mut idle_since, mut draining, mut leaving) = (clock::now(), false, None::<Instant>);
    loop {
        tokio::select! {
            ended = served.as_mut() => return Ok(ended?),
            _ = drain.wait_for(|draining| *draining), if !draining => {
                if waiting.none_came() {
                    // There is nothing to finish, and who says nothing is not waited for.
                    return Ok(());
                }
                draining = true;
                served.as_mut().graceful_shutdown();
            }
            _ = looks.tick() => {
                let now = clock::now();
                waiting.give_up(now, CLIENT_STALL_LIMIT);
                if !exchanges.are_none() {
                    idle_since = now;
                } else if leaving.is_some_and(|since| {
                    // A request may have come before the client knew.
                    now.duration_since(since.max(idle_since)) >= patience.farewell
                }) {
                    return Ok(());
                } else if leaving.is_none() && now.duration_since(idle_since) >= patience.idle {
                    leaving = Some(now);
                    served.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// The authority is what HTTP/1.1 has as `Host`, and where both stand it alone counts (RFC 9113 §8.3.1).
fn name_host<B>(request: &mut Request<B>) {
    let authority = request.uri().authority().map(|it| HeaderValue::from_str(it.as_str()));
    if let Some(Ok(host)) = authority {
        request.headers_mut().insert(HOST, host);
    }
}

/// Runs the requests of one connection as tasks that end with it.
#[derive(Clone)]
struct Streams {
    /// At most [`MAX_STREAMS`], and those that have ended since the last one came. Weak, since every task holds this.
    tasks: Weak<RefCell<JoinSet<()>>>,
    ending: Ending,
    waiting: Waiting,
}

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let Some(tasks) = self.tasks.upgrade() else { return };
        let mut tasks = tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        // A request's task is started as soon as the request was registered, within one look at the connection.
        let handed = self.waiting.newest.take();
        tasks.spawn_local(self.ending.clone().attend(async move {
            let Some(handed) = handed else { return stream.await };
            tokio::select! {
                () = stream => {}
                // Dropped, its stream is reset, and no other.
                () = handed.given_up.notified() => {}
            }
        }));
    }
}

/// The replies of a connection that were begun: since when each waits for the client.
#[derive(Clone, Default)]
struct Waiting {
    all: Rc<RefCell<Vec<Rc<HandedReply>>>>,
    /// The one that was registered last, until its task starts.
    newest: Rc<Cell<Option<Rc<HandedReply>>>>,
}

/// A reply on its way to the client.
#[derive(Default)]
struct HandedReply {
    /// When the last piece was handed over that the client has not asked to follow; `None` while it is us who are waited
    /// for.
    since: Cell<Option<Instant>>,
    /// Told when it has waited for too long.
    given_up: Notify,
}

impl Waiting {
    fn register(&self) -> Rc<HandedReply> {
        let mut all = self.all.borrow_mut();
        all.retain(|handed| Rc::strong_count(handed) > 1);
        let handed = Rc::<HandedReply>::default();
        all.push(Rc::clone(&handed));
        self.newest.set(Some(Rc::clone(&handed)));
        handed
    }

    /// No request has come so far.
    fn none_came(&self) -> bool {
        self.all.borrow().is_empty()
    }

    /// Gives up the replies that wait for `limit`: their streams are reset.
    fn give_up(&self, now: Instant, limit: Duration) {
        let all = self.all.borrow();
        for handed in all.iter().filter(|handed| Rc::strong_count(handed) > 1) {
            if handed.since.get().is_some_and(|since| now.duration_since(since) >= limit) {
                tracing::debug!("a client does not take a reply: its stream is reset");
                handed.given_up.notify_one();
            }
        }
    }
}

/// A reply's body, in pieces of [`MAX_PIECE_BYTES`] at most.
struct StreamBody {
    body: Body,
    /// Of what the body has given, what is not handed over yet.
    rest: Splice,
    handed: Rc<HandedReply>,
    _exchange: Exchange,
}

impl StreamBody {
    fn new(body: Body, handed: Rc<HandedReply>, exchange: Exchange) -> Self {
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
        Poll::Ready(Some(Ok(Frame::data(this.rest.split_to(MAX_PIECE_BYTES)))))
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

impl Met {
    /// What is known of one request's client.
    fn remember(&self) -> Rc<ClientConnection> {
        let remembered = ClientConnection::certified(self.source, self.certificate.clone());
        remembered.came_to.replace(self.reached.clone());
        Rc::new(remembered)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;

    #[test]
    fn a_long_reply_is_handed_over_in_pieces_and_ends_with_the_last() {
        let bytes = 2 * MAX_PIECE_BYTES + 1;
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
            assert_eq!(piece, left.min(MAX_PIECE_BYTES));
            assert!(body.handed.since.get().is_some() && !exchanges.are_none());
            left -= piece;
        }
        assert!(body.is_end_stream());
    }

    #[tokio::test]
    async fn what_a_connection_still_does_ends_with_it() {
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
    async fn a_stream_that_is_given_up_is_reset_and_its_connection_serves_on() {
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
                client.initial_stream_window_size(u32::try_from(MAX_PIECE_BYTES).unwrap());
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
                waiting.give_up(clock::now() + LIMIT, LIMIT);
                assert!(stalled.collect().await.is_err(), "it ends before its end");
                let whole = ask().await.collect().await.unwrap().to_bytes();
                assert_eq!(whole.len(), BYTES, "the connection goes on");
            })
            .await;
    }

    /// Serves a client whose requests are never answered until its connection is over.
    async fn served(patience: Patience, client: impl AsyncFnOnce(DuplexStream)) {
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
            let attended = attend((ours, patience), service, streams, &exchanges, draining);
            let _ = tokio::join!(attended, client(theirs));
        };
        let local = tokio::task::LocalSet::new();
        let over = tokio::time::timeout(LONG, local.run_until(serving)).await;
        assert!(over.is_ok(), "the connection is not over");
    }

    /// Begins a connection, with a request if it `asks`, and answers those PINGs, until it is over.
    async fn speak(mut stream: DuplexStream, asks: bool, answers: impl Fn(&[u8]) -> bool) {
        const PING: u8 = 6;
        // GET, https, / and an authority (RFC 7541, appendix A), with the flags END_STREAM and END_HEADERS.
        const ASKED: &[u8] = b"\0\0\x06\x01\x05\0\0\0\x01\x82\x87\x84\x41\x01h";
        let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(&[&begin[..], if asks { ASKED } else { b"" }].concat()).await.unwrap();
        let mut head = [0; 9];
        while stream.read_exact(&mut head).await.is_ok() {
            let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
            stream.read_exact(&mut payload).await.unwrap();
            if head[3] == PING && head[4] == 0 && answers(&payload) {
                head[4] = 1;
                // The other side may have gone.
                let _ = stream.write_all(&[&head[..], &payload].concat()).await;
            }
        }
    }

    const SHORT: Duration = Duration::from_millis(20);
    /// So long that whoever waits for it has failed, and what nobody waits for.
    const LONG: Duration = Duration::from_secs(60);
    const EVER: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn an_idle_connection_is_ended_and_not_waited_for_if_it_does_not_heed_that() {
        /// What h2 asks before it says which request was the last.
        const SHUTDOWN_PING: [u8; 8] = [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];
        let patience =
            Patience { ping: (EVER, EVER), idle: SHORT, look_every: SHORT, farewell: EVER };
        served(patience, async |stream| speak(stream, false, |_| true).await).await;
        let deaf = |ping: &[u8]| ping != SHUTDOWN_PING;
        let patience = Patience { farewell: SHORT, ..patience };
        served(patience, async |stream| speak(stream, false, deaf).await).await;
    }

    #[tokio::test]
    async fn a_connection_with_a_request_lasts_until_its_client_answers_no_ping() {
        const ANSWERED: u32 = 50;
        let patience = Patience {
            ping: (SHORT, 100 * SHORT),
            idle: 25 * SHORT,
            look_every: SHORT,
            farewell: SHORT,
        };
        let pings = Cell::new(0);
        let answers = |_: &[u8]| {
            pings.set(pings.get() + 1);
            pings.get() <= ANSWERED
        };
        served(patience, async |stream| speak(stream, true, answers).await).await;
        assert_eq!(pings.get(), ANSWERED + 1, "it was not idle meanwhile");
    }

    #[test]
    fn the_authority_counts_and_not_a_host_beside_it() {
        let mut request = Request::get("https://evil.example/").header(HOST, "localhost");
        request = request.header(HOST, "127.0.0.1");
        let mut request = request.body(()).unwrap();
        name_host(&mut request);
        let hosts: Vec<_> = request.headers().get_all(HOST).iter().collect();
        assert_eq!(hosts, ["evil.example"]);
    }

    fn streams(tasks: &Rc<RefCell<JoinSet<()>>>) -> Streams {
        let waiting = Waiting::default();
        Streams { tasks: Rc::downgrade(tasks), ending: Ending::default(), waiting }
    }

    #[tokio::test]
    async fn a_reply_that_is_not_taken_is_given_up_and_the_others_go_on() {
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
                streams.waiting.give_up(now + LIMIT, LIMIT);
                assert_eq!(begun[1].recv().await, None, "it waits for five seconds");
                tokio::task::yield_now().await;
                for others in [0, 2] {
                    assert!(begun[others].try_recv().is_err_and(|it| it == TryRecvError::Empty));
                }
                streams.waiting.register();
                assert_eq!(streams.waiting.all.borrow().len(), 3, "what has ended is forgotten");
            })
            .await;
    }
}
