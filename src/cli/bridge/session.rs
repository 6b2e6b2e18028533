//! The session of a client of an initialize-based revision: its headers, its stream, its end.
//!
//! A server that was restarted knows nothing of it. It is made anew then, with the `initialize`
//! that the client sent, unseen by the client, who has no way to do it in the middle.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::sync::Semaphore;

use super::link::Failed;
use super::reading::Gathering;
use super::{Bridge, MAX_REFUSAL_BYTES, collect, message, refused};
use crate::mcp::headers::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID};

/// How long to wait before asking for the stream again, unless the server says how long.
const STREAM_RETRY: Duration = Duration::from_secs(1);
/// Longest such wait a server may ask for.
const MAX_STREAM_RETRY: Duration = Duration::from_secs(30);
/// Time for the farewell.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);
const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// What the client and the server agreed on.
pub(super) struct Session {
    agreed: RefCell<Option<Agreed>>,
    /// One request makes it anew; the others wait for it.
    making: Semaphore,
}

struct Agreed {
    hello: Bytes,
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
}

impl Default for Session {
    fn default() -> Self {
        Self { agreed: RefCell::default(), making: Semaphore::new(1) }
    }
}

impl Session {
    /// Begins with the answer to `hello`.
    pub(super) fn begin(
        &self,
        hello: Bytes,
        id: Option<HeaderValue>,
        version: Option<HeaderValue>,
    ) {
        if version.is_some() {
            *self.agreed.borrow_mut() = Some(Agreed { hello, id, version });
        }
    }

    /// Before another `initialize`.
    pub(super) fn forget(&self) {
        *self.agreed.borrow_mut() = None;
    }

    /// The headers of a message in it.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(agreed) = &*self.agreed.borrow() {
            let lines = [(SESSION_ID, &agreed.id), (PROTOCOL_VERSION, &agreed.version)];
            for (name, value) in lines {
                if let Some(value) = value {
                    headers.insert(name, value.clone());
                }
            }
        }
        headers
    }

    fn hello(&self) -> Option<Bytes> {
        self.agreed.borrow().as_ref().map(|agreed| agreed.hello.clone())
    }

    fn is(&self, id: &HeaderValue) -> bool {
        self.agreed.borrow().as_ref().is_some_and(|agreed| agreed.id.as_ref() == Some(id))
    }

    fn version(&self) -> Option<HeaderValue> {
        self.agreed.borrow().as_ref().and_then(|agreed| agreed.version.clone())
    }
}

impl Bridge {
    /// Makes the session anew that the server knew under `stale`, unless someone else has.
    pub(super) async fn remake(self: &Rc<Self>, stale: &HeaderValue) -> Result<(), Failed> {
        let _only = self.session.making.acquire().await;
        let Some(hello) = self.session.hello().filter(|_| self.session.is(stale)) else {
            return Ok(());
        };
        let failed = |why: &str| {
            Failed::Broken(format!(
                "it has forgotten the session, and a new one was refused: {why}"
            ))
        };
        let mut reply = self.send(Method::POST, HeaderMap::new(), hello.clone()).await?;
        let status = reply.status();
        if !status.is_success() {
            let body = collect(reply, MAX_REFUSAL_BYTES).await?;
            return Err(failed(&refused(status, &body)));
        }
        let id = reply.header(SESSION_ID).cloned();
        let mut gathering = Gathering::of(&self.room, &reply);
        let answer = gathering.next(&mut reply).await.map_err(|error| failed(&error))?;
        let version = answer.and_then(|answer| message::settled_version(&answer.joined()));
        if version.is_none() || version != self.session.version() {
            return Err(failed("it speaks another revision of the protocol now"));
        }
        self.session.begin(hello, id, version);
        let ready = Bytes::from_static(INITIALIZED);
        let reply = self.send(Method::POST, self.session.headers(), ready).await?;
        collect(reply, MAX_REFUSAL_BYTES).await?;
        tracing::info!("the server was restarted; the session was made anew");
        Ok(())
    }

    /// Opens the server's own stream, and again whenever it ends.
    pub(super) fn open_stream(self: &Rc<Self>) {
        self.stop_stream();
        let bridge = Rc::clone(self);
        let task = tokio::task::spawn_local(async move { bridge.listen().await });
        *self.stream.borrow_mut() = Some(task.abort_handle());
    }

    pub(super) fn stop_stream(&self) {
        if let Some(task) = self.stream.borrow_mut().take() {
            task.abort();
        }
    }

    async fn listen(self: Rc<Self>) {
        let mut last_id: Option<HeaderValue> = None;
        loop {
            let mut headers = self.session.headers();
            let Some(used) = headers.get(SESSION_ID).cloned() else { return };
            if let Some(id) = &last_id {
                headers.insert(LAST_EVENT_ID, id.clone());
            }
            let mut retry = None;
            match self.send(Method::GET, headers, Bytes::new()).await {
                Ok(mut reply) if reply.status() == StatusCode::OK => {
                    let mut gathering = Gathering::new(&self.room, true);
                    while let Ok(Some(line)) = gathering.next(&mut reply).await {
                        if self.out.send(line).await.is_err() {
                            return;
                        }
                    }
                    let id = gathering.last_id();
                    if !id.is_empty() {
                        last_id = HeaderValue::from_bytes(id).ok();
                    }
                    retry = gathering.retry();
                }
                Ok(reply) if reply.status() == StatusCode::NOT_FOUND => {
                    last_id = None;
                    if let Err(error) = self.remake(&used).await {
                        tracing::debug!("no session for the server's own stream: {error}");
                    }
                }
                // It has none to offer.
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!("the server's own stream cannot be opened: {error}");
                }
            }
            tokio::time::sleep(retry.unwrap_or(STREAM_RETRY).min(MAX_STREAM_RETRY)).await;
        }
    }

    /// Ends the session on the server.
    pub(super) async fn farewell(&self) {
        let headers = self.session.headers();
        if headers.contains_key(SESSION_ID) {
            let farewell = self.link.send(Method::DELETE, "/mcp", headers, Bytes::new());
            let _ = tokio::time::timeout(FAREWELL_LIMIT, farewell).await;
        }
    }
}
