//! Files that are watched: when it is time to look at them.
//!
//! The system tells of changes in the folders that the files lie in, which covers files that are written, replaced by a
//! rename, or reached by links that are switched. What it does not tell of (a folder that was away, a file system without
//! events) is found by looking every [`LOOK`] all the same. Whether a file is another is for whoever looks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How often the files are looked at, told or not.
const LOOK: Duration = Duration::from_secs(1);
/// Who is told of a change waits until nothing has changed for so long: a file may be half-written.
const GATHER: Duration = Duration::from_millis(100);
/// And for no longer than this.
const MOST_GATHER: Duration = Duration::from_secs(1);
/// Links that are followed from one file.
const MAX_LINKS: usize = 16;

/// When it is time to look.
#[derive(Clone, Debug, Default)]
pub(super) struct LookTime(Arc<Notify>);

impl LookTime {
    /// Waits until something may have changed, and has stopped to.
    pub(super) async fn time_to_look(&self) {
        if tokio::time::timeout(LOOK, self.0.notified()).await.is_err() {
            return;
        }
        let until = Instant::now() + MOST_GATHER;
        while Instant::now() < until
            && tokio::time::timeout(GATHER, self.0.notified()).await.is_ok()
        {}
    }
}

/// The folders that are watched.
#[derive(Debug, Default)]
pub(super) struct WatchedFolders {
    /// None where the system does not tell of changes.
    watcher: Option<RecommendedWatcher>,
    /// Each with what it is: another of its name is another folder.
    folders: BTreeMap<PathBuf, u64>,
}

impl WatchedFolders {
    /// Watches nothing yet.
    pub(super) fn new(told: &LookTime) -> Self {
        let told = told.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if !event.is_ok_and(|event| is_of_a_reader(&event)) {
                told.0.notify_one();
            }
        });
        let watcher = watcher.inspect_err(|error| {
            tracing::info!(%error, "the system does not tell of files that change: they are looked at every {LOOK:?}");
        });
        Self { watcher: watcher.ok(), folders: BTreeMap::new() }
    }

    /// From now on the folders of these files are watched, and no others. Blocks.
    pub(super) fn follow<'a>(&mut self, files: impl IntoIterator<Item = &'a Path>) {
        let Some(watcher) = &mut self.watcher else { return };
        let wanted: BTreeSet<PathBuf> = files.into_iter().flat_map(folders_of).collect();
        let now: BTreeMap<PathBuf, u64> = wanted
            .into_iter()
            .filter_map(|folder| Some((folder.clone(), fs::metadata(&folder).ok()?.ino())))
            .collect();
        if now == self.folders {
            return;
        }
        for (folder, inode) in &self.folders {
            if now.get(folder) != Some(inode) {
                // A folder that is gone is not watched any more.
                let _ = watcher.unwatch(folder);
            }
        }
        for (folder, inode) in &now {
            if self.folders.get(folder) != Some(inode)
                && let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive)
            {
                tracing::debug!(folder = %folder.display(), %error, "a folder is not watched");
            }
        }
        self.folders = now;
    }
}

/// Whether nothing was changed.
fn is_of_a_reader(event: &notify::Event) -> bool {
    use notify::event::{AccessKind, AccessMode, EventKind};
    let written = AccessKind::Close(AccessMode::Write);
    event.kind.is_access() && event.kind != EventKind::Access(written)
}

/// The folders whose changes may make `file` another: its own, and those of the links that lead to it.
fn folders_of(file: &Path) -> Vec<PathBuf> {
    let (mut folders, mut file) = (Vec::new(), file.to_owned());
    for _ in 0..MAX_LINKS {
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            Some(_) | None => PathBuf::from("."),
        };
        let target = fs::read_link(&file).ok().map(|target| folder.join(target));
        folders.push(folder);
        match target {
            Some(target) => file = target,
            None => break,
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_folders_of_all_links_on_the_way_are_watched() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("v1")).unwrap();
        fs::write(at("v1/config.json"), "{}").unwrap();
        symlink("v1", at("..data")).unwrap();
        symlink("..data/config.json", at("config.json")).unwrap();
        assert_eq!(folders_of(&at("config.json")), [folder.path().to_owned(), at("..data")]);
        symlink("round", at("round")).unwrap();
        assert_eq!(folders_of(&at("round")).len(), MAX_LINKS, "a circle has an end");
        assert_eq!(folders_of(Path::new("x.json")), [PathBuf::from(".")]);
    }

    #[test]
    fn a_file_that_is_read_is_not_told() {
        let folder = tempfile::tempdir().unwrap();
        let [file, other] = ["config.json", "other"].map(|name| folder.path().join(name));
        fs::write(&file, "{}").unwrap();
        let (tell, events) = std::sync::mpsc::channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let _ = tell.send(event.unwrap());
        });
        let mut watched =
            WatchedFolders { watcher: Some(watcher.unwrap()), folders: BTreeMap::new() };
        watched.follow([&*file]);
        fs::read(&file).unwrap();
        fs::write(&other, "{ }").unwrap();
        // What the system tells of comes in the order in which it was done.
        let next = || events.recv_timeout(Duration::from_secs(30)).unwrap();
        let mut reads = 0;
        let told = std::iter::repeat_with(next).find(|event| {
            reads += usize::from(is_of_a_reader(event));
            !is_of_a_reader(event)
        });
        assert_eq!(told.unwrap().paths, [other]);
        assert!(reads > 0, "the test is about nothing");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_that_is_replaced_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        fs::write(&file, "{}").unwrap();
        let told = LookTime::default();
        let mut watched = WatchedFolders::new(&told);
        watched.follow([&*file]);
        assert!(watched.watcher.is_some() && watched.folders.len() == 1);
        let other = folder.path().join("other");
        fs::write(&other, "{ }").unwrap();
        fs::rename(&other, &file).unwrap();
        tokio::time::timeout(Duration::from_secs(30), told.0.notified()).await.unwrap();
    }
}
