//! The fast path on a client's connection: plain POSTs of messages, one after another.
//!
//! hyper serves everything else. A connection begins here, and goes to hyper with what was read of
//! it, for the rest of its life, at the first request that is not a plain POST of a message. What
//! this saves is what a general server must do and a call has no use for: a task's worth of state
//! between socket and service, a timer for each request, headers built anew for each answer.
//!
//! ```text
//! idle ─ first byte ▶ head ─ plain ▶ body ─ whole ▶ answering ─ written ▶ idle
//!                       └─ anything else ▶ hyper      └─ client gone: the call is dropped ▶ closed
//! ```

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE};
use http::request::Parts;
use http::{Response, StatusCode};
use http_body::Body as _;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::watch;

use super::tracked_socket::TrackedSocket;
use super::unread_body::UNREAD_TIMEOUT;
use crate::downstream::body::Body;
use crate::downstream::http::{BODY_TIMEOUT, MAX_BODY_BYTES, NoBody, PATHS, UNNAMED_TYPE, no_body};
use crate::io::buffer_pool::BufferPool;
use crate::io::clock;
use crate::io::deadline::Deadline;
use crate::io::http1::post::{PostHead, Start};
use crate::io::write_timeout::WriteTimeout;
use crate::proxy::body_room::{BodyRoom, NoRoom, SMALL_BODY_BYTES};
use crate::wire::splice::Splice;

/// A client has this long to send a request's head.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may be idle between requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Bytes of a head; a longer one is hyper's to refuse.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// How much is read at once, and read ahead while a request is being answered.
const READ_BYTES: usize = 16 * 1024;
/// With less room than this a buffer is given more, or replaced, before it is read into.
const LEAST_ROOM: usize = READ_BYTES / 4;
/// Bytes of a reply gathered before they are written.
const MAX_GATHERED_BYTES: usize = 256 * 1024;
/// Slices written at once.
const MAX_SLICES: usize = 64;

thread_local! {
    /// What requests are read into, those of one worker one after the other.
    static REQUESTS: BufferPool = BufferPool::default();
}

/// How it ended.
#[derive(Debug)]
pub(super) enum End {
    /// The connection is over.
    Closed,
    /// The next request is for hyper; so much of it was read.
    Other(Bytes),
}

/// What one wait for bytes brought.
enum Read {
    Some,
    Ended,
    Late,
}

/// How a request's body came.
enum Came {
    Whole(Bytes),
    Cut,
    Late,
    NoRoom(NoRoom),
}

/// A connection of a client who posts messages.
pub(super) struct FastPath<'a, S> {
    socket: &'a mut WriteTimeout<TrackedSocket<S>>,
    /// Read and not taken yet.
    input: BytesMut,
    /// Heads are written here; its memory is used again once they have gone.
    output: BytesMut,
    deadline: Deadline,
    draining: Draining,
    date: Date,
}

/// Whether the server is ending. All connections share what tells it, so that it is not touched
/// for each request: the task is entered once among those to be woken.
struct Draining {
    told: watch::Receiver<bool>,
    entered: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Draining {
    /// It is told once, and nothing before.
    fn has_begun(&self) -> bool {
        self.told.has_changed().unwrap_or(true)
    }

    /// Ready once it has begun; until then the task is woken when it does. For one task only.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.entered.is_none() {
            let mut told = self.told.clone();
            let waits = async move {
                let _ = told.changed().await;
            };
            let _ = self.entered.insert(Box::pin(waits)).as_mut().poll(cx);
        }
        // Looked at after the task was entered, so that nothing falls between.
        if self.has_begun() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> FastPath<'a, S> {
    pub(super) fn new(
        socket: &'a mut WriteTimeout<TrackedSocket<S>>,
        drain: watch::Receiver<bool>,
    ) -> Self {
        Self {
            socket,
            input: BytesMut::new(),
            output: BytesMut::new(),
            deadline: Deadline::default(),
            draining: Draining { told: drain, entered: None },
            date: Date::default(),
        }
    }

    /// Serves until the connection ends or a request is not for us. `admit` reads a head that is not
    /// the same as the one before, or whose admission no longer `holds`; what it does not admit,
    /// hyper's service refuses. `room` is asked for a body that is not small. `answer` makes the reply
    /// of a request; its second argument is true if the head is the one before, admitted as that was. It
    /// is dropped when the client goes away.
    pub(super) async fn serve<'r, A>(
        mut self,
        admit: impl Fn(&Parts) -> Option<A>,
        holds: impl Fn(&A) -> bool,
        room: impl Fn() -> BodyRoom<'r>,
        answer: impl AsyncFn(&Parts, bool, Bytes) -> Response<Body>,
    ) -> io::Result<End> {
        let mut last: Option<(Box<PostHead>, A)> = None;
        loop {
            let Some((post, repeated)) = self.head(&mut last, &admit, &holds).await? else {
                let other = !self.input.is_empty();
                return Ok(if other { End::Other(self.input.freeze()) } else { End::Closed });
            };
            self.input.advance(post.head.len());
            let (reply, last) = match self.body(post.length, &room).await? {
                Came::Whole(body) => {
                    (self.unless_gone(answer(&post.parts, repeated, body)).await?, false)
                }
                Came::Late => (Some(no_body(&NoBody::Late)), true),
                Came::NoRoom(none) => (Some(no_body(&none.into())), true),
                Came::Cut => (None, true),
            };
            let Some(reply) = reply else { return Ok(End::Closed) };
            let ending = last || self.draining.has_begun();
            self.reply(reply, ending).await?;
            if ending {
                return Ok(End::Closed);
            }
        }
    }

    /// Waits for the next head, which becomes `last`; true if it was that already. `None` when the
    /// connection has ended, or when the head is not for us and stays in `input`.
    async fn head<'b, A>(
        &mut self,
        last: &'b mut Option<(Box<PostHead>, A)>,
        admit: impl Fn(&Parts) -> Option<A>,
        holds: impl Fn(&A) -> bool,
    ) -> io::Result<Option<(&'b PostHead, bool)>> {
        let mut deadline = None;
        loop {
            let idle = self.input.is_empty();
            if !idle {
                let is_last = |(post, admitted): &(Box<PostHead>, A)| {
                    self.input.starts_with(&post.head) && holds(admitted)
                };
                if last.as_ref().is_some_and(is_last) {
                    return Ok(last.as_ref().map(|(post, _)| (&**post, true)));
                }
                match Start::read(&self.input, &PATHS, MAX_HEAD_BYTES) {
                    Start::Post(post) if post.length <= MAX_BODY_BYTES => {
                        let Some(admitted) = admit(&post.parts) else { return Ok(None) };
                        let (post, _) = last.insert((post, admitted));
                        return Ok(Some((post, false)));
                    }
                    Start::Post(_) | Start::Other => return Ok(None),
                    Start::More => {}
                }
            }
            if idle {
                self.socket.get_ref().set_idle(clock::lately());
            }
            let limit = if idle { IDLE_TIMEOUT } else { HEADER_TIMEOUT };
            let now = || if idle { clock::lately() } else { clock::now() };
            let until = *deadline.get_or_insert_with(|| now() + limit);
            match self.read_until(until, idle, usize::MAX).await? {
                // From its first bytes on there is a limit for the head, which most do not need.
                Read::Some if idle => deadline = None,
                Read::Some => {}
                Read::Ended | Read::Late => {
                    self.input.clear();
                    return Ok(None);
                }
            }
        }
    }

    async fn body<'r>(
        &mut self,
        length: usize,
        room: impl Fn() -> BodyRoom<'r>,
    ) -> io::Result<Came> {
        let mut deadline = None;
        let mut room = (length > SMALL_BODY_BYTES).then(room);
        while self.input.len() < length {
            let deadline = *deadline.get_or_insert_with(|| clock::now() + BODY_TIMEOUT);
            // What follows a large body is not read into its buffer.
            let most = if length > READ_BYTES { length - self.input.len() } else { usize::MAX };
            match self.read_until(deadline, false, most).await? {
                Read::Some => {}
                Read::Ended => return Ok(Came::Cut),
                Read::Late => return Ok(Came::Late),
            }
            if let Some(room) = room.as_mut().filter(|room| !room.has(self.input.len()))
                // Rare, and large: what an idle connection keeps is to be small.
                && let Err(none) = Box::pin(room.reach(self.input.len())).await
            {
                self.discard(length).await?;
                return Ok(Came::NoRoom(none));
            }
        }
        let body = self.input.split_to(length).freeze();
        let body = match room {
            None => body,
            Some(room) => room.keep(body),
        };
        if length > READ_BYTES {
            // Nor what is read next, by whichever connection: it would keep all of it.
            self.input = BytesMut::from(&*self.input);
        }
        Ok(Came::Whole(body))
    }

    /// Reads the rest of a body of `length` bytes and forgets it, for [`UNREAD_TIMEOUT`]: what is left unread may take the
    /// answer with it.
    async fn discard(&mut self, length: usize) -> io::Result<()> {
        let deadline = clock::now() + UNREAD_TIMEOUT;
        let mut left = length;
        loop {
            left = left.saturating_sub(self.input.len());
            self.input = BytesMut::new();
            if left == 0 || !matches!(self.read_until(deadline, false, left).await?, Read::Some) {
                return Ok(());
            }
        }
    }

    /// Reads once, at most `most` bytes. An idle connection is at its end when the server is.
    async fn read_until(&mut self, deadline: Instant, idle: bool, most: usize) -> io::Result<Read> {
        let Self { socket, input, deadline: timer, draining, .. } = self;
        poll_fn(|cx| {
            if let Poll::Ready(read) = poll_read(socket, input, most, cx) {
                return Poll::Ready(read.map(|count| match count {
                    0 => Read::Ended,
                    _ => Read::Some,
                }));
            }
            if idle && draining.poll(cx).is_ready() {
                return Poll::Ready(Ok(Read::Ended));
            }
            ready!(timer.poll_until(cx, deadline));
            Poll::Ready(Ok(Read::Late))
        })
        .await
    }

    /// Waits for `work`, reading ahead meanwhile; `None` when the client goes away first.
    async fn unless_gone<T>(&mut self, work: impl Future<Output = T>) -> io::Result<Option<T>> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(Some(done)));
            }
            self.poll_gone(cx).map_ok(|()| None)
        })
        .await
    }

    /// Ready when the client has gone. What comes meanwhile is kept, up to a bound.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.input.len() < READ_BYTES {
            if ready!(poll_read(self.socket, &mut self.input, usize::MAX, cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    /// Writes an answer; an error when it broke off or the client has gone.
    async fn reply(&mut self, reply: Response<Body>, last: bool) -> io::Result<()> {
        let (head, body) = reply.into_parts();
        let mut body = pin!(body);
        let length = body.size_hint().exact();
        self.output.reserve(512);
        self.write_head(&head, length, last);
        let mut out = Splice::new();
        let mut head = self.output.split().freeze();
        let mut ended = body.is_end_stream();
        loop {
            // Whatever is at hand leaves in one write.
            while !ended && out.len() < MAX_GATHERED_BYTES {
                let next = if out.is_empty() && head.is_empty() {
                    poll_fn(|cx| match body.as_mut().poll_frame(cx) {
                        Poll::Ready(next) => Poll::Ready(Some(next)),
                        Poll::Pending => self.poll_gone(cx).map(|_| None),
                    })
                    .await
                } else {
                    let mut once = pin!(poll_fn(|cx| body.as_mut().poll_frame(cx)));
                    match poll_fn(|cx| Poll::Ready(once.as_mut().poll(cx))).await {
                        Poll::Ready(next) => Some(next),
                        Poll::Pending => break,
                    }
                };
                match next {
                    None => return Err(io::ErrorKind::ConnectionAborted.into()),
                    Some(None) => {
                        ended = true;
                        if length.is_none() {
                            out.push(Bytes::from_static(b"0\r\n\r\n"));
                        }
                    }
                    Some(Some(Err(aborted))) => {
                        // What has come goes on; the missing last chunk says that it is not all.
                        out.push_front(std::mem::take(&mut head));
                        self.write(&mut out).await?;
                        return Err(io::Error::other(aborted));
                    }
                    Some(Some(Ok(frame))) => {
                        let Ok(data) = frame.into_data() else { continue };
                        if length.is_some() {
                            out.append(data);
                        } else if !data.is_empty() {
                            self.put([&format!("{:x}\r\n", data.len())]);
                            out.push(self.output.split().freeze());
                            out.append(data);
                            out.push(Bytes::from_static(b"\r\n"));
                        }
                    }
                }
            }
            out.push_front(std::mem::take(&mut head));
            self.write(&mut out).await?;
            if ended {
                return Ok(());
            }
        }
    }

    fn write_head(&mut self, head: &http::response::Parts, length: Option<u64>, last: bool) {
        let reason = head.status.canonical_reason().unwrap_or_default();
        self.put(["HTTP/1.1 ", head.status.as_str(), " ", reason, "\r\n"]);
        for (name, value) in &head.headers {
            if name != DATE && name != CONTENT_LENGTH {
                self.put([name.as_str(), ": "]);
                self.output.extend_from_slice(value.as_bytes());
                self.put(["\r\n"]);
            }
        }
        if length != Some(0) && !head.headers.contains_key(CONTENT_TYPE) {
            self.put(["content-type: ", UNNAMED_TYPE, "\r\n"]);
        }
        match length {
            // RFC 9110 §8.6
            Some(_) if head.status == StatusCode::NO_CONTENT => {}
            Some(length) => {
                self.put(["content-length: ", itoa::Buffer::new().format(length), "\r\n"]);
            }
            None => self.put(["transfer-encoding: chunked\r\n"]),
        }
        if last {
            self.put(["connection: close\r\n"]);
        }
        self.put(["date: "]);
        self.output.extend_from_slice(self.date.now().as_bytes());
        self.put(["\r\n\r\n"]);
    }

    fn put<const N: usize>(&mut self, parts: [&str; N]) {
        for part in parts {
            self.output.extend_from_slice(part.as_bytes());
        }
    }

    async fn write(&mut self, out: &mut Splice) -> io::Result<()> {
        while !out.is_empty() {
            let written = poll_fn(|cx| {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let count = out.chunks_vectored(&mut slices);
                let slices = slices.get(..count).unwrap_or_default();
                Pin::new(&mut *self.socket).poll_write_vectored(cx, slices)
            })
            .await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            out.advance(written);
        }
        Ok(())
    }
}

fn poll_read<S: AsyncRead + Unpin>(
    socket: &mut WriteTimeout<TrackedSocket<S>>,
    input: &mut BytesMut,
    most: usize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    REQUESTS.with(|pool| pool.lend(input));
    // Room for a body is made as it comes, whatever length it is said to have.
    if input.capacity() - input.len() < LEAST_ROOM {
        input.reserve(READ_BYTES.max(input.len()));
    }
    let read = pin!(socket.read_buf(&mut (&mut *input).limit(most))).poll(cx);
    if read.is_pending() {
        REQUESTS.with(|pool| pool.take_back(input));
    }
    read
}

/// The present time as a header value (RFC 9110 §5.6.7), written anew each second.
#[derive(Default)]
struct Date {
    until: Option<Instant>,
    text: String,
}

impl Date {
    fn now(&mut self) -> &str {
        let now = clock::lately();
        if self.until.is_none_or(|until| now >= until) {
            let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            let rest = Duration::from_secs(1) - Duration::from_nanos(wall.subsec_nanos().into());
            self.until = Some(now + rest);
            let time = Timestamp::try_from(SystemTime::UNIX_EPOCH + wall).unwrap_or_default();
            self.text = time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        }
        &self.text
    }
}

#[cfg(test)]
mod tests;
