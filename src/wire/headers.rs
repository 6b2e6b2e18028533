//! The names of MCP's headers, and header and body agreement of the modern protocol (2026-07-28).
//!
//! A request repeats its method and, for some methods, a name of its params in headers, so that
//! middle boxes can route it. Whoever reads the body must check that they agree, else two of them
//! could act on two requests. Owns the forms of those headers and that check; what a disagreement
//! is answered with, and which revision asks for the check, is not known here. Pure.

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

const ENCODED_START: &str = "=?base64?";
const ENCODED_END: &str = "?=";

/// Why headers and body do not agree. The texts hold no value of either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// The header is there more than once.
    #[error("header {0} is given more than once")]
    Duplicate(&'static str),
    /// The body has what the header must repeat, and the header is missing.
    #[error("header {0} is missing")]
    Missing(&'static str),
    /// The header repeats what the body does not have.
    #[error("header {0} has nothing in the body to agree with")]
    Orphan(&'static str),
    /// The header is not visible ASCII, or its base64 form is broken.
    #[error("header {0} cannot be read")]
    Unreadable(&'static str),
    /// The two say different things.
    #[error("header {0} and the body say different things")]
    Different(&'static str),
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
    /// As it is, or in base64 where a header could not carry it: names.
    Encodable,
}

/// Checks one header against the body's value; `values` are the header's lines as they came.
///
/// # Errors
/// The first disagreement.
pub fn agree<'a>(
    header: &'static str,
    form: Form,
    mut values: impl Iterator<Item = &'a [u8]>,
    body: Option<&str>,
) -> Result<(), Mismatch> {
    let first = values.next();
    if values.next().is_some() {
        return Err(Mismatch::Duplicate(header));
    }
    match (first, body) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(Mismatch::Missing(header)),
        (Some(_), None) => Err(Mismatch::Orphan(header)),
        (Some(value), Some(body)) => {
            let value = match form {
                Form::Plain => visible(value).map(Cow::Borrowed),
                Form::Encodable => decode(value),
            };
            let value = value.ok_or(Mismatch::Unreadable(header))?;
            if value == body { Ok(()) } else { Err(Mismatch::Different(header)) }
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
            (&["a", "a"], Some("a"), Err(Mismatch::Duplicate(NAME))),
            (&[], Some("a"), Err(Mismatch::Missing(NAME))),
            (&["a"], None, Err(Mismatch::Orphan(NAME))),
            (&["A"], Some("a"), Err(Mismatch::Different(NAME))),
            (&[""], Some("a"), Err(Mismatch::Different(NAME))),
            (&["=?base64?!?="], Some("a"), Err(Mismatch::Unreadable(NAME))),
            (&["=?base64?/w==?="], Some("a"), Err(Mismatch::Unreadable(NAME))),
            (&["grün"], Some("grün"), Err(Mismatch::Unreadable(NAME))),
        ] {
            let lines = values.iter().map(|value| value.as_bytes());
            assert_eq!(agree(NAME, Form::Encodable, lines, body), expected, "{values:?} {body:?}");
        }
        let encoded = || std::iter::once(&b"=?base64?eA==?="[..]);
        assert_eq!(agree(NAME, Form::Encodable, encoded(), Some("x")), Ok(()));
        assert_eq!(
            agree(METHOD, Form::Plain, encoded(), Some("x")),
            Err(Mismatch::Different(METHOD))
        );
        let bad = std::iter::once(&b"gr\xc3\xbcn"[..]);
        assert_eq!(
            agree(METHOD, Form::Plain, bad, Some("grün")),
            Err(Mismatch::Unreadable(METHOD))
        );
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
