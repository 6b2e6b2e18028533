//! Invalid configs: the message, exit code 5, and nothing left running.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Output, Process, Proxy, configure, mcpproxy, stub_stdio, write_private,
};

fn run(path: &Path, command: &[&str]) -> Output {
    Output::of(mcpproxy().arg("--config").arg(path).args(command))
}

/// Asserts that `serve`, `config check` and `stdio` refuse `text` with one line that contains `words`, and create
/// nothing.
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
fn unreadable_config_is_reported_with_line_and_column() {
    refused("{\n  \"listen\": \n}", &["config.json:3:1: "]);
    refused("{\n  // a comment\n  # none\n}", &[":3:3"]);
    refused("[]", &[":1:1", "object"]);
    refused("{} {}", &[":1:4"]);
    refused("{\"tools_limit\": 5,,}", &[":1:19"]);
}

#[test]
fn comments_and_trailing_commas_are_accepted_and_kept_by_edits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let data = folder.path().join("data");
    let text = format!(
        "// mine\n{{\n  // where\n  \"listen\": \"127.0.0.1:0\", // any\n  /* kept\n  here */ \
         \"data_dir\": {data:?},\n}}\n"
    );
    write_private(&path, &text);
    let output = run(&path, &["config", "check", "--json"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(output.json()["listen"], "127.0.0.1:0");
    let mut served = mcpproxy();
    served.arg("-c").arg(&path).arg("serve").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut served = Process::spawn(&mut served);
    let mut line = String::new();
    BufReader::new(served.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("MCP at "), "{line}");
    served.signal("TERM");
    assert_eq!(served.wait(), Some(0));
    let written = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = written.split_once("  \"api_key\": \"").unwrap();
    let (key, after) = rest.split_once("\",\n").unwrap();
    assert_eq!(key.len(), 64);
    assert_eq!(format!("{before}{after}"), text, "nothing else has changed");
}

// CFG-2
#[test]
fn one_key_is_read_set_and_removed_and_a_mistake_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.json");
    let text = "{\n  // Ours.\n  \"data_dir\": \"DIR\",\n  \"mcpServers\": {\"a.b\": {\"command\": \"cat\"}}\n}\n";
    let text = text.replace("DIR", &folder.path().join("data").display().to_string());
    write_private(&path, &text);
    for (key, value) in [
        ("tools_limit", "20"),
        ("mcpServers.a.b.call_timeout", "30s"),
        ("allowed_hosts", r#"["proxy.example.com"]"#),
        ("api_key", "12345678901234567890123456789012"),
    ] {
        let set = run(&path, &["config", "set", key, value]);
        assert_eq!(set.code, Some(0), "{key}: {}", set.stderr);
        let read = run(&path, &["config", "get", key]);
        assert_eq!((read.code, read.stdout.trim_end()), (Some(0), value), "{key}");
    }
    let changed = std::fs::read_to_string(&path).unwrap();
    assert!(changed.contains("// Ours."), "{changed}");
    // A text of digits is a number only where the config has one.
    assert!(changed.contains(r#""tools_limit": 20"#), "{changed}");
    assert!(changed.contains(r#""api_key": "12345678901234567890123456789012""#), "{changed}");
    for (command, code, words) in [
        (&["set", "tools_limit", "many"][..], 5, "expected a whole number"),
        (&["set", "tool_limit", "5"], 1, "unknown key 'tool_limit' (did you mean 'tools_limit'?)"),
        (&["set", "mcpServers.a.b.comand", "x"], 1, "unknown key 'mcpServers.a.b.comand'"),
        (&["set", "mcpServers.ab.capabilities.x.approval", "required"], 1, "did you mean a.b?"),
        (&["set", "policy.files", r#"["none.cedar"]"#], 1, "none.cedar"),
        (&["get", "tool_limit"], 1, "did you mean 'tools_limit'?"),
        (&["get", "keepalive"], 0, "does not set it: this is the default"),
        (&["get", "mcpServers.none"], 1, "does not set 'mcpServers.none'"),
        (&["unset", "lisen"], 1, "did you mean 'listen'?"),
        (&["set", "keepalive", "30"], 5, "keepalive: "),
        (
            &["set", "output_validation", "strict"],
            5,
            "set one of its keys, like 'output_validation.",
        ),
    ] {
        let output = run(&path, &[&["config"], command].concat());
        assert_eq!(output.code, Some(code), "{command:?}: {}", output.stderr);
        assert!(output.stderr.contains(words), "{command:?}: {}", output.stderr);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), changed);
    for (key, words) in [("tools_limit", "Removed 'tools_limit'"), ("tools_limit", "does not set")]
    {
        let unset = run(&path, &["config", "unset", key]);
        assert_eq!(unset.code, Some(0), "{}", unset.stderr);
        assert!(unset.stdout.contains(words), "{}", unset.stdout);
    }
    assert!(!std::fs::read_to_string(&path).unwrap().contains("tools_limit"));
}

#[test]
fn check_reports_all_errors_at_once_with_place_and_allowed_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let text = r#"{
  "data_dir": "/dev/null/data",
  "tools_limit": 0,
  "mcpServers": {
    "neither": {},
    "both": {"command": "sh", "url": "http://127.0.0.1:9/mcp"},
    "gone": {"command": "no-such-program-here"},
    "folder": {"command": "sh", "cwd": "/no/such/folder"},
    "url": {"url": "127.0.0.1:9/mcp"},
    "unset": {"command": "sh", "env": {"TOKEN": "${env:E2E_NO_SUCH_VARIABLE}"}},
    "input": {"url": "http://h/", "headers": {"Key": "${input:key}"}},
    "off": {"command": "no-such-program-here", "disabled": true},
    "fine": {"command": "sh"},
  },
}"#;
    let expected = [
        ("error", 2, 15, "data_dir: /dev/null is not a directory"),
        ("error", 3, 18, "tools_limit: must be 1 to 100, is 0"),
        ("error", 5, 16, "mcpServers.neither: neither command nor url is given: write"),
        ("error", 6, 13, "mcpServers.both: both command and url are given"),
        ("error", 7, 25, "mcpServers.gone.command: no-such-program-here is not found on PATH: "),
        (
            "error",
            8,
            40,
            "mcpServers.folder.cwd: /no/such/folder: does not exist: name an existing folder",
        ),
        ("error", 9, 20, "mcpServers.url.url: url cannot be read"),
        ("error", 10, 49, "mcpServers.unset.env.TOKEN: environment variable E2E_NO_SUCH_VARIABLE"),
        ("error", 11, 54, "mcpServers.input.headers.Key: holds ${input:key}"),
        ("warning", 12, 24, "mcpServers.off.command: no-such-program-here is not found on PATH"),
    ];
    write_private(&path, text);
    let output = run(&path, &["config", "check"]);
    assert_eq!((output.code, &*output.stdout), (Some(5), ""), "{}", output.stderr);
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{}", output.stderr);
    for (line, (severity, row, column, problem)) in lines.iter().zip(expected) {
        let path = path.display();
        let start = format!("{severity}: {path}:{row}:{column}: {problem}");
        assert!(line.starts_with(&start), "{line}\n{start}");
    }
    let output = run(&path, &["config", "check", "--json"]);
    let error: Value = serde_json::from_str(&output.stderr).unwrap();
    assert_eq!((output.code, &error["exit_code"]), (Some(5), &json!(5)));
    let problems = error["problems"].as_array().unwrap();
    assert_eq!(problems.len(), expected.len(), "{error}");
    for (problem, (severity, row, column, text)) in problems.iter().zip(expected) {
        assert_eq!((&problem["severity"], &problem["line"]), (&json!(severity), &json!(row)));
        assert_eq!(problem["column"], column);
        assert!(problem["problem"].as_str().unwrap().starts_with(text), "{problem}");
    }
    assert!(!Path::new("/no/such").exists() && std::fs::read_to_string(&path).unwrap() == text);
}

#[test]
fn check_succeeds_if_there_are_only_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let servers = json!({"s": {"command": "sh", "timeout": 60, "disabled": true},
        "gone": {"command": "no-such-program-here", "enabled": false}});
    let path = configure(json!({"mcpServers": servers}), folder.path());
    let output = run(&path, &["config", "check"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(output.stdout.matches("warning  ").count(), 2, "{}", output.stdout);
    assert!(output.stdout.contains("call_timeout"), "{}", output.stdout);
}

#[test]
fn unwritable_data_dir_is_reported_with_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let path = configure(json!({}), folder.path());
    let output = run(&path, &["-d", "/dev/null/x", "config", "check"]);
    assert_eq!(output.code, Some(5), "{}", output.stderr);
    assert_eq!(output.stderr, "error: --data-dir: /dev/null is not a directory: choose another\n");
}

#[test]
fn vs_code_form_runs_and_a_near_miss_of_mcp_servers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut entry = stub_stdio(&[]);
    entry["type"] = json!("stdio");
    let path = configure(json!({"inputs": [], "servers": {"stub": entry}}), folder.path());
    let output = run(&path, &["call", "tool-read", "stub:read_item"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    for key in ["mcpServer", "mcp_servers", "McpServers"] {
        let text = format!("{{\n \"{key}\": {{\"s\": {{\"command\": \"sh\"}}}}}}");
        refused(&text, &[":2:2", &format!("{key}: "), "'mcpServers'"]);
    }
}

#[test]
fn wrong_type_is_reported_with_the_path_of_its_key() {
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
    refused(r#"{"mcpServers": {"s": {"command": "sh", "args": "x"}}}"#, &["mcpServers.s.args"]);
    refused(
        r#"{"mcpServers": {"s": {"command": "sh", "call_timeout": "soon"}}}"#,
        &["mcpServers.s.call_timeout"],
    );
    refused(r#"{"api_key": "short"}"#, &["api_key", "32"]);
    refused(r#"{"logging": {"level": "chatty"}}"#, &["logging.level"]);
}

#[test]
fn secret_in_the_wrong_place_is_not_repeated_by_any_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    write_private(&path, r#"{"mcpServers": {"s": {"command": "sh", "env": "TOKEN=s3cret-abc"}}}"#);
    for command in [
        &["serve"][..],
        &["stdio"],
        &["config", "check"],
        &["config", "check", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["status"],
        &["upstream", "list"],
    ] {
        let output = run(&path, command);
        let message = format!("{}{}", output.stdout, output.stderr);
        let problem = "mcpServers.s.env: invalid type: a string, expected an object";
        assert!(message.contains(problem) && !message.contains("s3cret"), "{command:?}: {message}");
    }
}

#[test]
fn config_is_read_from_a_pipe_whose_writer_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, data) = (folder.path().join("pipe"), folder.path().join("data"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (text, code) in [(r#"{"tools_limit": 7}"#, 0), (r#"{"tools_limit": 0}"#, 5)] {
        let output = std::thread::scope(|scope| {
            scope.spawn(|| std::fs::write(&pipe, text).unwrap());
            run(&pipe, &["config", "check", "-d", data.to_str().unwrap()])
        });
        assert_eq!(output.code, Some(code), "{}", output.stderr);
    }
}

#[test]
fn invalid_or_duplicate_names_are_reported() {
    refused(r#"{"mcpServers": {"a:b": {"command": "sh"}}}"#, &["a:b", "':'"]);
    refused(
        r#"{"mcpServers": {"s": {"command": "sh"}, "s": {"command": "sh"}}}"#,
        &["duplicate server name 's'"],
    );
    refused(
        r#"{"mcpServers": {"s": {"command": "sh"}, "\u0073": {"command": "sh"}}}"#,
        &["duplicate server name 's'"],
    );
    refused(
        r#"{"mcpServers": [{"name": "s", "command": "sh"}, {"name": "s", "command": "sh"}]}"#,
        &["duplicate server name 's'"],
    );
    refused(r#"{"mcpServers": [{"command": "sh"}]}"#, &["mcpServers[0]", "name"]);
    refused(r#"{"listen": "127.0.0.1:0", "listen": "127.0.0.1:1"}"#, &["listen"]);
}

// NET-1
#[test]
fn listen_address_reachable_by_others_requires_auth() {
    refused(r#"{"listen": "0.0.0.0:0"}"#, &["listen", "require_mcp_auth"]);
    refused(r#"{"listen": ":0"}"#, &["listen", "require_mcp_auth"]);
}

#[test]
fn invalid_entries_of_allowed_hosts_and_origins_are_reported() {
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
fn unreadable_file_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["serve"]);
    assert_eq!(output.code, Some(5), "{}", output.stderr);
    assert!(output.stderr.contains(folder.path().to_str().unwrap()), "{}", output.stderr);
}

#[test]
fn missing_file_means_the_defaults() {
    let home = tempfile::tempdir().unwrap();
    let mut command = mcpproxy();
    let output =
        Output::of(command.env("HOME", home.path()).args(["config", "check", "-o", "json"]));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let report = output.json();
    assert_eq!((&report["exists"], &report["listen"]), (&json!(false), &json!("127.0.0.1:8080")));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "the check creates no file");
}

#[test]
fn cfg_1_named_file_that_is_missing_is_an_error_of_every_command_but_init() {
    let folder = tempfile::tempdir().unwrap();
    let made = configure(json!({}), folder.path());
    let path = folder.path().join("conf/config.json");
    let mistyped = folder.path().join("confg.json");
    for command in [
        &["serve"][..],
        &["stdio"],
        &["status"],
        &["doctor"],
        &["config", "check"],
        &["tools", "list"],
        &["upstream", "add", "s", "http://127.0.0.1:9/"],
    ] {
        let output = run(&path, command);
        assert_eq!(output.code, Some(5), "{command:?}: {}", output.stderr);
        assert!(output.stderr.contains("does not exist"), "{command:?}: {}", output.stderr);
        let output = run(&mistyped, command);
        let meant = format!("did you mean {}?", made.display());
        assert!(output.stderr.contains(&meant), "{command:?}: {}", output.stderr);
    }
    assert!(!mistyped.exists() && !folder.path().join("conf").exists(), "nothing is created");
    // A proxy that runs with another config in the same data folder is not reported as the proxy of this config.
    let proxy = Proxy::start(json!({}));
    let mut status = mcpproxy();
    status.arg("-c").arg(&mistyped).arg("status");
    status.env("MCPPROXY_DATA_DIR", proxy.folder.path().join("data"));
    let status = Output::of(&mut status);
    assert_eq!((status.code, &*status.stdout), (Some(5), ""), "{}", status.stderr);
    assert_eq!(run(&path, &["init"]).code, Some(0));
    assert_eq!(run(&path, &["config", "check"]).code, Some(0));
}

// CFG-2
#[test]
fn unknown_keys_are_warned_about_with_the_nearest_known_key() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "listenn": "127.0.0.1:1",
        "output_validation": {"moed": "strict"},
        "mcpServers": {"s": {"command": "sh", "comand": "y"}},
    });
    let path = configure(config, folder.path());
    let output = run(&path, &["config", "check"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    for (key, nearest) in [
        ("listenn", "listen"),
        ("output_validation.moed", "mode"),
        ("mcpServers.s.comand", "command"),
    ] {
        let is_reported = output.stdout.lines().any(|line| {
            line.contains(&format!("'{key}'")) && line.contains(&format!("'{nearest}'"))
        });
        assert!(is_reported, "{key}: {}", output.stdout);
    }
    assert!(output.stdout.contains("ok, with warnings"), "{}", output.stdout);
}

#[test]
fn file_readable_by_others_is_warned_about() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = configure(json!({}), folder.path());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = run(&path, &["config", "check"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stdout.contains("chmod 600"), "{}", output.stdout);
}

// CFG-1
#[test]
fn flag_overrides_environment_overrides_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = configure(json!({"listen": "127.0.0.1:1111"}), folder.path());
    let check = |env: &[(&str, &str)], flags: &[&str]| -> Value {
        let mut command = mcpproxy();
        command.envs(env.iter().copied()).args(flags).args(["config", "check", "--json"]);
        Output::of(&mut command).json()
    };
    let file = path.to_str().unwrap();
    let [of_env, of_flag] = ["env", "flag"].map(|name| folder.path().join(name));
    let [of_env, of_flag] = [&of_env, &of_flag].map(|path| path.to_str().unwrap());
    assert_eq!(check(&[], &["-c", file])["listen"], "127.0.0.1:1111");
    let env = [
        ("MCPPROXY_CONFIG", file),
        ("MCPPROXY_LISTEN", "127.0.0.1:2222"),
        ("MCPPROXY_DATA_DIR", of_env),
    ];
    let report = check(&env, &[]);
    assert_eq!(
        (&report["listen"], &report["data_dir"]),
        (&json!("127.0.0.1:2222"), &json!(of_env))
    );
    assert_eq!(check(&env, &["-d", of_flag])["data_dir"], of_flag);
}

#[test]
fn server_with_an_unset_variable_fails_alone() {
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
fn error_with_json_output_is_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    write_private(&path, &json!({"api_key": API_KEY, "tools_limit": 0}).to_string());
    let output = run(&path, &["config", "check", "-o", "json"]);
    assert_eq!(output.code, Some(5));
    let error: Value = serde_json::from_str(&output.stderr).unwrap();
    assert_eq!((&error["success"], &error["exit_code"]), (&json!(false), &json!(5)));
    assert!(error["error"].as_str().unwrap().contains("tools_limit"), "{error}");
}

#[test]
fn setting_of_a_tool_that_its_server_lacks_is_a_warning_once_the_tools_are_known() {
    let server = stub_stdio(&[]);
    let with = |server: &Value, capabilities: Value| {
        let mut server = server.clone();
        server["capabilities"] = capabilities;
        json!({"s": server})
    };
    let proxy = Proxy::start(with(&server, json!({"delete_item": {"approval": "required"}})));
    let check = || proxy.cli(&["config", "check"]).stdout;
    assert!(check().ends_with("ok\n"), "{}", check());
    let mut config: Value = serde_json::from_str(
        &std::fs::read_to_string(proxy.folder.path().join("config.json")).unwrap(),
    )
    .unwrap();
    config["mcpServers"] =
        with(&server, json!({"delete_itm": {"approval": "required"}, "delete_*": {}}));
    config["limits"] =
        json!({"tools": {"s:nothing_like_it": {"concurrent": 1}, "unknown:x": {"concurrent": 1}}});
    std::fs::write(proxy.folder.path().join("config.json"), config.to_string()).unwrap();
    let checked = check();
    for warning in [
        "mcpServers.s.capabilities.delete_itm: server 's' has no tool 'delete_itm' (did you mean 'delete_item'?), so \
         this setting has no effect",
        "limits.tools.s:nothing_like_it: server 's' has no tool 'nothing_like_it', so",
        "limits.tools.unknown:x: there is no tool 'unknown:x' at present, so",
    ] {
        assert!(checked.contains(warning), "{warning}: {checked}");
    }
    assert!(!checked.contains("delete_*"), "{checked}");
    let doctor = proxy.cli(&["doctor"]).stdout;
    assert!(doctor.contains("'delete_itm' (did you mean"), "{doctor}");
}
