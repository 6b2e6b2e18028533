//! Backoff: how long a server that failed or was lost is left alone before it is started or
//! connected to again.
//!
//! By itself the wait grows from [`MIN_BACKOFF`] to [`MAX_BACKOFF`]. A call that needs the server
//! may end it early ([`Wishes`]), but causes no more than one start in [`PAUSE`].

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::watch;
use tokio::time::timeout_at;

/// First wait after a failed attempt.
const MIN_BACKOFF: Duration = Duration::from_millis(500);
/// Longest wait between attempts that nobody calls for, before the jitter, which may double it.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A connection that lived this long was a good one: the next attempt is made at once.
pub(super) const STABLE: Duration = Duration::from_secs(30);
/// Shortest time between two starts of a server that calls cause: one that ends at once is started
/// no more often, however many call it.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// The waits between the attempts to connect to one server.
#[derive(Debug)]
pub(super) struct Backoff {
    delays: ExponentialBackoff,
    delay: Option<Duration>,
}

impl Backoff {
    /// Begins with the shortest wait.
    pub(super) fn new() -> Self {
        let delays = ExponentialBuilder::new()
            .with_min_delay(MIN_BACKOFF)
            .with_max_delay(MAX_BACKOFF)
            .without_max_times()
            .with_jitter();
        Self { delays: delays.build(), delay: None }
    }

    /// The wait before the next attempt: the same until [`Self::waited`].
    pub(super) fn wait(&mut self) -> Duration {
        let Self { delays, delay } = self;
        *delay.get_or_insert_with(|| delays.next().unwrap_or(MAX_BACKOFF))
    }

    /// That wait has passed whole: the next one is longer. One that a call has ended does not
    /// count, since calls make no wait longer.
    pub(super) fn waited(&mut self) {
        self.delay = None;
    }
}

/// How an attempt, or the connection that came of it, ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// When it began.
    pub(super) began: Instant,
    /// How often it has started the server: a child may be started twice.
    pub(super) starts: u32,
    /// It never worked.
    pub(super) failed: bool,
}

/// When the next attempt may be made, and when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// From when on a call may cause it.
    pub(super) earliest: Instant,
    /// When it is made without.
    pub(super) next: Instant,
}

impl Ended {
    /// What follows, if nobody calls for it until `delay` has passed.
    pub(super) fn due(self, now: Instant, delay: Duration) -> Due {
        let since = if self.failed { now } else { self.began };
        Due { earliest: since + PAUSE * self.starts, next: now + delay }
    }
}

impl Due {
    /// The same, and neither before that time.
    pub(super) fn not_before(self, then: Instant) -> Self {
        Self { earliest: self.earliest.max(then), next: self.next.max(then) }
    }
}

/// The attempts that calls wish for.
#[derive(Debug, Default)]
pub(super) struct Wishes(watch::Sender<u64>);

impl Wishes {
    /// A call wishes for the attempt of that number. Wishes for the same one are one.
    pub(super) fn wish(&self, attempt: u64) {
        self.0.send_if_modified(|wished| {
            let later = *wished < attempt;
            *wished = attempt.max(*wished);
            later
        });
    }

    /// Waits until the attempt after that number is due. True if a call has wished for it.
    pub(super) async fn rest(&self, after: u64, due: Due) -> bool {
        let mut wished = self.0.subscribe();
        let called = async {
            // The sender lives as long as `self`.
            let _ = wished.wait_for(|wished| *wished > after).await;
            tokio::time::sleep_until(due.earliest.into()).await;
        };
        timeout_at(due.next.into(), called).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_only_those_that_passed_whole() {
        let mut backoff = Backoff::new();
        let first = backoff.wait();
        assert_eq!(backoff.wait(), first, "a call has ended it: it is the same again");
        assert!((MIN_BACKOFF..=MIN_BACKOFF * 2).contains(&first), "{first:?}");
        let mut last = first;
        for _ in 0..20 {
            backoff.waited();
            last = backoff.wait();
            assert!(last <= MAX_BACKOFF * 2, "{last:?}");
        }
        assert!(last >= MAX_BACKOFF, "{last:?}");
    }

    #[test]
    fn a_call_causes_one_start_in_a_pause_counted_from_the_last_one() {
        let now = Instant::now();
        let began = now.checked_sub(PAUSE * 10).unwrap();
        let lost = Ended { began, starts: 1, failed: false };
        assert_eq!(lost.due(now, MAX_BACKOFF).earliest, began + PAUSE);
        let failed = Ended { starts: 2, failed: true, ..lost };
        let due = failed.due(now, MAX_BACKOFF);
        assert_eq!(due, Due { earliest: now + PAUSE * 2, next: now + MAX_BACKOFF });
        assert_eq!(due.not_before(now), due);
        let then = now + MAX_BACKOFF / 2;
        assert_eq!(due.not_before(then), Due { earliest: then, ..due });
        let late = now + MAX_BACKOFF * 2;
        assert_eq!(due.not_before(late), Due { earliest: late, next: late });
    }
}
