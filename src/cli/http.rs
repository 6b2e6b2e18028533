//! A small HTTP/1 client for a proxy that already runs: REST for the commands, MCP for the demo.
//!
//! One connection per request, whole bodies but for what is streamed: a command makes a handful of
//! requests. It deliberately knows nothing of TLS, redirects or proxies; the server is ours and on
//! an address of the config.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::api::{SOURCE, proof};
use crate::mcp::headers::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID};
use crate::mcp::revisions::Revision;

/// Most time for a connection to be made; the server is near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Most time for whoever listens to prove that it is ours.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of a proof's answer.
const MAX_PROOF_BYTES: usize = 4096;

/// Most bytes of one answer.
const MAX_ANSWER_BYTES: usize = 1024 * 1024 * 1024;

/// The protocol revision the demo speaks.
const MCP_REVISION: &str = Revision::June2025.name();

/// A whole answer.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    /// Nobody listens there.
    #[error("nobody listens on {0}")]
    NobodyThere(String),
    /// Somebody else does; nothing was sent.
    #[error("what listens on {0} is not the mcpproxy of this config: {1}; nothing was sent to it")]
    Stranger(String, NotProven),
    /// Somebody does, or the network does not get there.
    #[error("{0}: {1}")]
    Broken(String, String),
}

/// Why a listener is not taken for the mcpproxy of a config.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotProven {
    /// No answer, or none that is a proof.
    #[error("it gives no proof that it knows the api_key")]
    Silent,
    /// A proof by another key or for another address.
    #[error("its proof is of another api_key, or of another address than the one asked")]
    Wrong,
    /// The nonce could not be made.
    #[error("there is no randomness to ask it with")]
    NoNonce,
}

/// Where a running proxy is, and how to be let in.
#[derive(Clone, Debug)]
pub(super) struct HttpClient {
    authority: String,
    api_key: String,
}

impl HttpClient {
    /// `listen` is the config's: a wildcard address is reached by loopback.
    pub(super) fn new(listen: SocketAddr, api_key: &str) -> Self {
        let ip = match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let authority = SocketAddr::new(ip, listen.port()).to_string();
        Self { authority, api_key: api_key.to_owned() }
    }

    /// `host:port`.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// Whether anybody listens there. Who it is shows before anything is sent.
    pub(super) async fn is_there(&self) -> bool {
        let connect = TcpStream::connect(&self.authority);
        match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
            Ok(Err(error)) => error.kind() != io::ErrorKind::ConnectionRefused,
            Ok(Ok(_)) | Err(_) => true,
        }
    }

    /// Whether it is mcpproxy that listens there: with a key the one of this config, which proves
    /// it; without one there is nothing to prove, and nothing to lose, and its word is taken.
    pub(super) async fn is_mcpproxy(&self) -> bool {
        let health =
            exchange(&self.authority, &self.api_key, Request::get("/healthz"), Bytes::new());
        let ours = match tokio::time::timeout(CONNECT_TIMEOUT, health).await {
            Ok(Ok(answer)) => is_health(&answer.body),
            Ok(Err(Unanswered::NobodyThere(_))) => return false,
            Ok(Err(_)) | Err(_) => false,
        };
        if !ours {
            tracing::warn!("{} is listened on, but not by this config's mcpproxy", self.authority);
        }
        ours
    }

    /// One REST request; `target` is path and query.
    pub(super) async fn request(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
    ) -> Result<HttpAnswer, Unanswered> {
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header("x-api-key", &self.api_key)
            .header(SOURCE, "cli");
        exchange(&self.authority, &self.api_key, request, body).await
    }

    /// One GET whose answer's body comes as it is made; of events those after the one of that id.
    /// The connection is driven beside, by this thread.
    pub(super) async fn stream(
        &self,
        target: &str,
        after: Option<&str>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let mut request =
            Request::get(target).header("x-api-key", &self.api_key).header(SOURCE, "cli");
        if let Some(after) = after {
            request = request.header(LAST_EVENT_ID, after);
        }
        let (mut sender, connection, dialled, request) =
            connect(&self.authority, request, Bytes::new()).await?;
        // How it ends shows in the body.
        tokio::task::spawn_local(connection);
        prove(&mut sender, &self.authority, dialled, &self.api_key)
            .await
            .map_err(|why| Unanswered::Stranger(self.authority.clone(), why))?;
        let answer = sender.send_request(request).await;
        answer.map_err(|error| Unanswered::Broken(self.authority.clone(), error.to_string()))
    }
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

/// One MCP session over streamable HTTP, as an agent has it.
#[derive(Debug)]
pub(super) struct McpSession {
    authority: String,
    session: Option<String>,
    last_id: u64,
}

impl McpSession {
    /// Connects and does the `initialize` handshake.
    pub(super) async fn open(authority: &str) -> Result<Self, Unanswered> {
        let mut session = Self { authority: authority.to_owned(), session: None, last_id: 0 };
        let client = serde_json::json!({
            "protocolVersion": MCP_REVISION, "capabilities": {},
            "clientInfo": {"name": "mcpproxy-demo", "version": env!("CARGO_PKG_VERSION")},
        });
        let answer = session.request("initialize", &client).await?;
        let id = answer.headers.get(SESSION_ID).and_then(|id| id.to_str().ok());
        session.session = id.map(str::to_owned);
        let ready = serde_json::json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        session.post(ready.to_string()).await?;
        Ok(session)
    }

    /// One `tools/call`; the answer's body is the JSON-RPC message as it came.
    pub(super) async fn call(
        &mut self,
        tool: &str,
        arguments: &serde_json::Value,
    ) -> Result<HttpAnswer, Unanswered> {
        let params = serde_json::json!({"name": tool, "arguments": arguments});
        self.request("tools/call", &params).await
    }

    async fn request(
        &mut self,
        method: &str,
        params: &serde_json::Value,
    ) -> Result<HttpAnswer, Unanswered> {
        self.last_id += 1;
        let message = serde_json::json!({
            "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params,
        });
        self.post(message.to_string()).await
    }

    async fn post(&self, message: String) -> Result<HttpAnswer, Unanswered> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri("/mcp")
            .header(ACCEPT, "application/json, text/event-stream")
            .header(PROTOCOL_VERSION, MCP_REVISION);
        if let Some(session) = &self.session {
            request = request.header(SESSION_ID, session);
        }
        exchange(&self.authority, "", request, message.into()).await
    }
}

/// A connection, the address it leads to, and a request that is ready to go out on it.
type Connected = (
    http1::SendRequest<Full<Bytes>>,
    http1::Connection<TokioIo<TcpStream>, Full<Bytes>>,
    SocketAddr,
    Request<Full<Bytes>>,
);

async fn connect(
    authority: &str,
    request: http::request::Builder,
    body: Bytes,
) -> Result<Connected, Unanswered> {
    let broken =
        |error: &dyn std::fmt::Display| Unanswered::Broken(authority.to_owned(), error.to_string());
    let request = request
        .header(HOST, authority)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .map_err(|error| broken(&error))?;
    let stream = match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(authority)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Err(Unanswered::NobodyThere(authority.to_owned()));
        }
        Ok(Err(error)) => return Err(broken(&error)),
        Err(_) => return Err(broken(&"no connection within 5s")),
    };
    let dialled = stream.peer_addr().map_err(|error| broken(&error))?;
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
    Ok((sender, connection, dialled, request))
}

/// Has whoever is at the other end of a connection prove that it knows `api_key` and listens at
/// the address `dialled`. What follows on the same connection goes to no one else. Without a key
/// there is nothing to prove.
pub(super) async fn prove(
    sender: &mut http1::SendRequest<Full<Bytes>>,
    authority: &str,
    dialled: SocketAddr,
    api_key: &str,
) -> Result<(), NotProven> {
    #[derive(serde::Deserialize)]
    struct HttpAnswer {
        data: Data,
    }
    #[derive(serde::Deserialize)]
    struct Data {
        proof: String,
    }
    if api_key.is_empty() {
        return Ok(());
    }
    let mut nonce = [0; proof::NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|_| NotProven::NoNonce)?;
    let request = Request::get(proof::target(&nonce)).header(HOST, authority);
    let request = request.body(Full::default()).map_err(|_| NotProven::Silent)?;
    let told = async {
        let body = sender.send_request(request).await.ok()?.into_body();
        let body = Limited::new(body, MAX_PROOF_BYTES).collect().await.ok()?.to_bytes();
        sender.ready().await.ok()?;
        let answer: HttpAnswer = serde_json::from_slice(&body).ok()?;
        blake3::Hash::from_hex(answer.data.proof).ok()
    };
    let told = tokio::time::timeout(PROOF_TIMEOUT, told).await.ok().flatten();
    // The comparison of hashes takes the same time wherever they differ.
    match told.ok_or(NotProven::Silent)? == proof::of(api_key, &nonce, dialled) {
        true => Ok(()),
        false => Err(NotProven::Wrong),
    }
}

/// Connects, has the listener prove that it is ours if there is a key to lose, sends, and reads the
/// whole answer, driving the connection here.
async fn exchange(
    authority: &str,
    api_key: &str,
    request: http::request::Builder,
    body: Bytes,
) -> Result<HttpAnswer, Unanswered> {
    let broken =
        |error: &dyn std::fmt::Display| Unanswered::Broken(authority.to_owned(), error.to_string());
    let (mut sender, connection, dialled, request) = connect(authority, request, body).await?;
    let answer = async move {
        prove(&mut sender, authority, dialled, api_key)
            .await
            .map_err(|why| Unanswered::Stranger(authority.to_owned(), why))?;
        let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER_BYTES);
        let body = body.collect().await.map_err(|error| broken(&error))?.to_bytes();
        Ok(HttpAnswer { status: parts.status, headers: parts.headers, body })
    };
    // The connection ends once the sender is gone; what it has to say is in the answer's error.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

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

    /// Proves on one connection that it knows `key`, answers with `reply`, and hands back what it
    /// was sent after the proof; nothing if the other side went away.
    async fn scripted(listener: TcpListener, key: &str, reply: &'static str) -> String {
        let (mut stream, _) = listener.accept().await.unwrap();
        let asked = read(&mut stream).await;
        let nonce = asked.split(['=', ' ']).nth(2).unwrap();
        let nonce = blake3::Hash::from_hex(nonce).unwrap();
        let proof = proof::of(key, nonce.as_bytes(), stream.local_addr().unwrap()).to_hex();
        let body = format!(r#"{{"success":true,"data":{{"proof":"{proof}"}}}}"#);
        let told = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(told.as_bytes()).await.unwrap();
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

    #[tokio::test]
    async fn a_request_carries_key_and_host_and_the_answer_its_bytes() {
        let (listener, address) = listener().await;
        let client = HttpClient::new(address, "secret");
        let reply =
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 7\r\nx-request-id: r1\r\n\r\n{\"a\":1}";
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
    }

    #[tokio::test]
    async fn nobody_there_is_told_apart_from_a_broken_answer() {
        let (listener, address) = listener().await;
        let client = HttpClient::new(address, "k");
        let reply = "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nshort";
        let (_, answer) = tokio::join!(
            scripted(listener, "k", reply),
            client.request(Method::GET, "/", Bytes::new())
        );
        assert!(matches!(answer, Err(Unanswered::Broken(..))), "{answer:?}");
        let answer = client.request(Method::GET, "/", Bytes::new()).await;
        assert!(matches!(answer, Err(Unanswered::NobodyThere(_))), "{answer:?}");
    }

    #[tokio::test]
    async fn whoever_has_another_key_is_sent_nothing_after_its_proof() {
        let (listener, address) = listener().await;
        let client = HttpClient::new(address, "secret");
        let (sent, answer) = tokio::join!(
            scripted(listener, "another", ""),
            client.request(Method::GET, "/", Bytes::new())
        );
        assert!(matches!(answer, Err(Unanswered::Stranger(_, NotProven::Wrong))), "{answer:?}");
        assert_eq!(sent, "");
    }

    #[test]
    fn wildcard_addresses_are_reached_by_loopback() {
        for (listen, authority) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("0.0.0.0:9000", "127.0.0.1:9000"),
            ("[::]:9000", "[::1]:9000"),
            ("192.168.1.2:80", "192.168.1.2:80"),
        ] {
            assert_eq!(HttpClient::new(listen.parse().unwrap(), "").authority(), authority);
        }
    }
}
