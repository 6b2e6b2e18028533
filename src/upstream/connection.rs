//! One HTTP/1.1 connection to an upstream, driven by the task that uses it.
//!
//! A call writes its request and reads its answer in its own task: no task of the connection's, no
//! channel, no wake-up between them. What is read is handed on as slices of the buffer it was read
//! into. Who keeps idle connections, and what an answer means, is deliberately not known here.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::endpoint::{Endpoint, ServerPlace};
use super::error::{Cause, Human};
use super::peer::Peer;
use super::request::Slices;
use super::server_tls::{self, Alerted};
use crate::io::buffer_pool::BufferPool;
use crate::io::deadline::Deadline;
use crate::io::http1::{self, ResponseHead};

/// Most time for resolving, connecting and the TLS handshake together.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after which the system asks whether the peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// How much a read asks for at first; most answers come whole in one.
const MIN_READ_BYTES: usize = 16 * 1024;
/// How much it asks for at most, of an answer that keeps filling it.
const MAX_READ_BYTES: usize = 256 * 1024;

thread_local! {
    /// What answers are read into, those of one worker one after the other.
    static ANSWERS: BufferPool = BufferPool::default();
}

/// Plain, of either kind, or TLS.
pub(super) enum Stream {
    Plain(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A request, ready to be written: nothing of it is consumed by an attempt to send it.
#[derive(Clone, Debug)]
pub(super) struct HttpRequest {
    /// The head and the first slice of the body.
    start: Vec<u8>,
    /// What else the body has; large arguments are not copied.
    rest: [Bytes; 2],
}

impl HttpRequest {
    /// `head` is everything before the length of the body: request line and header lines.
    pub(super) fn new(head: [&[u8]; 2], (first, rest): Slices) -> Self {
        let length = first.len() + rest.iter().map(Bytes::len).sum::<usize>();
        let head_bytes: usize = head.iter().map(|part| part.len()).sum();
        let mut start = Vec::with_capacity(head_bytes + 32 + first.len());
        for part in head {
            start.extend_from_slice(part);
        }
        for part in ["content-length: ", itoa::Buffer::new().format(length), "\r\n\r\n"] {
            start.extend_from_slice(part.as_bytes());
        }
        start.extend_from_slice(&first);
        Self { start, rest }
    }

    /// `head` is the whole head but its last line end.
    pub(super) fn without_body(head: &[u8]) -> Self {
        Self { start: [head, b"\r\n"].concat(), rest: Default::default() }
    }

    /// What is left after so many bytes.
    fn after(&self, mut written: usize) -> [&[u8]; 3] {
        let [second, third] = &self.rest;
        [&self.start[..], second, third].map(|part| {
            let skipped = written.min(part.len());
            written -= skipped;
            part.get(skipped..).unwrap_or_default()
        })
    }
}

/// A connection, its buffer, and the timer of whoever uses it.
pub(super) struct Connection {
    stream: Stream,
    /// Read and not taken yet.
    input: BytesMut,
    /// How much to ask for at the next read: more while the peer fills it.
    read_bytes: usize,
    /// Of the answer being read.
    body: http1::FramedBody,
    /// Whether the connection lasts after that answer.
    keep_alive: bool,
    timer: Deadline,
    /// With whom it is.
    peer: Arc<Peer>,
}

/// How sending a request failed.
pub(super) enum SendError {
    /// Nothing was sent: the connection had been closed while idle.
    Stale,
    /// Part of it may have been sent.
    Failed(Cause),
}

impl Connection {
    /// Connects. One attempt over all addresses of the host, at most [`CONNECT_TIMEOUT`]. Boxed,
    /// since it is handed on many times in a call.
    pub(super) async fn open(endpoint: &Endpoint) -> Result<Box<Self>, Cause> {
        let failed = |reason: &str| Cause::Connect {
            host: format!("{endpoint:?}").into(),
            reason: endpoint.peer.quote(reason),
        };
        let deadline = tokio::time::Instant::now() + CONNECT_TIMEOUT;
        let late = |what: &str| failed(&format!("{what} within {}", Human(CONNECT_TIMEOUT)));
        let reached = tokio::time::timeout_at(deadline, reach(&endpoint.place))
            .await
            .map_err(|_| late("no connection"))?
            .map_err(|error| failed(&error.to_string()))?;
        let stream = match (reached, &endpoint.tls) {
            (Stream::Plain(tcp), Some((connector, name))) => {
                let shaken = connector.connect(name.clone(), tcp);
                let secure = tokio::time::timeout_at(deadline, shaken)
                    .await
                    .map_err(|_| late(server_tls::UNANSWERED))?
                    .map_err(|error| failed(&server_tls::explain(&error)))?;
                Stream::Tls(Box::new(secure))
            }
            (reached, None) | (reached @ (Stream::Unix(_) | Stream::Tls(_)), Some(_)) => reached,
        };
        Ok(Box::new(Self {
            stream,
            input: BytesMut::new(),
            read_bytes: MIN_READ_BYTES,
            body: http1::FramedBody::Ended,
            keep_alive: true,
            timer: Deadline::default(),
            peer: Arc::clone(&endpoint.peer),
        }))
    }

    /// Sends a request and waits until `deadline` for the head of its answer, which may come
    /// before the request was sent whole. `limit` is the time that this was, as it is told.
    pub(super) async fn send(
        &mut self,
        request: &HttpRequest,
        deadline: Instant,
        limit: Duration,
    ) -> Result<ResponseHead, SendError> {
        let mut written = 0;
        let mut sending = Sending::Going;
        poll_fn(|cx| self.poll_send(request, &mut written, &mut sending, deadline, limit, cx)).await
    }

    fn poll_send(
        &mut self,
        request: &HttpRequest,
        written: &mut usize,
        sending: &mut Sending,
        deadline: Instant,
        limit: Duration,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, SendError>> {
        let failed = |cause| Poll::Ready(Err(SendError::Failed(cause)));
        while matches!(sending, Sending::Going) {
            match self.poll_write(request.after(*written), cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => *sending = Sending::Done,
                Poll::Ready(Ok(more)) => *written += more,
                Poll::Ready(Err(_)) if *written == 0 => return Poll::Ready(Err(SendError::Stale)),
                // What the server said before it closed may still be read.
                Poll::Ready(Err(error)) => *sending = Sending::Broken(error.to_string()),
            }
        }
        loop {
            match ResponseHead::take(&mut self.input) {
                Err(fault) => return failed(broken(fault)),
                Ok(Some(head)) => {
                    self.body = head.body;
                    self.keep_alive = head.keep_alive && matches!(sending, Sending::Done);
                    return Poll::Ready(Ok(head));
                }
                Ok(None) => {}
            }
            self.make_first_room();
            self.make_room();
            let read = match self.poll_read(cx) {
                Poll::Ready(read) => read,
                Poll::Pending => {
                    self.give_back();
                    ready!(self.timer.poll_until(cx, deadline));
                    return failed(Cause::NoAnswer { limit });
                }
            };
            if let (true, Some(cause)) = (self.input.is_empty(), alerted(&read, &self.peer)) {
                return failed(cause);
            }
            let reason = match (read, &*sending) {
                (Ok(1..), _) => continue,
                (_, Sending::Broken(reason)) => reason.clone(),
                (Ok(0), _) => String::new(),
                (Err(error), _) => error.to_string(),
            };
            let reason = self.peer.quote(reason);
            return failed(match self.input.is_empty() {
                true => Cause::NoAnswerAtAll { reason },
                // Part of the head has come.
                false => Cause::CutOff { reason },
            });
        }
    }

    /// Writes what there is of these slices, and flushes when there is nothing: 0 then.
    fn poll_write(&mut self, parts: [&[u8]; 3], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.stream);
        match parts {
            [[], [], []] => stream.poll_flush(cx).map_ok(|()| 0),
            [one, [], []] => nonzero(ready!(stream.poll_write(cx, one))),
            parts => nonzero(ready!(stream.poll_write_vectored(cx, &parts.map(IoSlice::new)))),
        }
    }

    /// The next bytes of the answer's body; `None` at its end. `Pending` registers the task with
    /// the connection.
    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cause>>> {
        loop {
            match self.body.take(&mut self.input) {
                Err(fault) => return Poll::Ready(Some(Err(broken(fault)))),
                Ok(Some(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(None) if self.body.has_ended() => return Poll::Ready(None),
                Ok(None) => {}
            }
            self.make_room();
            let reason = match ready!(self.poll_read(cx)) {
                Ok(0) if self.body.close() => return Poll::Ready(None),
                Ok(0) => "".into(),
                Ok(_) => continue,
                Err(error) => self.peer.quote(error.to_string()),
            };
            return Poll::Ready(Some(Err(Cause::CutOff { reason })));
        }
    }

    /// Slices that are held keep their whole buffer: it is used up before a new one is taken, so
    /// that an answer in tiny pieces costs not much more than its bytes.
    fn make_room(&mut self) {
        if self.input.capacity() - self.input.len() < self.read_bytes / 4 {
            self.input.reserve(self.read_bytes);
        }
    }

    /// The same for what comes first. It takes the memory of the answer before, of whichever
    /// connection, if all slices of that are gone: answers do not share memory, but where a buffer
    /// had to grow for an answer in pieces and has so much room left.
    fn make_first_room(&mut self) {
        if self.input.is_empty() {
            ANSWERS.with(|pool| pool.lend(&mut self.input));
            self.input.reserve(self.read_bytes);
        }
    }

    /// Gives the memory back while there is nothing in it: before an answer, and after.
    fn give_back(&mut self) {
        // What was read by large portions would be kept whole by a small one.
        if self.read_bytes == MIN_READ_BYTES {
            ANSWERS.with(|pool| pool.take_back(&mut self.input));
        }
    }

    /// Reads once into the buffer: 0 when the peer has closed.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let read = ready!(pin!(self.stream.read_buf(&mut self.input)).poll(cx));
        match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.keep_alive = false;
                Poll::Ready(Ok(0))
            }
            Ok(count) => {
                self.keep_alive &= count > 0;
                if count >= self.read_bytes {
                    self.read_bytes = (2 * self.read_bytes).min(MAX_READ_BYTES);
                }
                Poll::Ready(Ok(count))
            }
            Err(error) => {
                self.keep_alive = false;
                Poll::Ready(Err(error))
            }
        }
    }

    /// What a connection that took nothing was ended for, if the other side says so.
    pub(super) fn refusal(&mut self) -> Option<Cause> {
        match self.poll_read(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => alerted(&read, &self.peer),
            Poll::Pending => None,
        }
    }

    /// Waits for the deadline of whoever uses the connection.
    pub(super) fn poll_deadline(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        self.timer.poll_until(cx, deadline)
    }

    /// True once the answer's body is whole.
    pub(super) fn has_ended(&self) -> bool {
        self.body.has_ended()
    }

    /// Whether the connection can take another request as far as is known without a look at it.
    pub(super) fn is_clean(&self) -> bool {
        self.keep_alive && self.body.has_ended() && self.input.is_empty()
    }

    /// Whether the connection can take another request: still open, nothing unasked for on it.
    /// The system is asked: the runtime knows of what came only once it has waited for events.
    pub(super) fn quiet(&mut self) -> Quiet {
        if !self.input.is_empty() {
            return Quiet::Spoke;
        }
        if !self.is_clean() {
            return Quiet::Closed;
        }
        let socket = match &self.stream {
            Stream::Plain(tcp) => SockRef::from(tcp),
            Stream::Unix(unix) => SockRef::from(unix),
            Stream::Tls(tls) => SockRef::from(tls.get_ref().0),
        };
        match socket.peek(&mut [MaybeUninit::uninit()]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(1..) => return Quiet::Spoke,
            Ok(0) | Err(_) => return Quiet::Closed,
        }
        match &self.stream {
            Stream::Plain(_) | Stream::Unix(_) => Quiet::Silent,
            Stream::Tls(_) => self.quiet_within(),
        }
    }

    /// The same of what was read from the socket and is not decrypted yet, or not taken.
    fn quiet_within(&mut self) -> Quiet {
        // Nobody is to be woken for an idle connection: what happens to it is seen at the next
        // look.
        let mut cx = Context::from_waker(Waker::noop());
        self.make_first_room();
        let read = self.poll_read(&mut cx);
        match read {
            Poll::Pending => {
                self.give_back();
                Quiet::Silent
            }
            Poll::Ready(Ok(1..)) => Quiet::Spoke,
            Poll::Ready(Ok(0) | Err(_)) => Quiet::Closed,
        }
    }

    /// Gives back the memory, for which an idle connection has no use.
    pub(super) fn rest(&mut self) {
        self.give_back();
        // Of an event stream's rest something may have come already.
        if self.input.is_empty() {
            self.input = BytesMut::new();
            self.read_bytes = MIN_READ_BYTES;
        }
    }
}

/// How an idle connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quiet {
    Silent,
    /// Something came that nobody asked for.
    Spoke,
    Closed,
}

/// How far a request has come.
enum Sending {
    Going,
    Done,
    /// The server does not take the rest.
    Broken(String),
}

/// What it comes to that a read before the answer has met the alert that the other side ended TLS with.
fn alerted(read: &io::Result<usize>, peer: &Peer) -> Option<Cause> {
    Some(match server_tls::alert(read.as_ref().err()?)? {
        Alerted::OfCertificate(told) => Cause::Alert { alert: peer.quote(told) },
        Alerted::Other(told) => Cause::NoAnswerAtAll { reason: peer.quote(told) },
    })
}

/// A write that takes nothing will never take anything.
fn nonzero(written: io::Result<usize>) -> Poll<io::Result<usize>> {
    Poll::Ready(match written {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        other => other,
    })
}

fn broken(fault: http1::FramingFault) -> Cause {
    Cause::Http { reason: fault.to_string().into() }
}

/// Connects, without TLS.
async fn reach(place: &ServerPlace) -> io::Result<Stream> {
    let tcp = match place {
        ServerPlace::Host(host, port) => TcpStream::connect((&**host, *port)).await?,
        ServerPlace::Unix(path) => return UnixStream::connect(path).await.map(Stream::Unix),
    };
    tcp.set_nodelay(true)?;
    // A peer that is gone without a word is noticed on a stream that is silent for hours.
    SockRef::from(&tcp).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    Ok(Stream::Plain(tcp))
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_read_into_the_same_memory_unless_it_is_held() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let endpoint =
            Endpoint::parse(&url, &Arc::default(), || unreachable!("no https here")).unwrap();
        let server = tokio::spawn(async move {
            for n in 0..5 {
                let mut socket = listener.accept().await.unwrap().0;
                let _ = socket.read(&mut [0; 1024]).await.unwrap();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n[\"{n}n\"]");
                tokio::io::AsyncWriteExt::write_all(&mut socket, answer.as_bytes()).await.unwrap();
            }
        });
        let request = HttpRequest::without_body(b"GET / HTTP/1.1\r\n");
        let (mut open, mut places, mut held) = (Vec::new(), Vec::new(), None);
        for n in 0..5 {
            let mut connection = Connection::open(&endpoint).await.unwrap();
            let limit = Duration::from_secs(10);
            assert!(connection.send(&request, Instant::now() + limit, limit).await.is_ok());
            let data = poll_fn(|cx| connection.poll_body(cx)).await.unwrap().unwrap();
            assert_eq!(data, format!("[\"{n}n\"]"));
            connection.rest();
            assert_eq!(connection.input.capacity(), 0, "it keeps no memory while it waits");
            places.push(data.as_ptr());
            // All stay open, so that none leaves its memory to another by ending.
            open.push(connection);
            if n == 2 {
                held = Some(data);
            }
        }
        assert_eq!(places[0], places[1]);
        assert_eq!(places[1], places[2]);
        assert_ne!(places[2], places[3]);
        assert_eq!(places[3], places[4]);
        assert_eq!(held.unwrap(), "[\"2n\"]");
        server.await.unwrap();
    }

    #[test]
    fn only_an_alert_about_our_certificate_is_of_connections_to_come() {
        use rustls::AlertDescription as Alert;
        let peer = Peer::default();
        for (alert, is_of_those_to_come, told) in [
            (Alert::UnknownCA, true, "it does not accept our certificate"),
            (Alert::CertificateRequired, true, "it wants a certificate of ours"),
            (Alert::InternalError, false, "TLS: it sent the alert InternalError"),
            (Alert::BadRecordMac, false, "TLS: it sent the alert BadRecordMac"),
        ] {
            let read = Err(io::Error::other(rustls::Error::AlertReceived(alert)));
            let cause = alerted(&read, &peer).unwrap();
            assert_eq!(cause.is_of_connections_to_come(), is_of_those_to_come, "{cause}");
            assert!(cause.is_broken_connection() && cause.to_string().contains(told), "{cause}");
        }
        assert_eq!(alerted(&Ok(0), &peer), None);
        assert_eq!(alerted(&Err(io::ErrorKind::ConnectionReset.into()), &peer), None);
    }

    #[test]
    fn a_request_is_its_head_and_its_body_wherever_a_write_stops() {
        let body = (b"{".to_vec(), ["\"a\"", "}"].map(Bytes::from));
        let request = HttpRequest::new([b"POST / HTTP/1.1\r\n", b""], body);
        let whole = "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\n{\"a\"}";
        for written in 0..=whole.len() {
            assert_eq!(request.after(written).concat(), &whole.as_bytes()[written..]);
        }
        let request = HttpRequest::without_body(b"GET / HTTP/1.1\r\n");
        assert_eq!(request.after(0).concat(), b"GET / HTTP/1.1\r\n\r\n");
    }
}
