//! How many bytes are held over all calls: by strict (`max_held_total_bytes`), and by warn for
//! judging that is behind its replies.
//!
//! ```text
//! max_held_total_bytes = a part for each server (held_share_bytes) … + what all have in common
//! ```
//!
//! A call takes of its server's own part first, then of what is common, as its bytes come. So a
//! server whose answers are large or slow can use up what is common, but never what another one has
//! for itself. Past both a call waits, bounded, in the line of its server: older calls come first,
//! so that some of them end; where nothing but waiting calls holds the server's part, the youngest
//! gives way. Servers take turns at what becomes free in common.
//!
//! The counts are atomics, of which a small answer touches its own server's alone; only a call that
//! must wait touches anything heavier.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use thiserror::Error;
use tokio::sync::oneshot;

/// How long a call waits for room. Less than a stdio upstream waits for a call that is alone with it
/// to take its answer; the other calls of that server do not wait for this one.
pub const MAX_WAIT: Duration = Duration::from_secs(4);
/// How long the oldest call waits before a younger one has to give way to it.
const GIVE_WAY_AFTER: Duration = Duration::from_millis(500);

/// Bytes of answers that warn has forwarded and not judged yet, over all calls. Where judging falls
/// further behind, replies wait for it: more would only be more memory, and colder.
pub const MAX_JUDGING_BYTES: u64 = 32 << 20;

/// What each of so many servers has for itself where the config does not say: half of all is divided
/// between them, but none needs more than one answer may have.
#[must_use]
pub fn usual_share(total: u64, servers: usize, one_answer: u64) -> u64 {
    (total / 2 / (servers.max(1) as u64)).min(one_answer)
}

/// The room that all calls have.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    total: u64,
    common: Part,
    rooms: Box<[Room]>,
    names: HashMap<Arc<str>, usize>,
    /// Calls that wait, over all servers.
    waiting: AtomicUsize,
    /// The server that is asked first when something common becomes free.
    turn: AtomicUsize,
}

/// Bytes, and how many of them are taken. On a line of cache of its own: others write theirs.
#[derive(Debug)]
struct Part {
    limit: u64,
    used: CachePadded<AtomicU64>,
}

/// One server's part, and its queue. The first is for servers that are not in the config.
#[derive(Debug)]
struct Room {
    own: Part,
    /// What its calls have taken of what is common.
    of_common: AtomicU64,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    tickets: u64,
    /// By ticket: the older the call, the earlier.
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    since: Instant,
    bytes: u64,
    /// What it holds already.
    holds: u64,
    sender: oneshot::Sender<Result<Taken, WhyNoRoom>>,
}

/// Room that was taken, by where it has to go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    own: u64,
    common: u64,
}

/// Why a call gets no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNoRoom {
    /// None was free within [`MAX_WAIT`].
    Late,
    /// All that held something waited for each other, and this was the youngest.
    GivesWay,
}

impl std::fmt::Display for WhyNoRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Late => write!(f, "none was free within {MAX_WAIT:?}"),
            Self::GivesWay => f.write_str("this call gave way to an older one of this server"),
        }
    }
}

/// No room for a call's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "no room to hold its answer until it is judged: calls of this server hold {held} bytes, of which \
     {own} are its own (held_share_bytes) and the rest is common (max_held_total_bytes {total} for \
     all), and {why}; ask for less at a time, or raise max_held_total_bytes"
)]
pub struct OverBudget {
    held: u64,
    own: u64,
    total: u64,
    why: WhyNoRoom,
}

impl OverBudget {
    /// Why there was none.
    #[must_use]
    pub fn why(&self) -> WhyNoRoom {
        self.why
    }
}

impl Part {
    fn new(limit: u64) -> Self {
        Self { limit, used: CachePadded::new(AtomicU64::new(0)) }
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    /// Takes as much of `bytes` as there is.
    fn take_some(&self, bytes: u64) -> u64 {
        let mut took = 0;
        let take = |used: u64| {
            took = bytes.min(self.limit.saturating_sub(used));
            (took > 0).then(|| used + took)
        };
        match self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
            Ok(_) => took,
            Err(_) => 0,
        }
    }

    /// Takes all of `bytes` or nothing.
    fn take(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    fn give(&self, bytes: u64) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::SeqCst);
        }
    }
}

impl Room {
    fn new(own: u64) -> Self {
        Self { own: Part::new(own), of_common: AtomicU64::new(0), line: Mutex::default() }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }

    /// What its calls hold.
    fn held(&self) -> u64 {
        self.own.used() + self.of_common.load(Ordering::SeqCst)
    }
}

impl MemoryBudget {
    /// A budget of `total` bytes, of which each of `servers` has `own` for itself, as far as that
    /// goes.
    #[must_use]
    pub fn new(total: u64, own: u64, servers: impl IntoIterator<Item = Arc<str>>) -> Self {
        let names: HashMap<Arc<str>, usize> = servers.into_iter().zip(1..).collect();
        let count = names.len() as u64;
        let own = own.min(total.checked_div(count).unwrap_or_default());
        let parts = vec![own; names.len()];
        Self::of(total, names, &parts)
    }

    /// A budget of `total` bytes, of which each of these parts has so many for itself; not more than `total` together.
    #[must_use]
    pub fn of_parts(total: u64, parts: &[(&str, u64)]) -> Self {
        let names = parts.iter().map(|(name, _)| Arc::<str>::from(*name));
        let names: HashMap<Arc<str>, usize> = names.zip(1..).collect();
        let own: Vec<u64> = parts.iter().map(|(_, own)| *own).collect();
        Self::of(total, names, &own)
    }

    /// One of rooms with so much each, the first of which is number 1 among `names`.
    fn of(total: u64, names: HashMap<Arc<str>, usize>, own: &[u64]) -> Self {
        let named = own.iter().map(|own| Room::new(*own));
        let rooms = std::iter::once(Room::new(0)).chain(named).collect();
        let shared = Shared {
            total,
            common: Part::new(total.saturating_sub(own.iter().sum())),
            rooms,
            names,
            waiting: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The budget of another config: this one, with what is held of it, where that says the same.
    #[must_use]
    pub fn next(&self, next: Self) -> Self {
        let (before, after) = (&self.shared, &next.shared);
        let own = |shared: &Shared| shared.rooms.last().map(|room| room.own.limit);
        let servers = |shared: &Shared| shared.names.keys().cloned().collect::<BTreeSet<_>>();
        let same = (before.total, own(before)) == (after.total, own(after))
            && servers(before) == servers(after);
        if same { self.clone() } else { next }
    }

    /// A share of the budget for a call of that server, empty at first.
    #[must_use]
    pub fn share(&self, server: &str) -> Share {
        let room = self.shared.names.get(server).copied().unwrap_or_default();
        Share { shared: Arc::clone(&self.shared), room, taken: Taken::default(), ticket: None }
    }

    /// Bytes that are held now.
    #[must_use]
    pub fn used(&self) -> u64 {
        let shared = &self.shared;
        shared.rooms.iter().map(|room| room.own.used()).sum::<u64>() + shared.common.used()
    }

    /// Most bytes that may be.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.shared.total
    }

    /// Most bytes that all calls of that server may hold: what it has for itself, and all that is common.
    #[must_use]
    pub fn limit_of(&self, server: &str) -> u64 {
        let shared = &self.shared;
        let room = shared.names.get(server).and_then(|room| shared.rooms.get(*room));
        room.map_or(0, |room| room.own.limit) + shared.common.limit
    }
}

impl Shared {
    fn try_take(&self, room: &Room, bytes: u64) -> Option<Taken> {
        let own = room.own.take_some(bytes);
        let common = bytes - own;
        if common > 0 && !self.common.take(common) {
            self.give(room, Taken { own, common: 0 });
            return None;
        }
        if common > 0 {
            room.of_common.fetch_add(common, Ordering::SeqCst);
        }
        Some(Taken { own, common })
    }

    /// Puts room back, and hands it to those who wait.
    fn give(&self, room: &Room, taken: Taken) {
        if taken.common > 0 {
            room.of_common.fetch_sub(taken.common, Ordering::SeqCst);
        }
        room.own.give(taken.own);
        self.common.give(taken.common);
    }

    /// After room was put back. Whoever begins to wait raises the count first and looks then.
    fn serve_waiting(&self, room: &Room, of_common: bool) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.serve(room);
        if of_common {
            let first = self.turn.fetch_add(1, Ordering::Relaxed) % self.rooms.len();
            let (before, from) = self.rooms.split_at(first);
            from.iter().chain(before).for_each(|room| self.serve(room));
        }
    }

    /// Gives room to those who wait in a line, the oldest first, as far as it goes.
    fn serve(&self, room: &Room) {
        let mut line = room.line();
        while let Some(first) = line.waiting.front() {
            let Some(taken) = self.try_take(room, first.bytes) else { break };
            if let Some(first) = self.leaves(line.waiting.pop_front())
                && first.sender.send(Ok(taken)).is_err()
            {
                self.give(room, taken);
            }
        }
        let Some(first) = line.waiting.front() else { return };
        let held_waiting: u64 = line.waiting.iter().map(|waiter| waiter.holds).sum();
        // Nobody else of this server can let go of anything.
        let stuck = line.waiting.len() > 1 && held_waiting >= room.held();
        if stuck
            && first.since.elapsed() >= GIVE_WAY_AFTER
            && let Some(youngest) = self.leaves(line.waiting.pop_back())
        {
            // What it holds comes back when its call ends.
            let _ = youngest.sender.send(Err(WhyNoRoom::GivesWay));
        }
    }

    /// One waits no more.
    fn leaves(&self, waiter: Option<Waiter>) -> Option<Waiter> {
        if waiter.is_some() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        waiter
    }
}

/// What one call holds; given back when dropped.
#[derive(Debug)]
pub struct Share {
    shared: Arc<Shared>,
    room: usize,
    taken: Taken,
    /// Its place among the calls of its server that had to wait.
    ticket: Option<u64>,
}

impl Share {
    fn room(&self) -> Option<&Room> {
        self.shared.rooms.get(self.room)
    }

    /// Takes room for `bytes` more, waiting at most [`MAX_WAIT`].
    ///
    /// # Errors
    ///
    /// [`OverBudget`] when none came free.
    pub async fn grow(&mut self, bytes: u64) -> Result<(), OverBudget> {
        if self.try_grow(bytes) {
            return Ok(());
        }
        match self.wait_for(bytes).await {
            Ok(taken) => {
                self.add(taken);
                Ok(())
            }
            Err(why) => {
                let (held, own) = self.room().map_or((0, 0), |room| (room.held(), room.own.limit));
                Err(OverBudget { held, own, total: self.shared.total, why })
            }
        }
    }

    /// Takes room for `bytes` more if there is some at once.
    pub fn try_grow(&mut self, bytes: u64) -> bool {
        let taken = self.room().and_then(|room| self.shared.try_take(room, bytes));
        taken.inspect(|taken| self.add(*taken)).is_some()
    }

    fn add(&mut self, taken: Taken) {
        self.taken.own += taken.own;
        self.taken.common += taken.common;
    }

    async fn wait_for(&mut self, bytes: u64) -> Result<Taken, WhyNoRoom> {
        let shared = Arc::clone(&self.shared);
        let Some(room) = shared.rooms.get(self.room) else { return Err(WhyNoRoom::Late) };
        let (sender, granted) = oneshot::channel();
        let ticket = self.ticket.unwrap_or_else(|| {
            let mut line = room.line();
            line.tickets += 1;
            line.tickets
        });
        self.ticket = Some(ticket);
        let mut granted = Granted { shared: &shared, room, ticket, granted };
        shared.waiting.fetch_add(1, Ordering::SeqCst);
        {
            let mut line = room.line();
            let at = line.waiting.partition_point(|waiter| waiter.ticket < ticket);
            let (since, holds) = (Instant::now(), self.taken.own + self.taken.common);
            line.waiting.insert(at, Waiter { ticket, since, bytes, holds, sender });
        }
        // What came free before it stood in the line.
        shared.serve(room);
        if let Ok(told) = tokio::time::timeout(GIVE_WAY_AFTER, &mut granted.granted).await {
            return told.unwrap_or(Err(WhyNoRoom::Late));
        }
        // It may be that nobody but waiting calls holds anything.
        shared.serve(room);
        match tokio::time::timeout(MAX_WAIT - GIVE_WAY_AFTER, &mut granted.granted).await {
            Ok(told) => told.unwrap_or(Err(WhyNoRoom::Late)),
            Err(_) => Err(WhyNoRoom::Late),
        }
    }
}

/// Waits for room; what comes when nobody waits any more goes back.
struct Granted<'a> {
    shared: &'a Shared,
    room: &'a Room,
    ticket: u64,
    granted: oneshot::Receiver<Result<Taken, WhyNoRoom>>,
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        {
            let mut line = self.room.line();
            let at = line.waiting.iter().position(|waiter| waiter.ticket == self.ticket);
            self.shared.leaves(at.and_then(|at| line.waiting.remove(at)));
        }
        self.granted.close();
        if let Ok(Ok(taken)) = self.granted.try_recv() {
            self.shared.give(self.room, taken);
        }
        self.shared.serve_waiting(self.room, true);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.taken != Taken::default()
            && let Some(room) = self.room()
        {
            self.shared.give(room, self.taken);
            self.shared.serve_waiting(room, self.taken.common > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test)
    }

    fn budget(total: u64, own: u64) -> MemoryBudget {
        MemoryBudget::new(total, own, ["a", "b"].map(Arc::from))
    }

    fn used(budget: &MemoryBudget) -> u64 {
        let rooms = budget.shared.rooms.iter().map(|room| room.own.used()).sum::<u64>();
        rooms + budget.shared.common.used()
    }

    #[test]
    fn one_servers_answers_leave_another_its_part() {
        run(async {
            let budget = budget(100, 20);
            let mut large = budget.share("a");
            large.grow(80).await.unwrap();
            let mut more = budget.share("a");
            let full = more.grow(1).await.unwrap_err();
            assert_eq!(
                full.to_string(),
                "no room to hold its answer until it is judged: calls of this server hold 80 bytes, \
                 of which 20 are its own (held_share_bytes) and the rest is common \
                 (max_held_total_bytes 100 for all), and none was free within 4s; ask for less at a \
                 time, or raise max_held_total_bytes"
            );
            let mut other = budget.share("b");
            assert!(other.try_grow(20) && !other.try_grow(1), "its part, and no more");
            assert!(!budget.share("nobody's").try_grow(1), "who has no part has what is common");
            drop((large, other));
            assert_eq!(used(&budget), 0);
            assert!(budget.share("b").try_grow(80), "its part and all that is common");
        });
    }

    #[test]
    fn parts_may_be_of_any_size_and_the_rest_is_common() {
        let budget = MemoryBudget::of_parts(100, &[("a", 10), ("b", 30)]);
        assert_eq!(["a", "b", ""].map(|part| budget.limit_of(part)), [70, 90, 60]);
        let mut others = budget.share("");
        assert!(others.try_grow(60) && !others.try_grow(1));
        for (part, own) in [("a", 10), ("b", 30)] {
            let mut share = budget.share(part);
            assert!(share.try_grow(own) && !share.try_grow(1), "{part}");
        }
    }

    #[test]
    fn a_call_waits_until_another_lets_go_and_older_calls_come_first() {
        run(async {
            let budget = budget(100, 0);
            let mut first = budget.share("a");
            first.grow(60).await.unwrap();
            let (mut second, mut third) = (budget.share("a"), budget.share("a"));
            second.grow(10).await.unwrap();
            {
                let mut older = std::pin::pin!(second.grow(60));
                assert!(poll!(&mut older).is_pending());
                let mut younger = std::pin::pin!(third.grow(40));
                assert!(poll!(&mut younger).is_pending());
                drop(first);
                assert!(poll!(&mut younger).is_pending());
                older.await.unwrap();
            }
            drop(second);
            third.grow(100).await.unwrap();
            assert_eq!(used(&budget), 100);
        });
    }

    #[test]
    fn where_all_wait_for_each_other_the_youngest_gives_way() {
        run(async {
            let budget = MemoryBudget::new(100, 50, ["a".into()]);
            let (mut older, mut younger) = (budget.share("a"), budget.share("a"));
            older.grow(50).await.unwrap();
            younger.grow(50).await.unwrap();
            let mut older_waits = std::pin::pin!(older.grow(10));
            assert!(poll!(&mut older_waits).is_pending());
            let refused = younger.grow(10).await.unwrap_err();
            assert_eq!(refused.why, WhyNoRoom::GivesWay);
            drop(younger);
            older_waits.await.unwrap();
        });
    }

    #[test]
    fn a_waiting_call_that_is_dropped_keeps_nothing_and_holds_nobody_up() {
        run(async {
            let budget = budget(100, 0);
            let mut first = budget.share("a");
            first.grow(100).await.unwrap();
            let (mut gone, mut second) = (budget.share("b"), budget.share("b"));
            {
                let mut waits = Box::pin(gone.grow(100));
                assert!(poll!(&mut waits).is_pending());
                let mut next = std::pin::pin!(second.grow(70));
                assert!(poll!(&mut next).is_pending());
                drop(first);
                // It has its room already, and never takes it.
                drop(waits);
                next.await.unwrap();
            }
            assert_eq!((used(&budget), budget.shared.waiting.load(Ordering::SeqCst)), (70, 0));
        });
    }

    #[test]
    fn what_can_never_fit_is_refused_and_gives_nothing_back() {
        let budget = budget(100, 10);
        let mut share = budget.share("a");
        assert!(!share.try_grow(91) && !share.try_grow(u64::MAX));
        assert!(share.try_grow(90));
        drop(budget.share("b"));
        assert_eq!(used(&budget), 90);
    }

    #[test]
    fn the_usual_share_leaves_half_in_common() {
        let mib = 1 << 20;
        assert_eq!(usual_share(512 * mib, 2, 64 * mib), 64 * mib);
        assert_eq!(usual_share(512 * mib, 10, 64 * mib), 512 * mib / 20);
        assert_eq!(usual_share(1000, 0, 1000), 500);
    }
}
