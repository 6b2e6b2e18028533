//! Sending a request, and the head of its answer.

use super::exchange::{Framing, HttpExchange, Limits};
use super::pool::Pool;
use super::refusal::{HttpRefused, beginning, refusal};
use super::session::Session;
use crate::io::clock;
use crate::io::http1::ResponseHead;
use crate::upstream::connection::{Connection, HttpRequest, SendError};
use crate::upstream::error::{Cause, Sent};

/// Sends the request on a pooled connection, or on a new one if there is no good one.
pub(in crate::upstream) async fn exchange(
    session: &Session,
    pool: &Pool,
    request: &HttpRequest,
    limits: Limits,
) -> Result<HttpExchange, HttpRefused> {
    let now = clock::now();
    while let Some(mut connection) = pool.take(session, now) {
        match connection.send(request, limits.first, limits.answer).await {
            Ok(head) => return accept(session, connection, &head, limits).await,
            Err(SendError::Stale) => {}
            Err(SendError::Failed(cause)) => return Err(HttpRefused::new(cause, Sent::Maybe)),
        }
    }
    // Rare, and large: what a call keeps while it waits is to be small.
    Box::pin(fresh(session, request, limits)).await
}

/// Sends the request on a connection of its own.
pub(in crate::upstream) async fn fresh(
    session: &Session,
    request: &HttpRequest,
    limits: Limits,
) -> Result<HttpExchange, HttpRefused> {
    let (connection, head) = send(session, request, limits).await?;
    accept(session, connection, &head, limits).await
}

/// Sends the request on a connection of its own and leaves the answer's head to the caller.
pub(in crate::upstream) async fn send(
    session: &Session,
    request: &HttpRequest,
    limits: Limits,
) -> Result<(Box<Connection>, ResponseHead), HttpRefused> {
    let opening = Connection::open(&session.endpoint);
    // That there was no time left says nothing of the server.
    let opened = tokio::time::timeout_at(limits.first.into(), opening).await;
    let late = |_| Err(Cause::NoAnswer { limit: limits.answer });
    let mut connection = opened.unwrap_or_else(late).map_err(HttpRefused::unsent)?;
    match connection.send(request, limits.first, limits.answer).await {
        Ok(head) => Ok((connection, head)),
        Err(SendError::Stale) => {
            let unsaid = || Cause::NoAnswerAtAll { reason: "".into() };
            let cause = connection.refusal().unwrap_or_else(unsaid);
            Err(HttpRefused::new(cause, Sent::No))
        }
        Err(SendError::Failed(cause)) => Err(HttpRefused::new(cause, Sent::Maybe)),
    }
}

/// Reads the head: is this an answer, and how is it framed?
pub(in crate::upstream) async fn accept(
    session: &Session,
    connection: Box<Connection>,
    head: &ResponseHead,
    limits: Limits,
) -> Result<HttpExchange, HttpRefused> {
    let content_type = head.content_type.as_deref().unwrap_or_default();
    let json = is_media_type(content_type, b"application/json");
    let exchange = |framing| HttpExchange::new(connection, framing, limits);
    let refused = |cause| Err(HttpRefused::new(cause, Sent::Maybe));
    let encoding = head.content_encoding.as_deref();
    if let Some(found) = encoding.filter(|name| !name.eq_ignore_ascii_case(b"identity")) {
        return refused(Cause::Compressed { found: session.peer().quote(found) });
    }
    if matches!(head.status, 202 | 204) {
        return refused(Cause::AcceptedOnly { status: head.status });
    }
    if !matches!(head.status, 200..=299) {
        return Box::pin(refusal(exchange(Framing::Json), head, json, session)).await;
    }
    if json {
        return Ok(exchange(Framing::Json));
    }
    if is_event_stream(head) {
        return Ok(exchange(Framing::Events { decoder: Box::default(), skip: false }));
    }
    let found = match content_type {
        [] => "no content type".into(),
        found => session.peer().quote(found),
    };
    let body = Box::pin(beginning(&mut exchange(Framing::Json))).await;
    let snippet = body.quoted(session.peer());
    refused(Cause::ContentType { found, snippet })
}

/// Whether an answer is framed as events.
pub(in crate::upstream) fn is_event_stream(head: &ResponseHead) -> bool {
    is_media_type(head.content_type.as_deref().unwrap_or_default(), b"text/event-stream")
}

/// The media type before its parameters, in any case.
fn is_media_type(value: &[u8], name: &[u8]) -> bool {
    value.split_at_checked(name.len()).is_some_and(|(start, rest)| {
        start.eq_ignore_ascii_case(name)
            && rest.first().is_none_or(|byte| matches!(byte, b';' | b' ' | b'\t'))
    })
}
