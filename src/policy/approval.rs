//! A tool's `approval`: whether a person has to agree first (CAP-8), and the request that waits for it.
//!
//! Who is asked, and how long, is not known here: the room where approvals wait (`approvals`) says [`Approved`], and
//! only that makes a [`Permit`](super::Permit) of a [`PendingApproval`].

use super::access::Access;
use super::call_digest::{self, ArgumentsTooLong, CallDigest, KindDigest};
use super::denial::{ApprovalDenial, Denial, NotApproved, Warning};
use super::permit::{Cleared, Leave};
use super::principal::Principal;
use super::request::AdmissionRequest;
use super::settings::Settings;
use crate::tool::{Approval, Tool};

/// Whom a request has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// Nobody.
    Nobody,
    /// Somebody who may approve.
    APerson,
}

/// What a tool's capability asks for, and what is remarkable about it.
pub(super) fn check(tool: &Tool) -> (Asks, Option<Warning>) {
    match tool.capability.approval {
        Approval::Auto => (Asks::Nobody, None),
        Approval::Suggest => (Asks::Nobody, Some(Warning::ApprovalSuggested(tool.name.clone()))),
        Approval::Required => (Asks::APerson, None),
    }
}

/// A request that every check has let pass, and that waits for a person's approval. It is bound to the exact call.
#[derive(Clone, Debug)]
pub struct PendingApproval {
    cleared: Cleared,
    digest: CallDigest,
    kind: KindDigest,
}

/// For what an approval that stands for a while counts: whoever asks, for this tool as it is now by this operation, or
/// for this resource or prompt, whatever the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalSubject {
    principal: Principal,
    kind: KindDigest,
}

impl ApprovalSubject {
    /// What stands for it on whichever node of a fleet: 96 hexadecimal digits, the same for the same principal and calls, and
    /// for no others.
    #[must_use]
    pub fn mark(&self) -> Box<str> {
        let principal = self.principal.mark();
        let principal = principal.iter().map(|byte| format!("{byte:02x}"));
        (principal.collect::<String>() + &self.kind.to_string()).into()
    }
}

/// The word of the room that a request is approved. Only the room says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approved {
    /// This one call.
    Call(CallDigest),
    /// Calls of this kind.
    Standing(ApprovalSubject),
}

impl PendingApproval {
    /// Binds what was cleared to the request that it is for.
    ///
    /// # Errors
    /// [`Denial::Approval`]: the arguments are too long for anybody to judge.
    pub(super) fn bind(
        cleared: Cleared,
        request: &AdmissionRequest<'_>,
        rules_version: &[u8; 32],
    ) -> Result<Self, Denial> {
        let access = &cleared.access;
        let definition = call_digest::definition(access);
        let digest = call_digest::of(request, access, definition, rules_version);
        let digest = digest.map_err(|ArgumentsTooLong { limit }| {
            ApprovalDenial::new(access, NotApproved::TooLong { limit })
        })?;
        let kind = call_digest::kind(request.principal.id(), access, definition);
        Ok(Self { cleared, digest, kind })
    }

    /// On whose behalf it is asked.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.cleared.principal
    }

    /// What is asked.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.cleared.access
    }

    /// What stands for the exact call.
    #[must_use]
    pub fn digest(&self) -> CallDigest {
        self.digest
    }

    /// What an approval that stands for a while would count for.
    #[must_use]
    pub fn subject(&self) -> ApprovalSubject {
        ApprovalSubject { principal: self.principal().clone(), kind: self.kind }
    }

    /// The leave to send it, if it is what was approved, as the limits have it.
    ///
    /// # Errors
    /// [`Denial::Approval`]: something else was approved; [`Denial::Limit`].
    pub fn permitted_by(self, approved: &Approved, settings: &Settings) -> Result<Leave, Denial> {
        self.cleared_by(approved)?.leave(settings)
    }

    /// What was cleared, if it is what was approved.
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
