//! A fleet node that has just started, or was started without its store. State that it does not know yet is not treated
//! as lost, and is reported as unknown.

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fleet_sessions::{Session, know_each_other, reached_config, reached_with};
use crate::harness::{API_KEY, Connection, Events, Proxy, Response, read_call, stub_stdio, until};

/// A server with affinity, and one without, which has a tool that needs approval.
fn servers() -> Value {
    let (mut keeps, mut s) = (stub_stdio(&[]), stub_stdio(&[]));
    keeps["affinity"] = "session".into();
    s["capabilities"] = json!({"write_item": {"approval": "required"}});
    json!({"mcpServers": {"keeps": keeps, "s": s}})
}

/// A store whose folder `nodes` is replaced by a file, so that nodes cannot be read.
struct Away {
    nodes: PathBuf,
    aside: PathBuf,
}

impl Away {
    fn begin(store: &TempDir) -> Self {
        let away = Self { nodes: store.path().join("nodes"), aside: store.path().join("aside") };
        std::fs::rename(&away.nodes, &away.aside).unwrap();
        until("it is a file", || {
            let _ = std::fs::remove_dir_all(&away.nodes);
            std::fs::write(&away.nodes, "").ok()
        });
        away
    }

    fn end(&self) {
        until("it is available again", || {
            let _ = std::fs::remove_file(&self.nodes);
            let _ = std::fs::remove_dir_all(&self.nodes);
            std::fs::rename(&self.aside, &self.nodes).ok()
        });
    }
}

fn readiness(node: &Proxy) -> (u16, Value) {
    let response = node.get("/readyz");
    (response.status, response.json())
}

/// Asserts that the client is asked to retry in the same session.
fn asks_again(answer: &Response) {
    let text = answer.text();
    assert_eq!((answer.status, text.contains("retry")), (503, true), "{text}");
    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() > 0, "{text}");
}

fn watch(node: &Proxy, query: &str, after: Option<&str>) -> Events {
    let mut connection = Connection::open(node.port);
    let mut headers = vec![("X-API-Key", API_KEY)];
    headers.extend(after.map(|after| ("Last-Event-ID", after)));
    connection.send("GET", &format!("/events{query}"), &headers, b"");
    Events::of(connection)
}

/// The next event of `/events` about a node instead of a record.
fn named(events: &mut Events) -> Value {
    loop {
        let event = events.next().expect("the stream has no end").json();
        if !event["id"].is_string() {
            return event;
        }
    }
}

// FLT-4
#[test]
fn node_is_ready_once_it_has_read_the_membership() {
    let store = tempfile::tempdir().unwrap();
    let a = reached_with(&store, "a", servers());
    let mut gone = reached_with(&store, "gone", servers());
    assert_eq!(gone.api("fleet")["living"], 2, "a ready node knows the other one");
    gone.process.signal("KILL");
    gone.process.wait();
    know_each_other(&[&a]);
    let config = reached_config(&store, "b", servers());
    let b = Proxy::with(config.clone());
    let states = |node: &Proxy| {
        let nodes = node.api("fleet")["nodes"].as_array().unwrap().clone();
        nodes.iter().map(|node| node["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(states(&b), ["living", "living", "silent"]);
    let (status, ready) = readiness(&b);
    assert_eq!((status, &ready["fleet"]), (200, &json!({"state": "seen"})), "{ready}");
    // After a restart the node does not know the session. Requests that arrive too early are not refused permanently.
    let session = Session::open(&a, &[]);
    let b = Proxy::unready(config, b.end());
    until("the session continues", || {
        let answer = session.post(&b, &read_call("early", "keeps:stats"));
        assert!([200, 503].contains(&answer.status), "{}", answer.text());
        (answer.status == 200).then_some(())
    });
    // A node without a key neither asks other nodes nor waits for them.
    let mut config = reached_config(&store, "c", servers());
    for key in ["key", "advertise"] {
        config["cluster"].as_object_mut().unwrap().remove(key);
    }
    let c = Proxy::with(config);
    assert_eq!(readiness(&c).1["fleet"], Value::Null);
}

#[test]
fn node_that_cannot_read_its_fleet_keeps_sessions_and_reports_unknown_nodes() {
    let store = tempfile::tempdir().unwrap();
    let config = reached_config(&store, "c", servers());
    let nodes = ["a", "b"].map(|name| reached_with(&store, name, servers()));
    let [a, b] = &nodes;
    let c = Proxy::with(config.clone());
    know_each_other(&[a, b, &c]);
    // Node a has a session with server state, a server request, an answer in progress, and a waiting call.
    let kept = Session::opened(a, "/mcp", &[], "2025-03-26", &json!({"sampling": {}}));
    assert_eq!(kept.post(&c, &read_call("before", "keeps:stats")).status, 200);
    let session = Session::opened(a, "/mcp", &[], "2025-11-25", &json!({"sampling": {}}));
    let mut events = session.ask(a, "asked");
    let asked = events.next().unwrap();
    let mut waits = a.client();
    waits.begin("write", "s:write_item", json!({"value": 1}));
    let approval = until("the call waits", || {
        let waiting = c.api("approvals")["approvals"].clone();
        waiting[0]["id"].as_str().map(str::to_owned)
    });

    let folder = c.end();
    let away = Away::begin(&store);
    let c = Proxy::unready(config, folder);
    let (_, ready) = until("it waits for the membership", || {
        let (status, ready) = readiness(&c);
        (status == 503 && ready["fleet"]["state"] == "awaited").then_some((status, ready))
    });
    let why = ready["fleet"]["reason"].as_str().unwrap();
    assert!(why.contains("not determined yet") && ready["ready"] == false, "{ready}");
    let plain = c.request("GET", "/readyz", &[], b"").json();
    assert_eq!(plain["fleet"], json!({"state": "awaited"}), "reasons are for the key's holder");

    // State at node a is not treated as lost.
    let answer = json!({"jsonrpc": "2.0", "id": asked.json()["id"], "result": {"model": "m"}});
    let check = |c: &Proxy| {
        asks_again(&kept.post(c, &read_call("away", "keeps:stats")));
        asks_again(&kept.post(c, &json!([read_call("away", "keeps:stats")])));
        asks_again(&session.post(c, &answer));
        let seen =
            [("Last-Event-ID", asked.id.as_deref().unwrap()), ("Accept", "text/event-stream")];
        asks_again(&session.send(c, "GET", &seen, &Value::Null));
        kept.calls(c, "free");
        let all = c.api("approvals");
        assert_eq!((&all["approvals"], &all["unseen"][0]["node"]), (&json!([]), &json!("")));
        assert!(
            all["unseen"][0]["why"].as_str().unwrap().contains("which nodes are alive"),
            "{all}"
        );
        for (method, body) in [("GET", &b""[..]), ("POST", br#"{"decision": "approve"}"#)] {
            let path = format!("/api/v1/approvals/{approval}");
            asks_again(&c.request(method, &path, &[("X-API-Key", API_KEY)], body));
        }
        let listed = c.get("/api/v1/activity").json();
        assert!(
            listed["data"]["fleet"]["missing"]["store"].is_string(),
            "{}",
            listed["data"]["fleet"]
        );
    };
    check(&c);
    let mut all = watch(&c, "", Some("0;a=1"));
    let mut of_a = watch(&c, "?node=a", None);
    for events in [&mut all, &mut of_a] {
        let reported = named(events);
        assert_eq!(reported["node"], "store");
        assert!(reported["reason"].as_str().unwrap().contains("not known yet"), "{reported}");
    }
    // After a while the node serves without the fleet. Its answers about state at other nodes remain the same.
    let (_, ready) = until("it is ready", || Some(readiness(&c)).filter(|it| it.0 == 200));
    assert_eq!(ready["fleet"]["state"], "unseen", "{ready}");
    check(&c);

    away.end();
    know_each_other(&[a, b, &c]);
    assert_eq!(readiness(&c).1["fleet"], json!({"state": "seen"}));
    assert_eq!(kept.post(&c, &read_call("later", "keeps:stats")).status, 200);
    // The server does not state to which call its question belongs, so only one call may be in flight.
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "asked"}});
    assert_eq!(session.post(a, &cancel).status, 202);
    while events.next().is_some() {}
    let mut events = session.ask(a, "later");
    let asked = events.next().unwrap().json();
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"model": "m"}});
    assert_eq!(session.post(&c, &answer).status, 202);
    let reported = events.next().unwrap().json();
    assert_eq!(reported["result"]["structuredContent"]["answered"], json!({"model": "m"}));
    // Event streams opened earlier now also have the records of the other nodes.
    a.client().read("s:read_item", json!({"id": "after"}));
    for events in [&mut all, &mut of_a] {
        until("the call at a arrives", || {
            let reported = events.next().expect("the stream has no end").json();
            (reported["arguments"]["id"] == "after").then_some(())
        });
    }
    let path = format!("/api/v1/approvals/{approval}");
    let approve =
        c.request("POST", &path, &[("X-API-Key", API_KEY)], br#"{"decision": "approve"}"#);
    assert_eq!(approve.status, 200, "{}", approve.text());
    assert_eq!(waits.connection.response().status, 200);
}
