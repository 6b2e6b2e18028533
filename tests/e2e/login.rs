//! Upstreams that require a login: the login itself, the use of its tokens, and the logout.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Authority, Browser, Output, Proxy, Response, UNGRANTABLE, Ways, browse, configure,
    error_text, mcpproxy, stub_stdio, until,
};

fn servers(authority: &Authority) -> Value {
    json!({"s": {"url": authority.url(), "call_timeout": "10s"}})
}

fn log_in(proxy: &Proxy) -> Output {
    let output = Browser::new(&mut proxy.command(&["upstream", "login", "s"])).log_in();
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    output
}

/// Waits until the server is in `state`. Returns the reason.
fn until_state(proxy: &Proxy, state: &str) -> String {
    until(&format!("s is {state}"), || {
        let server = proxy.api("servers")["servers"][0].clone();
        (server["state"] == state).then(|| server["reason"].as_str().unwrap_or_default().to_owned())
    })
}

/// A proxy that has logged in to its server.
fn logged_in(ways: Ways) -> (Authority, Proxy) {
    let authority = Authority::start(ways);
    let proxy = Proxy::start(servers(&authority));
    log_in(&proxy);
    // A server that lists its tools without a token is already connected before the login.
    until("the token is used", || (!authority.ways().seen.is_empty()).then_some(()));
    until_state(&proxy, "connected");
    (authority, proxy)
}

fn works(proxy: &Proxy) {
    let result = proxy.client().read("s:read_item", json!({}));
    assert_eq!(result["content"][0]["text"], "seven", "{result}");
}

// ID-6
#[test]
fn login_runs_from_the_challenge_to_the_call_and_the_logout() {
    let authority = Authority::start(Ways::default());
    let logging = json!({"level": "trace"});
    let proxy = Proxy::with(json!({"mcpServers": servers(&authority), "logging": logging}));
    assert_eq!(until_state(&proxy, "needs-login"), "needs login: run mcpproxy upstream login s");
    let state = |state: &str, value: &str| {
        let line = format!("mcpproxy_upstream_state{{server=\"s\",state=\"{state}\"}} {value}\n");
        let metrics = proxy.get("/metrics").text();
        assert!(metrics.contains(&line), "{line}{metrics}");
    };
    state("needs-login", "1.0");
    state("failed", "0.0");
    let output = log_in(&proxy);
    assert!(output.stdout.contains("logged in to s"), "{}", output.stdout);
    until_state(&proxy, "connected");
    state("needs-login", "0.0");
    state("connected", "1.0");

    // Credentials of a client are not forwarded.
    let own = format!("Bearer {API_KEY}");
    let body = json!({"tool_name": "call_tool_read", "arguments": {"name": "s:read_item", "args": {}},
        "intent": {"operation_type": "read"}});
    let headers = [("Authorization", own.as_str())];
    let path = "/api/v1/tools/call";
    let answer = proxy.request("POST", path, &headers, body.to_string().as_bytes()).json();
    assert_eq!(answer["data"]["content"][0]["text"], "seven", "{answer}");
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
    until_state(&proxy, "needs-login");
}

/// Metadata with a revocation endpoint at the same origin.
fn with_revocation(authority: &Authority) -> Value {
    json!({"revocation_endpoint": format!("{}/revoke", authority.issuer())})
}

// ID-7
#[test]
fn id_7_logout_revokes_both_tokens_and_removes_them_in_any_case() {
    let authority = Authority::start(Ways::default());
    let proxy = Proxy::start(servers(&authority));
    let file = proxy.folder.path().join("data/oauth/s.json");
    let log_out = |expected: &str| {
        let out = proxy.cli(&["upstream", "logout", "s"]);
        assert_eq!(out.code, Some(0), "{}", out.stderr);
        assert!(out.stdout.contains(expected) && !out.stdout.contains("access-"), "{}", out.stdout);
        assert!(!file.exists());
        let again = proxy.cli(&["upstream", "logout", "s", "-o", "json"]).json();
        assert_eq!(again, json!({"server": "s", "was_logged_in": false, "revoked": false}));
        std::mem::take(&mut authority.ways().revoked)
    };
    log_in(&proxy);
    let revoked = log_out("no revocation endpoint (RFC 7009) was named at the login");
    assert_eq!(revoked, [""; 0]);

    authority.ways().metadata = with_revocation(&authority);
    log_in(&proxy);
    let revoked = log_out("logged out of s, tokens revoked");
    assert_eq!(revoked, ["refresh_token refresh-2", "access_token access-2"]);

    authority.ways().refuses_revocation = Some(503);
    log_in(&proxy);
    let revoked = log_out("refresh_token: the authorization server answered 503");
    assert_eq!(revoked, ["refresh_token refresh-3", "access_token access-3"], "both are tried");

    // Tokens are not sent to an address to which the login itself would not connect.
    authority.ways().metadata = json!({"revocation_endpoint": "http://192.0.2.1/revoke"});
    log_in(&proxy);
    assert_eq!(log_out("http://192.0.2.1 is plain http"), [""; 0]);

    log_in(&proxy);
    std::fs::write(&file, "no JSON").unwrap();
    assert_eq!(log_out("cannot be used"), [""; 0]);
}

// PRO-24
#[test]
fn pro_24_redirected_registrations_and_token_requests_keep_their_bodies() {
    let (authority, proxy) = logged_in(Ways { has_moved: true, ..Ways::default() });
    works(&proxy);
    authority.ways().valid.clear();
    works(&proxy);
    let ways = authority.ways();
    assert_eq!((ways.exchanged.len(), ways.renewed), (2, 1), "{:?}", ways.exchanged);
}

// ID-6
#[test]
fn token_is_renewed_before_it_expires_and_survives_a_restart() {
    let (authority, proxy) = logged_in(Ways { life: Some(5), ..Ways::default() });
    until("it is renewed", || (authority.ways().renewed > 0).then_some(()));
    authority.ways().life = None;
    until("the new one is used", || {
        works(&proxy);
        authority.saw_newest_token().then_some(())
    });
    let again = Proxy::unready(json!({"mcpServers": servers(&authority)}), proxy.end()).ready();
    until_state(&again, "connected");
    works(&again);
}

#[test]
fn renewal_in_progress_at_shutdown_is_kept() {
    let (authority, mut proxy) = logged_in(Ways { life: Some(5), ..Ways::default() });
    authority.ways().hold_refresh = true;
    let before = authority.ways().renewed;
    until("it is being renewed", || (authority.ways().renewed > before).then_some(()));
    proxy.process.signal("TERM");
    until("it ends", || TcpStream::connect(("127.0.0.1", proxy.port)).err());
    // Time for everything that ends without waiting for the renewal.
    std::thread::sleep(Duration::from_millis(500));
    let mut ways = authority.ways();
    (ways.hold_refresh, ways.life) = (false, None);
    drop(ways);
    assert_eq!(proxy.process.wait(), Some(0), "{}", proxy.log());
    let folder = std::mem::replace(&mut proxy.folder, tempfile::tempdir().unwrap());
    let again = Proxy::unready(json!({"mcpServers": servers(&authority)}), folder).ready();
    until_state(&again, "connected");
    works(&again);
}

#[test]
fn refused_token_is_renewed_and_the_call_is_sent_again() {
    let (authority, proxy) = logged_in(Ways::default());
    works(&proxy);
    authority.ways().valid.clear();
    works(&proxy);
    assert_eq!(authority.ways().renewed, 1);
    assert_eq!(authority.ways().seen.last().unwrap(), "Bearer access-2");
}

#[test]
fn refused_renewal_requires_another_login() {
    let (authority, proxy) = logged_in(Ways::default());
    {
        let mut ways = authority.ways();
        ways.valid.clear();
        ways.refuse_refresh = true;
    }
    let result = proxy.client().read("s:read_item", json!({}));
    assert!(error_text(&result).contains("needs login"), "{result}");
    assert_eq!(until_state(&proxy, "needs-login"), "needs login: run mcpproxy upstream login s");
    authority.ways().refuse_refresh = false;
    log_in(&proxy);
    until_state(&proxy, "connected");
    works(&proxy);
}

#[test]
fn token_file_readable_by_others_is_not_used() {
    let (authority, proxy) = logged_in(Ways::default());
    let folder = proxy.end();
    let file = folder.path().join("data/oauth/s.json");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let proxy = Proxy::unready(json!({"mcpServers": servers(&authority)}), folder).ready();
    let reason = until_state(&proxy, "failed");
    assert!(reason.contains("chmod 600"), "{reason}");
}

#[test]
fn unsafe_login_is_refused() {
    let huge = "x".repeat(300 * 1024);
    let metadata = |metadata: Value| Ways { metadata, ..Ways::default() };
    let resource = |resource: Value| Ways { resource, ..Ways::default() };
    for (ways, expected) in [
        (metadata(json!({"code_challenge_methods_supported": null})), "PKCE"),
        (metadata(json!({"code_challenge_methods_supported": ["plain"]})), "PKCE"),
        (metadata(json!({"issuer": "https://evil.example"})), "issuer"),
        (metadata(json!({"issuer": null})), "issuer"),
        (metadata(json!({"token_endpoint": "http://evil.example/token"})), "plain http"),
        (metadata(json!({"token_endpoint": "https://10.0.0.1/token"})), "internal address"),
        (metadata(json!({"registration_endpoint": "http://169.254.169.254/"})), "plain http"),
        (metadata(json!({"authorization_endpoint": "javascript:alert(1)"})), "https"),
        (metadata(json!({"registration_endpoint": null})), "oauth.client_id"),
        (metadata(json!({"more": huge})), "login cannot be used"),
        (resource(json!({"resource": "http://127.0.0.1:9/other"})), "mismatch"),
        (resource(json!({"authorization_servers": ["http://10.0.0.1"]})), "none published"),
        (
            Ways { place: Some("https://evil.example/m".into()), ..Ways::default() },
            "another origin",
        ),
        (Ways { issuer: Some("https://evil.example".into()), ..Ways::default() }, "issuer"),
        (Ways { open: true, ..Ways::default() }, "does not ask for a login"),
    ] {
        let authority = Authority::start(ways);
        let folder = tempfile::tempdir().unwrap();
        let path = configure(json!({"mcpServers": servers(&authority)}), folder.path());
        let mut command = mcpproxy();
        command.arg("--config").arg(path).args(["upstream", "login", "s"]);
        let output = Browser::new(&mut command).log_in();
        assert_ne!(output.code, Some(0), "{expected}");
        let error = output.stderr.lines().last().unwrap_or_default();
        assert!(error.contains(expected), "expected '{expected}': {error}");
        assert!(!folder.path().join("data/oauth/s.json").exists(), "{expected}");
    }
}

#[test]
fn impossible_login_is_refused_with_the_reason() {
    let (_authority, proxy) = logged_in(Ways::default());
    let with = |server: Value, reason: &str, code: i32| {
        let folder = tempfile::tempdir().unwrap();
        let path = configure(json!({"mcpServers": {"s": server}}), folder.path());
        let mut command = mcpproxy();
        let output = Output::of(command.arg("--config").arg(path).args(["upstream", "login", "s"]));
        assert_eq!(output.code, Some(code), "{}", output.stderr);
        assert!(output.stderr.contains(reason), "{}", output.stderr);
    };
    with(json!({"command": "cat"}), "it is a command", 1);
    with(json!({"url": "http://example.com/mcp"}), "plain http", 5);
    with(json!({"url": "https://a.example/", "headers": {"authorization": "x"}}), "instead", 5);
    with(json!({"url": "http://127.0.0.1:1/mcp"}), "cannot be reached", 3);
    let output = proxy.cli(&["upstream", "login", "other"]);
    assert!(output.stderr.contains("no server 'other': the config has s"), "{}", output.stderr);
}

/// Requests that need no token at a server which requires a login only later.
const GREETING: &[&str] = &["initialize", "notifications/initialized"];
const ALL_BUT_CALLS: &[&str] =
    &["server/discover", "initialize", "notifications/initialized", "tools/list"];

/// Waits until a server's reason matches.
fn until_reason(proxy: &Proxy, expected: impl Fn(&str) -> bool) -> Value {
    until("its reason matches", || {
        let server = proxy.api("servers")["servers"][0].clone();
        expected(server["reason"].as_str().unwrap_or_default()).then_some(server)
    })
}

#[test]
fn server_that_challenges_after_initialize_is_logged_in_to() {
    let authority = Authority::start(Ways { free: GREETING, ..Ways::default() });
    let proxy = Proxy::start(servers(&authority));
    assert_eq!(until_state(&proxy, "needs-login"), "needs login: run mcpproxy upstream login s");
    log_in(&proxy);
    until_state(&proxy, "connected");
    works(&proxy);
    assert_eq!(authority.ways().asked, ["mcp"], "the scope of the challenge");
}

#[test]
fn server_that_challenges_only_calls_is_logged_in_to() {
    let authority = Authority::start(Ways { free: ALL_BUT_CALLS, ..Ways::default() });
    let proxy = Proxy::start(servers(&authority));
    until_state(&proxy, "connected");
    let refused = proxy.client().read("s:read_item", json!({}));
    let needs = "needs login: run mcpproxy upstream login s";
    assert!(error_text(&refused).contains(needs), "{refused}");
    let server = until_reason(&proxy, |reason| reason == needs);
    assert_eq!(server["state"], "connected", "requests without a login continue");
    log_in(&proxy);
    until_reason(&proxy, str::is_empty);
    until_state(&proxy, "connected");
    works(&proxy);
}

#[test]
fn token_refused_only_at_a_call_is_renewed() {
    let (authority, proxy) = logged_in(Ways { free: ALL_BUT_CALLS, ..Ways::default() });
    works(&proxy);
    authority.ways().valid.clear();
    works(&proxy);
    let ways = authority.ways();
    assert_eq!((ways.renewed, ways.seen.last().unwrap().as_str()), (1, "Bearer access-2"));
}

#[test]
fn server_that_refuses_every_token_gets_a_bounded_number_of_renewals() {
    const TOKENS: u64 = 3;
    let (authority, proxy) = logged_in(Ways { free: ALL_BUT_CALLS, ..Ways::default() });
    authority.ways().takes_none = true;
    let mut client = proxy.client();
    until("no more is tried", || {
        let refused = client.read("s:read_item", json!({}));
        assert!(!error_text(&refused).is_empty(), "{refused}");
        let reported = proxy.api("servers")["servers"][0]["reason"].to_string();
        (reported.contains("rejected 4 tokens in a row; needs login")).then_some(())
    });
    assert_eq!(authority.ways().renewed, TOKENS);
    authority.ways().takes_none = false;
    log_in(&proxy);
    until_state(&proxy, "connected");
    works(&proxy);
}

#[test]
fn call_that_needs_a_further_scope_reports_it_and_the_next_login_requests_both() {
    let scope = Some(("tools/call", "items:read"));
    let (authority, proxy) = logged_in(Ways { scope, ..Ways::default() });
    let needs = "needs login with scope items:read: run mcpproxy upstream login s";
    let refused = proxy.client().read("s:read_item", json!({}));
    assert!(error_text(&refused).contains(needs), "{refused}");
    let server = until_reason(&proxy, |reason| reason == needs);
    assert_eq!(server["state"], "connected", "requests without a further scope continue");
    log_in(&proxy);
    until_reason(&proxy, str::is_empty);
    works(&proxy);
    log_in(&proxy);
    let both = "mcp items:read";
    assert_eq!(authority.ways().asked, ["mcp", both, both], "requested scopes are kept");
}

#[test]
fn scope_that_no_login_grants_is_requested_a_bounded_number_of_times() {
    let scope = Some(("tools/call", UNGRANTABLE));
    let (authority, proxy) = logged_in(Ways { scope, ..Ways::default() });
    let mut client = proxy.client();
    for logins in 1..=3 {
        client.read("s:read_item", json!({}));
        let reason = until_reason(&proxy, |reason| reason.contains(UNGRANTABLE));
        let reason = reason["reason"].as_str().unwrap().to_owned();
        if logins == 3 {
            assert!(
                reason.ends_with("though 2 logins have requested it: another login does not help"),
                "{reason}"
            );
            assert!(!reason.contains("upstream login"), "{reason}");
            break;
        }
        assert!(reason.ends_with("run mcpproxy upstream login s"), "{reason}");
        log_in(&proxy);
        until_reason(&proxy, str::is_empty);
    }
    assert_eq!(authority.ways().asked.len(), 3);
}

#[test]
fn new_authorization_server_receives_no_data_of_the_previous_one() {
    let (authority, proxy) = logged_in(Ways::default());
    let audience = Some(authority.url());
    let new = Authority::start(Ways { audience, tokens: Some("new"), ..Ways::default() });
    {
        let mut ways = authority.ways();
        ways.resource = json!({"authorization_servers": [new.issuer()]});
        ways.valid = vec!["new-1".to_owned()];
    }
    let refused = proxy.client().read("s:read_item", json!({}));
    assert!(error_text(&refused).contains("needs login"), "{refused}");
    let reason = until_state(&proxy, "needs-login");
    assert!(reason.starts_with("its authorization server has changed"), "{reason}");
    assert_eq!(authority.ways().renewed, 0, "its tokens are not used there");
    log_in(&proxy);
    until_state(&proxy, "connected");
    works(&proxy);
    let ways = new.ways();
    assert!(!ways.redirect.is_empty(), "the client registers again");
    let reported = ways.exchanged.concat();
    assert!(!reported.contains("refresh-1") && !reported.contains("access-1"), "{reported}");
}

#[test]
fn manually_registered_client_is_not_disclosed_to_another_authorization_server() {
    for issuer in [false, true] {
        let client = Some("by-hand");
        let authority = Authority::start(Ways { client, ..Ways::default() });
        let mut servers = servers(&authority);
        servers["s"]["oauth"] = json!({"client_id": "by-hand", "client_secret": "hidden"});
        if issuer {
            servers["s"]["oauth"]["issuer"] = authority.issuer().into();
        }
        let proxy = Proxy::start(servers);
        if !issuer {
            log_in(&proxy);
        }
        let audience = Some(authority.url());
        let new = Authority::start(Ways { audience, client, ..Ways::default() });
        authority.ways().resource = json!({"authorization_servers": [new.issuer()]});
        let output = Browser::new(&mut proxy.command(&["upstream", "login", "s"])).log_in();
        assert_eq!(output.code, Some(5), "{}", output.stderr);
        let expected = format!("registered at {}", authority.issuer());
        assert!(output.stderr.contains(&expected), "{}", output.stderr);
        let ways = new.ways();
        assert!(
            ways.clients.is_empty() && ways.exchanged.is_empty(),
            "the new authorization server received a request"
        );
    }
}

#[test]
fn client_with_a_metadata_document_is_identified_by_its_url() {
    const PLACE: &str = "https://client.example/mcpproxy.json";
    for (reads, id) in [(true, PLACE), (false, "c1")] {
        let metadata = json!({"client_id_metadata_document_supported": reads});
        let authority =
            Authority::start(Ways { metadata, client: reads.then_some(PLACE), ..Ways::default() });
        let mut servers = servers(&authority);
        servers["s"]["oauth"] = json!({"client_metadata_url": PLACE});
        let proxy = Proxy::start(servers);
        log_in(&proxy);
        until_state(&proxy, "connected");
        works(&proxy);
        assert_eq!(authority.ways().clients, [id]);
    }
}

#[test]
fn error_sent_by_another_issuer_is_not_shown() {
    for (issuer, expected, hidden) in [
        (None, "words of a stranger", "does not come from the issuer"),
        (Some("https://evil.example"), "does not come from the issuer", "words of a stranger"),
    ] {
        let issuer = issuer.map(str::to_owned);
        let authority = Authority::start(Ways { denied: true, issuer, ..Ways::default() });
        let proxy = Proxy::start(servers(&authority));
        let output = Browser::new(&mut proxy.command(&["upstream", "login", "s"])).log_in();
        assert_eq!(output.code, Some(1), "{}", output.stderr);
        assert!(output.stderr.contains(expected), "{}", output.stderr);
        assert!(!output.stderr.contains(hidden), "{}", output.stderr);
    }
}

fn begin(proxy: &Proxy, server: &str) -> Response {
    let path = format!("/api/v1/servers/{server}/login");
    proxy.request("POST", &path, &[("X-API-Key", API_KEY)], b"")
}

#[test]
fn login_is_started_over_rest_and_finished_in_the_browser() {
    let authority = Authority::start(Ways::default());
    let mut servers = servers(&authority);
    servers["child"] = stub_stdio(&[]);
    servers["off"] = json!({"url": authority.url(), "enabled": false});
    let proxy = Proxy::start(servers);
    let server = |name: &str| {
        let all = proxy.api("servers");
        all["servers"].as_array().unwrap().iter().find(|it| it["name"] == name).unwrap().clone()
    };
    assert_eq!(server("s").get("login"), None);
    let begun = begin(&proxy, "s");
    assert_eq!(begun.status, 200, "{}", begun.text());
    let address = begun.json()["data"]["open"].as_str().unwrap().to_owned();
    assert!(address.starts_with(&format!("{}/authorize?", authority.issuer())), "{address}");
    let standing = server("s")["login"].clone();
    assert_eq!((&standing["state"], &standing["open"]), (&json!("waiting"), &json!(address)));
    assert_eq!(begin(&proxy, "s").json()["data"]["open"], json!(address), "one at a time");
    browse(&address);
    until("s is connected", || (server("s")["state"] == "connected").then_some(()));
    until("it is over", || server("s").get("login").is_none().then_some(()));
    works(&proxy);
    // The principal and the outcome are recorded, without an address or a token.
    let is_reported = |word: &str| {
        let records = proxy.activity("type=server_change&server=s&principal=admin");
        let found: Vec<_> = records.iter().filter(|it| it["metadata"]["login"] == word).collect();
        (found.len(), found.first().map(|it| it["source"].clone()))
    };
    assert_eq!(is_reported("began"), (1, Some(json!("api"))));
    assert_eq!(is_reported("granted"), (1, Some(json!("api"))));
    let log = proxy.get("/api/v1/activity/export").text() + &proxy.log();
    assert!(!log.contains("access-1") && !log.contains("/authorize?"), "{log}");
    for (name, status, why) in [
        ("child", 409, "it is a command"),
        ("off", 409, "it is disabled"),
        ("nobody", 404, "no server 'nobody'"),
    ] {
        let refused = begin(&proxy, name);
        assert_eq!(refused.status, status, "{}", refused.text());
        assert!(refused.text().contains(why), "{}", refused.text());
    }
    assert_eq!(server("child")["login"]["state"], "failed");
}

#[test]
fn denied_login_is_reported_and_can_be_started_again() {
    let authority = Authority::start(Ways { denied: true, ..Ways::default() });
    let mut proxy = Proxy::start(servers(&authority));
    let address =
        |proxy: &Proxy| begin(proxy, "s").json()["data"]["open"].as_str().unwrap().to_owned();
    let first = address(&proxy);
    browse(&first);
    let why = until("it has failed", || {
        let login = proxy.api("servers")["servers"][0]["login"].clone();
        (login["state"] == "failed").then(|| login["reason"].as_str().unwrap().to_owned())
    });
    assert!(why.starts_with("nothing was granted: access_denied"), "{why}");
    let failed = proxy.activity("type=server_change&principal=admin&status=error");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_ne!(address(&proxy), first);
    // A login that waits for the browser does not delay the shutdown.
    proxy.process.signal("TERM");
    assert_eq!(proxy.process.wait(), Some(0), "{}", proxy.log());
}

#[test]
fn pro_25_irregular_token_responses_are_accepted_and_the_browser_shows_the_outcome() {
    let open =
        |proxy: &Proxy| begin(proxy, "s").json()["data"]["open"].as_str().unwrap().to_owned();
    let odd = json!({"token_type": "user", "expires_in": "5250", "scope": "a,b"});
    let authority = Authority::start(Ways { tokens_as: odd, ..Ways::default() });
    let slashed = format!("{}/", authority.url());
    authority.ways().resource = json!({"resource": slashed});
    authority.ways().audience = Some(slashed);
    let proxy = Proxy::start(servers(&authority));
    assert_eq!(browse(&open(&proxy)), "The login succeeded. This page can be closed.");
    until_state(&proxy, "connected");
    works(&proxy);

    let refused = json!({"access_token": null, "ok": false, "error": "invalid_code"});
    let authority = Authority::start(Ways { tokens_as: refused, ..Ways::default() });
    let proxy = Proxy::start(servers(&authority));
    let page = browse(&open(&proxy));
    assert!(page.starts_with("The login failed: ") && page.contains("invalid_code"), "{page}");
}
