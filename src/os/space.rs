//! Room on disks: how much is left where a file would be, and how much a folder takes.

use std::fs;
use std::io;
use std::path::Path;

use nix::sys::statvfs::statvfs;

/// Folders within folders that are looked into.
const MAX_DEPTH: usize = 16;
/// Most entries of one folder that are counted.
const MAX_ENTRIES: usize = 100_000;

/// Bytes that this user can still write where `path` is.
///
/// # Errors
///
/// The file system's.
pub fn free(path: &Path) -> io::Result<u64> {
    let room = statvfs(path)?;
    // Their widths differ between systems.
    #[allow(
        clippy::useless_conversion,
        clippy::unnecessary_cast,
        reason = "the same on some systems"
    )]
    let (blocks, size) = (room.blocks_available() as u64, room.fragment_size() as u64);
    Ok(blocks.saturating_mul(size))
}

/// Bytes of the files in a folder and in those within it; links are not followed, and what cannot be
/// read counts nothing.
#[must_use]
pub fn used(folder: &Path) -> u64 {
    used_within(folder, MAX_DEPTH)
}

fn used_within(folder: &Path, depth: usize) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() && depth > 0 => used_within(&entry.path(), depth - 1),
        // Journals are made long before they are filled: what they take is what counts.
        Ok(metadata) if metadata.is_file() => {
            std::os::unix::fs::MetadataExt::blocks(&metadata).saturating_mul(512)
        }
        Ok(_) | Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_folder_takes_is_that_of_all_its_files() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(used(home.path()), 0);
        fs::create_dir(home.path().join("a")).unwrap();
        fs::write(home.path().join("a/b"), vec![7; 10_000]).unwrap();
        std::os::unix::fs::symlink("/", home.path().join("link")).unwrap();
        let used = used(home.path());
        assert!((10_000..100_000).contains(&used), "{used}");
        assert!(free(home.path()).unwrap() > 0);
        assert!(free(&home.path().join("none")).is_err());
    }
}
