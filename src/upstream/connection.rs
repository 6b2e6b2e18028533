//! One HTTP/1.1 connection to an upstream, driven by the task that uses it.
//!
//! hyper splits a connection into a sender and a driver that someone must poll. Here both are
//! polled together by the caller, so a call crosses no task. Who keeps idle connections, and what
//! an answer means, is deliberately not known here.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::HeaderValue;
use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::error::{Cause, Human, printable};

/// Most time for resolving, connecting and the TLS handshake together.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after which the system asks whether the peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Most bytes of an answer's head.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most bytes hyper buffers of an answer that is not taken yet.
const MAX_BUFFER_BYTES: usize = 512 * 1024;

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
        let url = url::Url::parse(url).map_err(|error| format!("url cannot be read: {error}"))?;
        let secure = match url.scheme() {
            "http" => false,
            "https" => true,
            other => return Err(format!("url has scheme {other}; http and https are known")),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err("url holds a user name or password; put credentials in headers".to_owned());
        }
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

/// A request body of a few slices, none of them copied.
#[derive(Debug, Default)]
pub(super) struct Slices {
    parts: [Bytes; 3],
    next: usize,
}

impl Slices {
    pub(super) fn new(parts: [Bytes; 3]) -> Self {
        Self { parts, next: 0 }
    }

    fn rest(&self) -> &[Bytes] {
        self.parts.get(self.next..).unwrap_or_default()
    }
}

impl Body for Slices {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        while let Some(part) = this.parts.get_mut(this.next) {
            this.next += 1;
            if !part.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(part)))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.rest().iter().all(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest().iter().map(|part| part.len() as u64).sum())
    }
}

/// A connection and the timer of whoever uses it.
pub(super) struct Connection {
    sender: http1::SendRequest<Slices>,
    /// `None` once the connection has ended.
    driver: Option<http1::Connection<TokioIo<Stream>, Slices>>,
    timer: Timer,
}

/// How sending a request failed.
pub(super) enum SendError {
    /// Nothing was sent: the connection had been closed while idle. The request comes back.
    Stale(Box<Request<Slices>>),
    /// Part of it may have been sent.
    Failed(Cause),
}

impl Connection {
    /// Connects. One attempt over all addresses of the host, at most [`CONNECT_TIMEOUT`].
    pub(super) async fn open(endpoint: &Endpoint) -> Result<Self, Cause> {
        let failed = |reason: &str| Cause::Connect {
            host: format!("{endpoint:?}").into(),
            reason: printable(reason.as_bytes()),
        };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect(endpoint))
            .await
            .map_err(|_| failed(&format!("no connection within {}", Human(CONNECT_TIMEOUT))))?
            .map_err(|error| failed(&error.to_string()))?;
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(MAX_BUFFER_BYTES)
            .max_header_size(MAX_HEAD_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| failed(&error.to_string()))?;
        Ok(Self { sender, driver: Some(driver), timer: Timer::new() })
    }

    /// Sends a request and waits at most `limit` for the head of its answer.
    pub(super) async fn send(
        &mut self,
        request: Request<Slices>,
        limit: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        let deadline = Instant::now() + limit;
        let mut reply = std::pin::pin!(self.sender.try_send_request(request));
        let (driver, timer) = (&mut self.driver, &mut self.timer);
        poll_fn(|cx| {
            let ended = drive(driver, cx);
            if let Poll::Ready(reply) = reply.as_mut().poll(cx) {
                return Poll::Ready(reply.map_err(|mut error| match error.take_message() {
                    Some(request) => SendError::Stale(Box::new(request)),
                    None => SendError::Failed(before_answer(error.error())),
                }));
            }
            if ended.is_ready() {
                return Poll::Ready(Err(SendError::Failed(Cause::NoAnswerAtAll {
                    reason: "".into(),
                })));
            }
            ready!(timer.poll_until(cx, deadline));
            Poll::Ready(Err(SendError::Failed(Cause::NoAnswer { limit })))
        })
        .await
    }

    /// The next bytes of a body of this connection; `None` at its end. `Pending` registers the
    /// task with the connection.
    pub(super) fn poll_body(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Cause>>> {
        loop {
            let frame = match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    // Asking for the frame told the driver to read on; what it read is there now.
                    let _ = drive(&mut self.driver, cx);
                    ready!(Pin::new(&mut *body).poll_frame(cx))
                }
            };
            match frame {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(in_answer(&error)))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Poll::Ready(Some(Ok(data))),
                    Err(_trailers) => {}
                },
            }
        }
    }

    /// Waits for the deadline of whoever uses the connection.
    pub(super) fn poll_deadline(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        self.timer.poll_until(cx, deadline)
    }

    /// Whether the connection can take another request: still open, nothing unasked for on it.
    pub(super) fn is_reusable(&mut self) -> bool {
        // Nobody is to be woken for an idle connection: what happens to it is seen at the next
        // look.
        let mut cx = Context::from_waker(Waker::noop());
        drive(&mut self.driver, &mut cx).is_pending() && self.sender.is_ready()
    }
}

/// Polls the driver; `Ready` once the connection has ended, however it did.
fn drive(
    driver: &mut Option<http1::Connection<TokioIo<Stream>, Slices>>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let Some(connection) = driver else { return Poll::Ready(()) };
    let ended = ready!(Pin::new(connection).poll(cx));
    if let Err(error) = ended {
        tracing::debug!(%error, "an upstream connection ended");
    }
    *driver = None;
    Poll::Ready(())
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

fn before_answer(error: &hyper::Error) -> Cause {
    if error.is_parse() {
        return Cause::Http { reason: chain(error) };
    }
    if error.is_incomplete_message() {
        return Cause::NoAnswerAtAll { reason: "".into() };
    }
    Cause::NoAnswerAtAll { reason: chain(error) }
}

fn in_answer(error: &hyper::Error) -> Cause {
    use std::error::Error;
    if error.is_incomplete_message() {
        return Cause::CutOff { reason: "".into() };
    }
    match error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind)
    {
        Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
            Cause::Http { reason: chain(error) }
        }
        Some(io::ErrorKind::UnexpectedEof) => Cause::CutOff { reason: "".into() },
        Some(_) | None => Cause::CutOff { reason: chain(error) },
    }
}

/// An error and its causes in one printable line.
fn chain(error: &dyn std::error::Error) -> Arc<str> {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    printable(text.as_bytes())
}

/// A deadline that costs nothing while it moves away: the timer is set anew only when it fires
/// early, or when a deadline comes nearer.
#[derive(Debug)]
pub(super) struct Timer {
    sleep: Pin<Box<Sleep>>,
}

impl Timer {
    pub(super) fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(CONNECT_TIMEOUT)) }
    }

    pub(super) fn poll_until(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let deadline = tokio::time::Instant::from_std(deadline);
        if deadline < self.sleep.deadline() {
            self.sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(self.sleep.as_mut().poll(cx));
            if self.sleep.deadline() >= deadline || tokio::time::Instant::now() >= deadline {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(deadline);
        }
    }
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
    fn a_body_of_slices_knows_its_size() {
        let mut body = Slices::new([Bytes::from("a"), Bytes::new(), Bytes::from("bc")]);
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(body.size_hint().exact(), Some(3));
        let mut read = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut cx) {
            read.extend_from_slice(&frame.into_data().unwrap());
        }
        assert_eq!(read, b"abc");
        assert!(body.is_end_stream() && Slices::default().is_end_stream());
    }

    #[tokio::test]
    async fn a_deadline_may_move_either_way() {
        let mut timer = Timer::new();
        let now = Instant::now();
        let far = now + Duration::from_secs(3600);
        for _ in 0..2 {
            let far = poll_fn(|cx| Poll::Ready(timer.poll_until(cx, far))).await;
            assert!(far.is_pending());
            // Comes nearer than the timer was set to: returns, and not in an hour.
            poll_fn(|cx| timer.poll_until(cx, now)).await;
        }
    }
}
