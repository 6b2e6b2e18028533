//! The secret of an agent token: 256 random bits behind a prefix that tells people and scanners what it is.
//!
//! It is kept as its BLAKE3 hash. A slow hash is for passwords, which can be guessed: of 2²⁵⁶ secrets that are all
//! equally likely nobody finds one by trying, however fast a try is.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// What every agent token begins with.
pub const PREFIX: &str = "mcpp_";
/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;
/// Bytes of a whole token: 32 bytes are 43 digits.
const TOKEN_BYTES: usize = PREFIX.len() + 43;

/// A whole token, to be shown once. `Debug` does not show it.
pub struct AgentSecret(String);

impl std::fmt::Debug for AgentSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AgentSecret(…)")
    }
}

impl AgentSecret {
    /// The token that is made of so many bytes of the system's randomness.
    #[must_use]
    pub fn new(random: [u8; SECRET_BYTES]) -> Self {
        Self(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random)))
    }

    /// The token itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(self.0.as_bytes()).as_bytes()
    }
}

/// The hash of a token that came with a request; `None` if it has not the form of one.
pub(super) fn hash_of(token: &[u8]) -> Option<[u8; 32]> {
    let formed = token.len() == TOKEN_BYTES && token.starts_with(PREFIX.as_bytes());
    formed.then(|| *blake3::hash(token).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_readable_of_256_bits_and_shown_by_no_accident() {
        let secret = AgentSecret::new([0xa5; SECRET_BYTES]);
        assert!(secret.expose().starts_with("mcpp_") && secret.expose().len() == TOKEN_BYTES);
        assert_eq!(hash_of(secret.expose().as_bytes()), Some(secret.hash()));
        assert_ne!(AgentSecret::new([0; SECRET_BYTES]).hash(), secret.hash());
        assert_eq!(format!("{secret:?}"), "AgentSecret(…)");
        for bad in ["", "mcpp_", &secret.expose()[1..], &format!("{}x", secret.expose())] {
            assert_eq!(hash_of(bad.as_bytes()), None, "{bad}");
        }
    }
}
