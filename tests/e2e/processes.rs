//! Termination of a proxy and its causes: no process of a server outlives the proxy, and every message states the real
//! cause.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Output, Pipe, Process, Proxy, children_of, error_text, is_running, reaper_of, stub,
    stub_stdio, until,
};

/// The stub with descendants of every kind: a child in its process group, one in its own session, and a daemon with
/// closed standard streams that ignores signals. The process ids are written into `file`; that of the stub is the last
/// one.
fn with_descendants(file: &Path) -> Value {
    let script = r#"
        "$0" deaf & echo $! >>"$1"
        setsid "$0" deaf & echo $! >>"$1"
        (setsid sh -c 'trap "" TERM HUP INT; echo $$ >>"$1"; exec "$0" deaf' "$0" "$1" </dev/null >/dev/null 2>&1 &)
        until [ $(wc -l <"$1") = 3 ]; do sleep 0.01; done
        echo $$ >>"$1"
        exec "$0" stdio"#;
    json!({"command": "sh", "args": ["-c", script, stub(), file]})
}

/// Process ids in the file, all of them running.
fn running(file: &Path) -> Vec<String> {
    let ids = until("they run", || {
        let ids = std::fs::read_to_string(file).unwrap_or_default();
        (ids.lines().count() == 4).then_some(ids)
    });
    let ids: Vec<String> = ids.lines().map(str::to_owned).collect();
    assert!(ids.iter().all(|id| is_running(id)), "{ids:?}");
    ids
}

fn all_end(ids: &[String]) {
    for id in ids {
        until(&format!("{id} of {ids:?} ends"), || (!is_running(id)).then_some(()));
    }
}

// SEC-3
#[test]
fn server_inherits_foreign_variables_and_gets_those_of_its_entry() {
    let notes = tempfile::tempdir().unwrap();
    let file = notes.path().join("env");
    let args = json!(["-c", r#"env >"$1"; exec "$0" stdio"#, stub(), file]);
    let named = json!({"NAMED": "${env:CREDENTIALS_DIRECTORY}"});
    let config = json!({
        "api_key": "${env:OWN_KEY}",
        "approval": {"webhook": {"url": "http://127.0.0.1:9/", "secret": "${env:OWN_SIGNATURE}"}},
        "telemetry": {"otlp_endpoint": "http://127.0.0.1:9",
            "otlp_headers": {"X-Key": "${env:OWN_COLLECTOR}"}},
        "search": {"embeddings": {"url": "http://127.0.0.1:9/v1", "model": "m",
            "api_key": "${env:OWN_VECTORS}"}},
        "mcpServers": {"s": {"command": "sh", "args": args, "env": named},
            "other": {"command": "true", "env": {"T": "${env:OTHERS_TOKEN}"}, "enabled": false}},
    });
    let before = format!(
        "export MCPPROXY_API_KEY={API_KEY} OWN_KEY={API_KEY} CREDENTIALS_DIRECTORY=/nowhere \
         AWS_SECRET_ACCESS_KEY=of-a-laptop OTHERS_TOKEN=of-another-server \
         OWN_SIGNATURE=own-key-of-the-webhook OWN_COLLECTOR=own-key-of-telemetry \
         OWN_VECTORS=own-key-of-embeddings"
    );
    let _proxy = Proxy::under(&before, config, tempfile::tempdir().unwrap());
    let text = std::fs::read_to_string(&file).unwrap();
    let env: Vec<&str> = text.lines().collect();
    assert!(
        !text.contains(API_KEY) && !env.iter().any(|it| it.starts_with("CREDENTIALS")),
        "{text}"
    );
    assert!(env.contains(&"NAMED=/nowhere"), "{text}");
    assert!(!text.contains("of-another-server") && !text.contains("own-key-of-"), "{text}");
    assert!(env.contains(&"AWS_SECRET_ACCESS_KEY=of-a-laptop"), "{text}");
}

fn kill(process: &mut Process) {
    process.0.kill().unwrap();
    process.wait();
}

// PRO-1
#[test]
fn killed_server_leaves_no_process_behind() {
    let notes = tempfile::tempdir().unwrap();
    let file = notes.path().join("ids");
    let mut proxy = Proxy::start(json!({"s": with_descendants(&file), "t": stub_stdio(&[])}));
    let mut ids = running(&file);
    ids.extend(children_of(proxy.process.0.id()));
    ids.push(reaper_of(proxy.process.0.id()).unwrap());
    kill(&mut proxy.process);
    all_end(&ids);
}

#[test]
fn killed_pipe_leaves_no_process_behind() {
    let notes = tempfile::tempdir().unwrap();
    let file = notes.path().join("ids");
    let mut pipe = Pipe::start(json!({"mcpServers": {"s": with_descendants(&file)}}));
    let mut ids = running(&file);
    ids.push(reaper_of(pipe.process.0.id()).unwrap());
    kill(&mut pipe.process);
    all_end(&ids);
}

#[test]
fn orderly_shutdown_ends_processes_that_left_their_group_and_the_reaper() {
    let notes = tempfile::tempdir().unwrap();
    let file = notes.path().join("ids");
    let proxy = Proxy::start(json!({"s": with_descendants(&file)}));
    let mut ids = running(&file);
    ids.push(reaper_of(proxy.process.0.id()).unwrap());
    drop(proxy.end());
    assert!(!ids.iter().any(|id| is_running(id)), "{ids:?}");
}

#[test]
fn killed_reaper_is_replaced_with_the_next_child() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[]), "t": stub_stdio(&[])}));
    let id = proxy.process.0.id();
    let first = reaper_of(id).unwrap();
    let killed = std::process::Command::new("kill").args(["-s", "KILL", &first]).status().unwrap();
    assert!(killed.success());
    until("it ends", || (!is_running(&first)).then_some(()));
    let mut client = proxy.client();
    client.read("s:crash", json!({}));
    let second = until("there is another", || {
        client.read("s:read_item", json!({}));
        reaper_of(id).filter(|second| *second != first)
    });
    let mut ids = children_of(id);
    ids.push(second);
    let mut proxy = proxy;
    kill(&mut proxy.process);
    all_end(&ids);
}

/// Waits until `count` calls that are never answered have reached the server.
fn until_under_way(proxy: &Proxy, count: u64) {
    let (mut other, mut asked) = (proxy.client(), 0);
    until("they are under way", || {
        asked += 1;
        let stats = other.read("s:stats", json!({}));
        (stats["structuredContent"]["calls"].as_u64()? >= asked + count).then_some(())
    });
}

/// Interrupts the proxy, waits until it listens for a second signal, and sends that.
fn interrupt_twice(process: &Process, log: impl Fn() -> String) {
    process.signal("INT");
    until("it waits", || log().contains("a second signal aborts them").then_some(()));
    process.signal("INT");
}

// NET-4
#[test]
fn second_interrupt_ends_the_proxy_at_once_and_is_reported_to_aborted_clients() {
    let mut proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    client.begin_read("s:never", json!({}));
    let mut command = proxy.command(&["call", "tool-read", "s:never"]);
    let cli = std::thread::spawn(move || Output::of(&mut command));
    until_under_way(&proxy, 2);
    let ids = children_of(proxy.process.0.id());
    interrupt_twice(&proxy.process, || proxy.log());
    let answer = client.connection.response().json();
    let text = error_text(&answer["result"]);
    assert!(text.starts_with("s: never: mcpproxy is shutting down and has cut"), "{text}");
    assert_eq!(proxy.process.wait(), Some(130), "{}", proxy.log());
    assert!(!ids.iter().any(|id| is_running(id)), "{ids:?}");
    let cli = cli.join().unwrap();
    assert_eq!(cli.code, Some(1), "{}", cli.stderr);
    assert!(cli.stderr.contains("mcpproxy is shutting down"), "{}", cli.stderr);

    let session = client.session.clone();
    let folder = std::mem::replace(&mut proxy.folder, tempfile::tempdir().unwrap());
    let again = Proxy::unready(json!({}), folder);
    let records = again.activity(&format!("session_id={session}&tool=never"));
    assert_eq!(
        (&records[0]["status"], &records[0]["error_message"]),
        (&json!("error"), &json!(text))
    );
    for record in again.activity("type=tool_call&tool=never") {
        assert_eq!(record["error_message"], text, "{record}");
    }
}

#[test]
fn second_interrupt_ends_a_pipe_at_once_with_an_answer() {
    let mut pipe = Pipe::start(json!({"mcpServers": {"s": stub_stdio(&[])}}));
    let arguments = json!({"name": "s:never", "args": {}, "intent": {"operation_type": "read"}});
    let params = json!({"name": "call_tool_read", "arguments": arguments});
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    pipe.read_raw("s:read_item", &json!({}));
    pipe.send(&call.to_string());
    // A later request is answered, so the proxy has read the call.
    pipe.ask(r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#);
    let ids = children_of(pipe.process.0.id());
    interrupt_twice(&pipe.process, || pipe.log());
    let line = String::from_utf8(pipe.line().unwrap()).unwrap();
    assert!(line.contains("mcpproxy is shutting down"), "{line}");
    assert_eq!(pipe.process.wait(), Some(130), "{}", pipe.log());
    assert!(!ids.iter().any(|id| is_running(id)), "{ids:?}");
}

fn works(proxy: &Proxy) {
    let result = proxy.client().read("s:read_item", json!({}));
    assert_eq!(result["structuredContent"]["value"], 7, "{result}");
}

// NET-4
#[test]
fn sighup_without_a_terminal_only_rereads_the_config() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    // The config is invalid, because a valid one would be applied even without the signal.
    std::fs::write(proxy.folder.path().join("config.json"), "{").unwrap();
    proxy.process.signal("HUP");
    until("it is reported", || proxy.log().contains("SIGHUP: reloading the config").then_some(()));
    until("it is read", || {
        let refused = proxy.activity("type=config_change&status=rejected");
        refused.iter().any(|record| record["metadata"]["door"] == "signal").then_some(())
    });
    works(&proxy);
    proxy.end();
}

#[test]
fn server_started_with_sighup_ignored_keeps_ignoring_it() {
    let servers = json!({"mcpServers": {"s": stub_stdio(&[])}});
    let proxy = Proxy::under("trap '' HUP", servers, tempfile::tempdir().unwrap());
    proxy.process.signal("HUP");
    works(&proxy);
    assert!(!proxy.log().contains("SIGHUP"), "{}", proxy.log());
    proxy.end();
}

#[test]
fn pipe_survives_sighup() {
    let mut pipe = Pipe::start(json!({"mcpServers": {"s": stub_stdio(&[])}}));
    pipe.process.signal("HUP");
    until("it is reported", || pipe.log().contains("SIGHUP").then_some(()));
    let line = pipe.read_raw("s:read_item", &json!({}));
    assert!(line.starts_with(b"{"));
    pipe.close();
    assert_eq!(pipe.process.wait(), Some(0));
}

#[test]
fn server_whose_terminal_closes_ends_in_order() {
    let servers = json!({"mcpServers": {"s": stub_stdio(&[])}});
    // `script` provides a terminal, which closes when `script` ends.
    let mut proxy = Proxy::in_terminal(servers, tempfile::tempdir().unwrap());
    works(&proxy);
    let ids = children_of(proxy.process.0.id());
    assert_eq!(ids.len(), 1, "the proxy");
    kill(&mut proxy.process);
    all_end(&ids);
    let folder = std::mem::replace(&mut proxy.folder, tempfile::tempdir().unwrap());
    let again = Proxy::unready(json!({}), folder);
    let kinds: Vec<Value> = again
        .activity("type=system_start,system_stop")
        .iter()
        .map(|record| record["type"].clone())
        .collect();
    assert_eq!(kinds[..3], ["system_start", "system_stop", "system_start"]);
}
