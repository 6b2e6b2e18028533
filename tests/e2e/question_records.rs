//! Records of the questions that servers put to clients during calls, and of the answers (ACT-13).

use serde_json::{Value, json};

use crate::between_families::Session;
use crate::harness::{Events, Proxy, Recorder, stub_stdio, until};
use crate::request_state::{answer as modern_server, entry};
use crate::server_questions::Holder;

const QUESTIONS: &str = "type=server_question";

/// Newest complete record of a question, once there are `count` of them.
fn newest(proxy: &Proxy, count: usize) -> Value {
    let id = until("the record of the question", || {
        let records = proxy.activity(QUESTIONS);
        (records.len() >= count).then(|| records[0]["id"].as_str().unwrap().to_owned())
    });
    assert_eq!(proxy.activity(QUESTIONS).len(), count, "one for each");
    proxy.api(&format!("activity/{id}"))["activity"].take()
}

#[test]
fn act_13_each_question_to_a_client_and_its_answer_are_recorded() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let all = json!({"elicitation": {}, "sampling": {}, "roots": {}});
    let holder = Holder::open(&proxy, "a", all);
    let form = json!({"message": "which city?",
        "requestedSchema": {"type": "object", "properties": {"city": {"type": "string"}}}});
    let sampling = json!({"messages": [], "maxTokens": 7});
    let content = json!({"city": "Oslo", "password": "hunter2-is-secret"});
    let text = json!({"type": "text", "text": "Hi"});
    let (create, sample) = ("elicitation/create", "sampling/createMessage");
    for (count, (method, params, member, answer, action)) in (1..).zip([
        (create, &form, "result", json!({"action": "accept", "content": content}), "accept"),
        (create, &form, "result", json!({"action": "decline"}), "decline"),
        (create, &form, "result", json!({"action": "cancel"}), "cancel"),
        (
            sample,
            &sampling,
            "result",
            json!({"role": "assistant", "content": text, "model": "m"}),
            "answer",
        ),
        ("roots/list", &json!({}), "result", json!({"roots": [{"uri": "file:///r"}]}), "answer"),
        (create, &form, "error", json!({"code": -7, "message": "nobody is here"}), "error"),
    ]) {
        let call = holder.call("s:ask", json!({"ask": method, "with": {"params": params}}));
        let mut events = Events::of(call);
        let asked = events.message();
        assert_eq!(asked["method"], method, "{asked}");
        let mut message = json!({"jsonrpc": "2.0", "id": asked["id"]});
        message[member] = answer.clone();
        assert_eq!(holder.send(&message).response().status, 202);
        assert_eq!(events.message()["result"]["structuredContent"]["answered"], answer);
        let record = newest(&proxy, count);
        let is_error = member == "error";
        for (place, value) in [
            ("/type", json!("server_question")),
            ("/status", json!(if is_error { "error" } else { "success" })),
            ("/principal", json!("token:a")),
            ("/server_name", json!("s")),
            ("/tool_name", json!(method)),
            ("/request_id", json!("c")),
            ("/metadata/action", json!(action)),
            ("/metadata/call", json!("ask")),
            ("/arguments", params.clone()),
            ("/response_bytes", json!(answer.to_string().len())),
        ] {
            assert_eq!(record.pointer(place), Some(&value), "{place} {record}");
        }
        let error = if is_error { "the client answered: nobody is here" } else { "" };
        assert_eq!(record["error_message"], error);
        let recorded = record["response"].as_str().unwrap();
        assert!(!recorded.contains("hunter2"), "{recorded}");
        let mut expected = answer.clone();
        if action == "accept" {
            expected["content"]["password"] = Value::Null;
        }
        let mut recorded: Value = serde_json::from_str(recorded).unwrap();
        if let Some(masked) = recorded.pointer_mut("/content/password") {
            *masked = Value::Null;
        }
        assert_eq!(recorded, expected);
    }
    let listed = proxy.cli(&["activity", "list", "--type", "server_question"]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    assert!(listed.stdout.contains(create) && listed.stdout.contains(sample), "{}", listed.stdout);
    let id = newest(&proxy, 6)["id"].clone();
    let shown = proxy.cli(&["activity", "show", id.as_str().unwrap()]);
    assert!(shown.stdout.contains("nobody is here"), "{}", shown.stdout);
    // A call without a question has no such record.
    holder.call("s:echo", json!({})).response();
    newest(&proxy, 6);
}

#[test]
fn act_13_question_without_an_answer_is_recorded() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let holder = Holder::open(&proxy, "a", json!({"elicitation": {}}));
    let mut events = Events::of(holder.call("s:ask", json!({"ask": "elicitation/create"})));
    let asked = events.message();
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    holder.cancel();
    let record = newest(&proxy, 1);
    assert_eq!((&record["status"], &record["response_bytes"]), (&json!("error"), &json!(0)));
    assert_eq!(record["metadata"]["action"], "unanswered");
    // An answer after that has no effect.
    let late = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}});
    assert_eq!(holder.send(&late).response().status, 202);
    assert_eq!(newest(&proxy, 1), record);
}

#[test]
fn act_13_input_that_a_modern_server_asks_of_a_legacy_client_is_recorded() {
    let server = Recorder::start(modern_server);
    let proxy = Proxy::start(json!({"s": entry(&server)}));
    let session = Session::open(&proxy, "2025-11-25", json!({"elicitation": {}}));
    let intent = json!({"operation_type": "read"});
    let arguments = json!({"name": "s:ask", "args": {}, "intent": intent});
    let call = json!({"name": "call_tool_read", "arguments": arguments});
    let mut events = Events::of(session.ask("tools/call", &call));
    let asked = events.message();
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    let result = json!({"action": "accept", "content": {"who": "ann"}});
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
    assert_eq!(session.send(&answer).response().status, 202);
    assert_eq!(events.message()["id"], "c");
    let record = newest(&proxy, 1);
    for (place, value) in [
        ("/status", json!("success")),
        ("/session_id", json!(session.id())),
        ("/server_name", json!("s")),
        ("/tool_name", json!("elicitation/create")),
        ("/metadata/action", json!("accept")),
        ("/metadata/call", json!("ask")),
        ("/arguments/message", json!("Who?")),
        ("/response", json!(result.to_string())),
    ] {
        assert_eq!(record.pointer(place), Some(&value), "{record}");
    }
}
