//! Credentials that are recognised anywhere by their form: by their beginning, as a private key, as a
//! JWT; and the sets of bytes that words are made of. Pure.
//!
//! JSON in base64 is recognised here, and read by its caller.

use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::engine::{DecodePaddingMode, Engine};
use memchr::memmem;

use super::json_fragment::span;
use super::table::{PREFIXES, Prefix};

/// How JSON begins in base64: a brace or a bracket, then a quote, white space, or another.
pub(super) const BASE64_JSON: &[&str] =
    &["eyI", "eyJ", "eyA", "ewo", "ew0", "ewk", "W3s", "WyI", "WyJ", "Wwo", "WyA", "W1s"];
/// Shorter texts in base64 hold no secret worth the name.
pub(super) const BASE64_LEAST: usize = 16;
/// What is decoded of a text in base64; a longer one is taken out.
const MAX_BASE64_BYTES: usize = 64 << 10;
/// Lines of wrapped base64 are so long at least.
const BASE64_LINE: usize = 60;
/// The first line of a private key is no longer.
const MAX_PEM_HEAD: usize = 64;

/// Where a credential lies in the text that begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CredentialSpan {
    /// So much of the text is no secret, or says only what follows.
    pub(super) stays: usize,
    /// Where the credential ends.
    pub(super) end: usize,
}

/// The credential that `text` begins with; where it was `cut`, also as much of one as there is.
pub(super) fn find(text: &[u8], cut: bool) -> Option<CredentialSpan> {
    // The first letter decides nearly always.
    let first = *text.first()?;
    if let Some(known) = starting_with(first).find(|known| begins(text, known, cut)) {
        let end = span(text, is_token);
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

/// The known beginnings with that first letter.
pub(super) fn starting_with(first: u8) -> impl Iterator<Item = &'static Prefix> {
    let at = |place: u8| PREFIXES.get(usize::from(place).checked_sub(1)?).map(|it| (place, it));
    let head = FIRST.get(usize::from(first)).copied().unwrap_or_default();
    let all = std::iter::successors(at(head), move |(place, _)| {
        at(NEXT.get(usize::from(*place) - 1).copied().unwrap_or_default())
    });
    all.map(|(_, known)| known)
}

/// True if `text` begins with a credential of that kind.
pub(super) fn begins(text: &[u8], known: &Prefix, cut: bool) -> bool {
    let Some(rest) = text.strip_prefix(known.starts.as_bytes()) else { return false };
    // What ends a sentence or names a file is not a token.
    let part = |byte: &u8| is_word(*byte) || *byte == b'.' || (known.stays && *byte == b'/');
    let run = rest.iter().take_while(|byte| part(byte)).count();
    if cut && run == rest.len() {
        return run > 0 || !known.stays;
    }
    let digits = || rest.iter().take(run).any(u8::is_ascii_digit);
    run >= known.least && (!known.digit || digits())
}

/// Where the PEM private key ends that `text` begins with.
fn private_key(text: &[u8]) -> Option<usize> {
    // `-` may be part of a word, so the dashes are its beginning.
    let dashes = span(text, |byte| byte == b'-');
    let head = text.get(dashes..)?;
    if dashes < 5 || !head.starts_with(b"BEGIN ") {
        return None;
    }
    memmem::find(head.get(..head.len().min(MAX_PEM_HEAD))?, b"PRIVATE KEY")?;
    let end = memmem::find(text, b"-----END")
        .map(|at| at + 8)
        .and_then(|at| memmem::find(text.get(at..)?, b"-----").map(|dashes| at + dashes + 5));
    Some(end.unwrap_or(text.len()))
}

/// Where the JSON web token ends that `text` begins with: two or more parts of base64, of which
/// the first is a JSON object.
fn jwt(text: &[u8], cut: bool) -> Option<usize> {
    const LEAST: usize = 12;
    if !text.starts_with(b"eyJ") && !text.starts_with(b"ewo") && !text.starts_with(b"eyA") {
        return None;
    }
    let head = span(text, is_word);
    let run = span(text, |byte| is_word(byte) || byte == b'.');
    let parts = text.get(..run)?.split(|byte| *byte == b'.').filter(|part| part.len() >= LEAST);
    let is_jwt = head >= LEAST && parts.count() >= 2;
    (is_jwt || (cut && run == text.len())).then(|| span(text, is_token))
}

/// The JSON in base64 that `text` begins with, decoded, where its end is known and it is not too
/// long; and where it ends.
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
        let goes_on = rest.get(wrap).is_some_and(|byte| is_base64(*byte));
        if run < BASE64_LINE || !(1..=2).contains(&wrap) || !goes_on {
            let padding = span(rest, |byte| byte == b'=');
            end += padding;
            break;
        }
        end += wrap;
    }
    if letters.len() < BASE64_LEAST && !(cut && end == text.len()) {
        return None;
    }
    if (cut && end == text.len()) || letters.len() > MAX_BASE64_BYTES {
        return Some((None, end));
    }
    // What is left over of a broken end is no byte.
    letters.truncate(letters.len() - usize::from(letters.len() % 4 == 1));
    Some((BASE64.decode(&letters).ok(), end)).filter(|(decoded, _)| decoded.is_some())
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Parts of words, of keys among them.
pub(super) fn is_word(byte: u8) -> bool {
    has(&WORD, byte)
}

/// Parts of credentials.
pub(super) fn is_token(byte: u8) -> bool {
    is_word(byte) || matches!(byte, b'.' | b'/' | b'+' | b'=' | b'~')
}

fn is_base64(byte: u8) -> bool {
    is_word(byte) || matches!(byte, b'/' | b'+' | b'=')
}

/// A set of bytes: asked of every byte of every payload, so a look-up and no comparisons.
type Bytes256 = [bool; 256];

fn has(set: &Bytes256, byte: u8) -> bool {
    set.get(usize::from(byte)).is_some_and(|has| *has)
}

#[expect(clippy::indexing_slicing, reason = "at compile time, and within the tables")]
static WORD: Bytes256 = {
    let mut set = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        set[byte] = (byte as u8).is_ascii_alphanumeric() || matches!(byte as u8, b'_' | b'-');
        byte += 1;
    }
    set
};

/// For each first letter, the place of the first of [`PREFIXES`] that has it, counted from 1.
static FIRST: [u8; 256] = CHAINS.0;
/// For each of [`PREFIXES`], the place of the next with the same first letter; 0 is none.
static NEXT: [u8; PREFIXES.len()] = CHAINS.1;

#[expect(clippy::indexing_slicing, reason = "at compile time, and within the tables")]
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
