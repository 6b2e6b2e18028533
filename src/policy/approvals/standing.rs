//! Standing approvals. Each covers every call of one tool with one operation by one principal, regardless of the
//! arguments, or every request for one resource or prompt.
//!
//! A standing approval covers only the definition that the tool had when it was given. It ends at its deadline, with
//! its session, with this process (in a fleet it survives the process), or when it is revoked.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::config::MAX_STANDING;
use crate::approvals::{AnswerChannel, Answerer, ApprovalId, AskedCall};
use crate::{Approved, PendingApproval};

/// Maximum number of standing approvals given on this node.
pub(super) const MAX_STANDING_HERE: usize = 256;
/// Maximum clock skew between nodes. An approval that exceeds the maximum lifetime by more than this is not trusted.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);

/// An approval that covers further calls for a limited time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingApproval {
    /// Id of the approval that granted it.
    pub of: ApprovalId,
    /// Covered tool as `server:tool`, or the covered resource or prompt.
    pub access: Box<str>,
    /// Id of the principal whose calls are covered.
    pub principal: Box<str>,
    /// The session that the approval is limited to; `None` for any.
    pub session: Option<Box<str>>,
    pub by: Answerer,
    /// Deadline, by the clock of this node.
    pub until: SystemTime,
    /// Deadline by the clock of the granting node: part of the approval's key in the fleet.
    given_until: SystemTime,
    /// Lifetime at the time of granting.
    time: Duration,
    /// Mark of the principal and the covered calls ([`ApprovalSubject::mark`](crate::ApprovalSubject::mark)).
    subject: Box<str>,
    ends: Instant,
    /// Whether the approval was adopted from another node, or from this one before a restart.
    adopted: bool,
}

impl StandingApproval {
    /// The form shared with the other nodes of the fleet.
    pub(super) fn shared(&self) -> SharedApproval {
        let Self { of, access, principal, session, by, given_until, time, subject, .. } =
            self.clone();
        let (of, until) = (of.as_str().into(), given_until);
        SharedApproval { of, access, principal, session, by, until, time, received: None, subject }
    }
}

/// Maximum number of revocations kept until the fleet knows them.
pub(super) const MAX_ENDED: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct StandingApprovals {
    standing: Vec<StandingApproval>,
    /// Revocations still to be shared with the fleet, oldest first: of revoked approvals, and of expired ones whose
    /// deadline is in the future by the wall clock.
    ended: Vec<StandingApproval>,
    /// Keys of ignored approvals of other nodes whose lifetime exceeds the maximum.
    too_long: BTreeSet<SharedApprovalKey>,
}

/// A call that a standing approval covers.
#[derive(Debug)]
pub struct Covered {
    /// Proof of the approval.
    pub approved: Approved,
    /// Id of the approval that granted the standing one.
    pub of: ApprovalId,
    /// Principal that granted it, and over which channel.
    pub by: Answerer,
}

/// Current time: monotonic, and by the wall clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) instant: Instant,
    pub(super) time: SystemTime,
}

/// Scope of a standing approval.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    /// The session that the approval is limited to; `None` for any.
    pub(super) session: Option<Box<str>>,
    /// Lifetime, at most [`MAX_STANDING`](super::MAX_STANDING).
    pub(super) time: Duration,
}

impl StandingApprovals {
    /// The standing approval that covers this call, if there is one.
    pub(super) fn find(
        &mut self,
        pending: &PendingApproval,
        session: &str,
        now: Now,
    ) -> Option<Covered> {
        self.sweep(now);
        if self.standing.is_empty() {
            return None;
        }
        let subject = pending.subject();
        let mark = subject.mark();
        let covers = |approval: &&StandingApproval| {
            approval.subject == mark
                && approval.session.as_deref().is_none_or(|given_here| given_here == session)
        };
        let approval = self.standing.iter().find(covers)?;
        let (of, by) = (approval.of.clone(), approval.by.clone());
        Some(Covered { approved: Approved::Standing(subject), of, by })
    }

    /// Checks whether this node may hold one more standing approval; the error is the limit.
    pub(super) fn check_limits(&mut self, now: Now) -> Result<(), usize> {
        self.sweep(now);
        let given_here = self.standing.iter().filter(|approval| !approval.adopted).count();
        if given_here >= MAX_STANDING_HERE {
            return Err(MAX_STANDING_HERE);
        }
        match self.standing.len() < MAX_SHARED_APPROVALS {
            true => Ok(()),
            false => Err(MAX_SHARED_APPROVALS),
        }
    }

    /// Adds a standing approval for calls like the asked one.
    pub(super) fn add(
        &mut self,
        id: &ApprovalId,
        asked: &AskedCall,
        by: &Answerer,
        Reach { session, time }: Reach,
        now: Now,
    ) {
        self.standing.push(StandingApproval {
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
            adopted: false,
        });
    }

    /// Revokes the standing approval granted by the approval `id`.
    pub(super) fn end(&mut self, id: &str, now: Now) -> Option<StandingApproval> {
        self.sweep(now);
        let at = self.standing.iter().position(|approval| approval.of.as_str() == id)?;
        let ended = self.standing.remove(at);
        self.note_revoked(ended.clone());
        Some(ended)
    }

    /// Standing approval granted by the approval `id`, if its revocation is still to be shared with the fleet.
    pub(super) fn unshared(&self, id: &str) -> Option<&StandingApproval> {
        self.ended.iter().find(|approval| approval.of.as_str() == id)
    }

    /// Revocations still to be shared with the fleet.
    pub(super) fn ended(&self) -> Vec<SharedApprovalKey> {
        self.ended.iter().map(|approval| approval.shared().key()).collect()
    }

    /// Forgets revocations that were shared with the fleet.
    pub(super) fn forget_shared(&mut self, ended: &[SharedApprovalKey]) {
        self.ended.retain(|approval| !ended.contains(&approval.shared().key()));
    }

    fn note_revoked(&mut self, approval: StandingApproval) {
        if self.ended.len() >= MAX_ENDED {
            self.ended.remove(0);
        }
        self.ended.push(approval);
    }

    /// Adopts standing approvals of other nodes. A node with a wrong clock cannot extend one beyond its lifetime or the
    /// maximum; one that would exceed the maximum is skipped. Returns the ids that are skipped for the first time.
    pub(super) fn adopt(
        &mut self,
        approvals: impl IntoIterator<Item = SharedApproval>,
        is_revoked: impl Fn(&SharedApprovalKey) -> bool,
        now: Now,
    ) -> Vec<Box<str>> {
        self.sweep(now);
        self.standing.retain(|approval| !is_revoked(&approval.shared().key()));
        let (mut unshared, mut passed_over) = (self.ended(), Vec::new());
        unshared.sort();
        let past = SharedApprovalKey::at(now.time);
        self.too_long.retain(|key| *key > past);
        for approval in approvals {
            let key = approval.key();
            let is_known = self.standing.iter().any(|it| *it.of.as_str() == *approval.of);
            let is_over = is_revoked(&key) || unshared.binary_search(&key).is_ok();
            let left = approval.left(now.time);
            if is_known || is_over || left.is_zero() || self.too_long.contains(&key) {
                continue;
            }
            if approval.by_its_clock(now.time) > MAX_STANDING + MAX_CLOCK_SKEW {
                if self.too_long.len() < MAX_SHARED_APPROVALS {
                    self.too_long.insert(key);
                    passed_over.push(approval.of);
                }
                continue;
            }
            if self.standing.len() >= MAX_SHARED_APPROVALS {
                continue;
            }
            let SharedApproval { of, access, principal, session, by, until, time, subject, .. } =
                approval;
            let (of, ends) = (ApprovalId::of_text(&of), now.instant + left);
            let approval = StandingApproval {
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
                adopted: true,
            };
            self.standing.push(approval);
        }
        passed_over
    }

    /// Approvals in force, oldest first.
    pub(super) fn all(&mut self, now: Now) -> Vec<StandingApproval> {
        self.sweep(now);
        self.standing.clone()
    }

    /// Removes expired approvals. If an expired approval's deadline is in the future by the wall clock, that clock was
    /// set back or lags behind the granting node. Such an approval is revoked for the whole fleet, which would
    /// otherwise bring it back.
    fn sweep(&mut self, now: Now) {
        let over = self.standing.extract_if(.., |approval| approval.ends <= now.instant);
        let turned_back: Vec<_> = over.filter(|approval| approval.given_until > now.time).collect();
        for approval in turned_back {
            self.note_revoked(approval);
        }
    }
}

/// Maximum number of standing approvals on a node, including those of the whole fleet.
pub const MAX_SHARED_APPROVALS: usize = 4096;
/// Digits of a deadline in a key, in milliseconds since 1970: until the year 5138.
const TIME_DIGITS: usize = 14;
/// Maximum length of an id, in characters.
const MAX_ID: usize = 64;

/// A standing approval without the parts that depend on one process's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedApproval {
    /// Id of the approval that granted it.
    pub of: Box<str>,
    /// Covered tool as `server:tool`, or the covered resource or prompt.
    pub access: Box<str>,
    /// Id of the principal whose calls are covered.
    pub principal: Box<str>,
    /// The session that the approval is limited to; `None` for any.
    pub session: Option<Box<str>>,
    pub by: Answerer,
    /// Deadline by the clock of the granting node.
    pub until: SystemTime,
    /// Lifetime at the time of granting.
    pub time: Duration,
    /// Time at which this node first received it, by its own clock, if remembered.
    pub received: Option<SystemTime>,
    /// Mark of the principal and the covered calls.
    pub subject: Box<str>,
}

/// Key of a shared standing approval: deadline, then approval id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedApprovalKey(Box<str>);

impl SharedApprovalKey {
    /// Lower bound of the keys whose deadline is at `time` or later.
    pub fn at(time: SystemTime) -> Self {
        Self(format!("{:0TIME_DIGITS$}", millis(time)).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Serialize, Deserialize)]
struct Written<'a> {
    access: Box<str>,
    principal: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<Box<str>>,
    by: Box<str>,
    door: &'a str,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<Box<str>>,
    subject: Box<str>,
    milliseconds: u64,
}

impl SharedApproval {
    /// Remaining lifetime. This node's clock may differ from the granting node's, so the result is capped at the full
    /// lifetime, counted from the first receipt.
    pub(crate) fn left(&self, now: SystemTime) -> Duration {
        let received = now.duration_since(self.received.unwrap_or(now)).unwrap_or_default();
        self.by_its_clock(now).min(self.time.saturating_sub(received))
    }

    /// Remaining lifetime by the granting node's deadline.
    pub fn by_its_clock(&self, now: SystemTime) -> Duration {
        self.until.duration_since(now).unwrap_or_default()
    }

    pub fn key(&self) -> SharedApprovalKey {
        SharedApprovalKey(format!("{:0TIME_DIGITS$}/{}", millis(self.until), self.of).into())
    }

    /// Value that the node `node` shares under the approval's [key](Self::key).
    pub fn write(&self, node: &str) -> String {
        let Self { access, principal, session, by, subject, time, .. } = self.clone();
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (door, receiver) = (by.channel.as_str(), by.node.unwrap_or_else(|| node.into()));
        let node = Some(receiver);
        let by = by.principal;
        let written = Written { access, principal, session, by, door, node, subject, milliseconds };
        serde_json::to_string(&written).unwrap_or_default()
    }

    /// Parses a shared value; `None` if it is malformed.
    pub fn read(key: &str, text: &str) -> Option<Self> {
        let (time, of) = key.split_once('/')?;
        if time.len() != TIME_DIGITS || of.is_empty() || of.len() > MAX_ID {
            return None;
        }
        let until = UNIX_EPOCH + Duration::from_millis(time.parse().ok()?);
        let written: Written<'_> = serde_json::from_str(text).ok()?;
        let Written { access, principal, session, by, door, node, subject, milliseconds } = written;
        let by = Answerer { principal: by, channel: AnswerChannel::of_word(door)?, node };
        let time = Duration::from_millis(milliseconds).min(MAX_STANDING);
        let of = of.into();
        Some(Self { of, access, principal, session, by, until, time, received: None, subject })
    }
}

fn millis(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn approval() -> SharedApproval {
        SharedApproval {
            of: "0123456789abcdef-abc0123".into(),
            access: "s:t".into(),
            principal: "token:ci".into(),
            session: Some("x".into()),
            by: Answerer::here("admin", AnswerChannel::Cli),
            until: UNIX_EPOCH + Duration::from_millis(1_800_000_000_123),
            time: Duration::from_secs(3600),
            received: None,
            subject: "ab".into(),
        }
    }

    #[test]
    fn shared_approval_round_trips_and_sorts_by_deadline() {
        let approval = approval();
        let key = approval.key();
        let read = SharedApproval::read(key.as_str(), &approval.write("a")).unwrap();
        let by = Answerer { node: Some("a".into()), ..approval.by.clone() };
        assert_eq!(read, SharedApproval { by, ..approval.clone() });
        // Forwarding does not change the value.
        assert_eq!(SharedApproval::read(key.as_str(), &read.write("b")), Some(read));
        let second = Duration::from_secs(1);
        assert!(SharedApprovalKey::at(approval.until - second) < key);
        assert!(key < SharedApprovalKey::at(approval.until + second));
    }

    #[test]
    fn remaining_lifetime_never_exceeds_the_grant() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let approval = approval();
        // Remaining minutes of an approval for an hour, by a clock that is `behind` minutes behind the granting node's.
        let left = |after, behind, received: Option<u64>| {
            let at = |after| approval.until - minutes(60) + minutes(after) - minutes(behind);
            let approval = SharedApproval { received: received.map(at), ..approval.clone() };
            approval.left(at(after)).as_secs() / 60
        };
        assert_eq!((left(0, 0, None), left(20, 0, None), left(20, 0, Some(15))), (60, 40, 40));
        assert_eq!((left(0, 120, None), left(20, 120, None)), (60, 60), "first received now");
        assert_eq!((left(20, 120, Some(0)), left(59, 120, Some(0))), (40, 1));
        assert_eq!((left(60, 120, Some(0)), left(90, 120, Some(0))), (0, 0));
        let endless = SharedApproval { time: 9 * MAX_STANDING, ..approval.clone() };
        let read = SharedApproval::read(approval.key().as_str(), &endless.write("a")).unwrap();
        assert_eq!(read.time, MAX_STANDING);
    }

    #[test]
    fn malformed_shared_approval_is_rejected() {
        let (approval, text) = (approval(), approval().write("a"));
        for key in ["", "x", "1/x", "00000000000001/", "0000000000000x/x", &"0".repeat(200)] {
            assert_eq!(SharedApproval::read(key, &text), None, "{key}");
        }
        let named = |length| format!("{}/{}", "0".repeat(TIME_DIGITS), "x".repeat(length));
        assert!(SharedApproval::read(&named(MAX_ID), &text).is_some());
        assert_eq!(SharedApproval::read(&named(MAX_ID + 1), &text), None);
        let timeless = text.replace("milliseconds", "hours");
        for odd in ["", "{}", "null", &text.replace("cli", "window"), &timeless] {
            assert_eq!(SharedApproval::read(approval.key().as_str(), odd), None, "{odd}");
        }
    }
}
