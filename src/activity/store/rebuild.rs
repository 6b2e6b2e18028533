//! Rebuilding of damaged keyspaces in a copy of a log, from which a salvage then reads (ACT-9). A keyspace
//! with a manifest or table that fjall cannot open gets a new manifest that names every intact table, and a
//! new table with the readable writes of the damaged ones. Keyspaces can also be replaced by empty ones, so that
//! the rest can be opened.

use std::path::{Path, PathBuf};
use std::{fs, io};

use lsm_tree::{AbstractTree, AnyTree, Checksum, SeqNo, SequenceNumberCounter, Table};

use super::error::{corruption, guarded, is_damage};
use super::journal_files;
use super::manifest::{CURRENT, DatabaseSize, KEYSPACES, META, VERSION};
use super::precheck::{self, KnownTables, TABLES, Write, hash_of};
use crate::keys;
use crate::record::NodeId;
use crate::store::{DB, Space, Store, StoreError};
use mcpproxy_runtime::os::private;

/// Folder for unnamed tables, which fjall and its compaction do not read.
const UNNAMED: &str = "unnamed";
/// Name of a database's first journal.
const FIRST_JOURNAL: &str = "0.jnl";
/// Maximum number of tables in a new manifest. A level has at most 255 runs, and each table may need its own run.
const MAX_TABLES: usize = 255;

/// Rebuilds the records and the state of the copy in `dir` as far as their tables allow. Uses and removes the copy's
/// list of tables.
pub(crate) fn rebuild_keyspaces(dir: &Path) -> Result<(), StoreError> {
    let known = KnownTables::read(dir)?;
    let db = dir.join(DB);
    if journal_files::list(&db)?.is_empty() {
        // Without a journal fjall would count writes from 0 and ignore everything in tables.
        private::create(&db.join(FIRST_JOURNAL))?;
    }
    for space in [Space::Heads, Space::Bodies, Space::State] {
        let folder = db.join(KEYSPACES).join(space.folder());
        match precheck::keyspace(&folder, known.get(space.folder())) {
            // Leftover tables would bring back removed state.
            Ok(_) if space == Space::State => {}
            Ok(version) => match precheck::unnamed(&folder, &version, known.get(space.folder())) {
                Ok(unnamed) if unnamed.is_empty() => {}
                Ok(_) | Err(_) => rebuild_manifest(&folder, space)?,
            },
            Err(StoreError::Damaged { file, why }) => {
                tracing::info!(file = %file.display(), why, "rebuilding a manifest of the activity log");
                rebuild_manifest(&folder, space)?;
            }
            Err(error) => return Err(error),
        }
    }
    match fs::remove_file(dir.join(precheck::LIST_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a manifest for the tables in a keyspace's folder.
fn rebuild_manifest(folder: &Path, space: Space) -> Result<(), StoreError> {
    let unnamed = folder.join(UNNAMED);
    private::folder(&folder.join(TABLES))?;
    private::folder(&unnamed)?;
    let (mut whole, mut broken) = (Vec::new(), Vec::new());
    for path in files(&folder.join(TABLES))? {
        match intact_table(&path) {
            Some(found) if whole.len() < MAX_TABLES => whole.push((found, path)),
            Some(_) | None => broken.push(path),
        }
    }
    remove_manifests(folder)?;
    // New tables get new numbers, which must not collide with the existing ones.
    let broken = broken.into_iter().map(|path| {
        let target = unnamed.join(path.file_name().unwrap_or_default());
        fs::rename(path, &target).map(|()| target)
    });
    let broken = broken.collect::<io::Result<Vec<_>>>()?;
    let mut named = Vec::new();
    for ((id, hash, seqno), path) in whole {
        let target = folder.join(TABLES).join(id.to_string());
        if path != target {
            fs::rename(path, &target)?;
        }
        named.push((seqno, precheck::open_table(&target, id, Checksum::from_raw(hash))?));
    }
    named.sort_by_key(|(seqno, table)| (*seqno, table.id()));
    let tree = open(folder)?;
    for (_, table) in &named {
        // Each table is placed ahead of the tables that it overlaps, so that the newest value is found first.
        let table = std::slice::from_ref(table);
        guard(folder, || tree.register_tables(table, None, None, &[], 0))?;
    }
    drop((tree, named));
    if !broken.is_empty() {
        // The reopened tree continues after the highest table number.
        add_readable(folder, space, &broken)?;
    }
    Ok(fs::remove_dir_all(unnamed)?)
}

/// Number, checksum and last write of a table with an intact structure.
fn intact_table(path: &Path) -> Option<(u64, u128, SeqNo)> {
    let name = path.file_name()?.to_str()?;
    let id = name.strip_prefix(precheck::HIDDEN).unwrap_or(name).parse().ok()?;
    let table: Table = precheck::open_table(path, id, Checksum::from_raw(0)).ok()?;
    let hash = match hash_of(path, || true) {
        Ok(hash) => hash?,
        // A lost block is detected when the block is read.
        Err(error) if is_damage(&error) => 0,
        Err(_) => return None,
    };
    Some((id, hash, table.get_highest_seqno()))
}

/// Writes the entries that only the broken tables hold to a new table, as far as they are readable.
fn add_readable(folder: &Path, space: Space, broken: &[PathBuf]) -> Result<(), StoreError> {
    let tree = open(folder)?;
    for table in broken {
        precheck::read_writes(table, |Write { key, value, seqno }| {
            // A leftover mark of an ended call would come back, because its removal may be lost.
            let is_mark = space == Space::State && keys::ticket(&key).is_some();
            if let (Some(value), false) = (value, is_mark)
                && guard(folder, || tree.get(&key, SeqNo::MAX))?.is_none()
            {
                tree.insert(&*key, &*value, seqno);
            }
            Ok::<(), StoreError>(())
        })?;
    }
    guard(folder, || tree.flush_active_memtable(0))
}

/// Opens a single keyspace.
fn open(folder: &Path) -> Result<AnyTree, StoreError> {
    let (seqno, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
    guard(folder, || lsm_tree::Config::new(folder, seqno, visible).open())
}

fn guard<T>(folder: &Path, work: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, StoreError> {
    guarded(folder, || {
        work().map_err(|error| match error {
            lsm_tree::Error::Io(error) => StoreError::unreadable(folder, error),
            error => StoreError::Damaged { file: folder.to_owned(), why: corruption(&error) },
        })
    })
}

/// Removes `current` and all manifests.
fn remove_manifests(folder: &Path) -> Result<(), StoreError> {
    for path in files(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name == CURRENT || name.starts_with('v') {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Part of a database that can be replaced by the same part of an empty one, because both number their keyspaces the
/// same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Data that can be rebuilt from the records.
    Derived,
    /// fjall's own keyspace, with the names and settings of the others.
    Meta,
    /// [`Space::State`].
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

/// Empty log whose parts replace damaged ones.
#[derive(Debug)]
pub struct Fresh {
    db: PathBuf,
}

impl Fresh {
    /// Creates an empty log in the empty folder `dir` for `node`.
    pub(crate) fn create(dir: &Path, node: NodeId) -> Result<Self, StoreError> {
        Store::create(dir, node, DatabaseSize::LOG)?;
        Ok(Self { db: dir.join(DB) })
    }

    /// Replaces a part of the closed database `db` with the empty one.
    pub(crate) fn put(&self, part: Part, db: &Path) -> Result<(), StoreError> {
        let folders = part.folders();
        let dir = db.parent().unwrap_or(db);
        let mut known = KnownTables::read(dir)?;
        if folders.iter().any(|folder| known.get(folder).is_some()) {
            known.forget(&folders);
            known.write(dir)?;
        }
        for folder in folders {
            let (from, to) =
                (self.db.join(KEYSPACES).join(folder), db.join(KEYSPACES).join(folder));
            if to.try_exists()? {
                fs::remove_dir_all(&to)?;
            }
            copy_folder(&from, &to)?;
        }
        if part == Part::Meta {
            match fs::remove_file(db.join(VERSION)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                Ok(()) | Err(_) => {}
            }
            fs::copy(self.db.join(VERSION), db.join(VERSION))?;
        }
        Ok(fs::File::open(db.join(KEYSPACES))?.sync_all()?)
    }

    /// Opens the log in `dir` to read its records. These parts are replaced by empty ones, and their contents are
    /// discarded.
    pub(crate) fn open_without(&self, dir: &Path, parts: &[Part]) -> Result<Store, StoreError> {
        let db = dir.join(DB);
        for part in parts {
            self.put(*part, &db)?;
        }
        Store::open_existing(db, DatabaseSize::LOG)
    }
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    private::new_folder(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
            fs::File::open(target)?.sync_all()?;
        }
    }
    fs::File::open(to)?.sync_all()
}
