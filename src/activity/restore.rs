//! Restore of a log from sealed records in the fleet's object store, which may hold records that the node's own log has
//! lost.
//!
//! ```text
//! local    1 ─── 50              51' ── 60'     kept by a salvage, then written under numbers that were lost
//! sealed        41 ────────── 80                in the fleet's store; takes precedence
//! new      1 ─── 50, 51 ───── 80 ▒▒ 86 ─── 95   both; a gap up to the last durable record; 51' to 60' renumbered
//! ```
//!
//! Sealed records keep their numbers, and each number is used only once. The new log is built next to the old one
//! and replaces it when complete; the old one is moved aside, never deleted.

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::chain::Appender;
use super::chain_tip::{ChainTip, ChainTipFile};
use super::gap::Gap;
use super::losses;
use super::record::{Draft, Hash, Id, NodeId, Source, Status, Text, Type};
use super::recover::{self, OpenLog};
use super::redact::Redactor;
use super::replica::LogStretch;
use super::retention::{Cut, Reason};
use super::scan::ChainedRecord;
use super::store::{Batch, Space, Store, StoreError};
use super::view::{LogEnd, View};
use super::{codec, folder, keys, verify};
use mcpproxy_runtime::os::{private, state_file};

/// Records written per batch.
const BATCH_RECORDS: u64 = 4096;
/// Suffix of the request file, which lies next to the log's folder.
const REQUEST_SUFFIX: &str = ".restore";
/// Maximum size of the request file in bytes.
const MAX_REQUEST_BYTES: u64 = 4096;

/// Request to restore a log, stored in a file next to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreRequest {
    /// Last durable record before the first salvage, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    durable: Option<DurableEnd>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DurableEnd {
    seq: u64,
    hash: String,
}

impl RestoreRequest {
    /// Last durable record before the first salvage, if known.
    pub fn durable(&self) -> Option<ChainTip> {
        let DurableEnd { seq, hash } = self.durable.as_ref()?;
        Some(ChainTip { seq: *seq, hash: Hash::parse(hash)? })
    }
}

fn request_path(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(REQUEST_SUFFIX);
    dir.with_file_name(name)
}

/// Returns the request to restore the log in `dir` before it is opened, if one exists.
pub fn request(dir: &Path) -> Result<Option<RestoreRequest>, StoreError> {
    let path = request_path(dir);
    let bytes = match fs::metadata(&path) {
        Ok(found) if found.len() <= MAX_REQUEST_BYTES => fs::read(&path)?,
        Ok(_) => Vec::new(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // The existence of the file is the request, even if the file's contents are damaged.
    Ok(Some(serde_json::from_slice(&bytes).unwrap_or_default()))
}

/// Requests that the log in `dir` be restored before it is opened next, and stores its last durable record. A record
/// stored before an earlier salvage is kept.
pub fn request_restore(dir: &Path) -> Result<(), StoreError> {
    if request(dir)?.is_some_and(|request| request.durable.is_some()) {
        return Ok(());
    }
    let tip = ChainTipFile::read(dir).ok().and_then(|reading| reading.tip);
    let durable = tip.map(|ChainTip { seq, hash }| DurableEnd { seq, hash: hash.to_string() });
    let bytes = serde_json::to_vec(&RestoreRequest { durable }).unwrap_or_default();
    Ok(state_file::replace(&request_path(dir), &bytes)?)
}

/// Removes the request after the log was restored or did not need a restore.
pub fn clear_request(dir: &Path) -> Result<(), StoreError> {
    match fs::remove_file(request_path(dir)) {
        Ok(()) => sync_parent(dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn sync_parent(dir: &Path) -> Result<(), StoreError> {
    match dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => Ok(File::open(parent)?.sync_all()?),
        None => Ok(()),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Folder of the previous log.
    pub aside: PathBuf,
    /// Number of sealed records that the log did not have.
    pub fetched: u64,
    /// Number of the log's records that got new numbers.
    pub renumbered: u64,
    /// Number of records that neither the log nor the object store has.
    pub lost: u64,
}

/// A closed log, inspected before it is restored.
pub struct LocalLog {
    dir: PathBuf,
    /// Dropped after the view and the store.
    view: View,
    open: OpenLog,
}

impl LocalLog {
    /// Opens or creates the log in `dir`.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let open = recover::open(dir)?;
        let view = View::new(open.store.snapshot()?)?;
        Ok(Self { dir: dir.to_owned(), view, open })
    }

    pub fn id(&self) -> NodeId {
        self.view.node()
    }

    /// First and last retained record; 1 and 0 if no record is retained.
    pub fn range(&self) -> (u64, u64) {
        (self.view.first(), self.view.next() - 1)
    }

    /// Whether all records of a range are present, apart from those removed by retention.
    pub fn has_all(&self, first: u64, last: u64) -> bool {
        let first = first.max(self.view.first());
        let overlaps = |gap: &(u64, u64)| gap.0 <= last && first <= gap.1;
        last < self.view.next() && !self.view.gaps.iter().any(overlaps)
    }

    /// Hash of a record, if it is present.
    pub fn hash(&self, seq: u64) -> Result<Option<Hash>, StoreError> {
        Ok(self.next_from(seq)?.filter(|it| it.0 == seq).map(|(_, _, hash)| hash))
    }

    /// Number, predecessor hash and hash of the first record at or after `seq`.
    fn next_from(&self, seq: u64) -> Result<Option<(u64, Hash, Hash)>, StoreError> {
        let mut found = None;
        self.view.chained_from(seq, |record| {
            found = Some((record.seq, record.prev, record.hash));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Starts to restore the log as the log with id `log`.
    pub fn restore(self, log: NodeId) -> Result<Restoring, StoreError> {
        let new = folder::replacement(&self.dir);
        folder::remove(&new)?;
        private::new_folder(&new)?;
        let store = private::apart(|| Store::open_as(&new, log))?;
        folder::write_node(&new, log)?;
        let is_other = self.id() != log || self.view.first() >= self.view.next();
        let diverged = is_other.then(|| self.view.first());
        Ok(Restoring {
            local: self,
            new,
            store,
            appender: None,
            begin: None,
            diverged,
            gaps: Vec::new(),
            known: Vec::new(),
            retention: None,
            fetched: 0,
        })
    }
}

/// A restore in progress.
pub struct Restoring {
    local: LocalLog,
    new: PathBuf,
    store: Store,
    /// `None` before the first record.
    appender: Option<Appender>,
    /// First record of the new log, and its predecessor hash.
    begin: Option<(u64, Hash)>,
    /// First record of the old log that differs from the sealed ones. This record and its successors are renumbered.
    diverged: Option<u64>,
    /// Gaps in the new log.
    gaps: Vec<Gap>,
    /// Gaps that records in the new log already report.
    known: Vec<Gap>,
    /// First retained record according to the last `retention` record.
    retention: Option<(u64, Hash)>,
    fetched: u64,
}

impl Restoring {
    /// Adds verified sealed records in order, up to `last`. [`StoreError::Damaged`] if they do not follow the
    /// sealed records before them.
    pub fn sealed<'r>(
        &mut self,
        LogStretch { first, after, head }: LogStretch,
        last: u64,
        records: impl Iterator<Item = (Hash, &'r [u8], &'r [u8])>,
    ) -> Result<(), StoreError> {
        if first > 1 {
            self.copy_local(first - 1, Some(after))?;
        }
        let kept_from = if self.diverged.is_none() { self.local.view.first() } else { 0 };
        let mut prev = after;
        let mut local = Vec::new();
        if self.diverged.is_none() {
            self.local.view.chained_from(first, |record| {
                local.push((record.seq, record.hash));
                let is_enough = record.seq >= last;
                if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        let mut local = local.into_iter().peekable();
        for (seq, (hash, head, body)) in (first..).zip(records) {
            let before = std::mem::replace(&mut prev, hash);
            if seq < kept_from {
                continue;
            }
            match local.next_if(|it| it.0 == seq).filter(|_| self.diverged.is_none()) {
                Some((_, local)) if local == hash => {}
                Some(_) => {
                    self.diverged = Some(seq);
                    self.fetched += 1;
                }
                None => self.fetched += 1,
            }
            self.put(&ChainedRecord { seq, prev: before, hash, head, body })?;
        }
        match self.tip() {
            Some(tip) if tip.hash == head => self.commit(BATCH_RECORDS),
            Some(_) | None => Err(self.fork(first)),
        }
    }

    /// Adds the old log's records up to `last` after the records already added. They are added only if they follow
    /// those records and if record `last`, where present, has the hash `end`. Otherwise the old log has diverged.
    fn copy_local(&mut self, last: u64, end: Option<Hash>) -> Result<(), StoreError> {
        if self.diverged.is_some() {
            return Ok(());
        }
        let from = self.tip().map_or(self.local.view.first(), |tip| tip.seq + 1);
        let Some((first, prev, _)) = self.local.next_from(from)?.filter(|it| it.0 <= last) else {
            return Ok(());
        };
        let follows = self.tip().is_none_or(|tip| first > tip.seq + 1 || prev == tip.hash);
        let ends = match end {
            Some(end) => self.local.hash(last)?.is_none_or(|hash| hash == end),
            None => true,
        };
        if !follows || !ends {
            self.diverged = Some(first);
            return Ok(());
        }
        // A separate view is used, because the new log is written during the read.
        let view = View::new(self.local.open.store.snapshot()?)?;
        let mut result = Ok(());
        view.chained_from(first, |record| {
            if record.seq > last {
                return ControlFlow::Break(());
            }
            result = self.put(record).and_then(|()| self.commit(BATCH_RECORDS));
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        result
    }

    fn put(&mut self, record: &ChainedRecord<'_>) -> Result<(), StoreError> {
        let (seq, prev) = (record.seq, record.prev);
        let appender = match &mut self.appender {
            Some(appender) => appender,
            None => {
                self.begin = Some((seq, prev));
                let end = LogEnd { next: seq, hash: prev, stored_ms: 0 };
                self.appender.insert(Appender::at(self.store.node(), end, Redactor::default()))
            }
        };
        let tip = appender.tip();
        if seq > tip.seq + 1 {
            appender.skip(seq, prev);
            self.gaps.push(Gap::new(tip.seq + 1, seq - 1, prev));
        } else if seq <= tip.seq || prev != tip.hash {
            return Err(self.fork(seq));
        }
        let damaged = |error: codec::DecodeError| StoreError::Damaged {
            file: self.new.clone(),
            why: format!("record {seq} {error}"),
        };
        appender.push_raw(record.head, record.body).map_err(damaged)?;
        match verify::kind(record.head) {
            Some(Type::Gap) => self.known.extend(verify::gap(record.body)),
            Some(Type::Retention) => {
                self.retention = verify::kept_from(record.body).or(self.retention);
            }
            _ => {}
        }
        Ok(())
    }

    fn tip(&self) -> Option<ChainTip> {
        self.appender.as_ref().map(Appender::tip)
    }

    fn fork(&self, seq: u64) -> StoreError {
        let why = format!(
            "the hash chain forks at record {seq}: it does not continue the records restored before it"
        );
        StoreError::Damaged { file: self.new.clone(), why }
    }

    /// Commits pending records if there are at least `min` of them.
    fn commit(&mut self, min: u64) -> Result<(), StoreError> {
        let Some(appender) = self.appender.as_mut().filter(|it| it.pending() >= min) else {
            return Ok(());
        };
        if let Some(prepared) = appender.take() {
            private::apart(|| self.store.commit(prepared.batch))?;
        }
        Ok(())
    }

    /// Finishes the restore: copies the rest of the old log, names the lost records, and installs the new log.
    /// `durable` is the last record that the log is known to have had; its number and lower numbers are not reused.
    /// `from` names the source of the sealed records. On an error the old log stays in place.
    pub fn finish(
        mut self,
        durable: Option<ChainTip>,
        from: &str,
        now_ms: u64,
    ) -> Result<Restored, StoreError> {
        self.copy_local(u64::MAX - 1, None)?;
        let sealed = self.tip().map_or(0, |tip| tip.seq);
        let end = LogEnd { next: 1, hash: codec::genesis(self.store.node()), stored_ms: 0 };
        let mut appender = match self.appender.take() {
            Some(appender) => appender,
            None => Appender::at(self.store.node(), end, Redactor::default()),
        };
        if let Some(durable) = durable.filter(|durable| durable.seq > sealed) {
            appender.skip(durable.seq + 1, durable.hash);
            self.gaps.push(Gap::new(sealed + 1, durable.seq, durable.hash));
        }
        self.appender = Some(appender);
        // The records are renumbered first, because they keep their storage time, which must not decrease.
        let renumbered = self.renumber()?;
        let why = "neither the log nor the fleet's store has them";
        for gap in self.gaps.iter().filter(|gap| !self.known.contains(gap)) {
            if let Some(appender) = &mut self.appender {
                appender.push(&gap.draft(why, now_ms).into(), now_ms);
            }
        }
        let lost = self.gaps.iter().map(Gap::records).sum();
        let aside = folder::aside_path(&self.local.dir)?;
        self.add_report(&aside, from, (renumbered, lost), now_ms)?;
        self.commit(0)?;
        self.store.sync()?;
        let Self { local, new, store, fetched, .. } = self;
        losses::copy_tally(&local.dir, &new)?;
        drop(store);
        let LocalLog { dir, view, open: OpenLog { lock, store, tip_file } } = local;
        drop((view, store, tip_file));
        fs::rename(&dir, &aside)?;
        folder::install_replacement(&dir)?;
        drop(lock);
        Ok(Restored { aside, fetched, renumbered, lost })
    }

    /// Adds the diverged records of the old log under new numbers, and returns their number.
    fn renumber(&mut self) -> Result<u64, StoreError> {
        let Some(diverged) = self.diverged else { return Ok(0) };
        let view = View::new(self.local.open.store.snapshot()?)?;
        let is_same_log = view.node() == self.store.node();
        let since = self.appender.as_ref().map_or(0, Appender::stored_ms);
        let (mut count, mut runs, mut result) = (0, Vec::<(u64, u64)>::new(), Ok(()));
        view.chained_from(diverged, |record| {
            let Some(appender) = &mut self.appender else { return ControlFlow::Break(()) };
            let Ok(mut head) = codec::decode_head(record.head) else {
                return ControlFlow::Continue(());
            };
            // Reports of gaps and of the first retained record refer to the old log.
            let is_stale = match head.kind {
                Type::Gap => is_same_log && verify::gap(record.body).is_some(),
                Type::Retention => true,
                _ => false,
            };
            if is_stale {
                return ControlFlow::Continue(());
            }
            let next = appender.tip().seq + 1;
            if runs.last().is_none_or(|(from, to)| next - to != record.seq - from) {
                runs.push((record.seq, next));
            }
            let at = Renumbered { old: view.node(), new: self.store.node(), since, runs: &runs };
            head.parent = head.parent.map(|parent| at.id(parent));
            appender.push_renumbered(&head, record.body);
            count += 1;
            result = self.commit(BATCH_RECORDS);
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        result.map(|()| count)
    }

    /// Adds the record that reports the restore, and the log's state.
    fn add_report(
        &mut self,
        aside: &Path,
        from: &str,
        (renumbered, lost): (u64, u64),
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let (fetched, begin, retention) = (self.fetched, self.begin, self.retention);
        let marks: Vec<_> = self.local.view.marks().map_while(Result::ok).collect();
        let reported = losses::reported(&self.local.view).unwrap_or_default();
        let gaps: Vec<u8> = self
            .gaps
            .iter()
            .flat_map(|gap| [gap.first_lost_seq, gap.last_lost_seq])
            .flat_map(u64::to_be_bytes)
            .collect();
        let Some(appender) = &mut self.appender else { return Ok(()) };
        let mut draft = Draft::new(Type::SystemStart, Source::Internal, Status::Error);
        draft.started = now_ms.saturating_mul(1000);
        let text = format!(
            "the log was restored: {fetched} sealed records were fetched back from {from}, {lost} are lost, and {renumbered} \
             that were written meanwhile have new numbers; the log before is in {}",
            aside.display()
        );
        draft.set(Text::Error, &text);
        appender.push(&draft.into(), now_ms);
        if let Some((first, prev)) = begin.filter(|begin| begin.0 > 1 && retention != Some(*begin))
        {
            let id = Id::new(0, first, self.store.node());
            let cut = Cut { first, id, prev, removed: 0, reason: Reason::Count };
            appender.push(&cut.draft(now_ms).into(), now_ms);
        }
        appender.add_writes(|batch: &mut Batch| {
            if let Some((first, prev)) = begin {
                let value = [&first.to_be_bytes()[..], &prev.0].concat();
                batch.put(Space::State, keys::FIRST, value);
            }
            for (key, value) in marks {
                batch.put(Space::State, key, value);
            }
            batch.put(Space::State, keys::GAPS, gaps);
            batch.put(Space::State, keys::LOST, reported.to_be_bytes().to_vec());
        });
        Ok(())
    }
}

/// Mapping of renumbered records.
struct Renumbered<'a> {
    old: NodeId,
    new: NodeId,
    /// Lower bound of the renumbered records' storage times, in milliseconds since 1970.
    since: u64,
    /// Runs of consecutive numbers: the old and the new first number.
    runs: &'a [(u64, u64)],
}

impl Renumbered<'_> {
    /// Current id of the record that had the id `id` before it was renumbered.
    fn id(&self, id: Id) -> Id {
        let is_mapped = id == Id::new(id.time_ms(), id.seq(), self.old);
        let run = self.runs.iter().rev().find(|(from, _)| is_mapped && *from <= id.seq());
        run.map_or(id, |(from, to)| {
            Id::new(id.time_ms().max(self.since), id.seq() - from + to, self.new)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::PayloadRef;
    use crate::query::{Filter, From, Page, Payloads};
    use crate::record::{HeadRef, Record};

    const LOG: NodeId = NodeId([7; 16]);
    const OTHER: NodeId = NodeId([8; 16]);

    /// An encoded record.
    #[derive(Clone)]
    struct Made {
        seq: u64,
        prev: Hash,
        hash: Hash,
        head: Vec<u8>,
        body: Vec<u8>,
    }

    /// Consecutive records with these numbers; `after` is the hash of their predecessor. The parent of each record but
    /// the first is the record before it. `tool` distinguishes diverging series.
    fn made(
        log: NodeId,
        numbers: std::ops::RangeInclusive<u64>,
        after: Hash,
        tool: &str,
    ) -> Vec<Made> {
        let (mut prev, first) = (after, *numbers.start());
        let record = |seq: u64| {
            let parent = (seq > first).then(|| Id::new(seq - 1, seq - 1, log));
            let head = HeadRef {
                stored_ms: seq,
                server: "s",
                tool,
                started: seq * 1000,
                parent,
                ..HeadRef::CALL
            };
            let (mut bytes, mut body) = (Vec::new(), Vec::new());
            codec::encode_head(&head, &mut bytes);
            let none = PayloadRef::default();
            codec::encode_body(PayloadRef { bytes: b"{}", total: 2 }, none, none, &mut body);
            let before = prev;
            prev = codec::chain(before, log, seq, &bytes, &body);
            Made { seq, prev: before, hash: prev, head: bytes, body }
        };
        numbers.map(record).collect()
    }

    fn end_of(records: &[Made]) -> Hash {
        records.last().unwrap().hash
    }

    /// Writes a closed log with these records.
    fn log_with(dir: &Path, log: NodeId, records: &[Made]) {
        let store = Store::open_as(dir, log).unwrap();
        folder::write_node(dir, log).unwrap();
        let end = LogEnd { next: 1, hash: codec::genesis(log), stored_ms: 0 };
        let mut appender = Appender::at(log, end, Redactor::default());
        let mut gaps = Vec::new();
        for record in records {
            let tip = appender.tip();
            if record.seq > tip.seq + 1 {
                gaps.extend([tip.seq + 1, record.seq - 1].map(u64::to_be_bytes).concat());
                appender.skip(record.seq, record.prev);
            }
            appender.push_raw(&record.head, &record.body).unwrap();
        }
        appender.add_writes(|batch| batch.put(Space::State, keys::GAPS, gaps));
        store.commit(appender.take().unwrap().batch).unwrap();
        store.sync().unwrap();
    }

    fn take(restoring: &mut Restoring, records: &[Made]) -> Result<(), StoreError> {
        let (first, last) = (&records[0], &records[records.len() - 1]);
        let stretch = LogStretch { first: first.seq, after: first.prev, head: last.hash };
        let rows = records.iter().map(|it| (it.hash, &it.head[..], &it.body[..]));
        restoring.sealed(stretch, last.seq, rows)
    }

    /// Verifies the log in `dir` and returns its records, oldest first.
    fn verified(dir: &Path) -> (NodeId, Vec<Record>) {
        let local = LocalLog::open(dir).unwrap();
        let report = verify::verify(&local.view, None, |_, _| {}).unwrap();
        assert!(report.is_sound(), "{report:?}");
        let page = Page { limit: 10_000, from: From::Newest, payloads: Payloads::Include };
        let mut records = local.view.list(&Filter::default(), &page).unwrap().records;
        records.reverse();
        assert_eq!(records.len() as u64, report.records);
        (local.id(), records)
    }

    fn of_tool<'a>(records: &'a [Record], tool: &str) -> Vec<&'a Record> {
        records.iter().filter(|record| *record.head.tool == *tool).collect()
    }

    #[test]
    fn sealed_records_keep_their_numbers_and_later_records_are_renumbered() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("activity");
        let sealed = made(LOG, 1..=80, codec::genesis(LOG), "sealed");
        let later = made(LOG, 51..=60, sealed[49].hash, "later");
        log_with(&dir, LOG, &[&sealed[..50], &later[..]].concat());
        let mut restoring = LocalLog::open(&dir).unwrap().restore(LOG).unwrap();
        take(&mut restoring, &sealed[40..60]).unwrap();
        take(&mut restoring, &sealed[60..80]).unwrap();
        let durable = ChainTip { seq: 85, hash: Hash([5; 32]) };
        let restored = restoring.finish(Some(durable), "file:///store", 1000).unwrap();
        assert_eq!((restored.fetched, restored.renumbered, restored.lost), (30, 10, 5));
        assert!(restored.aside.join("db").exists(), "the previous log is kept");
        let (log, records) = verified(&dir);
        assert_eq!(log, LOG);
        let hashes: Vec<_> = of_tool(&records, "sealed").iter().map(|it| it.hash).collect();
        assert_eq!(hashes, sealed.iter().map(|it| it.hash).collect::<Vec<_>>());
        let seqs: Vec<_> = records.iter().skip(80).map(|it| it.seq).collect();
        assert_eq!(seqs, (86..=97).collect::<Vec<_>>(), "no lost number is reused");
        let again = of_tool(&records, "later");
        assert_eq!(again.len(), 10);
        for pair in again.windows(2) {
            assert_eq!(
                pair[1].head.parent,
                Some(pair[0].id),
                "parents are renumbered with their records"
            );
        }
        let report = records.last().unwrap();
        assert!(report.head.error.contains("30 sealed records were fetched back"), "{report:?}");
        assert!(restore_is_whole(&dir, &[&sealed]), "nothing is left to restore at the next start");
    }

    /// Whether the log holds all of these records, as checked at startup.
    fn restore_is_whole(dir: &Path, sealed: &[&[Made]]) -> bool {
        let local = LocalLog::open(dir).unwrap();
        sealed.iter().all(|part| local.has_all(part[0].seq, part[part.len() - 1].seq))
    }

    #[test]
    fn every_sealed_record_is_restored_once_in_any_state_of_the_log() {
        let sealed = made(LOG, 1..=80, codec::genesis(LOG), "sealed");
        let tail = made(LOG, 81..=90, end_of(&sealed), "tail");
        let later = |after: usize, count: u64| {
            let first = sealed[after - 1].seq + 1;
            made(LOG, first..=first + count - 1, sealed[after - 1].hash, "later")
        };
        let foreign = made(OTHER, 1..=5, codec::genesis(OTHER), "later");
        let hole = [&sealed[..30], &sealed[35..80], &tail[..]].concat();
        let overtaken = [&sealed[..70], &later(70, 30)[..]].concat();
        let cut = [&sealed[..30], &tail[..]].concat();
        // The remaining records, the log that they belong to, the segments of ten records that can be fetched, and the
        // numbers of fetched, lost and renumbered records.
        type Case<'a> = (&'a str, NodeId, &'a [Made], &'a [usize], (u64, u64, u64));
        let all: Vec<usize> = (0..8).collect();
        let short = later(40, 3);
        let short = [&sealed[..40], &short[..]].concat();
        let cases: [Case<'_>; 7] = [
            ("a hole in the middle", LOG, &hole, &all, (5, 0, 0)),
            ("a hole beyond the last sealed record", LOG, &cut, &all, (50, 0, 0)),
            ("a lost end", LOG, &short, &all, (40, 0, 3)),
            ("more later records than lost ones", LOG, &overtaken, &all, (10, 0, 30)),
            ("another log", OTHER, &foreign, &all, (80, 0, 5)),
            ("a missing segment", LOG, &sealed[..20], &[0, 1, 2, 4, 5, 6, 7], (50, 10, 0)),
            ("missing old segments", OTHER, &foreign, &[5, 6, 7], (30, 0, 5)),
        ];
        for (what, log, left, segments, (fetched, lost, renumbered)) in cases {
            let root = tempfile::tempdir().unwrap();
            let dir = root.path().join("activity");
            log_with(&dir, log, left);
            let mut restoring = LocalLog::open(&dir).unwrap().restore(LOG).unwrap();
            for at in segments {
                take(&mut restoring, &sealed[at * 10..at * 10 + 10]).unwrap();
            }
            let restored = restoring.finish(None, "file:///store", 1000).unwrap();
            let found = (restored.fetched, restored.lost, restored.renumbered);
            assert_eq!(found, (fetched, lost, renumbered), "{what}");
            let (_, records) = verified(&dir);
            let found: Vec<_> = of_tool(&records, "sealed").iter().map(|it| it.hash).collect();
            let is_expected = |at: &usize| {
                let is_local =
                    |it: &Made| log == LOG && left.iter().any(|left| left.hash == it.hash);
                segments.contains(&(at / 10)) || is_local(&sealed[*at])
            };
            let expected: Vec<_> = (0..80).filter(is_expected).map(|at| sealed[at].hash).collect();
            assert_eq!(found, expected, "{what}");
            for tool in ["tail", "later"] {
                let is_left = |it: &&Made| codec::decode_head(&it.head).unwrap().tool == tool;
                let left = left.iter().filter(is_left).count();
                assert_eq!(of_tool(&records, tool).len(), left, "{tool}: {what}");
            }
        }
    }

    #[test]
    fn unlinked_sealed_records_are_rejected_and_the_log_is_unchanged() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("activity");
        let sealed = made(LOG, 1..=20, codec::genesis(LOG), "sealed");
        let fork = made(LOG, 11..=20, Hash([9; 32]), "fork");
        log_with(&dir, LOG, &sealed[..5]);
        let mut restoring = LocalLog::open(&dir).unwrap().restore(LOG).unwrap();
        take(&mut restoring, &sealed[..10]).unwrap();
        assert!(matches!(take(&mut restoring, &fork), Err(StoreError::Damaged { .. })));
        drop(restoring);
        assert_eq!(verified(&dir).1.len(), 5);
    }

    #[test]
    fn replacement_left_by_a_killed_process_is_installed_at_the_next_open() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("activity");
        let sealed = made(LOG, 1..=20, codec::genesis(LOG), "sealed");
        log_with(&folder::replacement(&dir), LOG, &sealed);
        assert_eq!(LocalLog::open(&dir).unwrap().range(), (1, 20));
    }

    #[test]
    fn restore_request_survives_a_second_salvage_until_it_is_cleared() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("activity");
        fs::create_dir(&dir).unwrap();
        assert_eq!(request(&dir).unwrap(), None);
        let tip = |seq: u64| ChainTip { seq, hash: Hash([seq as u8; 32]) };
        for seq in [7, 9] {
            ChainTipFile::open(&dir).unwrap().0.write(tip(seq)).unwrap();
            request_restore(&dir).unwrap();
            assert_eq!(request(&dir).unwrap().unwrap().durable(), Some(tip(7)));
        }
        clear_request(&dir).unwrap();
        clear_request(&dir).unwrap();
        assert_eq!(request(&dir).unwrap(), None);
        fs::remove_file(dir.join(crate::chain_tip::NAME)).unwrap();
        request_restore(&dir).unwrap();
        assert_eq!(request(&dir).unwrap(), Some(RestoreRequest::default()));
        fs::write(request_path(&dir), "{").unwrap();
        assert_eq!(
            request(&dir).unwrap(),
            Some(RestoreRequest::default()),
            "a damaged file is still a request"
        );
    }
}
