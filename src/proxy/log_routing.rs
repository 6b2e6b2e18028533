//! Log messages that name no call: which client may receive them.
//!
//! A log message on a server's own stream names no call, and may come after the answer to the call
//! that it is about. So a client receives it only while no other one uses that server; of two,
//! none is guessed, since a guess could show one client's data to another. A client uses a server while it
//! has a call in flight, for [`PRESENT`] after the last one, and as long as it listens if it ever called it. Each call
//! notes the time; the table is entered by a client's first call to a server.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;

use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::revisions::Era;
use crate::proxy::client::{Active, Client, Level};
use crate::proxy::dropped_members::DroppedMembers;
use crate::proxy::relay;
use crate::upstream::supervisor::Supervisor;
use crate::upstream::{Told, Upstream};

/// How long after its last call a client may still be meant.
pub const PRESENT: Duration = Duration::from_secs(60);
/// Most clients of a server that are told apart.
pub const MAX_USERS: usize = 1024;
/// How long a server with more of them tells nobody.
pub const CROWDED: Duration = Duration::from_secs(3600);

/// The users of every server, by its name. A name that was a server's once keeps its users.
#[derive(Debug)]
pub struct LogRouting {
    routes: ArcSwap<HashMap<Arc<str>, Arc<LogRoute>>>,
    dropped_members: Arc<DroppedMembers>,
}

/// The users of one server.
#[derive(Debug, Default)]
struct LogRoute {
    users: Mutex<Users>,
    server: Arc<str>,
    /// What was warned of.
    dropped_members: Arc<DroppedMembers>,
}

#[derive(Debug, Default)]
struct Users {
    all: Vec<User>,
    /// There were too many once, until then.
    crowded: Option<Instant>,
}

#[derive(Debug)]
struct User {
    client: Weak<Client>,
    active: Arc<Active>,
}

impl LogRouting {
    /// Nobody yet; from now on the servers' log messages come here.
    #[must_use]
    pub fn of(upstreams: &Supervisor, dropped_members: &Arc<DroppedMembers>) -> Self {
        let dropped_members = Arc::clone(dropped_members);
        let routing = Self { routes: ArcSwap::default(), dropped_members };
        upstreams.iter().for_each(|upstream| routing.listen(&upstream));
        routing
    }

    /// From now on the log messages of a server that has begun come here. To be called by one task alone.
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
        upstream.log_to(move |message| route.tell(message, Instant::now()));
    }

    /// A call of `client` goes to `upstream` now.
    pub fn enter(&self, upstream: &Upstream, client: &Arc<Client>, now: Instant) {
        client.was_active(now);
        if client.first_uses(upstream.id())
            && let Some(route) = self.routes.load().get(upstream.name())
        {
            route.enter(client, now);
        }
    }
}

/// Who stands for a call that comes from no MCP client, for as long as it takes.
#[must_use]
pub fn anonymous() -> Arc<Client> {
    Arc::new(Client::new("".into(), "", "", Era::Modern, ClientCapabilities::default()))
}

impl LogRoute {
    fn enter(&self, client: &Arc<Client>, now: Instant) {
        let mut users = self.users.lock();
        if users.crowded.is_some_and(|until| now < until) {
            return;
        }
        let known = |user: &User| std::ptr::eq(user.client.as_ptr(), Arc::as_ptr(client));
        if users.all.iter().any(known) {
            return;
        }
        if users.all.len() >= MAX_USERS {
            users.all.retain(|user| user.is_known(now));
        }
        if users.all.len() >= MAX_USERS {
            users.crowded = Some(now + CROWDED);
            return;
        }
        let active = Arc::clone(client.active());
        users.all.push(User { client: Arc::downgrade(client), active });
    }

    /// Tells a log message that names no call to the one client that it can be about.
    fn tell(&self, message: &Bytes, now: Instant) -> Told {
        let mut users = self.users.lock();
        if users.crowded.is_some_and(|until| now < until) {
            return Told::Nobody;
        }
        users.all.retain(|user| user.is_known(now));
        let mut present = users.all.iter().filter(|user| user.is_present(now));
        let (Some(only), None) = (present.next(), present.next()) else { return Told::Nobody };
        match only.client.upgrade() {
            Some(client) if client.listens() => {
                if client.wants(level_of(message))
                    && let Some(message) =
                        relay::log_message(message, &client, &self.server, &self.dropped_members)
                {
                    client.tell_aside(message);
                }
                Told::Already
            }
            Some(_) => Told::ByItsCall,
            None => Told::Nobody,
        }
    }
}

impl User {
    fn was_active(&self, now: Instant) -> bool {
        self.active.seconds_ago(now).is_some_and(|seconds| seconds <= PRESENT.as_secs())
    }

    /// Whether it has to be remembered.
    fn is_known(&self, now: Instant) -> bool {
        self.client.strong_count() > 0 || self.was_active(now)
    }

    /// Whether what the server says now may be about it.
    fn is_present(&self, now: Instant) -> bool {
        // A legacy client outlives its calls, with its session; a modern one lives as long as its connection or its
        // request.
        let stays = |client: &Client| match client.era {
            Era::Legacy => client.listens(),
            Era::Modern => true,
        };
        // The calls before the time, which an answered call notes while it still counts.
        self.active.has_calls()
            || self.was_active(now)
            || self.client.upgrade().is_some_and(|client| stays(&client))
    }
}

/// The level of a log message; one that says none is taken for information.
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
    use super::*;
    use crate::policy::Principal;
    use crate::proxy::caller::{Channel, Endpoint, Peer};
    use crate::proxy::client::ActiveCall;
    use crate::proxy::relay::Relay;

    const LOG: Bytes = Bytes::from_static(
        br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}"#,
    );

    fn used_by(route: &LogRoute, client: &Arc<Client>, now: Instant) {
        client.was_active(now);
        route.enter(client, now);
    }

    #[test]
    fn the_only_client_is_told_where_it_listens() {
        let (route, ours, now) = (LogRoute::default(), Client::of_test(), Instant::now());
        assert_eq!(route.tell(&LOG, now), Told::Nobody, "nobody uses it");
        used_by(&route, &ours, now);
        assert_eq!(route.tell(&LOG, now), Told::ByItsCall);
        let mut aside = ours.listen();
        assert_eq!(route.tell(&LOG, now), Told::Already);
        assert_eq!(aside.try_recv().unwrap(), LOG);
        ours.set_level(Level::Error);
        assert_eq!(route.tell(&LOG, now), Told::Already);
        assert!(aside.try_recv().is_err(), "it does not want that level");
        drop(aside);
        assert_eq!(route.tell(&LOG, now), Told::ByItsCall, "it has stopped listening");
    }

    #[test]
    fn of_two_clients_none_is_told() {
        let (route, ours, now) = (LogRoute::default(), Client::of_test(), Instant::now());
        used_by(&route, &ours, now);
        let mut aside = ours.listen();
        let later = now + PRESENT + Duration::from_secs(2);
        // One that has just been there, is there still, or has gone without a word.
        let other = Client::of_test();
        used_by(&route, &other, now);
        assert_eq!(route.tell(&LOG, now), Told::Nobody);
        let in_flight = ActiveCall::of(Arc::clone(&other));
        assert_eq!(route.tell(&LOG, later), Told::Nobody);
        drop(in_flight);
        assert_eq!(route.tell(&LOG, later), Told::Already);
        aside.try_recv().unwrap();
        other.was_active(later);
        drop(other);
        assert_eq!(route.tell(&LOG, later), Told::Nobody);
        assert_eq!(route.tell(&LOG, later + PRESENT * 2), Told::Already);
        aside.try_recv().unwrap();
        // Whoever listens is there, and a call from elsewhere counts as a client.
        let listening = Client::of_test();
        used_by(&route, &listening, now);
        let other_aside = listening.listen();
        assert_eq!(route.tell(&LOG, later), Told::Nobody);
        drop(other_aside);
        listening.leave();
        let call = anonymous();
        route.enter(&call, now);
        assert_eq!(route.tell(&LOG, later), Told::Nobody);
        drop(call);
        assert_eq!(route.tell(&LOG, later), Told::Already);
    }

    #[test]
    fn a_client_uses_a_server_until_the_last_of_its_calls_ends() {
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
        ours.was_active(later);
        let references = [Arc::clone(&other.client), Arc::clone(&other.client)];
        assert_eq!(route.tell(&LOG, later), Told::ByItsCall, "a reference is no call");
        let [first, second] = [b"1", b"2"].map(|id| other.caller(&Bytes::from_static(id)));
        drop(references);
        assert_eq!(route.tell(&LOG, later), Told::Nobody);
        drop(first);
        assert_eq!(route.tell(&LOG, later), Told::Nobody, "the second waits for its answer");
        let relay = Relay::new(second.client, None);
        other.client.leave();
        drop(other);
        assert_eq!(
            route.tell(&LOG, later),
            Told::Nobody,
            "its answer comes, though the session ended"
        );
        drop(relay);
        assert_eq!(route.tell(&LOG, later), Told::ByItsCall);
    }

    #[test]
    fn who_ends_its_session_makes_room_at_once() {
        let (route, ours, now) = (LogRoute::default(), Client::of_test(), Instant::now());
        let other = Client::of_test();
        used_by(&route, &other, now);
        used_by(&route, &ours, now);
        assert_eq!(route.tell(&LOG, now), Told::Nobody);
        other.leave();
        drop(other);
        assert_eq!(route.tell(&LOG, now), Told::ByItsCall);
    }

    #[test]
    fn a_crowd_is_told_nothing_and_costs_no_more() {
        let (route, now) = (LogRoute::default(), Instant::now());
        let crowd: Vec<_> = (0..=MAX_USERS).map(|_| Client::of_test()).collect();
        crowd.iter().for_each(|client| used_by(&route, client, now));
        assert_eq!(route.users.lock().all.len(), MAX_USERS);
        crowd.iter().for_each(|client| client.leave());
        drop(crowd);
        let ours = Client::of_test();
        used_by(&route, &ours, now);
        assert_eq!(route.tell(&LOG, now), Told::Nobody);
        let later = now + CROWDED;
        used_by(&route, &ours, later);
        assert_eq!(route.tell(&LOG, later), Told::ByItsCall);
    }
}
