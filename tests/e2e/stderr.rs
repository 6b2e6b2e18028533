//! The log on stderr: a slow or closed reader neither delays anything nor causes failures.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::json;

use crate::harness::{Process, Proxy, configure, mcpproxy, stub_stdio, until};

/// A proxy with a pipe as stderr, which logs a JSON line for each call.
fn piped() -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"logging": {"level": "trace", "format": "json"},
        "mcpServers": {"s": stub_stdio(&[])}});
    let path = configure(config, folder.path());
    let mut command = mcpproxy();
    command.arg("serve").arg("-c").arg(path).stdin(Stdio::null());
    let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.strip_prefix("MCP at http://127.0.0.1:").unwrap();
    let port = port.split('/').next().unwrap().parse().unwrap();
    Proxy { port, folder, process }
}

fn lost(proxy: &Proxy) -> u64 {
    proxy.api("status")["log"]["lines_lost"].as_u64().unwrap()
}

/// Makes a call with a warning, so that a line is logged.
fn warned(client: &mut crate::harness::Client) {
    let result = client.call("write", "s:read_item", json!({}));
    assert_eq!(result["structuredContent"]["value"], 7, "{result}");
}

#[test]
fn closed_stderr_breaks_neither_calls_nor_servers_and_lost_lines_are_counted() {
    let mut proxy = piped();
    drop(proxy.process.0.stderr.take());
    let proxy = proxy.ready();
    let mut client = proxy.client();
    for _ in 0..20 {
        warned(&mut client);
    }
    until("the lines are counted", || (lost(&proxy) >= 20).then_some(()));
    let status = proxy.api("status");
    assert_eq!(status["servers"]["connected"], 1);
    assert_eq!(status["activity"]["failed"], json!(null));
    assert_eq!(proxy.activity("type=tool_call").len(), 20);
    proxy.end();
}

// TEL-4
#[test]
fn unread_stderr_does_not_delay_calls_and_lost_lines_are_counted() {
    let mut proxy = piped();
    let stderr = proxy.process.0.stderr.take().unwrap();
    let proxy = proxy.ready();
    assert_eq!(lost(&proxy), 0);
    let mut client = proxy.client();
    until("more is logged than a pipe and the queue hold", || {
        for _ in 0..100 {
            // Debug lines about unsolicited answers are used, because warnings have a budget for each client.
            let unasked = client.post(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
            assert_eq!(unasked.status, 202);
        }
        (lost(&proxy) > 0).then_some(())
    });
    warned(&mut client);
    // The proxy ends cleanly although its last output is not read.
    proxy.end();
    drop(stderr);
}
