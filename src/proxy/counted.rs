//! As what metrics count the end of a request, a decision about it, and a refusal. Pure.

use super::refusal::RefusalKind;
use crate::activity::record::{Decision, Policy, Status, Verdict};
use crate::telemetry::call_metrics::{self as calls, Outcome};

/// What a record's status counts as.
pub(super) fn outcome(status: Status) -> Outcome {
    match status {
        Status::Success | Status::Warning => Outcome::Success,
        // Unknown is what a call of an earlier process came to.
        Status::Error | Status::Unknown => Outcome::Error,
        Status::Blocked => Outcome::Blocked,
        Status::Rejected => Outcome::Rejected,
    }
}

/// What a decision counts as.
pub(super) fn decision(decision: &Decision) -> calls::Decision {
    match (decision.policy, decision.verdict) {
        (Policy::OutputValidation, Verdict::Blocked) => calls::Decision::OutputBlocked,
        (Policy::OutputValidation, Verdict::Warning) => calls::Decision::OutputWarned,
        (Policy::InputValidation, Verdict::Blocked) => calls::Decision::InputBlocked,
        (Policy::InputValidation, Verdict::Warning) => calls::Decision::InputWarned,
        (Policy::Intent, Verdict::Blocked) => calls::Decision::IntentBlocked,
        (Policy::Intent, Verdict::Warning) => calls::Decision::IntentWarned,
        (Policy::Capability, Verdict::Blocked) => calls::Decision::CapabilityBlocked,
        (Policy::Capability, Verdict::Warning) => calls::Decision::CapabilityWarned,
        (Policy::Scope, Verdict::Blocked | Verdict::Warning) => calls::Decision::ScopeBlocked,
        (Policy::Catalog, Verdict::Blocked) => calls::Decision::CatalogBlocked,
        (Policy::Catalog, Verdict::Warning) => calls::Decision::CatalogWarned,
        (Policy::Rules, Verdict::Blocked) => calls::Decision::RulesBlocked,
        (Policy::Rules, Verdict::Warning) => calls::Decision::RulesWarned,
        (Policy::Limit, Verdict::Blocked | Verdict::Warning) => calls::Decision::LimitBlocked,
        (Policy::Approval, Verdict::Blocked | Verdict::Warning) => calls::Decision::ApprovalBlocked,
    }
}

/// What a refusal counts as.
pub(super) fn refusal(kind: RefusalKind) -> calls::Refusal {
    match kind {
        RefusalKind::Unreadable | RefusalKind::Parameters => calls::Refusal::Unreadable,
        RefusalKind::Headers => calls::Refusal::Headers,
        RefusalKind::Intent => calls::Refusal::Intent,
        RefusalKind::Gate => calls::Refusal::Gate,
        RefusalKind::Arguments => calls::Refusal::Arguments,
        RefusalKind::Limited => calls::Refusal::Limited,
        RefusalKind::Unknown => calls::Refusal::Unknown,
        RefusalKind::Upstream => calls::Refusal::Upstream,
        RefusalKind::Failed => calls::Refusal::Failed,
        RefusalKind::Unavailable => calls::Refusal::Unavailable,
    }
}
