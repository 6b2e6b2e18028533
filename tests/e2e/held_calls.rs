//! Calls of modern clients to servers of the legacy family that send requests to the client during the call. The call
//! is held while the client answers.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::between_families::read;
use crate::harness::{PATIENCE, Proxy, Response, create_token, error_text, stub_stdio, until};

const MODERN: &str = "2026-07-28";
const METHODS: [&str; 3] = ["elicitation/create", "sampling/createMessage", "roots/list"];

/// A legacy server over HTTP with a tool that sends requests to the client: those in its argument `ask`, each after the
/// answer to the previous one, or all at once with `together`. The result of the tool contains the answers.
struct Asker {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Default)]
struct Seen {
    /// Arguments of the calls.
    calls: Vec<Value>,
    /// Number of requests sent to the client.
    asked: u64,
    answers: HashMap<u64, Value>,
    canceled: usize,
    /// Whether the server cuts off its open responses.
    is_cut: bool,
}

impl Asker {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&theirs);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { port, shared }
    }

    fn entry(&self) -> Value {
        json!({"url": format!("http://127.0.0.1:{}/mcp", self.port)})
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.shared.seen()
    }

    /// Cuts off all open responses.
    fn cut(&self) {
        self.seen().is_cut = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
        while let Some((method, message)) = request(&mut reader) {
            let id = &message["id"];
            let reply = |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
            let body = match (&*method, message["method"].as_str()) {
                ("POST", Some("tools/call")) => {
                    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
                    let _ = stream.write_all(head);
                    return self.call(&mut stream, &message);
                }
                ("POST", Some("prompts/get" | "resources/read")) => {
                    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
                    let _ = stream.write_all(head);
                    return self.ask_once(&mut stream, &message);
                }
                ("POST", Some("prompts/list")) => {
                    let arguments = json!([{"name": "who"}]);
                    let prompts =
                        ["ask", "other"].map(|name| json!({"name": name, "arguments": arguments}));
                    reply(json!({"prompts": prompts}))
                }
                ("POST", Some("resources/list")) => reply(
                    json!({"resources": [{"uri": "a:x", "name": "x"}, {"uri": "a:y", "name": "y"}]}),
                ),
                ("POST", Some("initialize")) => reply(json!({"protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}, "prompts": {}, "resources": {}}, "serverInfo": {"name": "a", "version": "1"}})),
                ("POST", Some("tools/list")) => {
                    let tools = ["ask", "other"].map(|name| {
                        json!({"name": name, "inputSchema": {"type": "object"},
                            "annotations": {"readOnlyHint": true}})
                    });
                    reply(json!({"tools": tools}))
                }
                ("POST", Some("notifications/cancelled")) => {
                    self.seen().canceled += 1;
                    Value::Null
                }
                ("POST", None) => {
                    let number = id.as_u64().expect("an id of the proxy");
                    self.seen().answers.insert(number, message);
                    self.changed.notify_all();
                    Value::Null
                }
                ("POST", Some(method)) if !method.starts_with("notifications/") => {
                    let error = json!({"code": -32601, "message": "Method not found"});
                    json!({"jsonrpc": "2.0", "id": id, "error": error})
                }
                ("POST", Some(_)) => Value::Null,
                _ => {
                    let _ = stream
                        .write_all(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n");
                    continue;
                }
            };
            let (status, body) = match body {
                Value::Null => ("202 Accepted", String::new()),
                body => ("200 OK", body.to_string()),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            if stream.write_all((head + &body).as_bytes()).is_err() {
                return;
            }
        }
    }

    fn call(&self, stream: &mut TcpStream, message: &Value) {
        let arguments = message["params"]["arguments"].clone();
        let asks = arguments["ask"].as_array().cloned().unwrap_or_default();
        let together = arguments["together"] == true;
        let first = {
            let mut seen = self.seen();
            seen.calls.push(arguments);
            let first = seen.asked;
            seen.asked += asks.len() as u64;
            first
        };
        let mut send = |message: &Value| {
            let _ = stream.write_all(format!("data: {message}\n\n").as_bytes());
        };
        let token = &message["params"]["_meta"]["progressToken"];
        let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress",
            "params": {"progressToken": token, "progress": 1}});
        let (mut numbers, mut answers) = (Vec::new(), Vec::new());
        for (number, mut ask) in (first..).zip(asks.clone()) {
            (ask["jsonrpc"], ask["id"]) = (json!("2.0"), json!(number));
            send(&ask);
            send(&progress);
            match together {
                true => numbers.push(number),
                false => answers.extend(self.answer(number)),
            }
        }
        answers.extend(numbers.into_iter().filter_map(|number| self.answer(number)));
        if answers.len() == asks.len() {
            let result = json!({"content": [], "structuredContent": {"answers": answers}});
            send(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result}));
        }
    }

    /// Requests a form while it processes a request for a prompt or a resource. The result has the answer as text.
    fn ask_once(&self, stream: &mut TcpStream, message: &Value) {
        let number = {
            let mut seen = self.seen();
            seen.calls.push(message["params"].clone());
            seen.asked += 1;
            seen.asked - 1
        };
        let mut send = |message: &Value| {
            let _ = stream.write_all(format!("data: {message}\n\n").as_bytes());
        };
        let mut question = ask("elicitation/create");
        (question["jsonrpc"], question["id"]) = (json!("2.0"), json!(number));
        send(&question);
        let Some(answer) = self.answer(number) else { return };
        let text = answer.to_string();
        let result = match message["params"].get("uri") {
            Some(uri) => json!({"contents": [{"uri": uri, "text": text}]}),
            None => {
                json!({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]})
            }
        };
        send(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result}));
    }

    /// Waits for the answer to a request: `result` or `error`.
    fn answer(&self, number: u64) -> Option<Value> {
        let waits = |seen: &mut Seen| !seen.is_cut && !seen.answers.contains_key(&number);
        let waited = self.changed.wait_timeout_while(self.seen(), 10 * PATIENCE, waits);
        let (mut seen, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let mut answer = seen.answers.remove(&number)?;
        let outcome = if answer.get("result").is_some() { "result" } else { "error" };
        Some(answer[outcome].take())
    }
}

/// A request: its method, and its body.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let method = line.split(' ').next()?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((method, serde_json::from_slice(&body).unwrap_or_default()))
}

/// A request of a modern client for a tool, a prompt or a resource.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    proxy: &'a Proxy,
    path: &'static str,
    method: &'static str,
    bearer: &'a str,
    capabilities: Value,
    params: Value,
}

impl<'a> Call<'a> {
    /// Call of a tool by a client with all capabilities.
    pub(crate) fn of(proxy: &'a Proxy, path: &'static str, tool: &str, arguments: Value) -> Self {
        let params = match path {
            "/mcp" => read(&format!("s:{tool}"), arguments),
            _ => json!({"name": format!("s__{tool}"), "arguments": arguments}),
        };
        Self::by_method(proxy, path, "tools/call", params)
    }

    /// Request by a client with all capabilities.
    fn by_method(
        proxy: &'a Proxy,
        path: &'static str,
        method: &'static str,
        params: Value,
    ) -> Self {
        let elicitation = json!({"form": {}, "url": {}});
        let capabilities = json!({"elicitation": elicitation, "sampling": {}, "roots": {}});
        Self { proxy, path, method, bearer: "", capabilities, params }
    }

    fn by(self, bearer: &'a str) -> Self {
        Self { bearer, ..self }
    }

    fn declaring(self, capabilities: Value) -> Self {
        Self { capabilities, ..self }
    }

    /// Makes the call with additional members in its params.
    pub(crate) fn send(&self, members: Value) -> Response {
        let mut params = self.params.clone();
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        for (name, value) in members.as_object().into_iter().flatten() {
            params[name] = value.clone();
        }
        let name = ["name", "uri"].iter().find_map(|key| params[*key].as_str());
        let name = name.expect("a name").to_owned();
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": self.method, "params": params});
        let mut headers = vec![
            ("MCP-Protocol-Version", MODERN),
            ("Mcp-Method", self.method),
            ("Mcp-Name", &*name),
        ];
        if !self.bearer.is_empty() {
            headers.push(("Authorization", self.bearer));
        }
        self.proxy.request("POST", self.path, &headers, body.to_string().as_bytes())
    }

    /// Makes the call. Returns the result with the question.
    #[track_caller]
    pub(crate) fn asked(&self) -> Value {
        let result = self.send(json!({})).json()["result"].take();
        assert_eq!(result["resultType"], "input_required", "{result}");
        result
    }

    /// Repeats the call with an answer to the question.
    pub(crate) fn repeat(&self, asked: &Value, answer: &Value) -> Response {
        self.repeat_with(&asked["requestState"], answer)
    }

    fn repeat_with(&self, state: &Value, answer: &Value) -> Response {
        self.send(json!({"requestState": state, "inputResponses": {"question": answer}}))
    }
}

/// Answer of a client to a request of `method`.
fn answer_to(method: &str) -> Value {
    match method {
        "elicitation/create" => json!({"action": "accept", "content": {"n": 1}}),
        "roots/list" => json!({"roots": [{"uri": "file:///a"}]}),
        _ => {
            let content = json!({"type": "text", "text": "x"});
            json!({"role": "assistant", "content": content, "model": "m"})
        }
    }
}

/// Request of the server in its revision.
fn ask(method: &str) -> Value {
    let params = match method {
        "elicitation/create" => json!({"message": "Who?",
            "requestedSchema": {"type": "object", "properties": {}}}),
        "roots/list" => json!({}),
        _ => json!({"messages": [], "maxTokens": 1}),
    };
    json!({"method": method, "params": params})
}

/// Message of the refusal of a repeated call.
#[track_caller]
pub(crate) fn refusal(answer: &Response) -> String {
    let answer = answer.json();
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    answer["error"]["message"].as_str().expect("a message").to_owned()
}

#[test]
fn pro_42_requests_for_prompts_and_resources_are_held_as_calls_are() {
    let server = Asker::start();
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let answer = answer_to("elicitation/create");
    for (path, method, params, other, kind) in [
        (
            "/mcp/server/s",
            "prompts/get",
            // Contains an answer of an earlier round; servers of the legacy family do not know this member.
            json!({"name": "ask", "arguments": {"who": "me"}, "inputResponses": {"url_1": {"action": "accept"}}}),
            json!({"name": "other", "arguments": {"who": "me"}}),
            "prompt_get",
        ),
        (
            "/mcp/server/s",
            "resources/read",
            json!({"uri": "a:x"}),
            json!({"uri": "a:y"}),
            "resource_read",
        ),
        (
            "/mcp",
            "resources/read",
            json!({"uri": "mcpproxy://s/a:x"}),
            json!({"uri": "mcpproxy://s/a:y"}),
            "resource_read",
        ),
    ] {
        let before = server.seen().calls.len();
        let request = Call::by_method(&proxy, path, method, params);
        let asked = request.asked();
        assert_eq!(asked["inputRequests"]["question"]["method"], "elicitation/create");
        let other = Call::by_method(&proxy, path, method, other);
        let refused = refusal(&other.repeat(&asked, &answer));
        assert!(refused.contains("requestState belongs to a call of s:"), "{refused}");
        let result = request.repeat(&asked, &answer).json()["result"].take();
        let text = [&result["contents"][0]["text"], &result["messages"][0]["content"]["text"]];
        let text = text.iter().find_map(|text| text.as_str()).unwrap_or_else(|| panic!("{result}"));
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), answer);
        assert_eq!(server.seen().calls.len(), before + 1, "the server sees one request");
        until("each request is recorded", || {
            let records = proxy.activity(&format!("type={kind}"));
            let held = records.iter().filter(|it| it["metadata"]["held_call"].is_string());
            (held.count() >= 2).then_some(())
        });
    }
}

// PRO-42
#[test]
fn question_of_a_legacy_server_is_answered_by_a_repeated_call_over_stdio() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    let calls = |client: &mut crate::harness::Client| {
        client.read("s:stats", json!({}))["structuredContent"]["calls"].as_u64().expect("a count")
    };
    let mut recorded = 0;
    for path in ["/mcp", "/mcp/all"] {
        for method in METHODS {
            let before = calls(&mut client);
            let call = Call::of(&proxy, path, "ask", json!({"ask": method}));
            let asked = call.asked();
            let question = &asked["inputRequests"]["question"];
            assert_eq!(question["method"], method, "{asked}");
            assert_eq!(asked["inputRequests"].as_object().unwrap().len(), 1, "{asked}");
            let answer = answer_to(method);
            let result = call.repeat(&asked, &answer).json()["result"].take();
            assert_eq!(result["resultType"], "complete", "{result}");
            assert_eq!(result["structuredContent"]["answered"], answer, "{result}");
            assert_eq!(calls(&mut client), before + 2, "the call and this count");
            let mut records = until("both requests are recorded", || {
                let mut records = proxy.activity("type=tool_call&tool=ask");
                let is_recorded = records.len() == recorded + 2;
                records.truncate(2);
                is_recorded.then_some(records)
            });
            recorded += 2;
            let first = records.pop().unwrap();
            let last = records.pop().unwrap();
            assert_eq!(first["metadata"]["input_required"], true, "{first}");
            assert!(first["response"].to_string().contains(method), "{first}");
            assert!(first["metadata"]["held_call"].is_string(), "{first}");
            assert_eq!(last["metadata"]["held_call"], first["metadata"]["held_call"], "{last}");
            assert_eq!((&first["status"], &last["status"]), (&json!("success"), &json!("success")));
            assert!(last["response"].to_string().contains("answered"), "{last}");
        }
    }
}

// PRO-42
#[test]
fn call_is_held_for_several_rounds_over_http() {
    let server = Asker::start();
    let proxy = Proxy::start(json!({"s": server.entry()}));
    for path in ["/mcp", "/mcp/all"] {
        // If the server sends its requests at once, the client is asked them one at a time.
        for together in [false, true] {
            let before = server.seen().calls.len();
            let arguments = json!({"ask": METHODS.map(ask), "together": together});
            let call = Call::of(&proxy, path, "ask", arguments);
            let mut asked = call.asked();
            let first = &asked["inputRequests"]["question"];
            let form = json!({"mode": "form", "message": "Who?",
                "requestedSchema": {"type": "object", "properties": {}}});
            assert_eq!(*first, json!({"method": METHODS[0], "params": form}));
            let mut answers = METHODS.map(answer_to);
            answers[0] = json!({"action": "decline"});
            for (answer, next) in answers.iter().zip(&METHODS[1..]) {
                let result = call.repeat(&asked, answer).json()["result"].take();
                assert_eq!(result["resultType"], "input_required", "{result}");
                assert_ne!(result["requestState"], asked["requestState"]);
                assert_eq!(result["inputRequests"]["question"]["method"], *next, "{result}");
                asked = result;
            }
            let last = call.repeat(&asked, &answers[2]).json()["result"].take();
            assert_eq!(last["resultType"], "complete", "{last}");
            assert_eq!(last["structuredContent"]["answers"], json!(answers), "{last}");
            assert_eq!(server.seen().calls.len(), before + 1);
        }
    }
    assert_eq!(server.seen().canceled, 0);
}

// PRO-42
#[test]
fn question_that_a_modern_client_cannot_answer_is_refused_to_the_server() {
    let server = Asker::start();
    let proxy = Proxy::start(json!({"s": server.entry(), "child": stub_stdio(&[])}));
    let url = json!({"method": "elicitation/create", "params": {"mode": "url",
        "url": "https://a.example/", "elicitationId": "e", "message": "m"}});
    let forms = json!({"elicitation": {"form": {}}});
    for (capabilities, question, code) in [
        (json!({}), ask("elicitation/create"), -32601),
        (json!({}), ask("roots/list"), -32601),
        (forms.clone(), ask("sampling/createMessage"), -32601),
        (forms, url.clone(), -32602),
    ] {
        let arguments = json!({"ask": [question]});
        let call = Call::of(&proxy, "/mcp", "ask", arguments).declaring(capabilities.clone());
        let result = call.send(json!({})).json()["result"].take();
        assert_eq!(result["structuredContent"]["answers"][0]["code"], code, "{result}");
        let with = json!({"params": question["params"]});
        let mut call = Call::of(&proxy, "/mcp", "ask", json!({}));
        call.params = read("child:ask", json!({"ask": question["method"], "with": with}));
        let result = call.declaring(capabilities).send(json!({})).json()["result"].take();
        assert_eq!(result["structuredContent"]["answered"]["code"], code, "{result}");
    }
    // The question has the form of the modern revision.
    let asked = Call::of(&proxy, "/mcp", "ask", json!({"ask": [url]})).asked();
    let params = json!({"mode": "url", "url": "https://a.example/", "message": "m"});
    assert_eq!(asked["inputRequests"]["question"]["params"], params);
}

// PRO-42
#[test]
fn held_call_is_taken_over_once_by_the_same_call_of_the_same_principal() {
    let server = Asker::start();
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let [alice, bob] =
        ["alice", "bob"].map(|name| format!("Bearer {}", create_token(&proxy, &[name])));
    let arguments = json!({"ask": [ask("roots/list")], "a": {"x": 1, "y": [1.5]}, "b": "c"});
    let call = Call::of(&proxy, "/mcp", "ask", arguments.clone()).by(&alice);
    let asked = call.asked();
    let state = asked["requestState"].as_str().expect("a state").to_owned();
    let answer = answer_to("roots/list");
    for other in [call.clone().by(&bob), call.clone().by("")] {
        let text = refusal(&other.repeat(&asked, &answer));
        assert!(text.contains("requestState was not given to this client"), "{text}");
    }
    for at in [state.len() - 1, state.len() / 2, 3] {
        let mut altered = state.clone().into_bytes();
        altered[at] = if altered[at] == b'0' { b'1' } else { b'0' };
        let altered = String::from_utf8(altered).unwrap();
        let text = refusal(&call.repeat_with(&json!(altered), &answer));
        assert!(text.contains("requestState was not given to this client"), "{text}");
    }
    let text = refusal(
        &Call::of(&proxy, "/mcp", "other", arguments.clone()).by(&alice).repeat(&asked, &answer),
    );
    assert!(text.contains("requestState belongs to a call of s:ask"), "{text}");
    for (name, value) in [("b", json!("d")), ("a", json!({"x": 1, "y": [1]})), ("new", json!(1))] {
        let mut changed = arguments.clone();
        changed[name] = value;
        let text =
            refusal(&Call::of(&proxy, "/mcp", "ask", changed).by(&alice).repeat(&asked, &answer));
        assert!(text.contains(&format!("other arguments ('{name}' differs)")), "{text}");
    }
    let text = refusal(&call.send(json!({"requestState": state, "inputResponses": {"q": answer}})));
    assert!(text.contains("inputResponses has no answer to 'question' (roots/list)"), "{text}");
    // The refused requests have not used up the state. The spelling of the arguments and the endpoint may differ.
    let again = json!({"b": "c", "a": {"y": [1.5], "x": 1}, "ask": [ask("roots/list")]});
    let again = Call::of(&proxy, "/mcp/all", "ask", again).by(&alice);
    let result = again.repeat(&asked, &answer).json()["result"].take();
    assert_eq!(result["structuredContent"]["answers"], json!([answer]), "{result}");
    let text = refusal(&call.repeat(&asked, &answer));
    assert!(text.contains("requestState belongs to no waiting call: it was used before"), "{text}");
    let seen = server.seen();
    assert_eq!((seen.calls.len(), seen.canceled), (1, 0));
}

// PRO-42
#[test]
fn call_whose_client_does_not_return_is_withdrawn() {
    let server = Asker::start();
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": server.entry(), "child": stub_stdio(&[])},
        "limits": {"held_timeout": "1s"},
    }));
    let call = Call::of(&proxy, "/mcp", "ask", json!({"ask": [ask("roots/list")]}));
    let asked = call.asked();
    until("the server has seen the cancellation", || (server.seen().canceled == 1).then_some(()));
    let record = until("its end is recorded", || {
        let mut records = proxy.activity("type=tool_call&tool=ask&status=error");
        records.pop()
    });
    assert_eq!(record["server_name"], "s", "{record}");
    let text = record["error_message"].as_str().unwrap();
    assert!(text.starts_with("the client did not return within 1s"), "{text}");
    let first = proxy.activity("type=tool_call&tool=ask&status=success").pop().unwrap();
    assert_eq!(record["metadata"]["held_call"], first["metadata"]["held_call"], "{record}");
    let text = refusal(&call.repeat(&asked, &answer_to("roots/list")));
    assert!(text.contains("requestState belongs to no waiting call"), "{text}");
    assert_eq!(server.seen().calls.len(), 1);
    // The same for a server over stdio. It also gets an error as the answer to its request.
    let mut call = Call::of(&proxy, "/mcp", "ask", json!({}));
    call.params = read("child:ask", json!({"ask": "roots/list"}));
    call.asked();
    let mut client = proxy.client();
    until("the child has seen the cancellation", || {
        let stats = client.read("child:stats", json!({}));
        (stats["structuredContent"]["cancelled"] == 1).then_some(())
    });
}

// PRO-42
#[test]
fn server_that_ends_while_its_call_is_held_is_reported_to_the_client_that_returns() {
    let server = Asker::start();
    let proxy = Proxy::start(json!({"s": server.entry(), "child": stub_stdio(&[])}));
    let mut child = Call::of(&proxy, "/mcp", "ask", json!({}));
    child.params = read("child:ask", json!({"ask": "roots/list"}));
    let call = Call::of(&proxy, "/mcp", "ask", json!({"ask": [ask("roots/list")]}));
    let (asked, asked_by_child) = (call.asked(), child.asked());
    server.cut();
    let mut crash = Call::of(&proxy, "/mcp", "crash", json!({}));
    crash.params = read("child:crash", json!({}));
    let crashed = crash.send(json!({})).json();
    assert_eq!(crashed["result"]["isError"], true, "{crashed}");
    for (call, asked, named) in [(call, asked, "s: ask: "), (child, asked_by_child, "child: ask: ")]
    {
        let result = call.repeat(&asked, &answer_to("roots/list")).json()["result"].take();
        let text = error_text(&result);
        assert!(text.starts_with(named), "{text}");
    }
    let failed = until("both are recorded", || {
        let records = proxy.activity("type=tool_call&tool=ask&status=error");
        (records.len() == 2).then_some(records)
    });
    assert!(failed.iter().all(|record| record["metadata"]["held_call"].is_string()), "{failed:?}");
}

// PRO-42
#[test]
fn held_calls_of_a_principal_are_bounded() {
    const MAX: usize = 32;
    let server = Asker::start();
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let bob = format!("Bearer {}", create_token(&proxy, &["bob"]));
    let call = Call::of(&proxy, "/mcp", "ask", json!({"ask": [ask("roots/list")]}));
    let mut asked: Vec<Value> = (0..MAX).map(|_| call.asked()).collect();
    let refused = call.send(json!({})).json()["result"].take();
    let error = &refused["structuredContent"]["answers"][0];
    assert_eq!(error["code"], -32603, "{refused}");
    let text = error["message"].as_str().unwrap();
    assert_eq!(text, "roots/list: 32 calls of its client already wait for input");
    call.clone().by(&bob).asked();
    // After the end of a call another one can be held.
    let done = call.repeat(&asked.remove(0), &answer_to("roots/list")).json();
    assert_eq!(done["result"]["resultType"], "complete", "{done}");
    until("there is space", || {
        let result = call.send(json!({})).json()["result"].take();
        (result["resultType"] == "input_required").then_some(())
    });
}

// PRO-42
#[test]
fn held_calls_of_two_clients_at_one_child_are_not_mixed() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let [alice, bob] =
        ["alice", "bob"].map(|name| format!("Bearer {}", create_token(&proxy, &[name])));
    let [first, second] = [&alice, &bob]
        .map(|bearer| Call::of(&proxy, "/mcp", "ask", json!({"ask": "roots/list"})).by(bearer));
    let asked = first.asked();
    // The request of the server does not state to which of the two calls it belongs (PRO-6).
    let refused = second.send(json!({})).json()["result"].take();
    let error = &refused["structuredContent"]["answered"];
    assert_eq!(error["code"], -32603, "{refused}");
    assert!(error["message"].as_str().unwrap().contains("2 calls are in flight"), "{error}");
    let answer = answer_to("roots/list");
    let result = first.repeat(&asked, &answer).json()["result"].take();
    assert_eq!(result["structuredContent"]["answered"], answer, "{result}");
    // Once the first call has ended, the second client can be asked.
    let asked = second.asked();
    let result = second.repeat(&asked, &answer).json()["result"].take();
    assert_eq!(result["structuredContent"]["answered"], answer, "{result}");
}
