//! Checks of a database before fjall opens it, and the log's own list of its tables (ACT-9).
//!
//! fjall's recovery deletes files that its manifests do not name, and some damage makes it panic while holding a lock,
//! which aborts the process when the half-opened database is dropped. fjall is therefore only given manifests and
//! tables that it can open: each manifest is the one written last, each table it names exists with an intact structure,
//! and the folders contain nothing else. Damaged data blocks are detected, at bounded cost, when they are read.
//!
//! The list of tables is the file `tables` next to the store:
//!
//! ```text
//! <keyspace> <version> <table>:<checksum> <table>:<checksum> …
//! …
//! <hash of the lines above>
//! ```
//!
//! fjall writes a new version of a keyspace at every flush or compaction, and the list follows within [`NOTE_EVERY`]
//! while records are written. The list may lag, but is never ahead. If a keyspace's `current` names an earlier version
//! than the list, the keyspace was replaced by an old one; if it names the same version, it must have the same tables.
//! A damaged or missing list is rewritten.
//!
//! Tables that no manifest names were left by an interrupted flush or compaction, or are named by a lost version. fjall
//! would delete them. They are therefore hidden from fjall, and deleted only when the open store is known to hold their
//! contents; otherwise the log is damaged and they are kept. The contents of a table are read block by block, without
//! its index, which also works if the table's structure is damaged:
//!
//! ```text
//! block  magic · type · xxh3-128 of the data · length · unpacked length · check (33 bytes) · data
//! ```
//!
//! A block with damaged data is skipped by the length in its header; a block with a damaged header is skipped by
//! searching for the next magic number. Damage thus costs only its own block.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lsm_tree::coding::Decode;
use lsm_tree::table::block::{BlockType, Header};
use lsm_tree::table::{Block, DataBlock};
use lsm_tree::{Cache, Checksum, Slice, Table, ValueType};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use super::error::{corruption, guarded, is_damage, newest_journal};
use super::journal_files;
use super::manifest::{
    self, CURRENT, CURRENT_BYTES, Current, KEYSPACES, META, TRAILER_BYTES, VERSION, Version,
};
use crate::folder;
use crate::store::{DB, Space, StoreError};
use mcpproxy_runtime::os::private;

/// Folder of a keyspace's tables.
pub(super) const TABLES: &str = "tables";
/// Prefix that hides a table from fjall, which skips file names with this prefix as another system's files.
pub(super) const HIDDEN: &str = "._";
/// Maximum size of a manifest: about 500 000 tables.
const MANIFEST_BYTES: u64 = 16 << 20;
/// Maximum size of the database's version marker, which fjall checks.
const MARKER_BYTES: u64 = 64;
/// Maximum size of a table's table of contents, which has an entry for each of its few sections.
const CONTENTS_BYTES: usize = 64 << 10;
/// Lock file of fjall.
const LOCK: &str = "lock";
/// Cache for tables that are only inspected.
const CACHE_BYTES: u64 = 1 << 20;

/// Checks a closed database. Returns the version of each keyspace by its folder. [`StoreError::Locked`] if fjall has
/// the database open.
pub(super) fn check(
    db: &Path,
    known: &KnownTables,
) -> Result<BTreeMap<&'static str, Version>, StoreError> {
    read(&db.join(VERSION), MARKER_BYTES)?;
    let _lock = lock_database(db)?;
    let journals = journal_files::list(db);
    if journals.map_err(|error| StoreError::unreadable(db, error))?.is_empty() {
        // fjall would begin a new journal and ignore the content of tables.
        let why = format!("its journal is missing, {DB}/0.jnl or one with a higher number");
        return Err(damaged(db, &why));
    }
    let folders: Vec<_> = Space::ALL.map(Space::folder).into_iter().chain([META]).collect();
    let keyspaces = db.join(KEYSPACES);
    for entry in entries(&keyspaces)? {
        // fjall panics on a name that is not a number, and removes a folder it does not know.
        if entry.is_dir() && !folders.iter().any(|folder| entry.ends_with(folder)) {
            return Err(damaged(&entry, "it is not a keyspace of the log"));
        }
    }
    let mut versions = BTreeMap::new();
    for folder in folders {
        versions.insert(folder, keyspace(&keyspaces.join(folder), known.get(folder))?);
    }
    if let Some(meta) = versions.get(META) {
        // Without the names in this keyspace, fjall removes every other keyspace.
        for (id, hash) in &meta.tables {
            let path = keyspaces.join(META).join(TABLES).join(id.to_string());
            let found = hash_of(&path, || true);
            if found.map_err(|error| StoreError::unreadable(&path, error))? != Some(*hash) {
                return Err(damaged(&path, "it differs from what was written"));
            }
        }
    }
    Ok(versions)
}

/// Checks a keyspace against its listed version.
pub(super) fn keyspace(folder: &Path, known: Option<&Version>) -> Result<Version, StoreError> {
    let version = version(folder)?;
    let current = folder.join(CURRENT);
    if let Some(known) = known {
        if version.number < known.number {
            let (named, last) = (version.number, known.number);
            let why = format!("it names version {named} of the tables, but {last} was written");
            return Err(damaged(&current, &why));
        }
        if version.number == known.number && version.tables != known.tables {
            let why = "it names other tables than those that were written";
            return Err(damaged(&current, why));
        }
    }
    list_tables(folder)?;
    for id in version.tables.keys() {
        let path = folder.join(TABLES).join(id.to_string());
        open_table(&path, *id, Checksum::from_raw(0))?;
    }
    Ok(version)
}

/// Reads the version named by a keyspace's manifest.
fn version(folder: &Path) -> Result<Version, StoreError> {
    let path = folder.join(CURRENT);
    let bytes = read(&path, CURRENT_BYTES as u64)?;
    let current = Current::decode(&bytes);
    let current = current.ok_or_else(|| damaged(&path, "it differs from what was written"))?;
    let path = folder.join(format!("v{}", current.version));
    let manifest = read(&path, MANIFEST_BYTES)?;
    current.version(&manifest).ok_or_else(|| {
        damaged(
            &path,
            "its checksum differs from the one in 'current' beside it: one of the two is damaged",
        )
    })
}

/// A table file in a keyspace's folder.
#[derive(Clone, Debug)]
pub(super) struct TableName {
    pub(super) id: u64,
    pub(super) path: PathBuf,
    /// Whether the table is hidden from fjall.
    pub(super) is_hidden: bool,
}

/// Lists the tables in a keyspace's folder, named or not, ordered by number. Fails if the folder holds
/// anything else, which fjall does not open.
pub(super) fn list_tables(folder: &Path) -> Result<Vec<TableName>, StoreError> {
    let folder = folder.join(TABLES);
    if !exists(&folder)? {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for path in entries(&folder)? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let id = name.strip_prefix(HIDDEN).unwrap_or(name).parse();
        let is_hidden = name.starts_with(HIDDEN);
        match id {
            Ok(id) if !path.is_dir() => found.push(TableName { id, path, is_hidden }),
            Err(_) if is_hidden => {}
            Ok(_) | Err(_) => return Err(damaged(&path, "it is not a table of the log")),
        }
    }
    found.sort_by_key(|table| table.id);
    Ok(found)
}

/// Opens a table as fjall does, reading everything except its data blocks.
pub(super) fn open_table(path: &Path, id: u64, checksum: Checksum) -> Result<Table, StoreError> {
    check_contents(path)?;
    let cache = Arc::new(Cache::with_capacity_bytes(CACHE_BYTES));
    let open = || {
        Table::recover(path.to_owned(), checksum, 0, 0, cache, None, true, true)
            .map_err(|error| damaged(path, &corruption(&error)))
    };
    let table = guarded(path, open)?;
    if table.id() == id { Ok(table) } else { Err(damaged(path, "it is another table")) }
}

/// Checks the table of contents of a table file, because fjall allocates the claimed number of entries before it
/// compares the checksum.
fn check_contents(path: &Path) -> Result<(), StoreError> {
    let read = || {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut trailer = [0; TRAILER_BYTES];
        file.read_exact_at(&mut trailer, length.saturating_sub(TRAILER_BYTES as u64))?;
        let Some((at, size, checksum)) = manifest::contents(&trailer, length) else {
            return Ok(false);
        };
        if size > CONTENTS_BYTES {
            return Ok(false);
        }
        let mut contents = vec![0; size];
        file.read_exact_at(&mut contents, at)?;
        Ok(manifest::are_contents(&contents, checksum))
    };
    match read() {
        Ok(true) => Ok(()),
        Ok(false) => Err(damaged(path, "its end differs from what was written")),
        Err(error) => Err(StoreError::unreadable(path, error)),
    }
}

/// Tables on disk that the version does not name and that are not known to be superseded: leftovers of an
/// interrupted flush or compaction, or tables of a lost version.
pub(super) fn unnamed(
    folder: &Path,
    version: &Version,
    known: Option<&Version>,
) -> Result<Vec<TableName>, StoreError> {
    // A later, intact version has dropped the tables that only an earlier version names.
    let superseded: HashSet<u64> = match known {
        Some(known) if version.number > known.number => known.tables.keys().copied().collect(),
        Some(_) | None => HashSet::new(),
    };
    let is_unnamed = |table: &TableName| {
        table.is_hidden
            || !(version.tables.contains_key(&table.id) || superseded.contains(&table.id))
    };
    Ok(list_tables(folder)?.into_iter().filter(is_unnamed).collect())
}

/// Locks the database against fjall, and detects whether fjall has it open. A missing lock file is created: it is empty
/// and not part of the log.
fn lock_database(db: &Path) -> Result<File, StoreError> {
    let path = db.join(LOCK);
    let file = private::options().read(true).write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(|error| StoreError::unreadable(&path, error))?;
    folder::lock_exclusively(&file).map_err(|error| match error {
        StoreError::Io(error) => StoreError::unreadable(path, error),
        error => error,
    })?;
    Ok(file)
}

fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, StoreError> {
    let read = || match fs::metadata(path)?.len() {
        0 => Ok(Err("it is empty")),
        length if length > max_bytes => Ok(Err("it is longer than any that is written")),
        _ => fs::read(path).map(Ok),
    };
    let bytes = read().map_err(|error| StoreError::unreadable(path, error))?;
    bytes.map_err(|why| damaged(path, why))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let list = || fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>();
    list().map_err(|error| StoreError::unreadable(folder, error))
}

fn exists(path: &Path) -> Result<bool, StoreError> {
    path.try_exists().map_err(|error| StoreError::unreadable(path, error))
}

fn damaged(file: &Path, why: &str) -> StoreError {
    StoreError::Damaged { file: file.to_owned(), why: why.to_owned() }
}

/// Bytes of a table read per step.
const READ_BYTES: usize = 1 << 20;

/// A table of the database, as an immutable file.
#[derive(Clone, Debug)]
pub(crate) struct TableFile {
    pub(super) space: Space,
    pub path: PathBuf,
    /// Checksum, as stored by the database.
    pub(super) hash: u128,
}

impl TableFile {
    /// Whether the table's contents can be rebuilt from the records.
    pub(crate) fn is_derived(&self) -> bool {
        Space::DERIVED.contains(&self.space)
    }

    /// Reads the table and compares its checksum; unreadable parts count as damage. `keep_going` is called
    /// after each megabyte and can stop the check, which then returns false. A table is removed once it is
    /// compacted.
    pub(crate) fn is_sound(&self, keep_going: impl Fn() -> bool) -> io::Result<bool> {
        match hash_of(&self.path, keep_going) {
            Ok(hash) => Ok(hash == Some(self.hash)),
            Err(error) if is_damage(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Checksum of a file as the database computes it for tables; `None` once `keep_going` returns false.
pub(super) fn hash_of(path: &Path, keep_going: impl Fn() -> bool) -> io::Result<Option<u128>> {
    let mut file = fs::File::open(path)?;
    let mut hasher = Xxh3Default::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Some(hasher.digest128())),
            read => hasher.update(buffer.get(..read).unwrap_or_default()),
        }
        if !keep_going() {
            return Ok(None);
        }
    }
}

/// Name of the list in the log's folder.
pub(super) const LIST_FILE: &str = "tables";
/// Interval at which the list is compared with the store while records are written.
pub(super) const NOTE_EVERY: Duration = Duration::from_secs(1);
/// Maximum size of the list: more than 100 000 tables.
const MAX_LIST_BYTES: u64 = 8 << 20;

/// List of tables: the last known version of each keyspace, by folder name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownTables(BTreeMap<String, Version>);

impl KnownTables {
    /// Reads the list of the log in `dir`. A damaged list is reported and ignored; it is rewritten once the
    /// log is open.
    pub(super) fn read(dir: &Path) -> io::Result<Self> {
        let known = Self::read_whole(dir)?;
        if known.is_none() {
            let file = dir.join(LIST_FILE);
            tracing::warn!(file = %file.display(), "the list of the activity log's tables is damaged; rewriting it");
        }
        Ok(known.unwrap_or_default())
    }

    /// Reads the list; an empty list if the file is missing, `None` if it is damaged.
    fn read_whole(dir: &Path) -> io::Result<Option<Self>> {
        let path = dir.join(LIST_FILE);
        let read = match fs::metadata(&path) {
            Ok(found) if found.len() > MAX_LIST_BYTES => Ok(None),
            Ok(_) => folder::read_hashed(&path),
            Err(error) => Err(error),
        };
        match read {
            Ok(text) => Ok(text.as_deref().and_then(Self::decode)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(Self::default())),
            Err(error) if is_damage(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the list of the log in `dir`, durably.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        folder::write_hashed(dir, LIST_FILE, &self.encode())
    }

    /// Last known version of the keyspace in `folder`.
    pub(super) fn get(&self, folder: &str) -> Option<&Version> {
        self.0.get(folder)
    }

    /// Adds or replaces a keyspace.
    pub(super) fn set(&mut self, folder: &str, version: Version) {
        self.0.insert(folder.to_owned(), version);
    }

    /// Removes keyspaces that are about to be replaced by empty ones.
    pub(super) fn forget(&mut self, folders: &[&str]) {
        self.0.retain(|folder, _| !folders.contains(&&**folder));
    }

    fn encode(&self) -> String {
        let line = |(folder, version): (&String, &Version)| {
            let tables = version.tables.iter().map(|(id, hash)| format!(" {id}:{hash:032x}"));
            format!("{folder} {}{}\n", version.number, tables.collect::<String>())
        };
        self.0.iter().map(line).collect()
    }

    fn decode(text: &str) -> Option<Self> {
        let mut known = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split(' ');
            let (folder, number) = (words.next()?, words.next()?.parse().ok()?);
            let mut tables = BTreeMap::new();
            for word in words {
                let (id, hash) = word.split_once(':')?;
                tables.insert(id.parse().ok()?, u128::from_str_radix(hash, 16).ok()?);
            }
            known.insert(folder.to_owned(), Version { number, tables });
        }
        Some(Self(known))
    }
}

/// Whether the list of the log in `dir` is intact or missing.
pub(crate) fn is_table_list_intact(dir: &Path) -> io::Result<bool> {
    Ok(KnownTables::read_whole(dir)?.is_some())
}

/// Unnamed tables of a database.
#[derive(Debug)]
pub(super) struct UnnamedTables(Vec<(Space, TableName)>);

impl UnnamedTables {
    /// Hides the tables from fjall. After an error some of them are hidden; the next attempt finds the rest.
    pub(super) fn hide(
        db: &Path,
        versions: &BTreeMap<&'static str, Version>,
        known: &KnownTables,
    ) -> Result<Self, StoreError> {
        let mut found = Vec::new();
        for space in Space::ALL {
            let folder = db.join(KEYSPACES).join(space.folder());
            let Some(version) = versions.get(space.folder()) else { continue };
            for mut table in unnamed(&folder, version, known.get(space.folder()))? {
                if !table.is_hidden {
                    let hidden = folder.join(TABLES).join(format!("{HIDDEN}{}", table.id));
                    fs::rename(&table.path, &hidden)?;
                    (table.path, table.is_hidden) = (hidden, true);
                }
                found.push((space, table));
            }
        }
        Ok(Self(found))
    }

    /// Deletes the tables if `is_accounted_for` holds for every key in them. Otherwise nothing is deleted, and the
    /// error names a table whose records would be lost and the journal that may have lost them.
    pub(super) fn delete_redundant(
        self,
        db: &Path,
        is_accounted_for: impl Fn(Space, &[u8]) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        for (space, table) in &self.0 {
            read_writes(&table.path, |write| match write.value {
                Some(_) if !is_accounted_for(*space, &write.key)? => Err(lost(&table.path, db)),
                Some(_) | None => Ok(()),
            })?;
        }
        for (_, table) in &self.0 {
            tracing::info!(table = %table.path.display(), "deleting a table of the activity log left unfinished by a crash");
            fs::remove_file(&table.path)?;
        }
        Ok(())
    }
}

/// Error for a table with data that is nowhere else in the store. The data of an unfinished table is in the journal as
/// well, so either the manifest or the journal is damaged.
fn lost(table: &Path, db: &Path) -> StoreError {
    let journal = newest_journal(db);
    let journal = journal.strip_prefix(db.parent().unwrap_or(db)).unwrap_or(&journal).display();
    let why = format!(
        "the table holds data that is nowhere else in the store, and no manifest lists it: \
         the manifest is outdated, or {journal} has lost batches"
    );
    StoreError::Damaged { file: PathBuf::from(table), why }
}

/// First bytes of a block.
const MAGIC: &[u8] = b"LSM\x03";
/// Maximum size of a block. A block is closed at a few kilobytes, but a value is never split.
const BLOCK_BYTES: u32 = 64 << 20;
/// Bytes searched per step for the next block.
const SEARCH_BYTES: usize = 64 << 10;
/// Minimum size of a block's data: the size of the trailer that fjall expects without checking.
const BLOCK_END_BYTES: usize = 31;
/// Step for skipping unreadable parts of a file.
const PAGE_BYTES: u64 = 4096;

/// A write stored in a table.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) key: Bytes,
    /// `None` for a removal.
    pub(super) value: Option<Bytes>,
    /// The store's sequence number.
    pub(super) seqno: u64,
}

/// Passes every write in the readable blocks of the table to `each`; unreadable parts are skipped.
pub(super) fn read_writes<E: From<io::Error>>(
    table: &Path,
    mut each: impl FnMut(Write) -> Result<(), E>,
) -> Result<(), E> {
    let file = File::open(table)?;
    let length = file.metadata()?.len();
    let mut at = 0;
    while at < length {
        let (block, next) = read_block(&file, at, length)?;
        for write in block.into_iter().flat_map(writes) {
            each(write)?;
        }
        at = next;
    }
    Ok(())
}

/// Reads the block at `at`, if it is an intact data block. Also returns the possible start of the next block.
fn read_block(file: &File, at: u64, length: u64) -> io::Result<(Option<Block>, u64)> {
    let head_bytes = Header::serialized_len();
    let mut head = vec![0; head_bytes];
    let header = read_at(file, &mut head, at)?.then(|| Header::decode_from(&mut &head[..]).ok());
    let Some(header) = header.flatten().filter(|header| header.data_length <= BLOCK_BYTES) else {
        return Ok((None, search(file, at + 1, length)?));
    };
    let from = at + head_bytes as u64;
    let next = from + u64::from(header.data_length);
    let mut data = vec![0; header.data_length as usize];
    let is_whole = read_at(file, &mut data, from)?
        && xxh3_128(&data) == header.checksum.into_u128()
        && header.block_type == BlockType::Data;
    let data = if is_whole { unpack(&header, data) } else { None };
    Ok((data.map(|data| Block { header, data: Slice::from(data) }), next))
}

/// Data of a block, decompressed if it is compressed.
fn unpack(header: &Header, data: Vec<u8>) -> Option<Vec<u8>> {
    if header.uncompressed_length > BLOCK_BYTES {
        return None;
    }
    let size = header.uncompressed_length as usize;
    let data = match lz4_flex::block::decompress(&data, size) {
        Ok(unpacked) if unpacked.len() == size => unpacked,
        Ok(_) | Err(_) if data.len() == size => data,
        Ok(_) | Err(_) => return None,
    };
    (data.len() > BLOCK_END_BYTES).then_some(data)
}

/// Writes stored in a block.
fn writes(block: Block) -> Vec<Write> {
    let data = Bytes::from(block.data.to_vec());
    let read = || {
        let block = DataBlock::new(block);
        let part = |from: usize, to: usize| data.get(from..to).map(|_| data.slice(from..to));
        let write = |item: lsm_tree::table::data_block::DataBlockParsedItem| {
            let rest = part(item.key.0, item.key.1)?;
            let key = match item.prefix {
                Some(prefix) => [part(prefix.0, prefix.1)?, rest].concat().into(),
                None => rest,
            };
            let value = match item.value_type {
                ValueType::Value => Some(item.value.and_then(|it| part(it.0, it.1))?),
                ValueType::Tombstone | ValueType::WeakTombstone => None,
                ValueType::Indirection => return None,
            };
            Some(Write { key, value, seqno: item.seqno })
        };
        block.iter().filter_map(write).collect()
    };
    // The checksum matches, but anyone could have written the block, so fjall's decoder may panic.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_or_default()
}

/// Finds the next possible start of a block at or after `at`, or the end.
fn search(file: &File, mut at: u64, length: u64) -> io::Result<u64> {
    let mut buffer = vec![0; SEARCH_BYTES];
    while at < length {
        let size = usize::try_from(length - at).unwrap_or(SEARCH_BYTES).min(SEARCH_BYTES);
        let part = buffer.get_mut(..size).unwrap_or_default();
        if !read_at(file, part, at)? {
            at += PAGE_BYTES - at % PAGE_BYTES;
            continue;
        }
        if let Some(found) = memchr::memmem::find(part, MAGIC) {
            return Ok(at + found as u64);
        }
        // A magic number may extend across the end of this part.
        at += (size + 1).saturating_sub(MAGIC.len()).max(1) as u64;
    }
    Ok(length)
}

/// Reads at a position. Returns false if that part is unreadable or beyond the end of the file.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<bool> {
    match file.read_exact_at(buffer, at) {
        Ok(()) => Ok(true),
        Err(error) if is_damage(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_list_round_trips_and_is_ignored_if_a_bit_is_flipped() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(KnownTables::read(dir).unwrap(), KnownTables::default());
        let mut known = KnownTables::default();
        known.set("1", Version { number: 9, tables: [(4, u128::MAX), (11, 1)].into() });
        known.set("6", Version { number: 1, tables: BTreeMap::new() });
        known.write(dir).unwrap();
        assert_eq!(KnownTables::read(dir).unwrap(), known);
        let whole = fs::read(dir.join(LIST_FILE)).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(dir.join(LIST_FILE), bytes).unwrap();
            assert_eq!(KnownTables::read(dir).unwrap(), KnownTables::default(), "bit {bit}");
        }
    }

    #[test]
    fn replaced_keyspace_is_removed_from_the_list() {
        let mut known = KnownTables::default();
        ["1", "3"].into_iter().for_each(|folder| known.set(folder, Version::default()));
        known.forget(&["3", "4"]);
        assert!(known.get("1").is_some() && known.get("3").is_none());
    }
}
