//! Reading one key: escapes undone, UTF-8 checked, whatever the chunking.
//!
//! Keeps the first [`KEY_BUFFER`] bytes of the decoded name, enough to recognise the names that
//! matter; of a longer one only a hash is carried on. Of those names it knows the ones that must not
//! be mistaken for others.

use std::hash::{DefaultHasher, Hasher};

use super::{
    report::{ScanFault, ScannedMember},
    swar,
};
use crate::json::fold;

/// Decoded bytes of a key that are kept; more than the longest name the scanner looks for.
const KEY_BUFFER: usize = 32;

/// The reader of one key after another.
#[derive(Clone, Debug)]
pub(super) struct KeyReader {
    seed: u64,
    buffer: [u8; KEY_BUFFER],
    len: usize,
    /// Hash of everything that no longer fits the buffer, in blocks of its size.
    folded: Option<u64>,
    within: Within,
    /// An escaped high surrogate that waits for its other half.
    high: Option<u16>,
    lone_surrogate: bool,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum Within {
    Text,
    /// After a backslash.
    Escape,
    /// In `\uXXXX`: digits still to come and the value of those before.
    Hex {
        left: u8,
        value: u16,
    },
    /// In a multi-byte character: bytes still to come and the range of the next.
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

    /// Forgets the last key. To be called at the opening quote.
    pub(super) fn begin(&mut self) {
        self.len = 0;
        self.folded = None;
        self.within = Within::Text;
        self.high = None;
        self.lone_surrogate = false;
    }

    /// Reads on. `Some(n)`: the key ended and its closing quote was byte `n - 1`. `None`: all
    /// bytes were used and it goes on. An error names the offending byte by its index.
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

    /// A hash of the whole decoded name. Equal names have equal hashes under one seed; `scope`
    /// keeps the names of one object apart from those of another.
    pub(super) fn hash(&self, scope: u64) -> u64 {
        let head = self.folded.unwrap_or_default();
        self.mix(head ^ scope, self.buffer.get(..self.len).unwrap_or_default())
    }

    /// Whether the key had an escaped surrogate without its other half.
    pub(super) fn has_lone_surrogate(&self) -> bool {
        self.lone_surrogate
    }

    /// A byte in plain text that is neither ASCII text nor the closing quote.
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

    /// One UTF-16 code unit from a `\u` escape.
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

    /// Whatever comes now is not the other half of a surrogate that waits for one.
    fn end_surrogate(&mut self) {
        if let Some(high) = self.high.take() {
            self.lone_surrogate = true;
            self.push_scalar(u32::from(high));
        }
    }

    /// Appends a code point in UTF-8, generalised so that a lone surrogate has bytes of its own.
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
            let room = self.buffer.get_mut(self.len..).unwrap_or_default();
            let (now, later) = bytes.split_at(room.len().min(bytes.len()));
            if let Some(room) = room.get_mut(..now.len()) {
                room.copy_from_slice(now);
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

/// The members of a result that decide what becomes of it, or are what is judged.
const DECISIVE: [(&str, ScannedMember); 4] = [
    ("content", ScannedMember::Content),
    ("structuredContent", ScannedMember::StructuredContent),
    ("isError", ScannedMember::IsError),
    ("resultType", ScannedMember::ResultType),
];

/// The decisive member that `name`, which is none of them, is to a reader that ignores case.
pub(super) fn variant(name: &[u8]) -> Option<ScannedMember> {
    // Their first letters, and the first bytes of what folds to one of these.
    match name.first()? {
        b'c' | b'C' | b's' | b'S' | b'i' | b'I' | b'r' | b'R' | 0x80.. => {}
        _ => return None,
    }
    let name = std::str::from_utf8(name).ok()?;
    let is_meant = |(known, _): &&(&str, ScannedMember)| fold::same(known, name);
    DECISIVE.iter().find(is_meant).map(|(_, member)| *member)
}

/// The value of a hexadecimal digit.
fn hex_digit(byte: u8) -> Option<u16> {
    char::from(byte).to_digit(16).map(|digit| digit as u16)
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
    fn lone_surrogates_are_noticed() {
        check(br#"\ud834""#, Ok((b"\xED\xA0\xB4", true)));
        check(br#"\udd1ea""#, Ok((b"\xED\xB4\x9Ea", true)));
        check(br#"\ud834x\udd1e""#, Ok((b"\xED\xA0\xB4x\xED\xB4\x9E", true)));
        check(br#"\ud834\n""#, Ok((b"\xED\xA0\xB4\n", true)));
        check(br#"\ud834\ud834\udd1e""#, Ok((b"\xED\xA0\xB4\xF0\x9D\x84\x9E", true)));
    }

    #[test]
    fn variants_of_what_decides_are_known_and_nothing_else() {
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
    fn what_is_no_string_is_refused() {
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
    fn long_names_hash_alike_however_they_are_spelled() {
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
