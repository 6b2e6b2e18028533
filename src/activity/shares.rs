//! Fair shares of the log's budget by principal (ACT-6): leaky buckets, consulted only under pressure.
//!
//! `activity.min_retention` keeps young records even if the log exceeds `max_records` or `max_size_mb`. While the log
//! exceeds a limit, or its disk is nearly full, requests of a principal that has used more than its share of the budget
//! are refused before any work is done for them. Other principals continue.
//!
//! ```text
//! writer, once a batch ─ count ─▶ level of each principal, draining at its share of the budget per min_retention
//! pruner ─ over budget ─┐
//! writer ─ disk is low ─┴▶ pressure ◀─ a call reads it: one relaxed load; only under pressure it locks the table
//! ```
//!
//! The share is the budget divided by the number of principals that wrote within `min_retention`. While the log is over
//! its budget, a principal beyond its share may still write [`SLOWED_PER_SECOND`] records per second, and a principal
//! that writes alone is not limited, because no other principal needs protection. Neither exception applies when disk
//! space is low. Levels are kept in memory and start at zero with the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::config::{Config, Retention};
use super::record::Text;

/// Requests per second of a principal beyond its share while the log is over its budget.
const SLOWED_PER_SECOND: u32 = 50;
/// Maximum number of principals with their own level; all others share one level.
const MAX_PRINCIPALS: usize = 1024;
/// Minimum and maximum retry time for a principal beyond its share.
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// Interval between counts of the active principals.
const RECOUNT_MS: u64 = 1000;
/// Threshold for low disk space: less than 1/`LOW_PART` of the disk and less than [`LOW_BYTES`] are free.
const LOW_PART: u64 = 20;
const LOW_BYTES: u64 = 1 << 30;

const OVER_BUDGET: u8 = 1;
const DISK_LOW: u8 = 2;

/// Whether a disk of `total` bytes with `free` bytes left is nearly full.
pub(super) fn is_low(free: u64, total: u64) -> bool {
    free < (total / LOW_PART).min(LOW_BYTES)
}

/// Use of the log's budget by principal. Shared by calls, the writer and the pruner.
#[derive(Debug, Default)]
pub(super) struct LogShares {
    pressure: AtomicU8,
    table: Mutex<ShareTable>,
}

/// Records and bytes written by a principal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WrittenShare {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

impl LogShares {
    /// Whether the log is over its budget or its disk space is low.
    pub(super) fn is_under_pressure(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) != 0
    }

    /// Sets whether the log is over its budget. Returns true on a change.
    pub(super) fn set_over_budget(&self, is_over: bool) -> bool {
        self.set(OVER_BUDGET, is_over)
    }

    /// Sets whether disk space is low. Returns true on a change.
    pub(super) fn set_disk_low(&self, is_low: bool) -> bool {
        self.set(DISK_LOW, is_low)
    }

    pub(super) fn is_over_budget(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) & OVER_BUDGET != 0
    }

    fn set(&self, bit: u8, is_set: bool) -> bool {
        let before = match is_set {
            true => self.pressure.fetch_or(bit, Ordering::Relaxed),
            false => self.pressure.fetch_and(!bit, Ordering::Relaxed),
        };
        (before & bit != 0) != is_set
    }

    /// Counts written entries and empties `written`.
    pub(super) fn count(
        &self,
        written: &mut HashMap<Box<str>, WrittenShare>,
        kept: &Retention,
        now_ms: u64,
    ) {
        if !written.is_empty() {
            self.table.lock().count(written.drain(), Budget::of(kept), now_ms);
        }
    }

    /// Checks that `principal` may write now; the error is the time after which to retry.
    pub(super) fn admit(&self, principal: &str, now_ms: u64) -> Result<(), Duration> {
        match self.pressure.load(Ordering::Relaxed) {
            0 => Ok(()),
            pressure => self.table.lock().admit(Text::Principal.cut(principal), pressure, now_ms),
        }
    }
}

/// Budget that is divided into shares.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Budget {
    records: f64,
    bytes: f64,
    /// Period that the budget covers.
    window_ms: f64,
}

impl Budget {
    /// The budget for these limits; a missing limit is replaced by the default.
    fn of(kept: &Retention) -> Self {
        let default = Config::default().retention();
        let or = |value: u64, default: u64| if value == 0 { default } else { value };
        let window = match kept.min_age.is_zero() {
            true => default.min_age,
            false => kept.min_age,
        };
        Self {
            records: or(kept.max_records, default.max_records) as f64,
            bytes: (or(kept.max_size_mb, default.max_size_mb) as f64) * f64::from(1 << 20),
            window_ms: window.as_secs_f64() * 1000.0,
        }
    }

    /// Fraction of the budget used by these entries.
    fn part(&self, written: WrittenShare) -> f64 {
        (written.records as f64 / self.records).max(written.bytes as f64 / self.bytes)
    }
}

#[derive(Debug)]
struct ShareTable {
    uses: HashMap<Box<str>, BudgetUse>,
    /// Shared by all principals beyond [`MAX_PRINCIPALS`].
    common: BudgetUse,
    budget: Budget,
    /// Number of principals that wrote within the budget's period.
    active: usize,
    counted_ms: u64,
}

impl Default for ShareTable {
    fn default() -> Self {
        let budget = Budget::of(&Config::default().retention());
        let (uses, common) = (HashMap::new(), BudgetUse::default());
        Self { uses, common, budget, active: 0, counted_ms: 0 }
    }
}

/// Use of the budget by a principal.
#[derive(Clone, Copy, Debug, Default)]
struct BudgetUse {
    /// Fraction of the budget used, minus the amount drained since; at most 1.
    level: f64,
    /// Time at which `level` was computed.
    at_ms: u64,
    /// Time of the last write.
    wrote_ms: u64,
    /// Number of requests still allowed beyond the share, and the time at which that number was computed.
    slowed: f64,
    slowed_ms: u64,
}

impl BudgetUse {
    /// Drains the level up to `now_ms`.
    fn drain(&mut self, share: f64, window_ms: f64, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.at_ms) as f64;
        self.level = (self.level - passed * share / window_ms).max(0.0);
        self.at_ms = now_ms;
    }

    /// Takes one of the requests allowed beyond the share.
    fn take_slowed(&mut self, now_ms: u64) -> bool {
        let max = f64::from(SLOWED_PER_SECOND);
        let passed = now_ms.saturating_sub(self.slowed_ms) as f64;
        let left = match self.slowed_ms {
            0 => max,
            _ => (self.slowed + passed * max / 1000.0).min(max),
        };
        self.slowed_ms = now_ms.max(1);
        let is_taken = left >= 1.0;
        self.slowed = if is_taken { left - 1.0 } else { left };
        is_taken
    }
}

impl ShareTable {
    fn share(&self) -> f64 {
        1.0 / self.active.max(1) as f64
    }

    fn count(
        &mut self,
        written: impl Iterator<Item = (Box<str>, WrittenShare)>,
        budget: Budget,
        now_ms: u64,
    ) {
        self.budget = budget;
        let mut is_new = false;
        for (principal, written) in written {
            let (share, has_room) = (self.share(), self.uses.len() < MAX_PRINCIPALS);
            let of = match self.uses.get_mut(&principal) {
                Some(of) => of,
                None if has_room => {
                    is_new = true;
                    self.uses.entry(principal).or_default()
                }
                None => &mut self.common,
            };
            of.drain(share, budget.window_ms, now_ms);
            of.level = (of.level + budget.part(written)).min(1.0);
            of.wrote_ms = now_ms;
        }
        if is_new || now_ms.saturating_sub(self.counted_ms) >= RECOUNT_MS {
            self.recount(now_ms);
        }
    }

    /// Drops principals that have not written within the budget's period, and counts the remaining ones.
    fn recount(&mut self, now_ms: u64) {
        self.counted_ms = now_ms;
        let window_ms = self.budget.window_ms;
        self.uses.retain(|_, of| (now_ms.saturating_sub(of.wrote_ms) as f64) < window_ms);
        if (now_ms.saturating_sub(self.common.wrote_ms) as f64) >= window_ms {
            self.common = BudgetUse::default();
        }
        self.active = self.uses.len() + usize::from(self.common.wrote_ms > 0);
    }

    fn admit(&mut self, principal: &str, pressure: u8, now_ms: u64) -> Result<(), Duration> {
        if now_ms.saturating_sub(self.counted_ms) >= RECOUNT_MS {
            self.recount(now_ms);
        }
        let (share, window_ms) = (self.share(), self.budget.window_ms);
        let is_full = self.uses.len() >= MAX_PRINCIPALS;
        let of = match self.uses.get_mut(principal) {
            Some(of) => of,
            None if is_full => &mut self.common,
            None => return Ok(()),
        };
        of.drain(share, window_ms, now_ms);
        if of.level < share {
            return Ok(());
        }
        if pressure & DISK_LOW == 0 {
            if self.active < 2 || of.take_slowed(now_ms) {
                return Ok(());
            }
            return Err(MIN_WAIT);
        }
        let excess_ms = (of.level - share) * window_ms / share;
        let excess = Duration::from_secs_f64((excess_ms / 1000.0).clamp(0.0, 1e9));
        Err(excess.clamp(MIN_WAIT, MAX_WAIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Retention = Retention {
        days: 0,
        max_records: 1000,
        max_size_mb: 1,
        min_age: Duration::from_secs(24 * 3600),
    };
    const HOUR_MS: u64 = 3600 * 1000;

    fn write(shares: &LogShares, principal: &str, records: u64, now_ms: u64) {
        let written = WrittenShare { records, bytes: 0 };
        let mut of = HashMap::from([(principal.into(), written)]);
        shares.count(&mut of, &KEPT, now_ms);
        assert!(of.is_empty());
    }

    /// Number of requests that are admitted out of 1000 simultaneous ones.
    fn admitted(shares: &LogShares, principal: &str, now_ms: u64) -> usize {
        (0..1000).filter(|_| shares.admit(principal, now_ms).is_ok()).count()
    }

    #[test]
    fn requests_are_not_limited_without_pressure() {
        let shares = LogShares::default();
        write(&shares, "a", 5000, 1);
        write(&shares, "b", 1, 1);
        assert!(!shares.is_under_pressure());
        assert_eq!(admitted(&shares, "a", 1), 1000);
    }

    #[test]
    fn principal_beyond_its_share_is_slowed_while_others_are_not() {
        let shares = LogShares::default();
        write(&shares, "a", 5000, 1);
        write(&shares, "b", 100, 1);
        assert!(shares.set_over_budget(true) && !shares.set_over_budget(true));
        assert_eq!(admitted(&shares, "a", 1), SLOWED_PER_SECOND as usize);
        assert_eq!(shares.admit("a", 1), Err(MIN_WAIT));
        assert_eq!(admitted(&shares, "a", 1001), SLOWED_PER_SECOND as usize);
        for other in ["b", "never seen"] {
            assert_eq!(admitted(&shares, other, 1), 1000, "{other}");
        }
        // Principal b uses exactly its share, which is half of the budget.
        write(&shares, "b", 450, 2);
        assert_eq!(admitted(&shares, "b", 2), SLOWED_PER_SECOND as usize);
        shares.set_over_budget(false);
        assert_eq!(admitted(&shares, "a", 2), 1000);
    }

    #[test]
    fn single_writer_is_limited_only_if_the_disk_is_low() {
        let shares = LogShares::default();
        write(&shares, "a", 5000, 1);
        shares.set_over_budget(true);
        assert_eq!(admitted(&shares, "a", 1), 1000);
        shares.set_disk_low(true);
        assert_eq!(admitted(&shares, "a", 1), 0);
        assert_eq!(
            admitted(&shares, "b", 1),
            1000,
            "other principals may use the rest of the disk"
        );
        shares.set_disk_low(false);
        assert!(shares.is_over_budget());
    }

    #[test]
    fn budget_use_decreases_to_zero_within_the_minimum_age() {
        let shares = LogShares::default();
        write(&shares, "a", 900, 0);
        write(&shares, "b", 1, 0);
        shares.set_disk_low(true);
        let wait = shares.admit("a", 1).unwrap_err();
        assert_eq!(wait, MAX_WAIT, "the retry time is capped");
        // Half of the budget is drained per day, so the level of a falls from 0.9 to 0.5. Only after that is b dropped.
        assert_eq!(admitted(&shares, "a", 19 * HOUR_MS), 0);
        assert_eq!(admitted(&shares, "a", 20 * HOUR_MS), 1000);
    }

    #[test]
    fn bytes_use_up_the_share_like_records() {
        let shares = LogShares::default();
        let half = WrittenShare { records: 1, bytes: 600 << 10 };
        let mut of = HashMap::from([("a".into(), half), ("b".into(), WrittenShare::default())]);
        shares.count(&mut of, &KEPT, 1);
        shares.set_disk_low(true);
        assert_eq!(admitted(&shares, "a", 1), 0);
    }

    #[test]
    fn principals_beyond_the_maximum_share_one_level() {
        let shares = LogShares::default();
        for number in 0..MAX_PRINCIPALS + 10 {
            write(&shares, &format!("p{number}"), 0, 1);
        }
        assert_eq!(shares.table.lock().uses.len(), MAX_PRINCIPALS);
        write(&shares, "late", 1000, 1);
        shares.set_disk_low(true);
        assert_eq!((admitted(&shares, "later", 1), admitted(&shares, "p1", 1)), (0, 1000));
        let later = 24 * HOUR_MS + 1;
        assert_eq!(admitted(&shares, "later", later), 1000, "idle principals are dropped");
        assert!(shares.table.lock().uses.is_empty());
    }

    #[test]
    fn low_disk_threshold_scales_with_its_size_up_to_a_bound() {
        assert!(is_low(4, 100) && !is_low(5, 100));
        assert!(is_low(LOW_BYTES - 1, 1 << 50) && !is_low(LOW_BYTES, 1 << 50));
    }
}
