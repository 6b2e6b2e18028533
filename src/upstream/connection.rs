//! One HTTP/1.1 connection to an upstream, driven by the task that uses it.
//!
//! A call writes its request and reads its answer in its own task: no task of the connection's, no
//! channel, no wake-up between them. What is read is handed on as slices of the buffer it was read
//! into. Who keeps idle connections, and what an answer means, is deliberately not known here.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::Uri;
use http::header::HeaderValue;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::deadline::Deadline;
use super::error::{Cause, Human, printable};
use super::request::Slices;
use crate::wire::http1::{self, Head};
use crate::wire::spare::Spare;

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
    static ANSWERS: Spare = Spare::default();
}

/// Where an upstream is: resolved from its URL once, shared by all its connections.
#[derive(Clone)]
pub(super) struct Endpoint {
    host: Arc<str>,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// The request target in origin form.
    pub(super) path: Uri,
    /// The `Host` header.
    pub(super) host_header: HeaderValue,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Endpoint {
    /// Reads a URL. The error is one line and does not quote what may be a secret in it.
    pub(super) fn parse(url: &str, tls: impl FnOnce() -> TlsConnector) -> Result<Self, String> {
        let url = readable(url)?;
        let secure = url.scheme() == "https";
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err("url names no host".to_owned());
        };
        let target = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let read = |what: &str| format!("url has a {what} that cannot be sent");
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let tls = if secure {
            let name = ServerName::try_from(bare.to_owned()).map_err(|_| read("host"))?;
            Some((tls(), name))
        } else {
            None
        };
        Ok(Self {
            host: bare.into(),
            port,
            tls,
            path: target.parse().map_err(|_| read("path"))?,
            host_header: HeaderValue::from_str(&authority).map_err(|_| read("host"))?,
        })
    }
}

/// The URL of an endpoint. The error is one line and does not quote what may be a secret in it.
pub(super) fn readable(url: &str) -> Result<url::Url, String> {
    let url = url::Url::parse(url).map_err(|error| format!("url cannot be read: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("url has scheme {}; http and https are known", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("url holds a user name or password; put credentials in headers".to_owned());
    }
    Ok(url)
}

/// TLS as every https upstream uses it: the system's roots, HTTP/1.1. Reads files: not for a
/// worker's thread.
pub(super) fn tls_connector() -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in found.errors {
        tracing::warn!(%error, "a system certificate cannot be used");
    }
    let (_, unusable) = roots.add_parsable_certificates(found.certs);
    if unusable > 0 {
        tracing::debug!(unusable, "system certificates left out");
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = match builder {
        Ok(builder) => builder.with_root_certificates(roots).with_no_client_auth(),
        Err(error) => unreachable!("the provider supports the default versions: {error}"),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// Plain or TLS.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A request, ready to be written: nothing of it is consumed by an attempt to send it.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// The head and the first slice of the body.
    start: Vec<u8>,
    /// What else the body has; large arguments are not copied.
    rest: [Bytes; 2],
}

impl Request {
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
    body: http1::Body,
    /// Whether the connection lasts after that answer.
    keep_alive: bool,
    timer: Deadline,
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
            reason: printable(reason.as_bytes()),
        };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect(endpoint))
            .await
            .map_err(|_| failed(&format!("no connection within {}", Human(CONNECT_TIMEOUT))))?
            .map_err(|error| failed(&error.to_string()))?;
        Ok(Box::new(Self {
            stream,
            input: BytesMut::new(),
            read_bytes: MIN_READ_BYTES,
            body: http1::Body::Ended,
            keep_alive: true,
            timer: Deadline::default(),
        }))
    }

    /// Sends a request and waits at most `limit` from `now` on for the head of its answer, which
    /// may come before the request was sent whole.
    pub(super) async fn send(
        &mut self,
        request: &Request,
        now: Instant,
        limit: Duration,
    ) -> Result<Head, SendError> {
        let deadline = now + limit;
        let mut written = 0;
        let mut sending = Sending::Going;
        poll_fn(|cx| self.poll_send(request, &mut written, &mut sending, deadline, limit, cx)).await
    }

    fn poll_send(
        &mut self,
        request: &Request,
        written: &mut usize,
        sending: &mut Sending,
        deadline: Instant,
        limit: Duration,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Head, SendError>> {
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
            match Head::take(&mut self.input) {
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
            let reason = match (read, &*sending) {
                (Ok(1..), _) => continue,
                (_, Sending::Broken(reason)) => reason.clone(),
                (Ok(0), _) => String::new(),
                (Err(error), _) => error.to_string(),
            };
            return failed(Cause::NoAnswerAtAll { reason: printable(reason.as_bytes()) });
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
                Err(error) => printable(error.to_string().as_bytes()),
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
            ANSWERS.with(|spare| spare.lend(&mut self.input));
            self.input.reserve(self.read_bytes);
        }
    }

    /// Gives the memory back while there is nothing in it: before an answer, and after.
    fn give_back(&mut self) {
        // What was read by large portions would be kept whole by a small one.
        if self.read_bytes == MIN_READ_BYTES {
            ANSWERS.with(|spare| spare.take_back(&mut self.input));
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
    pub(super) fn is_reusable(&mut self) -> bool {
        if !self.is_clean() {
            return false;
        }
        // Nobody is to be woken for an idle connection: what happens to it is seen at the next
        // look.
        let mut cx = Context::from_waker(Waker::noop());
        self.make_first_room();
        let is_silent = self.poll_read(&mut cx).is_pending();
        self.give_back();
        is_silent
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

/// How far a request has come.
enum Sending {
    Going,
    Done,
    /// The server does not take the rest.
    Broken(String),
}

/// A write that takes nothing will never take anything.
fn nonzero(written: io::Result<usize>) -> Poll<io::Result<usize>> {
    Poll::Ready(match written {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        other => other,
    })
}

fn broken(fault: http1::Fault) -> Cause {
    Cause::Http { reason: fault.to_string().into() }
}

async fn connect(endpoint: &Endpoint) -> io::Result<Stream> {
    let tcp = TcpStream::connect((&*endpoint.host, endpoint.port)).await?;
    tcp.set_nodelay(true)?;
    // A peer that is gone without a word is noticed on a stream that is silent for hours.
    SockRef::from(&tcp).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    Ok(match &endpoint.tls {
        None => Stream::Plain(tcp),
        Some((connector, name)) => {
            Stream::Tls(Box::new(connector.connect(name.clone(), tcp).await?))
        }
    })
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
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
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Endpoint, String> {
        Endpoint::parse(url, || unreachable!("no https here"))
    }

    #[test]
    fn a_url_gives_host_port_and_target() {
        for (url, shown, host, path) in [
            ("http://localhost/mcp", "localhost:80", "localhost", "/mcp"),
            ("http://127.0.0.1:9000", "127.0.0.1:9000", "127.0.0.1:9000", "/"),
            ("http://[::1]:9000/a%20b?key=v#no", "::1:9000", "[::1]:9000", "/a%20b?key=v"),
        ] {
            let endpoint = parse(url).unwrap();
            assert_eq!(format!("{endpoint:?}"), shown);
            assert_eq!(
                (endpoint.host_header.to_str().unwrap(), endpoint.path.to_string()),
                (host, path.into())
            );
        }
    }

    #[tokio::test]
    async fn connections_read_into_the_same_memory_unless_it_is_held() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let server = tokio::spawn(async move {
            for n in 0..5 {
                let mut socket = listener.accept().await.unwrap().0;
                let _ = socket.read(&mut [0; 1024]).await.unwrap();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n[\"{n}n\"]");
                tokio::io::AsyncWriteExt::write_all(&mut socket, answer.as_bytes()).await.unwrap();
            }
        });
        let request = Request::without_body(b"GET / HTTP/1.1\r\n");
        let (mut open, mut places, mut held) = (Vec::new(), Vec::new(), None);
        for n in 0..5 {
            let mut connection = Connection::open(&endpoint).await.unwrap();
            let limit = Duration::from_secs(10);
            assert!(connection.send(&request, Instant::now(), limit).await.is_ok());
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
    fn an_unusable_url_is_told_without_its_secrets() {
        for (url, why) in [
            ("/mcp", "url cannot be read: relative URL without a base"),
            ("ftp://h/", "url has scheme ftp; http and https are known"),
            ("http://u:p@h/", "url holds a user name or password; put credentials in headers"),
        ] {
            assert_eq!(parse(url).unwrap_err(), why);
        }
    }

    #[test]
    fn a_request_is_its_head_and_its_body_wherever_a_write_stops() {
        let body = (b"{".to_vec(), ["\"a\"", "}"].map(Bytes::from));
        let request = Request::new([b"POST / HTTP/1.1\r\n", b""], body);
        let whole = "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\n{\"a\"}";
        for written in 0..=whole.len() {
            assert_eq!(request.after(written).concat(), &whole.as_bytes()[written..]);
        }
        let request = Request::without_body(b"GET / HTTP/1.1\r\n");
        assert_eq!(request.after(0).concat(), b"GET / HTTP/1.1\r\n\r\n");
    }
}
