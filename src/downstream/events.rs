//! A reply as an event stream: what comes before the answer, and the answer, each one event.
//!
//! In the legacy era events have ids and are kept as long as there is room for them, and the call
//! goes on when the connection breaks: whoever takes the stream up again gets the rest. In the
//! modern era the stream is the call, and both end together.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};

use crate::downstream::body::Body;
use crate::downstream::in_flight::{Taken, Watched};
use crate::downstream::replay::{EventId, MAX_BYTES, Next, StreamKind};
use crate::downstream::session::Session;
use crate::mcp::headers;
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::revisions::Era;
use crate::proxy::Worker;
use crate::proxy::render;
use crate::proxy::reply::{Aborted, Piece};
use crate::wire::sse::Encoder;

/// How often a stream without events shows that it is alive.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A comment: it carries nothing.
pub(super) const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// An answer that is an event stream. `next` is asked until it says that there is no more.
pub(super) fn response<S, F>(state: S, next: F) -> Response<Body>
where
    S: 'static,
    F: AsyncFn(&mut S) -> Result<Option<Bytes>, Aborted> + 'static,
{
    let next = Rc::new(next);
    let chunks = stream::try_unfold(state, move |mut state| {
        let next = Rc::clone(&next);
        async move { Ok(next(&mut state).await?.map(|chunk| (chunk, state))) }
    });
    let mut response = Response::new(Body::Stream(Box::pin(chunks)));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(headers::BUFFERING, HeaderValue::from_static("no"));
    response
}

/// One message as an event without an id.
pub(super) fn event(message: &Bytes) -> Bytes {
    let mut encoder = Encoder::new();
    let mut framed = Vec::with_capacity(message.len() + 16);
    encoder.data(message.clone(), |part| framed.extend_from_slice(&part));
    framed.extend_from_slice(&encoder.end());
    framed.into()
}

/// The rest of a reply, as events.
pub(super) struct Reply {
    worker: Rc<Worker>,
    /// `None` once it is over.
    call: Option<Watched>,
    framer: Framer,
    out: VecDeque<Bytes>,
}

/// Frames pieces as events.
struct Framer {
    id: Bytes,
    era: Era,
    encoder: Encoder,
    /// Where events are kept, in the legacy era.
    line: Option<Line>,
    /// Inside the event of the answer.
    inside: bool,
}

/// A kept stream of a session, and the event that is being written.
struct Line {
    session: Arc<Session>,
    stream: u64,
    event: u64,
    /// `None` once it is too large to be kept.
    parts: Option<Vec<Bytes>>,
    bytes: usize,
}

/// What a piece was to a stream.
#[derive(PartialEq, Eq)]
enum Was {
    Middle,
    Last,
}

impl Reply {
    /// Answers the request `id` with what `call` goes on to say after `first`.
    pub(super) fn respond(
        worker: &Rc<Worker>,
        id: &Bytes,
        era: Era,
        session: Option<&Arc<Session>>,
        first: Piece,
        call: Watched,
    ) -> Response<Body> {
        let line = session.map(Line::begin);
        let framer = Framer { id: id.clone(), era, encoder: Encoder::new(), line, inside: false };
        let mut reply =
            Self { worker: Rc::clone(worker), call: Some(call), framer, out: VecDeque::new() };
        reply.framer.piece(first, &mut reply.out);
        response(reply, async |reply| reply.next().await)
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Aborted> {
        loop {
            if let Some(chunk) = self.out.pop_front() {
                return Ok(Some(chunk));
            }
            let Some(call) = &mut self.call else { return Ok(None) };
            let taken = tokio::select! {
                taken = call.next() => taken,
                () = tokio::time::sleep(KEEP_ALIVE), if !self.framer.inside => {
                    return Ok(Some(COMMENT));
                }
            };
            let over = match taken {
                Taken::Piece(piece) => self.framer.piece(piece, &mut self.out) == Was::Last,
                Taken::Broken(aborted) => {
                    self.call = None;
                    self.framer.broken(&aborted);
                    return Err(aborted);
                }
                Taken::Over => {
                    self.framer.close(&mut self.out);
                    true
                }
                Taken::Cancelled => true,
            };
            if over && let Some(call) = self.call.take() {
                self.framer.over();
                if let Some(rest) = call.rest() {
                    self.worker.defer(rest);
                }
            }
        }
    }
}

impl Drop for Reply {
    /// The connection broke. In the legacy era that ends no call (MCP 2025-11-25 §Sending
    /// Messages): it goes on, and what it says is kept.
    fn drop(&mut self) {
        let (Some(call), Some(line)) = (self.call.take(), self.framer.line.take()) else { return };
        let framer = Framer {
            id: std::mem::take(&mut self.framer.id),
            era: self.framer.era,
            encoder: std::mem::take(&mut self.framer.encoder),
            line: Some(line),
            inside: self.framer.inside,
        };
        self.worker.adopt(unattended(call, framer));
    }
}

/// Drives a call whose client has disconnected, and keeps its events for a client that resumes
/// the stream.
async fn unattended(mut call: Watched, mut framer: Framer) {
    let Some(session) = framer.line.as_ref().map(|line| Arc::clone(&line.session)) else { return };
    let mut unsent = VecDeque::new();
    loop {
        let ended = async {
            loop {
                let stirred = session.streams.stirred();
                if session.has_ended() {
                    return;
                }
                stirred.await;
            }
        };
        let taken = tokio::select! {
            taken = call.next() => taken,
            () = ended => {
                call.cancel();
                Taken::Cancelled
            }
        };
        match taken {
            Taken::Piece(piece) => {
                let was = framer.piece(piece, &mut unsent);
                unsent.clear();
                if framer.is_too_large() {
                    call.cancel();
                    framer.refuse("the answer is too large to be kept for a broken connection");
                    break;
                }
                if was == Was::Last {
                    break;
                }
            }
            Taken::Over => {
                framer.close(&mut unsent);
                break;
            }
            Taken::Broken(aborted) => {
                framer.broken(&aborted);
                break;
            }
            Taken::Cancelled => break,
        }
    }
    framer.over();
    if let Some(rest) = call.rest().and_then(|running| running.rest()) {
        let _ = rest.await;
    }
}

impl Framer {
    fn piece(&mut self, piece: Piece, out: &mut VecDeque<Bytes>) -> Was {
        match piece {
            Piece::Notification(message) | Piece::Request(message) => {
                self.whole(message, out);
                Was::Middle
            }
            Piece::Begin(member) => {
                self.start(out);
                self.inside = true;
                self.data(render::head(&self.id, member), out);
                Was::Middle
            }
            Piece::Data(data) => {
                data.into_iter().for_each(|part| self.data(part, out));
                Was::Middle
            }
            Piece::Whole(member, value) => {
                self.start(out);
                self.data(render::head(&self.id, member), out);
                value.into_iter().for_each(|part| self.data(part, out));
                self.data(jsonrpc::TAIL, out);
                self.end(out);
                Was::Last
            }
            Piece::Refused(refusal) => {
                self.whole(refusal.mcp_response(self.era, &self.id), out);
                Was::Last
            }
        }
    }

    fn whole(&mut self, message: Bytes, out: &mut VecDeque<Bytes>) {
        self.start(out);
        self.data(message, out);
        self.end(out);
    }

    fn start(&mut self, out: &mut VecDeque<Bytes>) {
        if let Some(line) = &mut self.line {
            let id = line.start();
            line.put(&id);
            out.push_back(id);
        }
    }

    fn data(&mut self, part: Bytes, out: &mut VecDeque<Bytes>) {
        let line = &mut self.line;
        self.encoder.data(part, |part| {
            if let Some(line) = line {
                line.put(&part);
            }
            out.push_back(part);
        });
    }

    fn end(&mut self, out: &mut VecDeque<Bytes>) {
        let end = self.encoder.end();
        if let Some(line) = &mut self.line {
            line.put(&end);
            line.keep();
        }
        out.push_back(end);
        self.inside = false;
    }

    /// Ends the answer's event.
    fn close(&mut self, out: &mut VecDeque<Bytes>) {
        if self.inside {
            self.data(jsonrpc::TAIL, out);
            self.end(out);
        }
    }

    fn is_too_large(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.parts.is_none())
    }

    /// The answer broke off: a client that resumes the stream gets an error in its place.
    fn broken(&mut self, aborted: &Aborted) {
        self.refuse(&aborted.to_string());
        self.over();
    }

    /// An error in the place of the answer, for whoever takes the stream up again.
    fn refuse(&mut self, text: &str) {
        let mut unsent = VecDeque::new();
        self.encoder = Encoder::new();
        self.whole(jsonrpc::error(Some(&self.id), Code::Internal, text), &mut unsent);
    }

    fn over(&mut self) {
        if let Some(line) = self.line.take() {
            line.session.streams.finish(line.stream);
        }
    }
}

impl Line {
    fn begin(session: &Arc<Session>) -> Self {
        let stream = session.streams.begin(StreamKind::Reply);
        Self { session: Arc::clone(session), stream, event: 0, parts: None, bytes: 0 }
    }

    /// The head of the next event.
    fn start(&mut self) -> Bytes {
        self.event = self.session.streams.number(self.stream);
        (self.parts, self.bytes) = (Some(Vec::new()), 0);
        let id = EventId { kind: StreamKind::Reply, stream: self.stream, event: self.event };
        Encoder::id(&id.to_string())
    }

    fn put(&mut self, part: &Bytes) {
        self.bytes += part.len();
        if self.bytes > MAX_BYTES {
            self.parts = None;
        } else if let Some(parts) = &mut self.parts {
            parts.push(part.clone());
        }
    }

    fn keep(&mut self) {
        if let Some(parts) = &self.parts {
            // A copy: what is kept must not pin the buffers it was read into.
            self.session.streams.keep(self.stream, self.event, parts.concat().into());
        }
    }
}

/// A reply's stream, taken up again behind the event that the client saw last; `None` if it is not
/// known, or not any more.
pub(super) fn resumed(session: &Arc<Session>, seen: EventId) -> Option<Response<Body>> {
    struct Resumed {
        session: Arc<Session>,
        stream: u64,
        attached: u64,
        after: u64,
    }
    let attached = session.streams.attach(StreamKind::Reply, seen.stream)?;
    let session = Arc::clone(session);
    let state = Resumed { session, stream: seen.stream, attached, after: seen.event };
    Some(response(state, async |state| {
        loop {
            let streams = &state.session.streams;
            let stirred = streams.stirred();
            match streams.next(state.stream, state.attached, state.after) {
                _ if state.session.has_ended() => return Ok(None),
                Next::Over => return Ok(None),
                Next::Event(number, framed) => {
                    state.after = number;
                    return Ok(Some(framed));
                }
                Next::Wait => {}
            }
            tokio::select! {
                () = stirred => {}
                () = tokio::time::sleep(KEEP_ALIVE) => return Ok(Some(COMMENT)),
            }
        }
    }))
}
