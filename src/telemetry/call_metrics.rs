//! Metrics of calls: each worker counts in memory of its own; whoever shows or exports them adds the
//! workers' up.
//!
//! ```text
//! worker ── Tally ──▶ its own sheet ─┐
//! worker ── Tally ──▶ its own sheet ─┴─ Calls::read ──▶ Totals
//! ```
//!
//! A call is counted by a few additions to memory that no other thread writes, and in the table of its tool under a
//! lock that only a reader of the sums takes beside its worker; without an allocation once its tool was called before. What a call is and when it
//! ends is `proxy`'s.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

pub use super::counted::{Decision, Judged, Outcome, Refusal};
use super::counter::Counter;
use super::histogram::{Durations, Histogram};
use super::tool_calls::{NamedSeries, Series, ToolCalls};
use crate::tool::server_id::ServerId;

/// How long a call took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// In all.
    pub total: Duration,
    /// Of that its upstream, if it was sent.
    pub upstream: Option<Duration>,
    /// Of that it waited for a person's approval, or for its turn as the operator's limits have it.
    pub waited: Duration,
}

/// The calls of all workers.
#[derive(Default)]
pub struct Calls {
    sheets: Mutex<Vec<Arc<Sheet>>>,
    named: Mutex<NamedSeries>,
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

/// Servers whose counts lie together in memory.
const BLOCK: usize = 64;
/// Blocks of one worker.
const BLOCKS: usize = 64;
/// Servers that are counted one by one. Calls to those with a later id are counted among all calls alone.
pub const MAX_SERVERS: usize = BLOCK * BLOCKS;

/// The counts of one worker by server, each made when its server is first called.
#[derive(Debug)]
struct ByServer([OnceLock<Box<ServerBlock>>; BLOCKS]);

#[derive(Debug)]
struct ServerBlock([OnceLock<Box<Counts>>; BLOCK]);

impl Default for ByServer {
    fn default() -> Self {
        Self([const { OnceLock::new() }; BLOCKS])
    }
}

impl Default for ServerBlock {
    fn default() -> Self {
        Self([const { OnceLock::new() }; BLOCK])
    }
}

impl ByServer {
    fn of(&self, server: ServerId) -> Option<&Counts> {
        let (block, at) = (server.index() / BLOCK, server.index() % BLOCK);
        let block = self.0.get(block)?.get_or_init(Box::default);
        Some(block.0.get(at)?.get_or_init(Box::default))
    }

    /// Those that were called, by the index of their ids.
    fn iter(&self) -> impl Iterator<Item = (usize, &Counts)> {
        let blocks = self.0.iter().enumerate();
        blocks.flat_map(|(block, of_block)| {
            let counts = of_block.get().into_iter().flat_map(|it| it.0.iter().enumerate());
            counts.filter_map(move |(at, counts)| Some((block * BLOCK + at, &**counts.get()?)))
        })
    }
}

/// What one worker counts; no other thread writes it.
#[derive(Debug, Default)]
struct Sheet {
    begun: Counter,
    refusals: [Counter; Refusal::ALL.len()],
    decisions: [Counter; Decision::ALL.len()],
    judged: [Counter; Judged::ALL.len()],
    all: Counts,
    servers: ByServer,
    tools: ToolCalls,
}

#[derive(Debug, Default)]
struct Counts {
    outcomes: [Counter; Outcome::ALL.len()],
    total: Histogram,
    /// What the proxy added.
    added: Histogram,
    upstream: Histogram,
}

impl Counts {
    fn ended(&self, outcome: Outcome, took: Took) {
        count(&self.outcomes, outcome as usize);
        self.total.add(took.total);
        let others = took.upstream.unwrap_or_default() + took.waited;
        self.added.add(took.total.saturating_sub(others));
        if let Some(upstream) = took.upstream {
            self.upstream.add(upstream);
        }
    }
}

/// The counters of one worker. It stays on its thread, since no other may write them.
#[derive(Clone, Debug)]
#[expect(clippy::redundant_allocation, reason = "each call has one, made without an atomic step")]
pub struct Tally(Rc<Arc<Sheet>>);

impl Tally {
    /// A call has come.
    pub fn began(&self) {
        self.0.begun.add(1);
    }

    /// A call that had begun has ended; `server` is the one it was sent to.
    pub fn ended(&self, server: Option<ServerId>, outcome: Outcome, took: Took) {
        self.0.all.ended(outcome, took);
        if let Some(counts) = server.and_then(|server| self.0.servers.of(server)) {
            counts.ended(outcome, took);
        }
    }

    /// A call that had begun has ended; `tool` is one that there is, or the method of a request that calls none.
    pub fn tool(&self, server: ServerId, tool: &str, variant: &str, outcome: Outcome) {
        self.0.tools.ended(server, tool, variant, outcome);
    }

    /// A call was refused.
    pub fn refused(&self, why: Refusal) {
        count(&self.0.refusals, why as usize);
    }

    /// Something was decided.
    pub fn decided(&self, what: Decision) {
        count(&self.0.decisions, what as usize);
    }

    /// Something was judged.
    pub fn judged(&self, what: Judged) {
        count(&self.0.judged, what as usize);
    }
}

fn count(counters: &[Counter], at: usize) {
    if let Some(counter) = counters.get(at) {
        counter.add(1);
    }
}

impl Calls {
    /// The counters of one more worker. They are kept when the worker ends, so that the number of calls
    /// of this is bounded by that of threads.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let sheet = Arc::<Sheet>::default();
        self.sheets.lock().push(Arc::clone(&sheet));
        Tally(Rc::new(sheet))
    }

    /// The calls by tool until now, in at most `most` series and one more for each server, variant and outcome.
    #[must_use]
    pub fn by_tool(&self, most: usize) -> BTreeMap<Series, u64> {
        let sheets = self.sheets.lock();
        let tools: Vec<_> = sheets.iter().map(|sheet| &sheet.tools).collect();
        self.named.lock().sums(&tools, most)
    }

    /// The sums until now. Calls that end meanwhile may be in some numbers and not in others.
    #[must_use]
    pub fn read(&self) -> Totals {
        let sheets = self.sheets.lock();
        let mut totals = Totals::default();
        for sheet in sheets.iter() {
            // Ended calls are read before begun ones, so that the difference is never negative.
            totals.all.add(&sheet.all);
            totals.begun += sheet.begun.get();
            add(&mut totals.refusals, &sheet.refusals);
            add(&mut totals.decisions, &sheet.decisions);
            add(&mut totals.judged, &sheet.judged);
            for (server, counts) in sheet.servers.iter() {
                totals.servers.entry(server).or_default().add(counts);
            }
        }
        totals
    }
}

fn add(sums: &mut [u64], counters: &[Counter]) {
    sums.iter_mut().zip(counters).for_each(|(sum, counter)| *sum += counter.get());
}

/// The sums over all workers.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    begun: u64,
    refusals: [u64; Refusal::ALL.len()],
    decisions: [u64; Decision::ALL.len()],
    judged: [u64; Judged::ALL.len()],
    /// All calls.
    pub all: Sums,
    /// Those that were sent, by the index of their server's id.
    servers: BTreeMap<usize, Sums>,
}

impl Totals {
    /// Calls under way.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.begun.saturating_sub(self.all.count())
    }

    /// Those that were sent to that server.
    #[must_use]
    pub fn of_server(&self, server: ServerId) -> Sums {
        self.servers.get(&server.index()).cloned().unwrap_or_default()
    }

    /// Number of calls that were refused for that reason.
    #[must_use]
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refusals.get(why as usize).copied().unwrap_or_default()
    }

    /// Number of such decisions.
    #[must_use]
    pub fn decided(&self, what: Decision) -> u64 {
        self.decisions.get(what as usize).copied().unwrap_or_default()
    }

    /// Number of judgements that came to that.
    #[must_use]
    pub fn judged(&self, what: Judged) -> u64 {
        self.judged.get(what as usize).copied().unwrap_or_default()
    }
}

/// Outcomes and durations of calls.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    outcomes: [u64; Outcome::ALL.len()],
    /// In all.
    pub total: Durations,
    /// What the proxy added.
    pub added: Durations,
    /// What upstreams took.
    pub upstream: Durations,
}

impl Sums {
    fn add(&mut self, counts: &Counts) {
        add(&mut self.outcomes, &counts.outcomes);
        self.total.add(&counts.total);
        self.added.add(&counts.added);
        self.upstream.add(&counts.upstream);
    }

    /// Number of calls that ended.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.outcomes.iter().sum()
    }

    /// Number of calls that ended so.
    #[must_use]
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.outcomes.get(outcome as usize).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::server_id::ServerIds;

    #[test]
    fn what_several_threads_count_is_read_together() {
        let mut ids = ServerIds::default();
        let calls = Calls::default();
        let [idle, busy] = ["idle", "busy"].map(|name| ids.assign(&name.into()));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let tally = calls.tally();
                    for us in 0..1000 {
                        let (total, upstream) = (
                            Duration::from_micros(us + 50),
                            (us > 0).then(|| Duration::from_micros(us)),
                        );
                        tally.began();
                        tally.ended(
                            upstream.map(|_| busy),
                            Outcome::Success,
                            Took { total, upstream, ..Took::default() },
                        );
                    }
                    tally.began();
                    tally.refused(Refusal::Gate);
                    tally.decided(Decision::IntentBlocked);
                    tally.judged(Judged::AnswerPassed);
                });
            }
        });
        let totals = calls.read();
        assert_eq!((totals.all.count(), totals.in_flight()), (3000, 3));
        let (idle, busy) = (totals.of_server(idle), totals.of_server(busy));
        assert_eq!((idle.count(), busy.count()), (0, 2997));
        assert_eq!(totals.all.of(Outcome::Success), 3000);
        let refused = Refusal::ALL.map(|why| totals.refused(why));
        assert_eq!((refused.iter().sum(), totals.refused(Refusal::Gate)), (3, 3));
        let decided = Decision::ALL.map(|what| totals.decided(what));
        assert_eq!((decided.iter().sum(), totals.decided(Decision::IntentBlocked)), (3, 3));
        let judged = Judged::ALL.map(|what| totals.judged(what));
        assert_eq!((judged.iter().sum(), totals.judged(Judged::AnswerPassed)), (3, 3));
        assert!(busy.added.percentile(99).unwrap().abs_diff(50) <= 4);
        assert!(busy.upstream.percentile(50).unwrap().abs_diff(500) <= 32);
        assert_eq!(idle.total.percentile(50), None);
    }

    #[test]
    fn counts_are_of_a_name_and_past_the_bound_of_all_alone() {
        let (calls, mut ids) = (Calls::default(), ServerIds::default());
        let servers: Vec<ServerId> =
            (0..=MAX_SERVERS).map(|at| ids.assign(&at.to_string().into())).collect();
        let tally = calls.tally();
        let counted = [0, BLOCK - 1, BLOCK, MAX_SERVERS - 1, MAX_SERVERS];
        for at in counted {
            tally.began();
            tally.ended(Some(servers[at]), Outcome::Error, Took::default());
        }
        let totals = calls.read();
        let of = |at: usize| totals.of_server(servers[at]).of(Outcome::Error);
        assert_eq!(counted.map(of), [1, 1, 1, 1, 0]);
        assert_eq!((of(1), totals.all.of(Outcome::Error)), (0, 5));
    }
}
