//! Which nodes of the fleet live, judged by one that reads their heartbeats. Pure: it is told what was read and what time it is
//! on the reader's own monotonic clock, in milliseconds.
//!
//! ```text
//!              changed                unchanged for DEAD_AFTER_MS of reading
//!   Unknown ───────────▶ Living ─────────────────────────────────────────────▶ Silent
//!      │                  │ ▲            changed                                 │
//!      │     said so      ▼ └────────────────────────────────────────────────────┘
//!      └──────────────▶ Stopped
//! ```
//!
//! A node lives if its heartbeat is seen to change: no clock but the reader's own is believed, and one heartbeat alone, which may
//! be years old, proves nothing. Silence counts only for as long as the store is read and takes what the reader itself puts:
//! while the store is away nobody dies, and all is as it was.
//!
//! Size: the state machine, and each of its rules beside a test of what is done to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::NodeName;
use super::heartbeat::{BootId, Heartbeat, HeartbeatFault};

/// How often a node says that it lives, in milliseconds.
pub const BEAT_EVERY_MS: u64 = 1_000;
/// How often a node reads what the others say.
pub const READ_EVERY_MS: u64 = 800;
/// A node whose heartbeat has not changed for so long lives no more. Several beats: a put may be slow.
pub const DEAD_AFTER_MS: u64 = 6_000;
/// The most of silence that one reading adds: what was not read was not silence.
const MAX_SILENCE_STEP_MS: u64 = 2_000;
/// Clocks that are further apart are warned of, in milliseconds. What is measured holds the time that a heartbeat is on its way.
pub const SKEW_WARN_MS: i64 = 10_000;
/// Most nodes that are kept in mind.
pub const MAX_NODES: usize = 4_096;
/// Most heartbeats that are read in a turn; of those of nodes that have been away for long, the others have their turn later.
pub const MAX_READ_AT_ONCE: usize = 64;
/// Starts of a node that are remembered, so that none is taken for a new one.
const MAX_FORMER: usize = 8;
/// For how long it is told that a name is used twice, since it was last seen.
const TWICE_FOR_MS: u64 = 30_000;

/// Whether a node lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// It was not seen to say anything new yet.
    #[default]
    Unknown,
    /// It says something new all the time.
    Living,
    /// It said that it stops.
    Stopped,
    /// It says nothing any more.
    Silent,
}

impl NodeState {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Living => "living",
            Self::Stopped => "stopped",
            Self::Silent => "silent",
        }
    }
}

/// A node as the reader sees it.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// Its name.
    pub name: NodeName,
    /// Whether it is the reader itself.
    pub is_self: bool,
    /// Whether it lives.
    pub state: NodeState,
    /// The last that it said.
    pub heartbeat: Option<Arc<Heartbeat>>,
    /// How far the reader's clock is ahead of its clock, in milliseconds, as when it was last seen to change.
    pub skew_ms: Option<i64>,
    /// For how long nothing new has been heard.
    pub silent_ms: u64,
    /// What is wrong with what lies in the store under its name.
    pub fault: Option<String>,
    /// Two processes use its name.
    pub twice: bool,
}

impl NodeView {
    /// The clocks are too far apart.
    #[must_use]
    pub fn is_skewed(&self) -> bool {
        self.skew_ms.is_some_and(|skew| skew.abs() >= SKEW_WARN_MS)
    }

    /// It cannot be said yet whether it lives. One that has never said anything is judged after as much silence as any other.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.state == NodeState::Unknown && self.silent_ms < DEAD_AFTER_MS
    }
}

/// All nodes, as they were judged last.
#[derive(Clone, Debug, Default)]
pub struct LivingNodes {
    nodes: Vec<NodeView>,
    /// Why nobody can be judged now; what is here is what was known before.
    pub away: Option<String>,
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

#[derive(Debug, Default)]
struct WatchedNode {
    state: NodeState,
    heartbeat: Option<Arc<Heartbeat>>,
    former: Vec<(BootId, u64)>,
    skew_ms: Option<i64>,
    silent_ms: u64,
    read_at: Option<u64>,
    fault: Option<HeartbeatFault>,
    twice_at: Option<u64>,
    skew_told: bool,
}

/// What there is to be told, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeNews {
    /// It lives.
    Lives,
    /// It stopped, as it said.
    Stopped,
    /// It fell silent.
    Silent,
    /// The reader's clock is so far ahead of its, in milliseconds; or behind, if less than 0.
    Skewed(i64),
    /// Something is wrong with what lies under its name.
    Fault(HeartbeatFault),
    /// Two processes use the name.
    Twice,
}

/// Judges who lives, of what is read.
#[derive(Debug)]
pub struct NodeWatch {
    own: NodeName,
    own_boot: BootId,
    nodes: BTreeMap<NodeName, WatchedNode>,
    /// Where the next turn of nodes that have been away for long begins.
    turn: usize,
}

impl NodeWatch {
    /// Of this node, which has that start.
    #[must_use]
    pub fn new(own: NodeName, own_boot: BootId) -> Self {
        let nodes = BTreeMap::from([(own.clone(), WatchedNode::default())]);
        Self { own, own_boot, nodes, turn: 0 }
    }

    /// There are nodes of these names, and no others.
    pub fn listed(&mut self, names: impl IntoIterator<Item = NodeName>) {
        let mut gone = std::mem::take(&mut self.nodes);
        let keep = |nodes: &mut BTreeMap<_, _>, name: NodeName, watched| {
            if nodes.len() < MAX_NODES {
                nodes.insert(name, watched);
            }
        };
        let own = gone.remove(&self.own).unwrap_or_default();
        keep(&mut self.nodes, self.own.clone(), own);
        for name in names {
            if name != self.own {
                let watched = gone.remove(&name).unwrap_or_default();
                keep(&mut self.nodes, name, watched);
            }
        }
    }

    /// Whose heartbeats are to be read now, at most [`MAX_READ_AT_ONCE`]: of those that live or may begin to, all that there is
    /// room for; of the others some, each turn others.
    pub fn to_read(&mut self) -> Vec<NodeName> {
        let is_near = |node: &WatchedNode| {
            !matches!(node.state, NodeState::Silent | NodeState::Stopped)
                || node.silent_ms < 100 * DEAD_AFTER_MS
        };
        let mut near: Vec<_> =
            self.nodes.iter().filter(|(_, it)| is_near(it)).map(|(name, _)| name.clone()).collect();
        let far: Vec<_> = self
            .nodes
            .iter()
            .filter(|(_, it)| !is_near(it))
            .map(|(name, _)| name.clone())
            .collect();
        if near.len() > MAX_READ_AT_ONCE {
            let start = self.turn % near.len();
            self.turn = start + MAX_READ_AT_ONCE;
            near.rotate_left(start);
            near.truncate(MAX_READ_AT_ONCE);
            return near;
        }
        let room = (MAX_READ_AT_ONCE - near.len()).min(far.len());
        if room > 0 {
            let start = self.turn % far.len();
            self.turn = start + room;
            near.extend(far.iter().cycle().skip(start).take(room).cloned());
        }
        near
    }

    /// What lies under a node's name was read at `now`; it is `wall` by the reader's clock, in milliseconds since 1970.
    /// `trusted`: the store takes what this node puts, so that silence is the node's own.
    pub fn read(
        &mut self,
        name: &NodeName,
        read: Option<BeatRead>,
        (now, wall): (u64, u64),
        trusted: bool,
    ) -> Vec<NodeNews> {
        let (is_self, own_boot) = (*name == self.own, self.own_boot);
        let Some(node) = self.nodes.get_mut(name) else { return Vec::new() };
        let mut news = Vec::new();
        let since = node.read_at.map_or(0, |before| now.saturating_sub(before));
        let mut fault = None;
        let changed = match read {
            None => false,
            Some(Err(wrong)) => {
                fault = Some(wrong);
                false
            }
            Some(Ok(beat)) if is_self && beat.boot == own_boot => {
                node.heartbeat = Some(Arc::new(beat));
                true
            }
            Some(Ok(beat)) => match node.follows(&beat) {
                BeatFollows::Same => false,
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
                    if is_twin {
                        if node.twice_at.is_none() {
                            news.push(NodeNews::Twice);
                        }
                        node.twice_at = Some(now);
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
        node.read_at = Some(now);
        if node.twice_at.is_some_and(|at| now.saturating_sub(at) > TWICE_FOR_MS) {
            node.twice_at = None;
        }
        if let Some(fault) = fault.clone().filter(|fault| node.fault.as_ref() != Some(fault)) {
            news.push(NodeNews::Fault(fault));
        }
        // One that is well again takes it back; nothing there does not.
        node.fault = fault;
        if is_self {
            node.state = NodeState::Living;
            node.silent_ms = 0;
            return news;
        }
        news.extend(node.judge(changed, if trusted { since } else { 0 }));
        news
    }

    /// What is known now.
    #[must_use]
    pub fn snapshot(&self, away: Option<String>) -> LivingNodes {
        let view = |(name, node): (&NodeName, &WatchedNode)| NodeView {
            name: name.clone(),
            is_self: *name == self.own,
            state: if *name == self.own { NodeState::Living } else { node.state },
            heartbeat: node.heartbeat.clone(),
            skew_ms: node.skew_ms,
            silent_ms: node.silent_ms,
            fault: node.fault.as_ref().map(ToString::to_string),
            twice: node.twice_at.is_some(),
        };
        LivingNodes { nodes: self.nodes.iter().map(view).collect(), away }
    }
}

/// How a heartbeat follows the one that was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BeatFollows {
    /// There was none.
    First,
    /// It is the same.
    Same,
    /// It is the next, or that of a new start.
    Next,
    /// It is the next of a start that another has followed: both go on.
    Twin,
    /// It was there before.
    Older,
}

impl WatchedNode {
    fn follows(&self, beat: &Heartbeat) -> BeatFollows {
        let Some(last) = &self.heartbeat else { return BeatFollows::First };
        if beat.boot == last.boot {
            return match beat.beat.cmp(&last.beat) {
                std::cmp::Ordering::Less => BeatFollows::Older,
                std::cmp::Ordering::Equal => BeatFollows::Same,
                std::cmp::Ordering::Greater => BeatFollows::Next,
            };
        }
        match self.former.iter().find(|(boot, _)| *boot == beat.boot) {
            Some((_, last)) if beat.beat > *last => BeatFollows::Twin,
            Some(_) => BeatFollows::Older,
            None => BeatFollows::Next,
        }
    }

    fn take(&mut self, beat: Heartbeat, wall: u64) {
        if let Some(last) = self.heartbeat.take().filter(|last| last.boot != beat.boot) {
            self.former.retain(|(boot, _)| *boot != beat.boot);
            self.remember(last.boot, last.beat);
            self.skew_told = false;
        }
        let skew = i128::from(wall) - i128::from(beat.at);
        self.skew_ms =
            Some(i64::try_from(skew).unwrap_or(if skew < 0 { i64::MIN + 1 } else { i64::MAX }));
        self.heartbeat = Some(Arc::new(beat));
    }

    /// A start that has come so far, beside the one that counts.
    fn remember(&mut self, boot: BootId, beat: u64) {
        self.former.retain(|(known, _)| *known != boot);
        if self.former.len() == MAX_FORMER {
            self.former.remove(0);
        }
        self.former.push((boot, beat));
    }

    fn judge(&mut self, changed: bool, since: u64) -> Vec<NodeNews> {
        let mut news = Vec::new();
        let stopping = self.heartbeat.as_ref().is_some_and(|beat| beat.stopping);
        if changed {
            self.silent_ms = 0;
        } else {
            self.silent_ms = self.silent_ms.saturating_add(since.min(MAX_SILENCE_STEP_MS));
        }
        let next = match self.state {
            _ if stopping => NodeState::Stopped,
            _ if changed => NodeState::Living,
            NodeState::Living if self.silent_ms >= DEAD_AFTER_MS => NodeState::Silent,
            NodeState::Unknown if self.silent_ms >= DEAD_AFTER_MS && self.heartbeat.is_some() => {
                NodeState::Silent
            }
            state => state,
        };
        if next != self.state {
            match next {
                NodeState::Living => news.push(NodeNews::Lives),
                NodeState::Stopped => news.push(NodeNews::Stopped),
                NodeState::Silent if self.state == NodeState::Living => news.push(NodeNews::Silent),
                NodeState::Silent | NodeState::Unknown => {}
            }
            self.state = next;
        }
        // A clock is compared with a heartbeat that was seen to be new, not with one that had lain there.
        if changed && !stopping {
            let skew = self.skew_ms.unwrap_or_default();
            match (self.skew_told, skew.abs()) {
                (false, skew_abs) if skew_abs >= SKEW_WARN_MS => {
                    self.skew_told = true;
                    news.push(NodeNews::Skewed(skew));
                }
                (true, skew_abs) if skew_abs < SKEW_WARN_MS / 2 => self.skew_told = false,
                _ => {}
            }
        } else if self.state == NodeState::Unknown {
            self.skew_ms = None;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::heartbeat::tests::example;

    const OWN: BootId = BootId([9; 16]);
    const WALL: u64 = 1_000_000_000;

    fn name(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    /// A watch of node `me`, beside which `a` is listed.
    struct Scene {
        watch: NodeWatch,
        now: u64,
    }

    impl Scene {
        fn new() -> Self {
            let mut watch = NodeWatch::new(name("me"), OWN);
            watch.listed([name("a")]);
            Self { watch, now: 0 }
        }

        /// A second later that is read.
        fn reads(&mut self, read: Option<BeatRead>) -> Vec<NodeNews> {
            self.now += 1000;
            self.watch.read(&name("a"), read, (self.now, WALL + self.now), true)
        }

        fn beats(&mut self, boot: u8, beat: u64) -> Vec<NodeNews> {
            let at = WALL + self.now + 900;
            self.reads(Some(Ok(example(boot, beat, at))))
        }

        fn state(&self) -> NodeState {
            self.watch.snapshot(None).get("a").unwrap().state
        }

        fn fault(&self) -> Option<String> {
            self.watch.snapshot(None).get("a").unwrap().fault.clone()
        }
    }

    #[test]
    fn a_node_lives_when_it_says_something_new_and_for_as_long() {
        let mut scene = Scene::new();
        assert_eq!(scene.watch.snapshot(None).count(), 1);
        assert_eq!(scene.beats(1, 40), []);
        assert_eq!(scene.state(), NodeState::Unknown, "it may have lain there for years");
        assert_eq!(scene.beats(1, 41), [NodeNews::Lives]);
        assert_eq!((scene.state(), scene.watch.snapshot(None).count()), (NodeState::Living, 2));
        for _ in 0..5 {
            assert_eq!(scene.beats(1, 41), []);
        }
        assert_eq!(scene.state(), NodeState::Living);
        assert_eq!(scene.beats(1, 41), [NodeNews::Silent]);
        assert_eq!((scene.state(), scene.watch.snapshot(None).count()), (NodeState::Silent, 1));
        assert_eq!(scene.beats(1, 42), [NodeNews::Lives]);
        assert_eq!(scene.beats(2, 1), [], "a new start goes on");
        assert_eq!(scene.state(), NodeState::Living);
        let stops = Heartbeat { stopping: true, ..example(2, 2, WALL) };
        assert_eq!(scene.reads(Some(Ok(stops))), [NodeNews::Stopped]);
        assert_eq!(scene.state(), NodeState::Stopped);
        for _ in 0..20 {
            assert_eq!(
                scene.reads(Some(Ok(Heartbeat { stopping: true, ..example(2, 2, WALL) }))),
                []
            );
        }
        assert_eq!(scene.state(), NodeState::Stopped, "it is not silent, it has stopped");
        assert_eq!(scene.beats(3, 1), [NodeNews::Lives]);
    }

    #[test]
    fn an_old_heartbeat_that_lies_there_is_that_of_a_silent_node() {
        let mut scene = Scene::new();
        for _ in 0..8 {
            assert_eq!(scene.beats(1, 40), []);
        }
        assert_eq!(scene.state(), NodeState::Silent);
        let mut empty = Scene::new();
        for _ in 0..20 {
            assert_eq!(empty.reads(None), []);
        }
        assert_eq!(empty.state(), NodeState::Unknown, "it has never said anything");
    }

    #[test]
    fn nobody_dies_while_the_store_is_away() {
        let mut scene = Scene::new();
        scene.beats(1, 1);
        scene.beats(1, 2);
        // Nothing was read for an hour, or only what nobody could have changed.
        scene.now += 3_600_000;
        assert_eq!(scene.beats(1, 2), []);
        for _ in 0..100 {
            scene.now += 1000;
            let read = Some(Ok(example(1, 2, WALL)));
            let at = (scene.now, WALL + scene.now);
            assert_eq!(scene.watch.read(&name("a"), read, at, false), []);
        }
        assert_eq!(scene.state(), NodeState::Living);
        // Once it is read again, silence counts.
        for _ in 0..6 {
            scene.beats(1, 2);
        }
        assert_eq!(scene.state(), NodeState::Silent);
    }

    #[test]
    fn an_older_heartbeat_put_back_is_told_and_keeps_nobody_alive() {
        let mut scene = Scene::new();
        scene.beats(1, 10);
        scene.beats(1, 11);
        assert_eq!(scene.beats(1, 10), [NodeNews::Fault(HeartbeatFault::Older)]);
        assert!(scene.fault().unwrap().contains("older one"));
        for beat in 1..7 {
            scene.beats(1, beat);
        }
        assert_eq!(scene.state(), NodeState::Silent);
        scene.beats(2, 1);
        assert_eq!((scene.state(), scene.fault()), (NodeState::Living, None));
        // That of a start before, up to the last that was seen of it.
        assert_eq!(scene.beats(1, 11), [NodeNews::Fault(HeartbeatFault::Older)]);
        assert_eq!(
            scene.watch.snapshot(None).get("a").unwrap().heartbeat.as_ref().unwrap().beat,
            1
        );
    }

    #[test]
    fn what_is_no_heartbeat_is_told_once_and_what_was_known_stays() {
        let mut scene = Scene::new();
        scene.beats(1, 1);
        scene.beats(1, 2);
        let bad = || Some(Err(HeartbeatFault::Signature));
        assert_eq!(scene.reads(bad()), [NodeNews::Fault(HeartbeatFault::Signature)]);
        assert_eq!(scene.reads(bad()), []);
        assert_eq!(scene.state(), NodeState::Living);
        for _ in 0..6 {
            scene.reads(bad());
        }
        assert_eq!(scene.state(), NodeState::Silent, "nothing was heard of it");
    }

    #[test]
    fn a_name_that_is_used_twice_is_told_by_the_others_and_by_the_node_itself() {
        let mut scene = Scene::new();
        scene.beats(1, 10);
        scene.beats(2, 1);
        assert_eq!(scene.beats(1, 11), [NodeNews::Twice], "both go on");
        assert!(scene.watch.snapshot(None).get("a").unwrap().twice);
        assert_eq!(scene.beats(2, 2), []);
        for beat in 3..40 {
            scene.beats(2, beat);
        }
        assert!(!scene.watch.snapshot(None).get("a").unwrap().twice, "one has given up");

        let mut watch = NodeWatch::new(name("me"), OWN);
        let mut read = |boot: u8, beat: u64, now: u64| {
            watch.read(&name("me"), Some(Ok(example(boot, beat, WALL))), (now, WALL), true)
        };
        assert_eq!(read(1, 99, 0), [], "the start before");
        assert_eq!(read(1, 99, 1), [], "not yet written over");
        assert_eq!(read(9, 1, 2), []);
        assert_eq!(read(1, 100, 3), [NodeNews::Twice]);
        assert_eq!(read(9, 2, 4), []);
        assert_eq!(read(1, 99, 5), [NodeNews::Fault(HeartbeatFault::Older)], "put back");
    }

    #[test]
    fn clocks_that_are_apart_are_told_once() {
        let mut scene = Scene::new();
        let off = |scene: &mut Scene, beat, ms: i64| {
            let at = (WALL + scene.now + 1000).saturating_add_signed(-ms);
            scene.reads(Some(Ok(example(1, beat, at))))
        };
        const HOUR: i64 = 3_600_000;
        assert_eq!(off(&mut scene, 1, HOUR), [], "it may have lain there");
        assert_eq!(scene.watch.snapshot(None).get("a").unwrap().skew_ms, None);
        assert_eq!(off(&mut scene, 2, HOUR), [NodeNews::Lives, NodeNews::Skewed(HOUR)]);
        assert_eq!(scene.state(), NodeState::Living, "whatever its clock says");
        assert_eq!(off(&mut scene, 3, HOUR), []);
        assert_eq!(off(&mut scene, 4, 20), []);
        assert_eq!(off(&mut scene, 5, -HOUR), [NodeNews::Skewed(-HOUR)]);
        let seen = scene.watch.snapshot(None);
        assert!(seen.get("a").unwrap().is_skewed());
        let wild = Heartbeat { at: u64::MAX, ..example(1, 6, 0) };
        scene.reads(Some(Ok(wild)));
        assert!(scene.watch.snapshot(None).get("a").unwrap().skew_ms.unwrap() < 0);
    }

    #[test]
    fn many_nodes_have_their_turns_and_those_that_live_come_first() {
        let mut watch = NodeWatch::new(name("me"), OWN);
        let names: Vec<_> = (0..500).map(|at| name(&format!("n{at:04}"))).collect();
        watch.listed(names.clone());
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..8 {
            let turn = watch.to_read();
            assert_eq!(turn.len(), MAX_READ_AT_ONCE);
            seen.extend(turn);
        }
        assert_eq!(seen.len(), 501);
        // All but two have been away for long.
        let mut now = 0;
        while now < 200 * DEAD_AFTER_MS {
            now += MAX_SILENCE_STEP_MS;
            for at in &names[2..] {
                watch.read(at, Some(Ok(example(1, 1, WALL))), (now, WALL), true);
            }
        }
        for _ in 0..9 {
            let turn = watch.to_read();
            assert_eq!(turn.len(), MAX_READ_AT_ONCE);
            assert!([&names[0], &names[1], &name("me")].iter().all(|it| turn.contains(it)));
        }
        watch.listed((0..2 * MAX_NODES).map(|at| name(&format!("m{at:05}"))));
        assert_eq!(watch.snapshot(None).all().len(), MAX_NODES);
        assert!(watch.snapshot(None).get("me").is_some());
    }
}
