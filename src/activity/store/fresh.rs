//! Parts of an empty log in the place of damaged ones, so that the rest can be opened.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::database::{DatabaseSize, KEYSPACES, META, VERSION};
use super::{DB, Space, Store, StoreError};
use crate::activity::record::NodeId;
use crate::os::private;

/// What of a database can be replaced by that of an empty one: both number their keyspaces alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What can be made anew from the records.
    Derived,
    /// fjall's own keyspace, which holds the names and settings of the others.
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

/// An empty log, whose parts stand in for damaged ones.
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
        Store::create(dir, node, DatabaseSize::LOG)?;
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

    /// Opens the log in `dir` with these parts of it empty: for reading the records where the rest is
    /// damaged. What was in those parts is removed.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn open_without(&self, dir: &Path, parts: &[Part]) -> Result<Store, StoreError> {
        let db = dir.join(DB);
        for part in parts {
            self.put(*part, &db)?;
        }
        Store::open_existing(db, DatabaseSize::LOG)
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
