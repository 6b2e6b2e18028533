//! What the config holds as secret does not come back in a server's words.

use super::fake::{Fake, Say, Seen, legacy};
use super::stdio::SERVER;
use super::*;
use crate::secrets::MASKED;

const TOKEN: &str = "tok-en-1234567";
const KEY: &str = "a key/with?marks";
const QUERY: &str = "query-secret";

/// A server that echoes the request, as `echo` says, to each call.
async fn echoing(echo: impl Fn(&Seen) -> Say + Send + Sync + 'static) -> Bench {
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

fn is_clean(text: &str) {
    for secret in [TOKEN, KEY, QUERY, "a%20key%2Fwith%3Fmarks", "tok-en"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(text.contains(MASKED), "{text}");
}

#[tokio::test]
async fn an_error_page_that_echoes_the_request_tells_no_header_and_no_query() {
    type Echo = fn(&Seen) -> Say;
    let echoes: [Echo; 5] = [
        |seen| Say::status("500 Oops", "text/plain", &seen.head),
        |seen| Say::status("200 OK", "text/html", &format!("<pre>{}</pre>", seen.head)),
        |seen| {
            let key = seen.header("authorization").unwrap_or_default();
            Say::status("200 OK", &format!("text/{key}"), "")
        },
        |_| Say::status("502 Bad", "text/plain", "a%20key%2Fwith%3Fmarks"),
        |seen| {
            let gzip = format!("x-{}", seen.header("authorization").unwrap_or_default());
            Say::json(json!({})).with(&format!("content-encoding: {gzip}"))
        },
    ];
    for echo in echoes {
        let bench = echoing(echo).await;
        is_clean(&bench.error("web:t").await);
        bench.stop().await;
    }
}

#[tokio::test]
async fn a_json_rpc_error_with_a_bad_status_is_an_error_page_too() {
    let bench = echoing(|seen| {
        let error = json!({"jsonrpc": "2.0", "id": seen.body["id"],
            "error": {"code": -32000, "message": seen.head}});
        Say::status("500 Oops", "application/json", &error.to_string())
    })
    .await;
    let messages = bench.call("web:t", "{}").await.unwrap();
    assert!(messages[0].contains("-32000"), "{messages:?}");
    is_clean(&messages[0]);
    bench.stop().await;
}

#[tokio::test]
async fn a_secret_that_the_read_limit_cuts_shows_no_part_of_it() {
    for left in 1..TOKEN.len() {
        let bench = echoing(move |_| {
            let before = " ".repeat(super::super::http::MAX_REFUSAL_BYTES - left);
            Say::status("500 Oops", "text/plain", &format!("{before}{TOKEN} and more"))
        })
        .await;
        let error = bench.error("web:t").await;
        assert_eq!(error, format!("web: t: the server answered HTTP 500: {MASKED}"));
        bench.stop().await;
    }
}

#[tokio::test]
async fn a_servers_reason_and_its_name_hold_no_secret() {
    let server = Fake::start(|seen| Say::status("401 No", "text/plain", &seen.head)).await;
    let bench = Bench::start(json!({"web": {"url": server.url, "headers": {"X-Key": KEY}}}));
    let state = bench.until("web", |state| state.status == Status::Failed).await;
    is_clean(&state.reason);
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
async fn a_childs_last_words_hold_no_secret_of_any_server() {
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
        let state = bench.until(name, |state| state.status == Status::Failed).await;
        is_clean(&state.reason);
        assert!(state.reason.contains("its last words: "), "{}", state.reason);
    }
    bench.stop().await;
}

#[tokio::test]
async fn what_cannot_be_read_at_first_is_read_again() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("token");
    let named = format!("${{file:{}}}", file.display());
    let bench = Bench::start(json!({"own": {"command": "/bin/sh", "env": {"A": named},
        "args": ["-c", SERVER, "s", r#"echo "bad token $A" >&2; exit 3"#, ""]}}));
    let state = bench.until("own", |state| state.status == Status::Failed).await;
    assert!(state.reason.contains("cannot be read, which env.A asks for"), "{}", state.reason);
    assert_eq!(bench.upstream("own").restart().await, Ok(()), "its operator may have it tried");
    std::fs::write(&file, TOKEN).unwrap();
    bench.connected("own").await;
    bench.call("own:t", "{}").await.unwrap_err();
    let state = bench.until("own", |state| state.status != Status::Connected).await;
    is_clean(&state.reason);
    bench.stop().await;
}

#[tokio::test]
async fn what_its_task_reads_holds_up_nobody_and_is_secret() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("token");
    let named = format!("${{file:{}}}", file.display());
    let bench = Bench::start(json!({"own": {"command": "/bin/sh", "env": {"A": named},
        "args": ["-c", r#"echo "bad token $A" >&2; exit 3"#]}}));
    // The task has not run before something is awaited.
    std::fs::write(&file, TOKEN).unwrap();
    let state = bench.until("own", |state| state.status == Status::Failed).await;
    is_clean(&state.reason);
    assert!(state.reason.contains("its last words: bad token"), "{}", state.reason);
    bench.stop().await;
}
