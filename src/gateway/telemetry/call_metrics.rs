//! Call metrics: counters, latency histograms and counts by tool.
//!
//! Each worker counts in memory of its own; readers add up all workers.
//!
//! ```text
//! worker ── Tally ──▶ its own sheet ─┐
//! worker ── Tally ──▶ its own sheet ─┴─ Calls::read ──▶ Totals
//! ```
//!
//! Counting a call takes a few additions to memory that no other thread writes, and an update of the tool table
//! under a lock contended only by a reader of the sums (in portions of `PORTION` tools). It does not allocate after
//! a tool's first call.
//!
//! Histograms have eight buckets per power of two, so that a quantile is off by at most 6 %. Counts by tool are
//! bounded in tools and series, and kept only for existing tools, so that invented names do not take memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mcpproxy_policy::tool::ServerId;
use parking_lot::Mutex;

/// Duration of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallDuration {
    pub total: Duration,
    /// Time spent in the upstream, if the call was sent.
    pub upstream: Option<Duration>,
    /// Time spent queued by the operator's limits or waiting for an approval.
    pub waited: Duration,
}

/// Metrics of all workers.
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

/// Servers per block of counters.
const BLOCK: usize = 64;
/// Maximum number of blocks per worker.
const BLOCKS: usize = 64;
/// Maximum number of servers with separate counters. Calls to servers with higher ids count only in the totals.
#[cfg(test)]
pub(crate) const MAX_SERVERS: usize = BLOCK * BLOCKS;

/// One worker's counters by server, allocated at a server's first call.
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

    /// Counters of the called servers, by the index of their ids.
    fn iter(&self) -> impl Iterator<Item = (usize, &Counts)> {
        let blocks = self.0.iter().enumerate();
        blocks.flat_map(|(block, of_block)| {
            let counts = of_block.get().into_iter().flat_map(|it| it.0.iter().enumerate());
            counts.filter_map(move |(at, counts)| Some((block * BLOCK + at, &**counts.get()?)))
        })
    }
}

/// Counters of one worker; written by its thread only.
#[derive(Debug, Default)]
struct Sheet {
    begun: Counter,
    refusals: [Counter; RefusalKind::ALL.len()],
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
    /// Time added by the proxy.
    added: Histogram,
    upstream: Histogram,
}

impl Counts {
    fn ended(&self, outcome: Outcome, took: CallDuration) {
        count(&self.outcomes, outcome as usize);
        self.total.add(took.total);
        let others = took.upstream.unwrap_or_default() + took.waited;
        self.added.add(took.total.saturating_sub(others));
        if let Some(upstream) = took.upstream {
            self.upstream.add(upstream);
        }
    }
}

/// Handle to one worker's counters. Not `Send`, since no other thread may write them.
#[derive(Clone, Debug)]
#[expect(clippy::redundant_allocation, reason = "each call clones it without an atomic operation")]
pub struct Tally(Rc<Arc<Sheet>>);

impl Tally {
    pub fn began(&self) {
        self.0.begun.add(1);
    }

    /// Counts the end of a call; `server` is the server that the call was sent to.
    pub fn ended(&self, server: Option<ServerId>, outcome: Outcome, took: CallDuration) {
        self.0.all.ended(outcome, took);
        if let Some(counts) = server.and_then(|server| self.0.servers.of(server)) {
            counts.ended(outcome, took);
        }
    }

    /// Counts a call to `server` that was not sent. Its duration says nothing about the server.
    pub fn not_sent(&self, server: ServerId, outcome: Outcome) {
        if let Some(counts) = self.0.servers.of(server) {
            count(&counts.outcomes, outcome as usize);
        }
    }

    /// Counts the end of a call by tool. `tool` is the name of an existing tool, or the method of a request other than
    /// a tool call.
    pub fn tool(&self, server: ServerId, tool: &str, variant: &str, outcome: Outcome) {
        self.0.tools.ended(server, tool, variant, outcome);
    }

    pub(crate) fn refused(&self, why: RefusalKind) {
        count(&self.0.refusals, why.index());
    }

    pub(crate) fn decided(&self, what: Decision) {
        count(&self.0.decisions, what as usize);
    }

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
    /// Counters for one more worker. They outlive the worker, so this must be called at most once per
    /// thread.
    pub fn tally(&self) -> Tally {
        let sheet = Arc::<Sheet>::default();
        self.sheets.lock().push(Arc::clone(&sheet));
        Tally(Rc::new(sheet))
    }

    /// Calls by tool, in at most `max` series and one more per server, variant and outcome.
    pub fn by_tool(&self, max: usize) -> BTreeMap<Series, u64> {
        let sheets = self.sheets.lock();
        let tools: Vec<_> = sheets.iter().map(|sheet| &sheet.tools).collect();
        self.named.lock().sums(&tools, max)
    }

    /// Outcomes of the calls by server and tool, summed over all workers.
    pub fn outcomes_by_tool(&self) -> HashMap<ServerId, HashMap<Arc<str>, ToolOutcomes>> {
        let mut sums = HashMap::<_, HashMap<_, ToolOutcomes>>::new();
        for sheet in self.sheets.lock().iter() {
            sheet.tools.read(|row| {
                let of_tool = sums.entry(row.server).or_default().entry(Arc::clone(&row.tool));
                let ToolOutcomes(outcomes) = of_tool.or_default();
                for counts in row.counts {
                    outcomes.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
                }
            });
        }
        sums
    }

    /// Sums over all workers. Calls that end during the read may be included in some numbers only.
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

/// Sums over all workers.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    begun: u64,
    refusals: [u64; RefusalKind::ALL.len()],
    decisions: [u64; Decision::ALL.len()],
    judged: [u64; Judged::ALL.len()],
    pub all: Sums,
    /// Sums of the calls of each upstream, by the index of its `ServerId`. Durations are of sent calls only.
    servers: BTreeMap<usize, Sums>,
}

impl Totals {
    pub fn in_flight(&self) -> u64 {
        self.begun.saturating_sub(self.all.count())
    }

    pub fn of_server(&self, server: ServerId) -> Sums {
        self.servers.get(&server.index()).cloned().unwrap_or_default()
    }

    pub fn refused(&self, why: RefusalKind) -> u64 {
        self.refusals.get(why.index()).copied().unwrap_or_default()
    }

    pub fn decided(&self, what: Decision) -> u64 {
        self.decisions.get(what as usize).copied().unwrap_or_default()
    }

    pub fn judged(&self, what: Judged) -> u64 {
        self.judged.get(what as usize).copied().unwrap_or_default()
    }
}

/// Outcomes and durations of calls.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    outcomes: [u64; Outcome::ALL.len()],
    pub total: Durations,
    /// Time added by the proxy.
    pub added: Durations,
    pub upstream: Durations,
}

impl Sums {
    fn add(&mut self, counts: &Counts) {
        add(&mut self.outcomes, &counts.outcomes);
        self.total.add(&counts.total);
        self.added.add(&counts.added);
        self.upstream.add(&counts.upstream);
    }

    pub fn count(&self) -> u64 {
        self.outcomes.iter().sum()
    }

    pub fn of(&self, outcome: Outcome) -> u64 {
        self.outcomes.get(outcome as usize).copied().unwrap_or_default()
    }
}

/// Number of a tool's calls by outcome.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToolOutcomes([u64; Outcome::ALL.len()]);

impl ToolOutcomes {
    pub fn count(self) -> u64 {
        self.0.iter().sum()
    }

    pub fn of(self, outcome: Outcome) -> u64 {
        self.0.get(outcome as usize).copied().unwrap_or_default()
    }
}

/// Declares an enum of counted values with their metric labels.
macro_rules! counted {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

counted! {
    Outcome {
        Success "success",
        /// Failed in the upstream or in the proxy.
        Error "error",
        /// The answer was blocked.
        Blocked "blocked",
        /// The call was not sent.
        Rejected "rejected",
    }
}

/// Reason why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The parameters cannot be parsed.
    Unreadable,
    /// The parameters of a built-in tool violate its schema; the agent can correct them. Counted as `Unreadable`.
    Parameters,
    /// The headers do not repeat the parameters as the tool's schema requires.
    Headers,
    /// The intent is missing, malformed, or does not match the call tool.
    Intent,
    /// The request was denied by the annotations, the capability, the token, the catalog, a rule or a person.
    Gate,
    /// The arguments violate the tool's schema.
    Arguments,
    /// There are too many requests in parallel, or per unit of time.
    Limited,
    /// The principal has too many refused requests, or has used up its share of the log. Such refusals are not recorded
    /// individually.
    Throttled,
    /// The server or tool does not exist.
    Unknown,
    Upstream,
    /// A request other than a tool call failed; client and server errors are not distinguished.
    Failed,
    /// The activity log cannot take the record (ACT-2), or the proxy is shutting down.
    Unavailable,
}

impl RefusalKind {
    /// Kinds of refusals that have a metric of their own.
    pub const ALL: [Self; 11] = [
        Self::Unreadable,
        Self::Headers,
        Self::Intent,
        Self::Gate,
        Self::Arguments,
        Self::Limited,
        Self::Throttled,
        Self::Unknown,
        Self::Upstream,
        Self::Failed,
        Self::Unavailable,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable | Self::Parameters => "unreadable",
            Self::Headers => "headers",
            Self::Intent => "intent",
            Self::Gate => "gate",
            Self::Arguments => "arguments",
            Self::Limited => "limited",
            Self::Throttled => "throttled",
            Self::Unknown => "unknown",
            Self::Upstream => "upstream",
            Self::Failed => "failed",
            Self::Unavailable => "unavailable",
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Unreadable | Self::Parameters => 0,
            Self::Headers => 1,
            Self::Intent => 2,
            Self::Gate => 3,
            Self::Arguments => 4,
            Self::Limited => 5,
            Self::Throttled => 6,
            Self::Unknown => 7,
            Self::Upstream => 8,
            Self::Failed => 9,
            Self::Unavailable => 10,
        }
    }
}

counted! {
    /// Result of validating an answer or a call's arguments.
    Judged {
        AnswerPassed "answer_passed",
        /// Violation of a schema or a guard, or a missing member.
        AnswerFailed "answer_failed",
        /// Nothing to validate.
        AnswerUnasked "answer_unasked",
        /// No verdict: the validator failed, or the call ended before there was one.
        AnswerUnjudged "answer_unjudged",
        ArgumentsPassed "arguments_passed",
        ArgumentsFailed "arguments_failed",
        /// No verdict: the validator failed.
        ArgumentsUnjudged "arguments_unjudged",
    }
}

counted! {
    /// A policy decision with its verdict.
    Decision {
        OutputBlocked "output_validation_blocked",
        OutputWarned "output_validation_warning",
        InputBlocked "input_validation_blocked",
        InputWarned "input_validation_warning",
        IntentBlocked "intent_blocked",
        IntentWarned "intent_warning",
        CapabilityBlocked "capability_blocked",
        CapabilityWarned "capability_warning",
        /// The principal's token does not cover the call.
        ScopeBlocked "scope_blocked",
        /// The tool's definition awaits an operator's review.
        CatalogBlocked "catalog_blocked",
        CatalogWarned "catalog_warning",
        RulesBlocked "rules_blocked",
        /// A rule that is not enforced would have blocked the call.
        RulesWarned "rules_warning",
        LimitBlocked "limit_blocked",
        /// Approval was denied or not given.
        ApprovalBlocked "approval_blocked",
    }
}

/// Counter with a single writer, which needs neither a locked instruction nor a shared cache line.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `more`. Only the single writer may call this.
    pub(super) fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bits of precision below a duration's highest bit.
const KEPT_BITS: u32 = 3;
const EIGHTHS: u64 = 1 << KEPT_BITS;
/// Number of bits of the longest distinguished duration in microseconds (71 minutes). Longer durations count in the
/// last bucket.
const MAX_BITS: u32 = 32;
/// One bucket per microsecond at first, then eight per power of two.
const BUCKETS: usize = (EIGHTHS + EIGHTHS * (MAX_BITS - KEPT_BITS) as u64) as usize;

/// Latency histogram with a single writer.
#[derive(Debug)]
pub(super) struct Histogram {
    buckets: [Counter; BUCKETS],
    /// Sum in microseconds.
    sum: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { Counter::new() }; BUCKETS], sum: Counter::new() }
    }
}

impl Histogram {
    pub(super) fn add(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get(bucket(us)) {
            bucket.add(1);
        }
        self.sum.add(us);
    }
}

/// Snapshot of the histograms of several threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durations {
    buckets: Box<[u64; BUCKETS]>,
    /// Sum in microseconds.
    sum: u64,
}

impl Default for Durations {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), sum: 0 }
    }
}

impl Durations {
    pub(super) fn add(&mut self, histogram: &Histogram) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += bucket.get();
        }
        self.sum += histogram.sum.get();
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Sum of the durations in microseconds.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Percentile in microseconds; `None` without samples.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let rank = (self.count() * percent).div_ceil(100);
        let mut seen = 0;
        let reached = |count: &u64| {
            seen += count;
            seen >= rank
        };
        let bucket = self.buckets.iter().position(reached).filter(|_| rank > 0)?;
        Some(middle(bucket))
    }

    /// Nonempty buckets: maximum in microseconds, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(bucket, count)| (min(bucket + 1) - 1, *count))
    }
}

/// Index of the bucket for a duration.
fn bucket(us: u64) -> usize {
    let us = us.min((1 << MAX_BITS) - 1);
    let shift = us.checked_ilog2().unwrap_or(0).saturating_sub(KEPT_BITS);
    (u64::from(shift) * EIGHTHS + (us >> shift)) as usize
}

/// Lower bound of a bucket.
fn min(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / EIGHTHS).saturating_sub(1);
    (bucket - shift * EIGHTHS) << shift
}

fn middle(bucket: usize) -> u64 {
    let (from, to) = (min(bucket), min(bucket + 1));
    from + (to - from) / 2
}

/// Maximum number of tools counted by name in one worker; others are counted as [`OTHER`].
const MAX_TOOLS: usize = 16 * 1024;
/// Maximum number of rows that a reader copies each time it holds the lock.
const PORTION: usize = 256;
/// Label of tools beyond the bounds. A tool that is itself called `other` shares it.
pub(crate) const OTHER: &str = "other";
/// Kinds of calls: through a call tool, through the tool's own name, or a request other than a tool call.
const VARIANTS: [&str; 5] =
    ["call_tool_read", "call_tool_write", "call_tool_destructive", "direct", ""];

/// Calls of one tool by variant and outcome.
type ToolCounts = [[u64; Outcome::ALL.len()]; VARIANTS.len()];

#[derive(Debug, Default)]
pub(super) struct ToolCalls(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Rows in order of arrival, so that they can be read in portions.
    rows: Vec<Row>,
    /// Index in `rows`.
    places: HashMap<ServerId, HashMap<Arc<str>, usize>>,
}

#[derive(Clone, Debug)]
struct Row {
    server: ServerId,
    tool: Arc<str>,
    counts: ToolCounts,
}

impl Table {
    fn counts(&mut self, server: ServerId, tool: &str) -> Option<&mut ToolCounts> {
        let places = self.places.entry(server).or_default();
        let mut place = places.get(tool).copied();
        let mut tool = tool;
        if place.is_none() && self.rows.len() >= MAX_TOOLS {
            tool = OTHER;
            place = places.get(tool).copied();
        }
        let at = place.unwrap_or_else(|| {
            let (at, tool) = (self.rows.len(), Arc::<str>::from(tool));
            places.insert(Arc::clone(&tool), at);
            self.rows.push(Row { server, tool, counts: ToolCounts::default() });
            at
        });
        self.rows.get_mut(at).map(|row| &mut row.counts)
    }
}

impl ToolCalls {
    /// Counts the end of a call of an existing tool. An unknown variant counts as empty.
    pub(super) fn ended(&self, server: ServerId, tool: &str, variant: &str, outcome: Outcome) {
        let mut table = self.0.lock();
        let at = VARIANTS.iter().position(|it| *it == variant).unwrap_or(VARIANTS.len() - 1);
        let counts = table.counts(server, tool).and_then(|counts| counts.get_mut(at));
        if let Some(count) = counts.and_then(|counts| counts.get_mut(outcome as usize)) {
            *count += 1;
        }
    }

    /// Visits each row. Calls that end during the read may be missed.
    fn read(&self, mut each: impl FnMut(&Row)) {
        let (mut from, mut portion) = (0, Vec::with_capacity(PORTION));
        loop {
            let table = self.0.lock();
            portion.extend(table.rows.iter().skip(from).take(PORTION).cloned());
            drop(table);
            if portion.is_empty() {
                return;
            }
            from += portion.len();
            portion.drain(..).for_each(|row| each(&row));
        }
    }
}

/// Labels of a count.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Series {
    pub server: ServerId,
    /// The tool, [`OTHER`], or an MCP method.
    pub tool: Box<str>,
    pub variant: &'static str,
    /// Outcome of the calls.
    pub outcome: Outcome,
}

/// Series that were reported by name. A series keeps its name for the life of the process, since a counter that
/// moved to another series would seem to decrease.
#[derive(Debug, Default)]
pub(super) struct NamedSeries(HashSet<Series>);

impl NamedSeries {
    /// Sums over all workers: the first `max` series by name, and the rest of each server as [`OTHER`].
    pub(super) fn sums(&mut self, workers: &[&ToolCalls], max: usize) -> BTreeMap<Series, u64> {
        let mut sums = BTreeMap::new();
        for worker in workers {
            worker.read(|row| {
                for (series, count) in named(row) {
                    *sums.entry(self.labels(series, max)).or_default() += count;
                }
            });
        }
        sums
    }

    fn labels(&mut self, mut series: Series, max: usize) -> Series {
        if !self.0.contains(&series) {
            if self.0.len() < max {
                self.0.insert(series.clone());
            } else {
                series.tool = OTHER.into();
            }
        }
        series
    }
}

/// Nonzero counts with their labels.
fn named(row: &Row) -> impl Iterator<Item = (Series, u64)> {
    VARIANTS.into_iter().zip(&row.counts).flat_map(move |(variant, outcomes)| {
        let counted = Outcome::ALL.into_iter().zip(outcomes).filter(|(_, count)| **count > 0);
        counted.map(move |(outcome, count)| {
            let (server, tool) = (row.server, Box::from(&*row.tool));
            (Series { server, tool, variant, outcome }, *count)
        })
    })
}

#[cfg(test)]
mod tests {
    use mcpproxy_policy::tool::ServerIds;

    use super::*;

    #[test]
    fn call_counts_of_several_threads_are_summed() {
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
                            CallDuration { total, upstream, ..CallDuration::default() },
                        );
                    }
                    tally.began();
                    tally.refused(RefusalKind::Gate);
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
        let refused = RefusalKind::ALL.map(|why| totals.refused(why));
        assert_eq!((refused.iter().sum(), totals.refused(RefusalKind::Gate)), (3, 3));
        let decided = Decision::ALL.map(|what| totals.decided(what));
        assert_eq!((decided.iter().sum(), totals.decided(Decision::IntentBlocked)), (3, 3));
        let judged = Judged::ALL.map(|what| totals.judged(what));
        assert_eq!((judged.iter().sum(), totals.judged(Judged::AnswerPassed)), (3, 3));
        assert!(busy.added.percentile(99).unwrap().abs_diff(50) <= 4);
        assert!(busy.upstream.percentile(50).unwrap().abs_diff(500) <= 32);
        assert_eq!(idle.total.percentile(50), None);
    }

    #[test]
    fn servers_beyond_the_bound_count_only_in_the_totals() {
        let (calls, mut ids) = (Calls::default(), ServerIds::default());
        let servers: Vec<ServerId> =
            (0..=MAX_SERVERS).map(|at| ids.assign(&at.to_string().into())).collect();
        let tally = calls.tally();
        let counted = [0, BLOCK - 1, BLOCK, MAX_SERVERS - 1, MAX_SERVERS];
        for at in counted {
            tally.began();
            tally.ended(Some(servers[at]), Outcome::Error, CallDuration::default());
        }
        let totals = calls.read();
        let of = |at: usize| totals.of_server(servers[at]).of(Outcome::Error);
        assert_eq!(counted.map(of), [1, 1, 1, 1, 0]);
        assert_eq!((of(1), totals.all.of(Outcome::Error)), (0, 5));
    }

    #[test]
    fn each_duration_maps_to_its_bucket() {
        for at in 0..BUCKETS {
            assert_eq!((bucket(min(at)), bucket(min(at + 1) - 1)), (at, at));
            assert!((min(at)..min(at + 1)).contains(&middle(at)), "{at}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        for us in (0..40).flat_map(|bits| [1u64 << bits, (1 << bits) + 1, (3 << bits) / 2]) {
            let estimate = middle(bucket(us)) as f64;
            let exact = us.min(1 << MAX_BITS) as f64;
            assert!((estimate - exact).abs() <= exact / 16.0 + 1.0, "{us}: {estimate}");
        }
    }

    #[test]
    fn percentiles_match_the_samples() {
        let (one, other, mut both) =
            (Histogram::default(), Histogram::default(), Durations::default());
        assert_eq!((both.count(), both.percentile(50)), (0, None));
        for us in 1..=1000 {
            let histogram = if us % 2 == 0 { &one } else { &other };
            histogram.add(Duration::from_micros(us));
        }
        both.add(&one);
        both.add(&other);
        assert_eq!((both.count(), both.sum()), (1000, 500_500));
        for (percent, exact) in [(1, 10), (50, 500), (99, 990), (100, 1000)] {
            let estimate = both.percentile(percent).unwrap();
            assert!(estimate.abs_diff(exact) <= exact / 16 + 1, "p{percent}: {estimate}");
        }
        assert_eq!(both.buckets().map(|(_, count)| count).sum::<u64>(), 1000);
    }

    fn shown(sums: &BTreeMap<Series, u64>) -> Vec<String> {
        sums.iter()
            .map(|(Series { server, tool, variant, outcome }, count)| {
                format!("{} {tool} {variant} {} {count}", server.index(), outcome.as_str())
            })
            .collect()
    }

    #[test]
    fn calls_of_all_workers_are_summed_by_tool_variant_and_outcome() {
        let mut ids = ServerIds::default();
        let [a, b] = ["a", "b"].map(|name| ids.assign(&name.into()));
        let workers = [ToolCalls::default(), ToolCalls::default()];
        for worker in &workers {
            worker.ended(a, "t", "call_tool_read", Outcome::Success);
            worker.ended(b, "t", "direct", Outcome::Error);
        }
        workers[1].ended(a, "t", "call_tool_read", Outcome::Rejected);
        workers[1].ended(a, "prompts/get", "of nobody", Outcome::Success);
        assert_eq!(
            shown(&NamedSeries::default().sums(&workers.each_ref(), 100)),
            [
                "0 prompts/get  success 1",
                "0 t call_tool_read success 2",
                "0 t call_tool_read rejected 1",
                "1 t direct error 2",
            ]
        );
    }

    #[test]
    fn series_beyond_the_bound_are_merged_and_never_decrease() {
        let server = ServerIds::default().assign(&"s".into());
        let workers = [ToolCalls::default()];
        let mut named = NamedSeries::default();
        let mut before = BTreeMap::new();
        for round in 0..4_u64 {
            for tool in (0..=round * 3).rev() {
                workers[0].ended(server, &format!("t{tool}"), "direct", Outcome::Success);
            }
            let sums = named.sums(&workers.each_ref(), 3);
            assert!(sums.len() <= 4, "{sums:?}");
            let ended = (0..=round).map(|round| round * 3 + 1).sum::<u64>();
            assert_eq!(sums.values().sum::<u64>(), ended);
            for (series, count) in &before {
                assert!(sums.get(series) >= Some(count), "{series:?} fell");
            }
            before = sums;
        }
        assert!(before.keys().any(|series| &*series.tool == OTHER));
    }

    #[test]
    fn server_with_changing_tools_takes_bounded_memory() {
        let server = ServerIds::default().assign(&"s".into());
        let worker = ToolCalls::default();
        for tool in 0..MAX_TOOLS + 1000 {
            worker.ended(server, &format!("t{tool}"), "", Outcome::Success);
        }
        let mut rows = Vec::new();
        worker.read(|row| rows.push(row.clone()));
        assert_eq!(rows.len(), MAX_TOOLS + 1);
        assert_eq!(
            (&*rows[MAX_TOOLS].tool, rows[MAX_TOOLS].counts[VARIANTS.len() - 1][0]),
            (OTHER, 1000)
        );
    }

    #[test]
    fn metrics_reader_does_not_block_workers() {
        let server = ServerIds::default().assign(&"s".into());
        let worker = ToolCalls::default();
        for tool in 0..PORTION * 2 + 1 {
            worker.ended(server, &format!("t{tool}"), "", Outcome::Success);
        }
        let mut seen = 0;
        worker.read(|_| {
            seen += 1;
            if seen == 1 {
                worker.ended(server, "late", "", Outcome::Success);
            }
            assert!(!worker.0.is_locked());
        });
        assert_eq!(seen, PORTION * 2 + 2);
    }
}
