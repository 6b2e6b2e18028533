//! HTTP/1.1 client over hyper for every outgoing request except calls of MCP servers, whose connections are framed in `upstream`.
//!
//! A connection carries one request at a time and has no separate task: it makes progress only while a response is awaited or its body is
//! read. Dropping a reply before its end closes the connection, which cancels the request. Callers limit the time and interpret statuses;
//! redirects are not followed.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::PROXY_AUTHORIZATION;
use http::{Request, Response, StatusCode, Uri, response};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

use crate::io::dial;
use crate::io::egress_proxy::{Egress, EgressProxy, EgressRoute, bare_host};
use crate::io::tls::system_connector;

/// Request with its whole body.
pub type OutgoingRequest = Request<Full<Bytes>>;

/// A server named by a URL, with its TLS settings and the route to it.
#[derive(Clone)]
pub struct HttpOrigin {
    pub url: Url,
    tls: Option<TlsConnector>,
    /// Route to the server; an error is reported at each attempt to connect.
    route: Result<EgressRoute, String>,
}

impl fmt::Debug for HttpOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOrigin").field("route", &self.route).finish_non_exhaustive()
    }
}

impl HttpOrigin {
    /// The origin of an `http` or `https` URL, with the system's certificates and the environment's proxy.
    pub async fn of(url: &str) -> Option<Self> {
        let url = Url::parse(url).ok()?;
        let tls = match url.scheme() {
            // Reads the system's certificates, which blocks.
            "https" => Some(tokio::task::spawn_blocking(system_connector).await.ok()?),
            _ => None,
        };
        Some(Self::with(url, tls, Some(&Egress::Environment)))
    }

    /// An origin with these TLS settings, which https needs. Without `egress`, no proxy is used.
    pub fn with(url: Url, tls: Option<TlsConnector>, egress: Option<&Egress>) -> Self {
        let route = egress.map_or(Ok(EgressRoute::Direct), |egress| egress.route(&url));
        Self { url, tls, route }
    }

    /// The proxy on the route.
    pub fn proxy(&self) -> Option<&Arc<EgressProxy>> {
        self.route.as_ref().ok()?.proxy()
    }

    /// Opens a connection.
    pub async fn connect(&self) -> io::Result<HttpConnection> {
        self.over(self.dial(|_| true).await?).await
    }

    /// Opens the transport connection. Does not connect to addresses that `allows` rejects ([`dial::connect`]).
    pub async fn dial(&self, allows: impl Fn(IpAddr) -> bool) -> io::Result<TcpStream> {
        let route = self.route.as_ref().map_err(|why| io::Error::other(why.as_str()))?;
        let host = self.url.host_str().ok_or_else(|| io::Error::other("the URL names no host"))?;
        let port = self.url.port_or_known_default().unwrap_or(443);
        dial::connect(bare_host(host), port, route, allows).await
    }

    /// Begins TLS, if the URL is https, and HTTP on a connection that [`dial`](Self::dial) opened.
    pub async fn over(&self, tcp: TcpStream) -> io::Result<HttpConnection> {
        if self.url.scheme() == "https" {
            let none = || io::Error::other("no TLS settings");
            let tls = self.tls.as_ref().ok_or_else(none)?;
            let stream = dial::secure(tls, self.url.host_str().unwrap_or_default(), tcp).await?;
            return HttpConnection::over(stream).await;
        }
        let mut connection = HttpConnection::over(tcp).await?;
        connection.forward = self.forward();
        Ok(connection)
    }

    fn forward(&self) -> Option<Forward> {
        let proxy = Arc::clone(self.route.as_ref().ok()?.forwarding()?);
        Some(Forward { proxy, origin: format!("http://{}", self.url.authority()) })
    }
}

/// A proxy that receives requests in absolute form.
struct Forward {
    proxy: Arc<EgressProxy>,
    /// Scheme and authority of the requests.
    origin: String,
}

impl Forward {
    fn address(&self, request: &mut OutgoingRequest) -> Result<(), HttpFault> {
        if request.uri().scheme().is_none() {
            let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
            let whole = format!("{}{target}", self.origin).parse::<Uri>();
            *request.uri_mut() = whole.map_err(|error| HttpFault::Request(error.to_string()))?;
        }
        if let Some(authorization) = self.proxy.authorization() {
            request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        Ok(())
    }
}

/// Failure of a request on an open connection.
#[derive(Debug, thiserror::Error)]
pub enum HttpFault {
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The request cannot be sent.
    #[error("{0}")]
    Request(String),
    /// The egress proxy refused the request.
    #[error("{0}")]
    Proxy(String),
    #[error("the response exceeds {0} bytes")]
    TooLong(usize),
}

/// A request that was not answered.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub struct SendFault {
    pub fault: HttpFault,
    /// The request, if it is certain that no part of it was sent.
    pub unsent: Option<Box<OutgoingRequest>>,
}

type Driver = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// An open connection.
pub struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    /// Drives the connection until it has ended.
    driver: Option<Driver>,
    forward: Option<Forward>,
}

impl fmt::Debug for HttpConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpConnection").field("ended", &self.driver.is_none()).finish()
    }
}

impl HttpConnection {
    /// Begins HTTP/1.1 on a stream.
    pub async fn over<S>(stream: S) -> io::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static,
    {
        let begun = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = begun.map_err(io::Error::other)?;
        let driver = async move {
            // The request in progress returns the error.
            let _ = connection.await;
        };
        Ok(Self { sender, driver: Some(Box::pin(driver)), forward: None })
    }

    /// Drives the connection. Returns true if it ended during this call.
    fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        let ended = self.driver.as_mut().is_some_and(|driver| driver.as_mut().poll(cx).is_ready());
        if ended {
            self.driver = None;
        }
        ended
    }

    /// Whether another request can be sent, as far as this is known without waiting.
    pub fn is_open(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && !self.sender.is_closed()
    }

    /// Sends a request and waits for the head of the response. The target is a path; the caller sets `Host`.
    pub async fn send(mut self, mut request: OutgoingRequest) -> Result<UnreadResponse, SendFault> {
        let unsent =
            |fault: HttpFault, request| Err(SendFault { fault, unsent: Some(Box::new(request)) });
        if let Some(Err(fault)) = self.forward.as_ref().map(|it| it.address(&mut request)) {
            return unsent(fault, request);
        }
        let ready = std::future::poll_fn(|cx| {
            self.drive(cx);
            self.sender.poll_ready(cx)
        });
        if let Err(error) = ready.await {
            return unsent(error.into(), request);
        }
        let mut sending = pin!(self.sender.try_send_request(request));
        let sent = std::future::poll_fn(|cx| match sending.as_mut().poll(cx) {
            Poll::Pending => {
                let driver = self.driver.as_mut();
                if driver.is_some_and(|driver| driver.as_mut().poll(cx).is_ready()) {
                    self.driver = None;
                    // The response has arrived, or the connection failed.
                    return sending.as_mut().poll(cx);
                }
                Poll::Pending
            }
            sent => sent,
        });
        match sent.await {
            Ok(response) => {
                if let (
                    StatusCode::PROXY_AUTHENTICATION_REQUIRED,
                    Some(Forward { proxy, origin }),
                ) = (response.status(), &self.forward)
                {
                    let message = proxy.refused(format_args!("a request to {origin}"), 407);
                    return Err(SendFault { fault: HttpFault::Proxy(message), unsent: None });
                }
                let (head, body) = response.into_parts();
                Ok(UnreadResponse { head, body, connection: self })
            }
            Err(mut error) => {
                let unsent = error.take_message().map(Box::new);
                Err(SendFault { fault: error.into_error().into(), unsent })
            }
        }
    }

    /// Sends a request and reads the response. A body longer than `max_bytes` is dropped; with 0, the body is not awaited. Also returns the
    /// connection if its body was read.
    pub async fn fetch(
        self,
        request: OutgoingRequest,
        max_bytes: usize,
    ) -> Result<(Response<Bytes>, Option<Self>), HttpFault> {
        let reply = self.send(request).await.map_err(|failed| failed.fault)?;
        let head = reply.head.clone();
        let read = match max_bytes {
            0 => None,
            max_bytes => reply.read(max_bytes).await.ok(),
        };
        let (body, connection) = read.map_or_else(Default::default, |(body, it)| (body, Some(it)));
        Ok((Response::from_parts(head, body), connection))
    }
}

/// Pool of idle connections by destination. A connection is reused while it is open.
#[derive(Debug)]
pub struct IdleConnections {
    /// Maximum number of connections per destination.
    max: usize,
    /// Age after which a connection is not used again.
    max_age: Duration,
    connections: Mutex<HashMap<String, Vec<(Instant, HttpConnection)>>>,
}

impl IdleConnections {
    pub fn new(max: usize, max_age: Duration) -> Self {
        Self { max, max_age, connections: Mutex::default() }
    }

    fn is_usable(&self, (since, connection): &mut (Instant, HttpConnection)) -> bool {
        since.elapsed() < self.max_age && connection.is_open()
    }

    /// Takes the most recently used connection.
    pub fn take(&self, key: &str) -> Option<HttpConnection> {
        let mut all = self.connections.lock();
        let kept = all.get_mut(key)?;
        kept.retain_mut(|idle| self.is_usable(idle));
        kept.pop().map(|(_, connection)| connection)
    }

    /// Keeps a connection, and closes those that can no longer be used.
    pub fn keep(&self, key: String, connection: HttpConnection) {
        let mut all = self.connections.lock();
        all.retain(|_, kept| {
            kept.retain_mut(|idle| self.is_usable(idle));
            !kept.is_empty()
        });
        let kept = all.entry(key).or_default();
        if kept.len() < self.max {
            kept.push((Instant::now(), connection));
        }
    }
}

/// A response whose body has not been read to its end.
#[derive(Debug)]
pub struct UnreadResponse {
    pub head: response::Parts,
    body: Incoming,
    connection: HttpConnection,
}

impl UnreadResponse {
    /// The next part of the body; `None` at its end.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpFault>>> {
        loop {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers are ignored.
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending if self.connection.drive(cx) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The next part of the body; `None` at its end.
    pub async fn next(&mut self) -> Option<Result<Bytes, HttpFault>> {
        std::future::poll_fn(|cx| self.poll_data(cx)).await
    }

    /// Reads the body, at most `max_bytes`. Also returns the connection.
    pub async fn read(mut self, max_bytes: usize) -> Result<(Bytes, HttpConnection), HttpFault> {
        let mut whole = BytesMut::new();
        while let Some(data) = self.next().await.transpose()? {
            if whole.len() + data.len() > max_bytes {
                return Err(HttpFault::TooLong(max_bytes));
            }
            whole.extend_from_slice(&data);
        }
        Ok((whole.freeze(), self.connection))
    }

    /// Whether the body is known to have ended, or to be empty.
    pub fn has_ended(&self) -> bool {
        self.body.is_end_stream()
    }

    /// The connection for further requests; the body must have been read to its end.
    pub fn into_connection(self) -> HttpConnection {
        self.connection
    }
}
