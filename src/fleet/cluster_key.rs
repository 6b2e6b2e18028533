//! The secret that the nodes of a fleet share (`cluster.key`), and what is derived of it for each purpose. Pure.
//!
//! The secret is random, so that no slow derivation is needed: BLAKE3 in its mode for deriving keys, with a text for each
//! purpose that nothing else uses. What seals for one purpose opens nothing of another. With several secrets the first seals
//! and all open: a new one is put behind the old on every node, then before it, then the old one is taken out.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Fewest bytes of a secret.
pub const MIN_SECRET_BYTES: usize = 32;
/// Most bytes of one.
pub const MAX_SECRET_BYTES: usize = 1024;
/// Most secrets at a time.
pub const MAX_SECRETS: usize = 8;
/// Fewest different bytes of a secret. 32 random bytes have fewer once in more than 10^30.
const MIN_DIFFERENT_BYTES: usize = 8;
/// Bytes of the name by which a key is found among several.
pub const KEY_ID_BYTES: usize = 4;

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPurpose {
    /// Ids of sessions that any node opens.
    Session,
    /// Requests between nodes, and their answers.
    Peer,
    /// Objects in the store that are for the fleet alone.
    Facts,
    /// What nodes say of themselves in the store.
    Heartbeat,
    /// Request states by which a call is made again at any node.
    Approval,
}

impl KeyPurpose {
    /// The text that no other purpose has. Never changed: another form gets another text.
    fn context(self) -> &'static str {
        match self {
            Self::Session => "mcpproxy 2026-11-23 cluster.key session v1",
            Self::Peer => "mcpproxy 2026-11-23 cluster.key peer v1",
            Self::Facts => "mcpproxy 2026-11-23 cluster.key facts v1",
            Self::Heartbeat => "mcpproxy 2026-11-23 cluster.key heartbeat v1",
            Self::Approval => "mcpproxy 2026-11-23 cluster.key approval v1",
        }
    }
}

/// A key for one purpose. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct DerivedKey([u8; 32]);

impl DerivedKey {
    /// The key itself.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The name of the key, which may be shown, and stand beside what is sealed: two keys have the same once in 2³².
    #[must_use]
    pub fn id(&self) -> [u8; KEY_ID_BYTES] {
        let named = blake3::derive_key("mcpproxy 2026-11-23 cluster.key id v1", &self.0);
        named.first_chunk().copied().unwrap_or_default()
    }
}

impl fmt::Debug for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DerivedKey(…)")
    }
}

/// The keys for one purpose: one that seals, and all that open. Clones share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurposeKeys {
    seals: DerivedKey,
    all: Arc<[DerivedKey]>,
}

impl PurposeKeys {
    /// The key that seals.
    #[must_use]
    pub fn seals(&self) -> &DerivedKey {
        &self.seals
    }

    /// Those that open, that which seals before the others.
    pub fn all(&self) -> impl Iterator<Item = &DerivedKey> {
        self.all.iter()
    }

    /// Those that open what is marked with this name; usually one.
    pub fn named(&self, id: [u8; KEY_ID_BYTES]) -> impl Iterator<Item = &DerivedKey> {
        self.all.iter().filter(move |key| key.id() == id)
    }
}

/// One secret: as it is written, and its bytes.
#[derive(Clone, PartialEq, Eq)]
struct ClusterSecret {
    text: Box<str>,
    bytes: Box<[u8]>,
}

/// `cluster.key`: at least one secret, of which the first seals. `Debug` shows none. Clones share them.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKeys {
    first: ClusterSecret,
    others: Arc<[ClusterSecret]>,
}

impl ClusterKeys {
    /// Reads secrets, each at least [`MIN_SECRET_BYTES`] random bytes in hexadecimal digits or base64.
    ///
    /// # Errors
    ///
    /// What is wrong, without a word of the secret.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, String> {
        let mut secrets = Vec::new();
        for text in texts {
            if secrets.len() == MAX_SECRETS {
                return Err(format!("must be at most {MAX_SECRETS} secrets"));
            }
            secrets.push(secret(text)?);
        }
        let mut secrets = secrets.into_iter();
        let first = secrets.next().ok_or("must be a secret, or a list of at least one")?;
        Ok(Self { first, others: secrets.collect() })
    }

    /// The keys for one purpose.
    #[must_use]
    pub fn derive(&self, purpose: KeyPurpose) -> PurposeKeys {
        let derive =
            |it: &ClusterSecret| DerivedKey(blake3::derive_key(purpose.context(), &it.bytes));
        let seals = derive(&self.first);
        let others = self.others.iter().map(derive);
        PurposeKeys { all: [seals.clone()].into_iter().chain(others).collect(), seals }
    }

    /// The secrets as they are written, to be masked wherever they turn up.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        [&self.first].into_iter().chain(self.others.iter()).map(|secret| &*secret.text)
    }
}

impl fmt::Debug for ClusterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClusterKeys").field(&(1 + self.others.len())).finish()
    }
}

/// Reads `cluster.key`: one secret, a list of them, or none (null or empty).
///
/// # Errors
///
/// What is wrong, without a word of the secret.
pub(super) fn optional_keys<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ClusterKeys>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMore {
        One(String),
        More(Vec<String>),
    }
    // What does not fit is not quoted: it may be a secret.
    let read = Option::<OneOrMore>::deserialize(deserializer)
        .map_err(|_| D::Error::custom("must be a secret, or a list of them"))?;
    let texts = match read {
        None => return Ok(None),
        Some(OneOrMore::One(text)) if text.is_empty() => return Ok(None),
        Some(OneOrMore::One(text)) => vec![text],
        Some(OneOrMore::More(texts)) => texts,
    };
    // A reference that leads nowhere was told when it was followed.
    if texts.iter().any(|text| text.contains("${")) {
        return Ok(None);
    }
    ClusterKeys::parse(texts.iter().map(String::as_str)).map(Some).map_err(D::Error::custom)
}

fn secret(text: &str) -> Result<ClusterSecret, String> {
    let bytes = decoded(text).ok_or("must be written in hexadecimal digits or in base64")?;
    if !(MIN_SECRET_BYTES..=MAX_SECRET_BYTES).contains(&bytes.len()) {
        return Err(format!(
            "must be {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes, is {}: 'openssl rand -hex 32' makes one",
            bytes.len()
        ));
    }
    let mut different = bytes.clone();
    different.sort_unstable();
    different.dedup();
    if different.len() < MIN_DIFFERENT_BYTES {
        return Err("must be random: 'openssl rand -hex 32' makes one".to_owned());
    }
    Ok(ClusterSecret { text: text.into(), bytes: bytes.into() })
}

/// The bytes that are written; hexadecimal digits come first where it could be both.
fn decoded(text: &str) -> Option<Vec<u8>> {
    if text.len() > 2 * MAX_SECRET_BYTES {
        return Some(vec![0; MAX_SECRET_BYTES + 1]);
    }
    let digits = || {
        let digits = text.chars().map(|c| c.to_digit(16).map(|it| it as u8));
        let digits = digits.collect::<Option<Vec<u8>>>()?;
        let pair = |pair: &[u8]| match pair {
            [high, low] => Some(high << 4 | low),
            _ => None,
        };
        digits.chunks(2).map(pair).collect::<Option<Vec<u8>>>()
    };
    let base64 = |alphabet| {
        let config =
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        GeneralPurpose::new(alphabet, config).decode(text).ok()
    };
    digits().or_else(|| base64(&STANDARD)).or_else(|| base64(&URL_SAFE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const OTHER: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn keys<const N: usize>(texts: [&str; N]) -> ClusterKeys {
        ClusterKeys::parse(texts).unwrap()
    }

    #[test]
    fn a_secret_is_the_same_however_it_is_written() {
        let expected = keys([HEX]).derive(KeyPurpose::Peer);
        for text in [&HEX.to_uppercase(), BASE64, BASE64.trim_end_matches('=')] {
            assert_eq!(keys([text]).derive(KeyPurpose::Peer), expected, "{text}");
        }
        // Both alphabets: bytes of 0xfb and 0xff stand as + and /, or - and _.
        let bytes: Vec<u8> = (200..=255).collect();
        let texts = [&STANDARD, &URL_SAFE].map(|alphabet| {
            GeneralPurpose::new(alphabet, GeneralPurposeConfig::new()).encode(&bytes)
        });
        assert_ne!(texts[0], texts[1]);
        let [a, b] = texts.each_ref().map(|text| keys([text]).derive(KeyPurpose::Peer));
        assert_eq!(a, b);
        assert_ne!(a, expected);
    }

    #[test]
    fn what_is_no_secret_is_refused_without_a_word_of_it() {
        let short = &HEX[..62];
        let long = "ab".repeat(MAX_SECRET_BYTES + 1);
        for (text, why) in [
            ("", "32 to 1024 bytes, is 0"),
            (short, "32 to 1024 bytes, is 31"),
            (long.as_str(), "32 to 1024 bytes"),
            ("not a key at all, and with spaces in it", "hexadecimal digits or in base64"),
            (&"00".repeat(32), "must be random"),
            ("abababababababababababababababababababababababababababababababab", "must be random"),
        ] {
            let told = ClusterKeys::parse([text]).unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
            assert!(text.is_empty() || !told.contains(text), "{told}");
        }
        assert!(ClusterKeys::parse([]).is_err());
        assert!(ClusterKeys::parse([HEX; MAX_SECRETS + 1]).is_err());
        ClusterKeys::parse([HEX; MAX_SECRETS]).unwrap();
    }

    #[test]
    fn each_purpose_has_a_key_of_its_own_and_none_is_shown() {
        let keys = keys([HEX, OTHER]);
        let purposes =
            [KeyPurpose::Session, KeyPurpose::Peer, KeyPurpose::Facts, KeyPurpose::Heartbeat];
        let mut seen = Vec::new();
        for purpose in purposes {
            for key in keys.derive(purpose).all() {
                assert!(!seen.contains(&(*key.expose(), key.id())), "{purpose:?}");
                assert_ne!(key.expose()[..KEY_ID_BYTES], key.id());
                seen.push((*key.expose(), key.id()));
            }
        }
        assert_eq!(seen.len(), 8);
        let shown = format!("{keys:?} {:?}", keys.derive(KeyPurpose::Peer));
        assert_eq!(shown.matches("DerivedKey(…)").count(), 3, "{shown}");
        assert!(!shown.contains("0001") && shown.contains("ClusterKeys(2)"), "{shown}");
        assert_eq!(keys.texts().collect::<Vec<_>>(), [HEX, OTHER]);
    }

    #[test]
    fn secrets_are_changed_with_overlap() {
        let [old, both, turned, new] =
            [keys([HEX]), keys([HEX, OTHER]), keys([OTHER, HEX]), keys([OTHER])]
                .map(|keys| keys.derive(KeyPurpose::Session));
        let opens = |opener: &PurposeKeys, sealer: &PurposeKeys| {
            opener.named(sealer.seals().id()).any(|key| key == sealer.seals())
        };
        // Each step is understood by nodes that are one step behind or ahead.
        for (a, b) in [(&old, &both), (&both, &turned), (&turned, &new)] {
            assert!(opens(a, b) && opens(b, a));
        }
        assert!(!opens(&old, &new) && !opens(&new, &old));
    }

    #[test]
    fn the_keys_of_a_secret_stay_what_they_are() {
        // Of BLAKE3 alone, so that another implementation gets the same: derive_key(context, bytes).
        let bytes: Vec<u8> = (0..32).collect();
        let mut hasher = blake3::Hasher::new_derive_key("mcpproxy 2026-11-23 cluster.key peer v1");
        hasher.update(&bytes);
        let key = keys([HEX]).derive(KeyPurpose::Peer);
        assert_eq!(key.seals().expose(), hasher.finalize().as_bytes());
    }
}
