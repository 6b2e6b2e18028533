//! Approvals that stand for a while: every call of one tool by one operation and principal, whatever its arguments; or
//! every request for one resource or prompt.
//!
//! One counts for the tool as it was when it was given: with another definition the call has to ask again. It ends
//! with its time, with the session, with this process (in a fleet it outlives that), and when it is denied after all.

use std::time::{Duration, Instant, SystemTime};

use super::answer::Answerer;
use super::asked::{ApprovalId, AskedCall};
use super::config::MAX_STANDING;
use super::shared_leaf::{MAX_SHARED_LEAVES, SharedLeave, SharedLeaveKey};
use crate::policy::{Approved, PendingApproval};

/// Most that stand at once.
pub(super) const MAX_LEAVES: usize = 256;

/// An approval that stands for a while.
#[derive(Clone, Debug)]
pub struct StandingLeave {
    /// The approval that it was given for.
    pub of: ApprovalId,
    /// `server:tool`
    pub access: Box<str>,
    /// The id of the principal whose calls go out by it.
    pub principal: Box<str>,
    /// The session that it counts for; `None` for any.
    pub session: Option<Box<str>>,
    /// Who gave it.
    pub by: Answerer,
    /// When it ends at the latest.
    pub until: SystemTime,
    /// [`ApprovalSubject::mark`](crate::policy::ApprovalSubject::mark)
    subject: Box<str>,
    ends: Instant,
}

impl StandingLeave {
    /// What other nodes of a fleet are told of it.
    pub(super) fn shared(&self) -> SharedLeave {
        let Self { of, access, principal, session, by, until, subject, ends: _ } = self.clone();
        SharedLeave { of: of.as_str().into(), access, principal, session, by, until, subject }
    }
}

/// Most that were denied after all and are remembered until the fleet is told.
const MAX_ENDED: usize = 1024;

/// All that stand.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    standing: Vec<StandingLeave>,
    /// Those that were denied after all, and the fleet, if there is one, is not told yet; the oldest first.
    ended: Vec<SharedLeaveKey>,
}

/// When the room is asked: by the clock that never turns back, and by the one on the wall.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) instant: Instant,
    pub(super) time: SystemTime,
}

/// How far one reaches.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    /// The session; `None` for any.
    pub(super) session: Option<Box<str>>,
    /// At most [`MAX_STANDING`](super::MAX_STANDING).
    pub(super) time: Duration,
}

impl Leaves {
    /// The approval that lets this call go, if one stands.
    pub(super) fn find(
        &mut self,
        pending: &PendingApproval,
        session: &str,
        now: Now,
    ) -> Option<(Approved, ApprovalId)> {
        self.sweep(now);
        if self.standing.is_empty() {
            return None;
        }
        let subject = pending.subject();
        let mark = subject.mark();
        let fits = |leave: &&StandingLeave| {
            leave.subject == mark && leave.session.as_deref().is_none_or(|own| own == session)
        };
        let leave = self.standing.iter().find(fits)?;
        Some((Approved::Standing(subject), leave.of.clone()))
    }

    /// Whether there is room for one more.
    pub(super) fn has_room(&mut self, now: Now) -> bool {
        self.sweep(now);
        self.standing.len() < MAX_LEAVES
    }

    /// From now on calls like this one go out, in one session or for so long.
    pub(super) fn give(
        &mut self,
        id: &ApprovalId,
        asked: &AskedCall,
        by: &Answerer,
        Reach { session, time }: Reach,
        now: Now,
    ) {
        self.standing.push(StandingLeave {
            of: id.clone(),
            access: asked.pending.access().to_string().into(),
            principal: asked.pending.principal().id().into(),
            session,
            by: by.clone(),
            until: now.time + time,
            subject: asked.pending.subject().mark(),
            ends: now.instant + time,
        });
    }

    /// Ends the one that an approval left, if it stands.
    pub(super) fn end(&mut self, id: &str, now: Now) -> Option<StandingLeave> {
        self.sweep(now);
        let at = self.standing.iter().position(|leave| leave.of.as_str() == id)?;
        let ended = self.standing.remove(at);
        if self.ended.len() >= MAX_ENDED {
            self.ended.remove(0);
        }
        self.ended.push(ended.shared().key());
        Some(ended)
    }

    /// Those that were denied after all, of which the fleet is not told yet.
    pub(super) fn ended(&self) -> &[SharedLeaveKey] {
        &self.ended
    }

    /// The fleet is told of these.
    pub(super) fn told(&mut self, ended: &[SharedLeaveKey]) {
        self.ended.retain(|key| !ended.contains(key));
    }

    /// There are also those of other nodes. One whose clock is wrong lets none stand longer than any may.
    pub(super) fn take_over(
        &mut self,
        leaves: impl IntoIterator<Item = SharedLeave>,
        has_ended: impl Fn(&SharedLeaveKey) -> bool,
        now: Now,
    ) {
        self.sweep(now);
        self.standing.retain(|leave| !has_ended(&leave.shared().key()));
        for leave in leaves {
            let key = leave.key();
            let is_known = self.standing.iter().any(|it| *it.of.as_str() == *leave.of);
            let is_over = has_ended(&key) || self.ended.contains(&key);
            let left = leave.until.duration_since(now.time).unwrap_or_default().min(MAX_STANDING);
            if is_known || is_over || left.is_zero() || self.standing.len() >= MAX_SHARED_LEAVES {
                continue;
            }
            let SharedLeave { of, access, principal, session, by, until, subject } = leave;
            let (of, ends) = (ApprovalId::of_text(&of), now.instant + left);
            let leave = StandingLeave { of, access, principal, session, by, until, subject, ends };
            self.standing.push(leave);
        }
    }

    /// Those that stand now, the oldest first.
    pub(super) fn all(&mut self, now: Now) -> Vec<StandingLeave> {
        self.sweep(now);
        self.standing.clone()
    }

    fn sweep(&mut self, now: Now) {
        self.standing.retain(|leave| leave.ends > now.instant);
    }
}
