//! The one decision about a request to a server: it may go out, it waits, or it is refused.
//!
//! Every door asks it: the call tools, `/mcp/all`, REST, the command line, resources, prompts, completions. The
//! checks stand in [`check`] in the order in which they are made; the first that refuses is the one that is reported.

use std::time::Duration;

use super::access::Access;
use super::denial::{Denial, Warning};
use super::limits::{BreakerChange, Entrance, Occupied, Queue, ServerOutcome};
use super::principal::Principal;
use super::request::AdmissionRequest;
use super::settings::Settings;
use super::{approval, intent_matrix, presets};

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

/// A request that waits for a person's approval. Nothing can ask for one yet, so that there is no such value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingApproval {}

/// Leave to send one request. Only [`admit`] makes one, and the upstream asks for one. It holds what the request
/// occupies under the limits, and gives it back when it is dropped, however that comes about.
#[derive(Debug)]
pub struct Permit {
    principal: Principal,
    access: Access,
    warnings: Vec<Warning>,
    occupied: Occupied,
}

/// A request that would go out, had it a place under the limits. It has a place in a queue until it is dropped.
#[derive(Debug)]
pub struct Queued {
    request: Unsettled,
    queue: Queue,
}

/// What a permit will be of.
#[derive(Debug)]
struct Unsettled {
    principal: Principal,
    access: Access,
    warnings: Vec<Warning>,
}

impl Permit {
    /// On whose behalf the request goes out.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// What may be asked, of which server.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// What is to be logged and recorded about this request, one decision each (ACT-1).
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Gives back what the request occupies: its answer has come, or never will. What came of it is told to the
    /// server's breaker; `None` where that says nothing about the server.
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
    /// What is asked, of which server.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.request.access
    }

    /// Waits until it may go out. Given up and asked again, it waits at the end of the queue.
    ///
    /// # Errors
    /// It may not, after all.
    pub async fn come(&mut self) -> Result<Permit, Denial> {
        let Unsettled { principal, access, warnings } = &self.request;
        let occupied = self.queue.come(principal, access).await?;
        let (principal, access, warnings) = (principal.clone(), access.clone(), warnings.clone());
        Ok(Permit { principal, access, warnings, occupied })
    }

    /// The refusal of one that has waited so long in vain.
    #[must_use]
    pub fn late(&self, waited: Duration) -> Denial {
        let Unsettled { principal, access, .. } = &self.request;
        self.queue.late(principal, access, waited).into()
    }
}

/// Decides whether a request may go out now.
#[must_use]
pub fn admit(request: AdmissionRequest<'_>, settings: &Settings) -> Admission {
    match check(&request, settings) {
        Ok(warnings) => {
            let AdmissionRequest { principal, access, .. } = request;
            // Limits come last: what is refused for another reason takes nothing.
            match settings.limits.enter(principal, &access) {
                Ok(Entrance::Free(occupied)) => {
                    let principal = principal.clone();
                    Admission::Permit(Permit { principal, access, warnings, occupied })
                }
                Ok(Entrance::Queued(queue)) => {
                    let request = Unsettled { principal: principal.clone(), access, warnings };
                    Admission::Queued(Box::new(Queued { request, queue }))
                }
                Err(limit) => Admission::Denial(limit.into()),
            }
        }
        Err(denial) => Admission::Denial(denial),
    }
}

/// The checks, in their order.
fn check(request: &AdmissionRequest<'_>, settings: &Settings) -> Result<Vec<Warning>, Denial> {
    // Takes no memory while nothing is remarkable.
    let mut warnings = Vec::new();
    match &request.access {
        Access::Tool(call) => {
            warnings.extend(intent_matrix::check(call, &settings.intent)?);
            warnings.extend(approval::check(call.tool())?);
        }
        // They have neither a stated intent nor a capability: what a server offers may be read.
        Access::Resource { .. } | Access::Prompt { .. } | Access::Completion { .. } => {}
    }
    presets::check(request, &settings.presets)?;
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use serde_json::value::RawValue;

    use super::*;
    use crate::intent::{self, Operation, Requirement, Stated};
    use crate::output::Policy;
    use crate::policy::{DenialKind, Reference, ResourceRequest, SessionFacts, ToolAccess};
    use crate::tool::{
        Annotations, Capability, CapabilityOverride, Exposure, OutputSchema, Rules, Tool, ToolName,
    };

    const READ_ONLY: &str = r#"{"readOnlyHint":true}"#;
    const DESTRUCTIVE: &str = r#"{"destructiveHint":true}"#;
    const BOTH: &str = r#"{"readOnlyHint":true,"destructiveHint":true}"#;
    const NEITHER: &str = r#"{"readOnlyHint":false,"destructiveHint":false}"#;
    const NONE: &str = "{}";

    fn tool(annotations: &str, rules: &str) -> Arc<Tool> {
        let annotations: Annotations = serde_json::from_str(annotations).unwrap();
        let rules: Rules<CapabilityOverride> = serde_json::from_str(rules).unwrap();
        let name = ToolName::parse("github:delete_repo").unwrap();
        let (capability, side_effect_by) = Capability::effective(annotations, &rules, &name.tool);
        let exposure = Exposure::effective(annotations, &rules, &name.tool);
        Arc::new(Tool {
            name,
            title: None,
            description: "".into(),
            input_schema: RawValue::from_string("{}".into()).unwrap(),
            output_schema: None,
            annotations_raw: None,
            annotations,
            capability,
            side_effect_by,
            exposure,
            schema: OutputSchema::Absent,
            policy: Policy::default(),
            parameter_headers: None,
        })
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
            Admission::Pending(never) => match never {},
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
    fn cap_8_approval_fails_closed() {
        let destructive = stated(Some("destructive"), true);
        let of = |approval: &str| {
            let tool = tool(NONE, &format!(r#"{{"*":{{"approval":"{approval}"}}}}"#));
            outcome(Operation::Destructive, &destructive, &tool, &intent::Settings::default())
        };
        let text = "Tool 'github:delete_repo' requires approval, which this version cannot ask for";
        assert_eq!(of("required"), Err((DenialKind::Approval, text.to_owned())));
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
        let refused = decide(&Principal::Admin, Access::Tool(call), &intent::Settings::default());
        assert!(matches!(refused, Admission::Denial(Denial::Approval(_))));
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
