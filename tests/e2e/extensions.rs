//! Known extensions between clients and servers of both families at the merged endpoints: declared capabilities, apps
//! (SEP-1865) and skills (SEP-2640).

use serde_json::{Value, json};

use crate::harness::{Client, Proxy, Received, Recorder, Reply, ask_modern, create_token, until};

const MODERN: &str = "2026-07-28";
const UI: &str = "io.modelcontextprotocol/ui";
const SKILLS: &str = "io.modelcontextprotocol/skills";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const MERGED: [&str; 2] = ["/mcp", "/mcp/all"];

/// Extensions of a client, with settings that only it has.
fn declared() -> Value {
    json!({"extensions": {
        UI: {"mimeTypes": ["x/y", "text/html;profile=mcp-app"], "data": "that nobody sees"},
        SKILLS: {"data": "that nobody sees"}, "x.example/own": {}}})
}

/// The same as servers see them.
fn forwarded() -> Value {
    json!({UI: {"mimeTypes": ["text/html;profile=mcp-app"]}, SKILLS: {}})
}

/// A server of one family with extensions.
struct Server(Recorder);

/// What a server answers: raw results by method, else errors.
#[derive(Clone, Default)]
struct Script {
    is_modern: bool,
    extensions: Value,
    results: Vec<(&'static str, String)>,
}

impl Server {
    fn start(script: Script) -> Self {
        Self(Recorder::start(move |_, asked| answer(&script, asked)))
    }

    fn entry(&self) -> Value {
        json!({"url": format!("http://127.0.0.1:{}/mcp", self.0.port)})
    }

    /// Params of the requests of that method that arrived.
    fn asked(&self, method: &str) -> Vec<Value> {
        let bodies = self.0.received();
        let messages =
            bodies.iter().filter_map(|it| serde_json::from_slice::<Value>(&it.body).ok());
        let messages = messages.filter(|message| message["method"] == method);
        messages.map(|mut message| message["params"].take()).collect()
    }
}

fn answer(script: &Script, asked: &Received) -> Reply {
    let Ok(message) = serde_json::from_slice::<Value>(&asked.body) else {
        return Reply::Http("405 Method Not Allowed", "", Vec::new());
    };
    let Some(id) = message.get("id") else { return Reply::Http("202 Accepted", "", Vec::new()) };
    let capabilities =
        json!({"tools": {}, "resources": {"subscribe": true}, "extensions": script.extensions});
    let method = message["method"].as_str().unwrap_or_default();
    let scripted = script.results.iter().find(|(known, _)| *known == method);
    let result = match (method, scripted) {
        (_, Some((_, result))) => result.clone(),
        ("server/discover", _) if script.is_modern => {
            json!({"supportedVersions": [MODERN], "capabilities": capabilities,
                "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
            .to_string()
        }
        ("initialize", _) if !script.is_modern => json!({"protocolVersion": "2025-11-25",
            "capabilities": capabilities, "serverInfo": {"name": "fake", "version": "1"}})
        .to_string(),
        ("tools/list", _) => {
            r#"{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}"#.to_owned()
        }
        ("tools/call", _) => r#"{"content":[]}"#.to_owned(),
        ("resources/list", _) => r#"{"resources":[]}"#.to_owned(),
        ("resources/templates/list", _) => r#"{"resourceTemplates":[]}"#.to_owned(),
        _ => {
            let error = r#"{"code":-32601,"message":"Method not found"}"#;
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
            return Reply::Http("404 Not Found", "content-type: application/json\r\n", body.into());
        }
    };
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
    Reply::Http("200 OK", "content-type: application/json\r\n", body.into())
}

/// The extensions that the proxy declares to a principal at that endpoint, by either family.
fn extensions_shown(proxy: &Proxy, path: &str, token: Option<&str>) -> [Value; 2] {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = bearer.iter().map(|bearer| ("Authorization", bearer.as_str())).collect();
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "e2e", "version": "1"}}});
    let legacy = proxy.request("POST", path, &headers, hello.to_string().as_bytes());
    let modern = ask_modern(proxy, path, "server/discover", json!({}), &headers);
    [legacy, modern].map(|answer| answer.json()["result"]["capabilities"]["extensions"].take())
}

// PRO-44
#[test]
fn client_sees_the_extensions_of_the_servers_that_it_may_know_of() {
    let both = Server::start(Script {
        is_modern: true,
        extensions: json!({UI: {"x": 1}, SKILLS: {"directoryRead": true, "y": 1}, "x.example/own": {}}),
        ..Script::default()
    });
    let skills =
        Server::start(Script { extensions: json!({SKILLS: {}, UI: null}), ..Script::default() });
    let none = Server::start(Script { extensions: json!({UI: 7}), ..Script::default() });
    let folder = tempfile::tempdir().unwrap();
    let rules = r#"@id("not-ann") forbid (principal == Agent::"token:ann", action,
        resource in Server::"both");"#;
    std::fs::write(folder.path().join("rules.cedar"), rules).unwrap();
    let config = json!({"policy": {"files": ["rules.cedar"]}, "mcpServers": {
        "both": both.entry(), "skills": skills.entry(), "none": none.entry()}});
    let proxy = Proxy::unready(config, folder).ready();
    let scoped = create_token(&proxy, &["scoped", "--server", "skills"]);
    let ruled = create_token(&proxy, &["ann"]);
    let neither = create_token(&proxy, &["neither", "--server", "none"]);
    let all = json!({UI: {}, SKILLS: {"directoryRead": true}});
    for path in MERGED {
        for (token, expected) in [
            (None, &all),
            (Some(&scoped), &json!({SKILLS: {}})),
            (Some(&ruled), &json!({SKILLS: {}})),
            (Some(&neither), &Value::Null),
        ] {
            let shown = extensions_shown(&proxy, path, token.map(String::as_str));
            assert_eq!(shown, [expected.clone(), expected.clone()], "{path}");
        }
    }
}

// PRO-44
#[test]
fn call_declares_the_extensions_of_its_client_in_a_fixed_form() {
    let server = Server::start(Script { is_modern: true, ..Script::default() });
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let last = || {
        let call = server.asked("tools/call").pop().unwrap();
        call["_meta"][CAPABILITIES]["extensions"].clone()
    };
    for (capabilities, expected) in
        [(declared(), forwarded()), (json!({}), Value::Null), (json!({"extensions": {UI: {}}}), Value::Null)]
    {
        let mut client = Client::open_with(proxy.port, "/mcp/all", &capabilities);
        client.ask("tools/call", json!({"name": "s__t", "arguments": {}}));
        assert_eq!(last(), expected, "legacy: {capabilities}");
        let params = json!({"name": "s__t", "arguments": {}, "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN, CAPABILITIES: capabilities}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let headers =
            [("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/call"), ("Mcp-Name", "s__t")];
        let called = proxy.request("POST", "/mcp/all", &headers, body.to_string().as_bytes());
        assert_eq!(called.status, 200, "{}", called.text());
        assert_eq!(last(), expected, "modern: {capabilities}");
    }
    let sent = server.0.received();
    let of_client = |text: &str| sent.iter().any(|it| String::from_utf8_lossy(&it.body).contains(text));
    assert!(!of_client("that nobody sees") && !of_client("x.example/own"));
}

// PRO-44
#[test]
fn requests_of_the_proxy_declare_all_known_extensions() {
    let modern = Server::start(Script { is_modern: true, ..Script::default() });
    let legacy = Server::start(Script::default());
    let proxy = Proxy::start(json!({"m": modern.entry(), "l": legacy.entry()}));
    proxy.client().ask("resources/list", json!({}));
    for method in ["server/discover", "tools/list", "resources/list"] {
        let asked = modern.asked(method).pop().unwrap();
        assert_eq!(asked["_meta"][CAPABILITIES]["extensions"], forwarded(), "{method}");
    }
    let hello = legacy.asked("initialize").pop().unwrap();
    assert_eq!(hello["capabilities"]["extensions"], forwarded(), "{hello}");
    // A client without extensions does not change that for those that share the connection.
    let mut client = proxy.direct_client();
    client.ask("tools/call", json!({"name": "l__t", "arguments": {}}));
    let called = until("the call arrives", || legacy.asked("tools/call").pop());
    assert_eq!(called.get("_meta"), None, "{called}");
}
