//! Chains of segments in the store: listing their names in order and detecting gaps from names alone.
//!
//! [`NamedChain`] summarizes segment names without reading a segment. A name is not authenticated, but the removal of a
//! segment shows as a gap between names.
//!
//! [`ChainDays`] streams the names of one node in chain order, one day folder at a time, with bounded memory. Names are
//! also ordered across days, unless the node's clock was set back: then a day holds segments that precede some of an
//! earlier day. So the first record of each day is determined first, and a day yields only names that precede all later
//! days.
//!
//! [`watch`] scans the chains of nodes that this node does not follow, and publishes gaps.

pub mod check;
pub mod follow;
pub mod place;
pub mod rejoin;
pub mod watch;

use std::ops::ControlFlow;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use utoipa::ToSchema;

use crate::bucket::{Bucket, BucketError, MAX_LISTED};
use crate::chain::place::segments_folder;
use crate::segment::{ChainGap, SegmentName};

/// Maximum number of gaps reported per chain.
pub(crate) const MAX_GAPS: usize = 64;

/// A chain, or its newest part, summarized from its segments' names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct NamedChain {
    /// First record scanned; 0 for none.
    pub first: u64,
    /// Last record scanned.
    pub last: u64,
    /// Number of segments scanned.
    pub segments: u64,
    /// Gaps between segments, at most [`MAX_GAPS`].
    pub gaps: Vec<ChainGap>,
    /// Total number of missing records.
    pub missing_records: u64,
    /// Number of segments that begin before their predecessor ends: a second chain exists.
    pub overlaps: u64,
    /// True if more gaps or segments exist than are listed here.
    pub more: bool,
}

impl NamedChain {
    /// Summarizes names given in any order; `more` if the listing was truncated.
    pub(crate) fn of(mut names: Vec<SegmentName>, more: bool) -> Self {
        names.sort();
        // The same segment may be listed under two days.
        names.dedup_by(|a, b| a.is_same(b));
        let mut chain = Self { more, ..Self::default() };
        for name in &names {
            if chain.segments == 0 {
                chain.first = name.first;
            } else if name.first <= chain.last {
                chain.overlaps += 1;
            } else if name.first > chain.last + 1 {
                let gap = ChainGap { first: chain.last + 1, last: name.first - 1 };
                chain.missing_records += gap.last - gap.first + 1;
                match chain.gaps.len() < MAX_GAPS {
                    true => chain.gaps.push(gap),
                    false => chain.more = true,
                }
            }
            chain.segments += 1;
            chain.last = chain.last.max(name.last);
        }
        chain
    }

    /// Appends names given in any order; `None` unless each segment continues its predecessor.
    pub(crate) fn followed_by(&self, mut names: Vec<SegmentName>) -> Option<Self> {
        names.sort();
        let mut chain = self.clone();
        for name in &names {
            if chain.segments == 0 || chain.last.checked_add(1) != Some(name.first) {
                return None;
            }
            chain.segments += 1;
            chain.last = name.last;
        }
        Some(chain)
    }

    /// Describes the faults, one line per kind.
    pub(crate) fn faults(&self, node: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let look = "run mcpproxy activity verify --store for details";
        if let Some(ChainGap { first, last }) = self.gaps.first() {
            let rest = match self.gaps.len() {
                1 => String::new(),
                gaps => format!(", and {} more gaps", gaps - 1),
            };
            faults.push(format!(
                "node '{node}': records {first} to {last} are missing from the store{rest}: {look}"
            ));
        }
        if self.overlaps > 0 {
            faults.push(format!(
                "node '{node}': {} segments overlap their predecessor: {look}",
                self.overlaps
            ));
        }
        faults
    }
}

/// Number of objects read to find the first record of a day.
const FIRST_OBJECTS: usize = 16;
/// Number of days probed concurrently.
const AT_A_TIME: usize = 8;
/// Maximum number of foreign objects reported per day.
const MAX_FOREIGN: usize = 1_000;

/// Iterator over a chain's segment names in chain order.
#[derive(Debug)]
pub(crate) struct ChainDays<'a> {
    bucket: &'a Bucket,
    folder: String,
    days: Vec<Day>,
    next: usize,
    /// Names of earlier days that names of later days may still precede.
    kept: Vec<SegmentName>,
    /// Keys of foreign objects that were not yielded yet.
    foreign: Vec<String>,
}

#[derive(Debug)]
struct Day {
    folder: String,
    /// Lower bound of the first record of its segments.
    first: u64,
}

/// Next names of a chain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainPart {
    /// Segments in chain order, after all that were yielded before.
    pub names: Vec<SegmentName>,
    /// Keys of objects that are not named like a segment; at most 1000 per day.
    pub foreign: Vec<String>,
}

impl<'a> ChainDays<'a> {
    /// Opens the segments folder of a node.
    pub(crate) async fn of(bucket: &'a Bucket, node: &str) -> Result<Self, BucketError> {
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
                // If none of the first objects is a segment, the bound is unknown; an empty day has no
                // segments.
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

    /// Yields the next names; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`BucketError`], also if more than [`MAX_LISTED`] names have no known order.
    pub(crate) async fn next(&mut self) -> Result<Option<ChainPart>, BucketError> {
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
    use super::*;
    use bytes::Bytes;

    fn name(day: u32, first: u64, last: u64, head: char) -> SegmentName {
        let head: String = std::iter::repeat_n(head, 16).collect();
        let text = format!("date=2026-11-{day:02}/{first:020}-{last:020}-{head}.parquet");
        SegmentName::parse(&text).unwrap()
    }

    fn gap(first: u64, last: u64) -> ChainGap {
        ChainGap { first, last }
    }

    #[test]
    fn gaps_between_names_are_reported_in_any_input_order() {
        let whole = [name(1, 5, 7, 'a'), name(1, 8, 8, 'b'), name(2, 9, 20, 'c')];
        let mut names = whole.to_vec();
        names.reverse();
        let chain = NamedChain::of(names.clone(), false);
        assert_eq!((chain.first, chain.last, chain.segments), (5, 20, 3));
        assert!(chain.gaps.is_empty() && chain.overlaps == 0 && chain.faults("a").is_empty());
        names.remove(1);
        let chain = NamedChain::of(names, false);
        assert_eq!((chain.gaps.clone(), chain.missing_records), (vec![gap(8, 8)], 1));
        let reported = chain.faults("a").join("\n");
        assert!(
            reported.contains("node 'a': records 8 to 8 are missing from the store"),
            "{reported}"
        );
        // A duplicate under two days is one segment; a different one in its place is a second chain.
        let twice = [&whole[..], &[name(3, 9, 20, 'c')]].concat();
        assert_eq!(NamedChain::of(twice, false), NamedChain::of(whole.to_vec(), false));
        let fork = [&whole[..], &[name(2, 9, 12, 'd')]].concat();
        assert_eq!(NamedChain::of(fork, false).overlaps, 1);
        assert_eq!(NamedChain::of(Vec::new(), false), NamedChain::default());
    }

    #[test]
    fn followed_by_accepts_only_contiguous_names() {
        let chain = NamedChain::of(vec![name(1, 5, 7, 'a')], false);
        let on = [name(2, 9, 20, 'c'), name(1, 8, 8, 'b')];
        let whole = [&[name(1, 5, 7, 'a')][..], &on[..]].concat();
        assert_eq!(chain.followed_by(on.to_vec()), Some(NamedChain::of(whole, false)));
        assert_eq!(chain.followed_by(Vec::new()), Some(chain.clone()));
        for odd in [name(1, 9, 9, 'b'), name(1, 7, 8, 'b'), name(1, 5, 7, 'a')] {
            assert_eq!(chain.followed_by(vec![odd]), None);
        }
        assert_eq!(NamedChain::default().followed_by(vec![name(1, 1, 1, 'a')]), None);
    }

    #[test]
    fn many_gaps_list_the_first_and_count_all() {
        let names = (0..1000).map(|at| name(1, at * 10 + 1, at * 10 + 5, 'a')).collect();
        let chain = NamedChain::of(names, false);
        assert_eq!((chain.gaps.len(), chain.missing_records), (MAX_GAPS, 999 * 5));
        assert!(chain.more);
    }

    /// Key of a segment with these records on the given day of the month.
    fn key(day: u8, first: u64, last: u64) -> String {
        let folder = segments_folder("a");
        format!("{folder}/date=2026-11-{day:02}/{first:020}-{last:020}-0101010101010101.parquet")
    }

    /// All parts yielded for these objects.
    async fn parts(keys: &[String]) -> Vec<(Vec<(u64, u64)>, Vec<String>)> {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        for key in keys {
            bucket.put(key, Bytes::from_static(b"x")).await.unwrap();
        }
        let mut days = ChainDays::of(&bucket, "a").await.unwrap();
        let mut parts = Vec::new();
        while let Some(ChainPart { names, foreign }) = days.next().await.unwrap() {
            parts.push((names.iter().map(|name| (name.first, name.last)).collect(), foreign));
        }
        parts
    }

    #[tokio::test]
    async fn days_are_yielded_in_order_with_foreign_objects() {
        let strange = format!("{}/x.txt", segments_folder("a"));
        let stranger = format!("{}/date=2026-11-02/x.txt", segments_folder("a"));
        let keys = [key(1, 1, 3), key(1, 4, 4), key(2, 5, 9), key(4, 10, 10)];
        let keys = [&keys[..], &[strange.clone(), stranger.clone()]].concat();
        let expected = [
            (vec![(1, 3), (4, 4)], vec![strange]),
            (vec![(5, 9)], vec![stranger]),
            (vec![(10, 10)], Vec::new()),
        ];
        assert_eq!(parts(&keys).await, expected);
        assert!(parts(&[]).await.is_empty());
    }

    #[tokio::test]
    async fn clock_set_back_preserves_chain_order() {
        // Records 5 to 9 and 12 were uploaded on later days than their successors.
        let keys = [key(1, 1, 4), key(8, 5, 9), key(2, 10, 11), key(8, 12, 12), key(3, 13, 13)];
        let all: Vec<_> = parts(&keys).await.into_iter().flat_map(|(names, _)| names).collect();
        assert_eq!(all, [(1, 4), (5, 9), (10, 11), (12, 12), (13, 13)]);
        let part = parts(&keys).await.remove(0).0;
        assert_eq!(part, [(1, 4)], "records that precede all others are yielded with their day");
    }

    #[tokio::test]
    async fn day_starting_with_foreign_objects_keeps_order() {
        let folder = segments_folder("a");
        let strange = (0..40).map(|at| format!("{folder}/date=2026-11-09/{at:02}.txt"));
        let keys: Vec<_> = strange.chain([key(1, 3, 3), key(2, 4, 4), key(9, 1, 2)]).collect();
        let all: Vec<_> = parts(&keys).await.into_iter().flat_map(|(names, _)| names).collect();
        assert_eq!(all, [(1, 2), (3, 3), (4, 4)]);
    }
}
