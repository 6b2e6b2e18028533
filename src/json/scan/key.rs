//! Incremental reader of one key: decodes escapes and checks UTF-8, in any chunking.
//!
//! Stores the first [`KEY_BUFFER`] bytes of the decoded name, enough to recognize the known names, and a hash of longer names.
//! Detects case variants of the names that decide a result's verdict.
//!
//! Duplicates: known names have a bit each; other names are compared by a keyed 64-bit hash. Duplicates are always detected; different keys
//! collide about once in 2^40 messages with the maximum number of keys. At most [`MAX_KEYS`] are stored; adding another returns
//! [`Novelty::Full`].

use std::hash::{DefaultHasher, Hasher};

use super::{
    report::{ScanFault, ScannedMember},
    swar,
};
use crate::fold;

/// Number of decoded bytes that are stored; more than the longest known name.
const KEY_BUFFER: usize = 32;

/// Reader of keys, one after another.
#[derive(Clone, Debug)]
pub(super) struct KeyReader {
    seed: u64,
    buffer: [u8; KEY_BUFFER],
    len: usize,
    /// Hash of the bytes beyond the buffer, in blocks of the buffer's size.
    folded: Option<u64>,
    within: Within,
    /// Escaped high surrogate that awaits its low surrogate.
    high: Option<u16>,
    lone_surrogate: bool,
}

/// State of the reader.
#[derive(Clone, Copy, Debug)]
enum Within {
    Text,
    Escape,
    /// In `\uXXXX`: number of digits left, and the value so far.
    Hex {
        left: u8,
        value: u16,
    },
    /// In a multi-byte character: number of bytes left, and the allowed range of the next one.
    Utf8 {
        left: u8,
        low: u8,
        high: u8,
    },
}

impl KeyReader {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            buffer: [0; KEY_BUFFER],
            len: 0,
            folded: None,
            within: Within::Text,
            high: None,
            lone_surrogate: false,
        }
    }

    /// Resets the reader. Must be called at the opening quote.
    pub(super) fn begin(&mut self) {
        self.len = 0;
        self.folded = None;
        self.within = Within::Text;
        self.high = None;
        self.lone_surrogate = false;
    }

    /// Reads a chunk. `Some(n)`: the key ended with its closing quote at byte `n - 1`. `None`: the key continues. An error carries the
    /// index of the offending byte.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Option<usize>, (usize, ScanFault)> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..)
            && let Some(&byte) = rest.first()
        {
            at += match self.within {
                Within::Text => {
                    let run = swar::ascii_run(rest);
                    if run > 0 {
                        self.end_surrogate();
                        self.push(rest.get(..run).unwrap_or_default());
                        run
                    } else if byte == b'"' {
                        self.end_surrogate();
                        return Ok(Some(at + 1));
                    } else {
                        self.special(byte).map_err(|fault| (at, fault))?;
                        1
                    }
                }
                Within::Escape => {
                    self.escape(byte).map_err(|fault| (at, fault))?;
                    1
                }
                Within::Hex { left, value } => {
                    let digit = hex_digit(byte).ok_or((at, ScanFault::Escape))?;
                    let value = value << 4 | digit;
                    self.within = if left > 1 {
                        Within::Hex { left: left - 1, value }
                    } else {
                        self.unit(value);
                        Within::Text
                    };
                    1
                }
                Within::Utf8 { left, low, high } => {
                    if !(low..=high).contains(&byte) {
                        return Err((at, ScanFault::Utf8));
                    }
                    self.push(&[byte]);
                    self.within = if left > 1 {
                        Within::Utf8 { left: left - 1, low: 0x80, high: 0xBF }
                    } else {
                        Within::Text
                    };
                    1
                }
            };
        }
        Ok(None)
    }

    /// The decoded name, if it fits the buffer.
    pub(super) fn name(&self) -> Option<&[u8]> {
        if self.folded.is_some() { None } else { self.buffer.get(..self.len) }
    }

    /// A hash of the whole decoded name. Equal names have equal hashes under one seed; `scope` separates the names of different objects.
    pub(super) fn hash(&self, scope: u64) -> u64 {
        let head = self.folded.unwrap_or_default();
        self.mix(head ^ scope, self.buffer.get(..self.len).unwrap_or_default())
    }

    /// Whether the key had an escaped lone surrogate.
    pub(super) fn has_lone_surrogate(&self) -> bool {
        self.lone_surrogate
    }

    /// Handles a byte that is neither plain ASCII nor the closing quote.
    fn special(&mut self, byte: u8) -> Result<(), ScanFault> {
        if byte == b'\\' {
            self.within = Within::Escape;
            return Ok(());
        }
        self.end_surrogate();
        let (left, low, high) = match byte {
            0x00..=0x1F => return Err(ScanFault::Control),
            0xC2..=0xDF => (1, 0x80, 0xBF),
            0xE0 => (2, 0xA0, 0xBF),
            0xED => (2, 0x80, 0x9F),
            0xE1..=0xEF => (2, 0x80, 0xBF),
            0xF0 => (3, 0x90, 0xBF),
            0xF1..=0xF3 => (3, 0x80, 0xBF),
            0xF4 => (3, 0x80, 0x8F),
            _ => return Err(ScanFault::Utf8),
        };
        self.push(&[byte]);
        self.within = Within::Utf8 { left, low, high };
        Ok(())
    }

    fn escape(&mut self, byte: u8) -> Result<(), ScanFault> {
        if byte == b'u' {
            self.within = Within::Hex { left: 4, value: 0 };
            return Ok(());
        }
        let decoded = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0C,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            _ => return Err(ScanFault::Escape),
        };
        self.end_surrogate();
        self.push(&[decoded]);
        self.within = Within::Text;
        Ok(())
    }

    /// Handles one UTF-16 code unit from a `\u` escape.
    fn unit(&mut self, unit: u16) {
        match (self.high, unit) {
            (Some(high), 0xDC00..=0xDFFF) => {
                self.high = None;
                let scalar = 0x1_0000 + (u32::from(high & 0x3FF) << 10 | u32::from(unit & 0x3FF));
                self.push_scalar(scalar);
            }
            (_, 0xD800..=0xDBFF) => {
                self.end_surrogate();
                self.high = Some(unit);
            }
            (_, 0xDC00..=0xDFFF) => {
                self.lone_surrogate = true;
                self.push_scalar(u32::from(unit));
            }
            _ => {
                self.end_surrogate();
                self.push_scalar(u32::from(unit));
            }
        }
    }

    /// Stores a pending surrogate as a lone one.
    fn end_surrogate(&mut self) {
        if let Some(high) = self.high.take() {
            self.lone_surrogate = true;
            self.push_scalar(u32::from(high));
        }
    }

    /// Appends a code point in generalized UTF-8 (WTF-8), which encodes lone surrogates.
    fn push_scalar(&mut self, scalar: u32) {
        let tail = |shift: u32| 0x80 | (scalar >> shift & 0x3F) as u8;
        match scalar {
            0..=0x7F => self.push(&[scalar as u8]),
            0x80..=0x7FF => self.push(&[0xC0 | (scalar >> 6) as u8, tail(0)]),
            0x800..=0xFFFF => self.push(&[0xE0 | (scalar >> 12) as u8, tail(6), tail(0)]),
            _ => self.push(&[0xF0 | (scalar >> 18) as u8, tail(12), tail(6), tail(0)]),
        }
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.len == KEY_BUFFER {
                self.folded = Some(self.mix(self.folded.unwrap_or_default(), &self.buffer));
                self.len = 0;
            }
            let free = self.buffer.get_mut(self.len..).unwrap_or_default();
            let (now, later) = bytes.split_at(free.len().min(bytes.len()));
            if let Some(free) = free.get_mut(..now.len()) {
                free.copy_from_slice(now);
            }
            self.len += now.len();
            bytes = later;
        }
    }

    fn mix(&self, head: u64, bytes: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed);
        hasher.write_u64(head);
        hasher.write(bytes);
        hasher.finish()
    }
}

/// Members of a result that decide its verdict, or that are validated.
const DECISIVE: [(&str, ScannedMember); 4] = [
    ("content", ScannedMember::Content),
    ("structuredContent", ScannedMember::StructuredContent),
    ("isError", ScannedMember::IsError),
    ("resultType", ScannedMember::ResultType),
];

/// Decisive member of which `name` is a case variant.
pub(super) fn variant(name: &[u8]) -> Option<ScannedMember> {
    // First letters of the names, and first bytes of characters that fold to one of them.
    match name.first()? {
        b'c' | b'C' | b's' | b'S' | b'i' | b'I' | b'r' | b'R' | 0x80.. => {}
        _ => return None,
    }
    let name = std::str::from_utf8(name).ok()?;
    let is_meant = |(known, _): &&(&str, ScannedMember)| fold::same(known, name);
    DECISIVE.iter().find(is_meant).map(|(_, member)| *member)
}

fn hex_digit(byte: u8) -> Option<u16> {
    char::from(byte).to_digit(16).map(|digit| digit as u16)
}

/// Number of unknown keys that are stored without an allocation.
const INLINE_KEYS: usize = 16;

/// Maximum number of unknown keys of one message, top level and `result` together, that are compared; a message with more is ambiguous.
pub const MAX_KEYS: usize = 4096;

/// The keys of one message.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenKeys {
    known: u16,
    len: usize,
    inline: [u64; INLINE_KEYS],
    more: Vec<u64>,
}

/// Result of adding a key to [`SeenKeys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Novelty {
    New,
    Repeated,
    /// The key is unknown, and the set is full: duplicates can no longer be detected.
    Full,
}

impl SeenKeys {
    /// Adds a known name.
    pub(super) fn known(&mut self, member: ScannedMember) -> Novelty {
        let bit = 1 << member as u16;
        let novelty = if self.known & bit == 0 { Novelty::New } else { Novelty::Repeated };
        self.known |= bit;
        novelty
    }

    /// Whether a known name was added.
    pub(super) fn has(&self, member: ScannedMember) -> bool {
        self.known & (1 << member as u16) != 0
    }

    /// Adds any other name by its hash.
    pub(super) fn other(&mut self, hash: u64) -> Novelty {
        let inline = self.inline.get(..self.len.min(INLINE_KEYS)).unwrap_or_default();
        if inline.contains(&hash) || self.more.contains(&hash) {
            return Novelty::Repeated;
        }
        if self.len == MAX_KEYS {
            return Novelty::Full;
        }
        match self.inline.get_mut(self.len) {
            Some(slot) => *slot = hash,
            None => self.more.push(hash),
        }
        self.len += 1;
        Novelty::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `key` (without its opening quote, with its closing one) split at every byte.
    fn check(key: &[u8], want: Result<(&[u8], bool), (usize, ScanFault)>) {
        for split in 0..=key.len() {
            let mut reader = KeyReader::new(7);
            reader.begin();
            let (head, tail) = key.split_at(split);
            let got = match reader.read(head) {
                Ok(None) => reader.read(tail).map_err(|(at, fault)| (split + at, fault)),
                ended => ended,
            };
            match want {
                Ok((name, lone)) => {
                    assert!(matches!(got, Ok(Some(_))), "{key:?} at {split}: {got:?}");
                    assert_eq!(reader.name(), Some(name), "{key:?} at {split}");
                    assert_eq!(reader.has_lone_surrogate(), lone, "{key:?} at {split}");
                }
                Err(fault) => assert_eq!(got, Err(fault), "{key:?} at {split}"),
            }
        }
    }

    #[test]
    fn names_are_decoded() {
        check(b"\"", Ok((b"", false)));
        check(b"id\"", Ok((b"id", false)));
        check(br#"structured\u0043ontent""#, Ok((b"structuredContent", false)));
        check(br#"\"\\\/\b\f\n\r\t""#, Ok((b"\"\\/\x08\x0C\n\r\t", false)));
        check("é€𝄞\"".as_bytes(), Ok(("é€𝄞".as_bytes(), false)));
        check(br#"\u00e9\u20AC\ud834\uDD1E""#, Ok(("é€𝄞".as_bytes(), false)));
    }

    #[test]
    fn lone_surrogates_are_detected() {
        check(br#"\ud834""#, Ok((b"\xED\xA0\xB4", true)));
        check(br#"\udd1ea""#, Ok((b"\xED\xB4\x9Ea", true)));
        check(br#"\ud834x\udd1e""#, Ok((b"\xED\xA0\xB4x\xED\xB4\x9E", true)));
        check(br#"\ud834\n""#, Ok((b"\xED\xA0\xB4\n", true)));
        check(br#"\ud834\ud834\udd1e""#, Ok((b"\xED\xA0\xB4\xF0\x9D\x84\x9E", true)));
    }

    #[test]
    fn case_variants_of_decisive_members_are_detected() {
        for (name, meant) in [
            ("Content", Some(ScannedMember::Content)),
            ("STRUCTUREDCONTENT", Some(ScannedMember::StructuredContent)),
            ("structuredcontent", Some(ScannedMember::StructuredContent)),
            ("\u{17f}tructuredContent", Some(ScannedMember::StructuredContent)),
            ("\u{fb06}ructuredContent", Some(ScannedMember::StructuredContent)),
            ("iserror", Some(ScannedMember::IsError)),
            ("\u{130}\u{17f}Error", Some(ScannedMember::IsError)),
            ("ResultType", Some(ScannedMember::ResultType)),
            ("contents", None),
            ("is_error", None),
            ("_Meta", None),
            ("", None),
            ("\u{3c3}", None),
        ] {
            assert_eq!(variant(name.as_bytes()), meant, "{name}");
            assert!(meant.is_none() || name.len() <= KEY_BUFFER);
        }
        assert_eq!(variant(b"\xED\xA0\xB4"), None);
    }

    #[test]
    fn invalid_strings_are_refused() {
        check(b"a\x1F\"", Err((1, ScanFault::Control)));
        check(b"a\\x\"", Err((2, ScanFault::Escape)));
        check(b"\\u12g4\"", Err((4, ScanFault::Escape)));
        for bad in [&b"\x80"[..], b"\xC0\x80", b"\xC1\xBF", b"\xF5\x80", b"\xFF"] {
            check(bad, Err((0, ScanFault::Utf8)));
        }
        for bad in [&b"\xC3\""[..], b"\xE0\x9F\x80", b"\xED\xA0\x80", b"\xF0\x8F", b"\xF4\x90"] {
            check(bad, Err((1, ScanFault::Utf8)));
        }
        check(b"\xE2\x82\\n", Err((2, ScanFault::Utf8)));
    }

    #[test]
    fn long_names_hash_equal_in_any_spelling() {
        let hash = |key: &str| {
            let mut reader = KeyReader::new(7);
            reader.begin();
            assert_eq!(reader.read(key.as_bytes()), Ok(Some(key.len())));
            assert_eq!(reader.name(), None);
            reader.hash(1)
        };
        let plain = format!("{}\"", "abcdefg".repeat(20));
        let escaped = format!("{}\"", r"\u0061bcdefg".repeat(20));
        let other = format!("{}\"", "abcdefh".repeat(20));
        assert_eq!(hash(&plain), hash(&escaped));
        assert_ne!(hash(&plain), hash(&other));
    }
}

#[cfg(test)]
mod duplicate_keys_tests {
    use super::*;

    #[test]
    fn duplicates_are_found_inline_and_on_the_heap_up_to_the_bound() {
        let mut seen = SeenKeys::default();
        for hash in 0..MAX_KEYS as u64 {
            assert_eq!(seen.other(hash), Novelty::New);
        }
        assert_eq!(seen.other(MAX_KEYS as u64), Novelty::Full);
        for hash in 0..MAX_KEYS as u64 {
            assert_eq!(seen.other(hash), Novelty::Repeated);
        }
    }

    #[test]
    fn repeated_known_name_is_detected_independently_of_other_names() {
        let mut seen = SeenKeys::default();
        assert_eq!(seen.known(ScannedMember::IsError), Novelty::New);
        assert_eq!(seen.known(ScannedMember::Id), Novelty::New);
        assert_eq!(seen.known(ScannedMember::IsError), Novelty::Repeated);
    }
}
