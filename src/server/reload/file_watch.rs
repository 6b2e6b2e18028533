//! File watching: notification of changes, and reloading of rules files.
//!
//! The system reports changes in the folders of the watched files. This covers files that are written, replaced by a rename, or reached
//! through a changed link. Changes that are not reported (a folder that was missing, a file system without events) are found by a check
//! every [`CHECK_INTERVAL`].
//!
//! Changed rules are validated against the current tools and applied as a whole. Invalid rules leave those in force unchanged, and block
//! config reloads until they are fixed. Names of servers and tools that do not exist cause warnings. If servers or tools change so that a
//! rule in force no longer fits, this causes a warning too, and the rule continues to deny calls that it cannot evaluate. Warnings are
//! logged, and are part of the status as long as they apply.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[cfg(target_os = "linux")]
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor as Watch};
use serde_json::{Value, json};
use tokio::net::unix::pipe;
use tokio::time::Instant;

use mcpproxy_activity::record::{Draft, Raw, Source, Status, Text, Type};
use mcpproxy_catalog::Snapshot;
use mcpproxy_config::rule_files::LoadedRules;
use mcpproxy_config::{RuleFiles, rule_files};
use mcpproxy_gateway::proxy::Proxy;
use mcpproxy_gateway::proxy::settings::Settings;
use mcpproxy_policy as policy;
use mcpproxy_policy::identity::{FileStamp, file_stamp};
use mcpproxy_policy::rules::{KnownTools, RuleProblem, RuleSet};

/// Interval of checks without notification.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Quiet time to wait for after a change, because a file may be only partly written, and because a command that has written it
/// asks for the reload itself, so that the record of the change has its principal.
const SETTLE_TIME: Duration = Duration::from_millis(300);
/// Maximum time to wait for quiet.
const MAX_SETTLE_TIME: Duration = Duration::from_secs(1);
/// Maximum number of links followed from a file.
const MAX_LINKS: usize = 16;
/// Maximum number of bytes of queued changes that one read discards.
const READ_BYTES: usize = 4096;

/// Queue of the changes in folders: inotify.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct ChangeQueue(Inotify);

#[cfg(target_os = "linux")]
impl ChangeQueue {
    fn new() -> io::Result<Self> {
        Ok(Self(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?))
    }

    /// The queue as a file that never blocks and can be read if there are changes.
    fn file(&self) -> io::Result<File> {
        Ok(self.0.as_fd().try_clone_to_owned()?.into())
    }

    /// Queues the changes in a folder. Paths of the same folder share a watch.
    fn add(&self, folder: &Path) -> io::Result<Watch> {
        let changes = AddWatchFlags::IN_ONLYDIR
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        Ok(self.0.add_watch(folder, changes)?)
    }

    fn remove(&self, watch: Watch) {
        // If the folder was removed, its watch no longer exists, which is not an error.
        let _ = self.0.rm_watch(watch);
    }
}

/// Placeholder on systems without such a queue, where the periodic checks find all changes.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
enum ChangeQueue {}

#[cfg(not(target_os = "linux"))]
impl ChangeQueue {
    fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn file(&self) -> io::Result<File> {
        match *self {}
    }

    fn add(&self, _: &Path) -> io::Result<Watch> {
        match *self {}
    }

    fn remove(&self, (): Watch) {
        match *self {}
    }
}

#[cfg(not(target_os = "linux"))]
type Watch = ();

/// Signal that watched files may have changed.
#[derive(Debug)]
pub(super) struct ChangeSignal {
    /// `None` if the system does not report changes.
    changes: Option<pipe::Receiver>,
}

impl ChangeSignal {
    /// Waits until files may have changed, and changes have ceased.
    pub(super) async fn wait(&self) {
        if tokio::time::timeout(CHECK_INTERVAL, self.reported()).await.is_err() {
            return;
        }
        let until = Instant::now() + MAX_SETTLE_TIME;
        while Instant::now() < until
            && tokio::time::timeout(SETTLE_TIME, self.reported()).await.is_ok()
        {}
    }

    /// Waits until the system reports changes, and discards the events.
    async fn reported(&self) {
        let Some(changes) = &self.changes else { return std::future::pending().await };
        while changes.readable().await.is_ok() {
            match changes.try_read(&mut [0; READ_BYTES]) {
                Ok(_) => return,
                // All events have been read.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        std::future::pending().await
    }
}

#[derive(Debug)]
pub(super) struct WatchedFolders {
    /// Queue of changes; `None` if the system does not report changes.
    queue: Option<ChangeQueue>,
    /// Watched folders and their inode numbers; a folder may be replaced by another with the same name.
    folders: BTreeSet<(PathBuf, u64)>,
    watches: BTreeSet<Watch>,
}

impl WatchedFolders {
    /// Starts without folders. Must be called on the runtime that waits for the signal.
    pub(super) fn new() -> (ChangeSignal, Self) {
        let open = || -> io::Result<_> {
            let queue = ChangeQueue::new()?;
            Ok((pipe::Receiver::from_file_unchecked(queue.file()?)?, queue))
        };
        let opened = open().inspect_err(|error| {
            tracing::info!(%error, "the system does not report file changes; checking every {CHECK_INTERVAL:?}");
        });
        let (changes, queue) = opened.ok().unzip();
        let (folders, watches) = (BTreeSet::new(), BTreeSet::new());
        (ChangeSignal { changes }, Self { queue, folders, watches })
    }

    /// Watches only the folders of these files. Blocks.
    pub(super) fn follow<'a>(&mut self, files: impl IntoIterator<Item = &'a Path>) {
        let Some(queue) = &self.queue else { return };
        let wanted: BTreeSet<PathBuf> = files.into_iter().flat_map(folders_of).collect();
        let folders: BTreeSet<(PathBuf, u64)> = wanted
            .into_iter()
            .filter_map(|folder| {
                let inode = fs::metadata(&folder).ok()?.ino();
                Some((folder, inode))
            })
            .collect();
        if folders == self.folders {
            return;
        }
        let added = folders.iter().filter_map(|(folder, _)| {
            let added = queue.add(folder).inspect_err(|error| {
                tracing::debug!(folder = %folder.display(), %error, "cannot watch a folder");
            });
            added.ok()
        });
        let watches: BTreeSet<Watch> = added.collect();
        for watch in self.watches.difference(&watches) {
            queue.remove(*watch);
        }
        (self.folders, self.watches) = (folders, watches);
    }
}

/// Folders in which a change may affect `file`: its own, and those of links on its path.
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

/// Maximum number of problems logged per check.
const MAX_LOGGED: usize = 20;

/// Stamps of the rules files.
type Stamps = Vec<Option<FileStamp>>;

/// Last seen state of the rules files.
#[derive(Debug, Default)]
pub(super) struct RuleWatch {
    /// Stamps before the rules in force were read.
    in_force: Stamps,
    /// Stamps that the files had when they were last reported.
    seen: Stamps,
    /// The tools that the rules in force were last checked against.
    checked: Option<Arc<Snapshot>>,
    /// The servers of the config that the rules in force were last checked against.
    servers: Vec<Arc<str>>,
    /// The last reported warnings of the rules in force.
    reported: Vec<RuleProblem>,
}

/// Rules of another config.
#[derive(Debug)]
pub(super) enum RulesRead {
    /// The rules in force.
    Same,
    Changed(Option<Arc<RuleSet>>),
}

/// Result of a check of the rules files.
#[derive(Debug)]
pub(super) enum RulesSeen {
    Unchanged,
    /// Changed rules are in force now.
    Replaced,
    /// Changed rules are invalid, which was logged and recorded.
    Invalid(Vec<RuleProblem>),
}

impl RuleWatch {
    /// Starts with the current files as those in force.
    pub(super) fn new(files: &RuleFiles) -> Self {
        let seen = stamps(files);
        Self { in_force: seen.clone(), seen, ..Self::default() }
    }

    /// Whether the files of the config in force are unchanged since they came into force. Blocks.
    pub(super) fn are_in_force(&self, files: &RuleFiles) -> bool {
        stamps(files) == self.in_force
    }

    /// Reads the rules of config `next`, while `now` is in force. Also returns the warnings of changed rules. Blocks.
    pub(super) fn read(
        &mut self,
        now: &RuleFiles,
        next: &RuleFiles,
        known: &KnownTools,
    ) -> Result<(RulesRead, Vec<RuleProblem>), Vec<RuleProblem>> {
        let seen = stamps(next);
        if now == next {
            if seen == self.in_force {
                return Ok((RulesRead::Same, Vec::new()));
            }
            // Errors are reported by the caller.
            self.seen.clone_from(&seen);
        }
        let LoadedRules { rules, warnings } = rule_files::load(next, known)?;
        self.in_force.clone_from(&seen);
        self.seen = seen;
        self.reported.clone_from(&warnings);
        Ok((RulesRead::Changed(rules.map(Arc::new)), warnings))
    }

    /// The current warnings of the rules in force.
    pub(super) fn warnings(&self) -> &[RuleProblem] {
        &self.reported
    }

    /// Applies changed files, and checks the rules in force against changed tools. Blocks.
    pub(super) fn look_again(
        &mut self,
        proxy: &Proxy,
        files: &RuleFiles,
        servers: &KnownTools,
    ) -> RulesSeen {
        if files.files.is_empty() && files.shared.is_empty() {
            self.reported.clear();
            return RulesSeen::Unchanged;
        }
        let (now, snapshot) = (stamps(files), proxy.catalog.load());
        let other_tools = !self.checked.as_ref().is_some_and(|it| Arc::ptr_eq(it, &snapshot))
            || !self.servers.iter().eq(servers.servers.keys());
        if now == self.seen && !other_tools {
            return RulesSeen::Unchanged;
        }
        let known = snapshot.known_tools(servers);
        let mut found = RulesSeen::Unchanged;
        if now != self.seen {
            match rule_files::load(files, &known) {
                Ok(LoadedRules { rules, warnings }) => {
                    let count = rules.as_ref().map_or(0, RuleSet::len);
                    replace(proxy, rules.map(Arc::new));
                    tracing::info!(rules = count, warnings = warnings.len(), "rules reloaded");
                    let counts = json!({"rules": count, "warnings": warnings.len()});
                    note(proxy, Status::Success, "", counts);
                    self.report(warnings);
                    self.in_force.clone_from(&now);
                    found = RulesSeen::Replaced;
                }
                Err(problems) => {
                    let errors = || problems.iter().filter(|it| it.is_error());
                    for problem in errors().take(MAX_LOGGED) {
                        tracing::error!("{problem}; the previous rules stay in force");
                    }
                    let first = errors().next().map(ToString::to_string).unwrap_or_default();
                    note(proxy, Status::Error, &first, json!({"problems": problems.len()}));
                    found = RulesSeen::Invalid(problems);
                }
            }
            self.seen = now;
        } else if let Some(rules) = &proxy.settings.reader().current().policy.rules {
            self.report(rules.problems(Some(&known)));
        }
        self.checked = Some(snapshot);
        self.servers = servers.servers.keys().cloned().collect();
        found
    }

    /// Stores the warnings of the rules in force, and logs them if they differ from the last ones.
    fn report(&mut self, warnings: Vec<RuleProblem>) {
        if warnings == self.reported {
            return;
        }
        for warning in warnings.iter().take(MAX_LOGGED) {
            tracing::warn!("{warning}; the rule stays in force unchanged");
        }
        self.reported = warnings;
    }
}

fn replace(proxy: &Proxy, rules: Option<Arc<RuleSet>>) {
    proxy.settings.update(|now| {
        let policy = policy::Settings { rules: rules.clone(), ..now.policy.clone() };
        Settings { policy, ..now.clone() }
    });
}

/// Records a change of the rules.
fn note(proxy: &Proxy, status: Status, error: &str, counts: Value) {
    let mut draft = Draft::new(Type::ConfigChange, Source::Internal, status);
    draft.set(Text::Error, error);
    let mut metadata = json!({"section": "policy"});
    if let (Some(metadata), Value::Object(counts)) = (metadata.as_object_mut(), counts) {
        metadata.extend(counts);
    }
    draft.keep(Raw::Metadata, metadata.to_string().as_bytes(), usize::MAX);
    proxy.activity.note(draft);
}

fn stamps(files: &RuleFiles) -> Stamps {
    files.files.iter().map(|file| file_stamp(file)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn folders_of_all_links_on_the_path_are_watched() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("v1")).unwrap();
        fs::write(at("v1/config.json"), "{}").unwrap();
        symlink("v1", at("..data")).unwrap();
        symlink("..data/config.json", at("config.json")).unwrap();
        assert_eq!(folders_of(&at("config.json")), [folder.path().to_owned(), at("..data")]);
        symlink("round", at("round")).unwrap();
        assert_eq!(folders_of(&at("round")).len(), MAX_LINKS, "a cycle ends");
        assert_eq!(folders_of(Path::new("x.json")), [PathBuf::from(".")]);
    }

    /// Number of bytes of queued changes, which are discarded. A change is queued before the call that makes it returns.
    #[cfg(target_os = "linux")]
    fn queued(watched: &WatchedFolders) -> usize {
        let mut file = watched.queue.as_ref().unwrap().file().unwrap();
        match std::io::Read::read(&mut file, &mut [0; READ_BYTES]) {
            Ok(count) => count,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                0
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn read_access_is_not_reported() {
        let folder = tempfile::tempdir().unwrap();
        let [file, other] = ["config.json", "other"].map(|name| folder.path().join(name));
        fs::write(&file, "{}").unwrap();
        let (_changed, mut watched) = WatchedFolders::new();
        watched.follow([&*file]);
        fs::read(&file).unwrap();
        assert_eq!(queued(&watched), 0);
        fs::write(&other, "{ }").unwrap();
        assert!(queued(&watched) > 0);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn folder_is_watched_as_long_as_one_of_its_paths_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let [real, link] = ["real", "link"].map(|name| folder.path().join(name));
        fs::create_dir(&real).unwrap();
        symlink("real", &link).unwrap();
        let (_changed, mut watched) = WatchedFolders::new();
        watched.follow([&*real.join("a"), &*link.join("b")]);
        assert_eq!((watched.folders.len(), watched.watches.len()), (2, 1));
        watched.follow([&*real.join("a")]);
        fs::write(real.join("a"), "{}").unwrap();
        assert!(queued(&watched) > 0);
        watched.follow([]);
        queued(&watched);
        fs::write(real.join("a"), "{ }").unwrap();
        assert_eq!(queued(&watched), 0);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn replaced_file_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        fs::write(&file, "{}").unwrap();
        let (changed, mut watched) = WatchedFolders::new();
        watched.follow([&*file]);
        let other = folder.path().join("other");
        fs::write(&other, "{ }").unwrap();
        fs::rename(&other, &file).unwrap();
        tokio::time::timeout(Duration::from_secs(30), changed.reported()).await.unwrap();
    }
}
