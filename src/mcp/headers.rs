//! The names of MCP's headers, and header and body agreement of the modern protocol (2026-07-28).
//!
//! A request repeats its method and, for some methods, a name of its params in headers, a call also
//! the parameters that its tool's schema marks, so that intermediaries can route it. A receiver
//! that reads the body must check that both agree, since an intermediary may act on the headers.
//! Owns the forms of those headers and that check; the response to a disagreement, and which
//! revisions have the check, is decided by the callers. Pure.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

/// Carries the JSON-RPC method.
pub const METHOD: &str = "mcp-method";
/// Carries `params.name`, `params.uri` or `params.taskId`.
pub const NAME: &str = "mcp-name";
/// Carries the protocol revision.
pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// Carries the session's id, in the revisions that have sessions.
pub const SESSION_ID: &str = "mcp-session-id";
/// Carries the id of the last server-sent event that was seen.
pub const LAST_EVENT_ID: &str = "last-event-id";
/// Asks a proxy of the operator's to pass a stream on as it comes; its value is `no`.
pub const BUFFERING: &str = "x-accel-buffering";

/// Begins the name of each header that repeats a parameter of a tool.
pub const PARAM_PREFIX: &str = "mcp-param-";

const ENCODED_START: &str = "=?base64?";
const ENCODED_END: &str = "?=";

/// Why headers and body do not agree. The texts hold no value of either.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderMismatch {
    /// The header is there more than once.
    #[error("header {0} is given more than once")]
    Duplicate(Box<str>),
    /// The body has what the header must repeat, and the header is missing.
    #[error("header {0} is missing")]
    Missing(Box<str>),
    /// The header repeats what the body does not have.
    #[error("header {0} has nothing in the body to agree with")]
    Orphan(Box<str>),
    /// The header is not visible ASCII, or its base64 form is broken.
    #[error("header {0} cannot be read")]
    Unreadable(Box<str>),
    /// The two say different things.
    #[error("header {0} and the body say different things")]
    Different(Box<str>),
}

/// The member of `params` that a method's `Mcp-Name` repeats, if it has one.
#[must_use]
pub fn name_member(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

/// How a header writes its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it is: methods and revisions.
    Plain,
    /// As it is, or in base64 where a header could not carry it: names and other strings.
    Encodable,
    /// The same, compared as a number: `42.0` is `42` (MCP 2026-07-28 §Server Validation).
    Number,
}

/// Checks one header against the body's value; `values` are the header's lines as they came.
///
/// # Errors
/// The first disagreement.
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

/// The header form of a value: as it is where a header can carry it, else base64.
#[must_use]
pub fn encode(value: &str) -> Cow<'_, str> {
    let visible = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let looks_encoded = value.starts_with(ENCODED_START) && value.ends_with(ENCODED_END);
    if visible && value.trim_matches(' ') == value && !looks_encoded {
        return Cow::Borrowed(value);
    }
    Cow::Owned(format!("{ENCODED_START}{}{ENCODED_END}", STANDARD.encode(value)))
}

/// The value of a header's form; `None` if it is none.
#[must_use]
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

/// The decimal form of a number that is an integer within the range that doubles hold exactly; what
/// is none stays as it is.
#[must_use]
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
        // Adding zero makes -0 plain.
        Some(value) => Cow::Owned(format!("{:.0}", value + 0.0)),
        None => Cow::Borrowed(number),
    }
}

/// A header's text without the white space around it; `None` if a header cannot carry it.
fn visible(header: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(header).ok()?;
    let fits = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    fits.then(|| text.trim_matches([' ', '\t']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_body_agree_or_say_why() {
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
    fn what_a_header_cannot_carry_goes_as_base64_and_comes_back() {
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
