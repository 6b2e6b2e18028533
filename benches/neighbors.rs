//! Isolation between calls: latency of calls to a simple tool, alone and in parallel with calls whose answers are the
//! most expensive to validate. Runs the real binary against an upstream that answers at once.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a benchmark fails by panicking"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

#[path = "common/worst.rs"]
mod worst;

/// Number of clients that call the worst tools at the same time.
const CROWD: usize = 8;

/// Tool of the upstream: name, `outputSchema` and document of its answer.
type Tools = Arc<Vec<(String, Value, String)>>;

/// Proxy process, killed when dropped.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let quick = !std::env::args().any(|arg| arg == "--bench");
    let calls = if quick { 20 } else { 3000 };
    let mut tools = vec![("plain".to_owned(), json!({"type": "object"}), "{\"a\":1}".to_owned())];
    let cases = worst::cases(quick).into_iter().enumerate();
    tools.extend(cases.map(|(at, (_, schema, document))| (format!("t{at}"), schema, document)));
    let tools = Arc::new(tools);
    let upstream = serve(Arc::clone(&tools));
    let folder = tempfile::tempdir().unwrap();
    let (_proxy, port) = start(folder.path(), upstream);

    let mut plain = Client::open(port);
    for _ in 0..calls / 10 + 1 {
        plain.call("plain");
    }
    let worst = (0..tools.len() - 1).map(|at| format!("t{at}")).collect();
    println!(
        "| {calls} calls of a plain tool | p50 µs | p99 µs | p99.9 µs | longest µs | other calls |"
    );
    println!("|---|---|---|---|---|---|");
    report("alone", &mut plain, calls, None);
    for (name, called) in [("plain calls", vec!["plain".to_owned()]), ("the worst", worst)] {
        let crowd = Crowd::of(port, called);
        let name = format!("beside {name} of {CROWD} clients");
        report(&name, &mut plain, calls, Some(crowd));
    }
}

/// Clients that call the same tools one after the other; each client starts with a different tool.
struct Crowd {
    over: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
    clients: Vec<thread::JoinHandle<()>>,
}

impl Crowd {
    fn of(port: u16, tools: Vec<String>) -> Self {
        let (over, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |at| {
            let (over, made, tools) = (Arc::clone(&over), Arc::clone(&made), tools.clone());
            thread::spawn(move || {
                let mut client = Client::open(port);
                for turn in at.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let tool: &String = &tools[turn % tools.len()];
                    client.call(tool);
                    made.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let clients = (0..CROWD).map(client).collect();
        Self { over, made, clients }
    }

    /// Stops the clients; returns the number of calls they made.
    fn disperse(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        let made = self.made.load(Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().unwrap());
        made
    }
}

/// Prints a row with the latencies of at least `calls` calls. Measures until the crowd, if any, has made a hundred.
fn report(name: &str, client: &mut Client, calls: usize, crowd: Option<Crowd>) {
    let mut took = Vec::new();
    let made = |crowd: &Crowd| crowd.made.load(Ordering::Relaxed);
    while took.len() < calls || crowd.as_ref().is_some_and(|crowd| made(crowd) < 100) {
        let began = Instant::now();
        client.call("plain");
        took.push(began.elapsed());
    }
    took.sort_unstable();
    let at = |share: usize| took[(took.len() * share / 1000).min(took.len() - 1)].as_micros();
    let others = crowd.map_or(0, Crowd::disperse);
    println!("| {name} | {} | {} | {} | {} | {others} |", at(500), at(990), at(999), at(1000));
}

/// Starts the real binary in strict mode; returns its port.
fn start(folder: &std::path::Path, upstream: u16) -> (Proxy, u16) {
    let config = folder.join("config.json");
    let written = json!({
        "listen": "127.0.0.1:0",
        "data_dir": folder.join("data"),
        "api_key": "a-key-of-a-benchmark-of-more-than-32-characters",
        "output_validation": {"mode": "strict", "max_bytes": 8 << 20, "max_depth": 100},
        "mcpServers": {"s": {"url": format!("http://127.0.0.1:{upstream}/mcp")}},
    });
    std::fs::write(&config, written.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcpproxy"));
    command.arg("serve").arg("--config").arg(config).stdin(Stdio::null());
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let mut proxy = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(proxy.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.strip_prefix("MCP at http://127.0.0.1:").expect("an address");
    let port = port.split('/').next().and_then(|port| port.parse().ok()).expect("a port");
    (Proxy(proxy), port)
}

/// An MCP client over one connection.
struct Client {
    stream: BufReader<TcpStream>,
    session: String,
}

impl Client {
    fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Self { stream: BufReader::new(stream), session: String::new() };
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"}});
        client.post(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}));
        client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn call(&mut self, tool: &str) {
        let intent = json!({"operation_type": "read"});
        let arguments = json!({"name": format!("s:{tool}"), "args": {}, "intent": intent});
        let params = json!({"name": "call_tool_read", "arguments": arguments});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let answer = self.post(&call);
        assert!(answer.starts_with(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":"));
    }

    fn post(&mut self, message: &Value) -> Vec<u8> {
        let body = message.to_string();
        let session = match self.session.as_str() {
            "" => String::new(),
            session => format!("Mcp-Session-Id: {session}\r\n"),
        };
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{session}Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.stream.get_mut().write_all((head + &body).as_bytes()).unwrap();
        let headers = headers(&mut self.stream).expect("an answer");
        let find = |name: &str| {
            let found = headers.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.clone())
        };
        if let Some(session) = find("mcp-session-id") {
            self.session = session;
        }
        let mut body = vec![0; find("content-length").map_or(0, |len| len.parse().unwrap())];
        self.stream.read_exact(&mut body).unwrap();
        body
    }
}

/// Reads a head and returns its headers in lower case; `None` when the connection has ended.
fn headers(stream: &mut BufReader<TcpStream>) -> Option<Vec<(String, String)>> {
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            return Some(headers);
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
}

/// Runs the upstream until the program ends, with a thread for each connection. Returns its port.
fn serve(tools: Tools) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tools = Arc::clone(&tools);
            thread::spawn(move || answer(stream, &tools));
        }
    });
    port
}

fn answer(stream: TcpStream, tools: &Tools) {
    stream.set_nodelay(true).unwrap();
    let mut stream = BufReader::new(stream);
    while let Some(headers) = headers(&mut stream) {
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let mut body = vec![0; length.map_or(0, |(_, value)| value.parse().unwrap())];
        stream.read_exact(&mut body).unwrap();
        let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let result = match asked["method"].as_str().unwrap_or_default() {
            "initialize" => json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "worst", "version": "1"}})
            .to_string(),
            "tools/list" => {
                let tools: Vec<Value> = tools
                    .iter()
                    .map(|(name, schema, _)| {
                        json!({"name": name, "inputSchema": {"type": "object"},
                            "outputSchema": schema, "annotations": {"readOnlyHint": true}})
                    })
                    .collect();
                json!({ "tools": tools }).to_string()
            }
            "tools/call" => {
                let name = asked["params"]["name"].as_str().unwrap_or_default();
                let tool = tools.iter().find(|tool| tool.0 == name);
                let document = tool.map_or("null", |(_, _, document)| document);
                format!("{{\"content\":[],\"structuredContent\":{document}}}")
            }
            _ => String::new(),
        };
        let head = |status: &str, len| format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\n");
        let answer = if result.is_empty() {
            head(if asked.is_null() { "405 Method Not Allowed" } else { "202 Accepted" }, 0)
                + "\r\n"
        } else {
            let body =
                format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{result}}}", asked["id"]);
            let head = head("200 OK", body.len());
            format!("{head}Content-Type: application/json\r\n\r\n{body}")
        };
        if stream.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
