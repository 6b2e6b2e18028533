//! One HTTP request and its connection: parsed head, protocol family, principal, session and modern client.
//!
//! A modern request (MCP 2026-07-28) describes its sender in `_meta`, and its headers repeat part of the body.
//! [`KnownClient`] is only a parse cache for identical descriptions.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use mcpproxy_json::members::string;
use mcpproxy_policy::Principal;
use mcpproxy_policy::identity::CertifiedClient;
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::headers::{Form, HeaderMismatch, METHOD, NAME};
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::message::Request;
use mcpproxy_protocol::mcp::meta::{CAPABILITIES_KEY, VERSION_KEY};
use mcpproxy_protocol::mcp::revisions::{LEGACY, MODERN, ProtocolFamily};
use mcpproxy_protocol::mcp::trace_context::PropagatedContext;
use mcpproxy_protocol::mcp::{headers, jsonrpc, trace_context};
use mcpproxy_runtime::io::address::Reached;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::body::{Body, plain};
use super::in_flight::InFlight;
use super::server_endpoint;
use super::session::Session;
use super::session_table::Sessions;
use super::source::Source;
use mcpproxy_gateway::proxy::client::{Channel, Client, Endpoint, Level, Peer};
use mcpproxy_gateway::proxy::dispatch::{ClientInfo, supported};
use mcpproxy_gateway::proxy::{Worker, render};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Origin {
    #[default]
    Client,
    /// Another node of the fleet forwarded the request, which is always served here.
    Node {
        /// Whether its session is reopened here if necessary.
        reopens: bool,
    },
}

/// State of one connection between its requests.
#[derive(Debug, Default)]
pub struct ClientConnection {
    /// Whether any request was received completely on the connection.
    pub used: Cell<bool>,
    /// Address that the client connected to, if needed.
    pub came_to: RefCell<Option<Reached>>,
    pub certificate: Option<CertifiedClient>,
    /// Address that the connection is charged to.
    pub source: Source,
    /// Principal of the current request; set before it is served.
    pub principal: RefCell<Principal>,
    pub(super) origin: Origin,
    /// Last session, cached so that calls avoid the shared table.
    pub(super) session: RefCell<Option<Arc<Session>>>,
    /// Modern client of the last request, cached so that an identical description is not parsed again.
    pub(super) client: RefCell<Option<KnownClient>>,
    pub(super) in_flight: Arc<InFlight>,
    /// Head of the last request, if it was received completely.
    pub(super) known_head: RefCell<Option<KnownHead>>,
}

/// Parsed head of a request, cached so that an identical one is neither parsed nor checked again.
#[derive(Clone, Debug)]
pub(super) struct KnownHead {
    pub(super) head: RequestHead,
    /// Whether the head was matched with the connection's session.
    pub(super) matches_session: bool,
}

impl KnownHead {
    pub(super) fn of(head: &Parts) -> Self {
        Self { head: RequestHead::of(head), matches_session: false }
    }
}

impl From<Source> for ClientConnection {
    fn from(source: Source) -> Self {
        Self { source, ..Self::default() }
    }
}

impl ClientConnection {
    pub fn certified(source: Source, certificate: Option<CertifiedClient>) -> Self {
        Self { source, certificate, ..Self::default() }
    }
}

/// Request of any method with everything needed to serve it.
pub(super) struct Post<'a> {
    pub(super) worker: &'a Rc<Worker>,
    pub(super) sessions: &'a Sessions,
    pub(super) connection: &'a ClientConnection,
    pub(super) now_ms: u64,
    pub(super) head: &'a Parts,
    pub(super) endpoint: Endpoint,
    pub(super) channel: Channel,
    pub(super) principal: Principal,
    is_traced: bool,
}

impl<'a> Post<'a> {
    pub(super) fn new(
        worker: &'a Rc<Worker>,
        sessions: &'a Sessions,
        connection: &'a ClientConnection,
        now_ms: u64,
        head: &'a Parts,
        of: &RequestHead,
    ) -> Self {
        let RequestHead { endpoint, media, is_traced, .. } = of;
        let (endpoint, is_traced) = (endpoint.clone(), *is_traced);
        let channel = if media.event_stream { Channel::Stream } else { Channel::Answer };
        let principal = connection.principal.borrow().clone();
        Self { worker, sessions, connection, now_ms, head, endpoint, channel, principal, is_traced }
    }

    pub(super) fn peer(&self, session: &Session, channel: Channel) -> Peer {
        let client = Arc::clone(&session.client);
        // The principal is that of the request, not of the session: a token's scope may have changed in between.
        let principal = self.principal.clone();
        let (endpoint, trace) = (self.endpoint.clone(), self.trace());
        Peer { client, principal, endpoint, channel, headers: None, trace }
    }

    /// Trace context of the headers, if tracing is on.
    pub(super) fn trace(&self) -> Option<Box<PropagatedContext>> {
        if !self.is_traced {
            return None;
        }
        self.worker.settings().traces?;
        PropagatedContext::of_headers(&self.head.headers).map(Box::new)
    }
}

/// MCP paths: built-in tools, and direct mode, where each upstream tool has a name of its own. The variants with a
/// trailing slash exist because some clients append one.
pub const PATHS: [&str; 4] = ["/mcp", ALL_PATH, "/mcp/", ALL_PATH_SLASH];

const ALL_PATH: &str = "/mcp/all";
const ALL_PATH_SLASH: &str = "/mcp/all/";

/// Whether MCP is served at this path: one of [`PATHS`], or the path of one server.
pub fn is_mcp(path: &str) -> bool {
    PATHS.contains(&path) || path.starts_with(server_endpoint::PREFIX)
}

/// Session-independent part of a request's head.
#[derive(Clone, Debug)]
pub(super) struct RequestHead {
    pub(super) endpoint: Endpoint,
    pub(super) media: Media,
    is_json: bool,
    pub(super) family: Option<ProtocolFamily>,
    /// Whether the request carries a trace context.
    pub(super) is_traced: bool,
}

impl RequestHead {
    pub(super) fn of(head: &Parts) -> Self {
        // The endpoint of one server is set later, once a server of that name is found.
        let endpoint = match head.uri.path() {
            ALL_PATH | ALL_PATH_SLASH => Endpoint::All,
            _ => Endpoint::Search,
        };
        let headers = &head.headers;
        Self {
            endpoint,
            media: media(headers),
            is_json: is_json(headers),
            family: of_headers(headers),
            is_traced: headers.contains_key(trace_context::PARENT),
        }
    }

    /// Response to a POST that is refused before its body is read.
    pub(super) fn refusal(&self) -> Option<Response<Body>> {
        if !self.is_json {
            let text = "Content-Type must be application/json";
            return Some(plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
        let text = "Accept must include application/json";
        (!self.media.json).then(|| plain(StatusCode::NOT_ACCEPTABLE, text))
    }
}

/// Media types that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Media {
    pub(super) json: bool,
    pub(super) event_stream: bool,
}

/// Parses `Accept`; if it is absent, everything except an event stream is accepted.
pub(super) fn media(headers: &HeaderMap) -> Media {
    let mut values = headers.get_all(ACCEPT).iter().peekable();
    let mut media = Media { json: values.peek().is_none(), event_stream: false };
    for kind in values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')) {
        let (kind, parameters) = kind.split_once(';').unwrap_or((kind, ""));
        let refused =
            |parameter: &str| matches!(parameter.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
        if parameters.split(';').any(refused) {
            continue;
        }
        let is = |known: &str| kind.trim().eq_ignore_ascii_case(known);
        media.json |= is("application/json") || is("application/*") || is("*/*");
        media.event_stream |= is("text/event-stream") || is("text/*");
    }
    media
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.map(|value| value.split(';').next().unwrap_or_default().trim());
    essence.is_some_and(|value| value.eq_ignore_ascii_case("application/json"))
}

/// Protocol family according to the headers; `None` if the body decides.
pub(super) fn of_headers(headers: &HeaderMap) -> Option<ProtocolFamily> {
    let mut versions = headers.get_all(&PROTOCOL_VERSION).iter();
    if versions.any(|version| version == MODERN) {
        return Some(ProtocolFamily::Modern);
    }
    headers.contains_key(&SESSION_ID).then_some(ProtocolFamily::Legacy)
}

/// Whether a request without a session is modern if its headers do not decide.
pub(super) fn is_modern(headers: &HeaderMap, request: &Request) -> bool {
    let method = &*request.method;
    if method == "initialize" || request.id.is_none() {
        return false;
    }
    let version = headers.get(&PROTOCOL_VERSION);
    let unknown = version
        .is_some_and(|version| !LEGACY.iter().any(|known| known.as_bytes() == version.as_bytes()));
    unknown || names_revision(request) || is_modern_method(method)
}

/// Whether the request opens a session. With the modern revision in `_meta`, `initialize` is an unknown method.
pub(super) fn is_initialize(request: &Request) -> bool {
    &*request.method == "initialize" && !names_revision(request)
}

pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static(headers::PROTOCOL_VERSION);
pub(super) const SESSION_ID: HeaderName = HeaderName::from_static(headers::SESSION_ID);
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static(headers::LAST_EVENT_ID);

/// Maximum size in bytes of a client description that is cached.
const MAX_KNOWN_BYTES: usize = 4096;

/// The last client on a connection, with the members of `_meta` that described it.
#[derive(Debug)]
pub(super) struct KnownClient {
    description: Box<str>,
    client: Arc<Client>,
}

/// Reason to refuse a request for its `_meta` or headers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClientRefused {
    /// A missing or malformed member of `_meta`.
    #[error("Invalid params: {0}")]
    Meta(String),
    /// Headers and body differ.
    #[error("Header mismatch: {0}")]
    Headers(#[from] HeaderMismatch),
    /// Revision that is not served without a session.
    #[error("Unsupported protocol version")]
    Version(String),
}

impl ClientRefused {
    /// The complete error response.
    pub(super) fn answer(&self, worker: &Worker, id: Option<&[u8]>) -> Bytes {
        let text = self.to_string();
        match self {
            Self::Meta(_) => jsonrpc::error(id, Code::InvalidParams, &text),
            Self::Headers(_) => jsonrpc::error(id, Code::HeaderMismatch, &text),
            Self::Version(requested) => {
                let requested = render::shown(requested);
                let data = json!({"supported": supported(worker), "requested": requested});
                jsonrpc::error_with(id, Code::UnsupportedVersion, &text, &data)
            }
        }
    }
}

/// Members of params that describe the sender, and those that the header `Mcp-Name` repeats.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RequestParams<'a> {
    #[serde(borrow, default, rename = "_meta")]
    meta: Meta<'a>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    uri: Option<&'a RawValue>,
    #[serde(borrow, rename = "taskId")]
    task_id: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientInfo")]
    info: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/logLevel")]
    level: Option<&'a RawValue>,
}

fn text<'a>(raw: &'a RawValue) -> Option<Cow<'a, str>> {
    string(raw.get())
}

impl<'a> RequestParams<'a> {
    /// Parses the relevant members of a request's params.
    pub(super) fn read(request: &'a Request) -> Result<Self, ClientRefused> {
        match &request.params {
            None => Ok(Self::default()),
            Some(raw) => serde_json::from_slice(raw)
                .map_err(|problem| ClientRefused::Meta(problem.to_string())),
        }
    }

    pub(super) fn version(&self) -> Result<Cow<'a, str>, ClientRefused> {
        self.meta.version.and_then(text).ok_or_else(|| missing(VERSION_KEY))
    }

    /// The client that `_meta` describes.
    fn client(&self) -> Result<Client, ClientRefused> {
        let version = self.version()?;
        if version != MODERN {
            return Err(ClientRefused::Version(version.into_owned()));
        }
        let declared = self.meta.capabilities.and_then(|raw| {
            serde_json::from_str::<ClientCapabilities>(raw.get())
                .ok()
                .filter(|_| raw.get().starts_with('{'))
        });
        let client_capabilities = declared.ok_or_else(|| missing(CAPABILITIES_KEY))?;
        let info =
            self.meta.info.and_then(|raw| serde_json::from_str::<ClientInfo>(raw.get()).ok());
        let name = info.map(|info| info.name).unwrap_or_default();
        let client =
            Client::new(Arc::from(""), &name, MODERN, ProtocolFamily::Modern, client_capabilities);
        if let Some(level) = self.meta.level {
            let level: Level = serde_json::from_str(level.get())
                .map_err(|_| ClientRefused::Meta("no such log level".to_owned()))?;
            client.set_level(level);
        }
        Ok(client)
    }

    /// Reuses `known` if the description is identical; otherwise parses it and caches the client.
    pub(super) fn known(
        &self,
        known: &mut Option<KnownClient>,
    ) -> Result<Arc<Client>, ClientRefused> {
        let members = [self.meta.version, self.meta.capabilities, self.meta.info, self.meta.level];
        let parts = || members.iter().map(|part| part.map_or("", RawValue::get));
        let length: usize = parts().map(|part| part.len() + 1).sum();
        if length > MAX_KNOWN_BYTES {
            return self.client().map(Arc::new);
        }
        let same = |known: &KnownClient| {
            let mut rest = &*known.description;
            let mut next = |part: &str| {
                rest.strip_prefix(part)
                    .and_then(|left| left.strip_prefix('\0'))
                    .map(|left| rest = left)
            };
            parts().all(|part| next(part).is_some()) && rest.is_empty()
        };
        if let Some(known) = known.as_ref().filter(|known| same(known)) {
            return Ok(Arc::clone(&known.client));
        }
        let client = Arc::new(self.client()?);
        let description =
            parts().flat_map(|part| [part, "\0"]).collect::<String>().into_boxed_str();
        *known = Some(KnownClient { description, client: Arc::clone(&client) });
        Ok(client)
    }

    /// Checks that the headers match the body (MCP 2026-07-28 §Server Validation).
    pub(super) fn agree(&self, headers: &HeaderMap, method: &str) -> Result<(), ClientRefused> {
        let lines = |name: &'static str| headers.get_all(name).iter().map(|value| value.as_bytes());
        headers::agree(METHOD, Form::Plain, lines(METHOD), Some(method))?;
        let member = match headers::name_member(method) {
            Some("name") => self.name,
            Some("uri") => self.uri,
            Some(_) => self.task_id,
            None => None,
        };
        let name = member.and_then(text);
        headers::agree(NAME, Form::Encodable, lines(NAME), name.as_deref())?;
        Ok(())
    }
}

fn missing(key: &str) -> ClientRefused {
    ClientRefused::Meta(format!("_meta must hold {key}"))
}

/// Client of a request over a pipe, which has no headers; `None` for a legacy request, which does not name a revision in `_meta`.
pub(super) fn piped(request: &Request) -> Option<Result<Client, ClientRefused>> {
    let method = &*request.method;
    match RequestParams::read(request) {
        Ok(params) if params.meta.version.is_some() || is_modern_method(method) => {
            Some(params.client())
        }
        Ok(_) => None,
        Err(refused) => is_modern_method(method).then_some(Err(refused)),
    }
}

/// Whether the method exists in modern revisions only.
pub(super) fn is_modern_method(method: &str) -> bool {
    matches!(method, "server/discover" | "subscriptions/listen")
}

/// Whether the request names its revision in `_meta`, as only modern requests do.
pub(super) fn names_revision(request: &Request) -> bool {
    RequestParams::read(request).is_ok_and(|params| params.meta.version.is_some())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderValue;
    use serde_json::Value;

    use super::*;

    #[test]
    fn accept_header_is_parsed_strictly() {
        for (accept, json, event_stream) in [
            (None, true, false),
            (Some("application/json, text/event-stream"), true, true),
            (Some("Application/JSON;q=0.9,TEXT/event-stream;q=0.1"), true, true),
            (Some("*/*"), true, false),
            (Some("text/event-stream"), false, true),
            (Some("application/json;q=0, text/*"), false, true),
            (Some("application/jsonl"), false, false),
            (Some("text/html"), false, false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, HeaderValue::from_static(accept));
            }
            assert_eq!(media(&headers), Media { json, event_stream }, "{accept:?}");
        }
    }

    #[test]
    fn post_with_unacceptable_media_types_is_refused_before_its_body_is_read() {
        let status = |lines: &[(&str, &str)]| {
            let mut request = http::Request::post("/mcp");
            for (name, value) in lines {
                request = request.header(*name, *value);
            }
            let head = RequestHead::of(&request.body(()).unwrap().into_parts().0);
            head.refusal().map(|refused| refused.status().as_u16())
        };
        let json = ("content-type", "Application/JSON; charset=utf-8");
        assert_eq!(status(&[json]), None);
        assert_eq!(status(&[json, ("accept", "application/json, text/event-stream")]), None);
        assert_eq!(status(&[]), Some(415));
        assert_eq!(status(&[("content-type", "text/plain")]), Some(415));
        assert_eq!(status(&[json, ("accept", "text/event-stream")]), Some(406));
    }

    #[test]
    fn endpoint_depends_only_on_the_path() {
        for (path, endpoint) in [("/mcp", Endpoint::Search), ("/mcp/all?x=/mcp", Endpoint::All)] {
            let request = http::Request::get(path).body(()).unwrap();
            assert_eq!(RequestHead::of(&request.into_parts().0).endpoint, endpoint, "{path}");
        }
    }

    #[test]
    fn headers_decide_the_protocol_family() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            of_headers(&headers)
        };
        let (version, session) = ("mcp-protocol-version", ("mcp-session-id", "x"));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(version, "2025-11-25")]), None);
        assert_eq!(of(&[(version, "2026-07-28")]), Some(ProtocolFamily::Modern));
        assert_eq!(
            of(&[session, (version, "2026-07-28")]),
            Some(ProtocolFamily::Modern),
            "it is ignored"
        );
        assert_eq!(of(&[session, (version, "2025-11-25")]), Some(ProtocolFamily::Legacy));
        assert_eq!(of(&[session]), Some(ProtocolFamily::Legacy));
        let lines = [(version, "2025-11-25"), (version, "2026-07-28")];
        assert_eq!(of(&lines), Some(ProtocolFamily::Modern), "any header line counts");
    }

    fn request_of(method: &'static str, id: Option<&'static str>, meta: bool) -> Request {
        let params = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2099-01-01"}}"#;
        let (id, params) = (id.map(Bytes::from), meta.then(|| Bytes::from(params)));
        Request { id, method: method.into(), params }
    }

    #[test]
    fn sessionless_request_is_modern_if_headers_or_body_indicate_it() {
        let with = |version: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(version) = version {
                headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(version));
            }
            headers
        };
        let (none, old, unknown) = (with(None), with(Some("2025-06-18")), with(Some("2099-01-01")));
        let plain = request_of("tools/list", Some("1"), false);
        assert!(
            !is_modern(&none, &plain) && !is_modern(&old, &plain) && is_modern(&unknown, &plain)
        );
        assert!(is_modern(&old, &request_of("tools/list", Some("1"), true)));
        assert!(is_modern(&old, &request_of("server/discover", Some("1"), false)));
        assert!(
            !is_modern(&unknown, &request_of("initialize", Some("1"), true)),
            "it opens a session"
        );
        assert!(!is_modern(&unknown, &request_of("tools/list", None, true)), "a notification");
    }

    #[test]
    fn initialize_with_modern_revision_opens_no_session() {
        assert!(is_initialize(&request_of("initialize", Some("1"), false)));
        assert!(!is_initialize(&request_of("initialize", Some("1"), true)));
        assert!(!is_initialize(&request_of("ping", Some("1"), false)));
    }

    const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}}"#;

    fn request(method: &'static str, params: &str) -> Request {
        let params = Some(Bytes::copy_from_slice(params.as_bytes()));
        Request { id: Some(Bytes::from_static(b"1")), method: method.into(), params }
    }

    fn meta(members: &Value) -> Request {
        request("tools/list", &serde_json::json!({ "_meta": members }).to_string())
    }

    fn client(request: &Request) -> Result<Client, String> {
        RequestParams::read(request).unwrap().client().map_err(|refused| refused.to_string())
    }

    #[test]
    fn modern_request_without_revision_or_capabilities_is_refused() {
        let all = json!({VERSION_KEY: MODERN, CAPABILITIES_KEY: {"roots": {}},
            "io.modelcontextprotocol/clientInfo": {"name": "ide"},
            "io.modelcontextprotocol/logLevel": "warning"});
        let client_of = |change: &dyn Fn(&mut Value)| {
            let mut members = all.clone();
            change(&mut members);
            client(&meta(&members))
        };
        let client = client_of(&|_| {}).unwrap();
        assert_eq!((&*client.name, client.family), ("ide", ProtocolFamily::Modern));
        assert!(client.client_capabilities.roots && !client.client_capabilities.sampling);
        assert!(client.wants(Level::Warning) && !client.wants(Level::Notice));
        for (key, value, refused) in [
            (
                VERSION_KEY,
                json!(null),
                "Invalid params: _meta must hold io.modelcontextprotocol/protocolVersion",
            ),
            (
                VERSION_KEY,
                json!(7),
                "Invalid params: _meta must hold io.modelcontextprotocol/protocolVersion",
            ),
            (VERSION_KEY, json!("2025-11-25"), "Unsupported protocol version"),
            (
                CAPABILITIES_KEY,
                json!(null),
                "Invalid params: _meta must hold io.modelcontextprotocol/clientCapabilities",
            ),
            (
                CAPABILITIES_KEY,
                json!([null, null, null]),
                "Invalid params: _meta must hold io.modelcontextprotocol/clientCapabilities",
            ),
            (
                "io.modelcontextprotocol/logLevel",
                json!("loud"),
                "Invalid params: no such log level",
            ),
        ] {
            let outcome = client_of(&|members| members[key] = value.clone());
            assert_eq!(outcome.map(|_| ()).unwrap_err(), refused, "{key} {value}");
        }
        // `clientInfo` may be absent or have an unknown form.
        for info in [json!(null), json!(7), json!({"name": 7})] {
            let client = client_of(&|it| it["io.modelcontextprotocol/clientInfo"] = info.clone());
            assert_eq!(&*client.unwrap().name, "");
        }
    }

    #[test]
    fn identical_description_reuses_the_client() {
        let mut known = None;
        let mut client_of = |text: &str| {
            RequestParams::read(&request("tools/call", text)).unwrap().known(&mut known).unwrap()
        };
        let first = client_of(&format!("{{{META}}},\"name\":\"a\"}}"));
        let again = client_of(&format!("{{\"name\":\"b\",{META}}}}}"));
        assert!(Arc::ptr_eq(&first, &again), "only `_meta` describes the sender");
        let other =
            client_of(&format!("{{{META},\"io.modelcontextprotocol/logLevel\":\"error\"}}}}"));
        assert!(!Arc::ptr_eq(&first, &other) && other.wants(Level::Error));
        let back = client_of(&format!("{{{META}}}}}"));
        assert!(!Arc::ptr_eq(&first, &back), "only the last one is cached");
        let name = "x".repeat(MAX_KNOWN_BYTES);
        let long =
            format!("{{{META},\"io.modelcontextprotocol/clientInfo\":{{\"name\":\"{name}\"}}}}}}");
        assert!(!Arc::ptr_eq(&client_of(&long), &client_of(&long)), "it is too long to be cached");
        assert!(Arc::ptr_eq(&back, &client_of(&format!("{{{META}}}}}"))), "the cached one is kept");
    }

    #[test]
    fn cache_key_separates_members_of_meta() {
        let mut known = None;
        let mut client_of = |members: Value| {
            RequestParams::read(&meta(&members)).unwrap().known(&mut known).unwrap()
        };
        let info = |name: &str| json!({VERSION_KEY: MODERN, CAPABILITIES_KEY: {}, "io.modelcontextprotocol/clientInfo": {"name": name}});
        let (short, long) = (client_of(info("a")), client_of(info("ab")));
        assert_eq!((&*short.name, &*long.name), ("a", "ab"));
        // The same text is sent under another member name.
        client_of(json!({VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}));
        let moved = meta(&json!({VERSION_KEY: MODERN, "io.modelcontextprotocol/clientInfo": {}}));
        let refused = RequestParams::read(&moved).unwrap().known(&mut known).map(drop);
        assert_eq!(refused, Err(missing(CAPABILITIES_KEY)));
    }

    #[test]
    fn headers_must_repeat_method_and_name() {
        let agree = |method: &'static str, params: &str, lines: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, value.parse().unwrap());
            }
            let request = request(method, params);
            let params = RequestParams::read(&request).unwrap();
            params.agree(&headers, method).map_err(|refused| refused.to_string())
        };
        let call = r#"{"name":"t","uri":"u","taskId":"k"}"#;
        for (method, name) in [("tools/call", "t"), ("resources/read", "u"), ("tasks/get", "k")] {
            assert_eq!(agree(method, call, &[("mcp-method", method), ("mcp-name", name)]), Ok(()));
        }
        assert_eq!(agree("tools/list", call, &[("mcp-method", "tools/list")]), Ok(()));
        for (lines, refused) in [
            (&[("mcp-name", "t")][..], "Header mismatch: header mcp-method is missing"),
            (&[("mcp-method", "tools/call")], "Header mismatch: header mcp-name is missing"),
            (
                &[("mcp-method", "tools/call"), ("mcp-name", "u")],
                "Header mismatch: header mcp-name differs from the body",
            ),
            (
                &[("mcp-method", "tools/list"), ("mcp-name", "t")],
                "Header mismatch: header mcp-method differs from the body",
            ),
        ] {
            assert_eq!(agree("tools/call", call, lines).unwrap_err(), refused);
        }
    }

    #[test]
    fn piped_message_is_modern_if_it_names_its_revision_or_a_modern_method() {
        let of = |method, params: &str| piped(&request(method, params)).map(|it| it.is_ok());
        assert_eq!(of("tools/list", "{}"), None);
        assert_eq!(of("tools/list", "7"), None, "refused as a legacy request");
        assert_eq!(of("tools/list", &format!("{{{META}}}}}")), Some(true));
        assert_eq!(of("server/discover", "{}"), Some(false), "required members are missing");
        assert_eq!(of("server/discover", "7"), Some(false));
    }
}
