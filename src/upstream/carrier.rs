//! What carries messages to a server that was connected, and the requests beside the calls that go
//! over it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::answer::AnswerPart;
use super::error::Cause;
use super::http::{self, Session};
use super::notification_router::NotificationRouter;
use super::request::Params;
use super::request_ids;
use super::stdio::{self, ChildLink};
use crate::io::deadline::Allowance;
use crate::mcp::revisions::Era;
use crate::wire::lines;

/// A connection that calls may use.
pub(super) struct LiveConnection {
    /// Counts connections, so that a report about an old one is known as such.
    pub(super) generation: u64,
    pub(super) era: Era,
    pub(super) link: Carrier,
    /// The calls over HTTP that can be reached beside their own streams.
    pub(super) router: Arc<NotificationRouter>,
}

/// What carries messages.
#[derive(Clone)]
pub(super) enum Carrier {
    Http(Arc<Session>),
    Stdio(Arc<ChildLink>),
}

impl Carrier {
    /// One request beside the calls: the response's bytes, at most `room`.
    pub(super) async fn fetch(
        &self,
        params: Params,
        era: Era,
        limit: Duration,
        room: usize,
    ) -> Result<Vec<u8>, Cause> {
        let link = match self {
            Self::Http(session) => {
                return http::fetch(session, request_ids::fresh(), params, era, limit, room).await;
            }
            Self::Stdio(link) => link,
        };
        let line = |id| params.line(id, era);
        let mut call = stdio::StdioCall::begin(link, line, Allowance::now(limit), None)
            .await
            .map_err(|(cause, _)| cause)?;
        let mut message = Vec::new();
        while let Some(part) = call.next().await? {
            match part {
                AnswerPart::End => return Ok(message),
                AnswerPart::Data(data) if message.len() + data.len() > room => {
                    return Err(Cause::TooLong { limit: room });
                }
                AnswerPart::Data(data) => message.extend_from_slice(&data),
            }
        }
        Err(Cause::NoAnswerAtAll { reason: "".into() })
    }

    /// Sends a client's answer to the server that asked; `id` and `outcome` are raw.
    pub(super) async fn respond(self, id: Bytes, outcome: Bytes, limit: Duration) {
        let json = [br#"{"jsonrpc":"2.0","id":"#, &*id, b",", &*outcome, b"}"].concat();
        match self {
            Self::Http(session) => http::notify(&session, json.into()).await,
            Self::Stdio(link) => {
                // Without a connection there is nobody to tell.
                let _ = link.send(lines::one_line(json.into()).into(), limit).await;
            }
        }
    }
}
