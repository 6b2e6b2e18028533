//! What a tool deals in: the sensitivity of what it gives, and whether it reaches beyond its server.
//!
//! The operator's word counts; where he says nothing, the server's annotations do: `openWorldHint`, whose default in
//! the protocol is true, and `privateHint` and `sensitiveHint` of the proposal SEP-1913.

use super::capability::{Annotations, CapabilityOverride};
use super::rules::Rules;
use super::sensitivity::{SensitiveHint, Sensitivity};

/// What a tool deals in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// The least sensitivity of what it gives, if any is known.
    pub sensitivity: Option<Sensitivity>,
    /// Whether it reaches beyond its server.
    pub world: World,
}

/// Whom a tool reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    /// Its server alone.
    Closed,
    /// Anyone: what comes from it may have been written by a stranger, what goes to it may be read by one.
    Open,
}

impl Exposure {
    /// What follows from the annotations, and over it every matching rule, least specific first (CAP-3).
    #[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;

    fn exposure(annotations: &str, rules: &str) -> (Option<Sensitivity>, World) {
        let annotations: Annotations = serde_json::from_str(annotations).unwrap();
        let rules = serde_json::from_str(rules).unwrap();
        let Exposure { sensitivity, world } = Exposure::effective(annotations, &rules, "get_mail");
        (sensitivity, world)
    }

    #[test]
    fn what_a_tool_deals_in_is_the_operators_word_then_the_servers() {
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
