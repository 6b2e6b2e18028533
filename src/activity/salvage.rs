//! Salvage (ACT-9): moves a damaged log aside, never deletes it, and begins a new one with every
//! record from the oldest kept up to the first that is not as it was written.
//!
//! The records keep their numbers, ids and hashes, so the new log verifies. What lies behind the
//! first fault stays in the folder that was moved aside.

use std::fs;
use std::path::{Path, PathBuf};

use super::append::{Appender, keys};
use super::copy::Copy;
use super::record::{Draft, Source, Status, Text, Type};
use super::recover::{self, Lock};
use super::redact::Redactor;
use super::store::{DB, Space, Store, StoreError};
use super::verify;
use super::view::{End, View};
use crate::os::private;

/// Records written at a time.
const BATCH_RECORDS: u64 = 4096;

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// Where the damaged log is now.
    pub aside: PathBuf,
    /// How many records the new log begins with.
    pub kept: u64,
    /// What was wrong with the old one.
    pub why: String,
}

/// Moves the log in `dir` aside and keeps what can be read. A log that is sound is left alone:
/// then there is nothing to tell.
///
/// # Errors
///
/// [`StoreError::Locked`] if it is in use; [`StoreError::Io`] if the disk refuses.
pub fn salvage(dir: &Path, now_ms: u64) -> Result<Option<Salvaged>, StoreError> {
    private::apart(|| go_on(dir, now_ms))
}

fn go_on(dir: &Path, now_ms: u64) -> Result<Option<Salvaged>, StoreError> {
    let why = match recover::open(dir) {
        Ok(_) => return Ok(None),
        Err(error @ StoreError::Damaged { .. }) => error.to_string(),
        Err(error) => return Err(error),
    };
    let aside = move_aside(dir)?;
    let copy = Copy::beside(&aside)?;
    let lock = Lock::take(dir)?;
    let kept = match open_what_can_be(copy.path())? {
        Some(old) => keep(&old, dir, &aside, &why, now_ms)?,
        None => 0,
    };
    drop(lock);
    Ok(Some(Salvaged { aside, kept, why }))
}

/// Renames the folder to the first name that is free.
fn move_aside(dir: &Path) -> Result<PathBuf, StoreError> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut number = 1;
    loop {
        let aside = dir.with_file_name(format!("{name}.damaged-{number}"));
        if !aside.try_exists()? {
            fs::rename(dir, &aside)?;
            return Ok(aside);
        }
        number += 1;
    }
}

/// Opens the copy as it is, else without its journals.
fn open_what_can_be(copy: &Path) -> Result<Option<Store>, StoreError> {
    if !copy.join(DB).try_exists()? {
        return Ok(None);
    }
    if let Ok(store) = Store::open(copy) {
        return Ok(Some(store));
    }
    for journal in recover::journals(&copy.join(DB))? {
        fs::remove_file(journal)?;
    }
    Ok(Store::open(copy).ok())
}

fn keep(old: &Store, dir: &Path, aside: &Path, why: &str, now_ms: u64) -> Result<u64, StoreError> {
    let Ok(view) = View::new(old.snapshot()) else { return Ok(0) };
    let Ok(before) = view.before_first() else { return Ok(0) };
    let store = Store::open_as(dir, old.node())?;
    let end = End { next: view.first(), hash: before, stored_ms: 0 };
    let mut appender = Appender::at(store.node(), end, Redactor::default());
    appender.also(|batch| {
        let first = [&view.first().to_be_bytes()[..], &before.0].concat();
        batch.put(Space::State, keys::FIRST, first);
    });
    let mut kept = 0;
    let mut result = Ok(());
    let walked = verify::walk(&view, |head, body| {
        if appender.push_raw(head, body).is_ok() {
            kept += 1;
        }
        if appender.pending() >= BATCH_RECORDS
            && let Some(prepared) = appender.take()
            && result.is_ok()
        {
            result = store.commit(prepared.batch);
        }
    });
    result?;
    let fault = match walked {
        Ok(None) => String::new(),
        Ok(Some(broken)) => format!("; record {} was the first that is lost", broken.seq),
        Err(error) => format!("; {error}"),
    };
    let mut draft = Draft::new(Type::SystemStart, Source::Internal, Status::Error);
    draft.started = now_ms.saturating_mul(1000);
    let lost =
        format!("{why}; {kept} records were kept, the rest is in {}{fault}", aside.display());
    draft.set(Text::Error, &lost);
    appender.push(&draft.into(), now_ms);
    if let Some(prepared) = appender.take() {
        store.commit(prepared.batch)?;
    }
    store.sync()?;
    Ok(kept)
}
