//! Servers managed from the command line: edits of the config file preserve its other content, servers are restarted,
//! and their stderr is kept.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::clients::done;
use crate::harness::{
    API_KEY, HttpStub, Output, Process, Proxy, children_of, error_text, free_port, mcpproxy, stub,
    stub_stdio, until, write_private,
};

/// A config with comments, in a folder of its own.
fn config(servers: &str) -> (tempfile::TempDir, PathBuf, String) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let text = format!(
        "// mine\n{{\n\t\"listen\": \"127.0.0.1:0\",   // any\n\t\"data_dir\": {data:?},\n\t\
         \"api_key\" : \"{API_KEY}\",\n\n\t/* all */ \"mcpServers\": {servers}, // these\n}}\n"
    );
    let file = folder.path().join("config.json");
    write_private(&file, &text);
    (folder, file, text)
}

fn command(file: &Path, args: &[&str]) -> Command {
    let mut command = mcpproxy();
    command.env("MCPPROXY_CONFIG", file).args(args);
    command
}

fn run(file: &Path, args: &[&str]) -> Output {
    Output::of(&mut command(file, args))
}

#[test]
fn server_is_added_tried_and_removed_without_a_trace() {
    for servers in ["{\n\t\t\"a\": {\"url\": \"http://127.0.0.1:9/\"} // first\n\t}", "[]", "{}"] {
        let (_folder, file, text) = config(servers);
        let program = stub();
        let args =
            ["upstream", "add", "s", "--env", "A=b=c", "--", program.to_str().unwrap(), "stdio"];
        let printed = run(&file, &args);
        let printed = done(&printed);
        assert!(printed.contains("Added 's'") && printed.contains(" tools listed in"), "{printed}");
        let after = fs::read_to_string(&file).unwrap();
        for line in
            text.lines().filter(|line| !line.contains("mcpServers") && !line.contains("first"))
        {
            assert!(after.contains(line), "{line:?} is not in {after}");
        }
        let shown = run(&file, &["config", "check", "--json"]).json();
        let names: Vec<_> =
            shown["servers"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
        assert!(names.contains(&&json!("s")), "{shown}");
        done(&run(&file, &["upstream", "remove", "s"]));
        let back = fs::read_to_string(&file).unwrap();
        // The edit that added the server put line breaks into the empty list, which remain.
        let plain = |text: &str| {
            text.split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
                .replace("{ }", "{}")
                .replace("[ ]", "[]")
        };
        assert_eq!(plain(&back), plain(&text));
        if servers.len() > 2 {
            assert_eq!(back, text, "byte for byte");
        }
    }
}

#[test]
fn config_is_unchanged_if_a_server_cannot_be_added_and_the_next_step_is_named() {
    let (_folder, file, text) = config("{\"a\": {\"url\": \"http://127.0.0.1:9/\"}}");
    for (args, code, words) in [
        (&["add", "a", "--url", "http://127.0.0.1:9/"][..], 1, "pass --replace to replace it"),
        (&["add", "a", "--", "no-such-program-anywhere"], 1, "server 'a' already exists"),
        (&["add", "a", "--replace", "--", "no-such-program-anywhere"], 1, "is not found on PATH"),
        (&["add", "b", "h.example/mcp"], 1, "for a URL write https://h.example/mcp"),
        (&["add", "b", "localhost:3000"], 1, "for a URL write http://localhost:3000"),
        (&["add", "a:b", "--url", "http://127.0.0.1:9/"], 2, "letters, digits"),
        (&["add", "../x", "--url", "http://127.0.0.1:9/"], 2, "letters, digits"),
        (&["add", "x\u{1b}[2J", "--url", "http://127.0.0.1:9/"], 2, "letters, digits"),
        (&["add", "b", "--", "no-such-program-anywhere"], 1, "is not found on PATH"),
        (&["add", "b", "--url", "nonsense"], 1, "url"),
        (&["add", "b"], 2, "mcpproxy upstream add b -- COMMAND"),
        (&["add", "b"], 2, "mcpproxy upstream add b URL"),
        (&["add", "b", "--env", "A", "--", "sh"], 2, "NAME=VALUE"),
        (&["add", "b", "--header", "A: b", "--", "sh"], 2, "--header"),
        (&["remove", "b"], 1, "the config has a"),
        (&["enable", "b"], 1, "the config has a"),
        (&["logs", "b"], 1, "the config has a"),
        (&["restart", "a"], 3, "mcpproxy serve"),
    ] {
        let output = run(&file, &[&["upstream"], args].concat());
        assert_eq!(output.code, Some(code), "{args:?}: {} {}", output.stdout, output.stderr);
        assert!(output.stderr.contains(words), "{args:?}: {}", output.stderr);
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "{args:?}");
    }
    fs::write(&file, "{\"mcpServers\": {").unwrap();
    let output =
        run(&file, &["upstream", "add", "b", "--no-check", "--url", "http://127.0.0.1:9/"]);
    assert_eq!(output.code, Some(5), "{}", output.stderr);
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"mcpServers\": {");
}

#[test]
fn server_that_does_not_work_is_added_and_its_fault_reported() {
    let (_folder, file, _) = config("{}");
    let output = run(
        &file,
        &["upstream", "add", "s", "--json", "--", "sh", "-c", "echo broken >&2; exit 3"],
    );
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    assert!(output.stderr.contains("was added, but is not usable"), "{}", output.stderr);
    for next in ["`mcpproxy upstream add --replace s …`", "`mcpproxy upstream remove s`"] {
        assert!(output.stderr.contains(next), "{}", output.stderr);
    }
    let answer = output.json();
    assert_eq!(answer["check"]["state"], "failed", "{answer}");
    assert!(answer["check"]["reason"].as_str().unwrap().contains("broken"), "{answer}");
    assert_eq!(answer["proxy"]["state"], "not_running");
    let logs = run(&file, &["upstream", "logs", "s"]);
    assert!(done(&logs).contains("broken"), "{}", logs.stdout);
    let program = stub();
    let args = ["upstream", "add", "--replace", "s", "--", program.to_str().unwrap(), "stdio"];
    let replaced = run(&file, &args);
    let replaced = done(&replaced);
    assert!(replaced.contains("Replaced 's'") && replaced.contains(" tools listed"), "{replaced}");
}

#[test]
fn server_is_switched_off_and_on() {
    let (_folder, file, text) = config("{\"a\": {\"url\": \"http://127.0.0.1:9/\"}}");
    let enabled = || {
        let shown = run(&file, &["config", "check", "--json"]).json();
        shown["servers"][0]["enabled"].as_bool().unwrap()
    };
    done(&run(&file, &["upstream", "disable", "a"]));
    assert!(!enabled());
    let again = run(&file, &["upstream", "disable", "a"]);
    assert!(done(&again).contains("already"), "{}", again.stdout);
    done(&run(&file, &["upstream", "enable", "a"]));
    assert!(enabled());
    let added = ", \"enabled\": true";
    assert_eq!(fs::read_to_string(&file).unwrap().replace(added, ""), text);
}

// CFG-4
#[test]
fn concurrent_edits_by_several_processes_lose_no_change() {
    let (_folder, file, _) = config("{}");
    let names: Vec<String> = (0..8).map(|number| format!("s{number}")).collect();
    let add = |name: &String| {
        let args = ["upstream", "add", name, "--no-check", "--url", "http://127.0.0.1:9/"];
        let mut command = command(&file, &args);
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
    };
    let mut running: Vec<Process> = names.iter().map(add).collect();
    for process in &mut running {
        assert_eq!(process.wait(), Some(0));
    }
    let shown = run(&file, &["config", "check", "--json"]).json();
    let there: Vec<_> =
        shown["servers"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
    assert_eq!(there, names);
    let folder = fs::read_dir(file.parent().unwrap()).unwrap().flatten();
    let left: Vec<_> = folder
        .map(|it| it.file_name())
        .filter(|it| it.to_string_lossy().contains(".new"))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn edit_keeps_links_and_permissions() {
    let (folder, file, _) = config("{}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let link = folder.path().join("link.json");
    symlink("config.json", &link).unwrap();
    done(&run(&link, &["upstream", "add", "a", "--no-check", "--url", "http://127.0.0.1:9/"]));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(fs::read_to_string(&file).unwrap().contains("\"a\": {"));
}

#[test]
fn running_proxy_is_notified_of_a_change() {
    let proxy = Proxy::start(json!({}));
    let http = HttpStub::start(&[]);
    let url = format!("http://127.0.0.1:{}/mcp", http.port);
    let output = proxy.cli(&["upstream", "add", "s", "--url", &url, "--json"]);
    done(&output);
    let answer = output.json();
    assert_eq!(answer["proxy"]["state"], "in_force", "{answer}");
    assert_eq!(answer["check"]["state"], "connected", "{answer}");
    assert!(answer["check"]["tools"].as_u64().unwrap() > 0, "{answer}");
}

#[test]
fn restart_ends_the_process_and_starts_another() {
    let http = HttpStub::start(&[]);
    let proxy = Proxy::start(json!({
        "s": stub_stdio(&[]), "h": http.entry(), "off": {"command": "x", "enabled": false},
        "bad": {}, "absent": {"command": "/nonexistent/server"},
    }));
    let pid = proxy.process.0.id();
    let before = children_of(pid);
    assert_eq!(before.len(), 1);
    let output = proxy.cli(&["upstream", "restart", "s"]);
    assert!(done(&output).contains("tools"), "{}", output.stdout);
    let after = until("there is one process again", || {
        Some(children_of(pid)).filter(|children| children.len() == 1 && *children != before)
    });
    assert_ne!(before, after);
    let result = proxy.client().call("read", "s:read_item", json!({}));
    assert_eq!(result["structuredContent"]["value"], 7, "{result}");
    done(&proxy.cli(&["upstream", "restart", "h"]));
    let absent = proxy.cli(&["upstream", "restart", "absent", "--json"]);
    assert_eq!(absent.code, Some(1), "{} {}", absent.stdout, absent.stderr);
    assert_eq!(absent.json()["check"]["state"], "failed", "{}", absent.stdout);
    assert!(absent.stderr.contains("mcpproxy upstream logs absent"), "{}", absent.stderr);
    let post = |path: &str| proxy.request("POST", path, &[("X-API-Key", API_KEY)], b"");
    for (name, status, words) in
        [("off", 409, "disabled"), ("bad", 409, "neither command"), ("none", 404, "none")]
    {
        let response = post(&format!("/api/v1/servers/{name}/restart"));
        assert_eq!(response.status, status, "{}", response.text());
        assert!(response.text().contains(words), "{}", response.text());
    }
    assert_eq!(proxy.get("/api/v1/servers/s/restart").status, 405);
}

#[test]
fn restart_after_a_failure_reports_the_outcome_of_a_new_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("server");
    let proxy = Proxy::start(json!({"late": {"command": program}}));
    until("it fails", || (proxy.api("servers")["servers"][0]["state"] == "failed").then_some(()));
    let failed = proxy.cli(&["upstream", "restart", "late"]);
    assert_eq!(failed.code, Some(1), "{}", failed.stdout);
    let stub = stub_stdio(&[])["command"].as_str().unwrap().to_owned();
    std::fs::write(&program, format!("#!/bin/sh\nexec '{stub}' stdio\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let repaired = proxy.cli(&["upstream", "restart", "late"]);
    assert!(done(&repaired).contains("tools"), "{}", repaired.stdout);
}

/// The stub with a secret in its environment. Before it, the shell runs the commands `words`, which write to stderr.
fn talkative(words: &str) -> Value {
    let script = format!("{words}; exec \"$0\" stdio");
    json!({"command": "sh", "args": ["-c", script, stub()], "env": {"API_TOKEN": "hunter2-hunter2"}})
}

#[test]
fn stderr_of_a_server_is_kept_without_secrets() {
    let words = "echo \"token is $API_TOKEN\" >&2; printf 'a\\033[31mred\\n' >&2; echo last >&2";
    let proxy = Proxy::start(json!({"s": talkative(words), "h": {"url": "http://127.0.0.1:9/"}}));
    let lines = |data: &Value| -> Vec<String> {
        let lines = data["lines"].as_array().unwrap().iter();
        lines.map(|it| it["line"].as_str().unwrap().to_owned()).collect()
    };
    let data = until("the lines are kept", || {
        Some(proxy.api("servers/s/logs")).filter(|data| lines(data).len() >= 3)
    });
    assert_eq!(lines(&data)[..3], ["token is [redacted]", "a[31mred", "last"]);
    let one = proxy.api("servers/s/logs?limit=1");
    assert_eq!(lines(&one), ["last"]);
    let cursor = one["next_cursor"].as_str().unwrap();
    assert_eq!(lines(&proxy.api(&format!("servers/s/logs?cursor={cursor}"))), [""; 0]);
    // A server with a URL has no stderr; its log contains its states.
    assert!(lines(&proxy.api("servers/h/logs"))[0].starts_with("failed: "));
    for (path, status) in [
        ("servers/none/logs", 404),
        ("servers/s/logs?limit=0", 400),
        ("servers/s/logs?limit=1001", 400),
        ("servers/s/logs?cursor=x", 400),
        ("servers/s/logs?x=1", 400),
    ] {
        assert_eq!(proxy.get(&format!("/api/v1/{path}")).status, status, "{path}");
    }
    let output = proxy.cli(&["upstream", "logs", "s", "-n", "2"]);
    assert!(
        done(&output).contains("last") && !output.stdout.contains("token is"),
        "{}",
        output.stdout
    );
    for entry in fs::read_dir(proxy.folder.path().join("data/stderr")).unwrap().flatten() {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!fs::read_to_string(entry.path()).unwrap().contains("hunter2"));
    }
    let folder = proxy.end();
    let file = folder.path().join("config.json");
    let output = run(&file, &["upstream", "logs", "s", "--json"]);
    assert_eq!(lines(&output.json())[..3], ["token is [redacted]", "a[31mred", "last"]);
}

#[test]
fn log_is_followed() {
    let proxy = Proxy::start(json!({"s": talkative("echo hello >&2")}));
    let mut command = proxy.command(&["upstream", "logs", "s", "-f"]);
    let mut follower = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut printed = BufReader::new(follower.0.stdout.take().unwrap()).lines();
    assert!(printed.next().unwrap().unwrap().ends_with("  hello"));
    done(&proxy.cli(&["upstream", "restart", "s"]));
    assert!(printed.by_ref().any(|line| line.unwrap().ends_with("  hello")));
}

#[test]
fn log_that_cannot_be_written_does_not_fail_calls() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    fs::write(folder.path().join("data/stderr"), "in the way").unwrap();
    let servers = json!({"mcpServers": {"s": talkative("echo hello >&2")}});
    let proxy = Proxy::unready(servers, folder).ready();
    let result = proxy.client().call("read", "s:read_item", json!({}));
    assert_eq!(result["structuredContent"]["value"], 7, "{result}");
    proxy.end();
}

// CLI-3
#[test]
fn status_is_one_screen_and_exits_3_without_a_proxy() {
    let (_folder, file, _) =
        config("{\"a\": {\"url\": \"http://127.0.0.1:9/\", \"enabled\": false}}");
    let output = run(&file, &["status"]);
    assert_eq!(output.code, Some(3), "{}", output.stderr);
    assert!(output.stdout.contains("not running") && output.stdout.contains("disabled"));
    let proxy =
        Proxy::start(json!({"s": stub_stdio(&[]), "gone": {"command": "/nowhere/to/be/found"}}));
    let mut client = proxy.client();
    client.call("read", "s:read_item", json!({}));
    client.call("read", "s:error", json!({}));
    let shown = until("the calls are counted", || {
        let shown = proxy.cli(&["status", "--json"]).json();
        (shown["last_hour"]["calls"] == 2).then_some(shown)
    });
    assert_eq!((&shown["running"], &shown["last_hour"]["errors"]), (&json!(true), &json!(1)));
    assert_eq!(shown["last_hour"]["error_rate"], 0.5);
    let output = proxy.cli(&["status"]);
    let printed = done(&output);
    for words in [
        "MCP at http://127.0.0.1:",
        "2 (1 connected)",
        "cannot be started",
        "50.0 % errors",
        "0 waiting",
        "warning",
    ] {
        assert!(printed.contains(words), "no '{words}' in {printed}");
    }
    assert!(printed.lines().count() < 24, "{printed}");
}

/// The findings of a check.
fn found(doctor: &Value, check: &str) -> Vec<(String, String, String)> {
    let word = |it: &Value, key: &str| it[key].as_str().unwrap().to_owned();
    let findings = doctor["findings"].as_array().unwrap().iter().filter(|it| it["check"] == check);
    findings.map(|it| (word(it, "outcome"), word(it, "text"), word(it, "mend"))).collect()
}

// CLI-3
#[test]
fn doctor_reports_faults_and_their_fixes() {
    let good = stub_stdio(&["--only", "read_item,delete_item"]);
    let script = "for n in 1 2 3 4; do echo line $n >&2; done; echo 'Error: no luck' >&2; echo Node.js v20 >&2; exit 1";
    let servers = json!({"good": good, "bad": {"command": "sh", "args": ["-c", script]}});
    let (folder, file, _) = config(&servers.to_string());
    let address = format!("127.0.0.1:{}", free_port());
    let taken = std::net::TcpListener::bind(&address).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("127.0.0.1:0", &address)).unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    fs::set_permissions(folder.path().join("data"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let output = run(&file, &["doctor", "-o", "json"]);
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    let doctor = output.json();
    assert_eq!((&doctor["ok"], &doctor["wrong"]), (&json!(false), &json!(4)), "{doctor}");
    let rights = found(&doctor, "rights");
    assert!(
        rights[0].2.starts_with("chmod 600 ") && rights[1].2.starts_with("chmod 700 "),
        "{rights:?}"
    );
    let port = found(&doctor, "port");
    assert!(
        port[0].1.contains("is in use by another program")
            && port[0].1.contains(&std::process::id().to_string()),
        "{port:?}"
    );
    let servers = found(&doctor, "server");
    assert!(
        servers[0].1.contains("Error: no luck (the process ended with exit status: ")
            && servers[0].2
                == "mcpproxy upstream logs bad, then: mcpproxy upstream add --replace bad …",
        "{servers:?}"
    );
    let lines: Vec<_> = doctor["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|it| it["lines"].as_array())
        .unwrap()
        .iter()
        .map(|it| it.as_str().unwrap().split_once(' ').unwrap().1)
        .collect();
    assert_eq!(lines, ["line 2", "line 3", "line 4", "Error: no luck", "Node.js v20"], "{doctor}");
    assert!(servers[1].0 == "ok" && servers[1].1.contains("tools"), "{servers:?}");
    for check in ["config", "clock", "log"] {
        assert!(found(&doctor, check).iter().all(|it| it.0 == "ok"), "{check}: {doctor}");
    }
    drop(taken);
    let fixed = run(&file, &["doctor", "--fix", "--json"]).json();
    assert!(found(&fixed, "rights").iter().all(|it| it.0 == "mended"), "{fixed}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    done(&run(&file, &["upstream", "remove", "bad"]));
    let well = run(&file, &["doctor"]);
    assert!(
        done(&well).lines().all(|line| line.starts_with("ok ") || line.contains(" disk ")),
        "{}",
        well.stdout
    );
}

#[test]
fn doctor_queries_a_running_proxy_and_starts_no_server_twice() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let before = children_of(proxy.process.0.id());
    let output = proxy.cli(&["doctor", "--json"]);
    done(&output);
    let doctor = output.json();
    assert!(found(&doctor, "port")[0].1.starts_with("mcpproxy is running on"), "{doctor}");
    assert!(found(&doctor, "server")[0].1.contains("tools"), "{doctor}");
    assert!(found(&doctor, "log")[0].1.contains("records, all intact"), "{doctor}");
    assert_eq!(children_of(proxy.process.0.id()), before);
}

#[test]
fn doctor_distinguishes_a_silent_proxy_from_another_program() {
    let listen = format!("127.0.0.1:{}", free_port());
    let proxy = Proxy::with(json!({"listen": listen, "mcpServers": {}}));
    proxy.process.signal("STOP");
    let output = proxy.cli(&["doctor", "--json"]);
    proxy.process.signal("CONT");
    let doctor = output.json();
    let port = &found(&doctor, "port")[0];
    let pid = proxy.process.0.id().to_string();
    assert_eq!(port.0, "wrong", "{doctor}");
    assert!(port.1.contains(&pid) && port.1.contains("does not respond"), "{doctor}");
    assert!(port.2.starts_with(&format!("kill -CONT {pid}")), "{doctor}");
    proxy.end();
}

#[test]
fn doctor_names_a_broken_config_and_a_damaged_log() {
    let (folder, file, _) = config("{\"a\": {\"command\": \"no-such-program-anywhere\"}}");
    let output = run(&file, &["doctor", "--json"]);
    assert_eq!(output.code, Some(1));
    let doctor = output.json();
    assert!(found(&doctor, "config")[0].1.contains("not found on PATH"), "{doctor}");
    assert_eq!(found(&doctor, "server")[0].0, "wrong", "{doctor}");
    fs::write(&file, "{").unwrap();
    let output = run(&file, &["doctor", "--json"]);
    assert_eq!(output.code, Some(1));
    let broken = found(&output.json(), "config");
    assert!(broken[0].1.contains(":1:"), "{}", output.stdout);
    assert_eq!(
        broken[0].2,
        format!("${{EDITOR:-vi}} {}", file.display()),
        "of the file that was named"
    );
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let output = run(&file, &["doctor", "--json"]);
    let broken = found(&output.json(), "config");
    assert!(broken[0].2.starts_with(&format!("mv {0} {0}.aside", file.display())), "{broken:?}");
    drop(folder);
}

#[test]
fn pending_restart_and_broken_config_are_reported_for_a_running_proxy() {
    let proxy = Proxy::with(json!({"mcpServers": {}}));
    let file = proxy.folder.path().join("config.json");
    let whole = fs::read_to_string(&file).unwrap();
    let mut config: Value = serde_json::from_str(&whole).unwrap();
    config["activity"]["queue_records"] = json!(77);
    fs::write(&file, config.to_string()).unwrap();
    until("it is reported", || {
        let shown = proxy.cli(&["status"]).stdout;
        shown
            .lines()
            .any(|line| line == "restart    needed for activity.queue_records")
            .then_some(())
    });
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let data = proxy.folder.path().join("data");
    let output = proxy.cli(&["--data-dir", data.to_str().unwrap(), "status"]);
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    assert!(output.stderr.contains("keeps its previous config"), "{}", output.stderr);
    assert!(output.stderr.contains("config.json:1:"), "{}", output.stderr);
    // The address of the proxy and the fault are known even if the rest of the file has the key.
    let printed = &output.stdout;
    assert!(printed.contains("running, MCP at http://127.0.0.1:"), "{printed}");
    assert!(printed.contains("warning    config: "), "{printed}");
}

#[test]
fn broken_config_blocks_neither_status_nor_health_check() {
    let proxy = Proxy::with(json!({"mcpServers": {"s": stub_stdio(&[])}}));
    let file = proxy.folder.path().join("config.json");
    let data = proxy.folder.path().join("data").display().to_string();
    let whole = fs::read_to_string(&file).unwrap();
    let alive = |args: &[&str]| {
        let args = [args, &["status", "--alive"]].concat();
        proxy.cli(&args)
    };
    assert_eq!(done(&alive(&[])).trim(), "alive");
    // The file is still JSON, so its key is known and the proxy can be queried.
    let mut config: Value = serde_json::from_str(&whole).unwrap();
    config["tools_limit"] = json!(0);
    fs::write(&file, config.to_string()).unwrap();
    let output = proxy.cli(&["--data-dir", &data, "status", "--json"]);
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    let answer = output.json();
    assert_eq!(
        (&answer["running"], &answer["servers"][0]["state"]),
        (&json!(true), &json!("connected"))
    );
    let warnings = answer["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|it| it.as_str().unwrap().contains("tools_limit")), "{answer}");
    assert_eq!(alive(&["--data-dir", &data]).code, Some(0));
    config["listen"] = json!("127.0.0.1:1");
    config["data_dir"] = json!(data);
    fs::write(&file, config.to_string()).unwrap();
    assert_eq!(alive(&[]).code, Some(0), "the file names the data folder with the address");
    // After a syntax error, the key and the data folder are still found.
    fs::write(&file, config.to_string().replacen(',', " ", 1)).unwrap();
    for args in [
        &["activity", "list"][..],
        &["approvals", "list"],
        &["tools", "list"],
        &["token", "list"],
        &["upstream", "list"],
    ] {
        let output = proxy.cli(args);
        assert_eq!(output.code, Some(0), "{args:?}: {}", output.stderr);
        let warns = ["`mcpproxy config check`", "keeps its previous config"];
        assert!(warns.iter().all(|it| output.stderr.contains(it)), "{args:?}: {}", output.stderr);
    }
    // The file is no longer JSON. The key is in the environment.
    fs::write(&file, "{").unwrap();
    let mut command = proxy.command(&["--data-dir", &data, "status"]);
    let output = Output::of(command.env("MCPPROXY_API_KEY", API_KEY));
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    assert!(output.stdout.contains("1 (1 connected)"), "{}", output.stdout);
    let alone = alive(&["--data-dir", &data]);
    assert_eq!((alone.code, &*alone.stderr), (Some(0), ""));
    let ended = proxy.end();
    let mut command = mcpproxy();
    command.arg("-c").arg(ended.path().join("config.json"));
    command.args(["--data-dir", &data, "status", "--alive"]);
    assert_eq!(Output::of(&mut command).code, Some(3));
    let args = ["--data-dir", &data, "status"];
    let output = Output::of(mcpproxy().arg("-c").arg(ended.path().join("config.json")).args(args));
    assert_eq!(output.code, Some(5), "no proxy runs: {}", output.stderr);
}

#[test]
fn doctor_checks_the_permissions_of_all_kept_files() {
    const KEPT: [&str; 9] = [
        "activity",
        "address",
        "catalog",
        "embeddings",
        "fleet",
        "oauth",
        "results",
        "stderr",
        "tokens.json",
    ];
    let (folder, file, _) = config("{}");
    let data = folder.path().join("data");
    let wide = fs::Permissions::from_mode(0o755);
    for name in KEPT.iter().chain(&["of-somebody-else"]) {
        fs::create_dir_all(data.join(name)).unwrap();
        fs::set_permissions(data.join(name), wide.clone()).unwrap();
    }
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
    let doctor = run(&file, &["doctor", "--json"]).json();
    let mut fixes: Vec<_> = found(&doctor, "rights").into_iter().map(|it| it.2).collect();
    fixes.sort();
    let expected = KEPT.map(|name| format!("chmod 700 {}", data.join(name).display()));
    assert_eq!(fixes, expected, "{doctor}");
}

#[test]
fn url_server_has_a_log_of_its_states_with_the_reasons() {
    let stub = HttpStub::start(&["--only", "read_item"]);
    let url = |port: u16| json!({"url": format!("http://127.0.0.1:{port}/mcp")});
    let proxy = Proxy::start(json!({"web": url(stub.port), "dead": url(free_port())}));
    for (name, begins) in [("web", "connected, tools: 1, MCP "), ("dead", "failed: ")] {
        until(&format!("{name} has a line"), || {
            let logs = proxy.cli(&["upstream", "logs", name, "--json"]).json();
            let lines = logs["lines"].as_array().unwrap();
            lines.iter().find(|it| it["line"].as_str().unwrap().starts_with(begins)).cloned()
        });
    }
}

#[test]
fn rul_9_removal_of_a_server_names_its_rules_and_the_next_start_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "@id(\"no\") forbid (principal, action, resource == Tool::\"gone:read_item\");\n\
                 forbid (principal, action, resource == Tool::\"kept:delete_item\");\n";
    fs::write(folder.path().join("rules.cedar"), rules).unwrap();
    let config = json!({"mcpServers": {"gone": stub_stdio(&[]), "kept": stub_stdio(&[])},
        "policy": {"files": ["rules.cedar"]}});
    let proxy = Proxy::unready(config, folder).ready();
    let faults = |proxy: &Proxy| {
        let faults = proxy.api("status")["faults"].as_array().unwrap().clone();
        faults.into_iter().find(|it| it["part"] == "rules")
    };
    assert_eq!(faults(&proxy), None);
    let removed = proxy.cli(&["upstream", "remove", "gone"]);
    let printed = done(&removed);
    assert!(printed.contains("The running mcpproxy has applied the change."), "{printed}");
    let reason = "Tool::\"gone:read_item\" can never be met: there is no such server";
    assert!(printed.contains(&format!("rules.cedar:1:56: {reason}")), "{printed}");
    assert!(!printed.contains("kept:"), "{printed}");
    let fault = until("the warning", || faults(&proxy));
    assert!(fault["cause"].as_str().unwrap().contains(reason), "{fault}");
    let folder = proxy.end();
    let file = folder.path().join("config.json");
    let status = run(&file, &["status", "--json"]);
    assert_eq!(status.code, Some(3), "{}", status.stderr);
    let warnings = status.json()["warnings"].to_string();
    assert!(warnings.contains("there is no such server"), "{warnings}");
    assert_ne!(status.json()["servers"][0]["tools"], 0, "{}", status.stdout);
    let listed = run(&file, &["tools", "list"]);
    assert!(done(&listed).contains("kept:read_item"), "{}", listed.stdout);
    let proxy = Proxy::from_file(&file, folder).ready();
    let refused = proxy.client().call("destructive", "kept:delete_item", json!({}));
    assert!(error_text(&refused).contains("is not allowed by rule"), "{refused}");
    // Other errors in the rules are reported by `status`, and prevent a start.
    let folder = proxy.end();
    fs::write(folder.path().join("rules.cedar"), "permit (principal action);").unwrap();
    let status = run(&file, &["status"]);
    assert!(status.stdout.contains("rules.cedar:1:"), "{}", status.stdout);
    assert_eq!(run(&file, &["serve"]).code, Some(5));
}
