//! What the end-to-end tests drive: the real binary, the stub upstream, and a client that keeps
//! every byte.
//!
//! Deliberately no MCP library and no HTTP library: a test must see what is on the wire.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for the slowest machine; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub const API_KEY: &str = "end-to-end-key-of-more-than-32-characters";

/// The binary under test.
pub fn mcpproxy() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcpproxy"));
    for name in ["CONFIG", "LISTEN", "API_KEY", "DATA_DIR", "OUTPUT"] {
        command.env_remove(format!("MCPPROXY_{name}"));
    }
    command
}

/// The stub upstream's program.
pub fn stub() -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_mcpproxy"));
    let stub = binary.with_file_name("examples").join("stub");
    assert!(stub.exists(), "{} is missing: cargo test builds it with the examples", stub.display());
    stub
}

/// An `mcpServers` entry for the stub over stdio.
pub fn stub_stdio(flags: &[&str]) -> Value {
    let args: Vec<&str> = ["stdio"].into_iter().chain(flags.iter().copied()).collect();
    json!({"command": stub(), "args": args})
}

/// A child that is ended with the test.
pub struct Process(pub Child);

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().expect("the program starts"))
    }

    pub fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let done = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(done.success());
    }

    /// Waits for the end; the exit code, or `None` for a signal.
    pub fn wait(&mut self) -> Option<i32> {
        let ended = until("the process ends", || self.0.try_wait().expect("it can be waited for"));
        ended.code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The stub over HTTP.
pub struct HttpStub {
    pub port: u16,
    _process: Process,
}

impl HttpStub {
    pub fn start(flags: &[&str]) -> Self {
        let mut process = Process::spawn(
            Command::new(stub()).arg("http").args(flags).stdout(Stdio::piped()).stdin(Stdio::null()),
        );
        let mut line = String::new();
        let stdout = process.0.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("it prints its port");
        Self { port: line.trim().parse().expect("a port"), _process: process }
    }

    /// Its `mcpServers` entry.
    pub fn entry(&self) -> Value {
        json!({"url": format!("http://127.0.0.1:{}/mcp", self.port)})
    }
}

/// Asks until there is an answer.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A proxy under test, with its data folder.
pub struct Proxy {
    pub port: u16,
    pub folder: TempDir,
    pub process: Process,
}

impl Proxy {
    /// Starts a proxy before these servers and waits until each was discovered or has failed.
    pub fn start(servers: Value) -> Self {
        Self::with(json!({"mcpServers": servers}))
    }

    /// The same with a whole config; `listen`, `data_dir` and `api_key` are filled in.
    pub fn with(config: Value) -> Self {
        let proxy = Self::unready(config, tempfile::tempdir().expect("a folder"));
        until("the proxy is ready", || (proxy.get("/readyz").status == 200).then_some(()));
        proxy
    }

    /// The same without waiting for the servers, in a folder that may hold an earlier life's data.
    pub fn unready(mut config: Value, folder: TempDir) -> Self {
        let members = config.as_object_mut().expect("an object");
        members.entry("listen").or_insert_with(|| json!("127.0.0.1:0"));
        members.entry("data_dir").or_insert_with(|| json!(folder.path().join("data")));
        members.entry("api_key").or_insert_with(|| json!(API_KEY));
        let path = folder.path().join("config.json");
        write_private(&path, &config.to_string());
        let log = std::fs::File::create(folder.path().join("log")).expect("a log");
        let mut process = Process::spawn(
            mcpproxy()
                .args(["serve", "--config"])
                .arg(&path)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(log),
        );
        let stdout = process.0.stdout.take().expect("piped");
        let mut lines = BufReader::new(stdout).lines();
        let line = lines.next().and_then(Result::ok).unwrap_or_else(|| {
            let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            panic!("the proxy said nothing; its log:\n{log}")
        });
        let port = line.rsplit(':').next().and_then(|tail| {
            tail.trim_matches(|c: char| !c.is_ascii_digit()).split('/').next()?.parse().ok()
        });
        Self { port: port.unwrap_or_else(|| panic!("no port in: {line}")), folder, process }
    }

    /// Ends the proxy and hands its folder on, for another life.
    pub fn end(mut self) -> TempDir {
        self.process.signal("TERM");
        assert_eq!(self.process.wait(), Some(0), "a drained proxy exits with 0\n{}", self.log());
        std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"))
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[("X-API-Key", API_KEY)], b"")
    }

    /// GET under `/api/v1`; its `data`.
    pub fn api(&self, path: &str) -> Value {
        let response = self.get(&format!("/api/v1/{path}"));
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        let body = response.json();
        assert_eq!(body["success"], true);
        body["data"].clone()
    }

    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        let mut connection = Connection::open(self.port);
        connection.send(method, path, headers, body);
        connection.response()
    }

    /// Runs a command of the CLI against this proxy.
    pub fn cli(&self, args: &[&str]) -> Output {
        let config = self.folder.path().join("config.json");
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command = mcpproxy();
        command.arg("--config").arg(config).env("MCPPROXY_LISTEN", listen).args(args);
        Output::of(&mut command)
    }

    /// An initialized MCP client.
    pub fn client(&self) -> Client {
        Client::open(self.port)
    }

    /// The records of the log, newest first; `query` filters.
    pub fn activity(&self, query: &str) -> Vec<Value> {
        let data = self.api(&format!("activity?limit=100&{query}"));
        data["activities"].as_array().expect("a list").clone()
    }
}

pub fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .expect("the file opens");
    file.write_all(text.as_bytes()).expect("it is written");
}

/// What a command left behind.
pub struct Output {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    pub fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output().expect("the command runs");
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }
}

/// One HTTP/1.1 connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream, buffer: Vec::new() }
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        let given = |name: &str| headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name));
        if !given("host") {
            head += "Host: 127.0.0.1\r\n";
        }
        if !body.is_empty() && !given("content-type") {
            head += "Content-Type: application/json\r\n";
        }
        if !given("accept") {
            head += "Accept: application/json, text/event-stream\r\n";
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
        self.raw(head.as_bytes());
        self.raw(body);
    }

    /// Writes bytes as they are. A peer that has answered and closed already is no error here.
    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Reads one response whole.
    pub fn response(&mut self) -> Response {
        let (status, headers) = self.head();
        let (mut body, mut whole) = (Vec::new(), true);
        let header = |name: &str| find(&headers, name);
        if header("transfer-encoding") == Some("chunked") {
            loop {
                match self.chunk() {
                    Some(chunk) if chunk.is_empty() => break,
                    Some(chunk) => body.extend(chunk),
                    None => {
                        whole = false;
                        break;
                    }
                }
            }
        } else if let Some(length) = header("content-length") {
            let length: usize = length.parse().expect("a length");
            while self.buffer.len() < length && self.fill() {}
            whole = self.buffer.len() >= length;
            body.extend(self.buffer.drain(..length.min(self.buffer.len())));
        }
        Response { status, headers, body, whole }
    }

    /// Reads a response's status and headers.
    pub fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at;
            }
            assert!(self.fill(), "the connection ended before a response's head");
        };
        let head = String::from_utf8(self.buffer.drain(..end + 4).collect()).expect("ASCII");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        });
        (status.expect("a status"), headers.collect())
    }

    /// Reads one chunk of a chunked body, empty for the last; `None` if the connection ended.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = loop {
            if let Some(at) = self.buffer.windows(2).position(|bytes| bytes == b"\r\n") {
                break self.buffer.drain(..at + 2).collect::<Vec<u8>>();
            }
            if !self.fill() {
                return None;
            }
        };
        let size = std::str::from_utf8(&line).expect("ASCII").trim();
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        while self.buffer.len() < size + 2 {
            if !self.fill() {
                return None;
            }
        }
        let chunk = self.buffer.drain(..size).collect();
        self.buffer.drain(..2);
        Some(chunk)
    }

    /// True while the peer has not closed.
    pub fn fill(&mut self) -> bool {
        let mut bytes = [0; 65536];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                true
            }
            Err(error) => {
                let gone = error.kind() == std::io::ErrorKind::ConnectionReset;
                assert!(gone, "reading failed: {error}");
                false
            }
        }
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// False when the body broke off.
    pub whole: bool,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

/// An MCP client with one session, over one connection.
pub struct Client {
    pub port: u16,
    pub session: String,
    pub connection: Connection,
    next_id: u64,
}

impl Client {
    pub fn open(port: u16) -> Self {
        let mut connection = Connection::open(port);
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "e2e", "version": "1"}}});
        connection.send("POST", "/mcp", &[], hello.to_string().as_bytes());
        let response = connection.response();
        assert_eq!(response.status, 200, "{}", response.text());
        let session = response.header("mcp-session-id").expect("a session").to_owned();
        let mut client = Self { port, session, connection, next_id: 1 };
        let noted = client.post(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        assert_eq!(noted.status, 202);
        client
    }

    /// Posts a message as it is.
    pub fn post(&mut self, body: &[u8]) -> Response {
        self.connection.send("POST", "/mcp", &[("Mcp-Session-Id", &self.session)], body);
        self.connection.response()
    }

    /// A request; the whole response message, parsed.
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let response = self.post(body.to_string().as_bytes());
        assert_eq!(response.status, 200, "{}", response.text());
        let message = response.json();
        assert_eq!(message["id"], id);
        message
    }

    /// Calls one of our tools; its `result`, or the whole message when that is an error.
    pub fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let mut message = self.ask("tools/call", json!({"name": name, "arguments": arguments}));
        match message.get_mut("result") {
            Some(result) => result.take(),
            None => message,
        }
    }

    /// Calls an upstream's tool by the read variant with a proper intent.
    pub fn read(&mut self, tool: &str, args: Value) -> Value {
        let intent = json!({"operation_type": "read"});
        self.tool("call_tool_read", json!({"name": tool, "args": args, "intent": intent}))
    }

    /// The same; the raw bytes of the response message.
    pub fn read_raw(&mut self, tool: &str, args: Value) -> Response {
        let arguments = json!({"name": tool, "args": args, "intent": {"operation_type": "read"}});
        let params = json!({"name": "call_tool_read", "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": "raw", "method": "tools/call", "params": params});
        self.post(body.to_string().as_bytes())
    }
}

/// The raw bytes of `result` in a response of ours, whose envelope is known.
pub fn raw_result(message: &[u8]) -> &[u8] {
    const HEAD: &[u8] = br#"{"jsonrpc":"2.0","id":"raw","result":"#;
    let rest = message.strip_prefix(HEAD).unwrap_or_else(|| {
        panic!("not our envelope: {}", String::from_utf8_lossy(message))
    });
    rest.strip_suffix(b"}").expect("the envelope's end")
}

/// The one text block of a tool result that reports an error.
pub fn error_text(result: &Value) -> &str {
    assert_eq!(result["isError"], true, "{result}");
    result["content"][0]["text"].as_str().expect("a text block")
}

/// A loopback port nobody listens on at the moment.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).expect("a port").port()
}
