//! A client: what it declared, which messages it receives, and which requests of servers it has yet to answer.
//!
//! One [`Client`] stands for a session of the initialize-based revisions, for a pipe, or for one
//! request of the stateless revision. Owns the table of requests that upstreams, or we, sent to it and that
//! it has not answered: its answers are looked up there and nowhere else, so no client can answer
//! what another was asked. How messages reach it is the faces' affair.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::dropped_members::DroppedMembers;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::revisions::{Era, Revision};
use crate::mcp::shapes::Left;
use crate::policy::FactsCell;
use crate::tool::server_id::ServerId;

/// Requests one client may have open at once, over all its calls.
pub const MAX_ASKED: usize = 64;
/// Most resources that one client may subscribe to.
pub const MAX_SUBSCRIPTIONS: usize = 256;
/// Longest client name kept, in bytes.
pub const MAX_CLIENT_NAME_BYTES: usize = 128;

/// Messages beside any answer that wait for a client to read them; more are lost.
pub const MAX_ASIDE: usize = 32;

/// Bits of a question's id below those of the node that asks it. With those the id is a number that JSON carries whole (53 bits).
const QUESTION_BITS: u32 = 22;

/// The node of a fleet that asked the question with this id; 0 where there is no fleet. In a session that was asked more than
/// four million questions it may be another.
#[must_use]
pub fn node_of_question(id: u64) -> u64 {
    id >> QUESTION_BITS
}

/// Where [`Client::was_active`] counts from.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Severity of a log message (RFC 5424), least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "each is its word")]
pub enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

/// No log messages at all, as stored.
const SILENT: u8 = u8::MAX;

/// One client. Shared by its requests.
#[derive(Debug)]
pub struct Client {
    /// The session's id, empty outside of one.
    pub session_id: Arc<str>,
    /// The name it gave itself, empty if none; cut at [`MAX_CLIENT_NAME_BYTES`].
    pub name: Arc<str>,
    /// The protocol revision.
    pub version: &'static str,
    /// How it speaks.
    pub era: Era,
    /// What it declared that it can be asked.
    pub client_capabilities: ClientCapabilities,
    /// What its session has seen; of one outside of a session, nothing is kept here.
    pub facts: FactsCell,
    /// The least [`Level`] it wants to be told, or [`SILENT`].
    level: AtomicU8,
    /// It said so itself.
    chose_level: AtomicBool,
    /// Where it listens outside of its calls, while it does.
    aside: Mutex<Option<mpsc::Sender<Bytes>>>,
    /// Which servers it has used, a bit for each id below 64.
    used: AtomicU64,
    /// Its use of servers; shared with [`LogRouting`](super::log_routing), which needs it after the client has gone.
    active: Arc<Active>,
    asked: Mutex<Asked>,
    /// URIs, as the client knows them.
    subscriptions: Mutex<BTreeSet<Arc<str>>>,
    /// What was warned of that it said and that stays behind, in a session.
    dropped_members: DroppedMembers,
}

/// Whether a client has calls in flight, and when it last used a server.
#[derive(Debug, Default)]
pub(super) struct Active {
    /// In seconds since [`EPOCH`], plus one; 0 for never.
    last_use: AtomicU64,
    /// The [`ActiveCall`]s that exist.
    in_flight: AtomicU32,
}

impl Active {
    /// Whether a call of the client is in flight, at whichever server. Where none is, [`Self::seconds_ago`] asked
    /// afterwards knows the time that an answered call noted.
    pub(super) fn has_calls(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0
    }

    /// Whole seconds since then, at most one too many; none if it never did, or has taken its
    /// leave.
    pub(super) fn seconds_ago(&self, now: Instant) -> Option<u64> {
        let then = self.last_use.load(Ordering::Relaxed).checked_sub(1)?;
        Some(now.duration_since(*EPOCH).as_secs().saturating_sub(then))
    }
}

/// A call of a client that is in flight: counted by its client from when it is made until it is dropped.
#[derive(Debug)]
pub struct ActiveCall(Arc<Client>);

impl ActiveCall {
    /// Counts a call of `client`.
    #[must_use]
    pub fn of(client: Arc<Client>) -> Self {
        client.active.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(client)
    }
}

impl Deref for ActiveCall {
    type Target = Arc<Client>;

    /// The client whose call it is.
    fn deref(&self) -> &Arc<Client> {
        &self.0
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        // Pairs with `Active::has_calls`.
        self.0.active.in_flight.fetch_sub(1, Ordering::Release);
    }
}

#[derive(Debug, Default)]
struct Asked {
    /// The id of the next request; never used twice.
    next: u64,
    open: BTreeMap<u64, Question>,
}

/// A request that a client was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// An upstream's.
    Server(ServerQuestion),
    /// Whether a call of its own may go out.
    Approval(ApprovalQuestion),
}

/// The question whether a call may go out (CAP-8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalQuestion {
    /// The approval.
    pub id: Box<str>,
    /// The principal that calls, and so answers.
    pub principal: Box<str>,
}

/// A request of an upstream that a client was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerQuestion {
    /// The upstream that asks.
    pub server: Arc<str>,
    /// What it asks: the method.
    pub method: Box<str>,
    /// The connection to it that the request came on.
    pub generation: u64,
    /// The id under which the upstream knows it, as it wrote it.
    pub raw_id: Bytes,
}

#[cfg(test)]
impl Client {
    /// A client of the legacy era that offers nothing.
    pub(crate) fn of_test() -> Arc<Self> {
        let offered = ClientCapabilities::default();
        Arc::new(Self::new("s".into(), "", "2025-11-25", Era::Legacy, offered))
    }
}

impl Client {
    /// A client that receives log messages of every level in the legacy era, none in the modern.
    #[must_use]
    pub fn new(
        session_id: Arc<str>,
        name: &str,
        version: &'static str,
        era: Era,
        client_capabilities: ClientCapabilities,
    ) -> Self {
        let mut cut = name.len().min(MAX_CLIENT_NAME_BYTES);
        while !name.is_char_boundary(cut) {
            cut -= 1;
        }
        let level = match era {
            Era::Legacy => Level::Debug as u8,
            Era::Modern => SILENT,
        };
        Self {
            session_id,
            name: name.get(..cut).unwrap_or_default().into(),
            version,
            era,
            client_capabilities,
            facts: FactsCell::default(),
            level: level.into(),
            chose_level: AtomicBool::new(false),
            aside: Mutex::default(),
            used: AtomicU64::new(0),
            active: Arc::default(),
            asked: Mutex::default(),
            subscriptions: Mutex::default(),
            dropped_members: DroppedMembers::default(),
        }
    }

    /// The same, whose questions have ids of that node of a fleet: what a client is asked there it may answer elsewhere
    /// ([`node_of_question`]).
    #[must_use]
    pub fn asked_at(self, node: u64) -> Self {
        self.asked.lock().next = node << QUESTION_BITS;
        self
    }

    /// The protocol revision, by which the members of its messages are known.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision::of(self.version)
    }

    /// Sets the least level of log messages that it receives from now on.
    pub fn set_level(&self, level: Level) {
        self.level.store(level as u8, Ordering::Relaxed);
        self.chose_level.store(true, Ordering::Relaxed);
    }

    /// Whether it asked for a level. One that did not may be told or not, as we like (MCP
    /// 2025-11-25 §Setting Log Level).
    #[must_use]
    pub fn chose_level(&self) -> bool {
        self.chose_level.load(Ordering::Relaxed)
    }

    /// From now on what is said to it beside any answer comes here, as long as this is kept.
    #[must_use]
    pub fn listen(&self) -> mpsc::Receiver<Bytes> {
        let (sender, aside) = mpsc::channel(MAX_ASIDE);
        *self.aside.lock() = Some(sender);
        aside
    }

    /// Whether it listens outside of its calls.
    #[must_use]
    pub fn listens(&self) -> bool {
        let aside = self.aside.lock();
        aside.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Says something to it beside any answer; lost if it does not listen, or not fast enough.
    pub fn tell_aside(&self, message: Bytes) {
        let aside = self.aside.lock();
        if let Some(sender) = &*aside
            && sender.try_send(message).is_err()
        {
            let session = &self.session_id;
            tracing::debug!(%session, "a message beside any answer was not taken");
        }
    }

    /// Warns of members of its message `method` that stay behind. `shared` remembers what clients without a session
    /// said, who are known by the name that they give themselves.
    pub fn warn_of_dropped(&self, shared: &DroppedMembers, method: &str, left: &Left) {
        let told = if self.session_id.is_empty() { shared } else { &self.dropped_members };
        told.of_client(&self.name, &self.session_id, method, left);
    }

    /// It uses a server, or just did.
    pub fn was_active(&self, now: Instant) {
        let seconds = now.duration_since(*EPOCH).as_secs() + 1;
        // Written once a second, not by each call.
        if self.active.last_use.load(Ordering::Relaxed) != seconds {
            self.active.last_use.store(seconds, Ordering::Relaxed);
        }
    }

    /// It has ended its session.
    pub fn leave(&self) {
        self.active.last_use.store(0, Ordering::Relaxed);
    }

    pub(super) fn active(&self) -> &Arc<Active> {
        &self.active
    }

    /// True when it uses that server for the first time. May be true again.
    pub(super) fn first_uses(&self, server: ServerId) -> bool {
        let bit = u32::try_from(server.index()).ok().and_then(|at| 1_u64.checked_shl(at));
        match bit {
            Some(bit) if self.used.load(Ordering::Relaxed) & bit != 0 => false,
            Some(bit) => self.used.fetch_or(bit, Ordering::Relaxed) & bit == 0,
            None => true,
        }
    }

    /// Whether it wants a log message of this level.
    #[must_use]
    pub fn wants(&self, level: Level) -> bool {
        level as u8 >= self.level.load(Ordering::Relaxed)
    }

    /// Subscribes the client to a resource's updates; false, and nothing is done, while it has
    /// [`MAX_SUBSCRIPTIONS`].
    pub fn subscribe(&self, uri: &str) -> bool {
        let mut subscriptions = self.subscriptions();
        if subscriptions.len() >= MAX_SUBSCRIPTIONS && !subscriptions.contains(uri) {
            return false;
        }
        subscriptions.insert(uri.into());
        true
    }

    /// It does not want to any more.
    pub fn unsubscribe(&self, uri: &str) {
        self.subscriptions().remove(uri);
    }

    /// Whether it is subscribed to that resource.
    #[must_use]
    pub fn is_subscribed(&self, uri: &str) -> bool {
        self.subscriptions().contains(uri)
    }

    fn subscriptions(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        self.subscriptions.lock()
    }

    /// Takes a question down; the id to ask it under, or `None` while [`MAX_ASKED`] are open.
    #[must_use]
    pub fn ask(&self, question: Question) -> Option<u64> {
        let mut asked = self.asked.lock();
        if asked.open.len() >= MAX_ASKED {
            return None;
        }
        let id = asked.next;
        asked.next += 1;
        asked.open.insert(id, question);
        Some(id)
    }

    /// Whether a question is open under this id that the server asked on that connection under
    /// that raw id.
    #[must_use]
    pub fn is_asked(&self, id: u64, server: &str, generation: u64, raw_id: &[u8]) -> bool {
        let asked = self.asked.lock();
        match asked.open.get(&id) {
            Some(Question::Server(open)) => {
                *open.server == *server && open.generation == generation && open.raw_id == raw_id
            }
            Some(Question::Approval(_)) | None => false,
        }
    }

    /// Takes a question away, because it was answered or its call is over. `None` for an id under
    /// which this client was asked nothing, or not any more.
    pub fn answered(&self, id: u64) -> Option<Question> {
        self.asked.lock().open.remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(era: Era) -> Client {
        Client::new(Arc::from("s"), "ide", "2025-11-25", era, ClientCapabilities::default())
    }

    fn question(id: &'static str) -> Question {
        let raw_id = Bytes::from_static(id.as_bytes());
        let (server, method) = ("s".into(), "roots/list".into());
        Question::Server(ServerQuestion { server, method, generation: 1, raw_id })
    }

    #[test]
    fn a_question_is_answered_once_and_by_its_client_only() {
        let (ours, other) = (client(Era::Legacy), client(Era::Legacy));
        let id = ours.ask(question("7")).unwrap();
        assert_eq!(other.answered(id), None);
        assert_eq!(ours.answered(id), Some(question("7")));
        assert_eq!(ours.answered(id), None);
        assert_ne!(ours.ask(question("8")).unwrap(), id, "no id is used twice");
    }

    #[test]
    fn in_a_fleet_a_questions_id_tells_the_node_that_asks() {
        let client = Client::new(
            Arc::from("s"),
            "ide",
            "2025-11-25",
            Era::Legacy,
            ClientCapabilities::default(),
        );
        let highest = (1 << 31) - 1;
        let client = client.asked_at(highest);
        let ids = [client.ask(question("7")).unwrap(), client.ask(question("8")).unwrap()];
        assert_ne!(ids[0], ids[1]);
        assert!(ids.iter().all(|id| node_of_question(*id) == highest && *id < 1 << 53));
        assert_eq!(client.answered(ids[1]), Some(question("8")));
        assert_eq!(node_of_question(self::client(Era::Legacy).ask(question("7")).unwrap()), 0);
    }

    #[test]
    fn questions_are_bounded() {
        let client = client(Era::Legacy);
        let ids: Vec<u64> = (0..MAX_ASKED).map(|_| client.ask(question("7")).unwrap()).collect();
        assert_eq!(client.ask(question("8")), None);
        client.answered(ids[0]);
        assert!(client.ask(question("8")).is_some());
    }

    #[test]
    fn subscriptions_are_bounded() {
        let client = client(Era::Legacy);
        for n in 0..MAX_SUBSCRIPTIONS {
            assert!(client.subscribe(&n.to_string()));
        }
        assert!(!client.subscribe("one more") && client.subscribe("0"));
        client.unsubscribe("0");
        assert!(!client.is_subscribed("0") && client.is_subscribed("1"));
        assert!(client.subscribe("one more"));
    }

    #[test]
    fn levels_filter_from_the_least_up() {
        let (old, new) = (client(Era::Legacy), client(Era::Modern));
        assert!(old.wants(Level::Debug) && !new.wants(Level::Emergency));
        for client in [old, new] {
            client.set_level(Level::Warning);
            assert!(client.wants(Level::Warning) && client.wants(Level::Error));
            assert!(!client.wants(Level::Notice));
        }
    }

    #[test]
    fn names_are_cut_on_a_character() {
        let client_capabilities = ClientCapabilities::default();
        let client = Client::new(
            "x".into(),
            &"é".repeat(100),
            "2025-11-25",
            Era::Legacy,
            client_capabilities,
        );
        assert_eq!(&*client.name, "é".repeat(64));
    }

    #[test]
    fn what_a_session_says_is_remembered_by_itself_and_what_others_say_by_all() {
        let shared = DroppedMembers::default();
        let mut left = Left::default();
        left.push("", "x");
        let client = |session: &str| {
            let offered = ClientCapabilities::default();
            Client::new(session.into(), "n", "2025-11-25", Era::Legacy, offered)
        };
        for session in ["one", "two"] {
            let client = client(session);
            client.warn_of_dropped(&shared, "m", &left);
            assert_eq!((client.dropped_members.len(), shared.len()), (1, 0));
        }
        let client = client("");
        client.warn_of_dropped(&shared, "m", &left);
        assert_eq!((client.dropped_members.len(), shared.len()), (0, 1));
    }
}
