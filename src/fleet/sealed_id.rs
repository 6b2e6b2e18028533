//! Ids that hold what they are for: sealed by one node of a fleet, opened by any, and told by nobody else from random text. Pure.
//!
//! ```text
//! base64url( 1 | key id 4 | salt 16 | ChaCha20-Poly1305( what is sealed ) | tag 16 )
//! ```
//!
//! Each id has a key of its own: BLAKE3, keyed with one of the fleet's, of its salt of 128 random bits. So nothing is counted,
//! no nonce can come twice before a salt does, and what stands before the ciphertext is authenticated with it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use thiserror::Error;

use super::cluster_key::{DerivedKey, KEY_ID_BYTES, PurposeKeys};

/// The form, which is the first byte.
const FORMAT: u8 = 1;
const SALT_BYTES: usize = 16;
const HEAD_BYTES: usize = 1 + KEY_ID_BYTES + SALT_BYTES;
const TAG_BYTES: usize = 16;
/// Bytes of an id that are not of what is sealed in it.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;
/// Most bytes that are sealed into an id.
pub const MAX_SEALED_BYTES: usize = 255;
/// Most characters of an id.
pub const MAX_ID_CHARS: usize = (OVERHEAD_BYTES + MAX_SEALED_BYTES).div_ceil(3) * 4;

/// 128 random bits, of no other id.
pub type IdSalt = [u8; SALT_BYTES];

/// Why an id is not opened. Whoever sent it is told none of this.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum IdRefusal {
    /// It does not have the form of an id, or is cut.
    #[error("it is no sealed id")]
    Form,
    /// It was sealed with a key that is not among ours, or not any more.
    #[error("it is sealed with another key")]
    Key,
    /// Not all of it is as it was sealed.
    #[error("it is not what was sealed")]
    Altered,
}

/// A key, with what ids name it by.
#[derive(Clone, Debug)]
struct IdKey {
    name: [u8; KEY_ID_BYTES],
    key: DerivedKey,
}

/// The keys of a fleet for its ids: one seals, all of them open.
#[derive(Clone, Debug)]
pub struct IdKeys {
    seals: IdKey,
    all: Box<[IdKey]>,
}

/// What an id holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedId {
    /// What tells it from every other.
    pub salt: IdSalt,
    /// What was sealed.
    pub sealed: Vec<u8>,
}

impl IdKey {
    fn new(key: &DerivedKey) -> Self {
        Self { name: key.id(), key: key.clone() }
    }

    /// The key of one id alone.
    fn of(&self, salt: &IdSalt) -> Option<LessSafeKey> {
        let hash = blake3::keyed_hash(self.key.expose(), salt);
        Some(LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, hash.as_bytes()).ok()?))
    }
}

/// Each key seals once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

impl IdKeys {
    /// Those that were derived for this, and for nothing else.
    #[must_use]
    pub fn of(keys: &PurposeKeys) -> Self {
        Self { seals: IdKey::new(keys.seals()), all: keys.all().map(IdKey::new).collect() }
    }

    /// The id of `salt`, which has never been that of another, with `sealed` in it: visible ASCII, at most [`MAX_ID_CHARS`].
    /// `None` for more than [`MAX_SEALED_BYTES`].
    #[must_use]
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

    /// What an id holds. No other text than the sealed one is opened.
    ///
    /// # Errors
    ///
    /// [`IdRefusal`].
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
    use proptest::prelude::*;

    use super::*;
    use crate::fleet::cluster_key::{ClusterKeys, KeyPurpose};

    fn keys(first: u8, others: &[u8]) -> IdKeys {
        let secrets = [&[first], others].concat();
        let secrets: Vec<String> = secrets
            .iter()
            .map(|first| (0..32).map(|at| format!("{:02x}", first + at)).collect())
            .collect();
        let keys = ClusterKeys::parse(secrets.iter().map(String::as_str)).unwrap();
        IdKeys::of(&keys.derive(KeyPurpose::Session))
    }

    #[test]
    fn an_id_is_opened_by_whoever_has_its_key_and_is_visible_and_short() {
        for length in [0, 1, 75, MAX_SEALED_BYTES] {
            let sealed = vec![7; length];
            let id = keys(1, &[]).seal([9; 16], &sealed).unwrap();
            assert!(id.len() <= MAX_ID_CHARS && id.bytes().all(|byte| byte.is_ascii_graphic()));
            assert_eq!(keys(1, &[]).open(&id), Ok(OpenedId { salt: [9; 16], sealed }));
        }
        assert_eq!(keys(1, &[]).seal([9; 16], &[0; MAX_SEALED_BYTES + 1]), None);
        let of = |salt| keys(1, &[]).seal([salt; 16], b"same").unwrap();
        assert_ne!(of(1).get(28..), of(2).get(28..), "the same text looks like another");
    }

    #[test]
    fn keys_change_with_an_overlap() {
        let (old, both, new) = (keys(1, &[]), keys(2, &[1]), keys(2, &[]));
        let (by_old, by_both) =
            (old.seal([1; 16], b"x").unwrap(), both.seal([2; 16], b"y").unwrap());
        assert!(both.open(&by_old).is_ok() && both.open(&by_both).is_ok());
        assert_eq!(new.open(&by_old), Err(IdRefusal::Key), "the old key is gone");
        assert!(new.open(&by_both).is_ok(), "the first one seals");
        assert_eq!(old.open(&by_both), Err(IdRefusal::Key));
        // The new key is everywhere before it seals anywhere.
        assert!(keys(1, &[2]).open(&by_both).is_ok());
    }

    #[test]
    fn what_is_cut_altered_or_longer_is_refused() {
        let keys = keys(1, &[2, 3]);
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
        fn another_byte_is_another_id(at: prop::sample::Index, change in 1..=255_u8, sealed: [u8; 40], salt: IdSalt) {
            let keys = keys(5, &[]);
            let id = keys.seal(salt, &sealed).unwrap();
            let mut bytes = URL_SAFE_NO_PAD.decode(&id).unwrap();
            *at.get_mut(&mut bytes[..]) ^= change;
            prop_assert!(keys.open(&URL_SAFE_NO_PAD.encode(bytes)).is_err());
        }

        #[test]
        fn any_text_is_refused(text: String) {
            prop_assert!(keys(5, &[6]).open(&text).is_err());
        }
    }
}
