//! What a call to a tool may change, and who stated it: derived from annotations where the operator says
//! nothing (CAP-2), overridden by the most specific pattern where he does (CAP-3).

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::rules::Rules;
use super::sensitivity::{SensitiveHint, Sensitivity, lenient, lenient_bool};

/// What a server claims about a tool. Hints that are absent stay absent: the MCP defaults are
/// deliberately not filled in (FR-020).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Annotations {
    /// `readOnlyHint`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_hint: Option<bool>,
    /// `destructiveHint`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive_hint: Option<bool>,
    /// `idempotentHint`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent_hint: Option<bool>,
    /// `openWorldHint`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_world_hint: Option<bool>,
    /// `privateHint` (SEP-1913)
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "lenient_bool")]
    pub private_hint: Option<bool>,
    /// `sensitiveHint` (SEP-1913)
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "lenient")]
    pub sensitive_hint: Option<SensitiveHint>,
}

/// What a call to the tool may change (CAP-1), from least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SideEffect {
    /// Nothing outside the call.
    None,
    /// Reads state.
    Read,
    /// Creates or updates state.
    Write,
    /// Deletes or permanently modifies state.
    Destructive,
}

/// Who must agree before a call goes out (CAP-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// Nobody.
    Auto,
    /// Nobody, but the record carries a warning.
    Suggest,
    /// A person. Refused by this version, which cannot ask.
    Required,
}

/// What the engine may rely on (CAP-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Capability {
    /// What a call may change.
    pub side_effect: SideEffect,
    /// False: calls run one after another (CAP-6).
    pub parallel_safe: bool,
    /// Who must agree.
    pub approval: Approval,
    /// True: a call is retried once if no byte of its answer arrived (CAP-7).
    pub idempotent: bool,
}

impl Capability {
    /// What follows from the annotations alone (CAP-2), cautious where they say nothing.
    #[must_use]
    pub fn derive(annotations: Annotations) -> Self {
        let destructive = annotations.destructive_hint == Some(true);
        let read_only = annotations.read_only_hint == Some(true);
        let (side_effect, harmless) = match (destructive, read_only) {
            (true, _) => (SideEffect::Destructive, false),
            (false, true) => (SideEffect::Read, true),
            (false, false) => (SideEffect::Write, false),
        };
        Self {
            side_effect,
            parallel_safe: true,
            approval: Approval::Auto,
            idempotent: harmless || annotations.idempotent_hint == Some(true),
        }
    }

    /// The effective capability of the tool called `name`, and who stated its side effect: the
    /// derived one, then every matching rule, least specific first (CAP-3).
    #[must_use]
    pub fn effective(
        annotations: Annotations,
        rules: &Rules<CapabilityOverride>,
        name: &str,
    ) -> (Self, StatedBy) {
        let mut by = StatedBy::Server;
        let mut capability = Self::derive(annotations);
        for stated in rules.matching(name) {
            if let Some(side_effect) = stated.side_effect {
                capability.side_effect = side_effect;
                by = StatedBy::Operator;
            }
            capability.parallel_safe = stated.parallel_safe.unwrap_or(capability.parallel_safe);
            capability.approval = stated.approval.unwrap_or(capability.approval);
            capability.idempotent = stated.idempotent.unwrap_or(capability.idempotent);
        }
        (capability, by)
    }
}

/// Whether a call may be made once more, and who says so (CAP-7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idempotence {
    /// It may not.
    No,
    /// It follows from its being read-only (CAP-2). A call that may itself have ended its server is not made again.
    Derived,
    /// The server (`idempotentHint`) or the operator states it.
    Stated,
}

impl Idempotence {
    /// That of the tool called `name`; it agrees with [`Capability::idempotent`].
    #[must_use]
    pub fn effective(
        annotations: Annotations,
        rules: &Rules<CapabilityOverride>,
        name: &str,
    ) -> Self {
        let stated = rules.matching(name).filter_map(|stated| stated.idempotent).last();
        match (stated, annotations.idempotent_hint) {
            (Some(true), _) | (None, Some(true)) => Self::Stated,
            (Some(false), _) => Self::No,
            (None, Some(false) | None) if Capability::derive(annotations).idempotent => {
                Self::Derived
            }
            (None, Some(false) | None) => Self::No,
        }
    }
}

/// What the operator states about a tool; absent fields are derived (CAP-3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct CapabilityOverride {
    /// See [`Capability::side_effect`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub side_effect: Option<SideEffect>,
    /// See [`Capability::parallel_safe`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_safe: Option<bool>,
    /// See [`Capability::approval`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// See [`Capability::idempotent`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// The sensitivity of what the tool gives ([`Exposure`](super::Exposure)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<Sensitivity>,
    /// Whether it reaches beyond its server ([`Exposure`](super::Exposure)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_world: Option<bool>,
}

/// Who said what a tool's side effect is: the gate's texts name them (CAP-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatedBy {
    /// Derived from the server's annotations, or from their absence.
    Server,
    /// The operator's config.
    Operator,
}

impl fmt::Display for StatedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "server",
            Self::Operator => "operator",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(
        read: Option<bool>,
        destructive: Option<bool>,
        idempotent: Option<bool>,
    ) -> Annotations {
        Annotations {
            read_only_hint: read,
            destructive_hint: destructive,
            idempotent_hint: idempotent,
            ..Annotations::default()
        }
    }

    fn rules(json: &str) -> Rules<CapabilityOverride> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn cap_2_capability_is_derived_from_the_hints() {
        use SideEffect::{Destructive, Read, Write};
        let (yes, no) = (Some(true), Some(false));
        for (annotations, side_effect, idempotent) in [
            (hints(None, None, None), Write, false),
            (hints(None, None, yes), Write, true),
            (hints(no, no, no), Write, false),
            (hints(yes, None, None), Read, true),
            (hints(yes, no, None), Read, true),
            (hints(None, yes, None), Destructive, false),
            (hints(None, yes, yes), Destructive, true),
            (hints(yes, yes, None), Destructive, false),
        ] {
            let expected = Capability {
                side_effect,
                parallel_safe: true,
                approval: Approval::Auto,
                idempotent,
            };
            assert_eq!(Capability::derive(annotations), expected, "{annotations:?}");
        }
    }

    #[test]
    fn cap_3_the_most_specific_rule_wins_field_by_field() {
        let rules = rules(
            r#"{"delete_repo": {"side_effect": "write"},
                "*": {"approval": "suggest", "idempotent": true, "side_effect": "read"},
                "delete_*": {"side_effect": "destructive", "approval": "required"}}"#,
        );
        let of = |name| Capability::effective(Annotations::default(), &rules, name);
        let (any, by) = of("get_repo");
        assert_eq!(
            (any.side_effect, any.approval, by),
            (SideEffect::Read, Approval::Suggest, StatedBy::Operator)
        );
        assert!(any.idempotent);
        let (pattern, _) = of("delete_file");
        assert_eq!(
            (pattern.side_effect, pattern.approval),
            (SideEffect::Destructive, Approval::Required)
        );
        let (exact, _) = of("delete_repo");
        assert_eq!((exact.side_effect, exact.approval), (SideEffect::Write, Approval::Required));
    }

    #[test]
    fn cap_7_whether_a_call_may_be_made_again_is_stated_or_derived() {
        let rules: Rules<CapabilityOverride> =
            serde_json::from_str(r#"{"yes_*":{"idempotent":true},"no_*":{"idempotent":false}}"#)
                .unwrap();
        use Idempotence::{Derived, No, Stated};
        for (read_only, destructive, idempotent, plain) in [
            (Some(true), None, None, Derived),
            (Some(true), None, Some(false), Derived),
            (Some(true), None, Some(true), Stated),
            (None, None, Some(true), Stated),
            (None, None, None, No),
            (Some(true), Some(true), None, No),
            (None, Some(true), Some(true), Stated),
        ] {
            let annotations = hints(read_only, destructive, idempotent);
            for (name, expected) in [("t", plain), ("yes_t", Stated), ("no_t", No)] {
                let is = Idempotence::effective(annotations, &rules, name);
                assert_eq!(is, expected, "{annotations:?} {name}");
                let (capability, _) = Capability::effective(annotations, &rules, name);
                assert_eq!(capability.idempotent, is != No, "{annotations:?} {name}");
            }
        }
    }

    #[test]
    fn cap_3_a_rule_without_a_side_effect_leaves_it_the_servers() {
        let rules = rules(r#"{"*": {"approval": "suggest"}}"#);
        let (capability, by) = Capability::effective(hints(Some(true), None, None), &rules, "t");
        assert_eq!((capability.side_effect, by), (SideEffect::Read, StatedBy::Server));
    }
}
