//! Limits on client connections, in total and per address, and eviction of idle ones.
//!
//! If no slot is free, the connection that has been idle longest is closed: first one from the newcomer's address, so that clients that
//! open many connections evict their own, otherwise any. If none is idle, the newcomer is rejected.
//!
//! The table is locked when a connection opens or closes. A request touches only the [`IdleState`] of its own connection, one
//! atomic word. A connection is idle while no request is being read or answered.
//!
//! ```text
//! idle since t ── bytes arrive ──▶ busy ── response sent ──▶ idle since t'
//!      └── another connection needs the slot ──▶ retired: no request starts on it
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use mcpproxy_downstream::source::Source;

/// Number of slots of a source per additional connection that is evicted at a time. Evicting several together saves most newcomers the
/// search of the table.
const EVICTION_SHARE: usize = 128;
/// Timeout for an evicted connection to free its slot.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct ConnectionSlots {
    /// Maximum number of open connections.
    pub(super) limit: usize,
    origin: Instant,
    table: Mutex<Table>,
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
    idle: Arc<IdleState>,
    /// The task that serves the connection, once it is running.
    task: Option<AbortHandle>,
}

/// A connection's slot, released when dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    pub(super) source: Source,
    pub(super) idle: Arc<IdleState>,
}

/// Availability of a slot.
#[derive(Debug)]
enum Vacancy {
    Free(ConnectionSlot),
    /// Evicted connections are closing.
    Soon,
    /// All connections are busy.
    None,
}

impl ConnectionSlots {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let (table, left) = (Mutex::default(), Notify::new());
        Arc::new(Self { limit, origin: Instant::now(), table, left })
    }

    /// Takes a slot for a connection from `source`; `None` if all are busy. Must be called from one task only.
    pub(super) async fn take(self: &Arc<Self>, source: Source) -> Option<ConnectionSlot> {
        let found = async {
            loop {
                match self.vacancy(source) {
                    Vacancy::Free(slot) => return Some(slot),
                    Vacancy::Soon => self.left.notified().await,
                    Vacancy::None => return None,
                }
            }
        };
        tokio::time::timeout(EVICTION_TIMEOUT, found).await.ok().flatten()
    }

    fn vacancy(self: &Arc<Self>, source: Source) -> Vacancy {
        let mut table = self.table.lock();
        let share = source.share(self.limit);
        let of_source = table.sources.get(&source).copied().unwrap_or_default();
        let full = table.open.len() >= self.limit;
        if full || of_source >= share {
            let own = |entry: &Entry| entry.source == source;
            let going = table.evict(1 + share / EVICTION_SHARE, own)
                || full && of_source < share && table.evict(1, |_| true);
            return if going { Vacancy::Soon } else { Vacancy::None };
        }
        let number = table.next;
        table.next += 1;
        *table.sources.entry(source).or_default() += 1;
        let idle = Arc::new(IdleState::new(self.origin, Instant::now()));
        let entry = Entry { source, idle: Arc::clone(&idle), task: None };
        table.open.insert(number, entry);
        Vacancy::Free(ConnectionSlot { slots: Arc::clone(self), number, source, idle })
    }

    /// Evicts the connection that has been idle longest, to free a descriptor.
    pub(super) fn evict_one(&self) {
        self.table.lock().evict(1, |_| true);
    }
}

impl Table {
    /// Retires up to `count` connections, those idle longest first; returns false if none is idle or closing.
    fn evict(&mut self, count: usize, of: impl Fn(&Entry) -> bool) -> bool {
        let theirs = || self.open.iter().filter(|(_, entry)| of(entry));
        if theirs().any(|(_, entry)| entry.idle.is_retired()) {
            return true;
        }
        let mut idle: Vec<_> =
            theirs().filter_map(|(n, entry)| Some((entry.idle.idle_since()?, n, entry))).collect();
        idle.sort_unstable_by_key(|(since, number, _)| (*since, **number));
        let mut going = false;
        for (since, _, entry) in idle.into_iter().take(count) {
            if entry.idle.retire(since) {
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
    /// Registers the task that is aborted if the connection is retired.
    pub(super) fn served_by(slots: &ConnectionSlots, number: u64, task: AbortHandle) {
        let mut table = slots.table.lock();
        let Some(entry) = table.open.get_mut(&number) else { return };
        // The connection may have been retired before the task started.
        if entry.idle.is_retired() {
            task.abort();
        }
        entry.task = Some(task);
    }

    /// The key of this slot for [`ConnectionSlot::served_by`].
    pub(super) fn key(&self) -> (Arc<ConnectionSlots>, u64) {
        (Arc::clone(&self.slots), self.number)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.slots.table.lock();
        if let Some(Entry { source, .. }) = table.open.remove(&self.number)
            && let Some(count) = table.sources.get_mut(&source)
        {
            *count -= 1;
            if *count == 0 {
                table.sources.remove(&source);
            }
        }
        drop(table);
        self.slots.left.notify_one();
    }
}

const BUSY: u64 = 0;
const RETIRED: u64 = 1;
/// Offset added to the millisecond at which the idle period starts, so that no time equals the other states.
const IDLE: u64 = 2;

/// State of a connection.
#[derive(Debug)]
pub(super) struct IdleState {
    word: AtomicU64,
    /// Time from which milliseconds are counted.
    origin: Instant,
}

/// Start of an idle period; comparable only between states of the same origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct IdleSince(u64);

impl IdleState {
    pub(super) fn new(origin: Instant, now: Instant) -> Self {
        let state = Self { word: AtomicU64::new(BUSY), origin };
        state.set_idle(now);
        state
    }

    /// Marks the connection as busy; returns false if it is retired and no request may start.
    pub(super) fn set_busy(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word == BUSY || word == RETIRED {
                return word == BUSY;
            }
            let set = self.word.compare_exchange(word, BUSY, Ordering::Relaxed, Ordering::Relaxed);
            match set {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Marks a busy connection as idle.
    pub(super) fn set_idle(&self, now: Instant) {
        if self.word.load(Ordering::Relaxed) == BUSY {
            let ms = now.saturating_duration_since(self.origin).as_millis();
            let ms = u64::try_from(ms).unwrap_or(u64::MAX);
            self.word.store(ms.saturating_add(IDLE), Ordering::Relaxed);
        }
    }

    /// Start of the idle period; `None` if the connection is not idle.
    pub(super) fn idle_since(&self) -> Option<IdleSince> {
        let word = self.word.load(Ordering::Relaxed);
        (word >= IDLE).then_some(IdleSince(word))
    }

    /// Retires the connection if it has been idle since `since`, without a request in between.
    pub(super) fn retire(&self, since: IdleSince) -> bool {
        let set =
            self.word.compare_exchange(since.0, RETIRED, Ordering::Relaxed, Ordering::Relaxed);
        set.is_ok()
    }

    pub(super) fn is_retired(&self) -> bool {
        self.word.load(Ordering::Relaxed) == RETIRED
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(test)
    }

    fn remote(last: u8) -> Source {
        Source::of([10, 0, 0, last].into())
    }

    /// Spawns a task that holds a slot until it is aborted.
    fn hold(slot: ConnectionSlot) -> Arc<IdleState> {
        let idle = Arc::clone(&slot.idle);
        let (slots, number) = slot.key();
        let task = tokio::spawn(async move {
            let _slot = slot;
            std::future::pending::<()>().await;
        });
        ConnectionSlot::served_by(&slots, number, task.abort_handle());
        idle
    }

    async fn open(
        slots: &Arc<ConnectionSlots>,
        source: Source,
        since_ms: u64,
    ) -> Option<Arc<IdleState>> {
        let idle = hold(slots.take(source).await?);
        assert!(idle.set_busy());
        idle.set_idle(slots.origin + Duration::from_millis(since_ms));
        Some(idle)
    }

    fn is_gone(idle: &IdleState) -> bool {
        idle.is_retired()
    }

    #[test]
    fn longest_idle_connection_is_evicted_and_busy_ones_are_kept() {
        run(async {
            let slots = ConnectionSlots::new(3);
            let first = open(&slots, Source::Loopback, 1).await.unwrap();
            let oldest = open(&slots, Source::Loopback, 7).await.unwrap();
            let newest = open(&slots, Source::Loopback, 9).await.unwrap();
            assert!(first.set_busy());
            let more = open(&slots, Source::Loopback, 11).await.unwrap();
            assert!(is_gone(&oldest) && !oldest.set_busy(), "a late request does not start");
            assert!(!is_gone(&first) && !is_gone(&newest));
            assert!(newest.set_busy() && more.set_busy());
            assert!(slots.take(Source::Loopback).await.is_none(), "all are in use");
            first.set_idle(Instant::now());
            assert!(slots.take(Source::Loopback).await.is_some());
        });
    }

    #[test]
    fn address_is_limited_to_its_share_and_evicts_its_own_connections() {
        run(async {
            let slots = ConnectionSlots::new(8);
            let ours = open(&slots, Source::Loopback, 0).await.unwrap();
            let one = open(&slots, remote(1), 1).await.unwrap();
            let two = open(&slots, remote(1), 2).await.unwrap();
            let three = open(&slots, remote(1), 3).await.unwrap();
            assert!(is_gone(&one) && !is_gone(&two) && !is_gone(&three) && !is_gone(&ours));
            assert!(two.set_busy() && three.set_busy());
            assert!(slots.take(remote(1)).await.is_none(), "its share is in use");
            for last in 2..=5 {
                assert!(open(&slots, remote(last), 20).await.is_some());
            }
            assert!(open(&slots, Source::Loopback, 30).await.is_some());
            assert!(!is_gone(&ours), "the table is full now");
            assert!(open(&slots, remote(6), 40).await.is_some());
            assert!(is_gone(&ours), "an address without connections evicts the oldest of all");
        });
    }

    #[test]
    fn slot_is_released_for_every_way_in_which_a_connection_ends() {
        run(async {
            let slots = ConnectionSlots::new(1);
            for _ in 0..3 {
                drop(slots.take(remote(1)).await.unwrap());
            }
            let slot = slots.take(Source::Loopback).await.unwrap();
            slots.evict_one();
            assert!(!slot.idle.set_busy(), "before its task started");
            drop(slot);
            let table = slots.table.lock();
            assert!(table.open.is_empty() && table.sources.is_empty());
        });
    }

    fn after(state: &IdleState, ms: u64) -> Instant {
        state.origin + Duration::from_millis(ms)
    }

    fn idle() -> IdleState {
        let origin = Instant::now();
        IdleState::new(origin, origin)
    }

    #[test]
    fn connection_is_idle_between_requests_and_orders_by_idle_start() {
        let state = idle();
        let first = state.idle_since().unwrap();
        assert!(state.set_busy() && state.set_busy(), "more bytes of the same request");
        assert_eq!(state.idle_since(), None);
        state.set_idle(after(&state, 5));
        let second = state.idle_since().unwrap();
        assert!(first < second);
        state.set_idle(after(&state, 9));
        assert_eq!(state.idle_since(), Some(second), "it was idle already");
    }

    #[test]
    fn intermediate_request_prevents_retirement() {
        let state = idle();
        let before = state.idle_since().unwrap();
        assert!(state.set_busy());
        assert!(!state.retire(before), "it is busy");
        state.set_idle(after(&state, 1));
        assert!(!state.retire(before), "it was used since");
        assert!(!state.is_retired() && state.retire(state.idle_since().unwrap()));
    }

    #[test]
    fn no_request_starts_on_a_retired_connection() {
        let state = idle();
        assert!(state.retire(state.idle_since().unwrap()));
        assert!(!state.set_busy());
        state.set_idle(after(&state, 1));
        assert!(state.is_retired() && state.idle_since().is_none());
    }

    #[test]
    fn concurrent_request_and_retirement_have_one_winner() {
        for _ in 0..500 {
            let (state, gate) = (idle(), std::sync::Barrier::new(2));
            let since = state.idle_since().unwrap();
            let (begun, retired) = std::thread::scope(|scope| {
                let begin = scope.spawn(|| {
                    gate.wait();
                    state.set_busy()
                });
                gate.wait();
                let retired = state.retire(since);
                (begin.join().unwrap(), retired)
            });
            assert_ne!(begun, retired);
        }
    }
}
