//! What every request to one server carries: the heads of its requests.
//!
//! The session's id, the version and the token come from the lifecycle and the login.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST,
    HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};

use crate::io::http1::ResponseHead;
use crate::mcp::headers;
use crate::mcp::revisions::MODERN;
use crate::upstream::connection::HttpRequest;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::error::Cause;
use crate::upstream::oauth::{Challenge, Challenges};
use crate::upstream::peer::Peer;
use crate::upstream::request::Slices;

const SESSION_ID: HeaderName = HeaderName::from_static(headers::SESSION_ID);
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static(headers::PROTOCOL_VERSION);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static(headers::LAST_EVENT_ID);

/// What every request of one session carries, built once.
#[derive(Clone)]
pub(in crate::upstream) struct Session {
    pub(in crate::upstream) endpoint: Arc<Endpoint>,
    /// Tells the pool apart: one number per upstream.
    pub(in crate::upstream) key: u64,
    headers: HeaderMap,
    /// The head of a POST up to its length, written out once.
    post_head: Bytes,
    /// Whether it carries the token of a login.
    logged_in: bool,
    /// Who hears what the server asks of its login, where it can have one.
    asked: Option<Arc<Challenges>>,
}

impl fmt::Debug for Session {
    /// Without its headers, which hold what must not be in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Session");
        shown.field("endpoint", &self.endpoint).field("logged_in", &self.logged_in);
        shown.finish_non_exhaustive()
    }
}

impl Session {
    /// A session that has not begun: no id, no version. `custom` are the operator's headers;
    /// those that the protocol needs stand above them.
    pub(in crate::upstream) fn new(
        endpoint: Arc<Endpoint>,
        key: u64,
        custom: &[(String, String)],
    ) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in custom {
            let unusable = || format!("headers.{name} cannot be sent as a header");
            let header = HeaderName::try_from(name.as_str()).map_err(|_| unusable())?;
            let mut value = HeaderValue::try_from(value.as_str()).map_err(|_| unusable())?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        headers.insert(HOST, endpoint.host_header.clone());
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Framing is the connection's, whatever the operator wrote.
        for name in [CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION] {
            headers.remove(name);
        }
        let post_head = head(&Method::POST, &endpoint, &headers).into();
        Ok(Self { endpoint, key, headers, post_head, logged_in: false, asked: None })
    }

    /// Whose session it is.
    pub(in crate::upstream) fn peer(&self) -> &Peer {
        &self.endpoint.peer
    }

    /// Enters the session id that the server gave.
    pub(in crate::upstream) fn begin(&mut self, id: &[u8]) {
        if let Ok(id) = HeaderValue::from_bytes(id) {
            self.enter(SESSION_ID, id);
        }
    }

    /// Enters the negotiated version.
    pub(in crate::upstream) fn negotiated(&mut self, version: &str) {
        if let Ok(version) = HeaderValue::from_str(version) {
            self.enter(PROTOCOL_VERSION, version);
        }
    }

    /// Enters the token of a login; it replaces the one before.
    pub(in crate::upstream) fn log_in(&mut self, bearer: HeaderValue) {
        self.logged_in = true;
        self.enter(AUTHORIZATION, bearer);
    }

    /// From now on, `asked` hears what the server asks of its login.
    pub(in crate::upstream) fn heard_by(&mut self, asked: Arc<Challenges>) {
        self.asked = Some(asked);
    }

    /// Tells what an answer asks of the login, if it does; why the request failed, then.
    pub(in crate::upstream) fn challenged(&self, head: &ResponseHead) -> Option<Cause> {
        let asked = self.asked.as_ref()?;
        let bearer = self.headers.get(AUTHORIZATION).filter(|_| self.logged_in);
        let told = head.authenticate.as_deref();
        let told = told.map(|told| self.peer().secrets.mask(told, false));
        let challenge = Challenge::read(head.status, told.as_deref(), bearer)?;
        let renewable = matches!(challenge, Challenge::Token(Some(_)));
        let reason = asked.tell(challenge);
        (!renewable).then_some(Cause::NeedsLogin { reason })
    }

    fn enter(&mut self, name: HeaderName, value: HeaderValue) {
        self.headers.insert(name, value);
        self.post_head = head(&Method::POST, &self.endpoint, &self.headers).into();
    }

    /// Whether it carries the token of a login.
    pub(in crate::upstream) fn is_logged_in(&self) -> bool {
        self.logged_in
    }

    /// What the server is expected to know of us.
    pub(in crate::upstream) fn standing(&self) -> SessionKind {
        let modern = self.headers.get(PROTOCOL_VERSION).is_some_and(|version| version == MODERN);
        match (self.has_id(), modern) {
            (_, true) => SessionKind::Modern,
            (true, false) => SessionKind::Session,
            (false, false) => SessionKind::Neither,
        }
    }

    /// Whether the server gave a session id.
    pub(in crate::upstream) fn has_id(&self) -> bool {
        self.headers.contains_key(SESSION_ID)
    }

    /// A message of this session. `lines` are further header lines of this message alone, each
    /// with its line end.
    pub(in crate::upstream) fn post(&self, lines: &[u8], body: Slices) -> HttpRequest {
        HttpRequest::new([&self.post_head, lines], body)
    }

    /// Asks for the session's own stream, from after an event if one is named.
    pub(in crate::upstream) fn get(&self, last_event_id: &[u8]) -> HttpRequest {
        let mut headers = self.headers.clone();
        headers.remove(CONTENT_TYPE);
        if let Ok(id) = HeaderValue::from_bytes(last_event_id)
            && !id.is_empty()
        {
            headers.insert(LAST_EVENT_ID, id);
        }
        HttpRequest::without_body(&head(&Method::GET, &self.endpoint, &headers))
    }

    /// Ends the session.
    pub(in crate::upstream) fn delete(&self) -> HttpRequest {
        let mut headers = self.headers.clone();
        headers.remove(CONTENT_TYPE);
        HttpRequest::without_body(&head(&Method::DELETE, &self.endpoint, &headers))
    }
}

/// What a server is expected to know of us.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum SessionKind {
    /// It gave us a session.
    Session,
    /// Every request says all there is to know.
    Modern,
    /// It gave us no session.
    Neither,
}

/// A head without its last line end. Names and values were checked when they became what they are.
fn head(method: &Method, endpoint: &Endpoint, headers: &HeaderMap) -> Vec<u8> {
    let mut head = format!("{method} {} HTTP/1.1\r\n", endpoint.path).into_bytes();
    for (name, value) in headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_shown_without_its_secrets() {
        let unused = || unreachable!("no https here");
        let endpoint =
            Endpoint::parse("http://127.0.0.1:9/mcp?key=in-url", &Arc::default(), unused).unwrap();
        let custom = [("X-Key".to_owned(), "in-header".to_owned())];
        let mut session = Session::new(Arc::new(endpoint), 0, &custom).unwrap();
        session.begin(b"in-session");
        session.log_in(HeaderValue::from_static("Bearer in-token"));
        let head = String::from_utf8(session.post_head.to_vec()).unwrap();
        let shown = format!("{session:?} {session:#?}");
        for secret in ["in-url", "in-header", "in-session", "in-token"] {
            assert!(head.contains(secret), "it is sent");
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(shown.contains("127.0.0.1:9"), "{shown}");
    }
}
