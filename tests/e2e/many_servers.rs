//! Many servers, and servers that change continuously: nothing is lost, no work is repeated needlessly, and no other server
//! is delayed.

use serde_json::{Map, Value, json};

use crate::harness::{Connection, Events, HttpStub, Proxy, stub_stdio, until};

const SERVERS: usize = 100;
const TOOLS: usize = 5;
/// Maximum number of threads of a proxy, regardless of the number of connections. Threads for blocking work are kept
/// for ten seconds.
const MAX_THREADS: u64 = 100;

/// A numeric field of `/proc/PID/status`.
fn of_process(proxy: &Proxy, what: &str) -> u64 {
    let path = format!("/proc/{}/status", proxy.process.0.id());
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn many_servers_at_once_are_all_listed_with_few_threads_and_again_after_a_restart() {
    let stub = HttpStub::start(&["--own", &TOOLS.to_string()]);
    let entry = |at: usize| json!({"url": format!("http://127.0.0.1:{}/s{at}", stub.port)});
    let mut servers: Map<String, Value> =
        (0..SERVERS).map(|at| (format!("server-{at:03}"), entry(at))).collect();
    for at in 0..2 {
        let own = stub_stdio(&["--own", &TOOLS.to_string()]);
        servers.insert(format!("child-{at}"), own);
    }
    let config = json!({"mcpServers": servers});
    let proxy = Proxy::with(config.clone());
    let threads = of_process(&proxy, "Threads");
    assert!(threads <= MAX_THREADS, "{threads} threads");
    let all = (servers.len() * TOOLS) as u64;
    let check = |proxy: &Proxy| {
        let status = proxy.api("status");
        assert_eq!(status["servers"]["connected"], servers.len(), "{status}");
        assert_eq!((&status["tools"], &status["faults"]), (&json!(all), &json!([])));
        // Words that occur in the tools of one server only.
        let found = proxy.api("tools?q=s77&limit=100")["tools"].clone();
        let found = found.as_array().unwrap();
        assert_eq!(found.len(), TOOLS, "{found:?}");
        assert!(found.iter().all(|tool| tool["server"] == "server-077"));
    };
    check(&proxy);
    let records = proxy.activity("type=catalog_change&server=server-077");
    assert_eq!(records.len(), 1, "each server has a record of its own: {records:?}");
    assert_eq!(records[0]["status"], "success", "{records:?}");
    let folder = proxy.end();
    let proxy = Proxy::unready(config.clone(), folder);
    until("the tools are listed again", || {
        (proxy.api("status")["tools"] == json!(all)).then_some(())
    });
    let proxy = proxy.ready();
    check(&proxy);
    let proxy = Proxy::unready(config, proxy.end()).ready();
    let records = proxy.activity("type=catalog_change&server=server-077");
    assert_eq!(records.len(), 1, "the same tools at the next starts are no change: {records:?}");
}

#[test]
fn server_that_continuously_announces_tool_changes_is_listed_increasingly_rarely() {
    const LOGGED: &str = "tool list changes too often";
    let proxy = Proxy::start(json!({
        "storm": stub_stdio(&["--restless", "--only", "read_item,stats"]),
        "calm": stub_stdio(&[]),
    }));
    let mut client = proxy.client();
    until("it is logged", || {
        // Calls to other servers are not delayed.
        let result = client.read("calm:read_item", json!({}));
        assert_eq!(result["structuredContent"]["value"], 7, "{result}");
        proxy.log().contains(LOGGED).then_some(())
    });
    // The tools are listed at the start, and after 0.25, 0.5, 1 and 2 seconds. The next time is after 4 seconds.
    let result = client.read("storm:stats", json!({}));
    let lists = result["structuredContent"]["lists"].as_u64().unwrap();
    assert!((3..=6).contains(&lists), "{lists} lists");
    until("one more is made", || {
        let result = client.read("storm:stats", json!({}));
        (result["structuredContent"]["lists"].as_u64().unwrap() > lists).then_some(())
    });
    proxy.assert_lines_logged(1, |line| line.contains(LOGGED));
    let records = proxy.activity("type=catalog_change&status=success&server=storm");
    assert!(records.len() as u64 <= lists + 1, "{} records of {lists} lists", records.len());
}

#[test]
fn clients_are_notified_increasingly_rarely_of_a_continuously_changing_list() {
    const LOGGED: &str =
        "list of resources changes too often; notifications to clients are throttled";
    // Notifications are sent at once, and after 0.5, 1, 2, 4, 8, 16 and 30 seconds; no more follow within the next
    // minute.
    const MAX: usize = 8;
    let proxy = Proxy::start(json!({
        "storm": stub_stdio(&["--restless", "--offers", "--only", "stats"]),
    }));
    let mut client = proxy.client();
    let mut stream = Connection::open(proxy.port);
    let headers = [("Mcp-Session-Id", &*client.session), ("Accept", "text/event-stream")];
    stream.send("GET", "/mcp", &headers, b"");
    let mut events = Events::of(stream);
    until("it is logged", || proxy.log().contains(LOGGED).then_some(()));
    // The server reports the change of a subscribed resource after all of these notifications.
    let shared = json!({"uri": "mcpproxy://storm/test://shared"});
    for _ in 0..3 {
        assert_eq!(client.ask("resources/subscribe", shared.clone())["result"], json!({}));
    }
    let (mut resources, mut prompts) = (0, 0);
    loop {
        let event = events.next().expect("the stream stands");
        match event.data.as_str() {
            data if data.contains("notifications/resources/updated") => break,
            data if data.contains("notifications/resources/list_changed") => resources += 1,
            data if data.contains("notifications/prompts/list_changed") => prompts += 1,
            _ => {}
        }
    }
    assert!(resources <= MAX && prompts <= MAX, "{resources} and {prompts} times");
    while resources == 0 {
        let event = events.next().expect("the stream stands");
        resources += usize::from(event.data.contains("notifications/resources/list_changed"));
    }
    proxy.assert_lines_logged(1, |line| line.contains(LOGGED));
}
