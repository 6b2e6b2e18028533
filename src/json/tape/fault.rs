//! What can be wrong with bytes, and which of it is wrong with these.
//!
//! Owns the reasons. Deliberately slow: it runs on what was refused already.

use thiserror::Error;

use super::nodes::MAX_DEPTH;

/// Why bytes are not a document that every parser reads alike
/// ([verdicts](crate::reference::requirements#verdicts)).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TapeFault {
    /// Nothing but white space.
    #[error("is empty")]
    Empty,
    /// A byte order mark before the value.
    #[error("starts with a byte order mark")]
    ByteOrderMark,
    /// Bytes that are not UTF-8.
    #[error("is not valid UTF-8")]
    Utf8,
    /// A raw control character inside a string.
    #[error("has a raw control character in a string")]
    ControlCharacter,
    /// A `\u` escape that is half of a surrogate pair.
    #[error("has a lone surrogate in an escape")]
    LoneSurrogate,
    /// A number whose value does not fit a double.
    #[error("has a number that overflows a double")]
    NumberOverflow,
    /// Something after the value.
    #[error("has bytes after its value")]
    Trailing,
    /// Not JSON.
    #[error("is not one JSON value")]
    Syntax,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("is nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// The same key twice in one object.
    #[error("has a duplicate key")]
    DuplicateKey {
        /// JSON pointer of the object.
        object: String,
        /// The key, as it reads after unescaping.
        name: String,
    },
}

/// Finds what is wrong with bytes that the parser refused. Not on the hot path, so it may go
/// byte by byte.
pub(super) fn explain(bytes: &[u8]) -> TapeFault {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return TapeFault::Empty;
    }
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        return TapeFault::ByteOrderMark;
    }
    if simdutf8::basic::from_utf8(bytes).is_err() {
        return TapeFault::Utf8;
    }
    let mut values =
        serde_json::Deserializer::from_slice(bytes).into_iter::<serde::de::IgnoredAny>();
    if let Some(Ok(_)) = values.next() {
        let rest = bytes.get(values.byte_offset()..).unwrap_or_default();
        if !rest.iter().all(u8::is_ascii_whitespace) {
            return TapeFault::Trailing;
        }
    }
    token_fault(bytes).unwrap_or(TapeFault::Syntax)
}

/// The first token of `bytes` that is faulty in a way that has a name.
fn token_fault(bytes: &[u8]) -> Option<TapeFault> {
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let rest = bytes.get(at + 1..)?;
                let (len, fault) = string_fault(rest);
                if fault.is_some() {
                    return fault;
                }
                at += len + 1;
            }
            b'-' | b'0'..=b'9' => {
                let rest = bytes.get(at..)?;
                let len = rest
                    .iter()
                    .position(|b| !matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
                    .unwrap_or(rest.len());
                let number = std::str::from_utf8(rest.get(..len)?).ok()?.parse::<f64>();
                if number.is_ok_and(f64::is_infinite) {
                    return Some(TapeFault::NumberOverflow);
                }
                at += len.max(1);
            }
            _ => at += 1,
        }
    }
    None
}

/// Checks a string that opened just before `rest`. Returns its length with the closing quote, and
/// the fault, if any.
fn string_fault(rest: &[u8]) -> (usize, Option<TapeFault>) {
    let mut at = 0;
    while let Some(byte) = rest.get(at) {
        match byte {
            b'"' => return (at + 1, None),
            0..=0x1F => return (at, Some(TapeFault::ControlCharacter)),
            b'\\' => match escape(rest, at) {
                Some(0xD800..=0xDBFF) => match escape(rest, at + 6) {
                    Some(0xDC00..=0xDFFF) => at += 12,
                    _ => return (at, Some(TapeFault::LoneSurrogate)),
                },
                Some(0xDC00..=0xDFFF) => return (at, Some(TapeFault::LoneSurrogate)),
                Some(_) => at += 6,
                None => at += 2,
            },
            _ => at += 1,
        }
    }
    (at, None)
}

/// The code unit of a `\uXXXX` at `at`.
fn escape(rest: &[u8], at: usize) -> Option<u16> {
    let digits = rest.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
