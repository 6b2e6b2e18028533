//! Where the eras meet: modern servers behind clients of either, what a client that asks is told,
//! and the headers that repeat a tool's parameters.

use serde_json::{Value, json};

use crate::harness::{Proxy, Response, server_of_both_eras, stub_stdio};

const VERSION: &str = "2026-07-28";

/// A modern request with the headers that belong to it, and `more`.
fn ask(
    proxy: &Proxy,
    path: &str,
    method: &str,
    mut params: Value,
    more: &[(&str, &str)],
) -> Response {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let mut headers = vec![("MCP-Protocol-Version", VERSION), ("Mcp-Method", method)];
    headers.extend(body["params"]["name"].as_str().map(|name| ("Mcp-Name", name)));
    headers.extend(more);
    proxy.request("POST", path, &headers, body.to_string().as_bytes())
}

fn told(proxy: &Proxy) -> Vec<Value> {
    let found = ask(proxy, "/mcp", "server/discover", json!({}), &[]).json();
    found["result"]["supportedVersions"].as_array().expect("a list").clone()
}

#[test]
fn mcp_2026_a_client_that_asks_is_led_to_the_era_of_the_servers() {
    let (modern, _server) = server_of_both_eras();
    let legacy = || stub_stdio(&[]);
    let off = json!({"command": "x", "enabled": false});
    for (servers, offered, first) in [
        (json!({}), None, VERSION),
        (json!({"m": modern.clone()}), None, VERSION),
        (json!({"m": modern.clone(), "off": off}), None, VERSION),
        (json!({"m": modern.clone()}), Some("legacy"), "2025-11-25"),
        (json!({"m": modern.clone(), "l": legacy()}), None, "2025-11-25"),
        (json!({"m": modern.clone(), "l": legacy()}), Some("modern"), VERSION),
        (json!({"m": modern, "absent": {"command": "no-such-program"}}), None, "2025-11-25"),
    ] {
        let mut config = json!({"mcpServers": servers});
        if let Some(offered) = offered {
            config["offered_era"] = offered.into();
        }
        let proxy = Proxy::with(config.clone());
        let told = told(&proxy);
        assert_eq!(told.first(), Some(&json!(first)), "{config}: {told:?}");
        assert!(told.contains(&json!("2024-11-05")), "{config}: {told:?}");
        // What states the revision itself is served, whatever was told.
        let list = ask(&proxy, "/mcp", "tools/list", json!({}), &[]);
        assert_eq!(list.json()["result"]["resultType"], "complete", "{config}: {}", list.text());
    }
}

#[test]
fn a_legacy_client_reads_a_modern_servers_answers() {
    let (modern, _server) = server_of_both_eras();
    let proxy = Proxy::start(json!({"m": modern}));
    let mut client = proxy.direct_client();
    let call = json!({"name": "m__test_simple_text", "arguments": {}});
    let answer = client.ask("tools/call", call);
    let text = &answer["result"]["content"][0]["text"];
    assert_eq!(text, "This is a simple text response for testing.", "{answer}");
    let call = json!({"name": "m__test_missing_capability", "arguments": {}});
    let answer = client.ask("tools/call", call);
    assert_eq!(answer["error"]["code"], -32021, "it cannot ask a client of that era: {answer}");
}

#[test]
fn mcp_2026_parameters_are_repeated_to_a_modern_server() {
    let (modern, _server) = server_of_both_eras();
    let proxy = Proxy::start(json!({"m": modern}));
    let mut client = proxy.client();
    for value in [json!("plain"), json!(" gr\u{fc}n\r\n"), json!(""), json!("=?base64?eA==?=")] {
        let args = json!({"value": value});
        let arguments = json!({"name": "m:test_custom_header", "args": args,
            "intent": {"operation_type": "read"}});
        let call = json!({"name": "call_tool_read", "arguments": arguments});
        // The server refuses a call whose headers do not repeat it.
        let answer = client.ask("tools/call", call);
        assert_eq!(answer["result"]["content"][0]["text"], value, "{answer}");
    }
}

#[test]
fn mcp_2026_headers_that_disagree_with_a_tools_parameters_are_refused() {
    let (modern, _server) = server_of_both_eras();
    let proxy = Proxy::start(json!({"m": modern}));
    let call = |value: Value, headers: &[(&str, &str)]| {
        let params = json!({"name": "m__test_custom_header", "arguments": {"value": value}});
        ask(&proxy, "/mcp/all", "tools/call", params, headers)
    };
    for header in ["Hello", "  Hello ", "=?base64?SGVsbG8=?="] {
        let answer = call(json!("Hello"), &[("Mcp-Param-Value", header), ("Mcp-Param-X", "y")]);
        assert_eq!(answer.status, 200, "{header}: {}", answer.text());
        assert_eq!(answer.json()["result"]["content"][0]["text"], "Hello");
    }
    let name = "mcp-param-value";
    for (value, headers, why) in [
        (json!("Hello"), &[][..], "is missing"),
        (json!("Hello"), &[(name, "hello")], "different things"),
        (json!("Hello"), &[(name, "=?base64?SGVsbG8?=")], "cannot be read"),
        (json!("Hello"), &[(name, "Hello"), (name, "Hello")], "more than once"),
        (json!(null), &[(name, "null")], "nothing in the body"),
    ] {
        let answer = call(value, headers);
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (400, &json!(-32020)), "{headers:?}: {error}");
        let text = error["message"].as_str().unwrap();
        assert!(text.starts_with("Header mismatch: header mcp-param-value"), "{text}");
        assert!(text.contains(why), "{text}");
    }
    let refused = proxy.activity("status=rejected&type=tool_call");
    assert_eq!(refused.len(), 5, "each is on record");
    // A call tool has no such parameters, and a client of the other era no such headers.
    let args = json!({"value": "x"});
    let arguments = json!({"name": "m:test_custom_header", "args": args,
        "intent": {"operation_type": "read"}});
    let call = json!({"name": "call_tool_read", "arguments": arguments});
    assert_eq!(ask(&proxy, "/mcp", "tools/call", call, &[]).status, 200);
    let call = json!({"name": "m__test_custom_header", "arguments": {"value": "x"}});
    let answer = proxy.direct_client().ask("tools/call", call);
    assert_eq!(answer["result"]["content"][0]["text"], "x", "{answer}");
}
