//! Sets on their way to disk.
//!
//! Invariant: once every write has ended, a server's file holds the newest of its sets, or that set is
//! known to be unsaved. Whoever asked for a write may have gone away long before it is done, and a newer
//! set may be written before it or taken up while it is under way: so every set has a number, a
//! write of another set than the newest is left out, and only the newest one's makes its server saved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::blocking::BlockingWork;
use super::discovered::DiscoveredTool;
use super::persist;
use super::turns::{Turns, Undone};

/// How long a server waits for its set to be on disk before it counts as discovered. The set is
/// written even so, when the disk answers.
const DISK_WAIT: Duration = Duration::from_secs(5);

/// What is kept on disk, and what of it is not there yet.
#[derive(Debug)]
pub(super) struct Saving {
    folder: Option<PathBuf>,
    newest: Mutex<Newest>,
    /// Held while files are written: which set is the newest cannot be judged by two writers at once.
    writing: Mutex<()>,
    turns: Arc<Turns<UnsavedSet, Option<String>>>,
}

/// The sets that are not on disk.
#[derive(Debug, Default)]
struct Newest {
    /// The number of the newest set of all servers.
    last: u64,
    /// For each server whose set is not on disk, the number of its newest set.
    unsaved: BTreeMap<Arc<str>, u64>,
}

/// A set that is to be written.
#[derive(Debug)]
pub(super) struct UnsavedSet {
    number: u64,
    tools: Vec<DiscoveredTool>,
}

impl Saving {
    /// Keeps sets in `folder`; in memory only if there is none.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, newest: Mutex::default(), writing: Mutex::default(), turns: Arc::default() }
    }

    /// Where sets are kept.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The set of `server` is another than before: what is on disk, or on its way there, is not it.
    pub(super) fn is_newer(&self, server: &Arc<str>) {
        let mut newest = self.newest.lock();
        newest.last += 1;
        let number = newest.last;
        newest.unsaved.insert(Arc::clone(server), number);
    }

    /// `tools`, the set of `server` that was taken up last, if it is to be written.
    pub(super) fn unsaved(&self, server: &str, tools: Vec<DiscoveredTool>) -> Option<UnsavedSet> {
        let number = *self.newest.lock().unsaved.get(server)?;
        self.folder.as_ref()?;
        Some(UnsavedSet { number, tools })
    }

    /// Writes sets to disk, each unless there is a newer one of its server; for each why it is not
    /// there, if it is not. Blocks on the disk.
    pub(super) fn write(&self, sets: Vec<(Arc<str>, UnsavedSet)>) -> Vec<Option<String>> {
        let Some(folder) = &self.folder else { return vec![None; sets.len()] };
        let _writing = self.writing.lock();
        let (mut numbers, mut newest) = (Vec::new(), Vec::new());
        for (server, UnsavedSet { number, tools }) in sets {
            let is_newest = self.newest.lock().unsaved.get(&server) == Some(&number);
            numbers.push(is_newest.then_some(number));
            if is_newest {
                newest.push((server, tools));
            }
        }
        let mut written = newest.iter().zip(persist::write_all(folder, &newest));
        let outcomes = numbers.into_iter().map(|number| {
            let (number, ((server, _), written)) = (number?, written.next()?);
            match written {
                Ok(()) => {
                    self.is_written(server, number);
                    None
                }
                Err(error) => {
                    let path = persist::path(folder, server);
                    Some(format!("{} cannot be written: {error}", path.display()))
                }
            }
        });
        outcomes.collect()
    }

    /// The set of that number is on disk. Its server is saved, unless a newer one was taken up meanwhile.
    fn is_written(&self, server: &Arc<str>, number: u64) {
        let unsaved = &mut self.newest.lock().unsaved;
        if unsaved.get(server) == Some(&number) {
            unsaved.remove(server);
        }
    }

    /// Has a set written to disk by `write`, on one of `threads`; why it is not there, if it is not. Sets that
    /// come while others are written are written together after that.
    pub(super) async fn save(
        &self,
        threads: &BlockingWork,
        server: &Arc<str>,
        set: UnsavedSet,
        write: impl Fn(Vec<(Arc<str>, UnsavedSet)>) -> Vec<Option<String>> + Send + 'static,
    ) -> Option<String> {
        let written = self.turns.done(threads, server, set, write);
        let path = || match &self.folder {
            Some(folder) => persist::path(folder, server).display().to_string(),
            None => String::new(),
        };
        match tokio::time::timeout(DISK_WAIT, written).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(Undone)) => Some(format!("{} was not written", path())),
            Err(_) => Some(format!("{} is not written yet, after {DISK_WAIT:?}", path())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str) -> Vec<DiscoveredTool> {
        let text = format!(r#"{{"name":"{name}","inputSchema":{{}}}}"#);
        vec![DiscoveredTool::parse(serde_json::from_str(&text).unwrap()).unwrap()]
    }

    fn on_disk(folder: &Path) -> Option<String> {
        persist::read(folder, "s").unwrap().map(|set| set.tools[0].name.to_string())
    }

    /// Takes up a set, as far as the disk is concerned.
    fn take_up(saving: &Saving, name: &str) -> UnsavedSet {
        saving.is_newer(&Arc::from("s"));
        saving.unsaved("s", set(name)).unwrap()
    }

    fn write(saving: &Saving, set: UnsavedSet) {
        assert_eq!(saving.write(vec![(Arc::from("s"), set)]), [None]);
    }

    #[test]
    fn an_abandoned_write_that_comes_late_does_not_replace_the_newer_set() {
        let folder = tempfile::tempdir().unwrap();
        let saving = Saving::new(Some(folder.path().to_owned()));
        let (old, new) = (take_up(&saving, "old"), take_up(&saving, "new"));
        write(&saving, new);
        write(&saving, old);
        assert_eq!(on_disk(folder.path()).as_deref(), Some("new"));
        assert!(saving.unsaved("s", set("new")).is_none());
    }

    #[test]
    fn a_newer_set_is_unsaved_until_it_is_written_itself() {
        let folder = tempfile::tempdir().unwrap();
        let saving = Saving::new(Some(folder.path().to_owned()));
        let old = take_up(&saving, "old");
        // The newer set is shown, and before its turn comes the older one's write ends.
        saving.is_newer(&Arc::from("s"));
        write(&saving, old);
        let new = saving.unsaved("s", set("new")).expect("it is not on disk");
        write(&saving, new);
        assert_eq!(on_disk(folder.path()).as_deref(), Some("new"));
    }

    #[test]
    fn a_set_taken_up_while_an_older_one_is_written_is_unsaved() {
        let folder = tempfile::tempdir().unwrap();
        let saving = Saving::new(Some(folder.path().to_owned()));
        let server = Arc::from("s");
        let old = take_up(&saving, "old");
        saving.is_newer(&server);
        saving.is_written(&server, old.number);
        let new = saving.unsaved("s", set("new")).expect("it is not on disk");
        saving.is_written(&server, new.number);
        assert!(saving.unsaved("s", set("new")).is_none());
    }

    #[test]
    fn what_was_written_is_saved_and_what_was_not_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("file");
        std::fs::write(&blocked, "no folder").unwrap();
        let saving = Saving::new(Some(blocked));
        let first = take_up(&saving, "x");
        assert!(saving.write(vec![(Arc::from("s"), first)])[0].is_some());
        assert!(saving.unsaved("s", set("x")).is_some());
        assert!(Saving::new(None).unsaved("s", set("x")).is_none());
    }
}
