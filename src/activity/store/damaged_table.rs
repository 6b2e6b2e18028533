//! Search for the damaged table behind a failed read, because fjall's errors do not name it. Each table is compared as
//! a whole with its checksum, because a table is damaged if any of its bytes differ.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use fjall::{AbstractTree, Keyspace};
use lsm_tree::Table;
use parking_lot::Mutex;

use super::error::{StoreError, guarded, is_damage, read_error};
use super::precheck::hash_of;

/// Paths of tables that failed reads found to be damaged. Tables are immutable, so a damaged table is checked only once.
pub(super) type DamagedTables = Arc<Mutex<BTreeSet<PathBuf>>>;

/// Keys of a keyspace that are read.
pub(super) struct KeyRead<'a> {
    pub(super) keyspace: &'a Keyspace,
    pub(super) from: &'a [u8],
    /// Last key, inclusive.
    pub(super) to: &'a [u8],
    /// Whether the keys are read from the last to the first.
    pub(super) is_backward: bool,
}

impl<'a> KeyRead<'a> {
    /// A single key.
    pub(super) fn of(keyspace: &'a Keyspace, key: &'a [u8]) -> Self {
        Self { keyspace, from: key, to: key, is_backward: false }
    }

    /// Runs the read. An error names the damaged table, or the keyspace's folder if no table is damaged. After a
    /// failure, whole tables are read, up to the first damaged one.
    pub(super) fn run<T>(
        &self,
        found: &DamagedTables,
        read: impl FnOnce() -> fjall::Result<T>,
    ) -> Result<T, StoreError> {
        let folder = self.keyspace.path();
        let db = folder.ancestors().nth(2).unwrap_or(folder);
        guarded(folder, || read().map_err(|error| read_error(db, error))).map_err(|error| {
            match error {
                StoreError::Damaged { file, why } if folder.starts_with(&file) => {
                    let file = self.damaged_table(found).unwrap_or_else(|| folder.to_owned());
                    StoreError::Damaged { file, why }
                }
                error => error,
            }
        })
    }

    /// First damaged table that contains some of the keys.
    fn damaged_table(&self, found: &DamagedTables) -> Option<PathBuf> {
        let version = self.keyspace.tree.current_version();
        let range = |table: &Table| {
            let range = &table.metadata.key_range;
            (range.min().clone(), range.max().clone())
        };
        let mut tables: Vec<_> = version.iter_tables().map(|table| (range(table), table)).collect();
        tables.retain(|((min, max), _)| &**max >= self.from && &**min <= self.to);
        tables
            .sort_by(|(a, _), (b, _)| if self.is_backward { b.1.cmp(&a.1) } else { a.0.cmp(&b.0) });
        let tables: Vec<_> = tables.into_iter().map(|(_, table)| table).collect();
        let mut found = found.lock();
        if let Some(known) = tables.iter().find(|table| found.contains(&**table.path)) {
            return Some(known.path.to_path_buf());
        }
        let path = tables.into_iter().find(|table| is_damaged_table(table))?.path.to_path_buf();
        found.insert(path.clone());
        Some(path)
    }
}

/// Whether a table's file is missing, unreadable or different from the file that was written.
fn is_damaged_table(table: &Table) -> bool {
    match hash_of(&table.path, || true) {
        Ok(hash) => hash != Some(table.checksum().into_u128()),
        Err(error) => is_damage(&error) || error.kind() == io::ErrorKind::NotFound,
    }
}
