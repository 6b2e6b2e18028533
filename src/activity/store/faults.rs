//! What failed reads and writes say about the store, and what its files are by their checksums.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3Default;

use super::{Space, StoreError};
use crate::os::private;

/// The file by which it is found out why fjall's thread gave up, and how much is written to it.
const PROBE: &str = "probe";
const PROBE_BYTES: usize = 64 << 10;

const READ_BYTES: usize = 1 << 20;

/// What a failed write says. Where fjall's thread gave up earlier it keeps the reason to itself: then
/// the disk is asked.
pub(super) fn write_error(path: &Path, error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            StoreError::Io(error)
        }
        fjall::Error::Poisoned => match probe(path) {
            Err(error) => StoreError::Io(error),
            Ok(()) => {
                StoreError::Io(io::Error::other("its thread gave up after a failed operation"))
            }
        },
        error => read_error(path, error),
    }
}

/// What a failed read says about the store.
pub(super) fn read_error(path: &Path, error: fjall::Error) -> StoreError {
    let damaged = |part: &str, why: &dyn std::fmt::Debug| StoreError::Damaged {
        file: path.join(part),
        why: format!("{why:?}"),
    };
    match error {
        fjall::Error::Locked => StoreError::Locked,
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            match error.kind() {
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::InvalidData
                | io::ErrorKind::NotFound => damaged("keyspaces", &error),
                _ => StoreError::Io(error),
            }
        }
        fjall::Error::Storage(error) => damaged("keyspaces", &error),
        fjall::Error::InvalidVersion(error) => damaged("version", &error),
        error @ (fjall::Error::JournalRecovery(_)
        | fjall::Error::InvalidTrailer
        | fjall::Error::InvalidTag(_)
        | fjall::Error::Decompress(_)) => {
            StoreError::Damaged { file: newest_journal(path), why: format!("{error:?}") }
        }
        error => StoreError::Io(io::Error::other(error)),
    }
}

/// A table: a file that is never changed once it is written.
#[derive(Clone, Debug)]
pub struct TableFile {
    /// The keyspace it belongs to.
    pub(super) space: Space,
    /// Where it is.
    pub path: PathBuf,
    /// The hash that the store keeps of it.
    pub(super) hash: u128,
}

impl TableFile {
    /// True where what it holds can be made anew from the records.
    #[must_use]
    pub fn is_derived(&self) -> bool {
        Space::DERIVED.contains(&self.space)
    }

    /// Reads it whole; whether it is what was written. `goes_on` is asked after each megabyte: told
    /// no, it is not known to be.
    ///
    /// # Errors
    ///
    /// The file system's; a table is removed once it is compacted.
    pub fn is_sound(&self, goes_on: impl Fn() -> bool) -> io::Result<bool> {
        let mut file = fs::File::open(&self.path)?;
        let mut hasher = Xxh3Default::new();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hasher.digest128() == self.hash),
                read => hasher.update(buffer.get(..read).unwrap_or_default()),
            }
            if !goes_on() {
                return Ok(false);
            }
        }
    }
}

/// Tries what the store's thread does: opens a file, writes and syncs it.
fn probe(path: &Path) -> io::Result<()> {
    let probe = path.with_file_name(PROBE);
    let result = private::create(&probe).and_then(|mut file| {
        file.write_all(&[0; PROBE_BYTES])?;
        file.sync_all()
    });
    let removed = fs::remove_file(&probe);
    result.and(removed)
}

/// The newest journal in a database's folder; the folder if there is none.
#[must_use]
pub fn newest_journal(path: &Path) -> PathBuf {
    let number = |path: &Path| path.file_stem()?.to_str()?.parse::<u64>().ok();
    let journals = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    journals
        .filter(|path| path.extension().is_some_and(|it| it == "jnl"))
        .max_by_key(|path| number(path))
        .unwrap_or_else(|| path.to_path_buf())
}
