//! The identity of a server, for what counts or marks servers without carrying their names.
//!
//! A name keeps its id as long as the process lives, whatever servers come and go, and no other name ever has it.
//! So what was counted under an id is of that name, also after the config's list has changed.

use std::collections::HashMap;
use std::sync::Arc;

/// A server's identity: small, and dense from 0 in the order in which names became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(u32);

impl ServerId {
    /// For a table by ids.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Bytes of the hash of a server's name that make its files' names.
const NAME_HASH_BYTES: usize = 16;

/// What the names of a server's files begin with: a hash, since a server may be called anything.
#[must_use]
pub fn file_stem(server: &str) -> String {
    let hash = blake3::hash(server.as_bytes()).to_hex();
    hash.get(..2 * NAME_HASH_BYTES).unwrap_or(&hash).to_owned()
}

/// The ids that were given. As many as there were names in all configs of this process.
#[derive(Debug, Default)]
pub struct ServerIds(HashMap<Arc<str>, ServerId>);

impl ServerIds {
    /// The id of that name, which it keeps.
    pub fn assign(&mut self, name: &Arc<str>) -> ServerId {
        let next = ServerId(u32::try_from(self.0.len()).unwrap_or(u32::MAX));
        *self.0.entry(Arc::clone(name)).or_insert(next)
    }

    /// The id of that name, if it ever was a server's.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<ServerId> {
        self.0.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_id_and_no_other_name_has_it() {
        let mut ids = ServerIds::default();
        let [a, b, c] = ["a", "b", "c"].map(Arc::<str>::from);
        let of_a = ids.assign(&a);
        let of_c = ids.assign(&c);
        // The list of another config: one is gone, one is new between those that stay.
        assert_eq!([&b, &c].map(|name| ids.assign(name).index()), [2, 1]);
        assert_eq!((ids.assign(&a), ids.get("a")), (of_a, Some(of_a)), "it comes back");
        assert_ne!(of_a, of_c);
        assert_eq!(ids.get("d"), None);
    }
}
