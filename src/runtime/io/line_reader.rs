//! Reads a client's pipe line by line, for `mcpproxy stdio`.
//!
//! Memory is bounded by the longest line. The lines are not interpreted.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use mcpproxy_protocol::wire::lines::{Decoder, Item, TooLong};

/// Maximum length of a line: 16 MiB, as for an HTTP body. A longer line is refused and the session continues.
pub(crate) const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
const READ_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub struct LineReader<R> {
    input: R,
    decoder: Decoder,
    line: BytesMut,
    ended: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// A reader at the start of `input`.
    pub fn new(input: R) -> Self {
        let decoder = Decoder::new(MAX_LINE_BYTES as u64);
        Self { input, decoder, line: BytesMut::new(), ended: false }
    }

    /// The next line that is not blank, without its terminator; `None` at the end of input. The last line does not need
    /// a terminator.
    ///
    /// # Errors
    ///
    /// The pipe failed. A line longer than [`MAX_LINE_BYTES`] is skipped and reported once, as the inner error.
    pub async fn next(&mut self) -> std::io::Result<Option<Result<Bytes, TooLong>>> {
        loop {
            match self.decoder.next_item() {
                // The data is copied: a slice would keep its chunk alive, and a line may arrive in many chunks.
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
    async fn blank_lines_are_skipped_and_an_unterminated_last_line_is_yielded() {
        let input: &[u8] = b"{\"a\":1}\r\n\n  \n{\"b\":2}\n{\"c\":3}";
        let mut lines = LineReader::new(input);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            seen.push(line.unwrap());
        }
        assert_eq!(seen, ["{\"a\":1}\r", "{\"b\":2}", "{\"c\":3}"]);
    }

    #[tokio::test]
    async fn too_long_line_is_reported_once_and_skipped_by_the_reader() {
        let mut input = vec![b'x'; MAX_LINE_BYTES + 1];
        input.extend_from_slice(b"\n{}\n");
        let mut lines = LineReader::new(&input[..]);
        assert!(lines.next().await.unwrap().unwrap().is_err());
        assert_eq!(lines.next().await.unwrap().unwrap().unwrap(), "{}");
        assert!(lines.next().await.unwrap().is_none());
    }
}
