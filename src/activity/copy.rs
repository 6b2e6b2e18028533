//! A copy of a log's folder, which is opened in its place: opening a log writes to it, and reading a
//! log must not change it (ACT-4).
//!
//! Tables, which are never changed once written, are linked. The rest is small: journals are
//! copied without the zeros that they are preallocated with.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::folder;
use super::store::{StoreError, journals};
use crate::os::private;

/// The folders of tables.
const TABLES: &str = "tables";

/// A copy of a folder, removed when it is dropped.
#[derive(Debug)]
pub(super) struct Copy {
    path: PathBuf,
}

/// How a copy gets a table of the original.
type Link = fn(&Path, &Path) -> io::Result<()>;

impl Copy {
    /// Copies the folder to a new one beside it, for which the original need not stay.
    pub(super) fn beside(dir: &Path) -> Result<Self, StoreError> {
        let mut name = dir.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".copy-{}", std::process::id()));
        let copy = Self { path: dir.with_file_name(name) };
        copy_folder(dir, &copy.path, |from, to| fs::hard_link(from, to))?;
        Ok(copy)
    }

    /// Makes an empty folder beside the log's, removed when it is dropped.
    pub(super) fn scratch(dir: &Path) -> Result<Self, StoreError> {
        let mut name = dir.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".scratch-{}", std::process::id()));
        let scratch = Self { path: dir.with_file_name(name) };
        // A process with the same id may have been killed here.
        folder::remove(&scratch.path)?;
        private::new_folder(&scratch.path)?;
        Ok(scratch)
    }

    /// Copies the folder to a new one in `scratch`, wherever that is; of a folder that is not
    /// there the copy is empty. The original must stay as long as the copy.
    pub(super) fn below(scratch: &Path, dir: &Path) -> Result<Self, StoreError> {
        let copy = Self { path: scratch.join("log") };
        private::new_folder(&copy.path)?;
        match dir.canonicalize() {
            Ok(dir) => copy_folder(&dir, &copy.path, |from, to| symlink(from, to))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        Ok(copy)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The error with the file of the original in the place of that of the copy.
    pub(super) fn as_original(&self, dir: &Path, error: StoreError) -> StoreError {
        match error {
            StoreError::Damaged { file, why } => {
                let file = file.strip_prefix(&self.path).map_or(file.clone(), |it| dir.join(it));
                StoreError::Damaged { file, why }
            }
            other => other,
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "a copy could not be removed");
        }
    }
}

/// Makes the copy at `path` of the log in `dir` anew.
///
/// # Errors
///
/// Those of reading and writing.
pub(super) fn again(dir: &Path, path: &Path) -> Result<(), StoreError> {
    folder::remove(path)?;
    copy_folder(dir, path, |from, to| fs::hard_link(from, to))
}

fn copy_folder(from: &Path, to: &Path, link: Link) -> Result<(), StoreError> {
    private::folder(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_folder(&source, &target, link)?;
        } else if !from.ends_with(TABLES) || link(&source, &target).is_err() {
            journals::copy_sparse(&source, &target)?;
        }
    }
    Ok(())
}
