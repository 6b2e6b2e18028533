//! Calls to a child process: one message per line, many calls on one pipe.
//!
//! Owns the reader and the writer of one child and the channels between them and the calls. An
//! answer is handed on piece by piece as soon as it is known whose it is; until then its line is
//! held, bounded by [`MAX_LINE_BYTES`]. What is no answer to a call goes to the lifecycle.
//! Starting and stopping the child is not done here.
//!
//! One pipe has one order: what comes behind an answer waits until that has been read. How much of an
//! answer may wait for a slow call, and for how long, is decided in `hand`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::error::{Cause, Sent};
use super::inbound::{self, Destination};
use super::notification_router::{ServerEvents, Told};
use super::peer::Peer;
use super::pending::{self, Pending, Unasked};
use super::request_ids;
use super::response_matcher::{MessageRoute, ResponseMatcher};
use crate::io::deadline::Allowance;
use crate::mcp::capabilities::ClientCapabilities;
use crate::wire::lines::{self, MAX_LINE_BYTES};

mod call;
mod hand;

pub(super) use call::Call;
pub use hand::CALL_PIECES;
use hand::{Handed, Spill, has_room};

/// Most bytes read from the child at once.
pub const READ_BYTES: usize = 64 * 1024;
/// Lines that wait to be written.
const OUT_LINES: usize = 64;
/// A new buffer is made when less than this is left of the last one.
const READ_ROOM: usize = 8 * 1024;
/// Most bytes of a message for the lifecycle.
const MAX_LIFECYCLE_BYTES: u64 = 4 * 1024 * 1024;
/// Messages that wait for the lifecycle.
pub(super) const LIFECYCLE_MESSAGES: usize = 256;

/// One child's pipes, as calls see them.
#[derive(Debug)]
pub(super) struct ChildLink {
    pub(super) peer: Arc<Peer>,
    waiting: Mutex<Pending<Waiter>>,
    server_events: Arc<ServerEvents>,
    out: mpsc::Sender<Line>,
    /// Why the pipes are closed; set before the waiting calls are told.
    ended: OnceLock<Arc<str>>,
    /// Lines so far that were no messages.
    garbage: AtomicU64,
    /// What waits for slow calls beyond the usual.
    spill: Arc<Spill>,
}

/// A call that waits for its answer.
#[derive(Debug)]
struct Waiter {
    sender: mpsc::Sender<Piece>,
    /// What its client can be asked; none for a request of our own, which has no client.
    client_capabilities: Option<ClientCapabilities>,
    /// Its request is on its way: before that there can be no answer.
    written: bool,
}

/// A line to be written, with its newline.
#[derive(Debug)]
pub(super) struct Line {
    parts: [Bytes; 3],
    /// The call it belongs to: not written any more once that has gone.
    call: Option<u64>,
}

/// What a call gets from the reader.
#[derive(Debug)]
enum Piece {
    Data(Bytes),
    /// The same, beyond what usually waits for a call.
    Spilled(hand::Spilled),
    /// The last bytes, or none; the line is complete.
    Last(Bytes),
    /// A whole message beside the answer.
    Message(Bytes),
    Failed(Cause),
}

impl ChildLink {
    /// The pipes' middle and the queue that [`write`] empties.
    pub(super) fn new(
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
            spill: Arc::default(),
        };
        (Arc::new(link), queue)
    }

    /// Queues a request; `line` makes it for its id. It has that time until the first byte of its
    /// answer, with the wait for room in the queue.
    pub(super) async fn call(
        self: &Arc<Self>,
        line: impl FnOnce(u64) -> [Bytes; 3],
        time: Allowance,
        client_capabilities: Option<ClientCapabilities>,
    ) -> Result<Call, (Cause, Sent)> {
        let (sender, pieces) = hand::channel();
        let id = self
            .waiting()
            .enter(Waiter { sender, client_capabilities, written: false }, request_ids::fresh)
            .map_err(|full| (Cause::NotConnected { reason: full.to_string().into() }, Sent::No))?;
        let mut call = Call::new(self.clone(), id, pieces, time);
        // The reader may be waiting for another call, and may wait less long from now on.
        self.spill.stir();
        // Looked at after entering: whoever ends the link sets this first and clears the table
        // then, so no call is left behind.
        if let Some(reason) = self.ended.get() {
            return Err((Cause::NotConnected { reason: reason.clone() }, Sent::No));
        }
        match self.queue(Line { parts: line(id), call: Some(id) }, time).await {
            Ok(()) => {
                call.queued();
                Ok(call)
            }
            Err(cause) => Err((cause, Sent::No)),
        }
    }

    /// Queues a message of the lifecycle: JSON on one line, without its newline.
    pub(super) async fn send(&self, json: Vec<u8>, limit: Duration) -> Result<(), Cause> {
        let parts = [Bytes::from(json), Bytes::from_static(b"\n"), Bytes::new()];
        self.queue(Line { parts, call: None }, Allowance::now(limit)).await
    }

    async fn queue(&self, line: Line, time: Allowance) -> Result<(), Cause> {
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
    pub(super) fn end(&self, reason: Arc<str>) {
        let _ = self.ended.set(reason);
        self.waiting().clear();
    }

    /// True once no call can get through any more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    fn gone(&self) -> Cause {
        let reason = self.ended.get().cloned().unwrap_or_else(|| "it closed its input".into());
        Cause::NotConnected { reason }
    }

    fn waiting(&self) -> MutexGuard<'_, Pending<Waiter>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes queued lines until the queue or the pipe closes.
pub(super) async fn write(
    link: Arc<ChildLink>,
    mut queue: mpsc::Receiver<Line>,
    mut stdin: impl AsyncWrite + Unpin,
) {
    while let Some(line) = queue.recv().await {
        if let Some(id) = line.call {
            let mut waiting = link.waiting();
            let Some(waiter) = waiting.get_mut(id) else { continue };
            waiter.written = true;
        }
        for part in line.parts.iter().filter(|part| !part.is_empty()) {
            if let Err(error) = stdin.write_all(part).await {
                tracing::debug!(server = %link.peer.name, %error, "a server closed its input");
                return;
            }
        }
        if stdin.flush().await.is_err() {
            return;
        }
    }
}

/// Reads lines until the pipe closes; returns why it did. `inbox` gets what is no answer to a
/// call; `seed` as in [`ResponseMatcher::new`].
pub(super) async fn read(
    link: Arc<ChildLink>,
    mut stdout: impl AsyncRead + Unpin,
    inbox: mpsc::Sender<Bytes>,
    seed: u64,
) -> Arc<str> {
    let mut buffer = BytesMut::new();
    let mut lines = lines::Decoder::new(MAX_LINE_BYTES);
    let mut reader = Reader { link: &link, inbox, line: Incoming::new(seed), broken: None, seed };
    loop {
        if buffer.capacity() < READ_ROOM {
            buffer.reserve(READ_BYTES);
        }
        match stdout.read_buf(&mut buffer).await {
            Ok(0) => return "it closed its output".into(),
            Ok(_) => {}
            Err(error) => return link.peer.quote(error.to_string()),
        }
        lines.push(buffer.split().freeze());
        loop {
            match lines.next_item() {
                Ok(Some(lines::Item::Data(data))) => reader.data(data),
                Ok(Some(lines::Item::End)) => reader.end().await,
                Ok(None) => break,
                Err(too_long) => reader.too_long(&too_long).await,
            }
            if let Some(reason) = reader.broken {
                if link.peer.may_log() {
                    tracing::warn!(server = %link.peer.name, "{reason}; its pipes are closed");
                }
                return reason.into();
            }
        }
        reader.flush().await;
    }
}

struct Reader<'a> {
    link: &'a Arc<ChildLink>,
    inbox: mpsc::Sender<Bytes>,
    line: Incoming,
    /// Why nothing that it says can be relied on any more.
    broken: Option<&'static str>,
    seed: u64,
}

/// The line being read.
struct Incoming {
    peek: ResponseMatcher,
    route: Option<MessageRoute>,
    /// Bytes not handed on yet.
    held: Vec<Bytes>,
    held_bytes: u64,
    /// The call it answers.
    call: Option<(u64, mpsc::Sender<Piece>)>,
    /// How long it has kept other calls waiting.
    held_up: Duration,
    /// Nobody wants the rest.
    skip: bool,
}

impl Incoming {
    fn new(seed: u64) -> Self {
        Self {
            peek: ResponseMatcher::new(seed),
            route: None,
            held: Vec::new(),
            held_bytes: 0,
            call: None,
            held_up: Duration::ZERO,
            skip: false,
        }
    }
}

impl Reader<'_> {
    fn data(&mut self, data: Bytes) {
        let line = &mut self.line;
        if line.skip {
            return;
        }
        line.held_bytes += data.len() as u64;
        line.held.push(data);
        if line.route.is_none() {
            line.route = line.peek.feed(&line.held);
        }
        match line.route {
            Some(MessageRoute::Call(id)) if line.call.is_none() => self.answer(id),
            Some(MessageRoute::Garbage) => self.refuse(Complaint::Garbage),
            Some(MessageRoute::Lifecycle) if line.held_bytes > MAX_LIFECYCLE_BYTES => {
                self.refuse(Complaint::Large);
            }
            Some(MessageRoute::Call(_) | MessageRoute::Lifecycle) | None => {}
        }
    }

    /// The line is an answer under this id.
    fn answer(&mut self, id: u64) {
        let mut waiting = self.link.waiting();
        match waiting.get(id) {
            Some(waiter) if waiter.written => self.line.call = Some((id, waiter.sender.clone())),
            Some(_) => self.broken = Some("it answered a request before it was sent"),
            None => {
                let unasked = waiting.unasked(id);
                drop(waiting);
                match unasked {
                    Unasked::Again => self.broken = Some("it answered a request twice"),
                    // It may not have heard yet that nobody waits.
                    Unasked::Late => self.drop_line(),
                    Unasked::Unknown => self.refuse(Complaint::Unasked),
                }
            }
        }
    }

    /// The chunk is used up: what is known to belong to a call goes on.
    async fn flush(&mut self) {
        if self.line.call.is_none() {
            return;
        }
        for data in std::mem::take(&mut self.line.held) {
            self.hand_on(Piece::Data(data)).await;
        }
    }

    async fn end(&mut self) {
        if self.line.skip {
            self.line = Incoming::new(self.seed);
            return;
        }
        if self.line.call.is_some() {
            let last = self.line.held.pop().unwrap_or_default();
            self.flush().await;
            self.hand_on(Piece::Last(last)).await;
            // The call is told; its place in the table is free.
            if let Some((id, _)) = &self.line.call {
                self.link.waiting().answered(*id);
            }
        } else {
            match self.line.peek.end() {
                MessageRoute::Lifecycle => {
                    let message = Bytes::from(self.line.held.concat());
                    self.unasked(message);
                }
                // An answer to a call has found it already.
                MessageRoute::Garbage | MessageRoute::Call(_) => {
                    let blank =
                        self.line.held.iter().all(|part| part.iter().all(u8::is_ascii_whitespace));
                    if !blank {
                        self.complain(Complaint::Garbage);
                    }
                }
            }
        }
        self.line = Incoming::new(self.seed);
    }

    /// Sends a message that answers no call on its way. Never waits: a server that floods us must
    /// not keep answers from their calls.
    fn unasked(&mut self, message: Bytes) {
        let waiting = self.link.waiting();
        let calls: Vec<(u64, ClientCapabilities)> = waiting
            .iter()
            .filter_map(|(id, waiter)| Some((id, waiter.client_capabilities?)))
            .collect();
        drop(waiting);
        let sent = match inbound::way(&message, calls.into_iter()) {
            Destination::Lifecycle => self.inbox.try_send(message).is_ok(),
            // On a pipe what is said during a call comes before its answer.
            Destination::Log(None) => {
                if self.link.server_events.logged(&message) != Told::Already
                    && self.link.peer.may_log()
                {
                    let server = &self.link.peer.name;
                    tracing::debug!(%server, "a log message that is told to nobody");
                }
                true
            }
            Destination::Log(Some(id)) => {
                let waiting = self.link.waiting();
                waiting.get(id).is_some_and(|it| {
                    has_room(&it.sender) && it.sender.try_send(Piece::Message(message)).is_ok()
                })
            }
            Destination::Call(id, request) => {
                let piece = Piece::Message(message);
                let waiting = self.link.waiting();
                let told = waiting
                    .get(id)
                    .is_some_and(|it| has_room(&it.sender) && it.sender.try_send(piece).is_ok());
                drop(waiting);
                told || request.is_some_and(|id| self.reply(inbound::busy(&id)))
            }
            Destination::Changed(list) => {
                self.link.server_events.changed(list);
                true
            }
            Destination::Updated(uri) => {
                self.link.server_events.updated(&uri);
                true
            }
            Destination::Reply(reply) => self.reply(reply),
            Destination::Nobody(what) => {
                if self.link.peer.may_log() {
                    tracing::debug!(server = %self.link.peer.name, "a server sent {what}");
                }
                true
            }
        };
        if !sent {
            self.complain(Complaint::Flood);
        }
    }

    /// Answers a request of the server, if it reads at all.
    fn reply(&self, json: Bytes) -> bool {
        let parts = [json, Bytes::from_static(b"\n"), Bytes::new()];
        self.link.out.try_send(Line { parts, call: None }).is_ok()
    }

    async fn too_long(&mut self, error: &lines::TooLong) {
        if self.link.peer.may_log() {
            tracing::warn!(server = %self.link.peer.name, %error, "a server's line cannot be read");
        }
        if let Some((id, _)) = &self.line.call {
            let id = *id;
            self.hand_on(Piece::Failed(Cause::Unreadable { reason: error.to_string().into() }))
                .await;
            self.link.waiting().answered(id);
        }
        // The decoder skips to the end of the line by itself and reports no end for it.
        self.line = Incoming::new(self.seed);
    }

    async fn hand_on(&mut self, piece: Piece) {
        let Some((id, sender)) = &self.line.call else { return };
        match hand::hand(self.link, sender, piece, &mut self.line.held_up).await {
            Handed::Taken => {}
            Handed::Gone => self.drop_line(),
            Handed::NotTaken(cause) => {
                if self.link.peer.may_log() {
                    tracing::warn!(server = %self.link.peer.name, "an answer is cut off: {cause}");
                }
                // It is told after what waits for it: there is a place left for that.
                let _ = sender.try_send(Piece::Failed(cause));
                self.link.waiting().answered(*id);
                self.drop_line();
            }
        }
    }

    fn refuse(&mut self, complaint: Complaint) {
        self.complain(complaint);
        self.drop_line();
    }

    fn drop_line(&mut self) {
        self.line = Incoming { skip: true, ..Incoming::new(self.seed) };
    }

    fn complain(&mut self, complaint: Complaint) {
        if complaint == Complaint::Garbage {
            self.link.garbage.fetch_add(1, Ordering::Relaxed);
        }
        if self.link.peer.may_log() {
            let what = match complaint {
                Complaint::Unasked => "answered a request that nobody waits for",
                Complaint::Garbage => "wrote a line that is no JSON-RPC message",
                Complaint::Large => "sent a notification or request that is too large",
                Complaint::Flood => "sends notifications faster than they can be handled",
            };
            tracing::warn!(server = %self.link.peer.name, "a server {what}");
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Complaint {
    Unasked,
    Garbage,
    Large,
    Flood,
}

/// The notification that nobody waits for a request any more.
pub(super) fn cancelled(id: u64) -> Vec<u8> {
    debug_assert!(pending::is_ours(id));
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"nobody waits for the answer any more"}}}}"#
    )
    .into_bytes()
}
