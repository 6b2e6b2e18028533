//! State machine that follows one node's chain: decides what to list and fetch, which segments to accept, and what to
//! report. Sans-I/O: the driver ([`crate::follower`]) lists, fetches and writes, and supplies the results.
//!
//! ```text
//! List ─▶ listed ─▶ Fetch ─▶ judge ─▶ Take ──▶ records and mark in one batch ─▶ committed
//!                              │  └──▶ Pass ──▶ the mark alone (reports a fault) ─▶ committed
//!                              └─────▶ Again    retried later
//! Confirm ─▶ confirmed, or displaced
//! Heal ─▶ heals, for each segment found ─▶ records and mark in one batch ─▶ healed ─▶ sought
//! ```
//!
//! Only a segment signed by the node advances the position; a name proves nothing. An apparent fault is re-checked
//! after [`SETTLE_MS`], because a listing may be older than the fetched objects. If the fault persists, it is
//! reported, and the follower continues after it, leaving a gap.
//!
//! If an empty store is swapped in for the real one, its listing shows gaps that do not exist. So a gap is accepted
//! only if the store contained the fleet object and the node's claim both before the listing that shows it
//! ([`FollowStep::Confirm`]) and after the fetch ([`ChainFollower::needs_place`]). Recorded gaps are retried
//! ([`FollowStep::Heal`]) with exponential backoff.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};

use mcpproxy_activity::gap::Gap;
use mcpproxy_activity::record::{Hash, NodeId};
use serde::{Deserialize, Serialize};

use crate::chain::check::{ChainFault, FaultFound, SegmentFacts, SegmentRejection};
use crate::checkpoint::Checkpoint;
use crate::parquet_table::MAX_TABLE_BYTES;
use crate::segment::{SegmentName, day_folder};

/// Time that a fault must persist before it is reported, in milliseconds.
pub(crate) const SETTLE_MS: u64 = 5_000;
/// First and longest pause between attempts to fill gaps, in milliseconds.
const FIRST_HEAL_PAUSE_MS: u64 = 5_000;
const LONGEST_HEAL_PAUSE_MS: u64 = 600_000;
/// Maximum number of segment names buffered ahead of the position.
pub(crate) const MAX_AHEAD: usize = 1_000;
/// Maximum number of faults and of gaps kept per node.
pub(crate) const MAX_REPORTED: usize = 64;
/// Maximum number of skipped objects per node; beyond it the chain is no longer followed.
const MAX_PASSED: usize = 10_000;
/// Maximum number of records that a segment name may claim.
const MAX_SEGMENT_RECORDS: u64 = 1 << 20;
/// Exclusive upper bound of record numbers, given by the id format.
const MAX_SEQ: u64 = 1 << 48;
/// Format version of the mark.
const FORMAT: u32 = 1;

/// Gap in the followed records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedGap {
    /// First missing record.
    pub first: u64,
    pub last: u64,
    pub cause: GapCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapCause {
    /// The log lost the records and declares it.
    Lost,
    /// The log lacks the records and has not declared it yet.
    Unnamed,
    /// Segments are missing or invalid; a fault names them.
    Store,
}

/// High-water mark of a followed chain, with its gaps and faults. The only state stored besides the records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowMark {
    format: u32,
    /// Key that verifies the segments, from the node's claim when first read.
    pub key: String,
    /// Id of the node's log.
    pub log: String,
    /// First accepted record; 0 for none.
    pub first: u64,
    /// Last accepted record; 0 for none.
    pub last: u64,
    pub records: u64,
    /// Number of accepted segments.
    pub segments: u64,
    /// Name of the last accepted segment.
    newest: Option<String>,
    /// Hash of the last record.
    head: Option<String>,
    /// Hash of the last segment's checkpoint.
    checkpoint: Option<String>,
    /// Gaps, at most [`MAX_REPORTED`].
    pub gaps: Vec<FollowedGap>,
    /// Faults, at most [`MAX_REPORTED`].
    pub faults: Vec<FaultFound>,
    /// True if there are more gaps or faults than are kept.
    pub more: bool,
}

impl FollowMark {
    /// Creates the mark before the first segment.
    pub fn new(key: String, log: NodeId) -> Self {
        Self {
            format: FORMAT,
            key,
            log: log.to_string(),
            first: 0,
            last: 0,
            records: 0,
            segments: 0,
            newest: None,
            head: None,
            checkpoint: None,
            gaps: Vec::new(),
            faults: Vec::new(),
            more: false,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes a mark; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        let is_named = read.newest.as_deref().is_none_or(|name| SegmentName::parse(name).is_some());
        let is_whole = (read.last > 0) == (read.newest.is_some() && read.head.is_some());
        (read.format == FORMAT && is_named && is_whole).then_some(read)
    }

    /// Name of the last accepted segment.
    fn newest(&self) -> Option<SegmentName> {
        SegmentName::parse(self.newest.as_deref()?)
    }

    fn is_reported(&self, at: &str) -> bool {
        self.faults.iter().any(|found| found.at == at)
    }

    /// Reports a fault, once per object.
    pub(crate) fn report(
        &mut self,
        fault: ChainFault,
        at: &str,
        range: Option<(u64, u64)>,
        why: String,
    ) {
        if self.is_reported(at) {
            return;
        }
        if self.faults.len() >= MAX_REPORTED {
            self.more = true;
            return;
        }
        let (first, last) = range.unzip();
        self.faults.push(FaultFound { fault, at: at.to_owned(), first, last, why });
    }

    /// Gaps that segments in the store may fill.
    fn store_gaps(&self) -> impl Iterator<Item = &FollowedGap> {
        self.gaps.iter().filter(|gap| gap.cause == GapCause::Store)
    }

    /// Removes `first..=last` from the gap that contains it. Returns false if no store gap contains it, or if the gap
    /// list is full.
    fn fill(&mut self, first: u64, last: u64) -> bool {
        let holds = |gap: &FollowedGap| {
            gap.cause == GapCause::Store && gap.first <= first && last <= gap.last
        };
        let Some(at) = self.gaps.iter().position(holds) else { return false };
        let Some(gap) = self.gaps.get(at).cloned() else { return false };
        let rest = [(gap.first, first.saturating_sub(1)), (last.saturating_add(1), gap.last)];
        let rest = rest.into_iter().filter(|(from, to)| from <= to);
        let rest: Vec<_> =
            rest.map(|(first, last)| FollowedGap { first, last, cause: gap.cause }).collect();
        if self.gaps.len() + rest.len() > MAX_REPORTED + 1 {
            return false;
        }
        self.gaps.splice(at..=at, rest);
        let overlaps = |from: u64, to: u64, (first, last): (u64, u64)| from <= last && first <= to;
        let gaps = self.gaps.clone();
        self.faults.retain(|found| {
            let is_of_records = matches!(
                found.fault,
                ChainFault::Removed
                    | ChainFault::Altered
                    | ChainFault::Replaced
                    | ChainFault::Reordered
            );
            let Some(range) = found.first.zip(found.last).filter(|_| is_of_records) else {
                return true;
            };
            let is_open = |gap: &FollowedGap| {
                gap.cause == GapCause::Store && overlaps(gap.first, gap.last, range)
            };
            !overlaps(first, last, range) || gaps.iter().any(is_open)
        });
        true
    }

    fn miss(&mut self, first: u64, last: u64, cause: GapCause) {
        if self.gaps.len() < MAX_REPORTED {
            self.gaps.push(FollowedGap { first, last, cause });
        } else {
            self.more = true;
        }
    }
}

/// Listed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenObject {
    /// Key in the store.
    pub key: String,
    /// Parsed segment name, if it is one.
    pub name: Option<SegmentName>,
    /// Size in bytes.
    pub size: u64,
}

/// Part of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenPart {
    /// First objects in name order, at most [`MAX_AHEAD`].
    pub objects: Vec<SeenObject>,
    /// Lower bound of the number of further objects.
    pub more: u64,
    /// Last record claimed by the last listed name; 0 for none.
    pub newest: u64,
}

/// Next action of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowStep {
    /// List the objects after [`ChainFollower::after`].
    List,
    /// Fetch and open the object with this key, then call [`ChainFollower::judge`].
    Fetch(String),
    /// Write this mark, then call [`ChainFollower::committed`].
    Pass(Box<FollowMark>),
    /// Check that the store has the fleet object and the node's claim, then call [`ChainFollower::confirmed`] or
    /// [`ChainFollower::displaced`].
    Confirm,
    /// Look for segments with these missing records: [`ChainFollower::heals`] for each, then
    /// [`ChainFollower::sought`].
    Heal {
        /// First record of the gap.
        first: u64,
        last: u64,
    },
    /// Wait until this time.
    Wait(u64),
}

/// Verdict on a fetched segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentJudgment {
    /// Write its records and this mark, then call [`ChainFollower::committed`].
    Take(Box<FollowMark>),
    /// Write this mark alone, then call [`ChainFollower::committed`].
    Pass(Box<FollowMark>),
    /// Retry later.
    Again,
}

/// Fault that is evident from the name: kind, records, details.
type RefusedName = (ChainFault, Option<(u64, u64)>, String);

/// Object with an apparent fault.
#[derive(Debug)]
struct Suspect {
    key: String,
    since: u64,
    placed: PlaceSeen,
}

/// Whether the store was confirmed before the listing that shows a [`Suspect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceSeen {
    No,
    /// The store was confirmed, but not listed since then.
    Unlisted,
    /// The store was confirmed, and listed once since then.
    Listed,
}

#[derive(Debug)]
pub struct ChainFollower {
    mark: FollowMark,
    log: NodeId,
    /// Folder of the node's segments.
    folder: String,
    /// First day to list if no segment was accepted yet.
    from_day: i32,
    /// Listing interval in milliseconds.
    every_ms: u64,
    ahead: VecDeque<SeenObject>,
    /// Keys of skipped objects.
    passed: BTreeSet<Box<str>>,
    more: u64,
    /// Key at which a truncated listing resumes.
    resume: Option<String>,
    newest: u64,
    suspect: Option<Suspect>,
    /// Time at which the node's claim first appeared invalid.
    claim_suspect: Option<u64>,
    /// Next attempt to fill gaps, the pause after it, and the index of the gap.
    heal_at: u64,
    heal_pause: u64,
    heal_next: usize,
    /// Time of the next listing.
    list_at: u64,
    /// No action before this time.
    rests_until: u64,
}

impl ChainFollower {
    /// Resumes following the chain of `log` at `mark`. Its segments are in `folder`, which is listed every
    /// `every_ms`. Days before `from_day` are skipped if no segment was accepted yet.
    pub fn new(
        mark: FollowMark,
        log: NodeId,
        folder: String,
        from_day: i32,
        every_ms: u64,
    ) -> Self {
        Self {
            mark,
            log,
            folder,
            from_day,
            every_ms,
            ahead: VecDeque::new(),
            passed: BTreeSet::new(),
            more: 0,
            resume: None,
            newest: 0,
            suspect: None,
            claim_suspect: None,
            heal_at: 0,
            heal_pause: FIRST_HEAL_PAUSE_MS,
            heal_next: 0,
            list_at: 0,
            rests_until: 0,
        }
    }

    pub fn mark(&self) -> &FollowMark {
        &self.mark
    }

    /// Lower bound of the records and segments stored but not accepted yet, according to listed names.
    pub fn behind(&self) -> (u64, u64) {
        let segments = self.ahead.len() as u64 + self.more;
        let records = if segments == 0 { 0 } else { self.newest.saturating_sub(self.mark.last) };
        (records, segments)
    }

    /// True if too many objects were skipped to continue.
    pub(crate) fn has_stopped(&self) -> bool {
        self.passed.len() >= MAX_PASSED
    }

    /// Key after which the listing starts. The last accepted segment is listed again, so that forks beginning at the
    /// same record are detected.
    pub fn after(&self) -> String {
        let folder = &self.folder;
        if let Some(key) = &self.resume {
            return key.clone();
        }
        match self.mark.newest() {
            Some(name) => format!("{folder}/{}/{:020}", day_folder(name.day), name.first),
            None => format!("{folder}/{}", day_folder(self.from_day)),
        }
    }

    /// Returns the next action at time `now`.
    pub fn step(&self, now: u64) -> FollowStep {
        if self.has_stopped() {
            return FollowStep::Wait(u64::MAX);
        }
        if now < self.rests_until {
            return FollowStep::Wait(self.rests_until);
        }
        let is_unplaced =
            |suspect: &Suspect| suspect.placed == PlaceSeen::No && suspect.has_settled(now);
        if self.suspect.as_ref().is_some_and(is_unplaced) {
            return FollowStep::Confirm;
        }
        match self.ahead.front() {
            None if self.resume.is_none() && now < self.list_at => match self.next_gap() {
                Some(gap) if now >= self.heal_at => {
                    FollowStep::Heal { first: gap.first, last: gap.last }
                }
                Some(_) => FollowStep::Wait(self.list_at.min(self.heal_at)),
                None => FollowStep::Wait(self.list_at),
            },
            None => FollowStep::List,
            Some(object) => match self.refused_by_name(object) {
                Some((fault, range, why)) => {
                    let mut mark = self.mark.clone();
                    mark.report(fault, &object.key, range, why);
                    FollowStep::Pass(Box::new(mark))
                }
                None => FollowStep::Fetch(object.key.clone()),
            },
        }
    }

    /// Fault of an object, if it is evident without fetching the object.
    fn refused_by_name(&self, object: &SeenObject) -> Option<RefusedName> {
        let Some(name) = &object.name else {
            return Some((ChainFault::Foreign, None, "not a segment name".into()));
        };
        let range = Some((name.first, name.last));
        let records = name.last - name.first;
        if object.size > MAX_TABLE_BYTES {
            let why = format!("longer than {MAX_TABLE_BYTES} bytes");
            Some((ChainFault::Altered, range, why))
        } else if records >= MAX_SEGMENT_RECORDS || name.last >= MAX_SEQ || name.first == 0 {
            Some((ChainFault::Altered, range, "its name claims impossible record numbers".into()))
        } else if name.first <= self.mark.last && self.mark.first <= name.first {
            let why = format!("another segment contains record {}", name.first);
            Some((ChainFault::Fork, range, why))
        } else {
            None
        }
    }

    /// Keys of the objects to fetch after the first, in order.
    pub fn next_keys(&self) -> impl Iterator<Item = &str> {
        let wanted = |object: &&SeenObject| self.refused_by_name(object).is_none();
        self.ahead.iter().take_while(wanted).map(|object| &*object.key)
    }

    /// Supplies a listing made at time `now`.
    pub fn listed(&mut self, part: SeenPart, now: u64) {
        if let Some(suspect) = self.suspect.take() {
            self.suspect = match suspect.placed {
                PlaceSeen::No => Some(suspect),
                PlaceSeen::Unlisted => Some(Suspect { placed: PlaceSeen::Listed, ..suspect }),
                // The same listing continues.
                PlaceSeen::Listed if self.resume.is_some() => Some(suspect),
                // The previous listing showed no fault.
                PlaceSeen::Listed => None,
            };
        }
        let newest = self.mark.newest.as_deref();
        let last = part.objects.last().filter(|_| part.more > 0);
        self.resume = last.map(|object| object.key.clone());
        let is_new = |object: &SeenObject| {
            let is_taken = object
                .name
                .as_ref()
                .is_some_and(|name| newest.is_some_and(|newest| name.to_string() == newest));
            !is_taken && !self.passed.contains(&*object.key) && !self.mark.is_reported(&object.key)
        };
        self.ahead = part.objects.into_iter().filter(is_new).take(MAX_AHEAD).collect();
        self.ahead.make_contiguous().sort_by(|a, b| (&a.name, &a.key).cmp(&(&b.name, &b.key)));
        (self.more, self.newest) = (part.more, part.newest.min(MAX_SEQ));
        self.list_at = now.saturating_add(self.every_ms);
    }

    /// Handles a failed store request at time `now`. Returns when to retry.
    pub fn failed(&mut self, now: u64) -> u64 {
        self.rests_until = now.saturating_add(self.every_ms.max(1_000));
        self.rests_until
    }

    /// Judges the first listed object, fetched and opened.
    pub fn judge(
        &mut self,
        opened: Result<&SegmentFacts, &SegmentRejection>,
        now: u64,
    ) -> SegmentJudgment {
        let Some(SeenObject { key, name: Some(name), .. }) = self.ahead.front().cloned() else {
            return SegmentJudgment::Again;
        };
        let range = (name.first, name.last);
        let facts = match opened {
            Err(SegmentRejection { fault, why }) => {
                return self.pass(&key, *fault, range, why.clone(), now);
            }
            Ok(facts) => facts,
        };
        let checkpoint = &facts.checkpoint;
        if !name.is_of(checkpoint) {
            let why = format!(
                "contains the segment with records {} to {}",
                checkpoint.first, checkpoint.last
            );
            return self.pass(&key, ChainFault::Replaced, range, why, now);
        }
        if checkpoint.log != self.log {
            let why = "belongs to a different log than the node's claim".into();
            return self.pass(&key, ChainFault::Fork, range, why, now);
        }
        let (Some(head), next) = (&self.mark.head, self.mark.last + 1) else {
            // The segment's predecessor may have expired, or the listing may be stale: objects before the position
            // are never listed.
            if checkpoint.previous.is_some() && !self.has_settled(&key, now) {
                return SegmentJudgment::Again;
            }
            return SegmentJudgment::Take(Box::new(self.with(&name, facts)));
        };
        let previous = checkpoint.previous.map(|hash| Hash(hash).to_string());
        let follows = self.mark.checkpoint == previous;
        let continues = checkpoint.first == next && checkpoint.after.to_string() == *head;
        if follows && continues {
            return SegmentJudgment::Take(Box::new(self.with(&name, facts)));
        }
        if checkpoint.first <= next {
            let why = format!("does not follow the accepted record {}", self.mark.last);
            return self.pass(&key, ChainFault::Fork, range, why, now);
        }
        if follows {
            // The node did not have these records when it sealed the segment: the log itself has a gap.
            let mut mark = self.with(&name, facts);
            mark.miss(next, checkpoint.first - 1, GapCause::Unnamed);
            Self::name_gaps(&mut mark, facts);
            return SegmentJudgment::Take(Box::new(mark));
        }
        if !self.has_settled(&key, now) {
            return SegmentJudgment::Again;
        }
        let last = checkpoint.first - 1;
        let mut mark = self.with(&name, facts);
        mark.miss(next, last, GapCause::Store);
        let covers = |found: &FaultFound| found.first <= Some(next) && found.last >= Some(last);
        if !mark.faults.iter().any(covers) {
            let why = format!("segments with records {next} to {last} are missing");
            mark.report(ChainFault::Removed, &key, Some((next, last)), why);
        }
        SegmentJudgment::Take(Box::new(mark))
    }

    /// Mark after accepting this segment.
    fn with(&self, name: &SegmentName, facts: &SegmentFacts) -> FollowMark {
        let Checkpoint { first, last, head, .. } = &facts.checkpoint;
        let mut mark = self.mark.clone();
        mark.first = if mark.first == 0 { *first } else { mark.first };
        mark.last = *last;
        mark.records += facts.records;
        mark.segments += 1;
        mark.newest = Some(name.to_string());
        mark.head = Some(head.to_string());
        mark.checkpoint = Some(Hash(facts.checkpoint.hash()).to_string());
        Self::name_gaps(&mut mark, facts);
        mark
    }

    /// Applies gap records to known gaps; a log may declare a gap long after it occurred.
    fn name_gaps(mark: &mut FollowMark, facts: &SegmentFacts) {
        let is_named = |gap: &FollowedGap| {
            let lost =
                |named: &Gap| (named.first_lost_seq, named.last_lost_seq) == (gap.first, gap.last);
            facts.gaps.iter().any(lost) || facts.kept_from.iter().any(|it| it.0 == gap.last + 1)
        };
        for gap in mark.gaps.iter_mut().filter(|gap| gap.cause == GapCause::Unnamed) {
            if is_named(gap) {
                gap.cause = GapCause::Lost;
            }
        }
    }

    /// Skips an object and reports its fault after the fault has settled.
    fn pass(
        &mut self,
        key: &str,
        fault: ChainFault,
        range: (u64, u64),
        why: String,
        now: u64,
    ) -> SegmentJudgment {
        if !self.has_settled(key, now) {
            return SegmentJudgment::Again;
        }
        let mut mark = self.mark.clone();
        mark.report(fault, key, Some(range), why);
        SegmentJudgment::Pass(Box::new(mark))
    }

    /// True if the fault has persisted long enough, in listings of a confirmed store. Otherwise schedules
    /// another listing.
    fn has_settled(&mut self, key: &str, now: u64) -> bool {
        let suspect = match self.suspect.take() {
            Some(suspect) if suspect.key == key => suspect,
            Some(_) | None => Suspect { key: key.to_owned(), since: now, placed: PlaceSeen::No },
        };
        let (until, is_placed) = (suspect.until(), suspect.placed == PlaceSeen::Listed);
        self.suspect = Some(suspect);
        if now >= until && is_placed {
            return true;
        }
        self.ahead.clear();
        self.resume = None;
        (self.rests_until, self.list_at) = (until, until);
        false
    }

    /// Records that the store was confirmed: the next listing can be trusted.
    pub fn confirmed(&mut self) {
        if let Some(suspect) = &mut self.suspect {
            suspect.placed = PlaceSeen::Unlisted;
        }
        self.ahead.clear();
        (self.resume, self.list_at) = (None, 0);
    }

    /// Records that the store was not confirmed at time `now`: suspects are dropped. Returns when to retry.
    pub fn displaced(&mut self, now: u64) -> u64 {
        self.suspect = None;
        self.ahead.clear();
        self.resume = None;
        self.failed(now)
    }

    /// True if writing this mark requires a confirmed store: it adds a fault or a store gap, or begins inside the chain.
    pub fn needs_place(&self, mark: &FollowMark) -> bool {
        mark.faults.len() > self.mark.faults.len()
            || (mark.more && !self.mark.more)
            || mark.store_gaps().count() > self.mark.store_gaps().count()
            || (self.mark.first == 0 && mark.first > 1)
    }

    /// Gap to fill next.
    fn next_gap(&self) -> Option<&FollowedGap> {
        self.mark.store_gaps().nth(self.heal_next).or_else(|| self.mark.store_gaps().next())
    }

    /// Mark after writing this segment into the gap that it fills; `None` if it fills none.
    pub fn heals(&self, name: &SegmentName, facts: &SegmentFacts) -> Option<Box<FollowMark>> {
        let checkpoint = &facts.checkpoint;
        if checkpoint.log != self.log || !name.is_of(checkpoint) {
            return None;
        }
        let mut mark = self.mark.clone();
        if !mark.fill(checkpoint.first, checkpoint.last) {
            return None;
        }
        mark.records += facts.records;
        mark.segments += 1;
        Self::name_gaps(&mut mark, facts);
        Some(Box::new(mark))
    }

    /// Records that a mark from [`Self::heals`] was written.
    pub fn healed(&mut self, mark: FollowMark) {
        self.mark = mark;
    }

    /// Ends an attempt to fill a gap; `found` is true if any segment was written.
    pub fn sought(&mut self, found: bool, now: u64) {
        if found {
            (self.heal_at, self.heal_pause) = (now, FIRST_HEAL_PAUSE_MS);
            return;
        }
        self.heal_next += 1;
        if self.heal_next >= self.mark.store_gaps().count() {
            self.heal_next = 0;
            self.heal_at = now.saturating_add(self.heal_pause);
            self.heal_pause = (self.heal_pause * 2).min(LONGEST_HEAL_PAUSE_MS);
        }
    }

    /// Supplies the fault, if any, of the node's claim at key `at`, read at time `now`. Returns the mark to write if
    /// the fault has settled or is resolved.
    pub(crate) fn claim_seen(
        &mut self,
        at: &str,
        wrong: Option<&str>,
        now: u64,
    ) -> Option<FollowMark> {
        let Some(why) = wrong else {
            self.claim_suspect = None;
            let mut mark = self.mark.clone();
            mark.faults.retain(|found| found.fault != ChainFault::Key || found.at != at);
            return (mark != self.mark).then_some(mark);
        };
        let since = *self.claim_suspect.get_or_insert(now);
        if now < since.saturating_add(SETTLE_MS) {
            return None;
        }
        self.reported(ChainFault::Key, at, why.to_owned())
    }

    /// Records that this mark was written: the first listed object is done.
    pub fn committed(&mut self, mark: FollowMark) {
        let is_taken = mark.last > self.mark.last;
        if mark.store_gaps().count() > self.mark.store_gaps().count() {
            (self.heal_at, self.heal_pause) = (0, FIRST_HEAL_PAUSE_MS);
        }
        self.mark = mark;
        self.suspect = None;
        if let Some(object) = self.ahead.pop_front().filter(|_| !is_taken) {
            self.passed.insert(object.key.into());
        }
    }

    /// Adds a fault that is not about a segment; returns the mark to write.
    fn reported(&self, fault: ChainFault, at: &str, why: String) -> Option<FollowMark> {
        if self.mark.is_reported(at) {
            return None;
        }
        let mut mark = self.mark.clone();
        mark.report(fault, at, None, why);
        Some(mark)
    }

    /// Records that a mark from [`Self::reported`] or [`Self::claim_seen`] was written.
    pub(crate) fn noted(&mut self, mark: FollowMark) {
        self.mark = mark;
    }
}

impl Suspect {
    fn until(&self) -> u64 {
        self.since.saturating_add(SETTLE_MS)
    }

    fn has_settled(&self, now: u64) -> bool {
        now >= self.until()
    }
}
