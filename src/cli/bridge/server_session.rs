//! The bridge's side to the server: messages posted in the client's session, which is made anew where
//! a restarted server has forgotten it.
//!
//! The session is made anew with the `initialize` that the client sent, unseen by the client, who has
//! no way to do it in the middle.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio::sync::Semaphore;

use super::agreement::Agreement;
use super::client_message::{self, ClientMessage, ClientMessageKind};
use super::reply_messages::{LongMessages, ReplyMessages};
use crate::cli::http_client::{HttpClient, HttpReply, RequestError, hint};
use crate::downstream::api_key;
use crate::mcp::headers::SESSION_ID;

/// A server that is being restarted has this long to listen again before a request fails.
const RESTART_WAIT: Duration = Duration::from_secs(3);
/// How often a request is tried meanwhile.
const RESTART_STEP: Duration = Duration::from_millis(100);
/// Most bytes of a refusal that are read.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// Most time for the DELETE that ends the session.
const END_LIMIT: Duration = Duration::from_secs(2);
/// The key is this program's, and not the client's: its messages are nobody's, as they are with no server running.
const ON_BEHALF_OF: HeaderName = HeaderName::from_static(api_key::ON_BEHALF_OF);
const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Why a message has no reply.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    #[error("{}", .0.cause())]
    Request(#[from] RequestError),
    #[error("it has forgotten the session, and a new one was refused: {0}")]
    SessionLost(String),
    #[error("no answer in time")]
    Late,
}

/// The server, and the session with it.
pub(super) struct ServerSession {
    client: HttpClient,
    agreement: Agreement,
    long_messages: LongMessages,
    /// One request makes the session anew; the others wait for it.
    renewal: Semaphore,
}

impl ServerSession {
    /// Nothing is connected or agreed on yet.
    pub(super) fn new(client: HttpClient) -> Self {
        let (agreement, long_messages) = (Agreement::default(), LongMessages::default());
        Self { client, agreement, long_messages, renewal: Semaphore::new(1) }
    }

    /// `host:port` of the server.
    pub(super) fn authority(&self) -> &str {
        self.client.authority()
    }

    /// The headers of a message in the session; none before there is one.
    pub(super) fn headers(&self) -> HeaderMap {
        self.agreement.headers()
    }

    /// Begins with the reply to `initialize`, if `version` says that the server accepts it.
    pub(super) fn begin(
        &self,
        initialize: Bytes,
        id: Option<HeaderValue>,
        version: Option<HeaderValue>,
    ) {
        if let Some(version) = version {
            self.agreement.begin(initialize, id, version);
        }
    }

    /// Forgets the session, before another `initialize`.
    pub(super) fn forget(&self) {
        self.agreement.forget();
    }

    /// The messages of a reply.
    pub(super) fn messages(&self, reply: &HttpReply) -> ReplyMessages {
        ReplyMessages::of(&self.long_messages, reply)
    }

    /// The messages of a reply that is known to be events.
    pub(super) fn events(&self) -> ReplyMessages {
        ReplyMessages::new(&self.long_messages, true)
    }

    /// Posts a message of the client, in the session.
    pub(super) async fn post(&self, message: &ClientMessage) -> Result<HttpReply, DeliveryError> {
        let mut again = false;
        loop {
            let mut headers = self.headers();
            if let Some(modern) = &message.modern {
                headers.clone_from(modern);
            }
            if matches!(message.kind, ClientMessageKind::Initialize(_)) {
                headers.clear();
            }
            let used = headers.get(SESSION_ID).cloned();
            let reply = self.send(Method::POST, headers, message.body.clone()).await?;
            match used {
                // A server that does not know the session did nothing with the message.
                Some(stale) if reply.status() == StatusCode::NOT_FOUND && !again => {
                    refusal(reply).await?;
                    self.renew(&stale).await?;
                    again = true;
                }
                Some(_) | None => return Ok(reply),
            }
        }
    }

    /// One request; a server that is being restarted is waited for a little.
    pub(super) async fn send(
        &self,
        method: Method,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<HttpReply, RequestError> {
        let accept = match method {
            Method::GET => "text/event-stream",
            _ => "application/json, text/event-stream",
        };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.insert(ON_BEHALF_OF, HeaderValue::from_static(api_key::NOBODY));
        if method == Method::POST {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let give_up = tokio::time::Instant::now() + RESTART_WAIT;
        loop {
            let sent =
                self.client.send(method.clone(), "/mcp", headers.clone(), body.clone()).await;
            match sent {
                Err(error) if error.is_not_sent() && tokio::time::Instant::now() < give_up => {
                    tokio::time::sleep(RESTART_STEP).await;
                }
                sent => return sent,
            }
        }
    }

    /// Makes the session anew that the server knew under `stale`, unless another request has.
    pub(super) async fn renew(&self, stale: &HeaderValue) -> Result<(), DeliveryError> {
        let _only = self.renewal.acquire().await;
        let Some((initialize, agreed)) = self.agreement.of(stale) else { return Ok(()) };
        let failed = |why: &str| DeliveryError::SessionLost(why.to_owned());
        let mut reply = self.send(Method::POST, HeaderMap::new(), initialize.clone()).await?;
        let status = reply.status();
        if !status.is_success() {
            return Err(failed(&refused(status, &refusal(reply).await?)));
        }
        let id = reply.headers().get(SESSION_ID).cloned();
        let mut messages = self.messages(&reply);
        let answer = messages.next(&mut reply).await.map_err(|error| failed(&error))?;
        let version = answer.and_then(|answer| client_message::settled_version(&answer.joined()));
        let Some(version) = version.filter(|version| *version == agreed) else {
            return Err(failed("it speaks another revision of the protocol now"));
        };
        self.agreement.begin(initialize, id, version);
        let ready = Bytes::from_static(INITIALIZED);
        refusal(self.send(Method::POST, self.headers(), ready).await?).await?;
        tracing::info!("the server was restarted; the session was made anew");
        Ok(())
    }

    /// Ends the session on the server.
    pub(super) async fn end(&self) {
        let mut headers = self.headers();
        if headers.contains_key(SESSION_ID) {
            headers.insert(ON_BEHALF_OF, HeaderValue::from_static(api_key::NOBODY));
            let end = self.client.send(Method::DELETE, "/mcp", headers, Bytes::new());
            let _ = tokio::time::timeout(END_LIMIT, end).await;
        }
    }
}

/// Reads a short body whole; of one over [`MAX_REFUSAL_BYTES`] nothing.
pub(super) async fn refusal(reply: HttpReply) -> Result<Bytes, RequestError> {
    Ok(reply.body(MAX_REFUSAL_BYTES).await?.unwrap_or_default())
}

/// What a refusal says, in one line.
pub(super) fn refused(status: StatusCode, body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct ErrorBody {
        error: String,
    }
    let said = serde_json::from_slice::<ErrorBody>(body).map(|envelope| envelope.error);
    let said = said.unwrap_or_else(|_| String::from_utf8_lossy(body).trim().to_owned());
    format!("mcpproxy answered HTTP {}: {said}{}", status.as_u16(), hint(status))
}
