//! Segment: consecutive log records as a Parquet table with the node's signed checkpoint in the footer. Encoding,
//! naming and verification. Pure.
//!
//! ```text
//! nodes/NODE/segments/date=2026-11-23/FIRST-LAST-HEAD.parquet
//! ```
//!
//! FIRST and LAST are record numbers of 20 digits, so that listings are in chain order. HEAD is a prefix of the last record's
//! hash, so that two chains under one name cannot overwrite each other. The day is the day on which the first record was
//! sealed. The same records after the same predecessor give the same name and the same bytes.

use std::cmp::Ordering;
use std::fmt;

use bytes::Bytes;
use mcpproxy_activity::record::Hash;
use serde::Serialize;
use thiserror::Error;
use utoipa::ToSchema;

use crate::checkpoint::{
    Checkpoint, CheckpointError, CheckpointHash, TreeHash, VerifierKey, sha256,
};
use crate::node_state::NodeKey;
use crate::parquet_table::{BadRecord, RecordRows, TableError};
use crate::{checkpoint, parquet_table};

/// Footer key of the checkpoint.
pub(crate) const CHECKPOINT_NOTE: &str = "mcpproxy.checkpoint";
/// Number of hash characters in a name.
const HEAD_CHARS: usize = 16;
const SEQ_DIGITS: usize = 20;
const SUFFIX: &str = ".parquet";

/// Reason for rejecting a segment.
#[derive(Debug, Error)]
pub enum SegmentError {
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Record(#[from] BadRecord),
    #[error("unusable checkpoint: {0}")]
    Checkpoint(#[from] CheckpointError),
    #[error("checkpoint does not match the records: {0} differs")]
    Disagrees(&'static str),
}

/// Object name of a segment in its node's segments folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentName {
    /// Day of its first record, in days since 1970.
    pub day: i32,
    pub first: u64,
    pub last: u64,
    /// Prefix of the last record's hash.
    head: Box<str>,
}

impl SegmentName {
    /// Name of the segment that ends in `checkpoint` and begins on this day.
    pub fn of(checkpoint: &Checkpoint, day: i32) -> Self {
        let head = checkpoint.head.to_string();
        let head = head.get(..HEAD_CHARS).unwrap_or_default().into();
        Self { day, first: checkpoint.first, last: checkpoint.last, head }
    }

    /// Parses a name.
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

    /// Parses the name of the object with this key in a node's segments folder.
    pub(crate) fn of_key(folder: &str, key: &str) -> Option<Self> {
        Self::parse(key.strip_prefix(folder)?.strip_prefix('/')?)
    }

    /// True if this is the name of the segment with this checkpoint, ignoring the day.
    pub fn is_of(&self, checkpoint: &Checkpoint) -> bool {
        *self == Self::of(checkpoint, self.day)
    }

    /// True if both names refer to the same segment, ignoring the day.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
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

/// Converts milliseconds since 1970 to days since 1970.
pub fn day_of(millis: u64) -> i32 {
    i32::try_from(millis / (24 * 3600 * 1000)).unwrap_or(i32::MAX).min(MAX_DAY)
}

/// Last day of the year 9999.
const MAX_DAY: i32 = 2_932_896;

fn date_of(day: i32) -> jiff::civil::Date {
    let epoch = jiff::civil::date(1970, 1, 1);
    epoch.saturating_add(jiff::Span::new().days(i64::from(day.clamp(0, MAX_DAY))))
}

fn days_of(date: jiff::civil::Date) -> i32 {
    date.duration_since(jiff::civil::date(1970, 1, 1)).as_hours().div_euclid(24) as i32
}

/// Formats the day folder in segment keys.
pub fn day_folder(day: i32) -> String {
    format!("date={}", date_of(day))
}

/// Segment that is ready for upload.
#[derive(Clone, Debug)]
pub struct SealedSegment {
    pub name: SegmentName,
    pub bytes: Bytes,
    pub checkpoint: Checkpoint,
}

/// Signing node and predecessor of a new segment.
#[derive(Clone, Copy, Debug)]
pub struct SealedBy<'a> {
    pub key: &'a NodeKey,
    /// Public key, named after the chain.
    pub verifier: &'a VerifierKey,
    pub node: &'a str,
    /// Hash that the first record follows.
    pub after: Hash,
    pub previous: Option<CheckpointHash>,
}

fn tree(records: &RecordRows) -> Vec<TreeHash> {
    records.iter().map(|row| checkpoint::leaf_hash(&row.hash.0)).collect()
}

/// Encodes and signs a segment. Records that do not form a chain are not signed.
///
/// # Errors
///
/// [`SegmentError`] if a record contradicts the chain, or there are no records.
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
        tree: checkpoint::merkle_root(&tree(records)),
        data: [0; 32],
        previous: by.previous,
    };
    let bytes = parquet_table::encode(records, by.node, |data| {
        checkpoint.data = sha256(data);
        vec![(CHECKPOINT_NOTE, by.key.sign(&checkpoint, by.verifier))]
    })?;
    let name = SegmentName::of(&checkpoint, day_of(records.first_stored_ms()));
    Ok(SealedSegment { name, bytes: bytes.into(), checkpoint })
}

/// Verified segment.
#[derive(Debug)]
pub struct OpenedSegment {
    pub records: RecordRows,
    pub checkpoint: Checkpoint,
    /// The signed note of the checkpoint.
    pub note: String,
}

impl OpenedSegment {
    /// Merkle path from the record at index `at` to the root.
    pub(crate) fn path(&self, at: usize) -> Vec<TreeHash> {
        checkpoint::merkle_path(&tree(&self.records), at)
    }
}

/// Decodes and verifies a segment: the columns match the records, the records form a chain, the chain matches the
/// checkpoint, and the checkpoint is signed by `key`.
pub fn open(bytes: &Bytes, key: &VerifierKey) -> Result<OpenedSegment, SegmentError> {
    let mut footer = parquet_table::footer(bytes)?;
    let note = footer.notes.remove(CHECKPOINT_NOTE).unwrap_or_default();
    let checkpoint = Checkpoint::open(&note, key)?;
    // Notes other than the checkpoint could change how other programs interpret the columns.
    if !footer.notes.is_empty() {
        return Err(SegmentError::Disagrees("footer metadata"));
    }
    // The signed hash of the data is verified before the data is decoded.
    if bytes.get(..footer.data_bytes).map(sha256) != Some(checkpoint.data) {
        return Err(SegmentError::Disagrees("its data"));
    }
    let table = parquet_table::decode(bytes, &footer)?;
    let records = table.rows;
    records.check_chain(checkpoint.after)?;
    let first = records.iter().next().map(|row| row.seq);
    let node = checkpoint.origin.rsplit('/').next().unwrap_or_default();
    for (what, agrees) in [
        ("the log", records.log() == checkpoint.log),
        ("the first record", first == Some(checkpoint.first)),
        ("the last record", records.last() == Some((checkpoint.last, checkpoint.head))),
        ("the tree", checkpoint::merkle_root(&tree(&records)) == checkpoint.tree),
        ("the node", *table.node == *node),
    ] {
        if !agrees {
            return Err(SegmentError::Disagrees(what));
        }
    }
    Ok(OpenedSegment { records, checkpoint, note })
}

/// Range of records that no segment contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChainGap {
    /// First missing record.
    pub first: u64,
    /// Last missing record.
    pub last: u64,
}

#[cfg(test)]
pub(crate) mod examples {
    //! Example logs for tests.

    use mcpproxy_activity::codec;
    use mcpproxy_activity::codec::{HeadRef, PayloadRef};
    use mcpproxy_activity::record::{Hash, Id, NodeId, Operation, Record, Source, Status, Type};
    use mcpproxy_activity::scan::ChainedRecord;

    use crate::checkpoint::{CheckpointHash, VerifierKey};
    use crate::node_state::NodeKey;
    use crate::parquet_table::{RecordCollector, RecordRow, RecordRows};
    use crate::segment;
    use crate::segment::{SealedBy, SealedSegment};

    /// Growing example log.
    #[derive(Clone)]
    pub(crate) struct ExampleLog {
        pub(crate) log: NodeId,
        next: u64,
        head: Hash,
    }

    impl ExampleLog {
        pub(crate) fn new(log: u8) -> Self {
            let log = NodeId([log; 16]);
            Self { log, next: 1, head: codec::genesis(log) }
        }

        /// Hash of the last record.
        pub(crate) fn head(&self) -> Hash {
            self.head
        }

        pub(crate) fn records(&mut self, count: u64) -> RecordRows {
            let mut rows = RecordCollector::new(self.log);
            for _ in 0..count {
                self.push(&mut rows, b"{\"a\":1}", b"an answer");
            }
            rows.finish()
        }

        /// Appends records and returns them decoded, oldest first.
        pub(crate) fn decoded(&mut self, count: u64) -> Vec<Record> {
            let (mut prev, log) = (self.head, self.log);
            let rows = self.records(count);
            let record = |row: RecordRow<'_>| {
                let (head, body) = codec::split_canonical(row.canonical).unwrap();
                let before = std::mem::replace(&mut prev, row.hash);
                Record::decode(log, row.seq, before, row.hash, head, Some(body)).unwrap()
            };
            rows.iter().map(record).collect()
        }

        /// Leaves a gap: the next record has a higher number and follows an unknown hash.
        pub(crate) fn skip(&mut self, by: u64) {
            self.next += by;
            self.head = Hash([self.next as u8; 32]);
        }

        pub(crate) fn push(
            &mut self,
            rows: &mut RecordCollector,
            arguments: &[u8],
            response: &[u8],
        ) {
            let seq = self.next;
            let text = format!("request-{seq}");
            let head = HeadRef {
                stored_ms: 1_767_225_600_000 + seq,
                kind: if seq.is_multiple_of(3) { Type::PolicyDecision } else { Type::ToolCall },
                source: Source::Mcp,
                principal: if seq.is_multiple_of(2) { "anonymous" } else { "token:ci" },
                status: Status::Success,
                operation: (seq.is_multiple_of(2)).then_some(Operation::Write),
                server: "github",
                tool: "create_issue",
                error: "",
                started: 1_767_225_600_000_000 + seq,
                duration_us: 12_304,
                overhead_us: 41,
                response_bytes: response.len() as u64 + 5,
                session_id: "session",
                request_id: &text,
                parent: (seq.is_multiple_of(3)).then(|| Id::new(1, seq - 1, self.log)),
                intent: PayloadRef { bytes: b"{}", total: 2 },
                variant: "call_tool_write",
                client_name: "cursor",
                repeated: 1,
            };
            self.push_head(rows, &head, arguments, response);
        }

        pub(crate) fn push_head(
            &mut self,
            rows: &mut RecordCollector,
            head: &HeadRef<'_>,
            arguments: &[u8],
            response: &[u8],
        ) {
            let (mut bytes, mut body) = (Vec::new(), Vec::new());
            codec::encode_head(head, &mut bytes);
            let cut = |bytes: &'static [u8]| PayloadRef { bytes, total: 7 };
            let part = PayloadRef { bytes: arguments, total: arguments.len() as u64 + 1 };
            let answer = PayloadRef { bytes: response, total: response.len() as u64 };
            codec::encode_body(part, answer, cut(b"{}"), &mut body);
            let hash = codec::chain(self.head, self.log, self.next, &bytes, &body);
            let (prev, seq) = (self.head, self.next);
            rows.push(&ChainedRecord { seq, prev, hash, head: &bytes, body: &body });
            (self.head, self.next) = (hash, self.next + 1);
        }
    }

    /// Signing node in tests.
    pub(crate) struct Sealing {
        key: NodeKey,
        pub(crate) verifier: VerifierKey,
        node: &'static str,
        after: Hash,
        previous: Option<CheckpointHash>,
    }

    impl Sealing {
        pub(crate) fn by(&self) -> SealedBy<'_> {
            let Self { key, verifier, node, after, previous } = self;
            SealedBy { key, verifier, node, after: *after, previous: *previous }
        }
    }

    /// Signer for the named node in fleet `f1`.
    pub(crate) fn sealed_by(
        node: &'static str,
        after: Hash,
        previous: Option<CheckpointHash>,
    ) -> Sealing {
        let key = NodeKey::of_seed(node.as_bytes()[0]);
        let verifier = key.verifier("f1", node).unwrap();
        Sealing { key, verifier, node, after, previous }
    }

    /// Segments of node `a` with these numbers of records.
    pub(crate) fn chain(
        log: &mut ExampleLog,
        sizes: &[u64],
        mut previous: Option<CheckpointHash>,
    ) -> Vec<SealedSegment> {
        let mut segments = Vec::new();
        for size in sizes {
            let after = log.head();
            let records = log.records(*size);
            let sealed = segment::seal(&records, sealed_by("a", after, previous).by()).unwrap();
            previous = Some(sealed.checkpoint.hash());
            segments.push(sealed);
        }
        segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::examples::{ExampleLog, sealed_by};

    #[test]
    fn names_round_trip_and_sort_in_chain_order() {
        let checkpoint = crate::checkpoint::tests::example();
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
    fn segment_round_trips_and_is_deterministic() {
        let mut log = ExampleLog::new(7);
        let after = log.head();
        let records = log.records(20);
        let by = sealed_by("a", after, None);
        let sealed = seal(&records, by.by()).unwrap();
        assert_eq!(seal(&records, by.by()).unwrap().bytes, sealed.bytes);
        let opened = open(&sealed.bytes, &by.verifier).unwrap();
        assert_eq!((&opened.records, &opened.checkpoint), (&records, &sealed.checkpoint));
        assert!(sealed.name.is_of(&opened.checkpoint));
        let leaf = checkpoint::leaf_hash(&records.iter().nth(3).unwrap().hash.0);
        let root = checkpoint::root_from_path(leaf, 3, 20, &opened.path(3));
        assert_eq!(root, Some(opened.checkpoint.tree));
    }

    #[test]
    fn broken_chain_is_not_signed_and_wrong_key_does_not_open() {
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
    fn old_segments_are_readable_and_extra_footer_metadata_is_rejected() {
        // These segments were sealed by the first version of this format, which every version must be able to read.
        let key = "mcpproxy/d17c8662a3adba902b41b74658abe1a8/a+ec5c8c1e+AaN5ZarXTQXYn5Ck3jYpzFlmaYufxPh49TbYixC+XrnB";
        let key = VerifierKey::parse(key).unwrap();
        let one = Bytes::from_static(include_bytes!("../../fuzz/seeds/ledger/segment"));
        let opened = open(&one, &key).unwrap();
        assert_eq!((opened.checkpoint.first, opened.checkpoint.last), (27, 28));
        let many = Bytes::from_static(include_bytes!("../../fuzz/seeds/ledger/segment-many"));
        assert_eq!(open(&many, &key).unwrap().records.len(), 25);
        let note = opened.note.clone();
        let noted = parquet_table::encode(&opened.records, "a", |_| {
            vec![(CHECKPOINT_NOTE, note), ("ARROW:schema", "different columns".into())]
        });
        let refused = open(&noted.unwrap().into(), &key).unwrap_err().to_string();
        assert!(refused.contains("footer metadata differs"), "{refused}");
    }

    #[test]
    fn any_altered_byte_is_detected() {
        let mut log = ExampleLog::new(3);
        let by = sealed_by("a", log.head(), None);
        let sealed = seal(&log.records(5), by.by()).unwrap();
        assert!(open(&sealed.bytes, &by.verifier).is_ok());
        let data = parquet_table::footer(&sealed.bytes).unwrap().data_bytes;
        for at in 0..sealed.bytes.len() {
            let mut bytes = sealed.bytes.to_vec();
            bytes[at] ^= 1 << (at % 8);
            // This includes the footer, which has no unchecked or redundant bytes.
            let opened = open(&bytes.into(), &by.verifier);
            assert!(opened.is_err(), "byte {at} altered undetected; data ends at {data}");
        }
    }
}
