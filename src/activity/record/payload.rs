//! The kept head of a payload, and how long the whole was. Pure.

/// The head of a payload, copied: a record never pins a result's buffers (ACT-2).
///
/// Invariant: `total` is not less than what is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    bytes: Box<[u8]>,
    total: u64,
}

impl Payload {
    /// A head that was already copied from a body of `total` bytes.
    #[must_use]
    pub fn from_head(bytes: Box<[u8]>, total: u64) -> Self {
        let total = total.max(bytes.len() as u64);
        Self { bytes, total }
    }

    /// The bytes that were kept.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The length of the whole, in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// True when not all bytes were kept.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.total > self.bytes.len() as u64
    }

    /// The same, borrowed.
    #[must_use]
    pub fn borrowed(&self) -> PayloadRef<'_> {
        PayloadRef { bytes: &self.bytes, total: self.total }
    }

    /// True when the whole was empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// A payload whose bytes are borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadRef<'a> {
    /// The bytes that were kept.
    pub bytes: &'a [u8],
    /// The length of the whole, in bytes.
    pub total: u64,
}

impl<'a> PayloadRef<'a> {
    /// At most the first `limit` bytes of a whole.
    #[must_use]
    pub fn cut(whole: &'a [u8], limit: usize) -> Self {
        let bytes = whole.get(..limit).unwrap_or(whole);
        Self { bytes, total: whole.len() as u64 }
    }

    /// True when not all bytes were kept.
    #[must_use]
    pub fn is_cut(self) -> bool {
        self.total > self.bytes.len() as u64
    }

    /// The same with its own memory.
    #[must_use]
    pub fn to_owned(self) -> Payload {
        Payload::from_head(self.bytes.into(), self.total)
    }
}
