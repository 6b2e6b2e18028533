//! A client's config file, and the backup that `connect` keeps next to it.

use crate::error::CommandError;
use mcpproxy_config::file::MAX_FILE_BYTES;
use mcpproxy_runtime::os::{edited_file, private};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Suffix of the backup file.
const SUFFIX: &str = ".before-mcpproxy";
/// Maximum number of earlier backups, which have a number as an additional suffix. If the maximum is reached, the last
/// backup is replaced.
const MAX_EARLIER: usize = 99;

/// Reads the text of a config file, of this program or of a client, or of a backup; `None` if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<String>, CommandError> {
    let read = edited_file::read::<String>(path, MAX_FILE_BYTES);
    let failed = |error| CommandError::failed(format!("{}: {error}", path.display()));
    Ok(read.map_err(failed)?.map(|(text, _)| text))
}

/// Path of the backup of a client's file.
pub(crate) fn backup(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(SUFFIX);
    path.with_file_name(name)
}

/// Writes a backup readable only by its owner.
pub(crate) fn back_up(path: &Path, text: &str) -> io::Result<()> {
    let mut file = private::create(&backup(path))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Renames the backup, so that the next backup does not replace it. Returns the new path.
pub(crate) fn set_aside(path: &Path) -> io::Result<String> {
    let backup = backup(path);
    let free = (1..MAX_EARLIER).map(|it| numbered(&backup, it)).find(|path| !exists(path));
    let aside = free.unwrap_or_else(|| numbered(&backup, MAX_EARLIER));
    fs::rename(&backup, &aside)?;
    Ok(aside.display().to_string())
}

/// Paths of the earlier backups.
pub(crate) fn earlier(path: &Path) -> Vec<String> {
    let backup = backup(path);
    let all = (1..=MAX_EARLIER).map(|number| numbered(&backup, number));
    all.filter(|path| exists(path)).map(|path| path.display().to_string()).collect()
}

fn numbered(backup: &Path, number: usize) -> PathBuf {
    let mut name = backup.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
