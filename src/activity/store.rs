//! The log on disk: keyspaces of one fjall database, batches that are written whole, snapshots.
//!
//! ```text
//! <dir>/db     the database: heads, bodies, index, segments, stats, state
//! <dir>/head   the end of the chain (`chain_tip`)
//! <dir>/node   whose log it is (`node`)
//! <dir>/lost   what could not be recorded (`lost`)
//! ```
//!
//! Knows keys and values as bytes; what they mean is decided by `codec`, `segment`, `append` and
//! `view`. In `activity`, fjall is named here and in this folder alone.

mod batch;
mod database;
mod error;
mod fresh;
pub(super) mod journals;
mod space;
mod table;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fjall::{AbstractTree, Database, Keyspace, PersistMode, Readable};

pub use self::batch::Batch;
use self::database::{DatabaseSize, check_folders, keyspaces, open_db};
pub use self::error::StoreError;
use self::error::{read_error, write_error};
pub use self::fresh::{Fresh, Part};
pub use self::space::Space;
pub use self::table::TableFile;
use super::bytes::DecodeError;
use super::node;
use super::record::NodeId;
use crate::os::private;

/// The database's folder in the log's folder.
pub const DB: &str = "db";
/// The folder in which a database is made.
const DB_NEW: &str = "db.new";
/// The format of keys and values, kept in the state.
const FORMAT: u8 = 1;

/// With more full memtables in a keyspace a write waits until one is a table. fjall waits too, from
/// 4 on, but without a bound: for ever where its own thread has given up.
const MAX_FULL_MEMTABLES: usize = 2;
/// With more runs in a keyspace's first level a write waits for compaction. fjall slows writes down
/// from 20 on and waits from 30 on, again without a bound.
const MAX_RUNS: usize = 24;
/// How long a write or a compaction waits for fjall's thread in all.
const STALL_LIMIT: Duration = Duration::from_secs(10);
/// The time between two looks at whether the thread is done.
const STALL_POLL: Duration = Duration::from_millis(5);

/// An open log. Clones share it.
#[derive(Clone)]
pub struct Store {
    db: Database,
    spaces: [Keyspace; Space::ALL.len()],
    node: NodeId,
    path: PathBuf,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.path).field("node", &self.node).finish()
    }
}

impl Store {
    /// Opens the log in `dir`, or makes one there.
    ///
    /// # Errors
    ///
    /// [`StoreError`], by name where the database is damaged.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(DB);
        if !path.try_exists()? {
            let mut node = [0; 16];
            getrandom::fill(&mut node).map_err(|error| io::Error::other(error.to_string()))?;
            Self::create(dir, node::read(dir)?.unwrap_or(NodeId(node)), DatabaseSize::LOG)?;
        }
        Self::open_existing(path, DatabaseSize::LOG)
    }

    /// Makes a log in `dir`, where there is none, for a node that had one before.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn open_as(dir: &Path, node: NodeId) -> Result<Self, StoreError> {
        Self::create(dir, node, DatabaseSize::LOG)?;
        Self::open_existing(dir.join(DB), DatabaseSize::LOG)
    }

    /// Opens the copy of the log of `node` in `dir`, or makes one there. It takes less of the machine than a log.
    ///
    /// # Errors
    ///
    /// [`StoreError`], by name where the database is damaged, or of another log.
    pub fn open_replica(dir: &Path, node: NodeId) -> Result<Self, StoreError> {
        let path = dir.join(DB);
        if !path.try_exists()? {
            Self::create(dir, node, DatabaseSize::REPLICA)?;
        }
        let store = Self::open_existing(path.clone(), DatabaseSize::REPLICA)?;
        if store.node != node {
            let why = format!("it is of log {}, not {node}", store.node);
            return Err(StoreError::Damaged { file: path, why });
        }
        Ok(store)
    }

    /// Makes an empty log under another name and renames it when it is whole, so that a crash leaves
    /// either nothing or a log.
    fn create(dir: &Path, node: NodeId, size: DatabaseSize) -> Result<(), StoreError> {
        let path = dir.join(DB_NEW);
        private::folder(dir)?;
        if path.try_exists()? {
            fs::remove_dir_all(&path)?;
        }
        {
            let db = open_db(&path, size)?;
            let spaces = keyspaces(&db, &path, size)?;
            let store = Self { db, spaces, node, path: path.clone() };
            let mut batch = Batch::default();
            batch.put(Space::State, "format", vec![FORMAT]);
            batch.put(Space::State, "node", node.0.to_vec());
            store.commit(batch)?;
            store.sync()?;
            // From a table it can be read even if the journals are damaged.
            store.flush(store.space(Space::State))?;
        }
        fs::rename(&path, dir.join(DB))?;
        Ok(fs::File::open(dir)?.sync_all()?)
    }

    fn open_existing(path: PathBuf, size: DatabaseSize) -> Result<Self, StoreError> {
        check_folders(&path)?;
        let db = open_db(&path, size)?;
        let names = db.list_keyspace_names();
        if let Some(lost) =
            Space::ALL.iter().find(|space| names.iter().all(|name| &**name != space.name()))
        {
            let why = format!("keyspace {} is missing", lost.name());
            return Err(StoreError::Damaged { file: path.join("keyspaces"), why });
        }
        Self::with_keyspaces(db, path, size)
    }

    fn with_keyspaces(db: Database, path: PathBuf, size: DatabaseSize) -> Result<Self, StoreError> {
        let spaces = keyspaces(&db, &path, size)?;
        let [.., state] = &spaces;
        let get = |key: &str| state.get(key).map_err(|error| read_error(&path, error));
        let damaged = |why: &str| StoreError::Damaged { file: path.clone(), why: why.into() };
        match get("format")?.as_deref() {
            Some([FORMAT]) => {}
            Some([other]) => return Err(damaged(&format!("has unknown format {other}"))),
            Some(_) | None => return Err(damaged("has no format")),
        }
        let node = get("node")?.and_then(|node| <[u8; 16]>::try_from(&*node).ok());
        let node = NodeId(node.ok_or_else(|| damaged("has no node id"))?);
        Ok(Self { db, spaces, node, path })
    }

    /// The node whose log this is.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Writes a batch. It can be read at once and survives this process; it survives the machine
    /// after [`Self::sync`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; the store then takes no more writes until it is opened again.
    pub fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        let has_room = |space: &Keyspace| {
            space.tree.sealed_memtable_count() <= MAX_FULL_MEMTABLES
                && space.tree.l0_run_count() <= MAX_RUNS
        };
        self.wait_until(|| self.spaces.iter().all(has_room))?;
        let mut out = fjall::OwnedWriteBatch::with_capacity(self.db.clone(), batch.writes.len());
        for (space, key, value) in batch.writes {
            match value {
                Some(value) => out.insert(self.space(space), key, value),
                None => out.remove(self.space(space), key),
            }
        }
        out.commit().map_err(|error| self.failed_write(error))?;
        self.db.persist(PersistMode::Buffer).map_err(|error| self.failed_write(error))
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; the store then takes no more writes until it is opened again.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.db.persist(PersistMode::SyncData).map_err(|error| self.failed_write(error))
    }

    /// The log as it is now.
    #[must_use]
    pub fn snapshot(&self) -> StoreSnapshot {
        StoreSnapshot { snapshot: self.db.snapshot(), store: self.clone() }
    }

    /// The bytes it takes on disk, the preallocated part of the journal included. Waits for a sync
    /// that is under way.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.db.disk_space().unwrap_or_default()
    }

    /// The bytes of its tables: what removing records gives back.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.spaces.iter().map(|space| space.disk_space()).sum()
    }

    /// The folder of a keyspace.
    #[must_use]
    pub fn folder(&self, space: Space) -> &Path {
        self.space(space).path()
    }

    /// Its tables as they are now. What is not yet in tables is in journals.
    #[must_use]
    pub fn tables(&self) -> Vec<TableFile> {
        let all = Space::ALL.iter().zip(&self.spaces).flat_map(|(space, keyspace)| {
            let version = keyspace.tree.current_version();
            let table =
                |path: &PathBuf, hash| TableFile { space: *space, path: path.clone(), hash };
            version
                .iter_tables()
                .map(|it| table(&it.path, it.checksum().into_u128()))
                .collect::<Vec<_>>()
        });
        all.collect()
    }

    /// Reads every table whole, and returns those with damage anywhere. Such a table stops the store for
    /// good once it is compacted. What is not yet in tables is not checked.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if the disk refuses.
    pub fn damaged_tables(&self) -> Result<Vec<TableFile>, StoreError> {
        let mut damaged = Vec::new();
        for table in self.tables() {
            match table.is_sound(|| true) {
                Ok(true) => {}
                Ok(false) => damaged.push(table),
                // Compacted meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(damaged)
    }

    /// Gives back the tables of `space` that hold only keys below `key`. What else is below it
    /// must be removed by batches.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`].
    pub fn drop_tables_below(&self, space: Space, key: &[u8]) -> Result<(), StoreError> {
        self.space(space)
            .tree
            .drop_range::<&[u8], _>(..key)
            .map_err(|error| read_error(&self.path, error.into()))
    }

    /// Rewrites the tables of `space`, which frees the room of removed keys.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`].
    pub fn compact(&self, space: Space) -> Result<(), StoreError> {
        let keyspace = self.space(space);
        self.flush(keyspace)?;
        keyspace.major_compact().map_err(|error| self.failed_write(error))
    }

    /// Makes a table of what a keyspace has in memory.
    fn flush(&self, keyspace: &Keyspace) -> Result<(), StoreError> {
        keyspace.rotate_memtable().map_err(|error| self.failed_write(error))?;
        self.wait_until(|| keyspace.tree.sealed_memtable_count() == 0)
    }

    /// Waits, with a bound, until fjall's thread `is_done`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if the thread gave up, or the time is over.
    fn wait_until(&self, is_done: impl Fn() -> bool) -> Result<(), StoreError> {
        let deadline = Instant::now() + STALL_LIMIT;
        while !is_done() {
            // Fails once the thread has given up.
            self.db.persist(PersistMode::Buffer).map_err(|error| self.failed_write(error))?;
            if Instant::now() > deadline {
                let why = format!("its tables were not written within {STALL_LIMIT:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why).into());
            }
            thread::sleep(STALL_POLL);
        }
        Ok(())
    }

    fn failed_write(&self, error: fjall::Error) -> StoreError {
        write_error(&self.path, error)
    }

    fn space(&self, space: Space) -> &Keyspace {
        let [heads, bodies, index, segments, stats, state] = &self.spaces;
        match space {
            Space::Heads => heads,
            Space::Bodies => bodies,
            Space::Index => index,
            Space::Segments => segments,
            Space::Stats => stats,
            Space::State => state,
        }
    }
}

/// The log as it was at one moment.
pub struct StoreSnapshot {
    snapshot: fjall::Snapshot,
    store: Store,
}

impl StoreSnapshot {
    /// The node whose log this is.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.store.node
    }

    /// The value of a key.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it cannot be read.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.snapshot
            .get(self.store.space(space), key)
            .map(|value| value.map(Bytes::from))
            .map_err(|error| read_error(&self.store.path, error))
    }

    /// The keys from `from` up to but not including `below`, with their values.
    #[must_use]
    pub fn range(&self, space: Space, from: &[u8], below: &[u8]) -> Rows {
        let rows = if from < below {
            Some(self.snapshot.range(self.store.space(space), from..below))
        } else {
            None
        };
        Rows { rows, path: self.store.path.clone() }
    }

    /// The error for a value that does not decode.
    #[must_use]
    pub fn damaged(&self, space: Space, key: &[u8], error: DecodeError) -> StoreError {
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = self.store.space(space).path().to_path_buf();
        StoreError::Damaged { file, why: format!("{} {key} {error}", space.name()) }
    }
}

/// Keys and values in order, from both ends.
pub struct Rows {
    rows: Option<fjall::Iter>,
    path: PathBuf,
}

impl Rows {
    fn read(&self, row: fjall::Guard) -> Result<(Bytes, Bytes), StoreError> {
        row.into_inner()
            .map(|(key, value)| (key.into(), value.into()))
            .map_err(|error| read_error(&self.path, error))
    }
}

impl Iterator for Rows {
    type Item = Result<(Bytes, Bytes), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.rows.as_mut()?.next()?;
        Some(self.read(row))
    }
}

impl DoubleEndedIterator for Rows {
    fn next_back(&mut self) -> Option<Self::Item> {
        let row = self.rows.as_mut()?.next_back()?;
        Some(self.read(row))
    }
}
