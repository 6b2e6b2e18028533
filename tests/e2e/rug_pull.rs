//! A server that changes the annotations of a tool: the change is reported with both values.

use serde_json::{Value, json};

use crate::harness::{Proxy, error_text, stub_stdio, until};

#[test]
fn hint_withdrawn_by_its_server_is_warned_about_once_with_both_values() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&["--only", "delete_item,read_item,add_tool,flip_hints"])},
    }));
    let mut client = proxy.client();
    assert!(error_text(&client.read("s:delete_item", json!({}))).contains("destructive"));
    for tool in ["s:flip_hints", "s:add_tool"] {
        client.call("write", tool, json!({}));
    }
    let warnings = until("the warning", || {
        let warnings = proxy.activity("type=catalog_change&status=warning");
        (!warnings.is_empty()).then_some(warnings)
    });
    let [warning] = &*warnings else { panic!("{warnings:?}") };
    assert_eq!(
        (&warning["server_name"], &warning["tool_name"]),
        (&json!("s"), &json!("delete_item"))
    );
    let text = warning["error_message"].as_str().unwrap();
    for message in ["destructiveHint from true to absent", "side_effect from destructive to read"] {
        assert!(text.contains(message), "{text}");
    }
    let shown = proxy.api(&format!("activity/{}", warning["id"].as_str().unwrap()));
    let members =
        shown["activity"]["metadata"]["members"].as_array().unwrap_or_else(|| panic!("{shown}"));
    for expected in [
        json!({"member": "destructiveHint", "old": true, "new": null}),
        json!({"member": "description", "old": "The stub's delete item", "new": "The stub's harmless"}),
    ] {
        assert!(members.contains(&expected), "{members:?}");
    }
    let change = proxy.activity("type=catalog_change&status=success");
    let of_tool = |it: &&Value| it["metadata"]["changed"] == json!(["delete_item"]);
    let change = change.iter().find(of_tool).unwrap_or_else(|| panic!("{change:?}"));
    assert_eq!(change["metadata"]["differences"][0]["tool"], "delete_item", "{change}");
    proxy.assert_lines_logged(1, |line| line.contains("WARN") && line.contains("destructiveHint"));
}
