//! A reply as an event stream: what comes before the answer, and the answer, each one event.
//!
//! In the legacy era events have ids and are kept as long as there is room for them, and the call
//! goes on when the connection breaks: a client that resumes the stream gets the rest. In the
//! modern era the stream is the call, and both end together.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use crate::downstream::body::Body;
use crate::downstream::event_stream::{COMMENT, KEEP_ALIVE, response};
use crate::downstream::in_flight::{Taken, Watched};
use crate::downstream::replay::{EventId, MAX_BYTES, StreamKind};
use crate::downstream::session::Session;
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::revisions::Era;
use crate::proxy::Worker;
use crate::proxy::render;
use crate::proxy::reply::{Aborted, Piece};
use crate::wire::sse::Encoder;

/// The rest of a reply, as events. Dropped before its end, it lets a call of a session go on unattended.
pub(super) struct ReplyStream {
    worker: Rc<Worker>,
    /// `None` once it has ended.
    call: Option<Watched>,
    framer: Framer,
    out: VecDeque<Bytes>,
}

/// Frames pieces as events.
struct Framer {
    id: Bytes,
    era: Era,
    encoder: Encoder,
    /// Where events are kept: in sessions, which the modern era has not.
    line: Option<KeptEvents>,
    /// Inside the event of the answer.
    inside: bool,
}

/// A kept stream of a session, and the event that is being written.
struct KeptEvents {
    session: Arc<Session>,
    stream: u64,
    event: u64,
    /// `None` once it is too large to be kept.
    parts: Option<Vec<Bytes>>,
    bytes: usize,
}

/// Whether a piece was the last of its stream.
#[derive(PartialEq, Eq)]
enum Was {
    Middle,
    Last,
}

impl ReplyStream {
    /// Answers the request `id` with what `call` goes on to say after `first`.
    pub(super) fn respond(
        worker: &Rc<Worker>,
        id: &Bytes,
        era: Era,
        session: Option<&Arc<Session>>,
        first: Piece,
        call: Watched,
    ) -> Response<Body> {
        let line = session.map(KeptEvents::begin);
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

impl Drop for ReplyStream {
    /// The connection broke. In the legacy era that cancels no call (MCP 2025-11-25 §Sending
    /// Messages): it goes on, and its events are kept.
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
                let notified = session.streams.notified();
                if session.has_ended() {
                    return;
                }
                notified.await;
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
            Piece::Alive => {
                out.push_back(COMMENT);
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

    /// Keeps an error in the place of the answer, for a client that resumes the stream.
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

impl KeptEvents {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downstream::replay::Next;
    use crate::downstream::session::tests::alone;
    use crate::output::AnswerMember;
    use crate::proxy::refusal::{Refusal, RefusalKind};
    use crate::wire::splice::Splice;

    const PROGRESS: &[u8] = br#"{"method":"notifications/progress"}"#;

    fn framer(line: Option<KeptEvents>, era: Era) -> Framer {
        let (id, encoder) = (Bytes::from_static(b"1"), Encoder::new());
        Framer { id, era, encoder, line, inside: false }
    }

    fn text(out: &mut VecDeque<Bytes>) -> String {
        let bytes: Vec<u8> = out.drain(..).flatten().collect();
        String::from_utf8(bytes).unwrap()
    }

    /// The events that a client gets who comes back without having seen any.
    fn kept(session: &Session) -> Vec<String> {
        let attached = session.streams.attach(StreamKind::Reply, 0).unwrap();
        let (mut events, mut after) = (Vec::new(), 0);
        while let Next::Event(number, event) = session.streams.next(0, attached, after) {
            events.push(String::from_utf8(event.to_vec()).unwrap());
            after = number;
        }
        events
    }

    #[test]
    fn in_a_session_each_event_has_an_id_and_is_kept_as_it_was_sent() {
        let session = alone();
        let mut framer = framer(Some(KeptEvents::begin(&session)), Era::Legacy);
        let mut out = VecDeque::new();
        let before = Piece::Notification(Bytes::from_static(PROGRESS));
        assert!(framer.piece(before, &mut out) == Was::Middle);
        let first = text(&mut out);
        assert_eq!(first, "id: r0-1\ndata: {\"method\":\"notifications/progress\"}\n\n");
        assert!(framer.piece(Piece::Begin(AnswerMember::Result), &mut out) == Was::Middle);
        assert!(framer.inside, "nothing else comes into this event");
        for part in ["{\"a\":", "1}"] {
            let data = Piece::Data(Splice::from(Bytes::from(part)));
            assert!(framer.piece(data, &mut out) == Was::Middle);
        }
        framer.close(&mut out);
        let second = text(&mut out);
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#;
        assert_eq!(second, format!("id: r0-2\ndata: {answer}\n\n"));
        framer.over();
        assert_eq!(kept(&session), [first, second]);
    }

    #[test]
    fn without_a_session_events_have_no_ids() {
        let mut framer = framer(None, Era::Modern);
        let mut out = VecDeque::new();
        let whole = Piece::Whole(AnswerMember::Error, Splice::from(Bytes::from_static(b"{}")));
        assert!(framer.piece(whole, &mut out) == Was::Last);
        assert_eq!(text(&mut out), "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{}}\n\n");
        let refusal = Refusal::new(RefusalKind::Failed, "no".into());
        assert!(framer.piece(Piece::Refused(refusal), &mut out) == Was::Last);
        assert!(text(&mut out).contains(r#""code":-32603"#));
    }

    #[test]
    fn an_answer_that_broke_off_is_an_error_to_who_comes_back() {
        let session = alone();
        let mut framer = framer(Some(KeptEvents::begin(&session)), Era::Legacy);
        let mut out = VecDeque::new();
        framer.piece(Piece::Begin(AnswerMember::Result), &mut out);
        framer.piece(Piece::Data(Splice::from(Bytes::from_static(b"[1,"))), &mut out);
        framer.broken(&Aborted("the server has gone".into()));
        let events = kept(&session);
        assert_eq!(events.len(), 1, "what was sent in part is not kept: {events:?}");
        assert!(events[0].contains("the server has gone") && !events[0].contains("[1,"));
        assert_eq!(
            session
                .streams
                .attach(StreamKind::Reply, 0)
                .map(|at| { session.streams.next(0, at, 2) }),
            Some(Next::Over)
        );
    }

    #[test]
    fn an_answer_that_is_too_large_is_not_kept() {
        let session = alone();
        let mut framer = framer(Some(KeptEvents::begin(&session)), Era::Legacy);
        let mut out = VecDeque::new();
        framer.piece(Piece::Begin(AnswerMember::Result), &mut out);
        let half = || Piece::Data(Splice::from(Bytes::from(vec![b' '; MAX_BYTES / 2])));
        framer.piece(half(), &mut out);
        assert!(!framer.is_too_large());
        framer.piece(half(), &mut out);
        assert!(framer.is_too_large());
        framer.close(&mut out);
        assert!(kept(&session).is_empty());
    }
}
