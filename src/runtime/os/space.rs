//! Disk space: free space at a path, and space used by a folder.

use std::fs;
use std::io;
use std::path::Path;

use nix::sys::statvfs::statvfs;

/// Maximum depth of nested folders that are counted.
const MAX_DEPTH: usize = 16;
/// Maximum number of entries counted per folder.
const MAX_ENTRIES: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoom {
    /// Bytes that this user can still write.
    pub free: u64,
    /// Size of the disk in bytes.
    pub total: u64,
}

/// Bytes that this user can still write on the disk of `path`.
pub fn free(path: &Path) -> io::Result<u64> {
    disk(path).map(|disk| disk.free)
}

/// The disk of `path`.
pub fn disk(path: &Path) -> io::Result<DiskRoom> {
    let stats = statvfs(path)?;
    // The integer widths differ between systems.
    #[allow(
        clippy::useless_conversion,
        clippy::unnecessary_cast,
        reason = "the same on some systems"
    )]
    let (free, total, size) =
        (stats.blocks_available() as u64, stats.blocks() as u64, stats.fragment_size() as u64);
    Ok(DiskRoom { free: free.saturating_mul(size), total: total.saturating_mul(size) })
}

/// Bytes used by the files in a folder and its subfolders. Links are not followed; unreadable entries count as 0.
pub fn used(folder: &Path) -> u64 {
    used_within(folder, MAX_DEPTH)
}

fn used_within(folder: &Path, depth: usize) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() && depth > 0 => used_within(&entry.path(), depth - 1),
        // Journals are allocated long before they are filled, so the allocated blocks count.
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
    fn used_space_includes_nested_files() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(used(home.path()), 0);
        fs::create_dir(home.path().join("a")).unwrap();
        fs::write(home.path().join("a/b"), vec![7; 10_000]).unwrap();
        std::os::unix::fs::symlink("/", home.path().join("link")).unwrap();
        let used = used(home.path());
        assert!((10_000..100_000).contains(&used), "{used}");
        let disk = disk(home.path()).unwrap();
        assert!(0 < disk.free && disk.free <= disk.total);
        assert!(free(&home.path().join("none")).is_err());
    }
}
