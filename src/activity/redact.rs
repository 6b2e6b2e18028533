//! Redaction (ACT-8): removes secrets before anything is written. Pure.
//!
//! The text may be JSON, JSON truncated anywhere, JSON in strings of JSON, or no JSON at all, so it is never parsed.
//! Redaction looks for quoted strings, for keys and their values, and for the forms of well-known credentials. When in
//! doubt, it removes the text. The fields used by filters (names, ids) are not redacted.
//!
//! The prefilter (`prefilter`) lets most texts pass immediately. The scrubber goes from quotation mark to quotation
//! mark and removes values of secret keys; a string with escapes may itself hold JSON and is scrubbed the same way, up
//! to [`MAX_DEPTH`]. Text between quotation marks, and strings without escapes, are scrubbed word by word (`plain`).
//! `table` lists keys and credentials.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr;

use self::json_context::{JsonContext, Role, Take};
use self::json_fragment::{after_nested, escape, span, split_space, split_string, unescape};
use self::keys::Keys;
use self::plain::{Before, ScrubInput, WordScrubber};
use self::prefilter::{Prefilter, open_authority};
use super::record::{Decision, PayloadRef};
use mcpproxy_runtime::secrets::MASKED;

mod credentials;
mod json_context;
mod json_fragment;
mod keys;
mod plain;
mod prefilter;
pub mod table;

/// Replacement for a secret.
pub const REDACTED: &str = MASKED;

/// Removes secrets from payloads and texts.
#[derive(Clone, Debug)]
pub struct Redactor {
    keys: Keys,
    /// Prefilter that most texts without a secret pass; `None` if the configured keys rule out a prefilter.
    prefilter: Option<Prefilter>,
}

impl Default for Redactor {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl Redactor {
    /// Creates a redactor for the built-in keys and forms, and for `extra` keys.
    pub fn new(extra: &[String]) -> Self {
        let keys = Keys::new(extra);
        let prefilter = Prefilter::new(&keys);
        Self { keys, prefilter }
    }

    /// Redacts a payload. Also returns its original length, which for a truncated payload is always greater than the
    /// length of the returned payload.
    pub fn payload<'a>(&self, payload: PayloadRef<'a>) -> (Cow<'a, [u8]>, u64) {
        let bytes = self.bytes(payload.bytes, payload.is_cut());
        let total = total_of(payload, &bytes);
        (bytes, total)
    }

    /// Redacts a text, which may have been `cut` at its end.
    pub fn text<'a>(&self, text: &'a str, cut: bool) -> Cow<'a, str> {
        match self.bytes(text.as_bytes(), cut) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    /// Like [`Self::payload`], for a payload of mcpproxy's own that may contain the names of its record.
    pub fn own_payload<'a>(
        &self,
        payload: PayloadRef<'a>,
        names: OwnNames<'_>,
    ) -> (Cow<'a, [u8]>, u64) {
        let (bytes, total) = self.payload(payload);
        match bytes {
            Cow::Borrowed(_) => (bytes, total),
            Cow::Owned(_) => match self.around(payload.bytes, payload.is_cut(), names) {
                None => (bytes, total),
                Some(bytes) => {
                    let total = total_of(payload, &bytes);
                    (Cow::Owned(bytes), total)
                }
            },
        }
    }

    /// Like [`Self::text`], for a text of mcpproxy's own that may contain the names of its record.
    pub fn own_text<'a>(&self, text: &'a str, cut: bool, names: OwnNames<'_>) -> Cow<'a, str> {
        match self.text(text, cut) {
            Cow::Borrowed(text) => Cow::Borrowed(text),
            Cow::Owned(redacted) => match self.around(text.as_bytes(), cut, names) {
                None => Cow::Owned(redacted),
                Some(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
            },
        }
    }

    /// Redacts the text around these names; `None` if it contains none of them.
    fn around(&self, bytes: &[u8], cut: bool, names: OwnNames<'_>) -> Option<Vec<u8>> {
        let masked = names.mask(bytes)?;
        let mut redacted = self.bytes(&masked, cut).into_owned();
        redacted.iter_mut().filter(|byte| **byte == COLON_MASK).for_each(|byte| *byte = b':');
        Some(redacted)
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
        Scrubber::new(&self.keys).scrub(&ScrubInput { bytes, cut, depth: 0 }, &mut out);
        if out == bytes { Cow::Borrowed(bytes) } else { Cow::Owned(out) }
    }
}

/// Original length of a payload of which these redacted bytes remain.
fn total_of(payload: PayloadRef<'_>, redacted: &[u8]) -> u64 {
    match payload.is_cut() {
        true => payload.total.max(redacted.len() as u64 + 1),
        false => redacted.len() as u64,
    }
}

/// Names of a record that look like a key and its value, such as the principal `token:ci`, `auth: …` of a server
/// `auth`, or `'no-secrets': …` with the message of a rule. The record has them in fields of their own, so they are no
/// secrets in its texts.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnNames<'a> {
    /// Id of the principal.
    pub principal: &'a str,
    pub server: &'a str,
    /// Name of the tool without its server.
    pub tool: &'a str,
    /// Decisions about the call, which name rules.
    pub decisions: &'a [Decision],
}

/// Replaces the colon of a name while the text around it is redacted.
const COLON_MASK: u8 = 0x1f;

impl OwnNames<'_> {
    /// Masks the colons of the names; `None` if the text contains no such name, or the mask itself.
    fn mask(self, text: &[u8]) -> Option<Vec<u8>> {
        if memchr(COLON_MASK, text).is_some() {
            return None;
        }
        let mut masked = text.to_vec();
        let mut mask = |from: usize, name: &str| {
            if let Some(colon) = memchr(b':', name.as_bytes())
                && let Some(byte) = masked.get_mut(from + colon)
            {
                *byte = COLON_MASK;
            }
        };
        let start = format!("{}: ", self.server);
        if !self.server.is_empty() && text.starts_with(start.as_bytes()) {
            mask(0, &start);
        }
        let tool = format!("{}:{}", self.server, self.tool);
        for name in [self.principal, &tool].into_iter().filter(|name| name.len() > 1) {
            // A longer word with this beginning is not the name.
            let ends = |at: usize| text.get(at).is_none_or(|byte| matches!(byte, b'\'' | b'"'));
            let starts = |at: usize| at.checked_sub(1).and_then(|at| text.get(at));
            for from in memchr::memmem::find_iter(text, name.as_bytes()) {
                if ends(from + name.len())
                    && starts(from).is_none_or(|byte| matches!(byte, b'\'' | b'"'))
                {
                    mask(from, name);
                }
            }
        }
        for rule in self.decisions.iter().flat_map(|decision| &decision.rules) {
            let named = format!("'{rule}': ");
            for from in memchr::memmem::find_iter(text, named.as_bytes()) {
                if let Some(byte) = masked.get_mut(from + named.len() - ": ".len()) {
                    *byte = COLON_MASK;
                }
            }
        }
        (masked != text).then_some(masked)
    }
}

/// Maximum depth of strings within strings; deeper ones are removed completely.
const MAX_DEPTH: u32 = 8;

/// Removes secrets from one text.
#[derive(Clone, Copy, Debug)]
struct Scrubber<'k> {
    keys: &'k Keys,
}

impl<'k> Scrubber<'k> {
    /// Creates a scrubber for the values of these keys and for all credentials of known form.
    fn new(keys: &'k Keys) -> Self {
        Self { keys }
    }

    /// Appends the text without its secrets.
    fn scrub(&self, text: &ScrubInput<'_>, out: &mut Vec<u8>) {
        let mut context = JsonContext::default();
        let mut at = 0;
        loop {
            let quote = memchr(b'"', text.from(at)).map_or(text.bytes.len(), |quote| at + quote);
            let (next, before) = self.scrub_plain(text, at..quote, &mut context, out);
            at = next;
            if next != quote {
                // The removed part reached beyond the quotation mark.
                continue;
            }
            if quote == text.bytes.len() {
                return;
            }
            let rest = self.scrub_string(text, quote, before, &mut context, out);
            at = text.bytes.len() - rest.len();
        }
    }

    /// Appends the string that starts at `quote`, and interprets it as a key if it is one. Returns the rest
    /// of the text.
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
        let index = index_end(next);
        let is_key = matches!(next.first(), Some(b':' | b'=')) || index > 0;
        if string.closed && is_key && before == Before::Any {
            let role = context.key(&string.content);
            self.put_string(&string, text, out);
            out.extend_from_slice(space);
            let (closing, assigned) = next.split_at(index);
            let separator = if assigned.starts_with(b"=>") { 2 } else { 1 };
            let (separator, value) = assigned.split_at(separator.min(assigned.len()));
            let (gap, value) = split_space(value);
            let secret = self.keys.is_sensitive(&string.content)
                || match role {
                    Role::Any => false,
                    Role::Value { after_name } => {
                        context.is_named_secret(after_name, value, text.cut, self.keys)
                    }
                };
            if !secret {
                return next;
            }
            context.pass(closing);
            out.extend_from_slice(closing);
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

    /// Appends a quoted string without its secrets.
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

    /// Appends a range of `text` without quotation marks; see [`WordScrubber::scrub`].
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

    /// Whether `text` contains a secret, or is nested too deeply to be read.
    fn holds_secret(&self, text: &ScrubInput<'_>) -> bool {
        text.depth > MAX_DEPTH || {
            let mut out = Vec::with_capacity(text.bytes.len());
            self.scrub(text, &mut out);
            out != text.bytes
        }
    }
}

/// A JSON string within a text.
struct JsonString<'a> {
    inner: &'a [u8],
    escaped: bool,
    content: Cow<'a, [u8]>,
    closed: bool,
    after: &'a [u8],
}

impl<'a> JsonString<'a> {
    /// Reads the string that starts at `quoted`.
    fn read(quoted: &'a [u8]) -> Self {
        let (inner, closed, after) = split_string(quoted);
        let escaped = memchr(b'\\', inner).is_some();
        Self { inner, escaped, content: unescape(inner), closed, after }
    }
}

/// Length of the text between an index string and the `=` of its assignment, as in `["KEY"] = "…"`; 0 if there is no
/// assignment.
fn index_end(text: &[u8]) -> usize {
    let Some(after) = text.strip_prefix(b"]") else { return 0 };
    let assigned = split_space(after).1;
    let is_string = |value| split_space(value).1.first() == Some(&b'"');
    match assigned.strip_prefix(b"=").is_some_and(is_string) {
        true => text.len() - assigned.len(),
        false => 0,
    }
}

fn put_redacted(out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(MASKED.as_bytes());
    out.push(b'"');
}

/// Redacts the value of a key. Returns the text after it.
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
        // These values contain no secret, so they are kept.
        b"null" | b"true" | b"false" | b"\"\"" | b"{}" | b"[]" => out.extend_from_slice(scalar),
        _ => put_redacted(out),
    }
    after
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use proptest::prelude::*;

    use super::table::{FORMS, KEYS, KeyMatch, PREFIXES, SecretForm};
    use crate::record::{Policy, Verdict};
    use crate::redact::*;

    const SECRET: &str = "zq9hunterzq9hunter";

    /// Maximum number of leading bytes of a secret that may remain where a text was truncated. So few bytes reveal
    /// nothing useful.
    const HEAD: usize = 3;

    thread_local! {
        static REDACTOR: Redactor = Redactor::new(&["licence_no".into()]);
        /// Redactor without the prefilter.
        static LONG: Redactor = Redactor { prefilter: None, ..Redactor::new(&["licence_no".into()]) };
    }

    /// Redacts the first `limit` bytes of a text, and checks that the prefilter makes no difference.
    #[track_caller]
    fn redact_cut(text: &str, limit: usize) -> String {
        let payload = PayloadRef::cut(text.as_bytes(), limit);
        let with = |redactor: &Redactor| redactor.payload(payload).0.into_owned();
        let (prefilter, long) = (REDACTOR.with(with), LONG.with(with));
        assert_eq!(String::from_utf8_lossy(&prefilter), String::from_utf8_lossy(&long), "{text}");
        String::from_utf8_lossy(&prefilter).into_owned()
    }

    #[track_caller]
    fn redact(text: &str) -> String {
        redact_cut(text, text.len())
    }

    /// Forms in which a text may occur: the text itself, a text block, a JSON string in an argument, and a doubly
    /// nested string.
    fn carried(text: &str) -> [String; 4] {
        let block =
            serde_json::json!({ "content": [{ "type": "text", "text": text }] }).to_string();
        let argument =
            serde_json::json!({ "args_json": serde_json::json!({ "in": text }).to_string() });
        let twice = serde_json::json!({ "t": block }).to_string();
        [text.to_owned(), block, argument.to_string(), twice]
    }

    /// Asserts that at most `head` bytes of `secret` remain in any prefix of the text.
    #[track_caller]
    fn assert_no_cut_reveals(text: &str, secret: &str, head: usize) {
        let shown = &secret[..secret.len().min(head + 1)];
        for carried in carried(text) {
            for limit in 0..=carried.len() {
                let left = redact_cut(&carried, limit);
                assert!(
                    !left.contains(shown),
                    "cut at {limit} of {}: {left}\n{carried}",
                    carried.len()
                );
            }
        }
    }

    #[test]
    fn act_8_every_secret_form_is_redacted_and_other_text_is_unchanged() {
        for SecretForm { name, text, secret, left, .. } in FORMS {
            assert!(text.contains(secret), "{name}: the row is wrong");
            for (carried, expected) in carried(text).into_iter().zip(carried(left)) {
                assert_eq!(redact(&carried), expected, "{name}");
            }
        }
    }

    #[test]
    fn act_8_truncation_never_reveals_the_start_of_a_secret() {
        for form in FORMS {
            assert_no_cut_reveals(form.text, form.secret, HEAD);
        }
    }

    #[test]
    fn act_8_text_similar_to_a_secret_form_is_unchanged() {
        for form in FORMS {
            for stays in form.stay {
                for carried in carried(stays) {
                    assert_eq!(redact(&carried), carried, "{}", form.name);
                }
            }
        }
    }

    /// A key of several words in all spellings.
    fn spellings(words: &str) -> Vec<String> {
        let capital = |word: &str| {
            let (first, rest) = word.split_at(1);
            format!("{}{rest}", first.to_uppercase())
        };
        let parts: Vec<_> = words.split(' ').collect();
        let pascal: String = parts.iter().map(|part| capital(part)).collect();
        let camel = format!("{}{}", &pascal[..1].to_lowercase(), &pascal[1..]);
        let snake = parts.join("_");
        let train: Vec<_> = parts.iter().map(|part| capital(part)).collect();
        let mut all = vec![
            parts.join("-"),
            snake.to_uppercase(),
            parts.concat().to_uppercase(),
            train.join("-"),
            pascal,
            camel,
            snake,
            parts.concat(),
        ];
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn act_8_every_key_is_redacted_in_every_spelling_and_position() {
        for key in KEYS {
            let mut names = spellings(key.words);
            for more in ["2", "_hash", "Value"] {
                names.push(format!("{}{more}", names[0]));
            }
            if key.matches == KeyMatch::NameEnd {
                names.extend(spellings(&format!("db {}", key.words)));
            }
            for name in names {
                for (text, left) in [
                    (format!(r#"{{"{name}":"S","a":1}}"#), None),
                    (
                        format!(r#"{{"{name}" : ["S"],"a":1}}"#),
                        Some(format!(r#"{{"{name}" : "S","a":1}}"#)),
                    ),
                    (format!("{name}=S\nx"), None),
                    (format!("x; {name}='S'"), None),
                    (format!("https://h/?a=1&{name}=S&x=1"), None),
                    (format!("x --{name} S y"), None),
                    (format!(r#"["--{name}","S"]"#), None),
                    (format!(r#"{{"name":"{name}","value":"S"}}"#), None),
                    (format!(r#"{{"value":"S","name":"{name}"}}"#), None),
                    (format!("<{name}>S</{name}>"), None),
                ] {
                    let left = left.as_ref().unwrap_or(&text).replace('S', "\u{1}");
                    // The name itself may contain the letter `S`, which marks the place of the secret.
                    let marked = name.replace('S', "\u{1}");
                    let left = left.replace(&marked, &name).replace('\u{1}', REDACTED);
                    let text =
                        text.replace('S', "\u{1}").replace(&marked, &name).replace('\u{1}', SECRET);
                    assert_eq!(redact(&text), left, "{}", key.words);
                }
            }
            assert_no_cut_reveals(&format!(r#"{{"{}":"{SECRET}"}}"#, key.words), SECRET, HEAD);
        }
    }

    #[test]
    fn values_under_names_similar_to_a_secret_key_are_not_redacted() {
        for key in KEYS {
            assert!(!key.stay.is_empty(), "{}: no name to keep", key.words);
            for name in key.stay {
                for text in [
                    format!(r#"{{"{name}":"abc","a":1}}"#),
                    format!("{name}=abc"),
                    format!("x --{name} abc"),
                    format!(r#"["--{name}","abc"]"#),
                    format!(r#"{{"name":"{name}","value":"abc"}}"#),
                    format!(r#"{{"value":"abc","name":"{name}"}}"#),
                ] {
                    for carried in carried(&text) {
                        assert_eq!(redact(&carried), carried, "{}", key.words);
                    }
                }
            }
        }
    }

    #[test]
    fn act_8_every_credential_prefix_is_redacted_unless_too_short() {
        for known in PREFIXES {
            let filler: String = "a1B2c3D4e5".chars().cycle().take(known.min).collect();
            let secret = format!("{}{filler}", known.starts);
            let left =
                if known.stays { format!("{}{REDACTED}", known.starts) } else { REDACTED.into() };
            let text = format!("see {secret} there");
            for (carried, expected) in
                carried(&text).into_iter().zip(carried(&format!("see {left} there")))
            {
                assert_eq!(redact(&carried), expected);
            }
            // A kept prefix reveals only the kind of credential.
            let (hidden, head) =
                if known.stays { (&*filler, 0) } else { (&*secret, known.starts.len()) };
            assert_no_cut_reveals(&text, hidden, head.max(HEAD));
            let short = format!("see {}{} there", known.starts, &filler[..known.min.min(4) - 1]);
            assert_eq!(redact(&short), short);
            if known.digit {
                let words = format!("see {}{} there", known.starts, "words-".repeat(8));
                assert_eq!(redact(&words), words);
            }
        }
        assert!(KEYS.len() + PREFIXES.len() + FORMS.len() >= 84);
    }

    #[test]
    fn act_8_agent_token_is_redacted_anywhere() {
        // A token as shown by `token create`: 43 digits of base64url, including both special characters.
        const TOKEN: &str = "mcpp_xH2-9kQw_Lr7Zt0Vb3Nc6Ym1Xa4Sd8Fg5Hj2-Kl_PoI";
        for (text, left) in [
            ("{}", "{}"),
            ("use {} now", "use {} now"),
            ("https://h/mcp?a=1&k={}&b=2", "https://h/mcp?a=1&k={}&b=2"),
            (r#"{"env":["MCP={}"],"n":1}"#, r#"{"env":["MCP={}"],"n":1}"#),
        ] {
            let (text, left) = (text.replace("{}", TOKEN), left.replace("{}", REDACTED));
            for (carried, expected) in carried(&text).into_iter().zip(carried(&left)) {
                assert_eq!(redact(&carried), expected);
            }
            assert_no_cut_reveals(&text, TOKEN, "mcpp_".len());
        }
        // Base64-encoded JSON, as in a saved config or a cookie.
        let json = base64::engine::general_purpose::STANDARD
            .encode(format!(r#"{{"token":"{TOKEN}","note":"n"}}"#));
        assert!(!redact(&format!("x {json} y")).contains(&json[..24]));
        for stays in ["mcpp_config", "mcpp_short1", "the mcpp_ prefix"] {
            assert_eq!(redact(stays), stays);
        }
    }

    #[test]
    fn act_8_names_of_the_record_itself_are_kept() {
        let decision = Decision::new(Verdict::Blocked, Policy::Rules, "");
        let decisions = [Decision { rules: vec!["no-secrets".into()], ..decision }];
        let names = OwnNames {
            principal: "token:carol",
            server: "auth",
            tool: "get",
            decisions: &decisions,
        };
        let redactor = Redactor::default();
        let own = |text: &str| redactor.own_text(text, false, names).into_owned();
        for kept in [
            "Too many calls by 'token:carol': limit 3 per minute",
            "auth: needs login: run `mcpproxy upstream login auth`",
            "Tool 'files:write_file' is not allowed by rule 'no-secrets': ask the platform team",
            r#"{"approval_answer":{"state":"approved","by":"token:carol","door":"elicitation"}}"#,
        ] {
            assert_eq!(own(kept), kept);
            let payload = PayloadRef::cut(kept.as_bytes(), kept.len());
            assert_eq!(&*redactor.own_payload(payload, names).0, kept.as_bytes());
        }
        for (text, secret) in [
            ("'token:caroline'", "caroline"),
            ("token:carol2", "carol2"),
            ("password='token:carol'", "carol"),
            ("auth: password=hunter2", "hunter2"),
            ("x auth: hunter2", "hunter2"),
            ("'more-secrets': hunter2", "hunter2"),
            ("\u{1f}'token:carol'", "carol"),
        ] {
            assert!(!own(text).contains(secret), "{text}: {}", own(text));
        }
    }

    #[test]
    fn act_8_configured_keys_are_redacted() {
        for (text, left) in [
            (r#"{"Licence-No":"77","c":"d"}"#, r#"{"Licence-No":"[redacted]","c":"d"}"#),
            ("licence_no=77 x", "licence_no=[redacted] x"),
        ] {
            assert_eq!(redact(text), left);
        }
    }

    #[test]
    fn act_8_escapes_in_keys_and_values_are_decoded() {
        for (text, left) in [
            (r#"{"pass\u0077ord":"hunter2"}"#, r#"{"pass\u0077ord":"[redacted]"}"#),
            (r#"{"secret":"a\"b","c":"d"}"#, r#"{"secret":"[redacted]","c":"d"}"#),
            (r#"{"githubToken":{"x":["}",1]},"b":2}"#, r#"{"githubToken":"[redacted]","b":2}"#),
            (
                r#"curl -H "Authorization: Bearer abc""#,
                r#"curl -H "Authorization: Bearer [redacted]""#,
            ),
            (r#"password="a b" next"#, r#"password="[redacted]" next"#),
        ] {
            assert_eq!(redact(text), left);
        }
    }

    #[test]
    fn text_without_secrets_stays_unchanged() {
        for text in [
            r#"{"max_tokens":5,"passenger":"x","author":"me","keyboard":"q","b":[1,"a\nb","é"]}"#,
            r#"{"path":"C:\\dir\\file","q":"say \"hi\""}"#,
            "\"unclosed \\",
            "sk-learn and hf_hub",
            r#"{"usage":{"prompt_tokens":1,"completion_tokens":2},"nextPageToken":"abc","cursor":"x"}"#,
            r#"{"content":[{"text":"hello","type":"text"}]}"#,
            "a - b -- c --help -v -x",
        ] {
            assert_eq!(redact(text), text);
        }
    }

    proptest! {
        #[test]
        fn act_8_values_of_sensitive_keys_are_redacted_in_any_json(
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
        fn arbitrary_bytes_are_redacted_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let payload = PayloadRef::cut(&bytes, 150);
            let (kept, total) = Redactor::default().payload(payload);
            prop_assert!(total >= kept.len() as u64);
        }
    }
}
