//! Failures of an upstream: the error of the call names the server and the cause, it is recorded, and the server is
//! available for the next call.

use serde_json::{Value, json};

use crate::harness::{Client, HttpStub, Proxy, error_text, stub_stdio, until};

/// A proxy with the same server under two names: as `s`, and as `hasty` with a short `call_timeout`.
fn before(server: Value) -> Proxy {
    let mut hasty = server.clone();
    hasty["call_timeout"] = json!("300ms");
    Proxy::start(json!({"s": server, "hasty": hasty}))
}

/// Checks that a call without an answer gets an error, and that other calls are answered.
fn assert_not_waited_for(proxy: &Proxy, client: &mut Client) {
    let text = error_text(&client.read("hasty:never", json!({}))).to_owned();
    assert_eq!(text, "hasty: never: no answer within 300ms");
    let records = client.records(proxy, "type=tool_call&tool=never");
    assert_eq!(
        (&records[0]["status"], &records[0]["error_message"]),
        (&json!("error"), &json!(text))
    );
    until("it answers other calls", || {
        client.read("hasty:read_item", json!({})).get("isError").is_none().then_some(())
    });
}

/// Asserts that a call fails with a text that contains `words`, that its record has the same text, and that the next
/// call succeeds. If an answer was already forwarded in part, it is cut off, so that it is not mistaken for a complete
/// one.
fn fails(proxy: &Proxy, client: &mut Client, tool: &str, words: &[&str]) {
    let response = client.read_raw(&format!("s:{tool}"), json!({}));
    let record =
        until("the record", || client.records(proxy, &format!("type=tool_call&tool={tool}")).pop());
    let text = record["error_message"].as_str().unwrap();
    if response.whole {
        assert_eq!(error_text(&response.json()["result"]), text);
    } else {
        *client = proxy.client();
    }
    assert!(text.starts_with(&format!("s: {tool}: ")), "{text}");
    for word in words {
        assert!(text.contains(word), "{tool}: {text}");
    }
    assert_eq!(record["status"], "error");
    comes_back(client);
}

fn comes_back(client: &mut Client) {
    let result = client.read("s:read_item", json!({}));
    assert_eq!(result["structuredContent"]["value"], 7, "{result}");
}

fn works(client: &mut Client, tool: &str) {
    let result = client.read(&format!("s:{tool}"), json!({}));
    assert_eq!(result["structuredContent"]["value"], 7, "{tool}: {result}");
}

#[test]
fn stdio_server_that_exits_is_restarted() {
    for tool in ["crash", "drop", "cut"] {
        let mut stub = stub_stdio(&[]);
        // Not idempotent, because a repeated call would end the next process as well.
        stub["capabilities"] = json!({tool: {"idempotent": false}});
        let proxy = before(stub);
        let mut client = proxy.client();
        fails(&proxy, &mut client, tool, &["closed the connection"]);
        // The list of tools is read during the call; only then does the server count as connected.
        until("it is connected again", || {
            let changes = proxy.activity("type=server_change&server=s");
            let connected = |change: &&Value| change["metadata"]["status"] == "connected";
            (changes.iter().filter(connected).count() == 2).then_some(())
        });
    }
}

#[test]
fn stdio_server_that_sends_nothing_or_garbage_fails_its_calls() {
    let proxy = before(stub_stdio(&[]));
    let mut client = proxy.client();
    assert_not_waited_for(&proxy, &mut client);
    for tool in ["garbage", "foreign_id", "odd_framing", "flood_stderr", "normal"] {
        works(&mut client, tool);
    }
    proxy.assert_logged("WARN");
}

#[test]
fn stdio_server_that_closes_its_input_is_restarted() {
    let proxy = before(stub_stdio(&[]));
    let mut client = proxy.client();
    let text = error_text(&client.read("hasty:close_stdin", json!({}))).to_owned();
    assert!(text.starts_with("hasty: close_stdin: "), "{text}");
    // The next write fails because the pipe is closed; then the server is restarted.
    until("it is connected again", || {
        let result = client.read("hasty:read_item", json!({}));
        result.get("isError").is_none().then_some(())
    });
}

#[test]
fn each_http_failure_is_reported_and_the_next_call_works() {
    let http = HttpStub::start(&[]);
    let proxy = before(http.entry());
    let mut client = proxy.client();
    for (tool, words) in [
        ("cut", &["in the middle"][..]),
        ("drop", &["closed the connection without an answer"]),
        ("garbage", &["malformed"]),
        ("foreign_id", &["id"]),
        ("status_500", &["500"]),
        ("html", &["text/html"]),
        ("bad_chunk", &[]),
        ("short_body", &["in the middle"]),
    ] {
        fails(&proxy, &mut client, tool, words);
    }
    assert_not_waited_for(&proxy, &mut client);
    for tool in ["gzip", "odd_framing", "flood_stderr", "slow", "normal"] {
        works(&mut client, tool);
    }
    let result = client.read("s:read_item", json!({"chunk": 1}));
    assert_eq!(result["structuredContent"]["value"], 7, "one byte at a time");
}

#[test]
fn http_answer_longer_than_its_length_is_never_used_for_another_call() {
    let http = HttpStub::start(&[]);
    let proxy = before(http.entry());
    let mut client = proxy.client();
    for _ in 0..5 {
        // The surplus bytes are cut off, or the answer is refused. They are never used for the next call.
        let result = client.read("s:long_body", json!({}));
        let fine = result["structuredContent"]["value"] == 7;
        assert!(fine || error_text(&result).starts_with("s: long_body: "), "{result}");
        comes_back(&mut client);
    }
}

#[test]
fn sse_framing_is_read_as_the_standard_defines() {
    let http = HttpStub::start(&["--answer", "sse"]);
    let proxy = before(http.entry());
    let mut client = proxy.client();
    for tool in ["odd_framing", "foreign_id", "notify", "normal", "slow"] {
        works(&mut client, tool);
    }
    fails(&proxy, &mut client, "cut", &[]);
    assert_not_waited_for(&proxy, &mut client);
}

#[test]
fn notifications_before_an_answer_are_not_the_answer() {
    let http = HttpStub::start(&[]);
    let proxy = Proxy::start(json!({"s": http.entry(), "pipe": stub_stdio(&[])}));
    let mut client = proxy.client();
    for server in ["s", "pipe"] {
        let response = client.read_raw(&format!("{server}:notify"), json!({}));
        assert_eq!(response.json()["result"]["structuredContent"]["value"], 7);
    }
}

#[test]
fn server_that_crashes_permanently_is_reported_to_every_call() {
    let proxy = Proxy::start(json!({
        "s": {"command": "sh", "args": ["-c", "echo the disk is on fire >&2; exit 3"]},
    }));
    let text = error_text(&proxy.client().read("s:anything", json!({}))).to_owned();
    assert!(text.contains('s') && text.contains("the disk is on fire"), "{text}");
    let servers = proxy.api("servers")["servers"].clone();
    assert_eq!(servers[0]["state"], "failed");
    assert!(servers[0]["reason"].as_str().unwrap().contains("the disk is on fire"), "{servers}");
}

#[test]
fn disabled_server_is_listed_and_not_started() {
    let mut server = stub_stdio(&[]);
    server["enabled"] = json!(false);
    let proxy = Proxy::start(json!({"s": server}));
    let text = error_text(&proxy.client().read("s:read_item", json!({}))).to_owned();
    assert!(text.contains('s'), "{text}");
    assert_eq!(proxy.api("servers")["servers"][0]["state"], "disabled");
}

#[test]
fn tools_that_are_not_enabled_are_absent() {
    let mut server = stub_stdio(&[]);
    server["enabled_tools"] = json!(["read_*", "delete_item"]);
    server["disabled_tools"] = json!(["delete_*"]);
    let proxy = Proxy::start(json!({"s": server}));
    let tools = proxy.api("tools")["tools"].clone();
    let names: Vec<_> = tools.as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, ["s:read_item"]);
    let mut client = proxy.client();
    let text = error_text(&client.call("destructive", "s:delete_item", json!({}))).to_owned();
    assert!(text.contains("not found"), "{text}");
}

// LIM-3
#[test]
fn max_concurrent_is_enforced_and_the_wait_is_bounded() {
    let mut server = stub_stdio(&[]);
    server["max_concurrent"] = json!(1);
    server["call_timeout"] = json!("1500ms");
    let proxy = Proxy::start(json!({"s": server}));
    let mut first = proxy.client();
    first.begin_read("s:text", json!({"chunk": 16, "pause_ms": 50, "size": 600}));
    let mut second = proxy.client();
    // The call waits for a slot. Either it is answered, or the wait times out.
    let result = second.read("s:read_item", json!({}));
    let fine = result["structuredContent"]["value"] == 7;
    assert!(fine || error_text(&result).contains("'s' at a time: limit 1, queue 256"), "{result}");
    assert!(first.connection.response().whole);
}

/// A child with a secret in its environment. It answers calls with a JSON-RPC error that contains the secret.
const INDISCREET: &str = r#"
echo "starting with $API_TOKEN" >&2
while IFS= read -r line; do
  case "$line" in *'"id":'*) id=${line#*'"id":'}; id=${id%%[,\}]*};; esac
  case "$line" in
    *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}}\n' "$id";;
    *'"tools/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","inputSchema":{}},{"name":"crash","inputSchema":{}}]}}\n' "$id";;
    *'"crash"'*) echo "no luck with $API_TOKEN" >&2; exit 3;;
    *'"tools/call"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32000, "message":"bad %s","data":{"z":1,"a":2.50}}}\n' "$id" "$API_TOKEN";;
    *'"id":'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"?"}}\n' "$id";;
  esac
done
"#;

// SEC-1
#[test]
fn secrets_of_the_config_are_masked_in_server_texts() {
    const TOKEN: &str = "s3cr3t-of-the-config";
    let child = |script: &str| json!({"command": "sh", "args": ["-c", script], "env": {"API_TOKEN": TOKEN}});
    let proxy = Proxy::with(json!({
        "logging": {"level": "debug"},
        "mcpServers": {
            "s": child(INDISCREET),
            "dead": child(r#"echo "cannot log in with $API_TOKEN" >&2; exit 3"#),
        },
    }));
    let mut client = proxy.client();
    let answer = client.read_raw("s:t", json!({})).json();
    assert_eq!(answer["error"]["message"], "bad [redacted]", "{answer}");
    let refused = error_text(&client.read("dead:t", json!({}))).to_owned();
    assert!(refused.contains("cannot log in with [redacted]"), "{refused}");
    client.read("s:crash", json!({}));
    until("it has ended", || {
        let changes = proxy.activity("type=server_change&server=s");
        (changes.len() > 1).then_some(())
    });
    let open = proxy.request("GET", "/readyz", &[], b"");
    for expected in [
        answer.to_string(),
        refused,
        proxy.api("servers").to_string(),
        proxy.get("/readyz").text(),
        open.text(),
        json!(proxy.activity("")).to_string(),
        proxy.log(),
    ] {
        assert!(!expected.contains(TOKEN), "{expected}");
    }
    proxy.assert_logged("starting with [redacted]");
    // Without the key, only the names and states of servers are shown.
    for server in open.json()["servers"].as_array().unwrap() {
        let members: Vec<_> = server.as_object().unwrap().keys().cloned().collect();
        assert_eq!(members, ["name", "state"], "{server}");
    }
}

#[test]
fn error_without_a_secret_is_forwarded_byte_for_byte() {
    let proxy = Proxy::start(json!({
        "s": {"command": "sh", "args": ["-c", INDISCREET], "env": {"API_TOKEN": "none"}},
    }));
    let text = proxy.client().read_raw("s:t", json!({})).text();
    let error = r#""error":{"code":-32000, "message":"bad none","data":{"z":1,"a":2.50}}"#;
    assert!(text.contains(error), "{text}");
}

#[test]
fn answers_to_unknown_ids_do_not_fill_the_log() {
    // The ids in the flood are numbers, like those of the handshake.
    let flood = INDISCREET.replace(
        r#"printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32000"#,
        r#"yes '{"jsonrpc":"2.0","id":99,"result":{}}' | head -n 50000
           printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32000"#,
    );
    let proxy = Proxy::start(json!({"s": {"command": "sh", "args": ["-c", flood]}}));
    let answer = proxy.client().read_raw("s:t", json!({})).json();
    assert_eq!(answer["error"]["code"], -32000, "{answer}");
    assert!(proxy.log().lines().count() < 200, "{}", proxy.log().len());
}
