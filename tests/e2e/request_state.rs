//! Request states of servers of the stateless revision: bound to the principal and the request, and returned to the
//! server unchanged (MCP 2026-07-28 §Multi Round-Trip Requests).

use serde_json::{Value, json};

use crate::harness::{Pipe, Proxy, Received, Recorder, Reply, Response, ask_modern, raw_result};

/// State sent by the servers, in a spelling that no serializer writes.
pub(crate) const STATE: &str = r#""opaque \u00e9\/\ud83d\ude00 \"of b\"""#;
const MODERN: &str = "2026-07-28";

/// Result with a question, and its state between other members.
fn question() -> String {
    format!(
        r#"{{ "resultType":"input_required", "requestState" : {STATE} ,"inputRequests":{{"who":{{"method":"elicitation/create","params":{{"mode":"form","message":"Who?","requestedSchema":{{"type":"object","properties":{{}}}}}}}}}}}}"#
    )
}

/// A modern server with two tools, a prompt and a resource, which ask once.
pub(crate) fn answer(_: usize, request: &Received) -> Reply {
    let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let Some(id) = message.get("id") else { return Reply::Http("202 Accepted", "", Vec::new()) };
    let schema = json!({"type": "object"});
    let tools = ["ask", "other"].map(|name| json!({"name": name, "inputSchema": schema}));
    let typed = |mut result: Value| {
        result["resultType"] = json!("complete");
        (result["ttlMs"], result["cacheScope"]) = (json!(0), json!("private"));
        result.to_string()
    };
    let result = match message["method"].as_str().unwrap_or_default() {
        "server/discover" => typed(json!({"supportedVersions": [MODERN],
            "capabilities": {"tools": {}, "prompts": {}, "resources": {}}})),
        "tools/list" => typed(json!({"tools": tools})),
        "prompts/list" => typed(json!({"prompts": [{"name": "greet"}]})),
        "resources/list" => typed(json!({"resources": [{"uri": "x:y", "name": "y"}]})),
        "resources/templates/list" => typed(json!({"resourceTemplates": []})),
        "tools/call" | "prompts/get" | "resources/read" => {
            match message["params"].get("requestState") {
                None => question(),
                Some(_) => typed(json!({"content": [], "messages": [], "contents": []})),
            }
        }
        _ => {
            let error = r#"{"code":-32601,"message":"Method not found"}"#;
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
            return Reply::Http("404 Not Found", "content-type: application/json\r\n", body.into());
        }
    };
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
    Reply::Http("200 OK", "content-type: application/json\r\n", body.into())
}

/// The `mcpServers` entry of the server.
pub(crate) fn entry(server: &Recorder) -> Value {
    json!({"url": format!("http://127.0.0.1:{}/mcp", server.port)})
}

/// Bodies of the requests with a state.
pub(crate) fn returned(server: &Recorder) -> Vec<String> {
    let received = server.received().into_iter();
    let bodies = received.map(|it| String::from_utf8(it.body).unwrap());
    bodies.filter(|body| body.contains("\"requestState\"")).collect()
}

/// Every form of request that can carry a state: endpoint, method, params.
pub(crate) fn requests(server: &str, tool: &str) -> Vec<(&'static str, &'static str, Value)> {
    let name = format!("{server}:{tool}");
    let arguments = json!({"name": name, "args": {}, "intent": {"operation_type": "read"}});
    let direct = json!({"name": format!("{server}__{tool}"), "arguments": {}});
    vec![
        ("/mcp", "tools/call", json!({"name": "call_tool_read", "arguments": arguments})),
        ("/mcp/all", "tools/call", direct),
        ("/mcp", "prompts/get", json!({"name": format!("{server}__greet")})),
        ("/mcp", "resources/read", json!({"uri": format!("mcpproxy://{server}/x:y")})),
    ]
}

fn token(proxy: &Proxy, name: &str) -> String {
    let output = proxy.cli(&["token", "create", name, "--json"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    format!("Bearer {}", output.json()["token"].as_str().unwrap())
}

/// Sends a request with a token, or without credentials.
pub(crate) fn ask(
    proxy: &Proxy,
    bearer: &str,
    (path, method, params): &(&str, &str, Value),
    state: Option<&Value>,
) -> Response {
    let mut params = params.clone();
    if let Some(state) = state {
        params["requestState"] = state.clone();
        params["inputResponses"] = json!({"who": {"action": "accept", "content": {"N": 1}}});
    }
    let headers = [("Authorization", bearer)];
    let headers = if bearer.is_empty() { &[][..] } else { &headers };
    ask_modern(proxy, path, method, params, headers)
}

#[track_caller]
fn refused(answer: &Response) {
    let answer = answer.json();
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(text.starts_with("Invalid params: requestState "), "{text}");
}

// PRO-31
#[test]
fn request_state_returns_byte_for_byte_from_the_principal_and_request_it_was_issued_for() {
    let (s, t) = (Recorder::start(answer), Recorder::start(answer));
    let proxy = Proxy::start(json!({"s": entry(&s), "t": entry(&t)}));
    let [alice, bob] = ["alice", "bob"].map(|name| token(&proxy, name));
    for (at, request) in requests("s", "ask").iter().enumerate() {
        let first = ask(&proxy, &alice, request, None);
        let result = first.json()["result"].clone();
        let state = &result["requestState"];
        let sealed = state.as_str().unwrap_or_else(|| panic!("{result}"));
        // Everything except the state is unchanged.
        let raw = String::from_utf8_lossy(raw_result(&first.body)).into_owned();
        assert_eq!(raw, question().replace(STATE, &format!("\"{sealed}\"")));
        let before = (returned(&s).len(), returned(&t).len());
        for other in [&bob, ""] {
            refused(&ask(&proxy, other, request, Some(state)));
        }
        let digit = if sealed.ends_with('A') { "B" } else { "A" };
        let altered = format!("{}{digit}", &sealed[..sealed.len() - 1]);
        let unsealed: Value = serde_json::from_str(STATE).unwrap();
        for foreign in [json!(altered), unsealed, json!({"a": 1}), json!("")] {
            refused(&ask(&proxy, &alice, request, Some(&foreign)));
        }
        for other in [&requests("t", "ask")[at], &requests("s", "other")[at]] {
            // The second request differs from the original one for tools only.
            if other != request {
                refused(&ask(&proxy, &alice, other, Some(state)));
            }
        }
        for (of, other) in requests("s", "ask").iter().enumerate() {
            if of.max(1) != at.max(1) {
                refused(&ask(&proxy, &alice, other, Some(state)));
            }
        }
        assert_eq!((returned(&s).len(), returned(&t).len()), before, "nothing was sent");
        // Each request uses a separate connection; the same state may be used twice.
        for _ in 0..2 {
            let second = ask(&proxy, &alice, request, Some(state)).json();
            assert_eq!(second["result"]["resultType"], "complete", "{second}");
            let sent = returned(&s).pop().unwrap();
            assert!(sent.contains(&format!(r#""requestState":{STATE}"#)), "{sent}");
            assert!(sent.contains(r#"{"who":{"action":"accept","content":{"N":1}}}"#), "{sent}");
        }
    }
    let records = proxy.activity("type=tool_call&status=success&tool=ask");
    let first = records.last().unwrap();
    assert_eq!(first["metadata"]["adapted"], "requestState", "{first}");
}

// PRO-31
#[test]
fn request_state_returns_over_stdio() {
    let s = Recorder::start(answer);
    let mut pipe = Pipe::open(json!({"mcpServers": {"s": entry(&s)}}));
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut params = requests("s", "ask").swap_remove(0).2;
    params["_meta"] = meta;
    let line = |params: &Value| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
    };
    let first: Value = serde_json::from_str(&pipe.ask(&line(&params))).unwrap();
    params["requestState"] = first["result"]["requestState"].clone();
    params["inputResponses"] = json!({});
    let second: Value = serde_json::from_str(&pipe.ask(&line(&params))).unwrap();
    assert_eq!(second["result"]["resultType"], "complete", "{first} {second}");
    assert!(returned(&s)[0].contains(&format!(r#""requestState":{STATE}"#)));
}

// PRO-31
#[test]
fn request_state_over_its_limit_is_a_failure_of_the_server() {
    const MAX: usize = 256 * 1024;
    let s = Recorder::start(|number, request| {
        let Reply::Http(status, lines, body) = answer(number, request) else { panic!("an answer") };
        let arguments = String::from_utf8_lossy(&request.body);
        let long = if arguments.contains("\"over\"") { MAX } else { MAX - 2 };
        let state = format!("\"{}\"", "x".repeat(long));
        let body = String::from_utf8(body).unwrap().replace(STATE, &state);
        Reply::Http(status, lines, body.into())
    });
    let proxy = Proxy::start(json!({"s": entry(&s)}));
    let mut request = requests("s", "ask").swap_remove(1);
    let result = ask(&proxy, "", &request, None).json()["result"].clone();
    let state = &result["requestState"];
    assert!(state.is_string(), "{result}");
    let second = ask(&proxy, "", &request, Some(state)).json();
    assert_eq!(second["result"]["resultType"], "complete", "{second}");
    request.2["arguments"] = json!({"size": "over"});
    let over = ask(&proxy, "", &request, None).text();
    // If a part of the response was already sent, the rest is cut off; otherwise the response is an error.
    let arrived = serde_json::from_str::<Value>(&over).unwrap_or_default();
    assert!(arrived["result"].get("requestState").is_none(), "{arrived}");
    let record = &proxy.activity("type=tool_call&status=error&tool=ask")[0];
    let text = record["error_message"].as_str().unwrap();
    assert_eq!(text, "s: ask: sent a requestState of more than 262144 bytes");
}
