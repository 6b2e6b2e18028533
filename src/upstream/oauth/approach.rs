//! The first requests to a server, sent without a token: whether it asks for a login, and how.
//!
//! A server may let everyone initialize and ask for a login at what comes after, and in which of
//! the two eras it does is not known yet. Nothing is sent that changes anything: a server that
//! asks at calls alone is known by what it publishes about its login, not by a call.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, WWW_AUTHENTICATE};
use http::response::Parts;
use http::{Method, Request, StatusCode};
use serde_json::json;
use url::Url;

use super::client::LoginClient;
use crate::mcp::headers;
use crate::mcp::revisions::{Era, MODERN, NEWEST_LEGACY};
use crate::upstream::request::Params;

const LIST: &str = "tools/list";
const READY: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// What a server said to someone without a token.
#[derive(Debug)]
pub(super) struct Answered {
    /// To the first message.
    pub(super) status: StatusCode,
    /// What it asks for, if it asks for a login: its `WWW-Authenticate`, empty if it has none.
    pub(super) challenge: Option<String>,
}

/// Asks until the server asks for a login, or lists its tools without. The error is one line: the
/// server cannot be reached.
pub(super) async fn approach(
    client: &LoginClient,
    url: &Url,
    headers: &[(String, String)],
) -> Result<Answered, String> {
    let approach = Approach { client, url, headers };
    let us = json!({"name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")});
    let params = json!({"protocolVersion": NEWEST_LEGACY, "capabilities": {}, "clientInfo": us});
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
    let first = approach.post(hello.to_string().into_bytes(), &[]).await?;
    let status = first.status;
    let challenge = match challenge(&first) {
        Some(challenge) => Some(challenge),
        None => approach.list(&first.headers, status.is_success()).await,
    };
    Ok(Answered { status, challenge })
}

struct Approach<'a> {
    client: &'a LoginClient,
    url: &'a Url,
    headers: &'a [(String, String)],
}

impl Approach<'_> {
    /// Asks for the list of tools, in the session that was begun and then as of 2026-07-28.
    async fn list(&self, begun: &HeaderMap, initialized: bool) -> Option<String> {
        let list = |era| {
            let (first, rest) = Params::of(LIST, Bytes::from_static(b"{}")).body(1, era);
            [&first, &*rest.concat()].concat()
        };
        let asked = async |message: Vec<u8>, own: &[(&str, &str)]| {
            self.post(message, own).await.ok().as_ref().and_then(challenge)
        };
        if initialized {
            let session = begun.get(headers::SESSION_ID).and_then(|id| id.to_str().ok());
            let session: Vec<_> = session.map(|id| (headers::SESSION_ID, id)).into_iter().collect();
            let mut found = asked(READY.to_vec(), &session).await;
            if found.is_none() {
                found = asked(list(Era::Legacy), &session).await;
            }
            if !session.is_empty() {
                // The session is not needed any more; whether that is heard does not matter.
                let _ = self.send(Method::DELETE, Vec::new(), &session).await;
            }
            if found.is_some() {
                return found;
            }
        }
        let modern = [(headers::PROTOCOL_VERSION, MODERN), (headers::METHOD, LIST)];
        asked(list(Era::Modern), &modern).await
    }

    async fn post(&self, message: Vec<u8>, own: &[(&str, &str)]) -> Result<Parts, String> {
        self.send(Method::POST, message, own).await
    }

    async fn send(
        &self,
        method: Method,
        body: Vec<u8>,
        own: &[(&str, &str)],
    ) -> Result<Parts, String> {
        let mut request = Request::builder().method(method).uri(self.url.as_str());
        request = request.header(CONTENT_TYPE, "application/json");
        let operators = self.headers.iter().map(|(name, value)| (&**name, &**value));
        for (name, value) in operators.chain(own.iter().copied()) {
            request = request.header(name, value);
        }
        let request = request.body(body).map_err(|error| error.to_string())?;
        self.client.ask(request).await
    }
}

/// What an answer asks for, if it asks for a login.
fn challenge(head: &Parts) -> Option<String> {
    (head.status == StatusCode::UNAUTHORIZED).then(|| {
        let all = head.headers.get_all(WWW_AUTHENTICATE).iter();
        all.filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(", ")
    })
}
