//! The reader of a child's output: each line on its way to whom it is for.
//!
//! A line is held until it is known whose it is, bounded by [`MAX_LINE_BYTES`]; from then on its
//! pieces go to their call as they come.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;

use super::backpressure::{self, Handed};
use super::link::{ChildLink, Line};
use super::queue::{CallPiece, has_room};
use crate::mcp::capabilities::ClientCapabilities;
use crate::upstream::error::Cause;
use crate::upstream::inbound::{self, Destination, MessageRoute, ResponseMatcher};
use crate::upstream::notification_router::Told;
use crate::upstream::pending::Unasked;
use crate::wire::lines::{self, MAX_LINE_BYTES};

/// Most bytes read from the child at once.
pub const READ_BYTES: usize = 64 * 1024;
/// A new buffer is made when less than this is left of the last one.
const READ_ROOM: usize = 8 * 1024;
/// Most bytes of a message for the lifecycle.
const MAX_LIFECYCLE_BYTES: u64 = 4 * 1024 * 1024;

/// Reads lines until the pipe closes; returns why it did. `inbox` gets what is no answer to a
/// call; `seed` as in [`ResponseMatcher::new`].
pub(in crate::upstream) async fn read(
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
                reader.breaks_off();
                return "it closed its output".into();
            }
            Ok(_) => {}
            Err(error) => {
                reader.breaks_off();
                return link.peer.quote(error.to_string());
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
    call: Option<(u64, mpsc::Sender<CallPiece>)>,
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

    /// The pipe ends here. A line that has begun may be the answer to any call.
    fn breaks_off(&self) {
        let Incoming { call, held_bytes, skip, .. } = &self.line;
        if call.is_none() && *held_bytes > 0 && !skip {
            self.link.broke_off.store(true, Ordering::Release);
        }
    }

    /// The chunk is used up: what is known to belong to a call goes on.
    async fn flush(&mut self) {
        if self.line.call.is_none() {
            return;
        }
        for data in std::mem::take(&mut self.line.held) {
            self.hand_on(CallPiece::Data(data)).await;
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
            self.hand_on(CallPiece::Last(last)).await;
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
                    has_room(&it.sender) && it.sender.try_send(CallPiece::Message(message)).is_ok()
                })
            }
            Destination::Call(id, request) => {
                let piece = CallPiece::Message(message);
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
            self.hand_on(CallPiece::Failed(Cause::Unreadable { reason: error.to_string().into() }))
                .await;
            self.link.waiting().answered(id);
        }
        // The decoder skips to the end of the line by itself and reports no end for it.
        self.line = Incoming::new(self.seed);
    }

    async fn hand_on(&mut self, piece: CallPiece) {
        let Some((id, sender)) = &self.line.call else { return };
        match backpressure::hand(self.link, sender, piece, &mut self.line.held_up).await {
            Handed::Taken => {}
            Handed::Gone => self.drop_line(),
            Handed::NotTaken(cause) => {
                if self.link.peer.may_log() {
                    tracing::warn!(server = %self.link.peer.name, "an answer is cut off: {cause}");
                }
                // It is told after what waits for it: there is a place left for that.
                let _ = sender.try_send(CallPiece::Failed(cause));
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
