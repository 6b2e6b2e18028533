//! `describe_tool`: one complete tool, a usable example, and the predicted outcome of a call that is not made.

use serde_json::{Value, json};

use crate::harness::{Client, Proxy, error_text, stub_stdio, write_private};

fn calls(proxy: &Proxy) -> usize {
    proxy.activity("type=tool_call").len()
}

fn preflight(client: &mut Client, asked: Value) -> Value {
    let described = client.tool("describe_tool", asked);
    described["structuredContent"]["preflight"].clone()
}

#[test]
fn tool_is_described_completely_with_a_usable_example() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    let described = client.tool("describe_tool", json!({"name": "s:read_item"}));
    let content = &described["structuredContent"];
    let shown = proxy.api("tools/s:read_item")["tool"].clone();
    for member in [
        "name",
        "server",
        "description",
        "inputSchema",
        "outputSchema",
        "annotations",
        "capability",
        "call_with",
    ] {
        assert_eq!(content[member], shown[member], "{member}");
        assert!(!content[member].is_null(), "{member}");
    }
    assert_eq!(content["call_with"], "call_tool_read");
    assert!(content["signature"].as_str().unwrap().starts_with("read_item("), "{content}");
    assert!(content.get("preflight").is_none());
    let text = described["content"][0]["text"].as_str().unwrap();
    for part in [
        "s:read_item(",
        "-> call_tool_read\n",
        "\n  inputSchema: {",
        "\n  outputSchema: {",
        "\nExample: call_tool_read {",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(calls(&proxy), 0, "nothing is called");
    let example = &content["example"];
    let result = client.tool(example["tool"].as_str().unwrap(), example["arguments"].clone());
    assert_eq!(result["structuredContent"]["value"], 7, "{result}");
    let records = client.records(&proxy, "type=internal_tool_call");
    assert_eq!(
        (&records[0]["tool_name"], &records[0]["status"]),
        (&json!("describe_tool"), &json!("success"))
    );
}

#[test]
fn predicted_call_outcome_equals_the_actual_one() {
    let mut s = stub_stdio(&[]);
    s["capabilities"] =
        json!({"no_hints": {"approval": "required"}, "plain": {"approval": "suggest"}});
    let proxy = Proxy::start(json!({"s": s}));
    let mut client = proxy.client();
    let expected = [
        ("s:read_item", "read", "allowed"),
        ("s:delete_item", "read", "refused"),
        ("s:delete_item", "destructive", "allowed"),
        ("s:no_hints", "write", "approval"),
        ("s:plain", "write", "allowed"),
    ];
    for (name, operation, verdict) in expected {
        let seen =
            preflight(&mut client, json!({"name": name, "args": {}, "operation": operation}));
        assert_eq!(seen["verdict"], verdict, "{name} {operation}: {seen}");
        assert_eq!(seen["call_with"], format!("call_tool_{operation}"));
        assert_eq!(seen["argument_errors"], json!([]));
    }
    let warned = preflight(&mut client, json!({"name": "s:plain", "args": {}}));
    assert_eq!(
        warned["warnings"],
        json!(["Tool 's:plain' suggests approval, and nobody was asked"])
    );
    assert_eq!(calls(&proxy), 0, "nothing is called");
    assert!(proxy.activity("type=policy_decision").is_empty(), "and nothing decided");
    assert_eq!(proxy.api("approvals")["approvals"], json!([]), "nobody is asked");
    let asked = json!({"name": "s:delete_item", "operation": "read"});
    let foreseen = preflight(&mut client, asked)["reason"].clone();
    let refused = client.read("s:delete_item", json!({}));
    assert_eq!(foreseen, error_text(&refused));
}

#[test]
fn description_does_not_count_towards_limits() {
    let mut s = stub_stdio(&[]);
    s["limits"] = json!({"rate_per_minute": 1});
    let proxy = Proxy::start(json!({"s": s}));
    let mut client = proxy.client();
    for _ in 0..5 {
        let seen = preflight(&mut client, json!({"name": "s:read_item", "args": {}}));
        assert_eq!(seen["verdict"], "allowed");
    }
    let result = client.read("s:read_item", json!({}));
    assert_eq!(result["structuredContent"]["value"], 7, "{result}");
    let result = client.read("s:read_item", json!({}));
    assert!(error_text(&result).starts_with("Too many calls"), "{result}");
}

#[test]
fn arguments_are_validated_like_those_of_a_call() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools.json");
    let schema = json!({"type": "object", "properties": {"to": {"type": "string"}},
        "required": ["to"], "additionalProperties": false});
    let tool = json!([{"name": "send", "description": "Sends", "inputSchema": schema}]);
    write_private(&file, &tool.to_string());
    let flags = ["--only", "add_tool", "--tools", file.to_str().unwrap()];
    let proxy = Proxy::start(json!({"s": stub_stdio(&flags)}));
    let mut client = proxy.client();
    let seen = preflight(&mut client, json!({"name": "s:send", "args": {"too": "Ada"}}));
    let expected = json!(["/to: missing (required)", "/too: unknown (did you mean 'to'?)"]);
    assert_eq!(seen["argument_errors"], expected);
    assert_eq!(seen["verdict"], "refused");
    assert_eq!(calls(&proxy), 0, "nothing is called");
    let refused = client.call("write", "s:send", json!({"too": "Ada"}));
    assert_eq!(seen["reason"], error_text(&refused));
    let seen = preflight(&mut client, json!({"name": "s:send", "args": {"to": "Ada"}}));
    assert_eq!((&seen["argument_errors"], &seen["verdict"]), (&json!([]), &json!("allowed")));
}

#[test]
fn missing_tool_yields_similar_names_and_hidden_tools_count_as_missing() {
    let proxy = Proxy::start(json!({
        "ours": stub_stdio(&["--only", "read_item,write_item"]),
        "theirs": stub_stdio(&["--only", "delete_item"]),
    }));
    let mut client = proxy.client();
    for (name, shown, near) in [
        ("ours:reed_item", "ours:reed_item", "'ours:read_item', 'ours:write_item'"),
        ("delete_item", "delete_item", "'theirs:delete_item'"),
        ("nowhere:delete_item", "nowhere:delete_item", "'theirs:delete_item'"),
        ("ours:\u{202e}\n", "ours:\\u202e\\u000a", "'ours:"),
    ] {
        let text = format!("Tool '{shown}' not found. Use retrieve_tools to find tools.");
        let result = client.tool("describe_tool", json!({"name": name}));
        assert_eq!(error_text(&result), text);
        let help = result["content"][1]["text"].as_str().unwrap();
        assert!(help.starts_with(&format!("Nearest tools: {near}")), "{help}");
    }
    let records = client.records(&proxy, "type=internal_tool_call");
    assert_eq!(
        records[1]["error_message"], "Tool 'nowhere:delete_item' not found",
        "advice is not recorded"
    );
    let made = proxy.cli(&["token", "create", "ci", "--server", "ours", "-o", "json"]).json();
    let token = format!("Bearer {}", made["token"].as_str().unwrap());
    let session = client.session.clone();
    let ask = |name: &str| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "e", "version": "1"}}});
        let headers = [("Authorization", token.as_str())];
        let opened = proxy.request("POST", "/mcp", &headers, body.to_string().as_bytes());
        let own = opened.header("mcp-session-id").unwrap().to_owned();
        assert_ne!(own, session);
        let headers =
            [headers[0], ("Mcp-Session-Id", own.as_str()), ("Accept", "application/json")];
        let body = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "describe_tool", "arguments": {"name": name}}});
        proxy.request("POST", "/mcp", &headers, body.to_string().as_bytes()).json()["result"]
            .clone()
    };
    assert_eq!(ask("ours:read_item")["structuredContent"]["name"], "ours:read_item");
    let hidden = ask("theirs:delete_item");
    assert_eq!(
        error_text(&hidden),
        "Tool 'theirs:delete_item' not found. Use retrieve_tools to find tools."
    );
    let near = hidden["content"][1]["text"].as_str().unwrap();
    assert!(near.contains("'ours:read_item'") && !near.contains("theirs"), "{near}");
}

#[test]
fn describe_tool_with_invalid_arguments_is_refused() {
    let proxy = Proxy::with(json!({}));
    let mut client = proxy.client();
    for arguments in [
        json!({}),
        json!({"name": 7}),
        json!({"name": "s:t", "args": "{}"}),
        json!({"name": "s:t", "operation": "x"}),
        json!({"name": "s:t", "arguments": {}}),
    ] {
        let result = client.tool("describe_tool", arguments.clone());
        assert_eq!(result["isError"], true, "{arguments}: {result}");
    }
    assert_eq!(client.records(&proxy, "type=internal_tool_call&status=rejected").len(), 5);
}
