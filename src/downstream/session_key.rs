//! The API key that a session is bound to: the one that came with `initialize`, if any did.
//!
//! Keeps a hash, never the key. Whether a key is valid was checked before.

use http::request::Parts;
use subtle::ConstantTimeEq;

use crate::downstream::api_key;
use crate::policy::Principal;

/// The key that a session is bound to, as a hash; `None` if it was opened without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionKey(Option<[u8; 32]>);

impl SessionKey {
    /// The key of a request: the first that it brings.
    #[must_use]
    pub fn of(head: &Parts) -> Self {
        let key = api_key::keys(&head.headers, head.uri.query()).next();
        Self(key.map(|key| *blake3::hash(&key).as_bytes()))
    }

    /// True if a request of the principal that opened the session may use it by its key: only whoever proves nothing else
    /// needs the same one.
    pub(super) fn binds(&self, principal: &Principal, head: &Parts) -> bool {
        match principal {
            Principal::Anonymous | Principal::Admin => self.is(head),
            Principal::Token(_) | Principal::Subject(_) | Principal::Certificate(_) => true,
        }
    }

    /// That of this hash.
    pub(super) fn of_hash(hash: Option<[u8; 32]>) -> Self {
        Self(hash)
    }

    /// Its hash.
    pub(super) fn hash(&self) -> Option<&[u8; 32]> {
        self.0.as_ref()
    }

    /// True if the request's key is this one, or there is none to compare with. In constant time.
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
