//! Rules that change while clients are subscribed to resources (RUL-8).

use std::path::Path;

use serde_json::{Value, json};

use crate::client_state_bounds::{entry, server, uris};
use crate::harness::{Client, Connection, Events, Proxy, stub_stdio, until};
use crate::server_questions::Holder;

const SHARED: &str = "mcpproxy://s/test://shared";
const NOTES: &str = "mcpproxy://s/file:///notes/a%20b.txt";
const OTHER: &str = "mcpproxy://s/test://other";
const UPDATED: &str = "notifications/resources/updated";
const SECRET: &str = r#"@id("secret") @message("ask ann")
    forbid (principal == Agent::"anonymous", action, resource == Resource::"s:test://shared");"#;

/// A proxy for a server that reports a change of a resource upon each subscription.
fn proxy(rules: &str) -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), rules);
    let server = stub_stdio(&["--offers", "--only", "echo"]);
    let config = json!({"mcpServers": {"s": server}, "policy": {"files": ["rules.cedar"]}});
    Proxy::unready(config, folder).ready()
}

fn put(folder: &Path, rules: &str) {
    std::fs::write(folder.join("rules.cedar"), rules).unwrap();
}

/// Standing stream of a session, resumed after the event `after`.
fn listen(proxy: &Proxy, client: &Client, after: Option<&str>) -> Events {
    let mut stream = Connection::open(proxy.port);
    let mut headers = vec![("Mcp-Session-Id", &*client.session), ("Accept", "text/event-stream")];
    headers.extend(after.map(|after| ("Last-Event-ID", after)));
    stream.send("GET", "/mcp", &headers, b"");
    Events::of(stream)
}

/// Makes the server announce a change of the shared resource, by a subscription of a principal to whom the rules do not
/// apply.
fn touch(proxy: &Proxy) {
    let other = Holder::open(proxy, "other", json!({}));
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe",
        "params": {"uri": SHARED}});
    assert_eq!(other.send(&request).response().json()["result"], json!({}));
}

fn subscribe(client: &mut Client, uri: &str) {
    assert_eq!(client.ask("resources/subscribe", json!({"uri": uri}))["result"], json!({}));
}

/// The next update of a resource: id of the event, and URI of the resource.
fn updated(stream: &mut Events) -> (String, String) {
    until("an update", || {
        let event = stream.next().expect("the stream stands");
        let message: Value = serde_json::from_str(&event.data).unwrap_or_default();
        let uri = message["params"]["uri"].as_str().map(str::to_owned);
        (message["method"] == UPDATED).then(|| Some((event.id.unwrap_or_default(), uri?)))?
    })
}

/// The policy decisions, once there are `count` of them.
fn decisions(proxy: &Proxy, count: usize) -> Vec<Value> {
    until("the decisions", || {
        let decided = proxy.activity("type=policy_decision");
        (decided.len() >= count).then_some(decided)
    })
}

fn modern(proxy: &Proxy, uris: &[&str]) -> Events {
    let version = "2026-07-28";
    let meta = json!({"io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "e2e", "version": "1"}});
    let params = json!({"notifications": {"resourceSubscriptions": uris}, "_meta": meta});
    let method = "subscriptions/listen";
    let body = json!({"jsonrpc": "2.0", "id": "raw", "method": method, "params": params});
    let mut connection = Connection::open(proxy.port);
    let headers = [("MCP-Protocol-Version", version), ("Mcp-Method", method)];
    connection.send("POST", "/mcp", &headers, body.to_string().as_bytes());
    let mut events = Events::of(connection);
    assert_eq!(events.message()["params"]["notifications"]["resourceSubscriptions"], json!(uris));
    events
}

#[test]
fn rul_8_rule_that_forbids_a_resource_ends_the_subscriptions_to_it() {
    let proxy = proxy("");
    let (mut one, mut idle) = (proxy.client(), proxy.client());
    let mut standing = listen(&proxy, &one, None);
    subscribe(&mut one, SHARED);
    let (first, uri) = updated(&mut standing);
    assert_eq!(uri, SHARED);
    subscribe(&mut idle, SHARED);
    assert_eq!(updated(&mut standing).1, SHARED);
    // Streams of modern clients: one for the forbidden resource only, and one also for another resource.
    let (mut alone, mut both) = (modern(&proxy, &[SHARED]), modern(&proxy, &[SHARED, NOTES]));
    put(proxy.folder.path(), SECRET);
    let decided = decisions(&proxy, 4);
    for decision in &decided {
        let text = "Resource 's:test://shared' is not allowed by rule 'secret': ask ann";
        for (place, value) in [
            ("/status", json!("blocked")),
            ("/principal", json!("anonymous")),
            ("/server_name", json!("s")),
            ("/tool_name", json!("resources/subscribe")),
            ("/arguments/uri", json!(SHARED)),
            ("/metadata/decision", json!("blocked")),
            ("/metadata/policy", json!("rules")),
            ("/metadata/reason", json!(text)),
            ("/metadata/rules", json!(["secret"])),
        ] {
            assert_eq!(decision.pointer(place), Some(&value), "{decision}");
        }
    }
    let sessions: Vec<_> = decided.iter().map(|it| it["session_id"].clone()).collect();
    assert!(decided.len() == 4 && sessions.contains(&json!(idle.session)), "{sessions:?}");
    proxy.assert_logged("resource subscription revoked");
    // The first stream has no resource left, so it ends with its result.
    let farewell = until("the result", || Some(alone.message()).filter(|it| it["id"] == "raw"));
    assert_eq!(farewell["result"]["resultType"], "complete");
    assert!(alone.next().is_none());
    // The forbidden resource changes, and so does the other one.
    touch(&proxy);
    subscribe(&mut one, NOTES);
    assert_eq!(updated(&mut standing).1, NOTES);
    until("the update of the other resource", || {
        let message = both.message();
        // Updates that were sent before the rule applied may still arrive, but only before the update of the other
        // resource.
        (message["params"]["uri"] == NOTES).then_some(())
    });
    // After a resume the updates that were already sent are not repeated.
    drop(standing);
    assert_eq!(updated(&mut listen(&proxy, &one, Some(&first.replace("-1", "-0")))).1, NOTES);
    let refused = one.ask("resources/subscribe", json!({"uri": SHARED}));
    assert!(refused.to_string().contains("rule 'secret'"), "{refused}");
}

#[test]
fn rul_8_subscription_ends_when_a_rule_begins_to_apply_without_a_change() {
    let proxy = proxy(
        r#"@id("late") forbid (principal == Agent::"anonymous", action == Action::"read_resource",
            resource == Resource::"s:test://shared") when { context.session.calls > 3 };"#,
    );
    let mut one = proxy.client();
    let mut standing = listen(&proxy, &one, None);
    subscribe(&mut one, SHARED);
    assert_eq!(updated(&mut standing).1, SHARED);
    for _ in 0..4 {
        one.ask("resources/read", json!({"uri": NOTES}));
    }
    touch(&proxy);
    subscribe(&mut one, NOTES);
    assert_eq!(updated(&mut standing).1, NOTES);
    assert_eq!(decisions(&proxy, 1)[0]["metadata"]["rules"], json!(["late"]));
}

#[test]
fn rul_8_server_is_unsubscribed_after_the_last_revocation() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "");
    let config = json!({"mcpServers": entry(&server), "policy": {"files": ["rules.cedar"]}});
    let proxy = Proxy::unready(config, folder).ready();
    let (mut one, mut other) = (proxy.client(), proxy.client());
    subscribe(&mut one, "mcpproxy://m/a:x");
    subscribe(&mut other, "mcpproxy://m/a:x");
    subscribe(&mut other, "mcpproxy://m/a:y");
    let rule = r#"forbid (principal, action, resource == Resource::"m:a:x");"#;
    put(proxy.folder.path(), rule);
    until("it is unsubscribed", || {
        (uris(&server, "resources/unsubscribe") == ["a:x"]).then_some(())
    });
    assert_eq!(decisions(&proxy, 2).len(), 2);
    // A change of an unrelated rule ends no subscription.
    put(
        proxy.folder.path(),
        &format!("{rule}\nforbid (principal, action, resource == Prompt::\"m:p\");"),
    );
    until("the new rules", || {
        (proxy.activity("type=config_change&status=success").len() >= 2).then_some(())
    });
    other.ask("resources/unsubscribe", json!({"uri": "mcpproxy://m/a:y"}));
    assert_eq!(uris(&server, "resources/unsubscribe"), ["a:x", "a:y"]);
    assert_eq!(proxy.activity("type=policy_decision").len(), 2);
}

#[test]
fn rul_8_approved_subscription_remains_and_one_without_approval_ends() {
    let rule = |uri: &str| {
        format!(
            "@id(\"asks\") @requires(\"approval\")\n\
             forbid (principal == Agent::\"anonymous\", action, resource == Resource::\"s:{uri}\");\n"
        )
    };
    let proxy = proxy(&rule("test://shared"));
    let mut one = proxy.client();
    let mut standing = listen(&proxy, &one, None);
    subscribe(&mut one, OTHER);
    assert_eq!(updated(&mut standing).1, OTHER);
    let params = json!({"jsonrpc": "2.0", "id": "s", "method": "resources/subscribe",
        "params": {"uri": SHARED}});
    let headers = [("Mcp-Session-Id", &*one.session), ("Accept", "application/json")];
    let mut asking = Connection::open(proxy.port);
    asking.send("POST", "/mcp", &headers, params.to_string().as_bytes());
    let waiting = until("it waits", || {
        proxy.api("approvals")["approvals"].as_array().unwrap().first().cloned()
    });
    let approved = proxy.cli(&["approvals", "approve", waiting["id"].as_str().unwrap()]);
    assert_eq!(approved.code, Some(0), "{}", approved.stderr);
    assert_eq!(asking.response().json()["result"], json!({}));
    assert_eq!(updated(&mut standing).1, SHARED);
    put(
        proxy.folder.path(),
        &(rule("test://shared") + &rule("test://other").replace("asks", "also")),
    );
    let decided = decisions(&proxy, 1);
    assert_eq!(decided[0]["arguments"]["uri"], OTHER, "{decided:?}");
    assert_eq!(decided[0]["metadata"]["policy"], "approval");
    // The approved subscription remains: a change of the resource is reported.
    touch(&proxy);
    assert_eq!(updated(&mut standing).1, SHARED);
    assert_eq!(proxy.activity("type=policy_decision").len(), 1);
}
