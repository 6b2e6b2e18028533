//! HTTP client for logins and key sets, with an address policy against SSRF.
//!
//! URLs come from untrusted parties: a server names its authorization server, which names its endpoints. The policy
//! allows https, and plain http between loopback addresses. It allows private addresses only if the server's own URL
//! has one, and redirects only within the origin, with the method kept. Bodies and time are bounded. Addresses are
//! checked after name resolution, and only the checked ones are contacted. Through an egress proxy, only names and
//! literal addresses are checked, before the request, because the proxy resolves the names.
//!
//! The key set of an identity provider (`auth.jwt`) is fetched in the same way from the configured URL.
//!
//! Some token responses, including those of large providers, depart from RFC 6749 §5 in an unambiguous way; they are
//! accepted. rmcp parses strictly, so such a response is rewritten first: a token type that is not proof of possession
//! becomes `Bearer`; a lifetime in digits or as a double becomes a whole number; scopes may be separated by commas or
//! be an array; an error in a response with a successful status is treated as an error. Anything else is unchanged.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HOST, LOCATION, RETRY_AFTER,
};
use http::response::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use parking_lot::Mutex;
use rmcp::transport::auth::{
    OAuthHttpClient, OAuthHttpClientError, OAuthHttpClientFuture, OAuthHttpRequest,
};
use serde_json::{Map, Value};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use crate::http::decoder::{BrokenCoding, ContentDecoder};
use mcpproxy_runtime::io::egress_proxy::{Egress, is_localhost};
use mcpproxy_runtime::io::http_client::{HttpConnection, HttpFault, HttpOrigin, UnreadResponse};
use mcpproxy_runtime::io::http1;
use mcpproxy_runtime::io::tls::system_connector;

/// Maximum size of a response, in bytes.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// Maximum number of redirects of a request.
const MAX_REDIRECTS: u32 = 3;
/// Maximum time of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

type Answer = Result<Response<Vec<u8>>, OAuthHttpClientError>;

/// Addresses that a login with one server may contact.
#[derive(Clone, Debug)]
pub(super) struct AddressPolicy {
    server: Url,
    /// Kind of address in the server's own URL.
    own: Reach,
}

/// Kind of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Public,
    Loopback,
    Private,
    /// Link-local, including cloud metadata services, and other unusable addresses.
    Never,
}

impl AddressPolicy {
    /// Policy for logins with the server at `server`.
    pub(super) fn new(server: &Url) -> Self {
        let own = match server.host() {
            Some(Host::Ipv4(ip)) => reach(ip.into()),
            Some(Host::Ipv6(ip)) => reach(ip.into()),
            Some(Host::Domain(name)) if is_localhost(name) => Reach::Loopback,
            Some(Host::Domain(_)) | None => Reach::Public,
        };
        Self { server: server.clone(), own }
    }

    /// Checks a URL as far as possible without name resolution. The error quotes at most its [`origin`].
    pub(super) fn check(&self, url: &Url) -> Result<(), String> {
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a URL holds a user name or password".to_owned());
        }
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{} is not https", origin(url)));
        }
        let named = match url.host() {
            None => return Err(format!("{} names no host", origin(url))),
            Some(Host::Ipv4(ip)) => Some(reach(ip.into())),
            Some(Host::Ipv6(ip)) => Some(reach(ip.into())),
            Some(Host::Domain(name)) => is_localhost(name).then_some(Reach::Loopback),
        };
        let loopback = self.own == Reach::Loopback && named == Some(Reach::Loopback);
        if url.scheme() == "http" && !loopback {
            return Err(format!("{} is plain http", origin(url)));
        }
        match named {
            Some(reach) if !self.allows(url, reach) => Err(internal_address(url)),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether a resolved address of a URL may be contacted.
    fn allows(&self, url: &Url, reach: Reach) -> bool {
        let same = |a: &Url, b: &Url| {
            (a.host(), a.port_or_known_default()) == (b.host(), b.port_or_known_default())
        };
        // The server's own address is always allowed, because calls go there too.
        reach == Reach::Public
            || same(url, &self.server)
            || (reach == self.own && reach != Reach::Never)
    }
}

/// Non-secret part of a URL: scheme, host and port.
pub(super) fn origin(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    match url.host() {
        Some(host) => format!("{}://{host}{port}", url.scheme()),
        None => format!("{}:", url.scheme()),
    }
}

/// Whether a redirect may be followed: within the origin, or from http to https on the same host.
fn may_follow(from: &Url, to: &Url) -> bool {
    let upgrades = (from.scheme(), to.scheme()) == ("http", "https") && from.host() == to.host();
    from.origin() == to.origin() || upgrades
}

fn internal_address(url: &Url) -> String {
    format!("{} is an internal address, which an external server must not name", origin(url))
}

fn reach(ip: IpAddr) -> Reach {
    match ip {
        IpAddr::V4(ip) => reach_v4(ip),
        IpAddr::V6(ip) => match embedded(ip) {
            Some(inner) => reach_v4(inner),
            None => reach_v6(ip),
        },
    }
}

fn reach_v4(ip: Ipv4Addr) -> Reach {
    match ip.octets() {
        [127, ..] => Reach::Loopback,
        [10, ..] | [192, 168, ..] => Reach::Private,
        [172, second, ..] if (16..32).contains(&second) => Reach::Private,
        [100, second, ..] if (64..128).contains(&second) => Reach::Private,
        [0, ..] | [169, 254, ..] | [198, 18 | 19, ..] | [224..=255, ..] => Reach::Never,
        _ => Reach::Public,
    }
}

fn reach_v6(ip: Ipv6Addr) -> Reach {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Reach::Loopback,
        [0xfc00..=0xfdff, ..] => Reach::Private,
        // Unspecified, link-local, multicast, Teredo, and local NAT64 addresses.
        [0, ..] | [0xfe80..=0xffff, ..] | [0x2001, 0, ..] | [0x64, 0xff9b, 1, ..] => Reach::Never,
        _ => Reach::Public,
    }
}

/// IPv4 address embedded in an IPv6 address: mapped, NAT64, 6to4.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match ip.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(join(high, low))
        }
        [0x2002, high, low, ..] => Some(join(high, low)),
        _ => None,
    }
}

/// Transport settings of login requests. Clones share TLS settings and throttling.
#[derive(Clone, Default)]
pub(super) struct LoginTransport {
    /// Created at the first https request.
    pub(super) tls: Arc<OnceLock<TlsConnector>>,
    /// The server's egress setting, which also applies to its authorization server.
    pub(super) egress: Egress,
    pub(super) throttle: Arc<TokenThrottle>,
}

/// Time before which no request may be sent to the token endpoint (`Retry-After`, RFC 9110 §10.2.3). For each server,
/// only the endpoint that last set a time is tracked.
#[derive(Default)]
pub(super) struct TokenThrottle {
    until: Mutex<Option<(String, Instant)>>,
}

impl TokenThrottle {
    /// Remaining wait, for any endpoint.
    pub(super) fn remaining(&self, now: Instant) -> Option<Duration> {
        let until = self.until.lock();
        until.as_ref().and_then(|(_, until)| until.checked_duration_since(now))
    }

    /// Description of the wait; `None` if there is no wait.
    pub(super) fn reason(&self, now: Instant) -> Option<String> {
        self.until.lock().as_ref().and_then(|until| wait_of(until, now))
    }

    /// Fails while no request may be sent to the endpoint at `origin`.
    fn check(&self, origin: &str, now: Instant) -> Result<(), String> {
        let until = self.until.lock();
        let of_origin = until.as_ref().filter(|(throttled, _)| throttled == origin);
        of_origin.and_then(|until| wait_of(until, now)).map_or(Ok(()), Err)
    }

    /// Records the retry time of a 429 or 503 response of the endpoint at `origin`.
    fn observe(&self, origin: &str, answer: &Response<Vec<u8>>, now: Instant) {
        let is_throttled = matches!(answer.status().as_u16(), 429 | 503);
        let asked = answer.headers().get(RETRY_AFTER).filter(|_| is_throttled);
        let wait = asked.and_then(|it| http1::retry_after(it.as_bytes(), SystemTime::now()));
        if let Some(wait) = wait {
            *self.until.lock() = Some((origin.to_owned(), now + wait));
        }
    }
}

/// Description of an endpoint's remaining wait; `None` if it has elapsed.
fn wait_of((origin, until): &(String, Instant), now: Instant) -> Option<String> {
    let seconds = until.checked_duration_since(now)?.as_secs() + 1;
    Some(format!("the token endpoint at {origin} rate-limits requests, retry after {seconds}s"))
}

/// HTTP client for rmcp's OAuth implementation.
#[derive(Clone)]
pub(super) struct LoginClient {
    policy: AddressPolicy,
    transport: LoginTransport,
    /// Whether the authorization server may lack an authorization endpoint, which is needed only for logins by a
    /// person.
    unattended: bool,
}

impl LoginClient {
    pub(super) fn new(policy: AddressPolicy, transport: LoginTransport) -> Self {
        Self { policy, transport, unattended: false }
    }

    /// Accepts authorization servers without an authorization endpoint (RFC 8414 §2).
    pub(super) fn unattended(self) -> Self {
        Self { unattended: true, ..self }
    }

    /// Sends a request and returns the head of the response.
    pub(super) async fn ask(&self, request: Request<Vec<u8>>) -> Result<Parts, String> {
        let asked = self.send(request, "application/json, text/event-stream");
        let reply = tokio::time::timeout(REQUEST_TIMEOUT, asked).await;
        let reply = reply
            .map_err(|_| format!("no answer within {REQUEST_TIMEOUT:?}"))?
            .map_err(|error| error.to_string())?;
        Ok(reply.head)
    }

    /// Sends a request and returns the whole response.
    pub(super) async fn fetch(
        &self,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Vec<u8>>, String> {
        self.execute(request).await.map_err(|error| error.to_string())
    }

    /// Sends a token request, unless the endpoint rate-limits requests. Returns the normalized response.
    pub(super) async fn request_token(
        &self,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Vec<u8>>, String> {
        self.exchange(request).await.map_err(|error| error.to_string())
    }

    async fn exchange(&self, request: Request<Vec<u8>>) -> Answer {
        let origin = origin(&Url::parse(&request.uri().to_string())?);
        let throttle = &self.transport.throttle;
        throttle.check(&origin, Instant::now())?;
        let answer = self.execute(request).await?;
        throttle.observe(&origin, &answer, Instant::now());
        Ok(normalized(answer))
    }

    async fn execute(&self, request: Request<Vec<u8>>) -> Answer {
        let exchange = async {
            let reply = self.send(request, "application/json").await?;
            let head = reply.head.clone();
            let (body, _) = reply.read(MAX_ANSWER_BYTES).await?;
            let encoding = head.headers.get(CONTENT_ENCODING);
            let body = decoded(encoding.map_or(b"", HeaderValue::as_bytes), body)?;
            Ok(Response::from_parts(head, body))
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {REQUEST_TIMEOUT:?}").into()),
        }
    }

    /// Sends a request and returns the response with its body still unread.
    async fn send(
        &self,
        request: Request<Vec<u8>>,
        accept: &'static str,
    ) -> Result<UnreadResponse, OAuthHttpClientError> {
        let mut url = Url::parse(&request.uri().to_string())?;
        let mut count = 0;
        loop {
            let answer = self.head_once(&url, request.clone(), accept).await?;
            if !matches!(answer.head.status.as_u16(), 307 | 308) {
                return Ok(answer);
            }
            let location = answer.head.headers.get(LOCATION).and_then(|it| it.to_str().ok());
            let Some(next) = location.and_then(|location| url.join(location).ok()) else {
                return Ok(answer);
            };
            count += 1;
            if count > MAX_REDIRECTS || !may_follow(&url, &next) {
                // Only the origin is shown, because the rest may be secret.
                let why = format!(
                    "{} redirects to {}, which is not followed",
                    origin(&url),
                    origin(&next)
                );
                return Err(why.into());
            }
            url = next;
        }
    }

    /// Sends a request without following redirects.
    async fn head_once(
        &self,
        url: &Url,
        mut request: Request<Vec<u8>>,
        accept: &'static str,
    ) -> Result<UnreadResponse, OAuthHttpClientError> {
        self.policy.check(url)?;
        let connection = self.connect(url.clone()).await?;
        let target = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        *request.uri_mut() = Uri::from(target.parse::<PathAndQuery>()?);
        let authority = url.authority().to_owned();
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(&authority)?);
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        Ok(connection.send(request.map(|body| Full::new(body.into()))).await?)
    }

    async fn connect(&self, url: Url) -> Result<HttpConnection, OAuthHttpClientError> {
        let tls = match url.scheme() {
            "https" => {
                let tls = Arc::clone(&self.transport.tls);
                // Reads the system's certificates at the first call.
                let load = move || tls.get_or_init(system_connector).clone();
                Some(tokio::task::spawn_blocking(load).await?)
            }
            _ => None,
        };
        let origin = HttpOrigin::with(url, tls, Some(&self.transport.egress));
        let url = &origin.url;
        let tcp = origin.dial(|address| self.policy.allows(url, reach(address))).await;
        let tcp = tcp.map_err(|error| match error.kind() {
            ErrorKind::AddrNotAvailable => internal_address(url).into(),
            _ => OAuthHttpClientError::from(error),
        })?;
        Ok(origin.over(tcp).await?)
    }
}

/// Decodes the body's content coding, up to [`MAX_ANSWER_BYTES`].
fn decoded(encoding: &[u8], body: Bytes) -> Result<Vec<u8>, OAuthHttpClientError> {
    let decoder = ContentDecoder::of(encoding).map_err(|_| "its content coding is unknown")?;
    let Some(mut decoder) = decoder.filter(|_| !body.is_empty()) else { return Ok(body.into()) };
    let broken = |broken: BrokenCoding| broken.to_string();
    let mut whole = Vec::new();
    decoder.push(body);
    while let Some(piece) = decoder.next_piece().map_err(broken)? {
        if whole.len() + piece.len() > MAX_ANSWER_BYTES {
            return Err(HttpFault::TooLong(MAX_ANSWER_BYTES).into());
        }
        whole.extend_from_slice(&piece);
    }
    decoder.finish().map_err(broken)?;
    Ok(whole)
}

impl OAuthHttpClient for LoginClient {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        // This client handles redirects, regardless of rmcp's setting.
        let is_token = is_token_request(&request.request);
        Box::pin(async move {
            match is_token {
                true => self.exchange(request.request).await,
                false if self.unattended => {
                    Self::execute(self, request.request).await.map(completed)
                }
                false => Self::execute(self, request.request).await,
            }
        })
    }
}

/// Checks the URL of a key set. The error is one line without user, path or query of the URL.
pub fn check_key_set_url(url: &str) -> Result<(), String> {
    let url = Url::parse(url).map_err(|error| format!("is not a URL: {error}"))?;
    AddressPolicy::new(&url).check(&url)
}

/// Fetches a key set, with bounded size and time. The error is one line that contains the origin.
pub async fn fetch_key_set(url: &str) -> Result<Vec<u8>, String> {
    let parsed = Url::parse(url).map_err(|error| error.to_string())?;
    let message = |why: String| format!("{}: {why}", origin(&parsed));
    let client = LoginClient::new(AddressPolicy::new(&parsed), LoginTransport::default());
    let request = Request::get(url).body(Vec::new()).map_err(|error| message(error.to_string()))?;
    let answer = client.fetch(request).await.map_err(message)?;
    match answer.status() {
        StatusCode::OK => Ok(answer.into_body()),
        status => Err(message(format!("it answers {status}"))),
    }
}

/// Token types that require more than a plain `Authorization: Bearer` header.
const BOUND_TYPES: [&str; 4] = ["dpop", "mac", "pop", "n_a"];
/// Maximum lifetime of a token in seconds: ten years.
const MAX_SECONDS: f64 = 315_360_000.0;

/// Whether a request goes to a token endpoint; only these requests are sent as forms.
pub(super) fn is_token_request(request: &Request<Vec<u8>>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    request.method() == Method::POST && kind.starts_with(b"application/x-www-form-urlencoded")
}

/// Adds an empty authorization endpoint to metadata without one, which rmcp rejects: authorization servers that serve
/// only clients do not need one (RFC 8414 §2). Other responses are unchanged.
fn completed(answer: Response<Vec<u8>>) -> Response<Vec<u8>> {
    const ENDPOINT: &str = "authorization_endpoint";
    match serde_json::from_slice(answer.body()) {
        Ok(Value::Object(mut members))
            if members.get("token_endpoint").is_some_and(Value::is_string)
                && members.get(ENDPOINT).is_none_or(Value::is_null) =>
        {
            members.insert(ENDPOINT.to_owned(), "".into());
            answer.map(|_| Value::Object(members).to_string().into_bytes())
        }
        Ok(_) | Err(_) => answer,
    }
}

/// Rewrites the response of a token endpoint.
pub(super) fn normalized(answer: Response<Vec<u8>>) -> Response<Vec<u8>> {
    let (mut head, body) = answer.into_parts();
    let Ok(Value::Object(mut members)) = serde_json::from_slice(&body) else {
        return Response::from_parts(head, body);
    };
    let has_token = members.get("access_token").is_some_and(Value::is_string);
    if head.status.is_success() && !has_token && error_of(&members).is_some() {
        head.status = StatusCode::BAD_REQUEST;
    } else if head.status.is_success() {
        normalize_tokens(&mut members);
    }
    let body = Value::Object(members).to_string().into_bytes();
    Response::from_parts(head, body)
}

fn error_of(members: &Map<String, Value>) -> Option<&str> {
    members.get("error").and_then(Value::as_str).filter(|error| !error.is_empty())
}

fn normalize_tokens(members: &mut Map<String, Value>) {
    // Null counts as absent.
    for name in ["expires_in", "refresh_token", "scope", "token_type"] {
        if members.get(name).is_some_and(Value::is_null) {
            members.remove(name);
        }
    }
    let kind = members.get("token_type").map_or(Some(""), Value::as_str);
    let is_bound = |kind: &str| BOUND_TYPES.iter().any(|bound| kind.eq_ignore_ascii_case(bound));
    if kind.is_some_and(|kind| !is_bound(kind)) {
        members.insert("token_type".to_owned(), "Bearer".into());
    }
    if let Some(seconds) = members.get("expires_in").and_then(seconds) {
        members.insert("expires_in".to_owned(), seconds.into());
    }
    if let Some(scopes) = members.get("scope").and_then(scopes) {
        members.insert("scope".to_owned(), scopes.into());
    }
}

/// A lifetime as a whole number of seconds; `None` if invalid.
fn seconds(value: &Value) -> Option<u64> {
    let seconds = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    (0.0..=MAX_SECONDS).contains(&seconds).then_some(seconds as u64)
}

/// Scopes separated by spaces.
fn scopes(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text.contains(',') && !text.contains(char::is_whitespace) => {
            Some(text.split(',').filter(|scope| !scope.is_empty()).collect::<Vec<_>>().join(" "))
        }
        Value::Array(scopes) => {
            let scopes: Option<Vec<&str>> = scopes.iter().map(Value::as_str).collect();
            Some(scopes?.join(" "))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::decoder::tests::gzip;

    fn allows(server: &str, url: &str) -> bool {
        AddressPolicy::new(&Url::parse(server).unwrap()).check(&Url::parse(url).unwrap()).is_ok()
    }

    #[test]
    fn pro_26_compressed_answers_of_logins_are_decoded_within_the_limit() {
        let plain = |body: &[u8], encoding: &[u8]| {
            decoded(encoding, Bytes::copy_from_slice(body)).map_err(|error| error.to_string())
        };
        assert_eq!(plain(b"{}", b""), Ok(b"{}".to_vec()));
        assert_eq!(plain(&gzip(b"{}"), b"gzip"), Ok(b"{}".to_vec()));
        assert_eq!(plain(b"", b"gzip"), Ok(Vec::new()));
        assert!(plain(b"{}", b"gzip").is_err_and(|error| error.contains("gzip coding is broken")));
        assert!(plain(b"{}", b"x").is_err_and(|error| error.contains("unknown")));
        let bomb = gzip(&vec![b' '; MAX_ANSWER_BYTES + 1]);
        assert!(plain(&bomb, b"gzip").is_err_and(|error| error.contains("exceeds")));
    }

    #[test]
    fn external_servers_cannot_name_internal_addresses() {
        const OUTSIDE: &str = "https://mcp.example.com/mcp";
        for (server, url, allowed) in [
            (OUTSIDE, "https://login.example.org/token", true),
            (OUTSIDE, "https://203.0.113.7/token", true),
            (OUTSIDE, "http://login.example.org/token", false),
            (OUTSIDE, "http://127.0.0.1/token", false),
            (OUTSIDE, "https://127.0.0.1/token", false),
            (OUTSIDE, "https://localhost/token", false),
            (OUTSIDE, "https://a.localhost./token", false),
            (OUTSIDE, "https://10.0.0.1/token", false),
            (OUTSIDE, "https://[::1]/token", false),
            (OUTSIDE, "https://[::ffff:10.0.0.1]/token", false),
            (OUTSIDE, "https://[64:ff9b::7f00:1]/token", false),
            (OUTSIDE, "https://[2002:a00:1::]/token", false),
            (OUTSIDE, "https://[fd00::1]/token", false),
            (OUTSIDE, "https://169.254.169.254/latest/meta-data", false),
            (OUTSIDE, "https://user:secret@login.example.org/token", false),
            (OUTSIDE, "file:///etc/passwd", false),
            (OUTSIDE, "javascript:alert(1)", false),
            ("http://127.0.0.1:9/mcp", "http://127.0.0.1:8/token", true),
            ("http://localhost:9/mcp", "http://[::1]:8/token", true),
            ("http://127.0.0.1:9/mcp", "https://login.example.org/token", true),
            ("http://127.0.0.1:9/mcp", "http://login.example.org/token", false),
            ("http://127.0.0.1:9/mcp", "https://10.0.0.1/token", false),
            ("https://10.0.0.1/mcp", "https://10.0.0.2/token", true),
            ("https://10.0.0.1/mcp", "https://127.0.0.1/token", false),
            ("https://10.0.0.1/mcp", "http://10.0.0.1/token", false),
            ("https://169.254.1.1/mcp", "https://169.254.169.254/token", false),
        ] {
            assert_eq!(allows(server, url), allowed, "{server} names {url}");
        }
    }

    #[test]
    fn pro_24_redirects_of_logins_stay_within_the_origin() {
        let follows =
            |from: &str, to: &str| may_follow(&Url::parse(from).unwrap(), &Url::parse(to).unwrap());
        assert!(follows("https://as.example/token", "https://as.example/token/"));
        assert!(follows("http://127.0.0.1:9/token", "http://127.0.0.1:9/t?x=1"));
        assert!(follows("http://as.example/token", "https://as.example/token"));
        for to in ["https://evil.example/token", "http://as.example/token", "https://as.example:8/"]
        {
            assert!(!follows("https://as.example/token", to), "{to}");
        }
    }

    #[test]
    fn rejected_url_is_reported_without_its_secrets() {
        for (url, message) in [
            ("ftp://u:s3cret@h.example/s3cret?k=s3cret", "a URL holds a user name or password"),
            ("http://s3cret@h.example/", "a URL holds a user name or password"),
            ("ftp://h.example:9/s3cret?k=s3cret#s3cret", "ftp://h.example:9 is not https"),
            ("http://h.example/s3cret?k=s3cret", "http://h.example is plain http"),
            ("data:s3cret", "data: is not https"),
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(AddressPolicy::new(&url).check(&url), Err(message.to_owned()));
        }
        let outside = AddressPolicy::new(&Url::parse("https://h.example").unwrap());
        let message =
            outside.check(&Url::parse("https://[fd00::1]:9/s3cret").unwrap()).unwrap_err();
        assert!(message.starts_with("https://[fd00::1]:9 is an internal address"), "{message}");
    }
}

#[cfg(test)]
mod token_response_tests {
    use serde_json::json;

    use super::*;

    fn answered(status: u16, body: &Value) -> (u16, Value) {
        let answer =
            Response::builder().status(status).body(body.to_string().into_bytes()).unwrap();
        let answer = normalized(answer);
        (answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap())
    }

    #[test]
    fn pro_25_unambiguous_deviations_of_a_token_response_are_accepted() {
        for (members, expected) in [
            (json!({"token_type": "user"}), json!({"token_type": "Bearer"})),
            (json!({"token_type": "bearer"}), json!({"token_type": "Bearer"})),
            (json!({}), json!({"token_type": "Bearer"})),
            (json!({"expires_in": "5250"}), json!({"token_type": "Bearer", "expires_in": 5250})),
            (json!({"expires_in": 3600.0}), json!({"token_type": "Bearer", "expires_in": 3600})),
            (json!({"expires_in": "3599.9"}), json!({"token_type": "Bearer", "expires_in": 3599})),
            (json!({"expires_in": null}), json!({"token_type": "Bearer"})),
            (json!({"scope": "a,b"}), json!({"token_type": "Bearer", "scope": "a b"})),
            (json!({"scope": ["a", "b"]}), json!({"token_type": "Bearer", "scope": "a b"})),
            (json!({"scope": "a b,c"}), json!({"token_type": "Bearer", "scope": "a b,c"})),
            (json!({"refresh_token": null, "x": 1}), json!({"token_type": "Bearer", "x": 1})),
            // These values are not changed, so that the parser refuses the responses.
            (json!({"token_type": "DPoP"}), json!({"token_type": "DPoP"})),
            (json!({"expires_in": -1}), json!({"token_type": "Bearer", "expires_in": -1})),
            (json!({"expires_in": "soon"}), json!({"token_type": "Bearer", "expires_in": "soon"})),
        ] {
            let (mut given, mut expected) = (members, expected);
            given["access_token"] = "t".into();
            expected["access_token"] = "t".into();
            assert_eq!(answered(200, &given), (200, expected), "{given}");
        }
    }

    #[test]
    fn pro_25_error_under_a_successful_status_is_an_error() {
        for error in [
            json!({"ok": false, "error": "invalid_code"}),
            json!({"error": "bad_verification_code", "error_description": "it has expired"}),
        ] {
            assert_eq!(answered(200, &error), (400, error.clone()));
        }
        let refused = json!({"error": "invalid_grant"});
        assert_eq!(answered(400, &refused), (400, refused.clone()));
        let granted = json!({"access_token": "t", "token_type": "Bearer", "error": ""});
        assert_eq!(answered(200, &granted), (200, granted.clone()));
    }

    #[test]
    fn id_6_metadata_without_an_authorization_endpoint_is_completed() {
        const TOKEN: &str = "https://as.example/token";
        for (metadata, expected) in [
            (
                json!({"token_endpoint": TOKEN}),
                json!({"token_endpoint": TOKEN, "authorization_endpoint": ""}),
            ),
            (
                json!({"token_endpoint": TOKEN, "authorization_endpoint": null}),
                json!({"token_endpoint": TOKEN, "authorization_endpoint": ""}),
            ),
            (
                json!({"token_endpoint": TOKEN, "authorization_endpoint": "a"}),
                json!({"token_endpoint": TOKEN, "authorization_endpoint": "a"}),
            ),
            (json!({"resource": "https://s.example"}), json!({"resource": "https://s.example"})),
            (json!("text"), json!("text")),
        ] {
            let answer = completed(Response::new(metadata.to_string().into_bytes()));
            let body: Value = serde_json::from_slice(answer.body()).unwrap();
            assert_eq!(body, expected);
        }
    }

    #[test]
    fn pro_25_only_forms_are_sent_to_a_token_endpoint() {
        for (kind, is_token) in [
            ("application/x-www-form-urlencoded", true),
            ("application/x-www-form-urlencoded; charset=utf-8", true),
            ("application/json", false),
        ] {
            let request = Request::post("/").header(CONTENT_TYPE, kind).body(Vec::new()).unwrap();
            assert_eq!(is_token_request(&request), is_token, "{kind}");
        }
        assert!(!is_token_request(&Request::get("/").body(Vec::new()).unwrap()));
    }
}
