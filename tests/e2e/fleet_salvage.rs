//! A fleet node whose log was salvaged: it continues under its own name with its sealed records, fetched from the store; no
//! record is duplicated, no chain forks, and no other node takes its place.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Output, Proxy, configure, free_port, mcpproxy, stub_stdio, until};

/// Shell code that starts the proxy with the flag for a salvage.
const SALVAGE: &str = "set -- \"$@\" --salvage";

fn config(store: &TempDir, node: &str, index: Value) -> Value {
    json!({
        "mcpServers": {"s": stub_stdio(&[])},
        "cluster": {
            "store": format!("file://{}", store.path().display()), "node": node, "index": index, "flush": "100ms",
        },
    })
}

fn alone() -> Value {
    json!({"mcpServers": {"s": stub_stdio(&[])}})
}

/// Makes `count` calls, each in its own commit, and waits until they are in the store. Returns the last record there.
fn called(proxy: &Proxy, name: &str, count: usize) -> u64 {
    let mut client = proxy.client();
    for at in 0..count {
        client.read("s:read_item", json!({"id": format!("{name}-{at}")}));
        proxy.api("activity?limit=1");
    }
    drop(client);
    until_stored(proxy)
}

fn until_stored(proxy: &Proxy) -> u64 {
    until("everything is in the store", || {
        let ledger = proxy.api("fleet")["ledger"].clone();
        (ledger["lag_records"] == 0).then(|| ledger["stored"].as_u64().unwrap())
    })
}

/// Kills the process. Returns its folder.
fn killed(mut proxy: Proxy) -> TempDir {
    proxy.process.0.kill().unwrap();
    proxy.process.wait();
    std::mem::replace(&mut proxy.folder, tempfile::tempdir().unwrap())
}

fn journals(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of = |path: PathBuf| match path.is_dir() {
        true => journals(&path),
        false if path.extension().is_some_and(|it| it == "jnl") => vec![path],
        false => Vec::new(),
    };
    entries.flat_map(of).collect()
}

/// Removes the last third of the log's newest journal.
fn cut(folder: &TempDir) {
    let journal = journals(&folder.path().join("data/activity/db")).into_iter().max().unwrap();
    let bytes = std::fs::read(&journal).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let file = std::fs::File::options().write(true).open(&journal).unwrap();
    file.set_len(used as u64 / 3 * 2).unwrap();
}

/// Requested items of calls, and the ids of their records, oldest first.
fn calls(proxy: &Proxy, query: &str) -> (Vec<String>, Vec<String>) {
    let text = proxy.get(&format!("/api/v1/activity/export?type=tool_call{query}")).text();
    let records: Vec<Value> = text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let records = records.iter().filter(|it| it["type"] == "tool_call");
    let items = records.clone().map(|it| it["arguments"]["id"].as_str().unwrap().to_owned());
    let ids = records.map(|it| it["id"].as_str().unwrap().to_owned());
    (items.collect(), ids.collect())
}

fn asked(names: &[(&str, usize)]) -> Vec<String> {
    let each = names.iter();
    each.flat_map(|(name, count)| (0..*count).map(move |at| format!("{name}-{at}"))).collect()
}

/// Checks that the store is sound, and has a chain of the node up to a record.
fn assert_sound(store: &TempDir, node: &str, last: u64) {
    let url = format!("file://{}", store.path().display());
    let verified = Output::of(mcpproxy().args(["activity", "verify", "--store", &url, "--json"]));
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    let report = verified.json();
    let of = report["nodes"].as_array().unwrap().iter().find(|it| it["node"] == node).unwrap();
    assert!(of["last"].as_u64().unwrap() >= last, "{of}");
}

/// Checks that an index node has the same records of a node as the node itself, each once.
fn assert_followed(index: &Proxy, proxy: &Proxy, node: &str) {
    let last = until_stored(proxy);
    until("the index has all of it", || {
        let nodes = index.api("status")["index"]["nodes"].clone();
        let found = nodes.as_array()?.iter().find(|it| it["node"] == node)?.clone();
        (found["last"].as_u64()? >= last).then_some(())
    });
    let (here, there) = (calls(proxy, ""), calls(index, &format!("&node={node}")));
    assert_eq!(here, there);
    let unique: BTreeSet<_> = here.1.iter().collect();
    assert_eq!(unique.len(), here.1.len());
}

// FLT-13
#[test]
fn salvaged_node_fetches_its_sealed_records_and_continues_under_its_own_name() {
    let store = tempfile::tempdir().unwrap();
    let index = Proxy::with(config(&store, "b", json!(true)));
    let a = Proxy::with(config(&store, "a", json!(false)));
    let before = called(&a, "before", 12);
    let ids = calls(&a, "").1;
    let folder = killed(a);
    cut(&folder);
    let a = Proxy::unready_under(SALVAGE, config(&store, "a", json!(false)), folder).ready();
    a.assert_logged("the log was restored from the fleet's store");
    assert_eq!(calls(&a, ""), (asked(&[("before", 12)]), ids), "as they were");
    let after = called(&a, "after", 3);
    assert!(after > before);
    assert_eq!(calls(&a, "").0, asked(&[("before", 12), ("after", 3)]));
    let verified = a.cli(&["activity", "verify", "--json"]);
    assert_eq!(verified.json()["sound"], true, "{}", verified.stdout);
    assert_sound(&store, "a", after);
    assert_followed(&index, &a, "a");
    // The next start restores nothing more.
    let a = Proxy::unready(config(&store, "a", json!(false)), a.end()).ready();
    assert!(!a.log().contains("restored"), "{}", a.log());
    assert!(calls(&a, "").0.len() == 15 && until_stored(&a) >= after);
    assert_sound(&store, "a", after);
}

#[test]
fn records_between_a_salvage_and_the_next_fleet_start_get_new_numbers() {
    let store = tempfile::tempdir().unwrap();
    let index = Proxy::with(config(&store, "b", json!(true)));
    let a = Proxy::with(config(&store, "a", json!(false)));
    called(&a, "before", 12);
    let ids = calls(&a, "").1;
    let folder = killed(a);
    cut(&folder);
    // Without its fleet the node does not know which record numbers are in use.
    let a = Proxy::unready_under(SALVAGE, alone(), folder).ready();
    let mut client = a.client();
    for at in 0..9 {
        client.read("s:read_item", json!({"id": format!("alone-{at}")}));
    }
    drop(client);
    let a = Proxy::unready(config(&store, "a", json!(false)), a.end()).ready();
    a.assert_logged("the log was restored from the fleet's store");
    let (items, now) = calls(&a, "");
    assert_eq!(items, asked(&[("before", 12), ("alone", 9)]));
    assert_eq!(now[..12], ids, "records in the store keep their ids");
    let last = called(&a, "after", 1);
    assert_sound(&store, "a", last);
    assert_followed(&index, &a, "a");
}

#[test]
fn log_that_was_lost_completely_is_fetched_completely() {
    let store = tempfile::tempdir().unwrap();
    let a = Proxy::with(config(&store, "a", json!(false)));
    let before = called(&a, "before", 5);
    let ids = calls(&a, "").1;
    let folder = killed(a);
    std::fs::remove_dir_all(folder.path().join("data/activity")).unwrap();
    // Without `--salvage` a node does not start with a different log.
    let path = configure(config(&store, "a", json!(false)), folder.path());
    let refused = Output::of(mcpproxy().args(["serve", "-c"]).arg(&path));
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    assert!(refused.stderr.contains(" serve --salvage`"), "{}", refused.stderr);
    let a = Proxy::unready_under(SALVAGE, config(&store, "a", json!(false)), folder).ready();
    assert_eq!(calls(&a, "").1, ids);
    assert!(called(&a, "after", 2) > before);
    assert_sound(&store, "a", before);
}

#[test]
fn chain_is_not_continued_while_its_node_runs_or_under_another_name() {
    let store = tempfile::tempdir().unwrap();
    let a = Proxy::with(config(&store, "a", json!(false)));
    called(&a, "before", 3);
    let copy = tempfile::tempdir().unwrap();
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .arg(a.folder.path().join("data"))
        .arg(copy.path())
        .status();
    assert!(copied.unwrap().success());
    let serve = |node: &str, flags: &[&str]| {
        let mut config = config(&store, node, json!(false));
        config["listen"] = json!(format!("127.0.0.1:{}", free_port()));
        let path = configure(config, copy.path());
        Output::of(mcpproxy().args(["serve", "-c"]).arg(&path).args(flags))
    };
    let twin = serve("a", &["--salvage"]);
    assert_eq!(twin.code, Some(5), "{}", twin.stderr);
    assert!(twin.stderr.contains("another process runs as node 'a'"), "{}", twin.stderr);
    let renamed = serve("a2", &[]);
    assert_eq!(renamed.code, Some(5), "{}", renamed.stderr);
    assert!(renamed.stderr.contains("belongs to node 'a' of this fleet"), "{}", renamed.stderr);
    assert_sound(&store, "a", until_stored(&a));
}
