//! Retries on the wire (CAP-7): requests that are sent twice, requests that must not be, and their records.

use serde_json::{Value, json};

use crate::harness::{Client, Proxy, Scripted, error_text};

/// Calls a tool. `with_progress` adds a progress token, because of which the proxy also reads messages before the
/// answer.
fn call(client: &mut Client, tool: &str, with_progress: bool) -> Value {
    let intent = json!({"operation_type": "write"});
    let mut params = json!({"name": "call_tool_write",
        "arguments": {"name": format!("s:{tool}"), "args": {"n": 1}, "intent": intent}});
    if with_progress {
        params["_meta"] = json!({"progressToken": "p"});
    }
    client.ask("tools/call", params)["result"].take()
}

const TOOLS: [&str; 18] = [
    "idem_unanswered",
    "idem_in_head",
    "idem_after_head",
    "idem_in_body",
    "idem_fine",
    "plain_unanswered",
    "plain_in_head",
    "plain_after_head",
    "plain_in_body",
    "idem_progress_unanswered",
    "idem_progress_in_head",
    "idem_progress_after_head",
    "idem_progress_in_body",
    "plain_progress_unanswered",
    "plain_progress_in_head",
    "plain_progress_after_head",
    "plain_progress_in_body",
    "plain_fine",
];

#[test]
fn cap_7_idempotent_call_is_retried_once_if_no_byte_of_its_answer_arrived() {
    let server = Scripted::start(&TOOLS);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let mut client = proxy.client();
    for tool in TOOLS {
        let result = call(&mut client, tool, tool.contains("progress"));
        let retried = tool.starts_with("idem") && tool.ends_with("unanswered");
        let fine = retried || tool.ends_with("fine");
        assert_eq!(result["isError"] != true, fine, "{tool}: {result}");
        assert_eq!(server.arrived()[tool], 1 + usize::from(retried), "{tool}");
        let records = proxy.activity(&format!("type=tool_call&tool={tool}"));
        let [record] = records.as_slice() else { panic!("{tool}: one call, one record") };
        assert_eq!(record["metadata"]["retried"], if retried { json!(true) } else { Value::Null });
        assert_eq!(record["status"], if fine { "success" } else { "error" }, "{tool}");
    }
}

#[test]
fn cap_7_connection_closed_before_the_request_is_read_is_reopened_for_idempotent_calls() {
    for (tool, fine) in [("idem_fine", true), ("plain_fine", false)] {
        let server = Scripted::start(&TOOLS);
        let proxy = Proxy::start(json!({"s": server.entry()}));
        let mut client = proxy.client();
        server.refuse(1);
        let result = call(&mut client, tool, false);
        assert!(!server.refuses(), "the call used this connection");
        assert_eq!(result["isError"] != true, fine, "{result}");
        assert_eq!(server.arrived().get(tool).copied().unwrap_or(0), usize::from(fine));
    }
}

#[test]
fn cap_7_call_is_retried_once_and_not_twice() {
    let server = Scripted::start(&["idem_down"]);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    server.set_down(true);
    for with_progress in [false, true] {
        let before = server.arrived().get("idem_down").copied().unwrap_or(0);
        let result = call(&mut proxy.client(), "idem_down", with_progress);
        assert!(error_text(&result).contains("without an answer"), "{result}");
        assert_eq!(server.arrived()["idem_down"], before + 2);
    }
    let records = proxy.activity("type=tool_call");
    assert_eq!(records.len(), 2);
    assert!(records.iter().all(|record| record["metadata"]["retried"] == true));
}

/// Server program that records each call, and ends at the first call of each tool.
const CHILD: &str = r#"
while IFS= read -r line; do
  case "$line" in *'"id":'*) id=${line#*'"id":'}; id=${id%%[,\}]*};; esac
  case "$line" in
    *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}}\n' "$id";;
    *'"tools/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[' "$id"
      for kind in true false; do for what in ends half begun; do
        printf '{"name":"%s_%s","inputSchema":{},"annotations":{"readOnlyHint":false,"destructiveHint":false,"idempotentHint":%s}},' "$what" "$kind" "$kind"
      done; done
      printf '{"name":"last","inputSchema":{}}]}}\n';;
    *'"tools/call"'*)
      tool=${line#*'"name":"'}; tool=${tool%%\"*}
      echo x >> "$1/$tool"
      if [ "$(wc -l < "$1/$tool")" -eq 1 ]; then
        case "$tool" in
          half_*) printf '{"jsonrpc":"2.0","id":%s,' "$id";;
          begun_*) printf '{"result":{"content":[';;
        esac
        exit 0
      fi
      printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}\n' "$id";;
    *'"id":'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"?"}}\n' "$id";;
  esac
done
"#;

#[test]
fn cap_7_read_that_ended_its_server_is_not_repeated_unless_declared_idempotent() {
    // `readOnlyHint` only implies that a call is idempotent. `idempotentHint` and the operator's setting declare it.
    for (hint, capability, again) in [
        (r#""readOnlyHint":true"#, json!({}), false),
        (r#""readOnlyHint":true,"idempotentHint":true"#, json!({}), true),
        (r#""readOnlyHint":true"#, json!({"idempotent": true}), true),
        (r#""readOnlyHint":true,"idempotentHint":true"#, json!({"idempotent": false}), false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let child = CHILD.replace(
            r#"{"name":"last","inputSchema":{}}"#,
            &format!(r#"{{"name":"ends_read","inputSchema":{{}},"annotations":{{{hint}}}}}"#),
        );
        assert_ne!(child, CHILD);
        let args = json!(["-c", child, "sh", folder.path()]);
        let proxy = Proxy::start(json!({"s": {"command": "/bin/sh", "args": args,
            "capabilities": {"ends_read": capability}}}));
        let result = proxy.client().read("s:ends_read", json!({}));
        assert_eq!(result["isError"] != true, again, "{hint} {capability}: {result}");
        let read = std::fs::read_to_string(folder.path().join("ends_read")).unwrap();
        assert_eq!(read.lines().count(), 1 + usize::from(again), "{hint} {capability}");
        let record = &proxy.activity("type=tool_call")[0];
        assert_eq!(record["metadata"]["retried"] == true, again, "{record}");
        // The server has been restarted for the next call.
        let next = proxy.client().read("s:ends_read", json!({}));
        assert_ne!(next["isError"], true, "{next}");
    }
}

#[test]
fn cap_7_call_is_retried_once_after_a_child_ends_without_a_byte_of_the_answer() {
    for what in ["ends", "half", "begun"] {
        for idempotent in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let args = json!(["-c", CHILD, "sh", folder.path()]);
            let proxy = Proxy::start(json!({"s": {"command": "/bin/sh", "args": args}}));
            let tool = format!("{what}_{idempotent}");
            let result = call(&mut proxy.client(), &tool, false);
            let retried = idempotent && what == "ends";
            assert_eq!(result["isError"] != true, retried, "{tool}: {result}");
            let read = std::fs::read_to_string(folder.path().join(&tool)).unwrap();
            assert_eq!(read.lines().count(), 1 + usize::from(retried), "{tool}");
            let records = proxy.activity("type=tool_call");
            let [record] = records.as_slice() else { panic!("{tool}: one call, one record") };
            assert_eq!(record["metadata"]["retried"] == true, retried, "{tool}");
        }
    }
}
