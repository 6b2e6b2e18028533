//! Shared secret of the fleet (`cluster.key`), keys derived from it per purpose, and encrypted ids. Pure.
//!
//! The secret is random, so no slow key derivation is needed: BLAKE3 in key derivation mode, with a context string
//! per purpose. Data sealed for one purpose cannot be opened for another. If there are several secrets, the first one
//! seals and all of them open. To rotate, append the new secret on every node, then move it to the front, then remove
//! the old one.
//!
//! [`IdKeys`] seals ids that carry their own data, readable by any node of the fleet and opaque to everybody else:
//!
//! ```text
//! base64url( 1 | key id 4 | salt 16 | ChaCha20-Poly1305( data ) | tag 16 )
//! ```
//!
//! Each id has its own key, derived by keyed BLAKE3 from a salt of 128 random bits. So no counter is needed, a nonce repeats
//! only if a salt does, and everything before the ciphertext is authenticated.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

/// Minimum length of a secret in bytes.
pub(crate) const MIN_SECRET_BYTES: usize = 32;
/// Maximum length of a secret in bytes.
pub(crate) const MAX_SECRET_BYTES: usize = 1024;
/// Maximum number of secrets.
pub(crate) const MAX_SECRETS: usize = 8;
/// Minimum number of distinct bytes in a secret. 32 random bytes have fewer with a probability below 10^-30.
const MIN_DIFFERENT_BYTES: usize = 8;
/// Length of a key id in bytes.
pub const KEY_ID_BYTES: usize = 4;

/// Purpose of a derived key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPurpose {
    /// Session ids that any node can open.
    Session,
    /// Requests between nodes and their answers.
    Peer,
    /// Shared objects in the store.
    Facts,
    /// Heartbeat objects in the store.
    Heartbeat,
    /// Request states with which a call is retried on any node.
    Approval,
}

impl KeyPurpose {
    /// BLAKE3 context string. Never changed: a new format gets a new context.
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

/// Key for one purpose. `Debug` redacts it.
#[derive(Clone, PartialEq, Eq)]
pub struct DerivedKey([u8; 32]);

impl DerivedKey {
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// Public id of the key, stored next to sealed data. Two keys collide with a probability of 2⁻³².
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

/// Keys for one purpose: one seals, all open. Clones share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurposeKeys {
    seals: DerivedKey,
    all: Arc<[DerivedKey]>,
}

impl PurposeKeys {
    pub(crate) fn seals(&self) -> &DerivedKey {
        &self.seals
    }

    /// All keys, the sealing key first.
    pub fn all(&self) -> impl Iterator<Item = &DerivedKey> {
        self.all.iter()
    }

    /// Keys with this id; usually one.
    pub(crate) fn named(&self, id: [u8; KEY_ID_BYTES]) -> impl Iterator<Item = &DerivedKey> {
        self.all.iter().filter(move |key| key.id() == id)
    }
}

/// Secret as configured, and its bytes.
#[derive(Clone, PartialEq, Eq)]
struct ClusterSecret {
    text: Box<str>,
    bytes: Box<[u8]>,
}

/// `cluster.key`: at least one secret, the first of which seals. `Debug` redacts them. Clones share them.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKeys {
    first: ClusterSecret,
    others: Arc<[ClusterSecret]>,
}

impl ClusterKeys {
    /// Parses secrets of at least [`MIN_SECRET_BYTES`] random bytes in hexadecimal or base64.
    ///
    /// # Errors
    ///
    /// A message that never quotes the secret.
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

    /// Derives the keys for one purpose.
    pub fn derive(&self, purpose: KeyPurpose) -> PurposeKeys {
        let derive =
            |it: &ClusterSecret| DerivedKey(blake3::derive_key(purpose.context(), &it.bytes));
        let seals = derive(&self.first);
        let others = self.others.iter().map(derive);
        PurposeKeys { all: [seals.clone()].into_iter().chain(others).collect(), seals }
    }

    /// The secrets as configured, so that they can be redacted elsewhere.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        [&self.first].into_iter().chain(self.others.iter()).map(|secret| &*secret.text)
    }
}

impl fmt::Debug for ClusterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClusterKeys").field(&(1 + self.others.len())).finish()
    }
}

/// Deserializes `cluster.key`: one secret, a list, or none (null or empty).
///
/// # Errors
///
/// A message that never quotes the secret.
pub(crate) fn optional_keys<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ClusterKeys>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMore {
        One(String),
        More(Vec<String>),
    }
    // The error does not quote the value: it may be a secret.
    let read = Option::<OneOrMore>::deserialize(deserializer)
        .map_err(|_| D::Error::custom("must be a secret, or a list of them"))?;
    let texts = match read {
        None => return Ok(None),
        Some(OneOrMore::One(text)) if text.is_empty() => return Ok(None),
        Some(OneOrMore::One(text)) => vec![text],
        Some(OneOrMore::More(texts)) => texts,
    };
    // An unresolved reference has already been reported.
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

/// Decodes a secret; hexadecimal takes precedence if both encodings fit.
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

/// Format version, the first byte.
const FORMAT: u8 = 1;
const SALT_BYTES: usize = 16;
const HEAD_BYTES: usize = 1 + KEY_ID_BYTES + SALT_BYTES;
const TAG_BYTES: usize = 16;
/// Length of an id in bytes, without its data.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;
/// Maximum length of the data sealed in an id, in bytes.
pub const MAX_SEALED_BYTES: usize = 255;
/// Maximum length of an id in characters.
pub const MAX_ID_CHARS: usize = (OVERHEAD_BYTES + MAX_SEALED_BYTES).div_ceil(3) * 4;

/// 128 random bits, unique to an id.
pub type IdSalt = [u8; SALT_BYTES];

/// Reason for rejecting an id. Not disclosed to the sender.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum IdRefusal {
    #[error("not a sealed id")]
    Form,
    #[error("sealed with an unknown key")]
    Key,
    #[error("altered after sealing")]
    Altered,
}

/// Key and its public id.
#[derive(Clone, Debug)]
struct IdKey {
    name: [u8; KEY_ID_BYTES],
    key: DerivedKey,
}

/// Keys of a fleet for sealed ids: one seals, all open.
#[derive(Clone, Debug)]
pub struct IdKeys {
    seals: IdKey,
    all: Box<[IdKey]>,
}

/// Content of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedId {
    /// Unique salt of the id.
    pub salt: IdSalt,
    pub sealed: Vec<u8>,
}

impl IdKey {
    fn new(key: &DerivedKey) -> Self {
        Self { name: key.id(), key: key.clone() }
    }

    /// Derives the key of one id.
    fn of(&self, salt: &IdSalt) -> Option<LessSafeKey> {
        let hash = blake3::keyed_hash(self.key.expose(), salt);
        Some(LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, hash.as_bytes()).ok()?))
    }
}

/// Constant: each key seals once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

impl IdKeys {
    /// Creates id keys from keys derived for this purpose alone.
    pub fn of(keys: &PurposeKeys) -> Self {
        Self { seals: IdKey::new(keys.seals()), all: keys.all().map(IdKey::new).collect() }
    }

    /// Seals `sealed` into an id of at most [`MAX_ID_CHARS`] visible ASCII characters. `salt` must never
    /// repeat. `None` if `sealed` exceeds [`MAX_SEALED_BYTES`].
    pub fn seal(&self, salt: IdSalt, sealed: &[u8]) -> Option<String> {
        if sealed.len() > MAX_SEALED_BYTES {
            return None;
        }
        let mut out = Vec::with_capacity(OVERHEAD_BYTES + sealed.len());
        out.push(FORMAT);
        out.extend(self.seals.name);
        out.extend(salt);
        let head: [u8; HEAD_BYTES] = *out.first_chunk()?;
        let mut text = sealed.to_vec();
        let key = self.seals.of(&salt)?;
        key.seal_in_place_append_tag(nonce(), Aad::from(head), &mut text).ok()?;
        out.extend(text);
        Some(URL_SAFE_NO_PAD.encode(out))
    }

    pub fn open(&self, id: &str) -> Result<OpenedId, IdRefusal> {
        if id.len() > MAX_ID_CHARS {
            return Err(IdRefusal::Form);
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(id).map_err(|_| IdRefusal::Form)?;
        let (head, text) = bytes.split_first_chunk_mut::<HEAD_BYTES>().ok_or(IdRefusal::Form)?;
        let [FORMAT, named @ ..] = *head else { return Err(IdRefusal::Form) };
        let (name, salt) = named.split_first_chunk::<KEY_ID_BYTES>().ok_or(IdRefusal::Form)?;
        let salt = IdSalt::try_from(salt).map_err(|_| IdRefusal::Form)?;
        let key = self.all.iter().find(|key| key.name == *name).ok_or(IdRefusal::Key)?;
        let key = key.of(&salt).ok_or(IdRefusal::Altered)?;
        let opened = key.open_in_place(nonce(), Aad::from(*head), text);
        Ok(OpenedId { salt, sealed: opened.map_err(|_| IdRefusal::Altered)?.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const OTHER: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn keys<const N: usize>(texts: [&str; N]) -> ClusterKeys {
        ClusterKeys::parse(texts).unwrap()
    }

    #[test]
    fn secret_encodings_are_equivalent() {
        let expected = keys([HEX]).derive(KeyPurpose::Peer);
        for text in [&HEX.to_uppercase(), BASE64, BASE64.trim_end_matches('=')] {
            assert_eq!(keys([text]).derive(KeyPurpose::Peer), expected, "{text}");
        }
        // Both base64 alphabets: bytes 0xfb and 0xff are written with + and /, or - and _.
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
    fn invalid_secret_is_rejected_without_being_quoted() {
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
            let reported = ClusterKeys::parse([text]).unwrap_err();
            assert!(reported.contains(why), "{text}: {reported}");
            assert!(text.is_empty() || !reported.contains(text), "{reported}");
        }
        assert!(ClusterKeys::parse([]).is_err());
        assert!(ClusterKeys::parse([HEX; MAX_SECRETS + 1]).is_err());
        ClusterKeys::parse([HEX; MAX_SECRETS]).unwrap();
    }

    #[test]
    fn each_purpose_has_a_distinct_key_that_debug_hides() {
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
    fn secrets_rotate_with_overlap() {
        let [old, both, turned, new] =
            [keys([HEX]), keys([HEX, OTHER]), keys([OTHER, HEX]), keys([OTHER])]
                .map(|keys| keys.derive(KeyPurpose::Session));
        let opens = |opener: &PurposeKeys, sealer: &PurposeKeys| {
            opener.named(sealer.seals().id()).any(|key| key == sealer.seals())
        };
        // Each step is compatible with nodes one step behind or ahead.
        for (a, b) in [(&old, &both), (&both, &turned), (&turned, &new)] {
            assert!(opens(a, b) && opens(b, a));
        }
        assert!(!opens(&old, &new) && !opens(&new, &old));
    }

    #[test]
    fn derived_keys_are_stable() {
        // Plain BLAKE3 `derive_key(context, bytes)`, reproducible by other implementations.
        let bytes: Vec<u8> = (0..32).collect();
        let mut hasher = blake3::Hasher::new_derive_key("mcpproxy 2026-11-23 cluster.key peer v1");
        hasher.update(&bytes);
        let key = keys([HEX]).derive(KeyPurpose::Peer);
        assert_eq!(key.seals().expose(), hasher.finalize().as_bytes());
    }

    fn id_keys(first: u8, others: &[u8]) -> IdKeys {
        let secrets = [&[first], others].concat();
        let secrets: Vec<String> = secrets
            .iter()
            .map(|first| (0..32).map(|at| format!("{:02x}", first + at)).collect())
            .collect();
        let keys = ClusterKeys::parse(secrets.iter().map(String::as_str)).unwrap();
        IdKeys::of(&keys.derive(KeyPurpose::Session))
    }

    #[test]
    fn id_round_trips_as_short_visible_ascii() {
        for length in [0, 1, 75, MAX_SEALED_BYTES] {
            let sealed = vec![7; length];
            let id = id_keys(1, &[]).seal([9; 16], &sealed).unwrap();
            assert!(id.len() <= MAX_ID_CHARS && id.bytes().all(|byte| byte.is_ascii_graphic()));
            assert_eq!(id_keys(1, &[]).open(&id), Ok(OpenedId { salt: [9; 16], sealed }));
        }
        assert_eq!(id_keys(1, &[]).seal([9; 16], &[0; MAX_SEALED_BYTES + 1]), None);
        let of = |salt| id_keys(1, &[]).seal([salt; 16], b"same").unwrap();
        assert_ne!(of(1).get(28..), of(2).get(28..), "equal data gives different ids");
    }

    #[test]
    fn id_keys_rotate_with_overlap() {
        let (old, both, new) = (id_keys(1, &[]), id_keys(2, &[1]), id_keys(2, &[]));
        let (by_old, by_both) =
            (old.seal([1; 16], b"x").unwrap(), both.seal([2; 16], b"y").unwrap());
        assert!(both.open(&by_old).is_ok() && both.open(&by_both).is_ok());
        assert_eq!(new.open(&by_old), Err(IdRefusal::Key), "the old key was removed");
        assert!(new.open(&by_both).is_ok(), "the first one seals");
        assert_eq!(old.open(&by_both), Err(IdRefusal::Key));
        // A node that knows the new key, but still seals with the old one, can open what the new key sealed.
        assert!(id_keys(1, &[2]).open(&by_both).is_ok());
    }

    #[test]
    fn truncated_altered_or_extended_id_is_rejected() {
        let keys = id_keys(1, &[2, 3]);
        let id = keys.seal([9; 16], b"what a session needs").unwrap();
        for end in 0..id.len() {
            assert!(keys.open(&id[..end]).is_err(), "cut at {end}");
        }
        for at in 0..id.len() {
            for other in ["A", "B", "_", "=", " "] {
                let mut altered = id.clone();
                altered.replace_range(at..=at, other);
                assert!(altered == id || keys.open(&altered).is_err(), "{other} at {at}");
            }
        }
        for more in ["A", "AA", "AAA", "AAAA", "="] {
            assert!(
                keys.open(&format!("{id}{more}")).is_err()
                    && keys.open(&format!("{more}{id}")).is_err()
            );
        }
        assert_eq!(keys.open(&"A".repeat(1 << 20)), Err(IdRefusal::Form));
        assert_eq!(
            keys.open("00112233445566778899aabbccddeeff"),
            Err(IdRefusal::Form),
            "an id without a fleet"
        );
    }

    proptest! {
        #[test]
        fn any_changed_byte_is_rejected(at: prop::sample::Index, change in 1..=255_u8, sealed: [u8; 40], salt: IdSalt) {
            let keys = id_keys(5, &[]);
            let id = keys.seal(salt, &sealed).unwrap();
            let mut bytes = URL_SAFE_NO_PAD.decode(&id).unwrap();
            *at.get_mut(&mut bytes[..]) ^= change;
            prop_assert!(keys.open(&URL_SAFE_NO_PAD.encode(bytes)).is_err());
        }

        #[test]
        fn arbitrary_text_is_rejected(text: String) {
            prop_assert!(id_keys(5, &[6]).open(&text).is_err());
        }
    }
}
