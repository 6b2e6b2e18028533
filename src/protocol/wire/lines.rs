//! Newline framing of MCP over stdio: one message per line.
//!
//! The decoder returns slices of its chunks and reads each byte once: a line of 100 MB costs one pass and no memory. It does not check that
//! a line is JSON, and keeps a trailing CR, which is white space in JSON. It skips a byte order mark before a message, which JSON forbids
//! (RFC 8259 §8.1) but servers on Windows write.

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2_iter};
use thiserror::Error;

/// Maximum length of a line without its newline: 256 MiB.
pub const MAX_LINE_BYTES: u64 = 256 * 1024 * 1024;

/// Item of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Next bytes of the current line; never empty.
    Data(Bytes),
    /// The line is complete. An empty line is not reported.
    End,
}

/// Line longer than the limit. Reported once; the decoder then continues with the next line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a line is longer than {limit} bytes")]
pub struct TooLong {
    /// The limit, in bytes.
    pub limit: u64,
}

/// Incremental decoder: [`Decoder::push`] a chunk, take items until `None`, push the next.
#[derive(Debug)]
pub struct Decoder {
    chunk: Bytes,
    /// Number of bytes of the current line returned so far.
    length: u64,
    limit: u64,
    skipping: bool,
}

impl Decoder {
    /// Decoder at the start of a line, for lines of at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { chunk: Bytes::new(), length: 0, limit, skipping: false }
    }

    /// Adds the next chunk. The previous chunk must be used up.
    pub fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "the last chunk was not read to its end");
        self.chunk = chunk;
    }

    /// Returns the next item; `None` when the chunk is used up. [`TooLong`] is returned once for each line above the limit, and the decoder
    /// stays usable.
    pub fn next_item(&mut self) -> Result<Option<Item>, TooLong> {
        loop {
            let Some(&first) = self.chunk.first() else { return Ok(None) };
            if first == b'\n' {
                self.chunk.advance(1);
                let ended = std::mem::take(&mut self.length) > 0;
                if !std::mem::take(&mut self.skipping) && ended {
                    return Ok(Some(Item::End));
                }
                continue;
            }
            let end = memchr(b'\n', &self.chunk).unwrap_or(self.chunk.len());
            let part = self.chunk.split_to(end);
            if self.skipping {
                continue;
            }
            self.length += part.len() as u64;
            if self.length > self.limit {
                self.skipping = true;
                return Err(TooLong { limit: self.limit });
            }
            return Ok(Some(Item::Data(part)));
        }
    }

    /// Whether a line has begun but not ended.
    #[cfg(test)]
    pub(crate) fn inside_line(&self) -> bool {
        self.length > 0
    }
}

/// Makes JSON text fit a line: raw CR and LF become spaces. In valid JSON they occur only between tokens, so the value stays the same.
/// Shares the buffer if nothing changes.
pub fn one_line(json: Bytes) -> Bytes {
    let mut breaks = memchr2_iter(b'\r', b'\n', &json).peekable();
    if breaks.peek().is_none() {
        return json;
    }
    // The original is shared, so it is copied.
    let mut copy = json.to_vec();
    for at in breaks {
        if let Some(byte) = copy.get_mut(at) {
            *byte = b' ';
        }
    }
    Bytes::from(copy)
}

const MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// Skips a byte order mark at the start of a message, in any chunking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkSkipper {
    /// Number of bytes of the mark read so far; 3 once the start has been passed.
    matched: usize,
}

impl MarkSkipper {
    /// Takes the next chunk of the message and returns it without the mark; empty while the mark is incomplete.
    #[inline]
    pub fn skip(&mut self, chunk: Bytes) -> Bytes {
        if self.matched == MARK.len() {
            return chunk;
        }
        if self.matched == 0 && chunk.first().is_some_and(|first| *first != MARK[0]) {
            self.matched = MARK.len();
            return chunk;
        }
        self.skip_slowly(chunk)
    }

    #[cold]
    fn skip_slowly(&mut self, mut chunk: Bytes) -> Bytes {
        while let Some(expected) = MARK.get(self.matched)
            && let Some(byte) = chunk.first()
        {
            if byte != expected {
                // The start is not a mark: the bytes matched so far belong to the message.
                let begun = MARK.get(..self.matched).unwrap_or_default();
                self.matched = MARK.len();
                let mut whole = BytesMut::with_capacity(begun.len() + chunk.len());
                whole.extend_from_slice(begun);
                whole.extend_from_slice(&chunk);
                return whole.freeze();
            }
            self.matched += 1;
            chunk.advance(1);
        }
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(chunks: &[&[u8]], limit: u64) -> (Vec<Vec<u8>>, usize) {
        let mut decoder = Decoder::new(limit);
        let mut lines = Vec::new();
        let mut line = Vec::new();
        let mut too_long = 0;
        for chunk in chunks {
            decoder.push(Bytes::copy_from_slice(chunk));
            loop {
                match decoder.next_item() {
                    Ok(Some(Item::Data(part))) => {
                        assert!(!part.is_empty());
                        line.extend_from_slice(&part);
                    }
                    Ok(Some(Item::End)) => lines.push(std::mem::take(&mut line)),
                    Ok(None) => break,
                    Err(TooLong { limit: stated }) => {
                        assert_eq!(stated, limit);
                        too_long += 1;
                        line.clear();
                    }
                }
            }
        }
        (lines, too_long)
    }

    fn check(stream: &[u8], limit: u64, lines: &[&[u8]], too_long: usize) {
        let expected = (lines.iter().map(|line| line.to_vec()).collect(), too_long);
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let cut = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(decode(&cut, limit), expected, "{cut:?}");
            }
        }
    }

    #[test]
    fn lines_are_independent_of_the_chunking() {
        check(b"{}\n[]\n", 100, &[b"{}", b"[]"], 0);
        check(b"\n\n{}\n\n", 100, &[b"{}"], 0);
        check(b"{}\r\n[]", 100, &[b"{}\r"], 0);
    }

    #[test]
    fn too_long_line_is_reported_once_and_skipped() {
        check(b"12345\n1234\n", 4, &[b"1234"], 1);
        check(b"1234567890\n\nab\n12345678\n", 4, &[b"ab"], 2);
    }

    #[test]
    fn line_slices_share_the_memory_of_the_chunk() {
        let chunk = Bytes::from(vec![b'x'; 100_000]);
        let mut decoder = Decoder::new(MAX_LINE_BYTES);
        decoder.push(chunk.clone());
        let Ok(Some(Item::Data(part))) = decoder.next_item() else { panic!() };
        assert_eq!((part.as_ptr(), part.len()), (chunk.as_ptr(), chunk.len()));
        assert!(decoder.inside_line());
    }

    #[test]
    fn raw_line_breaks_become_spaces() {
        assert_eq!(one_line(Bytes::from_static(b"{\r\n\"a\":\n1}")), "{  \"a\": 1}");
        let untouched = Bytes::from_static(b"{\"a\":1}");
        assert_eq!(one_line(untouched.clone()).as_ptr(), untouched.as_ptr());
    }
}

#[cfg(test)]
mod bom_tests {
    use super::*;

    #[test]
    fn pro_26_mark_is_skipped_in_any_chunking() {
        for (message, rest) in [
            (&b"\xEF\xBB\xBF{}"[..], &b"{}"[..]),
            (b"{\"\xEF\xBB\xBF\":1}", b"{\"\xEF\xBB\xBF\":1}"),
            (b"\xEF\xBB\xBF\xEF\xBB\xBF{}", b"\xEF\xBB\xBF{}"),
            (b"\xEF\xBB{}", b"\xEF\xBB{}"),
            (b"\xEF{}", b"\xEF{}"),
            (b"\xEF\xBB\xBF", b""),
            (b"", b""),
        ] {
            for first in 0..=message.len() {
                for second in first..=message.len() {
                    let mut skipper = MarkSkipper::default();
                    let mut read = Vec::new();
                    for part in [&message[..first], &message[first..second], &message[second..]] {
                        read.extend_from_slice(&skipper.skip(Bytes::copy_from_slice(part)));
                    }
                    assert_eq!(read, rest, "{message:?} cut at {first} and {second}");
                }
            }
        }
    }
}
