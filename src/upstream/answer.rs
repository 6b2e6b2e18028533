//! The answer to a request: messages as they come, whichever transport carries them.
//!
//! Owns what happens when an answer is dropped. It deliberately does not read the messages: whoever
//! does must check that a response's id is [`Answer::id`], so that nobody gets another's bytes.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::call::{Carrier, Upstream};
use super::dual_stream::DualStreamCall;
use super::error::{CallError, Cause, Sent};
use super::http::{self, Cursor, HttpExchange, Pool, Resuming, Session};
use super::stdio;
use super::supervisor::Control;
use crate::io::deadline::Allowance;
use crate::mcp::revisions::Era;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// The next bytes of the current JSON message, never empty.
    Data(Bytes),
    /// That message is complete: one JSON body, one event, one line.
    End,
}

/// The answer to a call: messages as they come. Dropping it before its last message has ended
/// cancels the call.
pub struct Answer {
    source: AnswerSource,
    /// The connection it comes over.
    generation: u64,
    upstream: Arc<Upstream>,
    /// The tool's name, or another request's method.
    what: Arc<str>,
    _slot: Option<OwnedSemaphorePermit>,
}

/// Where it comes from.
pub(super) enum AnswerSource {
    Http(Box<HttpSource>),
    DualStream(Box<DualStreamCall>),
    Stdio(stdio::Call),
}

pub(super) struct HttpSource {
    stage: Stage,
    /// How far a stream that was taken up again had come.
    cursor: Option<Box<Cursor>>,
    pool: Rc<Pool>,
    key: u64,
    cancel: Cancel,
    /// Nothing came on its connection so far that nobody asked for.
    pub(super) trusted: bool,
}

enum Stage {
    Streaming(HttpExchange),
    /// The stream ended before the answer, and is being taken up again.
    Resuming(Resuming),
    /// The connection went back to the pool, or broke.
    Over,
}

/// Tells the server, when dropped while armed, that nobody waits for a call any more. Closing the
/// connection alone does not say so in the revisions with sessions.
pub(super) struct Cancel {
    upstream: Arc<Upstream>,
    generation: u64,
    id: u64,
    armed: bool,
}

impl Cancel {
    /// `armed` unless closing the connection says it all.
    pub(super) fn new(upstream: Arc<Upstream>, generation: u64, id: u64, armed: bool) -> Self {
        Self { upstream, generation, id, armed }
    }

    /// The call has failed: there may be nothing to cancel, or nothing left.
    pub(super) fn failed(&mut self, cause: &Cause, sent: Sent) {
        self.armed &= sent == Sent::Maybe && cause.leaves_call_running();
    }
}

impl Drop for Cancel {
    fn drop(&mut self) {
        if self.armed {
            let cancel = Control::Cancel { generation: self.generation, id: self.id };
            // A courtesy: with the supervisor that far behind it may be lost.
            let _ = self.upstream.control.try_send(cancel);
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answer({} of {})", self.id(), self.upstream.name)
    }
}

impl Answer {
    pub(super) fn new(
        source: AnswerSource,
        generation: u64,
        upstream: Arc<Upstream>,
        what: Arc<str>,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { source, generation, upstream, what, _slot: slot }
    }

    /// The id under which the call went out, and which its response must carry.
    #[must_use]
    pub fn id(&self) -> u64 {
        match &self.source {
            AnswerSource::Http(source) => source.cancel.id,
            AnswerSource::DualStream(call) => call.id(),
            AnswerSource::Stdio(call) => call.id(),
        }
    }

    /// The connection it comes over, for [`Upstream::respond`] to a request among its messages.
    #[must_use]
    pub fn generation(&self) -> u64 {
        match &self.source {
            AnswerSource::DualStream(call) => call.generation(),
            AnswerSource::Http(_) | AnswerSource::Stdio(_) => self.generation,
        }
    }

    /// From now on a message may take this long to begin: the client is being asked what the
    /// server asked.
    pub fn wait_longer(&mut self, limit: Duration) {
        match &mut self.source {
            AnswerSource::Http(source) => source.wait_until(Allowance::now(limit)),
            AnswerSource::DualStream(call) => call.wait_until(Allowance::now(limit)),
            AnswerSource::Stdio(call) => call.wait_longer(limit),
        }
    }

    /// The next piece; `None` when the stream has ended. Nothing is read ahead of what was asked
    /// for, beyond bounded buffers. Safe to drop and ask again.
    ///
    /// # Errors
    /// [`CallError`]; the answer is over then.
    pub async fn next(&mut self) -> Result<Option<AnswerPart>, CallError> {
        let next = match &mut self.source {
            AnswerSource::Http(source) => source.next().await.map_err(maybe_sent),
            AnswerSource::DualStream(call) => call.next().await,
            AnswerSource::Stdio(call) => call.next().await.map_err(maybe_sent),
        };
        next.map_err(|failed| self.error(failed))
    }

    /// The error for an answer that ended without a response among its messages.
    #[must_use]
    pub fn without_response(&self) -> CallError {
        self.error(maybe_sent(Cause::NoAnswerAtAll {
            reason: "its stream held no response".into(),
        }))
    }

    /// To be called when the response has ended: what may follow it on the stream is not waited
    /// for, and the connection is used again.
    pub fn finish(mut self) {
        match &mut self.source {
            AnswerSource::Http(source) => source.done(),
            AnswerSource::DualStream(call) => call.done(),
            AnswerSource::Stdio(_) => {}
        }
    }

    /// To be called when something came that nobody asked for: its connection is not used again.
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

impl HttpSource {
    pub(super) fn new(exchange: HttpExchange, pool: Rc<Pool>, key: u64, cancel: Cancel) -> Self {
        Self { stage: Stage::Streaming(exchange), cursor: None, pool, key, cancel, trusted: true }
    }

    /// Its next message has to begin in what is left of this time.
    pub(super) fn wait_until(&mut self, time: Allowance) {
        match &mut self.stage {
            Stage::Streaming(exchange) => exchange.wait_until(time),
            Stage::Resuming(resuming) => resuming.wait_until(time),
            Stage::Over => {}
        }
    }

    pub(super) async fn next(&mut self) -> Result<Option<AnswerPart>, Cause> {
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
                    if event.is_none() && self.take_up() {
                        continue;
                    }
                    if let Stage::Streaming(exchange) = &self.stage
                        && exchange.is_complete()
                    {
                        self.done();
                    }
                    return Ok(event.map(|event| match event {
                        http::Event::Data(data) => AnswerPart::Data(data),
                        http::Event::End => AnswerPart::End,
                    }));
                }
                Stage::Resuming(resuming) => match resuming.resumed().await {
                    Ok((exchange, cursor)) => {
                        self.stage = Stage::Streaming(exchange);
                        self.cursor = Some(cursor);
                    }
                    Err(cause) => {
                        // The server may be working on it still: it is told that nobody waits.
                        self.stage = Stage::Over;
                        return Err(cause);
                    }
                },
            }
        }
    }

    /// The stream ended before the answer: begins to take it up again, if it can be. The request
    /// is not sent again (MCP 2025-11-25 §Resumability and Redelivery).
    fn take_up(&mut self) -> bool {
        let Stage::Streaming(exchange) = &self.stage else { return false };
        let Some(cursor) = exchange.cursor(self.cursor.take()) else { return false };
        let (upstream, generation) = (self.cancel.upstream.clone(), self.cancel.generation);
        if upstream.session_of(generation).is_none() {
            return false;
        }
        let session = move || upstream.session_of(generation);
        self.stage = Stage::Resuming(Resuming::begin(exchange, cursor, session));
        true
    }

    pub(super) fn done(&mut self) {
        self.cancel.armed = false;
        if let Stage::Streaming(exchange) = std::mem::replace(&mut self.stage, Stage::Over)
            && self.trusted
            && (self.cursor.is_none() || exchange.is_complete())
        {
            // A stream that was taken up again is left at the answer: nobody would read on.
            exchange.release(&self.pool, self.key);
        }
    }
}

impl Upstream {
    /// The session over which the calls of that connection go, while there is one.
    fn session_of(&self, generation: u64) -> Option<Arc<Session>> {
        let live = self.live.load();
        let live = live.as_ref()?;
        match &live.link {
            Carrier::Http(session) if live.generation == generation && live.era == Era::Legacy => {
                Some(session.clone())
            }
            Carrier::Http(_) | Carrier::Stdio(_) => None,
        }
    }
}

fn maybe_sent(cause: Cause) -> (Cause, Sent) {
    (cause, Sent::Maybe)
}
