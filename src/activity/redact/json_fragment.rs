//! Infallible reading of strings, escapes and nesting in text that may be JSON, complete or truncated. Pure.

use std::borrow::Cow;

use memchr::memchr;

use mcpproxy_json::cursor::TextCursor;

/// Splits off the string at the start of `quoted`: its content, whether it is closed, and the rest.
pub(super) fn split_string(quoted: &[u8]) -> (&[u8], bool, &[u8]) {
    let mut cursor = TextCursor::new(quoted);
    cursor.string().map_or((&[], false, &[]), |it| (it.inner, it.closed, cursor.rest()))
}

/// Splits off the leading white space.
pub(super) fn split_space(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(span(text, |byte| byte.is_ascii_whitespace()))
}

/// Number of leading bytes for which `holds` is true.
pub(super) fn span(text: &[u8], mut holds: impl FnMut(u8) -> bool) -> usize {
    text.iter().position(|byte| !holds(*byte)).unwrap_or(text.len())
}

/// Decodes the content of a string; a broken escape is dropped.
pub(super) fn unescape(inner: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'\\', inner).is_none() {
        return Cow::Borrowed(inner);
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = memchr(b'\\', rest) {
        let (plain, escape) = rest.split_at(at);
        out.extend_from_slice(plain);
        rest = escape.get(2..).unwrap_or_default();
        match escape.get(1) {
            Some(b'n') => out.push(b'\n'),
            Some(b't') => out.push(b'\t'),
            Some(b'r') => out.push(b'\r'),
            Some(b'b') => out.push(8),
            Some(b'f') => out.push(12),
            Some(b'u') => {
                let (unit, after) = hex4(rest);
                rest = after;
                let low = rest.strip_prefix(b"\\u").map(hex4);
                let text = match (unit, low) {
                    (Some(high @ 0xd800..0xdc00), Some((Some(low @ 0xdc00..0xe000), after))) => {
                        rest = after;
                        char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))
                    }
                    (Some(unit), _) => char::from_u32(unit),
                    (None, _) => None,
                };
                let mut buffer = [0; 4];
                if let Some(text) = text {
                    out.extend_from_slice(text.encode_utf8(&mut buffer).as_bytes());
                }
            }
            Some(other) => out.push(*other),
            None => {}
        }
    }
    out.extend_from_slice(rest);
    Cow::Owned(out)
}

fn hex4(text: &[u8]) -> (Option<u32>, &[u8]) {
    match text.split_at_checked(4) {
        Some((digits, after)) => {
            let digits = std::str::from_utf8(digits).ok();
            (digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()), after)
        }
        None => (None, &[]),
    }
}

/// Appends `text`, escaped as the content of a JSON string.
pub(super) fn escape(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', *byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0..0x20 => out.extend(format!("\\u{byte:04x}").bytes()),
            _ => out.push(*byte),
        }
    }
}

/// Returns the text after the object or array at the start of `text`.
pub(super) fn after_nested(text: &[u8]) -> &[u8] {
    let (mut rest, mut depth) = (text, 0_usize);
    while let Some((first, after)) = rest.split_first() {
        match first {
            b'"' => {
                rest = split_string(rest).2;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        rest = after;
        if depth == 0 {
            break;
        }
    }
    rest
}
