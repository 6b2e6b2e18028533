//! A client's line, as far as the bridge must know it: whom an answer is for, and which headers
//! repeat its body.
//!
//! Pure. A line that cannot be read goes to the server all the same, whose business it is to say
//! what is wrong with it.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::mcp::headers::{self, METHOD, NAME, PROTOCOL_VERSION};
use crate::mcp::jsonrpc::Envelope;

/// One line of the client's.
#[derive(Clone, Debug)]
pub(super) struct ClientMessage {
    /// The line, without its end.
    pub(super) body: Bytes,
    /// What it is.
    pub(super) kind: ClientMessageKind,
    /// The headers of the modern protocol, if the message speaks it (MCP 2026-07-28).
    pub(super) modern: Option<HeaderMap>,
}

/// What a message is for whoever carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClientMessageKind {
    /// `initialize`: it opens the session.
    Initialize(Bytes),
    /// A request; its raw id.
    Request(Bytes),
    /// A stream that is open as long as both sides like; its raw id.
    Listen(Bytes),
    /// `notifications/initialized`: the session's own stream can be opened.
    Initialized,
    /// `notifications/cancelled`, with the raw id of the request that it means.
    Cancelled(Bytes),
    /// Nothing of its own comes back: a notification.
    OneWay,
    /// The client's answer to what a server asked it.
    Response,
    /// Several messages in one, or what cannot be read; the raw ids of its requests.
    Other(Vec<Bytes>),
}

/// The members that headers repeat, and those that name a request.
#[derive(Deserialize, Default)]
struct Params<'a> {
    #[serde(borrow, rename = "_meta")]
    meta: Option<Meta<'a>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    uri: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "taskId")]
    task: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "requestId")]
    request: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Cow<'a, str>>,
}

impl ClientMessage {
    /// Reads a line.
    pub(super) fn read(body: Bytes) -> Self {
        let other =
            |ids| Self { body: body.clone(), kind: ClientMessageKind::Other(ids), modern: None };
        let slice = |raw: &RawValue| body.slice_ref(raw.get().as_bytes());
        let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(&body) else {
            let batch = serde_json::from_slice::<Vec<Envelope<'_>>>(&body).unwrap_or_default();
            let requests = batch.iter().filter(|it| it.method.is_some());
            return other(requests.filter_map(|it| it.id.map(slice)).collect());
        };
        let Some(method) = envelope.method.as_deref() else {
            return Self { kind: ClientMessageKind::Response, modern: None, body: body.clone() };
        };
        let params = envelope.params.map_or("{}", RawValue::get);
        let params = serde_json::from_str::<Params<'_>>(params).unwrap_or_default();
        let kind = match (envelope.id.map(slice), method) {
            (Some(id), "initialize") => ClientMessageKind::Initialize(id),
            (Some(id), "subscriptions/listen") => ClientMessageKind::Listen(id),
            (Some(id), _) => ClientMessageKind::Request(id),
            (None, "notifications/initialized") => ClientMessageKind::Initialized,
            (None, "notifications/cancelled") => params
                .request
                .map_or(ClientMessageKind::OneWay, |id| ClientMessageKind::Cancelled(slice(id))),
            (None, _) => ClientMessageKind::OneWay,
        };
        let modern = modern(method, &params);
        Self { body: body.clone(), kind, modern }
    }

    /// The raw ids of the requests that wait for an answer to it.
    pub(super) fn ids(&self) -> &[Bytes] {
        match &self.kind {
            ClientMessageKind::Initialize(id)
            | ClientMessageKind::Request(id)
            | ClientMessageKind::Listen(id) => std::slice::from_ref(id),
            ClientMessageKind::Other(ids) => ids,
            ClientMessageKind::Initialized
            | ClientMessageKind::Cancelled(_)
            | ClientMessageKind::OneWay
            | ClientMessageKind::Response => &[],
        }
    }
}

/// The headers that repeat a modern message.
fn modern(method: &str, params: &Params<'_>) -> Option<HeaderMap> {
    let version = params.meta.as_ref()?.version.as_deref()?;
    let name = match headers::name_member(method) {
        Some("name") => params.name.as_deref(),
        Some("uri") => params.uri.as_deref(),
        Some("taskId") => params.task.as_deref(),
        Some(_) | None => None,
    };
    let mut repeated = HeaderMap::new();
    let lines = [(PROTOCOL_VERSION, Some(version)), (METHOD, Some(method)), (NAME, name)];
    for (header, value) in lines {
        let value = value.and_then(|value| HeaderValue::from_str(&headers::encode(value)).ok());
        if let Some(value) = value {
            repeated.insert(HeaderName::from_static(header), value);
        }
    }
    Some(repeated)
}

/// Whether a server's message is a response, not a request or notification of its own.
pub(super) fn is_response(message: &[u8]) -> bool {
    serde_json::from_slice::<Envelope<'_>>(message).is_ok_and(|it| it.method.is_none())
}

/// Whether a refusal's body is a message of the protocol.
pub(super) fn is_message(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Any<'a> {
        #[serde(borrow)]
        jsonrpc: Option<Cow<'a, str>>,
    }
    serde_json::from_slice::<Any<'_>>(body).is_ok_and(|it| it.jsonrpc.as_deref() == Some("2.0"))
}

/// The revision that an answer to `initialize` settles on; `None` if it refuses.
pub(super) fn settled_version(answer: &[u8]) -> Option<HeaderValue> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        result: Option<Accepted<'a>>,
    }
    #[derive(Deserialize)]
    struct Accepted<'a> {
        #[serde(borrow, rename = "protocolVersion")]
        version: Cow<'a, str>,
    }
    let answer = serde_json::from_slice::<Answer<'_>>(answer).ok()?;
    HeaderValue::from_str(&answer.result?.version).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> ClientMessage {
        ClientMessage::read(Bytes::copy_from_slice(line.as_bytes()))
    }

    fn id(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn a_line_is_told_apart_by_what_must_come_back() {
        for (line, kind) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#,
                ClientMessageKind::Initialize(id("1")),
            ),
            (
                r#"{"id":"a\u0062","method":"tools/list"}"#,
                ClientMessageKind::Request(id(r#""a\u0062""#)),
            ),
            (r#"{"id":7,"method":"subscriptions/listen"}"#, ClientMessageKind::Listen(id("7"))),
            (r#"{"method":"notifications/initialized"}"#, ClientMessageKind::Initialized),
            (
                r#"{"method":"notifications/cancelled","params":{"requestId":12}}"#,
                ClientMessageKind::Cancelled(id("12")),
            ),
            (r#"{"method":"notifications/cancelled"}"#, ClientMessageKind::OneWay),
            (r#"{"id":3,"result":{}}"#, ClientMessageKind::Response),
            ("nonsense", ClientMessageKind::Other(vec![])),
            (
                r#"[{"id":1,"method":"ping"},{"method":"n"},{"id":2,"result":{}}]"#,
                ClientMessageKind::Other(vec![id("1")]),
            ),
        ] {
            let message = read(line);
            assert_eq!(message.kind, kind, "{line}");
            assert!(message.modern.is_none(), "{line}");
        }
    }

    #[test]
    fn a_modern_message_repeats_itself_in_headers() {
        let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        let call =
            read(&format!(r#"{{"id":1,"method":"tools/call","params":{{"name":"grün",{meta}}}}}"#));
        let headers = call.modern.unwrap();
        assert_eq!(headers["mcp-protocol-version"], "2026-07-28");
        assert_eq!(headers["mcp-method"], "tools/call");
        assert_eq!(headers["mcp-name"], "=?base64?Z3LDvG4=?=");
        let list =
            read(&format!(r#"{{"id":1,"method":"tools/list","params":{{"name":"x",{meta}}}}}"#));
        assert!(!list.modern.unwrap().contains_key("mcp-name"));
    }

    #[test]
    fn what_a_server_says_is_told_apart() {
        assert!(is_response(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
        assert!(!is_response(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#));
        assert!(is_message(br#"{"jsonrpc":"2.0","id":null,"error":{}}"#));
        assert!(!is_message(br#"{"success":false,"error":"Invalid or missing API key"}"#));
        let answer = br#"{"result":{"protocolVersion":"2025-06-18","capabilities":{}}}"#;
        assert_eq!(settled_version(answer).unwrap(), "2025-06-18");
        assert!(settled_version(br#"{"error":{}}"#).is_none());
    }
}
