//! Mending a log with damaged tables while the process goes on. Tables of what is derived from records
//! are made anew (`rebuild`); damaged records are left behind by a salvage, which keeps all that are
//! intact (`salvage`).
//!
//! fjall's compaction stops for good at a damaged table, so that without mending the log would accept
//! no more writes. A scrub finds damage in tables that are seldom read, before a compaction does.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::lock::Lock;
use super::rebuild;
use super::salvage::{self, Salvaged};
use super::store::{Store, StoreError, TableFile};

/// When tables are first read after the start, and again after the end of each round.
pub(super) const SCRUB_AFTER: Duration = Duration::from_secs(10 * 60);
pub(super) const SCRUB_EVERY: Duration = Duration::from_secs(24 * 3600);
/// The least time between rounds that are started early because damage was met.
pub(super) const SCRUB_AGAIN: Duration = Duration::from_secs(60);
/// The pause after each megabyte, which keeps the disk free for calls.
pub(super) const SCRUB_PAUSE: Duration = Duration::from_millis(250);

/// What was done.
#[derive(Debug)]
pub(super) enum Mended {
    /// No table is damaged.
    Sound,
    /// What is derived was made anew; the table that was damaged.
    Derived(PathBuf),
    /// Records were damaged, and the log was salvaged.
    Salvaged(Salvaged),
}

/// Mends the log in `dir`, which nobody has open.
///
/// # Errors
///
/// [`StoreError::Locked`] if it is in use, [`StoreError::Io`] if the disk fails; the log is then
/// unchanged, or the next attempt ends what was begun. [`StoreError::Damaged`] if no record could be
/// kept.
pub(super) fn mend(dir: &Path, now_ms: u64) -> Result<Mended, StoreError> {
    let derived = {
        let _lock = Lock::take(dir)?;
        match Store::open(dir).and_then(|store| store.damaged_tables()) {
            Ok(tables) if tables.is_empty() => return Ok(Mended::Sound),
            Ok(tables) if !tables.iter().all(TableFile::is_derived) => None,
            Ok(tables) => tables.into_iter().next().map(|table| table.path),
            // The error does not name the keyspace: it may be a derived one.
            Err(StoreError::Damaged { file, .. }) => Some(file),
            Err(error) => return Err(error),
        }
    };
    if let Some(file) = derived {
        let _lock = Lock::take(dir)?;
        match rebuild::rebuild(dir) {
            Ok(()) => return Ok(Mended::Derived(file)),
            Err(StoreError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(salvage::salvage_some(dir, now_ms)?.map_or(Mended::Sound, Mended::Salvaged))
}

/// Reads `tables`, with a pause after each megabyte, and returns the first that is damaged. Ends early
/// once `goes_on` is false.
pub(super) fn scrub(
    tables: Vec<TableFile>,
    pause: Duration,
    goes_on: impl Fn() -> bool,
) -> Result<Option<PathBuf>, StoreError> {
    for table in tables {
        let sound = table.is_sound(|| {
            if !pause.is_zero() {
                thread::park_timeout(pause);
            }
            goes_on()
        });
        match sound {
            Ok(true) => {}
            Ok(false) if goes_on() => return Ok(Some(table.path)),
            Ok(false) => return Ok(None),
            // Compacted meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}
