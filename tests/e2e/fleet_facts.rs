//! What nodes of a fleet share beside the log, on a folder as their object store: a change on one node holds on all, and nothing
//! that is done to the store undoes one.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    Output, Proxy, configure, error_text, free_port, mcpproxy, stub_stdio, until,
};

/// What the nodes of these tests share.
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

struct Store(TempDir);

impl Store {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The config of a node, with more of its own.
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

    /// What a node says.
    fn said(&self, node: &str) -> PathBuf {
        self.0.path().join("facts/said").join(node)
    }
}

fn created(proxy: &Proxy, name: &str) -> String {
    let made = proxy.cli(&["token", "create", name, "--json"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    made.json()["token"].as_str().unwrap().to_owned()
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

#[test]
fn a_token_that_is_made_renewed_and_revoked_on_one_node_is_so_on_all() {
    let store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.node(name));
    let first = created(&a, "ci");
    until_good(&b, &first, true);
    let second = b.cli(&["token", "rotate", "ci", "--json"]);
    succeeds(&second);
    let second = second.json()["token"].as_str().unwrap().to_owned();
    until_good(&a, &second, true);
    assert!(!is_good(&a, &first) && !is_good(&b, &first));
    succeeds(&a.cli(&["token", "revoke", "ci"]));
    assert!(!is_good(&a, &second));
    until_good(&b, &second, false);
    // The name is free again, on each of them.
    let third = created(&b, "ci");
    until_good(&a, &third, true);
    let sealed = std::fs::read(store.said("b")).unwrap();
    assert!(!sealed.windows(2).any(|part| part == b"ci"), "nothing is there in plain");
}

#[test]
fn a_revocation_is_not_undone_by_what_is_put_back_in_the_store() {
    let store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.node(name));
    let token = created(&a, "ci");
    until_good(&b, &token, true);
    until("it is in the store", || store.said("a").exists().then_some(()));
    let before = std::fs::read(store.said("a")).unwrap();
    succeeds(&a.cli(&["token", "revoke", "ci"]));
    until_good(&b, &token, false);
    // A node is put back, with what it had said before it revoked: another one that has seen the revocation, and starts
    // again, does not believe it.
    drop(a.end());
    std::fs::write(store.said("a"), before).unwrap();
    until("it is told", || b.log().contains("was replaced by an older one").then_some(()));
    assert!(!is_good(&b, &token));
    let folder = b.end();
    let b = Proxy::unready(store.config("b", json!({})), folder).ready();
    until("it is told again", || b.log().contains("was replaced by an older one").then_some(()));
    assert!(!is_good(&b, &token));
}

#[test]
fn what_is_changed_while_the_store_is_away_or_no_node_runs_is_told_later() {
    let store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.node(name));
    let [kept, gone] = ["kept", "gone"].map(|name| created(&a, name));
    until_good(&b, &kept, true);
    until_good(&b, &gone, true);
    let (facts, aside) = (store.0.path().join("facts"), store.0.path().join("aside"));
    std::fs::rename(&facts, &aside).unwrap();
    std::fs::write(&facts, "").unwrap();
    until("it is told", || a.log().contains("facts cannot be read or put").then_some(()));
    assert!(is_good(&a, &kept) && is_good(&b, &kept), "what was known stays");
    succeeds(&a.cli(&["token", "revoke", "gone"]));
    // It is killed before it could say so.
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
fn an_object_that_was_altered_or_is_too_long_is_told_and_changes_nothing() {
    let store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.node(name));
    let token = created(&a, "ci");
    until_good(&b, &token, true);
    drop(a.end());
    let whole = std::fs::read(store.said("a")).unwrap();
    let mut altered = whole.clone();
    *altered.last_mut().unwrap() ^= 1;
    std::fs::write(store.said("a"), altered).unwrap();
    until("it is told", || b.log().contains("it was altered, cut or moved").then_some(()));
    let long = std::fs::File::create(store.said("a")).unwrap();
    long.set_len(100 << 20).unwrap();
    until("it is told", || b.log().contains("it has 104857600 bytes").then_some(()));
    assert!(is_good(&b, &token));
    let folder = b.end();
    let b = Proxy::unready(store.config("b", json!({})), folder).ready();
    assert!(is_good(&b, &token));
}

#[test]
fn what_is_put_among_what_nodes_say_is_one_fault_and_few_lines_of_the_log() {
    let store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.node(name));
    let token = created(&a, "ci");
    until_good(&b, &token, true);
    for at in 0..500 {
        std::fs::write(store.said(&format!("X{at:03}")), b"").unwrap();
        std::fs::write(store.said(&format!("0{at:03}")), b"").unwrap();
    }
    let facts = until("all are told", || {
        let facts = b.api("fleet")["facts"].clone();
        let all = facts["faults"]["facts/said"].as_str()?;
        all.ends_with("437 more objects are passed over").then_some(facts.clone())
    });
    let all = facts["faults"]["facts/said"].as_str().unwrap();
    assert!(all.starts_with("500 things there are no node's: X000, "), "{all}");
    assert_eq!(facts["faults"].as_object().unwrap().len(), 64);
    let log = b.log();
    let lines = log.lines().filter(|line| line.contains("is passed over")).count();
    assert!((1..=20).contains(&lines), "{lines}");
    assert!(log.contains("more such lines are left out for a minute"));
    // What is said beside it is heard.
    let other = created(&a, "other");
    until_good(&b, &other, true);
}

/// What a node says of the fleet's config.
fn status(node: &Proxy) -> Value {
    node.cli(&["fleet", "status", "--json"]).json()["shared"].clone()
}

/// Waits until that node makes this of that version, as `asked` knows it.
fn until_run(asked: &Proxy, node: &str, version: u64, state: &str) -> Value {
    until("the node says what it runs", || {
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

#[test]
fn a_config_that_is_applied_on_one_node_runs_on_all_and_is_gone_back_from() {
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
    let told = applied(&a, &first);
    succeeds(&told);
    assert_eq!(told.json()["left_out"], json!(["listen", "api_key"]));
    for node in ["a", "b"] {
        until_run(&b, node, 1, "running");
    }
    assert_eq!((tools_limit(&a), tools_limit(&b)), (json!(7), json!(7)));
    // The rules are on the node that has no such file.
    assert_eq!(b.api("policy")["rules"].as_array().map(Vec::len), Some(1), "{}", b.api("policy"));
    // What is a node's own stays, and its own file says nothing about the rest.
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

    // It starts with it, without the store; and one that comes later starts with it as well.
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
fn a_config_that_cannot_be_used_is_refused_before_it_is_stored_and_by_each_node_with_a_reason() {
    let store = Store::new();
    // What a secret of the config is, is in the environment of one machine, and not of the other.
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

    // What this node can use another one cannot.
    let b = store.node("b");
    let hook = json!({"url": "https://127.0.0.1:1/hook", "secret": "${env:HOOK}"});
    succeeds(&applied(&a, &json!({"tools_limit": 4, "approval": {"webhook": hook}})));
    until_run(&b, "a", 1, "running");
    let run = until_run(&b, "b", 1, "refused");
    assert!(run["reason"].to_string().contains("HOOK"), "{run}");
    assert_eq!((tools_limit(&a), &tools_limit(&b)), (json!(4), &Value::Null));
    // The commands of this test have no such variable either: the other node is asked.
    succeeds(&applied(&b, &json!({"tools_limit": 5})));
    until_run(&b, "b", 2, "running");
    until_run(&b, "a", 2, "running");
    assert_eq!(tools_limit(&b), 5);
}

/// What the files in a folder and below it say.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| match path.is_dir() {
        true => files(&path),
        // A heartbeat is being replaced.
        false => std::fs::read(&path).map(|bytes| vec![(path, bytes)]).unwrap_or_default(),
    };
    entries.flat_map(read).collect()
}

#[test]
fn no_secret_of_a_config_that_is_applied_is_in_the_store_in_plain() {
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
fn what_is_shared_outlasts_a_change_of_the_key_also_for_new_nodes_and_of_nodes_that_are_gone() {
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
    let token = created(&gone, "ci");
    for node in [&a, &b] {
        until_good(node, &token, true);
        until("it runs the config", || (tools_limit(node) == 7).then_some(()));
    }
    // It does not see the change of the key, nor does it come back.
    drop(gone.end());
    let (mut a, mut b) = (a, b);
    for key in [json!([KEY, new_key]), json!([new_key, KEY]), json!(new_key)] {
        for (node, name) in [(&mut a, "a"), (&mut b, "b")] {
            let folder = std::mem::replace(&mut node.folder, tempfile::tempdir().unwrap());
            node.process.signal("TERM");
            node.process.wait();
            *node = Proxy::unready(with_key(name, &key), folder).ready();
        }
        until("it is said by the newest key", || {
            let config = a.cli(&["fleet", "status", "--json"]).json()["shared"].clone();
            let sealed = !a.api("status")["faults"].to_string().contains("newest cluster.key");
            (config["published"] == true && sealed).then_some(())
        });
        assert!(is_good(&a, &token) && is_good(&b, &token), "{key}");
    }
    let c = Proxy::with(with_key("c", &json!(new_key)));
    assert_eq!(tools_limit(&c), 7);
    until_good(&c, &token, true);
    assert_eq!(c.api("fleet")["facts"]["faults"], json!({}), "what is gone is said by another");
    succeeds(&c.cli(&["fleet", "rollback"]));
    for node in [&a, &b, &c] {
        until("it is the one before", || (tools_limit(node) == 5).then_some(()));
    }
    succeeds(&a.cli(&["token", "revoke", "ci"]));
    until_good(&c, &token, false);
}

/// A start that does not come off.
fn refused(config: Value, folder: &Path) -> Output {
    let path = configure(config, folder);
    // One that is not refused would run for ever.
    let mut command = Command::new("timeout");
    command.arg("60").arg(mcpproxy().get_program()).arg("serve").arg("--config").arg(path);
    Output::of(&mut command)
}

#[test]
fn a_new_node_does_not_serve_by_other_rules_than_its_fleet() {
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
    // It is not to be had, then it cannot be used here: the node ends, and says why.
    let folder = tempfile::tempdir().unwrap();
    let (configs, aside) = (store.0.path().join("facts/config"), store.0.path().join("aside"));
    std::fs::rename(&configs, &aside).unwrap();
    let away = refused(config_of_c.clone(), folder.path());
    assert_eq!(away.code, Some(3), "{}{}", away.stdout, away.stderr);
    assert!(
        away.stderr.contains("version 1 of the fleet's config cannot be had"),
        "{}",
        away.stderr
    );
    std::fs::rename(&aside, &configs).unwrap();
    let c = Proxy::unready(config_of_c, folder).ready();
    assert_eq!(c.client().read("s:stats", json!({}))["isError"], true);
    until_run(&a, "c", 1, "running");
    until("all is well", || (c.cli(&["fleet", "status"]).code == Some(0)).then_some(()));

    // One that runs goes on with what it runs while it cannot have the next, which all see.
    c.process.signal("STOP");
    std::fs::write(&rules, none.replace("forbid", "permit")).unwrap();
    succeeds(&applied(&a, &config));
    until_run(&a, "a", 2, "running");
    std::fs::rename(&configs, &aside).unwrap();
    c.process.signal("CONT");
    for node in [&c, &a] {
        until("it is told", || {
            let status = node.cli(&["fleet", "status"]);
            let told = status.stdout.contains("node 'c' has not taken over version 2 yet");
            (told && status.code == Some(1)).then_some(())
        });
    }
    let faults = || c.api("status")["faults"].to_string();
    until("it is a fault", || faults().contains("version 2 of the fleet's config").then_some(()));
    assert_eq!(c.client().read("s:stats", json!({}))["isError"], true, "by the first one");
    std::fs::rename(&aside, &configs).unwrap();
    until_run(&a, "c", 2, "running");
    assert!(!faults().contains("the fleet's config"), "{}", faults());
    assert_ne!(c.client().read("s:stats", json!({}))["isError"], true);

    // And one that cannot use it.
    let hook = json!({"url": "https://127.0.0.1:1/hook", "secret": "${env:HOOK}"});
    drop(c.end());
    let folder = a.end();
    let a = Proxy::under("export HOOK=0123456789abcdef0123", own, folder);
    succeeds(&applied(&a, &json!({"mcpServers": servers, "approval": {"webhook": hook}})));
    let folder = tempfile::tempdir().unwrap();
    let unusable = refused(store.config("d", json!({})), folder.path());
    assert_eq!(unusable.code, Some(5), "{}{}", unusable.stdout, unusable.stderr);
    let why = "version 3 of the fleet's config cannot be used here";
    assert!(
        unusable.stderr.contains(why) && unusable.stderr.contains("HOOK"),
        "{}",
        unusable.stderr
    );
}

#[test]
fn a_new_node_serves_nobody_before_it_has_heard_what_its_fleet_says() {
    let store = Store::new();
    let a = store.node("a");
    created(&a, "ci");
    until("it is in the store", || store.said("a").exists().then_some(()));
    let (facts, aside) = (store.0.path().join("facts"), store.0.path().join("aside"));
    std::fs::rename(&facts, &aside).unwrap();
    std::fs::write(&facts, "").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let unheard = refused(store.config("b", json!({})), folder.path());
    assert_eq!(unheard.code, Some(3), "{}{}", unheard.stdout, unheard.stderr);
    assert!(unheard.stderr.contains("cannot read what that shares"), "{}", unheard.stderr);
    std::fs::remove_file(&facts).unwrap();
    std::fs::rename(&aside, &facts).unwrap();
    drop(Proxy::unready(store.config("b", json!({})), folder).ready());
}

#[test]
fn a_definition_that_is_approved_on_one_node_is_so_on_all_and_no_other_one_is() {
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
    // It is written down once it counts.
    let record = until("its record", || b.activity("type=approval").into_iter().next());
    assert_eq!(
        (&record["metadata"]["node"], &record["metadata"]["digest"]),
        (&json!("a"), &json!(digest))
    );
    // One that comes later; and what nobody approved waits on each.
    let c = Proxy::with(store.config("c", new));
    until("it is approved there", || (!waits(&c, "s:stats")).then_some(()));
    for node in [&a, &b, &c] {
        assert!(waits(node, "s:read_item"));
    }
}
