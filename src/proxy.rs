//! The proxy: what happens to a request between a face and an upstream.

pub mod builtin;
pub mod busy_poll;
pub mod call;
mod call_record;
pub mod client;
pub mod direct;
pub mod dispatch;
pub mod dropped_members;
mod exchange;
pub mod log_routing;
pub mod memory_budget;
pub mod params;
pub mod passthrough;
mod relay;
pub mod reply;
pub mod retrieve;
pub mod shutdown;
pub mod validation_pool;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::activity::Activity;
use crate::catalog::snapshot::Catalog;
use crate::intent;
use crate::mcp::revisions::Offered;
use crate::proxy::busy_poll::BusyPoll;
use crate::proxy::reply::Running;
use crate::proxy::shutdown::Ending;
use crate::schema::judge::JudgeScratch;
use crate::telemetry::{Calls, Tally};
use crate::upstream::http::Pool;
use crate::upstream::supervisor::Supervisor;

/// What all calls share. Nothing in it is locked for the length of a call.
#[derive(Debug)]
pub struct Proxy {
    /// Which tools exist.
    pub catalog: Arc<Catalog>,
    /// The servers behind them.
    pub upstreams: Supervisor,
    /// What they list beside tools.
    pub list_cache: passthrough::list_cache::ListCache,
    /// Who uses them.
    pub log_routing: log_routing::LogRouting,
    /// Where every outcome goes.
    pub activity: Activity,
    /// Config section `intent_declaration`.
    pub intent: intent::Settings,
    /// `tools_limit`: results of `retrieve_tools` without a limit of their own.
    pub tools_limit: usize,
    /// `offered_era`: what a client is told that asks which revisions there are.
    pub offered_era: Offered,
    /// Bytes kept of a call's arguments (`activity.max_payload_bytes`).
    pub max_payload_bytes: usize,
    /// Bytes kept of an answer (`activity.max_response_bytes`).
    pub max_response_bytes: usize,
    /// What strict holds, over all calls.
    pub held: memory_budget::MemoryBudget,
    /// What warn has forwarded and not judged yet.
    pub judging_budget: memory_budget::MemoryBudget,
    /// What was warned of that stays behind.
    pub dropped_members: Arc<dropped_members::DroppedMembers>,
    /// Where large documents are judged, so that they starve no other call.
    pub validation_pool: validation_pool::ValidationPool,
    /// What became of calls, in numbers.
    pub calls: Calls,
    /// Random per process: hostile keys are hashed under it.
    pub hash_key: u64,
}

/// What one worker thread adds: connections and buffers that no other thread touches.
#[derive(Debug)]
pub struct Worker {
    /// The shared part.
    pub proxy: Arc<Proxy>,
    /// Warm connections to HTTP upstreams.
    pub pool: Rc<Pool>,
    /// The judge's buffers, reused from call to call.
    pub scratch: RefCell<JudgeScratch>,
    /// What keeps the thread awake between two calls.
    pub busy_poll: BusyPoll,
    /// Whether its calls are cut off.
    pub ending: Ending,
    /// Where its calls are counted.
    pub(crate) tally: Tally,
    /// Calls whose reply has gone and whose record has not.
    deferred: Cell<usize>,
    settled: Notify,
}

/// Calls without a connection that one worker goes on with.
const MAX_DEFERRED: usize = 1024;

/// Counts a deferred rest down when it ends, however it ends.
struct Deferred(Rc<Worker>);

impl Drop for Deferred {
    fn drop(&mut self) {
        self.0.deferred.set(self.0.deferred.get() - 1);
        self.0.settled.notify_waiters();
    }
}

impl Worker {
    /// A worker with cold buffers.
    #[must_use]
    pub fn new(proxy: Arc<Proxy>) -> Self {
        Self {
            tally: proxy.calls.tally(),
            proxy,
            pool: Rc::new(Pool::new()),
            scratch: RefCell::new(JudgeScratch::new()),
            busy_poll: BusyPoll::default(),
            ending: Ending::default(),
            deferred: Cell::new(0),
            settled: Notify::new(),
        }
    }

    /// Does what is left of a call after its reply has gone.
    pub fn defer(self: &Rc<Self>, running: Running) {
        let Some(rest) = running.rest() else { return };
        self.keep(async move {
            // How the reply ended is on record; nobody is left to be told.
            let _ = rest.await;
        });
    }

    /// Sees to it that `rest` is done, whoever goes away meanwhile.
    pub fn keep(self: &Rc<Self>, rest: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
        self.deferred.set(self.deferred.get() + 1);
        let counted = Deferred(Rc::clone(self));
        tokio::task::spawn_local(async move {
            let _counted = counted;
            rest.await;
        })
    }

    /// Goes on with a call whose connection broke; false, and nothing is done, while
    /// `MAX_DEFERRED` are left to do.
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

    /// False while `MAX_DEFERRED` calls are left to do.
    #[must_use]
    pub fn may_defer(&self) -> bool {
        self.deferred.get() < MAX_DEFERRED
    }

    /// Waits until nothing deferred is left.
    pub async fn settled(&self) {
        while self.deferred.get() > 0 {
            self.settled.notified().await;
        }
    }
}
