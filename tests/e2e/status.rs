//! The operator's view of calls and faults: counts, and causes.

use serde_json::json;

use crate::harness::{Proxy, stub_stdio};

#[test]
fn status_counts_calls_by_outcome_and_reports_faults() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&[]), "broken": {"command": "/nonexistent/server"}},
        "output_validation": {"mode": "strict"},
    }));
    let mut client = proxy.client();
    for tool in ["read_item", "read_item", "plain", "error", "delete_item", "nothing", "violate"] {
        client.read(&format!("s:{tool}"), json!({}));
    }
    let status = proxy.api("status");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    // Builds for tests do not read the commit from git.
    assert_eq!(status["commit"], option_env!("MCPPROXY_COMMIT").unwrap_or("unknown"));
    let calls = &status["calls"];
    let count = |name: &str| calls[name].as_u64().unwrap();
    let counted = ["total", "success", "error", "blocked", "rejected", "in_flight"].map(count);
    assert_eq!(counted, [7, 3, 2, 1, 1, 0], "{calls}");
    let refusals = &calls["refusals"];
    assert_eq!((&refusals["gate"], &refusals["unknown"]), (&json!(1), &json!(1)), "{refusals}");
    assert_eq!(refusals["upstream"], 0, "{refusals}");
    let decisions = &calls["decisions"];
    assert_eq!(decisions["output_validation"], json!({"blocked": 1, "warning": 0}), "{decisions}");
    // Reading `plain`, a tool without annotations, causes a warning.
    assert_eq!(decisions["intent"], json!({"blocked": 1, "warning": 1}), "{decisions}");
    let us = |part: &str, at: &str| calls[part][at].as_u64().unwrap();
    assert!(us("duration_us", "p50") <= us("duration_us", "p99"), "{calls}");
    assert!(us("upstream_us", "p99") <= us("duration_us", "p99"), "{calls}");
    assert!(us("overhead_us", "p50") > 0, "{calls}");

    let load = &status["load"];
    assert_eq!(load["sessions"], 1);
    assert!(load["connections"].as_u64().unwrap() >= 1, "{load}");
    assert_eq!(load["held"], json!({"bytes": 0, "limit": 512 << 20}));

    let faults = status["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!((&faults[0]["part"], &faults[0]["server"]), (&json!("server"), &json!("broken")));
    assert!(faults[0]["cause"].as_str().unwrap().contains("/nonexistent/server"), "{faults:?}");

    let servers = proxy.api("servers")["servers"].clone();
    let of = |name: &str| {
        let mut all = servers.as_array().unwrap().iter();
        all.find(|server| server["name"] == name).unwrap()["calls"].clone()
    };
    // Five calls were sent; the refused one and the one to an unknown tool count as well.
    let counts = ["total", "blocked", "rejected"].map(|name| of("s")[name].clone());
    assert_eq!(counts, [json!(7), json!(1), json!(1)]);
    assert_eq!(
        (&of("broken")["total"], &of("broken")["duration_us"]["p50"]),
        (&json!(0), &json!(null))
    );
    let listed = proxy.cli(&["upstream", "list"]);
    assert!(listed.stdout.contains("CALLS") && listed.code == Some(0), "{}", listed.stdout);
}
