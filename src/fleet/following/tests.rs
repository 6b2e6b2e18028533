//! A chain is followed to its end whatever was done to the store: every record that can be believed is taken once, and what
//! cannot is told with its numbers.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::fleet::examples::{ExampleLog, chain, sealed_by};
use crate::fleet::segment::{self, SealedSegment};

const FOLDER: &str = "nodes/a/segments";

/// Keys and bytes, in the order of keys.
type Store = Vec<(String, Bytes)>;

fn stored(segments: &[SealedSegment]) -> Store {
    segments.iter().map(|it| (format!("{FOLDER}/{}", it.name), it.bytes.clone())).collect()
}

/// Somebody who follows, and what of it is on disk.
struct Following {
    follower: ChainFollower,
    now: u64,
    taken: Vec<(u64, u64)>,
    steps: usize,
}

impl Following {
    fn new() -> Self {
        Self::from(FollowMark::new("key".into(), NodeId([1; 16])))
    }

    fn from(mark: FollowMark) -> Self {
        let log = NodeId([1; 16]);
        let follower = ChainFollower::new(mark, log, FOLDER.into(), 0, 1000);
        Self { follower, now: 0, taken: Vec::new(), steps: 0 }
    }

    /// Goes on until there is nothing new in the store. `most` objects are listed at once.
    fn follow(&mut self, store: &Store, most: usize) {
        let verifier = sealed_by("a", Hash([0; 32]), None).verifier.clone();
        // A listing of one object at a time takes as many as there are.
        let (mut idle, enough) = (0, 2 * (store.len() + 2));
        while idle < enough {
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
                    let more = objects.len().saturating_sub(most) as u64;
                    let object = |key: &&String| SeenObject {
                        key: (*key).clone(),
                        name: name(key),
                        size: 1000,
                    };
                    let objects = objects.iter().take(most).map(object).collect();
                    self.follower.listed(SeenPart { objects, more, newest }, self.now);
                    idle += 1;
                }
                FollowStep::Pass(mark) => {
                    idle = 0;
                    self.follower.committed(*mark);
                }
                FollowStep::Fetch(key) => {
                    idle = 0;
                    let bytes = &store.iter().find(|it| it.0 == key).unwrap().1;
                    let facts = SegmentFacts::of(bytes, &verifier);
                    match self.follower.judge(facts.as_ref(), self.now) {
                        SegmentJudgement::Take(mark) => {
                            let checkpoint = facts.unwrap().checkpoint;
                            self.taken.push((checkpoint.first, checkpoint.last));
                            assert_eq!(FollowMark::decode(&mark.encode()).as_ref(), Some(&*mark));
                            self.follower.committed(*mark);
                        }
                        SegmentJudgement::Pass(mark) => self.follower.committed(*mark),
                        SegmentJudgement::Again => {}
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
fn a_whole_chain_is_taken_in_order_and_gone_on_with() {
    let mut log = ExampleLog::new(1);
    let one = chain(&mut log, &[3, 1, 5], None);
    let mut following = Following::new();
    following.follow(&stored(&one), 2);
    assert_eq!(following.taken, [(1, 3), (4, 4), (5, 9)]);
    let two = chain(&mut log, &[2, 2], Some(one[2].checkpoint.hash()));
    let all = stored(&[one, two].concat());
    // Another process goes on with what is on disk.
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
fn how_far_it_is_behind_counts_what_is_listed_and_what_is_not() {
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
fn what_is_removed_is_a_fault_and_a_gap_and_what_follows_is_taken() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5, 2], None));
    let mut store = whole.clone();
    store.remove(1);
    let following = followed(&store);
    assert_eq!(following.faults(), [(ChainFault::Removed, Some(4), Some(4))]);
    assert_eq!(following.gaps(), [(4, 4, GapCause::Store)]);
    assert_eq!(following.taken, [(1, 3), (5, 9), (10, 11)]);
    assert!(following.now >= SETTLE_MS);
    // At the beginning it may have expired: it is only said where the copy begins.
    let following = followed(&whole[2..].to_vec());
    assert_eq!((following.faults(), following.follower.mark().first), (vec![], 5));
}

#[test]
fn a_segment_that_comes_late_is_no_fault() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5], None));
    let mut following = Following::new();
    let mut store = whole.clone();
    store.remove(1);
    // It is looked at until it looks wrong, and no longer.
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
fn a_chain_whose_beginning_comes_late_is_taken_from_its_beginning() {
    let whole = stored(&chain(&mut ExampleLog::new(1), &[3, 1, 5], None));
    let mut following = Following::new();
    // It is listed and fetched, and not taken: it says that it follows another one.
    for _ in 0..3 {
        step(&mut following, &whole[1..].to_vec());
    }
    assert_eq!(following.taken, []);
    following.follow(&whole, 1000);
    assert_eq!(following.taken, [(1, 3), (4, 4), (5, 9)]);
    assert!(following.now < 2 * SETTLE_MS + 10_000, "{}", following.now);
    // What begins a chain is taken at once.
    let mut following = Following::new();
    for _ in 0..2 {
        step(&mut following, &whole);
    }
    assert_eq!((following.taken, following.now), (vec![(1, 3)], 0));
}

/// One step.
fn step(following: &mut Following, store: &Store) {
    let verifier = sealed_by("a", Hash([0; 32]), None).verifier.clone();
    match following.follower.step(following.now) {
        FollowStep::Wait(_) => {}
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
            if let SegmentJudgement::Take(mark) =
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
fn what_is_altered_or_replaced_is_told_with_its_numbers() {
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
fn a_name_alone_moves_nothing() {
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
fn a_fork_is_told_and_the_first_that_follows_is_believed() {
    let mut log = ExampleLog::new(1);
    let first = chain(&mut log, &[3], None);
    let previous = Some(first[0].checkpoint.hash());
    let one = chain(&mut log.clone(), &[3, 3], previous);
    let mut apart = ExampleLog::new(1);
    apart.records(3);
    let after = apart.head();
    let mut rows = crate::fleet::record_rows::RecordCollector::new(apart.log);
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
fn a_hole_of_the_log_is_a_gap_until_the_log_names_it() {
    let mut log = ExampleLog::new(1);
    let one = chain(&mut log, &[3], None);
    log.skip(4);
    let two = chain(&mut log, &[2], Some(one[0].checkpoint.hash()));
    let following = followed(&stored(&[one, two].concat()));
    assert_eq!(following.taken, [(1, 3), (8, 9)]);
    assert_eq!((following.faults(), following.gaps()), (vec![], vec![(4, 7, GapCause::Unnamed)]));
    let mut facts = SegmentFacts {
        checkpoint: crate::fleet::checkpoint::tests::example(),
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
fn a_mark_is_read_whole_or_not_at_all() {
    let following = followed(&stored(&chain(&mut ExampleLog::new(1), &[3], None)));
    let bytes = following.follower.mark().encode();
    assert_eq!(FollowMark::decode(&bytes).as_ref(), Some(following.follower.mark()));
    for bad in [&b""[..], b"{}", &bytes[..bytes.len() - 1]] {
        assert_eq!(FollowMark::decode(bad), None);
    }
    let other = String::from_utf8(bytes).unwrap().replace("\"format\":1", "\"format\":2");
    assert_eq!(FollowMark::decode(other.as_bytes()), None);
}

proptest! {
    /// Whatever is done to the store while it is followed, with crashes between: what can be believed is taken once, in
    /// order, and the rest is told.
    #[test]
    fn every_record_is_taken_or_told(
        sizes in prop::collection::vec(1..4_u64, 2..9),
        harm in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8), 0..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        most in 1..4_usize,
    ) {
        let whole = stored(&chain(&mut ExampleLog::new(1), &sizes, None));
        let mut store = whole.clone();
        let mut harmed = std::collections::BTreeSet::new();
        for (at, what) in harm {
            // The end is cut by nobody here: of that a reader of the store knows nothing.
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
            following.follow(&store[..end].to_vec(), most);
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
