//! Principals: agent tokens and their scopes, JWTs of an identity provider, and sessions that belong to the principal
//! that opened them.

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Connection, Issuer, Keys, Output, Proxy, Response, configure, error_text, mcpproxy,
    stub_stdio, unix_now, until, write_private,
};

fn servers() -> Value {
    json!({"a": stub_stdio(&["--offers"]), "b": stub_stdio(&["--offers"])})
}

/// Creates a token on the command line. Returns its secret.
fn create(proxy: &Proxy, args: &[&str]) -> String {
    let output = proxy.cli(&[&["token", "create"], args, &["--json"]].concat());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    output.json()["token"].as_str().unwrap().to_owned()
}

#[test]
fn cli_2_token_for_an_unknown_server_is_not_created() {
    let proxy = Proxy::start(json!({"files": stub_stdio(&["--only", "read_item"])}));
    let made = proxy.cli(&["token", "create", "ci", "--server", "fils", "--json"]);
    assert_eq!(made.code, Some(1), "{}", made.stdout);
    assert_eq!(proxy.cli(&["token", "list", "--json"]).json()["tokens"], json!([]));
    assert!(made.stderr.contains("there is no server 'fils'"), "{}", made.stderr);
    assert!(made.stderr.contains("did you mean files?"), "{}", made.stderr);
}

/// A client that sends a token with every request, with or without a session.
struct Holder {
    connection: Connection,
    bearer: String,
    session: Option<String>,
    path: &'static str,
}

impl Holder {
    fn new(proxy: &Proxy, token: &str, path: &'static str) -> Self {
        let connection = Connection::open(proxy.port);
        Self { connection, bearer: format!("Bearer {token}"), session: None, path }
    }

    /// Holder of a token with an open session.
    fn open(proxy: &Proxy, token: &str, path: &'static str) -> Self {
        let mut holder = Self::new(proxy, token, path);
        let response = holder.hello();
        assert_eq!(response.status, 200, "{}", response.text());
        holder.session = response.header("mcp-session-id").map(str::to_owned);
        holder
    }

    fn hello(&mut self) -> Response {
        self.send(
            "initialize",
            json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "e2e", "version": "1"}}),
        )
    }

    fn send(&mut self, method: &str, params: Value) -> Response {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let mut headers = vec![("Authorization", &*self.bearer), ("Accept", "application/json")];
        headers.extend(self.session.as_deref().map(|session| ("Mcp-Session-Id", session)));
        self.connection.send("POST", self.path, &headers, body.to_string().as_bytes());
        self.connection.response()
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let response = self.send(method, params);
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }

    fn call(&mut self, operation: &str, tool: &str) -> Value {
        let arguments = json!({"name": tool, "intent": {"operation_type": operation}});
        let name = format!("call_tool_{operation}");
        self.ask("tools/call", json!({"name": name, "arguments": arguments}))["result"].take()
    }
}

fn refused(result: &Value) -> &str {
    assert_eq!(result["isError"], true, "{result}");
    error_text(result)
}

/// The values of `key` in a list of a result.
fn listed(message: &Value, list: &str, key: &str) -> Vec<String> {
    let list = message["result"][list].as_array().unwrap_or_else(|| panic!("{message}"));
    list.iter().map(|it| it[key].as_str().unwrap().to_owned()).collect()
}

// ID-2
#[test]
fn token_is_limited_to_its_servers_tools_and_operations_at_every_entry_point() {
    let proxy = Proxy::start(servers());
    let token = create(&proxy, &["ci", "--server", "a", "--operation", "read", "--expires", "30d"]);
    assert!(token.starts_with("mcpp_"), "{token}");
    let mut holder = Holder::open(&proxy, &token, "/mcp");
    assert_ne!(holder.call("read", "a:read_item")["isError"], true);
    let mut offered = listed(&holder.ask("tools/list", json!({})), "tools", "name");
    offered.retain(|name| name.starts_with("call_"));
    assert_eq!(offered, ["call_tool_read"]);
    let text = |tool: &str| {
        let limit = match tool.starts_with("a:") {
            true => "operation 'read'",
            false => "server 'a'",
        };
        format!("Token 'ci' does not allow tool '{tool}': it is limited to {limit}")
    };
    assert_eq!(refused(&holder.call("read", "b:read_item")), text("b:read_item"));
    assert_eq!(refused(&holder.call("write", "a:write_item")), text("a:write_item"));
    assert_eq!(refused(&holder.call("destructive", "a:delete_item")), text("a:delete_item"));
    // Stating a read does not change the operation of a tool. A tool hidden from the caller is reported like a missing
    // one.
    let absent = |tool: &str| format!("Tool '{tool}' not found. Use retrieve_tools to find tools.");
    // For the operator it was refused, and counts as a refused call of its server.
    for (tool, status) in [("a:write_item", "rejected"), ("a:nothing", "error")] {
        assert_eq!(refused(&holder.call("read", tool)), absent(tool));
        assert_eq!(proxy.activity("type=tool_call")[0]["status"], status, "{tool}");
    }
    let servers = proxy.api("servers")["servers"].clone();
    let counts = |at: usize| servers[at]["calls"].clone();
    assert_eq!(
        (&counts(0)["rejected"], &counts(0)["success"]),
        (&json!(3), &json!(1)),
        "{servers}"
    );
    assert_eq!(counts(1)["rejected"], 1, "{servers}");
    for (variant, tool) in [
        ("read", "b:nothing"),
        ("read", "nowhere:x"),
        ("write", "a:nothing"),
        ("destructive", "b:delete_item"),
    ] {
        assert_eq!(refused(&holder.call(variant, tool)), text(tool), "{variant}");
    }
    let record = &proxy.activity("type=tool_call&status=rejected")[0];
    assert_eq!(record["principal"], "token:ci");
    let decision = &proxy.activity("type=policy_decision&principal=token:ci")[0];
    assert_eq!(
        (&decision["status"], &decision["metadata"]["policy"]),
        (&json!("blocked"), &json!("scope"))
    );
    // Resources, prompts and completions.
    let read = |server: &str| json!({"uri": format!("mcpproxy://{server}/test://shared")});
    assert!(holder.ask("resources/read", read("a")).get("result").is_some());
    let error = holder.ask("resources/read", read("b"))["error"]["message"].to_string();
    assert!(error.contains("Token 'ci' does not allow resource 'test://shared' of 'b'"), "{error}");
    let error =
        holder.ask("prompts/get", json!({"name": "b__greet"}))["error"]["message"].to_string();
    assert!(error.contains("Token 'ci' does not allow prompt 'greet' of 'b'"), "{error}");
    for (method, params, name) in [
        ("resources/read", read("nowhere"), "resource 'test://shared' of 'nowhere'"),
        ("prompts/get", json!({"name": "nowhere__greet"}), "prompt 'greet' of 'nowhere'"),
    ] {
        let error = holder.ask(method, params)["error"]["message"].to_string();
        assert!(error.contains(&format!("Token 'ci' does not allow {name}")), "{error}");
    }
    let subscribed = holder.ask("resources/subscribe", read("b"));
    assert!(subscribed.get("error").is_some(), "{subscribed}");
    // Lists contain only items of the permitted server.
    for (method, list, key) in [
        ("resources/list", "resources", "uri"),
        ("resources/templates/list", "resourceTemplates", "uriTemplate"),
        ("prompts/list", "prompts", "name"),
    ] {
        let seen = listed(&holder.ask(method, json!({})), list, key);
        let of_a = |it: &String| it.starts_with("mcpproxy://a/") || it.starts_with("a__");
        assert!(!seen.is_empty() && seen.iter().all(of_a), "{method}: {seen:?}");
    }
    let found = holder.ask(
        "tools/call",
        json!({"name": "retrieve_tools", "arguments": {"query": "item", "limit": 100}}),
    );
    let found = &found["result"]["structuredContent"]["tools"];
    let names: Vec<_> =
        found.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"a:read_item") && !names.contains(&"a:write_item"), "{names:?}");
    assert!(names.iter().all(|name| name.starts_with("a:")), "{names:?}");
    // The same at the other endpoint.
    let mut direct = Holder::open(&proxy, &token, "/mcp/all");
    let seen = listed(&direct.ask("tools/list", json!({})), "tools", "name");
    assert!(
        seen.contains(&"a__read_item".to_owned()) && !seen.contains(&"a__delete_item".to_owned())
    );
    assert!(seen.iter().all(|name| name.starts_with("a__")), "{seen:?}");
    let called = direct.ask("tools/call", json!({"name": "b__read_item", "arguments": {}}));
    assert_eq!(refused(&called["result"]), text("b:read_item"));
    // The same over REST.
    let bearer = format!("Bearer {token}");
    let call = |name: &str| {
        let body = json!({"tool_name": "call_tool_read", "arguments": {"name": name},
            "intent": {"operation_type": "read"}});
        let headers = [("Authorization", &*bearer)];
        proxy.request("POST", "/api/v1/tools/call", &headers, body.to_string().as_bytes())
    };
    assert_eq!(call("a:read_item").status, 200);
    let forbidden = call("b:read_item");
    assert_eq!(
        (forbidden.status, forbidden.json()["error"].as_str()),
        (403, Some(&*text("b:read_item")))
    );
}

#[test]
fn token_is_not_an_admin_over_rest() {
    let proxy = Proxy::start(json!({"a": stub_stdio(&[]), "b": stub_stdio(&[])}));
    let token = create(&proxy, &["ci", "--server", "a"]);
    let ask =
        |method: &str, path: &str| proxy.request(method, path, &[("X-API-Key", &*token)], b"");
    for (method, path) in [
        ("GET", "/api/v1/tokens"),
        ("POST", "/api/v1/tokens"),
        ("DELETE", "/api/v1/tokens/ci"),
        ("POST", "/api/v1/tokens/ci/rotate"),
        ("GET", "/api/v1/status"),
        ("GET", "/api/v1/servers"),
        ("GET", "/api/v1/activity/summary"),
        ("GET", "/api/v1/activity/verify"),
        ("GET", "/api/v1/activity/export"),
        ("GET", "/events"),
        ("GET", "/api/v1/activity?principal=admin"),
    ] {
        let response = ask(method, path);
        assert_eq!(response.status, 403, "{method} {path}: {}", response.text());
        assert!(response.text().contains("token:ci"), "{}", response.text());
    }
    let tools = ask("GET", "/api/v1/tools?limit=100").json();
    let tools = tools["data"]["tools"].as_array().unwrap();
    assert!(!tools.is_empty() && tools.iter().all(|tool| tool["server"] == "a"));
    assert_eq!(ask("GET", "/api/v1/tools/a:read_item").status, 200);
    assert_eq!(ask("GET", "/api/v1/tools/b:read_item").status, 404);
    // The client sees only its own records.
    Holder::open(&proxy, &token, "/mcp").call("read", "a:read_item");
    proxy.client().read("a:read_item", json!({}));
    let own = ask("GET", "/api/v1/activity").json();
    let own = own["data"]["activities"].as_array().unwrap();
    assert!(!own.is_empty() && own.iter().all(|it| it["principal"] == "token:ci"), "{own:?}");
    let theirs = &proxy.activity("principal=anonymous&type=tool_call")[0];
    let id = |record: &Value| format!("/api/v1/activity/{}", record["id"].as_str().unwrap());
    assert_eq!(ask("GET", &id(&own[0])).status, 200);
    assert_eq!(ask("GET", &id(theirs)).status, 404);
    assert_eq!(ask("GET", "/api/v1/openapi.json").status, 200);
    // The filter of the command line returns the same records.
    let listed = proxy.cli(&["activity", "list", "--principal", "token:ci", "--json"]).json();
    assert_eq!(listed["activities"].as_array().unwrap().len(), own.len());
}

// ID-2
#[test]
fn token_is_accepted_and_revoked_at_once_on_an_open_connection() {
    let proxy =
        Proxy::with(json!({"mcpServers": {"a": stub_stdio(&[])}, "require_mcp_auth": true}));
    let token = create(&proxy, &["ci"]);
    let mut holder = Holder::open(&proxy, &token, "/mcp");
    for _ in 0..3 {
        assert_ne!(holder.call("read", "a:read_item")["isError"], true);
    }
    let rotated = proxy.cli(&["token", "rotate", "ci", "--json"]).json();
    let renewed = rotated["token"].as_str().unwrap();
    assert_eq!((&rotated["name"], &rotated["expires"]), (&json!("ci"), &json!(null)));
    let rejected = holder.send("tools/list", json!({}));
    assert_eq!(rejected.status, 401);
    assert_eq!(
        rejected.json()["error"],
        "Token is unknown, or was revoked: `mcpproxy token create NAME` makes another"
    );
    // The session belongs to the principal, not to the secret.
    let session = holder.session.take();
    let mut renewed = Holder { session, ..Holder::new(&proxy, renewed, "/mcp") };
    assert_ne!(renewed.call("read", "a:read_item")["isError"], true);
    assert_eq!(proxy.cli(&["token", "revoke", "ci"]).code, Some(0));
    assert_eq!(renewed.send("tools/list", json!({})).status, 401);
    assert_eq!(proxy.cli(&["token", "revoke", "ci"]).code, Some(1));
    let changes = proxy.activity("type=config_change");
    let of = |it: &Value| it["metadata"]["change"].as_str().unwrap_or_default().to_owned();
    let made: Vec<_> = changes.iter().filter(|it| it["metadata"]["name"] == "ci").map(of).collect();
    assert_eq!(made, ["token_revoked", "token_rotated", "token_created"]);
    assert!(changes.iter().all(|it| !it.to_string().contains("mcpp_")));
}

// ID-1
#[test]
fn bad_token_is_refused_and_never_treated_as_anonymous() {
    let proxy = Proxy::start(json!({"a": stub_stdio(&[])}));
    let token = create(&proxy, &["short", "--expires", "1s"]);
    let lasting = create(&proxy, &["lasting"]);
    let expired = until("the token expires", || {
        let response = Holder::new(&proxy, &token, "/mcp").hello();
        (response.status == 401).then_some(response)
    });
    assert_eq!(
        expired.json()["error"],
        "Token has expired: `mcpproxy token rotate NAME` renews it"
    );
    let forged = format!(
        "{}{}",
        &lasting[..lasting.len() - 1],
        if lasting.ends_with('A') { 'B' } else { 'A' }
    );
    let oversized = format!("mcpp_{}", "x".repeat(20_000));
    for (token, expected) in [
        (&*forged, "Token is unknown, or was revoked: `mcpproxy token create NAME` makes another"),
        ("mcpp_", "Token is malformed: send it whole, as `mcpproxy token create NAME` printed it"),
        (&*oversized, "Token is longer than 16384 bytes"),
    ] {
        for path in ["/mcp", "/mcp/all"] {
            let response = Holder::new(&proxy, token, path).hello();
            assert_eq!((response.status, response.json()["error"].as_str()), (401, Some(expected)));
        }
        let response = proxy.request("GET", "/api/v1/tools", &[("X-API-Key", token)], b"");
        assert_eq!((response.status, response.json()["error"].as_str()), (401, Some(expected)));
    }
    let in_url = proxy.request("GET", &format!("/api/v1/tools?apikey={lasting}"), &[], b"");
    assert_eq!(in_url.status, 401, "{}", in_url.text());
    // A credential of another kind is ignored.
    assert_eq!(Holder::new(&proxy, "another's", "/mcp").hello().status, 200);
    assert!(proxy.activity("principal=anonymous&type=tool_call").is_empty());
}

#[test]
fn running_proxy_notices_a_token_file_changed_by_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"mcpServers": {"a": stub_stdio(&[])}, "require_mcp_auth": true});
    let path = configure(config.clone(), folder.path());
    let run = |args: &[&str]| Output::of(mcpproxy().arg("--config").arg(&path).args(args));
    let made = run(&["token", "create", "ci", "--tool", "read_*", "--json"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let token = made.json()["token"].as_str().unwrap().to_owned();
    let file = folder.path().join("data/tokens.json");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains(&token[5..]), "only its hash is kept");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let listed = run(&["token", "list", "--json"]).json();
    assert_eq!(listed["tokens"][0]["tools"], json!(["read_*"]));
    assert!(run(&["token", "list"]).stdout.contains("read_*"));
    let again = run(&["token", "create", "ci"]);
    assert_eq!((again.code, again.stderr.contains("'ci' exists already")), (Some(1), true));
    assert_eq!(run(&["token", "create", "a b"]).code, Some(2));
    let made = run(&["token", "create", "other"]);
    let secret = made.stdout.strip_suffix('\n').unwrap_or_default();
    let is_alone = secret.starts_with("mcpp_") && !secret.contains(char::is_whitespace);
    assert!(is_alone && made.stderr.contains("shown only once"), "{}", made.stdout);
    assert_eq!(run(&["token", "revoke", "other"]).code, Some(0));
    let misspelled = run(&["token", "create", "x", "--server", "aa"]);
    let text = "no token was created: there is no server 'aa': did you mean a? (the config has a)";
    assert!(
        misspelled.code == Some(1) && misspelled.stderr.contains(text),
        "{}",
        misspelled.stderr
    );
    assert_eq!(run(&["token", "list", "--json"]).json()["tokens"].as_array().unwrap().len(), 1);
    assert_eq!(run(&["token", "create", "x", "--operation", "all"]).code, Some(2));
    assert_eq!(run(&["token", "create", "x", "--expires", "0d"]).code, Some(2));
    let proxy = Proxy::unready(config, folder).ready();
    let mut holder = Holder::open(&proxy, &token, "/mcp");
    assert_ne!(holder.call("read", "a:read_item")["isError"], true);
    let file = proxy.folder.path().join("data/tokens.json");
    // An unreadable file changes nothing. If the file is missing, all tokens become invalid.
    write_private(&file, "{");
    until("it is logged", || proxy.log().contains("agent tokens cannot be read").then_some(()));
    assert_ne!(holder.call("read", "a:read_item")["isError"], true);
    std::fs::remove_file(&file).unwrap();
    until("the token is out of force", || {
        (holder.send("tools/list", json!({})).status == 401).then_some(())
    });
}

// ID-5
#[test]
fn session_belongs_to_its_opener() {
    let proxy = Proxy::start(json!({"a": stub_stdio(&[])}));
    let tokens = ["one", "two"].map(|name| create(&proxy, &[name]));
    let owner = Holder::open(&proxy, &tokens[0], "/mcp");
    let anonymous = proxy.client();
    let ask = |method: &str, session: &str, key: Option<&str>| {
        let mut headers =
            vec![("Mcp-Session-Id", session), ("Accept", "text/event-stream, application/json")];
        headers.extend(key.map(|key| ("X-API-Key", key)));
        let cancel =
            br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
        let body: &[u8] = if method == "POST" { cancel } else { b"" };
        proxy.request(method, "/mcp", &headers, body)
    };
    let session = owner.session.as_deref().unwrap();
    for method in ["POST", "GET", "DELETE"] {
        for key in [None, Some(&*tokens[1]), Some(API_KEY)] {
            let response = ask(method, session, key);
            assert_eq!(response.status, 404, "{method} {key:?}");
            let unknown = ask(method, "0123456789abcdef0123456789abcdef", key);
            assert_eq!(response.text(), unknown.text(), "like an unknown session");
        }
        assert_eq!(ask(method, &anonymous.session, Some(API_KEY)).status, 404);
        assert_eq!(ask(method, &anonymous.session, Some(&tokens[0])).status, 404);
    }
    assert_eq!(ask("POST", session, Some(&tokens[0])).status, 202);
    assert_eq!(ask("DELETE", session, Some(&tokens[0])).status, 204);
    // A recreated token of the same name is another principal.
    let owner = Holder::open(&proxy, &tokens[1], "/mcp");
    proxy.cli(&["token", "revoke", "two"]);
    let other = create(&proxy, &["two"]);
    assert_eq!(ask("POST", owner.session.as_deref().unwrap(), Some(&other)).status, 404);
}

/// A proxy that accepts JWTs of the issuer, once it knows the keys.
fn with_issuer(issuer: &Issuer) -> Proxy {
    let proxy = Proxy::with(json!({"mcpServers": {"a": stub_stdio(&[])}, "require_mcp_auth": true,
        "auth": issuer.auth()}));
    until("the keys are known", || {
        let token = issuer.token(&issuer.claims());
        (Holder::new(&proxy, &token, "/mcp").hello().status == 200).then_some(())
    });
    proxy
}

// ID-3
#[test]
fn caller_with_a_jwt_of_the_issuer_is_recorded_by_subject_and_groups() {
    let issuer = Issuer::start();
    let proxy = with_issuer(&issuer);
    let mut holder = Holder::open(&proxy, &issuer.token(&issuer.claims()), "/mcp");
    assert_ne!(holder.call("read", "a:read_item")["isError"], true);
    let record = &proxy.activity("principal=jwt:ada&type=tool_call")[0];
    assert_eq!(record["metadata"]["groups"], json!(["dev", "ops"]), "{record}");
    // Another token of the same subject continues the session.
    let mut claims = issuer.claims();
    claims["exp"] = json!(unix_now() + 600);
    let session = holder.session.take();
    let mut later = Holder { session, ..Holder::new(&proxy, &issuer.token(&claims), "/mcp") };
    assert_ne!(later.call("read", "a:read_item")["isError"], true);
    // A token of another subject does not.
    claims["sub"] = json!("eve");
    let session = later.session.take();
    let mut other = Holder { session, ..Holder::new(&proxy, &issuer.token(&claims), "/mcp") };
    assert_eq!(other.send("tools/list", json!({})).status, 404);
    // The API key still works.
    assert_eq!(proxy.get("/api/v1/status").status, 200);
}

// ID-3
#[test]
fn rfc_9728_client_gets_the_address_of_the_login() {
    let issuer = Issuer::start();
    let proxy = with_issuer(&issuer);
    let host = format!("127.0.0.1:{}", proxy.port);
    for path in ["/mcp", "/mcp/all"] {
        let refused = proxy.request("POST", path, &[("Host", &host)], b"{}");
        assert_eq!(refused.status, 401);
        let at = format!("/.well-known/oauth-protected-resource{path}");
        let challenge = format!("Bearer resource_metadata=\"http://{host}{at}\"");
        assert_eq!(refused.header("www-authenticate"), Some(&*challenge));
        let described = proxy.request("GET", &at, &[("Host", &host)], b"");
        assert_eq!(described.status, 200);
        let described = described.json();
        assert_eq!(described["resource"], format!("http://{host}{path}"));
        assert_eq!(described["authorization_servers"], json!([issuer.url()]));
    }
    assert_eq!(proxy.request("GET", "/.well-known/oauth-protected-resource", &[], b"").status, 200);
    let bad = Holder::new(&proxy, "a.b.c", "/mcp").hello();
    assert!(bad.header("www-authenticate").unwrap().ends_with("error=\"invalid_token\""));
    let without = Proxy::start(json!({}));
    let path = "/.well-known/oauth-protected-resource";
    assert_eq!(without.request("GET", path, &[], b"").status, 404);
}

#[test]
fn bad_jwt_is_refused_with_the_reason() {
    let issuer = Issuer::start();
    let proxy = with_issuer(&issuer);
    let with = |name: &str, value: Value| {
        let mut claims = issuer.claims();
        claims[name] = value;
        issuer.token(&claims)
    };
    let good = issuer.token(&issuer.claims());
    let (rest, _) = good.rsplit_once('.').unwrap();
    let (_, other) = with("sub", json!("eve"))
        .rsplit_once('.')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    for (token, expected) in [
        (with("exp", json!(unix_now() - 600)), "JWT: it has expired"),
        (with("nbf", json!(unix_now() + 600)), "JWT: it is not valid yet"),
        (with("aud", json!("other")), "JWT: the audience is not accepted"),
        (with("iss", json!("https://other.example")), "JWT: the issuer is not accepted"),
        (with("exp", json!("soon")), "JWT: claim 'exp' must be a time in seconds"),
        (issuer.unsigned(&issuer.claims()), "JWT: algorithm 'none' is not allowed"),
        (format!("{rest}.{other}"), "JWT: its signature is wrong"),
        ("x".repeat(20_000), "Token is longer than 16384 bytes"),
        (
            "mcpp_x".to_owned(),
            "Token is malformed: send it whole, as `mcpproxy token create NAME` printed it",
        ),
        ("no jwt".to_owned(), "Bearer token is not a JWT: it does not have three parts"),
    ] {
        let response = Holder::new(&proxy, &token, "/mcp").hello();
        assert_eq!((response.status, response.json()["error"].as_str()), (401, Some(expected)));
    }
    assert!(proxy.activity("type=tool_call").is_empty());
}

// ID-3
#[test]
fn keys_are_fetched_for_a_token_with_an_unknown_key_id_and_a_failing_endpoint_removes_no_key() {
    let issuer = Issuer::start();
    let proxy = with_issuer(&issuer);
    let old = issuer.token(&issuer.claims());
    let asked = issuer.asked();
    // For unknown keys the issuer is queried only rarely, regardless of the number of requests.
    issuer.rotate("k2");
    let unknown = issuer.token(&issuer.claims());
    for keys in [Keys::Body("<html>".to_owned()), Keys::Hang] {
        issuer.answers(keys);
        for _ in 0..3 {
            let response = Holder::new(&proxy, &unknown, "/mcp").hello();
            let expected = "JWT: it is not signed with a known key of its issuer";
            assert_eq!((response.status, response.json()["error"].as_str()), (401, Some(expected)));
            assert_eq!(Holder::new(&proxy, &old, "/mcp").hello().status, 200, "the old keys stay");
        }
    }
    assert!(issuer.asked() <= asked + 2, "{} times", issuer.asked() - asked);
    issuer.answers(Keys::Body(issuer.keys()));
    until("the new key is known", || {
        (Holder::new(&proxy, &unknown, "/mcp").hello().status == 200).then_some(())
    });
    assert_eq!(Holder::new(&proxy, &old, "/mcp").hello().status, 401, "the old key is withdrawn");
}

#[test]
fn hanging_endpoint_delays_only_its_own_requests_within_bounds() {
    let issuer = Issuer::start();
    issuer.answers(Keys::Hang);
    let proxy = Proxy::with(json!({"mcpServers": {"a": stub_stdio(&[])}, "require_mcp_auth": true,
        "auth": issuer.auth()}));
    until("the issuer is asked", || (issuer.asked() > 0).then_some(()));
    let token = issuer.token(&issuer.claims());
    assert_eq!(Holder::new(&proxy, &token, "/mcp").hello().status, 401);
    let made = create(&proxy, &["ci"]);
    assert_eq!(Holder::new(&proxy, &made, "/mcp").hello().status, 200);
    std::fs::remove_file(proxy.folder.path().join("data/tokens.json")).unwrap();
    until("files are checked meanwhile", || {
        (Holder::new(&proxy, &made, "/mcp").hello().status == 401).then_some(())
    });
    assert_eq!(proxy.get("/api/v1/status").status, 200);
    issuer.answers(Keys::Body(issuer.keys()));
    until("the keys are known", || {
        (Holder::new(&proxy, &token, "/mcp").hello().status == 200).then_some(())
    });
}

#[test]
fn keys_of_a_file_are_read_and_reread() {
    let issuer = Issuer::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, issuer.keys()).unwrap();
    let proxy = Proxy::with(json!({"require_mcp_auth": true, "auth": {"jwt": {
        "issuer": issuer.url(), "audience": "mcp", "jwks_file": file}}}));
    let works =
        |token: &str| (Holder::new(&proxy, token, "/mcp").hello().status == 200).then_some(());
    let first = issuer.token(&issuer.claims());
    until("the keys are read", || works(&first));
    issuer.rotate("k2");
    std::fs::write(&file, issuer.keys()).unwrap();
    let second = issuer.token(&issuer.claims());
    until("the new keys are read", || works(&second));
    assert!(works(&first).is_none());
    assert_eq!(issuer.asked(), 0);
}

// SF-2
#[test]
fn damaged_token_file_refuses_every_agent_and_is_a_named_fault() {
    let proxy = Proxy::start(servers());
    let token = create(&proxy, &["ci"]);
    let file = proxy.folder.path().join("data").join("tokens.json");
    let is_good = |proxy: &Proxy| {
        proxy.request("GET", "/api/v1/tools", &[("X-API-Key", &token)], b"").status == 200
    };
    assert!(is_good(&proxy));
    drop(proxy.client());
    let folder = proxy.end();
    let sound = std::fs::read_to_string(&file).unwrap();
    write_private(&file, &sound.replacen("\"ci\"", "\"co\"", 1));
    let proxy = Proxy::unready(json!({"mcpServers": servers()}), folder);
    let readiness = until("it is not ready", || {
        let readiness = proxy.request("GET", "/readyz", &[("X-API-Key", API_KEY)], b"");
        (readiness.status == 503).then(|| readiness.json())
    });
    assert_eq!(readiness["tokens"]["state"], "rejected", "{readiness}");
    let reason = readiness["tokens"]["reason"].as_str().unwrap().to_owned();
    for words in ["no agent token is accepted", "tokens.json", "checksum", "cp -p"] {
        assert!(reason.contains(words), "{words}: {reason}");
    }
    let public = proxy.request("GET", "/readyz", &[], b"").json();
    assert_eq!(
        public["tokens"],
        json!({"state": "rejected"}),
        "the reason is for the key's holder"
    );
    assert!(!is_good(&proxy));
    let faults = proxy.api("status")["faults"].clone();
    assert_eq!(
        (&faults[0]["part"], faults[0]["cause"].as_str()),
        (&json!("tokens"), Some(&*reason))
    );
    let doctor = proxy.cli(&["doctor"]);
    assert_eq!(doctor.code, Some(1));
    assert!(doctor.stdout.contains("tokens.json.last-good"), "{}", doctor.stdout);
    // A change does not overwrite an unreadable file.
    let made = proxy.cli(&["token", "create", "other"]);
    assert_ne!(made.code, Some(0), "{}", made.stdout);
    assert!(made.stderr.contains("checksum"), "{}", made.stderr);

    write_private(&file, &sound);
    until("it is ready", || {
        (proxy.request("GET", "/readyz", &[], b"").status == 200).then_some(())
    });
    assert!(is_good(&proxy));
    assert_eq!(proxy.api("status")["faults"], json!([]));
    // If the file is damaged while the tokens are in force, they remain valid, and a fault is reported.
    write_private(&file, "");
    until("it is a fault", || {
        let faults = proxy.api("status")["faults"].to_string();
        faults.contains("the agent tokens that were read before stay in force").then_some(())
    });
    assert!(is_good(&proxy));
    let readiness = proxy.request("GET", "/readyz", &[], b"");
    assert_eq!((readiness.status, &readiness.json()["tokens"]["state"]), (200, &json!("rejected")));
}
