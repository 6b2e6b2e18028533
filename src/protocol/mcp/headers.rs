//! MCP headers, and the check that headers and body agree (MCP 2026-07-28 §Server Validation).
//!
//! A modern request repeats parts of its body in headers, so that intermediaries can route it: its method, for some methods a name from its
//! params, and for a call the parameters that the tool's schema marks. A receiver that reads the body must check that headers and body
//! agree. Callers decide how to respond to a mismatch, and in which revisions to check. Pure.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

/// Header with the JSON-RPC method.
pub const METHOD: &str = "mcp-method";
/// Header with `params.name`, `params.uri` or `params.taskId`.
pub const NAME: &str = "mcp-name";
/// Header with the protocol revision.
pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// Header with the session id (legacy revisions).
pub const SESSION_ID: &str = "mcp-session-id";
/// Header with the id of the last received server-sent event.
pub const LAST_EVENT_ID: &str = "last-event-id";
/// Header that disables buffering in a reverse proxy; its value is `no`.
pub const BUFFERING: &str = "x-accel-buffering";

/// Prefix of the headers that repeat a parameter of a tool.
pub const PARAM_PREFIX: &str = "mcp-param-";

const ENCODED_START: &str = "=?base64?";
const ENCODED_END: &str = "?=";

/// Mismatch of headers and body. The texts contain no values except revisions.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderMismatch {
    /// Duplicate header.
    #[error("header {0} is given more than once")]
    Duplicate(Box<str>),
    /// Missing header for a member of the body.
    #[error("header {0} is missing")]
    Missing(Box<str>),
    /// Header without its member of the body.
    #[error("header {0} has no counterpart in the body")]
    Orphan(Box<str>),
    /// Header that is not visible ASCII, or has invalid base64.
    #[error("header {0} cannot be read")]
    Unreadable(Box<str>),
    /// Header and body have different values.
    #[error("header {0} differs from the body")]
    Different(Box<str>),
    /// Header and body have different revisions.
    #[error("header mcp-protocol-version is '{header}', the body has '{body}'")]
    Versions { header: Box<str>, body: Box<str> },
}

impl HeaderMismatch {
    /// Mismatch of two revisions, shown truncated and escaped.
    pub fn of_versions(header: &[u8], body: &str) -> Self {
        let shown = |text: &str| -> Box<str> {
            let text: String = text.chars().take(MAX_SHOWN_CHARS).collect();
            text.escape_debug().to_string().into()
        };
        Self::Versions { header: shown(&String::from_utf8_lossy(header)), body: shown(body) }
    }
}

/// Maximum number of characters shown of a revision that disagrees.
const MAX_SHOWN_CHARS: usize = 32;

/// Member of `params` that `Mcp-Name` repeats for a method, if any.
pub fn name_member(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

/// Encoding of a header's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Plain: methods and revisions.
    Plain,
    /// Plain, or base64 if a header cannot carry the value: names and other strings.
    Encodable,
    /// Same as [`Encodable`](Self::Encodable), but compared as a number: `42.0` equals `42` (MCP 2026-07-28 §Server Validation).
    Number,
}

/// Checks one header against the body's value; `values` are the header's lines as received.
pub fn agree<'a>(
    header: &str,
    form: Form,
    mut values: impl Iterator<Item = &'a [u8]>,
    body: Option<&str>,
) -> Result<(), HeaderMismatch> {
    let first = values.next();
    if values.next().is_some() {
        return Err(HeaderMismatch::Duplicate(header.into()));
    }
    match (first, body) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(HeaderMismatch::Missing(header.into())),
        (Some(_), None) => Err(HeaderMismatch::Orphan(header.into())),
        (Some(value), Some(body)) => {
            let value = match form {
                Form::Plain => visible(value).map(Cow::Borrowed),
                Form::Encodable | Form::Number => decode(value),
            };
            let value = value.ok_or_else(|| HeaderMismatch::Unreadable(header.into()))?;
            let same = match form {
                Form::Plain | Form::Encodable => value == body,
                Form::Number => decimal(&value) == decimal(body),
            };
            if same { Ok(()) } else { Err(HeaderMismatch::Different(header.into())) }
        }
    }
}

/// Encodes a value for a header: plain if a header can carry it, otherwise in base64.
pub fn encode(value: &str) -> Cow<'_, str> {
    let visible = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let looks_encoded = value.starts_with(ENCODED_START) && value.ends_with(ENCODED_END);
    if visible && value.trim_matches(' ') == value && !looks_encoded {
        return Cow::Borrowed(value);
    }
    Cow::Owned(format!("{ENCODED_START}{}{ENCODED_END}", STANDARD.encode(value)))
}

/// Decodes the value of a header; `None` if it is invalid.
pub fn decode(header: &[u8]) -> Option<Cow<'_, str>> {
    let text = visible(header)?;
    let Some(encoded) =
        text.strip_prefix(ENCODED_START).and_then(|rest| rest.strip_suffix(ENCODED_END))
    else {
        return Some(Cow::Borrowed(text));
    };
    let bytes = STANDARD.decode(encoded).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Decimal form of an integer within the range that doubles represent exactly; other text is returned unchanged.
pub fn decimal(number: &str) -> Cow<'_, str> {
    const SAFE: f64 = 9_007_199_254_740_991.0;
    let digits = number.strip_prefix('-').unwrap_or(number).as_bytes();
    let plain = digits.iter().all(u8::is_ascii_digit) && !digits.starts_with(b"0");
    let value = match number
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
    {
        true if !plain => number.parse::<f64>().ok(),
        true | false => None,
    };
    match value.filter(|value| value.fract() == 0.0 && value.abs() <= SAFE) {
        // Adding zero turns -0 into 0.
        Some(value) => Cow::Owned(format!("{:.0}", value + 0.0)),
        None => Cow::Borrowed(number),
    }
}

/// Trimmed text of a header; `None` if it is not visible ASCII.
fn visible(header: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(header).ok()?;
    let fits = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    fits.then(|| text.trim_matches([' ', '\t']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_10_mismatched_revisions_are_shown_printable_and_truncated() {
        let mismatch = HeaderMismatch::of_versions(b"2025-11-25", "2026-07-28");
        let text = "header mcp-protocol-version is '2025-11-25', the body has '2026-07-28'";
        assert_eq!(mismatch.to_string(), text);
        let long = "x".repeat(100);
        let text = HeaderMismatch::of_versions(b"\xff\n", &long).to_string();
        assert!(!text.contains('\n') && text.len() < 120, "{text}");
    }

    #[test]
    fn mismatch_of_header_and_body_is_reported() {
        for (values, body, expected) in [
            (&["tools/call"][..], Some("tools/call"), Ok(())),
            (&["  tools/call\t"], Some("tools/call"), Ok(())),
            (&["=?base64?Z3LDvG4=?="], Some("grün"), Ok(())),
            (&[], None, Ok(())),
            (&["a", "a"], Some("a"), Err(HeaderMismatch::Duplicate(NAME.into()))),
            (&[], Some("a"), Err(HeaderMismatch::Missing(NAME.into()))),
            (&["a"], None, Err(HeaderMismatch::Orphan(NAME.into()))),
            (&["A"], Some("a"), Err(HeaderMismatch::Different(NAME.into()))),
            (&[""], Some("a"), Err(HeaderMismatch::Different(NAME.into()))),
            (&["=?base64?!?="], Some("a"), Err(HeaderMismatch::Unreadable(NAME.into()))),
            (&["=?base64?/w==?="], Some("a"), Err(HeaderMismatch::Unreadable(NAME.into()))),
            (&["grün"], Some("grün"), Err(HeaderMismatch::Unreadable(NAME.into()))),
        ] {
            let lines = values.iter().map(|value| value.as_bytes());
            assert_eq!(agree(NAME, Form::Encodable, lines, body), expected, "{values:?} {body:?}");
        }
        let encoded = || std::iter::once(&b"=?base64?eA==?="[..]);
        assert_eq!(agree(NAME, Form::Encodable, encoded(), Some("x")), Ok(()));
        assert_eq!(
            agree(METHOD, Form::Plain, encoded(), Some("x")),
            Err(HeaderMismatch::Different(METHOD.into()))
        );
        let bad = std::iter::once(&b"gr\xc3\xbcn"[..]);
        assert_eq!(
            agree(METHOD, Form::Plain, bad, Some("grün")),
            Err(HeaderMismatch::Unreadable(METHOD.into()))
        );
    }

    #[test]
    fn mcp_2026_numbers_are_compared_as_numbers() {
        for (text, decimal) in [
            ("42", "42"),
            ("-7", "-7"),
            ("0", "0"),
            ("-0", "0"),
            ("42.0", "42"),
            ("1e2", "100"),
            ("-0.0", "0"),
            ("9007199254740993", "9007199254740993"),
            ("9007199254740993.0", "9007199254740993.0"),
            ("1.5", "1.5"),
            ("1e999", "1e999"),
            ("0x2a", "0x2a"),
            ("inf", "inf"),
            ("--1", "--1"),
            ("", ""),
        ] {
            assert_eq!(super::decimal(text), decimal, "{text}");
        }
        let check = |header: &'static str, body| {
            agree("mcp-param-n", Form::Number, std::iter::once(header.as_bytes()), Some(body))
        };
        for header in ["42", " 42.0 ", "4.2e1", "=?base64?NDI=?="] {
            assert_eq!(check(header, "42"), Ok(()), "{header}");
        }
        for header in ["43", "", "42a", "forty-two"] {
            let different = Err(HeaderMismatch::Different("mcp-param-n".into()));
            assert_eq!(check(header, "42"), different, "{header}");
        }
    }

    #[test]
    fn values_round_trip_in_base64_where_a_header_cannot_carry_them() {
        for (value, plain) in [
            ("github:create issue", true),
            (" x", false),
            ("x ", false),
            ("\tx", false),
            ("ü", false),
            ("a\r\nb", false),
            ("=?base64?eA==?=", false),
            ("", true),
        ] {
            let header = encode(value);
            assert_eq!(*header == *value, plain, "{value:?}");
            assert_eq!(decode(header.as_bytes()).as_deref(), Some(value));
        }
    }
}
