//! Writes to several keyspaces that are done all or not at all.

use bytes::Bytes;

use super::Space;

/// Writes that are done all or not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(super) writes: Vec<(Space, Bytes, Option<Bytes>)>,
}

impl Batch {
    /// Sets a key.
    pub fn put(&mut self, space: Space, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.writes.push((space, key.into(), Some(value.into())));
    }

    /// Removes a key.
    pub fn remove(&mut self, space: Space, key: impl Into<Bytes>) {
        self.writes.push((space, key.into(), None));
    }

    /// The blocks of records in it, as pairs of heads and bodies, in order.
    pub(in crate::activity) fn blocks(&self) -> Vec<(Bytes, Bytes)> {
        let of = |space| self.writes.iter().filter(move |write| write.0 == space);
        let pairs = of(Space::Heads).zip(of(Space::Bodies));
        pairs.filter_map(|(heads, bodies)| Some((heads.2.clone()?, bodies.2.clone()?))).collect()
    }

    /// Adds what another batch writes in one keyspace.
    pub(in crate::activity) fn take_from(&mut self, other: Self, space: Space) {
        self.writes.extend(other.writes.into_iter().filter(|write| write.0 == space));
    }

    /// True when there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// The number of writes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writes.len()
    }
}
