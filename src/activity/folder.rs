//! Folders of logs: the log that is made to replace one, and the damaged one that is kept aside.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Where a log is made that is to take the place of the one in `dir`.
pub(super) fn replacement(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(".salvaged");
    dir.with_file_name(name)
}

/// Puts the replacement of a log that was moved aside into its place, durably.
///
/// # Errors
///
/// Those of renaming.
pub(super) fn replace(dir: &Path) -> io::Result<()> {
    fs::rename(replacement(dir), dir)?;
    match dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Where the damaged log in `dir` is kept: the first free name beside it.
///
/// # Errors
///
/// Those of looking for it.
pub(super) fn aside(dir: &Path) -> io::Result<PathBuf> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut number = 1;
    loop {
        let aside = dir.with_file_name(format!("{name}.damaged-{number}"));
        if !aside.try_exists()? {
            return Ok(aside);
        }
        number += 1;
    }
}

/// Removes a folder, if it is there.
///
/// # Errors
///
/// Those of removing it.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    if path.try_exists()? { fs::remove_dir_all(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn act_9_a_damaged_log_gets_a_name_of_its_own_and_the_new_one_its_place() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("log");
        for number in 1..3 {
            fs::create_dir(&log).unwrap();
            let aside = aside(&log).unwrap();
            assert_eq!(aside, root.path().join(format!("log.damaged-{number}")));
            fs::create_dir(replacement(&log)).unwrap();
            fs::write(replacement(&log).join("new"), "").unwrap();
            fs::rename(&log, &aside).unwrap();
            replace(&log).unwrap();
            assert!(log.join("new").exists() && !replacement(&log).exists());
            remove(&log).unwrap();
            remove(&log).unwrap();
        }
    }
}
