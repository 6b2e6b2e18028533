//! `/metrics`, as Prometheus reads it.

use std::collections::BTreeMap;

use serde_json::json;

use crate::harness::{Proxy, stub_stdio, until};

/// The samples of a scrape: name and labels as they stand, and the value.
fn scrape(proxy: &Proxy) -> BTreeMap<String, f64> {
    let response = proxy.get("/metrics");
    assert_eq!(response.status, 200, "{}", response.text());
    let kind = response.header("content-type").unwrap();
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    let text = response.text();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    samples.collect()
}

#[test]
fn metrics_count_calls_by_tool_variant_and_status_and_tell_how_servers_are() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&[]), "broken": {"command": "/nonexistent/server"}},
        "output_validation": {"mode": "strict"},
    }));
    let mut client = proxy.client();
    for tool in ["read_item", "read_item", "error", "delete_item", "made\"up", "violate"] {
        client.read(&format!("s:{tool}"), json!({}));
    }
    let metrics = scrape(&proxy);
    let calls = |tool: &str, status: &str| {
        let labels =
            format!(r#"server="s",tool="{tool}",variant="call_tool_read",status="{status}""#);
        metrics.get(&format!("mcpproxy_calls_total{{{labels}}}")).copied()
    };
    assert_eq!(calls("read_item", "success"), Some(2.0), "{metrics:?}");
    assert_eq!(calls("error", "error"), Some(1.0));
    assert_eq!(calls("delete_item", "rejected"), Some(1.0));
    assert_eq!(calls("violate", "blocked"), Some(1.0));
    assert!(!metrics.keys().any(|name| name.contains("made")), "no name that an agent made up");
    for (name, expected) in [
        (r#"mcpproxy_upstream_up{server="s"}"#, 1.0),
        (r#"mcpproxy_upstream_up{server="broken"}"#, 0.0),
        (r#"mcpproxy_decisions_total{policy="intent",decision="blocked"}"#, 1.0),
        (r#"mcpproxy_decisions_total{policy="output_validation",decision="blocked"}"#, 1.0),
        (r#"mcpproxy_refusals_total{reason="unknown"}"#, 1.0),
        (r#"mcpproxy_call_duration_seconds_count{server="s"}"#, 4.0),
        (r#"mcpproxy_call_duration_seconds_bucket{le="+Inf",server="s"}"#, 4.0),
        ("mcpproxy_calls_in_flight", 0.0),
        ("mcpproxy_sessions", 1.0),
        ("mcpproxy_held_bytes", 0.0),
        ("mcpproxy_activity_up", 1.0),
        ("mcpproxy_activity_lost_total", 0.0),
    ] {
        assert_eq!(metrics.get(name), Some(&expected), "{name}: {metrics:#?}");
    }
    // Six calls and two decisions.
    until("all is written", || {
        (scrape(&proxy)["mcpproxy_activity_records_total"] >= 8.0).then_some(())
    });
    let version = metrics.keys().find(|name| name.starts_with("mcpproxy_build_info")).unwrap();
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");

    client.read("s:read_item", json!({}));
    let later = scrape(&proxy);
    for (name, before) in metrics.iter().filter(|(name, _)| name.contains("_total")) {
        assert!(later[name] >= *before, "{name} fell");
    }
}

#[test]
fn as_many_series_are_named_as_the_config_says() {
    let servers = json!({"s": stub_stdio(&["--only", "read_item,echo,text"])});
    let proxy = Proxy::with(json!({"mcpServers": servers, "telemetry": {"max_series": 1}}));
    let mut client = proxy.client();
    for tool in ["read_item", "read_item", "echo", "text"] {
        client.read(&format!("s:{tool}"), json!({}));
    }
    let metrics = scrape(&proxy);
    let calls = |(name, count): (&String, &f64)| {
        Some((name.strip_prefix("mcpproxy_calls_total")?.contains("other"), *count))
    };
    let counted: Vec<_> = metrics.iter().filter_map(calls).collect();
    let of = |other: bool| counted.iter().filter(move |it| it.0 == other);
    assert_eq!(of(false).count(), 1, "{metrics:#?}");
    assert!(of(true).count() >= 1, "{metrics:#?}");
    assert_eq!(counted.iter().map(|it| it.1).sum::<f64>(), 4.0, "none is lost: {metrics:#?}");
}

#[test]
fn metrics_name_servers_and_ask_for_the_key() {
    let proxy = Proxy::start(json!({}));
    assert_eq!(proxy.request("GET", "/metrics", &[], b"").status, 401);
    assert_eq!(proxy.get("/metrics?x=1").status, 400);
}
