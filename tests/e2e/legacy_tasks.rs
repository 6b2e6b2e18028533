//! Tasks of 2025-11-25 through the proxy (PRO-43): lists, status notifications, and the task that a message is related to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Connection, Events, Pipe, Proxy, Received, Recorder, Reply, Response, create_token, raw_result,
    until,
};

const VERSION: &str = "2025-11-25";
const RELATED: &str = "io.modelcontextprotocol/related-task";
const JSON: &str = "content-type: application/json\r\n";
const SSE: &str = "content-type: text/event-stream\r\n";
/// Maximum wait of the server for a message.
const PATIENCE: Duration = Duration::from_secs(30);

/// A legacy server with tasks, but without `tasks.list`. A call makes a task with the id in its argument `id`; the messages in its
/// argument `first` precede the answer.
struct Server {
    recorder: Recorder,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Raw results of `tasks/get` by task.
    tasks: Mutex<BTreeMap<String, String>>,
    /// Messages for its stream of notifications.
    outbox: Mutex<VecDeque<String>>,
    /// Answers to the next requests for the state of a task: an error with this code, or none.
    faults: Mutex<VecDeque<Option<i64>>>,
    /// Requests that it sends during `tasks/result`.
    questions: Mutex<Vec<Value>>,
    /// Answers to its requests.
    answers: Mutex<Vec<Value>>,
    changed: Condvar,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    fn start() -> Self {
        let state = Arc::<State>::default();
        let known = Arc::clone(&state);
        let recorder = Recorder::start(move |_, asked| answer(asked, &known));
        Self { recorder, state }
    }

    fn entry(&self) -> Value {
        json!({"url": format!("http://127.0.0.1:{}/mcp", self.recorder.port)})
    }

    /// Sets the result of `tasks/get` for a task. With an empty result the connection is closed.
    fn set(&self, task: &str, result: &str) {
        lock(&self.state.tasks).insert(task.to_owned(), result.to_owned());
    }

    /// Received requests of `method`, oldest first.
    fn asked(&self, method: &str) -> Vec<Value> {
        let all = self.recorder.received().into_iter();
        let all = all.filter_map(|it| serde_json::from_slice(&it.body).ok());
        all.filter(|message: &Value| message["method"] == method).collect()
    }
}

fn answer(asked: &Received, state: &State) -> Reply {
    if asked.head.first().is_some_and(|line| line.starts_with("GET ")) {
        let outbox = lock(&state.outbox);
        let waited = state.changed.wait_timeout_while(outbox, PATIENCE, |outbox| outbox.is_empty());
        let (mut outbox, _) = waited.unwrap_or_else(PoisonError::into_inner);
        return match outbox.pop_front() {
            Some(message) => Reply::Http("200 OK", SSE, format!("data: {message}\n\n").into()),
            None => Reply::Http("405 Method Not Allowed", "", Vec::new()),
        };
    }
    let message: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
    let Some(method) = message["method"].as_str() else {
        lock(&state.answers).push(message);
        state.changed.notify_all();
        return Reply::Http("202 Accepted", "", Vec::new());
    };
    let Some(id) = message.get("id") else { return Reply::Http("202 Accepted", "", Vec::new()) };
    let error = |code: i64| {
        let error = json!({"code": code, "message": "theirs"});
        let body = json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string();
        Reply::Http("200 OK", JSON, body.into())
    };
    if method == "tasks/get"
        && let Some(fault) = lock(&state.faults).pop_front()
    {
        return fault.map_or(Reply::Hang, error);
    }
    let params = &message["params"];
    let task = params["taskId"].as_str().unwrap_or_default();
    let arguments = &params["arguments"];
    let result = match method {
        "initialize" => json!({"protocolVersion": VERSION, "serverInfo": {"name": "t", "version": "1"},
            "capabilities": {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}})
        .to_string(),
        "tools/list" => json!({"tools": [{"name": "slow", "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true}, "execution": {"taskSupport": "optional"}}]})
        .to_string(),
        "tools/call" => {
            let related = json!({RELATED: {"taskId": arguments["id"]}});
            let result = json!({"_meta": related, "task": {"taskId": arguments["id"],
                "status": "working", "ttl": arguments["ttl"]}});
            let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
            let first = arguments["first"].as_array().cloned().unwrap_or_default();
            if !first.is_empty() {
                let events = first.iter().chain([&answer]);
                let events: String = events.map(|it| format!("data: {it}\n\n")).collect();
                return Reply::Http("200 OK", SSE, events.into());
            }
            result.to_string()
        }
        "tasks/get" => match lock(&state.tasks).get(task) {
            Some(result) if result.is_empty() => return Reply::Raw(Vec::new()),
            Some(result) => result.clone(),
            None => return error(-32602),
        },
        "tasks/result" => {
            let questions = std::mem::take(&mut *lock(&state.questions));
            lock(&state.outbox).extend(questions.iter().map(Value::to_string));
            state.changed.notify_all();
            let answers = lock(&state.answers);
            let is_waiting = |answers: &mut Vec<Value>| answers.len() < questions.len();
            let waited = state.changed.wait_timeout_while(answers, PATIENCE, is_waiting);
            drop(waited);
            json!({"content": [], "_meta": {RELATED: {"taskId": task}}}).to_string()
        }
        _ => return error(-32601),
    };
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
    Reply::Http("200 OK", JSON, body.into())
}

/// Session of a client with a token, or of an anonymous one.
struct Client<'a> {
    proxy: &'a Proxy,
    path: &'static str,
    bearer: String,
    session: String,
}

impl<'a> Client<'a> {
    fn open(proxy: &'a Proxy, path: &'static str, bearer: &str) -> Self {
        Self::of(proxy, path, bearer, VERSION)
    }

    fn of(proxy: &'a Proxy, path: &'static str, bearer: &str, version: &str) -> Self {
        let bearer = format!("Bearer {bearer}");
        let mut client = Self { proxy, path, bearer, session: String::new() };
        let opened = client.ask_raw(
            "initialize",
            json!({"protocolVersion": version, "capabilities": {"elicitation": {}},
                "clientInfo": {"name": "e2e", "version": "1"}}),
        );
        client.session = opened.header("mcp-session-id").expect("a session").to_owned();
        client
    }

    fn send(&self, method: &str, body: &str) -> Connection {
        let mut headers = Vec::new();
        if !self.session.is_empty() {
            headers.push(("Mcp-Session-Id", &*self.session));
        }
        if self.bearer != "Bearer " {
            headers.push(("Authorization", &self.bearer));
        }
        let mut connection = Connection::open(self.proxy.port);
        connection.send(method, self.path, &headers, body.as_bytes());
        connection
    }

    fn begin(&self, method: &str, params: Value) -> Connection {
        let asked = json!({"jsonrpc": "2.0", "id": "raw", "method": method, "params": params});
        self.send("POST", &asked.to_string())
    }

    fn ask_raw(&self, method: &str, params: Value) -> Response {
        self.begin(method, params).response()
    }

    fn ask(&self, method: &str, params: Value) -> Value {
        self.ask_raw(method, params).json()
    }

    /// Calls the tool of `server` as a task.
    fn call(&self, server: &str, arguments: Value) -> Value {
        let mut params = params_of_call(self.path, server, arguments);
        params["task"] = json!({});
        self.ask("tools/call", params)["result"].take()
    }

    /// Creates a task. Returns its sealed id.
    fn create(&self, server: &str, id: &str) -> String {
        let made = self.call(server, json!({"id": id, "ttl": null}));
        made["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }

    /// Result of `tasks/list`: the raw list, and the sealed ids in it.
    fn list(&self, params: Value) -> (String, Vec<String>) {
        let response = self.ask_raw("tasks/list", params);
        let listed = response.json();
        let tasks = listed["result"]["tasks"].as_array().unwrap_or_else(|| panic!("{listed}"));
        let id = |task: &Value| task["taskId"].as_str().expect("an id").to_owned();
        let ids = tasks.iter().map(id).collect();
        (String::from_utf8_lossy(raw_result(&response.body)).into_owned(), ids)
    }

    fn ids(&self) -> Vec<String> {
        self.list(json!({})).1
    }

    /// Opens its stream of notifications.
    fn stream(&self) -> Events {
        let mut events = Events::of(self.send("GET", ""));
        assert_eq!(events.next().expect("an id to come back with").data, "");
        events
    }
}

fn params_of_call(path: &str, server: &str, arguments: Value) -> Value {
    match path {
        "/mcp" => json!({"name": "call_tool_read", "arguments": {"name": format!("{server}:slow"),
            "args": arguments, "intent": {"operation_type": "read"}}}),
        "/mcp/all" => json!({"name": format!("{server}__slow"), "arguments": arguments}),
        _ => json!({"name": "slow", "arguments": arguments}),
    }
}

fn status(id: &str) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": {"taskId": id,
        "status": "failed", "statusMessage": "smuggled"}})
}

/// Answer to `tasks/get`, with spellings that no serializer writes.
fn working(id: &str) -> String {
    format!(r#"{{ "taskId" : "{id}","_meta":{{"k":1}}, "status":"working","ttl":6.0e4,"x" : [ ]}}"#)
}

fn listed(sealed: &str) -> String {
    format!(r#"{{"taskId":"{sealed}","status":"working","ttl":6.0e4,"x":[ ]}}"#)
}

// PRO-43
#[test]
fn tasks_list_has_only_the_tasks_of_its_principal() {
    let (s, t) = (Server::start(), Server::start());
    let proxy = Proxy::start(json!({"s": s.entry(), "t": t.entry()}));
    let [alice, bob] = ["alice", "bob"].map(|name| create_token(&proxy, &[name]));
    let (first, second) =
        (Client::open(&proxy, "/mcp/all", &alice), Client::open(&proxy, "/mcp", &alice));
    let other = Client::open(&proxy, "/mcp/all", &bob);
    assert_eq!(first.list(json!({})).0, r#"{"tasks":[]}"#);
    let [a1, a2] = [("s", "a1"), ("t", "a2")].map(|(server, id)| first.create(server, id));
    let b1 = other.create("s", "b1");
    for (server, id) in [(&s, "a1"), (&t, "a2"), (&s, "b1")] {
        server.set(id, &working(id));
    }
    let both = format!(r#"{{"tasks":[{},{}]}}"#, listed(&a1), listed(&a2));
    assert_eq!(first.list(json!({})).0, both);
    assert_eq!(second.list(json!({"cursor": null})).0, both, "in another session");
    assert_eq!(other.list(json!({})).0, format!(r#"{{"tasks":[{}]}}"#, listed(&b1)));
    assert_eq!(Client::open(&proxy, "/mcp/server/t", &alice).ids(), [&*a2]);
    // Anonymous clients are distinguished by their sessions.
    let anonymous = [(); 2].map(|()| Client::open(&proxy, "/mcp/all", ""));
    let c1 = anonymous[0].create("s", "c1");
    s.set("c1", &working("c1"));
    assert_eq!(anonymous.each_ref().map(Client::ids), [vec![c1], Vec::new()]);
    assert!(s.asked("tasks/list").is_empty(), "its own list has the tasks of all principals");
    until("each task is requested for its principal", || {
        let records = proxy.activity("type=internal_tool_call&server=s&tool=slow");
        let of_alice = records.iter().filter(|record| record["principal"] == "token:alice");
        let methods: Vec<_> = of_alice.map(|it| it["metadata"]["task_method"].clone()).collect();
        (methods == [json!("tasks/get"), json!("tasks/get")]).then_some(())
    });
    for cursor in [json!("x"), json!(7), json!("-1")] {
        let refused = first.ask("tasks/list", json!({"cursor": cursor}));
        assert_eq!(refused["error"]["code"], -32602, "{cursor}: {refused}");
    }
    let older = Client::of(&proxy, "/mcp/all", &alice, "2025-06-18");
    assert_eq!(older.ask("tasks/list", json!({}))["error"]["code"], -32601);
}

// PRO-43
#[test]
fn task_not_returned_by_its_server_is_not_listed() {
    let (s, t) = (Server::start(), Server::start());
    let proxy = Proxy::start(json!({"s": s.entry(), "t": t.entry()}));
    let client = Client::open(&proxy, "/mcp/all", &create_token(&proxy, &["alice"]));
    let [purged, kept, lost] =
        [("s", "purged"), ("s", "kept"), ("t", "lost")].map(|(on, id)| client.create(on, id));
    s.set("kept", &working("kept"));
    t.set("lost", "");
    assert_eq!(client.ids(), [&*kept]);
    let of_purged = || {
        let asked = s.asked("tasks/get").into_iter();
        asked.filter(|message| message["params"]["taskId"] == "purged").count()
    };
    assert_eq!(of_purged(), 1);
    t.set("lost", &working("lost"));
    assert_eq!(client.ids(), [&*kept, &*lost], "it is requested again");
    assert_eq!(of_purged(), 1, "its server does not know {purged}");
    // If none can be fetched, the answer is the error.
    for (server, id) in [(&s, "kept"), (&t, "lost")] {
        server.set(id, "");
    }
    let failed = client.ask("tasks/list", json!({}));
    let text = failed["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(failed["error"]["code"], -32603, "{failed}");
    assert!(text.starts_with("s: tasks/get: "), "{failed}");
}

// PRO-43
#[test]
fn tasks_list_has_pages() {
    let s = Server::start();
    let proxy = Proxy::start(json!({"s": s.entry()}));
    let client = Client::open(&proxy, "/mcp/all", "");
    let made: BTreeSet<String> = (0..20)
        .map(|n| {
            let id = format!("task {n}");
            s.set(&id, &working(&id));
            client.create("s", &id)
        })
        .collect();
    let (first, ids) = client.list(json!({}));
    let first: Value = serde_json::from_str(&first).expect("JSON");
    let (second, rest) = client.list(json!({"cursor": first["nextCursor"]}));
    let second: Value = serde_json::from_str(&second).expect("JSON");
    assert_eq!((ids.len(), rest.len(), second.get("nextCursor")), (16, 4, None));
    assert_eq!(ids.into_iter().chain(rest).collect::<BTreeSet<_>>(), made);
}

// PRO-43
#[test]
fn status_of_a_task_reaches_only_the_session_that_made_it() {
    let s = Server::start();
    let proxy = Proxy::start(json!({"s": s.entry()}));
    let [alice, bob] = ["alice", "bob"].map(|name| create_token(&proxy, &[name]));
    let (owner, other) =
        (Client::open(&proxy, "/mcp/all", &alice), Client::open(&proxy, "/mcp/all", &bob));
    let (a1, b1) = (owner.create("s", "a1"), other.create("s", "b1"));
    s.set("a1", &working("a1"));
    s.set("b1", &working("b1"));
    let (mut own, mut others) = (owner.stream(), other.stream());
    // Over the stream of another client's call.
    other.call("s", json!({"id": "b2", "first": [status("unknown"), status("a1")]}));
    let notified = own.message();
    assert_eq!(notified["method"], "notifications/tasks/status", "{notified}");
    let expected: Value = serde_json::from_str(&listed(&a1)).expect("JSON");
    assert_eq!(notified["params"], expected, "the answer of tasks/get");
    owner.call("s", json!({"id": "a2", "first": [status("b1")]}));
    assert_eq!(others.message()["params"]["taskId"], b1, "and nothing before");
    let record = until("the request is recorded", || {
        let records = proxy.activity("type=internal_tool_call&server=s&tool=slow");
        records.into_iter().find(|record| record["principal"] == "token:alice")
    });
    assert_eq!(record["metadata"]["task_method"], "tasks/get", "{record}");
    // And over the server's own stream.
    lock(&s.state.outbox).push_back(status("a1").to_string());
    s.state.changed.notify_all();
    assert_eq!(own.message()["params"]["taskId"], a1);
}

// PRO-43
#[test]
fn temporarily_refused_status_reaches_its_session_later() {
    let s = Server::start();
    let proxy = Proxy::start(json!({"s": s.entry()}));
    let client = Client::open(&proxy, "/mcp/all", "");
    let a1 = client.create("s", "a1");
    lock(&s.state.faults).extend([Some(-32000), Some(-32603)]);
    s.set("a1", &working("a1"));
    let mut events = client.stream();
    client.call("s", json!({"id": "a2", "first": [status("a1")]}));
    until("it is refused", || (!s.asked("tasks/get").is_empty()).then_some(()));
    s.set("a1", &working("a1").replace("working", "input_required"));
    let notified = events.message();
    assert_eq!(notified["params"]["taskId"], a1, "{notified}");
    assert_eq!(notified["params"]["status"], "input_required", "the latest state counts");
    assert_eq!(s.asked("tasks/get").len(), 3);
}

// PRO-43
#[test]
fn status_outlives_the_stream_of_its_request() {
    let s = Server::start();
    let proxy = Proxy::start(json!({"s": s.entry()}));
    let client = Client::open(&proxy, "/mcp/all", "");
    let a1 = client.create("s", "a1");
    lock(&s.state.faults).push_back(None);
    s.set("a1", &working("a1"));
    let events = client.stream();
    client.call("s", json!({"id": "a2", "first": [status("a1")]}));
    until("it is asked for", || (!s.asked("tasks/get").is_empty()).then_some(()));
    drop(events);
    assert_eq!(client.stream().message()["params"]["taskId"], a1);
    assert_eq!(s.asked("tasks/get").len(), 2);
}

// PRO-43
#[test]
fn ended_task_is_notified_once_and_still_listed() {
    let s = Server::start();
    let proxy = Proxy::start(json!({"s": s.entry()}));
    let client = Client::open(&proxy, "/mcp/all", "");
    let [ended, other] = ["ended", "other"].map(|id| client.create("s", id));
    s.set("ended", &working("ended").replace("working", "completed"));
    s.set("other", &working("other"));
    let mut events = client.stream();
    client.call("s", json!({"id": "a3", "first": [status("ended")]}));
    assert_eq!(events.message()["params"]["status"], "completed");
    client.call("s", json!({"id": "a4", "first": [status("ended"), status("other")]}));
    assert_eq!(events.message()["params"]["taskId"], other);
    let of_ended = s.asked("tasks/get").into_iter();
    assert_eq!(of_ended.filter(|it| it["params"]["taskId"] == "ended").count(), 1);
    assert_eq!(client.ids().first(), Some(&ended));
}

// PRO-43
#[test]
fn status_of_a_task_passes_through_a_pipe() {
    let s = Server::start();
    let mut pipe = Pipe::open(json!({"mcpServers": {"s": s.entry()}}));
    let ask = |method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": method, "method": method, "params": params}).to_string()
    };
    let hello = json!({"protocolVersion": VERSION, "capabilities": {},
        "clientInfo": {"name": "e2e", "version": "1"}});
    pipe.ask(&ask("initialize", hello));
    let call = |arguments: Value| {
        let mut params = params_of_call("/mcp", "s", arguments);
        params["task"] = json!({});
        ask("tools/call", params)
    };
    let made: Value = serde_json::from_str(&pipe.ask(&call(json!({"id": "p"})))).expect("JSON");
    let sealed = made["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{made}"));
    s.set("p", &working("p"));
    pipe.send(&call(json!({"id": "q", "first": [status("p")]})));
    // The answer and the notification, in any order.
    let lines = [(); 2].map(|()| pipe.line().expect("a line"));
    let lines = lines.map(|line| serde_json::from_slice::<Value>(&line).expect("JSON"));
    let notified = lines.iter().find(|line| line.get("id").is_none()).expect("a notification");
    let expected: Value = serde_json::from_str(&listed(sealed)).expect("JSON");
    assert_eq!(notified["params"], expected, "{notified}");
}

// PRO-43
#[test]
fn related_task_of_a_message_has_the_id_known_to_its_receiver() {
    let s = Server::start();
    let proxy = Proxy::start(json!({"s": s.entry()}));
    let [alice, bob] = ["alice", "bob"].map(|name| create_token(&proxy, &[name]));
    let client = Client::open(&proxy, "/mcp/all", &alice);
    let foreign = Client::open(&proxy, "/mcp/all", &bob).create("s", "foreign");
    let made = client.call("s", json!({"id": "own"}));
    let sealed = made["task"]["taskId"].as_str().expect("an id").to_owned();
    let related = |id: &str| json!({RELATED: {"taskId": id}, "k": [1]});
    assert_eq!(made["_meta"][RELATED]["taskId"], *sealed, "{made}");
    // In a request of the client.
    for (id, expected) in
        [(&*sealed, related("own")), (&foreign, json!({"k": [1]})), ("own", json!({"k": [1]}))]
    {
        let mut params = params_of_call("/mcp/all", "s", json!({"id": "more"}));
        params["_meta"] = related(id);
        client.ask("tools/call", params);
        let called = s.asked("tools/call").pop().expect("a call");
        let meta = &called["params"]["_meta"];
        assert_eq!((&meta[RELATED], &meta["k"]), (&expected[RELATED], &expected["k"]), "{id}");
    }
    let record = until("the related call is recorded", || {
        let records = proxy.activity("type=tool_call&server=s&tool=slow").into_iter();
        records.into_iter().find(|it| it["metadata"].to_string().contains(RELATED))
    });
    let text = record.to_string();
    assert!(text.contains(r#""own""#) && !text.contains(&sealed), "{record}");
    // In requests of the server, and in the answers to them.
    let asks = |id: &str, of: &str| {
        json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {
            "message": of, "requestedSchema": {"type": "object", "properties": {}},
            "_meta": related(of)}})
    };
    *lock(&s.state.questions) = vec![asks("q1", "own"), asks("q2", "foreign")];
    let mut events = Events::of(client.begin("tasks/result", json!({"taskId": sealed})));
    let mut asked = BTreeMap::new();
    for _ in 0..2 {
        let question = events.message();
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {
            "action": "accept", "content": {}, "_meta": related(&sealed)}});
        assert_eq!(client.send("POST", &answer.to_string()).response().status, 202);
        let about = question["params"]["message"].as_str().expect("a text").to_owned();
        asked.insert(about, question["params"]["_meta"].clone());
    }
    assert_eq!(asked["own"], related(&sealed));
    assert_eq!(asked["foreign"], json!({"k": [1]}), "a task of another principal");
    assert_eq!(events.message()["result"]["_meta"], json!({RELATED: {"taskId": sealed}}));
    let answers = lock(&s.state.answers).clone();
    let answered = |id: &str| {
        let answer = answers.iter().find(|it| it["id"] == id).unwrap_or_else(|| panic!("{id}"));
        answer["result"]["_meta"].clone()
    };
    assert_eq!((answered("q1"), answered("q2")), (related("own"), json!({"k": [1]})));
}
