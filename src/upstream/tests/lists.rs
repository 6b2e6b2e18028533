//! Lists and streams that fail temporarily: partial and stale lists, reopened streams, throttled servers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;

use super::*;
use crate::state::Phase;
use crate::tests::{Fake, Request, Say, legacy, modern};

fn tools(seen: &Request, names: &[&str], more: Value) -> Say {
    let list = names.iter().map(|name| json!({"name": name, "inputSchema": {}}));
    let mut result = json!({"tools": list.collect::<Vec<_>>(), "resultType": "complete"});
    result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Say::result(seen, result)
}

#[tokio::test]
async fn pro_15_refused_revision_over_http_is_followed_by_the_newest_common_revision() {
    type Refusal = fn(&Request) -> Say;
    let refusals: [Refusal; 4] = [
        |seen| {
            let data =
                json!({"supported": ["2024-11-05", "2025-06-18"], "requested": "2025-11-25"});
            let error =
                json!({"code": -32602, "message": "Unsupported protocol version", "data": data});
            Say::json(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}))
        },
        |seen| {
            let error =
                json!({"code": -32022, "message": "no", "data": {"supported": ["2025-06-18"]}});
            let body = json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error});
            Say::status("400 Bad Request", "application/json", &body.to_string())
        },
        |_| {
            let body = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000,
                "message": "Bad Request: Unsupported protocol version (supported versions: 2025-06-18, 2025-03-26)"}});
            Say::status("400 Bad Request", "application/json", &body.to_string())
        },
        |_| Say::status("400 Bad Request", "text/plain", "Unsupported protocol version"),
    ];
    for (row, refusal) in refusals.into_iter().enumerate() {
        let server = Fake::start(move |seen| match seen.method() {
            "server/discover" => Say::status("404 Not Found", "text/plain", ""),
            "initialize" if seen.body["params"]["protocolVersion"] == "2025-11-25" => {
                refusal(seen).with("mcp-session-id: refused")
            }
            "initialize" => Say::result(
                seen,
                json!({"protocolVersion": seen.body["params"]["protocolVersion"],
                    "capabilities": {"tools": {}}, "serverInfo": {"name": "n", "version": "1"}}),
            ),
            _ => legacy(seen),
        })
        .await;
        let bench = server.bench();
        let state = bench.connected("web").await;
        assert_eq!(state.protocol_version.as_deref(), Some("2025-06-18"), "row {row}");
        let asked = server.seen("initialize");
        assert_eq!(asked.len(), 2, "row {row}");
        assert_eq!(asked[1].header("mcp-session-id"), None, "row {row}");
        let [list] = &server.seen("tools/list")[..] else { panic!("row {row}") };
        assert_eq!(list.header("mcp-protocol-version").as_deref(), Some("2025-06-18"));
        bench.stop().await;
    }
}

#[tokio::test]
async fn pro_15_irregular_handshakes_and_lists_are_accepted() {
    let server = Fake::start(|seen| match seen.method() {
        "server/discover" => Say::status("404 Not Found", "text/plain", ""),
        "initialize" => Say::result(
            seen,
            json!({"protocolVersion": "2025-06-18", "serverInfo": {"name": "odd"},
                "capabilities": {"tools": true, "experimental": {"a": null}}}),
        ),
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    let state = bench.connected("web").await;
    assert_eq!((state.server_info.as_deref(), state.tools), (Some("odd"), 1));
    bench.stop().await;

    let server = Fake::start(|seen| match seen.method() {
        "server/discover" => Say::result(
            seen,
            json!({"supportedVersions": ["2026-07-28"], "ttlMs": 60000.0, "capabilities": {"tools": []}}),
        ),
        "tools/list" => Say::result(
            seen,
            json!({"ttlMs": 60000.0, "cacheScope": null, "tools": [{"name": "t", "inputSchema": {},
                "annotations": {"readOnlyHint": null, "title": null}}]}),
        ),
        _ => modern(seen),
    })
    .await;
    let bench = server.bench();
    let state = bench.connected("web").await;
    assert_eq!((state.protocol_version.as_deref(), state.tools), (Some("2026-07-28"), 1));
    bench.stop().await;
}

#[tokio::test]
async fn pro_11_partial_list_is_used_and_marked() {
    let server = Fake::start(|seen| match seen.method() {
        "tools/list" => tools(seen, &["t"], json!({"nextCursor": 7})),
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    let marked =
        |state: &ServerState| state.status == Status::Connected && !state.reason.is_empty();
    let state = bench.wait_until("web", marked).await;
    assert_eq!(&*state.reason, "tools/list is partial: nextCursor of page 1 is not a string");
    bench.call("web:t", "{}").await.unwrap();
    bench.stop().await;
}

#[tokio::test]
async fn pro_11_rest_of_a_list_is_read_later() {
    let failing = Arc::new(AtomicBool::new(true));
    let fails = failing.clone();
    let server = Fake::start(move |seen| match seen.method() {
        "tools/list" if seen.body["params"]["cursor"] == "2" => {
            match fails.swap(false, Ordering::Relaxed) {
                true => Say::status("500 Oops", "text/plain", "x"),
                false => tools(seen, &["u"], json!({})),
            }
        }
        "tools/list" => tools(seen, &["t"], json!({"nextCursor": "2"})),
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    let partial = bench.wait_until("web", |state| state.reason.contains("is partial")).await;
    assert_eq!(partial.tools, 1);
    assert_eq!(
        &*partial.reason,
        "tools/list is partial: page 2 cannot be read: tools/list: the server answered HTTP 500"
    );
    let complete = bench.wait_until("web", |state| state.tools == 2).await;
    assert_eq!(complete.status, Status::Connected);
    bench.wait_until("web", |state| state.reason.is_empty()).await;
    assert_eq!(server.seen("initialize").len(), 1);
    bench.stop().await;
}

#[tokio::test]
async fn pro_12_failed_relisting_keeps_session_list_and_calls() {
    type Failure = fn(&Request) -> Say;
    let failures: [(Failure, &str); 4] = [
        (|_| Say::status("500 Oops", "text/plain", "x"), "the server answered HTTP 500"),
        (|_| Say::status("429 Slow", "text/plain", "x"), "the server answered HTTP 429"),
        (|seen| Say::error(seen, -32603, "no"), "it refused tools/list: no"),
        (|_| Say::json(json!("garbage")), "its stream held no response"),
    ];
    for (failure, reason) in failures {
        let failing = Arc::new(AtomicBool::new(false));
        let (fails, stream) = (failing.clone(), Mutex::new(None));
        let (sender, events) = Say::events();
        *stream.lock() = Some(events);
        let server = Fake::start(move |seen| match seen.method() {
            "tools/list" if fails.load(Ordering::Relaxed) => failure(seen),
            "tools/call" => stream.lock().take().unwrap_or(Say::Nothing),
            _ => legacy(seen),
        })
        .await;
        let bench = server.bench();
        bench.connected("web").await;
        let mut call = bench.begin("web:t", "{}").await.unwrap();
        failing.store(true, Ordering::Relaxed);
        bench.upstream("web").server_events.tools.notify_one();
        let state = bench.wait_until("web", |state| !state.reason.is_empty()).await;
        assert_eq!((state.status, state.tools), (Status::Connected, 1));
        assert!(state.reason.starts_with("tools/list is stale: "), "{}", state.reason);
        assert!(state.reason.contains(reason), "{}", state.reason);
        failing.store(false, Ordering::Relaxed);
        bench.wait_until("web", |state| state.reason.is_empty()).await;
        sender.send(answer(&json!(call.id())).to_string()).unwrap();
        assert!(next_message(&mut call).await.unwrap().is_some(), "{reason}");
        assert_eq!(server.seen("initialize").len(), 1);
        assert_eq!(server.count(|seen| seen.verb == "DELETE"), 0);
        bench.stop().await;
    }
}

fn answer(id: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}})
}

/// A session that the server does not know is not a stale list.
#[tokio::test]
async fn pro_12_relisting_in_an_unknown_session_begins_a_new_one() {
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = gone.clone();
    let server = Fake::start(move |seen| match seen.method() {
        "tools/list" if is_gone.swap(false, Ordering::Relaxed) => {
            Say::status("404 Not Found", "text/plain", "gone")
        }
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    gone.store(true, Ordering::Relaxed);
    bench.upstream("web").server_events.tools.notify_one();
    server.wait_for_count("initialize", 2).await;
    bench.connected("web").await;
    bench.stop().await;
}

#[tokio::test]
async fn pro_13_refused_get_stream_is_reopened_and_the_lists_read_again() {
    for refusal in ["429 Slow", "500 Oops", "503 Busy"] {
        let opened = Arc::new(AtomicUsize::new(0));
        let gets = opened.clone();
        let (_sender, events) = Say::events();
        let stream = Mutex::new(Some(events));
        let server = Fake::start(move |seen| match (seen.verb.as_str(), seen.method()) {
            ("GET", _) => match gets.fetch_add(1, Ordering::Relaxed) {
                0 => Say::status(refusal, "text/plain", ""),
                _ => stream.lock().take().unwrap_or(Say::Nothing),
            },
            _ => legacy(seen),
        })
        .await;
        let bench = server.bench();
        bench.connected("web").await;
        let mut changes = bench.upstream("web").changes();
        let before = *changes.borrow();
        server.wait_for_count("tools/list", 2).await;
        within(changes.wait_for(|now| now.resources > before.resources)).await.unwrap();
        assert_eq!(opened.load(Ordering::Relaxed), 2, "{refusal}");
        bench.stop().await;
    }
}

#[tokio::test]
async fn pro_13_get_stream_that_ended_is_reopened_and_the_lists_read_again() {
    let opened = Arc::new(AtomicUsize::new(0));
    let gets = opened.clone();
    let server = Fake::start(move |seen| match seen.verb.as_str() {
        "GET" if gets.fetch_add(1, Ordering::Relaxed) == 0 => Say::stream(": hello\n\n"),
        "GET" => Say::Nothing,
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    server.wait_until(|_| opened.load(Ordering::Relaxed) == 2).await;
    bench.stop().await;

    let opened = Arc::new(AtomicUsize::new(0));
    let gets = opened.clone();
    let (_sender, events) = Say::events();
    let stream = Mutex::new(Some(events));
    let server = Fake::start(move |seen| match seen.verb.as_str() {
        "GET" if gets.fetch_add(1, Ordering::Relaxed) == 0 => Say::stream(": hello\n\n"),
        "GET" => stream.lock().take().unwrap_or(Say::Nothing),
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    server.wait_for_count("tools/list", 2).await;
    bench.stop().await;
}

#[tokio::test]
async fn pro_13_refused_subscription_is_opened_again_and_the_lists_read() {
    let asked = Arc::new(AtomicUsize::new(0));
    let times = asked.clone();
    let (sender, events) = Say::events();
    let stream = Mutex::new(Some(events));
    let server = Fake::start(move |seen| match seen.method() {
        "subscriptions/listen" => match times.fetch_add(1, Ordering::Relaxed) {
            0 => {
                let body = json!({"jsonrpc": "2.0", "id": seen.body["id"],
                    "error": {"code": -32603, "message": "busy"}});
                Say::status("503 Busy", "application/json", &body.to_string())
            }
            _ => stream.lock().take().unwrap_or(Say::Nothing),
        },
        _ => modern(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged"});
    sender.send(ready.to_string()).unwrap();
    server.wait_for_count("tools/list", 2).await;
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    bench.stop().await;
}

#[tokio::test]
async fn pro_14_throttled_handshake_waits_without_further_attempts() {
    for (wait, at_least) in [("1", 0), ("120", 60)] {
        let asked = AtomicUsize::new(0);
        let server = Fake::start(move |seen| match seen.method() {
            "server/discover" | "initialize" if asked.fetch_add(1, Ordering::Relaxed) == 0 => {
                let error = json!({"code": -32000, "message": "slow down"});
                let body = json!({"jsonrpc": "2.0", "id": null, "error": error});
                Say::status("429 Slow", "application/json", &body.to_string())
                    .with(&format!("retry-after: {wait}"))
            }
            _ => legacy(seen),
        })
        .await;
        let bench = server.bench();
        let state = bench.wait_until("web", |state| state.status == Status::Throttled).await;
        let reason = format!("the server answered HTTP 429, retry after {wait}s: slow down");
        assert_eq!(*state.reason, *reason);
        assert!(bench.supervisor.settled());
        match at_least {
            0 => {
                bench.connected("web").await;
                assert_eq!(server.seen("initialize").len(), 1);
            }
            seconds => {
                let upstream = bench.upstream("web");
                let state = upstream.state.load();
                let Phase::Waiting(waiting) = state.phase() else { panic!() };
                let earliest = Instant::now() + Duration::from_secs(seconds);
                assert!(waiting.due.earliest > earliest, "not even for a call");
                assert!(server.seen("initialize").is_empty());
            }
        }
        bench.stop().await;
    }
}

#[tokio::test]
async fn pro_14_throttled_first_list_keeps_the_session() {
    let throttled = Arc::new(AtomicBool::new(true));
    let is_throttled = throttled.clone();
    let server = Fake::start(move |seen| match seen.method() {
        "tools/list" if is_throttled.load(Ordering::Relaxed) => {
            Say::status("503 Busy", "text/plain", "").with("retry-after: 1")
        }
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    let state = bench.wait_until("web", |state| state.status == Status::Throttled).await;
    assert_eq!(&*state.reason, "tools/list: the server answered HTTP 503, retry after 1s");
    throttled.store(false, Ordering::Relaxed);
    bench.connected("web").await;
    assert_eq!((server.seen("initialize").len(), server.seen("tools/list").len()), (1, 2));
    bench.stop().await;
}

#[tokio::test]
async fn pro_14_throttled_call_names_the_time_to_wait() {
    let server = Fake::start(|seen| match seen.method() {
        "tools/call" => Say::error(seen, -32000, "rate limit exceeded"),
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    let messages = bench.call("web:t", "{}").await.unwrap();
    assert!(messages[0].contains("rate limit exceeded"), "an error under HTTP 200 is an answer");
    bench.stop().await;

    let server = Fake::start(|seen| match seen.method() {
        "tools/call" => {
            let body = json!({"jsonrpc": "2.0", "id": seen.body["id"],
                "error": {"code": -32000, "message": "rate limit exceeded"}});
            Say::status("429 Slow", "application/json", &body.to_string()).with("retry-after: 30")
        }
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    assert_eq!(
        bench.error("web:t").await,
        "web: t: the server answered HTTP 429, retry after 30s: rate limit exceeded"
    );
    assert_eq!(server.seen("initialize").len(), 1);
    bench.stop().await;
}

#[tokio::test]
async fn pro_13_changes_in_the_stream_of_a_call_are_observed() {
    let server = Fake::start(|seen| match seen.method() {
        "tools/call" => Say::stream(&format!(
            "data: {}\n\ndata: {}\n\n",
            json!({"method": "notifications/tools/list_changed"}),
            answer(&seen.body["id"])
        )),
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    let mut updates = bench.upstream("web").updates();
    let mut call = bench.begin("web:t", "{}").await.unwrap();
    let message = next_message(&mut call).await.unwrap().unwrap();
    call.observe(message.as_bytes());
    server.wait_for_count("tools/list", 2).await;
    call.observe(br#"{"method":"notifications/resources/updated","params":{"uri":"a:b"}}"#);
    assert_eq!(&*within(updates.recv()).await.unwrap(), "a:b");
    bench.stop().await;
}

#[tokio::test]
async fn pro_13_changes_in_the_stream_of_a_list_are_observed() {
    let count = AtomicUsize::new(0);
    let server = Fake::start(move |seen| match seen.method() {
        "tools/list" if count.fetch_add(1, Ordering::Relaxed) == 0 => Say::stream(&format!(
            "data: {}\n\ndata: {}\n\n",
            json!({"method": "notifications/tools/list_changed"}),
            json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": {"tools": []}})
        )),
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    server.wait_for_count("tools/list", 2).await;
    bench.stop().await;
}
