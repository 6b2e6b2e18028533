//! Operator settings of tools: filters, capabilities (CAP-3), validation of results (FR-A4) and of arguments, and
//! result limits.
//!
//! This module owns these parts of a server's config, and the rules for combining the layers of each setting. Transport
//! settings are elsewhere.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::grade::ReviewSettings;
use mcpproxy_policy::tool::{self, ResultLimit};
use mcpproxy_policy::tool::{CapabilityOverride, InputMode, InputPolicy, Pattern, Rules};
use mcpproxy_schema as schema;
use mcpproxy_schema::output::{MissingContent, Mode, Policy};

/// Range of `max_depth` (FR-A6).
pub const MAX_DEPTH: std::ops::RangeInclusive<u32> = 1..=120;

/// Settings of the catalog.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Default validation of results.
    pub policy: Policy,
    /// Default validation of arguments.
    pub input: InputPolicy,
    /// Default result limit.
    pub result_limit: ResultLimit,
    /// Interpretation of schemas.
    pub schemas: schema::compile::Settings,
    /// Configured servers.
    pub servers: BTreeMap<Arc<str>, ServerSettings>,
    /// Review of new, changed and suspicious definitions (config section `catalog`).
    pub review: ReviewSettings,
    /// Folder of stored sets (FR-A1); `None` keeps them in memory only.
    pub folder: Option<PathBuf>,
}

/// Part of a server in `mcpServers` that the catalog uses.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServerSettings {
    /// Offered tools by name or pattern. If absent, all tools are offered; if empty, none.
    pub enabled_tools: Option<Vec<Pattern>>,
    /// Tools excluded by name or pattern, even if enabled.
    pub disabled_tools: Vec<Pattern>,
    /// Capabilities by tool name or pattern; `*` is the whole server.
    pub capabilities: Rules<CapabilityOverride>,
    /// Validation of results.
    pub output_validation: OutputRules,
    /// Validation of arguments.
    pub input_validation: InputRules,
    pub result_limit: ResultLimitRules,
}

/// `input_validation` of one server, for all its tools and by tool name or pattern.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct InputRules {
    /// See [`InputPolicy::mode`].
    pub mode: Option<InputMode>,
    /// Overrides by tool name or pattern.
    pub tools: Rules<InputOverride>,
}

/// Override of argument validation; absent fields are inherited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct InputOverride {
    /// See [`InputPolicy::mode`].
    pub mode: Option<InputMode>,
}

/// `output_validation` of one server, for all its tools and by tool name or pattern.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OutputRules {
    /// See [`PolicyOverride`] for this and the other fields.
    pub mode: Option<Mode>,
    pub max_bytes: Option<u64>,
    #[serde(deserialize_with = "depth")]
    pub max_depth: Option<u32>,
    pub missing_structured_content: Option<MissingContent>,
    pub max_held_bytes: Option<u64>,
    /// Overrides by tool name or pattern.
    pub tools: Rules<PolicyOverride>,
}

/// Override of result validation; absent fields are inherited.
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
    /// Whether the tool is offered.
    pub fn offers(&self, name: &str) -> bool {
        let listed = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        self.enabled_tools.as_deref().is_none_or(listed) && !listed(&self.disabled_tools)
    }

    /// Effective result validation of a tool (FR-A4).
    pub(crate) fn policy(&self, base: Policy, name: &str) -> Policy {
        let rules = &self.output_validation;
        rules
            .tools
            .matching(name)
            .fold(rules.of_the_server().over(base), |policy, rule| rule.over(policy))
    }

    /// Effective argument validation of a tool.
    pub(crate) fn input(&self, base: InputPolicy, name: &str) -> InputPolicy {
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
    /// Returns `base` with these overrides applied.
    pub(crate) fn over(&self, base: Policy) -> Policy {
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

/// `result_limit` of one server, for all its tools and by tool name or pattern.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResultLimitRules {
    /// See [`ResultLimit::bytes`].
    #[serde(deserialize_with = "bytes")]
    pub bytes: Option<u64>,
    /// See [`ResultLimit::keep`].
    #[serde(deserialize_with = "keep")]
    pub keep: Option<Duration>,
    /// Overrides by tool name or pattern.
    pub tools: Rules<ResultLimitOverride>,
}

/// Override of the result limit; absent fields are inherited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ResultLimitOverride {
    /// See [`ResultLimit::bytes`].
    #[serde(deserialize_with = "bytes")]
    pub bytes: Option<u64>,
    /// See [`ResultLimit::keep`].
    #[serde(deserialize_with = "keep")]
    pub keep: Option<Duration>,
}

impl ResultLimitRules {
    /// Effective limit of a tool.
    pub(crate) fn of(&self, base: ResultLimit, name: &str) -> ResultLimit {
        let server = ResultLimitOverride { bytes: self.bytes, keep: self.keep };
        self.tools.matching(name).fold(server.over(base), |limit, rule| rule.over(limit))
    }

    /// Whether any tool may have a limit.
    pub fn limit_any(&self, base: ResultLimit) -> bool {
        let some = |bytes: Option<u64>| bytes.is_some_and(|bytes| bytes > 0);
        self.bytes.unwrap_or(base.bytes) > 0 || self.tools.iter().any(|(_, rule)| some(rule.bytes))
    }
}

impl ResultLimitOverride {
    fn over(self, base: ResultLimit) -> ResultLimit {
        ResultLimit {
            bytes: self.bytes.unwrap_or(base.bytes),
            keep: self.keep.unwrap_or(base.keep),
        }
    }
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Stated(#[serde(deserialize_with = "tool::limit_bytes")] u64);
    Ok(Option::<Stated>::deserialize(deserializer)?.map(|Stated(bytes)| bytes))
}

fn keep<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    #[derive(Deserialize)]
    struct Stated(#[serde(deserialize_with = "tool::keep_time")] Duration);
    Ok(Option::<Stated>::deserialize(deserializer)?.map(|Stated(keep)| keep))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(json: &str) -> ServerSettings {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn fr_a4_policy_layers_combine_from_server_to_tool() {
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
    fn most_specific_argument_validation_setting_wins() {
        let settings = settings(
            r#"{"input_validation": {"mode": "warn", "tools": {
                "read_*": {"mode": "off"}, "read_file": {}, "read_dir": {"mode": "strict"}}}}"#,
        );
        let of = |name| settings.input(InputPolicy::default(), name).mode;
        assert_eq!(of("write"), InputMode::Warn);
        assert_eq!(of("read_file"), InputMode::Off);
        assert_eq!(of("read_dir"), InputMode::Strict);
        let default = ServerSettings::default().input(InputPolicy::default(), "write");
        assert_eq!(default.mode, InputMode::Coerce);
    }

    #[test]
    fn fr_a6_depth_out_of_bounds_is_rejected() {
        for (depth, fits) in [(0, false), (1, true), (120, true), (121, false)] {
            let json = format!(r#"{{"output_validation": {{"max_depth": {depth}}}}}"#);
            assert_eq!(serde_json::from_str::<ServerSettings>(&json).is_ok(), fits, "{depth}");
        }
    }

    #[test]
    fn tool_filters_select_the_offered_tools() {
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

#[cfg(test)]
mod result_limits_tests {
    use super::*;

    fn rules(json: &str) -> ResultLimitRules {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn result_limit_layers_combine_from_root_to_tool() {
        let base = ResultLimit { bytes: 10_000, keep: Duration::from_secs(7) };
        let rules = rules(
            r#"{"keep": "1m", "tools": {"read_*": {"bytes": 5000}, "read_all": {"bytes": 0, "keep": "2m"}}}"#,
        );
        let of = |name| rules.of(base, name);
        let minute = Duration::from_secs(60);
        assert_eq!(of("write"), ResultLimit { bytes: 10_000, keep: minute });
        assert_eq!(of("read_one"), ResultLimit { bytes: 5000, keep: minute });
        assert_eq!(of("read_all"), ResultLimit { bytes: 0, keep: 2 * minute });
        assert_eq!((of("read_all").limits(), of("write").limits()), (None, Some(of("write"))));
    }

    #[test]
    fn result_limit_is_detected_in_every_settings_layer() {
        let (off, on) = (ResultLimit::default(), ResultLimit { bytes: 5000, ..Default::default() });
        for (json, with_off, with_on) in [
            ("{}", false, true),
            (r#"{"bytes": 0}"#, false, false),
            (r#"{"bytes": 5000}"#, true, true),
            (r#"{"tools": {"t": {"keep": "1m"}}}"#, false, true),
            (r#"{"bytes": 0, "tools": {"t": {"bytes": 5000}}}"#, true, true),
        ] {
            let rules = rules(json);
            assert_eq!((rules.limit_any(off), rules.limit_any(on)), (with_off, with_on), "{json}");
        }
    }

    #[test]
    fn out_of_range_result_limit_is_rejected() {
        for (json, fits) in [
            (r#"{"bytes": 4095}"#, false),
            (r#"{"bytes": 4096}"#, true),
            (r#"{"bytes": 0}"#, true),
            (r#"{"bytes": null, "keep": null}"#, true),
            (r#"{"bytes": -1}"#, false),
            (r#"{"keep": "0s"}"#, false),
            (r#"{"keep": "24h"}"#, true),
            (r#"{"keep": "25h"}"#, false),
            (r#"{"keep": 7}"#, false),
            (r#"{"tools": {"t": {"bytes": 1}}}"#, false),
        ] {
            assert_eq!(serde_json::from_str::<ResultLimitRules>(json).is_ok(), fits, "{json}");
        }
    }
}
