//! Task state requests on behalf of clients (PRO-43). States of [changed tasks](super::changed) are fetched
//! one at a time per stream of a client, and paced.

use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use mcpproxy_policy::TaskRequest;
use mcpproxy_protocol::mcp::known_extensions::TASKS_EXTENSION;
use mcpproxy_protocol::mcp::meta::{CAPABILITIES_KEY, EXTENSIONS};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use serde_json::json;
use tokio::time::Instant;

use super::changed::{DueTask, FetchOutcome, Fetched, MAX_STATE_BYTES, NotRepeated, TaskState};
use crate::proxy::client::Peer;
use crate::proxy::reply::{Piece, Running};
use crate::proxy::tasks;
use crate::proxy::worker::Worker;

/// Minimum time between two requests for one client's stream, regardless of how often its servers report changes.
const MIN_INTERVAL: Duration = Duration::from_millis(500);

/// Requests the state of a task on behalf of the client, under the raw id of the client's request.
pub(super) fn get(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, sealed: &str) -> Running {
    let capabilities = json!({EXTENSIONS: {TASKS_EXTENSION: {}}});
    let params = match peer.client.family {
        ProtocolFamily::Modern => {
            json!({"taskId": sealed, "_meta": {CAPABILITIES_KEY: capabilities}})
        }
        ProtocolFamily::Legacy => json!({ "taskId": sealed }),
    };
    let params = Bytes::from(params.to_string());
    tasks::running(worker, peer, id, TaskRequest::Get, params)
}

/// Piece that ends the reply; `None` if it broke off. Cancel-safe.
pub(super) async fn last(running: &mut Running) -> Option<Piece> {
    loop {
        match running.next().await?.ok()? {
            Piece::Notification(_) | Piece::Request(_) | Piece::Alive => {}
            piece @ (Piece::Whole(..) | Piece::Begin(_) | Piece::Data(_) | Piece::Refused(_)) => {
                return Some(piece);
            }
        }
    }
}

/// Paced fetcher of changed tasks' states for one stream of a client; one request at a time.
pub(super) struct StateFetches {
    pub(super) worker: Rc<Worker>,
    pub(super) peer: Peer,
    /// Raw id of the requests, in records.
    id: Bytes,
    /// Earliest time of the next request.
    not_before: Instant,
    fetching: Option<(DueTask, Running)>,
}

impl StateFetches {
    pub(super) fn new(worker: &Rc<Worker>, peer: Peer, id: Bytes) -> Self {
        let (worker, not_before) = (Rc::clone(worker), Instant::now());
        Self { worker, peer, id, not_before, fetching: None }
    }

    /// Waits for the outcome of the request in flight; `None` if there is no request. Cancel-safe.
    pub(super) async fn outcome(&mut self) -> Option<FetchOutcome> {
        let (_, running) = self.fetching.as_mut()?;
        let last = last(running).await;
        let (DueTask { sealed, changes, .. }, running) = self.fetching.take()?;
        self.worker.defer(running);
        let max_bytes = match self.peer.client.family {
            ProtocolFamily::Legacy => MAX_STATE_BYTES,
            ProtocolFamily::Modern => usize::MAX,
        };
        let fetched = Fetched::of(last, &sealed, max_bytes);
        Some(FetchOutcome { sealed, changes, fetched })
    }

    /// Sends the request for a due task at its time; waits forever without one. Cancel-safe.
    pub(super) async fn begin(&mut self, due: Option<DueTask>) {
        let Some(due) = due else { return pending().await };
        tokio::time::sleep_until(due.at.max(self.not_before)).await;
        self.not_before = Instant::now() + MIN_INTERVAL;
        let running = get(&self.worker, &self.peer, &self.id, &due.sealed);
        self.fetching = Some((due, running));
    }

    /// State for the client in a taken outcome; logs if the request is no longer repeated.
    pub(super) fn state(&self, taken: Result<Option<TaskState>, NotRepeated>) -> Option<TaskState> {
        taken.unwrap_or_else(|NotRepeated| {
            let principal = self.peer.principal.id();
            peer_line!(info, LinePeer::Client(principal), %principal, "failed to fetch the state of a changed task for its client");
            None
        })
    }
}
