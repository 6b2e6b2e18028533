//! Fleet nodes with a folder as their object store. Sealed records are verified using only the store, also after their
//! nodes have ended, and each manipulation of the store is reported.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Output, Proxy, configure, mcpproxy, stub_stdio, until};

/// A store, and the config of a node on it.
pub(crate) struct Store(pub(crate) TempDir);

impl Store {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn url(&self) -> String {
        format!("file://{}", self.0.path().display())
    }

    pub(crate) fn config(&self, node: &str, activity: Value) -> Value {
        json!({
            "mcpServers": {"s": stub_stdio(&[])},
            "activity": activity,
            "cluster": {"store": self.url(), "node": node, "flush": "100ms"},
        })
    }

    fn folder(&self, node: &str) -> PathBuf {
        self.0.path().join("nodes").join(node).join("segments")
    }

    /// The segments of a node, in the order of its chain.
    fn segments(&self, node: &str) -> Vec<PathBuf> {
        let files = |folder: &Path| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let days = files(&self.folder(node));
        let mut found: Vec<_> = days
            .iter()
            .flat_map(|day| files(day))
            .filter(|file| file.extension() == Some("parquet".as_ref()))
            .collect();
        found.sort();
        found
    }

    /// The last record in the store.
    pub(crate) fn last(&self, node: &str) -> u64 {
        self.segments(node).last().map_or(0, |segment| range(segment).1)
    }

    /// Report of `activity verify --store`.
    fn verify(&self, more: &[&str]) -> Output {
        let url = self.url();
        let mut args = vec!["activity", "verify", "--store", &url, "--json"];
        args.extend(more);
        Output::of(mcpproxy().args(args))
    }

    pub(crate) fn sound(&self) -> Value {
        let verified = self.verify(&[]);
        assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
        verified.json()
    }

    /// Faults of the first node, each with its first and last record.
    fn faults(&self, more: &[&str]) -> Vec<(String, Value, Value)> {
        let verified = self.verify(more);
        assert_eq!(verified.code, Some(1), "{}{}", verified.stdout, verified.stderr);
        let report = verified.json();
        let faults = report["nodes"][0]["faults"].as_array().unwrap();
        let fault = |it: &Value| {
            (it["fault"].as_str().unwrap().to_owned(), it["first"].clone(), it["last"].clone())
        };
        faults.iter().map(fault).collect()
    }
}

/// First and last record in the name of a segment.
fn range(segment: &Path) -> (u64, u64) {
    let name = segment.file_name().unwrap().to_str().unwrap();
    let mut parts = name.split('-').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap(), parts.next().unwrap())
}

fn last_seq(proxy: &Proxy) -> u64 {
    proxy.activity("")[0]["seq"].as_u64().unwrap()
}

/// Makes calls until there are `count` segments.
fn call_for_segments(proxy: &Proxy, store: &Store, node: &str, count: usize) {
    let mut client = proxy.client();
    until("there are segments", || {
        client.read("s:stats", json!({}));
        (store.segments(node).len() >= count).then_some(())
    });
}

/// Output of a start that is refused.
pub(crate) fn refused(config: Value, folder: &Path) -> Output {
    let path = configure(config, folder);
    // A start that is not refused runs until the timeout.
    let mut command = Command::new("timeout");
    command.arg("60").arg(mcpproxy().get_program()).arg("serve").arg("--config").arg(path);
    Output::of(&mut command)
}

// FLT-2
#[test]
fn sealed_records_of_a_node_are_verified_using_only_the_store() {
    let store = Store::new();
    let proxy = Proxy::with(store.config("a", json!({})));
    call_for_segments(&proxy, &store, "a", 4);
    let id = proxy.activity("type=tool_call")[0]["id"].as_str().unwrap().to_owned();
    let log = proxy.activity("")[0]["node"].clone();
    let folder = proxy.end();
    let report = store.sound();
    let node = &report["nodes"][0];
    assert_eq!((&node["node"], &node["first"]), (&json!("a"), &json!(1)));
    assert_eq!(node["records"], node["last"]);
    assert_eq!(node["last"], store.last("a"), "with the record of the end of the process");
    assert_eq!(node["segments"], store.segments("a").len());
    assert!(report["notes"].to_string().contains("keys were taken from the store"));

    // With the key of the node from a file that only the auditor can write.
    let claim = std::fs::read_to_string(store.0.path().join("nodes/a/claim.json")).unwrap();
    let claim: Value = serde_json::from_str(&claim).unwrap();
    assert_eq!(claim["log"], log);
    let keys = folder.path().join("keys");
    std::fs::write(&keys, format!("# node a\n{}\n", claim["key"].as_str().unwrap())).unwrap();
    let keys = keys.to_str().unwrap();
    let verified = store.verify(&["--keys", keys]);
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);

    // A single record, verified with only its proof and the key.
    let proof = folder.path().join("proof.json");
    let file = proof.to_str().unwrap();
    let proven = Output::of(mcpproxy().args([
        "activity",
        "prove",
        &id,
        "--store",
        &store.url(),
        "--file",
        file,
    ]));
    assert_eq!(proven.code, Some(0), "{}", proven.stderr);
    let check =
        || Output::of(mcpproxy().args(["activity", "verify", file, "--keys", keys, "--json"]));
    let checked = check();
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert_eq!(checked.json()["activity"]["id"], id);
    let text = std::fs::read_to_string(&proof).unwrap();
    std::fs::write(&proof, text.replace("\"status\":\"success\"", "\"status\":\"error\"")).unwrap();
    let checked = check();
    assert_eq!(checked.code, Some(1));
    assert!(checked.stderr.contains("is not the proven one"), "{}", checked.stderr);
    let absent = id.replace(&id[..3], "00A");
    let proven =
        Output::of(mcpproxy().args(["activity", "prove", &absent, "--store", &store.url()]));
    assert_eq!(proven.code, Some(1));
    assert!(proven.stderr.contains("is not in the store"), "{}", proven.stderr);
}

/// Runs a node that makes some calls, and stops it.
fn run_node(store: &Store, node: &str) {
    let proxy = Proxy::with(store.config(node, json!({})));
    call_for_segments(&proxy, store, node, 2);
    proxy.end();
}

fn key(store: &Store, node: &str) -> String {
    let claim = store.0.path().join("nodes").join(node).join("claim.json");
    let claim: Value = serde_json::from_slice(&std::fs::read(claim).unwrap()).unwrap();
    claim["key"].as_str().unwrap().to_owned()
}

#[test]
fn store_rewritten_by_another_party_fails_verification_with_the_nodes_keys() {
    let (store, other) = (Store::new(), Store::new());
    run_node(&store, "a");
    run_node(&store, "b");
    let both = store.0.path().join("both.keys");
    std::fs::write(&both, format!("{}\n{}\n", key(&store, "a"), key(&store, "b"))).unwrap();
    let one = store.0.path().join("one.keys");
    std::fs::write(&one, format!("{}\n", key(&store, "a"))).unwrap();
    let by = |keys: &Path| store.verify(&["--keys", keys.to_str().unwrap()]);
    assert_eq!(by(&both).code, Some(0), "{}", by(&both).stderr);
    // No key is given for one of the nodes.
    let reported = by(&one);
    assert_eq!(reported.code, Some(1), "{}", reported.stdout);
    let report = reported.json();
    assert_eq!(report["nodes"][0]["faults"], json!([]));
    let why = &report["nodes"][1]["faults"][0];
    assert!(why["fault"] == "key" && why.to_string().contains("no key is given for"), "{why}");
    // Another party rewrites everything that one node has written, with its own key.
    std::fs::copy(store.0.path().join("fleet.json"), other.0.path().join("fleet.json")).unwrap();
    run_node(&other, "b");
    let [ours, theirs] = [&store, &other].map(|it| it.0.path().join("nodes/b"));
    let aside = store.0.path().join("aside");
    std::fs::rename(&ours, &aside).unwrap();
    std::fs::rename(&theirs, &ours).unwrap();
    store.sound();
    let reported = by(&both);
    assert_eq!(reported.code, Some(1), "{}", reported.stdout);
    let faults = reported.json()["nodes"][1]["faults"].clone();
    assert!(!faults.as_array().unwrap().is_empty(), "{faults}");
    // A node is removed completely.
    std::fs::rename(&ours, &theirs).unwrap();
    store.sound();
    let reported = by(&both);
    assert_eq!(reported.code, Some(1), "{}", reported.stdout);
    let fault = &reported.json()["faults"][0];
    assert!(fault["fault"] == "removed" && fault.to_string().contains("/b"), "{fault}");
}

// FLT-2
#[test]
fn each_manipulation_of_the_store_is_reported() {
    let store = Store::new();
    let proxy = Proxy::with(store.config("a", json!({})));
    call_for_segments(&proxy, &store, "a", 5);
    drop(proxy.end());
    store.sound();
    let segments = store.segments("a");
    let [one, two, three] =
        [1, 2, 3].map(|at| (segments[at].clone(), std::fs::read(&segments[at]).unwrap()));
    let named = |fault: &str, path: &Path| {
        let (first, last) = range(path);
        (fault.to_owned(), json!(first), json!(last))
    };

    let at = two.1.len() / 3;
    let altered: Vec<u8> =
        two.1.iter().enumerate().map(|(i, b)| if i == at { b ^ 1 } else { *b }).collect();
    std::fs::write(&two.0, altered).unwrap();
    assert_eq!(store.faults(&[]), [named("altered", &two.0)]);

    std::fs::write(&two.0, &one.1).unwrap();
    assert_eq!(store.faults(&[]), [named("replaced", &two.0)]);

    std::fs::write(&three.0, &two.1).unwrap();
    std::fs::write(&two.0, &three.1).unwrap();
    assert_eq!(store.faults(&[]), [named("reordered", &two.0), named("reordered", &three.0)]);
    std::fs::write(&three.0, &three.1).unwrap();

    std::fs::remove_file(&two.0).unwrap();
    assert_eq!(store.faults(&[]), [named("removed", &two.0)]);
    assert_eq!(store.faults(&["--expired"]), [named("removed", &two.0)], "not at the beginning");
    std::fs::write(&two.0, &two.1).unwrap();

    let first = std::fs::read(&segments[0]).unwrap();
    std::fs::remove_file(&segments[0]).unwrap();
    assert_eq!(store.faults(&[]).len(), 1);
    assert_eq!(store.verify(&["--expired"]).code, Some(0));
    std::fs::write(&segments[0], first).unwrap();

    // The claim has the key of another node, or none.
    let claim = store.0.path().join("nodes/a/claim.json");
    let whole = std::fs::read_to_string(&claim).unwrap();
    std::fs::remove_file(&claim).unwrap();
    assert_eq!(store.faults(&[])[0].0, "key");
    std::fs::write(&claim, &whole).unwrap();
    store.sound();

    // Objects that belong to no node are counted, and a few are named.
    for at in 0..300 {
        std::fs::create_dir(store.0.path().join(format!("nodes/X{at:03}"))).unwrap();
    }
    let verified = store.verify(&[]);
    assert_eq!(verified.code, Some(1));
    let report = verified.json();
    let (nodes, faults) = (report["nodes"].as_array().unwrap(), &report["faults"]);
    assert_eq!((nodes.len(), faults[0]["fault"].as_str()), (1, Some("foreign")));
    let why = faults[0]["why"].as_str().unwrap();
    assert!(why.starts_with("300 stray objects: X000, X001"), "{why}");

    let empty = tempfile::tempdir().unwrap();
    let url = format!("file://{}", empty.path().display());
    let verified = Output::of(mcpproxy().args(["activity", "verify", "--store", &url]));
    assert_eq!(verified.code, Some(1));
    assert!(verified.stderr.contains("it does not belong to a fleet"), "{}", verified.stderr);
    let verified = Output::of(mcpproxy().args(["activity", "verify", "--store", "ftp://x"]));
    assert_eq!(verified.code, Some(2));
}

// FLT-1
#[test]
fn killed_node_continues_exactly_where_its_chain_ends_in_the_store() {
    let store = Store::new();
    let config = store.config("a", json!({}));
    let mut proxy = Proxy::with(config.clone());
    for round in 1..=4 {
        call_for_segments(&proxy, &store, "a", round * 2);
        proxy.process.0.kill().unwrap();
        proxy.process.wait();
        let folder = std::mem::replace(&mut proxy.folder, tempfile::tempdir().unwrap());
        if round == 2 {
            // Without its local state, the node reads its position from the store.
            std::fs::remove_file(folder.path().join("data/fleet/sealed")).unwrap();
        }
        proxy = Proxy::unready(config.clone(), folder).ready();
    }
    let last = last_seq(&proxy);
    let folder = proxy.end();
    assert!(store.last("a") > last, "with the record of its end");
    let report = store.sound();
    assert_eq!(report["nodes"][0]["records"], store.last("a"));
    let local = Output::of(
        mcpproxy()
            .args(["activity", "verify", "--json", "--config"])
            .arg(folder.path().join("config.json")),
    );
    assert_eq!(
        (local.code, &local.json()["last"]),
        (Some(0), &json!(store.last("a"))),
        "{}",
        local.stderr
    );
}

// FLT-1
#[test]
fn records_rejected_by_the_store_are_kept_and_uploaded_later() {
    let store = Store::new();
    // A folder cannot be created in place of a file.
    let blocked = store.folder("a");
    std::fs::create_dir_all(blocked.parent().unwrap()).unwrap();
    let proxy = Proxy::with(store.config("a", json!({"max_records": 10, "min_retention": "0s"})));
    call_for_segments(&proxy, &store, "a", 1);
    let before = store.last("a");
    let aside = blocked.with_extension("aside");
    std::fs::rename(&blocked, &aside).unwrap();
    std::fs::write(&blocked, "").unwrap();
    let mut client = proxy.client();
    for _ in 0..200 {
        client.read("s:stats", json!({}));
    }
    until("it is reported", || proxy.log().contains("cannot upload a segment yet").then_some(()));
    // More than twenty times the limit. Retention has run, and has kept the records that are not uploaded.
    let kept = proxy.activity("")[0]["seq"].as_u64().unwrap();
    let oldest = proxy.api("activity/verify")["first"].as_u64().unwrap();
    assert!(oldest <= before + 1, "record {oldest} of {kept}; {before} are in the store");
    std::fs::remove_file(&blocked).unwrap();
    std::fs::rename(&aside, &blocked).unwrap();
    until("they are in the store", || (store.last("a") >= kept).then_some(()));
    drop(proxy.end());
    store.sound();
}

// FLT-3
#[test]
fn name_of_another_node_and_store_of_another_fleet_are_refused() {
    let store = Store::new();
    let first = Proxy::with(store.config("a", json!({})));
    let other = tempfile::tempdir().unwrap();
    let refused_as = |config: Value, folder: &Path, words: &str| {
        let output = refused(config, folder);
        assert_eq!(output.code, Some(5), "{}", output.stderr);
        assert!(output.stderr.contains(words), "{}", output.stderr);
    };
    refused_as(
        store.config("a", json!({})),
        other.path(),
        "the name 'a' is taken by another node of this fleet",
    );
    // Under its own name the node joins the fleet.
    let second = Proxy::unready(store.config("b", json!({})), other).ready();
    let folder = second.end();
    drop(first.end());
    assert_eq!(store.sound()["nodes"].as_array().unwrap().len(), 2);

    let elsewhere = Store::new();
    refused_as(
        elsewhere.config("b", json!({})),
        folder.path(),
        "contains no fleet, but this node belongs to fleet",
    );
    drop(Proxy::with(elsewhere.config("x", json!({}))).end());
    refused_as(elsewhere.config("b", json!({})), folder.path(), "but this node belongs to fleet");

    // Another log under the same name, and the same log restored to an older state.
    let data = folder.path().join("data");
    let saved = tempfile::tempdir().unwrap();
    let copy = |from: &Path, to: &Path| {
        let done = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
        assert!(done.success());
    };
    copy(&data, saved.path());
    let again = Proxy::unready(store.config("b", json!({})), folder).ready();
    call_for_segments(&again, &store, "b", 3);
    let folder = again.end();
    std::fs::remove_dir_all(&data).unwrap();
    copy(&saved.path().join("data"), folder.path());
    refused_as(store.config("b", json!({})), folder.path(), "restored to an older state");
    // Under another name the store would have its records twice with the same ids.
    refused_as(store.config("c", json!({})), folder.path(), "belongs to node 'b' of this fleet");
    std::fs::remove_dir_all(data.join("activity")).unwrap();
    refused_as(
        store.config("b", json!({})),
        folder.path(),
        "a chain cannot continue with a different log",
    );
    store.sound();
    let nowhere = tempfile::tempdir().unwrap();
    let config = json!({"cluster": {"store": "file:///not/there", "node": "a"}});
    refused_as(config, nowhere.path(), "/not/there is not a folder");
}

#[test]
fn reply_is_sent_with_durability_fleet_when_its_record_is_in_the_store() {
    let store = Store::new();
    let mut config = store.config("a", json!({"durability": "fleet"}));
    // Records are uploaded at once while a reply waits for them.
    config["cluster"]["flush"] = json!("1h");
    let proxy = Proxy::with(config);
    let mut client = proxy.client();
    for _ in 0..5 {
        client.read("s:stats", json!({}));
        let stored = store.last("a");
        let seq = proxy.activity("type=tool_call")[0]["seq"].as_u64().unwrap();
        assert!(stored >= seq, "record {seq} of {stored} in the store");
    }
    drop(proxy.end());
    store.sound();
}

#[test]
fn calls_follow_on_failure_with_durability_fleet_while_the_store_rejects_uploads() {
    let store = Store::new();
    let proxy = Proxy::with(store.config("a", json!({"durability": "fleet"})));
    let mut client = proxy.client();
    client.read("s:stats", json!({}));
    let (blocked, aside) = (store.folder("a"), store.folder("a").with_extension("aside"));
    std::fs::rename(&blocked, &aside).unwrap();
    std::fs::write(&blocked, "").unwrap();
    // This call had been sent, so it is answered, although late. Then the log accepts no more records.
    client.read("s:stats", json!({}));
    until("the log accepts no more", || {
        let faults = proxy.api("status")["faults"].to_string();
        faults.contains("has accepted nothing for 10 s").then_some(())
    });
    let answer = client.read("s:stats", json!({}));
    assert_eq!(answer["isError"], true, "{answer}");
    std::fs::remove_file(&blocked).unwrap();
    std::fs::rename(&aside, &blocked).unwrap();
    until("calls continue", || {
        (client.read("s:stats", json!({}))["isError"] != true).then_some(())
    });
    drop(proxy.end());
    store.sound();
}

// PAR-1
#[test]
fn table_is_also_exported_on_a_single_machine() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    for _ in 0..300 {
        client.read("s:stats", json!({}));
    }
    let file = proxy.folder.path().join("activity.parquet");
    let file = file.to_str().unwrap();
    let export = ["activity", "export", "--output", file, "--format", "parquet"];
    let exported = proxy.cli(&export);
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let bytes = std::fs::read(file).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1") && bytes.len() > 4000);
    let filtered = proxy.get("/api/v1/activity/export?format=parquet&server=none");
    assert_eq!(filtered.header("content-type"), Some("application/vnd.apache.parquet"));
    assert!(filtered.body.starts_with(b"PAR1") && filtered.body.ends_with(b"PAR1"));
    let after = proxy.activity("")[0]["id"].as_str().unwrap().to_owned();
    let bad = proxy.get(&format!("/api/v1/activity/export?format=parquet&after={after}"));
    assert_eq!(bad.status, 400, "{}", bad.text());
    // Without a fleet the data folder has no files of a fleet.
    assert!(!proxy.folder.path().join("data/fleet").exists());
}
