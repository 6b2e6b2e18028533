//! A node of a fleet that is there no more and closes no connection: without power, out of reach, or stopped in the middle of
//! its work. Whoever waits for it by way of another node is told what it would be told if it had been killed.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::fleet_sessions::{Session, know_each_other, reached_config, reached_with};
use crate::harness::{Proxy, stub_stdio, until};

fn servers() -> Value {
    let mut keeps = stub_stdio(&[]);
    keeps["affinity"] = "session".into();
    json!({"mcpServers": {"keeps": keeps, "s": stub_stdio(&[])}})
}

fn call(id: &str, tool: &str) -> Value {
    let arguments = json!({"name": tool, "args": {}, "intent": {"operation_type": "read"}});
    let params = json!({"name": "call_tool_read", "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

#[test]
fn whoever_waits_for_a_node_that_vanishes_is_told_so() {
    let store = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| reached_with(&store, name, servers()));
    know_each_other(&[&a, &b]);
    let asked = json!({"sampling": {}});
    let session = Session::opened(&a, "/mcp", &[], "2025-11-25", &asked);
    // The session's own stream, a call whose answer has begun, and one that is sent to nobody.
    let mut stream = session.stream(&b, "GET", &[], "");
    stream.next().unwrap();
    let mut begun = session.stream(&b, "POST", &[], &call("begun", "keeps:ask").to_string());
    assert_eq!(begun.next().unwrap().json()["method"], "sampling/createMessage");
    a.process.signal("STOP");
    let sent = session.post(&b, &call("sent", "keeps:stats"));
    assert_eq!(sent.status, 502, "{}", sent.text());
    while stream.next().is_some() {}
    while begun.next().is_some() {}
    // Now it is known to be dead.
    let later = session.post(&b, &call("later", "keeps:stats"));
    assert_eq!((later.status, later.text().contains("send initialize again")), (404, true));
    session.calls(&b, "on-b");
    a.process.signal("CONT");
    know_each_other(&[&a, &b]);
    until("it is asked again", || {
        (session.post(&b, &call("again", "keeps:stats")).status == 200).then_some(())
    });
}

#[test]
fn a_batch_does_not_wait_for_a_node_that_is_only_told_something() {
    let store = tempfile::tempdir().unwrap();
    // It lives, as the store has it, and whoever connects gets no answer.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = reached_config(&store, "a", servers());
    config["cluster"]["advertise"] = format!("http://{}", deaf.local_addr().unwrap()).into();
    let (a, b) = (Proxy::with(config), reached_with(&store, "b", servers()));
    know_each_other(&[&a, &b]);
    let session = Session::opened(&a, "/mcp", &[], "2025-03-26", &json!({"sampling": {}}));
    let mut events = session.ask(&a, "asked");
    let question = events.next().unwrap().json();
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"model": "m"}});
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let batch = session.post(&b, &json!([answer, ping, answer, answer]));
    assert_eq!(batch.json(), json!([{"jsonrpc": "2.0", "id": 1, "result": {}}]));
}
