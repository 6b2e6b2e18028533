//! The event stream of a legacy client's GET: messages that belong to no request. New, or resumed.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::Response;
use tokio::sync::{OwnedMutexGuard, broadcast, mpsc, watch};

use crate::catalog::Notice;
use crate::downstream::body::Body;
use crate::downstream::change_notifications::{legacy_notification, notices};
use crate::downstream::event_stream::{self, COMMENT};
use crate::downstream::replay::{EventId, Next, StreamKind};
use crate::downstream::response::too_many_streams;
use crate::downstream::session::Session;
use crate::downstream::session_table::{Sessions, StreamPermits};
use crate::policy::Principal;
use crate::proxy::Worker;
use crate::wire::sse::Encoder;

/// Answers a GET with a new stream, or with the one that `seen` is an event of.
pub(super) fn standing(
    worker: &Rc<Worker>,
    sessions: &Sessions,
    session: &Arc<Session>,
    principal: &Principal,
    seen: Option<EventId>,
) -> Response<Body> {
    let Some(permits) = sessions.stream_permits(Some(session)) else { return too_many_streams() };
    let known = seen.and_then(|seen| {
        let attached = session.streams.attach(StreamKind::Standing, seen.stream)?;
        Some((seen.stream, attached, seen.event))
    });
    let (stream, attached, after) = known.unwrap_or_else(|| {
        let stream = session.streams.begin(StreamKind::Standing);
        (stream, session.streams.attach(StreamKind::Standing, stream).unwrap_or_default(), 0)
    });
    let hello = if known.is_none() && session.client.revision().primes_event_streams() {
        let id = EventId { kind: StreamKind::Standing, stream, event: 0 };
        let id = Encoder::id(&id.to_string());
        [&id[..], b"data: \n\n"].concat().into()
    } else {
        COMMENT
    };
    let state = Standing {
        worker: Rc::clone(worker),
        session: Arc::clone(session),
        stream,
        attached,
        after,
        out: VecDeque::from([hello]),
        // Taken now, so that nothing is missed from the answer on; `None` while another stream has it.
        source: Arc::clone(&session.notices)
            .try_lock_owned()
            .ok()
            .map(|it| SessionMessages::new(it, session)),
        draining: sessions.draining(),
        principal: principal.clone(),
        _permits: permits,
    };
    event_stream::response(state, async |state| Ok(state.next().await))
}

/// A legacy client's GET stream on one connection.
struct Standing {
    worker: Rc<Worker>,
    session: Arc<Session>,
    stream: u64,
    attached: u64,
    after: u64,
    out: VecDeque<Bytes>,
    /// `Some` in the one stream of the session that sends its notifications.
    source: Option<SessionMessages>,
    draining: watch::Receiver<bool>,
    /// Who opened this stream, and with what: with that it ends.
    principal: Principal,
    _permits: StreamPermits,
}

/// The notifications, and messages of servers, that a session has yet to receive.
struct SessionMessages {
    notices: OwnedMutexGuard<Option<broadcast::Receiver<Notice>>>,
    /// Messages of servers that belong to no answer.
    aside: mpsc::Receiver<Bytes>,
}

impl SessionMessages {
    fn new(notices: OwnedMutexGuard<Option<broadcast::Receiver<Notice>>>, of: &Session) -> Self {
        Self { notices, aside: of.client.listen() }
    }
}

/// What the stream does next.
enum ListenEvent {
    Changes(Vec<Notice>),
    Aside(Bytes),
}

impl Standing {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(chunk) = self.out.pop_front() {
                return Some(chunk);
            }
            let session = Arc::clone(&self.session);
            let notified = session.streams.notified();
            if session.has_ended() || *self.draining.borrow() {
                return None;
            }
            // Whoever has lost its token gets nothing more.
            let (identity, now) = (&self.worker.proxy.identity, SystemTime::now());
            if !identity.in_force(&self.principal, now) {
                return None;
            }
            match session.streams.next(self.stream, self.attached, self.after) {
                Next::Over => return None,
                Next::Event(number, framed) => {
                    self.after = number;
                    return Some(framed);
                }
                Next::Wait => {}
            }
            let news = tokio::select! {
                () = notified => continue,
                _ = self.draining.wait_for(|draining| *draining) => return None,
                () = tokio::time::sleep(event_stream::pause(&self.principal, now)) => {
                    return Some(COMMENT);
                }
                news = next_event(&self.worker, &self.session, &mut self.source) => news,
            };
            if !self.worker.proxy.identity.in_force(&self.principal, SystemTime::now()) {
                return None;
            }
            let messages: Vec<Bytes> = match news {
                ListenEvent::Changes(notices) => notices
                    .iter()
                    .filter_map(|notice| {
                        legacy_notification(&session.client, session.endpoint, notice)
                    })
                    .collect(),
                ListenEvent::Aside(message) => vec![message],
            };
            for message in messages {
                let event = session.streams.number(self.stream);
                let id = EventId { kind: StreamKind::Standing, stream: self.stream, event };
                let head = Encoder::id(&id.to_string());
                let framed = Bytes::from([head, event_stream::event(&message)].concat());
                self.after = event;
                self.out.push_back(framed.clone());
                session.streams.keep(self.stream, event, framed);
            }
        }
    }
}

/// Waits until no other stream sends the session's messages, and then for a message.
async fn next_event(
    worker: &Worker,
    session: &Session,
    source: &mut Option<SessionMessages>,
) -> ListenEvent {
    let held = match source {
        Some(held) => held,
        None => {
            let notices = Arc::clone(&session.notices).lock_owned().await;
            source.insert(SessionMessages::new(notices, session))
        }
    };
    // The receiver stays in the session when the stream ends, so that a client that resumes has missed nothing.
    let receiver = held.notices.get_or_insert_with(|| worker.proxy.catalog.notices());
    tokio::select! {
        changes = notices(receiver) => ListenEvent::Changes(changes),
        // The client holds the other end until another stream takes over.
        Some(message) = held.aside.recv() => ListenEvent::Aside(message),
    }
}
