//! One session of the initialize-based protocol revisions (MCP 2025-11-25 §Session Management): whose it is, when it was
//! last used, and what belongs to it.
//!
//! Has no clock: callers say what time it is, in milliseconds of any monotonic origin.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, broadcast};

use crate::catalog::Notice;
use crate::downstream::in_flight::{InFlight, Owner};
use crate::downstream::replay::ReplayStreams;
use crate::downstream::session_key::SessionKey;
use crate::downstream::source::Source;
use crate::fleet::sealed_mark::NodeTag;
use crate::policy::Principal;
use crate::proxy::caller::Endpoint;
use crate::proxy::client::Client;

/// A session that was idle for longer has expired: 24 h.
pub const IDLE_MS: u64 = 24 * 60 * 60 * 1000;
/// Most streams of notifications that are open at once in one session.
pub const MAX_LISTENERS_PER_SESSION: usize = 8;

/// One initialized client.
#[derive(Debug)]
pub struct Session {
    /// Who it is. Its `session_id`, 128 random bits in hex, is what records name the session by.
    pub client: Arc<Client>,
    id: Arc<str>,
    home: SessionHome,
    /// The endpoint that it was opened on, the only one that it is valid for.
    pub endpoint: Endpoint,
    /// The events that its streams have sent.
    pub streams: ReplayStreams,
    /// Changes that it was not notified of yet; `None` until its first stream. One stream at a time holds the lock, since no
    /// message may go out on two.
    pub notices: Arc<tokio::sync::Mutex<Option<broadcast::Receiver<Notice>>>>,
    /// Permits for streams of notifications.
    pub listeners: Arc<Semaphore>,
    owner: Owner,
    source: Source,
    /// A request was made in it.
    used: AtomicBool,
    principal: Principal,
    key: SessionKey,
    connections: Mutex<Vec<Weak<InFlight>>>,
    used_ms: AtomicU64,
    ended: AtomicBool,
}

/// What a session is opened with.
#[derive(Debug)]
pub struct Opening {
    /// Who it is for; its `session_id` is 128 bits of the system's randomness, see [`fresh_id`].
    pub client: Client,
    /// The endpoint that it is valid for.
    pub endpoint: Endpoint,
    /// On whose behalf.
    pub principal: Principal,
    /// The API key that it was opened with.
    pub key: SessionKey,
    /// The address that it counts for.
    pub source: Source,
}

/// The node of a fleet that opened a session, where what it leaves behind is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionHome {
    /// This one, and it has kept it since; or there is no fleet.
    #[default]
    Here,
    /// This one, which had to make room since, or was started anew: what the session left behind is not known.
    Forgotten,
    /// Another one.
    Elsewhere(NodeTag),
}

/// Where a session is, and by what it is found.
#[derive(Clone, Debug)]
pub(super) struct SessionPlace {
    /// The `Mcp-Session-Id`.
    pub(super) id: Arc<str>,
    pub(super) home: SessionHome,
    /// This node's number in the fleet ([`NodeTag::number`]); 0 where there is none.
    pub(super) node: u64,
}

impl Session {
    /// A session as that place says that was used just now. `number` is that of no other session, and not 0; `kept`
    /// counts the bytes of events that are kept over all sessions.
    pub(super) fn new(
        place: SessionPlace,
        opening: Opening,
        number: u64,
        kept: Arc<AtomicUsize>,
        now_ms: u64,
    ) -> Self {
        let Opening { client, endpoint, principal, key, source } = opening;
        let SessionPlace { id, home, node } = place;
        Self {
            client: Arc::new(if node == 0 { client } else { client.asked_at(node) }),
            id,
            home,
            endpoint,
            streams: ReplayStreams::on_node(kept, node),
            notices: Arc::default(),
            listeners: Arc::new(Semaphore::new(MAX_LISTENERS_PER_SESSION)),
            owner: Owner::session(number),
            source,
            used: AtomicBool::new(false),
            principal,
            key,
            connections: Mutex::default(),
            used_ms: AtomicU64::new(now_ms),
            ended: AtomicBool::new(false),
        }
    }

    /// On whose behalf everything in it is asked: of whoever opened it.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The `Mcp-Session-Id`: the client's `session_id`, and in a fleet that sealed with what any node needs to go on.
    #[must_use]
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// The node of the fleet that opened it.
    #[must_use]
    pub fn home(&self) -> SessionHome {
        self.home
    }

    /// Notes a use; false when the session has ended or expired, so that whoever kept it asks
    /// the table again.
    pub fn touch(&self, now_ms: u64) -> bool {
        if self.has_ended() || self.expired(now_ms) {
            return false;
        }
        // Its calls run on several cores: a cache line that is not written stays in the caches of all.
        if self.used_ms.load(Ordering::Relaxed) != now_ms {
            self.used_ms.store(now_ms, Ordering::Relaxed);
        }
        true
    }

    /// True once it was ended, from whichever side.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The time of its last use.
    pub(super) fn used_ms(&self) -> u64 {
        self.used_ms.load(Ordering::Relaxed)
    }

    /// The address that it counts for.
    pub(super) fn source(&self) -> Source {
        self.source
    }

    /// True once a request was made in it.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Notes that a request is made in it; true the first time.
    pub(super) fn begin_use(&self) -> bool {
        // Called for each request: after the first it is only read.
        !self.is_used() && !self.used.swap(true, Ordering::Relaxed)
    }

    /// True if a request with this head, made by `principal`, may use it: whoever opened it may, with the same API key
    /// if there was one. A token may be another by now, and prove the same principal.
    #[must_use]
    pub fn belongs_to(&self, head: &http::request::Parts, principal: &Principal) -> bool {
        *principal == self.principal && self.key.binds(principal, head)
    }

    /// The owner of its calls.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Adds a connection, so that the session's calls there can be cancelled.
    pub fn join(&self, connection: &Arc<InFlight>) {
        let mut connections = self.connections.lock();
        connections.retain(|known| known.strong_count() > 0);
        let known = connections.iter().any(|known| known.as_ptr() == Arc::as_ptr(connection));
        if !known {
            connections.push(Arc::downgrade(connection));
        }
    }

    /// Cancels its call of that raw id, on whichever of its connections; false if there is none.
    pub fn cancel(&self, id: &[u8]) -> bool {
        let connections: Vec<_> = self.tables();
        connections.iter().fold(false, |found, calls| calls.cancel(self.owner, id) | found)
    }

    fn tables(&self) -> Vec<Arc<InFlight>> {
        let connections = self.connections.lock();
        connections.iter().filter_map(Weak::upgrade).collect()
    }

    /// True while a call is in flight or a stream is open.
    pub(super) fn is_busy(&self) -> bool {
        let listened_to = self.listeners.available_permits() < MAX_LISTENERS_PER_SESSION;
        listened_to || self.tables().iter().any(|calls| calls.has(self.owner))
    }

    /// True if it was idle for longer than [`IDLE_MS`] and is not busy.
    pub(super) fn expired(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.used_ms.load(Ordering::Relaxed)) > IDLE_MS && !self.is_busy()
    }

    /// Ends what belongs to it; it is out of the table by then.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.client.leave();
        self.streams.notify();
    }
}

/// The id of a session, of 128 random bits.
#[must_use]
pub fn fresh_id(random: [u8; 16]) -> Arc<str> {
    format!("{:032x}", u128::from_be_bytes(random)).into()
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::mcp::capabilities::ClientCapabilities;
    use crate::mcp::revisions::{Era, NEWEST_LEGACY};
    use crate::proxy::reply::Running;

    /// A session that is in no table, of the oldest time.
    pub(in crate::downstream) fn alone() -> Arc<Session> {
        let none = ClientCapabilities::default();
        let client = Client::new(fresh_id([1; 16]), "", NEWEST_LEGACY, Era::Legacy, none);
        let (endpoint, key, source) = Default::default();
        Arc::new(Session::new(
            SessionPlace { id: Arc::clone(&client.session_id), home: SessionHome::Here, node: 0 },
            Opening { client, endpoint, principal: Principal::Anonymous, key, source },
            1,
            Arc::default(),
            0,
        ))
    }

    #[test]
    fn ids_are_all_of_the_randomness_in_hex() {
        assert_eq!(&*fresh_id([0; 16]), "00000000000000000000000000000000");
        assert_eq!(&*fresh_id([0xab; 16]), "abababababababababababababababab");
    }

    #[test]
    fn a_session_expires_when_it_was_idle_for_too_long_and_is_not_busy() {
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
        assert!(session.touch(2 * IDLE_MS), "each use begins the time anew");
    }

    #[test]
    fn its_first_use_is_noted_once() {
        let session = alone();
        assert!(!session.is_used());
        assert!(session.begin_use() && !session.begin_use());
        assert!(session.is_used());
    }

    #[test]
    fn connections_that_have_gone_are_forgotten() {
        let session = alone();
        let kept = Arc::new(InFlight::default());
        for _ in 0..3 {
            session.join(&Arc::new(InFlight::default()));
            session.join(&kept);
        }
        assert_eq!(session.connections.lock().len(), 1);
    }

    #[tokio::test]
    async fn whoever_waits_for_its_events_learns_of_its_end() {
        let session = alone();
        let notified = session.streams.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        session.end();
        notified.await;
        assert!(session.has_ended() && !session.touch(0));
    }
}
