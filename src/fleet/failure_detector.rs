//! Failure detector over heartbeat objects. Sans-I/O: the caller supplies listings, reads and its own monotonic clock
//! in milliseconds.
//!
//! ```text
//!             new heartbeat read      unchanged for DEAD_AFTER_MS of listing
//!   Unknown ───────────▶ Alive ─────────────────────────────────────────────▶ Dead
//!      │                  │ ▲            new heartbeat read                       │
//!      │   final heartbeat▼ └────────────────────────────────────────────────────┘
//!      └──────────────▶ Stopped
//! ```
//!
//! A node is alive if its heartbeat is seen to change. No other clock is trusted, and a single heartbeat proves nothing: it may
//! be years old. Silence counts only while the store is listed and accepts this node's own uploads; during an outage all
//! states are kept.
//!
//! An Unknown node becomes Dead, without a notification, after the same silence since it was read, or if its object does not
//! change for that long. While it waits to be read, which takes longer in a large fleet, it stays Unknown and undecided.
//!
//! A listing shows which heartbeats changed, but not their content. A change keeps an alive node alive but does not
//! revive a dead one, because listings are not authenticated; so heartbeats are also read in turn
//! ([`FailureDetector::due_reads`]). If a changed object turns out not to be a new valid heartbeat, listings no
//! longer count for this node, only reads do. An attacker with write access but no key can therefore keep a dead node
//! alive until its next read plus [`DEAD_AFTER_MS`].

#[cfg(test)]
pub(crate) mod tests;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::{NodeName, StrayObjects};
use crate::heartbeat::{BootId, DEAD_AFTER_MS, Heartbeat, HeartbeatFault};

/// Maximum silence that one listing adds, in milliseconds: time without listings is not silence.
const MAX_SILENCE_STEP_MS: u64 = 2_000;
/// Maximum number of tracked nodes.
pub const MAX_NODES: usize = 4_096;
/// Maximum number of listed heartbeats: all nodes, and some stray objects.
pub(crate) const MAX_LISTED_BEATS: usize = MAX_NODES + 1_024;
/// Maximum number of heartbeats read per round; the rest follow in later rounds.
pub(crate) const MAX_READ_AT_ONCE: usize = 64;
/// Fleet size up to which every changed heartbeat is read immediately.
const FEW_NODES: usize = 16;
/// Number of changed heartbeats read per round in turn in a larger fleet: 64 in ten seconds. Without this limit,
/// store requests would grow with the square of the fleet's size.
const READ_IN_TURN: usize = 5;
/// Interval for reading this node's own heartbeat in a larger fleet, to detect another process with the same name.
const READ_OWN_MS: u64 = 4_000;
/// Snapshot of all nodes.
#[derive(Clone, Debug, Default)]
pub struct Membership {
    nodes: Vec<NodeView>,
    /// Reason why nodes cannot be judged now; the states are the last known ones.
    pub away: Option<String>,
    /// Stray objects among the heartbeats.
    pub strays: Option<Arc<str>>,
}

impl Membership {
    pub fn all(&self) -> &[NodeView] {
        &self.nodes
    }

    /// Alive nodes, this one included.
    pub fn living(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.iter().filter(|node| node.state == NodeState::Alive)
    }

    /// Number of alive nodes, this one included; at least 1. Fleet-wide limits are divided by it.
    pub fn count(&self) -> usize {
        self.living().count().max(1)
    }

    /// Divisor for fleet-wide limits: alive nodes, and nodes whose state is not known yet; at least 1. So a
    /// node that has just started does not count the others as absent.
    pub fn sharing(&self) -> usize {
        let shares = |node: &&NodeView| match node.state {
            NodeState::Alive => true,
            NodeState::Unknown => node.heartbeat.is_some(),
            NodeState::Stopped | NodeState::Dead => false,
        };
        self.nodes.iter().filter(shares).count().max(1)
    }

    /// The same states, marked as outdated for the reason `why`.
    pub fn unseen(&self, why: String) -> Self {
        Self { away: Some(why), ..self.clone() }
    }

    /// True if some nodes may be missing from this snapshot.
    pub fn may_be_incomplete(&self) -> bool {
        self.nodes.is_empty() || self.away.is_some()
    }

    /// Reason why some node is undecided; `None` if all are decided.
    pub fn undecided_reason(&self) -> Option<String> {
        if let Some(away) = &self.away {
            return Some(format!("cannot determine which nodes are alive: {away}"));
        }
        if self.nodes.is_empty() {
            return Some("not determined yet which nodes are alive".to_owned());
        }
        let view = self.nodes.iter().find(|view| view.is_undecided())?;
        Some(format!("not known yet whether node '{}' is alive", view.name.as_str()))
    }

    pub fn get(&self, name: &str) -> Option<&NodeView> {
        let at = self.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok()?;
        self.nodes.get(at)
    }
}

/// Result of reading a heartbeat object.
pub(crate) type BeatRead = Result<Heartbeat, HeartbeatFault>;

/// Listed heartbeat: its node, and the object's version tag.
pub(crate) type ListedBeat = (NodeName, Box<str>);

/// Failure detector of one node.
#[derive(Debug)]
pub struct FailureDetector {
    own: NodeName,
    own_boot: BootId,
    nodes: BTreeMap<NodeName, WatchedNode>,
    /// Time of the last listing.
    listed_at: Option<u64>,
    strays: Option<Arc<str>>,
}

impl FailureDetector {
    /// Creates the detector of this node with its boot id.
    pub fn new(own: NodeName, own_boot: BootId) -> Self {
        let nodes = BTreeMap::from([(own.clone(), WatchedNode::default())]);
        Self { own, own_boot, nodes, listed_at: None, strays: None }
    }

    /// Supplies the complete listing at time `now`. `trusted` is true if the store accepts this node's uploads, so
    /// that silence counts.
    pub fn listed(
        &mut self,
        beats: impl IntoIterator<Item = ListedBeat>,
        mut strays: StrayObjects,
        now: u64,
        trusted: bool,
    ) -> Vec<(NodeName, NodeEvent)> {
        let mut there: BTreeMap<_, _> = beats.into_iter().collect();
        self.make_room(&mut there, &mut strays);
        let since = self.listed_at.map_or(0, |before| now.saturating_sub(before));
        let step = if trusted { since.min(MAX_SILENCE_STEP_MS) } else { 0 };
        self.listed_at = Some(now);
        self.strays = (!strays.is_empty()).then(|| strays.to_string().into());
        let mut reported = Vec::new();
        for (name, node) in &mut self.nodes {
            let state = there.remove(name);
            if *name == self.own {
                node.set_object(state);
                continue;
            }
            let news = node.listed(state, step);
            reported.extend(news.into_iter().map(|news| (name.clone(), news)));
        }
        for (name, state) in there {
            let mut node = WatchedNode::default();
            node.listed(Some(state), 0);
            self.nodes.insert(name, node);
        }
        reported
    }

    /// Limits the tracked nodes to [`MAX_NODES`]: anyone who can write to the store can add any number of
    /// names.
    fn make_room(&mut self, there: &mut BTreeMap<NodeName, Box<str>>, strays: &mut StrayObjects) {
        let left_over = |nodes: &BTreeMap<NodeName, WatchedNode>, there: &BTreeMap<_, _>| {
            let new = there.keys().filter(|name| !nodes.contains_key(*name)).count();
            (nodes.len() + new).saturating_sub(MAX_NODES)
        };
        let own = self.own.clone();
        // Unlisted nodes that never had a valid heartbeat are forgotten first.
        for with_heartbeat in [false, true] {
            if left_over(&self.nodes, there) > 0 {
                self.nodes.retain(|name, node| {
                    *name == own
                        || there.contains_key(name)
                        || node.has_valid_heartbeat() && !with_heartbeat
                });
            }
        }
        let left = left_over(&self.nodes, there);
        let new = there.keys().rev().filter(|name| !self.nodes.contains_key(*name));
        let left: Vec<_> = new.take(left).cloned().collect();
        for name in left {
            strays.add(name.as_str());
            there.remove(&name);
        }
    }

    /// Heartbeats to read now, at most [`MAX_READ_AT_ONCE`], the least recently requested first, so that an unreadable one does not
    /// block the others.
    ///
    /// Due immediately: changed objects of nodes that are not proven alive, objects unchanged for too long, and nodes
    /// in `suspected`. The others are read in turn.
    pub(crate) fn due_reads(&mut self, now: u64, suspected: &BTreeSet<NodeName>) -> Vec<NodeName> {
        let are_few = self.nodes.values().filter(|node| node.is_alive()).count() < FEW_NODES;
        let (mut at_once, mut in_turn) = (Vec::new(), Vec::new());
        for (name, node) in &self.nodes {
            let is_own = *name == self.own;
            let own_is_due =
                || node.asked_at().is_none_or(|at| now.saturating_sub(at) >= READ_OWN_MS);
            let is_due = if is_own { own_is_due() } else { node.is_due() };
            if (is_due || suspected.contains(name))
                && (node.is_there() || node.has_valid_heartbeat())
            {
                at_once.push((node.asked_at(), name.clone()));
            } else if node.has_changed() && (are_few || !is_own) {
                in_turn.push((node.asked_at(), name.clone()));
            }
        }
        at_once.sort();
        in_turn.sort();
        in_turn.truncate(if are_few { FEW_NODES } else { READ_IN_TURN });
        at_once.truncate(MAX_READ_AT_ONCE - in_turn.len());
        let asked: Vec<_> = at_once.into_iter().chain(in_turn).map(|(_, name)| name).collect();
        for name in &asked {
            if let Some(node) = self.nodes.get_mut(name) {
                node.record_request(now);
            }
        }
        asked
    }

    /// Supplies the heartbeat of a node, read at time `now`; `wall` is the local time in milliseconds since
    /// 1970.
    pub fn read(
        &mut self,
        name: &NodeName,
        read: Option<BeatRead>,
        (now, wall): (u64, u64),
    ) -> Vec<NodeEvent> {
        let (is_self, own_boot) = (*name == self.own, self.own_boot);
        let Some(node) = self.nodes.get_mut(name) else { return Vec::new() };
        let (mut news, had_changed) = (Vec::new(), node.has_changed());
        let (mut fault, mut late) = (None, None);
        let is_new = match read {
            None => false,
            Some(Err(wrong)) => {
                fault = Some(wrong);
                false
            }
            Some(Ok(beat)) if is_self && beat.boot == own_boot => {
                node.set_own(beat);
                true
            }
            Some(Ok(beat)) => match node.follows(&beat) {
                BeatFollows::Same => false,
                BeatFollows::Late => {
                    late = Some(beat.beat);
                    false
                }
                BeatFollows::Older => {
                    fault = Some(HeartbeatFault::Older);
                    false
                }
                follows @ (BeatFollows::First | BeatFollows::Next | BeatFollows::Twin) => {
                    // The first heartbeat read under this node's own name is from its previous start. Any later one is
                    // from another process.
                    let is_twin = if is_self {
                        follows != BeatFollows::First
                    } else {
                        follows == BeatFollows::Twin
                    };
                    if is_twin && node.is_twice(now) {
                        news.push(NodeEvent::Twice);
                    }
                    if is_self {
                        node.remember(beat.boot, beat.beat);
                    } else {
                        node.take(beat, wall);
                    }
                    follows != BeatFollows::First
                }
            },
        };
        news.extend(node.record_read(fault, late, now).map(NodeEvent::Fault));
        if !is_self {
            news.extend(node.judge(is_new, had_changed));
        }
        news
    }

    /// True if the node is tracked.
    pub(crate) fn knows(&self, name: &NodeName) -> bool {
        self.nodes.contains_key(name)
    }

    /// Returns the current states.
    pub fn snapshot(&self, away: Option<String>) -> Membership {
        let shown = self.nodes.iter().filter(|(name, node)| **name == self.own || node.is_shown());
        let view = |(name, node): (&NodeName, &WatchedNode)| node.view(name, *name == self.own);
        Membership { nodes: shown.map(view).collect(), away, strays: self.strays.clone() }
    }
}

/// Age at which an unchanged heartbeat is read, because it may be the final one; longer than the heartbeat interval.
pub(crate) const STILL_AFTER_MS: u64 = 1_600;
/// Minimum clock skew that triggers a warning, in milliseconds. The measured skew includes the heartbeat's delay.
pub const SKEW_WARN_MS: i64 = 10_000;
/// Maximum number of remembered former starts per node.
pub(crate) const MAX_FORMER: usize = 8;
/// Period for which a duplicate name is still reported after it was last observed.
pub(crate) const TWICE_FOR_MS: u64 = 30_000;
/// Period during which a node without a heartbeat object stays listed; longer than any work that the node had in
/// progress.
pub(crate) const SHOWN_FOR_MS: u64 = 86_400_000;

/// Liveness of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// No new heartbeat was read yet.
    #[default]
    Unknown,
    /// The node is alive: its heartbeat changes.
    Alive,
    /// The node has shut down: its final heartbeat was read.
    Stopped,
    /// The node is dead: its heartbeat no longer changes.
    Dead,
}

impl NodeState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Alive => "living",
            Self::Stopped => "stopped",
            Self::Dead => "silent",
        }
    }
}

/// State of one node.
#[derive(Clone, Debug)]
pub struct NodeView {
    pub name: NodeName,
    /// True for this node itself.
    pub is_self: bool,
    pub state: NodeState,
    /// Last valid heartbeat.
    pub heartbeat: Option<Arc<Heartbeat>>,
    /// Local clock minus the node's clock at its last new heartbeat, in milliseconds.
    pub skew_ms: Option<i64>,
    /// Time since the last new heartbeat.
    pub silent_ms: u64,
    /// Fault of the object stored under the node's name.
    pub fault: Option<String>,
    /// True if two processes use the node's name.
    pub twice: bool,
    /// True if its heartbeat object exists. Operators remove the object of a decommissioned node.
    pub is_listed: bool,
}

impl NodeView {
    /// True if the clock skew exceeds [`SKEW_WARN_MS`].
    pub fn is_skewed(&self) -> bool {
        self.skew_ms.is_some_and(|skew| skew.abs() >= SKEW_WARN_MS)
    }

    /// True if the node's liveness is not known yet. A node without any valid heartbeat is judged after the same
    /// silence as others; waiting to be read does not count as silence while its object changes.
    pub fn is_undecided(&self) -> bool {
        self.state == NodeState::Unknown && self.silent_ms < DEAD_AFTER_MS
    }
}

/// Event to report once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    Lives,
    /// The final heartbeat was read.
    Stopped,
    Dead,
    /// The local clock is ahead by this many milliseconds; behind if negative.
    Skewed(i64),
    /// The object stored under the node's name is faulty.
    Fault(HeartbeatFault),
    /// Two processes use the node's name.
    Twice,
}

#[derive(Debug, Default)]
pub(crate) struct WatchedNode {
    state: NodeState,
    heartbeat: Option<Arc<Heartbeat>>,
    former: Vec<(BootId, u64)>,
    skew_ms: Option<i64>,
    skew_reported: bool,
    /// Time since the last new heartbeat.
    silent_ms: u64,
    /// Time since its object changed, whether it was read or not.
    still_ms: u64,
    /// Version tag of its object in the last listing.
    object: Option<Box<str>>,
    /// True if its object is listed.
    is_there: bool,
    /// Version tag that was last read.
    read_in: Option<Box<str>>,
    /// Time of the last read request, answered or not.
    asked_at: Option<u64>,
    /// True if the last read returned a new heartbeat, so that changes of the object count as heartbeats.
    is_proven: bool,
    /// Abandoned heartbeats that arrived late; each is accepted once.
    came_late: Vec<u64>,
    /// The late heartbeat that was read last, if nothing else was read since.
    late_there: Option<u64>,
    fault: Option<HeartbeatFault>,
    twice_at: Option<u64>,
}

/// Relation of a heartbeat to the one that was read before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeatFollows {
    First,
    Same,
    /// A later heartbeat of the same start, or the first one of a new start.
    Next,
    /// A later heartbeat of a start that was superseded: both processes are running.
    Twin,
    /// Late write: the node had abandoned this heartbeat, but the store applied it after a newer heartbeat.
    Late,
    /// Replay of an older heartbeat.
    Older,
}

impl WatchedNode {
    /// Updates the listed object; returns true if it changed.
    pub(crate) fn set_object(&mut self, object: Option<Box<str>>) -> bool {
        self.is_there = object.is_some();
        // An object that vanished and returned unchanged counts as unchanged.
        match object.filter(|state| self.object.as_ref() != Some(state)) {
            Some(state) => self.object.replace(state).is_some(),
            None => false,
        }
    }

    /// Updates another node's object `step` milliseconds after the previous listing.
    pub(crate) fn listed(&mut self, object: Option<Box<str>>, step: u64) -> Option<NodeEvent> {
        let waited = self.has_changed();
        let changed = self.set_object(object);
        self.still_ms = if changed { 0 } else { self.still_ms.saturating_add(step) };
        let counts = match self.state {
            NodeState::Alive if changed && self.is_proven => {
                self.silent_ms = 0;
                return None;
            }
            // The object changed but was not read yet, which is not silence. In a large fleet, the read may come
            // after [`DEAD_AFTER_MS`].
            NodeState::Unknown => !waited,
            NodeState::Alive | NodeState::Dead | NodeState::Stopped => true,
        };
        if counts {
            self.silent_ms = self.silent_ms.saturating_add(step);
        }
        let is_silent = self.silence_ms() >= DEAD_AFTER_MS && self.heartbeat.is_some();
        match self.state {
            NodeState::Alive if is_silent => {
                self.state = NodeState::Dead;
                Some(NodeEvent::Dead)
            }
            NodeState::Unknown if is_silent => {
                self.silent_ms = self.silence_ms();
                self.state = NodeState::Dead;
                None
            }
            NodeState::Alive | NodeState::Unknown | NodeState::Dead | NodeState::Stopped => None,
        }
    }

    /// Duration of the silence that counts. For an unknown node, the time without a change of its object counts, too,
    /// because a live node keeps changing its object.
    fn silence_ms(&self) -> u64 {
        match self.state {
            NodeState::Unknown => self.silent_ms.max(self.still_ms),
            NodeState::Alive | NodeState::Dead | NodeState::Stopped => self.silent_ms,
        }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.is_there
    }

    /// True if it was seen alive and has not stopped.
    pub(crate) fn is_alive(&self) -> bool {
        self.state == NodeState::Alive
    }

    /// True if a valid heartbeat was read.
    pub(crate) fn has_valid_heartbeat(&self) -> bool {
        self.heartbeat.is_some()
    }

    /// True if its object differs from the one read.
    pub(crate) fn has_changed(&self) -> bool {
        self.is_there && self.read_in != self.object
    }

    /// Time of the last read request.
    pub(crate) fn asked_at(&self) -> Option<u64> {
        self.asked_at
    }

    /// Records a request to read its heartbeat.
    pub(crate) fn record_request(&mut self, now: u64) {
        self.asked_at = Some(now);
    }

    /// True if it must be read immediately.
    pub(crate) fn is_due(&self) -> bool {
        match self.state {
            NodeState::Alive => {
                !self.is_proven || self.silent_ms > STILL_AFTER_MS || self.twice_at.is_some()
            }
            NodeState::Unknown | NodeState::Dead | NodeState::Stopped => self.has_changed(),
        }
    }

    /// Records this node's own heartbeat.
    pub(crate) fn set_own(&mut self, beat: Heartbeat) {
        self.heartbeat = Some(Arc::new(beat));
    }

    pub(crate) fn follows(&self, beat: &Heartbeat) -> BeatFollows {
        let Some(last) = &self.heartbeat else { return BeatFollows::First };
        if beat.boot == last.boot {
            return match beat.beat.cmp(&last.beat) {
                Ordering::Less if self.may_be_late(last, beat.beat) => BeatFollows::Late,
                Ordering::Less => BeatFollows::Older,
                Ordering::Equal => BeatFollows::Same,
                Ordering::Greater => BeatFollows::Next,
            };
        }
        match self.former.iter().find(|(boot, _)| *boot == beat.boot) {
            Some((_, last)) if beat.beat > *last => BeatFollows::Twin,
            Some(_) => BeatFollows::Older,
            None => BeatFollows::Next,
        }
    }

    /// True if the node listed this heartbeat as abandoned in its `last` one and it has not arrived before: a
    /// replay is accepted at most once.
    fn may_be_late(&self, last: &Heartbeat, number: u64) -> bool {
        last.given_up.contains(&number)
            && (self.late_there == Some(number) || !self.came_late.contains(&number))
    }

    pub(crate) fn take(&mut self, beat: Heartbeat, wall: u64) {
        if let Some(last) = self.heartbeat.take().filter(|last| last.boot != beat.boot) {
            self.former.retain(|(boot, _)| *boot != beat.boot);
            self.remember(last.boot, last.beat);
            self.skew_reported = false;
            // Heartbeat numbers are counted per start.
            self.came_late.clear();
        }
        self.came_late.retain(|number| beat.given_up.contains(number));
        let skew = i128::from(wall) - i128::from(beat.at);
        self.skew_ms =
            Some(i64::try_from(skew).unwrap_or(if skew < 0 { i64::MIN + 1 } else { i64::MAX }));
        self.heartbeat = Some(Arc::new(beat));
    }

    /// Remembers a former start and the number of its last heartbeat.
    pub(crate) fn remember(&mut self, boot: BootId, beat: u64) {
        self.former.retain(|(known, _)| *known != boot);
        if self.former.len() == MAX_FORMER {
            self.former.remove(0);
        }
        self.former.push((boot, beat));
    }

    /// Records that two processes use this name; returns true the first time.
    pub(crate) fn is_twice(&mut self, now: u64) -> bool {
        self.twice_at.replace(now).is_none()
    }

    /// Records a read of the listed object. `late` is the heartbeat's number if it was an abandoned one. Returns the
    /// fault if it is new.
    pub(crate) fn record_read(
        &mut self,
        fault: Option<HeartbeatFault>,
        late: Option<u64>,
        now: u64,
    ) -> Option<HeartbeatFault> {
        self.read_in = self.object.clone();
        self.late_there = late;
        if let Some(number) = late
            && !self.came_late.contains(&number)
        {
            self.came_late.push(number);
        }
        if self.twice_at.is_some_and(|at| now.saturating_sub(at) > TWICE_FOR_MS) {
            self.twice_at = None;
        }
        let reported = fault.clone().filter(|fault| self.fault.as_ref() != Some(fault));
        // Every read without a fault clears it.
        self.fault = fault;
        reported
    }

    /// Judges a heartbeat of another node; `had_changed` is true if its object had changed since the previous read.
    pub(crate) fn judge(&mut self, is_new: bool, had_changed: bool) -> Vec<NodeEvent> {
        let mut news = Vec::new();
        let stopping = self.heartbeat.as_ref().is_some_and(|beat| beat.stopping);
        if is_new {
            self.silent_ms = 0;
            self.is_proven = true;
        } else if had_changed || self.fault.is_some() {
            // The object was changed by someone else, or was read before the change was listed and will be
            // read again.
            self.is_proven = false;
        }
        let next = match self.state {
            _ if stopping => NodeState::Stopped,
            _ if is_new => NodeState::Alive,
            state => state,
        };
        if next != self.state {
            match next {
                NodeState::Alive => news.push(NodeEvent::Lives),
                NodeState::Stopped => news.push(NodeEvent::Stopped),
                NodeState::Dead | NodeState::Unknown => {}
            }
            self.state = next;
        }
        // Clocks are compared only with a heartbeat that was seen to be new.
        if is_new && !stopping {
            let skew = self.skew_ms.unwrap_or_default();
            match (self.skew_reported, skew.abs()) {
                (false, skew_abs) if skew_abs >= SKEW_WARN_MS => {
                    self.skew_reported = true;
                    news.push(NodeEvent::Skewed(skew));
                }
                (true, skew_abs) if skew_abs < SKEW_WARN_MS / 2 => self.skew_reported = false,
                _ => {}
            }
        } else if self.state == NodeState::Unknown {
            self.skew_ms = None;
        }
        news
    }

    /// True if the node is still listed, because work requested from it may be in progress.
    pub(crate) fn is_shown(&self) -> bool {
        self.is_there
            || match self.state {
                NodeState::Alive => true,
                NodeState::Dead => self.silent_ms < SHOWN_FOR_MS,
                NodeState::Stopped | NodeState::Unknown => false,
            }
    }

    pub(crate) fn view(&self, name: &NodeName, is_self: bool) -> NodeView {
        NodeView {
            name: name.clone(),
            is_self,
            state: if is_self { NodeState::Alive } else { self.state },
            heartbeat: self.heartbeat.clone(),
            skew_ms: self.skew_ms,
            silent_ms: if is_self { 0 } else { self.silence_ms() },
            fault: self.fault.as_ref().map(ToString::to_string),
            twice: self.twice_at.is_some(),
            is_listed: self.is_there,
        }
    }
}
