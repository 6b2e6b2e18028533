//! State of one server: connection phases, transitions, and the status derived from them.
//!
//! Only the server's task makes transitions ([`crate::server_task`]); all others read without a lock. A
//! [`LiveConnection`] is the part of a connected state that calls use.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use bytes::Bytes;
use serde_json::{Map, Value};
use thiserror::Error;
use tokio::sync::watch;

use crate::backoff::Due;
use crate::error::Cause;
use crate::http::{self, Session};
use crate::inbound::AnswerPart;
use crate::notifications::{NotificationRouter, ServerEvents};
use crate::oauth::says_needs_login;
use crate::request::Params;
use crate::stdio::{self, ChildLink, SentFor};
use mcpproxy_catalog::Change;
use mcpproxy_protocol::mcp::capabilities::ServerCapabilities;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::wire::lines;
use mcpproxy_runtime::io::deadline::Allowance;

/// Connection phase of one server.
///
/// ```text
///   new, enabled                                                    new, disabled
///        │                                                                │
///        ▼                fail                                            ▼
///   ┌──────────┐ ──────────────────────────────────────┐              Disabled
///   │Connecting│                                       │
///   └──────────┘ ◀──────────── begin ─────────────┐    │
///        │                                        │    ▼
///        │ reach        lose   ┌─────────┐  rest ┌─────────┐
///        ▼            ┌──────▶ │ Closing │ ────▶ │ Waiting │
///   ┌───────────┐     │        └─────────┘       └─────────┘
///   │Discovering│ ────┤             │ begin
///   └───────────┘     │             └──────────▶ Connecting
///        │ discover   │
///        ▼            │
///   ┌───────────┐     │
///   │ Connected │ ────┘          from any but Disabled: stop ──▶ Stopped
///   └───────────┘
/// ```
///
/// `renew` (new token) keeps Discovering and Connected, `throttle` keeps Discovering, and `discover`
/// (changed tools) keeps Connected.
#[derive(Clone)]
pub(super) enum Phase {
    /// Disabled in the config.
    Disabled,
    /// An attempt is running; attempt 0 is the time before the first attempt.
    Connecting {
        attempt: u64,
        since: Instant,
    },
    /// The handshake is complete and calls are possible, but the tools are not known yet.
    Discovering {
        live: Arc<LiveConnection>,
    },
    Connected {
        live: Arc<LiveConnection>,
        /// Missing scopes of the server's login, as text; empty if none are missing.
        notice: Arc<str>,
    },
    /// The lost connection is being closed.
    Closing {
        /// Number of the attempt that led to the connection.
        attempt: u64,
        /// Whether the server's tools were read.
        worked: bool,
    },
    Waiting(Waiting),
    /// No more attempts are made: the entry does not name a server, or the proxy is shutting down.
    Stopped,
}

/// State between two attempts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// Number of the last attempt.
    pub(super) attempt: u64,
    /// Whether this attempt failed; otherwise its connection worked and was lost.
    pub(super) failed: bool,
    pub(super) due: Due,
}

/// Outcome of the attempts so far.
#[derive(Clone)]
enum Past {
    None,
    /// A working connection was lost.
    Lost(Arc<str>),
    Failed(Arc<str>),
    /// The server rate-limits requests; another attempt is made later.
    Throttled(Arc<str>),
}

/// State of one server: its phase, and data remembered from earlier phases.
#[derive(Clone)]
pub(super) struct UpstreamState {
    phase: Phase,
    past: Past,
    /// Protocol family and capabilities of the last connection.
    about: About,
    tools: usize,
    protocol_version: Option<Arc<str>>,
    server_info: Option<Arc<str>>,
    introduced: Arc<Introduced>,
    /// Time of the last status change.
    since: SystemTime,
    /// Whether the server was discovered or has failed once, and no longer delays readiness.
    settled: bool,
    /// Whether the server's tools were ever read.
    discovered: bool,
}

/// Result of the discovery of a server's tools.
#[derive(Clone, Debug, Default)]
pub(super) struct Discovered {
    pub(super) tools: usize,
    pub(super) protocol_version: Option<Arc<str>>,
    pub(super) server_info: Option<Arc<str>>,
    pub(super) introduced: Arc<Introduced>,
    /// Missing scopes of the server's login, as text; empty if none are missing.
    pub(super) notice: Arc<str>,
}

/// Transition that the diagram does not contain. The state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("there is no transition {transition} from {from}")]
pub(super) struct Forbidden {
    transition: &'static str,
    from: &'static str,
}

type Transition = Result<(), Forbidden>;

impl UpstreamState {
    pub(super) fn new(enabled: bool) -> Self {
        let first = Phase::Connecting { attempt: 0, since: Instant::now() };
        Self {
            phase: if enabled { first } else { Phase::Disabled },
            past: Past::None,
            about: About::default(),
            tools: 0,
            protocol_version: None,
            server_info: None,
            introduced: Arc::default(),
            since: SystemTime::now(),
            settled: !enabled,
            discovered: false,
        }
    }

    pub(super) fn begin(&mut self, attempt: u64, now: Instant) -> Transition {
        match self.phase {
            Phase::Connecting { attempt: 0, .. } | Phase::Closing { .. } | Phase::Waiting(_) => {
                self.phase = Phase::Connecting { attempt, since: now };
                Ok(())
            }
            _ => self.forbid("begin"),
        }
    }

    /// Begins an attempt requested by an operator and clears the outcome of the previous one.
    pub(super) fn begin_requested(&mut self, attempt: u64, now: Instant) -> Transition {
        self.begin(attempt, now)?;
        self.past = Past::None;
        Ok(())
    }

    /// Records a successful attempt: calls can use the connection.
    pub(super) fn reach(&mut self, live: Arc<LiveConnection>, about: About) -> Transition {
        let Phase::Connecting { .. } = self.phase else { return self.forbid("reach") };
        self.phase = Phase::Discovering { live };
        self.about = about;
        Ok(())
    }

    /// Records a failed attempt.
    pub(super) fn fail(&mut self, reason: &str, due: Due) -> Transition {
        let Phase::Connecting { attempt, .. } = self.phase else { return self.forbid("fail") };
        self.wait(Waiting { attempt, failed: true, due }, reason);
        Ok(())
    }

    /// Records an attempt rejected by the server's rate limit.
    pub(super) fn refuse(&mut self, reason: &str, due: Due) -> Transition {
        let Phase::Connecting { attempt, .. } = self.phase else { return self.forbid("refuse") };
        self.wait(Waiting { attempt, failed: true, due }, reason);
        self.past = Past::Throttled(reason.into());
        Ok(())
    }

    /// Records that the server's rate limit delays the listing of tools. The connection is kept.
    pub(super) fn throttle(&mut self, reason: &str) -> Transition {
        let Phase::Discovering { .. } = self.phase else { return self.forbid("throttle") };
        self.past = Past::Throttled(reason.into());
        self.settled = true;
        Ok(())
    }

    /// Records the listed tools.
    pub(super) fn discover(&mut self, found: Discovered) -> Transition {
        let (Phase::Discovering { live } | Phase::Connected { live, .. }) = &self.phase else {
            return self.forbid("discover");
        };
        let Discovered { tools, protocol_version, server_info, introduced, notice } = found;
        self.phase = Phase::Connected { live: Arc::clone(live), notice };
        self.past = Past::None;
        (self.tools, self.settled, self.discovered) = (tools, true, true);
        (self.protocol_version, self.server_info) = (protocol_version, server_info);
        self.introduced = introduced;
        Ok(())
    }

    /// Replaces the connection with the same one under a new token.
    pub(super) fn renew(&mut self, other: Arc<LiveConnection>) -> Transition {
        let (Phase::Discovering { live } | Phase::Connected { live, .. }) = &mut self.phase else {
            return self.forbid("renew");
        };
        *live = other;
        Ok(())
    }

    /// Records a change of the missing scopes of a connected server's login.
    pub(super) fn notice(&mut self, now: Arc<str>) -> Transition {
        let Phase::Connected { notice, .. } = &mut self.phase else {
            return self.forbid("notice");
        };
        *notice = now;
        Ok(())
    }

    /// Records the loss of the connection.
    pub(super) fn lose(&mut self, reason: &str) -> Transition {
        let (attempt, worked) = match &self.phase {
            Phase::Discovering { live } => (live.generation, false),
            Phase::Connected { live, .. } => (live.generation, true),
            _ => return self.forbid("lose"),
        };
        if worked {
            self.past = Past::Lost(format!("reconnecting: {reason}").into());
        }
        self.phase = Phase::Closing { attempt, worked };
        Ok(())
    }

    /// Records that the lost connection was closed. If it never worked, the attempt counts as failed.
    pub(super) fn rest(&mut self, reason: &str, due: Due) -> Transition {
        let Phase::Closing { attempt, worked } = self.phase else { return self.forbid("rest") };
        self.wait(Waiting { attempt, failed: !worked, due }, reason);
        Ok(())
    }

    /// Ends all attempts.
    pub(super) fn stop(&mut self, reason: &str) -> Transition {
        if let Phase::Disabled = self.phase {
            return self.forbid("stop");
        }
        self.phase = Phase::Stopped;
        self.past = Past::Failed(reason.into());
        self.settled = true;
        Ok(())
    }

    fn wait(&mut self, waiting: Waiting, reason: &str) {
        if waiting.failed {
            self.past = Past::Failed(reason.into());
            self.settled = true;
        }
        self.phase = Phase::Waiting(waiting);
    }

    fn forbid(&self, transition: &'static str) -> Transition {
        let from = match self.phase {
            Phase::Disabled => "Disabled",
            Phase::Connecting { .. } => "Connecting",
            Phase::Discovering { .. } => "Discovering",
            Phase::Connected { .. } => "Connected",
            Phase::Closing { .. } => "Closing",
            Phase::Waiting(_) => "Waiting",
            Phase::Stopped => "Stopped",
        };
        Err(Forbidden { transition, from })
    }
}

impl UpstreamState {
    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    pub(super) fn live(&self) -> Option<&Arc<LiveConnection>> {
        match &self.phase {
            Phase::Discovering { live } | Phase::Connected { live, .. } => Some(live),
            _ => None,
        }
    }

    pub(super) fn about(&self) -> About {
        self.about
    }

    pub(super) fn introduced(&self) -> &Arc<Introduced> {
        &self.introduced
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Whether the server's tools were ever read.
    pub(super) fn is_discovered(&self) -> bool {
        self.discovered
    }

    /// Public status. A failed server counts as failed until it is connected.
    pub(super) fn status(&self) -> Status {
        match (&self.phase, &self.past) {
            (Phase::Disabled, _) => Status::Disabled,
            (Phase::Connected { .. }, _) => Status::Connected,
            (Phase::Stopped, _) => Status::Failed,
            (
                Phase::Connecting { .. }
                | Phase::Discovering { .. }
                | Phase::Closing { .. }
                | Phase::Waiting(_),
                past,
            ) => match past {
                Past::Failed(_) => Status::Failed,
                Past::Throttled(_) => Status::Throttled,
                Past::None | Past::Lost(_) => Status::Connecting,
            },
        }
    }

    /// Reason for the status, in one line; may be empty.
    pub(super) fn reason(&self) -> Arc<str> {
        match (&self.phase, &self.past) {
            (Phase::Disabled, _) => "disabled in the config".into(),
            (Phase::Connected { notice, .. }, _) => Arc::clone(notice),
            (_, Past::Lost(reason) | Past::Failed(reason) | Past::Throttled(reason)) => {
                Arc::clone(reason)
            }
            (_, Past::None) => "".into(),
        }
    }

    /// Public view.
    pub(super) fn shown(&self, name: &Arc<str>, transport: Transport) -> ServerState {
        let reason = self.reason();
        let status = match self.status() {
            Status::Failed if says_needs_login(&reason, name) => Status::NeedsLogin,
            status => status,
        };
        ServerState {
            name: Arc::clone(name),
            transport,
            status,
            reason,
            tools: self.tools,
            since: self.since,
            protocol_version: self.protocol_version.clone(),
            server_info: self.server_info.clone(),
            settled: self.settled,
        }
    }
}

/// Holder of one server's state: written only by its task, read by all others.
pub(super) struct StateCell {
    now: ArcSwap<UpstreamState>,
    changed: watch::Sender<()>,
}

impl StateCell {
    pub(super) fn new(state: UpstreamState) -> Self {
        Self { now: ArcSwap::from_pointee(state), changed: watch::Sender::default() }
    }

    /// Current state; must not be held for long.
    pub(super) fn load(&self) -> arc_swap::Guard<Arc<UpstreamState>> {
        self.now.load()
    }

    pub(super) fn live(&self) -> Option<Arc<LiveConnection>> {
        self.now.load().live().cloned()
    }

    /// Makes a transition; returns whether the status or its reason changed. Must be called by a single task.
    pub(super) fn make(
        &self,
        transition: impl FnOnce(&mut UpstreamState) -> Transition,
    ) -> Result<bool, Forbidden> {
        let before = self.now.load_full();
        let mut state = UpstreamState::clone(&before);
        transition(&mut state)?;
        let is_another = state.status() != before.status();
        let shows = is_another || state.reason() != before.reason();
        if is_another {
            state.since = SystemTime::now();
        }
        self.now.store(Arc::new(state));
        self.changed.send_replace(());
        Ok(shows)
    }

    /// Notifies of a change of data that is shown with the state.
    pub(super) fn notify(&self) {
        self.changed.send_replace(());
    }

    /// Notifies of later transitions.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Waits until `found` returns a value for the state.
    pub(super) async fn wait_for<T>(&self, found: impl Fn(&UpstreamState) -> Option<T>) -> T {
        let mut changes = self.changes();
        loop {
            // Marked as seen before the state is read, so that no change is missed.
            changes.borrow_and_update();
            let now = found(&self.now.load());
            if let Some(it) = now {
                return it;
            }
            if changes.changed().await.is_err() {
                // The sender exists as long as `self`.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Public status of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = ServerStatus)]
pub enum Status {
    /// Disabled in the config.
    Disabled,
    /// An attempt is running or due.
    Connecting,
    /// The handshake is complete and the tools are known.
    Connected,
    /// The last attempt failed and is retried, or there are no further attempts.
    Failed,
    /// A required login is missing or no longer valid. Exists only in the public view; internally, this is a failure.
    NeedsLogin,
    /// Rejected by the server's rate limit (HTTP 429, or 503 with `Retry-After`); retried at the time that the server
    /// states.
    Throttled,
}

impl Status {
    pub const ALL: [Self; 6] = [
        Self::Disabled,
        Self::Connecting,
        Self::Connected,
        Self::Failed,
        Self::NeedsLogin,
        Self::Throttled,
    ];

    /// Name in REST, records and tables (`contracts.md`, *http*).
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Failed => "failed",
            Self::NeedsLogin => "needs-login",
            Self::Throttled => "throttled",
        }
    }
}

/// Transport of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    Stdio,
    StreamableHttp,
    /// The config is invalid, so that the server cannot be reached.
    Unknown,
}

impl Transport {
    /// Name in the config.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::StreamableHttp => "streamable-http",
            Self::Unknown => "unknown",
        }
    }
}

/// Public state of a server, for readiness, lists and records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    pub name: Arc<str>,
    pub transport: Transport,
    pub status: Status,
    /// Reason for the status, in one line; if connected, the scopes that the login lacks, or the fault of the TLS
    /// files. May be empty.
    pub reason: Arc<str>,
    pub tools: usize,
    /// Time of the last change of `status`.
    pub since: SystemTime,
    /// Negotiated revision, once connected.
    pub protocol_version: Option<Arc<str>>,
    /// Name and version reported by the server, once connected.
    pub server_info: Option<Arc<str>>,
    /// Whether the server was discovered or has failed once, and no longer delays readiness.
    pub settled: bool,
}

/// Outcome of a login, for the activity log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginOutcome {
    /// The login was requested.
    Began,
    /// Tokens were granted by this issuer.
    Granted(Arc<str>),
    Failed(Arc<str>),
}

/// Event for the activity log.
#[derive(Clone, Debug)]
pub enum Event {
    /// The status of a server changed.
    Server(ServerState),
    /// The tools of a server were read; `change` lists the differences.
    Catalog { server: Arc<str>, change: Change },
    /// A login was requested, or has ended.
    Login {
        server: Arc<str>,
        /// Id of the principal that requested the login.
        principal: Arc<str>,
        outcome: LoginOutcome,
    },
}

/// Introduction of a server, for clients that see only this server. Secrets of the config are masked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduced {
    /// Instructions of the server; empty if it has none.
    pub instructions: Box<str>,
    /// Capabilities declared by the server.
    pub capabilities: Map<String, Value>,
}

/// Protocol family and capabilities from the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct About {
    pub(super) family: ProtocolFamily,
    pub(super) offers: ServerCapabilities,
}

/// Number of the low bits of a connection's generation that count a server's own attempts; the higher bits contain the
/// server's key.
pub(super) const ATTEMPTS: u32 = 32;
/// Bit of a generation that is set for second connections.
pub(super) const SECOND: u64 = 1 << (ATTEMPTS - 1);
/// Capacity of the control queue of a connection.
pub(super) const CONTROL_MESSAGES: usize = 256;

/// Message to a server's task. Contains the connection's generation, so that messages about an earlier connection are
/// ignored.
#[derive(Debug)]
pub(super) enum Control {
    /// The connection is broken.
    Lost { generation: u64, reason: Arc<str> },
    /// The operator requested a new connection.
    Restart { generation: u64 },
    /// An HTTP call was abandoned.
    Cancel { generation: u64, id: u64 },
    /// A client's response to a server request.
    Respond { generation: u64, id: Bytes, outcome: Bytes },
}

/// Connection used by calls.
pub(super) struct LiveConnection {
    /// Number of the connection, which identifies messages about earlier connections.
    pub(super) generation: u64,
    pub(super) family: ProtocolFamily,
    pub(super) link: Carrier,
    /// Routes messages to HTTP calls outside of their own streams.
    pub(super) router: Arc<NotificationRouter>,
}

/// Reason why a request other than a call got no response.
#[derive(Debug)]
pub(super) struct FetchFailure {
    pub(super) cause: Cause,
    /// Whether the session is unknown to the server, or the connection is lost.
    pub(super) ends_connection: bool,
}

impl From<Cause> for FetchFailure {
    fn from(cause: Cause) -> Self {
        Self { cause, ends_connection: false }
    }
}

impl FetchFailure {
    /// Failure over a pipe.
    fn of(link: &ChildLink, cause: Cause) -> Self {
        Self { cause, ends_connection: link.has_ended() }
    }
}

#[derive(Clone)]
pub(super) enum Carrier {
    Http(Arc<Session>),
    Stdio(Arc<ChildLink>),
}

impl Carrier {
    /// Sends a request other than a call and returns its response, at most `max_bytes` bytes. `sent_for` is the party
    /// on whose behalf the request is sent; over HTTP, the caller must count the request as in flight. `events`
    /// receives other messages of its stream.
    pub(super) async fn fetch(
        &self,
        events: &ServerEvents,
        params: Params,
        family: ProtocolFamily,
        limit: Duration,
        (max_bytes, sent_for): (usize, SentFor),
    ) -> Result<Vec<u8>, FetchFailure> {
        let link = match self {
            Self::Http(session) => {
                let fetched = http::fetch(session, events, params, family, limit, max_bytes).await;
                return fetched.map_err(|refused| FetchFailure {
                    ends_connection: refused.session_unknown
                        || refused.cause.affects_later_connections(),
                    cause: refused.cause,
                });
            }
            Self::Stdio(link) => link,
        };
        let line = |id| params.line(id, family);
        let mut call = stdio::StdioCall::begin(link, line, Allowance::now(limit), sent_for)
            .await
            .map_err(|(cause, _)| FetchFailure::of(link, cause))?;
        let mut message = Vec::new();
        while let Some(part) = call.next().await.map_err(|cause| FetchFailure::of(link, cause))? {
            match part {
                AnswerPart::End => return Ok(message),
                AnswerPart::Data(data) if message.len() + data.len() > max_bytes => {
                    return Err(Cause::TooLong { limit: max_bytes }.into());
                }
                AnswerPart::Data(data) => message.extend_from_slice(&data),
                AnswerPart::Interrupted => {}
            }
        }
        Err(FetchFailure::of(link, Cause::NoAnswerAtAll { reason: "".into() }))
    }

    /// Sends a client's response to a server request; `id` and `outcome` are raw JSON.
    pub(super) async fn respond(self, id: Bytes, outcome: Bytes, limit: Duration) {
        let json = [br#"{"jsonrpc":"2.0","id":"#, &*id, b",", &*outcome, b"}"].concat();
        match self {
            Self::Http(session) => http::notify(&session, json.into()).await,
            Self::Stdio(link) => {
                // Fails if the connection is closed; in that case the server does not wait for the response.
                let _ = link.send(lines::one_line(json.into()).into(), limit).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stdio::ChildLink;
    use mcpproxy_protocol::mcp::revisions::ProtocolFamily;

    fn live(generation: u64) -> Arc<LiveConnection> {
        let (link, _queue) = ChildLink::new(Arc::default(), Arc::default());
        let (family, link) = (ProtocolFamily::Legacy, Carrier::Stdio(link));
        Arc::new(LiveConnection { generation, family, link, router: Arc::default() })
    }

    fn due() -> Due {
        let now = Instant::now();
        Due { earliest: now, next: now + Duration::from_secs(1) }
    }

    type Named = (&'static str, fn(&mut UpstreamState) -> Transition);

    const TRANSITIONS: &[Named] = &[
        ("begin", |state| state.begin(2, Instant::now())),
        ("reach", |state| state.reach(live(2), About::default())),
        ("fail", |state| state.fail("no", due())),
        ("refuse", |state| state.refuse("429", due())),
        ("throttle", |state| state.throttle("429")),
        ("discover", |state| state.discover(Discovered::default())),
        ("renew", |state| state.renew(live(2))),
        ("notice", |state| state.notice("login".into())),
        ("lose", |state| state.lose("gone")),
        ("rest", |state| state.rest("gone", due())),
        ("stop", |state| state.stop("the end")),
    ];

    fn after(transitions: &[&str]) -> UpstreamState {
        let mut state = UpstreamState::new(true);
        for wanted in transitions {
            let (_, make) = TRANSITIONS.iter().find(|(name, _)| name == wanted).unwrap();
            make(&mut state).unwrap();
        }
        state
    }

    #[test]
    fn only_transitions_of_the_diagram_are_possible() {
        for (way, allowed) in [
            (&[][..], &["begin", "reach", "fail", "refuse", "stop"][..]),
            (&["begin"], &["reach", "fail", "refuse", "stop"]),
            (&["begin", "fail"], &["begin", "stop"]),
            (&["begin", "reach"], &["throttle", "discover", "renew", "lose", "stop"]),
            (&["begin", "reach", "throttle"], &["throttle", "discover", "renew", "lose", "stop"]),
            (&["begin", "reach", "discover"], &["discover", "renew", "notice", "lose", "stop"]),
            (&["begin", "reach", "lose"], &["begin", "rest", "stop"]),
            (&["begin", "reach", "discover", "lose"], &["begin", "rest", "stop"]),
            (&["begin", "reach", "discover", "lose", "rest"], &["begin", "stop"]),
            (&["stop"], &["stop"]),
        ] {
            for (name, make) in TRANSITIONS {
                let mut state = after(way);
                let (status, reason) = (state.status(), state.reason());
                let made = make(&mut state);
                assert_eq!(made.is_ok(), allowed.contains(name), "{way:?}, then {name}");
                if let Err(forbidden) = made {
                    assert_eq!(forbidden.transition, *name);
                    assert_eq!((state.status(), state.reason()), (status, reason), "{way:?}");
                }
            }
        }
        for (name, make) in TRANSITIONS {
            assert!(make(&mut UpstreamState::new(false)).is_err(), "{name} from Disabled");
        }
    }

    #[test]
    fn calls_use_the_renewed_connection() {
        for way in [&["begin", "reach"][..], &["begin", "reach", "discover"]] {
            let (mut state, other) = (after(way), live(2));
            state.renew(Arc::clone(&other)).unwrap();
            assert!(Arc::ptr_eq(state.live().unwrap(), &other), "{way:?}");
        }
    }

    #[test]
    fn public_state_follows_from_the_phase() {
        use Status::{Connected, Connecting, Failed, Throttled};
        for (way, status, reason, settled, callable) in [
            (&[][..], Connecting, "", false, false),
            (&["begin", "reach"], Connecting, "", false, true),
            (&["begin", "reach", "discover"], Connected, "", true, true),
            (&["begin", "reach", "discover", "notice"], Connected, "login", true, true),
            (
                &["begin", "reach", "discover", "lose"],
                Connecting,
                "reconnecting: gone",
                true,
                false,
            ),
            (
                &["begin", "reach", "discover", "lose", "rest", "begin"],
                Connecting,
                "reconnecting: gone",
                true,
                false,
            ),
            // A server that never worked counts as failed until it is connected.
            (&["begin", "reach", "lose"], Connecting, "", false, false),
            (&["begin", "reach", "lose", "rest"], Failed, "gone", true, false),
            (&["begin", "fail", "begin"], Failed, "no", true, false),
            (&["begin", "refuse"], Throttled, "429", true, false),
            (&["begin", "refuse", "begin"], Throttled, "429", true, false),
            (&["begin", "reach", "throttle"], Throttled, "429", true, true),
            (&["begin", "reach", "throttle", "discover"], Connected, "", true, true),
            (&["begin", "fail", "begin", "reach"], Failed, "no", true, true),
            (&["begin", "fail", "begin", "reach", "discover"], Connected, "", true, true),
            (&["begin", "reach", "discover", "stop"], Failed, "the end", true, false),
        ] {
            let state = after(way);
            let shown = state.shown(&"s".into(), Transport::Stdio);
            assert_eq!((shown.status, &*shown.reason), (status, reason), "{way:?}");
            assert_eq!((shown.settled, state.live().is_some()), (settled, callable), "{way:?}");
        }
        let off = UpstreamState::new(false);
        assert_eq!((off.status(), &*off.reason()), (Status::Disabled, "disabled in the config"));
        assert!(off.is_settled());
    }

    #[test]
    fn waiting_phase_records_whether_the_last_attempt_failed() {
        for (way, failed) in [
            (&["begin", "fail"][..], true),
            (&["begin", "reach", "lose", "rest"], true),
            (&["begin", "reach", "discover", "lose", "rest"], false),
        ] {
            let state = after(way);
            let Phase::Waiting(waiting) = state.phase() else { panic!("{way:?}") };
            assert_eq!((waiting.failed, waiting.attempt), (failed, 2), "{way:?}");
        }
    }

    #[tokio::test]
    async fn cell_reports_visible_changes_and_wakes_waiters() {
        let cell = StateCell::new(UpstreamState::new(true));
        let since = cell.load().since;
        let is_connected =
            cell.wait_for(|state| (state.status() == Status::Connected).then_some(()));
        let makes = async {
            assert_eq!(cell.make(|state| state.begin(1, Instant::now())), Ok(false));
            assert_eq!(cell.make(|state| state.reach(live(1), About::default())), Ok(false));
            assert_eq!(cell.load().since, since, "the status is unchanged");
            assert_eq!(cell.make(|state| state.discover(Discovered::default())), Ok(true));
            assert_eq!(cell.make(|state| state.discover(Discovered::default())), Ok(false));
            assert_eq!(cell.make(|state| state.notice("login".into())), Ok(true));
        };
        tokio::join!(is_connected, makes);
        let forbidden = cell.make(|state| state.begin(2, Instant::now())).unwrap_err();
        assert_eq!(forbidden.to_string(), "there is no transition begin from Connected");
    }
}
