//! Who uses a server, and whom what it says outside of any answer can be told.
//!
//! A log message on a server's own stream names no call, and may come after the answer to the call
//! that it is about. So it is told to a client only while no other one uses that server; of two,
//! none is guessed, since a guess could show one client's data to another. Whoever has a call under
//! way uses it, whoever did within [`PRESENT`], and whoever listens and ever did. Calls pay for
//! this with a note of the time; the table is for a client's first call to a server.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Deserialize;

use crate::proxy::client::{Active, Client, Level};
use crate::proxy::left_behind::LeftBehind;
use crate::proxy::relay;
use crate::upstream::supervisor::Supervisor;
use crate::upstream::{Era, Takes, Told, Upstream};

/// How long after its last call a client may still be meant.
pub const PRESENT: Duration = Duration::from_secs(60);
/// Most clients of a server that are told apart.
pub const MAX_USERS: usize = 1024;
/// How long a server with more of them tells nobody.
pub const CROWDED: Duration = Duration::from_secs(3600);

/// The users of every server.
#[derive(Debug)]
pub struct Audiences(Vec<Arc<Audience>>);

/// The users of one server.
#[derive(Debug, Default)]
struct Audience {
    users: Mutex<Users>,
    server: Arc<str>,
    /// What was warned of.
    left_behind: Arc<LeftBehind>,
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

impl Audiences {
    /// Nobody yet; from now on the servers' log messages come here.
    #[must_use]
    pub fn of(upstreams: &Supervisor, left_behind: &Arc<LeftBehind>) -> Self {
        let listening = |upstream: &Arc<Upstream>| {
            let audience = Arc::new(Audience {
                users: Mutex::default(),
                server: Arc::clone(upstream.name()),
                left_behind: Arc::clone(left_behind),
            });
            let told = Arc::clone(&audience);
            upstream.log_to(move |message| told.tell(message, Instant::now()));
            audience
        };
        Self(upstreams.iter().map(listening).collect())
    }

    /// A call of `client` goes to `upstream` now.
    pub fn enter(&self, upstream: &Upstream, client: &Arc<Client>, now: Instant) {
        client.was_active(now);
        if client.first_uses(upstream.number())
            && let Some(audience) = self.0.get(upstream.number())
        {
            audience.enter(client, now);
        }
    }
}

/// Who stands for a call that comes from no MCP client, for as long as it takes.
#[must_use]
pub fn stranger() -> Arc<Client> {
    Arc::new(Client::new("".into(), "", "", Era::Modern, Takes::default()))
}

impl Audience {
    fn enter(&self, client: &Arc<Client>, now: Instant) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
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
                        relay::log_message(message, &client, &self.server, &self.left_behind)
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
        // A session holds its client once, and so does each of its requests under way. A modern
        // client lives as long as its connection or its request.
        let uses = |client: &Arc<Client>| match client.era {
            Era::Legacy => client.listens() || Arc::strong_count(client) > 2,
            Era::Modern => true,
        };
        self.was_active(now) || self.client.upgrade().as_ref().is_some_and(uses)
    }
}

/// The level of a log message; one that says none is taken for information.
fn level_of(message: &[u8]) -> Level {
    #[derive(Deserialize)]
    struct Message {
        params: Params,
    }
    #[derive(Deserialize)]
    struct Params {
        level: Level,
    }
    serde_json::from_slice::<Message>(message).map_or(Level::Info, |message| message.params.level)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: Bytes = Bytes::from_static(
        br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}"#,
    );

    fn client() -> Arc<Client> {
        Arc::new(Client::new("s".into(), "", "2025-11-25", Era::Legacy, Takes::default()))
    }

    fn used_by(audience: &Audience, client: &Arc<Client>, now: Instant) {
        client.was_active(now);
        audience.enter(client, now);
    }

    #[test]
    fn the_only_client_is_told_where_it_listens() {
        let (audience, ours, now) = (Audience::default(), client(), Instant::now());
        assert_eq!(audience.tell(&LOG, now), Told::Nobody, "nobody uses it");
        used_by(&audience, &ours, now);
        assert_eq!(audience.tell(&LOG, now), Told::ByItsCall);
        let mut aside = ours.listen();
        assert_eq!(audience.tell(&LOG, now), Told::Already);
        assert_eq!(aside.try_recv().unwrap(), LOG);
        ours.set_level(Level::Error);
        assert_eq!(audience.tell(&LOG, now), Told::Already);
        assert!(aside.try_recv().is_err(), "it does not want that level");
        drop(aside);
        assert_eq!(audience.tell(&LOG, now), Told::ByItsCall, "it has stopped listening");
    }

    #[test]
    fn of_two_clients_none_is_told() {
        let (audience, ours, now) = (Audience::default(), client(), Instant::now());
        used_by(&audience, &ours, now);
        let mut aside = ours.listen();
        let later = now + PRESENT + Duration::from_secs(2);
        // One that has just been there, is there still, or has gone without a word.
        let other = client();
        used_by(&audience, &other, now);
        assert_eq!(audience.tell(&LOG, now), Told::Nobody);
        let under_way = Arc::clone(&other);
        assert_eq!(audience.tell(&LOG, later), Told::Nobody);
        drop(under_way);
        assert_eq!(audience.tell(&LOG, later), Told::Already);
        aside.try_recv().unwrap();
        other.was_active(later);
        drop(other);
        assert_eq!(audience.tell(&LOG, later), Told::Nobody);
        assert_eq!(audience.tell(&LOG, later + PRESENT * 2), Told::Already);
        aside.try_recv().unwrap();
        // Whoever listens is there, and a call from elsewhere counts as a client.
        let listening = client();
        used_by(&audience, &listening, now);
        let other_aside = listening.listen();
        assert_eq!(audience.tell(&LOG, later), Told::Nobody);
        drop(other_aside);
        listening.leave();
        let call = stranger();
        audience.enter(&call, now);
        assert_eq!(audience.tell(&LOG, later), Told::Nobody);
        drop(call);
        assert_eq!(audience.tell(&LOG, later), Told::Already);
    }

    #[test]
    fn who_ends_its_session_makes_room_at_once() {
        let (audience, ours, now) = (Audience::default(), client(), Instant::now());
        let other = client();
        used_by(&audience, &other, now);
        used_by(&audience, &ours, now);
        assert_eq!(audience.tell(&LOG, now), Told::Nobody);
        other.leave();
        drop(other);
        assert_eq!(audience.tell(&LOG, now), Told::ByItsCall);
    }

    #[test]
    fn a_crowd_is_told_nothing_and_costs_no_more() {
        let (audience, now) = (Audience::default(), Instant::now());
        let crowd: Vec<_> = (0..=MAX_USERS).map(|_| client()).collect();
        crowd.iter().for_each(|client| used_by(&audience, client, now));
        assert_eq!(audience.users.lock().unwrap().all.len(), MAX_USERS);
        crowd.iter().for_each(|client| client.leave());
        drop(crowd);
        let ours = client();
        used_by(&audience, &ours, now);
        assert_eq!(audience.tell(&LOG, now), Told::Nobody);
        let later = now + CROWDED;
        used_by(&audience, &ours, later);
        assert_eq!(audience.tell(&LOG, later), Told::ByItsCall);
    }
}
