//! One HTTP/1.1 connection to an upstream, driven by the task that uses it.
//!
//! A call writes its request and reads its response in its own task: there is no connection task, channel or wake-up in
//! between. Reads yield slices of the read buffer. Pooling and response semantics are handled elsewhere.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::UnixStream;

use crate::endpoint::{self, Endpoint, ServerPlace, TlsAlert};
use crate::error::{Cause, Human};
use crate::request::Slices;
use crate::server_log::ServerLog;
use mcpproxy_runtime::io::buffer_pool::BufferPool;
use mcpproxy_runtime::io::deadline::Deadline;
use mcpproxy_runtime::io::dial::{self, Stream};
use mcpproxy_runtime::io::egress_proxy::EgressProxy;
use mcpproxy_runtime::io::http1::{self, ResponseHead};

/// Maximum time for name resolution, connecting and the TLS handshake together.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time before the first TCP keepalive probe.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Initial read size; most responses fit into one read.
const MIN_READ_BYTES: usize = 16 * 1024;
/// Maximum read size, for a response that keeps filling the buffer.
const MAX_READ_BYTES: usize = 256 * 1024;

thread_local! {
    /// Read buffers of this worker, shared by its connections.
    static READ_BUFFERS: BufferPool = BufferPool::default();
}

/// A request that is ready to be written; sending does not consume it.
#[derive(Clone, Debug)]
pub(super) struct HttpRequest {
    /// Head and first slice of the body.
    start: Vec<u8>,
    /// Remaining body; large arguments are not copied.
    rest: [Bytes; 2],
}

impl HttpRequest {
    /// New request; `head` is the request line and the header lines, without `content-length`.
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

    /// Request without a body; `head` is the complete head without its last line break.
    pub(super) fn without_body(head: &[u8]) -> Self {
        Self { start: [head, b"\r\n"].concat(), rest: Default::default() }
    }

    /// The same request for another endpoint, with request target, host and proxy credentials replaced.
    pub(super) fn moved_to(&self, endpoint: &Endpoint) -> Self {
        let (line, rest) = split_line(&self.start);
        let method = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        let path = endpoint.path.to_string();
        let mut start = [method, b" ", path.as_bytes(), b" HTTP/1.1\r\n"].concat();
        if let Some((name, value)) = endpoint.proxy_authorization() {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                start.extend_from_slice(part);
            }
        }
        let mut rest = rest;
        loop {
            let (line, more) = split_line(rest);
            if line.is_empty() {
                break;
            }
            if line.starts_with(b"host: ") {
                for part in [b"host: ", endpoint.host_header.as_bytes(), b"\r\n"] {
                    start.extend_from_slice(part);
                }
                rest = more;
                break;
            }
            rest = more;
            // The host header precedes all other headers.
            if line.starts_with(b"proxy-authorization: ") {
                continue;
            }
            start.extend_from_slice(line);
            start.extend_from_slice(b"\r\n");
        }
        start.extend_from_slice(rest);
        Self { start, rest: self.rest.clone() }
    }

    /// The parts that remain after `written` bytes.
    fn after(&self, mut written: usize) -> [&[u8]; 3] {
        let [second, third] = &self.rest;
        [&self.start[..], second, third].map(|part| {
            let skipped = written.min(part.len());
            written -= skipped;
            part.get(skipped..).unwrap_or_default()
        })
    }
}

/// Splits off the first line of a head, without its line break.
fn split_line(head: &[u8]) -> (&[u8], &[u8]) {
    let end = memchr::memmem::find(head, b"\r\n").unwrap_or(head.len());
    let (line, rest) = head.split_at_checked(end).unwrap_or_default();
    (line, rest.get(2..).unwrap_or_default())
}

/// HTTP/1.1 connection with its read buffer and timer.
pub(super) struct Connection {
    stream: Stream,
    /// Bytes read but not yet consumed.
    input: BytesMut,
    /// Size of the next read; grows while the peer fills it.
    read_bytes: usize,
    /// Framing of the current response.
    body: http1::FramedBody,
    /// Whether the connection persists after the current response.
    keep_alive: bool,
    timer: Deadline,
    pub(super) server_log: Arc<ServerLog>,
    /// Proxy that forwards the requests.
    proxy: Option<Arc<EgressProxy>>,
}

pub(super) enum SendError {
    /// Nothing was sent: the connection was closed while idle.
    Stale,
    /// Part of the request may have been sent.
    Failed(Cause),
}

impl Connection {
    /// Connects within [`CONNECT_TIMEOUT`], trying all addresses of the host. Boxed, because a call moves it many
    /// times.
    pub(super) async fn open(endpoint: &Endpoint) -> Result<Box<Self>, Cause> {
        let failed = |reason: &str| Cause::Connect {
            host: format!("{endpoint:?}").into(),
            reason: endpoint.server_log.quote(reason),
        };
        let deadline = tokio::time::Instant::now() + CONNECT_TIMEOUT;
        let late = |what: &str| failed(&format!("{what} within {}", Human(CONNECT_TIMEOUT)));
        let reached = tokio::time::timeout_at(deadline, reach(endpoint))
            .await
            .map_err(|_| late("no connection"))?
            .map_err(|error| failed(&error.to_string()))?;
        let stream = match (reached, &endpoint.tls) {
            (Stream::Plain(tcp), Some((connector, name))) => {
                let shaken = connector.connect(name.clone(), tcp);
                let secure = tokio::time::timeout_at(deadline, shaken)
                    .await
                    .map_err(|_| late(endpoint::UNANSWERED))?
                    .map_err(|error| failed(&endpoint::explain(&error)))?;
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
            server_log: Arc::clone(&endpoint.server_log),
            proxy: endpoint.route.forwarding().cloned(),
        }))
    }

    /// Sends a request and waits until `deadline` for the head of its response, which may arrive before the request has
    /// been sent completely. `limit` is the duration that the error names.
    pub(super) async fn send_request(
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
                // A response sent before the close may still be readable.
                Poll::Ready(Err(error)) => *sending = Sending::Broken(error.to_string()),
            }
        }
        loop {
            match ResponseHead::take(&mut self.input) {
                Err(fault) => return failed(broken(fault)),
                Ok(Some(head)) if head.status == 407 && self.proxy.is_some() => {
                    return failed(self.proxy_refused(head.status));
                }
                Ok(Some(head)) => {
                    self.body = head.body;
                    self.keep_alive = head.keep_alive && matches!(sending, Sending::Done);
                    return Poll::Ready(Ok(head));
                }
                Ok(None) => {}
            }
            self.lend_input();
            self.reserve_input();
            let read = match self.poll_read(cx) {
                Poll::Ready(read) => read,
                Poll::Pending => {
                    self.return_input();
                    ready!(self.timer.poll_until(cx, deadline));
                    return failed(Cause::NoAnswer { limit });
                }
            };
            if let (true, Some(cause)) = (self.input.is_empty(), alerted(&read, &self.server_log)) {
                return failed(cause);
            }
            let reason = match (read, &*sending) {
                (Ok(1..), _) => continue,
                (_, Sending::Broken(reason)) => reason.clone(),
                (Ok(0), _) => String::new(),
                (Err(error), _) => error.to_string(),
            };
            let reason = self.server_log.quote(reason);
            return failed(match self.input.is_empty() {
                true => Cause::NoAnswerAtAll { reason },
                // Part of the head was received.
                false => Cause::CutOff { reason },
            });
        }
    }

    /// Note about an error status that may come from the forwarding proxy itself; empty for other statuses.
    pub(super) fn proxy_note(&self, status: u16) -> Arc<str> {
        match &self.proxy {
            Some(proxy) if matches!(status, 403 | 500..=599) => {
                self.server_log.quote(format!("this may be the answer of {proxy}"))
            }
            Some(_) | None => "".into(),
        }
    }

    /// Cause for a response of the proxy itself.
    fn proxy_refused(&self, status: u16) -> Cause {
        let proxy = self.proxy.as_ref().map(|it| it.refused(format_args!("the request"), status));
        Cause::Connect {
            host: self.server_log.name.clone(),
            reason: self.server_log.quote(proxy.unwrap_or_default()),
        }
    }

    /// Writes the parts; if all are empty, flushes and returns 0.
    fn poll_write(&mut self, parts: [&[u8]; 3], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.stream);
        match parts {
            [[], [], []] => stream.poll_flush(cx).map_ok(|()| 0),
            [one, [], []] => nonzero(ready!(stream.poll_write(cx, one))),
            parts => nonzero(ready!(stream.poll_write_vectored(cx, &parts.map(IoSlice::new)))),
        }
    }

    /// Next bytes of the response body, `None` at its end. `Pending` registers the task for wake-up.
    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cause>>> {
        loop {
            match self.body.take(&mut self.input) {
                Err(fault) => return Poll::Ready(Some(Err(broken(fault)))),
                Ok(Some(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(None) if self.body.has_ended() => return Poll::Ready(None),
                Ok(None) => {}
            }
            self.reserve_input();
            let reason = match ready!(self.poll_read(cx)) {
                Ok(0) if self.body.close() => return Poll::Ready(None),
                Ok(0) => "".into(),
                Ok(_) => continue,
                Err(error) => self.server_log.quote(error.to_string()),
            };
            return Poll::Ready(Some(Err(Cause::CutOff { reason })));
        }
    }

    /// Reserves read capacity. Slices pin their whole buffer, so the buffer is filled before a new one is allocated;
    /// small chunks therefore cost little memory.
    fn reserve_input(&mut self) {
        if self.input.capacity() - self.input.len() < self.read_bytes / 4 {
            self.input.reserve(self.read_bytes);
        }
    }

    /// Prepares the buffer for a new response, reusing the memory of an earlier response of any connection if no slice
    /// of that memory is held. Responses share no memory, except in the remaining capacity of a grown buffer.
    fn lend_input(&mut self) {
        if self.input.is_empty() {
            READ_BUFFERS.with(|pool| pool.lend(&mut self.input));
            self.input.reserve(self.read_bytes);
        }
    }

    /// Returns an empty buffer to the pool.
    fn return_input(&mut self) {
        // A large buffer would be pinned by a small slice.
        if self.read_bytes == MIN_READ_BYTES {
            READ_BUFFERS.with(|pool| pool.take_back(&mut self.input));
        }
    }

    /// Reads once into the buffer; returns 0 once the peer has closed.
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

    /// TLS alert that ended a connection before it accepted any byte, if any.
    pub(super) fn refused_with_alert(&mut self) -> Option<Cause> {
        match self.poll_read(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => alerted(&read, &self.server_log),
            Poll::Pending => None,
        }
    }

    pub(super) fn poll_deadline(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        self.timer.poll_until(cx, deadline)
    }

    /// Excludes the connection from reuse.
    pub(super) fn close_after_response(&mut self) {
        self.keep_alive = false;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.body.has_ended()
    }

    /// Whether another request may be sent, as far as this is known without a system call.
    pub(super) fn is_clean(&self) -> bool {
        self.keep_alive && self.body.has_ended() && self.input.is_empty()
    }

    /// Checks that the connection is open and has no unsolicited data. Makes a system call, because the runtime detects
    /// received data only when it polls for events.
    pub(super) fn check_idle(&mut self) -> IdleStatus {
        if !self.input.is_empty() {
            return IdleStatus::Unsolicited;
        }
        if !self.is_clean() {
            return IdleStatus::Closed;
        }
        let socket = match &self.stream {
            Stream::Plain(tcp) => SockRef::from(tcp),
            Stream::Unix(unix) => SockRef::from(unix),
            Stream::Tls(tls) => SockRef::from(tls.get_ref().0),
        };
        match socket.peek(&mut [MaybeUninit::uninit()]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(1..) => return IdleStatus::Unsolicited,
            Ok(0) | Err(_) => return IdleStatus::Closed,
        }
        match &self.stream {
            Stream::Plain(_) | Stream::Unix(_) => IdleStatus::Silent,
            Stream::Tls(_) => self.check_idle_tls(),
        }
    }

    /// Checks for TLS data that was read from the socket but not yet decrypted or consumed.
    fn check_idle_tls(&mut self) -> IdleStatus {
        // No wake-up is needed: an idle connection is checked again before its next use.
        let mut cx = Context::from_waker(Waker::noop());
        self.lend_input();
        let read = self.poll_read(&mut cx);
        match read {
            Poll::Pending => {
                self.return_input();
                IdleStatus::Silent
            }
            Poll::Ready(Ok(1..)) => IdleStatus::Unsolicited,
            Poll::Ready(Ok(0) | Err(_)) => IdleStatus::Closed,
        }
    }

    /// Releases the memory of an idle connection.
    pub(super) fn release_memory(&mut self) {
        self.return_input();
        // The buffer is kept if it already contains the rest of an event stream.
        if self.input.is_empty() {
            self.input = BytesMut::new();
            self.read_bytes = MIN_READ_BYTES;
        }
    }
}

/// State of an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleStatus {
    Silent,
    /// The connection delivered unsolicited data.
    Unsolicited,
    Closed,
}

/// Progress of sending a request.
enum Sending {
    Going,
    Done,
    /// The server stopped reading.
    Broken(String),
}

/// Cause for a read that failed with a TLS alert before the response.
fn alerted(read: &io::Result<usize>, server_log: &ServerLog) -> Option<Cause> {
    Some(match endpoint::alert(read.as_ref().err()?)? {
        TlsAlert::OurCertificate(words) => Cause::Alert { alert: server_log.quote(words) },
        TlsAlert::Other(words) => Cause::NoAnswerAtAll { reason: server_log.quote(words) },
    })
}

/// Turns a write of 0 bytes into an error.
fn nonzero(written: io::Result<usize>) -> Poll<io::Result<usize>> {
    Poll::Ready(match written {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        other => other,
    })
}

fn broken(fault: http1::FramingFault) -> Cause {
    Cause::Http { reason: fault.to_string().into() }
}

async fn reach(endpoint: &Endpoint) -> io::Result<Stream> {
    let tcp = match &endpoint.place {
        ServerPlace::Host(host, port) => {
            dial::connect(host, *port, &endpoint.route, |_| true).await?
        }
        ServerPlace::Unix(path) => return UnixStream::connect(path).await.map(Stream::Unix),
    };
    // Detects a peer that has disappeared, on a stream that may be silent for hours.
    SockRef::from(&tcp).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    Ok(Stream::Plain(tcp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_runtime::io::egress_proxy::Egress;

    #[tokio::test]
    async fn connections_reuse_read_memory_unless_it_is_held() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let endpoint = Endpoint::parse(&url, &Arc::default(), &Egress::Direct, || {
            unreachable!("no https here")
        })
        .unwrap();
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
            assert!(connection.send_request(&request, Instant::now() + limit, limit).await.is_ok());
            let data = poll_fn(|cx| connection.poll_body(cx)).await.unwrap().unwrap();
            assert_eq!(data, format!("[\"{n}n\"]"));
            connection.release_memory();
            assert_eq!(connection.input.capacity(), 0, "an idle connection holds no memory");
            places.push(data.as_ptr());
            // All connections stay open, so that none of them frees its memory by closing.
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
    fn only_alerts_about_our_certificate_affect_later_connections() {
        use rustls::AlertDescription as Alert;
        let server_log = ServerLog::default();
        for (alert, affects_later, words) in [
            (Alert::UnknownCA, true, "it does not accept our certificate"),
            (Alert::CertificateRequired, true, "it requires a client certificate"),
            (Alert::InternalError, false, "TLS: it sent the alert InternalError"),
            (Alert::BadRecordMac, false, "TLS: it sent the alert BadRecordMac"),
        ] {
            let read = Err(io::Error::other(rustls::Error::AlertReceived(alert)));
            let cause = alerted(&read, &server_log).unwrap();
            assert_eq!(cause.affects_later_connections(), affects_later, "{cause}");
            assert!(cause.is_broken_connection() && cause.to_string().contains(words), "{cause}");
        }
        assert_eq!(alerted(&Ok(0), &server_log), None);
        assert_eq!(alerted(&Err(io::ErrorKind::ConnectionReset.into()), &server_log), None);
    }

    #[test]
    fn request_resumes_after_any_partial_write() {
        let body = (b"{".to_vec(), ["\"a\"", "}"].map(Bytes::from));
        let request = HttpRequest::new([b"POST / HTTP/1.1\r\n", b""], body);
        let whole = "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\n{\"a\"}";
        for written in 0..=whole.len() {
            assert_eq!(request.after(written).concat(), &whole.as_bytes()[written..]);
        }
        let request = HttpRequest::without_body(b"GET / HTTP/1.1\r\n");
        assert_eq!(request.after(0).concat(), b"GET / HTTP/1.1\r\n\r\n");
    }

    #[test]
    fn redirected_request_keeps_everything_except_target_and_host() {
        let unused = || unreachable!("no https here");
        let moved_to = |egress: &Egress| {
            Endpoint::parse("http://h.example:9/b?x=1", &Arc::default(), egress, unused).unwrap()
        };
        let endpoint = moved_to(&Egress::Direct);
        let body = (b"host: not a header\r\n".to_vec(), ["1", "2"].map(Bytes::from));
        let head = b"POST /a HTTP/1.1\r\naccept: x\r\nhost: old\r\nx-key: k\r\n";
        let request = HttpRequest::new([head, b"host: second\r\n"], body.clone());
        assert_eq!(
            String::from_utf8(request.moved_to(&endpoint).after(0).concat()).unwrap(),
            "POST /b?x=1 HTTP/1.1\r\naccept: x\r\nhost: h.example:9\r\nx-key: k\r\nhost: second\r\n\
             content-length: 22\r\n\r\nhost: not a header\r\n12"
        );
        let request = HttpRequest::new([b"POST /a HTTP/1.1\r\n", b""], body);
        let moved = String::from_utf8(request.moved_to(&endpoint).after(0).concat()).unwrap();
        assert!(moved.ends_with("\r\n\r\nhost: not a header\r\n12"), "{moved}");
        // NET-9: the proxy's credentials are sent only to the proxy.
        let proxied = moved_to(&Egress::parse(Some("http://u:pw@p"), "proxy").unwrap());
        let request = HttpRequest::without_body(b"GET /a HTTP/1.1\r\nhost: old\r\n");
        let forwarded = request.moved_to(&proxied);
        let shown = |request: &HttpRequest| String::from_utf8(request.after(0).concat()).unwrap();
        let origin = "http://h.example:9";
        let host = "host: h.example:9\r\n\r\n";
        let credentials = "proxy-authorization: Basic dTpwdw==\r\n";
        let expected = format!("GET {origin}/b?x=1 HTTP/1.1\r\n{credentials}{host}");
        assert_eq!(shown(&forwarded), expected);
        let direct = forwarded.moved_to(&endpoint);
        assert_eq!(shown(&direct), format!("GET /b?x=1 HTTP/1.1\r\n{host}"));
    }
}
