//! Retention (ACT-6): selects the records to remove by age, number and size, and clears the data of removed
//! records.
//!
//! Number and size limits never remove records younger than `activity.min_retention`, so that a flood cannot push
//! evidence out by filling the log. The log then exceeds its budget, and `shares` slows the principals that
//! use too much of it.
//!
//! Only a prefix is removed. First the writer appends a `retention` record and moves the first retained record, in one
//! batch; after that no query sees the removed records. Their index and counters are then removed one segment at a
//! time, and tables that hold only removed records are deleted whole. Removed records can remain in the last table
//! until it is deleted as well; a small log is rewritten instead, so that no removed record remains on disk.

use std::time::Duration;

use super::config::Retention;
use super::keys;
use super::record::{Draft, Hash, Id, Raw, Source, Status, Type};
use super::segment::{self, Builder};
use super::store::{Batch, Space, Store, StoreError};
use super::view::View;

const DAY_MS: u64 = 24 * 3600 * 1000;
/// Maximum size of a log that is rewritten after a removal.
const REWRITE_BYTES: u64 = 64 << 20;
/// Divisor for the margin below a size limit to which retention removes records, so that the limit is not reached again
/// immediately.
const MARGIN: u64 = 16;

/// Decision to remove the records before `first`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// First retained record.
    pub first: u64,
    pub id: Id,
    /// Hash of the record before it.
    pub prev: Hash,
    /// Number of records to remove.
    pub removed: u64,
    pub reason: Reason,
}

/// Limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Limit `retention_days`.
    Age,
    /// Limit `max_records`.
    Count,
    /// Limit `max_size_mb`.
    Size,
}

impl Reason {
    /// Configuration key of the limit.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Age => "retention_days",
            Self::Count => "max_records",
            Self::Size => "max_size_mb",
        }
    }
}

impl Cut {
    /// Builds the `retention` record that reports the removal.
    pub(crate) fn draft(&self, now_ms: u64) -> Draft {
        let mut draft = Draft::new(Type::Retention, Source::Internal, Status::Success);
        draft.started = now_ms.saturating_mul(1000);
        let metadata = serde_json::json!({
            "first_kept_id": self.id.to_string(),
            "first_kept_seq": self.first,
            "first_kept_prev_hash": self.prev.to_string(),
            "removed": self.removed,
            "reason": self.reason.as_str(),
        })
        .to_string();
        draft.keep(Raw::Metadata, metadata.as_bytes(), metadata.len());
        draft
    }

    /// Value of [`keys::FIRST`].
    pub(crate) fn value(&self) -> Vec<u8> {
        [&self.first.to_be_bytes()[..], &self.prev.0].concat()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetentionDue {
    /// Removal to make, if any.
    pub cut: Option<Cut>,
    /// Whether the log exceeds `max_records` or `max_size_mb` because the excess records are too young.
    pub overrun: bool,
}

/// Current time according to the clocks that determine ages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetentionTime {
    /// Filtered wall clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// Running time of the log in milliseconds (`clock`).
    pub ran_ms: u64,
    /// First record written by this process.
    pub opened: u64,
}

/// Decides which records to remove now. Records after `confirmed` are retained, because they are still needed elsewhere.
pub(crate) fn due(
    view: &View,
    store: &Store,
    kept: &Retention,
    confirmed: u64,
    time: RetentionTime,
) -> Result<RetentionDue, StoreError> {
    let mut first = view.first();
    let mut reason = Reason::Age;
    let mut at_least = |seq: u64, why: Reason| {
        if seq > first {
            (first, reason) = (seq, why);
        }
    };
    let mut overrun = false;
    let budgets = over_budget(view, store, kept)?;
    if budgets.iter().any(|(seq, _)| *seq > view.first()) {
        let old_enough = first_younger(view, kept.min_age, time)?;
        for (seq, reason) in budgets {
            overrun |= seq > old_enough;
            at_least(seq.min(old_enough), reason);
        }
    }
    if kept.days > 0 {
        let oldest = time.now_ms.saturating_sub(u64::from(kept.days) * DAY_MS);
        let old = first_stored_since(view, oldest)?;
        at_least(old.min(first_young_by_running_time(view, kept, time)?), Reason::Age);
    }
    // The last record is always retained, because the end of the log is read from it.
    let first = first.min(view.next() - 1).min(confirmed.saturating_add(1));
    if first <= view.first() {
        return Ok(RetentionDue { cut: None, overrun });
    }
    // If the number is in a gap, the next existing record becomes the first retained one.
    let cut = view.from(first)?.map(|(first, id, prev)| {
        let removed = first - view.first();
        Cut { first, id, prev, removed, reason }
    });
    Ok(RetentionDue { cut, overrun })
}

/// First record that would be retained, for each exceeded budget.
fn over_budget(
    view: &View,
    store: &Store,
    kept: &Retention,
) -> Result<Vec<(u64, Reason)>, StoreError> {
    let mut budgets = Vec::new();
    if kept.max_records > 0 && view.next() - view.first() > kept.max_records {
        // The retention record is counted too.
        budgets.push(((view.next() + 1).saturating_sub(kept.max_records), Reason::Count));
    }
    if kept.max_size_mb > 0 {
        budgets.push((first_within(view, store, kept.max_size_mb << 20)?, Reason::Size));
    }
    Ok(budgets)
}

/// First record that is younger than `min_age`, by running time. The age of records older than the first mark is taken
/// from the filtered wall clock.
fn first_younger(view: &View, min_age: Duration, time: RetentionTime) -> Result<u64, StoreError> {
    if min_age.is_zero() {
        return Ok(view.next());
    }
    let marks = view.age_marks()?;
    if let Some(younger) = marks.older_than(min_age, time.ran_ms) {
        return Ok(younger);
    }
    let min_age = u64::try_from(min_age.as_millis()).unwrap_or(u64::MAX);
    let since = time.now_ms.saturating_sub(min_age);
    Ok(first_stored_since(view, since)?.min(marks.first().unwrap_or(u64::MAX)))
}

/// First record of this process that is younger than `min_age`, measured by this process's running time. A step of the
/// wall clock does not affect this age.
fn first_young_by_running_time(
    view: &View,
    kept: &Retention,
    time: RetentionTime,
) -> Result<u64, StoreError> {
    let min_age = kept.min_age.min(Duration::from_millis(u64::from(kept.days) * DAY_MS));
    if min_age.is_zero() {
        return Ok(view.next());
    }
    let old = view.age_marks()?.older_than(min_age, time.ran_ms);
    Ok(time.opened.max(old.unwrap_or_default()))
}

/// First record stored at `since` or later.
fn first_stored_since(view: &View, since: u64) -> Result<u64, StoreError> {
    let mut number = segment::of(view.first());
    while view.bounds(number)?.is_some_and(|bounds| bounds.stored_ms < since) {
        number += 1;
    }
    let mut first = None;
    view.heads_of(number, |seq, head, _| {
        if head.stored_ms >= since && first.is_none() {
            first = Some(seq);
        }
    })?;
    Ok(first.unwrap_or_else(|| segment::start(number + 1).min(view.next())))
}

/// First record of the suffix that fits into `limit` bytes on disk.
fn first_within(view: &View, store: &Store, limit: u64) -> Result<u64, StoreError> {
    let used = store.table_bytes();
    if used <= limit {
        return Ok(view.first());
    }
    let segments = segment::of(view.first())..segment::of(view.next());
    let size = |number| Ok(view.bounds(number)?.map_or(0, |bounds| bounds.bytes));
    let sizes: Vec<u64> = segments.clone().map(size).collect::<Result<_, StoreError>>()?;
    let all = sizes.iter().sum::<u64>().max(1);
    // Recorded sizes are uncompressed, so the size of the files is divided in proportion to them.
    let excess = used - (limit - limit / MARGIN);
    let mut rest = u128::from(excess) * u128::from(all) / u128::from(used.max(1));
    for (number, size) in segments.zip(sizes) {
        if rest == 0 {
            return Ok(segment::start(number));
        }
        rest = rest.saturating_sub(u128::from(size));
    }
    Ok(segment::start(segment::of(view.next())))
}

/// Clears one full segment that is no longer retained. Returns false if there is none.
pub(crate) fn clear_segment(store: &Store) -> Result<bool, StoreError> {
    let view = View::new(store.snapshot()?)?;
    let Some(number) = view.oldest_sealed()?.filter(|it| segment::start(it + 1) <= view.first())
    else {
        return Ok(false);
    };
    let mut derived = Builder::default();
    view.with_removed().derive(number, &mut derived)?;
    let mut batch = Batch::default();
    derived.postings().keys().for_each(|bucket| {
        batch.remove(Space::Index, keys::postings(*bucket, number));
    });
    for (bucket, _) in derived.buckets() {
        batch.remove(Space::Stats, keys::bucket(bucket, number));
    }
    batch.remove(Space::Segments, keys::number(number));
    store.commit(batch)?;
    Ok(true)
}

/// Frees the disk space of removed records.
pub(crate) fn free_space(store: &Store) -> Result<(), StoreError> {
    // An open snapshot would keep the removed records. The partly retained segment is kept from its start,
    // because it is read when the log is opened.
    let below = View::new(store.snapshot()?)?.first();
    let below = keys::number(segment::start(segment::of(below)));
    if store.table_bytes() <= REWRITE_BYTES {
        for space in [Space::Heads, Space::Bodies] {
            let mut batch = Batch::default();
            for row in store.snapshot()?.range(space, &keys::number(0), &below) {
                batch.remove(space, row?.0);
            }
            store.commit(batch)?;
        }
        for space in [Space::Heads, Space::Bodies, Space::Index, Space::Stats, Space::Segments] {
            store.compact(space)?;
        }
        return Ok(());
    }
    store.drop_tables_below(Space::Heads, &below)?;
    store.drop_tables_below(Space::Bodies, &below)
}
