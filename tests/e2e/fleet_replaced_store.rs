//! Fleet nodes whose store is temporarily replaced by an empty folder, or emptied. Uploads succeed but do not count as
//! stored, no node counts as lost, and all records are uploaded once the store is restored.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Output, Proxy, mcpproxy, stub_stdio, until};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// Reported reason of a replaced store.
const LOST: &str = "not the store that this node joined (fleet.json is missing)";

/// A folder that contains the folder of the store.
struct Fleet(TempDir);

impl Fleet {
    fn new() -> Self {
        let fleet = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(fleet.store()).unwrap();
        fleet
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn aside(&self) -> PathBuf {
        self.0.path().join("aside")
    }

    fn node(&self, name: &str) -> Proxy {
        Proxy::with(json!({
            "mcpServers": {"s": stub_stdio(&[])},
            "cluster": {
                "store": format!("file://{}", self.store().display()), "node": name, "flush": "100ms", "key": KEY,
            },
        }))
    }

    /// A node without a key. With an index it follows the other nodes.
    fn follower(&self, name: &str, index: bool) -> Proxy {
        Proxy::with(json!({
            "mcpServers": {"s": stub_stdio(&[])},
            "cluster": {
                "store": format!("file://{}", self.store().display()), "node": name, "flush": "100ms", "index": index,
            },
        }))
    }

    /// Replaces the store with an empty folder.
    fn replace(&self) {
        std::fs::rename(self.store(), self.aside()).unwrap();
        std::fs::create_dir_all(self.store()).unwrap();
    }

    /// Restores the store, and removes the one that replaced it.
    fn restore(&self) {
        until("it is available again", || {
            let _ = std::fs::remove_dir_all(self.store());
            std::fs::rename(self.aside(), self.store()).ok()
        });
    }

    /// Moves all objects of the store aside.
    fn empty(&self) {
        std::fs::create_dir(self.aside()).unwrap();
        // The entries are listed first, so that objects written by nodes meanwhile are not moved.
        let entries: Vec<_> = std::fs::read_dir(self.store()).unwrap().collect();
        for entry in entries {
            let entry = entry.unwrap();
            std::fs::rename(entry.path(), self.aside().join(entry.file_name())).unwrap();
        }
    }

    /// Checks that each record of a node, up to the last one, is in the store exactly once.
    fn assert_all_of(&self, node: &str, last: u64) {
        let url = format!("file://{}", self.store().display());
        let verified =
            Output::of(mcpproxy().args(["activity", "verify", "--store", &url, "--json"]));
        assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
        let report = verified.json();
        let of = report["nodes"].as_array().unwrap().iter().find(|it| it["node"] == node).unwrap();
        assert_eq!((&of["first"], &of["records"]), (&json!(1), &of["last"]));
        assert!(of["last"].as_u64().unwrap() >= last, "{of}");
    }
}

fn ledger(node: &Proxy) -> Value {
    node.api("fleet")["ledger"].clone()
}

fn until_stored(node: &Proxy) -> u64 {
    until("everything is in the store, as the node knows", || {
        let ledger = ledger(node);
        (ledger["lag_records"] == 0).then(|| ledger["stored"].as_u64().unwrap())
    })
}

fn faults(node: &Proxy) -> String {
    node.api("fleet")["faults"].to_string()
}

/// Waits until the node reports the replaced store and its backlog.
fn until_reported(node: &Proxy) {
    until("it is reported", || {
        let (fleet, faults) = (node.api("fleet"), faults(node));
        let words = ["cannot observe the fleet's nodes", "records wait for the fleet's store"];
        (fleet["away"].to_string().contains(LOST) && words.iter().all(|it| faults.contains(it)))
            .then_some(())
    });
    let status = node.cli(&["fleet", "status"]);
    assert_eq!((status.code, status.stdout.contains(LOST)), (Some(1), true), "{}", status.stdout);
    node.assert_logged("not the store that this node joined");
    assert_eq!(node.get("/readyz").status, 200, "as if the store were unavailable");
}

fn segments(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path());
    let in_entry = |path: PathBuf| match path.is_dir() {
        true => segments(&path),
        false => usize::from(path.extension().is_some_and(|it| it == "parquet")),
    };
    entries.map(in_entry).sum()
}

// FLT-3
#[test]
fn objects_of_a_replaced_store_are_ignored_and_records_are_uploaded_again() {
    let fleet = Fleet::new();
    let [a, b] = ["a", "b"].map(|name| fleet.node(name));
    for node in [&a, &b] {
        until("both are alive", || (node.api("fleet")["living"] == 2).then_some(()));
    }
    let mut client = b.client();
    client.read("s:stats", json!({}));
    let before = until_stored(&b);
    fleet.replace();
    for _ in 0..20 {
        client.read("s:stats", json!({}));
    }
    until("something is put there", || (segments(&fleet.store()) > 0).then_some(()));
    until_reported(&b);
    // All nodes count as alive, and nothing counts as stored.
    let seen = b.api("fleet");
    assert_eq!(seen["living"], 2);
    assert!(seen["ledger"]["stored"].as_u64().unwrap() < before + 20, "{seen}");
    // Facts are not written to the replaced store, and do not count as shared.
    let token = b.cli(&["token", "create", "ci", "--json"]).json()["token"].clone();
    until("it is reported", || {
        let facts = b.api("fleet")["facts"].clone();
        (facts["failing"].to_string().contains(LOST) && facts["published"] == false).then_some(())
    });
    let config = b.folder.path().join("fleet.json");
    std::fs::write(&config, "{}").unwrap();
    let applied = b.cli(&["fleet", "apply", config.to_str().unwrap()]);
    assert_ne!(applied.code, Some(0), "{}", applied.stdout);
    assert!(applied.stderr.contains(LOST), "{}", applied.stderr);

    fleet.restore();
    until("nothing is wrong any more", || (faults(&b) == "[]").then_some(()));
    let last = until_stored(&b);
    assert!(last > before + 20);
    fleet.assert_all_of("b", last);
    let header = [("X-API-Key", token.as_str().unwrap())];
    until("the token is accepted at the other node", || {
        (a.request("GET", "/api/v1/tools", &header, b"").status == 200).then_some(())
    });
}

#[test]
fn emptied_store_is_reported_by_the_only_node_and_continued_when_it_is_restored() {
    let fleet = Fleet::new();
    let a = fleet.node("a");
    let mut client = a.client();
    client.read("s:stats", json!({}));
    until_stored(&a);
    fleet.empty();
    client.read("s:stats", json!({}));
    until_reported(&a);
    assert_ne!(ledger(&a)["lag_records"], 0);
    fleet.restore();
    until("nothing is wrong any more", || (faults(&a) == "[]").then_some(()));
    fleet.assert_all_of("a", until_stored(&a));
}

/// Progress of a node that follows another.
fn followed(index: &Proxy, node: &str) -> Option<Value> {
    let nodes = index.api("status")["index"]["nodes"].clone();
    nodes.as_array()?.iter().find(|it| it["node"] == node).cloned()
}

#[test]
fn follower_accepts_no_gap_in_a_replaced_store_and_reports_it() {
    let fleet = Fleet::new();
    let [a, b] = ["a", "b"].map(|name| fleet.follower(name, name == "b"));
    let mut client = a.client();
    client.read("s:stats", json!({}));
    let before = until_stored(&a);
    until("it is followed", || (followed(&b, "a")?["last"].as_u64()? >= before).then_some(()));
    // The follower is paused, so that it does not see new objects.
    b.process.signal("STOP");
    for _ in 0..5 {
        client.read("s:stats", json!({}));
    }
    until("the store has more", || (ledger(&a)["stored"].as_u64()? >= before + 5).then_some(()));
    fleet.replace();
    client.read("s:stats", json!({}));
    until("something is put there", || (segments(&fleet.store()) > 0).then_some(()));
    b.process.signal("CONT");
    // The gap has lasted so long that the follower checks the identity of the store.
    until("it is seen", || b.log().contains("cannot follow a node's segments now").then_some(()));
    until("it is reported", || {
        let reported = b.api("status")["faults"].to_string();
        reported.contains("the store is not the one that was followed").then_some(())
    });
    let status = followed(&b, "a").unwrap();
    assert_eq!((&status["gaps"], &status["faults"]), (&json!([]), &json!([])), "{status}");
    fleet.restore();
    let last = until_stored(&a);
    let status = until("all of it is followed", || {
        followed(&b, "a").filter(|it| it["last"].as_u64().unwrap() >= last)
    });
    assert_eq!((&status["gaps"], &status["faults"]), (&json!([]), &json!([])), "{status}");
    let total = b.api("activity?node=a&with_total=true&limit=1")["total"].clone();
    assert_eq!(total, status["last"], "every record is there");
    until("nothing is wrong any more", || {
        (!b.api("status")["faults"].to_string().contains("index")).then_some(())
    });
}
