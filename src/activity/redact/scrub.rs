//! Secrets in a text that may hold strings of JSON: goes from quotation mark to quotation mark, and
//! takes out what a key, or what stands beside a string, says is secret. Pure.
//!
//! A string with escapes may hold JSON itself, and is read in the same way, up to [`MAX_DEPTH`]. What
//! stands between quotation marks, and in strings without escapes, is `plain`'s.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr;

use super::json_context::{JsonContext, Role, Take};
use super::json_fragment::{after_nested, escape, span, split_space, split_string, unescape};
use super::keys::Keys;
use super::plain::{Before, ScrubInput, WordScrubber};
use crate::secrets::MASKED;

/// Strings within strings are read to this depth; what lies deeper is taken out whole.
const MAX_DEPTH: u32 = 8;

/// Takes secrets out of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scrubber<'k> {
    keys: &'k Keys,
}

impl<'k> Scrubber<'k> {
    /// A scrubber that takes out what these keys hold, and all credentials of known shape.
    pub(super) fn new(keys: &'k Keys) -> Self {
        Self { keys }
    }

    /// Appends a text without secrets.
    pub(super) fn scrub(&self, text: &ScrubInput<'_>, out: &mut Vec<u8>) {
        let mut context = JsonContext::default();
        let mut at = 0;
        loop {
            let quote = memchr(b'"', text.from(at)).map_or(text.bytes.len(), |quote| at + quote);
            let (next, before) = self.scrub_plain(text, at..quote, &mut context, out);
            at = next;
            if next != quote {
                // What was taken out reached beyond the quotation mark.
                continue;
            }
            if quote == text.bytes.len() {
                return;
            }
            let rest = self.scrub_string(text, quote, before, &mut context, out);
            at = text.bytes.len() - rest.len();
        }
    }

    /// Appends the string that begins at `quote`, and what it says of what follows. Returns what
    /// is left of the text.
    fn scrub_string<'a>(
        &self,
        text: &ScrubInput<'a>,
        quote: usize,
        before: Before,
        context: &mut JsonContext,
        out: &mut Vec<u8>,
    ) -> &'a [u8] {
        let string = JsonString::read(text.from(quote));
        let (space, next) = split_space(string.after);
        if string.closed && matches!(next.first(), Some(b':' | b'=')) && before == Before::Any {
            let role = context.key(&string.content);
            self.put_string(&string, text, out);
            out.extend_from_slice(space);
            let separator = if next.starts_with(b"=>") { 2 } else { 1 };
            let (separator, value) = next.split_at(separator.min(next.len()));
            let (gap, value) = split_space(value);
            let secret = self.keys.is_sensitive(&string.content)
                || match role {
                    Role::Any => false,
                    Role::Value { behind } => context.names(behind, value, text.cut, self.keys),
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
                context.attribute(&string.content, self.keys);
                Take::No
            }
            Before::Value if context.is_named() => Take::All,
            Before::Any | Before::Value => {
                let cut = text.cut && !string.closed;
                context.value(&string.content, (string.after, text.cut), cut, self.keys)
            }
        };
        match take {
            Take::No => self.put_string(&string, text, out),
            Take::All if string.content.is_empty() => out.extend_from_slice(b"\"\""),
            Take::All => put_redacted(out),
            Take::After(stays) => {
                out.push(b'"');
                escape(string.content.get(..stays).unwrap_or_default(), out);
                out.extend_from_slice(MASKED.as_bytes());
                out.push(b'"');
            }
        }
        string.after
    }

    /// Appends a quoted string without secrets.
    fn put_string(&self, string: &JsonString<'_>, text: &ScrubInput<'_>, out: &mut Vec<u8>) {
        let content = &*string.content;
        let inner =
            ScrubInput { bytes: content, cut: text.cut && !string.closed, depth: text.depth + 1 };
        out.push(b'"');
        if !string.escaped {
            self.scrub_plain(&inner, 0..content.len(), &mut JsonContext::default(), out);
        } else if text.depth >= MAX_DEPTH {
            out.extend_from_slice(MASKED.as_bytes());
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

    /// Appends what of `text` lies in `range`, no quotation mark in it; see [`WordScrubber::scrub`].
    fn scrub_plain(
        &self,
        text: &ScrubInput<'_>,
        range: Range<usize>,
        context: &mut JsonContext,
        out: &mut Vec<u8>,
    ) -> (usize, Before) {
        let holds_secret = |text: &ScrubInput<'_>| self.holds_secret(text);
        WordScrubber { keys: self.keys, holds_secret: &holds_secret }
            .scrub(text, range, context, out)
    }

    /// True if there is something to take out of `text`, or if it lies too deep to be read.
    fn holds_secret(&self, text: &ScrubInput<'_>) -> bool {
        text.depth > MAX_DEPTH || {
            let mut out = Vec::with_capacity(text.bytes.len());
            self.scrub(text, &mut out);
            out != text.bytes
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
    out.extend_from_slice(MASKED.as_bytes());
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
