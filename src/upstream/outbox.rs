//! Messages to a server other than calls: cancellations, and clients' responses to its requests. They are sent in the
//! background within bounds; messages beyond the bounds are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::http;
use crate::request::cancellation;
use crate::server_log::ServerLog;
use crate::state::{Carrier, Control};
use mcpproxy_runtime::io::line_budget::peer_line;

/// Maximum number of cancellations in progress per connection; more are dropped.
const MAX_CANCELLING: usize = 16;
/// Maximum number of client responses in progress per connection; more are dropped.
const MAX_RESPONDING: usize = 64;
/// Maximum total size of a server's client responses in progress, in bytes, beyond the first.
const MAX_RESPONDING_BYTES: usize = 16 * 1024 * 1024;

/// Outbox of one connection. Messages that are still being sent end with it.
pub(super) struct Outbox {
    server_log: Arc<ServerLog>,
    /// Time limit of a response over a pipe.
    limit: Duration,
    cancelling: JoinSet<()>,
    responding: JoinSet<()>,
    /// Total size of client responses in progress, over all connections of the server.
    bytes: Arc<AtomicUsize>,
}

/// Reservation of bytes, released on drop.
struct RespondingBytes(Arc<AtomicUsize>, usize);

impl Drop for RespondingBytes {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Reason for ending a connection after a message to its task.
pub(super) enum ControlEnd {
    Lost(Arc<str>),
    Restart,
}

impl Outbox {
    pub(super) fn new(
        server_log: &Arc<ServerLog>,
        limit: Duration,
        bytes: &Arc<AtomicUsize>,
    ) -> Self {
        Self {
            server_log: Arc::clone(server_log),
            limit,
            cancelling: JoinSet::new(),
            responding: JoinSet::new(),
            bytes: Arc::clone(bytes),
        }
    }

    /// Handles a message to the task of the connection with this `generation`. Returns the reason if the message ends
    /// the connection. Messages about an earlier connection are ignored.
    pub(super) fn handle(
        &mut self,
        control: Control,
        generation: u64,
        carrier: &Carrier,
    ) -> Option<ControlEnd> {
        match control {
            Control::Lost { generation: about, .. }
            | Control::Restart { generation: about }
            | Control::Cancel { generation: about, .. }
            | Control::Respond { generation: about, .. }
                if about != generation => {}
            Control::Lost { reason, .. } => return Some(ControlEnd::Lost(reason)),
            Control::Restart { .. } => return Some(ControlEnd::Restart),
            Control::Cancel { id, .. } => self.cancel(carrier, id),
            Control::Respond { id, outcome, .. } => self.respond(carrier, id, outcome),
        }
        None
    }

    /// Cancels a call over HTTP; over a pipe, the call cancels itself.
    fn cancel(&mut self, carrier: &Carrier, id: u64) {
        while self.cancelling.try_join_next().is_some() {}
        if let Carrier::Http(session) = carrier
            && self.cancelling.len() < MAX_CANCELLING
        {
            let session = session.clone();
            self.cancelling.spawn(async move {
                http::notify(&session, cancellation(id).into()).await;
            });
        }
    }

    /// Sends a client's response.
    fn respond(&mut self, carrier: &Carrier, id: Bytes, outcome: Bytes) {
        while self.responding.try_join_next().is_some() {}
        let (size, sending) = (outcome.len(), carrier.clone());
        let is_full = self.bytes.load(Ordering::Relaxed) + size > MAX_RESPONDING_BYTES;
        if self.responding.len() >= MAX_RESPONDING || (is_full && !self.responding.is_empty()) {
            let server_log = &self.server_log;
            peer_line!(warn, server_log, server = %server_log.name, limit = MAX_RESPONDING, "dropped a client's response: too many in progress");
            return;
        }
        self.bytes.fetch_add(size, Ordering::Relaxed);
        let taken = RespondingBytes(Arc::clone(&self.bytes), size);
        let limit = self.limit;
        self.responding.spawn(async move {
            // Also released if the task is aborted.
            let _taken = taken;
            sending.respond(id, outcome, limit).await;
        });
    }
}
