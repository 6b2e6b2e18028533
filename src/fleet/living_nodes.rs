//! Which nodes of the fleet live, judged by one that lists their heartbeats and reads some of them. Pure: it is told what was
//! listed and read, and what time it is on the reader's own monotonic clock, in milliseconds.
//!
//! ```text
//!             a new one was read      unchanged for DEAD_AFTER_MS of listing
//!   Unknown ───────────▶ Living ─────────────────────────────────────────────▶ Silent
//!      │                  │ ▲            a new one was read                       │
//!      │     said so      ▼ └────────────────────────────────────────────────────┘
//!      └──────────────▶ Stopped
//! ```
//!
//! A node lives if its heartbeat is seen to change: no clock but the reader's own is believed, and one heartbeat alone, which may
//! be years old, proves nothing. Silence counts only for as long as the store is listed and takes what the reader itself puts:
//! while the store is away nobody dies, and all is as it was.
//!
//! One that is Unknown becomes Silent as well, untold: after as much silence since it was read, or where its object does not
//! change for so long. While it waits for its turn to be read, which in a large fleet comes later than that, it stays Unknown,
//! and whether it lives is undecided.
//!
//! One listing tells of all heartbeats which have changed, whatever they say. That keeps a node alive which was read to live,
//! and brings none to life; it is not signed, so that the heartbeats themselves are read in turn ([`NodeWatch::to_read`]). One
//! that has changed and says nothing new, or nothing that is to be believed, ends that: from then on its node lives as long as
//! new ones are read. So whoever writes into the store and has no key keeps a dead node alive until its turn comes (the next
//! one, where it had said something that was not read), and [`DEAD_AFTER_MS`] more.

mod node_view;
mod own_beats;
mod watched_node;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::node_view::{DEAD_AFTER_MS, NodeNews, NodeState, NodeView, SKEW_WARN_MS};
pub(super) use self::own_beats::{NextBeat, OwnBeats, PutEnd};
use self::watched_node::{BeatFollows, WatchedNode};
use super::config::NodeName;
use super::heartbeat::{BootId, Heartbeat, HeartbeatFault};
use super::strays::StrayObjects;

/// How often a node says that it lives, in milliseconds.
pub const BEAT_EVERY_MS: u64 = 1_000;
/// How often a node lists what the others say.
pub const LIST_EVERY_MS: u64 = 800;
/// The most of silence that one listing adds: what was not listed was not silence.
const MAX_SILENCE_STEP_MS: u64 = 2_000;
/// Most nodes that are kept in mind.
pub const MAX_NODES: usize = 4_096;
/// Most heartbeats that are listed: those of all nodes, and some that are no node's.
pub const MAX_LISTED_BEATS: usize = MAX_NODES + 1_024;
/// Most heartbeats that are read in a turn; the others have theirs later.
pub const MAX_READ_AT_ONCE: usize = 64;
/// In a fleet of so many nodes each heartbeat is read as soon as it has changed,
const FEW_NODES: usize = 16;
/// in a larger one so many in a turn: 64 of them in ten seconds, whatever there are. What the nodes would ask of the store
/// otherwise grows with the square of how many they are.
const READ_IN_TURN: usize = 5;
/// In that one the reader's own heartbeat is read so often, which tells it of another process with its name.
const READ_OWN_MS: u64 = 4_000;
/// All nodes, as they were judged last.
#[derive(Clone, Debug, Default)]
pub struct LivingNodes {
    nodes: Vec<NodeView>,
    /// Why nobody can be judged now; what is here is what was known before.
    pub away: Option<String>,
    /// What lies among the heartbeats and is no node's.
    pub strays: Option<Arc<str>>,
}

impl LivingNodes {
    /// The nodes, by their names.
    #[must_use]
    pub fn all(&self) -> &[NodeView] {
        &self.nodes
    }

    /// Those that live, the reader among them.
    pub fn living(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.iter().filter(|node| node.state == NodeState::Living)
    }

    /// How many live, the reader among them: at least 1. What all nodes share is divided by it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.living().count().max(1)
    }

    /// By how many nodes a limit that all share is divided: those that live, and those of which it is not known yet; at least 1.
    /// So one that has just started does not take the others for absent.
    #[must_use]
    pub fn sharing(&self) -> usize {
        let shares = |node: &&NodeView| match node.state {
            NodeState::Living => true,
            NodeState::Unknown => node.heartbeat.is_some(),
            NodeState::Stopped | NodeState::Silent => false,
        };
        self.nodes.iter().filter(shares).count().max(1)
    }

    /// The same, while nobody can be seen.
    #[must_use]
    pub fn unseen(&self, why: String) -> Self {
        Self { away: Some(why), ..self.clone() }
    }

    /// Whether there may be nodes that are not here: who there is was not read yet, or is not known any more.
    #[must_use]
    pub fn may_lack_some(&self) -> bool {
        self.nodes.is_empty() || self.away.is_some()
    }

    /// Why it cannot be said of each node whether it lives; `None` where it can.
    #[must_use]
    pub fn why_undecided(&self) -> Option<String> {
        if let Some(away) = &self.away {
            return Some(format!("it is not seen now which nodes live: {away}"));
        }
        if self.nodes.is_empty() {
            return Some("it was not seen yet which nodes live".to_owned());
        }
        let view = self.nodes.iter().find(|view| view.is_undecided())?;
        Some(format!("it is not known yet whether node '{}' lives", view.name.as_str()))
    }

    /// The node of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&NodeView> {
        let at = self.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok()?;
        self.nodes.get(at)
    }
}

/// What a reading of one node's object came to.
pub type BeatRead = Result<Heartbeat, HeartbeatFault>;

/// A heartbeat as it is listed: whose it is, and what tells one state of it from another.
pub type ListedBeat = (NodeName, Box<str>);

/// Judges who lives, of what is listed and read.
#[derive(Debug)]
pub struct NodeWatch {
    own: NodeName,
    own_boot: BootId,
    nodes: BTreeMap<NodeName, WatchedNode>,
    /// When they were listed last.
    listed_at: Option<u64>,
    strays: Option<Arc<str>>,
}

impl NodeWatch {
    /// Of this node, which has that start.
    #[must_use]
    pub fn new(own: NodeName, own_boot: BootId) -> Self {
        let nodes = BTreeMap::from([(own.clone(), WatchedNode::default())]);
        Self { own, own_boot, nodes, listed_at: None, strays: None }
    }

    /// At `now` these heartbeats are there, and no others, but for `strays`. `trusted`: the store takes what this node puts,
    /// so that silence is the node's own.
    pub fn listed(
        &mut self,
        beats: impl IntoIterator<Item = ListedBeat>,
        mut strays: StrayObjects,
        now: u64,
        trusted: bool,
    ) -> Vec<(NodeName, NodeNews)> {
        let mut there: BTreeMap<_, _> = beats.into_iter().collect();
        self.make_room(&mut there, &mut strays);
        let since = self.listed_at.map_or(0, |before| now.saturating_sub(before));
        let step = if trusted { since.min(MAX_SILENCE_STEP_MS) } else { 0 };
        self.listed_at = Some(now);
        self.strays = (!strays.is_empty()).then(|| strays.to_string().into());
        let mut told = Vec::new();
        for (name, node) in &mut self.nodes {
            let state = there.remove(name);
            if *name == self.own {
                node.lies_there(state);
                continue;
            }
            let news = node.listed(state, step);
            told.extend(news.into_iter().map(|news| (name.clone(), news)));
        }
        for (name, state) in there {
            let mut node = WatchedNode::default();
            node.listed(Some(state), 0);
            self.nodes.insert(name, node);
        }
        told
    }

    /// Leaves no more of them than there is room for: whoever can write into the store can put any number of names there.
    fn make_room(&mut self, there: &mut BTreeMap<NodeName, Box<str>>, strays: &mut StrayObjects) {
        let left_over = |nodes: &BTreeMap<NodeName, WatchedNode>, there: &BTreeMap<_, _>| {
            let new = there.keys().filter(|name| !nodes.contains_key(*name)).count();
            (nodes.len() + new).saturating_sub(MAX_NODES)
        };
        let own = self.own.clone();
        // Of those that are not there any more, first those that never said anything are forgotten.
        for with_said in [false, true] {
            if left_over(&self.nodes, there) > 0 {
                self.nodes.retain(|name, node| {
                    *name == own || there.contains_key(name) || node.has_said() && !with_said
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

    /// Whose heartbeats are to be read now, at most [`MAX_READ_AT_ONCE`], those first that were not asked for for longest: one
    /// that the store does not give keeps the others from nothing.
    ///
    /// At once those of nodes of which nothing new was read since they changed (new ones, dead ones), that have not changed for
    /// longer than they should, or that somebody `doubts`; the others in turn.
    pub fn to_read(&mut self, now: u64, doubts: &BTreeSet<NodeName>) -> Vec<NodeName> {
        let are_few = self.nodes.values().filter(|node| node.lives()).count() < FEW_NODES;
        let (mut at_once, mut in_turn) = (Vec::new(), Vec::new());
        for (name, node) in &self.nodes {
            let is_own = *name == self.own;
            let own_is_due =
                || node.asked_at().is_none_or(|at| now.saturating_sub(at) >= READ_OWN_MS);
            let is_due = if is_own { own_is_due() } else { node.is_due() };
            if (is_due || doubts.contains(name)) && (node.is_there() || node.has_said()) {
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
                node.is_asked(now);
            }
        }
        asked
    }

    /// What lies under a node's name was read at `now`; it is `wall` by the reader's clock, in milliseconds since 1970.
    pub fn read(
        &mut self,
        name: &NodeName,
        read: Option<BeatRead>,
        (now, wall): (u64, u64),
    ) -> Vec<NodeNews> {
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
                node.is_own(beat);
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
                    // Under this node's own name: before its own was there, that of its last start; then another process.
                    let is_twin = if is_self {
                        follows != BeatFollows::First
                    } else {
                        follows == BeatFollows::Twin
                    };
                    if is_twin && node.is_twice(now) {
                        news.push(NodeNews::Twice);
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
        news.extend(node.was_read(fault, late, now).map(NodeNews::Fault));
        if !is_self {
            news.extend(node.judge(is_new, had_changed));
        }
        news
    }

    /// Whether it is a node that is kept in mind.
    #[must_use]
    pub fn knows(&self, name: &NodeName) -> bool {
        self.nodes.contains_key(name)
    }

    /// What is known now.
    #[must_use]
    pub fn snapshot(&self, away: Option<String>) -> LivingNodes {
        let shown = self.nodes.iter().filter(|(name, node)| **name == self.own || node.is_shown());
        let view = |(name, node): (&NodeName, &WatchedNode)| node.view(name, *name == self.own);
        LivingNodes { nodes: shown.map(view).collect(), away, strays: self.strays.clone() }
    }
}

#[cfg(test)]
pub(crate) mod tests;
