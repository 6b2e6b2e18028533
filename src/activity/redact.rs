//! Redaction (ACT-8): what must not reach the disk is taken out before anything is written. Pure.
//!
//! It reads text that may be JSON, JSON that was cut anywhere, JSON inside strings of JSON, or no
//! JSON at all, and so never parses: it looks for quoted strings, for keys and what follows them,
//! and for the shapes of well-known credentials. What it is unsure of it takes out. It does not
//! judge: names, ids and everything else that filters need are not its affair.

mod quick;
mod shapes;

use std::borrow::Cow;

use memchr::{memchr, memmem};

use self::quick::Quick;
use self::shapes::{is_credential, is_token, is_word};
use super::bytes::PayloadRef;
use super::lenient::{after_nested, escape, span, split_space, split_string, unescape};

/// What stands where a secret stood.
pub const REDACTED: &str = "[redacted]";

/// A key is sensitive when it ends so, whatever its case and separators: `X-Api-Key`, `dbPassword`.
const KEY_ENDS: &[&str] = &[
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "secret",
    "token",
    "jwt",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "signingkey",
    "encryptionkey",
    "authorization",
    "credential",
    "credentials",
    "cookie",
];
/// These are sensitive alone only: as endings they are ordinary words.
const KEYS: &[&str] = &["auth", "pass", "bearer"];

/// Strings in strings in strings: what lies deeper is taken out whole.
const MAX_DEPTH: u32 = 8;
/// Longer words are not keys.
const MAX_KEY_BYTES: usize = 128;
/// A word after `Bearer` or `Basic` that has a digit, or is so long, is a credential.
const SCHEME_BYTES: usize = 24;

/// Knows what must not be kept.
#[derive(Clone, Debug)]
pub struct Redactor {
    /// Further endings, in lower case and without separators.
    extra: Vec<Box<[u8]>>,
    /// How all sensitive keys end, each ending once.
    tails: Vec<Tail>,
    /// Sees most texts that have nothing to take out.
    quick: Option<Quick>,
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
        let plain = |key: &String| {
            let bytes = key.bytes().filter(|byte| !is_separator(*byte));
            bytes.map(|byte| byte.to_ascii_lowercase()).collect::<Box<[u8]>>()
        };
        let extra: Vec<_> = extra.iter().map(plain).filter(|key| !key.is_empty()).collect();
        let built_in = KEY_ENDS.iter().chain(KEYS).map(|word| word.as_bytes());
        let words = built_in.chain(extra.iter().map(AsRef::as_ref));
        let mut tails = Vec::new();
        for known in words.map(|word| tail(word.iter().rev())) {
            if !tails.contains(&known) {
                tails.push(known);
            }
        }
        let quick = Quick::new(&extra);
        Self { extra, tails, quick }
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

    /// The text without secrets.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.bytes(text.as_bytes(), true) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    fn bytes<'a>(&self, bytes: &'a [u8], cut: bool) -> Cow<'a, [u8]> {
        if bytes.is_empty() || self.quick.as_ref().is_some_and(|quick| quick.is_clean(bytes, cut)) {
            return Cow::Borrowed(bytes);
        }
        let mut out = Vec::with_capacity(bytes.len() + 64);
        self.scrub(bytes, cut, 0, &mut out);
        if out == bytes { Cow::Borrowed(bytes) } else { Cow::Owned(out) }
    }

    /// Appends `text` without secrets.
    fn scrub(&self, text: &[u8], cut: bool, depth: u32, out: &mut Vec<u8>) {
        let mut rest = text;
        // The value before named a secret: `"name":"Authorization","value":…`, `"--token","…"`.
        let (mut named, mut option) = (false, false);
        while let Some(quote) = memchr(b'"', rest) {
            let (plain, quoted) = rest.split_at(quote);
            let assigned = self.scrub_plain(plain, false, out);
            let (inner, closed, after) = split_string(quoted);
            let (space, next) = split_space(after);
            let content = unescape(inner);
            if closed && next.first() == Some(&b':') {
                let secret = self.is_sensitive(&content) || (named && &*content == b"value");
                self.put_string(inner, &content, closed, cut, depth, out);
                out.extend_from_slice(space);
                rest = next;
                (named, option) = (named && !secret && &*content != b"value", false);
                if secret {
                    rest = redact_value(next, out);
                }
                continue;
            }
            if assigned || option {
                put_redacted(out);
            } else {
                self.put_string(inner, &content, closed, cut, depth, out);
            }
            let dashed = content.first() == Some(&b'-');
            (named, option) = match !assigned && !option && self.is_sensitive(&content) {
                true => (!dashed, dashed),
                false => (false, false),
            };
            rest = after;
        }
        self.scrub_plain(rest, cut, out);
    }

    /// Appends a quoted string without secrets.
    fn put_string(
        &self,
        inner: &[u8],
        content: &[u8],
        closed: bool,
        cut: bool,
        depth: u32,
        out: &mut Vec<u8>,
    ) {
        out.push(b'"');
        let escaped = memchr(b'\\', inner).is_some();
        if escaped && depth >= MAX_DEPTH {
            out.extend_from_slice(REDACTED.as_bytes());
        } else if escaped {
            let mut clean = Vec::with_capacity(content.len() + 64);
            self.scrub(content, cut && !closed, depth + 1, &mut clean);
            if clean == content {
                out.extend_from_slice(inner);
            } else {
                escape(&clean, out);
            }
        } else {
            self.scrub_plain(inner, cut && !closed, out);
        }
        if closed {
            out.push(b'"');
        }
    }

    /// Appends text that has no quotes. True when it ends with a sensitive key and `=` or `:`, so
    /// that what comes next is its value.
    fn scrub_plain(&self, text: &[u8], cut: bool, out: &mut Vec<u8>) -> bool {
        // What stays is appended in runs, not word by word: `rest` begins at what is looked at,
        // and all of `text` before `kept` is in `out`.
        let mut rest = text;
        let mut kept = text;
        let keep_to = |kept: &[u8], rest: &[u8], out: &mut Vec<u8>| {
            out.extend_from_slice(kept.get(..kept.len() - rest.len()).unwrap_or(kept));
        };
        loop {
            let start = span(rest, |byte| !is_word(byte));
            let (gap, words) = rest.split_at(start);
            let Some(first) = words.first() else {
                out.extend_from_slice(kept);
                return false;
            };
            if gap.ends_with(b"://") || *first == b'-' || is_credential(words, cut) {
                keep_to(kept, words, out);
                kept = words;
                if let Some(after) = redact_special(gap, words, cut, out) {
                    (rest, kept) = (after, after);
                    continue;
                }
            }
            let (word, after) = words.split_at(span(words, is_word));
            rest = after;
            if is_scheme(word) {
                keep_to(kept, after, out);
                rest = redact_scheme(after, cut, out);
                kept = rest;
            } else if let Some(value) = assignment(after)
                && self.is_sensitive(word)
            {
                keep_to(kept, value, out);
                if value.is_empty() {
                    return true;
                }
                rest = redact_assigned(value, out);
                kept = rest;
            }
        }
    }

    fn is_sensitive(&self, key: &[u8]) -> bool {
        // The last letters decide nearly always.
        let letters = || key.iter().rev().filter(|byte| !is_separator(**byte));
        let tail = tail(letters());
        if !self.tails.iter().any(|known| tail.starts_with(known)) || key.len() > MAX_KEY_BYTES {
            return false;
        }
        let ends = |end: &[u8]| {
            let mut letters = letters().map(u8::to_ascii_lowercase);
            end.iter().rev().all(|byte| letters.next() == Some(*byte))
        };
        let is = |word: &&str| letters().count() == word.len() && ends(word.as_bytes());
        KEY_ENDS.iter().any(|end| ends(end.as_bytes()))
            || KEYS.iter().any(is)
            || self.extra.iter().any(|end| ends(end))
    }
}

/// The last letters of a word, the last one first, in lower case; 0 where there is none.
fn tail<'a>(letters: impl Iterator<Item = &'a u8>) -> Tail {
    let mut tail = Tail::default();
    for (slot, letter) in tail.0.iter_mut().zip(letters) {
        *slot = letter.to_ascii_lowercase();
    }
    tail
}

/// See [`tail`]. As many letters as the shortest built-in key has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tail([u8; 3]);

impl Tail {
    /// True if `self` is as good as `known`, which may have fewer letters.
    fn starts_with(self, known: &Self) -> bool {
        self == *known || self.0.iter().zip(known.0).all(|(have, want)| want == 0 || *have == want)
    }
}

fn put_redacted(out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(REDACTED.as_bytes());
    out.push(b'"');
}

/// Takes out the value of a key: `text` begins with the colon. Returns what follows it.
fn redact_value<'a>(text: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let (space, value) = split_space(text.get(1..).unwrap_or_default());
    out.push(b':');
    out.extend_from_slice(space);
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

/// `user:password@` after `://`: takes the password out. `None` if there is none.
fn redact_userinfo<'a>(text: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let authority = text.get(..span(text, |byte| !is_end(byte) && byte != b'/')).unwrap_or(text);
    let at = memchr::memrchr(b'@', authority)?;
    let colon = memchr(b':', authority.get(..at)?)?;
    out.extend_from_slice(authority.get(..=colon)?);
    out.extend_from_slice(REDACTED.as_bytes());
    text.get(at..)
}

/// Takes out what a word may be the beginning of: a user's password in a URL, a private key, a
/// credential of known shape. Returns what follows it.
fn redact_special<'a>(
    gap: &[u8],
    words: &'a [u8],
    cut: bool,
    out: &mut Vec<u8>,
) -> Option<&'a [u8]> {
    if gap.ends_with(b"://")
        && let Some(after) = redact_userinfo(words, out)
    {
        return Some(after);
    }
    if let Some(after) = redact_private_key(words, out) {
        return Some(after);
    }
    if is_credential(words, cut) {
        out.extend_from_slice(REDACTED.as_bytes());
        return Some(words.get(span(words, is_token)..).unwrap_or_default());
    }
    None
}

/// A PEM private key: takes everything to its end out.
fn redact_private_key<'a>(text: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    // `-` may be part of a word, so the dashes are its beginning.
    let dashes = span(text, |byte| byte == b'-');
    let head = text.get(dashes..)?;
    if dashes < 5 || !head.starts_with(b"BEGIN ") {
        return None;
    }
    let line = head.get(..head.len().min(64))?;
    memmem::find(line, b"PRIVATE KEY")?;
    out.extend_from_slice(REDACTED.as_bytes());
    let end = memmem::find(text, b"-----END").and_then(|at| text.get(at + 8..));
    let end = end.and_then(|rest| memmem::find(rest, b"-----").and_then(|at| rest.get(at + 5..)));
    Some(end.unwrap_or_default())
}

/// `Bearer` or `Basic` was read: takes the credential after it out.
fn redact_scheme<'a>(text: &'a [u8], cut: bool, out: &mut Vec<u8>) -> &'a [u8] {
    let (space, rest) = text.split_at(span(text, |byte| byte == b' '));
    let (token, after) = rest.split_at(span(rest, is_token));
    let secret = token.iter().any(u8::is_ascii_digit) || token.len() >= SCHEME_BYTES;
    if space.is_empty() || token.is_empty() || !(secret || (cut && after.is_empty())) {
        return text;
    }
    out.extend_from_slice(space);
    out.extend_from_slice(REDACTED.as_bytes());
    after
}

/// What follows `=` or `:` after a sensitive key.
fn assignment(text: &[u8]) -> Option<&[u8]> {
    let (_, text) = split_space(text);
    let value = text.strip_prefix(b"=").or_else(|| text.strip_prefix(b":"))?;
    Some(value.trim_ascii_start())
}

/// Takes out the value after `key=`, with its scheme or within single quotes.
fn redact_assigned<'a>(value: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    if let Some(quoted) = value.strip_prefix(b"'") {
        out.push(b'\'');
        out.extend_from_slice(REDACTED.as_bytes());
        return quoted.get(span(quoted, |byte| byte != b'\'')..).unwrap_or_default();
    }
    let word = span(value, is_word);
    let (scheme, rest) = value.split_at(word);
    let value = match is_scheme(scheme) && rest.first() == Some(&b' ') {
        true => {
            out.extend_from_slice(scheme);
            out.push(b' ');
            rest.trim_ascii_start()
        }
        false => value,
    };
    let (secret, after) = value.split_at(span(value, |byte| !is_end(byte)));
    if !secret.is_empty() {
        out.extend_from_slice(REDACTED.as_bytes());
    }
    after
}

fn is_scheme(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"bearer") || word.eq_ignore_ascii_case(b"basic")
}

/// What ends an assigned value.
fn is_end(byte: u8) -> bool {
    byte.is_ascii_whitespace()
        || matches!(byte, b'&' | b',' | b';' | b'"' | b'\'' | b')' | b'}' | b']' | b'<' | b'>')
}

const fn is_separator(byte: u8) -> bool {
    matches!(byte, b'_' | b'-' | b' ' | b'.')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn redact(text: &str) -> String {
        let redactor = Redactor::new(&["licence_no".into()]);
        let payload = PayloadRef::cut(text.as_bytes(), text.len());
        String::from_utf8(redactor.payload(payload).0.into_owned()).unwrap()
    }

    #[track_caller]
    fn check(rows: &[(&str, &str)]) {
        for (text, expected) in rows {
            assert_eq!(redact(text), *expected, "{text}");
        }
    }

    #[test]
    fn act_8_values_of_sensitive_keys_are_taken_out() {
        check(&[
            (r#"{"password":"hunter2","a":1}"#, r#"{"password":"[redacted]","a":1}"#),
            (r#"{"a":[{"API-Key" : 12345}]}"#, r#"{"a":[{"API-Key" : "[redacted]"}]}"#),
            (r#"{"githubToken":{"x":["}",1]},"b":2}"#, r#"{"githubToken":"[redacted]","b":2}"#),
            (r#"{"pass\u0077ord":"hunter2"}"#, r#"{"pass\u0077ord":"[redacted]"}"#),
            (r#"{"secret":"a\"b","c":"d"}"#, r#"{"secret":"[redacted]","c":"d"}"#),
            (r#"{"Licence-No":"77","c":"d"}"#, r#"{"Licence-No":"[redacted]","c":"d"}"#),
            (r#"{"token":null,"password":""}"#, r#"{"token":null,"password":""}"#),
            (
                r#"[{"name":"Authorization","value":"xyz"}]"#,
                r#"[{"name":"Authorization","value":"[redacted]"}]"#,
            ),
            (r#"["run","--token","xyz","b"]"#, r#"["run","--token","[redacted]","b"]"#),
        ]);
    }

    #[test]
    fn act_8_also_inside_json_carried_in_strings() {
        check(&[
            (
                r#"{"args_json":"{\"password\":\"hunter2\",\"a\":1}"}"#,
                r#"{"args_json":"{\"password\":\"[redacted]\",\"a\":1}"}"#,
            ),
            (
                r#"{"t":"{\"u\":\"{\\\"token\\\":\\\"abc\\\"}\"}"}"#,
                r#"{"t":"{\"u\":\"{\\\"token\\\":\\\"[redacted]\\\"}\"}"}"#,
            ),
            (
                r#"{"content":[{"type":"text","text":"API_KEY=abc\nX=1"}]}"#,
                r#"{"content":[{"type":"text","text":"API_KEY=[redacted]\nX=1"}]}"#,
            ),
        ]);
    }

    #[test]
    fn act_8_also_in_cut_payloads() {
        let redactor = Redactor::default();
        let whole = r#"{"a":"{\"password\":\"hunter2hunter2\"}","token":["s3cr3t-1","s3cr3t-2"],"n":"ghp_abcdefghijklmnopqrstuvwxyz0123456789"}"#;
        for len in 0..whole.len() {
            let payload = PayloadRef::cut(whole.as_bytes(), len);
            let (bytes, total) = redactor.payload(payload);
            let text = String::from_utf8(bytes.into_owned()).unwrap();
            for secret in ["hunter", "s3cr", "ghp_"] {
                // A prefix alone says nothing.
                let leaked = text.contains(secret) && !text.ends_with(secret);
                assert!(!leaked, "cut at {len}: {text}");
            }
            assert!(total > text.len() as u64);
        }
    }

    #[test]
    fn act_8_the_shapes_of_credentials_are_taken_out_anywhere() {
        let pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\n-----END RSA PRIVATE KEY-----";
        check(&[
            ("see ghp_abcdefghijklmnopqrstuvwxyz0123456789.", "see [redacted]"),
            (r#"{"x":"AKIAIOSFODNN7EXAMPLE"}"#, r#"{"x":"[redacted]"}"#),
            ("Authorization: Bearer abc123", "Authorization: Bearer [redacted]"),
            (
                r#"curl -H "Authorization: Bearer abc""#,
                r#"curl -H "Authorization: Bearer [redacted]""#,
            ),
            ("got Bearer abcdef0123456789", "got Bearer [redacted]"),
            ("postgres://me:pw@host/db", "postgres://me:[redacted]@host/db"),
            ("https://h/p?api_key=abc&x=1", "https://h/p?api_key=[redacted]&x=1"),
            ("password = 'a b' next", "password = '[redacted]' next"),
            (r#"password="a b" next"#, r#"password="[redacted]" next"#),
            (
                "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
                "[redacted]",
            ),
        ]);
        assert_eq!(redact(&format!("key:\n{pem}\nrest")), "key:\n[redacted]\nrest");
        let inside = serde_json::json!({ "k": pem }).to_string();
        assert_eq!(redact(&inside), r#"{"k":"[redacted]"}"#);
    }

    #[test]
    fn what_is_no_secret_stays_byte_for_byte() {
        for text in [
            r#"{"max_tokens":5,"passenger":"x","author":"me","keyboard":"q","b":[1,"a\nb","é"]}"#,
            r#"{"name":"token","other":"x"}"#,
            "basic authentication failed; the bearer of news",
            "http://host:8080/a@b",
            r#"{"path":"C:\\dir\\file","q":"say \"hi\""}"#,
            "\"unclosed \\",
            "sk-learn and hf_hub",
        ] {
            assert_eq!(redact(text), text);
        }
    }

    proptest! {
        #[test]
        fn act_8_no_value_of_a_sensitive_key_survives_in_any_json(
            before in "[a-z\"\\\\{}\\[\\]: ,é]{0,20}",
            depth in 0..5,
        ) {
            let mut value = serde_json::json!({ "b": before, "password": "hunter2!" });
            for _ in 0..depth {
                value = serde_json::json!({ "in": value.to_string(), "b": before });
            }
            let clean = redact(&value.to_string());
            prop_assert!(!clean.contains("hunter2"), "{}", clean);
            prop_assert!(serde_json::from_str::<serde_json::Value>(&clean).is_ok(), "{}", clean);
        }

        #[test]
        fn any_bytes_are_redacted_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let payload = PayloadRef::cut(&bytes, 150);
            let (kept, total) = Redactor::default().payload(payload);
            prop_assert!(total >= kept.len() as u64);
        }
    }
}
