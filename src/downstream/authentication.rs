//! Authentication of requests and of the streams they open.
//!
//! The API key is checked first, in constant time, then the single token that a request may carry. An invalid token
//! is refused; its holder is never treated as anonymous.
//!
//! A bound stream keeps the credential of its request. Each change of credentials, and the expiry of the stream's own
//! credential, triggers re-authentication against the credentials then in force. If that fails, or yields another
//! principal or scope, the stream ends before its next chunk. There is no polling, and responses to plain calls are
//! unaffected.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, Uri};
use mcpproxy_policy::identity::{
    CertifiedClient, CurrentCredentials, JwtRefused, PREFIX, PageSession, Proven, TokenRefused,
};
use mcpproxy_policy::{HttpAuth, Principal};
use percent_encoding::percent_decode_str;
use subtle::ConstantTimeEq;
use thiserror::Error;
use tokio::sync::watch;

use super::body::{Body, ChunkStream};
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_gateway::proxy::reply::Aborted;

pub const HEADER: &str = "x-api-key";

/// Header with which the holder of the key sends a request as an anonymous client. `mcpproxy stdio` uses it to
/// forward messages of a client without a key.
pub const ON_BEHALF_OF: &str = "x-mcpproxy-on-behalf-of";

/// The only value of [`ON_BEHALF_OF`].
pub const NOBODY: &str = "anonymous";

/// Query parameter with an API key.
pub const QUERY_PARAMETER: &str = "apikey";

/// Reason for a 401; its text is the response body.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unauthenticated {
    /// The request has no credential, but one is required.
    #[error(
        "Invalid or missing API key: send `Authorization: Bearer` with the key, or with a token of \
         `mcpproxy token create NAME`"
    )]
    Missing,
    /// The request has more than one token, which is ambiguous.
    #[error("More than one token is given")]
    Several,
    /// The token is in the URL, where it would appear in logs.
    #[error("A token must be sent as a header, not in the URL")]
    InUrl,
    /// The client certificate has expired.
    #[error("The client certificate has expired")]
    CertificateExpired,
    /// The client certificate's authority is no longer trusted.
    #[error("The client certificate was issued by an authority that is no longer trusted")]
    CertificateTakenBack,
    /// `X-API-Key` holds neither the key nor a token.
    #[error("Invalid API key or token in X-API-Key")]
    Key,
    #[error(transparent)]
    Token(#[from] TokenRefused),
}

impl Unauthenticated {
    /// Whether fetching the issuer's keys again may help.
    pub fn wants_keys(&self) -> bool {
        *self == Self::Token(TokenRefused::Jwt(JwtRefused::UnknownKey))
    }
}

/// Authenticates a request: admin by the API key; else the principal of its token; else that of the connection's
/// client certificate; else anonymous.
pub fn authenticate(
    auth: &HttpAuth,
    credentials: &CurrentCredentials,
    headers: &HeaderMap,
    target: &Uri,
    certificate: Option<&CertifiedClient>,
    now: impl FnOnce() -> SystemTime,
) -> Result<Proven, Unauthenticated> {
    if knows_key(headers, target.query(), &auth.api_key) {
        return Ok(Proven::lasting(Principal::Admin));
    }
    if in_query(target.query()).any(|key| key.starts_with(PREFIX.as_bytes())) {
        return Err(Unauthenticated::InUrl);
    }
    let mut tokens = in_headers(headers).filter(|token| credentials.expect(token));
    let Some(token) = tokens.next() else { return of_connection(certificate, now) };
    if tokens.any(|other| other != token) {
        return Err(Unauthenticated::Several);
    }
    credentials.prove(token, now()).map_err(|refused| match refused {
        // This case exists only if JWTs are configured. The error does not reveal whether a key is configured.
        TokenRefused::Jwt(JwtRefused::Malformed(_)) if in_key_header(headers, token) => {
            Unauthenticated::Key
        }
        refused => Unauthenticated::Token(refused),
    })
}

fn in_key_header(headers: &HeaderMap, token: &[u8]) -> bool {
    headers.get_all(HEADER).iter().any(|value| value.as_bytes() == token)
}

/// Principal of the connection's client certificate.
fn of_connection(
    certificate: Option<&CertifiedClient>,
    now: impl FnOnce() -> SystemTime,
) -> Result<Proven, Unauthenticated> {
    match certificate {
        None => Ok(Proven::lasting(Principal::Anonymous)),
        Some(client) if client.authority.is_taken_back() => {
            Err(Unauthenticated::CertificateTakenBack)
        }
        // The certificate's validity was checked when the connection was made.
        Some(client) if client.proven.holds(now) => Ok(client.proven.clone()),
        Some(_) => Err(Unauthenticated::CertificateExpired),
    }
}

/// Authenticates a request to `/mcp`, where `require_mcp_auth` applies. The holder of the key may act as anonymous
/// ([`ON_BEHALF_OF`]).
pub fn authenticate_mcp(
    auth: &HttpAuth,
    credentials: &CurrentCredentials,
    headers: &HeaderMap,
    target: &Uri,
    certificate: Option<&CertifiedClient>,
    now: impl FnOnce() -> SystemTime,
) -> Result<Proven, Unauthenticated> {
    let proven = authenticate(auth, credentials, headers, target, certificate, now)?;
    match proven.principal {
        Principal::Anonymous if auth.require_mcp_auth => Err(Unauthenticated::Missing),
        // A caller may always act with fewer rights than its credential grants.
        Principal::Admin if headers.contains_key(ON_BEHALF_OF) => {
            Ok(Proven::lasting(Principal::Anonymous))
        }
        Principal::Anonymous
        | Principal::Admin
        | Principal::Token(_)
        | Principal::Subject(_)
        | Principal::Certificate(_) => Ok(proven),
    }
}

/// Candidate keys of a request: `X-API-Key`, then `Authorization: Bearer`, then `?apikey=`.
pub(crate) fn keys<'a>(
    headers: &'a HeaderMap,
    query: Option<&'a str>,
) -> impl Iterator<Item = Cow<'a, [u8]>> {
    in_headers(headers).map(Cow::Borrowed).chain(in_query(query))
}

fn in_headers(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let own = headers.get_all(HEADER).iter().map(http::HeaderValue::as_bytes);
    let bearer = headers.get_all(AUTHORIZATION).iter().filter_map(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked("bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    own.chain(bearer)
}

fn in_query(query: Option<&str>) -> impl Iterator<Item = Cow<'_, [u8]>> {
    query.unwrap_or_default().split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        (name == QUERY_PARAMETER).then(|| Cow::from(percent_decode_str(value)))
    })
}

/// Whether one of the [`keys`] of a request equals `key`. An empty `key` never matches.
fn knows_key(headers: &HeaderMap, query: Option<&str>, key: &str) -> bool {
    // Compares every candidate, so that timing does not reveal which one failed.
    let known = keys(headers, query)
        .map(|given| bool::from(given.ct_eq(key.as_bytes())))
        .fold(false, |known, this| known | this);
    known && !key.is_empty()
}

/// Maximum sleep between reads of the wall clock, so that a credential also ends in time if the clock is set forward.
const CLOCK_LOOK: Duration = Duration::from_secs(60);
/// Headers that may carry credentials.
const PROOF_HEADERS: [HeaderName; 3] =
    [HeaderName::from_static(HEADER), AUTHORIZATION, HeaderName::from_static(ON_BEHALF_OF)];

/// Authentication rule of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofRule {
    /// Rule for `/mcp`, where `require_mcp_auth` applies.
    Mcp,
    /// Rule for REST and `/events`.
    Rest,
}

/// Credential that a stream was opened with.
#[derive(Debug)]
pub struct StreamCredential {
    /// Copied headers, so that the request's buffer is not pinned. Their values are marked as sensitive.
    headers: HeaderMap,
    target: Uri,
    certificate: Option<CertifiedClient>,
    rule: ProofRule,
    opened_by: StreamOpener,
}

#[derive(Debug)]
enum StreamOpener {
    Proven(Principal),
    Page(PageSession),
}

impl StreamCredential {
    /// The credential of a request that was authenticated as `principal`.
    pub fn new(
        rule: ProofRule,
        headers: &HeaderMap,
        target: &Uri,
        certificate: Option<&CertifiedClient>,
        principal: Principal,
    ) -> Self {
        let mut kept = HeaderMap::new();
        for name in &PROOF_HEADERS {
            for value in headers.get_all(name) {
                if let Ok(mut value) = HeaderValue::from_bytes(value.as_bytes()) {
                    value.set_sensitive(true);
                    kept.append(name, value);
                }
            }
        }
        // A query that cannot be parsed again authenticates nothing, so the stream ends.
        let target = target.query().and_then(|query| format!("/?{query}").parse().ok());
        Self {
            headers: kept,
            target: target.unwrap_or_default(),
            certificate: certificate.cloned(),
            rule,
            opened_by: StreamOpener::Proven(principal),
        }
    }

    /// The credential of a request made with a page session.
    pub fn of_page(self, session: PageSession) -> Self {
        Self { opened_by: StreamOpener::Page(session), ..self }
    }

    /// Authenticates again. Returns `None` if the credential has ended, else its expiry, if any.
    fn authenticate(&self, worker: &Worker) -> Option<Option<SystemTime>> {
        let (settings, credentials) = (worker.settings(), worker.credentials());
        let auth = &settings.http_auth;
        let authenticate_by_rule = match self.rule {
            ProofRule::Mcp => authenticate_mcp,
            ProofRule::Rest => authenticate,
        };
        let certificate = self.certificate.as_ref();
        let (headers, target) = (&self.headers, &self.target);
        let proven =
            authenticate_by_rule(auth, &credentials, headers, target, certificate, SystemTime::now);
        let proven = proven.ok()?;
        let holds = match &self.opened_by {
            StreamOpener::Proven(principal) => is_unchanged(principal, &proven.principal),
            StreamOpener::Page(session) => session.is_valid_for(&auth.api_key),
        };
        holds.then_some(proven.until)
    }
}

/// Whether both are the same principal with the same permissions.
fn is_unchanged(before: &Principal, now: &Principal) -> bool {
    before == now
        && match (before, now) {
            (Principal::Token(before), Principal::Token(now)) => before.scope() == now.scope(),
            _ => before.groups() == now.groups(),
        }
}

/// Credential of an open stream, and the time of the next check.
struct StreamBinding {
    worker: Rc<Worker>,
    credential: StreamCredential,
    changes: watch::Receiver<()>,
    /// Whether the credentials have changed since the last check.
    is_stale: bool,
    until: Option<SystemTime>,
}

/// Closing mode of a stream whose credential has ended.
#[derive(Clone, Copy)]
enum StreamEnd {
    /// Regular end, because each event is complete by itself.
    Close,
    /// Abort, because the reader must not consider the stream complete.
    Abort,
}

impl StreamBinding {
    /// Completes once the credential has ended. Cancel-safe.
    async fn ended(&mut self) {
        loop {
            // An error means that the sender, and with it the server, has shut down.
            if self.changes.has_changed().unwrap_or(true) {
                self.changes.mark_unchanged();
                self.is_stale = true;
            }
            if self.is_stale {
                let Some(until) = self.credential.authenticate(&self.worker) else { return };
                (self.until, self.is_stale) = (until, false);
            }
            let left = match self.until {
                None => None,
                Some(until) => match until.duration_since(SystemTime::now()) {
                    Ok(left) if !left.is_zero() => Some(left.min(CLOCK_LOOK)),
                    Ok(_) | Err(_) => return,
                },
            };
            let StreamCredential { certificate, opened_by, .. } = &mut self.credential;
            tokio::select! {
                changed = self.changes.changed() => match changed {
                    Ok(()) => self.is_stale = true,
                    Err(_) => return,
                },
                () = pause(left) => {}
                () = taken_back(certificate.as_ref()) => return,
                () = page_over(opened_by) => return,
            }
        }
    }
}

async fn pause(time: Option<Duration>) {
    match time {
        None => std::future::pending().await,
        Some(time) => tokio::time::sleep(time).await,
    }
}

async fn taken_back(certificate: Option<&CertifiedClient>) {
    match certificate {
        None => std::future::pending().await,
        Some(client) => client.authority.taken_back().await,
    }
}

async fn page_over(opener: &mut StreamOpener) {
    match opener {
        StreamOpener::Proven(_) => std::future::pending().await,
        StreamOpener::Page(session) => {
            let until = session.until;
            let _ = tokio::time::timeout_at(until.into(), session.ended()).await;
        }
    }
}

/// Binds an event stream to the credential of its request. Other responses are unchanged, so that a call in flight
/// may finish.
pub fn bind_events(
    worker: &Rc<Worker>,
    answer: Response<Body>,
    credential: impl FnOnce() -> StreamCredential,
) -> Response<Body> {
    match matches!(answer.body(), Body::Stream(_)) && is_event_stream(&answer) {
        true => bind(worker, answer, credential()),
        false => answer,
    }
}

/// Binds a streamed response of any type. When the credential ends, an event stream is closed, and any other stream
/// is aborted.
pub fn bind(
    worker: &Rc<Worker>,
    answer: Response<Body>,
    credential: StreamCredential,
) -> Response<Body> {
    let end = match is_event_stream(&answer) {
        true => StreamEnd::Close,
        false => StreamEnd::Abort,
    };
    answer.map(|body| match body {
        Body::Stream(chunks) => Body::Stream(bound(worker, chunks, credential, end)),
        Body::Empty | Body::Whole(_) | Body::Call(_) => body,
    })
}

fn bound(
    worker: &Rc<Worker>,
    chunks: ChunkStream,
    credential: StreamCredential,
    end: StreamEnd,
) -> ChunkStream {
    let changes = worker.proxy.identity.changes();
    let worker = Rc::clone(worker);
    // The binding is stale at first: credentials may have changed since the request was authenticated.
    let bound = StreamBinding { worker, credential, changes, is_stale: true, until: None };
    Box::pin(stream::unfold(Some((bound, chunks)), move |open| next(open, end)))
}

type BoundChunks = (StreamBinding, ChunkStream);

/// The next chunk, with the stream if it is still open.
async fn next(
    open: Option<BoundChunks>,
    end: StreamEnd,
) -> Option<(Result<Bytes, Aborted>, Option<BoundChunks>)> {
    let (mut bound, mut chunks) = open?;
    let chunk = tokio::select! {
        biased;
        () = bound.ended() => None,
        chunk = chunks.next() => Some(chunk?),
    };
    match (chunk, end) {
        (Some(chunk), _) => Some((chunk, Some((bound, chunks)))),
        (None, StreamEnd::Close) => None,
        (None, StreamEnd::Abort) => {
            let why = "the credential that the stream was opened with has ended";
            Some((Err(Aborted(why.into())), None))
        }
    }
}

fn is_event_stream(answer: &Response<Body>) -> bool {
    let media = answer.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    media.is_some_and(|media| media.starts_with(b"text/event-stream"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mcpproxy_policy::identity::{
        AuthorityStanding, Identity, NewAgentToken, TokenChange, TokenChanged, TokenFile,
    };
    use mcpproxy_policy::{AgentToken, JwtSubject, Scope};

    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    fn headers(name: &str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.append(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
        headers
    }

    #[test]
    fn api_key_is_accepted_in_each_location() {
        let none = HeaderMap::new();
        assert!(knows_key(&headers("x-api-key", KEY), None, KEY));
        assert!(knows_key(&headers("authorization", &format!("Bearer {KEY}")), None, KEY));
        assert!(knows_key(&headers("authorization", &format!("bearer  {KEY}")), None, KEY));
        assert!(knows_key(&none, Some(&format!("limit=3&apikey={KEY}")), KEY));
        assert!(knows_key(&none, Some("apikey=a%26b"), "a&b"));
    }

    #[test]
    fn wrong_or_missing_key_is_refused() {
        let none = HeaderMap::new();
        assert!(!knows_key(&none, None, KEY));
        for wrong in ["", "0", &KEY[1..], &format!("{KEY}0"), &KEY.to_uppercase()] {
            assert!(!knows_key(&headers("x-api-key", wrong), None, KEY), "{wrong}");
            assert!(!knows_key(&headers("authorization", &format!("Bearer {wrong}")), None, KEY));
            assert!(!knows_key(&none, Some(&format!("apikey={wrong}")), KEY), "{wrong}");
        }
        assert!(!knows_key(&headers("authorization", KEY), None, KEY));
        assert!(!knows_key(&headers("authorization", &format!("Basic {KEY}")), None, KEY));
        assert!(!knows_key(&none, Some(&format!("xapikey={KEY}")), KEY));
        assert!(!knows_key(&headers("x-api-key", ""), Some("apikey="), ""));
    }

    #[test]
    fn keys_are_listed_in_order_of_precedence() {
        let mut headers = headers("authorization", "Bearer b");
        headers.append(AUTHORIZATION, "Basic x".parse().unwrap());
        headers.append(HEADER, "a".parse().unwrap());
        let found: Vec<_> = keys(&headers, Some("apikey=c%20d&apikey=e")).collect();
        assert_eq!(found, [&b"a"[..], b"b", b"c d", b"e"]);
        assert_eq!(keys(&HeaderMap::new(), Some("apikey")).count(), 0);
    }

    fn auth() -> HttpAuth {
        HttpAuth {
            api_key: KEY.into(),
            require_mcp_auth: true,
            host_check: mcpproxy_policy::host_check::HostCheck::new(&[], &[]).unwrap(),
        }
    }

    #[test]
    fn invalid_token_is_refused_not_anonymous() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::new(TokenFile::new(folder.path()), None);
        let new = NewAgentToken { name: "ci".into(), ..NewAgentToken::default() };
        let made = identity.change(TokenChange::Create(new), [1; 32], SystemTime::UNIX_EPOCH);
        let TokenChanged::Made(made) = made.unwrap() else { panic!() };
        let (token, current) = (made.secret.expose(), identity.reader().current());
        let ask = |headers: &HeaderMap, uri: &str| {
            let uri: Uri = uri.parse().unwrap();
            let proven =
                authenticate(&auth(), &current, headers, &uri, None, || SystemTime::UNIX_EPOCH);
            proven.map(|it| it.principal.id().to_owned()).map_err(|error| error.to_string())
        };
        let none = HeaderMap::new();
        assert_eq!(ask(&none, "/").unwrap(), "anonymous");
        assert_eq!(ask(&headers("authorization", "Bearer another's"), "/").unwrap(), "anonymous");
        assert_eq!(
            ask(&headers("authorization", &format!("Bearer {token}")), "/").unwrap(),
            "token:ci"
        );
        assert_eq!(ask(&headers(HEADER, token), "/").unwrap(), "token:ci");
        let mut both = headers(HEADER, token);
        both.append(AUTHORIZATION, format!("Bearer {KEY}").parse().unwrap());
        assert_eq!(ask(&both, "/").unwrap(), "admin", "the key counts first");
        let forged = format!("{}A", &token[..token.len() - 1]);
        assert!(ask(&headers(HEADER, &forged), "/").is_err());
        let mut two = headers(HEADER, token);
        two.append(HEADER, forged.parse().unwrap());
        assert_eq!(ask(&two, "/").unwrap_err(), "More than one token is given");
        let in_url = "A token must be sent as a header, not in the URL";
        assert_eq!(ask(&none, &format!("/?apikey={token}")).unwrap_err(), in_url);
        let mut piped = headers(HEADER, KEY);
        piped.append(ON_BEHALF_OF, NOBODY.parse().unwrap());
        let speaks = |headers: &HeaderMap| {
            let proven = authenticate_mcp(
                &auth(),
                &current,
                headers,
                &"/".parse().unwrap(),
                None,
                || unreachable!(),
            );
            proven.map(|it| it.principal.id().to_owned())
        };
        assert_eq!(speaks(&piped).unwrap(), "anonymous");
        piped.remove(HEADER);
        assert_eq!(speaks(&piped), Err(Unauthenticated::Missing), "the header grants no access");
        let missing = authenticate_mcp(
            &auth(),
            &current,
            &none,
            &"/".parse().unwrap(),
            None,
            || unreachable!(),
        );
        assert_eq!(missing, Err(Unauthenticated::Missing));
    }

    #[test]
    fn certificate_is_used_without_other_credentials_until_it_expires() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::new(TokenFile::new(folder.path()), None);
        let (current, uri) = (identity.reader().current(), "/mcp".parse().unwrap());
        let until = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(10);
        let principal = Principal::certificate("ada");
        let proven = Proven { principal, from: None, until: Some(until) };
        let client = CertifiedClient { proven, authority: AuthorityStanding::default() };
        let ask = |headers: &HeaderMap, now: SystemTime| {
            let asked =
                authenticate_mcp(&auth(), &current, headers, &uri, Some(&client), move || now);
            asked.map(|it| it.principal.id().to_owned()).map_err(|error| error.to_string())
        };
        let (none, early) = (HeaderMap::new(), SystemTime::UNIX_EPOCH);
        assert_eq!(ask(&none, early).unwrap(), "cert:ada", "sufficient for require_mcp_auth");
        assert_eq!(ask(&none, until).unwrap_err(), "The client certificate has expired");
        assert_eq!(ask(&headers(HEADER, KEY), until).unwrap(), "admin");
        let forged = format!("Bearer {PREFIX}x");
        assert!(
            ask(&headers("authorization", &forged), early).is_err(),
            "no fallback to the certificate"
        );
        client.authority.take_back();
        let over = "The client certificate was issued by an authority that is no longer trusted";
        assert_eq!(ask(&none, early).unwrap_err(), over);
        assert_eq!(ask(&headers(HEADER, KEY), early).unwrap(), "admin");
    }

    #[test]
    fn principal_with_another_scope_or_groups_counts_as_changed() {
        let token = |made, servers: &[&str]| {
            let servers = servers.iter().map(|&name| name.into()).collect();
            let scope = Scope { servers, ..Scope::default() };
            Principal::Token(Arc::new(AgentToken::new("ci", made, scope)))
        };
        let subject = |group: &str, seconds| {
            let until = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            Principal::Subject(Arc::new(JwtSubject::new("ada", vec![group.into()], until)))
        };
        let cases = [
            (token(1, &["a", "b"]), token(1, &["a", "b"]), true),
            (token(1, &["a", "b"]), token(1, &["a"]), false),
            (token(1, &[]), token(2, &[]), false),
            (subject("dev", 1), subject("dev", 2), true),
            (subject("dev", 1), subject("ops", 1), false),
            (Principal::Admin, Principal::Anonymous, false),
            (Principal::certificate("ada"), Principal::certificate("ada"), true),
        ];
        for (before, now, same) in cases {
            assert_eq!(is_unchanged(&before, &now), same, "{before:?} {now:?}");
        }
    }

    #[test]
    fn retained_credential_authenticates_like_its_request_and_is_not_printed() {
        let mut headers = HeaderMap::new();
        headers.append("x-api-key", HeaderValue::from_static("secret-one"));
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer secret-two"));
        headers.append("x-other", HeaderValue::from_static("other"));
        let target: Uri = "/events?apikey=x&node=a".parse().unwrap();
        let principal = Principal::Admin;
        let kept = StreamCredential::new(ProofRule::Rest, &headers, &target, None, principal);
        assert_eq!(kept.headers.len(), 2);
        assert_eq!(kept.headers.get("x-api-key").unwrap(), "secret-one");
        assert_eq!(kept.target.query(), target.query());
        assert!(!format!("{:?}", kept.headers).contains("secret"));
    }
}
