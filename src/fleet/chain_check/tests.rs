//! A chain that is whole is sound; whatever is done to it is named, and where.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::fleet::examples::{ExampleLog, chain, sealed_by};
use crate::fleet::segment::{self, SealedSegment};

/// What lies in the store: names and bytes.
type Store = Vec<(String, Bytes)>;

fn stored(segments: &[SealedSegment]) -> Store {
    segments.iter().map(|it| (it.name.to_string(), it.bytes.clone())).collect()
}

fn check(store: &Store, expired: bool) -> ChainReport {
    let mut listed: Vec<_> = store
        .iter()
        .map(|(key, bytes)| {
            (ListedSegment { key: key.clone(), name: SegmentName::parse(key) }, bytes)
        })
        .collect();
    listed.sort_by_key(|(listed, _)| listed.name.clone());
    let mut check = ChainCheck::new(expired);
    let key = sealed_by("a", crate::activity::record::Hash([0; 32]), None).verifier.clone();
    for (listed, bytes) in listed {
        check.add(&listed, SegmentFacts::of(bytes, &key));
    }
    check.finish()
}

fn faults(report: &ChainReport) -> Vec<(ChainFault, Option<u64>, Option<u64>)> {
    report.faults.iter().map(|found| (found.fault, found.first, found.last)).collect()
}

#[test]
fn a_whole_chain_is_sound() {
    let store = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5], None));
    let report = check(&store, false);
    assert_eq!((report.sound, report.segments, report.records), (true, 3, 9));
    assert_eq!((report.first, report.last), (1, 9));
    assert!(report.notes.is_empty());
    assert!(check(&Vec::new(), false).sound);
}

#[test]
fn a_removed_segment_is_named_by_its_records() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5, 2], None));
    let without = |at: usize| {
        let mut store = whole.clone();
        store.remove(at);
        store
    };
    assert_eq!(faults(&check(&without(0), false)), [(ChainFault::Removed, Some(1), Some(3))]);
    assert_eq!(faults(&check(&without(1), false)), [(ChainFault::Removed, Some(4), Some(4))]);
    assert_eq!(faults(&check(&without(2), false)), [(ChainFault::Removed, Some(5), Some(9))]);
    assert!(check(&without(0), true).sound, "at the beginning they may have expired");
    assert_eq!(faults(&check(&without(1), true)), [(ChainFault::Removed, Some(4), Some(4))]);
    // Of the end nobody knows from the segments alone.
    assert!(check(&without(3), false).sound);
}

#[test]
fn replaced_and_reordered_segments_are_told_apart() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 3, 3, 3], None));
    let mut store = whole.clone();
    store[2].1 = whole[1].1.clone();
    assert_eq!(faults(&check(&store, false)), [(ChainFault::Replaced, Some(7), Some(9))]);
    let mut store = whole.clone();
    (store[1].1, store[2].1) = (whole[2].1.clone(), whole[1].1.clone());
    let reordered = ChainFault::Reordered;
    assert_eq!(
        faults(&check(&store, false)),
        [(reordered, Some(4), Some(6)), (reordered, Some(7), Some(9))]
    );
    // By another node's, under its own name or not.
    let mut other = ExampleLog::new(2);
    let by = sealed_by("b", other.head(), None);
    let foreign = segment::seal(&other.records(3), by.by()).unwrap();
    let mut store = whole.clone();
    store[3].1 = foreign.bytes.clone();
    assert_eq!(faults(&check(&store, false)), [(ChainFault::Replaced, Some(10), Some(12))]);
}

#[test]
fn an_altered_segment_is_named_once_and_the_chain_goes_on() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 3, 3], None));
    let mut store = whole.clone();
    let mut bytes = store[1].1.to_vec();
    let at = bytes.windows(9).position(|window| window == b"an answer").unwrap();
    bytes[at] ^= 1;
    store[1].1 = bytes.into();
    let report = check(&store, false);
    assert_eq!(faults(&report), [(ChainFault::Altered, Some(4), Some(6))]);
    assert_eq!((report.sound, report.segments, report.last), (false, 2, 9));
    assert_eq!(report.faults[0].at, whole[1].0);
}

#[test]
fn a_fork_is_seen_wherever_it_begins() {
    let mut log = ExampleLog::new(1);
    let first = chain(&mut log, &[3], None);
    let previous = Some(first[0].checkpoint.hash());
    let mut other = log.clone();
    let one = chain(&mut log, &[3, 3], previous);
    // The same log was put back, and went another way.
    other.skip(0);
    let mut rows = crate::fleet::record_rows::RecordCollector::new(other.log);
    let mut apart = ExampleLog::new(1);
    apart.records(3);
    let after = apart.head();
    for _ in 0..3 {
        apart.push(&mut rows, b"other", b"other");
    }
    let fork = segment::seal(&rows.finish(), sealed_by("a", after, previous).by()).unwrap();
    let next = chain(&mut apart, &[2], Some(fork.checkpoint.hash()));
    let mut store = stored(&first);
    store.extend(stored(&one));
    store.extend(stored(std::slice::from_ref(&fork)));
    let report = check(&store, false);
    assert_eq!(faults(&report), [(ChainFault::Fork, Some(4), Some(6))], "{report:?}");
    store.extend(stored(&next));
    let found = faults(&check(&store, false));
    assert!(
        found.len() == 2 && found.iter().all(|(fault, ..)| *fault == ChainFault::Fork),
        "{found:?}"
    );
    // One that was sealed after another checkpoint than the one that is there.
    let mut store = stored(&first);
    let mut log = ExampleLog::new(1);
    log.records(3);
    store.extend(stored(&chain(&mut log, &[3], Some([9; 32]))));
    assert_eq!(faults(&check(&store, false)), [(ChainFault::Fork, Some(4), Some(6))]);
}

#[test]
fn a_hole_of_the_log_is_a_gap_unless_the_log_names_it() {
    let mut log = ExampleLog::new(1);
    let mut segments = chain(&mut log, &[3], None);
    log.skip(4);
    let follows = log.head();
    segments.extend(chain(&mut log, &[2], Some(segments[0].checkpoint.hash())));
    assert_eq!(faults(&check(&stored(&segments), false)), [(ChainFault::Gap, Some(4), Some(7))]);
    let key = sealed_by("a", follows, None).verifier.clone();
    let named = |name: &dyn Fn(&mut SegmentFacts)| {
        let mut check = ChainCheck::new(false);
        for sealed in &segments {
            let (key_of, name_of) = (sealed.name.to_string(), Some(sealed.name.clone()));
            let mut facts = SegmentFacts::of(&sealed.bytes, &key).unwrap();
            if facts.checkpoint.first == 8 {
                name(&mut facts);
            }
            check.add(&ListedSegment { key: key_of, name: name_of }, Ok(facts));
        }
        check.finish()
    };
    let report = named(&|facts| facts.gaps.push(Gap::new(4, 7, follows)));
    assert!(report.sound && report.gaps.len() == 1, "{report:?}");
    // What retention removed while the node was in no fleet.
    let report = named(&|facts| facts.kept_from.push((8, follows)));
    assert!(report.sound && report.notes.len() == 1, "{report:?}");
    let report = named(&|facts| facts.gaps.push(Gap::new(4, 6, follows)));
    assert_eq!(faults(&report), [(ChainFault::Gap, Some(4), Some(7))]);
    let other = crate::activity::record::Hash([0; 32]);
    let report = named(&|facts| facts.kept_from.push((8, other)));
    assert_eq!(faults(&report), [(ChainFault::Gap, Some(4), Some(7))]);
}

#[test]
fn what_is_no_segment_is_foreign() {
    let mut store = stored(&chain(&mut ExampleLog::new(1), &[3], None));
    store.push(("date=2026-01-01/notes.txt".into(), Bytes::from_static(b"x")));
    assert_eq!(faults(&check(&store, false)), [(ChainFault::Foreign, None, None)]);
}

/// The name of an object that claims these records.
fn claims(first: u64, last: u64, head: u8) -> String {
    format!("date=2026-01-01/{first:020}-{last:020}-{head:016x}.parquet")
}

#[test]
fn an_object_that_proves_nothing_makes_no_segment_a_fork() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 3, 3, 3], None));
    let junk = Bytes::from_static(b"junk");
    let with = |claimed: &[(u64, u64)]| {
        let mut store = whole.clone();
        let named = (0..).zip(claimed).map(|(head, (first, last))| claims(*first, *last, head));
        store.extend(named.map(|name| (name, junk.clone())));
        store
    };
    for claimed in [
        &[(5, 8)][..],
        &[(1, 1_000_000)],
        &[(1, u64::MAX), (2, u64::MAX)],
        &[(12, 12), (40, 50)],
        // More than there are ends that are followed.
        &[(3, 4), (4, 4), (4, 5), (4, 6), (4, 7), (4, 8), (4, 9), (4, 10), (4, 11), (4, 12)],
    ] {
        let report = check(&with(claimed), false);
        let altered = |(first, last): &(u64, u64)| (ChainFault::Altered, Some(*first), Some(*last));
        let expected: Vec<_> = claimed.iter().map(altered).collect();
        assert_eq!(faults(&report), expected);
        assert_eq!((report.segments, report.last), (4, 12));
    }
    // And hides none that is missing behind it.
    let mut store = with(&[(1, 5), (1, u64::MAX)]);
    store.retain(|(name, _)| *name != whole[2].0);
    let found = faults(&check(&store, false));
    assert_eq!(found[2..], [(ChainFault::Removed, Some(7), Some(9))]);
}

#[test]
fn what_is_missing_beside_altered_segments_is_named() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5, 2, 2], None));
    let mut store = whole.clone();
    store[2].1 = Bytes::from_static(b"junk");
    store.remove(3);
    store.remove(1);
    let removed = |first, last| (ChainFault::Removed, Some(first), Some(last));
    let altered = (ChainFault::Altered, Some(5), Some(9));
    assert_eq!(faults(&check(&store, false)), [altered, removed(4, 4), removed(10, 11)]);
    // At the beginning: what has expired is no fault, whatever lies there.
    let mut store = whole[1..].to_vec();
    store.push((claims(1, 1, 7), Bytes::from_static(b"junk")));
    let (one, two_three) = ((ChainFault::Altered, Some(1), Some(1)), removed(2, 3));
    assert_eq!(faults(&check(&store, false)), [one, two_three]);
    assert_eq!(faults(&check(&store, true)), [one]);
}

proptest! {
    #[test]
    fn whatever_is_done_to_the_store_but_cutting_its_end_is_found(
        sizes in prop::collection::vec(1..4_u64, 2..7),
        at in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(), what in 0..4_u8, bit in any::<prop::sample::Index>(),
    ) {
        let whole = stored(&chain(&mut ExampleLog::new(1), &sizes, None));
        let (at, to) = (at.index(whole.len()), to.index(whole.len()));
        let mut store = whole.clone();
        match what {
            0 => {
                prop_assume!(at + 1 < whole.len());
                store.remove(at);
            }
            1 => {
                prop_assume!(at != to);
                store[at].1 = whole[to].1.clone();
            }
            2 => {
                prop_assume!(at != to);
                (store[at].1, store[to].1) = (whole[to].1.clone(), whole[at].1.clone());
            }
            _ => {
                // Of the canonical bytes, of which all else is derived.
                let mut bytes = store[at].1.to_vec();
                let from = bytes.windows(9).position(|window| window == b"an answer").unwrap();
                bytes[from + bit.index(9)] ^= 1;
                store[at].1 = bytes.into();
            }
        }
        let report = check(&store, false);
        let expected = [ChainFault::Removed, ChainFault::Replaced, ChainFault::Reordered, ChainFault::Altered];
        prop_assert!(!report.sound);
        prop_assert_eq!(report.faults[0].fault, expected[usize::from(what)], "{:?}", report);
        if what > 0 {
            prop_assert!(report.faults.iter().any(|found| found.at == whole[at].0), "{:?}", report);
        }
        prop_assert!(check(&whole, false).sound);
    }
}
