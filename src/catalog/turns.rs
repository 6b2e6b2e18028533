//! Jobs that block, one for each server, done together by whoever has the turn.
//!
//! At most one thread is at it. What comes meanwhile waits and is done in one go after that, however
//! much it is: many servers at once cost about as much as a few. A server's newer job takes the place
//! of its older one, so that no more wait than there are servers. What the jobs are is not known
//! here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, oneshot};

use super::blocking::BlockingWork;

/// The jobs that wait, and whose turn it is.
pub(super) struct Turns<J, R> {
    waiting: Mutex<Waiting<J, R>>,
    turn: Arc<Semaphore>,
}

type Waiting<J, R> = BTreeMap<Arc<str>, (J, oneshot::Sender<R>)>;

/// A job that was not done: a newer one took its place, or doing it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Undone;

impl<J, R> Default for Turns<J, R> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl<J, R> fmt::Debug for Turns<J, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turns({} waiting)", self.waiting().len())
    }
}

impl<J, R> Turns<J, R> {
    fn waiting(&self) -> MutexGuard<'_, Waiting<J, R>> {
        self.waiting.lock()
    }

    /// Does what waits until nothing does. `work` has an outcome for each job, in their order.
    fn work_off(&self, work: impl Fn(Vec<(Arc<str>, J)>) -> Vec<R>) {
        loop {
            let jobs = std::mem::take(&mut *self.waiting());
            if jobs.is_empty() {
                return;
            }
            let (jobs, asked): (Vec<_>, Vec<_>) =
                jobs.into_iter().map(|(server, (job, asked))| ((server, job), asked)).unzip();
            for (asked, outcome) in asked.into_iter().zip(work(jobs)) {
                // Whoever asked may have gone.
                let _ = asked.send(outcome);
            }
        }
    }
}

impl<J: Send + 'static, R: Send + 'static> Turns<J, R> {
    /// Has a job done on one of `threads`, in this turn or another's; what came of it. If this is dropped, the job is
    /// still done, with the next ones at the latest.
    ///
    /// # Errors
    /// [`Undone`].
    pub(super) async fn done(
        self: &Arc<Self>,
        threads: &BlockingWork,
        server: &Arc<str>,
        job: J,
        work: impl Fn(Vec<(Arc<str>, J)>) -> Vec<R> + Send + 'static,
    ) -> Result<R, Undone> {
        let (asked, mut outcome) = oneshot::channel();
        self.waiting().insert(Arc::clone(server), (job, asked));
        tokio::select! {
            biased;
            outcome = &mut outcome => return outcome.map_err(|_| Undone),
            turn = Arc::clone(&self.turn).acquire_owned() => {
                let turns = Arc::clone(self);
                // A job whose work panics has no outcome.
                threads.start(move || {
                    let _turn = turn;
                    turns.work_off(work);
                });
            }
        }
        outcome.await.map_err(|_| Undone)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    type Jobs = Vec<(Arc<str>, u32)>;

    #[tokio::test]
    async fn what_comes_while_another_has_the_turn_is_done_in_one_go() {
        let turns = Arc::new(Turns::<u32, u32>::default());
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
        // A third turn would wait for ever.
        drop(go);
        assert_eq!(first.await.unwrap(), Ok(2));
        assert_eq!(older.await.unwrap(), Err(Undone), "a newer one took its place");
        assert_eq!((newer.await.unwrap(), other.await.unwrap()), (Ok(6), Ok(8)));
        assert_eq!(began.try_iter().collect::<Vec<_>>(), [2]);
    }

    #[tokio::test]
    async fn a_job_that_panics_is_undone_and_the_next_is_done() {
        let turns = Arc::new(Turns::<u32, u32>::default());
        let threads = Arc::new(BlockingWork::default());
        let server = Arc::from("a");
        let fails = |_: Jobs| -> Vec<u32> { panic!("for the test") };
        assert_eq!(turns.done(&threads, &server, 1, fails).await, Err(Undone));
        let works = |jobs: Jobs| jobs.iter().map(|(_, job)| *job).collect();
        assert_eq!(turns.done(&threads, &server, 1, works).await, Ok(1));
    }
}
