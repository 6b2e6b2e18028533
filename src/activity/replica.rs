//! A copy of another node's log, filled with its records as they were sealed, in a store of the log's own form, so that it is
//! asked by the same [`View`]. How far the copy has come is written in the batch that writes the records: after a crash it has
//! both or neither.
//!
//! Nothing is synced for its own sake: what a crash of the machine takes away is fetched again. What remains is looked at when
//! the copy is opened; a copy that is not whole is damage, and its keeper makes a new one.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use super::append::Appender;
use super::bytes::DecodeError;
use super::config::Retention;
use super::keys;
use super::record::{Hash, NodeId};
use super::redact::Redactor;
use super::retention;
use super::store::{Batch, Space, Store, StoreError};
use super::view::{LogEnd, View};
use crate::os::private;

/// Why records are not taken into a copy. It is as it was then.
#[derive(Debug, Error)]
pub enum ReplicaError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The number of a record whose bytes are not whole.
    #[error("record {0} {1}")]
    Record(u64, DecodeError),
    /// They do not end in the hash that they are to end in, or begin before the copy's end.
    #[error("the records from {0} on do not follow the copy's last record")]
    Chain(u64),
}

/// Records of a log that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct LogStretch {
    /// The number of the first of them.
    pub first: u64,
    /// The hash it follows.
    pub after: Hash,
    /// The hash of the last of them.
    pub head: Hash,
}

/// A copy that is filled, by one keeper.
#[derive(Debug)]
pub struct Replica {
    reader: ReplicaReader,
    /// `None` before the first record.
    appender: Option<Appender>,
    /// The numbers that the copy passes over, first and last.
    gaps: Vec<(u64, u64)>,
}

/// What a copy is read through. Clones share it.
#[derive(Clone, Debug)]
pub struct ReplicaReader {
    store: Store,
    name: Arc<str>,
}

impl ReplicaReader {
    /// The copy as it is now.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it cannot be read.
    pub fn view(&self) -> Result<View, StoreError> {
        Ok(View::new(self.store.snapshot())?.named(Some(Arc::clone(&self.name))))
    }

    /// The bytes that it takes on disk.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.store.disk_bytes()
    }
}

impl Replica {
    /// Opens the copy of `log` in `dir`, or makes one there. `name` is that of the log's node. With it comes what was last said
    /// of how far it has come.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: damaged where it is not whole, or of another log.
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
                return Err(damaged("its last record is not whole"));
            }
            appender = Some(Appender::resume(&view, no_redaction())?);
        }
        let gaps = view.gaps.clone();
        let mark = view.snapshot.get(Space::State, keys::FOLLOWED)?;
        drop(view);
        Ok((Self { reader, appender, gaps }, mark))
    }

    /// What it is read through.
    #[must_use]
    pub fn reader(&self) -> ReplicaReader {
        self.reader.clone()
    }

    /// The last record of the copy; 0 for none.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.appender.as_ref().map_or(0, |appender| appender.tip().seq)
    }

    /// Takes the next records, their heads and bodies, and notes `mark` with them: all or nothing. Numbers between the copy's
    /// end and theirs are passed over, and are a gap of the copy; where it is empty it begins with them.
    ///
    /// # Errors
    ///
    /// [`ReplicaError`].
    pub fn apply<'r>(
        &mut self,
        stretch: LogStretch,
        records: impl Iterator<Item = (&'r [u8], &'r [u8])>,
        mark: Bytes,
    ) -> Result<(), ReplicaError> {
        let applied = self.add(stretch, records, mark);
        if applied.is_err() {
            // Nothing of what was prepared may go with what comes next.
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
                fresh.also(|batch| batch.put(Space::State, keys::FIRST, begin));
                self.appender.insert(fresh)
            }
        };
        let tip = appender.tip();
        if first <= tip.seq || (first == tip.seq + 1 && after != tip.hash) {
            return Err(ReplicaError::Chain(first));
        }
        if first > tip.seq + 1 {
            self.gaps.push((tip.seq + 1, first - 1));
            let gaps: Vec<u8> = self
                .gaps
                .iter()
                .flat_map(|(from, to)| [from.to_be_bytes(), to.to_be_bytes()].concat())
                .collect();
            appender.also(|batch| batch.put(Space::State, keys::GAPS, gaps));
            appender.skip(first, after);
        }
        for (seq, (head, body)) in (first..).zip(records) {
            appender.push_raw(head, body).map_err(|error| ReplicaError::Record(seq, error))?;
        }
        if appender.tip().hash != head {
            return Err(ReplicaError::Chain(first));
        }
        appender.also(|batch| batch.put(Space::State, keys::FOLLOWED, mark));
        if let Some(prepared) = appender.take() {
            private::apart(|| self.reader.store.commit(prepared.batch))?;
        }
        Ok(())
    }

    /// Notes how far it has come, where no records go with it.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn note(&self, mark: Bytes) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        batch.put(Space::State, keys::FOLLOWED, mark);
        self.reader.store.commit(batch)
    }

    /// Removes what is no longer to be kept, and says how many records went.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn prune(&self, kept: &Retention, now_ms: u64) -> Result<u64, StoreError> {
        let store = &self.reader.store;
        let view = self.reader.view()?;
        if view.next() == 1 {
            return Ok(0);
        }
        let cut = retention::due(&view, store, kept, u64::MAX, now_ms)?;
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
            retention::give_back(store)?;
        }
        Ok(cut.map_or(0, |cut| cut.removed))
    }
}

/// What was sealed is without secrets.
fn no_redaction() -> Redactor {
    Redactor::new(&[])
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::activity::codec::{self, PayloadRef};
    use crate::activity::query::{Filter, From, Page, Payloads};
    use crate::activity::record::{HeadRef, Id, Operation, Source, Status, Type};

    /// Records of a log that follow each other, each with its key.
    type Stretch = (LogStretch, Vec<(Vec<u8>, Vec<u8>)>);

    const LOG: NodeId = NodeId([7; 16]);

    /// A copy of a log with so many records, each stored in the millisecond of its number.
    pub(in crate::activity) fn copy_of(log: u8, count: u64) -> (tempfile::TempDir, View) {
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

    /// Every other record.
    pub(in crate::activity) fn odd() -> Filter {
        Filter { servers: vec!["odd".into()], ..Filter::default() }
    }

    /// The heads and bodies of the records of these numbers, each stored in the millisecond of its number, and their stretch.
    fn stretch(numbers: std::ops::RangeInclusive<u64>, after: Hash) -> Stretch {
        stretch_of(LOG, numbers, after)
    }

    fn stretch_of(log: NodeId, numbers: std::ops::RangeInclusive<u64>, after: Hash) -> Stretch {
        let (first, mut hash, mut records) = (*numbers.start(), after, Vec::new());
        for seq in numbers {
            let head = HeadRef {
                stored_ms: seq,
                kind: Type::ToolCall,
                source: Source::Mcp,
                principal: "anonymous",
                status: Status::Success,
                operation: Some(Operation::Read),
                server: if seq.is_multiple_of(2) { "even" } else { "odd" },
                tool: "t",
                error: "",
                started: seq * 1000,
                duration_us: 1,
                overhead_us: 1,
                response_bytes: 1,
                session_id: "",
                request_id: "",
                parent: None,
                intent: PayloadRef::default(),
                variant: "",
                client_name: "",
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
    fn records_and_how_far_it_has_come_are_there_together_or_not_at_all() {
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
        // The same again, what is cut, what follows something else: nothing changes.
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
    fn a_copy_begins_where_it_is_begun_and_says_what_is_missing_in_it() {
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
    fn what_is_missing_within_a_full_segment_is_not_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (mut replica, _) = open(dir.path());
        apply(&mut replica, &stretch(1..=1500, codec::genesis(LOG)), "1").unwrap();
        apply(&mut replica, &stretch(1600..=4000, Hash([2; 32])), "2").unwrap();
        let view = replica.reader().view().unwrap();
        assert_eq!(view.count(&Filter::default()).unwrap(), 1500 + 2401);
        // The same of a part of it that ends within a full segment.
        assert_eq!(view.after(1000).up_to(2000).count(&Filter::default()).unwrap(), 500 + 401);
    }

    #[test]
    fn a_page_begins_after_a_record_of_another_log() {
        let dir = tempfile::tempdir().unwrap();
        let (mut replica, _) = open(dir.path());
        apply(&mut replica, &stretch(1..=3000, codec::genesis(LOG)), "").unwrap();
        let view = replica.reader().view().unwrap();
        let (low, high) = (NodeId([1; 16]), NodeId([9; 16]));
        // Among ids of the same millisecond the number decides, then the log.
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
    fn what_is_no_longer_kept_goes() {
        let dir = tempfile::tempdir().unwrap();
        let (mut replica, _) = open(dir.path());
        let one = stretch(1..=5000, codec::genesis(LOG));
        apply(&mut replica, &one, "").unwrap();
        let kept = Retention { days: 0, max_records: 1000, max_size_mb: 0 };
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
    fn a_copy_of_another_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()));
        let other = Replica::open(dir.path(), NodeId([8; 16]), "a".into());
        assert!(matches!(other, Err(StoreError::Damaged { .. })));
    }
}
