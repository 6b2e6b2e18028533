//! Calls that wait for a person's approval (CAP-8): every channel of answers, and every way in which a wait ends.
//!
//! Size: one topic, tested for each channel and for each way in which a wait ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::approvals_modern::{states, waiting};
use crate::harness::{
    API_KEY, Client, Connection, Events, Output, Proxy, Response, error_text, mcpproxy, stub_stdio,
    until,
};

const KEY: [(&str, &str); 1] = [("X-API-Key", API_KEY)];

/// A proxy whose tools `write_item` and `delete_item` need approval.
fn proxy_with(approval: Value) -> Proxy {
    let mut s = stub_stdio(&[]);
    s["capabilities"] = json!({
        "write_item": {"approval": "required"}, "delete_item": {"approval": "required"},
    });
    Proxy::with(json!({"mcpServers": {"s": s}, "approval": approval}))
}

fn proxy() -> Proxy {
    proxy_with(json!({}))
}

/// Waits until `count` calls wait for approval, and returns the oldest.
fn until_waiting(proxy: &Proxy, count: usize) -> Value {
    until("calls wait", || {
        let waiting = waiting(proxy);
        (waiting.len() == count).then(|| waiting[0].clone())
    })
}

fn id(approval: &Value) -> String {
    approval["id"].as_str().unwrap().to_owned()
}

/// Answers an approval over REST.
pub(crate) fn answer(proxy: &Proxy, id: &str, body: &Value) -> Response {
    let path = format!("/api/v1/approvals/{id}");
    proxy.request("POST", &path, &KEY, body.to_string().as_bytes())
}

/// Result of the call that `client` has begun.
fn result(client: &mut Client) -> Value {
    client.connection.response().json()["result"].clone()
}

fn begin(client: &mut Client) {
    client.begin("write", "s:write_item", json!({"value": 1}));
}

fn session_stream(proxy: &Proxy, capabilities: Value) -> (String, Connection) {
    let mut connection = Connection::open(proxy.port);
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": capabilities,
        "clientInfo": {"name": "asks", "version": "1"}}});
    connection.send("POST", "/mcp", &[], hello.to_string().as_bytes());
    let session = connection.response().header("mcp-session-id").unwrap().to_owned();
    (session, connection)
}

/// Begins a call of `write_item` over a stream.
fn streamed(session: &str, mut connection: Connection, meta: &Value) -> Events {
    let arguments = json!({"name": "s:write_item", "args": {"value": 1},
        "intent": {"operation_type": "write", "reason": "because"}});
    let body = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": {
        "name": "call_tool_write", "arguments": arguments, "_meta": meta}});
    connection.send("POST", "/mcp", &[("Mcp-Session-Id", session)], body.to_string().as_bytes());
    Events::of(connection)
}

fn post(proxy: &Proxy, session: &str, body: &Value) -> u16 {
    let headers = [("Mcp-Session-Id", session)];
    proxy.request("POST", "/mcp", &headers, body.to_string().as_bytes()).status
}

// APR-6
#[test]
fn arguments_with_keys_that_differ_only_by_case_cannot_be_approved() {
    let mut s = stub_stdio(&[]);
    s["capabilities"] = json!({"write_item": {"approval": "required"}});
    let proxy = Proxy::with(json!({"mcpServers": {"s": s}, "input_validation": {"mode": "off"}}));
    let mut client = proxy.client();
    for args in [
        json!({"value": 1, "Value": 2}),
        json!({"value": 1, "other": [{"a": 1, "A": 2}]}),
        json!({"Behavior": "normal"}),
        json!({"value": 1, "s": {"s": 1, "\u{17f}": 2}}),
    ] {
        let refused = client.call("write", "s:write_item", args.clone());
        let text = "Tool 's:write_item': approval cannot be asked for arguments with keys that \
                    differ only by case from each other, or from parameters of the tool: write \
                    each as the tool's schema does";
        assert_eq!(error_text(&refused), text, "{args}");
    }
    assert_eq!(waiting(&proxy), Vec::<Value>::new(), "no approval was asked for");
}

#[test]
fn cap_8_call_waits_until_approved_and_is_recorded_completely() {
    let proxy = proxy();
    let mut client = proxy.client();
    begin(&mut client);
    let approval = until_waiting(&proxy, 1);
    let explained = ["policy", "explain", "--as", "anonymous", "--tool", "s:write_item"];
    let explained = proxy.cli(&explained).stdout;
    assert!(explained.starts_with("allow: after a person's approval"), "{explained}");
    let call = &approval["call"];
    assert_eq!(approval["access"], "s:write_item");
    assert_eq!(
        (&call["operation"], &call["arguments"]),
        (&json!("write"), &json!(r#"{"value":1}"#))
    );
    assert_eq!((&call["principal"], &call["destructive"]), (&json!("anonymous"), &json!(false)));
    assert_eq!(proxy.api("status")["load"]["approvals"], 1);
    let id = id(&approval);
    assert_eq!(proxy.api(&format!("approvals/{id}"))["approval"], approval);
    let body = json!({"decision": "approve", "digest": call["digest"]});
    let decided = answer(&proxy, &id, &body).json()["data"]["approval"].clone();
    assert_eq!((&decided["state"], &decided["by"]), (&json!("approved"), &json!("admin")));
    assert_eq!(result(&mut client)["structuredContent"]["value"], 7);
    let [record] = &client.records(&proxy, "type=tool_call")[..] else { panic!("one record") };
    assert_eq!(
        (&record["status"], &record["metadata"]["approval"]),
        (&json!("success"), &json!(id))
    );
    let by_api = json!({"state": "approved", "by": "admin", "door": "api"});
    assert_eq!(record["metadata"]["approval_answer"], by_api);
    // The time of the wait is part of neither the overhead nor the latency; it has a member of its own in the record.
    let took = record["duration_ms"].as_f64().unwrap();
    let overhead = record["overhead_us"].as_f64().unwrap() / 1000.0;
    assert!(overhead <= took && record["metadata"]["approval_wait_ms"].is_u64(), "{record}");
    let [ended, waited] = &proxy.activity("type=approval")[..] else { panic!("two records") };
    assert_eq!(waited["metadata"]["state"], "waiting");
    assert_eq!(waited["arguments"], json!({"value": 1}));
    let metadata = json!({"approval": id, "state": "approved", "by": "admin", "door": "api",
        "for": "once"});
    for (name, value) in metadata.as_object().unwrap() {
        assert_eq!(&ended["metadata"][name], value, "{ended}");
    }
    for about in [ended, waited] {
        assert_eq!(
            (&about["server_name"], &about["tool_name"]),
            (&json!("s"), &json!("write_item"))
        );
        assert_eq!(about["request_id"], record["request_id"]);
        assert_eq!(about["session_id"], record["session_id"]);
    }
    // An approval is valid for one call, so the next call waits again.
    begin(&mut client);
    until_waiting(&proxy, 1);
}

// APR-3
#[test]
fn cap_8_denied_call_reports_it_and_only_the_first_answer_counts() {
    let proxy = proxy();
    let mut client = proxy.client();
    begin(&mut client);
    let id = id(&until_waiting(&proxy, 1));
    assert_eq!(answer(&proxy, &id, &json!({"decision": "deny"})).status, 200);
    let text = "Tool 's:write_item': approval was denied";
    assert_eq!(error_text(&result(&mut client)), text);
    let second = answer(&proxy, &id, &json!({"decision": "approve"}));
    assert_eq!(second.status, 409);
    let expected = format!("Approval {id} is decided already: denied by admin over api");
    assert_eq!(second.json()["error"], expected);
    // Lists show the beginning of an id, which also finds the decision.
    let again = proxy.cli(&["approvals", "approve", &id[..6]]);
    let words = "is decided already: denied by admin over api";
    assert!(again.code == Some(1) && again.stderr.contains(words), "{}", again.stderr);
    let shown = proxy.cli(&["-o", "table", "approvals", "show", &id[..6]]).stdout;
    assert!(shown.contains("denied"), "{shown}");
    assert_eq!(proxy.cli(&["approvals", "show", &id[..3]]).code, Some(1));
    assert_eq!(proxy.api(&format!("approvals/{id}"))["approval"]["state"], "denied");
    let [record] = &client.records(&proxy, "type=tool_call")[..] else { panic!("one record") };
    assert_eq!((&record["status"], &record["error_message"]), (&json!("rejected"), &json!(text)));
    let by_api = json!({"state": "denied", "by": "admin", "door": "api"});
    assert_eq!(record["metadata"]["approval_answer"], by_api);
    let [decision] = &client.records(&proxy, "type=policy_decision")[..] else { panic!("one") };
    assert_eq!(decision["metadata"]["policy"], "approval");
    assert_eq!(decision["status"], "blocked");
    assert_eq!(states(&proxy), ["waiting", "denied"]);
}

#[test]
fn cap_8_answers_to_expired_unknown_or_malformed_approvals_are_rejected() {
    let proxy = proxy();
    let mut client = proxy.client();
    begin(&mut client);
    let id = id(&until_waiting(&proxy, 1));
    let approve = json!({"decision": "approve"});
    assert_eq!(answer(&proxy, "0123456789abcdef", &approve).status, 404);
    let path = format!("/api/v1/approvals/{id}");
    for body in [
        "",
        "{}",
        "[]",
        r#"{"decision":"maybe"}"#,
        r#"{"decision":"approve","decision":"deny"}"#,
        r#"{"decision":"approve","for":"ever"}"#,
        r#"{"decision":"approve","until":"1h"}"#,
        r#"{"decision":"approve","digest":"00"}"#,
    ] {
        assert_eq!(proxy.request("POST", &path, &KEY, body.as_bytes()).status, 400, "{body}");
    }
    let other = json!({"decision": "approve", "digest": "0".repeat(64)});
    assert_eq!(answer(&proxy, &id, &other).status, 409);
    let long = json!({"decision": "approve", "for": "25h"});
    assert_eq!(answer(&proxy, &id, &long).status, 409);
    assert_eq!(proxy.request("POST", &path, &[], approve.to_string().as_bytes()).status, 401);
    assert_eq!(proxy.request("DELETE", &path, &KEY, b"").status, 405);
    assert_eq!(waiting(&proxy).len(), 1, "it still waits");
}

#[test]
fn cap_8_unanswered_call_times_out() {
    let proxy = proxy_with(json!({"timeout": "200ms"}));
    let mut client = proxy.client();
    let refused = client.call("write", "s:write_item", json!({}));
    assert_eq!(error_text(&refused), "Tool 's:write_item': approval timed out after 200ms");
    assert_eq!(states(&proxy), ["waiting", "timed_out"]);
    assert!(waiting(&proxy).is_empty());
    // Over REST the refusal has the status of a forbidden call.
    let arguments = json!({"name": "s:write_item", "intent": {"operation_type": "write"}});
    let body = json!({"tool_name": "call_tool_write", "arguments": arguments});
    let response = proxy.request("POST", "/api/v1/tools/call", &KEY, body.to_string().as_bytes());
    assert_eq!(response.status, 403, "{}", response.text());
}

#[test]
fn cap_8_client_that_disconnects_or_cancels_withdraws_its_call() {
    let proxy = proxy();
    let mut leaving = proxy.client();
    begin(&mut leaving);
    let id = id(&until_waiting(&proxy, 1));
    drop(leaving);
    until("it is withdrawn", || waiting(&proxy).is_empty().then_some(()));
    let late = answer(&proxy, &id, &json!({"decision": "approve"}));
    assert_eq!(late.status, 409);
    assert!(late.text().contains("the client has gone"), "{}", late.text());
    let mut client = proxy.client();
    begin(&mut client);
    until_waiting(&proxy, 1);
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": "raw"}});
    assert_eq!(post(&proxy, &client.session, &cancel), 202);
    let canceled = client.connection.response().json();
    assert_eq!(canceled["error"]["message"], "the client cancelled the request");
    until("it is withdrawn", || waiting(&proxy).is_empty().then_some(()));
    assert_eq!(states(&proxy), ["waiting", "withdrawn", "waiting", "withdrawn"]);
    let [record] = &client.records(&proxy, "type=tool_call")[..] else { panic!("one record") };
    assert_eq!(record["error_message"], "the client cancelled the call");
    let calls = proxy.activity("type=tool_call");
    assert!(calls.iter().all(|call| call["status"] == "rejected"), "no error of s: {calls:?}");
    assert_eq!(client.read("s:stats", json!({}))["structuredContent"]["calls"], 1, "none was sent");
}

// APR-2
#[test]
fn cap_8_standing_approval_covers_a_session_or_a_period_until_it_is_revoked() {
    let proxy = proxy();
    let mut client = proxy.client();
    begin(&mut client);
    let first = id(&until_waiting(&proxy, 1));
    let session = json!({"decision": "approve", "for": "session"});
    assert_eq!(answer(&proxy, &first, &session).status, 200);
    assert_eq!(result(&mut client)["structuredContent"]["value"], 7);
    // A call with other arguments, but of the same tool in the same session.
    let again = client.call("write", "s:write_item", json!({"value": 2}));
    assert_eq!(again["structuredContent"]["value"], 7);
    let records = client.records(&proxy, "type=tool_call");
    assert_eq!(records[0]["metadata"]["approval"], json!(first));
    let by_api = json!({"state": "approved", "by": "admin", "door": "api"});
    assert_eq!(records[1]["metadata"]["approval_answer"], by_api);
    let covered = json!({"state": "approved", "by": "admin", "door": "api", "standing": true});
    assert_eq!(records[0]["metadata"]["approval_answer"], covered);
    let standing = proxy.api("approvals")["standing"][0].clone();
    assert_eq!((&standing["id"], &standing["session_id"]), (&json!(first), &json!(client.session)));
    let mut other = proxy.client();
    begin(&mut other);
    let second = id(&until_waiting(&proxy, 1));
    let out = proxy.cli(&["approvals", "approve", &second, "--for", "1h"]);
    assert_eq!(
        (out.code, out.stdout.trim()),
        (Some(0), "approved for 1h: every call of s:write_item by anonymous, with any arguments"),
        "{}",
        out.stderr
    );
    assert_eq!(result(&mut other)["structuredContent"]["value"], 7);
    let mut third = proxy.client();
    let admitted = third.call("write", "s:write_item", json!({}));
    assert_eq!(admitted["structuredContent"]["value"], 7);
    // It does not cover another tool.
    third.begin("destructive", "s:delete_item", json!({}));
    until_waiting(&proxy, 1);
    // A revoked approval no longer applies.
    assert_eq!(proxy.cli(&["approvals", "deny", &second]).code, Some(0));
    let revoked = until("the end is recorded", || {
        proxy.activity("type=approval").into_iter().find(|it| it["metadata"]["state"] == "revoked")
    });
    let summary = ["server_name", "tool_name", "source"].map(|field| &revoked[field]);
    assert_eq!(summary, ["s", "write_item", "cli"]);
    let summary = ["approval", "by", "door"].map(|field| &revoked["metadata"][field]);
    assert_eq!(summary, [second.as_str(), "admin", "cli"]);
    let mut fourth = proxy.client();
    begin(&mut fourth);
    until_waiting(&proxy, 2);
}

#[test]
fn cap_8_command_line_lists_shows_and_answers_approvals() {
    let proxy = proxy();
    let out = proxy.cli(&["approvals", "list"]);
    assert_eq!((out.code, &*out.stdout, out.stderr.trim()), (Some(0), "", "No pending calls."));
    let mut client = proxy.client();
    client.begin("destructive", "s:delete_item", json!({"path": "/a\u{202e}b"}));
    let id = id(&until_waiting(&proxy, 1));
    let recorded = proxy.cli(&["activity", "list", "--type", "approval"]).stdout;
    assert!(recorded.contains("  waiting  ") && !recorded.contains("success"), "{recorded}");
    let listed = proxy.cli(&["approvals", "list"]).stdout;
    assert!(listed.contains(&id) && listed.contains("s:delete_item"), "{listed}");
    let shown = proxy.cli(&["approvals", "show", &id]).stdout;
    assert!(shown.contains("destructive") && shown.contains("/a\\u{202e}b"), "{shown}");
    let json = proxy.cli(&["--json", "approvals", "list"]).json();
    assert_eq!(json["approvals"][0]["id"], json!(id));
    let approved = proxy.cli(&["approvals", "approve", &id]);
    let expected = "approved once for anonymous: s:delete_item {\"path\":\"/a\\u{202e}b\"}";
    assert_eq!((approved.code, approved.stdout.trim()), (Some(0), expected));
    assert_eq!(result(&mut client)["structuredContent"]["value"], 7);
    let shown = proxy.cli(&["approvals", "show", &id]).stdout;
    assert!(shown.contains(&format!("mcpproxy activity list --text {id}")), "{shown}");
    let found = proxy.cli(&["activity", "list", "--text", &id]).stdout;
    assert!(found.contains("delete_item"), "{found}");
    assert_eq!(proxy.activity("type=approval")[0]["metadata"]["door"], "cli");
    // A row has the same reason under every filter, and the record names the person.
    let list = |more: &[&str]| proxy.cli(&[&["activity", "list"][..], more].concat()).stdout;
    for filter in
        [&[][..], &["--type", "tool_call"], &["--text", "\"path\""], &["--status", "success"]]
    {
        let listed = list(filter);
        let of_call = |it: &&str| it.contains("tool_call") && it.contains("delete_item");
        let row = listed.lines().find(of_call);
        assert!(row.is_some_and(|row| row.ends_with("approved by admin")), "{filter:?}: {listed}");
    }
    let call = proxy.activity("type=tool_call")[0]["id"].as_str().unwrap().to_owned();
    let shown = proxy.cli(&["activity", "show", &call]).stdout;
    assert!(shown.contains("approved by admin over cli after "), "{shown}");
    // The record of the wait names its answer, which is a later record.
    let approvals = proxy.activity("type=approval");
    let waiting = approvals.iter().find(|it| it["metadata"]["state"] == "waiting").unwrap();
    let shown = proxy.cli(&["activity", "show", &waiting["seq"].to_string()]).stdout;
    let answer = format!("(activity show {})", approvals[0]["seq"]);
    assert!(shown.contains("approved by admin") && shown.contains(&answer), "{shown}");
    let again = proxy.cli(&["approvals", "deny", &id]);
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("approved by admin over cli"), "{}", again.stderr);
    for (decision, id) in [("show", "0123456789abcdef"), ("approve", "zzzz"), ("deny", "zzzz")] {
        let unknown = proxy.cli(&["approvals", decision, id]);
        let listing = "`mcpproxy approvals list` lists the ids";
        let expected = format!("error: Approval not found: '{id}'; {listing}");
        assert_eq!((unknown.code, unknown.stderr.trim()), (Some(1), &*expected));
    }
}

#[test]
fn cap_8_cli_call_prints_the_id_of_its_pending_approval() {
    let proxy = proxy();
    let mut command = proxy.command(&["call", "tool-write", "s:write_item", "--reason", "because"]);
    let mut call = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(call.stderr.take().unwrap());
    let mut printed = String::new();
    stderr.read_line(&mut printed).unwrap();
    let id = id(&until_waiting(&proxy, 1));
    assert_eq!(
        printed,
        format!("waiting for approval {id}; approve with `mcpproxy approvals approve {id}`\n")
    );
    let listed = proxy.cli(&["approvals", "list"]);
    assert!(
        listed.stdout.contains("REASON") && listed.stdout.contains("because"),
        "{}",
        listed.stdout
    );
    assert_eq!(proxy.cli(&["approvals", "approve", &id]).code, Some(0));
    assert_eq!(call.wait().unwrap().code(), Some(0));
}

#[test]
fn cap_8_call_without_a_running_proxy_is_denied_at_once() {
    let proxy = proxy();
    let folder = proxy.end();
    let config = folder.path().join("config.json");
    let run = |args: &[&str]| {
        let mut command = mcpproxy();
        Output::of(command.arg("--config").arg(&config).args(args))
    };
    let call = run(&["call", "tool-write", "s:write_item"]);
    assert_eq!(call.code, Some(1));
    assert!(call.stderr.contains("nobody can be asked"), "{}", call.stderr);
    assert_eq!(run(&["approvals", "list"]).code, Some(3));
}

// APR-3
#[test]
fn cap_8_shutdown_denies_waiting_calls_at_once() {
    let proxy = proxy();
    let mut client = proxy.client();
    begin(&mut client);
    until_waiting(&proxy, 1);
    let folder = proxy.end();
    let text = "Tool 's:write_item': approval was not given before mcpproxy shut down";
    assert_eq!(error_text(&result(&mut client)), text);
    let config = folder.path().join("config.json");
    let mut command = mcpproxy();
    command.arg("--config").arg(config).args(["--json", "activity", "list", "--type", "approval"]);
    let records = Output::of(&mut command).json();
    assert_eq!(records["activities"][0]["metadata"]["state"], "ended");
}

#[test]
fn cap_8_client_with_a_progress_token_is_notified_that_its_call_waits() {
    let proxy = proxy();
    let (session, connection) = session_stream(&proxy, json!({}));
    let mut events = streamed(&session, connection, &json!({"progressToken": 7}));
    let progress = events.message();
    let id = id(&until_waiting(&proxy, 1));
    assert_eq!(progress["method"], "notifications/progress");
    assert_eq!(progress["params"]["progressToken"], 7);
    assert_eq!(progress["params"]["message"], json!(format!("waits for approval {id}")));
    assert_eq!(answer(&proxy, &id, &json!({"decision": "approve"})).status, 200);
    assert_eq!(events.message()["result"]["structuredContent"]["value"], 7);
}

#[test]
fn cap_8_approval_shows_that_its_client_is_disconnected() {
    let proxy = proxy();
    let (session, connection) = session_stream(&proxy, json!({}));
    let mut events = streamed(&session, connection, &json!({"progressToken": 7}));
    assert_eq!(events.message()["method"], "notifications/progress");
    let before = until_waiting(&proxy, 1);
    assert!(before["call"].get("disconnected").is_none(), "{before}");
    drop(events);
    let since = until("it is reported", || {
        waiting(&proxy)[0]["call"]["disconnected"].as_str().map(str::to_owned)
    });
    assert!(*since >= *before["call"]["since"].as_str().unwrap(), "{since}");
    let listed = proxy.cli(&["-o", "table", "approvals", "list"]).stdout;
    assert!(listed.contains("its client is disconnected"), "{listed}");
    // The client may return for the response, so the call is made.
    let approved = answer(&proxy, &id(&before), &json!({"decision": "approve"}));
    assert_eq!(approved.status, 200);
    until("the call is made", || {
        let records = proxy.activity("type=tool_call&status=success");
        records.iter().any(|it| it["session_id"] == json!(session)).then_some(())
    });
}

#[test]
fn cap_8_client_without_a_progress_token_gets_a_stream_with_keep_alives() {
    let proxy = proxy();
    let (session, connection) = session_stream(&proxy, json!({}));
    // The head of the stream arrives before any message, with an event from which it can be resumed.
    let mut events = streamed(&session, connection, &json!({}));
    assert_eq!(events.next().unwrap().data, "");
    let id = id(&until_waiting(&proxy, 1));
    assert_eq!(answer(&proxy, &id, &json!({"decision": "deny"})).status, 200);
    let text = "Tool 's:write_item': approval was denied";
    assert_eq!(error_text(&events.message()["result"]), text);
}

// APR-4
#[test]
fn cap_8_client_with_elicitation_is_asked_itself() {
    let proxy = proxy_with(json!({"elicitation": true}));
    for (action, expected) in [("accept", None), ("decline", Some("denied"))] {
        let (session, connection) = session_stream(&proxy, json!({"elicitation": {}}));
        let mut events = streamed(&session, connection, &json!({}));
        let asked = events.message();
        assert_eq!(asked["method"], "elicitation/create");
        let message = asked["params"]["message"].as_str().unwrap();
        for part in ["s:write_item", r#"{"value":1}"#, "because", "write"] {
            assert!(message.contains(part), "{message}");
        }
        let reply = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": action}});
        assert_eq!(post(&proxy, &session, &reply), 202);
        let result = events.message()["result"].clone();
        match expected {
            None => assert_eq!(result["structuredContent"]["value"], 7),
            Some(_) => assert!(error_text(&result).ends_with("approval was denied")),
        }
        let ended = &proxy.activity("type=approval")[0]["metadata"];
        assert_eq!((&ended["door"], &ended["by"]), (&json!("elicitation"), &json!("anonymous")));
    }
}

#[test]
fn cap_8_answer_through_another_channel_wins_and_closes_the_clients_dialogue() {
    let proxy = proxy_with(json!({"elicitation": true}));
    let (session, connection) = session_stream(&proxy, json!({"elicitation": {}}));
    let mut events = streamed(&session, connection, &json!({}));
    let asked = events.message();
    // Closing the dialogue is no answer: the call continues to wait.
    let closed = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "cancel"}});
    assert_eq!(post(&proxy, &session, &closed), 202);
    let first = id(&until_waiting(&proxy, 1));
    assert_eq!(answer(&proxy, &first, &json!({"decision": "approve"})).status, 200);
    assert_eq!(events.message()["result"]["structuredContent"]["value"], 7);
    let (session, connection) = session_stream(&proxy, json!({"elicitation": {}}));
    let mut events = streamed(&session, connection, &json!({}));
    let asked = events.message();
    let second = id(&until_waiting(&proxy, 1));
    assert_eq!(answer(&proxy, &second, &json!({"decision": "deny"})).status, 200);
    let canceled = events.message();
    assert_eq!(canceled["method"], "notifications/cancelled");
    assert_eq!(canceled["params"]["requestId"], asked["id"]);
    assert!(error_text(&events.message()["result"]).ends_with("approval was denied"));
    // This answer comes too late and has no effect.
    let late = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}});
    assert_eq!(post(&proxy, &session, &late), 202);
    assert_eq!(states(&proxy), ["waiting", "approved", "waiting", "denied"]);
}

#[test]
fn cap_8_operator_can_exclude_the_client_from_approving_its_own_calls() {
    // By default an anonymous client is not asked either.
    for approval in [json!({"elicitation": false}), json!({})] {
        let proxy = proxy_with(approval);
        let (session, connection) = session_stream(&proxy, json!({"elicitation": {}}));
        let mut events = streamed(&session, connection, &json!({"progressToken": 1}));
        assert_eq!(events.message()["method"], "notifications/progress");
        let id = id(&until_waiting(&proxy, 1));
        assert_eq!(answer(&proxy, &id, &json!({"decision": "deny"})).status, 200);
        assert!(error_text(&events.message()["result"]).ends_with("approval was denied"));
    }
}

// APR-4
#[test]
fn cap_8_token_client_is_asked_only_if_the_operator_allows_it_and_is_named_in_the_record() {
    for (approval, asked) in [(json!({}), false), (json!({"elicitation": true}), true)] {
        let proxy = proxy_with(approval);
        let made = proxy.cli(&["token", "create", "ci", "--json"]).json();
        let authorization = format!("Bearer {}", made["token"].as_str().unwrap());
        let mut connection = Connection::open(proxy.port);
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "asks", "version": "1"}}});
        let headers = [("Authorization", &*authorization)];
        connection.send("POST", "/mcp", &headers, hello.to_string().as_bytes());
        let session = connection.response().header("mcp-session-id").unwrap().to_owned();
        let headers = [("Authorization", &*authorization), ("Mcp-Session-Id", &*session)];
        let body = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": {
            "name": "call_tool_write", "_meta": {"progressToken": 1},
            "arguments": {"name": "s:write_item", "args": {"value": 1}, "intent": {"operation_type": "write"}}}});
        connection.send("POST", "/mcp", &headers, body.to_string().as_bytes());
        let mut events = Events::of(connection);
        let first = events.message();
        assert_eq!(first["method"] == "elicitation/create", asked, "{first}");
        match asked {
            true => {
                let reply =
                    json!({"jsonrpc": "2.0", "id": first["id"], "result": {"action": "accept"}});
                assert_eq!(
                    proxy.request("POST", "/mcp", &headers, reply.to_string().as_bytes()).status,
                    202
                );
            }
            false => {
                let id = id(&until_waiting(&proxy, 1));
                assert_eq!(answer(&proxy, &id, &json!({"decision": "approve"})).status, 200);
            }
        }
        until("the call is sent", || {
            let sent = proxy.activity("type=tool_call&status=success&tool=write_item");
            (sent.len() == 1).then_some(())
        });
        let ended = proxy.activity("type=approval")[0]["metadata"].clone();
        let by = if asked { ("elicitation", "token:ci") } else { ("api", "admin") };
        assert_eq!((&ended["door"], &ended["by"]), (&json!(by.0), &json!(by.1)), "{ended}");
    }
}

#[test]
fn cap_8_meta_of_a_call_is_shown_for_approval_and_recorded() {
    let proxy = proxy();
    let (session, connection) = session_stream(&proxy, json!({}));
    let meta = json!({"progressToken": 1, "example.com/dry_run": false});
    let mut events = streamed(&session, connection, &meta);
    assert_eq!(events.message()["method"], "notifications/progress");
    let waiting = until_waiting(&proxy, 1);
    let asked = r#"{"example.com/dry_run":false}"#;
    assert_eq!(waiting["call"]["meta"], asked, "{waiting}");
    let id = id(&waiting);
    let shown = proxy.cli(&["approvals", "show", &id]);
    assert!(shown.stdout.contains(asked), "{}", shown.stdout);
    assert_eq!(answer(&proxy, &id, &json!({"decision": "approve"})).status, 200);
    while events.message()["id"] != "c" {}
    let expected = json!({"example.com/dry_run": false});
    let records = until("the call is recorded", || {
        let sent = proxy.activity("type=tool_call&tool=write_item");
        (!sent.is_empty()).then_some(sent)
    });
    assert_eq!(records[0]["metadata"]["_meta"], expected, "{records:?}");
    let waits = proxy.activity("type=approval").pop().unwrap();
    assert_eq!(waits["metadata"]["_meta"], expected, "{waits}");
}

#[test]
fn cap_8_calls_above_the_waiting_limit_are_refused_and_other_calls_continue() {
    let mut s = stub_stdio(&[]);
    s["capabilities"] = json!({"write_item": {"approval": "required"}});
    // A log capacity of 240 records: 20 calls may wait, 10 of them of one principal.
    let config = json!({"mcpServers": {"s": s}, "activity": {"queue_records": 240}});
    let proxy = Proxy::with(config);
    let mut clients: Vec<Client> = (0..10).map(|_| proxy.client()).collect();
    clients.iter_mut().for_each(begin);
    until_waiting(&proxy, 10);
    let mut one_more = proxy.client();
    let refused = one_more.call("write", "s:write_item", json!({}));
    let text = "Tool 's:write_item': approval cannot be asked for: 10 calls wait for one already";
    assert_eq!(error_text(&refused), text);
    assert_eq!(one_more.read("s:read_item", json!({}))["structuredContent"]["value"], 7);
    drop(clients);
    until("all are withdrawn", || waiting(&proxy).is_empty().then_some(()));
    assert_eq!(proxy.api("status")["load"]["approvals"], 0);
    let mut again = proxy.client();
    begin(&mut again);
    until_waiting(&proxy, 1);
}

#[test]
fn cap_8_direct_tools_also_wait_for_approval() {
    let proxy = proxy();
    let mut direct = proxy.direct_client();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "s__delete_item", "arguments": {}}});
    let headers = [("Accept", "application/json"), ("Mcp-Session-Id", direct.session.as_str())];
    direct.connection.send("POST", "/mcp/all", &headers, body.to_string().as_bytes());
    let approval = until_waiting(&proxy, 1);
    assert_eq!(approval["call"]["destructive"], true);
    assert_eq!(answer(&proxy, &id(&approval), &json!({"decision": "approve"})).status, 200);
    assert_eq!(result(&mut direct)["structuredContent"]["value"], 7);
}

#[test]
fn cap_8_waiting_calls_of_a_killed_proxy_are_recorded_as_unknown() {
    let mut proxy = proxy();
    let mut client = proxy.client();
    begin(&mut client);
    let forgotten = id(&until_waiting(&proxy, 1));
    let mut denied = proxy.client();
    begin(&mut denied);
    until_waiting(&proxy, 2);
    let second = id(&waiting(&proxy)[1]);
    assert_eq!(answer(&proxy, &second, &json!({"decision": "deny"})).status, 200);
    assert_eq!(error_text(&result(&mut denied)), "Tool 's:write_item': approval was denied");
    until("they are on disk", || (states(&proxy).len() == 3).then_some(()));
    // Records are durable at most 50 ms later. Verification reads stored records, so these are on disk.
    assert_eq!(proxy.api("activity/verify")["sound"], true);
    proxy.process.signal("KILL");
    proxy.process.wait();
    let folder = std::mem::replace(&mut proxy.folder, tempfile::tempdir().unwrap());
    let config = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    let proxy = Proxy::unready(serde_json::from_str(&config).unwrap(), folder).ready();
    let record = until("it is reported", || {
        let records = proxy.activity("type=approval&status=error");
        records.into_iter().find(|it| it["metadata"]["state"] == "forgotten")
    });
    assert_eq!(record["metadata"]["approval"], json!(forgotten));
    assert_eq!(
        (&record["tool_name"], &record["source"]),
        (&json!("write_item"), &json!("internal"))
    );
    assert!(waiting(&proxy).is_empty());
    assert_eq!(answer(&proxy, &forgotten, &json!({"decision": "approve"})).status, 404);
    // It is recorded only once, also after another start.
    let folder = proxy.end();
    let proxy = Proxy::unready(serde_json::from_str(&config).unwrap(), folder).ready();
    assert_eq!(states(&proxy).iter().filter(|state| **state == "forgotten").count(), 1);
}

/// Starts a webhook that refuses the first request. Returns its port and the requests it received.
fn hook() -> (u16, std::sync::mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, came) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let mut reader = BufReader::new(&stream);
            let (mut head, mut line) = (String::new(), String::new());
            while reader.read_line(&mut line).unwrap_or(0) > 2 {
                head += &std::mem::take(&mut line);
            }
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.and_then(|it| it.parse().ok()).unwrap_or(0)];
            if reader.read_exact(&mut body).is_err() {
                continue;
            }
            let status = if number == 0 { "503 Busy" } else { "204 No Content" };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            let _ = (&stream).write_all(answer.as_bytes());
            let _ = sender.send((head, body));
        }
    });
    (port, came)
}

// APR-7
#[test]
fn cap_8_webhook_is_signed_and_retried_while_it_is_busy() {
    const SECRET: &str = "a-secret-of-the-operator";
    let (port, came) = hook();
    let url = format!("http://127.0.0.1:{port}/hooks/private-path?a=b");
    let proxy = proxy_with(json!({"webhook": {"url": url, "secret": SECRET}}));
    let mut client = proxy.client();
    client.begin("write", "s:write_item", json!({"password": "hunter2"}));
    let approval = until_waiting(&proxy, 1);
    let next = || came.recv_timeout(crate::harness::PATIENCE).expect("a message");
    let (_, refused) = next();
    let (head, body) = next();
    assert_eq!(refused, body, "the same again");
    assert!(head.starts_with("POST /hooks/private-path?a=b HTTP/1.1"), "{head}");
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_else(|| panic!("{name}: {head}")).to_owned()
    };
    let mut signed = header("x-mcpproxy-timestamp").into_bytes();
    signed.push(b'.');
    signed.extend_from_slice(&body);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SECRET.as_bytes());
    let tag: String =
        ring::hmac::sign(&key, &signed).as_ref().iter().map(|it| format!("{it:02x}")).collect();
    assert_eq!(header("x-mcpproxy-signature"), format!("v1={tag}"));
    let reported: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&reported["event"], &reported["id"]),
        (&json!("approval.waiting"), &approval["id"])
    );
    assert_eq!(reported["digest"], approval["call"]["digest"]);
    assert!(!String::from_utf8_lossy(&body).contains("hunter2"), "no arguments");
    assert_eq!(answer(&proxy, &id(&approval), &json!({"decision": "deny"})).status, 200);
    let (_, body) = next();
    let reported: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&reported["event"], &reported["state"]),
        (&json!("approval.decided"), &json!("denied"))
    );
    assert_eq!((&reported["by"], &reported["door"]), (&json!("admin"), &json!("api")));
    let log = proxy.log();
    assert!(!log.contains(SECRET) && !log.contains("private-path"), "{log}");
}

// APR-7
#[test]
fn cap_8_hanging_webhook_does_not_delay_calls_or_shutdown() {
    // Accepts connections and never responds.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let hook = json!({"url": url, "secret": "a-secret-of-the-operator"});
    let proxy = proxy_with(json!({"webhook": hook}));
    let mut client = proxy.client();
    for _ in 0..3 {
        begin(&mut client);
        let id = id(&until_waiting(&proxy, 1));
        assert_eq!(answer(&proxy, &id, &json!({"decision": "approve"})).status, 200);
        assert_eq!(result(&mut client)["structuredContent"]["value"], 7);
    }
    proxy.end();
}

#[test]
fn cap_8_call_of_a_rule_that_requires_approval_waits() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("ask.cedar");
    let text = r#"@id("ask-for-writes") @requires("approval") forbid(principal, action == Action::"write", resource);"#;
    std::fs::write(&rules, text).unwrap();
    let config = json!({"mcpServers": {"s": stub_stdio(&[])}, "policy": {"files": [rules]}});
    let proxy = Proxy::with(config);
    let mut client = proxy.client();
    assert_eq!(client.read("s:read_item", json!({}))["structuredContent"]["value"], 7);
    begin(&mut client);
    let first = id(&until_waiting(&proxy, 1));
    assert_eq!(answer(&proxy, &first, &json!({"decision": "approve"})).status, 200);
    assert_eq!(result(&mut client)["structuredContent"]["value"], 7);
    let record = client.records(&proxy, "type=tool_call").remove(0);
    assert_eq!(record["metadata"]["approval"], json!(first));
    assert_eq!(record["metadata"]["rules"], json!(["ask-for-writes"]));
    begin(&mut client);
    let second = id(&until_waiting(&proxy, 1));
    assert_eq!(answer(&proxy, &second, &json!({"decision": "deny"})).status, 200);
    assert_eq!(error_text(&result(&mut client)), "Tool 's:write_item': approval was denied");
}

#[test]
fn cap_8_invalid_approvals_section_is_reported_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let secret = "a-secret-of-the-operator";
    for (section, expected) in [
        (json!({"timeout": "soon"}), "approval.timeout"),
        (json!({"timeout": "48h"}), "must be 24h at most"),
        (json!({"webhook": {"url": "http://hooks.example.com", "secret": secret}}), "plain http"),
        (json!({"webhook": {"url": "https://hooks.example.com"}}), "secret"),
    ] {
        let text = json!({"approval": section}).to_string();
        crate::harness::write_private(&path, &text);
        let mut command = mcpproxy();
        let out = Output::of(command.arg("--config").arg(&path).args(["config", "check"]));
        assert_eq!(out.code, Some(5), "{text}");
        assert!(out.stderr.contains(expected) && !out.stderr.contains(secret), "{}", out.stderr);
    }
}
