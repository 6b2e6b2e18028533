//! The tree of RFC 6962 over the hashes of a segment's records: its root stands in the segment's checkpoint, so that
//! one record is proven by a few hashes instead of all records beside it. Pure.
//!
//! A leaf is the hash of one record as the chain has it. SHA-256, with the prefixes 0 for leaves and 1 for nodes.

use ring::digest::{Context, SHA256};

/// A hash of the tree.
pub type TreeHash = [u8; 32];

const LEAF: u8 = 0;
const NODE: u8 = 1;
/// Most hashes of a path: that of a tree of 2³² leaves.
pub const MAX_PATH: usize = 32;

fn hash(prefix: u8, parts: &[TreeHash]) -> TreeHash {
    let mut context = Context::new(&SHA256);
    context.update(&[prefix]);
    context.update(parts.as_flattened());
    let mut out = [0; 32];
    out.iter_mut().zip(context.finish().as_ref()).for_each(|(to, from)| *to = *from);
    out
}

/// The hash of a leaf.
#[must_use]
pub fn leaf(record: &[u8; 32]) -> TreeHash {
    hash(LEAF, std::slice::from_ref(record))
}

/// The levels above the leaves, each half as long: what has no neighbour goes up as it is, which gives
/// the tree of the RFC.
fn above(level: &[TreeHash]) -> Vec<TreeHash> {
    let join = |pair: &[TreeHash]| match pair {
        [one] => *one,
        pair => hash(NODE, pair),
    };
    level.chunks(2).map(join).collect()
}

/// The root over these leaves; that of no leaves is the hash of nothing.
#[must_use]
pub fn root(leaves: &[TreeHash]) -> TreeHash {
    let mut level = leaves.to_vec();
    while level.len() > 1 {
        level = above(&level);
    }
    level.first().copied().unwrap_or_else(|| {
        let mut out = [0; 32];
        let empty = ring::digest::digest(&SHA256, b"");
        out.iter_mut().zip(empty.as_ref()).for_each(|(to, from)| *to = *from);
        out
    })
}

/// The neighbours on the way from leaf `at` to the root, lowest first.
#[must_use]
pub fn path(leaves: &[TreeHash], at: usize) -> Vec<TreeHash> {
    let (mut level, mut at, mut path) = (leaves.to_vec(), at, Vec::new());
    while level.len() > 1 {
        path.extend(level.get(at ^ 1).copied());
        level = above(&level);
        at /= 2;
    }
    path
}

/// The root that leaf `at` of `count` has with this path; `None` if the path is not as long as its way.
#[must_use]
pub fn root_by_path(leaf: TreeHash, at: u64, count: u64, path: &[TreeHash]) -> Option<TreeHash> {
    if at >= count {
        return None;
    }
    let (mut found, mut at, mut width, mut rest) = (leaf, at, count, path.iter());
    while width > 1 {
        if at ^ 1 < width {
            let neighbour = rest.next()?;
            let pair = if at & 1 == 0 { [found, *neighbour] } else { [*neighbour, found] };
            found = hash(NODE, &pair);
        }
        at /= 2;
        width = width.div_ceil(2);
    }
    rest.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The definition of the RFC, word for word.
    fn by_definition(leaves: &[TreeHash]) -> TreeHash {
        match leaves {
            [one] => *one,
            _ => {
                let mut k = 1;
                while k * 2 < leaves.len() {
                    k *= 2;
                }
                let (left, right) = leaves.split_at(k);
                hash(NODE, &[by_definition(left), by_definition(right)])
            }
        }
    }

    #[test]
    fn a_tree_of_nothing_has_the_root_of_the_rfc() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hex(&root(&[])), empty);
        // SHA-256 of one zero byte: the hash of an empty leaf.
        let leaf = "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d";
        assert_eq!(hex(&hash(LEAF, &[])), leaf);
    }

    proptest! {
        #[test]
        fn every_leaf_has_a_path_and_no_other_leaf_has_it(
            records in prop::collection::vec(any::<[u8; 32]>(), 1..70),
        ) {
            let leaves: Vec<_> = records.iter().map(leaf).collect();
            let (root, count) = (root(&leaves), leaves.len() as u64);
            prop_assert_eq!(root, by_definition(&leaves));
            for (at, one) in leaves.iter().enumerate() {
                let path = path(&leaves, at);
                prop_assert!(path.len() <= MAX_PATH);
                let at = at as u64;
                prop_assert_eq!(root_by_path(*one, at, count, &path), Some(root));
                prop_assert_eq!(root_by_path(*one, count, count, &path), None);
                let mut longer = path.clone();
                longer.push(root);
                prop_assert_eq!(root_by_path(*one, at, count, &longer), None);
                if let Some(first) = path.first() {
                    prop_assert_eq!(root_by_path(*one, at, count, &path[1..]), None);
                    let mut other = path.clone();
                    other[0][0] ^= 1;
                    prop_assert_ne!(root_by_path(*one, at, count, &other), Some(root));
                    prop_assert_ne!(root_by_path(*first, at, count, &path), Some(root));
                }
            }
        }
    }
}
