//! Several logs asked as if they were one: pages, single records, counts, summaries, and reading forward. Records are in the
//! order of their ids, which is that of time; what two logs both have is shown once.
//!
//! How pages of several logs become one is pure ([`merge_pages`]), wherever they come from.

use super::forward_scan::PortionLimit;
use super::query::{Filter, From, Listing, Page, Payloads};
use super::record::{Id, ReadBody, Record};
use super::stats::{Period, Summary};
use super::store::StoreError;
use super::view::View;

/// Most records that a page of several logs passes over by number: they have to be read. A cursor goes further.
pub const MAX_MERGED_OFFSET: u64 = 10_000;
/// Records that are passed over at a time.
const PASS_RECORDS: usize = 500;

/// Makes one page of those of several logs, each of which holds the newest records of its log from the same place on: as many
/// as there are up to its `next_cursor`, or all.
#[must_use]
pub fn merge_pages(pages: impl IntoIterator<Item = Listing>, limit: usize) -> Listing {
    let (mut records, mut floor) = (Vec::<Record>::new(), None::<Id>);
    for page in pages {
        records.extend(page.records);
        floor = floor.max(page.next_cursor);
    }
    // Below it some log may have records that are not on its page.
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

/// Several logs at one moment.
pub struct MergedView {
    views: Vec<View>,
}

/// How far a log was read forward: the last number that was looked at, and the last that is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardPlace {
    /// The log, by its id.
    pub log: super::record::NodeId,
    /// The last record that was looked at.
    pub seq: u64,
    /// The last that is to be.
    pub last: u64,
}

impl MergedView {
    /// Of these logs.
    #[must_use]
    pub fn new(views: Vec<View>) -> Self {
        Self { views }
    }

    /// The logs, each for itself.
    #[must_use]
    pub fn into_views(self) -> Vec<View> {
        self.views
    }

    /// The logs.
    #[must_use]
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// A page of records, newest first. Of `offset`, [`MAX_MERGED_OFFSET`] counts at most.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
    pub fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        if let [view] = &self.views[..] {
            return view.list(filter, page);
        }
        let from = match page.from {
            From::Newest | From::After(_) => page.from,
            From::Offset(skip) => match self.pass(filter, skip.min(MAX_MERGED_OFFSET))? {
                Some(from) => from,
                None => return Ok(Listing::default()),
            },
        };
        let mut merged = self.heads(filter, from, page.limit)?;
        // Of the records on the page alone.
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

    /// A page of heads.
    fn heads(&self, filter: &Filter, from: From, limit: usize) -> Result<Listing, StoreError> {
        let page = Page { limit, from, payloads: Payloads::HeadsOnly };
        let pages = self.views.iter().map(|view| view.list(filter, &page));
        Ok(merge_pages(pages.collect::<Result<Vec<_>, _>>()?, limit))
    }

    /// Where a page begins that passes over so many records; `None` behind the last.
    fn pass(&self, filter: &Filter, skip: u64) -> Result<Option<From>, StoreError> {
        let (mut from, mut rest) = (From::Newest, skip);
        while rest > 0 {
            let limit = rest.min(PASS_RECORDS as u64) as usize;
            let passed = self.heads(filter, from, limit)?;
            rest -= passed.records.len() as u64;
            match passed.next_cursor {
                Some(next) => from = From::After(next),
                None => return Ok(None),
            }
        }
        Ok(Some(from))
    }

    /// The record with this id, if one of them keeps it.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it cannot be read.
    pub fn get(&self, id: Id) -> Result<Option<Record>, StoreError> {
        for view in &self.views {
            if let Some(found) = view.get(id)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The number of records that match a filter.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
    pub fn count(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.views.iter().map(|view| view.count(filter)).sum()
    }

    /// The summary of a period that ends at `now` (microseconds since 1970).
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the counters cannot be read.
    pub fn summary(&self, period: Period, now: u64) -> Result<Summary, StoreError> {
        let mut summary = Summary::new(period, now);
        for view in &self.views {
            view.buckets(period.first_bucket(now), now, |bucket, part| {
                summary.merge(bucket, part);
            })?;
        }
        Ok(summary)
    }

    /// Where reading forward begins after the record with this id, or with the first, and ends with the last that is there now.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
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

    /// The next records from `places` on, oldest first, about as many as `limit` allows; none at the end. The places are
    /// moved. A log that is not among the views is passed over.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
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
                    // Behind it this log may have others.
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
                    // What was looked at up to the ceiling is done, whether or not it is meant.
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
    use crate::activity::query::Filter;
    use crate::activity::record::NodeId;
    use crate::activity::replica::tests::{copy_of, odd};

    fn id(ms: u64, log: u8) -> Id {
        Id::new(ms, ms, NodeId([log; 16]))
    }

    /// Three logs whose records are stored in the milliseconds of their numbers.
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
    fn pages_of_several_logs_hold_each_record_once_and_in_order() {
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
    fn several_logs_are_read_forward_in_order_and_gone_on_with_after_any_record() {
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
    fn a_log_that_is_behind_holds_back_the_others() {
        let (_folders, view) = logs([300, 1100, 0]);
        let mut places = view.places(None).unwrap();
        // Both are read so many at a time, from moments that are far apart.
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
    fn a_page_ends_where_one_of_its_logs_may_have_more() {
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
