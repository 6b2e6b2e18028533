//! What the names of a chain's segments say of it, without a byte of theirs: from where to where it goes, and what is missing.
//! Pure. A name proves nothing, but a segment that was removed is missed by it.

use serde::Serialize;
use utoipa::ToSchema;

use super::segment::SegmentName;

/// Gaps of one chain that are shown at most; of more it is said that there are.
pub const MAX_GAPS: usize = 64;

/// Records that stand in no segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChainGap {
    /// The first of them.
    pub first: u64,
    /// The last.
    pub last: u64,
}

/// A chain, or the newest part of it, as its segments are named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct NamedChain {
    /// The first record that was looked at; 0 for none.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// Segments that were looked at.
    pub segments: u64,
    /// What is missing between them, at most [`MAX_GAPS`].
    pub gaps: Vec<ChainGap>,
    /// How many records that are, in all.
    pub missing_records: u64,
    /// How often a segment begins before the one before it has ended: there are two chains.
    pub overlaps: u64,
    /// There are more gaps, or more segments, than are shown or were looked at.
    pub more: bool,
}

impl NamedChain {
    /// What these names say, in whatever order; `more` if there are more than these.
    #[must_use]
    pub fn of(mut names: Vec<SegmentName>, more: bool) -> Self {
        names.sort();
        // The same segment may stand under two days.
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

    /// The chain with these names behind it, in whatever order; `None` unless each of them goes on where the one before it ends.
    #[must_use]
    pub fn followed_by(&self, mut names: Vec<SegmentName>) -> Option<Self> {
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

    /// What is wrong, a line for each kind.
    #[must_use]
    pub fn faults(&self, node: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let look = "mcpproxy activity verify --store tells why";
        if let Some(ChainGap { first, last }) = self.gaps.first() {
            let rest = match self.gaps.len() {
                1 => String::new(),
                gaps => format!(", and {} more gaps", gaps - 1),
            };
            faults.push(format!(
                "node '{node}': records {first} to {last} are in no segment of the store{rest}: {look}"
            ));
        }
        if self.overlaps > 0 {
            faults.push(format!(
                "node '{node}': {} segments begin before the one before them has ended: {look}",
                self.overlaps
            ));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(day: u32, first: u64, last: u64, head: char) -> SegmentName {
        let head: String = std::iter::repeat_n(head, 16).collect();
        let text = format!("date=2026-11-{day:02}/{first:020}-{last:020}-{head}.parquet");
        SegmentName::parse(&text).unwrap()
    }

    fn gap(first: u64, last: u64) -> ChainGap {
        ChainGap { first, last }
    }

    #[test]
    fn what_is_missing_between_names_is_told_in_whatever_order_they_come() {
        let whole = [name(1, 5, 7, 'a'), name(1, 8, 8, 'b'), name(2, 9, 20, 'c')];
        let mut names = whole.to_vec();
        names.reverse();
        let chain = NamedChain::of(names.clone(), false);
        assert_eq!((chain.first, chain.last, chain.segments), (5, 20, 3));
        assert!(chain.gaps.is_empty() && chain.overlaps == 0 && chain.faults("a").is_empty());
        names.remove(1);
        let chain = NamedChain::of(names, false);
        assert_eq!((chain.gaps.clone(), chain.missing_records), (vec![gap(8, 8)], 1));
        let told = chain.faults("a").join("\n");
        assert!(told.contains("node 'a': records 8 to 8 are in no segment"), "{told}");
        // The same one under two days is one; another in its place is a second chain.
        let twice = [&whole[..], &[name(3, 9, 20, 'c')]].concat();
        assert_eq!(NamedChain::of(twice, false), NamedChain::of(whole.to_vec(), false));
        let fork = [&whole[..], &[name(2, 9, 12, 'd')]].concat();
        assert_eq!(NamedChain::of(fork, false).overlaps, 1);
        assert_eq!(NamedChain::of(Vec::new(), false), NamedChain::default());
    }

    #[test]
    fn a_chain_goes_on_only_where_it_has_ended() {
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
    fn of_many_gaps_the_first_are_shown_and_all_are_counted() {
        let names = (0..1000).map(|at| name(1, at * 10 + 1, at * 10 + 5, 'a')).collect();
        let chain = NamedChain::of(names, false);
        assert_eq!((chain.gaps.len(), chain.missing_records), (MAX_GAPS, 999 * 5));
        assert!(chain.more);
    }
}
