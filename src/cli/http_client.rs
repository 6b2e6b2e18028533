//! HTTP/1.1 client for a running proxy. Commands use it for REST, the demo and the bridge for MCP.
//!
//! Keeps a few idle connections, with one request at a time on each. Dropping a reply before its end closes the
//! connection, which cancels the request. On a new connection the server first proves that it belongs to this config.
//! Redirects and HTTP proxies are not supported, because the server is mcpproxy itself at a configured address.
//!
//! Over TLS any certificate is accepted if the server holds its private key: the proof of the API key (`api::proof`)
//! covers the certificate and precedes any sensitive data. Renewed, self-signed or misnamed certificates therefore
//! work.

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use mcpproxy_admin::api::{SOURCE, proof};
use mcpproxy_downstream::authentication;
use mcpproxy_protocol::mcp::headers::LAST_EVENT_ID;
use mcpproxy_runtime::io::address::{Address, Reached};
use mcpproxy_runtime::io::http_client::{self, HttpConnection};
use mcpproxy_runtime::io::tls::{Fingerprint, fingerprint, provider};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Timeout for connecting to the server, which is local.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of idle connections.
const MAX_IDLE: usize = 8;
/// Maximum size of a buffered response in bytes.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024 * 1024;

/// Characters that are percent-encoded in a path segment or a query value.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const API_KEY: HeaderName = HeaderName::from_static(authentication::HEADER);

/// A buffered response.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Failure of a request. Each variant names the proxy's `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    /// The connection was refused.
    #[error("no mcpproxy is running on {0}")]
    NoListener(String),
    /// Another program is listening. Nothing was sent to it.
    #[error("the program on {0} is not the mcpproxy of this config: {1}; nothing was sent to it")]
    UnexpectedServer(String, NotProven),
    /// No connection was made, and nothing was sent.
    #[error("{0}: {1}")]
    NotSent(String, String),
    /// The request may have been sent; the response is missing or incomplete.
    #[error("{0}: {1}")]
    Broken(String, String),
}

impl RequestError {
    /// The cause without the proxy's address.
    pub(super) fn cause(&self) -> String {
        match self {
            Self::NoListener(_) => "unreachable: no mcpproxy is running there".to_owned(),
            Self::UnexpectedServer(_, why) => format!(
                "unreachable: the program there is not the mcpproxy of this config: {why}; nothing \
                 was sent to it"
            ),
            Self::NotSent(_, why) => format!("unreachable: {why}"),
            Self::Broken(_, why) => format!("the connection broke: {why}"),
        }
    }

    /// Whether the proxy certainly did not receive the request.
    pub(super) fn is_not_sent(&self) -> bool {
        match self {
            Self::NoListener(_) | Self::UnexpectedServer(..) | Self::NotSent(..) => true,
            Self::Broken(..) => false,
        }
    }
}

/// Client for a running proxy, with its API key and connection pool. Clones share the pool, which belongs to one runtime.
#[derive(Clone, Debug)]
pub(super) struct HttpClient {
    address: Address,
    security: Security,
    authority: Rc<str>,
    api_key: Rc<str>,
    idle: Rc<RefCell<Vec<HttpConnection>>>,
}

/// Whether the server uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
    Plain,
    Tls,
}

impl HttpClient {
    /// Creates a client for the configured listen address; a wildcard address is reached through loopback. Does not
    /// connect.
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

    /// Address that the client connects to.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// The `Host` header of requests.
    fn host(&self) -> &str {
        match &self.address {
            Address::Tcp(_) => &self.authority,
            Address::Unix(_) => "localhost",
        }
    }

    /// Returns a client for the same server without the API key.
    pub(super) fn without_key(&self) -> Self {
        Self { api_key: "".into(), idle: Rc::default(), ..self.clone() }
    }

    /// Base URL for a browser; `None` for a Unix socket.
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

    /// URL for MCP clients. For a socket, it has the form that the config key `url` takes.
    pub(super) fn mcp_url(&self) -> String {
        let authority = &self.authority;
        match (&self.address, self.security) {
            (Address::Tcp(_), Security::Plain) => format!("http://{authority}/mcp"),
            (Address::Tcp(_), Security::Tls) => format!("https://{authority}/mcp"),
            (Address::Unix(_), Security::Plain | Security::Tls) => format!("{authority}:/mcp"),
        }
    }

    /// Whether anything listens at the address. Its identity is proven before a request is sent.
    pub(super) async fn is_listening(&self) -> bool {
        let connect = async {
            match &self.address {
                Address::Tcp(address) => TcpStream::connect(address).await.map(drop),
                Address::Unix(path) => UnixStream::connect(path).await.map(drop),
            }
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
            Ok(Err(error)) => !is_refused(&error),
            Ok(Ok(())) | Err(_) => true,
        }
    }

    /// Whether an mcpproxy listens at the address. If a key is set, it must be the proxy of this config and prove it;
    /// without a key, its response to `/healthz` suffices.
    pub(super) async fn is_mcpproxy(&self) -> bool {
        let health = async {
            let reply = self.send(Method::GET, "/healthz", HeaderMap::new(), Bytes::new()).await?;
            reply.buffered().await
        };
        let ours = match tokio::time::timeout(CONNECT_TIMEOUT, health).await {
            Ok(Ok(response)) => is_health(&response.body),
            Ok(Err(RequestError::NoListener(_))) => return false,
            Ok(Err(_)) | Err(_) => false,
        };
        if !ours {
            tracing::warn!(address = %self.authority, "another program listens at the configured address");
        }
        ours
    }

    /// Sends a REST request for a command; `target` is path and query.
    pub(super) async fn request(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
    ) -> Result<HttpResponse, RequestError> {
        self.send(method, target, command_headers(), body).await?.buffered().await
    }

    /// Sends a command's POST under its own request id.
    pub(super) async fn post_as(
        &self,
        request_id: &str,
        target: &str,
        body: Bytes,
    ) -> Result<HttpResponse, RequestError> {
        let mut headers = command_headers();
        let id = HeaderValue::from_str(request_id).map_err(|error| self.not_sent(&error))?;
        headers.insert(REQUEST_ID, id);
        self.send(Method::POST, target, headers, body).await?.buffered().await
    }

    /// Sends a GET with a streamed response; `after` resumes an event stream after the event with this id.
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

    /// Sends a request, with the API key if there is one, and waits for the response head.
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
            let pooled = self.idle.borrow_mut().pop();
            let (connection, fresh) = match pooled {
                Some(connection) => (connection, false),
                None => (self.connect().await?, true),
            };
            match connection.send(request).await {
                Ok(reply) => return Ok(HttpReply { reply, client: self.clone() }),
                Err(error) => match error.unsent {
                    // The server closed the idle connection.
                    Some(unsent) if !fresh => request = *unsent,
                    Some(_) => return Err(self.not_sent(&error.fault)),
                    None => return Err(self.broken(&error.fault)),
                },
            }
        }
    }

    /// Opens a connection and makes the server prove its identity.
    async fn connect(&self) -> Result<HttpConnection, RequestError> {
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, self.open()).await;
        let (connection, reached) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) if is_refused(&error) => {
                return Err(RequestError::NoListener(self.authority().to_owned()));
            }
            Ok(Err(error)) => return Err(self.not_sent(&error)),
            Err(_) => {
                return Err(
                    self.not_sent(&format_args!("no connection within {CONNECT_TIMEOUT:?}"))
                );
            }
        };
        prove(connection, self.host(), &reached, &self.api_key)
            .await
            .map_err(|why| RequestError::UnexpectedServer(self.authority().to_owned(), why))
    }

    async fn open(&self) -> io::Result<(HttpConnection, Reached)> {
        let address = match &self.address {
            Address::Tcp(address) => address,
            Address::Unix(path) => {
                let connection = HttpConnection::over(UnixStream::connect(path).await?).await?;
                return Ok((connection, Reached::plainly(self.address.clone())));
            }
        };
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let dialed = stream.peer_addr()?;
        match self.security {
            Security::Plain => {
                Ok((HttpConnection::over(stream).await?, Reached::plainly(dialed.into())))
            }
            Security::Tls => {
                let (stream, certificate) = tls_handshake(stream, dialed).await?;
                let reached = Reached { address: dialed.into(), certificate: Some(certificate) };
                Ok((HttpConnection::over(stream).await?, reached))
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

/// Whether the port refuses connections, or the socket does not exist.
fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

/// Headers of every command request.
fn command_headers() -> HeaderMap {
    HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (HeaderName::from_static(SOURCE), HeaderValue::from_static("cli")),
    ])
}

/// Whether a body is mcpproxy's response to `/healthz`.
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

/// Message about a running proxy that does not accept the API key of a command, without its subject.
pub(super) const ANOTHER_KEY: &str =
    "uses another API key: pass its config with -c, or set MCPPROXY_API_KEY";

/// Response whose body has not been read yet.
#[derive(Debug)]
pub(super) struct HttpReply {
    reply: http_client::UnreadResponse,
    client: HttpClient,
}

impl HttpReply {
    pub(super) fn status(&self) -> StatusCode {
        self.reply.head.status
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.reply.head.headers
    }

    /// The next chunk; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, RequestError>> {
        let next = self.reply.next().await?;
        Some(next.map_err(|fault| self.client.broken(&fault)))
    }

    /// Returns the connection to the pool; the body must have been read to its end.
    pub(super) fn finish(self) {
        let mut idle = self.client.idle.borrow_mut();
        if idle.len() < MAX_IDLE {
            idle.push(self.reply.into_connection());
        }
    }

    /// Reads a body of at most `limit` bytes; `None` if it is longer, which closes the connection.
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

    /// Reads the whole response, of at most [`MAX_RESPONSE_BYTES`].
    pub(super) async fn buffered(self) -> Result<HttpResponse, RequestError> {
        let (client, status, headers) =
            (self.client.clone(), self.status(), self.headers().clone());
        let too_long =
            || client.broken(&format_args!("the response exceeds {MAX_RESPONSE_BYTES} bytes"));
        let body = self.body(MAX_RESPONSE_BYTES).await?.ok_or_else(too_long)?;
        Ok(HttpResponse { status, headers, body })
    }

    /// Streams the body to its end or first error.
    pub(super) fn chunks(self) -> impl Stream<Item = Result<Bytes, RequestError>> {
        stream::unfold(self, async |mut reply| {
            let next = reply.next().await?;
            Some((next, reply))
        })
    }
}

/// Performs the TLS handshake. Also returns the fingerprint of the server's certificate.
pub(super) async fn tls_handshake(
    stream: TcpStream,
    dialed: SocketAddr,
) -> io::Result<(TlsStream<TcpStream>, Fingerprint)> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    let verifier = Arc::new(AnyCertificateVerifier(provider));
    let config =
        builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    let name = ServerName::from(dialed.ip());
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let leaf = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let leaf = leaf.ok_or_else(|| io::Error::other("the server presented no certificate"))?;
    let certificate = fingerprint(leaf);
    Ok((stream, certificate))
}

/// Certificate verifier that accepts any certificate whose key the server holds, because the API key proves the identity.
#[derive(Debug)]
struct AnyCertificateVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificateVerifier {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _stapled: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Timeout for a proof.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a proof's response in bytes.
const MAX_PROOF_BYTES: usize = 4096;

/// Reason why a listener is not accepted as the proxy of this config.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotProven {
    /// There was no response, or it was not a proof.
    #[error("it does not prove knowledge of the api_key")]
    Silent,
    /// The proof is for another key or address.
    #[error("its proof is for another api_key, or for another address than the dialed one")]
    Wrong,
    /// No random nonce could be generated.
    #[error("no random bytes available for the challenge")]
    NoNonce,
}

/// Makes the server on a connection prove that it knows `api_key` and listens at `dialed`. Later requests on the
/// returned connection reach the same server. Without a key, a proof is not needed.
async fn prove(
    connection: HttpConnection,
    host: &str,
    dialed: &Reached,
    api_key: &str,
) -> Result<HttpConnection, NotProven> {
    #[derive(serde::Deserialize)]
    struct ProofResponse {
        data: ProofData,
    }
    #[derive(serde::Deserialize)]
    struct ProofData {
        proof: String,
    }
    if api_key.is_empty() {
        return Ok(connection);
    }
    let mut nonce = [0; proof::NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|_| NotProven::NoNonce)?;
    let request = Request::get(proof::target(&nonce)).header(HOST, host);
    let request = request.body(Full::default()).map_err(|_| NotProven::Silent)?;
    let response = async {
        let reply = connection.send(request).await.ok()?;
        let (body, connection) = reply.read(MAX_PROOF_BYTES).await.ok()?;
        let response: ProofResponse = serde_json::from_slice(&body).ok()?;
        Some((blake3::Hash::from_hex(response.data.proof).ok()?, connection))
    };
    let received = tokio::time::timeout(PROOF_TIMEOUT, response).await.ok().flatten();
    // Hashes compare in constant time.
    let (received, connection) = received.ok_or(NotProven::Silent)?;
    match received == proof::of(api_key, &nonce, dialed) {
        true => Ok(connection),
        false => Err(NotProven::Wrong),
    }
}

/// Path of MCP, or of the endpoint of one server.
pub(super) fn mcp_path(server: Option<&str>) -> String {
    match server {
        None => "/mcp".to_owned(),
        Some(name) => format!("/mcp/server/{}", utf8_percent_encode(name, ESCAPED)),
    }
}

/// Builds path and query. Segments and values are percent-encoded; absent parameters are omitted.
pub(super) fn target(segments: &[&str], query: &[(&str, Option<&str>)]) -> String {
    let mut target = String::from("/api/v1");
    for segment in segments {
        target.push('/');
        target.extend(utf8_percent_encode(segment, ESCAPED));
    }
    let present = query.iter().filter_map(|(name, value)| value.map(|value| (name, value)));
    for (index, (name, value)) in present.enumerate() {
        target.push(if index == 0 { '?' } else { '&' });
        target.push_str(name);
        target.push('=');
        target.extend(utf8_percent_encode(value, ESCAPED));
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_admin::api::proof;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Connections are driven by tasks of the current thread.
    fn run<T>(test: impl Future<Output = T>) -> T {
        mcpproxy_server::local_runtime().unwrap().block_on(test)
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

    /// Accepts a connection and proves knowledge of `key` on it.
    async fn proven(listener: &TcpListener, key: &str) -> TcpStream {
        let (mut stream, _) = listener.accept().await.unwrap();
        let requests_done = read(&mut stream).await;
        let nonce = requests_done.split(['=', ' ']).nth(2).unwrap();
        let nonce = blake3::Hash::from_hex(nonce).unwrap();
        let reached = Reached::plainly(stream.local_addr().unwrap().into());
        let proof = proof::of(key, nonce.as_bytes(), &reached).to_hex();
        let body = format!(r#"{{"success":true,"data":{{"proof":"{proof}"}}}}"#);
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(response.as_bytes()).await.unwrap();
        stream
    }

    /// Answers one connection with `reply` and returns the request received after the proof; empty if the client
    /// closed the connection.
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
    fn request_carries_key_and_host_and_response_keeps_its_bytes() {
        run(async {
            let (listener, address) = listener().await;
            let client = HttpClient::new(address, Security::Plain, "secret");
            let reply = "HTTP/1.1 400 Bad Request\r\ncontent-length: 7\r\nx-request-id: r1\r\n\r\n{\"a\":1}";
            let (sent, response) = tokio::join!(
                scripted(listener, "secret", reply),
                client.request(Method::GET, "/api/v1/status?x=1", Bytes::new())
            );
            let response = response.unwrap();
            assert!(sent.starts_with("GET /api/v1/status?x=1 HTTP/1.1\r\n"), "{sent}");
            assert!(sent.contains("x-api-key: secret"), "{sent}");
            assert!(sent.contains(&format!("host: {address}")), "{sent}");
            assert_eq!(response.status, StatusCode::BAD_REQUEST);
            assert_eq!(response.headers["x-request-id"], "r1");
            assert_eq!(response.body, "{\"a\":1}");
        });
    }

    #[test]
    fn refused_connection_differs_from_truncated_response() {
        run(async {
            let (listener, address) = listener().await;
            let client = HttpClient::new(address, Security::Plain, "k");
            let reply = "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nshort";
            let (_, response) = tokio::join!(
                scripted(listener, "k", reply),
                client.request(Method::GET, "/", Bytes::new())
            );
            assert!(matches!(response, Err(RequestError::Broken(..))), "{response:?}");
            let response = client.request(Method::GET, "/", Bytes::new()).await;
            assert!(matches!(response, Err(RequestError::NoListener(_))), "{response:?}");
        });
    }

    #[test]
    fn server_with_another_key_receives_no_request() {
        run(async {
            let (listener, address) = listener().await;
            let client = HttpClient::new(address, Security::Plain, "secret");
            let (sent, response) = tokio::join!(
                scripted(listener, "another", ""),
                client.request(Method::GET, "/", Bytes::new())
            );
            assert!(matches!(response, Err(RequestError::UnexpectedServer(_, NotProven::Wrong))));
            assert_eq!(sent, "");
        });
    }

    #[test]
    fn connection_is_reused_until_the_server_closes_it() {
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
            let requests_done = async {
                for _ in 0..2 {
                    client.request(Method::GET, "/", Bytes::new()).await.unwrap();
                }
                while client.idle.borrow_mut()[0].is_open() {
                    tokio::task::yield_now().await;
                }
                client.request(Method::GET, "/", Bytes::new()).await.unwrap();
            };
            tokio::join!(server, requests_done);
        });
    }

    #[test]
    fn wildcard_addresses_are_reached_over_loopback() {
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
