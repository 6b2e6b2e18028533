//! The stateless revision, 2026-07-28: required members of a request, and the responses.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::{
    Connection, Events, HttpStub, Proxy, Response, error_text, stub_stdio, until,
};

const VERSION: &str = "2026-07-28";

fn proxy() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| Proxy::for_all(json!({"mcpServers": {"s": HttpStub::shared().entry()}})))
}

fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

fn request(method: &str, mut params: Value) -> Value {
    params.as_object_mut().unwrap().entry("_meta").or_insert_with(meta);
    json!({"jsonrpc": "2.0", "id": "raw", "method": method, "params": params})
}

/// Sends a request with its headers.
pub(crate) fn send(proxy: &Proxy, path: &str, method: &str, params: Value) -> Connection {
    let body = request(method, params);
    let name = ["name", "uri"].iter().find_map(|key| body["params"][*key].as_str());
    let mut headers = vec![("MCP-Protocol-Version", VERSION), ("Mcp-Method", method)];
    if matches!(method, "tools/call" | "prompts/get" | "resources/read") {
        headers.extend(name.map(|name| ("Mcp-Name", name)));
    }
    let mut connection = Connection::open(proxy.port);
    connection.send("POST", path, &headers, body.to_string().as_bytes());
    connection
}

fn ask(method: &str, params: Value) -> Response {
    send(proxy(), "/mcp", method, params).response()
}

fn read(tool: &str, args: Value) -> Value {
    let intent = json!({"operation_type": "read"});
    json!({"name": "call_tool_read", "arguments": {"name": tool, "args": args, "intent": intent}})
}

#[test]
fn server_is_discovered() {
    let response = ask("server/discover", json!({}));
    assert_eq!(response.status, 200, "{}", response.text());
    let result = &response.json()["result"];
    assert_eq!(result["resultType"], "complete");
    assert_eq!(
        result["supportedVersions"][0], VERSION,
        "both protocol families, regardless of its servers"
    );
    assert_eq!(result["capabilities"]["tools"], json!({"listChanged": true}));
    assert!(result["ttlMs"].is_u64() && result["cacheScope"] == "private", "{result}");
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "mcpproxy");
    assert!(response.header("mcp-session-id").is_none(), "no session is made");
}

#[test]
fn own_results_state_their_type_and_upstream_results_get_no_other_members() {
    let list = ask("tools/list", json!({})).json();
    assert_eq!(list["result"]["resultType"], "complete");
    assert!(list["result"]["ttlMs"].is_u64() && list["result"]["cacheScope"].is_string(), "{list}");
    let found =
        ask("tools/call", json!({"name": "retrieve_tools", "arguments": {"query": "read"}}));
    assert_eq!(found.json()["result"]["resultType"], "complete", "{}", found.text());
    let refused = ask("tools/call", read("s:delete_item", json!({}))).json();
    assert_eq!(refused["result"]["resultType"], "complete");
    assert!(error_text(&refused["result"]).contains("destructive"));
    let response = ask("tools/call", read("s:odd_spelling", json!({})));
    let sent = HttpStub::shared().direct("odd_spelling", &json!({}));
    let result = crate::harness::raw_result(&response.body);
    let sent = sent.trim_ascii().strip_suffix(b"}").unwrap();
    assert_eq!(result, [sent, br#","resultType":"complete"}"#].concat(), "FR-A3");
    assert_eq!(response.header("content-type"), Some("application/json"));
}

#[test]
fn headers_that_disagree_with_the_body_are_refused() {
    let call = request("tools/call", read("s:read_item", json!({}))).to_string();
    let list = request("tools/list", json!({})).to_string();
    let (version, method) = (("MCP-Protocol-Version", VERSION), ("Mcp-Method", "tools/call"));
    let name = ("Mcp-Name", "call_tool_read");
    for (body, headers, why) in [
        (&call, vec![method, name], "mcp-protocol-version is missing"),
        (&call, vec![version, name], "mcp-method is missing"),
        (&call, vec![version, method], "mcp-name is missing"),
        (
            &call,
            vec![("MCP-Protocol-Version", "2025-11-25"), method, name],
            "header mcp-protocol-version is '2025-11-25', the body has '2026-07-28'",
        ),
        (&call, vec![version, version, method, name], "more than once"),
        (&call, vec![version, ("Mcp-Method", "tools/list"), name], "differs from the body"),
        (&call, vec![version, ("Mcp-Method", "Tools/Call"), name], "differs from the body"),
        (&call, vec![version, method, method, name], "more than once"),
        (&call, vec![version, ("Mcp-Method", "=?base64?dG9vbHMvY2FsbA==?="), name], "differs"),
        (
            &call,
            vec![version, method, ("Mcp-Name", "call_tool_destructive")],
            "differs from the body",
        ),
        (&call, vec![version, method, name, name], "more than once"),
        (&call, vec![version, method, ("Mcp-Name", "=?base64?!?=")], "cannot be read"),
        (&list, vec![version, ("Mcp-Method", "tools/list"), name], "no counterpart in the body"),
    ] {
        let response = proxy().request("POST", "/mcp", &headers, body.as_bytes());
        let answer = response.json();
        assert_eq!(
            (response.status, &answer["error"]["code"]),
            (400, &json!(-32020)),
            "{headers:?}"
        );
        assert!(
            answer["error"]["message"].as_str().unwrap().contains(why),
            "{headers:?}: {answer}"
        );
        assert_eq!(answer["id"], "raw");
    }
    // PRO-10
    for why in ["is '2025-11-25', the body has '2026-07-28'", "mcp-name is missing"] {
        until("the refused call is recorded", || {
            let records = proxy().activity("type=tool_call&status=rejected");
            let text = |record: &Value| record["error_message"].as_str().unwrap_or("").to_owned();
            records.iter().map(text).find(|it| it.contains("Header mismatch: ") && it.contains(why))
        });
    }
    for name in ["call_tool_read", "  call_tool_read ", "=?base64?Y2FsbF90b29sX3JlYWQ=?="] {
        let headers = [version, method, ("Mcp-Name", name)];
        let response = proxy().request("POST", "/mcp", &headers, call.as_bytes());
        assert_eq!(response.status, 200, "{name}: {}", response.text());
    }
}

#[test]
fn request_without_its_required_client_members_is_refused() {
    for key in ["protocolVersion", "clientCapabilities"] {
        let key = format!("io.modelcontextprotocol/{key}");
        for wrong in [None, Some(json!(7)), Some(Value::Null)] {
            let mut meta = meta();
            meta.as_object_mut().unwrap().remove(&key);
            if let Some(wrong) = wrong {
                meta[&key] = wrong;
            }
            let response = ask("tools/list", json!({"_meta": meta}));
            let answer = response.json();
            assert_eq!(
                (response.status, &answer["error"]["code"]),
                (400, &json!(-32602)),
                "{answer}"
            );
            assert!(answer["error"]["message"].as_str().unwrap().contains(&key), "{answer}");
        }
    }
    let mut quiet = meta();
    quiet.as_object_mut().unwrap().remove("io.modelcontextprotocol/clientInfo");
    assert_eq!(ask("tools/list", json!({"_meta": quiet})).status, 200, "a name is optional");
    let response = proxy().request("POST", "/mcp", &[("MCP-Protocol-Version", VERSION)], b"{}");
    assert_eq!(response.status, 400);
    let discover = br#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#;
    let response = proxy().request("POST", "/mcp", &[], discover);
    assert_eq!((response.status, &response.json()["error"]["code"]), (400, &json!(-32602)));
}

#[test]
fn unsupported_revision_is_answered_with_the_supported_ones() {
    for version in ["1900-01-01", "2027-01-01", "2025-11-25"] {
        let mut meta = meta();
        meta["io.modelcontextprotocol/protocolVersion"] = json!(version);
        let body = request("tools/list", json!({"_meta": meta})).to_string();
        let headers = [("MCP-Protocol-Version", version), ("Mcp-Method", "tools/list")];
        let response = proxy().request("POST", "/mcp", &headers, body.as_bytes());
        let error = &response.json()["error"];
        assert_eq!((response.status, &error["code"]), (400, &json!(-32022)), "{version}: {error}");
        assert!(error["data"]["supported"].as_array().unwrap().contains(&json!("2025-06-18")));
        assert_eq!(error["data"]["requested"], version);
    }
}

#[test]
fn unknown_methods_are_refused() {
    for method in ["ping", "logging/setLevel", "resources/subscribe", "tasks/list", "no/such"] {
        let response = ask(method, json!({}));
        assert_eq!(response.status, 404, "{method}: {}", response.text());
        assert_eq!(response.json()["error"]["code"], -32601, "{method}");
    }
    let version = [("MCP-Protocol-Version", VERSION), ("Mcp-Session-Id", "x")];
    for method in ["GET", "DELETE"] {
        for headers in [&version[..], &version[..1], &[]] {
            let response = proxy().request(method, "/mcp", headers, b"");
            assert_eq!(response.status, 405, "{method} {headers:?}");
            assert_eq!(response.header("allow"), Some("POST"));
        }
    }
    let response = br#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    assert_eq!(proxy().request("POST", "/mcp", &version, response).status, 400);
    let note = br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    assert_eq!(proxy().request("POST", "/mcp", &version, note).status, 202);
}

#[test]
fn progress_uses_the_clients_token_and_log_messages_arrive_on_request() {
    let call = |token: Value, level: Option<&str>| {
        let mut params = read("s:notify", json!({}));
        params["_meta"] = meta();
        params["_meta"]["progressToken"] = token;
        if let Some(level) = level {
            params["_meta"]["io.modelcontextprotocol/logLevel"] = json!(level);
        }
        send(proxy(), "/mcp", "tools/call", params)
    };
    for token in [json!("mine \u{e9}"), json!(-7)] {
        let mut events = Events::of(call(token.clone(), Some("info")));
        let progress = events.next().unwrap();
        assert_eq!(progress.id, None, "streams of this revision are not resumed");
        assert_eq!(progress.json()["params"]["progressToken"], token);
        assert_eq!(events.message()["method"], "notifications/message");
        assert_eq!(events.message()["id"], "raw");
        assert!(events.next().is_none());
    }
    let mut events = Events::of(call(json!(1), None));
    assert_eq!(events.message()["method"], "notifications/progress");
    assert_eq!(events.message()["id"], "raw", "no log message without a request for it");
    let wrong = call(json!(1), Some("loud")).response();
    assert_eq!((wrong.status, &wrong.json()["error"]["code"]), (400, &json!(-32602)));
}

#[test]
fn closing_the_stream_cancels_the_call() {
    let stub = HttpStub::start(&["--stateless"]);
    let proxy = Proxy::start(json!({"s": stub.entry()}));
    drop(send(&proxy, "/mcp", "tools/call", read("s:never", json!({}))));
    let gone = until("the call is canceled", || {
        proxy.activity("type=tool_call&status=error").into_iter().next()
    });
    assert!(gone["error_message"].as_str().unwrap().contains("disconnected"), "{gone}");
}

#[test]
fn input_request_is_forwarded_and_its_response_returned() {
    let response = ask("tools/call", read("s:needs_input", json!({})));
    let sent = HttpStub::shared().direct("needs_input", &json!({}));
    let state = response.json()["result"]["requestState"].clone();
    let expected =
        String::from_utf8(sent).unwrap().replace(r#""opaque \u00e9""#, &state.to_string());
    let received = String::from_utf8_lossy(crate::harness::raw_result(&response.body)).into_owned();
    assert_eq!(received, expected, "verbatim except the state");
    let mut retry = read("s:needs_input", json!({}));
    retry["requestState"] = state.clone();
    retry["inputResponses"] = json!({"who": {"action": "accept", "content": {"name": "x"}}});
    let seen = ask("tools/call", retry.clone()).json()["result"]["structuredContent"].clone();
    assert_eq!(seen, json!({"state": "opaque é", "inputs": retry["inputResponses"]}));
}

#[test]
fn server_request_to_a_modern_client_is_refused_with_the_reason() {
    let answer = ask("tools/call", read("s:ask", json!({}))).json();
    let returned = &answer["result"]["structuredContent"]["answered"];
    assert_eq!(returned["code"], -32601, "{answer}");
    assert!(returned["message"].as_str().unwrap().contains(VERSION), "{returned}");
}

#[test]
fn subscriptions_listen_subscribes_to_resources_of_a_legacy_server() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--offers", "--only", "echo"])}));
    let shared = "mcpproxy://s/test://shared";
    let uris = [shared, "mcpproxy://nobody/x:y", "x:y"];
    let wants = json!({"notifications": {"resourceSubscriptions": uris}});
    let mut events = Events::of(send(&proxy, "/mcp", "subscriptions/listen", wants));
    let agreed = &events.message()["params"]["notifications"];
    assert_eq!(*agreed, json!({"resourceSubscriptions": [shared]}));
    // This server reports a change upon subscription.
    let notification = events.message();
    assert_eq!(notification["method"], "notifications/resources/updated");
    assert_eq!(notification["params"]["uri"], shared);
}

#[test]
fn subscription_is_acknowledged_first_announces_changes_and_ends_with_the_server() {
    let stub = HttpStub::start(&[]);
    let mut proxy = Proxy::start(json!({"s": stub.entry()}));
    let wants =
        json!({"notifications": {"toolsListChanged": true, "resourceSubscriptions": ["x:y"]}});
    let listen = |path| Events::of(send(&proxy, path, "subscriptions/listen", wants.clone()));
    let (mut all, mut own) = (listen("/mcp/all"), listen("/mcp"));
    let subscription = json!({"io.modelcontextprotocol/subscriptionId": "raw"});
    for events in [&mut all, &mut own] {
        let (first, agreed) = (events.message(), json!({"toolsListChanged": true}));
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(first["params"], json!({"notifications": agreed, "_meta": subscription}));
    }
    let mut add = read("s:add_tool", json!({}));
    add["name"] = json!("call_tool_write");
    add["arguments"]["intent"] = json!({"operation_type": "write"});
    assert_eq!(send(&proxy, "/mcp", "tools/call", add).response().status, 200);
    let change = all.message();
    assert_eq!(change["method"], "notifications/tools/list_changed");
    assert_eq!(change["params"]["_meta"], subscription);
    proxy.process.signal("TERM");
    for events in [&mut all, &mut own] {
        let farewell = events.message();
        assert_eq!(farewell["id"], "raw");
        assert_eq!(farewell["result"], json!({"resultType": "complete", "_meta": subscription}));
        assert!(events.next().is_none());
    }
    assert_eq!(proxy.process.wait(), Some(0));
}

// NET-7
#[test]
fn net_7_messages_of_get_and_listen_streams_are_events_of_type_message() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--offers", "--only", "echo"])}));
    let mut client = proxy.client();
    let mut standing = Connection::open(proxy.port);
    let headers = [("Mcp-Session-Id", &*client.session), ("Accept", "text/event-stream")];
    standing.send("GET", "/mcp", &headers, b"");
    let wants = json!({"notifications": {"resourcesListChanged": true}});
    let mut listening = send(&proxy, "/mcp", "subscriptions/listen", wants);
    let read_to = |stream: &mut Connection, word: &str| {
        let mut seen = String::new();
        while !seen.contains(word) {
            seen += std::str::from_utf8(&stream.chunk().expect("the stream stands")).unwrap();
        }
        let messages: Vec<_> = seen.split("\n\n").filter(|it| it.contains("data: {")).collect();
        assert!(messages.iter().all(|it| it.contains("event: message\ndata: {")), "{seen}");
    };
    assert_eq!((standing.head().0, listening.head().0), (200, 200));
    read_to(&mut listening, "acknowledged");
    // This server announces a new resource when this one is read.
    client.ask("resources/read", json!({"uri": "mcpproxy://s/test://grows"}));
    for stream in [&mut standing, &mut listening] {
        read_to(stream, "notifications/resources/list_changed");
    }
}
