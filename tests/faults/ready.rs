//! Health probes report refused calls while the log cannot be written, with the reason (ACT-2).

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::plan::{EIO, Op, Plan};
use crate::proxy::{self, KEY};
use crate::sweep::build;

/// Generous time limit for slow machines.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Delay of a stuck disk: longer than the proxy waits for it.
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
        let address = proxy::address(process.stdout.take().unwrap()).unwrap();
        Self { process, address, plan: Plan::open(&plan), _folder: folder }
    }

    fn request(&self, head: &str, body: &str) -> (u16, Value) {
        proxy::request(&self.address, head, body).unwrap()
    }

    fn get(&self, path: &str) -> (u16, Value) {
        proxy::get(&self.address, path).unwrap()
    }

    /// Calls a tool that does not exist, which is recorded.
    fn call(&self) -> u16 {
        let call = json!({"tool_name": "call_tool_read", "arguments": {"name": "no:tool"},
            "intent": {"operation_type": "read"}});
        let head = format!("POST /api/v1/tools/call HTTP/1.1\r\nX-API-Key: {KEY}\r\n");
        self.request(&head, &call.to_string()).0
    }

    /// Waits until `/readyz` reports this state of the log.
    fn wait_for(&self, state: &str) -> (u16, Value) {
        let deadline = Instant::now() + TIMEOUT;
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

// API-3
#[test]
fn readyz_is_503_with_a_reason_while_the_log_refuses_calls() {
    let proxy = Proxy::start("refuse");
    assert_eq!(proxy.wait_for("ok").0, 200);
    proxy.plan.arm(Op::Sync, EIO, 0, u64::MAX);
    assert_eq!(proxy.call(), 404, "the failure was not known yet");
    let (status, body) = proxy.wait_for("failed");
    assert_eq!((status, &body["ready"]), (503, &json!(false)));
    let reason = body["activity"]["reason"].as_str().unwrap();
    assert!(reason.contains("Input/output error"), "{reason}");
    assert_ne!(proxy.call(), 404, "calls are refused");
    let (status, body) = proxy.request("GET /readyz HTTP/1.1\r\n", "");
    assert_eq!((status, &body["activity"]), (503, &json!({"state": "failed"})), "without the key");
}

#[test]
fn readyz_is_503_while_the_disk_does_not_respond_and_200_afterwards() {
    let proxy = Proxy::start("refuse");
    assert_eq!(proxy.wait_for("ok").0, 200);
    proxy.plan.delay(Op::Sync, STUCK_MS);
    proxy.call();
    let (status, body) = proxy.wait_for("failed");
    assert_eq!(status, 503);
    let reason = body["activity"]["reason"].as_str().unwrap();
    assert!(reason.contains("the disk has not answered for"), "{reason}");
    proxy.plan.disarm();
    let (status, body) = proxy.wait_for("ok");
    assert_eq!((status, &body["ready"]), (200, &json!(true)));
}

#[test]
fn readyz_stays_200_and_status_is_degraded_while_calls_proceed_without_the_log() {
    let proxy = Proxy::start("continue");
    proxy.plan.arm(Op::Sync, EIO, 0, u64::MAX);
    proxy.call();
    let (status, body) = proxy.wait_for("degraded");
    assert_eq!((status, &body["ready"]), (200, &json!(true)));
    assert_eq!(proxy.call(), 404, "calls proceed");
    let health = proxy.get("/healthz").1;
    // The record of the call, and possibly one of the proxy.
    let lost = |activity: &Value| activity["lost"].as_u64().is_some_and(|lost| lost >= 1);
    assert!(health["status"] == "degraded" && lost(&health["activity"]), "{health}");
    let status = &proxy.get("/api/v1/status").1["data"]["activity"];
    assert!(status["state"] == "degraded" && lost(status), "{status}");
}
