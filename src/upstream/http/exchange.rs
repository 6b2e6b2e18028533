//! One request's answer on one connection: the bytes of its messages, as JSON or as events.
//!
//! Owns the framing of the answer and the waits for it. What a message says is deliberately not
//! read here.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::pool::Pool;
use crate::io::deadline::Allowance;
use crate::upstream::connection::Connection;
use crate::upstream::error::Cause;
use crate::wire::sse;

/// Longest silence in the middle of a message, once its first byte has come.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Time limits of one exchange.
#[derive(Clone, Copy, Debug)]
pub(in crate::upstream) struct Limits {
    /// Until the first byte of its first message, from connecting on.
    pub(super) first: Instant,
    /// Until the first byte of each further one.
    pub(super) answer: Duration,
    /// Between the bytes of a message.
    stall: Duration,
}

impl Limits {
    /// For the first message what is left of that time, for each further one all of it.
    pub(in crate::upstream) fn of(time: Allowance) -> Self {
        Self { first: time.until, answer: time.whole, stall: STALL_LIMIT }
    }

    /// That time for each message, from now on.
    pub(in crate::upstream) fn now(answer: Duration) -> Self {
        Self::of(Allowance::now(answer))
    }
}

/// The bytes of an answer, or its framing.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::upstream) enum BodyEvent {
    /// The next bytes of the current message.
    Data(Bytes),
    /// The message is complete.
    End,
}

/// One request and its answer on one connection.
pub(in crate::upstream) struct HttpExchange {
    connection: Box<Connection>,
    framing: Framing,
    limits: Limits,
    /// When the present wait ends; that of a wait after the first is set when it begins.
    deadline: Option<Instant>,
    inside: bool,
    ended: bool,
}

pub(super) enum Framing {
    Json,
    Events {
        decoder: Box<sse::Decoder>,
        skip: bool,
    },
    /// A refusal's body that turned out to be a JSON-RPC error.
    Fixed(Option<Bytes>),
}

impl HttpExchange {
    /// An answer whose head was read.
    pub(super) fn new(connection: Box<Connection>, framing: Framing, limits: Limits) -> Self {
        let deadline = Some(limits.first);
        Self { connection, framing, limits, deadline, inside: false, ended: false }
    }

    /// The same with another body, which is a whole message and already here.
    pub(super) fn with_body(self, body: Bytes) -> Self {
        Self { framing: Framing::Fixed(Some(body)), ..self }
    }

    /// The next bytes of the answer; `None` at its end. An event stream whose connection breaks
    /// between two events has ended there, if it can be taken up again.
    pub(in crate::upstream) async fn next(&mut self) -> Result<Option<BodyEvent>, Cause> {
        let event = poll_fn(|cx| self.poll_next(cx)).await;
        if !matches!(event, Ok(None)) {
            self.deadline = None;
        }
        event
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<BodyEvent>, Cause>> {
        loop {
            if let Some(event) = self.decoded()? {
                return Poll::Ready(Ok(Some(event)));
            }
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            match self.connection.poll_body(cx) {
                Poll::Pending => {
                    ready!(self.poll_deadline(cx));
                    return Poll::Ready(Err(self.overdue()));
                }
                Poll::Ready(Some(Err(Cause::CutOff { .. }))) if self.ended_between_events() => {
                    self.ended = true;
                    return Poll::Ready(Ok(None));
                }
                Poll::Ready(Some(Err(cause))) => return Poll::Ready(Err(cause)),
                Poll::Ready(None) => {
                    self.ended = true;
                    return Poll::Ready(self.end_of_body());
                }
                Poll::Ready(Some(Ok(data))) => match &mut self.framing {
                    Framing::Json => {
                        self.inside = true;
                        return Poll::Ready(Ok(Some(BodyEvent::Data(data))));
                    }
                    Framing::Events { decoder, .. } => decoder.push(data),
                    Framing::Fixed(_) => {}
                },
            }
        }
    }

    /// What the framing holds ready.
    fn decoded(&mut self) -> Result<Option<BodyEvent>, Cause> {
        match &mut self.framing {
            Framing::Json => Ok(None),
            Framing::Fixed(body) => {
                let body = body.take();
                self.inside |= body.is_some();
                self.ended |= body.is_some();
                match body {
                    Some(body) => Ok(Some(BodyEvent::Data(body))),
                    None if std::mem::take(&mut self.inside) => Ok(Some(BodyEvent::End)),
                    None => Ok(None),
                }
            }
            Framing::Events { decoder, skip } => {
                while let Some(item) = decoder
                    .next_item()
                    .map_err(|error| Cause::Unreadable { reason: error.to_string().into() })?
                {
                    match item {
                        sse::Item::Data(data) => {
                            // Messages have the default type; what else a server sends beside
                            // them is for others.
                            *skip |= !matches!(decoder.event(), b"" | b"message");
                            if !*skip {
                                self.inside = true;
                                return Ok(Some(BodyEvent::Data(data)));
                            }
                        }
                        sse::Item::End => {
                            // An event with empty data only carries an id to resume from.
                            let message = std::mem::take(&mut self.inside);
                            if !std::mem::take(skip) && message {
                                return Ok(Some(BodyEvent::End));
                            }
                        }
                    }
                }
                Ok(None)
            }
        }
    }

    fn end_of_body(&mut self) -> Result<Option<BodyEvent>, Cause> {
        let inside = std::mem::take(&mut self.inside);
        match &self.framing {
            Framing::Json if inside => Ok(Some(BodyEvent::End)),
            Framing::Json => Err(Cause::NoAnswerAtAll { reason: "the body is empty".into() }),
            Framing::Events { .. } if inside => Err(Cause::CutOff { reason: "".into() }),
            Framing::Events { .. } | Framing::Fixed(_) => Ok(None),
        }
    }

    fn limit(&self) -> Duration {
        if self.inside { self.limits.stall } else { self.limits.answer }
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit();
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + limit);
        self.connection.poll_deadline(cx, deadline)
    }

    fn overdue(&self) -> Cause {
        let limit = self.limit();
        if self.inside { Cause::Stalled { limit } } else { Cause::NoAnswer { limit } }
    }

    /// Its next message has to begin in what is left of that time, each further one in all of it.
    pub(in crate::upstream) fn wait_until(&mut self, time: Allowance) {
        self.limits.answer = time.whole;
        self.deadline = Some(time.until);
    }

    /// True for an answer that is framed as events.
    pub(in crate::upstream) fn is_event_stream(&self) -> bool {
        matches!(self.framing, Framing::Events { .. })
    }

    /// The reconnection time that the stream's last event gave, in milliseconds.
    pub(in crate::upstream) fn retry(&self) -> Option<u64> {
        match &self.framing {
            Framing::Events { decoder, .. } => decoder.retry(),
            Framing::Json | Framing::Fixed(_) => None,
        }
    }

    /// The id of the stream's last event.
    pub(in crate::upstream) fn last_id(&self) -> Option<Vec<u8>> {
        match &self.framing {
            Framing::Events { decoder, .. } => Some(decoder.last_id().to_vec()),
            Framing::Json | Framing::Fixed(_) => None,
        }
    }

    /// True once the whole body was read.
    pub(in crate::upstream) fn is_complete(&self) -> bool {
        self.ended && !matches!(self.framing, Framing::Fixed(_))
    }

    /// Gives the connection back: the last message that matters was read.
    pub(in crate::upstream) fn release(self, pool: &Pool, key: u64) {
        let Self { connection, ended, framing, .. } = self;
        match (ended, framing) {
            (true, Framing::Json | Framing::Events { .. }) => {
                if connection.is_clean() {
                    pool.put(key, connection, None);
                }
            }
            (false, Framing::Events { decoder, .. }) => pool.put(key, connection, Some(decoder)),
            (false, Framing::Json) | (_, Framing::Fixed(_)) => {}
        }
    }

    /// The time that its next message has to begin in.
    pub(super) fn wait(&self) -> Allowance {
        let whole = self.limits.answer;
        Allowance { until: self.deadline.unwrap_or_else(|| Instant::now() + whole), whole }
    }

    /// Whether nothing of a message was lost if the stream broke here, and it has event ids.
    fn ended_between_events(&self) -> bool {
        match &self.framing {
            Framing::Events { decoder, .. } => !self.inside && !decoder.last_id().is_empty(),
            Framing::Json | Framing::Fixed(_) => false,
        }
    }
}
