//! Strict parser of a client's message: request, notification or response, as slices of the body.
//!
//! Ids are the raw bytes that the peer wrote, never re-encoded. Independent of methods.

use std::borrow::Cow;

use bytes::Bytes;
use thiserror::Error;

use crate::mcp::bounds::{self, MAX_ID_BYTES, MAX_METHOD_BYTES, OverLimit};
use crate::mcp::jsonrpc::Code;
use crate::mcp::revisions::Revision;
use crate::mcp::shapes::{self, MemberMatch, MemberRefused};
use mcpproxy_json::members::{members, string};

/// Body size in bytes above which the id is copied, because the id is kept until the answer ends, and a slice would keep the whole body.
pub const SMALL_MESSAGE_BYTES: usize = 64 * 1024;

/// Request or notification of a client, as slices of the body; the id of a large body is a copy.
#[derive(Clone, Debug)]
pub struct Request {
    /// The raw id (a string with its quotes, or a number); `None` makes it a notification.
    pub id: Option<Bytes>,
    /// Name of the method; not allocated for common methods.
    pub method: Cow<'static, str>,
    /// The raw `params`, if any.
    pub params: Option<Bytes>,
}

impl Request {
    /// Copies the id, for a message that is a small part of a large body.
    pub fn copy_id(&mut self) {
        self.id = self.id.take().map(|id| Bytes::copy_from_slice(&id));
    }
}

/// Message of a client.
#[derive(Clone, Debug)]
pub enum Message {
    /// A request or a notification.
    Request(Request),
    /// A response to a request from the proxy.
    Response(Response),
}

/// Response of a client, as a slice of the body except for the member's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The raw id; an error may come without one.
    pub id: Option<Bytes>,
    /// The member `"result":…` or `"error":…`, raw.
    pub outcome: Bytes,
}

/// Reason why a body is not a message. `Display` is the text of the JSON-RPC error.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unreadable {
    #[error("Parse error: {0}")]
    NotJson(String),
    /// An array of messages: MCP has no batches since 2025-06-18.
    #[error("Invalid Request: batches are not supported, send one message at a time")]
    Batch,
    /// Valid JSON that is not a JSON-RPC message.
    #[error("Invalid Request: {0}")]
    Invalid(String),
}

impl From<OverLimit> for Unreadable {
    fn from(too_long: OverLimit) -> Self {
        Self::Invalid(too_long.to_string())
    }
}

impl Unreadable {
    /// JSON-RPC error code.
    pub fn code(&self) -> Code {
        match self {
            Self::NotJson(_) => Code::Parse,
            Self::Batch | Self::Invalid(_) => Code::InvalidRequest,
        }
    }

    fn variant(name: &str, known: &str) -> Self {
        Self::Invalid(MemberRefused::variant("", name, known).to_string())
    }
}

impl Message {
    /// Parses one message. The body must have passed `json::tape::check_unique`, which refuses duplicate keys; here only duplicates
    /// of known members are refused.
    pub fn parse(body: &Bytes) -> Result<Self, Unreadable> {
        match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'[') => return Err(Unreadable::Batch),
            Some(b'{') => {}
            Some(_) | None => return Err(Unreadable::Invalid("expected a JSON object".into())),
        }
        let broken = |_| Unreadable::NotJson("the object is malformed or truncated".into());
        let text =
            std::str::from_utf8(body).map_err(|error| Unreadable::NotJson(error.to_string()))?;
        let [mut jsonrpc, mut id, mut method, mut params, mut result, mut error] = [None; 6];
        for member in members(text).map_err(broken)? {
            let (key, value) = member.map_err(broken)?;
            let slot = match &*key {
                "jsonrpc" => &mut jsonrpc,
                "id" => &mut id,
                "method" => &mut method,
                "params" => &mut params,
                "result" => &mut result,
                "error" => &mut error,
                // A case variant would change the message for a case-insensitive reader.
                other => match shapes::find(shapes::ENVELOPE, Revision::NEWEST, other) {
                    MemberMatch::Variant(known) => return Err(Unreadable::variant(other, known)),
                    MemberMatch::Known(_) | MemberMatch::Unknown => continue,
                },
            };
            if slot.replace(value).is_some() {
                return Err(Unreadable::Invalid(format!("duplicate member '{key}'")));
            }
        }
        if jsonrpc.and_then(string).as_deref() != Some("2.0") {
            return Err(Unreadable::Invalid("jsonrpc must be \"2.0\"".into()));
        }
        let slice = |value: &str| body.slice_ref(value.as_bytes());
        let stated = |value: &&str| *value != "null";
        let Some(method) = method.filter(stated) else {
            let outcome = match (result, error.filter(stated)) {
                (Some(result), None) => ["\"result\":", result].concat(),
                (None, Some(error)) => ["\"error\":", error].concat(),
                (None, None) => return Err(Unreadable::Invalid("method is missing".into())),
                (Some(_), Some(_)) => {
                    return Err(Unreadable::Invalid("both result and error".into()));
                }
            };
            return Ok(Self::Response(Response { id: id.map(slice), outcome: outcome.into() }));
        };
        let method = string(method);
        let method = method.ok_or_else(|| Unreadable::Invalid("method must be a string".into()))?;
        bounds::within("method", &*method, MAX_METHOD_BYTES)?;
        if let Some(id) = id {
            check_id(id)?;
        }
        let method = match &*method {
            "tools/call" => Cow::Borrowed("tools/call"),
            _ => Cow::Owned(method.into_owned()),
        };
        let (id, params) = (id.map(slice), params.filter(stated).map(slice));
        let mut request = Request { id, method, params };
        if body.len() > SMALL_MESSAGE_BYTES {
            request.copy_id();
        }
        Ok(Self::Request(request))
    }
}

/// Id of a request whose body is not valid JSON. `None` for a response, or if the id cannot be read or is not valid JSON itself, so that an
/// answer with this id is always JSON.
pub fn id_of_invalid(body: &Bytes) -> Option<Bytes> {
    let Ok(Message::Request(request)) = Message::parse(body) else { return None };
    request.id.filter(|id| serde_json::from_slice::<serde_json::Value>(id).is_ok())
}

/// Checks that an id is a string or an integer, never null, as MCP requires.
fn check_id(raw: &str) -> Result<(), Unreadable> {
    let fits = match raw.as_bytes().first() {
        Some(b'"') => true,
        Some(b'-' | b'0'..=b'9') => !raw.contains(['.', 'e', 'E']),
        Some(_) | None => false,
    };
    if !fits {
        return Err(Unreadable::Invalid("id must be a string or an integer".into()));
    }
    Ok(bounds::within("id", raw, MAX_ID_BYTES)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: &'static str) -> Request {
        match Message::parse(&Bytes::from_static(body.as_bytes())) {
            Ok(Message::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    fn refused(body: &'static str) -> Code {
        match Message::parse(&Bytes::from_static(body.as_bytes())) {
            Err(unreadable) => unreadable.code(),
            Ok(message) => panic!("accepted: {message:?}"),
        }
    }

    #[test]
    fn ids_and_params_are_verbatim() {
        let got =
            request(r#"{"jsonrpc":"2.0","id": "a\u0062" ,"method":"m","params":{ "x" : 1.0 }}"#);
        assert_eq!(got.id.as_deref(), Some(&br#""a\u0062""#[..]));
        assert_eq!(got.params.as_deref(), Some(&br#"{ "x" : 1.0 }"#[..]));
        assert_eq!(&*got.method, "m");
    }

    #[test]
    fn id_of_an_invalid_body_is_valid_json_or_none() {
        let id = |text: &'static str| {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{text},"method":"m","params":{{"x":}}}}"#);
            id_of_invalid(&body.into()).map(|id| String::from_utf8(id.to_vec()).unwrap())
        };
        for valid in ["7", "-7", r#""a""#, r#""\u0061""#] {
            assert_eq!(id(valid).as_deref(), Some(valid));
        }
        for invalid in [r#""\ud800""#, r#""\q""#, "\"a\tb\"", "7x", "--7", "07", "-", "null"] {
            assert_eq!(id(invalid), None, "{invalid}");
        }
        let response = Bytes::from_static(br#"{"jsonrpc":"2.0","id":7,"result":{"x":}}"#);
        assert_eq!(id_of_invalid(&response), None);
    }

    #[test]
    fn id_is_copied_from_a_large_body_and_shared_with_a_small_body() {
        let read = |pad: usize| {
            let params = format!(r#"{{"pad":"{}"}}"#, "x".repeat(pad));
            let body = format!(r#"{{"jsonrpc":"2.0","id":"one","method":"m","params":{params}}}"#);
            let body = Bytes::from(body);
            match Message::parse(&body) {
                Ok(Message::Request(request)) => (body, request),
                other => panic!("{other:?}"),
            }
        };
        let is_of = |body: &Bytes, piece: &Bytes| body.as_ptr_range().contains(&piece.as_ptr());
        let (body, mut small) = read(1);
        assert!(is_of(&body, &small.id.clone().unwrap()));
        small.copy_id();
        let (long_body, long) = read(SMALL_MESSAGE_BYTES);
        assert!(is_of(&long_body, &long.params.unwrap()), "params are not copied");
        for (body, id) in [(body, small.id.unwrap()), (long_body, long.id.unwrap())] {
            assert_eq!(id, r#""one""#);
            assert!(!is_of(&body, &id));
        }
    }

    #[test]
    fn request_without_id_is_a_notification() {
        assert!(request(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).id.is_none());
    }

    #[test]
    fn result_without_method_is_a_response() {
        let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":7,"result":null}"#);
        let Ok(Message::Response(response)) = Message::parse(&body) else { panic!("{body:?}") };
        assert_eq!(response.id.unwrap(), "7");
        assert_eq!(response.outcome, r#""result":null"#);
        let body = Bytes::from_static(br#"{"jsonrpc":"2.0","error":{ "code":1.0},"id":"x"}"#);
        let Ok(Message::Response(response)) = Message::parse(&body) else { panic!("{body:?}") };
        assert_eq!(response.outcome, r#""error":{ "code":1.0}"#);
    }

    #[test]
    fn invalid_message_is_refused_with_its_code() {
        for (body, code) in [
            ("", Code::InvalidRequest),
            ("{", Code::Parse),
            ("[]", Code::InvalidRequest),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, Code::InvalidRequest),
            ("42", Code::InvalidRequest),
            (r#"{"id":1,"method":"ping"}"#, Code::InvalidRequest),
            (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, Code::InvalidRequest),
            (r#"{"jsonrpc":"2.0","id":1}"#, Code::InvalidRequest),
            (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#, Code::InvalidRequest),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, Code::InvalidRequest),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, Code::InvalidRequest),
            (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, Code::InvalidRequest),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, Code::InvalidRequest),
            (r#"{"jsonrpc":"2.0","id":1,"method":5}"#, Code::InvalidRequest),
            (r#"{"jsonrpc":"2.0","id":1,"method":"a","Method":"b"}"#, Code::InvalidRequest),
            (r#"{"jsonrpc":"2.0","id":1,"re\u017fult":{}}"#, Code::InvalidRequest),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"} x"#, Code::Parse),
        ] {
            assert_eq!(refused(body), code, "{body}");
        }
    }
}
