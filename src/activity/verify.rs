//! Verification (ACT-4): walks the chain and reports the first record that is altered, missing or out of place. A
//! record is *intact* if it equals the record that was written.
//!
//! A folder is verified on a copy, because the store's recovery could hide damage, and its tables are read completely.
//! A running log is verified on a snapshot. That misses damage on disk to data that the store still has in memory. The
//! chain has no key: anyone who can rewrite the whole store and the chain tip can forge it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::ser::{Serialize, Serializer};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::chain_tip::{ChainTip, ChainTipFile};
use super::codec;
use super::file_checksums::{self, ChecksumFinding, Depth};
use super::folder::Lock;
use super::gap::{Gap, Unrecorded};
use super::losses::{self, LossTally};
use super::record::{Hash, Type};
use super::store::{self, DB, Store, StoreError, newest_journal};
use super::view::{Block, View};
use crate::folder::Copy;
use crate::recover;
use crate::store::{journal_files, journal_format};

/// Number of holes after which a verification ends.
const MAX_HOLES: usize = 1000;
/// Maximum number of entries in [`Report::unrecorded`] that are read from the log.
const MAX_OUTAGES: usize = 1000;
/// Number of records between progress reports.
const PROGRESS_RECORDS: u64 = 4096;

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of verified records.
    pub records: u64,
    /// Sequence number of the first verified record.
    pub first: u64,
    /// Sequence number of the last verified record.
    pub last: u64,
    /// First record that is not intact, unless it is in a hole that the log itself reports.
    pub broken: Option<Broken>,
    /// Ranges of lost records that the log itself reports.
    pub gaps: Vec<Gap>,
    /// Unrecorded calls that the log states or will state at the next start; at most the oldest 1000 entries.
    pub unrecorded: Vec<Unrecorded>,
    /// Files changed since the log was closed, and damaged tables and journals.
    pub altered: Vec<PathBuf>,
    /// Other findings that are not faults, such as leftovers of a crash.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether all records are intact and no file has changed.
    pub fn is_sound(&self) -> bool {
        self.broken.is_none() && self.altered.is_empty()
    }
}

/// Result of a verification.
#[derive(serde::Serialize, ToSchema)]
struct Members<'a> {
    /// Whether all records are intact and no file has changed.
    sound: bool,
    /// Number of verified records.
    records: u64,
    /// Sequence number of the first verified record.
    first: u64,
    /// Sequence number of the last verified record.
    last: u64,
    /// First record that is not intact, unless it is in a hole that the log itself reports.
    #[schema(required, value_type = Option<Broken>)]
    broken: &'a Option<Broken>,
    /// Ranges of lost records that the log itself reports.
    gaps: &'a [Gap],
    /// Unrecorded calls that the log states or will state at the next start; at most the oldest 1000 entries.
    unrecorded: &'a [Unrecorded],
    /// Files changed since the log was closed, and damaged tables. Empty for a running log.
    #[schema(value_type = Vec<String>)]
    altered: &'a [PathBuf],
    /// Other findings that are not faults.
    notes: &'a [String],
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { records, first, last, broken, gaps, unrecorded, altered, notes } = self;
        let sound = self.is_sound();
        let (records, first, last) = (*records, *first, *last);
        let members =
            Members { sound, records, first, last, broken, gaps, unrecorded, altered, notes };
        members.serialize(serializer)
    }
}

impl PartialSchema for Report {
    fn schema() -> RefOr<Schema> {
        Members::schema()
    }
}

impl ToSchema for Report {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        Members::schemas(schemas);
    }
}

/// A record that is not intact.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, ToSchema)]
pub struct Broken {
    /// Sequence number.
    pub seq: u64,
    /// Kind of fault.
    pub fault: RecordFault,
    /// Details for humans.
    pub why: String,
}

impl Broken {
    fn new(seq: u64, fault: RecordFault, why: &str) -> Self {
        Self { seq, fault, why: why.into() }
    }
}

/// Kind of fault of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordFault {
    /// The record differs from the record that was written.
    Altered,
    /// The record does not exist.
    Missing,
    /// Another record is in its place.
    OutOfPlace,
}

/// Verifies the log in `dir` on a copy below `scratch`; `dir` is not changed. `progress` receives the number of
/// verified records and the total. [`StoreError::Locked`] if a writer has the log open; [`StoreError::Damaged`], which
/// is also a finding, if the store cannot be read at all.
pub fn folder(
    dir: &Path,
    scratch: &Path,
    progress: impl FnMut(u64, u64),
) -> Result<Report, StoreError> {
    let _lock = Lock::share(dir)?;
    let altered = match file_checksums::check(dir, Depth::Full)? {
        ChecksumFinding::Whole | ChecksumFinding::NotClosed => Vec::new(),
        ChecksumFinding::Altered(files) => files,
    };
    let copy = Copy::below(scratch, dir)?;
    let result = verify_copy(dir, copy.path(), progress);
    let mut report = result.map_err(|error| copy.as_original(dir, error))?;
    if let Some(broken) = &mut report.broken {
        broken.why = copy.text_as_original(dir, &broken.why);
    }
    report.altered.extend(altered);
    report.altered.sort();
    report.altered.dedup();
    Ok(report)
}

fn verify_copy(
    dir: &Path,
    copy: &Path,
    progress: impl FnMut(u64, u64),
) -> Result<Report, StoreError> {
    let reading = ChainTipFile::read(copy)?;
    if !copy.join(DB).try_exists()? {
        let why = "there is no log".into();
        return match reading.tip {
            None => Ok(Report::default()),
            Some(_) => Err(StoreError::Damaged { file: dir.join(DB), why }),
        };
    }
    let is_listed = store::is_table_list_intact(copy)?;
    let damaged = journal_files::repair(&copy.join(DB), &recover::evidence(copy))?;
    let before = journals_used(copy)?;
    let store = Store::open(copy).map_err(|error| match error {
        // Tables may hold entries of damaged batches, so the store may seem to lack these entries. In that case the
        // damage of the journals is reported.
        StoreError::Damaged { .. } => recover::check_journals(dir).err().unwrap_or(error),
        error => error,
    })?;
    let view = View::new(store.snapshot()?)?;
    let is_cut = reading.tip.is_some_and(|tip| view.next() <= tip.seq);
    let mut report = verify(&view, reading.tip, progress)?;
    let (tally, is_whole) = LossTally::read(copy)?;
    report.unrecorded.extend(tally.unreported(losses::reported(&View::new(store.snapshot()?)?)?));
    if !is_listed {
        report.notes.push("the list of tables is damaged; the next start rewrites it".into());
    }
    if !is_whole {
        report.notes.push("the count of lost records is damaged".into());
    }
    let original = |path: PathBuf| path.strip_prefix(copy).map_or(path.clone(), |it| dir.join(it));
    report.altered.extend(damaged.into_iter().map(original));
    if is_cut && !file_checksums::exists(dir)? {
        // If a log was not closed, its end is only in a journal.
        report.altered.push(original(newest_journal(&copy.join(DB))));
    }
    for table in store.damaged_tables()? {
        let table = table.path.strip_prefix(copy).map_or(table.path.clone(), |name| dir.join(name));
        report.altered.push(table);
    }
    let marks = View::new(store.snapshot()?)?.marks().count();
    if marks > 0 {
        let text = "calls were in flight; they will be recorded with an unknown outcome when the log is opened";
        report.notes.push(format!("{marks} {text}"));
    }
    if reading.tip.is_none() && report.records > 0 {
        report.notes.push("there is no chain tip: records may be missing at the end".into());
    }
    if reading.torn {
        report.notes.push("the chain tip file holds a torn entry".into());
    }
    report.notes.extend(cut_journals(&before, &journals_used(copy)?));
    Ok(report)
}

/// Verifies a view. Its chain must reach `tip`.
pub(crate) fn verify(
    view: &View,
    tip: Option<ChainTip>,
    mut progress: impl FnMut(u64, u64),
) -> Result<Report, StoreError> {
    let (first, total) = (view.first(), view.next() - view.first());
    let mut report = Report { first, last: first - 1, ..Report::default() };
    let mut retention = None;
    let mut holes = Vec::new();
    walk(view, |step| {
        let (seq, head, body) = match step {
            ChainStep::Record { seq, head, body } => (seq, head, body),
            ChainStep::Hole(hole) => {
                holes.push(hole);
                let too_many = holes.len() >= MAX_HOLES;
                return if too_many { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            }
        };
        let kind = kind(head);
        if kind == Some(Type::Gap) {
            report.gaps.extend(gap(body));
            if report.unrecorded.len() < MAX_OUTAGES {
                report.unrecorded.extend(unrecorded(body));
            }
        } else if kind == Some(Type::Retention) {
            retention = kept_from(body);
        }
        report.records += 1;
        report.last = seq;
        if report.records.is_multiple_of(PROGRESS_RECORDS) {
            progress(report.records, total);
        }
        ControlFlow::Continue(())
    })?;
    // Holes named by the log are reported as gaps.
    let known = |hole: &Hole| {
        hole.gap().is_some_and(|gap| report.gaps.iter().any(|it| it.is_same_hole(&gap)))
    };
    report.broken = holes.into_iter().find(|hole| !known(hole)).map(|hole| hole.broken);
    if report.broken.is_some() {
        return Ok(report);
    }
    let broken = |seq, fault, why: &str| Some(Broken::new(seq, fault, why));
    progress(report.records, total);
    if first > 1 && retention != Some((first, view.before_first()?)) {
        let why = "no retention record reports its removal";
        report.broken = broken(first - 1, RecordFault::Missing, why);
        return Ok(report);
    }
    match tip {
        Some(tip) if report.last < tip.seq => {
            let why = format!("the log ends before it, but record {} was durable", tip.seq);
            report.broken = broken(report.last + 1, RecordFault::Missing, &why);
        }
        Some(tip) if view.hash(tip.seq)?.is_some_and(|hash| hash != tip.hash) => {
            report.broken =
                broken(tip.seq, RecordFault::Altered, "its hash differs from the chain tip");
        }
        Some(_) | None => {}
    }
    Ok(report)
}

/// Range of records that are not intact, between two intact ones or at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    /// First record of the range, and its fault.
    pub broken: Broken,
    /// Next readable record and its predecessor hash; `None` at the end of the log.
    pub next: Option<(u64, Hash)>,
}

impl Hole {
    /// Gap that a record must report for this hole to count as known; `None` at the end of the log.
    pub(crate) fn gap(&self) -> Option<Gap> {
        let (next, follows) = self.next?;
        Some(Gap::new(self.broken.seq, next - 1, follows))
    }
}

/// Step of a walk along the chain.
#[derive(Debug)]
pub(crate) enum ChainStep<'a> {
    Record {
        seq: u64,
        head: &'a [u8],
        body: &'a [u8],
    },
    /// A range of records that are not intact.
    Hole(Hole),
}

/// Walks the chain from the first retained record, until `each` breaks. Fails if the beginning of the log
/// cannot be read.
pub(crate) fn walk(
    view: &View,
    mut each: impl FnMut(ChainStep<'_>) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let mut last = view.before_first()?;
    let mut next = view.first();
    loop {
        let (mut found, mut is_unread) = (None, false);
        let mut blocks = match view.blocks(next, view.next()) {
            Ok(blocks) => Some(blocks),
            Err(error) => {
                (found, is_unread) = (Some(unreadable(next, error)?), true);
                None
            }
        };
        while let Some(block) = blocks.as_mut().and_then(Iterator::next) {
            let block = match block {
                Ok(block) => block,
                Err(error) => {
                    (found, is_unread) = (Some(unreadable(next, error)?), true);
                    break;
                }
            };
            if block.layout.first > next {
                let broken = Broken::new(next, RecordFault::Missing, "there is a gap");
                let after = Some((block.layout.first, block.layout.prev));
                (next, last) = (block.layout.first, block.layout.prev);
                if each(ChainStep::Hole(Hole { broken, next: after })).is_break() {
                    return Ok(());
                }
            }
            if let Some(broken) = walk_block(view, &block, &mut next, &mut last, &mut each)? {
                found = Some(broken);
                break;
            }
        }
        drop(blocks);
        let Some(mut broken) = found else { return Ok(()) };
        // The iterator reads two blocks ahead, and the blocks before a damaged one may be intact.
        if is_unread && let Some(block) = view.block_at(next)? {
            let start = next;
            match walk_block(view, &block, &mut next, &mut last, &mut each)? {
                Some(in_block) => broken = in_block,
                None if next > start => continue,
                None => {}
            }
        }
        let after = view.readable_after(next)?;
        let after = after.map(|block| (block.layout.first, block.layout.prev));
        if each(ChainStep::Hole(Hole { broken, next: after })).is_break() {
            return Ok(());
        }
        match after {
            Some(after) => (next, last) = after,
            None => break,
        }
    }
    Ok(())
}

/// Fault of record `seq`, if it is unreadable because of damage; any other error is returned.
fn unreadable(seq: u64, error: StoreError) -> Result<Broken, StoreError> {
    match error {
        StoreError::Damaged { .. } => {
            Ok(Broken::new(seq, RecordFault::Altered, &error.to_string()))
        }
        StoreError::Locked | StoreError::Io(_) | StoreError::File { .. } => Err(error),
    }
}

/// Passes the intact records of a block to `each`. Returns the first record that is not intact.
fn walk_block(
    view: &View,
    block: &Block,
    next: &mut u64,
    last: &mut Hash,
    each: &mut impl FnMut(ChainStep<'_>) -> ControlFlow<()>,
) -> Result<Option<Broken>, StoreError> {
    let broken = |seq, fault, why: &str| Ok(Some(Broken::new(seq, fault, why)));
    let bodies = match view.bodies(block) {
        Ok(bodies) => bodies,
        Err(error) => return unreadable((*next).max(block.layout.first), error).map(Some),
    };
    for seq in block.layout.first..block.end() {
        let Some((prev, hash)) = block.link(seq) else { continue };
        if seq < view.first() {
            continue;
        }
        if seq < *next {
            return broken(seq, RecordFault::OutOfPlace, "it exists twice");
        }
        if prev != *last {
            return broken(seq, RecordFault::OutOfPlace, "it does not follow the one before it");
        }
        let body = bodies.as_ref().and_then(|bodies| bodies.get(block, seq));
        let (Some(head), Some(body)) = (block.head(seq), body) else {
            return broken(seq, RecordFault::Missing, "a part of it is missing");
        };
        let whole = codec::decode_head(head).is_ok() && codec::decode_body(body).is_ok();
        if !whole || codec::chain(*last, view.node(), seq, head, body) != hash {
            return broken(seq, RecordFault::Altered, "its hash does not match");
        }
        if each(ChainStep::Record { seq, head, body }).is_break() {
            return Ok(None);
        }
        (*last, *next) = (hash, seq + 1);
    }
    Ok(None)
}

/// Type of a record.
pub fn kind(head: &[u8]) -> Option<Type> {
    codec::decode_head(head).ok().map(|head| head.kind)
}

/// The gap named by a `gap` record, if it names one.
pub fn gap(body: &[u8]) -> Option<Gap> {
    Gap::read(&codec::decode_body(body).ok()?)
}

/// The unrecorded calls reported by a `gap` record, if it reports any.
pub fn unrecorded(body: &[u8]) -> Option<Unrecorded> {
    Unrecorded::read(&codec::decode_body(body).ok()?)
}

/// First retained record and its predecessor hash, from the body of a `retention` record.
pub fn kept_from(body: &[u8]) -> Option<(u64, Hash)> {
    let body = codec::decode_body(body).ok()?;
    let metadata: serde_json::Value = serde_json::from_slice(body.metadata.bytes()).ok()?;
    let first = metadata.get("first_kept_seq")?.as_u64()?;
    Some((first, Hash::parse(metadata.get("first_kept_prev_hash")?.as_str()?)?))
}

/// Used length of each journal by name.
type JournalsUsed = BTreeMap<OsString, usize>;

/// Used lengths of the journals of the log in `dir`.
fn journals_used(dir: &Path) -> Result<JournalsUsed, StoreError> {
    let used = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_owned();
        Ok((name, journal_format::used(&fs::read(&path)?)))
    };
    journal_files::list(&dir.join(DB))?.into_iter().map(used).collect()
}

/// Notes on journals truncated by opening the log. Missing journals became tables, and additional journals are new.
fn cut_journals(before: &JournalsUsed, after: &JournalsUsed) -> Vec<String> {
    let cut = before.iter().filter_map(|(name, before)| {
        let cut = before.checked_sub(*after.get(name)?).filter(|cut| *cut > 0)?;
        Some(format!("{} holds {cut} bytes after its last complete batch", name.display()))
    });
    cut.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_are_compared_by_name() {
        let used = |journals: &[(&str, usize)]| -> JournalsUsed {
            journals.iter().map(|(name, used)| (OsString::from(name), *used)).collect()
        };
        let before = used(&[("1.jnl", 9000), ("2.jnl", 500)]);
        for (after, expected) in [
            (used(&[("1.jnl", 9000), ("2.jnl", 500)]), vec![]),
            // Opening turned the first journal into a table and began another.
            (used(&[("2.jnl", 500), ("3.jnl", 10)]), vec![]),
            (used(&[("0.jnl", 1), ("1.jnl", 9000), ("2.jnl", 500)]), vec![]),
            (
                used(&[("2.jnl", 480), ("3.jnl", 10)]),
                vec!["2.jnl holds 20 bytes after its last complete batch"],
            ),
        ] {
            assert_eq!(cut_journals(&before, &after), expected);
        }
    }
}
