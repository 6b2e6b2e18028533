//! Streams of notifications: a legacy client's GET, a resumed reply stream, and a modern client's `subscriptions/listen`.
//! Resumption (`Last-Event-ID`; MCP 2025-11-25 §Resumability) reads from the [`replay`](super::replay) buffer. Catalog and
//! upstreams detect the changes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use mcpproxy_catalog::Notice;
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::mcp::meta::SUBSCRIPTION_KEY;
use mcpproxy_protocol::wire::lines::one_line;
use mcpproxy_protocol::wire::sse::Encoder;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedMutexGuard, broadcast, mpsc, watch};

use super::body;
use super::body::{Body, COMMENT, response, too_many_streams};
use super::replay::{EventId, EventKind, Next, StreamKind};
use super::session::Session;
use super::session_table::{Sessions, StreamPermits};
use mcpproxy_gateway::proxy::client::{Channel, Endpoint, Peer};
use mcpproxy_gateway::proxy::passthrough::notifications::Watch;
use mcpproxy_gateway::proxy::passthrough::revocation;
use mcpproxy_gateway::proxy::reply::{Aborted, NotificationFilter};
use mcpproxy_gateway::proxy::tasks::legacy::TaskStatuses;
use mcpproxy_gateway::proxy::tasks::subscription::TaskSubscription;
use mcpproxy_gateway::proxy::{Worker, dispatch};

/// Serves a GET with a new stream, or resumes the stream of the event `seen`.
pub(super) fn standing(
    worker: &Rc<Worker>,
    sessions: &Sessions,
    session: &Arc<Session>,
    principal: &Principal,
    seen: Option<EventId>,
) -> Response<Body> {
    let Some(permits) = sessions.stream_permits(principal, Some(session)) else {
        return too_many_streams();
    };
    let known = seen.and_then(|seen| {
        let attached = session.streams.attach(StreamKind::Standing, seen.stream, seen.event)?;
        Some((seen.stream, attached, seen.event))
    });
    let (stream, attached, after) = known.unwrap_or_else(|| {
        let stream = session.streams.begin(StreamKind::Standing);
        (stream, session.streams.attach(StreamKind::Standing, stream, 0).unwrap_or_default(), 0)
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
        principal: principal.clone(),
        stream,
        attached,
        after,
        out: VecDeque::from([hello]),
        // The source is taken now, so that no message after the response is missed. `None` while another stream holds
        // it.
        source: Arc::clone(&session.notices)
            .try_lock_owned()
            .ok()
            .map(|it| SessionMessages::new(it, (worker, session, principal))),
        draining: sessions.draining(),
        _permits: permits,
    };
    body::response(state, async |state| Ok(state.next().await))
}

/// A legacy client's GET stream on one connection.
struct Standing {
    worker: Rc<Worker>,
    session: Arc<Session>,
    /// The principal of the request that opened the stream.
    principal: Principal,
    stream: u64,
    attached: u64,
    after: u64,
    out: VecDeque<Bytes>,
    /// `Some` in the stream that sends the session's notifications; at most one per session.
    source: Option<SessionMessages>,
    draining: watch::Receiver<bool>,
    _permits: StreamPermits,
}

/// Receivers of a session's notifications and server messages.
struct SessionMessages {
    notices: OwnedMutexGuard<Option<broadcast::Receiver<Notice>>>,
    /// Server messages outside any response.
    aside: mpsc::Receiver<Bytes>,
    /// Status notifications of its tasks.
    tasks: TaskStatuses,
}

impl SessionMessages {
    fn new(
        notices: OwnedMutexGuard<Option<broadcast::Receiver<Notice>>>,
        (worker, session, principal): (&Rc<Worker>, &Session, &Principal),
    ) -> Self {
        let peer = Peer {
            client: Arc::clone(&session.client),
            principal: principal.clone(),
            endpoint: session.endpoint.clone(),
            channel: Channel::Answer,
            headers: None,
            trace: None,
        };
        let tasks = TaskStatuses::of(worker, &peer);
        Self { notices, aside: session.client.listen(), tasks }
    }
}

/// Input of a notification stream: changes, or one message that is ready to send.
enum ListenEvent {
    Changes(Vec<Notice>),
    Aside(Bytes),
}

impl Standing {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(chunk) = self.out.pop_front() {
                match self.may_send(&chunk) {
                    true => return Some(chunk),
                    false => continue,
                }
            }
            let session = Arc::clone(&self.session);
            let notified = session.streams.notified();
            if session.has_ended() || *self.draining.borrow() {
                return None;
            }
            match session.streams.next(self.stream, self.attached, self.after) {
                Next::Over => return None,
                Next::Event(number, framed) => {
                    self.after = number;
                    match self.may_send(&framed) {
                        true => return Some(framed),
                        false => continue,
                    }
                }
                Next::Wait => {}
            }
            let input = tokio::select! {
                () = notified => continue,
                _ = self.draining.wait_for(|draining| *draining) => return None,
                () = tokio::time::sleep(self.worker.settings().streams.keepalive) => {
                    return Some(COMMENT);
                }
                input = next_event(
                    (&self.worker, &self.session, &self.principal),
                    &mut self.source,
                ) => input,
            };
            let messages: Vec<Bytes> = match input {
                ListenEvent::Changes(notices) => notices
                    .iter()
                    .filter_map(|notice| {
                        legacy_notification(&session.endpoint, notice, |uri| self.receives(uri))
                    })
                    .collect(),
                ListenEvent::Aside(message) => vec![message],
            };
            for message in messages {
                let event = session.streams.number(self.stream);
                let id = EventId { kind: StreamKind::Standing, stream: self.stream, event };
                let head = Encoder::id(&id.to_string());
                let framed = Bytes::from([head, body::event(&message)].concat());
                self.after = event;
                self.out.push_back(framed.clone());
                let kept = session.streams.keep(self.stream, event, EventKind::Notice, framed);
                if let Err(why) = kept {
                    tracing::debug!(%why, "a notification was not kept for resumption");
                }
            }
        }
    }
}

impl Standing {
    fn receives(&self, uri: &str) -> bool {
        let client = &self.session.client;
        revocation::receives(&self.worker.proxy, client, &self.principal, uri)
    }

    /// Whether a queued or replayed event may still be sent. False for the update of a resource that the client has
    /// unsubscribed from.
    fn may_send(&self, framed: &[u8]) -> bool {
        updated_uri(framed)
            .is_none_or(|uri| self.receives(&self.session.endpoint.exposed_uri(&uri)))
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.session.streams.detach_resumed(self.stream, self.attached);
    }
}

/// Waits until this stream holds the session's receivers, then for a message.
async fn next_event(
    of: (&Rc<Worker>, &Session, &Principal),
    source: &mut Option<SessionMessages>,
) -> ListenEvent {
    let (worker, session, _) = of;
    let held = match source {
        Some(held) => held,
        None => {
            let notices = Arc::clone(&session.notices).lock_owned().await;
            source.insert(SessionMessages::new(notices, of))
        }
    };
    // The receiver stays in the session when the stream ends, so that a resuming client misses nothing.
    let receiver = held.notices.get_or_insert_with(|| worker.proxy.catalog.notices());
    tokio::select! {
        changes = notices(receiver) => ListenEvent::Changes(changes),
        // The client keeps the sender until another stream takes over.
        Some(message) = held.aside.recv() => ListenEvent::Aside(message),
        message = held.tasks.next() => ListenEvent::Aside(message),
    }
}

/// A reply stream on the connection that resumed it.
struct Resumed {
    session: Arc<Session>,
    stream: u64,
    attached: u64,
    after: u64,
}

impl Drop for Resumed {
    fn drop(&mut self) {
        self.session.streams.detach_resumed(self.stream, self.attached);
    }
}

/// Streams the events after `seen`; `None` if the stream is unknown or was evicted.
pub(super) fn resumed(
    session: &Arc<Session>,
    seen: EventId,
    keepalive: Duration,
) -> Option<Response<Body>> {
    let attached = session.streams.attach(StreamKind::Reply, seen.stream, seen.event)?;
    let session = Arc::clone(session);
    let state = Resumed { session, stream: seen.stream, attached, after: seen.event };
    Some(response(state, async move |state| {
        loop {
            let streams = &state.session.streams;
            let notified = streams.notified();
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
                () = notified => {}
                () = tokio::time::sleep(keepalive) => return Ok(Some(COMMENT)),
            }
        }
    }))
}

/// Maximum number of resources in one `subscriptions/listen`.
const MAX_URIS: usize = 256;

/// A modern client's subscription, as a source of messages.
pub(super) struct Subscription {
    /// Raw id of the request, which names the subscription.
    id: Bytes,
    filter: NotificationFilter,
    endpoint: Endpoint,
    watch: Watch,
    tasks: TaskSubscription,
    receiver: broadcast::Receiver<Notice>,
    /// Acknowledgment; `None` once sent.
    hello: Option<Bytes>,
    /// Changes to send. Policy decides about an update when it is sent, not when it is queued (RUL-8).
    pending: VecDeque<Notice>,
    draining: watch::Receiver<bool>,
    over: bool,
}

impl Subscription {
    /// Subscribes to the supported part of `filter`. Waits, up to a limit, for servers that have not answered yet.
    pub(super) async fn new(
        worker: &Rc<Worker>,
        peer: &Peer,
        id: Bytes,
        filter: NotificationFilter,
        draining: watch::Receiver<bool>,
    ) -> Self {
        // The id is copied: a slice would pin the request as long as the subscription lasts.
        let id = Bytes::copy_from_slice(&id);
        let mut filter =
            honoured(filter, &dispatch::capabilities(worker, &peer.endpoint, peer.client.family));
        // The receiver is created before the watch begins, so that an immediate change is received.
        let receiver = worker.proxy.catalog.notices();
        let uris = std::mem::take(&mut filter.resource_subscriptions);
        let uris = uris.iter().map(|uri| peer.endpoint.exposed_uri(uri).into_owned()).collect();
        let watch = Watch::begin(worker, peer, &id, uris).await;
        let shown = watch.live_uris().filter_map(|uri| peer.endpoint.shown_uri(uri));
        filter.resource_subscriptions = shown.map(Cow::into_owned).collect();
        let wanted = std::mem::take(&mut filter.task_ids);
        let tasks = TaskSubscription::begin(worker, peer, &id, wanted).await;
        filter.task_ids = tasks.ids();
        let (over, endpoint) = (false, peer.endpoint.clone());
        let (hello, pending) = (None, VecDeque::new());
        let mut this =
            Self { id, filter, endpoint, watch, tasks, receiver, hello, pending, draining, over };
        let agreed = json!({"notifications": this.filter});
        this.hello = Some(this.message("subscriptions/acknowledged", agreed));
        this
    }

    /// Whether the subscription includes list changes.
    fn has_lists(&self) -> bool {
        let filter = &self.filter;
        filter.tools_list_changed || filter.prompts_list_changed || filter.resources_list_changed
    }

    /// Next message, the acknowledgment first. `None` after the response to the request itself, which is sent at
    /// shutdown, when policy has ended the whole subscription, or when a task was evicted.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(hello) = self.hello.take() {
                return Some(hello);
            }
            while let Some(notice) = self.pending.pop_front() {
                if let Some(message) = self.notification(&notice) {
                    return Some(message);
                }
            }
            if self.over {
                return None;
            }
            // The subscription lasts even after all of its tasks have ended.
            let lasts = self.has_lists() || !self.filter.task_ids.is_empty();
            let meta = self.meta();
            let notices = tokio::select! {
                biased;
                _ = self.draining.wait_for(|draining| *draining) => None,
                () = self.watch.emptied(), if !lasts => None,
                params = self.tasks.next(&meta) => match params {
                    Some(params) => {
                        let message = r#"{"jsonrpc":"2.0","method":"notifications/tasks","params":"#;
                        return Some(one_line(format!("{message}{params}}}").into()));
                    }
                    None => None,
                },
                notices = notices(&mut self.receiver) => Some(notices),
            };
            let Some(notices) = notices else {
                self.over = true;
                return Some(self.farewell());
            };
            // The missed notices may have concerned any resource of the subscription.
            if notices == MISSED {
                let uris = self.watch.live_uris().map(|uri| Notice::Updated(uri.into()));
                self.pending.extend(uris);
            }
            self.pending.extend(notices);
        }
    }

    fn notification(&self, notice: &Notice) -> Option<Bytes> {
        let (wanted, what, params) = match notice {
            Notice::Tools | Notice::OwnTools => {
                let ours = changes_tools(&self.endpoint, notice);
                (ours && self.filter.tools_list_changed, "tools/list_changed", json!({}))
            }
            Notice::Prompts => {
                (self.filter.prompts_list_changed, "prompts/list_changed", json!({}))
            }
            Notice::Resources => {
                (self.filter.resources_list_changed, "resources/list_changed", json!({}))
            }
            Notice::Updated(uri) => {
                let shown = self.endpoint.shown_uri(uri).filter(|_| self.watch.receives(uri));
                (shown.is_some(), "resources/updated", json!({"uri": shown}))
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

    /// The subscription's id for `_meta` (MCP 2026-07-28 §Receiving Notifications).
    fn meta(&self) -> Value {
        let id: Value = serde_json::from_slice(&self.id).unwrap_or_default();
        json!({ SUBSCRIPTION_KEY: id })
    }

    fn farewell(&self) -> Bytes {
        let result = json!({"resultType": "complete", "_meta": self.meta()});
        jsonrpc::response(&self.id, result.to_string().as_bytes())
    }
}

/// The filter without unsupported notifications.
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

/// Opens a subscription and serves it over HTTP.
pub(super) async fn subscribe(
    worker: &Rc<Worker>,
    sessions: &Sessions,
    peer: &Peer,
    id: Bytes,
    filter: NotificationFilter,
) -> Response<Body> {
    // Permits are taken first, since opening the subscription may wait for a server.
    let Some(permits) = sessions.stream_permits(&peer.principal, None) else {
        return too_many_streams();
    };
    let subscription = Subscription::new(worker, peer, id, filter, sessions.draining()).await;
    let keepalive = worker.settings().streams.keepalive;
    let state = (subscription, permits);
    body::response(state, async move |(subscription, _)| -> Result<Option<Bytes>, Aborted> {
        Ok(tokio::select! {
            message = subscription.next() => message.as_ref().map(body::event),
            () = tokio::time::sleep(keepalive) => Some(COMMENT),
        })
    })
}

pub(super) fn changed(what: &str, params: Option<Value>) -> Bytes {
    let method = format!("notifications/{what}");
    let mut message = json!({"jsonrpc": "2.0", "method": method});
    if let (Some(params), Some(members)) = (params, message.as_object_mut()) {
        members.insert("params".into(), params);
    }
    message.to_string().into()
}

/// Prefix of a resource update notification for a legacy client, up to its params.
const UPDATED_HEAD: &[u8] =
    br#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":"#;

#[derive(Deserialize)]
struct UpdatedParams {
    uri: String,
}

/// URI of the updated resource in a framed event.
fn updated_uri(framed: &[u8]) -> Option<String> {
    let mut lines = framed.split(|byte| *byte == b'\n');
    let message = lines.find_map(|line| line.strip_prefix(b"data: "))?;
    let params = message.strip_prefix(UPDATED_HEAD)?.strip_suffix(b"}")?;
    serde_json::from_slice::<UpdatedParams>(params).ok().map(|params| params.uri)
}

/// Notification of a change for a legacy client; `None` if the client does not get it. `receives` returns whether the
/// client is subscribed to a resource.
pub(super) fn legacy_notification(
    endpoint: &Endpoint,
    notice: &Notice,
    receives: impl FnOnce(&str) -> bool,
) -> Option<Bytes> {
    match notice {
        Notice::Tools | Notice::OwnTools => {
            changes_tools(endpoint, notice).then(|| changed("tools/list_changed", None))
        }
        Notice::Prompts => Some(changed("prompts/list_changed", None)),
        Notice::Resources => Some(changed("resources/list_changed", None)),
        Notice::Updated(uri) if receives(uri) => {
            let uri = endpoint.shown_uri(uri)?;
            Some(changed("resources/updated", Some(json!({"uri": uri}))))
        }
        Notice::Updated(_) => None,
    }
}

/// Whether a change affects the endpoint's tool list: upstream tools in direct mode; built-in tools, whose
/// descriptions change, at the search endpoint.
pub(super) fn changes_tools(endpoint: &Endpoint, notice: &Notice) -> bool {
    match (notice, endpoint) {
        (Notice::Tools, Endpoint::All | Endpoint::Server(_))
        | (Notice::OwnTools, Endpoint::Search) => true,
        (Notice::Tools, Endpoint::Search)
        | (Notice::OwnTools, Endpoint::All | Endpoint::Server(_))
        | (Notice::Prompts | Notice::Resources | Notice::Updated(_), _) => false,
    }
}

/// Notifications to send after a lag: all except those of single resources.
pub(super) const MISSED: [Notice; 4] =
    [Notice::Tools, Notice::OwnTools, Notice::Prompts, Notice::Resources];

/// Waits for at least one change.
pub(super) async fn notices(receiver: &mut broadcast::Receiver<Notice>) -> Vec<Notice> {
    match receiver.recv().await {
        Ok(notice) => vec![notice],
        Err(RecvError::Lagged(_)) => MISSED.to_vec(),
        // The catalog outlives all connections.
        Err(RecvError::Closed) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt;

    use super::super::replay::EventKind;
    use super::super::session::tests::alone;
    use super::*;

    const KEEPALIVE: Duration = Duration::from_secs(15);

    fn add(session: &Session, stream: u64, text: &'static str) {
        let event = session.streams.number(stream);
        let text = Bytes::from_static(text.as_bytes());
        session.streams.keep(stream, event, EventKind::Notice, text).unwrap();
    }

    async fn whole(answer: Response<Body>) -> Bytes {
        answer.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn resumed_stream_yields_later_events_up_to_its_end() {
        let session = alone();
        let stream = session.streams.begin(StreamKind::Reply);
        ["a", "b", "c"].into_iter().for_each(|text| add(&session, stream, text));
        let seen = EventId { kind: StreamKind::Reply, stream, event: 1 };
        let mut body = resumed(&session, seen, KEEPALIVE).unwrap().into_body();
        for expected in ["b", "c"] {
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(frame.slices().flatten().copied().collect::<Vec<_>>(), expected.as_bytes());
        }
        // Events added while the stream waits are delivered, too.
        let rest = tokio::join!(body.collect(), async {
            add(&session, stream, "d");
            session.streams.finish(stream);
        });
        assert_eq!(rest.0.unwrap().to_bytes(), "d");
    }

    #[tokio::test]
    async fn stream_is_resumed_by_one_connection_and_ends_with_its_session() {
        let session = alone();
        let stream = session.streams.begin(StreamKind::Reply);
        add(&session, stream, "a");
        let seen = EventId { kind: StreamKind::Reply, stream, event: 0 };
        let first = resumed(&session, seen, KEEPALIVE).unwrap();
        let second = resumed(&session, seen, KEEPALIVE).unwrap();
        assert_eq!(whole(first).await, "", "moved to the second connection");
        session.end();
        let whole = tokio::time::timeout(Duration::from_secs(5), whole(second)).await;
        assert_eq!(whole.expect("it ends with its session"), "");
        assert!(resumed(&session, EventId { stream: stream + 1, ..seen }, KEEPALIVE).is_none());
    }

    #[test]
    fn only_supported_notifications_are_acknowledged() {
        let all = NotificationFilter {
            tools_list_changed: true,
            prompts_list_changed: true,
            resources_list_changed: true,
            resource_subscriptions: vec!["a:x".into()],
            task_ids: Vec::new(),
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

    #[test]
    fn client_receives_only_relevant_notifications() {
        let method = |endpoint: &Endpoint, notice: &Notice| {
            let message = legacy_notification(endpoint, notice, |uri| uri == "b:x")?;
            let message: Value = serde_json::from_slice(&message).unwrap();
            Some(message["method"].as_str().unwrap().to_owned())
        };
        for (notice, search, all) in [
            (Notice::Tools, None, Some("notifications/tools/list_changed")),
            (Notice::OwnTools, Some("notifications/tools/list_changed"), None),
            (
                Notice::Prompts,
                Some("notifications/prompts/list_changed"),
                Some("notifications/prompts/list_changed"),
            ),
            (
                Notice::Resources,
                Some("notifications/resources/list_changed"),
                Some("notifications/resources/list_changed"),
            ),
            (Notice::Updated("a:x".into()), None, None),
            (
                Notice::Updated("b:x".into()),
                Some("notifications/resources/updated"),
                Some("notifications/resources/updated"),
            ),
        ] {
            assert_eq!(method(&Endpoint::Search, &notice).as_deref(), search, "{notice:?}");
            assert_eq!(method(&Endpoint::All, &notice).as_deref(), all, "{notice:?}");
        }
    }

    #[test]
    fn rul_8_event_of_an_updated_resource_is_recognized() {
        let notice = Notice::Updated("a:\"x\n}".into());
        let message = legacy_notification(&Endpoint::All, &notice, |_| true).unwrap();
        let head = Encoder::id("s0-1");
        let framed = [&head[..], &body::event(&message)].concat();
        assert_eq!(updated_uri(&framed).as_deref(), Some("a:\"x\n}"));
        let other = legacy_notification(&Endpoint::All, &Notice::Tools, |_| true).unwrap();
        for none in [&body::event(&other)[..], &COMMENT[..], b"data: \n\n", b""] {
            assert_eq!(updated_uri(none), None);
        }
    }

    #[tokio::test]
    async fn lagging_receiver_is_notified_of_every_list() {
        let (sender, mut receiver) = broadcast::channel(1);
        sender.send(Notice::Tools).unwrap();
        assert_eq!(notices(&mut receiver).await, [Notice::Tools]);
        for _ in 0..2 {
            sender.send(Notice::Prompts).unwrap();
        }
        assert_eq!(notices(&mut receiver).await, MISSED);
        assert_eq!(notices(&mut receiver).await, [Notice::Prompts], "the rest follows");
    }
}
