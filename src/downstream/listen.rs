//! Streams that tell of changes: a legacy client's GET, a modern client's `subscriptions/listen`.
//!
//! Owns which client receives which notification of a change, and its form. Changes are noticed by
//! the catalog and the upstreams.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, broadcast, mpsc, watch};

use crate::catalog::Notice;
use crate::downstream::body::Body;
use crate::downstream::events::{self, COMMENT, KEEP_ALIVE};
use crate::downstream::replay::{EventId, Next, StreamKind};
use crate::downstream::session::{Session, Sessions};
use crate::mcp::jsonrpc;
use crate::mcp::meta::SUBSCRIPTION_KEY;
use crate::mcp::revisions::Revision;
use crate::proxy::Worker;
use crate::proxy::caller::{Endpoint, Peer};
use crate::proxy::client::Client;
use crate::proxy::dispatch;
use crate::proxy::passthrough::watch::Watch;
use crate::proxy::reaction::NotificationFilter;
use crate::proxy::reply::Aborted;
use crate::wire::sse::Encoder;

/// Resources one `subscriptions/listen` may name.
const MAX_URIS: usize = 256;

/// A change, and nothing else.
fn changed(what: &str, params: Option<Value>) -> Bytes {
    let method = format!("notifications/{what}");
    let mut message = json!({"jsonrpc": "2.0", "method": method});
    if let (Some(params), Some(members)) = (params, message.as_object_mut()) {
        members.insert("params".into(), params);
    }
    message.to_string().into()
}

/// The notification of a change for a legacy client; `None` if it receives none.
pub(super) fn told(client: &Client, endpoint: Endpoint, notice: &Notice) -> Option<Bytes> {
    match notice {
        // Our own four tools never change.
        Notice::Tools => (endpoint == Endpoint::All).then(|| changed("tools/list_changed", None)),
        Notice::Prompts => Some(changed("prompts/list_changed", None)),
        Notice::Resources => Some(changed("resources/list_changed", None)),
        Notice::Updated(uri) if client.is_subscribed(uri) => {
            Some(changed("resources/updated", Some(json!({"uri": uri}))))
        }
        Notice::Updated(_) => None,
    }
}

/// The notifications to send when some were missed: those that carry nothing but the fact of a
/// change.
pub(super) const MISSED: [Notice; 3] = [Notice::Tools, Notice::Prompts, Notice::Resources];

/// The next changes; at least one.
pub(super) async fn notices(receiver: &mut broadcast::Receiver<Notice>) -> Vec<Notice> {
    match receiver.recv().await {
        Ok(notice) => vec![notice],
        Err(RecvError::Lagged(_)) => MISSED.to_vec(),
        // The catalog lives as long as the server.
        Err(RecvError::Closed) => std::future::pending().await,
    }
}

type Permits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

fn permits(sessions: &Sessions, session: Option<&Session>) -> Option<Permits> {
    let shared = Arc::clone(sessions.listeners()).try_acquire_owned().ok()?;
    let own = match session {
        Some(session) => Some(Arc::clone(&session.listeners).try_acquire_owned().ok()?),
        None => None,
    };
    Some((shared, own))
}

/// A legacy client's GET: a new stream, or one it goes on with.
pub(super) fn standing(
    worker: &Rc<Worker>,
    sessions: &Sessions,
    session: &Arc<Session>,
    seen: Option<EventId>,
) -> Response<Body> {
    let Some(permits) = permits(sessions, Some(session)) else { return too_many() };
    let known = seen.and_then(|seen| {
        let attached = session.streams.attach(StreamKind::Standing, seen.stream)?;
        Some((seen.stream, attached, seen.event))
    });
    let (stream, attached, after) = known.unwrap_or_else(|| {
        let stream = session.streams.begin(StreamKind::Standing);
        (stream, session.streams.attach(StreamKind::Standing, stream).unwrap_or_default(), 0)
    });
    // An event without data gives the client the id to come back with; earlier revisions do not
    // know it (MCP 2025-11-25 §Listening).
    let begins = known.is_none() && session.client.revision() == Revision::November2025;
    let hello = if begins {
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
        // Unless another stream has it, from before the client hears of this one.
        source: Arc::clone(&session.notices)
            .try_lock_owned()
            .ok()
            .map(|it| Source::new(it, session)),
        draining: sessions.draining(),
        _permits: permits,
    };
    events::response(state, async |state| Ok(state.next().await))
}

/// A legacy client's GET stream on one connection.
struct Standing {
    worker: Rc<Worker>,
    session: Arc<Session>,
    stream: u64,
    attached: u64,
    after: u64,
    out: VecDeque<Bytes>,
    /// Set in the one stream of the session that sends its notifications.
    source: Option<Source>,
    draining: watch::Receiver<bool>,
    _permits: Permits,
}

/// The notifications, and messages of servers, that a session has yet to receive.
struct Source {
    notices: OwnedMutexGuard<Option<broadcast::Receiver<Notice>>>,
    /// What servers say beside answers.
    aside: mpsc::Receiver<Bytes>,
}

impl Source {
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
            let stirred = session.streams.stirred();
            if session.has_ended() || *self.draining.borrow() {
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
                () = stirred => continue,
                _ = self.draining.wait_for(|draining| *draining) => return None,
                () = tokio::time::sleep(KEEP_ALIVE) => return Some(COMMENT),
                news = next_event(&self.worker, &self.session, &mut self.source) => news,
            };
            let messages: Vec<Bytes> = match news {
                ListenEvent::Changes(notices) => notices
                    .iter()
                    .filter_map(|notice| told(&session.client, session.endpoint, notice))
                    .collect(),
                ListenEvent::Aside(message) => vec![message],
            };
            for message in messages {
                let event = session.streams.number(self.stream);
                let id = EventId { kind: StreamKind::Standing, stream: self.stream, event };
                let head = Encoder::id(&id.to_string());
                let framed = Bytes::from([head, events::event(&message)].concat());
                self.after = event;
                self.out.push_back(framed.clone());
                session.streams.keep(self.stream, event, framed);
            }
        }
    }
}

/// Waits for the stream's turn to tell the session something, and for something to tell.
async fn next_event(
    worker: &Worker,
    session: &Session,
    source: &mut Option<Source>,
) -> ListenEvent {
    let held = match source {
        Some(held) => held,
        None => {
            let notices = Arc::clone(&session.notices).lock_owned().await;
            source.insert(Source::new(notices, session))
        }
    };
    // It stays when the stream ends, so that who comes back has missed nothing.
    let receiver = held.notices.get_or_insert_with(|| worker.proxy.catalog.notices());
    tokio::select! {
        changes = notices(receiver) => ListenEvent::Changes(changes),
        // The client holds the other end until another stream takes over.
        Some(message) = held.aside.recv() => ListenEvent::Aside(message),
    }
}

/// A modern client's subscription, message by message.
pub(super) struct Subscription {
    /// The raw id of the request, which names the subscription.
    id: Bytes,
    filter: NotificationFilter,
    watch: Watch,
    receiver: broadcast::Receiver<Notice>,
    out: VecDeque<Bytes>,
    draining: watch::Receiver<bool>,
    over: bool,
}

impl Subscription {
    /// A subscription of `filter`, as far as there is something to tell.
    pub(super) fn new(
        worker: &Worker,
        peer: &Peer,
        id: Bytes,
        filter: NotificationFilter,
        draining: watch::Receiver<bool>,
    ) -> Self {
        let mut filter = honoured(filter, &dispatch::capabilities(worker, peer));
        // Before anything is wanted: what is told at once is told to this one too.
        let receiver = worker.proxy.catalog.notices();
        let uris = std::mem::take(&mut filter.resource_subscriptions);
        let watch = Watch::begin(worker, &peer.principal, uris);
        filter.resource_subscriptions = watch.uris().to_vec();
        let out = VecDeque::new();
        let mut this = Self { id, filter, watch, receiver, out, draining, over: false };
        let agreed = json!({"notifications": this.filter});
        let hello = this.message("subscriptions/acknowledged", agreed);
        this.out.push_back(hello);
        this
    }

    /// The next message, the acknowledgement first; after the response to the request itself,
    /// which comes when the server ends, `None`.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.out.pop_front() {
                return Some(message);
            }
            if self.over {
                return None;
            }
            let notices = tokio::select! {
                biased;
                _ = self.draining.wait_for(|draining| *draining) => None,
                notices = notices(&mut self.receiver) => Some(notices),
            };
            let Some(notices) = notices else {
                self.over = true;
                return Some(self.farewell());
            };
            let messages: Vec<_> = notices.iter().filter_map(|notice| self.told(notice)).collect();
            self.out.extend(messages);
        }
    }

    fn told(&self, notice: &Notice) -> Option<Bytes> {
        let (wanted, what, params) = match notice {
            Notice::Tools => (self.filter.tools_list_changed, "tools/list_changed", json!({})),
            Notice::Prompts => {
                (self.filter.prompts_list_changed, "prompts/list_changed", json!({}))
            }
            Notice::Resources => {
                (self.filter.resources_list_changed, "resources/list_changed", json!({}))
            }
            Notice::Updated(uri) => {
                let wanted = self.watch.uris().iter().any(|it| **it == **uri);
                (wanted, "resources/updated", json!({"uri": uri}))
            }
        };
        wanted.then(|| self.message(what, params))
    }

    fn message(&self, what: &str, mut params: Value) -> Bytes {
        if let Some(members) = params.as_object_mut() {
            members.insert("_meta".into(), self.meta());
        }
        changed(what, Some(params))
    }

    /// Which subscription it is about (MCP 2026-07-28 §Receiving Notifications).
    fn meta(&self) -> Value {
        let id: Value = serde_json::from_slice(&self.id).unwrap_or_default();
        json!({ SUBSCRIPTION_KEY: id })
    }

    fn farewell(&self) -> Bytes {
        let result = json!({"resultType": "complete", "_meta": self.meta()});
        jsonrpc::response(&self.id, result.to_string().as_bytes())
    }
}

/// What of a filter can come true here.
fn honoured(mut filter: NotificationFilter, capabilities: &Value) -> NotificationFilter {
    let has = |path: &str| capabilities.pointer(path) == Some(&Value::Bool(true));
    filter.tools_list_changed &= has("/tools/listChanged");
    filter.prompts_list_changed &= has("/prompts/listChanged");
    filter.resources_list_changed &= has("/resources/listChanged");
    if !has("/resources/subscribe") {
        filter.resource_subscriptions.clear();
    }
    filter.resource_subscriptions.truncate(MAX_URIS);
    filter
}

/// A subscription over HTTP.
pub(super) fn subscribed(sessions: &Sessions, subscription: Subscription) -> Response<Body> {
    let Some(permits) = permits(sessions, None) else { return too_many() };
    let state = (subscription, permits);
    events::response(state, async |(subscription, _)| -> Result<Option<Bytes>, Aborted> {
        Ok(tokio::select! {
            message = subscription.next() => message.as_ref().map(events::event),
            () = tokio::time::sleep(KEEP_ALIVE) => Some(COMMENT),
        })
    })
}

fn too_many() -> Response<Body> {
    super::http::plain(StatusCode::TOO_MANY_REQUESTS, "too many event streams are open")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_come_true_is_acknowledged() {
        let all = NotificationFilter {
            tools_list_changed: true,
            prompts_list_changed: true,
            resources_list_changed: true,
            resource_subscriptions: vec!["a:x".into()],
        };
        assert_eq!(
            honoured(all.clone(), &json!({"tools": {"listChanged": false}})),
            NotificationFilter::default()
        );
        let some = json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}});
        let expected = NotificationFilter {
            prompts_list_changed: false,
            resources_list_changed: false,
            ..all
        };
        assert_eq!(honoured(expected.clone(), &some), expected);
    }
}
