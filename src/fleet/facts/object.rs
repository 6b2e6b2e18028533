//! Formats of fact objects, and their encryption. Pure.
//!
//! A [`FactObject`] holds one node's facts as JSON, in the store and in the local memory file.
//!
//! Sealed objects are encrypted and authenticated with a key of the fleet, bound to the fleet and their key in the
//! store, so that altered, truncated, moved or foreign objects are rejected:
//!
//! | bytes | |
//! |---|---|
//! | 8 | `mcpfact` and the format version, 1 |
//! | 16 | the fleet |
//! | 32 | random salt: the object's key is derived from it and the fleet's key |
//! | | ChaCha20-Poly1305, with the first 56 bytes and the store key as associated data |

use std::io;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::NodeName;
use crate::facts::set::{
    Fact, FactKind, FactSet, FactStamp, FactState, MAX_CLOCK, MAX_FACT_NAME_BYTES,
    MAX_FACT_VALUE_BYTES,
};
use crate::node_state::FleetId;

/// Maximum size of an object in bytes.
pub const MAX_FACT_OBJECT_BYTES: u64 = 32 << 20;
/// Maximum size of its text in bytes, so that the sealed object stays readable.
pub(crate) const MAX_FACT_TEXT_BYTES: usize = MAX_FACT_OBJECT_BYTES as usize - SEAL_BYTES;
/// Bytes of the text besides its facts: format, number and punctuation.
pub(crate) const BYTES_BESIDE_FACTS: usize = 64;
/// Format version.
const FORMAT: u32 = 1;

/// Serialized fact. Unknown fields are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WrittenFact {
    kind: Box<str>,
    name: Box<str>,
    clock: u64,
    value: Option<Box<str>>,
    /// Author, if other than the object's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<Box<str>>,
}

impl WrittenFact {
    pub(crate) fn of(kind: FactKind, name: &str, fact: &Fact) -> Self {
        let (kind, value) = (kind.as_str().into(), fact.value().map(Box::from));
        Self { kind, name: name.into(), clock: fact.stamp.clock, value, by: None }
    }

    /// Serialized form in the object of `node`.
    fn of_object(kind: FactKind, name: &str, fact: &Fact, node: &NodeName) -> Self {
        let by = (fact.stamp.node != *node).then(|| fact.stamp.node.as_str().into());
        Self { by, ..Self::of(kind, name, fact) }
    }

    /// Adds the fact to a set, authored by `node` unless it names another author. Unknown kinds are ignored.
    pub(crate) fn add(self, node: &NodeName, set: &mut FactSet) -> Result<(), NotFacts> {
        let Self { kind, name, clock, value, by } = self;
        let by = by.map(|by| NodeName::parse(&by).ok_or(NotFacts::Bounds)).transpose()?;
        let node = by.unwrap_or_else(|| node.clone());
        let Some(kind) = FactKind::from_word(&kind) else { return Ok(()) };
        let length = value.as_ref().map_or(0, |value| value.len());
        if clock > MAX_CLOCK || name.len() > MAX_FACT_NAME_BYTES || length > MAX_FACT_VALUE_BYTES {
            return Err(NotFacts::Bounds);
        }
        let state = value.map_or(FactState::Ended, FactState::Holds);
        set.merge_one(kind, &name, Fact { stamp: FactStamp { clock, node }, state });
        Ok(())
    }
}

/// Size of a fact in the object of `node` in bytes, with a separator.
pub(crate) fn written_bytes(kind: FactKind, name: &str, fact: &Fact, node: &NodeName) -> usize {
    let mut counted = CountedBytes(1);
    // Counting cannot fail.
    let _ = serde_json::to_writer(&mut counted, &WrittenFact::of_object(kind, name, fact, node));
    counted.0
}

/// Writer that counts bytes.
struct CountedBytes(usize);

impl io::Write for CountedBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Published facts of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactObject {
    /// Sequence number of the object; a lower one is older.
    pub number: u64,
    /// Facts of the node, and facts that it relays for other nodes.
    pub facts: FactSet,
}

/// Reason for rejecting the text of an object.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotFacts {
    #[error("cannot be read: {0}")]
    Text(String),
    /// The object was written by a later version.
    #[error("unknown format {0}")]
    Format(u32),
    #[error("a name, value or clock exceeds its bound")]
    Bounds,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    format: u32,
    number: u64,
    facts: Vec<WrittenFact>,
}

impl FactObject {
    /// Serializes the object of `node`.
    pub fn write(&self, node: &NodeName) -> Vec<u8> {
        let written = |(kind, name, fact): (FactKind, &str, &Fact)| {
            WrittenFact::of_object(kind, name, fact, node)
        };
        let facts = self.facts.iter().map(written);
        let contents = Contents { format: FORMAT, number: self.number, facts: facts.collect() };
        serde_json::to_vec(&contents).unwrap_or_default()
    }

    /// Parses an object of `node`.
    pub fn read(text: &[u8], node: &NodeName) -> Result<Self, NotFacts> {
        let Contents { format, number, facts } =
            serde_json::from_slice(text).map_err(|error| NotFacts::Text(error.to_string()))?;
        if format != FORMAT {
            return Err(NotFacts::Format(format));
        }
        if number > MAX_CLOCK {
            return Err(NotFacts::Bounds);
        }
        let mut set = FactSet::default();
        for fact in facts {
            fact.add(node, &mut set)?;
        }
        Ok(Self { number, facts: set })
    }
}

const MAGIC: [u8; 8] = *b"mcpfact\x01";
const FLEET_BYTES: usize = 16;
/// Length of the salt in bytes.
pub(crate) const SALT_BYTES: usize = 32;
const HEAD_BYTES: usize = MAGIC.len() + FLEET_BYTES + SALT_BYTES;
/// Length of the authentication tag in bytes.
const TAG_BYTES: usize = 16;
/// Overhead of sealing in bytes.
pub(crate) const SEAL_BYTES: usize = HEAD_BYTES + TAG_BYTES;
/// BLAKE3 context of object keys.
const CONTEXT: &str = "mcpproxy 2026-11-23 a sealed object of a fleet's facts";

/// Keys of a fleet for facts: the first one seals, each of them opens.
#[derive(Clone)]
pub struct FactKeys(Box<[[u8; 32]]>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedObject {
    pub text: Vec<u8>,
    /// True if it was sealed by the first key.
    pub by_first: bool,
}

impl FactKeys {
    /// True if there are keys other than the first.
    pub(crate) fn has_older(&self) -> bool {
        self.0.len() > 1
    }

    /// Creates the key set. Without keys nothing can be sealed or opened.
    pub fn new(keys: impl IntoIterator<Item = [u8; 32]>) -> Self {
        Self(keys.into_iter().collect())
    }
}

impl std::fmt::Debug for FactKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FactKeys(…)")
    }
}

/// Fleet and key that an object is bound to.
#[derive(Clone, Copy, Debug)]
pub struct ObjectBinding<'a> {
    pub fleet: FleetId,
    /// Key in the store.
    pub key: &'a str,
}

/// Reason why an object cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotOpened {
    /// The object is invalid, or of a later version.
    #[error("not a valid fleet object, or written by a later version")]
    Foreign,
    #[error("belongs to another fleet")]
    OtherFleet,
    /// The object was altered, truncated, moved, or sealed by an unknown key.
    #[error("altered, truncated or moved, or sealed with another cluster.key")]
    NotAuthentic,
}

fn key_of(key: &[u8; 32], salt: &[u8]) -> Option<LessSafeKey> {
    let material = [key.as_slice(), salt].concat();
    let key = blake3::derive_key(CONTEXT, &material);
    UnboundKey::new(&CHACHA20_POLY1305, &key).ok().map(LessSafeKey::new)
}

/// Constant nonce; sound because each derived key seals one object.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn beside(head: &[u8], place: ObjectBinding<'_>) -> Vec<u8> {
    [head, place.key.as_bytes()].concat()
}

/// Seals `text` for its place; `salt` must be random and never reused. `None` without a key.
pub fn seal_object(
    keys: &FactKeys,
    place: ObjectBinding<'_>,
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

pub fn open_object(
    keys: &FactKeys,
    place: ObjectBinding<'_>,
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
    use crate::facts::set::tests::node;

    #[test]
    fn fact_object_round_trips_and_keeps_authors() {
        let a = node("a");
        let mut facts = FactSet::default();
        facts.set_value(&a, FactKind::Token, "t", "{\"a\":1}").unwrap();
        facts.set_value(&a, FactKind::Token, "u", "2").unwrap();
        facts.end(&a, FactKind::Token, "u");
        let object = FactObject { number: 7, facts };
        assert_eq!(FactObject::read(&object.write(&a), &a), Ok(object.clone()));
        let as_b = FactObject::read(&object.write(&a), &node("b")).unwrap();
        assert_eq!(as_b.facts.authored_by(&a).len(), 0);
        // Relayed facts keep their author.
        let again = FactObject::read(&object.write(&node("b")), &node("b"));
        assert_eq!(again, Ok(object.clone()));
        let odd = String::from_utf8(object.write(&node("b"))).unwrap();
        let odd = odd.replace("\"by\":\"a\"", "\"by\":\"../a\"");
        assert_eq!(FactObject::read(odd.as_bytes(), &node("b")), Err(NotFacts::Bounds));
    }

    #[test]
    fn counted_size_of_facts_equals_their_written_size() {
        let [a, b] = ["a", "b"].map(node);
        let mut facts = FactSet::default();
        for (at, value) in ["", "{\"a\":\"\\\\\"}", "\u{0}\u{1}", "é"].into_iter().enumerate() {
            let by = if at % 2 == 0 { &a } else { &b };
            facts.set_value(by, FactKind::Token, &format!("\"{at}\n"), value).unwrap();
        }
        facts.end(&b, FactKind::Token, "\"0\n");
        let number = u64::MAX;
        let counted = facts.iter().map(|(kind, name, fact)| written_bytes(kind, name, fact, &a));
        let counted: usize = counted.sum();
        let written = FactObject { number, facts: facts.clone() }.write(&a).len();
        let beside = FactObject { number, facts: FactSet::default() }.write(&a).len();
        // The last fact has no separator.
        assert_eq!(written, beside + counted - 1);
        assert!(beside <= BYTES_BESIDE_FACTS);
    }

    #[test]
    fn out_of_bounds_or_later_versions_are_rejected() {
        let a = node("a");
        let read = |text: &str| FactObject::read(text.as_bytes(), &a);
        let fact = |clock: u64, name: &str| {
            format!(
                r#"{{"format":1,"number":1,"facts":[{{"kind":"token","name":"{name}","clock":{clock},"value":null}}]}}"#
            )
        };
        assert_eq!(read(&fact(1, "t")).unwrap().facts.len(), 1);
        assert_eq!(read(&fact(u64::MAX, "t")), Err(NotFacts::Bounds));
        assert_eq!(read(&fact(1, &"x".repeat(MAX_FACT_NAME_BYTES + 1))), Err(NotFacts::Bounds));
        assert_eq!(read(r#"{"format":2,"number":1,"facts":[]}"#), Err(NotFacts::Format(2)));
        for text in ["", "{}", "[]", r#"{"format":1,"number":-1,"facts":[]}"#] {
            assert!(matches!(read(text), Err(NotFacts::Text(_))), "{text}");
        }
        let later = fact(1, "t").replace("\"token\"", "\"of a later version\"");
        assert!(read(&later).unwrap().facts.is_empty());
    }

    const PLACE: ObjectBinding<'_> = ObjectBinding { fleet: FleetId([1; 16]), key: "facts/said/a" };

    #[test]
    fn sealed_object_opens_with_any_fleet_key_only_at_its_own_path() {
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
        let moved = ObjectBinding { key: "facts/said/b", ..PLACE };
        assert_eq!(open(&[old], moved), Err(NotOpened::NotAuthentic));
        let other = ObjectBinding { fleet: FleetId([2; 16]), ..PLACE };
        assert_eq!(open(&[old], other), Err(NotOpened::OtherFleet));
        assert_eq!(seal_object(&FactKeys::new([]), PLACE, [7; 32], b"text"), None);
    }

    #[test]
    fn any_changed_bit_or_length_is_rejected() {
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
