//! State kept for a client: bounded per string and per principal, and released at the end.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{
    Client, Connection, Events, HttpStub, Proxy, Received, Recorder, Reply, Response, ask_modern,
    create_token, stub_stdio, until,
};

/// Maximum length of a resource's URI at its server.
const MAX_URI_BYTES: usize = 8 * 1024;

/// A server of 2025-11-25 with resources, which accepts every subscription.
pub(crate) fn server() -> Recorder {
    Recorder::start(|_, received| {
        let message: Value = serde_json::from_slice(&received.body).unwrap_or_default();
        let result = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({"protocolVersion": "2025-11-25",
                "serverInfo": {"name": "resources", "version": "1"},
                "capabilities": {"tools": {}, "resources": {"subscribe": true}}}),
            "tools/list" => json!({"tools": []}),
            "resources/subscribe" | "resources/unsubscribe" => json!({}),
            _ => return Reply::Http("202 Accepted", "", Vec::new()),
        };
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        let json = "content-type: application/json\r\n";
        Reply::Http("200 OK", json, answer.to_string().into_bytes())
    })
}

pub(crate) fn entry(server: &Recorder) -> Value {
    json!({"m": {"url": format!("http://127.0.0.1:{}/mcp", server.port)}})
}

/// URIs that a server received in requests of `method`, in order.
pub(crate) fn uris(server: &Recorder, method: &str) -> Vec<String> {
    let message = |received: &Received| serde_json::from_slice::<Value>(&received.body).ok();
    let messages = server.received();
    let messages = messages.iter().filter_map(message);
    let asked = messages.filter(|message| message["method"] == method);
    asked.map(|message| message["params"]["uri"].as_str().unwrap().to_owned()).collect()
}

/// A client with a token and a session.
struct Holder {
    port: u16,
    connection: Connection,
    bearer: String,
    session: String,
}

impl Holder {
    fn open(proxy: &Proxy, token: &str) -> Self {
        let connection = Connection::open(proxy.port);
        let bearer = format!("Bearer {token}");
        let mut holder = Self { port: proxy.port, connection, bearer, session: String::new() };
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "e2e", "version": "1"}});
        let response = holder.post("initialize", &hello);
        assert_eq!(response.status, 200, "{}", response.text());
        holder.session = response.header("mcp-session-id").unwrap().to_owned();
        holder
    }

    fn send(&mut self, method: &str, body: &str) -> Response {
        let mut headers = vec![("Authorization", &*self.bearer), ("Accept", "application/json")];
        if !self.session.is_empty() {
            headers.push(("Mcp-Session-Id", &self.session));
        }
        self.connection.send(method, "/mcp", &headers, body.as_bytes());
        self.connection.response()
    }

    fn post(&mut self, method: &str, params: &Value) -> Response {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.send("POST", &body.to_string())
    }

    /// Subscribes. The error is the message of the refusal.
    fn subscribe(&mut self, own: &str) -> Result<(), String> {
        let uri = format!("mcpproxy://m/{own}");
        let answer = self.post("resources/subscribe", &json!({"uri": uri})).json();
        match answer["error"]["message"].as_str() {
            None => Ok(()),
            Some(why) => Err(why.to_owned()),
        }
    }

    fn end(&mut self) {
        // The proxy closes connections that are idle for long.
        self.connection = Connection::open(self.port);
        assert_eq!(self.send("DELETE", "").status, 204);
    }
}

/// Resident memory of a process in MiB.
fn resident(proxy: &Proxy) -> u64 {
    let status = format!("/proc/{}/status", proxy.process.0.id());
    let status = std::fs::read_to_string(status).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn subscription_to_a_uri_above_the_limit_is_refused_and_leaves_no_state() {
    let server = server();
    let proxy = Proxy::start(entry(&server));
    let mut client = proxy.client();
    let before = resident(&proxy);
    let long = "x".repeat(8 << 20);
    for n in 0..120 {
        let params = format!(r#"{{"uri":"mcpproxy://m/a:{n}{long}"}}"#);
        let answer = client.ask_raw("resources/subscribe", &params);
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["error"]["code"], -32602);
        let text = "Invalid params: uri is longer than 8192 bytes";
        assert_eq!(answer["error"]["message"], text);
    }
    // The URIs have 960 MiB in total.
    let grown = resident(&proxy).saturating_sub(before);
    assert!(grown < 240, "{grown} MiB more");
    assert!(uris(&server, "resources/subscribe").is_empty());
    let fits = format!("a:{}", "x".repeat(MAX_URI_BYTES - 2));
    let fits = json!({"uri": format!("mcpproxy://m/{fits}")});
    assert_eq!(client.ask("resources/subscribe", fits)["result"], json!({}));
}

// BND-1
#[test]
fn each_string_above_its_limit_is_refused_naming_the_limit() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--offers"])}));
    let mut client = proxy.client();
    let long = |bytes: usize| "x".repeat(bytes + 1);
    let call = |name: &str| {
        json!({"name": "call_tool_read", "arguments": {"name": name,
        "args": {}, "intent": {"operation_type": "read"}}})
    };
    let by_token = {
        let mut params = call("s:read_item");
        params["_meta"] = json!({"progressToken": long(256)});
        params
    };
    for (method, params, expected) in [
        ("resources/read", json!({"uri": long(8192)}), "uri is longer than 8192 bytes"),
        ("resources/unsubscribe", json!({"uri": long(8192)}), "uri is longer than 8192 bytes"),
        ("prompts/get", json!({"name": long(1024)}), "name is longer than 1024 bytes"),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": long(1024)}}),
            "ref.name is longer than 1024 bytes",
        ),
        ("resources/list", json!({"cursor": long(16_384)}), "cursor is longer than 16384 bytes"),
        ("tools/call", json!({"name": long(1024)}), "name is longer than 1024 bytes"),
        ("tools/call", by_token, "_meta.progressToken is longer than 256 bytes"),
    ] {
        let answer = client.ask(method, params);
        assert_eq!(answer["error"]["code"], -32602, "{method}: {answer}");
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.starts_with("Invalid ") && text.ends_with(expected), "{method}: {text}");
    }
    // For the name of a tool the refusal is an error result, which an agent can correct.
    let result = client.ask("tools/call", call(&format!("s:{}", long(1024))))["result"].take();
    assert_eq!(result["content"][0]["text"], "name is longer than 1024 bytes");
    let long_level = client.ask("logging/setLevel", json!({"level": long(1 << 20)}));
    assert_eq!(long_level["error"]["code"], -32602);
    assert!(long_level.to_string().len() < 1024, "it is not quoted whole");
    let refused = |client: &mut Client, body: String| {
        let response = client.post(body.as_bytes());
        assert_eq!(response.status, 400);
        response.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, long(256));
    assert_eq!(refused(&mut client, body), "Invalid Request: method is longer than 256 bytes");
    let body = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, long(256));
    assert_eq!(refused(&mut client, body), "Invalid Request: id is longer than 256 bytes");
    let uris = json!({"notifications": {"resourceSubscriptions": [long(9216)]}});
    let listened = ask_modern(&proxy, "/mcp", "subscriptions/listen", uris, &[]).json();
    assert_eq!(listened["error"]["code"], -32602, "{listened}");
    let expected = listened["error"]["message"].as_str().unwrap();
    assert_eq!(expected, "Invalid params: a URI to subscribe to is longer than 9216 bytes");
}

// BND-1
#[test]
fn state_of_one_principal_is_bounded_and_released_while_others_are_served() {
    let server = server();
    let proxy = Proxy::start(entry(&server));
    let (ada, bob) = (create_token(&proxy, &["ada"]), create_token(&proxy, &["bob"]));
    let filler = "x".repeat(MAX_URI_BYTES - 16);
    let mut sessions = Vec::new();
    // 256 subscriptions per session, until the state of the principal has 64 MiB.
    let full = loop {
        assert!(sessions.len() < 32, "the state is not bounded");
        let mut holder = Holder::open(&proxy, &ada);
        let number = sessions.len();
        let refused =
            (0..256).find_map(|n| holder.subscribe(&format!("a:{number}/{n}/{filler}")).err());
        if number == 0 {
            let more = holder.subscribe("a:one-more").unwrap_err();
            let message =
                "subscription limit reached: 256 resources per session; unsubscribe from one first";
            assert_eq!(more, message);
        }
        sessions.push(holder);
        if let Some(refused) = refused {
            break refused;
        }
    };
    assert!(
        full.starts_with("the state kept for one principal is limited to 67108864 bytes"),
        "{full}"
    );
    let mut other = Holder::open(&proxy, &bob);
    assert_eq!(other.subscribe("a:bob"), Ok(()));
    // A client at its limit can still make requests that store nothing.
    let mut last = sessions.pop().unwrap();
    assert_eq!(last.post("ping", &json!({})).status, 200);
    sessions.iter_mut().for_each(Holder::end);
    assert_eq!(last.subscribe("a:again"), Ok(()), "the state of the ended sessions is released");
    // The server is notified of each URI without a remaining subscriber.
    let asked = uris(&server, "resources/subscribe");
    let of_ended = |uri: &&String| {
        let number = uri.strip_prefix("a:").and_then(|rest| rest.split_once('/'));
        number.is_some_and(|(number, _)| number.parse().is_ok_and(|n: usize| n < sessions.len()))
    };
    let expected: BTreeSet<_> = asked.iter().filter(of_ended).cloned().collect();
    assert_eq!(expected.len(), 256 * sessions.len());
    until("the server is notified", || {
        let message = uris(&server, "resources/unsubscribe");
        (message.len() >= expected.len())
            .then(|| assert_eq!(BTreeSet::from_iter(message), expected))
    });
}

// BND-2
#[test]
fn subscription_ends_at_its_server_with_the_end_of_its_last_session() {
    let server = server();
    let proxy = Proxy::start(entry(&server));
    let token = create_token(&proxy, &["ci"]);
    let is_reported = |uri: &str| {
        uris(&server, "resources/unsubscribe").iter().any(|is_reported| is_reported == uri)
    };
    let until_reported = |uri: &str| until(uri, || is_reported(uri).then_some(()));
    // Ended by DELETE of the last of two sessions.
    let (mut one, mut two) = (proxy.client(), proxy.client());
    let shared = json!({"uri": "mcpproxy://m/a:shared"});
    for client in [&mut one, &mut two] {
        assert_eq!(client.ask("resources/subscribe", shared.clone())["result"], json!({}));
    }
    let end = |client: &Client| {
        let headers = [("Mcp-Session-Id", &*client.session)];
        assert_eq!(proxy.request("DELETE", "/mcp", &headers, b"").status, 204);
    };
    end(&one);
    // Ended by the revocation of a token.
    let mut holder = Holder::open(&proxy, &token);
    holder.subscribe("a:token").unwrap();
    assert_eq!(proxy.cli(&["token", "revoke", "ci"]).code, Some(0));
    until_reported("a:token");
    assert!(!is_reported("a:shared"), "the other session is subscribed");
    end(&two);
    until_reported("a:shared");
    // Ended by the client's request, which the server receives once.
    let mut client = proxy.client();
    let own = json!({"uri": "mcpproxy://m/a:own"});
    assert_eq!(client.ask("resources/subscribe", own.clone())["result"], json!({}));
    assert_eq!(client.ask("resources/unsubscribe", own)["result"], json!({}));
    end(&client);
    let mut last = proxy.client();
    let next = json!({"uri": "mcpproxy://m/a:next"});
    assert_eq!(last.ask("resources/subscribe", next)["result"], json!({}));
    end(&last);
    until_reported("a:next");
    let all = uris(&server, "resources/unsubscribe");
    assert_eq!(all.iter().filter(|uri| *uri == "a:own").count(), 1, "{all:?}");
}

/// A session of a client with sampling; each message has its own connection.
struct Asked<'a> {
    proxy: &'a Proxy,
    session: String,
}

impl<'a> Asked<'a> {
    fn open(proxy: &'a Proxy) -> Self {
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {"sampling": {}},
            "clientInfo": {"name": "asked", "version": "1"}}});
        let response = proxy.request("POST", "/mcp", &[], hello.to_string().as_bytes());
        let session = response.header("mcp-session-id").unwrap().to_owned();
        Self { proxy, session }
    }

    fn send(&self, method: &str, headers: &[(&str, &str)], body: &str) -> Connection {
        let session = [("Mcp-Session-Id", self.session.as_str())];
        let mut connection = Connection::open(self.proxy.port);
        connection.send(method, "/mcp", &[&session[..], headers].concat(), body.as_bytes());
        connection
    }

    /// Begins a call that asks its client. Returns the id of the event with the question, and the id of the question.
    fn begin(&self, id: usize) -> (String, Value) {
        let arguments = json!({"name": "s:ask", "args": {}, "intent": {"operation_type": "read"}});
        let params = json!({"name": "call_tool_read", "arguments": arguments});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let mut events = Events::of(self.send("POST", &[], &call.to_string()));
        let asked = events.next().unwrap();
        (asked.id.clone().unwrap(), asked.json()["id"].clone())
    }

    /// Answers a question with `bytes` bytes, which the tool returns.
    fn answer(&self, question: &Value, bytes: usize) {
        let result = json!({"model": "m".repeat(bytes)});
        let answer = json!({"jsonrpc": "2.0", "id": question, "result": result});
        assert_eq!(self.send("POST", &[], &answer.to_string()).response().status, 202);
    }

    /// Waits until `calls` calls have ended.
    fn until_ended(&self, calls: usize) {
        let query = format!("session_id={}&type=tool_call", self.session);
        until("the calls end", || (self.proxy.activity(&query).len() == calls).then_some(()));
    }

    /// Resumes the stream after the event `seen`. Returns its single message.
    fn resume(&self, seen: &str) -> Value {
        let headers = [("Accept", "text/event-stream"), ("Last-Event-ID", seen)];
        let mut events = Events::of(self.send("GET", &headers, ""));
        let message = events.message();
        assert!(events.next().is_none(), "it is the last");
        message
    }
}

// PRO-7
#[test]
fn forty_broken_and_resumed_streams_deliver_forty_answers() {
    let stub = HttpStub::start(&["--only", "ask"]);
    let proxy = Proxy::start(json!({"s": stub.entry()}));
    let session = Asked::open(&proxy);
    let begun: Vec<_> = (0..40).map(|id| session.begin(id)).collect();
    // More than 512 KiB together.
    begun.iter().for_each(|(_, question)| session.answer(question, 20_000));
    session.until_ended(40);
    for (id, (seen, _)) in begun.iter().enumerate() {
        let answer = session.resume(seen);
        assert_eq!(answer["id"], id);
        let model = &answer["result"]["structuredContent"]["answered"]["model"];
        assert_eq!(model.as_str().map(str::len), Some(20_000));
    }
}

// PRO-7
#[test]
fn answer_above_the_replay_bound_is_an_error_on_resume_and_recorded() {
    let stub = HttpStub::start(&["--only", "ask"]);
    let proxy = Proxy::start(json!({"s": stub.entry()}));
    let session = Asked::open(&proxy);
    let begun: Vec<_> = (0..12).map(|id| session.begin(id)).collect();
    // Of these answers, ten fit into 4 MiB.
    begun.iter().for_each(|(_, question)| session.answer(question, 400_000));
    session.until_ended(12);
    let answers: Vec<_> = begun.iter().map(|(seen, _)| session.resume(seen)).collect();
    let lost: Vec<_> = answers.iter().filter(|answer| answer.get("error").is_some()).collect();
    assert_eq!(lost.len(), 2);
    let why = "the answer was not kept for a client that resumes its stream: the kept events \
               of one session would exceed 4194304 bytes";
    for answer in lost {
        assert_eq!(answer["error"]["message"], why);
        let query = format!("session_id={}&request_id={}", session.session, answer["id"]);
        let record = &proxy.activity(&query)[0];
        // Either the call had ended before its answer exceeded the bound, or it was ended because of the bound.
        let is_given_up = record["status"] == "error" && record["error_message"] == why;
        let is_undelivered =
            record["status"] == "success" && record["metadata"]["undelivered"] == why;
        assert!(is_given_up || is_undelivered, "{record}");
    }
    // If an answer alone exceeds the bound, the proxy does not wait for its end.
    let session = Asked::open(&proxy);
    let (seen, question) = session.begin(77);
    session.answer(&question, 2_000_000);
    let answer = session.resume(&seen);
    let why = "the answer was not kept for a client that resumes its stream: the event \
               exceeds 524288 bytes";
    assert_eq!(answer["error"]["message"], why);
    let query = format!("session_id={}&type=tool_call", session.session);
    let record = until("it is recorded", || proxy.activity(&query).into_iter().next());
    assert_eq!((&record["status"], &record["error_message"]), (&json!("error"), &json!(why)));
}
