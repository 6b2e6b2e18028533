//! Facts about the data that sessions and principals have seen, and the built-in rule that evaluates these facts.

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Client, HttpStub, Proxy, Response, ask_modern, error_text, stub_stdio,
};

fn proxy(presets: &Value) -> Proxy {
    proxy_with(presets, &json!({}), None)
}

/// A proxy with two servers; the capabilities of the first one are extended.
fn proxy_with(presets: &Value, more: &Value, other: Option<Value>) -> Proxy {
    let mut server = stub_stdio(&["--offers", "--only", "read_item,echo,text"]);
    let mut capabilities = json!({
        "read_item": {"sensitivity": "private", "open_world": false},
        "text": {"open_world": false},
        "echo": {"open_world": true},
    });
    capabilities.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server["capabilities"] = capabilities;
    let policy = json!({"presets": presets});
    let approval = json!({"timeout": "1s"});
    let mut servers = json!({"s": server});
    if let Some(other) = other {
        servers["h"] = other;
    }
    Proxy::with(json!({"mcpServers": servers, "policy": policy, "approval": approval}))
}

fn is_fine(result: &Value) -> bool {
    result["isError"] != true
}

/// Error of a call that needs approval, which nobody gives.
const REFUSED: &str = "Tool 's:echo': approval timed out after 1s";

// SES-5
#[test]
fn after_private_data_and_open_world_content_nothing_is_sent_to_the_open_world() {
    let proxy = proxy(&json!(["no-exfiltration"]));
    let (mut one, mut other) = (proxy.client(), proxy.client());
    let ask = |client: &mut Client, tool: &str| client.read(&format!("s:{tool}"), json!({}));
    assert!(is_fine(&ask(&mut one, "read_item")), "private data alone");
    assert!(is_fine(&ask(&mut one, "echo")), "no open-world content yet");
    let result = ask(&mut one, "echo");
    assert!(error_text(&result).starts_with(REFUSED), "{result}");
    assert!(is_fine(&ask(&mut one, "text")), "a closed-world tool");
    assert!(
        error_text(&ask(&mut other, "echo")).starts_with(REFUSED),
        "another session of the same principal"
    );
    let decision = &proxy.activity("type=policy_decision")[0];
    assert_eq!(decision["metadata"]["policy"], "approval");
    assert_eq!(proxy.activity("type=tool_call&status=rejected").len(), 2);
}

#[test]
fn stated_intent_counts_for_its_call_and_later_ones() {
    let proxy = proxy(&json!(["no-exfiltration"]));
    let mut client = proxy.client();
    assert!(is_fine(&client.read("s:echo", json!({}))));
    let intent = json!({"operation_type": "read", "data_sensitivity": "private"});
    let private = |tool: &str| json!({"name": tool, "args": {}, "intent": intent});
    let result = client.tool("call_tool_read", private("s:echo"));
    assert!(error_text(&result).starts_with(REFUSED), "{result}");
    assert!(is_fine(&client.read("s:echo", json!({}))), "it was not sent, so nothing was seen");
    assert!(is_fine(&client.tool("call_tool_read", private("s:text"))));
    assert!(error_text(&client.read("s:echo", json!({}))).starts_with(REFUSED));
}

/// Read call over REST.
fn rest(proxy: &Proxy, headers: &[(&str, &str)], tool: &str) -> Response {
    let body = json!({"tool_name": "call_tool_read", "arguments": {"name": tool, "args": {}},
        "intent": {"operation_type": "read"}});
    proxy.request("POST", "/api/v1/tools/call", headers, body.to_string().as_bytes())
}

/// Calls a tool as a modern client with this name. Returns whether the call was sent.
fn modern(proxy: &Proxy, headers: &[(&str, &str)], client: &str, tool: &str) -> bool {
    let arguments = json!({"name": tool, "args": {}, "intent": {"operation_type": "read"}});
    let meta = json!({"io.modelcontextprotocol/clientInfo": {"name": client, "version": "1"}});
    let params = json!({"name": "call_tool_read", "arguments": arguments, "_meta": meta});
    let answer = ask_modern(proxy, "/mcp", "tools/call", params, headers);
    let result = answer.json()["result"].clone();
    assert!(is_fine(&result) || error_text(&result).starts_with(REFUSED), "{}", answer.text());
    is_fine(&result)
}

// SES-2
#[test]
fn facts_of_a_principal_are_not_reset_by_another_name_session_or_entry_point() {
    let proxy = proxy(&json!(["no-exfiltration"]));
    let key = [("X-API-Key", API_KEY)];
    assert_eq!(["s:read_item", "s:echo"].map(|tool| rest(&proxy, &key, tool).status), [200, 200]);
    // Different workers may handle the requests.
    for _ in 0..8 {
        let refused = rest(&proxy, &key, "s:echo");
        assert_eq!(refused.status, 403, "{}", refused.text());
    }
    assert!(!modern(&proxy, &key, "first", "s:echo"));
    assert!(!modern(&proxy, &key, "second", "s:echo"));
    let called = proxy.cli(&["call", "tool-read", "s:echo"]);
    assert_ne!(called.code, Some(0), "{}", called.stdout);
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "third", "version": "1"}}});
    let opened = proxy.request("POST", "/mcp", &key, hello.to_string().as_bytes());
    let session = opened.header("mcp-session-id").expect("a session").to_owned();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "call_tool_read", "arguments": {"name": "s:echo", "args": {},
            "intent": {"operation_type": "read"}}}});
    let headers = [key[0], ("Mcp-Session-Id", session.as_str())];
    let answer = proxy.request("POST", "/mcp", &headers, call.to_string().as_bytes());
    assert!(error_text(&answer.json()["result"]).starts_with(REFUSED), "{}", answer.text());
    // Anonymous clients are another principal.
    assert!(is_fine(&proxy.client().read("s:echo", json!({}))));
}

// SES-2
#[test]
fn facts_seen_by_a_session_count_for_its_principal_after_the_session_ended() {
    let proxy = proxy(&json!(["no-exfiltration"]));
    let mut client = proxy.client();
    for tool in ["s:read_item", "s:echo"] {
        assert!(is_fine(&client.read(tool, json!({}))), "{tool}");
    }
    let headers = [("Mcp-Session-Id", client.session.as_str())];
    let ended = proxy.request("DELETE", "/mcp", &headers, b"");
    assert!(ended.status < 300, "{}", ended.text());
    assert!(error_text(&proxy.client().read("s:echo", json!({}))).starts_with(REFUSED));
}

/// Sends a request other than a tool call. Returns the text of the error, or an empty text.
fn error(client: &mut Client, method: &str, params: Value) -> String {
    let answer = client.ask(method, params);
    answer["error"]["message"].as_str().unwrap_or_default().to_owned()
}

/// Requests with data chosen by the client, each at a different place in the request.
fn ways_out() -> [(&'static str, Value); 7] {
    [
        ("resources/read", json!({"uri": "mcpproxy://s/test://item/secret"})),
        ("resources/read", json!({"uri": "mcpproxy://s/test://shared", "_meta": {"x": "secret"}})),
        ("resources/subscribe", json!({"uri": "mcpproxy://s/test://item/secret"})),
        ("prompts/get", json!({"name": "s__greet", "arguments": {"who": "secret"}})),
        ("prompts/get", json!({"name": "s__secret"})),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "s__greet"},
                "argument": {"name": "who", "value": "secret"}}),
        ),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/resource", "uri": "mcpproxy://s/test://item/{id}{?q*}"},
                "argument": {"name": "id", "value": "secret"}}),
        ),
    ]
}

// SES-4
#[test]
fn requests_that_carry_data_to_an_open_world_server_are_refused_like_its_tools() {
    let proxy = proxy(&json!(["no-exfiltration"]));
    let mut client = proxy.client();
    for list in ["resources/list", "prompts/list"] {
        client.ask(list, json!({}));
    }
    for tool in ["s:read_item", "s:echo"] {
        assert!(is_fine(&client.read(tool, json!({}))), "{tool}");
    }
    for (method, params) in ways_out() {
        let text = error(&mut client, method, params.clone());
        assert!(text.ends_with("approval timed out after 1s"), "{method} {params}: {text}");
    }
    let listed = json!({"uri": "mcpproxy://s/test://shared"});
    assert_eq!(error(&mut client, "resources/read", listed), "", "its server has listed it");
    let plain = error(&mut client, "prompts/get", json!({"name": "s__greet"}));
    assert!(!plain.contains("approval"), "it carries nothing: {plain}");
}

// SES-4
#[test]
fn forwarded_trace_headers_count_as_outgoing_data() {
    let mut server = stub_stdio(&["--offers", "--only", "read_item,echo,text"]);
    server["capabilities"] = json!({"read_item": {"sensitivity": "private", "open_world": false}});
    let proxy = Proxy::with(json!({"mcpServers": {"s": server}, "approval": {"timeout": "1s"},
        "policy": {"presets": ["no-exfiltration"]},
        "telemetry": {"otlp_endpoint": "http://127.0.0.1:9"}}));
    let mut client = proxy.client();
    client.ask("resources/list", json!({}));
    for tool in ["s:read_item", "s:echo"] {
        assert!(is_fine(&client.read(tool, json!({}))), "{tool}");
    }
    let body = json!({"jsonrpc": "2.0", "id": 9, "method": "resources/read",
        "params": {"uri": "mcpproxy://s/test://shared"}})
    .to_string();
    let session = ("Mcp-Session-Id", client.session.as_str());
    let plain = proxy.request("POST", "/mcp", &[session], body.as_bytes());
    assert!(plain.json()["result"].is_object(), "{}", plain.text());
    let trace = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let headers = [session, trace, ("baggage", "k=secret")];
    let refused = proxy.request("POST", "/mcp", &headers, body.as_bytes());
    let text = refused.json()["error"]["message"].to_string();
    assert!(text.contains("approval timed out after 1s"), "{}", refused.text());
}

// SES-4
#[test]
fn requests_to_a_closed_world_server_are_permitted() {
    let closed = json!({"*": {"open_world": false}});
    let proxy = proxy_with(&json!(["no-exfiltration"]), &closed, None);
    let mut client = proxy.client();
    for tool in ["s:read_item", "s:echo"] {
        assert!(is_fine(&client.read(tool, json!({}))), "{tool}");
    }
    for (method, params) in ways_out() {
        let text = error(&mut client, method, params.clone());
        assert!(!text.contains("approval"), "{method} {params}: {text}");
    }
    assert!(error_text(&client.read("s:echo", json!({}))).starts_with(REFUSED));
}

// SES-1
#[test]
fn any_content_of_a_server_raises_the_facts_seen() {
    let failing = HttpStub::start(&["--offers", "--behavior", "html", "--on", "resources/read"]);
    let proxy = proxy_with(&json!(["no-exfiltration"]), &json!({}), Some(failing.entry()));
    let shared = json!({"uri": "mcpproxy://s/test://shared"});
    let complete = json!({"ref": {"type": "ref/prompt", "name": "s__greet"},
        "argument": {"name": "who", "value": "a"}});
    let broken = json!({"uri": "mcpproxy://h/test://shared"});
    for (name, way) in [
        ("nothing", None),
        ("resource", Some(("resources/read", shared))),
        ("prompt", Some(("prompts/get", json!({"name": "s__greet", "arguments": {"who": "a"}})))),
        ("completion", Some(("completion/complete", complete))),
        ("http_body", Some(("resources/read", broken))),
    ] {
        let made = proxy.cli(&["token", "create", name, "--json"]);
        let bearer = format!("Bearer {}", made.json()["token"].as_str().unwrap());
        let headers = [("Authorization", bearer.as_str())];
        assert!(modern(&proxy, &headers, "c", "s:read_item"), "{name}");
        let is_seen = way.is_some();
        if let Some((method, params)) = way {
            let answer = ask_modern(&proxy, "/mcp", method, params, &headers).text();
            assert!(!answer.contains("approval"), "{name}: {answer}");
            assert_eq!(answer.contains("Please sign in"), name == "http_body", "{answer}");
        }
        assert_eq!(modern(&proxy, &headers, "c", "s:echo"), !is_seen, "{name}");
    }
}

// SES-3
#[test]
fn configured_sensitivity_applies_to_all_items_of_a_server() {
    let private = json!({"*": {"sensitivity": "private"}});
    let proxy = proxy_with(&json!(["no-exfiltration"]), &private, None);
    let mut client = proxy.client();
    client.ask("resources/list", json!({}));
    assert_eq!(
        error(&mut client, "resources/read", json!({"uri": "mcpproxy://s/test://shared"})),
        ""
    );
    assert!(error_text(&client.read("s:echo", json!({}))).starts_with(REFUSED));
}

// SES-5
#[test]
fn preset_is_off_until_it_is_configured() {
    let proxy = proxy(&json!([]));
    let mut client = proxy.client();
    for tool in ["read_item", "echo", "echo"] {
        assert!(is_fine(&client.read(&format!("s:{tool}"), json!({}))), "{tool}");
    }
}
