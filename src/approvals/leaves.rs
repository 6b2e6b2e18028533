//! Approvals that stand for a while: every call of one tool by one operation and principal, whatever its arguments; or
//! every request for one resource or prompt.
//!
//! One counts for the tool as it was when it was given: with another definition the call has to ask again. It ends
//! with its time, with the session, with this process (in a fleet it outlives that), and when it is denied after all.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use super::answer::Answerer;
use super::asked::{ApprovalId, AskedCall};
use super::config::MAX_STANDING;
use super::shared_leaf::{MAX_SHARED_LEAVES, SharedLeave, SharedLeaveKey};
use crate::policy::{Approved, PendingApproval};

/// Most that stand at once and were given here.
pub(super) const MAX_LEAVES: usize = 256;
/// How far clocks of nodes may be apart. What would stand longer than any may by more than that is nobody's to believe.
const CLOCKS_APART: Duration = Duration::from_secs(60);

/// An approval that stands for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// When it ends at the latest, by the clock of this node.
    pub until: SystemTime,
    /// The same by the clock of the node that gave it: a part of its name in the fleet.
    given_until: SystemTime,
    /// For how long it was given.
    time: Duration,
    /// [`ApprovalSubject::mark`](crate::policy::ApprovalSubject::mark)
    subject: Box<str>,
    ends: Instant,
    /// Another node has told of it, or this one before it was started again.
    taken_over: bool,
}

impl StandingLeave {
    /// What other nodes of a fleet are told of it.
    pub(super) fn shared(&self) -> SharedLeave {
        let Self { of, access, principal, session, by, given_until, time, subject, .. } =
            self.clone();
        let (of, until) = (of.as_str().into(), given_until);
        SharedLeave { of, access, principal, session, by, until, time, heard: None, subject }
    }
}

/// Most that were ended and are remembered until the fleet is told.
pub(super) const MAX_ENDED: usize = 1024;

/// All that stand.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    standing: Vec<StandingLeave>,
    /// Those that were denied after all, or whose time is up while their clock says otherwise, and the fleet, if there is one, is
    /// not told yet; the oldest first.
    ended: Vec<StandingLeave>,
    /// Those of other nodes that would stand for too long. They do not count, however late it gets.
    too_long: BTreeSet<SharedLeaveKey>,
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

    /// Whether there is room for one more that is given here.
    ///
    /// # Errors
    /// How many there are at most.
    pub(super) fn has_room(&mut self, now: Now) -> Result<(), usize> {
        self.sweep(now);
        let own = self.standing.iter().filter(|leave| !leave.taken_over).count();
        if own >= MAX_LEAVES {
            return Err(MAX_LEAVES);
        }
        match self.standing.len() < MAX_SHARED_LEAVES {
            true => Ok(()),
            false => Err(MAX_SHARED_LEAVES),
        }
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
            given_until: now.time + time,
            time,
            subject: asked.pending.subject().mark(),
            ends: now.instant + time,
            taken_over: false,
        });
    }

    /// Ends the one that an approval left, if it stands.
    pub(super) fn end(&mut self, id: &str, now: Now) -> Option<StandingLeave> {
        self.sweep(now);
        let at = self.standing.iter().position(|leave| leave.of.as_str() == id)?;
        let ended = self.standing.remove(at);
        self.has_ended(ended.clone());
        Some(ended)
    }

    /// The one that an approval left, if it was ended and the fleet is not told yet.
    pub(super) fn untold(&self, id: &str) -> Option<&StandingLeave> {
        self.ended.iter().find(|leave| leave.of.as_str() == id)
    }

    /// Those that were ended, of which the fleet is not told yet.
    pub(super) fn ended(&self) -> Vec<SharedLeaveKey> {
        self.ended.iter().map(|leave| leave.shared().key()).collect()
    }

    /// The fleet is told of these.
    pub(super) fn told(&mut self, ended: &[SharedLeaveKey]) {
        self.ended.retain(|leave| !ended.contains(&leave.shared().key()));
    }

    fn has_ended(&mut self, leave: StandingLeave) {
        if self.ended.len() >= MAX_ENDED {
            self.ended.remove(0);
        }
        self.ended.push(leave);
    }

    /// There are also those of other nodes. One whose clock is wrong lets none stand longer than it was given for, nor than any
    /// may: those that would are passed over. The ids of those that are so for the first time.
    pub(super) fn take_over(
        &mut self,
        leaves: impl IntoIterator<Item = SharedLeave>,
        has_ended: impl Fn(&SharedLeaveKey) -> bool,
        now: Now,
    ) -> Vec<Box<str>> {
        self.sweep(now);
        self.standing.retain(|leave| !has_ended(&leave.shared().key()));
        let (mut untold, mut passed_over) = (self.ended(), Vec::new());
        untold.sort();
        let past = SharedLeaveKey::at(now.time);
        self.too_long.retain(|key| *key > past);
        for leave in leaves {
            let key = leave.key();
            let is_known = self.standing.iter().any(|it| *it.of.as_str() == *leave.of);
            let is_over = has_ended(&key) || untold.binary_search(&key).is_ok();
            let left = leave.left(now.time);
            if is_known || is_over || left.is_zero() || self.too_long.contains(&key) {
                continue;
            }
            if leave.by_its_clock(now.time) > MAX_STANDING + CLOCKS_APART {
                if self.too_long.len() < MAX_SHARED_LEAVES {
                    self.too_long.insert(key);
                    passed_over.push(leave.of);
                }
                continue;
            }
            if self.standing.len() >= MAX_SHARED_LEAVES {
                continue;
            }
            let SharedLeave { of, access, principal, session, by, until, time, subject, .. } =
                leave;
            let (of, ends) = (ApprovalId::of_text(&of), now.instant + left);
            let leave = StandingLeave {
                of,
                access,
                principal,
                session,
                by,
                until: now.time + left,
                given_until: until,
                time,
                subject,
                ends,
                taken_over: true,
            };
            self.standing.push(leave);
        }
        passed_over
    }

    /// Those that stand now, the oldest first.
    pub(super) fn all(&mut self, now: Now) -> Vec<StandingLeave> {
        self.sweep(now);
        self.standing.clone()
    }

    /// Forgets those whose time is up. Where a clock on a wall says otherwise, it was turned back, or is behind that of the node
    /// that gave it: such a one is ended for the whole fleet, which would bring it back until that clock has come so far.
    fn sweep(&mut self, now: Now) {
        let over = self.standing.extract_if(.., |leave| leave.ends <= now.instant);
        let turned_back: Vec<_> = over.filter(|leave| leave.given_until > now.time).collect();
        for leave in turned_back {
            self.has_ended(leave);
        }
    }
}
