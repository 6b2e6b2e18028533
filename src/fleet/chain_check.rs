//! One node's chain, as it lies in the store: whether its segments are all there, are what their node sealed, and follow each
//! other; and if not, which of them, and how. Pure.
//!
//! Segments are handed in in the order of their names. What a segment is by itself was looked at before ([`super::segment`]).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoint;
use super::columns;
use super::record_rows::RecordRows;
use super::segment::{self, SegmentName};
use super::signed_note::VerifierKey;
use crate::activity::codec;
use crate::activity::gap::{Gap, Unrecorded};
use crate::activity::record::{Hash, Type};
use crate::activity::verify;

/// Most faults of one chain that are told.
pub const MAX_FAULTS: usize = 1000;
/// Most ends of a forked chain that are followed.
const MAX_TIPS: usize = 8;

/// What can be wrong with a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainFault {
    /// A segment is not what its node sealed.
    Altered,
    /// In the place of a segment there is another one.
    Replaced,
    /// Segments stand in each other's places.
    Reordered,
    /// Segments are not there that were sealed.
    Removed,
    /// Two segments follow the same one, or one does not follow the one before it.
    Fork,
    /// Records are missing in the log itself, and it does not say so.
    Gap,
    /// Something that is no segment lies among them.
    Foreign,
    /// The node's key, or its claim, cannot be used.
    Key,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultFound {
    /// What.
    pub fault: ChainFault,
    /// Where: the key of an object.
    pub at: String,
    /// The first record that it is about, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    /// The last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
    /// The details, for people.
    pub why: String,
}

/// What is known of a segment that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// What its node says.
    pub checkpoint: Checkpoint,
    /// How many records it has.
    pub records: u64,
    /// The ranges that its records name as lost.
    pub gaps: Vec<Gap>,
    /// What its records say could not be recorded.
    pub unrecorded: Vec<Unrecorded>,
    /// Up to where its records say that the node removed records: the first one that was kept, and the hash it follows.
    pub kept_from: Vec<(u64, Hash)>,
}

impl SegmentFacts {
    /// Opens a segment of the chain whose checkpoints `key` signs.
    ///
    /// # Errors
    ///
    /// [`NotBelieved`].
    pub fn of(bytes: &Bytes, key: &VerifierKey) -> Result<Self, NotBelieved> {
        Ok(Self::open(bytes, key)?.0)
    }

    /// The same with the segment's records.
    ///
    /// # Errors
    ///
    /// [`NotBelieved`].
    pub fn open(bytes: &Bytes, key: &VerifierKey) -> Result<(Self, RecordRows), NotBelieved> {
        let opened = segment::open(bytes, key).map_err(|error| {
            let of_another = columns::footer(bytes).ok().and_then(|footer| {
                let note = footer.notes.get(segment::CHECKPOINT_NOTE)?;
                let checkpoint = Checkpoint::unverified(note).ok()?;
                (*checkpoint.origin != *key.name()).then_some(checkpoint.origin)
            });
            match of_another {
                Some(origin) => NotBelieved {
                    fault: ChainFault::Replaced,
                    why: format!("it is a segment of {origin}"),
                },
                None => NotBelieved { fault: ChainFault::Altered, why: error.to_string() },
            }
        })?;
        let (mut gaps, mut unrecorded, mut kept_from) = (Vec::new(), Vec::new(), Vec::new());
        for row in opened.records.iter() {
            let Ok((head, body)) = codec::split_canonical(row.canonical) else { continue };
            match verify::kind(head) {
                _ if gaps.len() + unrecorded.len() + kept_from.len() >= MAX_FAULTS => break,
                Some(Type::Gap) => {
                    gaps.extend(verify::gap(body));
                    unrecorded.extend(verify::unrecorded(body));
                }
                Some(Type::Retention) => kept_from.extend(verify::kept_from(body)),
                _ => {}
            }
        }
        let records = opened.records.len() as u64;
        let checkpoint = opened.checkpoint;
        Ok((Self { checkpoint, records, gaps, unrecorded, kept_from }, opened.records))
    }
}

/// Why a segment is not to be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotBelieved {
    /// What is wrong with it.
    pub fault: ChainFault,
    /// The details.
    pub why: String,
}

/// An object among the segments of a node.
#[derive(Clone, Debug)]
pub struct ListedSegment {
    /// Its key in the store.
    pub key: String,
    /// Its name, if it has that of a segment.
    pub name: Option<SegmentName>,
}

/// What was found of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChainReport {
    /// True when nothing is wrong.
    pub sound: bool,
    /// How many segments are what they are to be.
    pub segments: u64,
    /// How many records they have.
    pub records: u64,
    /// The first of them.
    pub first: u64,
    /// The last of them.
    pub last: u64,
    /// The hash of the last.
    pub head: String,
    /// What is wrong.
    pub faults: Vec<FaultFound>,
    /// Ranges of records that the log itself names as lost.
    pub gaps: Vec<Gap>,
    /// What could not be recorded, as the log itself says.
    pub unrecorded: Vec<Unrecorded>,
    /// Other findings. They are no faults.
    pub notes: Vec<String>,
}

/// An end of the chain, as far as it was looked at: a segment that is what its node sealed.
#[derive(Clone, Debug)]
struct Tip {
    key: String,
    checkpoint: Box<Checkpoint>,
}

/// A chain on its way through its segments.
#[derive(Debug, Default)]
pub struct ChainCheck {
    /// Whether segments that are missing at the beginning are no fault.
    expired: bool,
    report: ChainReport,
    tips: Vec<Tip>,
    /// Up to where there are segments behind the last one that can be believed: it, and the names of those that cannot, of which
    /// each is told. A name proves nothing, but that there are no segments is not said of its records as well.
    reach: Option<u64>,
    /// What is missing between those.
    holes_behind: Vec<(u64, u64)>,
    /// Segments under the name of another: where they stand, and where they belong.
    misplaced: Vec<(String, SegmentName, SegmentName)>,
    /// Holes in the numbers that the log is to name.
    holes: Vec<(Gap, String)>,
    kept_from: Vec<(u64, Hash)>,
}

impl ChainCheck {
    /// Before the first segment. With `expired` segments that are missing at the beginning of the chain are no fault.
    #[must_use]
    pub fn new(expired: bool) -> Self {
        Self { expired, ..Self::default() }
    }

    /// Something is wrong that is not about one segment.
    pub fn fault(&mut self, fault: ChainFault, at: &str, why: impl Into<String>) {
        self.found(fault, at, None, why.into());
    }

    /// A finding that is no fault.
    pub fn note(&mut self, note: impl Into<String>) {
        self.report.notes.push(note.into());
    }

    fn found(&mut self, fault: ChainFault, at: &str, range: Option<(u64, u64)>, why: String) {
        if self.report.faults.len() < MAX_FAULTS {
            let (first, last) = range.unzip();
            self.report.faults.push(FaultFound { fault, at: at.to_owned(), first, last, why });
        }
    }

    /// The next object, and what it is.
    pub fn add(&mut self, listed: &ListedSegment, opened: Result<SegmentFacts, NotBelieved>) {
        let key = &listed.key;
        let Some(name) = &listed.name else {
            return self.found(
                ChainFault::Foreign,
                key,
                None,
                "it has no name of a segment".into(),
            );
        };
        match opened {
            Err(NotBelieved { fault, why }) => {
                self.found(fault, key, Some((name.first, name.last)), why);
                self.unknown(name);
            }
            Ok(facts) if !name.is_of(&facts.checkpoint) => {
                let own = SegmentName::of(&facts.checkpoint, name.day);
                self.misplaced.push((key.clone(), name.clone(), own));
                self.unknown(name);
            }
            Ok(facts) => self.link(key, facts),
        }
    }

    /// A segment of which only the name is known.
    fn unknown(&mut self, name: &SegmentName) {
        self.hole_before(name.first);
        self.reach = self.reach.max(Some(name.last));
    }

    /// Another segment begins with this record.
    fn hole_before(&mut self, first: u64) {
        let next = self.reach.map(|reach| reach.saturating_add(1));
        if let Some(next) =
            next.filter(|next| *next < first && self.holes_behind.len() < MAX_FAULTS)
        {
            self.holes_behind.push((next, first - 1));
        }
    }

    /// A segment that is what its name says: does it follow the one before?
    fn link(&mut self, key: &str, facts: SegmentFacts) {
        let SegmentFacts { checkpoint, records, gaps, unrecorded, kept_from } = facts;
        self.kept_from.extend(kept_from);
        let (first, last) = (checkpoint.first, checkpoint.last);
        let range = Some((first, last));
        let follows = |tip: &&Tip| Some(tip.checkpoint.hash()) == checkpoint.previous;
        let before = self.tips.iter().find(follows).cloned();
        self.hole_before(first);
        let holes = std::mem::take(&mut self.holes_behind);
        match (before, self.tips.last().cloned()) {
            (Some(before), _) => {
                self.follow(key, &before.checkpoint, &checkpoint);
                let others = self.tips.iter().any(|tip| tip.checkpoint.last >= first);
                if others && !self.report.faults.iter().any(|found| found.at == *key) {
                    let why = format!("there is another segment with record {first}");
                    self.found(ChainFault::Fork, key, range, why);
                }
            }
            (None, Some(tip)) if first <= tip.checkpoint.last => {
                let why =
                    format!("it has records that {} has, too, and does not follow it", tip.key);
                self.found(ChainFault::Fork, key, range, why);
            }
            (None, None)
                if self.reach.is_none()
                    || checkpoint.previous.is_none()
                    || (self.expired && !holes.is_empty()) =>
            {
                self.begin(key, &checkpoint);
            }
            (None, _) if !holes.is_empty() => {
                for (from, to) in holes {
                    let why = format!("the segments with records {from} to {to} are not there");
                    self.found(ChainFault::Removed, key, Some((from, to)), why);
                }
            }
            (None, Some(tip)) if self.reach == Some(tip.checkpoint.last) => {
                let why = format!("it does not follow {}, though its number does", tip.key);
                self.found(ChainFault::Fork, key, range, why);
            }
            // What it follows cannot be believed, which is told already.
            (None, Some(_) | None) => {}
        }
        if self.report.segments == 0 {
            self.report.first = first;
        }
        self.report.segments += 1;
        self.report.records += records;
        self.report.gaps.extend(gaps);
        self.report.unrecorded.extend(unrecorded);
        if last >= self.report.last {
            (self.report.last, self.report.head) = (last, checkpoint.head.to_string());
        }
        self.tips.push(Tip { key: key.to_owned(), checkpoint: Box::new(checkpoint) });
        if self.tips.len() > MAX_TIPS {
            self.tips.remove(0);
        }
        self.reach = self.tips.iter().map(|tip| tip.checkpoint.last).max();
    }

    /// The first segment that can be believed.
    fn begin(&mut self, key: &str, checkpoint: &Checkpoint) {
        let first = checkpoint.first;
        match (checkpoint.previous, self.expired) {
            (None, _) if first > 1 => self.note(format!(
                "the chain begins with record {first}: those before it were no longer in the log when the node joined"
            )),
            (None, _) => {}
            (Some(_), true) => {
                self.note(format!("the segments before record {first} are not there"));
            }
            (Some(_), false) => {
                let before = (first > 1).then(|| (1, first - 1));
                let why = format!("the segments before record {first} are not there");
                self.found(ChainFault::Removed, key, before, why);
            }
        }
    }

    /// It was sealed after `before`: are its records those that follow?
    fn follow(&mut self, key: &str, before: &Checkpoint, this: &Checkpoint) {
        let range = Some((this.first, this.last));
        if this.log != before.log {
            self.found(
                ChainFault::Fork,
                key,
                range,
                "it is of another log than the one before it".into(),
            );
        } else if this.first == before.last + 1 {
            if this.after != before.head {
                let why = "its first record does not follow the last one before it";
                self.found(ChainFault::Fork, key, range, why.into());
            }
        } else if this.first > before.last + 1 {
            // The node had no such records when it sealed the next ones: the log itself has a hole.
            self.holes
                .push((Gap::new(before.last + 1, this.first - 1, this.after), key.to_owned()));
        } else {
            let why = "it begins before the end of the one that it was sealed after";
            self.found(ChainFault::Fork, key, range, why.into());
        }
    }

    /// What was found of the whole chain.
    #[must_use]
    pub fn finish(mut self) -> ChainReport {
        let misplaced = std::mem::take(&mut self.misplaced);
        for (key, stands, belongs) in &misplaced {
            // Where it belongs there is another that is out of its place, too.
            let is_swapped = misplaced.iter().any(|(_, other, _)| other.is_same(belongs));
            let fault = if is_swapped { ChainFault::Reordered } else { ChainFault::Replaced };
            let why =
                format!("it is the segment with records {} to {}", belongs.first, belongs.last);
            self.found(fault, key, Some((stands.first, stands.last)), why);
        }
        for (hole, key) in std::mem::take(&mut self.holes) {
            let (first, last) = (hole.first_lost_seq, hole.last_lost_seq);
            let is_removed = |(kept, follows): &(u64, Hash)| {
                *kept == last + 1 && follows.to_string() == hole.follows_hash
            };
            if self.kept_from.iter().any(is_removed) {
                self.note(format!(
                    "records {first} to {last} were removed from the log while it was not sealed"
                ));
            } else if !self.report.gaps.contains(&hole) {
                let why = format!(
                    "records {first} to {last} are missing in the log, which does not say so"
                );
                self.found(ChainFault::Gap, &key, Some((first, last)), why);
            }
        }
        self.report.sound = self.report.faults.is_empty();
        self.report
    }
}

#[cfg(test)]
mod tests;
