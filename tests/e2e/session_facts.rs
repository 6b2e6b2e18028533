//! What a session has seen, and the ready rule that looks at it.

use serde_json::{Value, json};

use crate::harness::{API_KEY, Client, Proxy, error_text, stub_stdio};

fn proxy(presets: &Value) -> Proxy {
    let mut server = stub_stdio(&["--only", "read_item,echo,text"]);
    server["capabilities"] = json!({
        "read_item": {"sensitivity": "private", "open_world": false},
        "text": {"open_world": false},
        "echo": {"open_world": true},
    });
    let policy = json!({"presets": presets});
    let approval = json!({"timeout": "1s"});
    Proxy::with(json!({"mcpServers": {"s": server}, "policy": policy, "approval": approval}))
}

fn is_fine(result: &Value) -> bool {
    result["isError"] != true
}

/// Nobody approves here what the rule leaves to a person.
const REFUSED: &str = "Tool 's:echo': approval timed out after 1s";

#[test]
fn after_private_data_and_open_world_content_nothing_goes_out_to_the_open_world() {
    let proxy = proxy(&json!(["no-exfiltration"]));
    let (mut one, mut other) = (proxy.client(), proxy.client());
    let ask = |client: &mut Client, tool: &str| client.read(&format!("s:{tool}"), json!({}));
    assert!(is_fine(&ask(&mut one, "read_item")), "private data alone");
    assert!(is_fine(&ask(&mut one, "echo")), "the open world has not been heard yet");
    let result = ask(&mut one, "echo");
    assert!(error_text(&result).starts_with(REFUSED), "{result}");
    assert!(is_fine(&ask(&mut one, "text")), "what goes nowhere");
    assert!(
        is_fine(&ask(&mut other, "echo")) && is_fine(&ask(&mut other, "echo")),
        "another session"
    );
    let decision = &proxy.activity("type=policy_decision")[0];
    assert_eq!(decision["metadata"]["policy"], "approval");
    assert_eq!(proxy.activity("type=tool_call&status=rejected").len(), 1);
}

#[test]
fn what_an_intent_states_counts_for_its_call_and_those_after_it() {
    let proxy = proxy(&json!(["no-exfiltration"]));
    let mut client = proxy.client();
    assert!(is_fine(&client.read("s:echo", json!({}))));
    let intent = json!({"operation_type": "read", "data_sensitivity": "private"});
    let private = |tool: &str| json!({"name": tool, "args": {}, "intent": intent});
    let result = client.tool("call_tool_read", private("s:echo"));
    assert!(error_text(&result).starts_with(REFUSED), "{result}");
    assert!(is_fine(&client.read("s:echo", json!({}))), "it did not go out, so nothing was seen");
    assert!(is_fine(&client.tool("call_tool_read", private("s:text"))));
    assert!(error_text(&client.read("s:echo", json!({}))).starts_with(REFUSED));
}

#[test]
fn without_a_session_it_is_the_principal_and_the_client() {
    let proxy = proxy(&json!(["no-exfiltration"]));
    let call = |tool: &str| {
        let body = json!({"tool_name": "call_tool_read", "arguments": {"name": tool, "args": {}},
            "intent": {"operation_type": "read"}});
        let headers = [("X-API-Key", API_KEY)];
        proxy.request("POST", "/api/v1/tools/call", &headers, body.to_string().as_bytes())
    };
    assert_eq!([call("s:read_item"), call("s:echo")].map(|it| it.status), [200, 200]);
    // Each request may be another worker's.
    for _ in 0..8 {
        let refused = call("s:echo");
        assert_eq!(refused.status, 403, "{}", refused.text());
    }
    assert!(is_fine(&proxy.client().read("s:echo", json!({}))), "a session has its own");
}

#[test]
fn the_rule_is_off_until_it_is_named() {
    let proxy = proxy(&json!([]));
    let mut client = proxy.client();
    for tool in ["read_item", "echo", "echo"] {
        assert!(is_fine(&client.read(&format!("s:{tool}"), json!({}))), "{tool}");
    }
}
