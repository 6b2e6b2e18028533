//! `/metrics` in both text formats of Prometheus.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::harness::{API_KEY, Connection, Proxy, Scripted, stub_stdio, until, write_private};

/// Samples of a scrape: the raw name with its labels, and the value.
fn scrape(proxy: &Proxy) -> BTreeMap<String, f64> {
    let response = proxy.get("/metrics");
    assert_eq!(response.status, 200, "{}", response.text());
    let kind = response.header("content-type").unwrap();
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    let text = response.text();
    assert!(text.ends_with("# EOF\n"), "{text}");
    samples(&text)
}

fn samples(text: &str) -> BTreeMap<String, f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    samples.collect()
}

// TEL-1
#[test]
fn metrics_count_calls_by_tool_variant_and_status_and_show_server_states() {
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
    assert!(!metrics.keys().any(|name| name.contains("made")), "no name invented by an agent");
    for (name, expected) in [
        (r#"mcpproxy_upstream_up{server="s"}"#, 1.0),
        (r#"mcpproxy_upstream_up{server="broken"}"#, 0.0),
        (r#"mcpproxy_decisions_total{policy="intent",decision="blocked"}"#, 1.0),
        (r#"mcpproxy_decisions_total{policy="output_validation",decision="blocked"}"#, 1.0),
        (r#"mcpproxy_refusals_total{reason="unknown"}"#, 1.0),
        (r#"mcpproxy_call_duration_seconds_count{server="s"}"#, 4.0),
        (r#"mcpproxy_call_duration_seconds_bucket{le="+Inf",server="s"}"#, 4.0),
        ("mcpproxy_calls_in_flight", 0.0),
        ("mcpproxy_calls_queued", 0.0),
        ("mcpproxy_config_rejected", 0.0),
        (r#"mcpproxy_verdicts_total{of="answer",verdict="passed"}"#, 2.0),
        (r#"mcpproxy_verdicts_total{of="answer",verdict="failed"}"#, 1.0),
        ("mcpproxy_engine_disagreements_total", 0.0),
        ("mcpproxy_sessions", 1.0),
        ("mcpproxy_held_bytes", 0.0),
        ("mcpproxy_activity_up", 1.0),
        ("mcpproxy_activity_lost_total", 0.0),
    ] {
        assert_eq!(metrics.get(name), Some(&expected), "{name}: {metrics:#?}");
    }
    // The records of six calls and of two decisions.
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
fn server_and_tool_names_that_collide_with_metric_values_are_exposed_unchanged() {
    let (server, tool) = (r#"q"u\o{t}e"#, r#"t"o\ol{x="y"},1"#);
    let scripted = Scripted::start(&[tool]);
    let proxy = Proxy::start(json!({server: scripted.entry()}));
    let answer = proxy.client().call("write", &format!("{server}:{tool}"), json!({}));
    assert!(answer["isError"] != true, "{answer}");
    // In the format of Prometheus a backslash precedes backslashes and quotes.
    let metrics = scrape(&proxy);
    let labels = concat!(
        r#"server="q\"u\\o{t}e",tool="t\"o\\ol{x=\"y\"},1","#,
        r#"variant="call_tool_write",status="success""#,
    );
    assert_eq!(
        metrics.get(&format!("mcpproxy_calls_total{{{labels}}}")),
        Some(&1.0),
        "{metrics:#?}"
    );
    assert_eq!(metrics.get(r#"mcpproxy_upstream_up{server="q\"u\\o{t}e"}"#), Some(&1.0));
}

#[test]
fn number_of_named_series_follows_the_config() {
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
fn metrics_require_the_key_and_reject_query_parameters() {
    let proxy = Proxy::start(json!({}));
    assert_eq!(proxy.request("GET", "/metrics", &[], b"").status, 401);
    assert_eq!(proxy.get("/metrics?x=1").status, 400);
}

#[test]
fn restarts_are_counted_for_every_cause() {
    let servers =
        json!({"s": stub_stdio(&[]), "broken": {"command": "sh", "args": ["-c", "exit 3"]}});
    let proxy = Proxy::start(servers);
    let restarts = |server: &str| {
        let name = format!(r#"mcpproxy_upstream_restarts_total{{server="{server}"}}"#);
        scrape(&proxy).get(&name).copied()
    };
    let connected = || {
        until("it is connected", || {
            let up = scrape(&proxy)[r#"mcpproxy_upstream_up{server="s"}"#];
            (up == 1.0).then_some(())
        });
    };
    connected();
    assert_eq!(restarts("s"), Some(0.0));
    proxy.client().read("s:crash", json!({}));
    until("its end is counted", || (restarts("s") == Some(1.0)).then_some(()));
    connected();
    let post = |path: &str| {
        let answer = proxy.request("POST", path, &[("X-API-Key", API_KEY)], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    post("/api/v1/servers/s/restart");
    until("its operator's restart is counted", || (restarts("s") == Some(2.0)).then_some(()));
    connected();
    // A changed entry in the config replaces the server, which keeps its count.
    let file = proxy.folder.path().join("config.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["mcpServers"]["s"]["env"] = json!({"ANOTHER": "1"});
    write_private(&file, &config.to_string());
    post("/api/v1/config/reload");
    until("its replacement is counted", || (restarts("s") == Some(3.0)).then_some(()));
    // A disabled server is not restarted, and keeps its counter.
    post("/api/v1/servers/s/disable");
    assert_eq!(restarts("s"), Some(3.0));
    post("/api/v1/servers/s/enable");
    connected();
    assert_eq!(restarts("s"), Some(3.0));
    until("attempts that fail are counted", || (restarts("broken") >= Some(2.0)).then_some(()));
}

#[test]
fn server_states_are_distinguished() {
    let mut off = stub_stdio(&[]);
    off["enabled"] = json!(false);
    let proxy = Proxy::start(
        json!({"on": stub_stdio(&[]), "off": off, "broken": {"command": "/nonexistent/server"}}),
    );
    let metrics = scrape(&proxy);
    for (server, expected, up) in
        [("on", "connected", Some(1.0)), ("off", "disabled", None), ("broken", "failed", Some(0.0))]
    {
        for state in ["disabled", "connecting", "connected", "failed", "throttled", "needs-login"] {
            let name = format!(r#"mcpproxy_upstream_state{{server="{server}",state="{state}"}}"#);
            let is_it = f64::from(u8::from(state == expected));
            assert_eq!(metrics.get(&name), Some(&is_it), "{name}: {metrics:#?}");
        }
        let name = format!(r#"mcpproxy_upstream_up{{server="{server}"}}"#);
        assert_eq!(metrics.get(&name).copied(), up, "{name}");
    }
    let states = metrics.keys().filter(|name| name.starts_with("mcpproxy_upstream_state"));
    assert_eq!(states.count(), 18);
}

#[test]
fn queued_calls_are_exposed() {
    let server = Scripted::start(&["plain_held"]);
    let mut entry = server.entry();
    entry["capabilities"] = json!({"plain_held": {"parallel_safe": false}});
    let proxy = Proxy::start(json!({"s": entry}));
    let queued = |count: f64| {
        until("calls wait", || (scrape(&proxy)["mcpproxy_calls_queued"] == count).then_some(()));
    };
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let mut client = proxy.client();
            client.begin("write", "s:plain_held", json!({}));
            client
        })
        .collect();
    queued(2.0);
    drop(clients);
    queued(0.0);
}

#[test]
fn rejected_config_is_exposed_until_it_is_repaired() {
    let proxy = Proxy::start(json!({}));
    let file = proxy.folder.path().join("config.json");
    let good = std::fs::read_to_string(&file).unwrap();
    let rejected = |value: f64| {
        proxy.request("POST", "/api/v1/config/reload", &[("X-API-Key", API_KEY)], b"");
        assert_eq!(scrape(&proxy)["mcpproxy_config_rejected"], value);
    };
    write_private(&file, "{");
    rejected(1.0);
    write_private(&file, &good);
    rejected(0.0);
}

#[test]
fn verdicts_are_counted_including_those_that_pass() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    // The last answer is an error of the tool, which is not validated.
    for (tool, arguments) in [
        ("read_item", json!({})),
        ("read_item", json!({"size": 1})),
        ("read_item", json!({"size": "wrong"})),
        ("violate", json!({})),
        ("error_first", json!({})),
    ] {
        client.read(&format!("s:{tool}"), arguments);
    }
    let verdicts = |of: &str| {
        let metrics = scrape(&proxy);
        ["passed", "failed", "unasked", "unjudged"].map(|verdict| {
            let name = format!(r#"mcpproxy_verdicts_total{{of="{of}",verdict="{verdict}"}}"#);
            metrics.get(&name).copied()
        })
    };
    assert_eq!(verdicts("arguments"), [Some(4.0), Some(1.0), None, Some(0.0)]);
    // In mode `warn` an answer is validated while its reply is already being sent.
    until("it is judged", || (verdicts("answer") == [2.0, 1.0, 1.0, 0.0].map(Some)).then_some(()));
}

#[test]
fn older_text_format_is_served_on_request_with_the_same_samples() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    proxy.client().read("s:read_item", json!({}));
    // A call is counted at its end, which may be after its answer.
    until("the call is counted", || {
        let counted = |name: &String| name.starts_with("mcpproxy_calls_total{server=\"s\"");
        scrape(&proxy).keys().any(counted).then_some(())
    });
    let accept = "application/openmetrics-text;q=0.2, text/plain;version=0.0.4";
    let headers = [("X-API-Key", API_KEY), ("Accept", accept)];
    let response = proxy.request("GET", "/metrics", &headers, b"");
    assert_eq!(response.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert_eq!(response.header("vary"), Some("Accept"));
    let text = response.text();
    assert!(!text.contains("# EOF"), "{text}");
    let older = samples(&text);
    let newer = scrape(&proxy);
    assert_eq!(older.keys().collect::<Vec<_>>(), newer.keys().collect::<Vec<_>>());
    // There is a description for the name of each sample; the samples of a histogram share one.
    for name in older.keys() {
        let name = name.split('{').next().unwrap();
        let of_histogram =
            ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it));
        let name = of_histogram.unwrap_or(name);
        for word in ["HELP", "TYPE"] {
            assert!(text.contains(&format!("# {word} {name} ")), "{word} {name}: {text}");
        }
    }
}

/// Cluster key of a fleet, whose shared facts are exposed.
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const OPERATION: &str = include_str!("../../src/guide/operation.md");
const ALERTS: &str = include_str!("../../tools/metrics/alerts.yml");

/// The first two cells of each table row that begins with a name in backticks.
fn rows(prefix: &str) -> BTreeMap<String, BTreeSet<String>> {
    let cells = OPERATION.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|');
        let name = cells.next()?.trim().strip_suffix('`')?;
        let labels = cells.next()?.split(',').map(|it| it.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        name.starts_with(prefix).then(|| (name.to_owned(), labels))
    });
    cells.collect()
}

// TEL-1
#[test]
fn guide_names_every_metric_with_its_labels_and_every_alert() {
    let store = tempfile::tempdir().unwrap();
    let url = format!("file://{}", store.path().display());
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&[])},
        "cluster": {"store": url, "node": "a", "key": KEY},
    }));
    proxy.client().read("s:read_item", json!({}));
    let headers = [("X-API-Key", API_KEY), ("Accept", "text/plain")];
    let text = proxy.request("GET", "/metrics", &headers, b"").text();
    let described = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let described: BTreeSet<&str> = described.collect();
    let reported = rows("mcpproxy_");
    assert_eq!(reported.keys().map(String::as_str).collect::<BTreeSet<_>>(), described);
    for sample in samples(&text).keys() {
        let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let of_histogram =
            ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it));
        let labels = labels.trim_end_matches('}').split("\",");
        let labels = labels.filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        let labels: BTreeSet<String> = labels.filter(|label| label != "le").collect();
        assert_eq!(reported[of_histogram.unwrap_or(name)], labels, "{sample}");
    }
    let alerts = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: BTreeSet<&str> = alerts.collect();
    assert_eq!(rows("Mcpproxy").keys().map(String::as_str).collect::<BTreeSet<_>>(), alerts);
}

/// Requests `count` scrapes over one connection, without reading a response.
fn begin_scrapes(proxy: &Proxy, count: usize) -> Connection {
    let mut connection = Connection::open(proxy.port);
    let one = format!("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {API_KEY}\r\n\r\n");
    connection.raw(one.repeat(count).as_bytes());
    connection
}

#[test]
fn unread_scrapes_take_no_memory_and_do_not_delay_others() {
    /// Size in bytes of the answers on one connection, more than the capacity of its sockets.
    const BYTES: usize = 24 << 20;
    const HANGING: usize = 4;
    /// A small part of the size of the answers.
    const GROWTH_KB: u64 = 24 << 10;
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--only", "read_item"])}));
    let mut client = proxy.client();
    let peak = || {
        let file = format!("/proc/{}/status", proxy.process.0.id());
        let status = std::fs::read_to_string(file).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let open = || proxy.api("status")["load"]["connections"].as_u64().unwrap();
    let count = BYTES / proxy.get("/metrics").text().len();
    let (before, open_before) = (peak(), open());
    let mut hanging: Vec<_> = (0..HANGING).map(|_| begin_scrapes(&proxy, count)).collect();
    for _ in 0..100 {
        let result = client.read("s:read_item", json!({}));
        assert_eq!(result["structuredContent"]["value"], 7, "{result}");
        scrape(&proxy);
    }
    // A client that reads late receives every answer completely. The other clients disconnect without reading an
    // answer.
    let mut late = hanging.pop().unwrap();
    for at in 0..count {
        let response = late.response();
        assert_eq!(response.status, 200, "{at} of {count}");
        assert!(response.whole && response.text().ends_with("# EOF\n"), "{at} of {count}");
    }
    // The kernel counts pages per core and adds them up later, so the reported peak may be lower than an earlier one.
    let grown = peak().saturating_sub(before);
    assert!(grown < GROWTH_KB, "{grown} KB for {HANGING} times {count} scrapes");
    drop((hanging, late));
    until("their connections are closed", || (open() <= open_before).then_some(()));
}
