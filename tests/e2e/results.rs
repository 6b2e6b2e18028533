//! Results that are too long for an agent: summarized, kept for this agent only, and read unchanged in parts.
//!
//! Size: one topic, with a test for each way in which a result could be lost, changed or disclosed.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::{
    Client, Output, Proxy, Received, Recorder, Reply, ask_modern, configure, error_text, mcpproxy,
    raw_result, until, write_private,
};

/// Value of `result_limit.bytes` in most tests.
pub(crate) const LIMIT: usize = 8000;

/// Answers of the server's tools: whole results, some in a spelling that no serializer writes.
fn result(tool: &str) -> Vec<u8> {
    let long = "x".repeat(2 * LIMIT);
    let text = match tool {
        "prose" => {
            let lines: String =
                (1..=1500).map(|n| format!(r#"line {n}: \u00e9é \"q\" \/ 😀\n"#)).collect();
            format!(r#"{{ "content" : [ {{"type":"text","text":"{lines}the end"}} ] }}"#)
        }
        "table" => {
            let rows: Vec<String> =
                (0..500).map(|n| format!(r#"{{"id":{n}, "name":"row {n}","v":1.50}}"#)).collect();
            let rows = rows.join(",");
            format!(
                r#"{{"content":[{{"type":"text","text":"see the rows"}}],"structuredContent":{{"rows":[{rows}],"a/b":{{"x~y":[7]}}}}}}"#
            )
        }
        "wrong" => format!(r#"{{"content":[],"structuredContent":{{"rows":"{long}"}}}}"#),
        "fails" => format!(r#"{{"content":[{{"type":"text","text":"{long}"}}],"isError":true}}"#),
        "asks" => format!(
            r#"{{"resultType":"input_required","inputRequests":{{}},"requestState":"{long}"}}"#
        ),
        "short" => r#"{"content":[{"type":"text","text":"\u0068ello"}]}"#.to_owned(),
        "latin" => {
            let (head, tail) = (r#"{"content":[{"type":"text","text":""#, r#""}]}"#);
            return [head.as_bytes(), b"\xe9", long.as_bytes(), tail.as_bytes()].concat();
        }
        "huge" => {
            format!(r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#, "y".repeat(40 * LIMIT))
        }
        other => panic!("no tool {other}"),
    };
    text.into_bytes()
}

const TOOLS: [&str; 8] = ["prose", "table", "wrong", "fails", "asks", "short", "latin", "huge"];

/// Text of the only content block of the tool `prose`.
fn prose() -> String {
    let result: Value = serde_json::from_slice(&result("prose")).unwrap();
    result["content"][0]["text"].as_str().unwrap().to_owned()
}

fn answer(_: usize, request: &Received) -> Reply {
    if !request.head[0].starts_with("POST ") {
        return Reply::Http("405 Method Not Allowed", "", Vec::new());
    }
    let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let Some(id) = message.get("id") else {
        return Reply::Http("202 Accepted", "", Vec::new());
    };
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "long", "version": "1"}})
        .to_string()
        .into_bytes(),
        "tools/list" => {
            let schema = json!({"type": "object", "properties": {"rows": {"type": "array"}}});
            let tool = |name: &str| {
                let mut tool = json!({"name": name, "inputSchema": {"type": "object"},
                    "annotations": {"readOnlyHint": true}});
                if ["table", "wrong"].contains(&name) {
                    tool["outputSchema"] = schema.clone();
                }
                tool
            };
            json!({"tools": TOOLS.map(tool)}).to_string().into_bytes()
        }
        "tools/call" => result(message["params"]["name"].as_str().unwrap()),
        _ => {
            let error =
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}});
            let lines = "content-type: application/json\r\n";
            return Reply::Http("200 OK", lines, error.to_string().into_bytes());
        }
    };
    let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"#);
    let body = [head.as_bytes(), &result, b"}"].concat();
    Reply::Http("200 OK", "content-type: application/json\r\n", body)
}

/// Entry of the server shared by all tests.
pub(crate) fn server() -> Value {
    static SERVER: OnceLock<Recorder> = OnceLock::new();
    let port = SERVER.get_or_init(|| Recorder::start(answer)).port;
    json!({"url": format!("http://127.0.0.1:{port}/mcp")})
}

fn config(limit: Value) -> Value {
    json!({"mcpServers": {"s": server()}, "result_limit": limit})
}

fn proxy() -> Proxy {
    Proxy::with(config(json!({"bytes": LIMIT})))
}

/// Proxy shared by the tests that only read.
fn shared() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| Proxy::for_all(config(json!({"bytes": LIMIT}))))
}

fn text(result: &Value, block: usize) -> &str {
    result["content"][block]["text"].as_str().unwrap_or_else(|| panic!("{result}"))
}

/// Handle in the summary that an agent receives.
fn handle(short: &Value) -> String {
    let reported = text(short, 0);
    let at = reported.find("kept_").unwrap_or_else(|| panic!("no handle: {reported}"));
    reported[at..at + 37].to_owned()
}

/// Calls a tool with a kept result. Returns the handle.
fn keep(client: &mut Client, tool: &str) -> String {
    handle(&client.read(&format!("s:{tool}"), json!({})))
}

fn part(client: &mut Client, handle: &str, mut ask: Value) -> Value {
    ask["handle"] = handle.into();
    client.tool("read_result", ask)
}

/// All parts of a result for the request `ask`, joined.
fn all(client: &mut Client, handle: &str, mut ask: Value) -> String {
    let mut read = String::new();
    loop {
        let got = part(client, handle, ask.clone());
        assert_eq!(got["isError"], Value::Null, "{got}");
        read += text(&got, 0);
        match text(&got, 1).split_once("next offset ") {
            Some((_, next)) => ask["offset"] = next.parse::<u64>().unwrap().into(),
            None => return read,
        }
    }
}

fn folder(proxy: &Proxy) -> PathBuf {
    proxy.folder.path().join("data/results")
}

fn files(proxy: &Proxy) -> usize {
    std::fs::read_dir(folder(proxy)).map_or(0, Iterator::count)
}

/// The record of the last call of a tool.
fn record(proxy: &Proxy, tool: &str) -> Value {
    proxy.activity(&format!("tool={tool}"))[0].clone()
}

/// Asserts that the result is forwarded unchanged.
fn assert_whole(client: &mut Client, tool: &str) {
    let got = client.read_raw(&format!("s:{tool}"), json!({}));
    assert!(got.whole && raw_result(&got.body) == result(tool), "{tool}: {}", got.body.len());
}

// RES-1
#[test]
fn long_result_is_summarized_and_a_short_one_forwarded_unchanged() {
    let mut client = shared().client();
    let short = client.read("s:prose", json!({}));
    let reported = text(&short, 0);
    let bytes = result("prose").len();
    for words in [
        &*format!("'s:prose' has {bytes} bytes, more than the {LIMIT} "),
        "kept for 15m as kept_",
        "read_result: {\"handle\": \"kept_",
        "\n(all): object {content}, ",
        "\n/content: array of 1, ",
        "\n/content/0/text: string, ",
        " about 1501 lines\n",
        "\nIts text begins:",
    ] {
        assert!(reported.contains(words), "{words}: {reported}");
    }
    let head = text(&short, 1);
    assert!(head.len() > 1000 && prose().starts_with(head), "{head}");
    let blocks = short["content"].as_array().unwrap().len();
    assert_eq!((short.as_object().unwrap().len(), blocks), (1, 2), "{short}");
    assert!(short.to_string().len() < 4096, "{short}");
    assert_whole(&mut client, "short");
}

#[test]
fn summary_of_a_structured_result_outlines_its_parts() {
    let mut client = shared().client();
    let short = client.read("s:table", json!({}));
    assert_eq!(short["structuredContent"], Value::Null, "{short}");
    let reported = text(&short, 0);
    for words in [
        "structuredContent is not repeated here: read it at /structuredContent.",
        "\n/structuredContent/rows: array of 500, ",
        "\n/structuredContent/a~1b/x~0y: array of 1, 3 bytes\n",
    ] {
        assert!(reported.contains(words), "{words}: {reported}");
    }
    assert_eq!(text(&short, 1), "see the rows");
}

// RES-2
#[test]
fn parts_together_equal_the_bytes_of_the_server() {
    let mut client = shared().client();
    for tool in ["prose", "table"] {
        let handle = keep(&mut client, tool);
        for limit in [1009, 65_536] {
            let read = all(&mut client, &handle, json!({"pointer": "", "limit": limit}));
            assert_eq!(read.as_bytes(), result(tool).trim_ascii(), "{tool} {limit}");
        }
    }
    let handle = keep(&mut client, "prose");
    assert_eq!(all(&mut client, &handle, json!({})), prose());
    assert_eq!(all(&mut client, &handle, json!({"lines": "1-", "limit": 5000})), prose());
    let by_lines: String = (0..16)
        .map(|at| format!("{}-{}", at * 100 + 1, at * 100 + 100))
        .map(|lines| all(&mut client, &handle, json!({"lines": lines})))
        .collect();
    assert_eq!(by_lines, prose());
    let of_string = json!({"pointer": "/content/0/text", "lines": "1501"});
    assert_eq!(text(&part(&mut client, &handle, of_string), 0), "the end");
}

// RES-2
#[test]
fn single_places_are_found_by_pointer_lines_and_search() {
    let mut client = shared().client();
    let table = keep(&mut client, "table");
    for (pointer, value) in [
        ("/structuredContent/rows/499", r#"{"id":499, "name":"row 499","v":1.50}"#),
        ("/structuredContent/rows/7/v", "1.50"),
        ("/structuredContent/a~1b/x~0y/0", "7"),
    ] {
        let got = part(&mut client, &table, json!({"pointer": pointer}));
        assert_eq!(text(&got, 0), value);
        let bytes = value.len();
        let note = format!("bytes 0 to {bytes} of {bytes} of the value there; this is the end");
        assert_eq!(text(&got, 1), note);
    }
    let ask = json!({"pointer": "/structuredContent", "search": "\"row 321\""});
    let found = part(&mut client, &table, ask);
    assert!(text(&found, 0).contains(r#"{"id":321, "name":"row 321","v":1.50}"#), "{found}");
    assert_eq!(text(&found, 1), "1 of 1 match in the value there; this is the end");
    let prose = keep(&mut client, "prose");
    let found = part(&mut client, &prose, json!({"search": "line 77", "limit": 2}));
    let lines: Vec<&str> = text(&found, 0).lines().collect();
    assert!(
        lines[0].starts_with("line 77, byte ") && lines[0].ends_with(": line 77: éé \"q\" / 😀"),
        "{found}"
    );
    assert!(lines[1].starts_with("line 770, byte "), "{found}");
    assert_eq!(text(&found, 1), "2 of 11 matches in its text; next offset 2");
    let got = part(&mut client, &prose, json!({"lines": "77"}));
    assert_eq!(text(&got, 0), "line 77: éé \"q\" / 😀\n");
}

#[test]
fn missing_place_is_answered_with_existing_ones_and_an_invalid_query_is_refused() {
    let mut client = shared().client();
    let handle = keep(&mut client, "table");
    for (ask, expected) in [
        (
            json!({"pointer": "/structuredContent/rows/500"}),
            "/structuredContent/rows is an array of 500",
        ),
        (json!({"pointer": "/nowhere"}), "the members content, structuredContent"),
        (json!({"pointer": "/content/~3"}), "a ~ must be followed by 0 (for ~) or 1 (for /)"),
        (json!({"pointer": "content"}), "must be empty or begin with a slash"),
        (json!({"lines": "2-3"}), "There is no line 2: its text has 1"),
        (json!({"offset": 4000}), "offset 4000 is past the end: its text has 12 bytes"),
    ] {
        let got = part(&mut client, &handle, ask.clone());
        assert!(error_text(&got).contains(expected), "{ask}: {got}");
    }
    for (ask, expected) in [
        (json!({"search": "a".repeat(1 << 20)}), "search must be a string of 1 to 256 bytes"),
        (json!({"search": "a", "lines": "1"}), "lines and search cannot be combined"),
        (json!({"lines": "0"}), "lines must be"),
        (json!({"limit": 65_537}), "limit must be a whole number from 1 to 65536"),
        (json!({"line": "1"}), "Unknown parameter 'line'"),
    ] {
        let got = part(&mut client, &handle, ask);
        assert!(error_text(&got).contains(expected), "{got}");
    }
    let bad = part(&mut client, "kept_7", json!({}));
    assert!(error_text(&bad).starts_with("handle is invalid"), "{bad}");
}

// RES-3
#[test]
fn result_is_not_readable_by_other_principals() {
    let proxy = shared();
    let (mut owner, mut other) = (proxy.client(), proxy.client());
    let handle = keep(&mut owner, "prose");
    let guessed = format!("kept_{}", "0".repeat(32));
    let unknown = part(&mut owner, &guessed, json!({}));
    let refused = error_text(&unknown);
    assert!(refused.starts_with("No result is kept under this handle"), "{refused}");
    // For the result of another principal the answer is the same as for a guessed handle.
    assert_eq!(error_text(&part(&mut other, &handle, json!({}))), refused);
    let ask = json!({"name": "read_result", "arguments": {"handle": handle}});
    let sessionless = ask_modern(proxy, "/mcp", "tools/call", ask, &[]).json();
    assert_eq!(error_text(&sessionless["result"]), refused);
    assert_eq!(text(&part(&mut owner, &handle, json!({"lines": "1501"})), 0), "the end");
}

#[test]
fn client_without_a_session_reads_results_kept_for_its_principal() {
    let proxy = proxy();
    let token = |name: &str| {
        let made: Output = proxy.cli(&["token", "create", name, "--json"]);
        format!("Bearer {}", made.json()["token"].as_str().unwrap())
    };
    let (ann, ben) = (token("ann"), token("ben"));
    let ask = |bearer: &str, name: &str, arguments: Value| {
        let call = json!({"name": name, "arguments": arguments});
        let headers = [("Authorization", bearer)];
        ask_modern(&proxy, "/mcp", "tools/call", call, &headers).json()["result"].take()
    };
    let call = json!({"name": "s:prose", "intent": {"operation_type": "read"}});
    let short = ask(&ann, "call_tool_read", call);
    // The summary is a result of the proxy and has the members that this protocol family requires.
    assert_eq!(short["resultType"], "complete", "{short}");
    let read = json!({"handle": handle(&short), "pointer": "", "limit": 65_536});
    let got = ask(&ann, "read_result", read.clone());
    assert_eq!(got["resultType"], "complete", "{got}");
    // Members required by the protocol family are not part of the kept result.
    assert_eq!(text(&got, 0).as_bytes(), result("prose").trim_ascii());
    assert!(error_text(&ask(&ben, "read_result", read.clone())).starts_with("No result is kept"));
    // A new token with the name of a revoked one is another principal.
    let revoked = proxy.cli(&["token", "revoke", "ben"]);
    assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
    let call = json!({"name": "s:prose", "intent": {"operation_type": "read"}});
    let for_ben = handle(&ask(&token("ben"), "call_tool_read", call));
    let revoked = proxy.cli(&["token", "revoke", "ben"]);
    assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
    let second = ask(&token("ben"), "read_result", json!({"handle": for_ben}));
    assert!(error_text(&second).starts_with("No result is kept"), "{second}");
    assert_eq!(
        text(&ask(&ann, "read_result", read), 1).split("; ").nth(1),
        Some("this is the end")
    );
}

// RES-3
#[test]
fn expired_result_is_removed_from_memory_and_disk() {
    let proxy = Proxy::with(config(json!({"bytes": LIMIT, "keep": "200ms"})));
    let mut client = proxy.client();
    let short = client.read("s:prose", json!({}));
    assert!(text(&short, 0).contains("kept for 200ms as kept_"), "{short}");
    let handle = handle(&short);
    until("it has expired", || {
        let got = part(&mut client, &handle, json!({}));
        (got["isError"] == true).then(|| {
            assert!(error_text(&got).starts_with("No result is kept under this handle"));
        })
    });
    until("its file is removed", || (files(&proxy) == 0).then_some(()));
}

#[test]
fn oldest_results_are_evicted_and_one_above_the_total_is_forwarded_complete() {
    let one = result("prose").len();
    let limit = |bytes: usize, count: usize| json!({"bytes": LIMIT, "max_kept_bytes": bytes, "max_kept": count});
    for limit in [limit(2 * one, 100), limit(100 * one, 2)] {
        let proxy = Proxy::with(config(limit));
        let mut client = proxy.client();
        let handles: Vec<String> = (0..3).map(|_| keep(&mut client, "prose")).collect();
        assert_eq!(files(&proxy), 2);
        let last = json!({"lines": "1501"});
        let kept: Vec<bool> = handles
            .iter()
            .map(|handle| part(&mut client, handle, last.clone())["isError"] == Value::Null)
            .collect();
        assert_eq!(kept, [false, true, true]);
    }
    let proxy = Proxy::with(config(limit(one - 1, 100)));
    let mut client = proxy.client();
    assert_whole(&mut client, "prose");
    let recorded = record(&proxy, "prose")["metadata"]["not_kept"].clone();
    assert_eq!(recorded, format!("it is longer than result_limit.max_kept_bytes {}", one - 1));
}

#[test]
fn call_and_each_read_are_recorded_without_the_handle() {
    let mut config = config(json!({"bytes": LIMIT}));
    config["activity"] = json!({"receipts": true});
    let proxy = Proxy::with(config);
    let mut client = proxy.client();
    let got = client.read_raw("s:prose", json!({}));
    let handle = handle(&got.json()["result"]);
    part(&mut client, &handle, json!({"lines": "1"}));
    part(&mut client, &handle, json!({"lines": "9999"}));
    let call = record(&proxy, "prose");
    let sent = result("prose");
    assert_eq!((&call["type"], &call["status"]), (&json!("tool_call"), &json!("success")));
    assert_eq!(call["response_bytes"], sent.len(), "{call}");
    assert!(sent.starts_with(call["response"].as_str().unwrap().as_bytes()), "{call}");
    let kept = &call["metadata"]["kept"];
    assert_eq!((&kept["bytes"], call["metadata"].get("not_kept")), (&json!(sent.len()), None));
    let hash = |bytes: &[u8]| json!(blake3::hash(bytes).to_hex().as_str());
    let receipt = &call["metadata"]["receipt"];
    assert_eq!(receipt["received"], hash(&sent), "{receipt}");
    assert_eq!(receipt["delivered"], hash(raw_result(&got.body)), "{receipt}");
    assert_eq!(receipt["why"], "kept");
    let readings = proxy.activity("type=internal_tool_call&tool=read_result");
    let [refused, read] = readings.as_slice() else { panic!("{readings:?}") };
    assert_eq!((&read["status"], &refused["status"]), (&json!("success"), &json!("rejected")));
    let named = format!("kept_#{}", kept["id"].as_str().unwrap());
    for reading in [read, refused] {
        assert_eq!(reading["arguments"]["handle"], named, "{reading}");
    }
    assert!(refused["error_message"].as_str().unwrap().starts_with("There is no line 9999"));
    for record in [&call, read, refused] {
        assert!(!record.to_string().contains(&handle), "{record}");
    }
}

// RES-3
#[test]
fn handle_is_never_recorded_in_any_spelling() {
    let proxy = proxy();
    let mut client = proxy.client();
    let handle = keep(&mut client, "prose");
    let digit = handle.chars().nth(5).unwrap();
    let escaped = format!("kept_\\u{:04x}{}", u32::from(digit), &handle[6..]);
    for (arguments, status) in [
        (format!(r#"{{"handle":"{escaped}","lines":"1"}}"#), "success"),
        (format!(r#"{{"handle":"\u006b{}","lines":"1"}}"#, &handle[1..]), "success"),
        (format!(r#"{{"handle":"{handle}","{handle}":1}}"#), "rejected"),
        (format!(r#"{{"handle":"{handle}","{escaped}":1}}"#), "rejected"),
    ] {
        client
            .ask_raw("tools/call", &format!(r#"{{"name":"read_result","arguments":{arguments}}}"#));
        let records = client.records(&proxy, "type=internal_tool_call&tool=read_result");
        let record = &records[0];
        assert_eq!(record["status"], status, "{arguments}: {record}");
        let recorded = record.to_string();
        assert!(!recorded.contains(&handle[5..]) && !recorded.contains(&handle[6..]), "{recorded}");
        let named = record["arguments"]["handle"].as_str().unwrap();
        assert!(named.starts_with("kept_#") && named.len() == 38, "{recorded}");
    }
}

#[test]
fn strict_still_blocks_and_warn_still_warns() {
    for mode in ["off", "warn", "strict"] {
        let mut config = config(json!({"bytes": LIMIT}));
        config["output_validation"] = json!({"mode": mode});
        let proxy = Proxy::with(config);
        let mut client = proxy.client();
        // Conforming results are kept in each mode.
        let handle = keep(&mut client, "table");
        let read = all(&mut client, &handle, json!({"pointer": "", "limit": 65_536}));
        assert_eq!(read.as_bytes(), result("table"), "{mode}");
        let wrong = client.read("s:wrong", json!({}));
        let decided: Vec<Value> = proxy.activity("type=policy_decision&tool=wrong");
        let decisions: Vec<_> =
            decided.iter().map(|decision| decision["status"].as_str().unwrap()).collect();
        match mode {
            "strict" => {
                assert!(error_text(&wrong).starts_with("output schema validation failed: "));
                assert_eq!((decisions, files(&proxy)), (vec!["blocked"], 1));
            }
            _ => {
                assert!(text(&wrong, 0).contains("kept_"), "{wrong}");
                let expected = if mode == "warn" { vec!["warning"] } else { vec![] };
                assert_eq!((decisions, files(&proxy)), (expected, 2), "{mode}");
            }
        }
    }
}

#[test]
fn result_the_client_must_see_is_forwarded_complete() {
    let proxy = proxy();
    let mut client = proxy.client();
    for (tool, why) in [
        ("fails", None),
        ("asks", Some("it is not a complete tool result, which the client must receive whole")),
        ("latin", Some("it is not text in UTF-8")),
    ] {
        assert_whole(&mut client, tool);
        let recorded = record(&proxy, tool)["metadata"]["not_kept"].clone();
        assert_eq!(recorded.as_str(), why, "{tool}");
    }
    assert_eq!(files(&proxy), 0);
}

#[test]
fn limit_applies_to_the_tools_it_is_set_for() {
    let mut config = config(json!({}));
    config["mcpServers"]["s"]["result_limit"] =
        json!({"bytes": 0, "tools": {"p*": {"bytes": 4096, "keep": "7m"}}});
    config["mcpServers"]["t"] = server();
    let proxy = Proxy::with(config);
    let mut client = proxy.client();
    assert_whole(&mut client, "table");
    let short = client.read("s:prose", json!({}));
    assert!(text(&short, 0).contains("more than the 4096 "), "{short}");
    assert!(text(&short, 0).contains("kept for 7m as kept_"), "{short}");
    let got = client.read_raw("t:prose", json!({}));
    assert_eq!(raw_result(&got.body), result("prose"));
}

#[test]
fn results_are_kept_only_for_clients_that_are_offered_read_result() {
    let proxy = proxy();
    let mut direct = proxy.direct_client();
    let listed = direct.ask("tools/list", json!({}))["result"]["tools"].take();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert!(!names.contains(&&json!("read_result")), "{names:?}");
    // The tools of this client have output schemas, and a summary would not conform to them.
    let expected: Value = serde_json::from_slice(&result("table")).unwrap();
    assert_eq!(direct.tool("s__table", json!({})), expected);
    let printed = proxy.cli(&["call", "tool-read", "s:table", "-o", "json"]);
    assert_eq!(printed.stdout.trim_end().as_bytes(), result("table"));
    let body = json!({"tool_name": "call_tool_read",
        "arguments": {"name": "s:table", "intent": {"operation_type": "read"}}});
    let body = body.to_string();
    let headers = [("X-API-Key", crate::harness::API_KEY)];
    let got = proxy.request("POST", "/api/v1/tools/call", &headers, body.as_bytes());
    assert_eq!(got.json()["data"], expected);
    assert_eq!(files(&proxy), 0);
}

/// Names of the tools at `/mcp`.
fn listed(client: &mut Client) -> Vec<String> {
    let tools = client.ask("tools/list", json!({}))["result"]["tools"].take();
    let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
    tools.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn without_a_limit_read_result_is_absent_and_a_reload_switches_it() {
    let proxy = Proxy::with(config(json!({"bytes": 0})));
    let mut client = proxy.client();
    assert_eq!(listed(&mut client).len(), 5);
    assert_whole(&mut client, "prose");
    let unknown = client.tool("read_result", json!({"handle": format!("kept_{}", "0".repeat(32))}));
    assert!(
        unknown["error"]["message"].as_str().unwrap().starts_with("Tool 'read_result' not found")
    );
    assert!(!folder(&proxy).exists());
    let set = |bytes: usize| {
        let path = proxy.folder.path().join("config.json");
        let mut config: Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        config["result_limit"] = json!({"bytes": bytes});
        write_private(&path, &config.to_string());
    };
    set(LIMIT);
    until("it is offered", || {
        listed(&mut client).contains(&"read_result".to_owned()).then_some(())
    });
    let handle = until("results are kept", || {
        let got = client.read("s:prose", json!({}));
        text(&got, 0).contains("kept_").then(|| handle(&got))
    });
    set(0);
    until("it is no longer offered", || (listed(&mut client).len() == 5).then_some(()));
    until("results are forwarded", || {
        let got = client.read_raw("s:prose", json!({}));
        (raw_result(&got.body) == result("prose")).then_some(())
    });
    // Results that were kept before remain readable for their principal.
    assert_eq!(text(&part(&mut client, &handle, json!({"lines": "1501"})), 0), "the end");
}

// RES-1
#[test]
fn result_that_cannot_be_written_is_forwarded_complete_and_the_record_states_why() {
    let proxy = proxy();
    let mut client = proxy.client();
    let folder = folder(&proxy);
    std::fs::remove_dir(&folder).unwrap();
    std::fs::write(&folder, "in the way").unwrap();
    for tool in ["prose", "table"] {
        assert_whole(&mut client, tool);
        let recorded = record(&proxy, tool)["metadata"]["not_kept"].clone();
        assert!(recorded.as_str().unwrap().starts_with("it cannot be written: "), "{recorded}");
    }
    proxy.assert_logged("long result forwarded whole");
    std::fs::remove_file(&folder).unwrap();
    let handle = keep(&mut client, "prose");
    assert_eq!(text(&part(&mut client, &handle, json!({"lines": "1501"})), 0), "the end");
    std::fs::remove_dir_all(&folder).unwrap();
    let lost = part(&mut client, &handle, json!({}));
    assert!(error_text(&lost).starts_with("The kept result cannot be read: "), "{lost}");
}

#[test]
fn result_above_the_holding_bound_is_forwarded_complete() {
    let mut config = config(json!({"bytes": LIMIT}));
    config["output_validation"] = json!({"max_held_bytes": 20 * LIMIT});
    let proxy = Proxy::with(config);
    let mut client = proxy.client();
    assert_whole(&mut client, "huge");
    let recorded = record(&proxy, "huge")["metadata"]["not_kept"].clone();
    assert_eq!(
        recorded,
        format!("it is longer than output_validation.max_held_bytes {}", 20 * LIMIT)
    );
    keep(&mut client, "prose");
    // A smaller result is still kept.
    assert_eq!(files(&proxy), 1);
}

#[test]
fn unusable_results_folder_is_reported_at_the_start() {
    let home = tempfile::tempdir().unwrap();
    let config = configure(config(json!({"bytes": LIMIT})), home.path());
    std::fs::create_dir_all(home.path().join("data")).unwrap();
    std::fs::write(home.path().join("data/results"), "in the way").unwrap();
    let refused = Output::of(mcpproxy().arg("serve").arg("--config").arg(&config));
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    for words in ["results cannot be stored in ", "/data/results: ", "set result_limit.bytes to 0"]
    {
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
    }
}

#[test]
fn kept_results_do_not_survive_their_process() {
    let mut proxy = proxy();
    let mut client = proxy.client();
    keep(&mut client, "prose");
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let only = std::fs::read_dir(folder(&proxy)).unwrap().flatten().next().unwrap();
    assert_eq!((mode(only.path()), mode(folder(&proxy))), (0o600, 0o700));
    // A partial file, as left by a kill.
    std::fs::write(folder(&proxy).join("kept-99.json"), "{\"cont").unwrap();
    std::fs::write(folder(&proxy).join("notes.txt"), "not ours").unwrap();
    proxy.process.signal("KILL");
    proxy.process.wait();
    assert_eq!(files(&proxy), 3);
    let home = std::mem::replace(&mut proxy.folder, tempfile::tempdir().unwrap());
    let next = Proxy::unready(config(json!({"bytes": LIMIT})), home).ready();
    assert_eq!(files(&next), 1, "foreign files are kept");
    let mut client = next.client();
    keep(&mut client, "prose");
    assert_eq!(files(&next), 2);
    let home = next.end();
    assert_eq!(std::fs::read_dir(home.path().join("data/results")).unwrap().count(), 1);
}
