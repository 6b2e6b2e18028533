//! Probes are told that calls are refused because the log cannot be written, and why (ACT-2).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::plan::{EIO, Op, Plan};
use crate::sweep::build;

const KEY: &str = "a-key-of-the-tests-of-more-than-32-characters";
/// Long enough for the slowest machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the disk takes where it is stuck: longer than the proxy waits for it.
const STUCK_MS: u32 = 8000;

struct Proxy {
    process: Child,
    address: String,
    plan: Plan,
    _folder: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Proxy {
    fn start(on_failure: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (plan, data) = (folder.path().join("plan"), folder.path().join("data"));
        let config = json!({"listen": "127.0.0.1:0", "data_dir": data, "api_key": KEY,
            "mcpServers": {}, "activity": {"on_failure": on_failure}});
        let path = folder.path().join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        Plan::create(&plan);
        let mut process = Command::new(env!("CARGO_BIN_EXE_mcpproxy"))
            .arg("serve")
            .arg("--config")
            .arg(path)
            .env("FAULT_PLAN", &plan)
            .env("FAULT_DIR", &data)
            .env("LD_PRELOAD", build(folder.path()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("MCP at http://").unwrap().trim_end();
        let address = address.strip_suffix("/mcp").unwrap().to_owned();
        Self { process, address, plan: Plan::open(&plan), _folder: folder }
    }

    fn ask(&self, head: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{head}Host: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}",
            self.address
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }

    fn get(&self, path: &str) -> (u16, Value) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nX-API-Key: {KEY}\r\n"), "")
    }

    /// Makes a call of a tool that is not there, which is recorded.
    fn call(&self) -> u16 {
        let call = json!({"tool_name": "call_tool_read", "arguments": {"name": "no:tool"},
            "intent": {"operation_type": "read"}});
        let head = format!("POST /api/v1/tools/call HTTP/1.1\r\nX-API-Key: {KEY}\r\n");
        self.ask(&head, &call.to_string()).0
    }

    /// Waits until `/readyz` says of the log that it is so.
    fn until(&self, state: &str) -> (u16, Value) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (status, body) = self.get("/readyz");
            if body["activity"]["state"] == state {
                return (status, body);
            }
            assert!(Instant::now() < deadline, "{state}: {body}");
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

#[test]
fn readyz_is_503_while_calls_are_refused_for_the_log_and_says_why() {
    let proxy = Proxy::start("refuse");
    assert_eq!(proxy.until("ok").0, 200);
    proxy.plan.arm(Op::Sync, EIO, 0, u64::MAX);
    assert_eq!(proxy.call(), 404, "it was not known yet");
    let (status, body) = proxy.until("failed");
    assert_eq!((status, &body["ready"]), (503, &json!(false)));
    let reason = body["activity"]["reason"].as_str().unwrap();
    assert!(reason.contains("Input/output error"), "{reason}");
    assert_ne!(proxy.call(), 404, "calls are refused");
    let (status, body) = proxy.ask("GET /readyz HTTP/1.1\r\n", "");
    assert_eq!((status, &body["activity"]), (503, &json!({"state": "failed"})), "without the key");
}

#[test]
fn readyz_is_503_while_the_disk_does_not_answer_and_200_once_it_does() {
    let proxy = Proxy::start("refuse");
    assert_eq!(proxy.until("ok").0, 200);
    proxy.plan.delay(Op::Sync, STUCK_MS);
    proxy.call();
    let (status, body) = proxy.until("failed");
    assert_eq!(status, 503);
    let reason = body["activity"]["reason"].as_str().unwrap();
    assert!(reason.contains("the disk has not answered for"), "{reason}");
    proxy.plan.disarm();
    let (status, body) = proxy.until("ok");
    assert_eq!((status, &body["ready"]), (200, &json!(true)));
}

#[test]
fn readyz_stays_200_where_calls_go_on_without_the_log_and_status_says_degraded() {
    let proxy = Proxy::start("continue");
    proxy.plan.arm(Op::Sync, EIO, 0, u64::MAX);
    proxy.call();
    let (status, body) = proxy.until("degraded");
    assert_eq!((status, &body["ready"]), (200, &json!(true)));
    assert_eq!(proxy.call(), 404, "calls go on");
    let health = proxy.get("/healthz").1;
    // The call's record; one of the proxy's own may have been on its way as well.
    let lost = |activity: &Value| activity["lost"].as_u64().is_some_and(|lost| lost >= 1);
    assert!(health["status"] == "degraded" && lost(&health["activity"]), "{health}");
    let status = &proxy.get("/api/v1/status").1["data"]["activity"];
    assert!(status["state"] == "degraded" && lost(status), "{status}");
}
