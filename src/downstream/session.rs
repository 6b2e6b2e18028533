//! Sessions of the initialize-based protocol revisions (MCP 2025-11-25 §Session Management).
//!
//! Owns the table of live sessions, bounded in number and in idle time, over all and of one address:
//! a newcomer takes the place of whoever has been idle longest, of its own address first. Those that
//! were opened and never used have a bound of their own, so that who does nothing but open sessions
//! puts nobody out. Deliberately has no clock: callers say what time it is, in milliseconds of any
//! monotonic origin.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use thiserror::Error;
use tokio::sync::{Semaphore, broadcast, watch};

use crate::catalog::Notice;
use crate::downstream::in_flight::{InFlight, Owner};
use crate::downstream::replay::ReplayStreams;
use crate::downstream::session_key::SessionKey;
use crate::downstream::source::Source;
use crate::policy::Principal;
use crate::proxy::caller::Endpoint;
use crate::proxy::client::Client;

/// Most sessions alive at once.
pub const MAX_SESSIONS: usize = 10_000;
/// Most sessions of one address that were opened and never used: the oldest of them makes room.
pub const MAX_UNUSED: usize = MAX_SESSIONS / 8;
/// A session unused for this long is forgotten: 24 h.
pub const IDLE_MS: u64 = 24 * 60 * 60 * 1000;
/// Streams that tell of changes, open at once over all clients.
pub const MAX_LISTENERS: usize = 1024;
/// Streams that tell of changes, open at once in one session.
pub const MAX_LISTENERS_PER_SESSION: usize = 8;
/// Shards of the table, so that sessions rarely meet on a lock.
const SHARDS: usize = 16;
/// Idle sessions that make room at once, so that not every newcomer searches the table.
pub const EVICTED: usize = 64;

/// The table, or an address's share of it, is full of sessions that are all in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "too many sessions are in use, over all or from one address: end some with DELETE, or wait"
)]
pub struct TooManySessions;

/// One initialized client.
#[derive(Debug)]
pub struct Session {
    /// Who it is. Its `session_id`, 128 random bits in hex, is the `Mcp-Session-Id`.
    pub client: Arc<Client>,
    /// Where it was opened; it exists nowhere else.
    pub endpoint: Endpoint,
    /// What its event streams have sent.
    pub streams: ReplayStreams,
    /// What there is to tell, once somebody listens. One stream reads it at a time, since no
    /// message may go out on two.
    pub notices: Arc<tokio::sync::Mutex<Option<broadcast::Receiver<Notice>>>>,
    /// Room for streams that tell of changes.
    pub listeners: Arc<Semaphore>,
    owner: Owner,
    source: Source,
    /// Something was asked in it.
    used: AtomicBool,
    principal: Principal,
    key: SessionKey,
    connections: Mutex<Vec<Weak<InFlight>>>,
    used_ms: AtomicU64,
    ended: AtomicBool,
}

impl Session {
    /// The `Mcp-Session-Id`.
    #[must_use]
    pub fn id(&self) -> &Arc<str> {
        &self.client.session_id
    }

    /// Notes a use; false when the session has ended or expired, so that whoever kept it asks
    /// the table again.
    pub fn touch(&self, now_ms: u64) -> bool {
        if self.has_ended() || self.expired(now_ms) {
            return false;
        }
        // Its calls come over several cores: a line that nobody writes is in all their caches.
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

    /// True if whoever brings `head` may use it: a session that was opened with an API key is
    /// used with the same one.
    #[must_use]
    pub fn belongs_to(&self, head: &http::request::Parts) -> bool {
        self.key.is(head)
    }

    /// On whose behalf everything in it is asked: of whoever opened it.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Whose its calls are.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Its calls on that connection can be cancelled from now on.
    pub fn join(&self, connection: &Arc<InFlight>) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|known| known.strong_count() > 0);
        let known = connections.iter().any(|known| known.as_ptr() == Arc::as_ptr(connection));
        if !known {
            connections.push(Arc::downgrade(connection));
        }
    }

    /// Ends the client's call of that raw id, on whichever of its connections; false if there is
    /// none.
    pub fn cancel(&self, id: &[u8]) -> bool {
        let connections: Vec<_> = self.tables();
        connections.iter().fold(false, |found, calls| calls.cancel(self.owner, id) | found)
    }

    fn tables(&self) -> Vec<Arc<InFlight>> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.iter().filter_map(Weak::upgrade).collect()
    }

    /// True while a call is under way or a stream is open.
    fn is_busy(&self) -> bool {
        let listened_to = self.listeners.available_permits() < MAX_LISTENERS_PER_SESSION;
        listened_to || self.tables().iter().any(|calls| calls.has(self.owner))
    }

    fn expired(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.used_ms.load(Ordering::Relaxed)) > IDLE_MS && !self.is_busy()
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.client.leave();
        self.streams.stir();
    }
}

type Shard = RwLock<HashMap<Arc<str>, Arc<Session>>>;

/// How many sessions an address has.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    all: usize,
    unused: usize,
}

/// All live sessions, and what the streams of all clients share.
#[derive(Debug)]
pub struct Sessions {
    shards: [Shard; SHARDS],
    count: AtomicUsize,
    /// How many there ever were: the number of the next one.
    opened: AtomicU64,
    sources: Mutex<HashMap<Source, Held>>,
    kept: Arc<AtomicUsize>,
    listeners: Arc<Semaphore>,
    draining: watch::Sender<bool>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            count: AtomicUsize::new(0),
            opened: AtomicU64::new(1),
            sources: Mutex::default(),
            kept: Arc::default(),
            listeners: Arc::new(Semaphore::new(MAX_LISTENERS)),
            draining: watch::Sender::new(false),
        }
    }
}

/// What a session is opened with.
#[derive(Debug)]
pub struct Opening {
    /// Who it is for; its `session_id` is 128 bits of the system's randomness, see [`fresh_id`].
    pub client: Client,
    /// Where.
    pub endpoint: Endpoint,
    /// On whose behalf.
    pub principal: Principal,
    /// What it was opened with, and is used with from then on.
    pub key: SessionKey,
    /// From where.
    pub source: Source,
}

/// The id of a session, of 128 random bits.
#[must_use]
pub fn fresh_id(random: [u8; 16]) -> Arc<str> {
    format!("{:032x}", u128::from_be_bytes(random)).into()
}

impl Sessions {
    /// Opens a session.
    ///
    /// # Errors
    ///
    /// [`TooManySessions`] when [`MAX_SESSIONS`], or the address's share of them, are in use and none of them
    /// is idle.
    pub fn open(&self, opening: Opening, now_ms: u64) -> Result<Arc<Session>, TooManySessions> {
        let Opening { client, endpoint, principal, key, source } = opening;
        self.make_room(source, now_ms)?;
        let session = Arc::new(Session {
            client: Arc::new(client),
            endpoint,
            streams: ReplayStreams::new(Arc::clone(&self.kept)),
            notices: Arc::default(),
            listeners: Arc::new(Semaphore::new(MAX_LISTENERS_PER_SESSION)),
            source,
            used: AtomicBool::new(false),
            owner: Owner::session(self.opened.fetch_add(1, Ordering::Relaxed)),
            principal,
            key,
            connections: Mutex::default(),
            used_ms: AtomicU64::new(now_ms),
            ended: AtomicBool::new(false),
        });
        let id = Arc::clone(session.id());
        self.write(&id, |shard| shard.insert(Arc::clone(&id), Arc::clone(&session)));
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut sources = self.sources();
        let held = sources.entry(source).or_default();
        held.all += 1;
        held.unused += 1;
        drop(sources);
        Ok(session)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Notes that something was asked in a session, which the first time sets it apart from those
    /// that are only opened.
    pub fn note_use(&self, session: &Session) {
        // Told by each request: after the first it is only looked at.
        if !session.used.load(Ordering::Relaxed)
            && !session.used.swap(true, Ordering::Relaxed)
            && let Some(held) = self.sources().get_mut(&session.source)
        {
            held.unused = held.unused.saturating_sub(1);
        }
    }

    fn sources(&self) -> MutexGuard<'_, HashMap<Source, Held>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, source: Source) -> Held {
        self.sources().get(&source).copied().unwrap_or_default()
    }

    /// A session is in the table no more.
    fn left(&self, session: &Session) {
        session.end();
        self.count.fetch_sub(1, Ordering::Relaxed);
        // From now on it counts as used, whatever comes.
        self.note_use(session);
        let mut sources = self.sources();
        if let Some(held) = sources.get_mut(&session.source) {
            held.all = held.all.saturating_sub(1);
            if held.all == 0 {
                sources.remove(&session.source);
            }
        }
    }

    /// Sees that there is a place for a session from there.
    fn make_room(&self, source: Source, now_ms: u64) -> Result<(), TooManySessions> {
        let own = |session: &Session| session.source == source;
        if self.held(source).unused >= MAX_UNUSED {
            self.evict(|session| own(session) && !session.used.load(Ordering::Relaxed));
        }
        let is_full = || self.count.load(Ordering::Relaxed) >= MAX_SESSIONS;
        let has_its_share = || self.held(source).all >= source.share(MAX_SESSIONS);
        if is_full() || has_its_share() {
            self.sweep(now_ms);
        }
        if is_full() || has_its_share() {
            self.evict(own);
        }
        if has_its_share() {
            return Err(TooManySessions);
        }
        if is_full() {
            self.evict(|_| true);
        }
        if is_full() { Err(TooManySessions) } else { Ok(()) }
    }

    /// The live session of that id, its use noted.
    #[must_use]
    pub fn find(&self, id: &str, now_ms: u64) -> Option<Arc<Session>> {
        let shard = self.shard(id).read().unwrap_or_else(PoisonError::into_inner);
        let session = shard.get(id)?;
        session.touch(now_ms).then(|| Arc::clone(session))
    }

    /// Ends a session; false if there was none.
    pub fn end(&self, id: &str) -> bool {
        let Some(session) = self.write(id, |shard| shard.remove(id)) else { return false };
        self.left(&session);
        true
    }

    /// Forgets what has expired.
    pub fn sweep(&self, now_ms: u64) {
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            let expired = shard.extract_if(|_, session| session.expired(now_ms));
            expired.for_each(|(_, session)| self.left(&session));
        }
    }

    /// Ends those that have been idle longest, of those that are `meant`.
    fn evict(&self, meant: impl Fn(&Session) -> bool) {
        let mut idle = Vec::new();
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            let sessions = shard.values().filter(|it| meant(it) && !it.is_busy());
            let uses = sessions.map(|it| (it.used_ms.load(Ordering::Relaxed), Arc::clone(it.id())));
            idle.extend(uses);
        }
        idle.sort_unstable();
        for (_, id) in idle.into_iter().take(EVICTED) {
            self.end(&id);
        }
    }

    /// Room for streams that tell of changes, over all clients.
    #[must_use]
    pub fn listeners(&self) -> &Arc<Semaphore> {
        &self.listeners
    }

    /// Asks every stream that tells of changes to end: the server does.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Tells when [`Sessions::drain`] was called.
    #[must_use]
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    fn shard(&self, id: &str) -> &Shard {
        // The ids are random hex, so their last digit spreads them evenly.
        let digit = id.bytes().last().map_or(0, |last| usize::from(last) % SHARDS);
        let [first, ..] = &self.shards;
        self.shards.get(digit).unwrap_or(first)
    }

    fn write<T>(&self, id: &str, act: impl FnOnce(&mut HashMap<Arc<str>, Arc<Session>>) -> T) -> T {
        act(&mut self.shard(id).write().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::capabilities::ClientCapabilities;
    use crate::mcp::revisions::Era;

    fn opening(n: u128) -> Opening {
        let id = fresh_id(n.to_be_bytes());
        let client =
            Client::new(id, "ide", "2025-11-25", Era::Legacy, ClientCapabilities::default());
        let (key, source) = (SessionKey::default(), Source::Loopback);
        Opening { client, endpoint: Endpoint::Search, principal: Principal::Anonymous, key, source }
    }

    /// Opens one in which something is asked.
    fn in_use(sessions: &Sessions, n: u128, source: Source, now_ms: u64) -> Arc<Session> {
        let session = sessions.open(Opening { source, ..opening(n) }, now_ms).unwrap();
        sessions.note_use(&session);
        session
    }

    fn remote(last: u8) -> Source {
        Source::of([10, 0, 0, last].into())
    }

    #[test]
    fn a_session_lives_until_ended_or_idle() {
        let sessions = Sessions::default();
        let kept = sessions.open(opening(7), 0).unwrap();
        assert_eq!(kept.id().len(), 32);
        assert!(sessions.find(kept.id(), IDLE_MS).is_some());
        assert!(sessions.find(kept.id(), 2 * IDLE_MS).is_some(), "a use starts the idle time anew");
        assert!(sessions.find(kept.id(), 3 * IDLE_MS + 1).is_none());
        let ended = sessions.open(opening(8), 0).unwrap();
        assert!(sessions.end(ended.id()));
        assert!(!sessions.end(ended.id()));
        assert!(!ended.touch(1), "whoever kept it notices");
        assert!(sessions.find(ended.id(), 1).is_none());
    }

    #[test]
    fn a_newcomer_takes_the_place_of_whoever_was_idle_longest() {
        let sessions = Sessions::default();
        let all: Vec<_> = (0..MAX_SESSIONS as u128)
            .map(|n| in_use(&sessions, n, Source::Loopback, n as u64))
            .collect();
        let calls = Arc::new(InFlight::default());
        all[0].join(&calls);
        let never = crate::proxy::reply::Running::new(|_| std::future::pending());
        let _busy = calls.watch(all[0].owner(), &bytes::Bytes::from_static(b"1"), never);
        let late = MAX_SESSIONS as u64;
        assert!(sessions.find(all[1].id(), late).is_some());
        assert!(sessions.open(opening(u128::MAX), late).is_ok());
        assert!(!all[0].has_ended(), "a call is under way in it");
        assert!(!all[1].has_ended(), "it was just used");
        assert!(all[2].has_ended() && sessions.find(all[2].id(), late).is_none());
        assert!(!all[MAX_SESSIONS - 1].has_ended());
    }

    #[test]
    fn a_table_of_busy_sessions_is_full() {
        let sessions = Sessions::default();
        let never = || crate::proxy::reply::Running::new(|_| std::future::pending());
        let _busy: Vec<_> = (0..MAX_SESSIONS as u128)
            .map(|n| {
                let session = in_use(&sessions, n, Source::Loopback, 0);
                let calls = Arc::new(InFlight::default());
                session.join(&calls);
                calls.watch(session.owner(), &bytes::Bytes::from_static(b"1"), never())
            })
            .collect();
        assert_eq!(sessions.open(opening(u128::MAX), 1).unwrap_err(), TooManySessions);
    }

    #[test]
    fn who_only_opens_sessions_puts_out_nobody_but_itself() {
        let sessions = Sessions::default();
        let others: Vec<_> = [Source::Loopback, remote(1)]
            .map(|s| in_use(&sessions, s.share(9) as u128, s, 0))
            .into();
        for n in 0..10_500 {
            let source = if n % 2 == 0 { Source::Loopback } else { remote(1) };
            sessions.open(Opening { source, ..opening(1000 + n) }, 1 + n as u64).unwrap();
        }
        assert!(others.iter().all(|session| !session.has_ended()));
        for source in [Source::Loopback, remote(1)] {
            let Held { all, unused } = sessions.held(source);
            assert!(all == unused + 1 && unused <= MAX_UNUSED, "{all} {unused}");
        }
    }

    #[test]
    fn an_address_has_its_share_and_its_oldest_idle_session_makes_room() {
        let sessions = Sessions::default();
        let share = remote(1).share(MAX_SESSIONS);
        assert!(share < MAX_SESSIONS);
        let other = in_use(&sessions, u128::MAX, remote(2), 0);
        let all: Vec<_> =
            (0..share as u128).map(|n| in_use(&sessions, n, remote(1), 1 + n as u64)).collect();
        assert!(all.iter().all(|session| !session.has_ended()));
        in_use(&sessions, share as u128, remote(1), 1 + share as u64);
        assert!(all[0].has_ended() && !all[share - 1].has_ended());
        assert!(!other.has_ended(), "though it has been idle longest of all");
        let none = Sessions::default();
        for n in 0..3 {
            let session = in_use(&none, n, remote(1), 0);
            none.end(session.id());
        }
        assert!(none.sources().is_empty());
    }

    #[test]
    fn a_cancellation_finds_the_call_on_any_connection_of_its_session_only() {
        let sessions = Sessions::default();
        let (ours, other) =
            (sessions.open(opening(1), 0).unwrap(), sessions.open(opening(2), 0).unwrap());
        let calls = Arc::new(InFlight::default());
        let never = crate::proxy::reply::Running::new(|_| std::future::pending());
        let _call = calls.watch(ours.owner(), &bytes::Bytes::from_static(b"1"), never);
        ours.join(&calls);
        ours.join(&calls);
        assert!(!other.cancel(b"1"));
        other.join(&calls);
        assert!(!other.cancel(b"1") && !other.is_busy(), "it shares the connection only");
        assert!(ours.cancel(b"1"));
    }
}
