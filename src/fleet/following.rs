//! How a node's chain is followed through the store: what is listed and fetched next, which segment is taken, what is a fault,
//! and what is missing. Pure: the driver lists, fetches and writes ([`super::follower`]), and says what came of it.
//!
//! ```text
//! List ─▶ listed ─▶ Fetch ─▶ judge ─▶ Take ──▶ records and mark in one batch ─▶ committed
//!                              │  └──▶ Pass ──▶ the mark alone (a fault is told) ─▶ committed
//!                              └─────▶ Again    looked at again after a while
//! ```
//!
//! Only a segment that the node signed moves the position: a name alone says nothing. What looks wrong is looked at again after
//! [`SETTLE_MS`], as a listing may be older than what is fetched; then it is told, and followed on behind it, with a gap.
//!
//! Size: one state machine and what it is told, which are read together.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::chain_check::{ChainFault, FaultFound, NotBelieved, SegmentFacts};
use super::checkpoint::Checkpoint;
use super::columns::MAX_TABLE_BYTES;
use super::segment::{SegmentName, day_folder};
use crate::activity::gap::Gap;
use crate::activity::record::{Hash, NodeId};

/// How long something must look wrong before it is told, in milliseconds.
pub const SETTLE_MS: u64 = 5_000;
/// Segments that are known by name ahead of the position at most.
pub const MAX_AHEAD: usize = 1_000;
/// Faults, and gaps, of one node that are kept; of more it is only said that there are.
pub const MAX_TOLD: usize = 64;
/// Objects of one node that were passed over at most; then its chain is followed no further.
const MAX_PASSED: usize = 10_000;
/// Most records that a segment's name may claim.
const MAX_SEGMENT_RECORDS: u64 = 1 << 20;
/// Numbers of records are below this: ids have room for no more.
const MAX_SEQ: u64 = 1 << 48;
/// The form of a mark.
const FORMAT: u32 = 1;

/// Records that are missing in what was followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedGap {
    /// The first of them.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// Why.
    pub cause: GapCause,
}

/// Why records are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapCause {
    /// The log has lost them, and says so.
    Lost,
    /// The log does not have them, and has not said why yet.
    Unnamed,
    /// Their segments are not there or not to be believed: a fault says which.
    Store,
}

/// How far a chain was followed, and what was found: all that is kept of it beside the records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowMark {
    format: u32,
    /// The key that the node's segments are verified by: that of its claim when it was first met.
    pub key: String,
    /// The id of its log.
    pub log: String,
    /// The first record that was taken; 0 for none yet.
    pub first: u64,
    /// The last; 0 for none yet.
    pub last: u64,
    /// How many were.
    pub records: u64,
    /// How many segments they came in.
    pub segments: u64,
    /// The name of the last of these.
    newest: Option<String>,
    /// The last record's hash.
    head: Option<String>,
    /// The hash of the last segment's checkpoint.
    checkpoint: Option<String>,
    /// What is missing, at most [`MAX_TOLD`].
    pub gaps: Vec<FollowedGap>,
    /// What is wrong, at most [`MAX_TOLD`].
    pub faults: Vec<FaultFound>,
    /// Whether there are more gaps or faults than are kept.
    pub more: bool,
}

impl FollowMark {
    /// Before the first segment.
    #[must_use]
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

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads what [`Self::encode`] wrote; `None` for anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        let is_named = read.newest.as_deref().is_none_or(|name| SegmentName::parse(name).is_some());
        let is_whole = (read.last > 0) == (read.newest.is_some() && read.head.is_some());
        (read.format == FORMAT && is_named && is_whole).then_some(read)
    }

    /// The last segment that was taken.
    fn newest(&self) -> Option<SegmentName> {
        SegmentName::parse(self.newest.as_deref()?)
    }

    fn is_told(&self, at: &str) -> bool {
        self.faults.iter().any(|found| found.at == at)
    }

    /// A fault, told once for each object.
    pub fn tell(&mut self, fault: ChainFault, at: &str, range: Option<(u64, u64)>, why: String) {
        if self.is_told(at) {
            return;
        }
        if self.faults.len() >= MAX_TOLD {
            self.more = true;
            return;
        }
        let (first, last) = range.unzip();
        self.faults.push(FaultFound { fault, at: at.to_owned(), first, last, why });
    }

    fn miss(&mut self, first: u64, last: u64, cause: GapCause) {
        if self.gaps.len() < MAX_TOLD {
            self.gaps.push(FollowedGap { first, last, cause });
        } else {
            self.more = true;
        }
    }
}

/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenObject {
    /// Its key in the store.
    pub key: String,
    /// Its name among the node's segments, if it has that of a segment.
    pub name: Option<SegmentName>,
    /// Its bytes.
    pub size: u64,
}

/// What a listing gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenPart {
    /// The first objects, in the order of their names, at most [`MAX_AHEAD`].
    pub objects: Vec<SeenObject>,
    /// How many more there are, at least.
    pub more: u64,
    /// The last record that the name of the last that was seen says; 0 for none.
    pub newest: u64,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowStep {
    /// List the objects after [`ChainFollower::after`].
    List,
    /// Fetch the object with this key, open it, and ask [`ChainFollower::judge`].
    Fetch(String),
    /// Write this mark; then it is [`ChainFollower::committed`].
    Pass(Box<FollowMark>),
    /// Nothing before this moment.
    Wait(u64),
}

/// What becomes of a segment that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentJudgement {
    /// Write its records and this mark; then it is [`ChainFollower::committed`].
    Take(Box<FollowMark>),
    /// Write this mark alone; then it is [`ChainFollower::committed`].
    Pass(Box<FollowMark>),
    /// It is looked at again later.
    Again,
}

/// Why an object need not be fetched: the fault, the records that it is about, the details.
type RefusedName = (ChainFault, Option<(u64, u64)>, String);

/// A chain that is followed.
#[derive(Debug)]
pub struct ChainFollower {
    mark: FollowMark,
    log: NodeId,
    /// The folder of the node's segments.
    folder: String,
    /// The first day that is of interest, where nothing was taken yet.
    from_day: i32,
    /// How often it is listed, in milliseconds.
    every_ms: u64,
    ahead: VecDeque<SeenObject>,
    /// The keys of those that were passed over.
    passed: BTreeSet<Box<str>>,
    /// Objects behind those.
    more: u64,
    /// Where the listing goes on that ended before them.
    resume: Option<String>,
    newest: u64,
    /// What looks wrong, and since when.
    suspect: Option<(String, u64)>,
    /// When it is listed next.
    list_at: u64,
    /// Nothing is done before.
    rests_until: u64,
}

impl ChainFollower {
    /// Goes on where `mark` is, with the chain of `log` whose segments are in `folder`. Segments of days before `from_day` are
    /// not asked for where nothing was taken yet. It is listed every `every_ms`.
    #[must_use]
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
            list_at: 0,
            rests_until: 0,
        }
    }

    /// How far it has come.
    #[must_use]
    pub fn mark(&self) -> &FollowMark {
        &self.mark
    }

    /// Records and segments that are in the store and not taken yet, as far as names say that were seen: at least so many.
    #[must_use]
    pub fn behind(&self) -> (u64, u64) {
        let segments = self.ahead.len() as u64 + self.more;
        let records = if segments == 0 { 0 } else { self.newest.saturating_sub(self.mark.last) };
        (records, segments)
    }

    /// Whether so much is wrong that the chain is followed no further.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.passed.len() >= MAX_PASSED
    }

    /// Where a listing begins: behind this key. The last segment that was taken is listed again, and with it whatever claims
    /// to begin where it does.
    #[must_use]
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

    /// What is to be done at `now`.
    #[must_use]
    pub fn step(&self, now: u64) -> FollowStep {
        if self.has_stopped() {
            return FollowStep::Wait(u64::MAX);
        }
        if now < self.rests_until {
            return FollowStep::Wait(self.rests_until);
        }
        match self.ahead.front() {
            None if self.resume.is_none() && now < self.list_at => FollowStep::Wait(self.list_at),
            None => FollowStep::List,
            Some(object) => match self.refused_by_name(object) {
                Some((fault, range, why)) => {
                    let mut mark = self.mark.clone();
                    mark.tell(fault, &object.key, range, why);
                    FollowStep::Pass(Box::new(mark))
                }
                None => FollowStep::Fetch(object.key.clone()),
            },
        }
    }

    /// What is wrong with an object that need not be fetched to know it.
    fn refused_by_name(&self, object: &SeenObject) -> Option<RefusedName> {
        let Some(name) = &object.name else {
            return Some((ChainFault::Foreign, None, "it has no name of a segment".into()));
        };
        let range = Some((name.first, name.last));
        let records = name.last - name.first;
        if object.size > MAX_TABLE_BYTES {
            let why = format!("it is longer than {MAX_TABLE_BYTES} bytes");
            Some((ChainFault::Altered, range, why))
        } else if records >= MAX_SEGMENT_RECORDS || name.last >= MAX_SEQ || name.first == 0 {
            Some((ChainFault::Altered, range, "its name claims records that cannot be".into()))
        } else if name.first <= self.mark.last && self.mark.first <= name.first {
            let why = format!("there is another segment with record {}", name.first);
            Some((ChainFault::Fork, range, why))
        } else {
            None
        }
    }

    /// Objects that are to be fetched after the first, in order.
    pub fn next_keys(&self) -> impl Iterator<Item = &str> {
        let wanted = |object: &&SeenObject| self.refused_by_name(object).is_none();
        self.ahead.iter().take_while(wanted).map(|object| &*object.key)
    }

    /// It was listed at `now`.
    pub fn listed(&mut self, part: SeenPart, now: u64) {
        let newest = self.mark.newest.as_deref();
        let last = part.objects.last().filter(|_| part.more > 0);
        self.resume = last.map(|object| object.key.clone());
        let is_new = |object: &SeenObject| {
            let is_taken = object
                .name
                .as_ref()
                .is_some_and(|name| newest.is_some_and(|newest| name.to_string() == newest));
            !is_taken && !self.passed.contains(&*object.key) && !self.mark.is_told(&object.key)
        };
        self.ahead = part.objects.into_iter().filter(is_new).take(MAX_AHEAD).collect();
        self.ahead.make_contiguous().sort_by(|a, b| (&a.name, &a.key).cmp(&(&b.name, &b.key)));
        (self.more, self.newest) = (part.more, part.newest.min(MAX_SEQ));
        self.list_at = now.saturating_add(self.every_ms);
    }

    /// The store could not be asked at `now`: nothing is known. Until when it rests.
    pub fn failed(&mut self, now: u64) -> u64 {
        self.rests_until = now.saturating_add(self.every_ms.max(1_000));
        self.rests_until
    }

    /// What becomes of the first object ahead, which was fetched and opened.
    pub fn judge(
        &mut self,
        opened: Result<&SegmentFacts, &NotBelieved>,
        now: u64,
    ) -> SegmentJudgement {
        let Some(SeenObject { key, name: Some(name), .. }) = self.ahead.front().cloned() else {
            return SegmentJudgement::Again;
        };
        let range = (name.first, name.last);
        let facts = match opened {
            Err(NotBelieved { fault, why }) => {
                return self.pass(&key, *fault, range, why.clone(), now);
            }
            Ok(facts) => facts,
        };
        let checkpoint = &facts.checkpoint;
        if !name.is_of(checkpoint) {
            let why = format!(
                "it is the segment with records {} to {}",
                checkpoint.first, checkpoint.last
            );
            return self.pass(&key, ChainFault::Replaced, range, why, now);
        }
        if checkpoint.log != self.log {
            let why = "it is of another log than the one of the node's claim".into();
            return self.pass(&key, ChainFault::Fork, range, why, now);
        }
        let (Some(head), next) = (&self.mark.head, self.mark.last + 1) else {
            // What it follows may have expired, or the listing was older than that: what is behind the position is never listed.
            if checkpoint.previous.is_some() && !self.has_settled(&key, now) {
                return SegmentJudgement::Again;
            }
            return SegmentJudgement::Take(Box::new(self.with(&name, facts)));
        };
        let previous = checkpoint.previous.map(|hash| Hash(hash).to_string());
        let follows = self.mark.checkpoint == previous;
        let continues = checkpoint.first == next && checkpoint.after.to_string() == *head;
        if follows && continues {
            return SegmentJudgement::Take(Box::new(self.with(&name, facts)));
        }
        if checkpoint.first <= next {
            let why = format!("it does not follow record {} as it was followed", self.mark.last);
            return self.pass(&key, ChainFault::Fork, range, why, now);
        }
        if follows {
            // The node had no such records when it sealed these: the log itself has a hole.
            let mut mark = self.with(&name, facts);
            mark.miss(next, checkpoint.first - 1, GapCause::Unnamed);
            Self::name_gaps(&mut mark, facts);
            return SegmentJudgement::Take(Box::new(mark));
        }
        if !self.has_settled(&key, now) {
            return SegmentJudgement::Again;
        }
        let last = checkpoint.first - 1;
        let mut mark = self.with(&name, facts);
        mark.miss(next, last, GapCause::Store);
        let covers = |found: &FaultFound| found.first <= Some(next) && found.last >= Some(last);
        if !mark.faults.iter().any(covers) {
            let why = format!("the segments with records {next} to {last} are not there");
            mark.tell(ChainFault::Removed, &key, Some((next, last)), why);
        }
        SegmentJudgement::Take(Box::new(mark))
    }

    /// The mark once these records are taken.
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

    /// The log names what it has lost, perhaps long after.
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

    /// It is told what is wrong with an object, if that has settled.
    fn pass(
        &mut self,
        key: &str,
        fault: ChainFault,
        range: (u64, u64),
        why: String,
        now: u64,
    ) -> SegmentJudgement {
        if !self.has_settled(key, now) {
            return SegmentJudgement::Again;
        }
        let mut mark = self.mark.clone();
        mark.tell(fault, key, Some(range), why);
        SegmentJudgement::Pass(Box::new(mark))
    }

    /// Whether this has looked wrong for long enough. If not it is listed and looked at again.
    fn has_settled(&mut self, key: &str, now: u64) -> bool {
        let since = match &self.suspect {
            Some((suspect, since)) if suspect == key => *since,
            Some(_) | None => {
                self.suspect = Some((key.to_owned(), now));
                now
            }
        };
        let until = since.saturating_add(SETTLE_MS);
        if now < until {
            self.ahead.clear();
            self.resume = None;
            (self.rests_until, self.list_at) = (until, until);
        }
        now >= until
    }

    /// This mark is written, and what came with it: the first object ahead is done.
    pub fn committed(&mut self, mark: FollowMark) {
        let is_taken = mark.last > self.mark.last;
        self.mark = mark;
        self.suspect = None;
        if let Some(object) = self.ahead.pop_front().filter(|_| !is_taken) {
            self.passed.insert(object.key.into());
        }
    }

    /// Something is told that is not about an object: the mark to be written.
    #[must_use]
    pub fn told(&self, fault: ChainFault, at: &str, why: String) -> Option<FollowMark> {
        if self.mark.is_told(at) {
            return None;
        }
        let mut mark = self.mark.clone();
        mark.tell(fault, at, None, why);
        Some(mark)
    }

    /// Such a mark is written.
    pub fn noted(&mut self, mark: FollowMark) {
        self.mark = mark;
    }
}

#[cfg(test)]
mod tests;
