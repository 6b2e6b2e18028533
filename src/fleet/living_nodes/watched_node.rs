//! One node as it was listed and read: what its heartbeats say of each other, and what that says of it. Pure.

use std::cmp::Ordering;
use std::sync::Arc;

use super::node_view::{
    DEAD_AFTER_MS, MAX_FORMER, NodeNews, NodeState, NodeView, SHOWN_FOR_MS, SKEW_WARN_MS,
    STILL_AFTER_MS, TWICE_FOR_MS,
};
use crate::fleet::config::NodeName;
use crate::fleet::heartbeat::{BootId, Heartbeat, HeartbeatFault};

#[derive(Debug, Default)]
pub(super) struct WatchedNode {
    state: NodeState,
    heartbeat: Option<Arc<Heartbeat>>,
    former: Vec<(BootId, u64)>,
    skew_ms: Option<i64>,
    skew_told: bool,
    /// Nothing that counts was heard for so long.
    silent_ms: u64,
    /// Its object has not changed for so long, whether it was read or not.
    still_ms: u64,
    /// The state of its object, as that was listed last.
    object: Option<Box<str>>,
    /// The object is there.
    is_there: bool,
    /// The state in which it was read.
    read_in: Option<Box<str>>,
    /// When it was to be read last, whether the store gave it or not.
    asked_at: Option<u64>,
    /// What was read last was new: that the object changes counts as heard.
    is_proven: bool,
    /// Heartbeats that had been given up and were read when they came, each once.
    came_late: Vec<u64>,
    /// The one of them that was read last, if nothing else was read since.
    late_there: Option<u64>,
    fault: Option<HeartbeatFault>,
    twice_at: Option<u64>,
}

/// How a heartbeat follows the one that was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BeatFollows {
    /// There was none.
    First,
    /// It is the same.
    Same,
    /// It is the next, or that of a new start.
    Next,
    /// It is the next of a start that another has followed: both go on.
    Twin,
    /// It had been given up by its node, which has said so, and has come after a newer one.
    Late,
    /// It was there before.
    Older,
}

impl WatchedNode {
    /// Its object is there in that state, or is not; true if it is another one than before.
    pub(super) fn lies_there(&mut self, object: Option<Box<str>>) -> bool {
        self.is_there = object.is_some();
        // One that was away and is back as it was is the same.
        match object.filter(|state| self.object.as_ref() != Some(state)) {
            Some(state) => self.object.replace(state).is_some(),
            None => false,
        }
    }

    /// The same of another node, `step` milliseconds after the listing before.
    pub(super) fn listed(&mut self, object: Option<Box<str>>, step: u64) -> Option<NodeNews> {
        let waited = self.has_changed();
        let changed = self.lies_there(object);
        self.still_ms = if changed { 0 } else { self.still_ms.saturating_add(step) };
        let counts = match self.state {
            NodeState::Living if changed && self.is_proven => {
                self.silent_ms = 0;
                return None;
            }
            // It has had no turn to be read since it changed: what it says is not known, and that is no silence. In a large
            // fleet its turn may come later than a dead node is given up.
            NodeState::Unknown => !waited,
            NodeState::Living | NodeState::Silent | NodeState::Stopped => true,
        };
        if counts {
            self.silent_ms = self.silent_ms.saturating_add(step);
        }
        let is_silent = self.unheard_ms() >= DEAD_AFTER_MS && self.heartbeat.is_some();
        match self.state {
            NodeState::Living if is_silent => {
                self.state = NodeState::Silent;
                Some(NodeNews::Silent)
            }
            NodeState::Unknown if is_silent => {
                self.silent_ms = self.unheard_ms();
                self.state = NodeState::Silent;
                None
            }
            NodeState::Living | NodeState::Unknown | NodeState::Silent | NodeState::Stopped => None,
        }
    }

    /// For how long nothing that counts was heard of it. One of which nothing is known yet is not heard either where its object
    /// does not change, though it was not read: no node that lives leaves its own as it is.
    fn unheard_ms(&self) -> u64 {
        match self.state {
            NodeState::Unknown => self.silent_ms.max(self.still_ms),
            NodeState::Living | NodeState::Silent | NodeState::Stopped => self.silent_ms,
        }
    }

    /// Its object is there.
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }

    /// It was seen to live, and not yet to have stopped.
    pub(super) fn lives(&self) -> bool {
        self.state == NodeState::Living
    }

    /// A heartbeat of it was read once.
    pub(super) fn has_said(&self) -> bool {
        self.heartbeat.is_some()
    }

    /// Its object is another one than was read.
    pub(super) fn has_changed(&self) -> bool {
        self.is_there && self.read_in != self.object
    }

    /// When it was to be read last.
    pub(super) fn asked_at(&self) -> Option<u64> {
        self.asked_at
    }

    /// It is to be read now.
    pub(super) fn is_asked(&mut self, now: u64) {
        self.asked_at = Some(now);
    }

    /// It is to be read at once.
    pub(super) fn is_due(&self) -> bool {
        match self.state {
            NodeState::Living => {
                !self.is_proven || self.silent_ms > STILL_AFTER_MS || self.twice_at.is_some()
            }
            NodeState::Unknown | NodeState::Silent | NodeState::Stopped => self.has_changed(),
        }
    }

    /// What was read is the reader's own.
    pub(super) fn is_own(&mut self, beat: Heartbeat) {
        self.heartbeat = Some(Arc::new(beat));
    }

    pub(super) fn follows(&self, beat: &Heartbeat) -> BeatFollows {
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

    /// The heartbeat with that number is one of those that the node gave up, as it says in its `last` one, and has not come
    /// before: whoever has recorded one can put it back again, and only once unseen.
    fn may_be_late(&self, last: &Heartbeat, number: u64) -> bool {
        last.given_up.contains(&number)
            && (self.late_there == Some(number) || !self.came_late.contains(&number))
    }

    pub(super) fn take(&mut self, beat: Heartbeat, wall: u64) {
        if let Some(last) = self.heartbeat.take().filter(|last| last.boot != beat.boot) {
            self.former.retain(|(boot, _)| *boot != beat.boot);
            self.remember(last.boot, last.beat);
            self.skew_told = false;
            // Numbers are those of a start.
            self.came_late.clear();
        }
        self.came_late.retain(|number| beat.given_up.contains(number));
        let skew = i128::from(wall) - i128::from(beat.at);
        self.skew_ms =
            Some(i64::try_from(skew).unwrap_or(if skew < 0 { i64::MIN + 1 } else { i64::MAX }));
        self.heartbeat = Some(Arc::new(beat));
    }

    /// A start that has come so far, beside the one that counts.
    pub(super) fn remember(&mut self, boot: BootId, beat: u64) {
        self.former.retain(|(known, _)| *known != boot);
        if self.former.len() == MAX_FORMER {
            self.former.remove(0);
        }
        self.former.push((boot, beat));
    }

    /// Two processes use its name; true if that was not known.
    pub(super) fn is_twice(&mut self, now: u64) -> bool {
        self.twice_at.replace(now).is_none()
    }

    /// It was read, in the state that was listed last, and what was there is the one with the number `late`, if it is one that
    /// has come late; the fault, if that is another than before.
    pub(super) fn was_read(
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
        let told = fault.clone().filter(|fault| self.fault.as_ref() != Some(fault));
        // One that is well again takes it back; nothing there does not.
        self.fault = fault;
        told
    }

    /// What was read of another node says something new, or not, whose object `had_changed` since it was read before.
    pub(super) fn judge(&mut self, is_new: bool, had_changed: bool) -> Vec<NodeNews> {
        let mut news = Vec::new();
        let stopping = self.heartbeat.as_ref().is_some_and(|beat| beat.stopping);
        if is_new {
            self.silent_ms = 0;
            self.is_proven = true;
        } else if had_changed || self.fault.is_some() {
            // Somebody has put what is no news of it; or what has changed was read before it was listed, and is read again.
            self.is_proven = false;
        }
        let next = match self.state {
            _ if stopping => NodeState::Stopped,
            _ if is_new => NodeState::Living,
            state => state,
        };
        if next != self.state {
            match next {
                NodeState::Living => news.push(NodeNews::Lives),
                NodeState::Stopped => news.push(NodeNews::Stopped),
                NodeState::Silent | NodeState::Unknown => {}
            }
            self.state = next;
        }
        // A clock is compared with a heartbeat that was seen to be new, not with one that had lain there.
        if is_new && !stopping {
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

    /// One that is not there any more is shown for as long as something that was asked of it may wait.
    pub(super) fn is_shown(&self) -> bool {
        self.is_there
            || match self.state {
                NodeState::Living => true,
                NodeState::Silent => self.silent_ms < SHOWN_FOR_MS,
                NodeState::Stopped | NodeState::Unknown => false,
            }
    }

    /// What is shown of it.
    pub(super) fn view(&self, name: &NodeName, is_self: bool) -> NodeView {
        NodeView {
            name: name.clone(),
            is_self,
            state: if is_self { NodeState::Living } else { self.state },
            heartbeat: self.heartbeat.clone(),
            skew_ms: self.skew_ms,
            silent_ms: if is_self { 0 } else { self.unheard_ms() },
            fault: self.fault.as_ref().map(ToString::to_string),
            twice: self.twice_at.is_some(),
        }
    }
}
