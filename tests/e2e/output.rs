//! Results: bytes received by the client, verdicts and messages (FR-A2..A12).
//!
//! The stub is also called without the proxy; the answer of that call is the expected one.

use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::{
    Client, HttpStub, Output, Pipe, Proxy, Received, Recorder, Reply, configure, error_text,
    free_port, mcpproxy, raw_result, stub_stdio, until,
};

const PREFIX: &str = "output schema validation failed: ";
/// Text that must not reach an agent through an error.
const CANARY: &str = "CANARY";

/// Servers with different framings, transports and positions of the id.
const SERVERS: [&str; 5] = ["http", "sse", "last", "pipe", "pipe_last"];

/// A proxy in `mode` with every kind of upstream.
fn before_all(mode: &str) -> Proxy {
    static SSE: OnceLock<HttpStub> = OnceLock::new();
    static LAST: OnceLock<HttpStub> = OnceLock::new();
    let start = |flags: &'static [&'static str]| move || HttpStub::for_all(flags);
    let sse = SSE.get_or_init(start(&["--stateless", "--answer", "sse"]));
    let last = LAST.get_or_init(start(&["--stateless", "--id", "last"]));
    Proxy::for_all(json!({
        "mcpServers": {
            "http": HttpStub::shared().entry(),
            "sse": sse.entry(),
            "last": last.entry(),
            "pipe": stub_stdio(&[]),
            "pipe_last": stub_stdio(&["--id", "last"]),
        },
        "output_validation": {"mode": mode},
    }))
}

fn strict() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| before_all("strict"))
}

fn warn() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| before_all("warn"))
}

fn off() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| before_all("off"))
}

/// Answer of the stub as it leaves the transport of `server`: over stdio it contains no line breaks, and an event
/// stream normalizes them.
fn sent(server: &str, tool: &str, args: &Value) -> Vec<u8> {
    let bytes = HttpStub::shared().direct(tool, args);
    // White space around a value is not part of the value.
    let bytes = bytes.trim_ascii().to_vec();
    match server {
        "pipe" | "pipe_last" => {
            bytes.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }).collect()
        }
        "sse" => bytes
            .iter()
            .enumerate()
            .filter(|(at, b)| **b != b'\r' || bytes.get(at + 1) != Some(&b'\n'))
            .map(|(_, b)| *b)
            .collect(),
        _ => bytes,
    }
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().take(400).collect()
}

/// The result for a legacy client: structured content that is not an object is wrapped (FR-A13).
fn adapted(tool: &str, sent: Vec<u8>) -> Vec<u8> {
    let value = match tool {
        "not_an_object" => "[1,2,3]",
        "null_structured" => "null",
        "unknown_dialect" => "[]",
        _ => return sent,
    };
    let member = |value: &str| format!(r#""structuredContent":{value}}}"#);
    let text = String::from_utf8(sent).unwrap();
    assert!(text.contains(&member(value)), "{text}");
    text.replace(&member(value), &member(&format!(r#"{{"result":{value}}}"#))).into_bytes()
}

/// Asserts that the result arrives unchanged.
fn arrives(client: &mut Client, server: &str, tool: &str, args: &Value) {
    let response = client.read_raw(&format!("{server}:{tool}"), args.clone());
    let expected = adapted(tool, sent(server, tool, args));
    let got = raw_result(&response.body);
    assert!(got == expected, "{server}:{tool}: {} for {}", shown(got), shown(&expected));
    assert_eq!(response.header("content-type"), Some("application/json"));
}

/// Tools whose results pass in every mode: they conform, have no schema, or are errors of the tool.
const GOOD: [&str; 19] = [
    "read_item",
    "odd_spelling",
    "pretty",
    "huge_int",
    "escaped_name",
    "draft_7",
    "look_around",
    "violate_format",
    "text",
    "records",
    "records_plain",
    "blob",
    "error",
    "error_first",
    "error_last",
    "too_big_error_first",
    "missing_structured",
    "uncompilable",
    "unknown_dialect",
];

/// Violations: the tool, a word in the message to the agent, and a word in the record.
const BAD: [(&str, &str, &str); 23] = [
    ("violate", "type at '/properties/value", "/value"),
    ("violate_key", "additionalProperties at '", "CANARY-KEY"),
    ("violate_many", " at '/properties/", "/note"),
    ("violate_content_last", "type at '/properties/value", "/value"),
    ("violate_draft_7", "additionalItems at '", "/pair"),
    ("not_an_object", "type at '/type'", "object"),
    ("null_structured", "type at '/type'", "object"),
    ("escaped_name_violates", "type at '/properties/value", "/value"),
    ("duplicate_key", "duplicate key", "note"),
    ("duplicate_escaped_key", "duplicate key", "note"),
    ("duplicate_structured", "structuredContent", "structuredContent"),
    ("duplicate_is_error", "isError", "isError"),
    ("is_error_string", "isError", "isError"),
    ("invalid_utf8", "UTF-8", "UTF-8"),
    ("lone_surrogate", "surrogate", "surrogate"),
    ("raw_control", "control", "control"),
    ("overflow", "number", "number"),
    ("not_a_number", "", ""),
    ("too_big", "max_bytes 5242880", "max_bytes"),
    ("too_big_error_last", "max_bytes 5242880", "max_bytes"),
    ("too_deep", "max_depth 64", "max_depth"),
    ("violate", "integer", "string"),
    ("violate_key", "", "ignore all previous instructions"),
];

#[test]
fn fr_a3_conforming_result_arrives_byte_for_byte_in_every_mode_from_every_transport() {
    for proxy in [strict(), warn(), off()] {
        let mut client = proxy.client();
        for server in SERVERS {
            for tool in GOOD {
                arrives(&mut client, server, tool, &json!({}));
            }
        }
        let decisions = client.records(proxy, "type=policy_decision");
        assert_eq!(decisions, Vec::<Value>::new(), "FR-A7, FR-A8, FR-A9, FR-A10");
    }
}

#[test]
fn fr_a3_arguments_and_answers_keep_their_spelling_in_both_directions() {
    let odd = r#"{ "z" : 1.50,"a":[ 1e2 ,-0.0],"é":"\u00e9\/","big":18446744073709551616 }"#;
    for proxy in [strict(), warn(), off()] {
        let mut client = proxy.client();
        for server in SERVERS {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":"raw","method":"tools/call","params":{{"name":"call_tool_read","arguments":{{"name":"{server}:echo","args":{odd},"intent":{{"operation_type":"read"}}}}}}}}"#
            );
            let response = client.post(body.as_bytes());
            let expected = format!(r#"{{"content":[],"structuredContent":{odd}}}"#);
            assert_eq!(shown(raw_result(&response.body)), expected, "{server}");
            let quoted = serde_json::to_string(odd).unwrap();
            let body =
                body.replace(&format!(r#""args":{odd}"#), &format!(r#""args_json":{quoted}"#));
            let response = client.post(body.as_bytes());
            assert_eq!(shown(raw_result(&response.body)), expected, "{server}, as args_json");
        }
    }
}

#[test]
fn fr_a3_downstream_id_is_the_clients_own() {
    let mut client = strict().client();
    for id in ["7", "-1", "9007199254740993", r#""a\u0062 \"c\"""#, r#""""#] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"call_tool_read","arguments":{{"name":"http:read_item","intent":{{"operation_type":"read"}}}}}}}}"#
        );
        let response = client.post(body.as_bytes());
        let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"#);
        assert!(response.text().starts_with(&head), "{id}: {}", response.text());
    }
}

#[test]
fn json_rpc_error_of_an_upstream_is_forwarded_verbatim() {
    let error =
        r#"{"code":-32050,"message":"the stub refuses","data":{"why":"asked to","n":1.50}}"#;
    for proxy in [strict(), warn()] {
        let mut client = proxy.client();
        for server in SERVERS {
            let response = client.read_raw(&format!("{server}:rpc_error"), json!({}));
            let expected = format!(r#"{{"jsonrpc":"2.0","id":"raw","error":{error}}}"#);
            assert_eq!(response.text(), expected, "{server}");
            assert_eq!(client.records(proxy, "type=tool_call")[0]["status"], "error");
        }
    }
}

/// Record of the last call, and its only decision.
fn call_and_decision(proxy: &Proxy, client: &Client) -> (Value, Value) {
    let mut records = client.records(proxy, "");
    records.truncate(3);
    assert!(records.len() >= 2, "{records:?}");
    let (decision, call) = (records[0].clone(), records[1].clone());
    assert_eq!(decision["type"], "policy_decision", "{records:?}");
    assert_eq!(call["type"], "tool_call", "{records:?}");
    assert_eq!(decision["parent_id"], call["id"]);
    let another = records.get(2).is_some_and(|record| record["parent_id"] == call["id"]);
    assert!(!another, "one decision: {records:?}");
    (call, decision)
}

#[test]
fn fr_a5_strict_blocks_every_violation_and_reveals_no_part_of_the_payload() {
    let mut client = strict().client();
    for server in SERVERS {
        for (tool, expected, recorded) in BAD {
            let result = client.read(&format!("{server}:{tool}"), json!({}));
            let text = error_text(&result).to_owned();
            let place = format!("{server}:{tool}: {text}");
            let description = text.strip_prefix(PREFIX).unwrap_or_else(|| panic!("{place}"));
            assert!(description.contains(expected), "{place}");
            assert!(!description.is_empty() && description.len() <= 500, "{place}");
            assert_eq!(result["content"].as_array().unwrap().len(), 1, "{place}");
            assert_eq!(result.get("structuredContent"), None, "{place}");
            assert!(!result.to_string().contains(CANARY), "{place}");
            let (call, decision) = call_and_decision(strict(), &client);
            assert_eq!(call["status"], "blocked", "{place}");
            assert_eq!(decision["status"], "blocked", "{place}");
            assert_eq!(
                (&decision["server_name"], &decision["tool_name"]),
                (&json!(server), &json!(tool))
            );
            let metadata = &decision["metadata"];
            assert_eq!(metadata["decision"], "blocked");
            assert_eq!(metadata["policy"], "output_validation");
            assert_eq!(metadata["mode"], "strict");
            assert!(metadata.to_string().contains(recorded), "{place}: {metadata}");
        }
    }
}

#[test]
fn fr_a11_warn_forwards_every_violation_unaltered_and_records_one_decision() {
    let mut client = warn().client();
    for server in SERVERS {
        for (tool, _, recorded) in BAD {
            arrives(&mut client, server, tool, &json!({}));
            let (call, decision) = call_and_decision(warn(), &client);
            let place = format!("{server}:{tool}: {decision}");
            assert!(["success", "error"].contains(&call["status"].as_str().unwrap()), "{place}");
            assert_eq!(decision["status"], "warning", "{place}");
            assert_eq!(decision["metadata"]["decision"], "warning", "{place}");
            assert_eq!(decision["metadata"]["mode"], "warn", "{place}");
            assert_eq!(decision["metadata"]["policy"], "output_validation", "{place}");
            assert!(decision["metadata"].to_string().contains(recorded), "{place}");
        }
    }
}

#[test]
fn answer_that_is_not_one_json_value_is_the_upstreams_error_in_every_mode() {
    for proxy in [strict(), warn(), off()] {
        let mut client = proxy.client();
        // If the id follows the unreadable part of a line, the request that it answers is unknown.
        for server in SERVERS.into_iter().filter(|server| *server != "pipe_last") {
            let result = client.read(&format!("{server}:two_values"), json!({}));
            let text = error_text(&result);
            assert!(text.starts_with(&format!("{server}: two_values: ")), "{text}");
            let call = client.records(proxy, "type=tool_call").remove(0);
            assert_eq!((&call["status"], &call["error_message"]), (&json!("error"), &json!(text)));
        }
    }
}

#[test]
fn fr_a4_mode_off_validates_no_result() {
    let mut client = off().client();
    for server in SERVERS {
        for (tool, ..) in BAD {
            arrives(&mut client, server, tool, &json!({}));
        }
    }
    assert_eq!(client.records(off(), "type=policy_decision"), Vec::<Value>::new());
}

#[test]
fn fr_a4_tool_setting_overrides_server_setting_overrides_global_setting() {
    let mut s = HttpStub::shared().entry();
    s["output_validation"] = json!({"mode": "warn", "tools": {
        "violate": {"mode": "strict"},
        "violate_*": {"mode": "off"},
        "too_deep": {"mode": "strict", "max_depth": 65},
    }});
    let other = HttpStub::shared().entry();
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": s, "other": other},
        "output_validation": {"mode": "strict"},
    }));
    let mut client = proxy.client();
    for (tool, blocked, decisions) in [
        ("s:violate", true, 1),
        ("s:violate_many", false, 0),
        ("s:not_an_object", false, 1),
        ("s:too_deep", false, 0),
        ("other:violate_many", true, 1),
        ("other:too_deep", true, 1),
    ] {
        let before = client.records(&proxy, "type=policy_decision").len();
        let result = client.read(tool, json!({}));
        assert_eq!(result.get("isError").is_some(), blocked, "{tool}: {result}");
        let after = client.records(&proxy, "type=policy_decision").len();
        assert_eq!(after - before, decisions, "{tool}");
    }
}

#[test]
fn fr_a6_bounds_are_exact() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": HttpStub::shared().entry(), "pipe": stub_stdio(&[])},
        "output_validation": {"mode": "strict", "max_bytes": 1000, "max_depth": 7},
    }));
    let mut client = proxy.client();
    for server in ["s", "pipe"] {
        for (tool, args, guard) in [
            ("blob", json!({"size": 1000}), None),
            ("blob", json!({"size": 1001}), Some("max_bytes")),
            ("too_deep", json!({"depth": 7}), None),
            ("too_deep", json!({"depth": 8}), Some("max_depth")),
            ("text", json!({"size": 5000}), None),
        ] {
            let result = client.read(&format!("{server}:{tool}"), args.clone());
            let text = result.get("isError").map(|_| error_text(&result));
            assert_eq!(text.is_some(), guard.is_some(), "{server}:{tool} {args}: {text:?}");
            let Some(guard) = guard else { continue };
            assert!(text.unwrap().contains(guard), "{text:?}");
            let (_, decision) = call_and_decision(&proxy, &client);
            assert_eq!(decision["metadata"]["guard"], guard);
        }
    }
}

/// A server with compressed answers, each with a text of 20 MB: in the structured content of a result, in its other content,
/// or in the list of resources.
fn compressed() -> Recorder {
    const LONG: &str =
        r#"{ printf %s "$1"; head -c 20000000 /dev/zero | tr '\0' x; printf %s "$2"; } | gzip"#;
    Recorder::start(|_, request: &Received| {
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let plain = "content-type: application/json\r\n";
        let answer = |result: Value| {
            let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
            Reply::Http("200 OK", plain, answer.to_string().into_bytes())
        };
        let tool = |name: &str| {
            json!({"name": name, "inputSchema": {"type": "object"},
                "outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}})
        };
        let around = match (message["method"].as_str(), message["params"]["name"].as_str()) {
            (Some("initialize"), _) => {
                return answer(json!({"protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}, "resources": {}},
                    "serverInfo": {"name": "compressed", "version": "1"}}));
            }
            (Some("tools/list"), _) => {
                return answer(json!({"tools": [tool("structured"), tool("text")]}));
            }
            (Some("tools/call"), Some("structured")) => {
                [r#"{"content":[],"structuredContent":{"x":""#, r#""}}"#]
            }
            (Some("tools/call"), _) => {
                [r#"{"content":[{"type":"text","text":""#, r#""}],"structuredContent":{}}"#]
            }
            (Some("resources/list"), _) => [r#"{"resources":[{"uri":"x:y","name":""#, r#""}]}"#],
            (Some("notifications/initialized"), _) => {
                return Reply::Http("202 Accepted", "", Vec::new());
            }
            _ => return Reply::Http("405 Method Not Allowed", "", Vec::new()),
        };
        let begin = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{}"#, message["id"], around[0]);
        let end = format!("{}}}", around[1]);
        let packed = Command::new("sh").args(["-c", LONG, "sh", &begin, &end]).output().unwrap();
        let head = "content-type: application/json\r\ncontent-encoding: gzip\r\n";
        Reply::Http("200 OK", head, packed.stdout)
    })
}

#[test]
fn pro_26_limits_of_results_and_lists_apply_to_their_decoded_bytes() {
    let server = compressed();
    let url = format!("http://127.0.0.1:{}/mcp", server.port);
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": {"url": url, "protocol": "http"}},
        "output_validation": {"mode": "strict", "max_bytes": 100_000, "max_held_bytes": 1_000_000},
    }));
    let mut client = proxy.client();
    for (tool, guard, limit) in [
        ("structured", "max_bytes", "max_bytes 100000"),
        ("text", "max_held_bytes", "max_held_bytes 1000000"),
    ] {
        let result = client.read(&format!("s:{tool}"), json!({}));
        assert!(error_text(&result).contains(limit), "{result}");
        let (_, decision) = call_and_decision(&proxy, &client);
        assert_eq!(decision["metadata"]["guard"], guard);
    }
    let resources = client.ask("resources/list", json!({}));
    assert_eq!(resources["result"]["resources"], json!([]));
    let reason = proxy.api("servers")["servers"][0]["reason"].to_string();
    assert!(reason.contains("a page is larger than 16777216 bytes"), "{reason}");
}

#[test]
fn held_result_is_bounded_as_a_whole() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": HttpStub::shared().entry()},
        "output_validation": {"mode": "strict", "max_held_bytes": 2000},
    }));
    let mut client = proxy.client();
    arrives(&mut client, "s", "records", &json!({"size": 2000}));
    let result = client.read("s:records", json!({"size": 2001}));
    assert!(error_text(&result).contains("max_held_bytes 2000"), "{result}");
    let (_, decision) = call_and_decision(&proxy, &client);
    assert_eq!(decision["metadata"]["guard"], "max_held_bytes");
    arrives(&mut client, "s", "records_plain", &json!({"size": 100_000}));
}

#[test]
fn fr_a8_strict_can_require_structured_content() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": HttpStub::shared().entry()},
        "output_validation": {"mode": "strict", "missing_structured_content": "block"},
    }));
    let mut client = proxy.client();
    let result = client.read("s:missing_structured", json!({}));
    assert!(error_text(&result).starts_with(PREFIX), "{result}");
    assert!(error_text(&result).contains("missing"), "{result}");
    call_and_decision(&proxy, &client);
    arrives(&mut client, "s", "read_item", &json!({}));
    arrives(&mut client, "s", "plain", &json!({}));
    arrives(&mut client, "s", "error", &json!({}));
}

#[test]
fn fr_a9_schema_that_does_not_compile_lets_traffic_pass_and_is_reported_once() {
    let only = "uncompilable,unknown_dialect,remote_ref,look_around,add_tool,added_1";
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&["--only", only])},
        "output_validation": {"mode": "strict"},
    }));
    let mut client = proxy.client();
    let unusable = ["remote_ref", "uncompilable", "unknown_dialect"];
    for tool in unusable {
        for _ in 0..3 {
            arrives(&mut client, "s", tool, &json!({}));
        }
    }
    // The list is read again; these tools are unchanged in it, so there is no further warning about them.
    client.call("write", "s:add_tool", json!({}));
    until("the list was read again", || {
        (proxy.activity("type=catalog_change&status=success").len() >= 2).then_some(())
    });
    let warnings = proxy.activity("type=catalog_change&status=warning");
    let named = warnings.iter().map(|w| w["tool_name"].as_str().unwrap());
    // The second warning is about the new tool.
    let mut named: Vec<&str> = named.filter(|name| !name.is_empty()).collect();
    named.sort_unstable();
    assert_eq!(named, unusable, "{warnings:?}");
    for tool in unusable {
        proxy.assert_lines_logged(1, |line| {
            line.contains("cannot be validated") && line.contains(tool)
        });
    }
    assert_eq!(client.records(&proxy, "type=policy_decision"), Vec::<Value>::new());
    let health = &proxy.api("status")["schemas"];
    let summary: Vec<_> =
        health["unusable"].as_array().unwrap().iter().map(|t| &t["tool"]).collect();
    assert_eq!(summary, ["s:remote_ref", "s:uncompilable", "s:unknown_dialect"], "{health}");
    assert!(health["unusable"][0]["reason"].as_str().unwrap().contains("ref"), "{health}");
    assert_eq!(health["judged_by_tape_alone"], json!(["s:look_around"]), "{health}");
}

#[test]
fn formats_are_asserted_on_request() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": HttpStub::shared().entry()},
        "output_validation": {"mode": "strict", "assert_formats": true},
    }));
    let result = proxy.client().read("s:violate_format", json!({}));
    assert!(error_text(&result).contains("format"), "{result}");
}

#[test]
fn other_engine_reaches_the_same_verdict() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"http": HttpStub::shared().entry()},
        "output_validation": {"mode": "strict", "engine": "boon"},
    }));
    let mut client = proxy.client();
    for tool in GOOD {
        arrives(&mut client, "http", tool, &json!({}));
    }
    for (tool, ..) in BAD {
        let result = client.read(&format!("http:{tool}"), json!({}));
        assert!(error_text(&result).starts_with(PREFIX), "{tool}: {result}");
    }
}

/// The tape refuses the result and boon accepts it: the verdict of boon applies, and the difference is reported.
#[test]
fn boon_decides_where_the_engines_disagree_and_it_is_counted() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&["--only", "two_opinions,read_item"])},
        "output_validation": {"mode": "strict"},
    }));
    let mut client = proxy.client();
    let disagreements = || proxy.api("status")["schemas"]["disagreements"].clone();
    arrives(&mut client, "s", "read_item", &json!({}));
    assert_eq!(disagreements(), 0);
    for times in 1..=2 {
        arrives(&mut client, "s", "two_opinions", &json!({}));
        assert_eq!(disagreements(), times);
    }
    proxy.assert_lines_logged(2, |line| {
        line.contains("WARN") && line.contains("s:two_opinions") && line.contains("schema=")
    });
    assert_eq!(client.records(&proxy, "type=policy_decision"), Vec::<Value>::new());
}

/// Tools called through each interface in mode `strict`, and whether their results are blocked.
const CASES: [(&str, bool); 8] = [
    ("read_item", false),
    ("odd_spelling", false),
    ("pretty", false),
    ("records", false),
    ("violate", true),
    ("violate_key", true),
    ("too_deep", true),
    ("duplicate_key", true),
];

fn strict_before_http() -> Value {
    json!({
        "mcpServers": {"http": HttpStub::shared().entry()},
        "output_validation": {"mode": "strict"},
    })
}

/// Asserts that the client receives the bytes of the stub, or only the text for a blocked answer.
fn judged(interface: &str, tool: &str, blocked: bool, bytes: &[u8], expected: &[u8]) {
    if blocked {
        let result: Value = serde_json::from_slice(bytes).unwrap();
        assert!(error_text(&result).starts_with(PREFIX), "{interface} {tool}: {result}");
        assert!(!result.to_string().contains(CANARY), "{interface} {tool}: {result}");
    } else {
        assert!(bytes == expected, "{interface} {tool}: {} for {}", shown(bytes), shown(expected));
    }
}

#[test]
fn fr_a2_results_over_rest_are_validated() {
    let proxy = strict();
    for (tool, blocked) in CASES {
        let body = json!({"tool_name": "call_tool_read",
            "arguments": {"name": format!("http:{tool}")}, "intent": {"operation_type": "read"}});
        let id = format!("rest-{tool}");
        let headers = [("X-API-Key", crate::harness::API_KEY), ("X-Request-Id", id.as_str())];
        let body = body.to_string();
        let response = proxy.request("POST", "/api/v1/tools/call", &headers, body.as_bytes());
        assert_eq!(response.status, 200);
        let bytes = response.body.strip_prefix(br#"{"success":true,"data":"#).unwrap();
        let bytes = bytes.strip_suffix(b"}").unwrap();
        judged("REST", tool, blocked, bytes, &sent("http", tool, &json!({})));
        let decisions = proxy.activity(&format!("request_id={id}&type=policy_decision"));
        assert_eq!(decisions.len(), usize::from(blocked), "{tool}");
        let calls = proxy.activity(&format!("request_id={id}&type=tool_call"));
        assert_eq!(calls[0]["source"], "api");
    }
}

fn by_cli(output: &Output, tool: &str, blocked: bool) {
    assert_eq!(output.code, Some(i32::from(blocked)), "{tool}: {}", output.stderr);
    let bytes = output.stdout.strip_suffix('\n').unwrap().as_bytes();
    judged("CLI", tool, blocked, bytes, &sent("http", tool, &json!({})));
}

#[test]
fn fr_a2_results_on_the_command_line_with_a_running_proxy_are_validated() {
    for (tool, blocked) in CASES {
        let name = format!("http:{tool}");
        by_cli(&strict().cli(&["-o", "json", "call", "tool-read", &name]), tool, blocked);
    }
}

#[test]
fn fr_a2_results_on_the_command_line_without_a_running_proxy_are_validated() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = strict_before_http();
    config["listen"] = json!(format!("127.0.0.1:{}", free_port()));
    let path = configure(config, folder.path());
    for (tool, blocked) in [("odd_spelling", false), ("violate_key", true)] {
        let mut command = mcpproxy();
        command.arg("--config").arg(&path);
        command.args(["-o", "json", "call", "tool-read", &format!("http:{tool}")]);
        by_cli(&Output::of(&mut command), tool, blocked);
    }
    let mut command = mcpproxy();
    command.arg("--config").arg(&path).args(["-o", "json", "activity", "list"]);
    let listed = Output::of(command.args(["--type", "policy_decision"])).json();
    assert_eq!(listed["activities"].as_array().unwrap().len(), 1, "{listed}");
}

#[test]
fn fr_a2_results_over_stdio_are_validated() {
    let mut pipe = Pipe::start(strict_before_http());
    for (tool, blocked) in CASES {
        let line = pipe.read_raw(&format!("http:{tool}"), &json!({}));
        // On a line a raw line break between tokens is a space.
        let expected = sent("pipe", tool, &json!({}));
        judged("stdio", tool, blocked, raw_result(&line), &expected);
    }
}

#[test]
fn sc_005_violation_is_found_and_explained_on_the_command_line() {
    let mut client = strict().client();
    client.read("http:violate_key", json!({}));
    let filters = [
        "activity",
        "list",
        "--type",
        "policy_decision",
        "--session",
        &client.session,
        "-o",
        "json",
    ];
    let listed = strict().cli(&filters).json();
    let id = listed["activities"][0]["id"].as_str().unwrap();
    let shown = strict().cli(&["activity", "show", id]);
    assert_eq!(shown.code, Some(0));
    for word in ["violate_key", "blocked", "strict", "additionalProperties", "CANARY-KEY"] {
        assert!(shown.stdout.contains(word), "{word}: {}", shown.stdout);
    }
}
