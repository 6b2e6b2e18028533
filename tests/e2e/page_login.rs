//! Login of the page: codes, sessions in cookies, and unauthorized use of them.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, CertificateAuthority, Connection, Proxy, Response, configure, curl, mcpproxy, until,
};

const PAGE: (&str, &str) = ("X-Mcpproxy-Source", "page");
const KEY: (&str, &str) = ("X-API-Key", API_KEY);

fn proxy() -> Proxy {
    Proxy::start(json!({}))
}

fn origin(proxy: &Proxy) -> String {
    format!("http://127.0.0.1:{}", proxy.port)
}

fn host(proxy: &Proxy) -> String {
    format!("127.0.0.1:{}", proxy.port)
}

fn code(proxy: &Proxy) -> String {
    let made = proxy.request("POST", "/api/v1/page/codes", &[KEY], b"");
    assert_eq!(made.status, 200, "{}", made.text());
    assert_eq!(made.header("cache-control"), Some("no-store"));
    made.json()["data"]["code"].as_str().unwrap().to_owned()
}

/// Exchanges a code or the credentials in `headers`, as the page does.
fn exchange(proxy: &Proxy, headers: &[(&str, &str)], body: &Value) -> Response {
    let host = host(proxy);
    let all = [&[("Host", &*host)], headers].concat();
    proxy.request("POST", "/api/v1/page/session", &all, body.to_string().as_bytes())
}

/// Cookie of an answer, as a browser sends it back.
fn cookie(answer: &Response) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
}

fn log_in(proxy: &Proxy) -> String {
    cookie(&exchange(proxy, &[PAGE], &json!({"code": code(proxy)})))
}

/// A request with a cookie; `more` headers are the page's or an attacker's.
fn with(proxy: &Proxy, method: &str, path: &str, cookie: &str, more: &[(&str, &str)]) -> u16 {
    let host = host(proxy);
    let all = [&[("Host", &*host), ("Cookie", cookie)], more].concat();
    proxy.request(method, path, &all, b"{}").status
}

// PAGE-1
#[test]
fn login_code_opens_the_page_once_and_its_cookie_works_only_in_browsers() {
    let proxy = proxy();
    let code = code(&proxy);
    let answer = exchange(&proxy, &[PAGE, ("Origin", &origin(&proxy))], &json!({"code": code}));
    let set = answer.header("set-cookie").unwrap().to_owned();
    let cookie = cookie(&answer);
    assert!(cookie.starts_with(&format!("mcpproxy_page_{}=", proxy.port)), "{set}");
    assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{set}");
    assert_eq!(with(&proxy, "GET", "/api/v1/status", &cookie, &[PAGE]), 200);
    let again = exchange(&proxy, &[PAGE], &json!({"code": code}));
    assert_eq!((again.status, again.header("set-cookie")), (401, None));
    assert!(again.text().contains("mcpproxy page"), "it names the next step: {}", again.text());
    for guess in ["", "x", &code[1..], &format!("{}A", &code[..42]), &"A".repeat(100_000)] {
        let refused = exchange(&proxy, &[PAGE], &json!({"code": guess}));
        assert_eq!(refused.status, 401, "{}", refused.text());
    }
    let log = proxy.log();
    let secret = cookie.split_once('=').unwrap().1;
    assert!(!log.contains(&code) && !log.contains(secret), "{log}");
}

#[test]
fn oldest_of_many_codes_expire_and_bad_logins_are_reported() {
    let proxy = proxy();
    let first = code(&proxy);
    for _ in 0..16 {
        code(&proxy);
    }
    assert_eq!(exchange(&proxy, &[PAGE], &json!({"code": first})).status, 401);
    for body in ["", "[]", "{", r#"{"kode":"x"}"#, r#"{"code":7}"#] {
        let host = host(&proxy);
        let headers = [("Host", &*host), PAGE];
        let refused = proxy.request("POST", "/api/v1/page/session", &headers, body.as_bytes());
        assert_eq!(refused.status, 400, "{body}: {}", refused.text());
    }
    assert_eq!(exchange(&proxy, &[PAGE], &json!({})).status, 401, "neither code nor key");
}

#[test]
fn valid_key_is_exchanged_for_a_session_and_a_wrong_one_is_not() {
    let proxy = proxy();
    let cookie = cookie(&exchange(&proxy, &[PAGE, KEY], &json!({})));
    assert_eq!(with(&proxy, "GET", "/api/v1/activity", &cookie, &[PAGE]), 200);
    let wrong = exchange(&proxy, &[PAGE, ("X-API-Key", "not the key")], &json!({}));
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, None));
}

// PAGE-1
#[test]
fn page_of_another_origin_is_refused_despite_the_cookie() {
    let proxy = proxy();
    let cookie = log_in(&proxy);
    let (own, reload) = (origin(&proxy), "/api/v1/config/reload");
    let ask = |method, path, more: &[(&str, &str)]| with(&proxy, method, path, &cookie, more);
    assert_eq!(ask("POST", reload, &[PAGE, ("Origin", &own)]), 200);
    // A form lacks the header of the page. A script elsewhere has its own origin, even on another port of this host.
    assert_eq!(ask("POST", reload, &[("Origin", &own)]), 401);
    assert_eq!(
        ask("POST", reload, &[PAGE]),
        401,
        "a request that changes something must name its origin"
    );
    assert_eq!(ask("POST", reload, &[PAGE, ("Origin", "http://127.0.0.1:1")]), 401);
    assert_eq!(ask("POST", reload, &[PAGE, ("Origin", "null")]), 403);
    assert_eq!(ask("POST", reload, &[PAGE, ("Origin", "https://evil.example")]), 403);
    for site in ["cross-site", "same-site", "none"] {
        let more = [PAGE, ("Origin", &*own), ("Sec-Fetch-Site", site)];
        assert_eq!(ask("POST", reload, &more), 401, "{site}");
        assert_eq!(ask("GET", "/api/v1/status", &[PAGE, ("Sec-Fetch-Site", site)]), 401, "{site}");
    }
    assert_eq!(ask("GET", "/api/v1/status", &[]), 401);
    assert_eq!(ask("GET", "/api/v1/status", &[PAGE, ("Origin", "http://127.0.0.1:1")]), 401);
    assert_eq!(ask("GET", "/events", &[]), 401);
    // Nor can such a page log a user in or out.
    let foreign = [PAGE, ("Origin", "http://127.0.0.1:1")];
    assert_eq!(exchange(&proxy, &foreign, &json!({"code": code(&proxy)})).status, 403);
    assert_eq!(exchange(&proxy, &[], &json!({"code": code(&proxy)})).status, 403);
    ask("DELETE", "/api/v1/page/session", &foreign);
    ask("DELETE", "/api/v1/page/session", &[("Origin", &own)]);
    assert_eq!(ask("GET", "/api/v1/status", &[PAGE]), 200, "it is still logged in");
}

// PAGE-1
#[test]
fn cookie_neither_grants_mcp_access_nor_creates_credentials_or_servers() {
    let proxy = Proxy::with(json!({"require_mcp_auth": true}));
    let (cookie, own) = (log_in(&proxy), origin(&proxy));
    let page = [PAGE, ("Origin", &*own)];
    for (method, path) in [
        ("POST", "/mcp"),
        ("GET", "/mcp"),
        ("DELETE", "/mcp"),
        ("POST", "/mcp/all"),
        ("GET", "/metrics"),
        ("POST", "/api/v1/page/codes"),
        ("GET", "/api/v1/tokens"),
        ("POST", "/api/v1/tokens"),
        ("POST", "/api/v1/tokens/ci/rotate"),
        ("DELETE", "/api/v1/tokens/ci"),
        ("POST", "/api/v1/config/servers"),
        ("DELETE", "/api/v1/config/servers/s"),
    ] {
        assert_eq!(with(&proxy, method, path, &cookie, &page), 401, "{method} {path}");
    }
    assert_eq!(with(&proxy, "GET", "/api/v1/servers", &cookie, &page), 200);
}

#[test]
fn lock_ends_only_its_own_session_and_the_streams_of_that_session() {
    let proxy = proxy();
    let (cookie, other, own) = (log_in(&proxy), log_in(&proxy), origin(&proxy));
    let host = host(&proxy);
    let mut stream = Connection::open(proxy.port);
    stream.send("GET", "/events", &[("Host", &host), ("Cookie", &cookie), PAGE], b"");
    assert_eq!(stream.head().0, 200);
    assert!(stream.chunk().is_some(), "it has begun");
    let headers = [("Host", &*host), ("Cookie", &*cookie), PAGE, ("Origin", &*own)];
    let locked = proxy.request("DELETE", "/api/v1/page/session", &headers, b"");
    assert_eq!(locked.status, 200);
    assert!(locked.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(with(&proxy, "GET", "/api/v1/status", &cookie, &[PAGE]), 401);
    assert_eq!(with(&proxy, "GET", "/api/v1/status", &other, &[PAGE]), 200);
    until("the stream ends", || stream.chunk().is_none_or(|chunk| chunk.is_empty()).then_some(()));
    let folder = proxy.end();
    let next = Proxy::unready(json!({}), folder).ready();
    assert_eq!(
        with(&next, "GET", "/api/v1/status", &other, &[PAGE]),
        401,
        "it is not kept on disk"
    );
}

#[test]
fn new_key_ends_the_sessions_of_the_previous_one() {
    let proxy = proxy();
    let (cookie, code) = (log_in(&proxy), code(&proxy));
    let key = "another-key-of-more-than-thirty-two-characters";
    let data = proxy.folder.path().join("data");
    configure(json!({"api_key": key, "data_dir": data}), proxy.folder.path());
    until("the new key is in force", || {
        let asked = proxy.request("GET", "/api/v1/status", &[("X-API-Key", key)], b"");
        (asked.status == 200).then_some(())
    });
    assert_eq!(with(&proxy, "GET", "/api/v1/status", &cookie, &[PAGE]), 401);
    assert_eq!(exchange(&proxy, &[PAGE], &json!({"code": code})).status, 401);
}

#[test]
fn command_prints_an_address_that_opens_the_page() {
    let proxy = proxy();
    let printed = proxy.cli(&["page"]);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    let start = format!("http://127.0.0.1:{}/ui/#code=", proxy.port);
    let line = printed.stdout.trim_end();
    let code = line.strip_prefix(&start).unwrap_or_else(|| panic!("{line}"));
    cookie(&exchange(&proxy, &[PAGE], &json!({"code": code})));
    let json = proxy.cli(&["page", "-o", "json"]).json();
    assert!(json["address"].as_str().unwrap().starts_with(&start), "{json}");
    assert!(json["expires"].as_str().unwrap().ends_with('Z'), "{json}");
    let folder = proxy.end();
    let mut alone = mcpproxy();
    alone.arg("--config").arg(folder.path().join("config.json")).arg("page");
    let alone = crate::harness::Output::of(&mut alone);
    assert_eq!(alone.code, Some(3));
    assert!(alone.stderr.contains("no mcpproxy is running on "), "{}", alone.stderr);
}

#[test]
fn address_is_shown_to_a_terminal_but_not_to_a_pipe_or_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let config = configure(json!({}), folder.path());
    let log = folder.path().join("log");
    let mut terminal = std::process::Command::new("script");
    let serve = format!(
        "exec {} serve --config {} 2>{}",
        env!("CARGO_BIN_EXE_mcpproxy"),
        config.display(),
        log.display()
    );
    terminal.args(["-qec", &serve, "/dev/null"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut terminal = crate::harness::Process::spawn(&mut terminal);
    let mut lines = BufReader::new(terminal.0.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    assert!(line().starts_with("MCP at http://127.0.0.1:"));
    let reported = line();
    let (base, code) = reported.split_once("/ui/#code=").unwrap_or_else(|| panic!("{reported}"));
    let port = base.rsplit_once(':').unwrap().1.parse().unwrap();
    let body = json!({"code": code.trim()}).to_string();
    let mut connection = Connection::open(port);
    connection.send("POST", "/api/v1/page/session", &[PAGE], body.as_bytes());
    assert_eq!(connection.response().status, 200);
    assert!(!std::fs::read_to_string(&log).unwrap().contains(code.trim()));

    let proxy = proxy();
    let mut piped = mcpproxy();
    let folder = tempfile::tempdir().unwrap();
    let config = configure(json!({}), folder.path());
    piped.args(["serve", "--config"]).arg(config).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut piped = crate::harness::Process::spawn(&mut piped);
    let mut out = BufReader::new(piped.0.stdout.take().unwrap());
    let mut printed = String::new();
    out.read_line(&mut printed).unwrap();
    piped.signal("TERM");
    piped.wait();
    std::io::Read::read_to_string(&mut out, &mut printed).unwrap();
    assert!(printed.starts_with("MCP at ") && printed.lines().count() == 1, "{printed}");
    assert!(!proxy.log().contains("#code="));
}

#[test]
fn cookie_set_over_tls_is_sent_only_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let authority = CertificateAuthority::new("Test");
    authority.local().write(folder.path(), "server");
    std::fs::write(folder.path().join("ca.pem"), &authority.pem).unwrap();
    let tls = json!({"cert": "server.pem", "key": "server.key"});
    let proxy = Proxy::unready(json!({"tls": tls}), folder);
    let url = format!("https://localhost:{}/api/v1/page/session", proxy.port);
    for version in ["--http1.1", "--http2"] {
        let (key, page) = (format!("{}: {}", KEY.0, KEY.1), format!("{}: {}", PAGE.0, PAGE.1));
        let headers = ["--cacert", "ca.pem", version, "-H", &key, "-H", &page, "-d", "{}", &url];
        let answer = curl(proxy.folder.path(), &headers);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.headers.contains("SameSite=Strict; Secure"), "{answer:?}");
        assert!(answer.headers.contains(&format!("mcpproxy_page_{}=", proxy.port)), "{answer:?}");
    }
}

#[test]
fn root_redirects_to_the_page() {
    let proxy = proxy();
    let moved = proxy.request("GET", "/", &[], b"");
    assert_eq!((moved.status, moved.header("location")), (307, Some("/ui/")));
    assert_eq!(proxy.request("POST", "/", &[], b"").status, 405);
}
