//! Fleet nodes that index the records of the others. An index node answers for all nodes, reports missing data, and
//! continues after a crash, damage or any manipulation of the store.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Proxy, stub_stdio, until};

fn config(store: &TempDir, node: &str, index: Value) -> Value {
    json!({
        "mcpServers": {"s": stub_stdio(&[])},
        "cluster": {
            "store": format!("file://{}", store.path().display()),
            "node": node,
            "index": index,
            "flush": "100ms",
        },
    })
}

fn get(proxy: &Proxy, path: &str) -> Value {
    proxy.get(path).json()["data"].clone()
}

/// Ids of all records of a query, newest first, read page by page.
fn ids(proxy: &Proxy, query: &str) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(proxy, &format!("/api/v1/activity?limit=7&{query}{cursor}"));
        let records = page["activities"].as_array().unwrap();
        found.extend(records.iter().map(|it| it["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}

/// Waits until the index has the records of `node` up to `last`. Returns the state of that node in the index.
fn caught_up(proxy: &Proxy, node: &str, last: u64) -> Value {
    until("the index has caught up", || {
        let nodes = get(proxy, "/api/v1/status")["index"]["nodes"].clone();
        let found = nodes.as_array()?.iter().find(|it| it["node"] == node)?.clone();
        (found["last"].as_u64()? >= last).then_some(found)
    })
}

fn segments(store: &TempDir, node: &str) -> Vec<PathBuf> {
    let folder = store.path().join("nodes").join(node).join("segments");
    let files = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut found: Vec<_> = files(&folder).iter().flat_map(|day| files(day)).collect();
    found.sort();
    found
}

/// Runs a node until it has made `calls` calls in at least as many segments, and ends it. Returns the number of its
/// last record.
fn ended(store: &TempDir, node: &str, calls: usize) -> (TempDir, u64) {
    let proxy = Proxy::with(config(store, node, json!(false)));
    let mut client = proxy.client();
    for _ in 0..calls {
        client.read("s:stats", json!({}));
        // Each call is in a segment before the next call is made.
        let made = proxy.activity("type=tool_call")[0]["seq"].as_u64().unwrap();
        until("it is in a segment", || {
            (last_of(segments(store, node).last()?) >= made).then_some(())
        });
    }
    drop(client);
    let folder = proxy.end();
    (folder, last_of(&segments(store, node).pop().unwrap()))
}

/// The number of the last record in a segment.
fn last_of(segment: &Path) -> u64 {
    let name = segment.file_name().unwrap().to_str().unwrap();
    name.split('-').nth(1).unwrap().parse().unwrap()
}

// FLT-7
#[test]
fn one_index_node_answers_for_all_nodes_that_existed() {
    let store = tempfile::tempdir().unwrap();
    let (_a, last_a) = ended(&store, "a", 3);
    let (_b, last_b) = ended(&store, "b", 2);
    let proxy = Proxy::with(config(&store, "c", json!(true)));
    proxy.client().read("s:stats", json!({}));
    caught_up(&proxy, "a", last_a);
    let status = caught_up(&proxy, "b", last_b);
    assert_eq!((&status["behind_records"], &status["faults"]), (&json!(0), &json!([])));

    // The list has every record once, in the order of ids; it can be filtered by node.
    let all = ids(&proxy, "");
    let mut sorted = all.clone();
    sorted.sort_by(|a, b| b.cmp(a));
    sorted.dedup();
    assert_eq!(all, sorted);
    let (of_a, of_b, of_c) = (ids(&proxy, "node=a"), ids(&proxy, "node=b"), ids(&proxy, "node=c"));
    assert_eq!((of_a.len() as u64, of_b.len() as u64), (last_a, last_b));
    assert_eq!(all.len(), of_a.len() + of_b.len() + of_c.len());
    let page = get(&proxy, "/api/v1/activity?node=a&with_total=true&type=tool_call");
    assert_eq!(page["total"], 3);
    assert_eq!(page["fleet"], json!({"partial": false, "nodes": ["a"], "missing": {}}));
    assert!(page["activities"].as_array().unwrap().iter().all(|it| it["node_name"] == "a"));
    let log = page["activities"][0]["node"].as_str().unwrap().to_owned();
    assert_eq!(ids(&proxy, &format!("node={log}")), of_a);
    let page = get(&proxy, "/api/v1/activity?type=tool_call&with_total=true");
    assert_eq!((&page["total"], &page["fleet"]["nodes"]), (&json!(6), &json!(["a", "b", "c"])));
    assert_eq!(get(&proxy, "/api/v1/activity?text=s:stats")["fleet"]["partial"], false);

    // A record of another node, the summary, and an export.
    let one = get(&proxy, &format!("/api/v1/activity/{}", of_b[0]));
    assert_eq!(
        (&one["activity"]["id"], &one["activity"]["node_name"]),
        (&json!(of_b[0]), &json!("b"))
    );
    let summary = get(&proxy, "/api/v1/activity/summary?period=1h");
    assert_eq!((&summary["total_count"], &summary["fleet"]["partial"]), (&json!(6), &json!(false)));
    assert_eq!(get(&proxy, "/api/v1/activity/summary?node=b")["total_count"], 2);
    let exported = |query: &str| -> Vec<String> {
        let text = proxy.get(&format!("/api/v1/activity/export?{query}")).text();
        let id = |line: &str| {
            serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned()
        };
        text.lines().map(id).collect()
    };
    let mut forward = exported("");
    let rest = exported(&format!("after={}", forward[3]));
    assert!(rest.starts_with(&forward[4..]), "{rest:?} {forward:?}");
    forward.reverse();
    assert!(forward.ends_with(&all), "{forward:?} {all:?}");
    let mut of_a_forward = of_a.clone();
    of_a_forward.reverse();
    assert_eq!(exported("node=a"), of_a_forward);

    // An unknown node is reported as missing.
    let page = get(&proxy, "/api/v1/activity?node=x");
    assert_eq!((&page["activities"], &page["fleet"]["partial"]), (&json!([]), &json!(true)));
    assert_eq!(page["fleet"]["missing"]["x"], "no such node in this index");
    let listed = proxy.cli(&["activity", "list", "--node", "b", "--json"]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    assert_eq!(listed.json()["activities"].as_array().unwrap().len() as u64, last_b);
}

#[test]
fn node_without_an_index_answers_for_itself_and_reports_it() {
    let store = tempfile::tempdir().unwrap();
    let _a = ended(&store, "a", 1);
    let proxy = Proxy::with(config(&store, "b", json!(false)));
    let page = get(&proxy, "/api/v1/activity");
    assert_eq!((&page["fleet"]["partial"], &page["fleet"]["nodes"]), (&json!(true), &json!(["b"])));
    assert!(page["fleet"]["missing"]["shards"].as_str().unwrap().contains("keeps no index"));
    assert!(page["activities"].as_array().unwrap().iter().all(|it| it["node_name"] == "b"));
    // An export reports it in its last line and with its exit code.
    let exported = proxy.cli(&["activity", "export", "--file", "-"]);
    assert_eq!(exported.code, Some(6), "{}", exported.stderr);
    assert!(exported.stderr.contains("keeps no index"), "{}", exported.stderr);
    let end: Value = serde_json::from_str(exported.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(end["type"], "fleet_missing");
    assert!(end["missing"]["shards"].as_str().unwrap().contains("keeps no index"), "{end}");
    let own = proxy.cli(&["activity", "export", "--file", "-", "--node", "b"]);
    assert_eq!(own.code, Some(0), "{}", own.stderr);
    assert!(!own.stdout.contains("fleet_missing"), "its records are complete");
    // Without a fleet the id of the log is the only name of the node, and responses do not mention a fleet.
    let alone = Proxy::with(json!({"mcpServers": {"s": stub_stdio(&[])}}));
    assert!(ids(&alone, "node=b").is_empty(), "one machine has no node of that name");
    let own = alone.activity("")[0]["node"].as_str().unwrap().to_owned();
    assert!(!ids(&alone, &format!("node={own}")).is_empty(), "its log has an id");
    let page = get(&alone, "/api/v1/activity");
    assert!(page.get("fleet").is_none() && page["activities"][0].get("node_name").is_none());
}

#[test]
fn manipulated_store_objects_are_reported_and_the_rest_is_read() {
    let store = tempfile::tempdir().unwrap();
    let (_a, last) = ended(&store, "a", 6);
    let files = segments(&store, "a");
    let range = |file: &Path| -> (u64, u64) {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let mut parts = name.split('-').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap(), parts.next().unwrap())
    };
    std::fs::remove_file(&files[1]).unwrap();
    let mut bytes = std::fs::read(&files[3]).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 1;
    std::fs::write(&files[3], bytes).unwrap();
    let proxy = Proxy::with(config(&store, "b", json!("1/1")));
    let status = caught_up(&proxy, "a", last);
    let faults = status["faults"].as_array().unwrap();
    let fault = |at: usize| {
        (
            faults[at]["fault"].as_str().unwrap(),
            faults[at]["first"].as_u64(),
            faults[at]["last"].as_u64(),
        )
    };
    let (removed, altered) = (range(&files[1]), range(&files[3]));
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert_eq!(fault(0), ("removed", Some(removed.0), Some(removed.1)));
    assert_eq!(fault(1), ("altered", Some(altered.0), Some(altered.1)));
    let missing = (removed.1 + 1 - removed.0) + (altered.1 + 1 - altered.0);
    let page = get(&proxy, "/api/v1/activity?node=a&with_total=true");
    assert_eq!(page["total"], last - missing);
    let why = page["fleet"]["missing"]["a"].as_str().unwrap();
    assert!(why.contains(&format!("records {} to {} are missing", removed.0, removed.1)), "{why}");
    let shown = get(&proxy, "/api/v1/status")["faults"].to_string();
    assert!(shown.contains("\"index\"") && shown.contains("node a"), "{shown}");
}

// FLT-7
#[test]
fn records_missing_in_an_index_appear_once_after_they_are_restored() {
    let store = tempfile::tempdir().unwrap();
    let (_a, last) = ended(&store, "a", 6);
    let files = segments(&store, "a");
    let aside = tempfile::tempdir().unwrap();
    let place = |at: usize| aside.path().join(at.to_string());
    for at in [1, 2, 4] {
        std::fs::rename(&files[at], place(at)).unwrap();
    }
    let proxy = Proxy::with(config(&store, "b", json!(true)));
    let status = caught_up(&proxy, "a", last);
    assert_eq!(status["gaps"].as_array().unwrap().len(), 2, "{status}");
    // After a restart the node still knows the gaps.
    let proxy = Proxy::unready(config(&store, "b", json!(true)), proxy.end()).ready();
    let status = caught_up(&proxy, "a", last);
    assert_eq!(status["gaps"].as_array().unwrap().len(), 2, "{status}");
    assert!((ids(&proxy, "node=a").len() as u64) < last);
    for at in [1, 2, 4] {
        std::fs::rename(place(at), &files[at]).unwrap();
    }
    let status = until("nothing is missing any more", || {
        let status = caught_up(&proxy, "a", last);
        (status["gaps"] == json!([])).then_some(status)
    });
    assert_eq!((&status["faults"], &status["made_anew"]), (&json!([]), &json!(false)), "{status}");
    assert_eq!(ids(&proxy, "node=a").len() as u64, last);
    assert_eq!(ids(&proxy, "node=a&type=tool_call").len(), 6);
    let page = get(&proxy, "/api/v1/activity?node=a&with_total=true");
    assert_eq!((&page["total"], &page["fleet"]["partial"]), (&json!(last), &json!(false)));
}

// FLT-7
#[test]
fn index_continues_after_a_crash_and_is_rebuilt_after_damage() {
    let store = tempfile::tempdir().unwrap();
    let (_a, last) = ended(&store, "a", 3);
    let mut proxy = Proxy::with(config(&store, "b", json!(true)));
    let before = caught_up(&proxy, "a", last);
    proxy.process.0.kill().unwrap();
    proxy.process.wait();
    let folder = std::mem::replace(&mut proxy.folder, tempfile::tempdir().unwrap());
    drop(proxy);
    let copy = folder.path().join("data/fleet/index/a~1");
    let proxy = Proxy::unready(config(&store, "b", json!(true)), folder).ready();
    let after = caught_up(&proxy, "a", last);
    for member in ["first", "last", "records", "segments", "made_anew"] {
        assert_eq!(before[member], after[member], "{member}");
    }
    let all = ids(&proxy, "node=a");
    assert_eq!(all.len() as u64, last);
    let folder = proxy.end();
    std::fs::write(copy.join("db/version"), b"nonsense").unwrap();
    let proxy = Proxy::unready(config(&store, "b", json!(true)), folder).ready();
    let rebuilt = caught_up(&proxy, "a", last);
    assert_eq!(rebuilt["made_anew"], true);
    assert_eq!(ids(&proxy, "node=a"), all);
    let shown = get(&proxy, "/api/v1/status")["faults"].to_string();
    assert!(shown.contains("rebuilt"), "{shown}");
}

#[test]
fn store_of_another_fleet_is_not_read() {
    let store = tempfile::tempdir().unwrap();
    let (_a, last) = ended(&store, "a", 1);
    let proxy = Proxy::with(config(&store, "b", json!(true)));
    caught_up(&proxy, "a", last);
    // Another fleet's object replaces ours while it is followed.
    let own = std::fs::read_to_string(store.path().join("fleet.json")).unwrap();
    let fleet: Value = serde_json::from_str(&own).unwrap();
    let id = fleet["fleet"].as_str().unwrap();
    std::fs::write(store.path().join("fleet.json"), own.replace(id, &"0".repeat(32))).unwrap();
    let error = until("it is seen", || {
        let index = get(&proxy, "/api/v1/status")["index"].clone();
        index["error"].as_str().map(str::to_owned)
    });
    assert!(error.contains("contains fleet 00000000000000000000000000000000, but"), "{error}");
    assert_eq!(get(&proxy, "/api/v1/activity")["fleet"]["partial"], true);
}

#[cfg(target_os = "linux")]
#[test]
fn nodes_whose_objects_hang_do_not_prevent_others_from_being_followed() {
    let store = tempfile::tempdir().unwrap();
    let nodes = store.path().join("nodes");
    let claim = |node: &str| nodes.join(node).join("claim.json");
    // A pipe without a writer: opening it blocks.
    let hangs = |node: &str| {
        std::fs::create_dir_all(nodes.join(node)).unwrap();
        let new = claim(node).with_extension("new");
        nix::unistd::mkfifo(&new, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::rename(new, claim(node)).unwrap();
    };
    let (_a, last_a) = ended(&store, "a", 1);
    let (_z, last_z) = ended(&store, "z", 1);
    hangs("b");
    hangs("c");
    let proxy = Proxy::with(config(&store, "own", json!(true)));
    caught_up(&proxy, "a", last_a);
    caught_up(&proxy, "z", last_z);
    // The same with a node that is followed already and whose claim blocks later. The shutdown waits for none of them.
    hangs("a");
    let (_y, last_y) = ended(&store, "y", 1);
    caught_up(&proxy, "y", last_y);
    proxy.end();
}
