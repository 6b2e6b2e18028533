//! Opening a log that may have been cut or altered: checks it before the store's own recovery can
//! repair anything away (ACT-4, ACT-9).
//!
//! fjall cuts a journal at the first batch that is not whole. After a crash that is right; where
//! acknowledged records lie behind the cut it destroys evidence. So journals are copied before
//! the store is opened, and put back if the log then ends before its head.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::append::Appender;
use super::begun;
use super::chain_tip::{self, ChainTip, ChainTipFile};
use super::copy::Copy;
use super::file_checksums::{self, ChecksumFinding, Depth};
use super::folder;
pub use super::lock::Lock;
use super::lock::{LOCK_PAUSE, LOCK_TRIES};
use super::node;
use super::rebuild;
use super::record::Hash;
use super::redact::Redactor;
use super::store::{DB, Store, StoreError, journals};
use super::view::View;
use crate::os::private;

/// The folder of the journals that were copied aside, and the name under which it is made.
const KEPT: &str = "journals";
const KEPT_NEW: &str = "journals.new";
/// Tries, and the time between them, for the last reader of a log to be gone before it is closed.
const CLOSE_TRIES: u32 = 20;
const CLOSE_PAUSE: Duration = Duration::from_millis(25);

/// A copy of a log, opened in its place to be read.
#[derive(Debug)]
pub(super) struct Reading {
    /// The copy's store.
    pub(super) store: Store,
    /// The copy; dropped after the store.
    pub(super) copy: Copy,
    /// Keeps writers away from the original.
    pub(super) lock: Option<Lock>,
}

/// Opens a copy of the log in `dir`, made in `scratch`, to be read; nothing in `dir` changes. Where there
/// is no log, an empty one is opened.
///
/// # Errors
///
/// Those of [`open`]. A log whose last writer was killed is read up to where it ends.
pub(super) fn read(dir: &Path, scratch: &Path) -> Result<Reading, StoreError> {
    let lock = Lock::share(dir)?;
    if let ChecksumFinding::Altered(files) = file_checksums::check(dir, Depth::Quick)? {
        return Err(altered(files));
    }
    let copy = Copy::below(scratch, dir)?;
    let opened = ChainTipFile::read(dir).and_then(|reading| {
        let reading = reading.usable(dir)?;
        rebuild::resume(copy.path())?;
        let store = Store::open(copy.path())?;
        let view = View::new(store.snapshot())?;
        check_end(dir, reading.mark, &view)?;
        if view.marks().next().is_some() {
            // As the next start will do in the log itself.
            begun::settle(&store, &mut Appender::resume(&view, Redactor::default())?)?;
        }
        Ok(store)
    });
    match opened {
        Ok(store) => Ok(Reading { store, copy, lock }),
        Err(error) => Err(copy.as_original(dir, error)),
    }
}

fn altered(files: Vec<PathBuf>) -> StoreError {
    let file = files.into_iter().next().unwrap_or_default();
    StoreError::Damaged { file, why: "it is not what it was when the log was closed".into() }
}

/// An open log and the end of its chain.
#[derive(Debug)]
pub struct OpenLog {
    /// Keeps others out.
    pub lock: Lock,
    /// The store.
    pub store: Store,
    /// The file with the end of the chain.
    pub head: ChainTipFile,
}

/// Opens the log in `dir`, or makes one there.
///
/// # Errors
///
/// [`StoreError`]; after [`StoreError::Damaged`] the folder holds what it held before.
pub fn open(dir: &Path) -> Result<OpenLog, StoreError> {
    for _ in 1..LOCK_TRIES {
        match open_now(dir) {
            Err(StoreError::Locked) => std::thread::sleep(LOCK_PAUSE),
            opened => return opened,
        }
    }
    open_now(dir)
}

fn open_now(dir: &Path) -> Result<OpenLog, StoreError> {
    // A salvage was killed after it moved the damaged log aside, and before the new one took its place.
    if !dir.try_exists()? && folder::replacement(dir).try_exists()? {
        folder::replace(dir)?;
    }
    let lock = Lock::take(dir)?;
    match file_checksums::check(dir, Depth::Quick)? {
        ChecksumFinding::Whole => {}
        ChecksumFinding::NotClosed => keep_journals(dir)?,
        ChecksumFinding::Altered(files) => return Err(altered(files)),
    }
    file_checksums::remove(dir)?;
    rebuild::resume(dir)?;
    let opened = ChainTipFile::open(dir).and_then(|(head, reading)| {
        let store = Store::open(dir)?;
        check_end(dir, reading.mark, &View::new(store.snapshot())?)?;
        node::agree(dir, store.node())?;
        Ok((store, head))
    });
    match opened {
        Ok((store, head)) => {
            folder::remove(&dir.join(KEPT))?;
            Ok(OpenLog { lock, store, head })
        }
        Err(error @ StoreError::Damaged { .. }) => {
            put_back(dir)?;
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// Refuses a log that ends before its head, or whose head is another record's.
///
/// # Errors
///
/// [`StoreError::Damaged`].
pub fn check_end(dir: &Path, mark: Option<ChainTip>, view: &View) -> Result<(), StoreError> {
    let Some(mark) = mark else { return Ok(()) };
    let last = view.next() - 1;
    if last < mark.seq {
        return Err(StoreError::Damaged {
            file: journals::newest(&dir.join(DB)),
            why: format!("the log ends with record {last}, but record {} was durable", mark.seq),
        });
    }
    match view.hash(mark.seq)? {
        Some(hash) if hash != mark.hash => Err(StoreError::Damaged {
            file: dir.join(chain_tip::NAME),
            why: format!("record {} has hash {hash}, but was {}", mark.seq, mark.hash),
        }),
        Some(Hash(_)) | None => Ok(()),
    }
}

/// Writes the checksums of the log in `dir`, if nobody reads it any more: a reader keeps the store
/// open, and an open store may still change.
///
/// # Errors
///
/// Those of reading and writing.
pub fn close(dir: &Path) -> Result<(), StoreError> {
    if is_closed(dir)? { Ok(file_checksums::write(dir)?) } else { Ok(()) }
}

fn is_closed(dir: &Path) -> Result<bool, StoreError> {
    for _ in 0..CLOSE_TRIES {
        match File::open(dir.join(DB).join("lock"))?.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::sleep(CLOSE_PAUSE),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Copies the journals aside. Copies of an earlier attempt that did not end are older, and stay.
fn keep_journals(dir: &Path) -> Result<(), StoreError> {
    let (db, kept, new) = (dir.join(DB), dir.join(KEPT), dir.join(KEPT_NEW));
    if kept.try_exists()? || !db.try_exists()? {
        return Ok(());
    }
    folder::remove(&new)?;
    private::new_folder(&new)?;
    for journal in journals::all(&db)? {
        journals::copy_sparse(&journal, &new.join(journal.file_name().unwrap_or_default()))?
            .sync_all()?;
    }
    Ok(fs::rename(new, kept)?)
}

/// Puts the copied journals back.
fn put_back(dir: &Path) -> Result<(), StoreError> {
    let kept = dir.join(KEPT);
    if kept.try_exists()? {
        for journal in journals::all(&kept)? {
            let original = dir.join(DB).join(journal.file_name().unwrap_or_default());
            journals::copy_sparse(&journal, &original)?.sync_all()?;
        }
        folder::remove(&kept)?;
    }
    Ok(())
}
