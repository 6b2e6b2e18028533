//! `/mcp/server/NAME` and `stdio --server NAME`: one server under its own names, with its extensions, through the same
//! pipeline.

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Client, Connection, Events, Pipe, Process, Proxy, Received, Recorder, Reply, Response,
    ask_modern, configure, create_token, error_text, mcpproxy, raw_result, stub_stdio, until,
};

/// Items of the lists, with spellings that no serializer writes.
const TOOL: &str = r#"{"name":"do.it","description":"d" ,"inputSchema":{"type":"object","properties":{"n":{"type":"integer"}}},"outputSchema":{"type":"object","required":["n"]},"annotations":{"readOnlyHint":true},"_meta":{"ui/x":1.0e5}}"#;
const WIPE: &str = r#"{"inputSchema":{"type":"object"},"name":"wipe"}"#;
const RESOURCE: &str =
    r#"{"uri" : "ui:\/\/app\/1","name":"n","mimeType":"text/html","_meta":{"x":"\u0041"}}"#;
const TEMPLATE: &str = r#"{"name":"t","uriTemplate":"ui://{id}"}"#;
const PROMPT: &str = r#"{"name":"p\u0031","arguments":[{"name":"who"}],"_meta":{"n":1.0}}"#;
const CALLED: &str =
    r#"{"content":[ ],"structuredContent":{"n":7.0},"_meta":{"ui/resource":"ui://app/1"}}"#;
const READ: &str = r#"{"contents":[{"uri":"ui://app/1","text":"<b>" , "_meta":{"x":1.0e5}}]}"#;
const GOT: &str = r#"{"messages":[ ],"description":"\u0041"}"#;
const COMPLETED: &str = r#"{"completion":{"values":["a" ]}}"#;
const SKILLS: &str = r#"{"skills":[ {"name":"s","n":1.0e5}]}"#;

/// A server with extensions.
struct Server(Recorder);

impl Server {
    fn start() -> Self {
        Self(Recorder::start(|_, asked| answer(asked)))
    }

    fn entry(&self) -> Value {
        json!({"url": format!("http://127.0.0.1:{}/mcp", self.0.port)})
    }

    /// Received messages with this method.
    fn asked(&self, method: &str) -> Vec<Value> {
        let bodies = self.0.received();
        let messages = bodies.iter().filter_map(|it| serde_json::from_slice(&it.body).ok());
        messages.filter(|message: &Value| message["method"] == method).collect()
    }
}

fn answer(asked: &Received) -> Reply {
    let Ok(message) = serde_json::from_slice::<Value>(&asked.body) else {
        return Reply::Http("405 Method Not Allowed", "", Vec::new());
    };
    let id = &message["id"];
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({"protocolVersion": "2025-11-25", "instructions": "Wipe last.",
            "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "completions": {},
                "extensions": {"x.example/skills": {"v": 1}, "io.modelcontextprotocol/tasks": {}},
                "experimental": {"e": {}}, "tasks": {"list": {}}},
            "serverInfo": {"name": "own", "version": "1"}})
        .to_string(),
        "tools/list" => format!(r#"{{"tools":[{TOOL},{WIPE}]}}"#),
        "resources/list" => format!(r#"{{"resources":[{RESOURCE}]}}"#),
        "resources/templates/list" => format!(r#"{{"resourceTemplates":[{TEMPLATE}]}}"#),
        "prompts/list" => format!(r#"{{"prompts":[{PROMPT}]}}"#),
        "tools/call" => match message["params"]["arguments"]["n"].as_i64() {
            // This result violates the output schema of the tool.
            Some(0) => r#"{"content":[],"structuredContent":{}}"#.to_owned(),
            // Messages of an extension are sent before the result.
            Some(1) => {
                let before = [
                    r#"{"jsonrpc":"2.0","method":"notifications/skills/changed","params":{"a" : 1.0e5}}"#,
                    r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{}}"#,
                    r#"{"jsonrpc":"2.0","id":"q","method":"skills/pick","params":{"of":[ ]}}"#,
                ];
                let last = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{CALLED}}}"#);
                let events = before.into_iter().chain([last.as_str()]);
                let events: String = events.map(|it| format!("data: {it}\n\n")).collect();
                let head = "content-type: text/event-stream\r\n";
                return Reply::Http("200 OK", head, events.into_bytes());
            }
            _ => CALLED.to_owned(),
        },
        "resources/read" => READ.to_owned(),
        "prompts/get" => GOT.to_owned(),
        "completion/complete" => COMPLETED.to_owned(),
        "skills/list" => SKILLS.to_owned(),
        "skills/fail" | "skills/none" => {
            let error = match message["method"].as_str().unwrap_or_default() {
                "skills/fail" => r#"{"code":-32099,"message":"no","data":{"n":1.0e5}}"#,
                _ => r#"{"code":-32601,"message":"none"}"#,
            };
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
            return Reply::Http("200 OK", "content-type: application/json\r\n", body.into_bytes());
        }
        _ => return Reply::Http("202 Accepted", "", Vec::new()),
    };
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
    Reply::Http("200 OK", "content-type: application/json\r\n", body.into_bytes())
}

const PATH: &str = "/mcp/server/own";

/// A proxy for that server and another one.
fn proxy(server: &Server) -> Proxy {
    Proxy::start(json!({"own": server.entry(), "other": stub_stdio(&["--offers"])}))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Requests with the server's own names, and the bytes of the expected results.
fn requests() -> Vec<(&'static str, &'static str, String)> {
    vec![
        ("tools/list", "{}", format!(r#"{{"tools":[{TOOL},{WIPE}]}}"#)),
        ("resources/list", "{}", format!(r#"{{"resources":[{RESOURCE}]}}"#)),
        ("resources/templates/list", "{}", format!(r#"{{"resourceTemplates":[{TEMPLATE}]}}"#)),
        ("prompts/list", "{}", format!(r#"{{"prompts":[{PROMPT}]}}"#)),
        ("tools/call", r#"{"name":"do.it","arguments":{"n":7}}"#, CALLED.to_owned()),
        ("resources/read", r#"{"uri":"ui://app/1"}"#, READ.to_owned()),
        ("prompts/get", r#"{"name":"p1","arguments":{"who":"x"}}"#, GOT.to_owned()),
        (
            "completion/complete",
            r#"{"ref":{"type":"ref/prompt","name":"p1"},"argument":{"name":"who","value":""}}"#,
            COMPLETED.to_owned(),
        ),
        ("skills/list", r#"{"of":[ 1.0 ]}"#, SKILLS.to_owned()),
    ]
}

// PRO-41
#[test]
fn legacy_client_gets_the_servers_own_bytes_under_its_own_names() {
    let server = Server::start();
    let proxy = proxy(&server);
    let mut client = Client::open_at(proxy.port, PATH);
    for (method, params, expected) in requests() {
        let got = client.ask_raw(method, params);
        assert_eq!(text(&got), expected, "{method}");
    }
    let sent = |method: &str| server.asked(method).pop().unwrap()["params"].clone();
    assert_eq!(sent("tools/call")["name"], "do.it");
    assert_eq!(sent("resources/read"), json!({"uri": "ui://app/1"}));
    assert_eq!(sent("prompts/get"), json!({"name": "p1", "arguments": {"who": "x"}}));
    assert_eq!(sent("skills/list"), json!({"of": [1.0]}));
    // A trailing slash makes no difference, and the names used in merged lists are unknown at this endpoint.
    let mut slashed = Client::open_at(proxy.port, "/mcp/server/own/");
    assert_eq!(text(&slashed.ask_raw("prompts/list", "{}")), requests()[3].2);
    let unknown = client.ask("tools/call", json!({"name": "own__wipe", "arguments": {}}));
    let message = unknown["error"]["message"].as_str().unwrap_or_else(|| panic!("{unknown}"));
    assert!(
        message.starts_with("Unknown tool: own__wipe") && message.contains("wipe"),
        "{message}"
    );
}

// PRO-41
#[test]
fn tool_whose_own_name_differs_by_case_is_unknown() {
    let server = Server::start();
    let proxy = proxy(&server);
    let mut client = Client::open_at(proxy.port, PATH);
    client.ask("tools/list", json!({}));
    for name in ["DO.IT", "do.It", " do.it", "do.it "] {
        let arguments = json!({"n": 7});
        let unknown = client.ask("tools/call", json!({"name": name, "arguments": arguments}));
        let message = unknown["error"]["message"].as_str().unwrap_or_else(|| panic!("{unknown}"));
        assert!(message.starts_with(&format!("Unknown tool: {name}")), "{message}");
    }
    assert_eq!(server.asked("tools/call"), Vec::<Value>::new());
    client.ask_raw("tools/call", r#"{"name":"do.it","arguments":{"n":7}}"#);
    assert_eq!(server.asked("tools/call").len(), 1);
}

// PRO-41
#[test]
fn modern_client_gets_the_servers_own_bytes() {
    let server = Server::start();
    let proxy = proxy(&server);
    for (method, params, expected) in requests() {
        let params = serde_json::from_str(params).unwrap();
        let got = ask_modern(&proxy, PATH, method, params, &[("Accept", "application/json")]);
        assert_eq!(got.status, 200, "{method}: {}", got.text());
        let result = text(raw_result(&got.body));
        // The members that this revision requires are added before and after those of the server.
        let own = expected.trim_start_matches('{').trim_end_matches('}');
        assert!(result.contains(own), "{method}: {result}");
        assert!(result.contains(r#""resultType":"complete""#), "{method}: {result}");
    }
}

// PRO-41
#[test]
fn initialize_result_is_the_servers_own() {
    let server = Server::start();
    let proxy = proxy(&server);
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "e2e", "version": "1"}}});
    let legacy = proxy.request("POST", PATH, &[], hello.to_string().as_bytes()).json();
    let modern = ask_modern(&proxy, PATH, "server/discover", json!({}), &[]).json();
    for introduction in [&legacy["result"], &modern["result"]] {
        assert_eq!(introduction["instructions"], "Wipe last.", "{introduction}");
        let capabilities = &introduction["capabilities"];
        // This endpoint does not declare tasks.
        assert_eq!(capabilities["extensions"], json!({"x.example/skills": {"v": 1}}));
        assert_eq!(capabilities["experimental"], json!({"e": {}}));
        assert_eq!(capabilities.get("tasks"), None, "{capabilities}");
        assert_eq!(capabilities.get("logging"), None, "the server has none: {capabilities}");
        assert_eq!(capabilities["tools"], json!({"listChanged": true}));
        assert_eq!(capabilities["resources"], json!({"listChanged": true, "subscribe": false}));
    }
    let merged = proxy.request("POST", "/mcp/all", &[], hello.to_string().as_bytes()).json();
    assert_eq!(merged["result"]["capabilities"].get("extensions"), None, "{merged}");
}

// PRO-41
#[test]
fn extension_method_is_admitted_recorded_and_forwarded_only_at_the_servers_endpoint() {
    let server = Server::start();
    let proxy = proxy(&server);
    let mut client = Client::open_at(proxy.port, PATH);
    let failed: Value = serde_json::from_slice(&client.ask_raw("skills/fail", "{}")).unwrap();
    assert_eq!(failed["error"], json!({"code": -32099, "message": "no", "data": {"n": 1.0e5}}));
    client.ask("skills/list", json!({"of": [1], "_meta": {"x/y": 1}}));
    assert_eq!(server.asked("skills/list")[0]["params"], json!({"_meta": {"x/y": 1}, "of": [1]}));
    let records = until("both are recorded", || {
        let records = client.records(&proxy, "type=internal_tool_call");
        (records.len() == 2).then_some(records)
    });
    let of = |record: &Value| {
        ["server_name", "tool_name", "status"].map(|member| record[member].clone())
    };
    assert_eq!(of(&records[0]), ["own", "skills/list", "success"].map(Value::from));
    assert_eq!(of(&records[1]), ["own", "skills/fail", "error"].map(Value::from));
    // Methods whose names resemble those of the protocol are not accepted as methods of extensions.
    for method in ["tools/x", "Tools/Call", "/tools/call", "tasks/lists", "notifications/x", "a b"]
    {
        let refused = client.ask(method, json!({"name": "wipe"}));
        assert_eq!(refused["error"]["code"], -32601, "{method}: {refused}");
        assert_eq!(server.asked(method), Vec::<Value>::new(), "{method}");
    }
    let refused = client.ask("skills/list", json!({"a": 1, "A": 2}));
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    for path in ["/mcp", "/mcp/all"] {
        let mut elsewhere = Client::open_at(proxy.port, path);
        assert_eq!(elsewhere.ask("skills/list", json!({}))["error"]["code"], -32601, "{path}");
        let modern = ask_modern(&proxy, path, "skills/list", json!({}), &[]);
        assert_eq!(modern.status, 404, "{path}");
    }
    assert_eq!(server.asked("skills/list").len(), 1);
}

// PRO-41
#[test]
fn method_that_the_server_does_not_have_is_not_found() {
    let server = Server::start();
    let proxy = proxy(&server);
    for (method, status, code) in [("skills/none", 404, -32601), ("skills/fail", 200, -32099)] {
        let modern = ask_modern(&proxy, PATH, method, json!({}), &[]);
        assert_eq!((modern.status, &modern.json()["error"]["code"]), (status, &json!(code)));
    }
    // In the legacy family the status is not 404, because that status would end the session.
    let mut client = Client::open_at(proxy.port, PATH);
    assert_eq!(client.ask("skills/none", json!({}))["error"]["code"], -32601);
}

// PRO-41
#[test]
fn rules_limits_and_scope_apply_to_methods_of_extensions() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let rules = r#"@id("no-skills") forbid (principal, action == Action::"read_resource",
        resource == Resource::"own:skills/list");"#;
    std::fs::write(folder.path().join("rules.cedar"), rules).unwrap();
    let mut entry = server.entry();
    entry["limits"] = json!({"rate_per_minute": 1});
    let config = json!({"mcpServers": {"own": entry}, "policy": {"files": ["rules.cedar"]}});
    let proxy = Proxy::unready(config, folder).ready();
    let mut client = Client::open_at(proxy.port, PATH);
    let refused = client.ask("skills/list", json!({}));
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("not allowed by rule 'no-skills'"), "{message}");
    assert_eq!(client.ask("skills/fail", json!({}))["error"]["code"], -32099);
    let refused = client.ask("skills/fail", json!({}));
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("limit 1 per minute"), "{message}");
    assert_eq!(server.asked("skills/list").len() + server.asked("skills/fail").len(), 1);
    // The operation of such a method is unknown, so a token limited to reads does not permit it.
    let reader = create_token(&proxy, &["reader", "--operation", "read"]);
    let bearer = format!("Bearer {reader}");
    let headers = [("Authorization", bearer.as_str())];
    let refused = ask_modern(&proxy, PATH, "skills/list", json!({}), &headers).json();
    let message = refused["error"]["message"].as_str().unwrap();
    let expected = "Token 'reader' does not allow method 'skills/list' of 'own': it is limited to operation 'read'";
    assert_eq!(message, expected);
}

// PRO-41
#[test]
fn output_validation_applies() {
    let server = Server::start();
    let proxy = Proxy::with(json!({"mcpServers": {"own": server.entry()},
        "output_validation": {"mode": "strict"}}));
    let mut client = Client::open_at(proxy.port, PATH);
    let blocked = client.ask("tools/call", json!({"name": "do.it", "arguments": {"n": 0}}));
    let message = error_text(&blocked["result"]);
    assert!(message.contains("required"), "{message}");
    let record =
        until("it is recorded", || client.records(&proxy, "type=tool_call").into_iter().next());
    assert_eq!(record["status"], "blocked", "{record}");
    assert_eq!((&record["server_name"], &record["tool_name"]), (&json!("own"), &json!("do.it")));
    assert_eq!(record["metadata"]["tool_variant"], "direct", "{record}");
}

// PRO-41
#[test]
fn extension_messages_reach_the_client_of_the_call_only_at_the_servers_endpoint() {
    let server = Server::start();
    let proxy = proxy(&server);
    for (path, name, passed) in [(PATH, "do.it", true), ("/mcp/all", "own__do.it", false)] {
        let client = Client::open_at(proxy.port, path);
        let body = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call",
            "params": {"name": name, "arguments": {"n": 1}}});
        let mut connection = Connection::open(proxy.port);
        let headers = [("Mcp-Session-Id", client.session.as_str())];
        connection.send("POST", path, &headers, body.to_string().as_bytes());
        if passed {
            let mut events = Events::of(connection);
            let changed = events.message();
            let expected = json!({"jsonrpc": "2.0", "method": "notifications/skills/changed",
                "params": {"a": 1.0e5}});
            assert_eq!(changed, expected);
            let asked = events.message();
            assert_eq!(
                (&asked["method"], &asked["params"]),
                (&json!("skills/pick"), &json!({"of": []}))
            );
            assert_eq!(events.message()["id"], "c");
        } else {
            let answer = connection.response().json();
            assert_eq!(answer["id"], "c", "{answer}");
        }
    }
}

/// Response to `initialize` with a token, or without one.
fn opened(proxy: &Proxy, path: &str, token: Option<&str>) -> Response {
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "e2e", "version": "1"}}});
    let bearer = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = bearer.iter().map(|bearer| ("Authorization", bearer.as_str())).collect();
    proxy.request("POST", path, &headers, hello.to_string().as_bytes())
}

// PRO-41
#[test]
fn hidden_or_disabled_server_is_indistinguishable_from_an_unknown_one() {
    let server = Server::start();
    let mut off = server.entry();
    off["disabled"] = true.into();
    let folder = tempfile::tempdir().unwrap();
    let rules = r#"@id("not-ann") forbid (principal == Agent::"token:ann", action,
        resource in Server::"own");"#;
    std::fs::write(folder.path().join("rules.cedar"), rules).unwrap();
    let config = json!({"mcpServers": {"own": server.entry(), "off": off, "s": stub_stdio(&[])},
        "policy": {"files": ["rules.cedar"]}});
    let proxy = Proxy::unready(config, folder).ready();
    let scoped = create_token(&proxy, &["scoped", "--server", "s"]);
    let by_tool = create_token(&proxy, &["tools", "--tool", "s:*"]);
    let ruled = create_token(&proxy, &["ann"]);
    for token in [&scoped, &by_tool, &ruled] {
        assert_eq!(opened(&proxy, "/mcp/server/s", Some(token)).status, 200);
        let unknown = opened(&proxy, "/mcp/server/nothing", Some(token));
        assert_eq!((unknown.status, unknown.text().trim_end()), (404, "no such MCP server"));
        let headers = |response: &Response| {
            let kept = response.headers.iter().filter(|(name, _)| name != "date");
            kept.cloned().collect::<Vec<_>>()
        };
        for path in [PATH, "/mcp/server/off"] {
            let hidden = opened(&proxy, path, Some(token));
            assert_eq!((hidden.status, hidden.text()), (404, unknown.text()), "{path}");
            assert_eq!(headers(&hidden), headers(&unknown), "{path}");
        }
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str())];
        let modern = ask_modern(&proxy, PATH, "tools/list", json!({}), &headers);
        assert_eq!((modern.status, modern.text()), (404, unknown.text()));
    }
    assert_eq!(opened(&proxy, PATH, None).status, 200);
    assert_eq!(opened(&proxy, "/mcp/server/off", None).status, 404);
}

// PRO-41
#[test]
fn session_is_valid_only_at_its_endpoint() {
    let server = Server::start();
    let proxy = Proxy::start(json!({"own": server.entry(), "twin": server.entry()}));
    let client = Client::open_at(proxy.port, PATH);
    let of_all = proxy.direct_client();
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    for (session, path, status) in [
        (&client.session, PATH, 200),
        (&client.session, "/mcp/server/own/", 200),
        (&client.session, "/mcp/server/twin", 404),
        (&client.session, "/mcp/all", 404),
        (&client.session, "/mcp", 404),
        (&of_all.session, PATH, 404),
    ] {
        let headers = [("Mcp-Session-Id", session.as_str())];
        let got = proxy.request("POST", path, &headers, list.as_bytes());
        assert_eq!(got.status, status, "{path}: {}", got.text());
    }
}

// PRO-41
#[test]
fn server_name_is_one_percent_encoded_path_segment() {
    let server = Server::start();
    let proxy = Proxy::start(json!({"a/b c": server.entry(), "..": server.entry()}));
    let long = format!("/mcp/server/{}", "x".repeat(10 * 1024));
    for (path, status) in [
        ("/mcp/server/a%2Fb%20c", 200),
        ("/mcp/server/%61%2fb%20c/", 200),
        ("/mcp/server/%2e%2e", 200),
        ("/mcp/server/a/b%20c", 404),
        ("/mcp/server/a%252Fb%20c", 404),
        ("/mcp/server/../all", 404),
        ("/mcp/server/", 404),
        ("/mcp/server//", 404),
        ("/mcp/server/%ff", 404),
        ("/mcp/server/%00", 404),
        ("/mcp/server/%zz", 404),
        (&*long, 404),
    ] {
        let got = opened(&proxy, path, None);
        assert_eq!(got.status, status, "{path}: {}", got.text());
    }
}

// PRO-41
#[test]
fn resource_updates_arrive_under_the_servers_own_uri() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--offers", "--only", "echo"])}));
    let path = "/mcp/server/s";
    let mut client = Client::open_at(proxy.port, path);
    let mut stream = Connection::open(proxy.port);
    let headers = [("Mcp-Session-Id", &*client.session), ("Accept", "text/event-stream")];
    stream.send("GET", path, &headers, b"");
    let mut events = Events::of(stream);
    let listen = json!({"jsonrpc": "2.0", "id": "l", "method": "subscriptions/listen", "params": {
        "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {}},
        "notifications": {"resourceSubscriptions": ["test://shared"]}}});
    let mut modern = Connection::open(proxy.port);
    let headers = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "subscriptions/listen")];
    modern.send("POST", path, &headers, listen.to_string().as_bytes());
    let mut modern = Events::of(modern);
    let agreed = modern.message()["params"]["notifications"].clone();
    assert_eq!(agreed, json!({"resourceSubscriptions": ["test://shared"]}));
    let subscribed = client.ask("resources/subscribe", json!({"uri": "test://shared"}));
    assert_eq!(subscribed["result"], json!({}));
    for events in [&mut events, &mut modern] {
        // The first event of a stream may be empty.
        let updated = until("an update comes", || {
            let event = events.next().expect("the stream lasts");
            event.data.contains("notifications/resources/updated").then(|| event.json())
        });
        assert_eq!(updated["params"]["uri"], "test://shared", "{updated}");
    }
    let ended = client.ask("resources/unsubscribe", json!({"uri": "test://shared"}));
    assert_eq!(ended["result"], json!({}));
}

// PRO-41
#[test]
fn pipe_serves_one_server_with_and_without_a_running_proxy() {
    let server = Server::start();
    let config = json!({"mcpServers": {"own": server.entry(), "other": stub_stdio(&["--offers"])}});
    let proxy = Proxy::with(config.clone());
    let folder = tempfile::tempdir().unwrap();
    let file = configure(config, folder.path());
    let mut alone = mcpproxy();
    alone.arg("--config").arg(&file).args(["stdio", "--server", "own"]);
    for command in [&mut proxy.command(&["stdio", "--server", "own"]), &mut alone] {
        let mut pipe = Pipe::launch(command);
        pipe.greet();
        for (method, params, expected) in requests() {
            let asked =
                format!(r#"{{"jsonrpc":"2.0","id":"raw","method":"{method}","params":{params}}}"#);
            let got = pipe.ask(&asked);
            assert_eq!(text(raw_result(got.as_bytes())), expected, "{method}");
        }
        pipe.close();
        assert_eq!(pipe.process.wait(), Some(0), "{}", pipe.log());
    }
    let mut unknown = mcpproxy();
    unknown.arg("--config").arg(&file).args(["stdio", "--server", "nothing"]);
    let mut pipe = Pipe::launch(&mut unknown);
    let ended: &mut Process = &mut pipe.process;
    assert_eq!(ended.wait(), Some(1));
    pipe.assert_logged("server 'nothing' is not in the config, or is disabled");
}

// PRO-41
#[test]
fn unauthenticated_request_gets_401_for_known_and_unknown_servers() {
    let server = Server::start();
    let config = json!({"mcpServers": {"own": server.entry()}, "require_mcp_auth": true});
    let proxy = Proxy::with(config);
    for path in [PATH, "/mcp/server/nothing"] {
        assert_eq!(opened(&proxy, path, None).status, 401, "{path}");
    }
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "ping"}).to_string();
    let known =
        |path| proxy.request("POST", path, &[("X-API-Key", API_KEY)], hello.as_bytes()).status;
    assert_eq!((known(PATH), known("/mcp/server/nothing")), (400, 404));
}
