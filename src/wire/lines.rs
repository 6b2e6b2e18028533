//! Newline framing, as MCP over stdio uses it: one message per line.
//!
//! The decoder returns slices of the chunks it was given and reads each byte once, so a line of
//! 100 MB costs one pass and no memory. It does not check that a line is JSON, and keeps a trailing
//! CR, which is white space in JSON.

use bytes::{Buf, Bytes};
use memchr::{memchr, memchr2_iter};
use thiserror::Error;

/// Most bytes of one line, the newline not counted: 256 MiB.
pub const MAX_LINE_BYTES: u64 = 256 * 1024 * 1024;

/// What the stream holds next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The next bytes of the current line; never empty.
    Data(Bytes),
    /// The line is complete. An empty line is not reported.
    End,
}

/// A line is longer than the limit. Reported once; the decoder then skips to the end of that line
/// and continues with the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a line is longer than {limit} bytes")]
pub struct TooLong {
    /// The limit, in bytes.
    pub limit: u64,
}

/// The decoder. [`Decoder::push`] a chunk, take items until `None`, push the next.
#[derive(Debug)]
pub struct Decoder {
    chunk: Bytes,
    /// Bytes of the current line handed out so far.
    length: u64,
    limit: u64,
    skipping: bool,
}

impl Decoder {
    /// A decoder at the start of a line, for lines of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { chunk: Bytes::new(), length: 0, limit, skipping: false }
    }

    /// Gives the next chunk. The one before must have been read to its end.
    pub fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "the last chunk was not read to its end");
        self.chunk = chunk;
    }

    /// The next item; `None` when the chunk is used up.
    ///
    /// # Errors
    /// [`TooLong`], once for each such line; the decoder can be used on.
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

    /// True while a line has begun and its end has not come.
    #[must_use]
    pub fn inside_line(&self) -> bool {
        self.length > 0
    }
}

/// The JSON text fit for a line: raw CR and LF become spaces. In valid JSON they stand only
/// between tokens, so the value is the same. Shares the buffer where there is nothing to change.
#[must_use]
pub fn one_line(json: Bytes) -> Bytes {
    let mut breaks = memchr2_iter(b'\r', b'\n', &json).peekable();
    if breaks.peek().is_none() {
        return json;
    }
    // A copy: the bytes differ, and the original belongs to someone else too.
    let mut copy = json.to_vec();
    for at in breaks {
        if let Some(byte) = copy.get_mut(at) {
            *byte = b' ';
        }
    }
    Bytes::from(copy)
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
                    Err(TooLong { limit: told }) => {
                        assert_eq!(told, limit);
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
    fn every_split_gives_the_same_lines() {
        check(b"{}\n[]\n", 100, &[b"{}", b"[]"], 0);
        check(b"\n\n{}\n\n", 100, &[b"{}"], 0);
        check(b"{}\r\n[]", 100, &[b"{}\r"], 0);
    }

    #[test]
    fn a_long_line_is_told_once_and_the_next_is_read() {
        check(b"12345\n1234\n", 4, &[b"1234"], 1);
        check(b"1234567890\n\nab\n12345678\n", 4, &[b"ab"], 2);
    }

    #[test]
    fn slices_share_the_chunk() {
        let chunk = Bytes::from(vec![b'x'; 100_000]);
        let mut decoder = Decoder::new(MAX_LINE_BYTES);
        decoder.push(chunk.clone());
        let Ok(Some(Item::Data(part))) = decoder.next_item() else { panic!() };
        assert_eq!((part.as_ptr(), part.len()), (chunk.as_ptr(), chunk.len()));
        assert!(decoder.inside_line());
    }

    #[test]
    fn line_breaks_between_tokens_become_spaces() {
        assert_eq!(one_line(Bytes::from_static(b"{\r\n\"a\":\n1}")), "{  \"a\": 1}");
        let untouched = Bytes::from_static(b"{\"a\":1}");
        assert_eq!(one_line(untouched.clone()).as_ptr(), untouched.as_ptr());
    }
}
