//! Changes of settings in the config file over REST: preview, edits that preserve the other settings, and refusals.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{API_KEY, Proxy, Response, stub_stdio, until};
use crate::page_endpoints::{text, write};

const KEY: [(&str, &str); 1] = [("X-API-Key", API_KEY)];
const SECRET: &str = "s3cret-value-of-the-test";

/// A proxy with a comment and a secret in its config file.
fn start() -> Proxy {
    let mut server = stub_stdio(&[]);
    server["env"] = json!({"E2E_TOKEN": SECRET});
    let proxy = Proxy::start(json!({"s": server}));
    let text = text(&proxy).replacen('{', "{ // mine\n  \"tools_limit\": 9, // few\n", 1);
    write(&proxy, &text);
    let reloaded = proxy.request("POST", "/api/v1/config/reload", &KEY, b"");
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    proxy
}

fn digest(proxy: &Proxy) -> String {
    proxy.api("config/settings")["digest"].as_str().unwrap().to_owned()
}

fn send(proxy: &Proxy, what: &str, body: &Value) -> Response {
    proxy.request("POST", &format!("/api/v1/config/{what}"), &KEY, body.to_string().as_bytes())
}

fn standing(proxy: &Proxy) -> Value {
    proxy.api("config")["standing"].clone()
}

// CFG-4
#[test]
fn settings_are_shown_written_next_to_existing_ones_and_take_effect() {
    let proxy = start();
    let shown = proxy.api("config/settings");
    assert_eq!(shown["settings"]["tools_limit"], 9);
    assert_eq!(shown["settings"]["mcpServers"]["s"]["env"]["E2E_TOKEN"], "(not shown)");
    // CFG-8
    let command = shown["settings"]["mcpServers"]["s"]["command"].as_str().unwrap();
    assert!(command.ends_with("/stub"), "{command}");
    let patchable = shown["patchable"].as_array().unwrap();
    assert!(patchable.contains(&json!("mcpServers.*.call_timeout")), "{patchable:?}");
    assert!(!patchable.contains(&json!("api_key")), "{patchable:?}");
    assert!(!shown.to_string().contains(SECRET) && !shown.to_string().contains(API_KEY), "{shown}");
    let before = text(&proxy);
    let change = json!({"digest": shown["digest"], "patch": {"tools_limit": 7, "logging": {"format": "json"},
        "mcpServers": {"s": {"max_concurrent": 3}}}});
    let seen = send(&proxy, "preview", &change);
    assert_eq!(seen.status, 200, "{}", seen.text());
    let seen = seen.json()["data"].clone();
    assert_eq!(seen["applied"], json!(["mcpServers.s", "tools_limit"]));
    assert_eq!(seen["needs_restart"], json!(["logging.format"]));
    let limit = json!({"key": "tools_limit", "change": "changed", "old": 9, "new": 7});
    assert!(seen["changes"].as_array().unwrap().contains(&limit), "{seen}");
    assert!(!seen.to_string().contains(SECRET), "{seen}");
    assert_eq!((text(&proxy), &standing(&proxy)["tools_limit"]), (before.clone(), &json!(9)));
    let done = send(&proxy, "change", &change);
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(done.json()["data"]["applied"], seen["applied"]);
    let after = text(&proxy);
    assert!(after.starts_with("{ // mine\n  \"tools_limit\": 7, // few\n"), "{after}");
    assert!(after.contains(SECRET) && after.contains(API_KEY) && after.contains("max_concurrent"));
    assert_eq!(standing(&proxy)["tools_limit"], 7);
    let recorded = proxy.activity("type=config_change&status=success")[0].clone();
    assert_eq!(
        (&recorded["principal"], &recorded["metadata"]["door"]),
        (&json!("admin"), &json!("api"))
    );
    assert!(recorded["metadata"]["changes"].to_string().contains("tools_limit"), "{recorded}");
    assert!(!recorded.to_string().contains(SECRET), "{recorded}");
}

#[test]
fn second_edit_of_the_same_state_does_not_overwrite_the_first() {
    let proxy = start();
    let seen = digest(&proxy);
    let with = |limit: u8| json!({"digest": seen, "patch": {"tools_limit": limit}});
    assert_eq!(send(&proxy, "change", &with(5)).status, 200);
    for what in ["preview", "change"] {
        let second = send(&proxy, what, &with(6));
        assert_eq!(second.status, 409, "{}", second.text());
        assert!(second.text().contains("changed since it was read"), "{}", second.text());
    }
    assert_eq!(standing(&proxy)["tools_limit"], 5);
    // The same for a change by an editor.
    let seen = digest(&proxy);
    write(&proxy, &text(&proxy).replace("// few", "// fewer"));
    let change = json!({"digest": seen, "patch": {"tools_limit": 8}});
    assert_eq!(send(&proxy, "change", &change).status, 409);
    assert!(text(&proxy).contains("// fewer") && text(&proxy).contains("\"tools_limit\": 5"));
}

#[test]
fn unusable_setting_is_reported_with_its_place_and_not_written() {
    let proxy = start();
    let before = text(&proxy);
    let change = |patch: Value| json!({"digest": digest(&proxy), "patch": patch});
    for (patch, key, reason) in [
        (json!({"tools_limit": 0}), "tools_limit", "must be 1 to 100"),
        (json!({"tools_limit": "many"}), "tools_limit", "a string"),
        (json!({"policy": {"files": ["../nowhere.cedar"]}}), "policy.files", "config reload"),
        (json!({"allowed_hosts": ["evil.example"]}), "allowed_hosts", "config reload"),
        (json!({"listen": "0.0.0.0:1"}), "listen", "config reload"),
        (json!({"data_dir": "/tmp"}), "data_dir", "config reload"),
        (json!({"cluster": {"advertise": "h:1"}}), "cluster.advertise", "config reload"),
        (
            json!({"mcpServers": {"s": {"command": "sh"}}}),
            "mcpServers.s.command",
            "not a setting that can be changed here",
        ),
        (
            json!({"mcpServers": {"s": null}}),
            "mcpServers.s",
            "not a setting that can be changed here",
        ),
        (
            json!({"mcpServers": {"new": {"url": "http://127.0.0.1:1"}}}),
            "mcpServers.new.url",
            "upstream",
        ),
        (
            json!({"api_key": "a-key-that-somebody-else-knows-0123456789"}),
            "api_key",
            "not a setting",
        ),
        (json!({"auth": {"jwt": {"issuer": "mine"}}}), "auth.jwt.issuer", "not a setting"),
        (json!({"..": {"..": "x"}}), ".....", "not a setting"),
    ] {
        for what in ["preview", "change"] {
            let refused = send(&proxy, what, &change(patch.clone()));
            assert_eq!(refused.status, 422, "{patch}: {}", refused.text());
            let refused = refused.json();
            let problem = &refused["problems"][0];
            assert_eq!((&problem["severity"], &problem["key"]), (&json!("error"), &json!(key)));
            assert!(problem["problem"].as_str().unwrap().contains(reason), "{problem}");
            if key == "tools_limit" {
                assert_eq!((&problem["line"], &problem["column"]), (&json!(2), &json!(18)));
            }
        }
    }
    assert_eq!(text(&proxy), before);
    assert!(proxy.activity("type=config_change&status=rejected").is_empty());
    assert_eq!(standing(&proxy)["tools_limit"], 9);
    // The file may contain other invalid settings already.
    write(&proxy, "{ \"tools_limit\": }");
    for refused in [
        proxy.request("GET", "/api/v1/config/settings", &KEY, b""),
        send(&proxy, "change", &json!({"digest": "0".repeat(64), "patch": {}})),
    ] {
        assert!([409, 422].contains(&refused.status), "{}", refused.text());
    }
    let unread = proxy.request("GET", "/api/v1/config/settings", &KEY, b"").json();
    let place = (&unread["problems"][0]["line"], &unread["problems"][0]["column"]);
    assert_eq!(place, (&json!(1), &json!(18)), "{unread}");
}

// CFG-5
#[test]
fn hostile_bodies_are_refused_and_leave_the_file_unchanged() {
    let proxy = start();
    let before = text(&proxy);
    let seen = digest(&proxy);
    let wide: serde_json::Map<_, _> = (0..100).map(|at| (format!("k{at}"), json!(1))).collect();
    let deep = format!("{{\"digest\":\"{seen}\",\"patch\":{}{}", "{\"a\":".repeat(5000), "1");
    let some_deep = (0..40).fold(json!(1), |value, _| json!({"limits": value}));
    let with = |patch: Value| json!({"digest": seen, "patch": patch}).to_string();
    for (body, status) in [
        (String::new(), 400),
        ("{".to_owned(), 400),
        ("\u{0}".to_owned(), 400),
        ("[]".to_owned(), 400),
        (with(json!([1])), 400),
        (json!({"digest": seen}).to_string(), 400),
        (json!([seen, {"tools_limit": 1}]).to_string(), 400),
        (with(json!({"tools_limit": 1})).replace("{\"tools", "{\"tools_limit\":2,\"tools"), 400),
        (json!({"digest": seen, "patch": {}, "path": "../../etc/passwd"}).to_string(), 400),
        (deep, 400),
        (with(some_deep), 422),
        (with(Value::Object(wide)), 422),
        (json!({"digest": "../..", "patch": {"tools_limit": 1}}).to_string(), 409),
        (json!({"digest": "", "patch": {"tools_limit": 1}}).to_string(), 409),
    ] {
        for what in ["preview", "change"] {
            let path = format!("/api/v1/config/{what}");
            let refused = proxy.request("POST", &path, &KEY, body.as_bytes());
            let of: String = body.chars().take(100).collect();
            assert_eq!(refused.status, status, "{of}: {}", refused.text());
        }
    }
    // A body of 100 MB is refused as too large.
    let huge =
        format!("{{\"digest\":\"{seen}\",\"patch\":{{\"a\":\"{}\"}}}}", "x".repeat(100 << 20));
    for what in ["preview", "change"] {
        let path = format!("/api/v1/config/{what}");
        assert_eq!(proxy.request("POST", &path, &KEY, huge.as_bytes()).status, 413);
    }
    assert_eq!(text(&proxy), before);
    // A file that is too long or not text is neither shown nor overwritten.
    let file = proxy.folder.path().join("config.json");
    let read = || proxy.request("GET", "/api/v1/config/settings", &KEY, b"");
    fs::write(&file, b"\xff{}").unwrap();
    assert_eq!(read().status, 422, "{}", read().text());
    fs::File::create(&file).unwrap().set_len(100 << 20).unwrap();
    assert_eq!(read().status, 422, "{}", read().text());
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(read().status, 422, "{}", read().text());
}

// CFG-5
#[test]
fn only_the_admin_reads_and_changes_settings() {
    let proxy = start();
    let token = proxy.cli(&["token", "create", "ci", "--json"]).json()["token"].clone();
    let body = json!({"digest": digest(&proxy), "patch": {"tools_limit": 3}}).to_string();
    let key = [("X-API-Key", token.as_str().unwrap())];
    for (method, what) in [("GET", "settings"), ("POST", "preview"), ("POST", "change")] {
        let path = format!("/api/v1/config/{what}");
        assert_eq!(proxy.request(method, &path, &key, body.as_bytes()).status, 403);
        assert_eq!(proxy.request(method, &path, &[], body.as_bytes()).status, 401);
    }
    until("nothing has changed", || (standing(&proxy)["tools_limit"] == 9).then_some(()));
}
