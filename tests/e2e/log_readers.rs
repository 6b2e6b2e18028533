//! Followers and exports of the activity log that stop reading. Their number is bounded, they are notified and lose no
//! records, and they do not delay others.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{API_KEY, Connection, PATIENCE, Process, Proxy, configure, stub_stdio, until};

/// Size in bytes of the arguments of each call, all of which are recorded.
const ARGUMENTS: usize = 60_000;
/// Number of calls whose records together exceed the capacity of any socket.
const CALLS: usize = 250;
/// Longer than the maximum pause of a reader.
const TOO_LONG_MS: u64 = 10_500;

fn proxy() -> Proxy {
    Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&["--only", "read_item"])},
        "activity": {"max_payload_bytes": 65536},
    }))
}

/// Opens `path` and reads only the head of the response.
fn open(proxy: &Proxy, path: &str, headers: &[(&str, &str)]) -> Connection {
    let mut connection = Connection::open(proxy.port);
    connection.send("GET", path, &[&[("X-API-Key", API_KEY)], headers].concat(), b"");
    assert_eq!(connection.head().0, 200, "{path}");
    connection
}

/// Makes `count` calls with large arguments.
fn make_calls(proxy: &Proxy, count: usize) {
    let mut client = proxy.client();
    let text = "x".repeat(ARGUMENTS);
    for _ in 0..count {
        client.read("s:read_item", json!({"text": text}));
    }
}

/// Number of a record.
fn seq(json: &str) -> u64 {
    let record: Value = serde_json::from_str(json).unwrap();
    record["seq"].as_u64().unwrap_or_else(|| panic!("{record}"))
}

/// Asserts that a further reader of `path` is refused.
fn assert_refused(proxy: &Proxy, path: &str, words: &str) {
    // HEAD first, because the body of an accepted reader would never end.
    let mut connection = Connection::open(proxy.port);
    connection.send("HEAD", path, &[("X-API-Key", API_KEY)], b"");
    assert_eq!(connection.head().0, 503, "{path}");
    let response = proxy.get(path);
    let text = response.json()["error"].as_str().unwrap().to_owned();
    assert!(text.contains(words), "{text}");
    assert_eq!(response.header("retry-after"), Some("5"));
}

#[test]
fn readers_and_exports_are_limited_and_surplus_ones_get_a_retry_time() {
    let proxy = proxy();
    let mut client = proxy.client();
    let watchers: Vec<_> = (0..64).map(|_| open(&proxy, "/events", &[])).collect();
    assert_refused(&proxy, "/events", "64 readers of /events are under way");
    make_calls(&proxy, CALLS);
    let path = "/api/v1/activity/export";
    let exports: Vec<_> = (0..4).map(|_| open(&proxy, path, &[])).collect();
    assert_refused(&proxy, path, "4 exports of the activity log are under way");
    assert_eq!(client.read("s:read_item", json!({}))["structuredContent"]["value"], 7);
    drop((watchers, exports));
    until("a place is free", || {
        let mut connection = Connection::open(proxy.port);
        connection.send("GET", "/events", &[("X-API-Key", API_KEY)], b"");
        (connection.head().0 == 200).then_some(())
    });
    until("an export is possible", || (proxy.get(path).status == 200).then_some(()));
}

#[test]
fn act_7_export_resumes_after_a_record_without_a_second_header() {
    let proxy = proxy();
    make_calls(&proxy, 3);
    let get = |query: &str| proxy.get(&format!("/api/v1/activity/export?{query}"));
    let whole = get("").text();
    let lines: Vec<&str> = whole.lines().collect();
    let first: Value = serde_json::from_str(lines[0]).unwrap();
    let after = format!("after={}", first["id"].as_str().unwrap());
    assert_eq!(get(&after).text(), lines[1..].iter().map(|l| format!("{l}\n")).collect::<String>());
    let csv = get(&format!("format=csv&{after}")).text();
    assert_eq!(csv.split_terminator("\r\n").count(), lines.len() - 1);
    assert!(!csv.starts_with("id,"), "{csv:.40}");
    for (bad, status, words) in [
        ("nonsense", 400, "Invalid after 'nonsense'"),
        ("", 400, "Invalid after ''"),
        ("7ZZZZZZZZZZZZZZZZZZZZZZZZZ", 404, "no longer retained"),
    ] {
        let response = get(&format!("after={bad}"));
        assert_eq!(response.status, status, "{bad}");
        assert!(response.text().contains(words), "{}", response.text());
    }
}

/// Record numbers in the JSON lines that a child has printed; its output was not read before.
fn seqs_of(child: &mut Process, count: usize) -> Vec<u64> {
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    lines.take(count).map(|line| seq(&line.unwrap())).collect()
}

#[test]
fn act_7_reader_that_stops_reading_gets_its_resume_point_and_the_command_line_resumes() {
    let proxy = proxy();
    let mut events = open(&proxy, "/events", &[]);
    let hello = String::from_utf8(events.chunk().unwrap()).unwrap();
    let begin = hello.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    let begun = seq(&proxy.api(&format!("activity/{begin}"))["activity"].to_string());
    let spawn = |args: &[&str]| {
        let mut command = proxy.command(args);
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()))
    };
    let mut watch = spawn(&["activity", "watch", "--json"]);
    // The watcher is connected once it has received a record.
    let mut watched = BufReader::new(watch.0.stdout.take().unwrap());
    let mut line = String::new();
    std::thread::scope(|scope| {
        let seen = scope.spawn(|| watched.read_line(&mut line).unwrap());
        until("the watcher has seen a record", || {
            make_calls(&proxy, 1);
            seen.is_finished().then_some(())
        });
    });
    let first = seq(&line);
    make_calls(&proxy, CALLS);
    let mut export = open(&proxy, "/api/v1/activity/export?type=tool_call", &[]);
    let mut exporting = spawn(&["activity", "export", "--output", "-", "--type", "tool_call"]);
    let filter = "type=tool_call&limit=1&with_total=true";
    let total = proxy.api(&format!("activity?{filter}"))["total"].as_u64().unwrap() as usize;
    let last = proxy.activity("type=tool_call")[0]["seq"].as_u64().unwrap();
    // Exports run alternately: once this one is complete, the other one has filled its sockets.
    assert!(proxy.get("/api/v1/activity/export?type=tool_call").whole);
    // No reader reads during this call; the call is not delayed.
    let long = proxy.client().read("s:read_item", json!({"wait_ms": TOO_LONG_MS}));
    assert_eq!(long["structuredContent"]["value"], 7);
    assert!(PATIENCE.as_millis() > u128::from(TOO_LONG_MS));

    // Events: all records in order, then the reason for the end and the resume position, then a proper end of the body.
    let (mut text, mut next, mut words) = (String::new(), begun + 1, None);
    while let Some(chunk) = events.chunk().filter(|chunk| !chunk.is_empty()) {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let field = |name| event.lines().find_map(|line| line.strip_prefix(name));
            match (field("event: "), field("data: ")) {
                (Some("activity"), Some(data)) => {
                    assert_eq!(seq(data), next);
                    next += 1;
                }
                (Some("cut-off"), Some(data)) => words = serde_json::from_str::<Value>(data).ok(),
                _ => assert!(event.starts_with(':'), "{event}"),
            }
            text = rest.to_owned();
        }
    }
    assert!(next <= last, "it was cut off: {next} of {last}");
    let words = words.expect("a reason");
    assert!(words["error"].as_str().unwrap().starts_with("nothing was read for "), "{words}");
    let after = [("Last-Event-ID", words["resume_after"].as_str().unwrap())];
    let mut resumed = open(&proxy, "/events", &after);
    let hello = resumed.chunk().unwrap();
    assert!(hello.starts_with(b"retry: "));
    let head = String::from_utf8(resumed.chunk().unwrap()).unwrap();
    let data = head.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    assert_eq!(seq(data), next, "the one after the last");

    // An export: complete lines, of which the last one has the reason, without a proper end of the body.
    let mut body = Vec::new();
    while let Some(chunk) = export.chunk() {
        assert!(!chunk.is_empty(), "it breaks off");
        body.extend(chunk);
    }
    let body = String::from_utf8(body).unwrap();
    let lines: Vec<&str> = body.lines().collect();
    let (words, records) = lines.split_last().unwrap();
    let words: Value = serde_json::from_str(words).unwrap();
    assert!(words["error"].as_str().unwrap().starts_with("nothing was read for "), "{words}");
    let record: Value = serde_json::from_str(records.last().unwrap()).unwrap();
    assert_eq!(words["resume_after"], record["id"]);
    assert!(records.len() < total, "{} of {total}", records.len());

    // The command line has resumed without intervention: it has every record once, in order.
    let seqs = seqs_of(&mut exporting, usize::MAX);
    assert!(seqs.is_sorted_by(|a, b| a < b));
    assert!(seqs.len() >= total, "{} of {total}", seqs.len());
    assert_eq!(exporting.wait(), Some(0));
    let watched = watched.lines().map(|line| seq(&line.unwrap()));
    let watched: Vec<u64> = watched.take_while(|seq| *seq < last).collect();
    assert_eq!(watched, (first + 1..last).collect::<Vec<_>>());
}

#[test]
fn export_in_progress_under_a_replaced_api_key_is_aborted() {
    let proxy = proxy();
    make_calls(&proxy, CALLS);
    let mut export = open(&proxy, "/api/v1/activity/export?type=tool_call", &[]);
    let key = "another-key-of-more-than-thirty-two-characters";
    let data = proxy.folder.path().join("data");
    configure(json!({"api_key": key, "data_dir": data}), proxy.folder.path());
    until("the new key is in force", || {
        let asked = proxy.request("GET", "/api/v1/status", &[("X-API-Key", key)], b"");
        (asked.status == 200).then_some(())
    });
    let mut last = export.chunk();
    while last.as_ref().is_some_and(|chunk| !chunk.is_empty()) {
        last = export.chunk();
    }
    assert_eq!(last, None, "it does not end as if it were whole");
}
