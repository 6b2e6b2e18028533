//! Nodes of a fleet whose store is another one for a while: an empty folder where it was mounted, or emptied by somebody. It takes
//! what it is given; nothing of that counts as stored, nobody as gone, and all of it is in the store once that is back.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Output, Proxy, mcpproxy, stub_stdio, until};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// What is told, by whoever is asked.
const LOST: &str = "not the one in which this node has its place, fleet.json is not there";

/// A folder with the store in it.
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

    /// An empty folder is where the store was.
    fn goes(&self) {
        std::fs::rename(self.store(), self.aside()).unwrap();
        std::fs::create_dir_all(self.store()).unwrap();
    }

    /// It is there again, and not what was put there meanwhile.
    fn comes_back(&self) {
        until("it is there again", || {
            let _ = std::fs::remove_dir_all(self.store());
            std::fs::rename(self.aside(), self.store()).ok()
        });
    }

    /// Everything that is there is somewhere else.
    fn is_emptied(&self) {
        std::fs::create_dir(self.aside()).unwrap();
        // What a node puts there meanwhile is not among them.
        let entries: Vec<_> = std::fs::read_dir(self.store()).unwrap().collect();
        for entry in entries {
            let entry = entry.unwrap();
            std::fs::rename(entry.path(), self.aside().join(entry.file_name())).unwrap();
        }
    }

    /// Each record of a node up to its last is in the store, once.
    fn has_all_of(&self, node: &str, last: u64) {
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

/// It is told of what lives, and of what waits.
fn until_told(node: &Proxy) {
    until("it is told", || {
        let (fleet, faults) = (node.api("fleet"), faults(node));
        let words = ["nodes are not seen", "records wait for the fleet's store"];
        (fleet["away"].to_string().contains(LOST) && words.iter().all(|it| faults.contains(it)))
            .then_some(())
    });
    let status = node.cli(&["fleet", "status"]);
    assert_eq!((status.code, status.stdout.contains(LOST)), (Some(1), true), "{}", status.stdout);
    assert!(node.log().contains("in which this node has its place"), "{}", node.log());
    assert_eq!(node.get("/readyz").status, 200, "as while the store is away");
}

fn segments(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path());
    let in_entry = |path: PathBuf| match path.is_dir() {
        true => segments(&path),
        false => usize::from(path.extension().is_some_and(|it| it == "parquet")),
    };
    entries.map(in_entry).sum()
}

#[test]
fn what_was_put_into_an_empty_folder_where_the_store_was_counts_for_nothing_and_is_put_again() {
    let fleet = Fleet::new();
    let [a, b] = ["a", "b"].map(|name| fleet.node(name));
    for node in [&a, &b] {
        until("both live", || (node.api("fleet")["living"] == 2).then_some(()));
    }
    let mut client = b.client();
    client.read("s:stats", json!({}));
    let before = until_stored(&b);
    fleet.goes();
    for _ in 0..20 {
        client.read("s:stats", json!({}));
    }
    until("something is put there", || (segments(&fleet.store()) > 0).then_some(()));
    until_told(&b);
    // Nobody is gone, and nothing is stored.
    let seen = b.api("fleet");
    assert_eq!(seen["living"], 2);
    assert!(seen["ledger"]["stored"].as_u64().unwrap() < before + 20, "{seen}");
    // What is shared is not told there, and not taken for told.
    let token = b.cli(&["token", "create", "ci", "--json"]).json()["token"].clone();
    until("it is told", || {
        let facts = b.api("fleet")["facts"].clone();
        (facts["failing"].to_string().contains(LOST) && facts["published"] == false).then_some(())
    });
    let config = b.folder.path().join("fleet.json");
    std::fs::write(&config, "{}").unwrap();
    let applied = b.cli(&["fleet", "apply", config.to_str().unwrap()]);
    assert_ne!(applied.code, Some(0), "{}", applied.stdout);
    assert!(applied.stderr.contains(LOST), "{}", applied.stderr);

    fleet.comes_back();
    until("nothing is wrong any more", || (faults(&b) == "[]").then_some(()));
    let last = until_stored(&b);
    assert!(last > before + 20);
    fleet.has_all_of("b", last);
    let header = [("X-API-Key", token.as_str().unwrap())];
    until("the token is good at the other node", || {
        (a.request("GET", "/api/v1/tools", &header, b"").status == 200).then_some(())
    });
}

#[test]
fn a_store_that_is_emptied_is_told_by_the_only_node_and_gone_on_with_when_it_is_put_back() {
    let fleet = Fleet::new();
    let a = fleet.node("a");
    let mut client = a.client();
    client.read("s:stats", json!({}));
    until_stored(&a);
    fleet.is_emptied();
    client.read("s:stats", json!({}));
    until_told(&a);
    assert_ne!(ledger(&a)["lag_records"], 0);
    fleet.comes_back();
    until("nothing is wrong any more", || (faults(&a) == "[]").then_some(()));
    fleet.has_all_of("a", until_stored(&a));
}
