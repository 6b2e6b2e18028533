//! Ids of records and of logs, and the hashes that chain the records. Pure.

use std::fmt;

/// A record's id: a ULID whose time never decreases and whose random part is the sequence number and
/// a tag of the node. Ids grow in store order, and a record is found by its id without an index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u128);

impl Id {
    const SEQ_BITS: u32 = 48;
    const NODE_BITS: u32 = 32;

    /// The id of record `seq`, stored at `time_ms` (milliseconds since 1970) on `node`.
    #[must_use]
    pub fn new(time_ms: u64, seq: u64, node: NodeId) -> Self {
        let time = u128::from(time_ms & ((1 << 48) - 1)) << (Self::SEQ_BITS + Self::NODE_BITS);
        let seq = u128::from(seq & ((1 << Self::SEQ_BITS) - 1)) << Self::NODE_BITS;
        Self(time | seq | u128::from(node.tag()))
    }

    /// The sequence number in it.
    #[must_use]
    pub fn seq(self) -> u64 {
        ((self.0 >> Self::NODE_BITS) as u64) & ((1 << Self::SEQ_BITS) - 1)
    }

    /// When the record was stored, milliseconds since 1970.
    #[must_use]
    pub fn time_ms(self) -> u64 {
        (self.0 >> (Self::SEQ_BITS + Self::NODE_BITS)) as u64
    }

    /// The 16 bytes on disk.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The id of these 16 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// Reads the 26 characters of a ULID.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        ulid::Ulid::from_string(text).ok().map(|ulid| Self(ulid.0))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ulid::Ulid(self.0).fmt(f)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The identity of a log: made at random once for each data folder.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId(pub [u8; 16]);

impl NodeId {
    fn tag(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A link of the chain: BLAKE3 over a record's canonical bytes and its predecessor's hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Reads what [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (one, other) = text.split_at_checked(32)?;
        let half = |text| u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes);
        let hash = Self([half(one)?, half(other)?].as_flattened().try_into().ok()?);
        (hash.to_string() == text).then_some(hash)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_with_time_and_then_with_seq() {
        let node = NodeId([7; 16]);
        let ids = [(1, 1), (1, 2), (2, 3), (2, u64::from(u32::MAX) + 5)];
        let made: Vec<_> = ids.iter().map(|&(ms, seq)| Id::new(ms, seq, node)).collect();
        assert!(made.is_sorted());
        assert!(made.windows(2).all(|w| w[0].to_string() < w[1].to_string()));
        for (id, (ms, seq)) in made.iter().zip(ids) {
            assert_eq!((id.time_ms(), id.seq()), (ms, seq));
            assert_eq!(Id::parse(&id.to_string()), Some(*id));
        }
    }
}
