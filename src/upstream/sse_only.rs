//! Tells a server of the first HTTP transport (HTTP+SSE, 2024-11-05) apart.
//!
//! That transport is not spoken here: it has two endpoints and one stream for all answers. A server
//! that has nothing else is to fail with words that say so and what to do, instead of a bare 405.

use std::future::poll_fn;
use std::time::Duration;

use super::http::{self, Limits, Session};
use crate::wire::sse::{Decoder, Item};

/// Most bytes that are read for its first event.
const MAX_BYTES: usize = 16 * 1024;
/// Longest wait for it.
const LIMIT: Duration = Duration::from_secs(5);

/// Whether a GET to the server's URL opens a stream whose first event is `endpoint`
/// (MCP 2026-07-28 §HTTP+SSE Transport).
pub(super) async fn is(session: &Session, limit: Duration) -> bool {
    tokio::time::timeout(LIMIT.min(limit), looks(session)).await.unwrap_or(false)
}

async fn looks(session: &Session) -> bool {
    let Ok((mut connection, head)) =
        http::send(session, &session.get(b""), Limits::now(LIMIT)).await
    else {
        return false;
    };
    if head.status != 200 || !http::is_event_stream(&head) {
        return false;
    }
    let mut decoder = Decoder::new();
    let mut read = 0;
    while let Some(Ok(data)) = poll_fn(|cx| connection.poll_body(cx)).await {
        read += data.len();
        if read > MAX_BYTES {
            return false;
        }
        decoder.push(data);
        loop {
            match decoder.next_item() {
                Ok(Some(Item::Data(_))) => {}
                Ok(Some(Item::End)) => return decoder.event() == b"endpoint",
                Ok(None) => break,
                Err(_) => return false,
            }
        }
    }
    false
}
