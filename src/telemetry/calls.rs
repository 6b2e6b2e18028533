//! What became of calls: counted by each worker for itself, and read by whoever shows or exports it.
//!
//! ```text
//! worker ── Tally ──▶ its own sheet ─┐
//! worker ── Tally ──▶ its own sheet ─┴─ Calls::read ──▶ Totals
//! ```
//!
//! A call is counted by a few additions to memory that no other thread writes: no lock, no atomic
//! step, and no allocation once its server was called before. What a call is and when it ends is not
//! known here.

use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::counter::Counter;
use super::histogram::{Durations, Histogram};

/// Makes an enum whose values are counted.
macro_rules! counted {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every value.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// Its name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

counted! {
    /// How a call ended.
    Outcome {
        /// It was answered.
        Success "success",
        /// It failed, upstream or on the way.
        Error "error",
        /// Its answer was not let in.
        Blocked "blocked",
        /// It was not let out.
        Rejected "rejected",
    }
}

counted! {
    /// Why a call has no answer of an upstream.
    Refusal {
        /// It cannot be read.
        Unreadable "unreadable",
        /// Its headers say something else than its arguments.
        Headers "headers",
        /// Its intent is missing, malformed or another than the variant.
        Intent "intent",
        /// Annotations or capability stand against it.
        Gate "gate",
        /// There is no such server or tool.
        Unknown "unknown",
        /// The upstream failed.
        Upstream "upstream",
        /// It is no call of a tool and cannot be answered.
        Failed "failed",
        /// The activity log takes no record.
        Unavailable "unavailable",
    }
}

counted! {
    /// A decision that left a record of its own: what was decided, and by which policy.
    Decision {
        /// An answer was blocked.
        OutputBlocked "output_validation_blocked",
        /// An answer was warned of.
        OutputWarned "output_validation_warning",
        /// A call was blocked for its intent.
        IntentBlocked "intent_blocked",
        /// A call was warned of for its intent.
        IntentWarned "intent_warning",
        /// A call was blocked for its tool's capability.
        CapabilityBlocked "capability_blocked",
        /// A call was warned of for its tool's capability.
        CapabilityWarned "capability_warning",
    }
}

/// How long a call took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// In all.
    pub total: Duration,
    /// Of that its upstream, if it was sent.
    pub upstream: Option<Duration>,
}

/// The calls of all workers.
pub struct Calls {
    servers: usize,
    sheets: Mutex<Vec<Arc<Sheet>>>,
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("servers", &self.servers).finish_non_exhaustive()
    }
}

/// What one worker counts; no other thread writes it.
#[derive(Debug, Default)]
struct Sheet {
    begun: Counter,
    refusals: [Counter; Refusal::ALL.len()],
    decisions: [Counter; Decision::ALL.len()],
    all: Counts,
    /// By a server's place in the config; made when it is first called.
    servers: Box<[OnceLock<Box<Counts>>]>,
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
        self.added.add(took.total.saturating_sub(took.upstream.unwrap_or_default()));
        if let Some(upstream) = took.upstream {
            self.upstream.add(upstream);
        }
    }
}

/// Where one worker counts. Stays on its thread: no other may write there.
#[derive(Clone, Debug)]
#[expect(clippy::redundant_allocation, reason = "each call has one, made without an atomic step")]
pub struct Tally(Rc<Arc<Sheet>>);

impl Tally {
    /// A call has come.
    pub fn began(&self) {
        self.0.begun.add(1);
    }

    /// A call that had begun has ended; `server` is the place in the config of the one it was sent
    /// to.
    pub fn ended(&self, server: Option<usize>, outcome: Outcome, took: Took) {
        self.0.all.ended(outcome, took);
        if let Some(counts) = server.and_then(|server| self.0.servers.get(server)) {
            counts.get_or_init(Box::default).ended(outcome, took);
        }
    }

    /// A call was refused.
    pub fn refused(&self, why: Refusal) {
        count(&self.0.refusals, why as usize);
    }

    /// Something was decided.
    pub fn decided(&self, what: Decision) {
        count(&self.0.decisions, what as usize);
    }
}

fn count(counters: &[Counter], at: usize) {
    if let Some(counter) = counters.get(at) {
        counter.add(1);
    }
}

impl Calls {
    /// None yet, to so many servers.
    #[must_use]
    pub fn new(servers: usize) -> Self {
        Self { servers, sheets: Mutex::default() }
    }

    /// Where one more worker counts. What it counted stays when it ends: for threads, of which there
    /// are few.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let servers = (0..self.servers).map(|_| OnceLock::new()).collect();
        let sheet = Arc::new(Sheet { servers, ..Sheet::default() });
        self.sheets.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&sheet));
        Tally(Rc::new(sheet))
    }

    /// What was counted until now. Calls that end meanwhile may be in some numbers and not in others.
    #[must_use]
    pub fn read(&self) -> Totals {
        let sheets = self.sheets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals =
            Totals { servers: vec![Sums::default(); self.servers], ..Totals::default() };
        for sheet in sheets.iter() {
            // Those that ended first: none is under way less than once.
            totals.all.add(&sheet.all);
            totals.begun += sheet.begun.get();
            add(&mut totals.refusals, &sheet.refusals);
            add(&mut totals.decisions, &sheet.decisions);
            for (sums, counts) in totals.servers.iter_mut().zip(&sheet.servers) {
                counts.get().into_iter().for_each(|counts| sums.add(counts));
            }
        }
        totals
    }
}

fn add(sums: &mut [u64], counters: &[Counter]) {
    sums.iter_mut().zip(counters).for_each(|(sum, counter)| *sum += counter.get());
}

/// What all workers counted.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    begun: u64,
    refusals: [u64; Refusal::ALL.len()],
    decisions: [u64; Decision::ALL.len()],
    /// All calls.
    pub all: Sums,
    /// Those that were sent, by their server's place in the config.
    pub servers: Vec<Sums>,
}

impl Totals {
    /// Calls under way.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.begun.saturating_sub(self.all.count())
    }

    /// How many calls were refused so.
    #[must_use]
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refusals.get(why as usize).copied().unwrap_or_default()
    }

    /// How often that was decided.
    #[must_use]
    pub fn decided(&self, what: Decision) -> u64 {
        self.decisions.get(what as usize).copied().unwrap_or_default()
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

    /// How many calls ended.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.outcomes.iter().sum()
    }

    /// How many ended so.
    #[must_use]
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.outcomes.get(outcome as usize).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_threads_count_is_read_together() {
        let calls = Calls::new(2);
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
                            upstream.map(|_| 1),
                            Outcome::Success,
                            Took { total, upstream },
                        );
                    }
                    tally.began();
                    tally.refused(Refusal::Gate);
                    tally.decided(Decision::IntentBlocked);
                });
            }
        });
        let totals = calls.read();
        assert_eq!((totals.all.count(), totals.in_flight()), (3000, 3));
        assert_eq!((totals.servers[0].count(), totals.servers[1].count()), (0, 2997));
        assert_eq!(totals.all.of(Outcome::Success), 3000);
        let refused = Refusal::ALL.map(|why| totals.refused(why));
        assert_eq!((refused.iter().sum(), totals.refused(Refusal::Gate)), (3, 3));
        let decided = Decision::ALL.map(|what| totals.decided(what));
        assert_eq!((decided.iter().sum(), totals.decided(Decision::IntentBlocked)), (3, 3));
        assert!(totals.servers[1].added.percentile(99).unwrap().abs_diff(50) <= 4);
        assert!(totals.servers[1].upstream.percentile(50).unwrap().abs_diff(500) <= 32);
        assert_eq!(totals.servers[0].total.percentile(50), None);
    }

    #[test]
    fn a_server_that_is_not_known_counts_in_all_alone() {
        let calls = Calls::new(0);
        let tally = calls.tally();
        tally.began();
        tally.ended(Some(7), Outcome::Error, Took::default());
        assert_eq!(calls.read().all.of(Outcome::Error), 1);
    }
}
