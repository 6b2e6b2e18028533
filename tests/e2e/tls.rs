//! TLS: the listener and its files, client certificates, and upstream servers.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, CertificateAuthority, Connection, Curled, HttpStub, Output, PATIENCE, Pair, Proxy,
    Secure, begin, configure, curl, mcpproxy, secure, server_config, until, write_private,
};
use crate::server_tls::Chain;

/// A proxy with TLS, whose folder has the files for its clients.
pub(crate) fn serve(ca: &CertificateAuthority, config: Value, clients: Option<&str>) -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    ca.local().write(folder.path(), "server");
    write_private(&folder.path().join("ca.pem"), &ca.pem);
    let mut tls = json!({"cert": "server.pem", "key": "server.key"});
    if let Some(clients) = clients {
        write_private(&folder.path().join("clients.pem"), clients);
        tls["client_ca"] = json!("clients.pem");
    }
    let mut config = config;
    config["tls"] = tls;
    let proxy = Proxy::unready(config, folder);
    until("it is ready", || (get(&proxy, "/readyz", &[]).status == 200).then_some(()));
    proxy
}

pub(crate) fn with_stub() -> Value {
    json!({"mcpServers": {"stub": HttpStub::shared().entry()}})
}

/// GET with the API key, by a client that trusts `ca.pem`.
pub(crate) fn get(proxy: &Proxy, path: &str, args: &[&str]) -> Curled {
    let (url, key) = (url(proxy, path), format!("X-API-Key: {API_KEY}"));
    let all = [&["--cacert", "ca.pem", "-H", &key, &url], args].concat();
    curl(proxy.folder.path(), &all)
}

pub(crate) fn url(proxy: &Proxy, path: &str) -> String {
    format!("https://localhost:{}{path}", proxy.port)
}

/// POST of a message to `/mcp` without a key.
fn post(proxy: &Proxy, message: &Value, args: &[&str]) -> Curled {
    let (url, message) = (url(proxy, "/mcp"), message.to_string());
    let accept = "Accept: application/json, text/event-stream";
    let json = "Content-Type: application/json";
    let all = ["--cacert", "ca.pem", "-H", accept, "-H", json, "-d", &message, &url];
    curl(proxy.folder.path(), &[&all, args].concat())
}

fn initialize() -> Value {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
}

fn echo() -> Value {
    let arguments = json!({"name": "stub:echo", "args": {"text": "hello"},
        "intent": {"operation_type": "read"}});
    json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "call_tool_read", "arguments": arguments}})
}

/// Makes a call in a new session. Returns the last answer.
pub(crate) fn call(proxy: &Proxy, args: &[&str]) -> Curled {
    let opened = post(proxy, &initialize(), args);
    let Some(id) = opened.header("mcp-session-id") else { return opened };
    let session = format!("Mcp-Session-Id: {id}");
    post(proxy, &echo(), &[args, &["-H", &session]].concat())
}

// NET-2
#[test]
fn listener_speaks_both_versions_of_http_over_both_versions_of_tls() {
    let ca = CertificateAuthority::new("ca");
    let proxy = serve(&ca, with_stub(), None);
    for (version, args) in [
        ("1.1", &["--http1.1", "--tlsv1.2", "--tls-max", "1.2"][..]),
        ("1.1", &["--http1.1", "--tlsv1.3"]),
        ("2", &["--http2", "--tlsv1.2", "--tls-max", "1.2"]),
        ("2", &["--http2", "--tlsv1.3"]),
    ] {
        let answer = call(&proxy, args);
        assert_eq!((answer.status, &*answer.version), (200, version), "{answer:?}");
        assert!(answer.body.contains("hello"), "{}", answer.body);
        let refused =
            get(&proxy, "/api/v1/status", &[args, &["-H", "Host: evil.example"]].concat());
        assert_eq!(refused.status, 403, "the same checks: {refused:?}");
        assert_eq!(get(&proxy, "/api/v1/status", args).status, 200);
    }
    // The default end of validity of certificates made by rcgen.
    let ends = rcgen::date_time_ymd(4096, 1, 1).unix_timestamp() as f64;
    let metrics = get(&proxy, "/metrics", &[]).body;
    let left = metrics.lines().find_map(|line| {
        line.strip_prefix("mcpproxy_certificate_remaining_seconds ")?.parse::<f64>().ok()
    });
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let left = left.expect("it is reported");
    assert!((ends - now - left).abs() < 3600.0, "{left}");
    let old = get(&proxy, "/healthz", &["--tls-max", "1.1"]);
    assert_eq!(old.status, 0, "{old:?}");
    let stranger = curl(proxy.folder.path(), &[&url(&proxy, "/healthz")]);
    assert!(stranger.error.contains("certificate"), "{stranger:?}");
    proxy.end();
}

#[test]
fn bodies_and_streams_are_complete_over_http2() {
    let ca = CertificateAuthority::new("ca");
    let proxy = serve(&ca, with_stub(), None);
    let text = "x".repeat(3 * 1024 * 1024);
    let body = json!({"tool_name": "call_tool_read", "arguments": {"name": "stub:echo",
        "args": {"text": text}, "intent": {"operation_type": "read"}}});
    write_private(&proxy.folder.path().join("body.json"), &body.to_string());
    let args = ["--http2", "-H", "Content-Type: application/json", "-d", "@body.json"];
    let answer = get(&proxy, "/api/v1/tools/call", &args);
    assert_eq!((answer.status, &*answer.version), (200, "2"), "{}", answer.error);
    assert!(answer.body.contains(&text), "{} bytes", answer.body.len());
    // Several at a time on one connection.
    let (url, key) = (url(&proxy, "/api/v1/status"), format!("X-API-Key: {API_KEY}"));
    let several = ["--cacert", "ca.pem", "--http2", "--parallel", "--fail", "-H", &key];
    let several = curl(proxy.folder.path(), &[&several[..], &[url.as_str(); 20]].concat());
    assert_eq!((several.status, several.error.as_str()), (200, ""), "{several:?}");
    assert_eq!(several.body.matches("\"success\":true").count(), 20, "{}", several.body);
    proxy.end();
}

#[test]
fn python_and_the_command_line_connect_over_tls() {
    const SCRIPT: &str = "import http.client,ssl,sys\n\
        context=ssl.create_default_context(cafile=sys.argv[1])\n\
        connection=http.client.HTTPSConnection('localhost',int(sys.argv[2]),context=context)\n\
        for _ in range(3):\n\
        \tconnection.request('GET','/healthz')\n\
        \tprint(connection.getresponse().read().decode())\n";
    let ca = CertificateAuthority::new("ca");
    let proxy = serve(&ca, with_stub(), None);
    let mut python = Command::new("python3");
    python.current_dir(proxy.folder.path()).args(["-c", SCRIPT, "ca.pem", &proxy.port.to_string()]);
    let output = Output::of(&mut python);
    assert_eq!(output.stdout.matches("\"status\"").count(), 3, "{}", output.stderr);
    let listed = proxy.cli(&["upstream", "list", "-o", "json"]);
    assert!(listed.stdout.contains("stub"), "{}", listed.stderr);
    let called = proxy.cli(&["call", "tool-read", "stub:echo", "--args", r#"{"text":"over tls"}"#]);
    assert!(called.stdout.contains("over tls"), "{}", called.stderr);
    let records = get(&proxy, "/api/v1/activity?type=tool_call", &[]);
    assert!(
        records.body.contains("\"source\":\"cli\""),
        "the running proxy was used: {}",
        records.body
    );
    proxy.end();
}

#[test]
fn wrong_protocol_is_reported_to_the_client_and_logged_once() {
    let ca = CertificateAuthority::new("ca");
    let proxy = serve(&ca, json!({}), None);
    for _ in 0..3 {
        let mut connection = Connection::open(proxy.port);
        connection.send("GET", "/healthz", &[], b"");
        let answer = connection.response();
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains("HTTPS"), "{}", answer.text());
    }
    let reported = log_at_the_end(proxy);
    assert_eq!(reported.matches("spoke plain HTTP on a port").count(), 1, "{reported}");
    let plain = Proxy::with(json!({}));
    for _ in 0..3 {
        let answer = curl(plain.folder.path(), &["-k", &url(&plain, "/healthz")]);
        assert_eq!(answer.status, 0);
    }
    let reported = log_at_the_end(plain);
    assert_eq!(reported.matches("spoke TLS on a port").count(), 1, "{reported}");
}

/// Ends a proxy, so that its log is complete. Returns the content of the log.
fn log_at_the_end(proxy: Proxy) -> String {
    std::fs::read_to_string(proxy.end().path().join("log")).unwrap()
}

#[test]
fn stalled_handshakes_time_out_and_do_not_delay_others() {
    let ca = CertificateAuthority::new("ca");
    let proxy = serve(&ca, json!({}), None);
    // Half of the connections send nothing, half the header of a record that never follows.
    let open = |sent: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(sent).unwrap();
        stream
    };
    let mut slow: Vec<TcpStream> =
        (0..100).map(|n| open(if n % 2 == 0 { b"" } else { &[22, 3, 1, 2, 0, 1] })).collect();
    assert_eq!(get(&proxy, "/healthz", &[]).status, 200);
    let mut garbage = open(&[22; 4096]);
    let _ = garbage.read_to_end(&mut Vec::new());
    for stream in &mut slow {
        let ended = stream.read_to_end(&mut Vec::new());
        assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }
    let _waiting = open(b"");
    proxy.end();
}

// NET-2
#[test]
fn certificates_are_renewed_in_place_and_broken_ones_leave_the_old_in_force() {
    let (old, new) = (CertificateAuthority::new("old"), CertificateAuthority::new("new"));
    let proxy = serve(&old, json!({}), None);
    let folder = proxy.folder.path();
    let trusts = |ca: &CertificateAuthority| {
        write_private(&folder.join("ca.pem"), &ca.pem);
        get(&proxy, "/healthz", &[]).status == 200
    };
    assert!(trusts(&old) && !trusts(&new));
    new.local().write(folder, "server");
    until("the new certificate is in use", || trusts(&new).then_some(()));
    let faults = || get(&proxy, "/api/v1/status", &[]).body;
    for (cert, key, fault) in [
        (new.local().cert, new.local().key, "does not match"),
        (new.expired("server", &["localhost"]).cert, new.local().key, "has expired"),
        ("broken".to_owned(), new.local().key, "holds no certificate"),
    ] {
        Pair { cert, key }.write(folder, "server");
        until(fault, || faults().contains(fault).then_some(()));
        assert!(faults().contains(r#""part":"certificate""#), "{}", faults());
        until("it is logged", || proxy.log().contains(fault).then_some(()));
    }
    std::fs::remove_file(folder.join("server.pem")).unwrap();
    until("the missing file is reported", || faults().contains("cannot be read").then_some(()));
    assert!(trusts(&new), "the previous certificate is in force");
    old.local().write(folder, "server");
    until("the last certificate is in use", || trusts(&old).then_some(()));
    assert!(faults().contains(r#""faults":[]"#), "{}", faults());
    proxy.end();
}

#[test]
fn start_with_unusable_files_names_the_file_and_the_fault() {
    let (ca, folder) = (CertificateAuthority::new("ca"), tempfile::tempdir().unwrap());
    let path = folder.path();
    let tls = json!({"cert": "server.pem", "key": "server.key", "client_ca": "clients.pem"});
    let config = configure(json!({"tls": tls}), path);
    let good = ca.local();
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    for (cert, key, clients, texts) in [
        (
            &ca.expired("s", &["localhost"]).cert,
            &*good.key,
            &*ca.pem,
            ["tls.cert", "server.pem: the certificate has expired on 2002"],
        ),
        (&good.cert, &ca.local().key, &ca.pem, ["tls.key", "server.key: the key does not match"]),
        (&good.cert, encrypted, &ca.pem, ["tls.key", "server.key: the key is encrypted"]),
        (&good.key, &good.key, &ca.pem, ["tls.cert", "server.pem: it holds no certificate"]),
        (&good.cert, &good.key, "", ["tls.client_ca", "clients.pem: it holds no certificate"]),
    ] {
        Pair { cert: cert.clone(), key: key.to_owned() }.write(path, "server");
        write_private(&path.join("clients.pem"), clients);
        for command in [&["serve"][..], &["config", "check"]] {
            let output = Output::of(mcpproxy().arg("--config").arg(&config).args(command));
            assert_eq!(output.code, Some(5), "{command:?}: {}", output.stderr);
            for text in texts {
                assert!(output.stderr.contains(text), "{text}: {}", output.stderr);
            }
        }
    }
    std::fs::remove_file(path.join("server.key")).unwrap();
    let output = Output::of(mcpproxy().arg("--config").arg(&config).arg("serve"));
    assert!(output.stderr.contains("server.key: it cannot be read"), "{}", output.stderr);
}

// ID-4
#[test]
fn valid_client_certificate_is_a_principal_and_an_invalid_one_is_not() {
    let (ca, clients) = (CertificateAuthority::new("ca"), CertificateAuthority::new("clients"));
    let rules = "@id(\"no-bob\") forbid (principal == Agent::\"cert:bob\", action, resource);";
    let mut config = with_stub();
    config["require_mcp_auth"] = json!(true);
    let folder = tempfile::tempdir().unwrap();
    write_private(&folder.path().join("rules.cedar"), rules);
    config["policy"] = json!({"files": [folder.path().join("rules.cedar")]});
    let proxy = serve(&ca, config, Some(&clients.pem));
    let own = proxy.folder.path();
    clients.client("ada").write(own, "ada");
    clients.client("bob").write(own, "bob");
    clients.client("").write(own, "nameless");
    clients.expired("ada", &[]).write(own, "late");
    CertificateAuthority::new("clients").client("ada").write(own, "foreign");
    let by = |name: &str| [format!("{name}.pem"), format!("{name}.key")];
    let with = |name: &str, http: &'static str| {
        let [cert, key] = by(name);
        call(&proxy, &[http, "--cert", &cert, "--key", &key])
    };
    for http in ["--http1.1", "--http2"] {
        let nobody = call(&proxy, &[http]);
        assert_eq!(nobody.status, 401, "{nobody:?}");
        let ada = with("ada", http);
        assert!(ada.status == 200 && ada.body.contains("hello"), "{ada:?}");
        let bob = with("bob", http);
        assert!(bob.body.contains("not allowed by rule 'no-bob'"), "{bob:?}");
        for bad in ["late", "foreign", "nameless"] {
            let refused = with(bad, http);
            assert_eq!(refused.status, 0, "{bad}: {refused:?}");
        }
    }
    let records = get(&proxy, "/api/v1/activity?type=tool_call&principal=cert:ada", &[]);
    assert_eq!(records.body.matches("\"principal\":\"cert:ada\"").count(), 2, "{}", records.body);
    // A session belongs to the principal that opened it.
    let [cert, key] = by("ada");
    let opened = post(&proxy, &initialize(), &["--cert", &cert, "--key", &key]);
    let session = format!("Mcp-Session-Id: {}", opened.header("mcp-session-id").unwrap());
    let [cert, key] = by("bob");
    let taken = post(&proxy, &echo(), &["-H", &session, "--cert", &cert, "--key", &key]);
    assert_eq!(taken.status, 404, "{taken:?}");
    // The authorities are replaced: clients with certificates of the old ones are rejected now.
    let others = CertificateAuthority::new("others");
    others.client("eve").write(own, "eve");
    write_private(&own.join("clients.pem"), &others.pem);
    until("the new authorities are in force", || {
        (with("eve", "--http2").status == 200).then_some(())
    });
    assert_eq!(with("ada", "--http2").status, 0);
    proxy.end();
}

#[test]
fn client_refused_during_its_body_receives_the_refusal() {
    let ca = CertificateAuthority::new("ca");
    let proxy = serve(&ca, json!({"require_mcp_auth": true}), None);
    std::fs::write(proxy.folder.path().join("long"), vec![b' '; 3 << 20]).unwrap();
    for http in ["--http1.1", "--http2"] {
        let reported = post(&proxy, &json!(null), &[http, "--data-binary", "@long"]);
        assert_eq!(reported.status, 401, "{http}: {reported:?}");
    }
    proxy.end();
}

#[test]
fn connection_of_a_client_whose_authority_was_withdrawn_ends() {
    let (ca, clients) = (CertificateAuthority::new("ca"), CertificateAuthority::new("clients"));
    let proxy = serve(&ca, json!({}), Some(&clients.pem));
    let mut connection = secure(proxy.port, &ca, Some(&clients.client("ada")), &[]);
    let ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    connection.write_all(ask).unwrap();
    let mut answer = vec![0; 4096];
    assert!(connection.read(&mut answer).unwrap() > 0 && answer.starts_with(b"HTTP/1.1 200"));
    let mut anonymous = secure(proxy.port, &ca, None, &[]);
    let others = CertificateAuthority::new("others").pem;
    write_private(&proxy.folder.path().join("clients.pem"), &others);
    let mut rest = Vec::new();
    // The connection ends, with or without a closure alert of TLS.
    let _ = connection.read_to_end(&mut rest);
    until("it is reloaded", || proxy.log().contains("reloaded the TLS files").then_some(()));
    anonymous.write_all(ask).unwrap();
    assert!(anonymous.read(&mut answer).unwrap() > 0, "a connection without a certificate remains");
    drop(anonymous);
    proxy.end();
}

#[test]
fn connection_ends_when_its_client_certificate_expires() {
    let (ca, clients) = (CertificateAuthority::new("ca"), CertificateAuthority::new("clients"));
    let proxy = serve(&ca, json!({}), Some(&clients.pem));
    let pair = clients.client_for("ada", Duration::from_secs(8));
    // No other time limit ends these connections as early: one has received its answer, the other has no request.
    let mut plain = secure(proxy.port, &ca, Some(&pair), &[]);
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut multiplexed = secure(proxy.port, &ca, Some(&pair), &[b"h2"]);
    let mut other = secure(proxy.port, &ca, None, &[]);
    for connection in [&mut plain, &mut multiplexed] {
        let ended = connection.read_to_end(&mut Vec::new());
        assert!(
            !ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
            "the connection is still open"
        );
    }
    other.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert!(other.read(&mut [0; 16]).unwrap() > 0, "a connection without a certificate remains");
    drop(other);
    proxy.end();
}

#[test]
fn stream_of_a_client_ends_when_its_authority_is_withdrawn() {
    let (ca, clients) = (CertificateAuthority::new("ca"), CertificateAuthority::new("clients"));
    let proxy = serve(&ca, with_stub(), Some(&clients.pem));
    let mut stream = secure(proxy.port, &ca, Some(&clients.client("ada")), &[]);
    let (version, method) = ("2026-07-28", "subscriptions/listen");
    let params = json!({"notifications": {"toolsListChanged": true}, "_meta": {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {}}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nmcp-protocol-version: {version}\r\n\
         mcp-method: {method}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let (mut seen, mut bytes) = (String::new(), [0; 4096]);
    while !seen.contains("subscriptions/acknowledged") {
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "{seen}");
        seen += &String::from_utf8_lossy(&bytes[..count]);
    }
    let others = CertificateAuthority::new("others").pem;
    write_private(&proxy.folder.path().join("clients.pem"), &others);
    let mut rest = Vec::new();
    // Then the connection ends, with or without a closure alert of TLS.
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(String::from_utf8_lossy(&rest), "0\r\n\r\n", "only the end of the stream");
    proxy.end();
}

#[test]
fn client_whose_authority_was_withdrawn_during_its_handshake_is_not_answered() {
    let (ca, clients) = (CertificateAuthority::new("ca"), CertificateAuthority::new("clients"));
    let proxy = serve(&ca, json!({}), Some(&clients.pem));
    let pair = clients.client("ada");
    // The client has read the first messages of the server, but has not answered them yet.
    let begun: Vec<Secure> = (0..16)
        .map(|_| {
            let mut secure = begin(proxy.port, &ca, Some(&pair), &[]);
            secure.conn.write_tls(&mut secure.sock).unwrap();
            secure.conn.read_tls(&mut secure.sock).unwrap();
            secure
        })
        .collect();
    let others = CertificateAuthority::new("others").pem;
    write_private(&proxy.folder.path().join("clients.pem"), &others);
    until("it is reloaded", || proxy.log().contains("reloaded the TLS files").then_some(()));
    for mut secure in begun {
        let _ = secure.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let mut answer = Vec::new();
        let _ = secure.read_to_end(&mut answer);
        assert_eq!(String::from_utf8_lossy(&answer), "");
    }
    proxy.end();
}

/// A server that sends its certificate and nothing else. Returns its port.
fn server_that_shows(pair: &Pair) -> u16 {
    let config = server_config(pair);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = rustls::StreamOwned::new(session, stream);
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    port
}

#[test]
fn server_over_tls_is_called_if_its_authority_is_named_and_accepts_our_certificate() {
    let Chain { front, behind, .. } = Chain::start();
    let called = front.cli(&["tools", "list", "-o", "json"]);
    assert!(called.stdout.contains("behind:"), "{}", called.stdout);
    let listed = get(&behind, "/api/v1/activity", &[]).body;
    let mut client = front.client();
    let tools = client.tool("retrieve_tools", json!({"query": "echo"}));
    let name = tools["structuredContent"]["tools"][0]["name"].as_str().unwrap().to_owned();
    let answer = client.read(&name, json!({"text": "far"}));
    assert!(answer.to_string().contains("far"), "{answer} {listed}");
    let records = get(&behind, "/api/v1/activity?principal=cert:front", &[]).body;
    assert!(records.contains("\"principal\":\"cert:front\""), "{records}");
    front.end();
    behind.end();
}

#[test]
fn server_is_trusted_by_the_system_roots_if_its_entry_names_no_authority() {
    let ca = CertificateAuthority::new("ca");
    let behind = serve(&ca, with_stub(), None);
    let servers = json!({"behind": {"url": url(&behind, "/mcp/all")}});
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    write_private(&roots, &ca.pem);
    let before = format!("unset SSL_CERT_DIR; export SSL_CERT_FILE='{}'", roots.display());
    let front = Proxy::under(&before, json!({"mcpServers": servers}), folder);
    let mut client = front.client();
    let tools = client.tool("retrieve_tools", json!({"query": "echo"}));
    let name = tools["structuredContent"]["tools"][0]["name"].as_str().unwrap().to_owned();
    let answer = client.read(&name, json!({"text": "far"}));
    assert!(answer["isError"] != true && answer.to_string().contains("far"), "{answer}");
    front.end();
    // The roots of the system do not contain that authority.
    let other = Proxy::start(servers);
    let reported = reason_of(&other, "behind");
    assert!(reported.contains("issuer is not trusted"), "{reported}");
    other.end();
    behind.end();
}

#[test]
fn server_with_an_invalid_certificate_is_reported_with_its_name_and_the_reason() {
    let ca = CertificateAuthority::new("ca");
    let folder = tempfile::tempdir().unwrap();
    write_private(&folder.path().join("ca.pem"), &ca.pem);
    let local = ["localhost", "127.0.0.1"];
    let good = server_that_shows(&ca.local());
    let expired = server_that_shows(&ca.expired("s", &local));
    let elsewhere = server_that_shows(&ca.server(&["elsewhere.example"]));
    let tls = json!({"ca": "ca.pem"});
    let entry = |port: u16, tls: &Value| json!({"url": format!("https://localhost:{port}/mcp"), "tls": tls});
    let servers = json!({
        "unknown": {"url": format!("https://localhost:{good}/mcp")},
        "expired": entry(expired, &tls), "elsewhere": entry(elsewhere, &tls),
        "missing": entry(good, &json!({"ca": "none.pem"})),
    });
    let proxy = Proxy::unready(json!({"mcpServers": servers}), folder);
    for (name, why) in [
        ("unknown", "issuer is not trusted"),
        ("expired", "its certificate has expired"),
        ("elsewhere", "its certificate is for another host name"),
        ("missing", "none.pem: it cannot be read"),
    ] {
        until(why, || reason_of(&proxy, name).contains(why).then_some(()));
    }
    let config = proxy.folder.path().join("config.json");
    let checked = Output::of(mcpproxy().arg("--config").arg(config).args(["config", "check"]));
    assert_eq!(checked.code, Some(5));
    assert!(checked.stderr.contains("mcpServers.missing.tls.ca"), "{}", checked.stderr);
    proxy.end();
}

/// State of a server as reported, including the reason.
pub(crate) fn reason_of(proxy: &Proxy, name: &str) -> String {
    let servers = proxy.api("servers")["servers"].clone();
    let found = servers.as_array().unwrap().iter().find(|server| server["name"] == name);
    found.expect("it is listed").to_string()
}

/// Reaction of a server without TLS to the first bytes of a TLS handshake.
#[derive(Clone, Copy)]
enum NoTls {
    Says(&'static [u8]),
    HangsUp,
    /// Closes without reading the received bytes, so that the system sends a reset.
    Resets,
}

fn server_without_tls(manner: NoTls) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            match manner {
                NoTls::Says(words) => {
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(words);
                }
                NoTls::HangsUp => {
                    let _ = stream.read(&mut [0; 4096]);
                }
                NoTls::Resets => {
                    let _ = stream.peek(&mut [0]);
                }
            }
        }
    });
    port
}

#[test]
fn server_without_tls_at_its_https_address_is_reported_as_such() {
    let entry = |port: u16| json!({"url": format!("https://localhost:{port}/mcp")});
    let of = |manner| entry(server_without_tls(manner));
    let proxy = Proxy::with(json!({"mcpServers": {
        "http": entry(HttpStub::shared().port),
        "bad-request": of(NoTls::Says(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")),
        "talker": of(NoTls::Says(b"220 mail.example ready\r\n")),
        "silent": of(NoTls::HangsUp), "resets": of(NoTls::Resets),
    }}));
    let (speaks, closed) =
        ("it does not use TLS on this port", "it closed the connection in the TLS");
    let reported = [
        ("http", closed),
        ("bad-request", speaks),
        ("talker", speaks),
        ("silent", closed),
        ("resets", closed),
    ];
    for (name, why) in reported {
        let reported = reason_of(&proxy, name);
        assert!(
            reported.contains(why) && reported.contains("http:// instead of https://"),
            "{reported}"
        );
    }
    proxy.end();
}

#[test]
fn listener_beyond_loopback_without_tls_is_warned_about() {
    let (ca, folder) = (CertificateAuthority::new("ca"), tempfile::tempdir().unwrap());
    ca.local().write(folder.path(), "server");
    let mut config = json!({"listen": "0.0.0.0:0", "require_mcp_auth": true});
    let check = |config: &Value| {
        let config = configure(config.clone(), folder.path());
        let checked = Output::of(mcpproxy().arg("--config").arg(config).args(["config", "check"]));
        assert_eq!(checked.code, Some(0), "{}", checked.stderr);
        checked.stdout.contains("set tls, or listen on 127.0.0.1")
    };
    assert!(check(&config));
    config["tls"] = json!({"cert": "server.pem", "key": "server.key"});
    assert!(!check(&config));
}
