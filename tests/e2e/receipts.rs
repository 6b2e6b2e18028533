//! Receipts: with a record, it can be proven that a kept answer is the one that the server sent.

use serde_json::{Value, json};

use crate::harness::{HttpStub, Proxy, ask_modern, raw_result, stub_stdio, until, write_private};

fn hash(bytes: &[u8]) -> Value {
    blake3::hash(bytes).to_hex().as_str().into()
}

/// The receipt of the last call of a tool.
fn receipt(proxy: &Proxy, server: &str, tool: &str) -> Value {
    let query = format!("type=tool_call&server={server}&tool={tool}");
    proxy.activity(&query)[0]["metadata"]["receipt"].clone()
}

/// A server in every mode, over both transports.
fn in_all_modes() -> Proxy {
    let mut servers = json!({});
    for mode in ["off", "warn", "strict"] {
        for (way, mut entry) in [("http", HttpStub::shared().entry()), ("pipe", stub_stdio(&[]))] {
            entry["output_validation"] = json!({"mode": mode});
            servers[format!("{way}-{mode}")] = entry;
        }
    }
    Proxy::with(json!({"mcpServers": servers, "activity": {"receipts": true}}))
}

// RES-4
#[test]
fn receipt_covers_the_bytes_sent_by_the_server_and_received_by_the_client() {
    let proxy = in_all_modes();
    let mut client = proxy.client();
    for (tool, args) in [
        ("read_item", json!({})),
        ("odd_spelling", json!({"chunk": 9})),
        ("error_first", json!({})),
        ("records", json!({"size": 300_000, "chunk": 1000})),
    ] {
        let sent = HttpStub::shared().direct(tool, &args);
        for mode in ["off", "warn", "strict"] {
            let server = format!("http-{mode}");
            let got = client.read_raw(&format!("{server}:{tool}"), args.clone()).body;
            let expected = json!({
                "received": hash(sent.trim_ascii()), "delivered": hash(raw_result(&got)),
            });
            assert_eq!(expected["received"], expected["delivered"], "{server}:{tool}");
            assert_eq!(receipt(&proxy, &server, tool), expected, "{server}:{tool}");
            // Over stdio an answer has no line breaks, so the bytes received are the bytes sent.
            let server = format!("pipe-{mode}");
            let got = client.read_raw(&format!("{server}:{tool}"), args.clone()).body;
            let hash = hash(raw_result(&got));
            let expected = json!({"received": hash, "delivered": hash});
            assert_eq!(receipt(&proxy, &server, tool), expected, "{server}:{tool}");
        }
    }
}

#[test]
fn receipt_states_if_the_client_gets_more_than_the_server_sent() {
    let proxy = in_all_modes();
    for mode in ["off", "warn", "strict"] {
        for args in [json!({}), json!({"size": 300_000, "chunk": 1000})] {
            let sent = HttpStub::shared().direct("records", &args);
            let call = json!({"name": format!("http-{mode}__records"), "arguments": args});
            let got = ask_modern(&proxy, "/mcp/all", "tools/call", call, &[]).body;
            let receipt = receipt(&proxy, &format!("http-{mode}"), "records");
            assert_eq!(receipt["received"], hash(sent.trim_ascii()), "{mode}");
            assert_eq!(receipt["delivered"], hash(raw_result(&got)), "{mode}");
            assert_ne!(receipt["received"], receipt["delivered"], "{mode}");
            assert_eq!(receipt["why"], "completed", "{mode}");
        }
    }
}

#[test]
fn receipt_of_a_blocked_result_covers_both_texts_and_an_error_has_none() {
    let proxy = in_all_modes();
    let mut client = proxy.client();
    // One fault is found at the end of the result, the other one earlier.
    for (tool, whole) in [("violate", true), ("too_deep", false)] {
        let sent = HttpStub::shared().direct(tool, &json!({}));
        let got = client.read_raw(&format!("http-strict:{tool}"), json!({})).body;
        let received = if whole { hash(sent.trim_ascii()) } else { Value::Null };
        let expected =
            json!({"received": received, "delivered": hash(raw_result(&got)), "why": "blocked"});
        assert_eq!(receipt(&proxy, "http-strict", tool), expected, "{tool}");
    }
    for tool in ["rpc_error", "no_such_tool"] {
        client.read_raw(&format!("http-strict:{tool}"), json!({}));
        assert_eq!(receipt(&proxy, "http-strict", tool), Value::Null, "{tool}");
    }
}

#[test]
fn receipts_can_be_switched_on_at_run_time() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&[])}, "activity": {"receipts": false},
    }));
    let mut client = proxy.client();
    client.read("s:read_item", json!({}));
    assert_eq!(receipt(&proxy, "s", "read_item"), Value::Null);
    let path = proxy.folder.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    write_private(&path, &text.replace(r#""receipts":false"#, r#""receipts":true"#));
    until("records have receipts", || {
        client.read("s:read_item", json!({}));
        receipt(&proxy, "s", "read_item")["received"].is_string().then_some(())
    });
    let change = &proxy.activity("type=config_change&status=success")[0]["metadata"];
    assert_eq!(change["applied"], json!(["activity.receipts"]), "{change}");
}
