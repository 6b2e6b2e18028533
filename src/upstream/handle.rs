//! A server as others see it: who it is, how it is, and what it is told.
//!
//! [`Upstream`] is a passive handle, shared by all workers. Its task ([`super::server_task`]) is the
//! one that connects and writes its state; how calls go over it is [`super::call`]'s.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::de::IgnoredAny;
use tokio::sync::{broadcast, mpsc, watch};

use super::backoff::Wishes;
use super::carrier::LiveConnection;
use super::control::Control;
use super::error::Undelivered;
use super::notification_router::ServerEvents;
use super::notification_router::{Changes, Told};
use super::peer::Peer;
use super::state::StateCell;
use super::status::{ServerState, Transport};
use super::subscriptions::Subscriptions;
use crate::mcp::capabilities::ServerCapabilities;
use crate::mcp::revisions::Era;
use crate::tool::server_id::ServerId;

/// Longest wait of a client's answer for its way to the server that asked.
pub const RESPOND_WAIT: Duration = Duration::from_secs(5);

/// What stands for an error that cannot be told: JSON-RPC's internal error.
const UNTELLABLE: &[u8] = br#"{"code":-32603,"message":"the server's error holds a secret"}"#;

/// A server, as calls see it. Shared by all workers.
pub struct Upstream {
    pub(super) name: Arc<str>,
    pub(super) peer: Arc<Peer>,
    pub(super) id: ServerId,
    pub(super) transport: Transport,
    pub(super) call_timeout: Duration,
    pub(super) state: StateCell,
    /// The attempts to connect that calls wish for.
    pub(super) wishes: Wishes,
    pub(super) control: mpsc::Sender<Control>,
    pub(super) server_events: Arc<ServerEvents>,
    /// Resources whose changes it is to tell of.
    pub(super) subscriptions: Subscriptions,
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
        self.call_timeout
    }

    /// Its identity, which is that of its name.
    #[must_use]
    pub fn id(&self) -> ServerId {
        self.id
    }

    /// How it is now.
    #[must_use]
    pub fn state(&self) -> ServerState {
        self.state.load().shown(&self.name, self.transport)
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

    /// A JSON-RPC error of the server without the values that the config holds as secret; `None`
    /// if it holds none. Where one cannot be taken out of the JSON that it stands in, another
    /// error stands for it.
    #[must_use]
    pub fn masked(&self, error: &Bytes) -> Option<Bytes> {
        let masked = match self.peer.secrets.mask(error, false) {
            Cow::Borrowed(_) => return None,
            Cow::Owned(masked) => Bytes::from(masked),
        };
        match serde_json::from_slice::<IgnoredAny>(&masked) {
            Ok(_) => Some(masked),
            Err(_) => Some(Bytes::from_static(UNTELLABLE)),
        }
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
