//! Deadlines: a time shared by several steps, a timer that is cheap while its deadline moves later, and a time limit for
//! writes.
//!
//! A connection waits nearly all the time, and each wait has a different deadline. Setting a runtime timer for each wait costs more than
//! the wait itself, so one timer is kept and reset only when it fires early or the deadline moves closer.
//!
//! While a reply cannot be written, its call makes no progress but keeps the upstream's response, its slot under `max_concurrent` and its
//! memory. A write without progress for a given time therefore ends the connection. Reads are not limited here.
//!
//! No library offers this: hyper and tower-http limit heads and bodies, not writes. `tokio-io-timeout` keeps two timers in every stream,
//! for reads and writes, so the stream cannot be moved unless it is boxed, and it resets the timer after each wait. Here an idle connection
//! has no timer at all, and a waiting connection uses a [`Deadline`].

use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};

/// The time shared by the steps of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// The whole duration, for error messages.
    pub whole: Duration,
    /// Time at which the allowance expires.
    pub until: Instant,
}

impl Allowance {
    /// An allowance that starts at `began`.
    pub fn since(began: Instant, whole: Duration) -> Self {
        Self { whole, until: began + whole }
    }

    pub fn now(whole: Duration) -> Self {
        Self::since(Instant::now(), whole)
    }
}

/// The timer of one connection.
#[derive(Debug, Default)]
pub struct Deadline {
    /// Created at the first wait.
    sleep: Option<Pin<Box<Sleep>>>,
    /// The task to wake. A task that is already registered need not be registered again.
    waker: Option<Waker>,
}

impl Deadline {
    /// Ready once `deadline` has passed.
    pub fn poll_until(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let deadline = tokio::time::Instant::from_std(deadline);
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        let is_entered = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        } else if is_entered && !sleep.is_elapsed() {
            return Poll::Pending;
        }
        if !is_entered {
            self.waker = Some(cx.waker().clone());
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= deadline || tokio::time::Instant::now() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

/// A stream whose writes fail with `TimedOut` after `limit` without progress.
#[derive(Debug)]
pub struct WriteTimeout<S> {
    stream: S,
    limit: Duration,
    timer: Deadline,
    /// Time at which the pending write fails; `None` if no write is pending.
    fails_at: Option<Instant>,
    /// Bytes put back, to be read again.
    unread: Bytes,
}

impl<S> WriteTimeout<S> {
    /// Limits a pending write to `limit`.
    pub fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, timer: Deadline::default(), fails_at: None, unread: Bytes::new() }
    }

    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Puts bytes back, to be read before the stream's bytes. Replaces bytes put back earlier.
    pub fn unread(&mut self, bytes: Bytes) {
        self.unread = bytes;
    }

    /// Returns the outcome of a write, or fails a write that has been pending for `limit`.
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
        let text = format!("the client read nothing for {:?}", self.limit);
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
        // A flush can be pending too, if TLS has accepted data but not written it yet.
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
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn poll_until_returns_in_time_if_the_deadline_moves_in_either_direction() {
        let mut timer = Deadline::default();
        let now = Instant::now();
        let far = now + Duration::from_secs(3600);
        for _ in 0..2 {
            let far = poll_fn(|cx| Poll::Ready(timer.poll_until(cx, far))).await;
            assert!(far.is_pending());
            // The new deadline is earlier than the one that the timer was set to.
            poll_fn(|cx| timer.poll_until(cx, now)).await;
        }
    }

    #[tokio::test]
    async fn poll_until_wakes_another_task() {
        let mut timer = Deadline::default();
        let soon = Instant::now() + Duration::from_millis(20);
        let noop = &mut Context::from_waker(Waker::noop());
        for _ in 0..2 {
            let _ = timer.poll_until(noop, soon);
        }
        poll_fn(|cx| timer.poll_until(cx, soon)).await;
        assert!(timer.poll_until(noop, soon).is_ready(), "still ready");
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test)
    }

    #[test]
    fn write_times_out_if_the_client_reads_nothing() {
        run(async {
            let (ours, _theirs) = tokio::io::duplex(4);
            let mut stream = WriteTimeout::new(ours, Duration::from_millis(1));
            let error = stream.write_all(b"more than four").await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    /// A stream that accepts writes but never flushes them.
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
    fn flush_times_out_while_accepted_data_remains_unwritten() {
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
    fn unread_bytes_put_back_are_read_first() {
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
    fn slowly_reading_client_gets_everything() {
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
