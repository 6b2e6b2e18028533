//! Egress proxies (NET-9) for host names that only the egress proxy can resolve: over http and https, configured by the
//! environment and for single servers.

use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{
    CertificateAuthority, Connection, EgressProxy, EgressWay, HttpStub, Output, Proxy, Received,
    Recorder, Reply, configure, mcpproxy, until, write_private,
};
use crate::tls::reason_of;

/// A host name that never resolves (RFC 6761 §6.4).
const HOST: &str = "mcp.corp.invalid";

/// The stub over TLS, with a certificate for `host`.
pub(crate) fn secure_stub(ca: &CertificateAuthority, host: &str) -> Recorder {
    let stub = HttpStub::shared().port;
    Recorder::secure(&ca.server(&[host]), move |_, received| {
        let method = received.head[0].split(' ').next().unwrap().to_owned();
        let mut connection = Connection::open(stub);
        connection.send(&method, "/mcp", &[], &received.body);
        let response = connection.response();
        match response.status {
            200 => Reply::Http("200 OK", "content-type: application/json\r\n", response.body),
            202 => Reply::Http("202 Accepted", "", Vec::new()),
            _ => Reply::Http("405 Method Not Allowed", "", Vec::new()),
        }
    })
}

/// Starts a proxy with `servers` and environment variables.
fn start(servers: Value, variables: &[(&str, String)]) -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    start_in(folder, json!({"mcpServers": servers}), variables)
}

fn start_in(folder: tempfile::TempDir, config: Value, variables: &[(&str, String)]) -> Proxy {
    let mut command = mcpproxy();
    set(&mut command, variables);
    Proxy::by(command, config, folder).ready()
}

/// Sets the given proxy variables and unsets the others.
fn set(command: &mut Command, variables: &[(&str, String)]) {
    for name in ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.envs(variables.iter().map(|(name, value)| (*name, value)));
}

/// Result of a call of the stub's `echo` at a server.
fn echo(proxy: &Proxy, server: &str) -> String {
    proxy.client().read(&format!("{server}:echo"), json!({"text": "far"})).to_string()
}

#[test]
fn net_9_https_server_is_reached_through_a_tunnel_and_http_server_by_forwarding() {
    let ca = CertificateAuthority::new("ca");
    let (secure, plain) = (secure_stub(&ca, HOST).port, HttpStub::shared().port);
    let egress = EgressProxy::start(EgressWay::Password("Basic dXNlcjpzM2NyZXQtcHc="));
    let folder = tempfile::tempdir().unwrap();
    write_private(&folder.path().join("ca.pem"), &ca.pem);
    let servers = json!({
        "secure": {"url": format!("https://{HOST}:{secure}/mcp"), "tls": {"ca": "ca.pem"}},
        "plain": {"url": format!("http://{HOST}:{plain}/mcp")},
        "local": {"url": format!("http://127.0.0.1:{plain}/mcp")},
    });
    let url = format!("http://user:s3cret-pw@127.0.0.1:{}", egress.port);
    let proxy = start_in(folder, json!({"mcpServers": servers}), &[("ALL_PROXY", url)]);
    for server in ["secure", "plain", "local"] {
        let answer = echo(&proxy, server);
        assert!(answer.contains("far") && !answer.contains("\"isError\":true"), "{answer}");
    }
    let lines = egress.lines();
    let tunnel = format!("CONNECT {HOST}:{secure} HTTP/1.1");
    let forward = format!("POST http://{HOST}:{plain}/mcp HTTP/1.1");
    assert!(lines.contains(&tunnel) && lines.contains(&forward), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("127.0.0.1")), "{lines:?}");
    proxy.assert_logged(&format!("proxy 127.0.0.1:{} (ALL_PROXY)", egress.port));
    let log = proxy.log();
    assert!(!log.contains("s3cret-pw") && !log.contains("dXNlcjpzM2NyZXQtcHc="), "{log}");
    proxy.end();
}

#[test]
fn net_9_proxy_of_a_server_takes_precedence_and_follows_reloads() {
    let plain = HttpStub::shared().port;
    let (first, second) =
        (EgressProxy::start(EgressWay::Open), EgressProxy::start(EgressWay::Open));
    let entry = |proxy: &str| {
        let url = format!("http://{HOST}:{plain}/mcp");
        json!({"mcpServers": {"s": {"url": url, "proxy": proxy}}})
    };
    let folder = tempfile::tempdir().unwrap();
    let variables = [("HTTP_PROXY", "http://127.0.0.1:1".to_owned()), ("NO_PROXY", "*".to_owned())];
    write_private(&folder.path().join("proxy"), &first.url());
    let of_file = format!("${{file:{}}}", folder.path().join("proxy").display());
    let proxy = start_in(folder, entry(&of_file), &variables);
    assert!(echo(&proxy, "s").contains("far"));
    assert!(!first.heads().is_empty());
    configure(entry(&second.url()), proxy.folder.path());
    until("the second proxy is used", || (!second.heads().is_empty()).then_some(()));
    until("the server is back", || echo(&proxy, "s").contains("far").then_some(()));
    proxy.end();
}

#[test]
fn net_9_error_of_a_plain_request_names_the_proxy_that_may_have_answered() {
    let answer = "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n";
    let egress = EgressProxy::start(EgressWay::Answers(answer));
    let servers = json!({"s": {"url": format!("http://{HOST}/mcp")}});
    let proxy = start(servers, &[("HTTP_PROXY", egress.url())]);
    let reason = reason_of(&proxy, "s");
    let named = format!("this may be the answer of proxy 127.0.0.1:{} (HTTP_PROXY)", egress.port);
    assert!(reason.contains("HTTP 503") && reason.contains(&named), "{reason}");
    proxy.end();
}

#[test]
fn net_9_refusing_proxy_is_named_with_setting_and_status() {
    for (way, variable, what) in [
        (
            EgressWay::Password("Basic x"),
            "HTTPS_PROXY",
            "407 Proxy Authentication Required; check the user",
        ),
        (
            EgressWay::Answers("HTTP/1.1 403 No\r\n\r\n"),
            "HTTPS_PROXY",
            "403 Forbidden; allow the destination",
        ),
        (EgressWay::Answers("HTTP/1.1 502 No\r\n\r\n"), "https_proxy", "502 Bad Gateway"),
        (EgressWay::Answers("what?"), "ALL_PROXY", "does not speak HTTP"),
        (EgressWay::Answers(""), "ALL_PROXY", "closed the connection without an answer"),
    ] {
        let egress = EgressProxy::start(way);
        let servers = json!({"s": {"url": format!("https://{HOST}/mcp")}});
        let url = format!("http://user:s3cret-pw@127.0.0.1:{}", egress.port);
        let proxy = start(servers, &[(variable, url)]);
        let reason = reason_of(&proxy, "s");
        let named = format!("proxy 127.0.0.1:{} ({variable})", egress.port);
        assert!(reason.contains(&named) && reason.contains(what), "{what}: {reason}");
        assert!(!reason.contains("s3cret-pw") && !proxy.log().contains("s3cret-pw"), "{reason}");
        proxy.end();
    }
}

/// Reply of a server that requires a login at an authorization server with an internal address.
fn server_that_names_an_internal_address(received: &Received) -> Reply {
    let host = received.headers("host")[0];
    let (status, header, body) = match received.head[0].contains("/.well-known/") {
        true => {
            let resource = format!("https://{host}/mcp");
            let servers = ["https://10.0.0.1"];
            let body = json!({"resource": resource, "authorization_servers": servers});
            ("200 OK", "content-type: application/json".to_owned(), body.to_string())
        }
        false => {
            let metadata = format!("https://{host}/.well-known/oauth-protected-resource/mcp");
            let challenge = format!("www-authenticate: Bearer resource_metadata=\"{metadata}\"");
            ("401 Unauthorized", challenge, String::new())
        }
    };
    let head = format!("HTTP/1.1 {status}\r\n{header}\r\ncontent-length: {}", body.len());
    Reply::Raw(format!("{head}\r\n\r\n{body}").into_bytes())
}

#[test]
fn net_9_login_through_a_proxy_refuses_internal_addresses_named_by_a_server() {
    let ca = CertificateAuthority::new("ca");
    let server = Recorder::secure(&ca.server(&[HOST]), |_, received| {
        server_that_names_an_internal_address(received)
    });
    let egress = EgressProxy::start(EgressWay::Open);
    let folder = tempfile::tempdir().unwrap();
    write_private(&folder.path().join("ca.pem"), &ca.pem);
    let servers = json!({"s": {"url": format!("https://{HOST}:{}/mcp", server.port)}});
    let config = configure(json!({"mcpServers": servers}), folder.path());
    let mut command = mcpproxy();
    set(&mut command, &[("HTTPS_PROXY", egress.url())]);
    command.env("SSL_CERT_FILE", folder.path().join("ca.pem"));
    let login = command.arg("--config").arg(config).args(["upstream", "login", "s"]);
    let output = Output::of(login);
    assert_ne!(output.code, Some(0), "{}", output.stderr);
    let asked = server.received();
    let metadata = |it: &Received| it.head[0].contains("/.well-known/oauth-protected-resource");
    assert!(asked.iter().any(metadata), "the login read its metadata: {}", output.stderr);
    assert_eq!(egress.lines(), [format!("CONNECT {HOST}:{} HTTP/1.1", server.port)]);
}

#[test]
fn net_9_doctor_shows_the_proxies_in_force_and_the_way_to_each_server() {
    let folder = tempfile::tempdir().unwrap();
    let servers = json!({
        "a": {"url": "https://a.invalid/mcp", "enabled": true},
        "b": {"url": "https://b.corp.invalid/mcp"},
        "c": {"url": "https://c.invalid/mcp", "proxy": "none"},
        "d": {"url": "https://d.invalid/mcp", "proxy": "http://u:s3cret-pw@127.0.0.1:1"},
        "e": {"url": "http://127.0.0.1:1/mcp"},
    });
    let config = configure(json!({"mcpServers": servers}), folder.path());
    let mut command = mcpproxy();
    let variables = [
        ("HTTPS_PROXY", "http://u:s3cret-pw@127.0.0.1:2".to_owned()),
        ("HTTP_PROXY", "socks5://127.0.0.1:3".to_owned()),
        ("NO_PROXY", ".corp.invalid,10.0.0.0/99".to_owned()),
    ];
    set(&mut command, &variables);
    let output = Output::of(command.arg("--config").arg(config).args(["doctor", "-o", "json"]));
    assert!(!output.stdout.contains("s3cret-pw"), "{}", output.stdout);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    let of_proxy = findings.filter(|it| it["check"] == "proxy");
    let found: Vec<_> = of_proxy
        .map(|it| format!("{} {}", it["outcome"].as_str().unwrap(), it["text"].as_str().unwrap()))
        .collect();
    assert_eq!(
        found,
        [
            "ok https: through proxy 127.0.0.1:2 (HTTPS_PROXY)",
            "wrong HTTP_PROXY has scheme socks5, and only http is supported: write http://HOST:PORT",
            "warning NO_PROXY: '10.0.0.0/99' is not understood and has no effect",
            "ok 'a': through proxy 127.0.0.1:2 (HTTPS_PROXY)",
            "ok 'b': directly: NO_PROXY has '.corp.invalid'",
            "ok 'c': directly: its proxy is \"none\"",
            "ok 'd': through proxy 127.0.0.1:1 (proxy of the server)",
            "ok 'e': directly: loopback and link-local addresses are never proxied",
        ]
    );
}

#[test]
fn net_9_every_kind_of_outgoing_request_uses_the_proxy() {
    let refuse = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";
    let egress = EgressProxy::start(EgressWay::Answers(refuse));
    let mut stub = HttpStub::shared().entry();
    stub["capabilities"] = json!({"echo": {"approval": "required"}});
    let jwks = "https://keys.corp.invalid/keys";
    let config = json!({
        "mcpServers": {"s": stub, "far": {"url": "https://server.corp.invalid/mcp"}},
        "telemetry": {"otlp_endpoint": "http://collector.corp.invalid:4318"},
        "search": {"embeddings": {"url": "https://vectors.corp.invalid/v1", "model": "m"}},
        "auth": {"jwt": {"issuer": "https://issuer.invalid", "audience": "a", "jwks_url": jwks}},
        "approval": {"webhook": {
            "url": "https://hook.corp.invalid/h", "secret": "a-secret-of-the-operator",
        }},
    });
    let folder = tempfile::tempdir().unwrap();
    let proxy = start_in(folder, config, &[("ALL_PROXY", egress.url())]);
    // The span of this call is exported, and the next call is reported to the webhook.
    proxy.client().read("s:text", json!({"size": 1}));
    let mut waiting = proxy.client();
    waiting.begin("read", "s:echo", json!({"text": "x"}));
    let store = [("HTTPS_PROXY", egress.url())];
    let mut verify = mcpproxy();
    set(&mut verify, &store);
    verify.env("AWS_ENDPOINT_URL", "https://store.corp.invalid");
    verify.envs([("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")]);
    let verified = Output::of(verify.args(["activity", "verify", "--store", "s3://bucket/fleet"]));
    assert!(verified.stderr.contains("403 Forbidden"), "{}", verified.stderr);
    for line in [
        "CONNECT server.corp.invalid:443 HTTP/1.1",
        "POST http://collector.corp.invalid:4318/v1/traces HTTP/1.1",
        "CONNECT vectors.corp.invalid:443 HTTP/1.1",
        "CONNECT keys.corp.invalid:443 HTTP/1.1",
        "CONNECT hook.corp.invalid:443 HTTP/1.1",
        "CONNECT store.corp.invalid:443 HTTP/1.1",
    ] {
        until(line, || egress.lines().iter().any(|it| it == line).then_some(()));
    }
    proxy.end();
}
