//! Records of a whole fleet, queried at any node: every node returns the same records, each once and in order, sealed
//! or not. Nodes that do not answer are named.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{API_KEY, Connection, Events, Proxy, free_port, stub_stdio, until};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const CALLS: &str = "type=tool_call";

/// The longest flush interval, so that nothing is sealed while a test runs.
const NEVER: &str = "1h";
const SOON: &str = "100ms";

fn node(store: &TempDir, name: &str, index: Value, flush: &str) -> Proxy {
    let port = free_port();
    Proxy::with(json!({
        "listen": format!("127.0.0.1:{port}"),
        "mcpServers": {"s": stub_stdio(&[])},
        "cluster": {
            "store": format!("file://{}", store.path().display()), "node": name, "flush": flush,
            "key": KEY, "advertise": format!("http://127.0.0.1:{port}"), "index": index,
        },
    }))
}

fn all_see_all(nodes: &[&Proxy]) {
    for by in nodes {
        until("all nodes are alive", || (by.api("fleet")["living"] == nodes.len()).then_some(()));
    }
}

/// Makes `count` calls at a node. Returns the requested items.
fn call(proxy: &Proxy, name: &str, count: usize) -> Vec<String> {
    let mut client = proxy.client();
    let asked: Vec<_> = (0..count).map(|at| format!("{name}-call-{at}")).collect();
    for id in &asked {
        client.read("s:read_item", json!({"id": id}));
    }
    asked
}

/// All records of a query, newest first, read in pages of two, and the member `fleet` of the last page.
fn pages(proxy: &Proxy, query: &str) -> (Vec<Value>, Value) {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = proxy.api(&format!("activity?limit=2&{query}{cursor}"));
        found.extend(page["activities"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (found, page["fleet"].clone()),
        }
    }
}

fn ids(records: &[Value]) -> Vec<String> {
    records.iter().map(|it| it["id"].as_str().unwrap().to_owned()).collect()
}

/// Requested items of calls.
fn asked_for(records: &[Value]) -> BTreeSet<String> {
    records.iter().map(|it| it["arguments"]["id"].as_str().unwrap().to_owned()).collect()
}

fn exported(proxy: &Proxy, query: &str) -> Vec<Value> {
    let text = proxy.get(&format!("/api/v1/activity/export?{query}")).text();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Asserts that every node returns the same records, which are those of the calls.
fn all_answer_the_same(nodes: &[(&str, &Proxy)], called: &[String]) {
    let all: BTreeSet<_> = called.iter().cloned().collect();
    let names: Vec<_> = nodes.iter().map(|(name, _)| *name).collect();
    let mut first: Option<(Vec<Value>, Value)> = None;
    for (name, proxy) in nodes {
        let (records, covered) = pages(proxy, CALLS);
        assert_eq!(covered, json!({"partial": false, "nodes": names, "missing": {}}), "{name}");
        assert_eq!((records.len(), asked_for(&records)), (called.len(), all.clone()), "{name}");
        let found = ids(&records);
        let mut sorted = found.clone();
        sorted.sort_by(|a, b| b.cmp(a));
        assert_eq!(found, sorted, "{name}");

        let page = proxy.api(&format!("activity?{CALLS}&with_total=true&limit=1&offset=3"));
        assert_eq!(
            (&page["total"], &page["activities"][0]["id"]),
            (&json!(called.len()), &json!(found[3]))
        );
        let mut oldest_first = exported(proxy, CALLS);
        let after = exported(proxy, &format!("{CALLS}&after={}", found[2]));
        assert_eq!(ids(&after), [found[1].clone(), found[0].clone()], "{name}");
        oldest_first.reverse();
        assert_eq!(ids(&oldest_first), found, "{name}");
        for id in [&found[0], found.last().unwrap()] {
            let one = proxy.api(&format!("activity/{id}"));
            assert_eq!(one["activity"]["id"], **id, "{name}");
        }
        let text = proxy.api(&format!("activity?{CALLS}&text={}", called[0].to_uppercase()));
        assert_eq!(text["activities"][0]["arguments"]["id"], called[0], "{name}");
        for (other, by) in nodes {
            let (theirs, covered) = pages(proxy, &format!("{CALLS}&node={other}"));
            assert_eq!(covered["nodes"], json!([other]), "{name} of {other}");
            assert!(theirs.iter().all(|it| it["node_name"] == *other), "{name} of {other}");
            let own = pages(by, &format!("{CALLS}&node={other}")).0;
            assert_eq!(theirs, own, "{name} of {other}");
        }
        let summary = proxy.api("activity/summary?period=1h");
        assert_eq!(summary["total_count"], called.len(), "{name}");
        let counted = summary["over_time"].as_array().unwrap().iter();
        let counted: u64 = counted.map(|it| it["success"].as_u64().unwrap()).sum();
        assert_eq!(counted, called.len() as u64, "{name}");
        match &first {
            None => first = Some((records, summary["top_tools"].clone())),
            Some((same, tools)) => {
                assert_eq!((&records, &summary["top_tools"]), (same, tools), "{name}");
            }
        }
    }
}

/// Number of records of a node in an index.
fn indexed(index: &Proxy, node: &str) -> u64 {
    let nodes = index.api("status")["index"]["nodes"].clone();
    let found = nodes.as_array().into_iter().flatten().find(|it| it["node"] == node).cloned();
    found.map_or(0, |it| it["last"].as_u64().unwrap_or_default())
}

/// The last record of a node's log.
fn last_of(proxy: &Proxy, name: &str) -> u64 {
    let newest = proxy.api(&format!("activity?limit=1&node={name}"));
    newest["activities"][0]["seq"].as_u64().unwrap()
}

// FLT-6
#[test]
fn every_node_answers_for_all_including_unsealed_records() {
    let store = tempfile::tempdir().unwrap();
    let a = node(&store, "a", json!(true), NEVER);
    let b = node(&store, "b", json!(false), NEVER);
    let c = node(&store, "c", json!(false), NEVER);
    all_see_all(&[&a, &b, &c]);
    let called = [call(&a, "a", 2), call(&b, "b", 3), call(&c, "c", 2)].concat();
    all_answer_the_same(&[("a", &a), ("b", &b), ("c", &c)], &called);
    assert_eq!(indexed(&a, "b"), 0, "all of it was unsealed");
    // An exported table of another node, and the list on the command line.
    let table = b.get("/api/v1/activity/export?format=parquet&node=c");
    assert!(table.body.starts_with(b"PAR1") && table.body.ends_with(b"PAR1"), "{}", table.status);
    let several = b.get("/api/v1/activity/export?format=parquet");
    assert_eq!(several.status, 400, "{}", several.text());
    let listed = b.cli(&["activity", "list", "--node", "c", "--type", "tool_call", "--json"]);
    assert_eq!(asked_for(listed.json()["activities"].as_array().unwrap()).len(), 2);
    let log = pages(&b, "node=c").0[0]["node"].as_str().unwrap().to_owned();
    assert_eq!(
        pages(&b, &format!("{CALLS}&node={log}")).0,
        pages(&c, &format!("{CALLS}&node=c")).0
    );
    // A decision of another node has its reason even if payloads are excluded.
    c.client().read("s:violate", json!({}));
    let decided = pages(&b, "node=c&type=policy_decision&exclude_payloads=true").0;
    assert_eq!(decided[0].get("arguments"), None, "{decided:?}");
    assert_eq!(decided[0]["metadata"]["policy"], "output_validation", "{decided:?}");
    let rows = b.cli(&["activity", "list", "--node", "c", "--type", "policy_decision"]).stdout;
    let why = decided[0]["metadata"]["reason"].as_str().unwrap();
    assert!(rows.contains(&why[..20]), "{rows}");
    // A record that no node has is not found, and all nodes were asked.
    let other = b.get("/api/v1/activity/01ARZ3NDEKTSV4RRFFQ69G5FAV");
    assert_eq!(other.status, 404);
    assert!(!other.text().contains("not all"), "{}", other.text());
}

#[test]
fn reader_limited_to_its_own_records_sees_only_its_own_from_every_node() {
    let store = tempfile::tempdir().unwrap();
    let a = node(&store, "a", json!(true), NEVER);
    let b = node(&store, "b", json!(false), NEVER);
    all_see_all(&[&a, &b]);
    call(&a, "a", 1);
    let made = a.cli(&["token", "create", "ci", "--json"]).json();
    let token = made["token"].as_str().unwrap().to_owned();
    let as_ci = |proxy: &Proxy, path: &str| {
        proxy.request("GET", &format!("/api/v1/{path}"), &[("X-API-Key", &token)], b"")
    };
    until("the token is known", || (as_ci(&b, "tools").status == 200).then_some(()));
    let theirs = pages(&b, &format!("{CALLS}&principal=anonymous")).0;
    assert_eq!(theirs.len(), 1);
    // A client with a token sees its own calls on another node, and no others.
    let arguments = json!({"name": "s:read_item", "args": {"id": "own"}});
    let intent = json!({"operation_type": "read"});
    let body = json!({"tool_name": "call_tool_read", "arguments": arguments, "intent": intent});
    let body = body.to_string();
    let keyed = [("X-API-Key", &*token)];
    let done = a.request("POST", "/api/v1/tools/call", &keyed, body.as_bytes());
    assert_eq!(done.status, 200, "{}", done.text());
    let page = as_ci(&b, "activity?type=tool_call").json()["data"].clone();
    let records = page["activities"].as_array().unwrap();
    assert_eq!(asked_for(records), BTreeSet::from(["own".to_owned()]), "{page}");
    assert_eq!((records.len(), &records[0]["principal"]), (1, &json!("token:ci")));
    assert_eq!(page["fleet"]["nodes"], json!(["a", "b"]));
    assert_eq!(as_ci(&b, &format!("activity/{}", ids(records)[0])).status, 200);
    let of_another = as_ci(&b, &format!("activity/{}", ids(&theirs)[0]));
    assert_eq!(of_another.status, 404, "{}", of_another.text());
    assert_eq!(as_ci(&b, "activity?principal=anonymous").status, 403);
}

#[test]
fn shards_answer_together_and_each_record_counts_once() {
    let store = tempfile::tempdir().unwrap();
    let a = node(&store, "a", json!("1/2"), SOON);
    let b = node(&store, "b", json!("2/2"), SOON);
    let c = node(&store, "c", json!(false), SOON);
    all_see_all(&[&a, &b, &c]);
    let called = [call(&a, "a", 3), call(&b, "b", 2), call(&c, "c", 3)].concat();
    all_answer_the_same(&[("a", &a), ("b", &b), ("c", &c)], &called);
    // The same once the shards have the sealed records.
    let last = last_of(&c, "c");
    until("a shard has it", || (indexed(&a, "c").max(indexed(&b, "c")) >= last).then_some(()));
    all_answer_the_same(&[("a", &a), ("b", &b), ("c", &c)], &called);
}

// FLT-6
#[test]
fn killed_node_is_reported_missing_and_its_sealed_records_are_returned() {
    let store = tempfile::tempdir().unwrap();
    let a = node(&store, "a", json!(true), SOON);
    let b = node(&store, "b", json!(false), SOON);
    let mut c = node(&store, "c", json!(false), SOON);
    all_see_all(&[&a, &b, &c]);
    let called = [call(&a, "a", 1), call(&b, "b", 2), call(&c, "c", 3)].concat();
    let last = last_of(&c, "c");
    until("it is in the index", || (indexed(&a, "c") >= last).then_some(()));
    c.process.0.kill().unwrap();
    c.process.wait();
    let all: BTreeSet<_> = called.into_iter().collect();
    let is_named = |by: &Proxy| {
        let (records, covered) = pages(by, CALLS);
        assert_eq!(asked_for(&records), all);
        assert_eq!(
            (&covered["partial"], &covered["nodes"]),
            (&json!(true), &json!(["a", "b", "c"]))
        );
        let missing = covered["missing"].as_object().unwrap();
        assert_eq!(missing.keys().collect::<Vec<_>>(), ["c"], "{covered}");
        let summary = by.api("activity/summary?period=1h");
        assert_eq!(summary["total_count"], all.len());
        assert!(summary["fleet"]["missing"]["c"].is_string());
        let export = by.get(&format!("/api/v1/activity/export?{CALLS}"));
        assert_eq!(export.header("mcpproxy-fleet-missing"), Some("c"));
        let lines: Vec<Value> =
            export.text().lines().map(|it| serde_json::from_str(it).unwrap()).collect();
        let (end, records) = lines.split_last().unwrap();
        assert_eq!((asked_for(records), &end["type"]), (all.clone(), &json!("fleet_missing")));
        missing["c"].as_str().unwrap().to_owned()
    };
    for by in [&a, &b] {
        let why = is_named(by);
        assert!(why.contains("c"), "{why}");
    }
    let listed = b.cli(&["activity", "list"]);
    assert!(
        format!("{}{}", listed.stdout, listed.stderr)
            .contains("records of node c are incomplete: "),
        "{}",
        listed.stderr
    );
    for by in [&a, &b] {
        until("it is known to be dead", || (by.api("fleet")["living"] == 2).then_some(()));
        let why = is_named(by);
        assert!(why.contains("its unsealed records are missing"), "{why}");
    }
}

#[test]
fn node_that_hangs_is_named_after_the_timeout_and_the_rest_answers() {
    let store = tempfile::tempdir().unwrap();
    let a = node(&store, "a", json!(true), NEVER);
    let b = node(&store, "b", json!(false), NEVER);
    let c = node(&store, "c", json!(false), NEVER);
    all_see_all(&[&a, &b, &c]);
    let called = [call(&a, "a", 2), call(&b, "b", 2)].concat();
    call(&c, "c", 2);
    c.process.signal("STOP");
    let page = b.api(&format!("activity?{CALLS}"));
    assert_eq!(
        asked_for(page["activities"].as_array().unwrap()),
        called.into_iter().collect::<BTreeSet<_>>()
    );
    let why = page["fleet"]["missing"]["c"].as_str().unwrap().to_owned();
    assert!(why.contains("did not answer within 3 s") || why.contains("is not alive"), "{why}");
    c.process.signal("CONT");
    until("it answers again", || {
        (b.api(&format!("activity?{CALLS}"))["fleet"]["partial"] == false).then_some(())
    });
}

#[test]
fn stopped_node_is_not_missing_once_an_index_has_all_its_records() {
    let store = tempfile::tempdir().unwrap();
    let a = node(&store, "a", json!(true), SOON);
    let b = node(&store, "b", json!(false), SOON);
    let c = node(&store, "c", json!(false), SOON);
    all_see_all(&[&a, &b, &c]);
    let called = call(&c, "c", 3);
    drop(c.end());
    for by in [&a, &b] {
        until("all of it is in the index", || {
            (by.api("activity?limit=1")["fleet"]["partial"] == false).then_some(())
        });
        let (records, covered) = pages(by, CALLS);
        assert_eq!(asked_for(&records).len(), called.len());
        assert_eq!(covered["nodes"], json!(["a", "b", "c"]));
    }
}

fn watch(proxy: &Proxy, query: &str, after: Option<&str>) -> Events {
    let mut connection = Connection::open(proxy.port);
    let mut headers = vec![("X-API-Key", API_KEY)];
    headers.extend(after.map(|after| ("Last-Event-ID", after)));
    connection.send("GET", &format!("/events{query}"), &headers, b"");
    Events::of(connection)
}

/// Reads events until `count` different calls have arrived. Returns the requested items and the last event id.
fn comes(events: &mut Events, count: usize) -> (BTreeSet<String>, String) {
    let (mut found, mut last) = (BTreeSet::new(), String::new());
    while found.len() < count {
        let event = events.next().expect("the stream has no end");
        let record = event.json();
        if record["type"] == "tool_call" {
            found.insert(record["arguments"]["id"].as_str().unwrap().to_owned());
        }
        last = event.id.unwrap_or(last);
    }
    (found, last)
}

#[test]
fn record_stored_on_any_node_is_streamed_on_all_and_after_a_reconnect() {
    let store = tempfile::tempdir().unwrap();
    let a = node(&store, "a", json!(true), NEVER);
    let b = node(&store, "b", json!(false), NEVER);
    all_see_all(&[&a, &b]);
    let (mut all, mut of_b) = (watch(&a, "", None), watch(&a, "?node=b", None));
    let called: BTreeSet<_> = [call(&a, "a", 2), call(&b, "b", 3)].concat().into_iter().collect();
    let (found, last) = comes(&mut all, 5);
    assert_eq!(found, called);
    let (found, _) = comes(&mut of_b, 3);
    assert!(found.iter().all(|id| id.starts_with("b-")), "{found:?}");
    drop(all);
    // Records written while no reader is connected are delivered after the reconnect, also at another node.
    let missed: BTreeSet<_> = [call(&a, "x", 2), call(&b, "y", 2)].concat().into_iter().collect();
    for by in [&a, &b] {
        let mut again = watch(by, "", Some(&last));
        let mut found = BTreeSet::new();
        while !found.is_superset(&missed) {
            found.extend(comes(&mut again, 1).0);
        }
    }
}

#[test]
fn export_and_status_report_the_missing_records_of_a_dead_node() {
    let store = tempfile::tempdir().unwrap();
    let a = node(&store, "a", json!(true), NEVER);
    let mut b = node(&store, "b", json!(false), NEVER);
    all_see_all(&[&a, &b]);
    call(&a, "a", 2);
    call(&b, "b", 3);
    let file = a.folder.path().join("out.jsonl");
    let export = |format: &str| {
        a.cli(&[
            "activity",
            "export",
            "--file",
            file.to_str().unwrap(),
            "--format",
            format,
            "--type",
            "tool_call",
            "--force",
        ])
    };
    let whole = export("json");
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 5);
    let committed = last_of(&b, "b");
    until("its heartbeat has it", || {
        let nodes = a.api("fleet")["nodes"].clone();
        let seen = nodes.as_array().unwrap().iter().find(|it| it["node"] == "b").unwrap().clone();
        (seen["said"]["ledger"]["committed"].as_u64()? >= committed).then_some(())
    });
    b.process.0.kill().unwrap();
    b.process.wait();
    until("it is seen to be dead", || (a.api("fleet")["living"] == 1).then_some(()));

    let lacking = export("json");
    assert_eq!(lacking.code, Some(6), "{}", lacking.stderr);
    assert!(lacking.stderr.contains("b: it is not alive"), "{}", lacking.stderr);
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(lines.len(), 3, "the records of a, and the missing ones");
    assert_eq!(lines[2]["type"], "fleet_missing");
    assert!(lines[2]["missing"]["b"].as_str().unwrap().contains("is not alive"), "{text}");
    let lacking = export("csv");
    assert_eq!(lacking.code, Some(6), "{}", lacking.stderr);
    let text = std::fs::read_to_string(&file).unwrap();
    let end = text.lines().last().unwrap();
    assert!(end.trim_matches('"').starts_with("fleet_missing: b: it is not alive"), "{text}");
    let table = a.cli(&[
        "activity",
        "export",
        "--file",
        file.to_str().unwrap(),
        "--format",
        "parquet",
        "--force",
        "--node",
        "b",
    ]);
    assert_eq!(table.code, Some(6), "{}", table.stderr);
    let bytes = std::fs::read(&file).unwrap();
    let noted = b"mcpproxy.fleet_missing";
    assert!(bytes.windows(noted.len()).any(|it| it == noted), "its footer reports it");
    // The records of the living node are complete.
    let of_a = a.cli(&["activity", "export", "--file", "-", "--node", "a"]);
    assert_eq!(of_a.code, Some(0), "{}", of_a.stderr);
    let replayed = a.get("/api/v1/activity/export?type=tool_call");
    assert_eq!(replayed.header("mcpproxy-fleet-missing"), Some("b"));

    let status = a.cli(&["fleet", "status"]);
    assert_eq!(status.code, Some(1), "{}", status.stdout);
    let printed = status.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(printed.contains("node 'b' is dead: no heartbeat for"), "{printed}");
    assert!(
        printed.contains(&format!("its records 1 to {committed} and all later ones are missing")),
        "{printed}"
    );
}

#[test]
fn watcher_is_notified_of_a_node_that_does_not_answer() {
    let store = tempfile::tempdir().unwrap();
    let a = node(&store, "a", json!(true), NEVER);
    let mut b = node(&store, "b", json!(false), NEVER);
    all_see_all(&[&a, &b]);
    let mut events = watch(&a, "", None);
    call(&b, "b", 1);
    comes(&mut events, 1);
    b.process.0.kill().unwrap();
    b.process.wait();
    let event = std::iter::from_fn(|| events.next()).find(|it| it.json()["node"] == "b").unwrap();
    assert!(event.id.is_none() && event.json()["reason"].is_string(), "{event:?}");
}
