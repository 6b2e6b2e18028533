//! Tests of upstreams against misbehaving servers, on real sockets and child processes.
//!
//! [`Fake`] is an HTTP server whose responses the test chooses.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use crate::http::Pool;
use crate::reaper::Reaper;
use crate::request::CallExtras;
use crate::stderr_log::StderrLog;
use crate::supervisor::{Event, MAX_RETIRING, ServerPlan, ServerState, Status, Supervisor};
use crate::{
    Answer, AnswerPart, CallAttempt, CallError, CallGuard, Config, PermittedCall, Upstream,
};
use mcpproxy_catalog::Catalog;
use mcpproxy_catalog::settings::Settings;
use mcpproxy_policy::intent::{self, Operation, Stated};
use mcpproxy_policy::tool::ToolName;
use mcpproxy_policy::{
    self as policy, Access, Admission, AdmissionRequest, Permit, Principal, ResourceRequest,
    SessionFacts, ToolAccess, admit,
};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_runtime::secrets::Secrets;

mod encodings;
mod families;
mod http;
mod inbound;
mod lists;
mod reconnect;
mod redirects;
mod secrets;
mod stdio;

/// Time limit for any operation in these tests.
const PATIENCE: Duration = Duration::from_secs(20);

/// Permit for `access` under default settings.
fn permitted(access: Access) -> Permit {
    let request = AdmissionRequest {
        principal: &Principal::Anonymous,
        access,
        arguments: b"",
        meta: b"",
        inputs: b"",
        intent: None,
        client: "",
        session: SessionFacts::default(),
        carries_out: false,
        now: std::time::SystemTime::UNIX_EPOCH,
    };
    match admit(request, &policy::Settings::default()) {
        Admission::Permit(permit) => permit,
        refused @ (Admission::Pending(_) | Admission::Queued(_) | Admission::Denial(_)) => {
            panic!("{refused:?}")
        }
    }
}

/// Catalog, supervisor and one worker's pool.
struct Bench {
    catalog: Arc<Catalog>,
    supervisor: Supervisor,
    pool: Rc<Pool>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Bench {
    /// Starts the servers of an `mcpServers` object.
    fn start(servers: serde_json::Value) -> Self {
        let configs: Vec<(Arc<str>, Config)> = servers
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, entry)| {
                (name.as_str().into(), serde_json::from_value(entry.clone()).unwrap())
            })
            .collect();
        let settings = Settings {
            servers: configs.iter().map(|(name, _)| (name.clone(), Default::default())).collect(),
            ..Settings::default()
        };
        let secrets = configs.iter().flat_map(|(_, config)| config.secrets());
        let secrets = Arc::new(Secrets::new(secrets));
        let catalog = Arc::new(Catalog::new(settings));
        let events = Arc::new(Mutex::new(Vec::new()));
        let log = events.clone();
        let supervisor = Supervisor::start(
            configs,
            Reaper::new(None),
            catalog.clone(),
            secrets,
            StderrLog::default(),
            move |event| log.lock().push(event),
            &Handle::current(),
        );
        Self { catalog, supervisor, pool: Rc::new(Pool::new()), events }
    }

    fn upstream(&self, name: &str) -> Arc<Upstream> {
        self.supervisor.get(name).unwrap().clone()
    }

    /// Waits until a server's state satisfies a condition.
    async fn wait_until(&self, name: &str, what: impl Fn(&ServerState) -> bool) -> ServerState {
        let upstream = self.upstream(name);
        within(upstream.state.wait_for(|_| Some(upstream.state()).filter(&what))).await
    }

    async fn connected(&self, name: &str) -> ServerState {
        self.wait_until(name, |state| state.status == Status::Connected).await
    }

    fn permit(&self, name: &str) -> Permit {
        let name = ToolName::parse(name).unwrap();
        let tool = self.catalog.load().tool(&name).expect("a discovered tool").clone();
        let stated = Stated::parse(&[("intent".into(), r#"{"operation_type":"destructive"}"#)]);
        let settings = intent::Settings::default();
        let intent = stated.check(Operation::Destructive, &settings).unwrap();
        permitted(Access::Tool(ToolAccess::declared(tool, &intent)))
    }

    async fn begin(&self, name: &str, arguments: &str) -> Result<Answer, CallError> {
        let arguments = Bytes::copy_from_slice(arguments.as_bytes());
        let extras = CallExtras::default();
        within(self.send(&self.permit(name), arguments, extras, Instant::now())).await
    }

    /// Starts a call with these extras.
    async fn begin_with(&self, name: &str, beside: CallExtras) -> Result<Answer, CallError> {
        let arguments = Bytes::from_static(b"{}");
        within(self.send(&self.permit(name), arguments, beside, Instant::now())).await
    }

    async fn send(
        &self,
        permit: &Permit,
        body: Bytes,
        extras: CallExtras,
        began: Instant,
    ) -> Result<Answer, CallError> {
        let upstream = self.upstream(permit.access().server());
        let guard = CallGuard::enter(&upstream).expect("an open server");
        let attempt = CallAttempt::First;
        guard.call(&self.pool, PermittedCall { permit, body, extras, began, attempt }).await
    }

    /// Returns the messages of a call, up to the end of its stream.
    async fn call(&self, name: &str, arguments: &str) -> Result<Vec<String>, CallError> {
        let mut answer = self.begin(name, arguments).await?;
        let mut messages = Vec::new();
        while let Some(message) = next_message(&mut answer).await? {
            messages.push(message);
        }
        Ok(messages)
    }

    /// Text of a call's error.
    async fn error(&self, name: &str) -> String {
        self.call(name, "{}").await.expect_err("an error").to_string()
    }

    async fn stop(self) {
        within(self.supervisor.shutdown(Instant::now() + Duration::from_secs(1))).await;
    }
}

/// Reads the next complete message; `None` at the end of the stream.
async fn next_message(answer: &mut Answer) -> Result<Option<String>, CallError> {
    let mut message = Vec::new();
    loop {
        match within(answer.next()).await? {
            Some(AnswerPart::Data(data)) => {
                assert!(!data.is_empty());
                message.extend_from_slice(&data);
            }
            Some(AnswerPart::End) => return Ok(Some(String::from_utf8(message).unwrap())),
            Some(AnswerPart::Interrupted) => assert!(message.is_empty(), "within a message"),
            None => {
                assert!(message.is_empty(), "the stream ended within a message");
                return Ok(None);
            }
        }
    }
}

/// Reads the next request of a connection, with head and body; `None` at the end.
async fn next_request(
    stream: &mut BufReader<impl AsyncRead + Unpin>,
) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    let length = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some((head, body)))
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it took too long")
}

/// Response of a scripted server to a call.
fn result(id: u64, text: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
        .to_string()
}

#[tokio::test]
async fn server_without_an_address_fails_with_the_reason() {
    let bench = Bench::start(json!({"bad": {}, "off": {"command": "x", "enabled": false}}));
    let state = bench.wait_until("bad", |state| state.status == Status::Failed).await;
    assert_eq!(&*state.reason, "neither command nor url is given");
    assert_eq!(bench.upstream("off").state().status, Status::Disabled);
    assert!(bench.supervisor.settled());
    assert_eq!(
        bench.upstream("bad").reached(Instant::now() + PATIENCE).await.unwrap_err(),
        "bad: the server is not connected: neither command nor url is given"
    );
    assert!(matches!(&bench.events.lock()[..], [Event::Server(_)]));
    bench.stop().await;
}

#[tokio::test]
async fn server_with_an_unset_variable_fails_alone() {
    let bench = Bench::start(json!({
        "s": {"url": "http://127.0.0.1:9/", "headers": {"X": "${env:MCPPROXY_NOT_SET}"}}
    }));
    let state = bench.wait_until("s", |state| state.status == Status::Failed).await;
    assert_eq!(
        &*state.reason,
        "environment variable MCPPROXY_NOT_SET, referenced by headers.X, is not set"
    );
    bench.stop().await;
}

#[derive(Clone, Debug)]
struct Request {
    verb: String,
    head: String,
    body: Value,
}

impl Request {
    fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    fn header(&self, name: &str) -> Option<String> {
        let line =
            self.head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    }
}

/// Response chosen by a test.
enum Say {
    Raw(String),
    /// A response with a body that is not text.
    Bytes(Vec<u8>),
    /// An event stream: one event per message, until the channel is closed.
    Events(mpsc::UnboundedReceiver<String>),
    /// Sends these bytes and closes the connection.
    Cut(String),
    Nothing,
}

impl Say {
    fn result(seen: &Request, result: Value) -> Self {
        Self::json(json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result}))
    }

    fn error(seen: &Request, code: i64, text: &str) -> Self {
        let error = json!({"code": code, "message": text});
        Self::json(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}))
    }

    fn json(body: Value) -> Self {
        Self::status("200 OK", "application/json", &body.to_string())
    }

    fn status(line: &str, kind: &str, body: &str) -> Self {
        let length = body.len();
        Self::Raw(format!(
            "HTTP/1.1 {line}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
    }

    /// A stream that ends after these events.
    fn stream(events: &str) -> Self {
        Self::status("200 OK", "text/event-stream", events)
    }

    fn accepted() -> Self {
        Self::Raw("HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".into())
    }

    /// An event stream and the sender of its events.
    fn events() -> (mpsc::UnboundedSender<String>, Self) {
        let (sender, events) = mpsc::unbounded_channel();
        (sender, Self::Events(events))
    }

    /// Adds a header.
    fn with(self, line: &str) -> Self {
        match self {
            Self::Raw(bytes) => Self::Raw(bytes.replacen("\r\n", &format!("\r\n{line}\r\n"), 1)),
            other => other,
        }
    }
}

type Answers = dyn Fn(&Request) -> Say + Send + Sync;

#[derive(Clone)]
struct Fake {
    url: String,
    seen: Arc<watch::Sender<Vec<Request>>>,
    /// Number of connections that the peer closed during a response.
    closed: Arc<watch::Sender<usize>>,
    calling: Arc<AtomicUsize>,
}

impl Fake {
    async fn start(answers: impl Fn(&Request) -> Say + Send + Sync + 'static) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), answers).await
    }

    async fn start_at(
        address: SocketAddr,
        answers: impl Fn(&Request) -> Say + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let fake = Self {
            url: format!("http://{}/mcp", listener.local_addr().unwrap()),
            seen: Arc::default(),
            closed: Arc::default(),
            calling: Arc::default(),
        };
        let (it, answers): (Self, Arc<Answers>) = (fake.clone(), Arc::new(answers));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (it, answers) = (it.clone(), answers.clone());
                tokio::spawn(async move {
                    let _ = it.speak(stream, &*answers).await;
                });
            }
        });
        fake
    }

    fn bench(&self) -> Bench {
        Bench::start(json!({"web": {"url": self.url}}))
    }

    /// Requests received so far with this method.
    fn seen(&self, method: &str) -> Vec<Request> {
        self.seen.borrow().iter().filter(|seen| seen.method() == method).cloned().collect()
    }

    /// Waits for this number of requests with a method and returns the last one.
    async fn wait_for_count(&self, method: &str, count: usize) -> Request {
        let mut seen = self.seen.subscribe();
        let of = |all: &[Request]| all.iter().filter(|seen| seen.method() == method).count();
        within(seen.wait_for(|seen| of(seen) >= count)).await.unwrap();
        self.seen(method).pop().unwrap()
    }

    /// Number of requests so far that satisfy a condition.
    fn count(&self, what: impl Fn(&Request) -> bool) -> usize {
        self.seen.borrow().iter().filter(|seen| what(seen)).count()
    }

    /// Waits for a request that satisfies a condition and returns the first one.
    async fn wait_until(&self, what: impl Fn(&Request) -> bool) -> Request {
        let mut seen = self.seen.subscribe();
        let found = within(seen.wait_for(|seen| seen.iter().any(&what))).await.unwrap();
        found.iter().find(|seen| what(seen)).unwrap().clone()
    }

    async fn speak(&self, stream: TcpStream, answers: &Answers) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        let mut called = false;
        while let Some((head, body)) = next_request(&mut stream).await? {
            let verb = head.split(' ').next().unwrap().to_owned();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let seen = Request { verb, head, body };
            if seen.method() == "tools/call" && !std::mem::replace(&mut called, true) {
                self.calling.fetch_add(1, Ordering::Relaxed);
            }
            let say = answers(&seen);
            self.seen.send_modify(|all| all.push(seen));
            match say {
                Say::Raw(bytes) => stream.write_all(bytes.as_bytes()).await?,
                Say::Bytes(bytes) => stream.write_all(&bytes).await?,
                Say::Cut(bytes) => return stream.write_all(bytes.as_bytes()).await,
                Say::Nothing => {
                    let _ = stream.read_u8().await;
                    self.closed.send_modify(|closed| *closed += 1);
                    return Ok(());
                }
                Say::Events(mut events) => {
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                                transfer-encoding: chunked\r\n\r\n";
                    stream.write_all(head.as_bytes()).await?;
                    loop {
                        tokio::select! {
                            event = events.recv() => {
                                let Some(event) = event else { break };
                                let event = format!("data: {event}\n\n");
                                let chunk = format!("{:x}\r\n{event}\r\n", event.len());
                                stream.write_all(chunk.as_bytes()).await?;
                            }
                            _ = stream.fill_buf() => {
                                self.closed.send_modify(|closed| *closed += 1);
                                return Ok(());
                            }
                        }
                    }
                    stream.write_all(b"0\r\n\r\n").await?;
                }
            }
        }
        Ok(())
    }
}

/// A well-behaved legacy server.
fn legacy(seen: &Request) -> Say {
    match (seen.verb.as_str(), seen.method()) {
        ("POST", "initialize") => Say::result(
            seen,
            json!({"protocolVersion": "2025-11-25", "serverInfo": {"name": "old", "version": "1"},
                "capabilities": {"tools": {"listChanged": true}, "prompts": {}}}),
        )
        .with("mcp-session-id: s-1"),
        ("POST", "tools/list") => {
            Say::result(seen, json!({"tools": [{"name": "t", "inputSchema": {}}]}))
        }
        ("POST", method) if method.starts_with("notifications/") => Say::accepted(),
        // A client's response to a server request.
        ("POST", "") => Say::accepted(),
        ("POST", "tools/call") => Say::result(seen, json!({"content": []})),
        ("POST", _) => Say::error(seen, -32601, "no such method"),
        (_, _) => Say::Raw("HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n".into()),
    }
}

/// A well-behaved modern server.
fn modern(seen: &Request) -> Say {
    let whole = json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private"});
    let with = |more: Value| {
        let mut result = whole.clone();
        result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Say::result(seen, result)
    };
    match (seen.verb.as_str(), seen.method()) {
        ("POST", "server/discover") => with(json!({
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {"listChanged": true}, "resources": {"listChanged": true}},
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "new", "version": "2"}},
        })),
        ("POST", "tools/list") => with(json!({"tools": [{"name": "t", "inputSchema": {}}]})),
        ("POST", "tools/call") => with(json!({"content": []})),
        ("POST", _) => {
            let body = json!({"jsonrpc": "2.0", "id": seen.body["id"],
                "error": {"code": -32601, "message": "no such method"}});
            Say::status("404 Not Found", "application/json", &body.to_string())
        }
        (_, _) => Say::Raw("HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n".into()),
    }
}
