//! State of a worker thread, shared state of all workers, busy polling, and blocking pools.
//!
//! [`BusyPoll`] keeps a worker's thread polling briefly after each event of a call, yielding to other threads. Waking
//! a sleeping thread costs both peers more CPU than a call does, which dominates sequential calls. If many calls are
//! open, the thread sleeps, since the next event is near.
//!
//! [`ValidationPool`] moves validations that take longer than about a millisecond off the worker; large documents
//! have permits of their own. [`ResultPool`] reads and writes kept results on a bounded number of threads, since a
//! disk may be slow.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mcpproxy_activity::Activity;
use mcpproxy_catalog::Catalog;
use mcpproxy_catalog::embeddings::QueryEmbedder;
use mcpproxy_policy::approvals::ApprovalQueue;
use mcpproxy_policy::identity::{CredentialsReader, CurrentCredentials, Identity};
use mcpproxy_policy::{Principal, StateAccounts};
use mcpproxy_runtime::keyed_counts::KeyedCounts;
use mcpproxy_schema::compile::Schema;
use mcpproxy_schema::judge::{JudgeScratch, Judgment};
use mcpproxy_upstream::http::Pool;
use mcpproxy_upstream::supervisor::Supervisor;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use super::builtin::overview::OverviewCache;
use super::client::DroppedMembers;
use super::held::calls::HeldCalls;
use super::log_routing::LogRouting;
use super::memory_budget::RequestBodies;
use super::passthrough::list_cache::ListCache;
use super::reply::Running;
use super::session_facts::{PrincipalFacts, RememberedFacts};
use super::settings::{CurrentSettings, SettingsReader, SettingsSwap};
use super::shutdown::Ending;
use super::tasks::known::KnownTasks;
use super::tasks::pending_cancellations::PendingCancellations;
use crate::node_directory::NodeDirectory;
use crate::results::ResultStore;
use crate::telemetry::{Calls, SpanQueue, Tally, TraceIds};

/// State of one worker thread.
#[derive(Debug)]
pub struct Worker {
    pub proxy: Arc<Proxy>,
    /// Warm connections to HTTP upstreams.
    pub pool: Rc<Pool>,
    /// Buffers of the validator, reused from call to call.
    pub scratch: RefCell<JudgeScratch>,
    /// Keeps the thread awake between calls.
    pub busy_poll: BusyPoll,
    /// Cut-off signal.
    pub ending: Ending,
    /// Set once no more requests arrive. From then on, no request is repeated.
    pub(super) draining: Ending,
    /// Pending cancellations of tasks that their clients do not receive.
    pub(super) cancellations: Rc<PendingCancellations>,
    settings: SettingsReader,
    credentials: CredentialsReader,
    /// Cache of the principals' facts cells.
    pub(super) facts: RememberedFacts,
    /// Call counters.
    pub tally: Tally,
    /// Generator of trace and span ids.
    pub(super) trace_ids: TraceIds,
    /// Calls whose reply was sent and whose record is pending.
    deferred: Cell<usize>,
    settled: Notify,
}

/// Maximum number of calls that one worker continues without a connection.
const MAX_DEFERRED: usize = 1024;

/// Decrements the count of deferred calls on drop.
struct Deferred(Rc<Worker>);

impl Drop for Deferred {
    fn drop(&mut self) {
        self.0.deferred.set(self.0.deferred.get() - 1);
        self.0.settled.notify_waiters();
    }
}

impl Worker {
    pub fn new(proxy: Arc<Proxy>) -> Self {
        Self {
            tally: proxy.calls.tally(),
            settings: proxy.settings.reader(),
            credentials: proxy.identity.reader(),
            facts: RememberedFacts::default(),
            trace_ids: TraceIds::default(),
            proxy,
            pool: Rc::new(Pool::new()),
            scratch: RefCell::new(JudgeScratch::new()),
            busy_poll: BusyPoll::default(),
            ending: Ending::default(),
            draining: Ending::default(),
            cancellations: Rc::default(),
            deferred: Cell::new(0),
            settled: Notify::new(),
        }
    }

    pub fn settings(&self) -> CurrentSettings {
        self.settings.current()
    }

    /// The credentials in force.
    pub fn credentials(&self) -> CurrentCredentials {
        self.credentials.current()
    }

    /// Completes the work of a call after its reply was sent.
    pub fn defer(self: &Rc<Self>, running: Running) {
        let Some(rest) = running.rest() else { return };
        self.keep(async move {
            // The outcome is ignored: the end of the reply is already recorded.
            let _ = rest.await;
        });
    }

    /// Runs `rest` to its end, even if the client disconnects.
    pub(crate) fn keep(
        self: &Rc<Self>,
        rest: impl Future<Output = ()> + 'static,
    ) -> JoinHandle<()> {
        self.deferred.set(self.deferred.get() + 1);
        let counted = Deferred(Rc::clone(self));
        tokio::task::spawn_local(async move {
            let _counted = counted;
            rest.await;
        })
    }

    /// Continues a call whose connection broke; false, without continuing it, if `MAX_DEFERRED` are pending.
    pub fn adopt(self: &Rc<Self>, call: impl Future<Output = ()> + 'static) -> bool {
        if !self.may_defer() {
            return false;
        }
        self.deferred.set(self.deferred.get() + 1);
        let counted = Deferred(Rc::clone(self));
        tokio::task::spawn_local(self.ending.clone().attend(async move {
            let _counted = counted;
            call.await;
        }));
        true
    }

    /// Whether fewer than `MAX_DEFERRED` calls are pending.
    pub(crate) fn may_defer(&self) -> bool {
        self.deferred.get() < MAX_DEFERRED
    }

    /// Waits until no deferred call is pending, after the last request.
    pub async fn settled(&self) {
        self.draining.cut_off();
        while self.deferred.get() > 0 {
            self.settled.notified().await;
        }
    }

    /// Validates `document` on this thread; `None` if that would take too long.
    pub(super) fn judge_quickly(&self, schema: &Schema, document: &[Bytes]) -> Option<Judgment> {
        if is_large(document) {
            return None;
        }
        schema.judge_quickly(document, &mut self.scratch.borrow_mut())
    }

    /// Validates `document` in the pool; `None` if the validation itself failed.
    pub(super) async fn judge(
        &self,
        schema: &Arc<Schema>,
        document: Vec<Bytes>,
    ) -> Option<Judgment> {
        self.proxy.validation_pool.judge(Arc::clone(schema), document).await
    }
}

/// State shared by all workers. No part is locked for the duration of a call.
#[derive(Debug)]
pub struct Proxy {
    pub catalog: Arc<Catalog>,
    pub upstreams: Supervisor,
    /// Cached lists of the upstreams.
    pub list_cache: ListCache,
    /// Embeddings of queries, if configured.
    pub meaning: Arc<QueryEmbedder>,
    /// Overview of the servers for agents.
    pub overview: OverviewCache,
    /// Routes log messages outside of calls.
    pub log_routing: LogRouting,
    pub approvals: Arc<ApprovalQueue>,
    /// Calls that wait for the input of their clients.
    pub held_calls: Arc<HeldCalls>,
    /// Tasks created by legacy servers.
    pub known_tasks: KnownTasks,
    pub activity: Activity,
    /// Nodes of the fleet; inert without one.
    pub nodes: NodeDirectory,
    /// Settings; requests read them through their worker.
    pub settings: SettingsSwap,
    /// Principals and tokens; requests read credentials through their worker.
    pub identity: Arc<Identity>,
    pub principal_facts: Arc<PrincipalFacts>,
    /// Memory accounts of principals.
    pub state_accounts: StateAccounts,
    /// Followed tasks of principals.
    pub followed_tasks: Arc<KeyedCounts<Principal>>,
    /// Log-once filter for dropped members outside sessions.
    pub dropped_members: Arc<DroppedMembers>,
    /// Validates large documents off the workers.
    pub validation_pool: ValidationPool,
    /// Results that were too long for an agent.
    pub results: Arc<ResultStore>,
    /// Reads and writes kept results off the workers.
    pub result_pool: ResultPool,
    /// Budget for large request bodies.
    pub bodies: RequestBodies,
    pub calls: Calls,
    pub spans: SpanQueue,
    /// Random key of this process for hashing untrusted keys.
    pub hash_key: u64,
}

/// Busy-poll duration. It is longer than a local server takes to answer, and than an agent takes to send a request
/// that is ready. A longer wait does not pay off.
const LINGER: Duration = Duration::from_micros(50);
/// Maximum number of open calls for busy polling.
const FEW_CALLS: usize = 2;

/// Busy-poll state of one worker.
#[derive(Debug, Default)]
pub struct BusyPoll {
    open: Cell<usize>,
    /// Incremented at each start and end of a call.
    beats: Cell<u64>,
    /// False while the thread may sleep.
    awake: Cell<bool>,
    roused: Notify,
}

/// A call in progress, until dropped.
#[derive(Debug)]
pub struct OpenCall<'a>(&'a BusyPoll);

impl BusyPoll {
    /// Registers a call until the returned value is dropped.
    pub fn open(&self) -> OpenCall<'_> {
        self.open.set(self.open.get() + 1);
        self.beat();
        OpenCall(self)
    }

    /// Busy-polls for `LINGER` after each start and end of a call while few calls are open. Never returns; needs a task
    /// of its own.
    pub async fn linger(&self) {
        loop {
            self.roused.notified().await;
            let mut since = Instant::now();
            while self.has_few() && since.elapsed() < LINGER {
                let before = self.beats.get();
                thread::yield_now();
                // Lets the runtime process pending events.
                tokio::task::yield_now().await;
                if self.beats.get() != before {
                    since = Instant::now();
                }
            }
            self.awake.set(false);
        }
    }

    fn beat(&self) {
        self.beats.set(self.beats.get().wrapping_add(1));
        if self.has_few() && !self.awake.replace(true) {
            self.roused.notify_one();
        }
    }

    fn has_few(&self) -> bool {
        self.open.get() <= FEW_CALLS
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.beat();
    }
}

/// Minimum size of a document that is always validated off the worker's thread.
const LARGE_DOCUMENT_BYTES: usize = 64 * 1024;

/// Bounded pool for validations.
#[derive(Debug)]
pub struct ValidationPool {
    runtime: tokio::runtime::Handle,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    scratches: Arc<Mutex<Vec<JudgeScratch>>>,
    disagreements: AtomicU64,
}

impl ValidationPool {
    /// Validates at most `seats` small documents concurrently, and as many large ones, on `runtime`'s blocking
    /// threads.
    pub fn new(runtime: tokio::runtime::Handle, seats: usize) -> Self {
        Self {
            runtime,
            small: Arc::new(Semaphore::new(seats)),
            large: Arc::new(Semaphore::new(seats)),
            scratches: Arc::default(),
            disagreements: 0.into(),
        }
    }

    /// Number of disagreements between the two engines.
    pub fn disagreements(&self) -> u64 {
        self.disagreements.load(Ordering::Relaxed)
    }

    pub(super) fn count_disagreement(&self) {
        self.disagreements.fetch_add(1, Ordering::Relaxed);
    }

    /// Validates `document` on another thread; `None` if the validator itself failed.
    pub(super) async fn judge(
        &self,
        schema: Arc<Schema>,
        document: Vec<Bytes>,
    ) -> Option<Judgment> {
        let large = is_large(&document);
        self.run(large, move |scratch| schema.judge(&document, scratch)).await
    }

    /// Runs `look` on another thread with a permit for `large` or small documents; `None` if it panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        large: bool,
        look: impl FnOnce(&mut JudgeScratch) -> T + Send + 'static,
    ) -> Option<T> {
        let seats = if large { &self.large } else { &self.small };
        // The semaphores are never closed, so the acquisition succeeds.
        let seat = Arc::clone(seats).acquire_owned().await.ok();
        let scratches = Arc::clone(&self.scratches);
        let judged = self.runtime.spawn_blocking(move || {
            // The permit is held until the work is done, even if the caller was dropped.
            let _seat = seat;
            let taken = scratches.lock().pop();
            let mut scratch = taken.unwrap_or_default();
            let found = look(&mut scratch);
            scratches.lock().push(scratch);
            found
        });
        judged.await.ok()
    }
}

/// Whether reading `document` takes too long for the worker's thread.
pub(super) fn is_large(document: &[Bytes]) -> bool {
    document.iter().map(Bytes::len).sum::<usize>() > LARGE_DOCUMENT_BYTES
}

/// Maximum number of files read or written concurrently.
const SEATS: usize = 4;

/// Pool for work on kept results. The memory budget of its callers bounds the queue.
#[derive(Debug)]
pub struct ResultPool {
    runtime: Handle,
    seats: Arc<Semaphore>,
}

impl ResultPool {
    pub fn new(runtime: Handle) -> Self {
        Self { runtime, seats: Arc::new(Semaphore::new(SEATS)) }
    }

    /// Runs `work` to its end on another thread, even if its caller is dropped; `None` if it panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        // The semaphore is never closed, so the acquisition succeeds.
        let seat = Arc::clone(&self.seats).acquire_owned().await.ok();
        let done = self.runtime.spawn_blocking(move || {
            let _seat = seat;
            work()
        });
        done.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;

    /// Polls until the thread may sleep, and returns the time it took.
    fn settle(busy_poll: &BusyPoll, mut lingering: Pin<&mut impl Future<Output = ()>>) -> Duration {
        let began = Instant::now();
        loop {
            assert!(lingering.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            if !busy_poll.awake.get() {
                return began.elapsed();
            }
            assert!(began.elapsed() < Duration::from_secs(10), "it never sleeps");
        }
    }

    #[test]
    fn busy_poll_is_awake_after_each_event_and_sleeps_again() {
        let busy_poll = BusyPoll::default();
        let mut lingering = std::pin::pin!(busy_poll.linger());
        settle(&busy_poll, lingering.as_mut());
        for _ in 0..2 {
            let open = busy_poll.open();
            assert!(busy_poll.awake.get(), "a call began");
            assert!(settle(&busy_poll, lingering.as_mut()) >= LINGER);
            drop(open);
            assert!(busy_poll.awake.get(), "it ended");
            assert!(settle(&busy_poll, lingering.as_mut()) >= LINGER);
        }
    }

    #[test]
    fn busy_poll_sleeps_with_many_open_calls() {
        let busy_poll = BusyPoll::default();
        let mut lingering = std::pin::pin!(busy_poll.linger());
        let mut open: Vec<_> = (0..=FEW_CALLS).map(|_| busy_poll.open()).collect();
        settle(&busy_poll, lingering.as_mut());
        open.push(busy_poll.open());
        assert!(!busy_poll.awake.get());
        open.truncate(FEW_CALLS);
        assert!(busy_poll.awake.get(), "few are left");
    }
}
