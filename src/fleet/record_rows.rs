//! Records in memory as they are sealed and exported: the canonical bytes of all in one piece, and where each lies. Pure.

use std::ops::Range;

use bytes::Bytes;
use thiserror::Error;

use crate::activity::chained::ChainedRecord;
use crate::activity::codec::{self, DecodeError};
use crate::activity::record::{Hash, Id, NodeId};

/// What is wrong with one of the records.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("record {seq} {why}")]
pub struct BadRecord {
    /// Its number.
    pub seq: u64,
    /// What is wrong, to stand behind its number.
    pub why: String,
}

/// Where one record lies, and what the log says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordPlace {
    seq: u64,
    hash: Hash,
    range: Range<usize>,
}

/// Records of one log, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordRows {
    log: NodeId,
    bytes: Bytes,
    places: Vec<RecordPlace>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRow<'a> {
    /// Its number.
    pub seq: u64,
    /// Its hash, as it is stated.
    pub hash: Hash,
    /// Its canonical bytes.
    pub canonical: &'a [u8],
}

/// Records on their way into [`RecordRows`].
#[derive(Debug)]
pub struct RecordCollector {
    log: NodeId,
    bytes: Vec<u8>,
    places: Vec<RecordPlace>,
}

impl RecordCollector {
    /// None yet, of the log with this id.
    #[must_use]
    pub fn new(log: NodeId) -> Self {
        Self { log, bytes: Vec::new(), places: Vec::new() }
    }

    /// The same, with room for so many canonical bytes more: they need not be moved while they grow up to there.
    #[must_use]
    pub fn with_room(mut self, bytes: usize) -> Self {
        self.bytes.reserve(bytes);
        self
    }

    /// The log that they are of.
    #[must_use]
    pub fn log(&self) -> NodeId {
        self.log
    }

    /// Adds a record.
    pub fn push(&mut self, record: &ChainedRecord<'_>) {
        let start = self.bytes.len();
        codec::put_canonical(&mut self.bytes, record.head, record.body);
        self.add(record.seq, record.hash, start);
    }

    /// Adds a record by its canonical bytes.
    pub fn push_canonical(&mut self, seq: u64, hash: Hash, canonical: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(canonical);
        self.add(seq, hash, start);
    }

    fn add(&mut self, seq: u64, hash: Hash, start: usize) {
        self.places.push(RecordPlace { seq, hash, range: start..self.bytes.len() });
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Their canonical bytes in all.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The number and the hash of the last one.
    #[must_use]
    pub fn last(&self) -> Option<(u64, Hash)> {
        self.places.last().map(|place| (place.seq, place.hash))
    }

    /// All that were added.
    #[must_use]
    pub fn finish(self) -> RecordRows {
        RecordRows { log: self.log, bytes: self.bytes.into(), places: self.places }
    }
}

impl RecordRows {
    /// The log that they are of.
    #[must_use]
    pub fn log(&self) -> NodeId {
        self.log
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The canonical bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = RecordRow<'_>> {
        self.places.iter().map(|place| RecordRow {
            seq: place.seq,
            hash: place.hash,
            canonical: self.bytes.get(place.range.clone()).unwrap_or_default(),
        })
    }

    /// The number and the hash of the last one.
    #[must_use]
    pub fn last(&self) -> Option<(u64, Hash)> {
        self.places.last().map(|place| (place.seq, place.hash))
    }

    /// When the first was stored, milliseconds since 1970; 0 where there is none that can be read.
    #[must_use]
    pub fn first_stored_ms(&self) -> u64 {
        let first = self.iter().next().and_then(|row| row.id(self.log).ok());
        first.map_or(0, Id::time_ms)
    }

    /// Checks that they follow each other without a hole, the first of them after a record with hash `after`, and that each
    /// hash is that of the record's bytes.
    ///
    /// # Errors
    ///
    /// The first that is not as the chain says.
    pub fn check_chain(&self, after: Hash) -> Result<(), BadRecord> {
        let (mut prev, mut next) = (after, None);
        for RecordRow { seq, hash, canonical } in self.iter() {
            let bad = |why: &str| BadRecord { seq, why: why.into() };
            if next.is_some_and(|next| next != seq) {
                return Err(bad("does not follow the one before it"));
            }
            let (head, body) = codec::split_canonical(canonical)
                .map_err(|error| bad(&format!("is not whole: it {error}")))?;
            if codec::chain(prev, self.log, seq, head, body) != hash {
                return Err(bad("has a hash that is not that of its bytes"));
            }
            (prev, next) = (hash, seq.checked_add(1));
        }
        Ok(())
    }
}

impl RecordRow<'_> {
    /// Its id, in the log with that id.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if its bytes are not whole.
    pub fn id(&self, log: NodeId) -> Result<Id, DecodeError> {
        let (head, _) = codec::split_canonical(self.canonical)?;
        Ok(Id::new(codec::decode_head(head)?.stored_ms, self.seq, log))
    }
}
