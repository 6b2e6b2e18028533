//! REST endpoints used by the page: switching servers, and showing and comparing rules and config.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{API_KEY, Proxy, Response, stub_stdio, until, write_private};

const KEY: [(&str, &str); 1] = [("X-API-Key", API_KEY)];

fn post(proxy: &Proxy, path: &str) -> Response {
    proxy.request("POST", &format!("/api/v1/{path}"), &KEY, b"")
}

fn state(proxy: &Proxy, server: &str) -> String {
    let servers = proxy.api("servers");
    let found = servers["servers"].as_array().unwrap().iter().find(|it| it["name"] == server);
    found.map_or(String::new(), |it| it["state"].as_str().unwrap().to_owned())
}

/// The config file.
pub(crate) fn text(proxy: &Proxy) -> String {
    fs::read_to_string(proxy.folder.path().join("config.json")).unwrap()
}

pub(crate) fn write(proxy: &Proxy, text: &str) {
    let new = proxy.folder.path().join("config.json.new");
    write_private(&new, text);
    fs::rename(new, proxy.folder.path().join("config.json")).unwrap();
}

#[test]
fn server_is_switched_in_the_file_and_takes_effect_at_once() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let before = text(&proxy).replacen('{', "{ // mine\n", 1);
    write(&proxy, &before);
    assert_eq!(post(&proxy, "config/reload").status, 200);
    let off = post(&proxy, "servers/s/disable");
    assert_eq!(off.status, 200, "{}", off.text());
    let expected = json!({"server": "s", "enabled": false, "changed": true});
    assert_eq!(off.json()["data"], expected);
    assert_eq!(state(&proxy, "s"), "disabled");
    assert!(text(&proxy).contains("// mine") && text(&proxy).contains("\"enabled\""));
    assert_eq!(post(&proxy, "servers/s/disable").json()["data"]["changed"], false);
    assert_eq!(post(&proxy, "servers/s/restart").status, 409);
    assert_eq!(post(&proxy, "servers/s/enable").status, 200);
    until("it is back", || (state(&proxy, "s") == "connected").then_some(()));
    let switched = proxy.activity("type=config_change&status=success");
    assert!(switched.iter().any(|record| record["principal"] == "admin"), "{switched:?}");
}

#[test]
fn rejected_switch_is_reported_and_the_file_is_unchanged() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let unknown = post(&proxy, "servers/nobody/disable");
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    assert_eq!(post(&proxy, "servers/s/disable?x=1").status, 400);
    let good = text(&proxy);
    let file = proxy.folder.path().join("config.json");
    for bad in ["{", "\u{0}", &good.replacen('{', "{\"tools_limit\": 0, ", 1)] {
        write(&proxy, bad);
        let refused = post(&proxy, "servers/s/disable");
        assert_eq!(refused.status, 409, "{bad}: {}", refused.text());
        assert!(refused.text().contains("'s' was not changed"), "{}", refused.text());
        assert_eq!(text(&proxy), bad);
    }
    // Invalid rules: a reload would reject them, so nothing is written.
    let rules = proxy.folder.path().join("bad.cedar");
    fs::write(&rules, "permit (\n").unwrap();
    let policy = json!({"files": [rules]});
    let bad = good.replacen('{', &format!("{{\"policy\": {policy}, "), 1);
    write(&proxy, &bad);
    let refused = post(&proxy, "servers/s/disable");
    assert_eq!(refused.status, 409, "{}", refused.text());
    let error = refused.text();
    assert!(error.contains("'s' was not changed") && error.contains("bad.cedar"), "{error}");
    assert_eq!(text(&proxy), bad);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(post(&proxy, "servers/s/disable").status, 409, "a folder in its place");
    assert_eq!(state(&proxy, "s"), "connected", "the config in force is unchanged");
}

fn add_servers(proxy: &Proxy, headers: &[(&str, &str)], servers: &Value) -> Response {
    let body = json!({"servers": servers}).to_string();
    proxy.request("POST", "/api/v1/config/servers", headers, body.as_bytes())
}

// CFG-9
#[test]
fn servers_are_added_to_the_file_and_started() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let secret = "s3cret-value-of-the-test";
    let mut new = stub_stdio(&[]);
    new["env"] = json!({"E2E_TOKEN": secret});
    new["timeout"] = json!(5);
    let off = json!({"url": "http://127.0.0.1:1/mcp", "disabled": true});
    let added = add_servers(&proxy, &KEY, &json!({"new": new, "off": off}));
    assert_eq!(added.status, 200, "{}", added.text());
    let data = &added.json()["data"];
    assert_eq!(data["applied"], json!(["mcpServers.new", "mcpServers.off"]));
    assert!(data["warnings"].to_string().contains("write call_timeout"), "{data}");
    until("it is connected", || (state(&proxy, "new") == "connected").then_some(()));
    assert_eq!((state(&proxy, "s"), state(&proxy, "off")), ("connected".into(), "disabled".into()));
    let file: Value = serde_json::from_str(&text(&proxy)).unwrap();
    assert_eq!(file["mcpServers"]["new"], new);
    let recorded = proxy.activity("type=config_change&status=success")[0].clone();
    assert_eq!(recorded["principal"], "admin");
    assert!(recorded.to_string().contains("mcpServers.new"), "{recorded}");
    assert!(!recorded.to_string().contains(secret) && !added.text().contains(secret));
}

// CFG-9
#[test]
fn refused_servers_are_reported_with_their_place_and_not_written() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let before = text(&proxy);
    let good = stub_stdio(&[]);
    for (servers, status, key, reason) in [
        (json!({"ok": good, "s": good}), 422, "mcpServers.s", "already has a server 's'"),
        (json!({"ok": good, "a:b": good}), 422, "mcpServers.a:b", "must start with a letter"),
        (json!({"ok": good, "bad": {}}), 422, "mcpServers.bad", "command"),
        (json!({"ok": good, "bad": {"url": "ftp://h"}}), 422, "mcpServers.bad.url", "http"),
        (json!({"bad": 7}), 422, "mcpServers.bad", "must be an object"),
        (json!({}), 422, "", "name 1 to 64 servers"),
        (json!([]), 400, "", "write {"),
    ] {
        let refused = add_servers(&proxy, &KEY, &servers);
        assert_eq!(refused.status, status, "{servers}: {}", refused.text());
        assert!(refused.text().contains(reason), "{servers}: {}", refused.text());
        if status == 422 {
            assert_eq!(refused.json()["problems"][0]["key"], key, "{}", refused.text());
        }
    }
    let twice = br#"{"servers": {"a": {"url": "http://h"}, "a": {"command": "sh"}}}"#;
    assert_eq!(proxy.request("POST", "/api/v1/config/servers", &KEY, twice).status, 400);
    for by in ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"] {
        let refused = add_servers(&proxy, &[KEY[0], (by, "192.0.2.1")], &json!({"ok": good}));
        assert_eq!(refused.status, 403, "{by}");
        assert!(refused.text().contains("mcpproxy upstream add"), "{}", refused.text());
    }
    assert_eq!(add_servers(&proxy, &[], &json!({"ok": good})).status, 401);
    assert_eq!(text(&proxy), before);
    assert_eq!(proxy.api("servers")["servers"].as_array().unwrap().len(), 1);
}

// CFG-9
#[test]
fn server_is_removed_from_the_file_and_stopped() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[]), "a b": stub_stdio(&[])}));
    let mine = text(&proxy).replacen('{', "{ // mine\n", 1);
    write(&proxy, &mine);
    assert_eq!(post(&proxy, "config/reload").status, 200);
    let remove = |name: &str, headers: &[(&str, &str)]| {
        proxy.request("DELETE", &format!("/api/v1/config/servers/{name}"), headers, b"")
    };
    for (name, headers, status) in [
        ("s", &[][..], 401),
        ("nobody", &KEY, 404),
        ("s?x=1", &KEY, 400),
        ("s", &[KEY[0], ("X-Forwarded-For", "192.0.2.1")], 403),
        ("s", &[KEY[0], ("Via", "1.1 proxy")], 403),
    ] {
        let refused = remove(name, headers);
        assert_eq!(refused.status, status, "{name}: {}", refused.text());
        assert_eq!(status == 403, refused.text().contains("mcpproxy upstream remove"));
    }
    assert_eq!(text(&proxy), mine);
    let removed = remove("a%20b", &KEY);
    assert_eq!(removed.status, 200, "{}", removed.text());
    assert_eq!(removed.json()["data"]["applied"], json!(["mcpServers.a b"]));
    // The response waits until the config is in force.
    assert_eq!((state(&proxy, "a b"), state(&proxy, "s").is_empty()), (String::new(), false));
    let kept = text(&proxy);
    assert!(kept.contains("// mine") && !kept.contains("a b"), "{kept}");
    let recorded = proxy.activity("type=config_change&status=success")[0].clone();
    assert!(recorded["principal"] == "admin" && recorded.to_string().contains("mcpServers.a b"));
    // A file that is invalid stays as it is.
    let bad = kept.replacen('{', "{\"tools_limit\": 0, ", 1);
    write(&proxy, &bad);
    assert_eq!(remove("s", &KEY).status, 422);
    assert_eq!(text(&proxy), bad);
}

#[test]
fn file_is_compared_with_the_config_in_force_without_showing_secrets() {
    let secret = "s3cret-value-of-the-test";
    let mut server = stub_stdio(&[]);
    server["env"] = json!({"E2E_TOKEN": secret});
    let proxy = Proxy::start(json!({"s": server}));
    let standing = proxy.api("config")["standing"].clone();
    assert_eq!(standing["api_key"], "(not shown)");
    assert_eq!(standing["mcpServers"]["s"]["env"]["E2E_TOKEN"], "(not shown)");
    let shown = standing.to_string();
    assert!(!shown.contains(secret) && !shown.contains(API_KEY), "{shown}");
    let same =
        json!({"changes": [], "left_out": 0, "applied": [], "needs_restart": [], "problems": []});
    assert_eq!(proxy.api("config/difference"), same);
    let good = text(&proxy);
    write(&proxy, &good.replacen('{', "{\"tools_limit\": 0, ", 1));
    let found = proxy.api("config/difference");
    assert_eq!(found["problems"][0]["severity"], "error", "{found}");
    assert!(found["problems"][0]["problem"].as_str().unwrap().contains("tools_limit"), "{found}");
    write(&proxy, &good.replacen("\"127.0.0.1:0\"", "\"127.0.0.1:1\"", 1));
    let restart = until("it is known", || {
        let found = proxy.api("config/difference");
        (found["needs_restart"] == json!(["listen"])).then_some(found)
    });
    assert!(!restart.to_string().contains(secret), "{restart}");
}

#[test]
fn rules_in_force_are_shown_as_written() {
    let none = Proxy::start(json!({}));
    let expected = json!({"mode": "none", "default": "allow", "rules": [], "left_out": 0});
    assert_eq!(none.api("policy"), expected);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.cedar");
    let rule = "@id(\"mine\")\n@message(\"ask me\")\n@requires(\"approval\")\nforbid(principal, action, resource);";
    write_private(&file, &format!("// first\n{rule}\n"));
    let policy = json!({"files": [file], "mode": "shadow", "default": "deny"});
    let proxy = Proxy::with(json!({"policy": policy}));
    let shown = proxy.api("policy");
    assert_eq!((&shown["mode"], &shown["default"]), (&json!("shadow"), &json!("deny")));
    let found: &Value = &shown["rules"][0];
    assert_eq!((&found["rule"], &found["effect"]), (&json!("mine"), &json!("forbid")));
    assert_eq!((&found["message"], &found["asks_a_person"]), (&json!("ask me"), &json!(true)));
    assert_eq!((&found["text"], &found["line"]), (&json!(rule), &json!(2)));
}

#[test]
fn latencies_are_reported_over_time() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    proxy.client().read("s:read_item", json!({}));
    let steps = proxy.api("activity/summary?period=1h")["over_time"].clone();
    let called: Vec<_> =
        steps.as_array().unwrap().iter().filter(|step| step["success"] == 1).collect();
    assert_eq!(called.len(), 1, "{steps}");
    let [p50, p99] = ["p50_ms", "p99_ms"].map(|name| called[0][name].as_f64().unwrap());
    assert!(p50 > 0.0 && p99 >= p50, "{steps}");
    // A period that ends earlier has the same steps, and not this call.
    let earlier = proxy.api("activity/summary?period=1h&end_time=2026-01-01T10:00:00Z");
    assert_eq!((&earlier["total_count"], &earlier["step_seconds"]), (&json!(0), &json!(300)));
    let ends = &earlier["over_time"].as_array().unwrap();
    assert_eq!(ends[0]["start_time"], "2026-01-01T08:55:00.000Z");
    assert_eq!(ends[ends.len() - 1]["start_time"], "2026-01-01T09:55:00.000Z");
    let later = proxy.api("activity/summary?period=1h&end_time=2999-01-01T10:00:00Z");
    assert_eq!(later["total_count"], 1, "a period ends now at the latest");
}
