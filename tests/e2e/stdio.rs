//! `mcpproxy stdio`: the same endpoint over a client's pipes.

use serde_json::{Value, json};

use crate::harness::{
    Pipe, error_text, is_running, raw_result, stub, stub_stdio, until, write_private,
};

fn servers() -> Value {
    json!({"mcpServers": {"s": stub_stdio(&[])}})
}

fn message(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

// PRO-2
#[test]
fn endpoint_over_pipes_behaves_like_the_http_endpoint() {
    let mut pipe = Pipe::start(servers());
    let list = message(&pipe.ask(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#));
    assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 5);
    assert_eq!(
        message(&pipe.ask(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#)),
        json!({"jsonrpc": "2.0", "id": "p", "result": {}})
    );
    let line = pipe.read_raw("s:read_item", &json!({}));
    let result: Value = serde_json::from_slice(raw_result(&line)).unwrap();
    assert_eq!(result["structuredContent"]["value"], 7);
    let line = pipe.read_raw("s:delete_item", &json!({}));
    let result: Value = serde_json::from_slice(raw_result(&line)).unwrap();
    assert_eq!(
        error_text(&result),
        "Tool 's:delete_item' is marked destructive by server, use call_tool_destructive"
    );
}

#[test]
fn result_with_raw_line_breaks_stays_one_line() {
    let http = crate::harness::HttpStub::shared();
    let mut pipe = Pipe::start(json!({"mcpServers": {"s": http.entry()}}));
    let line = pipe.read_raw("s:pretty", &json!({}));
    let sent = http.direct("pretty", &json!({}));
    assert!(sent.contains(&b'\n') && sent.contains(&b'\r'));
    let spaced: Vec<u8> =
        sent.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }).collect();
    assert_eq!(raw_result(&line), spaced, "no other byte changes");
}

#[test]
fn notifications_responses_and_blank_lines_have_no_answer() {
    let mut pipe = Pipe::start(servers());
    pipe.send("");
    pipe.send("   ");
    pipe.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#);
    pipe.send(r#"{"jsonrpc":"2.0","method":"no/such/notification"}"#);
    pipe.send(r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
    assert_eq!(message(&pipe.ask(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#))["id"], 1);
}

#[test]
fn unreadable_line_is_an_error_and_the_next_line_is_read() {
    let mut pipe = Pipe::start(servers());
    for (line, code) in [
        ("nonsense", -32700),
        ("{", -32700),
        ("[]", -32600),
        (r#"{"jsonrpc":"2.0","id":1}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"no/such/method"}"#, -32601),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"call_tool_read","arguments":{"name":"a:b","n\u0061me":"a:c"}}}"#,
            -32602,
        ),
    ] {
        let answer = message(&pipe.ask(line));
        assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
    }
    assert_eq!(message(&pipe.ask(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#))["id"], 1);
}

#[test]
fn calls_run_concurrently_and_answers_are_whole_lines() {
    let mut pipe = Pipe::start(servers());
    let call = |id: &str, tool: &str, args: Value| {
        let arguments = json!({"name": tool, "args": args, "intent": {"operation_type": "read"}});
        let params = json!({"name": "call_tool_read", "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
    };
    // This call is never answered; the others are.
    pipe.send(&call("stuck", "s:never", json!({})));
    for n in 0..20 {
        pipe.send(&call(&n.to_string(), "s:echo", json!({"n": n})));
    }
    let mut seen: Vec<u64> = (0..20)
        .map(|_| {
            let line = String::from_utf8(pipe.line().unwrap()).unwrap();
            let answer = message(&line);
            let n = answer["result"]["structuredContent"]["n"].as_u64().unwrap();
            assert_eq!(answer["id"], n.to_string());
            n
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..20).collect::<Vec<_>>());
}

#[test]
fn end_of_input_lets_calls_finish_and_ends_the_children() {
    let notes = tempfile::tempdir().unwrap();
    let file = notes.path().join("pids");
    let script = r#""$0" deaf & echo $! $$ >"$1"; exec "$0" stdio"#;
    let server = json!({"command": "sh", "args": ["-c", script, stub(), file]});
    let mut pipe = Pipe::start(json!({"mcpServers": {"s": server}}));
    let pids = until("the server runs", || {
        std::fs::read_to_string(&file).ok().filter(|pids| pids.ends_with('\n'))
    });
    let line = pipe.read_raw("s:read_item", &json!({}));
    assert!(line.starts_with(b"{"));
    let arguments = json!({"name": "s:text", "args": {"chunk": 64, "pause_ms": 10}, "intent": {"operation_type": "read"}});
    let params = json!({"name": "call_tool_read", "arguments": arguments});
    let body = json!({"jsonrpc": "2.0", "id": "raw", "method": "tools/call", "params": params});
    pipe.send(&body.to_string());
    let rest = pipe.close();
    assert_eq!(rest.len(), 1, "the running call is answered");
    assert!(raw_result(&rest[0]).ends_with(br#""}]}"#));
    assert_eq!(pipe.process.wait(), Some(0));
    for pid in pids.split_whitespace() {
        assert!(!is_running(pid), "{pid} of {pids}");
    }
}

#[test]
fn config_change_also_applies_under_stdio() {
    let mut pipe = Pipe::start(servers());
    let path = pipe.folder.path().join("config.json");
    let listed = |pipe: &mut Pipe, query: &str| {
        let arguments = json!({"query": query, "limit": 100});
        let params = json!({"name": "retrieve_tools", "arguments": arguments});
        let asked = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params});
        message(&pipe.ask(&asked.to_string()))["result"]["structuredContent"]["tools"].to_string()
    };
    until("the first server is listed", || {
        listed(&mut pipe, "read item").contains("s:").then_some(())
    });
    // Only the file is changed: the running process adds the server.
    let add = |name: &str| {
        let mut config: Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        config["mcpServers"][name] = stub_stdio(&[]);
        let next = path.with_extension("next");
        write_private(&next, &config.to_string());
        std::fs::rename(next, &path).unwrap();
    };
    add("t");
    until("it is listed", || listed(&mut pipe, "read item").contains("t:").then_some(()));
    // SIGHUP reloads the file. As the file is unchanged, nothing else happens.
    pipe.process.signal("HUP");
    let log = pipe.folder.path().join("log");
    let is_reported = || std::fs::read_to_string(&log).unwrap_or_default();
    until("the signal is received", || {
        is_reported().contains("SIGHUP: reloading the config").then_some(())
    });
    assert!(listed(&mut pipe, "read item").contains("t:"));
    add("u");
    pipe.process.signal("HUP");
    until("the third is listed", || listed(&mut pipe, "read item").contains("u:").then_some(()));
    pipe.close();
    assert_eq!(pipe.process.wait(), Some(0), "{}", is_reported());
}

#[test]
fn stdout_carries_only_mcp_messages() {
    let mut pipe = Pipe::open(json!({
        "mcpServers": {"broken": {"command": "/nowhere/at/all"}, "s": stub_stdio(&["--malformed"])},
        "logging": {"level": "debug"},
    }));
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x"}}});
    assert_eq!(message(&pipe.ask(&hello.to_string()))["result"]["protocolVersion"], "2025-06-18");
    pipe.read_raw("s:read_item", &json!({}));
    assert_eq!(pipe.close(), Vec::<Vec<u8>>::new());
    let log = std::fs::read_to_string(pipe.folder.path().join("log")).unwrap();
    assert!(log.contains("/nowhere/at/all"), "{log}");
}
