//! A file of the user's that is changed: read, changed as a text, and replaced whole, so that whoever
//! reads it finds the old text or the new one, and no change of anybody else is lost.
//!
//! Two processes of ours take turns, by a lock on the file itself, which only those can take who may
//! read it: a lock on its folder, or on a file that is left there, could be held by anybody who may
//! look into the folder. Who waited for one that was replaced meanwhile takes that of the new file. A
//! file that is not there yet is put there if nobody else has done so. Editors know of no lock, so the
//! file is read once more just before it is replaced, and the change is made anew on what is there
//! then. What stands in the file is not known here.

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

/// Longest wait for other processes that edit the same file.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// How often its lock is tried meanwhile.
const LOCK_STEP: Duration = Duration::from_millis(10);
/// How often a change is made anew because the file was another one meanwhile.
const ATTEMPTS: u32 = 5;

/// Why a file was not changed. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum EditFailure<E> {
    /// The file system's.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What is there cannot be read as a text of that size.
    #[error("{0}")]
    Unreadable(Unreadable),
    /// Another process of ours is editing it, for longer than is waited.
    #[error("another mcpproxy is changing it: try again when that one is done")]
    Busy,
    /// It changes all the time.
    #[error("it is being changed by another program: try again when that one is done")]
    Changing,
    /// What the caller says against it.
    #[error("{0}")]
    Refused(E),
}

/// Changes the file at `path` by `change`, which is given its text (`None`: there is no file) and
/// answers the next one (`None`: it stays) beside what the caller wants to know; it may be asked more
/// than once. A link stays, and what it leads to is replaced. Rights and owner stay; a new file is
/// 0600, and a folder that is made for it 0700.
///
/// # Errors
/// [`EditFailure`].
pub fn edit<T, E>(
    path: &Path,
    most_bytes: u64,
    mut change: impl FnMut(Option<&str>) -> Result<(Option<String>, T), E>,
) -> Result<T, EditFailure<E>> {
    let target = target(path)?;
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    // Asked before anything is made: what is refused leaves no folder behind.
    if !folder.exists() {
        let (next, answer) = change(None).map_err(EditFailure::Refused)?;
        if next.is_none() {
            return Ok(answer);
        }
        private::folder(folder)?;
    }
    for _ in 0..ATTEMPTS {
        let _lock = lock(&target)?;
        let before = read(&target, most_bytes)?;
        let (text, metadata) = match &before {
            Some((text, metadata)) => (Some(text.as_str()), Some(metadata)),
            None => (None, None),
        };
        let (next, answer) = change(text).map_err(EditFailure::Refused)?;
        let Some(next) = next.filter(|next| Some(next.as_str()) != text) else {
            return Ok(answer);
        };
        let new = NewFile::write(&target, &next, metadata)?;
        if read(&target, most_bytes)?.map(|(text, _)| text).as_deref() == text
            && match text {
                Some(_) => new.replace(&target)?,
                None => new.appear(&target)?,
            }
        {
            // The name, too, is to be on the disk; a folder that cannot be synced is none of ours.
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
            return Ok(answer);
        }
    }
    Err(EditFailure::Changing)
}

/// The text of the file at `path`, and what the system knows of it; `None` if there is none.
///
/// # Errors
/// It cannot be read, is larger than `most_bytes`, or no text.
pub fn read<E>(path: &Path, most_bytes: u64) -> Result<Option<(String, Metadata)>, EditFailure<E>> {
    let read = bounded_file::read(path, most_bytes, NamedPipes::Refused)
        .and_then(|(bytes, metadata)| Ok((bounded_file::text(bytes)?, metadata)));
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(EditFailure::Unreadable(error)),
    }
}

/// What is replaced: the file itself, or what the link leads to.
fn target(path: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => fs::canonicalize(path),
        Ok(_) | Err(_) => Ok(path.to_owned()),
    }
}

/// Holds the file at `path` until it is dropped; `None` where there is none to hold. A file system without such locks has
/// none either.
fn lock<E>(path: &Path) -> Result<Option<File>, EditFailure<E>> {
    let start = Instant::now();
    loop {
        // Not to wait for who writes into it, if it is a pipe. What cannot be opened is told by who reads it.
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let Ok(file) = opened else { return Ok(None) };
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => return Ok(Some(file)),
            Err(TryLockError::Error(_)) => return Ok(None),
            // It was replaced by who held it, and perhaps the new one is held already.
            Ok(()) if start.elapsed() <= LOCK_WAIT => {}
            Err(TryLockError::WouldBlock) if start.elapsed() <= LOCK_WAIT => sleep(LOCK_STEP),
            Ok(()) | Err(TryLockError::WouldBlock) => return Err(EditFailure::Busy),
        }
    }
}

/// Whether it is this file that is at `path`, or none is any more.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(there)) => same(&held, &there),
        (_, Err(_)) | (Err(_), _) => true,
    }
}

/// A new file beside the one that it is to replace; removed if it does not.
struct NewFile(Option<PathBuf>);

impl NewFile {
    fn write(target: &Path, text: &str, like: Option<&Metadata>) -> io::Result<Self> {
        /// Threads of this process may be at it at once.
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

    /// Takes the place of the file at `target`.
    fn replace(mut self, target: &Path) -> io::Result<bool> {
        if let Some(path) = &self.0 {
            fs::rename(path, target).map_err(told)?;
            self.0 = None;
        }
        Ok(true)
    }

    /// Takes the name `target`, which nobody has; false if somebody has it by now.
    fn appear(self, target: &Path) -> io::Result<bool> {
        let linked = match &self.0 {
            Some(path) => fs::hard_link(path, target),
            None => return Ok(false),
        };
        match linked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            // A file system without links.
            Err(_) => self.replace(target),
        }
    }
}

/// Why a file was not replaced, with the way out where the system's words name none.
fn told(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::ResourceBusy => io::Error::other(
            "it is a mount by itself, which cannot be replaced: mount its folder instead, or edit the file outside",
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

    const MOST: u64 = 100;

    fn put(path: &Path, text: &str) -> Result<(), EditFailure<Infallible>> {
        edit(path, MOST, |_| Ok((Some(text.to_owned()), ())))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_new_file_is_private_and_one_that_was_there_keeps_its_rights() {
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
    fn a_link_stays_and_what_it_leads_to_is_replaced() {
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
    fn what_another_program_wrote_meanwhile_is_what_is_changed() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        fs::write(&file, "one").unwrap();
        let mut asked = 0;
        edit(&file, MOST, |text| {
            asked += 1;
            if asked == 1 {
                fs::write(&file, "two").unwrap();
            }
            Ok::<_, Infallible>((Some(format!("{}+", text.unwrap_or_default())), ()))
        })
        .unwrap();
        assert_eq!((asked, &*fs::read_to_string(&file).unwrap()), (2, "two+"));
        let mut asked = 0;
        let never = edit(&file, MOST, |_| {
            asked += 1;
            fs::write(&file, asked.to_string()).unwrap();
            Ok::<_, Infallible>((Some("mine".to_owned()), ()))
        });
        assert!(matches!(never, Err(EditFailure::Changing)), "{never:?}");
        assert_eq!(names(home.path()), ["file"]);
    }

    #[test]
    fn what_is_refused_too_large_or_no_text_stays_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("new/file");
        let refused = edit(&file, MOST, |_| Err::<(Option<String>, ()), _>("no"));
        assert!(matches!(refused, Err(EditFailure::Refused("no"))));
        assert_eq!(names(home.path()), [""; 0], "no folder is made for it");
        let file = home.path().join("file");
        fs::write(&file, "x".repeat(101)).unwrap();
        assert!(matches!(put(&file, ""), Err(EditFailure::Unreadable(Unreadable::TooLarge(MOST)))));
        fs::write(&file, b"\xff").unwrap();
        assert!(matches!(put(&file, ""), Err(EditFailure::Unreadable(Unreadable::NoText))));
        assert!(put(home.path(), "").is_err(), "a folder is no file");
        let pipe = home.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(put(&pipe, "").is_err(), "nor is a pipe, and nobody waits for it");
        assert_eq!(fs::read(&file).unwrap(), b"\xff");
    }

    #[test]
    fn who_may_only_look_into_the_folder_holds_up_nobody() {
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
    fn who_waited_for_a_file_that_was_replaced_holds_the_new_one() {
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
    fn a_file_that_has_come_meanwhile_is_not_replaced_unread() {
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
    fn a_file_that_is_mounted_by_itself_is_told_with_the_way_out() {
        // As rename(2) answers for a mount point.
        let busy = io::Error::from_raw_os_error(libc::EBUSY);
        assert!(told(busy).to_string().contains("mount its folder instead"));
        let other = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(told(other).raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn many_at_once_lose_nothing() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        edit(&file, MOST, |text| {
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
