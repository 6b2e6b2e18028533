//! A node as the reader sees it: whether it lives, what is told of it, and after how long. Pure.

use std::sync::Arc;

use crate::fleet::config::NodeName;
use crate::fleet::heartbeat::{Heartbeat, HeartbeatFault};

/// A node whose heartbeat has not changed for so long lives no more. Several beats: a put may be slow.
pub const DEAD_AFTER_MS: u64 = 6_000;
/// A heartbeat that has not changed for so long, which is longer than from one to the next, is read: it may be the last one, and
/// say so.
pub(super) const STILL_AFTER_MS: u64 = 1_600;
/// Clocks that are further apart are warned of, in milliseconds. What is measured holds the time that a heartbeat is on its way.
pub const SKEW_WARN_MS: i64 = 10_000;
/// Starts of a node that are remembered, so that none is taken for a new one.
pub(super) const MAX_FORMER: usize = 8;
/// For how long it is told that a name is used twice, since it was last seen.
pub(super) const TWICE_FOR_MS: u64 = 30_000;
/// One whose heartbeat is not there any more is shown for so long: nothing that it had under way waits longer.
pub(super) const SHOWN_FOR_MS: u64 = 86_400_000;

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

    /// It cannot be said yet whether it lives. One that has never said anything is judged after as much silence as any other;
    /// that it waits to be read is none, for as long as its object changes.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.state == NodeState::Unknown && self.silent_ms < DEAD_AFTER_MS
    }
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
