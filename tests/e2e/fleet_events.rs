//! Live events of a fleet (`/events`): a reconnect misses nothing, and unreachable nodes are named.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fleet_sessions::{know_each_other, reached_config, reached_with};
use crate::harness::{API_KEY, Connection, Events, Proxy, Response, free_port, stub_stdio, until};

/// Time span in milliseconds of the records of other nodes that a resumed stream repeats if its position does not
/// contain the node.
const OVERLAP_MS: i64 = 2_000;

fn servers() -> Value {
    json!({"mcpServers": {"s": stub_stdio(&[])}})
}

/// A node that advertises `port`.
fn reached_at(store: &TempDir, name: &str, port: u16) -> Proxy {
    let mut config = reached_config(store, name, servers());
    config["cluster"]["advertise"] = format!("http://127.0.0.1:{port}").into();
    Proxy::with(config)
}

/// Forwards connections from port `from` to port `to` until the test ends.
fn forward(from: u16, to: u16) {
    let listener = TcpListener::bind(("127.0.0.1", from)).unwrap();
    std::thread::spawn(move || {
        for one in listener.incoming().flatten() {
            let Ok(other) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            let ways = [(one.try_clone(), other.try_clone()), (Ok(other), Ok(one))];
            for (from, to) in ways {
                let (mut from, mut to) = (from.unwrap(), to.unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
}

fn call(proxy: &Proxy, id: &str) -> String {
    proxy.client().read("s:read_item", json!({"id": id}));
    id.to_owned()
}

fn ask(proxy: &Proxy, query: &str, after: Option<&str>) -> Connection {
    let mut connection = Connection::open(proxy.port);
    let mut headers = vec![("X-API-Key", API_KEY)];
    headers.extend(after.map(|after| ("Last-Event-ID", after)));
    connection.send("GET", &format!("/events{query}"), &headers, b"");
    connection
}

fn watch(proxy: &Proxy, query: &str, after: Option<&str>) -> Events {
    Events::of(ask(proxy, query, after))
}

fn refused(proxy: &Proxy, query: &str, after: Option<&str>) -> Response {
    // The head is read first, because the body of an accepted stream never ends.
    assert_eq!(ask(proxy, query, after).head().0, 400, "{query}");
    ask(proxy, query, after).response()
}

/// Content of an event: the call of a record, or the name of a node and the reason why it is missing; `None` for other
/// events. Updates the resume position, which only the last event of a portion has.
fn named_event(events: &mut Events, last: &mut String) -> Option<(String, Value)> {
    let event = events.next().expect("the stream has no end");
    let content = event.json();
    if content["id"].is_string() {
        *last = event.id.unwrap_or_default();
        let id = content["arguments"]["id"].as_str().unwrap_or_default().to_owned();
        return (content["type"] == "tool_call").then_some((id, content));
    }
    assert_eq!(event.id, None, "{content}");
    let node = content["node"].as_str()?;
    let name = if content["reason"].is_string() { "missing" } else { "back" };
    Some((format!("{name} {node}"), content))
}

/// The next event that is not skipped.
fn next(events: &mut Events, last: &mut String) -> (String, Value) {
    loop {
        if let Some(reported) = named_event(events, last) {
            return reported;
        }
    }
}

/// Reads until the events `wanted` and the end of a portion have arrived. Returns the names of other events.
fn comes(events: &mut Events, wanted: &[String], last: &mut String) -> Vec<String> {
    let mut left: BTreeSet<_> = wanted.iter().cloned().collect();
    let mut others = Vec::new();
    while !left.is_empty() || last.is_empty() {
        let came = named_event(events, last);
        others.extend(came.map(|(name, _)| name).filter(|name| !left.remove(name)));
    }
    others
}

fn ms(record: &Value) -> i64 {
    let time: jiff::Timestamp = record["timestamp"].as_str().unwrap().parse().unwrap();
    time.as_millisecond()
}

// FLT-6
#[test]
fn records_stored_while_a_node_was_unreachable_arrive_after_a_reconnect_at_any_node() {
    let store = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| reached_with(&store, name, servers()));
    let advertised = free_port();
    let c = reached_at(&store, "c", advertised);
    know_each_other(&[&a, &b, &c]);
    let mut events = watch(&a, "", None);
    let mut last = String::new();
    let (name, reported) = next(&mut events, &mut last);
    assert_eq!(name, "missing c", "{reported}");
    assert!(reported["reason"].as_str().unwrap().contains("cannot be reached"), "{reported}");
    let missed = vec![call(&c, "c-1"), call(&c, "c-2")];
    let of_c = ms(&c.activity("type=tool_call&node=c")[0]);
    // The other nodes continue for longer than the time span that is always repeated.
    let mut at = 0;
    until("later records came", || {
        let ids = [call(&b, &format!("b-{at}")), call(&a, &format!("a-{at}"))];
        comes(&mut events, &ids, &mut last);
        at += 1;
        let newest = ms(&b.activity("type=tool_call&node=b")[0]);
        (newest > of_c + 2 * OVERLAP_MS).then_some(())
    });
    drop(events);
    forward(advertised, c.port);
    for by in [&a, &b] {
        let (mut again, mut place) = (watch(by, "", Some(&last)), last.clone());
        let others = comes(&mut again, &missed, &mut place);
        // Delivered events are not repeated, except those of the last portions.
        assert!(!others.contains(&"b-0".to_owned()), "{others:?}");
        assert!(!others.contains(&"a-0".to_owned()), "{others:?}");
    }
}

#[test]
fn watcher_is_notified_of_unreachable_nodes_and_always_gets_keep_alives() {
    let store = tempfile::tempdir().unwrap();
    let [a, b, mut c] = ["a", "b", "c"].map(|name| reached_with(&store, name, servers()));
    know_each_other(&[&a, &b, &c]);
    let log = |of: &str| a.activity(&format!("node={of}"))[0]["node"].clone();
    call(&a, "a-0");
    call(&b, "b-0");
    let (log_of_a, log_of_b) = (log("a"), log("b"));
    c.process.0.kill().unwrap();
    c.process.wait();
    know_each_other(&[&a, &b]);
    let mut last = String::new();
    // Later watchers are notified, too, even one that watches only that node or an unknown one.
    let (name, reported) = next(&mut watch(&a, "", None), &mut last);
    assert_eq!((&*name, &reported["reason"]), ("missing c", &json!("it is not alive")));
    let (name, reported) = next(&mut watch(&a, "?node=c", None), &mut last);
    assert_eq!((&*name, &reported["reason"]), ("missing c", &json!("it is not alive")));
    let nobody = "0123456789abcdef0123456789abcdef";
    for odd in ["nobody", "B", nobody] {
        let (name, reported) = next(&mut watch(&a, &format!("?node={odd}"), None), &mut last);
        assert_eq!(name, format!("missing {odd}"));
        assert!(reported["reason"].as_str().unwrap().contains("no "), "{reported}");
    }
    // A node can also be selected by the id of its log.
    let query = format!("?node={}", log_of_b.as_str().unwrap());
    let mut of_b = watch(&a, &query, None);
    let mut own = watch(&a, &format!("?node={}", log_of_a.as_str().unwrap()), None);
    call(&b, "b-1");
    call(&a, "a-1");
    assert_eq!(next(&mut of_b, &mut last).0, "b-1");
    assert_eq!(next(&mut own, &mut last).0, "a-1");
    refused(&a, "", Some("1;a=x"));
}

#[test]
fn node_that_accepts_requests_without_answering_does_not_delay_others() {
    let store = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| reached_with(&store, name, servers()));
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let c = reached_at(&store, "c", deaf.local_addr().unwrap().port());
    know_each_other(&[&a, &b, &c]);
    let mut events = watch(&a, "?node=b", None);
    let mut last = String::new();
    comes(&mut events, &[call(&b, "b-0")], &mut last);
    call(&b, "b-1");
    // Records of the other node arrive before the silent node is reported.
    let mut all = watch(&a, "", Some(&last));
    assert_eq!(next(&mut all, &mut last).0, "b-1");
    assert_eq!(next(&mut all, &mut last).0, "missing c");
}

#[test]
fn no_node_is_watched_if_peers_cannot_be_queried() {
    let alone = Proxy::with(servers());
    for (query, after) in [("?node=b", None), ("", Some("1;b=1"))] {
        refused(&alone, query, after);
    }
    let text = refused(&alone, "?node=b", None).text();
    assert!(text.contains("Unknown query parameter 'node'"), "{text}");
    let store = tempfile::tempdir().unwrap();
    let folder = format!("file://{}", store.path().display());
    let mut config = servers();
    config["cluster"] = json!({"store": folder, "node": "a", "flush": "100ms"});
    let a = Proxy::with(config);
    let text = refused(&a, "?node=b", None).text();
    assert!(text.contains("node") && text.contains("cluster.key"), "{text}");
    let mut own = watch(&a, "?node=a", None);
    call(&a, "a-1");
    assert_eq!(next(&mut own, &mut String::new()).0, "a-1");
}
