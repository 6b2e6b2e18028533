//! Checksums of all files of a closed log, stored in its file `seal`.
//!
//! The store's checksums and the chain cover the records, but not every byte of the store's bookkeeping. A
//! closed log does not change, so its files are hashed once, when it is closed. Opening the log removes the file;
//! after a crash the file is missing, and only the chain is checked.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::folder;
use super::record::Hash;
use super::store::{DB, StoreError};

/// Name of the file in the log's folder.
pub(crate) const NAME: &str = "seal";
const READ_BYTES: usize = 1 << 20;
/// Name of the folders that hold tables. Tables never change once written, and there are too many to read all of them
/// at every start.
const TABLES: &str = "tables";

/// Files next to the store that logs of earlier versions do not have.
const OPTIONAL: [&str; 2] = [super::losses::TALLY_FILE, super::folder::NODE_FILE];

/// Set of files to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// All files except tables, which carry their own checksums. Used at startup.
    Quick,
    Full,
}

/// Result of comparing the files with their checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumFinding {
    /// There are no checksums, because the log was not closed or was never written.
    NotClosed,
    Whole,
    /// These files were altered, removed or added.
    Altered(Vec<PathBuf>),
}

/// Hashes the files of the closed log in `dir`.
pub fn write(dir: &Path) -> io::Result<()> {
    let mut text = String::new();
    for (name, path) in files(dir)? {
        let (length, hash) = hash(&path)?;
        text.push_str(&format!("{hash} {length} {name}\n"));
    }
    folder::write_hashed(dir, NAME, &text)
}

/// Compares the files of the log in `dir` with their checksums.
pub(crate) fn check(dir: &Path, depth: Depth) -> Result<ChecksumFinding, StoreError> {
    let path = dir.join(NAME);
    let body = match folder::read_hashed(&path) {
        Ok(Some(body)) => body,
        Ok(None) => {
            return Err(StoreError::Damaged {
                file: path,
                why: "its checksum does not match".into(),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(ChecksumFinding::NotClosed);
        }
        Err(error) => return Err(StoreError::unreadable(path, error)),
    };
    let mut altered = Vec::new();
    let mut listed = Vec::new();
    for line in body.lines() {
        let Some(name) = line.splitn(3, ' ').nth(2) else { continue };
        listed.push(name);
        let path = dir.join(name);
        if depth == Depth::Quick && is_table(&path) && path.try_exists()? {
            continue;
        }
        let now = match hash(&path) {
            Ok((length, hash)) => format!("{hash} {length} {name}"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(StoreError::unreadable(path, error)),
        };
        if now != line {
            altered.push(path);
        }
    }
    // Checksums of earlier versions do not list the optional files.
    let known = |name: &str| listed.contains(&name) || OPTIONAL.contains(&name);
    let there = files(dir).map_err(|error| StoreError::unreadable(dir.join(DB), error))?;
    let added = there.into_iter().filter(|(name, _)| !known(name));
    altered.extend(added.map(|(_, path)| path));
    Ok(if altered.is_empty() { ChecksumFinding::Whole } else { ChecksumFinding::Altered(altered) })
}

/// Whether the log in `dir` was closed and therefore has checksums.
pub(super) fn exists(dir: &Path) -> io::Result<bool> {
    dir.join(NAME).try_exists()
}

/// Removes the checksums durably, before the log changes.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(NAME)) {
        Ok(()) => File::open(dir)?.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_table(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.ends_with(TABLES))
}

/// The log's files with their names relative to `dir`, sorted.
fn files(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = vec![];
    let mut folders = vec![dir.join(DB)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.push(dir.join(super::chain_tip::NAME));
    for name in OPTIONAL {
        let path = dir.join(name);
        if path.try_exists()? {
            found.push(path);
        }
    }
    found.sort();
    let name = |path: &Path| path.strip_prefix(dir).unwrap_or(path).to_string_lossy().into_owned();
    Ok(found.into_iter().map(|path| (name(&path), path)).collect())
}

fn hash(path: &Path) -> io::Result<(u64, Hash)> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((hasher.count(), Hash(*hasher.finalize().as_bytes()))),
            read => hasher.update(buffer.get(..read).unwrap_or_default()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_detect_altered_added_and_missing_files() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let tables = dir.join(DB).join(TABLES);
        fs::create_dir_all(&tables).unwrap();
        let put = |path: &Path, text: &str| fs::write(path, text).unwrap();
        let (head, log, table) = (dir.join("head"), dir.join(DB).join("0.jnl"), tables.join("1"));
        put(&head, "head");
        put(&log, "log");
        put(&table, "table");
        assert_eq!(check(dir, Depth::Full).unwrap(), ChecksumFinding::NotClosed);
        write(dir).unwrap();
        assert_eq!(check(dir, Depth::Full).unwrap(), ChecksumFinding::Whole);

        put(&table, "tablE");
        assert_eq!(check(dir, Depth::Full).unwrap(), ChecksumFinding::Altered(vec![table.clone()]));
        assert_eq!(check(dir, Depth::Quick).unwrap(), ChecksumFinding::Whole);
        fs::remove_file(&table).unwrap();
        assert_eq!(
            check(dir, Depth::Quick).unwrap(),
            ChecksumFinding::Altered(vec![table.clone()])
        );
        put(&table, "table");
        put(&log, "lo");
        assert_eq!(check(dir, Depth::Quick).unwrap(), ChecksumFinding::Altered(vec![log.clone()]));
        put(&log, "log");
        let more = dir.join(DB).join("1.jnl");
        put(&more, "");
        assert_eq!(check(dir, Depth::Quick).unwrap(), ChecksumFinding::Altered(vec![more.clone()]));
        fs::remove_file(more).unwrap();

        let seal = dir.join(NAME);
        let whole = fs::read(&seal).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&seal, bytes).unwrap();
            assert!(matches!(check(dir, Depth::Full), Err(StoreError::Damaged { .. })), "{at}");
        }
        remove(dir).unwrap();
        assert_eq!(check(dir, Depth::Full).unwrap(), ChecksumFinding::NotClosed);
    }
}
