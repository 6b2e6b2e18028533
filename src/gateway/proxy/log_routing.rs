//! Routing of a server's log messages and elicitation completions outside of calls, to the one client that they can
//! concern.
//!
//! A log message outside of calls may concern an earlier call. It is sent to a client only while no other client uses that
//! server, since a guess could reveal one client's data to another. A client uses a server while it has a call in flight,
//! for [`PRESENT`] after its last call, and, once it has called the server, while it listens or is subscribed to a
//! resource. An ended session without a call in flight does not count against another session of the same principal.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::jsonrpc::Envelope;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_upstream::supervisor::Supervisor;
use mcpproxy_upstream::{LogDelivery, Upstream};
use parking_lot::Mutex;
use serde::Deserialize;

use super::client::{Active, Client, DroppedMembers, Level};
use super::relay::{ELICITATION_COMPLETE, elicitation_id, log_message};
use super::tasks::related as related_tasks;

/// Time after its last call during which a client counts as using a server.
pub(crate) const PRESENT: Duration = Duration::from_secs(60);
/// Maximum number of clients tracked per server.
pub(crate) const MAX_USERS: usize = 1024;
/// Time during which log messages of a server with more than [`MAX_USERS`] clients are not routed to any client.
pub(crate) const CROWDED: Duration = Duration::from_secs(3600);

/// Clients by server name.
#[derive(Debug)]
pub struct LogRouting {
    routes: ArcSwap<HashMap<Arc<str>, Arc<LogRoute>>>,
    dropped_members: Arc<DroppedMembers>,
}

/// Clients of one server.
#[derive(Debug, Default)]
struct LogRoute {
    users: Mutex<Users>,
    server: Arc<str>,
    /// Log-once filter.
    dropped_members: Arc<DroppedMembers>,
}

#[derive(Debug, Default)]
struct Users {
    all: Vec<User>,
    /// Set when there were too many clients. Until this time, log messages are not sent to any client.
    crowded: Option<Instant>,
}

#[derive(Debug)]
struct User {
    client: Weak<Client>,
    active: Arc<Active>,
    /// Id of the principal that the client acts for.
    principal: Box<str>,
}

impl LogRouting {
    /// Routes log messages of these servers.
    pub fn of(upstreams: &Supervisor, dropped_members: &Arc<DroppedMembers>) -> Self {
        let dropped_members = Arc::clone(dropped_members);
        let routing = Self { routes: ArcSwap::default(), dropped_members };
        upstreams.iter().for_each(|upstream| routing.listen(&upstream));
        routing
    }

    /// Routes the log messages of a new server. Called by a single task only.
    pub fn listen(&self, upstream: &Upstream) {
        let routes = self.routes.load_full();
        let route = routes.get(upstream.name()).cloned().unwrap_or_else(|| {
            let route = Arc::new(LogRoute {
                users: Mutex::default(),
                server: Arc::clone(upstream.name()),
                dropped_members: Arc::clone(&self.dropped_members),
            });
            let mut next = HashMap::clone(&routes);
            next.insert(Arc::clone(upstream.name()), Arc::clone(&route));
            self.routes.store(Arc::new(next));
            route
        });
        upstream.log_to(move |message| route.route(message, Instant::now()));
    }

    /// Forgets the clients of a server that is no longer configured. Called by the task of [`listen`](Self::listen) only.
    pub fn forget(&self, server: &str) {
        let mut next = HashMap::clone(&self.routes.load_full());
        if next.remove(server).is_some() {
            self.routes.store(Arc::new(next));
        }
    }

    /// Records a call of `client`, on behalf of `principal`, to `upstream`.
    pub(crate) fn enter(
        &self,
        upstream: &Upstream,
        client: &Arc<Client>,
        principal: &Principal,
        now: Instant,
    ) {
        client.note_use(now);
        if client.first_uses(upstream.id())
            && let Some(route) = self.routes.load().get(upstream.name())
        {
            route.enter(client, principal, now);
        }
    }
}

/// Placeholder for a caller that is not an MCP client, for the duration of a call.
pub(crate) fn anonymous() -> Arc<Client> {
    Arc::new(Client::new("".into(), "", "", ProtocolFamily::Modern, ClientCapabilities::default()))
}

impl LogRoute {
    fn enter(&self, client: &Arc<Client>, principal: &Principal, now: Instant) {
        let mut users = self.users.lock();
        if users.crowded.is_some_and(|until| now < until) {
            return;
        }
        let known = |user: &User| std::ptr::eq(user.client.as_ptr(), Arc::as_ptr(client));
        if users.all.iter().any(known) {
            return;
        }
        if users.all.len() >= MAX_USERS {
            users.forget_gone(now);
        }
        if users.all.len() >= MAX_USERS {
            users.crowded = Some(now + CROWDED);
            return;
        }
        let active = Arc::clone(client.active());
        users.all.push(User {
            client: Arc::downgrade(client),
            active,
            principal: principal.id().into(),
        });
    }

    /// Sends a message outside of calls to the one client that it can concern.
    fn route(&self, message: &Bytes, now: Instant) -> LogDelivery {
        let (message, _) = &related_tasks::sealed_message(message, |_| None);
        match serde_json::from_slice::<Envelope<'_>>(message) {
            Ok(Envelope { method: Some(method), params: Some(params), .. })
                if method == ELICITATION_COMPLETE =>
            {
                self.completed(message, params.get())
            }
            Ok(_) | Err(_) => self.log(message, now),
        }
    }

    /// Sends the completion of an elicitation to the client that was asked, if only one client was asked.
    fn completed(&self, message: &Bytes, params: &str) -> LogDelivery {
        let Some(id) = elicitation_id(params) else { return LogDelivery::Nobody };
        let users = self.users.lock();
        let clients = users.all.iter().filter_map(|user| user.client.upgrade());
        let mut asked = clients.filter(|client| client.was_elicited(&self.server, &id));
        let (Some(only), None) = (asked.next(), asked.next()) else {
            return LogDelivery::Nobody;
        };
        if !only.listens() {
            return LogDelivery::ViaCall;
        }
        if only.completes(&self.server, &id)
            && let Some(message) = log_message(message, &only, &self.server, &self.dropped_members)
        {
            only.send_aside(message);
        }
        LogDelivery::Delivered
    }

    /// Sends a log message to the one client that it can concern.
    fn log(&self, message: &Bytes, now: Instant) -> LogDelivery {
        let mut users = self.users.lock();
        if users.crowded.is_some_and(|until| now < until) {
            return LogDelivery::Nobody;
        }
        users.forget_gone(now);
        let (ended, present): (Vec<_>, Vec<_>) =
            users.all.iter().filter(|user| user.is_present(now)).partition(|user| user.has_ended());
        let [only] = &*present else { return LogDelivery::Nobody };
        if ended.iter().any(|user| user.principal != only.principal) {
            return LogDelivery::Nobody;
        }
        match only.client.upgrade() {
            Some(client) if client.listens() => {
                if client.wants(level_of(message))
                    && let Some(message) =
                        log_message(message, &client, &self.server, &self.dropped_members)
                {
                    client.send_aside(message);
                }
                LogDelivery::Delivered
            }
            Some(_) => LogDelivery::ViaCall,
            None => LogDelivery::Nobody,
        }
    }
}

impl Users {
    /// Removes disconnected clients that did not use the server recently, and all but the newest ended session of
    /// each principal, so that a principal that opens many sessions does not fill the list for others.
    fn forget_gone(&mut self, now: Instant) {
        let mut newest: HashMap<Box<str>, u64> = HashMap::new();
        for user in self.all.iter().filter(|user| user.has_ended() && user.was_active(now)) {
            let seconds = user.active.seconds_ago(now).unwrap_or(u64::MAX);
            let least = newest.entry(user.principal.clone()).or_insert(seconds);
            *least = seconds.min(*least);
        }
        self.all.retain(|user| {
            if !user.has_ended() {
                return user.client.strong_count() > 0
                    || user.active.has_calls()
                    || user.was_active(now);
            }
            let is_newest = newest.get(&user.principal).copied() == user.active.seconds_ago(now);
            // Of several equally new sessions, only the first is kept.
            is_newest && newest.remove(&user.principal).is_some()
        });
    }
}

impl User {
    /// Whether the client's session has ended and the client does not await an answer.
    fn has_ended(&self) -> bool {
        self.active.has_ended() && !self.active.has_calls()
    }

    fn was_active(&self, now: Instant) -> bool {
        self.active.seconds_ago(now).is_some_and(|seconds| seconds <= PRESENT.as_secs())
    }

    /// Whether a current log message may concern this client.
    fn is_present(&self, now: Instant) -> bool {
        // A legacy client outlives its calls with its session; a modern one lives as long as its connection or
        // request.
        let stays = |client: &Client| match client.family {
            ProtocolFamily::Legacy => client.listens() || client.has_subscriptions(),
            ProtocolFamily::Modern => true,
        };
        // Calls are checked before the time of the last use, because an answered call records that time while it
        // still counts as a call.
        self.active.has_calls()
            || self.was_active(now)
            || self.client.upgrade().is_some_and(|client| stays(&client))
    }
}

/// Level of a log message; `info` if it has none.
fn level_of(message: &[u8]) -> Level {
    #[derive(Deserialize)]
    struct LogNotification {
        params: Params,
    }
    #[derive(Deserialize)]
    struct Params {
        level: Level,
    }
    serde_json::from_slice::<LogNotification>(message)
        .map_or(Level::Info, |message| message.params.level)
}

#[cfg(test)]
mod tests {
    use mcpproxy_policy::StateAccounts;

    use super::super::client::{ActiveCall, Channel, Endpoint, Peer};
    use super::super::passthrough::subscribers::Subscribers;
    use super::super::passthrough::subscribers::tests::anyone;
    use super::super::relay::Relay;
    use super::*;

    const COMPLETED: &str =
        r#"{"method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}"#;

    #[test]
    fn pro_36_completion_outside_of_calls_reaches_the_only_client_that_was_asked() {
        let (route, now) = (LogRoute::default(), Instant::now());
        let completed = Bytes::from_static(COMPLETED.as_bytes());
        let (asked, other) = (Client::of_test(), Client::of_test());
        used_by(&route, &asked, now);
        used_by(&route, &other, now);
        assert_eq!(route.route(&completed, now), LogDelivery::Nobody);
        asked.elicited(&route.server, "e");
        assert_eq!(route.route(&completed, now), LogDelivery::ViaCall, "it does not listen");
        let (mut aside, mut others) = (asked.listen(), other.listen());
        other.elicited(&route.server, "e");
        assert_eq!(route.route(&completed, now), LogDelivery::Nobody, "it could be either's");
        assert!(other.completes("", "e"));
        assert_eq!(route.route(&completed, now), LogDelivery::Delivered);
        assert_eq!(aside.try_recv().unwrap(), completed);
        assert_eq!(route.route(&completed, now), LogDelivery::Nobody, "it is over");
        assert!(aside.try_recv().is_err() && others.try_recv().is_err());
    }

    const LOG: Bytes = Bytes::from_static(
        br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}"#,
    );

    fn used_by(route: &LogRoute, client: &Arc<Client>, now: Instant) {
        used_as(route, client, "ada", now);
    }

    fn used_as(route: &LogRoute, client: &Arc<Client>, principal: &str, now: Instant) {
        client.note_use(now);
        route.enter(client, &Principal::certificate(principal), now);
    }

    #[test]
    fn sole_client_of_a_server_receives_its_log_messages() {
        let (route, ours, now) = (LogRoute::default(), Client::of_test(), Instant::now());
        assert_eq!(route.route(&LOG, now), LogDelivery::Nobody, "no client uses the server");
        used_by(&route, &ours, now);
        assert_eq!(route.route(&LOG, now), LogDelivery::ViaCall);
        let mut aside = ours.listen();
        assert_eq!(route.route(&LOG, now), LogDelivery::Delivered);
        assert_eq!(aside.try_recv().unwrap(), LOG);
        ours.set_level(Level::Error);
        assert_eq!(route.route(&LOG, now), LogDelivery::Delivered);
        assert!(aside.try_recv().is_err(), "it does not want that level");
        drop(aside);
        assert_eq!(route.route(&LOG, now), LogDelivery::ViaCall, "it has stopped listening");
    }

    #[test]
    fn log_messages_of_a_server_with_two_clients_reach_neither_client() {
        let (route, ours, now) = (LogRoute::default(), Client::of_test(), Instant::now());
        used_by(&route, &ours, now);
        let mut aside = ours.listen();
        let later = now + PRESENT + Duration::from_secs(2);
        // Another client counts if it was active recently, has a call in flight, or disconnected silently.
        let other = Client::of_test();
        used_by(&route, &other, now);
        assert_eq!(route.route(&LOG, now), LogDelivery::Nobody);
        let in_flight = ActiveCall::of(Arc::clone(&other));
        assert_eq!(route.route(&LOG, later), LogDelivery::Nobody);
        drop(in_flight);
        assert_eq!(route.route(&LOG, later), LogDelivery::Delivered);
        aside.try_recv().unwrap();
        other.note_use(later);
        drop(other);
        assert_eq!(route.route(&LOG, later), LogDelivery::Nobody);
        let later = later + PRESENT * 2;
        assert_eq!(route.route(&LOG, later), LogDelivery::Delivered);
        aside.try_recv().unwrap();
        // A listening client is active, and a call from elsewhere counts as a client.
        let listening = Client::of_test();
        used_by(&route, &listening, now);
        let other_aside = listening.listen();
        assert_eq!(route.route(&LOG, later), LogDelivery::Nobody);
        drop(other_aside);
        listening.leave();
        let call = anonymous();
        route.enter(&call, &Principal::Admin, now);
        assert_eq!(route.route(&LOG, later), LogDelivery::Nobody);
        drop(call);
        assert_eq!(route.route(&LOG, later), LogDelivery::Delivered);
    }

    #[test]
    fn client_counts_as_using_a_server_until_its_last_call_ends() {
        let (route, ours, now) = (LogRoute::default(), Client::of_test(), Instant::now());
        let other = Peer {
            client: Client::of_test(),
            principal: Principal::Anonymous,
            endpoint: Endpoint::Search,
            channel: Channel::Answer,
            headers: None,
            trace: None,
        };
        used_by(&route, &ours, now);
        used_by(&route, &other.client, now);
        let later = now + PRESENT + Duration::from_secs(2);
        ours.note_use(later);
        let references = [Arc::clone(&other.client), Arc::clone(&other.client)];
        assert_eq!(
            route.route(&LOG, later),
            LogDelivery::ViaCall,
            "a reference does not count as a call"
        );
        let [first, second] = [b"1", b"2"].map(|id| other.caller(&Bytes::from_static(id)));
        drop(references);
        assert_eq!(route.route(&LOG, later), LogDelivery::Nobody);
        drop(first);
        assert_eq!(
            route.route(&LOG, later),
            LogDelivery::Nobody,
            "the second waits for its answer"
        );
        let relay = Relay::new(second.client, None);
        other.client.leave();
        drop(other);
        assert_eq!(
            route.route(&LOG, later),
            LogDelivery::Nobody,
            "its answer arrives although the session has ended"
        );
        drop(relay);
        assert_eq!(route.route(&LOG, later), LogDelivery::ViaCall);
    }

    #[test]
    fn pro_6_ended_session_counts_only_against_other_principals() {
        let (route, ours, now) = (LogRoute::default(), Client::of_test(), Instant::now());
        used_as(&route, &ours, "ada", now);
        let _aside = ours.listen();
        for (principal, delivery) in [("ada", LogDelivery::Delivered), ("bob", LogDelivery::Nobody)]
        {
            let other = Client::of_test();
            used_as(&route, &other, principal, now);
            assert_eq!(route.route(&LOG, now), LogDelivery::Nobody, "both are present");
            other.leave();
            drop(other);
            assert_eq!(route.route(&LOG, now), delivery, "{principal}");
        }
        ours.note_use(now + PRESENT);
        let later = now + PRESENT + Duration::from_secs(2);
        assert_eq!(route.route(&LOG, later), LogDelivery::Delivered);
        assert_eq!(route.users.lock().all.len(), 1);
    }

    #[test]
    fn pro_6_many_ended_sessions_of_a_principal_take_one_entry() {
        let (route, ours, now) = (LogRoute::default(), Client::of_test(), Instant::now());
        for _ in 0..3 * MAX_USERS {
            let session = Client::of_test();
            used_as(&route, &session, "bob", now);
            session.leave();
        }
        used_as(&route, &ours, "ada", now);
        assert!(route.users.lock().crowded.is_none());
        assert_eq!(route.route(&LOG, now), LogDelivery::Nobody, "bob's last session is remembered");
        assert_eq!(route.users.lock().all.len(), 2);
    }

    #[test]
    fn pro_6_subscribed_client_counts_as_using_its_server_between_calls() {
        let (route, ours, now) = (LogRoute::default(), Client::of_test(), Instant::now());
        let (other, later) = (Client::of_test(), now + PRESENT + Duration::from_secs(2));
        used_by(&route, &ours, now);
        used_by(&route, &other, now);
        let _aside = ours.listen();
        let account = StateAccounts::default().of(&Principal::Anonymous);
        let all = Arc::<Subscribers>::default();
        other.subscribe(all.enter("uri", anyone(), &account).unwrap()).unwrap();
        assert_eq!(route.route(&LOG, later), LogDelivery::Nobody);
        drop(other.unsubscribe("uri"));
        assert_eq!(route.route(&LOG, later), LogDelivery::Delivered);
    }

    #[test]
    fn log_messages_are_dropped_at_constant_cost_if_a_server_has_too_many_clients() {
        let (route, now) = (LogRoute::default(), Instant::now());
        let crowd: Vec<_> = (0..=MAX_USERS).map(|_| Client::of_test()).collect();
        crowd.iter().for_each(|client| used_by(&route, client, now));
        assert_eq!(route.users.lock().all.len(), MAX_USERS);
        crowd.iter().for_each(|client| client.leave());
        drop(crowd);
        let ours = Client::of_test();
        used_by(&route, &ours, now);
        assert_eq!(route.route(&LOG, now), LogDelivery::Nobody);
        let later = now + CROWDED;
        used_by(&route, &ours, later);
        assert_eq!(route.route(&LOG, later), LogDelivery::ViaCall);
    }
}
