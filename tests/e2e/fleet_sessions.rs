//! Sessions of a fleet: each node continues the sessions of the others if the id is unaltered, the node has its key,
//! and the request comes from the client that opened the session.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    API_KEY, Connection, Events, Proxy, Response, ask_modern, free_port, stub_stdio, until,
};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const NEW_KEY: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A node of the fleet with `store`.
fn node(store: &TempDir, name: &str, key: Value) -> Proxy {
    let store = format!("file://{}", store.path().display());
    let mut cluster = json!({"store": store, "node": name, "flush": "100ms"});
    if !key.is_null() {
        cluster["key"] = key;
    }
    Proxy::with(json!({"mcpServers": {"s": stub_stdio(&[])}, "cluster": cluster}))
}

/// Session of a client: an id that is sent to any node.
pub(crate) struct Session {
    id: String,
}

impl Session {
    pub(crate) fn open(node: &Proxy, headers: &[(&str, &str)]) -> Self {
        Self::opened(node, "/mcp", headers, "2025-06-18", &json!({"roots": {}}))
    }

    pub(crate) fn open_at(node: &Proxy, path: &str) -> Self {
        Self::opened(node, path, &[], "2025-06-18", &json!({}))
    }

    /// Opens a session of `revision` by a client with `capabilities`.
    pub(crate) fn opened(
        node: &Proxy,
        path: &str,
        headers: &[(&str, &str)],
        revision: &str,
        capabilities: &Value,
    ) -> Self {
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": revision, "capabilities": capabilities,
            "clientInfo": {"name": "walker", "version": "1"}}});
        let response = node.request("POST", path, headers, hello.to_string().as_bytes());
        assert_eq!(response.json()["result"]["protocolVersion"], revision, "{}", response.text());
        Self { id: response.header("mcp-session-id").unwrap().to_owned() }
    }

    pub(crate) fn send(
        &self,
        node: &Proxy,
        method: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Response {
        self.send_to(node, (method, "/mcp"), headers, body)
    }

    fn send_to(
        &self,
        node: &Proxy,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Response {
        let session = [("Mcp-Session-Id", self.id.as_str())];
        let headers: Vec<_> = session.iter().chain(headers).copied().collect();
        let mut connection = Connection::open(node.port);
        connection.send(method, path, &headers, body.to_string().as_bytes());
        connection.response()
    }

    pub(crate) fn post_at(&self, node: &Proxy, path: &str, body: &Value) -> Response {
        self.send_to(node, ("POST", path), &[], body)
    }

    pub(crate) fn post(&self, node: &Proxy, body: &Value) -> Response {
        self.send(node, "POST", &[], body)
    }

    fn list(&self, node: &Proxy) -> Response {
        self.post(node, &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}))
    }

    /// Asserts that a call in the session succeeds at `node`.
    pub(crate) fn calls(&self, node: &Proxy, id: &str) {
        let arguments =
            json!({"name": "s:stats", "args": {}, "intent": {"operation_type": "read"}});
        let params = json!({"name": "call_tool_read", "arguments": arguments});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let response = self.post(node, &call);
        assert_eq!(
            (response.status, &response.json()["id"]),
            (200, &json!(id)),
            "{}",
            response.text()
        );
        assert_ne!(response.json()["result"]["isError"], true, "{}", response.text());
    }

    /// Session id in the record of call `id` at `node`.
    fn name(node: &Proxy, id: &str) -> Value {
        let found = node.activity(&format!("request_id={id}&type=tool_call"));
        assert_eq!(found[0]["metadata"]["client_name"], "walker", "{found:?}");
        found[0]["session_id"].clone()
    }
}

// FLT-8
#[test]
fn session_continues_at_every_node_and_survives_the_one_that_opened_it() {
    let store = tempfile::tempdir().unwrap();
    let [mut a, b, c] = ["a", "b", "c"].map(|name| node(&store, name, json!(KEY)));
    let session = Session::open(&a, &[]);
    assert!(session.id.len() <= 400 && session.id.bytes().all(|byte| byte.is_ascii_graphic()));
    let listed = session.list(&b);
    assert_eq!(listed.status, 200);
    assert!(listed.json()["result"]["tools"].is_array(), "{}", listed.text());
    for (at, node) in [&c, &a, &b, &c].into_iter().enumerate() {
        session.calls(node, &format!("call-{at}"));
    }
    // All nodes record the same session.
    let name = Session::name(&a, "call-1");
    assert_eq!(name.as_str().unwrap().len(), 32);
    assert_eq!((Session::name(&b, "call-2"), Session::name(&c, "call-0")), (name.clone(), name));
    a.process.signal("KILL");
    a.process.wait();
    session.calls(&b, "later");
    session.calls(&c, "later-too");
    // New sessions continue at the living nodes.
    let other = Session::open(&b, &[]);
    other.calls(&c, "other");
}

#[test]
fn session_id_is_valid_only_unaltered_and_for_its_opener() {
    let store = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| node(&store, name, json!(KEY)));
    let admin = [("X-API-Key", crate::harness::API_KEY)];
    let (own, ours) = (Session::open(&a, &[]), Session::open(&a, &admin));
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(own.send(&b, "POST", &admin, &list).status, 404, "the API key is another principal");
    assert_eq!(ours.post(&b, &list).status, 404, "anonymous");
    assert_eq!(ours.send(&b, "POST", &admin, &list).status, 200);
    let mut connection = Connection::open(b.port);
    let session = [("Mcp-Session-Id", own.id.as_str())];
    connection.send("POST", "/mcp/all", &session, list.to_string().as_bytes());
    assert_eq!(connection.response().status, 404, "it is for /mcp");
    for at in [0, 10, 40, own.id.len() - 1] {
        let mut altered = own.id.clone();
        let other = if altered.as_bytes()[at] == b'A' { "B" } else { "A" };
        altered.replace_range(at..=at, other);
        assert_eq!(Session { id: altered }.list(&b).status, 404, "altered at {at}");
        assert_eq!(Session { id: own.id[..at].to_owned() }.list(&b).status, 404, "cut at {at}");
    }
    assert_eq!(own.list(&b).status, 200);
    // An ended session stays ended.
    assert_eq!(own.send(&b, "DELETE", &[], &Value::Null).status, 204);
    assert_eq!(own.list(&b).status, 404);
}

#[test]
fn keys_change_with_overlap_and_sessions_of_a_removed_key_are_unknown() {
    let store = tempfile::tempdir().unwrap();
    let old = node(&store, "a", json!(KEY));
    let both = node(&store, "b", json!([NEW_KEY, KEY]));
    let new = node(&store, "c", json!(NEW_KEY));
    let none = node(&store, "d", Value::Null);
    let session = Session::open(&old, &[]);
    assert_eq!(session.list(&both).status, 200);
    let answer = session.list(&new);
    assert_eq!((answer.status, answer.text().contains("send initialize again")), (404, true));
    assert_eq!(Session::open(&both, &[]).list(&new).status, 200, "the first key seals");
    // Without a key, session ids are local.
    let alone = Session::open(&none, &[]);
    assert!(alone.id.len() == 32 && alone.id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!((alone.list(&none).status, alone.list(&old).status), (200, 404));
    assert_eq!(session.list(&none).status, 404);
}

/// A node that others reach.
fn reached(store: &TempDir, name: &str) -> Proxy {
    reached_with(store, name, json!({"mcpServers": {"s": stub_stdio(&[])}}))
}

pub(crate) fn reached_with(store: &TempDir, name: &str, config: Value) -> Proxy {
    Proxy::with(reached_config(store, name, config))
}

/// The config of a node that others reach.
pub(crate) fn reached_config(store: &TempDir, name: &str, mut config: Value) -> Value {
    let port = free_port();
    let store = format!("file://{}", store.path().display());
    config["listen"] = format!("127.0.0.1:{port}").into();
    config["cluster"] = json!({"store": store, "node": name, "flush": "100ms", "key": KEY,
        "advertise": format!("http://127.0.0.1:{port}")});
    config
}

pub(crate) fn know_each_other(nodes: &[&Proxy]) {
    for node in nodes {
        until("the nodes know each other", || {
            (node.api("fleet")["living"] == nodes.len()).then_some(())
        });
    }
}

impl Session {
    /// Begins a call that asks the client. Returns the stream of its response.
    pub(crate) fn ask(&self, node: &Proxy, id: &str) -> Events {
        let arguments = json!({"name": "s:ask", "args": {}, "intent": {"operation_type": "read"}});
        let params = json!({"name": "call_tool_read", "arguments": arguments});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        self.stream(node, "POST", &[], &call.to_string())
    }

    pub(crate) fn stream(
        &self,
        node: &Proxy,
        method: &str,
        more: &[(&str, &str)],
        body: &str,
    ) -> Events {
        let own = [
            ("Mcp-Session-Id", self.id.as_str()),
            ("Accept", "application/json, text/event-stream"),
        ];
        let headers: Vec<_> = own.iter().chain(more).copied().collect();
        let mut connection = Connection::open(node.port);
        connection.send(method, "/mcp", &headers, body.as_bytes());
        Events::of(connection)
    }

    fn answer(&self, node: &Proxy, question: &Value) -> Response {
        self.post(node, &json!({"jsonrpc": "2.0", "id": question["id"], "result": {"model": "m"}}))
    }

    /// Opens a session of a client with sampling.
    fn asked(node: &Proxy) -> Self {
        Self::opened(node, "/mcp", &[], "2025-11-25", &json!({"sampling": {}}))
    }
}

// FLT-8
#[test]
fn state_on_one_node_is_reachable_through_any_node_and_its_loss_requires_a_new_session() {
    let store = tempfile::tempdir().unwrap();
    let [a, mut b, c] = ["a", "b", "c"].map(|name| reached(&store, name));
    let session = Session::asked(&a);
    // The answer to a question is forwarded to the node that asked it.
    know_each_other(&[&a, &b, &c]);
    let mut events = session.ask(&b, "asked");
    let question = events.next().unwrap().json();
    assert_eq!(session.answer(&c, &question).status, 202);
    let event = events.next().unwrap().json();
    assert_eq!(event["result"]["structuredContent"]["answered"], json!({"model": "m"}));
    // The rest of a broken stream is available at any node.
    let mut events = session.ask(&b, "resumed");
    let asked = events.next().unwrap();
    drop(events);
    let seen = asked.id.clone().unwrap();
    let mut again = session.stream(&c, "GET", &[("Last-Event-ID", &seen)], "");
    assert_eq!(session.answer(&a, &asked.json()).status, 202);
    let event = again.next().unwrap().json();
    assert_eq!(event["result"]["structuredContent"]["answered"], json!({"model": "m"}));
    // A call can be canceled at any node.
    let mut events = session.ask(&b, "cancelled");
    events.next().unwrap();
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "cancelled"}});
    assert_eq!(session.post(&c, &cancel).status, 202);
    while events.next().is_some() {}
    // State on a node that was killed.
    let mut events = session.ask(&b, "gone");
    let asked = events.next().unwrap();
    b.process.signal("KILL");
    b.process.wait();
    let seen = [("Last-Event-ID", asked.id.as_deref().unwrap()), ("Accept", "text/event-stream")];
    until("it is found dead", || {
        let answers =
            [session.answer(&c, &asked.json()), session.send(&c, "GET", &seen, &Value::Null)];
        // Until the node counts as dead, requests can be retried.
        for answer in &answers {
            assert!([404, 503].contains(&answer.status), "{} {}", answer.status, answer.text());
        }
        answers.iter().all(|answer| answer.status == 404).then_some(())
    });
    session.calls(&c, "on-c");
    session.calls(&a, "on-a");
}

#[test]
fn stream_restarts_elsewhere_before_its_node_is_declared_dead() {
    let store = tempfile::tempdir().unwrap();
    let [mut a, b] = ["a", "b"].map(|name| reached(&store, name));
    know_each_other(&[&a, &b]);
    let session = Session::asked(&a);
    let mut events = session.stream(&b, "GET", &[], "");
    let seen = events.next().unwrap().id.unwrap();
    a.process.signal("KILL");
    a.process.wait();
    while events.next().is_some() {}
    for more in [&[][..], &[("Last-Event-ID", seen.as_str())][..]] {
        assert!(session.stream(&b, "GET", more, "").next().is_some(), "{more:?}");
    }
    session.calls(&b, "on-b");
}

#[test]
fn subscription_remains_at_its_node_after_the_sessions_node_is_lost() {
    let store = tempfile::tempdir().unwrap();
    let offers = json!({"mcpServers": {"s": stub_stdio(&["--offers"])}});
    let [mut a, b] = ["a", "b"].map(|name| reached_with(&store, name, offers.clone()));
    know_each_other(&[&a, &b]);
    let session = Session::open(&a, &[]);
    let subscribes = |node: &Proxy| {
        let params = json!({"uri": "mcpproxy://s/test://shared"});
        let asked =
            json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": params});
        let answer = session.post(node, &asked);
        assert_eq!(
            (answer.status, &answer.json()["result"]),
            (200, &json!({})),
            "{}",
            answer.text()
        );
    };
    subscribes(&a);
    a.process.signal("KILL");
    a.process.wait();
    subscribes(&b);
    until("a is found dead", || (b.api("fleet")["living"] == 1).then_some(()));
    subscribes(&b);
    session.calls(&b, "goes-on");
}

#[test]
fn living_node_that_refuses_connections_does_not_end_sessions() {
    let store = tempfile::tempdir().unwrap();
    let mut keeps = stub_stdio(&[]);
    keeps["affinity"] = "session".into();
    let servers = json!({"mcpServers": {"keeps": keeps, "s": stub_stdio(&[])}});
    // The node is alive by its heartbeat, but nothing listens at its advertised address.
    let mut config = reached_config(&store, "a", servers.clone());
    config["cluster"]["advertise"] = "http://127.0.0.1:1".into();
    let (a, b) = (Proxy::with(config), reached_with(&store, "b", servers));
    know_each_other(&[&a, &b]);
    let session = Session::asked(&a);
    let mut events = session.ask(&a, "asked");
    let asked = events.next().unwrap();
    let arguments =
        json!({"name": "keeps:stats", "args": {}, "intent": {"operation_type": "read"}});
    let params = json!({"name": "call_tool_read", "arguments": arguments});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let seen = [("Last-Event-ID", asked.id.as_deref().unwrap()), ("Accept", "text/event-stream")];
    for answer in [
        session.post(&b, &call),
        session.answer(&b, &asked.json()),
        session.send(&b, "GET", &seen, &Value::Null),
    ] {
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.text().contains("retry") && answer.header("retry-after").is_some());
    }
    // The session has not ended: the state is still available at the node that holds it, and other calls work at any
    // node.
    assert_eq!(session.answer(&a, &asked.json()).status, 202);
    let event = events.next().unwrap().json();
    assert_eq!(event["result"]["structuredContent"]["answered"], json!({"model": "m"}));
    assert_eq!(session.post(&a, &call).status, 200);
    session.calls(&b, "on-b");
}

#[test]
fn session_ended_at_one_node_is_ended_at_all() {
    let store = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| reached(&store, name));
    know_each_other(&[&a, &b, &c]);
    let session = Session::open(&a, &[]);
    assert_eq!((session.list(&b).status, session.list(&c).status), (200, 200));
    assert_eq!(session.send(&b, "DELETE", &[], &Value::Null).status, 204);
    for node in [&a, &b, &c] {
        assert_eq!(session.list(node).status, 404);
    }
}

#[test]
fn rule_conditions_on_a_session_hold_at_every_node() {
    let store = tempfile::tempdir().unwrap();
    let mut server = stub_stdio(&["--only", "read_item,echo"]);
    server["capabilities"] = json!({
        "read_item": {"sensitivity": "private", "open_world": false},
        "echo": {"open_world": true},
    });
    let config = json!({"mcpServers": {"s": server}, "policy": {"presets": ["no-exfiltration"]},
        "approval": {"timeout": "1s"}});
    let [mut a, b, c] = ["a", "b", "c"].map(|name| reached_with(&store, name, config.clone()));
    know_each_other(&[&a, &b, &c]);
    let (session, other) = (Session::open(&a, &[]), Session::open(&a, &[]));
    let call = |session: &Session, node: &Proxy, tool: &str| {
        let arguments = json!({"name": tool, "args": {}, "intent": {"operation_type": "read"}});
        let params = json!({"name": "call_tool_read", "arguments": arguments});
        let call = json!({"jsonrpc": "2.0", "id": tool, "method": "tools/call", "params": params});
        let response = session.post(node, &call);
        (response.status, response.text().contains("approval timed out"))
    };
    // Each call is made at a different node, which knows the facts of the session.
    assert_eq!(call(&session, &b, "s:read_item"), (200, false));
    assert_eq!(call(&session, &c, "s:echo"), (200, false), "no open-world content yet");
    assert_eq!(call(&session, &b, "s:echo"), (200, true));
    assert_eq!(call(&other, &b, "s:echo"), (200, true), "another session of the same principal");
    // The facts of the session are lost, so the client has to open another session.
    a.process.signal("KILL");
    a.process.wait();
    until("the node with the facts is found dead", || {
        (call(&session, &c, "s:echo").0 == 404).then_some(())
    });
}

/// Nodes with a rule that refuses open-world calls after private data and open-world content.
fn guarded(store: &TempDir) -> [Proxy; 3] {
    let mut server = stub_stdio(&["--only", "read_item,echo"]);
    server["capabilities"] = json!({
        "read_item": {"sensitivity": "private", "open_world": false},
        "echo": {"open_world": true},
    });
    let config = json!({"mcpServers": {"s": server}, "policy": {"presets": ["no-exfiltration"]},
        "approval": {"timeout": "1s"}});
    let nodes = ["a", "b", "c"].map(|name| reached_with(store, name, config.clone()));
    know_each_other(&[&nodes[0], &nodes[1], &nodes[2]]);
    nodes
}

/// Whether a read call of a client without a session is sent.
fn is_sent(node: &Proxy, tool: &str) -> bool {
    let arguments = json!({"name": tool, "args": {}, "intent": {"operation_type": "read"}});
    let params = json!({"name": "call_tool_read", "arguments": arguments});
    let answer = ask_modern(node, "/mcp", "tools/call", params, &[]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let refused = answer.text().contains("approval timed out");
    assert_eq!(answer.json()["result"]["isError"] == true, refused, "{}", answer.text());
    !refused
}

/// Whether a call over REST, which each node answers itself, is sent.
fn is_sent_over_rest(node: &Proxy, tool: &str) -> bool {
    let body = json!({"tool_name": "call_tool_read", "arguments": {"name": tool, "args": {}},
        "intent": {"operation_type": "read"}});
    let key = [("X-API-Key", API_KEY)];
    let answer = node.request("POST", "/api/v1/tools/call", &key, body.to_string().as_bytes());
    assert!([200, 403].contains(&answer.status), "{}", answer.text());
    answer.status == 200
}

#[test]
fn facts_from_requests_without_a_session_apply_at_every_node() {
    let store = tempfile::tempdir().unwrap();
    let [a, b, c] = guarded(&store);
    assert!(is_sent(&a, "s:read_item"));
    assert!(is_sent(&b, "s:echo"), "no open-world content yet");
    for node in [&c, &a, &b] {
        assert!(!is_sent(node, "s:echo"));
    }
}

#[test]
fn principal_facts_are_shared_and_survive_the_loss_of_their_node() {
    let store = tempfile::tempdir().unwrap();
    let [mut a, b, c] = guarded(&store);
    assert!(is_sent_over_rest(&a, "s:read_item") && is_sent_over_rest(&a, "s:echo"));
    assert!(!is_sent_over_rest(&a, "s:echo"));
    // It is shared within a few seconds.
    for node in [&b, &c] {
        until("the facts are known", || (!is_sent_over_rest(node, "s:echo")).then_some(()));
    }
    a.process.signal("KILL");
    a.process.wait();
    let folder = b.end();
    let b = Proxy::from_file(&folder.path().join("config.json"), folder).ready();
    assert!(!is_sent_over_rest(&b, "s:echo") && !is_sent_over_rest(&c, "s:echo"));
}
