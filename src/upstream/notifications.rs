//! Delivery of unsolicited server messages: to calls reachable over HTTP, list followers and subscriptions.
//!
//! A child's pipe has its own table of calls; [`crate::inbound`] makes the routing decisions. [`crate::listen`]
//! requests the subscribed resources from the server. Subscriptions of individual clients are tracked elsewhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, broadcast, mpsc, watch};

use crate::followed_tasks::FollowedTasks;
use crate::inbound::{
    self, AbandonedCalls, CallClient, CallInFlight, CallRoute, ChangedList, Destination,
};
use crate::request::CallSession;

/// Capacity of a call's queue for messages outside of its own stream.
pub(super) const QUEUED_MESSAGES: usize = 32;
/// Capacity of the channel of changed resources; a slow follower is notified that it missed some.
const QUEUED_UPDATES: usize = 256;

/// Counters of a server's list changes. The catalog reports tool changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Number of `notifications/resources/list_changed` notifications and new connections.
    pub resources: u64,
    /// Number of `notifications/prompts/list_changed` notifications and new connections.
    pub prompts: u64,
}

/// Outcome of delivering a log message outside of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogDelivery {
    /// The recipient received the message or does not want it.
    Delivered,
    /// A single client uses the server: if exactly one call is in flight, that call may deliver the message.
    ViaCall,
    /// There is no unique recipient: there are several clients, or none.
    Nobody,
}

type LogConsumer = Box<dyn Fn(&Bytes) -> LogDelivery + Send + Sync>;

/// Events of one server: list changes, resource changes, log messages.
pub(super) struct ServerEvents {
    /// Signals that the tools must be listed again.
    pub(super) tools: Notify,
    /// Whether the server reported changed tools that have not been listed since.
    tools_reported: AtomicBool,
    pub(super) changes: watch::Sender<Changes>,
    /// URIs of changed resources.
    pub(super) updates: broadcast::Sender<Arc<str>>,
    /// Tasks whose changes clients follow.
    pub(super) tasks: Arc<FollowedTasks>,
    /// Changed tasks, including those that no client follows.
    pub(super) changed_tasks: broadcast::Sender<Arc<str>>,
    /// Delivers log messages and completions of elicitations outside of calls.
    consumer: OnceLock<LogConsumer>,
}

impl fmt::Debug for ServerEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerEvents")
            .field("changes", &*self.changes.borrow())
            .finish_non_exhaustive()
    }
}

impl Default for ServerEvents {
    fn default() -> Self {
        Self {
            tools: Notify::new(),
            tools_reported: AtomicBool::new(false),
            changes: watch::Sender::default(),
            updates: broadcast::Sender::new(QUEUED_UPDATES),
            tasks: Arc::default(),
            changed_tasks: broadcast::Sender::new(QUEUED_UPDATES),
            consumer: OnceLock::new(),
        }
    }
}

impl ServerEvents {
    /// Events of a server whose followed tasks are `tasks`.
    pub(super) fn with(tasks: Arc<FollowedTasks>) -> Self {
        Self { tasks, ..Self::default() }
    }

    pub(super) fn changed(&self, list: ChangedList) {
        match list {
            ChangedList::Tools => self.tools_changed(),
            ChangedList::Resources => self.changes.send_modify(|changes| changes.resources += 1),
            ChangedList::Prompts => self.changes.send_modify(|changes| changes.prompts += 1),
        }
    }

    /// Processes a message on a request's own stream that is not for its client: a change of the server's lists or
    /// resources, or the completion of an elicitation.
    pub(super) fn observe(&self, message: &[u8]) {
        match inbound::route(message, &[]) {
            Destination::Changed(list) => self.changed(list),
            Destination::Updated(uri) => self.updated(&uri),
            Destination::Task(task) => self.task_changed(&task),
            Destination::Completed(_) => {
                self.logged(&Bytes::copy_from_slice(message));
            }
            _ => {}
        }
    }

    /// Marks the tools as changed, because the server reported it.
    pub(super) fn tools_changed(&self) {
        self.tools_reported.store(true, Ordering::Release);
        self.tools.notify_one();
    }

    /// Whether the server reported a change of its tools since the last call.
    pub(super) fn take_tools_report(&self) -> bool {
        self.tools_reported.swap(false, Ordering::AcqRel)
    }

    /// Marks all lists as changed, after a gap in which changes were not reported.
    pub(super) fn missed(&self) {
        self.tools.notify_one();
        self.reconnected();
    }

    /// Counts a new connection, before which changes may have been missed.
    pub(super) fn reconnected(&self) {
        self.changes.send_modify(|changes| {
            changes.resources += 1;
            changes.prompts += 1;
        });
    }

    /// Installs the consumer of log messages; only the first one is used.
    pub(super) fn consume_log(
        &self,
        consumer: impl Fn(&Bytes) -> LogDelivery + Send + Sync + 'static,
    ) {
        let _ = self.consumer.set(Box::new(consumer));
    }

    /// Delivers a log message outside of calls, or the completion of an elicitation.
    pub(super) fn logged(&self, message: &Bytes) -> LogDelivery {
        self.consumer.get().map_or(LogDelivery::ViaCall, |consumer| consumer(message))
    }

    pub(super) fn updated(&self, uri: &str) {
        // Fails if there is no follower.
        let _ = self.updates.send(uri.into());
    }

    pub(super) fn task_changed(&self, task: &str) {
        self.tasks.changed(task);
        // Fails if there is no receiver.
        let _ = self.changed_tasks.send(task.into());
    }
}

/// Calls in flight on one HTTP connection. Those that want progress, or whose clients have capabilities, are reachable
/// outside of their own stream; the others are only counted, without a lock.
#[derive(Debug, Default)]
pub(super) struct NotificationRouter {
    calls: Mutex<ReachableCalls>,
    /// Number of unreachable calls.
    unreachable: AtomicUsize,
}

#[derive(Debug, Default)]
struct ReachableCalls {
    by_id: HashMap<u64, ReachableCall>,
    /// Number of calls registered so far.
    registered: u64,
    abandoned: AbandonedCalls,
}

#[derive(Debug)]
struct ReachableCall {
    sender: mpsc::Sender<Bytes>,
    client: CallClient,
    order: u64,
}

/// Registration of a call; ended on drop.
#[derive(Debug)]
pub(super) struct Registration {
    router: Arc<NotificationRouter>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.router.calls().by_id.remove(&self.id);
    }
}

/// Count of an unreachable call; ended on drop.
#[derive(Debug)]
pub(super) struct Counted(Arc<NotificationRouter>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.unreachable.fetch_sub(1, Ordering::AcqRel);
    }
}

impl NotificationRouter {
    /// Router of a new connection to a server that may still be working on calls of the previous connection.
    pub(super) fn after(before: Option<&Self>) -> Self {
        let router = Self::default();
        if before.is_some_and(Self::has_calls) {
            router.calls().abandoned.add_unknown(Instant::now());
        }
        router
    }

    /// Whether the server may be working on any call.
    fn has_calls(&self) -> bool {
        let calls = self.calls();
        !calls.by_id.is_empty()
            || self.unreachable.load(Ordering::Acquire) > 0
            || calls.abandoned.active(Instant::now()).next().is_some()
    }

    pub(super) fn register(
        self: &Arc<Self>,
        id: u64,
        sender: mpsc::Sender<Bytes>,
        client: CallClient,
    ) -> Registration {
        let mut calls = self.calls();
        let order = calls.registered;
        calls.registered += 1;
        calls.by_id.insert(id, ReachableCall { sender, client, order });
        Registration { router: self.clone(), id }
    }

    /// Counts an unreachable call.
    pub(super) fn count(self: &Arc<Self>) -> Counted {
        self.unreachable.fetch_add(1, Ordering::AcqRel);
        Counted(self.clone())
    }

    /// Records an abandoned call on which the server may still be working.
    pub(super) fn abandon(&self, id: u64, session: Option<CallSession>) {
        self.calls().abandoned.add(id, session, Instant::now());
    }

    pub(super) fn route(&self, message: &[u8]) -> Destination {
        let calls = self.calls();
        let reachable = calls.by_id.iter().map(|(id, call)| CallInFlight {
            client: call.client,
            route: CallRoute::Reachable { id: *id, order: call.order },
        });
        let abandoned = calls.abandoned.active(Instant::now());
        // Two calls already make the message ambiguous, so the number is capped at two.
        let unreachable = self.unreachable.load(Ordering::Acquire).min(2);
        let other = CallInFlight { client: CallClient::default(), route: CallRoute::Unreachable };
        let all = reachable.chain(abandoned).chain(std::iter::repeat_n(other, unreachable));
        let all: Vec<CallInFlight> = all.collect();
        drop(calls);
        inbound::route(message, &all)
    }

    /// Delivers a message to a call; returns false if the call has ended or its queue is full.
    pub(super) fn deliver(&self, id: u64, message: Bytes) -> bool {
        self.calls().by_id.get(&id).is_some_and(|call| call.sender.try_send(message).is_ok())
    }

    fn calls(&self) -> MutexGuard<'_, ReachableCalls> {
        self.calls.lock()
    }
}

/// Maximum wait of a client for a server's answer to its subscription.
pub const SUBSCRIPTION_LIMIT: Duration = Duration::from_secs(10);

/// Maximum number of ended subscriptions about which a legacy server must still be notified.
const MAX_ENDED: usize = 4096;

/// Subscribed resources by URI.
#[derive(Debug, Default)]
pub(super) struct WantedResources {
    pub(super) wanted: BTreeMap<Arc<str>, WantedResource>,
    /// Ended subscriptions, with the generation of the connection over which the server was asked.
    pub(super) ended: BTreeMap<Arc<str>, u64>,
}

/// Subscribed resource, and the state of its request to a legacy server.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedResource {
    pub(super) since: Instant,
    /// Generation of the connection over which the server was asked; 0 if it has not been asked.
    pub(super) asked: u64,
    /// The server's answer.
    pub(super) answer: SubscriptionAnswer,
}

/// Progress of the resource subscriptions at a server, over the current connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Followed {
    /// No subscription is confirmed.
    #[default]
    None,
    /// The server's answers. Resources in neither set have not been answered.
    Answered { confirmed: BTreeSet<Arc<str>>, refused: BTreeSet<Arc<str>> },
    /// Subscriptions are not supported on this connection.
    Refused,
}

impl Followed {
    /// Whether the server has refused this resource since it was last added; earlier refusals refer to another
    /// allocation of the same text.
    fn refuses(&self, wanted: &Arc<str>) -> bool {
        let Self::Answered { refused, .. } = self else { return false };
        refused.get(wanted).is_some_and(|refused| Arc::ptr_eq(refused, wanted))
    }
}

/// A server's answer to a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionAnswer {
    Confirmed,
    Refused,
    /// No answer within the limit.
    Missing,
}

/// Resource subscriptions of one server.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    pub(super) wanted: watch::Sender<WantedResources>,
    /// The server's answers.
    pub(super) followed: watch::Sender<Followed>,
}

impl Subscriptions {
    /// Adds a resource. `asked` is the generation of the connection over which the server was already asked.
    pub(super) fn add(&self, uri: &str, asked: Option<u64>) {
        let is_refused = self.key(uri).is_some_and(|key| self.followed.borrow().refuses(&key));
        self.wanted.send_if_modified(|WantedResources { wanted, ended }| {
            // If an unsubscribe for this URI is still pending, it is dropped and the old subscription is used again.
            let asked = asked.or(ended.remove(uri));
            let answer = match asked {
                Some(_) => SubscriptionAnswer::Confirmed,
                None => SubscriptionAnswer::Missing,
            };
            match (wanted.get_mut(uri), asked) {
                (Some(known), Some(asked)) => {
                    (known.asked, known.answer) = (asked, answer);
                    // The new answer is published.
                    true
                }
                // A refused resource is replaced by a new allocation, and requested again.
                (Some(_), None) if !is_refused => false,
                (_, asked) => {
                    wanted.remove(uri);
                    let (since, asked) = (Instant::now(), asked.unwrap_or_default());
                    wanted.insert(uri.into(), WantedResource { since, asked, answer });
                    true
                }
            }
        });
    }

    /// Key of a wanted resource.
    fn key(&self, uri: &str) -> Option<Arc<str>> {
        self.wanted.borrow().wanted.get_key_value(uri).map(|(key, _)| Arc::clone(key))
    }

    /// Waits until `deadline` for the server's answer about an added resource.
    pub(super) async fn answer(
        &self,
        uri: &str,
        deadline: tokio::time::Instant,
    ) -> SubscriptionAnswer {
        let mut followed = self.followed.subscribe();
        let answered = async {
            loop {
                let key = self.key(uri);
                match &*followed.borrow_and_update() {
                    Followed::Answered { confirmed, .. } if confirmed.contains(uri) => {
                        return SubscriptionAnswer::Confirmed;
                    }
                    followed if key.is_some_and(|key| followed.refuses(&key)) => {
                        return SubscriptionAnswer::Refused;
                    }
                    Followed::Answered { .. } | Followed::None => {}
                    Followed::Refused => return SubscriptionAnswer::Refused,
                }
                if followed.changed().await.is_err() {
                    return SubscriptionAnswer::Missing;
                }
            }
        };
        let answer = tokio::time::timeout_at(deadline, answered).await;
        answer.unwrap_or(SubscriptionAnswer::Missing)
    }

    /// Removes a resource and notifies the server. If [`MAX_ENDED`] notifications are already pending, the server is
    /// not notified and continues to report changes.
    pub(super) fn remove(&self, uri: &str) {
        self.wanted.send_if_modified(|WantedResources { wanted, ended }| {
            let Some((uri, resource)) = wanted.remove_entry(uri) else { return false };
            let is_subscribed =
                resource.asked != 0 && resource.answer != SubscriptionAnswer::Refused;
            if is_subscribed && ended.len() < MAX_ENDED {
                ended.insert(uri, resource.asked);
            }
            true
        });
    }

    /// Removes a resource; the server is notified by other means.
    pub(super) fn removed(&self, uri: &str) {
        self.wanted.send_if_modified(|resources| resources.wanted.remove(uri).is_some());
    }

    pub(super) fn uris(&self) -> Vec<Arc<str>> {
        self.wanted.borrow().wanted.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;

    const ASKS: &[u8] = br#"{"id":1,"method":"roots/list"}"#;

    #[test]
    fn new_connection_counts_the_calls_of_the_previous_one() {
        let first = NotificationRouter::after(None);
        let asks = |router: &Arc<NotificationRouter>| {
            let (sender, _listens) = mpsc::channel(1);
            let _call = router.register(7, sender, able());
            matches!(router.route(ASKS), Destination::Call(..))
        };
        let (idle, busy) = (Arc::new(NotificationRouter::after(Some(&first))), Arc::new(first));
        assert!(asks(&idle), "no call was in flight");
        busy.abandon(1, None);
        let second = Arc::new(NotificationRouter::after(Some(&busy)));
        assert!(!asks(&second));
        let third = Arc::new(NotificationRouter::after(Some(&second)));
        assert!(!asks(&third), "counted over several connections");
    }

    fn able() -> CallClient {
        let capabilities = ClientCapabilities { roots: true, ..ClientCapabilities::default() };
        CallClient { session: Some(CallSession::fresh()), capabilities, ..CallClient::default() }
    }

    #[test]
    fn call_is_reachable_until_its_registration_ends() {
        let router = Arc::new(NotificationRouter::default());
        let (sender, mut reachable) = mpsc::channel(1);
        let place = router.register(7, sender, able());
        assert!(matches!(router.route(ASKS), Destination::Call(7, Some(_))));
        assert!(router.deliver(7, Bytes::from_static(ASKS)));
        assert!(!router.deliver(7, Bytes::new()), "the queue is full");
        assert_eq!(reachable.try_recv().unwrap(), ASKS);
        drop(place);
        assert!(matches!(router.route(ASKS), Destination::Reply(_)));
        assert!(!router.deliver(7, Bytes::new()));
    }

    #[test]
    fn unreachable_and_abandoned_calls_make_a_request_ambiguous() {
        let router = Arc::new(NotificationRouter::default());
        let (sender, _heard) = mpsc::channel(1);
        let client = able();
        let _place = router.register(7, sender, client);
        let other = router.count();
        assert!(matches!(router.route(ASKS), Destination::Reply(_)));
        drop(other);
        assert!(matches!(router.route(ASKS), Destination::Call(7, Some(_))));
        router.abandon(8, client.session);
        assert!(matches!(router.route(ASKS), Destination::Call(7, Some(_))), "same session");
        router.abandon(9, None);
        assert!(matches!(router.route(ASKS), Destination::Reply(_)));
    }

    #[test]
    fn list_changes_are_counted_and_resource_updates_are_broadcast() {
        let server_events = ServerEvents::default();
        let changes = server_events.changes.subscribe();
        server_events.changed(ChangedList::Prompts);
        server_events.reconnected();
        server_events.changed(ChangedList::Tools);
        assert_eq!(*changes.borrow(), Changes { resources: 1, prompts: 2 });
        server_events.updated("file:///a");
        let mut updates = server_events.updates.subscribe();
        server_events.updated("file:///b");
        assert_eq!(&*updates.try_recv().unwrap(), "file:///b");
    }

    fn pending_unsubscriptions(subscriptions: &Subscriptions) -> Vec<(Arc<str>, u64)> {
        let resources = subscriptions.wanted.borrow();
        resources.ended.iter().map(|(uri, asked)| (Arc::clone(uri), *asked)).collect()
    }

    #[test]
    fn server_is_notified_once_of_ended_subscriptions() {
        let subscriptions = Subscriptions::default();
        for (uri, asked) in [("asked", Some(7)), ("not asked", None), ("notified", Some(7))] {
            subscriptions.add(uri, asked);
        }
        ["asked", "not asked", "unknown"].into_iter().for_each(|uri| subscriptions.remove(uri));
        subscriptions.removed("notified");
        assert!(subscriptions.uris().is_empty());
        assert_eq!(pending_unsubscriptions(&subscriptions), [("asked".into(), 7)]);
        // Subscribed again before the server was notified.
        subscriptions.add("asked", None);
        assert_eq!(pending_unsubscriptions(&subscriptions), []);
        let asked = subscriptions.wanted.borrow().wanted.get("asked").map(|it| it.asked);
        assert_eq!(asked, Some(7));
    }

    #[test]
    fn pending_unsubscriptions_are_bounded() {
        let subscriptions = Subscriptions::default();
        for n in 0..=MAX_ENDED {
            subscriptions.add(&n.to_string(), Some(1));
            subscriptions.remove(&n.to_string());
        }
        assert_eq!(pending_unsubscriptions(&subscriptions).len(), MAX_ENDED);
    }
}
