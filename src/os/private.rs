//! Files and folders for their owner alone: 0600 and 0700, whatever the umask and the rights of the
//! folder above.
//!
//! What others may do with what is not ours is not looked at, and what is a link is not followed.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::sys::stat::{Mode, umask};

/// Rights of a file.
const FILE: u32 = 0o600;
/// Rights of a folder.
const FOLDER: u32 = 0o700;
/// Rights that others than the owner have.
const OTHERS: u32 = 0o077;
/// Folders within folders that [`mend`] goes into.
const MAX_DEPTH: usize = 16;

/// Creates `path` and the folders that are missing above it.
///
/// # Errors
///
/// The file system's.
pub fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER).create(path)
}

/// Creates `path`, which must not be there yet.
///
/// # Errors
///
/// The file system's.
pub fn new_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER).create(path)
}

/// How a file is opened that is private if it is created. One that was there keeps its rights.
#[must_use]
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE);
    options
}

/// Makes an empty file to be written, in the place of one that may be there, which is removed: so
/// neither its rights nor where it may link to count.
///
/// # Errors
///
/// The file system's.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => options().write(true).create_new(true).open(path),
    }
}

/// The rights of `path`, if others than its owner have some; `None` too if it is not there.
#[must_use]
pub fn wider(path: &Path) -> Option<u32> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o7777;
    (mode & OTHERS != 0).then_some(mode)
}

/// Takes from others what rights they have on `path` and everything in it.
///
/// # Errors
///
/// The file system's, of the first that could not be mended; the others were.
pub fn mend(path: &Path) -> io::Result<()> {
    mend_within(path, MAX_DEPTH)
}

/// Takes them on `path` alone.
///
/// # Errors
///
/// The file system's.
pub fn mend_alone(path: &Path) -> io::Result<()> {
    mend_within(path, 0)
}

fn mend_within(path: &Path, depth: usize) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if metadata.is_symlink() {
        return Ok(());
    }
    let mut mended = Ok(());
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 {
        mended = fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS));
    }
    if metadata.is_dir() && depth > 0 {
        for entry in fs::read_dir(path)?.flatten() {
            mended = mended.and(mend_within(&entry.path(), depth - 1));
        }
    }
    mended
}

/// Runs `act` so that the files it makes are private though it cannot be told their rights: on a
/// thread whose umask is its own, and of the threads that it starts. The umask of the process
/// stays, since it is that of the servers it starts.
///
/// Where the system has no such thing (other than Linux, or a container that forbids it) only the
/// folder that they lie in keeps others out.
pub fn apart<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let apart = || {
        if own_file_state() {
            umask(Mode::from_bits_truncate(OTHERS as _));
        }
        act()
    };
    std::thread::scope(|scope| match scope.spawn(apart).join() {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked),
    })
}

/// Gives this thread a umask of its own; false if there is no such thing.
fn own_file_state() -> bool {
    #[cfg(target_os = "linux")]
    return nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).is_ok();
    #[cfg(not(target_os = "linux"))]
    return false;
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn what_is_made_apart_is_private_and_elsewhere_the_umask_stays() {
        let home = tempfile::tempdir().unwrap();
        let (own, other) = (home.path().join("own"), home.path().join("other"));
        let before = mode_of_a_new_file(&other);
        let threads = apart(|| {
            // The threads of a library: they are started here, and live on.
            let own = own.clone();
            std::thread::spawn(move || mode_of_a_new_file(&own))
        });
        assert_eq!(threads.join().unwrap(), 0o600);
        fs::remove_file(&other).unwrap();
        assert_eq!(mode_of_a_new_file(&other), before);
    }

    fn mode_of_a_new_file(path: &Path) -> u32 {
        fs::write(path, "").unwrap();
        mode(path)
    }

    #[test]
    fn what_was_wider_is_mended_and_links_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let (tree, outside) = (home.path().join("tree"), home.path().join("outside"));
        folder(&tree.join("a/b")).unwrap();
        for file in [&tree.join("a/b/file"), &outside] {
            fs::write(file, "").unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
        }
        symlink(&outside, tree.join("link")).unwrap();
        fs::set_permissions(tree.join("a"), Permissions::from_mode(0o777)).unwrap();
        assert_eq!((wider(&tree.join("a")), wider(&tree)), (Some(0o777), None));
        mend(&tree).unwrap();
        for (path, expected) in
            [("a", 0o700), ("a/b", 0o700), ("a/b/file", 0o600), ("../outside", 0o644)]
        {
            assert_eq!(mode(&tree.join(path)), expected, "{path}");
        }
        assert!(mend(&tree.join("nothing")).is_ok());
    }

    #[test]
    fn a_file_made_anew_has_neither_the_rights_nor_the_place_of_the_old_one() {
        let home = tempfile::tempdir().unwrap();
        let (file, target) = (home.path().join("file"), home.path().join("target"));
        fs::write(&target, "theirs").unwrap();
        fs::set_permissions(&target, Permissions::from_mode(0o666)).unwrap();
        symlink(&target, &file).unwrap();
        drop(create(&file).unwrap());
        assert_eq!((mode(&file), &*fs::read(&target).unwrap()), (0o600, &b"theirs"[..]));
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        drop(create(&file).unwrap());
        assert_eq!(mode(&file), 0o600);
    }
}
