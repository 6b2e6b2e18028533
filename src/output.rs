//! The answer's policy: mode and limits.

use serde::{Deserialize, Serialize};

/// What a violation leads to (FR-A4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing is judged.
    Off,
    /// The unaltered answer goes on, the decision is recorded.
    #[default]
    Warn,
    /// The answer is held until the verdict, and replaced when refused.
    Strict,
}

/// What strict does when a schema is declared and `structuredContent` is absent (FR-A8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingContent {
    /// The answer goes on.
    #[default]
    Allow,
    /// The answer is blocked.
    Block,
}

/// How one tool's answers are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What a violation leads to.
    pub mode: Mode,
    /// Most bytes of `structuredContent`, first to last byte of its value (FR-A6).
    pub max_bytes: u64,
    /// Most nesting of `structuredContent`, 1 to 120 (FR-A6).
    pub max_depth: u32,
    /// What strict does without `structuredContent`.
    pub missing: MissingContent,
    /// Most bytes of one held result, strict only.
    pub max_held_bytes: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: Mode::Warn,
            max_bytes: 5 * 1024 * 1024,
            max_depth: 64,
            missing: MissingContent::Allow,
            max_held_bytes: 64 * 1024 * 1024,
        }
    }
}
