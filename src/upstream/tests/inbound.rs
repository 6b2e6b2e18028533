//! Unsolicited messages: server requests, notifications, subscriptions, duplicate and forged responses, floods.

use std::io::{BufRead, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use serde_json::Value;
use tokio::sync::mpsc as queues;
use tokio::sync::mpsc::UnboundedSender;

use super::*;
use crate::server_log::LOG_BURST;
use crate::stdio::{self as pipes, CALL_PIECES, ChildLink};
use crate::tests::stdio::SERVER;
use crate::tests::{Fake, Request, Say, legacy, modern};
use crate::{CallSession, Undelivered, pending};
use mcpproxy_protocol::mcp::known_extensions::Extensions;
use mcpproxy_runtime::io::deadline::Allowance;

const ASKED: ClientCapabilities = ClientCapabilities {
    sampling: false,
    elicitation_forms: true,
    elicitation_urls: false,
    roots: false,
    extensions: Extensions::NONE,
};

fn asked() -> CallExtras {
    CallExtras { client_capabilities: ASKED, ..CallExtras::default() }
}

fn with_progress() -> CallExtras {
    let meta = Some(Bytes::from_static(br#"{"progressToken":"mine"}"#));
    CallExtras { meta, ..CallExtras::default() }
}

fn child(on_call: &str) -> Bench {
    Bench::start(json!({"sh": {"command": "/bin/sh", "args": ["-c", SERVER, "s", on_call, ""]}}))
}

/// Parses the next message.
async fn next(answer: &mut Answer) -> serde_json::Value {
    serde_json::from_str(&next_message(answer).await.unwrap().unwrap()).unwrap()
}

#[tokio::test]
async fn progress_over_a_pipe_reaches_its_call_before_the_response() {
    let bench = child(
        r#"printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}\n{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1}}\n{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id" "$id""#,
    );
    bench.connected("sh").await;
    let mut answer = bench.begin_with("sh:t", with_progress()).await.unwrap();
    let progress = next(&mut answer).await;
    assert_eq!(progress["method"], "notifications/progress");
    assert_eq!(progress["params"]["progressToken"], answer.id());
    assert_eq!(next(&mut answer).await["method"], "notifications/message");
    assert_eq!(next(&mut answer).await["result"], json!({}));
    assert_eq!(next_message(&mut answer).await.unwrap(), None);
    bench.stop().await;
}

/// Shell code that sends a request and reports the response to it.
const ASKING: &str = r#"printf '{"jsonrpc":"2.0","id":"q-1","method":"elicitation/create","params":{"message":"sure?"}}\n'; IFS= read -r reply; printf '{"jsonrpc":"2.0","id":%s,"result":{"reply":"%s"}}\n' "$id" "$(printf %s "$reply" | tr -d '"\\')""#;

#[tokio::test]
async fn child_request_reaches_the_client_of_its_only_call() {
    let bench = child(ASKING);
    bench.connected("sh").await;
    let mut answer = bench.begin_with("sh:t", asked()).await.unwrap();
    let request = next(&mut answer).await;
    assert_eq!((&request["id"], &request["method"]), (&json!("q-1"), &json!("elicitation/create")));
    let upstream = bench.upstream("sh");
    let (id, outcome) = (
        Bytes::from_static(b"\"q-1\""),
        Bytes::from_static(b"\"result\":{\n\"action\":\"accept\"}"),
    );
    upstream.respond(answer.generation(), id, outcome).await.unwrap();
    let reply = next(&mut answer).await["result"]["reply"].clone();
    assert_eq!(reply, "{jsonrpc:2.0,id:q-1,result:{ action:accept}}");
    bench.stop().await;
}

#[tokio::test]
async fn request_to_a_client_without_the_capability_is_refused() {
    let bench = child(ASKING);
    bench.connected("sh").await;
    let mut answer = bench.begin("sh:t", "{}").await.unwrap();
    let reply = next(&mut answer).await["result"]["reply"].to_string();
    assert!(reply.contains("id:q-1,error:{code:-32601"), "{reply}");
    assert!(reply.contains("no client of a call in flight supports it"), "{reply}");
    bench.stop().await;
}

fn in_session(session: CallSession) -> CallExtras {
    CallExtras { session: Some(session), ..asked() }
}

/// The first call waits; the others trigger a server request.
fn holding() -> Bench {
    child(&format!("if [ -z \"$held\" ]; then held=$id; else {ASKING}; fi"))
}

#[tokio::test]
async fn request_is_refused_while_calls_of_two_clients_are_in_flight() {
    for first in [asked(), CallExtras::default(), in_session(CallSession::fresh())] {
        let bench = holding();
        bench.connected("sh").await;
        let first = bench.begin_with("sh:t", first).await.unwrap();
        let second = in_session(CallSession::fresh());
        let mut second = bench.begin_with("sh:t", second).await.unwrap();
        let reply = next(&mut second).await["result"]["reply"].to_string();
        assert!(
            reply.contains("error:{code:-32603") && reply.contains("2 calls are in flight"),
            "{reply}"
        );
        drop(first);
        bench.stop().await;
    }
}

#[tokio::test]
async fn request_goes_to_the_newer_call_of_one_session() {
    let bench = holding();
    bench.connected("sh").await;
    let session = CallSession::fresh();
    let first = bench.begin_with("sh:t", in_session(session)).await.unwrap();
    let mut second = bench.begin_with("sh:t", in_session(session)).await.unwrap();
    assert_eq!(next(&mut second).await["id"], "q-1");
    drop(first);
    bench.stop().await;
}

#[tokio::test]
async fn abandoned_call_blocks_requests_to_other_sessions() {
    let bench = holding();
    bench.connected("sh").await;
    let session = CallSession::fresh();
    let given_up = bench.begin_with("sh:t", in_session(session)).await.unwrap();
    // Calls are written in order, so this one has been written once the next call is answered.
    let mut other = bench.begin_with("sh:t", in_session(CallSession::fresh())).await.unwrap();
    next(&mut other).await;
    drop((given_up, other));
    let mut other = bench.begin_with("sh:t", in_session(CallSession::fresh())).await.unwrap();
    let reply = next(&mut other).await["result"]["reply"].to_string();
    assert!(reply.contains("were abandoned recently"), "{reply}");
    bench.stop().await;

    let bench = holding();
    bench.connected("sh").await;
    let given_up = bench.begin_with("sh:t", in_session(session)).await.unwrap();
    // Until the script receives a response to the request of this call, it does not answer further calls.
    let mut second = bench.begin_with("sh:t", in_session(session)).await.unwrap();
    assert_eq!(next(&mut second).await["id"], "q-1");
    drop((given_up, second));
    let mut third = bench.begin_with("sh:t", in_session(session)).await.unwrap();
    // The script takes the cancellations for the response to its earlier request.
    while next(&mut third).await["id"] != "q-1" {}
    bench.stop().await;
}

#[tokio::test]
async fn pings_and_unknown_requests_are_answered_and_hostile_ones_dropped() {
    let huge = "9".repeat(100_000);
    let script = format!(
        r#"printf '{{"jsonrpc":"2.0","id":{huge},"method":"ping"}}\n{{"jsonrpc":"2.0","id":null,"method":"ping"}}\n{{"jsonrpc":"2.0","id":{{}},"method":"ping"}}\n{{"jsonrpc":"2.0","id":3,"method":"ping"}}\n{{"jsonrpc":"2.0","id":4,"method":"x/y"}}\n'; IFS= read -r a; IFS= read -r b; printf '{{"jsonrpc":"2.0","id":%s,"result":{{"reply":"%s"}}}}\n' "$id" "$(printf %s "$a$b" | tr -d '"\\')""#
    );
    let bench = child(&script);
    bench.connected("sh").await;
    let mut answer = bench.begin_with("sh:t", asked()).await.unwrap();
    assert_eq!(
        next(&mut answer).await["result"]["reply"],
        "{jsonrpc:2.0,id:3,result:{}}{jsonrpc:2.0,id:4,error:{code:-32601,message:Method not found: x/y}}"
    );
    bench.stop().await;
}

#[tokio::test]
async fn flood_does_not_block_a_response() {
    // Far more messages than the queues hold; nothing is consumed until the end.
    let bench = child(
        r#"i=0; while [ $i -lt 2000 ]; do printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s}}\n{"jsonrpc":"2.0","id":%s,"method":"elicitation/create"}\n{"jsonrpc":"2.0","method":"notifications/x"}\n{"jsonrpc":"2.0","id":9,"result":{}}\n{"jsonrpc":"2.0","id":1,"method":"ping"}\n' "$id" "$i"; i=$((i+1)); done; printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id""#,
    );
    bench.connected("sh").await;
    let mut answer = bench
        .begin_with("sh:t", CallExtras { client_capabilities: ASKED, ..with_progress() })
        .await
        .unwrap();
    let mut messages = 0;
    while next(&mut answer).await.get("result").is_none() {
        messages += 1;
    }
    assert!(messages >= CALL_PIECES, "{messages}");
    bench.stop().await;
}

#[tokio::test]
async fn server_request_in_the_stream_of_a_call_is_answered_by_its_client() {
    let (sender, events) = Say::events();
    let stream = Mutex::new(Some(events));
    let server = Fake::start(move |seen| match seen.method() {
        "tools/call" => stream.lock().take().unwrap(),
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    for beside in [asked()] {
        sender.send(r#"{"jsonrpc":"2.0","id":11,"method":"elicitation/create"}"#.into()).unwrap();
        let mut answer = bench.begin_with("web:t", beside).await.unwrap();
        assert_eq!(next(&mut answer).await["id"], 11);
        let (id, outcome) =
            (Bytes::from_static(b"11"), Bytes::from_static(b"\"result\":{\"action\":\"decline\"}"));
        bench.upstream("web").respond(answer.generation(), id, outcome).await.unwrap();
        let response = server.wait_until(|seen| seen.body.get("result").is_some()).await;
        assert_eq!(
            response.body,
            json!({"jsonrpc": "2.0", "id": 11, "result": {"action": "decline"}})
        );
        assert_eq!(response.header("mcp-session-id").as_deref(), Some("s-1"));
        sender.send(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, answer.id())).unwrap();
        assert_eq!(next(&mut answer).await["result"], json!({}));
    }
    bench.stop().await;
}

type Streams = Arc<Mutex<Vec<UnboundedSender<String>>>>;

/// Server with a GET stream. `on_call` answers its calls.
async fn streaming(on_call: impl Fn(&Request) -> Say + Send + Sync + 'static) -> (Fake, Streams) {
    let streams = Streams::default();
    let opened = streams.clone();
    let server = Fake::start(move |seen| match (seen.verb.as_str(), seen.method()) {
        ("GET", _) => {
            let (sender, events) = Say::events();
            opened.lock().push(sender);
            events
        }
        (_, "tools/call") => on_call(seen),
        _ => legacy(seen),
    })
    .await;
    (server, streams)
}

fn say(streams: &Streams, message: &str) {
    streams.lock().last().unwrap().send(message.to_owned()).unwrap();
}

#[tokio::test]
async fn request_on_the_get_stream_reaches_a_call_before_its_response() {
    let (server, streams) = streaming(|_| Say::Nothing).await;
    let bench = server.bench();
    bench.connected("web").await;
    server.wait_until(|seen| seen.verb == "GET").await;
    let mut answer = bench
        .begin_with("web:t", CallExtras { client_capabilities: ASKED, ..with_progress() })
        .await
        .unwrap();
    // The call is sent while the stream is polled.
    let asks = async {
        server.wait_until(|seen| seen.method() == "tools/call").await;
        say(&streams, r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create"}"#);
    };
    let (request, ()) = tokio::join!(next(&mut answer), asks);
    assert_eq!(request["id"], "q");
    let progress = format!(
        r#"{{"method":"notifications/progress","params":{{"progressToken":{}}}}}"#,
        answer.id()
    );
    say(&streams, &progress);
    assert_eq!(next(&mut answer).await["method"], "notifications/progress");
    let (id, outcome) = (
        Bytes::from_static(b"\"q\""),
        Bytes::from_static(b"\"error\":{\"code\":-1,\"message\":\"no\"}"),
    );
    bench.upstream("web").respond(answer.generation(), id, outcome).await.unwrap();
    server.wait_until(|seen| seen.body["error"]["code"] == -1 && seen.body["id"] == "q").await;
    // A call that is dropped before the head of its response was received is canceled.
    let id = answer.id();
    drop(answer);
    let canceled = server.wait_until(|seen| seen.method() == "notifications/cancelled").await;
    assert_eq!(canceled.body["params"]["requestId"], id);
    // The call is no longer in flight.
    say(&streams, r#"{"jsonrpc":"2.0","id":"r","method":"elicitation/create"}"#);
    let refused = server.wait_until(|seen| seen.body["id"] == "r").await;
    assert_eq!(refused.body["error"]["code"], -32603);
    say(&streams, r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    let pong = server.wait_until(|seen| seen.body["id"] == "p").await;
    assert_eq!(pong.body["result"], json!({}));
    bench.stop().await;
}

#[tokio::test]
async fn request_on_the_get_stream_is_refused_while_another_sessions_call_is_active_or_abandoned() {
    let answers = Streams::default();
    let held = answers.clone();
    let (server, streams) = streaming(move |_| {
        let (sender, events) = Say::events();
        held.lock().push(sender);
        events
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    server.wait_until(|seen| seen.verb == "GET").await;
    // The client of this call has no capabilities and wants no progress, so only its own stream is read.
    let other = bench.begin("web:t", "{}").await.unwrap();
    let mut ours = bench.begin_with("web:t", in_session(CallSession::fresh())).await.unwrap();
    let id = ours.id();
    let refused = async |asked: &str| {
        let question = json!({"jsonrpc": "2.0", "id": asked, "method": "elicitation/create"});
        say(&streams, &question.to_string());
        let refused = server.wait_until(|seen| seen.body["id"] == asked).await;
        assert_eq!(refused.body["error"]["code"], -32603, "{}", refused.body);
        let why = refused.body["error"]["message"].to_string();
        assert!(why.contains("of more than one client"), "{why}");
    };
    let asks = async {
        server.wait_until(|_| answers.lock().len() == 2).await;
        refused("in flight").await;
        drop(other);
        refused("given up").await;
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string();
        answers.lock().last().unwrap().send(answer).unwrap();
    };
    let (message, ()) = tokio::join!(next(&mut ours), asks);
    assert_eq!(message["result"], json!({}), "it receives only its response");
    bench.stop().await;
}

#[tokio::test]
async fn call_over_two_streams_keeps_its_time_limit_and_its_resend() {
    let lost = Arc::new(AtomicBool::new(true));
    let gone = lost.clone();
    let (server, _streams) = streaming(move |seen| {
        if gone.swap(false, Ordering::Relaxed) {
            return Say::status("404 Not Found", "text/plain", "gone");
        }
        if seen.body["params"]["arguments"]["mute"] == true { Say::Nothing } else { legacy(seen) }
    })
    .await;
    // The limit covers both attempts and the second connection.
    let bench = Bench::start(json!({"web": {"url": server.url, "call_timeout": "3s"}}));
    bench.connected("web").await;
    let mut answer = bench.begin_with("web:t", asked()).await.unwrap();
    let first = answer.generation();
    assert_eq!(next(&mut answer).await["result"], json!({"content": []}));
    assert!(answer.generation() > first);
    answer.finish();
    assert_eq!(bench.pool.idle(), 1);
    bench.connected("web").await;
    let permit = bench.permit("web:t");
    let mute = Bytes::from_static(b"{\"mute\":true}");
    let mut answer = within(bench.send(&permit, mute, asked(), Instant::now())).await.unwrap();
    let error = within(answer.next()).await.unwrap_err();
    assert_eq!(error.to_string(), "web: t: no answer within 3s");
    server.wait_until(|seen| seen.method() == "notifications/cancelled").await;
    bench.stop().await;
}

#[tokio::test]
async fn call_in_flight_survives_a_session_loss_seen_by_another_call() {
    let (sender, events) = Say::events();
    let stream = Mutex::new(Some(events));
    let lost = Arc::new(AtomicBool::new(true));
    let gone = lost.clone();
    let (server, _streams) = streaming(move |seen| {
        if let Some(stream) = stream.lock().take() {
            return stream;
        }
        if gone.swap(false, Ordering::Relaxed) {
            return Say::status("404 Not Found", "text/plain", "gone");
        }
        legacy(seen)
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    let mut first = bench.begin("web:t", "{}").await.unwrap();
    let asked = first.generation();
    bench.call("web:t", "{}").await.unwrap();
    assert_eq!(server.seen("initialize").len(), 2);
    sender.send(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, first.id())).unwrap();
    assert_eq!(next(&mut first).await["result"], json!({}));
    // Requests of the old connection can no longer be answered.
    let none = (Bytes::from_static(b"1"), Bytes::from_static(b"\"result\":{}"));
    let outcome = bench.upstream("web").respond(asked, none.0, none.1).await;
    assert_eq!(outcome, Err(Undelivered::Gone));
    bench.stop().await;
}

#[tokio::test]
async fn flood_on_the_get_stream_is_bounded_and_responses_still_arrive() {
    let (server, streams) = streaming(legacy).await;
    let bench = server.bench();
    bench.connected("web").await;
    server.wait_until(|seen| seen.verb == "GET").await;
    for n in 0..2000 {
        say(&streams, &format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"roots/list"}}"#));
        say(&streams, r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#);
        say(&streams, r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
        say(&streams, "garbage");
    }
    let mut changes = bench.upstream("web").changes();
    within(changes.wait_for(|changes| changes.resources > 2000)).await.unwrap();
    let mut answer = bench.begin_with("web:t", asked()).await.unwrap();
    assert_eq!(next(&mut answer).await["result"], json!({"content": []}));
    bench.stop().await;
}

#[tokio::test]
async fn wait_is_extended_while_the_client_is_asked() {
    let script = ASKING.to_string();
    let bench = Bench::start(json!({"sh": {
        "command": "/bin/sh", "args": ["-c", SERVER, "s", script, ""], "call_timeout": "100ms"
    }}));
    bench.connected("sh").await;
    let mut patient = bench.begin_with("sh:t", asked()).await.unwrap();
    next(&mut patient).await;
    patient.extend_wait(PATIENCE);
    // The wait of this second call is not extended, so it fails after `call_timeout`. By then, the first call has
    // waited longer than that.
    let mut impatient = bench.begin_with("sh:t", asked()).await.unwrap();
    let error = within(impatient.next()).await.unwrap_err();
    assert!(error.to_string().contains("no answer within 100ms"), "{error}");
    assert!(next(&mut patient).await.get("result").is_some());
    bench.stop().await;
}

#[tokio::test]
async fn line_of_a_hundred_megabytes_is_streamed() {
    let bench = child(
        r#"printf '{"jsonrpc":"2.0","id":%s,"result":{"x":"' "$id"; head -c 100000000 /dev/zero | tr '\0' x; printf '"}}\n'"#,
    );
    bench.connected("sh").await;
    let mut answer = bench.begin("sh:t", "{}").await.unwrap();
    let (mut bytes, mut largest) = (0, 0);
    while let Some(part) = within(answer.next()).await.unwrap() {
        let AnswerPart::Data(data) = part else { break };
        (bytes, largest) = (bytes + data.len(), largest.max(data.len()));
    }
    assert!(bytes > 100_000_000, "{bytes}");
    assert!(largest <= crate::stdio::READ_BYTES, "the pieces are not collected: {largest}");
    bench.stop().await;
}

#[tokio::test]
async fn request_of_a_hundred_megabytes_is_sent_completely() {
    // `wc` counts the rest of this line: the script reads only the start of the envelope, which ends with the id.
    let bench = Bench::start(json!({"sh": {"command": "/bin/sh", "args": ["-c", r#"
        while IFS= read -r line; do
          id=${line#*'"id":'}; id=${id%%[,\}]*}
          case "$line" in
            *'"server/discover"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"?"}}\n' "$id";;
            *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}}\n' "$id";;
            *'"tools/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","inputSchema":{}}]}}\n' "$id"; break;;
          esac
        done
        start=$(head -c 32)
        head -c 100000000 | wc -c | { read -r n; printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "${start##*:}" "$n"; }
        cat > /dev/null"#]}}));
    bench.connected("sh").await;
    let large = format!("{{\"x\":\"{}\"}}", "y".repeat(100_000_000));
    let mut answer = bench.begin("sh:t", &large).await.unwrap();
    assert_eq!(next(&mut answer).await["result"], 100_000_000);
    bench.stop().await;
}

/// Legacy server that waits for a signal after the first call and then forges the response to the next one, using the
/// following ids.
fn guessing(listener: &TcpListener, now: &mpsc::Receiver<()>, done: &mpsc::Sender<()>) {
    let mut guessed = false;
    for stream in listener.incoming().map_while(Result::ok) {
        let mut stream = std::io::BufReader::new(stream);
        loop {
            let (mut head, mut length) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") {
                let start = head.len();
                if stream.read_line(&mut head).unwrap_or(0) == 0 {
                    break;
                }
                let line = head[start..].to_lowercase();
                length = line
                    .strip_prefix("content-length: ")
                    .map_or(length, |n| n.trim().parse().unwrap());
            }
            if head.is_empty() {
                break;
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            let id = &body["id"];
            let answer = |body: serde_json::Value| {
                let body = body.to_string();
                format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            };
            let ok = |result| answer(json!({"jsonrpc": "2.0", "id": id, "result": result}));
            let text = match body["method"].as_str().unwrap_or_default() {
                "server/discover" => answer(json!({"jsonrpc": "2.0", "id": id,
                    "error": {"code": -32601, "message": "?"}})),
                "initialize" => ok(json!({"protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}}, "serverInfo": {"name": "g", "version": "1"}})),
                "tools/list" => ok(json!({"tools": [{"name": "t", "inputSchema": {}}]})),
                "tools/call" => ok(json!({"true": id})),
                _ if head.starts_with("GET") => {
                    "HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n".into()
                }
                _ => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".into(),
            };
            if stream.get_mut().write_all(text.as_bytes()).is_err() {
                break;
            }
            if body["method"] == "tools/call" && !guessed {
                guessed = true;
                if now.recv().is_err() {
                    return;
                }
                let next = id.as_u64().unwrap() + 1;
                let forged = answer(json!({"jsonrpc": "2.0", "id": next, "result": {"forged": 1}}));
                stream.get_mut().write_all(forged.as_bytes()).unwrap();
                done.send(()).unwrap();
            }
            if body["method"] != "tools/call" {
                break;
            }
        }
    }
}

#[tokio::test]
async fn forged_response_on_an_idle_connection_is_ignored() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let ((guess, now), (done, guessed)) = (mpsc::channel(), mpsc::channel());
    let _server = std::thread::spawn(move || guessing(&listener, &now, &done));
    let bench = Bench::start(json!({"web": {"url": url}}));
    bench.connected("web").await;
    let first = bench.call("web:t", "{}").await.unwrap();
    assert!(first[0].contains("true"), "{first:?}");
    assert_eq!(bench.pool.idle(), 1);
    // The runtime must not poll its sockets in between.
    guess.send(()).unwrap();
    guessed.recv_timeout(PATIENCE).unwrap();
    let second = bench.call("web:t", "{}").await.unwrap();
    assert!(second[0].contains("true"), "{second:?}");
    bench.stop().await;
}

#[tokio::test]
async fn ids_are_not_predictable() {
    let server = Fake::start(legacy).await;
    let bench = server.bench();
    bench.connected("web").await;
    for _ in 0..3 {
        bench.call("web:t", "{}").await.unwrap();
    }
    let ids: Vec<i64> =
        server.seen("tools/call").iter().map(|seen| seen.body["id"].as_i64().unwrap()).collect();
    let [a, b, c] = ids[..] else { panic!("{ids:?}") };
    assert_ne!(b - a, c - b, "{ids:?}");
    assert!((b - a).abs() > 1000, "{ids:?}");
    bench.stop().await;
}

#[tokio::test]
async fn connection_with_a_second_response_is_not_reused() {
    let connections = |second: &'static str| async move {
        let server = Fake::start(move |seen| match seen.method() {
            "tools/call" => {
                let id = &seen.body["id"];
                let answer = json!({"jsonrpc": "2.0", "id": id, "result": {}});
                Say::stream(&format!("data: {answer}\n\n{second}"))
            }
            _ => legacy(seen),
        })
        .await;
        let bench = server.bench();
        bench.connected("web").await;
        let mut answer = bench.begin("web:t", "{}").await.unwrap();
        next_message(&mut answer).await.unwrap().unwrap();
        answer.finish();
        assert_eq!(bench.pool.idle(), 1);
        bench.call("web:t", "{}").await.unwrap();
        bench.stop().await;
        server.calling.load(Ordering::Relaxed)
    };
    assert_eq!(connections(": a comment\n\n").await, 1);
    assert_eq!(connections("data: {\"id\":1,\"result\":{}}\n\n").await, 2);
}

const ANSWER: &str = r#"printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id""#;

#[tokio::test]
async fn child_that_answers_twice_is_disconnected() {
    let bench = child(&format!("{ANSWER}; {ANSWER}"));
    bench.connected("sh").await;
    assert_eq!(bench.call("sh:t", "{}").await.unwrap().len(), 1);
    let state = bench.wait_until("sh", |state| state.status != Status::Connected).await;
    assert_eq!(&*state.reason, "reconnecting: it answered a request twice");
    bench.connected("sh").await;
    bench.stop().await;
}

#[tokio::test]
async fn late_response_to_an_abandoned_call_is_ignored() {
    // Of three calls, the first is answered together with the third.
    let bench = child(&format!(
        r#"n=$((n + 1)); case $n in
             1) held=$id;;
             2) {ANSWER};;
             3) now=$id; id=$held; {ANSWER}; id=$now; {ANSWER}; n=0;;
           esac"#
    ));
    bench.connected("sh").await;
    for _ in 0..3 {
        let given_up = bench.begin("sh:t", "{}").await.unwrap();
        assert_eq!(bench.call("sh:t", "{}").await.unwrap().len(), 1);
        drop(given_up);
        assert_eq!(bench.call("sh:t", "{}").await.unwrap().len(), 1);
    }
    assert_eq!(bench.upstream("sh").state().status, Status::Connected);
    let lost = |event: &Event| matches!(event, Event::Server(state) if state.reason.contains("reconnecting"));
    assert!(!bench.events.lock().iter().any(lost));
    bench.stop().await;
}

#[tokio::test]
async fn response_to_an_unsent_request_closes_the_pipe() {
    let (link, _unwritten) = ChildLink::new(Arc::default(), Arc::default());
    let line = |id: u64| [Bytes::from(id.to_string()), Bytes::new(), Bytes::new()];
    let Ok(call) = within(pipes::StdioCall::begin(
        &link,
        line,
        Allowance::now(PATIENCE),
        pipes::SentFor::Nobody,
    ))
    .await
    else {
        panic!()
    };
    let guess = format!("{{\"id\":{},\"result\":{{}}}}\n", call.id());
    let (inbox, _lifecycle) = queues::channel(1);
    let reason = within(pipes::read(link.clone(), guess.as_bytes(), inbox, 1)).await;
    assert_eq!(&*reason, "it answered a request before it was sent");
}

#[tokio::test]
async fn stray_responses_before_the_handshake_are_skipped() {
    let stray =
        format!(r#"printf '{{"jsonrpc":"2.0","id":"x","result":{{}}}}\n%.0s' {}"#, "1 ".repeat(14));
    let answer = r#"printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id""#;
    let bench = Bench::start(
        json!({"sh": {"command": "/bin/sh", "args": ["-c", SERVER, "s", answer, stray]}}),
    );
    bench.connected("sh").await;
    let mut answer = bench.begin("sh:t", "{}").await.unwrap();
    assert_eq!(next(&mut answer).await["result"], json!({}));
    bench.stop().await;
}

/// Counts log lines.
struct Lines(Arc<AtomicUsize>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("mcpproxy")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Counts the log lines of this thread until the returned value is dropped.
///
/// The second subscriber is needed: with only one, a log statement that another test reaches first is disabled for all
/// threads, since tracing asks only the subscriber of that thread.
fn counted(lines: &Arc<AtomicUsize>) -> (tracing::Dispatch, tracing::subscriber::DefaultGuard) {
    let second = tracing::Dispatch::new(Lines(Arc::default()));
    (second, tracing::subscriber::set_default(Lines(lines.clone())))
}

#[tokio::test]
async fn flood_of_unsolicited_messages_does_not_fill_the_log() {
    let lines = Arc::new(AtomicUsize::new(0));
    let unknown = pending::FIRST_ID + 7;
    let flood = |line: &str| format!("yes '{line}' | head -n 50000; {ANSWER}");
    for line in [
        &*format!(r#"{{"id":{unknown},"result":{{}}}}"#),
        "no message at all",
        r#"{"method":"notifications/x"}"#,
        r#"{"method":"notifications/progress","params":{"progressToken":1}}"#,
    ] {
        lines.store(0, Ordering::Relaxed);
        let _logged = counted(&lines);
        let bench = child(&flood(line));
        bench.connected("sh").await;
        assert_eq!(bench.call("sh:t", "{}").await.unwrap().len(), 1, "{line}");
        let message = lines.load(Ordering::Relaxed);
        // The part of the budget that was refilled during the flood is smaller than the burst.
        assert!((1..=2 * LOG_BURST as usize).contains(&message), "{line}: {message} lines");
        bench.stop().await;
    }
}

#[tokio::test]
async fn unread_responses_do_not_fill_the_log() {
    const ANSWERS: usize = 2000;
    let lines = Arc::new(AtomicUsize::new(0));
    let _logged = counted(&lines);
    // The child reads nothing after its call.
    let bench = child("exec sleep 60");
    bench.connected("sh").await;
    let answer = bench.begin("sh:t", "{}").await.unwrap();
    let upstream = bench.upstream("sh");
    let outcome = Bytes::from(format!("\"result\":\"{}\"", "x".repeat(32 * 1024)));
    lines.store(0, Ordering::Relaxed);
    for _ in 0..ANSWERS {
        let id = Bytes::from_static(b"1");
        upstream.respond(answer.generation(), id, outcome.clone()).await.unwrap();
    }
    let message = lines.load(Ordering::Relaxed);
    assert!((1..=2 * LOG_BURST as usize).contains(&message), "{message} lines");
    drop(answer);
    bench.stop().await;
}

#[tokio::test]
async fn legacy_server_is_subscribed_again_on_the_next_connection() {
    let forgets = Arc::new(AtomicBool::new(false));
    let forgetting = forgets.clone();
    let fake = Fake::start(move |seen| match (seen.verb.as_str(), seen.method()) {
        (_, "initialize") => Say::result(
            seen,
            json!({"protocolVersion": "2025-11-25", "serverInfo": {"name": "old", "version": "1"},
                "capabilities": {"tools": {}, "resources": {"subscribe": true}}}),
        )
        .with("mcp-session-id: s-1"),
        (_, "resources/subscribe" | "resources/unsubscribe") => Say::result(seen, json!({})),
        (_, "tools/call") if forgetting.swap(false, Ordering::Relaxed) => {
            Say::status("404 Not Found", "text/plain", "gone")
        }
        _ => legacy(seen),
    })
    .await;
    let bench = fake.bench();
    bench.connected("web").await;
    let upstream = bench.upstream("web");
    let mut updates = upstream.updates();
    upstream.subscribe("a:b", None);
    let asked = fake.wait_for_count("resources/subscribe", 1).await;
    assert_eq!(asked.body["params"], json!({"uri": "a:b"}));
    // A subscription that a client made itself is not repeated.
    let generation = bench.begin("web:t", "{}").await.unwrap().generation();
    upstream.subscribe("c:d", Some(generation));
    upstream.subscribe("e:f", None);
    let asked = fake.wait_for_count("resources/subscribe", 2).await;
    assert_eq!(asked.body["params"], json!({"uri": "e:f"}));
    assert!(updates.try_recv().is_err(), "no change was missed");

    forgets.store(true, Ordering::Relaxed);
    bench.call("web:t", "{}").await.unwrap();
    fake.wait_for_count("resources/subscribe", 5).await;
    let again: Vec<Value> = fake.seen("resources/subscribe")[2..]
        .iter()
        .map(|seen| seen.body["params"]["uri"].clone())
        .collect();
    assert_eq!(again, ["a:b", "c:d", "e:f"]);
    for uri in again {
        assert_eq!(&*within(updates.recv()).await.unwrap(), uri, "a change may have been missed");
    }
    upstream.unsubscribe("a:b");
    let message = fake.wait_for_count("resources/unsubscribe", 1).await;
    assert_eq!(message.body["params"], json!({"uri": "a:b"}));
    bench.stop().await;
}

#[tokio::test]
async fn modern_server_is_subscribed_by_filter() {
    type Streams = Mutex<Vec<(Value, UnboundedSender<String>)>>;
    let streams: Arc<Streams> = Arc::default();
    let opened = streams.clone();
    let fake = Fake::start(move |seen| match seen.method() {
        "server/discover" => Say::result(
            seen,
            json!({"resultType": "complete", "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}, "resources": {"subscribe": true}},
                "ttlMs": 0, "cacheScope": "private"}),
        ),
        "subscriptions/listen" => {
            let (sender, events) = Say::events();
            let filter = seen.body["params"]["notifications"].clone();
            let method = "notifications/subscriptions/acknowledged";
            let hello = json!({"method": method, "params": {"notifications": filter}});
            sender.send(hello.to_string()).unwrap();
            opened.lock().push((filter, sender));
            events
        }
        _ => modern(seen),
    })
    .await;
    let bench = fake.bench();
    bench.connected("web").await;
    let upstream = bench.upstream("web");
    let mut updates = upstream.updates();
    let filter = |uris: Value| json!({"resourceSubscriptions": uris});
    let wait_until = async |uris: Value| {
        let expected = filter(uris);
        fake.wait_until(|seen| seen.body["params"]["notifications"] == expected).await;
    };
    upstream.subscribe("a:b", None);
    wait_until(json!(["a:b"])).await;
    let message = json!({"method": "notifications/resources/updated", "params": {"uri": "a:b"}});
    let notify = |uris: Value| {
        let streams = streams.lock();
        let (_, stream) = streams.iter().find(|(found, _)| *found == filter(uris.clone())).unwrap();
        stream.send(message.to_string()).unwrap();
    };
    notify(json!(["a:b"]));
    assert_eq!(&*within(updates.recv()).await.unwrap(), "a:b");
    // A changed set requires a new stream, which is opened before the previous one is closed, so no change is assumed.
    upstream.subscribe("c:d", None);
    wait_until(json!(["a:b", "c:d"])).await;
    notify(json!(["a:b", "c:d"]));
    assert_eq!(&*within(updates.recv()).await.unwrap(), "a:b");
    assert!(updates.try_recv().is_err());
    upstream.unsubscribe("a:b");
    upstream.unsubscribe("c:d");
    let mut closed = fake.closed.subscribe();
    within(closed.wait_for(|closed| *closed >= 2)).await.unwrap();
    bench.stop().await;
}
