//! Redaction of the config's secrets in a server's output.

use super::*;
use crate::tests::stdio::SERVER;
use crate::tests::{Fake, Request, Say, legacy};
use mcpproxy_runtime::secrets::MASKED;

const TOKEN: &str = "tok-en-1234567";
const KEY: &str = "a key/with?marks";
const QUERY: &str = "query-secret";

/// Server that answers each call through `echo`.
async fn echoing(echo: impl Fn(&Request) -> Say + Send + Sync + 'static) -> Bench {
    let server = Fake::start(move |seen| match seen.method() {
        "tools/call" => echo(seen),
        _ => legacy(seen),
    })
    .await;
    let bench = Bench::start(json!({"web": {
        "url": format!("{}?key={QUERY}", server.url),
        "headers": {"Authorization": format!("Bearer {TOKEN}"), "X-Key": KEY},
    }}));
    bench.connected("web").await;
    bench
}

/// HTTP error with a JSON-RPC error that names no request.
fn refusal(line: &str, message: &str) -> Say {
    let body = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": message}});
    Say::status(line, "application/json", &body.to_string())
}

fn assert_clean(text: &str) {
    for secret in [TOKEN, KEY, QUERY, "a%20key%2Fwith%3Fmarks", "tok-en"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(text.contains(MASKED), "{text}");
}

#[tokio::test]
async fn error_page_that_echoes_the_request_is_redacted() {
    type Echo = fn(&Request) -> Say;
    let echoes: [Echo; 5] = [
        |seen| refusal("500 Oops", &seen.head),
        |seen| Say::status("200 OK", "text/html", &format!("<pre>{}</pre>", seen.head)),
        |seen| {
            let key = seen.header("authorization").unwrap_or_default();
            Say::status("200 OK", &format!("text/{key}"), "")
        },
        |_| refusal("502 Bad", "a%20key%2Fwith%3Fmarks"),
        |seen| {
            let gzip = format!("x-{}", seen.header("authorization").unwrap_or_default());
            Say::json(json!({})).with(&format!("content-encoding: {gzip}"))
        },
    ];
    for echo in echoes {
        let bench = echoing(echo).await;
        assert_clean(&bench.error("web:t").await);
        bench.stop().await;
    }
}

#[tokio::test]
async fn json_rpc_error_with_an_http_error_status_is_redacted() {
    let bench = echoing(|seen| {
        let error = json!({"jsonrpc": "2.0", "id": seen.body["id"],
            "error": {"code": -32000, "message": seen.head}});
        Say::status("500 Oops", "application/json", &error.to_string())
    })
    .await;
    let messages = bench.call("web:t", "{}").await.unwrap();
    assert!(messages[0].contains("-32000"), "{messages:?}");
    assert_clean(&messages[0]);
    bench.stop().await;
}

#[tokio::test]
async fn secret_cut_by_the_read_limit_is_redacted() {
    for left in 1..TOKEN.len() {
        let bench = echoing(move |_| {
            let before = " ".repeat(super::super::http::MAX_REFUSAL_BYTES - left);
            Say::status("200 OK", "text/plain", &format!("{before}{TOKEN} and more"))
        })
        .await;
        let error = bench.error("web:t").await;
        let found = "the server answered with text/plain instead of JSON or an event stream";
        assert_eq!(error, format!("web: t: {found}: {MASKED}"));
        bench.stop().await;
    }
}

#[tokio::test]
async fn servers_error_and_name_are_redacted() {
    let server = Fake::start(|seen| refusal("401 No", &seen.head)).await;
    let bench = Bench::start(json!({"web": {"url": server.url, "headers": {"X-Key": KEY}}}));
    let state = bench.wait_until("web", |state| state.status == Status::Failed).await;
    assert_clean(&state.reason);
    bench.stop().await;

    let server = Fake::start(|seen| match seen.method() {
        "initialize" => Say::result(
            seen,
            json!({"protocolVersion": "2025-06-18", "capabilities": {},
                "serverInfo": {"name": KEY, "version": "1"}}),
        ),
        _ => legacy(seen),
    })
    .await;
    let bench = Bench::start(json!({"web": {"url": server.url, "headers": {"X-Key": KEY}}}));
    let state = bench.connected("web").await;
    assert_eq!(state.server_info.as_deref(), Some("[redacted] 1"));
    bench.stop().await;
}

#[tokio::test]
async fn childs_last_stderr_line_is_redacted_for_all_servers() {
    let say = |words: &str| {
        json!({"command": "/bin/sh", "args": ["-c", format!("{words}; exit 3")],
            "env": {"API_TOKEN": TOKEN}})
    };
    let bench = Bench::start(json!({
        "own": say(r#"echo "bad token $API_TOKEN" >&2"#),
        "base64": say(r#"printf 'user:%s' "$API_TOKEN" | base64 >&2"#),
        "other": say(&format!("echo '{KEY}' >&2")),
        "web": {"url": "http://127.0.0.1:9/", "headers": {"X-Key": KEY}, "enabled": false},
    }));
    for name in ["own", "base64", "other"] {
        let state = bench.wait_until(name, |state| state.status == Status::Failed).await;
        assert_clean(&state.reason);
        assert!(state.reason.contains("last stderr line: "), "{}", state.reason);
    }
    bench.stop().await;
}

#[tokio::test]
async fn unreadable_value_is_read_again_later() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("token");
    let reference = format!("${{file:{}}}", file.display());
    let bench = Bench::start(json!({"own": {"command": "/bin/sh", "env": {"A": reference},
        "args": ["-c", SERVER, "s", r#"echo "bad token $A" >&2; exit 3"#, ""]}}));
    let state = bench.wait_until("own", |state| state.status == Status::Failed).await;
    assert!(state.reason.contains(", referenced by env.A, cannot be read"), "{}", state.reason);
    assert_eq!(
        bench.upstream("own").restart().await,
        Ok(()),
        "the operator may trigger an attempt"
    );
    std::fs::write(&file, TOKEN).unwrap();
    bench.connected("own").await;
    bench.call("own:t", "{}").await.unwrap_err();
    let state = bench.wait_until("own", |state| state.status != Status::Connected).await;
    assert_clean(&state.reason);
    bench.stop().await;
}

#[tokio::test]
async fn values_are_resolved_by_the_task_and_redacted() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("token");
    let reference = format!("${{file:{}}}", file.display());
    let bench = Bench::start(json!({"own": {"command": "/bin/sh", "env": {"A": reference},
        "args": ["-c", r#"echo "bad token $A" >&2; exit 3"#]}}));
    // The task has not run before the first await.
    std::fs::write(&file, TOKEN).unwrap();
    let state = bench.wait_until("own", |state| state.status == Status::Failed).await;
    assert_clean(&state.reason);
    assert!(state.reason.contains("last stderr line: bad token"), "{}", state.reason);
    bench.stop().await;
}
