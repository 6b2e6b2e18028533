//! Files and folders that only their owner can access: modes 0600 and 0700, regardless of the umask and of the parent
//! folder's mode.
//!
//! The owner of an existing file is not checked, and links are not followed.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::sys::stat::{Mode, umask};

/// Mode of a file.
const FILE: u32 = 0o600;
/// Mode of a folder.
const FOLDER: u32 = 0o700;
/// Mode bits of everyone except the owner.
const OTHERS: u32 = 0o077;
/// Maximum depth of nested folders for [`restrict_all`].
const MAX_DEPTH: usize = 16;

/// Creates `path` and its missing parent folders.
pub fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER).create(path)
}

/// Creates the folder `path`, which must not exist.
pub fn new_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER).create(path)
}

/// Options that make a newly created file private. An existing file keeps its mode.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE);
    options
}

/// Creates an empty file for writing. An existing file is removed first, so that neither its mode nor a link in its
/// place matters.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => options().write(true).create_new(true).open(path),
    }
}

/// The mode of `path` if users other than its owner have access; otherwise `None`, also if the path does not exist.
pub fn wider(path: &Path) -> Option<u32> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o7777;
    (mode & OTHERS != 0).then_some(mode)
}

/// Removes others' access to `path` and everything in it.
///
/// # Errors
///
/// The first file system error. The remaining entries are still processed.
pub fn restrict_all(path: &Path) -> io::Result<()> {
    restrict_to_depth(path, MAX_DEPTH)
}

/// Removes others' access to `path` only.
pub fn restrict(path: &Path) -> io::Result<()> {
    restrict_to_depth(path, 0)
}

fn restrict_to_depth(path: &Path, depth: usize) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if metadata.is_symlink() {
        return Ok(());
    }
    let mut result = Ok(());
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 {
        result = fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS));
    }
    if metadata.is_dir() && depth > 0 {
        for entry in fs::read_dir(path)?.flatten() {
            result = result.and(restrict_to_depth(&entry.path(), depth - 1));
        }
    }
    result
}

/// Runs `act` so that the files it creates are private even if `act` cannot set their modes: on a thread with a
/// separate umask, which threads started by it inherit. The umask of the process is unchanged, because servers inherit
/// it.
///
/// On systems without per-thread umasks (not Linux, or a container that forbids them), only the mode of the parent
/// folder protects the files.
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

/// Gives this thread a separate umask; returns false if the system does not support it.
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
    fn private_thread_makes_private_files_and_keeps_the_process_umask() {
        let home = tempfile::tempdir().unwrap();
        let (own, other) = (home.path().join("own"), home.path().join("other"));
        let before = mode_of_a_new_file(&other);
        let threads = apart(|| {
            // Simulates a thread that a library starts inside `apart` and that outlives it.
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
    fn restriction_removes_wider_modes_and_does_not_follow_links() {
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
        restrict_all(&tree).unwrap();
        for (path, expected) in
            [("a", 0o700), ("a/b", 0o700), ("a/b/file", 0o600), ("../outside", 0o644)]
        {
            assert_eq!(mode(&tree.join(path)), expected, "{path}");
        }
        assert!(restrict_all(&tree.join("nothing")).is_ok());
    }

    #[test]
    fn created_private_file_has_neither_mode_nor_link_of_an_existing_one() {
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
