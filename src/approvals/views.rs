//! How many may wait, and what is shown and told of those that do. Plain values.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::answer::{Decided, Outcome};
use super::asked::{ApprovalId, AskedCall};
use super::leaves::StandingLeave;

/// How many calls may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomBounds {
    /// In all.
    pub waiting: usize,
    /// On behalf of one principal.
    pub of_one: usize,
    /// Bytes of what they ask for.
    pub bytes: usize,
}

/// Places in the log that one waiting call takes: its own, and those of its two records.
const PLACES: usize = 3;

impl RoomBounds {
    /// For a log that has places for so many calls: those that wait leave three quarters of them to all others.
    #[must_use]
    pub fn of_log(places: usize) -> Self {
        let waiting = (places / 4 / PLACES).clamp(1, 512);
        Self { waiting, of_one: waiting.div_ceil(2), bytes: 64 * 1024 * 1024 }
    }
}

/// What the webhook tells of: that a call waits, or that its wait is over.
#[derive(Clone, Debug)]
pub struct ApprovalNews {
    /// Which.
    pub id: ApprovalId,
    /// What is asked.
    pub asked: Arc<AskedCall>,
    /// When the time is up.
    pub until: SystemTime,
    /// When this is told.
    pub made: Instant,
    /// How it ended; `None` while it waits.
    pub outcome: Option<Outcome>,
}

/// A call that waits, as it is shown.
#[derive(Clone, Debug)]
pub struct WaitingView {
    /// Which.
    pub id: ApprovalId,
    /// What is asked.
    pub asked: Arc<AskedCall>,
    /// Since when.
    pub since: SystemTime,
    /// When the time is up.
    pub until: SystemTime,
}

/// An approval, as it is shown.
#[derive(Clone, Debug)]
pub enum KnownApproval {
    /// It waits.
    Waiting(WaitingView),
    /// It is over.
    Over(Decided),
}

/// What an answer came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnsweredApproval {
    /// What was decided.
    pub decided: Decided,
    /// The approval that stood until this answer.
    pub revoked: Option<StandingLeave>,
}
