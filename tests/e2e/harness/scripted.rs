//! An HTTP upstream that counts requests. The names of its tools state how they break their connections.
//!
//! A tool is named `KIND_FAULT`: `idem_…` is declared idempotent, `plain_…` is not. The fault affects the first call
//! only; the next one is answered.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};

/// Points at which a connection is cut, as in the names of tools.
const CUTS: [&str; 4] = ["unanswered", "in_head", "after_head", "in_body"];

/// The upstream; it ends with the test.
pub(crate) struct Scripted {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    tools: Vec<&'static str>,
    arrived: Mutex<Vec<(String, Value)>>,
    changed: Condvar,
    /// Number of calls of `held` that may be answered.
    released: Mutex<usize>,
    /// Number of connections to come that are closed as soon as they are opened.
    refused: AtomicUsize,
    /// Whether every call of `…_down` breaks its connection.
    down: AtomicBool,
    /// Number of waiting calls of `held`, and its maximum so far.
    held: Mutex<(usize, usize)>,
}

impl Scripted {
    pub(crate) fn start(tools: &[&'static str]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared { tools: tools.to_vec(), ..Shared::default() });
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let left = |left: usize| left.checked_sub(1);
                let refuse =
                    theirs.refused.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok();
                if refuse {
                    continue;
                }
                let shared = Arc::clone(&theirs);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { port, shared }
    }

    /// The server's `mcpServers` entry.
    pub(crate) fn entry(&self) -> Value {
        json!({"url": format!("http://127.0.0.1:{}/mcp", self.port)})
    }

    /// Number of received calls by tool.
    pub(crate) fn arrived(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (tool, _) in &*self.shared.arrived.lock().expect("not poisoned") {
            *counts.entry(tool.clone()).or_default() += 1;
        }
        counts
    }

    /// The arguments of the calls of a tool, in the order in which they arrived.
    pub(crate) fn arguments(&self, tool: &str) -> Vec<Value> {
        let arrived = self.shared.arrived.lock().expect("not poisoned");
        arrived.iter().filter(|(name, _)| name == tool).map(|(_, args)| args.clone()).collect()
    }

    /// Waits until `calls` calls have arrived.
    pub(crate) fn wait_for(&self, calls: usize) {
        let arrived = self.shared.arrived.lock().expect("not poisoned");
        let enough = self
            .shared
            .changed
            .wait_timeout_while(arrived, super::PATIENCE, |arrived| arrived.len() < calls);
        assert!(!enough.expect("not poisoned").1.timed_out(), "{calls} calls have not arrived");
    }

    /// Answers `calls` further calls of `held`.
    pub(crate) fn release(&self, calls: usize) {
        *self.shared.released.lock().expect("not poisoned") += calls;
        self.shared.changed.notify_all();
    }

    /// Maximum number of calls of `held` that waited at the same time.
    pub(crate) fn most_held(&self) -> usize {
        self.shared.held.lock().expect("not poisoned").1
    }

    /// Closes the next connections as soon as they are opened.
    pub(crate) fn refuse(&self, connections: usize) {
        self.shared.refused.store(connections, Ordering::SeqCst);
    }

    /// Whether the next connection will be closed.
    pub(crate) fn refuses(&self) -> bool {
        self.shared.refused.load(Ordering::SeqCst) > 0
    }

    /// Sets whether the tools `…_down` fail.
    pub(crate) fn set_down(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        let Ok(reading) = stream.try_clone() else { return };
        let mut reader = BufReader::new(reading);
        while let Some((method, body)) = read(&mut reader) {
            if method != "POST" || !self.answer(&stream, &body) {
                if method != "POST" {
                    respond(&stream, "405 Method Not Allowed", "");
                }
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// Answers a message. Returns false if the connection must be closed.
    fn answer(&self, stream: &TcpStream, message: &Value) -> bool {
        let result = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "scripted", "version": "1"}}),
            "tools/list" => {
                let tools = self.tools.iter().map(|name| {
                    let idempotent = name.starts_with("idem_");
                    json!({"name": name, "inputSchema": {"type": "object"}, "annotations": {
                        "readOnlyHint": false, "destructiveHint": false,
                        "idempotentHint": idempotent}})
                });
                json!({"tools": tools.collect::<Vec<_>>()})
            }
            "tools/call" => return self.call(stream, message),
            _ if message.get("id").is_none() => return respond(stream, "202 Accepted", ""),
            _ => {
                let error = json!({"code": -32601, "message": "no such method"});
                let body = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
                return respond(stream, "200 OK", &body.to_string());
            }
        };
        let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        respond(stream, "200 OK", &body.to_string())
    }

    fn call(&self, stream: &TcpStream, message: &Value) -> bool {
        let params = &message["params"];
        let name = params["name"].as_str().unwrap_or_default().to_owned();
        let first = {
            let mut arrived = self.arrived.lock().expect("not poisoned");
            let first = arrived.iter().all(|(before, _)| *before != name);
            arrived.push((name.clone(), params["arguments"].clone()));
            self.changed.notify_all();
            first
        };
        if name.ends_with("held") {
            self.hold();
        }
        if name.ends_with("_down") && self.down.load(Ordering::SeqCst) {
            return false;
        }
        let result = json!({"content": [{"type": "text", "text": "done"}]});
        let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
        let whole = response("200 OK", &body);
        let head = whole.len() - body.len();
        let cut = CUTS.into_iter().find(|cut| first && name.ends_with(cut));
        let shown = match cut {
            None => whole.len(),
            Some("unanswered") => 0,
            Some("in_head") => 20,
            Some("after_head") => head,
            // Before the result, so that no part of it is forwarded.
            Some(_) => head + body.find("\"result\"").expect("a result"),
        };
        let mut stream = stream;
        let written = stream.write_all(&whole.as_bytes()[..shown]).is_ok();
        written && cut.is_none()
    }

    fn hold(&self) {
        {
            let mut held = self.held.lock().expect("not poisoned");
            held.0 += 1;
            held.1 = held.1.max(held.0);
        }
        let released = self.released.lock().expect("not poisoned");
        let mut released = self
            .changed
            .wait_timeout_while(released, super::PATIENCE, |released| *released == 0)
            .expect("not poisoned")
            .0;
        *released = released.saturating_sub(1);
        self.held.lock().expect("not poisoned").0 -= 1;
    }
}

/// A request: its method, and its body as JSON.
fn read(reader: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let method = line.split(' ').next()?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((method, serde_json::from_slice(&body).unwrap_or_default()))
}

fn response(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn respond(mut stream: &TcpStream, status: &str, body: &str) -> bool {
    stream.write_all(response(status, body).as_bytes()).is_ok()
}
