//! What upstreams offer beside tools: lists under names that lead back, answers verbatim.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::{Client, Connection, HttpStub, Proxy, stub_stdio};

fn http() -> &'static HttpStub {
    static STUB: OnceLock<HttpStub> = OnceLock::new();
    STUB.get_or_init(|| HttpStub::for_all(&["--stateless", "--offers", "--only", "echo"]))
}

/// Three servers that offer things, one that does not, one that is not there.
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

/// Every element of a list, over all its pages.
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
    assert_eq!(keys.len(), elements.len(), "each stands there once");
    keys
}

fn error(message: &[u8]) -> (i64, String) {
    let message: Value = serde_json::from_slice(message).unwrap();
    let error = &message["error"];
    (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
}

#[test]
fn lists_are_merged_under_names_that_lead_back() {
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
    assert!(String::from_utf8(raw).unwrap().contains(own), "all else is the server's own");
    assert!(proxy().log().contains("a malformed element is left out"));
}

#[test]
fn what_is_offered_is_declared() {
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

#[test]
fn a_request_goes_on_under_the_servers_own_name_and_its_answer_comes_back_verbatim() {
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
    // A server whose name no URI holds as it is, over a pipe.
    let got = client.ask_raw("resources/read", r#"{"uri":"mcpproxy://a%2Fb%20c/test://shared"}"#);
    assert_eq!(got, http().ask_raw("resources/read", r#"{"uri":"test://shared"}"#));
}

#[test]
fn a_prompt_whose_name_was_cut_is_found() {
    let mut client = proxy().client();
    let prompts = keys(&mut client, "prompts/list", "prompts", "name");
    let hostile = prompts.iter().find(|name| name.starts_with("http__say_")).unwrap();
    let got = client.ask_raw("prompts/get", &json!({"name": hostile}).to_string());
    assert_eq!(got, http().ask_raw("prompts/get", r#"{"name":"say \"hi\"\né"}"#));
}

#[test]
fn a_uri_that_a_server_wrote_itself_is_read_where_it_can_only_be_one_servers() {
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
fn a_servers_error_comes_back_verbatim_and_ours_name_what_is_wrong() {
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

#[test]
fn act_1_what_goes_on_is_on_record() {
    let mut client = proxy().client();
    client.ask_raw("resources/read", r#"{"uri":"mcpproxy://http/test://shared"}"#);
    client.ask_raw("resources/read", r#"{"uri":"mcpproxy://http/missing:x"}"#);
    client.ask_raw("prompts/get", r#"{"name":"nobody__x"}"#);
    client.ask_raw("prompts/list", "{}");
    let records = client.records(proxy(), "");
    let told: Vec<_> = records
        .iter()
        .map(|r| ["type", "tool_name", "server_name", "status"].map(|key| r[key].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
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

/// Reads a session's stream of events until one holds `text`; all that was read.
fn read_until(stream: &mut Connection, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        let chunk = stream.chunk().expect("the stream stands");
        seen += std::str::from_utf8(&chunk).unwrap();
    }
    seen
}

#[test]
fn changes_are_told_and_updates_only_to_who_subscribed() {
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
    let told = read_until(&mut ones, "mcpproxy://s/test://shared");
    assert!(told.contains("notifications/resources/updated"), "{told}");
    let before = keys(&mut one, "resources/list", "resources", "uri");
    other.ask("resources/read", json!({"uri": "mcpproxy://s/test://grows"}));
    let told = read_until(&mut others, "notifications/resources/list_changed");
    assert!(!told.contains("resources/updated"), "{told}");
    let after = keys(&mut one, "resources/list", "resources", "uri");
    let new: Vec<_> = after.difference(&before).collect();
    assert_eq!(new, ["mcpproxy://s/test://grown/0"]);
    assert_eq!(one.ask("resources/unsubscribe", shared)["result"], json!({}));
}

#[test]
fn a_resource_of_any_size_streams_through() {
    let mut client = proxy().client();
    let params = r#"{"uri":"mcpproxy://http/test://big/20000000"}"#;
    let got = client.ask_raw("resources/read", params);
    assert!(got == http().ask_raw("resources/read", r#"{"uri":"test://big/20000000"}"#));
    assert!(got.len() > 20_000_000);
}

#[test]
fn ten_thousand_prompts_and_a_server_that_fails_leave_the_rest_listed() {
    let broken =
        HttpStub::start(&["--offers", "--behaviour", "status_500", "--on", "prompts/list"]);
    let garbage = HttpStub::start(&["--offers", "--behaviour", "garbage", "--on", "prompts/list"]);
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
    assert!(proxy.log().contains("a server's list cannot be read"), "{}", proxy.log());
    let first = client.ask("prompts/list", json!({}));
    assert_eq!(first["result"]["prompts"].as_array().unwrap().len(), 1000);
}
