//! Only known members are forwarded: unknown ones are dropped, and those that differ from a known one only by case are
//! refused by name, in every method and at every entry point.

use serde_json::{Value, json};

use crate::harness::{
    Client, Connection, Events, HttpStub, Pipe, Proxy, error_text, requests_of,
    server_of_both_families, stub_stdio,
};

const MODERN: &str = "2026-07-28";

/// Entries of a server over HTTP and of one over stdio, and the process of the former.
fn servers() -> (Value, HttpStub) {
    let http = HttpStub::start(&["--offers"]);
    (json!({"web": http.entry(), "pipe": stub_stdio(&["--offers"])}), http)
}

fn read(tool: &str, more: &str) -> String {
    format!(
        r#"{{"name":"call_tool_read","arguments":{{"name":"{tool}","args":{{"a":1}},"intent":{{"operation_type":"read"}}}}{more}}}"#
    )
}

/// The previous request that the server received.
fn received(client: &mut Client, server: &str) -> String {
    let answer = client.read(&format!("{server}:received"), json!({}));
    answer["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Asserts that the message is an error that names a member.
fn refused(message: &Value, member: &str, known: &str) {
    assert_eq!(message["error"]["code"], -32602, "{message}");
    let text = message["error"]["message"].as_str().unwrap();
    let expected = format!("'{member}' differs only by case from '{known}'");
    assert!(text.contains(&expected), "{text}");
}

fn parsed(message: &[u8]) -> Value {
    serde_json::from_slice(message).unwrap()
}

/// Sends a raw request. Returns the response message.
fn ask(client: &mut Client, method: &str, params: &str) -> Value {
    let body = format!(r#"{{"jsonrpc":"2.0","id":"raw","method":"{method}","params":{params}}}"#);
    client.post(body.as_bytes()).json()
}

/// Members that a case-insensitive reader would confuse with a known one: the JSON text, the name of the member, and
/// the known name.
const SMUGGLED: [(&str, &str, &str); 6] = [
    (r#","Name":"delete_item""#, "Name", "name"),
    (r#","Arguments":{"all":true}"#, "Arguments", "arguments"),
    (r#","n\u0041me":"delete_item""#, "nAme", "name"),
    (r#","argument\u017f":{"all":true}"#, "argument\u{17f}", "arguments"),
    (",\"argument\u{17f}\":{\"all\":true}", "argument\u{17f}", "arguments"),
    (r#","_META":{"progressToken":1}"#, "_META", "_meta"),
];

// PRO-5
#[test]
fn call_with_a_member_smuggled_next_to_name_or_arguments_is_refused_and_not_sent() {
    let (servers, _http) = servers();
    let proxy = Proxy::start(servers);
    let (mut search, mut direct) = (proxy.client(), proxy.direct_client());
    for server in ["web", "pipe"] {
        search.read(&format!("{server}:read_item"), json!({}));
        let before = received(&mut search, server);
        for (more, member, known) in SMUGGLED {
            let params = read(&format!("{server}:read_item"), more);
            refused(&ask(&mut search, "tools/call", &params), member, known);
            let params = format!(r#"{{"name":"{server}__read_item","arguments":{{"a":1}}{more}}}"#);
            refused(&ask(&mut direct, "tools/call", &params), member, known);
        }
        let last = received(&mut search, server);
        assert!(before.contains("read_item") && last.contains("received"), "{before} {last}");
    }
    let rejected = search.records(&proxy, "type=tool_call&status=rejected");
    assert_eq!(requests_of(&rejected), 2 * SMUGGLED.len() as u64, "each is recorded");
    assert!(rejected.iter().all(|it| it["error_message"].as_str().unwrap().contains("by case")));
}

// PRO-5
#[test]
fn unknown_members_of_a_call_are_dropped_and_warned_about_once_per_client() {
    let (servers, _http) = servers();
    let proxy = Proxy::start(servers);
    let mut client = proxy.client();
    for server in ["web", "pipe"] {
        for _ in 0..3 {
            let more = r#","requestState":"s","inputResponses":{},"x\u0079z":{"Name":"d"},"_meta":{"k":1}"#;
            let answer = ask(&mut client, "tools/call", &read(&format!("{server}:echo"), more));
            assert_eq!(answer["result"]["structuredContent"], json!({"a": 1}), "{answer}");
            let got = parsed(received(&mut client, server).as_bytes())["params"].clone();
            let sent = json!({"name": "echo", "arguments": {"a": 1}, "_meta": {"k": 1}});
            assert_eq!(got, sent, "members of another revision are dropped as well");
            let record = &client.records(&proxy, "type=tool_call&tool=echo")[0];
            assert_eq!(record["tool_name"], "echo");
            assert_eq!(record["arguments"], json!({"a": 1}), "the record holds the sent members");
        }
    }
    for member in ["xyz", "requestState", "inputResponses"] {
        proxy.assert_lines_logged(1, |line| {
            line.contains("unsupported member") && line.contains(member)
        });
    }
}

// PRO-33
#[test]
fn task_is_not_requested_from_a_server_without_tasks() {
    let (servers, _http) = servers();
    let proxy = Proxy::start(servers);
    let mut client = proxy.client();
    let more = r#","task" : {"ttl":1.0e3}"#;
    ask(&mut client, "tools/call", &read("web:echo", more));
    let got = received(&mut client, "web");
    assert!(got.contains("tools/call") && !got.contains("\"task\""), "{got}");
    proxy.assert_logged("unsupported member");
}

#[test]
fn smuggled_uris_names_and_references_are_refused_in_every_other_method() {
    let (servers, _http) = servers();
    let proxy = Proxy::start(servers);
    for mut client in [proxy.client(), proxy.direct_client()] {
        for server in ["web", "pipe"] {
            for (method, params, more, member, known) in [
                (
                    "resources/read",
                    r#""uri":"mcpproxy://S/test://shared""#,
                    r#""Uri":"file:///etc""#,
                    "Uri",
                    "uri",
                ),
                (
                    "resources/read",
                    r#""uri":"mcpproxy://S/test://shared""#,
                    r#""URI":"file:///etc""#,
                    "URI",
                    "uri",
                ),
                (
                    "resources/read",
                    r#""uri":"mcpproxy://S/test://shared""#,
                    r#""ur\u0130":"x""#,
                    "ur\u{130}",
                    "uri",
                ),
                (
                    "resources/subscribe",
                    r#""uri":"mcpproxy://S/test://shared""#,
                    r#""Uri":"x""#,
                    "Uri",
                    "uri",
                ),
                (
                    "resources/unsubscribe",
                    r#""uri":"mcpproxy://S/test://shared""#,
                    r#""Uri":"x""#,
                    "Uri",
                    "uri",
                ),
                ("prompts/get", r#""name":"S__greet""#, r#""NAME":"x""#, "NAME", "name"),
                (
                    "prompts/get",
                    r#""name":"S__greet""#,
                    r#""Arguments":{}"#,
                    "Arguments",
                    "arguments",
                ),
                (
                    "completion/complete",
                    r#""argument":{"name":"a","value":""},"ref":{"type":"ref/prompt","name":"S__greet"}"#,
                    r#""Ref":{}"#,
                    "Ref",
                    "ref",
                ),
                (
                    "completion/complete",
                    r#""argument":{"name":"a","value":""}"#,
                    r#""ref":{"type":"ref/prompt","name":"S__greet","Name":"x"}"#,
                    "ref.Name",
                    "ref.name",
                ),
                (
                    "completion/complete",
                    r#""ref":{"type":"ref/prompt","name":"S__greet"}"#,
                    r#""argument":{"name":"a","value":"","Value":"x"}"#,
                    "argument.Value",
                    "argument.value",
                ),
            ] {
                let params = params.replace('S', server);
                let more = more.replace('S', server);
                let params = format!("{{{params},{more}}}");
                refused(&ask(&mut client, method, &params), member, known);
            }
        }
    }
    let mut client = proxy.client();
    for server in ["web", "pipe"] {
        let listed = received(&mut client, server);
        assert!(
            listed.contains("/list") || listed.contains("initialize"),
            "nothing arrived: {listed}"
        );
    }
}

#[test]
fn unknown_members_of_other_methods_are_dropped_and_the_record_holds_the_sent_request() {
    let (servers, _http) = servers();
    let proxy = Proxy::start(servers);
    let mut client = proxy.client();
    for server in ["web", "pipe"] {
        for (method, params, sent) in [
            (
                "resources/read",
                r#"{"x":1,"uri":"mcpproxy://S/test://shared","requestState":"of another revision"}"#,
                r#"{"uri":"test://shared"}"#,
            ),
            (
                "resources/subscribe",
                r#"{"x":1,"uri":"mcpproxy://S/test://shared"}"#,
                r#"{"uri":"test://shared"}"#,
            ),
            (
                "resources/unsubscribe",
                r#"{"x":1,"uri":"mcpproxy://S/test://shared"}"#,
                r#"{"uri":"test://shared"}"#,
            ),
            (
                "prompts/get",
                r#"{"arguments":{ "n" : "S__x"},"y":{},"name":"S__greet"}"#,
                r#"{"arguments":{ "n" : "S__x"},"name":"greet"}"#,
            ),
            (
                "completion/complete",
                r#"{"ref":{"x":1,"type":"ref/prompt","name":"S__greet","uri":"u:v"},"argument":{"name":"a","value":"\u0041","x":2},"context":{"arguments":{"X":"1"},"y":1}}"#,
                r#"{"ref":{"type":"ref/prompt","name":"greet"},"argument":{"name":"a","value":"\u0041"},"context":{"arguments":{"X":"1"}}}"#,
            ),
        ] {
            let params = params.replace('S', server);
            let answer = ask(&mut client, method, &params);
            assert!(answer.get("result").is_some(), "{method}: {answer}");
            let got = received(&mut client, server);
            assert!(
                got.contains(&format!(
                    r#""method":"{method}","params":{}"#,
                    sent.replace('S', server)
                )),
                "{got}"
            );
            let types = "type=resource_read,prompt_get,completion,internal_tool_call";
            let record = &client.records(&proxy, types)[0];
            assert_eq!(record["tool_name"], method);
            assert_eq!(record["arguments"], parsed(sent.replace('S', server).as_bytes()));
        }
    }
}

#[test]
fn meta_keys_read_by_the_proxy_have_one_spelling_and_the_rest_is_free() {
    let (servers, _http) = servers();
    let proxy = Proxy::start(servers);
    let mut client = proxy.client();
    for server in ["web", "pipe"] {
        for (meta, member, known) in [
            (r#"{"ProgressToken":1}"#, "_meta.ProgressToken", "_meta.progressToken"),
            (
                r#"{"progressToken":1,"progre\u00dfToken":2}"#,
                "_meta.progre\u{df}Token",
                "_meta.progressToken",
            ),
            (
                r#"{"IO.modelcontextprotocol/protocolVersion":"x"}"#,
                "_meta.IO.modelcontextprotocol/protocolVersion",
                "_meta.io.modelcontextprotocol/protocolVersion",
            ),
            (r#"{"traceparent":"1","TraceParent":"2"}"#, "_meta.TraceParent", "_meta.traceparent"),
        ] {
            let more = format!(r#","_meta":{meta}"#);
            refused(
                &ask(&mut client, "tools/call", &read(&format!("{server}:echo"), &more)),
                member,
                known,
            );
            let params = format!(r#"{{"uri":"mcpproxy://{server}/test://shared"{more}}}"#);
            refused(&ask(&mut client, "resources/read", &params), member, known);
        }
        let more = r#","_meta":{"Free":{"ProgressToken":1},"progressToken":"mine"}"#;
        ask(&mut client, "tools/call", &read(&format!("{server}:echo"), more));
        let got = parsed(received(&mut client, server).as_bytes())["params"]["_meta"].clone();
        assert_eq!(got["Free"], json!({"ProgressToken": 1}));
        assert!(got["progressToken"].is_u64() && got.as_object().unwrap().len() == 2, "{got}");
    }
}

fn modern(params: &str) -> String {
    let meta = format!(
        r#"{{"io.modelcontextprotocol/protocolVersion":"{MODERN}","io.modelcontextprotocol/clientCapabilities":{{}}}}"#
    );
    let params = params.strip_suffix('}').unwrap();
    format!(r#"{params},"_meta":{meta}}}"#)
}

fn modern_post(proxy: &Proxy, path: &str, method: &str, name: &str, params: &str) -> Value {
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":"raw","method":"{method}","params":{}}}"#,
        modern(params)
    );
    let headers = [("MCP-Protocol-Version", MODERN), ("Mcp-Method", method), ("Mcp-Name", name)];
    proxy.request("POST", path, &headers, body.as_bytes()).json()
}

#[test]
fn modern_requests_keep_known_members_and_are_refused_for_smuggled_ones() {
    let (mut servers, _http) = servers();
    let (both, _server) = server_of_both_families();
    servers["both"] = both;
    let proxy = Proxy::start(servers);
    let mut legacy = proxy.client();
    for (more, member, known) in SMUGGLED {
        let params = read("web:read_item", more);
        let answer = modern_post(&proxy, "/mcp", "tools/call", "call_tool_read", &params);
        refused(&answer, member, known);
        let params = format!(r#"{{"name":"web__read_item","arguments":{{"a":1}}{more}}}"#);
        refused(
            &modern_post(&proxy, "/mcp/all", "tools/call", "web__read_item", &params),
            member,
            known,
        );
        let params = read("both:test_simple_text", more);
        refused(
            &modern_post(&proxy, "/mcp", "tools/call", "call_tool_read", &params),
            member,
            known,
        );
    }
    let uri = "mcpproxy://web/test://shared";
    let params = format!(r#"{{"uri":"{uri}","URI":"file:///etc"}}"#);
    refused(&modern_post(&proxy, "/mcp", "resources/read", uri, &params), "URI", "uri");
    let more = r#","requestState":null,"inputResponses":{"q":{"action":"accept","x":1}},"task":{"ttl":1},"z":1"#;
    modern_post(&proxy, "/mcp", "tools/call", "call_tool_read", &read("web:echo", more));
    let got = parsed(received(&mut legacy, "web").as_bytes())["params"].clone();
    assert_eq!(
        (&got["requestState"], &got["inputResponses"]),
        (&json!(null), &json!({"q": {"action": "accept"}}))
    );
    assert!(got.get("task").is_none() && got.get("z").is_none(), "{got}");
    let more = r#","inputResponses":{"q":{"action":"accept","Action":"decline"}}"#;
    let answer =
        modern_post(&proxy, "/mcp", "tools/call", "call_tool_read", &read("web:echo", more));
    refused(&answer, "inputResponses.q.Action", "inputResponses.q.action");
}

#[test]
fn smuggled_members_are_refused_over_pipes_in_both_protocol_families() {
    let (servers, _http) = servers();
    let mut pipe = Pipe::start(json!({"mcpServers": servers}));
    let line = |method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
    };
    for server in ["web", "pipe"] {
        for (more, member, known) in SMUGGLED {
            let params = read(&format!("{server}:read_item"), more);
            refused(&parsed(pipe.ask(&line("tools/call", &params)).as_bytes()), member, known);
            if known != "_meta" {
                let params = modern(&params);
                refused(&parsed(pipe.ask(&line("tools/call", &params)).as_bytes()), member, known);
            }
        }
        let params = format!(r#"{{"uri":"mcpproxy://{server}/test://shared","Uri":"x"}}"#);
        refused(&parsed(pipe.ask(&line("resources/read", &params)).as_bytes()), "Uri", "uri");
        let params = read(&format!("{server}:echo"), r#","x":1"#);
        pipe.ask(&line("tools/call", &params));
        let got = parsed(&pipe.read_raw(&format!("{server}:received"), &json!({})));
        let got = got["result"]["content"][0]["text"].as_str().unwrap().to_owned();
        assert_eq!(
            parsed(got.as_bytes())["params"],
            json!({"name": "echo", "arguments": {"a": 1}})
        );
    }
}

#[test]
fn parameters_of_call_tools_and_rest_bodies_have_no_other_members() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    for (more, member) in
        [(r#""Name":"s:delete_item""#, "Name"), (r#""Args":{"all":true}"#, "Args")]
    {
        let params = format!(
            r#"{{"name":"call_tool_read","arguments":{{"name":"s:echo","intent":{{"operation_type":"read"}},{more}}}}}"#
        );
        let answer = ask(&mut client, "tools/call", &params);
        assert!(error_text(&answer["result"]).contains(member), "{answer}");
        let given = format!(r#"{{"name":"s:echo",{more}}}"#);
        let intent = r#""intent":{"operation_type":"read"}"#;
        for body in [
            format!(r#"{{"tool_name":"call_tool_read","arguments":{given},{intent}}}"#),
            format!(
                r#"{{"tool_name":"call_tool_read","arguments":{{"name":"s:echo"}},{intent},{more}}}"#
            ),
        ] {
            let headers = [("X-API-Key", crate::harness::API_KEY)];
            let response = proxy.request("POST", "/api/v1/tools/call", &headers, body.as_bytes());
            assert_eq!(response.status, 400, "{}", response.text());
            assert!(response.text().contains(member), "{}", response.text());
        }
    }
}

#[test]
fn envelope_that_two_parsers_read_differently_is_refused() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    for member in ["Method", "PARAMS", "ID", "Re\u{17f}ult", "JsonRPC"] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{},"{member}":"x"}}"#,
            read("s:echo", "")
        );
        let answer = client.post(body.as_bytes()).json();
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(member), "{answer}");
    }
}

/// Begins a call by a client with all capabilities. Returns its session and the connection of the call.
fn asked(proxy: &Proxy, tool: &str, args: Value) -> (String, Connection) {
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "clientInfo": {"name": "asked", "version": "1"},
        "capabilities": {"sampling": {}, "elicitation": {}, "roots": {}}}});
    let response = proxy.request("POST", "/mcp", &[], hello.to_string().as_bytes());
    let session = response.header("mcp-session-id").unwrap().to_owned();
    let arguments = json!({"name": tool, "args": args, "intent": {"operation_type": "read"}});
    let body = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call",
        "params": {"name": "call_tool_read", "arguments": arguments}});
    let mut connection = Connection::open(proxy.port);
    connection.send("POST", "/mcp", &[("Mcp-Session-Id", &session)], body.to_string().as_bytes());
    (session, connection)
}

#[test]
fn server_request_is_parsed_equally_by_proxy_and_client() {
    let (servers, _http) = servers();
    let proxy = Proxy::start(servers);
    for server in ["web", "pipe"] {
        let tool = format!("{server}:ask");
        // Unknown members of the envelope and of params are dropped.
        let with = json!({"x": 1, "params": {"message": "m", "y": 2, "requestedSchema": {"Z": 1}}});
        let args = json!({"ask": "elicitation/create", "with": with});
        let (session, connection) = asked(&proxy, &tool, args);
        let mut events = Events::of(connection);
        let request = events.message();
        assert_eq!(request["params"], json!({"message": "m", "requestedSchema": {"Z": 1}}));
        assert_eq!(request.as_object().unwrap().len(), 4, "{request}");
        let post = |result: Value| {
            let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
            let headers = [("Mcp-Session-Id", &*session)];
            proxy.request("POST", "/mcp", &headers, answer.to_string().as_bytes())
        };
        let result = json!({"action": "accept", "content": {"Action": 1}, "x": 1});
        assert_eq!(post(result).status, 202);
        let answered = events.message()["result"]["structuredContent"]["answered"].clone();
        assert_eq!(answered, json!({"action": "accept", "content": {"Action": 1}}));

        // A member of the server's request that differs from a known one only by case is refused by name, and the
        // client never receives the request.
        for (with, member) in [
            (json!({"params": {"message": "m", "Message": "M"}}), "Message"),
            (json!({"Method": "roots/list"}), "Method"),
        ] {
            let args = json!({"ask": "elicitation/create", "with": with});
            let (_, mut connection) = asked(&proxy, &tool, args);
            let answer = connection.response().json();
            let returned = &answer["result"]["structuredContent"]["answered"];
            assert_eq!(returned["code"], -32602, "{answer}");
            assert!(returned["message"].as_str().unwrap().contains(member), "{answer}");
        }

        // Such a member in the client's answer is refused, and both sides get an error.
        let (session, connection) = asked(&proxy, &tool, json!({"ask": "elicitation/create"}));
        let mut events = Events::of(connection);
        let id = events.message()["id"].clone();
        let answer = json!({"jsonrpc": "2.0", "id": id,
            "result": {"action": "decline", "Action": "accept"}});
        let headers = [("Mcp-Session-Id", &*session)];
        let response = proxy.request("POST", "/mcp", &headers, answer.to_string().as_bytes());
        assert_eq!(response.status, 400, "{}", response.text());
        refused(&response.json(), "Action", "action");
        let returned = events.message()["result"]["structuredContent"]["answered"].clone();
        assert_eq!(returned["code"], -32602, "{returned}");
        assert!(returned["message"].as_str().unwrap().contains("Action"), "{returned}");
    }
    proxy.assert_logged("unsupported member");
}

// PRO-5
#[test]
fn result_with_an_ambiguous_validated_member_is_blocked_in_strict_and_reported_in_warn() {
    for mode in ["strict", "warn", "off"] {
        let proxy = Proxy::with(json!({
            "mcpServers": {"s": stub_stdio(&[])},
            "output_validation": {"mode": mode},
        }));
        let mut client = proxy.client();
        for (tool, known) in
            [("variant_structured", "structuredContent"), ("variant_is_error", "isError")]
        {
            let result = client.read(&format!("s:{tool}"), json!({}));
            let decisions = client.records(&proxy, &format!("type=policy_decision&tool={tool}"));
            let reason = format!("a key that differs from {known} only by case");
            match mode {
                "strict" => {
                    let text = format!("output schema validation failed: {reason}");
                    assert_eq!(error_text(&result), text);
                    assert!(!result.to_string().contains("CANARY"), "{result}");
                    assert_eq!(decisions[0]["status"], "blocked");
                    assert_eq!(decisions[0]["metadata"]["reason"], reason);
                }
                "warn" => {
                    assert_eq!(result["structuredContent"]["value"], 1, "{result}");
                    assert_eq!(decisions[0]["status"], "warning");
                    assert_eq!(decisions[0]["metadata"]["reason"], reason);
                }
                _ => {
                    assert_eq!(result["structuredContent"]["value"], 1, "{result}");
                    assert!(decisions.is_empty(), "{decisions:?}");
                }
            }
        }
        let result = client.read("s:variant_plain", json!({}));
        assert_eq!(result["Content"][0]["text"], "x", "FR-A7: no schema, no guard");
        assert!(client.records(&proxy, "type=policy_decision&tool=variant_plain").is_empty());
    }
}
