//! The one decision about a request to a server: it may go out, it waits, or it is refused.
//!
//! Every door asks it: the call tools, `/mcp/all`, REST, the command line, resources, prompts, completions. The
//! checks stand in [`check`] in the order in which they are made; the first that refuses is the one that is reported.

use super::access::Access;
use super::approval::{Approved, Asks, PendingApproval};
use super::denial::{ApprovalDemand, Denial, Warning};
use super::permit::{Cleared, Leave, Permit, Queued};
use super::request::AdmissionRequest;
use super::settings::Settings;
use super::{approval, intent_matrix, quarantine, ruled, scope};

/// What becomes of a request.
#[derive(Debug)]
pub enum Admission {
    /// It may go out.
    Permit(Permit),
    /// It waits for somebody's decision.
    Pending(PendingApproval),
    /// It waits for its turn.
    Queued(Box<Queued>),
    /// It is refused.
    Denial(Denial),
}

/// Decides whether a request may go out now.
#[must_use]
pub fn admit(request: AdmissionRequest<'_>, settings: &Settings) -> Admission {
    match check(&request, settings) {
        Ok(Checked { warnings, rules, asks: Asks::Nobody }) => {
            let AdmissionRequest { principal, access, .. } = request;
            let cleared = Cleared { principal: principal.clone(), access, warnings, rules };
            // Limits come last: what is refused for another reason takes nothing.
            match cleared.leave(settings) {
                Ok(Leave::Permit(permit)) => Admission::Permit(permit),
                Ok(Leave::Queued(queued)) => Admission::Queued(queued),
                Err(denial) => Admission::Denial(denial),
            }
        }
        Ok(Checked { warnings, rules, asks: Asks::APerson }) => {
            match bind(&request, settings, warnings, rules) {
                Ok(pending) => Admission::Pending(pending),
                Err(denial) => Admission::Denial(denial),
            }
        }
        Err(denial) => Admission::Denial(denial),
    }
}

/// What [`admit`] would say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreseen {
    /// It would go out, as far as the limits let it.
    Allowed {
        /// What would be remarkable about it.
        warnings: Vec<Warning>,
    },
    /// A person would be asked first (CAP-8).
    Asked {
        /// What would be remarkable about it.
        warnings: Vec<Warning>,
    },
    /// It would be refused.
    Refused(Denial),
}

/// Says what would become of a request, by the same checks; nothing is sent or counted under a limit, and nobody is
/// asked. Limits are not looked at: they are others when it is made.
#[must_use]
pub fn foresee(request: &AdmissionRequest<'_>, settings: &Settings) -> Foreseen {
    let Checked { warnings, rules, asks } = match check(request, settings) {
        Ok(checked) => checked,
        Err(denial) => return Foreseen::Refused(denial),
    };
    match asks {
        Asks::Nobody => Foreseen::Allowed { warnings },
        Asks::APerson => match bind(request, settings, warnings.clone(), rules) {
            Ok(_) => Foreseen::Asked { warnings },
            Err(denial) => Foreseen::Refused(denial),
        },
    }
}

/// Decides once more about a request whose turn has come, by all checks but the limits, which it has passed: while it
/// waited, rules, scope, definition and approval may have become others. `approved` is the word that it has, if it needed
/// one. What does not go out gives its place back.
#[must_use]
pub fn admit_again(
    request: AdmissionRequest<'_>,
    came: Permit,
    approved: Option<&Approved>,
    settings: &Settings,
) -> Admission {
    let Checked { warnings, rules, asks } = match check(&request, settings) {
        Ok(checked) => checked,
        Err(denial) => return Admission::Denial(denial),
    };
    match asks {
        Asks::Nobody => {
            let AdmissionRequest { principal, access, .. } = request;
            let principal = principal.clone();
            Admission::Permit(came.renewed(Cleared { principal, access, warnings, rules }))
        }
        Asks::APerson => match (bind(&request, settings, warnings, rules), approved) {
            (Err(denial), _) => Admission::Denial(denial),
            (Ok(pending), None) => Admission::Pending(pending),
            (Ok(pending), Some(approved)) => match pending.cleared_by(approved) {
                Ok(cleared) => Admission::Permit(came.renewed(cleared)),
                Err(denial) => Admission::Denial(denial),
            },
        },
    }
}

/// What waits for a person.
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

/// Stands for the version of the rules where there are none.
const NO_RULES: [u8; 32] = [0; 32];

/// What all checks have let pass.
struct Checked {
    warnings: Vec<Warning>,
    /// The rules that permit it, or leave it to a person.
    rules: Vec<Box<str>>,
    /// A person is asked last: for what is refused anyway, nobody is.
    asks: Asks,
}

/// The checks, in their order.
fn check(request: &AdmissionRequest<'_>, settings: &Settings) -> Result<Checked, Denial> {
    // They take no memory while nothing is remarkable.
    let (mut warnings, mut decided_by) = (Vec::new(), Vec::new());
    let mut asks = Asks::Nobody;
    match &request.access {
        Access::Tool(call) => {
            warnings.extend(intent_matrix::check(call, &settings.intent)?);
            quarantine::check(call.tool())?;
        }
        // They have neither a stated intent nor a capability: what a server offers may be read.
        Access::Resource { .. } | Access::Prompt { .. } | Access::Completion { .. } => {}
    }
    scope::check(request.principal, &request.access)?;
    if let Some(tool) = request.access.tool() {
        let (asked, warning) = approval::check(tool);
        asks = asked;
        warnings.extend(warning);
    }
    if let Some(rules) = &settings.rules {
        match ruled::check(request, rules) {
            Ok(heard) => {
                warnings.extend(heard.warning);
                decided_by = heard.rules;
            }
            Err(denial) => match denial.approval {
                ApprovalDemand::Asked => {
                    asks = Asks::APerson;
                    decided_by = denial.rules;
                }
                ApprovalDemand::None => return Err(denial.into()),
            },
        }
    }
    Ok(Checked { warnings, rules: decided_by, asks })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use crate::intent::{self, Operation, Requirement, Stated};
    use crate::policy::{
        DenialKind, Principal, Reference, ResourceRequest, SessionFacts, ToolAccess,
    };
    use crate::tool::{Annotations, CapabilityOverride, Rules, Tool, ToolName, Trust};

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
        // What is read borrows it; a test need not give it back.
        Stated::parse(&[(name.into(), json.leak())])
    }

    fn decide(principal: &Principal, access: Access, intent: &intent::Settings) -> Admission {
        let request = AdmissionRequest {
            principal,
            access,
            arguments: b"{}",
            intent: None,
            client: "",
            session: SessionFacts::default(),
            now: SystemTime::UNIX_EPOCH,
        };
        admit(request, &Settings { intent: *intent, ..Settings::default() })
    }

    /// `Ok` holds the warnings, `Err` the denial.
    type Outcome = Result<Vec<String>, (DenialKind, String)>;

    fn told(admission: Admission) -> Outcome {
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
            Err(error) => return told(Admission::Denial(error.into())),
        };
        let call = ToolAccess::declared(Arc::clone(tool), &intent);
        assert_eq!(call.operation(), variant);
        told(decide(&Principal::Anonymous, Access::Tool(call), settings))
    }

    #[test]
    fn fr_001_to_020_the_whole_matrix_in_both_settings_and_both_forms() {
        use DenialKind::{Gate, Intent};
        use Operation::{Destructive, Read, Write};
        let marked =
            "Tool 'github:delete_repo' is marked destructive by server, use call_tool_destructive";
        let needless =
            "Tool 'github:delete_repo' is marked read-only by server, call_tool_read would do";
        let any = [READ_ONLY, DESTRUCTIVE, BOTH, NEITHER, NONE];
        let mut rows = vec![
            (Read, "read", READ_ONLY, Ok(vec![])),
            (Read, "read", DESTRUCTIVE, Err((Gate, marked.to_owned()))),
            (Read, "read", BOTH, Err((Gate, marked.to_owned()))),
            (Read, "read", NEITHER, Ok(vec![])),
            (Read, "read", NONE, Ok(vec![])),
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
    fn fr_006_a_missing_intent_is_refused_or_inferred_by_setting() {
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
        assert!(got.is_err(), "the two keys must agree all the same");
        let got = outcome(
            Operation::Read,
            &read,
            &tool(NONE, r#"{"*":{"side_effect":"destructive"}}"#),
            &lax,
        );
        assert!(got.is_err(), "the operator's word is not the server's claim");
    }

    #[test]
    fn cap_5_the_gate_counts_the_effective_side_effect() {
        use Operation::{Destructive, Read, Write};
        let by_operator = |word: &str| {
            format!("Tool 'github:delete_repo' is marked {word} by operator, use call_tool_{word}")
        };
        let needless =
            "Tool 'github:delete_repo' is marked read-only by operator, call_tool_read would do";
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
    fn cap_8_what_requires_approval_waits() {
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
    fn cap_5_under_its_own_name_a_tool_does_what_it_is_marked_for() {
        for annotations in [READ_ONLY, DESTRUCTIVE, BOTH, NEITHER, NONE] {
            let call = ToolAccess::direct(tool(annotations, "{}"));
            let admitted =
                decide(&Principal::Admin, Access::Tool(call), &intent::Settings::default());
            assert_eq!(told(admitted), Ok(vec![]), "{annotations}");
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
    fn cap_8_an_approval_lets_go_what_was_approved_and_nothing_else() {
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
            let Ok(Leave::Permit(permit)) = ours().permitted_by(&approved, &Settings::default())
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
    fn each_check_is_asked_in_its_place() {
        use crate::policy::{AgentToken, Scope};
        use crate::tool::Trust;
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
            told(decide(principal, access, &intent::Settings::default())).unwrap_err().0
        };
        assert_eq!(kind(&token, held(DESTRUCTIVE)), DenialKind::Gate);
        assert_eq!(kind(&token, held(READ_ONLY)), DenialKind::Catalog);
        let trusted = tool(READ_ONLY, r#"{"*":{"approval":"required"}}"#);
        assert_eq!(kind(&token, Arc::clone(&trusted)), DenialKind::Scope);
        assert_eq!(kind(&Principal::Admin, trusted), DenialKind::Approval);
    }

    #[test]
    fn what_is_foreseen_is_what_is_decided() {
        let scope = crate::policy::Scope { servers: vec!["other".into()], ..Default::default() };
        let token = crate::policy::AgentToken::new("ci", 1, scope);
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
                        intent: Some(intent),
                        client: "",
                        session: SessionFacts::default(),
                        now: SystemTime::UNIX_EPOCH,
                    };
                    let told = |warnings: &[Warning]| -> Vec<String> {
                        warnings.iter().map(ToString::to_string).collect()
                    };
                    match (
                        foresee(&request, &Settings::default()),
                        decide(principal, access, &settings),
                    ) {
                        (Foreseen::Allowed { warnings }, Admission::Permit(permit)) => {
                            assert_eq!(told(&warnings), told(permit.warnings()));
                            allowed += 1;
                        }
                        (Foreseen::Asked { .. }, Admission::Pending(_)) => asked += 1,
                        (Foreseen::Refused(foreseen), Admission::Denial(denial)) => {
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
    fn cap_8_nobody_is_asked_for_what_is_refused_anyway() {
        let tool = tool(DESTRUCTIVE, r#"{"*":{"approval":"required"}}"#);
        let read = stated(Some("read"), true);
        let got = outcome(Operation::Read, &read, &tool, &intent::Settings::default());
        assert!(matches!(got, Err((DenialKind::Gate, _))), "{got:?}");
    }

    /// What becomes of a request that has had its turn, with the tool that there is then.
    fn again(tool: Arc<Tool>, approved: Option<&Approved>) -> Outcome {
        let came = match decide(
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
            intent: None,
            client: "",
            session: SessionFacts::default(),
            now: SystemTime::UNIX_EPOCH,
        };
        told(admit_again(request, came, approved, &Settings::default()))
    }

    #[test]
    fn cap_6_what_has_waited_for_its_turn_is_decided_about_by_what_counts_then() {
        let asks = || tool(NONE, r#"{"*":{"approval":"required"}}"#);
        assert_eq!(again(tool(NONE, "{}"), None), Ok(vec![]));
        let held = Arc::new(Tool { trust: Trust::Withheld, ..(*tool(NONE, "{}")).clone() });
        let quarantined = again(held, None);
        assert!(matches!(quarantined, Err((DenialKind::Catalog, _))), "{quarantined:?}");
        let waits = Err((DenialKind::Approval, "github:delete_repo waits".to_owned()));
        assert_eq!(again(asks(), None), waits, "a person is asked now");
        let approved = Approved::Call(pending(&Principal::Anonymous, asks()).digest());
        assert_eq!(again(asks(), Some(&approved)), Ok(vec![]));
        let changed = Arc::new(Tool { description: "another".into(), ..(*asks()).clone() });
        let text = "Tool 'github:delete_repo': what was approved is not what is asked now";
        assert_eq!(again(changed, Some(&approved)), Err((DenialKind::Approval, text.to_owned())));
    }

    #[test]
    fn a_permit_says_who_may_do_what() {
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
