//! What a reply of the server holds, as messages for the client.
//!
//! A message is written only once it is whole, so it has to be kept until then. Short ones are
//! kept side by side; of those that outgrow [`SHORT_BYTES`] a few at a time, the others waiting
//! with their connections, so that memory has a bound however many calls there are.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::link::Reply;
use crate::wire::lines::{self, one_line};
use crate::wire::sse;

/// A message up to this long is kept whatever the others need.
const SHORT_BYTES: usize = 1024 * 1024;
/// Longer messages kept at once, each of at most [`lines::MAX_LINE_BYTES`].
const LONG_MESSAGES: usize = 2;

/// Room for long messages.
#[derive(Clone)]
pub(super) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LONG_MESSAGES)))
    }
}

/// A whole message for the client, and the room it takes.
#[derive(Default)]
pub(super) struct Line {
    parts: Vec<Bytes>,
    length: usize,
    _room: Option<Rc<OwnedSemaphorePermit>>,
}

impl From<Bytes> for Line {
    fn from(message: Bytes) -> Self {
        Self { length: message.len(), parts: vec![one_line(message)], _room: None }
    }
}

impl Line {
    pub(super) fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// The message in one piece, to be looked at.
    pub(super) fn joined(&self) -> Bytes {
        match self.parts.as_slice() {
            [whole] => whole.clone(),
            parts => parts.concat().into(),
        }
    }
}

/// Gathers the messages of one reply.
pub(super) struct Gathering {
    room: Room,
    /// `None`: the body is one message.
    events: Option<sse::Decoder>,
    line: Line,
    /// Inside an event that is no message.
    skip: bool,
}

impl Gathering {
    /// Events if they are, else one message.
    pub(super) fn new(room: &Room, events: bool) -> Self {
        let events = events.then(sse::Decoder::new);
        Self { room: room.clone(), events, line: Line::default(), skip: false }
    }

    /// By the reply's content type.
    pub(super) fn of(room: &Room, reply: &Reply) -> Self {
        let kind = reply.header(CONTENT_TYPE.as_str()).map(http::HeaderValue::as_bytes);
        Self::new(room, kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")))
    }

    /// Whether the body is events.
    pub(super) fn is_events(&self) -> bool {
        self.events.is_some()
    }

    /// The next whole message; `None` at the end. A message that breaks off is an error.
    pub(super) async fn next(&mut self, reply: &mut Reply) -> Result<Option<Line>, String> {
        loop {
            if let Some(line) = self.decoded().await? {
                return Ok(Some(line));
            }
            match reply.next().await {
                Some(Ok(data)) => match &mut self.events {
                    Some(decoder) => decoder.push(data),
                    None => self.keep(data).await?,
                },
                Some(Err(error)) => return Err(error.to_string()),
                None if self.events.is_none() && self.line.length > 0 => {
                    return Ok(Some(std::mem::take(&mut self.line)));
                }
                None if self.line.length > 0 => return Err("it stopped in the middle".to_owned()),
                None => return Ok(None),
            }
        }
    }

    /// What the events so far hold.
    async fn decoded(&mut self) -> Result<Option<Line>, String> {
        loop {
            let Some(decoder) = &mut self.events else { return Ok(None) };
            match decoder.next_item().map_err(|error| error.to_string())? {
                None => return Ok(None),
                Some(sse::Item::Data(data)) => {
                    self.skip |= !matches!(decoder.event(), b"" | b"message");
                    if !self.skip {
                        self.keep(data).await?;
                    }
                }
                Some(sse::Item::End) => {
                    let line = std::mem::take(&mut self.line);
                    if !std::mem::take(&mut self.skip) && line.length > 0 {
                        return Ok(Some(line));
                    }
                }
            }
        }
    }

    async fn keep(&mut self, data: Bytes) -> Result<(), String> {
        self.line.length += data.len();
        if self.line.length as u64 > lines::MAX_LINE_BYTES {
            return Err(format!("its answer is longer than {} bytes", lines::MAX_LINE_BYTES));
        }
        if self.line.length > SHORT_BYTES && self.line._room.is_none() {
            let room = Arc::clone(&self.room.0).acquire_owned().await;
            self.line._room = room.ok().map(Rc::new);
        }
        self.line.parts.push(one_line(data));
        Ok(())
    }

    /// The id of the last event.
    pub(super) fn last_id(&self) -> &[u8] {
        self.events.as_ref().map_or(&[], sse::Decoder::last_id)
    }

    /// How long the server asks to wait before the stream is asked for again.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.events.as_ref().and_then(sse::Decoder::retry).map(Duration::from_millis)
    }
}
