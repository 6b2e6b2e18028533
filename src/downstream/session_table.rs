//! Table of live sessions, with the sweep of expired ones and the permits for notification streams.
//!
//! [`session_eviction`](super::session_eviction) selects victims. The sweep ends sessions that were idle too long,
//! and those whose agent token was revoked, renewed or has expired. An expired JWT does not end a session, since its
//! subject continues with the next one. Sans-I/O: callers pass monotonic time in milliseconds, of any origin.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use mcpproxy_policy::identity::Identity;
use mcpproxy_policy::{Principal, StateAccounts, StateFull};
use mcpproxy_runtime::keyed_counts::{CountedUse, KeyedCounts};
use parking_lot::RwLock;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::session::{Opening, Session, SessionBudget, SessionHome, SessionPlace};
use super::session_eviction::{Candidates, Eviction, Holder, Occupancy, TooManySessions};
use super::session_ticket::{SessionTicket, SessionTickets, TicketOffice};
use mcpproxy_gateway::node_directory::NodeTag;

/// Shards, so that sessions rarely contend for a lock.
const SHARDS: usize = 16;

type Shard = RwLock<HashMap<Arc<str>, Arc<Session>>>;

/// Reason why a session is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SessionRefused {
    /// A quota is used up.
    #[error(transparent)]
    TooMany(#[from] TooManySessions),
    /// The memory for state is used up.
    #[error(transparent)]
    State(#[from] StateFull),
}

/// Live sessions, and resources shared by the streams of all clients.
#[derive(Debug)]
pub struct Sessions {
    shards: [Shard; SHARDS],
    occupancy: Occupancy,
    /// Sessions opened so far; the next one's number.
    opened: AtomicU64,
    /// Bytes of events kept over all sessions.
    kept: Arc<AtomicUsize>,
    /// Memory accounts of principals.
    accounts: StateAccounts,
    listeners: Listeners,
    draining: watch::Sender<bool>,
    /// Session tickets; `None` outside a fleet.
    tickets: Option<SessionTickets>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            occupancy: Occupancy::default(),
            opened: AtomicU64::new(1),
            kept: Arc::default(),
            accounts: StateAccounts::default(),
            listeners: Listeners::default(),
            draining: watch::Sender::new(false),
            tickets: None,
        }
    }
}

impl Sessions {
    /// Table whose session ids contain tickets, with which other nodes can reopen its sessions.
    pub fn with_tickets(office: TicketOffice) -> Self {
        Self { tickets: Some(SessionTickets::new(office)), ..Self::default() }
    }

    /// Table of at most `max` sessions; `max` exceeds [`EVICTED`](super::session_eviction::EVICTED).
    pub fn of_at_most(max: usize) -> Self {
        Self { occupancy: Occupancy::of_at_most(max), ..Self::default() }
    }

    pub fn charging(self, accounts: StateAccounts) -> Self {
        Self { accounts, ..self }
    }

    /// Opens a session with the client's `session_id` as its id. Fails if a quota is used up by busy sessions, or
    /// the memory for state is exhausted.
    pub fn open(&self, opening: Opening, now_ms: u64) -> Result<Arc<Session>, SessionRefused> {
        let id = Arc::clone(&opening.client.session_id);
        self.open_as(id, opening, None, now_ms)
    }

    /// Opens a session with this id and home, or returns the session that was opened concurrently.
    pub(super) fn open_as(
        &self,
        id: Arc<str>,
        opening: Opening,
        home: Option<NodeTag>,
        now_ms: u64,
    ) -> Result<Arc<Session>, SessionRefused> {
        let holder = opening.holder();
        let evict = |eviction| self.evict(eviction, &holder, now_ms);
        self.occupancy.make_room(&holder, evict)?;
        let account = self.accounts.of(&holder.principal);
        let bytes = opening.bytes(&id);
        let charge = account.charge(bytes).or_else(|_| {
            evict(Eviction::OfPrincipal);
            account.charge(bytes)
        })?;
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let budget = SessionBudget { charge, account, kept: Arc::clone(&self.kept) };
        let session = match self.shard(&id).write().entry(id) {
            Entry::Occupied(there) => return Ok(Arc::clone(there.get())),
            Entry::Vacant(free) => {
                let own = self.tickets.as_ref().map(SessionTickets::node);
                let place = SessionPlace {
                    id: Arc::clone(free.key()),
                    home: match home {
                        None => SessionHome::Here,
                        Some(home) if Some(home) == own => SessionHome::Forgotten,
                        Some(home) => SessionHome::Elsewhere(home),
                    },
                    node: own.map_or(0, NodeTag::number),
                };
                let session = Session::new(place, opening, number, budget, now_ms);
                Arc::clone(free.insert(Arc::new(session)))
            }
        };
        self.occupancy.opened(&holder);
        Ok(session)
    }

    /// The `Mcp-Session-Id` of a session opened at `unix_ms` (milliseconds since 1970) with these 128 random bits;
    /// `None` for a revision without sessions.
    pub(super) fn new_id(
        &self,
        opening: &Opening,
        random: [u8; 16],
        unix_ms: impl FnOnce() -> u64,
    ) -> Option<Arc<str>> {
        match &self.tickets {
            None => Some(Arc::clone(&opening.client.session_id)),
            Some(tickets) => tickets.seal(opening, random, unix_ms()),
        }
    }

    /// Ticket in the id of a session that was opened on another node, or that this node evicted or lost in a restart.
    /// `None` for any other id, and if the session has ended.
    pub(super) fn ticket(&self, id: &str, unix_ms: impl FnOnce() -> u64) -> Option<SessionTicket> {
        let opened = self.tickets.as_ref()?.open(id, unix_ms());
        let refused = |refusal| tracing::debug!(%refusal, "invalid ticket in a session id");
        opened.map_err(refused).ok()?
    }

    /// Ends a session at its client's request; in a fleet also voids its id. False if there was no such session.
    pub(super) fn end_for_good(&self, session: &Session, unix_ms: impl FnOnce() -> u64) -> bool {
        if let Some(tickets) = &self.tickets
            && let Ok(salt) = u128::from_str_radix(&session.client.session_id, 16)
        {
            tickets.revoke(salt.to_be_bytes(), unix_ms());
        }
        self.end(session.id())
    }

    /// Ends the session of a ticket at another node's request.
    pub(super) fn end_by_ticket(
        &self,
        id: &str,
        ticket: &SessionTicket,
        unix_ms: impl FnOnce() -> u64,
    ) {
        if let Some(tickets) = &self.tickets {
            tickets.revoke(ticket.salt, unix_ms());
        }
        self.end(id);
    }

    pub fn count(&self) -> usize {
        self.occupancy.count()
    }

    /// Records a request in a session; after the first request the session no longer counts against the quota for
    /// unused sessions.
    pub fn note_use(&self, session: &Session) {
        if session.begin_use() {
            self.occupancy.used(session.holder());
        }
    }

    /// Returns the live session with this id, and records a use.
    pub fn find(&self, id: &str, now_ms: u64) -> Option<Arc<Session>> {
        let shard = self.shard(id).read();
        let session = shard.get(id)?;
        session.touch(now_ms).then(|| Arc::clone(session))
    }

    /// Ends a session; false if there was no such session.
    pub fn end(&self, id: &str) -> bool {
        self.end_if(id, |_| true)
    }

    fn end_if(&self, id: &str, over: impl Fn(&Session) -> bool) -> bool {
        let ended = {
            let mut shard = self.shard(id).write();
            match shard.get(id) {
                Some(session) if over(session) => shard.remove(id),
                Some(_) | None => None,
            }
        };
        let Some(session) = ended else { return false };
        self.left(&session);
        true
    }

    /// Ends expired sessions.
    pub fn sweep(&self, now_ms: u64) {
        self.end_where(|session| session.expired(now_ms));
    }

    pub(super) fn end_of_principals(&self, over: impl Fn(&Principal) -> bool) {
        self.end_where(|session| over(session.principal()));
    }

    fn end_where(&self, over: impl Fn(&Session) -> bool) {
        for shard in &self.shards {
            let ids: Vec<_> = {
                let shard = shard.read();
                let ended = shard.values().filter(|session| over(session));
                ended.map(|session| Arc::clone(session.id())).collect()
            };
            for id in ids {
                self.end_if(&id, &over);
            }
        }
    }

    fn evict(&self, eviction: Eviction, newcomer: &Holder, now_ms: u64) {
        if eviction == Eviction::Expired {
            return self.sweep(now_ms);
        }
        let mut candidates = Candidates::default();
        for shard in &self.shards {
            let shard = shard.read();
            let sessions =
                shard.values().filter(|it| eviction.is_about(it.holder(), it.is_used(), newcomer));
            for session in sessions {
                let idle =
                    (!session.is_busy()).then(|| (session.used_ms(), Arc::clone(session.id())));
                candidates.add(session.principal(), idle);
            }
        }
        for id in candidates.evicted(&newcomer.principal) {
            self.end(&id);
        }
    }

    /// Updates the counts for a removed session.
    fn left(&self, session: &Session) {
        session.end();
        // The session is marked as used, so that a first use after its removal does not change the counts.
        self.note_use(session);
        self.occupancy.left(session.holder());
    }

    /// Permits for a notification stream of this principal; `None` if none are left.
    pub(crate) fn stream_permits(
        &self,
        principal: &Principal,
        session: Option<&Session>,
    ) -> Option<StreamPermits> {
        self.listeners.permits(principal, session.map(|session| &session.listeners))
    }

    /// Ends all notification streams, at shutdown.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Signals [`Sessions::drain`].
    pub(crate) fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    fn shard(&self, id: &str) -> &Shard {
        // The last character of an id is random, so it spreads the sessions evenly over the shards.
        let digit = id.bytes().last().map_or(0, |last| usize::from(last) % SHARDS);
        let [first, ..] = &self.shards;
        self.shards.get(digit).unwrap_or(first)
    }
}

/// Interval of the sweep.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Sweeps sessions for as long as it is polled. `now_ms` is the clock that also times their use.
pub async fn run(sessions: Arc<Sessions>, identity: Arc<Identity>, now_ms: impl Fn() -> u64) {
    let mut times = tokio::time::interval(SWEEP_INTERVAL);
    times.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        sessions.sweep(now_ms());
        let now = SystemTime::now();
        sessions.end_of_principals(|principal| match principal {
            Principal::Token(_) => !identity.in_force(principal, now),
            Principal::Anonymous
            | Principal::Admin
            | Principal::Subject(_)
            | Principal::Certificate(_) => false,
        });
    }
}

/// Maximum number of open notification streams over all clients.
pub(super) const MAX_LISTENERS: usize = 1024;

/// Notification streams of all clients.
#[derive(Debug, Default)]
pub(super) struct Listeners(Arc<KeyedCounts<Principal>>);

#[derive(Debug)]
pub(crate) struct StreamPermits {
    /// The session's permit, if there is a session.
    _of_session: Option<OwnedSemaphorePermit>,
    _of_principal: CountedUse<Principal>,
}

impl Listeners {
    /// Permits for a stream of `principal`, also from its session's semaphore if given; `None` if none are left or
    /// the principal's quota is used up.
    pub(super) fn permits(
        &self,
        principal: &Principal,
        session: Option<&Arc<Semaphore>>,
    ) -> Option<StreamPermits> {
        let of_session = match session {
            Some(session) => Some(Arc::clone(session).try_acquire_owned().ok()?),
            None => None,
        };
        let quota = principal.share(MAX_LISTENERS);
        let of_principal = self.0.take(principal.clone(), quota, MAX_LISTENERS).ok()?;
        Some(StreamPermits { _of_session: of_session, _of_principal: of_principal })
    }
}

#[cfg(test)]
mod tests {
    use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
    use mcpproxy_protocol::mcp::revisions::ProtocolFamily;

    use super::super::in_flight::InFlight;
    use super::super::session::{IDLE_MS, SessionKey, fresh_id};
    use super::super::session_eviction::{Held, MAX_SESSIONS, MAX_UNUSED};
    use super::super::session_ticket::tests::{office, opening as ticket_opening};
    use super::super::source::Source;
    use super::*;
    use mcpproxy_gateway::proxy::client::{Client, Endpoint};

    fn opening(n: u128) -> Opening {
        let id = fresh_id(n.to_be_bytes());
        let client = Client::new(
            id,
            "ide",
            "2025-11-25",
            ProtocolFamily::Legacy,
            ClientCapabilities::default(),
        );
        let (key, source) = (SessionKey::default(), Source::Loopback);
        Opening { client, endpoint: Endpoint::Search, principal: Principal::Anonymous, key, source }
    }

    /// Opens a session with a request in it.
    fn in_use(sessions: &Sessions, n: u128, source: Source, now_ms: u64) -> Arc<Session> {
        let session = sessions.open(Opening { source, ..opening(n) }, now_ms).unwrap();
        sessions.note_use(&session);
        session
    }

    fn remote(last: u8) -> Source {
        Source::of([10, 0, 0, last].into())
    }

    #[test]
    fn session_exists_until_it_is_ended_or_idle() {
        let sessions = Sessions::default();
        let kept = sessions.open(opening(7), 0).unwrap();
        assert_eq!(kept.id().len(), 32);
        assert!(sessions.find(kept.id(), IDLE_MS).is_some());
        assert!(sessions.find(kept.id(), 2 * IDLE_MS).is_some(), "a use restarts the idle time");
        assert!(sessions.find(kept.id(), 3 * IDLE_MS + 1).is_none());
        let ended = sessions.open(opening(8), 0).unwrap();
        assert!(sessions.end(ended.id()));
        assert!(!sessions.end(ended.id()));
        assert!(!ended.touch(1), "a cached session has ended");
        assert!(sessions.find(ended.id(), 1).is_none());
    }

    #[test]
    fn newcomer_replaces_the_longest_idle_session() {
        let sessions = Sessions::default();
        let all: Vec<_> = (0..MAX_SESSIONS as u128)
            .map(|n| in_use(&sessions, n, Source::Loopback, n as u64))
            .collect();
        let calls = Arc::new(InFlight::default());
        all[0].join(&calls);
        let never = mcpproxy_gateway::proxy::reply::Running::new(|_| std::future::pending());
        let _busy = calls.watch(all[0].owner(), &bytes::Bytes::from_static(b"1"), never);
        let late = MAX_SESSIONS as u64;
        assert!(sessions.find(all[1].id(), late).is_some());
        assert!(sessions.open(opening(u128::MAX), late).is_ok());
        assert!(!all[0].has_ended(), "it has a call in flight");
        assert!(!all[1].has_ended(), "it was just used");
        assert!(all[2].has_ended() && sessions.find(all[2].id(), late).is_none());
        assert!(!all[MAX_SESSIONS - 1].has_ended());
    }

    #[test]
    fn session_table_is_full_if_all_sessions_are_busy() {
        let sessions = Sessions::default();
        let never = || mcpproxy_gateway::proxy::reply::Running::new(|_| std::future::pending());
        let _busy: Vec<_> = (0..MAX_SESSIONS as u128)
            .map(|n| {
                let session = in_use(&sessions, n, Source::Loopback, 0);
                let calls = Arc::new(InFlight::default());
                session.join(&calls);
                calls.watch(session.owner(), &bytes::Bytes::from_static(b"1"), never())
            })
            .collect();
        let refused = sessions.open(opening(u128::MAX), 1).unwrap_err();
        assert_eq!(refused, SessionRefused::TooMany(TooManySessions));
    }

    #[test]
    fn client_that_only_opens_sessions_evicts_only_its_own() {
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
            let holder = Holder { source, principal: Principal::Anonymous };
            let Held { all, unused } = sessions.occupancy.of_holder(&holder);
            assert!(all == unused + 1 && unused <= MAX_UNUSED, "{all} {unused}");
        }
    }

    #[test]
    fn address_at_its_quota_evicts_its_longest_idle_session() {
        let sessions = Sessions::default();
        let share = remote(1).share(MAX_SESSIONS);
        assert!(share < MAX_SESSIONS);
        let other = in_use(&sessions, u128::MAX, remote(2), 0);
        let all: Vec<_> =
            (0..share as u128).map(|n| in_use(&sessions, n, remote(1), 1 + n as u64)).collect();
        assert!(all.iter().all(|session| !session.has_ended()));
        in_use(&sessions, share as u128, remote(1), 1 + share as u64);
        assert!(all[0].has_ended() && !all[share - 1].has_ended());
        assert!(!other.has_ended(), "the longest idle of all");
    }

    fn named(name: &str) -> Principal {
        let token = mcpproxy_policy::AgentToken::new(name, 1, mcpproxy_policy::Scope::default());
        Principal::Token(Arc::new(token))
    }

    /// Opens a session of this principal with a request in it.
    fn of(sessions: &Sessions, n: u128, principal: &Principal, now_ms: u64) -> Arc<Session> {
        let opening = Opening { principal: principal.clone(), ..opening(n) };
        let session = sessions.open(opening, now_ms).unwrap();
        sessions.note_use(&session);
        session
    }

    #[test]
    fn token_never_evicts_idle_sessions_of_another_token() {
        let sessions = Sessions::of_at_most(1000);
        let (ada, bob) = (named("ada"), named("bob"));
        let others: Vec<_> = (0..3).map(|n| of(&sessions, n, &bob, 0)).collect();
        let all: Vec<_> =
            (0..2000).map(|n| of(&sessions, 100 + n as u128, &ada, 1 + n as u64)).collect();
        assert!(others.iter().all(|session| !session.has_ended()), "the longest idle of all");
        assert!(all[0].has_ended() && !all[1999].has_ended());
        let holder = Holder { source: Source::Loopback, principal: ada.clone() };
        assert!(sessions.occupancy.of_holder(&holder).all <= ada.share(1000));
        // The same holds with a full table.
        let full = (0..2000).map(|n| of(&sessions, 10_000 + n, &Principal::Anonymous, 3000));
        full.for_each(drop);
        assert!(others.iter().all(|session| !session.has_ended()));
        assert!(sessions.count() <= 1000);
        let late = of(&sessions, 99_999, &bob, 3001);
        assert!(!late.has_ended() && others.iter().all(|session| !session.has_ended()));
    }

    #[test]
    fn token_never_evicts_unused_sessions_of_another_token() {
        let sessions = Sessions::default();
        let (ada, bob) = (named("ada"), named("bob"));
        let open = |n: u128, principal: &Principal| {
            let opening = Opening { principal: principal.clone(), ..opening(n) };
            sessions.open(opening, 1).unwrap()
        };
        let other = open(0, &bob);
        (1..3 * MAX_UNUSED as u128).for_each(|n| drop(open(n, &ada)));
        assert!(!other.has_ended());
        assert!(sessions.count() <= MAX_UNUSED + 1);
    }

    #[test]
    fn session_state_is_charged_to_the_principal_until_the_end() {
        let accounts = StateAccounts::of_at_most(9000, 1 << 20);
        let sessions = Sessions::default().charging(accounts.clone());
        let (ada, bob) = (named("ada"), named("bob"));
        let other = of(&sessions, 0, &bob, 0);
        let busy: Vec<_> = (1..=4)
            .map(|n| {
                let session = of(&sessions, n, &ada, 1);
                let calls = Arc::new(InFlight::default());
                session.join(&calls);
                let never =
                    mcpproxy_gateway::proxy::reply::Running::new(|_| std::future::pending());
                let call = calls.watch(session.owner(), &bytes::Bytes::from_static(b"1"), never);
                (session, call)
            })
            .collect();
        let one_more = || sessions.open(Opening { principal: ada.clone(), ..opening(9) }, 2);
        let refused = SessionRefused::State(StateFull::OfPrincipal { limit: 9000 });
        assert_eq!(one_more().unwrap_err(), refused);
        assert!(!other.has_ended());
        drop(of(&sessions, 10, &bob, 2));
        // An idle session of the same principal is evicted.
        let [(first, call), rest @ ..] = <[_; 4]>::try_from(busy).unwrap();
        drop(call);
        let late = one_more().unwrap();
        assert!(first.has_ended() && !late.has_ended());
        sessions.end_of_principals(|principal| *principal == ada);
        assert!(late.has_ended() && rest.iter().all(|(session, _)| session.has_ended()));
        drop((first, late, rest));
        assert_eq!(accounts.of(&ada).bytes(), 0);
        assert!(accounts.of(&bob).bytes() > 0 && !other.has_ended());
    }

    fn salt(n: u8) -> [u8; 16] {
        [n; 16]
    }

    /// A session opened on `node` at Unix time 0.
    fn opened_on(node: &Sessions, n: u8) -> Arc<Session> {
        let opening = ticket_opening(salt(n), Principal::Admin);
        let id = node.new_id(&opening, salt(n), || 0).unwrap();
        node.open_as(id, opening, None, 0).unwrap()
    }

    /// Looks up or reopens the session with this id on another node.
    fn reopened(node: &Sessions, id: &str, unix_ms: u64) -> Option<Arc<Session>> {
        let ticket = node.ticket(id, || unix_ms)?;
        let home = Some(ticket.node);
        let opening = ticket.opening(Principal::Admin, Source::Loopback, Endpoint::All);
        node.open_as(id.into(), opening, home, 0).ok()
    }

    #[test]
    fn any_fleet_node_reopens_a_session_until_its_client_ends_it() {
        let (a, b) =
            (Sessions::with_tickets(office(1, "a")), Sessions::with_tickets(office(1, "b")));
        let session = opened_on(&a, 7);
        assert_eq!(*session.client.session_id, *fresh_id(salt(7)));
        assert_ne!(session.id(), &session.client.session_id);
        let elsewhere = reopened(&b, session.id(), 9).unwrap();
        assert_eq!(elsewhere.client.session_id, session.client.session_id);
        let there = SessionHome::Elsewhere(office(1, "a").node);
        assert_eq!((session.home(), elsewhere.home()), (SessionHome::Here, there));
        assert!(a.end(session.id()));
        let again = reopened(&a, session.id(), 9).unwrap();
        assert_eq!(again.home(), SessionHome::Forgotten, "its state is lost");
        let session = again;
        let twice = reopened(&b, session.id(), 9).unwrap();
        assert!(Arc::ptr_eq(&elsewhere, &twice) && b.count() == 1, "concurrent requests");
        assert!(b.find(session.id(), 0).is_some());
        // The session was evicted: its client can continue.
        assert!(b.end(session.id()) && reopened(&b, session.id(), 9).is_some());
        assert!(b.end_for_good(&elsewhere, || 10));
        assert!(reopened(&b, session.id(), 11).is_none());
        a.end_by_ticket(session.id(), &a.ticket(session.id(), || 11).unwrap(), || 11);
        assert!(session.has_ended() && reopened(&a, session.id(), 12).is_none(), "notified");
        assert!(reopened(&Sessions::with_tickets(office(2, "c")), session.id(), 11).is_none());
    }

    #[test]
    fn session_id_without_a_fleet_is_random_bits_and_reopens_no_session() {
        let sessions = Sessions::default();
        let session = opened_on(&sessions, 7);
        assert_eq!(**session.id(), *fresh_id(salt(7)));
        assert!(sessions.end_for_good(&session, || 0));
        let sealed = opened_on(&Sessions::with_tickets(office(1, "a")), 7);
        for id in [session.id(), sealed.id()] {
            assert!(reopened(&sessions, id, 1).is_none());
        }
    }

    #[test]
    fn sealed_ids_spread_over_all_shards() {
        let sessions = Sessions::with_tickets(office(1, "a"));
        for n in 0..=255 {
            opened_on(&sessions, n);
        }
        assert!(sessions.shards.iter().all(|shard| shard.read().len() > 2));
    }

    #[test]
    fn cancellation_reaches_calls_on_any_connection_of_the_session() {
        let sessions = Sessions::default();
        let (ours, other) =
            (sessions.open(opening(1), 0).unwrap(), sessions.open(opening(2), 0).unwrap());
        let calls = Arc::new(InFlight::default());
        let never = mcpproxy_gateway::proxy::reply::Running::new(|_| std::future::pending());
        let _call = calls.watch(ours.owner(), &bytes::Bytes::from_static(b"1"), never);
        ours.join(&calls);
        ours.join(&calls);
        assert!(!other.cancel(b"1"));
        other.join(&calls);
        assert!(!other.cancel(b"1") && !other.is_busy(), "it shares the connection only");
        assert!(ours.cancel(b"1"));
    }

    #[test]
    fn principal_at_its_stream_quota_leaves_permits_to_others() {
        let listeners = Listeners::default();
        let [ada, bob] = ["ada", "bob"].map(Principal::certificate);
        let share = ada.share(MAX_LISTENERS);
        let open: Vec<_> = (0..share).map(|_| listeners.permits(&ada, None).unwrap()).collect();
        assert!(listeners.permits(&ada, None).is_none());
        let other = listeners.permits(&bob, None).unwrap();
        drop(open);
        assert_eq!(listeners.0.keys(), 1);
        assert!(listeners.permits(&ada, None).is_some());
        drop(other);
        assert_eq!(listeners.0.keys(), 0);
    }

    #[test]
    fn stream_permits_are_bounded_in_total_and_per_session() {
        let (listeners, session) = (Listeners::default(), Arc::new(Semaphore::new(1)));
        let permit = || listeners.permits(&Principal::Anonymous, Some(&session));
        let first = permit().unwrap();
        assert!(permit().is_none());
        drop(first);
        let rest = (0..MAX_LISTENERS).map(|_| listeners.permits(&Principal::Anonymous, None));
        let open: Vec<_> = rest.map(Option::unwrap).collect();
        assert!(permit().is_none());
        drop(open);
        assert!(permit().is_some());
    }
}
