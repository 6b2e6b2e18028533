//! Handle to one server: its identity, state, limits and lifetime.
//!
//! [`Upstream`] is passive and shared by all workers. Its task ([`crate::server_task`]) connects and updates its
//! state; [`crate::call`] sends calls.
//!
//! A retired server (removed from or replaced in the config) finishes its calls, counted by [`ActiveCalls`]:
//!
//! ```text
//! active ── retire() ──▶ retiring ── last call ended, or drain timeout ──▶ closed
//!   calls enter            calls enter                                     calls are rejected
//! ```
//!
//! A call costs two atomic operations on a word that only calls of its server access.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::backoff::ConnectRequests;
use crate::endpoint::OwnTls;
use crate::error::Undelivered;
use crate::followed_tasks::{TaskFollower, TooManyFollowed};
use crate::login_session::{LoginSession, LoginStanding};
use crate::notifications::{Changes, LogDelivery, ServerEvents, SubscriptionAnswer, Subscriptions};
use crate::second_connection::{SecondConnection, SecondState};
use crate::server_log::ServerLog;
use crate::state::{
    Control, Introduced, Phase, SECOND, ServerState, StateCell, Status, Transport, UpstreamState,
    Waiting,
};
use mcpproxy_catalog::ListNotes;
use mcpproxy_policy::Principal;
use mcpproxy_policy::tool::ServerId;
use mcpproxy_protocol::mcp::capabilities::ServerCapabilities;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;

/// Maximum wait to enqueue a client's response to a server request.
pub const RESPOND_WAIT: Duration = Duration::from_secs(5);

/// Upper bound of `call_timeout`: a longer time cannot be added to a clock.
const MAX_CALL_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Handle to one server, shared by all workers.
pub struct Upstream {
    pub(super) name: Arc<str>,
    pub(super) server_log: Arc<ServerLog>,
    pub(super) id: ServerId,
    /// Unique number, even among earlier servers with the same name.
    pub(super) key: u64,
    pub(super) transport: Transport,
    pub(super) call_timeout: CallTimeout,
    pub(super) state: StateCell,
    /// TLS settings from the server's own `tls` section.
    pub(super) own_tls: Option<Arc<OwnTls>>,
    pub(super) connect_requests: ConnectRequests,
    pub(super) control: mpsc::Sender<Control>,
    /// `None` if the config sets the server's protocol family, or if the server is disabled.
    pub(super) second: Option<Arc<SecondConnection>>,
    pub(super) server_events: Arc<ServerEvents>,
    /// Resources whose changes the server was asked to report.
    pub(super) subscriptions: Subscriptions,
    /// Active calls, during which the server must not be ended.
    pub(super) active_calls: ActiveCalls,
    /// Set when the server must end.
    pub(super) stop: watch::Sender<Option<ServerStop>>,
    pub(super) life: watch::Sender<Life>,
    pub(super) login: LoginSession,
    /// See [`Upstream::restarts`].
    pub(super) restarts: AtomicU64,
    pub(super) list_faults: ListFaults,
}

/// Incomplete or outdated lists of a server, by method, with the reason.
#[derive(Debug, Default)]
pub(super) struct ListFaults(Mutex<BTreeMap<&'static str, Arc<str>>>);

impl ListFaults {
    /// Sets or clears the fault of a list; returns whether a fault appeared or disappeared.
    pub(super) fn set(&self, method: &'static str, fault: Option<String>) -> bool {
        let mut faults = self.0.lock();
        match fault {
            Some(fault) => faults.insert(method, fault.into()).is_none(),
            None => faults.remove(method).is_some(),
        }
    }

    /// Clears all faults, for a new connection.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    fn all(&self) -> Vec<Arc<str>> {
        self.0.lock().values().cloned().collect()
    }
}

/// Lifecycle stage of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    #[default]
    Active,
    /// Removed from the config, or replaced.
    Retired,
    /// The server's task has ended.
    Over,
}

/// Request to end a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerStop {
    /// Time by which the server must have ended.
    pub(super) deadline: tokio::time::Instant,
    pub(super) why: WhyStopped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhyStopped {
    ProxyEnds,
    /// The server is retired, and its calls have ended or timed out.
    Retired,
}

impl WhyStopped {
    /// Reason in the state of an ended server.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::ProxyEnds => "the proxy is shutting down",
            Self::Retired => "the config or its TLS files have changed",
        }
    }

    /// Reason in the error of calls that outlast the server.
    pub(super) const fn cut_off(self) -> &'static str {
        match self {
            Self::ProxyEnds => "mcpproxy is shutting down",
            Self::Retired => {
                "the server was removed from the config, or its entry or TLS files have \
                 changed, and the call did not end within call_timeout"
            }
        }
    }
}

/// `call_timeout` of one server; a config reload may change it.
#[derive(Debug)]
pub(super) struct CallTimeout(AtomicU64);

impl CallTimeout {
    pub(super) fn new(limit: Duration) -> Self {
        let timeout = Self(AtomicU64::new(0));
        timeout.set(limit);
        timeout
    }

    pub(super) fn set(&self, limit: Duration) {
        let nanos = limit.min(MAX_CALL_TIMEOUT).as_nanos();
        self.0.store(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Upstream {
    /// Name in the config.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Maximum time from a call to the first byte of its response.
    pub fn call_timeout(&self) -> Duration {
        self.call_timeout.get()
    }

    pub fn key(&self) -> u64 {
        self.key
    }

    /// Whether the server was removed from the config or replaced; it still finishes its calls.
    pub(crate) fn is_retired(&self) -> bool {
        *self.life.borrow() != Life::Active
    }

    /// Waits until the server is retired.
    pub async fn retired(&self) {
        // The sender exists as long as `self`.
        let _ = self.life.subscribe().wait_for(|life| *life != Life::Active).await;
    }

    pub fn login(&self) -> LoginStanding {
        self.login.standing()
    }

    /// Waits until a running login must be canceled; returns the reason.
    pub(super) async fn login_canceled(&self) -> &'static str {
        let mut stopping = self.stop.subscribe();
        tokio::select! {
            () = self.retired() => "its config entry has changed",
            _ = stopping.wait_for(Option::is_some) => "the proxy is shutting down",
        }
    }

    /// Whether the server is disabled in the config.
    pub fn is_disabled(&self) -> bool {
        self.state.load().status() == Status::Disabled
    }

    /// Retires the server: only calls already on their way may still enter.
    pub(super) fn retire(&self) {
        self.advance(Life::Retired);
    }

    /// Marks the server's task as ended.
    pub(super) fn ended(&self) {
        self.advance(Life::Over);
    }

    /// Ends the server with the proxy by `deadline`. Replaces an earlier deadline, but not an earlier reason.
    pub(super) fn end_with_proxy(&self, deadline: tokio::time::Instant) {
        self.stop.send_modify(|stop| {
            let why = stop.map_or(WhyStopped::ProxyEnds, |stop| stop.why);
            *stop = Some(ServerStop { deadline, why });
        });
    }

    /// Ends the retired server by `deadline`, unless it is already ending.
    pub(super) fn end_retired(&self, deadline: tokio::time::Instant) {
        self.stop.send_if_modified(|stop| {
            let first = stop.is_none();
            stop.get_or_insert(ServerStop { deadline, why: WhyStopped::Retired });
            first
        });
    }

    /// Waits until the server's task has ended.
    pub(super) async fn over(&self) {
        // The sender exists as long as `self`.
        let _ = self.life.subscribe().wait_for(|life| *life == Life::Over).await;
    }

    fn advance(&self, now: Life) {
        self.life.send_if_modified(|life| {
            let later = *life < now;
            *life = now.max(*life);
            later
        });
    }

    /// Number of restarts and reconnects since the proxy started, for any cause: loss, failure, operator, token,
    /// config. Includes the restarts of its predecessors with the same name.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(super) fn count_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Continues the restart count of the server that this one replaces.
    pub(super) fn continue_count_of(&self, earlier: &Self) {
        let both_run = !self.is_disabled() && !earlier.is_disabled();
        self.restarts.fetch_add(earlier.restarts() + u64::from(both_run), Ordering::Relaxed);
    }

    /// Refreshes the tools if the server is connected, since other settings may apply to them.
    pub fn refresh_tools(&self) {
        self.server_events.tools.notify_one();
    }

    /// Id of the server, which depends only on its name.
    pub fn id(&self) -> ServerId {
        self.id
    }

    pub fn state(&self) -> ServerState {
        let mut shown = self.state.load().shown(&self.name, self.transport);
        let tls = self.own_tls.as_ref().and_then(|tls| tls.problem());
        let mut reasons: Vec<Arc<str>> = tls.map(Arc::from).into_iter().collect();
        if shown.status == Status::Connected {
            reasons.extend(self.list_faults.all());
        }
        if !reasons.is_empty() {
            // The reason from the state comes last, because it may end with the login hint.
            reasons.extend(Some(shown.reason).filter(|reason| !reason.is_empty()));
            shown.reason = reasons.join("; ").into();
        }
        shown
    }

    /// Sets or clears the fault of a list other than tools; shown with the server's state while it is connected.
    pub fn report_list(&self, method: &'static str, fault: Option<String>) {
        self.list_faults.set(method, fault);
    }

    /// Whether the server was discovered or has failed once.
    pub fn is_settled(&self) -> bool {
        self.state.load().is_settled()
    }

    /// Whether the server has a connection with a known protocol family.
    pub fn is_connected(&self) -> bool {
        self.state.load().live().is_some()
    }

    /// Waits until the server was discovered or has failed once.
    pub async fn settled(&self) {
        self.state.wait_for(|state| state.is_settled().then_some(())).await;
    }

    /// Excerpt of the server's output: one line, printable, bounded, with the config's secrets redacted.
    pub fn quote(&self, words: &[u8]) -> Arc<str> {
        self.server_log.quote(words)
    }

    /// Takes a token from the server's log budget. If there is none, the line is counted and the count reported later.
    pub fn may_log(&self) -> bool {
        self.server_log.may_log()
    }

    /// Protocol family of the current or last connection.
    pub fn family(&self) -> ProtocolFamily {
        self.state.load().about().family
    }

    /// Capabilities of the current or last connection.
    pub fn offers(&self) -> ServerCapabilities {
        self.state.load().about().offers
    }

    /// Whether the server reports resource changes to clients of this family; to legacy clients also over its second
    /// connection, as far as [this is known](Self::learn_legacy_updates).
    pub fn reports_updates_to(&self, family: ProtocolFamily) -> bool {
        let second = self.second.as_ref().filter(|_| family == ProtocolFamily::Legacy);
        self.offers().resource_updates
            || second.is_some_and(|second| second.legacy_updates() == Some(true))
    }

    /// Instructions and capabilities of the server on the current or last connection whose tools were read; empty
    /// before the first one.
    pub fn introduced(&self) -> Arc<Introduced> {
        Arc::clone(self.state.load().introduced())
    }

    /// Tools omitted from the last list, with the reason.
    pub fn list_notes(&self) -> ListNotes {
        self.server_log.list_notes()
    }

    /// Change counters of the server's resource and prompt lists.
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.server_events.changes.subscribe()
    }

    /// URIs of changed resources that the server was asked to report.
    pub fn updates(&self) -> broadcast::Receiver<Arc<str>> {
        self.server_events.updates.subscribe()
    }

    /// The server's ids of changed tasks.
    pub fn changed_tasks(&self) -> broadcast::Receiver<Arc<str>> {
        self.server_events.changed_tasks.subscribe()
    }

    /// Installs the consumer of log messages outside of calls. Must be called once at startup; the consumer must not
    /// block.
    pub fn log_to(&self, reader: impl Fn(&Bytes) -> LogDelivery + Send + Sync + 'static) {
        self.server_events.consume_log(reader);
    }

    /// State of the second connection; `None` while it does not exist.
    pub fn second(&self) -> Option<SecondState> {
        self.second.as_ref().and_then(|second| second.state())
    }

    /// Second connection, if the generation belongs to it.
    pub(super) fn second_of(&self, generation: u64) -> Option<&Arc<SecondConnection>> {
        self.second.as_ref().filter(|_| generation & SECOND != 0)
    }

    /// Queue of control messages about a connection of this generation.
    pub(super) fn control_of(&self, generation: u64) -> &mpsc::Sender<Control> {
        self.second_of(generation).map_or(&self.control, |second| &second.control)
    }

    /// Whether the connection of this generation is the current one.
    pub(super) fn is_live(&self, generation: u64) -> bool {
        let live = match self.second_of(generation) {
            Some(second) => second.live(),
            None => self.state.live(),
        };
        live.is_some_and(|live| live.generation == generation)
    }

    /// Sends a client's response back to the server. `generation` is that of the `Answer` that contained the request,
    /// `id` is the request's raw id, and `outcome` is the raw member `"result":…` or `"error":…`. Waits at most
    /// [`RESPOND_WAIT`] for space in the queue, not for the delivery.
    pub async fn respond(
        &self,
        generation: u64,
        id: Bytes,
        outcome: Bytes,
    ) -> Result<(), Undelivered> {
        if !self.is_live(generation) {
            return Err(Undelivered::Gone);
        }
        let response = Control::Respond { generation, id, outcome };
        let sent = self.control_of(generation).send(response);
        match tokio::time::timeout(RESPOND_WAIT, sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Undelivered::Gone),
            Err(_) => Err(Undelivered::Busy { waited: RESPOND_WAIT }),
        }
    }

    /// Subscribes to changes of a resource, including on later connections. `asked` is the generation of the connection
    /// over which the client's own request has already subscribed.
    pub fn subscribe(&self, uri: &str, asked: Option<u64>) {
        self.subscriptions.add(uri, asked);
    }

    /// Waits until `deadline` for the server's answer to a subscription.
    pub async fn subscription_answer(&self, uri: &str, deadline: Instant) -> SubscriptionAnswer {
        self.subscriptions.answer(uri, deadline).await
    }

    /// Ends a subscription and notifies the server.
    pub fn unsubscribe(&self, uri: &str) {
        self.subscriptions.remove(uri);
    }

    /// Ends a subscription without notifying the server, because the client's own request does so.
    pub fn unsubscribed(&self, uri: &str) {
        self.subscriptions.removed(uri);
    }

    pub fn subscriptions(&self) -> Vec<Arc<str>> {
        self.subscriptions.uris()
    }

    /// Follows the changes of a task, by the server's id, on all present and future servers with this name.
    ///
    /// # Errors
    /// Too many tasks are followed, and no principal has more of them than this one would have.
    pub fn follow_task(
        &self,
        task: Arc<str>,
        principal: &Principal,
    ) -> Result<TaskFollower, TooManyFollowed> {
        self.server_events.tasks.follow(task, principal)
    }
}

/// Guard that is needed to send a call: the server does not end before the guard is dropped or the drain times out.
pub struct CallGuard(Arc<Upstream>);

impl CallGuard {
    /// Enters a call; `None` if the server is closed.
    pub(super) fn enter(upstream: &Arc<Upstream>) -> Option<Self> {
        upstream.active_calls.enter().then(|| Self(Arc::clone(upstream)))
    }
}

impl Deref for CallGuard {
    type Target = Arc<Upstream>;

    fn deref(&self) -> &Arc<Upstream> {
        &self.0
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.active_calls.exit();
    }
}

impl fmt::Debug for CallGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallGuard").field(self.0.name()).finish()
    }
}

/// Set once calls may no longer enter.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// Set while a task waits for the last call.
const RETIRING: usize = 1 << (usize::BITS - 2);
/// The remaining bits count the calls.
const COUNT: usize = RETIRING - 1;

/// Counter of a server's active calls.
#[derive(Debug, Default)]
pub(super) struct ActiveCalls {
    state: AtomicUsize,
    exited: Notify,
}

impl ActiveCalls {
    /// Counts a call; returns false if the server is closed.
    pub(super) fn enter(&self) -> bool {
        let entered = self.state.fetch_add(1, Ordering::AcqRel) & CLOSED == 0;
        if !entered {
            self.state.fetch_sub(1, Ordering::AcqRel);
        }
        entered
    }

    /// Ends a counted call.
    pub(super) fn exit(&self) {
        if self.state.fetch_sub(1, Ordering::AcqRel) & RETIRING != 0 {
            self.exited.notify_one();
        }
    }

    /// Waits until no call is active, and closes the counter. Must be called by a single task.
    pub(super) async fn drained(&self) {
        self.state.fetch_or(RETIRING, Ordering::AcqRel);
        loop {
            let exited = self.exited.notified();
            if self.state.load(Ordering::Acquire) & COUNT == 0 && self.close() {
                return;
            }
            exited.await;
        }
    }

    fn close(&self) -> bool {
        let none = RETIRING;
        let closed = RETIRING | CLOSED;
        self.state.compare_exchange(none, closed, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Closes the counter even if calls are active.
    pub(super) fn close_now(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotRestarted {
    #[error("it is disabled in the config: `mcpproxy upstream enable NAME` enables it")]
    Disabled,
    /// The server is stopped permanently.
    #[error("it cannot be restarted: {0}")]
    Stopped(Arc<str>),
    /// The server's control queue is full.
    #[error("it is busy: try again")]
    Busy,
}

impl Upstream {
    /// Closes the connection, if any, and reconnects. Returns when the old connection is no longer used and the
    /// next attempt has begun.
    pub async fn restart(&self) -> Result<(), NotRestarted> {
        let (last, generation) = {
            let state = self.state.load();
            match state.phase() {
                Phase::Disabled => return Err(NotRestarted::Disabled),
                Phase::Stopped => return Err(NotRestarted::Stopped(state.reason())),
                Phase::Waiting(Waiting { attempt, .. }) => (*attempt, None),
                // If the attempt in progress fails, another one follows immediately.
                Phase::Connecting { attempt, .. } if state.status() == Status::Failed => {
                    (*attempt, None)
                }
                Phase::Connecting { .. } | Phase::Closing { .. } => return Ok(()),
                Phase::Discovering { live } | Phase::Connected { live, .. } => {
                    (live.generation, Some(live.generation))
                }
            }
        };
        let Some(generation) = generation else {
            self.connect_requests.request_at_once(last + 1);
            // Until the attempt has begun, the state belongs to the previous attempt.
            return self
                .await_state(|now| match now.phase() {
                    Phase::Waiting(Waiting { attempt, .. }) => *attempt > last,
                    Phase::Connecting { attempt, .. } => *attempt > last,
                    _ => true,
                })
                .await;
        };
        let sent = self.control.send(Control::Restart { generation });
        match timeout(RESPOND_WAIT, sent).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return Err(NotRestarted::Busy),
        }
        self.await_state(|now| now.live().is_none_or(|live| live.generation != generation)).await
    }

    /// Waits until the state satisfies `is_so`.
    async fn await_state(
        &self,
        is_so: impl Fn(&UpstreamState) -> bool,
    ) -> Result<(), NotRestarted> {
        let reached = self.state.wait_for(|state| is_so(state).then_some(()));
        timeout(RESPOND_WAIT, reached).await.map_err(|_| NotRestarted::Busy)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn active_calls_are_awaited_and_no_call_enters_after_the_last() {
        let active_calls = ActiveCalls::default();
        assert!(active_calls.enter() && active_calls.enter());
        let mut drained = Box::pin(active_calls.drained());
        assert_eq!((&mut drained).now_or_never(), None);
        active_calls.exit();
        assert_eq!((&mut drained).now_or_never(), None);
        assert!(active_calls.enter(), "calls still enter while it is retiring");
        active_calls.exit();
        active_calls.exit();
        assert_eq!((&mut drained).now_or_never(), Some(()));
        assert!(!active_calls.enter() && !active_calls.enter());
        assert_eq!(
            active_calls.state.load(Ordering::Relaxed),
            RETIRING | CLOSED,
            "rejected calls are not counted"
        );
    }

    #[test]
    fn closed_counter_rejects_calls_and_keeps_counting() {
        let active_calls = ActiveCalls::default();
        assert!(active_calls.enter());
        assert_eq!(active_calls.drained().now_or_never(), None);
        active_calls.close_now();
        assert!(!active_calls.enter());
        active_calls.exit();
        assert_eq!(active_calls.state.load(Ordering::Relaxed) & COUNT, 0);
    }
}
