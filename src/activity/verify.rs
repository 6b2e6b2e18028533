//! Verification (ACT-4): walks the chain and names the first record that is altered, missing or
//! out of place. *Intact* is a record that is as it was written.
//!
//! A folder is verified on a copy, so that the store's recovery cannot repair anything away, and its
//! tables are read whole. A running log is verified on a snapshot: damage on disk of what the store
//! still has in memory is not found. The chain has no key: whoever can rewrite the whole store and its
//! head can forge it.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::ser::{Serialize, Serializer};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::chain_tip::{ChainTip, ChainTipFile};
use super::codec;
use super::copy::Copy;
use super::file_checksums::{self, ChecksumFinding, Depth};
use super::gap::{Gap, Unrecorded};
use super::lock::Lock;
use super::lost::{self, LossTally};
use super::record::{Hash, Type};
use super::store::{DB, Store, StoreError, journals};
use super::view::{Block, View};

/// Holes after which a verification ends.
const MOST_HOLES: usize = 1000;
/// The most entries of [`Report::unrecorded`] that are read from the log.
const MOST_OUTAGES: usize = 1000;
/// Progress is reported after so many records.
const PROGRESS_RECORDS: u64 = 4096;

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of records that were checked.
    pub records: u64,
    /// The first of them.
    pub first: u64,
    /// The last of them.
    pub last: u64,
    /// The first record that is not intact, in a hole that the log itself does not name.
    pub broken: Option<Broken>,
    /// Ranges of records that the log itself names as lost.
    pub gaps: Vec<Gap>,
    /// Records that could not be written, as the log itself says or will say at the next start; of
    /// more than 1000 such entries the oldest.
    pub unrecorded: Vec<Unrecorded>,
    /// Files that have changed since the log was closed, and tables that are not what was written.
    pub altered: Vec<PathBuf>,
    /// Other findings, such as what a crash left behind. They are no faults.
    pub notes: Vec<String>,
}

impl Report {
    /// True when all records are intact, and no file has changed.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.broken.is_none() && self.altered.is_empty()
    }
}

/// What a verification found.
#[derive(serde::Serialize, ToSchema)]
struct Members<'a> {
    /// True when all records are intact, and no file has changed.
    sound: bool,
    /// The number of records that were checked.
    records: u64,
    /// The sequence number of the first of them.
    first: u64,
    /// And of the last.
    last: u64,
    /// The first record that is not intact, in a hole that the log itself does not name.
    #[schema(required, value_type = Option<Broken>)]
    broken: &'a Option<Broken>,
    /// Ranges of records that the log itself names as lost.
    gaps: &'a [Gap],
    /// Records that could not be written, as the log itself says or will say at the next start; of
    /// more than 1000 such entries the oldest.
    unrecorded: &'a [Unrecorded],
    /// Files that have changed since the log was closed, and tables that are not what was written. Empty
    /// for a running log.
    #[schema(value_type = Vec<String>)]
    altered: &'a [PathBuf],
    /// Other findings. They are no faults.
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
    /// Its sequence number.
    pub seq: u64,
    /// What is wrong with it.
    pub fault: Fault,
    /// The details, for people.
    pub why: String,
}

impl Broken {
    fn new(seq: u64, fault: Fault, why: &str) -> Self {
        Self { seq, fault, why: why.into() }
    }
}

/// What can be wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It is not what was written.
    Altered,
    /// It is not there.
    Missing,
    /// Another record stands in its place.
    OutOfPlace,
}

/// Verifies the log in `dir` on a copy below `scratch`; nothing in `dir` changes. `progress` gets the
/// number of records checked, and of all.
///
/// # Errors
///
/// [`StoreError::Locked`] while a writer has it open. [`StoreError::Damaged`] where the store cannot be
/// read at all, which is a finding, too.
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
        return match reading.mark {
            None => Ok(Report::default()),
            Some(_) => Err(StoreError::Damaged { file: dir.join(DB), why }),
        };
    }
    let before = journals::all(&copy.join(DB))?;
    let before: Vec<_> = before.iter().map(|path| used_bytes(path)).collect::<Result<_, _>>()?;
    let store = Store::open(copy)?;
    let mut report = verify(&View::new(store.snapshot())?, reading.mark, progress)?;
    let (tally, is_whole) = LossTally::read(copy)?;
    report.unrecorded.extend(tally.unreported(lost::reported(&View::new(store.snapshot())?)?));
    if !is_whole {
        report.notes.push("the count of lost records is damaged".into());
    }
    for table in store.damaged_tables()? {
        let table = table.path.strip_prefix(copy).map_or(table.path.clone(), |name| dir.join(name));
        report.altered.push(table);
    }
    let marks = View::new(store.snapshot())?.marks().count();
    if marks > 0 {
        let text = "calls were under way: they will be on record as unknown when it is opened";
        report.notes.push(format!("{marks} {text}"));
    }
    if reading.mark.is_none() && report.records > 0 {
        report.notes.push("there is no head: records may be missing at the end".into());
    }
    if reading.torn {
        report.notes.push("the head file holds a mark that is not whole".into());
    }
    for (journal, before) in journals::all(&copy.join(DB))?.iter().zip(before) {
        let after = used_bytes(journal)?;
        if after < before {
            let name = journal.file_name().unwrap_or_default().display();
            report
                .notes
                .push(format!("{name} holds {} bytes behind its last whole batch", before - after));
        }
    }
    Ok(report)
}

/// Verifies a log at one moment. It must reach the end of the chain that `mark` names.
///
/// # Errors
///
/// [`StoreError`] where it cannot be read.
pub fn verify(
    view: &View,
    mark: Option<ChainTip>,
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
                let too_many = holes.len() >= MOST_HOLES;
                return if too_many { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            }
        };
        let kind = kind(head);
        if kind == Some(Type::Gap) {
            report.gaps.extend(gap(body));
            if report.unrecorded.len() < MOST_OUTAGES {
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
    // Holes that the log itself names are reported as gaps.
    let known = |hole: &Hole| hole.gap().is_some_and(|gap| report.gaps.contains(&gap));
    report.broken = holes.into_iter().find(|hole| !known(hole)).map(|hole| hole.broken);
    if report.broken.is_some() {
        return Ok(report);
    }
    let broken = |seq, fault, why: &str| Some(Broken::new(seq, fault, why));
    progress(report.records, total);
    if first > 1 && retention != Some((first, view.before_first()?)) {
        let why = "no retention record says that it was removed";
        report.broken = broken(first - 1, Fault::Missing, why);
        return Ok(report);
    }
    match mark {
        Some(mark) if report.last < mark.seq => {
            let why = format!("the log ends before it, but record {} was durable", mark.seq);
            report.broken = broken(report.last + 1, Fault::Missing, &why);
        }
        Some(mark) if view.hash(mark.seq)?.is_some_and(|hash| hash != mark.hash) => {
            report.broken = broken(mark.seq, Fault::Altered, "its hash is not that of the head");
        }
        Some(_) | None => {}
    }
    Ok(report)
}

/// A range of records that are not intact, between two that are or at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The first record of the range, and what is wrong with it.
    pub broken: Broken,
    /// The next record that can be read, and the hash it follows; `None` at the end of the log.
    pub behind: Option<(u64, Hash)>,
}

impl Hole {
    /// The gap that a record of the log must name for the hole to be known; `None` at the end.
    #[must_use]
    pub fn gap(&self) -> Option<Gap> {
        let (next, follows) = self.behind?;
        Some(Gap::new(self.broken.seq, next - 1, follows))
    }
}

/// What a walk along the chain comes to next.
#[derive(Debug)]
pub enum ChainStep<'a> {
    /// An intact record.
    Record {
        /// Its number.
        seq: u64,
        /// Its head, encoded.
        head: &'a [u8],
        /// Its body, encoded.
        body: &'a [u8],
    },
    /// A range of records that are not intact.
    Hole(Hole),
}

/// Walks the chain from the first kept record, until `each` breaks.
///
/// # Errors
///
/// [`StoreError`] where the disk refuses, or the log's beginning cannot be read.
pub fn walk(
    view: &View,
    mut each: impl FnMut(ChainStep<'_>) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let mut last = view.before_first()?;
    let mut next = view.first();
    loop {
        let mut found = None;
        let mut blocks = match view.blocks(next, view.next()) {
            Ok(blocks) => Some(blocks),
            Err(error) => {
                found = Some(unreadable(next, error)?);
                None
            }
        };
        while let Some(block) = blocks.as_mut().and_then(Iterator::next) {
            let block = match block {
                Ok(block) => block,
                Err(error) => {
                    found = Some(unreadable(next, error)?);
                    break;
                }
            };
            if block.layout.first > next {
                let broken = Broken::new(next, Fault::Missing, "there is a gap");
                let behind = Some((block.layout.first, block.layout.prev));
                (next, last) = (block.layout.first, block.layout.prev);
                if each(ChainStep::Hole(Hole { broken, behind })).is_break() {
                    return Ok(());
                }
            }
            if let Some(broken) = walk_block(view, &block, &mut next, &mut last, &mut each)? {
                found = Some(broken);
                break;
            }
        }
        drop(blocks);
        let Some(broken) = found else { return Ok(()) };
        let behind = view.readable_after(next)?;
        let behind = behind.map(|block| (block.layout.first, block.layout.prev));
        if each(ChainStep::Hole(Hole { broken, behind })).is_break() {
            return Ok(());
        }
        match behind {
            Some(behind) => (next, last) = behind,
            None => break,
        }
    }
    Ok(())
}

/// The fault of record `seq`, which cannot be read because of damage; any other error is passed on.
fn unreadable(seq: u64, error: StoreError) -> Result<Broken, StoreError> {
    match error {
        StoreError::Damaged { .. } => Ok(Broken::new(seq, Fault::Altered, &error.to_string())),
        StoreError::Locked | StoreError::Io(_) => Err(error),
    }
}

/// Passes the intact records of one block to `each`. Returns the first that is not intact.
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
            return broken(seq, Fault::OutOfPlace, "it is there twice");
        }
        if prev != *last {
            return broken(seq, Fault::OutOfPlace, "it does not follow the one before it");
        }
        let body = bodies.as_ref().and_then(|bodies| bodies.get(block, seq));
        let (Some(head), Some(body)) = (block.head(seq), body) else {
            return broken(seq, Fault::Missing, "a part of it is missing");
        };
        let whole = codec::decode_head(head).is_ok() && codec::decode_body(body).is_ok();
        if !whole || codec::chain(*last, view.node(), seq, head, body) != hash {
            return broken(seq, Fault::Altered, "its hash does not fit");
        }
        if each(ChainStep::Record { seq, head, body }).is_break() {
            return Ok(None);
        }
        (*last, *next) = (hash, seq + 1);
    }
    Ok(None)
}

/// The type of a record.
#[must_use]
pub fn kind(head: &[u8]) -> Option<Type> {
    codec::decode_head(head).ok().map(|head| head.kind)
}

/// The hole that a record of the type `gap` names, if it names one.
#[must_use]
pub fn gap(body: &[u8]) -> Option<Gap> {
    Gap::read(&codec::decode_body(body).ok()?)
}

/// What could not be written, if the record of the type `gap` is about that.
#[must_use]
pub fn unrecorded(body: &[u8]) -> Option<Unrecorded> {
    Unrecorded::read(&codec::decode_body(body).ok()?)
}

/// The number of the first kept record, and the hash it follows, from the body of a record of the type
/// `retention`.
#[must_use]
pub fn kept_from(body: &[u8]) -> Option<(u64, Hash)> {
    let body = codec::decode_body(body).ok()?;
    let metadata: serde_json::Value = serde_json::from_slice(body.metadata.bytes()).ok()?;
    let first = metadata.get("first_kept_seq")?.as_u64()?;
    Some((first, Hash::parse(metadata.get("first_kept_prev_hash")?.as_str()?)?))
}

fn used_bytes(path: &Path) -> Result<usize, StoreError> {
    Ok(journals::used(&fs::read(path)?))
}
