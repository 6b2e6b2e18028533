//! The table of live sessions: opened, found by their ids, ended. Which of them go when there is no room is decided in
//! [`session_eviction`](super::session_eviction).
//!
//! Has no clock: callers say what time it is, in milliseconds of any monotonic origin.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::downstream::ended_sessions::EndedSessions;
use crate::downstream::session::{Opening, Session, SessionHome, SessionPlace};
use crate::downstream::session_eviction::{Eviction, Occupancy, TooManySessions, longest_idle};
use crate::downstream::session_ticket::{SessionTicket, TicketOffice};
use crate::fleet::sealed_id::IdSalt;
use crate::fleet::sealed_mark::NodeTag;

/// Streams that tell of changes, open at once over all clients.
pub const MAX_LISTENERS: usize = 1024;
/// Shards of the table, so that sessions rarely meet on a lock.
const SHARDS: usize = 16;

type Shard = RwLock<HashMap<Arc<str>, Arc<Session>>>;

/// What a stream that tells of changes holds: a place among all, and one in its session.
pub type StreamPermits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// All live sessions, and what the streams of all clients share.
#[derive(Debug)]
pub struct Sessions {
    shards: [Shard; SHARDS],
    occupancy: Occupancy,
    /// How many there ever were: the number of the next one.
    opened: AtomicU64,
    /// Bytes of events that are kept over all of them.
    kept: Arc<AtomicUsize>,
    listeners: Arc<Semaphore>,
    draining: watch::Sender<bool>,
    /// In a fleet.
    fleet: Option<FleetSessions>,
}

/// What makes the sessions of all nodes of a fleet known on each of them.
#[derive(Debug)]
struct FleetSessions {
    office: TicketOffice,
    ended: Mutex<EndedSessions>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            occupancy: Occupancy::default(),
            opened: AtomicU64::new(1),
            kept: Arc::default(),
            listeners: Arc::new(Semaphore::new(MAX_LISTENERS)),
            draining: watch::Sender::new(false),
            fleet: None,
        }
    }
}

impl Sessions {
    /// A table of a node of a fleet, whose ids that office seals and opens.
    #[must_use]
    pub fn of_fleet(office: TicketOffice) -> Self {
        Self { fleet: Some(FleetSessions { office, ended: Mutex::default() }), ..Self::default() }
    }

    /// A table of at most so many sessions, more than [`EVICTED`](super::session_eviction::EVICTED): one that is soon full.
    #[must_use]
    pub fn of_at_most(most: usize) -> Self {
        Self { occupancy: Occupancy::of_at_most(most), ..Self::default() }
    }

    /// Opens a session with the client's `session_id` as its id.
    ///
    /// # Errors
    ///
    /// [`TooManySessions`] when [`MAX_SESSIONS`](super::session_eviction::MAX_SESSIONS), or the address's share of
    /// them, are in use and none of them is idle.
    pub fn open(&self, opening: Opening, now_ms: u64) -> Result<Arc<Session>, TooManySessions> {
        let id = Arc::clone(&opening.client.session_id);
        self.open_as(id, opening, None, now_ms)
    }

    /// Opens a session with that id, which the node `home` had opened if it is not a new one, or gives the one that was opened
    /// with it at the same time.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub(super) fn open_as(
        &self,
        id: Arc<str>,
        opening: Opening,
        home: Option<NodeTag>,
        now_ms: u64,
    ) -> Result<Arc<Session>, TooManySessions> {
        let source = opening.source;
        self.occupancy.make_room(source, |eviction| self.evict(eviction, now_ms))?;
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let kept = Arc::clone(&self.kept);
        let session = match self.shard(&id).write().entry(id) {
            Entry::Occupied(there) => return Ok(Arc::clone(there.get())),
            Entry::Vacant(free) => {
                let own = self.fleet.as_ref().map(|fleet| fleet.office.node());
                let place = SessionPlace {
                    id: Arc::clone(free.key()),
                    home: match home {
                        None => SessionHome::Here,
                        Some(home) if Some(home) == own => SessionHome::Forgotten,
                        Some(home) => SessionHome::Elsewhere(home),
                    },
                    node: own.map_or(0, NodeTag::number),
                };
                let session = Session::new(place, opening, number, kept, now_ms);
                Arc::clone(free.insert(Arc::new(session)))
            }
        };
        self.occupancy.opened(source);
        Ok(session)
    }

    /// The `Mcp-Session-Id` of a session that is opened at `unix_ms` (milliseconds since 1970) with these 128 random bits;
    /// `None` if there can be none.
    pub(super) fn new_id(
        &self,
        opening: &Opening,
        random: IdSalt,
        unix_ms: impl FnOnce() -> u64,
    ) -> Option<Arc<str>> {
        match &self.fleet {
            None => Some(Arc::clone(&opening.client.session_id)),
            Some(fleet) => fleet.office.seal(opening, random, unix_ms()),
        }
    }

    /// What an id says of a session that another node of the fleet has opened, or this one before it had to make room or was
    /// started anew. `None` if it says nothing, or the session has ended.
    pub(super) fn ticket(&self, id: &str, unix_ms: impl FnOnce() -> u64) -> Option<SessionTicket> {
        let fleet = self.fleet.as_ref()?;
        let opened = fleet.office.open(id, unix_ms());
        let refused = |refusal| tracing::debug!(%refusal, "a session's id opens nothing");
        let ticket = opened.map_err(refused).ok()?;
        (!fleet.ended.lock().has(&ticket.salt)).then_some(ticket)
    }

    /// Ends a session because its client does: in a fleet its id opens nothing here any more. False if there was none.
    pub(super) fn end_for_good(&self, session: &Session, unix_ms: impl FnOnce() -> u64) -> bool {
        if let Some(fleet) = &self.fleet
            && let Ok(salt) = u128::from_str_radix(&session.client.session_id, 16)
        {
            fleet.ended.lock().note(salt.to_be_bytes(), unix_ms());
        }
        self.end(session.id())
    }

    /// Ends the session of an id that another node of the fleet has told of, and whose ticket that is, wherever it may be opened.
    pub(super) fn end_told(&self, id: &str, ticket: &SessionTicket, unix_ms: impl FnOnce() -> u64) {
        if let Some(fleet) = &self.fleet {
            fleet.ended.lock().note(ticket.salt, unix_ms());
        }
        self.end(id);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.occupancy.count()
    }

    /// Notes that something was asked in a session, which the first time sets it apart from those
    /// that are only opened.
    pub fn note_use(&self, session: &Session) {
        if session.begin_use() {
            self.occupancy.used(session.source());
        }
    }

    /// The live session of that id, its use noted.
    #[must_use]
    pub fn find(&self, id: &str, now_ms: u64) -> Option<Arc<Session>> {
        let shard = self.shard(id).read();
        let session = shard.get(id)?;
        session.touch(now_ms).then(|| Arc::clone(session))
    }

    /// Ends a session; false if there was none.
    pub fn end(&self, id: &str) -> bool {
        let Some(session) = self.shard(id).write().remove(id) else { return false };
        self.left(&session);
        true
    }

    /// Forgets what has expired.
    pub fn sweep(&self, now_ms: u64) {
        for shard in &self.shards {
            let mut shard = shard.write();
            let expired = shard.extract_if(|_, session| session.expired(now_ms));
            expired.for_each(|(_, session)| self.left(&session));
        }
    }

    fn evict(&self, eviction: Eviction, now_ms: u64) {
        let goes = |session: &Session| match eviction {
            Eviction::Expired => false,
            Eviction::UnusedOf(source) => session.source() == source && !session.is_used(),
            Eviction::IdleOf(source) => session.source() == source,
            Eviction::Idle => true,
        };
        if eviction == Eviction::Expired {
            return self.sweep(now_ms);
        }
        let mut idle = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let sessions = shard.values().filter(|it| goes(it) && !it.is_busy());
            idle.extend(sessions.map(|it| (it.used_ms(), Arc::clone(it.id()))));
        }
        for id in longest_idle(idle) {
            self.end(&id);
        }
    }

    /// A session is in the table no more.
    fn left(&self, session: &Session) {
        session.end();
        // From now on it counts as used, whatever comes.
        self.note_use(session);
        self.occupancy.left(session.source());
    }

    /// Room for a stream that tells of changes, of a session or of none; `None` if there is none left.
    #[must_use]
    pub fn stream_permits(&self, session: Option<&Session>) -> Option<StreamPermits> {
        let shared = Arc::clone(&self.listeners).try_acquire_owned().ok()?;
        let own = match session {
            Some(session) => Some(Arc::clone(&session.listeners).try_acquire_owned().ok()?),
            None => None,
        };
        Some((shared, own))
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
        // The ids are random to their end, so their last character spreads them evenly.
        let digit = id.bytes().last().map_or(0, |last| usize::from(last) % SHARDS);
        let [first, ..] = &self.shards;
        self.shards.get(digit).unwrap_or(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downstream::in_flight::InFlight;
    use crate::downstream::session::{IDLE_MS, fresh_id};
    use crate::downstream::session_eviction::{Held, MAX_SESSIONS, MAX_UNUSED};
    use crate::downstream::session_key::SessionKey;
    use crate::downstream::session_ticket::tests::{office, opening as ticket_opening};
    use crate::downstream::source::Source;
    use crate::mcp::capabilities::ClientCapabilities;
    use crate::mcp::revisions::Era;
    use crate::policy::Principal;
    use crate::proxy::caller::Endpoint;
    use crate::proxy::client::Client;

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
            let Held { all, unused } = sessions.occupancy.held(source);
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
    }

    fn salt(n: u8) -> IdSalt {
        [n; 16]
    }

    /// A session that `node` opens at the Unix time 0.
    fn opened_on(node: &Sessions, n: u8) -> Arc<Session> {
        let opening = ticket_opening(salt(n), Principal::Admin);
        let id = node.new_id(&opening, salt(n), || 0).unwrap();
        node.open_as(id, opening, None, 0).unwrap()
    }

    /// The session of that id on a node that may not have it.
    fn reopened(node: &Sessions, id: &str, unix_ms: u64) -> Option<Arc<Session>> {
        let ticket = node.ticket(id, || unix_ms)?;
        let home = Some(ticket.node);
        let opening = ticket.opening(Principal::Admin, Source::Loopback);
        node.open_as(id.into(), opening, home, 0).ok()
    }

    #[test]
    fn in_a_fleet_any_node_goes_on_with_a_session_until_its_client_ends_it() {
        let (a, b) = (Sessions::of_fleet(office(1, "a")), Sessions::of_fleet(office(1, "b")));
        let session = opened_on(&a, 7);
        assert_eq!(*session.client.session_id, *fresh_id(salt(7)));
        assert_ne!(session.id(), &session.client.session_id);
        let elsewhere = reopened(&b, session.id(), 9).unwrap();
        assert_eq!(elsewhere.client.session_id, session.client.session_id);
        let there = SessionHome::Elsewhere(office(1, "a").node());
        assert_eq!((session.home(), elsewhere.home()), (SessionHome::Here, there));
        assert!(a.end(session.id()));
        let again = reopened(&a, session.id(), 9).unwrap();
        assert_eq!(again.home(), SessionHome::Forgotten, "what it left behind is not known");
        let session = again;
        let twice = reopened(&b, session.id(), 9).unwrap();
        assert!(Arc::ptr_eq(&elsewhere, &twice) && b.count() == 1, "two requests at once");
        assert!(b.find(session.id(), 0).is_some());
        // It was put out for want of room: its client can go on.
        assert!(b.end(session.id()) && reopened(&b, session.id(), 9).is_some());
        assert!(b.end_for_good(&elsewhere, || 10));
        assert!(reopened(&b, session.id(), 11).is_none());
        a.end_told(session.id(), &a.ticket(session.id(), || 11).unwrap(), || 11);
        assert!(session.has_ended() && reopened(&a, session.id(), 12).is_none(), "told of it");
        assert!(reopened(&Sessions::of_fleet(office(2, "c")), session.id(), 11).is_none());
    }

    #[test]
    fn without_a_fleet_an_id_is_its_random_bits_and_opens_nothing() {
        let sessions = Sessions::default();
        let session = opened_on(&sessions, 7);
        assert_eq!(**session.id(), *fresh_id(salt(7)));
        assert!(sessions.end_for_good(&session, || 0));
        let sealed = opened_on(&Sessions::of_fleet(office(1, "a")), 7);
        for id in [session.id(), sealed.id()] {
            assert!(reopened(&sessions, id, 1).is_none());
        }
    }

    #[test]
    fn sealed_ids_are_spread_over_all_of_the_table() {
        let sessions = Sessions::of_fleet(office(1, "a"));
        for n in 0..=255 {
            opened_on(&sessions, n);
        }
        assert!(sessions.shards.iter().all(|shard| shard.read().len() > 2));
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
