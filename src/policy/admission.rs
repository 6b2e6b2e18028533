//! Admission: decides whether a request to a server may be sent, has to wait, or is denied.
//!
//! Used by every entry point: call tools, `/mcp/all`, REST, the command line, resources, prompts, completions. [`check`] runs the checks in
//! order; the first denial is reported.

use super::denial::{ApprovalDemand, Denial, Mismatch, RuleDenial, Warning};
use super::intent::{self, Operation, Unannotated};
use super::permit::{
    self, ApprovalNeed, Approved, Cleared, LimitDecision, PendingApproval, Permit, Queued, Settings,
};
use super::request::{Access, AdmissionRequest, Reference, ToolAccess};
use super::rules::{RuleAction, RuleRequest, RuleSet, RuleTarget, RulesMode, Ruling};
use super::scope;
use super::tool::{SideEffect, StatedBy, Tool, Trust};

/// Decision about a request.
#[derive(Debug)]
pub enum Admission {
    /// The request may be sent.
    Permit(Permit),
    /// A person has to approve it first.
    Pending(PendingApproval),
    /// The request waits for a slot under the limits.
    Queued(Box<Queued>),
    Denial(Denial),
}

/// Decides whether a request may be sent now.
pub fn admit(request: AdmissionRequest<'_>, settings: &Settings) -> Admission {
    match check(&request, settings) {
        Ok(Checked { warnings, rules, approval_need: ApprovalNeed::Nobody }) => {
            let AdmissionRequest { principal, access, .. } = request;
            let cleared = Cleared { principal: principal.clone(), access, warnings, rules };
            // Limits come last, so that a request denied for another reason occupies no slot.
            match cleared.apply_limits(settings) {
                Ok(LimitDecision::Permit(permit)) => Admission::Permit(permit),
                Ok(LimitDecision::Queued(queued)) => Admission::Queued(queued),
                Err(denial) => Admission::Denial(denial),
            }
        }
        Ok(Checked { warnings, rules, approval_need: ApprovalNeed::Required }) => {
            match bind(&request, settings, warnings, rules) {
                Ok(pending) => Admission::Pending(pending),
                Err(denial) => Admission::Denial(denial),
            }
        }
        Err(denial) => Admission::Denial(denial),
    }
}

/// Result of [`forecast`]: the decision that [`admit`] would make, without its side effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forecast {
    /// The request would be sent, ignoring limits.
    Allowed {
        /// Warnings that would be recorded.
        warnings: Vec<Warning>,
    },
    /// A person would have to approve it first (CAP-8).
    Asked {
        /// Warnings that would be recorded.
        warnings: Vec<Warning>,
    },
    /// The request would be denied.
    Refused(Denial),
}

/// Runs the checks of [`admit`] without taking a slot or asking a person. Limits are ignored, because their state may
/// change before the request is made.
pub fn forecast(request: &AdmissionRequest<'_>, settings: &Settings) -> Forecast {
    let Checked { warnings, rules, approval_need } = match check(request, settings) {
        Ok(checked) => checked,
        Err(denial) => return Forecast::Refused(denial),
    };
    match approval_need {
        ApprovalNeed::Nobody => Forecast::Allowed { warnings },
        ApprovalNeed::Required => match bind(request, settings, warnings.clone(), rules) {
            Ok(_) => Forecast::Asked { warnings },
            Err(denial) => Forecast::Refused(denial),
        },
    }
}

/// Runs all checks except the limits again for a request that has received its slot: rules, scope, definition and approval may have changed
/// while it waited. `approved` is its approval, if it needed one. A denied request releases its slot.
pub fn admit_again(
    request: AdmissionRequest<'_>,
    permit: Permit,
    approved: Option<&Approved>,
    settings: &Settings,
) -> Admission {
    let Checked { warnings, rules, approval_need } = match check(&request, settings) {
        Ok(checked) => checked,
        Err(denial) => return Admission::Denial(denial),
    };
    match approval_need {
        ApprovalNeed::Nobody => {
            let AdmissionRequest { principal, access, .. } = request;
            let principal = principal.clone();
            Admission::Permit(permit.renewed(Cleared { principal, access, warnings, rules }))
        }
        ApprovalNeed::Required => match (bind(&request, settings, warnings, rules), approved) {
            (Err(denial), _) => Admission::Denial(denial),
            (Ok(pending), None) => Admission::Pending(pending),
            (Ok(pending), Some(approved)) => match pending.cleared_by(approved) {
                Ok(cleared) => Admission::Permit(permit.renewed(cleared)),
                Err(denial) => Admission::Denial(denial),
            },
        },
    }
}

/// Binds a cleared request to the approval it needs.
fn bind(
    request: &AdmissionRequest<'_>,
    settings: &Settings,
    warnings: Vec<Warning>,
    rules: Vec<Box<str>>,
) -> Result<PendingApproval, Denial> {
    let (principal, access) = (request.principal.clone(), request.access.clone());
    let cleared = Cleared { principal, access, warnings, rules };
    let version = settings.rules.as_ref().map_or(&NO_RULES, |rules| rules.version());
    PendingApproval::bind(cleared, request, version)
}

/// Rule set version to which an approval is bound if there are no rules.
const NO_RULES: [u8; 32] = [0; 32];

/// A request that passed all checks.
struct Checked {
    warnings: Vec<Warning>,
    /// The rules that permit it or require an approval.
    rules: Vec<Box<str>>,
    /// Decided last: a request that is denied anyway does not wait for approval.
    approval_need: ApprovalNeed,
}

/// Runs the checks in order.
fn check(request: &AdmissionRequest<'_>, settings: &Settings) -> Result<Checked, Denial> {
    // Empty vectors do not allocate.
    let (mut warnings, mut decided_by) = (Vec::new(), Vec::new());
    let mut approval_need = ApprovalNeed::Nobody;
    match &request.access {
        Access::Tool(call) => {
            warnings.extend(check_variant(call, &settings.intent)?);
            check_trust(call.tool())?;
        }
        Access::Task(task) => check_trust(task.call().tool())?,
        // Resources, prompts, completions and other methods have neither a stated intent nor a capability.
        Access::Resource { .. }
        | Access::Prompt { .. }
        | Access::Completion { .. }
        | Access::Method { .. } => {}
    }
    scope::check(request.principal, &request.access)?;
    if let Access::Task(task) = &request.access
        && !task.sends_input()
    {
        // The call that created the task has already passed the rules and its approval, and this request adds no input
        // to it.
        return Ok(Checked { warnings, rules: decided_by, approval_need });
    }
    if let Some(tool) = request.access.tool() {
        let (asked, warning) = permit::approval_required(tool);
        approval_need = asked;
        warnings.extend(warning);
    }
    if let Some(rules) = &settings.rules {
        match check_rules(request, rules) {
            Ok(verdict) => {
                warnings.extend(verdict.warning);
                decided_by = verdict.rules;
            }
            Err(denial) => match denial.approval {
                ApprovalDemand::Asked => {
                    approval_need = ApprovalNeed::Required;
                    decided_by = denial.rules;
                }
                ApprovalDemand::None => return Err(denial.into()),
            },
        }
    }
    Ok(Checked { warnings, rules: decided_by, approval_need })
}

/// Validation matrix: compares the call tool variant with the tool's effective side effect (FR-015..020, FR-043,
/// CAP-5). The intent was already compared with the variant.
fn check_variant(
    call: &ToolAccess,
    settings: &intent::Settings,
) -> Result<Option<Warning>, Denial> {
    let tool = call.tool();
    let by = tool.side_effect_by;
    match mark(tool, call.operation()) {
        Mark::Fits => Ok(None),
        Mark::Less => Ok(Some(Warning::WriteOnReadOnly { tool: tool.name.clone(), by })),
        Mark::None => match settings.unannotated {
            Unannotated::Allow => Ok(None),
            Unannotated::Warn => Ok(Some(Warning::ReadOnUnannotated(tool.name.clone()))),
            Unannotated::Write => Err(Denial::Unannotated(tool.name.clone())),
        },
        Mark::More(needed) => {
            let mismatch = Mismatch { tool: tool.name.clone(), needed, by };
            match (by, settings.strict_server_validation) {
                (StatedBy::Server, false) => Ok(Some(Warning::Mismatch(mismatch))),
                (StatedBy::Server, true) | (StatedBy::Operator, _) => Err(mismatch.into()),
            }
        }
    }
}

/// Comparison of a tool's effective side effect with the variant used to call it.
enum Mark {
    Fits,
    /// The tool is not marked read-only or destructive, and is called through the read variant.
    None,
    /// The tool only reads and is called through the write variant.
    Less,
    /// The tool does more than the variant allows; holds the least privileged variant that may call it.
    More(Operation),
}

fn mark(tool: &Tool, variant: Operation) -> Mark {
    match (variant, tool.capability.side_effect, tool.side_effect_by) {
        // FR-019: the destructive variant may call a tool with any marking.
        (Operation::Destructive, _, _) => Mark::Fits,
        (Operation::Read | Operation::Write, SideEffect::Destructive, _) => {
            Mark::More(Operation::Destructive)
        }
        (Operation::Write, SideEffect::None | SideEffect::Read, _) => Mark::Less,
        (Operation::Write, SideEffect::Write, _) => Mark::Fits,
        (Operation::Read, SideEffect::None | SideEffect::Read, _) => Mark::Fits,
        // If `write` is derived from the annotations, no hint marks the tool read-only or destructive.
        (Operation::Read, SideEffect::Write, StatedBy::Server) => Mark::None,
        (Operation::Read, SideEffect::Write, StatedBy::Operator) => Mark::More(Operation::Write),
    }
}

/// Denies a tool whose definition waits for an operator (pins, scan).
fn check_trust(tool: &Tool) -> Result<(), Denial> {
    match tool.trust {
        Trust::Given => Ok(()),
        Trust::Withheld => Err(Denial::Quarantined(tool.name.clone())),
    }
}

/// Result of the rules for a request that they do not block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RulesVerdict {
    /// The rules that permit it; empty if `policy.default` permits it.
    rules: Vec<Box<str>>,
    /// The denial that `policy.mode: shadow` turned into a warning.
    warning: Option<Warning>,
}

fn check_rules(
    request: &AdmissionRequest<'_>,
    rules: &RuleSet,
) -> Result<RulesVerdict, RuleDenial> {
    let (action, target) = rule_target(&request.access);
    let asked = RuleRequest {
        subject: scope::subject(request.principal),
        action,
        target,
        arguments: request.arguments,
        sensitivity: request.intent.and_then(|intent| intent.sensitivity()),
        reason: request.intent.and_then(|intent| intent.reason()).unwrap_or_default(),
        client: request.client,
        session: request.session,
        carries_out: request.carries_out,
        now: request.now,
    };
    match (rules.decide(&asked), rules.options().mode) {
        (Ruling::Permitted(rules), _) => Ok(RulesVerdict { rules, warning: None }),
        (Ruling::Refused(denial), RulesMode::Enforce) => Err(denial),
        (Ruling::Refused(denial), RulesMode::Shadow) => {
            Ok(RulesVerdict { rules: Vec::new(), warning: Some(Warning::Shadow(denial)) })
        }
    }
}

fn rule_target(access: &Access) -> (RuleAction, RuleTarget<'_>) {
    let resource = |server, uri| (RuleAction::ReadResource, RuleTarget::Resource { server, uri });
    let prompt = |server, name| (RuleAction::GetPrompt, RuleTarget::Prompt { server, name });
    match access {
        Access::Tool(call) => (call.operation().into(), RuleTarget::Tool(call.tool())),
        Access::Resource { server, uri, request: _ }
        | Access::Completion { server, of: Reference::Resource(uri) } => resource(server, uri),
        Access::Prompt { server, name }
        | Access::Completion { server, of: Reference::Prompt(name) } => prompt(server, name),
        // Rules treat a method as a resource whose URI is the method name: the rules about a server's resources apply.
        Access::Method { server, method } => resource(server, method),
        // The input belongs to the call that created the task; the arguments of that call are no longer known.
        Access::Task(task) => {
            (task.call().operation().into(), RuleTarget::Tool(task.call().tool()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use crate::intent::{self, Operation, Requirement, Stated, Unannotated};
    use crate::tool::{Annotations, CapabilityOverride, Rules, Tool, ToolName, Trust};
    use crate::{DenialKind, Principal, Reference, ResourceRequest, SessionFacts, ToolAccess};

    const READ_ONLY: &str = r#"{"readOnlyHint":true}"#;
    const DESTRUCTIVE: &str = r#"{"destructiveHint":true}"#;
    const BOTH: &str = r#"{"readOnlyHint":true,"destructiveHint":true}"#;
    const NEITHER: &str = r#"{"readOnlyHint":false,"destructiveHint":false}"#;
    const NONE: &str = "{}";

    fn tool(annotations: &str, rules: &str) -> Arc<Tool> {
        let annotations: Annotations = serde_json::from_str(annotations).unwrap();
        let rules: Rules<CapabilityOverride> = serde_json::from_str(rules).unwrap();
        let name = ToolName::parse("github:delete_repo").unwrap();
        Arc::new(Tool::named(name, annotations, &rules))
    }

    fn stated(operation: Option<&str>, flat: bool) -> Stated<'static> {
        let Some(word) = operation else { return Stated::parse(&[]) };
        let (name, json) = if flat {
            ("intent_operation_type", format!("{word:?}"))
        } else {
            ("intent", format!(r#"{{"operation_type":{word:?}}}"#))
        };
        // The parsed values borrow the text, so the test leaks it.
        Stated::parse(&[(name.into(), json.leak())])
    }

    fn decide(principal: &Principal, access: Access, intent: &intent::Settings) -> Admission {
        let request = AdmissionRequest {
            principal,
            access,
            arguments: b"{}",
            meta: b"",
            inputs: b"",
            intent: None,
            client: "",
            session: SessionFacts::default(),
            carries_out: false,
            now: SystemTime::UNIX_EPOCH,
        };
        admit(request, &Settings { intent: *intent, ..Settings::default() })
    }

    /// `Ok` holds the warnings, `Err` the denial.
    type Outcome = Result<Vec<String>, (DenialKind, String)>;

    fn summary(admission: Admission) -> Outcome {
        match admission {
            Admission::Permit(permit) => {
                Ok(permit.warnings().iter().map(ToString::to_string).collect())
            }
            Admission::Pending(pending) => {
                Err((DenialKind::Approval, format!("{} waits", pending.access())))
            }
            Admission::Queued(queued) => panic!("there are no limits: {queued:?}"),
            Admission::Denial(denial) => Err((denial.kind(), denial.to_string())),
        }
    }

    fn outcome(
        variant: Operation,
        stated: &Stated<'_>,
        tool: &Arc<Tool>,
        settings: &intent::Settings,
    ) -> Outcome {
        let intent = match stated.check(variant, settings) {
            Ok(intent) => intent,
            Err(error) => return summary(Admission::Denial(error.into())),
        };
        let call = ToolAccess::declared(Arc::clone(tool), &intent);
        assert_eq!(call.operation(), variant);
        summary(decide(&Principal::Anonymous, Access::Tool(call), settings))
    }

    #[test]
    fn fr_001_to_020_intent_matrix_holds_in_both_settings_and_both_forms() {
        use DenialKind::{Gate, Intent};
        use Operation::{Destructive, Read, Write};
        let marked =
            "Tool 'github:delete_repo' is marked destructive by server, use call_tool_destructive";
        let needless =
            "Tool 'github:delete_repo' is marked read-only by server, call_tool_read is sufficient";
        let unmarked = "Tool 'github:delete_repo' is not marked read-only and was called by call_tool_read, \
                        call_tool_write is recommended";
        let any = [READ_ONLY, DESTRUCTIVE, BOTH, NEITHER, NONE];
        let mut rows = vec![
            (Read, "read", READ_ONLY, Ok(vec![])),
            (Read, "read", DESTRUCTIVE, Err((Gate, marked.to_owned()))),
            (Read, "read", BOTH, Err((Gate, marked.to_owned()))),
            (Read, "read", NEITHER, Ok(vec![unmarked.to_owned()])),
            (Read, "read", NONE, Ok(vec![unmarked.to_owned()])),
            (Write, "write", READ_ONLY, Ok(vec![needless.to_owned()])),
            (Write, "write", DESTRUCTIVE, Err((Gate, marked.to_owned()))),
            (Write, "write", BOTH, Err((Gate, marked.to_owned()))),
            (Write, "write", NEITHER, Ok(vec![])),
            (Write, "write", NONE, Ok(vec![])),
        ];
        for annotations in any {
            rows.push((Destructive, "destructive", annotations, Ok(vec![])));
            for variant in Operation::ALL {
                for other in Operation::ALL.into_iter().filter(|other| *other != variant) {
                    let text = format!(
                        "Intent mismatch: tool is {} but intent declares {}",
                        variant.variant(),
                        other.as_str()
                    );
                    rows.push((variant, other.as_str(), annotations, Err((Intent, text))));
                }
                let text =
                    "Invalid intent.operation_type 'delete': must be read, write, or destructive";
                rows.push((variant, "delete", annotations, Err((Intent, text.to_owned()))));
            }
        }
        for operation_type in [Requirement::Required, Requirement::Inferred] {
            let settings = intent::Settings { operation_type, ..intent::Settings::default() };
            for flat in [true, false] {
                for (variant, word, annotations, expected) in &rows {
                    let got = outcome(
                        *variant,
                        &stated(Some(word), flat),
                        &tool(annotations, "{}"),
                        &settings,
                    );
                    assert_eq!(
                        &got, expected,
                        "{variant:?} {word} {annotations} {settings:?} {flat}"
                    );
                }
            }
        }
    }

    #[test]
    fn fr_006_missing_intent_is_refused_or_inferred_depending_on_the_setting() {
        for variant in Operation::ALL {
            for annotations in [READ_ONLY, DESTRUCTIVE, NONE] {
                let tool = tool(annotations, "{}");
                let missing = stated(None, false);
                let text = format!("intent parameter is required for {}", variant.variant());
                let required = outcome(variant, &missing, &tool, &intent::Settings::default());
                assert_eq!(required, Err((DenialKind::Intent, text)));
                let inferred = intent::Settings {
                    operation_type: Requirement::Inferred,
                    ..intent::Settings::default()
                };
                assert_eq!(
                    outcome(variant, &missing, &tool, &inferred),
                    outcome(variant, &stated(Some(variant.as_str()), true), &tool, &inferred),
                );
            }
        }
    }

    #[test]
    fn fr_042_without_strict_server_validation_a_mismatch_warns() {
        let lax =
            intent::Settings { strict_server_validation: false, ..intent::Settings::default() };
        let read = stated(Some("read"), false);
        let got = outcome(Operation::Read, &read, &tool(DESTRUCTIVE, "{}"), &lax);
        let text = "Tool 'github:delete_repo' is marked destructive by server, use \
                    call_tool_destructive; allowed, because strict_server_validation is false";
        assert_eq!(got, Ok(vec![text.to_owned()]));
        let got = outcome(Operation::Write, &read, &tool(NONE, "{}"), &lax);
        assert!(got.is_err(), "variant and intent must agree");
        let got = outcome(
            Operation::Read,
            &read,
            &tool(NONE, r#"{"*":{"side_effect":"destructive"}}"#),
            &lax,
        );
        assert!(got.is_err(), "an operator override is enforced in any case");
    }

    #[test]
    fn fr_043_read_of_an_unmarked_tool_passes_warns_or_is_refused_depending_on_the_setting() {
        let warning = "Tool 'github:delete_repo' is not marked read-only and was called by call_tool_read, \
                       call_tool_write is recommended";
        let refused = "Tool 'github:delete_repo' is not marked read-only, use call_tool_write";
        for (unannotated, expected) in [
            (Unannotated::Allow, Ok(vec![])),
            (Unannotated::Warn, Ok(vec![warning.to_owned()])),
            (Unannotated::Write, Err((DenialKind::Gate, refused.to_owned()))),
        ] {
            for strict_server_validation in [true, false] {
                let settings = intent::Settings {
                    unannotated,
                    strict_server_validation,
                    ..intent::Settings::default()
                };
                let got = |variant: Operation, annotations: &str, rules: &str| {
                    let stated = stated(Some(variant.as_str()), true);
                    outcome(variant, &stated, &tool(annotations, rules), &settings)
                };
                for annotations in [NONE, NEITHER] {
                    assert_eq!(
                        got(Operation::Read, annotations, "{}"),
                        expected,
                        "{unannotated:?}"
                    );
                    assert_eq!(got(Operation::Write, annotations, "{}"), Ok(vec![]));
                    assert_eq!(got(Operation::Destructive, annotations, "{}"), Ok(vec![]));
                }
                assert_eq!(got(Operation::Read, READ_ONLY, "{}"), Ok(vec![]));
                let by_operator = r#"{"*":{"side_effect":"read"}}"#;
                assert_eq!(got(Operation::Read, NONE, by_operator), Ok(vec![]));
            }
        }
    }

    #[test]
    fn fr_042_a_rule_against_destructive_calls_holds_for_a_tool_called_by_the_read_variant() {
        use crate::rules::{RuleOptions, RuleSet, RuleText};
        let text =
            r#"@id("no-deletes") forbid(principal, action == Action::"destructive", resource);"#;
        let text = RuleText { file: "r".into(), text: text.to_owned() };
        let rules = RuleSet::load(&[text], RuleOptions::default(), None).unwrap();
        let intent =
            intent::Settings { strict_server_validation: false, ..intent::Settings::default() };
        let settings = Settings { intent, rules: Some(Arc::new(rules)), ..Settings::default() };
        let read = stated(Some("read"), true);
        let read = read.check(Operation::Read, &intent).unwrap();
        let admitted = |annotations: &str| {
            let request = AdmissionRequest {
                principal: &Principal::Admin,
                access: Access::Tool(ToolAccess::declared(tool(annotations, "{}"), &read)),
                arguments: b"{}",
                meta: b"",
                inputs: b"",
                intent: Some(read),
                client: "",
                session: SessionFacts::default(),
                carries_out: false,
                now: SystemTime::UNIX_EPOCH,
            };
            summary(admit(request, &settings))
        };
        let text = "Tool 'github:delete_repo' is not allowed by rule 'no-deletes'";
        assert_eq!(admitted(DESTRUCTIVE), Err((DenialKind::Rules, text.to_owned())));
        let warned = admitted(NONE).unwrap();
        assert_eq!(warned.len(), 1, "{warned:?}");
    }

    #[test]
    fn cap_5_matrix_uses_the_effective_side_effect() {
        use Operation::{Destructive, Read, Write};
        let by_operator = |word: &str| {
            format!("Tool 'github:delete_repo' is marked {word} by operator, use call_tool_{word}")
        };
        let needless = "Tool 'github:delete_repo' is marked read-only by operator, call_tool_read is sufficient";
        for (side_effect, annotations, variant, expected) in [
            ("destructive", READ_ONLY, Read, Err(by_operator("destructive"))),
            ("destructive", NONE, Write, Err(by_operator("destructive"))),
            ("destructive", NONE, Destructive, Ok(vec![])),
            ("write", READ_ONLY, Read, Err(by_operator("write"))),
            ("write", NONE, Read, Err(by_operator("write"))),
            ("write", DESTRUCTIVE, Write, Ok(vec![])),
            ("read", DESTRUCTIVE, Read, Ok(vec![])),
            ("none", DESTRUCTIVE, Read, Ok(vec![])),
            ("none", NONE, Write, Ok(vec![needless.to_owned()])),
        ] {
            let tool = tool(annotations, &format!(r#"{{"*":{{"side_effect":"{side_effect}"}}}}"#));
            let got = outcome(
                variant,
                &stated(Some(variant.as_str()), true),
                &tool,
                &intent::Settings::default(),
            );
            let expected = expected.map_err(|text| (DenialKind::Gate, text));
            assert_eq!(got, expected, "{side_effect} {annotations} {variant:?}");
        }
    }

    #[test]
    fn cap_8_required_approval_makes_the_call_pending() {
        let destructive = stated(Some("destructive"), true);
        let of = |approval: &str| {
            let tool = tool(NONE, &format!(r#"{{"*":{{"approval":"{approval}"}}}}"#));
            outcome(Operation::Destructive, &destructive, &tool, &intent::Settings::default())
        };
        let waits = "github:delete_repo waits";
        assert_eq!(of("required"), Err((DenialKind::Approval, waits.to_owned())));
        let text = "Tool 'github:delete_repo' suggests approval, and nobody was asked";
        assert_eq!(of("suggest"), Ok(vec![text.to_owned()]));
        assert_eq!(of("auto"), Ok(vec![]));
    }

    #[test]
    fn cap_5_direct_call_uses_the_recommended_operation() {
        for annotations in [READ_ONLY, DESTRUCTIVE, BOTH, NEITHER, NONE] {
            let call = ToolAccess::direct(tool(annotations, "{}"));
            let admitted =
                decide(&Principal::Admin, Access::Tool(call), &intent::Settings::default());
            assert_eq!(summary(admitted), Ok(vec![]), "{annotations}");
        }
        let call = ToolAccess::direct(tool(NONE, r#"{"*":{"approval":"required"}}"#));
        let waits = decide(&Principal::Admin, Access::Tool(call), &intent::Settings::default());
        assert!(matches!(waits, Admission::Pending(_)));
    }

    fn pending(principal: &Principal, tool: Arc<Tool>) -> PendingApproval {
        let call = Access::Tool(ToolAccess::direct(tool));
        match decide(principal, call, &intent::Settings::default()) {
            Admission::Pending(pending) => pending,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn cap_8_approval_permits_only_the_approved_call() {
        let rules = r#"{"*":{"approval":"required"}}"#;
        let ours = || pending(&Principal::Admin, tool(NONE, rules));
        let mut changed = Tool::clone(&tool(NONE, rules));
        changed.description = "deletes more than before".into();
        let others = || {
            [pending(&Principal::Anonymous, tool(NONE, rules)), {
                pending(&Principal::Admin, Arc::new(changed.clone()))
            }]
        };
        for approved in [Approved::Call(ours().digest()), Approved::Standing(ours().subject())] {
            let Ok(LimitDecision::Permit(permit)) =
                ours().permitted_by(&approved, &Settings::default())
            else {
                panic!("there are no limits")
            };
            assert_eq!(permit.access().to_string(), "github:delete_repo");
            for other in others() {
                let denial = other.permitted_by(&approved, &Settings::default()).unwrap_err();
                let text = "Tool 'github:delete_repo': what was approved is not what is asked now";
                assert_eq!((denial.kind(), &*denial.to_string()), (DenialKind::Approval, text));
            }
        }
    }

    #[test]
    fn admission_checks_run_in_the_documented_order() {
        use crate::tool::Trust;
        use crate::{AgentToken, Scope};
        let scope = Scope { servers: vec!["other".into()], ..Scope::default() };
        let token = Principal::Token(Arc::new(AgentToken::new("ci", 1, scope)));
        let held = |annotations: &str| {
            let tool = tool(annotations, r#"{"*":{"approval":"required"}}"#);
            Arc::new(Tool { trust: Trust::Withheld, ..Tool::clone(&tool) })
        };
        let read = stated(Some("read"), true);
        let intent = read.check(Operation::Read, &intent::Settings::default()).unwrap();
        let kind = |principal: &Principal, tool: Arc<Tool>| {
            let access = Access::Tool(ToolAccess::declared(tool, &intent));
            summary(decide(principal, access, &intent::Settings::default())).unwrap_err().0
        };
        assert_eq!(kind(&token, held(DESTRUCTIVE)), DenialKind::Gate);
        assert_eq!(kind(&token, held(READ_ONLY)), DenialKind::Catalog);
        let trusted = tool(READ_ONLY, r#"{"*":{"approval":"required"}}"#);
        assert_eq!(kind(&token, Arc::clone(&trusted)), DenialKind::Scope);
        assert_eq!(kind(&Principal::Admin, trusted), DenialKind::Approval);
    }

    #[test]
    fn forecast_of_a_call_equals_its_decision() {
        let scope = crate::Scope { servers: vec!["other".into()], ..Default::default() };
        let token = crate::AgentToken::new("ci", 1, scope);
        let token = Principal::Token(Arc::new(token));
        let (mut allowed, mut asked, mut refused) = (0, 0, 0);
        for annotations in [READ_ONLY, DESTRUCTIVE, NONE] {
            for rules in
                ["{}", r#"{"*":{"approval":"required"}}"#, r#"{"*":{"approval":"suggest"}}"#]
            {
                for (trust, principal) in [
                    (Trust::Given, &Principal::Admin),
                    (Trust::Withheld, &Principal::Admin),
                    (Trust::Given, &token),
                ] {
                    let tool = Arc::new(Tool { trust, ..(*tool(annotations, rules)).clone() });
                    let write = stated(Some("write"), true);
                    let settings = intent::Settings::default();
                    let intent = write.check(Operation::Write, &settings).unwrap();
                    let access = Access::Tool(ToolAccess::declared(tool, &intent));
                    let request = AdmissionRequest {
                        principal,
                        access: access.clone(),
                        arguments: b"{}",
                        meta: b"",
                        inputs: b"",
                        intent: Some(intent),
                        client: "",
                        session: SessionFacts::default(),
                        carries_out: false,
                        now: SystemTime::UNIX_EPOCH,
                    };
                    let texts = |warnings: &[Warning]| -> Vec<String> {
                        warnings.iter().map(ToString::to_string).collect()
                    };
                    match (
                        forecast(&request, &Settings::default()),
                        decide(principal, access, &settings),
                    ) {
                        (Forecast::Allowed { warnings }, Admission::Permit(permit)) => {
                            assert_eq!(texts(&warnings), texts(permit.warnings()));
                            allowed += 1;
                        }
                        (Forecast::Asked { .. }, Admission::Pending(_)) => asked += 1,
                        (Forecast::Refused(foreseen), Admission::Denial(denial)) => {
                            assert_eq!(foreseen, denial);
                            refused += 1;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        assert_eq!((allowed, asked, refused), (4, 2, 21));
    }

    #[test]
    fn cap_8_denied_request_does_not_enter_the_queue() {
        let tool = tool(DESTRUCTIVE, r#"{"*":{"approval":"required"}}"#);
        let read = stated(Some("read"), true);
        let got = outcome(Operation::Read, &read, &tool, &intent::Settings::default());
        assert!(matches!(got, Err((DenialKind::Gate, _))), "{got:?}");
    }

    /// Result of `admit_again` for a request that waited for a slot; `tool` is its tool as defined after the wait.
    fn again(tool: Arc<Tool>, approved: Option<&Approved>) -> Outcome {
        let permit = match decide(
            &Principal::Anonymous,
            Access::Tool(ToolAccess::direct(self::tool(NONE, "{}"))),
            &intent::Settings::default(),
        ) {
            Admission::Permit(permit) => permit,
            other => panic!("{other:?}"),
        };
        let request = AdmissionRequest {
            principal: &Principal::Anonymous,
            access: Access::Tool(ToolAccess::direct(tool)),
            arguments: b"{}",
            meta: b"",
            inputs: b"",
            intent: None,
            client: "",
            session: SessionFacts::default(),
            carries_out: false,
            now: SystemTime::UNIX_EPOCH,
        };
        summary(admit_again(request, permit, approved, &Settings::default()))
    }

    #[test]
    fn cap_6_queued_request_is_checked_again_with_current_settings() {
        let approval_need = || tool(NONE, r#"{"*":{"approval":"required"}}"#);
        assert_eq!(again(tool(NONE, "{}"), None), Ok(vec![]));
        let held = Arc::new(Tool { trust: Trust::Withheld, ..(*tool(NONE, "{}")).clone() });
        let quarantined = again(held, None);
        assert!(matches!(quarantined, Err((DenialKind::Catalog, _))), "{quarantined:?}");
        let waits = Err((DenialKind::Approval, "github:delete_repo waits".to_owned()));
        assert_eq!(again(approval_need(), None), waits, "approval is required now");
        let approved = Approved::Call(pending(&Principal::Anonymous, approval_need()).digest());
        assert_eq!(again(approval_need(), Some(&approved)), Ok(vec![]));
        let changed =
            Arc::new(Tool { description: "another".into(), ..(*approval_need()).clone() });
        let text = "Tool 'github:delete_repo': what was approved is not what is asked now";
        assert_eq!(again(changed, Some(&approved)), Err((DenialKind::Approval, text.to_owned())));
    }

    #[test]
    fn permit_names_principal_and_access() {
        let server: Arc<str> = "s".into();
        let request = ResourceRequest::Subscribe;
        for (access, label) in [
            (
                Access::Resource { server: Arc::clone(&server), uri: "a:b".into(), request },
                "s:resources/subscribe",
            ),
            (Access::Prompt { server: Arc::clone(&server), name: "p".into() }, "s:prompts/get"),
            (
                Access::Completion { server, of: Reference::Prompt("p".into()) },
                "s:completion/complete",
            ),
            (Access::Tool(ToolAccess::direct(tool(NONE, "{}"))), "github:delete_repo"),
        ] {
            let admitted = decide(&Principal::Admin, access, &intent::Settings::default());
            let Admission::Permit(permit) = admitted else { panic!("{admitted:?}") };
            assert_eq!(permit.access().to_string(), label);
            assert_eq!(*permit.principal(), Principal::Admin);
        }
    }
}
