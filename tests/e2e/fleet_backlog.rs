//! Fleet nodes whose store is unavailable, before or after their start: the backlog is bounded, then calls follow
//! `activity.on_failure`, and every record is uploaded once the store is back.

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fleet::Store;
use crate::harness::{Client, Proxy, until};

/// Size in bytes of the arguments of a call, far more than the rest of its record.
const PAD: usize = 700 << 10;
/// Minimum of `cluster.backlog_bytes`.
const BACKLOG: u64 = 16 << 20;

/// Time at which the store becomes unavailable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Away {
    /// Before a restart of a node that is a member already.
    AtStart,
    /// After the node has joined.
    Later,
}

/// A store whose folder `nodes` is moved aside and replaced by a file.
struct Absent {
    nodes: PathBuf,
    aside: PathBuf,
}

impl Absent {
    /// Makes the store unavailable: no folder can be created, because a file has its name.
    fn of(store: &Store) -> Self {
        let nodes = store.0.path().join("nodes");
        let aside = store.0.path().join("aside");
        std::fs::rename(&nodes, &aside).unwrap();
        until("it is a file", || {
            let _ = std::fs::remove_dir_all(&nodes);
            std::fs::write(&nodes, "").ok()
        });
        Self { nodes, aside }
    }

    fn restore(self) {
        until("it is available again", || {
            let _ = std::fs::remove_file(&self.nodes);
            let _ = std::fs::remove_dir_all(&self.nodes);
            std::fs::rename(&self.aside, &self.nodes).ok()
        });
    }
}

fn config(store: &Store, mut activity: Value) -> Value {
    activity["max_payload_bytes"] = json!(1 << 20);
    let mut config = store.config("a", activity);
    config["cluster"]["backlog_bytes"] = json!(BACKLOG);
    config
}

/// A node that has sealed records and whose store is now unavailable, with the number of the last record in the store.
fn without_store(store: &Store, config: Value, away: Away) -> (Proxy, Absent, u64) {
    let proxy = Proxy::with(config.clone());
    let mut client = proxy.client();
    client.read("s:stats", json!({}));
    let before = until("it is in the store, as the node knows", || {
        let ledger = proxy.api("fleet")["ledger"].clone();
        (ledger["lag_records"] == 0).then(|| ledger["stored"].as_u64().unwrap())
    });
    match away {
        Away::Later => (proxy, Absent::of(store), before),
        Away::AtStart => {
            let folder: TempDir = proxy.end();
            let (before, absent) = (store.last("a"), Absent::of(store));
            let proxy = Proxy::unready(config, folder).ready();
            proxy.assert_logged("starting without the fleet's store");
            (proxy, absent, before)
        }
    }
}

fn call(client: &mut Client) -> Value {
    client.read("s:stats", json!({"pad": "x".repeat(PAD)}))
}

fn faults(proxy: &Proxy) -> String {
    proxy.api("status")["faults"].to_string()
}

/// Checks that the size of the backlog is reported.
fn assert_backlog_reported(proxy: &Proxy, before: u64, away: Away) {
    let ledger = proxy.api("fleet")["ledger"].clone();
    let number = |key: &str| ledger[key].as_u64().unwrap();
    assert!(number("stored") >= before, "{ledger}; {before} are in the store");
    assert_eq!(number("lag_records"), number("committed") - number("stored"));
    assert!(number("lag_bytes") > BACKLOG && number("lag_ms") > 0, "{ledger}");
    let faults = faults(proxy);
    let mut words = vec!["more than cluster.backlog_bytes", "records wait for the fleet's store"];
    if away == Away::AtStart {
        words.push("this node has not joined its fleet yet");
    }
    for words in words {
        assert!(faults.contains(words), "{faults}");
    }
}

/// Asserts that calls continue, and that the store has all records once the node has ended.
fn all_is_stored(proxy: Proxy, store: &Store, client: &mut Client) {
    until("the log takes records again", || {
        (proxy.api("status")["activity"]["state"] == "ok").then_some(())
    });
    assert_ne!(call(client)["isError"], true);
    until("nothing is wrong any more", || {
        let faults = faults(&proxy);
        (!faults.contains("store") && !faults.contains("joined its fleet")).then_some(())
    });
    let last = proxy.activity("")[0]["seq"].as_u64().unwrap();
    drop(proxy.end());
    assert!(store.last("a") >= last);
    let report = store.sound();
    let node = &report["nodes"][0];
    assert_eq!((&node["first"], &node["records"]), (&json!(1), &node["last"]));
}

fn calls_are_refused_and_nothing_is_lost(away: Away) {
    let store = Store::new();
    let (proxy, absent, before) = without_store(&store, config(&store, json!({})), away);
    let mut client = proxy.client();
    let mut answered = 0;
    let refusal = until("calls are refused", || {
        let answer = call(&mut client);
        let is_refused = answer["isError"] == true;
        answered += u64::from(!is_refused);
        is_refused.then_some(answer)
    });
    assert!(refusal.to_string().contains("cluster.backlog_bytes"), "{refusal}");
    assert_backlog_reported(&proxy, before, away);
    assert_eq!(call(&mut client)["isError"], true, "and the next one, too");
    absent.restore();
    all_is_stored(proxy, &store, &mut client);
    assert!(store.last("a") >= before + answered);
}

fn calls_continue_and_losses_are_counted(away: Away) {
    let store = Store::new();
    let config = config(&store, json!({"on_failure": "continue"}));
    let (proxy, absent, before) = without_store(&store, config, away);
    let mut client = proxy.client();
    until("the log accepts no more", || {
        assert_ne!(call(&mut client)["isError"], true);
        (proxy.api("status")["activity"]["state"] == "degraded").then_some(())
    });
    let mut are_lost = |count: u64| {
        for _ in 0..5 {
            assert_ne!(call(&mut client)["isError"], true);
        }
        until("they are counted", || {
            (proxy.api("status")["activity"]["lost"].as_u64() >= Some(count)).then_some(())
        });
        proxy.activity("")[0]["seq"].clone()
    };
    // By now the log contains all records before the first lost one.
    let kept = are_lost(5);
    assert_eq!(are_lost(10), kept, "the log does not grow");
    assert_backlog_reported(&proxy, before, away);
    absent.restore();
    all_is_stored(proxy, &store, &mut client);
}

// FLT-1
#[test]
fn calls_above_the_backlog_of_a_lost_store_are_refused_and_no_record_is_lost() {
    calls_are_refused_and_nothing_is_lost(Away::Later);
}

#[test]
fn calls_above_the_backlog_of_a_store_missing_at_start_are_refused_and_no_record_is_lost() {
    calls_are_refused_and_nothing_is_lost(Away::AtStart);
}

#[test]
fn calls_above_the_backlog_of_a_lost_store_continue_if_configured() {
    calls_continue_and_losses_are_counted(Away::Later);
}

#[test]
fn calls_above_the_backlog_of_a_store_missing_at_start_continue_if_configured() {
    calls_continue_and_losses_are_counted(Away::AtStart);
}

#[test]
fn calls_follow_on_failure_with_durability_fleet_if_the_store_is_missing_at_start() {
    let store = Store::new();
    let config = store.config("a", json!({"durability": "fleet"}));
    let (proxy, absent, _) = without_store(&store, config, Away::AtStart);
    let mut client = proxy.client();
    // This call had been sent, so it is answered, although late. Then the log accepts no more records.
    client.read("s:stats", json!({}));
    until("it is reported", || {
        faults(&proxy).contains("has accepted nothing for 10 s").then_some(())
    });
    let answer = client.read("s:stats", json!({}));
    assert!(answer.to_string().contains("has accepted nothing for 10 s"), "{answer}");
    assert_eq!(answer["isError"], true, "{answer}");
    absent.restore();
    all_is_stored(proxy, &store, &mut client);
}
