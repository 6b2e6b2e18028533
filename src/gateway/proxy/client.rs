//! Clients and callers: declared capabilities, subscribed notifications, open questions, and the sender of a request.
//!
//! One [`Client`] represents a legacy session, a pipe, or one modern request. It owns the table of unanswered
//! requests that upstreams or the proxy sent to it. Responses are matched only against that table, so that no
//! client can answer another's question. Downstream delivers its messages.
//!
//! [`DroppedMembers`] logs unsupported members of messages once per sender and member, bounded.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use bytes::Bytes;
use mcpproxy_activity::record::Source;
use mcpproxy_catalog::exposed;
use mcpproxy_policy::tool::ServerId;
use mcpproxy_policy::{FactsCell, Principal};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::revisions::{ProtocolFamily, Revision};
use mcpproxy_protocol::mcp::shapes::{Left, MemberRefused};
use mcpproxy_protocol::mcp::trace_context::PropagatedContext;
use mcpproxy_runtime::io::clock;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_upstream::CallSession;
use parking_lot::Mutex;
use serde::Deserialize;
use thiserror::Error;
use tokio::sync::{Notify, mpsc};

use super::params::ParamHeaders;
use super::passthrough::subscribers::{ResourceSubscription, Subscriber};
use super::recorded::question::QuestionRecord;

/// Maximum number of open requests to one client, over all its calls.
pub const MAX_ASKED: usize = 64;
/// Maximum number of open URLs of one client whose completion is forwarded; the oldest is forgotten.
pub(crate) const MAX_ELICITED: usize = 64;
/// Maximum length of an elicitation's id; the completion of one with a longer id is not forwarded.
pub(crate) const MAX_ELICITATION_ID_BYTES: usize = 256;
/// Maximum number of resource subscriptions of one client.
pub(crate) const MAX_SUBSCRIPTIONS: usize = 256;
/// Maximum length of a client name in bytes; longer ones are truncated.
pub const MAX_CLIENT_NAME_BYTES: usize = 128;

/// Maximum number of queued messages outside any response; further ones are dropped.
pub(crate) const MAX_ASIDE: usize = 32;

/// Bits of a question's id below the number of its node. The id fits into 53 bits, which JSON numbers represent exactly.
const QUESTION_BITS: u32 = 22;

/// Number of the fleet node that asked the question with this id; 0 without a fleet. Ambiguous after about four
/// million questions in one session.
pub fn node_of_question(id: u64) -> u64 {
    id >> QUESTION_BITS
}

/// Epoch of [`Client::note_use`].
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Severity of a log message (RFC 5424), lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
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

impl Level {
    const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// Decodes a stored level; the highest one for any unknown number.
    fn of(stored: u8) -> Self {
        Self::ALL.get(usize::from(stored)).copied().unwrap_or(Self::Emergency)
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

/// Stored level for no log messages at all.
const SILENT: u8 = u8::MAX;

/// One client, shared by its requests.
#[derive(Debug)]
pub struct Client {
    /// Session id; empty outside a session.
    pub session_id: Arc<str>,
    /// Name that the client states, cut at [`MAX_CLIENT_NAME_BYTES`]; empty if none.
    pub name: Arc<str>,
    pub version: &'static str,
    pub family: ProtocolFamily,
    /// Declared capabilities.
    pub client_capabilities: ClientCapabilities,
    /// Key of the session, by which server messages outside of calls are kept apart from those of other sessions.
    /// `None` for modern clients, whose requests may come from several people on one connection.
    pub session_key: Option<CallSession>,
    /// Facts of its session; unused outside a session. The facts of its principal are in `session_facts`.
    pub facts: FactsCell,
    /// Minimum [`Level`] of log messages, or [`SILENT`].
    level: AtomicU8,
    chose_level: AtomicBool,
    /// Sender for messages outside of calls, while the client listens.
    aside: Mutex<Option<mpsc::Sender<Bytes>>>,
    /// Servers that the client has used; one bit per id below 64.
    used: AtomicU64,
    /// Last-activity clock, shared with [`LogRouting`](super::relay), which outlives the client.
    active: Arc<Active>,
    asked: Mutex<OpenQuestions>,
    /// URLs that servers asked its user to open, not completed yet: server and elicitation id, oldest first.
    elicited: Mutex<VecDeque<(Arc<str>, Box<str>)>>,
    /// Subscriptions by the client's URIs; `None` after the end of its session.
    subscriptions: Mutex<Option<BTreeMap<Arc<str>, ResourceSubscription>>>,
    /// Dropped members that were already logged for the session.
    dropped_members: DroppedMembers,
    /// Notified when one of its tasks in `known_tasks` changes, for its notification stream.
    pub(super) task_changed: Notify,
}

/// Calls in flight of a client, and when it last used a server.
#[derive(Debug, Default)]
pub(super) struct Active {
    /// Seconds since [`EPOCH`] plus one; 0 for never.
    last_use: AtomicU64,
    /// Number of [`ActiveCall`]s.
    in_flight: AtomicU32,
    /// Whether its session has ended.
    ended: AtomicBool,
}

impl Active {
    /// Whether the client has a call in flight at any server. If not, a later [`Self::seconds_ago`] takes the last
    /// answered call into account.
    pub(super) fn has_calls(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0
    }

    /// Whether the client's session has ended. Its calls in flight continue.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Seconds since the last use, at most one second too high; `None` if there was no use.
    pub(super) fn seconds_ago(&self, now: Instant) -> Option<u64> {
        let then = self.last_use.load(Ordering::Relaxed).checked_sub(1)?;
        Some(now.duration_since(*EPOCH).as_secs().saturating_sub(then))
    }
}

/// A call in flight, counted by its client until dropped.
#[derive(Debug)]
pub struct ActiveCall(Arc<Client>);

impl ActiveCall {
    pub(crate) fn of(client: Arc<Client>) -> Self {
        client.active.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(client)
    }
}

impl Deref for ActiveCall {
    type Target = Arc<Client>;

    fn deref(&self) -> &Arc<Client> {
        &self.0
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        // The server may still be working on an abandoned call.
        self.0.note_use(clock::lately());
        // This ordering pairs with the load in `Active::has_calls`.
        self.0.active.in_flight.fetch_sub(1, Ordering::Release);
    }
}

#[derive(Debug, Default)]
struct OpenQuestions {
    /// Id of the next request; never reused.
    next: u64,
    open: BTreeMap<u64, Question>,
    /// Records of open questions, each written on removal.
    records: BTreeMap<u64, QuestionRecord>,
    /// True if the session has ended.
    ended: bool,
}

/// Reason why a client is not subscribed to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum SubscriptionRefused {
    /// The client has [`MAX_SUBSCRIPTIONS`].
    #[error(
        "subscription limit reached: {MAX_SUBSCRIPTIONS} resources per session; unsubscribe from one first"
    )]
    TooMany,
    /// The session has ended.
    #[error("the session has ended: send initialize again")]
    Left,
}

/// A request to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Server(ServerQuestion),
    /// Asks whether a call may be sent.
    Approval(ApprovalQuestion),
    /// Input requested in a modern server's result.
    Input(InputQuestion),
}

/// Asks whether a call may be sent (CAP-8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalQuestion {
    pub id: Box<str>,
    /// The calling principal, on whose behalf the answer is given.
    pub principal: Box<str>,
}

/// Request of an upstream to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerQuestion {
    pub server: Arc<str>,
    pub method: Box<str>,
    /// Generation of the connection that the request arrived on.
    pub generation: u64,
    /// The server's raw id of the request.
    pub raw_id: Bytes,
    /// The server's id of the related task.
    pub task: Option<Box<str>>,
}

/// One request in a server's `input_required` result, which the proxy sends to a legacy client (PRO-37).
#[derive(Clone, Debug)]
pub struct InputQuestion {
    pub method: Box<str>,
    /// Index among the requests of the result.
    pub index: usize,
    /// Receives the answer; has capacity for the answers to all requests of the result.
    pub answers: mpsc::Sender<InputAnswer>,
}

impl PartialEq for InputQuestion {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index && self.answers.same_channel(&other.answers)
    }
}

impl Eq for InputQuestion {}

/// A client's answer to an [`InputQuestion`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputAnswer {
    pub index: usize,
    /// The member `result` or `error`, raw.
    pub outcome: Bytes,
}

/// Whether any of these subscriptions was revoked.
fn has_revoked(kept: &BTreeMap<Arc<str>, ResourceSubscription>) -> bool {
    kept.values().any(|subscription| subscription.subscriber().is_none())
}

#[cfg(test)]
impl Client {
    /// A legacy client without capabilities.
    pub(crate) fn of_test() -> Arc<Self> {
        let offered = ClientCapabilities::default();
        Arc::new(Self::new("s".into(), "", "2025-11-25", ProtocolFamily::Legacy, offered))
    }
}

impl Client {
    /// Creates a client. A legacy client receives log messages of every level, a modern one none.
    pub fn new(
        session_id: Arc<str>,
        name: &str,
        version: &'static str,
        family: ProtocolFamily,
        client_capabilities: ClientCapabilities,
    ) -> Self {
        let mut cut = name.len().min(MAX_CLIENT_NAME_BYTES);
        while !name.is_char_boundary(cut) {
            cut -= 1;
        }
        let level = match family {
            ProtocolFamily::Legacy => Level::Debug as u8,
            ProtocolFamily::Modern => SILENT,
        };
        Self {
            session_id,
            name: name.get(..cut).unwrap_or_default().into(),
            version,
            family,
            client_capabilities,
            session_key: (family == ProtocolFamily::Legacy).then(CallSession::fresh),
            facts: FactsCell::default(),
            level: level.into(),
            chose_level: AtomicBool::new(false),
            aside: Mutex::default(),
            used: AtomicU64::new(0),
            active: Arc::default(),
            asked: Mutex::default(),
            elicited: Mutex::default(),
            subscriptions: Mutex::new(Some(BTreeMap::new())),
            dropped_members: DroppedMembers::in_session(),
            task_changed: Notify::new(),
        }
    }

    /// Uses question ids of fleet node `node`, so that the answer may arrive at another node ([`node_of_question`]).
    pub fn asked_at(self, node: u64) -> Self {
        self.asked.lock().next = node << QUESTION_BITS;
        self
    }

    pub fn revision(&self) -> Revision {
        Revision::of(self.version)
    }

    /// Sets the minimum level of log messages.
    pub fn set_level(&self, level: Level) {
        self.level.store(level as u8, Ordering::Relaxed);
        self.chose_level.store(true, Ordering::Relaxed);
    }

    /// Whether the client chose a level. Without a choice the server may decide (MCP 2025-11-25 §Setting Log Level).
    pub(crate) fn chose_level(&self) -> bool {
        self.chose_level.load(Ordering::Relaxed)
    }

    /// Level chosen by a legacy client, stated in its calls to modern servers; a modern client states its own.
    pub(super) fn level_for_servers(&self) -> Option<&'static str> {
        let chosen = self.family == ProtocolFamily::Legacy && self.chose_level();
        chosen.then(|| Level::of(self.level.load(Ordering::Relaxed)).as_str())
    }

    /// Subscribes to messages outside of calls, until the receiver is dropped.
    pub fn listen(&self) -> mpsc::Receiver<Bytes> {
        let (sender, aside) = mpsc::channel(MAX_ASIDE);
        *self.aside.lock() = Some(sender);
        aside
    }

    /// Whether the client listens outside of its calls.
    pub(crate) fn listens(&self) -> bool {
        let aside = self.aside.lock();
        aside.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Sends a message outside of calls; dropped if the client does not listen, or not fast enough.
    pub(crate) fn send_aside(&self, message: Bytes) {
        let aside = self.aside.lock();
        if let Some(sender) = &*aside
            && sender.try_send(message).is_err()
        {
            let session = &self.session_id;
            tracing::debug!(%session, "message outside of calls dropped");
        }
    }

    /// Logs dropped members of the client's message `method`. `shared` is the filter for clients without a session,
    /// by their stated names.
    pub(crate) fn warn_of_dropped(&self, shared: &DroppedMembers, method: &str, left: &Left) {
        let filter = if self.session_id.is_empty() { shared } else { &self.dropped_members };
        filter.of_client(&self.name, &self.session_id, method, left);
    }

    /// Records the use of a server.
    pub(crate) fn note_use(&self, now: Instant) {
        let seconds = now.duration_since(*EPOCH).as_secs() + 1;
        // The time is written at most once per second, not once per call.
        if self.active.last_use.load(Ordering::Relaxed) != seconds {
            self.active.last_use.store(seconds, Ordering::Relaxed);
        }
    }

    /// Ends the client's subscriptions and open questions, and accepts no new ones.
    pub fn leave(&self) {
        self.active.ended.store(true, Ordering::Relaxed);
        let subscriptions = self.subscriptions.lock().take();
        // Dropped outside the lock, because dropping them takes other locks.
        drop(subscriptions);
        self.end_questions();
        *self.aside.lock() = None;
    }

    /// Ends the client's open questions and accepts no new ones, since the client can no longer answer.
    pub fn end_questions(&self) {
        let mut asked = self.asked.lock();
        asked.ended = true;
        let open = std::mem::take(&mut asked.open);
        let records = std::mem::take(&mut asked.records);
        drop(asked);
        // Dropped outside the lock, because dropping them wakes calls.
        drop((open, records));
    }

    pub(super) fn active(&self) -> &Arc<Active> {
        &self.active
    }

    /// Marks the server as used; returns true the first time. For a server whose id is 64 or higher, returns true every
    /// time.
    pub(super) fn first_uses(&self, server: ServerId) -> bool {
        let bit = u32::try_from(server.index()).ok().and_then(|at| 1_u64.checked_shl(at));
        match bit {
            Some(bit) if self.used.load(Ordering::Relaxed) & bit != 0 => false,
            Some(bit) => self.used.fetch_or(bit, Ordering::Relaxed) & bit == 0,
            None => true,
        }
    }

    /// Whether the client's level includes `level`.
    pub fn wants(&self, level: Level) -> bool {
        level as u8 >= self.level.load(Ordering::Relaxed)
    }

    /// Stores a subscription. On error the subscription is ended.
    pub(crate) fn subscribe(
        &self,
        subscription: ResourceSubscription,
    ) -> Result<(), SubscriptionRefused> {
        let mut subscriptions = self.subscriptions.lock();
        let refused = match &mut *subscriptions {
            None => SubscriptionRefused::Left,
            Some(kept) if kept.len() >= MAX_SUBSCRIPTIONS && !has_revoked(kept) => {
                SubscriptionRefused::TooMany
            }
            Some(kept) => {
                kept.retain(|_, subscription| subscription.subscriber().is_some());
                // An earlier subscription to the same URI, by a concurrent request.
                let other = kept.insert(Arc::clone(subscription.uri()), subscription);
                drop(subscriptions);
                drop(other);
                return Ok(());
            }
        };
        drop(subscriptions);
        drop(subscription);
        Err(refused)
    }

    /// Removes the subscription to this URI; `None` if there is none.
    pub(crate) fn unsubscribe(&self, uri: &str) -> Option<ResourceSubscription> {
        let subscription = self.subscriptions.lock().as_mut()?.remove(uri);
        subscription.filter(|subscription| subscription.subscriber().is_some())
    }

    /// Whether the client has subscriptions, which the proxy may renew at any time.
    pub(super) fn has_subscriptions(&self) -> bool {
        let subscriptions = self.subscriptions.lock();
        let mut kept = subscriptions.iter().flatten();
        kept.any(|(_, subscription)| subscription.subscriber().is_some())
    }

    pub(crate) fn is_subscribed(&self, uri: &str) -> bool {
        self.subscriber(uri).is_some()
    }

    /// Subscription of the client to this URI.
    pub(crate) fn subscriber(&self, uri: &str) -> Option<Arc<Subscriber>> {
        self.subscriptions.lock().as_ref()?.get(uri)?.subscriber().cloned()
    }

    /// Registers a question and returns its id; `None` if [`MAX_ASKED`] are open or the session has ended.
    pub fn ask(&self, question: Question) -> Option<u64> {
        let mut asked = self.asked.lock();
        if asked.ended || asked.open.len() >= MAX_ASKED {
            return None;
        }
        let id = asked.next;
        asked.next += 1;
        asked.open.insert(id, question);
        Some(id)
    }

    /// Whether the question with this id was asked by the server on this connection under this raw id.
    pub(crate) fn is_asked(&self, id: u64, server: &str, generation: u64, raw_id: &[u8]) -> bool {
        let asked = self.asked.lock();
        match asked.open.get(&id) {
            Some(Question::Server(open)) => {
                *open.server == *server && open.generation == generation && open.raw_id == raw_id
            }
            Some(Question::Approval(_) | Question::Input(_)) | None => false,
        }
    }

    /// Records that a server asked its user to open a URL.
    pub(super) fn elicited(&self, server: &Arc<str>, id: &str) {
        if id.len() > MAX_ELICITATION_ID_BYTES || self.was_elicited(server, id) {
            return;
        }
        let mut elicited = self.elicited.lock();
        if elicited.len() >= MAX_ELICITED {
            elicited.pop_front();
        }
        elicited.push_back((Arc::clone(server), id.into()));
    }

    pub(super) fn was_elicited(&self, server: &str, id: &str) -> bool {
        let elicited = self.elicited.lock();
        elicited.iter().any(|(of, known)| **of == *server && **known == *id)
    }

    /// Removes a URL whose interaction is complete; false if it is unknown.
    pub(super) fn completes(&self, server: &str, id: &str) -> bool {
        let mut elicited = self.elicited.lock();
        let at = elicited.iter().position(|(of, known)| **of == *server && **known == *id);
        at.and_then(|at| elicited.remove(at)).is_some()
    }

    /// Removes a question that was answered or whose call has ended. `None` for an id without an open question.
    pub fn answered(&self, id: u64) -> Option<Question> {
        let mut asked = self.asked.lock();
        let (question, record) = (asked.open.remove(&id), asked.records.remove(&id));
        drop(asked);
        // Dropped outside the lock, because dropping it writes the record.
        drop(record);
        question
    }

    /// Takes out the question that the client answers, with its record. `None` for an id without an open question,
    /// and before a server's question is sent: its record is stored first, so an earlier answer is a guess.
    pub(super) fn take_answered(&self, id: u64) -> Option<(Question, Option<QuestionRecord>)> {
        let mut asked = self.asked.lock();
        let is_put = match asked.open.get(&id)? {
            Question::Approval(_) => true,
            Question::Server(_) | Question::Input(_) => asked.records.contains_key(&id),
        };
        let question = is_put.then(|| asked.open.remove(&id)).flatten()?;
        Some((question, asked.records.remove(&id)))
    }

    /// Stores the record of an open question.
    pub(super) fn keep_record(&self, id: u64, record: QuestionRecord) {
        let mut asked = self.asked.lock();
        let replaced = match asked.open.contains_key(&id) {
            true => asked.records.insert(id, record),
            false => Some(record),
        };
        drop(asked);
        drop(replaced);
    }

    /// Takes the record of an open question, so that the caller can record a more specific end than an unanswered
    /// question.
    pub(super) fn take_record(&self, id: u64) -> Option<QuestionRecord> {
        self.asked.lock().records.remove(&id)
    }
}

/// Endpoint of a request. It determines which servers are exposed, and under which names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Endpoint {
    /// `/mcp`: the built-in tools.
    #[default]
    Search,
    /// `/mcp/all`: every upstream tool under a name of its own.
    All,
    /// `/mcp/server/NAME`: one server under its own names and URIs.
    Server(Arc<str>),
}

impl Endpoint {
    /// The endpoint's only server, if it has just one.
    pub fn server(&self) -> Option<&Arc<str>> {
        match self {
            Self::Search | Self::All => None,
            Self::Server(server) => Some(server),
        }
    }

    /// Internal URI, in its canonical spelling, of a resource that the endpoint's clients call `uri`.
    pub fn exposed_uri<'a>(&self, uri: &'a str) -> Cow<'a, str> {
        match self {
            Self::Search | Self::All => match exposed::split_uri(uri) {
                Some((server, own)) => Cow::Owned(exposed::uri(&server, &own)),
                None => Cow::Borrowed(uri),
            },
            Self::Server(server) => Cow::Owned(exposed::uri(server, uri)),
        }
    }

    /// URI of a resource for the endpoint's clients; `None` if it does not expose the resource.
    pub fn shown_uri<'a>(&self, exposed: &'a str) -> Option<Cow<'a, str>> {
        match self {
            Self::Search | Self::All => Some(Cow::Borrowed(exposed)),
            Self::Server(only) => {
                exposed::split_uri(exposed).filter(|(server, _)| **server == **only).map(|it| it.1)
            }
        }
    }
}

/// Messages that a reply can carry besides its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The response only.
    Answer,
    /// Notifications, and for legacy clients requests of upstreams.
    Stream,
}

/// Sender of a message.
#[derive(Clone, Debug)]
pub struct Peer {
    pub client: Arc<Client>,
    /// Principal that it acts for.
    pub principal: Principal,
    pub endpoint: Endpoint,
    /// Whether messages can precede the response.
    pub channel: Channel,
    /// Tool parameters repeated in headers; `None` without any.
    pub headers: Option<ParamHeaders>,
    /// Trace context in headers; `None` also if tracing is off.
    pub trace: Option<Box<PropagatedContext>>,
}

impl Peer {
    /// Requests that upstreams may send to the client before they answer, and the extensions of a legacy client; a
    /// modern one declares them in `_meta`.
    pub(crate) fn client_capabilities(&self) -> ClientCapabilities {
        let declared = self.client.client_capabilities;
        match (self.client.family, self.channel) {
            (ProtocolFamily::Legacy, Channel::Stream) => declared,
            (ProtocolFamily::Legacy, Channel::Answer) => declared.without_requests(),
            (ProtocolFamily::Modern, _) => ClientCapabilities::default(),
        }
    }

    /// Caller for a request with this raw id; the request counts as in flight while the caller exists.
    pub fn caller(&self, id: &Bytes) -> Caller {
        let inside = id.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        Caller {
            source: Source::Mcp,
            principal: self.principal.clone(),
            request_id: inside.map_or_else(|| id.clone(), |inside| id.slice_ref(inside)),
            name: Box::default(),
            client: Some((ActiveCall::of(Arc::clone(&self.client)), self.channel)),
            extensions: self.endpoint.server().is_some(),
            trace: self.trace.clone(),
        }
    }
}

/// Caller of a recorded request.
#[derive(Debug)]
pub struct Caller {
    /// Entry point of the request.
    pub source: Source,
    pub principal: Principal,
    pub request_id: Bytes,
    /// Name of a caller without a `client`; may be empty.
    pub name: Box<str>,
    /// Recipient of messages and questions before the response, if any.
    pub client: Option<(ActiveCall, Channel)>,
    /// Whether extension messages are forwarded to the client: only at the endpoint of one server.
    pub extensions: bool,
    /// Trace context in headers; `None` also if tracing is off.
    pub trace: Option<Box<PropagatedContext>>,
}

impl Caller {
    /// MCP session id; may be empty.
    pub(super) fn session_id(&self) -> &str {
        self.client.as_ref().map_or("", |(client, _)| &client.session_id)
    }

    /// Name that the client gave itself; may be empty.
    pub(super) fn client_name(&self) -> &str {
        self.client.as_ref().map_or(&self.name, |(client, _)| &client.name)
    }

    /// Whether the proxy itself makes the request, on behalf of the principal.
    pub(super) fn is_proxy(&self) -> bool {
        self.source == Source::Internal
    }

    /// Protocol family of the client; legacy without a client.
    pub(super) fn family(&self) -> ProtocolFamily {
        self.client.as_ref().map_or(ProtocolFamily::Legacy, |(client, _)| client.family)
    }
}

/// Maximum number of logged pairs of sender and member outside sessions.
pub(crate) const MAX_LOGGED_MEMBERS: usize = 1024;
/// Maximum number of logged pairs in one session: 512 bytes.
pub(crate) const MAX_LOGGED_MEMBERS_IN_SESSION: usize = 64;

/// Log-once filter for dropped members, stored as 8-byte hashes.
#[derive(Debug)]
pub struct DroppedMembers {
    logged: Mutex<BTreeSet<u64>>,
    keys: RandomState,
    limit: usize,
}

#[derive(Clone, Copy, Debug, Hash)]
enum Sender<'a> {
    Client(&'a str),
    Server(&'a str),
}

impl Default for DroppedMembers {
    /// Filter for clients outside sessions.
    fn default() -> Self {
        Self::of_at_most(MAX_LOGGED_MEMBERS)
    }
}

impl DroppedMembers {
    pub(crate) fn in_session() -> Self {
        Self::of_at_most(MAX_LOGGED_MEMBERS_IN_SESSION)
    }

    fn of_at_most(limit: usize) -> Self {
        Self { logged: Mutex::default(), keys: RandomState::new(), limit }
    }

    /// Number of remembered pairs.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.logged.lock().len()
    }

    /// Whether this is the first message of `sender` with this member.
    fn is_new(&self, sender: Sender<'_>, method: &str, what: &str) -> bool {
        let hash = self.keys.hash_one((sender, method, what));
        let mut logged = self.logged.lock();
        logged.len() < self.limit && logged.insert(hash)
    }

    /// Logs dropped members of a client's message.
    pub(crate) fn of_client(&self, client: &str, session: &str, method: &str, left: &Left) {
        for member in left.names() {
            if self.is_new(Sender::Client(client), method, member) {
                // All clients share one log budget, because a client chooses its own name.
                peer_line!(warn, LinePeer::Part("members of clients"), %client, %session, method, ?member, "unsupported member of a client's message dropped");
            }
        }
    }

    /// Logs dropped members of a server's message.
    pub(crate) fn of_server(&self, server: &str, method: &str, left: &Left) {
        for member in left.names() {
            if self.is_new(Sender::Server(server), method, member) {
                peer_line!(
                    warn,
                    LinePeer::Server(server),
                    server,
                    method,
                    ?member,
                    "unsupported member of a server's message dropped"
                );
            }
        }
    }

    /// Logs a server's message that is not forwarded.
    pub(crate) fn refused(&self, server: &str, method: &str, why: &MemberRefused) {
        let why = why.to_string();
        if self.is_new(Sender::Server(server), method, &why) {
            peer_line!(
                warn,
                LinePeer::Server(server),
                server,
                method,
                ?why,
                "server message dropped"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use mcpproxy_policy::{Principal, StateAccounts};

    use super::super::passthrough::subscribers::Subscribers;
    use super::super::passthrough::subscribers::tests::anyone;
    use super::*;

    fn client(family: ProtocolFamily) -> Client {
        Client::new(Arc::from("s"), "ide", "2025-11-25", family, ClientCapabilities::default())
    }

    fn question(id: &'static str) -> Question {
        let raw_id = Bytes::from_static(id.as_bytes());
        let (server, method) = ("s".into(), "roots/list".into());
        Question::Server(ServerQuestion { server, method, generation: 1, raw_id, task: None })
    }

    #[test]
    fn question_is_answered_once_and_only_by_its_client() {
        let (ours, other) = (client(ProtocolFamily::Legacy), client(ProtocolFamily::Legacy));
        let id = ours.ask(question("7")).unwrap();
        assert_eq!(other.answered(id), None);
        assert_eq!(ours.answered(id), Some(question("7")));
        assert_eq!(ours.answered(id), None);
        assert_ne!(ours.ask(question("8")).unwrap(), id, "ids are unique");
    }

    #[test]
    fn act_13_question_cannot_be_answered_before_its_record_is_kept() {
        let client = client(ProtocolFamily::Legacy);
        let id = client.ask(question("7")).unwrap();
        assert!(client.take_answered(id).is_none());
        assert_eq!(client.answered(id), Some(question("7")), "it is still open");
    }

    #[test]
    fn question_id_contains_the_asking_node_in_a_fleet() {
        let client = Client::new(
            Arc::from("s"),
            "ide",
            "2025-11-25",
            ProtocolFamily::Legacy,
            ClientCapabilities::default(),
        );
        let highest = (1 << 31) - 1;
        let client = client.asked_at(highest);
        let ids = [client.ask(question("7")).unwrap(), client.ask(question("8")).unwrap()];
        assert_ne!(ids[0], ids[1]);
        assert!(ids.iter().all(|id| node_of_question(*id) == highest && *id < 1 << 53));
        assert_eq!(client.answered(ids[1]), Some(question("8")));
        assert_eq!(
            node_of_question(self::client(ProtocolFamily::Legacy).ask(question("7")).unwrap()),
            0
        );
    }

    #[test]
    fn open_questions_are_bounded() {
        let client = client(ProtocolFamily::Legacy);
        let ids: Vec<u64> = (0..MAX_ASKED).map(|_| client.ask(question("7")).unwrap()).collect();
        assert_eq!(client.ask(question("8")), None);
        client.answered(ids[0]);
        assert!(client.ask(question("8")).is_some());
    }

    #[test]
    fn subscriptions_are_bounded_and_end_with_the_session() {
        let client = client(ProtocolFamily::Legacy);
        let account = StateAccounts::default().of(&Principal::Anonymous);
        let all = Arc::<Subscribers>::default();
        let enter = |uri: &str| client.subscribe(all.enter(uri, anyone(), &account).unwrap());
        for n in 0..MAX_SUBSCRIPTIONS {
            enter(&n.to_string()).unwrap();
        }
        assert_eq!(enter("one more"), Err(SubscriptionRefused::TooMany));
        assert!(!all.any("one more"));
        drop(client.unsubscribe("0").unwrap());
        assert!(!client.is_subscribed("0") && client.is_subscribed("1"));
        enter("one more").unwrap();
        client.leave();
        assert!(!client.is_subscribed("1") && !all.any("1"));
        assert_eq!(enter("1"), Err(SubscriptionRefused::Left));
        assert!(client.ask(question("7")).is_none());
    }

    #[test]
    fn log_level_filters_lower_severities() {
        let (old, new) = (client(ProtocolFamily::Legacy), client(ProtocolFamily::Modern));
        assert!(old.wants(Level::Debug) && !new.wants(Level::Emergency));
        for client in [old, new] {
            client.set_level(Level::Warning);
            assert!(client.wants(Level::Warning) && client.wants(Level::Error));
            assert!(!client.wants(Level::Notice));
        }
    }

    #[test]
    fn client_name_is_cut_at_a_character_boundary() {
        let client_capabilities = ClientCapabilities::default();
        let client = Client::new(
            "x".into(),
            &"é".repeat(100),
            "2025-11-25",
            ProtocolFamily::Legacy,
            client_capabilities,
        );
        assert_eq!(&*client.name, "é".repeat(64));
    }

    #[test]
    fn dropped_members_are_logged_once_per_session_or_sender() {
        let shared = DroppedMembers::default();
        let mut left = Left::default();
        left.push("", "x");
        let client = |session: &str| {
            let offered = ClientCapabilities::default();
            Client::new(session.into(), "n", "2025-11-25", ProtocolFamily::Legacy, offered)
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

    #[test]
    fn dropped_members_table_is_bounded() {
        let filter = DroppedMembers::default();
        let new = |sender: &str, method: &str, what: &str| {
            filter.is_new(Sender::Client(sender), method, what)
        };
        assert!(new("a", "m", "x") && !new("a", "m", "x"));
        assert!(new("b", "m", "x") && new("a", "n", "x"));
        assert!(filter.is_new(Sender::Server("a"), "m", "x"), "no client");
        let fresh = (0..2 * MAX_LOGGED_MEMBERS).filter(|n| new("a", "m", &n.to_string())).count();
        assert_eq!(fresh, MAX_LOGGED_MEMBERS - 4);
        let of_session = DroppedMembers::in_session();
        let new = |n: usize| of_session.is_new(Sender::Client("a"), "m", &n.to_string());
        assert_eq!(
            (0..2 * MAX_LOGGED_MEMBERS).filter(|n| new(*n)).count(),
            MAX_LOGGED_MEMBERS_IN_SESSION
        );
    }
}
