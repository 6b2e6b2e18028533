//! Unix sockets: the listener with its file, and servers behind a socket.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{API_KEY, HttpStub, Output, Process, Proxy, configure, curl, mcpproxy, until};

/// A proxy that listens on a socket.
struct OnSocket {
    folder: TempDir,
    socket: PathBuf,
    process: Process,
    line: String,
}

impl OnSocket {
    fn start(mut config: Value, folder: TempDir) -> Self {
        let socket = folder.path().join("proxy.sock");
        config["listen"] = json!(format!("unix:{}", socket.display()));
        let config = configure(config, folder.path());
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = mcpproxy();
        command.arg("serve").arg("--config").arg(config).stdin(Stdio::null());
        let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(log));
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let proxy = Self { folder, socket, process, line };
        until("it is ready", || (proxy.get("/readyz").0 == 200).then_some(()));
        proxy
    }

    fn get(&self, path: &str) -> (u16, String) {
        let key = format!("X-API-Key: {API_KEY}");
        let url = format!("http://localhost{path}");
        let answer = curl(self.folder.path(), &["--unix-socket", "proxy.sock", "-H", &key, &url]);
        (answer.status, answer.body)
    }

    fn cli(&self, args: &[&str]) -> Output {
        let config = self.folder.path().join("config.json");
        Output::of(mcpproxy().arg("--config").arg(config).args(args))
    }

    fn end(mut self) -> TempDir {
        self.process.signal("TERM");
        assert_eq!(self.process.wait(), Some(0));
        assert!(!self.socket.exists(), "the file is removed");
        self.folder
    }
}

fn with_stub() -> Value {
    json!({"mcpServers": {"stub": HttpStub::shared().entry()}})
}

// NET-3
#[test]
fn socket_is_private_and_serves_like_a_port() {
    let proxy = OnSocket::start(with_stub(), tempfile::tempdir().unwrap());
    assert_eq!(proxy.line, format!("MCP at unix:{}:/mcp\n", proxy.socket.display()));
    let mode = std::fs::metadata(&proxy.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let evil = ["--unix-socket", "proxy.sock", "http://evil.example/healthz"];
    assert_eq!(curl(proxy.folder.path(), &evil).status, 403, "the same checks");
    let keyless = ["--unix-socket", "proxy.sock", "http://localhost/api/v1/status"];
    assert_eq!(curl(proxy.folder.path(), &keyless).status, 401, "a socket is no credential");
    let called = proxy.cli(&["call", "tool-read", "stub:echo", "--args", r#"{"text":"here"}"#]);
    assert!(called.stdout.contains("here"), "{}", called.stderr);
    let records = proxy.get("/api/v1/activity?type=tool_call").1;
    assert!(records.contains("\"source\":\"cli\""), "the running proxy was used: {records}");
    proxy.end();
}

#[test]
fn socket_of_a_killed_proxy_is_replaced_and_one_of_a_living_proxy_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(folder.path().join("proxy.sock")).unwrap());
    let proxy = OnSocket::start(json!({}), folder);
    let other = tempfile::tempdir().unwrap();
    let listen = format!("unix:{}", proxy.socket.display());
    let config = configure(json!({"listen": listen}), other.path());
    let second = Output::of(mcpproxy().arg("--config").arg(config).arg("serve"));
    assert_eq!(second.code, Some(3), "{}", second.stderr);
    assert!(
        second.stderr.contains("in use") && second.stderr.contains(&listen),
        "{}",
        second.stderr
    );
    assert_eq!(proxy.get("/healthz").0, 200, "the first proxy keeps it");
    let folder = proxy.end();
    std::fs::write(folder.path().join("proxy.sock"), "mine").unwrap();
    let config = folder.path().join("config.json");
    let refused = Output::of(mcpproxy().arg("--config").arg(config).arg("serve"));
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("is not a socket"), "{}", refused.stderr);
}

// NET-3
#[test]
fn server_behind_a_socket_is_called_like_one_behind_a_port() {
    let behind = OnSocket::start(with_stub(), tempfile::tempdir().unwrap());
    let url = format!("unix:{}:/mcp/all", behind.socket.display());
    let gone = format!("unix:{}:/mcp", Path::new("/nowhere/a.sock").display());
    let front = Proxy::start(json!({"behind": {"url": url}, "gone": {"url": gone}}));
    let mut client = front.client();
    let tools = client.tool("retrieve_tools", json!({"query": "echo"}));
    let name = tools["structuredContent"]["tools"][0]["name"].as_str().unwrap().to_owned();
    for _ in 0..3 {
        let answer = client.read(&name, json!({"text": "far"}));
        assert!(answer.to_string().contains("far"), "{answer}");
    }
    let servers = front.api("servers").to_string();
    assert!(servers.contains("unix:/nowhere/a.sock"), "{servers}");
    let records = behind.get("/api/v1/activity?type=tool_call").1;
    assert!(records.contains("\"principal\":\"anonymous\""), "as over loopback: {records}");
    front.end();
    behind.end();
}
