//! Detection of the protocol family, with scripted servers and with rmcp's own server as an independent implementation.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, InitializeResult, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ServerHandler, ServiceExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::*;
use crate::error::Cause;
use crate::handshake::{self, LifecycleChannel, PipeLifecycle, Start};
use crate::inbound::CallClient;
use crate::request::{Fields, Params};
use crate::stdio::{self, ChildLink};
use crate::tests::{Fake, Request, Say, legacy, modern};
use mcpproxy_runtime::io::deadline::Allowance;

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

#[tokio::test]
async fn modern_server_gets_modern_requests_from_the_first_on() {
    let server = Fake::start(modern).await;
    let bench = server.bench();
    let state = bench.connected("web").await;
    assert_eq!(state.protocol_version.as_deref(), Some("2026-07-28"));
    assert_eq!(state.server_info.as_deref(), Some("new 2"));
    let upstream = bench.upstream("web");
    assert_eq!(upstream.family(), ProtocolFamily::Modern);
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
        let seen = server.wait_until(|seen| seen.method() == method).await;
        assert_eq!(seen.header("mcp-method").as_deref(), Some(method));
        assert_eq!(seen.header("mcp-protocol-version").as_deref(), Some("2026-07-28"));
        assert_eq!(seen.header("mcp-session-id"), None);
        assert_eq!(seen.body["params"]["_meta"][VERSION], "2026-07-28");
        assert!(seen.body["params"]["_meta"][CAPABILITIES].is_object(), "{seen:?}");
    }
    assert!(server.seen("initialize").is_empty());
    bench.stop().await;
    assert!(server.seen("").is_empty(), "neither GET nor DELETE");
}

/// Covers known ways in which servers refuse the probe.
#[tokio::test]
async fn server_that_refuses_the_probe_is_initialized() {
    type Refusal = fn(&Request) -> Say;
    let refusals: [Refusal; 14] = [
        |_| Say::status("400 Bad Request", "text/plain", "what?"),
        |_| Say::status("404 Not Found", "text/html", "<p>no"),
        |_| Say::status("405 Method Not Allowed", "text/plain", ""),
        |_| Say::status("500 Oops", "text/plain", "panic"),
        |_| Say::status("403 Forbidden", "text/plain", "unknown method"),
        |_| Say::status("403 Forbidden", "application/json", r#"{"error":"forbidden"}"#),
        |_| Say::status("422 No", "application/json", r#"{"detail":[]}"#),
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
        assert_eq!(bench.upstream("web").family(), ProtocolFamily::Legacy);
        let [initialize] = &server.seen("initialize")[..] else { panic!("row {row}") };
        for name in ["mcp-protocol-version", "mcp-session-id", "mcp-method"] {
            assert_eq!(initialize.header(name), None, "row {row}");
        }
        let params = &initialize.body["params"]["capabilities"];
        assert_eq!(
            *params,
            json!({"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}, "extensions": {
                "io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]},
                "io.modelcontextprotocol/skills": {}}})
        );
        bench.call("web:t", "{}").await.unwrap();
        let [call] = &server.seen("tools/call")[..] else { panic!("row {row}") };
        assert_eq!(call.header("mcp-session-id").as_deref(), Some("s-1"));
        assert_eq!(call.header("mcp-protocol-version").as_deref(), Some("2025-11-25"));
        assert_eq!(call.body["params"].get("_meta"), None);
        bench.stop().await;
    }
}

// PRO-15
#[tokio::test]
async fn probe_refused_for_a_version_that_the_server_supports_is_repeated_once() {
    let refusals = Arc::new(AtomicUsize::new(1));
    let left = Arc::clone(&refusals);
    let server = Fake::start(move |seen| {
        let refuses = seen.method() == "server/discover" && left.swap(0, Ordering::SeqCst) > 0;
        if !refuses {
            return modern(seen);
        }
        let error = json!({"code": -32022, "message": "Unsupported protocol version",
            "data": {"supported": ["2026-07-28"]}});
        let body = json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error});
        Say::status("400 Bad Request", "application/json", &body.to_string())
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    assert_eq!(bench.upstream("web").family(), ProtocolFamily::Modern);
    assert_eq!(server.seen("server/discover").len(), 2);
    assert!(server.seen("initialize").is_empty());
    bench.stop().await;
}

#[tokio::test]
async fn unsupported_version_error_means_legacy_only_if_it_lists_a_legacy_version() {
    let refuse = |supported: serde_json::Value| {
        move |seen: &Request| match seen.method() {
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
    assert_eq!(bench.upstream("web").family(), ProtocolFamily::Legacy);
    bench.stop().await;

    let server = Fake::start(refuse(json!(["2099-01-01"]))).await;
    let bench = server.bench();
    let state = bench.wait_until("web", |state| state.status == Status::Failed).await;
    assert_eq!(&*state.reason, "it supports none of the known revisions, only 2099-01-01");
    assert!(server.seen("initialize").is_empty());
    bench.stop().await;
}

#[tokio::test]
async fn server_that_requires_credentials_is_not_taken_for_legacy() {
    let server = Fake::start(|_| Say::status("401 Unauthorized", "text/plain", "who?")).await;
    let bench = server.bench();
    let state = bench.wait_until("web", |state| state.status == Status::Failed).await;
    assert_eq!(&*state.reason, "the server answered HTTP 401");
    assert!(server.seen("initialize").is_empty());
    bench.stop().await;
}

#[tokio::test]
async fn pro_22_server_that_keeps_ids_as_strings_or_doubles_is_used() {
    type Spelling = fn(u64) -> serde_json::Value;
    let spellings: [Spelling; 2] = [|id| json!(id.to_string()), |id| json!(id as f64)];
    for spelling in spellings {
        for answer in [legacy as fn(&Request) -> Say, modern] {
            let server = Fake::start(move |seen| {
                let mut seen = seen.clone();
                if let Some(id) = seen.body["id"].as_u64() {
                    seen.body["id"] = spelling(id);
                }
                answer(&seen)
            })
            .await;
            let bench = server.bench();
            bench.connected("web").await;
            assert!(bench.call("web:t", "{}").await.unwrap()[0].contains("\"result\""));
            bench.stop().await;
        }
    }
}

#[tokio::test]
async fn http_sse_server_is_recognized() {
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
    let state = bench.wait_until("web", |state| state.status == Status::Failed).await;
    assert!(
        state.reason.starts_with("the server speaks only the HTTP+SSE transport of 2024-11-05"),
        "{}",
        state.reason
    );
    bench.stop().await;

    // A plain refusal is not sufficient.
    let server = Fake::start(|_| Say::status("405 Method Not Allowed", "text/plain", "")).await;
    let bench = server.bench();
    let state = bench.wait_until("web", |state| state.status == Status::Failed).await;
    assert_eq!(&*state.reason, "the server answered HTTP 405");
    bench.stop().await;
}

#[tokio::test]
async fn family_is_remembered_and_detected_again_after_a_change() {
    let (upgraded, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (new, gone) = (upgraded.clone(), lost.clone());
    let server = Fake::start(move |seen| {
        if new.load(Ordering::Relaxed) {
            // A server without sessions and `initialize`.
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
    assert_eq!(server.seen("server/discover").len(), 1, "no second probe");

    bench.connected("web").await;
    upgraded.store(true, Ordering::Relaxed);
    let error = bench.error("web:t").await;
    assert!(error.contains("a new one could not be created"), "{error}");
    bench.connected("web").await;
    assert_eq!(bench.upstream("web").family(), ProtocolFamily::Modern);
    assert!(bench.call("web:t", "{}").await.is_ok());
    bench.stop().await;
}

#[tokio::test]
async fn modern_server_that_became_legacy_is_initialized_and_the_call_resent() {
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
    assert_eq!(bench.upstream("web").family(), ProtocolFamily::Legacy);
    let calls = server.seen("tools/call");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1].header("mcp-session-id").as_deref(), Some("s-1"));
    assert_eq!(calls[1].body["params"].get("_meta"), None);
    bench.stop().await;
}

#[tokio::test]
async fn modern_call_is_canceled_by_closing_its_stream() {
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
    // All earlier requests arrive before this one.
    let before = server.seen("tools/list").len();
    bench.upstream("web").server_events.tools.notify_one();
    let mut seen = 0;
    while seen <= before {
        server.wait_until(|seen| seen.method() == "tools/list").await;
        seen = server.seen("tools/list").len();
        tokio::task::yield_now().await;
    }
    assert!(server.seen("notifications/cancelled").is_empty());
    bench.stop().await;
}

#[tokio::test]
async fn changes_of_a_modern_server_arrive_on_its_subscription() {
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
    let asked = server.wait_until(|seen| seen.method() == "subscriptions/listen").await;
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
    bench.wait_until("web", |_| bench.catalog.load().tool(&second).is_some()).await;
    bench.stop().await;
}

#[tokio::test]
async fn any_request_is_forwarded_and_answered_verbatim() {
    for (family, answers) in
        [(ProtocolFamily::Legacy, legacy as fn(&Request) -> Say), (ProtocolFamily::Modern, modern)]
    {
        let server = Fake::start(move |seen| match seen.method() {
            "resources/read" => Say::result(seen, json!({"contents": [], "z": 1, "a": 1.50})),
            _ => answers(seen),
        })
        .await;
        let bench = server.bench();
        bench.connected("web").await;
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
            bench.send(permit, params.clone(), beside, Instant::now())
        };
        let mut answer = within(ask(&read)).await.unwrap();
        let id = answer.id();
        let message = next_message(&mut answer).await.unwrap().unwrap();
        assert!(message.contains(&format!("\"id\":{id},")) && message.contains("\"z\":1"));
        let [read] = &server.seen("resources/read")[..] else { panic!() };
        assert_eq!(read.body["params"]["uri"], "file:///ü");
        let name = (family == ProtocolFamily::Modern).then_some("=?base64?ZmlsZTovLy/DvA==?=");
        assert_eq!(read.header("mcp-name").as_deref(), name);
        // The server itself answers an unsupported method.
        let prompt = permitted(Access::Prompt { server: server_name, name: uri });
        let mut answer = within(ask(&prompt)).await.unwrap();
        assert!(next_message(&mut answer).await.unwrap().unwrap().contains("-32601"));
        bench.stop().await;
    }
}

/// Modern child that answers the probe, refuses `initialize`, and echoes calls.
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
async fn modern_child_gets_modern_requests() {
    let bench = child(DISCOVERED, "exit 1", "30s");
    let state = bench.connected("sh").await;
    assert_eq!(state.protocol_version.as_deref(), Some("2026-07-28"));
    let messages = bench.call("sh:t", "{}").await.unwrap();
    assert!(messages[0].contains("_meta:{io.modelcontextprotocol/protocolVersion:2026-07-28,"));
    bench.stop().await;
}

#[tokio::test]
async fn child_that_exits_at_the_probe_is_restarted_without_a_probe() {
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
async fn modern_child_that_starts_slowly_does_not_count_as_failed() {
    let folder = tempfile::tempdir().unwrap();
    let once = folder.path().join("once").display().to_string();
    // On its first start, it reads nothing until the probe has timed out.
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
async fn child_that_ignores_the_probe_is_initialized() {
    let bench = child(":", INITIALIZED, "1s");
    assert_eq!(bench.connected("sh").await.protocol_version.as_deref(), Some("2024-11-05"));
    assert!(bench.call("sh:t", "{}").await.is_ok());
    bench.stop().await;
}

/// Server with these versions and one tool that reports progress.
#[derive(Clone)]
struct Peer(&'static [ProtocolVersion]);

impl ServerHandler for Peer {
    fn get_info(&self) -> ServerConfig {
        InitializeResult::new(ServerCapabilities::builder().enable_tools().build())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(self.0)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]});
        Ok(serde_json::from_value(tools).unwrap())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let token = context.meta.get_progress_token().unwrap();
        let params = ProgressNotificationParam::new(token, 1.0);
        context.peer.notify_progress(params).await.unwrap();
        let text = format!("{} {}", request.name, json!(request.arguments));
        let result = json!({"content": [{"type": "text", "text": text}]});
        Ok(CallToolResponse::Complete(serde_json::from_value(result).unwrap()))
    }
}

/// Connects over pipes, lists the tools and calls one; returns the version and the messages.
async fn talk(versions: &'static [ProtocolVersion], start: Start) -> (String, Vec<String>) {
    let (ours, theirs) = tokio::io::duplex(4096);
    let (read, write) = tokio::io::split(ours);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let served = Peer(versions).serve(tokio::io::split(theirs)).await.unwrap();
        served.waiting().await.unwrap();
    });
    let (link, queue) = ChildLink::new(Arc::default(), Arc::default());
    let (out, inbox) = mpsc::channel(16);
    tasks.spawn(stdio::write(link.clone(), queue, write));
    let reader = link.clone();
    tasks.spawn(async move {
        stdio::read(reader, read, out, 1).await;
    });
    let mut channel = LifecycleChannel::Pipe(PipeLifecycle::new(link.clone(), inbox, PATIENCE));
    let greeting =
        handshake::perform(&link.server_log, &mut channel, PATIENCE, start).await.unwrap();
    assert!(greeting.about.offers.tools);
    let family = greeting.about.family;

    let list = Params::of("tools/list", Bytes::from_static(b"{}"));
    let mut messages = collect(&link, &list, family).await.unwrap();
    let (arguments, members) = (Bytes::from_static(br#"{"n":1}"#), Bytes::new());
    let fields = Fields::Call { arguments, members, parameter_headers: None };
    let meta = Some(Bytes::from_static(br#"{"progressToken":"theirs"}"#));
    let name = Some("t".into());
    let call = Params { name, meta, fields, ..Params::of("tools/call", Bytes::new()) };
    messages.extend(collect(&link, &call, family).await.unwrap());
    (greeting.protocol_version.unwrap().to_string(), messages)
}

async fn collect(
    link: &Arc<ChildLink>,
    params: &Params,
    family: ProtocolFamily,
) -> Result<Vec<String>, Cause> {
    let line = |id| params.line(id, family);
    let sent_for = stdio::SentFor::Caller(CallClient::default());
    let mut call = stdio::StdioCall::begin(link, line, Allowance::now(PATIENCE), sent_for)
        .await
        .map_err(|(cause, _)| cause)?;
    let (mut messages, mut message) = (Vec::new(), Vec::new());
    while let Some(part) = within(call.next()).await? {
        match part {
            AnswerPart::Data(data) => message.extend_from_slice(&data),
            AnswerPart::Interrupted => panic!("a pipe is not resumed"),
            AnswerPart::End => {
                messages.push(String::from_utf8(std::mem::take(&mut message)).unwrap());
            }
        }
    }
    Ok(messages)
}

#[tokio::test]
async fn server_written_with_rmcp_is_used_in_both_protocol_families() {
    const OLD: &[ProtocolVersion] = &[ProtocolVersion::V_2025_06_18];
    for (versions, start, expected) in [
        (ProtocolVersion::KNOWN_VERSIONS, Start::Probe, "2026-07-28"),
        (ProtocolVersion::KNOWN_VERSIONS, Start::Known(ProtocolFamily::Modern), "2026-07-28"),
        (ProtocolVersion::KNOWN_VERSIONS, Start::Known(ProtocolFamily::Legacy), "2025-11-25"),
        (OLD, Start::Probe, "2025-06-18"),
    ] {
        let (version, messages) = within(talk(versions, start)).await;
        assert_eq!(version, expected, "{start:?}");
        let [list, progress, result] = &messages[..] else { panic!("{messages:?}") };
        assert!(list.contains(r#""name":"t""#), "{list}");
        assert!(progress.contains("notifications/progress"), "{progress}");
        assert!(result.contains(r#"t {\"n\":1}"#), "{result}");
    }
}
