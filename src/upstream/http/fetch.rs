//! Whole messages, and requests and notifications beside the calls: of the lifecycle's stream, the
//! lists, and what a client answers.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use super::exchange::{BodyEvent, HttpExchange, Limits};
use super::send::{fresh, send};
use super::session::Session;
use crate::mcp::revisions::Era;
use crate::upstream::error::Cause;
use crate::upstream::request::Params;

/// Longest wait for a server to take a notification.
const NOTIFY_LIMIT: Duration = Duration::from_secs(2);

/// The next whole message, at most `limit` bytes of it.
pub(in crate::upstream) async fn next_message(
    exchange: &mut HttpExchange,
    limit: usize,
) -> Result<Option<Vec<u8>>, Cause> {
    let mut message = Vec::new();
    while let Some(event) = exchange.next().await? {
        match event {
            BodyEvent::End => return Ok(Some(message)),
            BodyEvent::Data(data) if message.len() + data.len() > limit => {
                return Err(Cause::TooLong { limit });
            }
            BodyEvent::Data(data) => message.extend_from_slice(&data),
        }
    }
    Ok(None)
}

/// Sends a request beside the lifecycle and returns the response's bytes, at most `room`.
pub(in crate::upstream) async fn fetch(
    session: &Session,
    id: u64,
    params: Params,
    era: Era,
    limit: Duration,
    room: usize,
) -> Result<Vec<u8>, Cause> {
    #[derive(Deserialize)]
    struct Envelope {
        id: Option<serde_json::Number>,
        method: Option<serde::de::IgnoredAny>,
    }
    let limits = Limits::now(limit);
    let request = session.post(&params.lines(era), params.body(id, era));
    let mut exchange = fresh(session, &request, limits).await.map_err(|refused| refused.cause)?;
    while let Some(message) = next_message(&mut exchange, room).await? {
        let envelope = serde_json::from_slice::<Envelope>(&message).map_err(|error| {
            Cause::Unreadable { reason: session.peer().quote(error.to_string()) }
        })?;
        if envelope.method.is_none() && envelope.id.is_none_or(|found| found.as_u64() == Some(id)) {
            return Ok(message);
        }
    }
    Err(Cause::NoAnswerAtAll { reason: "its stream held no response".into() })
}

/// Sends a notification beside the lifecycle; whether it arrives is not waited for long.
pub(in crate::upstream) async fn notify(session: &Session, json: Bytes) {
    let request = session.post(b"", (json.into(), Default::default()));
    let _ = tokio::time::timeout(NOTIFY_LIMIT, send(session, &request, Limits::now(NOTIFY_LIMIT)))
        .await;
}
