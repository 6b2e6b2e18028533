//! Detection of credentials by their form anywhere in a text: known prefixes, private keys, JWTs and base64-encoded
//! JSON; and the sets of bytes of which words consist. Pure.
//!
//! Base64-encoded JSON is only decoded here; the caller inspects it.

use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::engine::{DecodePaddingMode, Engine};
use memchr::memmem;

use super::json_fragment::span;
use super::table::{PREFIXES, Prefix};

/// Beginnings of JSON in base64: a brace or bracket, followed by a quotation mark, white space or another
/// bracket.
pub(super) const BASE64_JSON: &[&str] =
    &["eyI", "eyJ", "eyA", "ewo", "ew0", "ewk", "W3s", "WyI", "WyJ", "Wwo", "WyA", "W1s"];
/// Minimum length of base64 text that is decoded; shorter text holds no secret.
pub(super) const MIN_BASE64: usize = 16;
/// Maximum length of base64 text that is decoded; longer text is redacted.
const MAX_BASE64_BYTES: usize = 64 << 10;
/// Minimum line length of wrapped base64.
const BASE64_LINE: usize = 60;
/// Maximum length of the first line of a private key.
const MAX_PEM_HEAD: usize = 64;

/// Extent of a credential at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CredentialSpan {
    /// Length of the prefix that is not secret.
    pub(super) stays: usize,
    /// End of the credential.
    pub(super) end: usize,
}

/// Finds a credential at the start of `text`. At the end of a `cut` text, the credential may be partial.
pub(super) fn find(text: &[u8], cut: bool) -> Option<CredentialSpan> {
    // The first letter almost always rules out a credential.
    let first = *text.first()?;
    if let Some(known) = starting_with(first).find(|known| begins(text, known, cut)) {
        // A URL path that is a credential may contain a colon: `bot123:X`.
        let end = span(text, |byte| is_token(byte) || (known.stays && byte == b':'));
        return Some(CredentialSpan {
            stays: if known.stays { known.starts.len() } else { 0 },
            end,
        });
    }
    let end = match first {
        b'-' => private_key(text),
        b'e' => jwt(text, cut),
        _ => None,
    };
    end.map(|end| CredentialSpan { stays: 0, end })
}

/// Known prefixes that start with this letter.
pub(super) fn starting_with(first: u8) -> impl Iterator<Item = &'static Prefix> {
    let at = |place: u8| PREFIXES.get(usize::from(place).checked_sub(1)?).map(|it| (place, it));
    let head = FIRST.get(usize::from(first)).copied().unwrap_or_default();
    let all = std::iter::successors(at(head), move |(place, _)| {
        at(NEXT.get(usize::from(*place) - 1).copied().unwrap_or_default())
    });
    all.map(|(_, known)| known)
}

/// Whether `text` starts with a credential of the kind `known`.
pub(super) fn begins(text: &[u8], known: &Prefix, cut: bool) -> bool {
    let Some(rest) = text.strip_prefix(known.starts.as_bytes()) else { return false };
    // A word at the end of a sentence or before a file extension is not a token.
    let part = |byte: &u8| is_word(*byte) || *byte == b'.' || (known.stays && *byte == b'/');
    let run = rest.iter().take_while(|byte| part(byte)).count();
    if cut && run == rest.len() {
        return run > 0 || !known.stays;
    }
    let digits = || rest.iter().take(run).any(u8::is_ascii_digit);
    run >= known.min && (!known.digit || digits())
}

/// End of the PEM private key at the start of `text`.
fn private_key(text: &[u8]) -> Option<usize> {
    // `-` may be part of a word, so `text` starts with the dashes of the header.
    let dashes = span(text, |byte| byte == b'-');
    let head = text.get(dashes..)?;
    // RFC 7468, and the SSH2 variant (RFC 4716).
    let (ends, closes): (&[u8], &[u8]) = match (dashes, head) {
        (5.., [b'B', ..]) => (b"-----END", b"-----"),
        (4, [b' ', b'B', ..]) => (b"---- END", b"----"),
        _ => return None,
    };
    if !head.trim_ascii_start().starts_with(b"BEGIN ") {
        return None;
    }
    memmem::find(head.get(..head.len().min(MAX_PEM_HEAD))?, b"PRIVATE KEY")?;
    let end = memmem::find(text, ends).map(|at| at + ends.len()).and_then(|at| {
        memmem::find(text.get(at..)?, closes).map(|dashes| at + dashes + closes.len())
    });
    Some(end.unwrap_or(text.len()))
}

/// End of the JSON web token at the start of `text`: two or more base64 parts, the first of which is a JSON
/// object.
fn jwt(text: &[u8], cut: bool) -> Option<usize> {
    const MIN_PART: usize = 12;
    if !text.starts_with(b"eyJ") && !text.starts_with(b"ewo") && !text.starts_with(b"eyA") {
        return None;
    }
    let head = span(text, is_word);
    let run = span(text, |byte| is_word(byte) || byte == b'.');
    let parts = text.get(..run)?.split(|byte| *byte == b'.').filter(|part| part.len() >= MIN_PART);
    let is_jwt = head >= MIN_PART && parts.count() >= 2;
    (is_jwt || (cut && run == text.len())).then(|| span(text, is_token))
}

/// Base64-encoded JSON at the start of `text`, and the position of its end. The JSON is decoded if its end is known and
/// it is not too long.
pub(super) fn base64_json(text: &[u8], cut: bool) -> Option<(Option<Vec<u8>>, usize)> {
    let begins = matches!(text.first(), Some(b'e' | b'W'))
        && BASE64_JSON.iter().any(|begin| text.starts_with(begin.as_bytes()));
    if !begins {
        return None;
    }
    let mut letters = Vec::new();
    let mut end = 0;
    loop {
        let line = text.get(end..).unwrap_or_default();
        let run = span(line, |byte| byte != b'=' && is_base64(byte));
        letters.extend(line.iter().take(run).map(|byte| match byte {
            b'-' => b'+',
            b'_' => b'/',
            other => *other,
        }));
        end += run;
        let rest = line.get(run..).unwrap_or_default();
        let wrap = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let continues = rest.get(wrap).is_some_and(|byte| is_base64(*byte));
        if run < BASE64_LINE || !(1..=2).contains(&wrap) || !continues {
            let padding = span(rest, |byte| byte == b'=');
            end += padding;
            break;
        }
        end += wrap;
    }
    if letters.len() < MIN_BASE64 && !(cut && end == text.len()) {
        return None;
    }
    if (cut && end == text.len()) || letters.len() > MAX_BASE64_BYTES {
        return Some((None, end));
    }
    // A single letter that is left over at a truncated end does not encode a whole byte.
    letters.truncate(letters.len() - usize::from(letters.len() % 4 == 1));
    Some((BASE64.decode(&letters).ok(), end)).filter(|(decoded, _)| decoded.is_some())
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Whether the byte can be part of a word or key.
pub(super) fn is_word(byte: u8) -> bool {
    has(&WORD, byte)
}

pub(super) fn is_token(byte: u8) -> bool {
    is_word(byte) || matches!(byte, b'.' | b'/' | b'+' | b'=' | b'~')
}

fn is_base64(byte: u8) -> bool {
    is_word(byte) || matches!(byte, b'/' | b'+' | b'=')
}

/// Set of bytes as a lookup table, because it is used for every byte of every payload.
type Bytes256 = [bool; 256];

fn has(set: &Bytes256, byte: u8) -> bool {
    set.get(usize::from(byte)).is_some_and(|has| *has)
}

#[expect(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, with indices within the tables"
)]
static WORD: Bytes256 = {
    let mut set = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        set[byte] = (byte as u8).is_ascii_alphanumeric() || matches!(byte as u8, b'_' | b'-');
        byte += 1;
    }
    set
};

/// Index in [`PREFIXES`], counted from 1, of the first prefix with each first letter; 0 for none.
static FIRST: [u8; 256] = CHAINS.0;
/// Index in [`PREFIXES`], counted from 1, of the next prefix with the same first letter; 0 for none.
static NEXT: [u8; PREFIXES.len()] = CHAINS.1;

#[expect(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, with indices within the tables"
)]
const CHAINS: ([u8; 256], [u8; PREFIXES.len()]) = {
    assert!(PREFIXES.len() < 256);
    let (mut first, mut next) = ([0; 256], [0; PREFIXES.len()]);
    let mut at = PREFIXES.len();
    while at > 0 {
        let letter = PREFIXES[at - 1].starts.as_bytes()[0] as usize;
        next[at - 1] = first[letter];
        first[letter] = at as u8;
        at -= 1;
    }
    (first, next)
};
