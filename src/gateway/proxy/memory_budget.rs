//! Memory budgets: bytes of answers held by `strict` (`max_held_total_bytes`), of documents that `warn` validates
//! after the reply, and of large request bodies.
//!
//! ```text
//! max_held_total_bytes = one share per server (held_share_bytes) … + a common pool
//! MAX_BODIES_BYTES     = shares of authenticated clients, the admin and other nodes + a common pool
//! ```
//!
//! As its bytes arrive, a call takes from its server's share first, then from the common pool. A server with large
//! or slow answers can therefore exhaust the pool, but never another server's share. When both are exhausted, the
//! call waits, bounded, in its server's queue, oldest first. If only waiting calls hold the share, the youngest is
//! refused. Freed bytes of the pool are offered to servers round-robin.
//!
//! Counters are atomics, and a small answer touches only those of its own server. Small request bodies need no
//! budget. A large body is charged until its last slice is dropped; anonymous clients have no share, which
//! preserves those of the others.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_utils::CachePadded;
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::message::SMALL_MESSAGE_BYTES;
use parking_lot::{Mutex, MutexGuard};
use thiserror::Error;
use tokio::sync::oneshot;

use crate::node_directory::MAX_FORWARDED_BYTES;

/// Maximum wait for memory. It is shorter than the time that a stdio upstream waits for one call to read its answer;
/// other calls of that server are not delayed.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(4);
/// Time after which a younger call is refused in favor of the oldest.
const GIVE_WAY_AFTER: Duration = Duration::from_millis(500);

/// Maximum number of bytes forwarded by `warn` and not validated yet, over all calls. Beyond that replies wait for
/// validation: a longer backlog would only cost memory and cache misses.
pub const MAX_JUDGING_BYTES: u64 = 32 << 20;

/// Default share of a server: half of the total, divided by the number of servers, but at most the size of one
/// maximum answer.
pub fn usual_share(total: u64, servers: usize, one_answer: u64) -> u64 {
    (total / 2 / (servers.max(1) as u64)).min(one_answer)
}

/// A budget with one share per server. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    total: u64,
    common: Part,
    servers: Box<[ServerBudget]>,
    names: HashMap<Arc<str>, usize>,
    /// Number of waiting calls, over all servers.
    waiting: AtomicUsize,
    /// Next server to be served from the common pool (round-robin).
    turn: AtomicUsize,
}

/// Limit and usage, on a cache line of its own, since other parts are written concurrently.
#[derive(Debug)]
struct Part {
    limit: u64,
    used: CachePadded<AtomicU64>,
}

/// Share and queue of one server. The first entry serves all servers that are not configured.
#[derive(Debug)]
struct ServerBudget {
    own: Part,
    /// Bytes of the common pool held by the server's calls.
    of_common: AtomicU64,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    tickets: u64,
    /// Ordered by ticket: older calls first.
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    since: Instant,
    bytes: u64,
    /// Bytes that the waiting call already holds.
    holds: u64,
    sender: oneshot::Sender<Result<Taken, BudgetFault>>,
}

/// Bytes taken, by origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    own: u64,
    common: u64,
}

/// Reason why a call does not get memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetFault {
    /// No memory was released within [`MAX_WAIT`].
    TimedOut,
    /// All holders waited for each other, and this call was the youngest.
    Deadlock,
}

impl std::fmt::Display for BudgetFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TimedOut => write!(f, "none was free within {MAX_WAIT:?}"),
            Self::Deadlock => f.write_str("this call yielded to an older one of this server"),
        }
    }
}

/// No memory for a call's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "no memory to hold its answer until it is validated: calls of this server hold {held} bytes, of which \
     {own} are its own (held_share_bytes) and the rest is common (max_held_total_bytes {total} for \
     all), and {why}; ask for less at a time, or raise max_held_total_bytes"
)]
pub(crate) struct OverBudget {
    held: u64,
    own: u64,
    total: u64,
    why: BudgetFault,
}

impl OverBudget {
    pub(crate) fn why(&self) -> BudgetFault {
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

    /// Takes as many of `bytes` as are available.
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

impl ServerBudget {
    fn new(own: u64) -> Self {
        Self { own: Part::new(own), of_common: AtomicU64::new(0), line: Mutex::default() }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }

    /// Bytes held by the server's calls.
    fn held(&self) -> u64 {
        self.own.used() + self.of_common.load(Ordering::SeqCst)
    }
}

impl MemoryBudget {
    /// Budget of `total` bytes with a share of `own` for each of `servers`, as far as the total suffices.
    pub fn new(total: u64, own: u64, servers: impl IntoIterator<Item = Arc<str>>) -> Self {
        let names: HashMap<Arc<str>, usize> = servers.into_iter().zip(1..).collect();
        let count = names.len() as u64;
        let own = own.min(total.checked_div(count).unwrap_or_default());
        let parts = vec![own; names.len()];
        Self::of(total, names, &parts)
    }

    /// Budget of `total` bytes with these named shares, whose sum must not exceed `total`.
    pub(crate) fn of_parts(total: u64, parts: &[(&str, u64)]) -> Self {
        let names = parts.iter().map(|(name, _)| Arc::<str>::from(*name));
        let names: HashMap<Arc<str>, usize> = names.zip(1..).collect();
        let own: Vec<u64> = parts.iter().map(|(_, own)| *own).collect();
        Self::of(total, names, &own)
    }

    /// Budget with these shares, numbered from 1 in `names`.
    fn of(total: u64, names: HashMap<Arc<str>, usize>, own: &[u64]) -> Self {
        let named = own.iter().map(|own| ServerBudget::new(*own));
        let servers = std::iter::once(ServerBudget::new(0)).chain(named).collect();
        let shared = Shared {
            total,
            common: Part::new(total.saturating_sub(own.iter().sum())),
            servers,
            names,
            waiting: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Budget for a new config: this one, with its usage, if it is unchanged.
    pub fn next(&self, next: Self) -> Self {
        let (before, after) = (&self.shared, &next.shared);
        let own = |shared: &Shared| shared.servers.last().map(|budget| budget.own.limit);
        let servers = |shared: &Shared| shared.names.keys().cloned().collect::<BTreeSet<_>>();
        let same = (before.total, own(before)) == (after.total, own(after))
            && servers(before) == servers(after);
        if same { self.clone() } else { next }
    }

    /// Empty holding for a call of this server.
    pub(crate) fn share(&self, server: &str) -> Share {
        let budget = self.shared.names.get(server).copied().unwrap_or_default();
        Share { shared: Arc::clone(&self.shared), budget, taken: Taken::default(), ticket: None }
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        let shared = &self.shared;
        shared.servers.iter().map(|budget| budget.own.used()).sum::<u64>() + shared.common.used()
    }

    /// Total bytes.
    pub fn limit(&self) -> u64 {
        self.shared.total
    }

    /// Maximum number of bytes for all calls of this server: its share and the common pool.
    pub(crate) fn limit_of(&self, server: &str) -> u64 {
        let shared = &self.shared;
        let budget = shared.names.get(server).and_then(|budget| shared.servers.get(*budget));
        budget.map_or(0, |budget| budget.own.limit) + shared.common.limit
    }
}

impl Shared {
    fn try_take(&self, budget: &ServerBudget, bytes: u64) -> Option<Taken> {
        let own = budget.own.take_some(bytes);
        let common = bytes - own;
        if common > 0 && !self.common.take(common) {
            self.give(budget, Taken { own, common: 0 });
            return None;
        }
        if common > 0 {
            budget.of_common.fetch_add(common, Ordering::SeqCst);
        }
        Some(Taken { own, common })
    }

    /// Returns bytes and serves waiting calls.
    fn give(&self, budget: &ServerBudget, taken: Taken) {
        if taken.common > 0 {
            budget.of_common.fetch_sub(taken.common, Ordering::SeqCst);
        }
        budget.own.give(taken.own);
        self.common.give(taken.common);
    }

    /// Serves waiting calls after a return. A call increments `waiting` before its last check, so that no return is missed.
    fn serve_waiting(&self, budget: &ServerBudget, of_common: bool) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.serve(budget);
        if of_common {
            let first = self.turn.fetch_add(1, Ordering::Relaxed) % self.servers.len();
            let (before, from) = self.servers.split_at(first);
            from.iter().chain(before).for_each(|budget| self.serve(budget));
        }
    }

    /// Serves a queue, oldest first, as far as the bytes suffice.
    fn serve(&self, budget: &ServerBudget) {
        let mut line = budget.line();
        while let Some(first) = line.waiting.front() {
            let Some(taken) = self.try_take(budget, first.bytes) else { break };
            if let Some(first) = self.leaves(line.waiting.pop_front())
                && first.sender.send(Ok(taken)).is_err()
            {
                self.give(budget, taken);
            }
        }
        let Some(first) = line.waiting.front() else { return };
        let held_waiting: u64 = line.waiting.iter().map(|waiter| waiter.holds).sum();
        // All bytes of this server are held by waiting calls.
        let stuck = line.waiting.len() > 1 && held_waiting >= budget.held();
        if stuck
            && first.since.elapsed() >= GIVE_WAY_AFTER
            && let Some(youngest) = self.leaves(line.waiting.pop_back())
        {
            // The bytes of the youngest call are returned when it ends.
            let _ = youngest.sender.send(Err(BudgetFault::Deadlock));
        }
    }

    /// Removes a waiting call.
    fn leaves(&self, waiter: Option<Waiter>) -> Option<Waiter> {
        if waiter.is_some() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        waiter
    }
}

/// Bytes held by one call; returned on drop.
#[derive(Debug)]
pub struct Share {
    shared: Arc<Shared>,
    budget: usize,
    taken: Taken,
    /// Rank among the waiting calls of the server.
    ticket: Option<u64>,
}

impl Share {
    fn budget(&self) -> Option<&ServerBudget> {
        self.shared.servers.get(self.budget)
    }

    /// Takes `bytes` more, waiting at most [`MAX_WAIT`].
    pub(crate) async fn grow(&mut self, bytes: u64) -> Result<(), OverBudget> {
        if self.try_grow(bytes) {
            return Ok(());
        }
        match self.wait_for(bytes).await {
            Ok(taken) => {
                self.add(taken);
                Ok(())
            }
            Err(why) => {
                let (held, own) =
                    self.budget().map_or((0, 0), |budget| (budget.held(), budget.own.limit));
                Err(OverBudget { held, own, total: self.shared.total, why })
            }
        }
    }

    /// Takes `bytes` more if they are available immediately.
    pub(crate) fn try_grow(&mut self, bytes: u64) -> bool {
        let taken = self.budget().and_then(|budget| self.shared.try_take(budget, bytes));
        taken.inspect(|taken| self.add(*taken)).is_some()
    }

    fn add(&mut self, taken: Taken) {
        self.taken.own += taken.own;
        self.taken.common += taken.common;
    }

    async fn wait_for(&mut self, bytes: u64) -> Result<Taken, BudgetFault> {
        let shared = Arc::clone(&self.shared);
        let Some(budget) = shared.servers.get(self.budget) else {
            return Err(BudgetFault::TimedOut);
        };
        let (sender, granted) = oneshot::channel();
        let ticket = self.ticket.unwrap_or_else(|| {
            let mut line = budget.line();
            line.tickets += 1;
            line.tickets
        });
        self.ticket = Some(ticket);
        let mut granted = Granted { shared: &shared, budget, ticket, granted };
        shared.waiting.fetch_add(1, Ordering::SeqCst);
        {
            let mut line = budget.line();
            let at = line.waiting.partition_point(|waiter| waiter.ticket < ticket);
            let (since, holds) = (Instant::now(), self.taken.own + self.taken.common);
            line.waiting.insert(at, Waiter { ticket, since, bytes, holds, sender });
        }
        // Bytes may have been returned before the call joined the queue.
        shared.serve(budget);
        if let Ok(granted_bytes) = tokio::time::timeout(GIVE_WAY_AFTER, &mut granted.granted).await
        {
            return granted_bytes.unwrap_or(Err(BudgetFault::TimedOut));
        }
        // All bytes may be held by waiting calls.
        shared.serve(budget);
        match tokio::time::timeout(MAX_WAIT - GIVE_WAY_AFTER, &mut granted.granted).await {
            Ok(granted_bytes) => granted_bytes.unwrap_or(Err(BudgetFault::TimedOut)),
            Err(_) => Err(BudgetFault::TimedOut),
        }
    }
}

/// Waits for bytes; returns them if the wait is dropped.
struct Granted<'a> {
    shared: &'a Shared,
    budget: &'a ServerBudget,
    ticket: u64,
    granted: oneshot::Receiver<Result<Taken, BudgetFault>>,
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        {
            let mut line = self.budget.line();
            let at = line.waiting.iter().position(|waiter| waiter.ticket == self.ticket);
            self.shared.leaves(at.and_then(|at| line.waiting.remove(at)));
        }
        self.granted.close();
        if let Ok(Ok(taken)) = self.granted.try_recv() {
            self.shared.give(self.budget, taken);
        }
        self.shared.serve_waiting(self.budget, true);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.taken != Taken::default()
            && let Some(budget) = self.budget()
        {
            self.shared.give(budget, self.taken);
            self.shared.serve_waiting(budget, self.taken.common > 0);
        }
    }
}

/// Maximum size of a body that needs no budget; a retained message id may be a slice of it.
pub const SMALL_BODY_BYTES: usize = SMALL_MESSAGE_BYTES;
/// Budget for all larger bodies, in bytes.
pub const MAX_BODIES_BYTES: u64 = 128 << 20;
/// Granularity of charges.
const STEP_BYTES: usize = 256 * 1024;

/// Share of anonymous clients: none.
const ANYBODY: &str = "";
/// Share of authenticated clients other than the admin.
const KNOWN: &str = "known";
const KNOWN_BYTES: u64 = 24 << 20;
const ADMIN: &str = "admin";
const ADMIN_BYTES: u64 = 20 << 20;
/// Share of other nodes, for any principal.
const NODES: &str = "nodes";
const NODES_BYTES: u64 = 20 << 20;
const PARTS: [(&str, u64); 3] = [(KNOWN, KNOWN_BYTES), (ADMIN, ADMIN_BYTES), (NODES, NODES_BYTES)];

/// The common pool is the other half.
const _: () = assert!(KNOWN_BYTES + ADMIN_BYTES + NODES_BYTES == MAX_BODIES_BYTES / 2);
/// Each share holds one body of maximum size.
const _: () = assert!(ADMIN_BYTES >= (MAX_FORWARDED_BYTES + STEP_BYTES) as u64);
const _: () = assert!(KNOWN_BYTES >= ADMIN_BYTES && NODES_BYTES >= ADMIN_BYTES);

/// No memory for a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "exceeds the memory budget: concurrent bodies of more than {SMALL_BODY_BYTES} bytes may have {max} bytes in total, \
     and {}. The request was not processed: send fewer or smaller ones at a time, or retry later",
    fault_text(.why)
)]
pub struct BodiesFull {
    /// Limit for all senders with the same share.
    max: u64,
    why: BudgetFault,
}

fn fault_text(why: &BudgetFault) -> String {
    match why {
        BudgetFault::TimedOut => format!("none was free within {MAX_WAIT:?}"),
        BudgetFault::Deadlock => "this one yielded to an older one".to_owned(),
    }
}

/// Budget for large request bodies.
#[derive(Clone, Debug)]
pub struct RequestBodies(MemoryBudget);

impl Default for RequestBodies {
    fn default() -> Self {
        Self(MemoryBudget::of_parts(MAX_BODIES_BYTES, &PARTS))
    }
}

impl RequestBodies {
    /// Budget for a body of this principal.
    pub fn charge(&self, principal: &Principal) -> BodyCharge<'_> {
        self.charge_of(match principal {
            Principal::Anonymous => ANYBODY,
            Principal::Admin => ADMIN,
            Principal::Token(_) | Principal::Subject(_) | Principal::Certificate(_) => KNOWN,
        })
    }

    /// Budget for a body from another node.
    pub fn charge_for_node(&self) -> BodyCharge<'_> {
        self.charge_of(NODES)
    }

    /// Budget for a body inside an already charged one; charges nothing.
    pub fn uncharged(&self) -> BodyCharge<'_> {
        BodyCharge { bytes: usize::MAX, ..self.charge_of(ANYBODY) }
    }

    fn charge_of(&self, part: &'static str) -> BodyCharge<'_> {
        BodyCharge { all: &self.0, part, share: None, bytes: SMALL_BODY_BYTES }
    }

    /// Takes all memory, for tests.
    #[doc(hidden)]
    pub fn fill(&self) -> [Share; 4] {
        [ANYBODY, KNOWN, ADMIN, NODES].map(|part| {
            let mut share = self.0.share(part);
            while share.try_grow(1 << 20) {}
            share
        })
    }
}

/// Budget for one body. Touches shared state for a large body only.
#[derive(Debug)]
pub struct BodyCharge<'a> {
    all: &'a MemoryBudget,
    part: &'static str,
    share: Option<Share>,
    /// Bytes covered so far, charged or free.
    bytes: usize,
}

impl BodyCharge<'_> {
    /// Whether a body of this size is covered by the charge.
    pub fn has(&self, bytes: usize) -> bool {
        bytes <= self.bytes
    }

    /// Charges for a body that has reached `bytes`, waiting at most [`MAX_WAIT`]. On error everything taken is returned.
    pub async fn reach(&mut self, bytes: usize) -> Result<(), BodiesFull> {
        if self.has(bytes) {
            return Ok(());
        }
        let more = (bytes - self.bytes).max(STEP_BYTES);
        let share = self.share.get_or_insert_with(|| self.all.share(self.part));
        let grown = share.grow(more as u64).await;
        if let Err(over) = grown {
            // The charge is returned before the response is sent, because sending may take a while.
            (self.share, self.bytes) = (None, SMALL_BODY_BYTES);
            return Err(BodiesFull { max: self.all.limit_of(self.part), why: over.why() });
        }
        self.bytes += more;
        Ok(())
    }

    /// Completes the body. The charge is returned when its last slice is dropped.
    pub fn keep(self, body: Bytes) -> Bytes {
        match self.share {
            None => body,
            Some(share) => Bytes::from_owner(ChargedBody { body, _share: share }),
        }
    }
}

struct ChargedBody {
    body: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for ChargedBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
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
        let own = budget.shared.servers.iter().map(|budget| budget.own.used()).sum::<u64>();
        own + budget.shared.common.used()
    }

    #[test]
    fn server_cannot_use_the_share_of_another_server() {
        run(async {
            let budget = budget(100, 20);
            let mut large = budget.share("a");
            large.grow(80).await.unwrap();
            let mut more = budget.share("a");
            let full = more.grow(1).await.unwrap_err();
            assert_eq!(
                full.to_string(),
                "no memory to hold its answer until it is validated: calls of this server hold 80 bytes, \
                 of which 20 are its own (held_share_bytes) and the rest is common \
                 (max_held_total_bytes 100 for all), and none was free within 4s; ask for less at a \
                 time, or raise max_held_total_bytes"
            );
            let mut other = budget.share("b");
            assert!(other.try_grow(20) && !other.try_grow(1), "its share only");
            assert!(
                !budget.share("nobody's").try_grow(1),
                "a server without a share uses the pool"
            );
            drop((large, other));
            assert_eq!(used(&budget), 0);
            assert!(budget.share("b").try_grow(80), "its share and the whole pool");
        });
    }

    #[test]
    fn shares_of_any_size_leave_the_rest_in_the_pool() {
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
    fn waiting_calls_are_served_oldest_first() {
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
    fn youngest_call_is_refused_on_deadlock() {
        run(async {
            let budget = MemoryBudget::new(100, 50, ["a".into()]);
            let (mut older, mut younger) = (budget.share("a"), budget.share("a"));
            older.grow(50).await.unwrap();
            younger.grow(50).await.unwrap();
            let mut older_waits = std::pin::pin!(older.grow(10));
            assert!(poll!(&mut older_waits).is_pending());
            let refused = younger.grow(10).await.unwrap_err();
            assert_eq!(refused.why, BudgetFault::Deadlock);
            drop(younger);
            older_waits.await.unwrap();
        });
    }

    #[test]
    fn dropped_waiting_call_releases_all_its_memory() {
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
                // The bytes were granted to this call but never taken.
                drop(waits);
                next.await.unwrap();
            }
            assert_eq!((used(&budget), budget.shared.waiting.load(Ordering::SeqCst)), (70, 0));
        });
    }

    #[test]
    fn request_beyond_the_limit_is_refused() {
        let budget = budget(100, 10);
        let mut share = budget.share("a");
        assert!(!share.try_grow(91) && !share.try_grow(u64::MAX));
        assert!(share.try_grow(90));
        drop(budget.share("b"));
        assert_eq!(used(&budget), 90);
    }

    #[test]
    fn default_share_leaves_half_of_the_bytes_in_the_pool() {
        let mib = 1 << 20;
        assert_eq!(usual_share(512 * mib, 2, 64 * mib), 64 * mib);
        assert_eq!(usual_share(512 * mib, 10, 64 * mib), 512 * mib / 20);
        assert_eq!(usual_share(1000, 0, 1000), 500);
    }

    const COMMON: usize = (MAX_BODIES_BYTES / 2) as usize;

    fn known() -> Principal {
        Principal::certificate("ada")
    }

    #[tokio::test]
    async fn large_body_is_charged_until_its_last_slice_is_dropped() {
        let all = RequestBodies::default();
        let mut charge = all.charge(&Principal::Anonymous);
        charge.reach(SMALL_BODY_BYTES).await.unwrap();
        assert_eq!(all.0.used(), 0);
        let mut large = all.charge(&Principal::Anonymous);
        large.reach(SMALL_BODY_BYTES + 1).await.unwrap();
        assert_eq!(all.0.used(), STEP_BYTES as u64);
        large.reach(SMALL_BODY_BYTES + STEP_BYTES).await.unwrap();
        assert_eq!(all.0.used(), STEP_BYTES as u64, "memory was available");
        let mut body = large.keep(Bytes::from(vec![b'x'; SMALL_BODY_BYTES + STEP_BYTES]));
        let piece = body.split_off(10);
        drop(body);
        assert_eq!((all.0.used(), piece[0]), (STEP_BYTES as u64, b'x'));
        drop(piece);
        assert_eq!(all.0.used(), 0);
        let given_up = all.charge(&known());
        drop(given_up);
        assert_eq!(all.0.used(), 0);
    }

    #[tokio::test]
    async fn body_that_is_part_of_a_charged_body_is_not_charged_again() {
        let all = RequestBodies::default();
        let held = all.fill();
        let mut within = all.uncharged();
        within.reach(MAX_FORWARDED_BYTES).await.unwrap();
        let body = within.keep(Bytes::from_static(b"x"));
        drop(held);
        assert_eq!((all.0.used(), &*body), (0, &b"x"[..]));
    }

    #[tokio::test]
    async fn anonymous_bodies_cannot_use_the_shares_of_others() {
        let all = RequestBodies::default();
        let mut strangers = all.charge(&Principal::Anonymous);
        strangers.reach(SMALL_BODY_BYTES + COMMON).await.unwrap();
        let error =
            all.charge(&Principal::Anonymous).reach(SMALL_BODY_BYTES + 1).await.unwrap_err();
        let error = error.to_string();
        assert!(error.contains("may have 67108864 bytes in total, and none was free"), "{error}");
        let [mut known, mut admin] = [known(), Principal::Admin].map(|it| all.charge(&it));
        known.reach(SMALL_BODY_BYTES + KNOWN_BYTES as usize).await.unwrap();
        admin.reach(SMALL_BODY_BYTES + ADMIN_BYTES as usize).await.unwrap();
        let mut node = all.charge_for_node();
        node.reach(SMALL_BODY_BYTES + NODES_BYTES as usize).await.unwrap();
        assert_eq!(all.0.used(), MAX_BODIES_BYTES);
        drop(strangers);
        all.charge(&Principal::Anonymous).reach(SMALL_BODY_BYTES + 1).await.unwrap();
    }

    #[tokio::test]
    async fn authenticated_bodies_leave_admin_and_nodes_a_maximum_body() {
        let all = RequestBodies::default();
        let mut max = all.charge(&known());
        max.reach(SMALL_BODY_BYTES + COMMON + KNOWN_BYTES as usize).await.unwrap();
        for mut charge in [all.charge(&Principal::Admin), all.charge_for_node()] {
            charge.reach(MAX_FORWARDED_BYTES).await.unwrap();
        }
        let error = all.charge(&known()).reach(SMALL_BODY_BYTES + 1).await.unwrap_err();
        assert!(error.to_string().contains("may have 92274688 bytes in total"), "{error}");
    }

    #[tokio::test]
    async fn younger_of_two_deadlocked_bodies_is_refused() {
        let all = RequestBodies::default();
        let [mut older, mut younger] = [(); 2].map(|()| all.charge(&Principal::Anonymous));
        let half = SMALL_BODY_BYTES + COMMON / 2;
        for charge in [&mut older, &mut younger] {
            charge.reach(half).await.unwrap();
        }
        let (grown, refused) = tokio::join!(older.reach(half + 1), younger.reach(half + 1));
        let error = refused.unwrap_err().to_string();
        assert!(
            error.contains("and this one yielded to an older one. The request was not processed"),
            "{error}"
        );
        // The value of the refused charge still exists, but holds no bytes.
        grown.unwrap();
        assert_eq!(all.0.used(), (COMMON / 2 + STEP_BYTES) as u64);
        assert!(!younger.has(half));
    }
}
