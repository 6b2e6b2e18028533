//! Store of the log: one fjall database with several keyspaces, atomic batches, and snapshots.
//!
//! ```text
//! <dir>/db      database: heads, bodies, index, segments, stats, state
//! <dir>/tables  list of the database's tables as last seen (`precheck`)
//! <dir>/head    chain tip (`chain_tip`)
//! <dir>/node    node id of the log (`folder`)
//! <dir>/lost    count of unrecorded calls (`losses`)
//! ```
//!
//! Opening is checked (ACT-9): `precheck` inspects the files before fjall does and keeps files that it would
//! delete, and a panic in fjall is reported as damage (`error`).
//!
//! Keys and values are bytes here; `codec`, `segment`, `chain` and `view` interpret them. In this crate only
//! this file and its folder use fjall.

mod damaged_table;
mod error;
pub(super) mod journal_files;
pub mod journal_format;
mod manifest;
mod precheck;
mod rebuild;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use bytes::Bytes;
use fjall::{AbstractTree, Database, Keyspace, PersistMode, Readable};
use parking_lot::Mutex;

use self::damaged_table::{DamagedTables, KeyRead};
use self::error::{guarded, read_error, write_error};
use self::manifest::{DatabaseSize, META, Version, keyspaces, open_db};
use self::precheck::{KnownTables, NOTE_EVERY, UnnamedTables};
use super::bytes::DecodeError;
use super::record::NodeId;
use super::{folder, keys, segment};
use mcpproxy_runtime::os::private;

pub use self::error::{DamageReport, StoreError};
pub(super) use self::error::{is_damage, newest_journal};
pub(crate) use self::manifest::DB;
pub(crate) use self::precheck::TableFile;
pub(super) use self::precheck::is_table_list_intact;
pub(super) use self::rebuild::rebuild_keyspaces;
pub use self::rebuild::{Fresh, Part};
pub use super::keys::Space;

/// Folder in which a database is created.
const DB_NEW: &str = "db.new";
/// Format of keys and values, stored in the state keyspace.
const FORMAT: u8 = 1;

/// Maximum number of full memtables in a keyspace before a write waits for a table. fjall itself waits at 4, but
/// without a bound, and forever if its thread has given up.
const MAX_FULL_MEMTABLES: usize = 2;
/// Maximum number of runs in a keyspace's first level before a write waits for compaction. fjall itself slows writes
/// down at 20 runs and waits at 30, without a bound.
const MAX_RUNS: usize = 24;
/// Maximum total time that a write or a compaction waits for fjall's thread.
const STALL_LIMIT: Duration = Duration::from_secs(10);
/// Maximum time for flushing everything in memory to tables, at a clean stop and before a repair.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// Interval at which the thread's progress is checked.
const STALL_POLL: Duration = Duration::from_millis(5);

/// Open log. Clones share it.
#[derive(Clone)]
pub struct Store {
    db: Database,
    spaces: [Keyspace; Space::ALL.len()],
    node: NodeId,
    path: PathBuf,
    notes: Arc<Mutex<Notes>>,
    damaged: DamagedTables,
}

/// State of the list of tables.
struct Notes {
    known: KnownTables,
    /// Time of the last comparison with the store; `None` while the store is being created.
    compared: Option<Instant>,
    /// Set after a failed write of the list was reported.
    has_failed: bool,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.path).field("node", &self.node).finish()
    }
}

impl Store {
    /// Opens or creates the log in `dir`.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(DB);
        if !path.try_exists()? {
            let mut node = [0; 16];
            getrandom::fill(&mut node).map_err(|error| io::Error::other(error.to_string()))?;
            Self::create(dir, folder::read_node(dir)?.unwrap_or(NodeId(node)), DatabaseSize::LOG)?;
        }
        Self::open_existing(path, DatabaseSize::LOG)
    }

    /// Creates a log in `dir`, which must not contain one, for a node that had a log before.
    pub fn open_as(dir: &Path, node: NodeId) -> Result<Self, StoreError> {
        Self::create(dir, node, DatabaseSize::LOG)?;
        Self::open_existing(dir.join(DB), DatabaseSize::LOG)
    }

    /// Opens or creates the replica of the log of `node` in `dir`, with smaller buffers than a log. Also returns
    /// [`StoreError::Damaged`] for a replica of another log.
    pub(crate) fn open_replica(dir: &Path, node: NodeId) -> Result<Self, StoreError> {
        let path = dir.join(DB);
        if !path.try_exists()? {
            Self::create(dir, node, DatabaseSize::REPLICA)?;
        }
        let store = Self::open_existing(path.clone(), DatabaseSize::REPLICA)?;
        if store.node != node {
            let why = format!("it belongs to log {}, not {node}", store.node);
            return Err(StoreError::Damaged { file: path, why });
        }
        Ok(store)
    }

    /// Creates an empty log under another name and renames it when complete, so that a crash leaves either
    /// nothing or a log.
    fn create(dir: &Path, node: NodeId, size: DatabaseSize) -> Result<(), StoreError> {
        let path = dir.join(DB_NEW);
        private::folder(dir)?;
        if path.try_exists()? {
            fs::remove_dir_all(&path)?;
        }
        // The list belongs to a database that no longer exists.
        match fs::remove_file(dir.join(precheck::LIST_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        {
            let db = open_db(&path, size)?;
            let spaces = keyspaces(&db, &path, size)?;
            let notes = Notes { known: KnownTables::default(), compared: None, has_failed: false };
            let notes = Arc::new(Mutex::new(notes));
            let damaged = DamagedTables::default();
            let store = Self { db, spaces, node, path: path.clone(), notes, damaged };
            let mut batch = Batch::default();
            batch.put(Space::State, "format", vec![FORMAT]);
            batch.put(Space::State, "node", node.0.to_vec());
            store.commit(batch)?;
            store.sync()?;
            // While the state is in a table, it is readable even if the journals are damaged.
            store.flush(store.space(Space::State))?;
        }
        fs::rename(&path, dir.join(DB))?;
        Ok(fs::File::open(dir)?.sync_all()?)
    }

    fn open_existing(path: PathBuf, size: DatabaseSize) -> Result<Self, StoreError> {
        let dir = path.parent().unwrap_or(&path);
        let known = KnownTables::read(dir);
        let mut known =
            known.map_err(|error| StoreError::unreadable(dir.join(precheck::LIST_FILE), error))?;
        let versions = precheck::check(&path, &known)?;
        let unnamed = UnnamedTables::hide(&path, &versions, &known)?;
        let db = open_db(&path, size)?;
        let is_first = known == KnownTables::default();
        if let Some(meta) = versions.get(META) {
            known.set(META, meta.clone());
        }
        let notes = Notes { known, compared: None, has_failed: false };
        let store = Self::with_keyspaces(db, path, size, notes)?;
        let first = store.first()?;
        unnamed
            .delete_redundant(&store.path, |space, key| store.accounts_for(space, key, first))?;
        store.start_listing(is_first);
        Ok(store)
    }

    fn with_keyspaces(
        db: Database,
        path: PathBuf,
        size: DatabaseSize,
        notes: Notes,
    ) -> Result<Self, StoreError> {
        let spaces = keyspaces(&db, &path, size)?;
        let [.., state] = &spaces;
        let tables = DamagedTables::default();
        let get = |key: &str| KeyRead::of(state, key.as_bytes()).run(&tables, || state.get(key));
        let damaged = |why: &str| StoreError::Damaged { file: path.clone(), why: why.into() };
        match get("format")?.as_deref() {
            Some([FORMAT]) => {}
            Some([other]) => return Err(damaged(&format!("has unknown format {other}"))),
            Some(_) | None => return Err(damaged("has no format")),
        }
        let node = get("node")?.and_then(|node| <[u8; 16]>::try_from(&*node).ok());
        let node = NodeId(node.ok_or_else(|| damaged("has no node id"))?);
        let notes = Arc::new(Mutex::new(notes));
        Ok(Self { db, spaces, node, path, notes, damaged: tables })
    }

    /// Number of the first retained record, according to the state.
    fn first(&self) -> Result<u64, StoreError> {
        let value = self.snapshot()?.get(Space::State, keys::FIRST)?;
        Ok(value.and_then(|bytes| bytes.first_chunk().copied()).map_or(1, u64::from_be_bytes))
    }

    /// Whether the store holds the key or may legitimately have removed it. Data of records before the retained
    /// `first`, and any part of the state, may have been removed.
    fn accounts_for(&self, space: Space, key: &[u8], first: u64) -> Result<bool, StoreError> {
        let number = key.last_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        let may_be_removed = match (space, number) {
            (Space::State, _) | (_, None) => true,
            (Space::Heads | Space::Bodies, Some(seq)) => seq < first,
            // The segment of the first record was cleared if part of it was removed.
            (Space::Index | Space::Segments | Space::Stats, Some(number)) => {
                number <= segment::of(first)
            }
        };
        Ok(may_be_removed || self.snapshot()?.get(space, key)?.is_some())
    }

    /// Starts to maintain the list of tables.
    fn start_listing(&self, is_first: bool) {
        self.notes.lock().compared = Some(Instant::now());
        self.compare_tables(is_first);
    }

    /// Updates the list of tables, unless another thread is doing so. Failures are logged; an outdated list
    /// is still usable.
    pub fn note_tables(&self) {
        self.compare_tables(false);
    }

    fn compare_tables(&self, is_changed: bool) {
        let Some(mut notes) = self.notes.try_lock() else { return };
        let Notes { known, compared: Some(compared), has_failed } = &mut *notes else { return };
        *compared = Instant::now();
        let dir = self.path.parent().unwrap_or(&self.path);
        let updated = self.update_known(known).and_then(|is_updated| {
            match is_updated || is_changed || *has_failed {
                true => Ok(known.write(dir)?),
                false => Ok(()),
            }
        });
        match updated {
            Ok(()) => *has_failed = false,
            Err(error) => {
                if !std::mem::replace(has_failed, true) {
                    tracing::warn!(%error, log = %dir.display(), "cannot write the list of the activity log's tables");
                }
            }
        }
    }

    /// Updates the list of tables. Returns whether it changed.
    fn update_known(&self, known: &mut KnownTables) -> Result<bool, StoreError> {
        let mut is_changed = false;
        for (space, keyspace) in Space::ALL.iter().zip(&self.spaces) {
            guarded(keyspace.path(), || {
                let version = keyspace.tree.current_version();
                if known.get(space.folder()).is_some_and(|known| known.number == version.id()) {
                    return Ok(());
                }
                let tables = version.iter_tables();
                let tables = tables.map(|table| (table.id(), table.checksum().into_u128()));
                let tables = tables.collect();
                known.set(space.folder(), Version { number: version.id(), tables });
                is_changed = true;
                Ok(())
            })?;
        }
        Ok(is_changed)
    }

    /// Node id of the log.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Writes a batch. It is readable immediately and survives a crash of the process; it survives a crash of the
    /// machine after [`Self::sync`]. After an error the store rejects writes until it is reopened.
    pub fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        let is_keeping_up = |space: &Keyspace| {
            space.tree.sealed_memtable_count() <= MAX_FULL_MEMTABLES
                && space.tree.l0_run_count() <= MAX_RUNS
        };
        self.wait_until(|| self.spaces.iter().all(is_keeping_up))?;
        self.write(|| {
            let writes = batch.writes;
            let mut out = fjall::OwnedWriteBatch::with_capacity(self.db.clone(), writes.len());
            for (space, key, value) in writes {
                match value {
                    Some(value) => out.insert(self.space(space), key, value),
                    None => out.remove(self.space(space), key),
                }
            }
            out.commit()?;
            self.db.persist(PersistMode::Buffer)
        })
    }

    /// Runs a write by fjall. Errors are mapped, and a panic is reported as damage of the database.
    fn write<T>(&self, call: impl FnOnce() -> fjall::Result<T>) -> Result<T, StoreError> {
        guarded(&self.path, || call().map_err(|error| write_error(&self.path, error)))
    }

    /// Makes all written batches durable. After an error the store rejects writes until it is reopened.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.write(|| self.db.persist(PersistMode::SyncData))?;
        let is_due = |notes: &Notes| notes.compared.is_some_and(|at| at.elapsed() > NOTE_EVERY);
        if self.notes.try_lock().is_some_and(|notes| is_due(&notes)) {
            self.note_tables();
        }
        Ok(())
    }

    pub fn snapshot(&self) -> Result<StoreSnapshot, StoreError> {
        let snapshot = guarded(&self.path, || Ok(self.db.snapshot()))?;
        Ok(StoreSnapshot { snapshot, store: self.clone(), report: None })
    }

    /// Size on disk in bytes, including the preallocated part of the journal. Waits for a running sync.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.db.disk_space().unwrap_or_default()
    }

    /// Size of the tables in bytes, which removing records reduces.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.spaces.iter().map(|space| space.disk_space()).sum()
    }

    /// Folder of the database.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Folder of a keyspace.
    pub fn folder(&self, space: Space) -> &Path {
        self.space(space).path()
    }

    /// The current tables. Newer data is only in journals.
    pub(crate) fn tables(&self) -> Result<Vec<TableFile>, StoreError> {
        let mut all = Vec::new();
        for (space, keyspace) in Space::ALL.iter().zip(&self.spaces) {
            let version = guarded(keyspace.path(), || Ok(keyspace.tree.current_version()))?;
            all.extend(version.iter_tables().map(|table| TableFile {
                space: *space,
                path: PathBuf::clone(&table.path),
                hash: table.checksum().into_u128(),
            }));
        }
        Ok(all)
    }

    /// Reads every table completely and returns the damaged ones. Compacting a damaged table would stop the store
    /// permanently. Data that is not in tables yet is not checked.
    pub(crate) fn damaged_tables(&self) -> Result<Vec<TableFile>, StoreError> {
        let mut damaged = Vec::new();
        for table in self.tables()? {
            match table.is_sound(|| true) {
                Ok(true) => {}
                Ok(false) => damaged.push(table),
                // The table was compacted in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(damaged)
    }

    /// Deletes the tables of `space` that hold only keys below `key`. Other keys below it must be removed by
    /// batches.
    pub(crate) fn drop_tables_below(&self, space: Space, key: &[u8]) -> Result<(), StoreError> {
        let keyspace = self.space(space);
        guarded(keyspace.path(), || {
            let dropped = keyspace.tree.drop_range::<&[u8], _>(..key);
            dropped.map_err(|error| read_error(&self.path, error.into()))
        })
    }

    /// Rewrites the tables of `space` to free the space of removed keys.
    pub fn compact(&self, space: Space) -> Result<(), StoreError> {
        let keyspace = self.space(space);
        self.flush(keyspace)?;
        guarded(keyspace.path(), || {
            keyspace.major_compact().map_err(|error| write_error(&self.path, error))
        })
    }

    /// Flushes everything in memory to tables, within `FLUSH_LIMIT`. Returns false if something was written in the
    /// meantime.
    pub(crate) fn flush_all(&self) -> Result<bool, StoreError> {
        for keyspace in &self.spaces {
            self.write(|| keyspace.rotate_memtable())?;
        }
        let is_done = || self.spaces.iter().all(|it| it.tree.sealed_memtable_count() == 0);
        self.wait_for(FLUSH_LIMIT, is_done)?;
        Ok(!self.has_unflushed()?)
    }

    /// Whether any data is only in memory and journals.
    pub(crate) fn has_unflushed(&self) -> Result<bool, StoreError> {
        let is_empty = |space: &Keyspace| {
            space.tree.active_memtable().is_empty() && space.tree.sealed_memtable_count() == 0
        };
        guarded(&self.path, || Ok(!self.spaces.iter().all(is_empty)))
    }

    /// Flushes the journal's buffer to the operating system.
    pub(crate) fn flush_journal(&self) -> Result<(), StoreError> {
        self.write(|| self.db.persist(PersistMode::Buffer))
    }

    /// Flushes a keyspace's memtable to a table.
    fn flush(&self, keyspace: &Keyspace) -> Result<(), StoreError> {
        self.write(|| keyspace.rotate_memtable())?;
        self.wait_until(|| keyspace.tree.sealed_memtable_count() == 0)
    }

    /// Waits until `is_done` returns true. Fails at a time limit, or if fjall's thread has given up.
    fn wait_until(&self, is_done: impl Fn() -> bool) -> Result<(), StoreError> {
        self.wait_for(STALL_LIMIT, is_done)
    }

    fn wait_for(&self, limit: Duration, is_done: impl Fn() -> bool) -> Result<(), StoreError> {
        let deadline = Instant::now() + limit;
        while !guarded(&self.path, || Ok(is_done()))? {
            // Fails once fjall's thread has given up.
            self.flush_journal()?;
            if Instant::now() > deadline {
                let why = format!("its tables were not written within {limit:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why).into());
            }
            thread::sleep(STALL_POLL);
        }
        Ok(())
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

/// Snapshot of the log.
pub struct StoreSnapshot {
    snapshot: fjall::Snapshot,
    store: Store,
    report: Option<Arc<DamageReport>>,
}

impl StoreSnapshot {
    /// Adds damage found by any read of the snapshot to `report`.
    pub fn reporting(mut self, report: &Arc<DamageReport>) -> Self {
        self.report = Some(Arc::clone(report));
        self
    }

    /// Node id of the log.
    pub(crate) fn node(&self) -> NodeId {
        self.store.node
    }

    /// Returns the value of a key.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let keyspace = self.store.space(space);
        let read = || self.snapshot.get(keyspace, key).map(|value| value.map(Bytes::from));
        let value = KeyRead::of(keyspace, key).run(&self.store.damaged, read);
        value.inspect_err(|error| take(self.report.as_deref(), error))
    }

    /// Iterates over the keys from `from` up to but not including `below`, with their values.
    pub fn range(&self, space: Space, from: &[u8], below: &[u8]) -> Rows {
        let keyspace = self.store.space(space);
        let rows =
            if from < below { Some(self.snapshot.range(keyspace, from..below)) } else { None };
        Rows {
            rows,
            from: Bytes::copy_from_slice(from),
            to: Bytes::copy_from_slice(below),
            keyspace: keyspace.clone(),
            damaged: Arc::clone(&self.store.damaged),
            report: self.report.clone(),
        }
    }

    /// Error for a value that does not decode.
    pub(crate) fn damaged(&self, space: Space, key: &[u8], error: DecodeError) -> StoreError {
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = self.store.space(space).path().to_path_buf();
        let error = StoreError::Damaged { file, why: format!("{} {key} {error}", space.name()) };
        take(self.report.as_deref(), &error);
        error
    }
}

fn take(report: Option<&DamageReport>, error: &StoreError) {
    if let Some(report) = report {
        report.take(error);
    }
}

/// Double-ended iterator over keys and values in order.
pub struct Rows {
    rows: Option<fjall::Iter>,
    /// Bounds of the keys that are not read yet: after the last key read from the front, and before the last key read
    /// from the back.
    from: Bytes,
    to: Bytes,
    keyspace: Keyspace,
    damaged: DamagedTables,
    report: Option<Arc<DamageReport>>,
}

impl Rows {
    fn read(&mut self, is_backward: bool) -> Option<Result<(Bytes, Bytes), StoreError>> {
        let rows = self.rows.as_mut()?;
        let (keyspace, from, to) = (&self.keyspace, &*self.from, &*self.to);
        let row = KeyRead { keyspace, from, to, is_backward }.run(&self.damaged, || {
            let row = if is_backward { rows.next_back() } else { rows.next() };
            let row = row.map(fjall::Guard::into_inner).transpose()?;
            Ok(row.map(|(key, value)| (Bytes::from(key), Bytes::from(value))))
        });
        if let Ok(Some((key, _))) = &row {
            *(if is_backward { &mut self.to } else { &mut self.from }) = Bytes::clone(key);
        }
        row.inspect_err(|error| take(self.report.as_deref(), error)).transpose()
    }
}

impl Iterator for Rows {
    type Item = Result<(Bytes, Bytes), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read(false)
    }
}

impl DoubleEndedIterator for Rows {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.read(true)
    }
}

/// Atomic batch of writes to several keyspaces.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(super) writes: Vec<(Space, Bytes, Option<Bytes>)>,
}

impl Batch {
    pub fn put(&mut self, space: Space, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.writes.push((space, key.into(), Some(value.into())));
    }

    pub fn remove(&mut self, space: Space, key: impl Into<Bytes>) {
        self.writes.push((space, key.into(), None));
    }

    /// Blocks of records in the batch, as pairs of heads and bodies, in order.
    pub(crate) fn blocks(&self) -> Vec<(Bytes, Bytes)> {
        let of = |space| self.writes.iter().filter(move |write| write.0 == space);
        let pairs = of(Space::Heads).zip(of(Space::Bodies));
        pairs.filter_map(|(heads, bodies)| Some((heads.2.clone()?, bodies.2.clone()?))).collect()
    }

    /// Adds another batch's writes to one keyspace.
    pub(crate) fn take_from(&mut self, other: Self, space: Space) {
        self.writes.extend(other.writes.into_iter().filter(|write| write.0 == space));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        (dir, store)
    }

    fn put(store: &Store, numbers: std::ops::Range<u64>) {
        let mut batch = Batch::default();
        numbers.for_each(|number| batch.put(Space::Bodies, keys::number(number), "body"));
        store.commit(batch).unwrap();
    }

    fn numbers(store: &Store) -> Vec<u64> {
        let rows = store.snapshot().unwrap().range(Space::Bodies, &[0; 8], &[u8::MAX; 8]);
        let keys = rows.map(|row| row.unwrap().0);
        keys.map(|key| u64::from_be_bytes(*key.first_chunk().unwrap())).collect()
    }

    // Covers ACT-9.
    #[test]
    fn panic_in_fjall_is_reported_as_damage() {
        let (_dir, store) = opened();
        let mut batch = Batch::default();
        // fjall panics because of the empty key.
        batch.put(Space::State, "", "x");
        let error = store.commit(batch).unwrap_err();
        assert!(
            matches!(&error, StoreError::Damaged { file, .. } if *file == store.path),
            "{error}"
        );
        let error = store.write::<()>(|| panic!("lock is poisoned")).unwrap_err();
        assert!(
            error.to_string().ends_with("its contents are impossible: lock is poisoned"),
            "{error}"
        );
        let error = store.wait_for(FLUSH_LIMIT, || panic!("lock is poisoned")).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        put(&store, 0..1);
        assert_eq!(numbers(&store), [0]);
    }

    // Covers ACT-11.
    #[test]
    fn damaged_table_byte_loses_one_large_value_or_512_bytes_of_small_values() {
        let (dir, store) = opened();
        let mut batch = Batch::default();
        let value = |number: u64| format!("value of {number}.{}", " ".repeat(100));
        (0..1000).for_each(|number| {
            batch.put(Space::Heads, keys::number(number), value(number));
            batch.put(Space::Bodies, keys::number(number), value(number).repeat(10));
        });
        store.commit(batch).unwrap();
        for space in [Space::Heads, Space::Bodies] {
            store.flush(store.space(space)).unwrap();
        }
        let tables = store.tables().unwrap();
        drop(store);
        for table in tables.iter().filter(|it| [Space::Heads, Space::Bodies].contains(&it.space)) {
            let mut bytes = std::fs::read(&table.path).unwrap();
            let wanted = b"value of 500.";
            let at = bytes.windows(wanted.len()).position(|part| part == wanted).unwrap();
            bytes[at] ^= 1;
            std::fs::write(&table.path, bytes).unwrap();
        }
        let store = Store::open(dir.path()).unwrap();
        let snapshot = store.snapshot().unwrap();
        let unreadable = |space| -> Vec<_> {
            let is = |number: &u64| snapshot.get(space, &keys::number(*number)).is_err();
            (0..1000).filter(is).collect()
        };
        assert_eq!(unreadable(Space::Bodies), [500]);
        let small = unreadable(Space::Heads);
        assert!(small.contains(&500) && small.len() <= 512 / 100 + 1, "{small:?}");
    }

    // Covers ACT-6.
    #[test]
    fn only_tables_that_contain_only_removed_keys_are_dropped() {
        let (_dir, store) = opened();
        for numbers in [0..1000, 1000..2000, 2000..3000] {
            put(&store, numbers);
            store.flush(store.space(Space::Bodies)).unwrap();
        }
        let tables = || {
            let all = store.tables().unwrap();
            all.iter().filter(|table| table.space == Space::Bodies).count()
        };
        assert_eq!(tables(), 3);
        store.drop_tables_below(Space::Bodies, &keys::number(1500)).unwrap();
        assert_eq!(tables(), 2);
        assert_eq!(numbers(&store), (1000..3000).collect::<Vec<_>>());
    }
}
