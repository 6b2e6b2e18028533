//! Tasks through the proxy (PRO-43): sealed ids, routing, and results that are validated, recorded and limited like the
//! answer to the call itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::between_families::Session;
use crate::harness::{
    Connection, Events, Pipe, Proxy, Received, Recorder, Reply, Response, create_token, raw_result,
    until,
};

pub(crate) const MODERN: &str = "2026-07-28";
pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";
/// A task with spellings that no serializer writes.
pub(crate) const CREATED: &str = r#"{ "resultType":"task","createdAt" : "2026-11-25T10:30:00Z","taskId" : "7\u0061", "status":"working","lastUpdatedAt":"2026-11-25T10:30:00Z","ttlMs":6e4,"x":1.0e5}"#;
/// Id of the task in [`CREATED`].
pub(crate) const OWN: &str = "7a";
const ACK: &str = r#"{"resultType":"complete" }"#;
/// A result of the tool `typed`, with spellings that no serializer writes.
pub(crate) const GOOD: &str =
    r#"{ "content":[ ],"structuredContent":{"n" : 7.0}, "isError":false}"#;
const BAD: &str = r#"{"content":[],"structuredContent":{"n":"no number"}}"#;

/// A server with tasks. It answers a call with the raw result in the argument `answer` of the call.
pub(crate) struct Server {
    pub(crate) recorder: Recorder,
    /// Raw results of `tasks/get` and `tasks/result` by task.
    states: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Server {
    /// A server of 2026-07-28 with the tasks extension.
    pub(crate) fn start() -> Self {
        Self::of(json!({"tools": {}, "extensions": {TASKS: {}}}), MODERN)
    }

    fn of(capabilities: Value, version: &'static str) -> Self {
        Self::before((capabilities, version), |_| None)
    }

    /// A server of 2026-07-28 with the tasks extension. If `first` returns a reply to a message, that reply is sent.
    pub(crate) fn answering(
        first: impl Fn(&Value) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        Self::before((json!({"tools": {}, "extensions": {TASKS: {}}}), MODERN), first)
    }

    fn before(
        (capabilities, version): (Value, &'static str),
        first: impl Fn(&Value) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let states = Arc::<Mutex<BTreeMap<String, String>>>::default();
        let known = Arc::clone(&states);
        let recorder = Recorder::start(move |_, asked| {
            let message = serde_json::from_slice(&asked.body).unwrap_or_default();
            if let Some(reply) = first(&message) {
                return reply;
            }
            let known = known.lock().unwrap_or_else(PoisonError::into_inner);
            answer(asked, &capabilities, version, &known)
        });
        Self { recorder, states }
    }

    pub(crate) fn entry(&self) -> Value {
        json!({"url": format!("http://127.0.0.1:{}/mcp", self.recorder.port)})
    }

    /// Entry of the server with a mode of `output_validation`.
    pub(crate) fn in_mode(&self, mode: &str) -> Value {
        let mut entry = self.entry();
        entry["output_validation"] = json!({"mode": mode, "missing_structured_content": "block"});
        entry
    }

    fn states(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, task: &str, result: &str) {
        self.states().insert(task.to_owned(), result.to_owned());
    }

    /// Received requests of this method, oldest first.
    pub(crate) fn asked(&self, method: &str) -> Vec<(Received, Value)> {
        let all = self.recorder.received().into_iter();
        let all = all.filter_map(|it| Some((serde_json::from_slice(&it.body).ok()?, it)));
        all.filter(|(message, _): &(Value, _)| message["method"] == method)
            .map(|(message, it)| (it, message))
            .collect()
    }
}

fn answer(
    asked: &Received,
    capabilities: &Value,
    version: &str,
    states: &BTreeMap<String, String>,
) -> Reply {
    let Ok(message) = serde_json::from_slice::<Value>(&asked.body) else {
        return Reply::Http("405 Method Not Allowed", "", Vec::new());
    };
    let Some(id) = message.get("id") else { return Reply::Http("202 Accepted", "", Vec::new()) };
    let typed = |mut result: Value| {
        result["resultType"] = json!("complete");
        (result["ttlMs"], result["cacheScope"]) = (json!(0), json!("private"));
        result.to_string()
    };
    let params = &message["params"];
    let task = params["taskId"].as_str().unwrap_or_default();
    let result = match (message["method"].as_str().unwrap_or_default(), version) {
        ("server/discover", MODERN) => {
            Ok(typed(json!({"supportedVersions": [MODERN], "capabilities": capabilities})))
        }
        ("initialize", version) if version != MODERN => Ok(json!({"protocolVersion": version,
            "capabilities": capabilities, "serverInfo": {"name": "t", "version": "1"}})
        .to_string()),
        ("tools/list", _) => {
            let schema = json!({"type": "object"});
            let reads = json!({"readOnlyHint": true});
            let output = json!({"type": "object", "required": ["n"],
                "properties": {"n": {"type": "integer"}}});
            Ok(typed(json!({"tools": [
                {"name": "slow", "inputSchema": schema, "annotations": reads,
                    "execution": {"taskSupport": "optional"}},
                {"name": "typed", "inputSchema": schema, "outputSchema": output, "annotations": reads},
            ]})))
        }
        ("tools/call", _) => Ok(params["arguments"]["answer"].as_str().expect("it").to_owned()),
        ("tasks/get" | "tasks/result", _) => states.get(task).cloned().ok_or(-32602),
        ("tasks/update" | "tasks/cancel", _) => Ok(ACK.to_owned()),
        // Stream of a subscription to tasks: each task changes at once, and then the stream ends.
        ("subscriptions/listen", MODERN) if params["notifications"].get("taskIds").is_some() => {
            let ids = &params["notifications"]["taskIds"];
            let changed = ids.as_array().into_iter().flatten().map(|id| {
                json!({"jsonrpc": "2.0", "method": "notifications/tasks", "params": {"taskId": id,
                    "status": "completed", "result": {"content": [], "smuggled": true}}})
            });
            let agreed = json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                "params": {"notifications": {"taskIds": ids}}});
            let events = std::iter::once(agreed).chain(changed);
            let events: String = events.map(|it| format!("data: {it}\n\n")).collect();
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            return Reply::Raw([head.as_bytes(), events.as_bytes()].concat());
        }
        _ => Err(-32601),
    };
    let outcome = match result {
        Ok(result) => format!("\"result\":{result}"),
        Err(code) => format!(r#""error":{{"code":{code},"message":"theirs"}}"#),
    };
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},{outcome}}}"#);
    Reply::Http("200 OK", "content-type: application/json\r\n", body.into())
}

pub(crate) fn tasks() -> Value {
    json!({"extensions": {TASKS: {}}})
}

/// Sends a request of a modern client with these capabilities, with a token or anonymously.
pub(crate) fn ask_as(
    proxy: &Proxy,
    (bearer, capabilities): (&str, Value),
    path: &str,
    method: &str,
    mut params: Value,
) -> Response {
    let meta = &mut params["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
    meta["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    let body = json!({"jsonrpc": "2.0", "id": "raw", "method": method, "params": params});
    let name = ["name", "taskId"].iter().find_map(|key| body["params"][*key].as_str());
    let bearer = format!("Bearer {bearer}");
    let mut headers = vec![("MCP-Protocol-Version", MODERN), ("Mcp-Method", method)];
    headers.extend(name.map(|name| ("Mcp-Name", name)));
    if bearer != "Bearer " {
        headers.push(("Authorization", &bearer));
    }
    proxy.request("POST", path, &headers, body.to_string().as_bytes())
}

pub(crate) fn ask(proxy: &Proxy, path: &str, method: &str, params: Value) -> Response {
    ask_as(proxy, ("", tasks()), path, method, params)
}

/// Params of a call at an endpoint. The server answers the call with `answer`.
pub(crate) fn call(path: &str, tool: &str, answer: &str) -> Value {
    let arguments = json!({"answer": answer});
    let (server, own) = tool.split_once(':').expect("server:tool");
    match path {
        "/mcp" => json!({"name": "call_tool_read", "arguments": {
            "name": tool, "args": arguments, "intent": {"operation_type": "read"}}}),
        "/mcp/all" => json!({"name": format!("{server}__{own}"), "arguments": arguments}),
        _ => json!({"name": own, "arguments": arguments}),
    }
}

/// Creates a task. Returns its sealed id.
pub(crate) fn create(proxy: &Proxy, path: &str, tool: &str, answer: &str) -> String {
    create_as(proxy, "", path, tool, answer)
}

/// Creates a task with a token or anonymously. Returns its sealed id.
pub(crate) fn create_as(
    proxy: &Proxy,
    bearer: &str,
    path: &str,
    tool: &str,
    answer: &str,
) -> String {
    let params = call(path, tool, answer);
    let created = ask_as(proxy, (bearer, tasks()), path, "tools/call", params).json();
    created["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned()
}

fn text(response: &Response) -> String {
    String::from_utf8_lossy(raw_result(&response.body)).into_owned()
}

/// A completed task with this result.
pub(crate) fn completed(result: &str) -> String {
    format!(
        r#"{{"resultType":"complete","taskId":"7a" ,"status":"completed","ttlMs":1e3,"result" : {result} ,"pollIntervalMs":5}}"#
    )
}

const PATHS: [&str; 3] = ["/mcp", "/mcp/all", "/mcp/server/s"];

// PRO-43
#[test]
fn task_passes_byte_for_byte_but_for_its_id_at_every_endpoint() {
    let server = Server::start();
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let working = CREATED.replace(r#""task""#, r#""complete""#);
    for path in PATHS {
        let created = ask(&proxy, path, "tools/call", call(path, "s:slow", CREATED));
        let sealed = created.json()["result"]["taskId"].as_str().expect("an id").to_owned();
        assert!(sealed.starts_with("mcpproxy-task."), "{path}: {sealed}");
        let quoted = format!("\"{sealed}\"");
        assert_eq!(text(&created), CREATED.replace(r#""7\u0061""#, &quoted), "{path}");
        let (_, called) = server.asked("tools/call").pop().expect("a call");
        let declared = &called["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(*declared, tasks(), "{path}");
        server.set(OWN, &working);
        let got = ask(&proxy, path, "tasks/get", json!({"taskId": sealed}));
        assert_eq!(text(&got), working.replace(r#""7\u0061""#, &quoted), "{path}");
        server.set(OWN, &completed(GOOD));
        // A finished task can be fetched more than once.
        for _ in 0..2 {
            let got = ask(&proxy, path, "tasks/get", json!({"taskId": sealed}));
            assert_eq!(text(&got), completed(GOOD).replace("\"7a\"", &quoted), "{path}");
        }
        let inputs = json!({"q": {"action": "accept", "content": {"N": 1}}});
        let update = json!({"taskId": sealed, "inputResponses": inputs, "odd": 1});
        assert_eq!(text(&ask(&proxy, path, "tasks/update", update)), ACK, "{path}");
        assert_eq!(text(&ask(&proxy, path, "tasks/cancel", json!({"taskId": sealed}))), ACK);
        for (method, more) in [
            ("tasks/get", None),
            ("tasks/update", Some(("inputResponses", inputs))),
            ("tasks/cancel", None),
        ] {
            let (head, message) = server.asked(method).pop().expect("it arrived");
            assert_eq!(head.headers("mcp-name"), [OWN], "{path} {method}");
            let mut params = message["params"].clone();
            let meta = params.as_object_mut().expect("an object").remove("_meta").expect("some");
            assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], tasks(), "{method}");
            let mut expected = json!({"taskId": OWN});
            if let Some((name, value)) = more {
                expected[name] = value;
            }
            assert_eq!(params, expected, "{path} {method}");
        }
    }
}

// PRO-43
#[test]
fn foreign_altered_and_unsealed_ids_are_refused_with_the_same_error() {
    let (s, t) = (Server::start(), Server::start());
    let proxy = Proxy::start(json!({"s": s.entry(), "t": t.entry()}));
    let [alice, bob] = ["alice", "bob"].map(|name| create_token(&proxy, &[name]));
    let path = "/mcp/all";
    let made = ask_as(&proxy, (&alice, tasks()), path, "tools/call", call(path, "s:slow", CREATED));
    let sealed = made.json()["result"]["taskId"].as_str().expect("an id").to_owned();
    s.set(OWN, &completed(GOOD));
    let altered =
        format!("{}{}", &sealed[..sealed.len() - 1], if sealed.ends_with('A') { "B" } else { "A" });
    let other = sealed.replacen("mcpproxy-task", "mcpproxy-state", 1);
    let long = format!("{sealed}{}", "A".repeat(6000));
    let mut refusals = Vec::new();
    for (bearer, path, id) in [
        (&*bob, path, &*sealed),
        ("", path, &sealed),
        (&alice, "/mcp/server/t", &sealed),
        (&alice, path, &altered),
        (&alice, path, &other),
        (&alice, path, &long),
        (&alice, path, OWN),
        (&alice, path, "x"),
        (&alice, path, &sealed[..40]),
    ] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let params = json!({"taskId": id, "inputResponses": {}});
            let refused = ask_as(&proxy, (bearer, tasks()), path, method, params).json();
            refusals.push(refused["error"].clone());
        }
    }
    let expected = json!({"code": -32602, "message": "Failed to retrieve task: Task not found"});
    assert!(refusals.iter().all(|refusal| *refusal == expected), "{refusals:?}");
    assert!(s.asked("tasks/get").is_empty() && t.asked("tasks/get").is_empty());
    let got = ask_as(&proxy, (&alice, tasks()), "/mcp", "tasks/get", json!({"taskId": sealed}));
    assert_eq!(got.json()["result"]["taskId"], sealed, "for its owner, at another endpoint");
}

// PRO-43, APR-1
#[test]
fn request_without_input_adds_nothing_to_the_approved_request() {
    let server = Server::start();
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let sealed = create(&proxy, "/mcp/all", "s:slow", CREATED);
    server.set(OWN, &completed(GOOD));
    let meta = json!({"x.example/y": "smuggled", "baggage": "k=smuggled", "tracestate": "v=smuggled",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"});
    for method in ["tasks/get", "tasks/cancel"] {
        let params = json!({"taskId": sealed, "_meta": meta});
        let answered = ask(&proxy, "/mcp/all", method, params).json();
        assert!(answered.get("result").is_some(), "{answered}");
        let (_, asked) = server.asked(method).pop().expect("it arrived");
        let keys: Vec<_> = asked["params"]["_meta"].as_object().unwrap().keys().collect();
        assert!(
            keys.iter().all(|key| key.starts_with("io.modelcontextprotocol/")),
            "{method}: {keys:?}"
        );
        assert!(!asked.to_string().contains("smuggled"), "{asked}");
    }
}

// PRO-43
#[test]
fn two_servers_with_the_same_task_id_are_distinguished() {
    let servers = ["s", "t"].map(|name| (name, Server::start()));
    let entries: Vec<_> =
        servers.iter().map(|(name, it)| ((*name).to_owned(), it.entry())).collect();
    let proxy = Proxy::start(Value::Object(entries.into_iter().collect()));
    let ids = servers.each_ref().map(|(name, server)| {
        server.set(OWN, &completed(&format!(r#"{{"content":[],"of":"{name}"}}"#)));
        create(&proxy, "/mcp/all", &format!("{name}:slow"), CREATED)
    });
    assert_ne!(ids[0], ids[1]);
    for ((name, server), id) in servers.iter().zip(&ids) {
        let got = ask(&proxy, "/mcp/all", "tasks/get", json!({"taskId": id})).json();
        assert_eq!(got["result"]["result"]["of"], *name);
        assert_eq!(got["result"]["taskId"], *id);
        assert_eq!(server.asked("tasks/get").len(), 1, "{name}");
    }
}

// PRO-43
#[test]
fn result_in_a_task_is_validated_and_recorded_like_the_answer_to_its_call() {
    let server = Server::start();
    let servers = json!({"strict": server.in_mode("strict"), "warn": server.in_mode("warn"), "off": server.in_mode("off")});
    let proxy = Proxy::with(json!({"mcpServers": servers, "activity": {"receipts": true}}));
    let failed = r#"{"content":[{"type":"text","text":"broken"}],"isError":true}"#;
    let path = "/mcp/all";
    for (mode, result, status, decisions) in [
        ("strict", GOOD, "success", 0),
        ("strict", failed, "error", 0),
        ("strict", BAD, "blocked", 1),
        ("strict", r#"{"content":[]}"#, "blocked", 1),
        ("warn", GOOD, "success", 0),
        ("warn", BAD, "success", 1),
        ("off", BAD, "success", 0),
    ] {
        let sealed = create(&proxy, path, &format!("{mode}:typed"), CREATED);
        server.set(OWN, &completed(result));
        let got = ask(&proxy, path, "tasks/get", json!({"taskId": sealed}));
        let expected = completed(result).replace("\"7a\"", &format!("\"{sealed}\""));
        if status == "blocked" {
            let blocked = got.json()["result"].clone();
            assert_eq!(blocked["status"], "completed", "{blocked}");
            assert_eq!(blocked["result"]["isError"], true, "{blocked}");
            assert!(!text(&got).contains("no number"), "{blocked}");
            let rest = expected.split_once(result).expect("it is in it");
            assert!(text(&got).starts_with(rest.0) && text(&got).ends_with(rest.1), "{blocked}");
        } else {
            assert_eq!(text(&got), expected, "{mode}");
        }
        // The newest record of a kind about this task.
        let of = |kind: &str| {
            let query = format!("server={mode}&tool=typed&type={kind}");
            let digits = sealed.split('.').nth(3).expect("a hash");
            until("the request is recorded", || {
                let is_it = |record: &Value| {
                    let task = record["metadata"]["task"].as_str().unwrap_or("none");
                    digits.starts_with(task)
                };
                proxy.activity(&query).into_iter().find(is_it)
            })
        };
        let (call, fetched) = (of("tool_call"), of("internal_tool_call"));
        assert_eq!(call["status"], "success", "{call}");
        assert_eq!(call["metadata"]["task_status"], "working", "{call}");
        assert_eq!(fetched["status"], status, "{mode}: {fetched}");
        assert_eq!(fetched["metadata"]["task_method"], "tasks/get", "{fetched}");
        assert_eq!(fetched["metadata"]["task_status"], "completed", "{fetched}");
        assert_eq!(fetched["metadata"]["task"], call["metadata"]["task"], "{fetched}");
        assert_eq!(fetched["metadata"]["task"].as_str().map(str::len), Some(16));
        // Record and receipt cover the whole answer.
        let hash = |text: &str| json!(blake3::hash(text.as_bytes()).to_hex().as_str());
        let receipt = &fetched["metadata"]["receipt"];
        assert_eq!(receipt["received"], hash(&completed(result)), "{fetched}");
        assert_eq!(receipt["delivered"], hash(&text(&got)), "{fetched}");
        let why = if status == "blocked" { "blocked" } else { "adapted" };
        assert_eq!(
            (&receipt["why"], &fetched["response"]),
            (&json!(why), &json!(completed(result)))
        );
        until("its decisions are recorded", || {
            let judged = proxy.activity("type=policy_decision");
            let ours = judged.iter().filter(|it| it["parent_id"] == fetched["id"]).count();
            (ours == decisions).then_some(())
        });
        assert!(
            !fetched.to_string().contains(&sealed),
            "records do not permit to fetch the task: {fetched}"
        );
    }
}

// PRO-43
#[test]
fn other_members_of_a_task_with_a_result_are_recorded_without_secrets() {
    let server = Server::start();
    let mut entry = server.in_mode("strict");
    entry["headers"] = json!({"X-Secret": "s3cret-of-the-config"});
    let proxy = Proxy::start(json!({"s": entry}));
    for (n, result) in [GOOD, BAD].into_iter().enumerate() {
        let sealed = create(&proxy, "/mcp/all", "s:typed", CREATED);
        let beside = r#""statusMessage":"said so","inputRequests":{"q":{"method":"roots/list"}},"odd":[1.0],"#;
        let error = r#""error":{"code":-32603,"message":"s3cret-of-the-config"},"#;
        let state = completed(result);
        server.set(OWN, &state.replacen('{', &format!("{{{beside}{error}"), 1));
        let got = ask(&proxy, "/mcp/all", "tasks/get", json!({"taskId": sealed}));
        let got = String::from_utf8_lossy(&got.body);
        assert!(got.contains(beside) && !got.contains("s3cret"), "{got}");
        let records = until("the requests are recorded", || {
            let records = proxy.activity("type=internal_tool_call&server=s&tool=typed");
            (records.len() > n).then_some(records)
        });
        let response = records[0]["response"].as_str().expect("a text");
        assert!(response.contains(beside) && response.contains(result), "{response}");
        assert!(!response.contains("s3cret"), "{response}");
    }
}

// PRO-43
#[test]
fn long_result_of_a_task_is_kept_where_that_of_a_call_would_be() {
    let server = Server::start();
    let config = json!({"mcpServers": {"s": server.entry()}, "result_limit": {"bytes": 4096}});
    let proxy = Proxy::with(config);
    let long = format!(r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#, "x".repeat(9000));
    server.set(OWN, &completed(&long));
    for (path, is_kept) in [("/mcp", true), ("/mcp/all", false)] {
        let sealed = create(&proxy, path, "s:slow", CREATED);
        let got = ask(&proxy, path, "tasks/get", json!({"taskId": sealed}));
        let result = got.json()["result"].clone();
        assert_eq!((&result["status"], &result["taskId"]), (&json!("completed"), &json!(sealed)));
        assert_eq!(text(&got).contains(&long), !is_kept, "{path}");
        assert_eq!(text(&got).contains("read_result"), is_kept, "{path}");
    }
}

// PRO-43
#[test]
fn task_for_a_client_that_did_not_declare_tasks_is_an_error() {
    let server = Server::start();
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let check = |response: &Response, text: &str| {
        let error = response.json()["error"].clone();
        assert_eq!((response.status, &error["code"]), (400, &json!(-32021)), "{error}");
        assert_eq!(error["data"], json!({"requiredCapabilities": tasks()}));
        assert_eq!(error["message"], text);
    };
    for path in PATHS {
        let params = call(path, "s:slow", CREATED);
        let made = ask_as(&proxy, ("", json!({"roots": {}})), path, "tools/call", params);
        check(
            &made,
            "s: slow: the server answered with a task, but the client has not declared support for tasks",
        );
        let (_, called) = server.asked("tools/call").pop().expect("a call");
        let declared = &called["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(*declared, json!({"roots": {}}), "{path}");
        let sealed = create(&proxy, path, "s:slow", CREATED);
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let params = json!({"taskId": sealed, "inputResponses": {}});
            let refused = ask_as(&proxy, ("", json!({})), path, method, params);
            check(&refused, &format!("{method}: the client did not declare {TASKS}"));
        }
        for removed in ["tasks/list", "tasks/result"] {
            let refused = ask(&proxy, path, removed, json!({})).json();
            assert_eq!(refused["error"]["code"], -32601, "{path} {removed}");
        }
    }
    assert!(server.asked("tasks/get").is_empty());
    let session = Session::open_at("/mcp", &proxy, "2025-11-25", json!({}));
    let legacy = session.ask("tools/call", &call("/mcp", "s:slow", CREATED)).response().json();
    assert_eq!(legacy["error"]["code"], -32021, "{legacy}");
}

// PRO-43
#[test]
fn request_about_a_task_of_the_other_family_is_a_client_error() {
    let declared =
        json!({"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}});
    let (new, old) = (Server::start(), Server::of(declared, "2025-11-25"));
    let proxy = Proxy::start(json!({"new": new.entry(), "old": old.entry()}));
    let path = "/mcp/all";
    let session = Session::open_at(path, &proxy, "2025-11-25", json!({}));
    let of_new = create(&proxy, path, "new:slow", CREATED);
    let mut params = call(path, "old:slow", r#"{"task":{"taskId":"7a","status":"working"}}"#);
    params["task"] = json!({});
    let made = session.ask("tools/call", &params).response().json();
    let of_old = made["result"]["task"]["taskId"].as_str().expect("an id");
    let check = |refused: &Value, why: &str| {
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        let text = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(text.contains(why), "{refused}");
    };
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let refused = session.ask(method, &json!({"taskId": of_new})).response().json();
        check(&refused, "server 'new' speaks 2026-07-28");
    }
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let params = json!({"taskId": of_old, "inputResponses": {}});
        let refused = ask(&proxy, path, method, params).json();
        check(&refused, "server 'old' speaks 2025-11-25");
    }
    for (server, method) in [&new, &old].into_iter().flat_map(|server| {
        ["tasks/get", "tasks/update", "tasks/result", "tasks/cancel"].map(|it| (server, it))
    }) {
        assert!(server.asked(method).is_empty(), "{method}: nothing is sent");
    }
}

// PRO-43
#[test]
fn task_behind_a_sealed_state_is_sealed_and_recorded_as_received() {
    let server = Server::start();
    let servers = json!({"s": server.entry()});
    let proxy = Proxy::with(json!({"mcpServers": servers, "activity": {"receipts": true}}));
    let made = CREATED.replacen('{', r#"{"requestState" : "of the server","#, 1);
    let answered = ask(&proxy, "/mcp/all", "tools/call", call("/mcp/all", "s:slow", &made)).json();
    for (name, prefix) in [("taskId", "mcpproxy-task."), ("requestState", "mcpproxy-state.")] {
        let sealed = answered["result"][name].as_str().unwrap_or_default();
        assert!(sealed.starts_with(prefix), "{answered}");
    }
    let record = until("the call is recorded", || {
        proxy.activity("type=tool_call&server=s&tool=slow").into_iter().next()
    });
    let hash = json!(blake3::hash(made.as_bytes()).to_hex().as_str());
    assert_eq!(record["metadata"]["receipt"]["received"], hash, "{record}");
}

// PRO-43
#[test]
fn answer_about_a_task_has_no_unsealed_ids_and_states() {
    let server = Server::start();
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let path = "/mcp/all";
    let related = |id: &str| json!({"io.modelcontextprotocol/related-task": {"taskId": id}});
    let meta = format!(r#""_meta":{},"taskId""#, related(OWN));
    let made = CREATED.replace(r#""taskId""#, &meta);
    let answered = ask(&proxy, path, "tools/call", call(path, "s:slow", &made)).json();
    let sealed = answered["result"]["taskId"].as_str().expect("an id").to_owned();
    assert_eq!(answered["result"]["_meta"], related(&sealed), "{answered}");
    let requests = |own: &str, other: Value| {
        json!({
            "own": {"method": "elicitation/create", "params": {"message": "m", "_meta": related(own)}},
            "other": {"method": "elicitation/create", "params": {"message": "m", "_meta": other}},
        })
    };
    let asks = json!({"resultType": "complete", "taskId": OWN, "status": "input_required",
        "requestState": "outer", "inputRequests": requests(OWN, related("of somebody else"))});
    server.set(OWN, &asks.to_string());
    let got = ask(&proxy, path, "tasks/get", json!({"taskId": sealed})).json()["result"].take();
    assert_eq!(got["inputRequests"], requests(&sealed, json!({})), "{got}");
    let state = got["requestState"].as_str().unwrap_or_default();
    assert!(state.starts_with("mcpproxy-state."), "{got}");
    let answer = |meta: Value| json!({"action": "accept", "content": {}, "_meta": meta});
    let inputs =
        |own: &str, other: Value| json!({"own": answer(related(own)), "other": answer(other)});
    let params = json!({"taskId": sealed, "_meta": related(&sealed),
        "inputResponses": inputs(&sealed, related("of somebody else"))});
    assert_eq!(text(&ask(&proxy, path, "tasks/update", params)), ACK);
    let (_, updated) = server.asked("tasks/update").pop().expect("it arrived");
    assert_eq!(updated["params"]["inputResponses"], inputs(OWN, json!({})), "{updated}");
    let key = "io.modelcontextprotocol/related-task";
    assert_eq!(updated["params"]["_meta"][key], related(OWN)[key], "{updated}");
    // A state in the result belongs to the original call, which the client repeats with the state.
    let result = r#"{"resultType":"input_required","requestState":"inner","inputRequests":{}}"#;
    server.set(OWN, &completed(result));
    let got = ask(&proxy, path, "tasks/get", json!({"taskId": sealed})).json()["result"].take();
    let mut params = call(path, "s:slow", CREATED);
    (params["requestState"], params["inputResponses"]) =
        (got["result"]["requestState"].clone(), json!({}));
    ask(&proxy, path, "tools/call", params);
    let (_, called) = server.asked("tools/call").pop().expect("it arrived");
    assert_eq!(called["params"]["requestState"], "inner", "{called}");
}

// PRO-43
#[test]
fn unusable_task_is_a_failure_of_its_server() {
    let server = Server::start();
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let long = "y".repeat(1025);
    for (id, why) in [
        (json!(long).to_string(), "whose taskId is longer than 1024 bytes"),
        ("7".to_owned(), "whose taskId is missing or not a string"),
        (r#""a","taskId":"b""#.to_owned(), "cannot be parsed unambiguously"),
        (r#""a","TaskID":"b""#.to_owned(), "cannot be parsed unambiguously"),
    ] {
        let made = CREATED.replace(r#""7\u0061""#, &id);
        let failed =
            ask(&proxy, "/mcp/all", "tools/call", call("/mcp/all", "s:slow", &made)).json();
        let message = failed["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert!(message.contains(why) && failed["result"]["isError"] == true, "{failed}");
    }
    let padded = format!(r#""x":"{}","taskId" : "#, "y".repeat(64 * 1024));
    for (made, why) in [
        (CREATED.replace(r#""x":1.0e5"#, r#""content":[]"#), "a task that contains content"),
        (
            CREATED.replace(r#""x":1.0e5"#, r#""structuredContent":{"n":"no number"}"#),
            "a task that contains content",
        ),
        (CREATED.replace(r#""taskId" : "#, &padded), "a task of more than 65536 bytes"),
    ] {
        let failed =
            ask(&proxy, "/mcp/all", "tools/call", call("/mcp/all", "s:typed", &made)).json();
        let message = failed["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert!(message.contains(why) && failed["result"]["isError"] == true, "{why}: {failed}");
    }
    // Control characters and quotes in an id are permitted.
    let odd = "a\u{1}\n\"\\\u{e9}\u{7f}";
    let made = CREATED.replace(r#""7\u0061""#, &json!(odd).to_string());
    let sealed = create(&proxy, "/mcp/all", "s:slow", &made);
    let state = |result: &str| completed(result).replace(r#""7a""#, &json!(odd).to_string());
    server.set(odd, &state(GOOD));
    let got = ask(&proxy, "/mcp/all", "tasks/get", json!({"taskId": sealed}));
    assert_eq!(text(&got), completed(GOOD).replace("7a", &sealed));
    assert_eq!(server.asked("tasks/get").pop().expect("it arrived").1["params"]["taskId"], odd);
    for (answer, why) in [
        (state(GOOD).replace(&json!(odd).to_string(), "\"other\""), "about another task"),
        (state("[]"), "whose result is not an object"),
        (state(GOOD).replace("\"result\" :", "\"x\":"), "a completed task without its result"),
        (state(GOOD).replace("\"ttlMs\"", "\"Result\""), "cannot be parsed unambiguously"),
        (state(GOOD).replace("\"ttlMs\":1e3", "\"result\":{}"), "cannot be parsed unambiguously"),
        (state(r#"{"content":7}"#), "whose content is not an array"),
    ] {
        server.set(odd, &answer);
        let failed = ask(&proxy, "/mcp/all", "tasks/get", json!({"taskId": sealed})).json();
        let message = failed["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(why) && message.starts_with("s: tasks/get: "), "{why}: {failed}");
        assert_eq!(failed["error"]["code"], -32603, "{failed}");
    }
    server.states().clear();
    let purged = ask(&proxy, "/mcp/all", "tasks/get", json!({"taskId": sealed})).json();
    assert_eq!(purged["error"], json!({"code": -32602, "message": "theirs"}));
}

// PRO-43
#[test]
fn tasks_are_declared_if_a_visible_server_has_them() {
    let (with, without) = (Server::start(), Server::of(json!({"tools": {}}), MODERN));
    let servers = json!({"with": with.entry(), "without": without.entry()});
    let proxy = Proxy::start(servers);
    let blind = create_token(&proxy, &["blind", "--server", "without"]);
    let declared = |bearer: &str, path: &str| {
        let found = ask_as(&proxy, (bearer, tasks()), path, "server/discover", json!({})).json();
        let capabilities = &found["result"]["capabilities"];
        assert_eq!(capabilities.get("tasks"), None, "{found}");
        capabilities["extensions"].get(TASKS).cloned()
    };
    for path in ["/mcp", "/mcp/all", "/mcp/server/with"] {
        assert_eq!(declared("", path), Some(json!({})), "{path}");
    }
    assert_eq!(declared("", "/mcp/server/without"), None);
    for path in ["/mcp", "/mcp/all"] {
        assert_eq!(declared(&blind, path), None, "{path}");
    }
    // The tasks capability of a client is not forwarded to a server without tasks.
    let made = ask(&proxy, "/mcp/all", "tools/call", call("/mcp/all", "without:slow", CREATED));
    assert_eq!(made.json()["error"]["code"], -32021);
    let (_, called) = without.asked("tools/call").pop().expect("a call");
    let capabilities = &called["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(*capabilities, json!({}));
}

// PRO-43
#[test]
fn task_of_2025_11_25_passes_between_a_client_and_a_server_of_that_revision() {
    let declared =
        json!({"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}});
    let (with, without) =
        (Server::of(declared, "2025-11-25"), Server::of(json!({"tools": {}}), "2025-11-25"));
    let servers = json!({"s": with.in_mode("strict"), "without": without.entry()});
    let proxy = Proxy::start(servers);
    let created = r#"{"task":{"taskId":"7\u0061" ,"status":"working","ttl":6e4}}"#;
    for path in PATHS {
        let session = Session::open_at(path, &proxy, "2025-11-25", json!({}));
        let raw = |method: &str, params: &Value| {
            let asked = json!({"jsonrpc": "2.0", "id": "raw", "method": method, "params": params});
            session.send(&asked).response()
        };
        let mut params = call(path, "s:typed", created);
        for free in [json!("text"), json!({"ttl": "text"}), json!({"ttl": {"a": 1}})] {
            params["task"] = free;
            raw("tools/call", &params);
            let (_, called) = with.asked("tools/call").pop().expect("a call");
            assert_eq!(called["params"]["task"], json!({}), "nothing beyond the approved request");
        }
        params["task"] = json!({"ttl": 60000, "odd": 1});
        let made = raw("tools/call", &params);
        let sealed = made.json()["result"]["task"]["taskId"].as_str().expect("an id").to_owned();
        assert_eq!(
            text(&made),
            created.replace(r#""7\u0061""#, &format!("\"{sealed}\"")),
            "{path}"
        );
        let (_, called) = with.asked("tools/call").pop().expect("a call");
        assert_eq!(called["params"]["task"], json!({"ttl": 60000}), "{path}");
        let id = json!({"taskId": sealed});
        with.set(OWN, r#"{"taskId":"7a","status":"completed","ttl":1e3 }"#);
        assert_eq!(
            text(&raw("tasks/get", &id)),
            format!(r#"{{"taskId":"{sealed}","status":"completed","ttl":1e3 }}"#)
        );
        let meta = r#""_meta":{ "io.modelcontextprotocol/related-task":{"taskId":"7a"}}"#;
        let result = GOOD.replacen('{', &format!("{{{meta},"), 1);
        with.set(OWN, &result);
        assert_eq!(text(&raw("tasks/result", &id)), result.replace("7a", &sealed), "{path}");
        with.set(OWN, BAD);
        let blocked = raw("tasks/result", &id).json();
        assert_eq!(blocked["result"]["isError"], true, "{blocked}");
        assert_eq!(text(&raw("tasks/cancel", &id)), ACK, "{path}");
        assert_eq!(raw("tasks/update", &id).json()["error"]["code"], -32601, "{path}");
        assert_eq!(raw("tasks/get", &json!({"taskId": OWN})).json()["error"]["code"], -32602);
        let older = Session::open_at(path, &proxy, "2025-06-18", json!({}));
        let refused = older.ask("tasks/get", &id).response().json();
        assert_eq!(refused["error"]["code"], -32601, "{refused}");
    }
    let session = Session::open_at("/mcp/all", &proxy, "2025-11-25", json!({}));
    let mut params = call("/mcp/all", "without:slow", r#"{"content":[]}"#);
    params["task"] = json!({"ttl": 1});
    let plain = session.ask("tools/call", &params).response().json();
    assert_eq!(plain["result"]["content"], json!([]));
    let (_, called) = without.asked("tools/call").pop().expect("a call");
    assert_eq!(called["params"].get("task"), None, "the server has no tasks");
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "e2e", "version": "1"}}});
    for (path, expected) in [
        ("/mcp/all", json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}})),
        ("/mcp/server/without", Value::Null),
    ] {
        let opened = proxy.request("POST", path, &[], hello.to_string().as_bytes()).json();
        assert_eq!(opened["result"]["capabilities"]["tasks"], expected, "{path}");
    }
}

// PRO-43
#[test]
fn task_passes_through_a_pipe() {
    let server = Server::start();
    let mut pipe = Pipe::open(json!({"mcpServers": {"s": server.entry()}}));
    let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": tasks()});
    let mut ask = |method: &str, mut params: Value| {
        params["_meta"] = meta.clone();
        let asked = json!({"jsonrpc": "2.0", "id": "raw", "method": method, "params": params});
        pipe.ask(&asked.to_string())
    };
    let made = ask("tools/call", call("/mcp", "s:slow", CREATED));
    let result: Value = serde_json::from_slice(raw_result(made.as_bytes())).expect("JSON");
    let sealed = result["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    server.set(OWN, &completed(GOOD));
    let got = ask("tasks/get", json!({"taskId": sealed}));
    let expected = completed(GOOD).replace("7a", &sealed);
    assert_eq!(String::from_utf8_lossy(raw_result(got.as_bytes())), expected);
    let refused: Value =
        serde_json::from_str(&ask("tasks/get", json!({"taskId": OWN}))).expect("JSON");
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
}

// PRO-43
#[test]
fn failed_task_is_recorded_as_an_error_without_secrets() {
    let server = Server::start();
    let mut entry = server.entry();
    entry["headers"] = json!({"X-Secret": "s3cret-of-the-config"});
    let proxy = Proxy::start(json!({"s": entry}));
    let sealed = create(&proxy, "/mcp/all", "s:slow", CREATED);
    let failed = r#"{"resultType":"complete","taskId":"7a","status":"failed","error":{"code":-32002, "message":"s3cret-of-the-config"}}"#;
    server.set(OWN, failed);
    let got = ask(&proxy, "/mcp/all", "tasks/get", json!({"taskId": sealed})).json();
    let error = &got["result"]["error"];
    assert_eq!(error["code"], -32602, "{got}");
    assert!(!got.to_string().contains("s3cret"), "{got}");
    let record = until("the request is recorded", || {
        proxy.activity("type=internal_tool_call&server=s&tool=slow").into_iter().next()
    });
    assert_eq!(
        (&record["status"], &record["metadata"]["task_status"]),
        (&json!("error"), &json!("failed"))
    );
}

// PRO-43
#[test]
fn status_of_a_task_is_notified_to_its_owner_under_the_sealed_id() {
    let server = Server::start();
    let proxy = Proxy::start(json!({"s": server.in_mode("strict")}));
    let alice = create_token(&proxy, &["alice"]);
    let path = "/mcp/all";
    let made =
        ask_as(&proxy, (&alice, tasks()), path, "tools/call", call(path, "s:typed", CREATED));
    let sealed = made.json()["result"]["taskId"].as_str().expect("an id").to_owned();
    let listen = |bearer: &str, capabilities: Value| {
        let asked = json!({"jsonrpc": "2.0", "id": "l", "method": "subscriptions/listen", "params": {
            "_meta": {"io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": capabilities},
            "notifications": {"taskIds": [sealed, OWN]}}});
        let bearer = format!("Bearer {bearer}");
        let mut headers =
            vec![("MCP-Protocol-Version", MODERN), ("Mcp-Method", "subscriptions/listen")];
        if bearer != "Bearer " {
            headers.push(("Authorization", &bearer));
        }
        let mut connection = Connection::open(proxy.port);
        connection.send("POST", path, &headers, asked.to_string().as_bytes());
        connection
    };
    for (result, is_error) in [(GOOD, false), (BAD, true)] {
        server.set(OWN, &completed(result));
        let mut events = Events::of(listen(&alice, tasks()));
        let agreed = events.message();
        assert_eq!(agreed["params"]["notifications"], json!({"taskIds": [sealed]}), "{agreed}");
        let notified = events.message();
        assert_eq!(notified["method"], "notifications/tasks", "{notified}");
        let params = &notified["params"];
        assert_eq!(params["_meta"], json!({"io.modelcontextprotocol/subscriptionId": "l"}));
        assert_eq!((&params["taskId"], &params["status"]), (&json!(sealed), &json!("completed")));
        // The notification has the same validated result as `tasks/get`.
        assert_eq!(params["result"]["isError"], is_error, "{notified}");
        let text = notified.to_string();
        assert!(!text.contains("smuggled") && !text.contains("no number"), "{text}");
    }
    let mut events = Events::of(listen("", tasks()));
    assert_eq!(
        events.message()["params"]["notifications"],
        json!({}),
        "the task of another principal"
    );
    let refused = listen(&alice, json!({})).response();
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!(-32021)));
    assert_eq!(refused.json()["error"]["data"], json!({"requiredCapabilities": tasks()}));
}
