//! Servers that disappear and come back, and the time limits of calls in between.

use std::path::{Path, PathBuf};

use super::*;
use crate::backoff::{AttemptEnd, ConnectRequests, MIN_START_INTERVAL};
use crate::tests::stdio::SERVER;
use crate::tests::{Fake, Request, Say, legacy, modern};

/// Longer than any test, so only a call can end the wait.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A child that counts its starts, exits immediately unless it is `up`, and exits on request.
struct Child {
    folder: tempfile::TempDir,
}

impl Child {
    fn new() -> Self {
        let child = Self { folder: tempfile::tempdir().unwrap() };
        child.up();
        child
    }

    fn bench(&self) -> Bench {
        let first =
            r#"echo x >>"$AT/starts"; [ -e "$AT/up" ] || { echo 'out to lunch' >&2; exit 3; }"#;
        let on_call =
            r#"case "$line" in *gone*) exit 0;; esac; printf '{"id":%s,"result":{}}\n' "$id""#;
        Bench::start(json!({"sh": {
            "command": "/bin/sh", "args": ["-c", SERVER, "s", on_call, first],
            "env": {"AT": self.folder.path()},
        }}))
    }

    fn mark(&self) -> PathBuf {
        self.folder.path().join("up")
    }

    fn up(&self) {
        std::fs::write(self.mark(), "").unwrap();
    }

    fn starts(&self) -> usize {
        lines(&self.folder.path().join("starts"))
    }
}

fn lines(file: &Path) -> usize {
    std::fs::read_to_string(file).unwrap_or_default().lines().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn more_servers_than_the_drain_limit_can_be_retired_at_once() {
    let servers = |of: &str| -> serde_json::Map<String, serde_json::Value> {
        let entry = json!({"command": "x", "enabled": false});
        (0..2 * MAX_RETIRING + 1).map(|n| (format!("{of}{n}"), entry.clone())).collect()
    };
    let plan = |of: &str| {
        let starts = |(name, entry): (String, serde_json::Value)| {
            let config: Config = serde_json::from_value(entry).unwrap();
            (Arc::from(name), ServerPlan::Starts(config.into()))
        };
        servers(of).into_iter().map(starts).collect::<Vec<_>>()
    };
    let bench = Bench::start(servers("a").into());
    for next in [plan("b"), plan("b"), Vec::new()] {
        let gone = within(bench.supervisor.replace(next)).await.retired;
        assert_eq!(gone.len(), 2 * MAX_RETIRING + 1);
    }
    within(async {
        while bench.supervisor.retiring() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn call_ends_the_backoff_and_one_attempt_serves_all_calls() {
    let requests = ConnectRequests::default();
    let began = Instant::now();
    let ended = AttemptEnd { began, starts: 1, failed: true };
    let due = |ended: AttemptEnd, delay| ended.due(Instant::now(), delay);
    // Without a call, the attempt is made when it is due.
    assert!(!requests.wait_until_due(1, due(ended, Duration::from_millis(1))).await);
    for starts in [1, 2] {
        let attempt = u64::from(starts) + 1;
        let before = Instant::now();
        let wait_until_due =
            requests.wait_until_due(attempt, due(AttemptEnd { starts, ..ended }, NEVER));
        let calls = async { (0..50).for_each(|_| requests.request(attempt + 1)) };
        let (called, ()) = within(async { tokio::join!(wait_until_due, calls) }).await;
        assert!(called);
        assert!(before.elapsed() >= MIN_START_INTERVAL * starts, "one start per second");
    }
    // One attempt served all fifty calls: their requests do not trigger another one.
    assert!(!requests.wait_until_due(4, due(ended, Duration::from_millis(1))).await);
    // An operator's request is not paced, even after a call's request.
    requests.request(6);
    let never = due(AttemptEnd { starts: u32::from(u16::MAX), ..ended }, NEVER * 2);
    let wait_until_due = requests.wait_until_due(5, never);
    let operator = async { requests.request_at_once(6) };
    assert!(within(async { tokio::join!(wait_until_due, operator) }).await.0);
}

#[tokio::test]
async fn calls_to_a_stopped_child_share_one_attempt_and_its_outcome() {
    let child = Child::new();
    let bench = child.bench();
    bench.connected("sh").await;
    assert_eq!(child.starts(), 1);
    std::fs::remove_file(child.mark()).unwrap();
    bench.call("sh:t", r#"{"x":"gone"}"#).await.unwrap_err();
    let calls = (0..50).map(|_| bench.call("sh:t", "{}"));
    for outcome in futures_util::future::join_all(calls).await {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("exit status: 3; last stderr line: out to lunch"), "{error}");
    }
    assert_eq!(child.starts(), 2, "one attempt for fifty calls");
    // Within the next second, calls fail immediately and state the time of the next attempt.
    let error = bench.error("sh:t").await;
    assert!(
        error.contains("out to lunch; a connection was just attempted, the next attempt is in "),
        "{error}"
    );
    child.up();
    within(async { while bench.call("sh:t", "{}").await.is_err() {} }).await;
    bench.stop().await;
}

#[tokio::test]
async fn child_that_exits_with_every_call_is_started_once_per_second() {
    let child = Child::new();
    let bench = child.bench();
    bench.connected("sh").await;
    let began = Instant::now();
    while child.starts() < 4 {
        within(bench.call("sh:t", r#"{"x":"gone"}"#)).await.unwrap_err();
    }
    assert!(began.elapsed() >= MIN_START_INTERVAL * 2, "{:?}", began.elapsed());
    bench.stop().await;
}

#[tokio::test]
async fn server_that_was_never_up_is_discovered_when_needed() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let bench = Bench::start(json!({"web": {"url": format!("http://{address}/mcp")}}));
    bench.wait_until("web", |state| state.status == Status::Failed).await;
    let upstream = bench.upstream("web");
    let reason = upstream.discovered(Instant::now() + PATIENCE).await.unwrap_err();
    assert!(reason.starts_with("web: the server is not connected: cannot connect to "), "{reason}");
    let _server = Fake::start_at(address, legacy).await;
    within(async { while upstream.discovered(Instant::now() + PATIENCE).await.is_err() {} }).await;
    assert!(bench.call("web:t", "{}").await.is_ok(), "the tools are known");
    bench.stop().await;
}

/// Remaining time of a call when it reaches its server.
const LEFT: Duration = Duration::from_millis(400);
/// More than [`PATIENCE`], so that a restarted wait would fail the test.
const TIME: Duration = Duration::from_secs(60);

/// Error of a call that started some time ago.
async fn late(bench: &Bench, name: &str, beside: CallExtras) -> String {
    let permit = bench.permit(name);
    let began = (Instant::now() + LEFT).checked_sub(TIME).unwrap();
    let call = async {
        let arguments = Bytes::from_static(b"{}");
        bench.send(&permit, arguments, beside, began).await?.next().await
    };
    within(call).await.unwrap_err().to_string()
}

#[tokio::test]
async fn remaining_time_of_a_call_limits_the_response() {
    let asked = || CallExtras {
        client_capabilities: ClientCapabilities {
            elicitation_forms: true,
            ..ClientCapabilities::default()
        },
        ..CallExtras::default()
    };
    let mute = |others: fn(&Request) -> Say| {
        move |seen: &Request| {
            if seen.method() == "tools/call" { Say::Nothing } else { others(seen) }
        }
    };
    let (old, new) = (Fake::start(mute(legacy)).await, Fake::start(mute(modern)).await);
    let entry = |url: &str| json!({"url": url, "call_timeout": "60s"});
    let bench = Bench::start(json!({
        "old": entry(&old.url), "new": entry(&new.url),
        "sh": {"command": "/bin/sh", "args": ["-c", SERVER, "s", ":", ""], "call_timeout": "60s"},
    }));
    for name in ["old", "new", "sh"] {
        bench.connected(name).await;
    }
    for (name, beside) in [
        ("old:t", CallExtras::default()),
        ("old:t", asked()),
        ("new:t", CallExtras::default()),
        ("sh:t", CallExtras::default()),
    ] {
        let error = late(&bench, name, beside).await;
        assert!(error.ends_with(": t: no answer within 1m"), "{error}");
    }
    bench.stop().await;
}

#[tokio::test]
async fn remaining_time_of_a_call_limits_the_reconnect() {
    // Once connected, the server ignores further handshakes and knows no session.
    let first = std::sync::atomic::AtomicBool::new(true);
    let server = Fake::start(move |seen| match seen.method() {
        "server/discover" if !first.load(std::sync::atomic::Ordering::Relaxed) => Say::Nothing,
        "initialize" if !first.swap(false, std::sync::atomic::Ordering::Relaxed) => Say::Nothing,
        "tools/call" => Say::status("404 Not Found", "text/plain", "gone"),
        _ => legacy(seen),
    })
    .await;
    let bench = Bench::start(json!({"web": {"url": server.url, "call_timeout": "60s"}}));
    bench.connected("web").await;
    let beside = || CallExtras {
        client_capabilities: ClientCapabilities {
            elicitation_forms: true,
            ..ClientCapabilities::default()
        },
        ..CallExtras::default()
    };
    let error = late(&bench, "web:t", CallExtras::default()).await;
    assert!(
        error.contains("still connecting after a wait of ") && !error.contains("10s"),
        "{error}"
    );
    let error = late(&bench, "web:t", beside()).await;
    assert!(error.contains("still connecting") || error.contains("no answer within 1m"), "{error}");
    bench.stop().await;
}
