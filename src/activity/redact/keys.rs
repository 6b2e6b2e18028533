//! Which keys hold secrets, whatever their case and separators. Pure.
//!
//! Only names are compared; what follows a key, and whether that is a value, is up to the callers.

use super::table::{HARMLESS, KEYS, MODIFIERS, Whole};

/// Longer words are not keys.
const MAX_KEY_BYTES: usize = 128;
/// So many modifiers may follow a key's name: `password_hash_base64`.
const MAX_MODIFIERS: usize = 3;
/// Letters of a key's end that are looked at first.
const TAIL: usize = 3;

/// The built-in keys and those of the configuration.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// Built-in endings, folded.
    ends: Vec<Box<[u8]>>,
    /// Built-in keys that are ordinary words at the end of others.
    wholes: Vec<Box<[u8]>>,
    /// Endings of the configuration.
    extra: Vec<Box<[u8]>>,
    /// The last [`TAIL`] letters of everything that a sensitive key can end with, in order.
    tails: Vec<u32>,
    /// True where a key of the configuration is shorter than that.
    any_tail: bool,
    /// True for each byte that a sensitive key may end with.
    lasts: Box<[bool]>,
}

impl Keys {
    pub(super) fn new(extra: &[String]) -> Self {
        let of = |whole: bool| {
            let rows = KEYS.iter().filter(move |row| matches!(row.whole, Whole::Yes) == whole);
            rows.map(|row| fold(row.words.as_bytes())).collect::<Vec<_>>()
        };
        let (ends, wholes) = (of(false), of(true));
        let extra = extra.iter().map(|key| fold(key.as_bytes()));
        let extra: Vec<_> = extra.filter(|key| !key.is_empty()).collect();
        let all = ends.iter().chain(&wholes).chain(&extra).map(|word| &**word);
        let all = all.chain(MODIFIERS.iter().map(|word| word.as_bytes()));
        let mut tails: Vec<_> = all.clone().map(|word| tail(word.iter().rev())).collect();
        tails.sort_unstable();
        tails.dedup();
        let any_tail = all.clone().any(|word| word.len() < TAIL);
        let ends_word = |last: u8| {
            let letter = last.to_ascii_lowercase();
            let passed_over = last.is_ascii_digit() || is_separator(last);
            passed_over || all.clone().any(|word| word.last() == Some(&letter))
        };
        let lasts = (0..=u8::MAX).map(ends_word).collect();
        Self { ends, wholes, extra, tails, any_tail, lasts }
    }

    /// True if a folded text may end with a sensitive key: always where one does, also with an
    /// escaped tab behind it, and for keys that only count in queries.
    pub(super) fn may_end_with_key(&self, folded: &[u8]) -> bool {
        let mut name = folded;
        loop {
            let query = name.ends_with(b"signature") || name.ends_with(b"hmac");
            if query || self.words().any(|word| name.ends_with(word)) {
                return true;
            }
            let shorter = MODIFIERS.iter().find_map(|word| name.strip_suffix(word.as_bytes()));
            let last = |last: &u8| last.is_ascii_digit() || *last == b't';
            let fewer = || name.split_last().filter(|(letter, _)| last(letter));
            match shorter.or_else(|| fewer().map(|(_, rest)| rest)) {
                Some(rest) => name = rest,
                None => return false,
            }
        }
    }

    /// All words that a sensitive key holds, folded: the built-in ones, and those of the
    /// configuration.
    pub(super) fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.ends.iter().chain(&self.wholes).chain(&self.extra).map(|word| &**word)
    }

    /// The words of the configuration, folded.
    pub(super) fn extra(&self) -> impl Iterator<Item = &[u8]> {
        self.extra.iter().map(|word| &**word)
    }

    /// True if what a key of that name holds is secret.
    pub(super) fn is_sensitive(&self, key: &[u8]) -> bool {
        // The last letters decide nearly always.
        let last = key.last().and_then(|last| self.lasts.get(usize::from(*last)));
        if last != Some(&true) || key.len() > MAX_KEY_BYTES || !self.may_be(key) {
            return false;
        }
        let mut buffer = [0; MAX_KEY_BYTES];
        let mut len = 0;
        let letters = key.iter().filter(|byte| !is_separator(**byte));
        for (slot, letter) in buffer.iter_mut().zip(letters) {
            *slot = letter.to_ascii_lowercase();
            len += 1;
        }
        let mut name = buffer.get(..len).unwrap_or_default();
        for _ in 0..=MAX_MODIFIERS {
            if self.names_secret(name) {
                return true;
            }
            name = without_digits(name);
            if self.names_secret(name) {
                return true;
            }
            let shorter = MODIFIERS.iter().find_map(|word| name.strip_suffix(word.as_bytes()));
            let Some(shorter) = shorter.filter(|shorter| !shorter.is_empty()) else { return false };
            name = shorter;
        }
        false
    }

    fn may_be(&self, key: &[u8]) -> bool {
        let letters = key.iter().rev().filter(|byte| !is_separator(**byte));
        let letters = letters.skip_while(|byte| byte.is_ascii_digit());
        // A key of the configuration may end with digits itself.
        let exact = key.iter().rev().filter(|byte| !is_separator(**byte));
        let digit = key.last().is_some_and(u8::is_ascii_digit);
        let known = |tail: u32| self.tails.binary_search(&tail).is_ok();
        self.any_tail || known(tail(letters)) || (digit && known(tail(exact)))
    }

    fn names_secret(&self, name: &[u8]) -> bool {
        let ends = |words: &[Box<[u8]>]| words.iter().any(|word| name.ends_with(word));
        let harmless = || HARMLESS.iter().any(|word| name.ends_with(word.as_bytes()));
        ends(&self.extra)
            || self.wholes.iter().any(|word| name == &**word)
            || (ends(&self.ends) && !harmless())
    }
}

/// The letters of a key as they are compared: in lower case and without separators.
pub(super) fn fold(key: &[u8]) -> Box<[u8]> {
    let letters = key.iter().filter(|byte| !is_separator(**byte));
    letters.map(u8::to_ascii_lowercase).collect()
}

pub(super) const fn is_separator(byte: u8) -> bool {
    matches!(byte, b'_' | b'-' | b' ' | b'.')
}

fn without_digits(name: &[u8]) -> &[u8] {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    name.get(..name.len() - digits).unwrap_or_default()
}

/// The last letters of a word, of which the last comes first, in lower case.
fn tail<'a>(letters: impl Iterator<Item = &'a u8>) -> u32 {
    letters.take(TAIL).fold(0, |tail, letter| tail << 8 | u32::from(letter.to_ascii_lowercase()))
}
