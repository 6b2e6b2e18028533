//! K-way merge of several logs: pages, single records, counts, summaries and forward reads across logs.
//! Records are ordered by id, which is the order of time; a record that two logs hold is returned once.
//!
//! [`merge_pages`] is pure and merges pages from any source.

use super::query::{Filter, From, Listing, Page, Payloads};
use super::record::{Id, NodeId, ReadBody, Record};
use super::scan::PortionLimit;
use super::stats::{Period, Summary};
use super::store::StoreError;
use super::view::View;

/// Maximum offset of a page over several logs. It is limited because skipped records have to be read; cursors have no
/// such limit.
pub const MAX_MERGED_OFFSET: u64 = 10_000;
/// Maximum number of records skipped per step.
const SKIP_RECORDS: usize = 500;

/// Merges pages of several logs that start at the same place. Each page holds all records of its log down to its
/// `next_cursor`, or all remaining records if it has no cursor.
pub fn merge_pages(pages: impl IntoIterator<Item = Listing>, limit: usize) -> Listing {
    let (mut records, mut floor) = (Vec::<Record>::new(), None::<Id>);
    for page in pages {
        records.extend(page.records);
        floor = floor.max(page.next_cursor);
    }
    // A log may have records below the floor that are not on its page.
    records.retain(|record| floor.is_none_or(|floor| record.id >= floor));
    records.sort_by_key(|record| std::cmp::Reverse(record.id));
    records.dedup_by_key(|record| record.id);
    let next_cursor = match records.get(limit) {
        Some(_) => limit.checked_sub(1).and_then(|last| records.get(last)).map(|last| last.id),
        None => floor,
    };
    records.truncate(limit);
    Listing { records, next_cursor }
}

/// Views of several logs.
pub struct MergedView {
    views: Vec<View>,
}

/// Position of a forward read in one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardPlace {
    pub log: NodeId,
    /// The last record examined.
    pub seq: u64,
    /// The record to stop after.
    pub last: u64,
}

impl MergedView {
    pub fn new(views: Vec<View>) -> Self {
        Self { views }
    }

    pub fn into_views(self) -> Vec<View> {
        self.views
    }

    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// Returns a page of records, newest first. Offsets are capped at [`MAX_MERGED_OFFSET`].
    pub fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        if let [view] = &self.views[..] {
            return view.list(filter, page);
        }
        let from = match page.from {
            From::Newest | From::After(_) => page.from,
            From::Offset(skip) => match self.skip(filter, skip.min(MAX_MERGED_OFFSET))? {
                Some(from) => from,
                None => return Ok(Listing::default()),
            },
        };
        let mut merged = self.heads(filter, from, page.limit)?;
        // Bodies are read only for records on the page.
        for record in &mut merged.records {
            let read = match page.payloads {
                Payloads::Include => self.get(record.id)?.map(|whole| whole.body),
                Payloads::Exclude => self.get(record.id)?.map(|it| it.body.without_payloads()),
                Payloads::HeadsOnly => None,
            };
            record.body = read.unwrap_or(ReadBody::Unread);
        }
        Ok(merged)
    }

    /// Returns a page of heads.
    fn heads(&self, filter: &Filter, from: From, limit: usize) -> Result<Listing, StoreError> {
        let page = Page { limit, from, payloads: Payloads::HeadsOnly };
        let pages = self.views.iter().map(|view| view.list(filter, &page));
        Ok(merge_pages(pages.collect::<Result<Vec<_>, _>>()?, limit))
    }

    /// Returns the start of a page after `skip` records; `None` past the end.
    fn skip(&self, filter: &Filter, skip: u64) -> Result<Option<From>, StoreError> {
        let (mut from, mut rest) = (From::Newest, skip);
        while rest > 0 {
            let limit = rest.min(SKIP_RECORDS as u64) as usize;
            let passed = self.heads(filter, from, limit)?;
            rest -= passed.records.len() as u64;
            match passed.next_cursor {
                Some(next) => from = From::After(next),
                None => return Ok(None),
            }
        }
        Ok(Some(from))
    }

    /// Returns the record with this id, if one of the logs retains it.
    pub fn get(&self, id: Id) -> Result<Option<Record>, StoreError> {
        for view in &self.views {
            if let Some(found) = view.get(id)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    pub fn count(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.views.iter().map(|view| view.count(filter)).sum()
    }

    /// Summarizes the period that ends at `now` (microseconds since 1970).
    pub fn summary(&self, period: Period, now: u64) -> Result<Summary, StoreError> {
        let mut summary = Summary::new(period, now);
        for view in &self.views {
            view.buckets(period.first_bucket(now), now, |bucket, part| {
                summary.merge(bucket, part);
            })?;
        }
        Ok(summary)
    }

    /// Returns the positions for a forward read that begins after record `after`, or with the first record,
    /// and ends with the last current one.
    pub fn places(&self, after: Option<Id>) -> Result<Vec<ForwardPlace>, StoreError> {
        let place = |view: &View| {
            let seq = match after {
                None => view.first() - 1,
                Some(id) if view.get(id)?.is_some() => id.seq(),
                Some(id) => view.number_below(id)?.saturating_sub(1).max(view.first() - 1),
            };
            Ok(ForwardPlace { log: view.node(), seq, last: view.next() - 1 })
        };
        self.views.iter().map(place).collect()
    }

    /// Returns about as many of the next records as `limit` allows, oldest first, and advances the positions; empty at
    /// the end. A log without a view is skipped.
    pub fn forward(
        &self,
        places: &mut [ForwardPlace],
        filter: &Filter,
        limit: PortionLimit,
    ) -> Result<Vec<Record>, StoreError> {
        loop {
            let share = places.len().max(1);
            let limit = PortionLimit {
                records: (limit.records / share).max(1),
                bytes: (limit.bytes / share).max(1),
            };
            let (mut read, mut ceiling) = (Vec::new(), None::<Id>);
            for place in places.iter_mut().filter(|place| place.seq < place.last) {
                let Some(view) = self.views.iter().find(|view| view.node() == place.log) else {
                    place.seq = place.last;
                    continue;
                };
                let (mut records, seq) = view.since(place.seq, filter, limit)?;
                let seq = seq.max(place.seq + 1).min(place.last);
                records.retain(|record| record.seq <= place.last);
                if seq < place.last {
                    // The log may have more records after record `seq`.
                    if let Some((_, id, _)) = view.from(seq)? {
                        ceiling = Some(ceiling.map_or(id, |ceiling| ceiling.min(id)));
                    }
                }
                read.push((place, seq, records));
            }
            if read.is_empty() {
                return Ok(Vec::new());
            }
            let mut found = Vec::new();
            for (place, seq, records) in read {
                let count = records.len();
                let taken: Vec<_> = records
                    .into_iter()
                    .take_while(|record| ceiling.is_none_or(|ceiling| record.id <= ceiling))
                    .collect();
                place.seq = match taken.last() {
                    _ if taken.len() == count && ceiling.is_none() => seq,
                    // The position advances past all records up to the ceiling, whether or not they match.
                    last => {
                        let view = self.views.iter().find(|view| view.node() == place.log);
                        let below = match (view, ceiling) {
                            (Some(view), Some(ceiling)) => view.number_below(ceiling)?,
                            _ => 0,
                        };
                        let done = below.saturating_sub(1).min(seq);
                        last.map_or(place.seq, |last| last.seq).max(done).max(place.seq)
                    }
                };
                found.extend(taken);
            }
            found.sort_by_key(|record| record.id);
            found.dedup_by_key(|record| record.id);
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::Filter;
    use crate::record::NodeId;
    use crate::replica::tests::{copy_of, odd};

    fn id(ms: u64, log: u8) -> Id {
        Id::new(ms, ms, NodeId([log; 16]))
    }

    /// Three logs whose records are stored at the millisecond equal to their number.
    fn logs(counts: [u64; 3]) -> (Vec<tempfile::TempDir>, MergedView) {
        let copies = (1..).zip(counts).map(|(log, count)| copy_of(log, count));
        let (folders, views) = copies.unzip();
        (folders, MergedView::new(views))
    }

    /// All ids, newest first.
    fn all(counts: [u64; 3]) -> Vec<Id> {
        let mut all: Vec<_> = (1..)
            .zip(counts)
            .flat_map(|(log, count)| (1..=count).map(move |ms| id(ms, log)))
            .collect();
        all.sort_by_key(|id| std::cmp::Reverse(*id));
        all
    }

    #[test]
    fn pages_of_several_logs_hold_each_record_once_in_order() {
        let counts = [700, 2500, 0];
        let (_folders, view) = logs(counts);
        let (mut found, mut from) = (Vec::new(), From::Newest);
        loop {
            let page = Page { limit: 97, from, payloads: Payloads::Include };
            let listing = view.list(&Filter::default(), &page).unwrap();
            assert!(listing.records.iter().all(|record| record.body.whole().is_some()));
            found.extend(listing.records.iter().map(|record| record.id));
            match listing.next_cursor {
                Some(next) => from = From::After(next),
                None => break,
            }
        }
        assert_eq!(found, all(counts));
        let page = Page { limit: 10, from: From::Offset(1234), payloads: Payloads::Exclude };
        let passed = view.list(&Filter::default(), &page).unwrap();
        let ids: Vec<_> = passed.records.iter().map(|record| record.id).collect();
        assert_eq!(ids, all(counts)[1234..1244]);
        assert!(passed.records.iter().all(|it| it.body.whole().is_none()));
        assert!(passed.records.iter().all(|it| it.body.metadata().is_some()));
        assert_eq!(view.count(&Filter::default()).unwrap(), 3200);
        assert_eq!(view.count(&odd()).unwrap(), 350 + 1250);
        assert!(view.get(id(700, 1)).unwrap().is_some());
        assert!(view.get(id(701, 1)).unwrap().is_none());
    }

    #[test]
    fn forward_read_is_ordered_and_resumes_after_any_record() {
        let counts = [300, 1100, 40];
        let (_folders, view) = logs(counts);
        let mut expected = all(counts);
        expected.reverse();
        let read = |after: Option<Id>, filter: &Filter, records: usize| {
            let (mut places, mut found) = (view.places(after).unwrap(), Vec::new());
            loop {
                let limit = PortionLimit { records, bytes: 1 << 20 };
                let next = view.forward(&mut places, filter, limit).unwrap();
                if next.is_empty() {
                    return found;
                }
                found.extend(next.iter().map(|record| record.id));
            }
        };
        for records in [1, 7, 128] {
            assert_eq!(read(None, &Filter::default(), records), expected, "{records}");
        }
        for at in [0, 500, expected.len() - 1] {
            assert_eq!(
                read(Some(expected[at]), &Filter::default(), 64),
                expected[at + 1..],
                "{at}"
            );
        }
        let odd_ones: Vec<_> = expected.iter().copied().filter(|id| id.seq() % 2 == 1).collect();
        assert_eq!(read(None, &odd(), 64), odd_ones);
    }

    #[test]
    fn lagging_log_holds_back_the_others() {
        let (_folders, view) = logs([300, 1100, 0]);
        let mut places = view.places(None).unwrap();
        // Both logs are read in equal portions, from times that are far apart.
        places[1].seq = 200;
        let mut found = Vec::new();
        loop {
            let limit = PortionLimit { records: 14, bytes: 1 << 20 };
            let next = view.forward(&mut places, &Filter::default(), limit).unwrap();
            if next.is_empty() {
                break;
            }
            found.extend(next.iter().map(|record| record.id));
        }
        let mut expected: Vec<_> = (1..=300).map(|ms| id(ms, 1)).collect();
        expected.extend((201..=1100).map(|ms| id(ms, 2)));
        expected.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn page_ends_at_the_point_where_a_log_may_have_more_records() {
        let (_folders, view) = logs([5, 5, 5]);
        let whole = view.views()[0].list(&Filter::default(), &Page::default()).unwrap();
        let mut short = view.views()[1].list(&Filter::default(), &Page::default()).unwrap();
        short.records.truncate(2);
        short.next_cursor = Some(id(4, 2));
        let merged = merge_pages([whole.clone(), short, whole], 50);
        let ids: Vec<_> = merged.records.iter().map(|record| record.id).collect();
        assert_eq!(ids, [id(5, 2), id(5, 1), id(4, 2)]);
        assert_eq!(merged.next_cursor, Some(id(4, 2)));
    }
}
