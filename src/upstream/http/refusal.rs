//! Answers that refuse: a status that is no success, and what its body says.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::exchange::{BodyEvent, HttpExchange};
use super::session::{Session, SessionKind};
use crate::io::http1::ResponseHead;
use crate::upstream::error::{Cause, Sent};
use crate::upstream::peer::Peer;

/// Most bytes of a refusal's body that are read.
pub const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// Why there is no exchange.
#[derive(Debug)]
pub(in crate::upstream) struct HttpRefused {
    pub(in crate::upstream) cause: Cause,
    pub(in crate::upstream) sent: Sent,
    /// The server does not know the session: it certainly executed nothing.
    pub(in crate::upstream) session_unknown: bool,
}

impl HttpRefused {
    pub(super) fn new(cause: Cause, sent: Sent) -> Self {
        Self { cause, sent, session_unknown: false }
    }

    pub(in crate::upstream) fn unsent(cause: Cause) -> Self {
        Self::new(cause, Sent::No)
    }
}

/// A status that is no success: a JSON-RPC error in it is an answer all the same.
pub(super) async fn refusal(
    mut exchange: HttpExchange,
    head: &ResponseHead,
    json: bool,
    of: &Session,
) -> Result<HttpExchange, HttpRefused> {
    let status = head.status;
    let body = beginning(&mut exchange).await;
    let (challenged, peer) = (of.challenged(head), of.peer());
    // Common servers say it with 400 and words.
    let in_words = || memchr::memmem::find(&body.bytes, b"ession").is_some();
    let unknown = match (status, of.standing()) {
        (404, SessionKind::Session) => true,
        // A modern server would not speak of sessions: this one has become a legacy one.
        (400, SessionKind::Session | SessionKind::Modern) => in_words(),
        // The token is no good any more: a new session has another.
        (401, _) => of.is_logged_in(),
        (_, SessionKind::Session | SessionKind::Modern | SessionKind::Neither) => false,
    };
    if json && !unknown && is_rpc_error(&body.bytes) {
        // It is an error page all the same, and may echo the request.
        let masked = peer.secrets.mask(&body.bytes, body.cut);
        if is_rpc_error(&masked) {
            return Ok(exchange.with_body(Bytes::from(masked.into_owned())));
        }
    }
    let cause = challenged.unwrap_or_else(|| Cause::Status { status, snippet: body.quoted(peer) });
    Err(HttpRefused { cause, sent: Sent::Maybe, session_unknown: unknown })
}

/// As much of the body as an error may quote or hold; what comes after it is left.
pub(super) async fn beginning(exchange: &mut HttpExchange) -> Beginning {
    let mut bytes = Vec::new();
    loop {
        match exchange.next().await {
            Ok(Some(BodyEvent::Data(data))) => {
                let room = MAX_REFUSAL_BYTES.saturating_sub(bytes.len());
                bytes.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
                if data.len() > room {
                    return Beginning { bytes, cut: true };
                }
            }
            Ok(Some(BodyEvent::End) | None) => return Beginning { bytes, cut: false },
            Err(_) => return Beginning { bytes, cut: true },
        }
    }
}

/// The beginning of a body.
pub(super) struct Beginning {
    bytes: Vec<u8>,
    /// There was more.
    cut: bool,
}

impl Beginning {
    pub(super) fn quoted(&self, peer: &Peer) -> Arc<str> {
        peer.secrets.quote_cut(&self.bytes, self.cut)
    }
}

/// Whether a refusal's body is a JSON-RPC error response.
fn is_rpc_error(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Response<'a> {
        #[serde(borrow)]
        error: Option<&'a RawValue>,
        jsonrpc: Option<&'a str>,
    }
    serde_json::from_slice::<Response<'_>>(body).is_ok_and(|response| {
        response.jsonrpc == Some("2.0")
            && response.error.is_some_and(|error| error.get().starts_with('{'))
    })
}
