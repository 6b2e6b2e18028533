//! Changes while a request waits or a stream is open: rules, tokens and time limits differ at the end of the wait.

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Client, Connection, Events, Issuer, PATIENCE, Proxy, Response, Scripted, create_token,
    error_text, stub_stdio, unix_now, until, write_private,
};

fn in_flight(proxy: &Proxy) -> u64 {
    proxy.api("status")["calls"]["in_flight"].as_u64().unwrap()
}

fn arguments(tool: &str) -> Value {
    json!({"name": tool, "args": {}, "intent": {"operation_type": "write"}})
}

/// Begins a call with a token or the API key, in its own session, without reading the response.
fn begin_as(proxy: &Proxy, key: &str, tool: &str) -> Connection {
    let headers = [("X-API-Key", key), ("Accept", "application/json")];
    let mut connection = Connection::open(proxy.port);
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "waits", "version": "1"}}});
    connection.send("POST", "/mcp", &headers, hello.to_string().as_bytes());
    let session = connection.response().header("mcp-session-id").unwrap().to_owned();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "call_tool_write", "arguments": arguments(tool)}});
    let headers = [headers[0], headers[1], ("Mcp-Session-Id", &*session)];
    connection.send("POST", "/mcp", &headers, call.to_string().as_bytes());
    connection
}

fn result(response: &Response) -> Value {
    response.json()["result"].clone()
}

/// A proxy for a server with a serial tool, and with a file of rules that can be changed.
fn serial(server: &Scripted) -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.cedar"), "").unwrap();
    let mut entry = server.entry();
    entry["capabilities"] = json!({"plain_held": {"parallel_safe": false}});
    let config = json!({"mcpServers": {"s": entry}, "policy": {"files": ["rules.cedar"]}});
    Proxy::unready(config, folder).ready()
}

/// Begins two calls to the serial tool: one is at its server, the other waits for a slot.
fn one_out_and_one_waiting(server: &Scripted, proxy: &Proxy) -> (Client, Client) {
    let begun = || {
        let mut client = proxy.client();
        client.begin("write", "s:plain_held", json!({}));
        client
    };
    let first = begun();
    server.wait_for(1);
    let second = begun();
    until("it waits", || (in_flight(proxy) == 2).then_some(()));
    (first, second)
}

fn decision(proxy: &Proxy) -> Value {
    proxy.activity("type=policy_decision").first().expect("a decision").clone()
}

#[test]
fn cap_6_queued_call_is_checked_again_against_the_current_rules() {
    let server = Scripted::start(&["plain_held", "plain_free"]);
    let proxy = serial(&server);
    let (mut first, mut second) = one_out_and_one_waiting(&server, &proxy);
    let rules = r#"@id("closed") @message("come back later")
        forbid (principal == Agent::"anonymous", action, resource in Server::"s");"#;
    std::fs::write(proxy.folder.path().join("rules.cedar"), rules).unwrap();
    let mut other = proxy.client();
    until("the rules are in force", || {
        let answer = other.call("write", "s:plain_free", json!({}));
        (answer["isError"] == true).then_some(())
    });
    server.release(1);
    assert_ne!(result(&first.connection.response())["isError"], true, "it was sent before");
    let text = "Tool 's:plain_held' is not allowed by rule 'closed': come back later";
    assert_eq!(error_text(&result(&second.connection.response())), text);
    assert_eq!(server.arrived()["plain_held"], 1);
    let refused = &proxy.activity("type=tool_call&tool=plain_held&status=rejected")[0];
    assert_eq!(
        (&refused["error_message"], &decision(&proxy)["parent_id"]),
        (&json!(text), &refused["id"])
    );
    assert!(refused["metadata"]["queued_ms"].is_u64(), "{refused}");
    // Its slot is released, and another principal gets it.
    server.release(1);
    let mut admin = begin_as(&proxy, API_KEY, "s:plain_held");
    assert_ne!(result(&admin.response())["isError"], true);
    assert_eq!(server.arrived()["plain_held"], 2);
}

#[test]
fn cap_6_queued_call_is_checked_again_against_the_current_tokens() {
    let server = Scripted::start(&["plain_held"]);
    let proxy = serial(&server);
    let token = create_token(&proxy, &["ci"]);
    let mut first = proxy.client();
    first.begin("write", "s:plain_held", json!({}));
    server.wait_for(1);
    let mut second = begin_as(&proxy, &token, "s:plain_held");
    until("it waits", || (in_flight(&proxy) == 2).then_some(()));
    assert_eq!(proxy.cli(&["token", "revoke", "ci"]).code, Some(0));
    server.release(1);
    assert_ne!(result(&first.connection.response())["isError"], true);
    let text = "The token of token:ci does not count any more: it was revoked, or has expired";
    assert_eq!(error_text(&result(&second.response())), text);
    assert_eq!(server.arrived()["plain_held"], 1);
    assert_eq!(decision(&proxy)["metadata"]["policy"], "scope");
    server.release(1);
    let mut admin = begin_as(&proxy, API_KEY, "s:plain_held");
    assert_ne!(result(&admin.response())["isError"], true);
}

#[test]
fn cap_6_queued_call_is_checked_again_against_the_current_tool() {
    let server = Scripted::start(&["plain_held"]);
    let proxy = serial(&server);
    let (mut first, mut second) = one_out_and_one_waiting(&server, &proxy);
    // The operator marks the tool destructive.
    let path = proxy.folder.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let capability = &mut config["mcpServers"]["s"]["capabilities"]["plain_held"];
    capability["side_effect"] = json!("destructive");
    write_private(&path, &config.to_string());
    until("it is in force", || {
        let tool = proxy.api("tools/s:plain_held");
        (tool["tool"]["capability"]["side_effect"] == "destructive").then_some(())
    });
    server.release(1);
    assert_ne!(result(&first.connection.response())["isError"], true, "it was sent before");
    let refused = result(&second.connection.response());
    let text = error_text(&refused);
    assert!(text.contains("'s:plain_held'") && text.contains("destructive"), "{text}");
    assert_eq!(server.arrived()["plain_held"], 1);
}

#[test]
fn cap_6_queued_call_requests_approval_where_the_current_rules_require_it() {
    let server = Scripted::start(&["plain_held", "plain_free"]);
    let proxy = serial(&server);
    let (mut first, mut second) = one_out_and_one_waiting(&server, &proxy);
    let rules = r#"@id("ask") @requires("approval")
        forbid (principal == Agent::"anonymous", action, resource == Tool::"s:plain_held");
        @id("closed") forbid (principal == Agent::"anonymous", action, resource == Tool::"s:plain_free");"#;
    std::fs::write(proxy.folder.path().join("rules.cedar"), rules).unwrap();
    let mut other = proxy.client();
    until("the rules are in force", || {
        let answer = other.call("write", "s:plain_free", json!({}));
        (answer["isError"] == true).then_some(())
    });
    server.release(1);
    assert_ne!(result(&first.connection.response())["isError"], true);
    let waiting = until("a person is asked", || {
        proxy.api("approvals")["approvals"].as_array().unwrap().first().cloned()
    });
    // The call has no slot while it waits for approval.
    server.release(1);
    let mut admin = begin_as(&proxy, API_KEY, "s:plain_held");
    assert_ne!(result(&admin.response())["isError"], true);
    let path = format!("/api/v1/approvals/{}", waiting["id"].as_str().unwrap());
    let body = br#"{"decision":"approve"}"#;
    assert_eq!(proxy.request("POST", &path, &[("X-API-Key", API_KEY)], body).status, 200);
    server.release(1);
    assert_ne!(result(&second.connection.response())["isError"], true);
    assert_eq!(server.arrived()["plain_held"], 3);
}

#[test]
fn cap_8_call_approved_after_its_token_was_revoked_is_not_sent() {
    let mut s = stub_stdio(&[]);
    s["capabilities"] = json!({"write_item": {"approval": "required"}});
    let proxy = Proxy::start(json!({"s": s}));
    let token = create_token(&proxy, &["ci"]);
    let mut call = begin_as(&proxy, &token, "s:write_item");
    let waiting = until("it waits", || {
        proxy.api("approvals")["approvals"].as_array().unwrap().first().cloned()
    });
    assert_eq!(proxy.cli(&["token", "revoke", "ci"]).code, Some(0));
    let path = format!("/api/v1/approvals/{}", waiting["id"].as_str().unwrap());
    let body = br#"{"decision":"approve"}"#;
    assert_eq!(proxy.request("POST", &path, &[("X-API-Key", API_KEY)], body).status, 200);
    let answer = result(&call.response());
    assert!(error_text(&answer).contains("token:ci does not count any more"), "{answer}");
}

/// A GET stream and a subscription, opened with `bearer`.
fn streams(proxy: &Proxy, bearer: &str) -> [Events; 2] {
    let bearer = format!("Bearer {bearer}");
    let auth = ("Authorization", &*bearer);
    let mut connection = Connection::open(proxy.port);
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "waits", "version": "1"}}});
    connection.send("POST", "/mcp", &[auth], hello.to_string().as_bytes());
    let session = connection.response().header("mcp-session-id").unwrap().to_owned();
    let headers = [auth, ("Mcp-Session-Id", &session)];
    connection.send("GET", "/mcp", &headers, b"");
    let mut listening = Connection::open(proxy.port);
    let listen = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": {
        "notifications": {"toolsListChanged": true}, "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {}}}});
    let headers =
        [auth, ("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "subscriptions/listen")];
    listening.send("POST", "/mcp", &headers, listen.to_string().as_bytes());
    [Events::of(connection), Events::of(listening)]
}

/// Reads until the stream ends. Returns the number of events.
fn to_the_end(events: &mut Events) -> usize {
    std::iter::from_fn(|| events.next()).count()
}

#[test]
fn stream_ends_with_the_jwt_that_opened_it() {
    // Tolerance for clock differences in seconds: a JWT remains valid for this time after its expiry.
    const LEEWAY: u64 = 60;
    let issuer = Issuer::start();
    let proxy = Proxy::with(json!({"mcpServers": {"a": stub_stdio(&[])}, "require_mcp_auth": true,
        "auth": issuer.auth()}));
    until("the keys are known", || {
        let headers = [("Authorization", &*format!("Bearer {}", issuer.token(&issuer.claims())))];
        (proxy.request("POST", "/mcp", &headers, b"{}").status != 401).then_some(())
    });
    let mut claims = issuer.claims();
    claims["exp"] = json!(unix_now() - LEEWAY + 4);
    let streams = streams(&proxy, &issuer.token(&claims));
    let ended = unix_now();
    for mut events in streams {
        assert!(to_the_end(&mut events) <= 2, "nothing but its greeting");
    }
    assert!(unix_now() - ended < PATIENCE.as_secs(), "by itself");
    let late = format!("Bearer {}", issuer.token(&claims));
    assert_eq!(proxy.request("POST", "/mcp", &[("Authorization", &*late)], b"{}").status, 401);
}

#[test]
fn stream_ends_with_the_token_that_opened_it() {
    let proxy = Proxy::start(json!({"a": stub_stdio(&[])}));
    let streams = streams(&proxy, &create_token(&proxy, &["ci"]));
    assert_eq!(proxy.cli(&["token", "revoke", "ci"]).code, Some(0));
    for mut events in streams {
        assert!(to_the_end(&mut events) <= 2, "nothing but its greeting");
    }
}

#[test]
fn wrong_key_is_reported_as_such_where_jwts_are_expected() {
    let issuer = Issuer::start();
    let proxy = Proxy::with(json!({"mcpServers": {"a": stub_stdio(&[])}, "auth": issuer.auth()}));
    let is_reported = |name: &str, value: &str| {
        let response = proxy.request("GET", "/api/v1/tools", &[(name, value)], b"");
        assert_eq!(response.status, 401);
        response.json()["error"].as_str().unwrap().to_owned()
    };
    let wrong = "Invalid API key or token in X-API-Key";
    for key in ["wrong", "0123456789abcdef0123456789abcdef", &API_KEY[1..]] {
        assert_eq!(is_reported("X-API-Key", key), wrong, "regardless of similar keys");
    }
    assert_eq!(
        is_reported("X-API-Key", "mcpp_x"),
        "Token is malformed: send it whole, as `mcpproxy token create NAME` printed it"
    );
    let no_jwt = "Bearer token is not a JWT: it does not have three parts";
    assert_eq!(is_reported("Authorization", "Bearer wrong"), no_jwt);
}

/// Filters that are accepted when a client of the stateless revision subscribes to `uri`.
fn watched(proxy: &Proxy, uri: &str) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": {
        "notifications": {"resourceSubscriptions": [uri]}, "_meta": meta()}});
    let headers = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "subscriptions/listen")];
    let mut connection = Connection::open(proxy.port);
    connection.send("POST", "/mcp", &headers, body.to_string().as_bytes());
    Events::of(connection).message()["params"]["notifications"].clone()
}

fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "watcher", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

#[test]
fn permitted_items_of_a_subscription_depend_on_the_facts_of_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let rules = r#"@id("clean") forbid (principal, action == Action::"read_resource", resource)
        when { context.session.open_world_seen };"#;
    std::fs::write(folder.path().join("rules.cedar"), rules).unwrap();
    let mut s = stub_stdio(&["--offers"]);
    s["capabilities"] = json!({"read_item": {"open_world": true}});
    let config = json!({"mcpServers": {"s": s}, "policy": {"files": ["rules.cedar"]}});
    let proxy = Proxy::unready(config, folder).ready();
    let uri = "mcpproxy://s/test://shared";
    assert_eq!(watched(&proxy, uri), json!({"resourceSubscriptions": [uri]}));
    let arguments = json!({"name": "s:read_item", "intent": {"operation_type": "read"}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "call_tool_read", "arguments": arguments, "_meta": meta()}});
    let headers = [
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "call_tool_read"),
    ];
    let read = proxy.request("POST", "/mcp", &headers, call.to_string().as_bytes());
    assert_ne!(read.json()["result"]["isError"], true, "{}", read.text());
    assert_eq!(watched(&proxy, uri), json!({}), "the same client has seen the open world");
}
