//! A segment of a node's chain: records that follow each other, as a table, with the node's checkpoint at its end. How one is
//! made, where it lies, and what one must be to be believed. Pure.
//!
//! ```text
//! nodes/NODE/segments/date=2026-11-23/FIRST-LAST-HEAD.parquet
//! ```
//!
//! FIRST and LAST are numbers of 20 digits, so that a listing is in the chain's order; HEAD is the beginning of the last
//! record's hash, so that two chains under one name cannot overwrite each other. The day is that on which the first record
//! was stored. The same records after the same segment give the same name and the same bytes.

use std::cmp::Ordering;
use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use super::checkpoint::{Checkpoint, CheckpointError, CheckpointHash, sha256};
use super::columns::{self, TableError};
use super::hash_tree::{self, TreeHash};
use super::node_key::NodeKey;
use super::record_rows::{BadRecord, RecordRows};
use super::signed_note::VerifierKey;
use crate::activity::record::Hash;

/// Under what the checkpoint stands in the table's footer.
pub const CHECKPOINT_NOTE: &str = "mcpproxy.checkpoint";
/// Characters of the hash in a name.
const HEAD_CHARS: usize = 16;
const SEQ_DIGITS: usize = 20;
const SUFFIX: &str = ".parquet";

/// Why a segment is not to be believed.
#[derive(Debug, Error)]
pub enum SegmentError {
    /// Its table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// One of its records.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// Its checkpoint.
    #[error("its checkpoint cannot be used: {0}")]
    Checkpoint(#[from] CheckpointError),
    /// Its checkpoint is of other records.
    #[error("its checkpoint is not that of its records: {0} differs")]
    Disagrees(&'static str),
}

/// The name of a segment in the folder of its node's segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentName {
    /// Days since 1970 of its first record.
    pub day: i32,
    /// Its first record.
    pub first: u64,
    /// Its last record.
    pub last: u64,
    /// The beginning of the last record's hash.
    head: Box<str>,
}

impl SegmentName {
    /// The name of the segment that ends in `checkpoint` and begins on that day.
    #[must_use]
    pub fn of(checkpoint: &Checkpoint, day: i32) -> Self {
        let head = checkpoint.head.to_string();
        let head = head.get(..HEAD_CHARS).unwrap_or_default().into();
        Self { day, first: checkpoint.first, last: checkpoint.last, head }
    }

    /// Reads what [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (day, name) = text.strip_prefix("date=")?.split_once('/')?;
        let mut parts = name.strip_suffix(SUFFIX)?.split('-');
        let (first, last, head) = (parts.next()?, parts.next()?, parts.next()?);
        let day: jiff::civil::Date = day.parse().ok()?;
        let read = Self {
            day: days_of(day),
            first: first.parse().ok()?,
            last: last.parse().ok()?,
            head: head.into(),
        };
        (read.to_string() == text && read.first <= read.last && head.len() == HEAD_CHARS)
            .then_some(read)
    }

    /// The name of the object with this key in the folder of a node's segments.
    #[must_use]
    pub fn of_key(folder: &str, key: &str) -> Option<Self> {
        Self::parse(key.strip_prefix(folder)?.strip_prefix('/')?)
    }

    /// Whether it is the name of the segment with this checkpoint, apart from the day.
    #[must_use]
    pub fn is_of(&self, checkpoint: &Checkpoint) -> bool {
        *self == Self::of(checkpoint, self.day)
    }

    /// Whether both are names of the same segment, apart from the day.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.first, self.last, &self.head) == (other.first, other.last, &other.head)
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { day, first, last, head } = self;
        let day = date_of(*day);
        write!(f, "date={day}/{first:0SEQ_DIGITS$}-{last:0SEQ_DIGITS$}-{head}{SUFFIX}")
    }
}

impl Ord for SegmentName {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |name: &Self| (name.first, name.last, name.head.clone(), name.day);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for SegmentName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The day of a moment, milliseconds since 1970, in days since then.
#[must_use]
pub fn day_of(millis: u64) -> i32 {
    i32::try_from(millis / (24 * 3600 * 1000)).unwrap_or(i32::MAX).min(MAX_DAY)
}

/// The last day of the year 9999.
const MAX_DAY: i32 = 2_932_896;

fn date_of(day: i32) -> jiff::civil::Date {
    let epoch = jiff::civil::date(1970, 1, 1);
    epoch.saturating_add(jiff::Span::new().days(i64::from(day.clamp(0, MAX_DAY))))
}

fn days_of(date: jiff::civil::Date) -> i32 {
    date.duration_since(jiff::civil::date(1970, 1, 1)).as_hours().div_euclid(24) as i32
}

/// The day as it stands in names.
#[must_use]
pub fn day_folder(day: i32) -> String {
    format!("date={}", date_of(day))
}

/// A segment that is ready to be put into the store.
#[derive(Clone, Debug)]
pub struct SealedSegment {
    /// Where it goes.
    pub name: SegmentName,
    /// The whole file.
    pub bytes: Bytes,
    /// What its node says of it.
    pub checkpoint: Checkpoint,
}

/// Who seals, and behind what.
#[derive(Clone, Copy, Debug)]
pub struct SealedBy<'a> {
    /// The node's key.
    pub key: &'a NodeKey,
    /// The public half, whose name is that of the chain.
    pub verifier: &'a VerifierKey,
    /// The node's name.
    pub node: &'a str,
    /// The hash that the first record follows.
    pub after: Hash,
    /// The checkpoint before.
    pub previous: Option<CheckpointHash>,
}

fn tree(records: &RecordRows) -> Vec<TreeHash> {
    records.iter().map(|row| hash_tree::leaf(&row.hash.0)).collect()
}

/// Makes the segment of these records. What is not a chain is not signed.
///
/// # Errors
///
/// [`SegmentError`] for a record that is not what the chain says, or no records.
pub fn seal(records: &RecordRows, by: SealedBy<'_>) -> Result<SealedSegment, SegmentError> {
    records.check_chain(by.after)?;
    let (Some(first), Some((last, head))) = (records.iter().next(), records.last()) else {
        return Err(SegmentError::Disagrees("their number"));
    };
    let mut checkpoint = Checkpoint {
        origin: by.verifier.name().into(),
        last,
        head,
        log: records.log(),
        first: first.seq,
        after: by.after,
        tree: hash_tree::root(&tree(records)),
        data: [0; 32],
        previous: by.previous,
    };
    let bytes = columns::encode(records, by.node, |data| {
        checkpoint.data = sha256(data);
        vec![(CHECKPOINT_NOTE, by.key.sign(&checkpoint, by.verifier))]
    })?;
    let name = SegmentName::of(&checkpoint, day_of(records.first_stored_ms()));
    Ok(SealedSegment { name, bytes: bytes.into(), checkpoint })
}

/// A segment that was read and is what its checkpoint says.
#[derive(Debug)]
pub struct OpenedSegment {
    /// Its records.
    pub records: RecordRows,
    /// What its node says of it.
    pub checkpoint: Checkpoint,
    /// The same, as the node signed it.
    pub note: String,
}

impl OpenedSegment {
    /// The hashes from the record at `at` to the root of the tree.
    #[must_use]
    pub fn path(&self, at: usize) -> Vec<TreeHash> {
        hash_tree::path(&tree(&self.records), at)
    }
}

/// Reads a segment: the table agrees with its records, the records with their chain, the chain with the checkpoint, and the
/// checkpoint is signed by `key`.
///
/// # Errors
///
/// [`SegmentError`].
pub fn open(bytes: &Bytes, key: &VerifierKey) -> Result<OpenedSegment, SegmentError> {
    let mut footer = columns::footer(bytes)?;
    let note = footer.notes.remove(CHECKPOINT_NOTE).unwrap_or_default();
    let checkpoint = Checkpoint::open(&note, key)?;
    // By some of them other programs take columns for something else.
    if !footer.notes.is_empty() {
        return Err(SegmentError::Disagrees("what is noted"));
    }
    // Before anything of it is read that its node has not signed.
    if bytes.get(..footer.data_bytes).map(sha256) != Some(checkpoint.data) {
        return Err(SegmentError::Disagrees("its data"));
    }
    let table = columns::decode(bytes, &footer)?;
    let records = table.rows;
    records.check_chain(checkpoint.after)?;
    let first = records.iter().next().map(|row| row.seq);
    let node = checkpoint.origin.rsplit('/').next().unwrap_or_default();
    for (what, agrees) in [
        ("the log", records.log() == checkpoint.log),
        ("the first record", first == Some(checkpoint.first)),
        ("the last record", records.last() == Some((checkpoint.last, checkpoint.head))),
        ("the tree", hash_tree::root(&tree(&records)) == checkpoint.tree),
        ("the node", *table.node == *node),
    ] {
        if !agrees {
            return Err(SegmentError::Disagrees(what));
        }
    }
    Ok(OpenedSegment { records, checkpoint, note })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::examples::{ExampleLog, sealed_by};

    #[test]
    fn names_come_back_and_list_in_the_order_of_the_chain() {
        let checkpoint = crate::fleet::checkpoint::tests::example();
        let name = SegmentName::of(&checkpoint, day_of(1_767_225_600_000));
        let text =
            "date=2026-01-01/00000000000000004200-00000000000000004711-0101010101010101.parquet";
        assert_eq!(name.to_string(), text);
        assert_eq!(SegmentName::parse(text), Some(name.clone()));
        assert!(name.is_of(&checkpoint));
        assert!(!name.is_of(&Checkpoint { head: Hash([2; 32]), ..checkpoint.clone() }));
        for other in [
            "00000000000000004200-00000000000000004711-0101010101010101.parquet",
            "date=2026-01-01/4200-00000000000000004711-0101010101010101.parquet",
            "date=2026-01-32/00000000000000004200-00000000000000004711-0101010101010101.parquet",
            "date=2026-01-01/00000000000000004711-00000000000000004200-0101010101010101.parquet",
            "date=2026-01-01/00000000000000004200-00000000000000004711-01010101.parquet",
            "date=2026-01-01/00000000000000004200-00000000000000004711-0101010101010101.parquet.tmp",
        ] {
            assert_eq!(SegmentName::parse(other), None, "{other}");
        }
        let later = SegmentName { first: 10_000, last: 10_001, ..name.clone() };
        assert!(name < later && name.to_string() < later.to_string());
        assert_eq!(day_of(u64::MAX), MAX_DAY);
        assert_eq!(day_folder(MAX_DAY), "date=9999-12-31");
        assert_eq!(days_of(date_of(20_000)), 20_000);
    }

    #[test]
    fn a_segment_comes_back_and_the_same_records_give_the_same_bytes() {
        let mut log = ExampleLog::new(7);
        let after = log.head();
        let records = log.records(20);
        let by = sealed_by("a", after, None);
        let sealed = seal(&records, by.by()).unwrap();
        assert_eq!(seal(&records, by.by()).unwrap().bytes, sealed.bytes);
        let opened = open(&sealed.bytes, &by.verifier).unwrap();
        assert_eq!((&opened.records, &opened.checkpoint), (&records, &sealed.checkpoint));
        assert!(sealed.name.is_of(&opened.checkpoint));
        let leaf = hash_tree::leaf(&records.iter().nth(3).unwrap().hash.0);
        let root = hash_tree::root_by_path(leaf, 3, 20, &opened.path(3));
        assert_eq!(root, Some(opened.checkpoint.tree));
    }

    #[test]
    fn what_is_no_chain_is_not_signed_and_another_key_does_not_open() {
        let mut log = ExampleLog::new(7);
        let after = log.head();
        let records = log.records(3);
        let by = sealed_by("a", Hash([9; 32]), None);
        assert!(matches!(seal(&records, by.by()), Err(SegmentError::Record(bad)) if bad.seq == 1));
        let by = sealed_by("a", after, None);
        let sealed = seal(&records, by.by()).unwrap();
        let other = NodeKey::of_seed(99).verifier("f1", "a").unwrap();
        assert!(matches!(open(&sealed.bytes, &other), Err(SegmentError::Checkpoint(_))));
    }

    #[test]
    fn segments_of_other_versions_are_read_and_what_is_noted_beside_the_checkpoint_is_refused() {
        // Sealed by a node when this form was new: what the store has is read by every version.
        let key = "mcpproxy/d17c8662a3adba902b41b74658abe1a8/a+ec5c8c1e+AaN5ZarXTQXYn5Ck3jYpzFlmaYufxPh49TbYixC+XrnB";
        let key = VerifierKey::parse(key).unwrap();
        let one = Bytes::from_static(include_bytes!("../../fuzz/seeds/ledger/segment"));
        let opened = open(&one, &key).unwrap();
        assert_eq!((opened.checkpoint.first, opened.checkpoint.last), (27, 28));
        let many = Bytes::from_static(include_bytes!("../../fuzz/seeds/ledger/segment-many"));
        assert_eq!(open(&many, &key).unwrap().records.len(), 25);
        let note = opened.note.clone();
        let noted = columns::encode(&opened.records, "a", |_| {
            vec![(CHECKPOINT_NOTE, note), ("ARROW:schema", "other columns".into())]
        });
        let refused = open(&noted.unwrap().into(), &key).unwrap_err().to_string();
        assert!(refused.contains("what is noted differs"), "{refused}");
    }

    #[test]
    fn any_altered_byte_is_found() {
        let mut log = ExampleLog::new(3);
        let by = sealed_by("a", log.head(), None);
        let sealed = seal(&log.records(5), by.by()).unwrap();
        assert!(open(&sealed.bytes, &by.verifier).is_ok());
        let data = columns::footer(&sealed.bytes).unwrap().data_bytes;
        for at in 0..sealed.bytes.len() {
            let mut bytes = sealed.bytes.to_vec();
            bytes[at] ^= 1 << (at % 8);
            // In the footer, too: it says nothing that is not looked at, and nothing of it in other words.
            let opened = open(&bytes.into(), &by.verifier);
            assert!(opened.is_err(), "byte {at} was altered unseen; of data there are {data}");
        }
    }
}
