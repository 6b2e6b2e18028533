//! Making a log, opening its database, and what of a database can be taken from an empty one.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions};

use super::faults::read_error;
use super::{Batch, DB, FORMAT, Space, Store, StoreError};
use crate::activity::record::NodeId;
use crate::os::{descriptors, private};

const DB_NEW: &str = "db.new";
/// The folder of keyspaces in a database, and that of fjall's own among them.
const KEYSPACES: &str = "keyspaces";
const META: &str = "0";
/// The file that names a keyspace's tables: one without it is taken for one that was never finished,
/// and removed.
const CURRENT: &str = "current";
/// The file with the version of the database.
const VERSION: &str = "version";
/// Memory for blocks read from disk.
const CACHE_BYTES: u64 = 8 << 20;
/// Journals on disk before the oldest is flushed; fjall takes no less.
const JOURNAL_BYTES: u64 = 64 << 20;
/// Memory a keyspace's newest records take before they become a table.
const MEMTABLE_BYTES: u64 = 16 << 20;
/// Threads that flush and compact. One: of several, the first hands the request to compact back to
/// itself without a pause for as long as another compacts, and takes a core for it.
const WORKERS: usize = 1;

/// What of a database can be taken from an empty one: the keyspaces have the same names and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What can be made anew from the records.
    Derived,
    /// fjall's own keyspace, which holds the names and settings of the others.
    Meta,
    /// What there is one of.
    State,
}

impl Part {
    fn folders(self) -> Vec<&'static str> {
        match self {
            Self::Derived => Space::DERIVED.map(Space::folder).to_vec(),
            Self::Meta => vec![META],
            Self::State => vec![Space::State.folder()],
        }
    }
}

/// An empty log, to take parts of.
#[derive(Debug)]
pub struct Fresh {
    db: PathBuf,
}

impl Fresh {
    /// Makes one in `dir`, which is empty, for `node`.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn create(dir: &Path, node: NodeId) -> Result<Self, StoreError> {
        create(dir, node)?;
        Ok(Self { db: dir.join(DB) })
    }

    /// Puts a part of it into the place of that of the database `db`, which is closed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`].
    pub fn put(&self, part: Part, db: &Path) -> Result<(), StoreError> {
        for folder in part.folders() {
            let (from, to) =
                (self.db.join(KEYSPACES).join(folder), db.join(KEYSPACES).join(folder));
            if to.try_exists()? {
                fs::remove_dir_all(&to)?;
            }
            copy(&from, &to)?;
        }
        if part == Part::Meta {
            fs::remove_file(db.join(VERSION))?;
            fs::copy(self.db.join(VERSION), db.join(VERSION))?;
        }
        Ok(fs::File::open(db.join(KEYSPACES))?.sync_all()?)
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    private::new_folder(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
            fs::File::open(target)?.sync_all()?;
        }
    }
    fs::File::open(to)?.sync_all()
}

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

/// Makes an empty log aside, and moves it into place when it is whole, so that a crash leaves
/// either nothing or a log.
pub(super) fn create(dir: &Path, node: NodeId) -> Result<(), StoreError> {
    let path = dir.join(DB_NEW);
    private::folder(dir)?;
    if path.try_exists()? {
        fs::remove_dir_all(&path)?;
    }
    {
        let db = open_db(&path)?;
        let spaces = keyspaces(&db, &path)?;
        let store = Store { db, spaces, node, path: path.clone() };
        let mut batch = Batch::default();
        batch.put(Space::State, "format", vec![FORMAT]);
        batch.put(Space::State, "node", node.0.to_vec());
        store.commit(batch)?;
        store.sync()?;
        // In a table it outlives the journal.
        store.flush(store.space(Space::State))?;
    }
    fs::rename(&path, dir.join(DB))?;
    fs::File::open(dir)?.sync_all()?;
    Ok(())
}

/// Opens the database. Damage that makes it panic is damage all the same.
pub(super) fn open_db(path: &Path) -> Result<Database, StoreError> {
    let open = || {
        Database::builder(path)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES)
            .manual_journal_persist(true)
            // What is large in it comes packed.
            .journal_compression(CompressionType::None)
            .worker_threads(WORKERS)
            .max_cached_files(Some(descriptors::store_tables(descriptors::limit())))
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

pub(super) fn keyspaces(
    db: &Database,
    path: &Path,
) -> Result<[Keyspace; Space::ALL.len()], StoreError> {
    let open = |space: Space| {
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        db.keyspace(space.name(), options).map_err(|error| read_error(path, error))
    };
    let [a, b, c, d, e, f] = Space::ALL;
    Ok([open(a)?, open(b)?, open(c)?, open(d)?, open(e)?, open(f)?])
}
