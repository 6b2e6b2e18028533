//! Redirects of a server's requests, within its origin and to others.

use super::*;
use crate::tests::{Fake, Request, Say, legacy, modern};

fn path(seen: &Request) -> String {
    seen.head.split(' ').nth(1).unwrap_or_default().to_owned()
}

fn redirect(line: &str, location: &str) -> Say {
    Say::Raw(format!("HTTP/1.1 {line}\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"))
}

/// Server that answers only below `/mcp/`, like an application mounted there.
async fn mounted(
    line: &'static str,
    location: &'static str,
    answer: impl Fn(&Request) -> Say + Send + Sync + 'static,
) -> Fake {
    Fake::start(move |seen| match path(seen).as_str() {
        "/mcp/" => answer(seen),
        _ => redirect(line, location),
    })
    .await
}

#[tokio::test]
async fn pro_24_redirect_within_the_origin_is_followed_and_kept_for_the_session() {
    for line in ["307 Temporary Redirect", "308 Permanent Redirect"] {
        for answer in [legacy as fn(&Request) -> Say, modern] {
            let server = mounted(line, "/mcp/", answer).await;
            let bench = server.bench();
            bench.connected("web").await;
            bench.call("web:t", "{\"n\": 1.0}").await.unwrap();
            let calls = server.seen("tools/call");
            assert_eq!(calls.iter().map(path).collect::<Vec<_>>(), ["/mcp/"], "{line}");
            assert_eq!(calls[0].body["params"]["arguments"].to_string(), "{\"n\":1.0}");
            bench.stop().await;
        }
    }
}

#[tokio::test]
async fn pro_24_redirected_request_keeps_method_body_headers_and_session() {
    let server = Fake::start(|seen| match (seen.method(), path(seen).as_str()) {
        ("tools/call", "/mcp") => redirect("307 Temporary Redirect", "/a?x=1"),
        ("tools/call", "/a?x=1") => redirect("308 Permanent Redirect", "b"),
        ("tools/call", "/b") => redirect("307 Temporary Redirect", "/c"),
        ("", "/mcp") if seen.verb == "DELETE" => redirect("307 Temporary Redirect", "/d"),
        _ => legacy(seen),
    })
    .await;
    let bench = Bench::start(json!({"web": {"url": server.url, "headers": {"X-Key": "k"}}}));
    bench.connected("web").await;
    for _ in 0..2 {
        let arguments = format!("{{\"x\":\"{}\"}}", "y".repeat(10_000));
        let messages = bench.call("web:t", &arguments).await.unwrap();
        assert!(messages[0].contains("\"result\""), "{messages:?}");
        let calls = server.seen("tools/call");
        let [.., first, _, _, last] = &calls[..] else { panic!("{calls:?}") };
        assert_eq!((path(last), &*last.verb, &last.body), ("/c".into(), "POST", &first.body));
        for header in ["mcp-session-id", "x-key", "content-length", "host", "content-type"] {
            assert_eq!(last.header(header), first.header(header), "{header}");
            assert!(last.header(header).is_some(), "{header}");
        }
    }
    bench.stop().await;
    server.wait_until(|seen| seen.verb == "DELETE" && path(seen) == "/d").await;
}

#[tokio::test]
async fn pro_24_redirect_to_https_on_the_same_host_is_followed_with_a_verified_certificate() {
    let (secure, _certificate) = super::http::start_tls().await;
    let host = secure.trim_start_matches("https://").trim_end_matches("/mcp").to_owned();
    let plain = Fake::start(move |_| redirect("308 Permanent Redirect", &secure)).await;
    let bench = plain.bench();
    let state = bench.wait_until("web", |state| state.status == Status::Failed).await;
    let reason = &*state.reason;
    assert!(reason.starts_with(&format!("cannot connect to {host}: ")), "{reason}");
    assert!(reason.contains("issuer is not trusted"), "{reason}");
    bench.stop().await;
}

#[tokio::test]
async fn pro_24_unfollowed_redirect_names_its_target_and_the_rule() {
    let other = Fake::start(legacy).await;
    let elsewhere = other.url.replace("http://", "http://user:pass@").replace("/mcp", "/x?key=1");
    let shown = other.url.replace("/mcp", "/x");
    for (line, location, target, why) in [
        ("307 Temporary Redirect", &*elsewhere, &*shown, "it has another origin"),
        ("308 Permanent Redirect", "ftp://h.example/", "ftp://h.example/", "it has another origin"),
        ("302 Found", &*elsewhere, &*shown, "only 307 and 308 keep the request"),
        ("307 Temporary Redirect", "/mcp", "/mcp", "more than 3 redirects in a row"),
        ("308 Permanent Redirect", "http://[", "http://[", "it is not a URL"),
    ] {
        let location = location.to_owned();
        let server = Fake::start(move |seen| match seen.method() {
            "tools/call" => redirect(line, &location),
            _ => legacy(seen),
        })
        .await;
        let bench = server.bench();
        bench.connected("web").await;
        let error = bench.error("web:t").await;
        let code = &line[..3];
        assert!(
            error.contains(&format!("{target} (HTTP {code}), which is not followed: ")),
            "{error}"
        );
        assert!(error.contains(why) && error.contains("set url to"), "{error}");
        assert!(!error.contains("pass") && !error.contains("key=1"), "{error}");
        let calls = server.seen("tools/call").len();
        assert_eq!(calls, if location_repeats(&error) { 4 } else { 1 }, "{error}");
        bench.stop().await;
    }
    assert_eq!(other.count(|_| true), 0, "no other origin is contacted");
}

fn location_repeats(error: &str) -> bool {
    error.contains("in a row")
}
