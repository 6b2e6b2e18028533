//! Opening fjall's database, and the folders it consists of.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions};

use super::Space;
use super::error::{StoreError, read_error};
use crate::os::descriptors;

/// The folder of keyspaces in a database.
pub(super) const KEYSPACES: &str = "keyspaces";
/// The folder of fjall's own keyspace among them.
pub(super) const META: &str = "0";
/// The file that names a keyspace's tables: one without it is taken for one that was never finished,
/// and removed.
const CURRENT: &str = "current";
/// The file with the version of the database.
pub(super) const VERSION: &str = "version";
/// How much of the machine a database may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DatabaseSize {
    /// Memory for blocks read from disk.
    cache_bytes: u64,
    /// Memory a keyspace's newest records take before they become a table.
    memtable_bytes: u64,
    /// Most tables that it keeps open, less where there are few descriptors.
    open_tables: usize,
}

impl DatabaseSize {
    /// Of the log itself.
    pub(super) const LOG: Self =
        Self { cache_bytes: 8 << 20, memtable_bytes: 16 << 20, open_tables: usize::MAX };
    /// Of a replica, of which there may be many.
    pub(super) const REPLICA: Self =
        Self { cache_bytes: 1 << 20, memtable_bytes: 2 << 20, open_tables: 32 };
}

/// Journals on disk before the oldest is flushed; fjall takes no less.
const JOURNAL_BYTES: u64 = 64 << 20;
/// Threads that flush and compact. One: of several, the first hands the request to compact back to
/// itself without a pause for as long as another compacts, and takes a core for it.
const WORKERS: usize = 1;

/// Refuses a database that fjall would clear away for what is missing of it.
///
/// # Errors
///
/// [`StoreError::Damaged`].
pub(super) fn check_folders(db: &Path) -> Result<(), StoreError> {
    let folders = Space::ALL.map(Space::folder).into_iter().chain([META]);
    let files = folders.map(|folder| db.join(KEYSPACES).join(folder).join(CURRENT));
    for file in files.chain([db.join(VERSION)]) {
        if !file.try_exists()? {
            return Err(StoreError::Damaged { file, why: "it is missing".into() });
        }
    }
    Ok(())
}

/// Opens the database, or makes one. Damage that makes fjall panic is reported as damage.
pub(super) fn open_db(path: &Path, size: DatabaseSize) -> Result<Database, StoreError> {
    let tables = descriptors::store_tables(descriptors::limit()).min(size.open_tables);
    let open = || {
        Database::builder(path)
            .cache_size(size.cache_bytes)
            .max_journaling_size(JOURNAL_BYTES)
            .manual_journal_persist(true)
            // What is large in it comes packed.
            .journal_compression(CompressionType::None)
            .worker_threads(WORKERS)
            .max_cached_files(Some(tables))
            .open()
    };
    match catch_unwind(AssertUnwindSafe(open)) {
        Ok(Ok(db)) => Ok(db),
        Ok(Err(error)) => Err(read_error(path, error)),
        Err(_) => Err(StoreError::Damaged {
            file: path.join(KEYSPACES),
            why: "its contents are impossible".into(),
        }),
    }
}

/// Opens the keyspaces, in the order of [`Space::ALL`], and makes those that are missing.
pub(super) fn keyspaces(
    db: &Database,
    path: &Path,
    size: DatabaseSize,
) -> Result<[Keyspace; Space::ALL.len()], StoreError> {
    let open = |space: Space| {
        let options = || KeyspaceCreateOptions::default().max_memtable_size(size.memtable_bytes);
        db.keyspace(space.name(), options).map_err(|error| read_error(path, error))
    };
    let [a, b, c, d, e, f] = Space::ALL;
    Ok([open(a)?, open(b)?, open(c)?, open(d)?, open(e)?, open(f)?])
}
