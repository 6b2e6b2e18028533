//! A client's message, read strictly: a request, a notification or a response, as slices of the body.
//!
//! Ids are kept as the raw bytes that the peer wrote and never re-spelled. What a method means is not known here.

use std::borrow::Cow;

use bytes::Bytes;
use thiserror::Error;

use crate::json::members::{members, string};
use crate::mcp::jsonrpc::Code;
use crate::mcp::revisions::Revision;
use crate::mcp::shapes::{self, MemberMatch, MemberRefused};

/// Longest id accepted from a client, in bytes as written.
pub const MAX_ID_BYTES: usize = 256;
/// The id of a longer message is a copy. It is needed until the answer has ended, and a slice would keep the whole body for
/// so long; that of a small one may be kept.
pub const SMALL_MESSAGE_BYTES: usize = 64 * 1024;

/// A request or notification of a client. Everything is a slice of the body it came in, but for the id of a long one.
#[derive(Clone, Debug)]
pub struct Request {
    /// The raw id (a string with its quotes, or a number); `None` makes it a notification.
    pub id: Option<Bytes>,
    /// The method's name; that of nearly all requests takes no memory.
    pub method: Cow<'static, str>,
    /// The raw `params`, if any.
    pub params: Option<Bytes>,
}

impl Request {
    /// Makes the id a copy: for a message that is a small part of a large body.
    pub fn copy_id(&mut self) {
        self.id = self.id.take().map(|id| Bytes::copy_from_slice(&id));
    }
}

/// What a client's message turned out to be.
#[derive(Clone, Debug)]
pub enum Message {
    /// A request or a notification.
    Request(Request),
    /// A response to something we asked the client.
    Response(Response),
}

/// A client's answer. A slice of the body it came in, but for the member's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The raw id; an error may come without one.
    pub id: Option<Bytes>,
    /// The member `"result":…` or `"error":…`, raw.
    pub outcome: Bytes,
}

/// Why a body is not a message. `Display` is the JSON-RPC error's text.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unreadable {
    /// Not JSON at all.
    #[error("Parse error: {0}")]
    NotJson(String),
    /// An array of messages: MCP has no batches since 2025-06-18.
    #[error("Invalid Request: batches are not supported, send one message at a time")]
    Batch,
    /// JSON, but not a JSON-RPC message.
    #[error("Invalid Request: {0}")]
    Invalid(String),
}

impl Unreadable {
    /// The JSON-RPC code that goes with it.
    #[must_use]
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
    /// Reads one message. The body is expected to have passed `json::tape::check_unique`, so
    /// duplicate keys are the caller's to refuse; here they are refused only among the known ones.
    ///
    /// # Errors
    ///
    /// [`Unreadable`], with the code to answer.
    pub fn parse(body: &Bytes) -> Result<Self, Unreadable> {
        match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'[') => return Err(Unreadable::Batch),
            Some(b'{') => {}
            Some(_) | None => return Err(Unreadable::Invalid("expected a JSON object".into())),
        }
        let broken = |_| Unreadable::NotJson("the object breaks off".into());
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
                // A name that differs only by case would change the message for a reader that
                // ignores case.
                other => match shapes::find(shapes::ENVELOPE, Revision::NEWEST, other) {
                    MemberMatch::Variant(known) => return Err(Unreadable::variant(other, known)),
                    MemberMatch::Known(_) | MemberMatch::Unknown => continue,
                },
            };
            if slot.replace(value).is_some() {
                return Err(Unreadable::Invalid(format!("{key} stands there twice")));
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

/// MCP: an id is a string or an integer, never null.
fn check_id(raw: &str) -> Result<(), Unreadable> {
    let fits = match raw.as_bytes().first() {
        Some(b'"') => true,
        Some(b'-' | b'0'..=b'9') => !raw.contains(['.', 'e', 'E']),
        Some(_) | None => false,
    };
    if !fits {
        return Err(Unreadable::Invalid("id must be a string or an integer".into()));
    }
    if raw.len() > MAX_ID_BYTES {
        return Err(Unreadable::Invalid(format!("id is longer than {MAX_ID_BYTES} bytes")));
    }
    Ok(())
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
    fn ids_and_params_are_kept_as_written() {
        let got =
            request(r#"{"jsonrpc":"2.0","id": "a\u0062" ,"method":"m","params":{ "x" : 1.0 }}"#);
        assert_eq!(got.id.as_deref(), Some(&br#""a\u0062""#[..]));
        assert_eq!(got.params.as_deref(), Some(&br#"{ "x" : 1.0 }"#[..]));
        assert_eq!(&*got.method, "m");
    }

    #[test]
    fn the_id_of_a_long_message_keeps_none_of_it_and_that_of_a_small_one_is_no_copy() {
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
        assert!(is_of(&long_body, &long.params.unwrap()), "what is long is not copied");
        for (body, id) in [(body, small.id.unwrap()), (long_body, long.id.unwrap())] {
            assert_eq!(id, r#""one""#);
            assert!(!is_of(&body, &id));
        }
    }

    #[test]
    fn a_request_without_id_is_a_notification() {
        assert!(request(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).id.is_none());
    }

    #[test]
    fn a_result_without_method_is_a_response() {
        let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":7,"result":null}"#);
        let Ok(Message::Response(response)) = Message::parse(&body) else { panic!("{body:?}") };
        assert_eq!(response.id.unwrap(), "7");
        assert_eq!(response.outcome, r#""result":null"#);
        let body = Bytes::from_static(br#"{"jsonrpc":"2.0","error":{ "code":1.0},"id":"x"}"#);
        let Ok(Message::Response(response)) = Message::parse(&body) else { panic!("{body:?}") };
        assert_eq!(response.outcome, r#""error":{ "code":1.0}"#);
    }

    #[test]
    fn what_is_no_message_is_refused_with_its_code() {
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
