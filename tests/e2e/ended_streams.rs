//! Streams end with the credential that opened them: API keys, agent tokens, JWTs and sessions of the page.

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Connection, Events, HttpStub, Issuer, Proxy, Scripted, configure, create_token,
    stub_stdio, unix_now, until,
};

const OTHER_KEY: &str = "another-key-of-more-than-thirty-two-characters";
const PAGE: (&str, &str) = ("X-Mcpproxy-Source", "page");
/// A keep-alive interval longer than the time limit of every test. A stream that ends earlier was therefore ended by
/// the change of its credential, and not by a check before its next keep-alive.
const ONLY_BY_SIGNAL: &str = "1h";

/// Replaces the API key in the config file, and waits until the new one is in force.
fn replace_key(proxy: &Proxy, mut config: Value) {
    config["api_key"] = json!(OTHER_KEY);
    config["data_dir"] = json!(proxy.folder.path().join("data"));
    configure(config, proxy.folder.path());
    until("the new key is in force", || {
        let asked = proxy.request("GET", "/api/v1/status", &[("X-API-Key", OTHER_KEY)], b"");
        (asked.status == 200).then_some(())
    });
}

fn rotate(proxy: &Proxy, name: &str) -> String {
    let rotated = proxy.cli(&["token", "rotate", name, "--json"]);
    assert_eq!(rotated.code, Some(0), "{}", rotated.stderr);
    rotated.json()["token"].as_str().unwrap().to_owned()
}

/// Session of a legacy client; each request has its own token or key.
struct Session<'a> {
    proxy: &'a Proxy,
    id: String,
}

impl<'a> Session<'a> {
    fn open(proxy: &'a Proxy, token: &str) -> Self {
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {"sampling": {}},
            "clientInfo": {"name": "holder", "version": "1"}}});
        let key = [("X-API-Key", token)];
        let response = proxy.request("POST", "/mcp", &key, hello.to_string().as_bytes());
        assert_eq!(response.status, 200, "{}", response.text());
        Self { proxy, id: response.header("mcp-session-id").unwrap().to_owned() }
    }

    fn send(
        &self,
        token: &str,
        method: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Connection {
        let own = [("Mcp-Session-Id", self.id.as_str()), ("X-API-Key", token)];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut connection = Connection::open(self.proxy.port);
        connection.send(method, "/mcp", &[&own[..], headers].concat(), body.as_bytes());
        connection
    }

    /// Opens the standing stream, and waits until it has begun.
    fn listen(&self, token: &str) -> Connection {
        let accept = [("Accept", "text/event-stream")];
        let mut stream = self.send(token, "GET", &accept, &Value::Null);
        assert_eq!(stream.head().0, 200);
        assert!(stream.chunk().is_some_and(|chunk| !chunk.is_empty()), "it has begun");
        stream
    }
}

fn call(tool: &str, operation: &str) -> Value {
    let intent = json!({"operation_type": operation});
    let arguments = json!({"name": tool, "args": {}, "intent": intent});
    json!({"jsonrpc": "2.0", "id": "call", "method": "tools/call", "params": {
        "name": format!("call_tool_{operation}"), "arguments": arguments}})
}

/// Asserts that a stream is ended properly without a further event.
fn assert_ends_silently(stream: &mut Connection, whose: &str) {
    let chunk = stream.chunk().unwrap_or_else(|| panic!("{whose}: it is cut off"));
    assert_eq!(String::from_utf8_lossy(&chunk), "", "{whose}");
}

/// Asserts that standing streams end silently when their tokens are rotated or revoked, or expire. Returns the session
/// of the rotated token, and its new secret.
fn assert_ends_with_their_tokens(proxy: &Proxy) -> (Session<'_>, String) {
    let [rotated, revoked] = ["rotated", "revoked"].map(|name| create_token(proxy, &[name]));
    let expired = create_token(proxy, &["expired", "--expires", "5s"]);
    let open = |token: &str| {
        let session = Session::open(proxy, token);
        let stream = session.listen(token);
        (session, stream)
    };
    let [(session, mut of_rotated), (_, mut of_revoked), (_, mut of_expired)] =
        [&rotated, &revoked, &expired].map(|token| open(token));
    let renewed = rotate(proxy, "rotated");
    assert_ends_silently(&mut of_rotated, "rotated");
    assert_eq!(proxy.cli(&["token", "revoke", "revoked"]).code, Some(0));
    assert_ends_silently(&mut of_revoked, "revoked");
    assert_ends_silently(&mut of_expired, "expired");
    (session, renewed)
}

// PRO-8
#[test]
fn events_of_a_replaced_api_key_end_and_omit_later_records() {
    let servers = json!({"mcpServers": {"a": stub_stdio(&[])}});
    let proxy = Proxy::with(servers.clone());
    let mut connection = Connection::open(proxy.port);
    connection.send("GET", "/events", &[("X-API-Key", API_KEY)], b"");
    let mut events = Events::of(connection);
    let mut client = proxy.client();
    assert_ne!(client.read("a:read_item", json!({}))["isError"], true);
    until("the call is delivered", || (events.message()["type"] == "tool_call").then_some(()));
    replace_key(&proxy, servers);
    assert_ne!(client.read("a:read_item", json!({}))["isError"], true);
    while let Some(event) = events.next() {
        let record = event.json();
        assert_ne!(record["type"], "tool_call", "recorded under the other key");
        assert_ne!(
            record["metadata"]["door"], "file",
            "the reload is recorded under the other key"
        );
    }
    let old = proxy.request("GET", "/events", &[("X-API-Key", API_KEY)], b"");
    assert_eq!(old.status, 401);
}

#[test]
fn mcp_streams_of_a_replaced_api_key_end() {
    let config = json!({"require_mcp_auth": true, "keepalive": ONLY_BY_SIGNAL});
    let proxy = Proxy::with(config.clone());
    let mut stream = Session::open(&proxy, API_KEY).listen(API_KEY);
    replace_key(&proxy, config);
    assert_ends_silently(&mut stream, "that of the old key");
}

#[test]
fn events_of_a_page_session_end_with_the_api_key() {
    let proxy = Proxy::start(json!({}));
    let host = format!("127.0.0.1:{}", proxy.port);
    let headers = [("Host", &*host), ("X-API-Key", API_KEY), PAGE];
    let opened = proxy.request("POST", "/api/v1/page/session", &headers, b"{}");
    assert_eq!(opened.status, 200, "{}", opened.text());
    let cookie = opened.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let mut connection = Connection::open(proxy.port);
    connection.send("GET", "/events", &[("Host", &host), ("Cookie", &cookie), PAGE], b"");
    let mut events = Events::of(connection);
    replace_key(&proxy, json!({}));
    while let Some(event) = events.next() {
        let door = &event.json()["metadata"]["door"];
        assert_ne!(door, "file", "the reload is recorded under the other key");
    }
}

// PRO-8
#[test]
fn standing_stream_ends_only_for_a_rotated_revoked_or_expired_token() {
    let proxy = Proxy::with(json!({"require_mcp_auth": true}));
    let lasting = create_token(&proxy, &["lasting"]);
    let session = Session::open(&proxy, &lasting);
    let mut of_lasting = session.listen(&lasting);
    let (of_rotated, renewed) = assert_ends_with_their_tokens(&proxy);
    // The session of a rotated token continues with the new secret.
    drop(of_rotated.listen(&renewed));
    // The stream of the unchanged token continues with a keep-alive.
    assert_eq!(String::from_utf8_lossy(&of_lasting.chunk().unwrap()), ":\n\n");
}

// PRO-8
#[test]
fn subscription_of_a_rotated_token_ends_silently() {
    let servers = json!({"a": stub_stdio(&[])});
    let proxy = Proxy::with(json!({"mcpServers": servers, "keepalive": ONLY_BY_SIGNAL}));
    let token = create_token(&proxy, &["ci"]);
    let (version, method) = ("2026-07-28", "subscriptions/listen");
    let params = json!({"notifications": {"toolsListChanged": true}, "_meta": {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {}}});
    let body = json!({"jsonrpc": "2.0", "id": "raw", "method": method, "params": params});
    let headers =
        [("MCP-Protocol-Version", version), ("Mcp-Method", method), ("X-API-Key", &*token)];
    let mut connection = Connection::open(proxy.port);
    connection.send("POST", "/mcp", &headers, body.to_string().as_bytes());
    let mut events = Events::of(connection);
    assert_eq!(events.message()["method"], "notifications/subscriptions/acknowledged");
    rotate(&proxy, "ci");
    assert!(events.next().is_none());
}

#[test]
fn call_in_flight_finishes_and_its_stream_resumes_only_with_the_new_secret() {
    let (stub, held) = (HttpStub::start(&["--only", "ask"]), Scripted::start(&["plain_held"]));
    let proxy = Proxy::with(json!({"require_mcp_auth": true,
        "mcpServers": {"s": stub.entry(), "h": held.entry()}}));
    let token = create_token(&proxy, &["ci"]);
    let session = Session::open(&proxy, &token);
    let mut events = Events::of(session.send(&token, "POST", &[], &call("s:ask", "read")));
    let asked = events.next().unwrap();
    let json_only = [("Accept", "application/json")];
    let mut plain = session.send(&token, "POST", &json_only, &call("h:plain_held", "write"));
    held.wait_for(1);
    let renewed = rotate(&proxy, "ci");
    assert!(events.next().is_none(), "the old secret's stream has ended");
    held.release(1);
    let answer = plain.response();
    assert_eq!((answer.status, answer.whole), (200, true), "{}", answer.text());
    assert_eq!(answer.json()["result"]["content"][0]["text"], "done");
    // The question is answered, and the stream resumed, with the token's new secret.
    let result = json!({"model": "m"});
    let answered = json!({"jsonrpc": "2.0", "id": asked.json()["id"], "result": result});
    let accepted = session.send(&renewed, "POST", &[], &answered).response();
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    let seen = [("Accept", "text/event-stream"), ("Last-Event-ID", asked.id.as_deref().unwrap())];
    let old = session.send(&token, "GET", &seen, &Value::Null).response();
    assert_eq!(old.status, 401);
    let mut resumed = Events::of(session.send(&renewed, "GET", &seen, &Value::Null));
    assert_eq!(resumed.message()["result"]["structuredContent"]["answered"]["model"], "m");
    assert!(resumed.next().is_none());
}

// PRO-8
#[test]
fn standing_stream_of_a_revoked_token_ends_without_a_keep_alive() {
    let proxy = Proxy::with(json!({"require_mcp_auth": true, "keepalive": ONLY_BY_SIGNAL}));
    assert_ends_with_their_tokens(&proxy);
}

// PRO-8
#[test]
fn stream_of_a_jwt_ends_when_its_key_is_withdrawn_or_it_expires() {
    let issuer = Issuer::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, issuer.keys()).unwrap();
    let proxy = Proxy::with(json!({"require_mcp_auth": true, "auth": {"jwt": {
        "issuer": issuer.url(), "audience": "mcp", "jwks_file": &file}}}));
    let lasting = issuer.token(&issuer.claims());
    until("the keys are known", || {
        let asked = proxy.request("GET", "/api/v1/tools", &[("X-API-Key", &lasting)], b"");
        (asked.status == 200).then_some(())
    });
    let mut claims = issuer.claims();
    // Valid for 6 more seconds, because a JWT is accepted for a minute after its expiry.
    (claims["iat"], claims["exp"]) = (json!(unix_now() - 300), json!(unix_now() - 54));
    let short = issuer.token(&claims);
    let mut of_short = Session::open(&proxy, &short).listen(&short);
    let mut of_lasting = Session::open(&proxy, &lasting).listen(&lasting);
    assert_ends_silently(&mut of_short, "expired");
    issuer.rotate("k2");
    std::fs::write(&file, issuer.keys()).unwrap();
    assert_ends_silently(&mut of_lasting, "of a withdrawn key");
}
