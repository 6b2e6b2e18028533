//! A client's pipe, line by line: what `mcpproxy stdio` reads, with or without a running server.
//!
//! Memory is bounded by the longest line. Lines are not interpreted here.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::wire::lines::{Decoder, Item, TooLong};

/// Longest line accepted from the client: 16 MiB, as for an HTTP body. A longer one is refused, and
/// the session goes on.
pub const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
const READ_BYTES: usize = 64 * 1024;

/// The client's input, line by line.
#[derive(Debug)]
pub struct LineReader<R> {
    input: R,
    decoder: Decoder,
    line: BytesMut,
    ended: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Reads `input` from its start.
    #[must_use]
    pub fn new(input: R) -> Self {
        let decoder = Decoder::new(MAX_LINE_BYTES as u64);
        Self { input, decoder, line: BytesMut::new(), ended: false }
    }

    /// The next line that is not blank, without its end; `None` at the end of input. A last line
    /// without its end is a message all the same.
    ///
    /// # Errors
    ///
    /// When the pipe fails. A line beyond [`MAX_LINE_BYTES`] is reported once, as the inner error,
    /// and skipped.
    pub async fn next(&mut self) -> std::io::Result<Option<Result<Bytes, TooLong>>> {
        loop {
            match self.decoder.next_item() {
                // A copy: a slice would keep its chunk, and a line may come in many.
                Ok(Some(Item::Data(data))) => self.line.extend_from_slice(&data),
                Ok(Some(Item::End)) => {
                    if let Some(line) = self.take() {
                        return Ok(Some(Ok(line)));
                    }
                }
                Ok(None) if self.ended => return Ok(self.take().map(Ok)),
                Ok(None) => {
                    let mut chunk = BytesMut::with_capacity(READ_BYTES);
                    self.ended = self.input.read_buf(&mut chunk).await? == 0;
                    self.decoder.push(chunk.freeze());
                }
                Err(too_long) => {
                    self.line.clear();
                    return Ok(Some(Err(too_long)));
                }
            }
        }
    }

    fn take(&mut self) -> Option<Bytes> {
        let line = self.line.split().freeze();
        (!line.iter().all(u8::is_ascii_whitespace)).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_come_whole_blank_ones_not_at_all_and_the_last_needs_no_end() {
        let input: &[u8] = b"{\"a\":1}\r\n\n  \n{\"b\":2}\n{\"c\":3}";
        let mut lines = LineReader::new(input);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            seen.push(line.unwrap());
        }
        assert_eq!(seen, ["{\"a\":1}\r", "{\"b\":2}", "{\"c\":3}"]);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_told_once_and_the_next_is_read() {
        let mut input = vec![b'x'; MAX_LINE_BYTES + 1];
        input.extend_from_slice(b"\n{}\n");
        let mut lines = LineReader::new(&input[..]);
        assert!(lines.next().await.unwrap().unwrap().is_err());
        assert_eq!(lines.next().await.unwrap().unwrap().unwrap(), "{}");
        assert!(lines.next().await.unwrap().is_none());
    }
}
