//! Reader of a child's output, with backpressure.
//!
//! A line is held until its recipient is known, bounded by [`MAX_LINE_BYTES`]; then its pieces are forwarded to their
//! call as they arrive. A slow call must not block the server's other calls for a long time:
//!
//! ```text
//! alone:         CALL_PIECES are queued, then the pipe blocks, for at most NOT_TAKEN_LIMIT per piece
//! others wait:   SPILL_PIECES are queued, then the pipe blocks for HOLD_UP_LIMIT in all, then the call fails
//! ```
//!
//! A stalled call therefore delays the others by at most a second, and not at all if its response is small. If no other
//! call is waiting, a call is throttled to its client's speed, without extra memory.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::error::Cause;
use crate::inbound::{self, Destination, MessageRoute, ResponseMatcher};
use crate::notifications::LogDelivery;
use crate::pending::Unmatched;
use crate::stdio::{
    CallPiece, ChildLink, LIFECYCLE_MESSAGES, Line, SPILL_PIECES, SentFor, Spill, has_room, queued,
};
use mcpproxy_protocol::wire::lines::{self, MAX_LINE_BYTES, MarkSkipper};
use mcpproxy_runtime::io::line_budget::peer_line;

/// Maximum size of a read.
pub(crate) const READ_BYTES: usize = 64 * 1024;
/// Minimum free space for a read; below it a new buffer is allocated.
const READ_ROOM: usize = 8 * 1024;
/// Maximum size of a lifecycle message, in bytes.
const MAX_LIFECYCLE_BYTES: u64 = 4 * 1024 * 1024;
/// A child that floods its handshake can occupy at most 64 MiB.
const _: () = assert!(LIFECYCLE_MESSAGES as u64 * MAX_LIFECYCLE_BYTES <= 64 << 20);

/// Reads lines until the pipe closes; returns the reason. `inbox` receives lifecycle messages; `seed` has the same
/// meaning as in [`ResponseMatcher::new`].
pub(crate) async fn read(
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
            Ok(0) => {
                reader.end_of_output();
                return "it closed its output".into();
            }
            Ok(_) => {}
            Err(error) => {
                reader.end_of_output();
                return link.server_log.quote(error.to_string());
            }
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
                peer_line!(warn, link.server_log, server = %link.server_log.name, "{reason}; its pipes are closed");
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
    /// Protocol violation after which the server is no longer trusted.
    broken: Option<&'static str>,
    seed: u64,
}

struct Incoming {
    mark: MarkSkipper,
    matcher: ResponseMatcher,
    route: Option<MessageRoute>,
    /// Bytes that have not been forwarded yet.
    held: Vec<Bytes>,
    held_bytes: u64,
    /// Call that the line responds to.
    call: Option<(u64, mpsc::Sender<CallPiece>)>,
    /// Delay that the line has caused for other calls.
    held_up: Duration,
    /// Whether the rest of the line is dropped.
    skip: bool,
}

impl Incoming {
    fn new(seed: u64) -> Self {
        Self {
            mark: MarkSkipper::default(),
            matcher: ResponseMatcher::new(seed),
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
        let data = line.mark.skip(data);
        if data.is_empty() {
            return;
        }
        line.held_bytes += data.len() as u64;
        line.held.push(data);
        if line.route.is_none() {
            line.route = line.matcher.feed(&line.held);
        }
        match line.route {
            Some(MessageRoute::Call(id)) if line.call.is_none() => self.answer(id),
            Some(MessageRoute::Garbage) => self.reject(Violation::Garbage),
            Some(MessageRoute::Lifecycle) if line.held_bytes > MAX_LIFECYCLE_BYTES => {
                self.reject(Violation::Large);
            }
            Some(MessageRoute::Call(_) | MessageRoute::Lifecycle) | None => {}
        }
    }

    /// Matches a response to its call.
    fn answer(&mut self, id: u64) {
        let mut waiting = self.link.waiting();
        match waiting.get(id) {
            Some(waiter) if waiter.written => self.line.call = Some((id, waiter.sender.clone())),
            Some(_) => self.broken = Some("it answered a request before it was sent"),
            None => {
                let unmatched = waiting.classify(id);
                drop(waiting);
                match unmatched {
                    Unmatched::Duplicate => self.broken = Some("it answered a request twice"),
                    // The server may not have received the cancellation yet.
                    Unmatched::Late => {
                        self.link.answered_late(id);
                        self.drop_line();
                    }
                    Unmatched::Unknown => self.reject(Violation::Unmatched),
                }
            }
        }
    }

    /// Handles the end of the output. An unfinished line may be the response to any call.
    fn end_of_output(&self) {
        let Incoming { call, held_bytes, skip, .. } = &self.line;
        if call.is_none() && *held_bytes > 0 && !skip {
            self.link.ended_within_line.store(true, Ordering::Release);
        }
    }

    /// Forwards the pieces read so far, if their call is known.
    async fn flush(&mut self) {
        if self.line.call.is_none() {
            return;
        }
        for data in std::mem::take(&mut self.line.held) {
            self.forward_piece(CallPiece::Data(data)).await;
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
            self.forward_piece(CallPiece::Last(last)).await;
            // The call is complete, and its id is free.
            if let Some((id, _)) = &self.line.call {
                self.link.answered(*id);
            }
        } else {
            match self.line.matcher.end() {
                MessageRoute::Lifecycle => {
                    let message = Bytes::from(self.line.held.concat());
                    self.route_unsolicited(message);
                }
                // A response to a call was already matched.
                MessageRoute::Garbage | MessageRoute::Call(_) => {
                    let blank =
                        self.line.held.iter().all(|part| part.iter().all(u8::is_ascii_whitespace));
                    if !blank {
                        self.log_violation(Violation::Garbage);
                    }
                }
            }
        }
        self.line = Incoming::new(self.seed);
    }

    /// Delivers a message that is not a response to a call. Never blocks, so that a flood does not delay responses.
    fn route_unsolicited(&mut self, message: Bytes) {
        let calls = self.link.in_flight(Instant::now());
        let sent = match inbound::route(&message, &calls) {
            Destination::Lifecycle => match self.inbox.try_send(message) {
                Ok(()) => true,
                // The handshake is complete.
                Err(TrySendError::Closed(_)) => {
                    self.log_violation(Violation::Unmatched);
                    true
                }
                Err(TrySendError::Full(_)) => false,
            },
            // On a pipe, messages during a call precede its response.
            Destination::Log(None) => {
                if self.link.server_events.logged(&message) != LogDelivery::Delivered {
                    let server_log = &self.link.server_log;
                    peer_line!(debug, server_log, server = %server_log.name, "dropped a log message without a recipient");
                }
                true
            }
            Destination::Log(Some(id)) => {
                let waiting = self.link.waiting();
                waiting.get(id).is_some_and(|it| {
                    has_room(&it.sender) && it.sender.try_send(CallPiece::Message(message)).is_ok()
                })
            }
            Destination::Completed(call) => {
                if self.link.server_events.logged(&message) == LogDelivery::ViaCall
                    && let Some(id) = call
                {
                    let waiting = self.link.waiting();
                    if let Some(call) = waiting.get(id).filter(|call| has_room(&call.sender)) {
                        let _ = call.sender.try_send(CallPiece::Message(message));
                    }
                }
                true
            }
            Destination::Call(id, request) => {
                let piece = CallPiece::Message(message);
                let waiting = self.link.waiting();
                let delivered = waiting
                    .get(id)
                    .is_some_and(|it| has_room(&it.sender) && it.sender.try_send(piece).is_ok());
                drop(waiting);
                delivered || request.is_some_and(|id| self.reply(inbound::busy(&id)))
            }
            Destination::Calls(ids) => {
                let waiting = self.link.waiting();
                for waiter in ids.iter().filter_map(|id| waiting.get(*id)) {
                    if has_room(&waiter.sender) {
                        let _ = waiter.sender.try_send(CallPiece::Message(message.clone()));
                    }
                }
                true
            }
            Destination::Acknowledged(id) => {
                let waiting = self.link.waiting();
                let subscription =
                    waiting.get(id).filter(|it| it.sent_for == SentFor::Subscription);
                // A message for an earlier subscription that has since been closed has no effect.
                subscription.is_none_or(|it| {
                    has_room(&it.sender) && it.sender.try_send(CallPiece::Message(message)).is_ok()
                })
            }
            Destination::Changed(list) => {
                self.link.server_events.changed(list);
                true
            }
            Destination::Updated(uri) => {
                self.link.server_events.updated(&uri);
                true
            }
            Destination::Task(task) => {
                self.link.server_events.task_changed(&task);
                true
            }
            Destination::Reply(reply) => self.reply(reply),
            Destination::Nobody(what) => {
                peer_line!(debug, self.link.server_log, server = %self.link.server_log.name, "dropped {what}");
                true
            }
        };
        if !sent {
            self.log_violation(Violation::Flood);
        }
    }

    /// Responds to a server request; returns false if the server does not read.
    fn reply(&self, json: Bytes) -> bool {
        let parts = [json, Bytes::from_static(b"\n"), Bytes::new()];
        self.link.out.try_send(Line { parts, call: None }).is_ok()
    }

    async fn too_long(&mut self, error: &lines::TooLong) {
        peer_line!(warn, self.link.server_log, server = %self.link.server_log.name, %error, "dropped an unreadable line");
        if let Some((id, _)) = &self.line.call {
            let id = *id;
            self.forward_piece(CallPiece::Failed(Cause::Unreadable {
                reason: error.to_string().into(),
            }))
            .await;
            self.link.answered(id);
        }
        // The decoder skips the rest of the line without reporting its end.
        self.line = Incoming::new(self.seed);
    }

    async fn forward_piece(&mut self, piece: CallPiece) {
        let Some((id, sender)) = &self.line.call else { return };
        match forward(self.link, sender, piece, &mut self.line.held_up).await {
            Forwarded::Taken => {}
            Forwarded::Gone => {
                self.link.answered_late(*id);
                self.drop_line();
            }
            Forwarded::NotTaken(cause) => {
                peer_line!(warn, self.link.server_log, server = %self.link.server_log.name, "a response was cut off: {cause}");
                // Delivered after the queued pieces; a slot is reserved for it.
                let _ = sender.try_send(CallPiece::Failed(cause));
                self.link.answered(*id);
                self.drop_line();
            }
        }
    }

    fn reject(&mut self, violation: Violation) {
        self.log_violation(violation);
        self.drop_line();
    }

    fn drop_line(&mut self) {
        self.line = Incoming { skip: true, ..Incoming::new(self.seed) };
    }

    /// Beginning of the current line, which is also stored in the server's log.
    fn excerpt(&self) -> Arc<str> {
        let held = self.line.held.iter().flatten().copied();
        let start: Vec<u8> = held.take(MAX_EXCERPT_BYTES).collect();
        let server_log = &self.link.server_log;
        // More of the line, and of a secret in it, may follow.
        server_log.keep_stderr(&[b"stdout: ", &*start].concat(), true);
        server_log.secrets.quote_cut(&start, true)
    }

    fn log_violation(&mut self, violation: Violation) {
        if violation == Violation::Garbage {
            self.link.garbage.fetch_add(1, Ordering::Relaxed);
            self.link.first_garbage.get_or_init(|| self.excerpt());
        }
        let what = match violation {
            Violation::Unmatched => "answered a request that is not pending",
            Violation::Garbage => "wrote a line that is not a JSON-RPC message",
            Violation::Large => "sent a notification or request that is too large",
            Violation::Flood => "sends notifications faster than they can be handled",
        };
        peer_line!(warn, self.link.server_log, server = %self.link.server_log.name, "a server {what}");
    }
}

/// Maximum length of the beginning of a line that is not a message, in bytes.
const MAX_EXCERPT_BYTES: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Violation {
    Unmatched,
    Garbage,
    Large,
    Flood,
}

/// Maximum time without progress of a call while no other call is waiting.
const NOT_TAKEN_LIMIT: Duration = Duration::from_secs(5);
/// Maximum total delay of other calls by one response.
const HOLD_UP_LIMIT: Duration = Duration::from_secs(1);
/// Reduction of this delay per consumed piece: a call that reads 13 MB/s is not considered slow.
const PIECE_TIME: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) enum Forwarded {
    Taken,
    /// The call was abandoned.
    Gone,
    NotTaken(Cause),
}

/// Forwards a piece to its call. `held_up` accumulates the time by which this response has delayed others.
pub(super) async fn forward(
    link: &ChildLink,
    sender: &mpsc::Sender<CallPiece>,
    piece: CallPiece,
    held_up: &mut Duration,
) -> Forwarded {
    if has_room(sender) {
        return put(sender, piece);
    }
    let spill = &link.spill;
    // Time and queue length of the last progress.
    let (mut since, mut fewest) = (Instant::now(), queued(sender));
    let mut piece = Some(piece);
    loop {
        let mut reader_wake = pin!(spill.reader_wake.notified());
        reader_wake.as_mut().enable();
        spill.waits.store(true, Ordering::Relaxed);
        // Checked after `waits` is set, so that no wake-up is missed.
        fence(Ordering::SeqCst);
        let others = link.waiting().len() > 1;
        let placed = match has_room(sender) {
            true => piece.take(),
            false if others && queued(sender) < SPILL_PIECES => spilled(spill, &mut piece),
            false => None,
        };
        if let Some(piece) = placed {
            spill.waits.store(false, Ordering::Relaxed);
            *held_up = held_up.saturating_sub(PIECE_TIME);
            return put(sender, piece);
        }
        let now = Instant::now();
        if queued(sender) < fewest {
            (since, fewest) = (now, queued(sender));
        }
        let rest = NOT_TAKEN_LIMIT.saturating_sub(now.saturating_duration_since(since));
        let rest = if others { rest.min(HOLD_UP_LIMIT.saturating_sub(*held_up)) } else { rest };
        if rest.is_zero() {
            spill.waits.store(false, Ordering::Relaxed);
            return Forwarded::NotTaken(match others && *held_up >= HOLD_UP_LIMIT {
                true => Cause::HeldUp { limit: HOLD_UP_LIMIT, kept: queued(sender) },
                false => Cause::NotTaken { limit: NOT_TAKEN_LIMIT },
            });
        }
        tokio::select! {
            () = reader_wake => {}
            () = sender.closed() => {
                spill.waits.store(false, Ordering::Relaxed);
                return Forwarded::Gone;
            }
            () = tokio::time::sleep(rest) => {}
        }
        if others {
            *held_up += now.elapsed();
        }
    }
}

/// Converts the piece to a spilled one if the bound allows it.
fn spilled(spill: &Arc<Spill>, piece: &mut Option<CallPiece>) -> Option<CallPiece> {
    match piece.take()? {
        CallPiece::Data(data) => match spill.take(data) {
            Ok(spilled) => Some(CallPiece::Spilled(spilled)),
            Err(data) => {
                *piece = Some(CallPiece::Data(data));
                None
            }
        },
        // Each of these pieces occurs only once per response.
        last @ (CallPiece::Last(_) | CallPiece::Failed(_) | CallPiece::Unwritten) => Some(last),
        other @ (CallPiece::Spilled(_) | CallPiece::Message(_)) => {
            *piece = Some(other);
            None
        }
    }
}

fn put(sender: &mpsc::Sender<CallPiece>, piece: CallPiece) -> Forwarded {
    match sender.try_send(piece) {
        Ok(()) => Forwarded::Taken,
        // The queue has space, because only the reader adds responses.
        Err(TrySendError::Full(_) | TrySendError::Closed(_)) => Forwarded::Gone,
    }
}
