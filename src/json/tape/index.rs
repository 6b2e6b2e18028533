//! Keys of objects: no two alike, and quickly found.
//!
//! Deliberately no hash table: a document cannot be made to collide in a short or a sorted list.

use std::cmp::Ordering;

use simd_json::Node;

use super::fault::TapeFault;
use super::nodes::{after, key_at, pointer};

/// Objects with more members than this have their keys sorted.
pub(super) const NARROW: usize = 16;

/// Spreads marks over the bits of a number: the golden ratio, odd.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// A name to look up in many objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    text: Box<str>,
    mark: u64,
}

impl Name {
    /// Prepares `text` for being looked up.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), mark: mark(text) }
    }
}

/// The keys of all objects of one document.
pub(super) struct KeyIndex {
    /// For the node of each object, where its keys begin. What stands at other nodes means
    /// nothing.
    places: Vec<u32>,
    /// The keys, object by object: in the document's order, or sorted where there are many.
    keys: Vec<Key>,
}

/// One key: what most names differ in already, and its node.
#[derive(Clone, Copy)]
struct Key {
    /// The [`mark`], or the [`prefix`] where keys are sorted.
    mark: u64,
    node: u32,
}

impl KeyIndex {
    /// No object is indexed.
    pub(super) const fn empty() -> Self {
        Self { places: Vec::new(), keys: Vec::new() }
    }

    /// Bytes held.
    pub(super) fn footprint(&self) -> usize {
        self.places.capacity() * size_of::<u32>() + self.keys.capacity() * size_of::<Key>()
    }

    /// Indexes the objects of `nodes`, and refuses a duplicate key in any of them.
    pub(super) fn fill(&mut self, nodes: &[Node<'_>]) -> Result<(), TapeFault> {
        self.keys.clear();
        if self.places.len() < nodes.len() {
            self.places.resize(nodes.len(), 0);
        }
        for ((at, node), place) in nodes.iter().enumerate().zip(&mut self.places) {
            let Node::Object { len, .. } = *node else { continue };
            *place = self.keys.len() as u32;
            let twin = if len > NARROW {
                sort(&mut self.keys, nodes, at as u32, len)
            } else {
                list(&mut self.keys, nodes, at as u32, len)
            };
            if let Some(key) = twin {
                return Err(TapeFault::DuplicateKey {
                    object: pointer(nodes, at as u32),
                    name: key_at(nodes, key).to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The value of member `name` of the object at `object`, which has `len` members.
    pub(super) fn find(
        &self,
        nodes: &[Node<'_>],
        object: u32,
        len: usize,
        name: &Name,
    ) -> Option<u32> {
        self.find_marked(nodes, object, len, &name.text, name.mark)
    }

    /// The same for a name that is looked up once.
    pub(super) fn find_once(
        &self,
        nodes: &[Node<'_>],
        object: u32,
        len: usize,
        name: &str,
    ) -> Option<u32> {
        self.find_marked(nodes, object, len, name, mark(name))
    }

    fn find_marked(
        &self,
        nodes: &[Node<'_>],
        object: u32,
        len: usize,
        name: &str,
        mark: u64,
    ) -> Option<u32> {
        let first = *self.places.get(object as usize)? as usize;
        let keys = self.keys.get(first..first + len)?;
        let key = if len > NARROW {
            let head = prefix(name);
            keys.get(keys.binary_search_by(|key| order(nodes, key, head, name)).ok()?)?
        } else {
            keys.iter().find(|key| key.mark == mark && key_at(nodes, key.node) == name)?
        };
        Some(key.node + 1)
    }
}

/// Lists the keys of a narrow object; one that stood there before. On its own, for its registers.
#[inline(never)]
fn list(keys: &mut Vec<Key>, nodes: &[Node<'_>], object: u32, len: usize) -> Option<u32> {
    let first = keys.len();
    let mut node = object + 1;
    // A bit for each key: one whose bit is still free needs no comparing.
    let mut taken = 0_u64;
    for _ in 0..len {
        let name = key_at(nodes, node);
        let mark = mark(name);
        let bit = 1 << (mark.wrapping_mul(SPREAD) >> 58);
        if taken & bit != 0 {
            let alike = |other: &Key| other.mark == mark && key_at(nodes, other.node) == name;
            if keys.get(first..)?.iter().any(alike) {
                return Some(node);
            }
        }
        taken |= bit;
        keys.push(Key { mark, node });
        node = after(nodes, node + 1);
    }
    None
}

/// Sorts the keys of a wide object; equal ones end up side by side.
#[inline(never)]
fn sort(keys: &mut Vec<Key>, nodes: &[Node<'_>], object: u32, len: usize) -> Option<u32> {
    let first = keys.len();
    let mut node = object + 1;
    for _ in 0..len {
        keys.push(Key { mark: prefix(key_at(nodes, node)), node });
        node = after(nodes, node + 1);
    }
    let keys = keys.get_mut(first..)?;
    keys.sort_unstable_by(|a, b| order(nodes, a, b.mark, key_at(nodes, b.node)));
    keys.windows(2).find_map(|pair| match pair {
        [a, b] if order(nodes, a, b.mark, key_at(nodes, b.node)).is_eq() => Some(b.node),
        _ => None,
    })
}

fn order(nodes: &[Node<'_>], key: &Key, prefix: u64, name: &str) -> Ordering {
    key.mark.cmp(&prefix).then_with(|| key_at(nodes, key.node).cmp(name))
}

/// The first eight bytes, so that comparing the numbers compares the strings.
fn prefix(name: &str) -> u64 {
    let mut head = [0; 8];
    for (to, from) in head.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    u64::from_be_bytes(head)
}

/// Length, first and last bytes in one number: names of a kind differ in one of them. Equal for
/// equal names.
fn mark(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let (head, tail) = if let (Some(head), Some(tail)) = (bytes.first_chunk(), bytes.last_chunk()) {
        (u64::from_le_bytes(*head), u64::from_le_bytes(*tail))
    } else if let (Some(head), Some(tail)) = (bytes.first_chunk(), bytes.last_chunk()) {
        (u32::from_le_bytes(*head).into(), u32::from_le_bytes(*tail).into())
    } else {
        let byte = |at: usize| u64::from(bytes.get(at).copied().unwrap_or(0));
        (byte(0) | byte(1) << 8, byte(2))
    };
    (head ^ tail.rotate_left(29)).wrapping_add((bytes.len() as u64) << 56)
}
