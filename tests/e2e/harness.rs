//! What the end-to-end tests drive: the real binary, the stub upstream, and a client that keeps
//! every byte.
//!
//! Deliberately no MCP library and no HTTP library: a test must see what is on the wire.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for the slowest machine; a test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const API_KEY: &str = "end-to-end-key-of-more-than-32-characters";

/// The binary under test.
pub(crate) fn mcpproxy() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcpproxy"));
    for name in ["CONFIG", "LISTEN", "API_KEY", "DATA_DIR", "OUTPUT"] {
        command.env_remove(format!("MCPPROXY_{name}"));
    }
    command
}

/// The stub upstream's program.
pub(crate) fn stub() -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_mcpproxy"));
    let stub = binary.with_file_name("examples").join("stub");
    assert!(stub.exists(), "{} is missing: cargo test builds it with the examples", stub.display());
    stub
}

/// An `mcpServers` entry for the stub over stdio.
pub(crate) fn stub_stdio(flags: &[&str]) -> Value {
    let args: Vec<&str> = ["stdio"].into_iter().chain(flags.iter().copied()).collect();
    json!({"command": stub(), "args": args})
}

/// A child that is ended with the test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().expect("the program starts"))
    }

    /// The same for what all tests share: it ends when this process does, however that ends, and
    /// `folder` goes with it. A shell waits on a pipe that nobody else holds.
    pub(crate) fn spawn_for_all(command: &Command, folder: &Path, log: Stdio) -> Self {
        const WATCH: &str =
            r#"folder=$1; shift; exec 3<&0; "$@" & read -r _ <&3; kill -9 $!; rm -rf "$folder""#;
        let mut shell = Command::new("sh");
        shell.args(["-c", WATCH, "sh"]).arg(folder);
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        Self(shell.spawn().expect("a shell starts"))
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let done = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(done.success());
    }

    /// Waits for the end; the exit code, or `None` for a signal.
    pub(crate) fn wait(&mut self) -> Option<i32> {
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

/// True while a process of that id runs.
pub(crate) fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

/// The stub over HTTP.
pub(crate) struct HttpStub {
    pub(crate) port: u16,
    process: Process,
}

impl HttpStub {
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::from(Process::spawn(Self::command(flags).stdin(Stdio::null()).stdout(Stdio::piped())))
    }

    /// One without sessions that all tests share: the same bytes for everyone.
    pub(crate) fn shared() -> &'static Self {
        static STUB: OnceLock<HttpStub> = OnceLock::new();
        STUB.get_or_init(|| {
            let command = Self::command(&["--stateless"]);
            Self::from(Process::spawn_for_all(&command, Path::new(""), Stdio::null()))
        })
    }

    fn command(flags: &[&str]) -> Command {
        let mut command = Command::new(stub());
        command.arg("http").args(flags);
        command
    }

    fn from(mut process: Process) -> Self {
        let mut line = String::new();
        let stdout = process.0.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("it prints its port");
        Self { port: line.trim().parse().expect("a port"), process }
    }

    /// Its `mcpServers` entry.
    pub(crate) fn entry(&self) -> Value {
        json!({"url": format!("http://127.0.0.1:{}/mcp", self.port)})
    }

    /// Calls a tool past the proxy; the raw bytes of `result`. For a stub without sessions.
    pub(crate) fn direct(&self, tool: &str, args: &Value) -> Vec<u8> {
        let params = json!({"name": tool, "arguments": args});
        let body = json!({"jsonrpc": "2.0", "id": "raw", "method": "tools/call", "params": params});
        let mut connection = Connection::open(self.port);
        connection.send("POST", "/mcp", &[], body.to_string().as_bytes());
        let response = connection.response();
        assert_eq!(response.status, 200, "{}", response.text());
        raw_result(&response.body).to_vec()
    }

    /// What it counted: `calls`, `cancelled`, `abandoned`, `initialized`.
    pub(crate) fn stats(&self) -> Value {
        let stats: Value = serde_json::from_slice(&self.direct("stats", &json!({}))).expect("JSON");
        stats["structuredContent"].clone()
    }

    /// Ends it, and waits until its port is free.
    pub(crate) fn stop(mut self) -> u16 {
        let _ = self.process.0.kill();
        self.process.wait();
        self.port
    }
}

/// Asks until there is an answer.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process is one test's or all tests'.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Test,
    Run,
}

/// A proxy under test, with its data folder.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    pub(crate) folder: TempDir,
    pub(crate) process: Process,
}

impl Proxy {
    /// Starts a proxy before these servers and waits until each was discovered or has failed.
    pub(crate) fn start(servers: Value) -> Self {
        Self::with(json!({"mcpServers": servers}))
    }

    /// The same with a whole config; `listen`, `data_dir` and `api_key` are filled in.
    pub(crate) fn with(config: Value) -> Self {
        Self::unready(config, tempfile::tempdir().expect("a folder")).ready()
    }

    /// One that several tests share, for the whole run.
    pub(crate) fn for_all(config: Value) -> Self {
        Self::launch(config, tempfile::tempdir().expect("a folder"), Life::Run).ready()
    }

    /// Starts one without waiting for its servers, in a folder that may hold an earlier life's data.
    pub(crate) fn unready(config: Value, folder: TempDir) -> Self {
        Self::launch(config, folder, Life::Test)
    }

    fn launch(config: Value, folder: TempDir, life: Life) -> Self {
        let path = configure(config, folder.path());
        let log = folder.path().join("log");
        let mut command = mcpproxy();
        command.arg("serve").arg("--config").arg(path).stdin(Stdio::null());
        let opened = std::fs::File::create(&log).expect("a log");
        let mut process = match life {
            Life::Test => Process::spawn(command.stdout(Stdio::null()).stderr(opened)),
            Life::Run => Process::spawn_for_all(&command, folder.path(), opened.into()),
        };
        let port = until("the proxy listens", || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let ended = process.0.try_wait().expect("it can be waited for");
            assert!(ended.is_none(), "the proxy ended at once:\n{text}");
            let (_, address) = text.split_once("MCP at http://127.0.0.1:")?;
            address.split_once('/')?.0.parse().ok()
        });
        Self { port, folder, process }
    }

    /// Waits until every server was discovered or has failed.
    pub(crate) fn ready(self) -> Self {
        until("the proxy is ready", || (self.get("/readyz").status == 200).then_some(()));
        self
    }

    /// Ends the proxy and hands its folder on, for another life.
    pub(crate) fn end(mut self) -> TempDir {
        self.process.signal("TERM");
        assert_eq!(self.process.wait(), Some(0), "a drained proxy exits with 0\n{}", self.log());
        std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[("X-API-Key", API_KEY)], b"")
    }

    /// GET under `/api/v1`; its `data`.
    pub(crate) fn api(&self, path: &str) -> Value {
        let response = self.get(&format!("/api/v1/{path}"));
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        let body = response.json();
        assert_eq!(body["success"], true);
        body["data"].clone()
    }

    pub(crate) fn request(
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
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        let config = self.folder.path().join("config.json");
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command = mcpproxy();
        command.arg("--config").arg(config).env("MCPPROXY_LISTEN", listen).args(args);
        Output::of(&mut command)
    }

    /// An initialized MCP client.
    pub(crate) fn client(&self) -> Client {
        Client::open(self.port)
    }

    /// The records of the log, newest first; `query` filters, and may be empty.
    pub(crate) fn activity(&self, query: &str) -> Vec<Value> {
        let data = self.api(&format!("activity?limit=100&{query}"));
        data["activities"].as_array().expect("a list").clone()
    }
}

/// Writes a config into `folder`, with `listen`, `data_dir` and `api_key` filled in; its path.
pub(crate) fn configure(mut config: Value, folder: &Path) -> PathBuf {
    let members = config.as_object_mut().expect("an object");
    members.entry("listen").or_insert_with(|| json!("127.0.0.1:0"));
    members.entry("data_dir").or_insert_with(|| json!(folder.join("data")));
    members.entry("api_key").or_insert_with(|| json!(API_KEY));
    let path = folder.join("config.json");
    write_private(&path, &config.to_string());
    path
}

pub(crate) fn write_private(path: &Path, text: &str) {
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
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output().expect("the command runs");
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }
}

/// One HTTP/1.1 connection.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream, buffer: Vec::new() }
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
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
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Reads one response whole.
    pub(crate) fn response(&mut self) -> Response {
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
    pub(crate) fn head(&mut self) -> (u16, Vec<(String, String)>) {
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
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
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
    pub(crate) fn fill(&mut self) -> bool {
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

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// False when the body broke off.
    pub(crate) whole: bool,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

/// An MCP client with one session, over one connection.
pub(crate) struct Client {
    pub(crate) port: u16,
    pub(crate) session: String,
    pub(crate) connection: Connection,
    next_id: u64,
}

impl Client {
    pub(crate) fn open(port: u16) -> Self {
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
    pub(crate) fn post(&mut self, body: &[u8]) -> Response {
        self.connection.send("POST", "/mcp", &[("Mcp-Session-Id", &self.session)], body);
        self.connection.response()
    }

    /// A request; the whole response message, parsed.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
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
    pub(crate) fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let mut message = self.ask("tools/call", json!({"name": name, "arguments": arguments}));
        match message.get_mut("result") {
            Some(result) => result.take(),
            None => message,
        }
    }

    /// Calls an upstream's tool by `call_tool_<operation>` with the intent that goes with it.
    pub(crate) fn call(&mut self, operation: &str, tool: &str, args: Value) -> Value {
        let intent = json!({"operation_type": operation});
        let arguments = json!({"name": tool, "args": args, "intent": intent});
        self.tool(&format!("call_tool_{operation}"), arguments)
    }

    /// This session's records, newest first; `query` filters further.
    pub(crate) fn records(&self, proxy: &Proxy, query: &str) -> Vec<Value> {
        proxy.activity(&format!("session_id={}&{query}", self.session))
    }

    /// Calls an upstream's tool by the read variant with a proper intent.
    pub(crate) fn read(&mut self, tool: &str, args: Value) -> Value {
        self.call("read", tool, args)
    }

    /// The same; the raw bytes of the response message.
    pub(crate) fn read_raw(&mut self, tool: &str, args: Value) -> Response {
        let arguments = json!({"name": tool, "args": args, "intent": {"operation_type": "read"}});
        let params = json!({"name": "call_tool_read", "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": "raw", "method": "tools/call", "params": params});
        self.post(body.to_string().as_bytes())
    }
}

/// The raw bytes of `result` in a response of ours, whose envelope is known.
pub(crate) fn raw_result(message: &[u8]) -> &[u8] {
    const HEAD: &[u8] = br#"{"jsonrpc":"2.0","id":"raw","result":"#;
    let rest = message
        .strip_prefix(HEAD)
        .unwrap_or_else(|| panic!("not our envelope: {}", String::from_utf8_lossy(message)));
    rest.strip_suffix(b"}").expect("the envelope's end")
}

/// The one text block of a tool result that reports an error.
pub(crate) fn error_text(result: &Value) -> &str {
    assert_eq!(result["isError"], true, "{result}");
    result["content"][0]["text"].as_str().expect("a text block")
}

/// A loopback port nobody listens on at the moment.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).expect("a port").port()
}
