//! What servers have said that the config has no more: kept for a while, since it may say why one was removed.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::EXTENSION;
use crate::tool::server_id;

/// How long it is kept after the last line.
pub const KEPT_AFTER: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Removes from `folder` what is older and of none of `servers`. Blocks. What cannot be removed is left for the next time.
pub fn forget<'s>(folder: &Path, servers: impl IntoIterator<Item = &'s str>, now: SystemTime) {
    let stems: HashSet<_> = servers.into_iter().map(server_id::file_stem).collect();
    let is_of_nobody = |name: &str| {
        let stem = name.strip_suffix(EXTENSION).and_then(|rest| rest.strip_suffix('.'));
        let stem = stem.and_then(|rest| rest.rsplit_once('.'));
        stem.is_some_and(|(stem, number)| number.parse::<u64>().is_ok() && !stems.contains(stem))
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|written| now.duration_since(written).ok());
        if age.is_some_and(|age| age > KEPT_AFTER)
            && is_of_nobody(&entry.file_name().to_string_lossy())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn old_words_of_servers_that_are_gone_go_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let [gone, here] = ["gone", "here"].map(server_id::file_stem);
        let kept = [format!("{here}.1.log"), format!("{gone}.log"), "notes.txt".to_owned()];
        let old = [format!("{gone}.1.log"), format!("{gone}.2.log")];
        for name in kept.iter().chain(&old) {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let left = || {
            let entries = fs::read_dir(folder.path()).unwrap().flatten();
            entries.map(|it| it.file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
        };
        let now = SystemTime::now();
        forget(folder.path(), ["here"], now + KEPT_AFTER / 2);
        assert_eq!(left().len(), 5);
        forget(folder.path(), ["here"], now + KEPT_AFTER * 2);
        assert_eq!(left(), BTreeSet::from(kept));
        forget(&folder.path().join("none"), [], now);
    }
}
