//! Limits, serial tools and the breaker, as seen by agents and operators.

use serde_json::{Value, json};

use crate::harness::{API_KEY, Client, Proxy, Response, Scripted, error_text, stub_stdio, until};

fn rest_call(proxy: &Proxy, tool: &str) -> Response {
    let body = json!({"tool_name": "call_tool_read", "arguments": {"name": tool, "args": {}},
        "intent": {"operation_type": "read"}});
    let headers = [("X-API-Key", API_KEY)];
    proxy.request("POST", "/api/v1/tools/call", &headers, body.to_string().as_bytes())
}

fn in_flight(proxy: &Proxy) -> u64 {
    proxy.api("status")["calls"]["in_flight"].as_u64().unwrap()
}

fn with_serial(server: &Scripted, limits: &Value) -> Proxy {
    let mut entry = server.entry();
    entry["capabilities"] = json!({"plain_held": {"parallel_safe": false}});
    Proxy::with(json!({"mcpServers": {"s": entry}, "limits": limits}))
}

/// Begins a call in its own session, without reading the response.
fn begin(proxy: &Proxy, tool: &str, args: Value) -> Client {
    let mut client = proxy.client();
    client.begin("write", tool, args);
    client
}

// LIM-1
#[test]
fn call_over_the_rate_limit_is_refused_with_retry_time_at_every_entry_point() {
    let limits = json!({"tools": {"s:read_*": {"rate_per_minute": 2}}});
    let servers = json!({"s": stub_stdio(&["--only", "read_item,echo"])});
    let proxy = Proxy::with(json!({"mcpServers": servers, "limits": limits}));
    for _ in 0..2 {
        assert_eq!(rest_call(&proxy, "s:read_item").status, 200);
    }
    let refused = rest_call(&proxy, "s:read_item");
    assert_eq!(refused.status, 429, "{}", refused.text());
    let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&after), "{after}");
    let text = refused.json()["error"].as_str().unwrap().to_owned();
    let expected = "Too many calls to 's:read_item': limit 2 per minute, retry in ";
    assert!(text.starts_with(expected), "{text}");
    // A record is stored after the end of the reply. The record of the previous call may be stored later than this one,
    // because another thread served that call.
    let rejected = proxy.activity("type=tool_call&status=rejected");
    let [call] = &rejected[..] else { panic!("{rejected:?}") };
    let decision = &proxy.activity("type=policy_decision")[0];
    assert_eq!((&decision["status"], &decision["parent_id"]), (&json!("blocked"), &call["id"]));
    assert_eq!(decision["metadata"]["policy"], "limit");
    // Another principal has its own limit, and another tool has none.
    let mut client = proxy.client();
    for _ in 0..2 {
        assert_eq!(client.read("s:read_item", json!({}))["structuredContent"]["value"], 7);
    }
    let result = client.read("s:read_item", json!({}));
    assert!(error_text(&result).starts_with(expected), "{result}");
    assert_ne!(client.read("s:echo", json!({}))["isError"], true);
}

#[test]
fn cap_6_calls_to_a_serial_tool_run_one_after_another_in_order_of_arrival() {
    let server = Scripted::start(&["plain_held", "plain_free"]);
    let proxy = with_serial(&server, &json!({"tools": {"s:plain_held": {"queue": 3}}}));
    let mut clients = Vec::new();
    for n in 0..4 {
        clients.push(begin(&proxy, "s:plain_held", json!({"n": n})));
        until("the call is under way", || (in_flight(&proxy) == n + 1).then_some(()));
    }
    server.wait_for(1);
    let full = proxy.client().call("write", "s:plain_held", json!({}));
    let text = "Too many calls to 's:plain_held' at a time: limit 1, queue 3";
    assert_eq!(error_text(&full), text);
    let mut other = proxy.client();
    assert_ne!(other.call("write", "s:plain_free", json!({}))["isError"], true);
    server.release(4);
    for client in &mut clients {
        assert_eq!(client.connection.response().status, 200);
    }
    let order: Vec<Value> = server.arguments("plain_held");
    assert_eq!(order, (0..4).map(|n| json!({"n": n})).collect::<Vec<_>>());
    assert_eq!(server.most_held(), 1);
    let queued = proxy.activity("tool=plain_held&status=success");
    let waits = queued.iter().filter(|record| record["metadata"]["queued_ms"].is_u64()).count();
    assert_eq!((queued.len(), waits), (4, 3), "each wait is recorded");
    for record in &queued {
        let (whole, ours) = (&record["duration_ms"], &record["overhead_us"]);
        let whole_us = whole.as_f64().unwrap() * 1000.0;
        assert!(ours.as_f64().unwrap() <= whole_us, "{record}");
    }
}

#[test]
fn cap_6_wait_for_a_serial_tool_ends_with_the_calls_timeout() {
    let server = Scripted::start(&["plain_held"]);
    let mut entry = server.entry();
    entry["capabilities"] = json!({"plain_held": {"parallel_safe": false}});
    entry["call_timeout"] = json!("300ms");
    let proxy = Proxy::start(json!({"s": entry}));
    let first = begin(&proxy, "s:plain_held", json!({}));
    server.wait_for(1);
    let mut results: Vec<Client> =
        (0..3).map(|_| begin(&proxy, "s:plain_held", json!({}))).collect();
    // When the first call times out, some calls are sent; no time is left for the others.
    for client in &mut results {
        let text = client.connection.response().text();
        let late = text.contains("at a time: limit 1, queue 256; none was free within ");
        assert!(late || text.contains("no answer within 300ms"), "{text}");
    }
    drop(first);
    until("nothing is left", || (in_flight(&proxy) == 0).then_some(()));
    server.release(10);
    assert_ne!(proxy.client().call("write", "s:plain_held", json!({}))["isError"], true);
}

#[test]
fn cap_6_flood_of_disconnecting_clients_leaves_no_state() {
    let server = Scripted::start(&["plain_held"]);
    let proxy = with_serial(&server, &json!({}));
    let pid = proxy.process.0.id();
    let count = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    let mut before = None;
    for round in 0..4 {
        let mut first = begin(&proxy, "s:plain_held", json!({"first": round}));
        server.wait_for(round + 1);
        let clients: Vec<Client> =
            (0..60).map(|_| begin(&proxy, "s:plain_held", json!({"storm": round}))).collect();
        until("all wait", || (in_flight(&proxy) == 61).then_some(()));
        drop(clients);
        until("all have ended", || (in_flight(&proxy) == 1).then_some(()));
        server.release(1);
        assert_eq!(first.connection.response().status, 200);
        drop(first);
        until("nothing is under way", || (in_flight(&proxy) == 0).then_some(()));
        let now = (count("fd"), count("task"));
        // Sockets may be closed a little later than the calls end.
        match before {
            None => before = Some(now),
            Some((files, tasks)) => until("nothing is left", || {
                (count("fd") <= files + 4 && count("task") <= tasks).then_some(())
            }),
        }
    }
    assert!(server.arguments("plain_held").iter().all(|args| args.get("first").is_some()));
    let disconnected = "the client disconnected before the call was sent";
    assert_eq!(proxy.activity("status=error"), Vec::<Value>::new(), "the server made no error");
    let recorded = proxy.activity("status=rejected");
    assert!(
        !recorded.is_empty()
            && recorded.iter().all(|record| record["error_message"] == disconnected),
        "{:?}",
        recorded.first()
    );
}

// LIM-4
#[test]
fn open_breaker_refuses_calls_to_a_failing_server_until_one_call_probes_it() {
    let server = Scripted::start(&["plain_down", "plain_up"]);
    let mut entry = server.entry();
    entry["limits"] = json!({"breaker": {"failures": 3, "open": "1s"}});
    let proxy = Proxy::with(json!({"mcpServers": {"s": entry, "other": stub_stdio(&[])}}));
    server.set_down(true);
    let mut client = proxy.client();
    for _ in 0..3 {
        let text = client.call("write", "s:plain_down", json!({}));
        assert!(error_text(&text).contains("closed the connection without an answer"), "{text}");
    }
    // All calls to the server are refused, and no calls to others.
    for tool in ["s:plain_down", "s:plain_up"] {
        let text = error_text(&client.call("write", tool, json!({}))).to_owned();
        assert_eq!(text, "Server 's' is set aside after 3 failures, next try in 1s");
    }
    assert_eq!(client.read("other:read_item", json!({}))["structuredContent"]["value"], 7);
    let refused = rest_call(&proxy, "other:read_item");
    assert_eq!(refused.status, 200);
    server.set_down(false);
    until("it is tried again", || {
        let result = client.call("write", "s:plain_down", json!({}));
        (result["isError"] != true).then_some(())
    });
    assert_ne!(client.call("write", "s:plain_up", json!({}))["isError"], true);
    let arrived = server.arrived();
    assert_eq!((arrived["plain_down"], arrived["plain_up"]), (4, 1), "refused calls are not sent");
    proxy.assert_logged("circuit breaker opened");
    proxy.assert_logged("circuit breaker closed");
}

#[test]
fn invalid_limit_is_reported_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = crate::harness::configure(
        json!({"limits": {"concurent": 1, "rate_per_minute": 0, "breaker": {"open": "2h"}},
            "policy": {"presets": ["no-exfil"]},
            "mcpServers": {"s": {"command": "true", "limits": {"queue": 5000}}}}),
        folder.path(),
    );
    let mut command = crate::harness::mcpproxy();
    let output =
        crate::harness::Output::of(command.arg("--config").arg(path).args(["config", "check"]));
    let message = format!("{}{}", output.stdout, output.stderr);
    for expected in [
        "limits.rate_per_minute: must be 1 to 60000000, is 0",
        "limits.breaker.open: '2h' is not a duration of at most 1h",
        "mcpServers.s.limits.queue: must be 0 to 4096, is 5000",
        "unknown key 'limits.concurent' is ignored (did you mean 'concurrent'?)",
        "policy.presets[0]",
    ] {
        assert!(message.contains(expected), "{expected}\n{message}");
    }
}
