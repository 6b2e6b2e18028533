//! Calls to a child process: one message per line, many calls on one pipe.
//!
//! A response is forwarded piece by piece as soon as its call is known. Other messages go to the lifecycle or are routed by
//! [`crate::inbound`]. Since a pipe is ordered, a response that its call reads slowly delays all following ones: up to [`CALL_PIECES`] may
//! be queued per call, more if other calls are waiting, within a bound per server ([`Spill`]). The reader and its backpressure are in
//! [`reader`].
//!
//! ```text
//! StdioCall ─ line ─▶ ChildLink ─▶ writer ─▶ child
//!   ▲                                          │
//!   └─ queue of the call ◀───── reader ◀───────┘
//! ```

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

#[cfg(test)]
pub(crate) use self::reader::READ_BYTES;
pub(super) use self::reader::read;
use crate::error::{Cause, Human, Sent};
use crate::http::STALL_LIMIT;
use crate::inbound::AnswerPart;
use crate::inbound::{AbandonedCalls, CallClient, CallInFlight, CallRoute};
use crate::notifications::ServerEvents;
use crate::pending::{Full, Pending};
use crate::request;
use crate::request::cancellation;
use crate::server_log::ServerLog;
use mcpproxy_runtime::io::deadline::{Allowance, Deadline};

mod reader;

/// Capacity of the queue to the writer, in lines.
const OUT_LINES: usize = 64;
/// Capacity of the queue to the lifecycle, in messages. A handshake has three responses; the rest of the capacity is for stray messages.
pub(crate) const LIFECYCLE_MESSAGES: usize = 16;

/// Shared view of a child's pipes for calls: pending calls and the queue to the writer.
#[derive(Debug)]
pub(crate) struct ChildLink {
    pub(crate) server_log: Arc<ServerLog>,
    waiting: Mutex<Pending<Waiter>>,
    /// If both locks are needed, this one is taken after `waiting`.
    abandoned: Mutex<AbandonedCalls>,
    pub(super) server_events: Arc<ServerEvents>,
    pub(super) out: mpsc::Sender<Line>,
    /// Reason why the pipes are closed; set before waiting calls are notified.
    pub(super) ended: OnceLock<Arc<str>>,
    /// Number of lines that were not messages.
    pub(super) garbage: AtomicU64,
    /// Excerpt of the first such line.
    pub(super) first_garbage: OnceLock<Arc<str>>,
    /// Whether the output ended within a line whose recipient was unknown.
    pub(super) ended_within_line: AtomicBool,
    /// Pieces queued beyond [`CALL_PIECES`].
    pub(super) spill: Arc<Spill>,
}

/// Call that waits for its response.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) sender: mpsc::Sender<CallPiece>,
    pub(super) sent_for: SentFor,
    /// Position among the requests of the link.
    pub(super) order: u64,
    /// Whether the request was passed to the pipe; before that, a response is not possible.
    pub(super) written: bool,
}

/// Party on whose behalf a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentFor {
    /// No client: the request contains no client data, so messages caused by it cannot reveal any (lists).
    Nobody,
    /// No client: a stream of changes, which the server acknowledges with a message. The stream is always in flight, so it does not count
    /// as a client's call, although it names resources of clients; servers of its revision do not send requests.
    Subscription,
    /// Clients that cannot be reached through the request, but whose data it contains (`resources/subscribe`).
    Clients,
    /// The client of a call.
    Caller(CallClient),
}

impl Waiter {
    /// The request as a call in flight, if it was written and may cause server requests to a client.
    fn in_flight(&self, id: u64) -> Option<CallInFlight> {
        let (client, route) = match self.sent_for {
            SentFor::Nobody | SentFor::Subscription => return None,
            SentFor::Clients => (CallClient::default(), CallRoute::Unreachable),
            SentFor::Caller(client) => (client, CallRoute::Reachable { id, order: self.order }),
        };
        self.written.then_some(CallInFlight { client, route })
    }
}

/// Line for the writer, with its line break.
#[derive(Debug)]
pub(crate) struct Line {
    pub(super) parts: [Bytes; 3],
    /// Call that the line belongs to; the line is skipped if the call was abandoned.
    pub(super) call: Option<u64>,
}

impl ChildLink {
    /// Creates the link, and the queue for the writer.
    pub(crate) fn new(
        server_log: Arc<ServerLog>,
        server_events: Arc<ServerEvents>,
    ) -> (Arc<Self>, mpsc::Receiver<Line>) {
        let (out, queue) = mpsc::channel(OUT_LINES);
        let link = Self {
            server_log,
            waiting: Mutex::default(),
            abandoned: Mutex::default(),
            server_events,
            out,
            ended: OnceLock::new(),
            garbage: AtomicU64::new(0),
            first_garbage: OnceLock::new(),
            ended_within_line: AtomicBool::new(false),
            spill: Arc::default(),
        };
        (Arc::new(link), queue)
    }

    /// Queues a lifecycle message: JSON in one line, without the line break.
    pub(crate) async fn send(&self, json: Vec<u8>, limit: Duration) -> Result<(), Cause> {
        let parts = [Bytes::from(json), Bytes::from_static(b"\n"), Bytes::new()];
        self.queue(Line { parts, call: None }, Allowance::now(limit)).await
    }

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

    /// Closes the link and fails all waiting calls.
    pub(crate) fn end(&self, reason: Arc<str>) {
        let _ = self.ended.set(reason);
        let waiters = self.waiting().clear();
        for waiter in waiters.iter().filter(|waiter| !waiter.written) {
            // The call's queue is empty, because a response was not possible.
            let _ = waiter.sender.try_send(CallPiece::Unwritten);
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    fn gone(&self) -> Cause {
        let reason = self.ended.get().cloned().unwrap_or_else(|| "it closed its input".into());
        Cause::NotConnected { reason }
    }

    /// Registers a request before it is written. Returns its id.
    pub(super) fn register(
        &self,
        sender: mpsc::Sender<CallPiece>,
        sent_for: SentFor,
    ) -> Result<u64, Full> {
        let mut waiting = self.waiting();
        let order = waiting.entered();
        waiting.enter(Waiter { sender, sent_for, order, written: false }, request::fresh_id)
    }

    /// Calls on which the child may be working for a client.
    pub(super) fn in_flight(&self, now: Instant) -> Vec<CallInFlight> {
        let waiting = self.waiting();
        let abandoned = self.abandoned.lock();
        let waiters = waiting.iter().filter_map(|(id, waiter)| waiter.in_flight(id));
        waiters.chain(abandoned.active(now)).collect()
    }

    /// Removes a call. If the child has received the call but not responded, the call counts as abandoned for some time.
    pub(super) fn abandon(&self, id: u64, now: impl FnOnce() -> Instant) {
        let mut waiting = self.waiting();
        let Some(waiter) = waiting.abandon(id) else { return };
        if let Some(CallInFlight { client, .. }) = waiter.in_flight(id)
            && !self.has_ended()
        {
            self.abandoned.lock().add(id, client.session, now());
        }
    }

    /// Records the response to a call, which may have been abandoned since.
    pub(super) fn answered(&self, id: u64) {
        let is_late = self.waiting().answered(id).is_none();
        if is_late {
            self.answered_late(id);
        }
    }

    /// Records the response to an abandoned call.
    pub(super) fn answered_late(&self, id: u64) {
        self.abandoned.lock().answered(id);
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, Pending<Waiter>> {
        self.waiting.lock()
    }
}

/// Maximum number of queued pieces of a response, of up to [`READ_BYTES`](reader::READ_BYTES) each, while no other call waits.
pub(crate) const CALL_PIECES: usize = 32;
/// Maximum number of queued pieces of a response while other calls wait: 16 MiB.
pub(super) const SPILL_PIECES: usize = 256;
/// Maximum number of bytes queued beyond [`CALL_PIECES`] for all calls of a server: 64 MiB.
const SPILL_BYTES: usize = 64 << 20;

/// Item in a call's queue.
#[derive(Debug)]
pub(super) enum CallPiece {
    Data(Bytes),
    /// Data beyond [`CALL_PIECES`].
    Spilled(Spilled),
    /// Last bytes, possibly none; the line is complete.
    Last(Bytes),
    /// Complete message other than the response.
    Message(Bytes),
    Failed(Cause),
    /// The request was never written, and the pipes are closed.
    Unwritten,
}

/// Queue of a call, with one slot reserved for the error that ends the call early.
pub(super) fn call_queue() -> (mpsc::Sender<CallPiece>, mpsc::Receiver<CallPiece>) {
    mpsc::channel(SPILL_PIECES + 1)
}

/// Whether fewer than [`CALL_PIECES`] pieces are queued.
pub(super) fn has_room(sender: &mpsc::Sender<CallPiece>) -> bool {
    queued(sender) < CALL_PIECES
}

pub(super) fn queued(sender: &mpsc::Sender<CallPiece>) -> usize {
    sender.max_capacity().saturating_sub(sender.capacity())
}

/// Accounting of spilled pieces, and wake-up of a reader that waits for a slow call.
#[derive(Debug, Default)]
pub(super) struct Spill {
    bytes: AtomicUsize,
    pub(super) waits: AtomicBool,
    pub(super) reader_wake: Notify,
}

impl Spill {
    /// Wakes the reader after a piece was consumed or a call was added.
    pub(super) fn wake_reader(&self) {
        // Either this code sees that the reader waits, or the reader sees the preceding change.
        fence(Ordering::SeqCst);
        if self.waits.load(Ordering::Relaxed) {
            self.reader_wake.notify_one();
        }
    }

    /// Accounts for a piece beyond [`CALL_PIECES`]; returns the data if the bound is reached.
    pub(super) fn take(self: &Arc<Self>, data: Bytes) -> Result<Spilled, Bytes> {
        let bytes = data.len();
        let fits = |waiting: usize| Some(waiting + bytes).filter(|sum| *sum <= SPILL_BYTES);
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Spilled { data, bytes, spill: Arc::clone(self) }),
            Err(_) => Err(data),
        }
    }
}

/// Spilled piece; releases its bytes on drop.
#[derive(Debug)]
pub(super) struct Spilled {
    pub(super) data: Bytes,
    bytes: usize,
    spill: Arc<Spill>,
}

impl Drop for Spilled {
    fn drop(&mut self) {
        self.spill.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Response to a call over a pipe. Dropping it early cancels the call.
#[derive(Debug)]
pub(crate) struct StdioCall {
    link: Arc<ChildLink>,
    id: u64,
    pieces: mpsc::Receiver<CallPiece>,
    limit: Duration,
    timer: Deadline,
    /// Deadline of the current wait; `None` until the wait starts.
    deadline: Option<Instant>,
    state: State,
    /// Number of garbage lines counted when the call was sent.
    garbage: u64,
    received: bool,
    /// Whether the request was never written, so that the server has not received it.
    unwritten: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unsent,
    Waiting,
    Inside,
    /// A message other than the response was returned, but not its end.
    MessageTaken,
    /// The last bytes were returned, but not the end.
    LastTaken,
    Over,
}

impl StdioCall {
    /// Queues a request, which `line` serializes for its id. `time` covers the wait for space in the queue and for
    /// the first byte of the response.
    pub(crate) async fn begin(
        link: &Arc<ChildLink>,
        line: impl FnOnce(u64) -> [Bytes; 3],
        time: Allowance,
        sent_for: SentFor,
    ) -> Result<Self, (Cause, Sent)> {
        let (sender, pieces) = call_queue();
        let id = link
            .register(sender, sent_for)
            .map_err(|full| (Cause::NotConnected { reason: full.to_string().into() }, Sent::No))?;
        let mut call = Self::new(link.clone(), id, pieces, time);
        // The reader may be waiting for a slow call; because of this call, it must now wait for a shorter time.
        link.spill.wake_reader();
        // Checked after the registration: when the link is closed, the reason is set before the table is cleared, so no
        // call is missed.
        if let Some(reason) = link.ended.get() {
            return Err((Cause::NotConnected { reason: reason.clone() }, Sent::No));
        }
        match link.queue(Line { parts: line(id), call: Some(id) }, time).await {
            Ok(()) => {
                call.state = State::Waiting;
                Ok(call)
            }
            Err(cause) => Err((cause, Sent::No)),
        }
    }

    fn new(
        link: Arc<ChildLink>,
        id: u64,
        pieces: mpsc::Receiver<CallPiece>,
        time: Allowance,
    ) -> Self {
        let garbage = link.garbage.load(Ordering::Relaxed);
        let (timer, deadline, state) = (Deadline::default(), Some(time.until), State::Unsent);
        Self {
            link,
            id,
            pieces,
            limit: time.whole,
            timer,
            deadline,
            state,
            garbage,
            received: false,
            unwritten: false,
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether no data was read that may belong to the response: no piece, and no unmatched line that was cut off.
    pub(crate) fn received_nothing(&self) -> bool {
        !self.received && !self.link.ended_within_line.load(Ordering::Acquire)
    }

    /// Whether the child may have crashed because of this call, which is possible if it may have read the call.
    pub(crate) fn may_have_crashed_server(&self) -> bool {
        !self.unwritten
    }

    /// Sets the time limit of the next message, starting now.
    pub(crate) fn extend_wait(&mut self, limit: Duration) {
        self.limit = limit;
        self.deadline = None;
    }

    /// Next piece of the line; `None` after its end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<AnswerPart>, Cause> {
        match self.state {
            State::Over => return Ok(None),
            State::LastTaken => {
                self.state = State::Over;
                return Ok(Some(AnswerPart::End));
            }
            State::MessageTaken => {
                self.state = State::Waiting;
                return Ok(Some(AnswerPart::End));
            }
            State::Unsent | State::Waiting | State::Inside => {}
        }
        let piece = poll_fn(|cx| self.poll_piece(cx)).await;
        self.deadline = None;
        self.received |=
            matches!(piece, Some(CallPiece::Data(_) | CallPiece::Spilled(_) | CallPiece::Last(_)));
        match piece {
            Some(CallPiece::Data(data)) => {
                self.state = State::Inside;
                Ok(Some(AnswerPart::Data(data)))
            }
            Some(CallPiece::Spilled(mut spilled)) => {
                self.state = State::Inside;
                Ok(Some(AnswerPart::Data(std::mem::take(&mut spilled.data))))
            }
            Some(CallPiece::Last(data)) if data.is_empty() => {
                self.state = State::Over;
                Ok(Some(AnswerPart::End))
            }
            Some(CallPiece::Last(data)) => {
                self.state = State::LastTaken;
                Ok(Some(AnswerPart::Data(data)))
            }
            Some(CallPiece::Message(message)) => {
                self.state = State::MessageTaken;
                Ok(Some(AnswerPart::Data(message)))
            }
            Some(CallPiece::Failed(cause)) => Err(self.fail(cause)),
            Some(CallPiece::Unwritten) => {
                self.unwritten = true;
                let reason = self.link.ended.get().cloned().unwrap_or_else(|| "".into());
                Err(self.fail(Cause::NoAnswerAtAll { reason }))
            }
            None => {
                let cause = match (self.link.ended.get(), self.state) {
                    (Some(reason), State::Inside) => Cause::CutOff { reason: reason.clone() },
                    (Some(reason), _) => Cause::NoAnswerAtAll { reason: reason.clone() },
                    // The reader has ended; the reason is about to be set.
                    (None, State::Inside) => Cause::CutOff { reason: "".into() },
                    (None, _) => Cause::NoAnswerAtAll { reason: "".into() },
                };
                Err(self.fail(cause))
            }
        }
    }

    /// Polls for the next piece; a timeout is returned as a failed piece.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<CallPiece>> {
        if let Poll::Ready(piece) = self.pieces.poll_recv(cx) {
            self.link.spill.wake_reader();
            return Poll::Ready(piece);
        }
        let inside = self.state == State::Inside;
        let limit = if inside { STALL_LIMIT } else { self.limit };
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + limit);
        ready!(self.timer.poll_until(cx, deadline));
        let garbage = self.link.garbage.load(Ordering::Relaxed) - self.garbage;
        Poll::Ready(Some(CallPiece::Failed(match (inside, garbage) {
            (true, _) => Cause::Stalled { limit },
            (false, 0) => Cause::NoAnswer { limit },
            (false, lines) => Cause::Unreadable {
                reason: format!(
                    "no answer within {}, but {lines} lines that are not JSON-RPC messages",
                    Human(limit)
                )
                .into(),
            },
        })))
    }

    fn fail(&mut self, cause: Cause) -> Cause {
        if cause.leaves_call_running() {
            self.cancel();
        }
        self.state = State::Over;
        cause
    }

    fn cancel(&self) {
        if self.link.ended.get().is_some() {
            return;
        }
        let parts = [Bytes::from(cancellation(self.id)), Bytes::from_static(b"\n"), Bytes::new()];
        // Best effort: not sent to a server that does not read.
        let _ = self.link.out.try_send(Line { parts, call: None });
    }
}

impl Drop for StdioCall {
    fn drop(&mut self) {
        self.link.abandon(self.id, Instant::now);
        if matches!(self.state, State::Waiting | State::MessageTaken | State::Inside) {
            self.cancel();
        }
    }
}

/// Writes queued lines until the queue or the pipe is closed.
pub(crate) async fn write(
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
                tracing::debug!(server = %link.server_log.name, %error, "the server closed its input");
                return;
            }
        }
        if stdin.flush().await.is_err() {
            return;
        }
    }
}
