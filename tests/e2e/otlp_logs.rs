//! Log lines over OTLP: the lines that a collector receives, and collectors that hang.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::protobuf::{all, attributes, hex, number, text};
use crate::harness::{Proxy, Received, Recorder, Reply, stub_stdio, until};
use crate::tracing::{collector, metric, telemetry};

#[derive(Debug)]
struct ExportedLine {
    severity: u64,
    level: String,
    body: String,
    attributes: BTreeMap<String, String>,
    trace: String,
    span: String,
}

fn of_path<'a>(received: &'a [Received], path: &str) -> Vec<&'a Received> {
    let first = format!("POST {path} ");
    received.iter().filter(|it| it.head[0].starts_with(&first)).collect()
}

fn lines(collector: &Recorder) -> Vec<ExportedLine> {
    let received = collector.received();
    let mut found = Vec::new();
    for of_us in of_path(&received, "/v1/logs").iter().flat_map(|it| all(&it.body, 1)) {
        for line in all(of_us, 2).into_iter().flat_map(|scope| all(scope, 2)) {
            found.push(ExportedLine {
                severity: number(line, 2),
                level: text(line, 3),
                body: text(all(line, 5)[0], 1),
                attributes: attributes(line, 6),
                trace: hex(line, 9),
                span: hex(line, 10),
            });
        }
    }
    found
}

fn proxy(collector: &Recorder, more: Value) -> Proxy {
    let mut telemetry = telemetry(collector);
    telemetry["logs"] = json!(true);
    let mut config = json!({"mcpServers": {"s": stub_stdio(&[])}, "telemetry": telemetry});
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    Proxy::with(config)
}

// TEL-3
#[test]
fn log_lines_reach_the_collector_and_name_the_trace_of_their_call() {
    let collector = collector();
    let proxy = proxy(&collector, json!({"output_validation": {"mode": "warn"}}));
    proxy.client().read("s:violate", json!({"secret": "p4yload"}));
    let in_call = |line: &ExportedLine| !line.trace.is_empty();
    until("a line of the call", || lines(&collector).iter().any(in_call).then_some(()));
    let found = lines(&collector);
    let of_call = found.iter().find(|it| in_call(it)).unwrap();
    let record = &proxy.activity("type=tool_call")[0];
    assert_eq!((&record["metadata"]["trace_id"], of_call.span.len()), (&json!(of_call.trace), 16));
    let bare = found.iter().find(|it| !in_call(it)).expect("a line that no call logs");
    assert!(bare.severity >= 5 && !bare.level.is_empty() && !bare.body.is_empty(), "{bare:?}");
    assert!(bare.attributes["code.namespace"].starts_with("mcpproxy"), "{bare:?}");
    assert!(!format!("{found:?}").contains("p4yload"), "{found:?}");
    until("they are counted", || {
        (metric(&proxy, "mcpproxy_log_records_exported_total") > 0.0).then_some(())
    });
}

#[test]
fn log_lines_are_exported_only_if_enabled_and_a_reload_switches_it() {
    let collector = collector();
    let telemetry = telemetry(&collector);
    let config = json!({"mcpServers": {"s": stub_stdio(&[])}, "telemetry": telemetry});
    let proxy = Proxy::with(config);
    proxy.client().read("s:read_item", json!({}));
    until("spans are exported", || {
        (!of_path(&collector.received(), "/v1/traces").is_empty()).then_some(())
    });
    assert!(of_path(&collector.received(), "/v1/logs").is_empty());
    let path = proxy.folder.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let on = text.replacen("\"otlp_endpoint\"", "\"logs\": true, \"otlp_endpoint\"", 1);
    assert_ne!(on, text);
    crate::harness::write_private(&path, &on);
    until("it is in force", || {
        let applied = proxy.activity("type=config_change&status=success");
        applied.iter().any(|it| it["metadata"]["applied"] == json!(["telemetry"])).then_some(())
    });
    // Its next log lines are exported.
    let restarted = proxy.cli(&["upstream", "restart", "s"]);
    assert_eq!(restarted.code, Some(0), "{}", restarted.stderr);
    until("lines are exported", || (!lines(&collector).is_empty()).then_some(()));
}

#[test]
fn hanging_collector_does_not_delay_calls_and_delays_shutdown_within_its_bound() {
    let collector = Recorder::start(|_, _| Reply::Hang);
    let mut proxy = proxy(&collector, json!({"logging": {"level": "debug"}}));
    let mut client = proxy.client();
    until("both wait for it", || {
        client.read("s:read_item", json!({}));
        let received = collector.received();
        let asked = |path| !of_path(&received, path).is_empty();
        (asked("/v1/logs") && asked("/v1/traces")).then_some(())
    });
    for _ in 0..50 {
        let result = client.read("s:read_item", json!({}));
        assert!(result["isError"] != true, "{result}");
    }
    proxy.process.signal("TERM");
    assert_eq!(proxy.process.wait(), Some(0), "{}", proxy.log());
}
