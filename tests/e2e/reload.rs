//! Config reload at run time: settings that apply at once, the triggers, and invalid files.
//!
//! Size: each setting, each trigger and each invalid file is a test; all of them use the few helper functions above.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Client, HttpStub, Proxy, Response, children_of, configure, error_text, is_running,
    mcpproxy, stub, stub_stdio, until, write_private,
};

const KEY: [(&str, &str); 1] = [("X-API-Key", API_KEY)];

fn path(proxy: &Proxy) -> PathBuf {
    proxy.folder.path().join("config.json")
}

/// Replaces the config of `proxy` in one step, as an editor does.
fn write(proxy: &Proxy, config: &Value) {
    let beside = tempfile::tempdir_in(proxy.folder.path()).unwrap();
    let new = configure(config.clone(), beside.path());
    let text = fs::read_to_string(&new).unwrap();
    let own = beside.path().join("data");
    let data = proxy.folder.path().join("data");
    write_private(&new, &text.replace(own.to_str().unwrap(), data.to_str().unwrap()));
    fs::rename(&new, path(proxy)).unwrap();
}

fn ask(proxy: &Proxy) -> Response {
    proxy.request("POST", "/api/v1/config/reload", &KEY, b"")
}

/// Writes a config and reloads it. Returns the result.
pub(crate) fn reload(proxy: &Proxy, config: &Value) -> Value {
    write(proxy, config);
    let answer = ask(proxy);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let result = answer.json()["data"].clone();
    if result["unchanged"] == false {
        return result;
    }
    // The file watcher has applied the change before this request.
    let mut noticed = proxy.activity("type=config_change&status=success")[0]["metadata"].clone();
    assert_eq!(noticed["door"], "file", "{noticed}");
    noticed["unchanged"] = json!(false);
    noticed
}

fn state(proxy: &Proxy, server: &str) -> Option<String> {
    let servers = proxy.api("servers");
    let found = servers["servers"].as_array().unwrap().iter().find(|it| it["name"] == server)?;
    found["state"].as_str().map(str::to_owned)
}

fn connected(proxy: &Proxy, server: &str) {
    until(server, || state(proxy, server).filter(|state| state == "connected"));
}

fn record(proxy: &Proxy, status: &str) -> Value {
    let query = format!("type=config_change&status={status}");
    until("the record", || proxy.activity(&query).first().cloned())
}

/// Record of a config file rejected by this trigger.
fn rejected(proxy: &Proxy, door: &str) -> Option<Value> {
    let found = proxy.activity("type=config_change&status=rejected");
    found.into_iter().find(|record| record["metadata"]["door"] == door)
}

fn works(client: &mut Client, tool: &str) {
    let result = client.read(tool, json!({}));
    assert_eq!(result["structuredContent"]["value"], 7, "{result}");
}

/// Waits until the config with this `tools_limit` is in force.
fn noticed(proxy: &Proxy, limit: u64) {
    until("the change is noticed", || {
        let found = proxy.activity("type=config_change&status=success");
        let of = |record: &Value| record["metadata"]["changes"].clone();
        found
            .iter()
            .any(|record| of(record).to_string().contains(&format!("\"new\":{limit}")))
            .then_some(())
    });
}

// CFG-3
#[test]
fn servers_are_added_removed_and_replaced_and_others_keep_their_process() {
    let servers =
        json!({"stays": stub_stdio(&[]), "goes": stub_stdio(&[]), "changes": stub_stdio(&[])});
    let proxy = Proxy::start(servers);
    let before = children_of(proxy.process.0.id());
    assert_eq!(before.len(), 3);
    let mut client = proxy.client();
    let mut changed = stub_stdio(&["--id", "last"]);
    changed["env"] = json!({"E2E_TOKEN": "s3cret-value-of-the-test"});
    let config = json!({"mcpServers": {"stays": stub_stdio(&[]), "changes": changed, "comes": stub_stdio(&[])}});
    let result = reload(&proxy, &config);
    assert_eq!(
        result["applied"],
        json!(["mcpServers.changes", "mcpServers.comes", "mcpServers.goes"])
    );
    assert_eq!((&result["needs_restart"], &result["unchanged"]), (&json!([]), &json!(false)));
    for server in ["stays", "comes", "changes"] {
        connected(&proxy, server);
        works(&mut client, &format!("{server}:read_item"));
    }
    let gone = client.read("goes:read_item", json!({}));
    assert!(error_text(&gone).contains("Server 'goes' not found"), "{gone}");
    assert_eq!(state(&proxy, "goes"), None);
    let kept = until("two have ended", || {
        let now = children_of(proxy.process.0.id());
        let kept: Vec<_> = now.iter().filter(|id| before.contains(id)).cloned().collect();
        (kept.len() == 1 && now.len() == 3).then_some(kept)
    });
    assert!(before.iter().filter(|id| **id != kept[0]).all(|id| !is_running(id)));
    let recorded = record(&proxy, "success");
    if recorded["metadata"]["door"] != "file" {
        let by = (&recorded["metadata"]["door"], &recorded["principal"]);
        assert_eq!(by, (&json!("api"), &json!("admin")));
    }
    let changes = recorded["metadata"]["changes"].to_string();
    assert!(
        changes.contains("mcpServers.changes.env") && changes.contains("mcpServers.comes"),
        "{changes}"
    );
    assert!(!recorded.to_string().contains("s3cret"), "{recorded}");
    let again = ask(&proxy).json()["data"].clone();
    assert_eq!((&again["unchanged"], &again["applied"]), (&json!(true), &json!([])));
    assert_eq!(
        proxy.activity("type=config_change").len(),
        1,
        "a reload without changes is not recorded"
    );
    let last = children_of(proxy.process.0.id());
    proxy.end();
    assert!(!last.iter().any(|id| is_running(id)));
}

#[test]
fn running_call_finishes_on_the_server_where_it_started() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[]), "t": stub_stdio(&[])}));
    let before = children_of(proxy.process.0.id());
    let (mut removed, mut replaced) = (proxy.client(), proxy.client());
    // The first pieces of the answers arrive before the config changes, the rest long after.
    let slow = json!({"size": 4000, "chunk": 100, "pause_ms": 50});
    removed.begin_read("s:text", slow.clone());
    replaced.begin_read("t:text", slow);
    let mut asking = proxy.client();
    for server in ["s", "t"] {
        until("its server has it", || {
            let stats = asking.read(&format!("{server}:stats"), json!({}));
            (stats["structuredContent"]["asked"] == 1).then_some(())
        });
    }
    reload(&proxy, &json!({"mcpServers": {"t": stub_stdio(&["--id", "last"])}}));
    connected(&proxy, "t");
    works(&mut proxy.client(), "t:read_item");
    for client in [&mut removed, &mut replaced] {
        let response = client.connection.response();
        assert!(response.status == 200 && response.whole, "{}", response.text());
        let result = response.json();
        assert!(result.get("result").is_some() && result["result"]["isError"] != true, "{result}");
    }
    until("both have ended", || (!before.iter().any(|id| is_running(id))).then_some(()));
}

#[test]
fn call_that_outlasts_a_removed_server_is_aborted_with_the_reason() {
    let server = |limit: &str| {
        let mut server = stub_stdio(&[]);
        server["call_timeout"] = limit.into();
        json!({"mcpServers": {"s": server}})
    };
    let proxy = Proxy::with(server("5m"));
    let (mut client, mut asking) = (proxy.client(), proxy.client());
    client.begin_read("s:never", json!({}));
    let mut looks = 0;
    until("its server has it", || {
        looks += 1;
        let stats = asking.read("s:stats", json!({}));
        (stats["structuredContent"]["calls"].as_u64()? > looks).then_some(())
    });
    // The call starts under the earlier time limit. For a server that is removed, this one applies.
    reload(&proxy, &server("100ms"));
    reload(&proxy, &json!({"mcpServers": {}}));
    let answer = client.connection.response().json();
    let answer = error_text(&answer["result"]);
    assert!(
        answer.starts_with("s: never: ")
            && answer.contains("the server was removed from the config"),
        "{answer}"
    );
    assert!(answer.contains("call_timeout"), "{answer}");
    until("it has ended", || children_of(proxy.process.0.id()).is_empty().then_some(()));
}

#[test]
fn each_kind_of_setting_applies_to_the_next_request() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    let servers = json!({"s": stub_stdio(&[])});
    let with = |more: Value| {
        let mut config = json!({"mcpServers": servers});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let found = |client: &mut Client| {
        let found = client.tool("retrieve_tools", json!({"query": "item"}));
        found["structuredContent"]["tools"].as_array().unwrap().len()
    };
    assert!(found(&mut client) > 1);
    assert_eq!(reload(&proxy, &with(json!({"tools_limit": 1})))["applied"], json!(["tools_limit"]));
    assert_eq!(found(&mut client), 1);
    let without = |client: &mut Client| {
        client.tool("call_tool_read", json!({"name": "s:read_item", "args": {}}))
    };
    assert_eq!(
        error_text(&without(&mut client)),
        "intent parameter is required for call_tool_read"
    );
    reload(&proxy, &with(json!({"intent_declaration": {"operation_type": "inferred"}})));
    assert_ne!(without(&mut client)["isError"], true);
    // Rules, by their files and by their default.
    fs::write(
        proxy.folder.path().join("r.cedar"),
        "@id(\"no\") forbid (principal, action, resource == Tool::\"s:read_item\");",
    )
    .unwrap();
    reload(&proxy, &with(json!({"policy": {"files": [proxy.folder.path().join("r.cedar")]}})));
    let refused = client.read("s:read_item", json!({}));
    assert_eq!(error_text(&refused), "Tool 's:read_item' is not allowed by rule 'no'");
    reload(&proxy, &with(json!({})));
    works(&mut client, "s:read_item");
    // Limits, offered tools, capabilities, validation.
    reload(&proxy, &with(json!({"limits": {"tools": {"s:read_item": {"rate_per_minute": 1}}}})));
    works(&mut client, "s:read_item");
    assert!(error_text(&client.read("s:read_item", json!({}))).starts_with("Too many calls"));
    reload(
        &proxy,
        &with(
            json!({"limits": {"tools": {"s:read_item": {"rate_per_minute": 1}}}, "tools_limit": 3}),
        ),
    );
    let refused = client.read("s:read_item", json!({}));
    assert!(error_text(&refused).starts_with("Too many calls"), "its count continues: {refused}");
    let server = |more: Value| {
        let mut server = stub_stdio(&[]);
        server.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"mcpServers": {"s": server}})
    };
    let ids = children_of(proxy.process.0.id());
    reload(&proxy, &server(json!({"disabled_tools": ["read_item"]})));
    assert!(error_text(&client.read("s:read_item", json!({}))).contains("not found"));
    reload(&proxy, &server(json!({"capabilities": {"echo": {"side_effect": "destructive"}}})));
    let refused = client.read("s:echo", json!({}));
    assert!(error_text(&refused).contains("marked destructive by operator"), "{refused}");
    until("it is offered again", || {
        let result = client.read("s:read_item", json!({}));
        (result["structuredContent"]["value"] == 7).then_some(())
    });
    reload(&proxy, &server(json!({"output_validation": {"mode": "strict"}})));
    let blocked = client.read("s:violate", json!({}));
    assert!(error_text(&blocked).starts_with("output schema validation failed"), "{blocked}");
    assert_eq!(children_of(proxy.process.0.id()), ids, "it runs as before");
    // Credentials and hosts.
    let other = "another-key-of-the-end-to-end-tests-0123456789";
    reload(&proxy, &with(json!({"api_key": other, "require_mcp_auth": true})));
    assert_eq!(proxy.get("/api/v1/status").status, 401);
    let get = |key: &str| proxy.request("GET", "/api/v1/status", &[("X-API-Key", key)], b"").status;
    assert_eq!(get(other), 200);
    assert_eq!(client.post(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).status, 401);
    write(&proxy, &with(json!({"allowed_hosts": ["proxy.example"]})));
    let answer = proxy.request("POST", "/api/v1/config/reload", &[("X-API-Key", other)], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let host = |name: &str| {
        let headers = [("X-API-Key", API_KEY), ("Host", name)];
        proxy.request("GET", "/api/v1/status", &headers, b"").status
    };
    assert_eq!((host("127.0.0.1"), host("proxy.example")), (403, 200));
    let log = proxy.log();
    assert!(!log.contains(other) && !log.contains(API_KEY), "{log}");
}

#[test]
fn log_level_and_record_age_change_and_settings_that_need_a_restart_are_named() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let servers = json!({"s": stub_stdio(&[])});
    let config = json!({"mcpServers": servers, "logging": {"level": "debug", "format": "json"},
        "listen": "127.0.0.1:1", "activity": {"max_records": 5000, "durability": "before_reply"}});
    let result = reload(&proxy, &config);
    assert_eq!(result["applied"], json!(["logging.level", "activity.max_records"]));
    assert_eq!(result["needs_restart"], json!(["listen", "logging.format", "activity.durability"]));
    works(&mut proxy.client(), "s:read_item");
    assert_eq!(proxy.api("config")["needs_restart"], result["needs_restart"]);
    let again = ask(&proxy).json()["data"].clone();
    assert_eq!(
        (&again["unchanged"], &again["needs_restart"]),
        (&json!(true), &result["needs_restart"])
    );
    // The stderr of a child is logged at debug level.
    let talks = json!({"command": "sh", "args": ["-c", "echo a detail >&2; exec sleep 60"]});
    let mut config = config;
    config["mcpServers"]["t"] = talks;
    reload(&proxy, &config);
    until("details are logged", || proxy.log().contains("DEBUG").then_some(()));
}

#[test]
fn file_change_is_noticed_for_every_kind_of_write() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let servers = json!({"s": stub_stdio(&[])});
    let config = |limit: u64| json!({"mcpServers": servers, "tools_limit": limit});
    // Replaced by a rename, as most editors do.
    write(&proxy, &config(21));
    noticed(&proxy, 21);
    let file = path(&proxy);
    let text = fs::read_to_string(&file).unwrap();
    let with = |limit: u64| text.replace("\"tools_limit\":21", &format!("\"tools_limit\":{limit}"));
    // Written in place.
    fs::write(&file, with(22)).unwrap();
    noticed(&proxy, 22);
    // Removed and created again.
    fs::remove_file(&file).unwrap();
    write_private(&file, &with(23));
    noticed(&proxy, 23);
    // Switched links, as in Kubernetes mounts.
    let at = |name: &str| proxy.folder.path().join(name);
    let version = |name: &str, limit: u64| {
        fs::create_dir(at(name)).unwrap();
        write_private(&at(name).join("config.json"), &with(limit));
        symlink(name, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    version("..v1", 24);
    symlink("..data/config.json", at("link")).unwrap();
    fs::rename(at("link"), &file).unwrap();
    noticed(&proxy, 24);
    version("..v2", 25);
    fs::remove_dir_all(at("..v1")).unwrap();
    noticed(&proxy, 25);
    assert!(proxy.activity("type=config_change&status=rejected").is_empty(), "{}", proxy.log());
    let recorded = record(&proxy, "success");
    assert_eq!(
        (&recorded["metadata"]["door"], &recorded["source"]),
        (&json!("file"), &json!("internal"))
    );
}

#[test]
fn signal_and_command_line_trigger_a_reload() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    proxy.process.signal("HUP");
    until("it is reported", || proxy.log().contains("SIGHUP: reloading the config").then_some(()));
    let same = proxy.cli(&["config", "reload"]);
    assert_eq!(same.code, Some(0), "{}", same.stderr);
    assert!(same.stdout.starts_with("unchanged: the file is already in force"), "{}", same.stdout);
    write(&proxy, &json!({"mcpServers": {}, "listen": "127.0.0.1:1"}));
    let done = proxy.cli(&["config", "reload", "--json"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(done.json()["needs_restart"], json!(["listen"]), "{}", done.stdout);
    until("it has gone", || state(&proxy, "s").is_none().then_some(()));
    let doctor = proxy.cli(&["doctor", "--json"]).json();
    let text_of = |check: &str| {
        let findings = doctor["findings"].as_array().unwrap();
        let found = findings.iter().find(|it| it["check"] == check);
        found.and_then(|it| it["text"].as_str()).unwrap_or_default().to_owned()
    };
    let (port, running) = (text_of("port"), text_of("running"));
    assert!(port.starts_with("mcpproxy is running on 127.0.0.1:"), "{doctor}");
    assert!(!port.ends_with("127.0.0.1:1"), "the running proxy is elsewhere: {doctor}");
    assert!(running.ends_with("not in force: listen"), "{doctor}");
    write_private(&path(&proxy), "{\"tools_limit\": 0}");
    let refused = proxy.cli(&["config", "reload"]);
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    assert!(refused.stderr.contains("tools_limit: must be 1 to 100"), "{}", refused.stderr);
    // A valid file would be applied without the signal too.
    assert!(rejected(&proxy, "signal").is_none());
    proxy.process.signal("HUP");
    until("the signal has it read", || rejected(&proxy, "signal"));
    let nobody = tempfile::tempdir().unwrap();
    let file = configure(json!({"listen": "127.0.0.1:1"}), nobody.path());
    let output = mcpproxy().arg("-c").arg(file).args(["config", "reload"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn only_the_admin_can_trigger_a_reload() {
    let proxy = Proxy::start(json!({}));
    let token = proxy.cli(&["token", "create", "ci", "--json"]).json()["token"].clone();
    let headers = [("X-API-Key", token.as_str().unwrap())];
    for path in ["/api/v1/config", "/api/v1/config/reload"] {
        let method = if path.ends_with("reload") { "POST" } else { "GET" };
        assert_eq!(proxy.request(method, path, &headers, b"").status, 403);
        assert_eq!(proxy.request(method, path, &[], b"").status, 401);
    }
}

// CFG-3
#[test]
fn bad_file_changes_nothing_and_is_reported_in_all_views() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    let file = path(&proxy);
    let good = fs::read_to_string(&file).unwrap();
    type Make = fn(&Path);
    let bad: [(&str, Make, &str); 9] = [
        ("half-written", |file| write_private(file, "{\"mcpServers\": {"), ":1:"),
        ("no text", |file| fs::write(file, [b'{', 0xff, b'}']).unwrap(), "UTF-8"),
        (
            "wrong type",
            |file| write_private(file, "{\n\"tools_limit\": \"s3cret\"}"),
            ":2:16: tools_limit",
        ),
        ("empty", |file| write_private(file, ""), "is empty"),
        ("no object", |file| write_private(file, "[]"), ":1:1"),
        (
            "100 MB",
            |file| fs::File::create(file).unwrap().set_len(100 << 20).unwrap(),
            "larger than",
        ),
        (
            "a folder",
            |file| {
                fs::remove_file(file).unwrap();
                fs::create_dir(file).unwrap();
            },
            "is not a regular file",
        ),
        ("gone", |file| fs::remove_dir(file).unwrap(), "no longer exists"),
        (
            "rules",
            |file| {
                let rules = file.with_file_name("bad.cedar");
                fs::write(&rules, "permit (\n").unwrap();
                write_private(file, &json!({"policy": {"files": [rules]}}).to_string());
            },
            "bad.cedar",
        ),
    ];
    for (what, make, expected) in bad {
        make(&file);
        let answer = ask(&proxy);
        assert_eq!(answer.status, 422, "{what}: {}", answer.text());
        let error = answer.json();
        assert_eq!(error["success"], false, "{what}");
        let text = error["error"].as_str().unwrap();
        assert!(
            text.contains(expected)
                && text.contains(if what == "rules" { "cedar" } else { "config.json" }),
            "{what}: {text}"
        );
        assert!(!answer.text().contains("s3cret"), "{}", answer.text());
        let problems = error["problems"].as_array().unwrap();
        assert_eq!(problems[0]["severity"], "error", "{what}: {error}");
        works(&mut client, "s:read_item");
        let ready = proxy.get("/readyz");
        assert_eq!(
            (ready.status, &ready.json()["config"]["state"]),
            (200, &json!("rejected")),
            "{what}"
        );
        assert!(ready.json()["config"]["reason"].as_str().unwrap().contains(expected));
        let open = proxy.request("GET", "/readyz", &[], b"").json();
        assert_eq!(open["config"], json!({"state": "rejected"}), "nothing more without the key");
        let faults = proxy.api("status")["faults"].clone();
        assert!(faults.to_string().contains("\"part\":\"config\""), "{what}: {faults}");
        let standing = proxy.api("config");
        assert_eq!(standing["rejected"]["problems"], error["problems"], "{what}");
        let record = &proxy.activity("type=config_change&status=rejected")[0];
        assert!(record["error_message"].as_str().unwrap().contains(expected), "{what}: {record}");
        proxy.assert_logged(expected);
    }
    assert!(!proxy.log().contains("s3cret"));
    let result = {
        let mut config: Value = serde_json::from_str(&good).unwrap();
        config["tools_limt"] = json!(3);
        write_private(&file, &config.to_string());
        ask(&proxy).json()["data"].clone()
    };
    assert_eq!(result["unchanged"], true, "{result}");
    assert!(
        result["warnings"][0]["problem"].as_str().unwrap().contains("did you mean 'tools_limit'")
    );
    assert_eq!(proxy.get("/readyz").json()["config"], json!({"state": "ok"}));
    assert_eq!(proxy.api("status")["faults"], json!([]));
    assert_eq!(proxy.api("config")["rejected"], Value::Null);
}

#[test]
fn environment_and_flags_override_the_file_after_a_reload_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let file = configure(json!({"logging": {"level": "warn"}}), folder.path());
    let data = folder.path().join("other");
    let mut command = mcpproxy();
    command.arg("-c").arg(&file).arg("-d").arg(&data).args(["--log-level", "info", "serve"]);
    command.env("MCPPROXY_LISTEN", "127.0.0.1:0").env("MCPPROXY_API_KEY", API_KEY);
    let log = fs::File::create(folder.path().join("log")).unwrap();
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped()).stderr(log);
    let mut process = crate::harness::Process::spawn(&mut command);
    let mut line = String::new();
    let stdout = process.0.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let port = line.rsplit(':').next().unwrap().split('/').next().unwrap().parse().unwrap();
    let proxy = Proxy { port, folder, process };
    // The key, address, folder and log level in the file do not apply.
    let text = json!({"listen": "127.0.0.1:1", "data_dir": "/nowhere", "tools_limit": 3,
        "api_key": "a-key-of-the-file-that-does-not-count-0123456789", "logging": {"level": "error"}});
    write_private(&path(&proxy), &text.to_string());
    let result = ask(&proxy).json()["data"].clone();
    // The change may have been applied by the file watcher before.
    assert!(result["applied"] == json!(["tools_limit"]) || result["unchanged"] == true, "{result}");
    assert_eq!(result["needs_restart"], json!([]));
    assert!(data.join("activity").exists());
}

#[test]
fn key_created_at_the_first_start_is_no_change_and_stays_in_force_without_one_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = configure(json!({"api_key": ""}), folder.path());
    let proxy = Proxy::from_file(&file, folder);
    let written: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let key = written["api_key"].as_str().unwrap().to_owned();
    let headers = [("X-API-Key", key.as_str())];
    let ask =
        || proxy.request("POST", "/api/v1/config/reload", &headers, b"").json()["data"].clone();
    assert_eq!(ask()["unchanged"], true);
    write_private(
        &file,
        &json!({"listen": "127.0.0.1:0", "data_dir": written["data_dir"], "tools_limit": 4})
            .to_string(),
    );
    let result = ask();
    assert!(result["applied"] == json!(["tools_limit"]) || result["unchanged"] == true, "{result}");
    assert_eq!(ask()["unchanged"], true, "the key in force is unchanged, and none is written");
    assert!(!fs::read_to_string(&file).unwrap().contains("api_key"));
}

#[test]
fn concurrent_edits_leave_the_final_file_in_force() {
    let proxy = Proxy::start(json!({}));
    std::thread::scope(|scope| {
        for editor in 0..2 {
            let proxy = &proxy;
            scope.spawn(move || {
                for round in 0..20 {
                    write(
                        proxy,
                        &json!({"tools_limit": 1 + editor * 40 + round, "mcpServers": {}}),
                    );
                    let answer = ask(proxy);
                    assert_eq!(answer.status, 200, "{}", answer.text());
                }
            });
        }
    });
    let text: Value = serde_json::from_str(&fs::read_to_string(path(&proxy)).unwrap()).unwrap();
    assert_eq!(ask(&proxy).json()["data"]["unchanged"], true);
    let newest = record(&proxy, "success");
    let change = &newest["metadata"]["changes"][0];
    assert_eq!(change["new"], text["tools_limit"], "{newest}");
}

#[test]
fn sessions_and_streams_stay_open() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--offers"])}));
    let mut client = proxy.client();
    works(&mut client, "s:read_item");
    let mut stream = crate::harness::Connection::open(proxy.port);
    let direct = proxy.direct_client();
    let session = direct.session.clone();
    let headers = [("Accept", "text/event-stream"), ("Mcp-Session-Id", session.as_str())];
    stream.send("GET", "/mcp/all", &headers, b"");
    assert_eq!(stream.head().0, 200);
    reload(&proxy, &json!({"mcpServers": {"s": stub_stdio(&["--offers"]), "t": stub_stdio(&[])}}));
    // The stream reports the new tools.
    let mut seen = String::new();
    until("it is reported", || {
        seen += &String::from_utf8_lossy(&stream.chunk().expect("the stream is open"));
        seen.contains("notifications/tools/list_changed").then_some(())
    });
    works(&mut client, "s:read_item");
    works(&mut client, "t:read_item");
}

#[test]
fn change_of_our_own_tools_is_announced() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    let mut stream = crate::harness::Connection::open(proxy.port);
    let headers = [("Accept", "text/event-stream"), ("Mcp-Session-Id", client.session.as_str())];
    stream.send("GET", "/mcp", &headers, b"");
    assert_eq!(stream.head().0, 200);
    let servers = json!({"s": stub_stdio(&[])});
    reload(&proxy, &json!({"mcpServers": servers, "result_limit": {"bytes": 4096}}));
    let mut seen = String::new();
    until("it is reported", || {
        seen += &String::from_utf8_lossy(&stream.chunk().expect("the stream is open"));
        seen.contains("notifications/tools/list_changed").then_some(())
    });
    let listed = client.ask("tools/list", json!({}))["result"]["tools"].clone();
    let last = listed.as_array().unwrap().last().unwrap();
    assert_eq!(last["name"], "read_result");
}

#[test]
fn current_content_of_a_file_backed_value_applies() {
    let folder = tempfile::tempdir().unwrap();
    let (kept, seen) = (folder.path().join("kept"), folder.path().join("seen"));
    write_private(&kept, "first-0123456789\n");
    let script = format!("echo \"$A\" >> {}; exec \"$0\" stdio", seen.display());
    let value = format!("${{file:{}}}", kept.display());
    let server = json!({"command": "sh", "args": ["-c", script, stub()], "env": {"A": value}});
    let proxy = Proxy::start(json!({"s": server, "t": stub_stdio(&[])}));
    let mut client = proxy.client();
    works(&mut client, "s:read_item");
    let values =
        || fs::read_to_string(&seen).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(values(), ["first-0123456789"]);
    let beside = proxy.api("servers")["servers"][1]["since"].clone();
    // The file is rewritten: the change is noticed.
    write_private(&kept, "second-0123456789\n");
    until("the server has it", || (values().len() == 2).then_some(()));
    works(&mut client, "s:read_item");
    assert_eq!(values()[1], "second-0123456789");
    assert_eq!(proxy.api("servers")["servers"][1]["since"], beside, "others stay");
    // The record follows the start of the server.
    let changes = || proxy.activity("type=config_change&status=success").first().cloned();
    let change = until("it is recorded", changes);
    assert_eq!(change["metadata"]["applied"], json!(["mcpServers.s"]), "{change}");
    assert!(!change.to_string().contains("second"), "{change}");
    // The file is removed: the running proxy continues, and a start reports the missing file.
    fs::remove_file(&kept).unwrap();
    works(&mut client, "s:read_item");
    proxy.cli(&["upstream", "restart", "s"]);
    until("it is reported", || (state(&proxy, "s").as_deref() == Some("failed")).then_some(()));
    let servers = proxy.api("servers");
    let reason = servers["servers"][0]["reason"].as_str().unwrap();
    assert!(reason.contains(", referenced by env.A, cannot be read"), "{reason}");
    write_private(&kept, "third-0123456789\n");
    until("the server has it", || (values().len() == 3).then_some(()));
    works(&mut client, "s:read_item");
    assert_eq!(values()[2], "third-0123456789");
}

#[test]
fn own_secrets_can_be_kept_in_files() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let (first, second) = ("1".repeat(40), "2".repeat(40));
    write_private(&kept, &first);
    let proxy = Proxy::with(json!({"mcpServers": {}}));
    let config = json!({"mcpServers": {}, "api_key": format!("${{file:{}}}", kept.display())});
    write(&proxy, &config);
    let status =
        |key: &str| proxy.request("GET", "/api/v1/servers", &[("X-API-Key", key)], b"").status;
    until("the first key is in force", || (status(&first) == 200).then_some(()));
    assert_eq!(status(config["api_key"].as_str().unwrap()), 401, "the reference is none");
    write_private(&kept, &second);
    until("the second key is in force", || (status(&second) == 200).then_some(()));
    assert_eq!(status(&first), 401);
    let missing = json!({"mcpServers": {}, "api_key": second,
        "approval": {"webhook": {"url": "https://h.example/hook", "secret": "${file:/nowhere}"}}});
    write(&proxy, &missing);
    let refused = proxy.request("POST", "/api/v1/config/reload", &[("X-API-Key", &second)], b"");
    assert!(
        refused
            .text()
            .contains("the file /nowhere, referenced by approval.webhook.secret, cannot be read"),
        "{}",
        refused.text()
    );
}

/// Resources that a process holds.
#[derive(Clone, Copy)]
struct Held {
    fds: usize,
    children: usize,
    threads: usize,
    /// Resident set size.
    kilobytes: u64,
}

impl Held {
    fn by(pid: u32) -> Self {
        let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        let kilobytes = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        let children = children_of(pid).len();
        Self { fds: count("fd"), children, threads: count("task"), kilobytes }
    }

    fn shown(self) -> Value {
        let Self { fds, children, threads, kilobytes } = self;
        json!({"fds": fds, "children": children, "threads": threads, "rss_kb": kilobytes})
    }
}

/// Many reloads during calls, each with a change. `E2E_RELOADS` is the number of reloads. The outcome is written as
/// JSON to the file that `E2E_RELOADS_REPORT` names (`tools/reload`).
// CFG-3
#[test]
fn reloads_under_load_do_not_fail_calls_or_leave_state() {
    let rounds: usize = std::env::var("E2E_RELOADS").map_or(60, |it| it.parse().unwrap());
    let web = HttpStub::shared();
    let config = |round: usize| {
        // A child that does not change, one that is replaced each fourth time, an HTTP server that is replaced each
        // time, and one that is alternately added and removed.
        let mut child = stub_stdio(&[]);
        child["env"] = json!({"ROUND": (round / 4).to_string()});
        let mut entry = web.entry();
        entry["headers"] = json!({"X-Round": round.to_string()});
        let mut servers =
            BTreeMap::from([("stays", stub_stdio(&[])), ("child", child), ("web", entry.clone())]);
        if round.is_multiple_of(2) {
            servers.insert("now_and_then", entry);
        }
        json!({"mcpServers": servers, "tools_limit": 1 + round % 50,
            "limits": {"concurrent": 1000 + round}})
    };
    let proxy = Proxy::with(config(0));
    let pid = proxy.process.0.id();
    let (done, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let idle = Held::by(pid);
    let mut before = None;
    std::thread::scope(|scope| {
        for server in ["stays", "child", "web"] {
            let (proxy, done, calls) = (&proxy, &done, &calls);
            scope.spawn(move || {
                let mut client = proxy.client();
                while !done.load(Ordering::Relaxed) {
                    works(&mut client, &format!("{server}:read_item"));
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let finished = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 1..=rounds {
                let result = reload(&proxy, &config(round));
                assert_eq!(result["unchanged"], false);
                if round == rounds / 3 {
                    before = Some(Held::by(pid));
                }
            }
        }));
        done.store(true, Ordering::Relaxed);
        if let Err(panic) = finished {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(calls.load(Ordering::Relaxed) > rounds, "there was no load");
    let before = before.unwrap();
    // Once kept connections are closed and retired servers have ended, the process holds as many resources as before
    // the load.
    let after = until("retired connections and servers have ended", || {
        let now = Held::by(pid);
        let few = now.fds <= idle.fds + 8 && now.threads <= before.threads + 4;
        (few && now.children == 2).then_some(now)
    });
    let reported = proxy.api("status")["calls"].clone();
    if let Some(path) = std::env::var_os("E2E_RELOADS_REPORT") {
        let failed = ["error", "rejected", "blocked"].map(|what| reported[what].as_u64().unwrap());
        let (begun, third, end) = (idle.shown(), before.shown(), after.shown());
        let all = json!({"reloads": rounds, "calls": calls.load(Ordering::Relaxed),
            "failures": failed.iter().sum::<u64>(), "idle": begun, "third": third, "after": end});
        fs::write(path, all.to_string()).unwrap();
    }
    let grown = after.kilobytes.saturating_sub(before.kilobytes);
    assert!(grown < 24 * 1024, "memory has grown by {grown} KB");
    assert_eq!((&reported["error"], &reported["rejected"]), (&json!(0), &json!(0)), "{reported}");
    assert!(!proxy.log().contains("ERROR"), "{}", proxy.log());
}
