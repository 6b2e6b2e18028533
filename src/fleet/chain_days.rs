//! The names of a node's segments in the chain's order, however many there are: day by day, as they lie in the store. What was
//! given is kept no longer.
//!
//! Names are in the chain's order over days as well, but where the node's clock was put back: then a day has segments that
//! come before some of an earlier day. So it is first asked with which record each day begins, and of a day only what comes before
//! all that is in the next ones is given with it.

use std::ops::ControlFlow;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::bucket::{Bucket, BucketError, MAX_LISTED};
use super::joining::segments_folder;
use super::segment::SegmentName;

/// Objects that are looked at to know with which record a day begins.
const FIRST_OBJECTS: usize = 16;
/// Days of which that is asked at a time.
const AT_A_TIME: usize = 8;
/// Objects that are no segments that are named, of a day.
const MAX_FOREIGN: usize = 1_000;

/// A chain's names that were not given yet.
#[derive(Debug)]
pub struct ChainDays<'a> {
    bucket: &'a Bucket,
    folder: String,
    days: Vec<Day>,
    next: usize,
    /// Names of days before that one which others may come before.
    kept: Vec<SegmentName>,
    /// The keys of objects that are no segments and were not given yet.
    foreign: Vec<String>,
}

#[derive(Debug)]
struct Day {
    folder: String,
    /// All its segments begin with this record or a later one.
    first: u64,
}

/// Some of a chain's names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ChainPart {
    /// Segments, in the chain's order, behind all that were given before.
    pub names: Vec<SegmentName>,
    /// The keys of objects that have no name of a segment; at most 1000 of each day.
    pub foreign: Vec<String>,
}

impl<'a> ChainDays<'a> {
    /// The segments of that node.
    ///
    /// # Errors
    ///
    /// [`BucketError`].
    pub async fn of(bucket: &'a Bucket, node: &str) -> Result<Self, BucketError> {
        let folder = segments_folder(node);
        let entries = bucket.entries(&folder).await?;
        let day = |name: String| {
            let folder = folder.clone();
            async move {
                let below = format!("{folder}/{name}");
                let part = bucket.list_part(&below, "", FIRST_OBJECTS, 1).await?;
                let names = part
                    .objects
                    .iter()
                    .filter_map(|object| SegmentName::of_key(&folder, &object.key));
                let first = names.map(|name| name.first).min();
                // Where the first objects are none it may be any; without any there is none.
                let unknown = if part.more > 0 { 0 } else { u64::MAX };
                Ok::<_, BucketError>(Day { folder: below, first: first.unwrap_or(unknown) })
            }
        };
        let days = stream::iter(entries.folders).map(day).buffered(AT_A_TIME);
        let days = days.try_collect().await?;
        let foreign = entries.objects.into_iter().take(MAX_FOREIGN).map(|object| object.key);
        let foreign = foreign.collect();
        Ok(Self { bucket, folder, days, next: 0, kept: Vec::new(), foreign })
    }

    /// What comes next; `None` when all was given.
    ///
    /// # Errors
    ///
    /// [`BucketError`], also where there are more names than [`MAX_LISTED`] that could come in any order.
    pub async fn next(&mut self) -> Result<Option<ChainPart>, BucketError> {
        while let Some(Day { folder, .. }) = self.days.get(self.next) {
            self.next += 1;
            let (names, foreign, mut strange) = (&mut self.kept, &mut self.foreign, 0);
            let mut is_full = false;
            let each = self.bucket.walk(folder, None, |object| {
                match SegmentName::of_key(&self.folder, &object.key) {
                    Some(name) => names.push(name),
                    None if strange < MAX_FOREIGN => {
                        strange += 1;
                        foreign.push(object.key);
                    }
                    None => {}
                }
                is_full = names.len() > MAX_LISTED;
                if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            each.await?;
            if is_full {
                return Err(BucketError::TooMany(folder.clone()));
            }
            self.kept.sort();
            let later = self.days.iter().skip(self.next).map(|day| day.first).min();
            let end = later.map_or(self.kept.len(), |later| {
                self.kept.partition_point(|name| name.first < later)
            });
            let behind = self.kept.split_off(end);
            let names = std::mem::replace(&mut self.kept, behind);
            let part = ChainPart { names, foreign: std::mem::take(&mut self.foreign) };
            if part != ChainPart::default() {
                return Ok(Some(part));
            }
        }
        let foreign = std::mem::take(&mut self.foreign);
        Ok((!foreign.is_empty()).then(|| ChainPart { names: Vec::new(), foreign }))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// The key of a segment with these records, of that day of a month.
    fn key(day: u8, first: u64, last: u64) -> String {
        let folder = segments_folder("a");
        format!("{folder}/date=2026-11-{day:02}/{first:020}-{last:020}-0101010101010101.parquet")
    }

    /// What is given of these objects, part by part.
    async fn given(keys: &[String]) -> Vec<(Vec<(u64, u64)>, Vec<String>)> {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        for key in keys {
            bucket.put(key, Bytes::from_static(b"x")).await.unwrap();
        }
        let mut days = ChainDays::of(&bucket, "a").await.unwrap();
        let mut given = Vec::new();
        while let Some(ChainPart { names, foreign }) = days.next().await.unwrap() {
            given.push((names.iter().map(|name| (name.first, name.last)).collect(), foreign));
        }
        given
    }

    #[tokio::test]
    async fn a_chain_is_given_day_by_day_and_what_is_no_segment_with_it() {
        let strange = format!("{}/x.txt", segments_folder("a"));
        let stranger = format!("{}/date=2026-11-02/x.txt", segments_folder("a"));
        let keys = [key(1, 1, 3), key(1, 4, 4), key(2, 5, 9), key(4, 10, 10)];
        let keys = [&keys[..], &[strange.clone(), stranger.clone()]].concat();
        let expected = [
            (vec![(1, 3), (4, 4)], vec![strange]),
            (vec![(5, 9)], vec![stranger]),
            (vec![(10, 10)], Vec::new()),
        ];
        assert_eq!(given(&keys).await, expected);
        assert!(given(&[]).await.is_empty());
    }

    #[tokio::test]
    async fn where_the_clock_was_put_back_the_order_is_that_of_the_chain() {
        // The days on which records 5 to 9 and 12 were stored come after those of the records behind them.
        let keys = [key(1, 1, 4), key(8, 5, 9), key(2, 10, 11), key(8, 12, 12), key(3, 13, 13)];
        let all: Vec<_> = given(&keys).await.into_iter().flat_map(|(names, _)| names).collect();
        assert_eq!(all, [(1, 4), (5, 9), (10, 11), (12, 12), (13, 13)]);
        let part = given(&keys).await.remove(0).0;
        assert_eq!(part, [(1, 4)], "what comes before all others is given with its day");
    }

    #[tokio::test]
    async fn a_day_that_begins_with_other_things_is_given_in_order_as_well() {
        let folder = segments_folder("a");
        let strange = (0..40).map(|at| format!("{folder}/date=2026-11-09/{at:02}.txt"));
        let keys: Vec<_> = strange.chain([key(1, 3, 3), key(2, 4, 4), key(9, 1, 2)]).collect();
        let all: Vec<_> = given(&keys).await.into_iter().flat_map(|(names, _)| names).collect();
        assert_eq!(all, [(1, 2), (3, 3), (4, 4)]);
    }
}
