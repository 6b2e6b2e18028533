//! One child's pipes as calls see them: who waits for which answer, and the queue to the writer.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::queue::{CallPiece, Spill};
use crate::io::deadline::Allowance;
use crate::mcp::capabilities::ClientCapabilities;
use crate::upstream::error::Cause;
use crate::upstream::notification_router::ServerEvents;
use crate::upstream::peer::Peer;
use crate::upstream::pending::Pending;

/// Lines that wait to be written.
const OUT_LINES: usize = 64;
/// Messages that wait for the lifecycle.
pub(in crate::upstream) const LIFECYCLE_MESSAGES: usize = 256;

/// One child's pipes, as calls see them.
#[derive(Debug)]
pub(in crate::upstream) struct ChildLink {
    pub(in crate::upstream) peer: Arc<Peer>,
    waiting: Mutex<Pending<Waiter>>,
    pub(super) server_events: Arc<ServerEvents>,
    pub(super) out: mpsc::Sender<Line>,
    /// Why the pipes are closed; set before the waiting calls are told.
    pub(super) ended: OnceLock<Arc<str>>,
    /// Lines so far that were no messages.
    pub(super) garbage: AtomicU64,
    /// It ended within a line of which it was not known whose it is.
    pub(super) broke_off: AtomicBool,
    /// What waits for slow calls beyond the usual.
    pub(super) spill: Arc<Spill>,
}

/// A call that waits for its answer.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) sender: mpsc::Sender<CallPiece>,
    /// What its client can be asked; none for a request of our own, which has no client.
    pub(super) client_capabilities: Option<ClientCapabilities>,
    /// Its request is on its way: before that there can be no answer.
    pub(super) written: bool,
}

/// A line to be written, with its newline.
#[derive(Debug)]
pub(in crate::upstream) struct Line {
    pub(super) parts: [Bytes; 3],
    /// The call it belongs to: not written any more once that has gone.
    pub(super) call: Option<u64>,
}

impl ChildLink {
    /// The pipes' middle and the queue that the writer empties.
    pub(in crate::upstream) fn new(
        peer: Arc<Peer>,
        server_events: Arc<ServerEvents>,
    ) -> (Arc<Self>, mpsc::Receiver<Line>) {
        let (out, queue) = mpsc::channel(OUT_LINES);
        let link = Self {
            peer,
            waiting: Mutex::default(),
            server_events,
            out,
            ended: OnceLock::new(),
            garbage: AtomicU64::new(0),
            broke_off: AtomicBool::new(false),
            spill: Arc::default(),
        };
        (Arc::new(link), queue)
    }

    /// Queues a message of the lifecycle: JSON on one line, without its newline.
    pub(in crate::upstream) async fn send(
        &self,
        json: Vec<u8>,
        limit: Duration,
    ) -> Result<(), Cause> {
        let parts = [Bytes::from(json), Bytes::from_static(b"\n"), Bytes::new()];
        self.queue(Line { parts, call: None }, Allowance::now(limit)).await
    }

    /// Queues a line for the writer.
    pub(super) async fn queue(&self, line: Line, time: Allowance) -> Result<(), Cause> {
        let line = match self.out.try_send(line) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(self.gone()),
            Err(TrySendError::Full(line)) => line,
        };
        match tokio::time::timeout_at(time.until.into(), self.out.send(line)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.gone()),
            Err(_) => Err(Cause::NotRead { limit: time.whole }),
        }
    }

    /// Ends the link: every waiting call learns the reason.
    pub(in crate::upstream) fn end(&self, reason: Arc<str>) {
        let _ = self.ended.set(reason);
        let waiters = self.waiting().clear();
        for waiter in waiters.iter().filter(|waiter| !waiter.written) {
            // There was no answer that could fill its queue.
            let _ = waiter.sender.try_send(CallPiece::Unwritten);
        }
    }

    /// True once no call can get through any more.
    pub(in crate::upstream) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    fn gone(&self) -> Cause {
        let reason = self.ended.get().cloned().unwrap_or_else(|| "it closed its input".into());
        Cause::NotConnected { reason }
    }

    /// The calls that wait for their answers.
    pub(super) fn waiting(&self) -> MutexGuard<'_, Pending<Waiter>> {
        self.waiting.lock()
    }
}
