//! An answer over HTTP: its stream, taken up again where it broke, and its cancelling.

use std::rc::Rc;
use std::sync::Arc;

use super::part::AnswerPart;
use crate::io::deadline::Allowance;
use crate::mcp::revisions::Era;
use crate::upstream::carrier::Carrier;
use crate::upstream::control::Control;
use crate::upstream::error::{Cause, Sent};
use crate::upstream::handle::Upstream;
use crate::upstream::http::{self, Cursor, HttpExchange, Pool, Resuming, Session};

/// An answer over HTTP, on the stream that the request was sent on or its successors.
pub(in crate::upstream) struct HttpSource {
    stage: Stage,
    /// How far a stream that was taken up again had come.
    cursor: Option<Box<Cursor>>,
    pool: Rc<Pool>,
    key: u64,
    cancel: Cancel,
    /// Nothing came on its connection so far that nobody asked for.
    pub(in crate::upstream) trusted: bool,
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
pub(in crate::upstream) struct Cancel {
    upstream: Arc<Upstream>,
    generation: u64,
    id: u64,
    armed: bool,
}

impl Cancel {
    /// `armed` unless closing the connection says it all.
    pub(in crate::upstream) fn new(
        upstream: Arc<Upstream>,
        generation: u64,
        id: u64,
        armed: bool,
    ) -> Self {
        Self { upstream, generation, id, armed }
    }

    /// The call has failed: there may be nothing to cancel, or nothing left.
    pub(in crate::upstream) fn failed(&mut self, cause: &Cause, sent: Sent) {
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

impl HttpSource {
    /// The id of its request.
    pub(in crate::upstream) fn id(&self) -> u64 {
        self.cancel.id
    }

    pub(in crate::upstream) fn new(
        exchange: HttpExchange,
        pool: Rc<Pool>,
        key: u64,
        cancel: Cancel,
    ) -> Self {
        Self { stage: Stage::Streaming(exchange), cursor: None, pool, key, cancel, trusted: true }
    }

    /// Its next message has to begin in what is left of this time.
    pub(in crate::upstream) fn wait_until(&mut self, time: Allowance) {
        match &mut self.stage {
            Stage::Streaming(exchange) => exchange.wait_until(time),
            Stage::Resuming(resuming) => resuming.wait_until(time),
            Stage::Over => {}
        }
    }

    pub(in crate::upstream) async fn next(&mut self) -> Result<Option<AnswerPart>, Cause> {
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
                        http::BodyEvent::Data(data) => AnswerPart::Data(data),
                        http::BodyEvent::End => AnswerPart::End,
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
        let Some(cursor) = Cursor::of(exchange, self.cursor.take()) else { return false };
        let (upstream, generation) = (self.cancel.upstream.clone(), self.cancel.generation);
        if session_of(&upstream, generation).is_none() {
            return false;
        }
        let session = move || session_of(&upstream, generation);
        self.stage = Stage::Resuming(Resuming::begin(exchange, cursor, session));
        true
    }

    pub(in crate::upstream) fn done(&mut self) {
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

/// The session over which the calls of that connection go, while there is one.
fn session_of(upstream: &Upstream, generation: u64) -> Option<Arc<Session>> {
    let live = upstream.state.live()?;
    match &live.link {
        Carrier::Http(session) if live.generation == generation && live.era == Era::Legacy => {
            Some(session.clone())
        }
        Carrier::Http(_) | Carrier::Stdio(_) => None,
    }
}
