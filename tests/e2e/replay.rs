//! `policy replay` over a log that a proxy has written: counted outcomes, and cases that cannot be decided.

use serde_json::{Value, json};

use crate::harness::{API_KEY, Proxy, stub_stdio};

/// Rules in force while the calls are made.
const OLD: &str = r#"
@id("no-deletes") forbid (principal == Agent::"anonymous", action == Action::"destructive", resource in Server::"s");
"#;

/// Rules replayed on the log afterwards.
const NEW: &str = r#"
@id("large") forbid (principal, action == Action::"write", resource == Tool::"s:write_item")
when { context.args has size && context.args.size > 100 };
@id("not-ci") forbid (principal == Agent::"token:ci", action == Action::"read", resource == Tool::"s:read_item");
"#;

/// Number of rounds; each has one call of each kind.
const ROUNDS: u64 = 20;

fn rest(proxy: &Proxy, key: &str, operation: &str, tool: &str, args: &Value) -> u16 {
    let intent = json!({"operation_type": operation});
    let body = json!({"tool_name": format!("call_tool_{operation}"),
        "arguments": {"name": tool, "args": args, "intent": intent}});
    let headers = [("X-API-Key", key)];
    proxy.request("POST", "/api/v1/tools/call", &headers, body.to_string().as_bytes()).status
}

// RUL-6
#[test]
fn effect_of_new_rules_on_a_real_log_is_counted_without_guesses() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("old.cedar"), OLD).unwrap();
    let new = folder.path().join("new.cedar");
    std::fs::write(&new, NEW).unwrap();
    let config = json!({
        "mcpServers": {"s": stub_stdio(&[])}, "policy": {"files": ["old.cedar"]},
        "activity": {"max_payload_bytes": 512},
    });
    let proxy = Proxy::unready(config, folder).ready();
    let made = proxy.cli(&["token", "create", "ci", "--json"]).json();
    let token = made["token"].as_str().unwrap();
    let mut client = proxy.client();
    let long = "x".repeat(2000);
    for round in 0..ROUNDS {
        let write = |size: u64, note: &str| json!({"size": size, "note": note});
        // Newly refused: two kinds of calls, by two principals.
        assert_eq!(rest(&proxy, API_KEY, "write", "s:write_item", &write(101 + round, "")), 200);
        assert_eq!(rest(&proxy, token, "read", "s:read_item", &json!({})), 200);
        // Same outcome as before.
        assert_eq!(rest(&proxy, API_KEY, "write", "s:write_item", &write(100, "")), 200);
        assert_eq!(rest(&proxy, API_KEY, "read", "s:read_item", &json!({})), 200);
        // Newly allowed.
        let refused = client.call("destructive", "s:delete_item", json!({"round": round}));
        assert_eq!(refused["isError"], true, "{refused}");
        // Undecidable: the log has truncated arguments.
        assert_eq!(rest(&proxy, API_KEY, "write", "s:write_item", &write(1, &long)), 200);
        let secret = json!({"size": 101, "password": "hunter2"});
        assert_eq!(rest(&proxy, token, "write", "s:write_item", &secret), 200);
        // Decidable, because no rule depends on the truncated arguments.
        assert_eq!(rest(&proxy, API_KEY, "read", "s:echo", &write(1, &long)), 200);
    }
    let new = proxy.folder.path().join("new.cedar");
    let new = new.to_str().unwrap();
    let replayed = proxy.cli(&["policy", "replay", new, "--since", "1h", "-o", "json"]);
    assert_eq!(replayed.code, Some(0), "{}", replayed.stderr);
    let report = replayed.json();
    let expected = json!({"calls": 8 * ROUNDS, "newly_refused": 2 * ROUNDS, "rule_errors": 0,
        "newly_allowed": ROUNDS, "undecidable": 2 * ROUNDS, "rules": ["large", "no-deletes", "not-ci"]});
    assert_eq!(report["total"], expected, "{report}");
    let because = json!({"arguments cut": ROUNDS, "arguments redacted": ROUNDS});
    assert_eq!(report["undecidable_because"], because, "{report}");
    let rows = report["by_tool_and_principal"].as_array().unwrap();
    let row = |tool: &str, principal: &str| {
        let found = rows.iter().find(|row| row["tool"] == tool && row["principal"] == principal);
        let found = found.unwrap_or_else(|| panic!("{tool} {principal}: {report}"));
        ["calls", "newly_refused", "newly_allowed", "undecidable"]
            .map(|name| found[name].as_u64().unwrap() / ROUNDS)
    };
    assert_eq!(row("s:write_item", "admin"), [3, 1, 0, 1]);
    assert_eq!(row("s:write_item", "token:ci"), [1, 0, 0, 1]);
    assert_eq!(row("s:read_item", "token:ci"), [1, 1, 0, 0]);
    assert_eq!(row("s:read_item", "admin"), [1, 0, 0, 0]);
    assert_eq!(row("s:delete_item", "anonymous"), [1, 0, 1, 0]);
    assert_eq!(row("s:echo", "admin"), [1, 0, 0, 0]);
    assert_eq!(rows.len(), 6, "{report}");
    let shown = proxy.cli(&["policy", "replay", new, "--since", "1h", "-o", "table"]);
    let table = shown.stdout;
    let total =
        format!("{} newly refused, {ROUNDS} newly allowed, {} undecidable", 2 * ROUNDS, 2 * ROUNDS);
    assert!(shown.stderr.contains(&total), "{}", shown.stderr);
    let line = table.lines().find(|line| line.contains("s:delete_item")).unwrap();
    assert!(line.contains("no-deletes"), "{line}");
    // A replay adds nothing to the log.
    assert_eq!(proxy.cli(&["policy", "replay", new, "-o", "json"]).json()["total"], expected);
}
