//! Writes sets to disk in the background. Contains the bookkeeping of each server's newest set, the job queue that
//! batches writes, and the tracking of blocking work.
//!
//! Invariant: once every write has ended, a server's file holds its newest set, or that set is known to be unsaved. The
//! caller of a write may be dropped long before the write ends, and a newer set may be written first or arrive during
//! the write. Every set is therefore numbered, stale writes are skipped, and only the newest set marks its server as
//! saved.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::task::TaskTracker;

use super::definition::DiscoveredTool;
use super::persist;

/// Maximum wait for a set to be on disk before its server counts as discovered. The write continues after that.
const DISK_WAIT: Duration = Duration::from_secs(5);

/// Bookkeeping of stored sets and of sets not written yet.
#[derive(Debug)]
pub(super) struct Saving {
    folder: Option<PathBuf>,
    newest: Mutex<Newest>,
    /// Held while files are written, so that only one writer at a time decides which set is newest.
    writing: Mutex<()>,
    turns: Arc<JobQueue<UnsavedSet, Option<String>>>,
}

/// Unsaved sets.
#[derive(Debug, Default)]
struct Newest {
    /// Highest set number.
    last: u64,
    /// Number of the newest set of each unsaved server.
    unsaved: BTreeMap<Arc<str>, u64>,
}

/// A set to write.
#[derive(Debug)]
pub(super) struct UnsavedSet {
    number: u64,
    tools: Vec<DiscoveredTool>,
}

impl Saving {
    /// Creates the bookkeeping for sets stored in `folder`, or in memory only.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, newest: Mutex::default(), writing: Mutex::default(), turns: Arc::default() }
    }

    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Marks the stored set of `server` as outdated.
    pub(super) fn mark_outdated(&self, server: &Arc<str>) {
        let mut newest = self.newest.lock();
        newest.last += 1;
        let number = newest.last;
        newest.unsaved.insert(Arc::clone(server), number);
    }

    /// Prepares `tools`, the latest set of `server`, for writing if it is unsaved.
    pub(super) fn unsaved(&self, server: &str, tools: Vec<DiscoveredTool>) -> Option<UnsavedSet> {
        let number = *self.newest.lock().unsaved.get(server)?;
        self.folder.as_ref()?;
        Some(UnsavedSet { number, tools })
    }

    /// Writes sets unless newer ones exist, and returns the error of each. Blocks on the disk.
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
                    self.mark_written(server, number);
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

    /// Marks a set as written. Its server counts as saved unless a newer set exists.
    fn mark_written(&self, server: &Arc<str>, number: u64) {
        let unsaved = &mut self.newest.lock().unsaved;
        if unsaved.get(server) == Some(&number) {
            unsaved.remove(server);
        }
    }

    /// Writes a set with `write` on one of `threads` and returns the error. Sets that arrive during the write are
    /// written in one batch.
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
            Ok(Err(JobDropped)) => Some(format!("{} was not written", path())),
            Err(_) => Some(format!("{} is not written yet, after {DISK_WAIT:?}", path())),
        }
    }
}

/// Queue of blocking jobs, at most one per server, executed in batches by a single thread. A newer job of a server
/// replaces its older one, so that many servers cost little more than a few.
pub(super) struct JobQueue<J, R> {
    waiting: Mutex<Waiting<J, R>>,
    turn: Arc<Semaphore>,
}

type Waiting<J, R> = BTreeMap<Arc<str>, (J, oneshot::Sender<R>)>;

/// The job was replaced by a newer one, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobDropped;

impl<J, R> Default for JobQueue<J, R> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl<J, R> fmt::Debug for JobQueue<J, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobQueue({} waiting)", self.waiting().len())
    }
}

impl<J, R> JobQueue<J, R> {
    fn waiting(&self) -> MutexGuard<'_, Waiting<J, R>> {
        self.waiting.lock()
    }

    /// Runs the waiting jobs until none are left. `work` returns an outcome for each job, in order.
    fn work_off(&self, work: impl Fn(Vec<(Arc<str>, J)>) -> Vec<R>) {
        loop {
            let jobs = std::mem::take(&mut *self.waiting());
            if jobs.is_empty() {
                return;
            }
            let (jobs, asked): (Vec<_>, Vec<_>) =
                jobs.into_iter().map(|(server, (job, asked))| ((server, job), asked)).unzip();
            for (asked, outcome) in asked.into_iter().zip(work(jobs)) {
                // The caller may have been dropped.
                let _ = asked.send(outcome);
            }
        }
    }
}

impl<J: Send + 'static, R: Send + 'static> JobQueue<J, R> {
    /// Runs a job on one of `threads`, in this caller's batch or another's, and returns its result. If the future is
    /// dropped, the job still runs, at the latest together with the next jobs.
    pub(super) async fn done(
        self: &Arc<Self>,
        threads: &BlockingWork,
        server: &Arc<str>,
        job: J,
        work: impl Fn(Vec<(Arc<str>, J)>) -> Vec<R> + Send + 'static,
    ) -> Result<R, JobDropped> {
        let (asked, mut outcome) = oneshot::channel();
        self.waiting().insert(Arc::clone(server), (job, asked));
        tokio::select! {
            biased;
            outcome = &mut outcome => return outcome.map_err(|_| JobDropped),
            turn = Arc::clone(&self.turn).acquire_owned() => {
                let turns = Arc::clone(self);
                // A job that panicked has no outcome.
                threads.start(move || {
                    let _turn = turn;
                    turns.work_off(work);
                });
            }
        }
        outcome.await.map_err(|_| JobDropped)
    }
}

/// Tracked blocking work. A thread cannot be canceled, so shutdown waits for it even if the caller was dropped.
#[derive(Debug, Default)]
pub(super) struct BlockingWork(TaskTracker);

/// The work panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panicked;

impl BlockingWork {
    /// Starts `work` on a blocking thread.
    pub(super) fn start(&self, work: impl FnOnce() + Send + 'static) {
        // A panic is reported to the tasks that wait for the outcome.
        drop(self.0.spawn_blocking(work));
    }

    /// Runs `work` and returns its result. Dropping the future does not cancel the work.
    pub(super) async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, Panicked> {
        self.0.spawn_blocking(work).await.map_err(|_| Panicked)
    }

    /// Waits until all started work has ended.
    pub(super) async fn ended(&self) {
        self.0.close();
        self.0.wait().await;
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

    /// Prepares a published set for writing.
    fn take_up(saving: &Saving, name: &str) -> UnsavedSet {
        saving.mark_outdated(&Arc::from("s"));
        saving.unsaved("s", set(name)).unwrap()
    }

    fn write(saving: &Saving, set: UnsavedSet) {
        assert_eq!(saving.write(vec![(Arc::from("s"), set)]), [None]);
    }

    #[test]
    fn late_abandoned_write_does_not_replace_newer_set() {
        let folder = tempfile::tempdir().unwrap();
        let saving = Saving::new(Some(folder.path().to_owned()));
        let (old, new) = (take_up(&saving, "old"), take_up(&saving, "new"));
        write(&saving, new);
        write(&saving, old);
        assert_eq!(on_disk(folder.path()).as_deref(), Some("new"));
        assert!(saving.unsaved("s", set("new")).is_none());
    }

    #[test]
    fn newer_set_is_unsaved_until_it_has_been_written() {
        let folder = tempfile::tempdir().unwrap();
        let saving = Saving::new(Some(folder.path().to_owned()));
        let old = take_up(&saving, "old");
        // The newer set is published, and the write of the older set ends before the newer one is written.
        saving.mark_outdated(&Arc::from("s"));
        write(&saving, old);
        let new = saving.unsaved("s", set("new")).expect("it is not on disk");
        write(&saving, new);
        assert_eq!(on_disk(folder.path()).as_deref(), Some("new"));
    }

    #[test]
    fn set_replaced_during_a_write_is_unsaved() {
        let folder = tempfile::tempdir().unwrap();
        let saving = Saving::new(Some(folder.path().to_owned()));
        let server = Arc::from("s");
        let old = take_up(&saving, "old");
        saving.mark_outdated(&server);
        saving.mark_written(&server, old.number);
        let new = saving.unsaved("s", set("new")).expect("it is not on disk");
        saving.mark_written(&server, new.number);
        assert!(saving.unsaved("s", set("new")).is_none());
    }

    #[test]
    fn written_set_is_saved_and_failed_one_is_retried() {
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

#[cfg(test)]
mod turns_tests {
    use std::sync::mpsc;

    use super::*;

    type Jobs = Vec<(Arc<str>, u32)>;

    #[tokio::test]
    async fn jobs_arriving_during_a_run_are_batched() {
        let turns = Arc::new(JobQueue::<u32, u32>::default());
        let threads = Arc::new(BlockingWork::default());
        let (begun, began) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let ask = |server: &str, job| {
            let (turns, server) = (Arc::clone(&turns), Arc::from(server));
            let threads = Arc::clone(&threads);
            let (begun, wait) = (begun.clone(), Arc::clone(&wait));
            let work = move |jobs: Jobs| {
                begun.send(jobs.len()).unwrap();
                wait.lock().recv().unwrap();
                jobs.iter().map(|(_, job)| job * 2).collect()
            };
            tokio::spawn(async move { turns.done(&threads, &server, job, work).await })
        };
        let first = ask("a", 1);
        let begun = tokio::task::spawn_blocking(move || (began.recv().unwrap(), began));
        let (jobs, began) = begun.await.unwrap();
        assert_eq!(jobs, 1);
        let (older, newer, other) = (ask("b", 2), ask("b", 3), ask("c", 4));
        while turns.waiting().len() < 2 || turns.waiting().get("b").is_some_and(|it| it.0 != 3) {
            tokio::task::yield_now().await;
        }
        go.send(()).unwrap();
        go.send(()).unwrap();
        // A third run would wait forever.
        drop(go);
        assert_eq!(first.await.unwrap(), Ok(2));
        assert_eq!(older.await.unwrap(), Err(JobDropped), "a newer job replaced it");
        assert_eq!((newer.await.unwrap(), other.await.unwrap()), (Ok(6), Ok(8)));
        assert_eq!(began.try_iter().collect::<Vec<_>>(), [2]);
    }

    #[tokio::test]
    async fn panicking_job_is_dropped_and_the_next_runs() {
        let turns = Arc::new(JobQueue::<u32, u32>::default());
        let threads = Arc::new(BlockingWork::default());
        let server = Arc::from("a");
        let fails = |_: Jobs| -> Vec<u32> { panic!("for the test") };
        assert_eq!(turns.done(&threads, &server, 1, fails).await, Err(JobDropped));
        let works = |jobs: Jobs| jobs.iter().map(|(_, job)| *job).collect();
        assert_eq!(turns.done(&threads, &server, 1, works).await, Ok(1));
    }
}

#[cfg(test)]
mod blocking_tests {
    use std::sync::mpsc;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn abandoned_work_is_awaited_at_shutdown() {
        let works = BlockingWork::default();
        let (go, wait) = mpsc::channel::<()>();
        let mut asked = Box::pin(works.run(move || wait.recv()));
        assert!(futures_util::poll!(&mut asked).is_pending());
        drop(asked);
        let mut ended = Box::pin(works.ended());
        assert_eq!(futures_util::poll!(&mut ended), Poll::Pending);
        go.send(()).unwrap();
        ended.await;
        assert_eq!(works.run(|| 7).await, Ok(7));
        assert_eq!(works.run(|| -> u8 { panic!("for the test") }).await, Err(Panicked));
    }
}
