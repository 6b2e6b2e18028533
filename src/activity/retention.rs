//! Retention (ACT-6): decides which records are too old, too many or too large to be kept, and
//! clears away what belongs to records that are no longer kept.
//!
//! Only a prefix is removed. First the writer appends a `retention` record and moves the first kept
//! record, in one batch: from then on no query sees the others. Then their index and counters are
//! removed, a segment at a time, and their tables are deleted whole. The last table may hold removed
//! records until it is deleted as well; a small log is rewritten instead, so that nothing of them
//! stays on disk.

use super::config::Retention;
use super::keys;
use super::record::{Draft, Hash, Id, Raw, Source, Status, Type};
use super::segment::{self, Builder};
use super::store::{Batch, Space, Store, StoreError};
use super::view::View;

const DAY_MS: u64 = 24 * 3600 * 1000;
/// A log of at most this size is rewritten when something was removed.
const REWRITE_BYTES: u64 = 64 << 20;
/// The divisor of a size limit that gives how far below it retention goes, so that it is not reached
/// again at once.
const MARGIN: u64 = 16;

/// A decision to remove the records before `first`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The first record that stays.
    pub first: u64,
    /// Its id.
    pub id: Id,
    /// The hash it follows.
    pub prev: Hash,
    /// The number of records to remove.
    pub removed: u64,
    /// Which limit was met.
    pub reason: Reason,
}

/// Which limit was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `retention_days`
    Age,
    /// `max_records`
    Count,
    /// `max_size_mb`
    Size,
}

impl Reason {
    /// The key of the limit.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Age => "retention_days",
            Self::Count => "max_records",
            Self::Size => "max_size_mb",
        }
    }
}

impl Cut {
    /// The `retention` record that tells what was removed.
    #[must_use]
    pub fn draft(&self, now_ms: u64) -> Draft {
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

    /// The value of [`keys::FIRST`].
    #[must_use]
    pub fn value(&self) -> Vec<u8> {
        [&self.first.to_be_bytes()[..], &self.prev.0].concat()
    }
}

/// Decides what is to be removed at `now_ms`, if anything. Records after `confirmed` stay: others need them.
///
/// # Errors
///
/// [`StoreError`] if the log cannot be read.
pub fn due(
    view: &View,
    store: &Store,
    kept: &Retention,
    confirmed: u64,
    now_ms: u64,
) -> Result<Option<Cut>, StoreError> {
    let mut first = view.first();
    let mut reason = Reason::Age;
    let mut at_least = |seq: u64, why: Reason| {
        if seq > first {
            (first, reason) = (seq, why);
        }
    };
    if kept.days > 0 {
        let oldest = now_ms.saturating_sub(u64::from(kept.days) * DAY_MS);
        at_least(first_stored_since(view, oldest)?, Reason::Age);
    }
    if kept.max_records > 0 && view.next() - view.first() > kept.max_records {
        // The retention record takes a place, too.
        at_least((view.next() + 1).saturating_sub(kept.max_records), Reason::Count);
    }
    if kept.max_size_mb > 0 {
        at_least(first_within(view, store, kept.max_size_mb << 20)?, Reason::Size);
    }
    // The last record stays: the log's end is read from it.
    let first = first.min(view.next() - 1).min(confirmed.saturating_add(1));
    if first <= view.first() {
        return Ok(None);
    }
    // Where records are lost, the next one that is there.
    let Some((first, id, prev)) = view.from(first)? else { return Ok(None) };
    Ok(Some(Cut { first, id, prev, removed: first - view.first(), reason }))
}

/// The first record that was stored at `since` or later.
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

/// The first record of the suffix that fits into `limit` bytes on disk.
fn first_within(view: &View, store: &Store, limit: u64) -> Result<u64, StoreError> {
    let used = store.table_bytes();
    if used <= limit {
        return Ok(view.first());
    }
    let segments = segment::of(view.first())..segment::of(view.next());
    let size = |number| Ok(view.bounds(number)?.map_or(0, |bounds| bounds.bytes));
    let sizes: Vec<u64> = segments.clone().map(size).collect::<Result<_, StoreError>>()?;
    let all = sizes.iter().sum::<u64>().max(1);
    // What is recorded is the size before compression; its share of the files is taken for it.
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

/// Removes one full segment that is no longer kept. False if there is none.
///
/// # Errors
///
/// [`StoreError`].
pub fn clear_segment(store: &Store) -> Result<bool, StoreError> {
    let view = View::new(store.snapshot())?;
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

/// Frees the disk space of records that are no longer kept.
///
/// # Errors
///
/// [`StoreError`].
pub fn give_back(store: &Store) -> Result<(), StoreError> {
    // An open snapshot would keep what is to be removed; and the segment that is partly kept is
    // read from its start when the log is opened.
    let below = View::new(store.snapshot())?.first();
    let below = keys::number(segment::start(segment::of(below)));
    if store.table_bytes() <= REWRITE_BYTES {
        for space in [Space::Heads, Space::Bodies] {
            let mut batch = Batch::default();
            for row in store.snapshot().range(space, &keys::number(0), &below) {
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
