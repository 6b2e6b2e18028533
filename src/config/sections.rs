//! The sections and values of the config that belong to no other part.
//!
//! Owns their defaults and bounds, which are checked as they are read. The parts that use them decide
//! what follows from them.

use std::fmt;

use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::reading::within;
use crate::catalog::settings::MAX_DEPTH;
use crate::output::{MissingContent, Mode, Policy};
use crate::policy::rules::{Preset, RulesDefault, RulesMode};
use crate::results::StoreBounds;
use crate::schema;
use crate::tool::result_limit::{self, ResultLimit};

/// Fewest characters of an API key.
pub const MIN_API_KEY_CHARS: usize = 32;

/// The key of the REST interface. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// Checks a key; the error says what is wrong with it.
    pub(super) fn new(text: String) -> Result<Self, String> {
        let problem = if text.chars().count() < MIN_API_KEY_CHARS {
            format!("must have at least {MIN_API_KEY_CHARS} characters")
        } else if !text.chars().all(|c| c.is_ascii_graphic()) {
            "must be printable ASCII without spaces: it is sent as a header".to_owned()
        } else {
            return Ok(Self(text));
        };
        Err(problem)
    }

    /// The key itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// The section `output_validation`: for every tool that no server or tool setting is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OutputValidation {
    /// What a violation leads to.
    pub mode: Mode,
    /// Most bytes of structuredContent.
    pub max_bytes: u64,
    /// Most nesting of structuredContent, 1 to 120.
    #[serde(deserialize_with = "depth")]
    pub max_depth: u32,
    /// What strict does without structuredContent.
    pub missing_structured_content: MissingContent,
    /// Whether `format` is asserted.
    pub assert_formats: bool,
    /// Most bytes of one held result.
    pub max_held_bytes: u64,
    /// Most bytes held over all calls.
    pub max_held_total_bytes: u64,
    /// Bytes of it that are reserved for each server; if not set, half of it divided between the
    /// enabled servers, at most `max_held_bytes` each.
    pub held_share_bytes: Option<u64>,
    /// Which engine decides.
    pub engine: EngineName,
}

/// The names of [`schema::compile::Engine`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// The tape pass, then boon.
    #[default]
    Tape,
    /// boon every time.
    Boon,
}

/// Default of `max_held_total_bytes`: 512 MiB.
const MAX_HELD_TOTAL_BYTES: u64 = 512 * 1024 * 1024;

impl Default for OutputValidation {
    fn default() -> Self {
        let policy = Policy::default();
        Self {
            mode: policy.mode,
            max_bytes: policy.max_bytes,
            max_depth: policy.max_depth,
            missing_structured_content: policy.missing,
            assert_formats: false,
            max_held_bytes: policy.max_held_bytes,
            max_held_total_bytes: MAX_HELD_TOTAL_BYTES,
            held_share_bytes: None,
            engine: EngineName::Tape,
        }
    }
}

impl OutputValidation {
    /// The policy that servers and tools may override.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            mode: self.mode,
            max_bytes: self.max_bytes,
            max_depth: self.max_depth,
            missing: self.missing_structured_content,
            max_held_bytes: self.max_held_bytes,
        }
    }

    /// How output schemas are compiled.
    #[must_use]
    pub fn schemas(&self) -> schema::compile::Settings {
        schema::compile::Settings {
            engine: match self.engine {
                EngineName::Tape => schema::compile::Engine::Tape,
                EngineName::Boon => schema::compile::Engine::Boon,
            },
            assert_formats: self.assert_formats,
        }
    }
}

/// The section `result_limit`: when results are kept back where no server or tool says otherwise, and what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ResultLimitSection {
    /// See [`ResultLimit::bytes`].
    #[serde(deserialize_with = "result_limit::bytes")]
    pub bytes: u64,
    /// See [`ResultLimit::keep`].
    #[serde(deserialize_with = "result_limit::keep")]
    pub keep: Duration,
    /// Most bytes of all kept results.
    pub max_kept_bytes: u64,
    /// Most results that are kept, 1 to 10 000.
    #[serde(deserialize_with = "max_kept")]
    pub max_kept: usize,
}

/// Default of `max_kept_bytes`: 256 MiB.
const MAX_KEPT_BYTES: u64 = 256 * 1024 * 1024;
/// Default of `max_kept`.
const DEFAULT_MAX_KEPT: usize = 1000;
/// Most that `max_kept` can be.
const MAX_KEPT: usize = 10_000;

impl Default for ResultLimitSection {
    fn default() -> Self {
        let ResultLimit { bytes, keep } = ResultLimit::default();
        Self { bytes, keep, max_kept_bytes: MAX_KEPT_BYTES, max_kept: DEFAULT_MAX_KEPT }
    }
}

impl ResultLimitSection {
    /// The limit that servers and tools may override.
    #[must_use]
    pub fn limit(&self) -> ResultLimit {
        ResultLimit { bytes: self.bytes, keep: self.keep }
    }

    /// The bounds of what is kept.
    #[must_use]
    pub fn bounds(&self) -> StoreBounds {
        StoreBounds { max_bytes: self.max_kept_bytes, max_results: self.max_kept }
    }
}

fn max_kept<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=MAX_KEPT))
}

/// The section `policy`: which rules there are, and how they are put in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PolicySection {
    /// Files of rules, in Cedar.
    pub files: Vec<String>,
    /// Where no rule decides.
    pub default: RulesDefault,
    /// What a refusal leads to.
    pub mode: RulesMode,
    /// Rules that are there to be switched on.
    pub presets: Vec<Preset>,
}

/// The section `logging`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Logging {
    /// The least that is logged.
    pub level: LogLevel,
    /// For people or for programs.
    pub format: LogFormat,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "each is its name")]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object in each line.
    Json,
}

fn depth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    within(u32::deserialize(deserializer)?, &MAX_DEPTH)
}
