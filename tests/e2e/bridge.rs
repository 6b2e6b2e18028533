//! `mcpproxy stdio` in front of a running proxy: the same bytes and the same records as over HTTP, and no second proxy.

use serde_json::{Value, json};

use crate::harness::{API_KEY, Impostor, Pipe, Proxy, free_port, raw_result, stub_stdio, until};

fn servers() -> Value {
    json!({"s": stub_stdio(&[])})
}

fn read_call(id: &Value, tool: &str, args: &Value) -> String {
    let arguments = json!({"name": tool, "args": args, "intent": {"operation_type": "read"}});
    let params = json!({"name": "call_tool_read", "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

fn parse(line: &[u8]) -> Value {
    serde_json::from_slice(line).unwrap_or_else(|e| panic!("{e}: {}", line.escape_ascii()))
}

/// A proxy on a fixed port, which can be restarted at the same address.
fn restartable() -> (Value, Proxy) {
    let listen = format!("127.0.0.1:{}", free_port());
    let config = json!({"mcpServers": servers(), "listen": listen});
    (config.clone(), Proxy::with(config))
}

#[test]
fn fr_a3_bridge_bytes_equal_http_bytes_except_raw_line_breaks() {
    let proxy = Proxy::start(servers());
    let mut pipe = Pipe::before(&proxy);
    pipe.greet();
    let mut client = proxy.client();
    for tool in ["read_item", "odd_spelling", "pretty", "huge_int", "error", "rpc_error"] {
        let line = read_call(&json!("raw"), &format!("s:{tool}"), &json!({}));
        pipe.send(&line);
        let mut over_http = client.post(line.as_bytes()).body;
        for byte in over_http.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')) {
            *byte = b' ';
        }
        let over_pipes = pipe.line().unwrap();
        assert_eq!(over_pipes.escape_ascii().to_string(), over_http.escape_ascii().to_string());
    }
    for line in ["nonsense", "[]", r#"{"jsonrpc":"2.0","id":1}"#] {
        let over_http = client.post(line.as_bytes()).body;
        assert_eq!(pipe.ask(line).as_bytes(), over_http, "{line}");
    }
    pipe.assert_logged("forwarding to the running proxy");
}

#[test]
fn calls_are_recorded_by_the_server_and_the_session_ends_with_the_input() {
    let proxy = Proxy::start(servers());
    let mut pipe = Pipe::before(&proxy);
    pipe.greet();
    pipe.read_raw("s:read_item", &json!({}));
    let records = proxy.activity("type=tool_call&tool=read_item");
    assert_eq!(records.len(), 1, "one pipeline, one record");
    let session = records[0]["session_id"].as_str().unwrap().to_owned();
    assert_eq!(pipe.close(), Vec::<Vec<u8>>::new());
    assert_eq!(pipe.process.wait(), Some(0));
    let body = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let after = proxy.request("POST", "/mcp", &[("Mcp-Session-Id", &session)], body);
    assert_eq!(after.status, 404, "it was deleted");
}

#[test]
fn server_is_found_by_its_data_folder_on_any_port() {
    // The proxy listens on a port chosen by the system; the config names no reachable port.
    let proxy = Proxy::start(servers());
    let config = proxy.folder.path().join("config.json");
    let mut command = crate::harness::mcpproxy();
    command.arg("--config").arg(config);
    let mut pipe = Pipe::launch(command.arg("stdio"));
    pipe.greet();
    pipe.read_raw("s:read_item", &json!({}));
    assert_eq!(proxy.activity("type=tool_call&tool=read_item").len(), 1);
    let folder = proxy.end();
    assert!(!folder.path().join("data/address").exists());
}

#[test]
fn fifty_calls_run_concurrently() {
    let proxy = Proxy::start(servers());
    let mut pipe = Pipe::before(&proxy);
    pipe.greet();
    // This call is never answered; the others are.
    pipe.send(&read_call(&json!("stuck"), "s:never", &json!({})));
    for n in 0..50 {
        pipe.send(&read_call(&json!(n), "s:echo", &json!({"n": n, "wait_ms": 20})));
    }
    let mut seen: Vec<u64> = (0..50)
        .map(|_| {
            let answer = parse(&pipe.line().unwrap());
            assert_eq!(answer["id"], answer["result"]["structuredContent"]["n"], "{answer}");
            answer["id"].as_u64().unwrap()
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
}

#[test]
fn answer_of_20_mb_arrives_as_one_unchanged_line() {
    let proxy = Proxy::start(servers());
    let mut pipe = Pipe::before(&proxy);
    pipe.greet();
    let args = json!({"size": 20_000_000});
    let line = pipe.read_raw("s:text", &args);
    assert!(line.len() > 20_000_000, "{}", line.len());
    let over_http = proxy.client().read_raw("s:text", args);
    assert!(raw_result(&line) == raw_result(&over_http.body), "byte for byte");
}

#[test]
fn killed_server_is_reported_and_used_again_after_its_restart() {
    let (config, proxy) = restartable();
    let mut pipe = Pipe::before(&proxy);
    pipe.greet();
    pipe.read_raw("s:read_item", &json!({}));
    pipe.send(&read_call(&json!("lost"), "s:never", &json!({})));
    until("the call is under way", || {
        let calls = proxy.api("servers")["servers"][0]["state"] == "connected";
        calls.then_some(())
    });
    let Proxy { folder, mut process, .. } = proxy;
    process.signal("KILL");
    process.wait();
    let answer = parse(&pipe.line().unwrap());
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("lost"), &json!(-32603)));
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(text.contains("connection lost before the response"), "{text}");
    until("it is in the log", || pipe.log().contains("connection lost").then_some(()));

    let again = Proxy::unready(config, folder).ready();
    let line = pipe.read_raw("s:read_item", &json!({}));
    assert_eq!(parse(&line)["result"]["structuredContent"]["value"], 7, "a new session");
    // The first record may be lost, because it may have been written less than 50 ms before the kill (ACT-3).
    let records = again.activity("type=tool_call&tool=read_item");
    assert!(matches!(records.len(), 1 | 2), "{records:?}");
}

#[test]
fn request_without_a_server_is_an_error_and_the_pipe_stays_open() {
    let (_, proxy) = restartable();
    let mut pipe = Pipe::before(&proxy);
    pipe.greet();
    drop(proxy.end());
    let answer: Value = parse(pipe.ask(r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#).as_bytes());
    assert_eq!(answer["id"], 9);
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(text.contains("no mcpproxy is running there"), "{text}");
    assert_eq!(pipe.close(), Vec::<Vec<u8>>::new());
    assert_eq!(pipe.process.wait(), Some(0));
}

#[test]
fn signal_lets_calls_finish_in_either_mode() {
    let proxy = Proxy::start(servers());
    let slow = json!({"chunk": 64, "pause_ms": 10});
    for bridged in [true, false] {
        let mut pipe = match bridged {
            true => Pipe::before(&proxy),
            false => Pipe::open(json!({"mcpServers": servers()})),
        };
        pipe.greet();
        pipe.read_raw("s:read_item", &json!({}));
        pipe.send(&read_call(&json!("raw"), "s:text", &slow));
        // The answer to the ping proves that the line of the call was read.
        pipe.ask(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
        pipe.process.signal("TERM");
        let line = pipe.line().unwrap_or_else(|| panic!("bridged {bridged}: {}", pipe.log()));
        assert!(raw_result(&line).ends_with(br#""}]}"#), "bridged: {bridged}");
        assert!(pipe.line().is_none());
        assert_eq!(pipe.process.wait(), Some(0), "bridged: {bridged}");
    }
}

#[test]
fn other_program_on_the_port_receives_neither_message_nor_key() {
    let proxy = Proxy::start(servers());
    for stranger in [Impostor::lookalike(), Impostor::before(proxy.port)] {
        let config = json!({"mcpServers": servers(), "listen": stranger.address()});
        let mut pipe = Pipe::start(config);
        let line = pipe.read_raw("s:read_item", &json!({}));
        assert_eq!(parse(&line)["result"]["structuredContent"]["value"], 7);
        let sent = stranger.sent();
        assert!(sent.starts_with("GET /proof?nonce="), "{sent}");
        assert!(!sent.contains(API_KEY) && !sent.contains("read_item"), "{sent}");
        pipe.assert_logged("another program listens at the configured address");
    }
    assert_eq!(proxy.activity("type=tool_call").len(), 0, "the other proxy records nothing");
}

#[test]
fn program_that_takes_the_port_later_receives_neither_key_nor_message() {
    let (_, proxy) = restartable();
    let mut pipe = Pipe::before(&proxy);
    pipe.greet();
    let port = proxy.port;
    drop(proxy.end());
    let stranger = Impostor::lookalike_on(port);
    let answer = parse(pipe.ask(r#"{"jsonrpc":"2.0","id":"secret","method":"ping"}"#).as_bytes());
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(text.contains("is not the mcpproxy of this config"), "{text}");
    let sent = stranger.sent();
    assert!(sent.contains("GET /proof?nonce="), "{sent}");
    assert!(!sent.contains(API_KEY) && !sent.contains("secret"), "{sent}");
}

#[test]
fn bridge_sends_the_key_to_a_server_that_requires_it() {
    let config = json!({"mcpServers": servers(), "require_mcp_auth": true});
    let proxy = Proxy::with(config);
    let mut pipe = Pipe::before(&proxy);
    pipe.greet();
    let line = pipe.read_raw("s:read_item", &json!({}));
    assert_eq!(parse(&line)["result"]["structuredContent"]["value"], 7);
}

#[test]
fn modern_messages_repeat_members_in_headers_and_cancelling_closes_the_stream() {
    let proxy = Proxy::start(servers());
    let mut pipe = Pipe::before(&proxy);
    let modern = |line: &str| {
        let mut message: Value = serde_json::from_str(line).unwrap();
        message["params"]["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "e2e", "version": "1"},
        });
        message.to_string()
    };
    let discover = modern(r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}}"#);
    let found = parse(pipe.ask(&discover).as_bytes());
    assert!(found["result"]["supportedVersions"].to_string().contains("2025-11-25"), "{found}");
    pipe.send(&modern(&read_call(&json!("stuck"), "s:never", &json!({}))));
    let call = modern(&read_call(&json!(2), "s:read_item", &json!({})));
    let answer = parse(pipe.ask(&call).as_bytes());
    assert_eq!(answer["result"]["structuredContent"]["value"], 7, "{answer}");
    let unknown = modern(r#"{"jsonrpc":"2.0","id":3,"method":"no/such","params":{}}"#);
    assert_eq!(parse(pipe.ask(&unknown).as_bytes())["error"]["code"], -32601);
    pipe.send(
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"stuck"}}"#,
    );
    let record = until("the call is canceled", || {
        proxy.activity("type=tool_call&tool=never").first().cloned()
    });
    assert_eq!(record["status"], "error", "{record}");
    assert_eq!(pipe.close(), Vec::<Vec<u8>>::new(), "a cancelled call has no answer");
}
