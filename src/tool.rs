//! A tool of an upstream: its name, what its server claims (annotations), what may be relied on
//! (capability), and how its answers are judged.
//!
//! Pure values, and the two rules that make a capability: derived from annotations where the
//! operator says nothing (CAP-2), overridden by the most specific pattern where he does (CAP-3).
//! Who discovers tools and who calls them is not known here.

pub mod parameter_headers;
pub mod server_id;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::output::Policy;
use crate::schema::compile::Schema;
use crate::tool::parameter_headers::ParameterHeaders;

/// `server:tool`, the name under which an agent calls a tool (FR-005).
///
/// The server's name holds no colon, so the first one separates.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ToolName {
    /// The server's name in the config.
    pub server: Arc<str>,
    /// The tool's name as its server gave it.
    pub tool: Arc<str>,
}

impl ToolName {
    /// Splits at the first colon; `None` without one or with an empty half.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (server, tool) = Self::split(name)?;
        Some(Self { server: server.into(), tool: tool.into() })
    }

    /// The two halves of a name.
    #[must_use]
    pub fn split(name: &str) -> Option<(&str, &str)> {
        name.split_once(':').filter(|(server, tool)| !server.is_empty() && !tool.is_empty())
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.tool)
    }
}

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
    /// False: calls must run one after another (CAP-6, later).
    pub parallel_safe: bool,
    /// Who must agree.
    pub approval: Approval,
    /// True: a call may be retried once if no byte of its answer arrived (CAP-7, later).
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
}

/// A tool's name, or a pattern in which `*` stands for any run of characters, none included.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Box<str>")]
pub struct Pattern(Box<str>);

impl From<Box<str>> for Pattern {
    fn from(text: Box<str>) -> Self {
        Self(text)
    }
}

impl Pattern {
    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if the whole of `name` fits.
    #[must_use]
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

    /// Orders patterns from vague to exact: a name before every pattern, then the one with more
    /// letters; the text breaks ties, so that the order never depends on the file's.
    fn specificity(&self) -> (bool, usize, &str) {
        let stars = self.0.matches('*').count();
        (stars == 0, self.0.len() - stars, &self.0)
    }
}

/// What the operator says of tools, by name or pattern; in the config an object whose keys are
/// the patterns.
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
    /// The rules that apply to the tool called `name`, the most specific one last.
    pub fn matching<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a T> {
        self.0.iter().filter(|(pattern, _)| pattern.matches(name)).map(|(_, rule)| rule)
    }

    /// Every pattern and its rule, the vaguest first.
    pub fn iter(&self) -> impl Iterator<Item = (&Pattern, &T)> {
        self.0.iter().map(|(pattern, rule)| (pattern, rule))
    }
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

/// The declared output schema of a tool and what became of it.
#[derive(Clone, Debug)]
pub enum OutputSchema {
    /// None declared: nothing is judged (FR-A7).
    Absent,
    /// Compiled and ready.
    Compiled(Arc<Schema>),
    /// Declared, but it cannot be used; the reason is one line (FR-A9).
    Unusable(Arc<str>),
    /// Declared, and being compiled; the outcome is stored here. Calls whose answers are to be
    /// validated wait for it.
    Compiling(Arc<OnceLock<OutputSchema>>),
}

impl OutputSchema {
    /// Its present state: the outcome instead of [`Compiling`](Self::Compiling), once there is one.
    #[must_use]
    pub fn now(&self) -> &Self {
        match self {
            Self::Compiling(awaited) => awaited.get().unwrap_or(self),
            Self::Absent | Self::Compiled(_) | Self::Unusable(_) => self,
        }
    }
}

/// A tool in the catalog. Immutable; a new discovery makes a new one.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its full name.
    pub name: ToolName,
    /// `title`, if the server gave one.
    pub title: Option<Box<str>>,
    /// `description`, empty if the server gave none.
    pub description: Box<str>,
    /// `inputSchema`, the server's own bytes.
    pub input_schema: Box<RawValue>,
    /// `outputSchema`, the server's own bytes, if declared (FR-A1).
    pub output_schema: Option<Box<RawValue>>,
    /// `annotations`, the server's own bytes, if declared (FR-022).
    pub annotations_raw: Option<Box<RawValue>>,
    /// The hints read from `annotations_raw`.
    pub annotations: Annotations,
    /// The effective capability (CAP-2, CAP-3).
    pub capability: Capability,
    /// Who stated the effective side effect.
    pub side_effect_by: StatedBy,
    /// The schema its answers are judged by.
    pub schema: OutputSchema,
    /// How its answers are judged: mode and limits (FR-A4).
    pub policy: Policy,
    /// Which of its parameters HTTP headers repeat; `None` if none, or if the schema says it in an
    /// invalid way.
    pub parameter_headers: Option<Arc<ParameterHeaders>>,
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
            open_world_hint: None,
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
    fn cap_3_a_rule_without_a_side_effect_leaves_it_the_servers() {
        let rules = rules(r#"{"*": {"approval": "suggest"}}"#);
        let (capability, by) = Capability::effective(hints(Some(true), None, None), &rules, "t");
        assert_eq!((capability.side_effect, by), (SideEffect::Read, StatedBy::Server));
    }

    #[test]
    fn patterns() {
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

    #[test]
    fn tool_names() {
        let name = ToolName::parse("github:a:b").unwrap();
        assert_eq!((&*name.server, &*name.tool), ("github", "a:b"));
        for bad in ["", "x", ":x", "x:"] {
            assert_eq!(ToolName::parse(bad), None, "{bad}");
        }
    }
}
