//! Segments: runs of 1024 records and the data derived from them (index postings as bitmaps, counters,
//! bounds). Pure.
//!
//! Derived data is written once, when the segment is full.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::bytes::{DecodeError, Reader, VERSION, put_bytes, put_varint};
use super::codec::HeadRef;
use super::query::Term;
use super::stats::{BUCKET_US, Stats};

/// Records per segment.
pub(crate) const RECORDS: u64 = 1 << BITS;
const BITS: u32 = 10;
/// Maximum number of matches encoded as positions; up to this number, positions are shorter than a bitmap.
const MAX_POSITIONS: usize = 63;
const WORDS: usize = (RECORDS / u64::BITS as u64) as usize;

pub(crate) const fn of(seq: u64) -> u64 {
    seq >> BITS
}

pub(crate) const fn start(segment: u64) -> u64 {
    segment << BITS
}

/// Bitmap over the records of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bitmap([u64; WORDS]);

impl Bitmap {
    pub(crate) const ALL: Self = Self([u64::MAX; WORDS]);

    /// Adds a record.
    pub(crate) fn set(&mut self, seq: u64) {
        let place = seq % RECORDS;
        if let Some(word) = self.0.get_mut((place / 64) as usize) {
            *word |= 1 << (place % 64);
        }
    }

    pub(crate) fn or(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
        self
    }

    pub(crate) fn and(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a &= b);
        self
    }

    /// Restricts the bitmap to the records of `segment` in `from..below`.
    pub(crate) fn within(mut self, segment: u64, from: u64, below: u64) -> Self {
        let base = start(segment);
        for (word, bits) in (base..).step_by(64).zip(&mut self.0) {
            let low = from.saturating_sub(word).min(64) as u32;
            let high = below.saturating_sub(word).min(64) as u32;
            *bits &= mask(high) & !mask(low);
        }
        self
    }

    /// Removes the records from `first` to `last`.
    pub(crate) fn without(self, segment: u64, first: u64, last: u64) -> Self {
        let mut rest = self;
        let removed = self.within(segment, first, last.saturating_add(1));
        rest.0.iter_mut().zip(removed.0).for_each(|(word, removed)| *word &= !removed);
        rest
    }

    /// Number of records.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Sequence numbers in `segment`, newest first.
    pub(crate) fn newest_first(self, segment: u64) -> impl Iterator<Item = u64> {
        let base = start(segment);
        self.0.into_iter().enumerate().rev().flat_map(move |(place, mut word)| {
            std::iter::from_fn(move || {
                let bit = word.checked_ilog2()?;
                word ^= 1 << bit;
                Some(base + place as u64 * 64 + u64::from(bit))
            })
        })
    }

    /// Sequence numbers in `segment`, oldest first.
    pub(crate) fn oldest_first(self, segment: u64) -> impl Iterator<Item = u64> {
        let base = start(segment);
        self.0.into_iter().enumerate().flat_map(move |(place, mut word)| {
            std::iter::from_fn(move || {
                let bit = word.checked_ilog2().map(|_| word.trailing_zeros())?;
                word &= word - 1;
                Some(base + place as u64 * 64 + u64::from(bit))
            })
        })
    }

    /// Finds a term's posting in its encoded bucket.
    pub fn find(bucket: &[u8], term: Term) -> Result<Option<Self>, DecodeError> {
        let mut reader = Reader(bucket);
        reader.version()?;
        while !reader.0.is_empty() {
            let hash = reader.array()?;
            let posting = reader.bytes()?;
            if hash == term.hash() {
                return Self::decode(posting).map(Some);
            }
        }
        Ok(None)
    }

    /// Decodes a posting: positions or a whole bitmap.
    fn decode(posting: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(posting);
        let mut bitmap = Self::default();
        if reader.0.len() > 2 * MAX_POSITIONS {
            for word in &mut bitmap.0 {
                *word = u64::from_be_bytes(reader.array()?);
            }
            reader.end()?;
        } else {
            while !reader.0.is_empty() {
                let place = u64::from(u16::from_be_bytes(reader.array()?));
                if place >= RECORDS {
                    return Err(DecodeError::Value);
                }
                bitmap.set(place);
            }
        }
        Ok(bitmap)
    }
}

fn mask(bits: u32) -> u64 {
    1u64.checked_shl(bits).map_or(u64::MAX, |bit| bit - 1)
}

/// Bounds of a full segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBounds {
    /// Earliest start time of a record, in microseconds since 1970.
    pub earliest: u64,
    /// Latest start time of a record.
    pub latest: u64,
    /// Storage time of the last record, in milliseconds since 1970.
    pub stored_ms: u64,
    /// Size of heads and bodies before compression.
    pub bytes: u64,
}

impl SegmentBounds {
    pub(super) const NONE: Self = Self { earliest: u64::MAX, latest: 0, stored_ms: 0, bytes: 0 };

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        for value in [self.earliest, self.latest, self.stored_ms, self.bytes] {
            put_varint(&mut out, value);
        }
        out
    }

    /// Decodes the output of [`Self::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        reader.version()?;
        let mut next = || reader.varint();
        let bounds =
            Self { earliest: next()?, latest: next()?, stored_ms: next()?, bytes: next()? };
        reader.end()?;
        Ok(bounds)
    }
}

/// Identity hasher, since a [`Term`] is a hash already.
#[derive(Debug, Default)]
struct TermHasher(u64);

impl Hasher for TermHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Builds a segment's index, counters and bounds from its records, in any order.
#[derive(Debug)]
pub(crate) struct Builder {
    terms: HashMap<Term, Vec<u16>, BuildHasherDefault<TermHasher>>,
    buckets: BTreeMap<u64, Stats>,
    bounds: SegmentBounds,
}

impl Default for Builder {
    fn default() -> Self {
        Self { terms: HashMap::default(), buckets: BTreeMap::new(), bounds: SegmentBounds::NONE }
    }
}

impl Builder {
    /// Adds a record of this size.
    pub(crate) fn add(&mut self, seq: u64, head: &HeadRef<'_>, bytes: usize) {
        let place = (seq % RECORDS) as u16;
        Term::of(head, |term| self.terms.entry(term).or_default().push(place));
        self.buckets.entry(head.started / BUCKET_US).or_default().add(head);
        let bounds = &mut self.bounds;
        bounds.earliest = bounds.earliest.min(head.started);
        bounds.latest = bounds.latest.max(head.started);
        bounds.stored_ms = bounds.stored_ms.max(head.stored_ms);
        bounds.bytes += bytes as u64;
    }

    /// Encoded postings by [`Term::bucket`]: each term's hash and its length-prefixed posting.
    pub(crate) fn postings(&self) -> BTreeMap<[u8; 2], Vec<u8>> {
        let mut buckets: BTreeMap<_, Vec<u8>> = BTreeMap::new();
        let mut terms: Vec<_> = self.terms.iter().collect();
        terms.sort_unstable_by_key(|(term, _)| term.hash());
        let mut posting = Vec::new();
        for (term, places) in terms {
            posting.clear();
            if places.len() <= MAX_POSITIONS {
                posting.extend(places.iter().flat_map(|place| place.to_be_bytes()));
            } else {
                let mut bitmap = Bitmap::default();
                places.iter().for_each(|place| bitmap.set(u64::from(*place)));
                posting.extend(bitmap.0.iter().flat_map(|word| word.to_be_bytes()));
            }
            let bucket = buckets.entry(term.bucket()).or_insert_with(|| vec![VERSION]);
            bucket.extend(term.hash());
            put_bytes(bucket, &posting);
        }
        buckets
    }

    /// Counters of every non-empty time bucket.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (u64, &Stats)> {
        self.buckets.iter().filter(|(_, stats)| !stats.is_empty()).map(|(at, stats)| (*at, stats))
    }

    pub(crate) fn bounds(&self) -> SegmentBounds {
        self.bounds
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_round_trip() {
        let bounds = SegmentBounds { earliest: 3, latest: 1 << 50, stored_ms: 9, bytes: 1 << 33 };
        assert_eq!(SegmentBounds::decode(&bounds.encode()), Ok(bounds));
        assert!(SegmentBounds::decode(&bounds.encode()[..3]).is_err());
    }

    proptest! {
        #[test]
        fn bitmap_behaves_like_a_set(
            places in proptest::collection::btree_set(0..RECORDS, 0..200),
            others in proptest::collection::btree_set(0..RECORDS, 0..200),
            from in 0..2 * RECORDS,
            below in 0..4 * RECORDS,
        ) {
            let make = |places: &BTreeSet<u64>| {
                let mut bitmap = Bitmap::default();
                places.iter().for_each(|place| bitmap.set(*place));
                bitmap
            };
            let list = |bitmap: Bitmap| bitmap.newest_first(0).collect::<Vec<_>>();
            let set = |places: BTreeSet<u64>| places.into_iter().rev().collect::<Vec<_>>();
            let (a, b) = (make(&places), make(&others));
            prop_assert_eq!(list(a), set(places.clone()));
            prop_assert_eq!(list(a.and(b)), set(&places & &others));
            prop_assert_eq!(list(a.or(b)), set(&places | &others));
            let mut forward: Vec<_> = a.oldest_first(0).collect();
            forward.reverse();
            prop_assert_eq!(forward, set(places.clone()));
            prop_assert_eq!(a.count(), places.len() as u64);
            let kept = places.into_iter().filter(|p| (from..below).contains(&(p + RECORDS)));
            let kept = kept.map(|p| p + RECORDS).rev().collect::<Vec<_>>();
            prop_assert_eq!(a.within(1, from, below).newest_first(1).collect::<Vec<_>>(), kept);
        }
    }
}
