//! Input that a server of 2026-07-28 requests from a client that uses `initialize`. The client is asked by requests of
//! its own revision during the call, the server gets the answers in a repeated request, and both sides have bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::between_families::{Session, read};
use crate::harness::{
    Events, Pipe, Proxy, Received, Recorder, Reply, Response, error_text, modern_server,
    modern_server_stdio, until,
};
use crate::reload::reload;
use crate::request_state::{STATE, answer as asks_once, entry, requests, returned};

const MODERN: &str = "2026-07-28";
const BOTH: [&str; 2] = ["2025-06-18", "2025-11-25"];
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const FORM: &str = r#"{"method":"elicitation/create","params":{"mode":"form","message":"Who?","requestedSchema":{"type":"object","properties":{}}}}"#;
const SAMPLING: &str =
    r#"{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1.0}}"#;
const DONE: &str = r#"{"content":[],"resultType":"complete"}"#;

/// A modern server whose tools answer with the argument `script`, which has the raw result of each round. The state of
/// a round, if any, is the number of the round.
fn scripted(_: usize, request: &Received) -> Reply {
    let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let Some(id) = message.get("id") else { return Reply::Http("202 Accepted", "", Vec::new()) };
    let typed = |mut result: Value| {
        result["resultType"] = json!("complete");
        (result["ttlMs"], result["cacheScope"]) = (json!(0), json!("private"));
        result.to_string()
    };
    let result = match message["method"].as_str().unwrap_or_default() {
        "server/discover" => {
            typed(json!({"supportedVersions": [MODERN], "capabilities": {"tools": {}}}))
        }
        "tools/list" => {
            let schema = json!({"type": "object"});
            let reads = json!({"readOnlyHint": true});
            let output = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
            typed(json!({"tools": [
                {"name": "ask", "inputSchema": schema, "annotations": reads},
                {"name": "typed", "inputSchema": schema, "outputSchema": output, "annotations": reads},
            ]}))
        }
        "tools/call" => {
            let params = &message["params"];
            let round = match (params["requestState"].as_str(), params.get("inputResponses")) {
                (Some(state), _) => state.parse().unwrap_or_default(),
                (None, Some(_)) => 1,
                (None, None) => 0,
            };
            let script = params["arguments"]["script"].as_array().expect("a script");
            let result = script.get(round).or(script.last()).expect("a result");
            result.as_str().expect("a raw result").to_owned()
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

/// A result with input requests.
fn asking(requests: &[&str]) -> String {
    let all = requests.iter().enumerate().map(|(n, request)| format!("\"q{n}\":{request}"));
    let all = all.collect::<Vec<_>>().join(",");
    format!(r#"{{"inputRequests":{{{all}}},"resultType":"input_required"}}"#)
}

fn script(results: &[&str]) -> Value {
    json!({ "script": results })
}

/// Params of all calls that reached the server.
fn calls(server: &Recorder) -> Vec<Value> {
    let bodies = server.received().into_iter().map(|it| it.body);
    let mut messages: Vec<Value> =
        bodies.filter_map(|body| serde_json::from_slice(&body).ok()).collect();
    messages.retain(|message| message["method"] == "tools/call");
    messages.into_iter().map(|mut message| message["params"].take()).collect()
}

fn everything() -> Value {
    json!({"elicitation": {}, "sampling": {}, "roots": {}})
}

/// Error text of a failed call.
fn failure(response: &Response) -> String {
    error_text(&response.json()["result"]).to_owned()
}

// PRO-37
#[test]
fn modern_server_gets_input_from_a_legacy_client_over_http() {
    let server = Recorder::start(asks_once);
    let proxy = Proxy::start(json!({"s": entry(&server)}));
    for version in BOTH {
        for (path, method, params) in requests("s", "ask") {
            let session = Session::open_at(path, &proxy, version, json!({"elicitation": {}}));
            let before = (returned(&server).len(), server.received().len());
            let request = json!({"jsonrpc": "2.0", "id": "c", "method": method, "params": params});
            let mut events = Events::of(session.send(&request));
            let asked = events.message();
            assert_eq!(asked["method"], "elicitation/create", "{version} {method}: {asked}");
            let mut form = json!({"message": "Who?",
                "requestedSchema": {"type": "object", "properties": {}}});
            if version == "2025-11-25" {
                form["mode"] = json!("form");
            }
            assert_eq!(asked["params"], form, "in the form of its revision");
            assert_eq!(returned(&server).len(), before.0, "it has not been answered yet");
            session.answer(&asked, json!({"action": "accept", "content": {"n": 1.0}}));
            let last = events.message();
            assert_eq!(last["id"], "c");
            assert_eq!(last["result"]["resultType"], "complete", "{last}");
            assert!(events.next().is_none());
            let sent = returned(&server).split_off(before.0);
            assert_eq!(sent.len(), 1, "{sent:?}");
            assert!(sent[0].contains(&format!(r#""requestState":{STATE}"#)), "{}", sent[0]);
            let inputs = r#""inputResponses":{"who":{"action":"accept","content":{"n":1.0}}}"#;
            assert!(sent[0].contains(inputs), "{}", sent[0]);
            for request in server.received().split_off(before.1) {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                if body["method"] == "initialize" {
                    // The proxy checks whether the server supports the client's family (PRO-40).
                    continue;
                }
                let declared = &body["params"]["_meta"][CAPABILITIES];
                assert_eq!(*declared, json!({"elicitation": {"form": {}}}), "{body}");
            }
            let mut records = proxy.activity(&format!("session_id={}", session.id()));
            records.retain(|record| {
                record["type"] != "policy_decision" && record["type"] != "server_question"
            });
            let [record] = &records[..] else { panic!("one record: {records:?}") };
            assert_eq!(record["metadata"]["input_rounds"], 1, "{record}");
            assert_eq!(record["status"], "success", "{record}");
            assert!(!record["response"].to_string().contains("input_required"), "{record}");
        }
    }
}

// PRO-37
#[test]
fn modern_server_gets_input_from_a_legacy_client_over_stdio() {
    let server = Recorder::start(scripted);
    let servers = json!({"s": entry(&server), "child": modern_server_stdio()});
    let mut pipe = Pipe::open(json!({"mcpServers": servers}));
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": everything(),
        "clientInfo": {"name": "e2e", "version": "1"}}});
    pipe.ask(&hello.to_string());
    let is_notification = |line: &Value| {
        line["method"].as_str().is_some_and(|method| method.starts_with("notifications/"))
    };
    let line = |pipe: &mut Pipe| loop {
        let line: Value = serde_json::from_slice(&pipe.line().expect("a line")).expect("JSON");
        if !is_notification(&line) {
            break line;
        }
    };
    let call = |tool: &str, args: Value| {
        let params = read(tool, args);
        json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params}).to_string()
    };
    let state = r#"{"resultType":"input_required","requestState":"\u0032"}"#;
    pipe.send(&call("s:ask", script(&[&asking(&[FORM, SAMPLING]), state, DONE])));
    let asked = [line(&mut pipe), line(&mut pipe)];
    assert_eq!(asked[0]["method"], "elicitation/create", "{asked:?}");
    assert_eq!(asked[1]["method"], "sampling/createMessage", "{asked:?}");
    assert_ne!(asked[0]["id"], asked[1]["id"]);
    // Answers may arrive in any order.
    let model =
        json!({"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"});
    for (question, result) in
        [(&asked[1], model.clone()), (&asked[0], json!({"action": "decline"}))]
    {
        pipe.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}).to_string());
    }
    assert_eq!(line(&mut pipe)["result"], serde_json::from_str::<Value>(DONE).unwrap());
    let calls = calls(&server);
    assert_eq!(calls[1]["inputResponses"], json!({"q0": {"action": "decline"}, "q1": model}));
    assert_eq!(calls[1].get("requestState"), None, "the server gave none");
    assert_eq!((calls.len(), &calls[2]["requestState"]), (3, &json!("2")));
    assert_eq!(calls[2].get("inputResponses"), None, "rounds are independent");
    // A child process written with rmcp.
    pipe.send(&call("child:test_input_required_result_multi_round", json!({})));
    for content in [json!({"name": "Ada"}), json!({"color": "blue"})] {
        let asked = line(&mut pipe);
        let answer = json!({"action": "accept", "content": content});
        pipe.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": answer}).to_string());
    }
    let last = line(&mut pipe);
    let text = last["result"]["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.contains("blue"), "{last}");
    // A client that has closed its input can no longer answer; its last line is still processed.
    let asked = [(); 2].map(|()| {
        pipe.send(&call("s:ask", script(&[&asking(&[FORM]), DONE])));
        line(&mut pipe)
    });
    let answer = json!({"jsonrpc": "2.0", "id": asked[0]["id"], "result": {"action": "accept"}});
    pipe.send(&answer.to_string());
    let rest = pipe.close();
    let rest = rest.iter().map(|line| serde_json::from_slice::<Value>(line).unwrap());
    let rest = rest.filter(|line| !is_notification(line));
    let (done, failed): (Vec<Value>, Vec<Value>) =
        rest.partition(|it| it["result"]["resultType"] == "complete");
    assert_eq!((done.len(), failed.len()), (1, 1), "{done:?} {failed:?}");
    assert!(error_text(&failed[0]["result"]).contains("the client went away"), "{failed:?}");
}

// PRO-37
#[test]
fn server_written_with_rmcp_gets_all_kinds_of_input() {
    let (entry, _server) = modern_server();
    let proxy = Proxy::start(json!({"m": entry}));
    let session = Session::open(&proxy, "2025-11-25", everything());
    let tool = "m:test_input_required_result_multiple_inputs";
    let mut events = Events::of(session.call(tool, json!({})));
    for _ in 0..3 {
        let asked = events.message();
        let result = match asked["method"].as_str().unwrap() {
            "elicitation/create" => json!({"action": "accept", "content": {"name": "Ada"}}),
            "sampling/createMessage" => {
                json!({"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m"})
            }
            "roots/list" => json!({"roots": [{"uri": "file:///a"}]}),
            other => panic!("{other}"),
        };
        session.answer(&asked, result);
    }
    let last = events.message();
    let text = last["result"]["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.contains("Ada"), "{last}");
    let record = &proxy.activity("type=tool_call")[0];
    assert_eq!(record["metadata"]["input_rounds"], 1, "{record}");
}

// PRO-37
#[test]
fn missing_capability_of_a_client_is_named_and_no_question_is_sent() {
    let server = Recorder::start(scripted);
    let proxy = Proxy::start(json!({"s": entry(&server)}));
    let url = r#"{"method":"elicitation/create","params":{"mode":"url","message":"m","url":"https://a.example/"}}"#;
    let roots = r#"{"method":"roots/list"}"#;
    let forms = json!({"elicitation": {}});
    for (version, capabilities, requests, required) in [
        ("2025-11-25", json!({}), &[FORM][..], json!({"elicitation": {"form": {}}})),
        (
            "2025-06-18",
            forms.clone(),
            &[FORM, SAMPLING, roots],
            json!({"sampling": {}, "roots": {}}),
        ),
        // Elicitation by URL does not exist in this revision.
        (
            "2025-06-18",
            json!({"elicitation": {"url": {}}}),
            &[url],
            json!({"elicitation": {"url": {}}}),
        ),
        ("2025-11-25", forms, &[url], json!({"elicitation": {"url": {}}})),
    ] {
        let session = Session::open(&proxy, version, capabilities);
        let answer = session.call("s:ask", script(&[&asking(requests), DONE])).response();
        let error = answer.json()["error"].take();
        assert_eq!(error["code"], -32021, "{}", answer.text());
        assert_eq!(error["data"], json!({"requiredCapabilities": required}), "{error}");
        let text = error["message"].as_str().unwrap();
        assert!(text.starts_with("s: ask: the server asks the client for input"), "{text}");
        let record = &proxy.activity(&format!("type=tool_call&session_id={}", session.id()))[0];
        assert_eq!((&record["status"], &record["error_message"]), (&json!("error"), &json!(text)));
    }
    // A client that does not accept event streams cannot be asked, so the proxy declares no capabilities for it.
    let session = Session::open(&proxy, "2025-11-25", everything());
    let params = read("s:ask", script(&[&asking(&[FORM]), DONE]));
    let call = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params});
    let json_only = [("Accept", "application/json")];
    let answer = session.send_with(&json_only, &call).response().json();
    assert_eq!(answer["error"]["code"], -32021, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("no event stream"), "{answer}");
    let calls = calls(&server);
    assert_eq!(calls.len(), 5, "no call was repeated");
    assert_eq!(calls[4]["_meta"][CAPABILITIES], json!({}));
    // The question has the declared mode, and the id that this revision requires.
    let session = Session::open(&proxy, "2025-11-25", json!({"elicitation": {"url": {}}}));
    let mut events = Events::of(session.call("s:ask", script(&[&asking(&[url]), DONE])));
    let asked = events.message();
    assert!(asked["params"]["elicitationId"].is_string(), "{asked}");
    assert_eq!(asked["params"]["url"], "https://a.example/");
    session.answer(&asked, json!({"action": "cancel"}));
    assert_eq!(events.message()["result"]["resultType"], "complete");
    let last = self::calls(&server).pop().unwrap();
    assert_eq!(last["inputResponses"], json!({"q0": {"action": "cancel"}}));
    assert_eq!(last["_meta"][CAPABILITIES], json!({"elicitation": {"url": {}}}));
}

// PRO-37
#[test]
fn server_that_asks_endlessly_or_too_much_is_named_as_the_cause() {
    let server = Recorder::start(scripted);
    let proxy = Proxy::start(json!({"s": entry(&server)}));
    let session = Session::open(&proxy, "2025-11-25", everything());
    let many = |count: usize| asking(&vec![FORM; count]);
    let state =
        format!(r#"{{"resultType":"input_required","requestState":"{}"}}"#, "x".repeat(256 * 1024));
    let long = format!(
        r#"{{"resultType":"input_required","inputRequests":{{}},"a":"{}"}}"#,
        "x".repeat(1024 * 1024)
    );
    let twice = format!(
        r#"{{"resultType":"input_required","inputRequests":{{"a":{FORM},"a":{SAMPLING}}}}}"#
    );
    let variant = asking(&[&FORM.replace("message", "Message")]);
    let again = r#"{"resultType":"input_required","requestState":"0"}"#;
    for (result, rounds, expected) in [
        (
            again,
            Some(10),
            "the server asked its client for input more than 10 times for one request",
        ),
        (&many(17), None, "the server asked its client more than 16 questions at once"),
        (&many(1000), None, "the server asked its client more than 16 questions at once"),
        (&state, None, "the server sent a requestState of more than 262144 bytes"),
        (&long, None, "the server's input request exceeds 1048576 bytes"),
        (
            &twice,
            None,
            "the server asked for input with a result that cannot be parsed unambiguously",
        ),
        (
            r#"{"resultType":"input_required"}"#,
            None,
            "the server asked for input without a question: its result has neither inputRequests nor requestState",
        ),
        (
            &variant,
            Some(1),
            "the server asked its client with params of elicitation/create that are invalid",
        ),
    ] {
        let before = calls(&server).len();
        let answer = session.call("s:ask", script(&[result])).response();
        assert_eq!(failure(&answer), format!("s: ask: {expected}"));
        let sent = calls(&server).len() - before;
        assert_eq!(sent, if result == again { 11 } else { 1 }, "{expected}");
        let record = &proxy.activity(&format!("type=tool_call&session_id={}", session.id()))[0];
        let counted = rounds.map_or(Value::Null, Value::from);
        assert_eq!(record["metadata"]["input_rounds"], counted, "{record}");
        assert_eq!(record["error_message"], format!("s: ask: {expected}"));
    }
    // In an endless series each question is asked, until the limit is reached.
    let mut events = Events::of(session.call("s:ask", script(&[&asking(&[FORM])])));
    for round in 0.. {
        let message = events.message();
        if message.get("method").is_none() {
            let text = error_text(&message["result"]);
            assert!(text.ends_with("more than 10 times for one request"), "{text}");
            assert_eq!(round, 10);
            break;
        }
        session.answer(&message, json!({"action": "accept", "content": {}}));
    }
}

// PRO-37
#[test]
fn answers_of_a_client_count_once_and_only_from_the_client_that_was_asked() {
    let server = Recorder::start(scripted);
    let proxy = Proxy::start(json!({"s": entry(&server)}));
    let [session, other] = [(); 2].map(|()| Session::open(&proxy, "2025-11-25", everything()));
    let results = script(&[&asking(&[FORM, SAMPLING]), DONE]);
    let mut events = Events::of(session.call("s:ask", results));
    let (form, sampling) = (events.message(), events.message());
    // An answer from another session or with another id has no effect.
    other.answer(&form, json!({"action": "accept", "content": {"by": "another"}}));
    session.answer(&json!({"id": 4711}), json!({"action": "accept", "content": {}}));
    session.answer(&form, json!({"action": "decline"}));
    session.answer(&form, json!({"action": "accept", "content": {"n": 2}}));
    let model =
        json!({"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"});
    session.answer(&sampling, model.clone());
    assert_eq!(events.message()["result"]["resultType"], "complete");
    let inputs = calls(&server).pop().unwrap()["inputResponses"].take();
    assert_eq!(inputs, json!({"q0": {"action": "decline"}, "q1": model}));
    session.answer(&form, json!({"action": "accept", "content": {}}));
    assert_eq!(calls(&server).len(), 2, "an answer after the end is dropped");
    // An error ends the call, because the protocol has no form in which the server could be given an error as the
    // answer.
    let both = script(&[&asking(&[FORM, SAMPLING]), DONE]);
    let mut events = Events::of(session.call("s:ask", both));
    let (form, sampling) = (events.message(), events.message());
    let error = json!({"code": -1, "message": "User rejected sampling request"});
    let answer = json!({"jsonrpc": "2.0", "id": sampling["id"], "error": error});
    assert_eq!(session.send(&answer).response().status, 202);
    let canceled = events.message();
    assert_eq!(canceled["method"], "notifications/cancelled", "{canceled}");
    assert_eq!(canceled["params"]["requestId"], form["id"]);
    let text = error_text(&events.message()["result"]).to_owned();
    let expected = "s: ask: the client answered the server's sampling/createMessage with error -1: \
                    User rejected sampling request";
    assert_eq!(text, expected);
    // The same for the end of the session.
    let mut events = Events::of(session.call("s:ask", script(&[&asking(&[FORM]), DONE])));
    events.message();
    let id = session.id().to_owned();
    session.end();
    let record = until("the call ends", || {
        let records = proxy.activity(&format!("type=tool_call&session_id={id}&status=error"));
        records.into_iter().find(|it| it["error_message"] != expected)
    });
    let text = record["error_message"].as_str().unwrap();
    assert!(text.contains("the client went away"), "{text}");
    assert_eq!(calls(&server).len(), 4, "neither was repeated");
}

// PRO-37
#[test]
fn canceled_calls_free_their_questions() {
    /// More than the maximum number of open questions to a client.
    const CALLS: usize = 70;
    let server = Recorder::start(scripted);
    let proxy = Proxy::start(json!({"s": entry(&server)}));
    let session = Session::open(&proxy, "2025-06-18", everything());
    let results = script(&[&asking(&[FORM]), DONE]);
    let mut asked = Vec::new();
    for _ in 0..CALLS {
        let mut events = Events::of(session.call("s:ask", results.clone()));
        asked.push(events.message());
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": "c"}});
        assert_eq!(session.send(&cancel).response().status, 202);
        while events.next().is_some() {}
    }
    for question in &asked {
        session.answer(question, json!({"action": "accept", "content": {}}));
    }
    let mut events = Events::of(session.call("s:ask", results));
    let question = events.message();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    session.answer(&question, json!({"action": "accept", "content": {}}));
    assert_eq!(events.message()["result"]["resultType"], "complete");
    assert_eq!(calls(&server).len(), CALLS + 2, "no cancelled call was repeated");
    let records =
        proxy.activity(&format!("type=tool_call&session_id={}&status=error", session.id()));
    assert_eq!(records.len(), CALLS);
    for record in records {
        assert_eq!(record["error_message"], "the client cancelled the call", "{record}");
        assert_eq!(record["metadata"]["input_rounds"], 1, "{record}");
    }
}

// PRO-37
#[test]
fn final_result_is_validated_and_gets_a_receipt_like_any_other() {
    let server = Recorder::start(scripted);
    let mut servers = json!({});
    for mode in ["off", "warn", "strict"] {
        servers[mode] = entry(&server);
        servers[mode]["output_validation"] = json!({"mode": mode});
    }
    let config = json!({"mcpServers": servers, "activity": {"receipts": true},
        "limits": {"concurrent": 1, "queue": 0}});
    let proxy = Proxy::with(config);
    let session = Session::open(&proxy, "2025-11-25", everything());
    let good = r#"{"resultType":"complete","structuredContent":{ "n":1 },"content":[]}"#;
    let bad = r#"{"resultType":"complete","structuredContent":{"n":"x"},"content":[]}"#;
    for mode in ["off", "warn", "strict"] {
        for (result, is_good) in [(good, true), (bad, false)] {
            let tool = format!("{mode}:typed");
            let results = script(&[&asking(&[FORM]), result]);
            let mut events = Events::of(session.call(&tool, results));
            // The call counts as one while the client is asked.
            let limited = session.call(&tool, script(&[good])).response();
            assert!(failure(&limited).contains("limit 1, queue 0"), "{}", limited.text());
            let question = events.message();
            session.answer(&question, json!({"action": "accept", "content": {}}));
            let last = events.next().unwrap().data;
            let blocked = mode == "strict" && !is_good;
            assert_eq!(last.contains(result), !blocked, "{mode}: {last}");
            let query = format!("server={mode}&type=tool_call");
            let record = until("the record is there", || {
                proxy.activity(&query).into_iter().find(|it| it["status"] != "rejected")
            });
            assert_eq!(record["status"] == "blocked", blocked, "{record}");
            assert_eq!(record["metadata"]["input_rounds"], 1);
            let hash = blake3::hash(result.as_bytes()).to_hex().to_string();
            let receipt = &record["metadata"]["receipt"];
            assert_eq!(receipt["received"], hash, "{record}");
            assert_eq!(receipt["delivered"] == hash, !blocked, "{record}");
        }
    }
}

// PRO-37, PRO-45
#[test]
fn question_behind_an_exposed_uri_is_asked() {
    let server = Recorder::start(|number, request: &Received| {
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        if message["method"] != "resources/read" {
            return scripted(number, request);
        }
        let asks = asking(&[FORM]);
        let result = match message["params"].get("inputResponses") {
            None => format!(r#"{{"contents":[{{"uri":"ui://a","text":""}}],{}"#, &asks[1..]),
            Some(_) => {
                r#"{"contents":[],"resultType":"complete","ttlMs":0,"cacheScope":"private"}"#
                    .to_owned()
            }
        };
        let body = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, message["id"]);
        Reply::Http("200 OK", "content-type: application/json\r\n", body.into())
    });
    let proxy = Proxy::start(json!({"s": entry(&server)}));
    let session = Session::open(&proxy, "2025-11-25", everything());
    let mut events = Events::of(session.ask("resources/read", &json!({"uri": "ui://s/a"})));
    let asked = events.message();
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    session.answer(&asked, json!({"action": "accept", "content": {}}));
    assert_eq!(events.message()["result"]["contents"], json!([]));
}

/// A legacy server with the tool `ask`. It leaves its calls unanswered until `is_over` is set, then breaks their
/// connections.
fn legacy_until(is_over: Arc<AtomicBool>) -> Recorder {
    Recorder::start(move |_, request: &Received| {
        if !request.head[0].starts_with("POST ") {
            return Reply::Http("405 Method Not Allowed", "", Vec::new());
        }
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let Some(id) = message.get("id") else {
            return Reply::Http("202 Accepted", "", Vec::new());
        };
        let outcome = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({"result": {"protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}}}),
            "tools/list" => {
                json!({"result": {"tools": [{"name": "ask", "inputSchema": {"type": "object"},
                    "annotations": {"readOnlyHint": true}}]}})
            }
            "tools/call" => {
                until("it is over", || is_over.load(Ordering::SeqCst).then_some(()));
                return Reply::Raw(Vec::new());
            }
            _ => json!({"error": {"code": -32601, "message": "Method not found"}}),
        };
        let mut body = json!({"jsonrpc": "2.0", "id": id});
        body.as_object_mut().unwrap().extend(outcome.as_object().unwrap().clone());
        Reply::Http("200 OK", "content-type: application/json\r\n", body.to_string().into())
    })
}

// PRO-37
#[test]
fn replacement_server_gets_input_from_the_client() {
    for capabilities in [json!({"elicitation": {}}), json!({})] {
        let is_over = Arc::<AtomicBool>::default();
        let (old, new) = (legacy_until(Arc::clone(&is_over)), Recorder::start(scripted));
        let proxy = Proxy::start(json!({"s": entry(&old)}));
        let session = Session::open(&proxy, "2025-11-25", capabilities.clone());
        let mut called = session.call("s:ask", script(&[&asking(&[FORM]), DONE]));
        until("it is called", || (!calls(&old).is_empty()).then_some(()));
        // The unanswered call is sent again to the server that replaces the first one.
        reload(&proxy, &json!({"mcpServers": {"s": entry(&new)}}));
        is_over.store(true, Ordering::SeqCst);
        let is_asked = capabilities != json!({});
        if is_asked {
            let mut events = Events::of(called);
            let question = events.message();
            assert_eq!(question["method"], "elicitation/create", "{question}");
            session.answer(&question, json!({"action": "decline"}));
            let last = events.message();
            assert_eq!(last["result"], serde_json::from_str::<Value>(DONE).unwrap(), "{last}");
        } else {
            let refused = called.response().json();
            assert_eq!(refused["error"]["code"], -32021, "{refused}");
        }
        let rounds = calls(&new);
        assert_eq!(rounds.len(), 1 + usize::from(is_asked), "{rounds:?}");
        let record = until("it is recorded", || proxy.activity("type=tool_call").pop());
        assert_eq!(record["metadata"]["retried"], true, "{record}");
    }
}
