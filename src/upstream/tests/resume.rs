//! Streams that end before their answer, and are taken up again.

use serde_json::Value;

use super::fake::{Fake, Say, Seen, legacy, modern};
use super::*;

/// A legacy server whose calls are answered by `first`, and whose streams go on with `then`, told
/// the id to go on from and the id of the call.
async fn polled(
    first: impl Fn(&Seen) -> Say + Send + Sync + 'static,
    then: impl Fn(&str, &Value) -> Say + Send + Sync + 'static,
) -> Fake {
    let called = Mutex::new(Value::Null);
    Fake::start(move |seen| match (seen.verb.as_str(), seen.header("last-event-id")) {
        ("GET", Some(id)) => then(&id, &called.lock()),
        _ if seen.method() == "tools/call" => {
            *called.lock() = seen.body["id"].clone();
            first(seen)
        }
        _ => legacy(seen),
    })
    .await
}

fn log(text: &str) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": text}})
}

fn answer(id: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}})
}

const PRIMING: &str = "id: e-0\nretry: 1\ndata: \n\n";

#[tokio::test]
async fn a_stream_that_ends_before_its_answer_is_taken_up_again_and_nothing_comes_twice() {
    let fake = polled(
        // The last id is of an event that never comes whole.
        |_| Say::stream(&format!("{PRIMING}id: e-1\ndata: {}\n\nid: e-2\n", log("one"))),
        |from, id| match from {
            "e-1" => Say::stream(&format!("id: e-2\nretry: 1\ndata: {}\n\n", log("two"))),
            // Nothing new, not even an id.
            "e-2" => Say::stream(": wait\n\nid: e-3\n\n"),
            // The connection breaks between two events.
            "e-3" => {
                let event = format!("id: e-4\ndata: {}\n\n", log("three"));
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                            transfer-encoding: chunked\r\n\r\n";
                Say::Cut(format!("{head}{:x}\r\n{event}\r\n", event.len()))
            }
            "e-4" => Say::stream(&format!("id: e-5\ndata: {}\n\n", answer(id))),
            other => Say::status("400 Bad Request", "text/plain", other),
        },
    )
    .await;
    let bench = fake.bench();
    bench.connected("web").await;
    let progress = Some(Bytes::from_static(br#"{"progressToken":1}"#));
    // One that is heard beside its stream as well, and one that is not.
    for meta in [None, progress] {
        let beside = CallExtras { meta, ..CallExtras::default() };
        let mut call = bench.begin_with("web:t", beside).await.unwrap();
        for expected in ["one", "two", "three"] {
            let told: Value =
                serde_json::from_str(&next_message(&mut call).await.unwrap().unwrap()).unwrap();
            assert_eq!(told, log(expected));
        }
        let last = next_message(&mut call).await.unwrap().unwrap();
        assert_eq!(last, answer(&json!(call.id())).to_string());
        call.finish();
    }
    assert_eq!(fake.seen("tools/call").len(), 2, "no call was sent again");
    let get = fake.until(|seen| seen.header("last-event-id").is_some()).await;
    assert_eq!(get.header("mcp-session-id").as_deref(), Some("s-1"));
    assert_eq!(get.header("mcp-protocol-version").as_deref(), Some("2025-11-25"));
    bench.stop().await;
}

#[tokio::test]
async fn a_stream_without_an_id_or_of_a_modern_server_is_not_taken_up() {
    let told = |id: &str| format!("{id}data: {}\n\n", log("one"));
    let fake = polled(move |_| Say::stream(&told("")), |_, id| Say::json(answer(id))).await;
    let new = Fake::start(move |seen| match seen.method() {
        "tools/call" => Say::stream(&told("id: e\n")),
        _ => modern(seen),
    })
    .await;
    for fake in [fake, new] {
        let bench = fake.bench();
        bench.connected("web").await;
        let mut call = bench.begin("web:t", "{}").await.unwrap();
        assert!(next_message(&mut call).await.unwrap().is_some());
        assert_eq!(next_message(&mut call).await.unwrap(), None);
        bench.stop().await;
        assert_eq!(fake.count(|seen| seen.header("last-event-id").is_some()), 0);
    }
}

#[tokio::test]
async fn a_server_that_does_not_go_on_is_told_that_nobody_waits() {
    for (refusal, attempts, why) in [
        ("405 No", 1, "the server answered HTTP 405"),
        ("503 Busy", 5, "the server answered HTTP 503"),
        ("200 OK", 1, "the server answered with no event stream"),
    ] {
        let fake = polled(
            |_| Say::stream(PRIMING),
            move |_, id| match refusal {
                "200 OK" => Say::json(answer(id)),
                _ => Say::status(refusal, "text/plain", ""),
            },
        )
        .await;
        let bench = fake.bench();
        bench.connected("web").await;
        assert_eq!(
            bench.error("web:t").await,
            format!(
                "web: t: the server closed the connection without an answer: its stream could not \
                 be taken up again: {why}"
            )
        );
        fake.until(|seen| seen.method() == "notifications/cancelled").await;
        assert_eq!(fake.count(|seen| seen.header("last-event-id").is_some()), attempts);
        assert_eq!(fake.seen("tools/call").len(), 1);
        bench.stop().await;
    }
}

#[tokio::test]
async fn a_stream_that_ends_for_ever_keeps_the_calls_limit() {
    let fake = polled(|_| Say::stream(PRIMING), |_, _| Say::stream(PRIMING)).await;
    let bench = Bench::start(json!({"web": {"url": fake.url, "call_timeout": "300ms"}}));
    bench.connected("web").await;
    assert_eq!(bench.error("web:t").await, "web: t: no answer within 300ms");
    fake.until(|seen| seen.method() == "notifications/cancelled").await;
    bench.stop().await;
}

#[tokio::test]
async fn a_call_that_is_dropped_between_two_streams_is_cancelled() {
    let fake = polled(|_| Say::stream(PRIMING), |_, _| Say::Nothing).await;
    let bench = fake.bench();
    bench.connected("web").await;
    let mut call = bench.begin("web:t", "{}").await.unwrap();
    let waiting = async { next_message(&mut call).await.unwrap() };
    tokio::select! {
        message = waiting => panic!("{message:?}"),
        _ = fake.until(|seen| seen.header("last-event-id").is_some()) => {}
    }
    drop(call);
    fake.until(|seen| seen.method() == "notifications/cancelled").await;
    bench.stop().await;
}
