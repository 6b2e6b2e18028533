//! The policy for answers: modes, limits, findings, and their descriptions for record and agent.
//!
//! The [`inspector`] follows an answer as it arrives, under the limits of `guards`. The caller has the schema evaluated, since
//! evaluating a large document needs scheduling, and this floor is pure.

mod ending;
mod guards;
pub mod inspector;

use serde::{Deserialize, Serialize};

use crate::schema::violation::Violation;

pub use ending::Required;
pub use inspector::{AnswerFault, AnswerMember, InspectedMessage, Inspector};

/// Default `max_bytes`: 5 MiB.
pub const DEFAULT_MAX_BYTES: u64 = 5 * 1024 * 1024;
/// Default `max_depth`.
pub const DEFAULT_MAX_DEPTH: u32 = 64;
/// Default `max_held_bytes`: 64 MiB.
pub const DEFAULT_MAX_HELD_BYTES: u64 = 64 * 1024 * 1024;
/// Longest description that an agent is given, in bytes ([contracts](crate::reference::contracts#errors)).
const MAX_DESCRIPTION_BYTES: usize = 500;

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

impl Mode {
    /// The word used in the config and in records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Strict => "strict",
        }
    }
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
            max_bytes: DEFAULT_MAX_BYTES,
            max_depth: DEFAULT_MAX_DEPTH,
            missing: MissingContent::Allow,
            max_held_bytes: DEFAULT_MAX_HELD_BYTES,
        }
    }
}

/// What happens to an answer's bytes while they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// They go on at once and nothing is judged (FR-A7, mode off).
    Forward,
    /// They go on at once; `structuredContent` is kept for the judge (FR-A11).
    ForwardAndJudge,
    /// They wait for the verdict.
    Hold,
}

/// What is to be done about a whole result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing stands against it.
    Passes,
    /// The schema decides.
    AskTheSchema,
    /// Refused without asking the schema.
    Fails(Failure),
}

/// A violation, in the words of the record and in those of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For the record: may quote the document.
    pub reason: String,
    /// For the agent: no value, and no property name that the schema does not have
    /// ([verdicts](crate::reference::requirements#verdicts)).
    pub for_agent: String,
    /// Where in the document, a JSON pointer.
    pub instance_path: String,
    /// Where in the schema, a JSON pointer.
    pub schema_path: String,
    /// The guard that was crossed: `max_bytes`, `max_depth`, `max_held_bytes`, `time`.
    pub guard: Option<&'static str>,
}

impl Failure {
    /// A schema's verdict.
    #[must_use]
    pub fn schema(violation: &Violation) -> Self {
        Self {
            reason: violation.describe().to_owned(),
            for_agent: violation.for_agent().to_owned(),
            instance_path: violation.instance_path.clone(),
            schema_path: violation.schema_path.clone(),
            guard: violation.reason.guard(),
        }
    }

    /// A held result outgrew `max_held_bytes`.
    #[must_use]
    pub fn held(limit: u64) -> Self {
        Self::plain(
            format!("the result is larger than max_held_bytes {limit}"),
            Some("max_held_bytes"),
        )
    }

    /// The judge itself failed; what was not judged does not pass for judged.
    #[must_use]
    pub fn unjudged() -> Self {
        Self::plain("the validator failed, so nothing is known of the answer".into(), None)
    }

    /// The call ended before its evaluation did, and no task was left to continue it.
    #[must_use]
    pub fn given_up() -> Self {
        Self::plain("the call ended before its answer was judged".into(), None)
    }

    pub(crate) fn missing() -> Self {
        Self::plain("structuredContent is missing, and the tool declares a schema".into(), None)
    }

    pub(crate) fn ambiguous(text: &str) -> Self {
        Self::plain(text.into(), None)
    }

    pub(crate) fn plain(text: String, guard: Option<&'static str>) -> Self {
        Self {
            reason: text.clone(),
            for_agent: text,
            instance_path: String::new(),
            schema_path: String::new(),
            guard,
        }
    }

    /// The text of the tool result that replaces a blocked answer
    /// ([contracts](crate::reference::contracts#errors)).
    #[must_use]
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
    fn the_agents_text_is_cut_on_a_character() {
        let text = Failure::plain("é".repeat(400), None).agent_text();
        assert_eq!(text, format!("output schema validation failed: {}", "é".repeat(250)));
    }
}
