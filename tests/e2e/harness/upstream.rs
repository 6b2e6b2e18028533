//! The stub upstream over stdio and HTTP, and its answers without the proxy.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::{Connection, Process, raw_result};

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

/// A server that speaks both protocol families (the one of the conformance suite). Returns its `mcpServers` entry and
/// its process.
pub(crate) fn server_of_both_families() -> (Value, Process) {
    conforming_server("both")
}

/// The same server, in the modern family only.
pub(crate) fn modern_server() -> (Value, Process) {
    conforming_server("modern")
}

/// Entry of the same server as a child process, in the modern family only.
pub(crate) fn modern_server_stdio() -> Value {
    json!({"command": conformance_backend(), "args": ["stdio", "--era", "modern"]})
}

fn conformance_backend() -> PathBuf {
    stub().with_file_name("conformance_backend")
}

fn conforming_server(era: &str) -> (Value, Process) {
    let mut command = Command::new(conformance_backend());
    command.args(["http", "--era", era]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let HttpStub { port, process } = HttpStub::from(Process::spawn(&mut command));
    (json!({"url": format!("http://127.0.0.1:{port}/mcp")}), process)
}

/// The stub over HTTP.
pub(crate) struct HttpStub {
    pub(crate) port: u16,
    process: Process,
}

impl HttpStub {
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::from(Process::spawn(
            Self::command(flags).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()),
        ))
    }

    /// A server without sessions that all tests share, because its answers do not depend on the client.
    pub(crate) fn shared() -> &'static Self {
        static STUB: OnceLock<HttpStub> = OnceLock::new();
        STUB.get_or_init(|| Self::for_all(&["--stateless"]))
    }

    /// A server that several tests share, and that lives for the whole run.
    pub(crate) fn for_all(flags: &[&str]) -> Self {
        Self::from(Process::spawn_for_all(&Self::command(flags), Path::new(""), Stdio::null()))
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

    /// The server's `mcpServers` entry.
    pub(crate) fn entry(&self) -> Value {
        json!({"url": format!("http://127.0.0.1:{}/mcp", self.port)})
    }

    /// Calls a tool without the proxy. Returns the raw bytes of `result`. For a stub without sessions.
    pub(crate) fn direct(&self, tool: &str, args: &Value) -> Vec<u8> {
        let params = json!({"name": tool, "arguments": args});
        let body = json!({"jsonrpc": "2.0", "id": "raw", "method": "tools/call", "params": params});
        let mut connection = Connection::open(self.port);
        connection.send("POST", "/mcp", &[], body.to_string().as_bytes());
        let response = connection.response();
        assert_eq!(response.status, 200, "{}", response.text());
        raw_result(&response.body).to_vec()
    }

    /// Sends a request without the proxy. Returns the raw bytes of `result`, or of the whole message if it is
    /// an error. For a stub without sessions.
    pub(crate) fn ask_raw(&self, method: &str, params: &str) -> Vec<u8> {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":"raw","method":"{method}","params":{params}}}"#);
        let mut connection = Connection::open(self.port);
        connection.send("POST", "/mcp", &[], body.as_bytes());
        let response = connection.response();
        match response.json().get("error") {
            Some(_) => response.body,
            None => raw_result(&response.body).to_vec(),
        }
    }

    /// Ends the stub. Returns its port, which is free.
    pub(crate) fn stop(mut self) -> u16 {
        let _ = self.process.0.kill();
        self.process.wait();
        self.port
    }
}
