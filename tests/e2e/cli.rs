//! Outcomes of the command line: stdout, stderr and the exit code.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Impostor, Output, Pipe, Process, Proxy, configure, free_port, mcpproxy, stub,
    stub_stdio,
};

fn proxy() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| Proxy::for_all(json!({"mcpServers": {"s": stub_stdio(&[])}})))
}

fn cli(args: &[&str]) -> Output {
    proxy().cli(args)
}

fn fails(output: &Output, code: i32, words: &[&str]) {
    assert_eq!(output.code, Some(code), "{} {}", output.stdout, output.stderr);
    for word in words {
        assert!(output.stderr.contains(word), "no '{word}' in: {}", output.stderr);
    }
    assert_eq!(output.stderr.trim_end().lines().count(), 1, "one line: {}", output.stderr);
}

#[test]
fn fr_026_to_028_three_call_commands_accept_both_spellings() {
    for (command, tool) in [
        ("tool-read", "s:read_item"),
        ("tool-write", "s:write_item"),
        ("tool-destructive", "s:delete_item"),
    ] {
        let named = format!("--tool-name={tool}");
        for args in [
            &["call", command, tool][..],
            &["call", command, &named],
            &["call", command, tool, "--args", "{}"],
            &["call", command, tool, "--json_args", "{}"],
            &["call", command, tool, "--json_args={}"],
        ] {
            let output = cli(args);
            assert_eq!(output.code, Some(0), "{args:?}: {}", output.stderr);
            assert!(output.stdout.contains("\"note\":\"fine\""), "{args:?}: {}", output.stdout);
        }
    }
    fails(
        &cli(&["call", "tool-read", "s:delete_item"]),
        1,
        &["Tool 's:delete_item' is marked destructive by server, use call_tool_destructive"],
    );
    fails(&cli(&["call", "tool-write", "s:delete_item"]), 1, &["call_tool_destructive"]);
}

#[test]
fn fr_029_fr_030_intent_is_filled_in_and_stored() {
    let output = cli(&[
        "call",
        "tool-write",
        "s:write_item",
        "--reason",
        "because it is so",
        "--sensitivity",
        "private",
    ]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let records = proxy().activity("tool=write_item&type=tool_call");
    let record = records.iter().find(|r| r["intent"]["reason"] == "because it is so").unwrap();
    assert_eq!(record["intent"]["operation_type"], "write");
    assert_eq!(record["intent"]["data_sensitivity"], "private");
    assert_eq!(record["source"], "cli");
    let bad = cli(&["call", "tool-read", "s:read_item", "--sensitivity", "secret"]);
    assert_eq!(bad.code, Some(2), "{}", bad.stderr);
    let words = "'secret' for '--sensitivity <WORD>'\n  [possible values: public, internal, private, unknown]";
    assert!(bad.stderr.contains(words), "{}", bad.stderr);
    let long = "x".repeat(1001);
    let bad = cli(&["call", "tool-read", "s:read_item", "--reason", &long]);
    fails(&bad, 1, &["intent.reason exceeds maximum length of 1000 characters"]);
}

// FR-026
#[test]
fn text_arguments_are_sent_with_the_types_of_the_input_schema() {
    let pairs = ["size=5", "behavior=7", "more=9"];
    let call = ["call", "tool-read", "s:echo", "--reason", "typed"];
    let output = cli(&[&["-o", "json"][..], &call, &pairs].concat());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let sent = json!({"size": 5, "behavior": "7", "more": "9"});
    assert_eq!(output.json()["structuredContent"], sent, "{}", output.stdout);
    let records = proxy().activity("tool=echo&type=tool_call");
    let record = records.iter().find(|it| it["intent"]["reason"] == "typed").unwrap();
    assert_eq!(record["arguments"], sent, "{record}");
    assert!(record["metadata"].get("original_arguments").is_none(), "{record}");
}

#[test]
fn arguments_from_line_stdin_and_file_keep_their_bytes() {
    let odd = r#"{ "b" : 1.50, "a":[1e2] }"#;
    let expected = format!("{{\"content\":[],\"structuredContent\":{odd}}}\n");
    let call = |args: &str| {
        proxy().command(&["-o", "json", "call", "tool-read", "s:echo", "--args", args])
    };
    assert_eq!(Output::of(&mut call(odd)).stdout, expected);
    assert_eq!(Output::given(&mut call("-"), odd).stdout, expected);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("args.json");
    std::fs::write(&file, odd).unwrap();
    assert_eq!(Output::of(&mut call(&format!("@{}", file.display()))).stdout, expected);
    for bad in ["[]", "7", "{", "{} {}", "@/nowhere/at/all"] {
        fails(&Output::of(&mut call(bad)), 2, &["--args"]);
    }
}

#[test]
fn error_of_a_tool_is_printed_and_exits_1() {
    let output = cli(&["call", "tool-read", "s:error"]);
    assert_eq!(output.code, Some(1));
    assert!(output.stdout.contains("no such item"), "{}", output.stdout);
    assert!(output.stderr.contains("isError"), "{}", output.stderr);
    let output = cli(&["-o", "json", "call", "tool-read", "s:error"]);
    assert_eq!(output.code, Some(1));
    assert_eq!(
        output.stdout,
        "{\"content\":[{\"type\":\"text\",\"text\":\"no such item\"}],\"isError\":true}\n"
    );
    let yaml = cli(&["-o", "yaml", "call", "tool-read", "s:read_item"]);
    assert!(yaml.stdout.contains("structuredContent:"), "{}", yaml.stdout);
    fails(&cli(&["call", "tool-read", "s:rpc_error"]), 1, &["the stub refuses"]);
    fails(&cli(&["call", "tool-read", "s:nothing"]), 1, &["s:nothing"]);
    fails(&cli(&["call", "tool-read", "nobody:x"]), 1, &["nobody"]);
    fails(&cli(&["call", "tool-read", "s:never", "--timeout", "200ms"]), 1, &["s:never", "200ms"]);
    // The recorded reason is the error text returned by the tool.
    let listed = cli(&["activity", "list", "--type", "tool_call", "--status", "error"]);
    assert!(listed.stdout.contains("no such item"), "{}", listed.stdout);
}

#[test]
fn tools_are_listed_searched_and_shown() {
    let list = cli(&["tools", "list"]);
    assert_eq!(list.code, Some(0), "{}", list.stderr);
    assert!(list.stdout.starts_with("TOOL"), "{}", list.stdout);
    let row = list.stdout.lines().find(|line| line.starts_with("s:delete_item ")).unwrap();
    assert!(row.contains("tool-destructive"), "{row}");
    let all = cli(&["tools", "list", "--server", "s", "--json"]).json();
    assert_eq!(all["tools"].as_array().unwrap().len() + 1, list.stdout.lines().count());
    fails(&cli(&["tools", "list", "--server", "nobody"]), 1, &["nobody"]);

    let found = cli(&["tools", "search", "item", "-n", "3", "-o", "json"]).json();
    assert_eq!(found["tools"].as_array().unwrap().len(), 3);
    let found = cli(&["tools", "search", "delete", "item", "-o", "json"]).json();
    assert_eq!(found["tools"][0]["name"], "s:delete_item");
    fails(&cli(&["tools", "search", "x", "-n", "0", "-o", "json"]), 2, &["0"]);

    let shown = cli(&["tools", "show", "s:delete_item"]);
    for word in ["mcpproxy call tool-destructive s:delete_item", "destructiveHint", "Output schema"]
    {
        assert!(shown.stdout.contains(word), "{word}: {}", shown.stdout);
    }
    fails(&cli(&["tools", "show", "s:nothing"]), 1, &["s:nothing"]);
}

#[test]
fn upstreams_are_listed() {
    let list = cli(&["upstream", "list"]);
    assert_eq!(list.code, Some(0), "{}", list.stderr);
    assert!(list.stdout.starts_with("NAME"), "{}", list.stdout);
    assert!(
        list.stdout.lines().any(|line| line.starts_with("s ") && line.contains("connected")),
        "{}",
        list.stdout
    );
    let servers = cli(&["upstream", "list", "--json"]).json();
    assert_eq!(servers["servers"][0]["state"], "connected");
}

#[test]
fn fr_034_to_037_activity_is_listed_and_shown() {
    let mut client = proxy().client();
    client.call("destructive", "s:delete_item", json!({}));
    client.call("read", "s:delete_item", json!({}));
    let session = client.session.clone();
    let list = |more: &[&str]| {
        let args = [&["activity", "list", "--session", &session][..], more].concat();
        cli(&args)
    };
    let table = list(&[]);
    assert_eq!(table.code, Some(0), "{}", table.stderr);
    let mut lines = table.stdout.lines();
    let header: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let columns = "ID TIME (UTC) TYPE SERVER TOOL INTENT STATUS DURATION PRINCIPAL REASON";
    assert_eq!(header.join(" "), columns);
    let rows: Vec<&str> = lines.collect();
    // The decision is shown in the row of its call.
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows[1].contains("destr") && rows[1].contains("success"), "{rows:?}");
    assert!(rows[0].contains("rejected") && rows[0].contains("marked destructive"), "{rows:?}");
    assert!(!table.stdout.contains('🗑'), "no icons without a terminal");

    assert_eq!(
        list(&["--status", "rejected", "--json"]).json()["activities"].as_array().unwrap().len(),
        1
    );
    assert_eq!(
        list(&["--type", "policy_decision", "--json"]).json()["activities"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        list(&["--intent-type", "destructive", "--json"]).json()["activities"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        list(&["--since", "1h", "-n", "2", "--json"]).json()["activities"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        list(&["--until", "1h", "--json"]).json()["activities"].as_array().unwrap().len(),
        0
    );
    fails(&list(&["--since", "yesterday"]), 2, &["--since", "yesterday"]);
    let unknown = ["'rea' for '--intent-type", "did you mean read? expected one of read, "];
    fails(&list(&["--intent-type", "rea", "--json"]), 2, &unknown);
    fails(&list(&["--tool", "s:", "--json"]), 2, &["'s:' for '--tool", "SERVER:TOOL"]);
    let unknown = ["'block' for '--status", "did you mean blocked? expected one of refused, "];
    fails(&list(&["--status", "block", "--json"]), 2, &unknown);
    let count = |more: &[&str]| {
        list(&[more, &["--json"][..]].concat()).json()["activities"].as_array().unwrap().len()
    };
    // The call, and not the decision about it, which is `blocked`.
    assert_eq!(count(&["--status", "refused"]), 1);
    assert_eq!(count(&["--status", "refused"]), count(&["--status", "rejected,blocked"]));
    assert_eq!(count(&["--status", "blocked", "--type", "policy_decision"]), 1);
    let calls = count(&["--tool", "delete_item", "--type", "tool_call"]);
    assert_eq!(count(&["--tool", "s:delete_item", "--type", "tool_call"]), calls);
    assert_eq!((calls, count(&["--tool", "t:delete_item"])), (2, 0));
    // A row has the status of its call: the refused one is not withheld, though the decision about it is `blocked`.
    assert_eq!(
        list(&["--status", "blocked"]).stderr,
        "No activity found. Filters combine; drop one to see more.\n"
    );
    assert_eq!(list(&["--status", "refused"]).stdout.lines().count(), 2, "header and call");
    let waiting = list(&["--status", "waiting"]);
    assert_eq!(waiting.code, Some(2), "{}", waiting.stdout);
    assert!(waiting.stderr.contains("`mcpproxy approvals list`"), "{}", waiting.stderr);

    let records = list(&["--json"]).json();
    let id = records["activities"][1]["id"].as_str().unwrap();
    let shown = cli(&["activity", "show", id]);
    for word in [id, "rejected", "delete_item", "read", "marked destructive by server"] {
        assert!(shown.stdout.contains(word), "{word}: {}", shown.stdout);
    }
    let json = cli(&["activity", "show", id, "--json"]).json();
    assert_eq!(json["activity"]["intent"]["operation_type"], "read");
    let yaml = cli(&["activity", "show", id, "-o", "yaml"]);
    assert!(yaml.stdout.contains("operation_type: read"), "{}", yaml.stdout);
    fails(&cli(&["activity", "show", "nonsense"]), 1, &["Activity not found: 'nonsense'"]);
    let unknown = "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2";
    fails(&cli(&["activity", "show", unknown]), 1, &[unknown, "`mcpproxy activity list`"]);
}

// CLI-1
#[test]
fn command_without_a_running_proxy_opens_the_config_itself_and_exits() {
    let folder = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let config = json!({"listen": listen, "mcpServers": {"s": stub_stdio(&[])}});
    let path = configure(config, folder.path());
    let run = |args: &[&str]| Output::of(mcpproxy().arg("-c").arg(&path).args(args));
    let output = run(&["call", "tool-destructive", "s:delete_item", "--reason", "alone"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stdout.contains("\"note\":\"fine\""), "{}", output.stdout);
    fails(&run(&["call", "tool-read", "s:delete_item"]), 1, &["marked destructive"]);
    let listed = run(&["activity", "list", "--type", "tool_call", "--json"]).json();
    let outcomes: Vec<(Value, Value)> = listed["activities"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| (record["status"].clone(), record["source"].clone()))
        .collect();
    assert_eq!(outcomes, [(json!("rejected"), json!("cli")), (json!("success"), json!("cli"))]);
    let servers = run(&["upstream", "list", "--json"]).json();
    let [server] = &servers["servers"].as_array().unwrap()[..] else { panic!("{servers}") };
    assert_eq!(server["state"], "not running");
    assert!(server["tools"].as_u64().unwrap() > 10, "{server}");
    assert!(run(&["tools", "list"]).stdout.contains("s:read_item"));
}

// CLI-1
#[test]
fn cli_1_call_without_a_running_proxy_waits_for_the_start_of_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let known = folder.path().join("known");
    // From its second start on, it takes longer than a call of a known tool waits for a server that is connecting.
    let script = "test -e $1 && sleep 11; touch $1; exec \"$0\" stdio";
    let slow = json!({"command": "sh", "args": ["-c", script, stub(), known]});
    let config =
        json!({"listen": format!("127.0.0.1:{}", free_port()), "mcpServers": {"slow": slow}});
    let path = configure(config, folder.path());
    let run = |args: &[&str]| Output::of(mcpproxy().arg("-c").arg(&path).args(args));
    assert_eq!(run(&["call", "tool-read", "slow:read_item"]).code, Some(0));
    let late = run(&["call", "tool-read", "slow:read_item", "--timeout", "100ms"]);
    fails(&late, 1, &["slow:read_item: no response within 100ms (--timeout)"]);
    let waited = run(&["call", "tool-read", "slow:read_item", "value=1"]);
    assert_eq!(waited.code, Some(0), "{}", waited.stderr);
}

// CLI-1
#[test]
fn cli_1_reads_without_a_running_proxy_start_no_server_and_leave_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    let servers = |name: &str| {
        let script = "echo $1 >>$2; exec \"$0\" stdio";
        json!({"command": "sh", "args": ["-c", script, stub(), name, started]})
    };
    let config = json!({"listen": format!("127.0.0.1:{}", free_port()),
        "mcpServers": {"a": servers("a"), "b": servers("b")}});
    let path = configure(config, folder.path());
    let run = |args: &[&str]| Output::of(mcpproxy().arg("-c").arg(&path).args(args));
    let began = || std::fs::read_to_string(&started).unwrap_or_default();
    let unknown = run(&["tools", "search", "item"]);
    assert_eq!(unknown.code, Some(0), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("the tools of a, b are not known yet"), "{}", unknown.stderr);
    assert_eq!(run(&["call", "tool-read", "a:read_item"]).code, Some(0));
    assert_eq!(began(), "a\n", "a call starts its own server alone");
    let records = || run(&["activity", "list", "--json"]).json()["activities"].clone();
    assert_eq!(run(&["call", "tool-read", "b:read_item"]).code, Some(0));
    let changes = || {
        let records = records();
        let changes = records.as_array().unwrap().iter();
        let changes = changes.filter(|it| it["type"] == "catalog_change").cloned();
        changes.collect::<Vec<_>>()
    };
    let first = changes();
    let added = first.iter().filter(|it| it["status"] == "success");
    let added: Vec<_> = added.map(|it| it["server_name"].as_str().unwrap()).collect();
    assert_eq!(added, ["b", "a"], "the first list of each server is recorded: {first:?}");
    let again = run(&["call", "tool-read", "a:read_item"]);
    assert_eq!((again.code, began()), (Some(0), "a\nb\na\n".to_owned()));
    assert_eq!(changes(), first, "known tools are not reported as a change");
    let before = records();
    let errors = before.as_array().unwrap().iter().filter(|it| it["status"] == "error");
    assert_eq!(errors.count(), 0, "a server that ends with its proxy is no error: {before}");
    for args in [
        &["tools", "search", "item"][..],
        &["tools", "show", "a:read_item"],
        &["tools", "diff", "a"],
        &["upstream", "list"],
        &["policy", "explain", "--as", "admin", "--tool", "a:read_item"],
    ] {
        let output = run(args);
        assert_eq!(output.code, Some(0), "{args:?}: {}", output.stderr);
        assert!(output.stdout.contains('a'), "{args:?}: {}", output.stdout);
    }
    assert_eq!(
        (began(), records()),
        ("a\nb\na\n".to_owned(), before),
        "nothing is started or recorded"
    );
}

#[test]
fn named_data_directory_is_read_although_a_proxy_with_another_one_runs() {
    let folder = tempfile::tempdir().unwrap();
    let at = |data: &str, args: &[&str]| {
        let data = folder.path().join(data);
        cli(&[&["--data-dir", data.to_str().unwrap()][..], args].concat())
    };
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let list = at("empty", &["activity", "list"]);
    assert_eq!(list.stdout, "", "{}", list.stderr);
    assert!(list.stderr.ends_with("No activity is recorded yet.\n"), "{}", list.stderr);
    assert!(list.stderr.contains("has another data directory than "), "{}", list.stderr);
    let status = at("empty", &["status"]);
    assert_eq!(status.code, Some(3), "{}", status.stdout);
    for command in [&["status"][..], &["approvals", "list"]] {
        let failed = at("empty", command).stderr;
        assert!(failed.contains("error: the mcpproxy on 127.0.0.1:"), "{command:?}: {failed}");
        assert!(!failed.contains("no mcpproxy is running"), "{command:?}: {failed}");
    }
    let verify = at("empty", &["activity", "verify"]);
    assert!(
        verify.code == Some(1) && verify.stderr.contains("no activity log in "),
        "{}",
        verify.stderr
    );
    fails(&at("missing", &["activity", "list"]), 5, &["data directory ", "missing does not exist"]);
    let own = cli(&["activity", "list", "-n", "1"]).stderr;
    assert!(!own.contains("another data directory"), "{own}");
}

#[test]
fn tool_that_is_not_offered_is_reported_with_the_cause() {
    let proxy = Proxy::start(json!({
        "s": {"command": stub_stdio(&[])["command"], "args": stub_stdio(&[])["args"],
            "disabled_tools": ["write_item"]},
        "off": {"command": "sh", "enabled": false},
    }));
    for command in [&["tools", "show"][..], &["call", "tool-read"]] {
        for (tool, cause) in [
            (
                "s:write_item",
                "Tool 's:write_item' is disabled: disabled_tools of mcpServers.s names it",
            ),
            ("nosuch:x", "Server 'nosuch' not found: `mcpproxy upstream list` lists the servers"),
        ] {
            let failed = proxy.cli(&[command, &[tool]].concat());
            assert_eq!(failed.code, Some(1), "{}", failed.stdout);
            assert!(failed.stderr.contains(cause), "{command:?}: {}", failed.stderr);
        }
    }
    let shown = proxy.cli(&["tools", "show", "off:x"]);
    assert!(
        shown.stderr.contains("Server 'off' is disabled: `mcpproxy upstream enable off`"),
        "{}",
        shown.stderr
    );
}

#[test]
fn unknown_server_in_a_list_without_records_gets_a_suggestion_from_the_config() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    let text = json!({"listen": "127.0.0.1:1", "mcpServers": {"files": {"command": "false"}}});
    std::fs::write(&config, text.to_string()).unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let list = |server: &str| {
        let mut command = mcpproxy();
        command.arg("-c").arg(&config).arg("--data-dir").arg(folder.path().join("data"));
        let stderr = Output::of(command.args(["activity", "list", "--server", server])).stderr;
        stderr.lines().last().unwrap_or_default().to_owned()
    };
    let unknown = "No activity found. There is no server 'filez': did you mean files?";
    assert_eq!(list("filez"), unknown);
    assert_eq!(list("files"), "No activity found.", "a single filter combines with none");
}

#[test]
fn command_exits_with_4_if_the_store_is_in_use_and_names_the_next_step() {
    // A proxy over pipes locks the store and has no address.
    let pipe = Pipe::start(json!({}));
    let config = pipe.folder.path().join("config.json");
    let output = Output::of(mcpproxy().arg("-c").arg(config).args(["activity", "list"]));
    fails(&output, 4, &["MCPPROXY_LISTEN"]);
}

#[test]
fn wrong_key_is_reported_and_not_sent() {
    let mut command = proxy().command(&["tools", "list"]);
    let output =
        Output::of(command.env("MCPPROXY_API_KEY", "another-key-of-more-than-32-characters"));
    fails(&output, 3, &["is not the mcpproxy of this config", "another api_key", "-c"]);
}

/// A config without servers for the address `listen`, in a temporary folder.
fn config_for(listen: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = configure(json!({"listen": listen}), folder.path());
    (folder, path)
}

// CLI-1
#[test]
fn unknown_program_on_the_port_does_not_get_the_key() {
    let stranger = Impostor::lookalike();
    let (_folder, config) = config_for(&stranger.address());
    let expected = "is not the mcpproxy of this config";
    for args in
        [&["tools", "list"][..], &["activity", "watch"], &["activity", "export", "--file", "-"]]
    {
        let output = Output::of(mcpproxy().arg("-c").arg(&config).args(args));
        fails(&output, 3, &[&stranger.address(), expected, "nothing was sent"]);
    }
    let sent = stranger.sent();
    assert!(sent.contains("GET /proof?nonce="), "{sent}");
    assert!(!sent.contains(API_KEY) && !sent.to_lowercase().contains("x-api-key"), "{sent}");
}

#[test]
fn program_that_relays_the_proof_of_the_real_server_does_not_get_the_key() {
    let stranger = Impostor::before(proxy().port);
    let (_folder, config) = config_for(&stranger.address());
    let output = Output::of(mcpproxy().arg("-c").arg(&config).args(["tools", "list"]));
    fails(&output, 3, &["is not the mcpproxy of this config", "for another address"]);
    // The data folder names the address of the real proxy.
    let mut command = proxy().command(&["tools", "list"]);
    let output = Output::of(command.env("MCPPROXY_LISTEN", stranger.address()));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stdout.contains("s:read_item"), "{}", output.stdout);
    let sent = stranger.sent();
    assert!(sent.contains("GET /proof?nonce=") && !sent.contains(API_KEY), "{sent}");
}

// CLI-2
#[test]
fn bad_usage_exits_2_and_json_errors_are_json() {
    for args in [
        &["no-such-command"][..],
        &["call"],
        &["call", "tool-read"],
        &["call", "tool-read", "no_colon"],
        &["call", "tool-read", "s:read_item", "--timeout", "soon"],
        &["activity", "list", "--limit", "0"],
        &["-o", "xml", "tools", "list"],
    ] {
        assert_eq!(cli(args).code, Some(2), "{args:?}");
        let json = cli(&[args, &["--json"]].concat());
        assert_eq!(json.code, Some(2), "{args:?}");
        if args[0] != "-o" {
            let error: Value = serde_json::from_str(&json.stderr)
                .unwrap_or_else(|e| panic!("{args:?}: {e}: {}", json.stderr));
            assert_eq!(
                (&error["success"], &error["exit_code"]),
                (&json!(false), &json!(2)),
                "{args:?}"
            );
        }
    }
    let output = cli(&["-o", "json", "call", "tool-read", "s:delete_item"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""));
    let error: Value = serde_json::from_str(&output.stderr).unwrap();
    assert_eq!(error["success"], false);
    assert_eq!(
        error["error"],
        "Tool 's:delete_item' is marked destructive by server, use call_tool_destructive"
    );
    assert!(!error["request_id"].as_str().unwrap().is_empty());
}

// CLI-1
#[test]
fn completions_help_and_version_are_printed() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = cli(&["completions", shell]);
        assert_eq!(output.code, Some(0), "{shell}");
        assert!(
            output.stdout.contains("mcpproxy") && output.stdout.contains("MCPPROXY_COMPLETE"),
            "{shell}"
        );
    }
    for command in
        ["serve", "stdio", "call", "tools", "activity", "upstream", "config", "demo", "completions"]
    {
        let help = cli(&[command, "--help"]);
        assert_eq!(help.code, Some(0), "{command}");
        assert!(help.stdout.contains("Examples:"), "{command}: {}", help.stdout);
    }
    let version = cli(&["--version"]);
    assert_eq!(
        version.stdout,
        format!("mcpproxy {}\n", mcpproxy_gateway::telemetry::build_info::LONG_VERSION)
    );
}

// CLI-1
#[test]
fn manual_pages_are_written_counted_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let man1 = folder.path().join("share/man1");
    let output = cli(&["man", man1.to_str().unwrap()]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let pages = man1.read_dir().unwrap().count();
    assert!(pages > 40 && man1.join("mcpproxy-man.1").exists(), "{pages} pages");
    let expected = format!(
        "Wrote {pages} manual pages into {0}. Read the first with: man {0}/mcpproxy.1\n",
        man1.display()
    );
    assert_eq!(output.stdout, expected);
    let page = std::fs::read_to_string(man1.join("mcpproxy-tools-list.1")).unwrap();
    let synopsis = page.replace("\\-", "-");
    assert!(
        synopsis.contains("mcpproxy tools list\\fR [--server <NAME>] [-c|--config <FILE>]"),
        "{page}"
    );
    assert!(cli(&["--help"]).stdout.contains("  man "), "it is listed");
    let output = cli(&["man", man1.join("mcpproxy.1").to_str().unwrap()]);
    fails(&output, 1, &["cannot write the manual pages into", "mcpproxy.1"]);
}

// CLI-1
#[test]
fn guide_lists_its_pages_and_prints_one() {
    let list = cli(&["guide"]);
    assert_eq!(list.code, Some(0), "{}", list.stderr);
    for page in ["clients", "fleet-setup", "Print one with: mcpproxy guide PAGE [SECTION]"] {
        assert!(list.stdout.contains(page), "{page}: {}", list.stdout);
    }
    let pages = cli(&["guide", "--json"]).json();
    assert!(pages["pages"].as_array().unwrap().len() > 10, "{pages}");
    let page = cli(&["guide", "policy"]);
    assert_eq!((page.code, page.stderr.as_str()), (Some(0), ""));
    assert!(
        page.stdout.starts_with("# Policy: rules, approvals, definitions\n"),
        "{}",
        page.stdout
    );
    assert_eq!(cli(&["guide", "policy", "--json"]).json()["text"], page.stdout);
    let unknown = cli(&["guide", "polcy"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("'policy'"), "{}", unknown.stderr);
}

// CLI-4
#[test]
fn demo_shows_five_outcomes_and_leaves_no_files() {
    let home = tempfile::tempdir().unwrap();
    let mut command = mcpproxy();
    let output = Output::of(command.arg("demo").env("HOME", home.path()));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    for expected in [
        "forwarded",
        "refused",
        "blocked: schema",
        "blocked: size",
        "marked destructive by server",
        "max_bytes 5242880",
        "mcpproxy init",
        "mcpproxy import",
        "mcpproxy upstream add",
        "mcpproxy connect",
    ] {
        assert!(output.stdout.contains(expected), "{expected}: {}", output.stdout);
    }
    // One row for a call and its decision, with the reason.
    let (_, table) = output.stdout.split_once("The resulting activity log").unwrap();
    assert!(!table.contains("activity list"), "the log of the demo cannot be read any more");
    let row = |tool: &str| {
        let rows: Vec<_> = table.lines().filter(|line| line.contains(tool)).collect();
        assert_eq!(rows.len(), 1, "{tool}: {table}");
        rows[0]
    };
    assert!(row("wipe_notes").contains("rejected"), "{table}");
    for reason in [
        "    the tool is marked destructive by server, use call_tool_destructive\n",
        "    schema: /celsius: expected number, got string\n",
        "    size: over 5242880 bytes (max_bytes)\n",
    ] {
        assert!(table.contains(reason), "{reason}: {table}");
    }
    assert!(row("list_notes").contains("success"), "{table}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn act_7_activity_is_summarized_and_exported() {
    let mut client = proxy().client();
    let session = client.session.clone();
    client.call("write", "s:write_item", json!({}));
    client.call("read", "s:delete_item", json!({}));
    let summary = cli(&["activity", "summary"]);
    assert_eq!(summary.code, Some(0), "{}", summary.stderr);
    for label in ["calls", "rejected", "intent", "latency", "top tools"] {
        assert!(summary.stdout.lines().any(|line| line.starts_with(label)), "{}", summary.stdout);
    }
    assert_eq!(cli(&["activity", "summary", "--period", "7d", "--json"]).json()["period"], "7d");
    fails(&cli(&["activity", "summary", "--period", "2h", "-o", "json"]), 2, &["2h"]);

    let out = cli(&["activity", "export", "--output", "-", "--session", &session]);
    assert_eq!(out.code, Some(0), "{}", out.stderr);
    let lines: Vec<Value> = out.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let names: Vec<_> = lines.iter().map(|r| r["tool_name"].as_str().unwrap()).collect();
    assert_eq!(names, ["write_item", "delete_item", "delete_item"]);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.csv");
    let path = file.to_str().unwrap();
    let export = ["activity", "export", "--output", path, "--format", "csv", "--status", "refused"];
    let done = cli(&[&export[..], &["--session", &session, "-o", "json"]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(done.json(), json!({"file": path, "bytes": text.len(), "records": 1}));
    assert!(text.starts_with("id,seq,"), "{text}");
    assert!(text.contains(",tool_call,") && !text.contains("policy_decision"), "{text}");
    fails(&cli(&export), 1, &["a.csv already exists", "--force"]);
    assert_eq!(cli(&[&export[..], &["--force"]].concat()).code, Some(0));
    let reversed =
        ["activity", "export", "--output", "-", "--since", "2d", "--until", "2026-01-01"];
    fails(&cli(&reversed), 2, &["--since must not be after --until"]);
    fails(&cli(&["activity", "export", "--output", "/nowhere/a.csv"]), 1, &["/nowhere/a.csv"]);
    let odd = folder.path().join("a.xyz");
    let export = ["activity", "export", "--file", odd.to_str().unwrap()];
    fails(&cli(&export), 2, &["a.xyz: no format", ".ndjson", ".csv or .parquet", "--format"]);
    assert!(!odd.exists(), "nothing is written");
    assert_eq!(cli(&[&export[..], &["--format", "csv"]].concat()).code, Some(0));
    let unknown = ["'refuse' for '--status", "did you mean refused? expected one of refused, "];
    let export = ["activity", "export", "--output", "-", "--status", "refuse", "--json"];
    fails(&cli(&export), 2, &unknown);
    fails(&cli(&["activity", "export", "--output", "-", "--since", "soon"]), 2, &["--since"]);
}

#[test]
fn act_7_watch_shows_each_record_until_it_is_interrupted() {
    let mut command = proxy().command(&["activity", "watch", "--json"]);
    let mut watch = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut client = proxy().client();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    // Calls continue until the watcher, which may still be connecting, has seen one.
    let caller = std::thread::spawn(move || {
        while stopped.try_recv().is_err() {
            client.read("s:read_item", json!({"watched": true}));
        }
    });
    let record: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(record["seq"].is_u64(), "{record}");
    stop.send(()).unwrap();
    caller.join().unwrap();
    watch.signal("INT");
    assert_eq!(watch.wait(), Some(0));

    let folder = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let path = configure(json!({"listen": listen}), folder.path());
    let output = Output::of(mcpproxy().arg("-c").arg(path).args(["activity", "watch"]));
    fails(&output, 3, &["no mcpproxy is running", "config.json serve` starts one"]);
}

/// File of a log with its newest records.
fn journal(folder: &Path) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|extension| extension == "jnl") => {
                    return path;
                }
                false => {}
            }
        }
    }
    panic!("no journal");
}

#[test]
fn act_9_store_that_cannot_be_opened_is_named_with_the_next_command() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let config = json!({"listen": format!("127.0.0.1:{port}"), "mcpServers": {}});
    let folder = Proxy::unready(config, folder).ready().end();
    let config = folder.path().join("config.json");
    let run = |args: &[&str]| Output::of(mcpproxy().arg("-c").arg(&config).args(args));
    let log = folder.path().join("data/activity");
    std::fs::remove_file(log.join("seal")).unwrap();
    let keyspace = log.join("db/keyspaces/6");
    let named = |folder: &std::path::Path, start: &str| {
        let mut files = std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
        files.find(|it| it.file_name().unwrap().to_str().unwrap().starts_with(start)).unwrap()
    };
    let current = keyspace.join("current");
    let mut flipped = std::fs::read(&current).unwrap();
    flipped[9] ^= 1;
    let version = u64::from_le_bytes(flipped[..8].try_into().unwrap());
    let manifest = keyspace.join(format!("v{version}"));
    let table = named(&keyspace.join("tables"), "");
    for (damaged, bytes, expected) in [
        (&current, Some(flipped), &manifest),
        (&current, Some(vec![]), &current),
        (&manifest, Some(vec![]), &manifest),
        (&manifest, None, &manifest),
        (&table, Some(vec![]), &table),
        (&table, None, &table),
        (&log.join("db/version"), None, &log.join("db/version")),
    ] {
        let whole = std::fs::read(damaged).unwrap();
        match bytes {
            Some(bytes) => std::fs::write(damaged, bytes).unwrap(),
            None => std::fs::remove_file(damaged).unwrap(),
        }
        let expected = expected.strip_prefix(&log).unwrap().to_str().unwrap();
        for (args, code) in [(&["serve"][..], 4), (&["activity", "verify"], 4), (&["doctor"], 1)] {
            let output = run(args);
            let text = format!("{}{}", output.stdout, output.stderr).replace('\n', " ");
            assert_eq!(output.code, Some(code), "{args:?} {damaged:?}: {text}");
            assert!(text.contains("serve --salvage"), "{args:?} {damaged:?}: {text}");
            let text: String = text.split_whitespace().collect();
            assert!(text.contains(expected), "{args:?} {damaged:?}: {text}");
        }
        std::fs::write(damaged, whole).unwrap();
    }
    assert_eq!(run(&["activity", "verify"]).code, Some(0));
}

#[test]
fn act_9_damaged_log_is_named_refused_and_salvaged() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let config =
        json!({"listen": format!("127.0.0.1:{port}"), "mcpServers": {"s": stub_stdio(&[])}});
    let proxy = Proxy::unready(config, folder).ready();
    let mut client = proxy.client();
    for _ in 0..20 {
        client.read("s:read_item", json!({}));
        // A query waits for every earlier record. Therefore each call has its own commit, and the truncation below
        // removes only some of them.
        proxy.api("activity?limit=1");
    }
    let running = proxy.cli(&["activity", "verify"]);
    assert_eq!(running.code, Some(0), "{}", running.stderr);
    assert!(running.stdout.starts_with("sound: "), "{}", running.stdout);
    // A clean stop would move every record from the journal to tables.
    let folder = proxy.killed();
    let config = folder.path().join("config.json");
    let run = |args: &[&str]| Output::of(mcpproxy().arg("-c").arg(&config).args(args));
    let alone = run(&["activity", "verify", "--json"]);
    assert_eq!(alone.code, Some(0), "{}", alone.stderr);
    assert_eq!(alone.json()["sound"], true);

    let journal = journal(&folder.path().join("data/activity"));
    let bytes = std::fs::read(&journal).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    let file = std::fs::File::options().write(true).open(&journal).unwrap();
    file.set_len(used / 3 * 2).unwrap();
    let broken = run(&["activity", "verify", "--json"]);
    assert_eq!(broken.code, Some(1), "{} {}", broken.stdout, broken.stderr);
    let seq = broken.json()["broken"]["seq"].as_u64().unwrap();
    assert!(broken.stderr.contains(&format!("record {seq} is missing")), "{}", broken.stderr);
    let refused = run(&["serve"]);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    let name = journal.file_name().unwrap().to_str().unwrap();
    assert!(refused.stderr.contains(name), "{}", refused.stderr);
    assert!(refused.stderr.contains("serve --salvage"), "{}", refused.stderr);

    let mut command = mcpproxy();
    command.arg("-c").arg(&config).args(["serve", "--salvage"]).stdin(Stdio::null());
    let mut salvaged = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    let mut line = String::new();
    BufReader::new(salvaged.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("MCP at "), "{line}");
    let after = run(&["activity", "list", "--type", "tool_call", "-n", "100", "--json"]).json();
    let kept = after["activities"].as_array().unwrap().len();
    assert!(0 < kept && kept < 20, "{kept}");
    salvaged.signal("TERM");
    assert_eq!(salvaged.wait(), Some(0));
    assert!(folder.path().join("data/activity.damaged-1").is_dir(), "nothing is deleted");
    assert_eq!(run(&["activity", "verify"]).code, Some(0));
}
