//! The number of log lines that a peer can cause is bounded, regardless of its input.

use serde_json::json;

use crate::harness::{Proxy, error_text, stub_stdio};

/// Maximum number of log bytes that a peer may cause within a test: those of the initial burst, and those permitted
/// while the test runs.
const MAX_BYTES: usize = 100 * 1024;

/// A server that sends the message `$1` many times before it answers a call.
const FLOODING: &str = r#"
while IFS= read -r line; do
  case "$line" in *'"id":'*) id=${line#*'"id":'}; id=${id%%[,\}]*};; esac
  case "$line" in
    *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}}\n' "$id";;
    *'"server/discover"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"?"}}\n' "$id";;
    *'"tools/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","inputSchema":{},"annotations":{"readOnlyHint":true}}]}}\n' "$id";;
    *'"tools/call"'*) yes "$1" | head -n 100000; printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}\n' "$id";;
  esac
done
"#;

// BND-3
#[test]
fn server_that_answers_a_hundred_thousand_times_unasked_causes_few_log_lines() {
    let unknown = r#"{"jsonrpc":"2.0","id":55555555555555,"result":{}}"#;
    for flood in [unknown, "no message", r#"{"jsonrpc":"2.0","id":1,"method":"x/y"}"#] {
        let entry = json!({"command": "/bin/sh", "args": ["-c", FLOODING, "sh", flood]});
        let proxy = Proxy::start(json!({"s": entry}));
        let mut client = proxy.client();
        let result = client.read("s:t", json!({}));
        assert_eq!(result["content"], json!([]), "{flood}: {result}");
        let log = proxy.log();
        assert!(log.len() <= MAX_BYTES, "{flood}: {} bytes", log.len());
    }
}

// BND-3
#[test]
fn client_that_sends_refused_requests_causes_few_log_lines() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    for _ in 0..500 {
        let refused = client.read("s:read_item", json!({"behavior": 7}));
        assert!(error_text(&refused).contains("do not fit"), "{refused}");
    }
    proxy.assert_logged("log lines about a peer were left out");
    let log = proxy.log();
    let lines = log.lines().filter(|line| line.contains("do not fit their schema")).count();
    assert!((1..=100).contains(&lines), "{lines} lines");
}
