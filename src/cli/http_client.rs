//! HTTP/1 to a proxy that already runs: REST for the commands, MCP for the demo and the bridge.
//!
//! A few connections are kept open between requests, with one request on each at a time. Dropping a
//! reply before its end closes its connection, which is how a request is given up. On a fresh
//! connection the server first proves that it is the one of the config. There is no redirect or
//! proxy: the server is ours and on an address of the config. What a message means is not known here.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::identity::{NotProven, prove};
use super::tls_client;
use crate::api::SOURCE;
use crate::downstream::api_key;
use crate::io::address::{Address, Reached};
use crate::mcp::headers::LAST_EVENT_ID;

/// Most time for a connection to be made; the server is near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most connections kept for the next request.
const MAX_IDLE: usize = 8;
/// Most bytes of an answer that is read whole.
const MAX_ANSWER_BYTES: usize = 1024 * 1024 * 1024;

const API_KEY: HeaderName = HeaderName::from_static(api_key::HEADER);

/// A whole answer.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why there is no answer. Each names the server's `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    /// Nobody listens there.
    #[error("nobody listens on {0}")]
    NobodyListens(String),
    /// Another program does; nothing was sent to it.
    #[error("what listens on {0} is not the mcpproxy of this config: {1}; nothing was sent to it")]
    Stranger(String, NotProven),
    /// There is no connection: nothing was sent.
    #[error("{0}: {1}")]
    NotSent(String, String),
    /// The request may have been sent, and its answer did not come, or not whole.
    #[error("{0}: {1}")]
    Broken(String, String),
}

impl RequestError {
    /// What happened, without the server's address.
    pub(super) fn cause(&self) -> String {
        match self {
            Self::NobodyListens(_) => "it cannot be reached: nobody listens there".to_owned(),
            Self::Stranger(_, why) => format!(
                "it cannot be reached: what listens there is not the mcpproxy of this config: {why}; \
                 nothing was sent to it"
            ),
            Self::NotSent(_, why) => format!("it cannot be reached: {why}"),
            Self::Broken(_, why) => format!("the connection broke: {why}"),
        }
    }

    /// True if the server certainly did nothing.
    pub(super) fn is_not_sent(&self) -> bool {
        match self {
            Self::NobodyListens(_) | Self::Stranger(..) | Self::NotSent(..) => true,
            Self::Broken(..) => false,
        }
    }
}

/// A running proxy, the key it is asked with, and the connections to it. Clones share the
/// connections, which belong to the runtime that they were made in.
#[derive(Clone, Debug)]
pub(super) struct HttpClient {
    address: Address,
    security: Security,
    authority: Rc<str>,
    api_key: Rc<str>,
    idle: Rc<RefCell<Vec<SendRequest<Full<Bytes>>>>>,
}

/// Whether the server speaks TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
    Plain,
    Tls,
}

impl HttpClient {
    /// `listen` is the config's: a wildcard address is reached by loopback. Nothing is connected yet.
    pub(super) fn new(listen: impl Into<Address>, security: Security, api_key: &str) -> Self {
        let address = match listen.into() {
            Address::Tcp(listen) => {
                let ip = match listen.ip() {
                    IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
                    IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
                    ip => ip,
                };
                Address::Tcp(SocketAddr::new(ip, listen.port()))
            }
            Address::Unix(path) => Address::Unix(path),
        };
        let (authority, api_key) = (address.to_string().into(), api_key.into());
        Self { address, security, authority, api_key, idle: Rc::default() }
    }

    /// The `Host` of requests.
    fn host(&self) -> &str {
        match &self.address {
            Address::Tcp(_) => &self.authority,
            Address::Unix(_) => "localhost",
        }
    }

    /// The same server, asked without the key.
    pub(super) fn without_key(&self) -> Self {
        Self { api_key: "".into(), idle: Rc::default(), ..self.clone() }
    }

    /// `http://host:port` as a browser finds it; `None` for a socket, where no browser can go.
    pub(super) fn base(&self) -> Option<String> {
        let scheme = match self.security {
            Security::Plain => "http",
            Security::Tls => "https",
        };
        self.address.tcp().map(|address| format!("{scheme}://{address}"))
    }

    /// `host:port`, or `unix:/path`.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// Where MCP clients find it; of a socket the form that `url` takes.
    pub(super) fn mcp_url(&self) -> String {
        let authority = &self.authority;
        match (&self.address, self.security) {
            (Address::Tcp(_), Security::Plain) => format!("http://{authority}/mcp"),
            (Address::Tcp(_), Security::Tls) => format!("https://{authority}/mcp"),
            (Address::Unix(_), Security::Plain | Security::Tls) => format!("{authority}:/mcp"),
        }
    }

    /// Whether anybody listens there. Who it is shows before anything is sent.
    pub(super) async fn is_there(&self) -> bool {
        let connect = async {
            match &self.address {
                Address::Tcp(address) => TcpStream::connect(address).await.map(drop),
                Address::Unix(path) => UnixStream::connect(path).await.map(drop),
            }
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
            Ok(Err(error)) => !is_nobody(&error),
            Ok(Ok(())) | Err(_) => true,
        }
    }

    /// Whether it is mcpproxy that listens there: with a key the one of this config, which proves
    /// it; without one there is nothing to prove, and nothing to lose, and its word is taken.
    pub(super) async fn is_mcpproxy(&self) -> bool {
        let health = async {
            let reply = self.send(Method::GET, "/healthz", HeaderMap::new(), Bytes::new()).await?;
            reply.whole().await
        };
        let ours = match tokio::time::timeout(CONNECT_TIMEOUT, health).await {
            Ok(Ok(answer)) => is_health(&answer.body),
            Ok(Err(RequestError::NobodyListens(_))) => return false,
            Ok(Err(_)) | Err(_) => false,
        };
        if !ours {
            tracing::warn!("{} is listened on, but not by this config's mcpproxy", self.authority);
        }
        ours
    }

    /// One REST request of a command; `target` is path and query.
    pub(super) async fn request(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
    ) -> Result<HttpAnswer, RequestError> {
        self.send(method, target, command_headers(), body).await?.whole().await
    }

    /// One GET of a command whose answer is read as it is made; of events those after the one of that
    /// id.
    pub(super) async fn stream(
        &self,
        target: &str,
        after: Option<&str>,
    ) -> Result<HttpReply, RequestError> {
        let mut headers = command_headers();
        if let Some(after) = after {
            let id = HeaderValue::from_str(after).map_err(|error| self.not_sent(&error))?;
            headers.insert(LAST_EVENT_ID, id);
        }
        self.send(Method::GET, target, headers, Bytes::new()).await
    }

    /// Sends a request, with the key if there is one, and waits for the head of its reply.
    pub(super) async fn send(
        &self,
        method: Method,
        target: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<HttpReply, RequestError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = Uri::try_from(target).map_err(|error| self.not_sent(&error))?;
        *request.headers_mut() = headers;
        let value = |text: &str| HeaderValue::from_str(text).map_err(|error| self.not_sent(&error));
        request.headers_mut().insert(HOST, value(self.host())?);
        if !self.api_key.is_empty() {
            request.headers_mut().insert(API_KEY, value(&self.api_key)?);
        }
        loop {
            let kept = self.idle.borrow_mut().pop();
            let (mut sender, fresh) = match kept {
                Some(sender) => (sender, false),
                None => (self.connect().await?, true),
            };
            let response = match sender.try_send_request(request).await {
                Ok(response) => response,
                Err(mut error) => match error.take_message() {
                    // The server had closed it while no request used it.
                    Some(unsent) if !fresh => {
                        request = unsent;
                        continue;
                    }
                    Some(_) => return Err(self.not_sent(error.error())),
                    None => return Err(self.broken(error.error())),
                },
            };
            let (head, body) = response.into_parts();
            return Ok(HttpReply { head, body, sender, client: self.clone() });
        }
    }

    /// A fresh connection, whose other end has proven who it is.
    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, RequestError> {
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, self.open()).await;
        let (mut sender, reached) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) if is_nobody(&error) => {
                return Err(RequestError::NobodyListens(self.authority().to_owned()));
            }
            Ok(Err(error)) => return Err(self.not_sent(&error)),
            Err(_) => {
                return Err(
                    self.not_sent(&format_args!("no connection within {CONNECT_TIMEOUT:?}"))
                );
            }
        };
        prove(&mut sender, self.host(), &reached, &self.api_key)
            .await
            .map_err(|why| RequestError::Stranger(self.authority().to_owned(), why))?;
        Ok(sender)
    }

    async fn open(&self) -> io::Result<(SendRequest<Full<Bytes>>, Reached)> {
        let address = match &self.address {
            Address::Tcp(address) => address,
            Address::Unix(path) => {
                let sender = begin(UnixStream::connect(path).await?).await?;
                return Ok((sender, Reached::plainly(self.address.clone())));
            }
        };
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let dialled = stream.peer_addr()?;
        match self.security {
            Security::Plain => Ok((begin(stream).await?, Reached::plainly(dialled.into()))),
            Security::Tls => {
                let (stream, shown) = tls_client::shake(stream, dialled).await?;
                let reached = Reached { address: dialled.into(), certificate: Some(shown) };
                Ok((begin(stream).await?, reached))
            }
        }
    }

    fn not_sent(&self, why: &dyn std::fmt::Display) -> RequestError {
        RequestError::NotSent(self.authority().to_owned(), why.to_string())
    }

    fn broken(&self, why: &dyn std::fmt::Display) -> RequestError {
        RequestError::Broken(self.authority().to_owned(), why.to_string())
    }
}

/// Speaks HTTP/1.1 over it.
async fn begin<S>(stream: S) -> io::Result<SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let begun = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = begun.map_err(io::Error::other)?;
    // It ends with its sender; an error of it shows in the reply.
    tokio::task::spawn_local(connection);
    Ok(sender)
}

/// Nobody listens there: the port is refused, or there is no such socket.
fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

/// What every request of a command carries.
fn command_headers() -> HeaderMap {
    HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (HeaderName::from_static(SOURCE), HeaderValue::from_static("cli")),
    ])
}

/// Whether an answer to `/healthz` is mcpproxy's.
fn is_health(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Health {
        #[serde(rename = "status")]
        _status: String,
        #[serde(rename = "activity")]
        _activity: serde_json::Map<String, serde_json::Value>,
    }
    serde_json::from_slice::<Health>(body).is_ok()
}

/// What to do about a refusal, if there is something.
pub(super) fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => {
            " (the running server has another key: use its config with -c, or set MCPPROXY_API_KEY)"
        }
        _ => "",
    }
}

/// A reply whose body is still to come.
#[derive(Debug)]
pub(super) struct HttpReply {
    head: response::Parts,
    body: Incoming,
    sender: SendRequest<Full<Bytes>>,
    client: HttpClient,
}

impl HttpReply {
    pub(super) fn status(&self) -> StatusCode {
        self.head.status
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, RequestError>> {
        loop {
            let frame = match self.body.frame().await? {
                Ok(frame) => frame,
                Err(error) => return Some(Err(self.client.broken(&error))),
            };
            if let Ok(data) = frame.into_data() {
                return Some(Ok(data));
            }
        }
    }

    /// Gives the connection back, once the body was read to its end.
    pub(super) fn finish(self) {
        let mut idle = self.client.idle.borrow_mut();
        if idle.len() < MAX_IDLE {
            idle.push(self.sender);
        }
    }

    /// The body, of at most `limit` bytes; `None` if it is longer, which closes the connection.
    pub(super) async fn body(mut self, limit: usize) -> Result<Option<Bytes>, RequestError> {
        let mut body = Vec::new();
        while let Some(data) = self.next().await {
            let data = data?;
            if body.len() + data.len() > limit {
                return Ok(None);
            }
            body.extend_from_slice(&data);
        }
        self.finish();
        Ok(Some(body.into()))
    }

    /// The whole answer, of at most [`MAX_ANSWER_BYTES`].
    pub(super) async fn whole(self) -> Result<HttpAnswer, RequestError> {
        let (client, status, headers) =
            (self.client.clone(), self.status(), self.head.headers.clone());
        let too_long =
            || client.broken(&format_args!("the answer is over {MAX_ANSWER_BYTES} bytes"));
        let body = self.body(MAX_ANSWER_BYTES).await?.ok_or_else(too_long)?;
        Ok(HttpAnswer { status, headers, body })
    }

    /// The body as it comes, to its end or its first error.
    pub(super) fn chunks(self) -> impl Stream<Item = Result<Bytes, RequestError>> {
        stream::unfold(self, async |mut reply| {
            let next = reply.next().await?;
            Some((next, reply))
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::api::proof;

    /// Connections are driven by tasks of their own thread.
    fn run<T>(test: impl Future<Output = T>) -> T {
        crate::server::local_runtime().unwrap().block_on(test)
    }

    /// Reads one request.
    async fn read(stream: &mut TcpStream) -> String {
        let mut sent = Vec::new();
        while !sent.ends_with(b"}") && !sent.ends_with(b"\r\n\r\n") {
            let mut chunk = [0; 1024];
            let length = stream.read(&mut chunk).await.unwrap();
            sent.extend_from_slice(&chunk[..length]);
        }
        String::from_utf8(sent).unwrap()
    }

    /// Accepts a connection and proves on it that it knows `key`.
    async fn proven(listener: &TcpListener, key: &str) -> TcpStream {
        let (mut stream, _) = listener.accept().await.unwrap();
        let asked = read(&mut stream).await;
        let nonce = asked.split(['=', ' ']).nth(2).unwrap();
        let nonce = blake3::Hash::from_hex(nonce).unwrap();
        let reached = Reached::plainly(stream.local_addr().unwrap().into());
        let proof = proof::of(key, nonce.as_bytes(), &reached).to_hex();
        let body = format!(r#"{{"success":true,"data":{{"proof":"{proof}"}}}}"#);
        let told = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(told.as_bytes()).await.unwrap();
        stream
    }

    /// Answers with `reply` on one connection, and hands back what it was sent after the proof;
    /// nothing if the other side went away.
    async fn scripted(listener: TcpListener, key: &str, reply: &'static str) -> String {
        let mut stream = proven(&listener, key).await;
        if stream.peek(&mut [0]).await.unwrap() == 0 {
            return String::new();
        }
        let sent = read(&mut stream).await;
        stream.write_all(reply.as_bytes()).await.unwrap();
        sent
    }

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn a_request_carries_key_and_host_and_the_answer_its_bytes() {
        run(async {
            let (listener, address) = listener().await;
            let client = HttpClient::new(address, Security::Plain, "secret");
            let reply = "HTTP/1.1 400 Bad Request\r\ncontent-length: 7\r\nx-request-id: r1\r\n\r\n{\"a\":1}";
            let (sent, answer) = tokio::join!(
                scripted(listener, "secret", reply),
                client.request(Method::GET, "/api/v1/status?x=1", Bytes::new())
            );
            let answer = answer.unwrap();
            assert!(sent.starts_with("GET /api/v1/status?x=1 HTTP/1.1\r\n"), "{sent}");
            assert!(sent.contains("x-api-key: secret"), "{sent}");
            assert!(sent.contains(&format!("host: {address}")), "{sent}");
            assert_eq!(answer.status, StatusCode::BAD_REQUEST);
            assert_eq!(answer.headers["x-request-id"], "r1");
            assert_eq!(answer.body, "{\"a\":1}");
        });
    }

    #[test]
    fn nobody_there_is_told_apart_from_a_broken_answer() {
        run(async {
            let (listener, address) = listener().await;
            let client = HttpClient::new(address, Security::Plain, "k");
            let reply = "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nshort";
            let (_, answer) = tokio::join!(
                scripted(listener, "k", reply),
                client.request(Method::GET, "/", Bytes::new())
            );
            assert!(matches!(answer, Err(RequestError::Broken(..))), "{answer:?}");
            let answer = client.request(Method::GET, "/", Bytes::new()).await;
            assert!(matches!(answer, Err(RequestError::NobodyListens(_))), "{answer:?}");
        });
    }

    #[test]
    fn whoever_has_another_key_is_sent_nothing_after_its_proof() {
        run(async {
            let (listener, address) = listener().await;
            let client = HttpClient::new(address, Security::Plain, "secret");
            let (sent, answer) = tokio::join!(
                scripted(listener, "another", ""),
                client.request(Method::GET, "/", Bytes::new())
            );
            assert!(matches!(answer, Err(RequestError::Stranger(_, NotProven::Wrong))));
            assert_eq!(sent, "");
        });
    }

    #[test]
    fn a_connection_serves_several_requests_and_is_replaced_once_the_server_has_closed_it() {
        run(async {
            let (listener, address) = listener().await;
            let client = HttpClient::new(address, Security::Plain, "k");
            let server = async {
                for requests in [2, 1] {
                    let mut stream = proven(&listener, "k").await;
                    for _ in 0..requests {
                        read(&mut stream).await;
                        let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                        stream.write_all(reply).await.unwrap();
                    }
                }
            };
            let asked = async {
                for _ in 0..2 {
                    client.request(Method::GET, "/", Bytes::new()).await.unwrap();
                }
                while !client.idle.borrow()[0].is_closed() {
                    tokio::task::yield_now().await;
                }
                client.request(Method::GET, "/", Bytes::new()).await.unwrap();
            };
            tokio::join!(server, asked);
        });
    }

    #[test]
    fn wildcard_addresses_are_reached_by_loopback() {
        for (listen, authority) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("0.0.0.0:9000", "127.0.0.1:9000"),
            ("[::]:9000", "[::1]:9000"),
            ("192.168.1.2:80", "192.168.1.2:80"),
        ] {
            let listen: SocketAddr = listen.parse().unwrap();
            assert_eq!(HttpClient::new(listen, Security::Plain, "").authority(), authority);
            let secure = HttpClient::new(listen, Security::Tls, "").mcp_url();
            assert_eq!(secure, format!("https://{authority}/mcp"));
        }
        let socket = Address::parse("unix:/run/a.sock").unwrap();
        let url = HttpClient::new(socket, Security::Plain, "").mcp_url();
        assert_eq!(url, "unix:/run/a.sock:/mcp");
    }
}
