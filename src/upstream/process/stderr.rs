//! What a child says on stderr: read to its end, whatever comes.

use std::sync::Arc;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::upstream::peer::Peer;
use crate::wire::lines::{Decoder, Item};

/// Most bytes of a line on stderr that are kept.
const STDERR_LINE_BYTES: u64 = 4096;

/// The last words of a child on stderr.
pub(in crate::upstream) type LastWords = Arc<Mutex<Arc<str>>>;

/// Reads stderr to its end, always, whatever comes: lines are kept on disk and go to the log at debug,
/// the last one is the reason of a failure.
pub(in crate::upstream) async fn drain_stderr(
    peer: Arc<Peer>,
    mut stderr: impl AsyncRead + Unpin,
    last: LastWords,
) {
    let mut buffer = BytesMut::with_capacity(8 * 1024);
    let mut lines = Decoder::new(STDERR_LINE_BYTES);
    let mut line = Vec::new();
    loop {
        buffer.reserve(4 * 1024);
        if !matches!(stderr.read_buf(&mut buffer).await, Ok(1..)) {
            return;
        }
        lines.push(buffer.split().freeze());
        loop {
            match lines.next_item() {
                Ok(Some(Item::Data(part))) => line.extend_from_slice(&part),
                Ok(None) => break,
                // Of a line that is too long the beginning is enough.
                whole @ (Ok(Some(Item::End)) | Err(_)) => {
                    peer.keep_stderr(&line, whole.is_err());
                    let words = peer.secrets.quote_cut(&line, whole.is_err());
                    line.clear();
                    if peer.may_log_stderr() {
                        tracing::debug!(server = %peer.name, line = %words, "stderr");
                    }
                    if !words.is_empty() {
                        *last.lock() = words;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::Secrets;

    #[tokio::test]
    async fn a_flood_on_stderr_is_read_to_its_end() {
        let last = LastWords::default();
        let mut flood = vec![b'x'; 3_000_000];
        flood.extend_from_slice(b"\nlast words\x07\n\n");
        drain_stderr(Arc::default(), flood.as_slice(), last.clone()).await;
        assert_eq!(&**last.lock(), "last words");
    }

    #[tokio::test]
    async fn of_a_line_that_is_too_long_no_half_of_a_secret_is_kept() {
        let secrets = Arc::new(Secrets::new(["s3cr3t-token".to_owned()]));
        let peer = Arc::new(Peer::new("s".into(), secrets));
        let last = LastWords::default();
        let rest = [b'x'; STDERR_LINE_BYTES as usize + 1];
        drain_stderr(peer, b"bad s3cr3t-t".chain(&rest[..]), last.clone()).await;
        assert_eq!(&**last.lock(), "bad [redacted]");
    }
}
