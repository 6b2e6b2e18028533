//! Cached lists of the upstreams, and reference-counted resource subscriptions of clients.
//!
//! [`lists`](super::lists) reads the lists. A server sees one subscriber, whose subscription is shared by many
//! clients and ends with the last of them. A dropped [`ResourceSubscription`] leaves its URI to
//! [`Subscribers::ended`], so that the server can be notified.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use mcpproxy_catalog::ListNotes;
use mcpproxy_catalog::exposed;
use mcpproxy_catalog::listing::List;
use mcpproxy_catalog::listing::Listed;
use mcpproxy_policy::{StateAccount, StateCharge, StateFull};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

/// Freshness of a list in milliseconds.
pub(crate) const FRESH_MS: u64 = 60_000;
/// Maximum wait for one server's list.
pub(crate) const LIST_WAIT: Duration = Duration::from_secs(10);

/// Cached lists of all servers.
#[derive(Debug, Default)]
pub struct ListCache {
    servers: Mutex<HashMap<Arc<str>, Arc<[CacheSlot; List::ALL.len()]>>>,
    pub(super) subscribers: Arc<Subscribers>,
}

impl ListCache {
    pub(super) fn slots(&self, server: &Arc<str>) -> Arc<[CacheSlot; List::ALL.len()]> {
        let mut servers = self.servers.lock();
        let make = || Arc::new(List::ALL.map(|_| CacheSlot::new(server)));
        Arc::clone(servers.entry(Arc::clone(server)).or_insert_with(make))
    }
}

impl ListCache {
    /// Notes on the server's lists as read last.
    pub fn notes(&self, server: &str) -> ListNotes {
        let slots = self.servers.lock().get(server).map(Arc::clone);
        let mut notes = ListNotes::default();
        for slot in slots.iter().flat_map(|slots| slots.iter()) {
            notes.merge(&slot.last.load().notes);
        }
        notes
    }

    /// Whether `shown` holds for one of the first `max_asked` elements of a cached list of the server, by its own name.
    pub(crate) fn has_shown(
        &self,
        server: &str,
        max_asked: usize,
        shown: impl Fn(List, &str) -> bool,
    ) -> bool {
        let slots = self.servers.lock().get(server).map(Arc::clone);
        let lists = slots.iter().flat_map(|slots| slots.iter()).zip(List::ALL);
        let mut lists = lists.map(|(slot, list)| (slot.last.load_full(), list));
        lists.any(|(last, list)| {
            last.elements.iter().take(max_asked).any(|listed| shown(list, &listed.own))
        })
    }

    /// Whether the server's cached list has an element that it calls `own`.
    pub(super) fn has(&self, server: &Arc<str>, list: List, own: &str) -> bool {
        let slots = self.servers.lock().get(server).map(Arc::clone);
        let Some(slots) = slots else { return false };
        let [resources, templates, prompts] = &*slots;
        let (slot, key) = match list {
            List::Resources => (resources, exposed::uri(server, own)),
            List::Templates => (templates, exposed::uri(server, own)),
            List::Prompts => (prompts, exposed::name(server, own)),
        };
        slot.last.load().find(&key).is_some()
    }

    /// Drops the lists of a server whose name was removed or reassigned.
    pub fn forget(&self, server: &str) {
        self.servers.lock().remove(server);
    }
}

/// One list of one server.
#[derive(Debug)]
pub(crate) struct CachedList {
    pub server: Arc<str>,
    /// Sorted by unique keys.
    pub(super) elements: Arc<[Listed]>,
    /// Elements that were repaired or left out.
    notes: Arc<ListNotes>,
    /// Whether it was read to its end.
    complete: bool,
    /// Change counter at the time of reading; `None` before.
    changes: Option<u64>,
    good_until: Instant,
}

impl CachedList {
    /// The element with that name or URI.
    pub(crate) fn find(&self, key: &str) -> Option<&Listed> {
        let at = self.elements.binary_search_by(|listed| (*listed.key).cmp(key)).ok()?;
        self.elements.get(at)
    }

    pub(super) fn is_good(&self, changes: u64) -> bool {
        self.changes == Some(changes) && Instant::now() < self.good_until
    }
}

/// Outcome of reading one list of one server.
#[derive(Debug)]
pub(super) enum ListRead {
    Complete(Vec<Listed>, ListNotes),
    /// The pages before the one that could not be read.
    Partial {
        elements: Vec<Listed>,
        notes: ListNotes,
        reason: String,
        /// Set if the rest may be read later.
        retry_after: Option<Duration>,
    },
    Failed {
        retry_after: Duration,
    },
}

/// Cache slot of one list of one server.
#[derive(Debug)]
pub(super) struct CacheSlot {
    pub(super) last: ArcSwap<CachedList>,
    /// Held by the request that reads the list.
    pub(super) turn: Semaphore,
}

impl CacheSlot {
    fn new(server: &Arc<str>) -> Self {
        let empty = CachedList {
            server: Arc::clone(server),
            elements: Arc::from([]),
            notes: Arc::default(),
            complete: false,
            changes: None,
            good_until: Instant::now(),
        };
        Self { last: ArcSwap::from_pointee(empty), turn: Semaphore::new(1) }
    }

    /// Stores what was read as the list after `changes` changes. A complete list is not replaced by a part whose rest may
    /// be read later.
    pub(super) fn keep(&self, read: ListRead, changes: u64) -> Arc<CachedList> {
        let last = self.last.load();
        let fresh = Duration::from_millis(FRESH_MS);
        let kept = |retry_after| {
            (Arc::clone(&last.elements), Arc::clone(&last.notes), last.complete, retry_after)
        };
        let (elements, notes, complete, good_for) = match read {
            ListRead::Complete(elements, notes) => (elements.into(), Arc::new(notes), true, fresh),
            ListRead::Failed { retry_after } => kept(retry_after),
            ListRead::Partial { retry_after: Some(retry_after), .. } if last.complete => {
                kept(retry_after)
            }
            ListRead::Partial { elements, notes, retry_after, .. } => {
                (elements.into(), Arc::new(notes), false, retry_after.unwrap_or(fresh))
            }
        };
        let server = Arc::clone(&last.server);
        let good_until = Instant::now() + good_for;
        let changes = Some(changes);
        let set = Arc::new(CachedList { server, elements, notes, complete, changes, good_until });
        self.last.store(Arc::clone(&set));
        set
    }
}

/// Memory charge of a subscription besides the copies of its URI: table entries here and at the server.
const BESIDE_URI_BYTES: usize = 1024;
/// Copies of a URI: the clients', and the server's.
const COPIES: usize = 2;

/// Number of subscribed clients by URI, as clients know it.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    table: Mutex<Table>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Table {
    clients: HashMap<Arc<str>, usize>,
    /// URIs without subscribers whose server must be notified; charged until then.
    ended: BTreeMap<Arc<str>, StateCharge>,
}

/// One client's subscription to a resource.
#[derive(Debug)]
pub(crate) struct ResourceSubscription {
    uri: Arc<str>,
    of: Arc<Subscribers>,
    /// `None` once ended.
    charge: Option<StateCharge>,
}

impl Subscribers {
    /// Subscribes a client whose memory is charged to `account`.
    pub(crate) fn enter(
        self: &Arc<Self>,
        uri: &str,
        account: &Arc<StateAccount>,
    ) -> Result<ResourceSubscription, StateFull> {
        let charge = account.charge(COPIES * uri.len() + BESIDE_URI_BYTES)?;
        let mut table = self.table.lock();
        let uri = table.clients.get_key_value(uri).map_or_else(|| uri.into(), |it| it.0.clone());
        *table.clients.entry(Arc::clone(&uri)).or_default() += 1;
        drop(table);
        Ok(ResourceSubscription { uri, of: Arc::clone(self), charge: Some(charge) })
    }

    /// Whether any client is subscribed.
    pub(crate) fn any(&self, uri: &str) -> bool {
        self.table.lock().clients.contains_key(uri)
    }

    /// Runs `end` unless a client is subscribed to the URI. Excludes new subscriptions meanwhile.
    pub(crate) fn unless_wanted(&self, uri: &str, end: impl FnOnce()) {
        let table = self.table.lock();
        if !table.clients.contains_key(uri) {
            end();
        }
    }

    /// Waits for URIs whose last subscription was dropped; they are charged until dropped.
    pub(crate) async fn ended(&self) -> BTreeMap<Arc<str>, StateCharge> {
        loop {
            let ended = std::mem::take(&mut self.table.lock().ended);
            if !ended.is_empty() {
                return ended;
            }
            self.ended.notified().await;
        }
    }
}

impl Table {
    /// Removes one client; true if it was the last.
    fn leave(&mut self, uri: &str) -> bool {
        let Some(clients) = self.clients.get_mut(uri) else { return false };
        *clients -= 1;
        let last = *clients == 0;
        if last {
            self.clients.remove(uri);
        }
        last
    }
}

impl ResourceSubscription {
    /// The URI as the client knows it.
    pub(crate) fn uri(&self) -> &Arc<str> {
        &self.uri
    }

    /// Ends it at the client's request, which notifies the server itself. True, after running `last`, if no other
    /// client has it. Excludes new subscriptions meanwhile.
    pub(crate) fn end(mut self, last: impl FnOnce()) -> bool {
        let charge = self.charge.take();
        let mut table = self.of.table.lock();
        let ended = table.leave(&self.uri);
        if ended {
            last();
        }
        drop((table, charge));
        ended
    }
}

impl Drop for ResourceSubscription {
    fn drop(&mut self) {
        let Some(charge) = self.charge.take() else { return };
        let mut table = self.of.table.lock();
        if table.leave(&self.uri) {
            table.ended.insert(Arc::clone(&self.uri), charge);
            self.of.ended.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use mcpproxy_policy::{Principal, StateAccounts};

    use super::*;

    fn account() -> Arc<StateAccount> {
        StateAccounts::default().of(&Principal::Anonymous)
    }

    #[tokio::test]
    async fn dropped_subscription_ends_with_its_last_client() {
        let (all, account) = (Arc::<Subscribers>::default(), account());
        let [first, second] = [(); 2].map(|()| all.enter("a:b", &account).unwrap());
        drop(first);
        assert!(all.any("a:b"));
        all.unless_wanted("a:b", || panic!("a client has it"));
        drop(second);
        assert!(!all.any("a:b"));
        assert!(account.bytes() > 0, "its server was not notified yet");
        let ended = all.ended().await;
        assert_eq!(ended.keys().map(|uri| &**uri).collect::<Vec<_>>(), ["a:b"]);
        drop(ended);
        assert_eq!(account.bytes(), 0);
        let mut ended = false;
        all.unless_wanted("a:b", || ended = true);
        assert!(ended);
    }

    #[test]
    fn subscription_ended_by_its_client_is_reported_once() {
        let (all, account) = (Arc::<Subscribers>::default(), account());
        let [first, second] = [(); 2].map(|()| all.enter("a:b", &account).unwrap());
        assert!(!first.end(|| panic!("another client has it")));
        let mut ended = false;
        assert!(second.end(|| ended = true) && ended);
        assert!(all.table.lock().ended.is_empty(), "the caller notifies the server");
        assert_eq!(account.bytes(), 0);
    }

    #[test]
    fn uris_are_charged_to_the_subscriber() {
        let (all, accounts) =
            (Arc::<Subscribers>::default(), StateAccounts::of_at_most(4096, 8192));
        let [ada, bob] = ["ada", "bob"].map(|name| accounts.of(&Principal::certificate(name)));
        let kept = all.enter(&"x".repeat(1500), &ada).unwrap();
        assert_eq!(ada.bytes(), 2 * 1500 + BESIDE_URI_BYTES);
        assert_eq!(all.enter("y", &ada).unwrap_err(), StateFull::OfPrincipal { limit: 4096 });
        let others = all.enter("y", &bob).unwrap();
        drop(kept);
        assert!(all.enter("z", &ada).is_err(), "its server was not notified yet");
        let ended = all.table.lock().ended.pop_first();
        drop((ended, others));
        assert_eq!((ada.bytes(), all.any("x")), (0, false));
    }
}
