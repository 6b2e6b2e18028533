//! State on one node of a fleet that is requested at another node: servers with affinity, kept results, and the
//! messages of a batch, each of which is processed at its own node.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fleet_sessions::{Session, know_each_other, reached_config, reached_with};
use crate::harness::{
    API_KEY, Connection, Proxy, Response, ask_modern, error_text, read_call, stub_stdio, until,
};
use crate::results;

/// Two servers, each with a process on each node: one with affinity, and one without.
fn servers() -> Value {
    let mut keeps = stub_stdio(&["--offers"]);
    keeps["affinity"] = "session".into();
    json!({"mcpServers": {"keeps": keeps, "s": stub_stdio(&[])}})
}

fn three(store: &TempDir, config: &Value) -> [Proxy; 3] {
    let nodes = ["a", "b", "c"].map(|name| reached_with(store, name, config.clone()));
    know_each_other(&nodes.each_ref());
    nodes
}

/// Number of calls received by the process that answered, including this one.
fn count(answer: &Value) -> u64 {
    let count = &answer["result"]["structuredContent"]["calls"];
    count.as_u64().unwrap_or_else(|| panic!("{answer}"))
}

/// Number of client requests to `server` in the log of `node`, queried at any node.
fn recorded(asked: &Proxy, node: &str, server: &str) -> usize {
    let records = asked.activity(&format!("node={node}&server={server}"));
    records
        .iter()
        .filter(|record| record["request_id"].as_str().is_some_and(|id| !id.is_empty()))
        .count()
}

fn kill(node: &mut Proxy) {
    node.process.signal("KILL");
    node.process.wait();
}

// FLT-8
#[test]
fn session_calls_to_a_server_with_affinity_run_on_the_node_that_opened_the_session() {
    let store = tempfile::tempdir().unwrap();
    let [mut a, b, c] = three(&store, &servers());
    let session = Session::open(&a, &[]);
    for (at, node) in [&b, &c, &a, &b].into_iter().enumerate() {
        let answer = session.post(node, &read_call("keeps", "keeps:stats"));
        assert_eq!(count(&answer.json()), at as u64 + 1, "one process has had all of them");
        session.calls(node, "free");
    }
    // The same for other kinds of requests.
    let asked = |method: &str, params: Value| {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = session.post(&b, &request);
        assert!(answer.json()["result"].is_object(), "{method}: {}", answer.text());
    };
    asked("resources/read", json!({"uri": "mcpproxy://keeps/test://shared"}));
    asked("prompts/get", json!({"name": "keeps__greet", "arguments": {"who": "x"}}));
    assert_eq!(["a", "b", "c"].map(|node| recorded(&c, node, "keeps")), [6, 0, 0]);
    assert_eq!(
        ["a", "b", "c"].map(|node| recorded(&a, node, "s")),
        [1, 2, 1],
        "any node sends those"
    );
    // The same by the tool's own name at the other endpoint.
    let direct = Session::open_at(&c, "/mcp/all");
    let params = json!({"name": "keeps__stats", "arguments": {}});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    for (at, node) in [&a, &b, &c].into_iter().enumerate() {
        let answer = direct.post_at(node, "/mcp/all", &request);
        assert_eq!(count(&answer.json()), at as u64 + 1);
    }
    // The state that the session has at the server is lost with its node. Other calls of the session continue, and the
    // client can open a new session.
    kill(&mut a);
    for node in [&b, &c] {
        until("each living node finds it dead", || {
            (session.post(node, &read_call("gone", "keeps:stats")).status == 404).then_some(())
        });
    }
    let answer = session.post(&c, &read_call("gone", "keeps:stats"));
    assert_eq!((answer.status, answer.text().contains("send initialize again")), (404, true));
    session.calls(&c, "later");
    let next = Session::open(&b, &[]);
    let counts =
        [&c, &b].map(|node| count(&next.post(node, &read_call("next", "keeps:stats")).json()));
    assert_eq!(counts, [1, 2], "the node that opened it");
}

#[test]
fn request_of_maximum_length_is_forwarded_between_nodes() {
    let store = tempfile::tempdir().unwrap();
    let [a, b, _c] = three(&store, &servers());
    let session = Session::open(&a, &[]);
    let mut long = read_call("long", "keeps:stats");
    long["params"]["_meta"] = json!({"pad": ""});
    let room = (16 << 20) - long.to_string().len();
    long["params"]["_meta"]["pad"] = "x".repeat(room).into();
    for node in [&a, &b] {
        let answer = session.post(node, &long);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.json()["result"].is_object(), "{}", answer.text());
    }
}

/// A message padded with spaces to `bytes` bytes.
fn spaced(message: &Value, bytes: usize) -> String {
    let text = message.to_string();
    format!("{{{}{}", " ".repeat(bytes - text.len()), &text[1..])
}

#[test]
fn forwarded_request_is_charged_once_and_rejected_for_retry_without_capacity() {
    /// Number of requests of this size that fit into the 84 MiB of each node for bodies from other nodes
    /// (`proxy::body_room`).
    const HELD: usize = 5;
    const BYTES: usize = 15 << 20;
    const MORE: usize = 14 << 20;
    let store = tempfile::tempdir().unwrap();
    let [a, b, c] = three(&store, &servers());
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "large"}}});
    let opened = a.request("POST", "/mcp", &[], hello.to_string().as_bytes());
    let session = opened.header("mcp-session-id").unwrap_or_else(|| panic!("{}", opened.text()));
    let begin = |node: &Proxy, body: &str| {
        let headers = [("Mcp-Session-Id", session), ("Accept", "application/json")];
        let mut connection = Connection::open(node.port);
        connection.send("POST", "/mcp", &headers, body.as_bytes());
        connection
    };
    // Two nodes receive them, since a client has at most 64 MiB at one node.
    let fronts = [&b, &b, &b, &c, &c];
    let held: Vec<Connection> = (0..HELD)
        .map(|at| {
            begin(fronts[at], &spaced(&read_call(&format!("held-{at}"), "keeps:never"), BYTES))
        })
        .collect();
    until("all of them reach the server", || {
        let stats = begin(&a, &read_call("stats", "keeps:stats").to_string()).response().json();
        (stats["result"]["structuredContent"]["abandoned"] == HELD).then_some(())
    });
    let alone = begin(&c, &spaced(&read_call("alone", "keeps:stats"), MORE)).response();
    assert_eq!(alone.status, 503, "{}", alone.text());
    assert!(
        alone.text().contains("exceeds the memory budget")
            && alone.text().contains("was not processed")
    );
    assert!(alone.header("retry-after").is_some(), "{:?}", alone.headers);
    let batch = format!("[{}]", spaced(&read_call("batch", "keeps:stats"), MORE));
    let batch = begin(&b, &batch).response();
    assert_eq!(batch.status, 200, "{}", batch.text());
    let answers = batch.json();
    let error = answers[0]["error"]["message"].as_str().unwrap_or_else(|| panic!("{answers}"));
    assert!(
        error.contains("was not processed") && error.contains("exceeds the memory budget"),
        "{error}"
    );
    // The node has answered, so it is not suspected.
    for front in [&b, &c] {
        let log = front.log();
        assert!(!log.contains("failed to forward"), "{log}");
    }
    drop(held);
    until("their memory is free again", || {
        let answer = begin(&c, &spaced(&read_call("again", "keeps:stats"), MORE)).response();
        (answer.status == 200).then_some(())
    });
}

#[test]
fn restarted_node_does_not_continue_forgotten_sessions() {
    let store = tempfile::tempdir().unwrap();
    let config = reached_config(&store, "a", servers());
    let (a, b) = (Proxy::with(config.clone()), reached_with(&store, "b", servers()));
    know_each_other(&[&a, &b]);
    let session = Session::open(&a, &[]);
    assert_eq!(count(&session.post(&b, &read_call("1", "keeps:stats")).json()), 1);
    let a = Proxy::unready(config, a.end()).ready();
    know_each_other(&[&a, &b]);
    session.calls(&a, "free");
    assert_eq!(session.post(&a, &read_call("2", "keeps:stats")).status, 404);
    assert_eq!(
        session.post(&b, &read_call("3", "keeps:stats")).status,
        404,
        "it is queried, and reports it"
    );
    assert_eq!(count(&Session::open(&a, &[]).post(&b, &read_call("4", "keeps:stats")).json()), 1);
}

#[test]
fn modern_client_calls_to_a_server_with_affinity_run_on_one_node_per_principal() {
    let store = tempfile::tempdir().unwrap();
    let nodes = three(&store, &servers());
    let params = read_call("", "keeps:stats")["params"].clone();
    let admin = [("X-API-Key", API_KEY)];
    for (at, node) in nodes.iter().chain(&nodes).enumerate() {
        let answer = ask_modern(node, "/mcp", "tools/call", params.clone(), &[]);
        assert_eq!(count(&answer.json()), at as u64 + 1, "{}", answer.text());
    }
    let mut had = ["a", "b", "c"].map(|node| recorded(&nodes[0], node, "keeps"));
    had.sort_unstable();
    assert_eq!(had, [0, 0, 6]);
    let answers = nodes
        .each_ref()
        .map(|node| count(&ask_modern(node, "/mcp", "tools/call", params.clone(), &admin).json()));
    assert!(answers.is_sorted() && answers[2] == answers[0] + 2, "{answers:?}");
}

fn revision_with_batches(node: &Proxy, capabilities: &Value) -> Session {
    Session::opened(node, "/mcp", &[], "2025-03-26", capabilities)
}

#[test]
fn each_message_of_a_batch_is_answered_by_its_node() {
    let store = tempfile::tempdir().unwrap();
    let [mut a, b, c] = three(&store, &servers());
    let session = revision_with_batches(&a, &json!({"sampling": {}}));
    let mut events = session.ask(&c, "asked");
    let question = events.next().unwrap().json();
    let level = json!({"jsonrpc": "2.0", "id": "level", "method": "logging/setLevel",
        "params": {"level": "error"}});
    let batch = json!([
        read_call("first", "s:stats"),
        {"jsonrpc": "2.0", "id": question["id"], "result": {"model": "m"}},
        read_call("kept", "keeps:stats"),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "none"}},
        level,
        read_call("wrong", "keeps:nothing"),
        read_call("again", "keeps:stats"),
    ]);
    let answer = session.post(&b, &batch);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answers = answer.json();
    let ids: Vec<&Value> = answers.as_array().unwrap().iter().map(|each| &each["id"]).collect();
    assert_eq!(ids, ["first", "kept", "level", "wrong", "again"]);
    assert_eq!((count(&answers[1]), count(&answers[4])), (1, 2), "{answers}");
    assert!(error_text(&answers[3]["result"]).contains("nothing"), "{answers}");
    assert_eq!(recorded(&b, "b", "keeps"), 0);
    assert_eq!(b.activity("node=b&server=s&request_id=first").len(), 1);
    let event = events.next().unwrap().json();
    assert_eq!(event["result"]["structuredContent"]["answered"], json!({"model": "m"}), "{event}");
    // The same for a batch of one message.
    let alone = session.post(&b, &json!([read_call("alone", "keeps:stats")])).json();
    assert_eq!((count(&alone[0]), alone.as_array().unwrap().len()), (3, 1));
    // If the state for one message is lost, no message of the batch is processed.
    kill(&mut a);
    until("the node is found dead", || {
        let gone = session
            .post(&c, &json!([read_call("not", "s:stats"), read_call("gone", "keeps:stats")]));
        // Before the node counts as dead, only that message gets an error, which asks for a retry.
        let words = ["send initialize again", "retry"].map(|it| gone.text().contains(it));
        assert_eq!(words.iter().filter(|it| **it).count(), 1, "{} {}", gone.status, gone.text());
        (gone.status == 404).then_some(())
    });
    let before = c.activity("node=c&request_id=not").len();
    let gone =
        session.post(&c, &json!([read_call("not", "s:stats"), read_call("gone", "keeps:stats")]));
    assert_eq!((gone.status, c.activity("node=c&request_id=not").len()), (404, before));
    assert_eq!(session.post(&c, &json!([read_call("still", "s:stats")])).status, 200);
}

/// Handle in the answer to an agent.
fn handle(answer: &Response) -> String {
    let answer = answer.json();
    let reported =
        answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    let at = reported.find("kept_").unwrap_or_else(|| panic!("no handle: {reported}"));
    reported[at..].split(['.', '"']).next().unwrap().to_owned()
}

fn read(handle: &str) -> Value {
    let arguments = json!({"handle": handle, "lines": "1400-", "limit": 60000});
    json!({"name": "read_result", "arguments": arguments})
}

#[test]
fn kept_result_is_readable_at_any_node_by_its_recipient() {
    let store = tempfile::tempdir().unwrap();
    let config = json!({"mcpServers": {"s": results::server()},
        "result_limit": {"bytes": results::LIMIT}});
    let [mut a, b, c] = three(&store, &config);
    let (session, other) = (Session::open(&a, &[]), Session::open(&a, &[]));
    let kept = handle(&session.post(&a, &read_call("long", "s:prose")));
    assert_eq!(kept.len(), 46, "it contains the node: {kept}");
    let asked = |session: &Session, node: &Proxy| {
        let request = json!({"jsonrpc": "2.0", "id": "part", "method": "tools/call",
            "params": read(&kept)});
        let answer = session.post(node, &request);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["result"].clone()
    };
    let whole = asked(&session, &a);
    assert!(whole["content"][0]["text"].as_str().unwrap().ends_with("the end"), "{whole}");
    assert_eq!((asked(&session, &b), asked(&session, &c)), (whole.clone(), whole));
    for node in [&a, &b] {
        assert!(error_text(&asked(&other, node)).contains("Make the call again"));
    }
    assert_eq!(a.activity("tool=read_result").len(), 5, "where it was read");
    // A result for a client without a session is readable by its principal only.
    let admin = [("X-API-Key", API_KEY)];
    let params = read_call("", "s:prose")["params"].clone();
    let modern = handle(&ask_modern(&a, "/mcp", "tools/call", params, &admin));
    let at = |node: &Proxy, headers: &[(&str, &str)]| {
        ask_modern(node, "/mcp", "tools/call", read(&modern), headers).json()["result"].clone()
    };
    assert_eq!(at(&b, &admin)["content"], at(&a, &admin)["content"]);
    assert!(at(&c, &admin)["content"][0]["text"].as_str().unwrap().ends_with("the end"));
    assert!(error_text(&at(&b, &[])).contains("Make the call again"));
    // After the end of the node the session continues, and the error names the next step.
    kill(&mut a);
    for answer in [asked(&session, &b), at(&c, &admin)] {
        let error = error_text(&answer);
        assert!(error.contains("dead or unreachable") && error.contains("call again"), "{error}");
    }
}
