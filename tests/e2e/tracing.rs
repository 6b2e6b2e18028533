//! Traces over OTLP: spans at the collector, trace members at the server, and faulty collectors.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::protobuf::{all, attributes, hex, number, text};
use crate::harness::{
    API_KEY, CertificateAuthority, Client, Proxy, Received, Recorder, Reply, configure, error_text,
    free_port, stub_stdio, until, write_private,
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
pub(super) const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
const PARENT_ID: &str = "00f067aa0ba902b7";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00";

#[derive(Clone, Debug, Default)]
struct Exported {
    trace: String,
    id: String,
    parent: String,
    state: String,
    name: String,
    /// Kind of span: 2 is server, 3 is client.
    kind: u64,
    /// Start and end in nanoseconds since 1970.
    times: (u64, u64),
    /// Texts and numbers are unchanged, lists are joined with commas.
    attributes: BTreeMap<String, String>,
    links: Vec<String>,
    is_error: bool,
}

/// Spans in a request to a collector.
fn spans(request: &Received) -> Vec<Exported> {
    let mut found = Vec::new();
    for of_us in all(&request.body, 1) {
        for span in all(of_us, 2).into_iter().flat_map(|scope| all(scope, 2)) {
            found.push(Exported {
                trace: hex(span, 1),
                id: hex(span, 2),
                state: text(span, 3),
                parent: hex(span, 4),
                name: text(span, 5),
                kind: number(span, 6),
                times: (number(span, 7), number(span, 8)),
                attributes: attributes(span, 9),
                links: all(span, 13).into_iter().map(|link| hex(link, 2)).collect(),
                is_error: all(span, 15).into_iter().any(|status| number(status, 3) == 2),
            });
        }
    }
    found
}

fn ok() -> Reply {
    Reply::Http("200 OK", "content-type: application/x-protobuf\r\n", Vec::new())
}

/// A collector that accepts everything.
pub(super) fn collector() -> Recorder {
    Recorder::start(|_, _| ok())
}

pub(super) fn telemetry(collector: &Recorder) -> Value {
    json!({"otlp_endpoint": format!("http://127.0.0.1:{}", collector.port)})
}

/// Waits for this number of exported spans. Returns all of them.
fn exported(collector: &Recorder, count: usize) -> Vec<Exported> {
    until("the spans are exported", || {
        let found: Vec<Exported> = collector.received().iter().flat_map(spans).collect();
        (found.len() >= count).then_some(found)
    })
}

/// Sessionless server over HTTP with a tool `t` that answers at once.
pub(super) fn server() -> Recorder {
    Recorder::start(|_, request| {
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let result = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "recorder", "version": "1"}}),
            "tools/list" => json!({"tools": [{"name": "t", "inputSchema": {"type": "object"},
                "annotations": {"readOnlyHint": true}}]}),
            "tools/call" => json!({"content": [{"type": "text", "text": "done"}]}),
            "" => return Reply::Http("405 Method Not Allowed", "", Vec::new()),
            _ if message.get("id").is_none() => {
                return Reply::Http("202 Accepted", "", Vec::new());
            }
            _ => {
                let error = json!({"code": -32601, "message": "no such method"});
                let body = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
                let json = "content-type: application/json\r\n";
                return Reply::Http("200 OK", json, body.to_string().into_bytes());
            }
        };
        let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        Reply::Http("200 OK", "content-type: application/json\r\n", body.to_string().into_bytes())
    })
}

pub(super) fn url(server: &Recorder) -> Value {
    json!({"url": format!("http://127.0.0.1:{}/mcp", server.port)})
}

/// Tool calls received by a server, each with its `_meta`.
pub(super) fn calls(server: &Recorder) -> Vec<(Received, Value)> {
    let of_call = |request: Received| {
        let message: Value = serde_json::from_slice(&request.body).ok()?;
        (message["method"] == "tools/call").then(|| (request, message["params"]["_meta"].clone()))
    };
    server.received().into_iter().filter_map(of_call).collect()
}

/// Calls `s:t` with this `_meta` and these headers.
pub(super) fn call(client: &mut Client, meta: Value, headers: &[(&str, &str)]) -> Value {
    let arguments = json!({"name": "s:t", "args": {}, "intent": {"operation_type": "read"}});
    let mut params = json!({"name": "call_tool_read", "arguments": arguments});
    if !meta.is_null() {
        params["_meta"] = meta;
    }
    let body = json!({"jsonrpc": "2.0", "id": "call-1", "method": "tools/call", "params": params});
    let session = client.session.clone();
    let mut lines = vec![("Accept", "application/json"), ("Mcp-Session-Id", session.as_str())];
    lines.extend(headers);
    client.connection.send("POST", "/mcp", &lines, body.to_string().as_bytes());
    let answer = client.connection.response().json();
    assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
    answer
}

/// Value of a sample in `/metrics`.
pub(super) fn metric(proxy: &Proxy, name: &str) -> f64 {
    let text = proxy.get("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
}

/// Waits until exactly this number of spans is counted as exported.
fn taken(proxy: &Proxy, count: f64) {
    let exported = "mcpproxy_spans_exported_total";
    until("they are counted", || (metric(proxy, exported) == count).then_some(()));
}

fn dropped(proxy: &Proxy, reason: &str) -> f64 {
    metric(proxy, &format!(r#"mcpproxy_spans_dropped_total{{reason="{reason}"}}"#))
}

// TEL-2
#[test]
fn sep_414_agent_proxy_and_server_share_one_trace_through_meta() {
    let (collector, server) = (collector(), server());
    let telemetry = telemetry(&collector);
    let proxy = Proxy::with(json!({"mcpServers": {"s": url(&server)}, "telemetry": telemetry}));
    let mut client = proxy.client();
    let meta = json!({"traceparent": PARENT, "tracestate": "rojo=1", "k": [1.0], "baggage": "a=b"});
    call(&mut client, meta, &[]);
    let found = exported(&collector, 2);
    let [of_call, sent] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&*of_call.trace, &*sent.trace), (TRACE, TRACE));
    assert_eq!((&*of_call.parent, &sent.parent), (PARENT_ID, &of_call.id));
    assert_eq!((of_call.kind, sent.kind), (2, 3));
    assert_eq!((&*of_call.state, &*of_call.name), ("rojo=1", "tools/call t"));
    assert!(of_call.times.0 <= sent.times.0 && sent.times.1 <= of_call.times.1, "{found:?}");
    assert!(sent.times.0 <= sent.times.1 && !of_call.is_error);
    for (key, value) in [
        ("mcp.method.name", "tools/call"),
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.name", "t"),
        ("mcp.session.id", &client.session),
        ("mcp.protocol.version", "2025-11-25"),
        ("jsonrpc.request.id", "call-1"),
        ("mcpproxy.server", "s"),
        ("mcpproxy.call_tool", "call_tool_read"),
        ("mcpproxy.outcome", "success"),
        ("mcpproxy.principal", "anonymous"),
        ("mcpproxy.client", "e2e"),
        ("mcpproxy.door", "mcp"),
    ] {
        assert_eq!(of_call.attributes.get(key).map(String::as_str), Some(value), "{key}");
    }
    let calls = calls(&server);
    let (request, meta) = &calls[0];
    let expected = format!("00-{TRACE}-{}-01", sent.id);
    assert_eq!(meta["traceparent"], expected, "{meta}");
    assert_eq!((&meta["tracestate"], &meta["baggage"]), (&json!("rojo=1"), &json!("a=b")));
    assert_eq!(meta["k"].to_string(), "[1.0]", "other members are unchanged");
    assert_eq!(request.headers("traceparent"), [expected]);
    assert_eq!(request.headers("tracestate"), ["rojo=1"]);
    // The record of the call has the trace id as well.
    let record = &client.records(&proxy, "type=tool_call")[0];
    assert_eq!(record["metadata"]["trace_id"], TRACE, "{record}");
}

#[test]
fn trace_is_taken_from_headers_if_meta_has_none() {
    let (collector, server) = (collector(), server());
    let telemetry = telemetry(&collector);
    let proxy = Proxy::with(json!({"mcpServers": {"s": url(&server)}, "telemetry": telemetry}));
    let mut client = proxy.client();
    let lines = [("traceparent", PARENT), ("tracestate", "rojo=1"), ("tracestate", "b=2")];
    call(&mut client, Value::Null, &lines);
    let found = exported(&collector, 2);
    assert_eq!((&*found[0].trace, &*found[0].parent), (TRACE, PARENT_ID));
    assert_eq!(found[0].state, "rojo=1,b=2");
    let (request, meta) = calls(&server).remove(0);
    assert_eq!(meta["traceparent"], format!("00-{TRACE}-{}-01", found[1].id));
    assert_eq!(
        (&meta["tracestate"], request.headers("tracestate")),
        (&json!("rojo=1,b=2"), vec!["rojo=1,b=2"])
    );
    // If both have a context, the one in `_meta` is the parent, and the header becomes a link.
    let other = PARENT.replace(PARENT_ID, "aaaaaaaaaaaaaaaa");
    call(&mut client, json!({"traceparent": other}), &[("traceparent", PARENT)]);
    let found = exported(&collector, 4);
    assert_eq!(
        (&*found[2].parent, &found[2].links[..]),
        ("aaaaaaaaaaaaaaaa", &[PARENT_ID.to_owned()][..])
    );
    // Invalid members are ignored and do not cause a refusal: the span starts a new trace.
    let evil = json!({"traceparent": "00-x", "tracestate": "a=1\r\nx-evil: 1"});
    call(&mut client, evil, &[("traceparent", "nonsense"), ("tracestate", "a=1")]);
    let found = exported(&collector, 6);
    assert!(found[4].parent.is_empty() && found[4].trace != TRACE && found[4].state.is_empty());
    let (request, meta) = calls(&server).remove(2);
    assert_eq!((meta.get("tracestate"), request.headers("tracestate").len()), (None, 0), "{meta}");
    assert!(request.headers("x-evil").is_empty());
    // REST accepts the header too.
    let arguments = json!({"name": "s:t", "args": {}});
    let body = json!({"tool_name": "call_tool_read", "arguments": arguments, "intent": {"operation_type": "read"}});
    let headers = [("X-API-Key", API_KEY), ("traceparent", PARENT)];
    let answer = proxy.request("POST", "/api/v1/tools/call", &headers, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let found = exported(&collector, 8);
    assert_eq!((&*found[6].trace, &*found[6].attributes["mcpproxy.door"]), (TRACE, "api"));
}

#[test]
fn unsampled_trace_is_propagated_and_not_exported() {
    let (collector, server) = (collector(), server());
    let mut telemetry = telemetry(&collector);
    telemetry["traces_ratio"] = json!(0);
    let proxy = Proxy::with(json!({"mcpServers": {"s": url(&server)}, "telemetry": telemetry}));
    let mut client = proxy.client();
    call(&mut client, json!({"traceparent": UNSAMPLED, "tracestate": "rojo=1"}), &[]);
    call(&mut client, Value::Null, &[]);
    let calls = calls(&server);
    assert_eq!(calls[0].1, json!({"traceparent": UNSAMPLED, "tracestate": "rojo=1"}));
    assert_eq!(calls[0].0.headers("traceparent"), [UNSAMPLED]);
    let own = calls[1].1["traceparent"].as_str().unwrap();
    assert!(own.ends_with("-00") && !own.contains(TRACE), "{own}");
    // The client's sampling decision takes precedence over the configured ratio.
    call(&mut client, json!({"traceparent": PARENT}), &[]);
    assert_eq!(exported(&collector, 2).len(), 2, "of the last call only");
    // Spans count as exported once the collector has answered.
    taken(&proxy, 2.0);
}

#[test]
fn without_a_collector_requests_are_unchanged() {
    let server = server();
    let proxy = Proxy::start(json!({"s": url(&server)}));
    let mut client = proxy.client();
    let meta = json!({"traceparent": "not-even-one", "tracestate": "rojo=1"});
    call(&mut client, meta.clone(), &[("traceparent", PARENT)]);
    call(&mut client, Value::Null, &[("traceparent", PARENT)]);
    let calls = calls(&server);
    assert_eq!(calls[0].1, meta);
    assert_eq!(calls[1].1, Value::Null, "no _meta is added");
    assert!(calls.iter().all(|(request, _)| request.headers("traceparent").is_empty()));
    let records = client.records(&proxy, "type=tool_call");
    assert!(
        records.iter().all(|record| record["metadata"].get("trace_id").is_none()),
        "{records:?}"
    );
}

// TEL-2
#[test]
fn spans_state_the_outcome_of_a_call_and_hold_no_payload() {
    let collector = collector();
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&["--offers"])}, "telemetry": telemetry(&collector),
        "output_validation": {"mode": "strict"},
    }));
    let mut client = proxy.client();
    let secret = json!({"secret": "p4yload"});
    assert_eq!(client.read("s:error", secret.clone())["isError"], true);
    error_text(&client.read("s:delete_item", secret.clone()));
    error_text(&client.read("s:violate", secret.clone()));
    error_text(&client.read("s:p4yload-name", json!({})));
    client.ask("tools/call", json!({"name": "call_tool_read", "arguments": {"name": 7}}));
    client.ask("tools/call", json!({"name": "retrieve_tools", "arguments": {"query": "p4yload"}}));
    let prompts = client.ask("prompts/list", json!({}));
    let prompt = prompts["result"]["prompts"][0]["name"].as_str().unwrap();
    client.ask("prompts/get", json!({"name": prompt, "arguments": {}}));
    let found = exported(&collector, 10);
    let of_calls: Vec<&Exported> = found.iter().filter(|span| span.kind == 2).collect();
    let summary: Vec<(&str, Option<&str>, &str)> = of_calls
        .iter()
        .map(|span| {
            let error = span.attributes.get("error.type").map(String::as_str);
            assert_eq!(span.is_error, error.is_some(), "{span:?}");
            (&*span.name, error, &*span.attributes["mcpproxy.outcome"])
        })
        .collect();
    assert_eq!(
        summary[..6],
        [
            ("tools/call error", Some("tool_error"), "error"),
            ("tools/call delete_item", Some("gate"), "rejected"),
            ("tools/call violate", Some("output_blocked"), "blocked"),
            ("tools/call", Some("unknown"), "error"),
            ("tools/call", Some("unreadable"), "rejected"),
            ("tools/call retrieve_tools", None, "success"),
        ]
    );
    assert_eq!(of_calls[1].attributes["mcpproxy.decisions"], "intent_blocked");
    assert_eq!(of_calls[6].attributes["mcp.method.name"], "prompts/get");
    assert!(of_calls[6].attributes.contains_key("gen_ai.prompt.name"), "{:?}", of_calls[6]);
    let without_name = |span: &Exported| {
        let mut span = span.clone();
        span.attributes.remove("gen_ai.tool.name");
        format!("{span:?}")
    };
    assert!(!found.iter().map(without_name).any(|shown| shown.contains("p4yload")), "{found:?}");
}

#[test]
fn log_lines_of_a_call_name_its_trace() {
    let collector = collector();
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&[])}, "telemetry": telemetry(&collector),
        "output_validation": {"mode": "warn"}, "logging": {"format": "json"},
    }));
    let mut client = proxy.client();
    client.read("s:violate", json!({}));
    let found = exported(&collector, 2);
    let line = until("it is logged", || {
        let log = proxy.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.into_iter().find(|line| line["fields"]["message"] == "the answer violates its schema")
    });
    assert_eq!(line["span"]["trace_id"], found[0].trace, "{line}");
    assert_eq!(line["span"]["span_id"], found[0].id, "{line}");
}

// TEL-4
#[test]
fn collector_that_hangs_sends_garbage_or_is_unavailable_does_not_fail_calls() {
    const CALLS: usize = 20;
    let endless = |_: usize, _: &Received| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n\r\n";
        Reply::Raw([head.as_bytes(), &vec![0xff; 1 << 20]].concat())
    };
    let cases: [(&str, Recorder, Option<&str>); 5] = [
        ("hangs", Recorder::start(|_, _| Reply::Hang), None),
        (
            "refuses",
            Recorder::start(|_, _| Reply::Http("400 Bad Request", "", Vec::new())),
            Some("refused"),
        ),
        (
            "moves",
            Recorder::start(|_, _| {
                Reply::Http("307 Temporary Redirect", "location: /x\r\n", Vec::new())
            }),
            Some("refused"),
        ),
        (
            "is no HTTP server",
            Recorder::start(|_, _| Reply::Raw(b"\x16\x03\x01nonsense".to_vec())),
            None,
        ),
        ("answers without end", Recorder::start(endless), None),
    ];
    for (what, collector, reason) in cases {
        let proxy = Proxy::with(json!({
            "mcpServers": {"s": stub_stdio(&[])}, "telemetry": telemetry(&collector),
        }));
        let mut client = proxy.client();
        for _ in 0..CALLS {
            let answer = client.read("s:read_item", json!({}));
            assert_ne!(answer["isError"], true, "{what}: {answer}");
        }
        until(what, || (!collector.received().is_empty()).then_some(()));
        if let Some(reason) = reason {
            let spans = 2.0 * CALLS as f64;
            until(what, || (dropped(&proxy, reason) >= spans).then_some(()));
            assert_eq!(metric(&proxy, "mcpproxy_spans_exported_total"), 0.0, "{what}");
        }
        if what != "answers without end" {
            let text = || proxy.log().matches("is unavailable; items beyond").count();
            if what != "hangs" {
                until(what, || (text() > 0).then_some(()));
            }
            assert!(text() <= 1, "{what}: reported once: {}", proxy.log());
        }
        // The proxy can be ended nevertheless.
        proxy.end();
    }
}

#[test]
fn collector_over_tls_is_trusted_only_by_the_system_roots() {
    let ca = CertificateAuthority::new("ca");
    let collector = Recorder::secure(&ca.local(), |_, _| ok());
    let trusting = |roots: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("roots.pem");
        write_private(&file, roots);
        let before = format!("unset SSL_CERT_DIR; export SSL_CERT_FILE='{}'", file.display());
        let endpoint = format!("https://localhost:{}", collector.port);
        let config = json!({
            "mcpServers": {"s": stub_stdio(&[])}, "telemetry": {"otlp_endpoint": endpoint},
        });
        Proxy::under(&before, config, folder)
    };
    let proxy = trusting(&ca.pem);
    proxy.client().read("s:read_item", json!({}));
    taken(&proxy, 2.0);
    assert_eq!(collector.received()[0].head[0], "POST /v1/traces HTTP/1.1");
    proxy.end();
    let before = collector.received().len();
    let proxy = trusting(&CertificateAuthority::new("another").pem);
    proxy.client().read("s:read_item", json!({}));
    proxy.assert_logged("is unavailable; items beyond");
    proxy.assert_logged("invalid peer certificate: UnknownIssuer");
    assert_eq!(metric(&proxy, "mcpproxy_spans_exported_total"), 0.0);
    proxy.end();
    assert_eq!(collector.received().len(), before, "nothing was sent to the unverified collector");
}

#[test]
fn rejected_batch_is_sent_again() {
    let collector = Recorder::start(|number, _| match number {
        0 => Reply::Http("503 Service Unavailable", "retry-after: 1\r\n", b"later".to_vec()),
        1 => Reply::Http("429 Too Many Requests", "", Vec::new()),
        _ => ok(),
    });
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&[])}, "telemetry": telemetry(&collector),
    }));
    proxy.client().read("s:read_item", json!({}));
    taken(&proxy, 2.0);
    let received = collector.received();
    assert_eq!(received.len(), 3);
    assert!(received.iter().all(|request| request.body == received[0].body), "the same batch");
    assert!(received.iter().all(|request| request.connection == 0), "over one connection");
    until("the fault is reported", || proxy.log().contains("is available again").then_some(()));
    for reason in ["queue_full", "not_taken", "refused"] {
        assert_eq!(dropped(&proxy, reason), 0.0, "{reason}");
    }
}

#[test]
fn late_collector_gets_the_kept_spans_and_a_part_of_the_rest() {
    let port = free_port();
    let endpoint = format!("http://localhost:{port}/base/");
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&[])}, "telemetry": {"otlp_endpoint": endpoint},
    }));
    proxy.client().read("s:read_item", json!({}));
    until("it is reported", || proxy.log().contains("is unavailable; items beyond").then_some(()));
    // partial_success { rejected_spans: 1, error_message: "old" }
    let collector = Recorder::at(port, |_, _| {
        Reply::Http("200 OK", "", vec![0x0a, 7, 0x08, 1, 0x12, 3, b'o', b'l', b'd'])
    });
    taken(&proxy, 1.0);
    assert_eq!(dropped(&proxy, "refused"), 1.0);
    let request = &collector.received()[0];
    assert_eq!(request.head[0], "POST /base/v1/traces HTTP/1.1");
    assert_eq!(request.headers("content-type"), ["application/x-protobuf"]);
}

#[test]
fn remaining_spans_are_sent_at_shutdown() {
    let collector = collector();
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&[])}, "telemetry": telemetry(&collector),
    }));
    let mut client = proxy.client();
    for _ in 0..7 {
        client.read("s:read_item", json!({}));
    }
    drop(client);
    proxy.end();
    let found: usize = collector.received().iter().map(|request| spans(request).len()).sum();
    assert_eq!(found, 14);
}

#[test]
fn headers_are_expanded_and_the_config_changes_at_run_time() {
    let (first, second) = (collector(), collector());
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "s3cret-token\n").unwrap();
    let reference = format!("Bearer ${{file:{}}}", token.display());
    let config = |collector: &Recorder, ratio: f64| {
        let mut telemetry = telemetry(collector);
        telemetry["otlp_headers"] = json!({"Authorization": reference});
        telemetry["service_name"] = json!("the-proxy");
        telemetry["traces_ratio"] = json!(ratio);
        json!({"mcpServers": {"s": stub_stdio(&[])}, "telemetry": telemetry})
    };
    let proxy = Proxy::with(config(&first, 1.0));
    let mut client = proxy.client();
    client.read("s:read_item", json!({}));
    exported(&first, 2);
    let request = &first.received()[0];
    assert_eq!(request.headers("authorization"), ["Bearer s3cret-token"]);
    let resource = all(all(&request.body, 1)[0], 1)[0];
    assert_eq!(attributes(resource, 1)["service.name"], "the-proxy");
    let reload = |next: Value| {
        let beside = tempfile::tempdir().unwrap();
        let mut next = next;
        next["data_dir"] = json!(proxy.folder.path().join("data"));
        let file = configure(next, beside.path());
        std::fs::copy(file, proxy.folder.path().join("config.json")).unwrap();
        let headers = [("X-API-Key", API_KEY)];
        let answer = proxy.request("POST", "/api/v1/config/reload", &headers, b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
        let changes = proxy.activity("type=config_change&status=success");
        assert_eq!(changes[0]["metadata"]["applied"], json!(["telemetry"]), "{changes:?}");
        assert!(!changes[0].to_string().contains(&first.port.to_string()), "no endpoint is shown");
    };
    reload(config(&second, 1.0));
    client.read("s:read_item", json!({}));
    exported(&second, 2);
    assert_eq!(first.received().len(), 1, "the first collector receives nothing more");
    reload(config(&second, 0.0));
    client.read("s:read_item", json!({}));
    reload(config(&second, 1.0));
    client.read("s:read_item", json!({}));
    assert_eq!(exported(&second, 4).len(), 4, "one call of the two");
    // If the value of a header is unavailable, only the export stops.
    std::fs::remove_file(&token).unwrap();
    reload(config(&first, 1.0));
    client.read("s:read_item", json!({}));
    until("it is dropped", || (dropped(&proxy, "refused") == 2.0).then_some(()));
    proxy.assert_logged("telemetry.otlp_headers.Authorization");
    assert!(!proxy.log().contains("s3cret"), "{}", proxy.log());
    let checked = proxy.cli(&["config", "check"]);
    assert_eq!(checked.code, Some(5), "{}", checked.stderr);
    assert!(checked.stderr.contains("telemetry.otlp_headers.Authorization"), "{}", checked.stderr);
}
