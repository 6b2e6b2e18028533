//! Both protocol families together: modern servers behind clients of either family, discovery, and the headers that
//! repeat a tool's parameters.

use serde_json::{Value, json};

use crate::harness::{
    HttpStub, Proxy, ask_modern, raw_result, server_of_both_families, stub_stdio,
};

const VERSION: &str = "2026-07-28";

fn discovered(proxy: &Proxy) -> Vec<Value> {
    let found = ask_modern(proxy, "/mcp", "server/discover", json!({}), &[]).json();
    found["result"]["supportedVersions"].as_array().expect("a list").clone()
}

// PRO-2
#[test]
fn mcp_2026_discovering_client_gets_both_protocol_families_regardless_of_the_servers() {
    let (modern, _server) = server_of_both_families();
    let both = json!([VERSION, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]);
    let legacy = json!(["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]);
    let absent = json!({"command": "no-such-program"});
    for (servers, offered, expected) in [
        (json!({}), None, &both),
        (json!({"m": modern.clone()}), None, &both),
        (json!({"m": modern.clone()}), Some("legacy"), &legacy),
        (json!({"m": modern.clone(), "l": stub_stdio(&[])}), None, &both),
        (json!({"l": stub_stdio(&[])}), Some("auto"), &both),
        (json!({"l": stub_stdio(&[])}), Some("modern"), &both),
        (json!({"m": modern, "absent": absent}), None, &both),
    ] {
        let mut config = json!({"mcpServers": servers});
        if let Some(offered) = offered {
            config["offered_era"] = offered.into();
        }
        let proxy = Proxy::with(config.clone());
        assert_eq!(json!(discovered(&proxy)), *expected, "{config}");
        // A request that states its revision is served even without discovery.
        let list = ask_modern(&proxy, "/mcp", "tools/list", json!({}), &[]);
        assert_eq!(list.json()["result"]["resultType"], "complete", "{config}: {}", list.text());
    }
}

/// Result that a modern client gets from a server without result types: `added` is inserted before the last brace.
fn completed(sent: &[u8], added: &str) -> String {
    let sent = std::str::from_utf8(sent).unwrap();
    format!("{},{added}}}", sent.trim_ascii_end().strip_suffix('}').unwrap())
}

#[test]
fn mcp_2026_results_of_a_legacy_server_have_a_result_type_only_for_a_modern_client() {
    let sse = HttpStub::start(&["--stateless", "--answer", "sse", "--id", "last"]);
    let ways = [
        ("json", HttpStub::shared().entry()),
        ("sse", sse.entry()),
        ("first", stub_stdio(&[])),
        ("last", stub_stdio(&["--id", "last"])),
    ];
    let mut servers = json!({});
    for (way, entry) in &ways {
        for mode in ["off", "warn", "strict"] {
            let mut entry = entry.clone();
            entry["output_validation"] = json!({"mode": mode});
            servers[format!("{way}-{mode}")] = entry;
        }
    }
    let proxy = Proxy::start(servers.clone());
    let mut legacy = proxy.client();
    for server in servers.as_object().unwrap().keys() {
        for (tool, args) in [
            ("read_item", json!({})),
            ("plain", json!({})),
            ("odd_spelling", json!({"chunk": 9})),
            ("pretty", json!({"chunk": 1})),
            ("error_first", json!({})),
            ("records", json!({"size": 100_000, "chunk": 1000})),
        ] {
            let theirs = legacy.read_raw(&format!("{server}:{tool}"), args.clone());
            let theirs = raw_result(&theirs.body);
            let expected = completed(theirs, r#""resultType":"complete""#);
            let intent = json!({"operation_type": "read"});
            let searched = json!({"name": "call_tool_read", "arguments":
                {"name": format!("{server}:{tool}"), "args": args, "intent": intent}});
            let direct = json!({"name": format!("{server}__{tool}"), "arguments": args});
            for (path, call) in [("/mcp", searched), ("/mcp/all", direct)] {
                let ours = ask_modern(&proxy, path, "tools/call", call, &[]);
                let text = String::from_utf8_lossy(raw_result(&ours.body));
                assert_eq!(text, expected, "{server} {tool} {path}");
            }
            let records = proxy.activity(&format!("server={server}&tool={tool}&type=tool_call"));
            let kept = |key: &str| records.iter().map(|of| of[key].clone()).collect::<Vec<_>>();
            // The record has the bytes sent by the server, regardless of the client.
            assert_eq!(kept("response_bytes"), vec![json!(theirs.len()); 3], "{server} {tool}");
            assert_eq!(kept("response")[0], kept("response")[2], "{server} {tool}");
        }
    }
    // The bytes equal those of a direct request to the server.
    for tool in ["plain", "odd_spelling", "pretty"] {
        let theirs = legacy.read_raw(&format!("json-off:{tool}"), json!({})).body;
        let sent = HttpStub::shared().direct(tool, &json!({}));
        assert_eq!(raw_result(&theirs), sent.trim_ascii(), "FR-A3, {tool}");
    }
    // A refusal by the proxy has its type once.
    let call = json!({"name": "json-strict__violate", "arguments": {}});
    let blocked = ask_modern(&proxy, "/mcp/all", "tools/call", call, &[]).text();
    assert_eq!(blocked.matches(r#""resultType":"complete""#).count(), 1, "{blocked}");
    assert!(blocked.contains("output schema validation failed"), "{blocked}");
    let call = json!({"name": "json-off__rpc_error", "arguments": {}});
    let error = ask_modern(&proxy, "/mcp/all", "tools/call", call, &[]);
    assert!(!error.text().contains("resultType"), "an error has no type: {}", error.text());
}

#[test]
fn mcp_2026_result_in_an_event_also_has_its_type() {
    let proxy = Proxy::start(json!({"s": HttpStub::shared().entry()}));
    let call = json!({"name": "s__notify", "arguments": {},
        "_meta": {"progressToken": "t"}});
    let answer = ask_modern(&proxy, "/mcp/all", "tools/call", call, &[]);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let text = answer.text();
    let (_, last) = text.rsplit_once("data:").unwrap();
    let sent = HttpStub::shared().direct("read_item", &json!({}));
    let expected = completed(&sent, r#""resultType":"complete""#);
    assert_eq!(String::from_utf8_lossy(raw_result(last.trim().as_bytes())), expected);
}

#[test]
fn mcp_2026_resources_prompts_and_completions_of_a_legacy_server_have_required_members() {
    let stub = HttpStub::start(&["--stateless", "--offers", "--only", "echo"]);
    let proxy = Proxy::start(json!({"s": stub.entry(), "p": stub_stdio(&["--offers"])}));
    let kept = r#""resultType":"complete","ttlMs":0,"cacheScope":"private""#;
    let typed = r#""resultType":"complete""#;
    let mut legacy = proxy.client();
    for server in ["s", "p"] {
        let uri = format!("mcpproxy://{server}/test://shared");
        let prompt = format!("{server}__greet");
        let reference = json!({"type": "ref/prompt", "name": prompt});
        for (method, params, added) in [
            ("resources/read", json!({"uri": uri}), kept),
            ("prompts/get", json!({"name": prompt, "arguments": {}}), typed),
            (
                "completion/complete",
                json!({"ref": reference, "argument": {"name": "who", "value": ""}}),
                typed,
            ),
        ] {
            let theirs = legacy.ask_raw(method, &params.to_string());
            let ours = ask_modern(&proxy, "/mcp", method, params, &[]).body;
            let ours = String::from_utf8_lossy(raw_result(&ours));
            assert_eq!(ours, completed(&theirs, added), "{server} {method}");
        }
        for list in ["resources/list", "resources/templates/list", "prompts/list"] {
            let result = ask_modern(&proxy, "/mcp", list, json!({}), &[]).json()["result"].clone();
            assert_eq!(result["resultType"], "complete", "{list}: {result}");
            assert!(result["ttlMs"].is_u64() && result["cacheScope"] == "private", "{list}");
        }
    }
}

#[test]
fn legacy_client_reads_answers_of_a_modern_server() {
    let (modern, _server) = server_of_both_families();
    let proxy = Proxy::start(json!({"m": modern}));
    let mut client = proxy.direct_client();
    let call = json!({"name": "m__test_simple_text", "arguments": {}});
    let answer = client.ask("tools/call", call);
    let text = &answer["result"]["content"][0]["text"];
    assert_eq!(text, "This is a simple text response for testing.", "{answer}");
    let call = json!({"name": "m__test_missing_capability", "arguments": {}});
    let answer = client.ask("tools/call", call);
    assert_eq!(
        answer["error"]["code"], -32021,
        "it cannot send a request to a client of that family: {answer}"
    );
}

#[test]
fn mcp_2026_parameters_are_repeated_to_a_modern_server() {
    let (modern, _server) = server_of_both_families();
    let proxy = Proxy::start(json!({"m": modern}));
    let mut client = proxy.client();
    for value in [json!("plain"), json!(" gr\u{fc}n\r\n"), json!(""), json!("=?base64?eA==?=")] {
        let args = json!({"value": value});
        let arguments = json!({"name": "m:test_custom_header", "args": args,
            "intent": {"operation_type": "read"}});
        let call = json!({"name": "call_tool_read", "arguments": arguments});
        // The server refuses a call without matching headers.
        let answer = client.ask("tools/call", call);
        assert_eq!(answer["result"]["content"][0]["text"], value, "{answer}");
    }
}

#[test]
fn mcp_2026_headers_that_disagree_with_a_tools_parameters_are_refused() {
    let (modern, _server) = server_of_both_families();
    let proxy = Proxy::start(json!({"m": modern}));
    let call = |value: Value, headers: &[(&str, &str)]| {
        let params = json!({"name": "m__test_custom_header", "arguments": {"value": value}});
        ask_modern(&proxy, "/mcp/all", "tools/call", params, headers)
    };
    for header in ["Hello", "  Hello ", "=?base64?SGVsbG8=?="] {
        let answer = call(json!("Hello"), &[("Mcp-Param-Value", header), ("Mcp-Param-X", "y")]);
        assert_eq!(answer.status, 200, "{header}: {}", answer.text());
        assert_eq!(answer.json()["result"]["content"][0]["text"], "Hello");
    }
    let name = "mcp-param-value";
    for (value, headers, why) in [
        (json!("Hello"), &[][..], "is missing"),
        (json!("Hello"), &[(name, "hello")], "differs from the body"),
        (json!("Hello"), &[(name, "=?base64?SGVsbG8?=")], "cannot be read"),
        (json!("Hello"), &[(name, "Hello"), (name, "Hello")], "more than once"),
        (json!(null), &[(name, "null")], "no counterpart in the body"),
    ] {
        let answer = call(value, headers);
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (400, &json!(-32020)), "{headers:?}: {error}");
        let text = error["message"].as_str().unwrap();
        assert!(text.starts_with("Header mismatch: header mcp-param-value"), "{text}");
        assert!(text.contains(why), "{text}");
    }
    let refused = proxy.activity("status=rejected&type=tool_call");
    assert_eq!(refused.len(), 5, "each is recorded");
    // The call tools have no such parameters, and clients of the other family send no such headers.
    let args = json!({"value": "x"});
    let arguments = json!({"name": "m:test_custom_header", "args": args,
        "intent": {"operation_type": "read"}});
    let call = json!({"name": "call_tool_read", "arguments": arguments});
    assert_eq!(ask_modern(&proxy, "/mcp", "tools/call", call, &[]).status, 200);
    let call = json!({"name": "m__test_custom_header", "arguments": {"value": "x"}});
    let answer = proxy.direct_client().ask("tools/call", call);
    assert_eq!(answer["result"]["content"][0]["text"], "x", "{answer}");
}
