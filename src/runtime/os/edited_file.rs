//! Atomic edits of a file that users edit as well: the file is read, changed as text and replaced. Readers see either
//! the old text or the new one, and no other change is lost.
//!
//! Processes of this program exclude each other by a lock on the file itself, which only processes that may read the
//! file can take. A lock on the folder or on a separate file could be held by anyone with access to the folder. If the
//! file was replaced while a process waited for the lock, it locks the new file. A new file is created only if no other
//! has appeared in the meantime. Editors do not use the lock, so the file is read again just before it is replaced, and
//! the edit is repeated if it has changed. The contents are not interpreted here.

use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::libc;

use super::bounded_file::{self, NamedPipes, Unreadable};
use super::private;

/// Maximum wait for other processes that edit the same file.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Interval between the attempts to lock the file.
const LOCK_STEP: Duration = Duration::from_millis(10);
/// Maximum number of attempts if the file keeps changing.
const ATTEMPTS: u32 = 5;

/// Reason why a file was not changed. The file is unmodified.
#[derive(Debug, thiserror::Error)]
pub enum EditFailure<E> {
    /// The file system's error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not text, or is too large.
    #[error("{0}")]
    Unreadable(Unreadable),
    /// Another process of this program held the lock for too long.
    #[error("another mcpproxy is changing it: try again when that one is done")]
    Busy,
    /// The file kept changing.
    #[error("it is being changed by another program: try again when that one is done")]
    Changing,
    /// The caller's refusal.
    #[error("{0}")]
    Refused(E),
}

/// Edits the file at `path` with `change`, which gets the text (`None` if there is no file) and returns the new text
/// (`None` for no change) and a result for the caller. `change` may be called more than once. If `path` is a link, its
/// target is replaced. Mode and owner are kept; a new file gets mode 0600, and a new folder 0700.
pub fn edit<T, E>(
    path: &Path,
    max_bytes: u64,
    mut change: impl FnMut(Option<&str>) -> Result<(Option<String>, T), E>,
) -> Result<T, EditFailure<E>> {
    let target = target(path)?;
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    // `change` is called before anything is created: a refusal must not leave a new folder.
    if !folder.exists() {
        let (next, answer) = change(None).map_err(EditFailure::Refused)?;
        if next.is_none() {
            return Ok(answer);
        }
        private::folder(folder)?;
    }
    for _ in 0..ATTEMPTS {
        let _lock = lock(&target)?;
        let before = read(&target, max_bytes)?;
        let (text, metadata) = match &before {
            Some((text, metadata)) => (Some(text.as_str()), Some(metadata)),
            None => (None, None),
        };
        let (next, answer) = change(text).map_err(EditFailure::Refused)?;
        let Some(next) = next.filter(|next| Some(next.as_str()) != text) else {
            return Ok(answer);
        };
        let new = NewFile::write(&target, &next, metadata)?;
        if read(&target, max_bytes)?.map(|(text, _)| text).as_deref() == text
            && match text {
                Some(_) => new.replace(&target)?,
                None => new.appear(&target)?,
            }
        {
            // Syncs the file's name. Errors are ignored: a folder that cannot be synced belongs to another user.
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
            return Ok(answer);
        }
    }
    Err(EditFailure::Changing)
}

/// The text and metadata of the file at `path`; `None` if it does not exist.
///
/// # Errors
/// The file cannot be read, is larger than `max_bytes`, or is not text.
pub fn read<E>(path: &Path, max_bytes: u64) -> Result<Option<(String, Metadata)>, EditFailure<E>> {
    let read = bounded_file::read(path, max_bytes, NamedPipes::Refused)
        .and_then(|(bytes, metadata)| Ok((bounded_file::text(bytes)?, metadata)));
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(EditFailure::Unreadable(error)),
    }
}

/// The file to replace: `path`, or the target of a link.
fn target(path: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => fs::canonicalize(path),
        Ok(_) | Err(_) => Ok(path.to_owned()),
    }
}

/// Locks the file at `path` until the result is dropped; `None` if it does not exist or the file system does not
/// support locks.
fn lock<E>(path: &Path) -> Result<Option<File>, EditFailure<E>> {
    let start = Instant::now();
    loop {
        // Opening a pipe must not block. If the file cannot be opened, the reader reports it.
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let Ok(file) = opened else { return Ok(None) };
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => return Ok(Some(file)),
            Err(TryLockError::Error(_)) => return Ok(None),
            // The holder of the lock replaced the file; the new one may already be locked.
            Ok(()) if start.elapsed() <= LOCK_WAIT => {}
            Err(TryLockError::WouldBlock) if start.elapsed() <= LOCK_WAIT => sleep(LOCK_STEP),
            Ok(()) | Err(TryLockError::WouldBlock) => return Err(EditFailure::Busy),
        }
    }
}

/// Whether `path` still refers to this file, or no longer exists.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(there)) => same(&held, &there),
        (_, Err(_)) | (Err(_), _) => true,
    }
}

/// A new file next to the one to replace; removed on drop if it was not used.
struct NewFile(Option<PathBuf>);

impl NewFile {
    fn write(target: &Path, text: &str, like: Option<&Metadata>) -> io::Result<Self> {
        // Several threads of this process may edit concurrently.
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}-{number}.new", std::process::id()));
        let path = target.with_file_name(name);
        let mut file = private::create(&path)?;
        let new = Self(Some(path));
        if let Some(like) = like {
            let made = file.metadata()?;
            if (made.uid(), made.gid()) != (like.uid(), like.gid()) {
                fchown(&file, Some(like.uid()), Some(like.gid()))?;
            }
            file.set_permissions(Permissions::from_mode(like.mode() & 0o7777))?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        Ok(new)
    }

    /// Replaces the file at `target`.
    fn replace(mut self, target: &Path) -> io::Result<bool> {
        if let Some(path) = &self.0 {
            fs::rename(path, target).map_err(replace_error)?;
            self.0 = None;
        }
        Ok(true)
    }

    /// Creates `target` if it does not exist; returns false if it does.
    fn appear(self, target: &Path) -> io::Result<bool> {
        let linked = match &self.0 {
            Some(path) => fs::hard_link(path, target),
            None => return Ok(false),
        };
        match linked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            // The file system does not support hard links.
            Err(_) => self.replace(target),
        }
    }
}

/// Error of a failed replacement, with a remedy if the system's text gives none.
fn replace_error(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::ResourceBusy => io::Error::other(
            "it is a mount point, which cannot be replaced: mount its folder instead, or edit the original file",
        ),
        _ => error,
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::os::unix::fs::symlink;

    use super::*;

    const MAX: u64 = 100;

    fn put(path: &Path, text: &str) -> Result<(), EditFailure<Infallible>> {
        edit(path, MAX, |_| Ok((Some(text.to_owned()), ())))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn edit_creates_private_files_and_keeps_existing_modes() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("a/b/file");
        put(&file, "new").unwrap();
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        put(&file, "other").unwrap();
        assert_eq!((mode(&file), &*fs::read_to_string(&file).unwrap()), (0o640, "other"));
        assert_eq!(names(file.parent().unwrap()), ["file"], "nothing is left beside it");
    }

    #[test]
    fn edit_keeps_a_link_and_replaces_its_target() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("real")).unwrap();
        let (real, link) = (home.path().join("real/file"), home.path().join("link"));
        fs::write(&real, "old").unwrap();
        symlink("real/file", &link).unwrap();
        put(&link, "new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        symlink("nowhere", home.path().join("broken")).unwrap();
        assert!(put(&home.path().join("broken"), "x").is_err());
    }

    #[test]
    fn edit_of_a_file_changed_meanwhile_uses_the_latest_text() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        fs::write(&file, "one").unwrap();
        let mut asked = 0;
        edit(&file, MAX, |text| {
            asked += 1;
            if asked == 1 {
                fs::write(&file, "two").unwrap();
            }
            Ok::<_, Infallible>((Some(format!("{}+", text.unwrap_or_default())), ()))
        })
        .unwrap();
        assert_eq!((asked, &*fs::read_to_string(&file).unwrap()), (2, "two+"));
        let mut asked = 0;
        let never = edit(&file, MAX, |_| {
            asked += 1;
            fs::write(&file, asked.to_string()).unwrap();
            Ok::<_, Infallible>((Some("mine".to_owned()), ()))
        });
        assert!(matches!(never, Err(EditFailure::Changing)), "{never:?}");
        assert_eq!(names(home.path()), ["file"]);
    }

    #[test]
    fn edit_leaves_too_large_or_non_text_files_unchanged() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("new/file");
        let refused = edit(&file, MAX, |_| Err::<(Option<String>, ()), _>("no"));
        assert!(matches!(refused, Err(EditFailure::Refused("no"))));
        assert_eq!(names(home.path()), [""; 0], "no folder is made for it");
        let file = home.path().join("file");
        fs::write(&file, "x".repeat(101)).unwrap();
        assert!(matches!(put(&file, ""), Err(EditFailure::Unreadable(Unreadable::TooLarge(MAX)))));
        fs::write(&file, b"\xff").unwrap();
        assert!(matches!(put(&file, ""), Err(EditFailure::Unreadable(Unreadable::NoText))));
        assert!(put(home.path(), "").is_err(), "a folder is not a file");
        let pipe = home.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(put(&pipe, "").is_err(), "a pipe is not a file either, and is not waited for");
        assert_eq!(fs::read(&file).unwrap(), b"\xff");
    }

    #[test]
    fn edit_is_not_blocked_by_a_folder_locked_by_another_user() {
        let home = tempfile::tempdir().unwrap();
        let held = File::open(home.path()).unwrap();
        held.lock().unwrap();
        let file = home.path().join("file");
        put(&file, "made").unwrap();
        put(&file, "changed").unwrap();
        assert_eq!(
            (&*fs::read_to_string(&file).unwrap(), names(home.path())),
            ("changed", vec!["file".to_owned()])
        );
    }

    #[test]
    fn waiter_locks_the_new_file_if_the_lock_file_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let (file, new) = (home.path().join("file"), home.path().join("new"));
        fs::write(&file, "old").unwrap();
        let held = lock::<Infallible>(&file).unwrap().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| lock::<Infallible>(&file).unwrap().unwrap());
            fs::write(&new, "new").unwrap();
            fs::rename(&new, &file).unwrap();
            drop(held);
            let second = waiting.join().unwrap();
            assert!(is_at(&second, &file));
            assert!(matches!(File::open(&file).unwrap().try_lock(), Err(TryLockError::WouldBlock)));
        });
        assert!(lock::<Infallible>(&home.path().join("none")).unwrap().is_none());
    }

    #[test]
    fn edit_does_not_overwrite_a_file_created_meanwhile() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        let new = NewFile::write(&file, "mine", None).unwrap();
        fs::write(&file, "theirs").unwrap();
        assert!(!new.appear(&file).unwrap());
        assert_eq!(
            (&*fs::read_to_string(&file).unwrap(), names(home.path())),
            ("theirs", vec!["file".to_owned()])
        );
    }

    #[test]
    fn error_for_replacing_a_mount_point_names_an_alternative() {
        // Error of rename(2) for a mount point.
        let busy = io::Error::from_raw_os_error(libc::EBUSY);
        assert!(replace_error(busy).to_string().contains("mount its folder instead"));
        let other = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(replace_error(other).raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn concurrent_edits_lose_no_change() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        edit(&file, MAX, |text| {
                            let text = format!("{}+", text.unwrap_or_default());
                            Ok::<_, Infallible>((Some(text), ()))
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(&file).unwrap(), "+".repeat(40));
    }
}
