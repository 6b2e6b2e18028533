//! Replica of another node's log. It is filled with that node's sealed records and stored like a node's own log, so
//! that the same [`View`] reads it. The follower's position is written in the same batch as the records, so that a
//! crash leaves both or neither.
//!
//! Nothing is synced explicitly: records lost in a crash of the machine are fetched again. Everything else is checked
//! when the replica is opened; a damaged replica is reported, and its owner creates a new one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use super::bytes::DecodeError;
use super::chain::Appender;
use super::config::Retention;
use super::keys;
use super::record::{Hash, NodeId};
use super::redact::Redactor;
use super::retention::{self, RetentionDue, RetentionTime};
use super::store::{Batch, Space, Store, StoreError};
use super::view::{LogEnd, View};
use mcpproxy_runtime::os::private;

/// Reason why records are rejected; the replica is then unchanged.
#[derive(Debug, Error)]
pub enum ReplicaError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The record with this number cannot be decoded.
    #[error("record {0} {1}")]
    Record(u64, DecodeError),
    /// The records do not end in the announced hash, or they overlap the replica.
    #[error("the records from {0} on do not follow the copy's last record")]
    Chain(u64),
}

/// Description of consecutive records of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogStretch {
    /// Number of the first record.
    pub first: u64,
    /// Hash of the record before it.
    pub after: Hash,
    /// Hash of the last record.
    pub head: Hash,
}

/// Writable replica, owned by one follower.
#[derive(Debug)]
pub struct Replica {
    reader: ReplicaReader,
    /// `None` before the first record.
    appender: Option<Appender>,
    /// Ranges of missing numbers, as pairs of first and last number.
    gaps: Vec<(u64, u64)>,
}

/// Read handle of a replica. Clones share it.
#[derive(Clone, Debug)]
pub struct ReplicaReader {
    store: Store,
    name: Arc<str>,
}

impl ReplicaReader {
    pub fn view(&self) -> Result<View, StoreError> {
        Ok(View::new(self.store.snapshot()?)?.named(Some(Arc::clone(&self.name))))
    }

    /// Size on disk in bytes.
    pub fn disk_bytes(&self) -> u64 {
        self.store.disk_bytes()
    }
}

impl Replica {
    /// Opens or creates the replica of `log` in `dir`; `name` is the name of the log's node. Also returns the
    /// last position noted. [`StoreError::Damaged`] if it is incomplete or belongs to another log.
    pub fn open(
        dir: &Path,
        log: NodeId,
        name: Arc<str>,
    ) -> Result<(Self, Option<Bytes>), StoreError> {
        let store = private::apart(|| Store::open_replica(dir, log))?;
        let reader = ReplicaReader { store, name };
        let view = reader.view()?;
        let damaged = |why: &str| StoreError::Damaged { file: dir.to_owned(), why: why.into() };
        let (first, next) = (view.first(), view.next());
        let mut appender = None;
        if next > 1 {
            let mut is_whole = false;
            view.chained([next - 1], |record| is_whole = record.is_intact(log))?;
            if first >= next || !is_whole {
                return Err(damaged("its last record is not intact"));
            }
            appender = Some(Appender::resume(&view, no_redaction())?);
        }
        let gaps = view.gaps.clone();
        let mark = view.snapshot.get(Space::State, keys::FOLLOWED)?;
        drop(view);
        Ok((Self { reader, appender, gaps }, mark))
    }

    pub fn reader(&self) -> ReplicaReader {
        self.reader.clone()
    }

    /// Number of the replica's last record; 0 if it is empty.
    pub fn last(&self) -> u64 {
        self.appender.as_ref().map_or(0, |appender| appender.tip().seq)
    }

    /// Appends the next records (heads and bodies) and notes the position `mark`, atomically. Numbers skipped before
    /// the records become a gap; an empty replica begins with the records.
    pub fn apply<'r>(
        &mut self,
        stretch: LogStretch,
        records: impl Iterator<Item = (&'r [u8], &'r [u8])>,
        mark: Bytes,
    ) -> Result<(), ReplicaError> {
        let applied = self.add(stretch, records, mark);
        if applied.is_err() {
            // The prepared records are discarded, so that they are not written with the next ones.
            let view = self.reader.view()?;
            self.gaps.clone_from(&view.gaps);
            self.appender = match view.next() {
                1 => None,
                _ => Some(Appender::resume(&view, no_redaction())?),
            };
        }
        applied
    }

    fn add<'r>(
        &mut self,
        LogStretch { first, after, head }: LogStretch,
        records: impl Iterator<Item = (&'r [u8], &'r [u8])>,
        mark: Bytes,
    ) -> Result<(), ReplicaError> {
        let appender = match &mut self.appender {
            Some(appender) => appender,
            None => {
                let end = LogEnd { next: first, hash: after, stored_ms: 0 };
                let node = self.reader.store.node();
                let mut fresh = Appender::at(node, end, no_redaction());
                let begin = [&first.to_be_bytes()[..], &after.0].concat();
                fresh.add_writes(|batch| batch.put(Space::State, keys::FIRST, begin));
                self.appender.insert(fresh)
            }
        };
        let tip = appender.tip();
        if first <= tip.seq || (first == tip.seq + 1 && after != tip.hash) {
            return Err(ReplicaError::Chain(first));
        }
        if first > tip.seq + 1 {
            self.gaps.push((tip.seq + 1, first - 1));
            let gaps = gaps_of(&self.gaps);
            appender.add_writes(|batch| batch.put(Space::State, keys::GAPS, gaps));
            appender.skip(first, after);
        }
        for (seq, (head, body)) in (first..).zip(records) {
            appender.push_raw(head, body).map_err(|error| ReplicaError::Record(seq, error))?;
        }
        if appender.tip().hash != head {
            return Err(ReplicaError::Chain(first));
        }
        appender.add_writes(|batch| batch.put(Space::State, keys::FOLLOWED, mark));
        if let Some(prepared) = appender.take() {
            private::apart(|| self.reader.store.commit(prepared.batch))?;
        }
        Ok(())
    }

    /// Writes records into a gap of the replica and notes the position `mark`, atomically. [`ReplicaError::Chain`] if
    /// they are not in a gap or do not match the adjacent records.
    pub fn fill<'r>(
        &mut self,
        LogStretch { first, after, head }: LogStretch,
        records: impl Iterator<Item = (&'r [u8], &'r [u8])>,
        mark: Bytes,
    ) -> Result<(), ReplicaError> {
        let view = self.reader.view()?;
        let end = LogEnd { next: first, hash: after, stored_ms: 0 };
        let mut filling = Appender::resume_in_gap(&view, end, no_redaction())?;
        for (seq, (head, body)) in (first..).zip(records) {
            filling.push_raw(head, body).map_err(|error| ReplicaError::Record(seq, error))?;
        }
        let last = filling.tip().seq;
        let gap = self.gaps.iter().position(|gap| gap.0 <= first && first <= last && last <= gap.1);
        let Some((at, (from, to))) = gap.and_then(|at| Some((at, *self.gaps.get(at)?))) else {
            return Err(ReplicaError::Chain(first));
        };
        let before = if first == from { view.hash(from - 1)? } else { None };
        let after_gap = if last == to { view.from(to + 1)? } else { None };
        let follows = before.is_none_or(|hash| hash == after);
        let is_followed = after_gap.is_none_or(|(_, _, prev)| prev == head);
        if filling.tip().hash != head || !follows || !is_followed {
            return Err(ReplicaError::Chain(first));
        }
        filling.finish_in_gap(&view, first)?;
        let mut gaps = self.gaps.clone();
        let rest = [(from, first - 1), (last + 1, to)];
        gaps.splice(at..=at, rest.into_iter().filter(|(from, to)| from <= to));
        let encoded = gaps_of(&gaps);
        filling.add_writes(|batch| {
            batch.put(Space::State, keys::GAPS, encoded);
            batch.put(Space::State, keys::FOLLOWED, mark);
        });
        if let Some(prepared) = filling.take() {
            private::apart(|| self.reader.store.commit(prepared.batch))?;
        }
        self.gaps = gaps;
        // The replica's last segment may have more records now.
        self.appender = Some(Appender::resume(&self.reader.view()?, no_redaction())?);
        Ok(())
    }

    /// Storage times of the records before and after a gap, in milliseconds since 1970, if they are retained. `None` if
    /// the gap does not exist, or retention has removed the records after it.
    pub fn beside_gap(
        &self,
        first: u64,
        last: u64,
    ) -> Result<Option<(Option<u64>, u64)>, StoreError> {
        let view = self.reader.view()?;
        if last < view.first() {
            return Ok(None);
        }
        let stored_at =
            |seq: u64| Ok::<_, StoreError>(view.from(seq)?.map(|(seq, id, _)| (seq, id)));
        let before = stored_at(first.saturating_sub(1))?.filter(|(seq, _)| *seq < first);
        let after = stored_at(last + 1)?;
        Ok(after.map(|(_, id)| (before.map(|(_, id)| id.time_ms()), id.time_ms())))
    }

    /// Notes the position without adding records.
    pub fn note(&self, mark: Bytes) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        batch.put(Space::State, keys::FOLLOWED, mark);
        self.reader.store.commit(batch)
    }

    /// Applies the retention limits. Returns the number of removed records.
    pub fn prune(&self, kept: &Retention, now_ms: u64) -> Result<u64, StoreError> {
        let store = &self.reader.store;
        let view = self.reader.view()?;
        if view.next() == 1 {
            return Ok(0);
        }
        // `min_age` does not apply to a replica: the node's own log and the fleet's store keep the records.
        let kept = Retention { min_age: Duration::ZERO, ..*kept };
        let time = RetentionTime { now_ms, ran_ms: 0, opened: 0 };
        let RetentionDue { cut, .. } = retention::due(&view, store, &kept, u64::MAX, time)?;
        drop(view);
        if let Some(cut) = &cut {
            let mut batch = Batch::default();
            batch.put(Space::State, keys::FIRST, cut.value());
            store.commit(batch)?;
        }
        let mut cleared = cut.is_some();
        while retention::clear_segment(store)? {
            cleared = true;
        }
        if cleared {
            retention::free_space(store)?;
        }
        Ok(cut.map_or(0, |cut| cut.removed))
    }
}

/// Encodes gaps for the state keyspace.
fn gaps_of(gaps: &[(u64, u64)]) -> Vec<u8> {
    gaps.iter().flat_map(|(from, to)| [from.to_be_bytes(), to.to_be_bytes()].concat()).collect()
}

/// Sealed records are redacted already.
fn no_redaction() -> Redactor {
    Redactor::new(&[])
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::codec::{self, PayloadRef};
    use crate::query::{Filter, From, Page, Payloads};
    use crate::record::{HeadRef, Id};

    /// Consecutive records as heads and bodies, and their description.
    type Stretch = (LogStretch, Vec<(Vec<u8>, Vec<u8>)>);

    const LOG: NodeId = NodeId([7; 16]);

    /// A replica with `count` records, each stored at the millisecond equal to its number.
    pub(crate) fn copy_of(log: u8, count: u64) -> (tempfile::TempDir, View) {
        let (dir, log) = (tempfile::tempdir().unwrap(), NodeId([log; 16]));
        let (mut replica, _) = Replica::open(dir.path(), log, "a".into()).unwrap();
        if count > 0 {
            let (stretch, records) = stretch_of(log, 1..=count, codec::genesis(log));
            let records = records.iter().map(|(head, body)| (&head[..], &body[..]));
            replica.apply(stretch, records, Bytes::new()).unwrap();
        }
        let view = replica.reader().view().unwrap();
        (dir, view)
    }

    pub(crate) fn odd() -> Filter {
        Filter { servers: vec!["odd".into()], ..Filter::default() }
    }

    /// Records with these numbers, each stored at the millisecond equal to its number.
    fn stretch(numbers: std::ops::RangeInclusive<u64>, after: Hash) -> Stretch {
        stretch_of(LOG, numbers, after)
    }

    fn stretch_of(log: NodeId, numbers: std::ops::RangeInclusive<u64>, after: Hash) -> Stretch {
        let (first, mut hash, mut records) = (*numbers.start(), after, Vec::new());
        for seq in numbers {
            let head = HeadRef {
                stored_ms: seq,
                server: if seq.is_multiple_of(2) { "even" } else { "odd" },
                tool: "t",
                started: seq * 1000,
                ..HeadRef::CALL
            };
            let (mut bytes, mut body) = (Vec::new(), Vec::new());
            codec::encode_head(&head, &mut bytes);
            let none = PayloadRef::default();
            codec::encode_body(PayloadRef { bytes: b"{}", total: 2 }, none, none, &mut body);
            hash = codec::chain(hash, log, seq, &bytes, &body);
            records.push((bytes, body));
        }
        (LogStretch { first, after, head: hash }, records)
    }

    fn apply(
        replica: &mut Replica,
        (stretch, records): &Stretch,
        mark: &'static str,
    ) -> Result<(), ReplicaError> {
        let records = records.iter().map(|(head, body)| (&head[..], &body[..]));
        replica.apply(*stretch, records, Bytes::from_static(mark.as_bytes()))
    }

    fn open(dir: &Path) -> (Replica, Option<Bytes>) {
        Replica::open(dir, LOG, "a".into()).unwrap()
    }

    #[test]
    fn records_and_position_are_written_atomically() {
        let dir = tempfile::tempdir().unwrap();
        let one = stretch(1..=1500, codec::genesis(LOG));
        let two = stretch(1501..=2100, one.0.head);
        {
            let (mut replica, mark) = open(dir.path());
            assert_eq!((replica.last(), mark), (0, None));
            apply(&mut replica, &one, "one").unwrap();
        }
        let (mut replica, mark) = open(dir.path());
        assert_eq!((replica.last(), mark.as_deref()), (1500, Some(&b"one"[..])));
        // Repeated, incomplete, torn and unrelated records change nothing.
        assert!(matches!(apply(&mut replica, &one, "again"), Err(ReplicaError::Chain(1))));
        let mut cut = two.clone();
        cut.1.pop();
        assert!(matches!(apply(&mut replica, &cut, "cut"), Err(ReplicaError::Chain(1501))));
        let mut torn = two.clone();
        torn.1[300].1.truncate(1);
        assert!(matches!(
            apply(&mut replica, &torn, "torn"),
            Err(ReplicaError::Chain(1501) | ReplicaError::Record(1801, _))
        ));
        let other = stretch(1501..=1600, Hash([9; 32]));
        assert!(matches!(apply(&mut replica, &other, "other"), Err(ReplicaError::Chain(1501))));
        apply(&mut replica, &two, "two").unwrap();
        drop(replica);
        let (replica, mark) = open(dir.path());
        assert_eq!((replica.last(), mark.as_deref()), (2100, Some(&b"two"[..])));
        let view = replica.reader().view().unwrap();
        assert_eq!(view.count(&odd()).unwrap(), 1050);
        let record = view.get(Id::new(1501, 1501, LOG)).unwrap().unwrap();
        assert_eq!((record.prev_hash, record.node_name.as_deref()), (one.0.head, Some("a")));
    }

    #[test]
    fn replica_starts_at_any_record_and_reports_its_gaps() {
        let dir = tempfile::tempdir().unwrap();
        let (mut replica, _) = open(dir.path());
        let one = stretch(5000..=5010, Hash([1; 32]));
        let two = stretch(9000..=9003, Hash([2; 32]));
        apply(&mut replica, &one, "1").unwrap();
        apply(&mut replica, &two, "2").unwrap();
        drop(replica);
        let (replica, _) = open(dir.path());
        let view = replica.reader().view().unwrap();
        assert_eq!((view.first(), view.next()), (5000, 9004));
        assert_eq!(view.count(&Filter::default()).unwrap(), 15);
        let page = Page { limit: 100, from: From::Newest, payloads: Payloads::Include };
        let seqs: Vec<_> =
            view.list(&Filter::default(), &page).unwrap().records.iter().map(|it| it.seq).collect();
        let expected: Vec<u64> = (9000..=9003).rev().chain((5000..=5010).rev()).collect();
        assert_eq!(seqs, expected);
    }

    #[test]
    fn missing_records_in_a_full_segment_are_not_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (mut replica, _) = open(dir.path());
        apply(&mut replica, &stretch(1..=1500, codec::genesis(LOG)), "1").unwrap();
        apply(&mut replica, &stretch(1600..=4000, Hash([2; 32])), "2").unwrap();
        let view = replica.reader().view().unwrap();
        assert_eq!(view.count(&Filter::default()).unwrap(), 1500 + 2401);
        // The same holds for a part that ends within a full segment.
        assert_eq!(view.after(1000).up_to(2000).count(&Filter::default()).unwrap(), 500 + 401);
    }

    #[test]
    fn page_starts_after_a_record_of_another_log() {
        let dir = tempfile::tempdir().unwrap();
        let (mut replica, _) = open(dir.path());
        apply(&mut replica, &stretch(1..=3000, codec::genesis(LOG)), "").unwrap();
        let view = replica.reader().view().unwrap();
        let (low, high) = (NodeId([1; 16]), NodeId([9; 16]));
        // Ids of the same millisecond are ordered by number, then by log.
        for (id, below) in [
            (Id::new(0, 1, low), 1),
            (Id::new(1700, 1, high), 1700),
            (Id::new(1700, 1700, low), 1700),
            (Id::new(1700, 1700, high), 1701),
            (Id::new(1700, 9999, low), 1701),
            (Id::new(2999, 2999, LOG), 2999),
            (Id::new(3000, 9999, high), 3001),
            (Id::new(99_000, 1, low), 3001),
        ] {
            assert_eq!(view.number_below(id).unwrap(), below, "{id}");
        }
        let tail = replica.reader().view().unwrap().after(2500);
        assert_eq!(tail.count(&Filter::default()).unwrap(), 500);
        assert_eq!(tail.number_below(Id::new(1700, 1, high)).unwrap(), 2501);
    }

    #[test]
    fn replica_records_beyond_the_retention_limits_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (mut replica, _) = open(dir.path());
        let one = stretch(1..=5000, codec::genesis(LOG));
        apply(&mut replica, &one, "").unwrap();
        let min_age = Duration::from_secs(24 * 3600);
        let kept = Retention { days: 0, max_records: 1000, max_size_mb: 0, min_age };
        assert_eq!(replica.prune(&kept, 0).unwrap(), 4001);
        assert_eq!(replica.prune(&kept, 0).unwrap(), 0);
        apply(&mut replica, &stretch(5001..=5100, one.0.head), "").unwrap();
        drop(replica);
        let (replica, _) = open(dir.path());
        let view = replica.reader().view().unwrap();
        assert_eq!(view.next(), 5101);
        assert_eq!(view.count(&Filter::default()).unwrap(), 5101 - view.first());
    }

    #[test]
    fn replica_of_another_log_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()));
        let other = Replica::open(dir.path(), NodeId([8; 16]), "a".into());
        assert!(matches!(other, Err(StoreError::Damaged { .. })));
    }

    #[test]
    fn flipped_bit_in_a_manifest_or_table_is_reported_as_damage_without_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let (mut replica, _) = open(dir.path());
        let one = stretch(1..=3000, codec::genesis(LOG));
        apply(&mut replica, &one, "").unwrap();
        for space in [Space::Heads, Space::Index, Space::State] {
            replica.reader.store.compact(space).unwrap();
        }
        drop(replica);
        for number in ["0", "1", "3", "6"] {
            let keyspace = dir.path().join("db/keyspaces").join(number);
            let current = std::fs::read(keyspace.join("current")).unwrap();
            let version = u64::from_le_bytes(current[..8].try_into().unwrap());
            let tables = std::fs::read_dir(keyspace.join("tables")).unwrap().flatten();
            let mut files: Vec<_> = tables.map(|table| table.path()).collect();
            files.extend([keyspace.join("current"), keyspace.join(format!("v{version}"))]);
            for file in files {
                let whole = std::fs::read(&file).unwrap();
                // A table's structure is at its end.
                for at in (whole.len().saturating_sub(300)..whole.len()).step_by(11) {
                    let mut bytes = whole.clone();
                    bytes[at] ^= 4;
                    std::fs::write(&file, bytes).unwrap();
                    let opened = Replica::open(dir.path(), LOG, "a".into());
                    let is_named = matches!(&opened, Err(StoreError::Damaged { file, .. })
                        if file.starts_with(&keyspace));
                    assert!(is_named, "{at} of {file:?}: {:?}", opened.err());
                }
                std::fs::write(&file, whole).unwrap();
            }
        }
        assert_eq!(open(dir.path()).0.last(), 3000);
    }

    /// Numbers of the records that match a filter, newest first.
    fn found(view: &View, filter: &Filter) -> Vec<u64> {
        let page = Page { limit: 10_000, from: From::Newest, payloads: Payloads::Exclude };
        view.list(filter, &page).unwrap().records.iter().map(|record| record.seq).collect()
    }

    #[test]
    fn replica_with_a_filled_gap_equals_one_without_a_gap() {
        let (dir, whole_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (mut replica, mut whole) = (open(dir.path()).0, open(whole_dir.path()).0);
        // Gaps end within full segments of 1024 records, at their ends, and in the unfilled segment.
        let ends = [1000, 1500, 2047, 2100, 4200, 4300, 4500, 4600];
        let (mut first, mut after, mut parts) = (1, codec::genesis(LOG), Vec::new());
        for end in ends {
            let part = stretch(first..=end, after);
            (first, after) = (end + 1, part.0.head);
            apply(&mut whole, &part, "whole").unwrap();
            parts.push(part);
        }
        for at in [0, 3, 5, 7] {
            apply(&mut replica, &parts[at], "holes").unwrap();
        }
        let fill = |replica: &mut Replica, (stretch, records): &Stretch, mark: &'static str| {
            let records = records.iter().map(|(head, body)| (&head[..], &body[..]));
            replica.fill(*stretch, records, Bytes::from_static(mark.as_bytes()))
        };
        let other = stretch(1001..=1500, Hash([9; 32]));
        for wrong in [&other, &parts[0], &parts[7], &stretch(1001..=2100, parts[0].0.head)] {
            assert!(matches!(fill(&mut replica, wrong, "x"), Err(ReplicaError::Chain(_))));
        }
        // The gap of parts 1 and 2 is filled from its end; the gap of part 4 is filled after reopening.
        fill(&mut replica, &parts[2], "2").unwrap();
        fill(&mut replica, &parts[1], "1").unwrap();
        fill(&mut replica, &parts[6], "6").unwrap();
        drop(replica);
        let (mut replica, mark) = open(dir.path());
        assert_eq!((mark.as_deref(), replica.gaps.clone()), (Some(&b"6"[..]), vec![(2101, 4200)]));
        assert_eq!(replica.beside_gap(2101, 4200).unwrap(), Some((Some(2100), 4201)));
        fill(&mut replica, &parts[4], "4").unwrap();
        assert_eq!(replica.gaps, []);
        let next = stretch(4601..=6200, parts[7].0.head);
        for replica in [&mut replica, &mut whole] {
            apply(replica, &next, "end").unwrap();
        }
        let (view, expected) = (replica.reader().view().unwrap(), whole.reader().view().unwrap());
        assert_eq!(view.gaps, []);
        for filter in [Filter::default(), odd()] {
            assert_eq!(found(&view, &filter), found(&expected, &filter));
        }
        assert_eq!(found(&view, &Filter::default()).len(), 6200);
        for number in 0..6 {
            // For records that were read again, the recorded size includes only their heads, so sizes are not compared.
            let times = |view: &View| {
                view.bounds(number).unwrap().map(|it| (it.earliest, it.latest, it.stored_ms))
            };
            assert_eq!(times(&view), times(&expected), "{number}");
        }
        let counted = |view: &View| view.summary(crate::Period::Hour, 6_200_000).unwrap();
        assert_eq!(format!("{:?}", counted(&view)), format!("{:?}", counted(&expected)));
    }
}
