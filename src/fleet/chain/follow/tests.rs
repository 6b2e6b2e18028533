//! Tests of the chain follower against a manipulated store: every valid record is accepted once, everything else is
//! reported.

use bytes::Bytes;
use proptest::prelude::*;

use crate::chain::follow::*;
use crate::segment;
use crate::segment::SealedSegment;
use crate::segment::examples::{ExampleLog, chain, sealed_by};

const FOLDER: &str = "nodes/a/segments";
/// Number of failed confirmations after which a test continues.
const MAX_DISPLACED: usize = 5;

/// Keys and bytes in key order.
type Store = Vec<(String, Bytes)>;

fn stored(segments: &[SealedSegment]) -> Store {
    segments.iter().map(|it| (format!("{FOLDER}/{}", it.name), it.bytes.clone())).collect()
}

/// Follower and its copy on disk.
struct Following {
    follower: ChainFollower,
    now: u64,
    taken: Vec<(u64, u64)>,
    steps: usize,
    /// True if another store is in place of the fleet's.
    is_swapped: bool,
    /// Number of failed confirmations.
    displaced: usize,
}

impl Following {
    fn new() -> Self {
        Self::from(FollowMark::new("key".into(), NodeId([1; 16])))
    }

    fn from(mark: FollowMark) -> Self {
        let log = NodeId([1; 16]);
        let follower = ChainFollower::new(mark, log, FOLDER.into(), 0, 1000);
        Self { follower, now: 0, taken: Vec::new(), steps: 0, is_swapped: false, displaced: 0 }
    }

    /// Runs until the store has nothing new. Each listing contains at most `max` objects.
    fn follow(&mut self, store: &Store, max: usize) {
        let verifier = sealed_by("a", Hash([0; 32]), None).verifier.clone();
        // Listing one object at a time takes one round per object.
        let (mut idle, enough) = (0, 2 * (store.len() + 2));
        while idle < enough && self.displaced < MAX_DISPLACED {
            self.steps += 1;
            assert!(self.steps < 10_000, "{:?}", self.follower);
            match self.follower.step(self.now) {
                FollowStep::Wait(until) => self.now = until,
                FollowStep::List => {
                    let after = self.follower.after();
                    let mut objects: Vec<_> = store.iter().map(|it| &it.0).collect();
                    objects.retain(|key| **key > after);
                    objects.sort();
                    let name = |key: &str| {
                        SegmentName::parse(key.strip_prefix(FOLDER)?.strip_prefix('/')?)
                    };
                    let newest = objects.last().and_then(|key| name(key)).map_or(0, |it| it.last);
                    let more = objects.len().saturating_sub(max) as u64;
                    let object = |key: &&String| SeenObject {
                        key: (*key).clone(),
                        name: name(key),
                        size: 1000,
                    };
                    let objects = objects.iter().take(max).map(object).collect();
                    self.follower.listed(SeenPart { objects, more, newest }, self.now);
                    idle += 1;
                }
                FollowStep::Pass(mark) => {
                    idle = 0;
                    self.follower.committed(*mark);
                }
                FollowStep::Confirm if self.is_swapped => {
                    self.follower.displaced(self.now);
                    self.displaced += 1;
                }
                FollowStep::Confirm => self.follower.confirmed(),
                FollowStep::Heal { first, last } => {
                    let mut found = false;
                    for (key, bytes) in store {
                        let name = key.strip_prefix(FOLDER).and_then(|it| it.strip_prefix('/'));
                        let name = name.and_then(SegmentName::parse);
                        let Some(name) = name.filter(|it| first <= it.first && it.last <= last)
                        else {
                            continue;
                        };
                        let Ok(facts) = SegmentFacts::of(bytes, &verifier) else { continue };
                        let Some(mark) = self.follower.heals(&name, &facts) else { continue };
                        self.taken.push((name.first, name.last));
                        self.follower.healed(*mark);
                        found = true;
                    }
                    self.follower.sought(found, self.now);
                }
                FollowStep::Fetch(key) => {
                    idle = 0;
                    let bytes = &store.iter().find(|it| it.0 == key).unwrap().1;
                    let facts = SegmentFacts::of(bytes, &verifier);
                    match self.follower.judge(facts.as_ref(), self.now) {
                        SegmentJudgment::Take(mark) | SegmentJudgment::Pass(mark)
                            if self.is_swapped && self.follower.needs_place(&mark) =>
                        {
                            self.follower.displaced(self.now);
                            self.displaced += 1;
                        }
                        SegmentJudgment::Take(mark) => {
                            let checkpoint = facts.unwrap().checkpoint;
                            self.taken.push((checkpoint.first, checkpoint.last));
                            assert_eq!(FollowMark::decode(&mark.encode()).as_ref(), Some(&*mark));
                            self.follower.committed(*mark);
                        }
                        SegmentJudgment::Pass(mark) => self.follower.committed(*mark),
                        SegmentJudgment::Again => {}
                    }
                }
            }
        }
    }

    fn faults(&self) -> Vec<(ChainFault, Option<u64>, Option<u64>)> {
        let faults = &self.follower.mark().faults;
        faults.iter().map(|found| (found.fault, found.first, found.last)).collect()
    }

    fn gaps(&self) -> Vec<(u64, u64, GapCause)> {
        let gaps = &self.follower.mark().gaps;
        gaps.iter().map(|gap| (gap.first, gap.last, gap.cause)).collect()
    }
}

fn followed(store: &Store) -> Following {
    let mut following = Following::new();
    following.follow(store, 1000);
    following
}

#[test]
fn complete_chain_is_accepted_in_order_and_resumed() {
    let mut log = ExampleLog::new(1);
    let one = chain(&mut log, &[3, 1, 5], None);
    let mut following = Following::new();
    following.follow(&stored(&one), 2);
    assert_eq!(following.taken, [(1, 3), (4, 4), (5, 9)]);
    let two = chain(&mut log, &[2, 2], Some(one[2].checkpoint.hash()));
    let all = stored(&[one, two].concat());
    // Another process resumes from the mark on disk.
    let mark = FollowMark::decode(&following.follower.mark().encode()).unwrap();
    let mut again = Following::from(mark);
    again.follow(&all, 1);
    assert_eq!(again.taken, [(10, 11), (12, 13)]);
    let mark = again.follower.mark();
    assert_eq!((mark.first, mark.last, mark.records, mark.segments), (1, 13, 13, 5));
    assert!(mark.faults.is_empty() && mark.gaps.is_empty());
    assert_eq!(again.follower.behind(), (0, 0));
}

#[test]
fn lag_counts_listed_and_unlisted_objects() {
    let store = stored(&chain(&mut ExampleLog::new(1), &[2; 5], None));
    let mut following = Following::new();
    assert_eq!(following.follower.step(0), FollowStep::List);
    let name = |key: &str| SegmentName::parse(key.strip_prefix("nodes/a/segments/")?);
    let object =
        |at: usize| SeenObject { key: store[at].0.clone(), name: name(&store[at].0), size: 1 };
    let part = SeenPart { objects: vec![object(0), object(1)], more: 3, newest: 10 };
    following.follower.listed(part, 0);
    assert_eq!(following.follower.behind(), (10, 5));
    following.follow(&store, 2);
    assert_eq!(following.follower.behind(), (0, 0));
}

#[test]
fn removed_segment_is_a_fault_and_a_gap_and_following_continues() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5, 2], None));
    let mut store = whole.clone();
    store.remove(1);
    let following = followed(&store);
    assert_eq!(following.faults(), [(ChainFault::Removed, Some(4), Some(4))]);
    assert_eq!(following.gaps(), [(4, 4, GapCause::Store)]);
    assert_eq!(following.taken, [(1, 3), (5, 9), (10, 11)]);
    assert!(following.now >= SETTLE_MS);
    // Segments missing at the beginning may have expired: only the copy's start is recorded.
    let following = followed(&whole[2..].to_vec());
    assert_eq!((following.faults(), following.follower.mark().first), (vec![], 5));
}

#[test]
fn late_segment_is_not_a_fault() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5], None));
    let mut following = Following::new();
    let mut store = whole.clone();
    store.remove(1);
    // The follower retries until just before the fault would settle.
    while following.now == 0 {
        match following.follower.step(0) {
            FollowStep::Wait(until) => following.now = until - 1,
            _ => {
                let now = following.now;
                let mut one = Following { taken: following.taken, ..Following::new() };
                std::mem::swap(&mut one.follower, &mut following.follower);
                one.now = now;
                step(&mut one, &store);
                following = one;
            }
        }
    }
    following.follow(&whole, 1000);
    assert_eq!(following.taken, [(1, 3), (4, 4), (5, 9)]);
    assert!(following.faults().is_empty() && following.gaps().is_empty());
}

#[test]
fn chain_whose_first_segment_is_late_is_accepted_from_the_start() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5], None));
    let mut following = Following::new();
    // The later segment is listed and fetched, but not accepted: its checkpoint names a predecessor.
    for _ in 0..3 {
        step(&mut following, &whole[1..].to_vec());
    }
    assert_eq!(following.taken, []);
    following.follow(&whole, 1000);
    assert_eq!(following.taken, [(1, 3), (4, 4), (5, 9)]);
    assert!(following.now < 2 * SETTLE_MS + 10_000, "{}", following.now);
    // The first segment of a chain is accepted immediately.
    let mut following = Following::new();
    for _ in 0..2 {
        step(&mut following, &whole);
    }
    assert_eq!((following.taken, following.now), (vec![(1, 3)], 0));
}

fn step(following: &mut Following, store: &Store) {
    let verifier = sealed_by("a", Hash([0; 32]), None).verifier.clone();
    match following.follower.step(following.now) {
        FollowStep::Wait(_) | FollowStep::Heal { .. } => {}
        FollowStep::Confirm => following.follower.confirmed(),
        FollowStep::Pass(mark) => following.follower.committed(*mark),
        FollowStep::List => {
            let name = |key: &str| SegmentName::parse(key.strip_prefix("nodes/a/segments/")?);
            let object =
                |it: &(String, Bytes)| SeenObject { key: it.0.clone(), name: name(&it.0), size: 1 };
            let objects = store.iter().map(object).collect();
            following.follower.listed(SeenPart { objects, more: 0, newest: 9 }, following.now);
        }
        FollowStep::Fetch(key) => {
            let bytes = &store.iter().find(|it| it.0 == key).unwrap().1;
            let facts = SegmentFacts::of(bytes, &verifier);
            if let SegmentJudgment::Take(mark) =
                following.follower.judge(facts.as_ref(), following.now)
            {
                let checkpoint = facts.unwrap().checkpoint;
                following.taken.push((checkpoint.first, checkpoint.last));
                following.follower.committed(*mark);
            }
        }
    }
}

#[test]
fn altered_or_replaced_segment_is_reported_with_its_records() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 3, 3, 3], None));
    let mut altered = whole.clone();
    let mut bytes = altered[1].1.to_vec();
    let at = bytes.windows(9).position(|window| window == b"an answer").unwrap();
    bytes[at] ^= 1;
    altered[1].1 = bytes.into();
    let mut replaced = whole.clone();
    replaced[1].1 = whole[0].1.clone();
    for (store, fault) in [(altered, ChainFault::Altered), (replaced, ChainFault::Replaced)] {
        let following = followed(&store);
        assert_eq!(following.faults(), [(fault, Some(4), Some(6))]);
        assert_eq!(following.gaps(), [(4, 6, GapCause::Store)]);
        assert_eq!(following.taken, [(1, 3), (7, 9), (10, 12)]);
    }
}

#[test]
fn segment_name_without_its_content_does_not_advance_the_position() {
    let mut store = stored(&chain(&mut ExampleLog::new(1), &[3, 3], None));
    let name = |day: &str, first: u64, last: u64| {
        format!("{FOLDER}/date={day}/{first:020}-{last:020}-0000000000000000.parquet")
    };
    let junk = Bytes::from_static(b"junk");
    store.push((name("2026-01-01", 4, 1 << 20), junk.clone()));
    store.push((name("9999-12-31", 7, 7), junk.clone()));
    store.push((name("9999-12-31", 7, u64::MAX), junk.clone()));
    store.push((format!("{FOLDER}/date=2026-01-01/notes.txt"), junk));
    store.sort();
    let following = followed(&store);
    assert_eq!(following.taken, [(1, 3), (4, 6)]);
    assert_eq!(following.follower.mark().last, 6);
    assert_eq!(following.faults().len(), 4);
    assert!(following.gaps().is_empty());
}

#[test]
fn fork_is_reported_and_the_first_linked_segment_wins() {
    let mut log = ExampleLog::new(1);
    let first = chain(&mut log, &[3], None);
    let previous = Some(first[0].checkpoint.hash());
    let one = chain(&mut log.clone(), &[3, 3], previous);
    let mut apart = ExampleLog::new(1);
    apart.records(3);
    let after = apart.head();
    let mut rows = crate::parquet_table::RecordCollector::new(apart.log);
    for _ in 0..3 {
        apart.push(&mut rows, b"other", b"other");
    }
    let fork = segment::seal(&rows.finish(), sealed_by("a", after, previous).by()).unwrap();
    let mut store = stored(&[first, one].concat());
    store.extend(stored(std::slice::from_ref(&fork)));
    store.sort();
    let following = followed(&store);
    assert_eq!(following.faults()[0], (ChainFault::Fork, Some(4), Some(6)));
    assert!(following.taken.starts_with(&[(1, 3), (4, 6)]), "{:?}", following.taken);
    assert_eq!(following.taken.iter().filter(|it| it.0 == 4).count(), 1);
}

#[test]
fn log_gap_is_unnamed_until_the_log_declares_it() {
    let mut log = ExampleLog::new(1);
    let one = chain(&mut log, &[3], None);
    log.skip(4);
    let two = chain(&mut log, &[2], Some(one[0].checkpoint.hash()));
    let following = followed(&stored(&[one, two].concat()));
    assert_eq!(following.taken, [(1, 3), (8, 9)]);
    assert_eq!((following.faults(), following.gaps()), (vec![], vec![(4, 7, GapCause::Unnamed)]));
    let mut facts = SegmentFacts {
        checkpoint: crate::checkpoint::tests::example(),
        records: 1,
        gaps: vec![Gap::new(4, 7, Hash([1; 32]))],
        unrecorded: Vec::new(),
        kept_from: Vec::new(),
    };
    let mut mark = following.follower.mark().clone();
    ChainFollower::name_gaps(&mut mark, &facts);
    assert_eq!(mark.gaps[0].cause, GapCause::Lost);
    let mut mark = following.follower.mark().clone();
    facts.gaps = vec![Gap::new(4, 6, Hash([1; 32]))];
    ChainFollower::name_gaps(&mut mark, &facts);
    assert_eq!(mark.gaps[0].cause, GapCause::Unnamed);
}

#[test]
fn damaged_mark_is_rejected() {
    let following = followed(&stored(&chain(&mut ExampleLog::new(1), &[3], None)));
    let bytes = following.follower.mark().encode();
    assert_eq!(FollowMark::decode(&bytes).as_ref(), Some(following.follower.mark()));
    for bad in [&b""[..], b"{}", &bytes[..bytes.len() - 1]] {
        assert_eq!(FollowMark::decode(bad), None);
    }
    let other = String::from_utf8(bytes).unwrap().replace("\"format\":1", "\"format\":2");
    assert_eq!(FollowMark::decode(other.as_bytes()), None);
}

/// Follows a store that is temporarily replaced by one with only the `shown` segments, after the first two were
/// accepted. If `is_reported` is set, the follower can detect the swap.
fn over_a_swap(whole: &Store, shown: &[usize], is_reported: bool) -> Following {
    let mut following = Following::new();
    following.follow(&whole[..2].to_vec(), 1000);
    following.is_swapped = is_reported;
    let shown = shown.iter().map(|at| whole[*at].clone()).collect();
    following.follow(&shown, 1000);
    following
}

#[test]
fn gap_is_accepted_only_from_the_fleets_store() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[2; 6], None));
    let mut following = over_a_swap(&whole, &[4], true);
    assert!(following.now > 2 * SETTLE_MS, "long enough to settle");
    assert_eq!((following.gaps(), following.faults()), (vec![], vec![]));
    (following.is_swapped, following.displaced) = (false, 0);
    following.follow(&whole, 1000);
    assert_eq!(following.taken, [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 12)]);
    assert_eq!((following.gaps(), following.faults()), (vec![], vec![]));

    let following = over_a_swap(&whole, &[4], false);
    assert_eq!(following.gaps(), [(5, 8, GapCause::Store)]);
    assert_eq!(following.faults(), [(ChainFault::Removed, Some(5), Some(8))]);
}

#[test]
fn gap_requires_confirmation_before_and_after() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[2; 6], None));
    let verifier = sealed_by("a", Hash([0; 32]), None).verifier.clone();
    let name = |key: &str| SegmentName::parse(key.strip_prefix("nodes/a/segments/")?);
    let object =
        |at: usize| SeenObject { key: whole[at].0.clone(), name: name(&whole[at].0), size: 1 };
    let mut following = Following::new();
    following.follow(&whole[..2].to_vec(), 1000);
    let facts = SegmentFacts::of(&whole[4].1, &verifier).unwrap();
    let follower = &mut following.follower;
    let mut now = following.now + SETTLE_MS;
    let lists_and_judges = |follower: &mut ChainFollower, now: u64| {
        follower.listed(SeenPart { objects: vec![object(4)], more: 0, newest: 10 }, now);
        follower.judge(Ok(&facts), now)
    };
    assert_eq!(lists_and_judges(follower, now), SegmentJudgment::Again, "first seen");
    now += SETTLE_MS;
    assert_eq!(follower.step(now), FollowStep::Confirm, "settled");
    assert_eq!(lists_and_judges(follower, now), SegmentJudgment::Again, "not confirmed");
    follower.confirmed();
    assert_eq!(follower.step(now), FollowStep::List, "an earlier listing does not count");
    let SegmentJudgment::Take(mark) = lists_and_judges(follower, now) else {
        panic!("{follower:?}")
    };
    assert!(follower.needs_place(&mark), "the store may have been swapped since");
    let rests = follower.displaced(now);
    assert_eq!(follower.step(now), FollowStep::Wait(rests));
    assert_eq!(lists_and_judges(follower, rests), SegmentJudgment::Again, "everything starts over");
}

#[test]
fn gap_is_filled_in_parts_as_segments_reappear() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[2; 6], None));
    // Simulates a mark written by an earlier version or another process that accepted the gap.
    let without = |removed: &[usize]| {
        let kept = whole.iter().enumerate().filter(|(at, _)| !removed.contains(at));
        kept.map(|(_, it)| it.clone()).collect::<Store>()
    };
    let before = followed(&without(&[1, 2, 4]));
    assert_eq!(before.gaps(), [(3, 6, GapCause::Store), (9, 10, GapCause::Store)]);
    let mark = FollowMark::decode(&before.follower.mark().encode()).unwrap();
    let mut following = Following::from(mark);
    following.follow(&without(&[1, 2, 4]), 1000);
    assert_eq!(following.taken, [], "still missing");
    following.follow(&without(&[1, 4]), 1000);
    assert_eq!(
        (following.taken.clone(), following.gaps()[0]),
        (vec![(5, 6)], (3, 4, GapCause::Store))
    );
    assert_eq!(following.faults().len(), 2, "the remaining gap is reported");
    following.follow(&without(&[1]), 1000);
    assert_eq!(following.gaps(), [(3, 4, GapCause::Store)]);
    following.follow(&whole, 1000);
    assert_eq!((following.gaps(), following.faults()), (vec![], vec![]));
    let mark = following.follower.mark();
    assert_eq!((mark.first, mark.last, mark.records, mark.segments), (1, 12, 12, 6));
}

#[test]
fn unrelated_segment_fills_no_gap() {
    let chains = |seed| stored(&chain(&mut ExampleLog::new(seed), &[2; 4], None));
    let (whole, other) = (chains(1), chains(2));
    let mut following = followed(&vec![whole[0].clone(), whole[2].clone(), whole[3].clone()]);
    let renamed = (whole[1].0.clone(), whole[2].1.clone());
    for wrong in [renamed, other[1].clone(), (whole[1].0.clone(), Bytes::from_static(b"junk"))] {
        following.follow(&vec![whole[0].clone(), wrong, whole[2].clone(), whole[3].clone()], 1000);
        assert_eq!(following.gaps(), [(3, 4, GapCause::Store)]);
    }
}

#[test]
fn claim_fault_is_reported_once_settled_and_cleared_when_resolved() {
    let mut follower = Following::new().follower;
    let at = "nodes/a/claim.json";
    assert_eq!(follower.claim_seen(at, None, 0), None);
    assert_eq!(follower.claim_seen(at, Some("missing"), 10), None);
    assert_eq!(follower.claim_seen(at, None, 20), None, "that was a moment");
    assert_eq!(follower.claim_seen(at, Some("missing"), 30), None);
    let mark = follower.claim_seen(at, Some("missing"), 30 + SETTLE_MS).unwrap();
    assert_eq!(mark.faults[0].fault, ChainFault::Key);
    follower.noted(mark);
    assert_eq!(follower.claim_seen(at, Some("missing"), 60_000), None, "reported once");
    let mark = follower.claim_seen(at, None, 70_000).unwrap();
    assert_eq!(mark.faults, []);
    follower.noted(mark);
    assert_eq!(follower.claim_seen(at, None, 80_000), None);
}

proptest! {
    /// Manipulates the store while it is followed, with crashes in between: every valid record is accepted
    /// once, in order, and everything else is reported.
    #[test]
    fn every_record_is_accepted_or_reported(
        sizes in prop::collection::vec(1..4_u64, 2..9),
        harm in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8), 0..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        max in 1..4_usize,
    ) {
        let whole = stored(&chain(&mut ExampleLog::new(1), &sizes, None));
        let mut store = whole.clone();
        let mut harmed = std::collections::BTreeSet::new();
        for (at, what) in harm {
            // The chain's end is never cut: truncation is not visible in the store.
            let at = at.index(store.len() - 1);
            let key = store[at].0.clone();
            if key == whole[0].0 || key == whole[whole.len() - 1].0 { continue }
            harmed.insert(key);
            match what {
                0 => { store.remove(at); }
                1 => store[at].1 = Bytes::from_static(b"junk"),
                _ => store[at].1 = whole[0].1.clone(),
            }
        }
        let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(store.len()) + 1).collect();
        ends.sort_unstable();
        ends.push(store.len());
        let mut following = Following::new();
        let mut taken = Vec::new();
        for end in ends {
            following.follow(&store[..end].to_vec(), max);
            taken.append(&mut following.taken);
            let mark = FollowMark::decode(&following.follower.mark().encode()).unwrap();
            following = Following::from(mark);
        }
        let is_taken = |key: &String| !harmed.contains(key);
        let expected: Vec<_> = whole.iter().filter(|it| is_taken(&it.0)).map(|it| {
            let name = SegmentName::parse(it.0.strip_prefix("nodes/a/segments/").unwrap()).unwrap();
            (name.first, name.last)
        }).collect();
        prop_assert_eq!(&taken, &expected);
        let mark = following.follower.mark();
        let missing: u64 = mark.gaps.iter().map(|gap| gap.last + 1 - gap.first).sum();
        prop_assert_eq!(mark.records + missing, mark.last);
        prop_assert_eq!(mark.faults.is_empty(), harmed.is_empty());
    }
}
