//! Target `scan`: every kernel gives the results of the reference for any split.
//!
//! Input: a byte for `max_bytes`, one for `max_depth`, one that decides the splits, then the message, in which bytes from 0x80 on
//! represent whole tokens if the third byte is odd.

use mcpproxy_json::scan::{Kernel, ScanLimits, Scanner};

use super::reference;

/// Substitutes for bytes from 0x80 on.
const TOKENS: [&str; 34] = [
    "{\"jsonrpc\":\"2.0\",\"id\":",
    "\"id\":",
    "\"result\":{",
    "\"error\":{",
    "\"method\":\"",
    "\"params\":",
    "\"content\":[",
    "\"structuredContent\":",
    "\"structured\\u0043ontent\":{",
    "\"isError\":true",
    "\"isError\":",
    "\"\\u0069sError\":",
    "\"resultType\":\"",
    "\"_meta\":{",
    "\\ud83d\\ude00",
    "\\ud800",
    "\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\",
    "\\\"",
    "[[[[[[[[",
    "]]]]]]]]",
    "{\"a\":{\"a\":{\"a\":{\"a\":",
    "}}}}",
    "                                                            ",
    "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "é€𝄞",
    "-12.5e+7",
    "null",
    "\",\"",
    "\":",
    "},",
    "],",
    "\\u00",
    "\"ttlMs\":",
    "\"cacheScope\":",
];

pub fn run(data: &[u8]) {
    let [max_bytes, max_depth, cuts, message @ ..] = data else { return };
    let limits = ScanLimits { max_bytes: bound(*max_bytes), max_depth: bound(*max_depth) as u32 };
    let mut soup = Vec::new();
    if cuts % 2 == 1 {
        for byte in message {
            match byte.checked_sub(0x80) {
                Some(token) => soup.extend(TOKENS[usize::from(token) % TOKENS.len()].bytes()),
                None => soup.push(*byte),
            }
        }
    } else {
        soup.extend(message);
    }
    check(&soup, limits, u64::from(*cuts));
}

/// A bound derived from a byte: usually small, sometimes none.
pub fn bound(byte: u8) -> u64 {
    match byte {
        0..=199 => u64::from(byte),
        200..=254 => u64::from(byte - 199) * 64,
        255 => u64::from(u32::MAX),
    }
}

/// Reads `message` whole and in pieces with every kernel, and compares each result with that of the reference: at the
/// end, and sometimes in between.
pub fn check(message: &[u8], limits: ScanLimits, cuts: u64) {
    let (envelope, read) = reference::read(message, limits);
    let mut cutter = Cutter(cuts);
    for kernel in Kernel::usable() {
        for pieces in [false, true] {
            let mut scanner = Scanner::with_kernel(limits, cuts, kernel);
            let mut rest = message;
            while !rest.is_empty() {
                let (chunk, later) =
                    rest.split_at(if pieces { cutter.len(rest.len()) } else { rest.len() });
                let before = scanner.position();
                let fed = scanner.feed(chunk);
                rest = later;
                match fed {
                    Ok(()) => assert_eq!(scanner.position(), before + chunk.len() as u64),
                    Err(error) => assert_eq!(read, Err(error), "{kernel:?}"),
                }
                // Occasionally compares the state before the end of the message.
                if pieces && cutter.next().is_multiple_of(32) {
                    let (envelope, read) =
                        reference::read(&message[..message.len() - rest.len()], limits);
                    assert_eq!(*scanner.envelope(), envelope, "{kernel:?}");
                    assert_eq!(scanner.finish(), read, "{kernel:?}");
                }
            }
            assert_eq!(scanner.finish(), read, "{kernel:?}, in pieces: {pieces}");
            assert_eq!(*scanner.envelope(), envelope, "{kernel:?}, in pieces: {pieces}");
        }
    }
}

/// Generator of chunk lengths.
pub struct Cutter(pub u64);

impl Cutter {
    /// Next number of the sequence.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        self.0 >> 33
    }

    /// A length from 1 to `most`: one byte, a few bytes, up to about a block, or any length.
    pub fn len(&mut self, most: usize) -> usize {
        let range = [1, 8, 130, most as u64][(self.next() % 4) as usize];
        ((self.next() % range.max(1)) as usize + 1).min(most)
    }
}
