//! JSON-RPC 2.0: error codes, envelopes of the proxy's own messages, and a routing view of a received message.
//!
//! Ids are the raw bytes that the peer wrote, never re-encoded. Independent of methods.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use mcpproxy_json::members::{member, members, string};

/// JSON-RPC error codes in use (JSON-RPC 2.0 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Parse = -32700,
    /// Valid JSON that is not a request.
    InvalidRequest = -32600,
    MethodNotFound = -32601,
    /// Invalid parameters.
    InvalidParams = -32602,
    Internal = -32603,
    /// Temporary refusal: retry later (JSON-RPC 2.0 §5.1, server error).
    Throttled = -32000,
    /// Mismatch of headers and body (MCP 2026-07-28 §Error Codes).
    HeaderMismatch = -32020,
    /// The client did not declare a capability that the request needs (MCP 2026-07-28 §Error Codes).
    MissingCapability = -32021,
    /// Unsupported revision (MCP 2026-07-28 §Error Codes).
    UnsupportedVersion = -32022,
}

/// Splits a batch (MCP 2025-03-26) into its messages, each a slice of the body; `None` if the body is not an array.
pub fn batch(body: &Bytes) -> Option<Vec<Bytes>> {
    let messages: Vec<&RawValue> = serde_json::from_slice(body).ok()?;
    Some(messages.into_iter().map(|raw| body.slice_ref(raw.get().as_bytes())).collect())
}

/// Routing view of a message. Lenient; [`Message::parse`](super::message::Message::parse) is strict.
#[derive(Debug, Deserialize)]
pub struct Envelope<'a> {
    #[serde(borrow)]
    pub id: Option<&'a RawValue>,
    /// The method; absent in a response.
    #[serde(borrow)]
    pub method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub params: Option<&'a RawValue>,
}

/// Maximum length of an id that [`numeric_id`] reads, as written.
pub const MAX_NUMERIC_ID_BYTES: usize = 64;

/// Integer value of a raw id: a number in any spelling (`5`, `5.0`, `5e0`), or a string that contains one. Servers that
/// keep ids as doubles or strings answer in these forms. `None` for any other id.
pub fn numeric_id(raw: &[u8]) -> Option<u64> {
    if raw.len() > MAX_NUMERIC_ID_BYTES {
        return None;
    }
    let text = std::str::from_utf8(raw).ok()?;
    let text = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    // Excludes signs and the names of special values, which the parsers below accept.
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().or_else(|| whole(text.parse().ok()?))
}

/// The value as an integer, if it is an integer that a double represents exactly.
fn whole(value: f64) -> Option<u64> {
    const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
    ((0.0..=MAX_EXACT).contains(&value) && value.fract() == 0.0).then_some(value as u64)
}

/// Completes an error object that lacks an integer `code` or a string `message`; `None` if it has both. Clients discard
/// a response whose error they cannot read, and some of them then wait until their time limit. Other members keep their
/// bytes.
pub fn conforming_error(error: &str) -> Option<String> {
    const NO_MESSAGE: &str = "\"the server's error has no message\"";
    let all: Vec<_> = members(error).ok()?.collect::<Result<_, _>>().ok()?;
    let is_integer = |raw: &str| {
        let digits = raw.strip_prefix('-').unwrap_or(raw);
        digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let own = |name: &str| all.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
    let code = own("code").filter(|raw| is_integer(raw));
    let message = own("message").filter(|raw| string(raw).is_some());
    if code.is_some() && message.is_some() {
        return None;
    }
    let internal = (Code::Internal as i32).to_string();
    let (code, message) = (code.unwrap_or(&internal), message.unwrap_or(NO_MESSAGE));
    let mut conforming = format!(r#"{{"code":{code},"message":{message}"#);
    for (key, value) in all {
        if !matches!(&*key, "code" | "message") {
            // Infallible: writing to a String.
            let _ = write!(conforming, ",{}:{value}", serde_json::Value::from(&*key));
        }
    }
    conforming.push('}');
    Some(conforming)
}

/// Code of a missing resource in the legacy revisions.
const RESOURCE_NOT_FOUND: &str = "-32002";
/// Error code in MCP 2025-11-25 for a request whose client must open a URL first.
const URL_ELICITATION_REQUIRED: &str = "-32042";

/// Whether the error requires the client to open a URL first.
pub fn requires_url_elicitation(error: &str) -> bool {
    error.contains(URL_ELICITATION_REQUIRED)
        && member(error, "code") == Some(URL_ELICITATION_REQUIRED)
}

/// Replaces an error code that the modern revision has retired (MCP 2026-07-28 §Error Codes); `None` for any other
/// code. A missing resource becomes an invalid parameter (SEP-2164). A URL to be opened first has no counterpart and
/// becomes an internal error. Everything else keeps its bytes.
pub fn modern_error(error: &str) -> Option<String> {
    let raw = member(error, "code")?;
    let code = match raw {
        RESOURCE_NOT_FOUND => Code::InvalidParams,
        URL_ELICITATION_REQUIRED => Code::Internal,
        _ => return None,
    };
    let at = raw.as_ptr().addr().checked_sub(error.as_ptr().addr())?;
    let (before, after) = (error.get(..at)?, error.get(at + raw.len()..)?);
    Some(format!("{before}{}{after}", code as i32))
}

/// Envelope before a result: `{"jsonrpc":"2.0","id":…,"result":`.
pub fn result_head(id: &[u8]) -> Bytes {
    head(id, b",\"result\":")
}

/// Envelope before an error object.
pub fn error_head(id: &[u8]) -> Bytes {
    head(id, b",\"error\":")
}

/// End of either envelope.
pub const TAIL: Bytes = Bytes::from_static(b"}");

/// Complete error response. `id` is raw; `None` writes `null`, as for an unreadable request.
pub fn error(id: Option<&[u8]>, code: Code, message: &str) -> Bytes {
    error_body(id, &serde_json::json!({"code": code as i32, "message": message}))
}

/// Complete error response with machine-readable `data`.
pub fn error_with(id: Option<&[u8]>, code: Code, message: &str, data: &serde_json::Value) -> Bytes {
    error_body(id, &serde_json::json!({"code": code as i32, "message": message, "data": data}))
}

fn error_body(id: Option<&[u8]>, body: &serde_json::Value) -> Bytes {
    let mut out = error_head(id.unwrap_or(b"null")).to_vec();
    out.extend_from_slice(body.to_string().as_bytes());
    out.push(b'}');
    out.into()
}

/// Complete response with a result of the proxy itself.
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
    fn numeric_id_is_read_in_any_spelling() {
        for five in ["5", "5.0", "5e0", "0.5E+1", "50e-1", "\"5\"", "\"5.0\"", "\"5e0\""] {
            assert_eq!(numeric_id(five.as_bytes()), Some(5), "{five}");
        }
        assert_eq!(numeric_id(b"2.147483647E9"), Some(2_147_483_647));
        assert_eq!(numeric_id(b"18446744073709551615"), Some(u64::MAX));
        let long = format!("5.{}", "0".repeat(MAX_NUMERIC_ID_BYTES));
        for other in [
            "",
            "null",
            "5.5",
            "-5",
            "+5",
            "\"+5\"",
            "\"\"",
            "\"",
            "\"x5\"",
            "\"5x\"",
            "\" 5\"",
            "inf",
            "\"nan\"",
            "1e30",
            "[5]",
            "server-error",
            &long,
        ] {
            assert_eq!(numeric_id(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn pro_23_error_without_integer_code_or_string_message_is_completed() {
        let no_message = "the server's error has no message";
        for (error, conforming) in [
            (r#"{"code":-32000,"message":"m"}"#, None),
            (r#"{"message":"","data":null,"code":0}"#, None),
            (
                r#"{ "message" : "m", "data": {"n": 1.50}}"#,
                Some(r#"{"code":-32603,"message":"m","data":{"n": 1.50}}"#.to_owned()),
            ),
            (
                r#"{"code":-1.5,"message":7,"code2":1}"#,
                Some(format!(r#"{{"code":-32603,"message":"{no_message}","code2":1}}"#)),
            ),
            (
                r#"{"message":null,"code":-32000}"#,
                Some(format!(r#"{{"code":-32000,"message":"{no_message}"}}"#)),
            ),
            ("{}", Some(format!(r#"{{"code":-32603,"message":"{no_message}"}}"#))),
            ("7", None),
        ] {
            assert_eq!(conforming_error(error), conforming, "{error}");
        }
    }

    #[test]
    fn envelopes_are_written_byte_for_byte_as_specified() {
        assert_eq!(result_head(b"\"x\""), "{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"result\":");
        assert_eq!(
            error(None, Code::Parse, "no \"json\""),
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no \"json\""}}"#
        );
        assert_eq!(response(b"1", b"{}"), r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    }

    #[test]
    fn pro_35_retired_codes_are_replaced_and_other_bytes_are_unchanged() {
        for (error, expected) in [
            (
                r#"{ "code" : -32002 ,"message":"-32002","data":{"uri":"x\u003ay"}}"#,
                Some(r#"{ "code" : -32602 ,"message":"-32002","data":{"uri":"x\u003ay"}}"#),
            ),
            (
                r#"{"data":{"code":1},"c\u006fde":-32042}"#,
                Some(r#"{"data":{"code":1},"c\u006fde":-32603}"#),
            ),
            (r#"{"code":-32602,"data":{"code":-32002}}"#, None),
            (r#"{"code":-320021}"#, None),
            ("{}", None),
            ("7", None),
        ] {
            assert_eq!(modern_error(error).as_deref(), expected, "{error}");
        }
        assert!(requires_url_elicitation(r#"{"message":"","code":-32042}"#));
        assert!(!requires_url_elicitation(r#"{"message":"-32042","code":-32603}"#));
    }
}
