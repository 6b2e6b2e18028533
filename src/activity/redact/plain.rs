//! Redaction of text that is not JSON: assignments, headers, options, URLs, XML elements, YAML blocks, and credentials
//! of known form. Pure.
//!
//! Redaction works word by word. A redacted part may extend beyond the next quotation mark, which does not end a YAML
//! block or an element.

use std::ops::Range;

use memchr::{memchr, memmem, memrchr};

use super::credentials::{self, base64_json, is_token, is_word};
use super::json_context::JsonContext;
use super::json_fragment::{span, split_string};
use super::keys::{Command, Keys, OptionValue, fold};
use mcpproxy_runtime::secrets::MASKED;

/// Minimum length of a word after `Bearer` or `Basic` that is a credential even without a digit.
const SCHEME_BYTES: usize = 24;
/// Maximum length of a start tag after its name.
const MAX_TAG_BYTES: usize = 512;
/// Minimum length of a user name in a URL that counts as a token.
const USER_BYTES: usize = 20;

/// Second words of two-word keys that are separated by a blank in prose: `API key`.
const PHRASE_ENDS: [&[u8]; 4] = [b"key", b"keys", b"code", b"phrase"];
/// Maximum length of the first word of a two-word key, in bytes.
const MAX_PHRASE_WORD: usize = 24;

/// Minimum length of a token after a query parameter with an ordinary name.
const QUERY_TOKEN_BYTES: usize = 16;

/// Meaning of a quoted string according to the text before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Any,
    /// Secret: `password="`.
    Secret,
    /// Name of a sibling attribute: `key="`.
    Name,
    /// Value named by a sibling attribute: `value="`.
    Value,
}

/// A text that is scrubbed from front to back.
pub(super) struct ScrubInput<'a> {
    pub(super) bytes: &'a [u8],
    /// Whether the end of the text was cut off.
    pub(super) cut: bool,
    /// Number of enclosing strings.
    pub(super) depth: u32,
}

impl<'a> ScrubInput<'a> {
    /// The text starting at `at`.
    pub(super) fn from(&self, at: usize) -> &'a [u8] {
        self.bytes.get(at..).unwrap_or_default()
    }

    fn part(&self, range: Range<usize>) -> &'a [u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// End of the line that contains `at`.
    fn line_end(&self, at: usize) -> usize {
        memchr(b'\n', self.from(at)).map_or(self.bytes.len(), |end| at + end)
    }

    fn line_start(&self, at: usize) -> usize {
        memrchr(b'\n', self.part(0..at)).map_or(0, |end| end + 1)
    }
}

/// Range to redact.
type Secret = Range<usize>;

/// Redacts text that is not JSON.
#[derive(Clone, Copy)]
pub(super) struct WordScrubber<'k> {
    /// Keys with secret values.
    pub(super) keys: &'k Keys,
    /// Decides whether base64-encoded JSON contains a secret. Supplied by the caller, because this module does not read
    /// JSON.
    pub(super) holds_secret: &'k dyn Fn(&ScrubInput<'_>) -> bool,
}

impl WordScrubber<'_> {
    /// Appends a range of `text` without its secrets. Returns where it stopped, possibly beyond the range,
    /// and the meaning of a string that follows.
    pub(super) fn scrub(
        &self,
        text: &ScrubInput<'_>,
        range: Range<usize>,
        context: &mut JsonContext,
        out: &mut Vec<u8>,
    ) -> (usize, Before) {
        // Kept text is appended in runs: everything before `kept` is in `out`.
        let (mut at, mut kept, end) = (range.start, range.start, range.end);
        loop {
            let gap = span(text.part(at..end), |byte| !is_word(byte));
            context.pass(text.part(at..at + gap));
            let word_at = at + gap;
            if word_at >= end {
                out.extend_from_slice(text.part(kept..end));
                return (end, Before::Any);
            }
            let word_end = word_at + span(text.part(word_at..end), is_word);
            at = word_end;
            let word = text.part(word_at..word_end);
            let taken = self.special(text, word_at..word_end);
            let taken = taken.or_else(|| {
                let value = assignment(text, word_end..end)?;
                if let Some(before) = self.before_quote(text, (word_at, word), value) {
                    return Some(Err(before));
                }
                let key = match self.is_secret_word(text, (word_at, word), value) {
                    true => Some(word_at),
                    false => self.phrase(text, word_at, word),
                };
                self.assigned(text, key?, value)
            });
            match taken {
                None => {}
                Some(Ok(taken)) => {
                    out.extend_from_slice(text.part(kept..taken.start));
                    out.extend_from_slice(MASKED.as_bytes());
                    (at, kept) = (taken.end, taken.end);
                    if at > end {
                        return (at, Before::Any);
                    }
                }
                Some(Err(before)) => {
                    out.extend_from_slice(text.part(kept..end));
                    return (end, before);
                }
            }
        }
    }

    /// Range that is secret because of the word itself or the text before it.
    fn special(&self, text: &ScrubInput<'_>, word: Range<usize>) -> Option<Result<Secret, Before>> {
        let rest = text.from(word.start);
        let before = word.start.checked_sub(1).and_then(|at| text.bytes.get(at));
        match before {
            Some(b'/') if text.part(0..word.start).ends_with(b"://") => {
                if let Some(taken) = user_info(text, word.start) {
                    return Some(Ok(taken));
                }
            }
            // A password without a user: `redis://:X@host`.
            Some(b':') if text.part(0..word.start).ends_with(b"://:") => {
                if let Some(taken) = user_info(text, word.start - 1) {
                    return Some(Ok(taken));
                }
            }
            Some(b'<') => {
                if let Some(taken) = self.element(text, word.start) {
                    return Some(Ok(taken));
                }
            }
            _ => {}
        }
        if let Some(found) = credentials::find(rest, text.cut) {
            return Some(Ok(word.start + found.stays..word.start + found.end));
        }
        if let Some((decoded, end)) = base64_json(rest, text.cut) {
            let secret = decoded.is_none_or(|decoded| {
                let depth = text.depth + 1;
                (self.holds_secret)(&ScrubInput { bytes: &decoded, cut: false, depth })
            });
            if secret {
                return Some(Ok(word.start..word.start + end));
            }
        }
        let bytes = text.part(word.clone());
        if bytes.first() == Some(&b'-') {
            return self.option(text, word, before);
        }
        if is_scheme(bytes) {
            return scheme(text, word.end).map(Ok);
        }
        quoted_password(text, word)
    }

    /// Value of an option: `--password X`, `curl -u name:X`, `mysql -pX`.
    fn option(
        &self,
        text: &ScrubInput<'_>,
        word: Range<usize>,
        before: Option<&u8>,
    ) -> Option<Result<Secret, Before>> {
        let starts = |byte: &u8| byte.is_ascii_whitespace() || b"'\"(`[,".contains(byte);
        if !before.is_none_or(starts) {
            return None;
        }
        let option = text.part(word.clone());
        let next = match option.starts_with(b"--") {
            true => Command::default().next(option, self.keys),
            false => Command::before(text.part(0..word.start)).next(option, self.keys),
        };
        let (value, attached) = match next {
            OptionValue::Any => return None,
            OptionValue::Attached(stays) => (word.start + stays, true),
            OptionValue::User if text.from(word.end).starts_with(b"=") => (word.end + 1, false),
            OptionValue::Secret | OptionValue::Password | OptionValue::User => {
                (word.end + shell_space(text.from(word.end)), false)
            }
        };
        if !attached && value == word.end {
            return None;
        }
        let rest = text.from(value);
        let (start, len) = match rest.first() {
            Some(b'"') if !attached => {
                let (inner, closed, _) = split_string(rest);
                return next.takes(inner, text.cut && !closed).then_some(Err(Before::Secret));
            }
            Some(b'\'') => (value + 1, single_quoted(rest.get(1..).unwrap_or_default())),
            _ => (value, span(rest, |byte| !byte.is_ascii_whitespace() && !b"\"`".contains(&byte))),
        };
        let ends = text.cut && start + len >= text.bytes.len();
        let takes = attached || next.takes(text.part(start..start + len), ends);
        (takes && len > 0).then_some(Ok(start..start + len))
    }

    /// Meaning of a string after an attribute's name; `None` if no string follows.
    fn before_quote(
        &self,
        text: &ScrubInput<'_>,
        (word_at, word): (usize, &[u8]),
        value: usize,
    ) -> Option<Before> {
        if text.bytes.get(value) != Some(&b'"') {
            return None;
        }
        match self.keys.is_sensitive(word) {
            true => Some(Before::Secret),
            false if self.phrase(text, word_at, word).is_some() => Some(Before::Secret),
            false if matches!(word, b"key" | b"name" | b"Key" | b"Name") => Some(Before::Name),
            false if matches!(word, b"value" | b"Value" | b"val") => Some(Before::Value),
            false => None,
        }
    }

    /// Whether the value assigned to the word is secret.
    fn is_secret_word(
        &self,
        text: &ScrubInput<'_>,
        (at, word): (usize, &[u8]),
        value: usize,
    ) -> bool {
        let before = at.checked_sub(1).and_then(|at| text.bytes.get(at));
        let query = matches!(before, Some(b'?' | b'&' | b';'));
        // `PASS:` is a result in the output of tests, not a key.
        let passed = word == b"PASS" && text.bytes.get(at + 4) == Some(&b':');
        (self.keys.is_sensitive(word) && !passed)
            || (query
                && match &*fold(word) {
                    b"signature" | b"hmac" => true,
                    // These words are ordinary unless a token follows them, like `?code=X` in the redirect of a login.
                    b"key" | b"code" | b"session" => is_long_token(text, value),
                    _ => false,
                })
    }

    /// Start of a two-word key that ends with `word`: `API key`.
    fn phrase(&self, text: &ScrubInput<'_>, at: usize, word: &[u8]) -> Option<usize> {
        if !PHRASE_ENDS.iter().any(|end| word.eq_ignore_ascii_case(end)) {
            return None;
        }
        let before = text.part(0..at).strip_suffix(b" ")?;
        let first =
            before.iter().rev().take(MAX_PHRASE_WORD).take_while(|byte| is_word(**byte)).count();
        let start = before.len() - first;
        (first > 0 && self.keys.is_sensitive(text.part(start..at + word.len()))).then_some(start)
    }

    /// Value after a sensitive key and `=` or `:`, starting at `value`.
    fn assigned(
        &self,
        text: &ScrubInput<'_>,
        key: usize,
        value: usize,
    ) -> Option<Result<Secret, Before>> {
        let line = text.line_start(key);
        let before = text.part(line..key);
        let leads = before.strip_prefix(b"export ").unwrap_or(before);
        let leads =
            leads.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'-' | b'>' | b'*' | b'\''));
        let colon = text.part(0..value).trim_ascii_end().ends_with(b":");
        let rest = text.from(value);
        let (start, end) = match rest.first() {
            None => return None,
            Some(b'|' | b'>') if colon && let Some(end) = block(text, line, value) => (value, end),
            // A tag before a block: `!vault |`.
            Some(b'!' | b'&')
                if colon
                    && let Some(head) = block_after_tag(rest)
                    && let Some(end) = block(text, line, value + head) =>
            {
                (value, end)
            }
            // A type before the value: `: string = 'X'`.
            Some(_) if colon && let Some(quote) = after_type(rest) => {
                let inner = value + quote + 1;
                match rest.get(quote) {
                    Some(b'"') => return Some(Err(Before::Secret)),
                    Some(b'\'') => (inner, inner + single_quoted(text.from(inner))),
                    _ => (
                        inner,
                        inner + span(text.from(inner), |byte| byte != b'`' && byte != b'\n'),
                    ),
                }
            }
            Some(b'\n' | b'\r') => {
                // The next line holds a value or another key.
                let indent = span(rest, |byte| byte.is_ascii_whitespace());
                let start = value + indent;
                if !colon || text.from(start).first() == Some(&b'"') || is_key(text.from(start)) {
                    return None;
                }
                (start, start + span(text.from(start), |byte| !is_end(byte)))
            }
            Some(quote @ (b'\'' | b'`')) => {
                let inner = rest.get(1..).unwrap_or_default();
                let len = match quote {
                    b'\'' => single_quoted(inner),
                    _ => span(inner, |byte| byte != b'`' && byte != b'\n'),
                };
                (value + 1, value + 1 + len)
            }
            Some(_) => {
                let start = value + scheme_len(rest);
                let name = fold(text.part(key..value));
                let header = colon && name.windows(13).any(|it| it == b"authorization");
                // The values of Digest parameters are quoted.
                let digest = rest.get(..6).is_some_and(|word| word.eq_ignore_ascii_case(b"digest"));
                let rest = text.from(start);
                let end = if header || (leads && colon) {
                    let quotes = |byte| header && !digest && matches!(byte, b'"' | b'\'' | b'`');
                    span(rest, |byte| byte != b'\n' && byte != b'\r' && !quotes(byte))
                } else if leads {
                    span(rest, |byte| {
                        !byte.is_ascii_whitespace() && !matches!(byte, b'"' | b'\'' | b';' | b'&')
                    })
                } else {
                    if is_key(rest) {
                        return None;
                    }
                    span(rest, |byte| !is_end(byte))
                };
                (start, start + end)
            }
        };
        (start < end).then_some(Ok(start..end))
    }

    /// Text of the XML element named at `name`, if the name marks a secret.
    fn element(&self, text: &ScrubInput<'_>, name: usize) -> Option<Secret> {
        let len = span(text.from(name), is_element_name);
        let full = text.part(name..name + len);
        let local = full.rsplit(|byte| *byte == b':').next().unwrap_or_default();
        if !self.keys.is_sensitive(local) {
            return None;
        }
        let tag = text.from(name + len);
        let tag = tag.get(..MAX_TAG_BYTES).unwrap_or(tag);
        let close = tag.iter().position(|byte| matches!(byte, b'>' | b'<'))?;
        let inner = name + len + close + 1;
        if tag.get(close) != Some(&b'>') || tag.get(..close)?.ends_with(b"/") {
            return None;
        }
        let rest = text.from(inner);
        if rest.starts_with(b"<![CDATA[") {
            let end = memmem::find(rest, b"]]>").map_or(rest.len(), |end| end + 3);
            return Some(inner..inner + end);
        }
        match memchr(b'<', rest) {
            Some(0) => None,
            Some(end) => {
                let tail = rest.get(end..)?;
                let closing = [b"</", full].concat();
                let may_close = text.cut && closing.starts_with(tail);
                (may_close || tail.starts_with(&closing)).then_some(inner..inner + end)
            }
            None => (text.cut && !rest.is_empty()).then_some(inner..text.bytes.len()),
        }
    }
}

pub(super) fn is_element_name(byte: u8) -> bool {
    is_word(byte) || matches!(byte, b':' | b'.')
}

/// Start of the value after `=` or `:` and spaces, for a word that ends at the start of `range`. Words in
/// quotes, brackets or emphasis can be keys as well.
fn assignment(text: &ScrubInput<'_>, range: Range<usize>) -> Option<usize> {
    let end = range.end;
    let skip = |at: usize, holds: fn(u8) -> bool| at + span(text.part(at..end), holds);
    let closers = |byte| matches!(byte, b'\'' | b'`' | b'*' | b']' | b')');
    let mut at = skip(range.start, closers);
    if text.from(at).starts_with(b"%5D") {
        at += 3;
    }
    at = skip(at, |byte| matches!(byte, b' ' | b'\t'));
    let rest = text.part(at..end);
    let sep = match rest {
        [b':', b'=', ..] | [b'=', b'>', ..] => 2,
        // `::` separates the names of a path, and `://` follows the scheme of a URL.
        [b':', b':', ..] | [b':', b'/', b'/', ..] => return None,
        [b'=', ..] => span(rest, |byte| byte == b'='),
        [b':', ..] => 1,
        _ => return None,
    };
    at = skip(at + sep, |byte| matches!(byte, b' ' | b'\t'));
    if text.part(at..end).starts_with(b"**") {
        at = skip(at, |byte| matches!(byte, b' ' | b'*'));
    }
    Some(at)
}

/// Whether the text starts with its own key: `name: …`.
fn is_key(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"- ").unwrap_or(text);
    let word = span(text, is_word);
    let after = text.get(word..).unwrap_or_default();
    let ends = |rest: &[u8]| rest.first().is_none_or(u8::is_ascii_whitespace);
    word > 0 && after.strip_prefix(b":").is_some_and(ends)
}

/// End of the YAML block whose head starts at `value`: all lines that are indented more than the line at
/// `line`.
fn block(text: &ScrubInput<'_>, line: usize, value: usize) -> Option<usize> {
    let head_end = text.line_end(value);
    let head = text.part(value + 1..head_end).trim_ascii();
    if !head.iter().all(|byte| matches!(byte, b'+' | b'-' | b'0'..=b'9')) {
        return None;
    }
    let indent = |at: usize| span(text.from(at), |byte| byte == b' ' || byte == b'\t');
    let outer = indent(line);
    let mut end = head_end;
    while end < text.bytes.len() {
        let next = end + 1;
        let next_end = text.line_end(next);
        let blank = text.part(next..next_end).trim_ascii().is_empty();
        if !blank && indent(next) <= outer {
            break;
        }
        end = next_end;
    }
    // A truncated header may be the header of a block.
    (end > head_end || text.cut).then_some(end)
}

/// Secret in `user:password@` or `token@` after `://`.
fn user_info(text: &ScrubInput<'_>, at: usize) -> Option<Secret> {
    let rest = text.from(at);
    let authority = rest.get(..span(rest, |byte| !is_end(byte) && byte != b'/')).unwrap_or(rest);
    let query = authority.iter().position(|byte| matches!(byte, b'?' | b'#' | b'\\'));
    let host = authority.get(..query.unwrap_or(authority.len()))?;
    let colon = memchr(b':', authority);
    let port = |colon: usize| {
        let port = host.get(colon + 1..);
        port.is_some_and(|port| !port.is_empty() && port.iter().all(u8::is_ascii_digit))
    };
    let Some(sign) = memrchr(b'@', authority) else {
        // The `@` may have been cut off.
        let open = text.cut && authority.len() == rest.len() && query.is_none();
        return (open && !authority.is_empty()).then_some(at..at + authority.len());
    };
    if query.is_some_and(|query| query < sign) && colon.is_none_or(port) {
        return None;
    }
    let colon = colon.filter(|colon| *colon < sign);
    let user = authority.get(..colon.unwrap_or(sign))?;
    let password = colon.map(|colon| authority.get(colon + 1..sign).unwrap_or_default());
    let start = match password {
        Some(b"" | b"x" | b"x-oauth-basic") => 0,
        Some(_) if user.len() >= USER_BYTES => 0,
        Some(_) => user.len() + 1,
        None => {
            // Logins with a key state only a user name, which is not secret.
            let scheme = text.part(0..at - 3);
            let web = scheme.ends_with(b"http") || scheme.ends_with(b"https");
            let token = user.len() >= USER_BYTES || (web && user != b"git");
            if !token {
                return None;
            }
            0
        }
    };
    (start < sign).then_some(at + start..at + sign)
}

/// Credential after `Bearer` or `Basic`, which ends at `at`.
fn scheme(text: &ScrubInput<'_>, at: usize) -> Option<Secret> {
    let space = span(text.from(at), |byte| byte == b' ');
    let start = at + space;
    let len = span(text.from(start), is_token);
    let token = text.part(start..start + len);
    let secret = token.iter().any(u8::is_ascii_digit) || len >= SCHEME_BYTES;
    let ends = text.cut && start + len == text.bytes.len();
    (space > 0 && len > 0 && (secret || ends)).then_some(start..start + len)
}

/// Password in an SQL statement: `PASSWORD 'x'`, `IDENTIFIED BY "x"`.
fn quoted_password(text: &ScrubInput<'_>, word: Range<usize>) -> Option<Result<Secret, Before>> {
    let rest = text.from(word.end);
    let space = span(rest, |byte| byte == b' ');
    let quote = rest.get(space).filter(|quote| matches!(quote, b'\'' | b'"'));
    let quote = quote.filter(|_| space > 0)?;
    let bytes = text.part(word.clone());
    let by = || {
        let before = text.part(word.start.saturating_sub(11)..word.start);
        bytes.eq_ignore_ascii_case(b"by") && before.eq_ignore_ascii_case(b"identified ")
    };
    if !bytes.eq_ignore_ascii_case(b"password") && !by() {
        return None;
    }
    if *quote == b'"' {
        return Some(Err(Before::Secret));
    }
    let start = word.end + space + 1;
    let len = single_quoted(text.from(start));
    (len > 0).then_some(Ok(start..start + len))
}

/// Whether the text at `at` is long and irregular enough for a token, or could be if it was cut.
fn is_long_token(text: &ScrubInput<'_>, at: usize) -> bool {
    let token = text.part(at..at + span(text.from(at), is_token));
    let continues = text.cut && at + token.len() == text.bytes.len();
    continues || (token.len() >= QUERY_TOKEN_BYTES && token.iter().any(u8::is_ascii_digit))
}

/// Length of the space between an option and its value, including line continuations.
fn shell_space(text: &[u8]) -> usize {
    let mut at = 0;
    loop {
        at += span(text.get(at..).unwrap_or_default(), |byte| matches!(byte, b' ' | b'\t'));
        let rest = text.get(at..).unwrap_or_default();
        match rest {
            [b'\\', b'\n', ..] => at += 2,
            [b'\\', b'\r', b'\n', ..] => at += 3,
            _ => return at,
        }
    }
}

/// Offset of the header of a YAML block scalar (`|`, `>`) after a tag or an anchor.
fn block_after_tag(value: &[u8]) -> Option<usize> {
    let tag = span(value, |byte| !byte.is_ascii_whitespace());
    let space = span(value.get(tag..)?, |byte| byte == b' ');
    let is_head = matches!(value.get(tag + space), Some(b'|' | b'>'));
    (space > 0 && is_head).then_some(tag + space)
}

/// Position of the quote in `string = 'X'`, in languages with the type after the name.
fn after_type(value: &[u8]) -> Option<usize> {
    const TYPES: [&[u8]; 4] = [b"string", b"String", b"str", b"any"];
    let word = span(value, is_word);
    TYPES.iter().find(|known| value.get(..word) == Some(*known))?;
    let space = |at: usize| at + span(value.get(at..).unwrap_or_default(), |byte| byte == b' ');
    let equals = space(word);
    if value.get(equals) != Some(&b'=') {
        return None;
    }
    let quote = space(equals + 1);
    matches!(value.get(quote), Some(b'"' | b'\'' | b'`')).then_some(quote)
}

/// Number of bytes before the next single quote.
fn single_quoted(text: &[u8]) -> usize {
    let mut escaped = false;
    span(text, |byte| {
        let ends = byte == b'\'' && !escaped;
        escaped = byte == b'\\' && !escaped;
        !ends
    })
}

fn is_scheme(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"bearer") || word.eq_ignore_ascii_case(b"basic")
}

/// Length of the authentication scheme in a header's value, with the space after it.
fn scheme_len(value: &[u8]) -> usize {
    const SCHEMES: &[&[u8]] =
        &[b"bearer", b"basic", b"token", b"digest", b"negotiate", b"ntlm", b"apikey", b"bot"];
    let word = span(value, is_word);
    let scheme = value.get(..word).unwrap_or_default();
    let space = span(value.get(word..).unwrap_or_default(), |byte| byte == b' ');
    let known = SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known));
    if known && space > 0 { word + space } else { 0 }
}

/// Whether a byte ends an assigned value.
pub(super) fn is_end(byte: u8) -> bool {
    byte.is_ascii_whitespace()
        || matches!(byte, b'&' | b',' | b';' | b'"' | b'\'' | b')' | b'}' | b']' | b'<' | b'>')
}
