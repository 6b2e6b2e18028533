//! Both eras, and servers that say which one is theirs in every way there is.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::fake::{Fake, Say, Seen, legacy, modern};
use super::*;

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

#[tokio::test]
async fn a_modern_server_is_asked_in_its_own_way_from_the_first_request_on() {
    let server = Fake::start(modern).await;
    let bench = server.bench();
    let state = bench.connected("web").await;
    assert_eq!(state.protocol_version.as_deref(), Some("2026-07-28"));
    assert_eq!(state.server_info.as_deref(), Some("new 2"));
    let upstream = bench.upstream("web");
    assert_eq!(upstream.era(), Era::Modern);
    let offers = upstream.offers();
    assert!(offers.tools && offers.resources && !offers.prompts, "{offers:?}");

    let meta = br#"{"progressToken":"p","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"io.modelcontextprotocol/clientInfo":{"name":"theirs"}}"#;
    let beside = CallExtras { meta: Some(Bytes::from_static(meta)), ..CallExtras::default() };
    let mut answer = bench.begin_with("web:t", beside).await.unwrap();
    let id = answer.id();
    assert!(next_message(&mut answer).await.unwrap().unwrap().contains("resultType"));

    let [call] = &server.seen("tools/call")[..] else { panic!() };
    assert_eq!(call.header("mcp-name").as_deref(), Some("t"));
    let meta = &call.body["params"]["_meta"];
    assert_eq!(meta["progressToken"], id);
    assert_eq!(meta[CAPABILITIES], json!({"elicitation": {}}));
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "mcpproxy");
    for method in ["server/discover", "tools/list", "tools/call", "subscriptions/listen"] {
        let seen = server.until(|seen| seen.method() == method).await;
        assert_eq!(seen.header("mcp-method").as_deref(), Some(method));
        assert_eq!(seen.header("mcp-protocol-version").as_deref(), Some("2026-07-28"));
        assert_eq!(seen.header("mcp-session-id"), None);
        assert_eq!(seen.body["params"]["_meta"][VERSION], "2026-07-28");
        assert!(seen.body["params"]["_meta"][CAPABILITIES].is_object(), "{seen:?}");
    }
    assert!(server.seen("initialize").is_empty());
    bench.stop().await;
    assert!(server.seen("").is_empty(), "no GET, no DELETE");
}

/// Every way in which servers of the field refuse the probe.
#[tokio::test]
async fn whatever_refuses_the_probe_is_initialized() {
    type Refusal = fn(&Seen) -> Say;
    let refusals: [Refusal; 11] = [
        |_| Say::status("400 Bad Request", "text/plain", "what?"),
        |_| Say::status("404 Not Found", "text/html", "<p>no"),
        |_| Say::status("405 Method Not Allowed", "text/plain", ""),
        |_| Say::status("500 Oops", "text/plain", "panic"),
        |_| {
            let body = r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Bad Request: Missing session ID"}}"#;
            Say::status("400 Bad Request", "application/json", body)
        },
        |_| {
            Say::json(
                json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "Bad Request: Server not initialized"}}),
            )
        },
        |seen| Say::error(seen, -32601, "no such method"),
        |_| Say::status("200 OK", "text/html", "<p>Hello"),
        |_| Say::accepted(),
        |seen| Say::result(seen, json!({"hello": 1})),
        |seen| Say::result(seen, json!({"supportedVersions": ["2025-11-25"], "capabilities": {}})),
    ];
    for (row, refusal) in refusals.into_iter().enumerate() {
        let server = Fake::start(move |seen| match seen.method() {
            "server/discover" => refusal(seen).with("mcp-session-id: not-this-one"),
            _ => legacy(seen),
        })
        .await;
        let bench = server.bench();
        let state = bench.connected("web").await;
        assert_eq!(state.protocol_version.as_deref(), Some("2025-11-25"), "row {row}");
        assert_eq!(bench.upstream("web").era(), Era::Legacy);
        let [initialize] = &server.seen("initialize")[..] else { panic!("row {row}") };
        for name in ["mcp-protocol-version", "mcp-session-id", "mcp-method"] {
            assert_eq!(initialize.header(name), None, "row {row}");
        }
        let told = &initialize.body["params"]["capabilities"];
        assert_eq!(*told, json!({"sampling": {}, "elicitation": {}, "roots": {}}));
        bench.call("web:t", "{}").await.unwrap();
        let [call] = &server.seen("tools/call")[..] else { panic!("row {row}") };
        assert_eq!(call.header("mcp-session-id").as_deref(), Some("s-1"));
        assert_eq!(call.header("mcp-protocol-version").as_deref(), Some("2025-11-25"));
        assert_eq!(call.body["params"].get("_meta"), None);
        bench.stop().await;
    }
}

#[tokio::test]
async fn unsupported_with_legacy_versions_is_legacy_and_with_unknown_ones_is_an_error() {
    let refuse = |supported: serde_json::Value| {
        move |seen: &Seen| match seen.method() {
            "server/discover" => Say::status(
                "400 Bad Request",
                "application/json",
                &json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": {"code": -32022,
                    "message": "Unsupported protocol version", "data": {"supported": supported}}})
                .to_string(),
            ),
            _ => legacy(seen),
        }
    };
    let server = Fake::start(refuse(json!(["2025-06-18", "2025-11-25"]))).await;
    let bench = server.bench();
    bench.connected("web").await;
    assert_eq!(bench.upstream("web").era(), Era::Legacy);
    bench.stop().await;

    let server = Fake::start(refuse(json!(["2099-01-01"]))).await;
    let bench = server.bench();
    let state = bench.until("web", |state| state.status == Status::Failed).await;
    assert_eq!(
        &*state.reason,
        "it speaks none of the revisions that are known here, but 2099-01-01"
    );
    assert!(server.seen("initialize").is_empty());
    bench.stop().await;
}

#[tokio::test]
async fn a_server_that_wants_credentials_is_not_taken_for_a_legacy_one() {
    let server = Fake::start(|_| Say::status("401 Unauthorized", "text/plain", "who?")).await;
    let bench = server.bench();
    let state = bench.until("web", |state| state.status == Status::Failed).await;
    assert_eq!(&*state.reason, "the server answered HTTP 401: who?");
    assert!(server.seen("initialize").is_empty());
    bench.stop().await;
}

#[tokio::test]
async fn a_server_of_the_first_http_transport_is_told_apart() {
    let server = Fake::start(|seen| match seen.verb.as_str() {
        "GET" => {
            let event = "event: endpoint\ndata: /messages?session=1\n\n";
            Say::Raw(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n",
                event.len()
            ))
        }
        _ => Say::status("405 Method Not Allowed", "text/plain", ""),
    })
    .await;
    let bench = server.bench();
    let state = bench.until("web", |state| state.status == Status::Failed).await;
    assert!(
        state.reason.starts_with("the server speaks only the HTTP+SSE transport of 2024-11-05"),
        "{}",
        state.reason
    );
    bench.stop().await;

    // One that merely refuses is not accused of it.
    let server = Fake::start(|_| Say::status("405 Method Not Allowed", "text/plain", "")).await;
    let bench = server.bench();
    let state = bench.until("web", |state| state.status == Status::Failed).await;
    assert_eq!(&*state.reason, "the server answered HTTP 405");
    bench.stop().await;
}

#[tokio::test]
async fn the_era_is_remembered_and_found_anew_when_it_changed() {
    let (upgraded, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (new, gone) = (upgraded.clone(), lost.clone());
    let server = Fake::start(move |seen| {
        if new.load(Ordering::Relaxed) {
            // It has forgotten its sessions, and `initialize` with them.
            if seen.header("mcp-session-id").is_some() || seen.method() == "initialize" {
                return Say::status("404 Not Found", "text/plain", "gone");
            }
            return modern(seen);
        }
        if seen.method() == "tools/call" && gone.swap(false, Ordering::Relaxed) {
            return Say::status("404 Not Found", "text/plain", "gone");
        }
        legacy(seen)
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    lost.store(true, Ordering::Relaxed);
    bench.call("web:t", "{}").await.unwrap();
    assert_eq!(server.seen("initialize").len(), 2);
    assert_eq!(server.seen("server/discover").len(), 1, "it is not probed again");

    bench.connected("web").await;
    upgraded.store(true, Ordering::Relaxed);
    let error = bench.error("web:t").await;
    assert!(error.contains("a new one could not be made"), "{error}");
    bench.connected("web").await;
    assert_eq!(bench.upstream("web").era(), Era::Modern);
    assert!(bench.call("web:t", "{}").await.is_ok());
    bench.stop().await;
}

#[tokio::test]
async fn a_modern_server_that_became_legacy_is_initialized_and_the_call_sent_once_more() {
    let downgraded = Arc::new(AtomicBool::new(false));
    let old = downgraded.clone();
    let server = Fake::start(move |seen| {
        if !old.load(Ordering::Relaxed) {
            return modern(seen);
        }
        if seen.header("mcp-session-id").is_none() && seen.method() != "initialize" {
            let body = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "Bad Request: No valid session ID provided"}});
            return Say::status("400 Bad Request", "application/json", &body.to_string());
        }
        legacy(seen)
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    downgraded.store(true, Ordering::Relaxed);
    bench.call("web:t", "{}").await.unwrap();
    assert_eq!(bench.upstream("web").era(), Era::Legacy);
    let calls = server.seen("tools/call");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1].header("mcp-session-id").as_deref(), Some("s-1"));
    assert_eq!(calls[1].body["params"].get("_meta"), None);
    bench.stop().await;
}

#[tokio::test]
async fn a_modern_call_is_cancelled_by_closing_its_stream_alone() {
    let (sender, events) = Say::events();
    let stream = Mutex::new(Some(events));
    let server = Fake::start(move |seen| match seen.method() {
        "tools/call" => stream.lock().take().unwrap_or(Say::Nothing),
        _ => modern(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    let closed = *server.closed.borrow();
    sender.send(r#"{"method":"notifications/progress"}"#.into()).unwrap();
    let mut answer = bench.begin("web:t", "{}").await.unwrap();
    assert!(next_message(&mut answer).await.unwrap().is_some());
    drop(answer);
    let mut watch = server.closed.subscribe();
    within(watch.wait_for(|now| *now > closed)).await.unwrap();
    // Whatever else was on its way has come before the answer to this.
    let before = server.seen("tools/list").len();
    bench.upstream("web").server_events.tools.notify_one();
    let mut seen = 0;
    while seen <= before {
        server.until(|seen| seen.method() == "tools/list").await;
        seen = server.seen("tools/list").len();
        tokio::task::yield_now().await;
    }
    assert!(server.seen("notifications/cancelled").is_empty());
    bench.stop().await;
}

#[tokio::test]
async fn changes_of_a_modern_server_come_by_its_subscription() {
    let (sender, events) = Say::events();
    let stream = Mutex::new(Some(events));
    let listed = Arc::new(AtomicUsize::new(0));
    let server = Fake::start(move |seen| match seen.method() {
        "subscriptions/listen" => stream.lock().take().unwrap_or(Say::Nothing),
        "tools/list" => {
            let n = listed.fetch_add(1, Ordering::Relaxed);
            Say::result(seen, json!({"resultType": "complete", "tools": [{"name": format!("t{n}"), "inputSchema": {}}]}))
        }
        _ => modern(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    let asked = server.until(|seen| seen.method() == "subscriptions/listen").await;
    assert_eq!(
        asked.body["params"]["notifications"],
        json!({"toolsListChanged": true, "resourcesListChanged": true})
    );
    let mut changes = bench.upstream("web").changes();
    let before = *changes.borrow();
    for method in ["tools", "resources"] {
        sender
            .send(format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}/list_changed"}}"#))
            .unwrap();
    }
    within(changes.wait_for(|now| now.resources > before.resources)).await.unwrap();
    let second = ToolName::parse("web:t1").unwrap();
    bench.until("web", |_| bench.catalog.load().tool(&second).is_some()).await;
    bench.stop().await;
}

#[tokio::test]
async fn any_request_is_asked_and_answered_verbatim() {
    for (era, answers) in [(Era::Legacy, legacy as fn(&Seen) -> Say), (Era::Modern, modern)] {
        let server = Fake::start(move |seen| match seen.method() {
            "resources/read" => Say::result(seen, json!({"contents": [], "z": 1, "a": 1.50})),
            _ => answers(seen),
        })
        .await;
        let bench = server.bench();
        bench.connected("web").await;
        let upstream = bench.upstream("web");
        let (server_name, uri) = (Arc::<str>::from("web"), Box::<str>::from("file:///ü"));
        let request = ResourceRequest::Read;
        let read = permitted(Access::Resource {
            server: Arc::clone(&server_name),
            uri: uri.clone(),
            request,
        });
        let params = Bytes::from_static(br#"{"uri":"file:///\u00fc"}"#);
        let ask = |permit| {
            let beside = CallExtras::default();
            upstream.call(&bench.pool, permit, params.clone(), beside, Instant::now())
        };
        let mut answer = within(ask(&read)).await.unwrap();
        let id = answer.id();
        let message = next_message(&mut answer).await.unwrap().unwrap();
        assert!(message.contains(&format!("\"id\":{id},")) && message.contains("\"z\":1"));
        let [read] = &server.seen("resources/read")[..] else { panic!() };
        assert_eq!(read.body["params"]["uri"], "file:///ü");
        let name = (era == Era::Modern).then_some("=?base64?ZmlsZTovLy/DvA==?=");
        assert_eq!(read.header("mcp-name").as_deref(), name);
        // What a server does not know is its own answer.
        let prompt = permitted(Access::Prompt { server: server_name, name: uri });
        let mut answer = within(ask(&prompt)).await.unwrap();
        assert!(next_message(&mut answer).await.unwrap().unwrap().contains("-32601"));
        bench.stop().await;
    }
}

/// A modern child: answers the probe, refuses `initialize`, and a call with what it was asked.
const MODERN_CHILD: &str = r#"
while IFS= read -r line; do
  case "$line" in *'"id":'*) id=${line#*'"id":'}; id=${id%%[,\}]*};; esac
  case "$line" in
    *'"server/discover"'*) eval "$1";;
    *'"tools/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","tools":[{"name":"t","inputSchema":{}}]}}\n' "$id";;
    *'"tools/call"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"line":"%s"}}\n' "$id" "$(printf %s "$line" | tr -d '"\\')";;
    *'"initialize"'*) eval "$2";;
    *'"id":'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"?"}}\n' "$id";;
  esac
done
"#;
const DISCOVERED: &str = r#"printf '{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}}\n' "$id""#;

fn child(on_probe: &str, on_initialize: &str, limit: &str) -> Bench {
    Bench::start(json!({"sh": {
        "command": "/bin/sh", "args": ["-c", MODERN_CHILD, "s", on_probe, on_initialize],
        "init_timeout": limit,
    }}))
}

const INITIALIZED: &str = r#"printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}}\n' "$id""#;

#[tokio::test]
async fn a_modern_child_is_asked_in_its_own_way() {
    let bench = child(DISCOVERED, "exit 1", "30s");
    let state = bench.connected("sh").await;
    assert_eq!(state.protocol_version.as_deref(), Some("2026-07-28"));
    let messages = bench.call("sh:t", "{}").await.unwrap();
    assert!(messages[0].contains("_meta:{io.modelcontextprotocol/protocolVersion:2026-07-28,"));
    bench.stop().await;
}

#[tokio::test]
async fn a_child_that_ends_at_the_probe_is_started_again_without_one() {
    let bench = child("exit 1", INITIALIZED, "30s");
    let state = bench.connected("sh").await;
    assert_eq!(state.protocol_version.as_deref(), Some("2024-11-05"));
    assert!(bench.events.lock().iter().all(|event| !matches!(
        event,
        Event::Server(state) if state.status == Status::Failed
    )));
    bench.stop().await;
}

#[tokio::test]
async fn a_modern_child_that_starts_slowly_is_not_called_failed() {
    let folder = tempfile::tempdir().unwrap();
    let once = folder.path().join("once").display().to_string();
    // The first time it reads nothing until the wait for it is over.
    let slow = r#"if mkdir 'ONCE' 2>/dev/null; then
          probe=$id; read -r line; late=${line#*'"id":'}; late=${late%%[,\}]*}
          id=$probe; ANSWER
          printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"?"}}\n' "$late"
        else ANSWER; fi"#;
    let slow = slow.replace("ONCE", &once).replace("ANSWER", DISCOVERED);
    let bench = child(&slow, "exit 1", "6s");
    let state = bench.connected("sh").await;
    assert_eq!(state.protocol_version.as_deref(), Some("2026-07-28"));
    let failed =
        |event: &Event| matches!(event, Event::Server(state) if state.status == Status::Failed);
    assert!(!bench.events.lock().iter().any(failed));
    bench.stop().await;
}

#[tokio::test]
async fn a_child_that_is_mute_to_the_probe_is_initialized() {
    let bench = child(":", INITIALIZED, "1s");
    assert_eq!(bench.connected("sh").await.protocol_version.as_deref(), Some("2024-11-05"));
    assert!(bench.call("sh:t", "{}").await.is_ok());
    bench.stop().await;
}
