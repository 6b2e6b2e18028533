//! Who is connected: the bound on connections over all and of one address, and who makes room.
//!
//! A connection is idle while no request of its client is being read or answered. Where there is no
//! place left, the one that has been idle longest gives its own up: of the newcomer's address first,
//! so that who opens many connections pays for them, else of any. Where none is idle the newcomer is
//! turned away.
//!
//! ```text
//! idle since t ── bytes come ──▶ busy ── the answer has left ──▶ idle since t'
//!      └── a newcomer needs its place ──▶ given up: its task is ended
//! ```
//!
//! The table is locked when a connection comes or goes. A request touches the state of its own
//! connection alone, which no other connection writes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::downstream::source::Source;

/// Of so many places one connection more than one makes room at a time, so that not every newcomer
/// searches the table.
const ROOM_SHARE: usize = 128;
/// A connection that gives its place up has this long to be gone.
const ROOM_LIMIT: Duration = Duration::from_secs(1);

const BUSY: u64 = 0;
const GIVEN_UP: u64 = 1;
/// What is not one of these is the millisecond since when it is idle, and this.
const IDLE: u64 = 2;

/// Whether a connection is in use.
#[derive(Debug)]
pub(super) struct Presence {
    state: AtomicU64,
    origin: Instant,
}

impl Presence {
    /// Bytes have come; false if the connection has given its place up.
    pub(super) fn busy(&self) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state == BUSY || state == GIVEN_UP {
                return state == BUSY;
            }
            let set =
                self.state.compare_exchange(state, BUSY, Ordering::Relaxed, Ordering::Relaxed);
            match set {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
    }

    /// It waits for the next request from now on.
    pub(super) fn idle(&self, now: Instant) {
        if self.state.load(Ordering::Relaxed) == BUSY {
            self.state.store(self.since(now), Ordering::Relaxed);
        }
    }

    fn since(&self, now: Instant) -> u64 {
        let ms = now.saturating_duration_since(self.origin).as_millis();
        u64::try_from(ms).unwrap_or(u64::MAX).saturating_add(IDLE)
    }

    /// Since when it is idle; `None` if it is not.
    fn idle_since(&self) -> Option<u64> {
        let state = self.state.load(Ordering::Relaxed);
        (state >= IDLE).then_some(state)
    }

    /// Gives the place up if it is still idle.
    fn give_up(&self, since: u64) -> bool {
        let done =
            self.state.compare_exchange(since, GIVEN_UP, Ordering::Relaxed, Ordering::Relaxed);
        done.is_ok()
    }
}

/// All connections.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    pub(super) most: usize,
    origin: Instant,
    table: Mutex<Table>,
    /// One has gone.
    left: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Entry>,
    sources: HashMap<Source, usize>,
}

#[derive(Debug)]
struct Entry {
    source: Source,
    presence: Arc<Presence>,
    /// What serves it, once something does.
    task: Option<AbortHandle>,
}

/// A connection's place, given back when dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    places: Arc<ConnectionSlots>,
    number: u64,
    pub(super) source: Source,
    pub(super) presence: Arc<Presence>,
}

/// What a look for a place found.
#[derive(Debug)]
enum Look {
    Found(ConnectionSlot),
    /// Others are about to go.
    Soon,
    /// All are in use.
    Full,
}

impl ConnectionSlots {
    pub(super) fn new(most: usize) -> Arc<Self> {
        let (table, left) = (Mutex::default(), Notify::new());
        Arc::new(Self { most, origin: Instant::now(), table, left })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection from there; `None` while all are in use. For one task only.
    pub(super) async fn take(self: &Arc<Self>, source: Source) -> Option<ConnectionSlot> {
        let found = async {
            loop {
                match self.look(source) {
                    Look::Found(place) => return Some(place),
                    Look::Soon => self.left.notified().await,
                    Look::Full => return None,
                }
            }
        };
        tokio::time::timeout(ROOM_LIMIT, found).await.ok().flatten()
    }

    fn look(self: &Arc<Self>, source: Source) -> Look {
        let mut table = self.table();
        let share = source.share(self.most);
        let of_source = table.sources.get(&source).copied().unwrap_or_default();
        let full = table.open.len() >= self.most;
        if full || of_source >= share {
            let own = |entry: &Entry| entry.source == source;
            let going = table.make_room(1 + share / ROOM_SHARE, own)
                || full && of_source < share && table.make_room(1, |_| true);
            return if going { Look::Soon } else { Look::Full };
        }
        let number = table.next;
        table.next += 1;
        *table.sources.entry(source).or_default() += 1;
        let presence = Presence { state: AtomicU64::new(BUSY), origin: self.origin };
        presence.idle(Instant::now());
        let presence = Arc::new(presence);
        let entry = Entry { source, presence: Arc::clone(&presence), task: None };
        table.open.insert(number, entry);
        Look::Found(ConnectionSlot { places: Arc::clone(self), number, source, presence })
    }

    /// Has the connection go that has been idle longest: descriptors are short.
    pub(super) fn make_room(&self) {
        self.table().make_room(1, |_| true);
    }
}

impl Table {
    /// Ends those that have been idle longest, at most `count`; false if there is none and none is
    /// on its way.
    fn make_room(&mut self, count: usize, of: impl Fn(&Entry) -> bool) -> bool {
        let theirs = || self.open.iter().filter(|(_, entry)| of(entry));
        if theirs().any(|(_, entry)| entry.presence.state.load(Ordering::Relaxed) == GIVEN_UP) {
            return true;
        }
        let mut idle: Vec<_> = theirs()
            .filter_map(|(n, entry)| Some((entry.presence.idle_since()?, n, entry)))
            .collect();
        idle.sort_unstable_by_key(|(since, number, _)| (*since, **number));
        let mut going = false;
        for (since, _, entry) in idle.into_iter().take(count) {
            if entry.presence.give_up(since) {
                going = true;
                if let Some(task) = &entry.task {
                    task.abort();
                }
            }
        }
        going
    }
}

impl ConnectionSlot {
    /// Tells what serves it and can be ended, if it gives its place up.
    pub(super) fn served_by(places: &ConnectionSlots, number: u64, task: AbortHandle) {
        let mut table = places.table();
        let Some(entry) = table.open.get_mut(&number) else { return };
        // It may have given it up before anything served it.
        if entry.presence.state.load(Ordering::Relaxed) == GIVEN_UP {
            task.abort();
        }
        entry.task = Some(task);
    }

    /// What [`ConnectionSlot::served_by`] asks for.
    pub(super) fn name(&self) -> (Arc<ConnectionSlots>, u64) {
        (Arc::clone(&self.places), self.number)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.places.table();
        if let Some(Entry { source, .. }) = table.open.remove(&self.number)
            && let Some(count) = table.sources.get_mut(&source)
        {
            *count -= 1;
            if *count == 0 {
                table.sources.remove(&source);
            }
        }
        drop(table);
        self.places.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(test)
    }

    fn remote(last: u8) -> Source {
        Source::of([10, 0, 0, last].into())
    }

    /// A task that holds a place until it is ended.
    fn hold(place: ConnectionSlot) -> Arc<Presence> {
        let presence = Arc::clone(&place.presence);
        let (places, number) = place.name();
        let task = tokio::spawn(async move {
            let _place = place;
            std::future::pending::<()>().await;
        });
        ConnectionSlot::served_by(&places, number, task.abort_handle());
        presence
    }

    async fn open(
        places: &Arc<ConnectionSlots>,
        source: Source,
        since_ms: u64,
    ) -> Option<Arc<Presence>> {
        let presence = hold(places.take(source).await?);
        assert!(presence.busy());
        presence.idle(places.origin + Duration::from_millis(since_ms));
        Some(presence)
    }

    fn is_gone(presence: &Presence) -> bool {
        presence.state.load(Ordering::Relaxed) == GIVEN_UP
    }

    #[test]
    fn whoever_has_been_idle_longest_makes_room_and_whoever_is_busy_stays() {
        run(async {
            let places = ConnectionSlots::new(3);
            let first = open(&places, Source::Loopback, 1).await.unwrap();
            let oldest = open(&places, Source::Loopback, 7).await.unwrap();
            let newest = open(&places, Source::Loopback, 9).await.unwrap();
            assert!(first.busy());
            let more = open(&places, Source::Loopback, 11).await.unwrap();
            assert!(is_gone(&oldest) && !oldest.busy(), "a late request is not begun");
            assert!(!is_gone(&first) && !is_gone(&newest));
            assert!(newest.busy() && more.busy());
            assert!(places.take(Source::Loopback).await.is_none(), "all are in use");
            first.idle(Instant::now());
            assert!(places.take(Source::Loopback).await.is_some());
        });
    }

    #[test]
    fn an_address_has_its_share_and_makes_room_for_itself() {
        run(async {
            let places = ConnectionSlots::new(8);
            let ours = open(&places, Source::Loopback, 0).await.unwrap();
            let one = open(&places, remote(1), 1).await.unwrap();
            let two = open(&places, remote(1), 2).await.unwrap();
            let three = open(&places, remote(1), 3).await.unwrap();
            assert!(is_gone(&one) && !is_gone(&two) && !is_gone(&three) && !is_gone(&ours));
            assert!(two.busy() && three.busy());
            assert!(places.take(remote(1)).await.is_none(), "its share is in use");
            for last in 2..=5 {
                assert!(open(&places, remote(last), 20).await.is_some());
            }
            assert!(open(&places, Source::Loopback, 30).await.is_some());
            assert!(!is_gone(&ours), "it is full now");
            assert!(open(&places, remote(6), 40).await.is_some());
            assert!(is_gone(&ours), "who has none of its own takes the oldest of all");
        });
    }

    #[test]
    fn a_place_is_given_back_however_it_ends() {
        run(async {
            let places = ConnectionSlots::new(1);
            for _ in 0..3 {
                drop(places.take(remote(1)).await.unwrap());
            }
            let place = places.take(Source::Loopback).await.unwrap();
            places.make_room();
            assert!(!place.presence.busy(), "before anything served it");
            drop(place);
            assert!(places.table().open.is_empty() && places.table().sources.is_empty());
        });
    }
}
