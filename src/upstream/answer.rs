//! Streamed response to a request, over any transport.
//!
//! Messages are passed through unparsed, so the reader must check that a response's id is [`Answer::id`]; otherwise a
//! client could receive another client's bytes. Dropping an answer early cancels its call.
//!
//! [`HttpSource`] reads one HTTP response stream, resumes it after an interruption, and cancels it. A
//! [`DualStreamCall`] also receives messages from the session's GET stream, where legacy servers may send requests and
//! progress even before they start to respond. Such a call is sent while both streams are polled; the [notification
//! router](crate::notifications) selects its messages. Calls without notifications do not have this cost.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::error::{CallError, Cause, Sent};
use crate::handle::{CallGuard, Upstream};
use crate::http::{Cursor, HttpExchange, Pool, Resuming, Session};
use crate::inbound::AnswerPart;
use crate::notifications::{Counted, NotificationRouter, Registration};
use crate::request::{CallSession, RepeatableCall};
use crate::second_connection::SecondUse;
use crate::state::{Carrier, Control};
use crate::stdio;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_runtime::io::deadline::{Allowance, Deadline};

/// Streamed response to a call. Dropping it before its last message has ended cancels the call.
pub struct Answer {
    source: AnswerSource,
    generation: u64,
    family: ProtocolFamily,
    upstream: CallGuard,
    /// Keeps the second connection open, if the call uses it.
    _second: Option<SecondUse>,
    /// Tool name; for any other request, the method.
    what: Arc<str>,
    repeatable: Option<Box<RepeatableCall>>,
}

/// Sent request, and the source of its answer.
pub(super) struct SentCall {
    pub(super) source: AnswerSource,
    /// Generation of the connection.
    pub(super) generation: u64,
    pub(super) family: ProtocolFamily,
    /// Guard that counts the use of the second connection.
    pub(super) second: Option<SecondUse>,
    pub(super) repeatable: Option<Box<RepeatableCall>>,
}

pub(super) enum AnswerSource {
    Http(Box<HttpSource>),
    DualStream(Box<DualStreamCall>),
    Stdio(stdio::StdioCall),
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answer({} of {})", self.id(), self.upstream.name)
    }
}

impl Answer {
    pub(super) fn new(sent: SentCall, upstream: CallGuard, what: Arc<str>) -> Self {
        let SentCall { source, generation, family, second, repeatable } = sent;
        Self { source, generation, family, upstream, _second: second, what, repeatable }
    }

    /// Id of the sent request; the response must carry it.
    pub fn id(&self) -> u64 {
        match &self.source {
            AnswerSource::Http(source) => source.id(),
            AnswerSource::DualStream(call) => call.id(),
            AnswerSource::Stdio(call) => call.id(),
        }
    }

    /// Generation of the connection, for `Upstream::respond` to a server request among the messages.
    pub fn generation(&self) -> u64 {
        match &self.source {
            AnswerSource::DualStream(call) => call.generation(),
            AnswerSource::Http(_) | AnswerSource::Stdio(_) => self.generation,
        }
    }

    /// Protocol family of the connection; may change until the answer begins, if the session is lost.
    pub fn family(&self) -> ProtocolFamily {
        match &self.source {
            AnswerSource::DualStream(call) => call.family(),
            AnswerSource::Http(_) | AnswerSource::Stdio(_) => self.family,
        }
    }

    /// Takes the call so that it can be repeated. Returns it only once, only if the caller requested this
    /// ([`CallExtras::repeatable`](super::CallExtras::repeatable)), and only if a modern server answers.
    pub fn take_repeatable(&mut self) -> Option<Box<RepeatableCall>> {
        match &self.source {
            AnswerSource::DualStream(call) => call.take_repeatable(),
            AnswerSource::Http(_) | AnswerSource::Stdio(_) => self.repeatable.take(),
        }
    }

    /// Whether no byte of the response was received: over HTTP not even the head, over a pipe not even the beginning of
    /// a line that could belong to the response (CAP-7).
    pub fn received_nothing(&self) -> bool {
        match &self.source {
            AnswerSource::Http(_) => false,
            AnswerSource::DualStream(call) => call.received_nothing(),
            AnswerSource::Stdio(call) => call.received_nothing(),
        }
    }

    /// Whether the call may have crashed the server. Over a pipe, true if the call may have been written; over HTTP,
    /// always false, because this is unknown.
    pub fn may_have_crashed_server(&self) -> bool {
        match &self.source {
            AnswerSource::Http(_) | AnswerSource::DualStream(_) => false,
            AnswerSource::Stdio(call) => call.may_have_crashed_server(),
        }
    }

    /// Restarts the wait for the next message with this limit. Used while the client answers a server request.
    pub fn extend_wait(&mut self, limit: Duration) {
        match &mut self.source {
            AnswerSource::Http(source) => source.wait_until(Allowance::now(limit)),
            AnswerSource::DualStream(call) => call.wait_until(Allowance::now(limit)),
            AnswerSource::Stdio(call) => call.extend_wait(limit),
        }
    }

    /// Returns the next piece, or `None` at the end of the stream. Reads ahead only into bounded buffers. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<AnswerPart>, CallError> {
        let next = match &mut self.source {
            AnswerSource::Http(source) => source.next().await.map_err(maybe_sent),
            AnswerSource::DualStream(call) => call.next().await,
            AnswerSource::Stdio(call) => call.next().await.map_err(maybe_sent),
        };
        next.map_err(|failed| self.error(failed))
    }

    /// Processes a message on the call's own stream that concerns no client: a change of the server's lists or
    /// resources.
    pub fn observe(&self, message: &[u8]) {
        self.upstream.server_events.observe(message);
    }

    /// Error for a stream that ended without a response.
    pub fn without_response(&self) -> CallError {
        self.error(maybe_sent(Cause::NoAnswerAtAll {
            reason: "its stream held no response".into(),
        }))
    }

    /// Ends the call after its response: further messages are not awaited and the connection is reused.
    pub fn finish(mut self) {
        match &mut self.source {
            AnswerSource::Http(source) => source.done(),
            AnswerSource::DualStream(call) => call.done(),
            AnswerSource::Stdio(_) => {}
        }
    }

    /// Excludes the connection from reuse after it delivered unsolicited data.
    pub fn distrust(&mut self) {
        match &mut self.source {
            AnswerSource::Http(source) => source.trusted = false,
            AnswerSource::DualStream(call) => call.distrust(),
            AnswerSource::Stdio(_) => {}
        }
    }

    fn error(&self, (cause, sent): (Cause, Sent)) -> CallError {
        CallError { server: self.upstream.name.clone(), tool: self.what.clone(), cause, sent }
    }
}

fn maybe_sent(cause: Cause) -> (Cause, Sent) {
    (cause, Sent::Maybe)
}

/// Future that sends the request and resolves with the head of the response.
pub(crate) type Sending =
    Pin<Box<dyn Future<Output = Result<(Box<HttpSource>, Attempt), (Cause, Sent)>>>>;

#[derive(Debug, Default)]
pub(crate) struct SendState {
    /// Generation of the connection; changes if the session was lost.
    generation: Cell<u64>,
    /// Protocol family of the connection.
    family: Cell<ProtocolFamily>,
    /// Whether any byte may have been sent; false while waiting for a connection.
    sent: Cell<bool>,
    pub(crate) repeatable: RefCell<Option<Box<RepeatableCall>>>,
}

impl SendState {
    /// State of a call that is about to be sent over a connection of this family.
    pub(crate) fn new(family: ProtocolFamily) -> Self {
        Self { family: Cell::new(family), ..Self::default() }
    }

    pub(crate) fn family(&self) -> ProtocolFamily {
        self.family.get()
    }

    /// Records that the call is sent over this connection.
    pub(crate) fn attempt(
        self: &Rc<Self>,
        generation: u64,
        family: ProtocolFamily,
        place: Registration,
    ) -> Attempt {
        self.generation.set(generation);
        self.family.set(family);
        self.sent.set(true);
        Attempt { _place: place, send_state: self.clone() }
    }
}

/// Attempt over one connection; the call stays registered with the router until the attempt is dropped.
pub(crate) struct Attempt {
    _place: Registration,
    send_state: Rc<SendState>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.send_state.sent.set(false);
    }
}

/// Call that receives messages from its own response stream and from the session's GET stream.
pub(crate) struct DualStreamCall {
    id: u64,
    send_state: Rc<SendState>,
    messages: mpsc::Receiver<Bytes>,
    phase: Phase,
    last: Last,
    /// Deadline of the first byte of the next message on the call's own stream.
    time: Allowance,
    timer: Deadline,
    head_received: bool,
}

enum Phase {
    Sending(Sending),
    Streaming { source: Box<HttpSource>, _attempt: Attempt },
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Whole,
    /// Part of a message on the call's own stream.
    Part,
    /// Whole message of the GET stream; its end is reported next.
    Aside,
}

impl DualStreamCall {
    pub(crate) fn new(
        id: u64,
        send_state: Rc<SendState>,
        messages: mpsc::Receiver<Bytes>,
        sending: Sending,
        time: Allowance,
    ) -> Self {
        let phase = Phase::Sending(sending);
        Self {
            id,
            send_state,
            messages,
            phase,
            last: Last::Whole,
            time,
            timer: Deadline::default(),
            head_received: false,
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether not even the head of the response was received.
    pub(crate) fn received_nothing(&self) -> bool {
        !self.head_received
    }

    pub(crate) fn generation(&self) -> u64 {
        self.send_state.generation.get()
    }

    pub(crate) fn family(&self) -> ProtocolFamily {
        self.send_state.family()
    }

    pub(crate) fn take_repeatable(&self) -> Option<Box<RepeatableCall>> {
        self.send_state.repeatable.take()
    }

    /// Returns the next piece. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<AnswerPart>, (Cause, Sent)> {
        if self.last == Last::Aside {
            self.last = Last::Whole;
            return Ok(Some(AnswerPart::End));
        }
        if let Phase::Sending(_) = &self.phase {
            match poll_fn(|cx| self.poll_sending(cx)).await {
                Ok(Some(message)) => return Ok(Some(self.aside(message))),
                Ok(None) => {}
                Err(failed) => {
                    // Cancels the call if it was still being sent.
                    self.phase = Phase::Over;
                    return Err(failed);
                }
            }
        }
        let Phase::Streaming { source, .. } = &mut self.phase else { return Ok(None) };
        let part = tokio::select! {
            biased;
            Some(message) = self.messages.recv(), if self.last == Last::Whole => {
                return Ok(Some(self.aside(message)));
            }
            part = source.next() => part,
        };
        match &part {
            Ok(Some(AnswerPart::Data(_))) => self.last = Last::Part,
            Ok(Some(AnswerPart::End)) => self.last = Last::Whole,
            Ok(Some(AnswerPart::Interrupted)) => {}
            Ok(None) | Err(_) => self.phase = Phase::Over,
        }
        part.map_err(|cause| (cause, Sent::Maybe))
    }

    fn aside(&mut self, message: Bytes) -> AnswerPart {
        self.last = Last::Aside;
        AnswerPart::Data(message)
    }

    /// Polls the first phase: yields a message of the GET stream, or `None` once the head was received and the
    /// second phase begins.
    fn poll_sending(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, (Cause, Sent)>> {
        if let Poll::Ready(Some(message)) = self.messages.poll_recv(cx) {
            return Poll::Ready(Ok(Some(message)));
        }
        if let Phase::Sending(sending) = &mut self.phase
            && let Poll::Ready(sent) = sending.as_mut().poll(cx)
        {
            let (mut source, attempt) = sent?;
            source.wait_until(self.time);
            self.head_received = true;
            self.phase = Phase::Streaming { source, _attempt: attempt };
            return Poll::Ready(Ok(None));
        }
        ready!(self.timer.poll_until(cx, self.time.until));
        let sent = if self.send_state.sent.get() { Sent::Maybe } else { Sent::No };
        Poll::Ready(Err((Cause::NoAnswer { limit: self.time.whole }, sent)))
    }

    /// Sets the deadline of the next message.
    pub(crate) fn wait_until(&mut self, time: Allowance) {
        self.time = time;
        if let Phase::Streaming { source, .. } = &mut self.phase {
            source.wait_until(time);
        }
    }

    /// Excludes the connection from reuse.
    pub(crate) fn distrust(&mut self) {
        if let Phase::Streaming { source, .. } = &mut self.phase {
            source.trusted = false;
        }
    }

    pub(crate) fn done(&mut self) {
        if let Phase::Streaming { source, .. } = &mut self.phase {
            source.done();
        }
        self.phase = Phase::Over;
    }
}

/// HTTP response stream and the streams that resume it.
pub(crate) struct HttpSource {
    stage: Stage,
    /// Position of a resumed stream.
    cursor: Option<Box<Cursor>>,
    pool: Rc<Pool>,
    key: u64,
    cancel: Cancel,
    /// Whether the connection has not delivered any unsolicited data.
    pub(crate) trusted: bool,
}

enum Stage {
    Streaming(HttpExchange),
    /// The stream ended before the response and is being resumed.
    Resuming(Resuming),
    /// The connection was returned to the pool, or is broken.
    Over,
}

/// Drop guard that, while armed, sends the server a cancellation. In legacy revisions, closing the connection does not
/// cancel a call.
pub(crate) struct Cancel {
    upstream: Arc<Upstream>,
    generation: u64,
    id: u64,
    armed: bool,
    in_flight: Option<CountedCall>,
}

/// Entry of a client's call among those in flight on its connection.
pub(crate) struct CountedCall {
    router: Arc<NotificationRouter>,
    session: Option<CallSession>,
    /// Guard that counts a call that is not registered with the router.
    _counted: Option<Counted>,
}

impl CountedCall {
    /// Creates the entry. If `is_routed`, the call is registered with the router.
    pub(crate) fn new(
        router: &Arc<NotificationRouter>,
        session: Option<CallSession>,
        is_routed: bool,
    ) -> Self {
        let counted = (!is_routed).then(|| router.count());
        Self { router: router.clone(), session, _counted: counted }
    }
}

impl Cancel {
    /// Guard for a call with this generation and id; not `armed` if closing the connection cancels the call.
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        (generation, id): (u64, u64),
        armed: bool,
        in_flight: Option<CountedCall>,
    ) -> Self {
        Self { upstream, generation, id, armed, in_flight }
    }

    /// Disarms the guard of a call that the server did not execute.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }

    /// Disarms the guard unless the failed call may still be running.
    pub(crate) fn failed(&mut self, cause: &Cause, sent: Sent) {
        self.armed &= sent == Sent::Maybe && cause.leaves_call_running();
    }
}

impl Drop for Cancel {
    fn drop(&mut self) {
        if self.armed {
            if let Some(in_flight) = &self.in_flight {
                in_flight.router.abandon(self.id, in_flight.session);
            }
            let cancel = Control::Cancel { generation: self.generation, id: self.id };
            // Best effort: the cancellation is lost if the control queue is full.
            let _ = self.upstream.control_of(self.generation).try_send(cancel);
        }
    }
}

impl HttpSource {
    pub(crate) fn id(&self) -> u64 {
        self.cancel.id
    }

    pub(crate) fn new(exchange: HttpExchange, pool: Rc<Pool>, key: u64, cancel: Cancel) -> Self {
        Self { stage: Stage::Streaming(exchange), cursor: None, pool, key, cancel, trusted: true }
    }

    /// Sets the deadline of the next message.
    pub(crate) fn wait_until(&mut self, time: Allowance) {
        match &mut self.stage {
            Stage::Streaming(exchange) => exchange.wait_until(time),
            Stage::Resuming(resuming) => resuming.wait_until(time),
            Stage::Over => {}
        }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<AnswerPart>, Cause> {
        loop {
            match &mut self.stage {
                Stage::Over => return Ok(None),
                Stage::Streaming(exchange) => {
                    let event = match exchange.next().await {
                        Ok(event) => event,
                        Err(cause) => {
                            self.stage = Stage::Over;
                            self.cancel.failed(&cause, Sent::Maybe);
                            return Err(cause);
                        }
                    };
                    if event.is_none() && self.resume() {
                        return Ok(Some(AnswerPart::Interrupted));
                    }
                    if let Stage::Streaming(exchange) = &self.stage
                        && exchange.is_complete()
                    {
                        self.done();
                    }
                    return Ok(event);
                }
                Stage::Resuming(resuming) => match resuming.resumed().await {
                    Ok((exchange, cursor)) => {
                        self.stage = Stage::Streaming(exchange);
                        self.cursor = Some(cursor);
                    }
                    Err(cause) => {
                        // The server may still be working on the call, so the guard stays armed.
                        self.stage = Stage::Over;
                        return Err(cause);
                    }
                },
            }
        }
    }

    /// Starts to resume a stream that ended before its response, if possible. The request itself is never repeated
    /// (MCP 2025-11-25 §Resumability and Redelivery).
    fn resume(&mut self) -> bool {
        let Stage::Streaming(exchange) = &self.stage else { return false };
        let Some(cursor) = Cursor::of(exchange, self.cursor.take()) else { return false };
        let (upstream, generation) = (self.cancel.upstream.clone(), self.cancel.generation);
        if session_of(&upstream, generation).is_none() {
            return false;
        }
        let session = move || session_of(&upstream, generation);
        self.stage = Stage::Resuming(Resuming::begin(exchange, cursor, session));
        true
    }

    pub(crate) fn done(&mut self) {
        self.cancel.armed = false;
        self.cancel.in_flight = None;
        if let Stage::Streaming(exchange) = std::mem::replace(&mut self.stage, Stage::Over)
            && self.trusted
            && (self.cursor.is_none() || exchange.is_complete())
        {
            // A resumed stream is abandoned after the response.
            exchange.release(&self.pool, self.key);
        }
    }
}

/// Legacy session of this connection, while it is live.
fn session_of(upstream: &Upstream, generation: u64) -> Option<Arc<Session>> {
    let live = upstream.state.live()?;
    match &live.link {
        Carrier::Http(session)
            if live.generation == generation && live.family == ProtocolFamily::Legacy =>
        {
            Some(session.clone())
        }
        Carrier::Http(_) | Carrier::Stdio(_) => None,
    }
}
