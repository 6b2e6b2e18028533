//! Resources that servers are to tell of, over one connection and the next.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use super::fake::{Fake, Say, legacy, modern};
use super::*;

#[tokio::test]
async fn a_legacy_server_is_asked_again_over_the_next_connection() {
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
    let asked = fake.until_seen("resources/subscribe", 1).await;
    assert_eq!(asked.body["params"], json!({"uri": "a:b"}));
    // One that a client asked for itself is not asked for twice.
    let generation = bench.begin("web:t", "{}").await.unwrap().generation();
    upstream.subscribe("c:d", Some(generation));
    upstream.subscribe("e:f", None);
    let asked = fake.until_seen("resources/subscribe", 2).await;
    assert_eq!(asked.body["params"], json!({"uri": "e:f"}));
    assert!(updates.try_recv().is_err(), "nothing was missed so far");

    forgets.store(true, Ordering::Relaxed);
    bench.call("web:t", "{}").await.unwrap();
    fake.until_seen("resources/subscribe", 5).await;
    let again: Vec<Value> = fake.seen("resources/subscribe")[2..]
        .iter()
        .map(|seen| seen.body["params"]["uri"].clone())
        .collect();
    assert_eq!(again, ["a:b", "c:d", "e:f"]);
    for uri in again {
        assert_eq!(&*within(updates.recv()).await.unwrap(), uri, "it may have changed meanwhile");
    }
    upstream.unsubscribe("a:b");
    let told = fake.until_seen("resources/unsubscribe", 1).await;
    assert_eq!(told.body["params"], json!({"uri": "a:b"}));
    bench.stop().await;
}

#[tokio::test]
async fn a_modern_server_is_told_by_the_filter_of_a_subscription() {
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
    let until = async |uris: Value| {
        let expected = filter(uris);
        fake.until(|seen| seen.body["params"]["notifications"] == expected).await;
    };
    upstream.subscribe("a:b", None);
    until(json!(["a:b"])).await;
    let told = json!({"method": "notifications/resources/updated", "params": {"uri": "a:b"}});
    let tell = |uris: Value| {
        let streams = streams.lock();
        let (_, stream) = streams.iter().find(|(found, _)| *found == filter(uris.clone())).unwrap();
        stream.send(told.to_string()).unwrap();
    };
    tell(json!(["a:b"]));
    assert_eq!(&*within(updates.recv()).await.unwrap(), "a:b");
    // Another set is another stream; what changed between the two is told as changed.
    upstream.subscribe("c:d", None);
    until(json!(["a:b", "c:d"])).await;
    assert_eq!(&*within(updates.recv()).await.unwrap(), "a:b");
    assert!(updates.try_recv().is_err());
    upstream.unsubscribe("a:b");
    upstream.unsubscribe("c:d");
    let mut closed = fake.closed.subscribe();
    within(closed.wait_for(|closed| *closed >= 2)).await.unwrap();
    bench.stop().await;
}
