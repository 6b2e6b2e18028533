//! Taking up an event stream that ended before its answer: GET with the id of its last event (MCP
//! 2025-11-25 §Resumability and Redelivery).
//!
//! A server may close a stream at any time and be polled instead. What it said before its last
//! event's id is not said again, and the request itself is never repeated. Bounded by the limit of
//! the message that is waited for, and by [`MAX_RESUMES`]. The other side, a client that takes up a stream of
//! ours, is `downstream::resume`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use super::exchange::{HttpExchange, Limits};
use super::send::fresh;
use super::session::Session;
use crate::io::deadline::Allowance;
use crate::upstream::error::Cause;

/// Most times that one answer's stream is taken up again.
const MAX_RESUMES: u32 = 10_000;
/// Most attempts in a row that find no server, or one that is out of order.
const MAX_FAILURES: u32 = 5;
/// How long to wait before a stream is taken up again, unless its server says how long.
const RETRY: Duration = Duration::from_secs(1);
/// Shortest such wait, whatever its server says.
const MIN_RETRY: Duration = Duration::from_millis(50);

/// How far a stream has come.
#[derive(Clone, Debug, Default)]
pub(in crate::upstream) struct Cursor {
    /// Of its last event; never empty, and fit for a header.
    id: Vec<u8>,
    retry: Option<Duration>,
    /// How often it was taken up again.
    times: u32,
}

/// The stream, and how far it had come.
type Resumed = Result<(HttpExchange, Box<Cursor>), Cause>;

/// A stream that is being taken up again.
pub(in crate::upstream) struct Resuming {
    attempts: Pin<Box<dyn Future<Output = Resumed>>>,
    /// The time that its next message has to begin in.
    time: Allowance,
}

impl Cursor {
    /// How far `stream`, which has ended, had come; `before` is how far when it was taken up. None
    /// for what cannot be taken up again: a stream without an event's id.
    pub(in crate::upstream) fn of(
        stream: &HttpExchange,
        before: Option<Box<Self>>,
    ) -> Option<Box<Self>> {
        let last_id = stream.last_id()?;
        let mut cursor = match before {
            Some(cursor) => cursor,
            None if last_id.is_empty() => return None,
            None => Box::default(),
        };
        if !last_id.is_empty() {
            cursor.id = last_id;
        }
        cursor.retry = stream.retry().map(Duration::from_millis).or(cursor.retry);
        HeaderValue::from_bytes(&cursor.id).is_ok().then_some(cursor)
    }
}

impl Resuming {
    /// Takes up again what `ended`; `session` is asked before each attempt, and has none when the
    /// connection to the server is another.
    pub(in crate::upstream) fn begin(
        ended: &HttpExchange,
        cursor: Box<Cursor>,
        session: impl Fn() -> Option<Arc<Session>> + 'static,
    ) -> Self {
        let time = ended.wait();
        Self { attempts: Box::pin(attempts(cursor, time.whole, session)), time }
    }

    /// The stream and how far it had come. Safe to drop and ask again.
    pub(in crate::upstream) async fn resumed(&mut self) -> Resumed {
        match tokio::time::timeout_at(self.time.until.into(), &mut self.attempts).await {
            Ok(Ok((mut stream, cursor))) => {
                stream.wait_until(self.time);
                Ok((stream, cursor))
            }
            Ok(Err(cause)) => Err(cause),
            Err(_) => Err(Cause::NoAnswer { limit: self.time.whole }),
        }
    }

    /// Its next message has to begin in what is left of that time.
    pub(in crate::upstream) fn wait_until(&mut self, time: Allowance) {
        self.time = time;
    }
}

async fn attempts(
    mut cursor: Box<Cursor>,
    answer: Duration,
    session: impl Fn() -> Option<Arc<Session>>,
) -> Resumed {
    let failed = |why: &str| Cause::NoAnswerAtAll {
        reason: format!("its stream could not be taken up again: {why}").into(),
    };
    let mut failures = 0;
    while cursor.times < MAX_RESUMES {
        cursor.times += 1;
        tokio::time::sleep(cursor.retry.unwrap_or(RETRY).max(MIN_RETRY)).await;
        let session = session().ok_or_else(|| failed("the session is over"))?;
        let cause = match fresh(&session, &session.get(&cursor.id), Limits::now(answer)).await {
            Ok(stream) if stream.is_event_stream() => return Ok((stream, cursor)),
            Ok(_) => return Err(failed("the server answered with no event stream")),
            Err(refused) => refused.cause,
        };
        failures += 1;
        if failures == MAX_FAILURES || !may_pass(&cause) {
            return Err(failed(&cause.to_string()));
        }
    }
    Err(failed(&format!("it ended {MAX_RESUMES} times")))
}

/// Whether the next attempt may go better. A server may not have noticed yet that the connection
/// before is gone (409).
fn may_pass(cause: &Cause) -> bool {
    match cause {
        Cause::Status { status, .. } => matches!(status, 409 | 429 | 500..=599),
        Cause::Connect { .. } | Cause::NoAnswerAtAll { .. } | Cause::CutOff { .. } => true,
        _ => false,
    }
}
