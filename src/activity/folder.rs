//! Files and folders around a log: its lock, its node id, text files with a checksum, and the names of replacement and
//! damaged logs next to it.
//!
//! The node id is stored outside the store because ids and hashes depend on it: if the store lost it, records could not
//! be verified. A log of an earlier version gets the file when it is opened.
//!
//! Readers open a [`Copy`] of the folder, because opening a log writes to it, and reading a log must not change it
//! (ACT-4). Tables are immutable and therefore linked; journals are copied without their preallocated zeros. A copy
//! next to a log lies in a folder that its process keeps locked, so that a later process recognizes the leftovers of a
//! killed one.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use mcpproxy_runtime::os::{private, state_file};

use crate::record::{Hash, NodeId};
use crate::store::{StoreError, is_damage, journal_files};

/// Path of the log that is built to replace the one in `dir`.
pub(super) fn replacement(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(".salvaged");
    dir.with_file_name(name)
}

/// Durably moves the replacement log to `dir`, from which the damaged log was moved aside.
pub(super) fn install_replacement(dir: &Path) -> io::Result<()> {
    fs::rename(replacement(dir), dir)?;
    match dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Path to which the damaged log in `dir` is moved: the first free name next to it.
pub(super) fn aside_path(dir: &Path) -> io::Result<PathBuf> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut number = 1;
    loop {
        let aside = dir.with_file_name(format!("{name}.damaged-{number}"));
        if !aside.try_exists()? {
            return Ok(aside);
        }
        number += 1;
    }
}

/// Removes a folder if it exists.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    if path.try_exists()? { fs::remove_dir_all(path) } else { Ok(()) }
}

/// Name of the lock file.
const LOCK: &str = "lock";
/// Maximum number of attempts to take a lock, and the pause between them. A process that is just ending, or a
/// forked child that has not called `exec` yet, may hold a lock a moment longer: a client that negotiates the protocol
/// revision ends `mcpproxy stdio` and starts it again at once.
const ATTEMPTS: u32 = 80;
const PAUSE: Duration = Duration::from_millis(25);

/// File lock that excludes other processes until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "dropping the file releases the lock")] File);

impl Lock {
    /// Takes the exclusive lock of the log in `dir`. Waits briefly for a holder that is just ending.
    pub(crate) fn take(dir: &Path) -> Result<Self, StoreError> {
        private::folder(dir)?;
        let path = dir.join(LOCK);
        let file = private::options().write(true).create(true).truncate(false).open(path)?;
        lock_exclusively(&file)?;
        Ok(Self(file))
    }

    /// Takes the shared lock of the log in `dir`, which excludes writers, without changing anything there;
    /// `None` if the log was never opened. Waits briefly for a writer that is just ending.
    pub(crate) fn share(dir: &Path) -> Result<Option<Self>, StoreError> {
        let file = match File::open(dir.join(LOCK)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        retry_lock(|| file.try_lock_shared().map_err(from_try_lock))?;
        Ok(Some(Self(file)))
    }
}

/// Takes the exclusive lock of an open file. Waits briefly for a holder that is just ending.
pub(super) fn lock_exclusively(file: &File) -> Result<(), StoreError> {
    retry_lock(|| file.try_lock().map_err(from_try_lock))
}

fn from_try_lock(error: TryLockError) -> StoreError {
    match error {
        TryLockError::WouldBlock => StoreError::Locked,
        TryLockError::Error(error) => error.into(),
    }
}

/// Retries an attempt that fails with [`StoreError::Locked`], for at most two seconds.
pub(super) fn retry_lock<T>(
    mut attempt: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(StoreError::Locked) => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
    attempt()
}

/// Name of the node id file in the log's folder.
pub(crate) const NODE_FILE: &str = "node";

/// Reads the node id of the log in `dir`; `None` if there is no file.
pub(crate) fn read_node(dir: &Path) -> Result<Option<NodeId>, StoreError> {
    let path = dir.join(NODE_FILE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::unreadable(path, error)),
    };
    match decode_node(&bytes) {
        Some(node) => Ok(Some(node)),
        None => Err(StoreError::Damaged { file: path, why: "its checksum does not match".into() }),
    }
}

/// Writes the node id of the log in `dir`, durably.
pub(super) fn write_node(dir: &Path, node: NodeId) -> Result<(), StoreError> {
    Ok(state_file::replace(&dir.join(NODE_FILE), &encode_node(node))?)
}

/// Checks that the file in `dir` names `node`, as the store does. A missing or damaged file is rewritten.
pub(super) fn check_node(dir: &Path, node: NodeId) -> Result<(), StoreError> {
    match read_node(dir) {
        Ok(Some(known)) if known == node => Ok(()),
        Ok(Some(_)) => Err(StoreError::Damaged {
            file: dir.join(NODE_FILE),
            why: "it belongs to another log".into(),
        }),
        Ok(None) => write_node(dir, node),
        Err(error @ StoreError::Damaged { .. }) => {
            tracing::warn!(%error, "rewriting the node id from the store");
            write_node(dir, node)
        }
        Err(error) => Err(error),
    }
}

/// The id in hexadecimal, followed by its hash.
fn encode_node(node: NodeId) -> Vec<u8> {
    let hex: String = node.0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex} {}\n", Hash(*blake3::hash(hex.as_bytes()).as_bytes())).into_bytes()
}

fn decode_node(bytes: &[u8]) -> Option<NodeId> {
    let hex = std::str::from_utf8(bytes).ok()?.split(' ').next()?;
    let node = NodeId(u128::from_str_radix(hex, 16).ok()?.to_be_bytes());
    (encode_node(node) == bytes).then_some(node)
}

/// Durably and atomically replaces the file `name` in `dir` with `text`, which must end with a line break, and a last
/// line that holds its hash.
pub(super) fn write_hashed(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    state_file::replace(&dir.join(name), format!("{text}{}\n", text_hash(text)).as_bytes())
}

/// Reads the lines above the hash; `None` if the hash does not match.
pub(super) fn read_hashed(path: &Path) -> io::Result<Option<String>> {
    let mut text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(whole) = text.strip_suffix('\n') else { return Ok(None) };
    let at = whole.rfind('\n').map_or(0, |at| at + 1);
    let (above, own) = whole.split_at_checked(at).unwrap_or_default();
    if text_hash(above) != own {
        return Ok(None);
    }
    text.truncate(at);
    Ok(Some(text))
}

fn text_hash(text: &str) -> String {
    Hash(*blake3::hash(text.as_bytes()).as_bytes()).to_string()
}

#[cfg(test)]
mod lock {
    use super::*;

    #[test]
    fn writer_excludes_everyone_and_readers_exclude_writers() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(Lock::share(dir).unwrap().is_none(), "the log was never opened");
        let writer = Lock::take(dir).unwrap();
        assert!(matches!(Lock::take(dir), Err(StoreError::Locked)));
        drop(writer);
        let readers = [Lock::share(dir).unwrap(), Lock::share(dir).unwrap()];
        assert!(readers.iter().all(Option::is_some));
        assert!(matches!(Lock::take(dir), Err(StoreError::Locked)));
        drop(readers);
        assert!(Lock::take(dir).is_ok());
    }

    #[test]
    fn lock_released_between_attempts_is_acquired() {
        let mut attempts = 0;
        let taken = retry_lock(|| {
            attempts += 1;
            if attempts < ATTEMPTS { Err(StoreError::Locked) } else { Ok(attempts) }
        });
        assert_eq!(taken.unwrap(), ATTEMPTS);
    }

    #[test]
    fn other_lock_errors_stop_the_retries() {
        let mut attempts = 0;
        let result = retry_lock::<()>(|| {
            attempts += 1;
            Err(io::Error::other("disk").into())
        });
        assert!(matches!(result, Err(StoreError::Io(_))));
        assert_eq!(attempts, 1);
    }
}

#[cfg(test)]
mod node_id {
    use super::*;

    #[test]
    fn node_id_round_trips_and_altered_or_foreign_ones_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (node, other) = (NodeId([7; 16]), NodeId([8; 16]));
        assert_eq!(read_node(dir).unwrap(), None);
        check_node(dir, node).unwrap();
        assert_eq!(read_node(dir).unwrap(), Some(node));
        let error = check_node(dir, other).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { file, .. } if file.ends_with(NODE_FILE)));
        let whole = fs::read(dir.join(NODE_FILE)).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(dir.join(NODE_FILE), bytes).unwrap();
            assert!(matches!(read_node(dir), Err(StoreError::Damaged { .. })), "byte {at}");
        }
        check_node(dir, node).unwrap();
        assert_eq!(read_node(dir).unwrap(), Some(node));
    }
}

/// Name of the folders that hold tables.
const TABLES: &str = "tables";
/// Kinds of folders next to a log, named `<log>.<kind>-<process>`.
const KINDS: [&str; 2] = ["copy", "scratch"];
/// Maximum number of such folders per process.
const MAX_FOLDERS: u32 = 64;

/// A copy of a folder, removed when it is dropped.
#[derive(Debug)]
pub(super) struct Copy {
    path: PathBuf,
    /// The locked folder next to the log that contains the copy.
    outer: Option<(PathBuf, File)>,
}

/// Function that links a table of the original into the copy.
type Link = fn(&Path, &Path) -> io::Result<()>;

/// Treatment of parts of a file that the disk cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unreadable {
    Refused,
    /// Unreadable parts are replaced by zeros.
    Zeroed,
}

impl Copy {
    /// Copies the folder to a new folder next to it, independent of the original. Unreadable parts become zeros.
    pub(super) fn beside(dir: &Path) -> Result<Self, StoreError> {
        let copy = Self::new_beside(dir, KINDS[0])?;
        recopy(dir, &copy.path)?;
        Ok(copy)
    }

    /// Creates an empty folder next to the log, which is removed on drop.
    pub(super) fn scratch(dir: &Path) -> Result<Self, StoreError> {
        Self::new_beside(dir, KINDS[1])
    }

    fn new_beside(dir: &Path, kind: &str) -> Result<Self, StoreError> {
        let process = std::process::id();
        for number in 0..MAX_FOLDERS {
            let mut name = dir.file_name().unwrap_or_default().to_os_string();
            name.push(match number {
                0 => format!(".{kind}-{process}"),
                number => format!(".{kind}-{process}-{number}"),
            });
            let outer = dir.with_file_name(name);
            match private::new_folder(&outer) {
                Ok(()) => {}
                // The folder belongs to another copy made by this process, or to a killed process with the same id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(StoreError::File { file: outer, error }),
            }
            let lock = File::open(&outer)?;
            lock.lock()?;
            let path = outer.join("log");
            private::new_folder(&path)?;
            return Ok(Self { path, outer: Some((outer, lock)) });
        }
        let why = format!("there are {MAX_FOLDERS} copies of {} already", dir.display());
        Err(StoreError::Io(io::Error::other(why)))
    }

    /// Path of a copy made by [`Copy::below`].
    pub(super) fn path_below(scratch: &Path) -> PathBuf {
        scratch.join("log")
    }

    /// Copies the folder into `scratch` and links the original's tables, so the original must outlive the copy. A
    /// missing folder yields an empty copy.
    pub(super) fn below(scratch: &Path, dir: &Path) -> Result<Self, StoreError> {
        let copy = Self { path: Self::path_below(scratch), outer: None };
        private::new_folder(&copy.path)?;
        match dir.canonicalize() {
            Ok(dir) => {
                let link: Link = |from, to| symlink(from, to);
                copy_folder(&dir, &copy.path, link, Unreadable::Refused)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        Ok(copy)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the copy's path in a text with the original's path.
    pub(super) fn text_as_original(&self, dir: &Path, text: &str) -> String {
        text.replace(&*self.path.to_string_lossy(), &dir.to_string_lossy())
    }

    /// Replaces the copy's path in an error with the original's path.
    pub(super) fn as_original(&self, dir: &Path, error: StoreError) -> StoreError {
        match error {
            StoreError::Damaged { file, why } => {
                let file = file.strip_prefix(&self.path).map_or(file.clone(), |it| dir.join(it));
                StoreError::Damaged { file, why }
            }
            other => other,
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let path = self.outer.as_ref().map_or(&self.path, |(outer, _)| outer);
        if let Err(error) = fs::remove_dir_all(path) {
            tracing::warn!(%error, path = %path.display(), "cannot remove a copy of the activity log");
        }
    }
}

/// Recreates the copy at `path` from the log in `dir`. Unreadable parts become zeros.
pub(super) fn recopy(dir: &Path, path: &Path) -> Result<(), StoreError> {
    remove(path)?;
    let link: Link = |from, to| fs::hard_link(from, to);
    copy_folder(dir, path, link, Unreadable::Zeroed)
}

/// Removes copies next to the log in `dir` whose processes have ended; failures are logged.
pub(super) fn remove_leftovers(dir: &Path) {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let starts = KINDS.map(|kind| format!("{name}.{kind}-"));
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    let beside = fs::read_dir(parent.unwrap_or(Path::new("."))).into_iter().flatten().flatten();
    for entry in beside {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_copy = starts.iter().any(|start| {
            name.strip_prefix(&**start)
                .is_some_and(|rest| rest.split('-').all(|part| part.parse::<u32>().is_ok()))
        });
        if !is_copy {
            continue;
        }
        let path = entry.path();
        // The process that made the copy keeps the folder locked until it ends.
        let is_left = File::open(&path).is_ok_and(|folder| folder.try_lock().is_ok());
        if is_left {
            match fs::remove_dir_all(&path) {
                Ok(()) => {
                    tracing::info!(path = %path.display(), "removed a copy of the activity log left by a killed process")
                }
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "cannot remove a copy of the activity log left by a killed process")
                }
            }
        }
    }
}

fn copy_folder(
    from: &Path,
    to: &Path,
    link: Link,
    unreadable: Unreadable,
) -> Result<(), StoreError> {
    private::folder(to)?;
    let entries = || fs::read_dir(from)?.collect::<io::Result<Vec<_>>>();
    for entry in entries().map_err(|error| StoreError::unreadable(from, error))? {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_folder(&source, &target, link, unreadable)?;
        } else if !from.ends_with(TABLES) || link(&source, &target).is_err() {
            match journal_files::copy_sparse(&source, &target) {
                Err(error) if is_damage(&error) && unreadable == Unreadable::Zeroed => {
                    copy_readable(&source, &target)?;
                }
                Err(error) => return Err(StoreError::unreadable(source, error)),
                Ok(_) => {}
            }
        }
    }
    Ok(())
}

/// Copies a file with unreadable parts replaced by zeros.
fn copy_readable(from: &Path, to: &Path) -> io::Result<()> {
    private::create(to)?.write_all(&journal_files::read_readable(from)?)?;
    tracing::warn!(file = %from.display(), "part of a log file is unreadable and is replaced by zeros in the copy");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn act_9_damaged_log_is_moved_to_a_free_name_and_replaced() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("log");
        for number in 1..3 {
            fs::create_dir(&log).unwrap();
            let aside = aside_path(&log).unwrap();
            assert_eq!(aside, root.path().join(format!("log.damaged-{number}")));
            fs::create_dir(replacement(&log)).unwrap();
            fs::write(replacement(&log).join("new"), "").unwrap();
            fs::rename(&log, &aside).unwrap();
            install_replacement(&log).unwrap();
            assert!(log.join("new").exists() && !replacement(&log).exists());
            remove(&log).unwrap();
            remove(&log).unwrap();
        }
    }

    #[test]
    fn leftovers_of_ended_processes_are_removed_and_copies_in_use_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("log");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("head"), "1").unwrap();
        // Leftovers of processes with another id and with this id, and unrelated folders.
        let left = ["log.copy-1", "log.scratch-4194303", "log.scratch-7-2"];
        let left = left.map(|name| home.path().join(name));
        let own = home.path().join(format!("log.copy-{}", std::process::id()));
        let others = ["log.damaged-1", "other.copy-1", "log.copy-mine", "log.copies-1"];
        let others = others.map(|name| home.path().join(name));
        left.iter().chain([&own]).chain(&others).for_each(|path| fs::create_dir(path).unwrap());
        fs::write(left[0].join("file"), "x").unwrap();
        let copies = [Copy::beside(&dir).unwrap(), Copy::beside(&dir).unwrap()];
        let scratch = Copy::scratch(&dir).unwrap();
        assert_eq!(fs::read(copies[1].path().join("head")).unwrap(), b"1");

        remove_leftovers(&dir);
        assert!(left.iter().chain([&own]).all(|path| !path.exists()));
        assert!(others.iter().all(|path| path.exists()));
        assert!(copies.iter().chain([&scratch]).all(|copy| copy.path().exists()));
        drop((copies, scratch));
        let beside = fs::read_dir(home.path()).unwrap().count();
        assert_eq!(beside, others.len() + 1, "a copy is removed together with its outer folder");
    }
}
