//! Policy for answers: modes, limits, findings, and their descriptions for the record and the agent.
//!
//! The [`inspector`] reads an answer as it arrives, under the limits that this module defines. Callers run
//! the evaluation, which has to be scheduled for large documents.

mod ending;
pub mod inspector;

use serde::{Deserialize, Serialize};

use crate::violation::Violation;

pub use ending::Required;
pub use inspector::{
    AnswerFault, AnswerMember, BareContent, InspectedMessage, Inspector, ResultTypePlace, StatePart,
};

/// Default `max_bytes`: 5 MiB.
pub(crate) const DEFAULT_MAX_BYTES: u64 = 5 * 1024 * 1024;
/// Default `max_depth`.
pub(crate) const DEFAULT_MAX_DEPTH: u32 = 64;
/// Default `max_held_bytes`: 64 MiB.
pub(crate) const DEFAULT_MAX_HELD_BYTES: u64 = 64 * 1024 * 1024;
/// Maximum length of a description for an agent, in bytes (`contracts.md`, *errors*).
const MAX_DESCRIPTION_BYTES: usize = 500;

/// Consequence of a violation (FR-A4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Off,
    /// Forwards the unaltered answer and records the decision.
    #[default]
    Warn,
    /// Holds the answer until the verdict, and replaces a refused one.
    Strict,
}

impl Mode {
    /// Name in the config and in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Strict => "strict",
        }
    }
}

/// Action of strict mode when a schema is declared and `structuredContent` is absent (FR-A8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingContent {
    /// Forwards the answer.
    #[default]
    Allow,
    /// Blocks the answer.
    Block,
}

/// Validation policy of one tool's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Consequence of a violation.
    pub mode: Mode,
    /// Maximum size of `structuredContent` in bytes, measured over the value's span (FR-A6).
    pub max_bytes: u64,
    /// Maximum depth of `structuredContent`, 1 to 120 (FR-A6).
    pub max_depth: u32,
    /// Action of strict mode without `structuredContent`.
    pub missing: MissingContent,
    /// Maximum size of one held result in bytes; strict mode only.
    pub max_held_bytes: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: Mode::Warn,
            max_bytes: DEFAULT_MAX_BYTES,
            max_depth: DEFAULT_MAX_DEPTH,
            missing: MissingContent::Allow,
            max_held_bytes: DEFAULT_MAX_HELD_BYTES,
        }
    }
}

/// Treatment of an answer's bytes while they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Forwarded immediately, not validated (FR-A7, mode off).
    Forward,
    /// Forwarded immediately; `structuredContent` is buffered for validation (FR-A11).
    ForwardAndJudge,
    /// Held until the verdict is known.
    Hold,
}

/// Next step for a complete result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Accepted.
    Passes,
    AskTheSchema,
    /// Refused without an evaluation.
    Fails(Failure),
}

/// Violation, described for the record and for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Description for the record; may quote the document.
    pub reason: String,
    /// Description for the agent: without values, and without property names that are not in the schema (`requirements.md`, *verdicts*).
    pub for_agent: String,
    /// JSON pointer into the document.
    pub instance_path: String,
    /// JSON pointer into the schema.
    pub schema_path: String,
    /// Exceeded guard: `max_bytes`, `max_depth`, `max_held_bytes` or `time`.
    pub guard: Option<&'static str>,
}

impl Failure {
    pub fn schema(violation: &Violation) -> Self {
        Self {
            reason: violation.describe().to_owned(),
            for_agent: violation.for_agent().to_owned(),
            instance_path: violation.instance_path.clone(),
            schema_path: violation.schema_path.clone(),
            guard: violation.reason.guard(),
        }
    }

    /// Failure of a held result that is larger than `max_held_bytes`.
    pub fn held(limit: u64) -> Self {
        Self::plain(
            format!("the result is larger than max_held_bytes {limit}"),
            Some("max_held_bytes"),
        )
    }

    /// Failure of an evaluation; an answer that was not evaluated does not count as valid.
    pub fn unjudged() -> Self {
        Self::plain("the validator failed, so the answer was not validated".into(), None)
    }

    /// Failure of a call that ended before its evaluation, without a task left to finish it.
    pub fn given_up() -> Self {
        Self::plain("the call ended before its answer was validated".into(), None)
    }

    /// Failure of an answer without `structuredContent` although the tool declares an output schema.
    pub(crate) fn missing() -> Self {
        Self::plain("structuredContent is missing, and the tool declares a schema".into(), None)
    }

    /// Failure of an answer that parsers read differently, at the place in `text`.
    pub(crate) fn ambiguous(text: &str) -> Self {
        Self::plain(text.into(), None)
    }

    /// Violation without a place in the document; `guard` is the guard that found it.
    pub(crate) fn plain(text: String, guard: Option<&'static str>) -> Self {
        Self {
            reason: text.clone(),
            for_agent: text,
            instance_path: String::new(),
            schema_path: String::new(),
            guard,
        }
    }

    /// Text of the tool result that replaces a blocked answer (`contracts.md`, *errors*).
    pub fn agent_text(&self) -> String {
        let mut end = self.for_agent.len().min(MAX_DESCRIPTION_BYTES);
        while !self.for_agent.is_char_boundary(end) {
            end -= 1;
        }
        let description = self.for_agent.get(..end).unwrap_or_default();
        format!("output schema validation failed: {description}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_text_is_truncated_at_a_character_boundary() {
        let text = Failure::plain("é".repeat(400), None).agent_text();
        assert_eq!(text, format!("output schema validation failed: {}", "é".repeat(250)));
    }
}
