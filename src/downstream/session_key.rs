//! On whose behalf a session was opened: the API key that came with `initialize`, if one did.
//!
//! Keeps a hash, never the key. Whether a key is *valid* is not known here: that was checked before.

use http::header::AUTHORIZATION;
use http::request::Parts;
use subtle::ConstantTimeEq;

/// The headers a key may stand in.
const API_KEY: http::HeaderName = http::HeaderName::from_static("x-api-key");

/// The key that a session belongs to; no other may use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionKey(Option<[u8; 32]>);

impl SessionKey {
    /// The key of a request.
    #[must_use]
    pub fn of(head: &Parts) -> Self {
        let bearer = |value: &http::HeaderValue| {
            let (scheme, token) = value.as_bytes().split_at_checked("bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii().to_vec())
        };
        let query = head.uri.query().unwrap_or_default().split('&');
        let key = (head.headers.get(&API_KEY).map(|value| value.as_bytes().to_vec()))
            .or_else(|| head.headers.get(AUTHORIZATION).and_then(bearer))
            .or_else(|| {
                let pair = query.filter_map(|pair| pair.split_once('='));
                let key = pair.filter(|(name, _)| *name == "apikey").map(|(_, key)| key);
                key.map(|key| percent_encoding::percent_decode_str(key).collect()).next()
            });
        Self(key.map(|key| *blake3::hash(&key).as_bytes()))
    }

    /// True if `head` brings what this one brought; always, if that was nothing.
    #[must_use]
    pub fn is(&self, head: &Parts) -> bool {
        match &self.0 {
            None => true,
            Some(ours) => Self::of(head).0.is_some_and(|theirs| ours.ct_eq(&theirs).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(uri: &str, name: &str, value: &str) -> Parts {
        let request = http::Request::builder().uri(uri).header(name, value).body(());
        request.unwrap().into_parts().0
    }

    #[test]
    fn a_session_is_used_with_the_key_it_was_opened_with() {
        let ours = SessionKey::of(&head("/mcp", "x-api-key", "secret"));
        assert!(ours.is(&head("/mcp", "authorization", "bearer  secret")), "wherever it stands");
        assert!(ours.is(&head("/mcp?x=1&apikey=s%65cret", "accept", "*/*")));
        for other in ["", "Secret", "secret2"] {
            assert!(!ours.is(&head("/mcp", "x-api-key", other)), "{other}");
        }
        assert!(!ours.is(&head("/mcp", "accept", "*/*")));
        let anyone = SessionKey::of(&head("/mcp", "accept", "*/*"));
        assert!(anyone.is(&head("/mcp", "x-api-key", "secret")));
    }
}
