//! Salvage (ACT-9): moves a damaged log aside, never deletes it, and begins a new one with every
//! record that is intact.
//!
//! The records keep their bytes, and with them numbers, ids and hashes, so the new log verifies; ranges
//! that are lost between them are named by records of the type `gap`. The new log is made beside the old
//! one and takes its place when it is whole: a process that is killed meanwhile leaves the old one
//! unchanged.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::append::{Appender, keys};
use super::copy::{self, Copy};
use super::folder;
use super::gap::Gap;
use super::lock::Lock;
use super::lost;
use super::node;
use super::record::{Draft, NodeId, Source, Status, Text, Type};
use super::recover;
use super::redact::Redactor;
use super::store::{Batch, DB, Fresh, Part, Space, Store, StoreError, journals};
use super::verify::{self, ChainStep, Report};
use super::view::{LogEnd, View};
use crate::os::private;

/// Records written at a time.
const BATCH_RECORDS: u64 = 4096;
/// The most gaps that get a record; the walk ends at the next one, and the rest stays in the log that
/// is moved aside.
const MOST_GAPS: usize = 1000;

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// The folder of the damaged log now.
    pub aside: PathBuf,
    /// The number of records that the new log begins with.
    pub kept: u64,
    /// The number of records that are lost between them.
    pub lost: u64,
    /// What was wrong with the old one.
    pub why: String,
}

/// Moves the log in `dir` aside and keeps what can be read. Returns `None` for a sound log, which is
/// left alone.
///
/// # Errors
///
/// [`StoreError::Locked`] if it is in use, [`StoreError::Io`] if the disk fails; the log is then where
/// it was.
pub fn salvage(dir: &Path, now_ms: u64) -> Result<Option<Salvaged>, StoreError> {
    private::apart(|| go_on(dir, now_ms, 0))
}

/// The same without an operator: a log of which nothing can be kept stays where it is.
///
/// # Errors
///
/// Those of [`salvage`]; [`StoreError::Damaged`] if nothing can be kept.
pub(super) fn salvage_some(dir: &Path, now_ms: u64) -> Result<Option<Salvaged>, StoreError> {
    private::apart(|| go_on(dir, now_ms, 1))
}

/// Salvages the log if at least `least` of its records are kept.
fn go_on(dir: &Path, now_ms: u64, least: u64) -> Result<Option<Salvaged>, StoreError> {
    let Some(why) = damage(dir)? else { return Ok(None) };
    let lock = Lock::take(dir)?;
    let (aside, new) = (folder::aside(dir)?, folder::replacement(dir));
    folder::remove(&new)?;
    private::new_folder(&new)?;
    let (kept, lost) = {
        let copy = Copy::beside(dir)?;
        match open_what_can_be(dir, copy.path())? {
            Some(old) => keep(&old, &new, &aside, &why, now_ms)?,
            None => (0, 0),
        }
    };
    if kept < least {
        folder::remove(&new)?;
        let why = format!("{why}; nothing of it can be read");
        return Err(StoreError::Damaged { file: dir.join(DB), why });
    }
    lost::copy(dir, &new)?;
    fs::rename(dir, &aside)?;
    folder::replace(dir)?;
    drop(lock);
    Ok(Some(Salvaged { aside, kept, lost, why }))
}

/// What is wrong with a log, if anything is.
fn damage(dir: &Path) -> Result<Option<String>, StoreError> {
    let found = recover::open(dir).map(drop).and_then(|()| {
        let scratch = Copy::scratch(dir)?;
        verify::folder(dir, scratch.path(), |_, _| {})
    });
    match found {
        Ok(Report { broken: Some(broken), .. }) => {
            Ok(Some(format!("record {} is not as it was written: {}", broken.seq, broken.why)))
        }
        Ok(Report { altered, .. }) => {
            Ok(altered.first().map(|file| format!("{} is damaged", file.display())))
        }
        Err(error @ StoreError::Damaged { .. }) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Parts that an empty log stands in for, one set after the other until the rest can be opened. What is
/// derived is made anew in any case.
const WITHOUT: [&[Part]; 3] =
    [&[Part::Derived], &[Part::Derived, Part::Meta], &[Part::Derived, Part::Meta, Part::State]];

/// Opens the copy of the log in `dir` without what is derived from records, else without the store's
/// own bookkeeping, else with its journals up to the first place that is damaged.
///
/// The store accepts a journal that ends anywhere, as after a crash, and refuses one with more behind a
/// damaged place. So the longest piece that it accepts ends at that place.
fn open_what_can_be(dir: &Path, copy: &Path) -> Result<Option<Store>, StoreError> {
    if !copy.join(DB).try_exists()? {
        return Ok(None);
    }
    let node = node::read(dir).ok().flatten();
    let scratch = Copy::scratch(dir)?;
    let fresh = Fresh::create(scratch.path(), node.unwrap_or(NodeId([0; 16])))?;
    // Without its state the log can be verified only if its node is known.
    let levels = WITHOUT.get(..if node.is_some() { 3 } else { 2 }).unwrap_or_default();
    for parts in levels {
        copy::again(dir, copy)?;
        if let Some(store) = open_without(copy, parts, &fresh)? {
            return Ok(Some(store));
        }
    }
    for parts in [levels.first(), levels.last()].into_iter().flatten() {
        let store = open_journals(dir, copy, &|copy| open_without(copy, parts, &fresh))?;
        if store.is_some() {
            return Ok(store);
        }
    }
    Ok(None)
}

/// Opens the copy without some parts; `None` if the rest is damaged, too.
fn open_without(copy: &Path, parts: &[Part], fresh: &Fresh) -> Result<Option<Store>, StoreError> {
    let opened = fresh.open_without(copy, parts).and_then(|store| {
        if parts.contains(&Part::State) {
            find_first(&store)?;
        }
        View::of_damaged(store.snapshot())?.before_first()?;
        Ok(store)
    });
    match opened {
        Ok(store) => Ok(Some(store)),
        Err(StoreError::Damaged { .. }) => Ok(None),
        // An error without a code of the system comes from the store's own checks.
        Err(StoreError::Io(error)) if error.raw_os_error().is_none() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Restores the number of the first kept record in a log that has lost its state: the last record of
/// the type `retention` names it.
fn find_first(store: &Store) -> Result<(), StoreError> {
    if store.snapshot().get(Space::State, keys::FIRST)?.is_some() {
        return Ok(());
    }
    let mut first = None;
    verify::walk(&View::of_damaged(store.snapshot())?, |step| {
        if let ChainStep::Record { head, body, .. } = step
            && verify::kind(head) == Some(Type::Retention)
        {
            first = verify::kept_from(body).or(first);
        }
        ControlFlow::Continue(())
    })?;
    if let Some((first, prev)) = first {
        let mut batch = Batch::default();
        batch.put(Space::State, keys::FIRST, [&first.to_be_bytes()[..], &prev.0].concat());
        store.commit(batch)?;
    }
    Ok(())
}

/// Opens the copy with the longest piece of its journals with which it can be.
fn open_journals(
    dir: &Path,
    copy: &Path,
    open: &dyn Fn(&Path) -> Result<Option<Store>, StoreError>,
) -> Result<Option<Store>, StoreError> {
    let mut whole: Vec<(PathBuf, u64)> = Vec::new();
    let opens = |journals: &[(PathBuf, u64)]| {
        refresh(dir, copy, journals)?;
        open(copy)
    };
    for journal in journals::all(&dir.join(DB))? {
        let used = journals::used(&fs::read(&journal)?) as u64;
        let with = |length: u64| {
            let mut journals = whole.clone();
            journals.push((journal.clone(), length));
            opens(&journals)
        };
        if with(used)?.is_some() {
            whole.push((journal, used));
            continue;
        }
        let (mut good, mut bad) = (0, used);
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            match with(middle)? {
                Some(_) => good = middle,
                None => bad = middle,
            }
        }
        if good > 0 {
            whole.push((journal, good));
        }
        break;
    }
    opens(&whole)
}

/// Makes the copy anew, with these journals alone, cut to these lengths.
fn refresh(dir: &Path, copy: &Path, journals: &[(PathBuf, u64)]) -> Result<(), StoreError> {
    copy::again(dir, copy)?;
    for path in journals::all(&copy.join(DB))? {
        let kept = journals.iter().find(|(journal, _)| journal.file_name() == path.file_name());
        match kept {
            Some((_, length)) => File::options().write(true).open(&path)?.set_len(*length)?,
            None => fs::remove_file(&path)?,
        }
    }
    Ok(())
}

/// Adds a gap, joined with the last one where they touch.
fn join(gaps: &mut Vec<(Gap, String)>, gap: Gap, why: String) {
    match gaps.last_mut() {
        Some((last, _)) if last.last_lost_seq + 1 == gap.first_lost_seq => {
            last.last_lost_seq = gap.last_lost_seq;
            last.follows_hash = gap.follows_hash;
        }
        Some(_) | None => gaps.push((gap, why)),
    }
}

/// Writes the intact records to a new log. Returns their number, and the number of those that are lost
/// between them.
fn keep(
    old: &Store,
    new: &Path,
    aside: &Path,
    why: &str,
    now_ms: u64,
) -> Result<(u64, u64), StoreError> {
    let Ok(view) = View::of_damaged(old.snapshot()) else { return Ok((0, 0)) };
    let Ok(before) = view.before_first() else { return Ok((0, 0)) };
    let store = Store::open_as(new, old.node())?;
    node::write(new, old.node())?;
    let end = LogEnd { next: view.first(), hash: before, stored_ms: 0 };
    let mut appender = Appender::at(store.node(), end, Redactor::default());
    appender.also(|batch| {
        let first = [&view.first().to_be_bytes()[..], &before.0].concat();
        batch.put(Space::State, keys::FIRST, first);
    });
    // The marks of calls under way are copied; those that cannot be read are lost.
    for (key, value) in view.marks().map_while(Result::ok) {
        appender.also(|batch| batch.put(Space::State, key, value));
    }
    let (mut kept, mut gaps, mut known, mut end) = (0, Vec::new(), Vec::new(), None);
    let mut told = lost::told(&view).unwrap_or_default();
    let mut result = Ok(());
    verify::walk(&view, |step| {
        match step {
            ChainStep::Record { head, body, .. } => {
                if verify::kind(head) == Some(Type::Gap) {
                    known.extend(verify::gap(body));
                    told = told.max(verify::unrecorded(body).map_or(0, |it| it.total));
                }
                kept += u64::from(appender.push_raw(head, body).is_ok());
            }
            ChainStep::Hole(hole) => match (hole.gap(), hole.behind) {
                (Some(gap), Some((next, follows))) if gaps.len() < MOST_GAPS => {
                    appender.skip(next, follows);
                    join(&mut gaps, gap, hole.broken.why);
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
    let lost: u64 = gaps.iter().map(|(gap, _)| gap.records()).sum();
    let ranges = gaps.iter().flat_map(|(gap, _)| [gap.first_lost_seq, gap.last_lost_seq]);
    let ranges: Vec<u8> = ranges.flat_map(u64::to_be_bytes).collect();
    appender.also(|batch| {
        batch.put(Space::State, keys::GAPS, ranges);
        batch.put(Space::State, keys::LOST, told.to_be_bytes().to_vec());
    });
    // Earlier gaps are named by records that were kept.
    for (gap, why) in gaps.iter().filter(|(gap, _)| !known.contains(gap)) {
        appender.push(&gap.draft(why, now_ms).into(), now_ms);
    }
    let mut draft = Draft::new(Type::SystemStart, Source::Internal, Status::Error);
    draft.started = now_ms.saturating_mul(1000);
    let end = end.map_or(String::new(), |broken| {
        format!("; record {} is the first that is lost at the end: {}", broken.seq, broken.why)
    });
    let text = format!(
        "{why}; {kept} records were kept, {lost} between them are lost, the damaged log is in {}{end}",
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
