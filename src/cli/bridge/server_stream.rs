//! The server's own stream of messages to a client of an initialize-based revision.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use tokio::sync::mpsc;

use super::reply_messages::ServerMessage;
use super::server_session::ServerSession;
use crate::mcp::headers::{LAST_EVENT_ID, SESSION_ID};

/// How long to wait before asking for the stream again, unless the server says how long.
const STREAM_RETRY: Duration = Duration::from_secs(1);
/// Longest such wait a server may ask for.
const MAX_STREAM_RETRY: Duration = Duration::from_secs(30);

/// Opens the stream, and again whenever it ends, after its last event; hands its messages to `out`.
/// Ends when the server offers no stream, the session has no id, or nobody takes the messages.
pub(super) async fn follow(server: Rc<ServerSession>, out: mpsc::Sender<ServerMessage>) {
    let mut last_id: Option<HeaderValue> = None;
    loop {
        let mut headers = server.headers();
        let Some(used) = headers.get(SESSION_ID).cloned() else { return };
        if let Some(id) = &last_id {
            headers.insert(LAST_EVENT_ID, id.clone());
        }
        let mut retry = None;
        match server.send(Method::GET, headers, Bytes::new()).await {
            Ok(mut reply) if reply.status() == StatusCode::OK => {
                let mut messages = server.events();
                while let Ok(Some(message)) = messages.next(&mut reply).await {
                    if out.send(message).await.is_err() {
                        return;
                    }
                }
                let id = messages.last_id();
                if !id.is_empty() {
                    last_id = HeaderValue::from_bytes(id).ok();
                }
                retry = messages.retry();
            }
            Ok(reply) if reply.status() == StatusCode::NOT_FOUND => {
                last_id = None;
                if let Err(error) = server.renew(&used).await {
                    tracing::debug!("no session for the server's own stream: {error}");
                }
            }
            // It has none to offer.
            Ok(_) => return,
            Err(error) => tracing::debug!("the server's own stream cannot be opened: {error}"),
        }
        tokio::time::sleep(retry.unwrap_or(STREAM_RETRY).min(MAX_STREAM_RETRY)).await;
    }
}
