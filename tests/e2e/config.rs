//! A config that cannot be used: the message, exit code 5, and nothing half-started.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{API_KEY, Output, configure, mcpproxy, stub_stdio, write_private};

fn run(path: &Path, command: &[&str]) -> Output {
    Output::of(mcpproxy().arg("--config").arg(path).args(command))
}

/// `serve` and `config check` refuse this text alike and leave nothing behind.
fn refused(text: &str, words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    write_private(&path, text);
    for command in [&["serve", "-d"][..], &["config", "check", "-d"], &["stdio", "-d"]] {
        let data = folder.path().join("data");
        let command = [command, &[data.to_str().unwrap()]].concat();
        let output = run(&path, &command);
        assert_eq!(output.code, Some(5), "{text}: {}", output.stderr);
        assert_eq!(output.stdout, "", "{text}");
        assert_eq!(output.stderr.lines().count(), 1, "{text}: {}", output.stderr);
        assert!(output.stderr.contains("config.json"), "{text}: {}", output.stderr);
        for word in words {
            assert!(output.stderr.contains(word), "{text}: no '{word}' in {}", output.stderr);
        }
        assert!(!data.exists(), "{text}: nothing is started");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "the file is left as it is");
}

#[test]
fn what_cannot_be_read_names_line_and_column() {
    refused("{\n  \"listen\": \n}", &["line 3", "column"]);
    refused("{\n  // a comment\n}", &["line 2", "comments are not JSON"]);
    refused("[]", &["object"]);
    refused("{} {}", &["line 1"]);
    refused("{\"tools_limit\": 5,}", &["line 1", "column"]);
}

#[test]
fn a_wrong_type_names_the_keys_path() {
    refused(r#"{"listen": 8080}"#, &["listen", "string"]);
    refused(r#"{"listen": "8080"}"#, &["listen", "8080"]);
    refused(r#"{"tools_limit": "many"}"#, &["tools_limit"]);
    refused(r#"{"tools_limit": 101}"#, &["tools_limit", "1 to 100"]);
    refused(r#"{"output_validation": {"mode": "loud"}}"#, &["output_validation.mode", "loud"]);
    refused(r#"{"output_validation": {"max_depth": 121}}"#, &["output_validation.max_depth"]);
    refused(
        r#"{"intent_declaration": {"operation_type": "maybe"}}"#,
        &["intent_declaration.operation_type"],
    );
    refused(r#"{"activity": {"durability": "never"}}"#, &["activity.durability"]);
    refused(r#"{"mcpServers": 7}"#, &["mcpServers"]);
    refused(r#"{"mcpServers": {"s": {"args": "x"}}}"#, &["mcpServers.s.args"]);
    refused(
        r#"{"mcpServers": {"s": {"command": "x", "call_timeout": "soon"}}}"#,
        &["mcpServers.s.call_timeout"],
    );
    refused(r#"{"api_key": "short"}"#, &["api_key", "32"]);
    refused(r#"{"logging": {"level": "chatty"}}"#, &["logging.level"]);
}

#[test]
fn names_of_servers() {
    refused(r#"{"mcpServers": {"a:b": {"command": "x"}}}"#, &["a:b", "':'"]);
    refused(
        r#"{"mcpServers": {"s": {"command": "x"}, "s": {"command": "y"}}}"#,
        &["duplicate server name 's'"],
    );
    refused(
        r#"{"mcpServers": {"s": {"command": "x"}, "\u0073": {"command": "y"}}}"#,
        &["duplicate server name 's'"],
    );
    refused(
        r#"{"mcpServers": [{"name": "s", "command": "x"}, {"name": "s", "command": "y"}]}"#,
        &["duplicate server name 's'"],
    );
    refused(r#"{"mcpServers": [{"command": "x"}]}"#, &["mcpServers[0]", "name"]);
    refused(r#"{"listen": "127.0.0.1:0", "listen": "127.0.0.1:1"}"#, &["listen"]);
}

#[test]
fn a_listen_address_others_can_reach_needs_auth() {
    refused(r#"{"listen": "0.0.0.0:0"}"#, &["listen", "require_mcp_auth"]);
    refused(r#"{"listen": ":0"}"#, &["listen", "require_mcp_auth"]);
}

#[test]
fn entries_of_allowed_hosts_and_origins_that_cannot_be_understood() {
    for key in ["allowed_hosts", "allowed_origins"] {
        let folder = tempfile::tempdir().unwrap();
        let path = configure(json!({key: ["http://a b/"]}), folder.path());
        let output = run(&path, &["serve"]);
        assert_eq!(output.code, Some(5), "{}", output.stderr);
        assert!(output.stderr.contains(key), "{}", output.stderr);
        assert!(!folder.path().join("data").exists(), "nothing is started");
    }
}

#[test]
fn a_file_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["serve"]);
    assert_eq!(output.code, Some(5), "{}", output.stderr);
    assert!(output.stderr.contains(folder.path().to_str().unwrap()), "{}", output.stderr);
}

#[test]
fn a_missing_file_means_the_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.json");
    let output = run(&path, &["config", "check", "-o", "json"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let report = output.json();
    assert_eq!((&report["exists"], &report["listen"]), (&json!(false), &json!("127.0.0.1:8080")));
    assert!(!path.exists(), "looking makes no file");
}

#[test]
fn unknown_keys_are_warnings_that_name_them_and_the_nearest_known_one() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "listenn": "127.0.0.1:1",
        "output_validation": {"moed": "strict"},
        "mcpServers": {"s": {"command": "x", "comand": "y"}},
    });
    let path = configure(config, folder.path());
    let output = run(&path, &["config", "check"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    for (key, nearest) in [
        ("listenn", "listen"),
        ("output_validation.moed", "mode"),
        ("mcpServers.s.comand", "command"),
    ] {
        let said = output.stdout.lines().any(|line| {
            line.contains(&format!("'{key}'")) && line.contains(&format!("'{nearest}'"))
        });
        assert!(said, "{key}: {}", output.stdout);
    }
    assert!(output.stdout.contains("ok, with warnings"), "{}", output.stdout);
}

#[test]
fn a_file_that_others_can_read_is_warned_about() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = configure(json!({}), folder.path());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = run(&path, &["config", "check"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stdout.contains("chmod 600"), "{}", output.stdout);
}

#[test]
fn flag_beats_environment_beats_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = configure(json!({"listen": "127.0.0.1:1111"}), folder.path());
    let check = |env: &[(&str, &str)], flags: &[&str]| -> Value {
        let mut command = mcpproxy();
        command.envs(env.iter().copied()).args(flags).args(["config", "check", "--json"]);
        Output::of(&mut command).json()
    };
    let file = path.to_str().unwrap();
    assert_eq!(check(&[], &["-c", file])["listen"], "127.0.0.1:1111");
    let env = [
        ("MCPPROXY_CONFIG", file),
        ("MCPPROXY_LISTEN", "127.0.0.1:2222"),
        ("MCPPROXY_DATA_DIR", "/env"),
    ];
    let report = check(&env, &[]);
    assert_eq!(
        (&report["listen"], &report["data_dir"]),
        (&json!("127.0.0.1:2222"), &json!("/env"))
    );
    assert_eq!(check(&env, &["-d", "/flag"])["data_dir"], "/flag");
}

#[test]
fn a_variable_that_is_not_set_stops_its_server_alone() {
    let mut broken = stub_stdio(&[]);
    broken["env"] = json!({"TOKEN": "${env:E2E_NO_SUCH_VARIABLE}"});
    let proxy = crate::harness::Proxy::start(json!({"broken": broken, "good": stub_stdio(&[])}));
    let mut client = proxy.client();
    assert_eq!(client.read("good:read_item", json!({}))["structuredContent"]["value"], 7);
    let servers = proxy.api("servers")["servers"].clone();
    assert_eq!((&servers[0]["name"], &servers[0]["state"]), (&json!("broken"), &json!("failed")));
    assert!(servers[0]["reason"].as_str().unwrap().contains("E2E_NO_SUCH_VARIABLE"), "{servers}");
}

#[test]
fn with_json_the_error_is_json_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    write_private(&path, &json!({"api_key": API_KEY, "tools_limit": 0}).to_string());
    let output = run(&path, &["config", "check", "-o", "json"]);
    assert_eq!(output.code, Some(5));
    let error: Value = serde_json::from_str(&output.stderr).unwrap();
    assert_eq!((&error["success"], &error["exit_code"]), (&json!(false), &json!(5)));
    assert!(error["error"].as_str().unwrap().contains("tools_limit"), "{error}");
}
