//! An object that only nodes of one fleet can read and write: encrypted and authenticated by a key of the fleet, and bound to
//! the fleet and to its place in the store, so that one that was altered, cut, moved or brought from elsewhere is none. Pure.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `mcpfact` and the form's version, 1 |
//! | 16 | the fleet |
//! | 32 | random: of it and the fleet's key comes the object's key |
//! | | ChaCha20-Poly1305, with the first 56 bytes and the place as what is authenticated beside |

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use thiserror::Error;

use crate::fleet::sealed_mark::FleetId;

const MAGIC: [u8; 8] = *b"mcpfact\x01";
const FLEET_BYTES: usize = 16;
/// Random bytes of an object.
pub(super) const SALT_BYTES: usize = 32;
const HEAD_BYTES: usize = MAGIC.len() + FLEET_BYTES + SALT_BYTES;
/// Bytes of what the text is authenticated by.
const TAG_BYTES: usize = 16;
/// Bytes that an object has beside its text.
pub(super) const SEAL_BYTES: usize = HEAD_BYTES + TAG_BYTES;
/// What keys of objects are derived for.
const CONTEXT: &str = "mcpproxy 2026-11-23 a sealed object of a fleet's facts";

/// The keys of a fleet for its facts: it writes by the first, and reads by each.
#[derive(Clone)]
pub struct FactKeys(Box<[[u8; 32]]>);

/// What was sealed, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedObject {
    /// The text.
    pub text: Vec<u8>,
    /// Whether it is sealed by the key that is written by now, and not by one of those that are only read by still.
    pub by_first: bool,
}

impl FactKeys {
    /// Whether there are keys that are only read by.
    #[must_use]
    pub fn has_older(&self) -> bool {
        self.0.len() > 1
    }

    /// These. Without any nothing can be read or written.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = [u8; 32]>) -> Self {
        Self(keys.into_iter().collect())
    }
}

impl std::fmt::Debug for FactKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FactKeys(…)")
    }
}

/// Where an object belongs.
#[derive(Clone, Copy, Debug)]
pub struct ObjectPlace<'a> {
    /// The fleet.
    pub fleet: FleetId,
    /// Its key in the store.
    pub key: &'a str,
}

/// Why an object is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotOpened {
    /// It is none, or one of a later version.
    #[error("it is not what a fleet writes, or was written by a later version")]
    Foreign,
    /// Another fleet's.
    #[error("it is another fleet's")]
    OtherFleet,
    /// It was altered, cut or moved, or sealed by another key.
    #[error("it was altered, cut or moved, or is sealed by another cluster.key")]
    NotAuthentic,
}

fn key_of(key: &[u8; 32], salt: &[u8]) -> Option<LessSafeKey> {
    let material = [key.as_slice(), salt].concat();
    let key = blake3::derive_key(CONTEXT, &material);
    UnboundKey::new(&CHACHA20_POLY1305, &key).ok().map(LessSafeKey::new)
}

/// The key is used once, so that the nonce can be one.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn beside(head: &[u8], place: ObjectPlace<'_>) -> Vec<u8> {
    [head, place.key.as_bytes()].concat()
}

/// Seals `text` for its place; `salt` is random, and never used again. `None` without a key.
#[must_use]
pub fn seal_object(
    keys: &FactKeys,
    place: ObjectPlace<'_>,
    salt: [u8; SALT_BYTES],
    text: &[u8],
) -> Option<Vec<u8>> {
    let key = key_of(keys.0.first()?, &salt)?;
    let mut object = [MAGIC.as_slice(), &place.fleet.0, &salt].concat();
    let beside = beside(&object, place);
    let mut sealed = text.to_vec();
    key.seal_in_place_append_tag(nonce(), Aad::from(beside), &mut sealed).ok()?;
    object.append(&mut sealed);
    Some(object)
}

/// What was sealed.
///
/// # Errors
///
/// [`NotOpened`].
pub fn open_object(
    keys: &FactKeys,
    place: ObjectPlace<'_>,
    object: &[u8],
) -> Result<OpenedObject, NotOpened> {
    let (head, sealed) = object.split_at_checked(HEAD_BYTES).ok_or(NotOpened::Foreign)?;
    let (magic, rest) = head.split_at(MAGIC.len());
    let (fleet, salt) = rest.split_at(FLEET_BYTES);
    if magic != MAGIC {
        return Err(NotOpened::Foreign);
    }
    if fleet != place.fleet.0 {
        return Err(NotOpened::OtherFleet);
    }
    let beside = beside(head, place);
    let opened = keys.0.iter().enumerate().find_map(|(at, key)| {
        let mut text = sealed.to_vec();
        let key = key_of(key, salt)?;
        let length = key.open_in_place(nonce(), Aad::from(&beside), &mut text).ok()?.len();
        text.truncate(length);
        Some(OpenedObject { text, by_first: at == 0 })
    });
    opened.ok_or(NotOpened::NotAuthentic)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: ObjectPlace<'_> = ObjectPlace { fleet: FleetId([1; 16]), key: "facts/said/a" };

    #[test]
    fn what_is_sealed_is_read_with_each_key_of_the_fleet_in_its_place_alone() {
        let [old, new] = [[1; 32], [2; 32]];
        let sealed = seal_object(&FactKeys::new([old]), PLACE, [7; 32], b"text").unwrap();
        assert!(!sealed.windows(4).any(|part| part == b"text"));
        assert_eq!(sealed.len(), b"text".len() + SEAL_BYTES);
        let open = |keys: &[[u8; 32]], place| {
            open_object(&FactKeys::new(keys.iter().copied()), place, &sealed)
        };
        let opened = |by_first| Ok(OpenedObject { text: b"text".to_vec(), by_first });
        assert_eq!(open(&[old], PLACE), opened(true));
        assert_eq!(open(&[old, new], PLACE), opened(true));
        assert_eq!(open(&[new, old], PLACE), opened(false));
        assert_eq!(open(&[new], PLACE), Err(NotOpened::NotAuthentic));
        assert_eq!(open(&[], PLACE), Err(NotOpened::NotAuthentic));
        let moved = ObjectPlace { key: "facts/said/b", ..PLACE };
        assert_eq!(open(&[old], moved), Err(NotOpened::NotAuthentic));
        let other = ObjectPlace { fleet: FleetId([2; 16]), ..PLACE };
        assert_eq!(open(&[old], other), Err(NotOpened::OtherFleet));
        assert_eq!(seal_object(&FactKeys::new([]), PLACE, [7; 32], b"text"), None);
    }

    #[test]
    fn every_bit_and_every_byte_counts() {
        let keys = FactKeys::new([[1; 32]]);
        let sealed = seal_object(&keys, PLACE, [7; 32], b"text").unwrap();
        for at in 0..sealed.len() * 8 {
            let mut altered = sealed.clone();
            altered[at / 8] ^= 1 << (at % 8);
            assert!(open_object(&keys, PLACE, &altered).is_err(), "bit {at}");
        }
        for end in 0..sealed.len() {
            assert!(open_object(&keys, PLACE, &sealed[..end]).is_err(), "{end} bytes");
        }
        assert!(open_object(&keys, PLACE, &[&*sealed, b"x"].concat()).is_err());
    }
}
