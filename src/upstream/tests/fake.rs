//! A server over HTTP whose every answer a test decides.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use super::*;

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) verb: String,
    pub(super) head: String,
    pub(super) body: Value,
}

impl Seen {
    pub(super) fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    /// A header's value.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let line =
            self.head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    }
}

/// What a test says to a request.
pub(super) enum Say {
    /// These bytes.
    Raw(String),
    /// An event stream: each message is one event, and the end of the channel its end.
    Events(mpsc::UnboundedReceiver<String>),
    /// These bytes, and then the connection is closed.
    Cut(String),
    /// Nothing, ever.
    Nothing,
}

impl Say {
    /// A result.
    pub(super) fn result(seen: &Seen, result: Value) -> Self {
        Self::json(json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result}))
    }

    pub(super) fn error(seen: &Seen, code: i64, text: &str) -> Self {
        let error = json!({"code": code, "message": text});
        Self::json(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}))
    }

    pub(super) fn json(body: Value) -> Self {
        Self::status("200 OK", "application/json", &body.to_string())
    }

    pub(super) fn status(line: &str, kind: &str, body: &str) -> Self {
        let length = body.len();
        Self::Raw(format!(
            "HTTP/1.1 {line}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
    }

    /// A stream that ends after these events.
    pub(super) fn stream(events: &str) -> Self {
        Self::status("200 OK", "text/event-stream", events)
    }

    pub(super) fn accepted() -> Self {
        Self::Raw("HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".into())
    }

    /// A stream and the end that the test writes to.
    pub(super) fn events() -> (mpsc::UnboundedSender<String>, Self) {
        let (sender, events) = mpsc::unbounded_channel();
        (sender, Self::Events(events))
    }

    /// Adds a header to it.
    pub(super) fn with(self, line: &str) -> Self {
        match self {
            Self::Raw(bytes) => Self::Raw(bytes.replacen("\r\n", &format!("\r\n{line}\r\n"), 1)),
            other => other,
        }
    }
}

type Answers = dyn Fn(&Seen) -> Say + Send + Sync;

#[derive(Clone)]
pub(super) struct Fake {
    pub(super) url: String,
    seen: Arc<watch::Sender<Vec<Seen>>>,
    /// Connections that the peer closed while their answers were being written or waited for.
    pub(super) closed: Arc<watch::Sender<usize>>,
    /// Connections over which calls came.
    pub(super) calling: Arc<AtomicUsize>,
}

impl Fake {
    pub(super) async fn start(answers: impl Fn(&Seen) -> Say + Send + Sync + 'static) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), answers).await
    }

    pub(super) async fn start_at(
        address: SocketAddr,
        answers: impl Fn(&Seen) -> Say + Send + Sync + 'static,
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

    pub(super) fn bench(&self) -> Bench {
        Bench::start(json!({"web": {"url": self.url}}))
    }

    /// The requests of a method so far.
    pub(super) fn seen(&self, method: &str) -> Vec<Seen> {
        self.seen.borrow().iter().filter(|seen| seen.method() == method).cloned().collect()
    }

    /// Waits until so many requests of a method have come, and returns the last of them.
    pub(super) async fn until_seen(&self, method: &str, count: usize) -> Seen {
        let mut seen = self.seen.subscribe();
        let of = |all: &[Seen]| all.iter().filter(|seen| seen.method() == method).count();
        within(seen.wait_for(|seen| of(seen) >= count)).await.unwrap();
        self.seen(method).pop().unwrap()
    }

    /// How many requests so far are as asked.
    pub(super) fn count(&self, what: impl Fn(&Seen) -> bool) -> usize {
        self.seen.borrow().iter().filter(|seen| what(seen)).count()
    }

    /// Waits until a request is as asked, and returns the first such.
    pub(super) async fn until(&self, what: impl Fn(&Seen) -> bool) -> Seen {
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
            let seen = Seen { verb, head, body };
            if seen.method() == "tools/call" && !std::mem::replace(&mut called, true) {
                self.calling.fetch_add(1, Ordering::Relaxed);
            }
            let say = answers(&seen);
            self.seen.send_modify(|all| all.push(seen));
            match say {
                Say::Raw(bytes) => stream.write_all(bytes.as_bytes()).await?,
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

/// How a well-behaved legacy server answers everything but calls.
pub(super) fn legacy(seen: &Seen) -> Say {
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
        // A client's answer to what was asked.
        ("POST", "") => Say::accepted(),
        ("POST", "tools/call") => Say::result(seen, json!({"content": []})),
        ("POST", _) => Say::error(seen, -32601, "no such method"),
        (_, _) => Say::Raw("HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n".into()),
    }
}

/// How a well-behaved modern server does.
pub(super) fn modern(seen: &Seen) -> Say {
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
