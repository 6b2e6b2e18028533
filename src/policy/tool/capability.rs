//! Capabilities of tools: side effect, approval, idempotence, exposure and sensitivity. Derived from annotations
//! (CAP-2), overridden by the operator's most specific pattern (CAP-3).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// Annotations as the server states them. Absent hints stay absent: MCP's defaults are deliberately not filled in
/// (FR-020).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Annotations {
    /// The hint `readOnlyHint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_hint: Option<bool>,
    /// The hint `destructiveHint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive_hint: Option<bool>,
    /// The hint `idempotentHint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent_hint: Option<bool>,
    /// The hint `openWorldHint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_world_hint: Option<bool>,
    /// The hint `privateHint` (SEP-1913).
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "lenient_bool")]
    pub private_hint: Option<bool>,
    /// The hint `sensitiveHint` (SEP-1913).
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "lenient_hint")]
    pub sensitive_hint: Option<SensitiveHint>,
}

/// Side effect of a call (CAP-1), from least to most severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SideEffect {
    /// No effect outside the call.
    None,
    /// Reads state.
    Read,
    /// Creates or updates state.
    Write,
    /// Deletes or permanently modifies state.
    Destructive,
}

/// Approval required before a call (CAP-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// No approval is required.
    Auto,
    /// No approval is required, but the record carries a warning.
    Suggest,
    /// A person has to approve the call.
    Required,
}

/// Effective capability of a tool (CAP-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Capability {
    pub side_effect: SideEffect,
    /// If false, calls run one after another (CAP-6).
    pub parallel_safe: bool,
    pub approval: Approval,
    /// If true, a call is retried once if no byte of its response arrived (CAP-7).
    pub idempotent: bool,
}

impl Capability {
    /// Capability derived from annotations alone (CAP-2), cautious where they are absent.
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

    /// Effective capability of a tool and the source of its side effect: derived, then overridden by every matching
    /// rule, least specific first (CAP-3).
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

/// Whether a failed call may be retried, and the source of this information (CAP-7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idempotence {
    No,
    /// Derived, because the tool is read-only (CAP-2). Not retried if the call may have ended the server.
    Derived,
    /// Stated by the server (`idempotentHint`) or the operator.
    Stated,
}

impl Idempotence {
    /// Idempotence of a tool; agrees with [`Capability::idempotent`].
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

/// Operator override; absent fields are derived (CAP-3).
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
    /// Sensitivity of the tool's results ([`Exposure`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<Sensitivity>,
    /// Whether the tool reaches the open world ([`Exposure`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_world: Option<bool>,
}

/// Source of a tool's side effect, named by denials (CAP-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatedBy {
    Server,
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

/// Exposure of a tool: the operator's override, otherwise `openWorldHint` (default true) and the SEP-1913 hints
/// `privateHint` and `sensitiveHint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// Minimum sensitivity of the tool's results, if known.
    pub sensitivity: Option<Sensitivity>,
    /// Whether the tool reaches the open world.
    pub world: World,
}

/// Reach of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    Closed,
    /// Strangers may write its results and read its arguments.
    Open,
}

impl Exposure {
    /// Exposure derived from annotations, then overridden by every matching rule, least specific first (CAP-3).
    pub fn effective(
        annotations: Annotations,
        rules: &Rules<CapabilityOverride>,
        name: &str,
    ) -> Self {
        let mut exposure = Self::derive(annotations);
        for stated in rules.matching(name) {
            exposure.sensitivity = stated.sensitivity.or(exposure.sensitivity);
            exposure.world = match stated.open_world {
                Some(true) => World::Open,
                Some(false) => World::Closed,
                None => exposure.world,
            };
        }
        exposure
    }

    /// Exposure of a server's resources, prompts and completions: the operator's override for the whole server (`*`);
    /// otherwise the open world.
    pub fn of_offers(rules: &Rules<CapabilityOverride>) -> Self {
        // The empty name matches only patterns that match every name.
        Self::effective(Annotations::default(), rules, "")
    }

    fn derive(annotations: Annotations) -> Self {
        let sensitivity = match (annotations.private_hint, annotations.sensitive_hint) {
            (Some(true), _) | (_, Some(SensitiveHint::Medium | SensitiveHint::High)) => {
                Some(Sensitivity::Private)
            }
            (Some(false) | None, Some(SensitiveHint::Low)) => Some(Sensitivity::Internal),
            (Some(false) | None, None) => None,
        };
        let world = match annotations.open_world_hint {
            Some(false) => World::Closed,
            // The protocol's default (MCP 2025-11-25 §ToolAnnotations).
            Some(true) | None => World::Open,
        };
        Self { sensitivity, world }
    }
}

/// Sensitivity of data: `intent.data_sensitivity` (FR-009), and of a tool's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sensitivity {
    Public,
    Internal,
    Private,
    /// Not known to the agent.
    Unknown,
}

impl Sensitivity {
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "public" => Self::Public,
            "internal" => Self::Internal,
            "private" => Self::Private,
            "unknown" => Self::Unknown,
            _ => return None,
        })
    }

    /// Rank from 1: unknown is above public and below the rest.
    pub const fn rank(self) -> u8 {
        match self {
            Self::Public => 1,
            Self::Unknown => 2,
            Self::Internal => 3,
            Self::Private => 4,
        }
    }

    pub const fn of_rank(rank: u8) -> Option<Self> {
        Some(match rank {
            1 => Self::Public,
            2 => Self::Unknown,
            3 => Self::Internal,
            4 => Self::Private,
            _ => return None,
        })
    }

    pub(crate) fn higher(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let rank = |it: Option<Self>| it.map_or(0, Self::rank);
        if rank(one) >= rank(other) { one } else { other }
    }
}

/// `sensitiveHint` (SEP-1913). Unknown values count as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SensitiveHint {
    Low,
    Medium,
    High,
}

/// Reads the hint; any other value counts as absent.
pub(super) fn lenient_hint<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<SensitiveHint>, D::Error> {
    let hint = Option::<serde_json::Value>::deserialize(from)?;
    Ok(match hint.as_ref().and_then(serde_json::Value::as_str) {
        Some("low") => Some(SensitiveHint::Low),
        Some("medium") => Some(SensitiveHint::Medium),
        Some("high") => Some(SensitiveHint::High),
        Some(_) | None => None,
    })
}

/// Reads `privateHint`; any other value counts as absent.
pub(super) fn lenient_bool<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    let hint = Option::<serde_json::Value>::deserialize(from)?;
    Ok(hint.as_ref().and_then(serde_json::Value::as_bool))
}

/// A name or a pattern in which `*` matches any run of characters, including none.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Box<str>")]
pub struct Pattern(Box<str>);

impl From<Box<str>> for Pattern {
    fn from(text: Box<str>) -> Self {
        Self(text)
    }
}

impl Pattern {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the whole name matches.
    pub fn matches(&self, name: &str) -> bool {
        let mut pieces = self.0.split('*');
        let Some(mut rest) = pieces.next().and_then(|head| name.strip_prefix(head)) else {
            return false;
        };
        let Some(tail) = pieces.next_back() else { return rest.is_empty() };
        for piece in pieces {
            let Some((_, after)) = rest.split_once(piece) else { return false };
            rest = after;
        }
        rest.ends_with(tail)
    }

    /// Sort key from vague to exact: names rank above patterns, then patterns by their number of literal characters.
    /// The text breaks ties, so that the order does not depend on the file's order.
    fn specificity(&self) -> (bool, usize, &str) {
        let stars = self.0.matches('*').count();
        (stars == 0, self.0.len() - stars, &self.0)
    }
}

/// Operator rules by tool name or pattern; in the config an object keyed by pattern. The most specific match wins.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "BTreeMap<Box<str>, T>", bound = "T: Deserialize<'de>")]
pub struct Rules<T>(Vec<(Pattern, T)>);

impl<T> Default for Rules<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> From<BTreeMap<Box<str>, T>> for Rules<T> {
    fn from(map: BTreeMap<Box<str>, T>) -> Self {
        let mut rules: Vec<_> = map.into_iter().map(|(key, rule)| (Pattern(key), rule)).collect();
        rules.sort_by(|(a, _), (b, _)| a.specificity().cmp(&b.specificity()));
        Self(rules)
    }
}

impl<T> Rules<T> {
    /// Rules that match a name, the most specific last.
    pub fn matching<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a T> {
        self.0.iter().filter(|(pattern, _)| pattern.matches(name)).map(|(_, rule)| rule)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every pattern and its rule, least specific first.
    pub fn iter(&self) -> impl Iterator<Item = (&Pattern, &T)> {
        self.0.iter().map(|(pattern, rule)| (pattern, rule))
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
    fn cap_7_idempotence_is_stated_or_derived() {
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
    fn cap_3_override_without_side_effect_keeps_the_derived_one() {
        let rules = rules(r#"{"*": {"approval": "suggest"}}"#);
        let (capability, by) = Capability::effective(hints(Some(true), None, None), &rules, "t");
        assert_eq!((capability.side_effect, by), (SideEffect::Read, StatedBy::Server));
    }
}

#[cfg(test)]
mod exposure_tests {
    use super::*;

    fn exposure(annotations: &str, rules: &str) -> (Option<Sensitivity>, World) {
        let annotations: Annotations = serde_json::from_str(annotations).unwrap();
        let rules = serde_json::from_str(rules).unwrap();
        let Exposure { sensitivity, world } = Exposure::effective(annotations, &rules, "get_mail");
        (sensitivity, world)
    }

    #[test]
    fn resources_use_the_operators_override_for_the_whole_server() {
        use Sensitivity::Private;
        use World::{Closed, Open};
        for (rules, sensitivity, world) in [
            ("{}", None, Open),
            (r#"{"*": {"open_world": false, "sensitivity": "private"}}"#, Some(Private), Closed),
            (r#"{"get_*": {"open_world": false}, "read": {"open_world": false}}"#, None, Open),
        ] {
            let rules = serde_json::from_str(rules).unwrap();
            assert_eq!(Exposure::of_offers(&rules), Exposure { sensitivity, world });
        }
    }

    #[test]
    fn exposure_stated_by_the_operator_overrides_the_server() {
        use Sensitivity::{Internal, Private, Public};
        use World::{Closed, Open};
        let none = "{}";
        for (annotations, rules, expected) in [
            (none, none, (None, Open)),
            (r#"{"openWorldHint": false}"#, none, (None, Closed)),
            (r#"{"privateHint": true}"#, none, (Some(Private), Open)),
            (r#"{"privateHint": false, "sensitiveHint": "low"}"#, none, (Some(Internal), Open)),
            (r#"{"sensitiveHint": "medium"}"#, none, (Some(Private), Open)),
            (r#"{"sensitiveHint": "very", "privateHint": "yes"}"#, none, (None, Open)),
            (r#"{"sensitiveHint": {"a": 1}, "privateHint": null}"#, none, (None, Open)),
            (
                r#"{"privateHint": true}"#,
                r#"{"*": {"sensitivity": "internal", "open_world": false},
                    "get_*": {"sensitivity": "public"}}"#,
                (Some(Public), Closed),
            ),
            (r#"{"openWorldHint": false}"#, r#"{"get_mail": {"open_world": true}}"#, (None, Open)),
        ] {
            assert_eq!(exposure(annotations, rules), expected, "{annotations} {rules}");
        }
    }
}

#[cfg(test)]
mod sensitivity_tests {
    use super::*;

    #[test]
    fn higher_of_two_sensitivities_is_the_more_private() {
        for rank in 0..6 {
            assert!(Sensitivity::of_rank(rank).is_none_or(|it| it.rank() == rank));
        }
        let (public, private) = (Some(Sensitivity::Public), Some(Sensitivity::Private));
        assert_eq!(Sensitivity::higher(public, private), private);
        assert_eq!(Sensitivity::higher(private, public), private);
        assert_eq!(Sensitivity::higher(None, public), public);
    }
}

#[cfg(test)]
mod rules_tests {
    use super::*;

    #[test]
    fn pattern_matches_whole_names() {
        for (pattern, name, fits) in [
            ("get", "get", true),
            ("get", "gets", false),
            ("get", "forget", false),
            ("get_*", "get_", true),
            ("get_*", "get_a", true),
            ("*", "", true),
            ("*_all", "drop_all", true),
            ("*_all", "drop_all_", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "a__b__c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("**x", "xx", true),
            ("a*é*", "aé", true),
        ] {
            assert_eq!(Pattern::from(Box::from(pattern)).matches(name), fits, "{pattern} {name}");
        }
    }
}
