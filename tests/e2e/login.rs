//! Upstreams that ask for a login: the login, what its tokens are used for, and what ends them.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Authority, Browser, Output, Proxy, Ways, configure, error_text, mcpproxy, until,
};

fn servers(authority: &Authority) -> Value {
    json!({"s": {"url": authority.url(), "call_timeout": "10s"}})
}

fn log_in(proxy: &Proxy) -> Output {
    let output = Browser::new(&mut proxy.command(&["upstream", "login", "s"])).log_in();
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    output
}

/// Waits until the server is so; why it is.
fn until_state(proxy: &Proxy, state: &str) -> String {
    until(&format!("s is {state}"), || {
        let server = proxy.api("servers")["servers"][0].clone();
        (server["state"] == state).then(|| server["reason"].as_str().unwrap_or_default().to_owned())
    })
}

/// A proxy that is logged in.
fn logged_in(ways: Ways) -> (Authority, Proxy) {
    let authority = Authority::start(ways);
    let proxy = Proxy::start(servers(&authority));
    log_in(&proxy);
    until_state(&proxy, "connected");
    (authority, proxy)
}

fn works(proxy: &Proxy) {
    let result = proxy.client().read("s:read_item", json!({}));
    assert_eq!(result["content"][0]["text"], "seven", "{result}");
}

#[test]
fn a_login_from_the_challenge_to_the_call_and_the_logout() {
    let authority = Authority::start(Ways::default());
    let logging = json!({"level": "trace"});
    let proxy = Proxy::with(json!({"mcpServers": servers(&authority), "logging": logging}));
    assert_eq!(until_state(&proxy, "failed"), "needs login: run mcpproxy upstream login s");
    let output = log_in(&proxy);
    assert!(output.stdout.contains("logged in with s"), "{}", output.stdout);
    until_state(&proxy, "connected");

    // What a client says for itself goes no further.
    let mut client = proxy.client();
    let session = client.session.clone();
    let own = format!("Bearer {API_KEY}");
    let headers = [("Mcp-Session-Id", session.as_str()), ("Authorization", own.as_str())];
    let arguments =
        json!({"name": "s:read_item", "args": {}, "intent": {"operation_type": "read"}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "call_tool_read", "arguments": arguments}});
    client.connection.send("POST", "/mcp", &headers, body.to_string().as_bytes());
    assert_eq!(client.connection.response().json()["result"]["content"][0]["text"], "seven");
    let seen = authority.ways().seen.clone();
    assert!(!seen.is_empty() && seen.iter().all(|header| header == "Bearer access-1"), "{seen:?}");

    let file = proxy.folder.path().join("data/oauth/s.json");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let activity = proxy.get("/api/v1/activity/export").text();
    for secret in ["access-1", "refresh-1", "code-1"] {
        assert!(!proxy.log().contains(secret), "{}", proxy.log());
        assert!(!activity.contains(secret) && !output.stdout.contains(secret));
    }

    let out = proxy.cli(&["upstream", "logout", "s"]);
    assert_eq!(out.code, Some(0), "{}", out.stderr);
    assert!(!file.exists());
    until_state(&proxy, "failed");
}

#[test]
fn a_token_is_renewed_before_it_ends_and_survives_a_restart() {
    let (authority, proxy) = logged_in(Ways { life: Some(5), ..Ways::default() });
    until("it is renewed", || (authority.ways().renewed > 0).then_some(()));
    authority.ways().life = None;
    until("the new one is used", || {
        works(&proxy);
        let ways = authority.ways();
        (ways.seen.last() == ways.valid.last().map(|token| format!("Bearer {token}")).as_ref())
            .then_some(())
    });
    let again = Proxy::unready(json!({"mcpServers": servers(&authority)}), proxy.end()).ready();
    until_state(&again, "connected");
    works(&again);
}

#[test]
fn a_token_that_is_refused_is_renewed_and_the_call_goes_out_again() {
    let (authority, proxy) = logged_in(Ways::default());
    works(&proxy);
    authority.ways().valid.clear();
    works(&proxy);
    assert_eq!(authority.ways().renewed, 1);
    assert_eq!(authority.ways().seen.last().unwrap(), "Bearer access-2");
}

#[test]
fn a_renewal_that_is_refused_needs_another_login() {
    let (authority, proxy) = logged_in(Ways::default());
    {
        let mut ways = authority.ways();
        ways.valid.clear();
        ways.refuse_refresh = true;
    }
    let result = proxy.client().read("s:read_item", json!({}));
    assert!(error_text(&result).contains("needs login"), "{result}");
    assert_eq!(until_state(&proxy, "failed"), "needs login: run mcpproxy upstream login s");
    authority.ways().refuse_refresh = false;
    log_in(&proxy);
    until_state(&proxy, "connected");
    works(&proxy);
}

#[test]
fn a_file_of_tokens_that_others_may_read_is_not_used() {
    let (authority, proxy) = logged_in(Ways::default());
    let folder = proxy.end();
    let file = folder.path().join("data/oauth/s.json");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let proxy = Proxy::unready(json!({"mcpServers": servers(&authority)}), folder).ready();
    let reason = until_state(&proxy, "failed");
    assert!(reason.contains("chmod 600"), "{reason}");
}

#[test]
fn a_login_that_is_not_safe_is_refused() {
    let huge = "x".repeat(300 * 1024);
    let metadata = |metadata: Value| Ways { metadata, ..Ways::default() };
    let resource = |resource: Value| Ways { resource, ..Ways::default() };
    for (ways, told) in [
        (metadata(json!({"code_challenge_methods_supported": null})), "PKCE"),
        (metadata(json!({"code_challenge_methods_supported": ["plain"]})), "PKCE"),
        (metadata(json!({"issuer": "https://evil.example"})), "issuer"),
        (metadata(json!({"issuer": null})), "issuer"),
        (metadata(json!({"token_endpoint": "http://evil.example/token"})), "plain http"),
        (metadata(json!({"token_endpoint": "https://10.0.0.1/token"})), "inside"),
        (metadata(json!({"registration_endpoint": "http://169.254.169.254/"})), "plain http"),
        (metadata(json!({"authorization_endpoint": "javascript:alert(1)"})), "https"),
        (metadata(json!({"registration_endpoint": null})), "oauth.client_id"),
        (metadata(json!({"more": huge})), "login cannot be used"),
        (resource(json!({"resource": "http://127.0.0.1:9/other"})), "mismatch"),
        (resource(json!({"authorization_servers": ["http://10.0.0.1"]})), "none published"),
        (Ways { place: Some("https://evil.example/m".into()), ..Ways::default() }, "another place"),
        (Ways { issuer: Some("https://evil.example".into()), ..Ways::default() }, "issuer"),
        (Ways { open: true, ..Ways::default() }, "does not ask for a login"),
    ] {
        let authority = Authority::start(ways);
        let folder = tempfile::tempdir().unwrap();
        let path = configure(json!({"mcpServers": servers(&authority)}), folder.path());
        let mut command = mcpproxy();
        command.arg("--config").arg(path).args(["upstream", "login", "s"]);
        let output = Browser::new(&mut command).log_in();
        assert_ne!(output.code, Some(0), "{told}");
        let error = output.stderr.lines().last().unwrap_or_default();
        assert!(error.contains(told), "expected '{told}': {error}");
        assert!(!folder.path().join("data/oauth/s.json").exists(), "{told}");
    }
}

#[test]
fn a_login_that_cannot_be_says_why() {
    let (_authority, proxy) = logged_in(Ways::default());
    let with = |server: Value, told: &str, code: i32| {
        let folder = tempfile::tempdir().unwrap();
        let path = configure(json!({"mcpServers": {"s": server}}), folder.path());
        let mut command = mcpproxy();
        let output = Output::of(command.arg("--config").arg(path).args(["upstream", "login", "s"]));
        assert_eq!(output.code, Some(code), "{}", output.stderr);
        assert!(output.stderr.contains(told), "{}", output.stderr);
    };
    with(json!({"command": "cat"}), "it is a command", 5);
    with(json!({"url": "http://example.com/mcp"}), "plain http", 5);
    with(json!({"url": "https://a.example/", "headers": {"authorization": "x"}}), "instead", 5);
    with(json!({"url": "http://127.0.0.1:1/mcp"}), "cannot be reached", 3);
    let output = proxy.cli(&["upstream", "login", "other"]);
    assert!(output.stderr.contains("no server 'other': the config has s"), "{}", output.stderr);
}
