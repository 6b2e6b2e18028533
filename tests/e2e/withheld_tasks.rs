//! Tasks that cannot be delivered to their clients are canceled at their servers (PRO-43).

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::between_families::Session;
use crate::harness::{Connection, Events, Proxy, Reply, until};
use crate::tasks::{CREATED, MODERN, OWN, Server, TASKS, ask, ask_as, call, tasks};

const PATH: &str = "/mcp/all";

/// Waits for the `n`th cancellation at the server, counted from 0. Returns the record of the call and that of the
/// cancellation.
fn canceled(server: &Server, proxy: &Proxy, n: usize) -> (Value, Value) {
    let asked = until("it is canceled", || server.asked("tasks/cancel").into_iter().nth(n));
    assert_eq!(asked.0.headers("mcp-name"), [OWN]);
    assert_eq!(asked.1["params"]["taskId"], OWN);
    let nth = |kind: &str| {
        until("the request is recorded", || {
            let records = proxy.activity(&format!("type={kind}&server=s"));
            (records.len() > n).then(|| records[records.len() - 1 - n].clone())
        })
    };
    let (called, canceled) = (nth("tool_call"), nth("internal_tool_call"));
    assert_eq!(
        (&canceled["metadata"]["task_method"], &canceled["source"]),
        (&json!("tasks/cancel"), &json!("internal")),
        "{canceled}"
    );
    assert_eq!(called["metadata"]["task"], canceled["metadata"]["task"], "{called}");
    assert_eq!(called["metadata"]["task"].as_str().map(str::len), Some(16), "{called}");
    assert_eq!(called["request_id"], canceled["request_id"], "{called}");
    (called, canceled)
}

/// A result that creates a task and exceeds the maximum size of such results.
fn long() -> String {
    CREATED.replace(r#""x":1.0e5"#, &format!(r#""x":"{}""#, "y".repeat(64 * 1024)))
}

// PRO-43
#[test]
fn task_that_its_client_does_not_get_is_canceled_at_its_server() {
    let server = Server::start();
    let proxy = Proxy::start(json!({"s": server.in_mode("strict")}));
    let with_content = CREATED.replace(r#""x":1.0e5"#, r#""content":[]"#);
    let deep = format!(r#""structuredContent":{}{}"#, "[".repeat(70), "]".repeat(70));
    let deep = CREATED.replace(r#""x":1.0e5"#, &deep);
    for (n, (capabilities, tool, made, status)) in [
        (json!({"roots": {}}), "s:slow", CREATED, "error"),
        (tasks(), "s:slow", &*with_content, "error"),
        (tasks(), "s:slow", &*long(), "error"),
        (json!({}), "s:slow", &*long(), "error"),
        (tasks(), "s:typed", &*deep, "blocked"),
    ]
    .into_iter()
    .enumerate()
    {
        let params = call(PATH, tool, made);
        let failed = ask_as(&proxy, ("", capabilities), PATH, "tools/call", params);
        assert!(!failed.text().contains("mcpproxy-task"), "{}", failed.text());
        let (called, canceled) = canceled(&server, &proxy, n);
        assert_eq!((&called["status"], &canceled["status"]), (&json!(status), &json!("success")));
    }
}

// PRO-43
#[test]
fn task_for_a_client_of_the_other_family_is_canceled_at_its_server() {
    let server = Server::start();
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let session = Session::open_at(PATH, &proxy, "2025-11-25", json!({}));
    let refused = session.ask("tools/call", &call(PATH, "s:slow", CREATED)).response().json();
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    let (_, canceled) = canceled(&server, &proxy, 0);
    assert_eq!(canceled["status"], "success", "{canceled}");
}

/// A server that begins to answer a call with a task. After a progress message it either stops sending, or breaks the
/// connection.
fn breaking_off(stops: bool) -> Server {
    Server::answering(move |message| {
        if message["method"] != "tools/call" {
            return None;
        }
        let token = &message["params"]["_meta"]["progressToken"];
        let first = json!({"jsonrpc": "2.0", "method": "notifications/progress",
            "params": {"progressToken": token, "progress": 1}});
        let begun = CREATED.split_once(r#", "status""#).expect("a status").0;
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{begun}"#, message["id"]);
        let answer = match stops {
            true => format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
                 data: {first}\n\ndata: {answer}\ndata: "
            ),
            false => format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n{answer}"
            ),
        };
        Some(match stops {
            true => Reply::Standing(answer.into()),
            false => Reply::Raw(answer.into()),
        })
    })
}

// PRO-43
#[test]
fn task_in_an_answer_that_breaks_off_is_canceled_at_its_server() {
    let server = breaking_off(false);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let failed = ask(&proxy, PATH, "tools/call", call(PATH, "s:slow", "")).json();
    assert_eq!(failed["result"]["isError"], true, "{failed}");
    let (called, canceled) = canceled(&server, &proxy, 0);
    assert_eq!(called["status"], "error", "{called}");
    assert_eq!(canceled["status"], "success", "{canceled}");
}

// PRO-43
#[test]
fn task_whose_client_disconnects_before_delivery_is_canceled_at_its_server() {
    let server = breaking_off(true);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let mut params = call(PATH, "s:slow", "");
    params["_meta"] = json!({"progressToken": "p",
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}});
    let body = json!({"jsonrpc": "2.0", "id": "gone", "method": "tools/call", "params": params});
    let name = params["name"].as_str().expect("a name");
    let headers =
        [("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/call"), ("Mcp-Name", name)];
    let mut connection = Connection::open(proxy.port);
    connection.send("POST", PATH, &headers, body.to_string().as_bytes());
    let mut events = Events::of(connection);
    // The first part of the task has arrived together with this message.
    assert_eq!(events.message()["method"], "notifications/progress");
    assert!(server.asked("tasks/cancel").is_empty());
    drop(events);
    let (called, canceled) = canceled(&server, &proxy, 0);
    let why = called["error_message"].as_str().unwrap_or_default();
    assert!(why.starts_with("the client disconnected"), "{called}");
    assert_eq!(canceled["status"], "success", "{canceled}");
}

// PRO-43
#[test]
fn cancellation_by_the_proxy_is_not_refused_by_rates_and_limits_of_the_principal() {
    let server = Server::start();
    let mut entry = server.entry();
    entry["limits"] = json!({"rate_per_minute": 1});
    let limits = json!({"rate_per_minute": 1, "principals": {"*": {"rate_per_minute": 1}}});
    let proxy = Proxy::with(json!({"mcpServers": {"s": entry}, "limits": limits}));
    let made = ask_as(&proxy, ("", json!({})), PATH, "tools/call", call(PATH, "s:slow", CREATED));
    assert_eq!(made.json()["error"]["code"], -32021, "{}", made.text());
    let (_, canceled) = canceled(&server, &proxy, 0);
    assert_eq!(canceled["status"], "success", "{canceled}");
    let refused = ask(&proxy, PATH, "tools/call", call(PATH, "s:slow", CREATED));
    assert!(
        refused.text().contains("limit"),
        "the client has reached its own limit: {}",
        refused.text()
    );
}

// PRO-43
#[test]
fn cancellation_is_repeated_until_the_server_answers() {
    let count = AtomicUsize::new(0);
    let server = Server::answering(move |message| {
        let is_first =
            message["method"] == "tasks/cancel" && count.fetch_add(1, Ordering::SeqCst) == 0;
        is_first.then(|| Reply::Http("500 Internal Server Error", "", Vec::new()))
    });
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let made = ask_as(&proxy, ("", json!({})), PATH, "tools/call", call(PATH, "s:slow", CREATED));
    assert_eq!(made.json()["error"]["code"], -32021, "{}", made.text());
    let records = until("both attempts are recorded", || {
        let records = proxy.activity("type=internal_tool_call&server=s");
        (records.len() > 1).then_some(records)
    });
    let statuses: Vec<_> = records.iter().map(|it| it["status"].clone()).collect();
    assert_eq!(statuses, ["success", "error"], "newest first: {records:?}");
    assert_eq!(records[0]["metadata"]["task"], records[1]["metadata"]["task"]);
    assert_eq!(server.asked("tasks/cancel").len(), 2);
}

// PRO-43
#[test]
fn dropped_cancellation_is_recorded_with_the_reason() {
    let server =
        Server::answering(|message| (message["method"] == "tasks/cancel").then_some(Reply::Hang));
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let params = call(PATH, "s:slow", CREATED);
    let name = params["name"].as_str().expect("a name");
    let headers =
        [("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/call"), ("Mcp-Name", name)];
    // All calls use one connection and therefore one worker, because the bound applies to each worker.
    let mut connection = Connection::open(proxy.port);
    for id in 0..=64 {
        let mut params = params.clone();
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {}});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        connection.send("POST", PATH, &headers, body.to_string().as_bytes());
        assert_eq!(connection.response().json()["error"]["code"], -32021);
    }
    let record = until("the dropped cancellation is recorded", || {
        proxy.activity("type=internal_tool_call&server=s").into_iter().next()
    });
    assert_eq!(
        (&record["status"], &record["source"], &record["request_id"]),
        (&json!("rejected"), &json!("internal"), &json!("64")),
        "{record}"
    );
    let why =
        "s: tasks/cancel: 64 cancellations of tasks are pending at the server, which is the limit";
    assert_eq!(record["error_message"], why, "{record}");
    assert_eq!(record["metadata"]["task_method"], "tasks/cancel", "{record}");
    let called = until("its call is recorded", || {
        proxy.activity("type=tool_call&request_id=64").into_iter().next()
    });
    assert_eq!(record["metadata"]["task"], called["metadata"]["task"], "{record}");
    proxy.assert_logged("a task that its client does not get was not cancelled");
}
