//! Why the log cannot be opened, read or written, and which errors of fjall mean that.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::journals;
use crate::os::private;

/// The file that is written to find out why fjall's thread gave up, and its length.
const PROBE: &str = "probe";
const PROBE_BYTES: usize = 64 << 10;

/// Why the log cannot be opened, read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error("the activity log is in use by another process")]
    Locked,
    /// It is damaged (ACT-9).
    #[error("the activity log is damaged: {}: {why}", file.display())]
    Damaged {
        /// The file, or its folder where the file is not known.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The disk failed.
    #[error("the activity log cannot be used: {0}")]
    Io(#[from] io::Error),
}

/// The error of a failed write. Where fjall's thread gave up earlier it does not say why: then a file is
/// written to see whether the disk fails.
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

/// The error of a failed read.
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
            StoreError::Damaged { file: journals::newest(path), why: format!("{error:?}") }
        }
        error => StoreError::Io(io::Error::other(error)),
    }
}

/// Does what the store's thread does: makes a file, writes and syncs it.
fn probe(path: &Path) -> io::Result<()> {
    let probe = path.with_file_name(PROBE);
    let result = private::create(&probe).and_then(|mut file| {
        file.write_all(&[0; PROBE_BYTES])?;
        file.sync_all()
    });
    let removed = fs::remove_file(&probe);
    result.and(removed)
}
