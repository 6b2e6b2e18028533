//! Cache of the upstreams' lists, used by [`lists`](super::lists), and the table of their subscribers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use mcpproxy_catalog::ListNotes;
use mcpproxy_catalog::exposed;
use mcpproxy_catalog::listing::List;
use mcpproxy_catalog::listing::Listed;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::subscribers::Subscribers;

/// Freshness of a list in milliseconds.
pub(crate) const FRESH_MS: u64 = 60_000;
/// Maximum wait for one server's list.
pub const LIST_WAIT: Duration = Duration::from_secs(10);

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
    /// Repaired and omitted elements of the server's lists, as of their last reads.
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

    /// Whether the server's cached list has an element that the server calls `own`.
    pub(super) fn has(&self, server: &Arc<str>, list: List, own: &str) -> bool {
        let slots = self.servers.lock().get(server).map(Arc::clone);
        let Some(slots) = slots else { return false };
        let [resources, templates, prompts, skills] = &*slots;
        let (slot, key) = match list {
            List::Resources => (resources, exposed::uri(server, own)),
            List::Templates => (templates, exposed::uri(server, own)),
            List::Prompts => (prompts, exposed::name(server, own)),
            List::Skills => (skills, exposed::uri(server, own)),
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
    /// Whether the list was read to its end.
    complete: bool,
    /// Change counter at the time of reading; `None` before the first read.
    changes: Option<u64>,
    good_until: Instant,
}

impl CachedList {
    /// The element with this name or URI.
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
    /// Only the pages before the first unreadable one.
    Partial {
        elements: Vec<Listed>,
        notes: ListNotes,
        reason: String,
        /// Delay before the next attempt to read the rest; `None` if it would not help.
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
    /// Semaphore whose permit is held by the request that reads the list.
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

    /// Stores a read list with the change counter `changes`. A partial list whose rest may be read later does not
    /// replace a complete one.
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
