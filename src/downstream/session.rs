//! One session of a legacy revision (MCP 2025-11-25 §Session Management): owner, last use, state and bound API key.
//!
//! Sans-I/O: callers pass monotonic time in milliseconds, of any origin. A session keeps only a hash of the key,
//! whose validity is checked elsewhere.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use http::request::Parts;
use mcpproxy_catalog::Notice;
use mcpproxy_policy::{Principal, StateAccount, StateCharge};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use tokio::sync::{Semaphore, broadcast};

use super::authentication;
use super::in_flight::{InFlight, Owner};
use super::replay::ReplayStreams;
use super::session_eviction::Holder;
use super::source::Source;
use mcpproxy_gateway::node_directory::NodeTag;
use mcpproxy_gateway::proxy::client::{Client, Endpoint};

/// Idle time after which a session expires: 24 h.
pub const IDLE_MS: u64 = 24 * 60 * 60 * 1000;
/// Memory charge of a session without strings, subscriptions and events: 2 KiB.
const SESSION_BYTES: usize = 2 * 1024;
/// Maximum number of open notification streams of one session.
pub(crate) const MAX_LISTENERS_PER_SESSION: usize = 8;

#[derive(Debug)]
pub struct Session {
    /// Client of the session. Its `session_id`, 128 random bits in hex, identifies the session in records.
    pub client: Arc<Client>,
    id: Arc<str>,
    home: SessionHome,
    /// The only endpoint that the session is valid for.
    pub endpoint: Endpoint,
    /// Replay buffer of its streams.
    pub streams: ReplayStreams,
    /// Pending change notifications; `None` until its first stream. One stream at a time holds the lock, since no
    /// message may be sent on two.
    pub notices: Arc<tokio::sync::Mutex<Option<broadcast::Receiver<Notice>>>>,
    /// Permits for notification streams.
    pub listeners: Arc<Semaphore>,
    owner: Owner,
    holder: Holder,
    /// Whether a request was made in the session.
    used: AtomicBool,
    key: SessionKey,
    /// Memory charge without subscriptions and events; `None` once the session has ended.
    charge: Mutex<Option<StateCharge>>,
    connections: Mutex<Vec<Weak<InFlight>>>,
    used_ms: AtomicU64,
    ended: AtomicBool,
}

/// Parameters of a new session.
#[derive(Debug)]
pub struct Opening {
    /// Client of the session. Its `session_id` is 128 random bits from the system, see [`fresh_id`].
    pub client: Client,
    /// The only endpoint that the session is valid for.
    pub endpoint: Endpoint,
    pub principal: Principal,
    /// The API key that it was opened with.
    pub key: SessionKey,
    /// Address that the session is charged to.
    pub source: Source,
}

impl Opening {
    /// Key of the session's quota.
    pub(super) fn holder(&self) -> Holder {
        Holder { source: self.source, principal: self.principal.clone() }
    }

    /// Memory charge of the session under the id `id`.
    pub(super) fn bytes(&self, id: &str) -> usize {
        SESSION_BYTES + id.len() + self.client.name.len()
    }
}

/// Accounts that a session is charged to.
#[derive(Debug)]
pub(super) struct SessionBudget {
    /// Charge for the session itself.
    pub(super) charge: StateCharge,
    /// The principal's account, charged for events.
    pub(super) account: Arc<StateAccount>,
    /// Bytes of events kept over all sessions.
    pub(super) kept: Arc<AtomicUsize>,
}

/// The node that opened a session and holds its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SessionHome {
    /// This node, which still has the state. Also used if there is no fleet.
    #[default]
    Here,
    /// This node, which has evicted the session or restarted since: its state is lost.
    Forgotten,
    Elsewhere(NodeTag),
}

/// Id and home of a session.
#[derive(Clone, Debug)]
pub(super) struct SessionPlace {
    /// The `Mcp-Session-Id`.
    pub(super) id: Arc<str>,
    pub(super) home: SessionHome,
    /// This node's number in the fleet ([`NodeTag::number`]); 0 without a fleet.
    pub(super) node: u64,
}

impl Session {
    /// New session, last used at `now_ms`. `number` is unique and not 0.
    pub(super) fn new(
        place: SessionPlace,
        opening: Opening,
        number: u64,
        budget: SessionBudget,
        now_ms: u64,
    ) -> Self {
        let holder = opening.holder();
        let Opening { client, endpoint, principal: _, key, source: _ } = opening;
        let SessionBudget { charge, account, kept } = budget;
        let SessionPlace { id, home, node } = place;
        Self {
            client: Arc::new(if node == 0 { client } else { client.asked_at(node) }),
            id,
            home,
            endpoint,
            streams: ReplayStreams::on_node(account, kept, node),
            notices: Arc::default(),
            listeners: Arc::new(Semaphore::new(MAX_LISTENERS_PER_SESSION)),
            owner: Owner::session(number),
            holder,
            used: AtomicBool::new(false),
            key,
            charge: Mutex::new(Some(charge)),
            connections: Mutex::default(),
            used_ms: AtomicU64::new(now_ms),
            ended: AtomicBool::new(false),
        }
    }

    /// The principal that opened the session.
    pub(crate) fn principal(&self) -> &Principal {
        &self.holder.principal
    }

    /// The `Mcp-Session-Id`: the client's `session_id`; in a fleet followed by a sealed ticket, from which any node
    /// can reopen the session.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    pub(crate) fn home(&self) -> SessionHome {
        self.home
    }

    /// Records a use; false if the session has ended or expired, so that a caller with a cached session looks it up again.
    pub fn touch(&self, now_ms: u64) -> bool {
        if self.has_ended() || self.expired(now_ms) {
            return false;
        }
        // The time is stored only if it changes: a session's calls run on several cores, which share the cache line
        // until it is written.
        if self.used_ms.load(Ordering::Relaxed) != now_ms {
            self.used_ms.store(now_ms, Ordering::Relaxed);
        }
        true
    }

    /// Whether the session has ended, for any reason.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn used_ms(&self) -> u64 {
        self.used_ms.load(Ordering::Relaxed)
    }

    pub(super) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Whether a request was made in the session.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Records the first request; true the first time.
    pub(super) fn begin_use(&self) -> bool {
        // This runs for each request. After the first request it only reads.
        !self.is_used() && !self.used.swap(true, Ordering::Relaxed)
    }

    /// Whether a request of `principal` with this head may use the session: only its opener, with the same API key
    /// if it had one. A renewed token still proves the same principal.
    pub(crate) fn belongs_to(&self, head: &http::request::Parts, principal: &Principal) -> bool {
        *principal == self.holder.principal && self.key.binds(principal, head)
    }

    /// Owner of the session's calls in [`InFlight`].
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Adds a connection whose calls the session may cancel.
    pub(crate) fn join(&self, connection: &Arc<InFlight>) {
        let mut connections = self.connections.lock();
        connections.retain(|known| known.strong_count() > 0);
        let known = connections.iter().any(|known| known.as_ptr() == Arc::as_ptr(connection));
        if !known {
            connections.push(Arc::downgrade(connection));
        }
    }

    /// Cancels the newest call with this raw id on any of the session's connections; returns false if there is none.
    pub(crate) fn cancel(&self, id: &[u8]) -> bool {
        let tables = self.tables();
        let newest = tables.iter().filter_map(|calls| Some((calls.newest(self.owner, id)?, calls)));
        let newest = newest.max_by_key(|(began, _)| *began);
        newest.is_some_and(|(_, calls)| calls.cancel(self.owner, id))
    }

    fn tables(&self) -> Vec<Arc<InFlight>> {
        let connections = self.connections.lock();
        connections.iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether a call is in flight or a stream is open.
    pub(super) fn is_busy(&self) -> bool {
        let listened_to = self.listeners.available_permits() < MAX_LISTENERS_PER_SESSION;
        listened_to || self.tables().iter().any(|calls| calls.has(self.owner))
    }

    /// Whether the session was idle for longer than [`IDLE_MS`].
    pub(super) fn expired(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.used_ms.load(Ordering::Relaxed)) > IDLE_MS && !self.is_busy()
    }

    /// Ends the session's calls and streams, after its removal from the table.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.client.leave();
        self.streams.close();
        drop(self.charge.lock().take());
    }
}

/// A session id of 128 random bits.
pub fn fresh_id(random: [u8; 16]) -> Arc<str> {
    format!("{:032x}", u128::from_be_bytes(random)).into()
}

/// Hash of the API key that a session is bound to; `None` if it was opened without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionKey(Option<[u8; 32]>);

impl SessionKey {
    /// First key of a request.
    pub(crate) fn of(head: &Parts) -> Self {
        let key = authentication::keys(&head.headers, head.uri.query()).next();
        Self(key.map(|key| *blake3::hash(&key).as_bytes()))
    }

    /// Whether a request of the session's principal may use it. Only anonymous and admin principals need the same key.
    pub(super) fn binds(&self, principal: &Principal, head: &Parts) -> bool {
        match principal {
            Principal::Anonymous | Principal::Admin => self.is(head),
            Principal::Token(_) | Principal::Subject(_) | Principal::Certificate(_) => true,
        }
    }

    pub(super) fn of_hash(hash: Option<[u8; 32]>) -> Self {
        Self(hash)
    }

    pub(super) fn hash(&self) -> Option<&[u8; 32]> {
        self.0.as_ref()
    }

    /// Whether the request has this key, or none is required. Constant-time.
    pub(crate) fn is(&self, head: &Parts) -> bool {
        match &self.0 {
            None => true,
            Some(ours) => Self::of(head).0.is_some_and(|theirs| ours.ct_eq(&theirs).into()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use mcpproxy_policy::StateAccounts;
    use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
    use mcpproxy_protocol::mcp::revisions::{NEWEST_LEGACY, ProtocolFamily};

    use super::*;
    use mcpproxy_gateway::proxy::reply::Running;

    /// A session outside any table.
    pub(crate) fn alone() -> Arc<Session> {
        let none = ClientCapabilities::default();
        let client =
            Client::new(fresh_id([1; 16]), "", NEWEST_LEGACY, ProtocolFamily::Legacy, none);
        let (endpoint, key, source) = Default::default();
        let account = StateAccounts::default().of(&Principal::Anonymous);
        let charge = account.no_charge();
        Arc::new(Session::new(
            SessionPlace { id: Arc::clone(&client.session_id), home: SessionHome::Here, node: 0 },
            Opening { client, endpoint, principal: Principal::Anonymous, key, source },
            1,
            SessionBudget { charge, account, kept: Arc::default() },
            0,
        ))
    }

    #[test]
    fn session_id_contains_all_random_bits_in_hex() {
        assert_eq!(&*fresh_id([0; 16]), "00000000000000000000000000000000");
        assert_eq!(&*fresh_id([0xab; 16]), "abababababababababababababababab");
    }

    #[test]
    fn idle_session_expires_unless_busy() {
        let session = alone();
        assert!(!session.expired(IDLE_MS) && session.expired(IDLE_MS + 1));
        let listener = Arc::clone(&session.listeners).try_acquire_owned().unwrap();
        assert!(!session.expired(IDLE_MS + 1), "a stream is open");
        drop(listener);
        let calls = Arc::new(InFlight::default());
        session.join(&calls);
        let never = Running::new(|_| std::future::pending());
        let call = calls.watch(session.owner(), &Bytes::from_static(b"1"), never);
        assert!(!session.expired(IDLE_MS + 1), "a call is under way");
        drop(call);
        assert!(!session.touch(IDLE_MS + 1) && session.touch(IDLE_MS));
        assert!(session.touch(2 * IDLE_MS), "each use restarts the time");
    }

    #[test]
    fn first_use_of_a_session_is_recorded_once() {
        let session = alone();
        assert!(!session.is_used());
        assert!(session.begin_use() && !session.begin_use());
        assert!(session.is_used());
    }

    #[test]
    fn closed_connections_are_removed_from_their_session() {
        let session = alone();
        let kept = Arc::new(InFlight::default());
        for _ in 0..3 {
            session.join(&Arc::new(InFlight::default()));
            session.join(&kept);
        }
        assert_eq!(session.connections.lock().len(), 1);
    }

    #[tokio::test]
    async fn session_end_wakes_waiters_for_events() {
        let session = alone();
        let notified = session.streams.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        session.end();
        notified.await;
        assert!(session.has_ended() && !session.touch(0));
    }

    fn head(uri: &str, name: &str, value: &str) -> Parts {
        let request = http::Request::builder().uri(uri).header(name, value).body(());
        request.unwrap().into_parts().0
    }

    #[test]
    fn session_requires_the_key_it_was_opened_with() {
        let ours = SessionKey::of(&head("/mcp", "x-api-key", "secret"));
        assert!(ours.is(&head("/mcp", "authorization", "bearer  secret")), "in any location");
        assert!(ours.is(&head("/mcp?x=1&apikey=s%65cret", "accept", "*/*")));
        for other in ["", "Secret", "secret2"] {
            assert!(!ours.is(&head("/mcp", "x-api-key", other)), "{other}");
        }
        assert!(!ours.is(&head("/mcp", "accept", "*/*")));
        let anyone = SessionKey::of(&head("/mcp", "accept", "*/*"));
        assert!(anyone.is(&head("/mcp", "x-api-key", "secret")));
    }
}
