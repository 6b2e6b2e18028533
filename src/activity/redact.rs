//! Redaction (ACT-8): what must not reach the disk is taken out before anything is written. Pure.
//!
//! It reads text that may be JSON, JSON that was cut anywhere, JSON inside strings of JSON, or no
//! JSON at all, and so never parses: it looks for quoted strings, for keys and what follows them,
//! and for the shapes of well-known credentials. What it is unsure of it takes out. It does not
//! judge: names, ids and everything else that filters need are not its affair.

mod credentials;
mod keys;
mod level;
mod options;
mod plain;
mod prefilter;
pub mod table;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use memchr::memchr;

use self::keys::Keys;
use self::level::{Level, Role, Take};
use self::plain::{Before, Text};
use self::prefilter::{Prefilter, open_authority};
use super::bytes::PayloadRef;
use super::fragment::{after_nested, escape, span, split_space, split_string, unescape};

/// What stands where a secret stood.
pub const REDACTED: &str = crate::secrets::MASKED;

/// Strings in strings in strings: what lies deeper is taken out whole.
const MAX_DEPTH: u32 = 8;
/// Knows what must not be kept.
#[derive(Clone, Debug)]
pub struct Redactor {
    keys: Keys,
    /// Sees most texts that have nothing to take out.
    prefilter: Option<Prefilter>,
}

impl Default for Redactor {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl Redactor {
    /// A redactor for the built-in keys and shapes, and for `extra` keys.
    #[must_use]
    pub fn new(extra: &[String]) -> Self {
        let keys = Keys::new(extra);
        let prefilter = Prefilter::new(&keys);
        Self { keys, prefilter }
    }

    /// The payload without secrets, and the length before it was cut: more than is kept, where it
    /// was cut.
    #[must_use]
    pub fn payload<'a>(&self, payload: PayloadRef<'a>) -> (Cow<'a, [u8]>, u64) {
        let bytes = self.bytes(payload.bytes, payload.is_cut());
        let total = match payload.is_cut() {
            true => payload.total.max(bytes.len() as u64 + 1),
            false => bytes.len() as u64,
        };
        (bytes, total)
    }

    /// The text without secrets, of which the end may have been `cut` off.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str, cut: bool) -> Cow<'a, str> {
        match self.bytes(text.as_bytes(), cut) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    fn bytes<'a>(&self, bytes: &'a [u8], cut: bool) -> Cow<'a, [u8]> {
        let is_clean = |prefilter: &Prefilter| prefilter.is_clean(bytes, cut, &self.keys);
        if bytes.is_empty() || self.prefilter.as_ref().is_some_and(is_clean) {
            return match open_authority(bytes).filter(|_| cut).and_then(|at| bytes.get(..at)) {
                Some(before) => Cow::Owned([before, REDACTED.as_bytes()].concat()),
                None => Cow::Borrowed(bytes),
            };
        }
        let mut out = Vec::with_capacity(bytes.len() + 64);
        self.scrub(&Text { bytes, cut, depth: 0 }, &mut out);
        if out == bytes { Cow::Borrowed(bytes) } else { Cow::Owned(out) }
    }

    /// Appends a text without secrets.
    fn scrub(&self, text: &Text<'_>, out: &mut Vec<u8>) {
        let mut level = Level::default();
        let mut at = 0;
        loop {
            let quote = memchr(b'"', text.from(at)).map_or(text.bytes.len(), |quote| at + quote);
            let (next, before) = self.scrub_plain(text, at..quote, &mut level, out);
            at = next;
            if next != quote {
                // What was taken out reached beyond the quotation mark.
                continue;
            }
            if quote == text.bytes.len() {
                return;
            }
            let rest = self.scrub_string(text, quote, before, &mut level, out);
            at = text.bytes.len() - rest.len();
        }
    }

    /// Appends the string that begins at `quote`, and what it says of what follows. Returns what
    /// is left of the text.
    fn scrub_string<'a>(
        &self,
        text: &Text<'a>,
        quote: usize,
        before: Before,
        level: &mut Level,
        out: &mut Vec<u8>,
    ) -> &'a [u8] {
        let string = JsonString::read(text.from(quote));
        let (space, next) = split_space(string.after);
        if string.closed && matches!(next.first(), Some(b':' | b'=')) && before == Before::Any {
            let role = level.key(&string.content);
            self.put_string(&string, text, out);
            out.extend_from_slice(space);
            let separator = if next.starts_with(b"=>") { 2 } else { 1 };
            let (separator, value) = next.split_at(separator.min(next.len()));
            let (gap, value) = split_space(value);
            let secret = self.keys.is_sensitive(&string.content)
                || match role {
                    Role::Any => false,
                    Role::Value { behind } => level.names(behind, value, text.cut, &self.keys),
                };
            if !secret {
                return next;
            }
            out.extend_from_slice(separator);
            out.extend_from_slice(gap);
            return redact_value(value, out);
        }
        let take = match before {
            Before::Secret => Take::All,
            Before::Name => {
                level.attribute(&string.content, &self.keys);
                Take::No
            }
            Before::Value if level.is_named() => Take::All,
            Before::Any | Before::Value => {
                let cut = text.cut && !string.closed;
                level.value(&string.content, (string.after, text.cut), cut, &self.keys)
            }
        };
        match take {
            Take::No => self.put_string(&string, text, out),
            Take::All if string.content.is_empty() => out.extend_from_slice(b"\"\""),
            Take::All => put_redacted(out),
            Take::After(stays) => {
                out.push(b'"');
                escape(string.content.get(..stays).unwrap_or_default(), out);
                out.extend_from_slice(REDACTED.as_bytes());
                out.push(b'"');
            }
        }
        string.after
    }

    /// Appends a quoted string without secrets.
    fn put_string(&self, string: &JsonString<'_>, text: &Text<'_>, out: &mut Vec<u8>) {
        let content = &*string.content;
        let inner = Text { bytes: content, cut: text.cut && !string.closed, depth: text.depth + 1 };
        out.push(b'"');
        if !string.escaped {
            self.scrub_plain(&inner, 0..content.len(), &mut Level::default(), out);
        } else if text.depth >= MAX_DEPTH {
            out.extend_from_slice(REDACTED.as_bytes());
        } else {
            let mut clean = Vec::with_capacity(content.len() + 64);
            self.scrub(&inner, &mut clean);
            if clean == content {
                out.extend_from_slice(string.inner);
            } else {
                escape(&clean, out);
            }
        }
        if string.closed {
            out.push(b'"');
        }
    }
}

/// A string of JSON as it stands in a text.
struct JsonString<'a> {
    inner: &'a [u8],
    escaped: bool,
    content: Cow<'a, [u8]>,
    closed: bool,
    after: &'a [u8],
}

impl<'a> JsonString<'a> {
    /// The string that `quoted` begins with.
    fn read(quoted: &'a [u8]) -> Self {
        let (inner, closed, after) = split_string(quoted);
        let escaped = memchr(b'\\', inner).is_some();
        Self { inner, escaped, content: unescape(inner), closed, after }
    }
}

fn put_redacted(out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(REDACTED.as_bytes());
    out.push(b'"');
}

/// Takes out the value of a key. Returns what follows it.
fn redact_value<'a>(value: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let after = match value.first() {
        None => return value,
        Some(b'"') => split_string(value).2,
        Some(b'{' | b'[') => after_nested(value),
        Some(_) => {
            let is_scalar = |byte: u8| !matches!(byte, b',' | b'}' | b']' | b'"');
            value.get(span(value, is_scalar)..).unwrap_or_default()
        }
    };
    let scalar = value.get(..value.len() - after.len()).unwrap_or_default().trim_ascii();
    match scalar {
        // That there is no secret is no secret.
        b"null" | b"true" | b"false" | b"\"\"" | b"{}" | b"[]" => out.extend_from_slice(scalar),
        _ => put_redacted(out),
    }
    after
}
