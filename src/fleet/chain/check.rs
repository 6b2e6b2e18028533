//! Verification of one node's chain: completeness, authenticity and linkage of its segments. Pure.
//!
//! Segments are added in the order of their names. Each one has already been opened and verified on its own
//! ([`segment`]).

use bytes::Bytes;
use mcpproxy_activity::gap::{Gap, Unrecorded};
use mcpproxy_activity::record::{Hash, Type};
use mcpproxy_activity::{codec, verify};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::checkpoint::{Checkpoint, VerifierKey};
use crate::parquet_table::RecordRows;
use crate::sealing::ChainPosition;
use crate::segment::SegmentName;
use crate::{parquet_table, segment};

/// Maximum number of faults reported per chain.
pub(crate) const MAX_FAULTS: usize = 1000;
/// Maximum number of branches tracked in a forked chain.
const MAX_TIPS: usize = 8;

/// Kind of fault in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainFault {
    /// The segment differs from the one that its node sealed.
    Altered,
    /// A different segment is stored under this name.
    Replaced,
    /// Segments are stored under each other's names.
    Reordered,
    /// Sealed segments are missing.
    Removed,
    /// Two segments share a predecessor, or one does not follow its predecessor.
    Fork,
    /// Records are missing from the log itself, and no gap record declares them.
    Gap,
    /// An object that is not a segment.
    Foreign,
    /// The node's key or claim is unusable.
    Key,
}

/// One fault and its location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultFound {
    pub fault: ChainFault,
    /// Key of the object.
    pub at: String,
    /// First affected record, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
    /// Human-readable details.
    pub why: String,
}

/// Verified contents of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// The node's signed checkpoint.
    pub checkpoint: Checkpoint,
    /// Number of records.
    pub records: u64,
    /// Ranges that gap records declare as lost.
    pub gaps: Vec<Gap>,
    /// Records that the log declares as not recorded.
    pub unrecorded: Vec<Unrecorded>,
    /// Retention marks: the first retained record and the hash it follows.
    pub kept_from: Vec<(u64, Hash)>,
}

impl SegmentFacts {
    /// Opens a segment whose checkpoint is signed by `key`.
    pub(crate) fn of(bytes: &Bytes, key: &VerifierKey) -> Result<Self, SegmentRejection> {
        Ok(Self::open(bytes, key)?.0)
    }

    /// Opens a segment and returns its records as well.
    pub(crate) fn open(
        bytes: &Bytes,
        key: &VerifierKey,
    ) -> Result<(Self, RecordRows), SegmentRejection> {
        let opened = segment::open(bytes, key).map_err(|error| {
            let of_another = parquet_table::footer(bytes).ok().and_then(|footer| {
                let note = footer.notes.get(segment::CHECKPOINT_NOTE)?;
                let checkpoint = Checkpoint::unverified(note).ok()?;
                (*checkpoint.origin != *key.name()).then_some(checkpoint.origin)
            });
            match of_another {
                Some(origin) => SegmentRejection {
                    fault: ChainFault::Replaced,
                    why: format!("segment belongs to {origin}"),
                },
                None => SegmentRejection { fault: ChainFault::Altered, why: error.to_string() },
            }
        })?;
        let (mut gaps, mut unrecorded, mut kept_from) = (Vec::new(), Vec::new(), Vec::new());
        for row in opened.records.iter() {
            let Ok((head, body)) = codec::split_canonical(row.canonical) else { continue };
            match verify::kind(head) {
                _ if gaps.len() + unrecorded.len() + kept_from.len() >= MAX_FAULTS => break,
                Some(Type::Gap) => {
                    gaps.extend(verify::gap(body));
                    unrecorded.extend(verify::unrecorded(body));
                }
                Some(Type::Retention) => kept_from.extend(verify::kept_from(body)),
                _ => {}
            }
        }
        let records = opened.records.len() as u64;
        let checkpoint = opened.checkpoint;
        Ok((Self { checkpoint, records, gaps, unrecorded, kept_from }, opened.records))
    }
}

/// Reason for rejecting a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRejection {
    pub fault: ChainFault,
    pub why: String,
}

/// Object in a node's segments folder.
#[derive(Clone, Debug)]
pub struct ListedSegment {
    /// Key in the store.
    pub key: String,
    /// Parsed segment name, if it is one.
    pub name: Option<SegmentName>,
}

/// Result of verifying a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChainReport {
    /// True if there are no faults.
    pub sound: bool,
    /// Number of valid segments.
    pub segments: u64,
    /// Number of records in them.
    pub records: u64,
    /// First record.
    pub first: u64,
    /// Last record.
    pub last: u64,
    /// Hash of the last record.
    pub head: String,
    /// Id of the log; empty if there are no segments.
    pub log: String,
    pub faults: Vec<FaultFound>,
    /// Ranges that the log itself declares as lost.
    pub gaps: Vec<Gap>,
    /// Records that the log declares as not recorded.
    pub unrecorded: Vec<Unrecorded>,
    /// Findings that are not faults.
    pub notes: Vec<String>,
}

/// End of a branch: a valid segment without a known successor.
#[derive(Clone, Debug)]
struct Tip {
    key: String,
    checkpoint: Box<Checkpoint>,
}

/// Chain verifier. Segments are added in the order of their names.
#[derive(Debug, Default)]
pub struct ChainCheck {
    /// True if segments missing at the beginning may have expired.
    expired: bool,
    report: ChainReport,
    tips: Vec<Tip>,
    /// Last record covered by segments after the last valid one, whether valid or not. Invalid segments have
    /// faults of their own; their records are not also reported as missing.
    reach: Option<u64>,
    /// Ranges not covered by any segment after the last valid one.
    holes_behind: Vec<(u64, u64)>,
    /// Segments stored under another segment's name: key, name found, correct name.
    misplaced: Vec<(String, SegmentName, SegmentName)>,
    /// Gaps in the record numbers that a gap record must explain.
    holes: Vec<(Gap, String)>,
    kept_from: Vec<(u64, Hash)>,
}

impl ChainCheck {
    /// Starts a verification. If `expired` is set, segments missing at the beginning are not a fault.
    pub fn new(expired: bool) -> Self {
        Self { expired, ..Self::default() }
    }

    /// Reports a fault that is not about a single segment.
    pub(crate) fn fault(&mut self, fault: ChainFault, at: &str, why: impl Into<String>) {
        self.found(fault, at, None, why.into());
    }

    /// Reports a finding that is not a fault.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.report.notes.push(note.into());
    }

    fn found(&mut self, fault: ChainFault, at: &str, range: Option<(u64, u64)>, why: String) {
        if self.report.faults.len() < MAX_FAULTS {
            let (first, last) = range.unzip();
            self.report.faults.push(FaultFound { fault, at: at.to_owned(), first, last, why });
        }
    }

    /// Adds the next object and its verification result.
    pub fn add(&mut self, listed: &ListedSegment, opened: Result<SegmentFacts, SegmentRejection>) {
        let key = &listed.key;
        let Some(name) = &listed.name else {
            return self.found(ChainFault::Foreign, key, None, "not a segment name".into());
        };
        match opened {
            Err(SegmentRejection { fault, why }) => {
                self.found(fault, key, Some((name.first, name.last)), why);
                self.unknown(name);
            }
            Ok(facts) if !name.is_of(&facts.checkpoint) => {
                let own = SegmentName::of(&facts.checkpoint, name.day);
                self.misplaced.push((key.clone(), name.clone(), own));
                self.unknown(name);
            }
            Ok(facts) => self.link(key, facts),
        }
    }

    /// Records a segment of which only the name is usable.
    fn unknown(&mut self, name: &SegmentName) {
        self.hole_before(name.first);
        self.reach = self.reach.max(Some(name.last));
    }

    /// Notes the range before `first` that no segment covers.
    fn hole_before(&mut self, first: u64) {
        let next = self.reach.map(|reach| reach.saturating_add(1));
        if let Some(next) =
            next.filter(|next| *next < first && self.holes_behind.len() < MAX_FAULTS)
        {
            self.holes_behind.push((next, first - 1));
        }
    }

    /// Links a valid segment to its predecessor.
    fn link(&mut self, key: &str, facts: SegmentFacts) {
        let SegmentFacts { checkpoint, records, gaps, unrecorded, kept_from } = facts;
        self.kept_from.extend(kept_from);
        let (first, last) = (checkpoint.first, checkpoint.last);
        let range = Some((first, last));
        let follows = |tip: &&Tip| Some(tip.checkpoint.hash()) == checkpoint.previous;
        let before = self.tips.iter().find(follows).cloned();
        self.hole_before(first);
        let holes = std::mem::take(&mut self.holes_behind);
        match (before, self.tips.last().cloned()) {
            (Some(before), _) => {
                self.follow(key, &before.checkpoint, &checkpoint);
                let others = self.tips.iter().any(|tip| tip.checkpoint.last >= first);
                if others && !self.report.faults.iter().any(|found| found.at == *key) {
                    let why = format!("another segment contains record {first}");
                    self.found(ChainFault::Fork, key, range, why);
                }
            }
            (None, Some(tip)) if first <= tip.checkpoint.last => {
                let why = format!("overlaps {} and does not follow it", tip.key);
                self.found(ChainFault::Fork, key, range, why);
            }
            (None, None)
                if self.reach.is_none()
                    || checkpoint.previous.is_none()
                    || (self.expired && !holes.is_empty()) =>
            {
                self.begin(key, &checkpoint);
            }
            (None, _) if !holes.is_empty() => {
                for (from, to) in holes {
                    let why = format!("segments with records {from} to {to} are missing");
                    self.found(ChainFault::Removed, key, Some((from, to)), why);
                }
            }
            (None, Some(tip)) if self.reach == Some(tip.checkpoint.last) => {
                let why = format!(
                    "record numbers follow {}, but the checkpoint does not link to it",
                    tip.key
                );
                self.found(ChainFault::Fork, key, range, why);
            }
            // The predecessor is invalid, which is already reported.
            (None, Some(_) | None) => {}
        }
        if self.report.segments == 0 {
            self.report.first = first;
            self.report.log = checkpoint.log.to_string();
        }
        self.report.segments += 1;
        self.report.records += records;
        self.report.gaps.extend(gaps);
        self.report.unrecorded.extend(unrecorded);
        if last >= self.report.last {
            (self.report.last, self.report.head) = (last, checkpoint.head.to_string());
        }
        self.tips.push(Tip { key: key.to_owned(), checkpoint: Box::new(checkpoint) });
        if self.tips.len() > MAX_TIPS {
            self.tips.remove(0);
        }
        self.reach = self.tips.iter().map(|tip| tip.checkpoint.last).max();
    }

    /// Handles the first valid segment.
    fn begin(&mut self, key: &str, checkpoint: &Checkpoint) {
        let first = checkpoint.first;
        match (checkpoint.previous, self.expired) {
            (None, _) if first > 1 => self.note(format!(
                "the chain begins with record {first}: earlier records had expired when the node joined"
            )),
            (None, _) => {}
            (Some(_), true) => {
                self.note(format!("the segments before record {first} are missing"));
            }
            (Some(_), false) => {
                let before = (first > 1).then(|| (1, first - 1));
                let why = format!("the segments before record {first} are missing");
                self.found(ChainFault::Removed, key, before, why);
            }
        }
    }

    /// Checks that the records of `this` continue those of `before`.
    fn follow(&mut self, key: &str, before: &Checkpoint, this: &Checkpoint) {
        let range = Some((this.first, this.last));
        if this.log != before.log {
            self.found(
                ChainFault::Fork,
                key,
                range,
                "belongs to a different log than its predecessor".into(),
            );
        } else if this.first == before.last + 1 {
            if this.after != before.head {
                let why = "the first record does not follow its predecessor's last record";
                self.found(ChainFault::Fork, key, range, why.into());
            }
        } else if this.first > before.last + 1 {
            // The node did not have these records when it sealed the segment: the log itself has a gap.
            self.holes
                .push((Gap::new(before.last + 1, this.first - 1, this.after), key.to_owned()));
        } else {
            let why = "begins before the end of its predecessor";
            self.found(ChainFault::Fork, key, range, why.into());
        }
    }

    /// Finishes the verification.
    pub fn finish(mut self) -> ChainReport {
        let misplaced = std::mem::take(&mut self.misplaced);
        for (key, stands, belongs) in &misplaced {
            // The segment that belongs here is misplaced as well.
            let is_swapped = misplaced.iter().any(|(_, other, _)| other.is_same(belongs));
            let fault = if is_swapped { ChainFault::Reordered } else { ChainFault::Replaced };
            let why =
                format!("contains the segment with records {} to {}", belongs.first, belongs.last);
            self.found(fault, key, Some((stands.first, stands.last)), why);
        }
        for (hole, key) in std::mem::take(&mut self.holes) {
            let (first, last) = (hole.first_lost_seq, hole.last_lost_seq);
            let is_removed = |(kept, follows): &(u64, Hash)| {
                *kept == last + 1 && follows.to_string() == hole.follows_hash
            };
            if self.kept_from.iter().any(is_removed) {
                self.note(format!(
                    "records {first} to {last} expired from the log before they were sealed"
                ));
            } else if !self.report.gaps.iter().any(|gap| gap.is_same_hole(&hole)) {
                let why = format!(
                    "records {first} to {last} are missing from the log without a gap record"
                );
                self.found(ChainFault::Gap, &key, Some((first, last)), why);
            }
        }
        self.report.sound = self.report.faults.is_empty();
        self.report
    }
}

/// Position after which a chain resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    /// Position of the last uploaded segment.
    pub stored: ChainPosition,
    /// Day in the name of the last uploaded segment.
    pub day: i32,
    /// Last record of a segment whose upload was in progress; it is sealed again identically.
    pub planned: Option<u64>,
}

/// Reason why a log cannot resume a chain.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LogMismatch {
    /// The log ends before the sealed position.
    #[error("the log ends with record {0}, before what was sealed")]
    Older(u64),
    /// The log has a different record at the sealed position.
    #[error("the log has diverged")]
    Another,
}

impl ResumePoint {
    /// Combines the saved position with the newest segment after it ([`newest_segment`]); `None` if there is
    /// neither.
    pub fn of(known: Option<Self>, newest: Option<(&SegmentName, &Checkpoint)>) -> Option<Self> {
        let Some((name, checkpoint)) = newest else { return known };
        let stored = ChainPosition {
            seq: checkpoint.last,
            head: checkpoint.head,
            checkpoint: Some(checkpoint.hash()),
        };
        Some(Self { stored, day: name.day, planned: None })
    }

    /// Checks that a log ending with record `end` can resume the chain. `hash` is the log's hash at this
    /// position, if retained.
    pub fn check_log(&self, end: u64, hash: Option<Hash>) -> Result<(), LogMismatch> {
        if end < self.stored.seq {
            return Err(LogMismatch::Older(end));
        }
        match hash {
            Some(hash) if hash != self.stored.head => Err(LogMismatch::Another),
            Some(_) | None => Ok(()),
        }
    }
}

/// Returns the newest segment after the saved position.
pub fn newest_segment(
    names: impl Iterator<Item = SegmentName>,
    known: Option<ResumePoint>,
) -> Option<SegmentName> {
    names.max().filter(|name| known.is_none_or(|place| name.last > place.stored.seq))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tests::example;
    use proptest::prelude::*;

    use crate::segment::SealedSegment;
    use crate::segment::examples::{ExampleLog, chain, sealed_by};

    /// Store contents: names and bytes.
    type Store = Vec<(String, Bytes)>;

    fn stored(segments: &[SealedSegment]) -> Store {
        segments.iter().map(|it| (it.name.to_string(), it.bytes.clone())).collect()
    }

    fn check(store: &Store, expired: bool) -> ChainReport {
        let mut listed: Vec<_> = store
            .iter()
            .map(|(key, bytes)| {
                (ListedSegment { key: key.clone(), name: SegmentName::parse(key) }, bytes)
            })
            .collect();
        listed.sort_by_key(|(listed, _)| listed.name.clone());
        let mut check = ChainCheck::new(expired);
        let key = sealed_by("a", mcpproxy_activity::record::Hash([0; 32]), None).verifier.clone();
        for (listed, bytes) in listed {
            check.add(&listed, SegmentFacts::of(bytes, &key));
        }
        check.finish()
    }

    fn faults(report: &ChainReport) -> Vec<(ChainFault, Option<u64>, Option<u64>)> {
        report.faults.iter().map(|found| (found.fault, found.first, found.last)).collect()
    }

    #[test]
    fn complete_chain_is_sound() {
        let store = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5], None));
        let report = check(&store, false);
        assert_eq!((report.sound, report.segments, report.records), (true, 3, 9));
        assert_eq!((report.first, report.last), (1, 9));
        assert!(report.notes.is_empty());
        assert!(check(&Vec::new(), false).sound);
    }

    #[test]
    fn removed_segment_is_reported_with_its_records() {
        let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5, 2], None));
        let without = |at: usize| {
            let mut store = whole.clone();
            store.remove(at);
            store
        };
        assert_eq!(faults(&check(&without(0), false)), [(ChainFault::Removed, Some(1), Some(3))]);
        assert_eq!(faults(&check(&without(1), false)), [(ChainFault::Removed, Some(4), Some(4))]);
        assert_eq!(faults(&check(&without(2), false)), [(ChainFault::Removed, Some(5), Some(9))]);
        assert!(check(&without(0), true).sound, "the first segments may have expired");
        assert_eq!(faults(&check(&without(1), true)), [(ChainFault::Removed, Some(4), Some(4))]);
        // Truncation is not visible from the segments alone.
        assert!(check(&without(3), false).sound);
    }

    #[test]
    fn replaced_and_reordered_segments_are_distinguished() {
        let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 3, 3, 3], None));
        let mut store = whole.clone();
        store[2].1 = whole[1].1.clone();
        assert_eq!(faults(&check(&store, false)), [(ChainFault::Replaced, Some(7), Some(9))]);
        let mut store = whole.clone();
        (store[1].1, store[2].1) = (whole[2].1.clone(), whole[1].1.clone());
        let reordered = ChainFault::Reordered;
        assert_eq!(
            faults(&check(&store, false)),
            [(reordered, Some(4), Some(6)), (reordered, Some(7), Some(9))]
        );
        // The segment is replaced by another node's segment.
        let mut other = ExampleLog::new(2);
        let by = sealed_by("b", other.head(), None);
        let foreign = segment::seal(&other.records(3), by.by()).unwrap();
        let mut store = whole.clone();
        store[3].1 = foreign.bytes.clone();
        assert_eq!(faults(&check(&store, false)), [(ChainFault::Replaced, Some(10), Some(12))]);
    }

    #[test]
    fn altered_segment_is_reported_once_and_chain_continues() {
        let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 3, 3], None));
        let mut store = whole.clone();
        let mut bytes = store[1].1.to_vec();
        let at = bytes.windows(9).position(|window| window == b"an answer").unwrap();
        bytes[at] ^= 1;
        store[1].1 = bytes.into();
        let report = check(&store, false);
        assert_eq!(faults(&report), [(ChainFault::Altered, Some(4), Some(6))]);
        assert_eq!((report.sound, report.segments, report.last), (false, 2, 9));
        assert_eq!(report.faults[0].at, whole[1].0);
    }

    #[test]
    fn fork_is_detected_at_any_position() {
        let mut log = ExampleLog::new(1);
        let first = chain(&mut log, &[3], None);
        let previous = Some(first[0].checkpoint.hash());
        let mut other = log.clone();
        let one = chain(&mut log, &[3, 3], previous);
        // The same log was restored from a backup and diverged.
        other.skip(0);
        let mut rows = crate::parquet_table::RecordCollector::new(other.log);
        let mut apart = ExampleLog::new(1);
        apart.records(3);
        let after = apart.head();
        for _ in 0..3 {
            apart.push(&mut rows, b"other", b"other");
        }
        let fork = segment::seal(&rows.finish(), sealed_by("a", after, previous).by()).unwrap();
        let next = chain(&mut apart, &[2], Some(fork.checkpoint.hash()));
        let mut store = stored(&first);
        store.extend(stored(&one));
        store.extend(stored(std::slice::from_ref(&fork)));
        let report = check(&store, false);
        assert_eq!(faults(&report), [(ChainFault::Fork, Some(4), Some(6))], "{report:?}");
        store.extend(stored(&next));
        let found = faults(&check(&store, false));
        assert!(
            found.len() == 2 && found.iter().all(|(fault, ..)| *fault == ChainFault::Fork),
            "{found:?}"
        );
        // A segment sealed after a checkpoint that is not stored.
        let mut store = stored(&first);
        let mut log = ExampleLog::new(1);
        log.records(3);
        store.extend(stored(&chain(&mut log, &[3], Some([9; 32]))));
        assert_eq!(faults(&check(&store, false)), [(ChainFault::Fork, Some(4), Some(6))]);
    }

    #[test]
    fn log_gap_is_a_fault_unless_declared() {
        let mut log = ExampleLog::new(1);
        let mut segments = chain(&mut log, &[3], None);
        log.skip(4);
        let follows = log.head();
        segments.extend(chain(&mut log, &[2], Some(segments[0].checkpoint.hash())));
        assert_eq!(
            faults(&check(&stored(&segments), false)),
            [(ChainFault::Gap, Some(4), Some(7))]
        );
        let key = sealed_by("a", follows, None).verifier.clone();
        let named = |name: &dyn Fn(&mut SegmentFacts)| {
            let mut check = ChainCheck::new(false);
            for sealed in &segments {
                let (key_of, name_of) = (sealed.name.to_string(), Some(sealed.name.clone()));
                let mut facts = SegmentFacts::of(&sealed.bytes, &key).unwrap();
                if facts.checkpoint.first == 8 {
                    name(&mut facts);
                }
                check.add(&ListedSegment { key: key_of, name: name_of }, Ok(facts));
            }
            check.finish()
        };
        let report = named(&|facts| facts.gaps.push(Gap::new(4, 7, follows)));
        assert!(report.sound && report.gaps.len() == 1, "{report:?}");
        // Retention removed records from the log before the node joined.
        let report = named(&|facts| facts.kept_from.push((8, follows)));
        assert!(report.sound && report.notes.len() == 1, "{report:?}");
        let report = named(&|facts| facts.gaps.push(Gap::new(4, 6, follows)));
        assert_eq!(faults(&report), [(ChainFault::Gap, Some(4), Some(7))]);
        let other = mcpproxy_activity::record::Hash([0; 32]);
        let report = named(&|facts| facts.kept_from.push((8, other)));
        assert_eq!(faults(&report), [(ChainFault::Gap, Some(4), Some(7))]);
    }

    #[test]
    fn non_segment_object_is_foreign() {
        let mut store = stored(&chain(&mut ExampleLog::new(1), &[3], None));
        store.push(("date=2026-01-01/notes.txt".into(), Bytes::from_static(b"x")));
        assert_eq!(faults(&check(&store, false)), [(ChainFault::Foreign, None, None)]);
    }

    /// Name of an object that claims these records.
    fn claims(first: u64, last: u64, head: u8) -> String {
        format!("date=2026-01-01/{first:020}-{last:020}-{head:016x}.parquet")
    }

    #[test]
    fn invalid_object_does_not_count_as_a_fork() {
        let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 3, 3, 3], None));
        let junk = Bytes::from_static(b"junk");
        let with = |claimed: &[(u64, u64)]| {
            let mut store = whole.clone();
            let named = (0..).zip(claimed).map(|(head, (first, last))| claims(*first, *last, head));
            store.extend(named.map(|name| (name, junk.clone())));
            store
        };
        for claimed in [
            &[(5, 8)][..],
            &[(1, 1_000_000)],
            &[(1, u64::MAX), (2, u64::MAX)],
            &[(12, 12), (40, 50)],
            // More branches than are tracked.
            &[(3, 4), (4, 4), (4, 5), (4, 6), (4, 7), (4, 8), (4, 9), (4, 10), (4, 11), (4, 12)],
        ] {
            let report = check(&with(claimed), false);
            let altered =
                |(first, last): &(u64, u64)| (ChainFault::Altered, Some(*first), Some(*last));
            let expected: Vec<_> = claimed.iter().map(altered).collect();
            assert_eq!(faults(&report), expected);
            assert_eq!((report.segments, report.last), (4, 12));
        }
        // An invalid object does not hide a missing segment.
        let mut store = with(&[(1, 5), (1, u64::MAX)]);
        store.retain(|(name, _)| *name != whole[2].0);
        let found = faults(&check(&store, false));
        assert_eq!(found[2..], [(ChainFault::Removed, Some(7), Some(9))]);
    }

    #[test]
    fn missing_segments_beside_altered_ones_are_reported() {
        let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5, 2, 2], None));
        let mut store = whole.clone();
        store[2].1 = Bytes::from_static(b"junk");
        store.remove(3);
        store.remove(1);
        let removed = |first, last| (ChainFault::Removed, Some(first), Some(last));
        let altered = (ChainFault::Altered, Some(5), Some(9));
        assert_eq!(faults(&check(&store, false)), [altered, removed(4, 4), removed(10, 11)]);
        // Expired segments at the beginning are not a fault, regardless of what else is stored there.
        let mut store = whole[1..].to_vec();
        store.push((claims(1, 1, 7), Bytes::from_static(b"junk")));
        let (one, two_three) = ((ChainFault::Altered, Some(1), Some(1)), removed(2, 3));
        assert_eq!(faults(&check(&store, false)), [one, two_three]);
        assert_eq!(faults(&check(&store, true)), [one]);
    }

    proptest! {
        #[test]
        fn any_change_except_truncation_is_detected(
            sizes in prop::collection::vec(1..4_u64, 2..7),
            at in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(), what in 0..4_u8, bit in any::<prop::sample::Index>(),
        ) {
            let whole = stored(&chain(&mut ExampleLog::new(1), &sizes, None));
            let (at, to) = (at.index(whole.len()), to.index(whole.len()));
            let mut store = whole.clone();
            match what {
                0 => {
                    prop_assume!(at + 1 < whole.len());
                    store.remove(at);
                }
                1 => {
                    prop_assume!(at != to);
                    store[at].1 = whole[to].1.clone();
                }
                2 => {
                    prop_assume!(at != to);
                    (store[at].1, store[to].1) = (whole[to].1.clone(), whole[at].1.clone());
                }
                _ => {
                    // Changes the canonical bytes, from which everything else is derived.
                    let mut bytes = store[at].1.to_vec();
                    let from = bytes.windows(9).position(|window| window == b"an answer").unwrap();
                    bytes[from + bit.index(9)] ^= 1;
                    store[at].1 = bytes.into();
                }
            }
            let report = check(&store, false);
            let expected = [ChainFault::Removed, ChainFault::Replaced, ChainFault::Reordered, ChainFault::Altered];
            prop_assert!(!report.sound);
            prop_assert_eq!(report.faults[0].fault, expected[usize::from(what)], "{:?}", report);
            if what > 0 {
                prop_assert!(report.faults.iter().any(|found| found.at == whole[at].0), "{:?}", report);
            }
            prop_assert!(check(&whole, false).sound);
        }
    }

    #[test]
    fn newer_stored_position_overrides_the_saved_one() {
        let (name, checkpoint) = (SegmentName::of(&example(), 20_000), example());
        let stored = ChainPosition { seq: 4199, head: Hash([3; 32]), checkpoint: None };
        let known = ResumePoint { stored, day: 19_000, planned: Some(4300) };
        let newest = |known| newest_segment([name.clone()].into_iter(), known);
        assert_eq!(newest(None), Some(name.clone()));
        assert_eq!(newest(Some(known)), Some(name.clone()));
        let place = ResumePoint::of(Some(known), Some((&name, &checkpoint))).unwrap();
        assert_eq!((place.stored.seq, place.stored.head), (4711, checkpoint.head));
        assert_eq!((place.day, place.planned), (20_000, None));
        assert_eq!(place.stored.checkpoint, Some(checkpoint.hash()));
        assert_eq!(newest(Some(place)), None, "already saved");
        assert_eq!(ResumePoint::of(Some(known), None), Some(known), "the planned segment is kept");
        assert_eq!(ResumePoint::of(None, None), None);
    }

    #[test]
    fn older_or_diverged_log_is_rejected() {
        let stored = ChainPosition { seq: 7, head: Hash([3; 32]), checkpoint: None };
        let place = ResumePoint { stored, day: 0, planned: None };
        assert_eq!(place.check_log(7, Some(Hash([3; 32]))), Ok(()));
        assert_eq!(place.check_log(9, None), Ok(()), "no longer retained in the log");
        assert_eq!(place.check_log(6, None), Err(LogMismatch::Older(6)));
        assert_eq!(place.check_log(9, Some(Hash([4; 32]))), Err(LogMismatch::Another));
    }
}
