//! JSON-RPC 2.0: the error codes, the envelopes that are written here, and a first look at one that was read.
//!
//! Ids are kept as the raw bytes that the peer wrote and never re-spelled. Knows no method.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

/// JSON-RPC error codes in use (JSON-RPC 2.0 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Not JSON.
    Parse = -32700,
    /// JSON, but not a request.
    InvalidRequest = -32600,
    /// No such method.
    MethodNotFound = -32601,
    /// The parameters cannot be read.
    InvalidParams = -32602,
    /// Our own failure.
    Internal = -32603,
    /// Headers and body do not agree (MCP 2026-07-28 §Error Codes).
    HeaderMismatch = -32020,
    /// The client did not declare a capability that the request needs (MCP 2026-07-28 §Error Codes).
    MissingCapability = -32021,
    /// A revision that is not served (MCP 2026-07-28 §Error Codes).
    UnsupportedVersion = -32022,
}

/// Splits a batch (MCP 2025-03-26) into its messages, each a slice of the body; `None` if it is no
/// array.
#[must_use]
pub fn batch(body: &Bytes) -> Option<Vec<Bytes>> {
    let messages: Vec<&RawValue> = serde_json::from_slice(body).ok()?;
    Some(messages.into_iter().map(|raw| body.slice_ref(raw.get().as_bytes())).collect())
}

/// Any message, as far as its way depends on it. Not checked:
/// [`Message::parse`](super::message::Message::parse) is strict.
#[derive(Debug, Deserialize)]
pub struct Envelope<'a> {
    /// The raw id.
    #[serde(borrow)]
    pub id: Option<&'a RawValue>,
    /// The method; a response has none.
    #[serde(borrow)]
    pub method: Option<Cow<'a, str>>,
    /// The raw `params`.
    #[serde(borrow)]
    pub params: Option<&'a RawValue>,
}

/// What stands before a result in our envelope: `{"jsonrpc":"2.0","id":…,"result":`.
#[must_use]
pub fn result_head(id: &[u8]) -> Bytes {
    head(id, b",\"result\":")
}

/// What stands before an error object in our envelope.
#[must_use]
pub fn error_head(id: &[u8]) -> Bytes {
    head(id, b",\"error\":")
}

/// What closes either envelope.
pub const TAIL: Bytes = Bytes::from_static(b"}");

/// A whole error response. `id` is raw; `None` writes `null`, as for an unreadable request.
#[must_use]
pub fn error(id: Option<&[u8]>, code: Code, message: &str) -> Bytes {
    error_body(id, &serde_json::json!({"code": code as i32, "message": message}))
}

/// The same with `data`, for programs.
#[must_use]
pub fn error_with(id: Option<&[u8]>, code: Code, message: &str, data: &serde_json::Value) -> Bytes {
    error_body(id, &serde_json::json!({"code": code as i32, "message": message, "data": data}))
}

fn error_body(id: Option<&[u8]>, body: &serde_json::Value) -> Bytes {
    let mut out = error_head(id.unwrap_or(b"null")).to_vec();
    out.extend_from_slice(body.to_string().as_bytes());
    out.push(b'}');
    out.into()
}

/// A whole response around a result we made ourselves.
#[must_use]
pub fn response(id: &[u8], result: &[u8]) -> Bytes {
    let mut out = result_head(id).to_vec();
    out.extend_from_slice(result);
    out.push(b'}');
    out.into()
}

fn head(id: &[u8], member: &[u8]) -> Bytes {
    const START: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":";
    let mut out = Vec::with_capacity(START.len() + id.len() + member.len());
    out.extend_from_slice(START);
    out.extend_from_slice(id);
    out.extend_from_slice(member);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_are_exact() {
        assert_eq!(result_head(b"\"x\""), "{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"result\":");
        assert_eq!(
            error(None, Code::Parse, "no \"json\""),
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no \"json\""}}"#
        );
        assert_eq!(response(b"1", b"{}"), r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    }
}
