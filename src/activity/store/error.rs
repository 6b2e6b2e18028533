//! Errors of the store, and their mapping from fjall's errors.

use std::fs;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use nix::errno::Errno;
use thiserror::Error;

use mcpproxy_runtime::os::private;

/// File that is written to find out why fjall's thread gave up, and the length of this file.
const PROBE: &str = "probe";
const PROBE_BYTES: usize = 64 << 10;

/// Reason why the log cannot be opened, read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("the activity log is in use by another process")]
    Locked,
    #[error("the activity log is damaged: {}: {why}", file.display())]
    Damaged {
        /// Damaged file, or its folder if the file is unknown.
        file: PathBuf,
        /// Description of the damage.
        why: String,
    },
    /// I/O error.
    #[error("the activity log cannot be used: {0}")]
    Io(#[from] io::Error),
    /// I/O error at a known file.
    #[error("the activity log cannot be used: {}: {error}", file.display())]
    File { file: PathBuf, error: io::Error },
}

impl StoreError {
    /// Classifies an error from reading a file that every log has. It is damage if the file is missing, too short or
    /// unreadable on the disk; otherwise it is an I/O error, which says nothing about the log.
    pub(crate) fn unreadable(file: impl Into<PathBuf>, error: io::Error) -> Self {
        let file = file.into();
        match error.kind() {
            io::ErrorKind::NotFound => Self::Damaged { file, why: "it is missing".into() },
            _ if is_damage(&error) => {
                Self::Damaged { file, why: format!("it cannot be read: {error}") }
            }
            _ => Self::File { file, error },
        }
    }

    /// The underlying I/O error, if there is one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Io(error) | Self::File { error, .. } => Some(error),
            Self::Locked | Self::Damaged { .. } => None,
        }
    }
}

/// Damage that readers of the log found and that is not repaired yet.
#[derive(Debug, Default)]
pub struct DamageReport(ArcSwapOption<String>);

impl DamageReport {
    /// Description of the last damage found, and its remedy.
    pub fn text(&self) -> Option<String> {
        self.0.load().as_deref().cloned()
    }

    /// Records the damage reported by a read; other errors are ignored. Does not start a repair, because a repair stops
    /// the writer. The check of the tables (`threads`) or the operator starts the repair.
    pub(super) fn take(&self, error: &StoreError) {
        let StoreError::Damaged { .. } = error else { return };
        let text = format!(
            "{error}; it is repaired at the daily check of the tables, or by `mcpproxy serve --salvage`"
        );
        if self.0.load().as_deref() != Some(&text) {
            tracing::error!(%error, "a reader found damage in the activity log");
            self.0.store(Some(Arc::new(text)));
        }
    }

    /// Clears the damage after its repair.
    pub(crate) fn clear(&self) {
        self.0.store(None);
    }
}

/// Whether a read error means that the data is gone: an unreadable part of the disk, or an unexpected end of
/// the file.
pub(crate) fn is_damage(error: &io::Error) -> bool {
    let unreadable = [Errno::EIO as i32, Errno::EINVAL as i32];
    error.raw_os_error().is_some_and(|code| unreadable.contains(&code))
        || matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
}

/// Calls into the store and reports a panic as damage of `file`: the store checks most of its input and
/// assumes that the rest is valid.
pub(super) fn guarded<T>(
    file: &Path,
    call: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        let why = format!("its contents are impossible: {message}");
        Err(StoreError::Damaged { file: file.to_owned(), why })
    })
}

/// Maps a write error. If fjall's thread gave up earlier, the reason is unknown; a probe file then shows
/// whether the disk fails.
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

/// Maps a read error.
pub(super) fn read_error(path: &Path, error: fjall::Error) -> StoreError {
    let damaged = |part: &str, why: &dyn std::fmt::Debug| StoreError::Damaged {
        file: path.join(part),
        why: format!("{why:?}"),
    };
    match error {
        fjall::Error::Locked => StoreError::Locked,
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            if is_damage(&error) || error.kind() == io::ErrorKind::NotFound {
                damaged("keyspaces", &error)
            } else {
                StoreError::Io(error)
            }
        }
        fjall::Error::Storage(error) => {
            StoreError::Damaged { file: path.join("keyspaces"), why: corruption(&error) }
        }
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

/// Description of damage that the store found in a file.
pub(super) fn corruption(error: &fjall::LsmError) -> String {
    match error {
        fjall::LsmError::ChecksumMismatch { .. } => "a checksum does not match".to_owned(),
        error => format!("{error:?}"),
    }
}

/// Newest journal in a database's folder; the folder itself if it has no journal.
pub(crate) fn newest_journal(path: &Path) -> PathBuf {
    let journals = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    journals
        .filter(|path| path.extension().is_some_and(|it| it == "jnl"))
        .max_by_key(|path| journal_number(path))
        .unwrap_or_else(|| path.to_path_buf())
}

/// Number in a journal's file name.
pub(super) fn journal_number(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok()
}

/// Creates, writes and syncs a file, as fjall's thread does.
fn probe(path: &Path) -> io::Result<()> {
    let probe = path.with_file_name(PROBE);
    let result = private::create(&probe).and_then(|mut file| {
        file.write_all(&[0; PROBE_BYTES])?;
        file.sync_all()
    });
    let removed = fs::remove_file(&probe);
    result.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_in_a_guarded_call_is_reported_as_damage_of_its_file() {
        let file = Path::new("db/keyspaces/1");
        type Guarded = fn() -> Result<(), StoreError>;
        let calls: [(Guarded, &str); 3] = [
            (|| panic!("lock is poisoned"), "lock is poisoned"),
            (|| panic!("block {} is missing", 7), "block 7 is missing"),
            (|| std::panic::panic_any(7), ""),
        ];
        for (call, message) in calls {
            let error = guarded(file, call).unwrap_err();
            let StoreError::Damaged { file: named, why } = &error else { panic!("{error}") };
            assert_eq!(named, file);
            assert_eq!(why, &format!("its contents are impossible: {message}"));
        }
        let failed = guarded::<()>(file, || Err(StoreError::Locked));
        assert!(matches!(failed, Err(StoreError::Locked)), "{failed:?}");
        assert_eq!(guarded(file, || Ok(7)).unwrap(), 7);
    }
}
