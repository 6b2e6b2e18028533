//! How many connections clients may have: over all, and of one address; and which one makes room.
//!
//! Where there is no slot left, the connection that has been idle longest is retired and its task
//! ended: of the newcomer's address first, so that who opens many connections pays for them, else of
//! any. Where none is idle the newcomer is turned away.
//!
//! The table is locked when a connection comes or goes. A request touches the [`IdleState`] of its own
//! connection alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::idle_connections::IdleState;
use crate::downstream::source::Source;

/// One connection, and one more for each so many slots that its source may have, makes room at a time,
/// so that not every newcomer searches the table.
const ROOM_SHARE: usize = 128;
/// A retired connection has this long to be gone.
const ROOM_LIMIT: Duration = Duration::from_secs(1);

/// All connections.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    /// Connections open at once, over all sources.
    pub(super) limit: usize,
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
    idle: Arc<IdleState>,
    /// What serves it, once something does.
    task: Option<AbortHandle>,
}

/// A connection's slot, given back when dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    pub(super) source: Source,
    pub(super) idle: Arc<IdleState>,
}

/// Whether there is a slot.
#[derive(Debug)]
enum Vacancy {
    Free(ConnectionSlot),
    /// Others are about to go.
    Soon,
    /// All are in use.
    None,
}

impl ConnectionSlots {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let (table, left) = (Mutex::default(), Notify::new());
        Arc::new(Self { limit, origin: Instant::now(), table, left })
    }

    /// A slot for a connection from there; `None` while all are in use. For one task only.
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
        tokio::time::timeout(ROOM_LIMIT, found).await.ok().flatten()
    }

    fn vacancy(self: &Arc<Self>, source: Source) -> Vacancy {
        let mut table = self.table.lock();
        let share = source.share(self.limit);
        let of_source = table.sources.get(&source).copied().unwrap_or_default();
        let full = table.open.len() >= self.limit;
        if full || of_source >= share {
            let own = |entry: &Entry| entry.source == source;
            let going = table.make_room(1 + share / ROOM_SHARE, own)
                || full && of_source < share && table.make_room(1, |_| true);
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

    /// Retires the connection that has been idle longest: descriptors are short.
    pub(super) fn make_room(&self) {
        self.table.lock().make_room(1, |_| true);
    }
}

impl Table {
    /// Retires those that have been idle longest, at most `count`; false if none is idle and none is
    /// about to go.
    fn make_room(&mut self, count: usize, of: impl Fn(&Entry) -> bool) -> bool {
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
    /// Names the task that is ended if the connection is retired.
    pub(super) fn served_by(slots: &ConnectionSlots, number: u64, task: AbortHandle) {
        let mut table = slots.table.lock();
        let Some(entry) = table.open.get_mut(&number) else { return };
        // It may have been retired before anything served it.
        if entry.idle.is_retired() {
            task.abort();
        }
        entry.task = Some(task);
    }

    /// What [`ConnectionSlot::served_by`] asks for.
    pub(super) fn name(&self) -> (Arc<ConnectionSlots>, u64) {
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

    /// A task that holds a slot until it is ended.
    fn hold(slot: ConnectionSlot) -> Arc<IdleState> {
        let idle = Arc::clone(&slot.idle);
        let (slots, number) = slot.name();
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
    fn whoever_has_been_idle_longest_makes_room_and_whoever_is_busy_stays() {
        run(async {
            let slots = ConnectionSlots::new(3);
            let first = open(&slots, Source::Loopback, 1).await.unwrap();
            let oldest = open(&slots, Source::Loopback, 7).await.unwrap();
            let newest = open(&slots, Source::Loopback, 9).await.unwrap();
            assert!(first.set_busy());
            let more = open(&slots, Source::Loopback, 11).await.unwrap();
            assert!(is_gone(&oldest) && !oldest.set_busy(), "a late request is not begun");
            assert!(!is_gone(&first) && !is_gone(&newest));
            assert!(newest.set_busy() && more.set_busy());
            assert!(slots.take(Source::Loopback).await.is_none(), "all are in use");
            first.set_idle(Instant::now());
            assert!(slots.take(Source::Loopback).await.is_some());
        });
    }

    #[test]
    fn an_address_has_its_share_and_makes_room_for_itself() {
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
            assert!(!is_gone(&ours), "it is full now");
            assert!(open(&slots, remote(6), 40).await.is_some());
            assert!(is_gone(&ours), "who has none of its own takes the oldest of all");
        });
    }

    #[test]
    fn a_slot_is_given_back_however_it_ends() {
        run(async {
            let slots = ConnectionSlots::new(1);
            for _ in 0..3 {
                drop(slots.take(remote(1)).await.unwrap());
            }
            let slot = slots.take(Source::Loopback).await.unwrap();
            slots.make_room();
            assert!(!slot.idle.set_busy(), "before anything served it");
            drop(slot);
            let table = slots.table.lock();
            assert!(table.open.is_empty() && table.sources.is_empty());
        });
    }
}
