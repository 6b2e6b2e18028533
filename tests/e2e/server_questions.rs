//! Recipients of server requests that are sent outside of the stream of a call, while clients of two principals use the
//! server.

use serde_json::{Value, json};

use crate::harness::{Connection, Events, Proxy, stub_stdio, until};

/// Text that only one of the principals may receive.
const SECRET: &str = "the arguments of a";

/// Session of a principal.
pub(crate) struct Holder {
    port: u16,
    bearer: String,
    session: String,
}

impl Holder {
    pub(crate) fn open(proxy: &Proxy, name: &str, capabilities: Value) -> Self {
        let made = proxy.cli(&["token", "create", name, "--json"]);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        let bearer = format!("Bearer {}", made.json()["token"].as_str().unwrap());
        Self::again(proxy, bearer, capabilities)
    }

    fn again(proxy: &Proxy, bearer: String, capabilities: Value) -> Self {
        let mut holder = Self { port: proxy.port, bearer, session: String::new() };
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": capabilities,
            "clientInfo": {"name": "e2e", "version": "1"}}});
        let opened = holder.send(&hello).response();
        holder.session = opened.header("mcp-session-id").expect("a session").to_owned();
        holder
    }

    pub(crate) fn send(&self, message: &Value) -> Connection {
        let mut headers = vec![("Authorization", &*self.bearer)];
        if !self.session.is_empty() {
            headers.push(("Mcp-Session-Id", &self.session));
        }
        let mut connection = Connection::open(self.port);
        connection.send("POST", "/mcp", &headers, message.to_string().as_bytes());
        connection
    }

    /// Starts a call. Its response is read later.
    pub(crate) fn call(&self, tool: &str, args: Value) -> Connection {
        let arguments = json!({"name": tool, "args": args, "intent": {"operation_type": "read"}});
        let params = json!({"name": "call_tool_read", "arguments": arguments});
        self.send(&json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params}))
    }

    /// Makes a call during which the server sends a request of `method`. Returns the answer that the server gets.
    pub(crate) fn answered(&self, method: &str) -> Value {
        let with = json!({"params": {"message": SECRET, "messages": [], "maxTokens": 1,
            "requestedSchema": {"type": "object", "properties": {}}}});
        let answer = self.call("s:ask", json!({"ask": method, "with": with})).response();
        answer.json()["result"]["structuredContent"]["answered"].clone()
    }

    pub(crate) fn cancel(&self) {
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": "c"}});
        assert_eq!(self.send(&cancel).response().status, 202);
    }
}

/// Waits until the server has this number of unanswered calls.
fn until_held(proxy: &Proxy, calls: u64) {
    let mut client = proxy.client();
    until("the server has the call", || {
        let stats = client.read("s:stats", json!({}));
        (stats["structuredContent"]["abandoned"].as_u64() >= Some(calls)).then_some(())
    });
}

// PRO-6
#[test]
fn server_request_about_one_principals_call_is_never_sent_to_another() {
    let all = json!({"elicitation": {}, "sampling": {}, "roots": {}});
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let able = Holder::open(&proxy, "b", all.clone());
    let mut held = able.call("s:never", json!({}));
    until_held(&proxy, 1);
    // The server asks during a call of a client without capabilities, and of one with the same capabilities.
    for (name, capabilities) in [("a1", json!({})), ("a2", all)] {
        let asking = Holder::open(&proxy, name, capabilities);
        for method in ["elicitation/create", "sampling/createMessage", "roots/list"] {
            let refused = asking.answered(method);
            assert_eq!(refused["code"], -32603, "{name} {method}: {refused}");
            let why = refused["message"].as_str().unwrap();
            assert!(why.contains("2 calls are in flight"), "{name} {method}: {why}");
        }
    }
    able.cancel();
    let seen = held.response().text();
    assert!(!seen.contains(SECRET) && !seen.contains("elicitation"), "{seen}");
    assert!(seen.contains("cancelled"), "{seen}");
}

// PRO-6
#[test]
fn server_request_is_not_sent_to_another_principal_after_a_call_was_canceled() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let first = Holder::open(&proxy, "a", json!({"elicitation": {}}));
    let mut held = first.call("s:never", json!({}));
    until_held(&proxy, 1);
    first.cancel();
    held.response();
    // It is unknown whether the server still processes the canceled call.
    let other = Holder::open(&proxy, "b", json!({"elicitation": {}}));
    let refused = other.answered("elicitation/create");
    assert!(refused["message"].as_str().unwrap().contains("abandoned recently"), "{refused}");
    // A second session of the same principal counts as another client.
    let again = Holder::again(&proxy, first.bearer.clone(), json!({"elicitation": {}}));
    assert_eq!(again.answered("elicitation/create")["code"], -32603);
    let mut events = Events::of(first.call("s:ask", json!({"ask": "elicitation/create"})));
    let asked = events.message();
    assert_eq!(asked["method"], "elicitation/create");
    let result = json!({"action": "decline"});
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
    assert_eq!(first.send(&answer).response().status, 202);
    assert_eq!(events.message()["result"]["structuredContent"]["answered"], result);
}

// PRO-6
#[test]
fn server_request_is_sent_while_another_call_of_the_same_session_is_in_flight() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let holder = Holder::open(&proxy, "a", json!({"elicitation": {}}));
    let mut held = holder.call("s:never", json!({}));
    until_held(&proxy, 1);
    let mut events = Events::of(holder.call("s:ask", json!({"ask": "elicitation/create"})));
    let asked = events.message();
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    let result = json!({"action": "decline"});
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
    assert_eq!(holder.send(&answer).response().status, 202);
    assert_eq!(events.message()["result"]["structuredContent"]["answered"], result);
    holder.cancel();
    assert!(held.response().text().contains("cancelled"));
}

#[test]
fn server_request_is_refused_while_a_call_over_rest_is_in_flight() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let body = json!({"tool_name": "call_tool_read", "intent": {"operation_type": "read"},
        "arguments": {"name": "s:never"}});
    let mut rest = Connection::open(proxy.port);
    let key = [("X-API-Key", crate::harness::API_KEY)];
    rest.send("POST", "/api/v1/tools/call", &key, body.to_string().as_bytes());
    until_held(&proxy, 1);
    let asking = Holder::open(&proxy, "a", json!({"elicitation": {}}));
    assert_eq!(asking.answered("elicitation/create")["code"], -32603);
}
