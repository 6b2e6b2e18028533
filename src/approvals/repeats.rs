//! Calls that their client makes again with the answer (MCP 2026-07-28 §Multi Round-Trip Requests): what is kept of
//! the first request until the second, which uses it up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::answer::{ApprovalVerdict, Outcome};
use super::asked::ApprovalId;
use crate::policy::{CallDigest, NotApproved, PendingApproval, Principal};

/// Most bytes that are kept of what stood beside the arguments of a first request; a client that sends more is not
/// asked in this way.
pub const MAX_BESIDE_BYTES: usize = 64 * 1024;
/// Decided approvals that are kept for their client's next request; the oldest goes.
const MAX_UNCLAIMED: usize = 512;
/// How long one is kept at least after it was decided: the client may be asking its user yet.
const CLAIMED_WITHIN: Duration = Duration::from_secs(60);

/// What the client's user said, as far as its next request tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserSaid {
    /// The answer is missing.
    Missing,
    /// The dialogue was closed without a word, which is no answer.
    Nothing,
    /// Yes or no.
    Verdict(ApprovalVerdict),
}

/// The exact call that a client may make again, and its outcome once there is one.
#[derive(Clone, Debug)]
pub(super) struct RepeatedCall {
    principal: Principal,
    digest: CallDigest,
}

impl RepeatedCall {
    pub(super) fn of(pending: &PendingApproval) -> Self {
        Self { principal: pending.principal().clone(), digest: pending.digest() }
    }

    /// Whether `pending` is that very call.
    ///
    /// # Errors
    /// [`NotApproved::Spent`] for somebody else's, [`NotApproved::Changed`] for another call.
    pub(super) fn check(&self, pending: &PendingApproval) -> Result<(), NotApproved> {
        match (self.principal == *pending.principal(), self.digest == pending.digest()) {
            (true, true) => Ok(()),
            (true, false) => Err(NotApproved::Changed),
            (false, _) => Err(NotApproved::Spent),
        }
    }
}

/// Of a call that waits: that its client makes it again.
#[derive(Debug)]
pub(super) struct Repeat {
    /// What stood beside the arguments of the first request and is the server's.
    pub(super) beside: Bytes,
    /// The next request, while it waits for another door.
    pub(super) awaited: Option<oneshot::Sender<Outcome>>,
}

impl Repeat {
    /// True while a next request waits: there is no second one.
    pub(super) fn is_taken(&self) -> bool {
        self.awaited.as_ref().is_some_and(|awaited| !awaited.is_closed())
    }
}

/// What was decided before its client came again.
#[derive(Debug)]
pub(super) struct Unclaimed {
    pub(super) id: ApprovalId,
    pub(super) call: RepeatedCall,
    pub(super) outcome: Outcome,
    pub(super) beside: Bytes,
    /// When the approval would have ended.
    pub(super) deadline: Instant,
}

/// All that was decided and not claimed.
#[derive(Debug, Default)]
pub(super) struct UnclaimedCalls(VecDeque<(Instant, Unclaimed)>);

impl UnclaimedCalls {
    pub(super) fn keep(&mut self, unclaimed: Unclaimed, now: Instant) {
        self.sweep(now);
        if self.0.len() >= MAX_UNCLAIMED {
            self.0.pop_front();
        }
        let ends = unclaimed.deadline.max(now + CLAIMED_WITHIN);
        self.0.push_back((ends, unclaimed));
    }

    /// Takes one out, for good, if `fits` lets it go.
    ///
    /// # Errors
    /// There is none, or what `fits` says; then it stays.
    pub(super) fn claim(
        &mut self,
        id: &ApprovalId,
        now: Instant,
        fits: impl FnOnce(&RepeatedCall) -> Result<(), NotApproved>,
    ) -> Result<Unclaimed, NotApproved> {
        self.sweep(now);
        let at = self.0.iter().position(|(_, it)| it.id == *id).ok_or(NotApproved::Spent)?;
        if let Some((_, unclaimed)) = self.0.get(at) {
            fits(&unclaimed.call)?;
        }
        self.0.remove(at).map(|(_, unclaimed)| unclaimed).ok_or(NotApproved::Spent)
    }

    fn sweep(&mut self, now: Instant) {
        self.0.retain(|(ends, _)| *ends > now);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
