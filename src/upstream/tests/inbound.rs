//! What servers say unasked, and what they are answered: over pipes, in a call's own stream, and on
//! the GET stream.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc::UnboundedSender;

use super::fake::{Fake, Say, Seen, legacy};
use super::stdio::SERVER;
use super::*;
use crate::upstream::{Undelivered, stdio::CALL_PIECES};

const ASKED: ClientCapabilities = ClientCapabilities {
    sampling: false,
    elicitation: true,
    elicitation_forms: true,
    roots: false,
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

/// The next message, read.
async fn next(answer: &mut Answer) -> serde_json::Value {
    serde_json::from_str(&next_message(answer).await.unwrap().unwrap()).unwrap()
}

#[tokio::test]
async fn progress_over_a_pipe_reaches_its_call_before_the_answer() {
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

/// Asks and waits for the answer, of which it tells.
const ASKING: &str = r#"printf '{"jsonrpc":"2.0","id":"q-1","method":"elicitation/create","params":{"message":"sure?"}}\n'; IFS= read -r said; printf '{"jsonrpc":"2.0","id":%s,"result":{"said":"%s"}}\n' "$id" "$(printf %s "$said" | tr -d '"\\')""#;

#[tokio::test]
async fn a_child_asks_the_client_of_its_only_call() {
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
    let said = next(&mut answer).await["result"]["said"].clone();
    assert_eq!(said, "{jsonrpc:2.0,id:q-1,result:{ action:accept}}");
    bench.stop().await;
}

#[tokio::test]
async fn a_client_that_cannot_be_asked_is_not() {
    let bench = child(ASKING);
    bench.connected("sh").await;
    let mut answer = bench.begin("sh:t", "{}").await.unwrap();
    let said = next(&mut answer).await["result"]["said"].to_string();
    assert!(said.contains("id:q-1,error:{code:-32601"), "{said}");
    assert!(said.contains("no client of a call in flight supports it"), "{said}");
    bench.stop().await;
}

#[tokio::test]
async fn of_two_clients_none_is_guessed() {
    // The first call waits; the second lets the server ask.
    let bench = child(&format!("if [ -z \"$held\" ]; then held=$id; else {ASKING}; fi"));
    bench.connected("sh").await;
    let first = bench.begin_with("sh:t", asked()).await.unwrap();
    let mut second = bench.begin_with("sh:t", asked()).await.unwrap();
    let said = next(&mut second).await["result"]["said"].to_string();
    assert!(
        said.contains("error:{code:-32603") && said.contains("2 calls are in flight"),
        "{said}"
    );
    drop(first);
    bench.stop().await;
}

#[tokio::test]
async fn pings_and_unknown_requests_are_answered_and_hostile_ones_are_not() {
    let huge = "9".repeat(100_000);
    let script = format!(
        r#"printf '{{"jsonrpc":"2.0","id":{huge},"method":"ping"}}\n{{"jsonrpc":"2.0","id":null,"method":"ping"}}\n{{"jsonrpc":"2.0","id":{{}},"method":"ping"}}\n{{"jsonrpc":"2.0","id":3,"method":"ping"}}\n{{"jsonrpc":"2.0","id":4,"method":"x/y"}}\n'; IFS= read -r a; IFS= read -r b; printf '{{"jsonrpc":"2.0","id":%s,"result":{{"said":"%s"}}}}\n' "$id" "$(printf %s "$a$b" | tr -d '"\\')""#
    );
    let bench = child(&script);
    bench.connected("sh").await;
    let mut answer = bench.begin_with("sh:t", asked()).await.unwrap();
    assert_eq!(
        next(&mut answer).await["result"]["said"],
        "{jsonrpc:2.0,id:3,result:{}}{jsonrpc:2.0,id:4,error:{code:-32601,message:Method not found: x/y}}"
    );
    bench.stop().await;
}

#[tokio::test]
async fn a_flood_does_not_keep_an_answer_from_its_call() {
    // Far more than there is room for, of every kind, and nobody takes any until the end.
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
async fn what_is_said_in_a_calls_own_stream_reaches_it_and_the_answer_goes_back() {
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
        let response = server.until(|seen| seen.body.get("result").is_some()).await;
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

/// A server that has a GET stream, and whose calls are answered as told.
async fn streaming(on_call: impl Fn(&Seen) -> Say + Send + Sync + 'static) -> (Fake, Streams) {
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
async fn a_server_asks_on_its_own_stream_before_it_begins_to_answer() {
    let (server, streams) = streaming(|_| Say::Nothing).await;
    let bench = server.bench();
    bench.connected("web").await;
    server.until(|seen| seen.verb == "GET").await;
    let mut answer = bench
        .begin_with("web:t", CallExtras { client_capabilities: ASKED, ..with_progress() })
        .await
        .unwrap();
    // It is sent while it is listened to.
    let asks = async {
        server.until(|seen| seen.method() == "tools/call").await;
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
    server.until(|seen| seen.body["error"]["code"] == -1 && seen.body["id"] == "q").await;
    // Dropped before its head has come, it is cancelled.
    let id = answer.id();
    drop(answer);
    let cancelled = server.until(|seen| seen.method() == "notifications/cancelled").await;
    assert_eq!(cancelled.body["params"]["requestId"], id);
    // And it is not in flight any more.
    say(&streams, r#"{"jsonrpc":"2.0","id":"r","method":"elicitation/create"}"#);
    let refused = server.until(|seen| seen.body["id"] == "r").await;
    assert_eq!(refused.body["error"]["code"], -32603);
    say(&streams, r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    let pong = server.until(|seen| seen.body["id"] == "p").await;
    assert_eq!(pong.body["result"], json!({}));
    bench.stop().await;
}

#[tokio::test]
async fn a_call_that_is_heard_keeps_its_limit_and_its_retry() {
    let lost = Arc::new(AtomicBool::new(true));
    let gone = lost.clone();
    let (server, _streams) = streaming(move |seen| {
        if gone.swap(false, Ordering::Relaxed) {
            return Say::status("404 Not Found", "text/plain", "gone");
        }
        if seen.body["params"]["arguments"]["mute"] == true { Say::Nothing } else { legacy(seen) }
    })
    .await;
    // Its time is that of both attempts, and of the second connection in the same second.
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
    let upstream = bench.upstream("web");
    let mut answer =
        within(upstream.call(&bench.pool, &permit, mute, asked(), Instant::now())).await.unwrap();
    let error = within(answer.next()).await.unwrap_err();
    assert_eq!(error.to_string(), "web: t: no answer within 3s");
    server.until(|seen| seen.method() == "notifications/cancelled").await;
    bench.stop().await;
}

#[tokio::test]
async fn a_call_in_flight_outlives_the_session_that_another_lost() {
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
    // What its server asked on the old connection cannot be answered any more.
    let none = (Bytes::from_static(b"1"), Bytes::from_static(b"\"result\":{}"));
    let outcome = bench.upstream("web").respond(asked, none.0, none.1).await;
    assert_eq!(outcome, Err(Undelivered::Gone));
    bench.stop().await;
}

#[tokio::test]
async fn a_flood_on_the_get_stream_is_bounded_and_answers_still_come() {
    let (server, streams) = streaming(legacy).await;
    let bench = server.bench();
    bench.connected("web").await;
    server.until(|seen| seen.verb == "GET").await;
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
async fn a_longer_wait_is_granted_to_a_call_whose_client_is_asked() {
    let script = ASKING.to_string();
    let bench = Bench::start(json!({"sh": {
        "command": "/bin/sh", "args": ["-c", SERVER, "s", script, ""], "call_timeout": "100ms"
    }}));
    bench.connected("sh").await;
    let mut patient = bench.begin_with("sh:t", asked()).await.unwrap();
    next(&mut patient).await;
    patient.wait_longer(PATIENCE);
    // Longer than `call_timeout`: the wait of another call that nobody answers.
    let mut impatient = bench.begin_with("sh:t", asked()).await.unwrap();
    let error = within(impatient.next()).await.unwrap_err();
    assert!(error.to_string().contains("no answer within 100ms"), "{error}");
    assert!(next(&mut patient).await.get("result").is_some());
    bench.stop().await;
}

#[tokio::test]
async fn a_line_of_a_hundred_megabytes_comes_whole() {
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
    assert!(largest <= crate::upstream::stdio::READ_BYTES, "it is not gathered: {largest}");
    bench.stop().await;
}

#[tokio::test]
async fn a_request_of_a_hundred_megabytes_goes_whole() {
    // `wc` counts what follows on the pipe: the rest of this line is all of it, since the script
    // reads nothing before but the envelope's start, which ends with the id.
    let bench = Bench::start(json!({"sh": {"command": "/bin/sh", "args": ["-c", r#"
        while IFS= read -r line; do
          id=${line#*'"id":'}; id=${id%%[,\}]*}
          case "$line" in
            *'"server/discover"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"?"}}\n' "$id";;
            *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}}\n' "$id";;
            *'"tools/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","inputSchema":{}}]}}\n' "$id"; break;;
          esac
        done
        start=$(head -c 36)
        head -c 100000000 | wc -c | { read -r n; printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "${start##*:}" "$n"; }
        cat > /dev/null"#]}}));
    bench.connected("sh").await;
    let large = format!("{{\"x\":\"{}\"}}", "y".repeat(100_000_000));
    let mut answer = bench.begin("sh:t", &large).await.unwrap();
    assert_eq!(next(&mut answer).await["result"], 100_000_000);
    bench.stop().await;
}
