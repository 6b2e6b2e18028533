//! What one worker thread has for its calls: warm connections, buffers, and the tasks that outlive a reply.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::busy_poll::BusyPoll;
use super::reply::Running;
use super::session_facts::RememberedFacts;
use super::settings::{CurrentSettings, SettingsReader};
use super::shutdown::Ending;
use super::state::Proxy;
use super::validation_pool::is_large;
use crate::identity::{CredentialsReader, CurrentCredentials};
use crate::schema::compile::Schema;
use crate::schema::judge::{JudgeScratch, Judgement};
use crate::telemetry::{Tally, TraceIds};
use crate::upstream::http::Pool;

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
    settings: SettingsReader,
    credentials: CredentialsReader,
    /// The facts of clients without a session, as far as it was asked by them.
    pub(super) facts: RememberedFacts,
    /// Where its calls are counted.
    pub(crate) tally: Tally,
    /// Names its traces and spans.
    pub(super) trace_ids: TraceIds,
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
            settings: proxy.settings.reader(),
            credentials: proxy.identity.reader(),
            facts: RememberedFacts::default(),
            trace_ids: TraceIds::default(),
            proxy,
            pool: Rc::new(Pool::new()),
            scratch: RefCell::new(JudgeScratch::new()),
            busy_poll: BusyPoll::default(),
            ending: Ending::default(),
            deferred: Cell::new(0),
            settled: Notify::new(),
        }
    }

    /// The settings of this moment.
    #[must_use]
    pub fn settings(&self) -> CurrentSettings {
        self.settings.current()
    }

    /// What requests prove themselves by at this moment.
    #[must_use]
    pub fn credentials(&self) -> CurrentCredentials {
        self.credentials.current()
    }

    /// Does what is left of a call after its reply has gone.
    pub fn defer(self: &Rc<Self>, running: Running) {
        let Some(rest) = running.rest() else { return };
        self.keep(async move {
            // How the reply ended is on record; nobody is left to be told.
            let _ = rest.await;
        });
    }

    /// Runs `rest` to its end, also if the client goes away meanwhile.
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

    /// Validates `document` here; `None` where that takes too long.
    pub(super) fn judge_quickly(&self, schema: &Schema, document: &[Bytes]) -> Option<Judgement> {
        if is_large(document) {
            return None;
        }
        schema.judge_quickly(document, &mut self.scratch.borrow_mut())
    }

    /// Validates `document` beside the workers; `None` when the validation itself failed.
    pub(super) async fn judge(
        &self,
        schema: &Arc<Schema>,
        document: Vec<Bytes>,
    ) -> Option<Judgement> {
        self.proxy.validation_pool.judge(Arc::clone(schema), document).await
    }
}
