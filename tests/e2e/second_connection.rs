//! Servers of both protocol families: the second connection, which uses the legacy family, for clients that can be
//! asked only over it.

use std::path::Path;

use serde_json::{Value, json};

use crate::between_families::Session;
use crate::harness::{
    API_KEY, Client, Events, HttpStub, Pipe, Proxy, Received, Recorder, Reply, ask_modern,
    children_of, configure, is_running, mcpproxy, server_of_both_families, stub, stub_stdio, until,
};
use crate::request_state::{answer as modern_server, entry};
use crate::server_questions::Holder;
use crate::subscriptions::{listen, updated_uri};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";
const ASK: &str = "elicitation/create";
/// Text that the users of the clients enter.
const GIVEN: &str = "Ada";

fn able(proxy: &Proxy) -> Session<'_> {
    Session::open(proxy, LEGACY, json!({"elicitation": {}}))
}

/// State of the server `s` as reported over REST.
fn server(proxy: &Proxy) -> Value {
    proxy.api("servers")["servers"][0].clone()
}

fn second(proxy: &Proxy) -> Value {
    server(proxy)["second_connection"].clone()
}

/// Arguments with which the stub's tool `ask` asks its client.
fn ask() -> Value {
    json!({"ask": ASK})
}

/// Calls a tool that asks `session`, and answers. Returns the text of the result.
fn asked(session: &Session<'_>, tool: &str, args: Value) -> String {
    let mut events = Events::of(session.call(tool, args));
    let question = events.message();
    assert_eq!(question["method"], ASK, "{question}");
    session.answer(
        &question,
        json!({"action": "accept", "content": {"username": GIVEN, "email": "a"}}),
    );
    events.message()["result"].to_string()
}

/// Counters of the stub process that serves this client.
fn stats(session: &Session<'_>) -> Value {
    session.call("s:stats", json!({})).response().json()["result"]["structuredContent"].take()
}

/// A server over HTTP. Returns its entry and its process.
fn http(flags: &[&str]) -> (Value, HttpStub) {
    let server = HttpStub::start(&[&["--both"], flags].concat());
    (server.entry(), server)
}

fn with(mut entry: Value, key: &str, value: Value) -> Value {
    entry[key] = value;
    entry
}

// PRO-40
#[test]
fn legacy_client_is_asked_by_a_server_of_both_families() {
    let (over_http, _server) = http(&[]);
    let (rmcp, _backend) = server_of_both_families();
    let backend = stub().with_file_name("conformance_backend");
    for (entry, tool, args) in [
        (over_http, "s:ask", ask()),
        (stub_stdio(&["--both"]), "s:ask", ask()),
        (rmcp, "s:test_elicitation", json!({"message": "Who?"})),
        (
            json!({"command": backend, "args": ["stdio"]}),
            "s:test_elicitation",
            json!({"message": "Who?"}),
        ),
    ] {
        let proxy = Proxy::start(json!({"s": entry}));
        assert_eq!(server(&proxy)["protocol_version"], MODERN, "{entry}");
        assert_eq!(second(&proxy), Value::Null, "{entry}: it is opened by a call");
        let session = able(&proxy);
        for _ in 0..2 {
            let result = asked(&session, tool, args.clone());
            assert!(result.contains(GIVEN), "{entry}: {result}");
        }
        let expected = json!({"state": "connected", "protocol_version": LEGACY, "reason": ""});
        assert_eq!(second(&proxy), expected, "{entry}");
        let of_stdio = usize::from(entry.get("command").is_some());
        assert_eq!(children_of(proxy.process.0.id()).len(), 2 * of_stdio, "one is enough");
        let list = proxy.cli(&["upstream", "list"]).stdout;
        assert!(list.contains("s: second connection open (2025-11-25)"), "{list}");
    }
}

// PRO-40
#[test]
fn clients_that_cannot_be_asked_open_no_second_connection() {
    let (entry, _server) = http(&[]);
    let proxy = Proxy::start(json!({"s": entry}));
    let none = Session::open(&proxy, LEGACY, json!({}));
    let level = none.ask("logging/setLevel", &json!({"level": "debug"})).response();
    assert_eq!(level.json()["result"], json!({}), "{}", level.text());
    let mut plain = proxy.client();
    let params = json!({"name": "s__read_item", "arguments": {}, "_meta": {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "roots": {}},
    }});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let headers = [
        ("MCP-Protocol-Version", MODERN),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "s__read_item"),
    ];
    let answer = proxy.request("POST", "/mcp/all", &headers, call.to_string().as_bytes());
    assert_eq!(answer.json()["result"]["resultType"], "complete", "{}", answer.text());
    // The client does not accept event streams, so it cannot be asked a question.
    let json_only = plain.read("s:read_item", json!({}));
    assert!(json_only["structuredContent"].is_object(), "{json_only}");
    let counted = stats(&none);
    assert_eq!(counted["initialized"], 0, "{counted}");
    assert_eq!(second(&proxy), Value::Null);
    // Calls of a client that can be asked use the second connection, calls of other clients the first one.
    let able = able(&proxy);
    assert_eq!(stats(&able)["initialized"], 1);
    none.call("s:read_item", json!({})).response();
    let before = stats(&none);
    assert_eq!((&before["initialized"], &before["sessions"]), (&json!(1), &json!(1)));
}

// PRO-40
#[test]
fn second_connection_is_closed_when_idle_and_opened_again() {
    let (over_http, _server) = http(&[]);
    for entry in [over_http, stub_stdio(&["--both"])] {
        let entry = with(entry, "second_idle_timeout", json!("1ms"));
        let proxy = Proxy::start(json!({"s": entry}));
        let (able, other) = (able(&proxy), Session::open(&proxy, LEGACY, json!({})));
        let closed = || {
            until("it is closed", || second(&proxy).is_null().then_some(()));
            until("its process ends", || {
                (children_of(proxy.process.0.id()).len() < 2).then_some(())
            });
        };
        for _ in 0..2 {
            // The connection is not idle while the client of a call is asked, regardless of how long that takes.
            let mut events = Events::of(able.call("s:ask", ask()));
            let question = events.message();
            assert_eq!(question["method"], ASK, "{question}");
            for _ in 0..20 {
                assert_eq!(second(&proxy)["state"], "connected", "{entry}");
            }
            able.answer(&question, json!({"action": "decline"}));
            assert_eq!(
                events.message()["result"]["structuredContent"]["answered"]["action"],
                "decline"
            );
            closed();
        }
        if entry.get("url").is_some() {
            let counted = until("the sessions end", || {
                let counted = stats(&other);
                (counted["sessions"] == 0).then_some(counted)
            });
            assert_eq!(counted["initialized"], 2);
        }
    }
}

// PRO-40
#[test]
fn protocol_era_setting_of_a_server_is_obeyed() {
    let both = || stub_stdio(&["--both"]);
    let proxy = Proxy::start(json!({"s": with(both(), "protocol_era", json!("legacy"))}));
    assert_eq!(server(&proxy)["protocol_version"], LEGACY);
    let session = able(&proxy);
    assert!(asked(&session, "s:ask", ask()).contains(GIVEN));
    assert_eq!(second(&proxy), Value::Null);
    assert_eq!(children_of(proxy.process.0.id()).len(), 1);

    let proxy = Proxy::start(json!({"s": with(both(), "protocol_era", json!("modern"))}));
    assert_eq!(server(&proxy)["protocol_version"], MODERN);
    let refused = able(&proxy).call("s:ask", ask()).response().json();
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    assert_eq!(second(&proxy), Value::Null);
    assert_eq!(children_of(proxy.process.0.id()).len(), 1);

    let only_legacy = with(stub_stdio(&[]), "protocol_era", json!("modern"));
    let proxy = Proxy::start(json!({"s": only_legacy}));
    let state = server(&proxy);
    assert_eq!(state["state"], "failed", "{state}");
    assert!(state["reason"].as_str().unwrap().contains("refused server/discover"), "{state}");
}

/// Modern server that lists these revisions and refuses `initialize`.
fn refusing(listed: &[&str], number: usize, request: &Received) -> Reply {
    let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let result = match message["method"].as_str() {
        Some("server/discover") => json!({"supportedVersions": listed,
            "capabilities": {"tools": {}}, "resultType": "complete"}),
        Some("tools/call") => {
            json!({"content": [{"type": "text", "text": "modern"}], "resultType": "complete"})
        }
        _ => return modern_server(number, request),
    };
    let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    Reply::Http("200 OK", "content-type: application/json\r\n", body.to_string().into())
}

/// Calls the tool `s:ask`, and asserts that the answer comes over the first connection.
fn answered_by_first(session: &Session<'_>) {
    let answer = session.call("s:ask", json!({})).response().json();
    assert_eq!(answer["result"]["content"][0]["text"], "modern", "{answer}");
}

fn initialized(server: &Recorder) -> usize {
    let received = server.received().into_iter();
    received.filter(|it| String::from_utf8_lossy(&it.body).contains(r#""initialize""#)).count()
}

// PRO-40
#[test]
fn calls_use_the_first_connection_if_the_second_cannot_be_opened() {
    for (listed, state) in [(&[MODERN][..], "unsupported"), (&[MODERN, LEGACY], "failed")] {
        let upstream = Recorder::start(move |number, request| refusing(listed, number, request));
        let proxy = Proxy::start(json!({"s": entry(&upstream)}));
        let session = able(&proxy);
        for _ in 0..3 {
            answered_by_first(&session);
        }
        assert_eq!(initialized(&upstream), 1, "{state}: the failure is remembered");
        let shown = second(&proxy);
        assert_eq!(shown["state"], state, "{shown}");
        assert_ne!(shown["reason"], "", "{shown}");
        let list = proxy.cli(&["upstream", "list"]).stdout;
        assert_eq!(list.contains("s: second connection failed: "), state == "failed", "{list}");
    }
}

// PRO-40
#[test]
fn call_waits_for_half_of_its_time_for_a_second_connection_that_does_not_open() {
    let upstream = Recorder::start(|number, request: &Received| {
        match String::from_utf8_lossy(&request.body).contains(r#""initialize""#) {
            true => Reply::Hang,
            false => refusing(&[MODERN, LEGACY], number, request),
        }
    });
    let entry = with(entry(&upstream), "call_timeout", json!("1s"));
    let proxy = Proxy::start(json!({"s": entry}));
    let session = able(&proxy);
    for _ in 0..2 {
        answered_by_first(&session);
    }
    assert_eq!(initialized(&upstream), 1);
    assert_eq!(second(&proxy)["state"], "connecting");
}

/// A server of both families over stdio that ends after `initialize`, or after the first message that follows it.
const SHORT_LIVED: &str = r#"
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  case $line in
    *server/discover*) out='{"supportedVersions":["2026-07-28","2025-11-25"],"capabilities":{"tools":{}},"resultType":"complete"}';;
    *tools/list*) out='{"tools":[{"name":"ask","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}],"resultType":"complete"}';;
    *'"initialize"'*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{}}}"; read -r line; read -r line; exit 3;;
    *tools/call*) out='{"content":[{"type":"text","text":"modern"}],"resultType":"complete"}';;
    *) continue;;
  esac
  echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$out}"
done
"#;

// PRO-40
#[test]
fn second_connection_that_does_not_last_is_not_opened_again_at_once() {
    let command = json!({"command": "sh", "args": ["-c", SHORT_LIVED]});
    let proxy = Proxy::start(json!({"s": command}));
    let session = able(&proxy);
    // The second connection is lost during the call.
    session.call("s:ask", json!({})).response();
    until("the loss is noticed", || (second(&proxy)["state"] == "failed").then_some(()));
    for _ in 0..2 {
        answered_by_first(&session);
    }
}

// PRO-40, PRO-6
#[test]
fn question_over_the_second_connection_is_sent_only_to_the_client_of_the_call() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--both"])}));
    let (a, b) = (
        Holder::open(&proxy, "a", json!({"elicitation": {}})),
        Holder::open(&proxy, "b", json!({"elicitation": {}, "sampling": {}})),
    );
    let other = Holder::open(&proxy, "c", json!({}));
    let held = |holder: &Holder| {
        until("the server has the call", || {
            let counted = holder.call("s:stats", json!({})).response().json();
            let counted = &counted["result"]["structuredContent"];
            (counted["abandoned"].as_u64() >= Some(1)).then_some(())
        });
    };
    // A call over the first connection does not count: its client cannot be the one that is asked.
    let mut beside = other.call("s:never", json!({}));
    held(&other);
    let mut events = Events::of(a.call("s:ask", ask()));
    let question = events.message();
    assert_eq!(question["method"], ASK, "{question}");
    let result = json!({"action": "decline"});
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
    // An answer by another principal to this id is ignored.
    assert_eq!(b.send(&answer).response().status, 202);
    assert_eq!(a.send(&answer).response().status, 202);
    assert_eq!(events.message()["result"]["structuredContent"]["answered"], result);
    // Calls of two principals use the second connection, so neither is asked.
    let mut unanswered = b.call("s:never", json!({}));
    held(&b);
    let refused = a.answered(ASK);
    assert_eq!(refused["code"], -32603, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("2 calls are in flight"), "{refused}");
    b.cancel();
    other.cancel();
    for held in [&mut unanswered, &mut beside] {
        let seen = held.response().text();
        assert!(seen.contains("cancelled") && !seen.contains("elicitation"), "{seen}");
    }
}

// PRO-40
#[test]
fn second_connection_ends_with_the_first() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--both"])}));
    let children = || children_of(proxy.process.0.id());
    let session = able(&proxy);
    asked(&session, "s:ask", ask());
    let both = children();
    assert_eq!(both.len(), 2);
    let gone = |pids: &[String]| {
        until("they end", || pids.iter().all(|pid| !is_running(pid)).then_some(()));
    };
    let restarted =
        proxy.request("POST", "/api/v1/servers/s/restart", &[("X-API-Key", API_KEY)], b"");
    assert_eq!(restarted.status, 200, "{}", restarted.text());
    gone(&both);
    // A call opens the second connection again, in addition to the new first one.
    asked(&session, "s:ask", ask());
    let both = children();
    assert_eq!(both.len(), 2);
    let disabled = proxy.cli(&["upstream", "disable", "s"]);
    assert_eq!(disabled.code, Some(0), "{}", disabled.stderr);
    gone(&both);
    let enabled = proxy.cli(&["upstream", "enable", "s"]);
    assert_eq!(enabled.code, Some(0), "{}", enabled.stderr);
    until("it is connected again", || (server(&proxy)["state"] == "connected").then_some(()));
    asked(&session, "s:ask", ask());
    let both = children();
    assert_eq!(both.len(), 2);
    proxy.end();
    gone(&both);
}

// PRO-40
#[test]
fn level_of_a_client_is_set_on_the_second_connection() {
    let (entry, _server) = http(&[]);
    let proxy = Proxy::start(json!({"s": entry}));
    let (first, other) = (able(&proxy), able(&proxy));
    let before = |session: &Session<'_>| {
        let answer = session.call("s:received", json!({})).response().json();
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        let before: Value = serde_json::from_str(text).unwrap();
        (before["method"].clone(), before["params"]["level"].clone())
    };
    assert_ne!(before(&first).0, "logging/setLevel", "it has set none");
    for (session, level, reaches) in
        [(&first, "warning", true), (&other, "error", false), (&other, "debug", true)]
    {
        let answer = session.ask("logging/setLevel", &json!({"level": level})).response();
        assert_eq!(answer.json()["result"], json!({}), "{}", answer.text());
        let (method, set) = before(session);
        assert_eq!(method == "logging/setLevel" && set == level, reaches, "{level}: {method}");
    }
}

// PRO-40
#[test]
fn results_that_the_legacy_family_cannot_carry_arrive_over_the_first_connection() {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("tools.json");
    let tool = |name: &str, schema: Value| {
        json!({"name": name, "inputSchema": {"type": "object"}, "outputSchema": schema,
            "annotations": {"readOnlyHint": true}})
    };
    let listed = json!([
        tool("added_list", json!({"type": "array"})),
        tool("added_object", json!({"type": "object"})),
    ]);
    std::fs::write(&tools, listed.to_string()).unwrap();
    let (entry, _server) = http(&["--tools", tools.to_str().unwrap()]);
    let proxy = Proxy::start(json!({"s": entry}));
    let session = able(&proxy);
    for (tool, state) in [("s:added_list", Value::Null), ("s:added_object", json!("connected"))] {
        session.call(tool, json!({})).response();
        assert_eq!(second(&proxy)["state"], state, "{tool}");
    }
}

// PRO-40
#[test]
fn resources_and_prompts_are_read_over_the_second_connection() {
    let (entry, _server) = http(&["--offers"]);
    let proxy = Proxy::start(json!({"s": entry}));
    for (method, params) in [
        ("resources/read", json!({"uri": "mcpproxy://s/test://shared"})),
        ("prompts/get", json!({"name": "s__greet", "arguments": {}})),
    ] {
        let session = able(&proxy);
        let answer = session.ask(method, &params).response().json();
        assert!(answer["result"].is_object(), "{method}: {answer}");
        assert_eq!(second(&proxy)["state"], "connected", "{method}");
    }
}

/// A server of both families over stdio. It reports changes of resources in the legacy family only, for each
/// subscription after a delay. `$1` is the file to which it logs its requests, `$2` its resource capabilities in the
/// legacy family, and `$3` the revisions that it lists after the modern one.
const REPORTS_TO_LEGACY: &str = r#"
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  case $line in
    *server/discover*) out='{"supportedVersions":["2026-07-28"'$3'],"capabilities":{"resources":{}},"resultType":"complete"}';;
    *tools/list*) out='{"tools":[],"resultType":"complete"}';;
    *'"initialize"'*) echo initialized >> "$1"; out='{"protocolVersion":"2025-11-25","capabilities":{"resources":'$2'}}';;
    *resources/unsubscribe*) echo unsubscribed >> "$1"; out='{}';;
    *resources/subscribe*)
      echo subscribed >> "$1"
      (sleep 0.5; echo '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}') &
      out='{}';;
    *) continue;;
  esac
  echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$out}"
done
"#;

const SUBSCRIBES: &str = r#"{"subscribe":true}"#;
const LISTED: &str = r#","2025-11-25""#;

/// `mcpServers` entry of that server.
fn reports_to_legacy(log: &Path, in_legacy: &str, listed: &str) -> Value {
    let args = json!(["-c", REPORTS_TO_LEGACY, "sh", log, in_legacy, listed]);
    json!({"command": "sh", "args": args})
}

// PRO-40
#[test]
fn legacy_client_subscribes_where_only_the_legacy_family_reports_changes() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let logged = |count: usize, word: &str| {
        until("the server is asked", || {
            let lines = std::fs::read_to_string(&log).unwrap_or_default();
            (lines.lines().filter(|line| *line == word).count() == count).then_some(())
        });
    };
    let entry = reports_to_legacy(&log, SUBSCRIBES, LISTED);
    // The idle timeout is so short that only the subscription keeps the connection open until the report.
    let proxy = Proxy::start(json!({"s": with(entry, "second_idle_timeout", json!("1ms"))}));
    let mut client = proxy.client();
    let mut stream = listen(&proxy, &client);
    let uri = json!({"uri": "mcpproxy://s/a:b"});
    assert_eq!(client.ask("resources/subscribe", uri.clone())["result"], json!({}));
    assert_eq!(updated_uri(&mut stream), "mcpproxy://s/a:b");
    assert_eq!(second(&proxy)["state"], "connected");
    logged(1, "subscribed");
    // The subscription is renewed over the next connection. Changes that may have occurred in between are reported.
    proxy.cli(&["upstream", "restart", "s"]);
    logged(2, "subscribed");
    assert_eq!(updated_uri(&mut stream), "mcpproxy://s/a:b");
    assert_eq!(client.ask("resources/unsubscribe", uri)["result"], json!({}));
    logged(1, "unsubscribed");
    until("it is closed", || second(&proxy).is_null().then_some(()));
}

// PRO-40, PRO-41
#[test]
fn subscriptions_of_a_single_server_are_declared_to_the_clients_for_which_they_work() {
    let folder = tempfile::tempdir().unwrap();
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": LEGACY, "capabilities": {},
        "clientInfo": {"name": "e2e", "version": "1"}}})
    .to_string();
    let declared = |answer: &Value| answer["result"]["capabilities"]["resources"].clone();
    for (name, in_legacy, listed, expected, initialized) in [
        ("reports", SUBSCRIBES, LISTED, true, 1),
        ("reports_nothing", "{}", LISTED, false, 1),
        // This server lists no legacy revision and would probably refuse `initialize`.
        ("lists_no_legacy", SUBSCRIBES, "", false, 0),
    ] {
        let log = folder.path().join(name);
        let servers = json!({"s": reports_to_legacy(&log, in_legacy, listed)});
        let times = || {
            let asked = std::fs::read_to_string(&log).unwrap_or_default();
            asked.lines().filter(|line| *line == "initialized").count()
        };
        let alone = tempfile::tempdir().unwrap();
        let file = configure(json!({"mcpServers": servers}), alone.path());
        let mut command = mcpproxy();
        command.arg("--config").arg(&file).args(["stdio", "--server", "s"]);
        let mut pipe = Pipe::launch(&mut command);
        let opened: Value = serde_json::from_str(&pipe.ask(&hello)).unwrap();
        let of_pipe = json!({"subscribe": expected, "listChanged": true});
        assert_eq!((declared(&opened), times()), (of_pipe, initialized), "{name}: {opened}");
        drop(pipe);
        let proxy = Proxy::start(servers);
        let path = "/mcp/server/s";
        let expected = json!({"subscribe": expected, "listChanged": true});
        let modern = ask_modern(&proxy, path, "server/discover", json!({}), &[]).json();
        let in_modern = json!({"subscribe": false, "listChanged": true});
        assert_eq!(declared(&modern), in_modern, "{name}: {modern}");
        // The server is asked for its capabilities only once.
        for _ in 0..2 {
            let opened = proxy.request("POST", path, &[], hello.as_bytes()).json();
            assert_eq!(declared(&opened), expected, "{name}: {opened}");
        }
        // The other endpoints declare the state that is known by now.
        for path in ["/mcp", "/mcp/all"] {
            let opened = proxy.request("POST", path, &[], hello.as_bytes()).json();
            assert_eq!(declared(&opened), expected, "{name}: {opened}");
        }
        assert_eq!(times(), 2 * initialized, "{name}");
        if !listed.is_empty() {
            let mut client = Client::open_at(proxy.port, path);
            let subscribed = client.ask("resources/subscribe", json!({"uri": "a:b"}));
            assert_eq!(subscribed.get("result").is_some(), expected["subscribe"] == true, "{name}");
        }
    }
}
