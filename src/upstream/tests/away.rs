//! Servers that go and come back, calls that find them away, and the time that a call has for all
//! of it.

use std::path::{Path, PathBuf};

use super::fake::{Fake, Say, Seen, legacy, modern};
use super::stdio::SERVER;
use super::*;
use crate::upstream::backoff::{Ended, PAUSE, Wishes};

/// A wait that no test can sit out: what ends it was a call.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A child that counts its starts, ends at once unless it is `up`, and ends when it is told to be
/// gone.
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
async fn more_servers_than_may_finish_their_calls_at_once_can_go_at_once() {
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
async fn a_call_ends_the_longest_wait_and_one_attempt_serves_all_calls() {
    let wishes = Wishes::default();
    let began = Instant::now();
    let ended = Ended { began, starts: 1, failed: true };
    let due = |ended: Ended, delay| ended.due(Instant::now(), delay);
    // Nobody called: it is made when it is due.
    assert!(!wishes.rest(1, due(ended, Duration::from_millis(1))).await);
    for starts in [1, 2] {
        let attempt = u64::from(starts) + 1;
        let before = Instant::now();
        let rest = wishes.rest(attempt, due(Ended { starts, ..ended }, NEVER));
        let calls = async { (0..50).for_each(|_| wishes.wish(attempt + 1)) };
        let (called, ()) = within(async { tokio::join!(rest, calls) }).await;
        assert!(called);
        assert!(before.elapsed() >= PAUSE * starts, "a start a second");
    }
    // All fifty are served by the one: what they wished for wakes nothing any more.
    assert!(!wishes.rest(4, due(ended, Duration::from_millis(1))).await);
}

#[tokio::test]
async fn calls_to_a_child_that_is_away_wait_for_one_attempt_and_are_told_or_served() {
    let child = Child::new();
    let bench = child.bench();
    bench.connected("sh").await;
    assert_eq!(child.starts(), 1);
    std::fs::remove_file(child.mark()).unwrap();
    bench.call("sh:t", r#"{"x":"gone"}"#).await.unwrap_err();
    let calls = (0..50).map(|_| bench.call("sh:t", "{}"));
    for outcome in futures_util::future::join_all(calls).await {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("exit status: 3; its last words: out to lunch"), "{error}");
    }
    assert_eq!(child.starts(), 2, "fifty calls, one attempt");
    // Whoever comes in the next second is told at once, and when to come again.
    let error = bench.error("sh:t").await;
    assert!(error.contains("out to lunch; it was just tried, the next try is in "), "{error}");
    child.up();
    within(async { while bench.call("sh:t", "{}").await.is_err() {} }).await;
    bench.stop().await;
}

#[tokio::test]
async fn a_child_that_ends_with_every_call_is_started_once_a_second() {
    let child = Child::new();
    let bench = child.bench();
    bench.connected("sh").await;
    let began = Instant::now();
    while child.starts() < 4 {
        within(bench.call("sh:t", r#"{"x":"gone"}"#)).await.unwrap_err();
    }
    assert!(began.elapsed() >= PAUSE * 2, "{:?}", began.elapsed());
    bench.stop().await;
}

#[tokio::test]
async fn a_server_that_was_never_there_is_found_with_its_tools_when_it_is_needed() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let bench = Bench::start(json!({"web": {"url": format!("http://{address}/mcp")}}));
    bench.until("web", |state| state.status == Status::Failed).await;
    let upstream = bench.upstream("web");
    let reason = upstream.discovered(Instant::now() + PATIENCE).await.unwrap_err();
    assert!(reason.starts_with("web: the server is not connected: cannot connect to "), "{reason}");
    let _server = Fake::start_at(address, legacy).await;
    within(async { while upstream.discovered(Instant::now() + PATIENCE).await.is_err() {} }).await;
    assert!(bench.call("web:t", "{}").await.is_ok(), "its tools are known");
    bench.stop().await;
}

/// Of the time that a call has, this much is left when it comes to its server.
const LEFT: Duration = Duration::from_millis(400);
/// More than [`PATIENCE`]: a wait that began anew would fail the test.
const TIME: Duration = Duration::from_secs(60);

/// A call that began some time ago; its error.
async fn late(bench: &Bench, name: &str, beside: CallExtras) -> String {
    let permit = bench.permit(name);
    let upstream = bench.upstream(permit.access().server());
    let began = (Instant::now() + LEFT).checked_sub(TIME).unwrap();
    let call = async {
        let arguments = Bytes::from_static(b"{}");
        upstream.call(&bench.pool, &permit, arguments, beside, began).await?.next().await
    };
    within(call).await.unwrap_err().to_string()
}

#[tokio::test]
async fn what_is_left_of_a_calls_time_is_all_that_an_answer_may_take() {
    let asked = || CallExtras {
        client_capabilities: ClientCapabilities {
            elicitation: true,
            ..ClientCapabilities::default()
        },
        ..CallExtras::default()
    };
    let mute = |others: fn(&Seen) -> Say| {
        move |seen: &Seen| if seen.method() == "tools/call" { Say::Nothing } else { others(seen) }
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
        let told = late(&bench, name, beside).await;
        assert!(told.ends_with(": t: no answer within 1m"), "{told}");
    }
    bench.stop().await;
}

#[tokio::test]
async fn what_is_left_of_a_calls_time_is_all_that_a_server_has_to_come_back() {
    // Once it was connected, it is mute to whoever connects again, and knows no session.
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
            elicitation: true,
            ..ClientCapabilities::default()
        },
        ..CallExtras::default()
    };
    let told = late(&bench, "web:t", CallExtras::default()).await;
    assert!(told.contains("still connecting after a wait of ") && !told.contains("10s"), "{told}");
    let told = late(&bench, "web:t", beside()).await;
    assert!(told.contains("still connecting") || told.contains("no answer within 1m"), "{told}");
    bench.stop().await;
}
