//! Pacing of repeated work: reconnection attempts and list refreshes.
//!
//! [`Backoff`] grows from [`MIN_BACKOFF`] to [`MAX_BACKOFF`]. A call that needs the server ends the wait early
//! ([`ConnectRequests`]), but causes at most one start per [`MIN_START_INTERVAL`].
//!
//! [`Pace`] coalesces change notifications of one list: all that arrive while a refresh is due count as one, and the
//! delay doubles up to a bound as long as the list keeps changing.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout_at;

use mcpproxy_runtime::io::delays::RetryDelays;

/// Delay after the first failed attempt.
const MIN_BACKOFF: Duration = Duration::from_millis(500);
/// Maximum delay between automatic attempts, before jitter, which may double it.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Lifetime after which a lost connection is retried immediately.
pub(super) const STABLE_AFTER: Duration = Duration::from_secs(30);
/// Minimum interval between two starts of a server caused by calls.
pub(super) const MIN_START_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum wait of a call for a server that is connecting, counted from the start of the attempt, so that an
/// unresponsive server costs one wait in total instead of one per call. Most servers need a few seconds to start.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Exponential backoff between the connection attempts of one server.
#[derive(Debug)]
pub(super) struct Backoff {
    delays: RetryDelays,
    delay: Option<Duration>,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { delays: RetryDelays::new(MIN_BACKOFF, MAX_BACKOFF), delay: None }
    }

    /// Delay before the next attempt, constant until [`Self::advance`].
    pub(super) fn wait(&mut self) -> Duration {
        let Self { delays, delay } = self;
        *delay.get_or_insert_with(|| delays.next_delay())
    }

    /// Increases the delay after it has elapsed completely. A delay cut short by a call does not count.
    pub(super) fn advance(&mut self) {
        self.delay = None;
    }
}

/// End of an attempt, or of the connection that the attempt established.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptEnd {
    pub(super) began: Instant,
    /// Number of server starts in the attempt; a child may be started twice.
    pub(super) starts: u32,
    pub(super) failed: bool,
}

/// Schedule of the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// Earliest time at which a call may trigger the attempt.
    pub(super) earliest: Instant,
    /// Time of the attempt if no call triggers it.
    pub(super) next: Instant,
}

impl AttemptEnd {
    /// Schedules the next attempt, `delay` from now unless a call triggers it.
    pub(super) fn due(self, now: Instant, delay: Duration) -> Due {
        let since = if self.failed { now } else { self.began };
        Due { earliest: since + MIN_START_INTERVAL * self.starts, next: now + delay }
    }
}

impl Due {
    /// Postpones both times to `then` if they are earlier.
    pub(super) fn not_before(self, then: Instant) -> Self {
        Self { earliest: self.earliest.max(then), next: self.next.max(then) }
    }
}

/// Connection attempts that were requested.
#[derive(Debug, Default)]
pub(super) struct ConnectRequests(watch::Sender<Requested>);

/// Highest requested attempt numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Requested {
    /// Highest number requested by calls or by an operator.
    attempt: u64,
    /// Highest number requested by an operator; such an attempt is made without a delay.
    at_once: u64,
}

impl ConnectRequests {
    /// Requests the attempt with this number for a call. The attempt is made at the earliest time of [`Due`].
    /// Idempotent.
    pub(super) fn request(&self, attempt: u64) {
        self.0.send_if_modified(|requested| {
            let later = requested.attempt < attempt;
            requested.attempt = attempt.max(requested.attempt);
            later
        });
    }

    /// Requests the attempt with this number for an operator. The attempt is made immediately. Idempotent.
    pub(super) fn request_at_once(&self, attempt: u64) {
        self.0.send_modify(|requested| {
            requested.attempt = attempt.max(requested.attempt);
            requested.at_once = attempt.max(requested.at_once);
        });
    }

    /// Clears an operator's request for an attempt after an attempt has succeeded.
    pub(super) fn forget_at_once(&self) {
        self.0.send_if_modified(|requested| {
            requested.at_once = 0;
            false
        });
    }

    /// Whether an operator has requested the attempt with this number.
    pub(super) fn has_at_once(&self, attempt: u64) -> bool {
        self.0.borrow().at_once == attempt
    }

    /// Waits until the attempt after this number is due. Returns whether a call requested it.
    pub(super) async fn wait_until_due(&self, after: u64, due: Due) -> bool {
        let mut requested = self.0.subscribe();
        let called = async {
            // The sender exists as long as `self`.
            let _ = requested.wait_for(|requested| requested.attempt > after).await;
            let at_once = requested.wait_for(|requested| requested.at_once > after);
            let _ = timeout_at(due.earliest.into(), at_once).await;
        };
        timeout_at(due.next.into(), called).await.is_ok()
    }
}

/// Delay of the first refresh; changes within it are coalesced.
pub(crate) const MIN_DELAY: Duration = Duration::from_millis(250);
/// Maximum delay, for a constantly changing list.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(30);
/// A list counts as calm after this multiple of its last delay without a change: 2 s at first.
const CALM_FACTOR: u32 = 8;
/// Delay above which the server is reported in the log.
const WARN_DELAY: Duration = Duration::from_secs(4);

/// Refresh schedule of one list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    wait: Duration,
    /// Time at which the last refresh was due.
    due: Option<Instant>,
    warned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// Delay before the refresh.
    pub after: Duration,
    /// Whether the list was calm before.
    pub calm: bool,
    /// Whether to log that the list changes too often; true once, until the list is calm again.
    pub warn: bool,
}

impl Pace {
    /// Schedules a refresh after a change, if none is scheduled.
    pub fn changed(&mut self, now: Instant) -> Refresh {
        let calm = self
            .due
            .is_none_or(|due| now.saturating_duration_since(due) >= self.wait * CALM_FACTOR);
        self.wait = if calm { MIN_DELAY } else { (self.wait * 2).min(MAX_DELAY) };
        self.due = Some(now + self.wait);
        let is_restless = self.wait >= WARN_DELAY;
        let warn = is_restless && !self.warned;
        self.warned = is_restless;
        Refresh { after: self.wait, calm, warn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_a_bound_only_after_complete_delays() {
        let mut backoff = Backoff::new();
        let first = backoff.wait();
        assert_eq!(backoff.wait(), first, "unchanged until it has elapsed");
        assert!((MIN_BACKOFF..=MIN_BACKOFF * 2).contains(&first), "{first:?}");
        let mut last = first;
        for _ in 0..20 {
            backoff.advance();
            last = backoff.wait();
            assert!(last <= MAX_BACKOFF * 2, "{last:?}");
        }
        assert!(last >= MAX_BACKOFF, "{last:?}");
    }

    #[test]
    fn calls_cause_one_start_per_interval_counted_from_the_last_start() {
        let now = Instant::now();
        let began = now.checked_sub(MIN_START_INTERVAL * 10).unwrap();
        let lost = AttemptEnd { began, starts: 1, failed: false };
        assert_eq!(lost.due(now, MAX_BACKOFF).earliest, began + MIN_START_INTERVAL);
        let failed = AttemptEnd { starts: 2, failed: true, ..lost };
        let due = failed.due(now, MAX_BACKOFF);
        assert_eq!(due, Due { earliest: now + MIN_START_INTERVAL * 2, next: now + MAX_BACKOFF });
        assert_eq!(due.not_before(now), due);
        let then = now + MAX_BACKOFF / 2;
        assert_eq!(due.not_before(then), Due { earliest: then, ..due });
        let late = now + MAX_BACKOFF * 2;
        assert_eq!(due.not_before(late), Due { earliest: late, next: late });
    }

    #[test]
    fn constantly_changing_list_is_refreshed_less_and_less_often_and_reported_once() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let mut looks = Vec::new();
        for _ in 0..12 {
            let look = pace.changed(now);
            now += look.after;
            looks.push((look.after.as_millis(), look.warn));
        }
        let waits: Vec<_> = looks.iter().map(|(wait, _)| *wait).collect();
        assert_eq!(waits[..8], [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000]);
        assert!(waits[8..].iter().all(|wait| *wait == 30_000));
        assert_eq!(looks.iter().filter(|(_, warn)| *warn).count(), 1);
        assert!(!pace.changed(now + MAX_DELAY).calm, "one minute is not enough");
        now += MAX_DELAY * 2 + MAX_DELAY * CALM_FACTOR;
        assert_eq!(pace.changed(now), Refresh { after: MIN_DELAY, calm: true, warn: false });
    }

    #[test]
    fn occasionally_changing_list_is_refreshed_soon() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(pace.changed(now), Refresh { after: MIN_DELAY, calm: true, warn: false });
            now += MIN_DELAY + MIN_DELAY * CALM_FACTOR;
        }
    }
}
