//! Prefilter that quickly recognizes most texts without secrets. Pure.
//!
//! Almost no payload has a secret, and scrubbing a payload as JSON in strings of JSON takes many times as long as
//! searching for words. The prefilter therefore searches the raw text, escapes included, for these words first.
//! Invariant: the scrubber does not change a text that passes [`Prefilter::is_clean`]; a test compares the two. The
//! converse need not hold.
//!
//! Decoding a string drops backslashes and turns `\n` and similar escapes into control characters, which no key
//! contains. Other escapes (`\u0077` for a letter, a broken escape for nothing) are not decoded: a text that contains
//! one is not clean.

use std::cell::RefCell;
use std::iter;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use memchr::{memchr_iter, memmem};

use super::credentials::{BASE64_JSON, MIN_BASE64, begins, is_token, is_word, starting_with};
use super::json_fragment::span;
use super::keys::{Keys, LETTERS, is_separator, is_user};
use super::plain::{is_element_name, is_end};
use super::table::PREFIXES;
use mcpproxy_json::scan::{Table, has_unusual_escape, translate};

/// Words that make a text not clean. Secrets follow these words although they are not keys, except `privatekey`, which
/// is both a key and part of a PEM header.
const ALWAYS: [&[u8]; 4] = [b"bearer", b"basic", b"privatekey", b"identifiedby"];
/// Words of which every built-in key contains at least one; searching for few words is faster.
const IN_KEYS: &[&str] = &[
    "pass",
    "pwd",
    "secret",
    "token",
    "jwt",
    "key",
    "auth",
    "cred",
    "cookie",
    "sid",
    "sess",
    "otp",
    "psk",
    "phrase",
    "mnemonic",
    "code",
    "assertion",
    "sig",
    "hmac",
    "contrasena",
    "senha",
];
/// Number of bytes before a word that are searched for a key.
const KEY_BYTES: usize = 64;
/// Maximum number of found words that are not keys. Beyond this number, scrubbing the text is as fast as searching on.
const MAX_FINDS: usize = 128;
/// Number of consecutive backslashes, as in deeply nested strings, that makes a text not clean.
const MANY_BACKSLASHES: usize = 8;
/// Beginning of the last word of every key whose value is named by a sibling member.
const VALUE: &[u8] = b"val";
/// Minimum length of a credential of known form.
const MIN_RUN: usize = 15;
/// Number of leading bytes of a prefix that are searched for.
const STEM: usize = 4;

/// Word search for secrets.
#[derive(Clone, Debug)]
pub(super) struct Prefilter {
    /// Words of keys, folded by [`FOLDED`]; the words of [`ALWAYS`] come first.
    words: AhoCorasick,
    /// Beginning of `value` and `val`.
    value: memmem::Finder<'static>,
    /// Buffer of the last folded text.
    folded: RefCell<Vec<u8>>,
}

impl Prefilter {
    /// Compiles the word search. Returns `None` if a configured key has spellings that the search would miss, or starts
    /// with another key and hides it.
    pub(super) fn new(keys: &Keys) -> Option<Self> {
        let plain =
            |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b':' | b'=');
        if !keys.extra().all(|key| key.iter().all(plain)) {
            return None;
        }
        let words = IN_KEYS.iter().map(|word| word.as_bytes());
        let words = ALWAYS.into_iter().chain(words).chain(keys.extra());
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(words);
        Some(Self {
            words: finder.ok()?,
            value: memmem::Finder::new(VALUE),
            folded: RefCell::default(),
        })
    }

    /// Whether the text needs no redaction, apart from an [`open_authority`].
    pub(super) fn is_clean(&self, text: &[u8], cut: bool, keys: &Keys) -> bool {
        has_plain_escapes(text)
            && translate(text, &FOLDED, &mut self.folded.borrow_mut()).is_some_and(|folded| {
                !(self.has_key(folded, keys) || (cut && self.has_value(folded)))
            })
            && !has_credential(text, cut)
            && !has_userinfo(text)
            && !has_option(text, keys)
            && !has_element(text, keys)
    }

    /// Whether the text may contain a key with a value.
    fn has_key(&self, folded: &[u8], keys: &Keys) -> bool {
        let (mut from, mut finds) = (0, 0);
        // Words may overlap: the next search starts at the second letter of this one.
        while let Some(found) = self.words.find(folded.get(from..).unwrap_or_default()) {
            finds += 1;
            if found.pattern().as_usize() < ALWAYS.len() || finds > MAX_FINDS {
                return true;
            }
            let end = from + found.end();
            let after = folded.get(end..).unwrap_or_default();
            let more = span(after, |byte| byte.is_ascii_alphanumeric());
            let key = folded.get((from + found.start()).saturating_sub(KEY_BYTES)..end + more);
            if after.get(more).is_some_and(|next| b"\":='])`*%".contains(next))
                && key.is_some_and(|key| keys.may_end_with_key(key))
            {
                return true;
            }
            from += found.start() + 1;
        }
        false
    }

    /// Whether the text may contain a value whose name follows, or would have followed if the text had not been cut.
    fn has_value(&self, folded: &[u8]) -> bool {
        self.value.find_iter(folded).any(|at| {
            let after = folded.get(at + VALUE.len()..).unwrap_or_default();
            let after = after.strip_prefix(b"ue").unwrap_or(after);
            after.first() == Some(&b'"')
        })
    }
}

/// Whether the text may contain a credential of known form.
fn has_credential(text: &[u8], cut: bool) -> bool {
    let open = open_run(text).filter(|_| cut);
    let mut finds = 0;
    let mut begins_at = |at: usize| {
        let rest = text.get(at..).unwrap_or_default();
        rest.first_chunk().is_some_and(|three| may_be_stem(*three)) && is_stem(rest) && {
            finds += 1;
            finds > MAX_FINDS || may_be_credential(rest, cut)
        }
    };
    long_runs(text).chain(open).any(|run| {
        let mut at = run.start;
        while at < run.end {
            let is_escape = at.checked_sub(1).and_then(|before| text.get(before)) == Some(&b'\\');
            // After an escape, the word starts after the escape's letter, or after the digits of `\u00e9`.
            if begins_at(at) || (is_escape && (begins_at(at + 1) || begins_at(at + 5))) {
                return true;
            }
            let word = text.get(at..run.end).unwrap_or_default();
            at += span(word, is_word) + 1;
        }
        false
    })
}

/// Whether these three bytes may be the start of a prefix. True for the start of every prefix, and for few other bytes.
fn may_be_stem(three: [u8; 3]) -> bool {
    let slot = slot(three);
    STEMS.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
}

/// Whether a text starts with the stem of a prefix. A credential truncated before its stem reveals nothing.
fn is_stem(text: &[u8]) -> bool {
    let known = text.first().into_iter().flat_map(|first| starting_with(*first));
    let mut stems = known.map(|known| known.starts).chain(BASE64_JSON.iter().copied());
    stems.any(|stem| text.starts_with(stem.as_bytes().get(..STEM).unwrap_or(stem.as_bytes())))
}

/// Set of [`slot`]s of the first three bytes of [`PREFIXES`] and of base64-encoded JSON.
#[expect(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, with indices within the tables"
)]
static STEMS: [u64; SLOTS / 64] = {
    const fn add(mut set: [u64; SLOTS / 64], stem: &str) -> [u64; SLOTS / 64] {
        let stem = stem.as_bytes();
        let slot = slot([stem[0], stem[1], stem[2]]);
        set[slot / 64] |= 1 << (slot % 64);
        set
    }
    let (mut set, mut at) = ([0; SLOTS / 64], 0);
    while at < PREFIXES.len() {
        set = add(set, PREFIXES[at].starts);
        at += 1;
    }
    at = 0;
    while at < BASE64_JSON.len() {
        set = add(set, BASE64_JSON[at]);
        at += 1;
    }
    set
};

/// Number of slots, chosen so that one slot in eighty is set.
const SLOTS: usize = 8192;

const fn slot([a, b, c]: [u8; 3]) -> usize {
    (u32::from_le_bytes([a, b, c, 0]).wrapping_mul(0x9e37_79b1) >> (u32::BITS - SLOTS.ilog2()))
        as usize
}

/// Runs of at least [`MIN_RUN`] bytes of which a credential and its escapes may consist. Ordinary text has few runs,
/// and most of its bytes are skipped.
fn long_runs(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    iter::from_fn(move || {
        loop {
            let window = text.get(from..from + MIN_RUN)?;
            match window.iter().rposition(|byte| !is_run(*byte)) {
                Some(end) => from += end + 1,
                None => {
                    let rest = text.get(from + MIN_RUN..).unwrap_or_default();
                    let run = from..from + MIN_RUN + span(rest, is_run);
                    from = run.end + 1;
                    return Some(run);
                }
            }
        }
    })
}

/// Range of a credential that may continue beyond the end of the text.
fn open_run(text: &[u8]) -> Option<Range<usize>> {
    let (before, _) = text.split_at(text.len().saturating_sub(CUT_ESCAPE));
    let start = before.iter().rposition(|byte| !is_run(*byte)).map_or(0, |end| end + 1);
    Some(start..text.len())
}

fn is_run(byte: u8) -> bool {
    is_token(byte) || byte == b'\\'
}

/// Whether `text`, which is not decoded, may start with a credential.
fn may_be_credential(text: &[u8], cut: bool) -> bool {
    let run = text.iter().take_while(|byte| is_token(**byte)).count();
    // A backslash may precede a character of the credential, as in `\/`, or the byte after the credential.
    if text.get(run) == Some(&b'\\') && text.get(run + 1) == Some(&b'/') {
        return true;
    }
    if cut && text.len() - run <= CUT_ESCAPE {
        return true;
    }
    let json = BASE64_JSON.iter().any(|begin| text.starts_with(begin.as_bytes()));
    let mut known = text.first().into_iter().flat_map(|first| starting_with(*first));
    (json && run >= MIN_BASE64) || known.any(|known| begins(text, known, cut))
}

/// Maximum length of a truncated escape at the end of a text.
const CUT_ESCAPE: usize = 16;

/// Start of the host of a URL at the end of the text: if the text was cut there, a token with an `@` after it
/// may have been cut off.
pub(super) fn open_authority<'a>(text: &'a [u8]) -> Option<usize> {
    let end = text.iter().rposition(|byte| is_end(*byte) || *byte == b'/')?;
    let (before, host) = text.split_at_checked(end + 1)?;
    // Either slash may be escaped in nested strings.
    let unescaped = |mut text: &'a [u8]| {
        while let Some(shorter) = text.strip_suffix(b"\\") {
            text = shorter;
        }
        text
    };
    let before = unescaped(before.strip_suffix(b"/")?).strip_suffix(b"/")?;
    let is_url = unescaped(before).ends_with(b":");
    let begins = match host {
        [b':', first, ..] | [first, ..] => is_word(*first),
        [] => false,
    };
    (is_url && begins).then_some(end + 1)
}

/// Whether the text may contain a user name in a URL: two slashes before an `@`, with no end of an authority in between.
fn has_userinfo(text: &[u8]) -> bool {
    let ends = |byte: &u8| is_end(*byte) || *byte == b'/';
    let opens = |at: usize| {
        let from = at.saturating_sub(MAX_AUTHORITY);
        let before = text.get(from..at).unwrap_or_default();
        let Some(end) = before.iter().rposition(ends) else { return from > 0 };
        // The second slash may be escaped.
        let first = end.checked_sub(1).and_then(|first| before.get(first));
        before.get(end) == Some(&b'/') && first.is_none_or(|first| b"/\\".contains(first))
    };
    memchr_iter(b'@', text).any(opens)
}

/// Number of bytes before an `@` that are searched for a user name and password.
const MAX_AUTHORITY: usize = 1 << 10;

/// Whether the text may contain an option that takes a secret.
fn has_option(text: &[u8], keys: &Keys) -> bool {
    memchr_iter(b'-', text).any(|at| {
        let before = |back: usize| at.checked_sub(back).and_then(|at| text.get(at));
        // The option does not follow a word, but may follow the letter of an escape.
        if before(1).is_some_and(|byte| is_word(*byte)) && before(2) != Some(&b'\\') {
            return false;
        }
        let rest = text.get(at + 1..).unwrap_or_default();
        let Some(first) = rest.first() else { return false };
        let name = rest.get(usize::from(*first == b'-')..).unwrap_or_default();
        let name = name.get(..span(name, is_word)).unwrap_or_default();
        LETTERS.contains(first) || keys.is_sensitive(name) || (*first == b'-' && is_user(name))
    })
}

/// Whether the text may contain an XML element whose name marks a secret.
fn has_element(text: &[u8], keys: &Keys) -> bool {
    memchr_iter(b'<', text).any(|at| {
        let rest = text.get(at + 1..).unwrap_or_default();
        let name = rest.get(..span(rest, is_element_name)).unwrap_or_default();
        keys.is_sensitive(name.rsplit(|byte| *byte == b':').next().unwrap_or_default())
    })
}

/// Whether all escapes are plain: none is broken, encodes an ASCII letter, or is deeply nested.
fn has_plain_escapes(text: &[u8]) -> bool {
    !has_unusual_escape(text) || all_escapes_are_plain(text)
}

fn all_escapes_are_plain(text: &[u8]) -> bool {
    let (mut row, mut after_last) = (0, 0);
    memchr_iter(b'\\', text).all(|at| {
        row = if at == after_last { row + 1 } else { 1 };
        after_last = at + 1;
        let plain = match text.get(at + 1) {
            Some(b'u') => {
                let digits = text.get(at + 2..at + 6).unwrap_or_default();
                let unit = std::str::from_utf8(digits).ok().filter(|it| it.len() == 4);
                let unit = unit.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                unit.and_then(char::from_u32).is_some_and(|letter| !letter.is_ascii())
            }
            Some(byte) => !stands_for_itself(*byte),
            None => true,
        };
        plain && row < MANY_BACKSLASHES
    })
}

/// Whether a byte is part of keys and credentials and is not the letter of a control character's escape.
fn stands_for_itself(byte: u8) -> bool {
    let control = matches!(byte, b'b' | b'f' | b'n' | b'r' | b't');
    (byte.is_ascii_alphanumeric() & !control) | (byte == b'_') | (byte == b'-') | (byte == b'.')
}

/// Folds text in the way keys are compared: lower case, without separators, white space and backslashes.
#[expect(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, with indices within the table"
)]
const FOLDED: Table = {
    let mut folded = [0; 128];
    let mut at = 0;
    while at < folded.len() {
        let byte = at as u8;
        if !is_separator(byte) && !byte.is_ascii_whitespace() && byte != b'\\' {
            folded[at] = byte.to_ascii_lowercase();
        }
        at += 1;
    }
    folded
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::redact::Redactor;
    use crate::redact::Scrubber;
    use crate::redact::plain::ScrubInput;
    use crate::redact::table::Prefix;

    /// Building blocks of hostile and harmless texts.
    const PIECES: &[&str] = &[
        "pass",
        "word",
        "token",
        "api",
        "key",
        "auth",
        "or",
        "s",
        "private",
        "secret",
        "jwt",
        "pwd",
        "J-W_T",
        "to_ken",
        "PIN",
        "pinpoint",
        "Cookie",
        "Authorization",
        "Bearer",
        "basic",
        "licence",
        "no",
        "value",
        "name",
        "--token",
        "\"",
        "\"",
        "\":\"",
        "\",\"",
        ":",
        "=",
        " ",
        "_",
        "-",
        ".",
        "/",
        "://",
        "@",
        "user:pw@",
        ",",
        "{",
        "}",
        "[",
        "]",
        "\n",
        "\t",
        "\\",
        "\\\\",
        "\\n",
        "\\\"",
        "\\n:",
        "\\t=",
        "\\b",
        "\\f\"",
        "\\/",
        "\\u0077",
        "\\u00e9",
        "\\u0022",
        "\\ud83d",
        "\\ude00",
        "\\uzzzz",
        "\\u",
        "u0077",
        "\\p",
        "é",
        "n",
        "t",
        "12345",
        "abcdefghij",
        "ghp_",
        "hp_",
        "sk-",
        "AKIA",
        "eyJ",
        "IOSFODNN7EXAMPLE",
        "-----BEGIN ",
        "PRIVATE KEY-----",
        "hunter2",
        "'",
        "abcdefghijklmnopqrstuvwxyz0123456789",
        "https://",
        "\u{b}",
        "\u{c}",
        "hash",
        "2",
        "sig",
        "otp",
        "page",
        "<",
        ">",
        "</",
        "'",
        "|",
        "?",
        "&",
        " -p ",
        " -u ",
        "curl",
        "mysql",
        "sshpass",
        "IDENTIFIED BY ",
        "%5D",
        "**",
        "[",
        "W3sidG9rZW4iOiJ6cTlodW50ZXIifV0=",
        "hooks.slack.com/services/",
        "signature",
        "hmac",
        "`",
        "=>",
        ">-",
        "  ",
    ];

    thread_local! {
        static REDACTOR: Redactor = Redactor::new(&["licence_no".into(), "pin".into()]);
    }

    fn texts() -> impl Strategy<Value = Vec<u8>> {
        let pieces = proptest::collection::vec(proptest::sample::select(PIECES), 0..16);
        (pieces, 0..4, any::<bool>(), 0..40_usize).prop_map(|(pieces, depth, wraps, cut)| {
            let mut text = pieces.concat();
            for _ in 0..depth {
                text = match wraps {
                    true => serde_json::json!({ "in": text }).to_string(),
                    false => serde_json::json!(text).to_string(),
                };
            }
            let mut text = text.into_bytes();
            text.truncate(text.len() - cut.saturating_sub(20).min(text.len()));
            text
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn act_8_texts_that_pass_the_prefilter_are_unchanged_by_scrubbing(text in texts(), cut: bool) {
            let out = REDACTOR.with(|redactor| {
                let open = cut && open_authority(&text).is_some();
                (!open && redactor.prefilter.as_ref().unwrap().is_clean(&text, cut, &redactor.keys)).then(|| {
                    let mut out = Vec::new();
                    Scrubber::new(&redactor.keys).scrub(&ScrubInput { bytes: &text, cut, depth: 0 }, &mut out);
                    out
                })
            });
            if let Some(out) = out {
                prop_assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(&out));
            }
        }
    }

    #[test]
    fn act_8_credential_behind_an_escape_does_not_pass_the_prefilter() {
        let keys = Keys::new(&[]);
        let prefilter = Prefilter::new(&keys).unwrap();
        for before in ["", " ", "/", r"\n", r"\\n", r"\/", r"\u00e9", r"\\u00e9", r"\ud83d\ude00"] {
            for credential in ["ghp_abcdefghijklmnopqrstuvwxyz0123456789", "AKIAIOSFODNN7EXAMPLE"] {
                let text = format!(r#"{{"a":"{before}{credential}"}}"#);
                assert!(!prefilter.is_clean(text.as_bytes(), false, &keys), "{text}");
            }
        }
        let inside = br#"{"a":"xghp_abcdefghijklmnopqrstuvwxyz0123456789"}"#;
        assert!(prefilter.is_clean(inside, false, &keys), "no word starts at the prefix");
    }

    #[test]
    fn ordinary_texts_without_a_secret_pass_the_prefilter() {
        let keys = Keys::new(&[]);
        let prefilter = Prefilter::new(&keys).unwrap();
        let plain = serde_json::json!({
            "author": "octo", "email": "octo@example.invalid", "passed": true, "max_tokens": 5,
            "url": "https://example.invalid/a/b?c=d", "task": "risk-free", "title": "a \"b\"\nc",
            "text": "tokens, secrets and passwords, the cookie jar",
        });
        let nested = serde_json::json!({ "content": [{ "text": plain.to_string() }] }).to_string();
        for text in [plain.to_string(), nested, r#"{"a":"caf\u00e9"}"#.into(), "{}".into()] {
            assert!(prefilter.is_clean(text.as_bytes(), false, &keys), "{text}");
        }
        for key in ["clé", "a\\b", "a:b", "a=b"] {
            assert!(Prefilter::new(&Keys::new(&[key.into()])).is_none());
        }
        let has = |key: &[u8], word: &[u8]| memmem::find(key, word).is_some();
        let has_word = |key: &[u8]| {
            IN_KEYS.iter().any(|word| has(key, word.as_bytes()))
                || ALWAYS.iter().any(|word| has(key, word))
        };
        assert!(keys.words().all(has_word));
        let is_long = |it: &Prefix| it.starts.len() + it.min >= MIN_RUN;
        assert!(PREFIXES.iter().all(|it| is_long(it) && it.starts.bytes().all(is_run)));
        const { assert!(MIN_BASE64 >= MIN_RUN) };
        let taken: u32 = STEMS.iter().map(|word| word.count_ones()).sum();
        assert!(taken as usize <= SLOTS / 64, "{taken}");
    }
}
