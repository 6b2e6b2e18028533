//! Both protocol families over a client's pipes.

use serde_json::{Value, json};

use crate::harness::{HttpStub, Pipe, Recorder, Reply, configure, raw_result, stub_stdio, until};
use crate::tasks::{CREATED, Server, tasks};

const VERSION: &str = "2026-07-28";

fn servers() -> Value {
    json!({"mcpServers": {"s": stub_stdio(&[])}})
}

fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

fn call(id: &str, tool: &str, meta: Value) -> String {
    let arguments = json!({"name": tool, "intent": {"operation_type": "read"}});
    let params = json!({"name": "call_tool_read", "arguments": arguments, "_meta": meta});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

fn line(pipe: &mut Pipe) -> Value {
    serde_json::from_slice(&pipe.line().expect("a line")).expect("JSON")
}

#[test]
fn modern_client_discovers_and_calls_without_a_handshake() {
    let mut pipe = Pipe::open(servers());
    let discover = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover",
        "params": {"_meta": meta()}});
    pipe.send(&discover.to_string());
    let result = line(&mut pipe)["result"].clone();
    assert_eq!(
        result["supportedVersions"][0], VERSION,
        "both protocol families, regardless of its servers"
    );
    pipe.send(&call("c", "s:read_item", meta()));
    assert_eq!(line(&mut pipe)["result"]["structuredContent"]["value"], 7);
    // A line contains no line breaks, and a result of this revision has a type; nothing else is changed.
    let sent = HttpStub::shared().direct("pretty", &json!({}));
    let sent: Vec<u8> = sent.iter().map(|b| if b"\r\n".contains(b) { b' ' } else { *b }).collect();
    let sent = sent.strip_suffix(b"}").unwrap();
    pipe.send(&call("raw", "s:pretty", meta()));
    let got = pipe.line().unwrap();
    assert_eq!(raw_result(&got), [sent, br#","resultType":"complete"}"#].concat());
    pipe.greet();
    assert_eq!(raw_result(&pipe.read_raw("s:pretty", &json!({}))), [sent, b"}"].concat());
    pipe.send(r#"{"jsonrpc":"2.0","id":2,"method":"server/discover"}"#);
    assert_eq!(line(&mut pipe)["error"]["code"], -32602, "without its sender");
    let mut other = meta();
    other["io.modelcontextprotocol/protocolVersion"] = json!("1999-01-01");
    pipe.send(&call("v", "s:read_item", other));
    assert_eq!(line(&mut pipe)["error"]["code"], -32022);
}

#[test]
fn pro_27_request_with_a_lone_surrogate_is_refused_under_its_id() {
    let mut pipe = Pipe::start(servers());
    for (id, params) in [
        (
            "\"s\"",
            r#"{"name":"call_tool_read","arguments":{"name":"s:read_item","args":{"x":"\ud800"}}}"#,
        ),
        ("7", r#"{"name":"\udfff"}"#),
        ("8", r#"{"n":1e999}"#),
    ] {
        pipe.send(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#
        ));
        let refused = line(&mut pipe);
        assert_eq!(refused["id"].to_string(), id, "{refused}");
        assert_eq!(refused["error"]["code"], -32700, "{refused}");
    }
    pipe.send(r#"{"jsonrpc":"2.0","id":9,"method":"tools/call""#);
    assert_eq!(line(&mut pipe)["id"], Value::Null, "no id can be read");
}

#[test]
fn messages_before_an_answer_are_lines_of_their_own() {
    let mut pipe = Pipe::start(servers());
    pipe.send(&call("c", "s:notify", json!({"progressToken": "t"})));
    let progress = line(&mut pipe);
    assert_eq!(progress["params"]["progressToken"], "t", "{progress}");
    assert_eq!(line(&mut pipe)["method"], "notifications/message");
    assert_eq!(line(&mut pipe)["id"], "c");
}

#[test]
fn canceled_call_has_no_answer() {
    let mut pipe = Pipe::start(servers());
    pipe.send(&call("stuck", "s:never", json!({})));
    pipe.send(
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"stuck"}}"#,
    );
    pipe.send(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    assert_eq!(line(&mut pipe)["id"], "p");
    assert_eq!(pipe.close(), Vec::<Vec<u8>>::new(), "and the pipe ends without waiting for it");
    assert_eq!(pipe.process.wait(), Some(0));
}

#[test]
fn subscription_is_acknowledged_and_ends_with_the_pipe_or_its_cancellation() {
    let mut pipe = Pipe::open(servers());
    let listen = |id: &str| {
        json!({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen",
            "params": {"_meta": meta(), "notifications": {"toolsListChanged": true}}})
        .to_string()
    };
    for id in ["one", "two"] {
        pipe.send(&listen(id));
        let hello = line(&mut pipe);
        assert_eq!(hello["method"], "notifications/subscriptions/acknowledged", "{hello}");
        assert_eq!(hello["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id);
    }
    pipe.send(
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"one"}}"#,
    );
    let discover = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover",
        "params": {"_meta": meta()}});
    pipe.send(&discover.to_string());
    assert_eq!(line(&mut pipe)["id"], 1);
    let rest = pipe.close();
    assert_eq!(rest.len(), 1, "only the uncanceled subscription ends with a result");
    let farewell: Value = serde_json::from_slice(&rest[0]).unwrap();
    assert_eq!(
        (&farewell["id"], &farewell["result"]["resultType"]),
        (&json!("two"), &json!("complete"))
    );
}

#[test]
fn server_request_through_the_pipe_gets_the_clients_answer() {
    let mut pipe = Pipe::open(servers());
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {"sampling": {}},
        "clientInfo": {"name": "x", "version": "1"}}});
    pipe.ask(&hello.to_string());
    pipe.send(&call("c", "s:ask", json!({})));
    let asked = line(&mut pipe);
    assert_eq!(asked["method"], "sampling/createMessage", "{asked}");
    pipe.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"model": "m"}}).to_string());
    let answer = line(&mut pipe);
    assert_eq!(
        answer["result"]["structuredContent"]["answered"],
        json!({"model": "m"}),
        "{answer}"
    );
}

/// Replaces the config of the proxy behind a pipe in one step, as an editor does.
fn reconfigure(pipe: &Pipe, mut config: Value) {
    let beside = tempfile::tempdir_in(pipe.folder.path()).unwrap();
    config["data_dir"] = json!(pipe.folder.path().join("data"));
    let new = configure(config, beside.path());
    std::fs::rename(new, pipe.folder.path().join("config.json")).unwrap();
}

// PRO-43, BND-1
#[test]
fn subscription_that_waits_for_its_server_does_not_delay_other_lines() {
    // The value of `stdio::MAX_SUBSCRIPTIONS`.
    const SUBSCRIPTIONS: usize = 32;
    let server = Server::answering(|_| None);
    let mut pipe = Pipe::open(json!({"mcpServers": {"s": server.entry()}}));
    let mut meta = meta();
    meta["io.modelcontextprotocol/clientCapabilities"] = tasks();
    let arguments = json!({"name": "s:slow", "args": {"answer": CREATED},
        "intent": {"operation_type": "read"}});
    let create = json!({"jsonrpc": "2.0", "id": "t", "method": "tools/call", "params": {
        "name": "call_tool_read", "arguments": arguments, "_meta": meta}});
    let created: Value = serde_json::from_str(&pipe.ask(&create.to_string())).unwrap();
    let task = created["result"]["taskId"].as_str().expect("a task").to_owned();
    // The server is replaced by one that does not answer.
    let silent = Recorder::start(|_, _| Reply::Hang);
    let entry = json!({"url": format!("http://127.0.0.1:{}/mcp", silent.port)});
    reconfigure(&pipe, json!({"mcpServers": {"s": entry}}));
    until("it is asked", || (!silent.received().is_empty()).then_some(()));
    let listen = |id: &str, notifications: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen",
            "params": {"_meta": meta, "notifications": notifications}})
        .to_string()
    };
    for n in 0..=SUBSCRIPTIONS {
        pipe.send(&listen(&n.to_string(), json!({"taskIds": [task]})));
    }
    let refused = line(&mut pipe);
    assert_eq!(refused["id"], SUBSCRIPTIONS.to_string(), "{refused}");
    let why = refused["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(why, "32 subscriptions are open: cancel one first");
    // Waiting subscriptions can be canceled.
    for n in 0..SUBSCRIPTIONS {
        let canceled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": n.to_string()}});
        pipe.send(&canceled.to_string());
    }
    until("there is space", || {
        pipe.send(&listen("last", json!({"toolsListChanged": true})));
        let answer = line(&mut pipe);
        let id = &answer["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"];
        (*id == "last").then_some(()).or_else(|| {
            assert_eq!(answer["id"], "last", "{answer}");
            None
        })
    });
    let rest = pipe.close();
    let rest = rest.iter().map(|line| serde_json::from_slice::<Value>(line).unwrap());
    let ids: Vec<Value> = rest.map(|mut message| message["id"].take()).collect();
    assert_eq!(ids, ["last"], "none of the others was acknowledged");
}

// PRO-43
#[test]
fn pro_43_task_is_canceled_even_if_its_client_has_closed_its_end_of_the_pipe() {
    let server = Server::answering(|_| None);
    let mut pipe = Pipe::open(json!({"mcpServers": {"s": server.entry()}}));
    let params = crate::tasks::call("/mcp", "s:slow", CREATED);
    let mut request =
        json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params});
    request["params"]["_meta"] = meta();
    let refused: Value = serde_json::from_str(&pipe.ask(&request.to_string())).unwrap();
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    assert!(pipe.close().is_empty());
    assert_eq!(pipe.process.wait(), Some(0));
    assert_eq!(server.asked("tasks/cancel").len(), 1);
}
