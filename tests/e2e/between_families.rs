//! Translation between protocol families and revisions: capabilities, tasks, log levels, error codes, and elicitations
//! by URL.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::harness::{
    Connection, Events, Proxy, Received, Recorder, Reply, ask_modern, stub_stdio, until,
};
use crate::held_calls::Call;
use crate::request_state::{answer as modern_server, entry};

const MODERN: &str = "2026-07-28";
const COMPLETE: &str = "notifications/elicitation/complete";

/// Session of a legacy client.
pub(crate) struct Session<'a> {
    proxy: &'a Proxy,
    path: &'static str,
    id: String,
}

impl<'a> Session<'a> {
    pub(crate) fn open(proxy: &'a Proxy, version: &str, capabilities: Value) -> Self {
        Self::open_at("/mcp", proxy, version, capabilities)
    }

    pub(crate) fn open_at(
        path: &'static str,
        proxy: &'a Proxy,
        version: &str,
        capabilities: Value,
    ) -> Self {
        let mut session = Self { proxy, path, id: String::new() };
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": capabilities,
            "clientInfo": {"name": "e2e", "version": "1"}}});
        let opened = session.send(&hello).response();
        session.id = opened.header("mcp-session-id").expect("a session").to_owned();
        session
    }

    pub(crate) fn send(&self, message: &Value) -> Connection {
        self.send_with(&[], message)
    }

    /// Sends a message with further headers.
    pub(crate) fn send_with(&self, more: &[(&str, &str)], message: &Value) -> Connection {
        let mut headers = more.to_vec();
        if !self.id.is_empty() {
            headers.push(("Mcp-Session-Id", &*self.id));
        }
        let mut connection = Connection::open(self.proxy.port);
        connection.send("POST", self.path, &headers, message.to_string().as_bytes());
        connection
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn end(&self) {
        let headers = [("Mcp-Session-Id", &*self.id)];
        assert_eq!(self.proxy.request("DELETE", "/mcp", &headers, b"").status, 204);
    }

    pub(crate) fn ask(&self, method: &str, params: &Value) -> Connection {
        self.send(&json!({"jsonrpc": "2.0", "id": "c", "method": method, "params": params}))
    }

    pub(crate) fn call(&self, tool: &str, args: Value) -> Connection {
        self.ask("tools/call", &read(tool, args))
    }

    pub(crate) fn answer(&self, question: &Value, result: Value) {
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
        assert_eq!(self.send(&answer).response().status, 202);
    }
}

pub(crate) fn read(tool: &str, args: Value) -> Value {
    let intent = json!({"operation_type": "read"});
    json!({"name": "call_tool_read", "arguments": {"name": tool, "args": args, "intent": intent}})
}

/// Params of the last call that reached the server.
fn last_call(server: &Recorder) -> Value {
    let bodies = server.received().into_iter().rev();
    let mut messages = bodies.filter_map(|it| serde_json::from_slice::<Value>(&it.body).ok());
    messages.find(|it| it["method"] == "tools/call").expect("a call")["params"].take()
}

/// A legacy server over HTTP with the tool `ask`. `reply` returns the part of its response that follows the head.
fn legacy_server(
    reply: impl Fn(&Value) -> (&'static str, String) + Send + Sync + 'static,
) -> Recorder {
    Recorder::start(move |_, request: &Received| {
        if !request.head[0].starts_with("POST ") {
            return Reply::Http("405 Method Not Allowed", "", Vec::new());
        }
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let Some(id) = message.get("id").filter(|_| message.get("method").is_some()) else {
            return Reply::Http("202 Accepted", "", Vec::new());
        };
        let result = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "old", "version": "1"}}),
            "tools/list" => json!({"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}),
            "tools/call" => {
                let (lines, body) = reply(id);
                return Reply::Http("200 OK", lines, body.into());
            }
            _ => {
                let error = json!({"code": -32601, "message": "Method not found"});
                let body = json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string();
                return Reply::Http("200 OK", JSON, body.into());
            }
        };
        let body = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
        Reply::Http("200 OK", JSON, body.into())
    })
}

const JSON: &str = "content-type: application/json\r\n";
const SSE: &str = "content-type: text/event-stream\r\n";

// PRO-32
#[test]
fn url_elicitation_is_refused_for_a_client_that_did_not_declare_it() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let url = json!({"mode": "url", "message": "Open", "url": "https://a.example/", "elicitationId": "e"});
    let args = json!({"ask": "elicitation/create", "with": {"params": url}});
    for (version, capabilities) in [
        ("2025-06-18", json!({"elicitation": {}})),
        // Elicitation by URL does not exist in this revision.
        ("2025-06-18", json!({"elicitation": {"url": {}}})),
        ("2025-11-25", json!({"elicitation": {}})),
        ("2025-11-25", json!({"elicitation": {"form": {}}})),
    ] {
        let session = Session::open(&proxy, version, capabilities);
        let seen = session.call("s:ask", args.clone()).response();
        let answered = &seen.json()["result"]["structuredContent"]["answered"];
        assert_eq!(answered["code"], -32602, "{version}: {}", seen.text());
        let why = answered["message"].as_str().unwrap();
        assert!(why.contains("did not declare that it can open a URL"), "{why}");
    }
    let session = Session::open(&proxy, "2025-11-25", json!({"elicitation": {"url": {}}}));
    let mut events = Events::of(session.call("s:ask", args));
    let asked = events.message();
    assert_eq!(asked["params"], url);
    session.answer(&asked, json!({"action": "accept"}));
    let result = &events.message()["result"]["structuredContent"]["answered"];
    assert_eq!(*result, json!({"action": "accept"}));
    // A client that can only open URLs is not asked to fill in a form.
    let form = json!({"ask": "elicitation/create"});
    let refused = session.call("s:ask", form).response().json();
    assert_eq!(refused["result"]["structuredContent"]["answered"]["code"], -32602, "{refused}");
}

// PRO-33
#[test]
fn capabilities_that_are_not_bridged_do_not_reach_a_server() {
    let server = Recorder::start(modern_server);
    let proxy = Proxy::start(json!({"m": entry(&server)}));
    let mut params = read("m:ask", json!({}));
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {"form": {}, "url": {}}, "roots": {}, "tasks": {"requests": {}},
            "extensions": {"io.modelcontextprotocol/tasks": {}}, "experimental": {"x": {}},
        },
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let headers = [
        ("MCP-Protocol-Version", MODERN),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "call_tool_read"),
    ];
    let answer = proxy.request("POST", "/mcp", &headers, body.to_string().as_bytes());
    assert_eq!(answer.json()["result"]["resultType"], "input_required", "{}", answer.text());
    assert_eq!(
        last_call(&server)["_meta"]["io.modelcontextprotocol/clientCapabilities"],
        json!({"elicitation": {"form": {}, "url": {}}, "roots": {}})
    );
}

// PRO-34
#[test]
fn log_level_of_a_legacy_client_is_stated_in_its_calls_to_a_modern_server() {
    let server = Recorder::start(modern_server);
    let proxy = Proxy::start(json!({"m": entry(&server)}));
    let (session, other) = (
        Session::open(&proxy, "2025-11-25", json!({})),
        Session::open(&proxy, "2025-11-25", json!({})),
    );
    let level = || last_call(&server)["_meta"]["io.modelcontextprotocol/logLevel"].clone();
    session.call("m:ask", json!({})).response();
    assert_eq!(level(), Value::Null, "it has set none");
    for set in ["warning", "debug"] {
        let answer = session.ask("logging/setLevel", &json!({"level": set})).response();
        assert_eq!(answer.json()["result"], json!({}), "{}", answer.text());
        session.call("m:ask", json!({})).response();
        assert_eq!(level(), set);
    }
    other.call("m:ask", json!({})).response();
    assert_eq!(level(), Value::Null, "the level is that of its session");
}

// PRO-35
#[test]
fn error_codes_are_those_of_the_clients_family() {
    let server = legacy_server(|id| {
        let asked = json!([{"mode": "url", "elicitationId": "e", "url": "https://a.example/",
            "message": "Open"}]);
        let error = json!({"code": -32042, "message": "open it", "data": {"elicitations": asked}});
        (JSON, json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string())
    });
    let offers = stub_stdio(&["--offers"]);
    let proxy = Proxy::start(json!({"s": offers, "u": entry(&server)}));
    let legacy = Session::open(&proxy, "2025-11-25", json!({}));
    for (method, params, old, new) in [
        ("resources/read", json!({"uri": "mcpproxy://s/missing:x"}), -32002, -32602),
        ("tools/call", read("u:ask", json!({})), -32042, -32603),
    ] {
        let theirs = legacy.ask(method, &params).response().json()["error"].take();
        assert_eq!(theirs["code"], old, "{theirs}");
        let ours = ask_modern(&proxy, "/mcp", method, params, &[]).json()["error"].take();
        assert_eq!(ours["code"], new, "{ours}");
        assert_eq!((&ours["message"], &ours["data"]), (&theirs["message"], &theirs["data"]));
    }
}

#[test]
fn pro_35_modern_client_is_asked_to_open_the_urls_of_an_error() {
    let was_asked = AtomicBool::new(false);
    let server = legacy_server(move |id| {
        if was_asked.swap(true, Ordering::Relaxed) {
            let result = json!({"content": [{"type": "text", "text": "done"}]});
            return (JSON, json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
        }
        let asked = json!([{"mode": "url", "elicitationId": "e", "url": "https://a.example/",
            "message": "Open"}]);
        let error = json!({"code": -32042, "message": "open it", "data": {"elicitations": asked}});
        (JSON, json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string())
    });
    let proxy = Proxy::start(json!({"s": entry(&server)}));
    let call = Call::of(&proxy, "/mcp", "ask", json!({}));
    let asked = call.asked();
    assert_eq!(
        asked["inputRequests"],
        json!({"url_1": {"method": "elicitation/create", "params": {"mode": "url",
            "url": "https://a.example/", "message": "Open"}}})
    );
    assert_eq!(asked.get("requestState"), None, "the repeated request is a new call");
    let record =
        until("the request is recorded", || proxy.activity("type=tool_call&tool=ask").pop());
    assert_eq!(record["metadata"]["input_required"], true, "{record}");
    assert_eq!(record["metadata"]["adapted"], "error", "{record}");
    assert_eq!(record["status"], "success", "{record}");
    let answers = json!({"inputResponses": {"url_1": {"action": "accept"}}});
    let done = call.send(answers).json();
    assert_eq!(done["result"]["content"][0]["text"], "done", "{done}");
}

// PRO-36
#[test]
fn completion_of_an_elicitation_reaches_the_client_that_was_asked() {
    let server = legacy_server(|id| {
        let url = json!({"mode": "url", "message": "Open", "url": "https://a.example/", "elicitationId": "mine"});
        let event = |message: Value| format!("data: {message}\n\n");
        let complete = |of: &str| {
            event(json!({"jsonrpc": "2.0", "method": COMPLETE, "params": {"elicitationId": of}}))
        };
        let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": url});
        let last = json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}});
        let body = [complete("other"), event(ask), complete("mine"), complete("mine"), event(last)];
        (SSE, body.concat())
    });
    let proxy = Proxy::start(json!({"u": entry(&server)}));
    let session = Session::open(&proxy, "2025-11-25", json!({"elicitation": {"url": {}}}));
    let mut events = Events::of(session.call("u:ask", json!({})));
    assert_eq!(events.message()["method"], "elicitation/create");
    let complete = events.message();
    assert_eq!(complete["method"], COMPLETE, "{complete}");
    assert_eq!(complete["params"], json!({"elicitationId": "mine"}));
    let last = events.message();
    assert_eq!(
        last["result"],
        json!({"content": []}),
        "sent once, and only for its own elicitation"
    );
}
