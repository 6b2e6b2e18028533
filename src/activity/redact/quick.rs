//! A quick look at a text: may there be anything to take out at all? Pure.
//!
//! Nearly no payload has a secret, and reading one as JSON in strings of JSON takes many times as
//! long as looking for words. So the words are looked for first, in the text as it lies there,
//! escapes and all. It errs on one side only: a text that [`Quick::is_clean`] passes is one that
//! the long way leaves as it is; a test compares the two. It takes nothing out itself.
//!
//! Decoding a string drops backslashes and turns `\n` and the like into control characters, which
//! no key has. What else it may do (`\u0077` for a letter, a broken escape for nothing) is not
//! looked into: such a text is not clean.

use std::cell::RefCell;

use aho_corasick::{AhoCorasick, MatchKind};
use memchr::{memchr, memchr_iter};

use super::shapes::{SHAPES, is_word};
use super::{KEY_ENDS, KEYS, is_end, is_separator};
use crate::json::scan::{Table, has_unusual_escape, translate};

/// What is no key but takes out what follows it, and what is one but also a line of a PEM file:
/// wherever they stand, the text is not clean.
const ALWAYS: [&[u8]; 3] = [b"bearer", b"basic", b"privatekey"];
/// Words are found much quicker if none has fewer letters than this.
const LONG: usize = 4;
/// What may follow a key in a folded text, if it is one.
const NEXT: &[u8] = b"\":=ntrf";
/// More words that turn out to be no keys than this: the long way is as quick.
const MAX_FINDS: usize = 32;
/// So many backslashes in a row are strings in strings in strings.
const MANY_BACKSLASHES: usize = 8;
/// What a cut escape at the end of a text takes at most.
const CUT_ESCAPE: usize = 16;

/// Knows the words that secrets are found by.
#[derive(Clone, Debug)]
pub(super) struct Quick {
    /// Keys as [`FOLDED`] leaves them; those of [`ALWAYS`] come first.
    keys: AhoCorasick,
    /// So many of the keys are whole; after them come short ones with what may follow them.
    whole: usize,
    /// The prefixes of [`SHAPES`].
    shapes: AhoCorasick,
    /// The memory of the last folded text.
    folded: RefCell<Vec<u8>>,
}

impl Quick {
    /// For the built-in keys and `extra` ones, in lower case and without separators. `None` where
    /// a key could be written so that it is not found, or hides one that it begins with.
    pub(super) fn new(extra: &[Box<[u8]>]) -> Option<Self> {
        let plain =
            |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b':' | b'=');
        if !extra.iter().all(|key| key.iter().all(plain)) {
            return None;
        }
        let keys = KEY_ENDS.iter().chain(KEYS).map(|key| key.as_bytes());
        let keys = keys.chain(extra.iter().map(AsRef::as_ref));
        let (short, long): (Vec<_>, Vec<_>) =
            keys.filter(|key| !ALWAYS.contains(key)).partition(|key| key.len() < LONG);
        let whole = ALWAYS.len() + long.len();
        let short: Vec<_> = short
            .iter()
            .flat_map(|key| NEXT.iter().map(|next| [key, &[*next][..]].concat()))
            .collect();
        let keys = ALWAYS.into_iter().chain(long).chain(short.iter().map(AsRef::as_ref));
        let shapes = SHAPES.iter().map(|(prefix, _)| prefix.as_bytes());
        Some(Self {
            keys: finder(keys)?,
            whole,
            shapes: finder(shapes)?,
            folded: RefCell::default(),
        })
    }

    /// True if nothing in the text is to be taken out; false if it is not known.
    pub(super) fn is_clean(&self, text: &[u8], cut: bool) -> bool {
        has_plain_escapes(text)
            && translate(text, &FOLDED, &mut self.folded.borrow_mut())
                .is_some_and(|folded| !self.has_key(folded))
            && !self.has_credential(text, cut)
            && !has_userinfo(text)
    }

    /// True if there may be a key with something behind it.
    fn has_key(&self, folded: &[u8]) -> bool {
        // Words may overlap: the next is looked for from the second letter of this one on.
        let (mut rest, mut finds) = (folded, 0);
        while let Some(found) = self.keys.find(rest) {
            finds += 1;
            let nth = found.pattern().as_usize();
            let end = found.end() - usize::from(nth >= self.whole);
            let after = rest.get(end..).unwrap_or_default();
            // White space may be an escape's letter: `token\n: x`.
            let next = after.iter().find(|byte| !matches!(byte, b'n' | b't' | b'r' | b'f'));
            let is_key = matches!(next, Some(b'"' | b':' | b'='));
            if is_key || nth < ALWAYS.len() || finds > MAX_FINDS {
                return true;
            }
            rest = rest.get(found.start() + 1..).unwrap_or_default();
        }
        false
    }

    /// True if there may be a credential of known shape.
    fn has_credential(&self, text: &[u8], cut: bool) -> bool {
        let (mut rest, mut finds) = (text, 0);
        while let Some(found) = self.shapes.find(rest) {
            finds += 1;
            let least = SHAPES.get(found.pattern().as_usize()).map_or(0, |(_, least)| *least);
            let token = rest.get(found.end()..).unwrap_or_default();
            let run = token.iter().take_while(|byte| is_word(**byte) || **byte == b'.').take(least);
            let run = run.count();
            let ends = cut && token.len() - run <= CUT_ESCAPE;
            if run == least || ends || finds > MAX_FINDS {
                return true;
            }
            rest = rest.get(found.start() + 1..).unwrap_or_default();
        }
        false
    }
}

fn finder<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<AhoCorasick> {
    AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(words).ok()
}

/// True if there may be `user:password@` in a URL: a slash and a colon before an `@`, with nothing
/// between that ends them.
fn has_userinfo(text: &[u8]) -> bool {
    let (mut slash, mut colon, mut from) = (false, false, 0);
    for at in memchr_iter(b'@', text) {
        let mut part = text.get(from..at).unwrap_or_default();
        if let Some(end) = part.iter().rposition(|byte| is_end(*byte) || *byte == b'/') {
            slash = part.get(end) == Some(&b'/');
            colon = false;
            part = part.get(end..).unwrap_or_default();
        }
        colon |= memchr(b':', part).is_some();
        if slash && colon {
            return true;
        }
        from = at + 1;
    }
    false
}

/// True if no escape stands for an ASCII letter or for nothing, and none is deep inside others.
fn has_plain_escapes(text: &[u8]) -> bool {
    !has_unusual_escape(text) || has_plain_escapes_exactly(text)
}

fn has_plain_escapes_exactly(text: &[u8]) -> bool {
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

/// What keys and credentials are made of, and no letter of a control character's escape.
fn stands_for_itself(byte: u8) -> bool {
    let control = matches!(byte, b'b' | b'f' | b'n' | b'r' | b't');
    (byte.is_ascii_alphanumeric() & !control) | (byte == b'_') | (byte == b'-') | (byte == b'.')
}

/// Makes of a text how keys are compared: lower case, without separators, white space and
/// backslashes.
#[expect(clippy::indexing_slicing, reason = "at compile time, and within the table")]
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

    use super::super::Redactor;
    use super::*;

    /// What hostile and honest texts are made of.
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
        fn act_8_what_is_passed_quickly_is_what_the_long_way_leaves(text in texts(), cut: bool) {
            let out = REDACTOR.with(|redactor| {
                redactor.quick.as_ref().unwrap().is_clean(&text, cut).then(|| {
                    let mut out = Vec::new();
                    redactor.scrub(&text, cut, 0, &mut out);
                    out
                })
            });
            if let Some(out) = out {
                prop_assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(&out));
            }
        }
    }

    #[test]
    fn what_has_no_secret_is_mostly_passed_quickly() {
        let quick = Quick::new(&[]).unwrap();
        let plain = serde_json::json!({
            "author": "octo", "email": "octo@example.invalid", "passed": true, "max_tokens": 5,
            "url": "https://example.invalid/a/b?c=d", "task": "risk-free", "title": "a \"b\"\nc",
            "text": "tokens, secrets and passwords, the cookie jar",
        });
        let nested = serde_json::json!({ "content": [{ "text": plain.to_string() }] }).to_string();
        for text in [plain.to_string(), nested, r#"{"a":"caf\u00e9"}"#.into(), "{}".into()] {
            assert!(quick.is_clean(text.as_bytes(), false), "{text}");
        }
        assert!(Quick::new(&[Box::from("clé".as_bytes())]).is_none());
        for key in [&b"a\\b"[..], b"a:b", b"a=b"] {
            assert!(Quick::new(&[Box::from(key)]).is_none());
        }
    }
}
