//! A server as others see it: who it is, how it is, and what it is told.
//!
//! [`Upstream`] is a passive handle, shared by all workers. Its task ([`super::server_task`]) is the
//! one that connects and writes its state; how calls go over it is [`super::call`]'s.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc, watch};

use super::backoff::Wishes;
use super::carrier::LiveConnection;
use super::control::Control;
use super::error::Undelivered;
use super::login_desk::LoginDesk;
use super::notification_router::ServerEvents;
use super::notification_router::{Changes, Told};
use super::peer::Peer;
use super::server_tls::OwnTls;
use super::state::StateCell;
use super::status::{ServerState, Transport};
use super::subscriptions::Subscriptions;
use super::users::Users;
use crate::mcp::capabilities::ServerCapabilities;
use crate::mcp::revisions::Era;
use crate::tool::server_id::ServerId;

/// Longest wait of a client's answer for its way to the server that asked.
pub const RESPOND_WAIT: Duration = Duration::from_secs(5);

/// A call that has longer has no limit, and none that could be added to a clock.
const MAX_CALL_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// A server, as calls see it. Shared by all workers.
pub struct Upstream {
    pub(super) name: Arc<str>,
    pub(super) peer: Arc<Peer>,
    pub(super) id: ServerId,
    /// Its own, also among servers that had the same name before it.
    pub(super) key: u64,
    pub(super) transport: Transport,
    pub(super) call_timeout: CallTimeout,
    pub(super) state: StateCell,
    /// How TLS is done with it, where its entry says.
    pub(super) own_tls: Option<Arc<OwnTls>>,
    /// The attempts to connect that calls wish for.
    pub(super) wishes: Wishes,
    pub(super) control: mpsc::Sender<Control>,
    pub(super) server_events: Arc<ServerEvents>,
    /// Resources whose changes it is to tell of.
    pub(super) subscriptions: Subscriptions,
    /// The calls that it is not ended under.
    pub(super) users: Users,
    /// Once it is told to end.
    pub(super) stop: watch::Sender<Option<ServerStop>>,
    pub(super) life: watch::Sender<Life>,
    /// Where logins are asked for.
    pub(super) desk: LoginDesk,
    /// See [`Upstream::restarts`].
    pub(super) restarts: AtomicU64,
}

/// How far a server has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    /// Calls come to it.
    #[default]
    InForce,
    /// The config has it no more, or has another in its place.
    Retired,
    /// Its task has ended.
    Over,
}

/// That a server has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerStop {
    /// When it has to be over.
    pub(super) deadline: tokio::time::Instant,
    pub(super) why: WhyStopped,
}

/// Why a server has to end: whoever tells it to says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhyStopped {
    /// The proxy ends.
    ProxyEnds,
    /// It was taken out of force, and its calls have ended, or their time has.
    TakenOut,
}

impl WhyStopped {
    /// Why there is no server any more.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::ProxyEnds => "the proxy is shutting down",
            Self::TakenOut => "the config has changed, or the files of its TLS have",
        }
    }

    /// What those are told whose calls outlast it.
    pub(super) const fn cut_off(self) -> &'static str {
        match self {
            Self::ProxyEnds => "mcpproxy is shutting down",
            Self::TakenOut => {
                "the config has the server no more, or its entry or the files of its TLS have \
                 changed, and the call did not end within call_timeout"
            }
        }
    }
}

/// `call_timeout` of one server, which another config may change.
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
    /// The server's name in the config.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The time that a call has until its answer begins.
    #[must_use]
    pub fn call_timeout(&self) -> Duration {
        self.call_timeout.get()
    }

    /// Its own number, also among servers that had the same name before it.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// True once the config has it no more, or has another in its place: it finishes its calls.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        *self.life.borrow() != Life::InForce
    }

    /// Waits until it is.
    pub async fn retired(&self) {
        // The sender lives as long as `self`.
        let _ = self.life.subscribe().wait_for(|life| *life != Life::InForce).await;
    }

    /// It takes no new calls but those on their way to it.
    pub(super) fn retire(&self) {
        self.live_on(Life::Retired);
    }

    /// Its task has ended.
    pub(super) fn ended(&self) {
        self.live_on(Life::Over);
    }

    /// It has to end with the proxy, by that time, whatever time it had. One that ends already does so for the cause that it
    /// has.
    pub(super) fn end_with_proxy(&self, deadline: tokio::time::Instant) {
        self.stop.send_modify(|stop| {
            let why = stop.map_or(WhyStopped::ProxyEnds, |stop| stop.why);
            *stop = Some(ServerStop { deadline, why });
        });
    }

    /// It has to end by that time, for it was taken out of force. One that ends already is left to do so.
    pub(super) fn end_taken_out(&self, deadline: tokio::time::Instant) {
        self.stop.send_if_modified(|stop| {
            let first = stop.is_none();
            stop.get_or_insert(ServerStop { deadline, why: WhyStopped::TakenOut });
            first
        });
    }

    /// Waits until its task has ended.
    pub(super) async fn over(&self) {
        // The sender lives as long as `self`.
        let _ = self.life.subscribe().wait_for(|life| *life == Life::Over).await;
    }

    fn live_on(&self, now: Life) {
        self.life.send_if_modified(|life| {
            let later = *life < now;
            *life = now.max(*life);
            later
        });
    }

    /// How often it was started or connected again since the proxy began, whatever the cause: it was lost, the attempt before
    /// had failed, its operator wanted it, its token was refused, its entry in the config is another. Servers that had
    /// its name without a break count.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// It is started or connected again.
    pub(super) fn begins_again(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// It takes the place of one that had its name: what was counted of that one goes on.
    pub(super) fn succeeds(&self, earlier: &Self) {
        let both_run = !self.is_disabled() && !earlier.is_disabled();
        self.restarts.fetch_add(earlier.restarts() + u64::from(both_run), Ordering::Relaxed);
    }

    /// Has its tools listed again, if it is connected: others may be wanted of them now.
    pub fn look_again(&self) {
        self.server_events.tools.notify_one();
    }

    /// Its identity, which is that of its name.
    #[must_use]
    pub fn id(&self) -> ServerId {
        self.id
    }

    /// How it is now.
    #[must_use]
    pub fn state(&self) -> ServerState {
        let mut shown = self.state.load().shown(&self.name, self.transport);
        if let Some(problem) = self.own_tls.as_ref().and_then(|tls| tls.problem()) {
            // What is to be done about a login ends its reason.
            let reason: &[&str] = if shown.reason.is_empty() { &[] } else { &[&shown.reason] };
            shown.reason = [&[&*problem], reason].concat().join("; ").into();
        }
        shown
    }

    /// Waits until it was discovered or has failed for the first time.
    pub async fn settled(&self) {
        self.state.wait_for(|state| state.is_settled().then_some(())).await;
    }

    /// The beginning of its own words, fit to be told: one line, printable, bounded, and without a
    /// value that the config holds as secret.
    #[must_use]
    pub fn quote(&self, words: &[u8]) -> Arc<str> {
        self.peer.quote(words)
    }

    /// Whether another line about what it does may be logged. If not, it is counted, and the count
    /// told when its flood is over.
    #[must_use]
    pub fn may_log(&self) -> bool {
        self.peer.may_log()
    }

    /// Which kind of protocol it speaks, or spoke when it was reached last.
    #[must_use]
    pub fn era(&self) -> Era {
        self.state.load().about().era
    }

    /// What it offers, or offered when it was reached last.
    #[must_use]
    pub fn offers(&self) -> ServerCapabilities {
        self.state.load().about().offers
    }

    /// Tells when its lists of resources or prompts are to be read again.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.server_events.changes.subscribe()
    }

    /// Tells the URIs of resources that have changed, as far as the server was asked to tell.
    #[must_use]
    pub fn updates(&self) -> broadcast::Receiver<Arc<str>> {
        self.server_events.updates.subscribe()
    }

    /// Gives `reader` each log message that names no call, before anything else is done with it.
    /// Called once, at the start; the reader must not block.
    pub fn log_to(&self, reader: impl Fn(&Bytes) -> Told + Send + Sync + 'static) {
        self.server_events.read_by(reader);
    }

    /// Sends a client's answer back to the server that asked. `generation` is that of the
    /// `Answer` in which the request came, `id` the request's own id as the server wrote it,
    /// `outcome` the member `"result":…` or `"error":…` as raw JSON. Waits at most
    /// [`RESPOND_WAIT`] for a place in the queue; the sending is not waited for.
    ///
    /// # Errors
    /// [`Undelivered`]: the answer is lost, and whoever gave it may be told.
    pub async fn respond(
        &self,
        generation: u64,
        id: Bytes,
        outcome: Bytes,
    ) -> Result<(), Undelivered> {
        let alive = |live: &Arc<LiveConnection>| live.generation == generation;
        if !self.state.load().live().is_some_and(alive) {
            return Err(Undelivered::Gone);
        }
        let response = Control::Respond { generation, id, outcome };
        match tokio::time::timeout(RESPOND_WAIT, self.control.send(response)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Undelivered::Gone),
            Err(_) => Err(Undelivered::Busy { waited: RESPOND_WAIT }),
        }
    }

    /// The server is to tell of this resource's changes, also after the next connection. `asked`
    /// is the connection over which it was asked already, if it was.
    pub fn subscribe(&self, uri: &str, asked: Option<u64>) {
        self.subscriptions.add(uri, asked);
    }

    /// The same for a resource of a modern server, and waits until its subscription holds that too,
    /// 10 seconds at most; false if it does not.
    pub async fn subscribe_and_wait(&self, uri: &str) -> bool {
        self.subscriptions.add_and_wait(uri).await
    }

    /// Nobody wants to be told of it any more.
    pub fn unsubscribe(&self, uri: &str) {
        self.subscriptions.remove(uri);
    }

    /// The resources that it is to tell of.
    #[must_use]
    pub fn subscriptions(&self) -> Vec<Arc<str>> {
        self.subscriptions.uris()
    }
}
