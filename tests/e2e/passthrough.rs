//! Upstream features other than tools: lists under unambiguous names, answers verbatim.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{
    Client, Connection, HttpStub, PATIENCE, Proxy, Received, Recorder, Reply, ask_modern,
    stub_stdio, until,
};

fn http() -> &'static HttpStub {
    static STUB: OnceLock<HttpStub> = OnceLock::new();
    STUB.get_or_init(|| HttpStub::for_all(&["--stateless", "--offers", "--only", "echo"]))
}

/// A proxy with four servers: two with resources and prompts, one without, and one that cannot be started.
fn proxy() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| {
        Proxy::for_all(json!({"mcpServers": {
            "http": http().entry(),
            "a/b c": stub_stdio(&["--offers", "--malformed", "--page", "2", "--only", "echo"]),
            "plain": stub_stdio(&["--only", "echo"]),
            "gone": {"command": "/no/such/program"},
        }}))
    })
}

/// All elements of a list, from all of its pages.
fn listed(client: &mut Client, method: &str, member: &str) -> Vec<Value> {
    let (mut all, mut params) = (Vec::new(), json!({}));
    for _ in 0..100 {
        let page = client.ask(method, params);
        let elements = page["result"][member].as_array().unwrap_or_else(|| panic!("{page}"));
        all.extend(elements.iter().cloned());
        let Some(cursor) = page["result"].get("nextCursor") else { return all };
        params = json!({ "cursor": cursor });
    }
    panic!("the list has no end");
}

fn keys(client: &mut Client, method: &str, member: &str, key: &str) -> BTreeSet<String> {
    let elements = listed(client, method, member);
    let keys: BTreeSet<_> =
        elements.iter().map(|element| element[key].as_str().unwrap().to_owned()).collect();
    assert_eq!(keys.len(), elements.len(), "each is listed once");
    keys
}

fn error(message: &[u8]) -> (i64, String) {
    let message: Value = serde_json::from_slice(message).unwrap();
    let error = &message["error"];
    (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
}

#[test]
fn lists_are_merged_under_unambiguous_names() {
    for mut client in [proxy().client(), proxy().direct_client()] {
        let resources = keys(&mut client, "resources/list", "resources", "uri");
        let expected = ["mcpproxy://http/", "mcpproxy://a%2Fb%20c/"].iter().flat_map(|server| {
            ["file:///notes/a%20b.txt", "memo:\"q\"\n{é}\u{2028}", "test://shared"]
                .map(|uri| format!("{server}{uri}"))
        });
        assert_eq!(resources, expected.collect());
        let templates =
            keys(&mut client, "resources/templates/list", "resourceTemplates", "uriTemplate");
        assert!(templates.contains("mcpproxy://http/test://item/{id}{?q*}"), "{templates:?}");
        assert_eq!(templates.len(), 2);
        let prompts = keys(&mut client, "prompts/list", "prompts", "name");
        assert!(prompts.contains("http__greet") && prompts.contains("http__under__score"));
        assert_eq!(prompts.len(), 6);
    }
    let raw = proxy().client().ask_raw("resources/list", "{}");
    let own = r#"{"uri" : "mcpproxy://http/file:///notes/a%20b.txt","name":"notes","n":1.0e5,"_meta":{"uri":"inner"},"x":"\u0041"}"#;
    assert!(String::from_utf8(raw).unwrap().contains(own), "everything else is unchanged");
    proxy().assert_logged("malformed element skipped");
}

#[test]
fn offered_features_are_declared() {
    let capabilities = |proxy: &Proxy| {
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "e2e", "version": "1"}}});
        let answer = proxy.request("POST", "/mcp", &[], body.to_string().as_bytes()).json();
        answer["result"]["capabilities"].clone()
    };
    let offered = capabilities(proxy());
    assert_eq!(offered["resources"]["subscribe"], true, "{offered}");
    assert!(offered["prompts"].is_object() && offered["completions"].is_object(), "{offered}");
    let plain = Proxy::start(json!({"s": stub_stdio(&["--only", "echo"])}));
    let offered = capabilities(&plain);
    for absent in ["resources", "prompts", "completions"] {
        assert_eq!(offered.get(absent), None, "{offered}");
    }
    assert_eq!(listed(&mut plain.client(), "prompts/list", "prompts"), Vec::<Value>::new());
}

// PRO-4
#[test]
fn request_is_sent_with_the_servers_own_names_and_its_answer_returned_verbatim() {
    let mut client = proxy().client();
    for (method, ours, theirs) in [
        (
            "resources/read",
            r#"{"uri":"mcpproxy://http/file:///notes/a%20b.txt"}"#,
            r#"{"uri":"file:///notes/a%20b.txt"}"#,
        ),
        (
            "resources/read",
            r#"{"uri":"mcpproxy://http/test://item/7?q=a%20b"}"#,
            r#"{"uri":"test://item/7?q=a%20b"}"#,
        ),
        (
            "resources/read",
            r#"{"x":[ 1.0 ],"uri":"mcpproxy://http/memo:\"q\"\n{\u00e9}\u2028"}"#,
            "{\"uri\":\"memo:\\\"q\\\"\\n{é}\u{2028}\"}",
        ),
        (
            "prompts/get",
            r#"{"name":"http__under__score","arguments":{"n" : "http__x"}}"#,
            r#"{"name":"under__score","arguments":{"n" : "http__x"}}"#,
        ),
        (
            "completion/complete",
            r#"{"argument":{"name":"who","value":"\u0041"},"ref":{"type":"ref/prompt","name":"http__greet"}}"#,
            r#"{"argument":{"name":"who","value":"\u0041"},"ref":{"type":"ref/prompt","name":"greet"}}"#,
        ),
        (
            "completion/complete",
            r#"{"ref":{"type":"ref/resource","uri":"mcpproxy://http/test://item/{id}{?q*}"},"argument":{"name":"id","value":""}}"#,
            r#"{"ref":{"type":"ref/resource","uri":"test://item/{id}{?q*}"},"argument":{"name":"id","value":""}}"#,
        ),
    ] {
        let got = client.ask_raw(method, ours);
        assert_eq!(got, http().ask_raw(method, theirs), "{method} {ours}");
    }
    // A server over a pipe, with a name that must be escaped in URIs.
    let got = client.ask_raw("resources/read", r#"{"uri":"mcpproxy://a%2Fb%20c/test://shared"}"#);
    assert_eq!(got, http().ask_raw("resources/read", r#"{"uri":"test://shared"}"#));
}

#[test]
fn prompt_with_a_truncated_name_is_found() {
    let mut client = proxy().client();
    let prompts = keys(&mut client, "prompts/list", "prompts", "name");
    let hostile = prompts.iter().find(|name| name.starts_with("http__say_")).unwrap();
    let got = client.ask_raw("prompts/get", &json!({"name": hostile}).to_string());
    assert_eq!(got, http().ask_raw("prompts/get", r#"{"name":"say \"hi\"\né"}"#));
}

#[test]
fn own_uri_of_a_server_is_accepted_if_only_one_server_has_resources() {
    let alone = Proxy::start(json!({
        "s": stub_stdio(&["--offers", "--only", "echo"]),
        "plain": stub_stdio(&["--only", "echo"]),
    }));
    let mut client = alone.client();
    for uri in ["test://shared", "test://not/listed"] {
        let params = json!({"uri": uri}).to_string();
        assert_eq!(
            client.ask_raw("resources/read", &params),
            http().ask_raw("resources/read", &params)
        );
    }
    let answer = proxy().client().ask_raw("resources/read", r#"{"uri":"test://shared"}"#);
    let (code, text) = error(&answer);
    assert_eq!(code, -32602);
    assert!(text.starts_with("Resource 'test://shared' not found."), "{text}");
}

#[test]
fn error_of_a_server_is_returned_verbatim_and_our_own_error_names_the_fault() {
    let mut client = proxy().client();
    let got = client.ask_raw("resources/read", r#"{"uri":"mcpproxy://http/missing:x"}"#);
    assert_eq!(got, http().ask_raw("resources/read", r#"{"uri":"missing:x"}"#));
    for (method, params, text) in [
        ("resources/read", json!({}), "Invalid params: uri must be a string"),
        (
            "resources/read",
            json!({"uri": "mcpproxy://nobody/x:y"}),
            "Resource 'mcpproxy://nobody/x:y' not found.",
        ),
        ("prompts/get", json!({"name": "nobody__x"}), "Prompt 'nobody__x' not found."),
        ("prompts/get", json!({"name": "x\n\"é"}), "Prompt 'x\n\"é' not found."),
        ("completion/complete", json!({"ref": {"type": "x"}}), "Invalid params: ref.type must be"),
        ("prompts/list", json!({"cursor": "?"}), "Invalid cursor"),
    ] {
        let (code, message) = error(&client.ask_raw(method, &params.to_string()));
        assert_eq!(code, -32602, "{method} {params}");
        assert!(message.starts_with(text), "{message}");
    }
    let (code, message) =
        error(&client.ask_raw("resources/read", r#"{"uri":"mcpproxy://gone/x:y"}"#));
    assert_eq!(code, -32603);
    assert!(message.starts_with("gone: resources/read: the server is not connected"), "{message}");
}

/// URIs of missing resources at their server, and the `data` of the error about each.
const MISSING: [(&str, &str); 6] = [
    ("t://a/b", r#"{"n":1.0e5,"uri" :"t://a/b", "x":"\/"}"#),
    ("t://escaped", r#"{"uri":"\u0074:\/\/escaped"}"#),
    ("t://another", r#"{"uri":"t://another/one"}"#),
    ("t://number", r#"{"uri":7}"#),
    ("t://nested", r#"{"of":{"uri":"t://nested"},"uris":["t://nested"]}"#),
    ("t://text", r#""t://text""#),
];

/// Error about a missing resource.
fn missing(code: i64, own: &str, data: &str) -> String {
    format!(r#"{{ "code" : {code},"message":"{own} is missing","uri":"{own}","data":{data}}}"#)
}

/// A server on which all resources are missing.
fn without_resources(is_modern: bool) -> Recorder {
    Recorder::start(move |_, request: &Received| {
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let Some(id) = message.get("id") else {
            return Reply::Http("202 Accepted", "", Vec::new());
        };
        let capabilities = json!({"tools": {}, "resources": {}});
        let member = match (message["method"].as_str().unwrap_or_default(), is_modern) {
            ("initialize", false) => format!(
                r#""result":{}"#,
                json!({"protocolVersion": "2025-11-25", "capabilities": capabilities,
                    "serverInfo": {"name": "s", "version": "1"}})
            ),
            ("server/discover", true) => format!(
                r#""result":{}"#,
                json!({"supportedVersions": ["2026-07-28"], "capabilities": capabilities,
                    "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
            ),
            ("tools/list", _) => r#""result":{"tools":[]}"#.to_owned(),
            ("resources/read", _) => {
                let own = message["params"]["uri"].as_str().unwrap();
                let (_, data) = MISSING.iter().find(|(known, _)| *known == own).unwrap();
                let code = if is_modern { -32602 } else { -32002 };
                format!(r#""error":{}"#, missing(code, own, data))
            }
            _ => r#""error":{"code":-32601,"message":"Method not found"}"#.to_owned(),
        };
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},{member}}}"#);
        Reply::Http("200 OK", "content-type: application/json\r\n", body.into())
    })
}

#[test]
fn pro_4_missing_resource_is_named_in_the_clients_spelling_and_other_bytes_stay() {
    let servers = [without_resources(false), without_resources(true)];
    let [old, new] = &servers;
    let entry = |server: &Recorder| json!({"url": format!("http://127.0.0.1:{}/mcp", server.port)});
    let proxy = Proxy::start(json!({"old": entry(old), "new": entry(new)}));
    let error = |answer: &[u8]| {
        let answer = std::str::from_utf8(answer).unwrap();
        let (_, error) = answer.split_once(r#""error":"#).unwrap_or_else(|| panic!("{answer}"));
        error.strip_suffix('}').unwrap().to_owned()
    };
    for (server, code) in [("old", -32002), ("new", -32602)] {
        let single = format!("/mcp/server/{server}");
        for path in ["/mcp", "/mcp/all", &single] {
            let mut legacy = Client::open_at(proxy.port, path);
            for (own, data) in MISSING {
                let (asked, shown) = match path == single {
                    true => (own.to_owned(), data.to_owned()),
                    false => {
                        let asked = format!("mcpproxy://{server}/{own}");
                        let shown = data
                            .replace(r#""uri" :"t://a/b""#, &format!(r#""uri" :"{asked}""#))
                            .replace(r"\u0074:\/\/escaped", &asked);
                        (asked, shown)
                    }
                };
                let params = json!({"uri": asked});
                let ours = legacy.ask_raw("resources/read", &params.to_string());
                assert_eq!(error(&ours), missing(code, own, &shown), "{path} {server}");
                let json = [("Accept", "application/json")];
                let ours = ask_modern(&proxy, path, "resources/read", params, &json);
                assert_eq!(
                    error(ours.text().as_bytes()),
                    missing(-32602, own, &shown),
                    "{path} {server}"
                );
            }
        }
    }
    let mut client = Client::open_at(proxy.port, "/mcp/all");
    client.ask("resources/read", json!({"uri": "mcpproxy://new/t://a/b"}));
    let record = until("the read is recorded", || {
        client.records(&proxy, "type=resource_read").into_iter().next()
    });
    assert_eq!(record["metadata"]["adapted"], "error", "{record}");
    let kept = record["response"].to_string();
    assert!(kept.contains("t://a/b") && !kept.contains("mcpproxy://"), "the server's: {kept}");
}

#[test]
fn act_1_passed_through_requests_are_recorded() {
    let mut client = proxy().client();
    client.ask_raw("resources/read", r#"{"uri":"mcpproxy://http/test://shared"}"#);
    client.ask_raw("resources/read", r#"{"uri":"mcpproxy://http/missing:x"}"#);
    client.ask_raw("prompts/get", r#"{"name":"nobody__x"}"#);
    client.ask_raw("prompts/list", "{}");
    let records = client.records(proxy(), "");
    let recorded: Vec<_> = records
        .iter()
        .map(|r| ["type", "tool_name", "server_name", "status"].map(|key| r[key].as_str().unwrap()))
        .collect();
    assert_eq!(
        recorded,
        [
            ["prompt_get", "prompts/get", "", "rejected"],
            ["resource_read", "resources/read", "http", "error"],
            ["resource_read", "resources/read", "http", "success"],
        ]
    );
    assert_eq!(records[2]["arguments"]["uri"], "test://shared", "what was sent");
    assert!(records[2]["response"].as_str().unwrap().contains("contents"), "{}", records[2]);
    assert!(client.records(proxy(), "type=tool_call").is_empty());
    assert_eq!(client.records(proxy(), "type=resource_read,prompt_get").len(), 3);
}

/// Reads a session's stream of events until one contains `text`. Returns everything read.
fn read_until(stream: &mut Connection, text: &str) -> String {
    let mut seen = String::new();
    let until = Instant::now() + PATIENCE;
    while !seen.contains(text) {
        assert!(Instant::now() < until, "'{text}' does not arrive: {seen}");
        let chunk = stream.chunk().expect("the stream stands");
        seen += std::str::from_utf8(&chunk).unwrap();
    }
    seen
}

// PRO-4
#[test]
fn list_changes_are_sent_to_all_and_updates_only_to_subscribers() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--offers", "--only", "echo"])}));
    let (mut one, mut other) = (proxy.client(), proxy.client());
    let listen = |client: &Client| {
        let mut stream = Connection::open(proxy.port);
        let headers = [("Mcp-Session-Id", &*client.session), ("Accept", "text/event-stream")];
        stream.send("GET", "/mcp", &headers, b"");
        assert_eq!(stream.head().0, 200);
        stream
    };
    let (mut ones, mut others) = (listen(&one), listen(&other));
    let shared = json!({"uri": "mcpproxy://s/test://shared"});
    for _ in 0..3 {
        assert_eq!(one.ask("resources/subscribe", shared.clone())["result"], json!({}));
    }
    let reported = read_until(&mut ones, "mcpproxy://s/test://shared");
    assert!(reported.contains("notifications/resources/updated"), "{reported}");
    let before = keys(&mut one, "resources/list", "resources", "uri");
    other.ask("resources/read", json!({"uri": "mcpproxy://s/test://grows"}));
    let reported = read_until(&mut others, "notifications/resources/list_changed");
    assert!(!reported.contains("resources/updated"), "{reported}");
    let after = keys(&mut one, "resources/list", "resources", "uri");
    let new: Vec<_> = after.difference(&before).collect();
    assert_eq!(new, ["mcpproxy://s/test://grown/0"]);
    assert_eq!(one.ask("resources/unsubscribe", shared)["result"], json!({}));
}

/// A legacy server over stdio that reports a change of its tools during each call, although the tools stay the same.
const REPORTS_NOTHING_NEW: &str = r#"
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  case $line in
    *'"initialize"'*) out='{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}}}';;
    *tools/list*) out='{"tools":[{"name":"t","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}';;
    *tools/call*) echo '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'; out='{"content":[]}';;
    *server/discover*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"error\":{\"code\":-32601,\"message\":\"no\"}}"; continue;;
    *) continue;;
  esac
  echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$out}"
done
"#;

// PRO-4
#[test]
fn reported_change_of_tools_is_passed_on_even_if_the_definitions_are_the_same() {
    let entry = json!({"command": "sh", "args": ["-c", REPORTS_NOTHING_NEW]});
    let proxy = Proxy::start(json!({"s": entry}));
    let mut client = Client::open_at(proxy.port, "/mcp/all");
    let mut stream = Connection::open(proxy.port);
    let headers = [("Mcp-Session-Id", &*client.session), ("Accept", "text/event-stream")];
    stream.send("GET", "/mcp/all", &headers, b"");
    assert_eq!(stream.head().0, 200);
    // One of the two notifications may be for the first list of the server.
    for _ in 0..2 {
        client.ask("tools/call", json!({"name": "s__t", "arguments": {}}));
        read_until(&mut stream, "notifications/tools/list_changed");
    }
}

#[test]
fn resource_of_any_size_is_streamed() {
    let mut client = proxy().client();
    let params = r#"{"uri":"mcpproxy://http/test://big/20000000"}"#;
    let got = client.ask_raw("resources/read", params);
    assert!(got == http().ask_raw("resources/read", r#"{"uri":"test://big/20000000"}"#));
    assert!(got.len() > 20_000_000);
}

#[test]
fn ten_thousand_prompts_and_a_failing_server_leave_the_rest_listed() {
    let broken = HttpStub::start(&["--offers", "--behavior", "status_500", "--on", "prompts/list"]);
    let garbage = HttpStub::start(&["--offers", "--behavior", "garbage", "--on", "prompts/list"]);
    let proxy = Proxy::start(json!({
        "many": stub_stdio(&["--offers", "--many", "10000", "--page", "999", "--only", "echo"]),
        "broken": broken.entry(),
        "garbage": garbage.entry(),
        "z": stub_stdio(&["--offers", "--only", "echo"]),
    }));
    let mut client = proxy.client();
    let prompts = keys(&mut client, "prompts/list", "prompts", "name");
    assert_eq!(prompts.len(), 10_000 + 3 + 3);
    assert!(prompts.contains("z__greet"));
    proxy.assert_logged("a server's list is incomplete or out of date");
    let first = client.ask("prompts/list", json!({}));
    assert_eq!(first["result"]["prompts"].as_array().unwrap().len(), 1000);
}

/// Lists of [`failing_lists`], each with its member and the key of an element.
const FAILING: [(&str, &str, &str); 3] = [
    ("resources/list", "resources", "uri"),
    ("resources/templates/list", "resourceTemplates", "uriTemplate"),
    ("prompts/list", "prompts", "name"),
];

/// A server of whose lists only the first page can be read. After a call of its tool no page can be read.
fn failing_lists() -> Recorder {
    let called = AtomicBool::new(false);
    Recorder::start(move |_, request: &Received| {
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let answer =
            |result: Value| json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        let method = message["method"].as_str().unwrap_or_default();
        let result = match method {
            "initialize" => json!({"protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "resources": {"listChanged": true},
                    "prompts": {"listChanged": true}},
                "serverInfo": {"name": "failing", "version": "1"}}),
            "tools/list" => json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}),
            "tools/call" => {
                called.store(true, Ordering::SeqCst);
                let mut events = String::new();
                for list in ["resources", "prompts"] {
                    let method = format!("notifications/{list}/list_changed");
                    let changed = json!({"jsonrpc": "2.0", "method": method});
                    events += &format!("data: {changed}\n\n");
                }
                events += &format!("data: {}\n\n", answer(json!({"content": []})));
                let head = "content-type: text/event-stream\r\n";
                return Reply::Http("200 OK", head, events.into_bytes());
            }
            _ if method.starts_with("notifications/") => {
                return Reply::Http("202 Accepted", "", Vec::new());
            }
            _ => match FAILING.iter().find(|(list, ..)| *list == method) {
                None => return Reply::Http("405 Method Not Allowed", "", Vec::new()),
                Some((_, member, key))
                    if message["params"].get("cursor").is_none()
                        && !called.load(Ordering::SeqCst) =>
                {
                    json!({*member: [{"name": "x:y", *key: "x:y"}], "nextCursor": "2"})
                }
                Some(_) => return Reply::Http("500 Internal Server Error", "", Vec::new()),
            },
        };
        let body = answer(result).to_string().into_bytes();
        Reply::Http("200 OK", "content-type: application/json\r\n", body)
    })
}

// PRO-11, PRO-12
#[test]
fn pro_11_12_partial_and_stale_lists_keep_their_items_and_are_reported() {
    let server = failing_lists();
    let url = format!("http://127.0.0.1:{}/mcp", server.port);
    let proxy = Proxy::start(json!({"s": {"url": url, "protocol": "http"}}));
    let mut client = proxy.client();
    let listed = |client: &mut Client| {
        FAILING.map(|(method, member, key)| keys(client, method, member, key).len())
    };
    let are_all = |state: &str| {
        let server = proxy.api("servers")["servers"][0].clone();
        assert_eq!(server["state"], "connected", "{server}");
        let reason = server["reason"].as_str().unwrap_or_default().to_owned();
        FAILING.iter().all(|(method, ..)| reason.contains(&format!("{method} is {state}: ")))
    };
    assert_eq!(listed(&mut client), [1; 3]);
    assert!(are_all("partial"), "{}", proxy.api("servers"));
    assert_eq!(client.call("write", "s:t", json!({})).get("isError"), None);
    until("the lists are read again", || {
        assert_eq!(listed(&mut client), [1; 3]);
        are_all("stale").then_some(())
    });
}
