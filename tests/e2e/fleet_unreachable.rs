//! A fleet node that disappears without closing its connections: it lost power, is unreachable, or is stopped. A client
//! that waits for it through another node gets the same answer as for a killed node.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::fleet_sessions::{Session, know_each_other, reached_config, reached_with};
use crate::harness::{Proxy, read_call, stub_stdio, until};

fn servers() -> Value {
    let mut keeps = stub_stdio(&[]);
    keeps["affinity"] = "session".into();
    json!({"mcpServers": {"keeps": keeps, "s": stub_stdio(&[])}})
}

#[test]
fn client_waiting_for_a_vanished_node_is_notified() {
    let store = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| reached_with(&store, name, servers()));
    know_each_other(&[&a, &b]);
    let asked = json!({"sampling": {}});
    let session = Session::opened(&a, "/mcp", &[], "2025-11-25", &asked);
    // Three requests of the session: its standing stream, a call whose answer has begun, and one that reaches no
    // server.
    let mut stream = session.stream(&b, "GET", &[], "");
    stream.next().unwrap();
    let mut begun = session.stream(&b, "POST", &[], &read_call("begun", "keeps:ask").to_string());
    assert_eq!(begun.next().unwrap().json()["method"], "sampling/createMessage");
    a.process.signal("STOP");
    let sent = session.post(&b, &read_call("sent", "keeps:stats"));
    assert_eq!(sent.status, 502, "{}", sent.text());
    while stream.next().is_some() {}
    while begun.next().is_some() {}
    // Now the node counts as dead.
    let later = session.post(&b, &read_call("later", "keeps:stats"));
    assert_eq!((later.status, later.text().contains("send initialize again")), (404, true));
    session.calls(&b, "on-b");
    a.process.signal("CONT");
    know_each_other(&[&a, &b]);
    until("it is asked again", || {
        (session.post(&b, &read_call("again", "keeps:stats")).status == 200).then_some(())
    });
}

#[test]
fn batch_does_not_wait_for_a_node_that_only_gets_a_notification() {
    let store = tempfile::tempdir().unwrap();
    // The node is alive by its heartbeat, but connections to it are not answered.
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
