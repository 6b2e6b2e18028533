//! How the ledger stands, in numbers: written by what seals, read by whoever asks.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::heartbeat::LedgerStanding;

/// There is none.
const NONE: i64 = i64::MIN;

/// The numbers.
#[derive(Debug)]
pub(super) struct LedgerGauges {
    base: Instant,
    stored: AtomicU64,
    /// About how many bytes a record has.
    record_bytes: AtomicU64,
    /// Since when the oldest record that is not stored has been waiting: milliseconds after `base`; [`NONE`] for none.
    since: AtomicI64,
    segments: AtomicU64,
    failures: AtomicU64,
    failing: Mutex<Option<String>>,
}

impl Default for LedgerGauges {
    fn default() -> Self {
        Self {
            base: Instant::now(),
            stored: AtomicU64::new(0),
            record_bytes: AtomicU64::new(0),
            since: AtomicI64::new(NONE),
            segments: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            failing: Mutex::new(None),
        }
    }
}

impl LedgerGauges {
    /// The store has everything up to `stored`; a record has about so many bytes; the oldest that it has not got has been
    /// waiting for so many milliseconds.
    pub(super) fn stands(&self, stored: u64, record_bytes: u64, waits_ms: Option<u64>) {
        self.stored.store(stored, Ordering::Relaxed);
        self.record_bytes.store(record_bytes, Ordering::Relaxed);
        let since = waits_ms.map_or(NONE, |waits| self.now().saturating_sub_unsigned(waits));
        self.since.store(since, Ordering::Relaxed);
    }

    fn now(&self) -> i64 {
        i64::try_from(self.base.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// A segment is in the store.
    pub(super) fn put(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
        *self.failing.lock() = None;
    }

    /// The store can be used: what was wrong before is over.
    pub(super) fn reached(&self) {
        *self.failing.lock() = None;
    }

    /// An attempt came to nothing.
    pub(super) fn failed(&self, why: &dyn std::fmt::Display) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        *self.failing.lock() = Some(why.to_string());
    }

    /// Why the last attempt came to nothing; `None` if it did not.
    #[must_use]
    pub(super) fn failing(&self) -> Option<String> {
        self.failing.lock().clone()
    }

    /// How it stands, while the log has come to `committed`.
    #[must_use]
    pub(super) fn standing(&self, committed: u64) -> LedgerStanding {
        let stored = self.stored.load(Ordering::Relaxed);
        let lag_records = committed.saturating_sub(stored);
        let since = Some(self.since.load(Ordering::Relaxed));
        let since = since.filter(|since| *since != NONE && lag_records > 0);
        let waits = since.map_or(0, |since| self.now().saturating_sub(since).max(0).unsigned_abs());
        LedgerStanding {
            stored,
            committed,
            lag_records,
            lag_bytes: lag_records.saturating_mul(self.record_bytes.load(Ordering::Relaxed)),
            lag_ms: waits,
            segments: self.segments.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            lost: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_is_the_log_without_what_is_stored() {
        let gauges = LedgerGauges::default();
        gauges.stands(10, 300, Some(5000));
        let standing = gauges.standing(14);
        assert_eq!((standing.lag_records, standing.lag_bytes), (4, 1200));
        assert!(standing.lag_ms >= 5000);
        assert_eq!(gauges.standing(10).lag_ms, 0, "nothing waits");
        gauges.failed(&"away");
        assert_eq!((gauges.failing(), gauges.standing(14).failures), (Some("away".into()), 1));
        gauges.put();
        gauges.stands(14, 300, None);
        let standing = gauges.standing(14);
        assert_eq!((gauges.failing(), standing.segments, standing.lag_ms), (None, 1, 0));
    }
}
