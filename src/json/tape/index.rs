//! Keys of objects: no two alike, and quickly found where there are many.
//!
//! Deliberately no hash table: a document cannot be made to collide in a sorted list.

use std::cmp::Ordering;

use simd_json::Node;

use super::{Fault, after, key_at, pointer};

/// Objects with more members than this get a sorted index instead of a scan.
pub(super) const NARROW: usize = 16;

/// The members of the wide objects of one document, sorted by name.
pub(super) struct Index {
    wide: Vec<Wide>,
    keys: Vec<Key>,
}

/// Where the keys of the object at node `object` stand.
struct Wide {
    object: u32,
    first: u32,
    len: u32,
}

/// One key: its first bytes for fast ordering, and its node.
#[derive(Clone, Copy)]
struct Key {
    prefix: u64,
    node: u32,
}

impl Index {
    /// No object is indexed.
    pub(super) const fn empty() -> Self {
        Self { wide: Vec::new(), keys: Vec::new() }
    }

    /// Bytes held.
    pub(super) fn footprint(&self) -> usize {
        self.wide.capacity() * size_of::<Wide>() + self.keys.capacity() * size_of::<Key>()
    }

    /// Indexes the wide objects of `nodes`, and refuses a duplicate key in any object.
    pub(super) fn fill(&mut self, nodes: &[Node<'_>]) -> Result<(), Fault> {
        self.wide.clear();
        self.keys.clear();
        for (at, node) in nodes.iter().enumerate() {
            let Node::Object { len, .. } = *node else { continue };
            let duplicate = if len > NARROW {
                self.sort(nodes, at as u32, len)
            } else {
                narrow_duplicate(nodes, at as u32, len)
            };
            if let Some(key) = duplicate {
                return Err(Fault::DuplicateKey {
                    object: pointer(nodes, at as u32),
                    name: key_at(nodes, key).to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Sorts the keys of one wide object; equal ones end up side by side.
    fn sort(&mut self, nodes: &[Node<'_>], object: u32, len: usize) -> Option<u32> {
        let first = self.keys.len();
        let mut node = object + 1;
        for _ in 0..len {
            self.keys.push(Key { prefix: prefix(key_at(nodes, node)), node });
            node = after(nodes, node + 1);
        }
        let keys = self.keys.get_mut(first..)?;
        keys.sort_unstable_by(|a, b| order(nodes, a, b.prefix, key_at(nodes, b.node)));
        let twin = keys.windows(2).find_map(|pair| match pair {
            [a, b] if order(nodes, a, b.prefix, key_at(nodes, b.node)).is_eq() => Some(b.node),
            _ => None,
        });
        self.wide.push(Wide { object, first: first as u32, len: len as u32 });
        twin
    }

    /// The value of member `name` of the wide object at `object`.
    pub(super) fn find(&self, nodes: &[Node<'_>], object: u32, name: &str) -> Option<u32> {
        let wide = self.wide.binary_search_by_key(&object, |wide| wide.object).ok()?;
        let wide = self.wide.get(wide)?;
        let keys = self.keys.get(wide.first as usize..(wide.first + wide.len) as usize)?;
        let head = prefix(name);
        let key = keys.binary_search_by(|key| order(nodes, key, head, name)).ok()?;
        Some(keys.get(key)?.node + 1)
    }
}

fn order(nodes: &[Node<'_>], key: &Key, prefix: u64, name: &str) -> Ordering {
    key.prefix.cmp(&prefix).then_with(|| key_at(nodes, key.node).cmp(name))
}

/// The first eight bytes, so that comparing the numbers compares the strings.
fn prefix(name: &str) -> u64 {
    let mut head = [0; 8];
    for (to, from) in head.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    u64::from_be_bytes(head)
}

fn narrow_duplicate(nodes: &[Node<'_>], object: u32, len: usize) -> Option<u32> {
    let mut seen = [""; NARROW];
    let mut key = object + 1;
    for at in 0..len {
        let name = key_at(nodes, key);
        if seen.iter().take(at).any(|other| *other == name) {
            return Some(key);
        }
        if let Some(slot) = seen.get_mut(at) {
            *slot = name;
        }
        key = after(nodes, key + 1);
    }
    None
}
