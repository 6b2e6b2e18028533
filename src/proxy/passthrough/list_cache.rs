//! What the upstreams list, kept for a while: the elements of each list of each server, and how long they are good.
//!
//! How a list is read is in [`lists`](super::lists).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::subscribers::Subscribers;
use crate::catalog::listing::Listed;
use crate::catalog::offered::List;

/// How long a list that was read is good for, in milliseconds.
pub const FRESH_MS: u64 = 60_000;
/// Longest wait for one server's list.
pub const LIST_WAIT: Duration = Duration::from_secs(10);

/// What was read of every server.
#[derive(Debug, Default)]
pub struct ListCache {
    servers: Mutex<HashMap<Arc<str>, Arc<[CacheSlot; List::ALL.len()]>>>,
    pub(super) subscribers: Subscribers,
}

impl ListCache {
    pub(super) fn slots(&self, server: &Arc<str>) -> Arc<[CacheSlot; List::ALL.len()]> {
        let mut servers = self.servers.lock();
        let make = || Arc::new(List::ALL.map(|_| CacheSlot::new(server)));
        Arc::clone(servers.entry(Arc::clone(server)).or_insert_with(make))
    }
}

impl ListCache {
    /// What was listed by a server of that name counts no more: it has gone, or another has its name now.
    pub fn forget(&self, server: &str) {
        self.servers.lock().remove(server);
    }
}

/// One list of one server.
#[derive(Debug)]
pub struct CachedList {
    /// The server's name.
    pub server: Arc<str>,
    /// In the order of their keys, which are all different.
    pub(super) elements: Arc<[Listed]>,
    /// How often the list had changed when it was read; `None` before that.
    changes: Option<u64>,
    good_until: Instant,
}

impl CachedList {
    /// The element of that name or URI.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<&Listed> {
        let at = self.elements.binary_search_by(|listed| (*listed.key).cmp(key)).ok()?;
        self.elements.get(at)
    }

    pub(super) fn is_good(&self, changes: u64) -> bool {
        self.changes == Some(changes) && Instant::now() < self.good_until
    }
}

/// Where one list of one server is kept.
#[derive(Debug)]
pub(super) struct CacheSlot {
    pub(super) last: ArcSwap<CachedList>,
    /// Held by the one request that reads the list.
    pub(super) turn: Semaphore,
}

impl CacheSlot {
    fn new(server: &Arc<str>) -> Self {
        let empty = CachedList {
            server: Arc::clone(server),
            elements: Arc::from([]),
            changes: None,
            good_until: Instant::now(),
        };
        Self { last: ArcSwap::from_pointee(empty), turn: Semaphore::new(1) }
    }

    /// Keeps `elements`, or what was there for so long, as the list after `changes` changes.
    pub(super) fn keep(
        &self,
        elements: Result<Vec<Listed>, Duration>,
        changes: u64,
    ) -> Arc<CachedList> {
        let last = self.last.load();
        let (elements, good_for) = match elements {
            Ok(elements) => (elements.into(), Duration::from_millis(FRESH_MS)),
            Err(retry_after) => (Arc::clone(&last.elements), retry_after),
        };
        let server = Arc::clone(&last.server);
        let good_until = Instant::now() + good_for;
        let set = Arc::new(CachedList { server, elements, changes: Some(changes), good_until });
        self.last.store(Arc::clone(&set));
        set
    }
}
