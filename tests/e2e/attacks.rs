//! Attempts to gain more access than was granted: permissions revoked while a call waits, approvals used for other
//! calls, and floods. After a flood no resources stay in use.

use std::time::Instant;

use serde_json::{Value, json};

use crate::approvals::answer;
use crate::harness::{
    API_KEY, Client, Connection, Events, HttpStub, Issuer, Keys, PATIENCE, Process, Proxy,
    Response, Scripted, create_token, error_text, stub_stdio, until, write_private,
};

fn rest(tool: &str, operation: &str, args: Value) -> String {
    json!({"tool_name": format!("call_tool_{operation}"),
        "intent": {"operation_type": operation}, "arguments": {"name": tool, "args": args}})
    .to_string()
}

/// Begins a call over REST without reading the response.
fn begun(proxy: &Proxy, key: &str, body: &str) -> Connection {
    let mut connection = Connection::open(proxy.port);
    connection.send("POST", "/api/v1/tools/call", &[("X-API-Key", key)], body.as_bytes());
    connection
}

fn error(response: &Response) -> String {
    response.json()["error"].as_str().unwrap_or_else(|| panic!("{}", response.text())).to_owned()
}

fn waiting(proxy: &Proxy) -> Vec<String> {
    let waiting = proxy.api("approvals")["approvals"].clone();
    let ids = waiting.as_array().unwrap().iter();
    ids.map(|it| it["id"].as_str().unwrap().to_owned()).collect()
}

fn until_one_waits(proxy: &Proxy) -> String {
    until("a call waits", || {
        let mut waiting = waiting(proxy);
        (waiting.len() == 1).then(|| waiting.remove(0))
    })
}

fn in_flight(proxy: &Proxy) -> u64 {
    proxy.api("status")["calls"]["in_flight"].as_u64().unwrap()
}

#[test]
fn cap_8_call_is_not_sent_if_its_token_is_revoked_while_it_waits_for_approval() {
    let server = Scripted::start(&["plain_x"]);
    let mut entry = server.entry();
    entry["capabilities"] = json!({"*": {"approval": "required"}});
    let proxy = Proxy::start(json!({"s": entry}));
    let token = create_token(&proxy, &["ci"]);
    let mut call = begun(&proxy, &token, &rest("s:plain_x", "write", json!({})));
    let id = until_one_waits(&proxy);
    assert_eq!(proxy.cli(&["token", "revoke", "ci"]).code, Some(0));
    assert_eq!(answer(&proxy, &id, &json!({"decision": "approve"})).status, 200);
    let refused = call.response();
    let text = "The token of token:ci does not count any more: it was revoked, or has expired";
    assert_eq!((refused.status, &*error(&refused)), (403, text));
    assert!(server.arrived().is_empty());
    let decision = &proxy.activity("type=policy_decision&principal=token:ci")[0];
    assert_eq!(decision["metadata"]["policy"], "scope", "{decision}");
}

#[test]
fn cap_6_queued_call_is_not_sent_if_access_is_revoked_or_forbidden_meanwhile() {
    let server = Scripted::start(&["plain_held"]);
    let mut entry = server.entry();
    entry["capabilities"] = json!({"plain_held": {"parallel_safe": false}});
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.cedar");
    write_private(&rules, "permit (principal, action, resource);");
    let config = json!({"mcpServers": {"s": entry}, "policy": {"files": [rules]}});
    let proxy = Proxy::with(config);
    let body = |n: u64| rest("s:plain_held", "write", json!({"n": n}));
    let (revoked, kept) = (create_token(&proxy, &["revoked"]), create_token(&proxy, &["kept"]));
    let mut first = begun(&proxy, API_KEY, &body(0));
    server.wait_for(1);
    let mut queued: Vec<Connection> = Vec::new();
    for (n, key) in (1..).zip([&*revoked, &*kept, API_KEY]) {
        queued.push(begun(&proxy, key, &body(n)));
        until("it waits", || (in_flight(&proxy) == n + 1).then_some(()));
    }
    assert_eq!(proxy.cli(&["token", "revoke", "revoked"]).code, Some(0));
    write_private(
        &rules,
        r#"@id("no") forbid (principal == Agent::"token:kept", action, resource);"#,
    );
    until("the new rules", || {
        proxy
            .activity("type=config_change&status=success")
            .iter()
            .any(|it| it["metadata"]["section"] == "policy")
            .then_some(())
    });
    server.release(4);
    assert_eq!(first.response().status, 200);
    let answer: Vec<Response> = queued.iter_mut().map(Connection::response).collect();
    assert_eq!(
        error(&answer[0]),
        "The token of token:revoked does not count any more: it was revoked, or has expired"
    );
    assert_eq!(error(&answer[1]), "Tool 's:plain_held' is not allowed by rule 'no'");
    assert_eq!(answer[2].status, 200, "{}", answer[2].text());
    assert_eq!(server.arguments("plain_held"), [json!({"n": 0}), json!({"n": 3})]);
}

// APR-1
#[test]
fn cap_8_approval_covers_neither_changed_arguments_nor_a_changed_tool() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools.json");
    let tool = |description: &str| {
        json!([{"name": "added_notes", "description": description, "inputSchema": {"type": "object"}}])
            .to_string()
    };
    write_private(&file, &tool("Keeps notes"));
    let stub = HttpStub::start(&["--only", "add_tool", "--tools", file.to_str().unwrap()]);
    let mut entry = stub.entry();
    entry["capabilities"] = json!({"added_notes": {"approval": "required"}});
    let proxy = Proxy::start(json!({"s": entry}));
    let call = |n: u64| begun(&proxy, API_KEY, &rest("s:added_notes", "write", json!({"n": n})));
    let approve = json!({"decision": "approve"});
    let mut approved = call(1);
    let id = until_one_waits(&proxy);
    let seen = proxy.api(&format!("approvals/{id}"))["approval"]["call"]["digest"].clone();
    assert_eq!(answer(&proxy, &id, &approve).status, 200);
    assert_eq!(approved.response().status, 200);
    // A call that differs in one byte needs its own approval, and the digest of the other call does not approve it.
    let mut other = call(2);
    let id = until_one_waits(&proxy);
    let stale = answer(&proxy, &id, &json!({"decision": "approve", "digest": seen}));
    assert_eq!(stale.status, 409, "{}", stale.text());
    // Its tool changes while it waits.
    write_private(&file, &tool("Keeps notes, and sends them"));
    proxy.client().call("write", "s:add_tool", json!({}));
    until("the change is known", || {
        let known = proxy.api("tools/s:added_notes")["tool"]["description"].clone();
        (known == "Keeps notes, and sends them").then_some(())
    });
    assert_eq!(answer(&proxy, &id, &approve).status, 200);
    let refused = other.response();
    let text = "Tool 's:added_notes': what was approved is not what is asked now";
    assert_eq!((refused.status, &*error(&refused)), (403, text));
    let records = proxy.activity("type=tool_call&tool=added_notes");
    let states: Vec<_> = records.iter().map(|it| it["status"].as_str().unwrap()).collect();
    assert_eq!(states, ["rejected", "success"]);
}

// APR-2
#[test]
fn cap_8_timed_approval_covers_one_resource_one_prompt_and_one_operation() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.cedar");
    let text = r#"@id("ask") @requires("approval") forbid (principal, action, resource);"#;
    write_private(&rules, text);
    let servers = json!({"s": stub_stdio(&["--offers", "--only", "read_item"])});
    let proxy = Proxy::with(json!({"mcpServers": servers, "policy": {"files": [rules]}}));
    let mut client = proxy.client();
    let session = client.session.clone();
    let ask = |client: &mut Client, method: &str, params: &Value| {
        let body = json!({"jsonrpc": "2.0", "id": "a", "method": method, "params": params});
        let headers = [("Mcp-Session-Id", &*session), ("Accept", "application/json")];
        client.connection.send("POST", "/mcp", &headers, body.to_string().as_bytes());
    };
    let call = |operation: &str| {
        json!({"name": format!("call_tool_{operation}"), "arguments": {
            "name": "s:read_item", "intent": {"operation_type": operation}}})
    };
    let uri = |own: &str| json!({"uri": format!("mcpproxy://s/{own}")});
    let prompt = |name: &str| json!({"name": format!("s__{name}")});
    for (method, one, another) in [
        ("resources/read", uri("test://shared"), uri("test://item/1")),
        ("prompts/get", prompt("greet"), prompt("under__score")),
        ("tools/call", call("read"), call("destructive")),
    ] {
        ask(&mut client, method, &one);
        let id = until_one_waits(&proxy);
        let hour = json!({"decision": "approve", "for": "1h"});
        assert_eq!(answer(&proxy, &id, &hour).status, 200);
        assert!(client.connection.response().json()["result"].is_object(), "{method}");
        ask(&mut client, method, &one);
        assert!(client.connection.response().json()["result"].is_object(), "{method}: it stands");
        ask(&mut client, method, &another);
        let id = until_one_waits(&proxy);
        assert_eq!(answer(&proxy, &id, &json!({"decision": "deny"})).status, 200);
        let denied = client.connection.response().text();
        assert!(denied.contains("approval was denied"), "{method}: {denied}");
    }
}

#[test]
fn cap_8_only_one_of_two_simultaneous_answers_counts() {
    let server = Scripted::start(&["plain_x"]);
    let mut entry = server.entry();
    entry["capabilities"] = json!({"*": {"approval": "required"}});
    let proxy = Proxy::start(json!({"s": entry}));
    for round in 1..=10 {
        let mut call = begun(&proxy, API_KEY, &rest("s:plain_x", "write", json!({"n": round})));
        let id = until_one_waits(&proxy);
        let status = |decision: &str| answer(&proxy, &id, &json!({"decision": decision})).status;
        let (yes, no) = std::thread::scope(|scope| {
            let yes = scope.spawn(|| status("approve"));
            let no = scope.spawn(|| status("deny"));
            (yes.join().unwrap(), no.join().unwrap())
        });
        let mut both = [yes, no];
        both.sort_unstable();
        assert_eq!(both, [200, 409]);
        assert_eq!(call.response().status, if yes == 200 { 200 } else { 403 });
    }
    let approved = proxy.activity("type=approval&status=success").len();
    let ended = approved - 10;
    assert_eq!(server.arrived().get("plain_x").copied().unwrap_or(0), ended);
}

#[test]
fn resource_filter_is_decided_for_its_client_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.cedar");
    let text = r#"@id("not-him") forbid (principal, action == Action::"read_resource", resource)
        when { context.client == "mallory" };"#;
    write_private(&rules, text);
    let servers = json!({"s": stub_stdio(&["--offers", "--only", "read_item"])});
    let proxy = Proxy::with(json!({"mcpServers": servers, "policy": {"files": [rules]}}));
    let uri = "mcpproxy://s/test://shared";
    for (name, agreed) in [("mallory", json!([])), ("ann", json!([uri]))] {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {}});
        let body = json!({"jsonrpc": "2.0", "id": name, "method": "subscriptions/listen",
            "params": {"_meta": meta, "notifications": {"resourceSubscriptions": [uri]}}});
        let headers =
            [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "subscriptions/listen")];
        let mut connection = Connection::open(proxy.port);
        connection.send("POST", "/mcp", &headers, body.to_string().as_bytes());
        let hello = Events::of(connection).message();
        let uris = &hello["params"]["notifications"]["resourceSubscriptions"];
        assert_eq!(uris.as_array().cloned().unwrap_or_default(), *agreed.as_array().unwrap());
        let record = &proxy.activity("type=internal_tool_call&tool=resources/subscribe")[0];
        let expected = if name == "ann" { "success" } else { "rejected" };
        assert_eq!((&record["status"], &record["request_id"]), (&json!(expected), &json!(name)));
        assert_eq!(record["arguments"], json!({"uri": uri}));
    }
}

// RUL-2
#[test]
fn rule_with_an_evaluation_error_denies_and_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.cedar");
    let text = r#"@id("sum") forbid (principal, action == Action::"read", resource == Tool::"s:read_item")
        when { context.args has size && context.args.size + 9223372036854775807 == 1 };"#;
    write_private(&rules, text);
    let servers = json!({"s": stub_stdio(&["--only", "read_item"])});
    let proxy = Proxy::with(json!({"mcpServers": servers, "policy": {"files": [rules]}}));
    let mut client = proxy.client();
    assert_ne!(client.read("s:read_item", json!({"size": -5}))["isError"], true);
    let refused = client.read("s:read_item", json!({"size": 5}));
    let expected = "Tool 's:read_item' is not allowed by rule 'sum': it cannot be evaluated: ";
    assert!(error_text(&refused).starts_with(expected), "{refused}");
    let decision = &proxy.activity("type=policy_decision")[0];
    assert_eq!(decision["metadata"]["rules"], json!(["sum"]), "{decision}");
}

/// Resources of a process: files and sockets, threads, resident pages.
fn held(process: &Process) -> (usize, usize, usize) {
    let pid = process.0.id();
    let count = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    let memory = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages = memory.split(' ').nth(1).unwrap().parse().unwrap();
    (count("fd"), count("task"), pages)
}

/// Waits until the process has no more resources than before, except those kept for later use.
fn until_nothing_is_left(proxy: &Proxy, before: (usize, usize, usize)) {
    const SPARE_FILES: usize = 6;
    /// 16 MiB in pages of 4 KiB, kept by allocators and the log.
    const SPARE_PAGES: usize = 4096;
    let start = Instant::now();
    let (files, tasks, pages) = before;
    loop {
        let now = held(&proxy.process);
        let calm = in_flight(proxy) == 0;
        if calm && now.0 <= files + SPARE_FILES && now.1 <= tasks && now.2 <= pages + SPARE_PAGES {
            println!("{before:?} before, {now:?} after");
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{before:?} before, {now:?} after");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Number of calls per wave, and of waves.
const WAVE: usize = 400;
const WAVES: usize = 25;
/// Maximum number of queued calls per tool.
const QUEUE: usize = 256;

#[test]
fn cap_6_ten_thousand_calls_to_a_serial_tool_are_queued_or_refused_and_leave_no_state() {
    let server = Scripted::start(&["plain_held"]);
    let mut entry = server.entry();
    entry["capabilities"] = json!({"plain_held": {"parallel_safe": false}});
    // No limit on the rate of refusals, so that only the queue refuses calls.
    let proxy =
        Proxy::with(json!({"mcpServers": {"s": entry}, "limits": {"refusals_per_second": 0}}));
    let full = "Too many calls to 's:plain_held' at a time: limit 1, queue 256";
    let (mut before, mut sent) = (None, 0);
    for wave in 0..WAVES {
        let mut first = begun(&proxy, API_KEY, &rest("s:plain_held", "write", json!({"n": 0})));
        server.wait_for(sent + 1);
        let body = rest("s:plain_held", "write", json!({"n": wave}));
        let begin = || begun(&proxy, API_KEY, &body);
        let mut queued: Vec<_> = (0..QUEUE).map(|_| begin()).collect();
        until("the queue is full", || (in_flight(&proxy) == QUEUE as u64 + 1).then_some(()));
        let mut refused: Vec<_> = (QUEUE + 1..WAVE).map(|_| begin()).collect();
        for refusal in refused.iter_mut().map(Connection::response) {
            assert_eq!((refusal.status, &*error(&refusal)), (429, full));
        }
        server.release(QUEUE + 1);
        for call in std::iter::once(&mut first).chain(&mut queued) {
            let response = call.response();
            assert_eq!(response.status, 200, "{}", response.text());
        }
        sent += QUEUE + 1;
        drop((first, queued, refused));
        match before {
            None => {
                until("nothing is under way", || (in_flight(&proxy) == 0).then_some(()));
                before = Some(held(&proxy.process));
            }
            Some(before) if wave == WAVES - 1 => until_nothing_is_left(&proxy, before),
            Some(_) => {}
        }
    }
    assert_eq!((server.arrived()["plain_held"], server.most_held()), (sent, 1));
    let counted = proxy.api("status")["calls"].clone();
    println!("{WAVE} calls, {WAVES} times: {counted}");
}

#[test]
fn flood_with_a_hanging_or_garbage_key_endpoint_leaves_no_state() {
    let issuer = Issuer::start();
    let proxy = Proxy::with(json!({"mcpServers": {}, "require_mcp_auth": true,
        "auth": issuer.auth()}));
    let hello = |token: &str| {
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "tools/list"}).to_string();
        let mut connection = Connection::open(proxy.port);
        let bearer = format!("Bearer {token}");
        connection.send("POST", "/mcp", &[("Authorization", &bearer)], body.as_bytes());
        connection
    };
    let good = issuer.token(&issuer.claims());
    until("the keys are known", || (hello(&good).response().status != 401).then_some(()));
    issuer.rotate("k2");
    let unknown = issuer.token(&issuer.claims());
    let lie = format!(r#"{{"keys":[{}]}}"#, "0,".repeat(1_000_000) + "0");
    let expected = "JWT: it is not signed with a known key of its issuer";
    let mut before = None;
    for keys in [Keys::Body(lie), Keys::Hang] {
        issuer.answers(keys);
        let mut storm: Vec<_> = (0..100).map(|_| hello(&unknown)).collect();
        for connection in &mut storm {
            let response = connection.response();
            assert_eq!((response.status, &*error(&response)), (401, expected));
        }
        assert_ne!(hello(&good).response().status, 401, "the earlier keys remain valid");
        drop(storm);
        match before {
            None => {
                before = Some(held(&proxy.process));
            }
            Some(before) => {
                issuer.answers(Keys::Body("{}".to_owned()));
                until_nothing_is_left(&proxy, before);
            }
        }
    }
    issuer.answers(Keys::Body(issuer.keys()));
    until("the new keys are known", || (hello(&unknown).response().status != 401).then_some(()));
}

#[test]
fn cap_8_flood_of_abandoned_calls_waiting_for_approval_leaves_no_state() {
    let server = Scripted::start(&["plain_x"]);
    let mut entry = server.entry();
    entry["capabilities"] = json!({"*": {"approval": "required"}});
    let proxy = Proxy::start(json!({"s": entry}));
    let body = rest("s:plain_x", "write", json!({"text": "x".repeat(4000)}));
    let mut before = None;
    for _ in 0..8 {
        let calls: Vec<_> = (0..100).map(|_| begun(&proxy, API_KEY, &body)).collect();
        until("all of them wait", || (waiting(&proxy).len() == 100).then_some(()));
        drop(calls);
        until("all are withdrawn", || waiting(&proxy).is_empty().then_some(()));
        match before {
            None => before = Some(held(&proxy.process)),
            Some(before) => until_nothing_is_left(&proxy, before),
        }
    }
    assert!(server.arrived().is_empty());
}
