//! Response to one POST: complete, streamed, or an event stream if messages precede the result.
//!
//! In the legacy family, events have ids and are kept for resumption within the replay buffer's limits, and a call
//! survives its connection: a client that resumes the stream gets the rest, or an error that explains why the
//! response was not kept. In the modern family the stream and its call end together.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Response, StatusCode};
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_protocol::wire::sse::Encoder;
use mcpproxy_schema::output::AnswerMember;
use memchr::memchr2_iter;

use super::body::{Body, COMMENT, Streamed, json, response};
use super::in_flight::{Taken, Watched};
use super::replay::{EventId, EventKind, ReplayFull, StreamKind};
use super::session::Session;
use mcpproxy_gateway::proxy::client::Channel;
use mcpproxy_gateway::proxy::reply::{Aborted, Piece};
use mcpproxy_gateway::proxy::{Worker, render};

/// Serves a reply: complete if it is ready immediately, otherwise streamed; as events if messages precede the result
/// or the result takes longer than `stream_after` (NET-8).
pub(super) async fn reply(
    worker: &Rc<Worker>,
    id: &Bytes,
    family: ProtocolFamily,
    session: Option<&Arc<Session>>,
    channel: Channel,
    mut call: Watched,
) -> Response<Body> {
    let failed = |text: &str| {
        let error = jsonrpc::error(Some(id), Code::Internal, text);
        json(StatusCode::OK, Body::from(error))
    };
    let slow = worker.settings().streams.stream_after;
    let taken = match channel {
        // Load balancers cut connections that are silent for long.
        Channel::Stream => {
            let taken = tokio::time::timeout(slow, call.next()).await;
            taken.unwrap_or(Taken::Piece(Piece::Alive))
        }
        Channel::Answer => call.next().await,
    };
    match taken {
        Taken::Piece(first @ (Piece::Notification(_) | Piece::Request(_) | Piece::Alive)) => {
            ReplyStream::respond(worker, id, family, session, first, call)
        }
        Taken::Piece(Piece::Whole(member, mut splice)) => {
            let status = status_of(family, member, &splice);
            splice.push_front(render::head(id, member));
            splice.push(jsonrpc::TAIL);
            // The remaining work (validation in `warn`) runs after the response is sent.
            if let Some(rest) = call.rest() {
                worker.defer(rest);
            }
            json(status, Body::from(splice))
        }
        Taken::Piece(Piece::Begin(member)) => {
            let streamed = Streamed::new(call, render::head(id, member), jsonrpc::TAIL);
            json(StatusCode::OK, Body::Call(Box::new(streamed)))
        }
        Taken::Piece(Piece::Refused(refusal)) => {
            let status = refusal.kind.mcp_status();
            let mut response = json(status, Body::from(refusal.mcp_response(family, id)));
            if let (StatusCode::TOO_MANY_REQUESTS, Some(after)) = (status, refusal.retry_after) {
                let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
                response.headers_mut().insert(RETRY_AFTER, seconds.into());
            }
            response
        }
        Taken::Piece(Piece::Data(_)) => failed("Internal error: no head"),
        Taken::Over | Taken::Broken(_) => failed("Internal error: no reply"),
        // A client that cancels expects no response, but an HTTP request must have one.
        Taken::Canceled => failed("the client cancelled the request"),
    }
}

/// HTTP status of an upstream's answer. A missing client capability is a request error (MCP 2026-07-28 §Error
/// Codes), an unknown method is not found (§Streamable HTTP); other errors are regular responses.
fn status_of(family: ProtocolFamily, member: AnswerMember, value: &Splice) -> StatusCode {
    const MISSING_CAPABILITY: i64 = Code::MissingCapability as i64;
    const METHOD_NOT_FOUND: i64 = Code::MethodNotFound as i64;
    #[derive(serde::Deserialize)]
    struct Error {
        code: i64,
    }
    if (family, member) != (ProtocolFamily::Modern, AnswerMember::Error) {
        return StatusCode::OK;
    }
    // Copying the error is cheap: one that was received completely is small and rare.
    let value: Vec<u8> = value.slices().flatten().copied().collect();
    match serde_json::from_slice(&value) {
        Ok(Error { code: MISSING_CAPABILITY }) => StatusCode::BAD_REQUEST,
        Ok(Error { code: METHOD_NOT_FOUND }) => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    }
}

/// Remainder of a reply as events. If it is dropped early, the call of a session continues without a client.
pub(super) struct ReplyStream {
    worker: Rc<Worker>,
    /// `None` once the call has ended.
    call: Option<Watched>,
    framer: Framer,
    out: VecDeque<Bytes>,
}

/// Frames pieces as events.
struct Framer {
    id: Bytes,
    family: ProtocolFamily,
    encoder: Encoder,
    /// Replay buffer; only in sessions, which modern clients do not have.
    line: Option<KeptEvents>,
    /// Whether the response's event is open.
    inside: bool,
}

/// A kept stream of a session, and the event being written.
struct KeptEvents {
    session: Arc<Session>,
    stream: u64,
    event: u64,
    kind: EventKind,
    /// The event so far, or why it is not kept.
    parts: Result<Vec<Bytes>, ReplayFull>,
    /// Whether the last event was written.
    over: bool,
}

/// Allowance for an event's id and the response's envelope, in bytes.
const BESIDE_DATA_BYTES: usize = 1024;
/// Size in bytes of a line end within the data of an event, including the prefix of the next line.
const LINE_END_BYTES: usize = "\r\ndata: ".len();

/// Rest of a priming event after its id: the delay in milliseconds before a client resumes the stream, and empty data.
const PRIMING: &[u8] = b"retry: 1000\ndata: \n\n";

/// Whether a piece was the last of its stream.
#[derive(PartialEq, Eq)]
enum Was {
    Middle,
    Last,
}

impl ReplyStream {
    /// Serves the request `id` with `first` and the rest of `call`.
    pub(super) fn respond(
        worker: &Rc<Worker>,
        id: &Bytes,
        family: ProtocolFamily,
        session: Option<&Arc<Session>>,
        first: Piece,
        call: Watched,
    ) -> Response<Body> {
        let line = session.map(KeptEvents::begin);
        let framer =
            Framer { id: id.clone(), family, encoder: Encoder::new(), line, inside: false };
        let mut reply =
            Self { worker: Rc::clone(worker), call: Some(call), framer, out: VecDeque::new() };
        match first {
            Piece::Alive => reply.framer.open(&mut reply.out),
            first => drop(reply.framer.piece(first, &mut reply.out)),
        }
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
                () = tokio::time::sleep(self.worker.settings().streams.keepalive), if !self.framer.inside => {
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
                Taken::Canceled => true,
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
    /// Handles a broken connection, unless everything was sent. In the legacy family the call continues, and its
    /// events are kept (MCP 2025-11-25 §Sending Messages).
    fn drop(&mut self) {
        let Some(line) = self.framer.line.take() else { return };
        line.detach(self.out.is_empty());
        let Some(call) = self.call.take() else { return };
        let framer = Framer {
            id: std::mem::take(&mut self.framer.id),
            family: self.framer.family,
            encoder: std::mem::take(&mut self.framer.encoder),
            line: Some(line),
            inside: self.framer.inside,
        };
        self.worker.adopt(unattended(call, framer));
    }
}

/// Drives a call whose client has disconnected, and keeps its events for resumption.
async fn unattended(mut call: Watched, mut framer: Framer) {
    let Some(line) = &framer.line else { return };
    let (session, stream) = (Arc::clone(&line.session), line.stream);
    let streams = Arc::clone(&session);
    // The call's record must show whether the response can be kept.
    call.answers_to(move |answer| {
        let ends = answer.slices().map(|part| memchr2_iter(b'\r', b'\n', part).count());
        let bytes = answer.len() + LINE_END_BYTES * ends.sum::<usize>() + BESIDE_DATA_BYTES;
        let reserved = streams.streams.reserve(stream, EventKind::Answer, bytes);
        reserved.map_err(|why| not_kept(&why))
    });
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
                Taken::Canceled
            }
        };
        match taken {
            Taken::Piece(piece) => {
                let was = framer.piece(piece, &mut unsent);
                unsent.clear();
                if let Some(why) = framer.not_kept() {
                    call.give_up(not_kept(&why));
                    framer.refuse(&not_kept(&why));
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
            Taken::Canceled => break,
        }
    }
    framer.over();
    if let Some(rest) = call.rest().and_then(|running| running.rest()) {
        let _ = rest.await;
    }
}

/// Error text for a response that was not kept, for the client and for the record.
fn not_kept(why: &ReplayFull) -> String {
    format!("the answer was not kept for a client that resumes its stream: {why}")
}

impl Framer {
    /// Begins a stream that has no event yet.
    fn open(&self, out: &mut VecDeque<Bytes>) {
        let line = self.line.as_ref();
        let primed = line.filter(|line| line.session.client.revision().primes_event_streams());
        out.push_back(primed.map_or(COMMENT, KeptEvents::priming));
    }

    fn piece(&mut self, piece: Piece, out: &mut VecDeque<Bytes>) -> Was {
        match piece {
            Piece::Notification(message) => {
                self.whole(message, EventKind::Notice, out);
                Was::Middle
            }
            Piece::Request(message) => {
                self.whole(message, EventKind::Question, out);
                Was::Middle
            }
            Piece::Alive => {
                out.push_back(COMMENT);
                Was::Middle
            }
            Piece::Begin(member) => {
                self.start(EventKind::Answer, out);
                self.inside = true;
                self.data(render::head(&self.id, member), out);
                Was::Middle
            }
            Piece::Data(data) => {
                data.into_iter().for_each(|part| self.data(part, out));
                Was::Middle
            }
            Piece::Whole(member, value) => {
                self.start(EventKind::Answer, out);
                self.data(render::head(&self.id, member), out);
                value.into_iter().for_each(|part| self.data(part, out));
                self.data(jsonrpc::TAIL, out);
                self.end(out);
                Was::Last
            }
            Piece::Refused(refusal) => {
                self.whole(refusal.mcp_response(self.family, &self.id), EventKind::Answer, out);
                Was::Last
            }
        }
    }

    fn whole(&mut self, message: Bytes, kind: EventKind, out: &mut VecDeque<Bytes>) {
        self.start(kind, out);
        self.data(message, out);
        self.end(out);
    }

    fn start(&mut self, kind: EventKind, out: &mut VecDeque<Bytes>) {
        if let Some(line) = &mut self.line {
            let id = line.start(kind);
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
            line.keep(&self.id);
        }
        out.push_back(end);
        self.inside = false;
    }

    /// Ends the response's event.
    fn close(&mut self, out: &mut VecDeque<Bytes>) {
        if self.inside {
            self.data(jsonrpc::TAIL, out);
            self.end(out);
        }
    }

    /// Reason why the response being written is not kept, if any.
    fn not_kept(&self) -> Option<ReplayFull> {
        let line = self.line.as_ref().filter(|_| self.inside)?;
        line.parts.as_ref().err().copied()
    }

    /// Keeps an error in place of a response that broke off.
    fn broken(&mut self, aborted: &Aborted) {
        self.refuse(&aborted.to_string());
        if let Some(line) = &self.line {
            line.detach(false);
        }
        self.over();
    }

    /// Keeps an error in place of the response.
    fn refuse(&mut self, text: &str) {
        self.encoder = Encoder::new();
        self.inside = false;
        if let Some(line) = &mut self.line {
            line.event = line.session.streams.number(line.stream);
            line.refuse(&self.id, text);
        }
    }

    fn over(&mut self) {
        if let Some(line) = &mut self.line
            && !std::mem::replace(&mut line.over, true)
        {
            line.session.streams.finish(line.stream);
        }
    }
}

impl KeptEvents {
    fn begin(session: &Arc<Session>) -> Self {
        let stream = session.streams.begin(StreamKind::Reply);
        let (session, kind, parts) = (Arc::clone(session), EventKind::Notice, Ok(Vec::new()));
        Self { session, stream, event: 0, kind, parts, over: false }
    }

    /// Begins an event and returns its head.
    fn start(&mut self, kind: EventKind) -> Bytes {
        self.event = self.session.streams.number(self.stream);
        (self.kind, self.parts) = (kind, Ok(Vec::new()));
        self.id()
    }

    fn id(&self) -> Bytes {
        let id = EventId { kind: StreamKind::Reply, stream: self.stream, event: self.event };
        Encoder::id(&id.to_string())
    }

    /// Event without data, from which a client can resume the stream before its first event.
    fn priming(&self) -> Bytes {
        [&*self.id(), PRIMING].concat().into()
    }

    fn put(&mut self, part: &Bytes) {
        let Ok(parts) = &mut self.parts else { return };
        match self.session.streams.write(self.stream, self.kind, part.len()) {
            Ok(()) => parts.push(part.clone()),
            Err(why) => self.parts = Err(why),
        }
    }

    /// Keeps the event, or an error to the request `id` if the response cannot be kept.
    fn keep(&mut self, id: &[u8]) {
        let kept = match &self.parts {
            // The event is copied, so that kept events do not pin read buffers.
            Ok(parts) => {
                let framed = parts.concat().into();
                self.session.streams.keep(self.stream, self.event, self.kind, framed)
            }
            Err(why) => {
                self.session.streams.discard(self.stream);
                Err(*why)
            }
        };
        match (kept, self.kind) {
            (Err(why), EventKind::Answer) => self.refuse(id, &not_kept(&why)),
            (Err(why), EventKind::Notice | EventKind::Question) => {
                tracing::debug!(%why, kind = ?self.kind, "an event was not kept for resumption");
            }
            (Ok(()), _) => {}
        }
    }

    /// Keeps an error to the request `id` in place of the response, if it fits.
    fn refuse(&mut self, id: &[u8], text: &str) {
        let mut framed = vec![self.id()];
        let mut encoder = Encoder::new();
        encoder.data(jsonrpc::error(Some(id), Code::Internal, text), |part| framed.push(part));
        framed.push(encoder.end());
        let streams = &self.session.streams;
        streams.discard(self.stream);
        let kept = streams.keep(self.stream, self.event, EventKind::Answer, framed.concat().into());
        if let Err(why) = kept {
            tracing::debug!(%why, "the error that replaces an answer was not kept");
        }
        self.parts = Ok(Vec::new());
    }

    /// Records that the connection has closed; `sent` is true if it delivered everything so far.
    fn detach(&self, sent: bool) {
        self.session.streams.detach(self.stream, sent);
    }
}

impl Drop for KeptEvents {
    fn drop(&mut self) {
        // An incomplete event is not kept.
        self.session.streams.discard(self.stream);
    }
}

#[cfg(test)]
mod tests {
    use mcpproxy_protocol::wire::splice::Splice;
    use mcpproxy_schema::output::AnswerMember;

    use super::super::replay::{MAX_BYTES, MAX_EVENT_BYTES, Next};
    use super::super::session::tests::alone;
    use super::*;
    use mcpproxy_gateway::proxy::refusal::{Refusal, RefusalKind};
    use mcpproxy_gateway::proxy::reply::Running;

    #[test]
    fn missing_client_capability_is_status_400_for_modern_clients() {
        let status = |family, member, value: &'static str| {
            let mut parts = Splice::new();
            for part in value.as_bytes().chunks(5) {
                parts.push(Bytes::from_static(part));
            }
            status_of(family, member, &parts).as_u16()
        };
        let missing = r#"{"message":"m","code":-32021,"data":{"requiredCapabilities":{}}}"#;
        assert_eq!(status(ProtocolFamily::Modern, AnswerMember::Error, missing), 400);
        assert_eq!(status(ProtocolFamily::Legacy, AnswerMember::Error, missing), 200);
        assert_eq!(status(ProtocolFamily::Modern, AnswerMember::Result, missing), 200);
        assert_eq!(status(ProtocolFamily::Modern, AnswerMember::Error, r#"{"code":-32602}"#), 200);
        assert_eq!(status(ProtocolFamily::Modern, AnswerMember::Error, "7"), 200);
    }

    const PROGRESS: &[u8] = br#"{"method":"notifications/progress"}"#;

    fn framer(line: Option<KeptEvents>, family: ProtocolFamily) -> Framer {
        let (id, encoder) = (Bytes::from_static(b"1"), Encoder::new());
        Framer { id, family, encoder, line, inside: false }
    }

    fn text(out: &mut VecDeque<Bytes>) -> String {
        let bytes: Vec<u8> = out.drain(..).flatten().collect();
        String::from_utf8(bytes).unwrap()
    }

    /// The events that a client receives when it resumes without having seen any.
    fn kept(session: &Session) -> Vec<String> {
        let attached = session.streams.attach(StreamKind::Reply, 0, 0).unwrap();
        let (mut events, mut after) = (Vec::new(), 0);
        while let Next::Event(number, event) = session.streams.next(0, attached, after) {
            events.push(String::from_utf8(event.to_vec()).unwrap());
            after = number;
        }
        events
    }

    #[test]
    fn session_events_have_ids_and_are_kept_as_sent() {
        let session = alone();
        let mut framer = framer(Some(KeptEvents::begin(&session)), ProtocolFamily::Legacy);
        let mut out = VecDeque::new();
        let before = Piece::Notification(Bytes::from_static(PROGRESS));
        assert!(framer.piece(before, &mut out) == Was::Middle);
        let first = text(&mut out);
        assert_eq!(
            first,
            "id: r0-1\nevent: message\ndata: {\"method\":\"notifications/progress\"}\n\n"
        );
        assert!(framer.piece(Piece::Begin(AnswerMember::Result), &mut out) == Was::Middle);
        assert!(framer.inside, "no other message enters this event");
        for part in ["{\"a\":", "1}"] {
            let data = Piece::Data(Splice::from(Bytes::from(part)));
            assert!(framer.piece(data, &mut out) == Was::Middle);
        }
        framer.close(&mut out);
        let second = text(&mut out);
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#;
        assert_eq!(second, format!("id: r0-2\nevent: message\ndata: {answer}\n\n"));
        framer.over();
        assert_eq!(kept(&session), [first, second]);
    }

    #[test]
    fn events_without_a_session_have_no_ids() {
        let mut framer = framer(None, ProtocolFamily::Modern);
        let mut out = VecDeque::new();
        let whole = Piece::Whole(AnswerMember::Error, Splice::from(Bytes::from_static(b"{}")));
        assert!(framer.piece(whole, &mut out) == Was::Last);
        assert_eq!(
            text(&mut out),
            "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{}}\n\n"
        );
        let refusal = Refusal::rejected(RefusalKind::Failed, "no".into());
        assert!(framer.piece(Piece::Refused(refusal), &mut out) == Was::Last);
        assert!(text(&mut out).contains(r#""code":-32603"#));
    }

    #[test]
    fn aborted_response_is_replayed_as_an_error() {
        let session = alone();
        let mut framer = framer(Some(KeptEvents::begin(&session)), ProtocolFamily::Legacy);
        let mut out = VecDeque::new();
        framer.piece(Piece::Begin(AnswerMember::Result), &mut out);
        framer.piece(Piece::Data(Splice::from(Bytes::from_static(b"[1,"))), &mut out);
        framer.broken(&Aborted("the server has gone".into()));
        let events = kept(&session);
        assert_eq!(events.len(), 1, "a partly sent response is not kept: {events:?}");
        assert!(events[0].contains("the server has gone") && !events[0].contains("[1,"));
        assert_eq!(
            session
                .streams
                .attach(StreamKind::Reply, 0, 0)
                .map(|at| { session.streams.next(0, at, 2) }),
            Some(Next::Over)
        );
    }

    #[test]
    fn oversized_response_is_replayed_as_an_error() {
        let session = alone();
        let mut framer = framer(Some(KeptEvents::begin(&session)), ProtocolFamily::Legacy);
        let mut out = VecDeque::new();
        framer.piece(Piece::Begin(AnswerMember::Result), &mut out);
        let half = || Piece::Data(Splice::from(Bytes::from(vec![b' '; MAX_EVENT_BYTES / 2])));
        framer.piece(half(), &mut out);
        assert_eq!(framer.not_kept(), None);
        framer.piece(half(), &mut out);
        assert_eq!(framer.not_kept(), Some(ReplayFull::TooLong));
        framer.close(&mut out);
        let events = kept(&session);
        assert_eq!(events.len(), 1);
        assert!(events[0].starts_with("id: r0-1\n") && events[0].contains(r#""id":1,"error""#));
        assert!(events[0].contains("exceeds 524288 bytes"), "{}", events[0]);
    }

    #[tokio::test]
    async fn response_that_does_not_fit_is_reported_before_the_call_ends() {
        let session = alone();
        // Undelivered responses leave space for an error only.
        for _ in 0..MAX_BYTES / MAX_EVENT_BYTES {
            let mut line = KeptEvents::begin(&session);
            line.detach(true);
            line.start(EventKind::Answer);
            line.put(&Bytes::from(vec![b' '; MAX_EVENT_BYTES - 1024]));
            line.keep(b"1");
        }
        let framer = framer(Some(KeptEvents::begin(&session)), ProtocolFamily::Legacy);
        let stream = framer.line.as_ref().unwrap().stream;
        let learned = Rc::<std::cell::RefCell<Option<String>>>::default();
        let sink = Rc::clone(&learned);
        let running = Running::new(|reply| async move {
            let answer = || Splice::from(Bytes::from(vec![b' '; 10_000]));
            *sink.borrow_mut() = reply.undelivered(&answer());
            reply.put(Piece::Whole(AnswerMember::Result, answer()));
            Ok(())
        });
        unattended(running.into(), framer).await;
        let why = not_kept(&ReplayFull::SessionFull);
        assert_eq!(learned.borrow().as_deref(), Some(&*why));
        let attached = session.streams.attach(StreamKind::Reply, stream, 0).unwrap();
        let Next::Event(_, event) = session.streams.next(stream, attached, 0) else {
            panic!("the stream has no error event");
        };
        assert!(String::from_utf8_lossy(&event).contains(&why));
    }

    #[test]
    fn stream_that_breaks_in_its_last_event_keeps_the_response() {
        let session = alone();
        for sent in [true, false] {
            let mut framer = framer(Some(KeptEvents::begin(&session)), ProtocolFamily::Legacy);
            let mut out = VecDeque::new();
            let value = Splice::from(Bytes::from(vec![b' '; MAX_EVENT_BYTES / 2]));
            framer.piece(Piece::Whole(AnswerMember::Result, value), &mut out);
            framer.over();
            framer.line.as_ref().unwrap().detach(sent);
        }
        // As many responses as fit next to the undelivered one.
        let others = MAX_BYTES / (MAX_EVENT_BYTES / 2);
        for _ in 0..others {
            let mut framer = framer(Some(KeptEvents::begin(&session)), ProtocolFamily::Legacy);
            let value = Splice::from(Bytes::from(vec![b' '; MAX_EVENT_BYTES / 2 - 100]));
            framer.piece(Piece::Whole(AnswerMember::Result, value), &mut VecDeque::new());
            framer.over();
        }
        let events = |stream| {
            let attached = session.streams.attach(StreamKind::Reply, stream, 0).unwrap();
            matches!(session.streams.next(stream, attached, 0), Next::Event(..))
        };
        assert!(!events(0), "it was delivered and evicted");
        assert!(events(1));
    }
}
