//! Approvals that stand for a while: every call of one tool by one operation and principal, whatever its arguments; or
//! every request for one resource or prompt.
//!
//! One counts for the tool as it was when it was given: with another definition the call has to ask again. It ends
//! with its time, with the session, with this process, and when it is denied after all.

use std::time::{Duration, Instant, SystemTime};

use super::answer::Answerer;
use super::asked::{ApprovalId, AskedCall};
use crate::policy::{ApprovalSubject, Approved, PendingApproval};

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
    subject: ApprovalSubject,
    ends: Instant,
}

/// All that stand.
#[derive(Debug, Default)]
pub(super) struct Leaves(Vec<StandingLeave>);

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
        let subject = pending.subject();
        let fits = |leave: &&StandingLeave| {
            leave.subject == subject && leave.session.as_deref().is_none_or(|own| own == session)
        };
        let leave = self.0.iter().find(fits)?;
        Some((Approved::Standing(subject), leave.of.clone()))
    }

    /// Whether there is room for one more.
    pub(super) fn has_room(&mut self, now: Now) -> bool {
        self.sweep(now);
        self.0.len() < MAX_LEAVES
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
        self.0.push(StandingLeave {
            of: id.clone(),
            access: asked.pending.access().to_string().into(),
            principal: asked.pending.principal().id().into(),
            session,
            by: by.clone(),
            until: now.time + time,
            subject: asked.pending.subject(),
            ends: now.instant + time,
        });
    }

    /// Ends the one that an approval left, if it stands.
    pub(super) fn end(&mut self, id: &str, now: Now) -> Option<StandingLeave> {
        self.sweep(now);
        let at = self.0.iter().position(|leave| leave.of.as_str() == id)?;
        Some(self.0.remove(at))
    }

    /// Those that stand now, the oldest first.
    pub(super) fn all(&mut self, now: Now) -> Vec<StandingLeave> {
        self.sweep(now);
        self.0.clone()
    }

    fn sweep(&mut self, now: Now) {
        self.0.retain(|leave| leave.ends > now.instant);
    }
}
