//! The time limit of writes: a client's socket that gives up on a client who does not read.
//!
//! While a reply cannot be written nothing else of its call runs: it keeps its upstream's answer,
//! its place under `max_concurrent` and its memory. So a write that makes no progress for a named
//! time ends the connection. Reads have no limit here.
//!
//! Why no library: hyper and tower-http limit heads and bodies, not writes. `tokio-io-timeout` does this, but holds a
//! timer for reads and one for writes in each stream, whether it ever waits or not, and so cannot be moved without a box
//! of its own, and it sets the timer again after each wait. Here an idle connection has no timer at all, and what waits
//! uses the one of [`Deadline`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::io::deadline::Deadline;

/// A stream whose writes fail with `TimedOut` after `limit` without progress.
#[derive(Debug)]
pub struct WriteTimeout<S> {
    stream: S,
    limit: Duration,
    timer: Deadline,
    /// When the write that waits fails; `None` while none waits.
    fails_at: Option<Instant>,
    /// What was read already, to be read once more.
    unread: Bytes,
}

impl<S> WriteTimeout<S> {
    /// A write that waits fails `limit` after it began to wait.
    pub fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, timer: Deadline::default(), fails_at: None, unread: Bytes::new() }
    }

    /// The stream itself.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Puts back what was read, before everything else.
    pub fn unread(&mut self, bytes: Bytes) {
        self.unread = bytes;
    }

    /// Passes a write's outcome on, or fails it once it has waited for `limit`.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.fails_at = None;
            return outcome;
        }
        let fails_at = *self.fails_at.get_or_insert_with(|| Instant::now() + self.limit);
        ready!(self.timer.poll_until(cx, fails_at));
        let text = format!("the client took nothing for {:?}", self.limit);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let count = self.unread.len().min(buffer.remaining());
            buffer.put_slice(&self.unread.split_to(count));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What TLS has taken and not written waits here.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test)
    }

    #[test]
    fn a_client_who_reads_nothing_is_given_up() {
        run(async {
            let (ours, _theirs) = tokio::io::duplex(4);
            let mut stream = WriteTimeout::new(ours, Duration::from_millis(1));
            let error = stream.write_all(b"more than four").await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    /// One that takes what is written, and passes nothing on.
    struct Takes;

    impl AsyncWrite for Takes {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[test]
    fn what_was_taken_and_cannot_be_passed_on_has_the_same_limit() {
        run(async {
            let mut stream = WriteTimeout::new(Takes, Duration::from_millis(1));
            stream.write_all(b"taken").await.unwrap();
            let flushed = stream.flush().await.unwrap_err();
            let mut stream = WriteTimeout::new(Takes, Duration::from_millis(1));
            let shut = stream.shutdown().await.unwrap_err();
            assert_eq!([flushed.kind(), shut.kind()], [io::ErrorKind::TimedOut; 2]);
        });
    }

    #[test]
    fn what_is_put_back_is_read_first() {
        run(async {
            let (ours, mut theirs) = tokio::io::duplex(16);
            theirs.write_all(b" rest").await.unwrap();
            drop(theirs);
            let mut stream = WriteTimeout::new(ours, Duration::from_secs(3600));
            stream.unread(Bytes::from_static(b"begun"));
            let (mut start, mut rest) = ([0; 2], String::new());
            stream.read_exact(&mut start).await.unwrap();
            stream.read_to_string(&mut rest).await.unwrap();
            assert_eq!((&start, &*rest), (b"be", "gun rest"));
        });
    }

    #[test]
    fn a_client_who_reads_gets_everything() {
        run(async {
            let (ours, mut theirs) = tokio::io::duplex(4);
            let mut stream = WriteTimeout::new(ours, Duration::from_secs(3600));
            let reading = async {
                let mut got = Vec::new();
                theirs.read_to_end(&mut got).await.unwrap();
                got
            };
            let writing = async {
                stream.write_all(b"more than four").await.unwrap();
                drop(stream);
            };
            let (got, ()) = tokio::join!(reading, writing);
            assert_eq!(got, b"more than four");
        });
    }
}
