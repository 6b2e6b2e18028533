//! Mending a log of which tables are damaged, while its process goes on: what is derived is made anew
//! in its place; what is not, by salvage, which keeps every record that is as it was written and
//! moves the damaged log aside.
//!
//! fjall compacts a damaged table never, and gives up each time it tries: without this the log would
//! take nothing any more. Damage that nobody reads is found by a scrub, before a compaction meets it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::append;
use super::copy::Copy;
use super::recover::Lock;
use super::salvage::{self, Salvaged};
use super::segment::{self, Builder, SegmentBounds};
use super::store::{Batch, DB, Fresh, Part, Store, StoreError, TableFile};
use super::view::View;
use crate::os::private;

/// The file that says that what is derived is not whole, for as long as it is being made.
const MARKER: &str = "rebuilding";
/// How long after the start tables are read for the first time, and how long after the end of that
/// again.
pub(super) const SCRUB_AFTER: Duration = Duration::from_secs(10 * 60);
pub(super) const SCRUB_EVERY: Duration = Duration::from_secs(24 * 3600);
/// How long apart tables are read because something that was read is damaged.
pub(super) const SCRUB_AGAIN: Duration = Duration::from_secs(60);
/// The pause after each megabyte, so that calls do not notice.
pub(super) const SCRUB_PAUSE: Duration = Duration::from_millis(250);

/// What was done.
#[derive(Debug)]
pub(super) enum Mended {
    /// No table is damaged.
    Sound,
    /// What is derived was made anew, as this table was damaged.
    Derived(PathBuf),
    /// Records were damaged.
    Salvaged(Salvaged),
}

/// Mends the log in `dir`, which nobody has open.
///
/// # Errors
///
/// [`StoreError::Locked`] if it is in use, [`StoreError::Io`] if the disk refuses; the log is then as
/// it was, or the next attempt goes on. [`StoreError::Damaged`] if no record could be kept.
pub(super) fn mend(dir: &Path, now_ms: u64) -> Result<Mended, StoreError> {
    let derived = {
        let _lock = Lock::take(dir)?;
        match Store::open(dir).and_then(|store| store.damaged_tables()) {
            Ok(tables) if tables.is_empty() => return Ok(Mended::Sound),
            Ok(tables) if !tables.iter().all(TableFile::is_derived) => None,
            Ok(tables) => tables.into_iter().next().map(|table| table.path),
            // Which keyspace it is cannot be told: it may be one of those.
            Err(StoreError::Damaged { file, .. }) => Some(file),
            Err(error) => return Err(error),
        }
    };
    if let Some(file) = derived {
        let _lock = Lock::take(dir)?;
        mark(dir)?;
        match rebuild(dir) {
            Ok(()) => return Ok(Mended::Derived(file)),
            Err(StoreError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(salvage::salvage_some(dir, now_ms)?.map_or(Mended::Sound, Mended::Salvaged))
}

/// Ends what a process that was killed has begun in `dir`.
///
/// # Errors
///
/// [`StoreError`].
pub(super) fn go_on(dir: &Path) -> Result<(), StoreError> {
    if dir.join(MARKER).try_exists()? { rebuild(dir) } else { Ok(()) }
}

fn mark(dir: &Path) -> Result<(), StoreError> {
    private::create(&dir.join(MARKER))?.sync_all()?;
    Ok(File::open(dir)?.sync_all()?)
}

/// Makes what is derived anew from the records.
fn rebuild(dir: &Path) -> Result<(), StoreError> {
    let store = {
        let scratch = Copy::scratch(dir)?;
        // Whose it is lies in a part that is not taken.
        let fresh = Fresh::create(scratch.path(), super::record::NodeId([0; 16]))?;
        fresh.put(Part::Derived, &dir.join(DB))?;
        Store::open(dir)?
    };
    let view = View::new(store.snapshot())?;
    let whole = segment::of(view.first() - 1 + segment::RECORDS - 1)..segment::of(view.next());
    for number in whole {
        let mut derived = Builder::default();
        view.derive(number, &mut derived)?;
        if derived.bounds() != SegmentBounds::NONE {
            let mut batch = Batch::default();
            append::finish_segment(&derived, number, &mut batch);
            store.commit(batch)?;
        }
    }
    store.sync()?;
    fs::remove_file(dir.join(MARKER))?;
    Ok(File::open(dir)?.sync_all()?)
}

/// Reads `tables`, with a pause after each megabyte; the first that is damaged. Ends early once
/// `goes_on` says no.
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
