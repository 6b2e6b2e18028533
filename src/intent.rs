//! Intent: what the agent says it is about to do, and whether the call may go out.
//!
//! [`CallArguments::parse`] reads what a call tool was given, [`Stated`] is the intent in whichever
//! form it came, and [`authorize`] is the gate: only a [`Permit`] opens the upstream door. The words
//! are checked first ([`Stated::check`]), so that a face can refuse a bad intent before it looks
//! the tool up. Pure; the catalog hands the tool in, the activity log takes the denial away.

pub mod arguments;
pub mod stated;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::tool::{Approval, Capability, SideEffect, StatedBy, Tool, ToolName};

pub use arguments::{ArgumentError, CallArguments};
pub use stated::{Intent, IntentError, Sensitivity, Stated};

/// The answer to the tool that this product does not have (FR-004).
pub const NO_CALL_TOOL: &str = "Tool 'call_tool' not found. Use call_tool_read, call_tool_write, \
     or call_tool_destructive with matching intent.operation_type. See retrieve_tools for \
     annotations and recommendations.";

/// `intent.operation_type` (FR-007), and with it the variant of the call tool (FR-001..003).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// `call_tool_read`
    Read,
    /// `call_tool_write`
    Write,
    /// `call_tool_destructive`
    Destructive,
}

impl Operation {
    /// All of them, from least to most.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Destructive];

    /// Its spelling in `intent.operation_type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Destructive => "destructive",
        }
    }

    /// The operation that `word` states, if it is one.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.as_str() == word)
    }

    /// The call tool for it.
    #[must_use]
    pub const fn variant(self) -> &'static str {
        match self {
            Self::Read => "call_tool_read",
            Self::Write => "call_tool_write",
            Self::Destructive => "call_tool_destructive",
        }
    }

    /// The operation of the call tool with this name, if it is one.
    #[must_use]
    pub fn of_tool(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.variant() == name)
    }

    /// The variant to call a tool with: `call_with` in search results (FR-023, CAP-5).
    #[must_use]
    pub const fn recommended(capability: Capability) -> Self {
        match capability.side_effect {
            SideEffect::None | SideEffect::Read => Self::Read,
            SideEffect::Write => Self::Write,
            SideEffect::Destructive => Self::Destructive,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The config section `intent_declaration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Settings {
    /// False: what a server's annotations forbid is warned about and goes out (FR-042). What the
    /// operator states in `capabilities` holds all the same: it is not the server's claim.
    pub strict_server_validation: bool,
    /// Whether the operation type must be stated.
    pub operation_type: Requirement,
}

impl Default for Settings {
    fn default() -> Self {
        Self { strict_server_validation: true, operation_type: Requirement::Required }
    }
}

/// Whether an intent must state its operation type; one that is stated must match either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Requirement {
    /// It must: two keys, both turned.
    #[default]
    Required,
    /// An absent one is taken from the variant.
    Inferred,
}

/// Leave to send one call. Made by [`authorize`] alone; the upstream asks for one.
#[derive(Clone, Debug)]
pub struct Permit {
    tool: Arc<Tool>,
    operation: Operation,
    warnings: Vec<Warning>,
}

impl Permit {
    /// The tool this permit is for.
    #[must_use]
    pub fn tool(&self) -> &Arc<Tool> {
        &self.tool
    }

    /// What the call may do: the variant, and the intent agreed with it.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// What is to be logged and recorded about this call, one decision each (ACT-1).
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

/// Why a call is refused. Its text is what the agent reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The intent is missing, unreadable, or does not match the variant.
    #[error(transparent)]
    Intent(#[from] IntentError),
    /// The tool is marked as doing more than the variant allows (FR-015..018, CAP-5).
    #[error(transparent)]
    Gate(#[from] Mismatch),
    /// The tool waits for a person (CAP-8).
    #[error("Tool '{0}' requires approval, which this version cannot ask for")]
    Approval(ToolName),
}

impl Denial {
    /// What was wrong; each face answers it in its own way.
    #[must_use]
    pub fn kind(&self) -> DenialKind {
        match self {
            Self::Intent(_) => DenialKind::Intent,
            Self::Gate(_) => DenialKind::Gate,
            Self::Approval(_) => DenialKind::Approval,
        }
    }
}

/// The kinds of [`Denial`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialKind {
    /// The caller's words: REST 400.
    Intent,
    /// The tool's marking: REST 403.
    Gate,
    /// A person is missing: REST 403.
    Approval,
}

/// What is remarkable about a call that goes out all the same. Its text is for log and record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// The server's annotation forbids it, and `strict_server_validation` is off (FR-042).
    #[error("{0}; allowed, because strict_server_validation is false")]
    Mismatch(Mismatch),
    /// The write variant on a tool that only reads.
    #[error("Tool '{tool}' is marked read-only by {by}, call_tool_read would do")]
    WriteOnReadOnly {
        /// The tool called.
        tool: ToolName,
        /// Who says that it only reads.
        by: StatedBy,
    },
    /// `approval: suggest` (CAP-8).
    #[error("Tool '{0}' suggests approval, and nobody was asked")]
    ApprovalSuggested(ToolName),
}

/// A tool does more than the variant it was called by allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Tool '{tool}' is marked {} by {by}, use {}", needed.as_str(), needed.variant())]
pub struct Mismatch {
    /// The tool called.
    pub tool: ToolName,
    /// The least variant that may call it.
    pub needed: Operation,
    /// Who marked it.
    pub by: StatedBy,
}

/// The gate: the two keys agree, and the tool's effective side effect allows the variant.
///
/// # Errors
/// Whatever [`Stated::check`] refuses, a tool marked as doing more than `variant` allows, a tool
/// that requires approval.
pub fn authorize(
    variant: Operation,
    stated: &Stated<'_>,
    tool: Arc<Tool>,
    settings: &Settings,
) -> Result<Permit, Denial> {
    stated.check(variant, settings)?;
    let mut warnings = Vec::new();
    let by = tool.side_effect_by;
    match mark(&tool, variant) {
        Mark::Fits => {}
        Mark::Less => warnings.push(Warning::WriteOnReadOnly { tool: tool.name.clone(), by }),
        Mark::More(needed) => {
            let mismatch = Mismatch { tool: tool.name.clone(), needed, by };
            match (by, settings.strict_server_validation) {
                (StatedBy::Server, false) => warnings.push(Warning::Mismatch(mismatch)),
                (StatedBy::Server, true) | (StatedBy::Operator, _) => return Err(mismatch.into()),
            }
        }
    }
    match tool.capability.approval {
        Approval::Auto => {}
        Approval::Suggest => warnings.push(Warning::ApprovalSuggested(tool.name.clone())),
        Approval::Required => return Err(Denial::Approval(tool.name.clone())),
    }
    Ok(Permit { tool, operation: variant, warnings })
}

/// How a tool's effective side effect stands to the variant it is called by.
enum Mark {
    Fits,
    /// It only reads, and is called to write.
    Less,
    /// It does more; this is the least variant that may call it.
    More(Operation),
}

fn mark(tool: &Tool, variant: Operation) -> Mark {
    match (variant, tool.capability.side_effect, tool.side_effect_by) {
        // FR-019: whatever the marking says.
        (Operation::Destructive, _, _) => Mark::Fits,
        (Operation::Read | Operation::Write, SideEffect::Destructive, _) => {
            Mark::More(Operation::Destructive)
        }
        (Operation::Write, SideEffect::None | SideEffect::Read, _) => Mark::Less,
        (Operation::Write, SideEffect::Write, _) => Mark::Fits,
        (Operation::Read, SideEffect::None | SideEffect::Read, _) => Mark::Fits,
        // FR-020: a derived write means that no hint says read-only or destructive: the agent is
        // trusted.
        (Operation::Read, SideEffect::Write, StatedBy::Server) => Mark::Fits,
        (Operation::Read, SideEffect::Write, StatedBy::Operator) => Mark::More(Operation::Write),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Policy;
    use crate::tool::{Annotations, CapabilityOverride, OutputSchema, Rules};
    use serde_json::value::RawValue;

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

    /// `Ok` holds the warnings, `Err` the denial.
    fn outcome(
        variant: Operation,
        stated: &Stated<'_>,
        tool: &Arc<Tool>,
        settings: &Settings,
    ) -> Result<Vec<String>, (DenialKind, String)> {
        match authorize(variant, stated, Arc::clone(tool), settings) {
            Ok(permit) => {
                assert_eq!(permit.operation(), variant);
                Ok(permit.warnings().iter().map(ToString::to_string).collect())
            }
            Err(denial) => Err((denial.kind(), denial.to_string())),
        }
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
            let settings = Settings { operation_type, ..Settings::default() };
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
                let required = outcome(variant, &missing, &tool, &Settings::default());
                assert_eq!(required, Err((DenialKind::Intent, text)));
                let inferred =
                    Settings { operation_type: Requirement::Inferred, ..Settings::default() };
                assert_eq!(
                    outcome(variant, &missing, &tool, &inferred),
                    outcome(variant, &stated(Some(variant.as_str()), true), &tool, &inferred),
                );
            }
        }
    }

    #[test]
    fn fr_042_without_strict_server_validation_a_mismatch_warns() {
        let lax = Settings { strict_server_validation: false, ..Settings::default() };
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
                &Settings::default(),
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
            outcome(Operation::Destructive, &destructive, &tool, &Settings::default())
        };
        let text = "Tool 'github:delete_repo' requires approval, which this version cannot ask for";
        assert_eq!(of("required"), Err((DenialKind::Approval, text.to_owned())));
        let text = "Tool 'github:delete_repo' suggests approval, and nobody was asked";
        assert_eq!(of("suggest"), Ok(vec![text.to_owned()]));
        assert_eq!(of("auto"), Ok(vec![]));
    }

    #[test]
    fn fr_023_call_with() {
        for (annotations, rules, variant) in [
            (READ_ONLY, "{}", "call_tool_read"),
            (DESTRUCTIVE, "{}", "call_tool_destructive"),
            (BOTH, "{}", "call_tool_destructive"),
            (NEITHER, "{}", "call_tool_write"),
            (NONE, "{}", "call_tool_write"),
            (DESTRUCTIVE, r#"{"*":{"side_effect":"none"}}"#, "call_tool_read"),
            (NONE, r#"{"*":{"side_effect":"destructive"}}"#, "call_tool_destructive"),
        ] {
            let operation = Operation::recommended(tool(annotations, rules).capability);
            assert_eq!(operation.variant(), variant, "{annotations} {rules}");
            assert_eq!(Operation::of_tool(variant), Some(operation));
        }
        assert_eq!(Operation::of_tool("call_tool"), None);
    }
}
