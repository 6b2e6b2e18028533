//! The revisions with sessions, 2024-11-05 to 2025-11-25, over HTTP.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Connection, Events, HttpStub, PATIENCE, Proxy, Received, Recorder, Reply, Response,
    ask_modern, until,
};

fn stub() -> &'static HttpStub {
    static STUB: OnceLock<HttpStub> = OnceLock::new();
    STUB.get_or_init(|| HttpStub::for_all(&[]))
}

fn proxy() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| Proxy::for_all(json!({"mcpServers": {"s": stub().entry()}})))
}

/// Session with a new connection per message.
struct Session {
    port: u16,
    path: &'static str,
    id: String,
}

impl Session {
    fn open(proxy: &Proxy, path: &'static str, version: &str, capabilities: Value) -> Self {
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": capabilities,
            "clientInfo": {"name": "legacy", "version": "1"}}});
        let response = proxy.request("POST", path, &[], hello.to_string().as_bytes());
        assert_eq!(response.json()["result"]["protocolVersion"], version, "{}", response.text());
        let id = response.header("mcp-session-id").expect("a session").to_owned();
        assert!(id.len() >= 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        Self { port: proxy.port, path, id }
    }

    fn plain() -> Self {
        Self::open(proxy(), "/mcp", "2025-11-25", json!({}))
    }

    fn send(&self, method: &str, headers: &[(&str, &str)], body: &str) -> Connection {
        let session = [("Mcp-Session-Id", self.id.as_str())];
        let headers: Vec<_> = session.iter().chain(headers).copied().collect();
        let mut connection = Connection::open(self.port);
        connection.send(method, self.path, &headers, body.as_bytes());
        connection
    }

    fn post(&self, body: &Value) -> Response {
        self.send("POST", &[], &body.to_string()).response()
    }

    fn get(&self, headers: &[(&str, &str)]) -> Connection {
        self.send("GET", &[&[("Accept", "text/event-stream")][..], headers].concat(), "")
    }

    /// Starts a read call. Its response is read later.
    fn call(&self, tool: &str, args: Value, meta: Value) -> Connection {
        self.send("POST", &[], &read("c", tool, args, meta).to_string())
    }
}

fn read(id: &str, tool: &str, args: Value, meta: Value) -> Value {
    let intent = json!({"operation_type": "read"});
    let arguments = json!({"name": tool, "args": args, "intent": intent});
    let params = json!({"name": "call_tool_read", "arguments": arguments, "_meta": meta});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

fn add_tool(session: &Session) {
    let intent = json!({"operation_type": "write"});
    let arguments = json!({"name": "s:add_tool", "intent": intent});
    let params = json!({"name": "call_tool_write", "arguments": arguments});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    assert_eq!(session.post(&body).status, 200);
}

#[test]
fn batches_are_accepted_in_only_one_revision() {
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        read("a", "s:read_item", json!({}), json!({})),
        {"jsonrpc": "2.0", "id": 2, "method": "no/such"},
        7,
        {"jsonrpc": "2.0", "id": 3, "method": "initialize",
            "params": {"protocolVersion": "2025-03-26"}},
        read("b", "s:text", json!({"size": 100_000, "chunk": 1000}), json!({})),
    ]);
    let session = Session::open(proxy(), "/mcp", "2025-03-26", json!({}));
    let response = session.post(&batch);
    assert_eq!(response.status, 200, "{}", response.text());
    let answers = response.json();
    let ids: Vec<_> = answers.as_array().unwrap().iter().map(|it| it["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!("a"), json!(2), Value::Null, Value::Null, json!("b")]);
    assert_eq!(answers[1]["result"]["structuredContent"]["value"], 7);
    assert_eq!(answers[2]["error"]["code"], -32601);
    assert_eq!(session.post(&json!([batch[1]])).status, 202);
    assert_eq!(session.post(&json!([])).status, 400);
    assert_eq!(session.post(&json!(vec![batch[0].clone(); 65])).status, 400);
    let twice = r#"[{"jsonrpc":"2.0","id":1,"method":"ping","m\u0065thod":"ping"}]"#;
    assert_eq!(session.send("POST", &[], twice).response().status, 400);
    for version in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        let session = Session::open(proxy(), "/mcp", version, json!({}));
        let response = session.post(&batch);
        assert_eq!((response.status, &response.json()["error"]["code"]), (400, &json!(-32600)));
    }
}

#[test]
fn progress_and_log_messages_precede_the_answer_as_events_with_ids() {
    let session = Session::plain();
    let mut events = Events::of(session.call("s:notify", json!({}), json!({"progressToken": "t"})));
    let progress = events.next().unwrap();
    assert_eq!(progress.json()["params"]["progressToken"], "t");
    let log = events.next().unwrap();
    assert_eq!(log.json()["method"], "notifications/message");
    let answer = events.next().unwrap();
    assert_eq!(answer.json()["result"]["structuredContent"]["value"], 7);
    let ids = [progress.id, log.id, answer.id].map(Option::unwrap);
    assert!(ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");
    assert!(events.next().is_none());
    // The level filters the messages of this session only. No message then precedes the answer.
    let level = json!({"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel",
        "params": {"level": "warning"}});
    assert_eq!(session.post(&level).json()["result"], json!({}));
    let response = session.call("s:notify", json!({}), json!({})).response();
    assert_eq!(response.header("content-type"), Some("application/json"));
    let level = level.to_string().replace("warning", "info");
    let other = Session::plain();
    assert_eq!(other.send("POST", &[], &level).response().status, 200);
    let mut events = Events::of(other.call("s:notify", json!({}), json!({})));
    assert_eq!(events.message()["method"], "notifications/message");
    let wrong = json!({"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel",
        "params": {"level": "loud"}});
    assert_eq!(session.post(&wrong).json()["error"]["code"], -32602);
}

#[test]
fn unsolicited_log_messages_arrive_on_the_standing_stream_or_not_at_all() {
    let session = Session::plain();
    let answer = session.call("s:notify", json!({}), json!({})).response();
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let mut standing = Events::of(session.get(&[]));
    assert_eq!(standing.next().unwrap().data, "");
    let answer = session.call("s:notify", json!({}), json!({})).response();
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(standing.message()["method"], "notifications/message");
}

#[test]
fn client_that_accepts_no_events_gets_json_and_no_requests() {
    let session = Session::open(proxy(), "/mcp", "2025-06-18", json!({"sampling": {}}));
    let json_only = [("Accept", "application/json")];
    for tool in ["s:notify", "s:ask"] {
        let body = read("c", tool, json!({}), json!({"progressToken": 1})).to_string();
        let response = session.send("POST", &json_only, &body).response();
        assert_eq!(response.header("content-type"), Some("application/json"), "{tool}");
        if tool == "s:ask" {
            let returned = &response.json()["result"]["structuredContent"]["answered"];
            assert!(returned["message"].as_str().unwrap().contains("event stream"), "{returned}");
        }
    }
}

#[test]
fn server_request_reaches_only_the_calling_client() {
    for (method, capability, params) in [
        ("sampling/createMessage", "sampling", json!({"messages": [], "maxTokens": 10})),
        (
            "elicitation/create",
            "elicitation",
            json!({"message": "which one?",
                "requestedSchema": {"type": "object", "properties": {}}}),
        ),
        ("roots/list", "roots", json!({})),
    ] {
        let ours = Session::open(proxy(), "/mcp", "2025-06-18", json!({capability: {}}));
        let other = Session::open(proxy(), "/mcp", "2025-06-18", json!({capability: {}}));
        let mut events = Events::of(ours.call("s:ask", json!({"ask": method}), json!({})));
        let asked = events.message();
        assert_eq!(asked["method"], method);
        assert_eq!(asked["params"], params, "the parameters of the request");
        let by = |by| json!({"_meta": {"by": by}});
        let answer = |who| json!({"jsonrpc": "2.0", "id": asked["id"], "result": by(who)});
        assert_eq!(other.post(&answer("another")).status, 202);
        assert_eq!(ours.post(&answer("ours")).status, 202);
        assert_eq!(ours.post(&answer("once more")).status, 202);
        let notification = events.message();
        assert_eq!(
            notification["result"]["structuredContent"]["answered"],
            by("ours"),
            "{notification}"
        );
    }
    let outside = json!({"jsonrpc": "2.0", "id": 0, "result": {}}).to_string();
    assert_eq!(proxy().request("POST", "/mcp", &[], outside.as_bytes()).status, 400);
}

#[test]
fn client_gets_only_requests_it_declared() {
    let session = Session::open(proxy(), "/mcp", "2025-06-18", json!({"roots": {}}));
    let response = session.call("s:ask", json!({}), json!({})).response();
    let returned = &response.json()["result"]["structuredContent"]["answered"];
    assert_eq!(returned["code"], -32601, "{returned}");
    assert!(returned["message"].as_str().unwrap().contains("did not declare"), "{returned}");
}

#[test]
fn error_of_the_client_reaches_the_requesting_server() {
    let session = Session::open(proxy(), "/mcp", "2025-06-18", json!({"sampling": {}}));
    let mut events = Events::of(session.call("s:ask", json!({}), json!({})));
    let error = json!({"code": -1, "message": "the user said no"});
    let id = events.message()["id"].clone();
    session.post(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
    assert_eq!(events.message()["result"]["structuredContent"]["answered"], error);
}

#[test]
fn cancellation_ends_a_call_only_from_its_own_session_and_is_recorded() {
    let (session, other) = (Session::plain(), Session::plain());
    // The first call of a tool waits for its input schema. If it is canceled before it is sent, the server is not
    // notified. Therefore a call with invalid arguments precedes.
    let refused = session.call("s:never", json!({"size": "none"}), json!({})).response().json();
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    let mut call = session.call("s:never", json!({}), json!({}));
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": "c", "reason": "changed my mind"}});
    let record = until("the call is cancelled", || {
        // The call may not be in progress yet. The other session cannot end it.
        assert_eq!(other.post(&cancel).status, 202);
        assert_eq!(session.post(&cancel).status, 202);
        let query = format!("session_id={}&status=error", session.id);
        proxy().activity(&query).into_iter().next()
    });
    assert_eq!(record["error_message"], "the client cancelled the call");
    let answer = call.response().json();
    assert!(answer["error"]["message"].as_str().unwrap().contains("cancelled"), "{answer}");
    until("the server is notified", || {
        let stats = session.call("s:stats", json!({}), json!({})).response().json();
        let stats = &stats["result"]["structuredContent"];
        (stats["cancelled"].as_u64() > Some(0) || stats["abandoned"].as_u64() > Some(0))
            .then_some(())
    });
}

#[test]
fn sessions_sharing_a_connection_cannot_end_or_answer_each_others_calls() {
    let open = || Session::open(proxy(), "/mcp", "2025-06-18", json!({"elicitation": {}}));
    let (ours, other) = (open(), open());
    let ping = json!({"jsonrpc": "2.0", "id": "c", "method": "ping"}).to_string();
    let call = read("c", "s:ask", json!({"ask": "elicitation/create"}), json!({})).to_string();
    let mut shared = Connection::open(proxy().port);
    shared.send("POST", "/mcp", &[("Mcp-Session-Id", &other.id)], ping.as_bytes());
    assert_eq!(shared.response().status, 200);
    shared.send("POST", "/mcp", &[("Mcp-Session-Id", &ours.id)], call.as_bytes());
    let mut events = Events::of(shared);
    let asked = events.message();
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": "c"}});
    let result = |by| json!({"action": "accept", "content": {"by": by}});
    let answer = |by| json!({"jsonrpc": "2.0", "id": asked["id"], "result": result(by)});
    assert_eq!(other.post(&cancel).status, 202);
    assert_eq!(other.post(&answer("another")).status, 202);
    assert_eq!(ours.post(&answer("ours")).status, 202);
    let notification = events.message();
    assert_eq!(
        notification["result"]["structuredContent"]["answered"],
        result("ours"),
        "{notification}"
    );
}

#[test]
fn broken_stream_resumes_after_the_last_event_seen() {
    let session = Session::open(proxy(), "/mcp", "2025-11-25", json!({"sampling": {}}));
    let mut events = Events::of(session.call("s:ask", json!({}), json!({})));
    let asked = events.next().unwrap();
    drop(events);
    let seen = asked.id.clone().unwrap();
    let before = format!("{}-0", seen.split('-').next().unwrap());
    let stranger = Session::plain();
    assert_eq!(stranger.get(&[("Last-Event-ID", &seen)]).response().status, 400, "of a session");
    let mut again = Events::of(session.get(&[("Last-Event-ID", &before)]));
    assert_eq!(again.message(), asked.json(), "sent events are repeated");
    let answer = json!({"jsonrpc": "2.0", "id": asked.json()["id"], "result": {"model": "m"}});
    assert_eq!(session.post(&answer).status, 202);
    let event = again.next().unwrap();
    assert_eq!(event.json()["result"]["structuredContent"]["answered"], json!({"model": "m"}));
    assert!(again.next().is_none());
    let mut end = Events::of(session.get(&[("Last-Event-ID", &event.id.unwrap())]));
    assert!(end.next().is_none(), "nothing is left");
    for bad in ["", "x", "r99-1", "s1", "r1-99999999999999999999"] {
        let status = session.get(&[("Last-Event-ID", bad)]).response().status;
        assert_eq!(status, 400, "{bad}");
    }
}

/// A server that ends the stream of a call before its answer. The stream that resumes it contains the answer, once
/// `release` is called.
struct Interrupting {
    server: Recorder,
    released: Sender<()>,
}

impl Interrupting {
    fn start() -> Self {
        let (released, answers) = channel();
        let answers = Mutex::new(answers);
        let server = Recorder::start(move |_, asked| answer(asked, &answers));
        Self { server, released }
    }

    fn proxy(&self) -> Proxy {
        let url = format!("http://127.0.0.1:{}/mcp", self.server.port);
        Proxy::with(json!({"stream_after": "1h", "mcpServers": {"s": {"url": url}}}))
    }

    fn release(&self) {
        self.released.send(()).unwrap();
    }
}

fn answer(asked: &Received, answers: &Mutex<Receiver<()>>) -> Reply {
    const EVENTS: &str = "content-type: text/event-stream\r\n";
    let message: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
    let result = match message["method"].as_str() {
        Some("initialize") => json!({"protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}),
        Some("tools/list") => json!({"tools": [{"name": "t", "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true}}]}),
        Some("tools/call") => {
            // The id of the event identifies the call.
            let event = format!("id: {}\nretry: 1\ndata: \n\n", message["id"]);
            return Reply::Http("200 OK", EVENTS, event.into());
        }
        Some(_) => return Reply::Http("202 Accepted", "", Vec::new()),
        None => {
            let [id] = asked.headers("last-event-id")[..] else {
                return Reply::Http("405 Method Not Allowed", "", Vec::new());
            };
            answers.lock().unwrap().recv_timeout(PATIENCE).expect("it is released");
            let result = r#"{"content":[],"structuredContent":{"n":7}}"#;
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
            return Reply::Http("200 OK", EVENTS, format!("id: x\ndata: {answer}\n\n").into());
        }
    };
    let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
    Reply::Http("200 OK", "content-type: application/json\r\n", body.into())
}

#[test]
fn pro_7_interrupted_call_opens_a_stream_that_is_resumed_before_its_first_message() {
    let server = Interrupting::start();
    let proxy = server.proxy();
    let session = Session::open(&proxy, "/mcp", "2025-11-25", json!({}));
    let mut call = session.call("s:t", json!({}), json!({}));
    assert_eq!(call.head().0, 200);
    let primed = String::from_utf8(call.chunk().unwrap()).unwrap();
    let id =
        primed.strip_prefix("id: ").and_then(|it| it.strip_suffix("\nretry: 1000\ndata: \n\n"));
    let id = id.unwrap_or_else(|| panic!("{primed}"));
    drop(call);
    server.release();
    let mut resumed = Events::of(session.get(&[("Last-Event-ID", id)]));
    let answer = resumed.message();
    assert_eq!(
        (&answer["id"], &answer["result"]["structuredContent"]["n"]),
        (&json!("c"), &json!(7))
    );
    assert!(resumed.next().is_none());
    // A client that does not disconnect gets the answer on the same stream.
    let mut call = session.call("s:t", json!({}), json!({}));
    call.head();
    assert!(String::from_utf8(call.chunk().unwrap()).unwrap().ends_with("data: \n\n"));
    server.release();
    let answer = String::from_utf8(call.chunk().unwrap()).unwrap();
    assert!(answer.starts_with("id: r"), "{answer}");
}

#[test]
fn pro_7_interrupted_call_is_a_comment_or_json_for_clients_that_cannot_resume_it() {
    let server = Interrupting::start();
    let proxy = server.proxy();
    let session = Session::open(&proxy, "/mcp", "2025-06-18", json!({}));
    let mut call = session.call("s:t", json!({}), json!({}));
    call.head();
    assert_eq!(String::from_utf8(call.chunk().unwrap()).unwrap(), ":\n\n");
    server.release();
    assert!(String::from_utf8(call.chunk().unwrap()).unwrap().starts_with("id: r"));
    let session = Session::open(&proxy, "/mcp", "2025-11-25", json!({}));
    server.release();
    let body = read("c", "s:t", json!({}), json!({})).to_string();
    let plain = session.send("POST", &[("Accept", "application/json")], &body).response();
    server.release();
    let params = json!({"name": "s__t", "arguments": {}});
    let modern = ask_modern(&proxy, "/mcp/all", "tools/call", params, &[]);
    for answer in [plain, modern] {
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.json()["result"]["structuredContent"]["n"], 7, "{}", answer.text());
    }
}

#[test]
fn get_stream_announces_changes_once_and_can_be_resumed() {
    let stub = HttpStub::start(&[]);
    let proxy = Proxy::start(json!({"s": stub.entry()}));
    let session = Session::open(&proxy, "/mcp/all", "2025-11-25", json!({}));
    let caller = Session::open(&proxy, "/mcp", "2025-11-25", json!({}));
    let mut first = Events::of(session.get(&[]));
    let hello = first.next().unwrap();
    assert_eq!(hello.data, "", "only an id to resume from");
    let mut second = Events::of(session.get(&[]));
    second.next().unwrap();
    add_tool(&caller);
    let change = first.next().unwrap();
    assert_eq!(change.json()["method"], "notifications/tools/list_changed");
    let seen = change.id.unwrap();
    drop(first);
    let mut again = Events::of(session.get(&[("Last-Event-ID", &hello.id.unwrap())]));
    assert_eq!(again.next().unwrap().id.unwrap(), seen, "the event after the first");
    assert_eq!(session.send("DELETE", &[], "").response().status, 204);
    assert!(again.next().is_none(), "the session is over");
    assert!(second.next().is_none(), "no message is sent on two streams");
    assert_eq!(session.get(&[]).response().status, 404);
}

#[test]
fn get_streams_are_bounded_and_end_with_the_server() {
    let mut proxy = Proxy::start(json!({}));
    let session = Session::open(&proxy, "/mcp", "2025-06-18", json!({}));
    let open: Vec<_> = (0..8).map(|_| Events::of(session.get(&[]))).collect();
    assert_eq!(session.get(&[]).response().status, 429);
    assert_eq!(session.send("GET", &[("Accept", "application/json")], "").response().status, 406);
    proxy.process.signal("TERM");
    for mut events in open {
        assert!(events.next().is_none());
    }
    assert_eq!(proxy.process.wait(), Some(0));
}

#[test]
fn session_belongs_to_the_key_and_endpoint_that_opened_it() {
    let hello = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;
    let ping = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let opened = proxy().request("POST", "/mcp", &[("X-API-Key", API_KEY)], hello);
    let id = opened.header("mcp-session-id").unwrap();
    let session = ("Mcp-Session-Id", id);
    let ask = |path, headers: &[(&str, &str)]| proxy().request("POST", path, headers, ping).status;
    assert_eq!(ask("/mcp", &[session, ("X-API-Key", API_KEY)]), 200);
    let bearer = format!("Bearer {API_KEY}");
    assert_eq!(ask("/mcp", &[session, ("Authorization", &bearer)]), 200);
    assert_eq!(ask("/mcp", &[session]), 404);
    assert_eq!(ask("/mcp", &[session, ("X-API-Key", "another key of somebody else's")]), 404);
    assert_eq!(ask("/mcp/all", &[session, ("X-API-Key", API_KEY)]), 404);
    let end = |headers: &[(&str, &str)]| proxy().request("DELETE", "/mcp", headers, b"").status;
    assert_eq!(end(&[session]), 404);
    assert_eq!(end(&[session, ("X-API-Key", API_KEY)]), 204);
}

// NET-1
#[test]
fn every_transport_rejects_foreign_hosts_and_origins() {
    for path in ["/mcp", "/mcp/all", "/events", "/ui/", "/api/v1/status", "/healthz", "/metrics"] {
        for (name, value) in [
            ("Host", "evil.example"),
            ("Host", "127.0.0.1."),
            ("Host", "user@127.0.0.1"),
            ("Host", "127.0.0.1.evil.example"),
            ("Host", "localhost:x"),
            ("Origin", "null"),
            ("Origin", "http://evil.example"),
            ("Origin", "http://localhost.evil.example"),
            ("Origin", "http://localhost."),
            ("Origin", "http://user@localhost"),
            ("Origin", "http://localhost/path"),
        ] {
            for method in ["GET", "POST"] {
                let headers = [(name, value), ("X-API-Key", API_KEY)];
                let response = proxy().request(method, path, &headers, b"");
                assert_eq!(response.status, 403, "{method} {path} {name}: {value}");
            }
        }
        for name in ["Host", "Origin"] {
            let headers = [(name, "localhost"), (name, "localhost")];
            assert_eq!(proxy().request("POST", path, &headers, b"").status, 400, "{path} {name}");
        }
    }
}

#[test]
fn forged_internal_headers_have_no_effect() {
    let session = Session::plain();
    let body = read("c", "s:stats", json!({}), json!({})).to_string();
    let spoofed = [
        ("X-Forwarded-Host", "evil.example"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("Forwarded", "for=10.0.0.1;host=evil.example"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("X-Original-URL", "/api/v1/status"),
        ("X-Request-Id", "chosen-by-the-client"),
    ];
    let response = session.send("POST", &spoofed, &body).response();
    assert_eq!(response.status, 200, "{}", response.text());
    let record = &proxy().activity(&format!("session_id={}", session.id))[0];
    assert_eq!(
        (&record["source"], &record["request_id"]),
        (&json!("mcp"), &json!("c")),
        "{record}"
    );
}
