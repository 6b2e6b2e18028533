//! Type, source and principal of the records of each entry point.

use serde_json::{Value, json};

use crate::harness::{API_KEY, Client, Connection, Output, Pipe, Proxy, mcpproxy, stub_stdio};

/// Members that distinguish a record: type, source, principal and tool.
type Mark = [String; 4];

fn mark(record: &Value) -> Mark {
    ["type", "source", "principal", "tool_name"].map(|key| record[key].as_str().unwrap().to_owned())
}

/// The newest record of a request to a server.
fn newest(proxy: &Proxy) -> Mark {
    let types = "tool_call,internal_tool_call,resource_read,prompt_get,completion";
    mark(&proxy.activity(&format!("type={types}"))[0])
}

fn servers() -> Value {
    json!({"s": stub_stdio(&["--offers"])})
}

/// Sends a request of every kind in a session. Returns the distinguishing members of their records.
fn asked(proxy: &Proxy, client: &mut Client, ask: impl Fn(&mut Client, &str, Value)) -> Vec<Mark> {
    let intent = json!({"operation_type": "read"});
    let call =
        json!({"name": "call_tool_read", "arguments": {"name": "s:read_item", "intent": intent}});
    let reference = json!({"type": "ref/prompt", "name": "s__greet"});
    let argument = json!({"name": "name", "value": ""});
    [
        ("tools/call", call),
        ("tools/call", json!({"name": "retrieve_tools", "arguments": {"query": "read"}})),
        ("tools/call", json!({"name": "call_tool", "arguments": {}})),
        ("resources/read", json!({"uri": "mcpproxy://s/test://shared"})),
        ("resources/subscribe", json!({"uri": "mcpproxy://s/test://shared"})),
        ("prompts/get", json!({"name": "s__greet"})),
        ("completion/complete", json!({"ref": reference, "argument": argument})),
    ]
    .into_iter()
    .map(|(method, params)| {
        ask(client, method, params);
        newest(proxy)
    })
    .collect()
}

fn expected(principal: &str) -> Vec<Mark> {
    [
        ["tool_call", "read_item"],
        ["internal_tool_call", "retrieve_tools"],
        ["tool_call", "call_tool"],
        ["resource_read", "resources/read"],
        ["internal_tool_call", "resources/subscribe"],
        ["prompt_get", "prompts/get"],
        ["completion", "completion/complete"],
    ]
    .map(|[kind, tool]| [kind, "mcp", principal, tool].map(str::to_owned))
    .to_vec()
}

#[test]
fn act_1_each_mcp_request_is_recorded_with_its_type_and_anonymous_principal() {
    let proxy = Proxy::start(servers());
    let marks = asked(&proxy, &mut proxy.client(), |client, method, params| {
        client.ask(method, params);
    });
    assert_eq!(marks, expected("anonymous"));
    let mut direct = proxy.direct_client();
    direct.ask("tools/call", json!({"name": "s__read_item", "arguments": {}}));
    assert_eq!(newest(&proxy), ["tool_call", "mcp", "anonymous", "read_item"]);
    direct.ask("resources/read", json!({"uri": "mcpproxy://s/test://shared"}));
    assert_eq!(newest(&proxy), ["resource_read", "mcp", "anonymous", "resources/read"]);
}

#[test]
fn act_1_client_with_the_key_is_the_admin_for_the_whole_session() {
    for config in [json!({}), json!({"require_mcp_auth": true})] {
        let mut config = config;
        config["mcpServers"] = servers();
        let proxy = Proxy::with(config);
        let mut connection = Connection::open(proxy.port);
        let key = [("X-API-Key", API_KEY)];
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "k"}}});
        connection.send("POST", "/mcp", &key, hello.to_string().as_bytes());
        let response = connection.response();
        let session = response.header("mcp-session-id").expect("a session").to_owned();
        let read = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read",
            "params": {"uri": "mcpproxy://s/test://shared"}});
        let headers = [key[0], ("Mcp-Session-Id", &*session), ("Accept", "application/json")];
        connection.send("POST", "/mcp", &headers, read.to_string().as_bytes());
        assert_eq!(connection.response().status, 200);
        assert_eq!(newest(&proxy), ["resource_read", "mcp", "admin", "resources/read"]);
        // Without the key the session is unknown.
        connection.send("POST", "/mcp", &headers[1..], read.to_string().as_bytes());
        assert!(matches!(connection.response().status, 401 | 404));
    }
    // An anonymous session stays anonymous, and a wrong key does not authenticate.
    let proxy = Proxy::start(servers());
    let client = proxy.client();
    let mut connection = Connection::open(proxy.port);
    let read = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read",
        "params": {"uri": "mcpproxy://s/test://shared"}});
    let mut ask = |key: &str| {
        let headers = [("X-API-Key", key), ("Mcp-Session-Id", &*client.session)];
        connection.send("POST", "/mcp", &headers, read.to_string().as_bytes());
        connection.response().status
    };
    assert_eq!(ask("another key, which is none"), 200);
    assert_eq!(newest(&proxy), ["resource_read", "mcp", "anonymous", "resources/read"]);
    assert_eq!(ask(API_KEY), 404);
}

#[test]
fn mcp_2026_each_request_proves_its_principal_itself() {
    let proxy = Proxy::start(servers());
    let mut connection = Connection::open(proxy.port);
    let version = "2026-07-28";
    let read = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {
        "uri": "mcpproxy://s/test://shared",
        "_meta": {"io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {}}}});
    let common = [
        ("MCP-Protocol-Version", version),
        ("Mcp-Method", "resources/read"),
        ("Mcp-Name", "mcpproxy://s/test://shared"),
    ];
    let bearer = format!("Bearer {API_KEY}");
    let with = [&common[..], &[("Authorization", &*bearer)]].concat();
    // All requests use one connection; a request does not inherit the principal of the previous one.
    for (headers, principal) in
        [(&common[..], "anonymous"), (&with, "admin"), (&with, "admin"), (&common, "anonymous")]
    {
        connection.send("POST", "/mcp", headers, read.to_string().as_bytes());
        let response = connection.response();
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(newest(&proxy), ["resource_read", "mcp", principal, "resources/read"]);
    }
}

#[test]
fn act_1_rest_and_command_line_are_the_admin_and_a_pipe_is_not() {
    let proxy = Proxy::start(servers());
    let body = json!({"tool_name": "call_tool_read", "arguments": {"name": "s:read_item"},
        "intent": {"operation_type": "read"}});
    let path = "/api/v1/tools/call";
    let response =
        proxy.request("POST", path, &[("X-API-Key", API_KEY)], body.to_string().as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(newest(&proxy), ["tool_call", "api", "admin", "read_item"]);
    let output = proxy.cli(&["call", "tool-read", "s:read_item"]);
    assert_eq!(output.code, Some(0));
    assert_eq!(newest(&proxy), ["tool_call", "cli", "admin", "read_item"]);
    // A decision has the principal of its call.
    proxy.cli(&["call", "tool-read", "s:delete_item"]);
    let decisions = proxy.activity("type=policy_decision");
    assert_eq!(decisions[0]["principal"], "admin", "{}", decisions[0]);
    assert_eq!(proxy.activity("principal=admin&type=tool_call").len(), 3);

    let mut pipe = Pipe::start(json!({"mcpServers": servers()}));
    pipe.read_raw("s:read_item", &json!({}));
    pipe.close();
    assert_eq!(pipe.process.wait(), Some(0));
    let config = pipe.folder.path().join("config.json");
    let list = ["activity", "list", "--type", "tool_call", "--json"];
    let listed = Output::of(mcpproxy().arg("--config").arg(config).args(list)).json();
    assert_eq!(mark(&listed["activities"][0]), ["tool_call", "mcp", "anonymous", "read_item"]);
}
