//! What the operator says of tools: which are offered, what they may do (CAP-3), how their answers
//! (FR-A4) and the arguments of their calls are judged.
//!
//! Owns those parts of a server's block in the config and how their layers add up. How the server
//! is reached is not here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::on_change::ReviewSettings;
use super::result_limits::ResultLimitRules;
use crate::output::{MissingContent, Mode, Policy};
use crate::schema;
use crate::tool::{CapabilityOverride, InputPolicy, Pattern, ResultLimit, Rules};

/// The bounds of `max_depth` (FR-A6).
pub const MAX_DEPTH: std::ops::RangeInclusive<u32> = 1..=120;

/// What the catalog needs to know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// How answers are judged where no server and no tool says otherwise.
    pub policy: Policy,
    /// The same of arguments.
    pub input: InputPolicy,
    /// When results are kept back where no server and no tool says otherwise.
    pub result_limit: ResultLimit,
    /// How schemas are meant.
    pub schemas: schema::compile::Settings,
    /// The configured servers; the catalog knows no others.
    pub servers: BTreeMap<Arc<str>, ServerSettings>,
    /// What is done about definitions that are new, another, or suspect (config section `catalog`).
    pub review: ReviewSettings,
    /// Where discovered sets are kept over a restart (FR-A1); `None` keeps them in memory only.
    pub folder: Option<PathBuf>,
}

/// The catalog's part of one server's block in `mcpServers`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServerSettings {
    /// Names or patterns of the tools on offer; absent: all, empty: none.
    pub enabled_tools: Option<Vec<Pattern>>,
    /// Names or patterns of tools that are not on offer, enabled or not.
    pub disabled_tools: Vec<Pattern>,
    /// Capabilities by tool name or pattern; `*` is the whole server.
    pub capabilities: Rules<CapabilityOverride>,
    /// How the answers of its tools are judged.
    pub output_validation: OutputRules,
    /// How the arguments of their calls are judged.
    pub input_validation: InputRules,
    /// When their results are kept back.
    pub result_limit: ResultLimitRules,
}

/// `input_validation` of one server: for all its tools, and by tool name or pattern.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct InputRules {
    /// See [`InputPolicy::mode`].
    pub mode: Option<Mode>,
    /// The same by tool name or pattern.
    pub tools: Rules<InputOverride>,
}

/// What the operator says of how arguments are judged; absent, it is the next layer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct InputOverride {
    /// See [`InputPolicy::mode`].
    pub mode: Option<Mode>,
}

/// `output_validation` of one server: for all its tools, and by tool name or pattern.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OutputRules {
    /// See [`PolicyOverride::mode`]; so for the others.
    pub mode: Option<Mode>,
    #[expect(missing_docs, reason = "see the override")]
    pub max_bytes: Option<u64>,
    #[serde(deserialize_with = "depth")]
    #[expect(missing_docs, reason = "see the override")]
    pub max_depth: Option<u32>,
    #[expect(missing_docs, reason = "see the override")]
    pub missing_structured_content: Option<MissingContent>,
    #[expect(missing_docs, reason = "see the override")]
    pub max_held_bytes: Option<u64>,
    /// The same by tool name or pattern.
    pub tools: Rules<PolicyOverride>,
}

/// What the operator says of how answers are judged; absent fields are the next layer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PolicyOverride {
    /// See [`Policy::mode`].
    pub mode: Option<Mode>,
    /// See [`Policy::max_bytes`].
    pub max_bytes: Option<u64>,
    /// See [`Policy::max_depth`].
    #[serde(deserialize_with = "depth")]
    pub max_depth: Option<u32>,
    /// See [`Policy::missing`].
    pub missing_structured_content: Option<MissingContent>,
    /// See [`Policy::max_held_bytes`].
    pub max_held_bytes: Option<u64>,
}

impl ServerSettings {
    /// True if the tool called `name` is on offer.
    #[must_use]
    pub fn offers(&self, name: &str) -> bool {
        let listed = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        self.enabled_tools.as_deref().is_none_or(listed) && !listed(&self.disabled_tools)
    }

    /// How the answers of the tool called `name` are judged, on top of `base` (FR-A4).
    #[must_use]
    pub fn policy(&self, base: Policy, name: &str) -> Policy {
        let rules = &self.output_validation;
        rules
            .tools
            .matching(name)
            .fold(rules.of_the_server().over(base), |policy, rule| rule.over(policy))
    }

    /// How the arguments for the tool called `name` are judged, on top of `base`.
    #[must_use]
    pub fn input(&self, base: InputPolicy, name: &str) -> InputPolicy {
        let rules = &self.input_validation;
        let stated = rules.tools.matching(name).filter_map(|rule| rule.mode).last();
        InputPolicy { mode: stated.or(rules.mode).unwrap_or(base.mode) }
    }
}

impl OutputRules {
    fn of_the_server(&self) -> PolicyOverride {
        PolicyOverride {
            mode: self.mode,
            max_bytes: self.max_bytes,
            max_depth: self.max_depth,
            missing_structured_content: self.missing_structured_content,
            max_held_bytes: self.max_held_bytes,
        }
    }
}

impl PolicyOverride {
    /// `base` with what is stated here.
    #[must_use]
    pub fn over(&self, base: Policy) -> Policy {
        Policy {
            mode: self.mode.unwrap_or(base.mode),
            max_bytes: self.max_bytes.unwrap_or(base.max_bytes),
            max_depth: self.max_depth.unwrap_or(base.max_depth),
            missing: self.missing_structured_content.unwrap_or(base.missing),
            max_held_bytes: self.max_held_bytes.unwrap_or(base.max_held_bytes),
        }
    }
}

fn depth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let depth = Option::<u32>::deserialize(deserializer)?;
    match depth {
        Some(depth) if !MAX_DEPTH.contains(&depth) => Err(D::Error::custom(format_args!(
            "must be {} to {}",
            MAX_DEPTH.start(),
            MAX_DEPTH.end()
        ))),
        Some(_) | None => Ok(depth),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(json: &str) -> ServerSettings {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn fr_a4_policies_add_up_from_server_to_pattern_to_tool() {
        let settings = settings(
            r#"{"output_validation": {"mode": "strict", "max_depth": 10, "tools": {
                "read_*": {"mode": "off", "max_bytes": 7},
                "read_file": {"mode": "warn"}}}}"#,
        );
        let of = |name| settings.policy(Policy::default(), name);
        let base = Policy { mode: Mode::Strict, max_depth: 10, ..Policy::default() };
        assert_eq!(of("write"), base);
        assert_eq!(of("read_dir"), Policy { mode: Mode::Off, max_bytes: 7, ..base });
        assert_eq!(of("read_file"), Policy { mode: Mode::Warn, max_bytes: 7, ..base });
    }

    #[test]
    fn arguments_are_judged_as_the_most_specific_says() {
        let settings = settings(
            r#"{"input_validation": {"mode": "warn", "tools": {
                "read_*": {"mode": "off"}, "read_file": {}, "read_dir": {"mode": "strict"}}}}"#,
        );
        let of = |name| settings.input(InputPolicy::default(), name).mode;
        assert_eq!(of("write"), Mode::Warn);
        assert_eq!(of("read_file"), Mode::Off);
        assert_eq!(of("read_dir"), Mode::Strict);
        let unsaid = ServerSettings::default().input(InputPolicy::default(), "write");
        assert_eq!(unsaid.mode, Mode::Strict);
    }

    #[test]
    fn fr_a6_a_depth_out_of_bounds_is_refused() {
        for (depth, fits) in [(0, false), (1, true), (120, true), (121, false)] {
            let json = format!(r#"{{"output_validation": {{"max_depth": {depth}}}}}"#);
            assert_eq!(serde_json::from_str::<ServerSettings>(&json).is_ok(), fits, "{depth}");
        }
    }

    #[test]
    fn tools_on_offer() {
        for (json, offered) in [
            ("{}", [true, true]),
            (r#"{"enabled_tools": ["read_*"]}"#, [true, false]),
            (r#"{"enabled_tools": []}"#, [false, false]),
            (r#"{"disabled_tools": ["delete_repo"]}"#, [true, false]),
            (r#"{"enabled_tools": ["*"], "disabled_tools": ["read_*"]}"#, [false, true]),
        ] {
            let settings = settings(json);
            assert_eq!(
                ["read_file", "delete_repo"].map(|name| settings.offers(name)),
                offered,
                "{json}"
            );
        }
    }
}
