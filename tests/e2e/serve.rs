//! Life cycle of a proxy: start, discovery, failures and end.

use std::fs::Permissions;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{
    Client, Connection, HttpStub, Output, Proxy, children_of, configure, error_text, free_port,
    is_running, mcpproxy, raw_result, stub, stub_stdio, until,
};

/// A child that writes nothing and does not read its input.
fn deaf() -> Value {
    json!({"command": stub(), "args": ["deaf"]})
}

/// The stub with a child that ignores its input; the process id of the child is written into `file`.
fn with_grandchild(file: &Path) -> Value {
    let script = r#""$0" deaf & echo $! >"$1"; exec "$0" stdio"#;
    json!({"command": "sh", "args": ["-c", script, stub(), file]})
}

fn within(mut server: Value, call_timeout: &str) -> Value {
    server["call_timeout"] = json!(call_timeout);
    server
}

fn server(proxy: &Proxy, name: &str) -> Value {
    let servers = proxy.api("servers")["servers"].clone();
    servers.as_array().unwrap().iter().find(|server| server["name"] == name).unwrap().clone()
}

fn tools_of(proxy: &Proxy, name: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = proxy.api(&format!("tools?server={name}&limit=100{cursor}"));
        let tools = page["tools"].as_array().unwrap();
        names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        match page.get("next_cursor") {
            Some(next) => cursor = format!("&cursor={}", next.as_str().unwrap()),
            None => return names,
        }
    }
}

fn works(client: &mut Client, server: &str) {
    let result = client.read(&format!("{server}:read_item"), json!({}));
    assert_eq!(result["structuredContent"]["value"], 7, "{result}");
}

// CFG-1
#[test]
fn object_and_array_form_start_the_same_servers() {
    let http = HttpStub::shared();
    let mut array = [stub_stdio(&[]), http.entry()];
    array[0]["name"] = json!("pipe");
    array[1]["name"] = json!("web");
    for servers in [json!({"pipe": stub_stdio(&[]), "web": http.entry()}), json!(array)] {
        let proxy = Proxy::start(servers);
        let mut client = proxy.client();
        works(&mut client, "pipe");
        works(&mut client, "web");
        let [pipe, web] = ["pipe", "web"].map(|name| server(&proxy, name));
        assert_eq!((&pipe["state"], &pipe["protocol"]), (&json!("connected"), &json!("stdio")));
        assert_eq!(
            (&web["state"], &web["protocol"]),
            (&json!("connected"), &json!("streamable-http"))
        );
    }
}

// CFG-1
#[test]
fn empty_config_is_a_working_config() {
    let proxy = Proxy::with(json!({}));
    assert_eq!(proxy.api("tools")["tools"], json!([]));
    let found = proxy.client().tool("retrieve_tools", json!({"query": "anything"}));
    assert_eq!(found["structuredContent"]["tools"], json!([]));
}

#[test]
fn paged_lists_are_read_completely_and_malformed_tools_omitted_with_a_warning() {
    let proxy = Proxy::start(json!({
        "whole": stub_stdio(&[]),
        "paged": stub_stdio(&["--page", "7"]),
        "odd": stub_stdio(&["--page", "7", "--malformed"]),
    }));
    let names = |server: &str| -> Vec<String> {
        let tools = tools_of(&proxy, server).into_iter();
        tools.map(|name| name.split_once(':').unwrap().1.to_owned()).collect()
    };
    let whole = names("whole");
    assert!(whole.len() > 50, "{whole:?}");
    assert_eq!(names("paged"), whole);
    let mut with_odd = whole;
    // Of a malformed tool, only the malformed members are omitted (DEF-6).
    with_odd.extend(["malformed_hints", "malformed_input"].map(str::to_owned));
    with_odd.sort_unstable();
    assert_eq!(names("odd"), with_odd, "valid tools before and after malformed ones are kept");
    let mut client = proxy.client();
    works(&mut client, "odd");
    let warned = |line: &str| line.contains("WARN") && line.contains("malformed tool");
    proxy.assert_lines_logged(3, warned);
    proxy.assert_lines_logged(3, |line| warned(line) && line.contains("server=odd"));
}

#[test]
fn fr_a1_tools_are_known_after_a_restart_before_any_server_answered() {
    let strict = json!({"mode": "strict"});
    let config = |server: Value| json!({"mcpServers": {"s": within(server, "200ms")}, "output_validation": strict});
    let first = Proxy::with(config(stub_stdio(&["--only", "read_item,violate"])));
    let shown = first.api("tools/s:violate")["tool"].clone();
    let found = first.client().tool("retrieve_tools", json!({"query": "violate"}));
    let folder = first.end();

    let second = Proxy::unready(config(deaf()), folder);
    until("the catalog is restored", || (tools_of(&second, "s").len() == 2).then_some(()));
    assert_eq!(second.get("/readyz").status, 503, "the server has not answered");
    assert_eq!(server(&second, "s")["state"], "connecting");
    assert_eq!(second.api("tools/s:violate")["tool"], shown, "with its output schema");
    let mut client = second.client();
    let again = client.tool("retrieve_tools", json!({"query": "violate"}));
    assert_eq!(again["structuredContent"], found["structuredContent"]);
    let result = client.read("s:read_item", json!({}));
    let text = error_text(&result);
    assert!(text.contains('s') && text.contains("connecting"), "{text}");
    let records = client.records(&second, "type=tool_call");
    assert_eq!(records[0]["status"], "error");
    assert_eq!(records[0]["error_message"], text);
}

#[test]
fn fr_a1_schemas_from_an_earlier_process_are_evaluated() {
    let http = HttpStub::start(&["--stateless", "--only", "violate"]);
    let config =
        |url: Value| json!({"mcpServers": {"s": url}, "output_validation": {"mode": "strict"}});
    let first = Proxy::with(config(http.entry()));
    let folder = first.end();
    // The same tool, but the server does not answer `tools/list`.
    let port = http.stop().to_string();
    let mute = ["--stateless", "--port", &port, "--behavior", "never", "--on", "tools/list"];
    let http = HttpStub::start(&mute);
    let second = Proxy::unready(config(http.entry()), folder);
    let mut client = second.client();
    let result = client.read("s:violate", json!({}));
    assert!(error_text(&result).starts_with("output schema validation failed: "), "{result}");
    assert_eq!(second.get("/readyz").status, 503);
}

#[test]
fn list_changed_is_followed_over_stdio_and_http() {
    let http = HttpStub::start(&[]);
    let proxy = Proxy::start(json!({"pipe": stub_stdio(&[]), "web": http.entry()}));
    let mut client = proxy.client();
    for server in ["pipe", "web"] {
        let tool = format!("{server}:added_1");
        assert!(!tools_of(&proxy, server).contains(&tool));
        let result = client.call("write", &format!("{server}:add_tool"), json!({}));
        assert_eq!(result.get("isError"), None, "{result}");
        until("the new tool is known", || tools_of(&proxy, server).contains(&tool).then_some(()));
        let result = client.read(&tool, json!({}));
        assert_eq!(result["structuredContent"]["value"], 7, "{result}");
        // Discovery is not part of a request, so its record may be written shortly after the tool appears.
        until("the change is recorded", || {
            let changes =
                proxy.activity(&format!("type=catalog_change&status=success&server={server}"));
            (changes[0]["metadata"]["added"] == json!(["added_1"])).then_some(())
        });
    }
}

#[test]
fn child_that_exits_is_restarted() {
    let mut stub = stub_stdio(&[]);
    // Not idempotent, because a repeated call would end the next process as well.
    stub["capabilities"] = json!({"crash": {"idempotent": false}});
    let proxy = Proxy::start(json!({"s": stub}));
    let mut client = proxy.client();
    let result = client.read("s:crash", json!({}));
    let text = error_text(&result);
    assert!(text.starts_with("s: crash: "), "{text}");
    // The next call waits for the restart.
    works(&mut client, "s");
    // The list of tools is read during the call; only then does the server count as connected.
    until("it is connected again", || {
        let changes = proxy.activity("type=server_change&server=s");
        let connected = |change: &&Value| change["metadata"]["status"] == "connected";
        (changes.iter().filter(connected).count() == 2).then_some(())
    });
}

#[test]
fn http_server_that_returns_is_reconnected() {
    let http = HttpStub::start(&[]);
    let proxy = Proxy::start(json!({"s": http.entry()}));
    let mut client = proxy.client();
    works(&mut client, "s");
    let port = http.stop().to_string();
    let text = error_text(&client.read("s:read_item", json!({}))).to_owned();
    assert!(text.starts_with("s: read_item: "), "{text}");
    let _back = HttpStub::start(&["--port", &port]);
    until("it is connected again", || {
        let result = client.read("s:read_item", json!({}));
        result.get("isError").is_none().then_some(())
    });
}

#[test]
fn forgotten_session_is_reopened() {
    let http = HttpStub::start(&[]);
    let proxy = Proxy::start(json!({"s": http.entry()}));
    let mut client = proxy.client();
    client.call("write", "s:forget_session", json!({}));
    works(&mut client, "s");
}

// PRO-1
#[test]
fn silent_slow_and_failed_servers_do_not_delay_others() {
    let nobody = format!("127.0.0.1:{}", free_port());
    let config = json!({"mcpServers": {
        "mute": deaf(),
        "dead": {"command": "/nowhere/at/all"},
        "refusing": {"url": format!("http://{nobody}/mcp")},
        "unlisted": stub_stdio(&["--behavior", "never", "--on", "tools/list"]),
        "good": stub_stdio(&[]),
    }});
    let proxy = Proxy::unready(config, tempfile::tempdir().unwrap());
    let mut client = proxy.client();
    // These calls are made while the proxy waits for servers that never answer.
    works(&mut client, "good");
    let found = client.tool("retrieve_tools", json!({"query": "read item"}));
    assert_eq!(found["structuredContent"]["tools"][0]["name"], "good:read_item");
    until("it is shown", || (server(&proxy, "good")["state"] == "connected").then_some(()));
    for name in ["mute", "unlisted"] {
        assert_eq!(server(&proxy, name)["state"], "connecting", "{name}");
    }
    for (name, why) in [("dead", "/nowhere/at/all"), ("refusing", "connect")] {
        let reason = until("it has failed", || {
            let state = server(&proxy, name);
            (state["state"] == "failed").then(|| state["reason"].as_str().unwrap().to_owned())
        });
        assert!(reason.contains(why), "{name}: {reason}");
        let text = error_text(&client.read(&format!("{name}:x"), json!({}))).to_owned();
        assert!(text.contains(name), "{text}");
    }
    assert_eq!(proxy.get("/readyz").status, 503);
    // A call without an answer does not delay other calls to the same server.
    let mut stuck = proxy.client();
    stuck.begin_read("good:never", json!({}));
    works(&mut client, "good");
}

/// Begins a slow call, sends the proxy a signal to end, and reads the answer.
fn drain(signal: &str) {
    let notes = tempfile::tempdir().unwrap();
    let file = notes.path().join("grandchild");
    let proxy = Proxy::start(json!({"s": with_grandchild(&file), "deaf": stub_stdio(&[])}));
    let grandchild = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let children = children_of(proxy.process.0.id());
    assert_eq!(children.len(), 2, "{children:?}");
    assert!(is_running(&grandchild));

    let http = HttpStub::shared();
    let mut client = proxy.client();
    let pace = json!({"chunk": 64, "pause_ms": 50, "size": 1024});
    client.begin_read("s:text", pace.clone());
    let idle = proxy.client();
    // The call has reached the stub once the stub counts more calls than this test has made otherwise.
    let (mut other, mut asked) = (proxy.client(), 0);
    until("the call is under way", || {
        asked += 1;
        let stats = other.read("s:stats", json!({}));
        (stats["structuredContent"]["calls"].as_u64()? > asked).then_some(())
    });
    drop(other);
    let (port, mut proxy) = (proxy.port, proxy);
    proxy.process.signal(signal);
    let response = client.connection.response();
    assert!(response.whole, "{}", response.text());
    assert_eq!(
        crate::harness::raw_result(&response.body),
        http.direct("text", &json!({"size": 1024}))
    );
    assert_eq!(proxy.process.wait(), Some(0), "{}", proxy.log());
    // No connection was aborted. An idle connection is closed because of the shutdown, and not by a timeout.
    assert!(!proxy.log().contains("cut off"), "{}", proxy.log());
    drop(idle);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    for pid in children.iter().chain([&grandchild]) {
        assert!(!is_running(pid), "{pid} of {children:?} and {grandchild}");
    }
    let session = client.session.clone();
    let folder = std::mem::replace(&mut proxy.folder, tempfile::tempdir().unwrap());
    let again = Proxy::unready(json!({}), folder);
    let records = again.activity(&format!("session_id={session}&tool=text"));
    assert_eq!(records.len(), 1);
    assert_eq!(records[0]["status"], "success");
    let kinds: Vec<Value> = again
        .activity("type=system_start,system_stop")
        .iter()
        .map(|record| record["type"].clone())
        .collect();
    assert_eq!(kinds, ["system_start", "system_stop", "system_start"]);
}

// NET-4
#[test]
fn sigterm_lets_a_call_finish_keeps_its_record_and_leaves_no_process() {
    drain("TERM");
}

#[test]
fn sigint_lets_a_call_finish_keeps_its_record_and_leaves_no_process() {
    drain("INT");
}

#[test]
fn children_that_ignore_signals_are_ended_nevertheless() {
    let proxy = Proxy::unready(
        json!({"mcpServers": {"mute": deaf(), "s": stub_stdio(&[])}}),
        tempfile::tempdir().unwrap(),
    );
    let mut client = proxy.client();
    works(&mut client, "s");
    // This child stops reading while it is connected.
    client.begin_read("s:close_stdin", json!({}));
    let children = until("both children run", || {
        let children = children_of(proxy.process.0.id());
        (children.len() == 2).then_some(children)
    });
    drop(client);
    drop(proxy.end());
    for pid in children {
        assert!(!is_running(&pid), "{pid}");
    }
}

fn serve_once(folder: &Path, config: Value) -> Output {
    let path = configure(config, folder);
    Output::of(mcpproxy().arg("serve").arg("--config").arg(path))
}

#[test]
fn taken_port_exits_3_and_nothing_is_started() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("started");
    let config = json!({
        "listen": address,
        "mcpServers": {"s": {"command": "touch", "args": [mark]}},
    });
    let output = serve_once(folder.path(), config);
    assert_eq!(output.code, Some(3), "{}", output.stderr);
    assert!(output.stderr.contains(&format!("cannot listen on {address}")), "{}", output.stderr);
    assert!(output.stderr.contains("choose another with --listen"), "{}", output.stderr);
    assert!(!mark.exists(), "no server was started");
    assert!(!folder.path().join("data").exists(), "no store was opened");
    let proxy = Proxy::start(json!({}));
    let mut again = proxy.command(&["serve"]);
    let listen = format!("127.0.0.1:{}", proxy.port);
    let again = Output::of(again.env("MCPPROXY_LISTEN", listen));
    assert_eq!(again.code, Some(3), "{}", again.stderr);
    assert!(
        again.stderr.contains("already running there: see `mcpproxy status`"),
        "{}",
        again.stderr
    );
}

#[test]
fn locked_store_exits_4_and_the_first_proxy_keeps_running() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--only", "read_item"])}));
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("started");
    let config = json!({
        "data_dir": proxy.folder.path().join("data"),
        "mcpServers": {"s": {"command": "touch", "args": [mark]}},
    });
    let output = serve_once(folder.path(), config);
    assert_eq!(output.code, Some(4), "{}", output.stderr);
    assert!(
        output.stderr.contains("in use") || output.stderr.contains("locked"),
        "{}",
        output.stderr
    );
    assert!(!mark.exists(), "no server was started");
    works(&mut proxy.client(), "s");
}

#[test]
fn first_start_creates_a_key_and_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::unready(json!({"api_key": ""}), folder);
    let path = proxy.folder.path().join("config.json");
    let key = |path: &Path| -> String {
        let config: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        config["api_key"].as_str().unwrap().to_owned()
    };
    let made = key(&path);
    assert!(made.len() == 64 && made.bytes().all(|b| b.is_ascii_hexdigit()), "{made}");
    let ask = |key: &str| proxy.request("GET", "/api/v1/status", &[("X-API-Key", key)], b"").status;
    assert_eq!((ask(&made), ask(crate::harness::API_KEY)), (200, 401));
    assert!(!proxy.log().contains(&made), "a key is not logged");
}

/// Paths below `folder` whose permissions give access to others than the owner.
fn open_to_others(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            // Tables of the log are created and deleted meanwhile.
            let Ok(metadata) = entry.metadata() else { continue };
            let mode = metadata.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                found.push(format!("{} {mode:o}", entry.path().display()));
            }
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    found
}

// SEC-4
#[test]
fn data_folder_content_is_private_regardless_of_umask_and_folder_permissions() {
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    open(&data, 0o777);
    let config = json!({"mcpServers": {"s": stub_stdio(&[])}});
    let mut proxy = Proxy::under("umask 000", config.clone(), folder);
    works(&mut proxy.client(), "s");
    let _file = until("the catalog is kept", || data.join("catalog").read_dir().ok()?.next());
    assert!(proxy.activity("type=tool_call").len() == 1);
    assert!(data.join("address").exists());
    assert_eq!(open_to_others(&data), [""; 0]);
    let warned = format!("mode 777): chmod 700 '{}'", data.display());
    proxy.assert_lines_logged(1, |line| line.contains(&warned));
    let command = "umask 000; exec \"$@\"";
    let file = proxy.folder.path().join("out.ndjson");
    let export = proxy.command(&["activity", "export", "--file"]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", command, "sh"]).arg(export.get_program()).args(export.get_args());
    let listen = format!("127.0.0.1:{}", proxy.port);
    let path = proxy.folder.path().join("config.json");
    shell.arg(&file).env("MCPPROXY_LISTEN", listen).env("MCPPROXY_CONFIG", path);
    let output = Output::of(&mut shell);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    // Access that an earlier process has left open is removed by the next one.
    proxy.process.signal("TERM");
    assert_eq!(proxy.process.wait(), Some(0));
    assert_eq!(open_to_others(&data), [""; 0], "also the seal");
    let kept = std::mem::replace(&mut proxy.folder, tempfile::tempdir().unwrap());
    let db = data.join("activity/db");
    let journal = db.read_dir().unwrap().flatten().find(|e| e.path().extension().is_some());
    open(&journal.unwrap().path(), 0o666);
    open(&db, 0o755);
    let again = Proxy::under("umask 000", config, kept);
    assert_eq!(open_to_others(&data), [""; 0]);
    assert_eq!(again.activity("type=tool_call").len(), 1);
    // Servers keep the umask of the proxy for their own files.
    let status = format!("/proc/{}/status", again.process.0.id());
    if let Ok(status) = std::fs::read_to_string(status) {
        assert!(status.contains("Umask:\t0000\n"), "{status}");
    }
}

// NET-5
#[test]
fn idle_sockets_at_256_descriptors_do_not_affect_calls_and_the_log() {
    let http = HttpStub::shared();
    let servers = json!({"pipe": stub_stdio(&[]), "web": http.entry()});
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::under("ulimit -n 256", json!({"mcpServers": servers}), folder);
    proxy.assert_logged("256 file descriptors (ulimit -n)");
    let mut waiting = proxy.client();
    waiting.begin_read("web:text", json!({"size": 40_000, "chunk": 64, "pause_ms": 5}));
    assert_eq!(waiting.connection.head().0, 200, "its answer has begun");
    let idle: Vec<TcpStream> =
        (0..600).map(|_| TcpStream::connect(("127.0.0.1", proxy.port)).unwrap()).collect();
    let mut client = proxy.client();
    for _ in 0..100 {
        works(&mut client, "pipe");
        works(&mut client, "web");
    }
    assert_eq!(client.records(&proxy, "type=tool_call").len(), 100, "a page of them");
    let health = proxy.get("/healthz").json();
    assert_eq!((&health["status"], &health["activity"]["failed"]), (&json!("ok"), &json!(false)));
    let open = std::fs::read_dir(format!("/proc/{}/fd", proxy.process.0.id()));
    assert!(open.is_ok_and(|open| open.count() < 200), "reserved descriptors are not used");

    // The connection that was idle for the longest time was closed. Connections that wait for an answer were not
    // closed.
    let mut oldest = &idle[0];
    assert_eq!(oldest.read(&mut [0]).unwrap(), 0, "closed");
    let chunks = std::iter::from_fn(|| waiting.connection.chunk());
    let answer: Vec<u8> = chunks.take_while(|chunk| !chunk.is_empty()).flatten().collect();
    assert!(raw_result(&answer).ends_with(br#""}]}"#), "whole");
    let listed = proxy.cli(&["activity", "list", "--json"]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
}

#[test]
fn descriptor_limit_is_raised_as_far_as_the_system_allows() {
    let limits = |path: &str| -> (u64, u64) {
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let mut numbers = line.split_whitespace().skip(3).map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    };
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::under("ulimit -Sn 256", json!({}), folder);
    let (soft, hard) = limits(&format!("/proc/{}/limits", proxy.process.0.id()));
    assert_eq!(soft, hard.min(65_536));
    assert!(soft > 256, "the test needs a hard limit above 256");
}

#[test]
fn ten_thousand_opened_sessions_do_not_evict_active_ones() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    works(&mut client, "s");
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "flood", "version": "1"}}});
    let mut flood = Connection::open(proxy.port);
    for _ in 0..10_500 {
        flood.send("POST", "/mcp", &[], hello.to_string().as_bytes());
        assert_eq!(flood.response().status, 200);
    }
    works(&mut client, "s");
}
