//! Log line budget per peer, so that a peer cannot fill the log with its messages.
//!
//! Each peer has a token bucket: a burst of [`BURST`] lines, then one line per [`INTERVAL`]. Lines beyond that are counted, and the count
//! is logged at most once per [`REPORT_EVERY`]. `peer_line!` logs a line that a peer can cause; `tests/tidy/log_lines.rs` forbids any other
//! way in code that peers drive.
//!
//! The budgets are per process, as is the log.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Number of lines that a peer may cause in a burst.
pub const BURST: u32 = 50;
/// Interval at which one more line is allowed after the burst.
pub const INTERVAL: Duration = Duration::from_secs(2);
/// Minimum time between two reports of omitted lines per peer.
pub const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of peers with their own budget; all others share one.
const MAX_PEERS: usize = 256;
/// Maximum length of a peer's name as a key, in bytes. Longer names with the same beginning share a budget.
const MAX_NAME_BYTES: usize = 128;

/// Logs a line that a peer can cause, within the budget of that peer: `peer_line!(warn, peer, field = 1, "message")`. The peer is any value
/// with a method `may_log`. A line of a disabled level does not use the budget.
#[macro_export]
macro_rules! peer_line {
    (error, $($rest:tt)+) => { $crate::peer_line!(@ error ERROR $($rest)+) };
    (warn, $($rest:tt)+) => { $crate::peer_line!(@ warn WARN $($rest)+) };
    (info, $($rest:tt)+) => { $crate::peer_line!(@ info INFO $($rest)+) };
    (debug, $($rest:tt)+) => { $crate::peer_line!(@ debug DEBUG $($rest)+) };
    (@ $log:ident $level:ident $peer:expr, $($line:tt)+) => {
        if $crate::tracing::event_enabled!($crate::tracing::Level::$level) && $peer.may_log() {
            $crate::tracing::$log!($($line)+);
        }
    };
}
pub use peer_line;

/// The peer that a line is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinePeer<'a> {
    /// The MCP server with this name.
    Server(&'a str),
    /// The principal with this id, or the client with this name.
    Client(&'a str),
    /// The fleet node with this name.
    Node(&'a str),
    /// A part of this program, for lines without a peer.
    Part(&'static str),
}

/// The budgets of this process.
static BUDGETS: LazyLock<Budgets> = LazyLock::new(Budgets::default);

/// Logs the number of omitted lines of each peer whose report is due. Must be called every few seconds.
pub fn report_left_out() {
    for ((kind, peer), left_out) in BUDGETS.due(Instant::now()) {
        report(kind, &peer, left_out);
    }
}

fn report(kind: &str, peer: &str, left_out: u64) {
    tracing::warn!(kind, peer, left_out, "log lines about a peer were left out");
}

impl LinePeer<'_> {
    /// Whether another line about the peer may be logged. If not, the line is counted.
    pub fn may_log(self) -> bool {
        let taken = BUDGETS.take(self, Instant::now());
        if let Some(left_out) = taken.report {
            let (kind, peer) = self.shown();
            report(kind, peer, left_out);
        }
        taken.may_log
    }

    fn shown(&self) -> (&'static str, &str) {
        match self {
            Self::Server(name) => ("server", name),
            Self::Client(name) => ("client", name),
            Self::Node(name) => ("node", name),
            Self::Part(name) => ("part", name),
        }
    }
}

/// The outcome for one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    may_log: bool,
    /// The number of omitted lines, if a report is due.
    report: Option<u64>,
}

/// The kind and the name of a peer.
type PeerKey = (&'static str, Box<str>);

#[derive(Debug, Default)]
struct Budgets(Mutex<HashMap<PeerKey, Budget>>);

#[derive(Debug)]
struct Budget {
    bucket: LineBucket,
    reported: Option<Instant>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bucket: LineBucket::new(BURST, INTERVAL), reported: None }
    }
}

impl Budget {
    fn take(&mut self, now: Instant) -> Taken {
        let may_log = self.bucket.take(now);
        Taken { may_log, report: self.due(now) }
    }

    /// The number of omitted lines, if a report is due.
    fn due(&mut self, now: Instant) -> Option<u64> {
        let is_over = |at: Instant| now.saturating_duration_since(at) >= REPORT_EVERY;
        (self.bucket.missed > 0 && self.reported.is_none_or(is_over)).then(|| {
            self.reported = Some(now);
            self.bucket.missed()
        })
    }

    /// Whether the entry can be removed without effect.
    fn is_fresh(&self, now: Instant) -> bool {
        self.bucket.missed == 0 && self.bucket.paid.is_none_or(|paid| paid <= now)
    }
}

impl Budgets {
    fn take(&self, peer: LinePeer<'_>, now: Instant) -> Taken {
        let (kind, name) = peer.shown();
        let name = name.get(..name.floor_char_boundary(MAX_NAME_BYTES)).unwrap_or_default();
        let mut key = (kind, Box::from(name));
        let mut budgets = self.0.lock();
        if budgets.len() >= MAX_PEERS && !budgets.contains_key(&key) {
            budgets.retain(|_, budget| !budget.is_fresh(now));
            if budgets.len() >= MAX_PEERS {
                key = ("", Box::default());
            }
        }
        budgets.entry(key).or_default().take(now)
    }

    /// The peers whose report is due, with the number of omitted lines.
    fn due(&self, now: Instant) -> Vec<(PeerKey, u64)> {
        let mut budgets = self.0.lock();
        let due = budgets.iter_mut().map(|(key, budget)| (key, budget.due(now)));
        due.filter_map(|(key, left_out)| Some((key.clone(), left_out?))).collect()
    }
}

/// Token bucket that counts refusals. The caller supplies the time.
#[derive(Debug)]
pub struct LineBucket {
    burst: u32,
    interval: Duration,
    /// Time at which all tokens taken so far are refilled; `None` if none was taken.
    paid: Option<Instant>,
    missed: u64,
}

impl LineBucket {
    /// A full bucket, which allows `burst` tokens, then one per `interval`.
    pub const fn new(burst: u32, interval: Duration) -> Self {
        Self { burst, interval, paid: None, missed: 0 }
    }

    /// Takes a token; false if the bucket is empty.
    pub fn take(&mut self, now: Instant) -> bool {
        let paid = self.paid.map_or(now, |paid| paid.max(now)) + self.interval;
        if paid > now + self.interval * self.burst {
            self.missed += 1;
            return false;
        }
        self.paid = Some(paid);
        true
    }

    /// The number of refusals since the last call.
    pub fn missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bucket_grants_its_rate_after_a_burst_and_counts_refusals() {
        let mut bucket = LineBucket::new(3, Duration::from_secs(2));
        let start = Instant::now();
        let mut at = |seconds| bucket.take(start + Duration::from_secs(seconds));
        let taken: Vec<bool> = [0, 0, 0, 0, 1, 2, 2, 100, 100, 100, 100].map(&mut at).into();
        assert_eq!(taken, [true, true, true, false, false, true, false, true, true, true, false]);
        assert_eq!((bucket.missed(), bucket.missed()), (4, 0));
    }

    #[test]
    fn omitted_lines_are_reported_once_per_peer_and_interval() {
        let (budgets, start) = (Budgets::default(), Instant::now());
        let flood = |peer, at: Duration| {
            let taken = (0..100_000).map(|_| budgets.take(peer, start + at));
            taken.fold((0, Vec::new()), |(logged, mut reports), taken: Taken| {
                reports.extend(taken.report);
                (logged + u32::from(taken.may_log), reports)
            })
        };
        let loud = LinePeer::Server("loud");
        assert_eq!(flood(loud, Duration::ZERO), (BURST, vec![1]));
        // One second before the interval ends.
        let earlier = REPORT_EVERY - Duration::from_secs(1);
        let refilled = (earlier.as_secs() / INTERVAL.as_secs()) as u32;
        assert_eq!(flood(loud, earlier), (refilled, vec![]));
        let left_out = 200_000 - u64::from(BURST + refilled) - 1;
        assert_eq!(flood(loud, REPORT_EVERY), (1, vec![left_out]));
        assert_eq!(budgets.due(start + REPORT_EVERY), [], "not before the next interval");
        let due = budgets.due(start + REPORT_EVERY * 2);
        assert_eq!(due, [(("server", "loud".into()), 99_999)], "reported without another line");
        let quiet = budgets.take(LinePeer::Client("loud"), start);
        assert_eq!(quiet, Taken { may_log: true, report: None });
    }

    #[test]
    fn peers_beyond_the_bound_share_one_budget() {
        let (budgets, now) = (Budgets::default(), Instant::now());
        let names: Vec<String> = (0..10 * MAX_PEERS).map(|at| at.to_string()).collect();
        let take = |name: &String| budgets.take(LinePeer::Client(name), now).may_log;
        let logged = names.iter().filter(|name| take(name)).count();
        assert_eq!(logged, MAX_PEERS + BURST as usize);
        assert_eq!(budgets.0.lock().len(), MAX_PEERS + 1);
        // Peers that have not logged for a while are removed.
        let later = now + INTERVAL;
        assert!(budgets.take(LinePeer::Client("new"), later).may_log);
        assert!(budgets.0.lock().len() < MAX_PEERS);
    }
}
