//! REST: reads, refusals, and properties common to all answers.
//!
//! Size: one proxy and all of its routes, each with its bounds.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::{API_KEY, Connection, Proxy, Response, stub, stub_stdio};

fn proxy() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| Proxy::for_all(json!({"mcpServers": {"s": stub_stdio(&[])}})))
}

fn refused(response: &Response, status: u16) -> String {
    assert_eq!(response.status, status, "{}", response.text());
    let body = response.json();
    assert_eq!(body["success"], false, "{body}");
    assert_eq!(body["request_id"], response.header("x-request-id").unwrap(), "{body}");
    body["error"].as_str().unwrap().to_owned()
}

fn post(body: &str) -> Response {
    proxy().request("POST", "/api/v1/tools/call", &[("X-API-Key", API_KEY)], body.as_bytes())
}

fn call(variant: &str, tool: &str, intent: Value) -> Response {
    let arguments = json!({"name": tool, "args": {}});
    post(&json!({"tool_name": variant, "arguments": arguments, "intent": intent}).to_string())
}

// API-1
#[test]
fn without_the_key_only_health_is_available() {
    for path in [
        "/api/v1/activity",
        "/api/v1/activity/export",
        "/api/v1/activity/verify",
        "/events",
        "/api/v1/servers",
        "/api/v1/tools",
        "/api/v1/status",
        "/api/v1/openapi.json",
        "/api/v1/nowhere",
    ] {
        for headers in [&[][..], &[("X-API-Key", "wrong")], &[("Authorization", "Bearer wrong")]] {
            let response = proxy().request("GET", path, headers, b"");
            assert!(refused(&response, 401).starts_with("Invalid or missing API key"), "{path}");
            assert_eq!(response.header("www-authenticate"), Some("Bearer"), "{path}");
        }
    }
    let bearer = format!("Bearer {API_KEY}");
    let ask =
        |path: &str, headers: &[(&str, &str)]| proxy().request("GET", path, headers, b"").status;
    assert_eq!(ask("/api/v1/status", &[("X-API-Key", API_KEY)]), 200);
    assert_eq!(ask("/api/v1/status", &[("Authorization", &bearer)]), 200);
    assert_eq!(ask(&format!("/api/v1/status?apikey={API_KEY}"), &[]), 200);
    assert_eq!(ask("/healthz", &[]), 200);
    assert_eq!(ask("/readyz", &[]), 200);
    let unkeyed = proxy().request("POST", "/api/v1/tools/call", &[], b"{}");
    assert!(refused(&unkeyed, 401).starts_with("Invalid or missing API key"));
}

#[test]
fn every_answer_names_its_request() {
    let id = |response: &Response| response.header("x-request-id").unwrap().to_owned();
    let [first, second] = [(); 2].map(|()| id(&proxy().get("/api/v1/status")));
    assert!(!first.is_empty() && first != second);
    let named = [("X-API-Key", API_KEY), ("X-Request-Id", "my-own.id:7")];
    assert_eq!(id(&proxy().request("GET", "/api/v1/status", &named, b"")), "my-own.id:7");
    let odd = [("X-API-Key", API_KEY), ("X-Request-Id", "a \"quoted\" id")];
    assert_ne!(id(&proxy().request("GET", "/api/v1/status", &odd, b"")), "a \"quoted\" id");
    for path in ["/healthz", "/readyz", "/api/v1/nowhere", "/nowhere"] {
        assert!(!id(&proxy().get(path)).is_empty(), "{path}");
    }
}

#[test]
fn unknown_path_is_404_and_wrong_method_405() {
    for path in ["/api/v1/nowhere", "/api/v2/status", "/nowhere"] {
        refused(&proxy().get(path), 404);
    }
    assert_eq!(
        refused(&proxy().get("/api/v1/activity/01M7YMG6Z4000000002V39QZ4G"), 404),
        "Activity not found"
    );
    assert_eq!(refused(&proxy().get("/api/v1/activity/nonsense"), 404), "Activity not found");
    assert!(refused(&proxy().get("/api/v1/tools/s:nothing"), 404).contains("s:nothing"));
    assert!(refused(&proxy().get("/api/v1/tools/nobody:x"), 404).contains("nobody"));
    for (method, path, allowed) in [
        ("DELETE", "/api/v1/activity", "GET, HEAD"),
        ("POST", "/api/v1/activity/01M7YMG6Z4000000002V39QZ4G", "GET, HEAD"),
        ("PUT", "/healthz", "GET, HEAD"),
        ("GET", "/api/v1/tools/call", "POST"),
        ("POST", "/ui/", "GET, HEAD"),
    ] {
        let response = proxy().request(method, path, &[("X-API-Key", API_KEY)], b"");
        assert_eq!(response.status, 405, "{method} {path}");
        assert_eq!(response.header("allow"), Some(allowed), "{method} {path}");
    }
}

#[test]
fn fr_040_bad_parameters_are_400_and_named() {
    for (query, name) in [
        ("activity?limit=0", "limit"),
        ("activity?limit=101", "limit"),
        ("activity?limit=ten", "limit"),
        ("activity?offset=-1", "offset"),
        ("activity?cursor=nonsense", "cursor"),
        ("activity?type=tool_cal", "type"),
        ("activity?type=tool_call,", "type"),
        ("activity?status=ok", "status"),
        ("activity?intent_type=delete", "intent_type"),
        ("activity?start_time=yesterday", "start_time"),
        ("activity?end_time=2026-13-01T00:00:00Z", "end_time"),
        ("activity?exclude_payloads=maybe", "exclude_payloads"),
        ("activity?with_total=1", "with_total"),
        ("activity?servr=s", "servr"),
        ("activity?server=s&server=t", "server"),
        ("activity?offset=1&cursor=01M7YMG6Z4000000002V39QZ4G", "cursor"),
        ("activity?offset=1&cursor=01M7YMG6Z4000000002V39QZ4G", "offset"),
        ("activity?start_time=2026-01-02T00:00:00Z&end_time=2026-01-01T00:00:00Z", "start_time"),
        ("activity?start_time=2026-01-02T00:00:00Z&end_time=2026-01-01T00:00:00Z", "end_time"),
        ("activity/summary?period=2h", "period"),
        ("activity/export?format=xml", "format"),
        ("activity/export?status=ok", "status"),
        ("activity/export?limit=5", "limit"),
        (
            "activity/export?start_time=2026-01-02T00:00:00Z&end_time=2026-01-01T00:00:00Z",
            "end_time",
        ),
        ("activity/verify?from=1", "from"),
        ("tools?limit=0", "limit"),
        ("tools?limit=101", "limit"),
        ("tools?query=x", "query"),
        ("tools?quarantined=yes", "quarantined"),
        ("tools?cursor=nonsense", "cursor"),
        ("tools?sort=size", "sort"),
        ("tools?sort=-calls&cursor=s:no_such_tool", "cursor"),
        ("tools?q=delete&cursor=s:no_such_tool", "cursor"),
        ("servers?limit=5", "limit"),
        ("status?verbose=true", "verbose"),
        ("openapi.json?format=yaml", "format"),
    ] {
        let text = refused(&proxy().get(&format!("/api/v1/{query}")), 400);
        assert!(
            text.contains(&format!("'{name}'")) || text.contains(&format!("Invalid {name} ")),
            "{query}: {text}"
        );
    }
    let headers = [("X-API-Key", API_KEY)];
    let response = proxy().request("POST", "/api/v1/tools/call?dry_run=true", &headers, b"{}");
    assert_eq!(refused(&response, 400), "Unknown query parameter 'dry_run'");
    // An unescaped + is decoded as a space.
    let text = refused(&proxy().get("/api/v1/activity?start_time=2026-01-01T00:00:00+02:00"), 400);
    assert!(text.contains("00:00:00 02:00") && text.contains("%2B"), "{text}");
    assert_eq!(
        refused(&proxy().get("/api/v1/activity?intent_type=delete"), 400),
        "Invalid intent_type 'delete': must be read, write, or destructive"
    );
}

#[test]
fn fr_038_to_039_log_is_listed_filtered_and_paged() {
    let mut client = proxy().client();
    client.call("read", "s:read_item", json!({}));
    client.call("write", "s:write_item", json!({"size": 1}));
    client.call("destructive", "s:delete_item", json!({}));
    client.call("read", "s:delete_item", json!({}));
    client.call("read", "s:error", json!({}));
    let names = |query: &str| -> Vec<String> {
        let records = client.records(proxy(), query);
        records.iter().map(|r| r["tool_name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        names(""),
        ["error", "delete_item", "delete_item", "delete_item", "write_item", "read_item"],
        "newest first"
    );
    assert_eq!(names("type=tool_call").len(), 5);
    assert_eq!(names("type=policy_decision&status=blocked"), ["delete_item"]);
    assert_eq!(names("status=error"), ["error"]);
    assert_eq!(names("status=rejected,error"), ["error", "delete_item"]);
    assert_eq!(names("intent_type=write"), ["write_item"]);
    assert_eq!(names("intent_type=write,destructive"), ["delete_item", "write_item"]);
    assert_eq!(names("tool=read_item&server=s"), ["read_item"]);
    assert_eq!(names("server=other").len(), 0);
    assert_eq!(names("start_time=2999-01-01T00:00:00Z").len(), 0);
    assert_eq!(names("end_time=2000-01-01T00:00:00Z").len(), 0);
    assert_eq!(names("start_time=2000-01-01T00:00:00Z&type=tool_call&status=success").len(), 3);

    let session = &client.session;
    let page = |rest: &str| proxy().api(&format!("activity?session_id={session}&limit=4{rest}"));
    let first = page("&with_total=true");
    assert_eq!((&first["total"], &first["limit"]), (&json!(6), &json!(4)));
    assert_eq!(first["activities"].as_array().unwrap().len(), 4);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = page(&format!("&cursor={cursor}"));
    assert_eq!(second["activities"].as_array().unwrap().len(), 2);
    assert_eq!(second.get("next_cursor"), None);
    assert_eq!(second.get("total"), None, "only when asked for");
    assert_eq!(page("&offset=4")["activities"], second["activities"]);
    let bare = page("&exclude_payloads=true")["activities"][0].clone();
    assert_eq!((bare.get("arguments"), bare.get("response")), (None, None));
    for query in ["", "&text=delete_item"] {
        let query = format!("&type=policy_decision&exclude_payloads=true{query}");
        let decision = page(&query)["activities"][0].clone();
        assert_eq!(decision.get("arguments"), None, "{decision}");
        assert_eq!(decision["metadata"]["policy"], "intent", "no payload: {decision}");
        assert!(decision["metadata"]["reason"].as_str().unwrap().contains("destructive"));
    }

    let id = first["activities"][0]["id"].as_str().unwrap();
    let detail = proxy().api(&format!("activity/{id}"));
    assert_eq!(detail["activity"], first["activities"][0]);
    let record = &detail["activity"];
    for key in [
        "id",
        "seq",
        "node",
        "prev_hash",
        "hash",
        "type",
        "source",
        "principal",
        "server_name",
        "tool_name",
        "arguments",
        "response",
        "response_truncated",
        "response_bytes",
        "status",
        "error_message",
        "duration_ms",
        "overhead_us",
        "timestamp",
        "session_id",
        "request_id",
        "parent_id",
        "intent",
        "metadata",
    ] {
        assert!(record.get(key).is_some(), "{key}: {record}");
    }
}

#[test]
fn act_7_export_holds_every_matching_record_in_order() {
    let mut client = proxy().client();
    let session = client.session.clone();
    client.call("write", "s:write_item", json!({"note": "=1+1, \"quoted\""}));
    client.call("read", "s:delete_item", json!({}));
    let spread = "{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/call\",\"params\":{\"name\":\
        \"call_tool_read\",\"arguments\":{\"name\":\"s:read_item\",\"args\":{\n  \"a\": 1.50\r\n},\
        \"intent\":{\"operation_type\":\"read\"}}}}";
    client.post(spread.as_bytes());
    let mut listed = client.records(proxy(), "");
    listed.reverse();

    let export = |rest: &str| {
        let path = format!("/api/v1/activity/export?session_id={session}{rest}");
        let response = proxy().get(&path);
        assert_eq!((response.status, response.whole), (200, true), "{}", response.text());
        assert!(!response.header("x-request-id").unwrap().is_empty());
        response
    };
    let plain = export("");
    assert_eq!(plain.header("content-type"), Some("application/x-ndjson"));
    let text = plain.text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, listed, "oldest first, complete, one line each");
    assert!(text.contains("1.50"), "numbers keep their bytes");
    assert_eq!(export("&status=blocked").text().lines().count(), 1);
    assert_eq!(export("&tool=nothing").text(), "");

    let csv = export("&format=csv&type=tool_call");
    assert!(csv.header("content-type").unwrap().starts_with("text/csv"));
    let text = csv.text();
    let rows: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(rows.len(), 4, "{text}");
    for key in listed[0].as_object().unwrap().keys() {
        assert!(rows[0].split(',').any(|column| column == key), "{key} is no column");
    }
    for (row, record) in rows[1..].iter().zip(listed.iter().filter(|r| r["type"] == "tool_call")) {
        assert!(row.starts_with(record["id"].as_str().unwrap()), "{row}");
    }
    assert!(rows[1].contains(r#""{""note"":""=1+1, \""quoted\""""}""#), "{}", rows[1]);
}

#[test]
fn act_7_export_of_many_pages_is_complete() {
    let mut client = proxy().client();
    for _ in 0..300 {
        client.read("s:read_item", json!({}));
    }
    let path = format!("/api/v1/activity/export?session_id={}", client.session);
    let text = proxy().get(&path).text();
    let seqs: Vec<u64> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs.len(), 300);
    assert!(seqs.is_sorted_by(|a, b| a < b));
}

/// The next `count` records of an event stream.
fn next_events(connection: &mut Connection, count: usize) -> Vec<Value> {
    let (mut text, mut records) = (String::new(), Vec::new());
    while records.len() < count {
        let chunk = connection.chunk().expect("the stream continues");
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let field = |name| event.lines().find_map(|line| line.strip_prefix(name));
            if let Some(data) = field("data: ") {
                let record: Value = serde_json::from_str(data).unwrap();
                assert_eq!(field("id: "), record["id"].as_str());
                assert_eq!(field("event: "), Some("activity"));
                records.push(record);
            }
            text = rest.to_owned();
        }
    }
    records
}

fn open_events(proxy: &Proxy, headers: &[(&str, &str)]) -> Connection {
    let mut connection = Connection::open(proxy.port);
    let headers = [&[("X-API-Key", API_KEY)], headers].concat();
    connection.send("GET", "/events", &headers, b"");
    let (status, headers) = connection.head();
    assert_eq!(status, 200);
    let kind = headers.iter().find(|(name, _)| name == "content-type").unwrap();
    assert_eq!(kind.1, "text/event-stream");
    // Once the first event has arrived, the stream delivers every later record.
    assert!(connection.chunk().unwrap().starts_with(b"retry: "));
    connection
}

#[test]
fn act_7_events_stream_live_resume_after_the_last_seen_and_end_with_the_server() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    client.read("s:read_item", json!({}));
    let mut first = open_events(&proxy, &[]);
    client.call("write", "s:write_item", json!({"n": 1}));
    let seen = next_events(&mut first, 1).remove(0);
    assert_eq!(seen, proxy.activity("")[0], "the record as it is listed");
    assert_eq!(seen["tool_name"], "write_item", "nothing from before");
    drop(first);

    for _ in 0..3 {
        client.read("s:read_item", json!({}));
    }
    let after = [("Last-Event-ID", seen["id"].as_str().unwrap())];
    let mut second = open_events(&proxy, &after);
    client.read("s:text", json!({"size": 5}));
    let seqs: Vec<_> = next_events(&mut second, 4).iter().map(|r| r["seq"].as_u64()).collect();
    let begin = seen["seq"].as_u64().unwrap();
    assert_eq!(seqs, (1..=4).map(|n| Some(begin + n)).collect::<Vec<_>>());

    let headers = [("X-API-Key", API_KEY), ("Last-Event-ID", "nonsense")];
    let text = refused(&proxy.request("GET", "/events", &headers, b""), 400);
    assert!(text.contains("Last-Event-ID"), "{text}");
    assert!(refused(&proxy.get("/events?since=1"), 400).contains("'since'"));
    refused(&proxy.request("POST", "/events", &headers[..1], b""), 405);
    proxy.end();
    while second.chunk().is_some_and(|chunk| !chunk.is_empty()) {}
}

#[test]
fn act_4_running_log_is_verified() {
    proxy().client().read("s:read_item", json!({}));
    let report = proxy().api("activity/verify");
    assert_eq!((&report["sound"], &report["broken"]), (&json!(true), &Value::Null), "{report}");
    assert_eq!(report["first"], 1);
    assert!(report["records"].as_u64().unwrap() > 2, "{report}");
    assert_eq!(report["records"], report["last"]);
}

#[test]
fn act_8_payloads_are_truncated_and_secrets_removed() {
    let mut client = proxy().client();
    let secret = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";
    client.read("s:text", json!({"size": 100_000, "password": "hunter2-hunter2", "note": secret}));
    let record = client.records(proxy(), "").remove(0);
    let shown = record.to_string();
    assert!(!shown.contains("hunter2") && !shown.contains(secret), "{shown}");
    assert_eq!(record["arguments"]["size"], 100_000);
    assert_eq!(record["response_truncated"], true);
    assert_eq!(record["response_bytes"], 100_000);
    assert!(record["response"].as_str().unwrap().len() <= 1024);
}

#[test]
fn servers_tools_and_status_are_described() {
    let servers = proxy().api("servers")["servers"].clone();
    assert_eq!(servers[0]["name"], "s");
    assert_eq!(servers[0]["state"], "connected");
    assert_eq!(servers[0]["protocol"], "stdio");
    assert_eq!(servers[0]["protocol_version"], "2025-11-25");

    let found = proxy().api("tools?q=delete%20item");
    assert_eq!(found["tools"][0]["name"], "s:delete_item");
    let found = proxy().api("tools?q=item&limit=3");
    assert_eq!(found["tools"].as_array().unwrap().len(), 3);
    let next = found["next_cursor"].as_str().unwrap();
    let rest = proxy().api(&format!("tools?q=item&limit=3&cursor={next}"));
    assert!(!rest["tools"].as_array().unwrap().is_empty());
    assert!(!rest["tools"].as_array().unwrap().contains(&found["tools"][2]), "continues after it");
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = proxy().api(&format!("tools?limit=30{cursor}"));
        all.extend(page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()));
        let Some(next) = page.get("next_cursor") else { break };
        cursor = format!("&cursor={}", next.as_str().unwrap());
    }
    assert_eq!(all.len() as u64, servers[0]["tools"].as_u64().unwrap());
    assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), all.len(), "each once");

    let tool = proxy().api("tools/s:read_item")["tool"].clone();
    assert_eq!(tool["outputSchema"]["required"], json!(["value"]));
    assert_eq!(tool["capability"]["side_effect"], "read", "CAP-4");
    assert_eq!(tool["call_with"], "call_tool_read");
    let status = proxy().api("status");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["servers"]["connected"], 1);
}

// API-1
#[test]
fn tools_are_sorted_by_name_operation_and_their_calls() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    for tool in ["s:read_item", "s:read_item", "s:delete_item", "s:crash"] {
        let body = json!({"tool_name": "call_tool_read", "arguments": {"name": tool},
            "intent": {"operation_type": "read"}});
        let headers = [("X-API-Key", API_KEY)];
        proxy.request("POST", "/api/v1/tools/call", &headers, body.to_string().as_bytes());
    }
    let mut client = proxy.client();
    let mismatch = json!({"name": "s:delete_item", "intent": {"operation_type": "read"}});
    client.tool("call_tool_destructive", mismatch);
    let most = proxy.api("tools?sort=-calls&limit=1")["tools"][0].clone();
    assert_eq!(most["name"], "s:read_item");
    let calls = json!({"total": 2, "error": 0, "rejected": 0, "blocked": 0});
    assert_eq!(most["calls"], calls);
    assert_eq!(proxy.api("tools?sort=calls&limit=1")["tools"][0]["calls"]["total"], 0);
    let failed = proxy.api("tools?sort=-errors&limit=1")["tools"][0].clone();
    assert_eq!((&failed["name"], &failed["calls"]["error"]), (&json!("s:crash"), &json!(1)));
    // Calls of tools that a server does not have are counted by server only.
    let of_server = || proxy.api("servers")["servers"][0]["calls"].clone();
    let (before, shown) = (of_server(), proxy.api("tools")["tools"].as_array().unwrap().len());
    client.read("s:nosuch", json!({}));
    let after = of_server();
    for count in ["total", "error"] {
        let [before, after] = [&before, &after].map(|calls| calls[count].as_u64().unwrap());
        assert_eq!(after, before + 1, "{count}");
    }
    assert_eq!(proxy.api("tools")["tools"].as_array().unwrap().len(), shown);
    // The intent of the second call does not fit its variant.
    assert_eq!(proxy.api("tools/s:delete_item")["tool"]["calls"]["rejected"], 2);

    let all = |sort: &str| {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = proxy.api(&format!("tools?sort={sort}&limit=30{cursor}"));
            all.extend(page["tools"].as_array().unwrap().iter().cloned());
            let Some(next) = page.get("next_cursor") else { return all };
            cursor = format!("&cursor={}", next.as_str().unwrap());
        }
    };
    let names = |sort| all(sort).iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect();
    let descending: Vec<String> = names("-name");
    assert!(descending.is_sorted_by(|one, other| one > other), "{descending:?}");
    assert_eq!(descending, names("name").into_iter().rev().collect::<Vec<_>>());
    let severity = |it: &Value| {
        let known = ["call_tool_read", "call_tool_write", "call_tool_destructive"];
        known.iter().position(|name| it["call_with"] == *name).unwrap()
    };
    let operations = all("operation");
    assert!(operations.is_sorted_by_key(severity) && severity(operations.last().unwrap()) == 2);
    assert_eq!(operations.len(), descending.len());

    let body = json!({"name": "ci"}).to_string();
    let headers = [("X-API-Key", API_KEY)];
    let made = proxy.request("POST", "/api/v1/tokens", &headers, body.as_bytes()).json();
    let headers = [("X-API-Key", made["data"]["token"].as_str().unwrap())];
    let tools = proxy.request("GET", "/api/v1/tools?sort=-calls", &headers, b"").json();
    let first = &tools["data"]["tools"][0];
    assert!(first["name"].is_string() && first.get("calls").is_none(), "not those of others");
}

// API-1
#[test]
fn principals_are_the_tokens_with_their_scopes_and_without_their_secrets() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    assert_eq!(proxy.api("principals"), json!({"principals": []}));
    let body = json!({"name": "ci", "servers": ["s"], "operations": ["read"]}).to_string();
    let headers = [("X-API-Key", API_KEY)];
    let made = proxy.request("POST", "/api/v1/tokens", &headers, body.as_bytes());
    let secret = made.json()["data"]["token"].as_str().unwrap().to_owned();
    let listed = proxy.get("/api/v1/principals");
    assert!(!listed.text().contains(&secret));
    let one = listed.json()["data"]["principals"][0].clone();
    assert_eq!((&one["name"], &one["token"]["name"]), (&json!("token:ci"), &json!("ci")));
    assert_eq!(one["token"]["operations"], json!(["read"]));
    assert_eq!(one, proxy.api("principals/token:ci"));
    assert_eq!(proxy.api("principals/admin"), json!({"name": "admin", "token": null}));
}

// API-2
#[test]
fn openapi_describes_the_interface() {
    let response = proxy().get("/api/v1/openapi.json");
    assert_eq!(response.status, 200);
    let described = response.json();
    assert!(described["openapi"].as_str().unwrap().starts_with("3.1."), "{described}");
    assert_eq!(described["info"]["version"], env!("CARGO_PKG_VERSION"));

    let activity = &described["paths"]["/api/v1/activity"]["get"];
    let parameter = |name: &str| {
        let all = activity["parameters"].as_array().unwrap();
        all.iter().find(|parameter| parameter["name"] == name).unwrap()["schema"].clone()
    };
    let limit = parameter("limit");
    assert_eq!([&limit["minimum"], &limit["maximum"]], [&json!(1), &json!(100)]);
    assert_eq!(limit["default"], proxy().api("activity")["limit"]);
    assert_eq!(parameter("intent_type")["items"]["enum"], json!(["read", "write", "destructive"]));
    assert_eq!(parameter("start_time")["format"], "date-time");
    let page = &described["components"]["schemas"]["Listing"]["properties"];
    assert_eq!(page["activities"]["items"]["$ref"], "#/components/schemas/Record");

    for (path, item) in described["paths"].as_object().unwrap() {
        let open = ["/healthz", "/readyz", "/proof"].contains(&path.as_str())
            || path.starts_with("/.well-known/");
        let keyed = !open && path != "/api/v1/page/session";
        for operation in item.as_object().unwrap().values() {
            let keys = operation["security"].as_array().map_or(0, Vec::len);
            assert_eq!(keys, if keyed { 3 } else { 0 }, "{path}");
            let responses = operation["responses"].as_object().unwrap();
            let by_code = !keyed && !open;
            assert!(by_code || responses.contains_key("401") == keyed, "{path}");
            assert!(responses.contains_key("400") && responses.contains_key("403"), "{path}");
            assert!(responses["405"]["headers"]["Allow"].is_object(), "{path}");
            for (status, response) in responses {
                assert!(response["headers"]["X-Request-Id"].is_object(), "{path} {status}");
            }
        }
    }
    // The schema of a call request is written by hand, not derived from the parser's type, so it is checked here.
    let call = &described["paths"]["/api/v1/tools/call"]["post"];
    assert!(call["responses"].get("413").is_some());
    let requests = described["components"]["schemas"]["CallRequest"]["oneOf"].as_array().unwrap();
    let variants = ["call_tool_read", "call_tool_write", "call_tool_destructive"];
    for (request, variant) in requests.iter().zip(variants) {
        assert_eq!(request["properties"]["tool_name"]["enum"], json!([variant]));
        assert_eq!(request["required"], json!(["tool_name", "arguments", "intent"]));
        let intent = &request["properties"]["intent"];
        assert_eq!(intent["properties"]["reason"]["maxLength"], 1000);
    }
    assert_eq!(requests.len(), variants.len());
}

// API-3
#[test]
fn readyz_is_503_until_every_server_has_answered_or_failed() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let made = std::process::Command::new("mkfifo").arg(&gate).status().unwrap();
    assert!(made.success());
    // The script starts the server once the test writes into the pipe.
    let script = r#"read -r _ <"$1"; exec "$0" stdio"#;
    let slow = json!({"command": "sh", "args": ["-c", script, stub(), gate]});
    let dead = json!({"command": "/nowhere/at/all"});
    let config = json!({"mcpServers": {"slow": slow, "dead": dead}});
    let proxy = Proxy::unready(config, tempfile::tempdir().unwrap());
    let waiting = proxy.get("/readyz");
    assert_eq!(waiting.status, 503);
    assert_eq!(waiting.json()["ready"], false);
    std::fs::write(&gate, "\n").unwrap();
    let proxy = proxy.ready();
    let ready = proxy.get("/readyz").json();
    assert_eq!(ready["ready"], true);
    let state = |name: &str| {
        let servers = ready["servers"].as_array().unwrap();
        servers.iter().find(|server| server["name"] == name).unwrap().clone()
    };
    assert_eq!(state("slow")["state"], "connected");
    assert_eq!(state("dead")["state"], "failed");
    assert!(state("dead")["reason"].as_str().unwrap().contains("/nowhere/at/all"));
}

#[test]
fn readyz_is_ready_while_an_enabled_server_is_usable() {
    let dead = || json!({"command": "/nowhere/at/all"});
    let off = || json!({"command": "/nowhere/at/all", "enabled": false});
    for (servers, ready) in [
        (json!({}), true),
        (json!({"off": off()}), true),
        (json!({"dead": dead()}), false),
        (json!({"dead": dead(), "off": off()}), false),
        (json!({"dead": dead(), "s": stub_stdio(&[])}), true),
    ] {
        let proxy = Proxy::start(servers.clone());
        let response = proxy.request("GET", "/readyz", &[], b"");
        assert_eq!(response.status, 200, "{servers}");
        assert_eq!(response.json()["ready"], ready, "{servers}");
    }
}

#[test]
fn outcome_of_a_call_determines_its_status() {
    let read = json!({"operation_type": "read"});
    let text = |response: &Response, status| refused(response, status);
    let good = call("call_tool_read", "s:read_item", read.clone());
    assert_eq!(good.status, 200);
    assert_eq!(good.json()["data"]["structuredContent"]["value"], 7);
    let failed = call("call_tool_read", "s:error", read.clone());
    assert_eq!((failed.status, &failed.json()["data"]["isError"]), (200, &json!(true)));

    let wrong = call("call_tool_read", "s:read_item", json!({"operation_type": "write"}));
    assert_eq!(
        text(&wrong, 400),
        "Intent mismatch: tool is call_tool_read but intent declares write"
    );
    let missing = call("call_tool_read", "s:read_item", Value::Null);
    assert_eq!(text(&missing, 400), "intent parameter is required for call_tool_read");
    let gate = call("call_tool_read", "s:delete_item", read.clone());
    assert_eq!(
        text(&gate, 403),
        "Tool 's:delete_item' is marked destructive by server, use call_tool_destructive"
    );
    assert!(text(&call("call_tool_read", "s:nothing", read.clone()), 404).contains("s:nothing"));
    assert!(text(&call("call_tool_read", "nobody:x", read.clone()), 404).contains("nobody"));
    assert_eq!(text(&call("call_tool_read", "s:rpc_error", read), 502), "the stub refuses");
    // The arguments may also contain an intent, as over MCP; it must not differ from the other one.
    let twice = |inner: &str| {
        let arguments = json!({"name": "s:read_item", "intent": {"operation_type": inner}});
        let body = json!({"tool_name": "call_tool_read", "arguments": arguments,
            "intent": {"operation_type": "read"}});
        post(&body.to_string())
    };
    assert_eq!(twice("read").status, 200);
    assert_eq!(text(&twice("write"), 400), "intent.operation_type is stated twice, differently");
    let legacy = call("call_tool", "s:read_item", json!({"operation_type": "read"}));
    assert!(text(&legacy, 404).starts_with("Tool 'call_tool' not found. Use call_tool_read"));
}

#[test]
fn failed_upstream_is_502() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let body = json!({"tool_name": "call_tool_read", "arguments": {"name": "s:crash"},
        "intent": {"operation_type": "read"}});
    let headers = [("X-API-Key", API_KEY)];
    let body = body.to_string();
    let response = proxy.request("POST", "/api/v1/tools/call", &headers, body.as_bytes());
    assert!(refused(&response, 502).starts_with("s: crash: "), "{}", response.text());
}

#[test]
fn unreadable_bodies_are_400() {
    let good = r#"{"tool_name":"call_tool_read","arguments":{"name":"s:read_item"},"intent":{"operation_type":"read"}}"#;
    assert_eq!(post(good).status, 200);
    for body in [
        "",
        "nonsense",
        "[]",
        "{}",
        r#"{"tool_name":"call_tool_read"}"#,
        r#"{"tool_name":"call_tool_read","arguments":[]}"#,
        r#"{"tool_name":"call_tool_read","arguments":{"name":"s:read_item"},"intent":{"operation_type":"read"},"more":1}"#,
        r#"{"tool_name":"call_tool_read","arguments":{"name":"s:read_item"},"intent":{"operation_type":"read"},"tool_n\u0061me":"call_tool_write"}"#,
        r#"{"tool_name":"call_tool_read","arguments":{"name":"s:delete_item","name":"s:read_item"},"intent":{"operation_type":"read"}}"#,
        r#"{"tool_name":"call_tool_read","arguments":{"name":"s:read_item","args":{"a":1,"\u0061":2}},"intent":{"operation_type":"read"}}"#,
        r#"{"tool_name":"call_tool_read","arguments":{"name":"s:read_item","args":{},"args_json":"{}"},"intent":{"operation_type":"read"}}"#,
        r#"{"tool_name":"call_tool_read","arguments":{"name":"s:read_item","args_json":"{\"a\":1,\"a\":2}"},"intent":{"operation_type":"read"}}"#,
        r#"{"tool_name":"call_tool_read","arguments":{"name":"s:read_item","args":[]},"intent":{"operation_type":"read"}}"#,
    ] {
        let id = refused(&post(body), 400);
        assert!(!id.is_empty(), "{body}");
    }
    let headers = [("X-API-Key", API_KEY), ("X-Request-Id", "unreadable-1")];
    let body = br#"{"tool_name":"call_tool_read","arguments":{"name":"s:x","name":"s:y"}}"#;
    // A separate proxy, because this refusal could be counted in the record of an earlier identical one.
    let alone = Proxy::start(json!({}));
    alone.request("POST", "/api/v1/tools/call", &headers, body);
    let records = alone.activity("request_id=unreadable-1");
    assert_eq!((records.len(), &records[0]["status"]), (1, &json!("rejected")), "{records:?}");
}

#[test]
fn foreign_hosts_and_origins_are_refused_even_with_the_key() {
    for header in [("Host", "evil.example"), ("Origin", "http://evil.example")] {
        let headers = [("X-API-Key", API_KEY), header];
        let response = proxy().request("GET", "/api/v1/status", &headers, b"");
        assert!(refused(&response, 403).contains("not allowed"));
    }
}
