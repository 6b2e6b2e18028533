//! Second connection to a server that supports both protocol families: a legacy one, for clients to which the server
//! can send requests only in the legacy family.
//!
//! A server cannot send requests to a legacy client over a modern connection. If it also supports `initialize`, calls
//! of legacy clients that declared a capability use a separate connection: a second child process, or a second session
//! over HTTP. The first such call opens this connection. It is closed when idle, and ends with the first connection,
//! within which its task runs (`second_task`). Subscriptions of legacy clients use the second connection too, if the
//! server reports resource changes only over it. While such subscriptions exist, the connection does not count as idle,
//! and it is opened again if it is lost. Catalog, limits and all other data about the server are shared.
//!
//! Invariants: a server has at most one second connection. A call that cannot use it uses the first connection. Messages received over it
//! are delivered only to calls over it ([`crate::inbound`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use mcpproxy_json::members::member;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep_until, timeout, timeout_at};

use crate::backoff::CONNECT_WAIT;
use crate::error::Cause;
use crate::notifications::ServerEvents;
use crate::request::Params;
use crate::server_log::ServerLog;
use crate::state::{CONTROL_MESSAGES, Control, LiveConnection};
use crate::stdio::SentFor;
use mcpproxy_policy::{Access, ResourceRequest};
use mcpproxy_protocol::mcp::capabilities::ServerCapabilities;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_runtime::io::line_budget::peer_line;

/// Upper bound of `second_idle_timeout`: a longer time cannot be added to a clock.
const MAX_IDLE_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum wait of a call for `logging/setLevel`.
const LEVEL_LIMIT: Duration = Duration::from_secs(5);
/// Maximum size of the (empty) response to `logging/setLevel`, in bytes.
const MAX_LEVEL_BYTES: usize = 64 * 1024;
/// Levels of log messages, lowest first.
const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// Whether a request is sent over the second connection, if its client accepts server requests. Excludes subscriptions
/// (see [`subscribes`]), and calls of tools whose declared results the legacy family cannot represent because they are
/// not objects.
pub(super) fn serves(access: &Access) -> bool {
    let is_object = |schema: &str| member(schema, "type") == Some(r#""object""#);
    match access {
        Access::Tool(call) => {
            call.tool().output_schema.as_deref().is_none_or(|schema| is_object(schema.get()))
        }
        Access::Resource { request, .. } => *request == ResourceRequest::Read,
        Access::Prompt { .. } | Access::Completion { .. } => true,
        // An extension belongs to the connection whose capabilities declare it.
        Access::Method { .. } => false,
        // A task belongs to the connection of its call.
        Access::Task(_) => false,
    }
}

/// Whether a request begins or ends a resource subscription. Such a request is sent over the second connection if the first one does not
/// report resource changes.
pub(super) fn subscribes(access: &Access) -> bool {
    matches!(
        access,
        Access::Resource { request: ResourceRequest::Subscribe | ResourceRequest::Unsubscribe, .. }
    )
}

/// Phase of the second connection.
///
/// ```text
///          begin              call                 established
///  Absent ───────▶ Closed ───────────▶ Opening ─────────────────▶ Open
///                    ▲                  ▲    │ failed               │
///                    │      call, later │    ▼           lost       │
///                    │                 Failed ◀─────────────────────┤
///                    └──────────────────────────────────────────────┘
///                                          idle
/// ```
///
/// The end of the first connection leads to Absent from every phase.
pub(super) enum SecondPhase {
    /// The first connection does not exist, or is a legacy one.
    Absent,
    Closed,
    Opening {
        since: Instant,
    },
    Open(OpenSecond),
    Failed {
        reason: Arc<str>,
        /// Time before which calls do not cause another attempt.
        until: Instant,
        /// Whether the server is known to support `initialize`.
        supported: bool,
    },
}

pub(super) struct OpenSecond {
    live: Arc<LiveConnection>,
    protocol_version: Option<Arc<str>>,
    /// Capabilities in the legacy family: whether the server supports `logging/setLevel` and subscriptions.
    offers: ServerCapabilities,
    /// Index in [`LEVELS`] of the lowest level set so far.
    level: Mutex<Option<usize>>,
}

/// Handle to the second connection of one server, shared by all workers.
pub(super) struct SecondConnection {
    phase: watch::Sender<SecondPhase>,
    /// Notified by a call that needs the connection.
    pub(super) wanted: Notify,
    uses: Mutex<Uses>,
    /// Notified when no call uses the connection any longer.
    released: Notify,
    pub(super) control: mpsc::Sender<Control>,
    idle_timeout: Duration,
    /// Whether the server reports resource changes in the legacy family; `None` if unknown. Set from the first connection.
    legacy_updates: Mutex<Option<bool>>,
}

/// Calls that use the connection or wait for it.
struct Uses {
    count: usize,
    /// Time at which the last use ended.
    last: Instant,
}

/// Use by a call; the connection is not idle until this value is dropped.
pub(super) struct SecondUse(Arc<SecondConnection>);

impl Drop for SecondUse {
    fn drop(&mut self) {
        let mut uses = self.0.uses.lock();
        uses.count -= 1;
        uses.last = Instant::now();
        if uses.count == 0 {
            self.0.released.notify_one();
        }
    }
}

/// Public state of a second connection that is open, being opened, or could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondState {
    pub status: SecondStatus,
    /// Negotiated revision, while connected.
    pub protocol_version: Option<Arc<str>>,
    /// Reason why the connection could not be opened, or was lost; may be empty.
    pub reason: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = SecondConnectionStatus)]
pub enum SecondStatus {
    Connecting,
    Connected,
    /// The last attempt failed, or the connection was lost; a later call causes the next attempt.
    Failed,
    /// The last attempt failed, and the server lists no revision before 2026-07-28.
    Unsupported,
}

impl SecondConnection {
    /// Creates the handle, and the receiver of the control messages for its task.
    pub(super) fn new(idle_timeout: Duration) -> (Arc<Self>, mpsc::Receiver<Control>) {
        let (control, controls) = mpsc::channel(CONTROL_MESSAGES);
        let second = Self {
            phase: watch::Sender::new(SecondPhase::Absent),
            wanted: Notify::new(),
            uses: Mutex::new(Uses { count: 0, last: Instant::now() }),
            released: Notify::new(),
            control,
            idle_timeout: idle_timeout.min(MAX_IDLE_TIMEOUT),
            legacy_updates: Mutex::new(None),
        };
        (Arc::new(second), controls)
    }

    pub(super) fn live(&self) -> Option<Arc<LiveConnection>> {
        match &*self.phase.borrow() {
            SecondPhase::Open(open) => Some(Arc::clone(&open.live)),
            _ => None,
        }
    }

    pub(super) fn enter(self: &Arc<Self>) -> SecondUse {
        self.uses.lock().count += 1;
        SecondUse(Arc::clone(self))
    }

    /// Returns the connection, opening it if necessary. Waits at most [`CONNECT_WAIT`] from the start of the attempt, and no longer than
    /// until `until`. `None` if the connection cannot be used.
    pub(super) async fn open(&self, until: Instant) -> Option<Arc<LiveConnection>> {
        let asked = Instant::now();
        let mut phase = self.phase.subscribe();
        loop {
            let since = match &*phase.borrow_and_update() {
                SecondPhase::Open(open) => return Some(Arc::clone(&open.live)),
                SecondPhase::Absent => return None,
                SecondPhase::Failed { until, .. } if asked < *until => return None,
                SecondPhase::Failed { .. } | SecondPhase::Closed => {
                    self.wanted.notify_one();
                    asked
                }
                SecondPhase::Opening { since } => asked.min(*since),
            };
            let limit = until.min(since + CONNECT_WAIT);
            timeout_at(limit.into(), phase.changed()).await.ok()?.ok()?;
        }
    }

    /// Waits for a connection newer than the one of this generation, which has ended or is about to end.
    pub(super) async fn successor(
        &self,
        generation: u64,
        until: Instant,
    ) -> Result<Arc<LiveConnection>, Cause> {
        let mut phase = self.phase.subscribe();
        let is_over = |phase: &SecondPhase| match phase {
            SecondPhase::Open(open) => open.live.generation != generation,
            _ => true,
        };
        let limit = until.min(Instant::now() + CONNECT_WAIT);
        let over =
            timeout_at(limit.into(), phase.wait_for(is_over)).await.is_ok_and(|it| it.is_ok());
        let next = if over { self.open(until).await } else { None };
        next.ok_or_else(|| Cause::NotConnected { reason: "its second connection has ended".into() })
    }

    /// Whether the server is known to report resource changes in the legacy family.
    pub(super) fn legacy_updates(&self) -> Option<bool> {
        *self.legacy_updates.lock()
    }

    /// Allows calls to open the connection. `lists_legacy` states whether the server listed a legacy revision.
    pub(super) fn begin(&self, lists_legacy: bool) {
        let mut updates = self.legacy_updates.lock();
        *updates = match (lists_legacy, *updates) {
            (false, _) => Some(false),
            (true, known) => known.filter(|reports| *reports),
        };
        drop(updates);
        self.publish(SecondPhase::Closed);
    }

    /// Ends with the first connection. `legacy_updates` is retained, because a client may need the value before the
    /// next connection.
    pub(super) fn end(&self) {
        self.publish(SecondPhase::Absent);
    }

    pub(super) fn publish(&self, phase: SecondPhase) {
        // Discards earlier requests for a connection, which belong to the previous phase.
        let _ = self.wanted.notified().now_or_never();
        self.phase.send_replace(phase);
    }

    /// Records a successful attempt.
    pub(super) fn opened(
        &self,
        live: Arc<LiveConnection>,
        protocol_version: Option<Arc<str>>,
        offers: ServerCapabilities,
    ) {
        let level = Mutex::new(None);
        *self.legacy_updates.lock() = Some(offers.resource_updates);
        self.publish(SecondPhase::Open(OpenSecond { live, protocol_version, offers, level }));
    }

    /// Whether the connection is open and the server reports resource changes over it.
    pub(super) fn reports_updates(&self) -> bool {
        matches!(&*self.phase.borrow(), SecondPhase::Open(open) if open.offers.resource_updates)
    }

    /// Waits until another attempt may be made.
    pub(super) async fn wait_for_retry(&self) {
        let until = match &*self.phase.borrow() {
            SecondPhase::Failed { until, .. } => *until,
            _ => return,
        };
        sleep_until(until.into()).await;
    }

    /// Continues the connection with a new token.
    pub(super) fn renew(&self, live: Arc<LiveConnection>) {
        self.phase.send_modify(|phase| {
            if let SecondPhase::Open(open) = phase {
                open.live = live;
            }
        });
    }

    /// Waits until the connection is idle, and closes it to calls.
    pub(super) async fn closed_when_idle(&self) {
        loop {
            let due = {
                let uses = self.uses.lock();
                let due = (uses.count == 0).then(|| uses.last + self.idle_timeout);
                if due.is_some_and(|due| due <= Instant::now()) {
                    // Done under the lock, so that a call that enters later finds the connection closed.
                    self.publish(SecondPhase::Closed);
                    return;
                }
                due
            };
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => self.released.notified().await,
            }
        }
    }

    pub(super) fn state(&self) -> Option<SecondState> {
        let state = |status| SecondState { status, protocol_version: None, reason: "".into() };
        match &*self.phase.borrow() {
            SecondPhase::Absent | SecondPhase::Closed => None,
            SecondPhase::Opening { .. } => Some(state(SecondStatus::Connecting)),
            SecondPhase::Open(open) => Some(SecondState {
                protocol_version: open.protocol_version.clone(),
                ..state(SecondStatus::Connected)
            }),
            SecondPhase::Failed { reason, supported, .. } => {
                let status =
                    if *supported { SecondStatus::Failed } else { SecondStatus::Unsupported };
                Some(SecondState { reason: Arc::clone(reason), ..state(status) })
            }
        }
    }

    /// Makes the server send log messages from `level` upward, unless it already does. All clients share the connection, so it uses their
    /// lowest level; each client gets only the messages at its own level.
    pub(super) async fn lower_level(
        &self,
        live: &LiveConnection,
        level: &str,
        (events, server_log): (&ServerEvents, &ServerLog),
    ) {
        let Some(at) = LEVELS.iter().position(|known| *known == level) else { return };
        let is_lower = match &*self.phase.borrow() {
            SecondPhase::Open(open)
                if open.offers.logging && open.live.generation == live.generation =>
            {
                let mut lowest = open.level.lock();
                let is_lower = lowest.is_none_or(|lowest| at < lowest);
                if is_lower {
                    *lowest = Some(at);
                }
                is_lower
            }
            _ => false,
        };
        if !is_lower {
            return;
        }
        let params = Params::of("logging/setLevel", json!({"level": level}).to_string().into());
        let bound = (MAX_LEVEL_BYTES, SentFor::Nobody);
        let family = ProtocolFamily::Legacy;
        let sent = live.link.fetch(events, params, family, LEVEL_LIMIT, bound);
        let failure = match timeout(LEVEL_LIMIT, sent).await {
            Ok(Ok(_)) => return,
            Ok(Err(failure)) => failure.cause.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        peer_line!(debug, server_log, server = %server_log.name, failure, "logging/setLevel failed");
    }
}
