//! Idle connections of one worker to all HTTP upstreams, and the request heads of a session.
//!
//! A connection returns to the pool when its response has been read, or when only the rest of an event stream is left.
//! It is reused if no unsolicited data has arrived in the meantime.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST,
    HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};

use crate::connection::{Connection, HttpRequest, IdleStatus};
use crate::endpoint::Endpoint;
use crate::error::Cause;
use crate::oauth::{Challenge, Challenges};
use crate::request::Slices;
use crate::server_log::ServerLog;
use mcpproxy_protocol::mcp::headers;
use mcpproxy_protocol::mcp::revisions::MODERN;
use mcpproxy_protocol::wire::sse;
use mcpproxy_runtime::io::clock;
use mcpproxy_runtime::io::http1::ResponseHead;
use mcpproxy_runtime::io::line_budget::peer_line;

/// Maximum number of idle connections per upstream and worker.
pub const MAX_IDLE: usize = 64;
/// Maximum idle time of a connection. Less than the 5 s after which common servers close connections, so that calls
/// rarely hit a closing connection.
pub const MAX_IDLE_AGE: Duration = Duration::from_secs(4);
/// Maximum number of bytes read from the rest of an event stream in order to reuse its connection.
const MAX_DRAIN_BYTES: usize = 64 * 1024;

/// One worker's connections to all HTTP upstreams. Not `Send`.
#[derive(Default)]
pub struct Pool {
    idle: RefCell<BTreeMap<u64, Vec<Idle>>>,
}

struct Idle {
    connection: Box<Connection>,
    /// Decoder for the rest of an event stream whose response was read.
    rest: Option<Box<sse::Decoder>>,
    since: Instant,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} idle)", self.idle())
    }
}

impl Pool {
    pub fn new() -> Self {
        Self::default()
    }

    /// Closes expired connections. Must be called periodically; [`take`](Self::take) does the same for its own
    /// upstream.
    pub fn sweep(&self) {
        let now = clock::now();
        self.idle.borrow_mut().retain(|_, list| {
            list.retain(|idle| now.duration_since(idle.since) < MAX_IDLE_AGE);
            !list.is_empty()
        });
    }

    pub(crate) fn idle(&self) -> usize {
        self.idle.borrow().values().map(Vec::len).sum()
    }

    /// Takes the most recently used connection that is reusable. A connection whose stream has not ended remains in the
    /// pool.
    pub(super) fn take(&self, session: &Session, now: Instant) -> Option<Box<Connection>> {
        let mut idle = self.idle.borrow_mut();
        let list = idle.get_mut(&session.key)?;
        let mut at = list.len();
        while at > 0 {
            at -= 1;
            let last = list.get_mut(at)?;
            if now.duration_since(last.since) >= MAX_IDLE_AGE {
                // The preceding connections are older.
                list.drain(..=at);
                return None;
            }
            match last.check() {
                IdleCheck::Reusable => return Some(list.remove(at).connection),
                IdleCheck::Closed => drop(list.remove(at)),
                IdleCheck::Unsolicited => {
                    drop(list.remove(at));
                    let server_log = session.server_log();
                    peer_line!(warn, server_log, server = %server_log.name, "closed a connection with unsolicited data");
                }
                IdleCheck::Draining => {}
            }
        }
        None
    }

    pub(super) fn put(
        &self,
        key: u64,
        mut connection: Box<Connection>,
        rest: Option<Box<sse::Decoder>>,
    ) {
        connection.release_memory();
        let mut idle = self.idle.borrow_mut();
        let list = idle.entry(key).or_default();
        if list.len() >= MAX_IDLE {
            list.remove(0);
        }
        list.push(Idle { connection, rest, since: clock::lately() });
    }
}

/// State of a pooled connection.
enum IdleCheck {
    Reusable,
    Draining,
    Closed,
    /// The connection delivered unsolicited data: a response before its request, or a second one.
    Unsolicited,
}

impl Idle {
    fn check(&mut self) -> IdleCheck {
        let mut cx = Context::from_waker(Waker::noop());
        let mut read = 0;
        if self.rest.as_mut().is_some_and(|rest| !is_silent(rest)) {
            return IdleCheck::Unsolicited;
        }
        // The end of an event stream may still be unread after its last message.
        while !self.connection.has_ended() {
            match self.connection.poll_body(&mut cx) {
                Poll::Pending => return IdleCheck::Draining,
                Poll::Ready(None) => break,
                Poll::Ready(Some(Ok(data))) if read + data.len() <= MAX_DRAIN_BYTES => {
                    read += data.len();
                    let Some(rest) = &mut self.rest else { return IdleCheck::Unsolicited };
                    rest.push(data);
                    if !is_silent(rest) {
                        return IdleCheck::Unsolicited;
                    }
                }
                Poll::Ready(Some(Ok(_) | Err(_))) => return IdleCheck::Closed,
            }
        }
        match self.connection.check_idle() {
            IdleStatus::Silent => IdleCheck::Reusable,
            IdleStatus::Closed => IdleCheck::Closed,
            IdleStatus::Unsolicited => IdleCheck::Unsolicited,
        }
    }
}

/// Whether the rest of an event stream contains no more messages.
fn is_silent(rest: &mut sse::Decoder) -> bool {
    loop {
        match rest.next_item() {
            Ok(None) => return true,
            // An event without data only carries an id.
            Ok(Some(sse::Item::End)) => {}
            Ok(Some(sse::Item::Data(_))) | Err(_) => return false,
        }
    }
}

const SESSION_ID: HeaderName = HeaderName::from_static(headers::SESSION_ID);
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static(headers::PROTOCOL_VERSION);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static(headers::LAST_EVENT_ID);

/// Headers of all requests of one session, serialized once.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) endpoint: Arc<Endpoint>,
    /// Key of the upstream in the pool.
    pub(crate) key: u64,
    headers: HeaderMap,
    /// Serialized head of a POST without `content-length`.
    post_head: Bytes,
    /// Whether requests carry the token of a login.
    logged_in: bool,
    /// Receives the server's authentication challenges.
    challenges: Option<Arc<Challenges>>,
}

impl fmt::Debug for Session {
    /// Hides the headers, which contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Session");
        shown.field("endpoint", &self.endpoint).field("logged_in", &self.logged_in);
        shown.finish_non_exhaustive()
    }
}

impl Session {
    /// Session without id and version. `custom` holds the operator's headers; protocol headers take precedence.
    pub(crate) fn new(
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
        if let Some((name, _)) = endpoint.proxy_authorization() {
            headers.remove(name);
        }
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Framing headers are set by the connection.
        for name in [CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION] {
            headers.remove(name);
        }
        let post_head = head(&Method::POST, &endpoint, &headers).into();
        Ok(Self { endpoint, key, headers, post_head, logged_in: false, challenges: None })
    }

    pub(crate) fn server_log(&self) -> &ServerLog {
        &self.endpoint.server_log
    }

    /// Sends later requests to another endpoint of the server.
    pub(crate) fn move_to(&mut self, endpoint: Arc<Endpoint>) {
        let host = endpoint.host_header.clone();
        self.endpoint = endpoint;
        self.enter(HOST, host);
    }

    /// Sets the session id assigned by the server.
    pub(crate) fn begin(&mut self, id: &[u8]) {
        if let Ok(id) = HeaderValue::from_bytes(id) {
            self.enter(SESSION_ID, id);
        }
    }

    /// Sets the negotiated version.
    pub(crate) fn negotiated(&mut self, version: &str) {
        if let Ok(version) = HeaderValue::from_str(version) {
            self.enter(PROTOCOL_VERSION, version);
        }
    }

    /// Sets or replaces the token of a login.
    pub(crate) fn log_in(&mut self, bearer: HeaderValue) {
        self.logged_in = true;
        self.enter(AUTHORIZATION, bearer);
    }

    /// Reports further authentication challenges to `challenges`.
    pub(crate) fn report_challenges_to(&mut self, challenges: Arc<Challenges>) {
        self.challenges = Some(challenges);
    }

    /// Reports the authentication challenge of a response, if any. Returns the cause if renewing the token cannot help.
    pub(crate) fn challenged(&self, head: &ResponseHead) -> Option<Cause> {
        let challenges = self.challenges.as_ref()?;
        let bearer = self.headers.get(AUTHORIZATION).filter(|_| self.logged_in);
        let header = head.authenticate.as_deref();
        let header = header.map(|header| self.server_log().secrets.mask(header, false));
        let challenge = Challenge::read(head.status, header.as_deref(), bearer)?;
        let renewable = matches!(challenge, Challenge::Token(Some(_)));
        let reason = challenges.record(challenge);
        (!renewable).then_some(Cause::NeedsLogin { reason })
    }

    fn enter(&mut self, name: HeaderName, value: HeaderValue) {
        self.headers.insert(name, value);
        self.post_head = head(&Method::POST, &self.endpoint, &self.headers).into();
    }

    pub(crate) fn is_logged_in(&self) -> bool {
        self.logged_in
    }

    pub(crate) fn kind(&self) -> SessionKind {
        let modern = self.headers.get(PROTOCOL_VERSION).is_some_and(|version| version == MODERN);
        match (self.has_id(), modern) {
            (_, true) => SessionKind::Modern,
            (true, false) => SessionKind::Session,
            (false, false) => SessionKind::Neither,
        }
    }

    /// Whether the server assigned a session id.
    pub(crate) fn has_id(&self) -> bool {
        self.headers.contains_key(SESSION_ID)
    }

    /// POST of this session. `lines` are additional header lines, each with its line break.
    pub(crate) fn post(&self, lines: &[u8], body: Slices) -> HttpRequest {
        HttpRequest::new([&self.post_head, lines], body)
    }

    /// GET of the session's own stream, resumed after an event if one is given.
    pub(crate) fn get(&self, last_event_id: &[u8]) -> HttpRequest {
        let mut headers = self.headers.clone();
        headers.remove(CONTENT_TYPE);
        if let Ok(id) = HeaderValue::from_bytes(last_event_id)
            && !id.is_empty()
        {
            headers.insert(LAST_EVENT_ID, id);
        }
        HttpRequest::without_body(&head(&Method::GET, &self.endpoint, &headers))
    }

    pub(crate) fn delete(&self) -> HttpRequest {
        let mut headers = self.headers.clone();
        headers.remove(CONTENT_TYPE);
        HttpRequest::without_body(&head(&Method::DELETE, &self.endpoint, &headers))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionKind {
    /// The server assigned a session id.
    Session,
    /// Stateless: every request is self-contained.
    Modern,
    /// Legacy without a session id.
    Neither,
}

/// Serializes a head without its last line break. Names and values are valid by type.
fn head(method: &Method, endpoint: &Endpoint, headers: &HeaderMap) -> Vec<u8> {
    let mut head = format!("{method} {} HTTP/1.1\r\n", endpoint.path).into_bytes();
    for (name, value) in endpoint.proxy_authorization().into_iter().chain(headers) {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_runtime::io::egress_proxy::Egress;

    fn endpoint(url: &str, egress: &Egress) -> Endpoint {
        let unused = || unreachable!("no https here");
        Endpoint::parse(url, &Arc::default(), egress, unused).unwrap()
    }

    #[test]
    fn net_9_forwarded_requests_are_in_absolute_form_with_credentials() {
        let egress = Egress::parse(Some("http://u:pw@p:3128"), "proxy").unwrap();
        let custom = [("Proxy-Authorization".to_owned(), "custom".to_owned())];
        for (egress, line, credentials) in [
            (egress, "POST http://a.example:81/mcp?k=v HTTP/1.1\r\n", "Basic dTpwdw=="),
            (Egress::Direct, "POST /mcp?k=v HTTP/1.1\r\n", "custom"),
        ] {
            let endpoint = endpoint("http://a.example:81/mcp?k=v", &egress);
            let session = Session::new(Arc::new(endpoint), 0, &custom).unwrap();
            let head = String::from_utf8(session.post_head.to_vec()).unwrap();
            assert!(head.starts_with(line), "{head}");
            assert!(head.contains("\r\nhost: a.example:81\r\n"), "{head}");
            let header = format!("\r\nproxy-authorization: {credentials}\r\n");
            assert!(head.contains(&header), "{head}");
        }
    }

    #[test]
    fn session_debug_output_hides_secrets() {
        let endpoint = endpoint("http://127.0.0.1:9/mcp?key=in-url", &Egress::Direct);
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
