//! Permits, the wait for a slot, and requests that wait for approval.

use std::time::Duration;

use super::denial::{ApprovalDenial, Denial, NotApproved, Warning};
use super::intent;
use super::limits::{BreakerChange, CallLimits, Entrance, Occupied, Queue, ServerOutcome};
use super::principal::Principal;
use super::request::{Access, AdmissionRequest};
use super::rules::RuleSet;
use super::tool::{Approval, Tool};
use crate::request;
use crate::request::{ArgumentsTooLong, CallDigest, KindDigest};
use mcpproxy_json::keys::has_case_twins;
use std::sync::Arc;

/// Settings of admission.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Config section `intent_declaration`.
    pub intent: intent::Settings,
    /// Config section `policy`: the rules in force; `None` allows everything.
    pub rules: Option<Arc<RuleSet>>,
    /// Config section `limits`, and the `limits` of servers.
    pub limits: Arc<CallLimits>,
}

/// A request that passed every check except the limits.
#[derive(Clone, Debug)]
pub(super) struct Cleared {
    pub(super) principal: Principal,
    pub(super) access: Access,
    pub(super) warnings: Vec<Warning>,
    /// The rules that permitted it or required an approval.
    pub(super) rules: Vec<Box<str>>,
}

/// Permission to send one request, as a type: only admission creates it, and the upstream requires it. It holds the
/// slots that the request occupies and releases them when dropped.
#[derive(Debug)]
pub struct Permit {
    cleared: Cleared,
    occupied: Occupied,
}

/// A request that waits for a slot under the limits. It keeps its place in the queue until dropped.
#[derive(Debug)]
pub struct Queued {
    cleared: Cleared,
    queue: Queue,
}

/// Result of applying the limits.
#[derive(Debug)]
pub enum LimitDecision {
    /// The request may be sent.
    Permit(Permit),
    /// The request waits for a slot.
    Queued(Box<Queued>),
}

impl Cleared {
    /// Applies the limits, which come last.
    pub(super) fn apply_limits(self, settings: &Settings) -> Result<LimitDecision, Denial> {
        Ok(match settings.limits.enter(&self.principal, &self.access)? {
            Entrance::Free(occupied) => LimitDecision::Permit(Permit { cleared: self, occupied }),
            Entrance::Queued(queue) => {
                LimitDecision::Queued(Box::new(Queued { cleared: self, queue }))
            }
        })
    }
}

impl Permit {
    pub fn principal(&self) -> &Principal {
        &self.cleared.principal
    }

    pub fn access(&self) -> &Access {
        &self.cleared.access
    }

    /// Warnings to log and record, one per decision (ACT-1).
    pub fn warnings(&self) -> &[Warning] {
        &self.cleared.warnings
    }

    /// The rules that permitted it or required an approval; may be empty.
    pub fn rules(&self) -> &[Box<str>] {
        &self.cleared.rules
    }

    /// Keeps the slots for a request that was checked again.
    pub(super) fn renewed(self, cleared: Cleared) -> Self {
        Self { cleared, ..self }
    }

    /// Releases the slots and reports the outcome to the server's breaker. `None` means that the outcome is not
    /// evidence about the server.
    pub fn settle(&mut self, outcome: Option<ServerOutcome>) -> Option<BreakerChange> {
        match outcome {
            Some(outcome) => self.occupied.settle(outcome),
            None => {
                self.occupied.release();
                None
            }
        }
    }
}

impl Queued {
    pub fn access(&self) -> &Access {
        &self.cleared.access
    }

    /// Waits for a slot. If canceled and polled again, it waits at the end of the queue.
    ///
    /// # Errors
    /// The reason why the request is denied after its wait.
    pub async fn acquire(&mut self) -> Result<Permit, Denial> {
        let Cleared { principal, access, .. } = &self.cleared;
        let occupied = self.queue.acquire(principal, access).await?;
        Ok(Permit { cleared: self.cleared.clone(), occupied })
    }

    /// The denial of a request that waited for `waited` without a slot.
    pub fn late(&self, waited: Duration) -> Denial {
        let Cleared { principal, access, .. } = &self.cleared;
        self.queue.late(principal, access, waited).into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApprovalNeed {
    Nobody,
    /// A person has to approve the request.
    Required,
}

/// Approval that the tool's capability requires, and the warning for `suggest`.
pub(super) fn approval_required(tool: &Tool) -> (ApprovalNeed, Option<Warning>) {
    match tool.capability.approval {
        Approval::Auto => (ApprovalNeed::Nobody, None),
        Approval::Suggest => {
            (ApprovalNeed::Nobody, Some(Warning::ApprovalSuggested(tool.name.clone())))
        }
        Approval::Required => (ApprovalNeed::Required, None),
    }
}

/// A request that passed every check and needs an approval. Bound to the exact call.
#[derive(Clone, Debug)]
pub struct PendingApproval {
    cleared: Cleared,
    digest: CallDigest,
    kind: KindDigest,
}

/// Subject of a standing approval, regardless of the arguments: a principal, and either a tool in its current
/// definition with an operation, or a resource or prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalSubject {
    principal: Principal,
    kind: KindDigest,
}

impl ApprovalSubject {
    /// Fingerprint of principal and calls, equal on all nodes of a fleet: 96 hexadecimal digits.
    pub(crate) fn mark(&self) -> Box<str> {
        let principal = self.principal.mark();
        let principal = principal.iter().map(|byte| format!("{byte:02x}"));
        (principal.collect::<String>() + &self.kind.to_string()).into()
    }
}

/// Proof that a request is approved. Created only by the approval queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approved {
    Call(CallDigest),
    /// Approves all calls of this subject.
    Standing(ApprovalSubject),
}

impl Approved {
    /// Whether the approval is for one exact call, which was shown to the approver.
    pub fn is_for_one_call(&self) -> bool {
        matches!(self, Self::Call(_))
    }
}

impl PendingApproval {
    /// Binds a cleared request to the exact call. Fails if the arguments are too long for a person to review, or if
    /// keys differ only by case.
    pub(super) fn bind(
        cleared: Cleared,
        request: &AdmissionRequest<'_>,
        rules_version: &[u8; 32],
    ) -> Result<Self, Denial> {
        let access = &cleared.access;
        let definition = request::definition(access);
        let digest = request::of(request, access, definition, rules_version);
        let digest = digest.map_err(|ArgumentsTooLong { limit }| {
            ApprovalDenial::new(access, NotApproved::TooLong { limit })
        })?;
        // The server may read a different value than the one shown to the approver.
        let is_unclear = has_case_twins(request.arguments)
            || access
                .called_tool()
                .is_some_and(|tool| tool.key_conflict(request.arguments).is_some());
        if is_unclear {
            return Err(ApprovalDenial::new(access, NotApproved::CaseVariants).into());
        }
        let kind = request::kind(request.principal.id(), access, definition);
        Ok(Self { cleared, digest, kind })
    }

    pub fn principal(&self) -> &Principal {
        &self.cleared.principal
    }

    pub fn access(&self) -> &Access {
        &self.cleared.access
    }

    /// Digest of the exact call.
    pub fn digest(&self) -> CallDigest {
        self.digest
    }

    /// Subject of a standing approval for this call.
    pub(crate) fn subject(&self) -> ApprovalSubject {
        ApprovalSubject { principal: self.principal().clone(), kind: self.kind }
    }

    /// Applies the limits if the approval is for this call.
    ///
    /// # Errors
    /// [`Denial::Approval`] if something else was approved; [`Denial::Limit`].
    pub fn permitted_by(
        self,
        approved: &Approved,
        settings: &Settings,
    ) -> Result<LimitDecision, Denial> {
        self.cleared_by(approved)?.apply_limits(settings)
    }

    /// The cleared request, if the approval is for this call.
    pub(super) fn cleared_by(self, approved: &Approved) -> Result<Cleared, Denial> {
        let is_it = match approved {
            Approved::Call(digest) => *digest == self.digest,
            Approved::Standing(subject) => *subject == self.subject(),
        };
        match is_it {
            true => Ok(self.cleared),
            false => Err(ApprovalDenial::new(self.access(), NotApproved::Changed).into()),
        }
    }
}
