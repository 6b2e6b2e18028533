//! Facts shared by the nodes of a fleet, with a folder as the object store: a change on one node applies on all, and no
//! manipulation of the store undoes it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fleet::refused;
use crate::harness::{Output, Proxy, create_token, error_text, free_port, stub_stdio, until};

/// Fleet key of the nodes of these tests.
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

struct Store(TempDir);

impl Store {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Config of a node, with the members of `more`.
    fn config(&self, node: &str, more: Value) -> Value {
        let url = format!("file://{}", self.0.path().display());
        let mut config = json!({
            "mcpServers": {"s": stub_stdio(&[])},
            "cluster": {"store": url, "node": node, "flush": "100ms", "key": KEY},
        });
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    fn node(&self, name: &str) -> Proxy {
        Proxy::with(self.config(name, json!({})))
    }

    /// Object with the facts of a node.
    fn object(&self, node: &str) -> PathBuf {
        self.0.path().join("facts/said").join(node)
    }
}

fn is_good(proxy: &Proxy, token: &str) -> bool {
    proxy.request("GET", "/api/v1/tools", &[("X-API-Key", token)], b"").status == 200
}

fn until_good(proxy: &Proxy, token: &str, good: bool) {
    until("the token is known", || (is_good(proxy, token) == good).then_some(()));
}

fn succeeds(output: &Output) {
    assert_eq!(output.code, Some(0), "{}{}", output.stdout, output.stderr);
}

// FLT-9
#[test]
fn token_created_rotated_and_revoked_on_one_node_changes_on_all() {
    let store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.node(name));
    let first = create_token(&a, &["ci"]);
    until_good(&b, &first, true);
    let second = b.cli(&["token", "rotate", "ci", "--json"]);
    succeeds(&second);
    let second = second.json()["token"].as_str().unwrap().to_owned();
    until_good(&a, &second, true);
    assert!(!is_good(&a, &first) && !is_good(&b, &first));
    succeeds(&a.cli(&["token", "revoke", "ci"]));
    assert!(!is_good(&a, &second));
    until_good(&b, &second, false);
    // On each node the name can be used again.
    let third = create_token(&b, &["ci"]);
    until_good(&a, &third, true);
    let sealed = std::fs::read(store.object("b")).unwrap();
    assert!(!sealed.windows(2).any(|part| part == b"ci"), "the object is encrypted");
}

// FLT-9
#[test]
fn revocation_is_not_undone_by_restoring_old_store_objects() {
    let store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.node(name));
    let token = create_token(&a, &["ci"]);
    until_good(&b, &token, true);
    until("it is in the store", || store.object("a").exists().then_some(()));
    let before = std::fs::read(store.object("a")).unwrap();
    succeeds(&a.cli(&["token", "revoke", "ci"]));
    until_good(&b, &token, false);
    // An object of the node from before the revocation is restored. A node that has seen the revocation rejects the
    // object, also after a restart.
    drop(a.end());
    std::fs::write(store.object("a"), before).unwrap();
    until("it is reported", || b.log().contains("rolled back: object").then_some(()));
    assert!(!is_good(&b, &token));
    let folder = b.end();
    let b = Proxy::unready(store.config("b", json!({})), folder).ready();
    until("it is reported again", || b.log().contains("rolled back: object").then_some(()));
    assert!(!is_good(&b, &token));
}

#[test]
fn changes_made_without_the_store_or_a_running_node_are_shared_later() {
    let store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.node(name));
    let [kept, gone] = ["kept", "gone"].map(|name| create_token(&a, &[name]));
    until_good(&b, &kept, true);
    until_good(&b, &gone, true);
    let (facts, aside) = (store.0.path().join("facts"), store.0.path().join("aside"));
    std::fs::rename(&facts, &aside).unwrap();
    std::fs::write(&facts, "").unwrap();
    until("it is reported", || {
        a.log().contains("cannot exchange facts with the fleet").then_some(())
    });
    assert!(is_good(&a, &kept) && is_good(&b, &kept), "known tokens remain valid");
    succeeds(&a.cli(&["token", "revoke", "gone"]));
    // The node is killed before it can publish the revocation.
    let mut a = a;
    a.process.0.kill().unwrap();
    a.process.wait();
    let folder = std::mem::replace(&mut a.folder, tempfile::tempdir().unwrap());
    std::fs::remove_file(&facts).unwrap();
    std::fs::rename(&aside, &facts).unwrap();
    let a = Proxy::unready(store.config("a", json!({})), folder).ready();
    until_good(&b, &gone, false);
    assert!(!is_good(&a, &gone) && is_good(&a, &kept) && is_good(&b, &kept));
}

#[test]
fn altered_or_oversized_object_is_reported_and_has_no_effect() {
    let store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.node(name));
    let token = create_token(&a, &["ci"]);
    until_good(&b, &token, true);
    drop(a.end());
    let whole = std::fs::read(store.object("a")).unwrap();
    let mut altered = whole.clone();
    *altered.last_mut().unwrap() ^= 1;
    std::fs::write(store.object("a"), altered).unwrap();
    until("it is reported", || b.log().contains("altered, truncated or moved").then_some(()));
    let long = std::fs::File::create(store.object("a")).unwrap();
    long.set_len(100 << 20).unwrap();
    until("it is reported", || b.log().contains("not read: 104857600 bytes").then_some(()));
    assert!(is_good(&b, &token));
    let folder = b.end();
    let b = Proxy::unready(store.config("b", json!({})), folder).ready();
    assert!(is_good(&b, &token));
}

#[test]
fn foreign_objects_among_the_facts_are_one_fault_and_few_log_lines() {
    let store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.node(name));
    let token = create_token(&a, &["ci"]);
    until_good(&b, &token, true);
    for at in 0..500 {
        std::fs::write(store.object(&format!("X{at:03}")), b"").unwrap();
        std::fs::write(store.object(&format!("0{at:03}")), b"").unwrap();
    }
    let facts = until("all are shared", || {
        let facts = b.api("fleet")["facts"].clone();
        let all = facts["faults"]["facts/said"].as_str()?;
        all.ends_with("437 more objects are skipped").then_some(facts.clone())
    });
    let all = facts["faults"]["facts/said"].as_str().unwrap();
    assert!(all.starts_with("500 stray objects: X000, "), "{all}");
    assert_eq!(facts["faults"].as_object().unwrap().len(), 64);
    let log = b.log();
    let lines = log.lines().filter(|line| line.contains("skipping a shared fact object")).count();
    // Lines of the burst that the log limit permits, and further lines permitted while the test runs.
    assert!((1..=100).contains(&lines), "{lines}");
    // Other facts are still read.
    let other = create_token(&a, &["other"]);
    until_good(&b, &other, true);
}

/// Reported state of the fleet's config.
fn status(node: &Proxy) -> Value {
    node.cli(&["fleet", "status", "--json"]).json()["shared"].clone()
}

/// Waits until `node` has `version` of the config in `state`, as seen by `asked`.
fn until_run(asked: &Proxy, node: &str, version: u64, state: &str) -> Value {
    until("the node reports its version", || {
        let status = status(asked);
        let nodes = status["nodes"].as_array()?;
        let run = nodes.iter().find(|it| it["node"] == node)?;
        (run["version"] == version && run["state"] == state).then(|| run.clone())
    })
}

fn tools_limit(node: &Proxy) -> Value {
    node.api("config")["standing"]["tools_limit"].clone()
}

/// Applies a config on a node.
fn applied(node: &Proxy, config: &Value) -> Output {
    let file = node.folder.path().join("fleet.json");
    std::fs::write(&file, config.to_string()).unwrap();
    node.cli(&["fleet", "apply", file.to_str().unwrap(), "--json"])
}

// FLT-12
#[test]
fn config_applied_on_one_node_takes_effect_on_all_and_can_be_reverted() {
    let store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.node(name));
    assert_eq!(status(&a)["config"], Value::Null);
    let none = a.cli(&["fleet", "rollback"]);
    assert_eq!(none.code, Some(1));
    assert!(none.stderr.contains("no config before this one"), "{}", none.stderr);
    let servers = json!({"s": stub_stdio(&[])});
    let rules = a.folder.path().join("r.cedar");
    std::fs::write(&rules, r#"@id("all") permit (principal, action, resource);"#).unwrap();
    let first = json!({
        "tools_limit": 7, "mcpServers": servers, "policy": {"files": ["r.cedar"]},
        "listen": "127.0.0.1:1", "api_key": "0000000000000000000000000000000000000000",
    });
    let reported = applied(&a, &first);
    succeeds(&reported);
    assert_eq!(reported.json()["left_out"], json!(["listen", "api_key"]));
    for node in ["a", "b"] {
        until_run(&b, node, 1, "running");
    }
    assert_eq!((tools_limit(&a), tools_limit(&b)), (json!(7), json!(7)));
    // The rules also apply on the node that has no rule file.
    assert_eq!(b.api("policy")["rules"].as_array().map(Vec::len), Some(1), "{}", b.api("policy"));
    // The config file of the node no longer determines the shared sections.
    let own = b.cli(&["upstream", "disable", "s"]);
    assert_ne!(own.code, Some(0), "{}", own.stdout);
    assert!(
        format!("{}{}", own.stdout, own.stderr).contains("mcpproxy fleet apply"),
        "{}{}",
        own.stdout,
        own.stderr
    );

    succeeds(&applied(&b, &json!({"tools_limit": 9, "mcpServers": servers})));
    until_run(&a, "a", 2, "running");
    until_run(&a, "b", 2, "running");
    assert_eq!((tools_limit(&a), tools_limit(&b)), (json!(9), json!(9)));
    succeeds(&a.cli(&["fleet", "rollback"]));
    until_run(&b, "b", 3, "running");
    until_run(&b, "a", 3, "running");
    assert_eq!((tools_limit(&a), tools_limit(&b)), (json!(7), json!(7)));

    // A node that knows this config starts with it even without the store. A node that joins later starts with it, too.
    let folder = b.end();
    let (here, aside) = (store.0.path().join("facts"), store.0.path().join("aside"));
    std::fs::rename(&here, &aside).unwrap();
    std::fs::write(&here, "").unwrap();
    let b = Proxy::unready(store.config("b", json!({})), folder).ready();
    assert_eq!(tools_limit(&b), 7);
    std::fs::remove_file(&here).unwrap();
    std::fs::rename(&aside, &here).unwrap();
    let c = store.node("c");
    assert_eq!(tools_limit(&c), 7);
    until_run(&a, "c", 3, "running");
}

#[test]
fn unusable_config_is_refused_before_it_is_stored_and_by_each_node_with_a_reason() {
    let store = Store::new();
    // The environment variable with a secret is set on one machine only.
    let (config, folder) = (store.config("a", json!({})), tempfile::tempdir().unwrap());
    let a = Proxy::under("export HOOK=0123456789abcdef0123", config, folder);
    let refused = applied(&a, &json!({"tools_limit": "many"}));
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    assert!(refused.stderr.contains("tools_limit"), "{}", refused.stderr);
    let refused = applied(&a, &json!({"policy": {"files": ["gone.cedar"]}}));
    assert_eq!(refused.code, Some(5), "{}{}", refused.stdout, refused.stderr);
    let rules = a.folder.path().join("bad.cedar");
    std::fs::write(rules, "permit (").unwrap();
    let refused = applied(&a, &json!({"policy": {"files": ["bad.cedar"]}}));
    assert_eq!(refused.code, Some(5), "{}{}", refused.stdout, refused.stderr);
    assert!(!store.0.path().join("facts/config").exists(), "nothing is stored");
    assert_eq!(status(&a)["config"], Value::Null);

    // A config that is valid on this node is invalid on another one.
    let b = store.node("b");
    let hook = json!({"url": "https://127.0.0.1:1/hook", "secret": "${env:HOOK}"});
    succeeds(&applied(&a, &json!({"tools_limit": 4, "approval": {"webhook": hook}})));
    until_run(&b, "a", 1, "running");
    let run = until_run(&b, "b", 1, "refused");
    assert!(run["reason"].to_string().contains("HOOK"), "{run}");
    assert_eq!((tools_limit(&a), &tools_limit(&b)), (json!(4), &Value::Null));
    // On this machine the command line has no such variable either, so the config is checked by the other node.
    succeeds(&applied(&b, &json!({"tools_limit": 5})));
    until_run(&b, "b", 2, "running");
    until_run(&b, "a", 2, "running");
    assert_eq!(tools_limit(&b), 5);
}

/// Content of the files in a folder and below it.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| match path.is_dir() {
        true => files(&path),
        // The file may be missing, because a heartbeat is being replaced.
        false => std::fs::read(&path).map(|bytes| vec![(path, bytes)]).unwrap_or_default(),
    };
    entries.flat_map(read).collect()
}

#[test]
fn applied_config_is_stored_without_plain_secrets() {
    const SECRET: &str = "planted-secret-0123456789";
    let store = Store::new();
    let a = store.node("a");
    let mut server = stub_stdio(&[]);
    server["env"] = json!({"TOKEN": SECRET});
    succeeds(&applied(&a, &json!({"mcpServers": {"s": server}})));
    until_run(&a, "a", 1, "running");
    assert_ne!(a.client().read("s:stats", json!({}))["isError"], true);
    drop(a.end());
    let there = files(store.0.path());
    let has = |part: &str| there.iter().any(|(path, _)| path.to_str().unwrap().contains(part));
    for part in ["facts/config/a/", "facts/said/a", "nodes/a/claim.json", ".parquet"] {
        assert!(has(part), "{part}");
    }
    for (path, bytes) in &there {
        let is_there = bytes.windows(SECRET.len()).any(|it| it == SECRET.as_bytes());
        assert!(!is_there, "{}", path.display());
    }
}

#[test]
fn facts_survive_a_key_change_even_for_new_nodes_and_from_removed_nodes() {
    let store = Store::new();
    let new_key: String = (64..96).map(|byte| format!("{byte:02x}")).collect();
    let with_key = |name: &str, key: &Value| {
        let mut config = store.config(name, json!({}));
        config["cluster"]["key"] = key.clone();
        config
    };
    let [a, b, gone] = ["a", "b", "gone"].map(|name| store.node(name));
    let servers = json!({"s": stub_stdio(&[])});
    for limit in [5, 7] {
        succeeds(&applied(&gone, &json!({"tools_limit": limit, "mcpServers": servers})));
    }
    let token = create_token(&gone, &["ci"]);
    for node in [&a, &b] {
        until_good(node, &token, true);
        until("it runs the config", || (tools_limit(node) == 7).then_some(()));
    }
    // The removed node does not take part in the change of the key, and does not return.
    drop(gone.end());
    let (mut a, mut b) = (a, b);
    for key in [json!([KEY, new_key]), json!([new_key, KEY]), json!(new_key)] {
        for (node, name) in [(&mut a, "a"), (&mut b, "b")] {
            let folder = std::mem::replace(&mut node.folder, tempfile::tempdir().unwrap());
            node.process.signal("TERM");
            node.process.wait();
            *node = Proxy::unready(with_key(name, &key), folder).ready();
        }
        until("it is published with the newest key", || {
            let config = a.cli(&["fleet", "status", "--json"]).json()["shared"].clone();
            let sealed = !a.api("status")["faults"].to_string().contains("newest cluster.key");
            (config["published"] == true && sealed).then_some(())
        });
        assert!(is_good(&a, &token) && is_good(&b, &token), "{key}");
    }
    let c = Proxy::with(with_key("c", &json!(new_key)));
    assert_eq!(tools_limit(&c), 7);
    until_good(&c, &token, true);
    assert_eq!(
        c.api("fleet")["facts"]["faults"],
        json!({}),
        "facts of the removed node are published by another"
    );
    succeeds(&c.cli(&["fleet", "rollback"]));
    for node in [&a, &b, &c] {
        until("the previous config applies", || (tools_limit(node) == 5).then_some(()));
    }
    succeeds(&a.cli(&["token", "revoke", "ci"]));
    until_good(&c, &token, false);
}

// FLT-12
#[test]
fn new_node_does_not_serve_under_rules_other_than_its_fleets() {
    let store = Store::new();
    let reached = |name: &str| {
        let port = free_port();
        let mut config = store.config(name, json!({"listen": format!("127.0.0.1:{port}")}));
        config["cluster"]["advertise"] = format!("http://127.0.0.1:{port}").into();
        config
    };
    let (own, config_of_c) = (reached("a"), reached("c"));
    let a = Proxy::with(own.clone());
    let rules = a.folder.path().join("r.cedar");
    let none = r#"@id("none") forbid (principal, action, resource);"#;
    std::fs::write(&rules, none).unwrap();
    let servers = json!({"s": stub_stdio(&[])});
    let config = json!({"mcpServers": servers, "policy": {"files": ["r.cedar"]}});
    succeeds(&applied(&a, &config));
    until_run(&a, "a", 1, "running");
    // The config cannot be read: the node ends with the reason.
    let folder = tempfile::tempdir().unwrap();
    let (configs, aside) = (store.0.path().join("facts/config"), store.0.path().join("aside"));
    std::fs::rename(&configs, &aside).unwrap();
    let away = refused(config_of_c.clone(), folder.path());
    assert_eq!(away.code, Some(3), "{}{}", away.stdout, away.stderr);
    assert!(
        away.stderr.contains("version 1 of the fleet's config cannot be read"),
        "{}",
        away.stderr
    );
    std::fs::rename(&aside, &configs).unwrap();
    let c = Proxy::unready(config_of_c, folder).ready();
    assert_eq!(c.client().read("s:stats", json!({}))["isError"], true);
    until_run(&a, "c", 1, "running");
    until("there is no fault", || (c.cli(&["fleet", "status"]).code == Some(0)).then_some(()));

    // A running node that cannot load the next config keeps its config. All nodes report this.
    c.process.signal("STOP");
    std::fs::write(&rules, none.replace("forbid", "permit")).unwrap();
    succeeds(&applied(&a, &config));
    until_run(&a, "a", 2, "running");
    std::fs::rename(&configs, &aside).unwrap();
    c.process.signal("CONT");
    for node in [&c, &a] {
        until("it is reported", || {
            let status = node.cli(&["fleet", "status"]);
            let printed = status.stdout.contains("node 'c' has not applied version 2 yet");
            (printed && status.code == Some(1)).then_some(())
        });
    }
    let faults = || c.api("status")["faults"].to_string();
    until("it is a fault", || faults().contains("version 2 of the fleet's config").then_some(()));
    assert_eq!(c.client().read("s:stats", json!({}))["isError"], true, "by the rules of version 1");
    std::fs::rename(&aside, &configs).unwrap();
    until_run(&a, "c", 2, "running");
    assert!(!faults().contains("the fleet's config"), "{}", faults());
    assert_ne!(c.client().read("s:stats", json!({}))["isError"], true);

    // A new node on which the config is invalid does not start.
    let hook = json!({"url": "https://127.0.0.1:1/hook", "secret": "${env:HOOK}"});
    drop(c.end());
    let folder = a.end();
    let a = Proxy::under("export HOOK=0123456789abcdef0123", own, folder);
    succeeds(&applied(&a, &json!({"mcpServers": servers, "approval": {"webhook": hook}})));
    let folder = tempfile::tempdir().unwrap();
    let unusable = refused(store.config("d", json!({})), folder.path());
    assert_eq!(unusable.code, Some(5), "{}{}", unusable.stdout, unusable.stderr);
    let why = "version 3 of the fleet's config is invalid on this node";
    assert!(
        unusable.stderr.contains(why) && unusable.stderr.contains("HOOK"),
        "{}",
        unusable.stderr
    );
}

#[test]
fn new_node_serves_no_client_before_it_has_read_the_facts_of_its_fleet() {
    let store = Store::new();
    let a = store.node("a");
    create_token(&a, &["ci"]);
    until("it is in the store", || store.object("a").exists().then_some(()));
    let (facts, aside) = (store.0.path().join("facts"), store.0.path().join("aside"));
    std::fs::rename(&facts, &aside).unwrap();
    std::fs::write(&facts, "").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = refused(store.config("b", json!({})), folder.path());
    assert_eq!(output.code, Some(3), "{}{}", output.stdout, output.stderr);
    assert!(
        output.stderr.contains("cannot read the shared state of its fleet"),
        "{}",
        output.stderr
    );
    std::fs::remove_file(&facts).unwrap();
    std::fs::rename(&aside, &facts).unwrap();
    drop(Proxy::unready(store.config("b", json!({})), folder).ready());
}

#[test]
fn approval_of_a_definition_applies_on_all_nodes_and_only_to_that_definition() {
    let store = Store::new();
    let new = json!({"catalog": {"on_new_server": "quarantine"}});
    let [a, b] = ["a", "b"].map(|name| Proxy::with(store.config(name, new.clone())));
    let waits = |node: &Proxy, tool: &str| {
        let answer = node.client().read(tool, json!({}));
        answer["isError"] == true && error_text(&answer).contains("is quarantined")
    };
    assert!(waits(&a, "s:stats") && waits(&b, "s:stats"));
    let digest = a.api("tools/s:stats/diff")["digest"].as_str().unwrap().to_owned();
    succeeds(&a.cli(&["tools", "approve", "s:stats", "--digest", &digest]));
    until("it is approved there", || (!waits(&b, "s:stats")).then_some(()));
    // The approval is recorded once it applies.
    let record = until("its record", || b.activity("type=approval").into_iter().next());
    assert_eq!(
        (&record["metadata"]["node"], &record["metadata"]["digest"]),
        (&json!("a"), &json!(digest))
    );
    // The approval also applies on a node that joins later. Other definitions still wait on each node.
    let c = Proxy::with(store.config("c", new));
    until("it is approved there", || (!waits(&c, "s:stats")).then_some(()));
    for node in [&a, &b, &c] {
        assert!(waits(node, "s:read_item"));
    }
}

// SF-2, SF-4
#[test]
fn damaged_rules_of_a_fleet_are_refused_at_the_start_and_never_run() {
    let store = Store::new();
    let a = store.node("a");
    let rules = a.folder.path().join("r.cedar");
    std::fs::write(&rules, r#"@id("none") forbid (principal, action, resource);"#).unwrap();
    let config = json!({"mcpServers": {"s": stub_stdio(&[])}, "policy": {"files": ["r.cedar"]}});
    succeeds(&applied(&a, &config));
    until_run(&a, "a", 1, "running");
    let is_refused = |node: &Proxy| node.client().read("s:stats", json!({}))["isError"] == true;
    assert!(is_refused(&a));
    // An earlier version kept the rules in separate files, which are ignored.
    let data = a.folder.path().join("data");
    let folder = a.end();
    std::fs::create_dir_all(data.join("fleet/rules/0")).unwrap();
    std::fs::write(data.join("fleet/rules/0/00-r.cedar"), "").unwrap();
    let a = Proxy::unready(store.config("a", json!({})), folder).ready();
    assert!(is_refused(&a));
    // If the file is altered, empty or missing, the node does not start, and names the next step.
    let folder = a.end();
    let file = data.join("fleet/config.json");
    let sound = std::fs::read_to_string(&file).unwrap();
    for damaged in [Some(sound.replace("forbid", "permit")), Some(String::new()), None] {
        match &damaged {
            Some(text) => std::fs::write(&file, text).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let output = refused(store.config("a", json!({})), folder.path());
        assert_eq!(output.code, Some(5), "{damaged:?}: {}{}", output.stdout, output.stderr);
        assert!(output.stderr.contains("cp -p"), "{damaged:?}: {}", output.stderr);
        assert!(output.stderr.contains("config.json"), "{damaged:?}: {}", output.stderr);
    }
    std::fs::copy(data.join("fleet/config.json.last-good"), &file).unwrap();
    let a = Proxy::unready(store.config("a", json!({})), folder).ready();
    assert!(is_refused(&a));
}

// SF-2, SF-3
#[test]
fn damaged_facts_of_a_fleet_are_refused_at_the_start_and_their_copy_is_offered() {
    let store = Store::new();
    let a = store.node("a");
    let token = create_token(&a, &["ci"]);
    until_good(&a, &token, true);
    let file = a.folder.path().join("data").join("fleet/facts.json");
    let folder = a.end();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    let output = refused(store.config("a", json!({})), folder.path());
    assert_ne!(output.code, Some(0));
    assert!(output.stderr.contains("facts.json"), "{}", output.stderr);
    assert!(output.stderr.contains("cp -p"), "{}", output.stderr);
    std::fs::copy(file.with_extension("json.last-good"), &file).unwrap();
    let a = Proxy::unready(store.config("a", json!({})), folder).ready();
    until_good(&a, &token, true);
}
