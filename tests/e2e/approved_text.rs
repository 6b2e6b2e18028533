//! Text that a client chooses reaches a server after an approval only if the approver was shown it (APR-1): trace
//! headers, baggage, and the input of completions.

use serde_json::{Value, json};

use crate::approvals_modern::waiting;
use crate::harness::{Proxy, Received, Recorder, stub_stdio, until};
use crate::tracing::{PARENT, call, calls, collector, server, telemetry, url};

/// The waiting approval, the request that the server received after it, and the `_meta` of that request.
struct Approved {
    waiting: Value,
    request: Received,
    meta: Value,
}

fn approve(proxy: &Proxy) -> Value {
    let waiting = until("it waits", || waiting(proxy).pop());
    let approved = proxy.cli(&["approvals", "approve", waiting["id"].as_str().unwrap()]);
    assert_eq!(approved.code, Some(0), "{}", approved.stderr);
    waiting
}

/// Calls `s:t` with `meta` and `headers`, and approves the call.
fn approved(proxy: &Proxy, server: &Recorder, meta: &Value, headers: &[(&str, &str)]) -> Approved {
    let mut client = proxy.client();
    let waiting = std::thread::scope(|scope| {
        let calling = scope.spawn(|| call(&mut client, meta.clone(), headers));
        let waiting = approve(proxy);
        calling.join().unwrap();
        waiting
    });
    let (request, meta) = calls(server).pop().unwrap();
    Approved { waiting, request, meta }
}

fn entry(server: &Recorder) -> Value {
    let mut entry = url(server);
    entry["capabilities"] = json!({"t": {"approval": "required"}});
    entry
}

#[test]
fn apr_1_trace_that_the_client_chose_is_not_sent_after_an_approval_and_baggage_is_shown() {
    let (collector, server) = (collector(), server());
    let telemetry = telemetry(&collector);
    let proxy = Proxy::with(json!({"mcpServers": {"s": entry(&server)}, "telemetry": telemetry}));
    let unsampled = PARENT.replace("-01", "-00");
    let mut digests = Vec::new();
    for (parent, state, baggage, in_meta) in [
        (PARENT, "unseen=1", "h=seen", false),
        (PARENT, "unseen=2", "h=seen", false),
        (&unsampled, "unseen=2", "h=other", false),
        (PARENT, "unseen=3", "h=other", true),
    ] {
        let headers = [("traceparent", parent), ("tracestate", state), ("baggage", baggage)];
        let meta = json!({"traceparent": parent, "tracestate": state, "baggage": baggage});
        let Approved { waiting, request, meta } = match in_meta {
            true => approved(&proxy, &server, &meta, &[]),
            false => approved(&proxy, &server, &Value::Null, &headers),
        };
        let shown = waiting["call"]["meta"].as_str().unwrap();
        assert_eq!(shown, json!({"baggage": baggage}).to_string());
        digests.push(waiting["call"]["digest"].clone());
        let sent = meta["traceparent"].as_str().unwrap();
        let (trace, span) = (sent.get(3..35).unwrap(), sent.get(36..52).unwrap());
        assert!(!parent.contains(trace) && !parent.contains(span), "{sent}");
        assert_eq!(request.headers("traceparent"), [sent]);
        assert_eq!(request.headers("baggage"), [baggage]);
        assert_eq!(meta["baggage"], baggage);
        let whole = String::from_utf8_lossy(&request.body).into_owned() + &request.head.join("\n");
        assert!(!whole.contains("unseen") && !whole.contains("tracestate"), "{whole}");
        let record = until("the call is recorded", || {
            let records = proxy.activity("type=tool_call&status=success");
            (records.len() == digests.len()).then(|| records[0]["metadata"].clone())
        });
        assert_eq!(record["upstream_trace_id"], trace);
        assert_eq!(record["_meta"], json!({"baggage": baggage}));
        assert!(parent.contains(record["trace_id"].as_str().unwrap_or("-")), "{record}");
    }
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[1], digests[2], "the baggage is part of the approved request");
    assert_eq!(digests[2], digests[3]);
}

#[test]
fn apr_1_trace_in_meta_is_not_sent_after_an_approval_even_without_tracing() {
    let server = server();
    let proxy = Proxy::start(json!({"s": entry(&server)}));
    let meta = json!({"traceparent": "any text", "tracestate": {"more": "text"}, "x/own": 1});
    let Approved { waiting, request, meta } = approved(&proxy, &server, &meta, &[]);
    assert_eq!(waiting["call"]["meta"], json!({"x/own": 1}).to_string());
    assert_eq!(meta, json!({"x/own": 1}));
    assert!(request.headers("traceparent").is_empty());
}

#[test]
fn apr_1_input_of_a_completion_is_part_of_its_approval() {
    let folder = tempfile::tempdir().unwrap();
    let rule = "@id(\"asks\") @requires(\"approval\")\n\
        forbid (principal, action, resource == Prompt::\"s:greet\");";
    std::fs::write(folder.path().join("rules.cedar"), rule).unwrap();
    let server = stub_stdio(&["--offers", "--only", "echo"]);
    let config = json!({"mcpServers": {"s": server}, "policy": {"files": ["rules.cedar"]}});
    let proxy = Proxy::unready(config, folder).ready();
    let mut digests = Vec::new();
    for text in ["a", "b"] {
        let argument = json!({"name": "who", "value": text});
        let context = json!({"arguments": {"x": "y"}});
        let params = json!({"ref": {"type": "ref/prompt", "name": "s__greet"},
            "argument": argument, "context": context});
        let mut client = proxy.client();
        let (waiting, answer) = std::thread::scope(|scope| {
            let asking = scope.spawn(|| client.ask("completion/complete", params));
            (approve(&proxy), asking.join().unwrap())
        });
        assert_eq!(answer["result"]["completion"]["values"][0], "Ab", "{answer}");
        let shown: Value =
            serde_json::from_str(waiting["call"]["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(shown, json!({"argument": argument, "context": context}));
        digests.push(waiting["call"]["digest"].clone());
    }
    assert_ne!(digests[0], digests[1]);
}
