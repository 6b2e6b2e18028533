//! Opening a log that may have been cut or altered: looks at it before the store's own recovery
//! repairs anything away (ACT-4, ACT-9).
//!
//! fjall cuts a journal at the first batch that is not whole. After a crash that is right; where
//! acknowledged records lie behind the cut it destroys evidence. So journals are copied before
//! the store is opened, and put back if the log then ends before its head.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::append::Appender;
use super::chain_tip::{ChainTip, ChainTipFile};
use super::copy::Copy;
use super::file_checksums::{self, ChecksumFinding, Depth};
use super::mend;
use super::node;
use super::record::Hash;
use super::redact::Redactor;
use super::store::{DB, Store, StoreError, newest_journal};
use super::unfinished;
use super::view::View;
use crate::os::private;

const LOCK: &str = "lock";
const KEPT: &str = "journals";
const KEPT_NEW: &str = "journals.new";
const COPY_BYTES: usize = 1 << 20;
/// How often, and how long apart, it is looked whether the last reader is gone.
const CLOSE_TRIES: u32 = 20;
const CLOSE_PAUSE: Duration = Duration::from_millis(25);

/// How often, and how long apart, a locked log is asked for again. A proxy that is just ending, and
/// a child of it that has not yet become its own program, hold the lock a moment longer.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// Keeps other processes out of the folder for as long as it lives.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock goes with the file")] File);

impl Lock {
    /// Takes the lock of the log in `dir`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`], [`StoreError::Io`].
    pub fn take(dir: &Path) -> Result<Self, StoreError> {
        private::folder(dir)?;
        let path = dir.join(LOCK);
        let file = private::options().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// Keeps writers out of the log in `dir`, and changes nothing there: a log that nobody ever
    /// opened needs no lock. Waits a moment for one that is just ending.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`], [`StoreError::Io`].
    pub fn share(dir: &Path) -> Result<Option<Self>, StoreError> {
        let file = match File::open(dir.join(LOCK)) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        for tried in 1.. {
            match file.try_lock_shared() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tried < LOCK_TRIES => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(TryLockError::WouldBlock) => return Err(StoreError::Locked),
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
        }
        Ok(Some(Self(file)))
    }
}

/// A copy of a log, opened in its place to be read.
#[derive(Debug)]
pub(super) struct Reading {
    /// The copy's store.
    pub(super) store: Store,
    /// Dropped after the store, the copy goes.
    pub(super) copy: Copy,
    /// Keeps writers away from the original.
    pub(super) lock: Option<Lock>,
}

/// Opens the log in `dir` to be read, by a copy in `scratch`; nothing in `dir` changes. Where there
/// is no log, an empty one is read.
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
        mend::go_on(copy.path())?;
        let store = Store::open(copy.path())?;
        let view = View::new(store.snapshot())?;
        check_end(dir, reading.mark, &view)?;
        if view.marks().next().is_some() {
            // As the next start will do it: a copy may be written to.
            unfinished::settle(&store, &mut Appender::resume(&view, Redactor::default())?)?;
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
pub struct Opened {
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
pub fn open(dir: &Path) -> Result<Opened, StoreError> {
    for _ in 1..LOCK_TRIES {
        match open_now(dir) {
            Err(StoreError::Locked) => std::thread::sleep(LOCK_PAUSE),
            opened => return opened,
        }
    }
    open_now(dir)
}

fn open_now(dir: &Path) -> Result<Opened, StoreError> {
    // Someone was killed between moving a damaged log aside and putting the new one in its place.
    if !dir.try_exists()? && replacement(dir).try_exists()? {
        replace(dir)?;
    }
    let lock = Lock::take(dir)?;
    match file_checksums::check(dir, Depth::Quick)? {
        ChecksumFinding::Whole => {}
        ChecksumFinding::NoSeal => keep_journals(dir)?,
        ChecksumFinding::Altered(files) => return Err(altered(files)),
    }
    file_checksums::take_away(dir)?;
    mend::go_on(dir)?;
    let opened = ChainTipFile::open(dir).and_then(|(head, reading)| {
        let store = Store::open(dir)?;
        check_end(dir, reading.mark, &View::new(store.snapshot())?)?;
        node::agree(dir, store.node())?;
        Ok((store, head))
    });
    match opened {
        Ok((store, head)) => {
            remove(&dir.join(KEPT))?;
            Ok(Opened { lock, store, head })
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
            file: newest_journal(&dir.join(DB)),
            why: format!("the log ends with record {last}, but record {} was durable", mark.seq),
        });
    }
    match view.hash(mark.seq)? {
        Some(hash) if hash != mark.hash => Err(StoreError::Damaged {
            file: dir.join(super::chain_tip::NAME),
            why: format!("record {} has hash {hash}, but was {}", mark.seq, mark.hash),
        }),
        Some(Hash(_)) | None => Ok(()),
    }
}

/// The journals in a database's folder.
///
/// # Errors
///
/// Those of reading the folder.
pub fn journals(db: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(db)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "jnl") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Seals the log in `dir`, if nobody reads it any more: a reader keeps the store open, and an open
/// store may still change.
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

/// Copies the journals aside. Those of an earlier attempt that did not end are older, and stay.
fn keep_journals(dir: &Path) -> Result<(), StoreError> {
    let (db, kept, new) = (dir.join(DB), dir.join(KEPT), dir.join(KEPT_NEW));
    if kept.try_exists()? || !db.try_exists()? {
        return Ok(());
    }
    remove(&new)?;
    private::new_folder(&new)?;
    for journal in journals(&db)? {
        copy_sparse(&journal, &new.join(journal.file_name().unwrap_or_default()))?.sync_all()?;
    }
    Ok(fs::rename(new, kept)?)
}

/// Puts the copied journals back.
fn put_back(dir: &Path) -> Result<(), StoreError> {
    let kept = dir.join(KEPT);
    if kept.try_exists()? {
        for journal in journals(&kept)? {
            let original = dir.join(DB).join(journal.file_name().unwrap_or_default());
            copy_sparse(&journal, &original)?.sync_all()?;
        }
        remove(&kept)?;
    }
    Ok(())
}

/// Where a log is made that is to take the place of the one in `dir`.
#[must_use]
pub fn replacement(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(".salvaged");
    dir.with_file_name(name)
}

/// Puts the replacement of a log that was moved aside into its place, durably.
///
/// # Errors
///
/// Those of renaming.
pub fn replace(dir: &Path) -> Result<(), StoreError> {
    fs::rename(replacement(dir), dir)?;
    match dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => Ok(File::open(parent)?.sync_all()?),
        None => Ok(()),
    }
}

/// Removes a folder, if it is there.
///
/// # Errors
///
/// Those of removing it.
pub fn remove(path: &Path) -> Result<(), StoreError> {
    if path.try_exists()? { Ok(fs::remove_dir_all(path)?) } else { Ok(()) }
}

/// Copies a file, leaving out what is zero: journals are preallocated.
///
/// # Errors
///
/// Those of reading and writing.
pub fn copy_sparse(from: &Path, to: &Path) -> Result<File, StoreError> {
    let mut source = File::open(from)?;
    let mut target = private::create(to)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut length = 0;
    loop {
        let read = source.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        let part = buffer.get(..read).unwrap_or_default();
        if used(part) > 0 {
            target.seek(SeekFrom::Start(length))?;
            target.write_all(part)?;
        }
        length += read as u64;
    }
    target.set_len(length)?;
    Ok(target)
}

/// The length without the zeros at the end.
#[must_use]
pub fn used(bytes: &[u8]) -> usize {
    let words = bytes.rchunks(64).take_while(|chunk| chunk.iter().all(|byte| *byte == 0)).count();
    let rest = bytes.len().saturating_sub(words * 64);
    let last = bytes.get(..rest).unwrap_or_default();
    last.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)
}
