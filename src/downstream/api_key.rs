//! What a request proves itself by: where the API key or a token may stand, the comparison of the key that leaks no
//! time, and who makes the request. Pure; the clock is an argument.
//!
//! The key counts first, then the one token that a request carries. A token that is meant for us and proves nothing is
//! refused: its holder is never taken for nobody.

use std::borrow::Cow;
use std::time::SystemTime;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Uri};
use percent_encoding::percent_decode_str;
use subtle::ConstantTimeEq;
use thiserror::Error;

use crate::identity::{
    CertifiedClient, CurrentCredentials, JwtRefused, PREFIX, Proven, TokenRefused,
};
use crate::policy::{HttpAuth, Principal};

/// The header that carries a key.
pub const HEADER: &str = "x-api-key";

/// The header by which whoever holds the key says for whom it speaks, where that is nobody: `mcpproxy stdio` carries the
/// messages of a client that has shown no key.
pub const ON_BEHALF_OF: &str = "x-mcpproxy-on-behalf-of";

/// The one value of [`ON_BEHALF_OF`].
pub const NOBODY: &str = "anonymous";

/// The query parameter that carries a key.
pub const QUERY_PARAMETER: &str = "apikey";

/// Why a request is not let in; its text is the 401's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unproven {
    /// It carries nothing that counts, where something must.
    #[error("Invalid or missing API key")]
    Missing,
    /// It carries several tokens: whom it means cannot be known.
    #[error("More than one token is given")]
    Several,
    /// A token stands in the URL, where it would be written to logs.
    #[error("A token must be sent as a header, not in the URL")]
    InUrl,
    /// The time of the client certificate is up.
    #[error("The client certificate has expired")]
    CertificateExpired,
    /// Other authorities count since the connection was made.
    #[error("The client certificate is of an authority that counts no more")]
    CertificateTakenBack,
    /// What stands in `X-API-Key` is not the key, and has the form of no token.
    #[error("Invalid API key or token in X-API-Key")]
    Key,
    /// Its token proves nothing.
    #[error(transparent)]
    Token(#[from] TokenRefused),
}

impl Unproven {
    /// True if other keys of the issuer may make a difference.
    #[must_use]
    pub fn wants_keys(&self) -> bool {
        *self == Self::Token(TokenRefused::Jwt(JwtRefused::UnknownKey))
    }
}

/// On whose behalf a request is made: the admin's, when it carries the API key; when it carries nothing that is meant for
/// us, whom the client certificate of its connection names, and without one nobody's.
///
/// # Errors
/// [`Unproven`], but never [`Unproven::Missing`].
pub fn prove(
    auth: &HttpAuth,
    credentials: &CurrentCredentials,
    headers: &HeaderMap,
    target: &Uri,
    certificate: Option<&CertifiedClient>,
    now: impl FnOnce() -> SystemTime,
) -> Result<Proven, Unproven> {
    if knows_key(headers, target.query(), &auth.api_key) {
        return Ok(Proven::lasting(Principal::Admin));
    }
    if in_query(target.query()).any(|key| key.starts_with(PREFIX.as_bytes())) {
        return Err(Unproven::InUrl);
    }
    let mut tokens = in_headers(headers).filter(|token| credentials.expect(token));
    let Some(token) = tokens.next() else { return of_connection(certificate, now) };
    if tokens.any(|other| other != token) {
        return Err(Unproven::Several);
    }
    credentials.prove(token, now()).map_err(|refused| match refused {
        // Only where JWTs are awaited is it looked at at all; whether there is a key it does not say.
        TokenRefused::Jwt(JwtRefused::Malformed(_)) if in_key_header(headers, token) => {
            Unproven::Key
        }
        refused => Unproven::Token(refused),
    })
}

/// Whether `token` stands in `X-API-Key`.
fn in_key_header(headers: &HeaderMap, token: &[u8]) -> bool {
    headers.get_all(HEADER).iter().any(|value| value.as_bytes() == token)
}

/// What the connection itself proves.
fn of_connection(
    certificate: Option<&CertifiedClient>,
    now: impl FnOnce() -> SystemTime,
) -> Result<Proven, Unproven> {
    match certificate {
        None => Ok(Proven::lasting(Principal::Anonymous)),
        Some(client) if client.authority.is_taken_back() => Err(Unproven::CertificateTakenBack),
        // It was good when the connection was made.
        Some(client) if client.proven.holds(now) => Ok(client.proven.clone()),
        Some(_) => Err(Unproven::CertificateExpired),
    }
}

/// The same for a request to `/mcp`, which may have to carry something. Who holds the key may speak for nobody
/// ([`ON_BEHALF_OF`]).
///
/// # Errors
/// [`Unproven`].
pub fn prove_for_mcp(
    auth: &HttpAuth,
    credentials: &CurrentCredentials,
    headers: &HeaderMap,
    target: &Uri,
    certificate: Option<&CertifiedClient>,
    now: impl FnOnce() -> SystemTime,
) -> Result<Proven, Unproven> {
    let proven = prove(auth, credentials, headers, target, certificate, now)?;
    match proven.principal {
        Principal::Anonymous if auth.require_mcp_auth => Err(Unproven::Missing),
        // Less than what was proven can be claimed by anybody.
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

/// What a request brings as keys, valid or not: `X-API-Key`, then `Authorization: Bearer`, then `?apikey=`.
pub fn keys<'a>(
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

/// True when one of the [`keys`] of a request is `key`. An empty `key` lets nobody in.
fn knows_key(headers: &HeaderMap, query: Option<&str>, key: &str) -> bool {
    // Every key is compared, so that time does not tell which was wrong.
    let known = keys(headers, query)
        .map(|given| bool::from(given.ct_eq(key.as_bytes())))
        .fold(false, |known, this| known | this);
    known && !key.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{
        AuthorityStanding, Identity, NewAgentToken, TokenChange, TokenChanged, TokenFile,
    };

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    fn headers(name: &str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.append(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
        headers
    }

    #[test]
    fn a_key_is_found_in_each_of_its_places() {
        let none = HeaderMap::new();
        assert!(knows_key(&headers("x-api-key", KEY), None, KEY));
        assert!(knows_key(&headers("authorization", &format!("Bearer {KEY}")), None, KEY));
        assert!(knows_key(&headers("authorization", &format!("bearer  {KEY}")), None, KEY));
        assert!(knows_key(&none, Some(&format!("limit=3&apikey={KEY}")), KEY));
        assert!(knows_key(&none, Some("apikey=a%26b"), "a&b"));
    }

    #[test]
    fn another_key_or_none_is_refused() {
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
    fn keys_come_in_the_order_of_their_places() {
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
            host_check: crate::policy::host_check::HostCheck::new(&[], &[]).unwrap(),
        }
    }

    #[test]
    fn who_asks_is_proven_by_key_or_token_and_a_bad_token_is_not_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::new(TokenFile::new(folder.path()), None);
        let new = NewAgentToken { name: "ci".into(), ..NewAgentToken::default() };
        let made = identity.change(TokenChange::Create(new), [1; 32], SystemTime::UNIX_EPOCH);
        let TokenChanged::Made(made) = made.unwrap() else { panic!() };
        let (token, current) = (made.secret.expose(), identity.reader().current());
        let ask = |headers: &HeaderMap, uri: &str| {
            let uri: Uri = uri.parse().unwrap();
            let proven = prove(&auth(), &current, headers, &uri, None, || SystemTime::UNIX_EPOCH);
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
            let proven = prove_for_mcp(
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
        assert_eq!(speaks(&piped), Err(Unproven::Missing), "it lets nobody in");
        let missing =
            prove_for_mcp(&auth(), &current, &none, &"/".parse().unwrap(), None, || unreachable!());
        assert_eq!(missing, Err(Unproven::Missing));
    }

    #[test]
    fn a_certificate_counts_where_nothing_else_is_carried_and_no_longer_than_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::new(TokenFile::new(folder.path()), None);
        let (current, uri) = (identity.reader().current(), "/mcp".parse().unwrap());
        let until = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(10);
        let principal = Principal::certificate("ada");
        let proven = Proven { principal, from: None, until: Some(until) };
        let client = CertifiedClient { proven, authority: AuthorityStanding::default() };
        let ask = |headers: &HeaderMap, now: SystemTime| {
            let asked = prove_for_mcp(&auth(), &current, headers, &uri, Some(&client), move || now);
            asked.map(|it| it.principal.id().to_owned()).map_err(|error| error.to_string())
        };
        let (none, early) = (HeaderMap::new(), SystemTime::UNIX_EPOCH);
        assert_eq!(ask(&none, early).unwrap(), "cert:ada", "it is enough for require_mcp_auth");
        assert_eq!(ask(&none, until).unwrap_err(), "The client certificate has expired");
        assert_eq!(ask(&headers(HEADER, KEY), until).unwrap(), "admin");
        let forged = format!("Bearer {PREFIX}x");
        assert!(ask(&headers("authorization", &forged), early).is_err(), "no way back to it");
        client.authority.take_back();
        let over = "The client certificate is of an authority that counts no more";
        assert_eq!(ask(&none, early).unwrap_err(), over);
        assert_eq!(ask(&headers(HEADER, KEY), early).unwrap(), "admin");
    }
}
