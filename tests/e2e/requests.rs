//! Client errors on `/mcp`: a clear error for the client, no effect on others.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::{Client, Connection, Proxy, Response, error_text, requests_of, stub_stdio};

fn proxy() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| Proxy::for_all(json!({"mcpServers": {"s": stub_stdio(&[])}})))
}

fn works(client: &mut Client) {
    let result = client.read("s:read_item", json!({}));
    assert_eq!(result["structuredContent"]["value"], 7, "{result}");
}

fn error(response: &Response, status: u16, code: i32) -> String {
    assert_eq!(response.status, status, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/json"));
    let message = response.json();
    assert_eq!(message["jsonrpc"], "2.0", "{message}");
    assert_eq!(message["error"]["code"], code, "{message}");
    message["error"]["message"].as_str().unwrap().to_owned()
}

/// Read call with raw arguments and a raw id.
fn call(id: &str, arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"call_tool_read","arguments":{arguments}}}}}"#
    )
}

// PRO-9
#[test]
fn malformed_message_is_a_json_rpc_error_and_the_connection_stays_open() {
    let mut client = proxy().client();
    let mut other = proxy().client();
    other.begin_read("s:text", json!({"chunk": 64, "pause_ms": 20}));
    for (body, code) in [
        (&b""[..], -32600),
        (b"   ", -32600),
        (b"{", -32700),
        (b"nonsense", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"} {}", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\xffng\"}", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\\ud800\"}", -32700),
        (b"[]", -32600),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", -32600),
        (b"7", -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (b"{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}", -32600),
        (b"{\"id\":1,\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}", -32600),
    ] {
        let response = client.post(body);
        let shown = String::from_utf8_lossy(body);
        assert_eq!(response.status, 400, "{shown}: {}", response.text());
        let message = response.json();
        let code_or_parse = message["error"]["code"].as_i64().unwrap();
        // An empty body is invalid JSON, and has the code for that.
        let empty = body.trim_ascii().is_empty() && code_or_parse == -32700;
        assert!(code_or_parse == code || empty, "{shown}: {message}");
        assert!(message["id"].is_null(), "{shown}: {message}");
    }
    works(&mut client);
    assert!(other.connection.response().whole, "other calls continue");
}

#[test]
fn pipelined_requests_are_answered_in_order_regardless_of_size() {
    let mut client = proxy().client();
    let session = client.session.clone();
    let mut together = Vec::new();
    let sizes = [10, 40_000, 600, 17_000, 16_384, 300_000, 10, 70_000, 4_000, 10];
    for (id, size) in sizes.iter().enumerate() {
        let pad = "x".repeat(*size);
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping","params":{{"pad":"{pad}"}}}}"#);
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Accept: application/json\r\nMcp-Session-Id: {session}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        together.extend_from_slice(head.as_bytes());
        together.extend_from_slice(body.as_bytes());
    }
    client.connection.raw(&together);
    for id in 0..sizes.len() {
        let response = client.connection.response();
        let expected = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        assert_eq!((response.status, response.text()), (200, expected));
    }
    works(&mut client);
}

#[test]
fn batch_is_refused_as_unsupported() {
    let response = proxy().client().post(br#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#);
    let text = error(&response, 400, -32600);
    assert!(text.contains("batch"), "{text}");
}

#[test]
fn message_without_an_id_gets_no_answer_and_makes_no_call() {
    let mut client = proxy().client();
    let body = call("1", r#"{"name":"s:read_item","intent":{"operation_type":"read"}}"#);
    let response = client.post(body.replace(r#""id":1,"#, "").as_bytes());
    assert_eq!((response.status, response.body.len()), (202, 0));
    assert_eq!(client.records(proxy(), "").len(), 0);
    works(&mut client);
}

#[test]
fn unknown_methods_and_tools_are_refused() {
    let mut client = proxy().client();
    let message = client.ask("tools/delete", json!({}));
    assert_eq!(message["error"]["code"], -32601, "{message}");
    assert!(message["error"]["message"].as_str().unwrap().contains("tools/delete"));
    let message = client.tool("call_tool_delete", json!({"name": "s:read_item"}));
    assert_eq!(message["error"]["code"], -32602, "{message}");
    assert!(message["error"]["message"].as_str().unwrap().contains("call_tool_delete"));
    for params in [json!({}), json!({"name": 7}), json!([])] {
        let message = client.ask("tools/call", params);
        assert_eq!(message["error"]["code"], -32602, "{message}");
    }
    assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
    works(&mut client);
}

#[test]
fn fr_005_wrong_parameters_are_recorded_and_answered_with_the_corrected_call() {
    let read = r#""intent":{"operation_type":"read"}"#;
    let again = r#"{"name":"s:read_item","args":{"id":"a"},"intent":{"operation_type":"read"}}"#;
    let bare = r#"{"name":"s:read_item","args":{},"intent":{"operation_type":"read"}}"#;
    let rows = [
        (format!(r#"{{{read}}}"#), "name", ""),
        (format!(r#"{{"name":7,{read}}}"#), "name", ""),
        (format!(r#"{{"name":"read_item",{read}}}"#), "read_item", "'s:read_item'"),
        (format!(r#"{{"name":"s:read_item","args":[],{read}}}"#), "args", bare),
        (format!(r#"{{"name":"s:read_item","args":"{{\"id\":\"a\"}}",{read}}}"#), "args", again),
        (format!(r#"{{"name":"s:read_item","args_json":"[]",{read}}}"#), "args_json", bare),
        (format!(r#"{{"name":"s:read_item","args_json":"",{read}}}"#), "args_json", bare),
        (format!(r#"{{"name":"s:read_item","args_json":"{{}} {{}}",{read}}}"#), "args_json", bare),
        (
            format!(r#"{{"name":"s:read_item","args_json":{{"id":"a"}},{read}}}"#),
            "args_json",
            again,
        ),
        (
            format!(r#"{{"name":"s:read_item","args_json":"{{}}","args":{{}},{read}}}"#),
            "combined",
            bare,
        ),
        (
            format!(r#"{{"name":"s:read_item","arguments":{{"id":"a"}},{read}}}"#),
            "arguments",
            again,
        ),
    ];
    for (arguments, why, help) in rows {
        let mut client = proxy().client();
        let response = client.post(call("1", &arguments).as_bytes());
        let result = &response.json()["result"];
        let text = error_text(result);
        assert!(text.contains(why), "{arguments}: {text}");
        let reported = result["content"][1]["text"].as_str().unwrap_or_default();
        assert!(
            reported.contains(help) && reported.is_empty() == help.is_empty(),
            "{arguments}: {reported}"
        );
        assert_refusal_recorded(&mut client, text);
        works(&mut client);
    }
}

fn assert_refusal_recorded(client: &mut Client, text: &str) {
    let records = client.records(proxy(), "type=tool_call");
    assert_eq!(records.len(), 1, "{text}");
    let recorded = (&records[0]["status"], &records[0]["error_message"]);
    assert_eq!(recorded, (&json!("rejected"), &json!(text)));
}

#[test]
fn fr_005_arguments_that_are_not_an_object_are_an_error_and_recorded() {
    for arguments in ["[]", r#""{}""#] {
        let mut client = proxy().client();
        let response = client.post(call("1", arguments).as_bytes());
        let text = error(&response, 200, -32602);
        assert!(text.contains("object"), "{arguments}: {text}");
        assert_eq!(response.json()["id"], 1);
        assert_refusal_recorded(&mut client, &text);
        works(&mut client);
    }
}

// PRO-9
#[test]
fn duplicate_keys_are_refused_at_any_depth_and_in_any_spelling() {
    let read = r#""intent":{"operation_type":"read"}"#;
    let good = r#""name":"s:read_item""#;
    let rows = [
        call("1", &format!(r#"{{{good},"name":"s:delete_item",{read}}}"#)),
        call("1", &format!(r#"{{{good},"n\u0061me":"s:delete_item",{read}}}"#)),
        call("1", &format!(r#"{{{good},"args":{{"a":1,"a":2}},{read}}}"#)),
        call("1", &format!(r#"{{{good},"args":{{"x":[{{"a":1,"\u0061":2}}]}},{read}}}"#)),
        call("1", &format!(r#"{{{good},"args_json":"{{\"a\":1,\"a\":2}}",{read}}}"#)),
        call(
            "1",
            &format!(r#"{{{good},"args_json":"{{\"x\":{{\"a\":1,\"\\u0061\":2}}}}",{read}}}"#),
        ),
        call("1", &format!(r#"{{{good},{read},{read}}}"#)),
        call(
            "1",
            &format!(r#"{{{good},"intent":{{"operation_type":"read","operation_type":"write"}}}}"#),
        ),
        call("1", &format!(r#"{{{good},{read}}}"#)).replace(
            r#""name":"call_tool_read","#,
            r#""name":"call_tool_write","name":"call_tool_read","#,
        ),
        call("1", &format!(r#"{{{good},{read}}}"#))
            .replace(r#""method":"tools/call","#, r#""method":"ping","m\u0065thod":"tools/call","#),
    ];
    let mut client = proxy().client();
    for body in rows {
        let response = client.post(body.as_bytes());
        let message = response.json();
        assert_eq!(message["error"]["code"], -32602, "{body}: {message}");
        let text = message["error"]["message"].as_str().unwrap();
        assert!(text.contains("duplicate"), "{body}: {text}");
        // If the duplicate key is in the envelope, the id of the message is ambiguous.
        let id = if body.contains("ping") { Value::Null } else { json!(1) };
        assert_eq!(message["id"], id, "{body}: {message}");
    }
    let records = client.records(proxy(), "type=tool_call&status=rejected");
    assert_eq!(requests_of(&records), 9, "refused calls are recorded");
    for record in records {
        assert!(record["error_message"].as_str().unwrap().contains("duplicate"), "{record}");
    }
    works(&mut client);
}

#[test]
fn body_above_the_limit_is_413_and_the_proxy_keeps_serving() {
    const LIMIT: usize = 16 * 1024 * 1024;
    let body = |bytes: usize| {
        let frame = call(
            "1",
            &format!(
                r#"{{"name":"s:text","args":{{"pad":"{}"}},"intent":{{"operation_type":"read"}}}}"#,
                "@"
            ),
        );
        frame.replace('@', &"x".repeat(bytes + 1 - frame.len()))
    };
    let mut client = proxy().client();
    let response = client.post(body(LIMIT).as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(response.json().get("result").is_some());
    let response = client.post(body(LIMIT + 1).as_bytes());
    assert_eq!(response.status, 413, "{}", response.text());
    assert!(response.text().contains(&LIMIT.to_string()), "{}", response.text());
    works(&mut proxy().client());
}

#[test]
fn request_nested_too_deep_is_refused() {
    let mut client = proxy().client();
    for levels in [200, 100_000] {
        let deep = "[".repeat(levels) + &"]".repeat(levels);
        let arguments = format!(r#"{{"name":"s:echo","args":{{"deep":{deep}}}}}"#);
        let response = client.post(call("1", &arguments).as_bytes());
        assert_eq!(response.status, 400, "{}", response.text());
        assert_eq!(response.json()["error"]["code"], -32700, "{}", response.text());
    }
    works(&mut client);
}

fn initialize() -> Vec<u8> {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x"}}})
    .to_string()
    .into_bytes()
}

fn post(headers: &[(&str, &str)], body: &[u8]) -> Response {
    proxy().request("POST", "/mcp", headers, body)
}

#[test]
fn foreign_host_or_origin_is_refused() {
    for (name, value, status) in [
        ("Host", "evil.example", 403),
        ("Host", "127.0.0.1.evil.example", 403),
        ("Origin", "http://evil.example", 403),
        ("Origin", "null", 403),
        ("Origin", "http://127.0.0.1.evil.example", 403),
        ("Host", "localhost:1234", 200),
        ("Origin", "http://localhost:3000", 200),
        ("Origin", "http://127.0.0.1:6274", 200),
    ] {
        let response = post(&[(name, value)], &initialize());
        assert_eq!(response.status, status, "{name}: {value}: {}", response.text());
        if status == 403 {
            let text = response.text();
            assert!(text.contains(name) && text.contains("not allowed"), "{text}");
        }
    }
    let mut connection = Connection::open(proxy().port);
    connection.raw(b"GET /healthz HTTP/1.1\r\n\r\n");
    assert_eq!(connection.head().0, 400, "no Host");
}

#[test]
fn unsupported_media_types_are_refused() {
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        let response = post(&[("Content-Type", kind)], &initialize());
        assert_eq!(response.status, 415, "{kind}: {}", response.text());
    }
    let response = post(&[("Content-Type", "Application/JSON; charset=utf-8")], &initialize());
    assert_eq!(response.status, 200);
    let response = post(&[("Accept", "text/html")], &initialize());
    assert_eq!(response.status, 406, "{}", response.text());
    assert_eq!(post(&[("Accept", "*/*")], &initialize()).status, 200);
}

#[test]
fn missing_unknown_or_ended_sessions_are_refused() {
    let ping = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let response = post(&[], ping);
    assert_eq!(response.status, 400, "{}", response.text());
    assert!(response.text().contains("Mcp-Session-Id"), "{}", response.text());
    let response = post(&[("Mcp-Session-Id", "0123")], ping);
    assert_eq!(response.status, 404, "{}", response.text());

    let mut client = proxy().client();
    let id = client.session.clone();
    let session = [("Mcp-Session-Id", id.as_str())];
    let twice = [session[0], ("Mcp-Session-Id", "other")];
    assert_eq!(post(&twice, ping).status, 400);
    let version = [session[0], ("MCP-Protocol-Version", "1999-01-01")];
    assert_eq!(post(&version, ping).status, 400);
    for good in ["2025-11-25", "2025-06-18"] {
        assert_eq!(post(&[session[0], ("MCP-Protocol-Version", good)], ping).status, 200);
    }
    let response = proxy().request("DELETE", "/mcp", &session, b"");
    assert_eq!(response.status, 204);
    assert_eq!(post(&session, ping).status, 404, "it has ended");
    assert_eq!(client.post(ping).status, 404, "also for the connection that used it");
    assert_eq!(proxy().request("DELETE", "/mcp", &session, b"").status, 404);
    assert_eq!(proxy().request("DELETE", "/mcp", &[], b"").status, 405, "of no session");
}

#[test]
fn unsupported_http_methods_are_refused() {
    let client = proxy().client();
    let session = [("Mcp-Session-Id", client.session.as_str())];
    for method in ["PUT", "PATCH", "HEAD", "OPTIONS"] {
        let mut connection = Connection::open(proxy().port);
        connection.send(method, "/mcp", &session, b"");
        let (status, headers) = connection.head();
        assert_eq!(status, 405, "{method}");
        let allow = headers.iter().find(|(name, _)| name == "allow").map(|(_, v)| v.as_str());
        assert!(allow.is_some_and(|allow| allow.contains("POST")), "{method}: {allow:?}");
    }
    assert_eq!(proxy().request("POST", "/nowhere", &[], b"{}").status, 404);
}

#[test]
fn revisions_are_negotiated() {
    for (asked, agreed) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let body = String::from_utf8(initialize()).unwrap().replace("2025-11-25", asked);
        let message = post(&[], body.as_bytes()).json();
        assert_eq!(message["result"]["protocolVersion"], agreed, "{asked}");
        assert_eq!(message["result"]["serverInfo"]["name"], "mcpproxy");
    }
    let response = post(&[], br#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#);
    assert_eq!(response.json()["error"]["code"], -32602, "{}", response.text());
}

#[test]
fn non_http_bytes_close_only_their_own_connection() {
    let mut client = proxy().client();
    for junk in
        [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"GARBAGE\r\n\r\n", b"POST /mcp HTTP/9.9\r\n\r\n"]
    {
        let mut connection = Connection::open(proxy().port);
        connection.raw(junk);
        connection.raw(b"\r\n\r\n");
        while connection.fill() {}
    }
    let mut partial = Connection::open(proxy().port);
    partial.raw(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 999999\r\n\r\n{");
    drop(partial);
    works(&mut client);
}

#[test]
fn one_connection_carries_many_requests_and_many_connections_one_session() {
    let mut client = proxy().client();
    for _ in 0..20 {
        works(&mut client);
    }
    let session = client.session.clone();
    let calls: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let session = session.as_str();
                scope.spawn(move || {
                    let arguments = format!(r#"{{"name":"s:echo","args":{{"n":{n}}},"intent":{{"operation_type":"read"}}}}"#);
                    let body = call(&n.to_string(), &arguments);
                    post(&[("Mcp-Session-Id", session)], body.as_bytes()).json()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (n, message) in calls.iter().enumerate() {
        assert_eq!(message["id"], n);
        assert_eq!(message["result"]["structuredContent"]["n"], n, "{message}");
    }
}

// ID-1
#[test]
fn require_mcp_auth_requires_the_key() {
    let proxy = Proxy::with(json!({"require_mcp_auth": true}));
    let ask = |headers: &[(&str, &str)]| proxy.request("POST", "/mcp", headers, &initialize());
    let refused = ask(&[]);
    assert_eq!(refused.status, 401);
    assert!(refused.json()["error"].as_str().unwrap().starts_with("Invalid or missing API key"));
    assert_eq!(ask(&[("X-API-Key", "wrong")]).status, 401);
    assert_eq!(ask(&[("X-API-Key", crate::harness::API_KEY)]).status, 200);
    let bearer = format!("Bearer {}", crate::harness::API_KEY);
    assert_eq!(ask(&[("Authorization", &bearer)]).status, 200);
}

#[test]
fn retrieve_tools_refuses_unknown_parameters() {
    let mut client = proxy().client();
    for arguments in [
        json!({}),
        json!({"query": 7}),
        json!({"query": "x", "limit": 0}),
        json!({"query": "x", "limit": 101}),
        json!({"query": "x", "detail": "most"}),
        json!({"query": "x", "qeury": "y"}),
    ] {
        let result = client.tool("retrieve_tools", arguments.clone());
        assert_eq!(result["isError"], true, "{arguments}: {result}");
    }
    let records = client.records(proxy(), "type=internal_tool_call&status=rejected");
    assert_eq!(records.len(), 6);
    let result = client.tool("retrieve_tools", json!({"query": "item", "limit": 3}));
    assert_eq!(result["structuredContent"]["tools"].as_array().unwrap().len(), 3);
    // An invalid intent is reported before the tool is looked up.
    let intent = json!({"operation_type": "write"});
    let result = client.tool("call_tool_read", json!({"name": "nowhere:x", "intent": intent}));
    assert!(error_text(&result).starts_with("Intent mismatch"), "{result}");
}
