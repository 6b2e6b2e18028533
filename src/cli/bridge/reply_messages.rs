//! The messages in a reply of the server, JSON or events, for the client.
//!
//! A message is written only once it is whole, and held until then. Short ones are held side by side;
//! of those over [`SHORT_BYTES`] a few at a time while the others wait, unread, on their connections.
//! So memory is bounded however many calls there are.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::cli::http_client::HttpReply;
use crate::wire::lines::{self, one_line};
use crate::wire::sse;

/// A message up to this long is held whatever the others need.
const SHORT_BYTES: usize = 1024 * 1024;
/// Longer messages held at once, each of at most [`lines::MAX_LINE_BYTES`].
const LONG_MESSAGES: usize = 2;

/// Permits for messages over [`SHORT_BYTES`].
#[derive(Clone)]
pub(super) struct LongMessages(Arc<Semaphore>);

impl Default for LongMessages {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LONG_MESSAGES)))
    }
}

/// A whole message for the client, and its part of [`LongMessages`].
#[derive(Default)]
pub(super) struct ServerMessage {
    parts: Vec<Bytes>,
    length: usize,
    _permit: Option<Rc<OwnedSemaphorePermit>>,
}

impl From<Bytes> for ServerMessage {
    fn from(message: Bytes) -> Self {
        Self { length: message.len(), parts: vec![one_line(message)], _permit: None }
    }
}

impl ServerMessage {
    pub(super) fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// The message in one piece.
    pub(super) fn joined(&self) -> Bytes {
        match self.parts.as_slice() {
            [whole] => whole.clone(),
            parts => parts.concat().into(),
        }
    }
}

/// The messages of one reply, in order.
pub(super) struct ReplyMessages {
    long: LongMessages,
    /// `None`: the body is one message.
    events: Option<sse::Decoder>,
    message: ServerMessage,
    /// Inside an event of another type than `message`.
    skip: bool,
}

impl ReplyMessages {
    /// Of a body of events, or of one that is a single message.
    pub(super) fn new(long: &LongMessages, events: bool) -> Self {
        let events = events.then(sse::Decoder::new);
        Self { long: long.clone(), events, message: ServerMessage::default(), skip: false }
    }

    /// By the reply's content type.
    pub(super) fn of(long: &LongMessages, reply: &HttpReply) -> Self {
        let kind = reply.headers().get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
        Self::new(long, kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")))
    }

    /// Whether the body is events.
    pub(super) fn is_events(&self) -> bool {
        self.events.is_some()
    }

    /// The next whole message; `None` at the end. A message that breaks off is an error.
    pub(super) async fn next(
        &mut self,
        reply: &mut HttpReply,
    ) -> Result<Option<ServerMessage>, String> {
        loop {
            if let Some(message) = self.decoded().await? {
                return Ok(Some(message));
            }
            match reply.next().await {
                Some(Ok(data)) => match &mut self.events {
                    Some(decoder) => decoder.push(data),
                    None => self.keep(data).await?,
                },
                Some(Err(error)) => return Err(error.cause()),
                None if self.events.is_none() && self.message.length > 0 => {
                    return Ok(Some(std::mem::take(&mut self.message)));
                }
                None if self.message.length > 0 => {
                    return Err("it stopped in the middle".to_owned());
                }
                None => return Ok(None),
            }
        }
    }

    /// What the events so far hold.
    async fn decoded(&mut self) -> Result<Option<ServerMessage>, String> {
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
                    let message = std::mem::take(&mut self.message);
                    if !std::mem::take(&mut self.skip) && message.length > 0 {
                        return Ok(Some(message));
                    }
                }
            }
        }
    }

    async fn keep(&mut self, data: Bytes) -> Result<(), String> {
        self.message.length += data.len();
        if self.message.length as u64 > lines::MAX_LINE_BYTES {
            return Err(format!("its answer is longer than {} bytes", lines::MAX_LINE_BYTES));
        }
        if self.message.length > SHORT_BYTES && self.message._permit.is_none() {
            let permit = Arc::clone(&self.long.0).acquire_owned().await;
            self.message._permit = permit.ok().map(Rc::new);
        }
        self.message.parts.push(one_line(data));
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
