//! Simulated index node: the copy of a chain on its disk, and a process that acts like `fleet::follower` with the
//! decisions of `ChainFollower`.

use std::collections::VecDeque;

use mcpproxy_activity::record::{Hash, NodeId};
use mcpproxy_fleet::chain::check::{ChainFault, SegmentFacts, SegmentRejection};
use mcpproxy_fleet::chain::follow::{ChainFollower, FollowMark, FollowStep, SegmentJudgment};
use mcpproxy_fleet::checkpoint::Checkpoint;
use mcpproxy_fleet::segment::day_folder;

use super::random::Random;
use super::shelf::{Content, FOLDER, MAX_LAG_MS, Shelf, name_of};
use super::variant::Variant;

/// Number of steps after which the follower must be idle.
const MAX_SETTLING: usize = 20_000;
/// Followed log.
const LOG: NodeId = NodeId([1; 16]);

/// Event of the follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FollowEvent {
    Start,
    /// Runs the next step.
    Wake,
    /// A reply arrives or is lost.
    Answer,
    Crash {
        power: bool,
    },
}

/// Segment whose records were added to the copy.
#[derive(Clone, Debug)]
struct Taken {
    key: String,
    checkpoint: Checkpoint,
    records: u64,
    /// Time of its listing.
    listed_at: u64,
}

#[derive(Clone, Debug)]
enum Asked {
    List,
    Fetch(VecDeque<String>),
    /// Check of the store.
    Place,
    /// Search for segments with these records.
    Heal(u64, u64),
}

/// The process ended.
struct Ended;

pub struct IndexNode {
    random: Random,
    variant: Variant,
    /// State on disk: the mark, and the segments whose records were added.
    mark: Option<Vec<u8>>,
    taken: Vec<Taken>,
    /// The part of that state which survives a power loss.
    synced: (Option<Vec<u8>>, Vec<Taken>),
    follower: Option<ChainFollower>,
    life: u64,
    started: u64,
    asked: Option<Asked>,
    listed_at: u64,
    /// Last key of the last listing.
    page_end: Option<String>,
    every_ms: u64,
    /// Speed of its clock.
    pace: u64,
    /// Maximum number of objects per listing and of segments per turn.
    most: usize,
    turn: usize,
    /// Scheduled events: time, process number, event.
    pub plans: Vec<(u64, u64, FollowEvent)>,
    pub crashes: u64,
}

impl IndexNode {
    /// Starts at some time before `healed`, and crashes occasionally.
    pub fn new(mut random: Random, variant: Variant, healed: u64) -> Self {
        let mut plans = Vec::new();
        let start = if random.once_in(2) { 0 } else { random.below(healed) };
        plans.push((start, 0, FollowEvent::Start));
        for _ in 0..random.below(6) {
            let power = random.once_in(2);
            plans.push((random.between(start, healed), 0, FollowEvent::Crash { power }));
        }
        let pace = if variant == Variant::SettlesAtOnce { 100 } else { 1 };
        let every_ms = random.between(250, 10_000) * pace;
        let (most, turn) = (random.between(1, 8) as usize, random.between(1, 16) as usize);
        Self {
            random,
            variant,
            mark: None,
            taken: Vec::new(),
            synced: (None, Vec::new()),
            follower: None,
            life: 0,
            started: 0,
            asked: None,
            listed_at: 0,
            page_end: None,
            every_ms,
            pace,
            most,
            turn,
            plans,
            crashes: 0,
        }
    }

    fn plan(&mut self, after: u64, now: u64, event: FollowEvent) {
        self.plans.push((now + after, self.life, event));
    }

    /// # Errors
    ///
    /// Violated invariant.
    pub fn happen(
        &mut self,
        (now, life, event): (u64, u64, FollowEvent),
        shelf: &Shelf,
    ) -> Result<(), String> {
        let is_of_it = life == self.life && self.follower.is_some();
        match event {
            FollowEvent::Start if self.follower.is_none() => {
                self.start(now)?;
                self.plan(0, now, FollowEvent::Wake);
            }
            FollowEvent::Crash { power } if self.follower.is_some() => self.crash(power, now),
            FollowEvent::Wake if is_of_it && self.asked.is_none() => self.wake(now),
            FollowEvent::Answer if is_of_it => {
                let answered = self.answered(now, shelf, false)?;
                answered.unwrap_or_else(|Ended| self.crash(false, now));
            }
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, now: u64) -> Result<(), String> {
        let mark = match &self.mark {
            None => FollowMark::new("key".into(), LOG),
            Some(bytes) => FollowMark::decode(bytes).ok_or("a mark does not round-trip")?,
        };
        let there = self.taken.last().map_or(0, |taken| taken.checkpoint.last);
        if mark.last != there {
            return Err(format!("a copy ends with record {there} but its mark says {}", mark.last));
        }
        self.started = now;
        self.follower = Some(ChainFollower::new(mark, LOG, FOLDER.into(), 0, self.every_ms));
        Ok(())
    }

    fn crash(&mut self, power: bool, now: u64) {
        self.crashes += 1;
        self.life += 1;
        (self.follower, self.asked) = (None, None);
        if power {
            (self.mark, self.taken) = self.synced.clone();
        }
        let after = self.random.below(3000);
        self.plan(after, now, FollowEvent::Start);
    }

    fn local(&self, now: u64) -> u64 {
        now.saturating_sub(self.started) * self.pace
    }

    fn wake(&mut self, now: u64) {
        let local = self.local(now);
        loop {
            let Some(follower) = &mut self.follower else { return };
            let (asked, patience) = match follower.step(local) {
                FollowStep::Wait(u64::MAX) => return,
                FollowStep::Wait(until) => {
                    let after = (until - local).div_ceil(self.pace);
                    return self.plan(after, now, FollowEvent::Wake);
                }
                FollowStep::Pass(mark) => {
                    if self.pass(*mark).is_err() {
                        return self.crash(false, now);
                    }
                    continue;
                }
                FollowStep::Confirm => (Asked::Place, 1000),
                FollowStep::Heal { .. } if self.variant == Variant::BelievesHoles => {
                    follower.sought(false, local);
                    continue;
                }
                FollowStep::Heal { first, last } => (Asked::Heal(first, last), 3000),
                FollowStep::List => (Asked::List, 3000),
                FollowStep::Fetch(_) => {
                    let keys = follower.next_keys().take(self.turn).map(str::to_owned);
                    (Asked::Fetch(keys.collect()), 1000)
                }
            };
            self.asked = Some(asked);
            let after = self.random.between(1, patience);
            return self.plan(after, now, FollowEvent::Answer);
        }
    }

    /// Delivers a reply; `healed` if the store works correctly.
    fn answered(
        &mut self,
        now: u64,
        shelf: &Shelf,
        healed: bool,
    ) -> Result<Result<(), Ended>, String> {
        let local = self.local(now);
        let is_lost = !healed && self.random.once_in(12);
        let (Some(asked), Some(follower)) = (self.asked.take(), &mut self.follower) else {
            return Ok(Ok(()));
        };
        if is_lost {
            follower.failed(local);
            self.plan(0, now, FollowEvent::Wake);
            return Ok(Ok(()));
        }
        // The listing shows either a consistent snapshot, or each object at a different time.
        let lag = if healed { 0 } else { self.random.below(3) * self.random.below(MAX_LAG_MS / 2) };
        let is_whole = self.random.once_in(2);
        let random = &mut self.random;
        let mut when = || now.saturating_sub(if is_whole { lag } else { random.below(lag.max(1)) });
        match asked {
            Asked::List => {
                let after = follower.after();
                let part = shelf.listing(&after, self.most, &mut when);
                // A resumed listing does not show objects added before its position.
                if self.page_end.as_ref() != Some(&after) {
                    self.listed_at = now;
                }
                self.page_end = part.objects.last().map(|object| object.key.clone());
                let rests = if healed { 0 } else { self.random.below(2000) * self.pace };
                follower.listed(part, local + rests);
            }
            Asked::Place if shelf.is_away() && self.variant != Variant::BelievesHoles => {
                follower.displaced(local);
            }
            Asked::Place => follower.confirmed(),
            Asked::Heal(first, last) => match self.heal(first, last, shelf) {
                Ok(found) => {
                    if let Some(follower) = &mut self.follower {
                        follower.sought(found, local);
                    }
                }
                Err(ended) => return Ok(Err(ended)),
            },
            Asked::Fetch(mut keys) => {
                let Some(key) = keys.pop_front() else { return Ok(Ok(())) };
                if follower.step(local) == FollowStep::Fetch(key.clone()) {
                    let content = shelf.at(&key, when());
                    match self.judge(&key, content, local, shelf.is_away())? {
                        Err(ended) => return Ok(Err(ended)),
                        Ok(true) if !keys.is_empty() => {
                            self.asked = Some(Asked::Fetch(keys));
                            let after = self.random.below(300);
                            self.plan(after, now, FollowEvent::Answer);
                            return Ok(Ok(()));
                        }
                        Ok(_) => {}
                    }
                }
            }
        }
        self.plan(0, now, FollowEvent::Wake);
        Ok(Ok(()))
    }

    /// Judges a fetched object; returns true to continue with the next.
    fn judge(
        &mut self,
        key: &str,
        content: Option<&Content>,
        local: u64,
        is_away: bool,
    ) -> Result<Result<bool, Ended>, String> {
        let refused = |fault| Err(SegmentRejection { fault, why: "as it is".into() });
        let opened = match content {
            None => refused(ChainFault::Removed),
            Some(Content::Sealed(object)) => Ok(object),
            Some(Content::Altered(object)) if self.variant == Variant::TakesUnverified => {
                Ok(object)
            }
            Some(Content::Altered(_) | Content::Junk) => refused(ChainFault::Altered),
        };
        let opened = opened.map(|object| SegmentFacts {
            checkpoint: object.checkpoint.clone(),
            records: object.records,
            gaps: Vec::new(),
            unrecorded: Vec::new(),
            kept_from: Vec::new(),
        });
        let Some(follower) = &mut self.follower else { return Ok(Ok(false)) };
        let mut judgment = follower.judge(opened.as_ref(), local);
        if let (SegmentJudgment::Pass(mark), Variant::KeepsQuiet) = (&mut judgment, self.variant) {
            **mark = follower.mark().clone();
        }
        if let SegmentJudgment::Take(mark) | SegmentJudgment::Pass(mark) = &judgment
            && is_away
            && self.variant != Variant::BelievesHoles
            && follower.needs_place(mark)
        {
            follower.displaced(local);
            return Ok(Ok(false));
        }
        match (judgment, opened) {
            (SegmentJudgment::Again, _) => Ok(Ok(false)),
            (SegmentJudgment::Pass(mark), _) => Ok(self.pass(*mark).map(|()| true)),
            (SegmentJudgment::Take(_), Err(_)) => Err(format!("{key} was accepted but is invalid")),
            (SegmentJudgment::Take(mark), Ok(facts)) => {
                if !matches!(content, Some(Content::Sealed(_))) {
                    return Err(format!("{key} was accepted but is altered"));
                }
                self.take(key, facts, *mark).map(|taken| taken.map(|()| true))
            }
        }
    }

    /// Fills a gap from the store; returns whether it found anything.
    fn heal(&mut self, first: u64, last: u64, shelf: &Shelf) -> Result<bool, Ended> {
        let mut found = false;
        for (key, content) in shelf.within(first, last) {
            let (Content::Sealed(object), Some(name)) = (content, name_of(&key)) else { continue };
            let facts = SegmentFacts {
                checkpoint: object.checkpoint,
                records: object.records,
                gaps: Vec::new(),
                unrecorded: Vec::new(),
                kept_from: Vec::new(),
            };
            let Some(follower) = &mut self.follower else { return Err(Ended) };
            let Some(mark) = follower.heals(&name, &facts) else { continue };
            let SegmentFacts { checkpoint, records, .. } = facts;
            let at = self.taken.partition_point(|it| it.checkpoint.last < checkpoint.first);
            let before = at.checked_sub(1).and_then(|at| self.taken.get(at));
            let follows = before.is_none_or(|it| {
                it.checkpoint.last + 1 < checkpoint.first || it.checkpoint.head == checkpoint.after
            });
            let is_followed = self.taken.get(at).is_none_or(|it| {
                checkpoint.last + 1 < it.checkpoint.first || it.checkpoint.after == checkpoint.head
            });
            // The copy rejects segments that do not fill the gap.
            if !follows || !is_followed {
                continue;
            }
            follower.healed((*mark).clone());
            self.mark = Some(mark.encode());
            let listed_at = self.listed_at;
            self.taken.insert(at, Taken { key, checkpoint, records, listed_at });
            found = true;
            if self.random.once_in(60) {
                return Err(Ended);
            }
        }
        Ok(found)
    }

    /// Writes the records and the mark.
    fn take(
        &mut self,
        key: &str,
        facts: SegmentFacts,
        mark: FollowMark,
    ) -> Result<Result<(), Ended>, String> {
        let SegmentFacts { checkpoint, records, .. } = facts;
        if name_of(key).is_none_or(|name| !name.is_of(&checkpoint)) {
            return Err(format!("{key} was accepted but is another segment"));
        }
        let (first, after) = (checkpoint.first, checkpoint.after);
        if let Some(Taken { checkpoint: before, .. }) = self.taken.last() {
            if first <= before.last {
                return Err(format!("record {first} was accepted twice"));
            }
            if first == before.last + 1 && after != before.head {
                return Err(format!("record {first} was accepted but does not follow"));
            }
        }
        // The process may end before or after the write.
        if self.random.once_in(60) {
            return Ok(Err(Ended));
        }
        if self.variant == Variant::NotInOneBatch {
            self.mark = Some(mark.encode());
            if self.random.once_in(60) {
                return Ok(Err(Ended));
            }
        }
        let (key, listed_at) = (key.to_owned(), self.listed_at);
        self.taken.push(Taken { key, checkpoint, records, listed_at });
        Ok(self.pass(mark))
    }

    /// Writes a mark.
    fn pass(&mut self, mark: FollowMark) -> Result<(), Ended> {
        self.mark = Some(mark.encode());
        if self.random.once_in(3) {
            self.synced = (self.mark.clone(), self.taken.clone());
        }
        if self.random.once_in(60) {
            return Err(Ended);
        }
        if let Some(follower) = &mut self.follower {
            follower.committed(mark);
        }
        Ok(())
    }

    /// Runs without faults until the follower finds nothing new.
    ///
    /// # Errors
    ///
    /// Violated invariant.
    pub fn settle(&mut self, mut now: u64, shelf: &Shelf) -> Result<(), String> {
        let mut idle = 0;
        self.asked = None;
        for _ in 0..MAX_SETTLING {
            if self.follower.is_none() {
                self.start(now)?;
            }
            self.plans.clear();
            self.wake(now);
            if self.asked.is_none() {
                now = self.plans.first().map_or(now, |plan| plan.0.max(now));
                continue;
            }
            let is_listing = matches!(self.asked, Some(Asked::List));
            while self.asked.is_some() {
                let taken = self.taken.len();
                if self.answered(now, shelf, true)?.is_err() {
                    self.crash(false, now);
                }
                idle = if self.taken.len() > taken { 0 } else { idle };
            }
            let is_behind = self.follower.as_ref().is_none_or(|it| it.behind() != (0, 0));
            idle += u32::from(is_listing && !is_behind);
            if idle >= 3 {
                return Ok(());
            }
        }
        Err("a follower never becomes idle".into())
    }

    /// Checks the final invariants; `quiet` if the chain was not tampered with. Returns the numbers of
    /// segments and of reported faults.
    ///
    /// # Errors
    ///
    /// Violated invariant.
    pub fn check(&self, shelf: &Shelf, quiet: bool) -> Result<(u64, u64), String> {
        let Some(follower) = &self.follower else { return Err("a follower has ended".into()) };
        let mark = follower.mark();
        let (faults, gaps) = (&mark.faults, &mark.gaps);
        let records: u64 = self.taken.iter().map(|taken| taken.records).sum();
        if (mark.records, mark.segments) != (records, self.taken.len() as u64) {
            return Err(format!(
                "{records} records were accepted but the mark says {}",
                mark.records
            ));
        }
        for pair in self.taken.windows(2) {
            let [Taken { checkpoint: one, .. }, Taken { checkpoint: next, .. }] = pair else {
                continue;
            };
            let (from, to) = (one.last + 1, next.first - 1);
            let is_named = gaps.iter().any(|gap| (gap.first, gap.last) == (from, to));
            if from <= to && !is_named && !mark.more {
                return Err(format!("records {from} to {to} are missing without a report"));
            }
        }
        if quiet && !(faults.is_empty() && gaps.is_empty()) {
            return Err(format!("faults without tampering: {faults:?} {gaps:?}"));
        }
        for (key, content, since) in shelf.there() {
            let name = name_of(key);
            let is_reported = faults.iter().any(|found| {
                let range = found.first.zip(found.last);
                let holds = name.as_ref().zip(range);
                found.at == key
                    || holds.is_some_and(|(it, (from, to))| from <= it.first && it.last <= to)
            });
            if is_reported || mark.more || self.taken.iter().any(|taken| taken.key == key) {
                continue;
            }
            // Not accepted is correct in two cases: the object appeared before the position of the listing, or the day
            // in its key precedes that of a lower record number. Only another log or tampering can cause the second
            // case.
            let is_past = |taken: &Taken| {
                let Some(there) = name_of(&taken.key) else { return false };
                let begin = format!("{FOLDER}/{}/{:020}", day_folder(there.day), there.first);
                let is_late = taken.listed_at < since + MAX_LAG_MS;
                let is_odd = name.as_ref().is_some_and(|name| name.first >= there.first);
                *key <= *begin && (is_late || is_odd)
            };
            if quiet || !self.taken.iter().any(is_past) {
                let what = if *content == Content::Junk { "junk" } else { "a segment" };
                let taken = self.taken.iter().map(|it| (&*it.key, it.listed_at));
                let taken: Vec<_> = taken.collect();
                return Err(format!(
                    "{key}, {what}, present since {since}, was neither accepted nor reported: {taken:?} {faults:?}"
                ));
            }
        }
        if quiet && self.taken.last().map(|it| it.checkpoint.head.to_string()) != self.end(shelf) {
            return Err("the copy ends with a different record than the chain".into());
        }
        Ok((self.taken.len() as u64, faults.len() as u64))
    }

    /// Hash of the last record in the stored chain.
    fn end(&self, shelf: &Shelf) -> Option<String> {
        let heads = shelf.there().filter_map(|(_, content, _)| match content {
            Content::Sealed(object) => Some((object.checkpoint.last, object.checkpoint.head)),
            Content::Altered(_) | Content::Junk => None,
        });
        heads.max_by_key(|(last, _)| *last).map(|(_, head): (u64, Hash)| head.to_string())
    }
}
