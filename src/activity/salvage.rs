//! Salvage and repair of damaged logs (ACT-9). A salvage moves the damaged log aside, never deletes it, and
//! starts a new one with every intact record.
//!
//! Records keep their bytes and therefore their numbers, ids and hashes, so the new log verifies. `gap` records name
//! the lost ranges. The range at the end extends to the chain tip, plus `TAIL_RESERVE` numbers if more may have been
//! written. A damaged journal costs only its damaged blocks of records (`recover`). The new log is built next to the
//! old one and replaces it when complete; if the process is killed before that, the old log is unchanged.
//!
//! The damaged log is read from copies whose tables are links: `base` is made openable (`store::rebuild`),
//! and each attempt opens a copy of it. Copies left by a killed process are removed at the next start.
//!
//! [`repair`] works while the process runs. Damaged tables of derived data are rebuilt; damaged records are handled by
//! a salvage. fjall's compaction stops permanently at a damaged table, so without a repair the log would stop accepting
//! writes. Scrubbing finds damage in rarely read tables before a compaction does, and damage in journals while their
//! contents are still in memory.

use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, thread};

use super::chain::Appender;
use super::chain_tip::{ChainTip, ChainTipFile, TipReading};
use super::folder::{self, Copy, Lock};
use super::gap::Gap;
use super::record::{Draft, NodeId, Source, Status, Text, Type};
use super::redact::Redactor;
use super::store::{self, Batch, DB, Fresh, Part, Space, Store, StoreError, TableFile};
use super::verify::{self, ChainStep, Report};
use super::view::{LogEnd, View};
use super::{file_checksums, keys, losses, recover, restore};
use crate::store::journal_files;
use mcpproxy_runtime::os::{private, space};

/// Records written per batch.
const BATCH_RECORDS: u64 = 4096;
/// Maximum number of gaps that get a record. The walk ends at the next gap; the rest remains in the damaged log.
const MAX_GAPS: usize = 1000;
/// Number of sequence numbers skipped if the end of the log is unknown: more than the writer assigns between two writes
/// of the chain tip.
const TAIL_RESERVE: u64 = 1 << 16;
/// Number of journal copies that a salvage makes.
const JOURNAL_COPIES: u64 = 2;
/// Disk space that a salvage needs for the store's own files, in addition to the records and journals.
const STORE_BYTES: u64 = 4 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// New folder of the damaged log.
    pub aside: PathBuf,
    /// Number of records in the new log.
    pub kept: u64,
    /// Number of records known to be lost.
    pub lost: u64,
    /// Description of the damage.
    pub why: String,
}

/// Moves the log in `dir` aside and keeps its readable records. Returns `None` for a sound log, which is not changed.
/// On [`StoreError::Locked`] and [`StoreError::Io`] the log is unchanged.
pub fn salvage(dir: &Path, now_ms: u64) -> Result<Option<Salvaged>, StoreError> {
    private::apart(|| salvage_if_kept(dir, now_ms, 0, None))
}

/// Salvages without an operator. If no record can be kept, the log stays in place and the result is
/// [`StoreError::Damaged`]. `tip` is the chain tip known to the writing process.
pub(super) fn salvage_some(
    dir: &Path,
    now_ms: u64,
    tip: ChainTip,
) -> Result<Option<Salvaged>, StoreError> {
    private::apart(|| salvage_if_kept(dir, now_ms, 1, Some(tip)))
}

/// Known end of a damaged log.
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// The last record known to have been written.
    tip: Option<ChainTip>,
    /// Whether `tip` is certainly the last record.
    is_final: bool,
    /// Whether the journals end in an incomplete batch, or the chain tip may be lost.
    is_cut: bool,
}

impl Tail {
    /// Determines the end of the log in `dir`; `tip` is known to the writing process.
    fn of(dir: &Path, tip: Option<ChainTip>, was_closed: bool) -> Result<Self, StoreError> {
        let head = match ChainTipFile::read(dir) {
            // A damaged file yields no tip, like a file that holds no intact entry.
            Err(StoreError::Damaged { .. }) => TipReading { tip: None, torn: true },
            head => head?,
        };
        let tip_found = [head.tip, tip].into_iter().flatten().max_by_key(|tip| tip.seq);
        let is_final = tip.is_some() || (was_closed && tip_found.is_some());
        let db = dir.join(DB);
        let is_cut = !is_final && db.try_exists()? && {
            let journals = journal_files::survey_readable(&db, &recover::evidence(dir))?;
            journals.last().is_none_or(|newest| newest.survey.tail().is_some())
        };
        Ok(Self { tip: tip_found, is_final, is_cut: is_cut || (tip_found.is_none() && head.torn) })
    }

    /// Returns the gap after the last kept record, and the chain tip after the gap. `is_cut` means that the data after
    /// that record could not be read.
    fn gap(self, last: ChainTip, is_cut: bool) -> Option<(Gap, ChainTip)> {
        let end = self.tip.filter(|tip| tip.seq > last.seq).unwrap_or(last);
        let is_known = self.is_final || (end == last && !is_cut && !self.is_cut);
        let reserve = if is_known { 0 } else { TAIL_RESERVE };
        let first = last.seq.checked_add(1)?;
        let unused = end.seq.checked_add(reserve)?;
        let unknown_from = (reserve > 0).then(|| end.seq.saturating_add(1));
        let gap = Gap { unknown_from, ..Gap::new(first, unused, end.hash) };
        (unused >= first).then_some((gap, ChainTip { seq: unused, hash: end.hash }))
    }
}

/// Salvages the log if at least `min_kept` of its records can be kept.
fn salvage_if_kept(
    dir: &Path,
    now_ms: u64,
    min_kept: u64,
    tip: Option<ChainTip>,
) -> Result<Option<Salvaged>, StoreError> {
    // If the folder is missing, the next start finishes a killed salvage.
    if dir.try_exists()? {
        let _lock = Lock::take(dir)?;
        folder::remove_leftovers(dir);
    }
    let was_closed = file_checksums::exists(dir)?;
    let why = match damage(dir) {
        Ok(Some(why)) => why,
        Ok(None) => return Ok(None),
        Err(error) => {
            // Even opening the log takes some space.
            if error.io().is_some_and(|error| error.kind() == io::ErrorKind::StorageFull) {
                check_space(dir)?;
            }
            return Err(error);
        }
    };
    let lock = Lock::take(dir)?;
    let tail = Tail::of(dir, tip, was_closed)?;
    let (aside, new) = (folder::aside_path(dir)?, folder::replacement(dir));
    folder::remove(&new)?;
    check_space(dir)?;
    private::new_folder(&new)?;
    let made =
        make_replacement(dir, &new, tail, (&aside, &why), now_ms).and_then(|(kept, lost)| {
            if kept < min_kept {
                let why = format!("{why}; none of its records can be read");
                return Err(StoreError::Damaged { file: dir.join(DB), why });
            }
            losses::copy_tally(dir, &new)?;
            Ok((kept, lost))
        });
    let (kept, lost) = match made {
        Ok(counts) => counts,
        Err(error) => {
            // Free disk space, because the disk may be full.
            folder::remove(&new)?;
            return Err(error);
        }
    };
    // The fleet's store may hold sealed records under the lost numbers.
    restore::request_restore(dir)?;
    fs::rename(dir, &aside)?;
    folder::install_replacement(dir)?;
    drop(lock);
    Ok(Some(Salvaged { aside, kept, lost, why }))
}

/// Builds the new log in `new` from the readable parts of the log in `dir`. Returns the numbers of kept and lost records.
fn make_replacement(
    dir: &Path,
    new: &Path,
    tail: Tail,
    (aside, why): (&Path, &str),
    now_ms: u64,
) -> Result<(u64, u64), StoreError> {
    let copy = Copy::scratch(dir)?;
    let old = match open_readable_parts(dir, copy.path(), tail.tip)? {
        Some(old) => Some(old),
        None => open_empty(dir, copy.path())?,
    };
    match old {
        Some(old) => copy_intact(&old, new, tail, (aside, why), now_ms),
        None => Ok((0, 0)),
    }
}

/// Checks that the disk has space for the new log and the journal copies; tables are linked.
fn check_space(dir: &Path) -> Result<(), StoreError> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let db = dir.join(DB);
    let journals = journal_files::list(&db).unwrap_or_default();
    // Journals are preallocated, so only their allocated blocks are counted.
    let taken = |journal: &PathBuf| fs::metadata(journal).map_or(0, |found| found.blocks() * 512);
    let journals: u64 = journals.iter().map(taken).sum();
    let needed = (space::used(dir) + JOURNAL_COPIES * journals).saturating_add(STORE_BYTES);
    let free = space::free(parent)?;
    if free >= needed {
        return Ok(());
    }
    let why = format!(
        "a salvage of {} needs {} MiB on its disk, and {} MiB are free; free the rest there",
        dir.display(),
        needed.div_ceil(1 << 20),
        free >> 20
    );
    Err(StoreError::Io(io::Error::new(io::ErrorKind::StorageFull, why)))
}

/// Describes the damage of a log, if there is any.
fn damage(dir: &Path) -> Result<Option<String>, StoreError> {
    let found = recover::open(dir).map(drop).and_then(|()| {
        let scratch = Copy::scratch(dir)?;
        verify::folder(dir, scratch.path(), |_, _| {})
    });
    match found {
        Ok(Report { broken: Some(broken), .. }) => {
            Ok(Some(format!("record {} differs from what was written: {}", broken.seq, broken.why)))
        }
        Ok(Report { altered, .. }) => {
            Ok(altered.first().map(|file| format!("{} is damaged", file.display())))
        }
        Err(error @ StoreError::Damaged { .. }) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Parts that are replaced by those of an empty log. The sets are tried in this order until the rest of the log can be
/// opened. Derived data is rebuilt anyway, and the store's own metadata is the same in every log.
const REPLACED_PARTS: [&[Part]; 2] =
    [&[Part::Derived, Part::Meta], &[Part::Derived, Part::Meta, Part::State]];

/// Opens a copy of the log in `dir` at `copy` and keeps as much of it as possible. The copy has the log's tables and
/// state, or only its tables if the state cannot be opened. Both variants are tried with the intact batches of the
/// journals first, then without journals. Finally, the blocks that only the journals hold are added.
fn open_readable_parts(
    dir: &Path,
    copy: &Path,
    tip: Option<ChainTip>,
) -> Result<Option<Store>, StoreError> {
    if !dir.join(DB).try_exists()? {
        return Ok(None);
    }
    let node = folder::read_node(dir).ok().flatten();
    let scratch = Copy::scratch(dir)?;
    let fresh = Fresh::create(scratch.path(), node.unwrap_or(NodeId([0; 16])))?;
    let base = Copy::beside(dir)?;
    store::rebuild_keyspaces(base.path())?;
    let base = base.path();
    // Without its state the log can be verified only if its node id is known.
    let levels = REPLACED_PARTS.get(..if node.is_some() { 2 } else { 1 }).unwrap_or_default();
    for with_journals in [true, false] {
        for parts in levels {
            folder::recopy(base, copy)?;
            match with_journals {
                true => drop(journal_files::repair(&copy.join(DB), &recover::evidence(dir))?),
                false => journal_files::empty(&copy.join(DB))?,
            }
            if let Some(store) = open_without(copy, parts, &fresh)? {
                recover::add_missing(&store, dir, tip)?;
                restore_first(&store)?;
                return Ok(Some(store));
            }
        }
    }
    Ok(None)
}

/// Opens an empty log in place of an unreadable one; `None` if its node id is unknown.
fn open_empty(dir: &Path, copy: &Path) -> Result<Option<Store>, StoreError> {
    let Some(node) = folder::read_node(dir).ok().flatten() else { return Ok(None) };
    folder::remove(copy)?;
    private::new_folder(copy)?;
    Store::open_as(copy, node).map(Some)
}

/// Opens the copy without some parts; `None` if the rest is damaged as well.
fn open_without(copy: &Path, parts: &[Part], fresh: &Fresh) -> Result<Option<Store>, StoreError> {
    let opened = fresh.open_without(copy, parts).and_then(|store| {
        View::of_damaged(store.snapshot()?)?.before_first()?;
        Ok(store)
    });
    match opened {
        Ok(store) => Ok(Some(store)),
        Err(StoreError::Damaged { .. }) => Ok(None),
        // An error without a system error code comes from the store's own checks.
        Err(StoreError::Io(error)) if error.raw_os_error().is_none() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Restores the number of the first retained record from the last `retention` record, if the state has lost the number.
fn restore_first(store: &Store) -> Result<(), StoreError> {
    let known = View::of_damaged(store.snapshot()?)?.first();
    let mut first = None;
    verify::walk(&View::of_damaged(store.snapshot()?)?, |step| {
        if let ChainStep::Record { head, body, .. } = step
            && verify::kind(head) == Some(Type::Retention)
        {
            first = verify::kept_from(body).or(first);
        }
        ControlFlow::Continue(())
    })?;
    if let Some((first, prev)) = first.filter(|(first, _)| *first > known) {
        let mut batch = Batch::default();
        batch.put(Space::State, keys::FIRST, [&first.to_be_bytes()[..], &prev.0].concat());
        store.commit(batch)?;
    }
    Ok(())
}

/// Adds a gap, merged with the previous one if they are adjacent.
fn join(gaps: &mut Vec<(Gap, String)>, gap: Gap, why: String) {
    match gaps.last_mut() {
        Some((last, _)) if last.last_lost_seq + 1 == gap.first_lost_seq => {
            last.last_lost_seq = gap.last_lost_seq;
            last.follows_hash = gap.follows_hash;
            last.unknown_from = gap.unknown_from;
        }
        Some(_) | None => gaps.push((gap, why)),
    }
}

/// Copies the intact records to a new log. Returns the numbers of kept and lost records.
fn copy_intact(
    old: &Store,
    new: &Path,
    tail: Tail,
    (aside, why): (&Path, &str),
    now_ms: u64,
) -> Result<(u64, u64), StoreError> {
    let Ok(view) = old.snapshot().and_then(View::of_damaged) else { return Ok((0, 0)) };
    let Ok(before) = view.before_first() else { return Ok((0, 0)) };
    let store = Store::open_as(new, old.node())?;
    folder::write_node(new, old.node())?;
    let end = LogEnd { next: view.first(), hash: before, stored_ms: 0 };
    let mut appender = Appender::at(store.node(), end, Redactor::default());
    appender.add_writes(|batch| {
        let first = [&view.first().to_be_bytes()[..], &before.0].concat();
        batch.put(Space::State, keys::FIRST, first);
    });
    // Marks of calls in flight are copied as well; unreadable marks are lost.
    for (key, value) in view.marks().map_while(Result::ok) {
        appender.add_writes(|batch| batch.put(Space::State, key, value));
    }
    // The damaged files are read from a copy, but the report names the folder to which the log is moved.
    let copy = old.path().parent().unwrap_or(old.path()).to_string_lossy().into_owned();
    let as_moved = |why: &str| why.replace(&copy, &aside.to_string_lossy());
    let (mut kept, mut gaps, mut known, mut end) = (0, Vec::new(), Vec::new(), None);
    let mut reported = losses::reported(&view).unwrap_or_default();
    let mut result = Ok(());
    verify::walk(&view, |step| {
        match step {
            ChainStep::Record { head, body, .. } => {
                if verify::kind(head) == Some(Type::Gap) {
                    known.extend(verify::gap(body));
                    reported = reported.max(verify::unrecorded(body).map_or(0, |it| it.total));
                }
                kept += u64::from(appender.push_raw(head, body).is_ok());
            }
            ChainStep::Hole(hole) => match (hole.gap(), hole.next) {
                (Some(gap), Some((next, follows))) if gaps.len() < MAX_GAPS => {
                    appender.skip(next, follows);
                    join(&mut gaps, gap, as_moved(&hole.broken.why));
                }
                _ => {
                    end = Some(hole.broken);
                    return ControlFlow::Break(());
                }
            },
        }
        if appender.pending() >= BATCH_RECORDS
            && let Some(prepared) = appender.take()
        {
            result = store.commit(prepared.batch);
        }
        if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    result?;
    if let Some((gap, tip)) = tail.gap(appender.tip(), end.is_some()) {
        appender.skip(tip.seq.saturating_add(1), tip.hash);
        let why =
            end.map_or_else(|| "the log no longer holds them".to_owned(), |end| as_moved(&end.why));
        join(&mut gaps, gap, why);
    }
    for (gap, _) in &mut gaps {
        // The record that names the gap holds the details.
        if let Some(named) = known.iter().find(|named| named.is_same_hole(gap)) {
            *gap = named.clone();
        }
    }
    let lost: u64 = gaps.iter().map(|(gap, _)| gap.records()).sum();
    let ranges = gaps.iter().flat_map(|(gap, _)| [gap.first_lost_seq, gap.last_lost_seq]);
    let ranges: Vec<u8> = ranges.flat_map(u64::to_be_bytes).collect();
    appender.add_writes(|batch| {
        batch.put(Space::State, keys::GAPS, ranges);
        batch.put(Space::State, keys::LOST, reported.to_be_bytes().to_vec());
    });
    // Records that were kept already name the earlier gaps.
    for (gap, why) in gaps.iter().filter(|(gap, _)| !known.contains(gap)) {
        appender.push(&gap.draft(why, now_ms).into(), now_ms);
    }
    let mut draft = Draft::new(Type::SystemStart, Source::Internal, Status::Error);
    draft.started = now_ms.saturating_mul(1000);
    let text = format!(
        "{why}; {kept} records were kept, {lost} are lost, the damaged log is in {}",
        aside.display()
    );
    draft.set(Text::Error, &text);
    appender.push(&draft.into(), now_ms);
    if let Some(prepared) = appender.take() {
        store.commit(prepared.batch)?;
    }
    store.sync()?;
    Ok((kept, lost))
}

/// Minimum time between scrubs that are started early because damage was found.
pub(super) const SCRUB_AGAIN: Duration = Duration::from_secs(60);
/// Pause after each megabyte, so that calls can use the disk.
pub(super) const SCRUB_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) enum Repaired {
    /// Neither a table nor a journal is damaged.
    Sound,
    /// This journal was damaged; everything it held is in tables.
    Journal(PathBuf),
    /// Derived data was rebuilt because this table was damaged.
    Derived(PathBuf),
    /// Records were damaged, and the log was salvaged.
    Salvaged(Salvaged),
}

/// Repairs the closed log in `dir`, whose chain ends with `tip`. `is_flushed` means that all records are in tables. On
/// [`StoreError::Locked`] and [`StoreError::Io`] the log is unchanged, or the next attempt finishes the repair;
/// [`StoreError::Damaged`] if no record could be kept.
pub(super) fn repair(
    dir: &Path,
    tip: ChainTip,
    is_flushed: bool,
    now_ms: u64,
) -> Result<Repaired, StoreError> {
    let mut journal = None;
    let part = {
        let _lock = Lock::take(dir)?;
        if is_flushed {
            if !recover::is_closed(dir)? {
                return Err(StoreError::Locked);
            }
            let db = dir.join(DB);
            let surveyed = journal_files::survey(&db, &recover::evidence(dir))?;
            let is_damaged = |it: &&journal_files::SurveyedJournal| !it.survey.damaged.is_empty();
            journal = surveyed.iter().find(is_damaged).map(|it| it.path.clone());
            journal = journal.or_else(|| journal_files::damaged(&surveyed).map(|it| it.0.into()));
            if journal.is_some() {
                journal_files::empty(&db)?;
            }
        }
        match recover::check_journals(dir) {
            Ok(()) => damaged_part(dir)?,
            // The store must not be opened, because it would drop the records after the damage.
            Err(StoreError::Damaged { .. }) => DamagedPart::Records,
            Err(error) => return Err(error),
        }
    };
    let derived = match part {
        DamagedPart::Nothing => return Ok(journal.map_or(Repaired::Sound, Repaired::Journal)),
        DamagedPart::Derived(file) => Some(file),
        DamagedPart::Records => None,
    };
    if let Some(file) = derived {
        let _lock = Lock::take(dir)?;
        match recover::rebuild_derived(dir) {
            Ok(()) => return Ok(Repaired::Derived(file)),
            Err(StoreError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(salvage_some(dir, now_ms, tip)?.map_or(Repaired::Sound, Repaired::Salvaged))
}

/// Damaged part of a log.
enum DamagedPart {
    Nothing,
    /// This damaged file holds derived data, or may hold derived data.
    Derived(PathBuf),
    Records,
}

/// Opens the log in `dir` and checks its tables.
fn damaged_part(dir: &Path) -> Result<DamagedPart, StoreError> {
    match Store::open(dir).and_then(|store| store.damaged_tables()) {
        Ok(tables) if !tables.iter().all(TableFile::is_derived) => Ok(DamagedPart::Records),
        Ok(tables) => {
            let first = tables.into_iter().next();
            Ok(first.map_or(DamagedPart::Nothing, |table| DamagedPart::Derived(table.path)))
        }
        // The error does not name the keyspace, so the damaged data may be derived data.
        Err(StoreError::Damaged { file, .. }) => Ok(DamagedPart::Derived(file)),
        Err(error) => Err(error),
    }
}

/// Checks `tables`, with a pause after each megabyte, and returns the first damaged one. Stops early once
/// `keep_going` is false.
pub(super) fn scrub(
    tables: Vec<TableFile>,
    pause: Duration,
    keep_going: impl Fn() -> bool,
) -> Result<Option<PathBuf>, StoreError> {
    for table in tables {
        let sound = table.is_sound(|| {
            if !pause.is_zero() {
                thread::park_timeout(pause);
            }
            keep_going()
        });
        match sound {
            Ok(true) => {}
            Ok(false) if keep_going() => return Ok(Some(table.path)),
            Ok(false) => return Ok(None),
            // The table was compacted in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}
