//! The public keys of an identity provider (JWKS, RFC 7517), and which of them may verify which token. Pure.
//!
//! A key that is of no use here (another type, for encryption) is passed over; so is one that cannot be read.

use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::algorithm::Algorithm;

/// Most bytes of a key set.
pub const MAX_KEY_SET_BYTES: usize = 256 * 1024;
/// Most keys in one.
const MAX_KEYS: usize = 64;
/// Most bytes of a key's id.
const MAX_ID_BYTES: usize = 512;

/// Keys that tokens may be signed with.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<SetKey>,
}

#[derive(Clone, Debug)]
struct SetKey {
    id: Option<Box<str>>,
    /// What it can verify, by its type and by what it says itself.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// Why a key set is not used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadKeySet {
    /// It is too long.
    #[error("the key set is larger than {MAX_KEY_SET_BYTES} bytes")]
    TooLarge,
    /// It is no JSON, or no key set.
    #[error("it is no key set (JWKS): {0}")]
    Malformed(String),
    /// It holds too many keys.
    #[error("the key set holds more than {MAX_KEYS} keys")]
    TooMany,
    /// None of its keys can be used.
    #[error("the key set holds no key of a type that is supported: RSA, P-256, P-384, Ed25519")]
    Useless,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

impl KeySet {
    /// Reads a key set.
    ///
    /// # Errors
    /// [`BadKeySet`].
    pub fn parse(text: &[u8]) -> Result<Self, BadKeySet> {
        if text.len() > MAX_KEY_SET_BYTES {
            return Err(BadKeySet::TooLarge);
        }
        let document: Document = serde_json::from_slice(text)
            .map_err(|error| BadKeySet::Malformed(error.to_string()))?;
        if document.keys.len() > MAX_KEYS {
            return Err(BadKeySet::TooMany);
        }
        let keys: Vec<_> = document.keys.into_iter().filter_map(SetKey::read).collect();
        if keys.is_empty() { Err(BadKeySet::Useless) } else { Ok(Self { keys }) }
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key that a token names by `id`, if its type fits the token's algorithm; a token that names none means the
    /// only key that fits.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let mut fitting = self.keys.iter().filter(|key| {
            let named = id.is_none() || key.id.as_deref() == id;
            named && key.algorithms.contains(&algorithm)
        });
        let found = fitting.next()?;
        match (id, fitting.next()) {
            (Some(_), _) | (None, None) => Some(&found.key),
            (None, Some(_)) => None,
        }
    }
}

impl SetKey {
    fn read(value: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        let for_signatures = match &jwk.common.public_key_use {
            None | Some(PublicKeyUse::Signature) => true,
            Some(PublicKeyUse::Encryption | PublicKeyUse::Other(_)) => false,
        };
        let operations = jwk.common.key_operations.as_ref();
        if !for_signatures
            || operations.is_some_and(|operations| !operations.contains(&KeyOperations::Verify))
        {
            return None;
        }
        // Types and curves that come later are of no use either.
        let by_type: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => &[Algorithm::Rs256, Algorithm::Rs384, Algorithm::Rs512],
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
                &[Algorithm::Es256]
            }
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => {
                &[Algorithm::Es384]
            }
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                &[Algorithm::EdDsa]
            }
            _ => return None,
        };
        let stated = jwk.common.key_algorithm.map(|algorithm| algorithm.to_string());
        let fits = |algorithm: &&Algorithm| {
            stated.as_deref().is_none_or(|stated| stated == algorithm.as_str())
        };
        let algorithms: Vec<_> = by_type.iter().filter(fits).copied().collect();
        let id = jwk.common.key_id.as_deref();
        let known = !algorithms.is_empty() && id.is_none_or(|id| id.len() <= MAX_ID_BYTES);
        let id = id.map(Box::from);
        let key = DecodingKey::from_jwk(&jwk).ok().filter(|_| known)?;
        Some(Self { id, algorithms, key })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn octets(length: usize) -> String {
        use base64::Engine;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(vec![9; length])
    }

    fn set(keys: Value) -> Result<KeySet, BadKeySet> {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes())
    }

    #[test]
    fn a_key_is_chosen_by_its_id_among_those_whose_type_fits() {
        let set = set(json!([
            {"kty": "RSA", "kid": "r", "n": octets(256), "e": "AQAB", "use": "sig"},
            {"kty": "RSA", "kid": "r512", "n": octets(256), "e": "AQAB", "alg": "RS512"},
            {"kty": "EC", "crv": "P-256", "kid": "e", "x": octets(32), "y": octets(32)},
            {"kty": "OKP", "crv": "Ed25519", "x": octets(32)},
            {"kty": "oct", "kid": "h", "k": octets(32)},
            {"kty": "RSA", "kid": "enc", "n": octets(256), "e": "AQAB", "use": "enc"},
            {"kty": "RSA", "kid": "wrap", "n": octets(256), "e": "AQAB", "key_ops": ["wrapKey"]},
            {"kty": "NEW", "kid": "new"},
            "no key",
        ]))
        .unwrap();
        assert_eq!(set.len(), 4);
        for (id, algorithm, found) in [
            (Some("r"), Algorithm::Rs256, true),
            (Some("r"), Algorithm::Es256, false),
            (Some("r512"), Algorithm::Rs512, true),
            (Some("r512"), Algorithm::Rs256, false),
            (Some("e"), Algorithm::Es256, true),
            (Some("e"), Algorithm::Es384, false),
            (Some("h"), Algorithm::Rs256, false),
            (Some("enc"), Algorithm::Rs256, false),
            (Some("wrap"), Algorithm::Rs256, false),
            (Some("nobody"), Algorithm::Rs256, false),
            (None, Algorithm::EdDsa, true),
            // Two fit: which is meant cannot be known.
            (None, Algorithm::Rs512, false),
        ] {
            assert_eq!(set.find(id, algorithm).is_some(), found, "{id:?} {algorithm:?}");
        }
    }

    #[test]
    fn what_is_no_key_set_is_refused_with_the_reason() {
        let many = json!(vec![json!({"kty": "RSA"}); MAX_KEYS + 1]);
        assert_eq!(set(many).unwrap_err(), BadKeySet::TooMany);
        assert_eq!(set(json!([])).unwrap_err(), BadKeySet::Useless);
        assert_eq!(set(json!([{"kty": "oct", "k": "AA"}])).unwrap_err(), BadKeySet::Useless);
        for text in ["", "<html>", "{}", "[]", r#"{"keys":{}}"#] {
            let bad = KeySet::parse(text.as_bytes()).unwrap_err();
            assert!(matches!(bad, BadKeySet::Malformed(_)), "{text}");
        }
        let large = vec![b' '; MAX_KEY_SET_BYTES + 1];
        assert_eq!(KeySet::parse(&large).unwrap_err(), BadKeySet::TooLarge);
    }
}
