//! Making what is derived from the records (index, segments, counters) anew in a closed log.

use std::fs::{self, File};
use std::path::Path;

use super::append;
use super::copy::Copy;
use super::record::NodeId;
use super::segment::{self, Builder, SegmentBounds};
use super::store::{Batch, DB, Fresh, Part, Store, StoreError};
use super::view::View;
use crate::os::private;

/// Stands in the folder while what is derived is not whole.
const MARKER: &str = "rebuilding";

/// Makes the log's derived parts anew, in its place. A process that is killed meanwhile leaves a
/// marker, by which the next one ends it.
///
/// # Errors
///
/// [`StoreError`]; the next attempt begins again.
pub(super) fn rebuild(dir: &Path) -> Result<(), StoreError> {
    private::create(&dir.join(MARKER))?.sync_all()?;
    File::open(dir)?.sync_all()?;
    derive_all(dir)
}

/// Ends what a process that was killed has begun in `dir`.
///
/// # Errors
///
/// [`StoreError`].
pub(super) fn resume(dir: &Path) -> Result<(), StoreError> {
    if dir.join(MARKER).try_exists()? { derive_all(dir) } else { Ok(()) }
}

fn derive_all(dir: &Path) -> Result<(), StoreError> {
    let store = {
        let scratch = Copy::scratch(dir)?;
        // The node id is in a part that is not replaced.
        let fresh = Fresh::create(scratch.path(), NodeId([0; 16]))?;
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
