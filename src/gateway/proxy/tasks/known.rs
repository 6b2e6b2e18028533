//! Table of the tasks that legacy servers created for calls through this process (MCP 2025-11-25 §Listing Tasks,
//! §Task Status Notification; PRO-43).
//!
//! One credential at a server represents many principals, so neither its task list nor its status notifications can be
//! forwarded unchanged. The table maps a server's task to its principal, session and sealed id; requests about a task
//! do not need it. The table is bounded: the oldest task of the principal with the most tasks is evicted. An evicted
//! task is no longer listed, and its changes are no longer notified.
//!
//! A change stays in the table until the task's state is fetched for the session's stream, even while there is no
//! stream.
//!
//! Lookups scan the table, which is small and only used for tasks.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mcpproxy_policy::sealed_task::TASK_LIFETIME;
use mcpproxy_policy::{Principal, heaviest};
use mcpproxy_upstream::CallSession;
use parking_lot::Mutex;

use super::changed::{DueTask, FetchDue, FetchOutcome, Fetched, NotRepeated, TaskState};
use crate::proxy::client::{Client, Peer};

/// Maximum number of tasks in the table.
const MAX_KNOWN: usize = 4096;
/// Maximum number of tasks of one principal in the table.
const MAX_KNOWN_OF_PRINCIPAL: usize = 256;
/// Maximum number of tasks on one page of a list.
pub(crate) const PAGE_TASKS: usize = 16;

/// Task table in order of creation.
#[derive(Debug)]
pub struct KnownTasks {
    tasks: Mutex<VecDeque<KnownTask>>,
    began: Instant,
}

#[derive(Debug)]
struct KnownTask {
    /// Microseconds from `began` to the task's creation; unique, so that it serves as a list position. A counter
    /// would reveal the tasks of other principals.
    number: u64,
    owner: Owner,
    server: Arc<str>,
    /// The server's id.
    id: Box<str>,
    sealed: Arc<str>,
    /// The client that is notified.
    client: Weak<Client>,
    /// Schedule for fetching the task's state for that client.
    due: FetchDue,
    /// Whether the client received the task's final state.
    is_over: bool,
    ends: Instant,
}

/// Owner of a task. Anonymous clients are distinguished by their sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    principal: [u8; 16],
    session: Option<CallSession>,
}

impl Owner {
    fn of(principal: &Principal, client: &Client) -> Self {
        let session = match principal {
            Principal::Anonymous => client.session_key,
            Principal::Admin
            | Principal::Token(_)
            | Principal::Subject(_)
            | Principal::Certificate(_) => None,
        };
        Self { principal: principal.mark(), session }
    }
}

/// Task just created by a server.
pub(crate) struct CreatedTask<'a> {
    pub(crate) principal: &'a Principal,
    pub(crate) client: &'a Arc<Client>,
    pub(crate) server: &'a Arc<str>,
    /// The server's id.
    pub(crate) id: &'a str,
    pub(crate) sealed: &'a str,
    /// Retention time at the server; `None` if unlimited.
    pub(crate) ttl: Option<Duration>,
}

/// Page of tasks, oldest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskPage {
    pub(crate) tasks: Vec<ListedTask>,
    /// Position of the next page, if there is one.
    pub(crate) next: Option<u64>,
}

/// Task on a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListedTask {
    pub(crate) number: u64,
    pub(crate) server: Arc<str>,
    pub(crate) sealed: Arc<str>,
}

impl Default for KnownTasks {
    fn default() -> Self {
        Self { tasks: Mutex::default(), began: Instant::now() }
    }
}

impl KnownTasks {
    /// Adds a task. An earlier one with the same id at its server has ended, since ids are unique.
    pub(crate) fn created(&self, created: &CreatedTask<'_>, now: Instant) {
        let CreatedTask { principal, client, server, id, sealed, ttl } = *created;
        let owner = Owner::of(principal, client);
        let task = KnownTask {
            number: 0,
            owner,
            server: Arc::clone(server),
            id: id.into(),
            sealed: sealed.into(),
            client: Arc::downgrade(client),
            due: FetchDue::default(),
            is_over: false,
            ends: now + ttl.unwrap_or(TASK_LIFETIME).min(TASK_LIFETIME),
        };
        let mut tasks = self.tasks.lock();
        tasks.retain(|known| now < known.ends && !known.is(server, id));
        let owners = || tasks.iter().map(|known| known.owner.principal);
        let of_principal = owners().filter(|of| *of == owner.principal).count();
        let giving_way = match (of_principal >= MAX_KNOWN_OF_PRINCIPAL, tasks.len() >= MAX_KNOWN) {
            (true, _) => Some(owner.principal),
            (false, true) => heaviest(owners()).map(|(principal, _)| principal),
            (false, false) => None,
        };
        let oldest = giving_way.and_then(|giving| owners().position(|of| of == giving));
        oldest.and_then(|oldest| tasks.remove(oldest));
        let micros = now.saturating_duration_since(self.began).as_micros();
        let after = tasks.back().map_or(1, |last| last.number + 1);
        let number = u64::try_from(micros).unwrap_or(u64::MAX).max(after);
        tasks.push_back(KnownTask { number, ..task });
    }

    /// Tasks of a client at its endpoint, after position `after`.
    pub(crate) fn page(&self, peer: &Peer, after: u64, now: Instant) -> TaskPage {
        let owner = Owner::of(&peer.principal, &peer.client);
        let tasks = self.tasks.lock();
        let shown = tasks.iter().filter(|known| {
            known.number > after
                && now < known.ends
                && known.owner == owner
                && peer.endpoint.server().is_none_or(|only| *only == known.server)
        });
        let listed = shown.take(PAGE_TASKS + 1).map(|known| ListedTask {
            number: known.number,
            server: Arc::clone(&known.server),
            sealed: Arc::clone(&known.sealed),
        });
        let mut page = TaskPage { tasks: listed.collect(), next: None };
        if page.tasks.len() > PAGE_TASKS {
            page.tasks.truncate(PAGE_TASKS);
            page.next = page.tasks.last().map(|last| last.number);
        }
        page
    }

    /// Sealed id of a server's task, if the task belongs to the client of `principal`.
    pub(crate) fn sealed(
        &self,
        (server, id): (&str, &str),
        principal: &Principal,
        client: &Client,
    ) -> Option<Arc<str>> {
        let owner = Owner::of(principal, client);
        let tasks = self.tasks.lock();
        let known = tasks.iter().find(|known| known.is(server, id));
        known.filter(|known| known.owner == owner).map(|known| Arc::clone(&known.sealed))
    }

    /// Records that a client asked about a task with a sealed id it may use. If the session of the task's client has
    /// ended, this client replaces it.
    pub(crate) fn asked(&self, sealed: &str, principal: &Principal, client: &Arc<Client>) {
        let mut tasks = self.tasks.lock();
        if let Some(known) = tasks.iter_mut().find(|known| *known.sealed == *sealed)
            && known.live_client().is_none()
        {
            known.owner = Owner::of(principal, client);
            known.client = Arc::downgrade(client);
            // The client receives the state through its own request.
            known.due = FetchDue::default();
        }
    }

    /// Records a change of a server's task, for its session. A final state does not change.
    pub(crate) fn changed(&self, server: &str, id: &str, now: Instant) {
        let mut tasks = self.tasks.lock();
        let mut known = tasks.iter_mut().filter(|known| known.is(server, id));
        let Some(known) = known.find(|known| now < known.ends && !known.is_over) else { return };
        if let Some(client) = known.live_client()
            && known.due.changed(now.into())
        {
            client.task_changed.notify_one();
        }
    }

    /// The client's task whose state is fetched next.
    pub(super) fn due(&self, client: &Arc<Client>, now: Instant) -> Option<DueTask> {
        let tasks = self.tasks.lock();
        let is_own = |known: &&KnownTask| known.client.as_ptr() == Arc::as_ptr(client);
        let own = tasks.iter().filter(is_own).filter(|known| now < known.ends);
        own.filter_map(|known| known.due.task(&known.sealed)).min_by_key(|due| due.at)
    }

    /// Applies the outcome of a state request. Returns the state for the client, if there is one.
    pub(super) fn fetched(
        &self,
        outcome: FetchOutcome,
        now: Instant,
    ) -> Result<Option<TaskState>, NotRepeated> {
        let mut tasks = self.tasks.lock();
        let known = tasks.iter_mut().find(|known| known.sealed == outcome.sealed);
        // A task that was evicted in the meantime is not requested again.
        let Some(known) = known else { return FetchDue::default().take(outcome, now.into()) };
        if outcome.fetched == Fetched::Gone {
            tasks.retain(|known| known.sealed != outcome.sealed);
            return Ok(None);
        }
        known.is_over = outcome.fetched.is_over();
        if known.is_over {
            known.due = FetchDue::default();
        }
        known.due.take(outcome, now.into())
    }

    /// Removes a task that its server no longer has.
    pub(crate) fn gone(&self, sealed: &str) {
        self.tasks.lock().retain(|known| *known.sealed != *sealed);
    }

    /// Removes the tasks of a server that is no longer configured.
    pub fn forget(&self, server: &str) {
        self.tasks.lock().retain(|known| *known.server != *server);
    }
}

impl KnownTask {
    fn is(&self, server: &str, id: &str) -> bool {
        *self.id == *id && *self.server == *server
    }

    /// Client of the task, unless its session has ended.
    fn live_client(&self) -> Option<Arc<Client>> {
        self.client.upgrade().filter(|client| !client.active().has_ended())
    }
}

#[cfg(test)]
mod tests {
    use mcpproxy_policy::{AgentToken, Scope};

    use super::*;
    use crate::proxy::client::{Channel, Endpoint};

    fn token(name: &str) -> Principal {
        Principal::Token(Arc::new(AgentToken::new(name, 1, Scope::default())))
    }

    /// A client of this principal, with its session.
    fn peer(principal: Principal) -> Peer {
        let (client, endpoint) = (Client::of_test(), Endpoint::All);
        Peer { client, principal, endpoint, channel: Channel::Answer, headers: None, trace: None }
    }

    fn created(table: &KnownTasks, peer: &Peer, id: &str, now: Instant) {
        created_at(table, peer, ("s", id), None, now);
    }

    fn created_at(
        table: &KnownTasks,
        peer: &Peer,
        (server, id): (&str, &str),
        ttl: Option<Duration>,
        now: Instant,
    ) {
        let sealed = format!("{server}/{id} of {}", peer.principal.id());
        let (principal, client) = (&peer.principal, &peer.client);
        let (server, sealed) = (&Arc::from(server), &*sealed);
        table.created(&CreatedTask { principal, client, server, id, sealed, ttl }, now);
    }

    /// Sealed ids on all pages.
    fn listed(table: &KnownTasks, peer: &Peer, now: Instant) -> Vec<String> {
        let (mut after, mut all) = (0, Vec::new());
        for _ in 0..=MAX_KNOWN / PAGE_TASKS {
            let page = table.page(peer, after, now);
            assert!(page.tasks.len() <= PAGE_TASKS);
            all.extend(page.tasks.iter().map(|task| task.sealed.to_string()));
            let Some(next) = page.next else { return all };
            after = next;
        }
        panic!("the list has no end")
    }

    /// Fetches the state of a changed task, with this outcome.
    fn fetched(table: &KnownTasks, peer: &Peer, fetched: Fetched, now: Instant) -> Option<Instant> {
        let DueTask { at, changes, sealed } = table.due(&peer.client, now)?;
        table.fetched(FetchOutcome { sealed, changes, fetched }, now).expect("a first request");
        Some(at.into_std())
    }

    /// Whether a task change was recorded for this client, which then gets its state.
    fn is_noted(table: &KnownTasks, peer: &Peer, now: Instant) -> bool {
        let state = TaskState::of_test(r#""taskId":"x""#, false);
        fetched(table, peer, Fetched::State(state), now).is_some()
    }

    #[test]
    fn pro_43_tasks_are_listed_only_for_their_principal() {
        let (table, now) = (KnownTasks::default(), Instant::now());
        let (a, b) = (peer(token("a")), peer(token("b")));
        let again = Peer { client: Client::of_test(), ..a.clone() };
        let here = Peer { endpoint: Endpoint::Server("t".into()), ..a.clone() };
        created(&table, &a, "1", now);
        created(&table, &b, "2", now);
        created_at(&table, &a, ("t", "1"), None, now);
        assert_eq!(listed(&table, &a, now), ["s/1 of token:a", "t/1 of token:a"]);
        assert_eq!(listed(&table, &again, now), listed(&table, &a, now), "in another session");
        assert_eq!(listed(&table, &here, now), ["t/1 of token:a"]);
        assert_eq!(listed(&table, &b, now), ["s/2 of token:b"]);
        assert_eq!(listed(&table, &peer(Principal::Anonymous), now), [""; 0]);
        let sealed = |peer: &Peer, id: &str| {
            table.sealed(("s", id), &peer.principal, &peer.client).map(|id| id.to_string())
        };
        assert_eq!(sealed(&a, "1").as_deref(), Some("s/1 of token:a"));
        assert_eq!((sealed(&b, "1"), sealed(&a, "2"), sealed(&a, "3")), (None, None, None));
        // An id reused by its server belongs to the new task.
        created(&table, &b, "1", now);
        assert_eq!(listed(&table, &a, now), ["t/1 of token:a"]);
        table.gone("t/1 of token:a");
        assert_eq!(listed(&table, &a, now), [""; 0]);
        table.forget("s");
        assert_eq!(listed(&table, &b, now), [""; 0]);
    }

    #[test]
    fn pro_43_anonymous_client_lists_the_tasks_of_its_session() {
        let (table, now) = (KnownTasks::default(), Instant::now());
        let (one, two) = (peer(Principal::Anonymous), peer(Principal::Anonymous));
        created(&table, &one, "1", now);
        assert_eq!(listed(&table, &one, now).len(), 1);
        assert_eq!(listed(&table, &two, now), [""; 0]);
        assert_eq!(table.sealed(("s", "1"), &two.principal, &two.client), None);
        let sealed = listed(&table, &one, now).remove(0);
        table.asked(&sealed, &two.principal, &two.client);
        assert_eq!(listed(&table, &two, now), [""; 0], "its session is alive");
        one.client.leave();
        table.asked(&sealed, &two.principal, &two.client);
        assert_eq!(listed(&table, &two, now), [sealed]);
    }

    #[test]
    fn pro_43_known_task_ends_with_its_ttl_or_its_sealed_id() {
        let (table, now) = (KnownTasks::default(), Instant::now());
        let a = peer(token("a"));
        let second = Duration::from_secs(1);
        created_at(&table, &a, ("s", "short"), Some(second), now);
        created_at(&table, &a, ("s", "long"), Some(Duration::MAX), now);
        created_at(&table, &a, ("s", "unlimited"), None, now);
        assert_eq!(listed(&table, &a, now + second / 2).len(), 3);
        assert_eq!(listed(&table, &a, now + second).len(), 2);
        table.changed("s", "short", now + second);
        assert!(!is_noted(&table, &a, now));
        assert_eq!(listed(&table, &a, now + TASK_LIFETIME - second).len(), 2);
        assert_eq!(listed(&table, &a, now + TASK_LIFETIME), [""; 0]);
    }

    #[test]
    fn pro_43_known_tasks_are_bounded_and_the_oldest_is_evicted() {
        let (table, now) = (KnownTasks::default(), Instant::now());
        let first = peer(token("first"));
        created(&table, &first, "kept", now);
        let own = peer(token("own"));
        for n in 0..=MAX_KNOWN_OF_PRINCIPAL {
            created(&table, &own, &n.to_string(), now);
        }
        let mine = listed(&table, &own, now);
        assert_eq!(mine.len(), MAX_KNOWN_OF_PRINCIPAL);
        assert_eq!(mine.first().map(String::as_str), Some("s/1 of token:own"));
        assert_eq!(listed(&table, &first, now).len(), 1, "no other principal's task is evicted");
        for n in 0..MAX_KNOWN - MAX_KNOWN_OF_PRINCIPAL {
            let other = peer(token(&(n / MAX_KNOWN_OF_PRINCIPAL).to_string()));
            created(&table, &other, &format!("{n} of them"), now);
        }
        assert_eq!(table.tasks.lock().len(), MAX_KNOWN);
        assert_eq!(listed(&table, &first, now).len(), 1, "it has fewer than others");
        let newcomer = peer(token("newcomer"));
        created(&table, &newcomer, "new", now);
        assert_eq!(table.tasks.lock().len(), MAX_KNOWN);
        assert_eq!(listed(&table, &newcomer, now).len(), 1);
    }

    #[test]
    fn pro_43_changed_task_is_noted_only_for_its_session() {
        let (table, now) = (KnownTasks::default(), Instant::now());
        let (a, b) = (peer(token("a")), peer(token("b")));
        let other = Peer { client: Client::of_test(), ..a.clone() };
        created(&table, &a, "1", now);
        for (server, id) in [("s", "2"), ("t", "1"), ("s", "s/1 of token:a")] {
            table.changed(server, id, now);
        }
        assert!(!is_noted(&table, &a, now));
        table.changed("s", "1", now);
        table.changed("s", "1", now);
        assert!(!is_noted(&table, &b, now) && !is_noted(&table, &other, now));
        assert!(is_noted(&table, &a, now) && !is_noted(&table, &a, now), "changes are merged");
        a.client.leave();
        table.changed("s", "1", now);
        assert!(!is_noted(&table, &a, now), "its session has ended");
        table.asked("s/1 of token:a", &other.principal, &other.client);
        assert!(!is_noted(&table, &other, now), "it gets the state that it asked for");
        table.changed("s", "1", now);
        assert!(!is_noted(&table, &a, now) && is_noted(&table, &other, now));
    }

    #[test]
    fn pro_43_change_stays_until_its_state_is_fetched() {
        let (table, now) = (KnownTasks::default(), Instant::now());
        let (a, second) = (peer(token("a")), Duration::from_secs(1));
        created(&table, &a, "1", now);
        created(&table, &a, "2", now);
        table.changed("s", "2", now);
        table.changed("s", "1", now + second);
        let first = table.due(&a.client, now).expect("a change");
        assert_eq!(*first.sealed, *"s/2 of token:a");
        assert_eq!(table.due(&a.client, now), Some(first), "the stream before ended");
        let refused = Fetched::RefusedForNow(Some(30 * second));
        assert_eq!(fetched(&table, &a, refused, now), Some(now));
        assert_eq!(fetched(&table, &a, Fetched::Nothing, now), Some(now + second));
        assert_eq!(fetched(&table, &a, Fetched::Gone, now), Some(now + 30 * second));
        assert_eq!(listed(&table, &a, now), ["s/1 of token:a"]);
        assert_eq!(table.due(&a.client, now), None);
    }

    #[test]
    fn pro_43_final_task_is_listed_but_no_longer_changes() {
        let (table, now) = (KnownTasks::default(), Instant::now());
        let a = peer(token("a"));
        created(&table, &a, "1", now);
        table.changed("s", "1", now);
        let due = table.due(&a.client, now).expect("a change");
        // A notification that arrives during the request for the final state.
        table.changed("s", "1", now);
        let last = Fetched::State(TaskState::of_test(r#""taskId":"1""#, true));
        let outcome = FetchOutcome { sealed: due.sealed, changes: due.changes, fetched: last };
        assert!(table.fetched(outcome, now).is_ok_and(|state| state.is_some()));
        table.changed("s", "1", now);
        assert_eq!(table.due(&a.client, now), None);
        assert_eq!(listed(&table, &a, now).len(), 1);
    }
}
