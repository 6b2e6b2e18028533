//! The API key of a request: where it may stand, the comparison that leaks no time, and who makes the request. Pure.

use std::borrow::Cow;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Uri};
use percent_encoding::percent_decode_str;
use subtle::ConstantTimeEq;

use crate::policy::{HttpAuth, Principal};

/// The header that carries a key.
pub const HEADER: &str = "x-api-key";

/// The query parameter that carries a key.
pub const QUERY_PARAMETER: &str = "apikey";

/// On whose behalf a request is made: the admin's, when it carries the API key.
#[must_use]
pub fn principal(auth: &HttpAuth, headers: &HeaderMap, target: &Uri) -> Principal {
    if knows_key(headers, target.query(), &auth.api_key) {
        Principal::Admin
    } else {
        Principal::Anonymous
    }
}

/// On whose behalf a request to `/mcp` is made; `None` for one that must carry the key and does not.
#[must_use]
pub fn mcp_principal(auth: &HttpAuth, headers: &HeaderMap, target: &Uri) -> Option<Principal> {
    match principal(auth, headers, target) {
        Principal::Anonymous if auth.require_mcp_auth => None,
        principal @ (Principal::Anonymous | Principal::Admin) => Some(principal),
    }
}

/// What a request brings as keys, valid or not: `X-API-Key`, then `Authorization: Bearer`, then `?apikey=`.
pub fn keys<'a>(
    headers: &'a HeaderMap,
    query: Option<&'a str>,
) -> impl Iterator<Item = Cow<'a, [u8]>> {
    let own = headers.get_all(HEADER).iter().map(http::HeaderValue::as_bytes);
    let bearer = headers.get_all(AUTHORIZATION).iter().filter_map(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked("bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    let in_query = query.unwrap_or_default().split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        (name == QUERY_PARAMETER).then(|| Cow::from(percent_decode_str(value)))
    });
    own.chain(bearer).map(Cow::Borrowed).chain(in_query)
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
}
