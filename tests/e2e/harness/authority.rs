//! An MCP server that requires a login, the authorization server that it names, and the browser of the person who logs
//! in.
//!
//! Both servers share one listener. It checks the duties of a client (PKCE, `resource`, the registered redirect) and
//! can be configured to commit each fault that a client must detect.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine;
use serde_json::{Value, json};

use super::{Connection, Output, PATIENCE, Response, until};

/// Configured behavior of the authorization server, and the requests it has received.
#[derive(Default)]
pub(crate) struct Ways {
    /// Replacements for members of the authorization server's metadata.
    pub(crate) metadata: Value,
    /// Replacements for members of the protected resource's metadata.
    pub(crate) resource: Value,
    /// Value that replaces `iss` in the redirect.
    pub(crate) issuer: Option<String>,
    /// URL that replaces that of the protected resource's metadata.
    pub(crate) place: Option<String>,
    /// Replacements for members of the token response.
    pub(crate) tokens_as: Value,
    /// `expires_in` of the tokens.
    pub(crate) life: Option<u64>,
    pub(crate) refuse_refresh: bool,
    /// Responses with renewed tokens are delayed until this is false.
    pub(crate) hold_refresh: bool,
    /// Requests to the endpoints for registration and tokens are redirected, with status 307.
    pub(crate) has_moved: bool,
    /// The server requires no login, and publishes no metadata.
    pub(crate) open: bool,
    /// Methods that require no token.
    pub(crate) free: &'static [&'static str],
    /// A method, and the scope that a token must have for it.
    pub(crate) scope: Option<(&'static str, &'static str)>,
    /// Id of the known client, if clients do not register.
    pub(crate) client: Option<&'static str>,
    /// Secret of that client, for the grant `client_credentials`.
    pub(crate) secret: Option<&'static str>,
    /// The client must send the secret in the form instead of a header.
    pub(crate) posts_secret: bool,
    /// Status and body with which the grant `client_credentials` is refused.
    pub(crate) refuses_client: Option<(u16, Value)>,
    /// Prefix of the access tokens in place of `access`.
    pub(crate) tokens: Option<&'static str>,
    /// Audience of the tokens, if they are not for this server.
    pub(crate) audience: Option<String>,
    /// The server rejects every token, although it issues them.
    pub(crate) takes_none: bool,
    /// The user denies the login.
    pub(crate) denied: bool,
    /// Tokens that the server accepts.
    pub(crate) valid: Vec<String>,
    /// Every `Authorization` header that the server received.
    pub(crate) seen: Vec<String>,
    /// Scopes requested by each login.
    pub(crate) asked: Vec<String>,
    /// Client ids of logins, and requests to the token endpoint.
    pub(crate) clients: Vec<String>,
    pub(crate) exchanged: Vec<String>,
    /// Revoked tokens, and the status of refused revocations.
    pub(crate) revoked: Vec<String>,
    pub(crate) refuses_revocation: Option<u16>,
    /// Number of renewals.
    pub(crate) renewed: u64,
    pub(crate) given: u64,
    /// Code challenge and redirect of the login in progress.
    pub(crate) challenge: String,
    pub(crate) redirect: String,
}

/// A scope that no token can satisfy.
pub(crate) const UNGRANTABLE: &str = "nobodys";

impl Ways {
    fn audience(&self, base: &str) -> String {
        self.audience.clone().unwrap_or_else(|| format!("{base}/mcp"))
    }
}

pub(crate) struct Authority {
    pub(crate) port: u16,
    ways: Arc<Mutex<Ways>>,
}

impl Authority {
    pub(crate) fn start(ways: Ways) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let ways = Arc::new(Mutex::new(ways));
        let shared = Arc::clone(&ways);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let ways = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, port, &ways));
            }
        });
        Self { port, ways }
    }

    pub(crate) fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().expect("no thread has panicked")
    }

    /// Whether the last request to the server had the newest token.
    pub(crate) fn saw_newest_token(&self) -> bool {
        let ways = self.ways();
        ways.seen.last() == ways.valid.last().map(|token| format!("Bearer {token}")).as_ref()
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/mcp", self.issuer())
    }

    pub(crate) fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

struct Request {
    method: String,
    path: String,
    query: String,
    authorization: Option<String>,
    body: String,
}

fn read(stream: &TcpStream) -> Option<Request> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "authorization" => authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    Some(Request { method, path, query, authorization, body: String::from_utf8(body).ok()? })
}

fn serve(mut stream: TcpStream, port: u16, ways: &Mutex<Ways>) {
    let Some(request) = read(&stream) else { return };
    let (status, headers, body) = answer(&request, port, &mut ways.lock().expect("sound"));
    if request.body.contains("grant_type=refresh_token") {
        until("renewed tokens may be sent", || {
            (!ways.lock().expect("sound").hold_refresh).then_some(())
        });
    }
    let head = format!(
        "HTTP/1.1 {status} X\r\n{headers}Content-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}

fn answer(request: &Request, port: u16, ways: &mut Ways) -> (u16, String, String) {
    let base = format!("http://127.0.0.1:{port}");
    let ok = |value: Value| (200, String::new(), value.to_string());
    let bad = |error: &str| (400, String::new(), json!({"error": error}).to_string());
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/mcp") => protected(request, &base, ways),
        (_, "/mcp") => (405, String::new(), String::new()),
        (_, path) if ways.open && path != "/mcp" => (404, String::new(), String::new()),
        (_, "/.well-known/oauth-protected-resource/mcp") => ok(with(
            json!({"resource": format!("{base}/mcp"), "authorization_servers": [base]}),
            &ways.resource,
        )),
        (_, "/.well-known/oauth-authorization-server") => ok(with(
            json!({
                "issuer": base,
                "authorization_endpoint": format!("{base}/authorize"),
                "token_endpoint": format!("{base}/token"),
                "registration_endpoint": format!("{base}/register"),
                "code_challenge_methods_supported": ["S256"],
                "response_types_supported": ["code"],
            }),
            &ways.metadata,
        )),
        ("POST", path @ ("/register" | "/token")) if ways.has_moved => {
            (307, format!("Location: /moved{path}\r\n"), String::new())
        }
        ("POST", "/register" | "/moved/register") => {
            let asked: Value = serde_json::from_str(&request.body).expect("JSON");
            ways.redirect = asked["redirect_uris"][0].as_str().expect("one").to_owned();
            ok(json!({"client_id": "c1", "redirect_uris": asked["redirect_uris"]}))
        }
        ("GET", "/authorize") => {
            let asked = |name| parameter(&request.query, name);
            if asked("code_challenge_method") != "S256"
                || asked("resource") != ways.audience(&base)
                || asked("client_id") != ways.client.unwrap_or("c1")
                || (ways.client.is_none() && asked("redirect_uri") != ways.redirect)
            {
                return bad("invalid_request");
            }
            ways.challenge = asked("code_challenge");
            ways.asked.push(asked("scope"));
            ways.clients.push(asked("client_id"));
            let issuer = ways.issuer.clone().unwrap_or(base);
            let (redirect, state) = (asked("redirect_uri"), asked("state"));
            let outcome = match ways.denied {
                true => "error=access_denied&error_description=words+of+a+stranger",
                false => "code=code-1",
            };
            let to = format!("{redirect}?{outcome}&state={state}&iss={issuer}");
            (302, format!("Location: {to}\r\n"), String::new())
        }
        ("POST", "/revoke") => {
            let asked = |name| parameter(&request.body, name);
            assert!(asked("client_id") == "c1" || is_client(request, ways), "{}", request.body);
            ways.revoked.push(format!("{} {}", asked("token_type_hint"), asked("token")));
            ways.valid.retain(|token| *token != asked("token"));
            (ways.refuses_revocation.unwrap_or(200), String::new(), String::new())
        }
        ("POST", "/token" | "/moved/token") => {
            let asked = |name| parameter(&request.body, name);
            ways.exchanged.push(format!("{:?} {}", request.authorization, request.body));
            if asked("grant_type") == "client_credentials" {
                return token_for_client(request, &base, ways);
            }
            let proven = match asked("grant_type").as_str() {
                "authorization_code" => {
                    asked("code") == "code-1" && s256(&asked("code_verifier")) == ways.challenge
                }
                "refresh_token" => {
                    ways.renewed += 1;
                    asked("refresh_token") == format!("refresh-{}", ways.given)
                        && !ways.refuse_refresh
                }
                _ => false,
            };
            if !proven || asked("resource") != ways.audience(&base) {
                return bad("invalid_grant");
            }
            ways.given += 1;
            let token = format!("{}-{}", ways.tokens.unwrap_or("access"), ways.given);
            ways.valid = vec![token.clone()];
            let mut tokens = json!({"access_token": token, "token_type": "Bearer",
                "refresh_token": format!("refresh-{}", ways.given), "scope": ways.asked.last()});
            if let Some(life) = ways.life {
                tokens["expires_in"] = json!(life);
            }
            ok(with(tokens, &ways.tokens_as))
        }
        _ => (404, String::new(), String::new()),
    }
}

/// Whether a request has the credentials of the known client at the expected place, and only there.
fn is_client(request: &Request, ways: &Ways) -> bool {
    let (Some(client), Some(secret)) = (ways.client, ways.secret) else { return false };
    let pair = base64::engine::general_purpose::STANDARD.encode(format!("{client}:{secret}"));
    let posted = |name| parameter(&request.body, name);
    match ways.posts_secret {
        true => {
            request.authorization.is_none()
                && (posted("client_id"), posted("client_secret")) == (client.into(), secret.into())
        }
        false => {
            request.authorization == Some(format!("Basic {pair}"))
                && posted("client_secret").is_empty()
        }
    }
}

/// Response to a token request by `client_credentials`, without a refresh token.
fn token_for_client(request: &Request, base: &str, ways: &mut Ways) -> (u16, String, String) {
    if let Some((status, body)) = &ways.refuses_client {
        return (*status, String::new(), body.to_string());
    }
    if !is_client(request, ways) {
        return (401, String::new(), json!({"error": "invalid_client"}).to_string());
    }
    if parameter(&request.body, "resource") != ways.audience(base) {
        return (400, String::new(), json!({"error": "invalid_target"}).to_string());
    }
    ways.asked.push(parameter(&request.body, "scope"));
    ways.given += 1;
    let token = format!("{}-{}", ways.tokens.unwrap_or("access"), ways.given);
    ways.valid = vec![token.clone()];
    let mut tokens = json!({"access_token": token, "token_type": "Bearer"});
    if let Some(life) = ways.life {
        tokens["expires_in"] = json!(life);
    }
    (200, String::new(), with(tokens, &ways.tokens_as).to_string())
}

/// Response of the MCP server, which has one tool, `read_item`.
fn protected(request: &Request, base: &str, ways: &mut Ways) -> (u16, String, String) {
    ways.seen.extend(request.authorization.clone());
    let token = request.authorization.as_deref().and_then(|it| it.strip_prefix("Bearer "));
    let message: Value = serde_json::from_str(&request.body).unwrap_or_default();
    let method = message["method"].as_str().unwrap_or_default();
    let free = ways.open || ways.free.contains(&method);
    let takes = |token: &str| !ways.takes_none && ways.valid.iter().any(|valid| valid == token);
    if !free && !token.is_some_and(takes) {
        let place = format!("{base}/.well-known/oauth-protected-resource/mcp");
        let place = ways.place.clone().unwrap_or(place);
        let challenge =
            format!("WWW-Authenticate: Bearer resource_metadata=\"{place}\", scope=\"mcp\"\r\n");
        return (401, challenge, String::new());
    }
    let has = |scope: &str| {
        ways.asked.last().is_some_and(|asked| asked.split(' ').any(|each| each == scope))
    };
    match ways.scope {
        // This scope is required even if the token has it, so no token suffices.
        Some((of, scope)) if of == method && (scope == UNGRANTABLE || !has(scope)) => {
            let challenge = format!(
                "WWW-Authenticate: Bearer error=\"insufficient_scope\", scope=\"{scope}\"\r\n"
            );
            return (403, challenge, String::new());
        }
        Some(_) | None => {}
    }
    let Some(id) = message.get("id") else { return (202, String::new(), String::new()) };
    let result = match method {
        "initialize" => json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "protected", "version": "1"}}),
        "tools/list" => json!({"tools": [{"name": "read_item", "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": "seven"}]}),
        _ => {
            let error = json!({"code": -32601, "message": "Method not found"});
            let body = json!({"jsonrpc": "2.0", "id": id, "error": error});
            return (200, String::new(), body.to_string());
        }
    };
    let body = json!({"jsonrpc": "2.0", "id": id, "result": result});
    (200, String::new(), body.to_string())
}

/// `value` extended by the members of `other`; a null removes a member.
fn with(mut value: Value, other: &Value) -> Value {
    let members = value.as_object_mut().expect("an object");
    for (name, member) in other.as_object().into_iter().flatten() {
        match member {
            Value::Null => members.remove(name),
            member => members.insert(name.clone(), member.clone()),
        };
    }
    value
}

/// A parameter of a form or a query.
fn parameter(form: &str, name: &str) -> String {
    let pairs = form.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next();
    let spaced = value.unwrap_or_default().replace('+', " ");
    let mut bytes = Vec::new();
    let mut rest = spaced.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let code = std::str::from_utf8(&rest[..2]).expect("a code");
            bytes.push(u8::from_str_radix(code, 16).expect("hex"));
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// Code challenge for a verifier; the hash is calculated by `sha256sum`.
fn s256(verifier: &str) -> String {
    let script = "printf %s \"$1\" | sha256sum";
    let output = Command::new("sh").args(["-c", script, "sh", verifier]).output().expect("sh runs");
    let hex = String::from_utf8(output.stdout).expect("ASCII");
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex");
    let hash: Vec<u8> = (0..32).map(byte).collect();
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(hash)
}

/// `mcpproxy upstream login` with a simulated user, who opens the printed address.
pub(crate) struct Browser {
    command: Child,
    errors: BufReader<std::process::ChildStderr>,
    printed: String,
}

impl Browser {
    pub(crate) fn new(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = command.spawn().expect("it starts");
        let errors = BufReader::new(command.stderr.take().expect("piped"));
        Self { command, errors, printed: String::new() }
    }

    /// Logs in if the command prints an address. Returns the command's output.
    pub(crate) fn log_in(mut self) -> Output {
        while let Some(line) = self.line() {
            if line.trim().starts_with("http://") {
                browse(line.trim());
            }
        }
        let mut output = Output::from(self.command.wait_with_output().expect("it ends"));
        output.stderr = self.printed;
        output
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.errors.read_line(&mut line).expect("it can be read");
        self.printed.push_str(&line);
        (count > 0).then_some(line)
    }
}

/// Opens the address of a login, follows its redirect, and returns the text of the last page.
pub(crate) fn browse(address: &str) -> String {
    let plain = |url: &str| url.strip_prefix("http://").expect("plain").to_owned();
    let redirect = visit(&plain(address));
    let location = redirect.header("location").expect("a redirect");
    visit(&plain(location)).text()
}

/// Opens a page.
fn visit(url: &str) -> Response {
    let (authority, target) = url.split_once('/').expect("a path");
    let port = authority.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let mut connection = Connection::open(port);
    connection.send("GET", &format!("/{target}"), &[("Connection", "close")], b"");
    connection.response()
}
