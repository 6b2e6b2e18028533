//! Upstreams whose tokens are requested without a person: the grant `client_credentials`.

use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use serde_json::{Value, json};

use crate::harness::{API_KEY, Authority, Output, Proxy, UNGRANTABLE, Ways, error_text, until};
use crate::reload::reload;

const CLIENT: &str = "robot";
const SECRET: &str = "hush-of-the-robot";

fn ways() -> Ways {
    Ways { client: Some(CLIENT), secret: Some(SECRET), ..Ways::default() }
}

fn oauth() -> Value {
    json!({"grant": "client_credentials", "client_id": CLIENT, "client_secret": SECRET})
}

fn config(authority: &Authority, oauth: Value) -> Value {
    let server = json!({"url": authority.url(), "call_timeout": "10s", "oauth": oauth});
    json!({"mcpServers": {"s": server}, "logging": {"level": "trace"}})
}

/// A proxy whose server is connected without a login.
fn connected(ways: Ways) -> (Authority, Proxy) {
    let authority = Authority::start(ways);
    let proxy = Proxy::with(config(&authority, oauth()));
    until_reason(&proxy, "connected", "");
    (authority, proxy)
}

/// Waits until the server is in `state` with a reason that contains `words`. Returns the reason.
fn until_reason(proxy: &Proxy, state: &str, words: &str) -> String {
    until(&format!("s is {state}: {words}"), || {
        let server = proxy.api("servers")["servers"][0].clone();
        let reason = server["reason"].as_str().unwrap_or_default().to_owned();
        (server["state"] == state && reason.contains(words)).then_some(reason)
    })
}

fn restart(proxy: &Proxy) {
    let restarted = proxy.cli(&["upstream", "restart", "s"]);
    assert_eq!(restarted.code, Some(0), "{}", restarted.stderr);
}

fn works(proxy: &Proxy) {
    let result = proxy.client().read("s:read_item", json!({}));
    assert_eq!(result["content"][0]["text"], "seven", "{result}");
}

/// Asserts that neither the secret nor a token is shown anywhere.
fn assert_nothing_disclosed(proxy: &Proxy, outputs: &[&Output]) {
    let paths = ["/api/v1/activity/export", "/api/v1/servers", "/api/v1/status", "/metrics"];
    let key = [("X-API-Key", API_KEY)];
    let mut shown: Vec<String> =
        paths.iter().map(|path| proxy.request("GET", path, &key, b"").text()).collect();
    shown.push(proxy.log());
    shown.extend(outputs.iter().map(|output| format!("{}{}", output.stdout, output.stderr)));
    let pair = base64::engine::general_purpose::STANDARD.encode(format!("{CLIENT}:{SECRET}"));
    for secret in [SECRET, &*pair, "access-1", "access-2"] {
        for text in &shown {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }
}

#[test]
fn id_6_client_credentials_get_a_token_without_a_person_and_calls_pass() {
    for posts_secret in [false, true] {
        // The authorization server supports no logins by persons.
        let mut metadata = json!({"authorization_endpoint": null, "registration_endpoint": null,
            "code_challenge_methods_supported": null, "response_types_supported": null});
        if posts_secret {
            metadata["token_endpoint_auth_methods_supported"] = json!(["client_secret_post"]);
        }
        let (authority, proxy) = connected(Ways { posts_secret, metadata, ..ways() });
        works(&proxy);
        {
            let ways = authority.ways();
            assert_eq!(ways.exchanged.len(), 1, "{:?}", ways.exchanged);
            assert_eq!(ways.asked, ["mcp"], "the challenged scope");
            assert!(ways.seen.iter().all(|header| header == "Bearer access-1"), "{:?}", ways.seen);
        }
        let file = proxy.folder.path().join("data/oauth/s.json");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!std::fs::read_to_string(&file).unwrap().contains(SECRET));
        assert_nothing_disclosed(&proxy, &[]);
        let path = "/api/v1/servers/s/login";
        let refused = proxy.request("POST", path, &[("X-API-Key", API_KEY)], b"");
        assert_eq!(refused.status, 409, "{}", refused.text());
        assert!(refused.text().contains("no login is needed"), "{}", refused.text());
    }
}

#[test]
fn id_6_token_of_a_client_is_renewed_before_expiry_and_after_a_401_and_survives_a_restart() {
    let (authority, proxy) = connected(Ways { life: Some(5), ..ways() });
    until("it is renewed before a request needs it", || (authority.ways().given > 1).then_some(()));
    authority.ways().life = None;
    until("the new one is used", || {
        works(&proxy);
        authority.saw_newest_token().then_some(())
    });
    until("the next one does not expire", || {
        let file = proxy.folder.path().join("data/oauth/s.json");
        (!std::fs::read_to_string(file).unwrap().contains("expires_at")).then_some(())
    });
    works(&proxy);
    let given = authority.ways().given;
    authority.ways().valid.clear();
    works(&proxy);
    assert_eq!(authority.ways().given, given + 1);
    let again = Proxy::unready(config(&authority, oauth()), proxy.end()).ready();
    until_reason(&again, "connected", "");
    works(&again);
    assert_eq!(authority.ways().given, given + 1, "the stored token is used");
}

#[test]
fn id_6_refused_client_is_reported_and_asks_a_bounded_number_of_times() {
    let why = format!("the secret {SECRET} is wrong");
    let body = json!({"error": "invalid_client", "error_description": why});
    let authority = Authority::start(Ways { refuses_client: Some((401, body)), ..ways() });
    let proxy = Proxy::with(config(&authority, oauth()));
    let reason = until_reason(&proxy, "failed", "invalid_client");
    for words in ["oauth.client_id, oauth.client_secret", "run mcpproxy upstream login s"] {
        assert!(reason.contains(words) && !reason.contains(SECRET), "{reason}");
    }
    let refused = proxy.client().read("s:read_item", json!({}));
    assert!(!error_text(&refused).contains("needs a login"), "{refused}");
    for _ in 0..2 {
        // A manual restart tries at once, without waiting for the backoff of the connection.
        let restarted = proxy.cli(&["upstream", "restart", "s"]);
        assert_ne!(restarted.code, Some(0), "{}", restarted.stdout);
    }
    assert_eq!(authority.ways().exchanged.len(), 1, "attempts cause no further request");
    let failed = proxy.cli(&["upstream", "login", "s"]);
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert!(failed.stderr.contains("nothing was granted: invalid_client"), "{}", failed.stderr);
    assert!(authority.ways().seen.is_empty(), "no request carries a token");

    authority.ways().refuses_client = None;
    let granted = proxy.cli(&["upstream", "login", "s", "-o", "json"]);
    assert_eq!(granted.code, Some(0), "{}", granted.stderr);
    let expected =
        json!({"server": "s", "issuer": authority.issuer(), "scopes": ["mcp"], "renewable": true});
    assert_eq!(granted.json(), expected);
    until_reason(&proxy, "connected", "");
    works(&proxy);
    assert_nothing_disclosed(&proxy, &[&failed, &granted]);
}

#[test]
fn id_6_server_that_rejects_every_token_gets_a_bounded_number_of_them() {
    const TOKENS: u64 = 4;
    let authority = Authority::start(Ways { takes_none: true, ..ways() });
    let proxy = Proxy::with(config(&authority, oauth()));
    let reason = until_reason(&proxy, "failed", "it rejects every token");
    assert!(reason.contains(&authority.issuer()), "{reason}");
    assert_eq!(authority.ways().given, TOKENS);
    authority.ways().takes_none = false;
    let granted = proxy.cli(&["upstream", "login", "s"]);
    assert_eq!(granted.code, Some(0), "{}", granted.stderr);
    until_reason(&proxy, "connected", "");
    works(&proxy);
}

#[test]
fn id_6_token_of_a_client_is_not_used_after_its_config_has_changed() {
    let (_authority, proxy) = connected(ways());
    works(&proxy);
    // The URL of the server has changed.
    let other = Authority::start(Ways { tokens: Some("other"), ..ways() });
    reload(&proxy, &config(&other, oauth()));
    until("the other one is asked", || (!other.ways().seen.is_empty()).then_some(()));
    until_reason(&proxy, "connected", "");
    works(&proxy);
    assert!(other.ways().seen.iter().all(|header| header == "Bearer other-1"), "only its own");

    // The client id has changed.
    let seen = {
        let mut ways = other.ways();
        (ways.client, ways.secret) = (Some("second"), Some("another-hush"));
        ways.seen.len()
    };
    let second = json!({"grant": "client_credentials", "client_id": "second",
        "client_secret": "another-hush", "scopes": ["own"]});
    reload(&proxy, &config(&other, second.clone()));
    until("it has a token", || (other.ways().given == 2).then_some(()));
    until_reason(&proxy, "connected", "");
    works(&proxy);
    let sent = other.ways().seen.split_off(seen);
    // The previous connection is closed with the token that it used.
    let first = sent.iter().position(|header| header == "Bearer other-2").unwrap();
    assert!(sent[first..].iter().all(|header| header == "Bearer other-2"), "{sent:?}");
    assert_eq!(other.ways().asked, ["mcp", "own"]);

    // The issuer has changed: neither the token nor the secret is sent.
    let exchanged = other.ways().exchanged.len();
    let seen = other.ways().seen.len();
    let mut elsewhere = second.clone();
    elsewhere["issuer"] = "https://as.example".into();
    reload(&proxy, &config(&other, elsewhere));
    until_reason(&proxy, "failed", "registered at https://as.example");
    assert_eq!(other.ways().exchanged.len(), exchanged);

    // The grant is no longer configured: its token does not replace a login.
    reload(
        &proxy,
        &config(&other, json!({"client_id": "second", "client_secret": "another-hush"})),
    );
    until_reason(&proxy, "needs-login", "");
    let sent = other.ways().seen.split_off(seen);
    assert!(!sent.iter().any(|header| header != "Bearer other-2"), "{sent:?}");
    assert!(sent.len() <= 1, "at most the end of the previous connection: {sent:?}");
}

#[test]
fn id_6_secret_is_not_sent_to_another_authorization_server() {
    let (authority, proxy) = connected(ways());
    let audience = Some(authority.url());
    let new = Authority::start(Ways { audience, ..ways() });
    {
        let mut ways = authority.ways();
        ways.resource = json!({"authorization_servers": [new.issuer()]});
        ways.valid.clear();
    }
    let refused = proxy.client().read("s:read_item", json!({}));
    assert!(!error_text(&refused).is_empty(), "{refused}");
    let expected = format!("registered at {}", authority.issuer());
    until_reason(&proxy, "failed", &expected);
    assert!(new.ways().exchanged.is_empty(), "the new authorization server received a request");
}

#[test]
fn id_6_scope_that_the_server_requires_is_requested_once_unless_scopes_are_configured() {
    for (scope, own, asked, reason) in [
        ("items:read", json!([]), &["mcp", "mcp items:read"][..], ""),
        (
            UNGRANTABLE,
            json!([]),
            &["mcp", "mcp nobodys"],
            "has to be granted to client robot at http://",
        ),
        ("items:read", json!(["mine"]), &["mine"], "add it to oauth.scopes"),
    ] {
        let authority = Authority::start(Ways { scope: Some(("tools/call", scope)), ..ways() });
        let mut oauth = oauth();
        oauth["scopes"] = own;
        let proxy = Proxy::with(config(&authority, oauth));
        until_reason(&proxy, "connected", "");
        let mut client = proxy.client();
        let refused = client.read("s:read_item", json!({}));
        assert!(
            error_text(&refused).contains(&format!("its token lacks scope {scope}")),
            "{refused}"
        );
        until("the scope is requested", || {
            (authority.ways().asked.len() == asked.len()).then_some(())
        });
        match reason {
            "" => until("calls pass", || {
                let result = client.read("s:read_item", json!({}));
                (result["content"][0]["text"] == "seven").then_some(())
            }),
            reason => {
                until("it is reported", || {
                    client.read("s:read_item", json!({}));
                    let server = proxy.api("servers")["servers"][0].clone();
                    server["reason"].as_str().unwrap().contains(reason).then_some(())
                });
            }
        }
        // A new connection does not request the scope again.
        restart(&proxy);
        until_reason(&proxy, "connected", reason);
        assert_eq!(authority.ways().asked, asked);
    }
}

#[test]
fn id_6_refused_scope_leaves_the_token_of_a_client_in_use_and_renewable() {
    let scope = Some(("tools/call", "items:read"));
    let (authority, proxy) = connected(Ways { scope, ..ways() });
    authority.ways().refuses_client = Some((400, json!({"error": "invalid_scope"})));
    let mut client = proxy.client();
    client.read("s:read_item", json!({}));
    until_reason(&proxy, "connected", "has to be granted to client robot");
    until("it is requested", || (authority.ways().exchanged.len() == 2).then_some(()));
    restart(&proxy);
    until_reason(&proxy, "connected", "has to be granted to client robot");
    {
        let mut ways = authority.ways();
        assert_eq!(ways.exchanged.len(), 2, "{:?}", ways.exchanged);
        (ways.refuses_client, ways.scope) = (None, None);
        ways.valid.clear();
    }
    works(&proxy);
    assert_eq!(authority.ways().asked, ["mcp", "mcp"], "the refused scope is left out");
}

#[test]
fn id_6_logout_revokes_the_token_of_a_client_which_gets_another_one() {
    let (authority, proxy) = connected(ways());
    authority.ways().metadata =
        json!({"revocation_endpoint": format!("{}/revoke", authority.issuer())});
    let login = proxy.cli(&["upstream", "login", "s"]);
    assert_eq!(login.code, Some(0), "{}", login.stderr);
    let logout = proxy.cli(&["upstream", "logout", "s"]);
    assert!(logout.stdout.contains("logged out of s, tokens revoked"), "{}", logout.stdout);
    assert_eq!(authority.ways().revoked, ["access_token access-2"]);
    works(&proxy);
    assert_eq!(authority.ways().seen.last().unwrap(), "Bearer access-3");
    assert_nothing_disclosed(&proxy, &[&login, &logout]);
}
